"""provisional"""

from typing import Any

import numpy as np
from scipy.linalg import eigh


def head_size(count: float, sigma: float, n_items: int, least: int, most: int) -> int:
    return int(min(max(6.6 * np.sqrt(max(count, 0.0) / sigma), least), most, n_items))


def choose_head(q: Any, size: int) -> Any:
    return np.sort(np.argsort(-q, kind="stable")[:size])


def fit_pairs(sums: Any, q: Any, sigma: float, count: float, recency: bool, most: int) -> Any:
    H = len(q)
    G = np.zeros((H, H))
    a, b = np.triu_indices(H, 1)
    G[a, b] = sums[H:]
    G[b, a] = sums[H:]
    G[np.arange(H), np.arange(H)] = sums[:H]
    e = sigma * np.sqrt(2 * H)
    w, V = eigh(G)
    k = w > e
    if k.sum() < 2:
        return None
    f = np.sqrt(w[k] ** 2 - e**2)
    V = V[:, k]
    lam = max(2 * e, 0.005 * count) if recency else max(4 * e, 0.03 * count)
    L = (V * V) @ f
    kap = max(sums[:H] @ q / (q @ q), 0)
    D = lam + np.maximum(L, kap * q) - L
    C = np.linalg.inv(np.diag(1 / f) + (V / D[:, None]).T @ V)
    cw, cv = eigh((C + C.T) / 2)
    Y = (V / D[:, None]) @ cv * np.sqrt(np.maximum(cw, 0))
    P = 1 / D - (Y * Y).sum(1)
    Y = Y[:, ::-1][:, :most]
    return Y, 1 / P
