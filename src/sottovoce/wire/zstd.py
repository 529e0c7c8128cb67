"""zstd on the wire: one frame, and nothing behind it, unpacked by Python's own module, which
`backports.zstd` is before Python 3.14."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

_LIBRARY = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_LEVEL = 3
_WINDOW = 23
"""Logarithm of the memory that unpacking may take, 8 MB: what every reader of zstd should grant
(RFC 8878), and no writer of ours asks for."""


_MOST_BLOCKS, _SMALL_BLOCK = 1 << 16, 256
"""A message with more blocks than this, or with as many small ones, is refused: counting a message
of nothing but empty blocks takes time."""
_MAGIC = bytes.fromhex("28b52ffd")
_BROKEN = "what was compressed is broken, is not whole, or has something behind it"


def compress(plain: bytes) -> bytes:
    packed: bytes = _library().compress(plain, level=_LEVEL)
    return packed


def decompress(packed: bytes, most: int) -> bytes:
    """What was packed, or its first `most` bytes. Raises `ValueError` where it is broken."""
    _check_frame(packed, most)
    library = _library()
    opened = library.ZstdDecompressor(
        options={library.DecompressionParameter.window_log_max: _WINDOW}
    )
    try:
        plain: bytes = opened.decompress(packed, most)
    except library.ZstdError as error:
        raise ValueError(_BROKEN) from error
    if len(plain) < most and not opened.eof:
        raise ValueError(_BROKEN)
    return plain


def _check_frame(packed: bytes, most: int) -> None:
    """Raises `ValueError` where this is not one frame (RFC 8878, 3.1.1) that asks for little
    memory. The library would say so only after it has read on."""
    if len(packed) < 6 or packed[:4] != _MAGIC:
        raise ValueError(_BROKEN)
    told = packed[4]
    alone = told >> 5 & 1  # one segment: its window is its length
    at = 6 - alone + (0, 1, 2, 4)[told & 3]
    width = (alone, 2, 4, 8)[told >> 6]
    if alone:
        window = int.from_bytes(packed[at : at + width], "little") + 256 * (width == 2)
    else:
        exponent, eighths = divmod(packed[5], 8)
        window = (8 + eighths) << (7 + exponent)
    at += width
    last = 0
    for _ in range(max(_MOST_BLOCKS, most // _SMALL_BLOCK)):
        block = int.from_bytes(packed[at : at + 3], "little")
        last, repeats = block & 1, block >> 1 & 3 == 1
        at += 3 + (1 if repeats else block >> 3)
        if last or at >= len(packed):
            break
    if not last or at + 4 * (told >> 2 & 1) != len(packed) or window > 1 << _WINDOW:
        raise ValueError(_BROKEN)


@functools.cache
def _library() -> Any:
    """Loaded where something is packed: most of the package does without."""
    return import_module(_LIBRARY)
