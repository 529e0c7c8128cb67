"""`sottovoce serve catalogue`: items come and go; what cannot be is said in a sentence."""

import contextlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.cli import main
from sottovoce.cli.making import make_federation, read_items
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Direct
from sottovoce.data.dataset import Dataset
from sottovoce.engines.flower.cohort import make_cohort, read_server_catalogue
from sottovoce.errors import ServiceError, UsageError
from sottovoce.privacy.base import RELEASES
from sottovoce.stores import amending
from sottovoce.stores.acts import Actor, Acts, past_acts
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server import catalogue_name, drop_fact, require_catalogue
from sottovoce.stores.server_folder import create_folder, open_folder
from sottovoce.wire.catalogue import categories_in, with_spare
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
        "3 items, 1 that is gone, 1 place to spare" in run(capsys, "serve", "catalogue", folder).out
    )


def test_items_come_with_their_categories(folder, tmp_path, capsys):
    before = (folder / "catalogue.json").read_bytes()
    (tmp_path / "new.csv").write_text("item,title,categories\nd,Diner,Food| Fun |\nb,Bar,\n")
    run(capsys, "serve", "catalogue", folder, "--add", tmp_path / "new.csv")
    told = json.loads(open_folder(folder).catalogue())
    assert told["categories"] == {"names": ["Food", "Fun"], "of": [[], [], [], [0, 1], []]}
    assert b"categories" not in before
    place = folder / "catalogue.json"
    place.write_text(json.dumps(told | {"categories": {"names": ["Food"], "of": [[]]}}))
    with pytest.raises(ServiceError, match="is no catalogue"):
        open_folder(folder).catalogue()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_items_may_name_categories(tmp_path, kind):
    place = tmp_path / f"items.{kind}"
    if kind == "csv":
        place.write_text("item,title,categories\na,A,x|y\nb,B,\nc,C\n")
    else:
        columns = {"item": ["a", "b", "c"], "title": ["A", "B", "C"]}
        pq.write_table(pa.table(columns | {"categories": [["x", "y"], [], None]}), place)
    assert read_items(place) == ([("a", "A"), ("b", "B"), ("c", "C")], [("x", "y"), (), ()])
    plain = tmp_path / "plain.csv"
    plain.write_text("item\na\n")
    assert read_items(plain) == ([("a", "a")], [])


def test_a_new_federation_publishes_the_categories_of_its_data(tmp_path):
    (tmp_path / "my.toml").write_text(
        '[data]\nsource = "town"\n[town]\nresidents = 60\n'
        "[algorithm]\nembedding_size = 4\ntriples = 10\nrounds = 3\n"
    )
    made = make_federation(
        tmp_path / "town", str(tmp_path / "my.toml"), [], None, ["localhost"], None, spare=2
    )
    told = json.loads(made.catalogue())
    assert told["categories"]["names"]
    assert len(told["categories"]["of"]) == len(told["items"])
    assert told["categories"]["of"][-2:] == [[], []]
    store = make_cohort(tmp_path / "bakery", *cohort_of(made.path / "catalogue.json"))
    assert store.unknown_items == 1
    with CohortStore.open(tmp_path / "bakery", readonly=True) as opened:
        assert opened.categories() == categories_in(told, len(told["items"]))


def cohort_of(catalogue):
    history = Interactions.from_pairs([0, 1], [0, 0], n_users=2, n_items=1)
    return Dataset("bakery", history), read_server_catalogue(catalogue), {}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(("--gone", "x"), 2, "x is not in the catalogue"), (("--add", "none.csv"), 3, "is not there")],
)
def test_what_cannot_be_changes_nothing(folder, capsys, arguments, code, said):
    before = (folder / "catalogue.json").read_bytes()
    told = run(capsys, "serve", "catalogue", folder, *arguments, code=code)
    assert said in told.err
    assert (folder / "catalogue.json").read_bytes() == before


@pytest.mark.parametrize("command", ["catalogue", "terms"])
@pytest.mark.parametrize("row", ["x" * 131_000 + ",t", "d,a\x1bb", ",Title", "d,Diner,\x07"])
def test_a_row_that_devices_could_not_take_changes_nothing(folder, tmp_path, capsys, command, row):
    before = (folder / "catalogue.json").read_bytes()
    more = "".join(f"n{n},N\n" for n in range(5 if command == "terms" else 1))
    (tmp_path / "new.csv").write_text(f"item,title,categories\n{row}\n{more}")
    arguments = ("serve", command, folder, "--add", tmp_path / "new.csv")
    told = run(capsys, *arguments, code=2)
    assert "nothing was changed" in told.err
    assert len(told.err) < 600
    made = open_folder(folder)
    database = made.database()
    with contextlib.closing(database), database.reading() as link:
        assert made.catalogue(link) == before
        assert amending.proposed(link) is None


def test_a_federation_is_not_made_with_names_that_devices_could_not_take(tmp_path):
    release = RELEASES[FCFConfig.releases[0]]()
    terms = Terms("town", 2, FCFConfig(embedding_size=4), release, Direct())
    with pytest.raises(UsageError, match="nothing was changed"):
        create_folder(tmp_path / "new", terms, [("x" * 131_000, "t"), ("b", "B")])
    assert not (tmp_path / "new").exists()


def test_a_federation_of_a_former_release_goes_on_with_its_odd_names(folder, tmp_path, capsys):
    place = folder / "catalogue.json"
    items = [["odd\n", "O" * 2000], ["b", "Bar"], ["c", "C"], *map(list, ITEMS[3:])]
    place.write_text(json.dumps({"items": items}))
    made = open_folder(folder)
    database = made.database()
    with contextlib.closing(database), database.writing() as link:
        drop_fact(link, "catalogue")
        require_catalogue(link, made.catalogue())
    (tmp_path / "new.csv").write_text("item,title\nd,Diner\n")
    run(capsys, "serve", "catalogue", folder, "--add", tmp_path / "new.csv", "--gone", "b")
    assert json.loads(open_folder(folder).catalogue())["items"][0] == items[0]
    run(capsys, "serve", "catalogue", folder, "--gone", "odd\n")


def test_a_change_that_was_cut_off_is_done_again(folder, monkeypatch):
    made = open_folder(folder)
    before = made.catalogue()
    with contextlib.closing(made.database()) as database:
        acts = Acts(made, database, Actor("anna", "command"))
        assert acts.change_items([("d", "Diner")], [])["changed"]
        after = made.catalogue()
        (folder / "catalogue.json").write_bytes(before)  # the disk had the one, and not the other
        assert not acts.change_items([("d", "Diner")], [])["changed"]
        with database.reading() as link:
            assert [one["words"] for one in past_acts(link, 0, 9)[1]] == ["items that came: d"]
        assert catalogue_name(made.catalogue()) == catalogue_name(after)
        # Whoever starts then goes by the database.
        (folder / "catalogue.json").write_bytes(before)
        assert made.follow(database).catalogue() == after
