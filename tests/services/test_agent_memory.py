"""What one device's agent takes: a real process, over TLS on loopback, after it has taken part.

Its own memory is what it has for itself (private pages), which would be free without it. Resident
memory also has pages of libraries, which the system reads from their files, shares among all who
use them, and may drop at any time.
"""

import compileall
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import sottovoce
from sottovoce.engines.processes import Child, sottovoce_command
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

TOWN = {"residents": 5, "venues": 1000, "districts": 2}
GRAM = {
    "name": "gram",
    "seed": 5,
    "town": TOWN,
    "algorithm": {"name": "gram", "popularity_share": 0.3},
    "release": {"epsilon": 8.0},
    "consent": {"epsilon": 4.0},
    "service": {"deadline_seconds": 60.0, "min_devices": 5},
    "link": {"min_devices": 3},
}
FPL = {
    "name": "fpl",
    "seed": 5,
    "town": TOWN,
    "algorithm": {"name": "fpl", "embedding_size": 20, "triples": 50, "rounds": 3},
    "release": {"name": "share-fraction"},
    "consent": {"share_positives": 0.5},
    "service": {"deadline_seconds": 60.0, "min_devices": 5},
}
EAR = """
import json, signal, sys
def tell(*_):
    with open({place!r}, "w") as out:
        json.dump(sorted(sys.modules), out)
signal.signal(signal.SIGUSR1, tell)
"""
"""For whoever wants to know what the agent has loaded; Python reads it at its start."""


@pytest.fixture(scope="module", autouse=True)
def installed():
    """As an installation has it: a process that compiles the package takes more for good."""
    assert compileall.compile_dir(Path(sottovoce.__file__).parent, quiet=2)


class OneAlone(HttpsTrial):
    """A trial in which one agent serves one device, and another one all others."""

    def _start_agents(self, url):
        stores = [self.store(row) for row in range(len(self.world.cohort))]
        ear = self.folder / "ear" / "sitecustomize.py"
        ear.parent.mkdir()
        ear.write_text(EAR.format(place=str(self.folder / "modules.json")))
        places = [str(ear.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        command = sottovoce_command("serve", "device", stores[0], "--server", url)
        log = self.folder / "logs" / "alone.log"
        self.agents.append(Child("the agent", command, log=log, environment=environment))
        self.agents.append(self._start("others", "serve", "device", *stores[1:], "--server", url))

    def modules(self):
        """What the agent of one device has loaded."""
        place = self.folder / "modules.json"
        os.kill(self.agents[0].process.pid, signal.SIGUSR1)
        until = time.monotonic() + 600
        while time.monotonic() < until:
            if place.exists() and (told := place.read_text()).endswith("]"):
                return set(json.loads(told))
            time.sleep(0.05)
        raise TimeoutError("the agent did not say what it has loaded")

    def memory(self):
        """Its resident pages, and those of them that are its own, in MB of 10⁶ bytes."""
        found = {}
        with open(f"/proc/{self.agents[0].process.pid}/smaps_rollup") as told:
            for line in told.readlines()[1:]:
                name, size, _ = line.split()
                found[name] = int(size) * 1024 / 1e6
        return found["Rss:"], found["Pss:"], found["Private_Clean:"] + found["Private_Dirty:"]


def served(table, rounds, folder):
    """Resident, proportional and own megabytes of the agent after so many rounds, and what it has
    loaded."""
    experiment = Experiment.from_table(table)
    prepared = experiment.prepared(experiment.dataset())
    made = federation_of(prepared)
    trial = OneAlone(world_of(experiment, prepared.dataset, made), folder, 2)
    with trial.running():
        trial.advance(rounds, lambda done: None)
        trial.gather()  # when all know the last model
        took = trial.memory()
        loaded = trial.modules()
    log = [json.loads(line) for line in (folder / "logs" / "alone.log").read_text().splitlines()]
    assert sum(event["event"] == "counted" for event in log) == rounds, "it took part"
    return took, loaded


HEAVY = {
    *("numba", "llvmlite", "scipy", "pyarrow", "sqlalchemy", "sqlite3", "uvicorn", "uvloop"),
    *("matplotlib", "pandas", "torch"),
}


@pytest.mark.parametrize(
    ("name", "table", "rounds", "most", "most_own"),
    [("gram", GRAM, 2, 90.0, 45.0), ("FPL", FPL, 3, 90.0, 45.0)],
)
def test_an_agent_takes_less_than_90_megabytes(name, table, rounds, most, most_own, tmp_path):
    (resident, _, own), loaded = served(table, rounds, tmp_path / "trial")
    # What is resident but shared depends on what else the machine does.
    print(f"\n{name}: {own:.1f} MB of its own, {resident:.1f} MB resident")
    assert not HEAVY & loaded
    assert own <= most_own
    assert resident <= most
