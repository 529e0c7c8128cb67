"""A run is a folder. It says what was run, survives a kill, and never mixes two runs.

manifest.json    what was run: experiment, seed, versions, data fingerprint, hardware, status
metrics.jsonl    one line per evaluation
model.npz        the published model
devices.npz      what stayed on the devices; a simulation keeps it so that it can recommend
ledger.parquet   a row for every release
report.html      tables and figures (figures/ has them as files)
data/            the data as a prepared folder, where no name of a data set leads to them
checkpoint.npz   while the run is going: where to resume from (with ledger.parts/)
rounds.jsonl     by real processes: how each round ended, and who was missing
services/        by real processes: their state, keys and logs
ranks.jsonl      by ranks: how long each of them worked, and whom the others waited for

By ranks (`engines.distributed`) what belongs to users is written by shards: each rank writes
devices-00001-of-00004.npz and ledger-00001-of-00004.parquet, and while the run is going
checkpoint.parts/. A checkpoint counts when the first rank has written checkpoint.npz, after all
parts are there; any other number of ranks can go on from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import sottovoce
from sottovoce.core import ledger as ledgers
from sottovoce.core.ledger import Ledger, Totals
from sottovoce.core.messages import ModelView
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import read_prepared, write_prepared
from sottovoce.errors import CorruptData, FolderInUse, RunError, other_format

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
RUNNING, FINISHED = "running", "finished"
_CHECKPOINTS = "checkpoint.parts"
_DATA = "data"


@dataclass(frozen=True, slots=True, repr=False)
class RunCheckpoint:
    round: int
    items: NDArray[np.float32]
    vectors: NDArray[np.float32]
    totals: Totals
    memory: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """What the server keeps to itself."""
    spent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Each device's budget so far."""
    sent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """In how many rounds each device has sent. All three are empty where they are not known, but
    where a run folder has budgets and no counts, these come from its ledger."""
    published: ModelView | None = None
    """By which devices recommend, where that is not the newest model."""
    offered: tuple[Mapping[str, Any], ...] = ()
    """Versions so far (`parties.server.Offered`)."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    # --- opening ---------------------------------------------------------------------------------

    @classmethod
    def claim(cls, path: Path, manifest: Mapping[str, Any], *, resume: bool) -> RunFolder:
        """A new folder for this run, or the one of the same run to resume. Refuses any other."""
        run = cls(path)
        check_writable(path)
        new = not path.exists()
        try:
            if new or not any(one.name != "manifest.json.partial" for one in path.iterdir()):
                path.mkdir(parents=True, exist_ok=True)
                run._write_manifest({**manifest, "status": RUNNING, "started": _now()})
                return run
        except OSError as error:
            if new:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise RunError(
                f"{path} cannot be written: {error.strerror or error}; choose another --out"
            ) from None
        if not (path / "manifest.json").exists():
            raise FolderInUse(f"{path} is not empty and holds no run; choose another --out")
        there = run.manifest()
        if there.get("identity") != manifest["identity"]:
            raise FolderInUse(
                f"{path} holds another run ({there.get('name', 'unnamed')}); choose another --out"
            )
        begun, wanted = there.get("engine", "simulation"), manifest.get("engine", "simulation")
        if begun != wanted:
            raise FolderInUse(
                f"{path} holds this run on the {begun} engine; go on with --engine {begun}, or "
                "choose another --out"
            )
        if not resume:
            raise FolderInUse(
                f"{path} holds this run already; add --resume, or choose another --out"
            )
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, finished or not."""
        if not (path / "manifest.json").is_file():
            raise RunError(f"{path} is not a run folder (it has no manifest.json)")
        return cls(path)

    @contextlib.contextmanager
    def locked(self, ranks: Ranks = ALONE) -> Iterator[None]:
        """Keeps a second process from writing here at the same time, but for other ranks of the
        same run. Where the disk is full or gone, the run is left as it was at its last
        checkpoint."""
        with contextlib.ExitStack() as stack:
            if ranks.first:
                handle = stack.enter_context(open(self.path / ".lock", "w"))
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise FolderInUse(f"{self.path} is being written by another process") from None
            try:
                yield
            except OSError as error:
                for partial in self.path.rglob("*.partial") if not ranks.several else ():
                    with contextlib.suppress(OSError):
                        partial.unlink()
                raise RunError(
                    f"{self.path}: {error.strerror or error}; the run has stopped and is kept; "
                    "once that is mended, go on with --resume"
                ) from error

    # --- manifest --------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # also where it is not UTF-8
            raise CorruptData(f"{self.path / 'manifest.json'} cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise CorruptData(f"{self.path / 'manifest.json'} is not a JSON object")
        if content.get("format") != FORMAT:
            raise RunError(other_format(self.path, content.get("format"), FORMAT))
        return content

    def update_manifest(self, **fields: Any) -> None:
        self._write_manifest({**self.manifest(), **fields})

    def _write_manifest(self, content: Mapping[str, Any]) -> None:
        table = json.dumps({"format": FORMAT, **content}, indent=2, sort_keys=True)
        write_text(self.path / "manifest.json", table + "\n")

    @property
    def finished(self) -> bool:
        return self.manifest().get("status") == FINISHED

    # --- while it runs ---------------------------------------------------------------------------

    def save_checkpoint(
        self,
        round: int,
        items: NDArray[np.float32],
        vectors: NDArray[np.float32],
        ledger: Ledger,
        memory: NDArray[np.float32] | None = None,
        spent: NDArray[np.float64] | None = None,
        sent: NDArray[np.int64] | None = None,
        published: ModelView | None = None,
        offered: Sequence[Mapping[str, Any]] = (),
        shard: Shard = WHOLE,
    ) -> None:
        """First the ledger's new rows, then, atomically, the state that refers to them. Of ranks,
        each writes what is its users', and the first then the rest, by which it counts."""
        parts, ranks = self.path / "ledger.parts", shard.ranks
        parts.mkdir(exist_ok=True)
        part = parts / f"{round:012d}{_of(ranks)}.parquet"
        if not part.exists():  # saved twice in one round, the second time there is nothing new
            ledger.flush(part)
        users = {
            "vectors": vectors,
            "totals": np.array(json.dumps(asdict(ledger.totals))),
            "spent": np.zeros(0) if spent is None else spent,
            "sent": np.zeros(0, np.int64) if sent is None else sent,
        }
        if ranks.together:
            mine = self.path / _CHECKPOINTS / f"{round:012d}{_of(ranks)}.npz"
            mine.parent.mkdir(exist_ok=True)
            save_arrays(mine, **users)
            users = {"starts": np.array(ranks.counts(shard.first))}  # and all are there
            if not ranks.first:
                return
        save_arrays(
            self.path / "checkpoint.npz",
            round=np.array(round),
            items=items,
            **users,
            memory=np.zeros((0, 0), np.float32) if memory is None else memory,
            published=items[:0] if published is None else published.items,
            published_round=np.array(0 if published is None else published.round),
            offered=np.array(json.dumps([*offered])),
        )
        if ranks.together:
            for old in (self.path / _CHECKPOINTS).glob("*.npz"):
                if not old.match(f"{round:012d}-*-of-{ranks.size:05d}.npz"):
                    old.unlink()

    def load_checkpoint(self, shard: Shard = WHOLE, users: int = 0) -> RunCheckpoint | None:
        """The last checkpoint, with everything later than it swept away; of a shard with so many
        users, however many ranks have written it."""
        path, ranks = self.path / "checkpoint.npz", shard.ranks
        round = -1
        found = None
        if path.exists():
            arrays = load_arrays(path)
            try:
                round = int(arrays["round"])
                if "starts" in arrays:
                    arrays |= self._of_users(round, arrays["starts"], shard, users)
                totals = Totals(**json.loads(str(arrays["totals"])))
                names = ("memory", "spent", "sent")
                found = RunCheckpoint(
                    round, arrays["items"], arrays["vectors"], totals,
                    **({name: arrays[name] for name in names} | _versions_in(arrays)),
                )  # fmt: skip
            except (KeyError, ValueError, TypeError) as error:
                raise CorruptData(f"{path} is no checkpoint: {error}") from None
        ranks.meet()  # all have read
        if not ranks.first:
            ranks.meet()
            return found
        for part in self._parts():
            if int(part.stem.partition("-")[0]) > round:
                part.unlink()
        kept = [m for m in self.metrics() if m["round"] <= round and not m.get("final")]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(k) + "\n" for k in kept))
        ranks.meet()  # it is swept
        return found

    def _of_users(
        self, round: int, starts: NDArray[np.int64], shard: Shard, users: int
    ) -> dict[str, NDArray[Any]]:
        """What a checkpoint of ranks whose users begin there has of a shard. What was booked so far
        is the first rank's."""
        many, end = len(starts), shard.first + users
        names = [f"{round:012d}-{k:05d}-of-{many:05d}.npz" for k in range(many)]
        stops = [*starts[1:].tolist(), np.inf]
        every = shard.ranks.first  # for the totals
        wanted = [k for k in range(many) if every or (starts[k] < end and stops[k] > shard.first)]
        parts: dict[str, list[NDArray[Any]]] = {"vectors": [], "spent": [], "sent": []}
        booked: list[Totals] = []
        for k in wanted:
            arrays, first = load_arrays(self.path / _CHECKPOINTS / names[k]), int(starts[k])
            inside = slice(max(0, shard.first - first), max(0, end - first))
            booked.append(Totals(**json.loads(str(arrays["totals"]))))
            for name, found in parts.items():
                found.append(arrays[name][inside])
        joined = {name: np.concatenate(found) for name, found in parts.items()}
        if {len(one) for one in joined.values()} != {users}:
            raise CorruptData(f"{self.path / _CHECKPOINTS} has not the users of this run")
        totals = _added(booked) if shard.ranks.first else Totals()
        return joined | {"totals": np.array(json.dumps(asdict(totals)))}

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as handle:
            handle.write(json.dumps(line) + "\n")

    def append_pace(self, line: Mapping[str, Any]) -> None:
        """How long each rank has worked."""
        with open(self.path / "ranks.jsonl", "a") as handle:
            handle.write(json.dumps(line) + "\n")

    def save_rounds(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        write_text(self.path / "rounds.jsonl", "".join(json.dumps(r) + "\n" for r in rounds))

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = []
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line cut short by a kill
                line = json.loads(text)
                if isinstance(line, dict) and isinstance(line.get("round"), int):
                    lines.append(line)
        return lines

    # --- the end ---------------------------------------------------------------------------------

    def finish(
        self,
        items: NDArray[np.float32],
        vectors: NDArray[np.float32],
        *,
        ranks: Ranks = ALONE,
        **manifest: Any,
    ) -> None:
        """Final files, then the status; the checkpoint goes last."""
        save_arrays(self.path / f"devices{_of(ranks)}.npz", vectors=vectors)
        parts = self._parts()[ranks.rank :: ranks.size]
        ledgers.merge(parts, self.path / f"ledger{_of(ranks)}.parquet")
        ranks.meet()
        if not ranks.first:
            return
        save_arrays(self.path / "model.npz", items=items)
        for kind in ("devices", "ledger") if ranks.together else ():
            for other in self.path.glob(f"{kind}-*-of-*"):  # of a run that stopped just here
                if f"-of-{ranks.size:05d}." not in other.name:
                    other.unlink()
        self.update_manifest(status=FINISHED, finished=_now(), **manifest)
        shutil.rmtree(self.path / "ledger.parts", ignore_errors=True)
        shutil.rmtree(self.path / _CHECKPOINTS, ignore_errors=True)
        (self.path / "checkpoint.npz").unlink(missing_ok=True)

    def model(self) -> NDArray[np.float32]:
        return self._final("model.npz", "items")

    def vectors(self, shard: Shard = WHOLE, users: int | None = None) -> NDArray[np.float32]:
        """Everybody's, or those of a shard with so many users."""
        parts = self._shards("devices-*-of-*.npz")
        if not parts:
            found = [self._final("devices.npz", "vectors")]
        else:
            found = [self._final(part.name, "vectors") for part in parts]
        every = found[0] if len(found) == 1 else np.concatenate(found)
        return every if users is None else every[shard.first : shard.first + users]

    def keep_data(self, dataset: Dataset) -> None:
        """Keeps a copy of data that cannot be loaded by name."""
        if not (self.path / _DATA).is_dir():
            write_prepared(dataset, self.path / _DATA)

    def kept_data(self, name: str) -> Dataset | None:
        """The copy, if there is one."""
        folder = self.path / _DATA
        return read_prepared(folder, name) if folder.is_dir() else None

    def ledger(self, user: int | None = None) -> pa.Table:
        """Every release, or one user's, round by round and in the order of users."""
        parts = self._shards("ledger-*-of-*.parquet")
        if not parts:
            return ledgers.read(self.path / "ledger.parquet", user)
        return ledgers.joined([ledgers.read(part, user) for part in parts])

    def _shards(self, pattern: str) -> list[Path]:
        """Files that ranks have written, in their order; raises where one is missing."""
        found = sorted(self.path.glob(pattern))
        if found and len(found) != int(found[0].stem.rpartition("-")[2]):
            raise CorruptData(
                f"{self.path} has {len(found)} of the files {pattern.replace('*', '…')}, of which "
                f"{found[0].name} says how many there are; fetch the others, too"
            )
        return found

    def _final(self, name: str, array: str) -> NDArray[np.float32]:
        if not self.finished:
            raise RunError(f"{self.path} has not finished; go on with `sottovoce run … --resume`")
        arrays = load_arrays(self.path / name)
        if array not in arrays or arrays[array].ndim != 2:
            raise CorruptData(f"{self.path / name} holds no table of {array}")
        values: NDArray[np.float32] = arrays[array]
        return values

    def _parts(self) -> list[Path]:
        return sorted((self.path / "ledger.parts").glob("*.parquet"))


def environment() -> dict[str, Any]:
    """Versions and hardware, for the manifest."""
    import numba
    import scipy

    return {
        "versions": {
            "sottovoce": sottovoce.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "numba": numba.__version__,
        },
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "platform": sys.platform,
        },
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def save_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """An npz file that is either the old one or the new one, never half of it."""
    with _replacing(path) as partial, open(partial, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]
        handle.flush()
        os.fsync(handle.fileno())


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open(path, "rb") as handle:  # np.load would leave a broken one open
            arrays = np.load(handle, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise CorruptData(f"{path} is a single array, not an npz file")
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptData(f"{path} cannot be read: {error}") from None


def write_text(path: Path, text: str) -> None:
    with _replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then takes the place of `path`; it goes where writing fails."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def new_figures(folder: Path) -> Iterator[Path]:
    """A fresh folder to draw in, which then takes the place of `folder`; a report that fails, on a
    full disk say, leaves the old figures as they were."""
    fresh = folder.with_name(folder.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield fresh
        if fresh.exists():
            shutil.rmtree(folder, ignore_errors=True)
            fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Raises where no folder `path` can be: a file is there or above, or writing is not allowed."""
    try:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
    except OSError as error:  # a name too long, a folder that may not be entered
        raise RunError(
            f"{path} cannot be written: {error.strerror}; choose another --out"
        ) from None
    if not there.is_dir():
        where = f"{path} is" if there == path else f"{path} lies under {there}, which is"
        raise FolderInUse(f"{where} a file, not a folder; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{there} cannot be written to; choose another --out")


def _of(ranks: Ranks) -> str:
    """What a rank adds to the names of its files."""
    return f"-{ranks.rank:05d}-of-{ranks.size:05d}" if ranks.together else ""


def _added(totals: Sequence[Totals]) -> Totals:
    whole = {name: sum(getattr(one, name) for one in totals) for name in ledgers.COUNTS}
    return Totals(**whole, epsilon=math.fsum(one.epsilon for one in totals))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions_in(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Which version is published and which there were, in a checkpoint of models with versions."""
    if not len(arrays["published"]):
        return {}
    published = ModelView(int(arrays["published_round"]), arrays["published"])
    return {"published": published, "offered": tuple(json.loads(str(arrays["offered"])))}
