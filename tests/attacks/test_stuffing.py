"""Users who push one item within the norm of gram's contributions: what they send, and what comes
of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.attacks.poisoning import exposure
from sottovoce.attacks.stuffing import CAP, Fakes, Stuffing, knowing, pair_norm, stuffed_model
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS, cut
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import CheckedSum, SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import noise_root
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.errors import ConfigError
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation, noise_spans

WAYS = ["pairs", "capped", "profiles", "checked", "fans"]
TRAIN = generate_shaped(ShapeConfig(1200, 120, 24_000, 5, 1.0, 4, seed=3), threads=1)
CONFIG = GramConfig(least_head=60, most_head=60, embedding_size=40, recency=False)
RELEASE, RNG = OwnEpsilon(8.0), Streams.from_seed(2)
POPULAR = tuple(np.argsort(-TRAIN.item_counts, kind="stable")[:60].tolist())
TARGET = int(np.argmin(TRAIN.item_counts))


def table_of(second, size):
    """As the symmetric matrix that it stands for."""
    table = np.zeros((size, size))
    table[np.triu_indices(size, 1)] = second[size:] / STEPS
    return table + table.T + np.diag(second[:size] / STEPS)


@given(st.sampled_from(WAYS), st.integers(2, 30), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_nobody_sends_more_than_the_norm_allows(allows, size, partners, seed):
    draw = np.random.default_rng(seed)
    head = np.sort(draw.choice(50, size, replace=False))
    stuffing = Stuffing(int(draw.integers(50)), tuple(draw.permutation(50).tolist()), allows,
                        partners)  # fmt: skip
    first, second = stuffing.first(51), stuffing.second(head)
    assert np.sqrt(np.sum((first / STEPS) ** 2)) <= 1.0
    assert pair_norm(second, size) <= 1.0 + 1e-9
    assert pair_norm(second, size) == pytest.approx(np.linalg.norm(table_of(second, size)))
    assert first[stuffing.target] > 0
    if allows == "capped":
        assert max(first.max(), second.max()) <= CAP * STEPS
    if stuffing.target not in head:
        assert not second.any()


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_profiles_are_products_of_one_vector(partners, seed):
    draw = np.random.default_rng(seed)
    order = tuple(draw.permutation(40).tolist())
    for allows in ("profiles", "fans", "checked"):
        for demotes in (False, True) if allows != "profiles" else (False,):
            stuffing = Stuffing(order[3], order, allows, partners, demotes=demotes)
            table = table_of(stuffing.second(np.arange(40)), 40)
            sizes = np.sort(np.abs(np.linalg.eigvalsh(table)))
            assert sizes[-2] < 40 / STEPS
            assert demotes == (not table[order[3]].any())
            if allows != "checked":
                assert sizes[-1] == pytest.approx(1.0, abs=40 / STEPS)


@given(st.integers(2, 300), st.integers(1, 400), st.booleans(), st.booleans(),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_checked_ones_pass_the_checks_and_use_up_what_these_allow(
    size, partners, demotes, weighted, seed
):
    draw = np.random.default_rng(seed)
    order, link = tuple(draw.permutation(size).tolist()), CheckedSum()
    weights = tuple(draw.exponential(size=size).tolist()) if weighted else ()
    stuffing = Stuffing(order[0], order, "checked", partners, weights=weights, demotes=demotes)
    form = link.form(size, True)
    k = np.sqrt(stuffing.second(np.arange(size))[:size]).astype(np.int64)
    assert k.max() <= form.most
    assert (k**2).sum() <= form.bound
    assert k.max() * k.sum() <= form.loudness
    assert k[order[0]] == (0 if demotes else form.most)
    if not weighted:  # one step more for all partners would be too much
        more = np.where(k > 0, np.minimum(k + 1, form.most), k)
        passes = (more**2).sum() <= form.bound and more.max() * more.sum() <= form.loudness
        assert not passes or np.array_equal(more, k)
    places = link.form(max(size, 100) + 1, False)
    first = stuffing.first(max(size, 100) + 1) // link.grid(places).step
    assert first.max() == places.most
    assert (first**2).sum() <= places.bound
    assert (first[order[0]] > 0) != demotes


def test_fans_send_what_devices_with_such_items_send():
    stuffing = Stuffing(7, (3, 1, 4, 5, 9), "fans", 4)
    mine = [7, 3, 1, 4, 5]
    history = Interactions.from_pairs([0] * 5, mine, n_users=1, n_items=12)
    consent = Consent.uniform(np.zeros(1, np.int64), Choice(epsilon=8.0))
    algorithm = CONFIG.build_under(RELEASE, None, 1)
    cohort = Cohort(np.zeros(1, np.int64), history, consent, np.zeros((1, 40), np.float32))
    head = np.zeros((12, CONFIG.width), np.float32)
    head[:, 1] = 1.0
    for round, items in enumerate((np.zeros_like(head), head)):
        profile = algorithm.device_profile(ModelView(round, items), cohort, np.zeros(1, np.int64))
        real = cut(profile, np.ones(1), "gram").whole(0)
        made = stuffing.second(np.arange(12)) if round else stuffing.first(13)
        # Pairs are cut to steps of 2^-8 in each of two numbers.
        assert made == pytest.approx(real, abs=STEPS / 128 if round else 2)


def cohort():
    users = np.arange(TRAIN.n_users)
    consent = Consent.uniform(users, Choice(epsilon=8.0))
    return Cohort(users, TRAIN, consent, np.zeros((len(users), 40), np.float32))


def model(stuffing, devices, link=None):
    algorithm = CONFIG.build_under(RELEASE, link, 1)
    spans, key = noise_spans(algorithm, RELEASE), noise_root(RNG.child("masker").root)
    return stuffed_model(
        algorithm, cohort(), np.ones(TRAIN.n_users), spans, key, stuffing, devices, link=link,
        rng=RNG,
    )  # fmt: skip


def reached(stuffing, devices, link=None):
    algorithm, mine = CONFIG.build_under(RELEASE, link, 1), cohort()
    items = model(stuffing, devices, link)
    algorithm.device_fit(ModelView(2, items), mine, RNG)
    scorer = algorithm.device_scorer(mine.vectors, items)
    return exposure(scorer, TRAIN, stuffing.target, (10,))["ER@10"]


def test_without_malicious_devices_the_model_is_that_of_the_federation():
    consent = Consent.uniform(np.arange(TRAIN.n_users), Choice(epsilon=8.0))
    made = Federation.build(CONFIG, TRAIN, consent, RELEASE, RNG, link=SecureSum(20))
    made.run()
    assert np.array_equal(model(Stuffing(TARGET, POPULAR), 0), made.server.items)


def test_over_a_checked_sum_it_is_nearly_that_of_the_federation():
    """Noise is drawn on another grid."""
    consent = Consent.uniform(np.arange(TRAIN.n_users), Choice(epsilon=8.0))
    made = Federation.build(CONFIG, TRAIN, consent, RELEASE, RNG, link=CheckedSum(20))
    made.run()
    ours, theirs = (
        model(Stuffing(TARGET, POPULAR), 0, CheckedSum(20))[:, 0],
        made.server.items[:, 0],
    )
    assert np.corrcoef(ours, theirs)[0, 1] > 0.95


def test_one_device_owns_a_sum_that_checks_nothing_and_not_one_that_does():
    assert reached(Stuffing(TARGET, POPULAR, "anything", 40), 1) > 0.9
    loved = POPULAR[0]
    before = reached(Stuffing(loved, POPULAR), 0)
    assert before > 0.3
    assert reached(Stuffing(loved, POPULAR, "anything", 40, demotes=True), 1) == 0.0
    link = CheckedSum(20)
    assert reached(Stuffing(TARGET, POPULAR, "checked", 15), 1, link) == 0.0
    clean = reached(Stuffing(loved, POPULAR), 0, link)
    demoted = reached(Stuffing(loved, POPULAR, "checked", 15, demotes=True), 1, link)
    assert demoted == pytest.approx(clean, abs=0.02)


def test_who_knows_a_model_weighs_partners_by_it():
    algorithm = CONFIG.build_under(RELEASE, None, 1)
    weights = knowing(algorithm, model(Stuffing(TARGET, POPULAR), 0), TRAIN.n_users)
    assert len(weights) == TRAIN.n_items
    assert 2 <= np.count_nonzero(weights) <= 60
    stuffing = Stuffing(POPULAR[50], POPULAR, "checked", weights=weights)
    told = np.diag(table_of(stuffing.second(np.arange(120)), 120))
    others = np.delete(told, POPULAR[50])
    assert not others[np.delete(np.array(weights), POPULAR[50]) <= 0].any()


@pytest.mark.parametrize("link", [None, CheckedSum(20)])
def test_fakes_send_what_honest_devices_with_their_items_send(link):
    algorithm = CONFIG.build_under(RELEASE, link, 1)
    fakes = Fakes(algorithm, 7, (3, 1, 4, 5, 9), 4, 100, link)
    first, second = fakes.first(101), fakes.second(np.arange(12))
    assert sorted(np.flatnonzero(first)) == [1, 3, 4, 5, 7, 100]
    assert np.sqrt(np.sum((first / STEPS) ** 2)) <= 1.0
    assert pair_norm(second, 12) <= 1.0
    told = np.sqrt(np.diag(table_of(second, 12))[[1, 3, 4, 5, 7]])
    assert told == pytest.approx([1 / np.sqrt(5)] * 5, abs=1 / 128)
    if link is not None:
        assert first.max() == 15 * STEPS // 64
    assert reached(Fakes(algorithm, TARGET, POPULAR, 19, 120, link), 1, link) == 0.0


def test_a_norm_alone_lets_an_item_be_pushed_and_shape_and_cap_hold_it_back():
    few, many = 2, 120
    assert reached(Stuffing(TARGET, POPULAR, "pairs", 40), few) < 0.05
    pushed = {way: reached(Stuffing(TARGET, POPULAR, way, 40), many) for way in WAYS}
    assert pushed["pairs"] > 0.3
    assert pushed["capped"] < 0.05  # it does not come into the head
    assert pushed["fans"] < 0.5 * pushed["pairs"]
    assert pushed["profiles"] <= pushed["pairs"]
    checked = [
        reached(Stuffing(TARGET, POPULAR, "checked", n), many, CheckedSum(20)) for n in (5, 15, 40)
    ]
    assert max(checked) < 0.5 * pushed["profiles"]


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="a partner at least"):
        Stuffing(1, (2,), partners=0)
    with pytest.raises(ConfigError, match="a cap lies"):
        Stuffing(1, (2,), cap=0.0)
    with pytest.raises(ConfigError, match="who demotes"):
        Stuffing(1, (2,), "capped", demotes=True)
