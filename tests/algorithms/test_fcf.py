"""FCF: the mathematics by finite differences, Adam, what the variant for FPL leaves alone."""

import numpy as np
import pytest

from sottovoce import Experiment, run_experiment
from sottovoce.algorithms.fcf.system import FCF, FCFConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import GRID, BitCounts, ModelView, SummedReports
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, ConsentError, MessageError
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.runs.devices import world_of
from sottovoce.testing import random_world

RNG = Streams.from_seed(4)
WORLD = random_world(25, 18, 160, seed=1)
VARIANTS = ["paper", "fpl"]


def everyone(n, share=1.0):
    return Consent.uniform(np.arange(n), Choice(share_positives=share))


def parties(config, history=WORLD):
    """Devices and a server whose model has a size that matters."""
    algorithm, users = FCF(config), np.arange(history.n_users)
    cohort = Cohort(users, history, everyone(len(users)), algorithm.device_init(users, RNG))
    devices = SimulatedDevices.behind_door(algorithm, cohort, Everything(), Ledger(), RNG)
    server = Server.start(algorithm, history.n_items, RNG)
    server.items = (5.0 * server.items).astype(np.float32)
    return devices, server


def weights(config, history=WORLD):
    """c and p, [users, items]."""
    p = np.zeros((history.n_users, history.n_items))
    p[history.users, history.items] = 1.0
    return (p, p) if config.variant == "fpl" else (1.0 + config.alpha * p, p)


def loss(config, items):
    """Σ c (p − x·v)² + λ(|x|² + |v|²), every x at its best, by plain linear algebra."""
    c, p = weights(config)
    total = config.reg * np.sum(items**2)
    for mine, wanted in zip(c, p, strict=True):
        system = (items.T * mine) @ items + config.reg * np.eye(items.shape[1])
        x = np.linalg.solve(system, (items.T * mine) @ wanted)
        total += np.sum(mine * (wanted - items @ x) ** 2) + config.reg * np.sum(x**2)
    return total


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_devices_send_is_the_gradient_of_the_loss(variant):
    """At its best x, the loss does not change with x; so this tests the closed form, too."""
    config = FCFConfig(embedding_size=3, variant=variant, reg=0.3, alpha=2.5)
    devices, server = parties(config)
    items = server.items.astype(np.float64)
    sent = devices.report_summed(server.publish(), devices.willing()).dense(len(items))
    gradient = -2.0 / GRID * sent + 2.0 * config.reg * items
    step = 1e-5
    for item in range(len(items)):
        for factor in range(items.shape[1]):
            up, down = items.copy(), items.copy()
            up[item, factor] += step
            down[item, factor] -= step
            slope = (loss(config, up) - loss(config, down)) / (2.0 * step)
            assert gradient[item, factor] == pytest.approx(slope, abs=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_round_lowers_the_loss(variant):
    config = FCFConfig(embedding_size=3, variant=variant, learning_rate=0.01, reg=0.3)
    devices, server = parties(config)
    losses = [loss(config, server.items.astype(np.float64))]
    for _ in range(15):
        server.fold(devices.report_summed(server.publish(), devices.willing()))
        losses.append(loss(config, server.items.astype(np.float64)))
    assert np.all(np.diff(losses) < 0)


def test_the_servers_step_is_adams():
    torch = pytest.importorskip("torch")
    algorithm = FCF(FCFConfig(embedding_size=3, learning_rate=0.02, reg=0.7))
    draws = np.random.default_rng(2)
    items, memory = algorithm.server_init(9, RNG), algorithm.server_memory(9)
    known = torch.tensor(items, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([known], lr=0.02)
    for round in range(6):
        sums = draws.integers(-(1 << 26), 1 << 26, (9, 3))
        sums[4] = 0
        known.grad = torch.tensor(-2.0 / GRID * sums) + 2.0 * 0.7 * known.detach()
        adam.step()
        every = np.arange(9, dtype=np.int32)
        sent = every if round % 2 else np.delete(every, 4)  # a row of zeros may be left out
        aggregate = SummedReports(round, sent, sums[sent], 5)
        items, memory = algorithm.server_fold(items, memory, aggregate)
        np.testing.assert_allclose(items, known.detach().numpy(), atol=2e-6)


def test_the_variant_of_fpl_sends_and_touches_positives_only():
    history = random_world(12, 60, 40, seed=3)
    devices, server = parties(FCFConfig(embedding_size=3, variant="fpl"), history)
    reports = devices.report(server.publish(), devices.willing())
    for user in range(12):
        assert set(reports.item[reports.sender == user]) == set(history.row(user).tolist())
    before = server.items
    server.fold(server.sum_reports([reports]))
    theirs = np.zeros(60, dtype=bool)
    theirs[history.items] = True
    assert 10 < theirs.sum() < 50
    assert np.array_equal(server.items[~theirs], before[~theirs])
    assert np.all(server.items[theirs] != before[theirs])
    summed = devices.report_summed(ModelView(0, before), devices.willing())
    assert not summed.dense(60)[~theirs].any()
    assert server.memory.size == 0


def test_as_published_everyone_sends_every_row():
    devices, server = parties(FCFConfig(embedding_size=3))
    reports = devices.report(server.publish(), devices.willing())
    assert len(reports) == WORLD.n_users * WORLD.n_items
    totals = devices.ledger.totals
    assert totals.bytes == 4 * 3 * len(reports)
    assert totals.positive_rows == WORLD.n_interactions


def test_it_wants_consent_to_share_everything():
    devices, _ = parties(FCFConfig(embedding_size=3))
    cohort = devices.cohort
    cohort.consent = everyone(WORLD.n_users, 0.99)
    with pytest.raises(ConsentError, match="share_positives = 1"):
        SimulatedDevices.behind_door(devices.algorithm, cohort, Everything(), Ledger(), RNG)


def test_randomised_reports_are_not_folded():
    algorithm = FCF(FCFConfig(embedding_size=3))
    items, memory = algorithm.server_init(9, RNG), algorithm.server_memory(9)
    with pytest.raises(MessageError, match="randomised"):
        algorithm.server_fold(items, memory, BitCounts(0, (1,), (1,), np.zeros((1, 27), np.int64)))


# --- resuming ------------------------------------------------------------------------------------


def test_confidence_and_pull_follow_the_density_of_the_data():
    rules = FCFConfig(by_density=True, alpha=2.0, reg=3.0)
    found = rules.by_rule(users=100, positives=1000, n_items=400)
    assert not found.by_density
    assert found.alpha == pytest.approx(2.0 / (50 * 0.025))
    assert found.reg == pytest.approx(3.0 * 1.5 * 5**0.5 * found.alpha)
    assert found.by_rule(5, 5, 5) == found  # numbers stay
    for use in (rules.confidence, rules.check_terms):
        with pytest.raises(ConfigError, match="by_density"):
            use()


def test_what_rules_came_to_is_in_the_manifest_and_the_terms(tmp_path):
    table = {
        "name": "ruled", "town": {"residents": 60, "venues": 40},
        "algorithm": {"name": "fcf", "by_density": True, "rounds": 1, "embedding_size": 4},
        "consent": {"share_positives": 1.0},
    }  # fmt: skip
    outcome = run_experiment(Experiment.from_table(table), tmp_path / "run")
    noted = outcome.folder.manifest()["by_rule"]
    settings = outcome.federation.server.algorithm.config
    assert noted == {"alpha": settings.alpha, "reg": settings.reg}
    terms = world_of(outcome.experiment, outcome.dataset, outcome.federation).terms.to_table()
    assert not terms["algorithm"]["by_density"]
    assert terms["algorithm"]["alpha"] == settings.alpha
    again = run_experiment(Experiment.from_table(table), tmp_path / "run", resume=True)
    assert np.array_equal(again.federation.server.items, outcome.federation.server.items)
