"""Federated quality, attacked: how many of 1,000 devices must lie to hold back a good model or to
push a bad one, and what is given away of items that were held out."""

from functools import cache

import numpy as np
import pyarrow.compute as pc
import pytest
from audits import audit_sums
from quality_world import ASKED, TOWN, AskedFederation
from scipy.special import ndtr

from sottovoce.attacks.alone import SumTarget, right_guesses
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import CheckedSum
from sottovoce.core.shares import bits_of
from sottovoce.errors import SottovoceError
from sottovoce.privacy.own_epsilon import OwnEpsilon, distance
from sottovoce.runs.federation import noise_spans

HIT_C, MISS_C, HIT_P, MISS_P, HIT_Q, MISS_Q = range(6)
"""Places of a contribution: candidate, published, popularity."""
DRAWS = 40
DELTA = 1e-6


def vector(**at):
    """A contribution of norm 1 with these places."""
    made = np.zeros(6)
    made[[globals()[name] for name in at]] = list(at.values())
    return made / np.linalg.norm(made) * STEPS


AGAINST = vector(MISS_C=1, HIT_P=1, HIT_Q=1)
"""Says that the candidate is worse than the two others, in the form of an honest answer."""
AGAINST_MOST = vector(MISS_C=1, HIT_P=1)
"""The most that a vector within the bounds of a checked sum, none below 0, can say so."""
FOR, FOR_MOST = (vector(HIT_C=loud, MISS_P=1, MISS_Q=1) for loud in (1, 2))
"""The candidate must be no worse than either, so that louder lies are about it."""


class Lied:
    """A federation of 1,000 in which some lie."""

    def __init__(self, spoilt):
        self.asked = AskedFederation(TOWN, 0)
        if spoilt:
            self.asked.spoil()
        self.asked.sums()  # devices know what is published
        made = self.asked.made
        made.devices.cohort.sent[:] = 0
        made.devices.cohort.spent[:] = 0
        told = made.devices._contributions(made.server.publish(), np.arange(1000))
        each = np.array([told.whole(row) for row in range(1000)])
        self.each = each[np.random.default_rng(3).permutation(1000)]

    def held_back(self, liars, lie):
        """In which share of the draws, where so many of them say this."""
        sums = self.each[liars:].sum(axis=0) + np.round(liars * lie).astype(np.int64)
        told = [self.asked.told(sums, draw).objection("version 1") for draw in range(DRAWS)]
        return np.mean([bool(why) for why in told])

    def needed(self, lie, *, held_back):
        """The fewest that bring it about in half of the draws."""
        low, high = 0, 1000
        while high - low > 1:
            middle = (low + high) // 2
            enough = (self.held_back(middle, lie) >= 0.5) == held_back
            low, high = (low, middle) if enough else (middle, high)
        return high


@cache
def lied(spoilt):
    return Lied(spoilt)


def test_who_wants_to_hold_back_a_good_model_needs_as_many_as_it_has_won():
    """Of 1,000 residents at ε = 8 it hits for 215 and popularity for 166. Within the bounds of a
    checked sum a liar counts for √1.5 honest ones at most."""
    here = lied(False)
    assert here.held_back(0, AGAINST) <= 0.05
    assert here.held_back(10, AGAINST_MOST) <= 0.1  # a hundredth of all changes nothing
    honest, most = (here.needed(lie, held_back=True) for lie in (AGAINST, AGAINST_MOST))
    print(f"to hold a good model back: {honest} of 1,000, {most} of the loudest")
    assert 35 <= most <= honest <= 70
    assert 1.0 <= honest / most <= 1.4


def test_who_wants_to_push_a_bad_model_needs_as_many_as_it_has_lost():
    """Its factors are another item's each: it hits for 32 of 1,000, and popularity for 166."""
    here = lied(True)
    assert here.held_back(0, FOR) == 1.0
    assert here.held_back(50, FOR_MOST) == 1.0
    honest, most = (here.needed(lie, held_back=False) for lie in (FOR, FOR_MOST))
    print(f"to push a spoilt model: {honest} of 1,000, {most} of the loudest")
    assert 75 <= most <= honest <= 150


def test_a_checked_sum_lets_no_louder_lie_through():
    form = CheckedSum().form(6, False)
    unit = np.sqrt(form.bound) / STEPS
    for lie in (AGAINST, AGAINST_MOST, FOR_MOST):
        bits_of(form, np.floor(lie * unit).astype(np.int64)[None])
        with pytest.raises(SottovoceError):
            bits_of(form, np.ceil(1.01 * lie * unit).astype(np.int64)[None])
    with pytest.raises(SottovoceError):  # nor does anybody take away from what others say
        bits_of(form, np.array([[-1, 1, 0, 0, 0, 0]]))


def test_over_a_secure_sum_one_device_decides():
    """Nothing bounds what is masked: this does not hold, and is said so."""
    here = lied(False)
    assert here.held_back(1, 200 * AGAINST) == 1.0
    assert lied(True).held_back(1, 300 * FOR) == 0.0


# --- what is given away ---------------------------------------------------------------------------


def target(here, row=0):
    spans = noise_spans(here.asked.made.server.algorithm, here.asked.release)
    sigmas = np.concatenate([np.full(many, sigma) for many, sigma in spans(ASKED, 6)])
    return SumTarget((here.each[row],), (sigmas,))


def test_the_last_sum_gives_away_no_more_than_its_rows_in_the_ledger_say():
    """Whoever knows everybody else, and all but whether she was there; half of the noise is
    convicted."""
    here = lied(False)
    one, release = target(here), here.asked.made.devices._release
    nothing = np.zeros(1000, np.int64)
    claimed = float(release.costs(ASKED, nothing, (0.09, 0.81, 0.1))[0])
    noise = cache(lambda draw: [here.asked.noise(draw)])
    found = audit_sums(one, noise, 4000, claimed, DELTA)
    print(f"claimed for the stage alone: {claimed:.3f}; {found.describe()}")
    assert not found.convicted
    assert found.auc == pytest.approx(found.best, abs=0.02)
    assert one.distance <= distance(8.0, DELTA) * np.sqrt(0.1) * (1 + 1e-9)
    half = audit_sums(one, lambda draw: [noise(draw)[0] // 2], 4000, claimed, DELTA)
    assert half.convicted


def test_whether_she_had_a_hit_is_hardly_told():
    """All three answers turned round move the sum by √2 of her share; at ε = 1 and a share of 0.05
    whoever knows everything else guesses right in 52 of 100 cases, at ε = 8 and 0.1 in 63."""
    here = lied(False)
    hit, miss = vector(HIT_C=1, HIT_P=1, HIT_Q=1), vector(MISS_C=1, MISS_P=1, MISS_Q=1)
    for epsilon, share, most in ((1.0, 0.05, 0.52), (8.0, 0.1, 0.64)):
        sigma = OwnEpsilon(epsilon).sigma / np.sqrt(share) * STEPS
        other = SumTarget(((hit - miss).astype(np.int64),), (np.full(6, sigma),))
        best = float(ndtr(other.distance / 2))
        scale = sigma / target(here).sigmas[0][0]
        right = right_guesses(
            other, lambda draw, scale=scale: [np.round(here.asked.noise(draw) * scale)], 2000
        )
        print(f"ε = {epsilon:g}, share {share:g}: right in {right / 4000:.3f}, {best:.3f} at most")
        assert best <= most
        assert right / 4000 == pytest.approx(best, abs=0.035)


def test_its_epsilon_is_in_every_ledger():
    """Three rows of each who contributes, one of them of the round about quality, which together
    are the ε that she chose; none of who does not."""
    table = {**TOWN, "town": {"residents": 300}, "consent": {"mix": [
        {"weight": 1.0, "epsilon": 1.0}, {"weight": 1.0, "epsilon": 8.0},
        {"weight": 1.0, "takes_part": False},
    ]}}  # fmt: skip
    asked = AskedFederation(table, 2)
    made = asked.made
    asked.run_to(3)
    ledger, chosen = made.devices.ledger.pending(), made.devices.cohort.consent
    seen = set()
    for row, user in enumerate(made.devices.cohort.users.tolist()):
        mine = ledger.filter(pc.equal(ledger["user"], user)).to_pylist()
        if not chosen.takes_part[row]:
            assert mine == []
            continue
        epsilon = float(chosen.epsilon[row])
        assert sorted(one["round"] for one in mine) == [0, 1, 2]
        by_round = {one["round"]: one["epsilon"] for one in mine}
        assert sum(by_round.values()) == pytest.approx(epsilon, rel=1e-6)
        before = OwnEpsilon(8.0)
        assert 0 < by_round[2] < epsilon - by_round[0]
        assert by_round[2] == pytest.approx(
            epsilon - _price(before, epsilon, 0.9), rel=1e-6
        )  # what the last stage adds to the others
        seen.add(epsilon)
    assert seen == {1.0, 8.0}
    assert np.allclose(made.devices.cohort.spent[chosen.takes_part],
                       chosen.epsilon[chosen.takes_part])  # fmt: skip


def _price(release, epsilon, share):
    """ε of this share of 1/noise², for who accepts so much; by an independent accountant."""
    accountant = pytest.importorskip("dp_accounting").get_epsilon_gaussian
    sigma = 1.0 / distance(epsilon, release.delta)
    return accountant(sigma / np.sqrt(share), release.delta)
