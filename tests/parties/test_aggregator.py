"""Aggregators that do not keep to the rules, and a server that shows them different things: what is
spoiled, what is refused, and that nobody is read."""

import numpy as np
import pytest
from scipy import stats

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import SharedReports
from sottovoce.core.shares import AGGREGATORS, P, Pair, added, bits_of, check_parts, split
from sottovoce.core.shares import zeros as zero_parts
from sottovoce.errors import ConfigError, MessageError, WrongSum
from sottovoce.parties.aggregator import (
    agreed,
    check_room,
    coin_of,
    in_memory,
    left_out,
    opened_sum,
    pair_of,
    said_of,
)
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams

PLACES, N, ROUND = 70, 30, 0
LINK, RELEASE = CheckedSum(20), OwnEpsilon(8.0)
ALGORITHM = GramConfig(popularity_share=0.5).build_under(RELEASE, LINK, 1)
FORM = LINK.form(PLACES, False)


def world(seed=0, link=LINK):
    rng = np.random.default_rng(seed)
    entries = (rng.random((N, PLACES)) < 0.2) * rng.integers(1, 8, (N, PLACES))
    bits = bits_of(FORM, entries)
    own = [[rng.bytes(32) for _ in range(AGGREGATORS)] for _ in range(N)]
    travelled = np.stack([split(one, mine) for one, mine in zip(bits, own, strict=True)])
    parties = in_memory(link, ALGORITHM, RELEASE, Streams.from_seed(seed))
    names = [rng.bytes(32) for _ in range(N)]
    for number, party in enumerate(parties):
        mine = tuple((q[number], q[(number + 1) % AGGREGATORS]) for q in own)
        party.take(SharedReports(ROUND, np.arange(N), mine, travelled), names)
    return entries, own, travelled, parties, names


def open_all(parties, coins=None, kept=None):
    coins = coins or [one.coin(ROUND) for one in parties]
    kept = np.ones(N, bool) if kept is None else kept
    return [one.total(ROUND, PLACES, coins, kept).part for one in parties]


def sigma(link=LINK):
    rules = in_memory(link, ALGORITHM, RELEASE, Streams.from_seed(0))[0].rules
    return max(one for _, one in rules.spans(ROUND, PLACES))


@pytest.mark.parametrize("noise_by", ["helper", "halves"])
def test_honest_aggregators_open_the_sum_and_their_noise(noise_by):
    link = CheckedSum(20, noise_by)
    entries, *_, parties, _ = world(link=link)
    coins = [one.coin(ROUND) for one in parties]
    checks = [one.checks(ROUND, PLACES, coins).parts for one in parties]
    assert not left_out(checks).any()
    found = opened_sum(FORM, open_all(parties), N, 2 * sigma(link))
    noises = [one.rules.noise(ROUND, PLACES, b"") for one in parties]
    assert [one is not None for one in noises] == (
        [False, True, False] if noise_by == "helper" else [True] * 3
    )
    noise = sum(one for one in noises if one is not None)
    assert np.array_equal(found, entries.sum(axis=0) + noise)


def test_noise_in_halves_has_the_size_that_is_promised():
    """Towards each aggregator, who knows its own, the other two have the variance of the whole."""
    rules = [
        one.rules
        for one in in_memory(CheckedSum(20, "halves"), ALGORITHM, RELEASE, Streams.from_seed(4))
    ]
    many = 40_000
    noises = [one.noise(ROUND, many, b"") for one in rules]
    promised = rules[0].spans(ROUND, many)[0][1]
    for own in range(AGGREGATORS):
        others = sum(noise for number, noise in enumerate(noises) if number != own)
        assert abs(np.std(others) / promised - 1.0) < 0.02
        assert stats.kstest(others / promised, "norm").pvalue > 1e-4
    assert abs(np.std(sum(noises)) / promised - np.sqrt(1.5)) < 0.03
    assert abs(np.corrcoef(noises)[0, 1]) < 0.03


def guesses(bound):
    """How often a server that shows two aggregators different coins tells which of two vectors a
    device has, of 60 times. `bound`: whether blinding is bound to the coins, as it is."""
    right = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        two = bits_of(FORM, rng.integers(0, 4, (2, PLACES)))
        truth = int(rng.integers(2))
        own = [rng.bytes(32) for _ in range(AGGREGATORS)]
        travelled = split(two[truth], own)
        pairs = [pair_of(FORM, k, [(own[k], own[(k + 1) % 3])], [travelled]) for k in range(3)]
        blinds = [rng.bytes(32) for _ in range(3)]
        coins = [agreed(b"set", [bytes([k]) * 32] * 3) for k in (1, 2)]
        seen = []  # what aggregators 1 and 2 tell the server
        for number, coin in ((1, coins[0]), (2, coins[1])):
            part = check_parts(FORM, number, pairs[number], coin)
            said = coin if bound else b"the round"
            shared = blinds[number], blinds[number - 1]
            seen.append(added([part, zero_parts(shared, said, 2).reshape(1, 2)]))
        # The server has shares 0 and 1, and its secrets with both; only the blind that 1 and 2
        # share it lacks, and that one cancels out where both used it for the same.
        told = added(seen).astype(np.int64)
        likely = []
        for guess in range(2):
            third = (two[guess].astype(np.int64) - pairs[0].first - pairs[0].second) % P
            third = third.astype(np.uint32)
            would = [
                check_parts(FORM, 1, Pair(pairs[0].second, third), coins[0]),
                check_parts(FORM, 2, Pair(third, pairs[0].first), coins[1]),
            ]
            known = [  # the blinds of 1 and 2 that the server shares with each
                -drawn_blind(blinds[0], coins[0] if bound else b"the round"),
                drawn_blind(blinds[2], coins[1] if bound else b"the round"),
            ]
            expected = (added(would).astype(np.int64) + known[0] + known[1]) % P
            likely.append(bool(np.array_equal(expected.ravel(), told.ravel() % P)))
        right += likely[truth] and not likely[1 - truth]
    return right


def drawn_blind(secret, said):
    from sottovoce.core.shares import _derived, drawn

    return drawn(_derived(secret, said), 2).astype(np.int64)


def test_different_coins_tell_nothing_since_blinding_is_bound_to_them():
    """Were it bound to the round alone, the checks would tell one vector from another."""
    assert guesses(bound=False) == 60
    assert guesses(bound=True) == 0


def test_an_aggregator_that_lies_spoils_a_sum_or_leaves_somebody_out():
    entries, *_, parties, _ = world()
    coins = [one.coin(ROUND) for one in parties]
    checks = [one.checks(ROUND, PLACES, coins).parts.copy() for one in parties]
    checks[1][4, 0] = (checks[1][4, 0] + 1) % P
    assert np.flatnonzero(left_out(checks)).tolist() == [4]  # she is left out, and not read
    parts = open_all(parties)
    parts[2] = (parts[2] + np.uint32(3)) % np.uint32(P)  # little, and nobody sees it
    noise = parties[1].rules.noise(ROUND, PLACES, b"")
    found = opened_sum(FORM, parts, N, sigma())
    assert np.array_equal(found, entries.sum(axis=0) + noise + 3)
    parts[2] = np.zeros_like(parts[2])
    with pytest.raises(WrongSum, match="no sum of what devices may add"):
        opened_sum(FORM, parts, N, sigma())


def test_parts_that_do_not_fit_are_refused():
    *_, parties, _ = world()
    parts = open_all(parties)
    with pytest.raises(WrongSum, match="do not fit"):
        opened_sum(FORM, parts[:2], N, sigma())
    with pytest.raises(WrongSum, match="do not fit"):
        left_out([np.zeros((3, 2), np.uint32)] * 2)
    with pytest.raises(MessageError, match="coin"):
        agreed(b"set", [b"short"] * 3)


def test_coins_depend_on_all_that_was_sent_and_on_nothing_that_a_device_knows():
    *_, parties, names = world()
    bound = ROUND.to_bytes(8, "little")
    assert said_of(bound, names) == said_of(bound, names[::-1])
    assert said_of(bound, names) != said_of(bound, names[1:])
    assert said_of(bound, names) != said_of(b"other", names)
    said = said_of(bound, names)
    coins = {one.coin(ROUND) for one in parties}
    assert len(coins) == AGGREGATORS
    assert coin_of(parties[0].rules.own, said) in coins


def test_more_devices_than_the_field_has_room_for_are_refused():
    form = LINK.form(500, True)
    assert form.most_devices(5e5) > 60_000
    check_room(form, 5e5, 60_000)
    with pytest.raises(ConfigError, match="has room for"):
        check_room(form, 5e5, 70_000)
    assert LINK.form(40_000, False).most_devices(1e4) > 10**7
