"""The town of `sottovoce demo --web`: server, helper and a thousand made-up residents as processes
of their own. All of it lies in one folder, but for its visitors, who are browser tabs: they come
without an invitation and keep what is theirs. On this machine alone the server speaks plain HTTP,
since no browser knows a certificate that was made a second ago.

The residents wait before the last round of a period, so that a visitor has time to come in; when
she has sent, they are told to go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.dataset import Dataset
from sottovoce.engines.processes import (
    Child,
    free_port,
    require_port,
    sottovoce_command,
    stop_all,
)
from sottovoce.errors import FolderInUse, ServiceError, SottovoceError
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.parties.places import PlaceRules
from sottovoce.parties.secure_sum import fitted
from sottovoce.services.agent.residents import Habits
from sottovoce.services.server.operator import Operator
from sottovoce.stores.helper_folder import (
    PUBLIC_KEY,
    create_helper,
    helper_introduction,
    init_helper,
)
from sottovoce.stores.keys import authority_pem, replace_file
from sottovoce.stores.locking import is_locked, try_lock
from sottovoce.stores.places import set_place_rules
from sottovoce.stores.private import private_folder
from sottovoce.stores.residents import GO_ON, write_invitations
from sottovoce.stores.server_folder import ServerFolder, create_folder, invite, open_folder
from sottovoce.stores.site import SCRIPT, built_script, library_source
from sottovoce.wire.terms import Terms

HOST = "127.0.0.1"
NAME = "shop"
"""Of the experiment file."""
HOLD_SECONDS = 300.0
"""How long residents wait for a visitor."""
_PREFIX = "sottovoce-shop-"
_FILE, _LOCK = "shop.json", "shop.lock"
_FORMAT = 2
_PLACES = 32
"""For visitors: a browser that forgets comes as another one."""
_WORK_BITS = 12
"""For a place: nobody comes from elsewhere, and nobody should wait."""
_PROVIDER = "provider.js"
_BUILD_SECONDS = 300
_FIRST_SHARE, _MORE_SHARE = 0.84, 0.01
"""Of the residents' visits: what they begin with, and what each period adds."""
_POLL_SECONDS = 0.3
"""How often residents ask."""
_PERIODS = 16
_STARTS, _SETTLED_SECONDS = 5, 60.0
"""A process that ends is started again, so often within so many seconds."""
_LOOK_SECONDS, _LONGEST_START = 0.3, 180.0
_KEEP_LOGS = "start the demo with --out DIR, and look at what DIR/logs says"

Tell = Callable[[str], None]


@contextlib.contextmanager
def shop_folder(out: Path | None) -> Iterator[Path]:
    """The demo's folder, for one process at a time: a temporary one that is removed at the end, or
    the one asked for, which stays. Raises with one sentence where it is something else's."""
    if out is None:
        _remove_stale()
        place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    else:
        known = (out / _FILE).exists() or (out / _LOCK).exists()
        if out.exists() and not out.is_dir():
            raise FolderInUse(f"{out} is no folder; choose another --out")
        if out.exists() and any(out.iterdir()) and not known:
            raise FolderInUse(f"{out} holds something else than a demo shop; choose another --out")
        place = private_folder(out)
    lock = try_lock(place / _LOCK)
    if lock is None:
        raise FolderInUse(f"a demo shop runs in {place} already; stop it first, or choose another")
    before = tempfile.tempdir
    with lock:
        try:
            # Whatever is written on the way, also by a library, is within.
            tempfile.tempdir = str(private_folder(place / "tmp"))
            yield place
        finally:
            tempfile.tempdir = before
            if out is None:
                shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _saying(sentence: str) -> Iterator[None]:
    try:
        yield
    except ServiceError:
        raise ServiceError(sentence) from None


def _remove_stale() -> None:
    """Folders of demos that were killed before they could remove them."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            mine = place.is_dir() and not place.is_symlink() and place.stat().st_uid == os.getuid()
            lock = place / _LOCK
            if mine and lock.exists() and not is_locked(lock):
                shutil.rmtree(place, ignore_errors=True)


def tab_library(tell: Tell) -> Path:
    """The folder with the files that make a page a device. In a checkout they are built first where
    they are missing, or older than what they are made of. Raises with one sentence where there are
    none."""
    found, source = built_script(), library_source()
    can_build = shutil.which("node") and shutil.which("npm")
    if source is not None and can_build and not _is_fresh(source):
        tell("The files for browser tabs are built, by Node")
        _build(source)
        found = built_script()
    if found is None or not (found.parent / _PROVIDER).is_file():
        how = (
            "are not in this wheel: build one with `make wheel`, on a machine with Node 20 and npm"
            if source is None
            else "are not built here: run `make browser`, which needs Node 20 and npm"
        )
        raise ServiceError(
            f"the visitor of this shop is a browser tab, and the files for tabs {how}"
        )
    return found.parent


def _is_fresh(source: Path) -> bool:
    made = [source / "dist" / name for name in (SCRIPT, _PROVIDER)]
    if not all(file.is_file() for file in made):
        return False
    oldest = min(file.stat().st_mtime for file in made)
    return all(file.stat().st_mtime <= oldest for file in (source / "src").rglob("*.ts"))


def _build(source: Path) -> None:
    """As far as that goes: what is missing then is seen by who looks for it."""
    steps = [["node", "build.mjs"]]
    if not (source / "node_modules").is_dir():
        steps.insert(0, ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"])
    for words in steps:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                words, cwd=source, capture_output=True, timeout=_BUILD_SECONDS, check=False
            )


@dataclass(slots=True, repr=False)
class ShopTown:
    """Everything but the page. Prepare, start and watch it from the main thread; `close` it."""

    folder: Path
    tell: Tell
    hold_seconds: float = HOLD_SECONDS
    settings: Sequence[str] = ()
    """Changes of the experiment file, as `--set` takes them."""
    page_port: int = 0
    """Of the page that visitors look at; a free one, or the one before. Their browsers know them by
    it."""
    clock: Callable[[], float] = time.monotonic
    stopped: Callable[[], bool] = lambda: False
    """Whether somebody has asked to end it."""
    experiment: Experiment = field(init=False)
    dataset: Dataset = field(init=False)
    residents: int = field(default=0, init=False)
    """Who take part."""
    most_epsilon: float = field(default=0.0, init=False)
    """What the loudest of them allows in all."""
    server: ServerFolder = field(init=False)
    _fresh: bool = field(default=True, init=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False)
    _children: dict[str, Child] = field(default_factory=dict, init=False)
    _started: dict[str, list[float]] = field(default_factory=dict, init=False)
    _operator: Operator | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._ports['server']}"

    # --- the way to a first model -----------------------------------------------------------------

    def prepare(self) -> None:
        """Everything that lies in the folder. Raises with one sentence where that fails."""
        self.experiment = Experiment.from_file(find_experiment(NAME), list(self.settings))
        self.dataset = self.experiment.dataset()
        consent = self.experiment.records(self.dataset)
        self.residents = int(np.count_nonzero(consent.takes_part))
        self.most_epsilon = float(consent.total_epsilon[consent.takes_part].max())
        table = self.dataset.interactions
        self.tell(
            f"The town: {table.n_items} places, {table.n_users:,} made-up residents, of whom "
            f"{self.residents:,} take part"
        )
        self._fresh = not (self.folder / _FILE).exists()
        if self._fresh:
            self._make()
        else:
            self._reopen()
        for name, port in {**self._ports, "page": self.page_port}.items():
            with _saying(
                f"port {port}, by which devices of this shop know its {name}, is taken; stop what "
                "listens there, or choose another --out"
            ):
                require_port(HOST, port)

    def start(self) -> None:
        """Its processes, until the first model is published. Raises with one sentence where that
        fails."""
        for name in ("helper", "server", "residents"):
            self._run(name)
        self.tell("Server, helper and residents start, each as a process of its own")
        self._until_first_model(told=self._fresh)

    def _make(self) -> None:
        """Aside: the folder counts as a shop when all of it is there."""
        for name in ("server", "helper", "residents"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.page_port = self.page_port or free_port()
        self._ports = {"server": free_port(), "helper": free_port()}
        self.server = self._federation()
        create_helper(self.folder / "helper", helper_introduction(self.server))
        self.tell("Keys and terms of a federation with a helper are made")
        people = self.dataset.interactions.n_users
        with contextlib.closing(self.server.database()) as database:
            invited = invite(self.server, database, self.url, count=people)
            with database.writing() as link:
                rules = PlaceRules(_PLACES, _PLACES, _PLACES, _WORK_BITS)
                set_place_rules(link, rules)
        private_folder(self.folder / "residents")
        write_invitations(self.folder / "residents", invited)
        self.tell(f"{people:,} invitations are written; you need none, for there are open places")
        ports = {**self._ports, "page": self.page_port}
        content = {"format": _FORMAT, "experiment": self._digest, "ports": ports}
        replace_file(self.folder / _FILE, json.dumps(content).encode())

    @property
    def _digest(self) -> str:
        return self.dataset.fingerprint()

    def _reopen(self) -> None:
        try:
            kept = json.loads((self.folder / _FILE).read_text())
            same = (kept["format"], kept["experiment"]) == (_FORMAT, self._digest)
            ports = {name: int(kept["ports"][name]) for name in ("server", "helper", "page")}
            self.page_port = self.page_port or ports.pop("page")
            self._ports = {name: ports[name] for name in ("server", "helper")}
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise FolderInUse(
                f"{self.folder} was made by another release or is damaged; choose another --out"
            )
        self.server = open_folder(self.folder / "server")
        self.tell(f"The shop in {self.folder} goes on where it was")

    def _federation(self) -> ServerFolder:
        experiment, place = self.experiment, self.folder / "helper"
        algorithm, release, chosen = experiment.cross_device()
        init_helper(place, [HOST])
        names = self.dataset.interactions.items_vocabulary()
        items = [(names.name(n), self.dataset.title(n)) for n in range(len(names))]
        people = self.dataset.interactions.n_users + _PLACES
        built = algorithm.build_under(release, chosen, algorithm.draws)
        link = fitted(built, release, chosen, algorithm.draws, people).at(
            url=f"https://{HOST}:{self._ports['helper']}",
            authority=authority_pem(place / "keys"),
            key=(place / PUBLIC_KEY).read_text().strip(),
        )
        terms = Terms.of("the-town", len(items), algorithm, algorithm.draws, release, link)
        return create_folder(
            self.folder / "server",
            terms,
            items,
            categories=list(self.dataset.item_categories or ()),
            cohort_size=algorithm.waits_for,
            rounds=algorithm.rounds * _PERIODS,
            rules=replace(experiment.service, min_devices=self.residents),
            defence=experiment.defence,
            hosts=[HOST, "localhost"],
        )

    def _until_first_model(self, *, told: bool) -> None:
        end, said = self.clock() + _LONGEST_START, set[str]()

        def once(words: str) -> None:
            if told and words not in said:
                said.add(words)
                self.tell(words)

        while True:
            if self.stopped():  # and whoever waited for an answer took that for none
                raise KeyboardInterrupt
            self.watch()
            facts = self.facts()
            if facts is not None:
                once("The server answers; residents enrol, each with a key of her own")
                if facts["round"] or facts["state"] != "waiting":
                    once(f"{facts['enrolled']:,} residents have enrolled; the first round is open")
                if facts["round"]:
                    once("The first sum is opened: which places are popular")
                if facts["round"] >= self.experiment.cross_device()[0].rounds:
                    self.tell("The second sum is opened: the first model is published")
                    return
            if self.clock() > end:
                raise ServiceError(
                    f"no model was published within {_LONGEST_START:.0f} seconds; {_KEEP_LOGS}"
                )
            time.sleep(_LOOK_SECONDS)

    # --- while it runs ----------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any] | None:
        """Where the federation stands, as its operator sees it; None where nobody answers."""
        try:
            if self._operator is None:
                self._operator = Operator.of(self.server, self.url)
            return self._operator.status()
        except SottovoceError:
            return None

    def popular(self, facts: Mapping[str, Any], most: int) -> list[int]:
        """By the published model, which is public; none before there is one."""
        terms = self.server.plan.terms
        if self._operator is None or facts["published"] is None:
            return []
        try:
            model = self._operator.model(facts["published"], terms)
        except SottovoceError:
            return []
        known = terms.build().popularity(model.items)
        return [] if known is None else np.argsort(-known[0], kind="stable")[:most].tolist()

    def spent(self) -> float:
        """The most ε that a resident has spent so far."""
        try:
            with np.load(self.folder / "residents" / "residents.npz", allow_pickle=False) as kept:
                return float(kept["spent"].max(initial=0.0))
        except (OSError, ValueError, KeyError, EOFError):
            return 0.0

    def go_on(self) -> None:
        """The residents wait no longer."""
        (self.folder / "residents" / GO_ON).touch()

    def watch(self) -> None:
        """Start again what has ended. Raises where it does not stay."""
        for name, child in list(self._children.items()):
            if not child.alive:
                now = self.clock()
                recent = [at for at in self._started[name] if now - at < _SETTLED_SECONDS]
                if len(recent) >= _STARTS:
                    raise ServiceError(
                        f"{child.name} ended {_STARTS} times within a minute (exit code "
                        f"{child.process.returncode}); {_KEEP_LOGS}"
                    )
                self._started[name] = recent
                self.tell(f"{child.name} ended and will be started again")
                self._run(name)

    def _run(self, name: str) -> None:
        place, said = self.folder / name, {"residents": "the residents"}.get(name, f"the {name}")
        words: list[str | Path] = ["serve", name, place]
        if name == "residents":
            Habits(self.hold_seconds, 3, _FIRST_SHARE, _MORE_SHARE, _POLL_SECONDS).write(place)
            words += ["--experiment", NAME]
            words += [word for one in self.settings for word in ("--set", one)]
        else:
            words += ["--port", str(self._ports[name])]
        if name == "server":
            words += ["--plaintext"]
            for host in (HOST, "localhost"):
                words += ["--origin", f"http://{host}:{self.page_port}"]
        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
        log = self.folder / "logs" / f"{name}.log"
        self._started.setdefault(name, []).append(self.clock())
        self._children[name] = Child(
            said, sottovoce_command(*words), log=log, environment=environment
        )

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()
            self._operator = None
        stop_all(list(self._children.values()))
        self._children.clear()
