"""What everyone may fetch: made once, kept in memory, and told apart by ETags.

A model of 50 MB is compressed once per version and encoding, whatever the number of devices that
fetch it. The memory that this takes has a limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sottovoce.engines.versions import delta_size, encode_delta, encode_model, full_size
from sottovoce.errors import ServiceError
from sottovoce.messages import ModelView

Coding = Literal["identity", "zstd", "gzip"]


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

    def content(self, since: int | None) -> bytes:
        """The model, or what changed since a version that the device has where that is shorter."""
        n_items, width = self.view.items.shape
        if since is not None and since <= self.view.round:
            rows = self.changed > since
            if delta_size(n_items, int(rows.sum()), width) < full_size(n_items, width):
                return encode_delta(since, self.view, rows)
        return encode_model(self.view)


class Busy(ServiceError):
    """Too much is asked for at once."""


class Shelf:
    """Documents that are made when first asked for, at most `limit` bytes of them. Whoever asks
    while one is being made waits for the same one."""

    def __init__(self, limit: int, waiting: int = 16) -> None:
        self._limit = limit
        self._waiting = waiting
        self._kept: OrderedDict[tuple[object, ...], Document] = OrderedDict()
        self._size = 0
        self._being_made: dict[tuple[object, ...], asyncio.Future[Document]] = {}
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def get(self, key: tuple[object, ...], make: Callable[[], Document]) -> Document:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        made = self._being_made.get(key)
        if made is None:
            if len(self._being_made) >= self._waiting:
                raise Busy("too many versions of the model are asked for at once; come back later")
            made = asyncio.get_running_loop().run_in_executor(self._maker, make)
            self._being_made[key] = made
            made.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(made)

    def _keep(self, key: tuple[object, ...], done: asyncio.Future[Document]) -> None:
        del self._being_made[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        self._size += _weight(done.result())
        while self._size > self._limit and len(self._kept) > 1:
            self._size -= _weight(self._kept.popitem(last=False)[1])

    def drop(self, gone: Callable[[tuple[object, ...]], bool]) -> None:
        """Keep no document any more whose key is `gone`."""
        for key in [key for key in self._kept if gone(key)]:
            self._size -= _weight(self._kept.pop(key))

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
    for coding in ("zstd", "gzip"):
        if weights.get(coding, weights.get("*", 0.0)) > 0:
            return "zstd" if coding == "zstd" else "gzip"
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
        packed: bytes = pa.Codec("zstd", compression_level=3).compress(content, asbytes=True)
        return packed
    if coding == "gzip":
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        return packer.compress(content) + packer.flush()
    return content
