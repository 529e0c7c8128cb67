"""A chain of shufflers, real processes over TLS: the model is that of one shuffler, bit for bit,
whoever is killed in the middle."""

import numpy as np
import pytest
from chain_world import Chain

COUNTED = {"undecryptable", "out_of_range", "duplicate", "missing", "too_few"}


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_a_chain_gives_the_model_of_one_shuffler(tmp_path, shufflers):
    with Chain(tmp_path, shufflers).running() as chain:
        for round in range(chain.rounds):
            chain.play(round)
        assert np.array_equal(chain.model(), chain.expected()), "to the last bit"
        assert not COUNTED & set(chain.client.status()["refused"])
