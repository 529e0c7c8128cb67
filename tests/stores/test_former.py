"""A server's folder that is set back to a copy from before a change of items and terms: it keeps
what devices know, goes on with a round that nobody has seen, or is refused."""

import contextlib
import json
import shutil

import pytest
from server_world import ITEMS
from test_amending import Town
from unpacked import unpacked

from sottovoce.errors import UsageError
from sottovoce.services.copies.copying import make_backup, restore_backup
from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.acts import past_acts
from sottovoce.stores.server_folder import open_folder

NEW = [("new-0", "New 0"), ("new-1", "New 1")]


def run_round(town, devices=4):
    while town.now.state != "open":
        before = town.now
        town.check_in(*range(devices))
        town.step()
        assert town.now != before or town.now.state == "open"
    town.report(*range(devices))
    town.steps(2)


@pytest.fixture
def town(tmp_path):
    """Copied after its first round; then items and terms were changed, twice, a device was invited
    and another one shut out."""
    town = Town(tmp_path / "town", rounds=40)
    run_round(town)
    make_backup(town.path, tmp_path / "copy")
    change(town)
    yield town
    town.kill()


def change(town):
    town.acts.change_items((), ["v3"])
    town.acts.change_terms(["algorithm.learning_rate=0.07"], NEW)
    run_round(town)
    town.steps(3)
    town.acts.change_terms(["algorithm.learning_rate=0.06"], spare=1)
    town.steps(3)
    run_round(town)
    town.acts.raise_target(60)
    town.acts.shut_out([3])
    with town.database.writing() as link:
        records.invite(link, [9], [b"t" * 32])


def told(folder):
    """What devices would be told by this folder, as a server starts from it."""
    folder = open_folder(folder)
    with contextlib.closing(folder.database()) as store, store.reading() as link:
        now = folder.caught_up(link)
        assert now == folder, "files and database agree"
        return now.plan.terms.digest(), now.catalogue(link), records.position(link)


def back(town, tmp_path, **options):
    """Put the copy back; what was said."""
    town.kill()
    done = restore_backup(tmp_path / "copy", town.path, **options)
    return done, " ".join(done.settled.means)


def test_a_copy_that_is_simply_put_back_has_what_devices_refuse(town, tmp_path):
    """The control."""
    terms, catalogue, now = told(town.path)
    before = told(unpacked(tmp_path / "copy", tmp_path / "plain"))
    assert before[0] != terms
    assert before[1] != catalogue
    assert before[2].round < now.round


def test_a_copy_from_before_a_change_goes_on_under_what_devices_know(town, tmp_path):
    terms, catalogue, now = told(town.path)
    done, said = back(town, tmp_path)
    after = told(town.path)
    assert (after[0], after[1]) == (terms, catalogue)
    assert after[2].round > now.round
    assert after[2].state == "waiting"
    assert after[2].roster != now.roster, "devices ask whether they are still in"
    assert "Items were changed" in said
    assert "Terms were changed" in said
    assert "need new invitations" not in said
    assert done.settled.next_round == after[2].round

    # Nothing that operators did is lost, and rounds are run again.
    town.start()
    assert town.now.target == 60
    assert town.read(records.shut_numbers) == [3]
    assert town.read(records.is_invited, b"t" * 32)
    assert len(town.read(amending.history)) == 3
    acts = [one["what"] for one in town.read(past_acts, 0, 50)[1]]
    assert acts.count("in_force") == 2
    town.check_in(0, 1, 2)
    with town.database.writing() as link:
        records.readmit(link, [3])
    model = town.model(after[2].round)[0]
    assert len(model) == ITEMS + 3
    run_round(town)
    assert town.now.round == after[2].round + 1
    # And another copy is another one: put back twice, it goes on twice.
    make_backup(town.path, tmp_path / "later")
    town.kill()
    restore_backup(tmp_path / "copy", town.path)
    restore_backup(tmp_path / "later", town.path)
    assert told(town.path)[:2] == (terms, catalogue)


@pytest.mark.parametrize("which", ["items", "terms"])
def test_one_change_alone_is_taken_over(tmp_path, which):
    town = Town(tmp_path / "town", rounds=40)
    make_backup(town.path, tmp_path / "copy")
    if which == "items":
        town.acts.change_items((), ["v3"])
    else:
        town.acts.change_terms(["algorithm.learning_rate=0.07"])
    town.steps(2)
    terms, catalogue, _ = told(town.path)
    _, said = back(town, tmp_path)
    assert told(town.path)[:2] == (terms, catalogue)
    assert ("Items were" in said, "Terms were" in said) == (which == "items", which == "terms")
    town.start()
    run_round(town)
    town.kill()


def test_a_change_that_waits_still_waits_and_one_that_is_over_does_not(tmp_path):
    town = Town(tmp_path / "town", rounds=40)
    town.step()
    assert town.now.state == "open"
    town.acts.change_terms(["algorithm.learning_rate=0.07"])
    make_backup(town.path, tmp_path / "copy")
    town.acts.withdraw()
    town.acts.change_terms(["algorithm.learning_rate=0.04"])
    waits = town.read(amending.proposed)
    back(town, tmp_path)
    town.start()
    assert town.read(amending.proposed) == waits
    town.kill()


def test_a_former_database_that_cannot_be_read_still_has_its_files(town, tmp_path):
    terms, catalogue, now = told(town.path)
    town.kill()
    for end in ("-wal", "-shm"):
        (town.path / f"server.db{end}").unlink(missing_ok=True)
    (town.path / "server.db").write_bytes(b"no database" * 500)
    _, said = back(town, tmp_path, next_round=now.round + 20)
    after = told(town.path)
    assert (after[0], after[1]) == (terms, catalogue)
    assert after[2].round >= now.round + 20
    assert "need new invitations" in said
    town.start()
    assert len(town.read(amending.history)) == 2
    run_round(town)


def test_without_the_former_folder_it_is_said_what_to_do(town, tmp_path):
    town.kill()
    shutil.rmtree(town.path)
    _, said = back(town, tmp_path, next_round=20)
    assert "make the same changes again before you start it" in said
    town.start()
    assert town.now.round == 20
    change(town)
    assert json.loads(town.catalogue)["items"][ITEMS] == list(NEW[0])


def test_a_newer_copy_keeps_what_it_has(town, tmp_path):
    make_backup(town.path, tmp_path / "newer")
    terms, catalogue, now = told(town.path)
    town.kill()
    shutil.rmtree(town.path)
    restore_backup(tmp_path / "copy", town.path)
    done = restore_backup(tmp_path / "newer", town.path)
    after = told(town.path)
    assert (after[0], after[1]) == (terms, catalogue)
    assert after[2].round == now.round
    assert "need new invitations" in " ".join(done.settled.means)


@pytest.mark.parametrize("what", ["terms", "catalogues"])
def test_what_does_not_belong_together_is_refused_and_nothing_is_changed(tmp_path, what):
    towns = [Town(tmp_path / name, rounds=40) for name in ("one", "two")]
    for n, town in enumerate(towns):
        items = [(f"{n}-{item}", title) for item, title in NEW]
        if what == "terms":
            town.acts.change_terms([f"algorithm.learning_rate=0.0{n + 6}"], items)
        else:
            town.acts.change_terms([], spare=2)
            town.step()
            town.acts.change_items(items, ())
        town.steps(2)
        town.kill()
    make_backup(towns[0].path, tmp_path / "copy")
    there = {path: path.read_bytes() for path in towns[1].path.rglob("*.json")}
    before = told(towns[1].path)
    with pytest.raises(UsageError, match=f"the {what} of the copy and of .* do not follow"):
        restore_backup(tmp_path / "copy", towns[1].path)
    assert told(towns[1].path) == before
    assert {path: path.read_bytes() for path in towns[1].path.rglob("*.json")} == there


def test_a_round_that_is_too_low_does_not_count(town, tmp_path):
    """Devices have seen it."""
    last = town.now.round
    done, _ = back(town, tmp_path, next_round=1)
    assert done.settled.next_round > last


def test_with_postgresql_the_files_alone_are_compared(town, tmp_path):
    """The database decides, and is not in a copy."""
    town.kill()
    (town.path / "state.json").write_text('{"kept_in": "postgresql"}')
    (town.path / "server.db").unlink()
    (tmp_path / "copy").unlink()
    make_backup(town.path, tmp_path / "copy")
    _, said = back(town, tmp_path)
    assert "are not those of the former folder" not in said
    other = Town(tmp_path / "other", rounds=40)
    for name in ("federation.json", "catalogue.json"):
        shutil.copy(other.path / name, town.path / name)
    other.kill()
    _, said = back(town, tmp_path)
    assert "are not those of the former folder" in said
    assert "make the same changes again" in said
