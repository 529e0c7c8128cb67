"""The orchestrator's store: everything counts once, and who leaves leaves nothing behind."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from sottovoce.algorithms.drift.blocks import first_rows
from sottovoce.algorithms.drift.messages import Gradients
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import DataError, KeyTrouble, RunError, StoreError, UsageError
from sottovoce.rng import Streams
from sottovoce.stores.orchestrator import OpenRound, OrchestratorStore, SiloRound
from sottovoce.wire.directory import Directory
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import Application

CONFIG = DRIFTConfig(embedding_size=4, learning_rate=0.1)
ROOT = Streams.from_seed(4)
ITEMS = tuple(f"item {n}" for n in range(6))


def node_key():
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()


def application(name, items, **changes):
    given = {
        "name": name,
        "url": "http://127.0.0.1:8443",
        "public": Identity().public,
        "authority": "",
        "node_key": node_key() + " somebody@somewhere",
        "items": tuple(items),
    }
    return Application(**(given | changes))


def publics(n):
    return [Identity().public for _ in range(n)]


def create(path):
    return OrchestratorStore.create(path, "town", CONFIG, ITEMS, ROOT.key)


@pytest.fixture
def store(tmp_path):
    with create(tmp_path / "town") as store:
        yield store


@pytest.fixture
def peopled(store):
    """Two owners and three users."""
    store.admit_owner(application("alba", [0, 1, 2]))
    store.admit_owner(application("bora", [2, 3]))
    store.add_users(publics(3))
    return store


def fold(store, owner=0, users=(0, 1), items=(0, 1), flush=False, pull=1.0, silent=()):
    """One round with one update."""
    opened = store.open_round()
    orchestrator = store.load()
    users, items = np.array(users), np.array(items)
    rows = np.full((len(users), 4), pull, np.float32), np.full((len(items), 4), pull, np.float32)
    orchestrator.fold(Gradients(owner, orchestrator.version, users, items, *rows))
    name = ("alba", "bora")[owner]
    record = SiloRound(
        opened.round, flush, ("alba", "bora"), (name,), (), (), 1.5, orchestrator.version
    )
    ended = opened.ending - set(silent)
    store.close_round(record, orchestrator, users, items, [owner], ended=ended)
    return orchestrator


def bytes_of(folder):
    return b"".join(path.read_bytes() for path in folder.glob("orchestrator.db*"))


# --- making and opening --------------------------------------------------------------------------


def test_what_was_made_is_there_again(store):
    with OrchestratorStore.open(store.folder) as other:
        assert (other.federation, other.settings) == ("town", CONFIG)
        assert (other.catalogue, other.root_key) == (ITEMS, ROOT.key)
        assert (other.round, other.owners(), other.n_users, other.departed()) == (0, [], 0, [])
    assert {p.stat().st_mode & 0o777 for p in store.folder.iterdir()} == {0o600}


def test_a_root_key_is_drawn_where_none_is_given(tmp_path):
    keys = set()
    for name in ("a", "b"):
        with OrchestratorStore.create(tmp_path / name, "town", CONFIG, ITEMS) as store:
            keys.add(store.root_key)
    assert len(keys) == 2


def test_what_is_no_store_is_refused(tmp_path, store):
    with pytest.raises(StoreError, match="no orchestrator's store in"):
        OrchestratorStore.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="a federation already"):
        create(store.folder)
    for name, content in [("text", b"no database at all, but long enough\n" * 99), ("empty", b"")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "orchestrator.db").write_bytes(content)
        with pytest.raises(StoreError, match="no orchestrator's store"):
            OrchestratorStore.open(tmp_path / name)
    create(tmp_path / "empty").close()  # as after a crash while it was made
    with sqlite3.connect(store.folder / "orchestrator.db") as link:
        link.execute("PRAGMA user_version=99")
    link.close()
    with pytest.raises(StoreError, match="has format"):
        OrchestratorStore.open(store.folder)


@pytest.mark.parametrize("catalogue", [(), ("a", "a"), ("",)])
def test_a_catalogue_needs_names(tmp_path, catalogue):
    with pytest.raises(UsageError, match="catalogue"):
        OrchestratorStore.create(tmp_path, "town", CONFIG, catalogue, 1)
    with pytest.raises(UsageError, match="64 bits"):
        OrchestratorStore.create(tmp_path, "town", CONFIG, ITEMS, 2**64)


# --- users ---------------------------------------------------------------------------------------


def test_an_invitation_lets_one_key_in_once(store):
    first, second = store.invite(2)
    one, other = publics(2)
    assert store.enrol(second, other) == 0
    assert store.enrol(first, one) == 1
    assert [store.enrol(first, one), store.enrol(second, other)] == [1, 0]
    with pytest.raises(KeyTrouble, match="with another key"):
        store.enrol(first, other)
    for wrong in (b"", b"x" * 32):
        with pytest.raises(KeyTrouble, match="nobody was invited"):
            store.enrol(wrong, one)
    (third,) = store.invite(1)
    with pytest.raises(KeyTrouble, match="32 bytes"):
        store.enrol(third, b"short")
    assert store.enrol(third, one) == 2
    assert store.public(1) == one
    assert store.public(7) is None
    assert store.n_users == 3
    assert not any(token in bytes_of(store.folder) for token in (first, second, third))
    with pytest.raises(UsageError, match="at least one"):
        store.invite(0)


def test_first_rows_are_those_of_the_simulation(peopled):
    users, items = peopled.model()
    np.testing.assert_array_equal(users, first_rows("users", range(3), 4, ROOT))
    np.testing.assert_array_equal(items, first_rows("items", range(4), 4, ROOT))


def test_nothing_of_a_user_who_left_is_in_the_files(store):
    """Among many, so that rows are moved about between pages."""
    tokens = store.invite(400)
    keys = publics(400)
    for token, public in zip(tokens, keys, strict=True):
        store.enrol(token, public)
    store.admit_owner(application("alba", [0, 1]))
    fold(store, users=range(400), pull=0.5)
    gone = [3, 4, 150, 399]
    rows = store.model()[0]
    firsts = first_rows("users", range(400), 4, ROOT)
    secrets_of = {n: [rows[n].tobytes(), firsts[n].tobytes(), keys[n]] for n in (*gone, 5, 200)}
    everything = bytes_of(store.folder)
    assert all(everything.count(secret) for secret in (secrets_of[3][0], secrets_of[3][2]))
    with OrchestratorStore.open(store.folder) as other:  # another process has it open
        for n in gone:
            other.leave_user(n)
            left = bytes_of(store.folder)
            assert not any(secret in left for secret in secrets_of[n])
    assert secrets_of[200][0] in left
    assert secrets_of[200][2] in left
    assert store.departed() == gone
    assert store.n_users == 396
    with pytest.raises(DataError, match="joined"):
        store.recommend(3, 2)
    with pytest.raises(KeyTrouble, match="has left"):
        store.enrol(tokens[3], keys[3])
    store.leave_user(3)  # twice does no harm
    with pytest.raises(DataError, match="nobody of that number"):
        store.leave_user(4000)
    assert store.add_users(publics(1)) == [400], "her number is nobody else's"


def test_traces_that_a_reader_kept_go_with_the_next_round(peopled):
    public = peopled.public(1)
    reader = sqlite3.connect(peopled.folder / "orchestrator.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM users").fetchall()
    peopled._file.pragma("busy_timeout", 50)
    peopled.leave_user(1)
    assert public in bytes_of(peopled.folder), "the reader's view is still there"
    reader.close()
    fold(peopled, users=(0, 2))
    assert public not in bytes_of(peopled.folder)


def test_a_user_who_leaves_in_mid_round_stays_erased(peopled):
    opened, orchestrator = peopled.open_round(), peopled.load()
    with OrchestratorStore.open(peopled.folder) as front:
        front.leave_user(1)
    users = np.array([0, 1])
    ones = np.ones((2, 4), np.float32)
    orchestrator.fold(Gradients(0, 0, users, users, ones, ones))
    record = SiloRound(opened.round, False, ("alba",), ("alba",), (), (), 0.0, 1)
    peopled.close_round(record, orchestrator, users, users, [0])
    assert not peopled.model()[0][1].any()
    assert peopled.load().model.users[0].tolist() == orchestrator.model.users[0].tolist()
    assert peopled.public(1) is None


# --- owners --------------------------------------------------------------------------------------


def test_owners_are_numbered_for_good(store):
    alba = application("alba", [0, 1])
    assert store.admit_owner(alba) == 0
    assert store.admit_owner(application("bora", [])) == 1
    moved = replace(alba, url="http://127.0.0.1:9", items=(1, 5))
    assert store.admit_owner(moved) == 0, "the same owner again"
    assert [(o.number, o.name, o.items) for o in store.owners()] == [
        (0, "alba", (1, 5)),
        (1, "bora", ()),
    ]
    assert store.owners()[0].identity == alba.identity
    assert store.owners()[0].entry.url == "http://127.0.0.1:9"
    with pytest.raises(UsageError, match="the name is that of the data owner alba"):
        store.admit_owner(application("alba", [1]))
    with pytest.raises(UsageError, match="key is that of the data owner alba"):
        store.admit_owner(replace(alba, name="corso"))
    with pytest.raises(UsageError, match="the name is that"):
        store.admit_owner(replace(alba, public=Identity().public))
    store.remove_owner(1)
    assert store.admit_owner(application("bora", [2])) == 2
    with pytest.raises(DataError, match="no data owner 1"):
        store.remove_owner(1)
    with pytest.raises(DataError, match="no data owner 1"):
        store.counted(1)


def test_items_come_and_go_and_keep_their_rows(peopled):
    before = fold(peopled).model.items
    peopled.set_items(0, [1, 5])
    assert sorted(peopled.load().table) == [1, 2, 3, 5]
    np.testing.assert_array_equal(peopled.model()[1][:4], before[:4])
    peopled.set_items(0, [0])
    np.testing.assert_array_equal(peopled.load().model.items[:4], before[:4])
    assert set(peopled.recommend(0, 9)[0].tolist()) == {0, 2, 3}
    assert set(peopled.recommend(0, 9, seen=[2])[0].tolist()) == {0, 3}
    for wrong in ([6], [-1, 0]):
        with pytest.raises(DataError, match="catalogue"):
            peopled.set_items(0, wrong)
        with pytest.raises((DataError, UsageError)):
            peopled.admit_owner(application("corso", wrong))
    with pytest.raises(DataError, match="no data owner 8"):
        peopled.set_items(8, [1])
    assert [o.items for o in peopled.owners()] == [(0,), (2, 3)]


def test_the_directory_is_newer_with_every_change_that_it_shows(peopled):
    issuer = Issuer("town")
    seen = []

    def now():
        directory = peopled.directory(issuer.public)
        assert Directory.read(directory.sign(issuer), "town", issuer.public) == directory
        seen.append(directory.version)
        return directory

    assert [o.name for o in now().owners] == ["alba", "bora"]
    for change in (
        lambda: peopled.set_items(1, [2]),
        lambda: peopled.set_catalogue((*ITEMS, "more")),
        lambda: peopled.admit_owner(application("corso", [6])),
        lambda: peopled.remove_owner(0),
    ):
        change()
        now()
    assert seen == sorted(set(seen))
    assert [o.name for o in now().owners] == ["bora", "corso"]
    for same in (lambda: peopled.set_items(1, [2]), lambda: fold(peopled, 1, (0,), (2,))):
        same()
        assert now().version == seen[4]


# --- rounds --------------------------------------------------------------------------------------


def test_a_round_is_there_whole_after_reopening(peopled):
    orchestrator = fold(peopled)
    with OrchestratorStore.open(peopled.folder) as other:
        again = other.load()
        assert again.version == 1
        np.testing.assert_array_equal(again.model.users, orchestrator.model.users)
        np.testing.assert_array_equal(again.model.items, orchestrator.model.items)
        assert (other.round, other.counted(0), other.counted(1)) == (1, 0, -1)
        assert other.rounds() == [SiloRound(0, False, ("alba", "bora"), ("alba",), (), (), 1.5, 1)]
        fold(other, 1, items=(2, 3))
    assert peopled.all_counted() == {0: 0, 1: 1}
    assert [r.round for r in peopled.rounds(last=1)] == [1]


def test_a_round_that_was_not_opened_cannot_be_closed(peopled):
    fold(peopled)
    nobody = np.zeros(0, np.int64)
    for number, flush in [(0, False), (2, False), (1, True)]:
        peopled.open_round()
        record = SiloRound(number, flush, (), (), (), (), 0.0, 1)
        with pytest.raises(RunError, match="not the one that is open"):
            peopled.close_round(record, peopled.load(), nobody, nobody, [])
    assert peopled.round == 1


def test_a_failure_leaves_a_round_as_if_it_had_not_been(peopled):
    before = peopled.load()
    orchestrator, opened = peopled.load(), peopled.open_round()
    users = np.array([0, 1])
    ones = np.ones((2, 4), np.float32)
    orchestrator.fold(Gradients(0, 0, users, users, ones, ones))
    record = SiloRound(opened.round, False, ("alba",), ("alba",), (), (), 0.0, 1)
    peopled._file.pragma("max_page_count", 1)  # the disk is full
    peopled._log = lambda record: peopled._file.write(
        "INSERT INTO refused VALUES (?, 1)", ["x" * 100_000]
    )
    with pytest.raises(StoreError, match="full"):
        peopled.close_round(record, orchestrator, users, users, [0])
    after = peopled.load()
    np.testing.assert_array_equal(after.model.users, before.model.users)
    assert (after.version, peopled.round, peopled.counted(0)) == (0, 0, -1)
    assert peopled.open_round() == opened


def test_a_flush_is_done_by_one_round_whatever_happens_in_between(peopled):
    assert peopled.open_round() == OpenRound(0, False)
    peopled.request_flush()
    assert peopled.open_round() == OpenRound(0, False), "an open round stays what it is"
    fold(peopled)
    assert peopled.flush_requested
    both = frozenset({0, 1})
    assert peopled.open_round() == OpenRound(1, True, both)
    peopled.request_flush()  # after that round has begun: for the next one
    fold(peopled, flush=True)
    assert peopled.open_round() == OpenRound(2, True, both)
    fold(peopled, flush=True, silent=[1])
    assert not peopled.flush_requested
    assert peopled.admit_owner(application("corso", [3])) == 2
    assert peopled.open_round() == OpenRound(3, False, frozenset({1})), "it was not reached"
    fold(peopled, silent=[1])
    assert peopled.open_round() == OpenRound(4, False, frozenset({1})), "nor then"
    fold(peopled)
    assert peopled.open_round() == OpenRound(5, False)


def test_what_came_in_is_known_after_a_restart(peopled):
    with OrchestratorStore.open(peopled.folder) as store:
        assert store.all_heard() == {}
        for round in (3, 2):
            store.hear(0, round)
    with OrchestratorStore.open(peopled.folder) as store:
        assert store.all_heard() == {0: 3}, "it never falls"


def test_rows_to_rank_are_of_one_moment(tmp_path, monkeypatch):
    """Although an item may come while they are made."""
    sums = replace(CONFIG, release="aggregated")
    with OrchestratorStore.create(tmp_path / "sums", "films", sums, ["a", "b"]) as store:
        store.admit_owner(application("alba", [0]))
        real = store._current

        def then_one_comes():
            found = real()
            store.set_items(0, [0, 1])
            return found

        monkeypatch.setattr(store, "_current", then_one_comes)
        assert len(store.rows_to_rank()) == 1


def test_the_target_never_falls_and_refusals_are_counted(peopled):
    assert peopled.target() == 0
    peopled.raise_target(5)
    peopled.raise_target(3)
    assert peopled.target() == 5
    for reason in ("stale", "malformed", "stale"):
        peopled.refuse(reason)
    assert peopled.refused() == {"malformed": 1, "stale": 2}


def test_a_user_who_leaves_is_not_kept_for_recommendations(peopled):
    peopled.recommend(1, 3)
    peopled.leave_user(1)
    assert peopled._cached is None


def test_recommendations_follow_the_rounds_of_another_process(peopled):
    with OrchestratorStore.open(peopled.folder) as conductor:
        first = peopled.recommend(0, 3)[1]
        fold(conductor, pull=-3.0)
        assert peopled.recommend(0, 3)[1][0] > first[0]
        new = conductor.add_users(publics(1))
    assert len(peopled.recommend(new[0], 3)[0]) == 3
    assert repr(peopled) == f"<OrchestratorStore {peopled.folder / 'orchestrator.db'}, redacted>"


def test_threads_may_share_it(peopled):
    tokens, found, failed = peopled.invite(40), [], []

    def enrol(mine):
        try:
            found.extend(peopled.enrol(token, Identity().public) for token in mine)
            peopled.recommend(0, 2)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=enrol, args=(tokens[k::4],)) for k in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        fold(peopled)
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(found) == list(range(3, 43))
    assert peopled.round == 5


CONDUCTOR = textwrap.dedent("""
    import sys
    from pathlib import Path
    import numpy as np
    from sottovoce.algorithms.drift.messages import Gradients
    from sottovoce.stores.orchestrator import SiloRound
    from sottovoce.stores.orchestrator import OrchestratorStore

    store = OrchestratorStore.open(Path(sys.argv[1]))
    users, items = np.arange(200), np.arange(3)
    pull = np.full((200, 4), -1.0, np.float32), np.full((3, 4), -1.0, np.float32)
    while True:
        opened, orchestrator = store.open_round(), store.load()
        orchestrator.fold(Gradients(0, orchestrator.version, users, items, *pull))
        record = SiloRound(opened.round, False, ("alba",), ("alba",), (), (), 0.0,
                           orchestrator.version)
        store.close_round(record, orchestrator, users, items, [0])
        print(opened.round, flush=True)
""")


def test_a_conductor_that_is_killed_at_any_moment_leaves_whole_rounds(store):
    store.admit_owner(application("alba", [0, 1, 2]))
    store.add_users(publics(200))
    start = store.load().model
    enrolled = 0
    for moment in (0.0, 0.05, 0.2):
        child = subprocess.Popen(
            [sys.executable, "-c", CONDUCTOR, str(store.folder)], stdout=subprocess.PIPE
        )
        child.stdout.readline()
        end, before, begun = time.monotonic() + moment, enrolled, store.round
        # The users' service goes on meanwhile. However slow the disk: somebody joins, and a round
        # is closed beside her.
        while time.monotonic() < end or enrolled == before or store.round == begun:
            store.enrol(store.invite(1)[0], Identity().public)
            enrolled += 1
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with OrchestratorStore.open(store.folder) as after:
            rounds, now = after.round, after.load()
            assert (now.version, after.counted(0)) == (rounds, rounds - 1)
            assert [r.round for r in after.rounds()] == list(range(rounds))
            steps = np.rint((now.model.users[:200] - start.users) / 0.1)
            assert (steps == rounds).all()
            assert (np.rint((now.model.items - start.items) / 0.1) == rounds).all()
            assert after.n_users == 200 + enrolled
    assert rounds > 2
    assert enrolled > 2  # one at least for each moment
