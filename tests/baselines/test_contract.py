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
    SLIM,
    Baseline,
    ItemKNN,
    LightGCN,
    MultVAE,
    Progress,
    TopPop,
    UserKNN,
)
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import top_n
from sottovoce.errors import ConfigError, SottovoceError
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
    ],
    ids=["user-knn", "item-knn", "mult-vae", "slim", "lightgcn"],
)
def test_learns_the_checkerboard(baseline: Baseline, checkerboard: Interactions) -> None:
    users = np.arange(checkerboard.n_users)
    items, _ = top_n(baseline.fit(checkerboard, RNG), users, checkerboard, 1)
    np.testing.assert_array_equal(items[:, 0], users)


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
    algorithm = {"embedding_size": 2, "epochs": 1}
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
