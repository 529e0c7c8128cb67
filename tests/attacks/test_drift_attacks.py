"""What DRIFT's orchestrator guesses. The attacks are expected to work: nobody should take Θ, or the
missing names, for protection. And they claim nothing where there is nothing to find."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import BlockStep, DriftModel, Events
from sottovoce.algorithms.drift.messages import Gradients, OwnerTable, RowRequest
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.drift import (
    Claim,
    ClaimOutcome,
    Cosine,
    cosine_claims,
    request_pairs,
    score_pairs,
    wilson,
)
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo_simulation import SiloSimulation
from sottovoce.errors import DoesNotApply
from sottovoce.rng import Streams

RNG = Streams.from_seed(5)
N_USERS, N_ITEMS = 400, 90
STEP = BlockStep()


def world(seed=1, n=6_000):
    draw = np.random.default_rng(seed)
    return Interactions.from_pairs(
        draw.integers(0, N_USERS, n), draw.integers(0, N_ITEMS, n), n_users=N_USERS,
        n_items=N_ITEMS, timestamps=draw.integers(0, n, n), ratings=draw.integers(1, 6, n),
    )  # fmt: skip


TRAIN = world()
TABLE = OwnerTable.of_membership(np.arange(3) == (np.arange(N_ITEMS) % 3)[:, None])


def attacked(theta, size=4, change=None, model=None):
    """Both kinds of the cosine attack, the requests, and who touched what in blocks, over an
    epoch."""
    config = DRIFTConfig(theta=theta, embedding_size=size)
    attacks, requests = [Cosine(named=True), Cosine(named=False)], []
    touched = set()

    def watch(party, message):
        if party[0] == "orchestrator" and isinstance(message, RowRequest):
            requests.append(message)
        if party[0] == "orchestrator" and isinstance(message, Gradients):
            truth = [
                Claim(user, item, liked)
                for user, block in wired.owners[message.owner].asked
                for liked, side in ((False, block.negatives), (True, block.positives))
                for item in side
            ]
            touched.update((claim.user, claim.item) for claim in truth)
            seen = change(message) if change else message
            for attack in attacks:
                claims = cosine_claims(seen, model or wired.model, STEP, named=attack.named)
                attack.take(claims, truth, len(message.users))

    wired = SiloSimulation(config, TABLE, range(N_USERS), RNG, "none", witness=watch)
    wired.epoch(Events.of(TRAIN, 4.0, "time"))
    return (*(attack.outcome() for attack in attacks), requests, touched)


# --- cosine --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theta", "with_names", "without"), [(1, 1.0, 1.0), (2, 1.0, 0.99), (8, 0.95, 0.7)]
)
def test_gradients_say_who_liked_what(theta, with_names, without):
    """Also without names, and with the blocks of several users in one update."""
    outcomes = attacked(theta)[:2]
    for outcome, least in zip(outcomes, (with_names, without), strict=True):
        assert outcome.there > 3_000
        assert outcome.precision == 1.0
        assert outcome.recall >= least
        assert outcome.base_rate < 0.6
        assert outcome.succeeds


def test_items_that_many_users_of_an_update_share_are_not_taken_apart():
    """64 blocks over 30 items; what is claimed is true all the same."""
    named, unnamed = attacked(64)[:2]
    assert unnamed.recall < named.recall < 0.1
    assert named.precision > 0.9
    assert named.succeeds
    assert unnamed.succeeds


def test_longer_vectors_tell_more():
    assert attacked(8, size=8)[0].recall > 0.999 > attacked(8)[0].recall


def test_against_another_model_nothing_is_claimed():
    other = DriftModel.start(N_USERS, N_ITEMS, 4, Streams.from_seed(77))
    for outcome in attacked(2, model=other)[:2]:
        assert outcome.claimed < 0.001 * outcome.there


def test_noise_beyond_rounding_ends_the_attack():
    draw = np.random.default_rng(4)

    def noisy(message):
        noise = 1e-3 * draw.normal(size=message.item_rows.shape)
        return replace(message, item_rows=(message.item_rows + noise).astype(np.float32))

    for outcome in attacked(2, change=noisy)[:2]:
        assert outcome.claimed < 0.01 * outcome.there


def gradients_of(model, weights, items=(3,)):
    """An update in which these users touched every item with these weights."""
    rows = []
    for item in items:
        row = 2 * STEP.reg * len(weights) * model.items[item].astype(np.float64)
        for user, weight in weights.items():
            row = row + weight * model.users[user].astype(np.float64)
        rows.append(row)
    users = np.array(sorted(weights), dtype=np.int64)
    pull = np.zeros((len(users), model.users.shape[1]), dtype=np.float32)
    return Gradients(
        0, 0, users, np.array(items, dtype=np.int64), pull, np.array(rows, dtype=np.float32)
    )


MODEL = DriftModel.start(N_USERS, N_ITEMS, 4, RNG)


@pytest.mark.parametrize(
    "weights",
    [{7: 0.3}, {7: -0.002}, {7: 0.3, 250: -0.1}, {7: -0.2, 250: -0.1}, {7: 0.1, 8: -0.4, 399: 0.2}],
)
def test_users_who_share_an_item_are_told_apart(weights):
    claims = cosine_claims(gradients_of(MODEL, weights), MODEL, STEP, named=True)
    assert sorted(claims) == sorted(Claim(u, 3, w < 0) for u, w in weights.items())


def test_nothing_is_claimed_where_as_many_users_as_numbers_share_an_item():
    weights = {7: 0.1, 8: -0.4, 60: 0.3, 399: 0.2}
    assert cosine_claims(gradients_of(MODEL, weights), MODEL, STEP, named=True) == []


def test_nothing_is_claimed_of_two_users_with_the_same_direction():
    twins = MODEL.copy()
    twins.users[8] = 2 * twins.users[7]
    sent = replace(gradients_of(twins, {7: 0.3}), users=np.array([7, 8]))
    assert cosine_claims(sent, twins, STEP, named=True) == []


def test_nothing_is_claimed_of_an_item_that_was_not_moved():
    assert cosine_claims(gradients_of(MODEL, {7: 0.0}), MODEL, STEP, named=True) == []


def test_who_has_left_is_not_suspected():
    left = MODEL.copy()
    left.users[::2] = 0.0
    sent = gradients_of(left, {7: 0.3})
    assert cosine_claims(sent, left, STEP, named=False) == [Claim(7, 3, False)]


def test_another_ridge_is_refused():
    sent = gradients_of(MODEL, {7: 0.3})
    with pytest.raises(DoesNotApply, match="ridge"):
        cosine_claims(sent, MODEL, BlockStep(ridge="pairs"), named=True)


# --- the request log -----------------------------------------------------------------------------


def request(users, items):
    return RowRequest(0, np.array(users, dtype=np.int64), np.array(items, dtype=np.int64))


def test_a_request_names_its_pairs():
    found = request_pairs([request([2, 5], [1, 3]), request([2], [3, 9])])
    assert found.tolist() == [[2, 1], [2, 3], [2, 9], [5, 1], [5, 3]]
    assert request_pairs([]).shape == (0, 2)


def test_pairs_are_held_against_the_truth():
    claimed = np.array([[0, 1], [0, 2], [1, 1], [1, 2]])
    truth = np.array([[0, 1], [1, 2], [4, 4], [5, 5]])
    outcome = score_pairs(claimed, truth, RNG)
    assert (outcome.claimed, outcome.right, outcome.there) == (4, 2, 4)
    assert (outcome.precision, outcome.recall) == (0.5, 0.5)
    assert score_pairs(np.zeros((0, 2), dtype=np.int64), truth, RNG).precision == 0.0
    assert score_pairs(claimed, np.zeros((0, 2), dtype=np.int64), RNG).right == 0


@pytest.mark.parametrize("theta", [1, 2, 16])
def test_requests_say_who_touched_what(theta):
    *_, requests, touched = attacked(theta)
    events = Events.of(TRAIN, 4.0, "time")
    truth = np.stack([events.user, events.item.astype(np.int64)], axis=1)
    pairs = request_pairs(requests)
    outcome = score_pairs(pairs, truth, RNG)
    assert touched <= set(map(tuple, pairs.tolist())), "nothing in a finished block is missed"
    assert outcome.recall >= len(touched) / len(events) > 0.5
    assert outcome.succeeds
    assert (outcome.precision == 1.0) == (theta == 1)


# --- how good a guess is -------------------------------------------------------------------------


def test_intervals_are_wilson_s():
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(50, 50).high == pytest.approx(1.0)
    assert wilson(50, 50).low == pytest.approx(0.9287, abs=1e-4)


def test_a_guess_at_the_base_rate_is_none():
    table = ClaimOutcome("a", "orchestrator", 100, 31, 200, 0.3).to_table()
    assert table["verdict"] == "no better than chance"
    assert (table["value"], table["recall"], table["base_rate"]) == (0.31, 0.155, 0.3)
    low, high = table["interval"]
    assert low < 0.3 < high
    assert ClaimOutcome("a", "orchestrator", 100, 60, 200, 0.3).to_table()["verdict"] == "guesses"
