"""A run is a folder. It says what was run, survives a kill, and never mixes two runs.

manifest.json    what was run: experiment, seed, versions, data fingerprint, hardware, status
metrics.jsonl    one line per evaluation
model.npz        the published model
devices.npz      what stayed on the devices; a simulation keeps it so that it can recommend
ledger.parquet   a row for every release
report.html      tables and figures (figures/ has them as files)
checkpoint.npz   while the run is going: where to resume from (with ledger.parts/)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import sottovoce
from sottovoce import ledger as ledgers
from sottovoce.errors import CorruptData, FolderInUse, RunError
from sottovoce.ledger import Ledger, Totals

if TYPE_CHECKING:
    import pyarrow as pa

RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint:
    round: int
    items: NDArray[np.float32]
    vectors: NDArray[np.float32]
    totals: Totals


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    # --- opening ---------------------------------------------------------------------------------

    @classmethod
    def claim(cls, path: Path, manifest: Mapping[str, Any], *, resume: bool) -> RunFolder:
        """A new folder for this run, or the one of the same run to resume. Refuses any other."""
        run = cls(path)
        if not path.exists() or not any(path.iterdir()):
            path.mkdir(parents=True, exist_ok=True)
            run._write_manifest({**manifest, "status": RUNNING, "started": _now()})
            return run
        if not (path / "manifest.json").exists():
            raise FolderInUse(f"{path} is not empty and holds no run; choose another --out")
        there = run.manifest()
        if there.get("identity") != manifest["identity"]:
            raise FolderInUse(
                f"{path} holds another run ({there.get('name', 'unnamed')}); choose another --out"
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
    def locked(self) -> Iterator[None]:
        """Keeps a second process from writing here at the same time."""
        with open(self.path / ".lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FolderInUse(f"{self.path} is being written by another process") from None
            yield

    # --- manifest --------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / "manifest.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CorruptData(f"{self.path / 'manifest.json'} cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise CorruptData(f"{self.path / 'manifest.json'} is not a JSON object")
        return content

    def update_manifest(self, **fields: Any) -> None:
        self._write_manifest({**self.manifest(), **fields})

    def _write_manifest(self, content: Mapping[str, Any]) -> None:
        write_text(
            self.path / "manifest.json", json.dumps(content, indent=2, sort_keys=True) + "\n"
        )

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
    ) -> None:
        """First the ledger's new rows, then, atomically, the state that refers to them."""
        parts = self.path / "ledger.parts"
        parts.mkdir(exist_ok=True)
        part = parts / f"{round:012d}.parquet"
        if not part.exists():  # saved twice in one round, the second time there is nothing new
            ledger.flush(part)
        totals = json.dumps(asdict(ledger.totals))
        save_arrays(
            self.path / "checkpoint.npz",
            round=np.array(round),
            items=items,
            vectors=vectors,
            totals=np.array(totals),
        )

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, with everything later than it swept away."""
        path = self.path / "checkpoint.npz"
        round = -1
        found = None
        if path.exists():
            arrays = load_arrays(path)
            round = int(arrays["round"])
            totals = Totals(**json.loads(str(arrays["totals"])))
            found = Checkpoint(round, arrays["items"], arrays["vectors"], totals)
        for part in self._parts():
            if int(part.stem) > round:
                part.unlink()
        kept = [m for m in self.metrics() if m["round"] <= round and not m.get("final")]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(k) + "\n" for k in kept))
        return found

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as handle:
            handle.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = []
        for text in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line cut short by a kill
                lines.append(json.loads(text))
        return lines

    # --- the end ---------------------------------------------------------------------------------

    def finish(
        self, items: NDArray[np.float32], vectors: NDArray[np.float32], **manifest: Any
    ) -> None:
        """Final files, then the status; the checkpoint goes last."""
        save_arrays(self.path / "model.npz", items=items)
        save_arrays(self.path / "devices.npz", vectors=vectors)
        ledgers.merge(self._parts(), self.path / "ledger.parquet")
        self.update_manifest(status=FINISHED, finished=_now(), **manifest)
        shutil.rmtree(self.path / "ledger.parts", ignore_errors=True)
        (self.path / "checkpoint.npz").unlink(missing_ok=True)

    def model(self) -> NDArray[np.float32]:
        return self._final("model.npz", "items")

    def vectors(self) -> NDArray[np.float32]:
        return self._final("devices.npz", "vectors")

    def ledger(self, user: int | None = None) -> pa.Table:
        """Every release, or one user's."""
        return ledgers.read(self.path / "ledger.parquet", user)

    def _final(self, name: str, array: str) -> NDArray[np.float32]:
        if not self.finished:
            raise RunError(f"{self.path} has not finished; go on with `sottovoce run … --resume`")
        values: NDArray[np.float32] = load_arrays(self.path / name)[array]
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
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise CorruptData(f"{path} cannot be read: {error}") from None


def write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
