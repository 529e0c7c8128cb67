"""`sottovoce serve catalogue`: items come and go; what cannot be is said in a sentence."""

import json

import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.cli import main
from sottovoce.core.links import Direct
from sottovoce.privacy.base import RELEASES
from sottovoce.stores.catalogue import catalogue_name, require_catalogue
from sottovoce.stores.server_folder import create_folder, open_folder
from sottovoce.wire.catalogue import with_spare
from sottovoce.wire.terms import Terms

ITEMS = with_spare([("a", "Anna's"), ("b", "Bar"), ("c", "Cinema")], 2)


@pytest.fixture
def folder(tmp_path):
    release = RELEASES[FCFConfig.releases[0]]()
    terms = Terms("town", len(ITEMS), FCFConfig(embedding_size=4), release, Direct())
    made = create_folder(tmp_path / "town", terms, ITEMS)
    database = made.database()
    with database.writing() as link:
        require_catalogue(link, made.catalogue())
    database.close()
    return made.path


def run(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert (ended.value.code or 0) == code
    return capsys.readouterr()


def test_items_come_and_go_and_the_server_starts_with_them(folder, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("item,title\nd,Diner\n")
    arguments = ("serve", "catalogue", folder, "--add", tmp_path / "new.csv", "--gone", "b")
    told = json.loads(run(capsys, *arguments, "--json").out)
    assert (told["items"], told["gone"], told["spare"]) == (3, 1, 1)
    made = open_folder(folder)
    items = json.loads(made.catalogue())["items"]
    assert items[1] == ["b", ""]
    assert items[3] == ["d", "Diner"]
    database = made.database()
    with database.writing() as link:
        require_catalogue(link, made.catalogue())
    database.close()
    assert (
        "3 items, 1 that are gone, 1 places to spare"
        in run(capsys, "serve", "catalogue", folder).out
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(("--gone", "x"), 2, "x is not in the catalogue"), (("--add", "none.csv"), 3, "is not there")],
)
def test_what_cannot_be_changes_nothing(folder, capsys, arguments, code, said):
    before = (folder / "catalogue.json").read_bytes()
    told = run(capsys, "serve", "catalogue", folder, *arguments, code=code)
    assert said in told.err
    assert (folder / "catalogue.json").read_bytes() == before


def test_a_change_that_was_cut_off_is_done_again(folder, monkeypatch):
    made = open_folder(folder)
    before = made.catalogue()
    made.change_catalogue([("d", "Diner")], [])
    after = made.catalogue()
    (folder / "catalogue.json").write_bytes(before)  # the disk had the one, and not the other
    made.change_catalogue([("d", "Diner")], [])
    assert catalogue_name(made.catalogue()) == catalogue_name(after)
