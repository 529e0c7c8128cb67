"""Blocks as a data owner's store holds them: packed, and stamped for their place."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sottovoce.errors import StoreError
from sottovoce.stamps import stamp, unstamp

STAMP_BLOCKS = """
UPDATE parts SET negatives = stamp(negatives, 'parts', 0, user, part),
                 positives = stamp(positives, 'parts', 1, user, part);
UPDATE blocks SET negatives = stamp(negatives, 'blocks', 0, user, place),
                  positives = stamp(positives, 'blocks', 1, user, place);
"""
"""Brings tables of an earlier release up to this one, within a connection that knows `stamp`."""


def packed(
    negatives: Sequence[int], positives: Sequence[int], table: str, *key: int
) -> tuple[bytes, bytes]:
    """The two fields of the row with this key."""
    fields = [struct.pack(f"<{len(items)}I", *items) for items in (negatives, positives)]
    return stamp(fields[0], table, 0, *key), stamp(fields[1], table, 1, *key)


def unpacked(
    negatives: bytes, positives: bytes, table: str, *key: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What `packed` was given. Raises where it is damaged."""
    fields = unstamp(negatives, table, 0, *key), unstamp(positives, table, 1, *key)
    if fields[0] is None or fields[1] is None:
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return _numbers(fields[0]), _numbers(fields[1])


def _numbers(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(content) // 4}I", content)
