"""What the sound presets leave, on data that they were not made for."""

import pytest

from sottovoce.attacks.suite.a01_lone_rows import ATTACK
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs.attack import attack_experiment

SPARSE = ["town.residents=600", "town.venues=2500", "algorithm.epochs=2"]
"""About six draws of an item in a round, where the preset's town has 42."""


def verdict_on(settings, rounds=None):
    experiment = Experiment.from_file(find_experiment("sound/fpl"), settings)
    (result,) = attack_experiment(experiment, rounds=rounds, attacks=[ATTACK]).results
    return result


@pytest.mark.slow
def test_fpl_over_a_secure_sum_is_read_where_items_are_many():
    found = verdict_on(SPARSE)
    assert found.verdict == "broken"
    assert found.value > 10 * found.base_rate


@pytest.mark.slow
def test_more_draws_for_each_item_close_it():
    draws = ["algorithm.configuration=''", "algorithm.cohort_size='all'", "algorithm.triples=130"]
    found = verdict_on([*SPARSE, *draws, "algorithm.rounds=25"])
    assert found.verdict != "broken"
    assert found.claims < 5
