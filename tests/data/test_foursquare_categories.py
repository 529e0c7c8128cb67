from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.foursquare import (
    LEAVES,
    TOP_CATEGORIES,
    top_category,
    with_top_categories,
)
from sottovoce.data.splitting import keep_active, temporal_holdout


@pytest.mark.parametrize(
    ("leaf", "top"),
    [
        ("Train Station", "Travel & Transport"),
        ("Home (private)", "Residence"),
        ("Gym", "Outdoors & Recreation"),
        ("Bar", "Nightlife Spot"),
        ("Event Space", "Professional & Other Places"),
        ("Café", "Food"),
        ("Cafe\u0301", "Food"),
        ("Caf\x1a", "Food"),
        ("Caf\x1a\x1a", "Food"),
        ("Ramen /  Noodle House", "Food"),
        ("Cafeteria", "Food"),
        ("College Cafeteria", "College & University"),
        ("Shop & Service", "Shop & Service"),
        ("Soccer Stadium", "Arts & Entertainment"),
        ("soccer field", "Outdoors & Recreation"),
        ("Moon Base", None),
        ("", None),
    ],
)
def test_leaves_lie_where_the_old_tree_had_them(leaf: str, top: str | None) -> None:
    assert top_category(leaf) == top


def test_no_leaf_is_listed_twice() -> None:
    names = [leaf for top in TOP_CATEGORIES for leaf in LEAVES[top]]
    assert len(names) == len(set(names)) > 600
    assert all(top_category(leaf) == top for top in TOP_CATEGORIES for leaf in LEAVES[top])


def test_roll_up_merges_and_drops() -> None:
    dataset = Dataset(
        "x",
        Interactions.from_pairs([0, 0, 0], [0, 1, 2]),
        item_categories=(("Bar", "Pub"), ("Moon Base",), ("Pub", "Café")),
    )
    rolled = with_top_categories(dataset)
    assert rolled.item_categories == (("Nightlife Spot",), (), ("Nightlife Spot", "Food"))


@pytest.mark.data
def test_every_leaf_of_italy_is_placed(real: Callable[[str], Dataset]) -> None:
    for leaf in real("foursquare-italy").category_names():
        assert top_category(leaf) is not None, leaf


@pytest.mark.data
def test_training_bias_of_italy_is_near_the_paper(real: Callable[[str], Dataset]) -> None:
    """The paper orders by the last visit, our file by the first, so places that are visited again
    and again (homes, stations) stay in training here; hence the width."""
    paper = [1.4130, 0.8221, 0.9317, 1.3559, 1.3292, 0.7868, 0.4171, 0.8482, 1.2678]
    dataset = with_top_categories(keep_active(real("foursquare-italy")))
    split = temporal_holdout(dataset.interactions)
    inside = dataset.category_matrix()[split.item_map]
    shares = inside[split.train.items].mean(axis=0)
    catalogue = inside[: split.train.n_items].mean(axis=0)
    assert dataset.category_names() == TOP_CATEGORIES
    assert np.all(np.abs(np.log(shares / catalogue / paper)) < 0.25)
