"""Figures printed in the FPL paper (seed 002 of the specification), for comparison with ours."""

from __future__ import annotations

ITALY = {
    "Random": (0.00030, 0.00029, 10478, 0.28914),
    "Top-Pop": (0.04634, 0.05506, 19, 0.00035),
    "User-kNN": (0.06881, 0.07833, 577, 0.00282),
    "Item-kNN": (0.04663, 0.05356, 3241, 0.03293),
    "VAE": (0.10421, 0.21324, 165, 0.02336),
    "BPR-MF": (0.04560, 0.05458, 19, 0.00036),
    "FCF": (0.03126, 0.03708, 403, 0.00158),
    "sFPL": (0.04701, 0.05600, 18, 0.00036),
    "sFPL+": (0.05595, 0.06229, 932, 0.00789),
    "pFPL": (0.04642, 0.05465, 96, 0.00056),
    "pFPL+": (0.05565, 0.06291, 936, 0.00725),
}
"""Table 2, Italy: P@10, R@10, IC@10, Gini@10. The VAE cell covers 14 % of the users only."""

ITALY_BEST_SHARE = {"sFPL": 0.4, "sFPL+": 0.2, "pFPL": 1.0, "pFPL+": 0.1}
"""Table 2, foot: the best π for Italy."""

BRAZIL = {"users": 17_473, "items": 47_270, "positives": 599_958}
"""Table 1: the Brazilian training set."""

BRAZIL_COST = {
    0.0: (28_360_614_618, 28_380_614_992),
    0.2: (28_360_734_610, 28_384_735_058),
    0.4: (28_360_854_601, 28_388_855_125),
    0.6: (28_360_974_593, 28_392_975_191),
    0.8: (28_361_094_584, 28_397_095_258),
    1.0: (28_361_214_576, 28_401_215_324),
}
"""Table 3: CCE for T = 1 (sFPL, pFPL) and for T = X⁺/N (sFPL+, pFPL+), by π."""

BRAZIL_FRESHNESS = {"sFPL": 100.00, "sFPL+": 100.00, "pFPL": 0.0057, "pFPL+": 0.0057}
"""Table 3: normalised freshness in per cent."""

CATEGORIES = (
    "Arts & Entertainment",
    "College & University",
    "Food",
    "Nightlife Spot",
    "Outdoors & Recreation",
    "Professional & Other Places",
    "Residence",
    "Shop & Service",
    "Travel & Transport",
)

ITALY_BIAS = (1.4130, 0.8221, 0.9317, 1.3559, 1.3292, 0.7868, 0.4171, 0.8482, 1.2678)
"""Table 1: training bias B_T of Italy, by category."""

BRAZIL_DISPARITY = {
    "Random": (-0.3249, 0.5593, -0.0801, -0.2448, -0.1428, 0.5490, 0.9113, 0.2026, -0.2729),
    "Top-Pop": (-1.0, -1.0, -0.3019, -1.0, -0.9994, -1.0, -1.0, -1.0, 6.6595),
    "User-kNN": (0.4446, -0.8318, 0.2608, -0.2129, 0.1615, -0.8422, -0.9694, -0.4307, 0.6206),
    "Item-kNN": (0.3459, 0.1399, 0.0676, -0.1023, 0.1525, -0.3470, -0.3805, -0.2270, 0.0830),
    "VAE": (0.3926, -0.7234, 0.2225, -0.3148, 0.1938, -0.7764, -0.9107, -0.3099, 0.5723),
    "BPR-MF": (0.3009, -0.7118, 0.2322, -0.7104, 0.1421, -0.7584, -0.9923, -0.4343, 1.1648),
    "sFPL": (0.2716, -0.7380, 0.2629, -0.7558, 0.1609, -0.8136, -0.9966, -0.3682, 1.0719),
    "sFPL+": (0.3111, -0.6752, 0.1601, -0.3963, 0.2781, -0.8057, -0.9029, -0.2906, 0.8118),
    "pFPL": (0.2526, -0.8128, 0.2183, -0.6132, 0.1431, -0.7386, -0.9916, -0.4791, 1.2390),
    "pFPL+": (0.1535, -0.5655, 0.1901, -0.3508, 0.3449, -0.7639, -0.9130, -0.4099, 0.7783),
}
"""Table 4: bias disparity on Brazil (the paper has no such table for Italy)."""
