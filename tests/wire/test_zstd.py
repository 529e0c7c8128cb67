"""zstd on the wire: one whole frame is read, as other libraries write it, and nothing else."""

import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.wire import zstd

LIBRARY = zstd._library()
PLAIN = np.random.default_rng(3).integers(0, 40, 300_000, dtype=np.uint8).tobytes()
MAGIC = bytes.fromhex("28b52ffd")
SKIPPED = bytes.fromhex("502a4d1801000000") + b"x"
"""A frame that readers of several skip."""


def by_pyarrow(plain):
    return pa.Codec("zstd", compression_level=3).compress(plain, asbytes=True)


def outcome(packed, most):
    try:
        return zstd.decompress(packed, most)
    except ValueError as error:
        return type(error)


def wide(window, *, known=True):
    """A short message for whose unpacking 2^window bytes are asked."""
    options = {
        LIBRARY.CompressionParameter.window_log: window,
        LIBRARY.CompressionParameter.content_size_flag: known,
    }
    packer = LIBRARY.ZstdCompressor(options=options)
    return packer.compress(PLAIN) + packer.flush()


@settings(max_examples=60, deadline=None)
@given(plain=st.one_of(st.binary(max_size=400), st.integers(0, 300_000).map(lambda n: PLAIN[:n])))
def test_it_reads_what_another_library_writes_and_the_other_way_round(plain):
    ours = zstd.compress(plain)
    for packed in (ours, by_pyarrow(plain)):
        assert outcome(packed, len(plain) + 1) == plain
    assert pa.Codec("zstd").decompress(ours, len(plain), asbytes=True) == plain


def test_no_more_is_unpacked_than_was_asked_for():
    assert zstd.decompress(zstd.compress(PLAIN), 1000) == PLAIN[:1000]
    assert zstd.decompress(zstd.compress(PLAIN), len(PLAIN)) == PLAIN
    assert zstd.decompress(zstd.compress(b""), 1) == b""


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        MAGIC,
        b"not zstd at all",
        *(zstd.compress(PLAIN)[:n] for n in (5, 6, 9, 12, 5000, -1)),
        zstd.compress(PLAIN) + b"\0",
        zstd.compress(PLAIN) + zstd.compress(b"a second one"),
        zstd.compress(PLAIN) + zstd.compress(b""),
        zstd.compress(PLAIN) + SKIPPED,
        SKIPPED + zstd.compress(PLAIN),
        SKIPPED,
    ],
)
def test_what_is_not_one_whole_frame_is_refused(broken):
    with pytest.raises(ValueError, match="broken"):
        zstd.decompress(broken, len(PLAIN) + 100)


@pytest.mark.parametrize("known", [True, False])
def test_a_window_above_the_limit_is_refused(known):
    assert zstd.decompress(wide(23, known=known), len(PLAIN) + 1) == PLAIN
    with pytest.raises(ValueError, match="broken"):
        zstd.decompress(wide(24, known=known), len(PLAIN) + 1)


BLOCK = (1 << 17) << 3 | 1 << 1
"""The head of a block that repeats one byte 131,072 times."""
BOMBS = {
    "announces 2^60": MAGIC + b"\xe0" + (1 << 60).to_bytes(8, "little") + b"\1\0\0",
    "announces 8 MB": MAGIC + b"\xa0" + (1 << 23).to_bytes(4, "little") + b"\1\0\0",
    "announces 2^31": MAGIC + b"\xa0" + (1 << 31).to_bytes(4, "little") + b"\1\0\0",
    "unpacks to 1 GB": MAGIC + b"\0\x68" + (BLOCK.to_bytes(3, "little") + b"x") * 8192 + b"\1\0\0",
    "has empty blocks": MAGIC + b"\0\x68" + bytes(3) * 1_000_000 + b"\1\0\0",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_message_takes_neither_memory_nor_time(name):
    honest = PLAIN * 80  # 24 MB
    packed = zstd.compress(honest)

    def seconds(*given):
        started = time.thread_time()
        found = outcome(*given)
        return time.thread_time() - started, found

    usual = min(seconds(packed, len(honest))[0] for _ in range(3))
    took, plain = seconds(BOMBS[name], 1001)
    assert took < 10 * usual
    assert plain == b"x" * 1001 if name == "unpacks to 1 GB" else plain in (ValueError, b"")
    tracemalloc.start()
    try:
        outcome(BOMBS[name][:50_000], 1001)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
