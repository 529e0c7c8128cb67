"""What operators are told to type works: the document's commands, the units, the containers."""

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

import pytest
import typer.main
from fake_server import FakeServer, Reply
from talk import until
from terminal import Terminal

from sottovoce.cli import app
from sottovoce.privacy.accountant import certify

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGES = (
    "index.md", "server.md", "users.md", "operating.md", "flower.md", "shuffler.md",
    "data-owners.md", "attributes.md", "secure-sums.md", "checked-sums.md", "tabs.md", "limits.md",
)  # fmt: skip
"""Of docs/deploy, in the order in which their commands are typed."""
PAGE = "\n".join((ROOT / "docs" / "deploy" / name).read_text() for name in PAGES)
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SECRETS = ("password", "token", "secret", "PGPASSWORD")
ROUNDS = 3
MOST_SECONDS = 800.0


# --- what the documents explain ------------------------------------------------------------------


def parse(words: list[str]) -> None:
    """Raises where the command line does not know these words."""
    command, used = typer.main.get_command(app), []
    context = command.make_context("sottovoce", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        used.append(words[len(used)])
        found = command.get_command(context, used[-1])
        assert found is not None, f"there is no `sottovoce {' '.join(used)}`"
        command = found
    command.make_context(words[len(used) - 1], words[len(used) :])


def test_the_rules_of_a_round_are_all_explained():
    from dataclasses import fields

    from sottovoce.parties.rounds import RoundRules

    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+|as below) \|", PAGE, re.MULTILINE))
    assert {rule.name: rule.default for rule in fields(RoundRules)} == {
        name: None if value == "as below" else float(value) for name, value in told.items()
    }


def test_every_reason_of_a_refusal_is_explained():
    from typing import get_args

    from sottovoce.wire.refusals import Reason

    section = PAGE.split("## What is refused", 1)[1].split("\n## ", 1)[0]
    told = {name for row in re.findall(r"\|([^|]+)\|$", section, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", row)}  # fmt: skip
    assert told == set(get_args(Reason))


def find_nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def require_nginx() -> None:
    if find_nginx() is None:
        if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
            pytest.fail("nginx is not installed")
        pytest.skip("nginx is not installed")


def experiment_text(place: int = 0) -> str:
    """Of the federation with item rows, or (1) of that with randomised reports."""
    return file_text(("places.toml", "reports.toml")[place])


def file_text(name: str) -> str:
    """What the document shows of a file, below a line that names it."""
    [text] = re.findall(rf"`{name}`[^\n]*:\n\n```toml\n(.*?)```", PAGE, re.DOTALL)
    return text


# --- the walk through the document ----------------------------------------------------------------


class Machines:
    """A folder for each machine, of which the first is the operator's, and what runs on them."""

    mark: str
    """Of the blocks of the document that were tried here."""
    people: tuple[str, ...] = ()
    """Each of them types what the document shows of the first."""
    ready: ClassVar[dict[str, str]] = {
        "server": "town/server.json", "operator": "town/server.json", "mixer": "mixer/proxy.json",
        "masker": "masks/masker.json",
    }  # fmt: skip
    """The files that are there when a machine's service listens."""

    def __init__(self, root: Path, names: tuple[str, ...]) -> None:
        self.root, self.names = root, names
        self.staying: dict[str, subprocess.Popen] = {}
        self.ports: dict[str, int] = {}
        """By address in the document."""
        self.listening: dict[str, str] = {}
        """The options by which machines say where they listen; any port where they are not here."""
        self.typed: list[str] = []
        """Every line that somebody has typed of the document."""
        for name in names:
            self.place(name).mkdir(exist_ok=True)

    def place(self, machine: str) -> Path:
        """Where commands are typed on this machine."""
        return self.root / machine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, trouble: type[BaseException] | None, *rest: object) -> None:
        """Everything that runs stops when it is told to, the last one first."""
        try:
            if trouble is None:
                codes = {machine: self.end(machine) for machine in reversed([*self.staying])}
                assert set(codes.values()) == {0}, codes
        finally:
            for child in self.staying.values():
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()

    def walk(self) -> dict[str, str]:
        """Every block that is marked as tried, in the order of the document, with real processes;
        what was said, by machine."""
        said = dict.fromkeys(self.names, "")
        for machine, stays, block in tried(self.mark):
            self.before(machine, block)
            for one in self.who(machine, block):
                if re.search(r"(--invitation|join \S+) invitation\.json", block):
                    # Handed over in confidence.
                    invitations = self.root / self.names[0] / "invitations"
                    shutil.move(min(invitations.iterdir()), self.root / one / "invitation.json")
                lines = block.replace("\\\n", " ").splitlines()
                self.typed += [line for line in lines if line.strip()]
                if stays == "types":
                    self.leave_running(one, self.on(one, block))
                    assert self.staying.pop(one).wait(timeout=120) == 0, self.log_file(
                        one
                    ).read_text()
                    said[one] += self.log_file(one).read_text()
                elif stays:
                    self.leave_running(one, self.on(one, block))
                else:
                    said[one] += self.run(one, self.on(one, block))
            self.after(block)
        return said

    def put_back(self) -> dict[str, str]:
        """What the document says of going back to a copy: each service is stopped, its backup put
        in its place, and everything there is its owner's alone; what was said, by machine."""
        said = {}
        for machine, _, block in tried(f"{self.mark} again"):
            if machine in self.staying:
                assert self.end(machine) == 0
            said[machine] = self.run(machine, self.on(machine, block))
            [(source, target)] = re.findall(r"restore (\S+) (\S+)", block)
            home = self.root / machine
            places = [home / place.removeprefix("~/") for place in (source, target)]
            places += home.glob(f"{places[1].name}.before-*")
            assert len(places) == 3
            for place in places:
                assert place.stat().st_mode & 0o777 == 0o700
            for path in [*places[0].rglob("*"), *places[1].rglob("*")]:
                assert not path.stat().st_mode & 0o077, path
        return said

    def before(self, machine: str, block: str) -> None:
        """What has to be there before the block is typed."""

    def after(self, block: str) -> None:
        """What is done with what the block has made."""

    def who(self, machine: str, block: str) -> tuple[str, ...]:
        """Those that type the block."""
        return self.people if machine in self.people[:1] else (machine,)

    def on(self, machine: str, block: str) -> str:
        """A block as it is typed where all machines are one."""
        for address, port in self.ports.items():
            block = block.replace(address, f"127.0.0.1:{port}")
        assert not re.search(r"example\.\w+:\d", block), block
        if machine in self.people:
            block = block.replace(self.people[0].title(), machine.title())
        # She types the digest that she has just been shown.
        digest = """$(sottovoce device agree ~/sottovoce | grep -oE -- '--terms [0-9a-f]{32}')"""
        block = block.replace("--terms DIGEST", digest)
        if "--agree DIGEST" in block:
            block = block.replace("--agree DIGEST", f"--agree {self.digest()}")
        return block.replace("--host 0.0.0.0", self.listening.get(machine, "--port 0"))

    def digest(self) -> str:
        """Of the terms, as people were told by another way."""
        from sottovoce.stores.server_folder import open_folder

        folder = self.place(self.names[0]) / "town"
        return open_folder(folder).plan.terms.digest()

    def environment(self, machine: str) -> dict[str, str]:
        programs = str(Path(sys.executable).parent)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SOTTOVOCE")}
        path = os.pathsep.join([programs, os.environ["PATH"]])
        return {**kept, "HOME": str(self.place(machine)), "PATH": path}

    def run(self, machine: str, block: str) -> str:
        lines = [line for line in block.splitlines() if _can_run(line)]
        done = subprocess.run(
            ["bash", "-euc", "\n".join(lines)],
            cwd=self.place(machine),
            env=self.environment(machine),
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout

    def told(self, machine: str, command: str) -> dict:
        return json.loads(self.run(machine, f"sottovoce {command} --json"))

    def ledger(self, owner: str) -> dict:
        return self.told(owner, "device ledger ~/sottovoce")

    def leave_running(self, machine: str, block: str) -> None:
        assert machine not in self.staying
        self.staying[machine] = self.start(machine, block)
        if machine in self.ready:
            ready = self.place(machine) / self.ready[machine]
            self.wait_for(ready.exists, machine, 180)
            if ready.name == "server.json":
                self.ports["recommender.example.org:8443"] = json.loads(ready.read_text())["port"]

    def start(self, machine: str, block: str) -> subprocess.Popen:
        with self.log_file(machine).open("w") as log:
            return subprocess.Popen(
                ["bash", "-euc", f"exec {block}"],
                cwd=self.place(machine),
                env=self.environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log_file(self, machine: str) -> Path:
        return self.place(machine) / "log"

    def wait_for(
        self, condition: Callable[[], bool], machine: str = "", seconds: float = 90.0
    ) -> None:
        """While the service of this machine, or of the operator's, goes on."""
        machine, end = machine or self.names[0], time.monotonic() + seconds
        log = self.log_file(machine)
        while not condition():
            assert self.staying[machine].poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def end(self, machine: str, how: signal.Signals = signal.SIGTERM) -> int:
        self.staying[machine].send_signal(how)
        code = self.staying[machine].wait(timeout=120)
        del self.staying[machine]
        return code

    def log(self, machine: str) -> list[dict]:
        lines = self.log_file(machine).read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, machine: str, event: str) -> list[dict]:
        return [line for line in self.log(machine) if line.get("event") == event]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def _can_run(line: str) -> bool:
    program = line.split()[0] if line.split() else ""
    return program != "curl" or shutil.which(program) is not None


def tried(mark: str) -> list[tuple[str, str, str]]:
    """Machine, whether it stays or somebody types answers, and the lines of every block that the
    document says was tried."""
    how = "(?:, (stays|types))?"
    return re.findall(rf"<!-- {mark}: (\w+){how} -->\n```bash\n(.*?)```", PAGE, re.DOTALL)


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def write_inputs(
    operator: Path, file: str, text: str, visitors: dict[str, int], visits: int
) -> None:
    """The experiment file and the catalogue of a town, and where its people have been: each to
    places of a kind of their own."""
    (operator / file).write_text(text)
    kinds = ("Museum", "Bakery", "Bookshop", "Park", "Theatre", "Cafe", "Market", "Gallery")
    places = "".join(f"p{n:03d},{kinds[n % 8]} {n // 8 + 1}\n" for n in range(240))
    (operator / "places.csv").write_text(f"item,title\n{places}")
    for owner, first in visitors.items():
        seen = "".join(f"p{(first + 8 * k):03d},{1760000000 + k}\n" for k in range(visits))
        (operator.parent / owner / "visits.csv").write_text(f"item,timestamp\n{seen}")


class TownMachines(Machines):
    mark = "tried"

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("server", "anna", "bruno"))
        quick = {"rounds = 100": f"rounds = {ROUNDS}", "poll_seconds = 60": "poll_seconds = 0.2"}
        text = changed(experiment_text(), quick)
        write_inputs(root / "server", "places.toml", text, {"anna": 0, "bruno": 5}, 25)
        (root / "server" / "new.csv").write_text("item,title\nq000,Kiosk 1\n")

    def before(self, machine: str, block: str) -> None:
        if "device recommend" in block:
            self.wait_for(lambda: len(self.events("anna", "counted")) == ROUNDS)
            self.wait_for(lambda: len(self.events("server", "round over")) == ROUNDS)


@pytest.mark.slow
def test_the_document_from_nothing_to_a_federation(tmp_path):
    with TownMachines(tmp_path) as machines:
        said = machines.walk()
        _check_owners(tmp_path, machines, said["anna"])
        _check_operator(tmp_path, said["server"])
        assert set(machines.staying) == {"server", "anna", "bruno"}
        _check_copies(machines)
    assert not (tmp_path / "server" / "town" / "server.json").exists()
    assert machines.log("server")[-1]["event"] == "stopped"


def _check_owners(root: Path, machines: Machines, anna: str) -> None:
    assert "Anna: takes no part, so nothing leaves." in anna
    assert "Anna: takes part. Of the things in the history, 30% may be used." in anna
    assert "It can work out what you have, and what you like." in anna
    assert "release.name = share-fraction" in anna
    assert "Recommended to Anna" in anna
    left = rf"What left this device: \S+ (?:kB|bytes) in {ROUNDS} messages\.\n"
    assert re.search(rf"{left}It had numbers for your things [1-9]\d* times", anna)
    *_, choice, copied, keys = anna.rstrip().splitlines()
    assert choice.endswith("Anna: takes no part, so nothing leaves.")
    assert re.search(r"/sottovoce-backup: a store, 2 files, ", copied)
    assert keys.startswith("Its keys are in it: guard it like ")
    assert (root / "anna" / "everything.jsonl").stat().st_mode & 0o077 == 0
    assert not (root / "anna" / "invitation.json").exists()
    # She has withdrawn; more rounds were asked for since, and nothing more has left.
    assert machines.ledger("anna")["totals"]["releases"] == ROUNDS
    bruno = machines.ledger("bruno")["totals"]
    assert bruno["positive_rows"] == 0
    assert bruno["negative_rows"] > 0


def _check_operator(root: Path, said: str) -> None:
    assert f"Round {ROUNDS} of {ROUNDS}, attempt 0: finished" in said
    assert "2 invitation(s) to https://" in said
    assert f"120 rounds to run; before, {ROUNDS}\n" in said
    assert "Shut out: 1\nShut out: nobody" in said
    assert re.search(r"1  \w+ .*  Bruno, by the river\n", said)
    assert said.index("No new round is opened") < said.index("Rounds go on; they were paused")
    assert "240 items, 1 that is gone, 23 places to spare" in said
    assert "algorithm.triples = 30" in said
    assert re.search(r"\(command\): rounds paused: new disk\n", said)
    assert "The server's certificate is new; restart the server, or send it SIGHUP." in said
    if shutil.which("curl"):
        assert f"sottovoce_round {ROUNDS}.0" in said
    assert "Its keys are in it: guard it like town itself." in said


def _check_copies(machines: Machines) -> None:
    assert "stop that one" in machines.run(
        "server", "(sottovoce restore town-backup town 2>&1 || true)"
    )
    at = machines.told("server", "serve status town")["round"]
    said = machines.put_back()
    assert f"It goes on with round {at + 1} from the model of the copy" in said["server"]
    assert "stays in their ledgers and stays spent" in said["server"]
    assert "Nobody in it takes part until its owner says so again" in said["anna"]
    machines.leave_running("server", "sottovoce serve server town --port 0")
    found = machines.told("server", "serve status town")
    assert (found["round"], found["enrolled"], found["target"]) == (at + 1, 2, 120)
    machines.leave_running("anna", "sottovoce serve device ~/sottovoce")
    assert machines.ledger("anna")["totals"]["releases"] == ROUNDS
    choice = machines.told("anna", "device consent ~/sottovoce")["choice"]
    assert not choice["takes_part"]


# --- few commands ---------------------------------------------------------------------------------
ANSWERED = re.compile(r"^ *([^\n]*?(?:\[y/N\]|1-\d|Enter\))): ?(\S*)$", re.MULTILINE)


def answers(mark: str, machine: str) -> list[tuple[str, str]]:
    """What the document shows as typed at questions, below the commands of this machine."""
    text = "\n" + re.split(rf"<!-- {mark}: {machine}, \w+ -->\n", PAGE, maxsplit=1)[1]
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if kind == "text" and (found := ANSWERED.findall(block)):
            return found
    return []


class FewCommands(Machines):
    """Everybody types on a terminal, in one folder; it is counted and timed."""

    most: int

    def __init__(self, root: Path, names: tuple[str, ...]) -> None:
        super().__init__(root, names)
        self._began = time.monotonic()
        for name in ("town", "films", "readers"):
            shutil.copytree(ROOT / "examples" / name, root / "examples" / name)

    def place(self, machine: str) -> Path:
        return self.root

    def log_file(self, machine: str) -> Path:
        return self.root / f"{machine}.log"

    def start(self, machine: str, block: str) -> subprocess.Popen:
        return Terminal(
            ["bash", "-euc", f"exec {block}"],
            self.log_file(machine),
            answers(self.mark, machine),
            cwd=self.root,
            env=self.environment(machine),
        )

    def require_little(self) -> None:
        """It took no more commands than the document says."""
        taken = time.monotonic() - self._began
        print(f"{self.mark}: {len(self.typed)} commands in {taken:.0f} seconds")
        assert len(self.typed) <= self.most, self.typed


def nobody_left(root: Path) -> list[str]:
    """Processes whose command line names this folder, or that work in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(root) in str((place / "cwd").readlink()):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


class FirstMachine(FewCommands):
    mark, most = "first", 8
    ready: ClassVar[dict[str, str]] = {"town": "town/server/server.json"}

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("town", "anna", "bruno", "carla"))

    def on(self, machine: str, block: str) -> str:
        return block.replace(" --yes", " --yes --port 0 --helper-port 0")

    def before(self, machine: str, block: str) -> None:
        if "serve status" in block:
            log = self.root / "town" / "logs" / "server.log"
            self.wait_for(lambda: log.read_text().count('"round over"') == 3)
            self.wait_for(lambda: kept_model(self.root / "anna") == 3)


def kept_model(store: Path) -> int | None:
    """The version that a device recommends by; it fetches the newest at its next visit."""
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession

    with CohortStore.open(store, readonly=True) as opened:
        return DeviceSession(opened).model_round()


def releases(store: Path) -> list[tuple[int, float]]:
    """Round and cost of what has left."""
    from sottovoce.stores.device import CohortStore

    with CohortStore.open(store, readonly=True) as opened:
        rows = opened.ledger_rows(None).to_pylist()
    return [(row["round"], row["epsilon"]) for row in rows]


@pytest.mark.slow
def test_three_devices_in_few_commands(tmp_path):
    with FirstMachine(tmp_path) as machine:
        said = machine.walk()["town"]
        machine.require_little()
        assert "Round 3 of 3, attempt 0: finished\nDevices: 3 enrolled, 3 active" in said
        assert said.count("3 of 3 reported; missing: nobody") == 3
        assert "Recommended to me" in said
        for owner in ("anna", "bruno", "carla"):
            log = machine.log_file(owner).read_text()
            assert log.index("Who sees what:") < log.index("Agree to these terms?")
            assert log.index("Take part? [y/N]: y") < log.index('"serving"')
            left = releases(tmp_path / owner)
            assert [round for round, _ in left] == [0, 1, 2]
            assert sum(cost for _, cost in left) == pytest.approx(4.0)
        digest = re.search(r"have the digest (\w{32})", machine.log_file("town").read_text())
        assert digest is not None
        assert digest[1] in machine.log_file("anna").read_text(), "both see the same terms"
    assert nobody_left(tmp_path) == []


class DriftMachine(FewCommands):
    """An orchestrator, two data owners and three users."""

    mark, most = "drift", 10
    ready: ClassVar[dict[str, str]] = {"films": "films/orchestrator.json"}

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("films", "cineclub", "library", "ines", "jonas", "kim"))
        self.all_ports = users, gateway, link, *self.owned = free_ports(5)
        self.more = f" --port {users} --gateway-port {gateway} --superlink-port {link}"

    def on(self, machine: str, block: str) -> str:
        for written, port in zip(("8445", "8455"), self.owned, strict=True):
            block = block.replace(f"localhost:{written}", f"localhost:{port}")
            block = block.replace(f" --port {written}", "")
        block = block.replace("--stay", f"--stay{self.more}")
        for name, port in zip(("cineclub", "library"), self.owned, strict=True):
            block = block.replace(
                f"--wait-for {name}-admission.json",
                f"--wait-for {name}-admission.json --port {port}",
            )
        return block

    def before(self, machine: str, block: str) -> None:
        if "--admit" in block:
            for owner in ("cineclub", "library"):
                there = self.root / owner / "application.json"
                self.wait_for(there.exists, owner)
                assert not (self.root / owner / "owner.json").exists(), "not admitted yet"
        if "device join" in block:
            for owner in ("cineclub", "library"):
                self.wait_for((self.root / owner / "owner.json").exists, owner)
        if "serve status" in block:
            self.wait_for(self.all_updated)

    def all_updated(self) -> bool:
        from sottovoce.services.orchestrator import stands
        from sottovoce.stores.orchestrator_folder import open_orchestrator_folder

        with contextlib.closing(open_orchestrator_folder(self.root / "films").store()) as store:
            return all(owner["counted"] >= 0 for owner in stands(store)["owners"])


@pytest.mark.slow
def test_data_owners_in_few_commands(tmp_path):
    require_nginx()
    with DriftMachine(tmp_path) as machine:
        said = machine.walk()
        machine.require_little()
        assert "Cineclub is data owner 0, with 32 items" in said["films"]
        assert "Users: 3 enrolled, 0 have left" in said["films"]
        assert "Recommended to you" in said["films"]
        for owner in ("cineclub", "library"):
            log = machine.log_file(owner).read_text()
            assert log.index("waits since") < log.index("is data owner") < log.index('"listening"')
        for user in ("ines", "jonas", "kim"):
            assert "Take part? [y/N]: y" in said[user]
            assert re.search(r"[1-9]\d* messages arrived. 0 messages wait", said[user])
    assert nobody_left(tmp_path) == []
    for port in machine.all_ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


class FlowerMachine(FewCommands):
    """An operator and three organisations, whose gateways are there before they are let in."""

    mark, most = "flower", 10
    ready: ClassVar[dict[str, str]] = {"readers": "readers/server/superlink.json"}

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("readers", "library", "school", "club"))
        self.all_ports = link, helper, self.gateway = free_ports(3)
        self.more = f" --port {link} --helper-port {helper} --gateway-port {self.gateway}"

    def on(self, machine: str, block: str) -> str:
        block = block.replace("localhost:9092", f"localhost:{self.gateway}")
        return block.replace(" --yes", f" --yes{self.more}")

    def before(self, machine: str, block: str) -> None:
        if "serve flower" in block:  # it knows none of them
            log = self.log_file("club")
            self.wait_for(lambda: "does not let this node in" in log.read_text(), "club")


@pytest.mark.slow
def test_organisations_on_flower_in_few_commands(tmp_path):
    require_nginx()
    with FlowerMachine(tmp_path) as machine:
        said = machine.walk()
        machine.require_little()
        assert "Round 3 of 3: finished\nNodes: 3, devices that take part: 33" in said["readers"]
        assert said["readers"].count("33 of 33 reported; missing: nobody") == 3
        assert "Recommended to l00" in said["readers"]
        for name in ("library", "school", "club"):
            assert "11 take part." in said[name]
            log = machine.log_file(name).read_text()
            asked = log.index("Agree to these terms?")
            assert log.index("waits since") < log.index("connected at") < asked
            assert log.index("Who sees what:") < asked
            assert sorted({round for round, _ in releases(tmp_path / name)}) == [0, 1, 2]
    assert nobody_left(tmp_path) == []
    for port in machine.all_ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


# --- with a proxy ---------------------------------------------------------------------------------

OWNERS = ("carla", "dario", "elena", "fabio", "gaia", "hugo")
"""The first three permit ε = 1, the others 2.5; every limit has room for three rounds."""


class ProxyMachines(Machines):
    """The machines of a federation with a proxy, whose address is in the terms before it runs."""

    mark, people = "reports", OWNERS

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("operator", "mixer", *OWNERS))
        [port] = free_ports(1)
        self.ports["proxy.example.net:8444"] = port
        self.listening["mixer"] = f"--port {port} --goal 3"
        text = experiment_text(1).replace("min_devices = 100", "min_devices = 3")  # of both tiers
        text = changed(text, {"min_devices = 200": "min_devices = 6", "= 600\n": "= 0.3\n"})
        visitors = {owner: place for place, owner in enumerate(OWNERS)}
        write_inputs(root / "operator", "reports.toml", text, visitors, 12)

    def on(self, machine: str, block: str) -> str:
        if machine in OWNERS[3:]:
            block = block.replace(
                "--epsilon 1 --total-epsilon 60", "--epsilon 2.5 --total-epsilon 150"
            )
        return super().on(machine, block)

    def before(self, machine: str, block: str) -> None:
        if "--introduction" in block:
            shutil.move(self.root / "operator" / "introduction.json", self.root / "mixer")
        if "device status" in block:
            for owner in OWNERS:
                self.wait_for(lambda owner=owner: len(self.events(owner, "counted")) == 3)

    def after(self, block: str) -> None:
        if "keys init" in block:
            ca = self.root / "mixer" / "mixer" / "keys" / "ca.crt"
            shutil.copy(ca, self.root / "operator" / "proxy.crt")


@pytest.mark.slow
def test_the_document_from_nothing_to_a_federation_with_a_proxy(tmp_path):
    """By a server, a proxy and six devices; then budgets that are used up stay so when agents are
    started again, with the clock moved."""
    with ProxyMachines(tmp_path) as machines:
        _check_reports(machines, machines.walk())
        _check_moved_clocks(machines)
        said = machines.put_back()["mixer"]
        assert re.search(r"It takes nothing for rounds before round \d+\.", said)
        machines.leave_running(
            "mixer", machines.on("mixer", "sottovoce serve shuffler mixer --host 0.0.0.0")
        )


def _check_reports(machines: ProxyMachines, said: dict[str, str]) -> None:
    assert "release.max_reports = 20" in said["carla"]
    limit = said["carla"].index("This protects nothing. With a limit of 60,")
    assert limit < said["carla"].index("In all, for ever: at most 60."), "said after it was set"
    assert "Your limit of 60 lasts for 3 more rounds." in said["carla"]
    assert "60 of 60 used. There is no room for another round" in said["carla"]
    assert "ε = 60 of 60 spent, 100 %, no further round fits" in said["carla"]
    assert "Recommended to Carla" in said["carla"]
    assert "devices in batches" in said["operator"]
    assert "missing" not in said["operator"]
    assert re.search(r"The next round uses the report key [0-9a-f]+", said["operator"])
    if shutil.which("curl"):
        assert "sottovoce_proxy_accounts 6.0" in said["mixer"]
        handed = re.findall(r'_devices_total\{[^}]*"handed[^}]*\} ([\d.]+)', said["mixer"])
        assert sum(map(float, handed)) == 18.0
    names = "|".join(OWNERS)
    for machine in ("operator", "mixer"):
        log = (machines.root / machine / "log").read_text()
        assert not re.search(rf"{names}|sender|account", log, re.IGNORECASE)
    for place, owner in enumerate(OWNERS):
        each = 1.0 if place < 3 else 2.5
        told = machines.ledger(owner)
        # What the ledger sums up is what left, and both certificates are the accountant's.
        assert told["totals"]["reports"] == 60
        assert told["totals"]["epsilon"] == sum(line["epsilon"] for line in told["lines"])
        expected = certify(each, 20, 3, 3)
        proved = told["budget"]["certificates"]
        assert proved["without_proxy"]["epsilon"] == expected.without_proxy == 60 * each
        assert proved["with_proxy"]["epsilon"] == pytest.approx(expected.with_proxy, rel=1e-9)


def _check_moved_clocks(machines: ProxyMachines) -> None:
    """A round is open and everyone's budget is used up: agents that start anew send nothing, a day
    ago or in a year."""
    status = machines.told("operator", "serve status town")
    assert (status["state"], status["round"]) == ("open", 3)
    for owner in OWNERS:
        assert machines.end(owner) == 0
    before = machines.ledger("carla")
    clocks = [""]
    if shutil.which("faketime"):
        clocks += ["faketime -f -20h ", "faketime -f +365d "]
    for clock in clocks:
        machines.run("carla", f"{clock}sottovoce serve device ~/sottovoce --once")
        assert machines.ledger("carla") == before
    held = machines.run("mixer", machines.on("mixer", tried("reports")[-1][2]))
    assert not re.findall(r"_held\{[^}]*\} [1-9]", held)
    # The agent goes on as soon as she permits more, and not before.
    machines.run("carla", "sottovoce device consent ~/sottovoce --total-epsilon 79")
    machines.run("carla", "sottovoce serve device ~/sottovoce --once")
    assert machines.ledger("carla")["totals"] == before["totals"]
    machines.run("carla", "sottovoce device consent ~/sottovoce --total-epsilon 80")
    machines.run("carla", "sottovoce serve device ~/sottovoce --once")
    assert machines.ledger("carla")["totals"]["epsilon"] == 80.0


# --- with a secure sum ----------------------------------------------------------------------------

SUMMED = ("gina", "hans", "ilse")


class SumMachines(Machines):
    """The machines of a federation that adds up what nobody reads."""

    mark, people = "sums", SUMMED

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("operator", "masker", *SUMMED))
        [self.port] = free_ports(1)
        self.ports["masks.example.net:8447"] = self.port
        self.listening["masker"] = f"--port {self.port}"
        text = changed(
            sums_text(),
            {
                "min_devices = 50 ": "min_devices = 2 ",
                "min_devices = 100 ": "min_devices = 3 ",
                "rounds = 100\n": f"rounds = {ROUNDS}\n",
                "poll_seconds = 60\n": "poll_seconds = 0.2\n",
            },
        )
        visitors = {owner: place for place, owner in enumerate(SUMMED)}
        write_inputs(root / "operator", "sums.toml", text, visitors, 12)

    def before(self, machine: str, block: str) -> None:
        if "--introduction" in block:
            shutil.move(self.root / "operator" / "introduction.json", self.root / "masker")
        if "device ledger" in block:
            self.wait_for_round("round over", ROUNDS - 1)

    def after(self, block: str) -> None:
        if "--init" in block:
            masks = self.root / "masker" / "masks"
            shutil.copy(masks / "keys" / "ca.crt", self.root / "operator" / "proxy.crt")
            shutil.copy(masks / "seal.pub", self.root / "operator" / "proxy.pub")

    def wait_for_round(self, event: str, round: int) -> None:
        self.wait_for(
            lambda: any(line.get("round") == round for line in self.events("operator", event))
        )


def sums_text() -> str:
    return file_text("sums.toml")


@pytest.mark.slow
def test_the_document_from_nothing_to_a_federation_with_a_secure_sum(tmp_path):
    """By a server, a proxy and three devices; then a round waits for a proxy that was killed, and
    is folded when it is back."""
    with SumMachines(tmp_path) as machines:
        _check_sums(machines, machines.walk())
        _check_a_proxy_that_was_away(machines)
        _check_a_proxy_that_was_put_back(machines)


def _check_sums(machines: SumMachines, said: dict[str, str]) -> None:
    gina = said["gina"]
    assert "link.name = secure-sum" in gina
    assert "the sum over at least 2 devices, and the proxy tells one such sum in a round" in gina
    assert "Gina: takes part. Of the things in the history, 50% may be used." in gina
    assert f"Round {ROUNDS} of {ROUNDS}, attempt 0: finished" in said["operator"]
    assert "3 of 3 reported; missing: nobody" in said["operator"]
    if shutil.which("curl"):
        assert f"sottovoce_masker_sums_total {ROUNDS}.0" in said["masker"]
    sent = set()
    for owner in SUMMED:
        ledger = machines.ledger(owner)
        assert ledger["totals"]["releases"] == ROUNDS
        sent |= {line["bytes"] for line in ledger["lines"]}
        log = (machines.root / "masker" / "log").read_text()
        assert owner not in log.lower()
    # Every number of the model, and the sealed seed with its signature: the same from everybody.
    assert sent == {240 * 17 * 8 + 176}


def _check_a_proxy_that_was_away(machines: SumMachines) -> None:
    masks = machines.root / "masker" / "masks"
    machines.end("masker", signal.SIGKILL)
    machines.run("operator", f"sottovoce serve target town --rounds {ROUNDS + 1}")
    machines.wait_for_round("round is closing", ROUNDS)
    told = masks / "answered.json"
    kept = told.rename(masks.parent / "answered.json")
    again = f"sottovoce serve helper masks --port {machines.port}"
    refused = f"({again} 2>&1 || true)"
    assert "could tell a second one" in machines.run("masker", refused)
    kept.rename(told)
    machines.leave_running("masker", again)
    machines.wait_for_round("round over", ROUNDS)
    found = machines.told("operator", "serve status town")
    assert (found["state"], found["round"], found["refused"]) == ("finished", ROUNDS + 1, {})


def _check_a_proxy_that_was_put_back(machines: SumMachines) -> None:
    """It goes on where it was; and where its folder is lost, somebody has to say where."""
    said = machines.put_back()["masker"]
    assert f"The first round of which it tells a sum is {ROUNDS + 1}." in said
    again = f"sottovoce serve helper masks --port {machines.port}"
    machines.leave_running("masker", again)
    machines.run("operator", f"sottovoce serve target town --rounds {ROUNDS + 2}")
    machines.wait_for_round("round over", ROUNDS + 1)
    machines.end("masker")
    shutil.rmtree(machines.root / "masker" / "masks")
    lost = "(sottovoce restore masks-backup masks 2>&1 || true)"
    assert "with --next-round" in machines.run("masker", lost)
    machines.run("masker", "sottovoce restore masks-backup masks --next-round 120")
    machines.leave_running("masker", again)
    machines.run("operator", f"sottovoce serve target town --rounds {ROUNDS + 3}")
    machines.wait_for_round("round given up", ROUNDS + 2)
    found = machines.told("operator", "serve status town")
    assert (found["round"], found["refused"]) == (ROUNDS + 3, {"sum_refused": 1})


# --- with a checked sum ---------------------------------------------------------------------------

CHECKED = ("jana", "karl", "lena")
AGGREGATORS = ("one", "two")


class CheckedMachines(Machines):
    """The machines of three organisations that check what none of them reads."""

    mark, people = "checked", CHECKED
    ready: ClassVar[dict[str, str]] = {
        **Machines.ready, **dict.fromkeys(AGGREGATORS, "sums/aggregator.json"),
    }  # fmt: skip

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("operator", *AGGREGATORS, *CHECKED))
        for name, end, port in zip(AGGREGATORS, ("net", "com"), free_ports(2), strict=True):
            self.ports[f"sums.example.{end}:8448"] = port
            self.listening[name] = f"--port {port}"
        text = file_text("checked.toml")
        quick = {
            "min_devices = 50 ": "min_devices = 2 ",
            "min_devices = 100 ": "min_devices = 3 ",
            "poll_seconds = 60\n": "poll_seconds = 0.2\n",
        }
        visitors = {owner: place for place, owner in enumerate(CHECKED)}
        write_inputs(root / "operator", "checked.toml", changed(text, quick), visitors, 12)

    def who(self, machine: str, block: str) -> tuple[str, ...]:
        return AGGREGATORS if machine == AGGREGATORS[0] else super().who(machine, block)

    def on(self, machine: str, block: str) -> str:
        if machine == AGGREGATORS[1]:
            block = block.replace("town-1", "town-2")
        return super().on(machine, block)

    def before(self, machine: str, block: str) -> None:
        operator = self.root / "operator"
        if "--introduction" in block:
            for number, name in enumerate(AGGREGATORS, 1):
                shutil.move(operator / f"town-{number}.json", self.root / name)
        if "serve status" in block:
            self.wait_for(lambda: len(self.events("operator", "round over")) == 2)

    def after(self, block: str) -> None:
        if "--init" in block:
            for name, end in zip(AGGREGATORS, ("net", "com"), strict=True):
                sums, operator = self.root / name / "sums", self.root / "operator"
                shutil.copy(sums / "keys" / "ca.crt", operator / f"{end}.crt")
                shutil.copy(sums / "seal.pub", operator / f"{end}.pub")


@pytest.mark.slow
def test_the_document_from_nothing_to_a_federation_with_a_checked_sum(tmp_path):
    """By a server, two aggregators and three devices."""
    with CheckedMachines(tmp_path) as machines:
        said = machines.walk()
        assert "Round 2 of 2, attempt 0: finished" in said["operator"]
        assert "3 of 3 reported; missing: nobody" in said["operator"]
        jana = said["jana"]
        assert "Any two of them together read everything." in jana
        assert "Each of the three adds half of the noise" in jana
        for name, port in machines.ports.items():
            assert ("sums" not in name) or f"https://127.0.0.1:{port}" in jana
        for owner in CHECKED:
            lines = machines.ledger(owner)["lines"]
            assert [line["round"] for line in lines] == [0, 1]
            assert lines[0]["bytes"] == 4 * (4 * 241 + 13) + 560
            for name in AGGREGATORS:
                assert owner not in (machines.root / name / "log").read_text().lower()


# --- with data owners -----------------------------------------------------------------------------

USERS = ("ines", "jonas")
"""Jonas refuses nobody, and stays."""
FILMS = [
    f"{kind} {place + 1} ({1950 + 6 * place + at})"
    for place in range(10)
    for at, kind in enumerate(("Comedy", "Drama", "Western", "Musical", "Thriller", "Fantasy"))
]
SCREENED, DISCS, RATED = FILMS[:36], FILMS[30:], {"ines": FILMS[:48], "jonas": FILMS[12:57]}


class OwnerMachines(Machines):
    """The machines of a federation of data owners; all ports are known before anything runs."""

    mark, people = "owners", USERS
    ready: ClassVar[dict[str, str]] = {
        "operator": "films/orchestrator.json", "cineclub": "cineclub/owner.json",
        "library": "library/owner.json",
    }  # fmt: skip

    def __init__(self, root: Path) -> None:
        super().__init__(root, ("operator", "cineclub", "library", *USERS))
        self.all_ports = users, gateway, link, cineclub, library = free_ports(5)
        self.ports = {
            "recommender.example.org:8446": users,
            "recommender.example.org:9092": gateway,
            "films.cineclub.example.net:8445": cineclub,
            "discs.library.example.net:8445": library,
        }
        self.listening = {
            "operator": f"--port {users} --gateway-port {gateway} --superlink-port {link}",
            "cineclub": f"--port {cineclub}",
            "library": f"--port {library}",
        }
        write_films(root)

    def on(self, machine: str, block: str) -> str:
        if machine == "jonas":
            block = block.replace(" --refuse Library", "")
        return super().on(machine, block.replace("--every 300", "--every 1"))

    def who(self, machine: str, block: str) -> tuple[str, ...]:
        return (machine,) if "device leave" in block else super().who(machine, block)

    def before(self, machine: str, block: str) -> None:
        self.hand_over(block)
        if "serve status" in block and machine == "operator" and "--remove" not in block:
            self.wait_for(self.all_learnt, seconds=240)
        if "device leave" in block:
            _check_while_all_are_there(self)

    def all_learnt(self) -> bool:
        """Whether all that users have told both data owners has been learnt from."""
        found = [self.status(owner) for owner in ("cineclub", "library")]
        return all(
            one["updates"]["counted"] > 0 and not one["held"]["waiting"] | one["held"]["asked"]
            for one in found
        )

    def status(self, machine: str) -> dict:
        return self.told(machine, f"serve status {'films' if machine == 'operator' else machine}")

    def shown(self, user: str) -> dict:
        found = self.told(user, "device status ~/films")
        return {**found, "owners": {one["owner"]: one for one in found["owners"]}}

    def hand_over(self, block: str) -> None:
        """Files that the document says go from one to another."""
        operator = self.root / "operator"
        for owner in ("cineclub", "library"):
            here, admission = self.root / owner, operator / f"{owner}-admission.json"
            if f"owner {owner} --make" in block or f"owner {owner} --add-items" in block:
                shutil.copy(operator / "films" / "federation.json", here)
            if f"owner {owner} --admission" in block:
                shutil.copy(admission, here / "admission.json")
            if f"--admit {owner}.json" in block:
                shutil.copy(here / owner / "application.json", operator / f"{owner}.json")


@pytest.mark.slow
def test_the_document_from_nothing_to_a_federation_of_data_owners(tmp_path):
    """By an orchestrator, two data owners and two users, of whom one refuses an owner and leaves in
    the end."""
    require_nginx()
    with OwnerMachines(tmp_path) as machines:
        _check_words_of_owners(machines, machines.walk())
        _check_after_leaving(machines)
        _check_copies_of_owners(machines)
    for port in machines.all_ports:  # also of what they had started themselves
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def write_films(root: Path) -> None:
    def listed(place: Path, items: list[str]) -> None:
        place.write_text("\n".join(["item", *items]) + "\n")

    listed(root / "operator" / "films.csv", FILMS)
    listed(root / "operator" / "new-films.csv", ["Opera 1 (2020)", "Opera 2 (2021)"])
    listed(root / "cineclub" / "screened.csv", SCREENED)
    listed(root / "library" / "discs.csv", DISCS)
    listed(root / "library" / "arrivals.csv", ["Opera 1 (2020)", "Opera 2 (2021)"])
    listed(root / "library" / "lost.csv", ["Opera 2 (2021)"])
    for user, items in RATED.items():
        lines = [f"{item},{5 if n % 3 else 2},{1760000000 + n}" for n, item in enumerate(items)]
        text = "\n".join(["item,rating,timestamp", *lines]) + "\n"
        (root / user / "ratings.csv").write_text(text)


def _check_while_all_are_there(machines: OwnerMachines) -> None:
    ines, jonas = machines.shown("ines"), machines.shown("jonas")
    there = machines.status("operator")
    assert (there["users"], there["left"], there["running"]) == (2, 0, True)
    assert all(owner["counted"] >= 0 for owner in there["owners"])
    assert {ines["number"], jonas["number"]} == {0, 1}
    # Each owner has been told what it may be told, the end of the stream, one thing since, no more.
    hers, his = (
        [len({*RATED[user]} & {*held}) for held in (SCREENED, DISCS)] for user in USERS
    )  # fmt: skip
    assert hers == [36, 18]
    assert ines["owners"]["Cineclub"]["interactions_left"] == 36 + 1
    assert ines["owners"]["Library"]["bytes"] == ines["owners"]["Library"]["epsilon"] == 0
    assert ines["owners"]["Cineclub"]["epsilon"] is None
    assert jonas["owners"]["Library"]["interactions_left"] == his[1]
    cineclub, library = machines.status("cineclub"), machines.status("library")
    assert cineclub["messages"]["taken"] == 36 + 1 + his[0] + 1 + 2
    assert (library["messages"]["taken"], library["held"]["users"]) == (his[1] + 1, 1)
    assert (cineclub["held"]["users"], library["items"]) == (2, len(DISCS) + 1)


def _check_after_leaving(machines: OwnerMachines) -> None:
    ines = machines.shown("ines")
    assert (ines["left_federation"], ines["takes_part"]) == ("done", False)
    assert machines.status("cineclub")["held"]["users"] == 1
    there = machines.status("operator")
    assert (there["users"], there["left"]) == (1, 1)
    assert [owner["name"] for owner in there["owners"]] == ["Cineclub"]


def _check_copies_of_owners(machines: OwnerMachines) -> None:
    before = machines.status("operator")
    said = machines.put_back()
    assert "Users who left since have left the copy, too." in said["operator"]
    assert "their stores do not send it again" in said["cineclub"]
    there = machines.status("operator")
    assert (there["users"], there["left"]) == (1, 1)
    assert there["round"] > before["round"]
    assert machines.status("cineclub")["held"]["users"] == 1


def _check_words_of_owners(machines: OwnerMachines, said: dict[str, str]) -> None:
    assert re.search(r"films holds the federation films-\w{8}, 60 items\.", said["operator"])
    assert "Cineclub is data owner 0, with 36 items" in said["operator"]
    assert "Library is data owner 1, with 30 items" in said["operator"]
    assert "2 invitation(s) to https://" in said["operator"]
    assert "0 Cineclub: 36 items, last update in round" in said["operator"]
    assert "2 new item(s), 62 in all" in said["operator"]
    assert "Library is not part of the federation any more" in said["operator"]
    assert "Cineclub is data owner 0 of the federation films-" in said["cineclub"]
    assert "its service runs" in said["cineclub"]
    assert "Part in the orchestrator's rounds: running" in said["cineclub"]
    assert "Library holds 32 items now" in said["library"]
    assert "Library holds 31 items now" in said["library"]
    if shutil.which("curl"):
        assert re.search(r"^sottovoce_owner_\w+", said["cineclub"], re.MULTILINE)
    ines = said["ines"]
    assert "You do not take part: nothing leaves.\nIf you took part, who would see what:" in ines
    assert "It can work out whether you liked them." in ines
    assert "The data owner Library: Is refused and told nothing." in ines
    told = "36 messages go to data owners. So does one that says that this is all. "
    told += "12 things that you did stay here."
    assert f"{told}\n37 messages arrived. 0 messages wait.\n" in ines
    forgets = "Asked to forget you: Cineclub.\nOne message arrived. 0 messages wait.\n"
    assert forgets in ines
    assert "Nobody has anything of you to forget." in ines
    assert "You have left the federation. The store stays with you." in ines
    best = ines.split("Recommended to you", 1)[1].split("arrived", 1)[0]
    recommended = [film for film in FILMS if f" {film} " in best]
    assert len(recommended) == 3
    assert not {*recommended} & {*RATED["ines"]}
    assert not (machines.root / "ines" / "invitation.json").exists()
    for machine in ("operator", "cineclub", "library"):
        log = (machines.root / machine / "log").read_text()
        assert not any(film in log for film in FILMS)
        assert not re.search(r"\b(ines|jonas|user)\b", log, re.IGNORECASE)


# --- units ----------------------------------------------------------------------------------------


def read_unit(path: Path) -> dict[str, list[str]]:
    """Every setting of a unit with its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith(("#", "[")):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def test_there_is_a_unit_for_every_service():
    first = [f"sottovoce-{name}" for name in ("aggregator", "device", "helper", "orchestrator")]
    second = [f"sottovoce-{name}" for name in ("owner", "server", "shuffler")]
    third = [f"sottovoce-{name}" for name in ("superlink", "supernode")]
    assert [path.stem for path in UNITS] == [*first, *second, *third]
    told = (DEPLOY / "README.md").read_text()
    assert all(f"`systemd/{path.name}`" in told for path in UNITS)


HARDENING = {
    **dict.fromkeys(("NoNewPrivileges", "PrivateTmp", "LockPersonality"), "yes"),
    **dict.fromkeys(("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"), "yes"),
    **dict.fromkeys(("ProtectKernelTunables", "ProtectControlGroups"), "yes"),
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    # What was held in memory must not be left on a disk.
    "LimitCORE": "0",
    "MemorySwapMax": "0",
    "RestartPreventExitStatus": "2",
}
HARDENING_OF_SERVICES = {
    **dict.fromkeys(("ProtectHome", "PrivateDevices", "ProtectClock", "ProtectHostname"), "yes"),
    **dict.fromkeys(("ProtectKernelModules", "ProtectKernelLogs", "RemoveIPC"), "yes"),
    "ProtectProc": "invisible",
    "CapabilityBoundingSet": "",
    "StateDirectoryMode": "0700",
}
"""What a unit of a user's own cannot have, or not in every release of systemd."""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_every_unit_has_the_whole_set_of_locks(path):
    unit = read_unit(path)
    wanted = {**HARDENING}
    if path.stem == "sottovoce-device":
        wanted |= {"PrivateUsers": "yes", "ProtectHome": "read-only"}
    else:
        wanted |= HARDENING_OF_SERVICES
    assert {name: unit.get(name) for name in wanted} == {n: [v] for n, v in wanted.items()}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_start_what_there_is_and_lock_it_in(path):
    unit = read_unit(path)
    [start] = unit["ExecStart"]
    program, *words = shlex.split(start)
    assert program.endswith("/bin/sottovoce")
    parse(words)
    assert not any(secret in start for secret in SECRETS)
    assert unit["Restart"] == ["on-failure"]
    # Otherwise numba finds no place for what it compiles and the program does not start.
    assert any(value.startswith("NUMBA_CACHE_DIR=") for value in unit["Environment"])
    assert "MemoryDenyWriteExecute" not in unit
    if path.stem != "sottovoce-device":
        assert unit["User"] == ["sottovoce"]
        assert unit["StateDirectory"][0].split()[0] == "sottovoce"
        assert "/var/lib/sottovoce/" in start


def test_the_superlink_talks_to_its_own_machine_only():
    unit = read_unit(DEPLOY / "systemd" / "sottovoce-superlink.service")
    assert (unit["IPAddressDeny"], unit["IPAddressAllow"]) == (["any"], ["localhost"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_the_units(path, tmp_path):
    program = str(Path(sys.executable).with_name("sottovoce"))
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", path.read_text(), flags=re.MULTILINE)
    (tmp_path / path.name).write_text(text)
    tmp_path.chmod(0o700)
    place = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    whose = ["--user"] if path.stem == "sottovoce-device" else []
    done = subprocess.run(
        ["systemd-analyze", *whose, "verify", "--man=no", tmp_path / path.name],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Other units of the machine may be at fault, too; only what is said of ours counts.
    said = [line for line in done.stderr.splitlines() if path.stem in line]
    assert (done.returncode, said) == (0, [])


# --- nginx and containers -------------------------------------------------------------------------


def balancer(tmp_path: Path, servers: tuple[int, int] = (8443, 8443), **changes: str) -> Path:
    """A configuration of nginx with the load balancer in it, and the keys of its servers."""
    from sottovoce.stores.keys import init_keys

    if not (tmp_path / "town" / "keys").exists():
        init_keys(tmp_path / "town" / "keys")
    site = (DEPLOY / "nginx-https.conf").read_text()
    site = site.replace("/var/lib/sottovoce", str(tmp_path)).replace(
        "/var/log/nginx", str(tmp_path)
    )
    for number, port in enumerate(servers, 1):
        site = site.replace(f"server-{number}:8443", f"127.0.0.1:{port}")
    for before, after in changes.items():
        assert before in site
        site = site.replace(before, after)
    places = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    user = "user root; " if os.geteuid() == 0 else ""
    own = f"{user}pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}"
    config.write_text(f"{own} http {{ {places}\n{site} }}")
    return config


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_nginx_writes_no_visitors_address_into_its_logs(tmp_path):
    """Whatever happens: no server answers, the request makes no sense, and it is too long."""
    (nobody,) = free_ports(1)
    visitor = ("127.0.0.77", 0)
    with balancing(tmp_path, (nobody, nobody)) as (port, trust):
        for asked in (
            b"GET /v1/round HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
            b"POST /v1/reports HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
            b"nonsense\r\n\r\n",
        ):
            with (
                socket.create_connection(("127.0.0.1", port), 20, visitor) as plain,
                trust.wrap_socket(plain, server_hostname="localhost") as line,
            ):
                line.sendall(asked)
                assert line.recv(99)
        with socket.create_connection(("127.0.0.1", port), 20, visitor) as plain:
            plain.sendall(b"no handshake at all")
            plain.recv(99)
        log = tmp_path / "sottovoce.log"
        until(lambda: f"127.0.0.1:{nobody}" in log.read_text())
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}
    assert {"error.log", "sottovoce.log", "sottovoce-error.log"} <= set(written)
    assert not [name for name, content in written.items() if b"127.0.0.77" in content]


@contextlib.contextmanager
def balancing(tmp_path: Path, servers: tuple[int, int]) -> Iterator[tuple[int, ssl.SSLContext]]:
    """The load balancer runs before these servers: its port, and whom its visitors trust."""
    (port,) = free_ports(1)
    config = balancer(tmp_path, servers, **{"listen 8443 ssl": f"listen 127.0.0.1:{port} ssl"})
    command = [find_nginx(), "-g", "daemon off;", "-c", config, "-e", tmp_path / "error.log"]
    trust = ssl.create_default_context(cafile=tmp_path / "town" / "keys" / "ca.crt")
    with subprocess.Popen(list(map(str, command))) as nginx:
        try:
            until(lambda: listens(port))
            yield port, trust
        finally:
            nginx.terminate()


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_nginx_asks_the_server_that_is_ready(tmp_path):
    """A server without its database says 503. What is published is asked of the other one; what a
    device sends goes to one server alone, because the device itself sends it again."""
    from sottovoce.stores.keys import init_keys, server_context

    init_keys(tmp_path / "town" / "keys")
    context = server_context(tmp_path / "town" / "keys")
    with (
        FakeServer(lambda request: Reply(503, b"not_ready"), context) as one,
        FakeServer(lambda request: Reply(200, b"ready"), context) as other,
        balancing(tmp_path, (one.port, other.port)) as (port, trust),
    ):

        def asked(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
            line = http.client.HTTPSConnection("localhost", port, timeout=60, context=trust)
            with contextlib.closing(line):
                line.request(method, path, body)
                answer = line.getresponse()
                return answer.status, answer.read()

        until(lambda: asked("GET", "/ready") == (200, b"ready") and one.requests)
        assert [asked("GET", "/ready") for _ in range(4)] == [(200, b"ready")] * 4
        assert [asked("GET", "/v1/round") for _ in range(4)] == [(200, b"ready")] * 4
        other.answer = lambda request: Reply(503, b"not_ready")
        before = len(one.requests) + len(other.requests)
        assert asked("POST", "/v1/reports", b"a report")[0] == 503
        assert len(one.requests) + len(other.requests) == before + 1
        # Neither is ready. nginx passes on a server's 503, or says 502 if it has given up both of
        # them a moment before.
        until(lambda: asked("GET", "/ready")[0] in (502, 503))


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_nginx_accepts_the_load_balancer(tmp_path):
    config = balancer(tmp_path)
    command = [find_nginx(), "-t", "-c", config, "-e", tmp_path / "error.log"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


SERVICE_KEYS = {
    *("image", "build", "command", "environment", "secrets", "volumes", "networks", "depends_on"),
    *("healthcheck", "restart", "init", "read_only", "tmpfs", "cap_drop", "security_opt"),
    *("stop_grace_period", "ports", "ulimits"),
}
MADE_BY_THE_OPERATOR = ("./secrets/database_password", "./setup")


def compose(file: str = "compose.yaml") -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / file).read_text())


def test_containers_ask_whether_their_service_can_do_its_work():
    """`/health` says ok as long as the process runs, also without its database."""
    checks = [
        " ".join(service["healthcheck"]["test"])
        for file in ("compose.yaml", "compose-proxy.yaml")
        for service in compose(file)["services"].values()
        if "healthcheck" in service
    ]
    ours = [check for check in checks if "urlopen" in check]
    assert len(ours) >= 3
    assert not [check for check in ours if '/ready"' not in check]


@pytest.mark.parametrize("file", ["compose.yaml", "compose-proxy.yaml"])
def test_compose_has_no_loose_ends(file):
    table = compose(file)
    extra = {name for name in table if name.startswith("x-")}
    known = {"name", "services", "networks", "volumes", "secrets"}
    assert {"name", "services"} < set(table) - extra <= known
    used: dict[str, set[str]] = {"networks": set(), "volumes": set(), "secrets": set()}
    for name, service in table["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service, name
        used["networks"] |= set(service["networks"])
        used["secrets"] |= set(service.get("secrets", []))
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            assert target.startswith("/"), volume
            assert mode in ([], ["ro"]), volume
            if not source.startswith("."):
                used["volumes"].add(source)
            elif source not in MADE_BY_THE_OPERATOR:
                assert (DEPLOY / source).is_file(), volume
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in table["services"][other]
    assert used == {kind: set(table.get(kind, ())) for kind in used}
    for secret in table.get("secrets", {}).values():
        assert secret["file"] in MADE_BY_THE_OPERATOR


def test_containers_of_ours_leave_no_memory_on_the_disk():
    table, proxy = compose(), compose("compose-proxy.yaml")
    ours = [table["services"][name] for name in ("server-1", "server-2")]
    for service in [*ours, proxy["services"]["proxy"]]:
        assert service["ulimits"] == {"core": 0}


def test_the_load_balancer_has_the_servers_of_compose():
    balanced = re.findall(r"server ([\w-]+):8443;", (DEPLOY / "nginx-https.conf").read_text())
    assert set(balanced) <= set(compose()["services"])


def test_compose_starts_what_there_is_without_secrets_in_sight():
    table = compose()
    for name in ("server-1", "server-2"):
        shell, flag, script = table["services"][name]["command"]
        assert (shell, flag) == ("sh", "-c")
        parse(shlex.split(script.split("exec sottovoce ", 1)[1]))
        assert script.startswith("export PGPASSWORD=$$(cat /run/secrets/database_password);")
        build = table["services"][name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        check = table["services"][name]["healthcheck"]["test"]
        compile(check[-1], "healthcheck", "exec")
    for service in table["services"].values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("/run/secrets/")
    published = [port for s in table["services"].values() for port in s.get("ports", [])]
    assert published == ["8443:8443"]


def test_compose_starts_a_proxy_apart_from_any_server():
    [proxy] = compose("compose-proxy.yaml")["services"].values()
    program, *words = proxy["command"]
    assert program == "sottovoce"
    assert words[:2] == ["serve", "shuffler"]
    parse(words)
    assert proxy["ports"] == ["8444:8444"]
    compile(proxy["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert "proxy" not in compose()["services"]


def test_the_container_runs_what_there_is_as_a_user_of_its_own():
    text = (DEPLOY / "Dockerfile").read_text()
    [command] = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    program, *words = json.loads(command)
    assert program == "sottovoce"
    parse(words)
    assert re.search(r"^USER sottovoce$", text, re.MULTILINE)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in [line[1:] for line in ignored if line.startswith("!")]:
        assert (ROOT / name).exists(), name
