"""Stamps: a checksum behind everything that is stored and later told or learnt from, so that a disk
that has lost or changed a bit is found out before anybody is told what is not so.

A stamp says where its content belongs: content in another's place is found out as well. It is no
defence against somebody who can write to the disk.
"""

from __future__ import annotations

import hashlib

STAMP_BYTES = 16


def stamp(content: bytes, *where: str | int) -> bytes:
    """`content` with its stamp behind it; nothing at all stays nothing."""
    return content + _stamp_of(content, where) if content else b""


def unstamp(stamped: bytes, *where: str | int) -> bytes | None:
    """What was stamped; None where that, its stamp or its place is another."""
    if not stamped:
        return b""
    content = bytes(stamped[:-STAMP_BYTES])
    if not content or _stamp_of(content, where) != bytes(stamped[-STAMP_BYTES:]):
        return None
    return content


def _stamp_of(content: bytes, where: tuple[str | int, ...]) -> bytes:
    made = hashlib.blake2b("\0".join(map(str, where)).encode() + b"\0", digest_size=STAMP_BYTES)
    made.update(content)
    return made.digest()
