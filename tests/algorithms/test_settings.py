"""Settings that make no sense are refused in a sentence that names the first of them."""

import pytest

from sottovoce.algorithms.closed_form.vectors import Confidence
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.errors import ConfigError

NAN, INF = float("nan"), float("inf")
GENDER = FilterConfig("gender", ("f", "m"), (0.4, 0.6))
REFUSED = {
    FPLConfig: {
        "embedding_size": [0, 3.5, 10**12], "triples": [0, 10**12], "learning_rate": [0.0, NAN],
        "epochs": [0], "cohort_size": [-1], "configuration": ["qFPL"], "reg_user": [-1.0],
        "init_bias": ["ones"], "server_rate": [0.0, -0.1, 11.0],
    },
    FCFConfig: {
        "embedding_size": [0, 129], "reg": [0.0, NAN], "alpha": [-1.0], "rounds": [0],
        "learning_rate": [0.0, INF], "variant": ["fast"],
    },
    FMFConfig: {
        "embedding_size": [0], "reg": [0.0], "alpha": [-0.1], "scale": [0.0, INF],
        "learning_rate": [NAN], "server_steps": [0], "rounds": [0],
    },
    GramConfig: {
        "embedding_size": [0], "most_head": [3], "popularity_share": [1.5], "memory": [-1.0],
        "quality_share": [0.95], "held_out": [0.6],
    },
    UCConfig: {
        "recommender": ["transformer"], "embedding_size": [0], "item_rate": [0.0],
        "momentum": [1.0], "target": ["none"], "filters": ["means"], "rounds": [0],
        "cooling": [1.5], "attributes": [(GENDER, GENDER)],
    },
    DRIFTConfig: {
        "theta": [0, -3], "epochs": [0], "order": ["x"], "max_age": [-1], "embedding_size": [0],
        "learning_rate": [0.0], "reg": [-1.0], "ridge": ["x"], "negatives": ["all"],
        "negatives_per_positive": [0], "init_scale": [0.0],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [(each, name, value) for each, wrong in REFUSED.items() for name in wrong
     for value in wrong[name]],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_name(settings, name, value):
    with pytest.raises(ConfigError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("name", ["positive", "other", "reg"])
@pytest.mark.parametrize("value", [-1.0, NAN, INF])
def test_confidences_that_make_no_loss_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        Confidence(**{"positive": 11.0, "other": 1.0, "reg": 0.05, name: value})


def test_local_training_that_makes_no_sense_is_refused():
    pytest.importorskip("torch")
    from sottovoce.algorithms.uc.training import LocalTraining

    for name, values in {
        "epochs": [0], "pairs": [0], "negatives": [0], "rate": [NAN], "item_rate": [INF],
        "tower_rate": [-0.1], "filter_rate": [-1.0], "dropout": [1.0], "clip": [0.0, NAN],
        "norm": ["l3"], "target": ["x"],
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(ConfigError, match=name):
                LocalTraining(**{name: value})
    with pytest.raises(ConfigError, match="learns nothing"):
        LocalTraining(rate=0, tower_rate=0, item_rate=0, filter_rate=0)
