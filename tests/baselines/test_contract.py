"""What every baseline promises, whatever it learns."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sottovoce.baselines import (
    BASELINES,
    DPALS,
    DPLCF,
    EASE,
    IALS,
    MFNP,
    SLIM,
    Baseline,
    ItemKNN,
    LightGCN,
    MultVAE,
    Progress,
    TopPop,
    UserKNN,
)
from sottovoce.baselines.saros import SAROS
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import top_n
from sottovoce.errors import ConfigError, SottovoceError
from sottovoce.evaluation.protocol import Protocol, Sampled, evaluate
from sottovoce.experiment import Experiment
from sottovoce.rng import Streams
from sottovoce.runs.train import run_experiment
from sottovoce.testing import BaselineContract, ContractBroken

RNG = Streams.from_seed(11)
SMALL: dict[str, dict[str, int]] = {
    "user-knn": {"neighbors": 5},
    "item-knn": {"neighbors": 5},
    "bpr-mf": {"epochs": 3},
    "mf-np": {"embedding_size": 4, "epochs": 3},
    "ials": {"embedding_size": 4, "epochs": 3},
    "dplcf": {"neighbors": 5},
    "dpals": {"embedding_size": 3, "rounds": 2},
    "saros": {"epochs": 3},
    "lightgcn": {"embedding_size": 4, "epochs": 3},
    "mult-vae": {"hidden_size": 12, "embedding_size": 4, "epochs": 4},
}


def make(name: str) -> Baseline:
    return BASELINES[name](**SMALL.get(name, {}))


def held(name: str) -> type[BaselineContract]:
    """The contract of one of them."""
    return type(f"Test_{name}", (BaselineContract,), {"baseline": lambda self: make(name)})


globals().update({f"Test_{name}": held(name) for name in BASELINES})


@pytest.mark.parametrize("name", ["random", "bpr-mf", "mult-vae", "lightgcn", "dpals"])
def test_another_stream_gives_other_scores(name: str, sparse: Interactions) -> None:
    users = np.arange(sparse.n_users)
    first, second = (
        make(name).fit(sparse, Streams.from_seed(seed)).scores(users) for seed in (1, 2)
    )
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "baseline",
    [
        UserKNN(5),
        ItemKNN(5),
        MultVAE(20, 8, epochs=60, batch_size=10, learning_rate=0.01),
        SLIM(reg=1.0),
        LightGCN(8, epochs=40, batch_size=64, learning_rate=0.02),
        EASE(1.0),
        EASE(1.0, most_items=0),
        IALS(2, unobserved=0.1, reg=0.1),
        MFNP(2, reg=0.1),
    ],
    ids=[
        *("user-knn", "item-knn", "mult-vae", "slim", "lightgcn"),
        *("ease", "ease by neighbours", "ials", "mf-np"),
    ],
)
def test_learns_the_checkerboard(baseline: Baseline, checkerboard: Interactions) -> None:
    users = np.arange(checkerboard.n_users)
    items, _ = top_n(baseline.fit(checkerboard, RNG), users, checkerboard, 1)
    np.testing.assert_array_equal(items[:, 0], users)


@pytest.mark.parametrize(
    ("baseline", "protocol", "metric", "factor"),
    [
        (EASE(), Protocol(10), "P@10", 1.3),
        (EASE(most_items=0, neighbors=20), Protocol(10), "P@10", 1.3),
        (IALS(4), Protocol(10), "P@10", 1.3),
        (MFNP(4, reg=1.0), Protocol(10, Sampled(50)), "NDCG@10", 1.5),
    ],
    ids=["ease", "ease by neighbours", "ials", "mf-np"],
)
def test_beats_popularity_where_there_are_tastes(
    baseline: Baseline, protocol: Protocol, metric: str, factor: float
) -> None:
    rng = np.random.default_rng(2)
    taste, kind = rng.integers(0, 4, 200), rng.integers(0, 4, 120)
    table = rng.random((200, 120)) < np.where(taste[:, None] == kind, 0.25, 0.03)
    held_out = table & (rng.random(table.shape) < 0.2)
    train, test = (
        Interactions.from_pairs(*np.nonzero(part), n_users=200, n_items=120)
        for part in (table & ~held_out, held_out)
    )
    ours, popular = (
        evaluate(each.fit(train, RNG), train, test, protocol).mean(metric)
        for each in (baseline, TopPop())
    )
    assert ours > factor * popular


@pytest.mark.parametrize(
    "baseline",
    [UserKNN(5), ItemKNN(5), DPLCF(1.0), DPALS(embedding_size=2), EASE(), EASE(most_items=0),
     IALS(2, epochs=2), MFNP(2, epochs=2)],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
@pytest.mark.parametrize(("n_users", "n_items"), [(0, 4), (3, 0), (1, 1), (3, 5)])
def test_empty_tables_have_scores_of_the_right_shape(
    baseline: Baseline, n_users: int, n_items: int
) -> None:
    """Zeros, but where noise alone ranks."""
    nothing = Interactions.from_pairs([], [], n_users=n_users, n_items=n_items)
    scores = baseline.fit(nothing, RNG).scores(np.arange(n_users))
    assert scores.shape == (n_users, n_items)
    assert np.isfinite(scores).all()
    assert isinstance(baseline, DPALS) or not scores.any()


NAN = float("nan")
REFUSED: dict[type[Baseline], dict[str, list[Any]]] = {
    UserKNN: {"neighbors": [0, -3]},
    ItemKNN: {"neighbors": [0, -3], "memory": [-1.0]},
    DPLCF: {"epsilon": [0.0, NAN], "neighbors": [0]},
    DPALS: {
        "epsilon": [0.0, -1.0, float("inf")], "delta": [0.0], "rounds": [0], "embedding_size": [0],
        "head": [-1], "popularity_share": [0.0, 1.0], "memory": [-1.0],
    },
    EASE: {"reg": [-1.0, NAN], "memory": [-1.0], "most_items": [-1, 50_000], "neighbors": [0]},
    SLIM: {"reg": [-1.0], "reg_l1": [-0.1], "neighbors": [-1]},
    IALS: {
        "embedding_size": [0], "epochs": [0], "reg": [-1.0, NAN], "unobserved": [-1.0],
        "frequency": [3.0], "memory": [-1.0],
    },
    MFNP: {
        "embedding_size": [0], "epochs": [0], "reg": [0.0, NAN], "alpha": [-1.0],
        "learning_rate": [0.0], "solver": ["sgd"],
    },
    MultVAE: {
        "hidden_size": [0], "embedding_size": [-1], "epochs": [0], "batch_size": [0],
        "learning_rate": [0.0, NAN], "dropout": [1.0, -0.1],
    },
    SAROS: {
        "variant": ["x"], "epochs": [0], "embedding_size": [0], "momentum": [1.0],
        "lower": [-0.1], "upper": [1.1], "learning_rate": [0.0], "ridge": ["x"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, wrong in REFUSED.items() for name in wrong
     for value in wrong[name]],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_by_their_name(
    kind: type[Baseline], name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=name):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (DPALS, {"epsilon": 1e-9, "rounds": 1000}, "epsilon"),
        (SAROS, {"lower": 0.9, "upper": 0.5}, "lower"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    kind: type[Baseline], wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(**wrong)


@pytest.mark.parametrize("name", ["user-knn", "item-knn", "mult-vae", "slim", "lightgcn"])
def test_progress_is_told(name: str, sparse: Interactions) -> None:
    seen: list[tuple[int, int]] = []
    make(name).fit(sparse, RNG, lambda done, total: seen.append((done, total)))
    assert seen


def test_tables_know_them_in_their_order() -> None:
    titles = [kind.title for kind in BASELINES.values()]
    assert titles == [
        *("Random", "Top-Pop", "User-kNN", "Item-kNN", "BPR-MF", "Mult-VAE", "LightGCN", "MF-NP"),
        *("EASE", "SLIM", "iALS", "DPLCF", "DP-ALS", "SAROS"),
    ]


class Spoilt(TopPop):
    """A baseline whose scores are not numbers, of another shape, or no scores at all."""

    fault = "nan"

    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Any:
        scorer = TopPop.fit(self, train, rng)
        if self.fault == "nan":
            return replace(scorer, counts=scorer.counts * np.float32(np.nan))
        return replace(scorer, counts=scorer.counts[1:]) if self.fault == "short" else None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", "the baseline mine: the model gave scores that are not numbers"),
        ("short", "the baseline mine: the model ranks .* items, the training set has"),
        ("none", "the baseline mine: what should rank items must have n_items and scores"),
    ],
)
def test_a_spoilt_baseline_is_named(
    fault: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = {"residents": 30, "venues": 60, "visits_per_resident": 10}
    algorithm = {"embedding_size": 3, "epochs": 1}
    experiment = Experiment.from_table({"town": town, "algorithm": algorithm})
    monkeypatch.setattr(Spoilt, "fault", fault)
    with pytest.raises(SottovoceError, match=f"^{words}"):
        run_experiment(replace(experiment, baselines=(("mine", Spoilt()),)))


@pytest.mark.parametrize("fault", ["nan", "short"])
def test_the_contract_refuses_a_spoilt_baseline(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spoilt, "fault", fault)
    contract = type("Broken", (BaselineContract,), {"baseline": lambda self: Spoilt()})()
    with pytest.raises(ContractBroken):
        contract.test_scores_every_item_for_every_user()
    with pytest.raises(ConfigError, match="not registered as a baseline"):
        contract.test_is_registered()


def test_the_package_imports_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import sottovoce.baselines"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
