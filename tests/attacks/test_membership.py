"""A12: what the published model remembers, with a control, over a secure sum, and with noise."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.suite import a12_membership
from sottovoce.attacks.suite.a12_membership import Home, MemberPairs, against_others, against_same
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.errors import DataError
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation

HELD, PART = a12_membership.HELD, a12_membership.PART
N_USERS, N_ITEMS = 400, 150
RNG = Streams.from_seed(1)
FCF = FCFConfig(embedding_size=16, reg=1.0, rounds=25)


def world(seed=0):
    """Users of six tastes; a fifth of each one's items, drawn at random, is held out."""
    draw = np.random.default_rng(seed)
    taste = draw.normal(size=(6, N_ITEMS))
    taste += draw.normal(size=N_ITEMS)  # some items are popular
    users, items, held = [], [], []
    for user in range(N_USERS):
        chance = np.exp(taste[user % 6])
        mine = draw.choice(N_ITEMS, 25, replace=False, p=chance / chance.sum())
        users += [user] * 25
        items += mine.tolist()
        held += [k < 5 for k in range(25)]
    table = np.stack([users, items], axis=1)
    held = np.array(held)
    parts = [
        Interactions.from_pairs(*table[which].T, n_users=N_USERS, n_items=N_ITEMS)
        for which in (~held, held)
    ]
    return parts[0], parts[1]


TRAIN, TEST = world()
HALF = np.random.default_rng(9).random(N_USERS) < 0.5


def played(settings=FCF, part=HALF, release=None, link=None, choice=None, seed=1):
    """A run of those who take part, attacked by anyone, and its truth."""
    release, link = release or Everything(), link or Direct()
    choice = choice or Choice(share_positives=1.0)
    users = np.arange(N_USERS)
    consent = Consent.of(users, [choice, Choice(takes_part=False)], (~part).astype(np.int64))
    made = Federation.build(settings, TRAIN, consent, release, Streams.from_seed(seed), link=link)
    made.run()
    view = View(
        "anyone", (), settings, release, link, N_ITEMS, made.server.items,
        triples=made.schedule.triples,
    )  # fmt: skip
    truth = Truth(
        TRAIN, TEST, part, consent.share_positives, {}, {}, np.zeros((N_USERS, 1), np.float32)
    )
    return view, truth


def test_a_model_remembers_items_and_who_took_part():
    view, truth = played()
    held, part = HELD.run(view, truth), PART.run(view, truth)
    assert held.verdict == part.verdict == "broken"
    assert held.value > 0.55
    assert part.value > 0.6
    assert "did not take part" in held.detail
    assert "secure sum does not change this" in held.detail


def test_controls_agree_where_nothing_drifts():
    """Users who stay away, a model without the targets, popularity: all near one half, since what
    is held out was drawn at random."""
    view, truth = played()
    control = played(part=~HALF)[0].final
    others = HELD.run(view, truth)
    without = HELD.run(view, replace(truth, own={"control": control}))
    popular = HELD.run(view, replace(truth, takes_part=np.ones(N_USERS, bool)))
    for found in (others, without, popular):
        assert abs(found.base_rate - 0.5) < 0.05
    assert others.value == without.value
    assert "without them" in without.detail
    assert "control is missing" in popular.detail


def test_a_model_that_never_saw_them_tells_nothing():
    """The attack is judged on users of whom nothing was learnt, as if they had taken part."""
    view, truth = played(part=~HALF)
    control = played(part=~HALF, seed=2)[0].final
    strangers = replace(truth, takes_part=HALF, own={"control": control})
    assert HELD.run(view, strangers).verdict == "holds"
    swapped = HELD.run(view, replace(truth, takes_part=HALF))
    assert swapped.value < swapped.base_rate  # these others are the ones it remembers


def test_a_secure_sum_leaks_as_much_and_noise_closes_it():
    plain = HELD.run(*played())
    assert HELD.run(*played(link=SecureSum())).value == pytest.approx(plain.value, abs=1e-9)
    noisy = played(link=SecureSum(clip=0.5, noise=20.0))
    assert HELD.run(*noisy).verdict == PART.run(*noisy).verdict == "underpowered"


def test_pairwise_models_and_reports_are_attacked_alike():
    pairs = FPLConfig(embedding_size=8, configuration="pFPL+", epochs=6)
    found = HELD.run(*played(pairs, release=ShareFraction()))
    assert found.verdict == "broken"
    reports = KReports(20, (Tier(1.0, 50),))
    found = HELD.run(
        *played(
            FMFConfig(variant="rotated", rounds=3), release=reports, link=Proxied(),
            choice=Choice(epsilon=1.0, max_reports=20),
        )
    )  # fmt: skip
    assert found.verdict == "underpowered"


@pytest.mark.slow
def test_a_filtered_model_is_attacked_as_well(monkeypatch):
    pytest.importorskip("torch")
    few = MemberPairs.held_or_not(TRAIN, TEST, RNG)
    keep = few.users < 120
    few = replace(
        few, users=few.users[keep], members=few.members[keep], strangers=few.strangers[keep],
        popularity=few.popularity[keep],
    )  # fmt: skip
    monkeypatch.setattr(MemberPairs, "held_or_not", lambda *_: few)
    from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
    from sottovoce.privacy.updates import Clipped

    gender = FilterConfig("gender", ("f", "m"), (0.5, 0.5))
    settings = UCConfig(embedding_size=5, pairs=8, rounds=2, attributes=(gender,))
    view = View(
        "anyone", (), settings, Clipped(), Direct(), N_ITEMS,
        settings.build(1.0, "l2").server_init(N_ITEMS, RNG),
    )  # fmt: skip
    truth = played(replace(FCF, rounds=1))[1]
    found = HELD.run(view, truth)
    assert found.claims > 150  # nothing was learnt, so nothing is remembered
    assert found.verdict == "underpowered"


# --- the questions -------------------------------------------------------------------------------


def test_questions_are_fair():
    question = MemberPairs.held_or_not(TRAIN, TEST, RNG)
    for user, member, stranger in zip(
        question.users[:300], question.members, question.strangers, strict=False
    ):
        assert member in TRAIN.row(user)
        assert member not in question.known.row(user)
        assert stranger in TEST.row(user)
    assert question.known.n_interactions == TRAIN.n_interactions - N_USERS * 10
    assert abs(question.popular_wins().mean() - 0.5) < 0.06
    asked = MemberPairs.took_part(TRAIN, RNG, most=50)
    assert len(np.unique(asked.users)) <= 50
    assert not any(s in TRAIN.row(u) for u, s in zip(asked.users, asked.strangers, strict=True))
    assert abs(MemberPairs.took_part(TRAIN, RNG).popular_wins().mean() - 0.5) < 0.05
    assert "redacted" in repr(question)


def test_the_interval_is_that_of_the_difference():
    draw = np.random.default_rng(1)
    users = np.repeat(np.arange(300), 4)
    wins = (draw.random(1200) < 0.6).astype(float)
    assert against_same(users, wins, wins).interval == (wins.mean(), wins.mean())
    low, high = against_others(users, wins, users, wins).interval
    assert low < wins.mean() - 0.03
    assert high > wins.mean() + 0.03
    right = 0
    for _ in range(200):
        one, other = (draw.random((2, 1200)) < 0.6).astype(float)
        found = against_same(users, one, other)
        right += found.interval[0] <= found.control <= found.interval[1]
    assert right > 180


def test_what_cannot_be_attacked_is_said():
    view, truth = played(replace(FCF, rounds=1))
    assert HELD.applies(view) == ""
    assert "No model" in HELD.applies(replace(view, algorithm=DRIFTConfig()))
    with pytest.raises(DataError, match="vectors"):
        Home.of(replace(view, algorithm=DRIFTConfig()))
    with pytest.raises(DataError, match="control"):
        HELD.run(view, replace(truth, own={"control": np.zeros((2, 2))}))
    nobody = replace(truth, takes_part=np.zeros(N_USERS, bool))
    assert HELD.run(view, nobody).verdict == "nothing to attack"
    assert PART.run(view, nobody).verdict == "nothing to attack"
