"""What is never sent, and what is taken out of a history, in stores: nothing of it leaves, neither
in what was prepared before nor by what was learnt from it."""

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import expand, unmasked
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError, DataError
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing, items_named, things_named
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.catalogue import changed
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

ME, N_ITEMS = 7, 20
CATALOGUE = [(f"i{n}", f"Title {n}") for n in range(N_ITEMS)]
CATEGORIES = [("Horror",) if n % 5 == 2 else ("Comedy", "Drama") for n in range(N_ITEMS)]
HISTORY = [f"i{n}" for n in (1, 2, 5, 7, 8, 12, 13)]
FPL = Terms.of("town", N_ITEMS, FPLConfig(embedding_size=3), 6, ShareFraction())
SHARES = Choice(share_positives=0.5)
RULES = GramConfig(popularity_share=0.3, least_head=4)
SUM = SecureSum(min_devices=3, bits=32, key="ab" * 32)
GRAM = Terms("town", N_ITEMS, RULES, OwnEpsilon(8.0), SUM)


class Phone:
    """A device of one of two systems. Every phone has the same root key."""

    def __init__(self, path, choice, history=HISTORY, terms=FPL, categories=CATEGORIES):
        self.terms = terms
        self.store = CohortStore.create(path, [(ME, "me")], root_key=Streams.from_seed(3).key)
        self.store.set_catalogue(CATALOGUE, categories)
        self.store.add_history(ME, history, list(range(len(history))))
        self.store.set_choice(ME, choice)
        self.hosted = DeviceSession(self.store, pack=self.pack)
        self.hosted.agree(terms)

    def open(self):
        """As after a restart."""
        self.store.close()
        self.store = CohortStore.open(self.store.path)
        self.hosted = DeviceSession(self.store, pack=self.pack)

    def pack(self, terms, attempt, view, reports, seeds):
        """What is masked, without the mask, which is another in every message."""
        mask = expand(seeds.seeds[0], reports.masked.shape[1], terms.bits)
        return unmasked(reports.masked[0], mask, 1, terms.bits).tobytes()

    def prepare(self, round):
        items = self.terms.build().server_init(N_ITEMS, Streams.from_seed(round))
        if self.terms is GRAM:
            items[:6, SCALE] = 1.0
        return self.hosted.prepare(ModelView(round, items), 0, summed=False)

    def send(self, round):
        """The message of a round that arrives."""
        prepared = self.prepare(round)
        self.hosted.leaving(prepared)
        self.hosted.arrived(round, 0)
        return prepared.message

    def vectors(self):
        return self.hosted.vectors().tolist()

    def kept(self):
        """Rows with vectors in the store."""
        return [self.store.file.value(f"SELECT count(*) FROM {t}") for t in ("vectors", "learnt")]


@pytest.fixture
def make(tmp_path):
    made = []

    def phone(*arguments, **more):
        made.append(Phone(tmp_path / f"phone{len(made)}", *arguments, **more))
        return made[-1]

    yield phone
    for one in made:
        one.store.close()


# --- what leaves ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "choice"), [(FPL, SHARES), (GRAM, Choice(epsilon=4.0))], ids=["fpl", "gram"]
)
@pytest.mark.parametrize("never", [("i2",), ("Title 2", "i13"), ("Horror",), ("Horror", "i1")])
def test_a_store_sends_what_one_would_that_never_had_it(make, terms, choice, never):
    named = items_named(CATALOGUE, CATEGORIES)
    held = {f"i{item}" for name in never for item in named[name]}
    rest = [item for item in HISTORY if item not in held]
    assert len(rest) < len(HISTORY)
    times = [HISTORY.index(item) for item in rest]
    hides = make(Choice(**{**choice.table(), "never_send": never}), terms=terms)
    without, full = make(choice, [], terms=terms), make(choice, terms=terms)
    without.store.add_history(ME, rest, times)
    for round in range(2):
        message = hides.send(round)
        assert message == without.send(round)
        assert message != full.send(round)
        assert hides.vectors() == without.vectors()
    drop = ["time", "digest"]
    books = [p.store.ledger_rows().drop_columns(drop).to_pylist() for p in (hides, without)]
    assert books[0] == books[1]
    hides.hosted.keep_model(ModelView(2, terms.build().server_init(N_ITEMS, Streams(1))))
    shown = {item for item, _, _ in hides.hosted.recommend(ME, N_ITEMS)}
    assert not shown & set(HISTORY), "what she has is not recommended to her"


GONE = changed(CATALOGUE, [], ["i2"])
CALLED = [(item, "Harmless" if item == "i2" else title) for item, title in CATALOGUE]
GIVEN = [("i2", "Title 3"), ("i3", "Title 2")]
SWAPPED = [*CATALOGUE[:2], *GIVEN, *CATALOGUE[4:]]


@pytest.mark.parametrize(
    "catalogues",
    [[GONE], [CALLED], [SWAPPED], [GONE, CATALOGUE], [CALLED, GONE, CALLED], [CATALOGUE[:2], GONE]],
    ids=["gone", "renamed", "swapped", "gone and back", "renamed, gone, back", "out and in"],
)
@pytest.mark.parametrize(
    ("terms", "choice"), [(FPL, SHARES), (GRAM, Choice(epsilon=4.0))], ids=["fpl", "gram"]
)
def test_a_title_that_an_item_had_stays_a_name_for_it(make, terms, choice, catalogues):
    never = Choice(**{**choice.table(), "never_send": ("Title 2",)})
    hides, full = make(never, terms=terms), make(choice, terms=terms)
    without = make(choice, [], terms=terms)
    rest = [item for item in HISTORY if item != "i2"]
    without.store.add_history(ME, rest, [HISTORY.index(item) for item in rest])
    for round, catalogue in enumerate([CATALOGUE, *catalogues]):
        for phone in (hides, without, full):
            phone.store.set_catalogue(catalogue)
        if len(catalogue) < N_ITEMS:
            continue
        hides.open()
        message = hides.send(round)
        assert message == without.send(round)
        assert message != full.send(round)
    assert "Title 2" in hides.store.names()[2]
    assert not any(hides.store.categories()), "a title is no category"


def test_a_former_title_is_known_to_rules_that_come_later_and_after_another_federation(make):
    phone, without = make(SHARES), make(SHARES, [item for item in HISTORY if item != "i2"])
    for one in (phone, without):
        one.store.set_catalogue(CALLED)
    assert phone.store.former_titles()[2] == ("Title 2",)
    assert phone.store.former_titles()[3] == ()
    phone.store.leave_federation()
    phone.store.set_catalogue([("x", "Elsewhere")])
    phone.store.set_catalogue(CATALOGUE)
    assert phone.store.former_titles()[2] == ("Harmless",)
    phone.store.set_choice(ME, Choice(share_positives=0.5, never_send=("Harmless",)))
    assert things_named(phone.store)["Harmless"].tolist() == [2]


def test_who_has_nothing_to_send_is_recommended_to_by_all_that_she_has(make):
    hides = make(Choice(share_positives=0.5, never_send=("Horror", "Drama")))
    home = make(Choice(takes_part=False))
    for phone in (hides, home):
        phone.hosted.keep_model(ModelView(2, FPL.build().server_init(N_ITEMS, Streams(1))))
    assert hides.hosted.recommend(ME, 5) == home.hosted.recommend(ME, 5)


def test_what_she_never_sends_counts_for_what_is_recommended_and_for_nothing_else(make):
    hides, without = make(Choice(share_positives=0.5, never_send=("Horror",))), make(SHARES, [])
    rest = [item for item in HISTORY if item not in ("i2", "i7", "i12")]
    without.store.add_history(ME, rest, [HISTORY.index(item) for item in rest])
    for phone in (hides, without):
        phone.send(0)
        phone.hosted.keep_model(ModelView(1, FPL.build().server_init(N_ITEMS, Streams(1))))
    shown, other = ({i: s for i, _, s in p.hosted.recommend(ME, 20)} for p in (hides, without))
    both = shown.keys() & other.keys()
    assert {item: shown[item] for item in both} != {item: other[item] for item in both}
    assert hides.vectors() == without.vectors()
    assert hides.send(1) == without.send(1)


def test_a_gateway_names_nobody_who_has_nothing_to_send(make):
    phone = make(Choice(share_positives=0.5, never_send=("Horror", "Drama")))
    assert phone.hosted.willing().booked.who == ()
    assert isinstance(phone.prepare(0), Nothing)
    phone.store.set_choice(ME, SHARES)
    assert phone.hosted.willing().booked.who == (ME,)


def test_a_name_that_the_catalogue_does_not_know_blocks_nothing(make):
    rule, none = make(Choice(share_positives=0.5, never_send=("Western",))), make(SHARES)
    assert rule.send(0) == none.send(0)


# --- what was learnt ------------------------------------------------------------------------------


def test_who_never_sends_more_starts_to_learn_anew(make):
    phone, first = make(SHARES), make(SHARES).vectors()
    for round in range(2):
        phone.send(round)
    assert phone.vectors() != first
    phone.store.set_choice(ME, Choice(share_positives=0.4))
    assert phone.vectors() != first, "another choice forgets nothing"
    phone.store.set_choice(ME, Choice(share_positives=0.4, never_send=("i2",)))
    assert phone.vectors() == first
    assert phone.kept() == [0, 0]
    phone.send(2)
    learnt = phone.vectors()
    assert learnt != first
    phone.store.set_choice(ME, SHARES)  # less is never sent
    assert phone.vectors() == learnt
    phone.store.set_choice(ME, Choice(share_positives=0.5, never_send=("i2",)))
    assert phone.vectors() == first, "meanwhile it may have been learnt from"


def test_choices_of_many_at_once_forget_as_well(make):
    phone, first = make(SHARES), make(SHARES).vectors()
    phone.send(0)
    hides = Choice(share_positives=0.5, never_send=("Horror",))
    phone.store.set_choices(Consent.uniform(np.array([ME]), hides))
    assert phone.vectors() == first


def test_what_is_under_way_is_not_learnt_from_when_it_arrives(make):
    phone, first = make(SHARES), make(SHARES).vectors()
    phone.hosted.leaving(phone.prepare(0))
    phone.store.set_choice(ME, Choice(share_positives=0.5, never_send=("i2",)))
    phone.hosted.arrived(0, 0)
    assert phone.vectors() == first
    phone.send(1)
    fresh = make(Choice(share_positives=0.5, never_send=("i2",)))
    fresh.send(1)
    assert phone.vectors() == fresh.vectors()


def test_a_catalogue_that_puts_something_of_hers_under_a_rule_starts_her_anew(make):
    phone = make(Choice(share_positives=0.5, never_send=("Horror",)), categories=())
    first = make(SHARES).vectors()
    phone.send(0)
    learnt = phone.vectors()
    phone.store.set_catalogue([*CATALOGUE[:-1], ("i19", "Another title")])
    assert phone.vectors() == learnt != first
    prepared = phone.prepare(1)
    phone.store.set_catalogue(CATALOGUE, CATEGORIES)
    assert phone.vectors() == first
    with pytest.raises(ConsentError):
        phone.hosted.leaving(prepared)


# --- what is taken out of a history ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["some", "all"])
@pytest.mark.parametrize(
    ("terms", "choice"), [(FPL, SHARES), (GRAM, Choice(epsilon=4.0))], ids=["fpl", "gram"]
)
def test_what_was_prepared_with_it_does_not_leave(make, terms, choice, how):
    phone, first = make(choice, terms=terms), make(choice, terms=terms).vectors()
    prepared = phone.prepare(0)
    if how == "some":
        assert phone.store.remove_items(ME, ["i2", "i2", "i12", "not hers"]) == 2
        assert {item for item, _ in phone.store.interactions(ME)} == {*HISTORY} - {"i2", "i12"}
    else:
        assert phone.store.forget_history(ME) == len(HISTORY)
        assert phone.store.interactions(ME) == []
    with pytest.raises(ConsentError):
        phone.hosted.leaving(prepared)
    assert phone.store.ledger().num_rows == 0
    assert phone.store.budget() == []
    assert phone.store.file.value("SELECT message FROM rounds") is None, "nor does it stay here"
    assert phone.vectors() == first
    assert len(phone.store.records(ME)) == 1, "she has not changed her mind"
    if how == "some":
        rest = [item for item in HISTORY if item not in ("i2", "i12")]
        other = make(choice, [], terms=terms)
        other.store.add_history(ME, rest, [HISTORY.index(item) for item in rest])
        assert phone.send(0) == other.send(0)
    elif terms is FPL:
        assert isinstance(phone.prepare(0), Nothing)


def test_what_was_learnt_from_it_is_forgotten(make):
    phone, first = make(SHARES), make(SHARES).vectors()
    for round in range(2):
        phone.send(round)
    assert phone.store.remove_items(ME, ["not hers"]) == 0
    assert phone.vectors() != first
    assert phone.store.remove_items(ME, ["i2"]) == 1
    assert phone.vectors() == first
    assert phone.kept() == [0, 0]
    assert phone.store.ledger().num_rows == 2, "what left stays on record"


def test_what_may_have_left_is_not_sent_again(make):
    phone = make(SHARES)
    prepared = phone.prepare(0)
    phone.hosted.leaving(prepared)
    phone.store.remove_items(ME, ["i2"])
    with pytest.raises(ConsentError):
        phone.hosted.leaving(prepared)


def test_only_a_user_of_the_store_has_a_history_there(make):
    store = make(SHARES).store
    for forget in (lambda: store.remove_items(99, ["i2"]), lambda: store.forget_history(99)):
        with pytest.raises(DataError, match="is not in the store"):
            forget()
    assert len(store.interactions(ME)) == len(HISTORY)


def test_of_two_users_one_is_forgotten(tmp_path):
    with CohortStore.create(tmp_path / "two", [(1, "a"), (2, "b")]) as store:
        store.set_catalogue(CATALOGUE)
        for number in (1, 2):
            store.add_history(number, HISTORY)
            store.set_choice(number, SHARES)
        hosted = DeviceSession(store)
        hosted.agree(FPL)
        view = ModelView(0, FPL.build().server_init(N_ITEMS, Streams(1)))
        hosted.leaving(hosted.prepare(view, 0, summed=True))
        hosted.arrived(0, 0)
        before = hosted.vectors()
        store.forget_history(1)
        after = hosted.vectors()
        assert (after[0] != before[0]).any()
        assert (after[1] == before[1]).all()
        assert len(store.interactions(2)) == len(HISTORY)


# --- categories -----------------------------------------------------------------------------------


def test_categories_are_kept_by_item_and_replaced_with_the_catalogue(make):
    store = make(SHARES).store
    assert store.categories() == CATEGORIES
    store.set_catalogue(CATALOGUE)
    assert store.categories() == [()] * N_ITEMS
    with pytest.raises(DataError, match="of every item, or none"):
        store.set_catalogue(CATALOGUE, CATEGORIES[1:])
    named = items_named([("a", "A"), ("b", "x")], [("x", "y"), ("y",)])
    assert {name: items.tolist() for name, items in named.items()} == {
        "a": [0], "A": [0], "b": [1], "x": [0, 1], "y": [0, 1],
    }  # fmt: skip
