"""A14: single uploads tell which items a device's user has; sums do not hold any."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.suite.a14_pubpara import UPLOADS, along_vector
from sottovoce.core.links import SecureSum
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.privacy.mechanisms import Everything

FITTED = FCFConfig(embedding_size=16, reg=0.3, rounds=12)
TRAIN = generate_shaped(ShapeConfig(260, 90, 3_600, 5, 0.7, 4, seed=3), threads=1)


def test_uploads_tell_items_better_than_popularity(play):
    fcf = play(replace(FITTED, rounds=3), TRAIN, share=1.0, release=Everything())
    found = fcf.run(UPLOADS)
    assert found.verdict == "broken"
    assert found.value > 0.95
    pairs = FPLConfig(embedding_size=8, configuration="pFPL+", epochs=2)
    for share in (0.0, 0.5):
        found = play(pairs, TRAIN, share=share).run(UPLOADS)
        assert found.verdict == "broken"
        assert found.value > 0.8


def test_a_sum_holds_no_single_upload(play):
    summed = play(
        replace(FITTED, rounds=2), TRAIN, share=1.0, release=Everything(),
        link=SecureSum(min_devices=10),
    )  # fmt: skip
    assert "no single upload" in UPLOADS.applies(summed.view)


@given(st.integers(2, 12), st.integers(1, 6), st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_along_one_vector_are_put_in_order(others, size, biased, seed):
    """Whatever the vector, her items come first: they went farthest, one way."""
    draw = np.random.default_rng(seed)
    vector = np.append(draw.normal(size=size), 1.0 if biased else draw.normal())
    weight = np.concatenate([draw.uniform(2.0, 3.0, 2), -draw.uniform(0.01, 1.0, others)])
    far = along_vector(weight[:, None] * vector, biased)
    assert set(np.argsort(-far)[:2].tolist()) == {0, 1}
    assert np.abs(far).max() == pytest.approx(1.0)


def test_an_upload_of_nothing_says_nothing():
    assert not along_vector(np.zeros((4, 3)), True).any()
