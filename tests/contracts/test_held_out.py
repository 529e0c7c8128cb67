"""Nothing that learns here can see what is held out: change the test part at will, and everything
that was trained stays the same, bit for bit. Published rivals drew their negatives from outside a
user's whole history, which tells a model the answer (`sottovoce reproduce negatives-leak`)."""

from dataclasses import fields

import numpy as np
import pytest

from sottovoce.algorithms.base import ALGORITHMS
from sottovoce.baselines import BASELINES
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset, Labels, PublishedSplit
from sottovoce.experiment import Experiment
from sottovoce.rng import Streams
from sottovoce.runs.train import run_experiment
from sottovoce_papers.rival_loop import RivalWorld, train_rival
from sottovoce_papers.rivals import RIVALS, rival_of

USERS, ITEMS = 30, 24
SMALL = {
    "embedding_size": 5, "hidden_size": 6, "rounds": 2, "epochs": 2, "neighbors": 4, "threads": 1,
    "cohort_size": 20, "local_epochs": 1, "pairs": 4,
}  # fmt: skip
"""By field, where a component has it."""
MORE = {
    "uc": {"algorithm": {"attributes": [{"name": "sex"}]}},
    "fmf": {"release": {"max_reports": 4, "tiers": [{"epsilon": 2.0, "min_devices": 5}]},
            "consent": {"epsilon": 2.0, "max_reports": 4, "total_epsilon": 1000.0}},
    "gram": {"link": {"min_devices": 5}, "release": {"epsilon": 4.0}, "consent": {"epsilon": 4.0}},
    "drift": {"algorithm": {"positive_from": 3.0}, "consent": {}},
}  # fmt: skip
"""What an algorithm needs beside its defaults. One that is not here is run with them."""


def world(seed, train_seed=0):
    """The training part is that of `train_seed`, the test part that of `seed`: up to three of the
    items that a user has not."""
    first, then = np.random.default_rng(train_seed), np.random.default_rng([seed, 1])
    users, items, held = [], [], []
    for user in range(USERS):
        order = first.permutation(ITEMS)
        hers = {*order[:7].tolist(), user % ITEMS}  # every item is in training
        left = [int(i) for i in order if int(i) not in hers]
        test = then.choice(left, size=1 + int(then.integers(3)), replace=False).tolist()
        users += [user] * (len(hers) + len(test))
        items += [*hers, *test]
        held += [False] * len(hers) + [True] * len(test)
    order = np.lexsort((items, users))
    pairs = np.array(users)[order], np.array(items)[order]
    # Ratings and times are functions of the pair: those of the training part stay as they are.
    ratings = 1.0 + (pairs[0] * 7 + pairs[1] * 3) % 5
    table = Interactions.from_pairs(
        *pairs, n_users=USERS, n_items=ITEMS, timestamps=pairs[0] * 100 + pairs[1] * 13 % 50,
        ratings=ratings.astype(np.float32),
    )  # fmt: skip
    return Dataset(
        "world", table, {"sex": Labels.of(["fm"[u % 2] for u in range(USERS)])},
        item_categories=tuple((f"kind {i % 3}",) for i in range(ITEMS)),
        published=PublishedSplit(np.array(held)[order]),
    )  # fmt: skip


def small(kind):
    known = {field.name for field in fields(kind)} if hasattr(kind, "__dataclass_fields__") else ()
    return {name: value for name, value in SMALL.items() if name in known}


def run(table, dataset, out, monkeypatch):
    monkeypatch.setattr(Experiment, "dataset", lambda self, *_: dataset)
    shared = {"data": {"source": "world", "split": "published"}, "evaluation": {"k": ITEMS}}
    return run_experiment(Experiment.from_table({**shared, **table}), out)


WORLDS = world(1), world(2)


def test_the_worlds_differ_in_what_is_held_out_alone():
    made = [Experiment.from_table({"data": {"split": "published"}}).split(one) for one in WORLDS]
    train, test = zip(*((one.train, one.test) for one in made), strict=True)
    assert np.array_equal(train[0].items, train[1].items)
    assert np.array_equal(train[0].timestamps, train[1].timestamps)
    assert np.array_equal(train[0].ratings, train[1].ratings)
    assert not np.array_equal(test[0].items, test[1].items)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_sees_what_is_held_out(name, tmp_path, monkeypatch):
    more = MORE.get(name, {})
    table = {"consent": {"share_positives": 1.0}, **more}
    table["algorithm"] = {"name": name, **small(ALGORITHMS[name]), **more.get("algorithm", {})}
    models = []
    for number, dataset in enumerate((*WORLDS, world(1, train_seed=5))):
        folder = run(table, dataset, tmp_path / str(number), monkeypatch).folder
        models.append((folder.model().tobytes(), folder.vectors().tobytes()))
    assert models[0] == models[1]
    assert models[0] != models[2]  # another training part does make another model


def test_no_baseline_sees_what_is_held_out(tmp_path, monkeypatch):
    table = {
        "algorithm": {"name": "fpl", "embedding_size": 2, "rounds": 1},
        "baselines": {name: small(kind) for name, kind in BASELINES.items()},
    }
    ranked = [
        {
            name: found.lists
            for name, found in run(table, one, None, monkeypatch).evaluations.items()
        }
        for one in (*WORLDS, world(1, train_seed=5))
    ]
    for name in BASELINES:
        assert np.array_equal(ranked[0][name], ranked[1][name]), name
        assert not np.array_equal(ranked[0][name], ranked[2][name]), name


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("fedrap", "fedncf") else n for n in RIVALS],
)
def test_fair_rivals_see_nothing_and_leaking_ones_do(name):
    made = [Experiment.from_table({"data": {"split": "published"}}).split(one) for one in WORLDS]
    settings = rival_of({"name": name, "rounds": 2})
    users = np.arange(USERS)

    def scores(split, leak):
        there = RivalWorld(split.train, hidden=split.test if leak else None)
        return train_rival(settings, there, Streams.from_seed(0)).scores(users)

    assert np.array_equal(*(scores(split, False) for split in made))
    assert not np.array_equal(*(scores(split, True) for split in made))
