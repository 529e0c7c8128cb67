"""A device that contributes to gram: each stage of a period once, by its own ledger, also after a
restart; what is never sent; and how long it rests between periods."""

import contextlib
import math
import secrets
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.cli.spent import of_store
from sottovoce.core.consent import Choice
from sottovoce.core.contributions import STEPS
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import expand, unmasked
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import MOST_STAGES, OwnEpsilon, beyond
from sottovoce.stores import device_limits as limits
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_rounds import Round, RoundBook
from sottovoce.stores.prepared import Nothing
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

ITEMS, DAY = 12, 86_400
CHOICE = Choice(epsilon=2.0, total_epsilon=100.0)
CATALOGUE = [(f"i{n}", f"Title {n}") for n in range(ITEMS)]


class Phone:
    def __init__(self, path, choice=CHOICE, **release):
        link = SecureSum(min_devices=3, bits=32, key="ab" * 32)
        config = GramConfig(popularity_share=0.3, least_head=4, batches=2)
        self.terms = Terms("town", ITEMS, config, OwnEpsilon(8.0, **release), link)
        self.algorithm, self.time, self.sent = self.terms.build(), 1000 * DAY, {}
        CohortStore.create(path, [(7, "Anna")])
        self.path = path
        self.open()
        self.store.set_catalogue(CATALOGUE)
        self.store.add_history(7, ["i1", "i2", "i5"], [1, 2, 3])
        self.store.set_choice(7, choice)
        self.hosted.agree(self.terms)

    def open(self):
        file = CohortStore.open(self.path).file
        self.store = CohortStore(file, clock=lambda: self.time)
        self.hosted = DeviceSession(self.store, pack=self.pack)

    def pack(self, terms, attempt, view, reports, seeds):
        mask = expand(seeds.seeds[0], reports.masked.shape[1], terms.bits)
        self.sent[view.round] = unmasked(reports.masked[0], mask, 1, terms.bits)[:, 0]
        return b"message"

    def view(self, round):
        items = self.algorithm.server_init(ITEMS, None)
        items[:6, SCALE] = 1.0
        return ModelView(round, items)

    def contribute(self, round):
        prepared = self.hosted.prepare(self.view(round), 0, summed=False)
        if isinstance(prepared, Nothing):
            return False
        self.hosted.leaving(prepared)
        self.hosted.arrived(round, 0)
        return True

    @property
    def spent(self):
        return float(self.store.spent()[0])


def test_each_stage_of_a_period_once_and_together_they_cost_her_epsilon(tmp_path):
    phone = Phone(tmp_path / "phone")
    assert phone.contribute(0)
    first = phone.spent
    assert 0 < first < 2.0
    phone.open()
    assert phone.contribute(1)
    assert phone.spent == pytest.approx(2.0)
    # The second batch of the period is not for her.
    assert not phone.contribute(2)
    assert not phone.contribute(3)
    assert phone.spent == pytest.approx(2.0)
    # In the next period she counts again, and pays again.
    assert phone.contribute(4)
    assert phone.spent == pytest.approx(2.0 + first)


def test_who_was_away_for_the_second_stage_does_it_in_the_next_batch(tmp_path):
    phone = Phone(tmp_path / "phone")
    assert phone.contribute(0)
    assert not phone.contribute(2)
    assert phone.contribute(3)
    assert phone.spent == pytest.approx(2.0)
    other = Phone(tmp_path / "other")
    assert other.contribute(1)
    assert other.contribute(2)
    assert other.spent == pytest.approx(2.0)


def test_what_left_counts_as_sent_whatever_became_of_it(tmp_path):
    phone = Phone(tmp_path / "phone")
    prepared = phone.hosted.prepare(phone.view(0), 0, summed=False)
    phone.hosted.leaving(prepared)
    phone.hosted.refused(0, 0, "late")
    spent = phone.spent
    assert not phone.contribute(2)
    assert phone.spent == spent > 0


def test_what_was_only_prepared_costs_nothing_and_is_asked_for_again(tmp_path):
    phone = Phone(tmp_path / "phone")
    phone.hosted.prepare(phone.view(0), 0, summed=False)
    assert phone.spent == 0.0
    assert phone.contribute(2)


def test_items_that_are_never_sent_are_in_no_message_by_id_or_title(tmp_path):
    for n, name in enumerate(("i2", "Title 2")):
        never = Choice(epsilon=8.0, total_epsilon=100.0, never_send=(name,))
        phone = Phone(tmp_path / f"phone{n}", never)
        phone.contribute(0)
        (there,) = np.nonzero(phone.sent[0][:ITEMS])
        assert there.tolist() == [1, 5]
        assert phone.sent[0].max() <= STEPS
        assert phone.hosted.keep_model(phone.view(0)) is None
        assert phone.hosted.recommend(7, 3)


def test_a_name_that_the_catalogue_does_not_know_is_a_rule_in_advance(tmp_path):
    choice = Choice(epsilon=8.0, total_epsilon=100.0, never_send=("a category",))
    phone = Phone(tmp_path / "phone", choice)
    assert phone.contribute(0)
    assert np.flatnonzero(phone.sent[0][:ITEMS]).tolist() == [1, 2, 5]
    # From the next round on the catalogue says what is of that category.
    phone.store.set_catalogue(CATALOGUE, [("a category",) if n == 5 else () for n in range(ITEMS)])
    assert phone.contribute(4)
    assert np.flatnonzero(phone.sent[4][:ITEMS]).tolist() == [1, 2]


def test_between_periods_it_rests_by_its_own_clock(tmp_path):
    phone = Phone(tmp_path / "phone", period_days=365)
    assert phone.contribute(0)
    phone.time += 100 * DAY
    assert phone.contribute(3), "the same period goes on"
    spent = phone.spent
    phone.time += 364 * DAY
    with pytest.raises(ConsentError, match="the next contribution may leave on"):
        phone.contribute(4)
    assert phone.spent == spent
    phone.time += 2 * DAY
    assert phone.contribute(4)


def test_it_rests_after_what_left_under_former_terms_whatever_their_periods(tmp_path):
    """Longer periods would have those before within the first one."""
    phone = Phone(tmp_path / "phone", period_days=30)
    assert phone.contribute(0)
    assert phone.contribute(1)
    assert not phone.contribute(2), "her part of the period is done"
    longer = GramConfig(popularity_share=0.3, quality_share=0.1, least_head=4, batches=512)
    phone.terms = replace(phone.terms, algorithm=longer)
    phone.algorithm = phone.terms.build()
    assert phone.algorithm.period(0) == phone.algorithm.period(5)
    phone.hosted.agree(phone.terms)
    spent = phone.spent
    with pytest.raises(ConsentError, match="the next contribution may leave on"):
        phone.contribute(2)  # the stage that only the new terms have
    assert phone.spent == spent
    phone.time += 31 * DAY
    assert phone.contribute(5)
    assert phone.spent > spent


def test_without_days_between_periods_it_never_rests_whatever_its_clock_says(tmp_path):
    phone = Phone(tmp_path / "phone", period_days=0)
    assert phone.contribute(0)
    phone.time -= 100 * DAY
    assert limits.rests_until(phone.store, phone.terms, 4)[0] < -(2**60)
    assert phone.contribute(4)


def two_contributors(path, *, stages):
    """Two of one household; these rounds of each have left."""
    link = SecureSum(min_devices=3, bits=32, key="ab" * 32)
    config = GramConfig(popularity_share=0.3, least_head=4, batches=3)
    terms = Terms("town", ITEMS, config, OwnEpsilon(8.0), link)
    store = CohortStore.create(path, [(7, "Anna"), (9, "Berta")])
    for number in (7, 9):
        store.set_choice(number, Choice(epsilon=1.0, total_epsilon=100.0))
    book = RoundBook(store.file)
    with store.file.transaction():
        book.add_terms(0, terms, 1)
        for number, rounds in stages.items():
            for attempt, round in enumerate(rounds):
                made = Round(
                    0, round, number * 10 + attempt, "prepared", b"", store.latest_choice(), 1,
                    bytes(16), b"message",
                )  # fmt: skip
                book.add(made, contributed(terms, number, round), "digest", 3)
                book.mark_left(made, 1234)
    return store, terms


def contributed(terms, number, round):
    one = np.ones(1)
    book = Ledger()
    book.record(
        Entries(
            kind=terms.release.name, user=one.astype(int) * number,
            round=one.astype(int) * round, positive_rows=one.astype(np.int32),
            negative_rows=np.zeros(1, np.int32), bytes=one.astype(int), epsilon=one * 0.5,
            reports=np.zeros(1, np.int32), report_epsilon=np.zeros(1), batch=np.zeros(1, int),
        )
    )  # fmt: skip
    return book


def test_stages_are_those_of_each_user_by_herself_and_of_her_latest_period(tmp_path):
    """Two stages and three batches: a period has six rounds, and every second is a stage's."""
    store, terms = two_contributors(tmp_path / "home", stages={7: [2, 3], 9: [1, 7]})
    assert limits.stages_done(store, terms).tolist() == [0b11, 1 << MOST_STAGES | 0b10]
    store.close()
    store, terms = two_contributors(tmp_path / "other", stages={7: [8, 3], 9: []})
    assert limits.stages_done(store, terms).tolist() == [1 << MOST_STAGES | 0b01, 0]
    store.close()


def test_what_was_told_beyond_is_each_users_own_and_of_this_period(tmp_path):
    store, terms = two_contributors(tmp_path / "home", stages={7: [0], 9: [1, 7]})
    sent = limits.stages_done(store, terms)
    assert limits.told_beyond(store, terms, sent).tolist() == [0.0, 0.0]
    # Quieter since: what has left was louder than what she tells today.
    for number in (7, 9):
        store.set_choice(number, Choice(epsilon=0.25, total_epsilon=100.0))
    own = terms.release.contributing
    before, today = own.loudness(1.0), own.loudness(0.25)
    expected = [
        beyond([(share, before)], stage, (0.3, 0.7), today)
        for share, stage in ((0.3, 0b01), (0.7, 0b10))
    ]
    assert min(expected) > 0.0
    assert limits.told_beyond(store, terms, sent).tolist() == pytest.approx(expected)
    # Who has done nothing has told nothing beyond, and others all the same.
    assert limits.told_beyond(store, terms, sent * [0, 1])[1] == pytest.approx(expected[1])
    assert limits.told_beyond(store, terms, np.zeros(2, np.int64)).tolist() == [0.0, 0.0]
    other = Terms("town", ITEMS, FPLConfig(embedding_size=3, triples=2), ShareFraction())
    for stages in (sent, np.zeros(2, np.int64)):
        assert limits.told_beyond(store, other, stages).tolist() == [0.0, 0.0]
    store.close()


def test_a_limit_below_her_epsilon_lets_nothing_leave(tmp_path):
    phone = Phone(tmp_path / "phone", Choice(epsilon=2.0, total_epsilon=1.0))
    with pytest.raises(ConsentError, match="limit"):
        phone.contribute(0)
    assert phone.spent == 0.0


OWN, MOST = st.sampled_from([0.25, 1.0, 8.0]), st.sampled_from([1.0, 8.0])


def told(*parts):
    """ε of a period in which contributions of these shares have left, each at an ε."""
    own = OwnEpsilon(8.0)
    return price(1 / math.sqrt(math.fsum(s * own.loudness(e) ** 2 for s, e in parts)), 1, own.delta)


@pytest.mark.parametrize(("first", "then"), [(1.0, 8.0), (8.0, 1.0), (0.125, 2.0)])
@pytest.mark.parametrize("whose", ["hers", "the terms'"])
def test_what_was_quieter_or_louder_before_is_booked_as_it_left(tmp_path, first, then, whose):
    mine = whose == "hers"
    phone = Phone(tmp_path / "phone", Choice(epsilon=first if mine else 8.0, total_epsilon=100.0))
    if not mine:
        phone.hosted.agree(replace(phone.terms, release=OwnEpsilon(first)))
    assert phone.contribute(0)
    assert phone.spent == pytest.approx(told((0.3, first)))
    if mine:
        phone.store.set_choice(7, Choice(epsilon=then, total_epsilon=100.0))
    else:
        phone.hosted.agree(replace(phone.terms, release=OwnEpsilon(then)))
    phone.open()
    assert phone.contribute(1)
    assert phone.spent == pytest.approx(told((0.3, first), (0.7, then)), rel=1e-7)
    # The next period is of what holds then.
    assert phone.contribute(4)
    assert phone.contribute(5)
    assert phone.spent == pytest.approx(told((0.3, first), (0.7, then)) + then, rel=1e-6)


@pytest.mark.parametrize("whose", ["hers", "the terms'"])
def test_who_speaks_up_in_the_middle_of_a_period_stays_within_her_limit(tmp_path, whose):
    mine, limit = whose == "hers", 6.0
    assert told((0.3, 1.0), (0.7, 8.0)) > limit
    phone = Phone(tmp_path / "phone", Choice(epsilon=1.0 if mine else 8.0, total_epsilon=limit))
    if not mine:
        phone.hosted.agree(replace(phone.terms, release=OwnEpsilon(1.0)))
    assert phone.contribute(0)
    before = phone.spent
    if mine:
        phone.store.set_choice(7, Choice(epsilon=8.0, total_epsilon=limit))
    else:
        phone.hosted.agree(replace(phone.terms, release=OwnEpsilon(8.0)))
    assert not phone.contribute(1)
    assert phone.spent == before
    assert 1 not in phone.sent


def test_stages_that_are_divided_otherwise_count_as_they_left(tmp_path):
    phone = Phone(tmp_path / "phone")
    other = GramConfig(popularity_share=0.3, quality_share=0.1, least_head=4, batches=8)
    assert phone.contribute(0)
    assert phone.contribute(1)
    phone.terms = replace(phone.terms, algorithm=other)
    phone.algorithm = phone.terms.build()
    phone.hosted.agree(phone.terms)
    assert phone.contribute(2), "a stage that was not there before"
    assert phone.spent == pytest.approx(told((0.3, 2.0), (0.7, 2.0), (0.1, 2.0)), rel=1e-7)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(1, 2), OWN, MOST),
        min_size=2,
        max_size=4,
    ),
    st.sampled_from([5.0, 100.0]),
)
def test_any_choices_and_terms_book_what_was_told_and_no_limit_is_passed(tmp_path, visits, limit):
    phone = Phone(tmp_path / secrets.token_hex(8))
    round, left = -1, {}
    for step, epsilon, most in visits:
        round += step
        phone.store.set_choice(7, Choice(epsilon=epsilon, total_epsilon=limit))
        phone.hosted.agree(replace(phone.terms, release=OwnEpsilon(most)))
        with contextlib.suppress(ConsentError):
            if phone.contribute(round):
                share = phone.algorithm.shares[round % 2]
                left.setdefault(round // 4, []).append((share, min(epsilon, most)))
    exact = math.fsum(told(*parts) for parts in left.values())
    assert phone.spent == pytest.approx(exact, rel=1e-6)
    assert phone.spent <= limit * (1 + 1e-9)
    phone.store.close()


def test_her_budget_is_in_periods_and_says_what_bounds_it(tmp_path):
    phone = Phone(tmp_path / "phone", Choice(epsilon=2.0, total_epsilon=7.0))
    phone.contribute(0)
    phone.contribute(1)
    budget = of_store(phone.store, 7, phone.terms)
    assert budget.spent == pytest.approx(2.0)
    assert (budget.account.reports, budget.rounds_left) == (0, 2)
    told = " ".join(budget.lines())
    assert "2 periods left" in told
    assert "noisy sums cost ε = 2" in told
    assert "report" not in told


def test_a_copied_store_keeps_a_book_of_its_own(tmp_path):
    """What docs/privacy.md says of a store whose files were copied: each copy contributes once in a
    round under a mask of its own, and none knows what the others have spent."""
    phone = Phone(tmp_path / "phone")
    phone.store.close()
    there = phone.path
    if there.is_dir():
        shutil.copytree(there, tmp_path / "copy")
    else:
        for file in tmp_path.glob("phone*"):
            shutil.copy2(file, tmp_path / file.name.replace("phone", "copy"))
    spent, masked = [], []
    for path in (there, tmp_path / "copy"):
        phone.path = path
        phone.open()
        phone.hosted = DeviceSession(
            phone.store, pack=lambda terms, attempt, view, reports, seeds: (
                masked.append(reports.masked.tobytes()) or phone.pack(
                    terms, attempt, view, reports, seeds
                )
            ),
        )  # fmt: skip
        assert phone.contribute(0)
        spent.append(phone.spent)
        phone.store.close()
    assert spent[0] == spent[1] > 0
    assert masked[0] != masked[1], "a mask never serves twice"
