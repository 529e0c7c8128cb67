"""What is never sent: whatever leaves is, bit for bit, what a history that never had it would give.

Each system gets a thousand random histories, with random switches by item and by category, in
cohorts of several. One cohort has the items and never sends them, the other has never had them."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import Direct, SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, DataError
from sottovoce.experiment import Experiment
from sottovoce.parties.device import Devices
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import run_experiment
from sottovoce.testing import random_world

N_ITEMS, N_USERS, WORLDS = 25, 50, 20
USERS = np.arange(N_USERS, dtype=np.int64)
RNG = Streams.from_seed(17)
CATEGORIES = ("Horror", "Comedy", "Drama", "Nobody's")


@dataclass(frozen=True)
class System:
    settings: object
    release: object
    choice: Choice
    link: object = Direct()
    triples: int = 0


SHARES = Choice(share_positives=0.5)
SYSTEMS = {
    "gram": System(
        GramConfig(popularity_share=0.3, least_head=4),
        OwnEpsilon(8.0),
        Choice(epsilon=4.0),
        SecureSum(min_devices=3, bits=32),
    ),
    "fpl by item": System(FPLConfig(embedding_size=3), ShareFraction("item"), SHARES, triples=6),
    "fpl by draw": System(FPLConfig(embedding_size=3), ShareFraction("draw"), SHARES, triples=6),
    "fpl, every row": System(
        FPLConfig(embedding_size=3),
        Clipped(norm="l1", epsilon=1.0, clip=100.0),
        Choice(share_positives=1.0, epsilon=1.0),
        triples=3,
    ),
    "fcf": System(FCFConfig(embedding_size=3), Everything(), Choice(share_positives=1.0)),
    "fmf": System(
        FMFConfig(embedding_size=3),
        KReports(10, (Tier(1.0, 5),)),
        Choice(epsilon=1.0, max_reports=10),
    ),
}


def switched(seed):
    """Histories, who never sends what, what the names stand for, and the histories without."""
    draws = np.random.default_rng([seed, 5])
    table = random_world(N_USERS, N_ITEMS, 5 * N_USERS, seed)
    groups = {name: draws.random(N_ITEMS) < 0.3 for name in CATEGORIES[:-1]}
    items = {f"item {n}": np.arange(N_ITEMS) == n for n in range(N_ITEMS)}
    named = groups | items | {CATEGORIES[-1]: np.zeros(N_ITEMS, dtype=bool)}
    names, kept = list(named), np.ones(table.n_interactions, dtype=bool)
    never = []
    for user in range(N_USERS):
        mine = draws.choice(names, draws.integers(0, 6), replace=False).tolist()
        if user % 10 == 9:  # all that she has
            mine = [f"item {item}" for item in table.row(user)]
        never.append(tuple(map(str, mine)))
        span = slice(table.indptr[user], table.indptr[user + 1])
        for name in mine:
            kept[span] &= ~named[str(name)][table.items[span]]
    stand_for = {name: np.flatnonzero(held).astype(np.int32) for name, held in named.items()}
    assert 0.4 < kept.mean() < 0.9
    return table, never, stand_for, table.select(kept)


def behind(system, history, choices, named, kind=Devices):
    """Devices of this system, with a choice each."""
    algorithm = system.settings.build_under(system.release, system.link, system.triples)
    consent = Consent.of(USERS, choices, USERS, ("sex",))
    labels = np.tile(USERS[:, None] % 2, (1, len(system.settings.attributes)))
    vectors = algorithm.device_init(USERS, RNG)
    cohort = Cohort(USERS, history, consent, vectors, labels=labels, items_named=named)
    noise = bytes(32)
    return kind.behind_door(
        algorithm, cohort, system.release, Ledger(), RNG, noise, link=system.link
    )


def both(system, seed, kind=Devices):
    """Those who never send it, and those who never had it."""
    table, never, named, absent = switched(seed)
    hides = [replace(system.choice, never_send=names) for names in never]
    one = behind(system, table, hides, named, kind)
    return one, behind(system, absent, [system.choice] * N_USERS, {}, kind)


def view(devices, round, seed):
    algorithm = devices.algorithm
    items = algorithm.server_init(N_ITEMS, RNG.child(seed))
    if devices.contributes:
        items[:6, SCALE] = 1.0
    return ModelView(round, items)


def message(devices, now, rows):
    """What leaves, as arrays."""
    if devices.reports_bits:
        made = devices.report_bits(now, rows)
        return made.sender, made.tier, made.reports
    if devices.contributes:
        made, seeds = devices.report_masked(now, rows)
        return made.sender, made.masked, np.frombuffer(b"".join(seeds.seeds), np.uint8)
    made = devices.report(now, rows)
    return made.sender, made.item, made.values


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# --- message by message ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_leaves_is_what_a_history_without_it_would_give(name):
    system, differs = SYSTEMS[name], 0
    for seed in range(WORLDS):
        never, absent = both(system, seed)
        table, _, _, _ = switched(seed)
        full = behind(system, table, [system.choice] * N_USERS, {})
        assert np.array_equal(never.willing(0), absent.willing(0))
        for round in range(2):
            now, rows = view(never, round, seed), absent.willing(round)
            assert np.array_equal(never.willing(round), rows)
            told = [message(one, now, rows) for one in (never, absent, full)]
            assert same(told[0], told[1])
            differs += not same(told[0], told[2])
        assert never.ledger.pending().equals(absent.ledger.pending())
        assert np.array_equal(never.cohort.vectors, absent.cohort.vectors)
        for column in ("spent", "sent"):
            assert np.array_equal(getattr(never.cohort, column), getattr(absent.cohort, column))
    assert differs == 2 * WORLDS, "the switches did something"


def test_a_filter_for_attributes_learns_from_what_may_be_sent_alone():
    pytest.importorskip("torch")
    settings = UCConfig(
        embedding_size=6, local_epochs=2, pairs=8, item_rate=1.0, cooling=0.0,
        attributes=(FilterConfig("sex", ("f", "m"), (0.5, 0.5)),),
    )  # fmt: skip
    system = System(settings, Clipped(), Choice(share_positives=1.0))
    never, absent = both(system, 3)
    now, rows = ModelView(0, never.algorithm.server_init(N_ITEMS, RNG)), absent.willing()
    assert np.array_equal(never.willing(), rows)
    assert same(message(never, now, rows), message(absent, now, rows))
    assert never.ledger.pending().equals(absent.ledger.pending())


def test_who_has_nothing_to_send_is_not_asked_where_who_has_nothing_is_not():
    never, _ = both(SYSTEMS["fpl by item"], 0)
    assert not np.isin(USERS[9::10], never.willing()).any()
    asked, _ = both(SYSTEMS["gram"], 0)
    assert np.isin(USERS[9::10], asked.willing(0)).all(), "who takes part says nothing"


def test_an_algorithm_is_shown_neither_the_items_nor_their_names():
    never, _ = both(SYSTEMS["fcf"], 0)
    shown = never._shown()
    assert shown.history.n_interactions < never.cohort.history.n_interactions
    assert not shown.items_named
    assert not shown.consent.never_send.any()


def test_from_a_change_of_mind_on_nothing_is_left_of_what_was_worked_out_before():
    """Also of what an algorithm keeps from round to round."""
    for name, triples in (("fpl by item", 1), ("fpl by item", 6), ("fcf", 0)):
        system = replace(SYSTEMS[name], triples=triples)
        never, absent = both(system, 1, SimulatedDevices)
        wanted = never.cohort.consent
        never.change_consent(Consent.uniform(USERS, system.choice, ("sex",)))
        before = never.cohort.vectors.copy()
        rows, now = absent.willing()[:20], view(never, 0, 1)
        if never.fuses and triples == 1:
            never.report_rounds(now.items, 0, rows)
        else:
            never.report(now, rows)
        never.change_consent(wanted)
        never.cohort.vectors[:] = before
        if never.fuses and triples == 1:
            made = [one.report_rounds(now.items, 40, rows) for one in (never, absent)]
            assert np.array_equal(*made)
        later = replace(now, round=90)
        assert same(message(never, later, rows), message(absent, later, rows))
        assert np.array_equal(never.cohort.vectors, absent.cohort.vectors)


def test_a_name_that_stands_for_nothing_here_is_refused():
    for name in ("fpl by item", "fcf", "gram"):
        choice = replace(SYSTEMS[name].choice, never_send=("x",))
        with pytest.raises(DataError, match="never_send names 'x'"):
            behind(SYSTEMS[name], random_world(N_USERS, N_ITEMS, 99, 0), [choice] * N_USERS, {})


# --- at home --------------------------------------------------------------------------------------


def test_at_home_it_counts():
    """Where a vector follows from the model, all of her history is in it. Elsewhere a device goes
    on from what it has learnt, at home, with all that it has; what it sends from stays as it is."""
    table, never, named, _ = switched(2)
    system = SYSTEMS["fcf"]
    hides = [replace(system.choice, never_send=names) for names in never]
    devices, full = (
        behind(system, table, choices, named) for choices in (hides, [system.choice] * N_USERS)
    )
    now = view(devices, 0, 2)
    assert np.array_equal(devices.vectors_at_home(now), full.vectors_at_home(now))
    system = SYSTEMS["fpl by item"]
    hides = [replace(system.choice, never_send=names) for names in never]
    away = [Choice(takes_part=False)] * N_USERS
    devices, home = (behind(system, table, choices, named) for choices in (hides, away))
    now = view(devices, 0, 2)
    assert np.array_equal(devices.vectors_at_home(now)[9::10], home.vectors_at_home(now)[9::10])
    devices.report(now, devices.willing())
    learnt = devices.cohort.vectors.copy()
    found = devices.vectors_at_home(now)
    assert np.array_equal(devices.cohort.vectors, learnt)
    whole = devices.sendable.counts == table.counts
    assert 0 < whole.sum() < N_USERS
    assert np.array_equal(found[whole], learnt[whole])
    fitted = behind(system, table, away, named)
    fitted.cohort.vectors[:] = learnt
    assert np.array_equal(found[~whole], fitted.vectors_at_home(now)[~whole])
    assert (found != learnt).any(axis=1).tolist() == (~whole).tolist()


# --- faster ways ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_fast_ways_of_a_simulation_give_the_same(name, threads):
    system = SYSTEMS[name]
    never, absent = both(system, 4, SimulatedDevices)
    plain, _ = both(system, 4)
    for round in range(2):
        now, rows = view(never, round, 4), plain.willing(round)
        if plain.reports_bits:
            wanted = plain.report_bits(now, rows).reports
            made = [one.report_bits(now, rows, threads).reports for one in (never, absent)]
        else:
            many = plain.algorithm.report_shape(now)[0]
            wanted = plain.report_sum(now, rows).dense(many)
            made = [one.report_summed(now, rows, threads).dense(many) for one in (never, absent)]
        assert np.array_equal(made[0], wanted)
        assert np.array_equal(made[1], wanted)
    assert np.array_equal(never.cohort.vectors, plain.cohort.vectors)
    order = [("round", "ascending"), ("user", "ascending")]
    books = [one.ledger.pending().sort_by(order) for one in (never, absent, plain)]
    assert books[0].equals(books[1])
    assert books[0].equals(books[2])


def test_an_accelerator_gets_what_may_be_sent_alone():
    pytest.importorskip("torch")
    never, absent = both(SYSTEMS["fcf"], 5, SimulatedDevices)
    made = []
    for one in (never, absent):
        one.accelerate(N_ITEMS, "cpu")
        now = view(one, 0, 5)
        made.append(one.report_summed(now, absent.willing()).dense(N_ITEMS))
        one.settle()
    assert np.array_equal(*made)
    assert np.array_equal(never.cohort.vectors, absent.cohort.vectors)
    assert never.ledger.pending().equals(absent.ledger.pending())


def runs(settings, release, choice, seed, link=None):
    """Whole runs: of those who never send it, and of those who never had it."""
    table, never, named, absent = switched(seed)
    hides = Consent.of(USERS, [replace(choice, never_send=names) for names in never], USERS)
    found = []
    for history, consent, names in (
        (table, hides, named), (absent, Consent.uniform(USERS, choice), {}),
    ):  # fmt: skip
        made = Federation.build(
            settings, history, consent, release, RNG, None, link, items_named=names
        )
        made.run()
        found.append(made)
    return found


@pytest.mark.parametrize("configuration", ["sFPL", "sFPL+", "pFPL", "pFPL+"])
def test_whole_runs_of_fpl_fused_or_not(configuration):
    for seed, per in itertools.product(range(2), ("item", "draw")):
        settings = FPLConfig(embedding_size=3, configuration=configuration, rounds=60)
        never, absent = runs(settings, ShareFraction(per), SHARES, seed)
        assert never.schedule == absent.schedule
        assert np.array_equal(never.server.items, absent.server.items)
        assert np.array_equal(never.devices.cohort.vectors, absent.devices.cohort.vectors)
        assert never.devices.ledger.pending().equals(absent.devices.ledger.pending())


def test_whole_runs_of_others():
    for name in ("fcf", "fmf", "gram"):
        system = SYSTEMS[name]
        link = None if name == "fmf" else system.link
        settings = system.settings if name == "gram" else replace(system.settings, rounds=3)
        never, absent = runs(settings, system.release, system.choice, 6, link)
        assert np.array_equal(never.server.items, absent.server.items)
        assert never.devices.ledger.pending().equals(absent.devices.ledger.pending())


# --- experiment files -----------------------------------------------------------------------------


def test_a_file_may_name_items_and_categories_for_every_system_of_devices():
    table = {
        "data": {"source": "town"}, "town": {"residents": 80},
        "algorithm": {"name": "fpl", "embedding_size": 3, "rounds": 40},
    }  # fmt: skip
    dataset = Experiment.from_table(table).dataset()
    category = dataset.item_categories[0][0]
    choice = {"share_positives": 0.5, "never_send": [category]}
    outcome = run_experiment(Experiment.from_table({**table, "consent": choice}))
    devices = outcome.federation.devices
    held = devices.cohort.items_named[category]
    assert len(held)
    assert not np.isin(devices.sendable.items, held).any()
    assert np.isin(devices.cohort.history.items, held).any()
    unknown = {**table, "consent": {"never_send": ["No Such Place"]}}
    with pytest.raises(ConfigError, match="neither an item nor a category"):
        run_experiment(Experiment.from_table(unknown))
