"""How commands are called here: within this process, with what they print."""

import json

import pytest

import sottovoce.cli


@pytest.fixture
def sottovoce_(capsys):
    """Any command: exit code, standard output, standard error."""

    def run(*words):
        capsys.readouterr()
        code = sottovoce.cli.call([*map(str, words)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def ask(sottovoce_):
    """A command of a device, as JSON."""

    def ask(*words, code=0):
        got, out, err = sottovoce_("device", *words, "--json")
        assert got == code, err
        return json.loads(out)

    return ask


@pytest.fixture
def say(sottovoce_):
    """A command of a device, for people: what it prints; of an error its one sentence."""

    def say(*words, code=0):
        got, out, err = sottovoce_("device", *words)
        assert got == code, err
        assert code == 0 or err.count("\n") == 1
        return err if code else out

    return say
