"""Stores, run folders and folders of services of the version before open and go on.

`fixtures/` has what that version wrote, as text, and what it said of it. Nothing of it may be lost
by opening it, and what goes on from there must come to the same as if nobody had stopped.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from doors import (
    ask,
    digests,
    exported,
    open_checkpoint,
    open_device,
    open_proxy,
    user_ledger,
)
from restoring import FIXTURES, captured, database, fixture, restore, restored

NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Commands of fixtures name folders as seen from here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOTTOVOCE_DATABASE", raising=False)
    return tmp_path


def missing(before, now, where=""):
    """What was said before and is not said now. More may be said now."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key, value in before.items()
            for line in (
                missing(value, now[key], f"{where}.{key}") if key in now else [f"{where}.{key}"]
            )
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [line for n, (b, v) in pairs for line in missing(b, v, f"{where}[{n}]")]
    return [] if before == now else [f"{where}: {before!r} is now {now!r}"]


def check_said(content):
    assert content["said"]
    for one in content["said"]:
        assert not missing(one["said"], ask(*one["ask"])), one["ask"]


def renew(keys):
    """Servers' certificates do not last as long as fixtures do."""
    ask("keys", "renew", keys)


def still_there(lines, after):
    """Whether each line is on record as it was; a later release may say more in it."""
    return all(
        any(all(other.get(key) == value for key, value in line.items()) for other in after)
        for line in lines
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_is_restored_as_it_was(name, here):
    """Of the tests themselves: what is put back is what was captured."""
    content = restored(name, here / "folder")
    again = captured(here / "folder")
    for place, told in content["files"].items():
        if not place.endswith("backup.json"):  # says how long databases are
            assert again["files"][place] == told, place
    assert {*again["files"]} == {*content["files"]}
    assert content["folders"].items() <= again["folders"].items()


# --- nothing is lost by opening -------------------------------------------------------------------


CHANGED = {}
"""By file and table of a fixture, why its rows are not found as they were: for a version that keeps
the same in another form, and has a test of its own for that."""
MOVED = {("SVUS", "ledger"): "contacts"}
"""By mark and table of a fixture, the table that has its rows now. One ledger is for all stores."""


def lost(content, folder):
    """Tables of which rows are not there any more. A table may have another name, and rows more
    columns: it is enough that there is one table with all of a former one's rows."""
    found = []
    for place, told in content["files"].items():
        if told["kind"] != "sqlite":
            continue
        there = (folder / place).parent
        now = [
            (name, [Counter(map(json.dumps, row)) for row in rows])
            for file in there.glob("*.db")
            for name, rows in database(file)["rows"].items()
        ]
        for name, rows in told["rows"].items():
            mark = told["pragmas"]["application_id"].to_bytes(4, "big").decode(errors="replace")
            if name.startswith("sqlite_") or (place.rpartition("/")[2], name) in CHANGED:
                continue
            wanted = [
                Counter(json.dumps(value) for value in row if value is not None)
                for row in rows
                if row[0] != "schema"  # the version of the tables
            ]
            same = [table for called, table in now if called in (name, MOVED.get((mark, name)))]
            tables = same or [table for _, table in now]
            if not any(all(any(w <= row for row in table) for w in wanted) for table in tables):
                found.append(f"{place}: {name}")
    return found


def for_writing(content, folder):
    """Open everything in that folder as its owner does, so that it is brought up to date."""
    for place in {place.rpartition("/")[0] for place in content["files"]}:
        there = folder / place
        if (there / "orchestrator.db").exists():
            ask("serve", "orchestrator", there, "--status")
        elif (there / "owner.db").exists():
            ask("serve", "owner", there, "--status")
        elif (there / "server.db").exists():
            ask("serve", "target", there, "--rounds", ask("serve", "status", there)["target"])
        elif (there / "flower.db").exists():
            open_checkpoint(there)
        elif (there / "proxy.db").exists():
            open_proxy(there)
        elif (there / "store.db").exists() and "SVUS" in _mark(content, place):
            ask("user", "consent", there, "--takes-part")
        elif (there / "store.db").exists():
            open_device(there)


def _mark(content, place):
    told = content["files"][f"{place}/store.db".lstrip("/")]
    return told["pragmas"]["application_id"].to_bytes(4, "big").decode()


WITH_DATABASES = [
    name
    for name in NAMES
    if not name.startswith("backup")
    and any(told["kind"] == "sqlite" for told in fixture(name)["files"].values())
]


@pytest.mark.parametrize("name", WITH_DATABASES)
def test_no_row_of_a_database_is_lost_when_it_is_opened(name, here):
    content = restored(name, here / "folder")
    for_writing(content, here / "folder")
    assert lost(content, here / "folder") == []


def test_a_lost_row_is_noticed(here):
    """The control: without its last row, every table is missed."""
    content = fixture("drift_user_2")
    rows = content["files"]["store.db"]["rows"]
    for name in [name for name, there in rows.items() if there and name != "sqlite_sequence"]:
        less = {**rows, name: rows[name][:-1]}
        cut = {**content["files"]["store.db"], "rows": less}
        restore({**content, "files": {**content["files"], "store.db": cut}}, here / name)
        assert lost(content, here / name) == [f"store.db: {name}"]


# --- run folders ----------------------------------------------------------------------------------


@pytest.fixture
def sets(here, monkeypatch):
    restored("data_set", here / "sets")
    monkeypatch.setenv("SOTTOVOCE_DATA", str(here / "sets"))


@pytest.mark.parametrize("name", ["run_fpl", "run_drift"])
def test_a_finished_run_is_what_it_was(name, here, sets):
    content = fixture(name)
    place = here / content["said"][0]["ask"][1]
    restore(content, place)
    check_said(content)
    assert digests(place) == content["digests"]
    if name == "run_fpl":  # others write theirs when they end
        ask("report", place)
        assert (place / "report.html").stat().st_size > 10_000
    after = captured(place)["files"]
    for file in ("manifest.json", "metrics.jsonl", "model.npz", "devices.npz", "ledger.parquet"):
        assert after[file] == content["files"][file], file


CUT = {"run_fpl_cut": "run_fpl", "run_drift_cut": "", "run_drift_sums_cut": ""}


def resume(name, here):
    """The run of this fixture to its end; what it has to come to."""
    content = fixture(name)
    told = fixture(CUT[name]) if CUT[name] else content
    if not (here / "run").exists():
        restore(content, here / "run")
    file = here / f"{json.loads((here / 'run/manifest.json').read_text())['name']}.toml"
    file.write_text(told["experiment"])
    ask("run", file, *content.get("changes", ()), "--out", here / "run", "--resume")
    return content, told["digests"]


@pytest.mark.parametrize("name", CUT)
def test_a_run_that_was_stopped_goes_on_to_the_same_end(name, here, sets):
    content, wanted = resume(name, here)
    assert digests(here / "run") == wanted
    manifest = json.loads((here / "run/manifest.json").read_text())
    before = json.loads("\n".join(content["files"]["manifest.json"]["text"]))
    assert (manifest["status"], before["status"]) == ("finished", "running")
    for key in ("identity", "started", "experiment", "schedule", "data"):
        assert manifest[key] == before[key]
    lines = (here / "run/metrics.jsonl").read_text().splitlines()
    known = [line for line in content["files"].get("metrics.jsonl", {"text": ()})["text"] if line]
    assert [line for line in lines if json.loads(line)["round"] <= content["round"]] == known
    assert json.loads(lines[-1])["final"]


@pytest.mark.parametrize("name", ["run_fpl_cut", "run_drift_sums_cut"])
def test_a_run_goes_on_from_its_checkpoint_and_not_from_the_start(name, here, sets):
    """The control: with another checkpoint it ends elsewhere."""
    restore(fixture(name), here / "run")
    place = here / "run/checkpoint.npz"
    with np.load(place) as arrays:
        saved = {key: arrays[key] for key in arrays.files}
    assert int(saved["round"]) == fixture(name)["round"]
    saved["items"] = saved["items"] + np.float32(0.25)
    np.savez(place, **saved)
    for owners in (here / "run").glob("owners-*.npz"):
        with np.load(owners) as arrays:
            held = {key: arrays[key] for key in arrays.files}
        moved = {k: a + np.float32(0.25) for k, a in held.items() if a.dtype == np.float32}
        np.savez(owners, **held | moved)
    _, wanted = resume(name, here)
    assert digests(here / "run")["model.npz:items"] != wanted["model.npz:items"]


# --- a federation of devices ----------------------------------------------------------------------


@pytest.fixture
def run(request, here):
    """A run by real processes, stopped after two rounds: a server's folder and devices' stores."""
    for part in parts(getattr(request, "param", "run_https")):
        restored(part, here / "run")
    return here / "run"


def parts(name):
    return [f"{name}_cut", f"{name}_devices_0", f"{name}_devices_1"]


def stores(name="run_https"):
    """By name of the folder, all that was in the stores."""
    return {
        store: lines
        for part in parts(name)[1:]
        for store, lines in fixture(part)["exported"].items()
    }


SENT = {"run_https": 6, "run_shuffled": 8, "run_summed": 8}
"""Reports in the stores of all devices."""


@pytest.mark.parametrize(("run", "name"), [(n, n) for n in SENT], indirect=["run"])
def test_a_server_and_its_devices_say_what_they_said(run, name):
    check_said(fixture(f"{name}_cut"))
    kept = stores(name)
    assert sum(line["kind"] == "report" for all_ in kept.values() for line in all_) == SENT[name]
    for store, lines in kept.items():
        now = exported(run / "services/devices" / store)
        assert not missing(lines, now), store


slow = pytest.mark.slow


def untimed(rounds):
    """As rounds of a release that kept no times are shown now."""
    return [one | {"opened": None, "ended": None} for one in rounds]


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("run_https", "run_https"),
        pytest.param("run_shuffled", "run_shuffled", marks=slow),
        pytest.param("run_summed", "run_summed", marks=slow),
    ],
    indirect=["run"],
)
def test_a_federation_goes_on_to_the_same_end(run, name, here):
    """Real processes: the server publishes the model that it had, devices learn and book on, and a
    proxy knows who is who."""
    content = fixture(f"{name}_cut")
    before = content["said"][0]["said"]
    for keys in (run / "services").glob("*/keys"):
        renew(keys)
    need_port(run / "services/proxy/port")
    (here / "fpl.toml").write_text(content["experiment"])
    trial = ("--engine", "https", "--processes", 1)
    ask("run", "fpl.toml", *trial, "--out", run, "--resume")
    assert digests(run) == content["digests"]
    now = ask("serve", "status", run / "services/server")
    rounds = json.loads((run / "manifest.json").read_text())["schedule"]["rounds"]
    assert (before["round"], now["round"]) == (2, rounds)
    assert now["rounds"][:2] == untimed(before["rounds"])
    assert (now["enrolled"], now["refused"]) == (before["enrolled"], before["refused"])
    for store, lines in stores(name).items():
        after = exported(run / "services/devices" / store)
        lasting = [line for line in lines if line["kind"] not in ("budget", "spent", "vector")]
        assert still_there(lasting, after), store
        sent = [line for line in after if line["kind"] == "report"]
        spent = [line for line in after if line["kind"] == "budget"]
        assert [line["round"] for line in sent] == ([*range(rounds)] if sent else [])
        assert bool(sent) == any(line["kind"] == "report" for line in lines)
        assert sum(line["releases"] for line in spent) == len(sent)
        assert sum(line["bytes"] for line in spent) == sum(line["bytes"] for line in sent)


def need_port(file):
    """Terms name the address of a proxy."""
    if file.exists():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", int(file.read_text())))
            except OSError:
                pytest.skip(f"port {file.read_text()} is taken on this machine")


@pytest.mark.parametrize("run", ["run_shuffled", "run_summed"], indirect=True)
def test_a_proxy_remembers_where_it_was(run, here):
    """What it has told or taken for a round it neither tells nor takes again."""
    proxy = run / "services/proxy"
    made = ask("serve", "backup", proxy, here / "safe")
    assert made["kind"] == ("masker" if (proxy / "seal.pub").exists() else "proxy")
    done = ask("serve", "restore", here / "safe", proxy)
    assert done["next_round"] == 2 + (made["kind"] == "proxy")


def test_a_server_takes_devices_and_orders_as_before(run, here):
    server = run / "services/server"
    made = ask("serve", "invite", server, "--server", "https://127.0.0.1:8443", "--count", 2)
    assert made["numbers"] == [4, 5]
    assert ask("serve", "target", server, "--rounds", 9)["before"] == 2
    assert ask("serve", "shut-out", server, 1)["shut_out"] == [1]
    now = ask("serve", "status", server)
    assert (now["target"], now["shut_out"], now["enrolled"]) == (9, [1], 3)
    assert ask("serve", "shut-out", server, 1, "--undo")["shut_out"] == []
    ask("serve", "backup", server, here / "safe")
    shutil.rmtree(server)
    ask("serve", "restore", here / "safe", server, "--next-round", 3)
    assert ask("serve", "status", server)["rounds"] == now["rounds"]


@pytest.mark.parametrize("name", ["0000", "0002"])
def test_the_owner_of_a_device_goes_on(run, here, name):
    """She changes her mind, adds to her history, and nothing that was on record changes."""
    store, before = run / "services/devices" / name, stores()[name]
    lists = ask("device", "recommend", store)
    assert lists["recommendations"]
    kept = [line for line in before if line["kind"] not in ("vector",)]
    ask("device", "consent", store, "--share-positives", 0.25)
    (here / "more.csv").write_text("item,timestamp\nnowhere,1700000000\n")
    assert ask("device", "import", store, here / "more.csv")["added"] == 1
    ask("device", "attributes", store, "age=25-34")
    after = exported(store)
    assert still_there(kept, after)
    new = [line for line in after if not any(still_there([old], [line]) for old in before)]
    assert [line["kind"] for line in new] == ["interaction", "attribute", "choice"]
    assert new[-1]["share_positives"] == 0.25
    assert sum(line["kind"] == "report" for line in after) == 2


# --- a federation of data owners ------------------------------------------------------------------


OWNERS = ("Alpha", "Beta")
PARTIES = {"town": "town", "alpha": "Alpha", "beta": "Beta"}
PARTIES |= {f"user_{n}": f"user-{n}" for n in (1, 2, 3)}


DRIFT = pytest.mark.parametrize("drift", ["drift", "drift_sums"], indirect=True)
"""In the second one owners send sums over people and keep their vectors."""


@pytest.fixture
def drift(request, here):
    """An orchestrator, two data owners and three users after two rounds: their fixtures by name."""
    return {
        place: restored(f"{request.param}_{name}", here / place) for name, place in PARTIES.items()
    }


@DRIFT
def test_data_owners_and_users_say_what_they_said(drift, here):
    for content in drift.values():
        check_said(content)
    for n in (1, 2, 3):
        assert user_ledger(here / f"user-{n}") == drift[f"user-{n}"]["ledger"]


@contextlib.contextmanager
def served(*words):
    """A service in a process of its own."""
    command = [sys.executable, "-m", "sottovoce", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def address(file):
    """Where a service listens, once it does."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(file.read_text())["url"]
        time.sleep(0.05)
    raise AssertionError(f"{file} does not come")


def move(here, owner, url):
    """The orchestrator's operator admits a data owner anew, at another address."""
    card = json.loads((here / owner / "application.json").read_text())
    (here / f"{owner}.json").write_text(json.dumps({**card, "url": url}))
    words = ("--admit", f"{owner}.json", "--gateway", "127.0.0.1:9", "--out", f"{owner}-in.json")
    made = ask("serve", "orchestrator", "town", *words)
    assert made["number"] == OWNERS.index(owner)


@pytest.mark.parametrize(
    "drift", ["drift", pytest.param("drift_sums", marks=pytest.mark.slow)], indirect=True
)
def test_a_user_goes_on_with_data_owners(drift, here):
    """Everybody is at another address than before. What waited arrives, and what was told before is
    not told again; the model is the one that it was."""
    before = {owner: drift[owner]["said"][0]["said"]["messages"]["taken"] for owner in OWNERS}
    with contextlib.ExitStack() as stack:
        ready = {"town": here / "town/orchestrator.json"}
        ready |= {owner: here / owner / "owner.json" for owner in OWNERS}
        for party in ready:
            renew(here / party / "keys")
            kind = "owner" if party in OWNERS else "orchestrator"
            stack.enter_context(served("serve", kind, party, "--users-only", "--port", 0))
        urls = {party: address(file) for party, file in ready.items()}
        for owner in OWNERS:
            move(here, owner, urls[owner])
        url = urls["town"]
        ask("serve", "orchestrator", "town", "--invite", 1, "--url", url, "--out", "invited")
        for n in (1, 2):
            ask("user", "join", f"user-{n}", "invited/invitation-1.json")
        for one in drift["town"]["ranked"]:
            assert not missing(one["said"], ask(*one["ask"]))
        sent = ask("user", "send", "user-2")
        assert (sent["waiting"], sent["refused"]) == (0, 0)
        ask("user", "interact", "user-1", "film 9", "--liked", "--time", 4000)
        now = {owner: ask("serve", "owner", owner, "--status") for owner in before}
    shown = {n: ask("user", "show", f"user-{n}")["owners"] for n in (1, 2)}
    told = {n: [o["arrived"] for o in shown[n]] for n in shown}
    kept = {n: drift[f"user-{n}"]["said"][0]["said"]["owners"] for n in shown}
    assert told[2] == [o["arrived"] + o["waiting"] for o in kept[2]]
    assert told[1] == [kept[1][0]["arrived"], kept[1][1]["arrived"] + 1]
    assert now["Alpha"]["messages"]["taken"] == before["Alpha"] + kept[2][0]["waiting"]
    assert now["Beta"]["messages"]["taken"] == before["Beta"] + kept[2][1]["waiting"] + 1
    for n in (1, 2):
        ledger, rows = user_ledger(here / f"user-{n}"), drift[f"user-{n}"]["ledger"]
        assert ledger[: len(rows)] == rows
        assert sum(row["interactions"] for row in ledger[len(rows) :]) == {1: 1, 2: 3}[n]


# --- Flower ---------------------------------------------------------------------------------------


def test_a_checkpoint_of_flower_and_its_cohorts_say_what_they_said(here):
    content = restored("run_flower_cut", here / "run")
    check_said(content)
    for store, lines in content["exported"].items():
        assert not missing(lines, exported(here / store)), store
    server = here / "run/services/server"
    ask("serve", "backup", server, here / "safe")
    done = ask("serve", "restore", here / "safe", server)
    assert done["next_round"] == content["round"] + 1


@slow
def test_flower_goes_on_to_the_same_end(here):
    content = restored("run_flower_cut", here / "run")
    renew(here / "run/services/server/keys")
    (here / "fpl.toml").write_text(content["experiment"])
    ask("run", "fpl.toml", "--engine", "flower", "--processes", 2, "--out", "run", "--resume")
    assert digests(here / "run") == content["digests"]
    for store, lines in content["exported"].items():
        after = exported(here / store)
        lasting = [line for line in lines if line["kind"] not in ("budget", "vector")]
        assert still_there(lasting, after), store


# --- backups --------------------------------------------------------------------------------------


KINDS = ("device", "user", "server", "proxy", "masker", "owner", "orchestrator")


@pytest.mark.parametrize("name", KINDS)
def test_a_backup_is_put_back(name, here):
    """Where the folder itself is lost; it forgets nothing that it had."""
    made = restored(f"backup_{name}", here / "safe")["made"]
    if name in ("device", "user"):
        words = ("device", "restore", "safe", "lost")
    else:
        words = ("serve", "restore", "safe", "lost")
        words += ("--next-round", 7) if name in ("server", "proxy", "masker") else ()
    done = ask(*words)
    assert {key: done[key] for key in ("kind", "federation", "created")} == {
        key: made[key] for key in ("kind", "federation", "created")
    }
    if name == "device":
        lines = stores()["0000"]
        kept = [line for line in lines if line["kind"] != "vector"]
        after = exported(here / "lost")
        assert still_there(kept, after)
        assert not [line for line in after if line["kind"] == "choice"][-1]["takes_part"]
    elif name == "user":
        told = fixture("drift_user_2")
        assert user_ledger(here / "lost") == told["ledger"]
        shown = ask("user", "show", "lost")
        assert not shown["takes_part"]
        assert [o["arrived"] for o in shown["owners"]] == [
            o["arrived"] for o in told["said"][0]["said"]["owners"]
        ]
    elif name == "server":
        told = fixture("run_https_cut")["said"][0]["said"]
        now = ask("serve", "status", "lost")
        assert now["rounds"][:2] == untimed(told["rounds"])
        assert (now["enrolled"], now["round"]) == (told["enrolled"], 7)
    elif name in ("proxy", "masker"):
        assert done["next_round"] == 7
    else:
        ours = {"owner": "drift_alpha", "orchestrator": "drift_town"}[name]
        told, now = fixture(ours)["said"][0]["said"], ask("serve", name, "lost", "--status")
        for key in {*told} - {"folder", "training"}:
            assert not missing(told[key], now[key], key)


def test_a_users_file_is_brought_to_the_form_of_all_stores_or_stays_as_it_was(here, monkeypatch):
    """Half of it is never there, and she can go on whatever happened."""
    from sottovoce.errors import StoreError
    from sottovoce.stores import encrypted
    from sottovoce.stores.user import UserStore

    content = restored("drift_user_2", here / "store")
    before = database(here / "store/store.db")
    with monkeypatch.context() as patch:
        patch.setattr(encrypted, "USERS_IN", encrypted.USERS_IN + "SELECT * FROM nowhere;")
        with pytest.raises(StoreError):
            UserStore.open(here / "store")
    assert database(here / "store/store.db") == before
    assert user_ledger(here / "store") == content["ledger"]  # which only reads
    with UserStore.open(here / "store") as store:
        assert not store.file.rows("SELECT name FROM temp.sqlite_master")
        assert store.file.pragma("foreign_key_check") is None
        assert store.find("me") == 0
        store.record_choice(0, store.choice(0), looked=False)
        assert len(store.records(0)) == 1, "the same mind is no new choice"
