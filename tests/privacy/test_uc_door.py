"""UC-FedRec at the door: what an upload costs and when it stops, what is refused, and that nothing
too large gets out. Stores and simulation agree on all of it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Vocabulary
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import GRID, ModelView, add_up
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.errors import ConsentError, Diverged, Stalled
from sottovoce.parties.server import Server
from sottovoce.privacy.updates import MOST_OWN, Clipped
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.testing import random_world
from sottovoce.wire.reports import decode_report, decode_sum
from sottovoce.wire.terms import Terms

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc import system as algorithm  # noqa: E402
from sottovoce.algorithms.uc.rows import ModelLayout  # noqa: E402
from sottovoce.algorithms.uc.system import UC  # noqa: E402

N_ITEMS = 30
RNG = Streams.from_seed(4)
GENDER = FilterConfig("gender", ("female", "male"), (0.3, 0.7))
AGE = FilterConfig("age", ("young", "middle", "old"), (0.2, 0.3, 0.5))
SETTINGS = UCConfig(
    embedding_size=6, local_epochs=2, pairs=8, item_rate=1.0, cooling=0.0, attributes=(GENDER, AGE)
)
SHARING = Choice(share_positives=1.0)
L2 = Clipped()
L1 = Clipped(clip=1.0, norm="l1", epsilon=2.0)
SCALAR = Clipped(clip=0.5, norm="scalar", epsilon=2.0)
RELEASES = {"l2": L2, "scalar": SCALAR, "l1": L1}
N_USERS = 20
TRAIN = random_world(N_USERS, N_ITEMS, 120, seed=2)
LABELS = np.stack([np.arange(N_USERS) % 2, np.arange(N_USERS) % 3], axis=1)


pytestmark = pytest.mark.usefixtures("one_thread")


def terms_of(release, kind="mf", filters="moments"):
    return Terms("town", N_ITEMS, replace(SETTINGS, recommender=kind, filters=filters), release)


def view(terms, round=0):
    return ModelView(round, terms.build().server_init(N_ITEMS, RNG.child(round)))


def door(terms, choices, users=None):
    """Simulated devices with these choices: one for all, or one each."""
    users = np.arange(N_USERS) if users is None else users
    choices = [choices] * len(users) if isinstance(choices, Choice) else choices
    names = sorted({name for choice in choices for name in choice.hidden_attributes})
    consent = Consent.of(users, choices, np.arange(len(users)), names)
    halves = terms.build()
    cohort = Cohort(
        users, TRAIN.take_users(users), consent, halves.device_init(users, RNG),
        labels=LABELS[users],
    )  # fmt: skip
    return SimulatedDevices.behind_door(halves, cohort, terms.release, Ledger(), RNG)


def host(path, terms, choices, users):
    """The same devices in a store."""
    store = CohortStore.create(path, [(int(u), f"user {u}") for u in users], root_key=RNG.key)
    names = [f"item {n}" for n in range(N_ITEMS)]
    store.set_catalogue([(name, name) for name in names])
    store.add_histories(replace(TRAIN.take_users(users), item_ids=Vocabulary(names)))
    choices = [choices] * len(users) if isinstance(choices, Choice) else choices
    for user, choice in zip(users.tolist(), choices, strict=True):
        store.set_choice(user, choice)
        for attribute, code in zip(SETTINGS.attributes, LABELS[user], strict=True):
            store.set_attribute(user, attribute.name, attribute.classes[code])
    hosted = DeviceSession(store)
    hosted.agree(terms)
    return hosted


def rounds_of(hosted, terms, most):
    """How many rounds leave before the store says that there is no room."""
    for round in range(most):
        try:
            ready = hosted.prepare(view(terms, round), 0, summed=False)
        except ConsentError as error:
            if "limit on ε" not in str(error):
                raise
            return round
        hosted.leaving(ready)
        hosted.arrived(round, 0)
    return most


def rounds_at(devices, terms, most):
    for round in range(most):
        rows = devices.willing()
        if not len(rows):
            with pytest.raises(ConsentError, match="beyond what its owner permits"):
                devices.report(view(terms, round), np.array([0]))
            return round
        devices.report(view(terms, round), rows)
    return most


# --- what it costs --------------------------------------------------------------------------------


def agree_on(tmp_path, epsilon, choice, most=6):
    """How many rounds a store and a simulation let out, once it is sure that they agree."""
    terms, me = terms_of(replace(L1, epsilon=epsilon)), np.array([2])
    hosted, devices = host(tmp_path / "s", terms, choice, me), door(terms, choice, me)
    there, here = rounds_of(hosted, terms, most), rounds_at(devices, terms, most)
    assert there == here
    assert hosted.store.spent() == pytest.approx(devices.cohort.spent, rel=1e-7)
    kept = hosted.store.ledger().to_pydict()
    assert kept == devices.ledger.pending().to_pydict()
    assert sum(kept["epsilon"]) == pytest.approx(hosted.store.spent()[0])
    assert set(kept["kind"]) <= {"clipped-l1"}
    hosted.store.close()
    return there, kept["epsilon"]


@pytest.mark.parametrize(
    ("epsilon", "choice", "rounds", "each"),
    [
        (2.0, replace(SHARING, total_epsilon=6.0), 3, 2.0),
        (2.0, replace(SHARING, total_epsilon=5.9), 2, 2.0),
        (2.0, Choice(epsilon=0.5, total_epsilon=2.0), 4, 0.5),  # her own limit, and more noise
        (2.0, Choice(epsilon=8.0, total_epsilon=2.0), 1, 2.0),  # she would have paid more
        (2.0, replace(SHARING, total_epsilon=1.0), 0, None),
        (2.0, SHARING, 6, 2.0),
        (0.1, replace(SHARING, total_epsilon=0.3), 3, 0.1),
    ],
)  # fmt: skip
def test_an_upload_costs_epsilon_and_it_ends_when_all_is_spent(
    tmp_path, epsilon, choice, rounds, each
):
    left, costs = agree_on(tmp_path, epsilon, choice)
    assert left == rounds
    assert costs == pytest.approx([each] * rounds)


@pytest.mark.parametrize("release", [L2, SCALAR], ids=["l2", "scalar"])
def test_what_vouches_for_nothing_costs_infinity(tmp_path, release):
    terms, me = terms_of(release), np.array([2])
    hosted, devices = host(tmp_path / "s", terms, SHARING, me), door(terms, SHARING, me)
    assert rounds_of(hosted, terms, 2) == rounds_at(devices, terms, 2) == 2
    for kept in (hosted.store.ledger(), devices.ledger.pending()):
        assert kept["epsilon"].to_pylist() == [math.inf] * 2
        assert set(kept["kind"].to_pylist()) == {f"clipped-{release.norm}"}
    assert hosted.store.spent().tolist() == devices.cohort.spent.tolist() == [0.0]
    hosted.store.close()
    for limited in (replace(SHARING, epsilon=1.0), replace(SHARING, total_epsilon=9.0)):
        with pytest.raises(ConsentError, match="cannot keep to it"):
            door(terms, limited)


def test_those_who_hide_may_pay_less_and_the_ledger_says_so():
    terms = terms_of(replace(L1, hiding_epsilon=0.5))
    hiding = replace(SHARING, hidden_attributes=("age",))
    devices = door(terms, [SHARING, hiding] * (N_USERS // 2))
    devices.report_summed(view(terms), devices.willing())
    assert devices.ledger.pending()["epsilon"].to_pylist() == [2.0, 0.5] * (N_USERS // 2)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", RELEASES)
def test_what_cannot_be_honoured_is_refused_not_ignored(tmp_path, norm):
    terms, me = terms_of(RELEASES[norm]), np.array([2])
    half = Choice(share_positives=0.5)
    income = replace(SHARING, hidden_attributes=("income",))
    wishes = (
        [(income, "income")] if norm == "l2" else [(half, "share_positives"), (income, "income")]
    )
    for choice, named in wishes:
        with pytest.raises(ConsentError, match=named):
            door(terms, choice)
        hosted = host(tmp_path / named, terms, choice, me)
        with pytest.raises(ConsentError, match=named):
            hosted.prepare(view(terms), 0, summed=False)
        assert hosted.latest() is None
        assert hosted.store.ledger().num_rows == 0
        hosted.store.close()
        # Who takes no part may choose what she likes: she is not asked.
        assert not len(door(terms, replace(choice, takes_part=False)).willing())


@pytest.mark.parametrize("norm", RELEASES)
def test_a_change_that_cannot_be_honoured_changes_nothing(norm):
    terms = terms_of(RELEASES[norm])
    devices = door(terms, SHARING)
    before = devices.cohort.consent
    income = replace(SHARING, hidden_attributes=("income",))
    wrong = Consent.uniform(before.users, income, ("income",))
    with pytest.raises(ConsentError, match="income"):
        devices.change_consent(wrong)
    assert devices.cohort.consent is before
    assert len(devices.willing()) == N_USERS


@pytest.mark.parametrize("epsilon", [2.0, 0.25, 0.2499, 0.002])
def test_noise_that_a_server_would_refuse_does_not_leave(tmp_path, epsilon):
    """So much more noise than the terms' that the server cannot tell it from an attack."""
    terms, me = terms_of(L1), np.array([2])
    choice = Choice(epsilon=epsilon)
    hosted = host(tmp_path / "s", terms, choice, me)
    if epsilon < L1.epsilon / MOST_OWN:
        with pytest.raises(ConsentError, match="1/8 of the release"):
            door(terms, choice)
        with pytest.raises(ConsentError, match="1/8 of the release"):
            hosted.prepare(view(terms), 0, summed=False)
        assert hosted.store.ledger().num_rows == 0
        # Who takes no part is not asked, whatever she permits.
        assert not len(door(terms, replace(choice, takes_part=False)).willing())
    else:
        devices, largest = door(terms, choice), 0
        for round in range(2):
            values = devices.report(view(terms, round), np.arange(4)).values
            largest = max(largest, int(np.abs(values).max()))
        assert largest <= int(terms.largest_value * GRID)
        hosted.leaving(hosted.prepare(view(terms), 0, summed=False))
    hosted.store.close()


def test_with_less_for_those_who_hide_the_limit_is_an_eighth_of_that():
    terms = terms_of(replace(L1, hiding_epsilon=0.5))
    assert len(door(terms, Choice(epsilon=0.0625)).willing()) == N_USERS
    with pytest.raises(ConsentError, match="1/8 of the release"):
        door(terms, Choice(epsilon=0.06))


# --- when budgets are spent -----------------------------------------------------------------------


def simulated(choices, rounds, cohort_size):
    terms = terms_of(L1)
    halves, devices = terms.build(), door(terms, choices)
    server = Server.start(halves, N_ITEMS, RNG.child("server"))
    Simulation(server, devices, cohort_size, rounds).run()
    return devices


def test_a_simulation_asks_those_whose_budget_permits():
    """As a server does, whose devices say that they have no room."""
    poor, rich = replace(SHARING, total_epsilon=2.0), SHARING
    devices = simulated([poor, rich] * (N_USERS // 2), 6, 6)
    assert devices.cohort.spent[::2].max() <= 2.0
    assert devices.cohort.spent.sum() == 6 * 6 * 2.0


def test_a_simulation_ends_where_too_few_may_still_send():
    with pytest.raises(Stalled, match="in round 2 only 0 devices"):
        simulated(replace(SHARING, total_epsilon=4.0), 6, N_USERS)
    with pytest.raises(Stalled, match="in round 3 only 2 devices"):
        simulated(replace(SHARING, total_epsilon=2.0), 6, 6)


# --- what is too large ----------------------------------------------------------------------------


@pytest.fixture
def careless(monkeypatch):
    """Local training that does not clip, so that the door alone stands between it and the world."""
    training = UC.training

    def unclipped(self, round):
        return replace(training(self, round), clip=math.inf, norm="l2", item_rate=60.0)

    monkeypatch.setattr(UC, "training", unclipped)


@pytest.mark.parametrize("norm", ["scalar", "l1"])
def test_an_update_larger_than_its_noise_can_hide_does_not_leave(tmp_path, careless, norm):
    """At a store nothing has happened then. In simulation the devices' vectors have moved already,
    nothing is recorded, and the run ends."""
    terms, me = terms_of(replace(RELEASES[norm], clip=0.05)), np.array([2])
    hosted = host(tmp_path / "s", terms, SHARING, me)
    start = hosted.vectors()
    with pytest.raises(ConsentError, match="larger than its noise can hide"):
        hosted.prepare(view(terms), 0, summed=False)
    assert hosted.latest() is None
    assert hosted.store.ledger().num_rows == 0
    assert hosted.store.spent().tolist() == [0.0]
    assert np.array_equal(hosted.vectors(), start)
    hosted.store.close()
    devices = door(terms, SHARING)
    for report in (devices.report, devices.report_summed):
        with pytest.raises((ConsentError, Diverged), match=r"larger than|not clipped"):
            report(view(terms), devices.willing())
    assert devices.ledger.totals.releases == 0
    assert not devices.cohort.spent.any()


@pytest.mark.parametrize("norm", ["scalar", "l1"])
def test_one_too_large_update_does_not_leave_in_a_large_cohort(monkeypatch, norm):
    """The others' small ones make no room for it: its noise would not hide it."""
    terms = terms_of(replace(RELEASES[norm], clip=4.0))
    devices, learn = door(terms, SHARING), algorithm.train

    def one_is_careless(model, clients, *rest):
        updates = learn(model, clients, *rest)
        (place,) = np.nonzero(clients.users == 7)
        updates.items[place.tolist(), 0, 0] += 6.0
        return updates

    devices.report_summed(view(terms), devices.willing())
    before = devices.ledger.totals
    monkeypatch.setattr(algorithm, "train", one_is_careless)
    with pytest.raises((ConsentError, Diverged)):
        devices.report_summed(view(terms, 1), devices.willing())
    assert devices.ledger.totals == before


def test_without_noise_the_door_does_not_measure(careless):
    """As stated: l2 promises nothing but what honest training does, and costs infinity."""
    terms = terms_of(replace(L2, clip=0.05))
    devices = door(terms, SHARING)
    report = devices.report(view(terms), np.array([0]))
    assert np.linalg.norm(report.values[:, :-1] / GRID) > 0.05
    assert devices.ledger.pending()["epsilon"].to_pylist() == [math.inf]


@pytest.mark.parametrize("norm", RELEASES)
@pytest.mark.parametrize(
    ("kind", "filters"), [("mf", "moments"), ("ncf", "two-layer"), ("neumf", "moments")]
)
def test_what_leaves_is_within_the_clip(kind, filters, norm):
    """Before its noise, on the grid, with a clip that is in the way."""
    clip = 0.002
    terms = terms_of(replace(RELEASES[norm], clip=clip), kind, filters)
    devices = door(terms, SHARING)
    rows = np.arange(6)
    updates = devices.algorithm.device_learn(view(terms), devices.cohort, rows, RNG)
    values, cut = updates.values[:, :-1].astype(np.int64), 0
    first_filter = ModelLayout.of(terms.algorithm, N_ITEMS).filters[0].first
    for row in rows:
        mine = values[updates.row == row]
        rest = updates.item[updates.row == row] < first_filter
        if norm == "l1":
            norms = [np.abs(mine).sum() / GRID]
        elif norm == "scalar":
            norms = [np.abs(mine).max() / GRID]
        else:
            norms = [np.linalg.norm(part / GRID) for part in (mine[rest], mine[~rest])]
        assert max(norms) <= clip
        cut += max(norms) > 0.8 * clip
    assert cut == len(rows), "the clip was in the way"


# --- sums and messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("filters", ["moments", "two-layer"])
@pytest.mark.parametrize("norm", RELEASES)
def test_a_large_cohorts_sum_is_that_of_its_messages_to_the_last_bit(norm, filters):
    """Each device alone, and more of them at once than are written out; minds change meanwhile."""
    terms = terms_of(RELEASES[norm], "mf", filters)
    hiding = replace(SHARING, hidden_attributes=("age",), strength=0.8)
    choices = [SHARING, hiding] * (N_USERS // 2)
    one, many = door(terms, choices), door(terms, choices)
    assert not many.algorithm.prefers_messages(view(terms), N_USERS)
    for round in range(3):
        rows = one.willing()
        messages = [one.report(view(terms, round), rows[[n]]) for n in range(len(rows))]
        expected = add_up(round, messages, terms.width)
        got = many.report_summed(view(terms, round), rows)
        assert np.array_equal(got.dense(terms.n_rows), expected.dense(terms.n_rows))
        assert got.devices == expected.devices == N_USERS
        assert np.array_equal(one.cohort.vectors, many.cohort.vectors)
        assert one.ledger.pending().to_pydict() == many.ledger.pending().to_pydict()
        assert np.array_equal(one.cohort.spent, many.cohort.spent)
        turned = Consent.uniform(one.cohort.users, hiding, ("age",))
        for devices in (one, many):
            devices.change_consent(turned)


@pytest.mark.parametrize("norm", RELEASES)
def test_a_store_of_many_sums_what_devices_of_one_send(tmp_path, norm):
    """As on a gateway, with the ledger of each of them."""
    terms, users = terms_of(RELEASES[norm]), np.arange(N_USERS)
    gateway = host(tmp_path / "s", terms, SHARING, users)
    ready = gateway.prepare(view(terms), 0, summed=True)
    gateway.leaving(ready)
    told = decode_sum(ready.message, n_items=terms.n_rows, width=terms.width, round=0)
    devices = door(terms, SHARING)
    expected = add_up(0, [devices.report(view(terms), users)], terms.width)
    assert np.array_equal(told.dense(terms.n_rows), expected.dense(terms.n_rows))
    kept = gateway.store.ledger().to_pydict()
    assert kept == devices.ledger.pending().to_pydict()
    gateway.store.close()


# --- a change of mind in mid-round ----------------------------------------------------------------


def filters_in(ready, terms):
    shape = {"n_items": terms.n_rows, "width": terms.width, "round": ready.round}
    rows = decode_report(ready.message, sender=0, **shape).item
    parts = ModelLayout.of(terms.algorithm, N_ITEMS).filters
    return [
        name
        for name, part in zip(terms.algorithm.names, parts, strict=True)
        if np.isin(np.arange(part.first, part.stop), rows).all()
    ]


@pytest.mark.parametrize("norm", RELEASES)
def test_who_hides_before_it_leaves_sends_another_report(tmp_path, norm):
    terms, me = terms_of(RELEASES[norm]), np.array([2])
    hosted = host(tmp_path / "s", terms, SHARING, me)
    first = hosted.prepare(view(terms), 0, summed=False)
    hiding = replace(SHARING, hidden_attributes=("gender",))
    hosted.store.set_choice(2, hiding)
    with pytest.raises(ConsentError, match="choice was changed"):
        hosted.leaving(first)
    assert hosted.store.ledger().num_rows == 0
    assert hosted.store.spent().tolist() == [0.0]
    second = hosted.prepare(view(terms), 0, summed=False)
    assert second.message != first.message
    every = ["gender", "age"] if norm == "l1" else ["age"]
    assert filters_in(second, terms) == every
    hosted.leaving(second)
    hosted.arrived(0, 0)
    assert hosted.store.ledger().num_rows == 1
    # It is what one sends who has always hidden it: nothing of the dropped report is left.
    always = host(tmp_path / "a", terms, hiding, me)
    assert always.prepare(view(terms), 0, summed=False).message == second.message
    for each in (hosted, always):
        each.store.close()


@pytest.mark.parametrize("norm", RELEASES)
def test_who_hides_after_it_left_hides_from_the_next_round_on(tmp_path, norm):
    terms, me = terms_of(RELEASES[norm]), np.array([2])
    hosted = host(tmp_path / "s", terms, SHARING, me)
    first = hosted.prepare(view(terms), 0, summed=False)
    hosted.leaving(first)
    hosted.store.set_choice(2, replace(SHARING, hidden_attributes=("gender",)))
    with pytest.raises(ConsentError, match="does not leave"):
        hosted.leaving(first)  # once more, as after a lost connection
    for attempt in (0, 1):
        if attempt and norm == "l2":
            continue  # without noise another attempt is another report, under the new choice
        with pytest.raises(ConsentError, match="has left already"):
            hosted.prepare(view(terms), attempt, summed=False)
    paid = hosted.store.spent().tolist()
    assert paid == [2.0 if norm == "l1" else 0.0]
    hidden = hosted.prepare(view(terms, 1), 0, summed=False)
    assert filters_in(hidden, terms) == (["gender", "age"] if norm == "l1" else ["age"])
    hosted.leaving(hidden)
    assert hosted.store.ledger()["round"].to_pylist() == [0, 1]
    hosted.store.close()
