"""What a backup says of itself: of whom it is and of when, and what every file in it has to be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.errors import CorruptData, DataNotFound, VersionMismatch

FILE, CONTENT = "backup.json", "content"
"""What is in a backup: its manifest, and a folder like the one it is of."""
FORMAT = 1
_LARGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class Manifest:
    kind: str
    federation: str
    """Empty where there was none yet."""
    whose: str
    created: str
    """When, in UTC, as 2026-11-16T10:00:00Z."""
    release: str
    """The version of this program that made it."""
    files: Mapping[str, tuple[int, str]]
    """By name: length and SHA-256."""
    left_out: tuple[str, ...]
    """Keys that are kept elsewhere."""

    @property
    def size(self) -> int:
        return sum(length for length, _ in self.files.values())

    def age(self, now: datetime) -> str:
        """How long ago it was made, in words."""
        made = datetime.strptime(self.created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        minutes = max(0, int((now - made).total_seconds() // 60))
        for unit, name in ((1440, "days"), (60, "hours")):
            if minutes >= 2 * unit:
                return f"{minutes // unit:,} {name} ago"
        return f"{minutes} minutes ago"

    def to_bytes(self) -> bytes:
        table = {
            "format": FORMAT,
            "kind": self.kind,
            "federation": self.federation,
            "whose": self.whose,
            "created": self.created,
            "release": self.release,
            "files": {name: list(facts) for name, facts in self.files.items()},
            "left_out": list(self.left_out),
        }
        return json.dumps({**table, "sha256": _digest(table)}, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, backup: Path) -> Manifest:
        """Raises with one sentence where this is no backup, or not as it was made."""
        place = backup / FILE
        try:
            with place.open("rb") as source:
                table = json.loads(source.read(_LARGEST))
        except (FileNotFoundError, NotADirectoryError):
            raise DataNotFound(
                f"{backup} is no backup of `sottovoce serve backup`: there is no {FILE} in it"
            ) from None
        except OSError as error:
            raise DataNotFound(f"{place} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise _damaged(place) from None
        if not isinstance(table, dict) or not isinstance(table.get("format"), int):
            raise _damaged(place)
        if table["format"] != FORMAT:
            raise VersionMismatch(
                f"{backup} was made by another release of Sottovoce, which this one cannot read; "
                "use the release that made it"
            )
        if table.pop("sha256", None) != _digest(table):
            raise _damaged(place)
        try:
            return _of(table)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _damaged(place) from None


def now_text(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of(table: dict[str, Any]) -> Manifest:
    files = {_name(name): (int(size), str(sha)) for name, (size, sha) in table["files"].items()}
    datetime.strptime(table["created"], "%Y-%m-%dT%H:%M:%SZ")
    return Manifest(
        str(table["kind"]),
        str(table["federation"]),
        str(table["whose"]),
        str(table["created"]),
        str(table["release"]),
        files,
        tuple(_name(name) for name in table["left_out"]),
    )


def _name(name: object) -> str:
    """Of a file below the folder, and nowhere else."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.@+-]+(/[\w.@+-]+)*", name):
        raise ValueError
    if {".", ".."} & set(name.split("/")):
        raise ValueError
    return name


def _digest(table: Mapping[str, Any]) -> str:
    plain = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def _damaged(place: Path) -> CorruptData:
    return CorruptData(f"{place} is damaged; nothing was changed, use another backup")
