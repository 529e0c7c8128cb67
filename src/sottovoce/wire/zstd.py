"""zstd, by whatever brings it: Python itself since 3.14, the same library for earlier ones, which
comes with the services, or pyarrow, which every installation has and which takes 25 MB of memory.
All give the same bytes."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

_LIBRARIES = ("compression.zstd", "backports.zstd")
_LEVEL = 3
_WINDOW = 23
"""Logarithm of the memory that unpacking may take, 8 MB: what every reader of zstd should grant
(RFC 8878), and no writer of ours asks for."""


def compress(plain: bytes) -> bytes:
    library = _library()
    packed: bytes
    if library is None:
        import pyarrow as pa

        packed = pa.Codec("zstd", compression_level=_LEVEL).compress(plain, asbytes=True)
    else:
        packed = library.compress(plain, level=_LEVEL)
    return packed


def decompress(packed: bytes, most: int) -> bytes:
    """What was packed, or its first `most` bytes. Raises `ValueError` where it is broken."""
    library = _library()
    plain: bytes
    if library is None:
        import pyarrow as pa

        try:
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as source:
                plain = source.read(most)
        except (OSError, pa.ArrowException) as error:
            raise ValueError("what was compressed is broken") from error
        return plain
    opened = library.ZstdDecompressor(
        options={library.DecompressionParameter.window_log_max: _WINDOW}
    )
    try:
        plain = opened.decompress(packed, most)
    except library.ZstdError as error:
        raise ValueError("what was compressed is broken") from error
    if opened.unused_data or (len(plain) < most and not opened.eof):
        raise ValueError("what was compressed is not whole, or has something behind it")
    return plain


def is_loaded() -> bool:
    """Whether somebody has had to do with zstd already."""
    return any(name in sys.modules for name in (*_LIBRARIES, "pyarrow"))


@functools.cache
def _library() -> Any:
    """The library for zstd alone, or None."""
    for name in _LIBRARIES:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            pass
    return None
