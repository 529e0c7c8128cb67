"""Tiny worlds for the baselines."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.core.interactions import Interactions


@pytest.fixture(scope="session")
def checkerboard() -> Interactions:
    """User u has every item of her own parity but item u, which is the one to recommend."""
    size = 20
    users, items = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) % 2 == 0)
    held_out = users == items
    return Interactions.from_pairs(users[~held_out], items[~held_out], n_users=size, n_items=size)


@pytest.fixture(scope="session")
def sparse() -> Interactions:
    """40 users, 30 items, about 6 items each, with ratings and times; user 7 and item 3 have
    nothing."""
    table = np.random.default_rng(5).random((40, 30)) < 0.2
    table[7] = False
    table[:, 3] = False
    users, items = np.nonzero(table)
    return Interactions.from_pairs(
        users, items, n_users=40, n_items=30,
        ratings=1.0 + (7 * users + 3 * items) % 5, timestamps=(11 * users + 5 * items) % 97,
    )  # fmt: skip
