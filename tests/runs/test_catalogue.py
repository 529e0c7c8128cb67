"""A run whose catalogue is cut says so, and how it does over the whole one."""

import numpy as np
import pytest

from sottovoce.experiment import Experiment
from sottovoce.runs.catalogue import SUFFIX, cut_catalogue
from sottovoce.runs.tables import hints
from sottovoce.runs.train import run_experiment

TABLE = {
    "name": "small",
    "seed": 3,
    "town": {"residents": 80, "venues": 120, "visits_per_resident": 20.0},
    "data": {"min_item_users": 8},
    "algorithm": {"name": "fcf", "embedding_size": 4, "rounds": 2},
    "consent": {"share_positives": 1.0},
    "baselines": {"top-pop": {}},
}


def make(**changes):
    return Experiment.from_table({**TABLE, **changes})


@pytest.mark.parametrize("split", ["temporal", "random"])
def test_what_was_cut_is_held_out_by_the_same_rule_and_nothing_else_changes(split):
    experiment = make(data={"min_item_users": 8, "split": split})
    dataset = experiment.dataset()
    parts = experiment.split(dataset)
    cut = cut_catalogue(experiment, dataset, parts)
    whole = experiment.uncut().interactions
    assert (cut.items, cut.of) == (dataset.interactions.n_items, whole.n_items)
    assert cut.items < cut.of
    kept = cut.test.items < parts.test.n_items
    assert np.array_equal(cut.test.users[kept], parts.test.users)
    assert np.array_equal(cut.test.items[kept], parts.test.items)
    assert cut.missing == int((~kept).sum()) > 0
    counts = whole.item_counts
    rare = int(counts[counts < 8].sum())
    assert cut.missing < 0.45 * rare  # a fifth of them, about


def test_a_run_says_what_it_leaves_out_and_how_it_does_with_it(tmp_path):
    outcome = run_experiment(make(), tmp_path / "run")
    results = outcome.folder.manifest()["results"]
    cut = outcome.cut
    for label, evaluation in outcome.evaluations.items():
        inside, over = evaluation.summary(), results[label]
        # Hits are the same; more people have something to find, and more of it.
        assert over[f"R@10{SUFFIX}"] < inside["R@10"]
        assert over[f"NDCG@10{SUFFIX}"] < inside["NDCG@10"]
        people = (cut.test.counts > 0).sum() / (outcome.split.test.counts > 0).sum()
        assert over[f"P@10{SUFFIX}"] * people == pytest.approx(inside["P@10"])
    (note,) = [hint for hint in hints(outcome) if "cut to" in hint]
    assert f"{cut.items:,} of {cut.of:,} items" in note
    assert "data.min_item_users" in note
    assert f"P@10 {results[outcome.system][f'P@10{SUFFIX}']:.4f}" in note


@pytest.mark.parametrize(
    "changes",
    [{"data": {}}, {"data": {"min_item_users": 1}}, {"evaluation": {"candidates": 20}}],
)
def test_where_nothing_is_cut_nothing_is_said(changes):
    outcome = run_experiment(make(**changes))
    assert outcome.cut is None
    assert not any("cut to" in hint for hint in hints(outcome))
