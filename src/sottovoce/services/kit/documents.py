"""What everyone may fetch: made once, kept in memory, and named by ETags for caches on the way.

A model of 50 MB is compressed once per version and encoding, whatever the number of devices that
fetch it. The memory that this takes has a limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView
from sottovoce.wire import zstd
from sottovoce.wire.refusals import Refused
from sottovoce.wire.versions import delta_size, encode_delta, encode_model, full_size

Coding = Literal["identity", "zstd", "gzip"]
CHANGES_KEPT = 50
"""Whoever has a version that is older by more than this gets the whole model."""


@dataclass(frozen=True, slots=True, repr=False)
class Document:
    """Bytes with a name of their own."""

    body: bytes
    coding: Coding
    etag: bytes

    @classmethod
    def of(cls, content: bytes, coding: Coding = "identity") -> Document:
        """`content` in that coding, or as it is where that is no longer."""
        body = _compressed(content, coding)
        if len(body) >= len(content):
            body, coding = content, "identity"
        digest = hashlib.blake2b(body, digest_size=12).hexdigest()
        return cls(body, coding, f'"{digest}-{coding}"'.encode())


@dataclass(frozen=True, slots=True, repr=False)
class Version:
    """A published model and, for each row, the version that last changed it."""

    view: ModelView
    changed: NDArray[np.int32]
    ready: Mapping[tuple[int | None, Coding], Document] = field(default_factory=dict)
    """What is there before anybody asks, by base and coding."""
    _oldest: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_oldest", self._oldest_base())

    @classmethod
    def prepared(cls, view: ModelView, changed: NDArray[np.int32]) -> Version:
        """With what devices ask for: nobody has to wait for it behind somebody else."""
        plain = cls(view, changed)
        bases = {None, plain.base(view.round - 1)}
        ready = {(base, "zstd"): Document.of(plain.content(base), "zstd") for base in bases}
        ready[None, "gzip"] = Document.of(plain.content(None), "gzip")
        return cls(view, changed, ready)  # type: ignore[arg-type]

    def base(self, since: int | None) -> int | None:
        """The version against which a device that has `since` is told the changes; None where the
        whole model is shorter, or `since` too old. Costs nothing."""
        if since is None or not self._oldest <= since <= self.view.round:
            return None
        return since

    def content(self, since: int | None) -> bytes:
        """The model, or what changed since a version that the device has where that is shorter."""
        base = self.base(since)
        if base is None:
            return encode_model(self.view)
        return encode_delta(base, self.view, self.changed > base)

    def _oldest_base(self) -> int:
        n_items, width = self.view.items.shape
        newest = self.view.round
        age = np.clip(newest - self.changed.astype(np.int64), 0, CHANGES_KEPT)
        later = np.concatenate([[0], np.cumsum(np.bincount(age, minlength=CHANGES_KEPT + 1))])
        oldest = newest + 1
        for back in range(min(CHANGES_KEPT, newest) + 1):
            # later[back]: rows that have changed in the last so many versions.
            if delta_size(n_items, int(later[back]), width) >= full_size(n_items, width):
                break
            oldest = newest - back
        return oldest


class DocumentCache:
    """Documents that are made when first asked for, at most `limit` bytes of them, not counting
    those that stay. Whoever asks while one is being made waits for the same one; `waiting` of them
    are made or wait to be made at once."""

    def __init__(self, limit: int, waiting: int = 4) -> None:
        self._limit = limit
        self._waiting = waiting
        self._staying: dict[tuple[object, ...], Document] = {}
        self._lost: set[tuple[object, ...]] = set()
        self._kept: OrderedDict[tuple[object, ...], Document] = OrderedDict()
        self._size = 0
        self._being_made: dict[tuple[object, ...], asyncio.Future[Document]] = {}
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    def lost(self, key: tuple[object, ...]) -> bool:
        """Whether it was made before, and let go for others: making it again and again would be
        all that there is time for."""
        return key in self._lost

    async def get(
        self, key: tuple[object, ...], make: Callable[[], Document], *, stays: bool = False
    ) -> Document:
        """Refused if too many others are waited for. One that `stays` is kept until it is dropped,
        whatever else is asked for."""
        staying = self._staying.get(key)
        if staying is not None:
            return staying
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        made = self._being_made.get(key)
        if made is None:
            if len(self._being_made) >= self._waiting:
                raise Refused(
                    "overload",
                    "too many different documents are asked for at once; come back later",
                )
            made = asyncio.get_running_loop().run_in_executor(self._maker, make)
            self._being_made[key] = made
            made.add_done_callback(lambda done: self._keep(key, done, stays))
        return await asyncio.shield(made)

    def _keep(self, key: tuple[object, ...], done: asyncio.Future[Document], stays: bool) -> None:
        del self._being_made[key]
        if done.cancelled() or done.exception() is not None:
            return
        if stays:
            self._staying[key] = done.result()
            return
        self._kept[key] = done.result()
        self._size += _weight(done.result())
        while self._size > self._limit and len(self._kept) > 1:
            gone, document = self._kept.popitem(last=False)
            self._size -= _weight(document)
            self._lost.add(gone)

    def drop(self, gone: Callable[[tuple[object, ...]], bool]) -> None:
        """Keep no document any more whose key is `gone`."""
        for key in [key for key in self._kept if gone(key)]:
            self._size -= _weight(self._kept.pop(key))
        for key in [key for key in self._staying if gone(key)]:
            del self._staying[key]
        self._lost = {key for key in self._lost if not gone(key)}

    def close(self) -> None:
        self._maker.shutdown(wait=False, cancel_futures=True)


def _weight(document: Document) -> int:
    return len(document.body) + 1024


def best_coding(accepted: bytes) -> Coding:
    """By an Accept-Encoding header: zstd before gzip before nothing."""
    weights = {}
    for part in accepted.decode("latin-1").lower().split(","):
        name, _, rest = part.strip().partition(";")
        weight = re.fullmatch(r"\s*q=([0-9.]{1,5})\s*", rest) if rest else None
        try:
            weights[name.strip()] = 1.0 if weight is None else float(weight[1])
        except ValueError:
            continue
    codings: tuple[Coding, ...] = ("zstd", "gzip")
    for coding in codings:
        if weights.get(coding, weights.get("*", 0.0)) > 0:
            return coding
    return "identity"


def wanted_range(header: bytes, size: int) -> tuple[int, int] | Literal["none", "beyond"]:
    """First byte and the one after the last of a Range header. "none" where it asks for all of it,
    for several parts or for nothing we know; "beyond" where no byte of it is there."""
    found = re.fullmatch(rb"bytes=(\d{0,15})-(\d{0,15})", header.strip())
    if found is None or found[0].endswith(b"=-"):
        return "none"
    first, last = found[1], found[2]
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else "beyond"
    if last and int(last) < int(first):
        return "none"
    if int(first) >= size:
        return "beyond"
    return int(first), min(size, int(last) + 1) if last else size


def etag_matches(header: bytes, etag: bytes) -> bool:
    """Whether an If-None-Match header names this tag."""
    return any(tag.strip().removeprefix(b"W/") in (etag, b"*") for tag in header.split(b","))


def _compressed(content: bytes, coding: Coding) -> bytes:
    if coding == "zstd":
        return zstd.compress(content)
    if coding == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        return packer.compress(content) + packer.flush()
    return content
