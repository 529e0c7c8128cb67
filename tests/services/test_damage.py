"""What a disk has lost or changed is found out before anything of it is sent, or a model made of
it; and stores of another format are refused and left as they are."""

import contextlib
import json
import shutil
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from server_world import SEED, USERS, Client, Fleet, ServerProcess, new_folder, simulated
from talk import until

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import ServiceError, StoreError
from sottovoce.parties.helper import Answered
from sottovoce.rng import Streams
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.stores import batches
from sottovoce.stores import server as records
from sottovoce.stores.conductor import Checkpoint, ConductedRound
from sottovoce.stores.database import SCHEMA, Database
from sottovoce.stores.helper_folder import Answers, init_helper
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.owner_store import OwnerFacts, OwnerStore
from sottovoce.stores.private import STAMP_BYTES, stamp, unstamp
from sottovoce.stores.server import PastRound, require_catalogue
from sottovoce.stores.server_folder import open_folder
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import BatchPart

NAN = np.full(1, np.nan, "<f4").tobytes()


def test_a_stamp_tells_every_change_and_every_place():
    content = bytes(range(40))
    stamped = stamp(content, "items", 3)
    assert unstamp(stamped, "items", 3) == content
    assert (stamp(b"", "items", 3), unstamp(b"", "items", 3)) == (b"", b"")
    for at in range(len(stamped)):
        assert (
            unstamp(stamped[:at] + bytes([stamped[at] ^ 1]) + stamped[at + 1 :], "items", 3) is None
        )
        assert at == 0 or unstamp(stamped[:at], "items", 3) is None
    for where in (("items", 4), ("items",), ("item", "s3"), ("items", 3, 0)):
        assert unstamp(stamped, *where) is None


def write(place, sql, *values):
    with contextlib.closing(sqlite3.connect(place)) as link, link:
        link.create_function("stamp", -1, stamp)
        link.create_function("flipped", 1, lambda blob: bytes([blob[0] ^ 1]) + blob[1:])
        link.create_function("nonsense", 1, lambda blob: NAN + blob[4:-STAMP_BYTES])
        assert link.execute(sql, values).rowcount > 0, sql


# --- the server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A server that was stopped after its first round, with a report of the second."""
    path = tmp_path_factory.mktemp("once")
    folder, fleet = new_folder(path, rounds=2), Fleet()
    with ServerProcess(path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        fleet.run_round(client)
        now = client.wait(round=1, state="open")
        view = client.model(1)
        assert client.post("/v1/reports", fleet.report(0, view, now["attempt"])).status == 204
        assert server.stop() == 0
    return path, fleet


@pytest.fixture
def stopped(once, tmp_path):
    """A copy of it, to be damaged."""
    path, fleet = once
    shutil.copytree(path, tmp_path / "town")
    return open_folder(tmp_path / "town"), fleet


def ended(folder):
    """What a server says that does not start."""
    with ServerProcess(folder.path, wait=False) as server:
        assert server.process.wait(60) != 0
    line = server.log.read_text().strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line


def start(folder):
    """As a server does before it listens."""
    database = folder.database()
    with contextlib.closing(database), database.writing() as link:
        coordinator_of(folder.plan, time.monotonic, folder.keys).start(link)
        require_catalogue(link, folder.catalogue())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE models SET items = flipped(items) WHERE round = 1", "the model of round 1"),
        ("UPDATE models SET items = flipped(items) WHERE round = 0", "the model of round 0"),
        ("UPDATE models SET changed = flipped(changed)", "the model of round"),
        ("UPDATE rounds SET selected = flipped(selected) WHERE round = 1", "list of devices"),
        (
            "UPDATE models SET items = stamp(nonsense(items), 'models.items', round)",
            "numbers that are none",
        ),
    ],
)
def test_a_server_does_not_start_with_a_damaged_model(stopped, change, said):
    folder, _ = stopped
    start(folder)
    write(folder.path / "server.db", change)
    with pytest.raises(ServiceError, match=f"{said}.*from a copy"):
        start(folder)


def test_a_damaged_model_is_not_published_after_a_restart(stopped):
    """Before, the server started and every device fetched it."""
    folder, _ = stopped
    write(folder.path / "server.db", "UPDATE models SET items = flipped(items) WHERE round = 1")
    assert "the model of round 1 is damaged in the database" in ended(folder)


def test_a_damaged_report_is_not_folded_and_a_copy_goes_on(stopped):
    folder, fleet = stopped
    place = folder.path / "server.db"
    copy = place.read_bytes()
    write(place, "UPDATE submissions SET body = flipped(body) WHERE body IS NOT NULL")
    with ServerProcess(folder.path) as server, Client(folder, server.port) as client:
        view = client.model(1)
        for number in range(1, USERS):
            assert client.post("/v1/reports", fleet.report(number, view, 0)).status == 204
        until(lambda: "a report of round 1 is damaged" in server.log.read_text())
        assert client.round()["round"] == 1
    for left in folder.path.glob("server.db*"):
        left.unlink()
    place.write_bytes(copy)
    with ServerProcess(folder.path) as server, Client(folder, server.port) as client:
        for number in range(1, USERS):
            client.post("/v1/reports", fleet.report(number, view, 0))
        client.wait(round=2, state="finished")
        assert np.array_equal(client.model(2).items, simulated(2))


@pytest.mark.parametrize("another", [SCHEMA - 1, SCHEMA + 1])
def test_a_database_of_another_format_is_refused_with_both_numbers(stopped, another):
    folder, _ = stopped
    place = folder.path / "server.db"
    write(place, "UPDATE meta SET value = ? WHERE key = 'schema'", str(another))
    before = place.read_bytes()
    said = ended(folder)
    assert f"has format {another}, and this release reads format {SCHEMA} alone" in said
    assert place.read_bytes() == before


def test_another_catalogue_is_not_published(stopped):
    folder, _ = stopped
    place = folder.path / "catalogue.json"
    start(folder)
    place.write_text(place.read_text().replace("Venue 7", "Venue 9"))
    with pytest.raises(ServiceError, match="put the right file back"):
        start(folder)


def test_a_damaged_batch_is_not_opened(tmp_path):
    place = tmp_path / "server.db"
    database = Database.sqlite(place)
    with contextlib.closing(database):
        database.create()
        part = BatchPart(0, 0, bytes(32), 1, 0, 1, bytes(16), bytes(SEALED_BYTES))
        with database.writing() as link:
            records.open_round(link, 0, 0, 1, np.zeros(0, np.uint32), bytes(32))
            assert batches.accept(link, part, 1)
        with database.reading() as link:
            assert list(batches.bodies(link, 0, 0, 1)) == [part.body]
        write(place, "UPDATE batch_parts SET body = flipped(body)")
        with database.reading() as link, pytest.raises(ServiceError, match="a batch of round 0"):
            list(batches.bodies(link, 0, 0, 1))


def test_damaged_memory_is_not_learnt_from(tmp_path):
    place = tmp_path / "server.db"
    database = Database.sqlite(place)
    with contextlib.closing(database):
        database.create()
        table = np.arange(6, dtype=np.float32).reshape(3, 2)
        with database.writing() as link:
            records.save_model(link, 0, table, np.zeros(3, np.int32), table)
        with database.reading() as link:
            assert np.array_equal(records.memory(link, 0, 3), table)
        write(place, "UPDATE models SET memory = flipped(memory)")
        with database.reading() as link, pytest.raises(ServiceError, match="kept beside the model"):
            records.memory(link, 0, 3)


# --- the others -----------------------------------------------------------------------------------


def checkpoint_in(folder: Path) -> Path:
    items = np.arange(8, dtype=np.float32).reshape(4, 2)
    with Checkpoint(folder) as checkpoint:
        checkpoint.begin(items, "terms")
        checkpoint.open(ConductedRound(0, 0, 1, np.array([1])))
        record = PastRound(0, 0, "goal", 1, 1, (), 1.0)
        checkpoint.close_round(record, np.array([1]), items + 1, np.ones(4, np.int64), items)
        checkpoint.open(ConductedRound(1, 0, 2, np.array([3, 4])))
    return folder / "flower.db"


@pytest.mark.parametrize(
    "change", ["models.items", "models.changed", "models.memory", "rounds.selected"]
)
def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path, change):
    place, (table, name) = checkpoint_in(tmp_path), change.split(".")
    write(place, f"UPDATE {table} SET {name} = flipped({name}) WHERE round = 1")
    with Checkpoint(tmp_path) as checkpoint:
        read = {"memory": lambda: checkpoint.memory(4), "selected": checkpoint.open_round}
        with pytest.raises(ServiceError, match="damaged"):
            read.get(name, checkpoint.load)()


def test_a_checkpoint_with_nonsense_or_of_another_format_is_refused(tmp_path):
    place = checkpoint_in(tmp_path)
    write(place, "UPDATE meta SET value = '3' WHERE key = 'schema'")
    for readonly in (True, False):
        with pytest.raises(ServiceError, match=f"has format 3, and this release reads .* {SCHEMA}"):
            Checkpoint(tmp_path, readonly=readonly)
    write(place, f"UPDATE meta SET value = '{SCHEMA}' WHERE key = 'schema'")
    write(place, "UPDATE models SET items = stamp(nonsense(items), 'models.items', round)")
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ServiceError, match="that are none"):
        checkpoint.load()


def test_an_orchestrator_with_damaged_rows_does_not_start(tmp_path):
    config = DRIFTConfig(embedding_size=4)
    root = Streams.from_seed(SEED).key
    OrchestratorStore.create(tmp_path, "town", config, ("a", "b"), root).close()
    with OrchestratorStore.open(tmp_path) as store:
        store.add_users([bytes([n]) * 32 for n in (1, 2)])
        store.set_catalogue(("a", "b", "c"))
        users = store.model()[0]
    place = tmp_path / "orchestrator.db"
    with OrchestratorStore.open(tmp_path) as store:
        assert np.array_equal(store.model()[0], users)
    write(place, "UPDATE users SET row = (SELECT row FROM users WHERE number = 1) WHERE number = 0")
    with pytest.raises(StoreError, match="damaged"):
        OrchestratorStore.open(tmp_path)


def owner_in(folder, release):
    settings = DRIFTConfig(embedding_size=4, release=release, min_users=2)
    facts = OwnerFacts(0, "films", "town", bytes(32), settings, bytes(32))
    store = OwnerStore.create(folder, facts, [1, 2, 3])
    with contextlib.closing(store), store.transaction():
        store.put_users([(7, 1, 5, bytes(32))])
        store.add_parts([(7, [1], [2, 3])])
        if release == "aggregated":
            store.sums.put_vectors({7: np.arange(4, dtype=np.float32)}, [7])
            store.sums.put_sent({2: np.ones(4, np.float32)})
    return folder / "owner.db"


@pytest.mark.parametrize("release", ["printed", "aggregated"])
def test_an_owners_damaged_store_is_not_learnt_from(tmp_path, release):
    place = owner_in(tmp_path / "o", release)
    columns = ["parts.negatives", "parts.positives"]
    if release == "aggregated":
        columns += ["vectors.row", "sent.row"]

    def load():
        with contextlib.closing(OwnerStore.open(tmp_path / "o")) as store:
            found = store.load().streams[7]
            if release == "aggregated":
                sums = store.sums.load(4)
                assert sums.learnt.vectors[7].tolist() == [0.0, 1.0, 2.0, 3.0]
                assert sums.sent[2].tolist() == [1.0] * 4
            return found.negatives, found.positives

    assert load() == ((1,), (2, 3))
    whole = place.read_bytes()
    for table, name in (column.split(".") for column in columns):
        write(place, f"UPDATE {table} SET {name} = flipped({name})")
        with pytest.raises(StoreError, match="damaged"):
            load()
        for left in place.parent.glob("owner.db-*"):
            left.unlink()
        place.write_bytes(whole)
    assert load() == ((1,), (2, 3))


def test_a_masker_whose_memory_is_damaged_does_not_start(tmp_path):
    init_helper(tmp_path)
    place = tmp_path / "answered.json"
    answers = Answers(place)
    answers.keep(Answered(5, bytes(32)))
    assert Answers(place).last == Answered(5, bytes(32))
    table = json.loads(place.read_text())
    for wrong in ({"round": 4}, {"spent": 1}):
        place.write_text(json.dumps({**table, **wrong}))
        with pytest.raises(ServiceError, match="damaged"):
            Answers(place)
