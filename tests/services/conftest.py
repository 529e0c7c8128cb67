"""What several tests of the services share."""

import json

import pytest
from postgres_world import postgres  # noqa: F401

from sottovoce.cli import call
from sottovoce.stores.keys import init_keys


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys of a server."""
    made = tmp_path_factory.mktemp("keys")
    init_keys(made)
    return made


@pytest.fixture
def ask(capsys):
    """A command within this process, as JSON."""

    def ask(*arguments, code=0):
        capsys.readouterr()
        assert call([*map(str, arguments), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask
