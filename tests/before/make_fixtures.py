"""Makes the fixtures: small folders of every kind, written by the program as it is now, as text.

Run it once for a version whose folders later ones must be able to go on with:

    python tests/before/make_fixtures.py [NAME...]

Later versions are held to what is in `fixtures/`, so do not run it again when a test fails: mend
the program, or have it bring old folders up to date. Worlds are made up, keys are worth nothing.
What is there now was written by the tree of commit 6231881, before modules and stores were joined.
"""

import argparse
import contextlib
import json
import os
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from doors import ask, digests, exported, user_ledger
from restoring import captured, restored, write_fixture
from sottovoce.data.interactions import Interactions
from sottovoce.engines.https import keys, trial
from sottovoce.engines.https.orchestrator_folder import open_orchestrator_folder

from sottovoce import running, silo_running
from sottovoce.cli import call
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.engines import processes
from sottovoce.engines.flower.trial import FlowerTrial

AUTHORITIES_SINCE = datetime(2025, 1, 1, tzinfo=UTC)
"""Certificates of authorities last ten years; tests renew those of servers."""

PROXY_PORT = 21_847
"""Terms name the address of a proxy, so a test must have it; it is none that systems give out."""

TOWN = """
seed = 3

[town]
residents = 4
venues = 40
visits_per_resident = 8.0
districts = 1

[evaluation]
k = 5

[baselines.top-pop]
"""
FPL = """
[algorithm]
configuration = "pFPL+"
embedding_size = 4
rounds = 6

[consent]
mix = [
  { weight = 1, takes_part = false },
  { weight = 3, share_positives = 0.5 },
]
"""
FMF = """
[algorithm]
name = "fmf"
embedding_size = 3
rounds = 4

[release]
max_reports = 5
tiers = [{ epsilon = 1.0, min_devices = 2 }]

[consent]
mix = [
  { weight = 2, epsilon = 1.5, max_reports = 20, total_epsilon = 1000.0 },
  { weight = 2, epsilon = 3.0, max_reports = 50 },
]
"""
SUMMED = """
[link]
name = "secure-sum"
min_devices = 3
clip = 0.5
noise = 1.5
"""
SHOPS = """
name = "shops"
seed = 5

[data]
source = "shops"
test_fraction = 0.3

[algorithm]
name = "drift"
embedding_size = 4
epochs = 6

[consent]
mix = [
  { weight = 3 },
  { weight = 1, refused_owners = ["red"] },
  { weight = 1, takes_part = false },
]

[baselines.top-pop]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Of functions below; all.")
    names = parser.parse_args().names or list(MAKERS)
    with _old_authorities():
        for name in names:
            before = Path.cwd()
            with tempfile.TemporaryDirectory() as scratch:
                os.chdir(scratch)
                try:
                    MAKERS[name](Path(scratch))
                finally:
                    os.chdir(before)
            print(name)


@contextlib.contextmanager
def _old_authorities():
    """So that they are valid also by a clock that is late."""
    made = keys._authority
    keys._authority = lambda key, now: made(key, AUTHORITIES_SINCE)
    try:
        yield
    finally:
        keys._authority = made


def _written(experiment, name):
    Path(f"{name}.toml").write_text(experiment)
    return f"{name}.toml"


PROSE = {"choice", "means", "nothing_leaves", "notes", "protocol", "store", "what_leaves"}


def _said(*arguments):
    """A command and what it answers, for a test to ask again; without whole sentences, which may be
    written anew. Folders are named as seen from the place where everything is restored."""
    said = ask(*arguments)
    return {"ask": [*arguments], "said": {k: v for k, v in said.items() if k not in PROSE}}


# --- run folders ----------------------------------------------------------------------------------


def run_fpl(_):
    """Finished; stopped after two rounds; and what it comes to."""
    file = _written(TOWN + FPL, "fpl")
    ask("run", file, "--out", "whole")
    said = [
        _said("ledger", "whole"),
        _said("ledger", "whole", "--user", "r0001"),
        _said("recommend", "whole", "--user", "r0001"),
    ]
    finished = {"experiment": Path(file).read_text(), **captured(Path("whole"))}
    write_fixture("run_fpl", {**finished, "said": said, "digests": digests(Path("whole"))})
    with _stopped_at(2):
        call(["run", file, "--out", "cut"])
    assert json.loads(Path("cut/manifest.json").read_text())["status"] == "running"
    write_fixture("run_fpl_cut", {"round": 2, **captured(Path("cut"))})


@contextlib.contextmanager
def _stopped_at(round):
    """As by Ctrl-C."""
    look, stop = running.Periodically.look, running.Periodically.next_stop

    def interrupt(self, moment):
        if moment.round == round:
            signal.raise_signal(signal.SIGINT)

    running.Periodically.look = interrupt
    running.Periodically.next_stop = lambda self, round: round + 1
    try:
        yield
    finally:
        running.Periodically.look, running.Periodically.next_stop = look, stop


def run_drift(scratch):
    """With its data set, which is a folder of ours as well."""
    os.environ["SOTTOVOCE_DATA"] = str(scratch / "sets")
    write_prepared(_shops(), scratch / "sets" / "shops")
    for release in ("printed", "aggregated"):
        changes = {"aggregated": ["--set", "algorithm.release=aggregated"]}.get(release, [])
        if changes:
            changes += ["--set", "algorithm.min_users=3"]
        name = {"printed": "run_drift", "aggregated": "run_drift_sums"}[release]
        file = _written(SHOPS, "shops")
        ask("run", file, *changes, "--out", name)
        with _stopped_in(3):
            call(["run", file, *changes, "--out", f"{name}_cut"])
        said = [_said("ledger", name)]
        if release == "printed":
            said.append(_said("recommend", name, "--user", "4"))
            whole = captured(Path(name))
            write_fixture(name, {**whole, "said": said, "digests": digests(Path(name))})
        cut = {
            "round": 3,
            "experiment": Path(file).read_text(),
            "changes": changes,
            "digests": digests(Path(name)),
            **captured(Path(f"{name}_cut")),
        }
        write_fixture(f"{name}_cut", cut)
    write_fixture("data_set", captured(scratch / "sets"))


def _shops():
    """Eight users, twelve items of three owners, one of which has another's items too."""
    draw = np.random.default_rng(8)
    pairs = [(u, i) for u in range(8) for i in draw.permutation(12)[:8].tolist()]
    users, items = (np.array(column) for column in zip(*pairs, strict=True))
    kinds = [("red",), ("green",), ("blue",)]
    return Dataset(
        name="shops",
        interactions=Interactions.from_pairs(
            users,
            items,
            timestamps=draw.integers(0, 10**6, len(pairs)),
            ratings=draw.integers(1, 6, len(pairs)),
        ),
        item_categories=tuple(
            kinds[i % 3] + (("blue",) if i < 4 and i % 3 != 2 else ()) for i in range(12)
        ),
    )


@contextlib.contextmanager
def _stopped_in(epoch):
    note = silo_running._Run._note

    def interrupt(self, number, model):
        note(self, number, model)
        if number == epoch:
            signal.raise_signal(signal.SIGINT)

    silo_running._Run._note = interrupt
    try:
        yield
    finally:
        silo_running._Run._note = note


# --- a federation of devices ----------------------------------------------------------------------


def federation(_):
    """A run by real processes that was stopped after two rounds: the run's folder with that of its
    server, and the stores of its devices."""
    _trial("run_https", TOWN + FPL)


def shuffled(_):
    """With a proxy that shuffles, and budgets."""
    _trial("run_shuffled", TOWN + FMF)


def summed(_):
    """With the proxy of a secure sum, which adds noise."""
    _trial("run_summed", TOWN + FPL.replace("takes_part = false", "share_positives = 1.0") + SUMMED)


def _trial(name, experiment):
    file = _written(experiment, "fpl")
    ask("run", file, "--out", "whole")
    with _trial_stopped_at(2):
        call(["run", file, "--engine", "https", "--processes", "1", "--out", "run"])
    run = Path("run")
    devices = sorted((run / "services" / "devices").iterdir())
    stores = {device.name: exported(device) for device in devices}
    said = [_said("serve", "status", "run/services/server")]
    said += [_said("device", "status", f"run/services/devices/{d.name}") for d in devices]
    parts = captured(run)
    lying = {d.name: _below(parts, f"services/devices/{d.name}") for d in devices}
    first, second = devices[: len(devices) // 2], devices[len(devices) // 2 :]
    write_fixture(
        f"{name}_cut",
        {
            "round": 2,
            "experiment": Path(file).read_text(),
            "digests": digests(Path("whole")),
            "said": said,
            **_without(parts, "services/devices"),
        },
    )
    for number, some in enumerate((first, second)):
        content = {"folders": {}, "files": {}}
        for device in some:
            for kind in content:
                content[kind] |= lying[device.name][kind]
        content["exported"] = {device.name: stores[device.name] for device in some}
        write_fixture(f"{name}_devices_{number}", content)


def flower(_):
    """The same by Flower: a server with a checkpoint, and gateways with cohorts."""
    file = _written(TOWN + FPL, "fpl")
    ask("run", file, "--out", "whole")
    with _trial_stopped_at(2):
        call(["run", file, "--engine", "flower", "--processes", "2", "--out", "run"])
    cohorts = sorted(path.parent for path in Path("run/services").glob("*/*/store.db"))
    said = [_said("serve", "flower", "run/services/server", "--status")]
    said += [_said("device", "status", str(place)) for place in cohorts]
    write_fixture(
        "run_flower_cut",
        {
            "round": 2,
            "experiment": Path(file).read_text(),
            "digests": digests(Path("whole")),
            "said": said,
            "exported": {str(place): exported(place) for place in cohorts},
            **captured(Path("run")),
        },
    )


@contextlib.contextmanager
def _trial_stopped_at(round):
    def stopped(advance):
        def stop(self, to, tick):
            advance(self, round, tick)
            raise KeyboardInterrupt

        return stop

    kinds = {kind: kind.advance for kind in (trial.HttpsTrial, FlowerTrial)}
    free_port, trial.free_port = trial.free_port, lambda: PROXY_PORT
    for kind, advance in kinds.items():
        kind.advance = stopped(advance)
    try:
        yield
    finally:
        trial.free_port = free_port
        for kind, advance in kinds.items():
            kind.advance = advance


def _below(content, place):
    return {
        kind: {p: told for p, told in content[kind].items() if f"{p}/".startswith(f"{place}/")}
        for kind in ("folders", "files")
    }


def _without(content, place):
    return {
        kind: {p: told for p, told in content[kind].items() if not f"{p}/".startswith(f"{place}/")}
        for kind in ("folders", "files")
    }


# --- a federation of data owners ------------------------------------------------------------------


HELD = {"Alpha": range(0, 6), "Beta": range(4, 10)}
"""Who holds which of ten films."""
SAID = """item,timestamp,positive
film 0,1000,0
film 1,1001,1
film 4,1002,0
film 5,1003,1
film 2,1004,0
film 3,1005,1
film 7,1006,0
film 8,1007,1
"""


def data_owners(_):
    """Real processes hold two rounds; then one more message waits, as nobody is there."""
    for release, name in (("printed", "drift"), ("aggregated", "drift_sums")):
        with contextlib.chdir(_new(name)):
            _data_owners(release, name)


def _new(name):
    Path(name).mkdir()
    return name


def _data_owners(release, name):
    ports = {party: processes.free_port() for party in ("users", "link", "gateway", *HELD)}
    Path("items.csv").write_text("item,title\n" + "".join(f"film {n},\n" for n in range(10)))
    changes = ["--set", "embedding_size=4", "--set", "theta=1", "--set", f"release={release}"]
    if release == "aggregated":
        changes += ["--set", "min_users=2"]
    town = ("serve", "orchestrator", "town")
    ask(*town, "--make", "--catalogue", "items.csv", "--seed", 7, *changes)
    for owner, items in HELD.items():
        Path("held.txt").write_text("".join(f"film {n}\n" for n in items))
        url, card = f"https://127.0.0.1:{ports[owner]}", f"{owner}.json"
        made = ("--name", owner, "--items", "held.txt", "--url", url)
        ask("serve", "owner", owner, "--make", "town/federation.json", *made)
        gateway = f"127.0.0.1:{ports['gateway']}"
        ask(*town, "--admit", f"{owner}/application.json", "--gateway", gateway, "--out", card)
        ask("serve", "owner", owner, "--admission", card)
    ask(*town, "--invite", 4, "--url", f"https://127.0.0.1:{ports['users']}")
    where = ("--port", ports["users"], "--superlink-port", ports["link"])
    more = (
        "--gateway-port",
        ports["gateway"],
        "--every",
        3,
        "--rounds",
        0,
        "--wait-for",
        2,
        "--patience",
        60,
    )
    with contextlib.ExitStack() as stack:
        _started(stack, "town", *town, *where, *more)
        for owner in HELD:
            _started(stack, owner, "serve", "owner", owner, "--port", ports[owner])
        for n in (1, 2, 3):
            _until(lambda: Path("town/orchestrator.json").exists())
            ask("user", "join", f"user-{n}", f"invitations/invitation-{n}.json")
            refused = ["--refuse", "Beta"] if n == 3 else []
            ask("user", "consent", f"user-{n}", "--takes-part", *refused)
            Path("said.csv").write_text(SAID)
            _until(lambda: all(Path(owner, "owner.json").exists() for owner in HELD))
            sent = ask("user", "send", f"user-{n}", "said.csv", *(["--end"] if n == 1 else []))
            assert sent["said"]["messages"] > 0
            assert not sent["waiting"], sent
        ask(*town, "--flush")
        _target(Path("town"), 2)
        _until(lambda: ask(*town, "--status")["round"] == 2, 120)
        ranked = [_said("user", "recommend", f"user-{n}", "-n", 3) for n in (1, 2)]
        ask("user", "send", "user-2", "said.csv")
        for n in (2, 3):
            Path("said.csv").write_text("item,timestamp,positive\nfilm 4,2000,0\nfilm 0,2001,1\n")
            ask("user", "send", f"user-{n}", "said.csv")
    for place in ("film 1", "film 5"):
        ask("user", "interact", "user-2", place, "--liked", "--time", 3000)
    said = {
        "town": [_said(*town, "--status")],
        **{owner: [_said("serve", "owner", owner, "--status")] for owner in HELD},
        **{f"user-{n}": _users_said(f"user-{n}") for n in (1, 2, 3)},
    }
    for place, lines in said.items():
        content = {**captured(Path(place)), "said": lines}
        if place.startswith("user"):
            content["ledger"] = user_ledger(Path(place))
        if place == "town":
            content["ranked"] = ranked
        write_fixture(f"{name}_{place.lower().replace('-', '_')}", content)


def _users_said(place):
    return [_said("user", "show", place), _said("user", "consent", place)]


def _target(folder, rounds):
    with contextlib.closing(open_orchestrator_folder(folder).store()) as store:
        store.raise_target(rounds)


def _started(stack, name, *words):
    command = processes.sottovoce_command(*map(str, words))
    child = processes.Child(name, command, log=Path(f"{name}.log").absolute())
    stack.callback(child.stop)


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [p.read_text()[-3000:] for p in Path().glob("*.log")]
        time.sleep(0.2)


# --- backups --------------------------------------------------------------------------------------


BACKUPS = {
    "device": ("run_https_devices_0", "services/devices/0000"),
    "user": ("drift_user_2", "."),
    "server": ("run_https_cut", "services/server"),
    "proxy": ("run_shuffled_cut", "services/proxy"),
    "masker": ("run_summed_cut", "services/proxy"),
    "owner": ("drift_alpha", "."),
    "orchestrator": ("drift_town", "."),
}
"""Of which fixtures, and where in them."""


def backups(scratch):
    """Of folders that are in other fixtures."""
    for name, (of, place) in BACKUPS.items():
        restored(of, scratch / of)
        made = ask("serve", "backup", scratch / of / place, scratch / name)
        facts = {key: made[key] for key in ("kind", "federation", "created", "files", "left_out")}
        write_fixture(f"backup_{name}", {"made": facts, **captured(scratch / name)})


MAKERS = {
    "run_fpl": run_fpl,
    "run_drift": run_drift,
    "federation": federation,
    "shuffled": shuffled,
    "summed": summed,
    "flower": flower,
    "data_owners": data_owners,
    "backups": backups,
}

if __name__ == "__main__":
    main()
