"""A6 and A7 on DRIFT: they work on what is printed and fail on sums over people, and they catch
owners whose protection is broken."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.aggregated import AggregatingOwner
from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable
from sottovoce.algorithms.drift.system import DRIFTConfig, Owner
from sottovoce.attacks.suite import a06_cosine, a07_requests, owners_refused
from sottovoce.attacks.views import Truth
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo import SiloWorld
from sottovoce.engines.silo_views import silo_views
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.rng import Streams

N_USERS, N_ITEMS, N = 300, 240, 5_000
DRAW = np.random.default_rng(3)
USERS = DRAW.integers(0, N_USERS, N)
RARE = DRAW.geometric(0.022, N) % N_ITEMS
"""Some items are everybody's, some nearly nobody's."""
TRAIN = Interactions.from_pairs(
    USERS, RARE, n_users=N_USERS, n_items=N_ITEMS,
    timestamps=20 * USERS + DRAW.integers(0, 30, N), ratings=DRAW.integers(1, 6, N),
)  # fmt: skip
REFUSED = DRAW.random((N_USERS, 3)) < [0.0, 0.0, 0.2]
SUMS = DRIFTConfig(release="aggregated", min_users=10, window=400)
EVERY = (
    a06_cosine.COSINE, a06_cosine.ONE_PERSON, a07_requests.REQUESTS, a07_requests.FEW,
    a07_requests.USERS_LINES, a07_requests.LENGTHS, owners_refused.ATTACK,
)  # fmt: skip


def seen(config, refused=None, **more):
    member = np.arange(3) == (np.arange(N_ITEMS) % 3)[:, None]
    consent = Consent.uniform(np.arange(N_USERS), Choice(), owners=("a", "b", "c"))
    if refused is not None:
        consent = replace(consent, refused_owners=refused)
    door = InteractionDoor(consent, consent.owners, OwnerTable.of_membership(member))
    events, catalogue = Events.of(TRAIN, 4.0, "time"), tuple(map(str, range(N_ITEMS)))
    world = SiloWorld.of(config, door, events, catalogue, Streams.from_seed(5))
    views, own = silo_views(world, **more)
    nobody = np.zeros(N_USERS, bool)
    truth = Truth(
        TRAIN, TRAIN.select(np.zeros(TRAIN.n_interactions, bool)), ~nobody,
        np.ones(N_USERS, np.float32), {}, {}, np.zeros((0, 4), np.float32), own,
    )  # fmt: skip
    return views, truth


def results(views, truth):
    return {
        (a.code, a.name): a.run(views[a.party], truth)
        for a in EVERY
        if not a.applies(views[a.party])
    }


COSINE, ALONE = ("A6", "cosine"), ("A6", "a row of one person")
LOG, FEW = ("A7", "request log"), ("A7", "items that few touched")
LENGTHS, REFUSAL = ("A7", "lengths"), ("O1", "refused owner")
WHEN = ("A7", "sums and users' lines")


@pytest.fixture(scope="module")
def printed():
    return results(*seen(DRIFTConfig(theta=2), refused=REFUSED))


@pytest.mark.parametrize("attack", [COSINE, LOG, FEW])
def test_as_printed_the_orchestrator_knows(printed, attack):
    """So nobody should take it for protection."""
    result = printed[attack]
    assert result.verdict == "broken"
    assert result.value >= 0.99
    assert result.base_rate < 0.5
    assert result.claims > 300


def test_as_printed_the_cosine_finds_nearly_all(printed):
    assert printed[COSINE].recall > 0.98
    assert ALONE not in printed


def test_as_printed_lengths_tell(printed):
    assert printed[LENGTHS].verdict == "broken"


@pytest.fixture(scope="module")
def drawing():
    """Likes and dislikes that the orchestrator reads out of gradients as printed, with three drawn
    negatives for a positive, and what was so: users, items and whether she liked it."""
    views, truth = seen(DRIFTConfig(theta=2, negatives="untouched", negatives_per_positive=3))
    guess, known = a06_cosine.COSINE.guess(views["orchestrator"]), truth.own["drift"]
    there = set(zip(known.user.tolist(), known.item.tolist(), known.liked.tolist(), strict=True))
    claimed = set(zip(*(part.tolist() for part in guess), strict=True))
    return claimed, there


@pytest.mark.parametrize("liked", [True, False])
def test_drawn_negatives_hide_dislikes_and_no_likes(drawing, liked):
    """As printed, a gradient's sign says who liked an item; what she disliked looks like what was
    drawn for her."""
    claimed, there = ({c for c in part if c[2] == liked} for part in drawing)
    assert len(claimed & there) > 0.95 * len(there)
    precision = len(claimed & there) / len(claimed)
    assert precision > 0.95 if liked else precision < 0.3


class Forgetful(Owner):
    """Draws anew in every pass, as it must not."""

    passes = 0

    def _add_single(self, block, said):
        mine, self._rng = self._rng, self._rng.child("pass", self.passes)
        try:
            return super()._add_single(block, said)
        finally:
            self._rng = mine


@pytest.mark.parametrize("kind", [Owner, Forgetful])
def test_what_comes_again_in_every_pass_is_no_dislike_for_that(kind):
    """Requests of three passes, which name one user each: an item that all of them name with her,
    and that she did not like, is a dislike where owners draw anew, and hardly ever otherwise."""
    config = DRIFTConfig(theta=1, negatives="untouched", negatives_per_positive=5)
    owner, draw = kind(0, range(2000), config, Streams.from_seed(1)), np.random.default_rng(2)
    likes = {u: set(draw.integers(0, 2000, 12).tolist()) for u in range(30)}
    dislikes = {u: set(draw.integers(0, 2000, 4).tolist()) - likes[u] for u in likes}
    named = []
    for number in range(3):
        owner.passes = number
        asked = set()
        for user in likes:
            owner.admit(user)
            both = [(i, False) for i in dislikes[user]] + [(i, True) for i in likes[user]]
            for time, (item, flag) in enumerate(both):
                if owner.receive(Interaction(0, user, item, flag, time)):
                    asked |= {(user, i) for i in owner.request().items.tolist()}
                    owner.settle(True)
            owner.end_stream(user)
        named.append(asked)
    again = {(u, i) for u, i in set.intersection(*named) if i not in likes[u]}
    right = sum(i in dislikes[u] for u, i in again) / len(again)
    assert right > 0.9 if kind is Forgetful else right < 0.15


@pytest.mark.parametrize(
    ("window", "min_users", "negatives"),
    [(0, 4, "touched"), (0, 10, "touched"), (400, 4, "touched"), (400, 10, "touched"),
     (0, 4, "untouched"), (400, 10, "untouched")],
)  # fmt: skip
def test_against_sums_every_attack_is_at_its_base_rate(window, min_users, negatives):
    config = replace(SUMS, window=window, min_users=min_users, negatives=negatives)
    found = results(*seen(config, refused=REFUSED, rounds=2))
    when = found.pop(WHEN)
    assert (when.verdict == "holds") == (not window), "sums in short windows tell when it was"
    assert set(found) == {COSINE, ALONE, LOG, FEW, LENGTHS, REFUSAL}
    for result in found.values():
        low, high = result.interval
        assert low <= result.base_rate <= high, result
        assert result.verdict != "broken"
    for attack in (COSINE, ALONE, LOG, FEW):
        assert found[attack].claims > 0, "the attacker must commit itself"


@pytest.mark.parametrize("window", [0, 400])
def test_a_threshold_that_is_ignored_is_caught(window):
    class Careless(AggregatingOwner):
        def __init__(self, number, items, config, rng):
            super().__init__(number, items, replace(config, min_users=1), rng)

    found = results(*seen(replace(SUMS, window=window), kind=Careless))
    assert found[ALONE].verdict == "broken"
    assert found[ALONE].value > 0.9
    assert found[ALONE].claims > 1


def test_requests_that_are_not_padded_are_caught():
    class Unpadded(AggregatingOwner):
        def _all_items(self):
            named = {i for _, b in self.asked for i in b.negatives + b.positives}
            return np.array(sorted(named | set(self.waiting_people())), dtype=np.int64)

    found = results(*seen(replace(SUMS, window=50), kind=Unpadded))
    assert found[FEW].verdict == "broken"
    # Where nothing waits, the lengths tell as well.
    found = results(*seen(replace(SUMS, window=50, min_users=1), kind=Unpadded))
    assert found[LENGTHS].verdict == "broken"


def test_an_owner_that_reads_who_refuses_it_is_caught():
    views, truth = seen(DRIFTConfig())
    own = {**truth.own, "refused": np.ones((N_USERS, 3), bool)}
    result = owners_refused.ATTACK.run(views["owner"], replace(truth, own=own))
    assert result.verdict == "broken"
    assert result.value > 0.98


def test_where_nobody_refuses_there_is_nothing_to_attack():
    assert results(*seen(SUMS))[REFUSAL].verdict == "nothing to attack"


def test_nothing_private_is_shown():
    views, truth = seen(SUMS, events=600)
    guess = a06_cosine.COSINE.guess(views["orchestrator"])
    for thing in (guess, truth.own["drift"], views["orchestrator"]):
        assert "redacted" in repr(thing)
