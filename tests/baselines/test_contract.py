"""What every baseline promises, whatever it learns."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from sottovoce.baselines import BASELINES, Baseline, ItemKNN, MultVAE, UserKNN
from sottovoce.data.interactions import Interactions
from sottovoce.recommender import top_n
from sottovoce.rng import Streams

RNG = Streams.from_seed(11)
SMALL: dict[str, dict[str, int]] = {
    "user-knn": {"neighbors": 5},
    "item-knn": {"neighbors": 5},
    "bpr-mf": {"epochs": 3},
    "mf-np": {"embedding_size": 4, "epochs": 3},
    "dplcf": {"neighbors": 5},
    "saros": {"epochs": 3},
    "mult-vae": {"hidden_size": 12, "embedding_size": 4, "epochs": 4, "threads": 1},
}
EVERY = pytest.mark.parametrize("name", BASELINES)


def make(name: str) -> Baseline:
    return BASELINES[name](**SMALL.get(name, {}))


@EVERY
def test_scores_every_item_for_every_user(name: str, sparse: Interactions) -> None:
    scorer = make(name).fit(sparse, RNG)
    scores = scorer.scores(np.arange(sparse.n_users))
    assert scorer.n_items == sparse.n_items
    assert scores.shape == (sparse.n_users, sparse.n_items)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert scorer.scores(np.zeros(0, dtype=np.int64)).shape == (0, sparse.n_items)


@EVERY
def test_the_same_stream_gives_the_same_scores(name: str, sparse: Interactions) -> None:
    users = np.arange(sparse.n_users)
    first, second = (make(name).fit(sparse, RNG).scores(users) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["random", "bpr-mf", "mult-vae"])
def test_another_stream_gives_other_scores(name: str, sparse: Interactions) -> None:
    users = np.arange(sparse.n_users)
    first, second = (
        make(name).fit(sparse, Streams.from_seed(seed)).scores(users) for seed in (1, 2)
    )
    assert not np.array_equal(first, second)


@EVERY
def test_a_row_does_not_depend_on_the_batch(name: str, sparse: Interactions) -> None:
    scorer = make(name).fit(sparse, RNG)
    together = scorer.scores(np.arange(sparse.n_users))
    mixed = np.array([39, 7, 0, 7, 12])
    # Factor models go through a matrix product, whose last bit may depend on its shape.
    close = 1e-5 if name in ("bpr-mf", "mult-vae", "mf-np", "saros") else 0
    np.testing.assert_allclose(scorer.scores(mixed), together[mixed], rtol=close, atol=close)


@EVERY
def test_masking_an_answer_does_not_spoil_the_next(name: str, sparse: Interactions) -> None:
    scorer = make(name).fit(sparse, RNG)
    first = scorer.scores(np.arange(3))
    before = first.copy()
    first[:] = -np.inf
    np.testing.assert_array_equal(scorer.scores(np.arange(3)), before)


@EVERY
def test_configuration_is_frozen(name: str) -> None:
    baseline = make(name)
    with pytest.raises((FrozenInstanceError, TypeError)):
        baseline.neighbors = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "baseline",
    [
        UserKNN(5),
        ItemKNN(5),
        MultVAE(20, 8, epochs=60, batch_size=10, learning_rate=0.01, threads=1),
    ],
    ids=["user-knn", "item-knn", "mult-vae"],
)
def test_learns_the_checkerboard(baseline: Baseline, checkerboard: Interactions) -> None:
    users = np.arange(checkerboard.n_users)
    items, _ = top_n(baseline.fit(checkerboard, RNG), users, checkerboard, 1)
    np.testing.assert_array_equal(items[:, 0], users)


@pytest.mark.parametrize("name", ["user-knn", "item-knn", "mult-vae"])
def test_progress_rises_to_the_end(name: str, sparse: Interactions) -> None:
    seen: list[tuple[int, int]] = []
    make(name).fit(sparse, RNG, lambda done, total: seen.append((done, total)))
    assert seen
    done = [step for step, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1][0] == seen[-1][1]


def test_the_package_imports_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import sottovoce.baselines"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
