"""Which device numbers a node may answer for. Its operator says so when the node is let in."""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from numpy.typing import NDArray

from sottovoce.errors import KeyTrouble, UsageError

Ranges = tuple[tuple[int, int], ...]
"""First and last number of each stretch, ascending, apart from each other."""

_END = 2**32


def parse_ranges(text: str) -> Ranges:
    """From `1000-1999`, or several of these with commas between."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*", part)
        if match is None:
            raise UsageError(
                f"{text!r} is no range of device numbers; write it as 1000-1999, several with "
                "commas between"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if not first <= last < _END:
            raise UsageError(
                f"the device numbers {part.strip()} do not ascend, or exceed {_END - 1}"
            )
        found.append((first, last))
    found.sort()
    for (_, last), (first, _) in itertools.pairwise(found):
        if first <= last:
            raise UsageError(f"{text!r} names device {first} twice")
    return tuple(found)


def ranges_of(numbers: NDArray[np.int64]) -> Ranges:
    """The shortest list for these ascending numbers."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return tuple((int(run[0]), int(run[-1])) for run in runs if len(run))


def show_ranges(ranges: Ranges) -> str:
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges) or "none"


def within(numbers: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    """Which of these numbers lie in the ranges."""
    if not ranges:
        return np.zeros(len(numbers), dtype=bool)
    table = np.array(ranges, dtype=np.int64)
    row = np.searchsorted(table[:, 0], numbers, side="right") - 1
    inside: NDArray[np.bool_] = (row >= 0) & (numbers <= table[np.maximum(row, 0), 1])
    return inside


def overlap(some: Ranges, others: Ranges) -> tuple[int, int] | None:
    """A stretch that both have."""
    for first, last in some:
        for begin, end in others:
            if first <= end and begin <= last:
                return max(first, begin), min(last, end)
    return None


def identity_of(public_key: bytes) -> str:
    """The name of a node in the checkpoint, from its key as the SuperLink holds it."""
    return hashlib.sha256(public_key).hexdigest()


def identity_of_file(path: Path) -> str:
    """The same, from the file that is registered."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except FileNotFoundError:
        raise KeyTrouble(f"{path} is not there; it is the node's file that ends in .pub") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyTrouble(
            f"{path} is no public key of a node; `sottovoce keys node` makes one"
        ) from None
    return identity_of(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
