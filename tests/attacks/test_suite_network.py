"""What lengths tell: much where rows are sent one by one, nothing where all are alike."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.suite.network_sizes import ATTACK, auc
from sottovoce.attacks.views import SeenRound, TlsPacket
from sottovoce.core.links import SecureSum
from sottovoce.data.splitting import temporal_holdout
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.privacy.mechanisms import Everything


@cache
def town():
    data = generate_town(TownConfig(residents=200, venues=400))
    return temporal_holdout(data.interactions, 0.2).train


FPL = FPLConfig(embedding_size=8, configuration="pFPL+", rounds=3)
FCF = FCFConfig(embedding_size=6, reg=5.0, rounds=2)


def test_rows_that_are_sent_can_be_counted_from_outside(play):
    result = play(FPL, town(), share=0.5).run(ATTACK)
    assert result.verdict == "broken"
    assert result.value > 0.8
    assert result.base_rate == 0.5


@pytest.mark.parametrize("variant", ["paper", "fpl"])
def test_packed_uploads_tell_how_much_is_in_them(play, variant):
    seen = play(replace(FCF, variant=variant), town(), share=1.0, release=Everything())
    assert seen.run(ATTACK).verdict == "broken"


@pytest.mark.parametrize("algorithm", [FPL, FCF], ids=["fpl", "fcf"])
def test_masked_updates_are_all_of_one_length(play, algorithm):
    release = Everything() if algorithm is FCF else None
    seen = play(algorithm, town(), share=1.0, release=release, link=SecureSum(min_devices=100))
    result = seen.run(ATTACK)
    assert result.value == 0.5
    assert result.verdict == "underpowered"
    assert result.interval[0] < 0.5 < result.interval[1]
    assert "alike" in result.detail


def test_a_few_more_bytes_for_long_histories_are_caught(play):
    """A control: masked messages that are cut at the last row that is not empty, say."""
    seen = play(FPL, town(), share=0.5, link=SecureSum(min_devices=100))
    counts = seen.truth.train.counts
    rounds = tuple(
        SeenRound(
            s.round, tuple(p._replace(bytes=p.bytes + int(counts[p.sender])) for p in s.messages)
        )
        for s in seen.network.rounds
    )
    result = ATTACK.run(replace(seen.network, rounds=rounds), seen.truth)
    assert result.verdict == "broken"
    assert result.value == 1.0


def test_chance_is_no_leak(play):
    """Lengths that have nothing to do with histories, many times over."""
    seen = play(replace(FPL, rounds=1), town(), share=0.5)
    network, rng, broken = seen.network, np.random.default_rng(0), 0
    for _ in range(200):
        packets = tuple(TlsPacket(u, "server", int(rng.integers(100, 200))) for u in range(200))
        view = replace(network, rounds=(SeenRound(0, packets),))
        broken += ATTACK.run(view, seen.truth).verdict == "broken"
    assert broken <= 12


def test_it_needs_two_senders(play):
    network = play(replace(FPL, rounds=1), town(), share=0.5).network
    assert "two devices" in ATTACK.applies(replace(network, rounds=()))
    alone = SeenRound(0, (TlsPacket(3, "server", 100),))
    assert "two devices" in ATTACK.applies(replace(network, rounds=(alone,)))
    assert "redacted" in repr(ATTACK.guess(network))


@given(
    st.lists(st.integers(-5, 5), min_size=2, max_size=40),
    st.lists(st.integers(-5, 5), min_size=2, max_size=40),
)
def test_auc_is_what_it_says(above, below):
    one, other = np.array(above, float), np.array(below, float)
    value, (low, high) = auc(one, other)
    wins = (one[:, None] > other).mean() + (one[:, None] == other).mean() / 2
    assert value == pytest.approx(wins)
    assert 0.0 <= low <= value <= high <= 1.0
    assert auc(other, one)[0] == pytest.approx(1.0 - value)
