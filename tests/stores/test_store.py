"""The store: what is put in stays, encrypted, whatever happens to the process or the disk."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import apsw
import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.messages import ModelView
from sottovoce.errors import DataError, StoreError, UsageError
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import SecretStreams, Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.encrypted import StoreFile
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

ITEMS = [(f"venue-{i}", f"Venue number {i}") for i in range(30)]
TERMS = Terms.of("town", len(ITEMS), FPLConfig(embedding_size=4), 6, ShareFraction())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(path):
    with CohortStore.create(path, [(9, "bert"), (4, "anna")], root_key=11) as opened:
        yield opened


def reported(store):
    """Let the users of a store take part in one round."""
    store.set_catalogue(ITEMS)
    for number in store.users.tolist():
        store.add_history(number, ["venue-1", "venue-2", "venue-3"], [10, 20, 30])
        store.set_choice(number, Choice(share_positives=0.625))
    hosted = DeviceSession(store)
    hosted.agree(TERMS)
    view = ModelView(0, np.zeros((30, 5), np.float32))
    hosted.keep_model(view)
    prepared = hosted.prepare(view, 0, summed=True)
    hosted.leaving(prepared)
    return hosted


def start(code, *arguments):
    """A process that runs `code` and tells what it does line by line."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    out, err = process.communicate()
    return out, err


# --- what is put in comes out ---------------------------------------------------------------------


def test_everything_is_there_after_reopening(path, store):
    store.set_catalogue(ITEMS)
    store.add_history(4, ["venue-3", "venue-1"], [300, 100])
    store.add_history(9, ["venue-2"], [200])
    store.set_choice(4, Choice(share_positives=0.3, hidden_attributes=("age",), strength=0.2))
    store.set_secret("signing-key", b"\0\1\2")
    store.close()
    with CohortStore.open(path) as again:
        assert again.users.tolist() == [4, 9]
        assert (again.name(4), again.name(9)) == ("anna", "bert")
        assert again.streams() == Streams(11)
        assert again.catalogue() == ITEMS
        history = again.history()
        assert [history.row(u).tolist() for u in range(2)] == [[1, 3], [2]]
        assert history.timestamps.tolist() == [100, 300, 200]
        assert history.users_vocabulary().names() == ["4", "9"]
        consent = again.choices()
        assert consent.row(0) == Choice(
            share_positives=float(np.float32(0.3)),
            hidden_attributes=("age",),
            strength=float(np.float32(0.2)),
        )
        assert not consent.takes_part[1]  # until she chooses
        assert again.secret("signing-key") == b"\0\1\2"
        assert again.secret("other") is None


def test_a_root_key_is_drawn_from_the_operating_system(tmp_path):
    keys = set()
    for number in range(3):
        with CohortStore.create(tmp_path / str(number), [(0, "me")]) as store:
            assert isinstance(store.streams(), SecretStreams)
            keys.add(store.streams().root)
    assert len(keys) == 3
    assert min(keys) > 1 << 200
    with CohortStore.create(tmp_path / "largest", [(0, "me")], root_key=2**64 - 1) as store:
        assert store.streams().key == 2**64 - 1


def test_other_terms_have_other_draws_but_the_same_positives_may_ever_leave(tmp_path):
    with CohortStore.create(tmp_path / "s", [(0, "me")]) as store:
        draws = [store.streams(era) for era in range(3)]
    assert len({streams.child("learn", 0).root for streams in draws}) == 3
    assert len({streams.lasting().root for streams in draws}) == 1


def test_a_trial_keeps_the_root_that_it_was_given(tmp_path):
    for root in (Streams.from_seed(4).root, SecretStreams.from_seed(4).root):
        CohortStore.create(tmp_path / str(root)[:8], [(0, "me")], root_key=root).close()
        with CohortStore.open(tmp_path / str(root)[:8]) as store:
            assert store.streams().root == root


def test_the_same_history_again_adds_nothing_and_keeps_the_latest_time(store):
    assert store.add_history(4, ["a", "b", "a"], [5, 6, 9]) == (2, 1)
    assert store.add_history(4, ["a", "b"], [7, None]) == (0, 2)
    assert store.add_history(4, ["b", "c"]) == (1, 1)
    assert store.interactions(4) == [("c", None), ("b", 6), ("a", 9)]
    assert store.interactions(9) == []


def test_items_that_the_catalogue_does_not_know_wait_for_it(store):
    store.add_history(4, ["venue-3", "new"], [1, 2])
    assert store.unknown() == []
    assert store.history().n_interactions == 0
    store.set_catalogue(ITEMS)
    assert store.unknown() == ["new"]
    assert store.history().row(0).tolist() == [3]
    store.set_catalogue([*ITEMS, ("new", "A new one")])
    assert store.unknown() == []
    assert store.history().row(0).tolist() == [3, 30]


def test_the_history_is_never_stale(path, store):
    store.set_catalogue(ITEMS)
    store.add_history(4, ["venue-1"])
    assert store.history().n_interactions == 1
    with CohortStore.open(path) as other:
        other.add_history(9, ["venue-2"])
    assert store.history().n_interactions == 2


def test_a_gateway_loads_in_bulk(tmp_path):
    rng = np.random.default_rng(0)
    numbers = np.array([3, 5, 20, 21])
    table = Interactions.from_pairs(
        rng.integers(0, 4, 60),
        rng.integers(0, 30, 60),
        n_users=4,
        n_items=30,
        timestamps=rng.integers(0, 99, 60),
        item_ids=Vocabulary([item for item, _ in ITEMS]),
    )
    choices = [Choice(share_positives=0.25), Choice(takes_part=False), Choice()]
    consent = Consent.of(numbers, choices, np.array([0, 1, 2, 0]))
    with CohortStore.create(tmp_path / "s", [(int(n), "") for n in numbers]) as store:
        store.set_catalogue(ITEMS)
        assert store.add_histories(table) == (table.n_interactions, 0)
        assert store.add_histories(table) == (0, table.n_interactions)
        assert store.history().fingerprint() == table.fingerprint()
        store.set_choices(consent)
        for name in ("users", "takes_part", "share_positives", "epsilon", "strength"):
            assert np.array_equal(getattr(store.choices(), name), getattr(consent, name))
        with pytest.raises(DataError, match="user 4 is not"):
            store.set_choices(Consent.uniform(np.array([3, 4]), Choice()))
        assert len(store.records(3)) == 1
        with pytest.raises(DataError, match="3 users, the store has 4"):
            store.add_histories(table.take_users(np.arange(3)))


def test_every_choice_stays_on_record(store):
    store.set_choice(4, Choice(share_positives=0.5))
    store.set_choice(4, Choice(share_positives=0.5))  # the same mind
    store.set_choice(4, Choice(takes_part=False))
    assert [r.choice.takes_part for r in store.records(4)] == [True, False]
    assert store.choice(4) == Choice(takes_part=False)
    assert not store.choice(9).takes_part


def test_a_user_is_renumbered_before_her_first_round_only(store):
    store.add_history(4, ["venue-1"])
    store.set_choice(4, Choice())
    store.renumber(4, 77)
    assert store.users.tolist() == [9, 77]
    assert (store.interactions(77), store.choice(77)) == ([("venue-1", None)], Choice())
    with pytest.raises(UsageError, match="already a user 9"):
        store.renumber(77, 9)
    reported(store)
    with pytest.raises(UsageError, match="taken part"):
        store.renumber(77, 5)


def test_bad_arguments_change_nothing(tmp_path, store):
    for users in ([], [(1, "a"), (1, "b")], [(-1, "a")], [(2**32, "a")]):
        with pytest.raises(UsageError):
            CohortStore.create(tmp_path / "other", users)
    with pytest.raises(UsageError, match="256 bits"):
        CohortStore.create(tmp_path / "other", [(0, "")], root_key=2**256)
    assert not (tmp_path / "other").exists()
    with pytest.raises(DataError, match="user 5 is not"):
        store.add_history(5, ["a"])
    with pytest.raises(DataError, match="user 5 is not"):
        store.set_choice(5, Choice())
    with pytest.raises(DataError, match="one time per"):
        store.add_history(4, ["a", "b"], [1])
    with pytest.raises(DataError, match="alike"):
        store.set_catalogue([("a", ""), ("a", "")])
    assert store.count_history() == 0


# --- promises of the database itself --------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM consent",
        "UPDATE consent SET choice = '{}'",
        "DELETE FROM budget",
        "UPDATE budget SET releases = releases - 1",
        "UPDATE budget SET epsilon = 0",
        "UPDATE budget SET reports = -1",
        "DELETE FROM spent",
        "UPDATE spent SET reports = reports - 1",
        "UPDATE spent SET epsilon = 0.1",
        "UPDATE spent SET batch = 1000000",
        "INSERT INTO spent VALUES (5, 1.0, 0, 1)",
        "INSERT INTO spent VALUES (4, 1.0, 0, -1)",
        "DELETE FROM ledger",
        "DELETE FROM rounds",
        "UPDATE rounds SET state = 'dropped'",
        "DELETE FROM terms",
        "UPDATE terms SET content = ''",
        "INSERT INTO history VALUES (5, 'a', 1)",
        "INSERT INTO attributes VALUES (5, 'age', 'x', 1)",
    ],
)
def test_the_database_itself_refuses_to_forget(store, statement):
    reported(store)
    store.file.write("INSERT INTO spent VALUES (4, 0.5, 20, 3)")
    with pytest.raises(StoreError):
        store.file.write(statement)
    assert len(store.budget()) == store.ledger().num_rows == 2
    assert store.spent().tolist() == [1.5, 0.0]


# --- secrecy --------------------------------------------------------------------------------------


def test_nothing_can_be_read_in_any_of_its_files(path, store):
    """While it is open, so that the write-ahead log is there, and after it was closed."""
    hosted = reported(store)
    store.set_secret("signing-key", b"very-secret-signing-key")
    vector = hosted.vectors()[0].tobytes()
    learnt = store.file.row("SELECT vector FROM learnt WHERE number = 4")[0]
    message = hosted.unresolved().message
    secrets = [
        *(b"venue-", b"Venue number", b"anna", b"bert", b"very-secret", b"signing-key", b"town"),
        *(b"takes_part", b"share_positives", b"0.625", b"share-item", b"CREATE TABLE", b"SQLite"),
        *(vector, learnt, message, message[20:60], TERMS.digest().encode()),
    ]

    def look():
        found = {p.name: p.read_bytes() for p in path.iterdir()}
        for name, content in found.items():
            assert not [s for s in secrets if s in content], name
        return found

    found = look()
    assert len(found["store.db-wal"]) > 10_000
    store.close()
    assert len(look()["store.db"]) > 10_000


def test_its_files_are_the_owners_alone(path, store):
    store.add_history(4, ["a"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for file in path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_nothing_private_is_in_its_repr(store):
    assert "anna" not in repr(store) + repr(reported(store)) + repr(
        DeviceSession(store).unresolved()
    )


# --- keys and files that are not right ------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_may_read_is_refused(path, store, mode):
    store.close()
    (path / "store.key").chmod(mode)
    with pytest.raises(StoreError, match="chmod 600"):
        CohortStore.open(path)


def test_missing_wrong_and_broken_keys(tmp_path, path, store):
    store.add_history(4, ["a"])
    store.close()
    key = (path / "store.key").read_text()
    CohortStore.create(tmp_path / "other", [(0, "")]).close()
    shutil.copy(tmp_path / "other" / "store.key", path / "store.key")
    for readonly in (True, False):
        with pytest.raises(StoreError, match=r"store\.key beside it is another's"):
            CohortStore.open(path, readonly=readonly)
    (path / "store.key").write_bytes(b"\xff\0nonsense")
    with pytest.raises(StoreError, match="holds no key"):
        CohortStore.open(path)
    (path / "store.key").unlink()
    with pytest.raises(StoreError, match=r"store\.key is missing"):
        CohortStore.open(path)
    (path / "store.key").touch(0o600)
    (path / "store.key").write_text(key)
    with CohortStore.open(path) as again:
        assert again.count_history() == 1


def test_other_files_are_refused_and_left_alone(path, store):
    store.close()
    database = path / "store.db"
    database.write_bytes(b"once upon a time" * 1000)
    with pytest.raises(StoreError, match="no store of Sottovoce"):
        CohortStore.open(path)
    assert database.read_bytes() == b"once upon a time" * 1000
    database.unlink()
    plain = apsw.Connection(str(database))
    plain.execute("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)")
    plain.close()
    with pytest.raises(StoreError, match="no store of Sottovoce"):
        CohortStore.open(path)
    database.unlink()
    ours = apsw.Connection(str(database))
    ours.pragma("hexkey", (path / "store.key").read_text().strip())
    ours.execute("CREATE TABLE mine (x)")
    ours.close()
    for readonly in (True, False):
        with pytest.raises(StoreError, match="another program"):
            CohortStore.open(path, readonly=readonly)
    database.unlink()
    with pytest.raises(StoreError, match="there is no store"):
        CohortStore.open(path)


def test_a_damaged_file_is_told(path, store):
    store.set_catalogue([(f"id-{i}", "x" * 50) for i in range(2000)])
    store.close()
    database = path / "store.db"
    content = bytearray(database.read_bytes())
    for at in range(8192 + 100, len(content), 4096):
        content[at] ^= 0xFF
    database.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), CohortStore.open(path) as again:
        again.catalogue()
    database.write_bytes(content[:5000])
    with pytest.raises(StoreError), CohortStore.open(path) as again:
        again.catalogue()
    database.write_bytes(b"")
    for readonly in (True, False):
        with pytest.raises(StoreError, match="is empty"):
            CohortStore.open(path, readonly=readonly)
    assert database.read_bytes() == b""


@pytest.mark.parametrize("another", [-1, 1])
def test_a_store_of_another_format_is_refused_with_both_numbers(path, store, another):
    store.file.pragma("user_version", StoreFile.format + another)
    store.close()
    before = (path / "store.db").read_bytes()
    numbers = f"has format {StoreFile.format + another}, .* reads format {StoreFile.format} alone"
    for readonly in (True, False):
        with pytest.raises(StoreError, match=numbers):
            CohortStore.open(path, readonly=readonly)
    assert (path / "store.db").read_bytes() == before


# --- several processes ----------------------------------------------------------------------------

SERVE = """
import sys, time
from pathlib import Path
from sottovoce.stores.device import CohortStore
store = CohortStore.open(Path(sys.argv[1]), agent=True)
print("serving", flush=True)
time.sleep(60)
"""


def test_one_agent_at_a_time_and_others_beside_it(path, store):
    store.set_catalogue(ITEMS)
    agent = start(SERVE, path)
    try:
        assert agent.stdout.readline() == "serving\n"
        assert store.file.served()
        with pytest.raises(StoreError, match="in use by another process"):
            CohortStore.open(path, agent=True)
        with CohortStore.open(path) as owner:
            owner.set_choice(4, Choice())
        with CohortStore.open(path, readonly=True) as reader:
            assert reader.choice(4).takes_part
            assert reader.catalogue() == ITEMS
            with pytest.raises(StoreError, match="may not be written"):
                reader.set_choice(4, Choice(takes_part=False))
    finally:
        end(agent)
    assert not store.file.served()
    served = CohortStore.open(path, agent=True)  # a killed agent leaves no lock behind
    with served, pytest.raises(StoreError, match="in use"):
        CohortStore.open(path, agent=True)
    CohortStore.open(path, agent=True).close()


def test_a_refused_opener_gives_the_lock_back(path, store):
    store.close()
    (path / "store.key").chmod(0o644)
    with pytest.raises(StoreError):
        CohortStore.open(path, agent=True)
    (path / "store.key").chmod(0o600)
    CohortStore.open(path, agent=True).close()


def test_a_reader_needs_no_other_process(path, store):
    reported(store)
    store.close()
    assert not (path / "store.db-wal").exists()
    with CohortStore.open(path, readonly=True) as reader:
        assert reader.ledger().num_rows == 2
        assert not reader.file.served()


def test_a_writer_waits_for_another(path, store):
    with CohortStore.open(path) as other:
        done = threading.Event()

        def hold():
            with other.file.transaction():
                other.add_history(9, ["theirs"])
                done.set()
                time.sleep(0.3)

        holder = threading.Thread(target=hold)
        holder.start()
        done.wait()
        assert store.interactions(9) == []  # not committed, hence not seen
        store.add_history(4, ["mine"])
        holder.join()
    assert (store.interactions(9), store.interactions(4)) == ([("theirs", None)], [("mine", None)])


def test_threads_take_turns(store):
    def work(number):
        for k in range(50):
            store.add_history(number, [f"{number}-{k}"])
            store.set_secret(f"{number}", str(k).encode())

    threads = [threading.Thread(target=work, args=[n]) for n in (4, 9, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count_history() == 100


# --- crashes and full disks -----------------------------------------------------------------------


def test_what_was_there_stays_when_the_disk_is_full(path, store):
    reported(store)
    store.file.pragma("max_page_count", store.file.pragma("page_count") + 3)
    before = store.interactions(4), store.records(4), store.budget(), store.ledger_rows()
    many = [f"another-venue-{i}" for i in range(20_000)]
    for _ in range(2):
        with pytest.raises(StoreError, match=r"no space left.*still there"):
            store.add_history(4, many)
    hosted = DeviceSession(store)
    hosted.arrived(0, 0)
    assert (store.interactions(4), store.records(4), store.budget()) == before[:3]
    assert store.ledger().num_rows == 2
    store.file.pragma("max_page_count", 2**30)
    assert store.add_history(4, many) == (20_000, 0)
    store.close()
    with CohortStore.open(path) as again:
        assert again.count_history() == 20_006


WRITE = """
import sys
from pathlib import Path
from sottovoce.core.consent import Choice
from sottovoce.stores.device import CohortStore
store = CohortStore.open(Path(sys.argv[1]), agent=True)
batch = store.count_history() // 500
print("ready", flush=True)
while True:
    store.add_history(4, [f"{batch}-{k}" for k in range(500)], [batch] * 500)
    store.set_choice(4, Choice(share_positives=batch / 2**20))
    print(batch, flush=True)
    batch += 1
"""


def test_what_was_acknowledged_survives_a_kill(path, store):
    store.close()
    rng, done = np.random.default_rng(1), set()
    for _ in range(4):
        writer = start(WRITE, path)
        try:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.05 + 0.3 * rng.random())
        finally:
            out, err = end(writer)
        assert err == ""
        done |= set(map(int, out.split("\n")[:-1]))
        with CohortStore.open(path, agent=True) as again:
            count, left = divmod(again.count_history(), 500)
            assert left == 0  # a batch is there whole, or not at all
            assert count in (max(done) + 1, max(done) + 2)
            assert done <= {r.choice.share_positives * 2**20 for r in again.records(4)}
            assert again.file.row("PRAGMA integrity_check") == ("ok",)
    assert len(done) > 10


CREATE = """
import os, signal, sys
from pathlib import Path
from sottovoce.stores import encrypted
from sottovoce.stores.device import CohortStore
if sys.argv[2] == "filling":
    encrypted.StoreFile.write_many = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
else:
    encrypted.sync_folder = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
CohortStore.create(Path(sys.argv[1]), [(0, "me")])
"""


@pytest.mark.parametrize("moment", ["filling", "closing"])
def test_a_store_is_made_whole_or_not_at_all(path, moment):
    done = subprocess.run([sys.executable, "-c", CREATE, path, moment], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
    assert not path.exists()
    CohortStore.create(path, [(0, "me")]).close()


def test_a_store_goes_where_there_is_nothing(tmp_path, path, store):
    with pytest.raises(StoreError, match="already a store"):
        CohortStore.create(path, [(0, "me")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="something else"):
        CohortStore.create(tmp_path / "full", [(0, "me")])
    with pytest.raises(StoreError, match="something else"):
        CohortStore.create(tmp_path / "full" / "letter.txt", [(0, "me")])
    with pytest.raises(StoreError, match="no store could be made"):
        CohortStore.create(tmp_path / "full" / "letter.txt" / "deeper", [(0, "me")])
    (tmp_path / "empty").mkdir()
    CohortStore.create(tmp_path / "empty", [(0, "me")]).close()
    CohortStore.create(tmp_path / "a" / "b", [(0, "me")]).close()
    assert {p.name for p in tmp_path.iterdir()} == {"store", "full", "empty", "a"}


def test_users_are_found_by_name_or_number(tmp_path):
    people = [(5, "anna"), (7, "5"), (8, "9999"), (9, "x"), (10, "x")]
    with CohortStore.create(tmp_path / "s", people) as store:
        assert (store.find("anna"), store.find("7"), store.find("9999")) == (5, 7, 8)
        assert (store.find("#5"), store.find("#7")) == (5, 7)
        with pytest.raises(
            DataError, match=r"name of one user and the number of another.*#5 or #7"
        ):
            store.find("5")
        with pytest.raises(DataError, match=r"several users 'x'.*#9"):
            store.find("x")
        for nobody in ("6", "#6", "#", "1" * 25, "9" * 5000, "٥", "carl"):
            with pytest.raises(DataError, match="no user"):
                store.find(nobody)


def test_text_with_halves_of_characters_is_one_sentence(store):
    for attempt in (
        lambda: store.set_catalogue([("a", "\ud800")]),
        lambda: store.add_history(4, ["\udc80"]),
        lambda: store.find("\udc80"),
    ):
        with pytest.raises(StoreError, match="halves of characters"):
            attempt()
    assert (store.catalogue(), store.count_history()) == ([], 0)
    store.add_history(4, ["a"])


def test_an_error_within_a_transaction_takes_all_of_it_back(store):
    def half():
        with store.file.transaction():
            store.add_history(4, ["a"])
            store.set_choice(4, Choice())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert (store.count_history(), store.records(4)) == (0, [])
    store.add_history(4, ["a"])


def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(StoreError):
        store.count_history()
    assert isinstance(store.file, StoreFile)
