"""FMF-LDP: the estimate, tiers, and that a model depends on the bits alone."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMF, FMFConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import Proxied
from sottovoce.core.messages import Batch, BitCounts, ModelView, SummedReports
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, ConsentError, MessageError, Stalled
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import checkerboard, random_world
from sottovoce.wire.terms import Terms

RNG = Streams.from_seed(6)
WORLD = random_world(600, 25, 5000, seed=2)
ONE_TIER = (Tier(2.0, 20),)
TIERS = (Tier(0.5, 20), Tier(1.5, 20), Tier(4.0, 20))
CONFIG = FMFConfig(embedding_size=3, rounds=6)


def choices(k, *epsilons):
    users = np.arange(WORLD.n_users)
    permitted = [Choice(epsilon=e, max_reports=k) for e in epsilons]
    return Consent.of(users, permitted, users % len(permitted))


def built(config=CONFIG, k=20, tiers=TIERS, consent=None, rng=RNG, world=WORLD):
    consent = consent or choices(k, 0.7, 1.5, 9.0)
    return Federation.build(config, world, consent, KReports(k, tiers), rng)


def state(federation):
    server, cohort = federation.server, federation.devices.cohort
    return [server.items, cohort.vectors, cohort.spent, server.memory]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(state(one), state(other), strict=True))


# --- the same model ------------------------------------------------------------------------------


def test_a_model_depends_on_neither_threads_nor_shuffle():
    """Every run shuffles with new randomness from the operating system."""
    runs = [built() for _ in range(3)]
    for federation, threads in zip(runs, (1, 2, 1), strict=True):
        federation.run(threads=threads)
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])
    assert runs[0].devices.ledger.pending().equals(runs[1].devices.ledger.pending())
    other = built(rng=Streams.from_seed(7))
    other.run()
    assert not np.array_equal(other.server.items, runs[0].server.items)


def test_a_model_does_not_depend_on_the_order_within_or_between_batches():
    federation, draws = built(), np.random.default_rng(1)
    server = federation.server
    sent = federation.devices.report_bits(server.publish(), federation.devices.willing())
    batches = federation.proxy.collect(sent)
    assert [b.tier for b in batches] == [0, 1, 2]
    counts = server.count(batches)
    model, _ = server.algorithm.server_fold(server.items, server.memory, counts)
    for _ in range(3):
        mixed = [replace(b, reports=draws.permutation(b.reports)) for b in batches]
        again = server.count([mixed[k] for k in draws.permutation(3)])
        assert (again.devices, again.reports) == (counts.devices, counts.reports)
        assert np.array_equal(again.sums, counts.sums)
        folded, _ = server.algorithm.server_fold(server.items, server.memory, again)
        assert np.array_equal(folded, model)


def test_devices_alone_send_what_they_send_together():
    federation = built()
    devices, view = federation.devices, federation.server.publish()
    apart = [devices.cohort.take(np.array([row])) for row in range(40)]
    together = devices.report_bits(view, devices.willing())
    for row, cohort in enumerate(apart):
        phone = Devices.behind_door(devices.algorithm, cohort, KReports(20, TIERS), Ledger(), RNG)
        alone = phone.report_bits(view, np.array([0]))
        assert np.array_equal(alone.reports[0], together.reports[row])
        assert alone.tier[0] == together.tier[row]
        assert np.array_equal(cohort.vectors[0], devices.cohort.vectors[row])


# --- the estimate --------------------------------------------------------------------------------


def cut_gradients(config, items):
    """clip(scale · −2 c (p − x·v) x) of every device, [users, items, F], by plain algebra."""
    p = np.zeros((WORLD.n_users, WORLD.n_items))
    p[WORLD.users, WORLD.items] = 1.0
    v = items.astype(np.float64)
    out = []
    for wanted in p:
        c = 1.0 + config.alpha * wanted
        x = np.linalg.solve((v.T * c) @ v + config.reg * np.eye(v.shape[1]), (v.T * c) @ wanted)
        out.append(np.clip(-2.0 * config.scale * (c * (wanted - v @ x))[:, None] * x, -1.0, 1.0))
    return np.array(out)


def estimates(config, items, repeats, k=50, tiers=ONE_TIER, consent=None, kept=(0, 1, 2)):
    """The server's estimate in so many runs with other coins and coordinates, from some tiers."""
    consent = consent or choices(k, 2.0)
    release = KReports(k, tiers)
    algorithm = config.build(release.epsilons)
    users = np.arange(WORLD.n_users)
    for seed in range(repeats):
        rng = Streams.from_seed(1000 + seed)
        cohort = Cohort(users, WORLD, consent, algorithm.device_init(users, rng))
        devices = SimulatedDevices.behind_door(algorithm, cohort, release, Ledger(), rng)
        sent = devices.report_bits(ModelView(0, items), users)
        batches = [
            Batch(0, t, int((sent.tier == t).sum()), sent.reports[sent.tier == t].ravel())
            for t in np.unique(sent.tier).tolist()
            if t in kept
        ]
        yield algorithm.estimate(items, Server(algorithm, items, rng).count(batches))


def off_by(found, wanted):
    """The largest |mean − wanted| over all coordinates, in standard errors."""
    found = np.array(list(found))
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return np.abs((found.mean(axis=0) - wanted) / error).max()


@pytest.mark.parametrize("scale", [1.0, 0.3, 4.0])
def test_the_estimate_is_the_mean_of_the_cut_gradients(scale):
    config = FMFConfig(embedding_size=3, scale=scale)
    items = (3.0 * config.build(np.array([2.0])).server_init(25, RNG)).astype(np.float32)
    wanted = cut_gradients(config, items).mean(axis=0) / scale
    found = list(estimates(config, items, 150))
    assert off_by(found, wanted) < 4.5  # of 75 coordinates
    # The paper divides by the number of devices, not of reports: k times too much.
    assert off_by([50 * f for f in found], wanted) > 20
    assert off_by([1.1 * f for f in found], wanted) > 4.5


def test_several_tiers_are_weighed_by_what_their_reports_are_worth():
    """ε differs by tier; each tier's own mean is estimated without bias, and counts by its
    precision: R · ((e^ε − 1)/(e^ε + 1))²."""
    items = (3.0 * CONFIG.build(np.array([2.0])).server_init(25, RNG)).astype(np.float32)
    each = cut_gradients(CONFIG, items)
    means = [each[np.arange(600) % 3 == t].mean(axis=0) for t in range(3)]
    worth = np.array([np.tanh(t.epsilon / 2.0) ** 2 for t in TIERS])
    wanted = np.tensordot(worth / worth.sum(), means, 1)
    found = list(estimates(CONFIG, items, 150, 20, TIERS, choices(20, 0.7, 1.5, 9.0)))
    assert off_by(found, wanted) < 4.5


def test_every_tier_makes_the_estimate_better_by_what_it_is_worth():
    items = CONFIG.build(np.array([2.0])).server_init(25, RNG)
    worth = np.array([np.tanh(t.epsilon / 2.0) ** 2 for t in TIERS])
    noise = []
    for kept in [(0, 1, 2), (1, 2), (2,), (0,)]:
        found = estimates(CONFIG, items, 60, 20, TIERS, choices(20, 0.7, 1.5, 9.0), kept)
        noise.append(np.array(list(found)).std(axis=0).mean() * np.sqrt(worth[list(kept)].sum()))
    assert noise == pytest.approx([noise[0]] * 4, rel=0.06)


def test_noise_is_as_large_as_it_must_be():
    """sd = B √(MF/R) where gradients are small: no better would be a hole, no worse a waste."""
    config = FMFConfig(embedding_size=3, scale=1e-3)
    items = config.build(np.array([2.0])).server_init(25, RNG)
    found = np.array(list(estimates(config, items, 100)))
    expected = np.sqrt(75 / (600 * 50)) / np.tanh(1.0) / config.scale
    assert found.std(axis=0).mean() == pytest.approx(expected, rel=0.05)


def test_the_server_steps_along_one_estimate():
    config = FMFConfig(embedding_size=3, server_steps=7, learning_rate=0.1, reg=0.2)
    algorithm = config.build(np.array([1.0]))
    items = algorithm.server_init(4, RNG)
    counts = BitCounts(0, (5,), (50,), np.arange(12, dtype=np.int64)[None, :] - 6)
    after, memory = algorithm.server_fold(items, algorithm.server_memory(4), counts)
    wanted = items.astype(np.float64)
    gradient = 12.0 / np.tanh(0.5) * (np.arange(12) - 6).reshape(4, 3) / 50
    for _ in range(7):
        wanted = wanted - 0.1 * (gradient + 2.0 * 0.2 * wanted)
    np.testing.assert_allclose(after, wanted, rtol=1e-6)
    assert memory.size == 0


# --- it learns -----------------------------------------------------------------------------------


def served(federation, world):
    scorer = federation.scorer()
    scores = scorer.scores(np.arange(world.n_users))
    scores[world.users, world.items] = -np.inf
    return np.mean(scores.argmax(axis=1) % 2 == np.arange(world.n_users) % 2)


@pytest.mark.parametrize("k", [5, 20])
def test_the_papers_rate_is_a_step_for_each_user(k):
    """It divides the sum of all reports by users, not by reports: its step is k times as large.
    Terms that a server publishes mean the same."""
    theirs, ours = replace(CONFIG, rate_per_user=0.001), replace(CONFIG, learning_rate=0.001 * k)
    one, other = built(theirs, k), built(ours, k)
    one.run()
    other.run()
    assert same(one, other)
    terms = Terms("town", 40, theirs, KReports(k, TIERS), Proxied("https://a", "P"))
    assert Terms.from_table(terms.to_table()).build().config.learning_rate == 0.001 * k


@pytest.mark.parametrize("k", [1, 50])
def test_it_learns_the_checkerboard(k):
    """k = 1 is Harmony: it needs more devices for the same, here with a larger ε."""
    world = checkerboard(4000, 12, hole=2)
    consent = Consent.uniform(np.arange(4000), Choice(epsilon=4.0, max_reports=k))
    config = FMFConfig(embedding_size=2, rounds=40, learning_rate=0.02)
    federation = built(config, k, (Tier(4.0 if k == 1 else 1.0),), consent, RNG, world)
    before = served(federation, world)
    federation.run()
    assert before < 0.8
    assert served(federation, world) > 0.95
    assert federation.devices.ledger.totals.releases == 40 * 4000


# --- what is refused -----------------------------------------------------------------------------


def test_other_aggregates_are_refused():
    algorithm = FMF(CONFIG, (1.0, 2.0))
    items, memory = algorithm.server_init(9, RNG), algorithm.server_memory(9)
    rows = SummedReports(0, np.arange(9, dtype=np.int32), np.zeros((9, 3), np.int64), 4)
    with pytest.raises(MessageError, match="sums of item rows"):
        algorithm.server_fold(items, memory, rows)
    for shape in [(1, 27), (2, 26), (3, 27)]:
        counts = BitCounts(0, (4, 4), (8, 8), np.zeros(shape, np.int64))
        with pytest.raises(MessageError, match="shape"):
            algorithm.server_fold(items, memory, counts)
    with pytest.raises(MessageError, match="without any batch"):
        algorithm.server_fold(
            items, memory, BitCounts(0, (0, 0), (0, 0), np.zeros((2, 27), np.int64))
        )


def test_a_tier_without_a_batch_counts_for_nothing():
    algorithm = FMF(CONFIG, (1.0, 2.0))
    items = algorithm.server_init(9, RNG)
    sums = np.random.default_rng(3).integers(-9, 9, (2, 27))
    sums[0] = 0
    missing = algorithm.estimate(items, BitCounts(0, (0, 5), (0, 100), sums))
    alone = FMF(CONFIG, (2.0,)).estimate(items, BitCounts(0, (5,), (100,), sums[1:]))
    np.testing.assert_allclose(missing, alone)


def test_unknown_coordinates_tiers_and_rounds_are_refused():
    federation = built()
    server = federation.server
    good = np.array([0, 149], dtype=np.uint32)
    assert server.count([Batch(0, 2, 1, good)]).reports == (0, 0, 2)
    for batch in (
        Batch(0, 0, 1, np.array([150], dtype=np.uint32)),
        Batch(0, 3, 1, good),
        Batch(0, -1, 1, good),
        Batch(1, 0, 1, good),
    ):
        with pytest.raises(MessageError):
            server.count([batch])
    with pytest.raises(MessageError, match="second"):
        server.count([Batch(0, 1, 1, good), Batch(0, 1, 1, good)])


def test_reports_and_rows_do_not_mix():
    federation = built()
    devices, view = federation.devices, federation.server.publish()
    for way in (devices.report, devices.report_summed):
        with pytest.raises(ConfigError, match="randomised reports"):
            way(view, devices.willing())
    assert devices.ledger.totals.releases == 0


def test_a_federation_that_runs_out_of_budget_stops_before_it_reports_too_much():
    consent = replace(choices(20, 1.5), total_epsilon=np.full(600, 95.0))
    federation = built(consent=consent)
    with pytest.raises(Stalled, match="round 3"):
        federation.run()
    assert np.all(federation.devices.cohort.spent == 90.0)
    with pytest.raises(ConsentError, match="beyond"):
        federation.devices.report_bits(federation.server.publish(), np.arange(5))


def test_who_is_in_no_tier_sends_nothing():
    federation = built(consent=choices(20, 0.49, 1.5))
    assert set(federation.devices.willing() % 2) == {1}
    with pytest.raises(ConsentError):
        federation.devices.report_bits(federation.server.publish(), np.array([0]))
    federation.run()
    assert set(federation.devices.cohort.spent[::2]) == {0.0}


def test_it_has_no_form_for_a_gpu_and_says_so():
    with pytest.raises(ConfigError, match="FMF-LDP does not run on a GPU; leave it on --device"):
        built().check_device("cuda")
