"""What several tests of the services share."""

import json

import pytest
from postgres_world import postgres  # noqa: F401

from sottovoce.cli import call


@pytest.fixture
def ask(capsys):
    """A command within this process, as JSON."""

    def ask(*arguments, code=0):
        capsys.readouterr()
        assert call([*map(str, arguments), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask
