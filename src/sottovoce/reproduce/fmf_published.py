"""Figures printed in the FMF-LDP paper (Minto et al. 2021), for comparison with ours."""

from __future__ import annotations

FIGURE4 = {
    (1_000, 1_000): 0.1160,
    (1_000, 5_000): 0.1010,
    (1_000, 9_781): 0.1090,
    (10_000, 1_000): 0.6325,
    (10_000, 5_000): 0.1988,
    (10_000, 9_781): 0.1216,
    (50_000, 1_000): 0.6972,
    (50_000, 5_000): 0.6801,
    (50_000, 9_781): 0.5654,
}
"""HR@10 by users and items, k = 100, ε = 2.5, 20 epochs."""

FIGURE5 = {
    "mf-np": (0.4310, 0.6700, 0.8179),
    "dplcf": (0.4203, 0.5969, 0.7000),
    "published": (0.2163, 0.3755, 0.5131),
    "published-250": (0.2315, 0.3980, 0.5384),
    "random": (0.0200, 0.0500, 0.1000),
}
"""HR@2, HR@5 and HR@10 on the latest split of 75,040 users and 9,781 items."""

RATIO = 0.5131 / 0.8179
"""FMF-LDP-100 over MF-NP in Figure 5."""

DPLCF_RATIO = 0.7000 / 0.8179
"""DPLCF over MF-NP in Figure 5."""

UP_PER_EPOCH = 400
"""§5.3: bytes that a device sends in an epoch at k = 100."""

DOWN_PER_EPOCH = {1_000: 20_000, 9_781: 196_000}
"""§5.3: bytes of V by items, at five factors."""

EPOCHS = 20
