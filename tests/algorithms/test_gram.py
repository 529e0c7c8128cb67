"""gram: both rounds, personal ε, what is never sent, and what goes wrong."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from sottovoce.algorithms.gram.model import rounded
from sottovoce.algorithms.gram.system import FACTORS, SCALE, Gram, GramConfig, Q
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView, SummedReports
from sottovoce.core.recommender import top_n
from sottovoce.errors import ConfigError, ConsentError, DataError, MessageError
from sottovoce.experiment import Experiment
from sottovoce.parties import device
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import checkerboard, random_world

RNG = Streams.from_seed(3)
WORLD = random_world(60, 25, 500, seed=1)


def timed(table, seed=0):
    times = np.random.default_rng(seed).permutation(table.n_interactions)
    return replace(table, timestamps=times)


def federation(table=WORLD, choice=None, most=8.0, consent=None, named=None, **settings):
    users = np.arange(table.n_users)
    records = consent or Consent.uniform(users, choice or Choice(epsilon=8.0))
    config = GramConfig(**{"least_head": 5, "most_head": 12, "embedding_size": 12, **settings})
    return Federation.build(
        config, table, records, OwnEpsilon(most), RNG, link=SecureSum(20), items_named=named
    )


def opened(made, round=0):
    """The exact sum of a round, before any noise."""
    view, rows = made.server.publish(), made.devices.willing()
    shape = made.server.algorithm.report_shape(view)
    assert view.round == round
    return made.devices.report_summed(view, rows).dense(shape[0])[:, 0]


# --- what is summed -------------------------------------------------------------------------------


@pytest.mark.parametrize("recency", [False, True])
def test_the_sums_are_those_of_the_specification(recency):
    table = timed(WORLD)
    made = federation(table, recency=recency)
    first = opened(made) / STEPS
    wanted, profiles = np.zeros(25), []
    for user in range(60):
        span = slice(table.indptr[user], table.indptr[user + 1])
        order = np.argsort(np.argsort(table.timestamps[span]))
        n = len(order)
        weights = np.sqrt((order + 1) / n) if recency else np.ones(n)
        dense = np.zeros(25)
        dense[table.items[span]] = weights
        profiles.append(dense)
        wanted += dense / np.linalg.norm(dense)
    assert first[:-1] == pytest.approx(np.sqrt(0.9) * wanted, abs=60 / STEPS)
    assert first[-1] == pytest.approx(np.sqrt(0.1) * 60, abs=60 / STEPS)
    made.server.fold(SummedReports(0, np.arange(26, dtype=np.int32), _steps(first), 60))
    head = np.flatnonzero(made.server.items[:, SCALE])
    assert set(head) == set(np.argsort(-made.server.items[:, Q], kind="stable")[: len(head)])
    second = opened(made, 1) / STEPS
    gram = np.zeros((len(head), len(head)))
    for dense in profiles:
        x = dense[head]
        norm = np.linalg.norm(x)
        gram += np.outer(x, x) / norm**2 if norm else 0.0
    # Each of 60 users may lose a step of 2^-10 in each of two numbers of at most 1.
    assert np.all(second[: len(head)] <= np.diag(gram) + 1e-9)
    assert second[: len(head)] == pytest.approx(np.diag(gram), abs=60 * 2 / 1024)
    upper = gram[np.triu_indices(len(head), 1)]
    assert second[len(head) :] == pytest.approx(upper, abs=60 * 2 / 1024)


def _steps(values):
    return np.round(values * STEPS).astype(np.int64)[:, None]


def test_whole_runs_are_the_same_written_out_summed_in_parts_and_on_more_threads(monkeypatch):
    found = []
    ways = ({"message_observers": [Everything()]}, {}, {"threads": 2}, {}, {"threads": 3})
    for way, at_once in zip(ways, (60, 60, 60, 7, 7), strict=True):
        monkeypatch.setattr(device, "_CUT_AT_ONCE", at_once)
        made = federation(timed(WORLD), choice=Choice(epsilon=2.0))
        made.run(**way)
        found.append((made.server.items, made.vectors(), made.devices.ledger.pending()))
    for items, vectors, ledger in found[1:]:
        assert np.array_equal(items, found[0][0])
        assert np.array_equal(vectors, found[0][1])
        order = [("round", "ascending"), ("user", "ascending")]
        assert ledger.sort_by(order).equals(found[0][2].sort_by(order))


def test_where_a_part_is_refused_nothing_of_the_others_is_booked(monkeypatch):
    monkeypatch.setattr(device, "_CUT_AT_ONCE", 7)
    made, profile = federation(), Gram.device_profile

    def late(self, view, cohort, rows):
        found = profile(self, view, cohort, rows)
        return replace(found, value=3.0 * found.value) if rows[0] >= 28 else found

    monkeypatch.setattr(Gram, "device_profile", late)
    with pytest.raises(MessageError, match="longer than 1; nothing was sent"):
        opened(made)
    assert made.devices.ledger.totals.releases == 0
    assert not made.devices.cohort.spent.any()
    assert not made.devices.cohort.sent.any()


def test_what_is_published_is_rounded_and_its_head_is_that_of_the_exact_sums():
    exact, made = federation(checkerboard(60, 20), model_bits=32), federation(checkerboard(60, 20))
    for round in range(2):
        for each in (exact, made):
            sums = opened(each, round)
            places = np.arange(len(sums), dtype=np.int32)
            each.server.fold(SummedReports(round, places, sums[:, None], 60))
        published, wanted = made.server.items, exact.server.items
        assert np.array_equal(published[:, SCALE] > 0, wanted[:, SCALE] > 0)
        assert np.array_equal(rounded(published, 8, FACTORS), published)
        assert not np.array_equal(published, wanted)
        assert np.all(np.abs(published - wanted) <= np.abs(wanted).max(axis=0) / 64)
    assert np.any(published[:, FACTORS:])


class Everything:
    def __init__(self):
        self.seen = []

    def on_message(self, party, message):
        self.seen.append((party, message))


def test_it_learns_the_checkerboard():
    """With so little noise and so many users; the items that each lacks are found."""
    table = checkerboard(400, 20)
    made = federation(table, Choice(epsilon=64.0), most=64.0, least_head=20, most_head=20)
    made.run()
    users = np.arange(400)
    lists, _ = top_n(made.scorer(), users, table, 1)
    missing = np.array([np.setdiff1d(np.arange(u % 2, 20, 2), table.row(u))[0] for u in users])
    assert np.mean(lists[:, 0] == missing) == 1.0


def test_without_signal_it_falls_back_to_popularity():
    made = federation(WORLD, Choice(epsilon=0.05), most=0.05)
    made.run()
    assert not made.server.items[:, SCALE:].any()
    scores = made.scorer().scores(np.arange(60))
    order = np.argsort(-made.server.items[:, Q], kind="stable")
    for row in scores:
        assert np.array_equal(np.argsort(-row, kind="stable"), order)


def test_where_people_are_too_few_for_pairs_one_round_has_all_of_it():
    made = federation(popularity_share=1.0)
    made.run()
    assert made.schedule.rounds == 1
    assert not made.server.items[:, SCALE:].any()
    assert made.devices.ledger.totals.releases == 60
    assert made.devices.ledger.totals.epsilon == pytest.approx(60 * 8.0, abs=1e-4)
    assert made.server.algorithm.noise_spans(0, 26) == ((26, 1.0),)
    table = {"algorithm": {"name": "gram"}, "release": {"epsilon": 0.5}}
    few = Experiment.from_table({**table, "consent": {"epsilon": 0.5}})
    consent = Consent.uniform(np.arange(1000), Choice(epsilon=0.5))
    assert few.on(few.dataset(), consent)[0].popularity_share == 1.0
    many = Consent.uniform(np.arange(1_000_000), Choice(epsilon=0.5))
    assert few.on(few.dataset(), many)[0].popularity_share == 0.1


# --- an ε of one's own ----------------------------------------------------------------------------


def test_the_ledger_has_each_users_epsilon():
    accountant = pytest.importorskip("dp_accounting").get_epsilon_gaussian
    mix = [Choice(epsilon=e) for e in (0.25, 1.0, 4.0)] + [Choice(takes_part=False), Choice()]
    users = np.arange(60)
    made = federation(consent=Consent.of(users, mix, users % 5), most=4.0)
    made.run()
    ledger = made.devices.ledger.pending()
    release = OwnEpsilon(4.0)
    for user in users.tolist():
        mine = ledger.filter(pc.equal(ledger["user"], user))
        spent = sum(mine["epsilon"].to_pylist())
        wanted = mix[user % 5].epsilon if user % 5 < 3 else 0.0
        assert spent == pytest.approx(wanted, abs=1e-6)
        assert mine.num_rows == (2 if wanted else 0)
        if wanted:
            c = made.devices._release.scale[user]
            assert spent == pytest.approx(accountant(release.sigma / c, 1e-6), abs=1e-6)


def test_what_one_user_adds_is_bounded_by_her_scale():
    users = np.arange(60)
    mix = [Choice(epsilon=e) for e in (0.5, 8.0)]
    made = federation(timed(WORLD), consent=Consent.of(users, mix, users % 2))
    scale = made.devices._release.scale
    for round in range(2):
        view, rows = made.server.publish(), made.devices.willing()
        contributions = made.devices._contributions(view, rows)
        for row in rows.tolist():
            whole = contributions.whole(row).astype(np.float64) / STEPS
            size = contributions.size
            squares = np.sum(whole**2) + (np.sum(whole[size:] ** 2) if round else 0.0)
            assert 0.9 * scale[row] <= np.sqrt(squares) <= scale[row]
        if not round:
            many = contributions.numbers
            sums = sum(contributions.whole(row) for row in rows.tolist())
            made.server.fold(SummedReports(0, np.arange(many, dtype=np.int32), sums[:, None], 60))


def test_two_users_who_differ_in_epsilon_alone_send_the_same_but_for_what_is_masked():
    """Sizes, rounds, seeds' lengths and ledgers of others; and masked numbers are uniform."""
    seen = []
    for epsilon in (0.25, 8.0):
        users = np.arange(60)
        mix = [Choice(epsilon=epsilon), Choice(epsilon=1.0)]
        consent = Consent.of(users, mix, (users != 7).astype(np.int64))
        made = federation(timed(WORLD), consent=consent)
        listener = Everything()
        made.run(message_observers=[listener])
        seen.append(listener.seen)
    assert [party for party, _ in seen[0]] == [party for party, _ in seen[1]]
    shapes = [
        [(party, type(m).__name__, getattr(m, "masked", np.zeros(0)).dtype) for party, m in one]
        for one in seen
    ]
    assert shapes[0] == shapes[1]
    first = [next(m for _, m in one if hasattr(m, "masked")) for one in seen]
    mine = [m.masked[m.sender == 7][0] for m in first]
    assert len(mine[0]) == len(mine[1])
    for words in mine:
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


# --- what is never sent ---------------------------------------------------------------------------


def test_what_is_never_sent_changes_nothing_that_leaves_and_counts_at_home():
    table = timed(WORLD)
    own = int(table.row(7)[0])
    with_it = Consent.of(np.arange(60), [Choice(epsilon=8.0)], np.zeros(60, np.int64))
    hides = [Choice(epsilon=8.0), Choice(epsilon=8.0, never_send=("secret",))]
    without = Consent.of(np.arange(60), hides, (np.arange(60) == 7).astype(np.int64))
    named = {"secret": np.array([own], np.int32)}
    span = np.arange(table.indptr[7], table.indptr[8])
    keep = np.ones(table.n_interactions, dtype=bool)
    keep[span[table.items[span] == own]] = False
    never = federation(table, consent=without, named=named)
    absent = federation(table.select(keep), consent=with_it)
    for made in (never, absent):
        made.run()
    assert np.array_equal(never.server.items, absent.server.items)
    full = federation(table, consent=with_it)
    full.run()
    assert not np.array_equal(never.server.items, full.server.items)
    model = never.server.items
    if model[own, FACTORS:].any():
        assert not np.array_equal(never.vectors()[7], absent.vectors()[7])
    others = np.arange(60) != 7
    assert np.array_equal(never.vectors()[others], absent.vectors()[others])


# --- what goes wrong ------------------------------------------------------------------------------


def test_users_with_nothing_one_item_or_all_of_them():
    users = [0] * 25 + [1] + [u for u in range(3, 60) for _ in range(3)]
    rng = np.random.default_rng(0)
    items = [*range(25), 4, *rng.integers(0, 25, 57 * 3).tolist()]
    table = Interactions.from_pairs(users, items, n_users=60, n_items=25)
    made = federation(table)
    made.run()
    assert made.devices.ledger.totals.releases == 120  # who has nothing is there all the same
    lists, _ = top_n(made.scorer(), np.arange(60), table, 5)
    assert (lists[0] == -1).all()
    assert (lists[1:] >= 0).all()
    order = np.argsort(-made.server.items[:, Q], kind="stable")
    assert lists[2].tolist() == order[:5].tolist()  # popularity for who has nothing


def test_too_few_devices_and_nobody_who_permits_anything():
    mix = [Choice(epsilon=1.0), Choice(takes_part=False)]
    few = Consent.of(np.arange(60), mix, (np.arange(60) > 2).astype(np.int64))
    with pytest.raises(ConfigError, match="min_devices = 20 devices in a round, and 3 are asked"):
        federation(consent=few)
    with pytest.raises(ConfigError, match=r"nobody permits a contribution.*consent\.epsilon"):
        federation(choice=Choice())
    with pytest.raises(ConsentError, match="share_positives is set"):
        federation(choice=Choice(epsilon=1.0, share_positives=0.5))
    with pytest.raises(ConfigError, match=r"leave link\.clip and link\.noise out"):
        Experiment.from_table({"algorithm": {"name": "gram"}, "link": {"clip": 1.0, "noise": 1.0}})


def test_nobody_contributes_twice_in_a_period():
    made = federation()
    made.run()
    assert not len(made.devices.willing())
    before = made.devices.ledger.totals
    with pytest.raises(ConsentError, match="beyond what its owner permits"):
        made.devices.report_summed(ModelView(1, made.server.items), np.arange(30))
    assert made.devices.ledger.totals == before


def test_equal_times_and_no_times_are_plain():
    still = replace(WORLD, timestamps=np.zeros(WORLD.n_interactions, np.int64))
    found = []
    for table, recency in ((still, True), (WORLD, True), (still, False)):
        made = federation(table, recency=recency)
        made.run()
        found.append(made.server.items[:, Q].copy())
    assert np.array_equal(found[0], found[1])
    assert found[0] == pytest.approx(found[2], abs=1e-4)


def test_a_catalogue_that_changed_between_the_rounds_is_refused():
    """Items that the model has not: nothing leaves, nothing is booked."""
    made = federation()
    sums = opened(made)
    made.server.fold(SummedReports(0, np.arange(26, dtype=np.int32), sums[:, None], 60))
    before = made.devices.ledger.totals
    fewer = ModelView(1, made.server.items[:20])
    with pytest.raises(DataError, match="another catalogue"):
        made.devices.report_summed(fewer, made.devices.willing())
    assert made.devices.ledger.totals == before
    assert (made.devices.cohort.sent == 1).all()
