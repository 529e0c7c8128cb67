"""ChaCha20 (RFC 8439) in compiled loops, which cannot call a library's generator."""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

from numba import njit, uint32

BLOCK_WORDS = 16
"""Words of 32 bits in a block."""


@njit(inline="always")
def _turned(x, n):
    return uint32((x << uint32(n)) | (x >> uint32(32 - n)))


@njit(inline="always")
def quarter(a, b, c, d):
    a = uint32(a + b)
    d = _turned(uint32(d ^ a), 16)
    c = uint32(c + d)
    b = _turned(uint32(b ^ c), 12)
    a = uint32(a + b)
    d = _turned(uint32(d ^ a), 8)
    c = uint32(c + d)
    b = _turned(uint32(b ^ c), 7)
    return a, b, c, d


@njit(nogil=True, cache=True)
def chacha_words(key, nonce, counter, out):
    """One block of ChaCha20 (RFC 8439, section 2.3) as 16 words."""
    k0, k1, k2, k3, k4, k5, k6, k7 = (
        key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
    )  # fmt: skip
    c0, c1, c2, c3 = uint32(0x61707865), uint32(0x3320646E), uint32(0x79622D32), uint32(0x6B206574)
    n0, n1, n2, n3 = uint32(counter), nonce[0], nonce[1], nonce[2]
    a0, a1, a2, a3 = c0, c1, c2, c3
    b0, b1, b2, b3 = k0, k1, k2, k3
    e0, e1, e2, e3 = k4, k5, k6, k7
    d0, d1, d2, d3 = n0, n1, n2, n3
    for _ in range(10):
        a0, b0, e0, d0 = quarter(a0, b0, e0, d0)
        a1, b1, e1, d1 = quarter(a1, b1, e1, d1)
        a2, b2, e2, d2 = quarter(a2, b2, e2, d2)
        a3, b3, e3, d3 = quarter(a3, b3, e3, d3)
        a0, b1, e2, d3 = quarter(a0, b1, e2, d3)
        a1, b2, e3, d0 = quarter(a1, b2, e3, d0)
        a2, b3, e0, d1 = quarter(a2, b3, e0, d1)
        a3, b0, e1, d2 = quarter(a3, b0, e1, d2)
    out[0], out[1], out[2], out[3] = a0 + c0, a1 + c1, a2 + c2, a3 + c3
    out[4], out[5], out[6], out[7] = b0 + k0, b1 + k1, b2 + k2, b3 + k3
    out[8], out[9], out[10], out[11] = e0 + k4, e1 + k5, e2 + k6, e3 + k7
    out[12], out[13], out[14], out[15] = d0 + n0, d1 + n1, d2 + n2, d3 + n3
