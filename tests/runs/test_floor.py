"""A run that ends near popularity says so, names a setting, and proposes to tune; others do not."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce import Experiment, run_experiment
from sottovoce.evaluation.protocol import Evaluation, Full, Protocol
from sottovoce.runs.standing import FEWEST_USERS, _said, near_popularity, signs_of
from sottovoce.runs.tables import hints

TOWN = {
    "name": "x",
    "seed": 7,
    "algorithm": {"embedding_size": 16, "server_rate": 0.1, "rounds": 60},
    "consent": {"share_positives": 1.0},
    "baselines": {},
}


def outcome(**algorithm):
    table = {**TOWN, "algorithm": {**TOWN["algorithm"], **algorithm}}
    return run_experiment(Experiment.from_table(table))


@pytest.fixture(scope="module")
def pulled():
    """Vectors are pulled to 0, so that biases alone are left."""
    return outcome(reg_user=20.0)


def test_top_pop_is_asked_even_if_nobody_asked_for_it(pulled):
    (said,) = near_popularity(pulled)
    assert "Top-Pop" in said
    assert "algorithm.reg_user (20) or reg_positive (0.0025) is likely too large" in said
    assert "sottovoce tune FILE" in said
    assert said in hints(pulled)
    assert signs_of(pulled).common > 0.99
    assert list(pulled.evaluations) == [pulled.system]  # no row that nobody asked for


def test_one_that_learns_says_nothing():
    learnt = outcome(reg_user=0.04, reg_positive=0.01, reg_negative=0.01, learning_rate=0.05)
    assert near_popularity(learnt) == []
    assert signs_of(learnt).common < 0.9


def evaluation(values, lists, n_items=1000):
    users = np.arange(len(values))
    return Evaluation(
        Protocol(10, Full()), users, {"P@10": values, "NDCG@10": values},
        np.ones(len(users), dtype=bool), 0, n_items, lists,
    )  # fmt: skip


def test_accuracy_coverage_and_too_few_users():
    rng = np.random.default_rng(3)
    n = 4 * FEWEST_USERS
    floor = rng.random(n) / 10
    few = np.tile(np.arange(10, dtype=np.int32), (n, 1))
    many = rng.integers(0, 1000, (n, 10)).astype(np.int32)
    base = evaluation(floor, few)

    def said(values, lists, users=n):
        take = lambda e: replace(  # noqa: E731
            e, users=e.users[:users], served=e.served[:users], lists=e.lists[:users],
            values={k: v[:users] for k, v in e.values.items()},
        )  # fmt: skip
        return _said("own", take(evaluation(values, lists)), "Top-Pop", take(base))

    noise = rng.normal(0, 0.05, n)
    assert "ends below" in said(floor - 0.05 + noise, many)
    assert "no better" in said(floor + noise, many)
    assert "hardly more different items than Top-Pop (10 against 10" in said(floor + 0.05, few)
    assert said(floor + 0.05 + noise, many) == ""
    assert said(floor + noise, many, FEWEST_USERS // 2) == ""


def test_sampled_candidates_have_no_lists_and_no_coverage():
    values = np.linspace(0, 1, 300)
    own, floor = evaluation(values + 0.1, None), evaluation(values, None)
    assert _said("own", own, "Top-Pop", floor) == ""


def test_a_setting_that_changes_nothing_is_named():
    small = {"town": {"residents": 60, "venues": 40}, "data": {"source": "town"}}
    both = {"algorithm": {"rounds": 2, "epochs": 7}, **small}
    [note] = [one for one in hints(run_experiment(Experiment.from_table(both))) if "epochs" in one]
    assert note == "algorithm.epochs changes nothing: algorithm.rounds = 2 overrides it"
    alone = Experiment.from_table({"algorithm": {"rounds": 2}, **small})
    assert not [one for one in hints(run_experiment(alone)) if "epochs" in one]
