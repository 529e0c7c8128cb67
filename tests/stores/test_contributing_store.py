"""A device that contributes to gram: each stage of a period once, by its own ledger, also after a
restart; what is never sent; and how long it rests between periods."""

import numpy as np
import pytest

from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.cli.spent import of_store
from sottovoce.core.consent import Choice
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import expand, unmasked
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

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
        if prepared is None:
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


def test_a_limit_below_her_epsilon_lets_nothing_leave(tmp_path):
    phone = Phone(tmp_path / "phone", Choice(epsilon=2.0, total_epsilon=1.0))
    with pytest.raises(ConsentError, match="limit"):
        phone.contribute(0)
    assert phone.spent == 0.0


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
