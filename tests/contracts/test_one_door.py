"""The door by construction: ways around it that were found once, and every combination of
algorithm, release and link that can be put together, held to the definition."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.algorithms.base import ALGORITHMS
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMF, FMFConfig
from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import LINKS, SEALED_SEED_BYTES, Direct, Link, SecureSum
from sottovoce.core.masking import expand, unmasked
from sottovoce.core.messages import GRID, ModelView
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, ConsentError, Diverged, MessageError
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.base import RELEASES
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world
from sottovoce.wire.terms import check_fitting

TRAIN = random_world(40, 30, 200, seed=5)
USERS = np.arange(TRAIN.n_users, dtype=np.int64)
RNG = Streams.from_seed(11)
INF = float("inf")


def behind(kind, algorithm, release, choice, link=None, consent=None, **more):
    records = consent or Consent.uniform(USERS, choice, ("sex",))
    labels = np.tile(USERS[:, None] % 2, (1, len(algorithm.config.attributes)))
    vectors = algorithm.device_init(USERS, RNG)
    cohort = Cohort(USERS, TRAIN, records, vectors, labels=labels)
    return kind.behind_door(algorithm, cohort, release, Ledger(), RNG, link=link, **more)


def model(algorithm):
    return Server.start(algorithm, TRAIN.n_items, RNG).publish()


# --- ways around it that were found ---------------------------------------------------------------


def noisy(settings=None):
    return settings or FPLConfig(embedding_size=3, configuration="sFPL", rounds=50)


def test_parts_that_do_not_go_together_are_refused_in_python_as_in_a_file():
    consent = Consent.uniform(USERS, Choice(share_positives=1.0, total_epsilon=2.0))
    with pytest.raises(ConfigError, match="fpl needs the release share-fraction"):
        Federation.build(noisy(), TRAIN, consent, Clipped(norm="l1", epsilon=1.0), RNG)
    with pytest.raises(ConfigError, match="do not go together"):
        behind(Devices, FPL(FPLConfig(), 2), KReports(5), Choice(share_positives=1.0))


def test_fused_rounds_cannot_skip_noise_and_budget():
    """A release with noise and a limit, put behind the door by hand."""
    release = Clipped(norm="l1", epsilon=1.0, clip=100.0)
    choice = Choice(share_positives=1.0, epsilon=1.0, total_epsilon=2.0)
    devices = behind(SimulatedDevices, FPL(FPLConfig(embedding_size=3), 1), release, choice)
    assert not devices.fuses
    view = model(devices.algorithm)
    with pytest.raises(ConfigError, match="runs its rounds one by one"):
        devices.report_rounds(view.items, 0, np.array([1, 2, 1]))
    assert not devices.ledger.totals.releases
    for round in range(2):
        devices.report(ModelView(round, view.items), np.array([1]))
    with pytest.raises(ConsentError, match="beyond what its owner permits"):
        devices.report(ModelView(2, view.items), np.array([1]))
    assert devices.cohort.spent[1] == 2.0


def test_a_device_that_comes_twice_is_counted_twice_or_refused():
    devices = behind(
        SimulatedDevices, FPL(FPLConfig(embedding_size=3), 2), ShareFraction(),
        Choice(share_positives=0.5),
    )  # fmt: skip
    view = model(devices.algorithm)
    for way in (devices.report, devices.report_summed):
        with pytest.raises(ConsentError, match="twice in one round"):
            way(view, np.array([3, 4, 3]))
    assert not devices.ledger.totals.releases
    devices.report_rounds(view.items, 0, np.array([3, 4, 3]))
    assert devices.cohort.sent[3] == 2
    # What three rounds of one device would cost is asked for before any of them runs.
    release = Clipped(norm="l1", epsilon=1.0)
    choice = Choice(share_positives=1.0, epsilon=1.0, total_epsilon=2.0)
    limited = behind(SimulatedDevices, FPL(FPLConfig(embedding_size=3), 1), release, choice)
    assert limited._permitted(np.array([5, 6, 5])).all()
    assert limited._permitted(np.array([5, 5, 6, 5])).tolist() == [False, False, True, False]


def test_the_links_bound_is_kept_before_anything_is_masked():
    """The noise on a sum is measured by it: whoever sends more is not hidden."""
    settings, release = FCFConfig(embedding_size=3), Everything()
    sizes = {}
    for clip in (0.0, 0.25):
        link = SecureSum(20, clip=clip)
        algorithm = settings.build_under(release, link, 0)
        devices = behind(Devices, algorithm, release, Choice(share_positives=1.0), link)
        reports = devices.report(model(algorithm), USERS)
        squares = np.bincount(reports.sender, ((reports.values / GRID) ** 2).sum(axis=1))
        sizes[clip] = np.sqrt(squares)
    assert sizes[0.0].max() > 0.25
    assert 0.2 < sizes[0.25].max() <= 0.25


def test_noise_on_the_sum_is_paid_for_whatever_the_release_is():
    link = SecureSum(20, clip=0.5, noise=1.0)
    release = Everything()
    algorithm = FCFConfig(embedding_size=3).build_under(release, link, 0)
    choice = Choice(share_positives=1.0)
    assert behind(Devices, algorithm, release, choice, link).spends
    assert not behind(Devices, algorithm, release, choice, SecureSum(20)).spends


def test_masked_messages_are_reports_that_their_seeds_alone_open():
    link, release = SecureSum(20), ShareFraction()
    algorithm = FPL(FPLConfig(embedding_size=3), 2)
    choice = Choice(share_positives=1.0)
    rows, view = np.array([3, 7, 20]), model(algorithm)
    plain = behind(Devices, algorithm, release, choice, link).report(view, rows)
    own = tuple(bytes([n]) * 32 for n in (1, 2, 3))
    for seeds in (None, own):
        devices = behind(Devices, algorithm, release, choice, link)
        hidden, told = devices.report_masked(view, rows, seeds)
        assert hidden.round == told.round == view.round
        assert hidden.sender.tolist() == told.sender.tolist() == rows.tolist()
        assert len(set(told.seeds)) == 3
        assert seeds is None or told.seeds == own
        for n, user in enumerate(rows):
            mine, whole = plain.sender == user, np.zeros(view.items.shape, np.int64)
            whole[plain.item[mine]] = plain.values[mine]
            assert not np.array_equal(hidden.masked[n].view(np.int64), whole.ravel())
            opened = unmasked(hidden.masked[n], expand(told.seeds[n], whole.size), whole.shape[1])
            assert np.array_equal(opened, whole)
        booked = devices.ledger.pending().to_pydict()
        assert booked["user"] == rows.tolist()
        assert booked["bytes"] == [8 * view.items.size + SEALED_SEED_BYTES] * 3
    with pytest.raises(ValueError, match="zip"):
        devices.report_masked(view, rows, own[:2])
    direct = behind(Devices, algorithm, release, choice)
    with pytest.raises(ConfigError, match="for a secure sum"):
        direct.report_masked(view, rows)
    assert not direct.ledger.totals.releases


class WantsAll(FPL):
    """Cannot learn without every positive."""

    def device_check(self, consent):
        if (consent.share_positives < 1).any():
            raise ConsentError("this algorithm wants everything")


def test_an_algorithm_is_asked_whether_it_can_keep_to_what_was_chosen():
    algorithm = WantsAll(FPLConfig(embedding_size=3), 4)
    with pytest.raises(ConsentError, match="wants everything"):
        behind(Devices, algorithm, ShareFraction(), Choice(share_positives=0.9))
    devices = behind(Devices, algorithm, ShareFraction(), Choice(share_positives=1.0))
    before = devices.cohort.consent
    with pytest.raises(ConsentError, match="wants everything"):
        devices.change_consent(Consent.uniform(USERS, Choice(), ("sex",)))
    assert devices.cohort.consent is before


def test_one_who_has_spent_all_is_enough_to_stop_a_round():
    release = Clipped(norm="l1", epsilon=1.0, clip=100.0)
    choices = [Choice(share_positives=1.0, total_epsilon=limit) for limit in (0.5, 9.0)]
    consent = Consent.of(USERS, choices, USERS % 2, ("sex",))
    algorithm = FPL(FPLConfig(embedding_size=3), 1)
    devices = behind(SimulatedDevices, algorithm, release, None, consent=consent)
    assert devices.willing().tolist() == USERS[1::2].tolist()
    for way in (devices.report, devices.report_summed):
        with pytest.raises(ConsentError, match="beyond what its owner permits"):
            way(model(algorithm), np.array([1, 2, 3]))
    assert not devices.ledger.totals.releases


class LooksAround(FPL):
    needs_whole_cohort = True


def test_devices_that_look_at_each_other_are_asked_together(monkeypatch):
    monkeypatch.setattr("sottovoce.parties.device._WRITTEN_AT_ONCE", 1)
    parts = []
    for kind in (FPL, LooksAround):
        algorithm = kind(FPLConfig(embedding_size=3), 2)
        devices = behind(Devices, algorithm, ShareFraction(), Choice())
        parts.append(len(list(devices.report_in_parts(model(algorithm), USERS[:5]))))
    assert parts == [5, 1]


class TellsLittle(FPL):
    """The first update, or none."""

    many = 1

    def device_learn(self, view, cohort, rows, rng):
        made = super().device_learn(view, cohort, rows, rng)
        names = ("row", "entry", "item", "positive", "values")
        return replace(made, **{name: getattr(made, name)[: self.many] for name in names})


@pytest.mark.parametrize("many", [0, 1])
def test_a_round_may_have_little_to_tell(many, monkeypatch):
    monkeypatch.setattr(TellsLittle, "many", many)
    algorithm = TellsLittle(FPLConfig(embedding_size=3), 2)
    devices = behind(Devices, algorithm, ShareFraction(), Choice(share_positives=1.0))
    assert len(devices.report(model(algorithm), USERS[:2])) == many
    assert devices.ledger.totals.releases == 2


def test_rounds_at_once_are_rounds_one_by_one():
    """With coins that differ by round and by user, and shares that differ by user."""
    choices = [Choice(share_positives=share) for share in (0.0, 0.4, 1.0)]
    consent = Consent.of(USERS, choices, USERS % 3, ("sex",))
    algorithm = FPL(FPLConfig(embedding_size=3), 1)
    rows, first = np.array([3, 4, 3, 8, 1, 4]), 5
    fast, plain = (
        behind(kind, algorithm, ShareFraction("draw"), None, consent=consent)
        for kind in (SimulatedDevices, Devices)
    )
    items = model(algorithm).items
    after = fast.report_rounds(items.copy(), first, rows)
    memory = algorithm.server_memory(len(items))
    for round, row in enumerate(rows, first):
        total = plain.report_sum(ModelView(round, items), np.array([row]))
        items, memory = algorithm.server_fold(items, memory, total)[:2]
    assert np.array_equal(after, items)
    assert fast.ledger.pending().to_pydict() == plain.ledger.pending().to_pydict()
    assert np.array_equal(fast.cohort.sent, plain.cohort.sent)


class NoFastWay(FMF):
    sums = False

    def device_report(self, view, cohort, rows, rule, threads):
        raise AssertionError("it said that it has none")


def test_without_a_fast_way_a_simulation_goes_by_the_definition():
    release, choice = KReports(20, (Tier(1.0, 5),)), Choice(epsilon=1.0, max_reports=20)
    algorithm = NoFastWay(FMFConfig(embedding_size=3), (1.0,))
    made = [
        behind(kind, algorithm, release, choice).report_bits(model(algorithm), USERS).reports
        for kind in (SimulatedDevices, Devices)
    ]
    assert np.array_equal(*made)


class SilentFirst(FPL):
    """The first device of a round has nothing to tell."""

    def device_learn(self, view, cohort, rows, rng):
        made = super().device_learn(view, cohort, rows, rng)
        left = made.row > 0
        names = ("row", "entry", "item", "positive", "values")
        return replace(made, **{name: getattr(made, name)[left] for name in names})


def test_who_sends_nothing_is_counted_and_booked():
    algorithm = SilentFirst(FPLConfig(embedding_size=3), 4)
    devices = behind(Devices, algorithm, ShareFraction(), Choice(share_positives=1.0))
    total = devices.report_sum(model(algorithm), USERS[:5])
    assert total.devices == 5
    booked = devices.ledger.pending().to_pydict()
    assert booked["user"] == USERS[:5].tolist()
    assert (booked["bytes"][0], booked["negative_rows"][0]) == (0, 0)
    assert min(booked["bytes"][1:]) > 0


def test_where_every_row_is_sent_every_row_is_booked():
    release = Clipped(norm="l1", epsilon=1.0, clip=100.0)
    devices = behind(
        Devices, FPL(FPLConfig(embedding_size=3), 1), release, Choice(share_positives=1.0)
    )
    rows = np.array([1, 9])
    reports = devices.report(model(devices.algorithm), rows)
    assert len(reports) == 2 * TRAIN.n_items
    booked, own = devices.ledger.pending().to_pydict(), TRAIN.counts[rows]
    assert booked["positive_rows"] == own.tolist()
    assert booked["negative_rows"] == (TRAIN.n_items - own).tolist()
    assert booked["bytes"] == [TRAIN.n_items * devices.algorithm.row_bytes] * 2
    assert booked["epsilon"] == [1.0, 1.0]
    assert booked["kind"] == ["clipped-l1"] * 2
    assert devices.cohort.spent[[0, 1, 9]].tolist() == [0.0, 1.0, 1.0]
    assert devices.cohort.sent[[0, 1, 9]].tolist() == [0, 1, 1]


def test_an_algorithm_sees_the_vectors_that_the_cohort_has_now():
    devices = behind(
        Devices, FPL(FPLConfig(embedding_size=3), 1), ShareFraction(), Choice(share_positives=1.0)
    )
    before = devices._shown()
    assert before is devices._shown()
    devices.cohort.vectors = devices.cohort.vectors + 1
    assert devices._shown().vectors is devices.cohort.vectors


class Shuffles(FPL):
    def device_learn(self, view, cohort, rows, rng):
        made = super().device_learn(view, cohort, rows, rng)
        order = np.argsort(np.arange(len(made)) * 7919 % len(made), kind="stable")
        names = ("row", "entry", "item", "positive", "values")
        return replace(made, **{name: getattr(made, name)[order] for name in names})


def test_the_order_in_which_an_algorithm_tells_is_not_told():
    """Nor does it move what is booked from one device to another."""
    made = []
    for kind in (FPL, Shuffles):
        algorithm = kind(FPLConfig(embedding_size=3), 5)
        devices = behind(Devices, algorithm, ShareFraction(), Choice(share_positives=0.5))
        reports = devices.report(model(algorithm), USERS[::-1].copy())
        made.append((reports, devices.ledger.pending()))
    for name in ("sender", "item", "values"):
        assert np.array_equal(getattr(made[0][0], name), getattr(made[1][0], name))
    assert made[0][1].equals(made[1][1])


def test_a_door_for_rows_gives_no_bits_and_the_other_way_round():
    bits = behind(
        SimulatedDevices, FMF(FMFConfig(embedding_size=3), (1.0,)), KReports(20, (Tier(1.0, 5),)),
        Choice(epsilon=1.0, max_reports=20),
    )  # fmt: skip
    view = model(bits.algorithm)
    for way in (bits.report, bits.report_summed, bits.report_sum):
        with pytest.raises(ConfigError, match="not item rows"):
            way(view, USERS)
    rows = behind(SimulatedDevices, FPL(FPLConfig(embedding_size=3), 2), ShareFraction(), Choice())
    for way in (rows.report_bits, super(SimulatedDevices, rows).report_bits):
        with pytest.raises(ConfigError, match="not randomised reports"):
            way(model(rows.algorithm), USERS)
    assert not bits.ledger.totals.releases
    assert not rows.ledger.totals.releases


class Clips(Direct):
    clip = 0.5


def test_rounds_are_run_at_once_only_where_none_must_be_looked_at_by_itself():
    choice = Choice(share_positives=1.0)
    fpl = FPL(FPLConfig(embedding_size=3), 1)
    assert behind(SimulatedDevices, fpl, ShareFraction(), choice).fuses
    for link in (SecureSum(20), SecureSum(20, clip=0.5), Clips()):
        assert not behind(SimulatedDevices, fpl, ShareFraction(), choice, link).fuses
    fcf = FCFConfig(embedding_size=3).build_under(Everything(), Direct(), 0)
    assert not behind(SimulatedDevices, fcf, Everything(), choice).fuses


def test_an_accelerator_computes_whole_rounds_under_one_consent(monkeypatch):
    """It holds rules of its own, which a change of mind would not reach: another one is made, and
    goes on from the vectors of the first."""
    made = []

    def accelerated(self, cohort, n_items, rule, rng, scales, device):
        made.append((rule.allowed, cohort.vectors.copy()))
        return SimpleNamespace(vectors=lambda: cohort.vectors + 1.0)

    monkeypatch.setattr(FPL, "accelerated", accelerated)
    devices = behind(
        SimulatedDevices, FPL(FPLConfig(embedding_size=3), 1), ShareFraction(), Choice()
    )
    devices.accelerate(TRAIN.n_items, "cuda")
    assert not devices.fuses
    devices.change_consent(Consent.uniform(USERS, Choice(share_positives=1.0), ("sex",)))
    (before, start), (after, end) = made
    assert not before.any()
    assert after.all()
    assert np.array_equal(end, start + 1.0)


def test_private_coins_come_from_the_root_that_is_given():
    """A real device's root is its own; that of a simulation follows from its seed."""
    algorithm = FMF(FMFConfig(embedding_size=3), (1.0,))
    release, choice = KReports(20, (Tier(1.0, 5),)), Choice(epsilon=1.0, max_reports=20)
    view = model(algorithm)
    roots = (None, None, b"a" * 32, b"a" * 32, b"b" * 32)
    made = [
        behind(Devices, algorithm, release, choice, noise=root).report_bits(view, USERS).reports
        for root in roots
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[2], made[3])
    for one, other in itertools.combinations((made[0], made[2], made[4]), 2):
        assert np.array_equal(one >> 1, other >> 1), "what reports are about is not private"
        assert not np.array_equal(one, other)


def test_tiers_are_those_of_the_release():
    algorithm = FMF(FMFConfig(embedding_size=3), (1.0, 2.0))
    release = KReports(20, (Tier(1.0, 5), Tier(2.0, 5)))
    choices = [Choice(epsilon=e, max_reports=20) for e in (0.5, 1.0, 2.0)]
    consent = Consent.of(USERS, choices, USERS % 3, ("sex",))
    devices = behind(Devices, algorithm, release, None, consent=consent)
    assert devices.tiers().tolist() == (USERS % 3 - 1).tolist()
    assert devices.willing().tolist() == USERS[USERS % 3 > 0].tolist()
    sent = devices.report_bits(model(algorithm), np.array([1, 5]))
    assert (sent.round, sent.sender.tolist(), sent.tier.tolist()) == (0, [1, 5], [0, 1])
    booked = devices.ledger.pending().to_pydict()
    assert (booked["user"], booked["round"], booked["reports"]) == ([1, 5], [0, 0], [20, 20])
    assert (booked["epsilon"], booked["report_epsilon"]) == ([20.0, 40.0], [1.0, 2.0])
    assert devices.cohort.spent[[0, 1, 2, 5]].tolist() == [0.0, 20.0, 0.0, 40.0]


def test_a_change_of_mind_holds_from_the_next_round_on():
    algorithm = FPL(FPLConfig(embedding_size=3), 4)
    devices = behind(SimulatedDevices, algorithm, ShareFraction(), Choice(share_positives=1.0))
    view = model(algorithm)
    devices.report(view, USERS)
    before = devices.ledger.totals.positive_rows
    assert before
    for foreign in (USERS[:-1], USERS + 1):
        with pytest.raises(ConsentError, match="belong to the cohort's devices"):
            devices.change_consent(Consent.uniform(foreign, Choice()))
    cannot = Consent.uniform(USERS, Choice(epsilon=1.0), ("sex",))
    with pytest.raises(ConsentError, match="cannot keep to"):
        devices.change_consent(cannot)
    devices.report(ModelView(1, view.items), USERS)
    assert devices.ledger.totals.positive_rows > before, "what was refused changed nothing"
    before = devices.ledger.totals.positive_rows
    choices = [Choice(), Choice(takes_part=False)]
    devices.change_consent(Consent.of(USERS, choices, USERS % 2, ("sex",)))
    assert devices.willing().tolist() == USERS[::2].tolist()
    devices.report(ModelView(2, view.items), devices.willing())
    assert devices.ledger.totals.positive_rows == before
    assert np.array_equal(devices._shown().consent.takes_part, USERS % 2 == 0)


class IgnoresRule(FPL):
    """Lets every positive go on the fast ways, and books none of them."""

    def device_learn_summed(self, view, cohort, rows, rule, rng, threads):
        all_of_it = replace(rule, allowed=np.zeros(0, dtype=bool))
        sums, counts = super().device_learn_summed(view, cohort, rows, all_of_it, rng, threads)
        return sums, replace(counts, positive=np.zeros_like(counts.positive))


class IgnoresRuleFused(FPL):
    def device_learn_rounds(self, items, first_round, cohort, rows, rule, rng):
        all_of_it = replace(rule, allowed=np.zeros(0, dtype=bool))
        return super().device_learn_rounds(items, first_round, cohort, rows, all_of_it, rng)


class BooksTooLittle(FPL):
    def device_learn_summed(self, view, cohort, rows, rule, rng, threads):
        sums, counts = super().device_learn_summed(view, cohort, rows, rule, rng, threads)
        return sums, replace(counts, negative=counts.negative // 2)


class ForgetsNoise(FMF):
    """Sends raw signs where randomised ones are booked."""

    def device_report(self, view, cohort, rows, rule, threads):
        reports = super().device_report(view, cohort, rows, rule, threads)
        return reports | np.uint32(1)


@pytest.mark.parametrize("kind", [IgnoresRule, IgnoresRuleFused, BooksTooLittle])
def test_a_fast_way_that_is_not_its_definition_is_not_used(kind, monkeypatch):
    devices = behind(
        SimulatedDevices, kind(FPLConfig(embedding_size=3), 4), ShareFraction(), Choice()
    )
    view = model(devices.algorithm)
    with pytest.raises(ConfigError, match="fast way of fpl does not give what its definition"):
        devices.report_rounds(view.items, 0, USERS[:5])
    assert not devices.ledger.totals.releases
    if kind is not IgnoresRuleFused:
        devices = behind(SimulatedDevices, devices.algorithm, ShareFraction(), Choice())
        monkeypatch.setattr(kind, "prefers_messages", lambda *_: False)
        with pytest.raises(ConfigError, match="does not give what its definition"):
            devices.report_summed(view, USERS)
        assert not devices.ledger.totals.releases


class LearnsElsewhere(FPL):
    """Sums as it should, but its devices learn nothing from it."""

    fuses = False

    def device_learn_summed(self, view, cohort, rows, rule, rng, threads):
        aside = replace(cohort, vectors=cohort.vectors.copy())
        return super().device_learn_summed(view, aside, rows, rule, rng, threads)


def test_a_fast_way_that_learns_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(LearnsElsewhere, "prefers_messages", lambda *_: False)
    algorithm = LearnsElsewhere(FPLConfig(embedding_size=3), 4)
    devices = behind(SimulatedDevices, algorithm, ShareFraction(), Choice())
    with pytest.raises(ConfigError, match="does not give what its definition"):
        devices.report_summed(model(algorithm), USERS)


@pytest.mark.parametrize(
    "ways", [{}, {"sums": False, "device_learn_summed": None}, {"fuses": False}]
)
def test_a_strangers_fast_way_that_is_its_definition_is_used(ways):
    honest = type("Honest", (FPL,), {"prefers_messages": lambda *_: False, **ways})
    algorithm = honest(FPLConfig(embedding_size=3), 4)
    view = model(algorithm)
    devices = behind(SimulatedDevices, algorithm, ShareFraction(), Choice(share_positives=0.5))
    devices.report_summed(view, USERS)
    assert devices.ledger.totals.releases == len(USERS)
    if devices.fuses:
        devices = behind(SimulatedDevices, algorithm, ShareFraction(), Choice())
        devices.report_rounds(view.items, 1, USERS[:3])
        assert devices.ledger.totals.releases == 3


def test_bits_that_were_not_randomised_are_not_sent():
    algorithm = ForgetsNoise(FMFConfig(embedding_size=3), (1.0,))
    release, choice = KReports(20, (Tier(1.0, 5),)), Choice(epsilon=1.0, max_reports=20)
    devices = behind(SimulatedDevices, algorithm, release, choice)
    with pytest.raises(ConfigError, match="fast way of fmf does not give"):
        devices.report_bits(model(algorithm), USERS)
    real = behind(Devices, algorithm, release, choice)
    honest = behind(Devices, FMF(FMFConfig(embedding_size=3), (1.0,)), release, choice)
    view = model(algorithm)
    assert np.array_equal(
        real.report_bits(view, USERS).reports, honest.report_bits(view, USERS).reports
    ), "a real device asks for values and randomises them itself"


class CallsHersAnothers(FPL):
    """Says of positives that they are negatives, which always leave."""

    def device_learn(self, view, cohort, rows, rng):
        updates = super().device_learn(view, cohort, rows, rng)
        return replace(updates, positive=np.zeros_like(updates.positive))


class GivesNumbers(FPL):
    def device_learn(self, view, cohort, rows, rng):
        updates = super().device_learn(view, cohort, rows, rng)
        return replace(updates, values=np.full(updates.values.shape, np.nan))


class GivesUnknownRows(FPL):
    def device_learn(self, view, cohort, rows, rng):
        updates = super().device_learn(view, cohort, rows, rng)
        return replace(updates, item=updates.item + np.int32(TRAIN.n_items))


class GivesAnotherType(FPL):
    def device_learn(self, view, cohort, rows, rng):
        return {"history": cohort.history}


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (CallsHersAnothers, ConsentError, "fpl says of an item that its owner has"),
        (GivesNumbers, MessageError, "whole numbers of the grid"),
        (GivesUnknownRows, MessageError, "rows that the model"),
        (GivesAnotherType, MessageError, "fpl gave dict in place of a device's Updates"),
    ],
)
def test_an_algorithm_is_believed_nothing(kind, error, words):
    devices = behind(Devices, kind(FPLConfig(embedding_size=3), 4), ShareFraction(), Choice())
    with pytest.raises(error, match=words):
        devices.report(model(devices.algorithm), USERS)
    assert not devices.ledger.totals.releases


def first(value):
    """An array with this at the beginning of it."""

    def change(array):
        return np.concatenate([np.full_like(array[:1], value), array[1:]])

    return change


SPOILT = {
    "another width": ("values", lambda v: v[:, 1:], "whole numbers"),
    "fewer values": ("values", lambda v: v[1:], "whole numbers"),
    "no numbers": ("values", lambda v: v.astype(np.float64), "whole numbers"),
    "fewer items": ("item", lambda v: v[1:], "rows that the model"),
    "fewer entries": ("entry", lambda v: v[1:], "rows that the model"),
    "fewer flags": ("positive", lambda v: v[1:], "rows that the model"),
    "an item below": ("item", first(-1), "rows that the model"),
    "an item above": ("item", first(TRAIN.n_items), "rows that the model"),
    "a device below": ("row", first(-1), "devices that the round has not"),
    "a device above": ("row", first(3), "devices that the round has not"),
    "all hers": ("positive", np.ones_like, "the other way round"),
    "none hers": ("positive", np.zeros_like, "the other way round"),
    "another entry": ("entry", lambda v: v + 1, "the other way round"),
    "another's item": ("item", lambda v: v[::-1].copy(), "the other way round"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_whatever_an_algorithm_says_wrongly_nothing_is_sent(how):
    name, change, words = SPOILT[how]

    class Spoils(FPL):
        def device_learn(self, view, cohort, rows, rng):
            made = super().device_learn(view, cohort, rows, rng)
            return replace(made, **{name: change(getattr(made, name))})

    devices = behind(
        Devices, Spoils(FPLConfig(embedding_size=3), 4), ShareFraction(), Choice(share_positives=1)
    )
    with pytest.raises((MessageError, ConsentError), match=words):
        devices.report(model(devices.algorithm), np.array([2, 3, 5]))
    assert not devices.ledger.totals.releases
    assert not devices.cohort.sent.any()


class ReportsNothing(FMF):
    def device_values(self, view, cohort, rows, coordinates):
        return np.full(coordinates.shape, np.nan)


def test_values_that_are_no_numbers_do_not_leave():
    algorithm = ReportsNothing(FMFConfig(embedding_size=3), (1.0,))
    devices = behind(
        Devices, algorithm, KReports(20, (Tier(1.0, 5),)), Choice(epsilon=1.0, max_reports=20)
    )
    with pytest.raises(Diverged, match="nothing was sent"):
        devices.report_bits(model(algorithm), USERS)
    assert not devices.cohort.spent.any()
    assert not devices.ledger.totals.releases


def test_an_algorithm_does_not_see_what_was_permitted():
    seen = []

    class Looks(FPL):
        def device_learn(self, view, cohort, rows, rng):
            seen.append(cohort.consent)
            return super().device_learn(view, cohort, rows, rng)

    choice = Choice(share_positives=0.7, total_epsilon=3.0)
    devices = behind(Devices, Looks(FPLConfig(embedding_size=3), 2), ShareFraction(), choice)
    devices.report(model(devices.algorithm), USERS)
    assert not seen[0].share_positives.any()
    assert np.isinf(seen[0].total_epsilon).all()
    assert devices.cohort.consent.share_positives[0] == np.float32(0.7)


class Uneven(FPL):
    """Of some devices it has fewer draws than of others."""

    sums = fuses = False

    def device_learn(self, view, cohort, rows, rng):
        updates = super().device_learn(view, cohort, rows, rng)
        kept = (np.arange(len(updates)) // 2 % self.triples) <= cohort.users[rows][updates.row] % 3
        return replace(
            updates, **{name: getattr(updates, name)[kept] for name in updates.__slots__}
        )


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_devices_may_have_positives_in_any_number(share):
    algorithm, release = Uneven(FPLConfig(embedding_size=3), 4), ShareFraction("draw")
    together = behind(Devices, algorithm, release, Choice(share_positives=share))
    view = model(algorithm)
    reports = together.report(view, USERS)
    hers = TRAIN.find(reports.sender, reports.item.astype(np.int64)) >= 0
    assert hers.any() == (share > 0)
    for user in (0, 1, 2, 7):
        alone = behind(Devices, algorithm, release, Choice(share_positives=share))
        mine = reports.sender == user
        assert np.array_equal(alone.report(view, USERS[[user]]).values, reports.values[mine])


def test_what_nobody_keeps_to_is_refused_and_not_ignored():
    class Deaf(ShareFraction):
        """Keeps to nothing, and does not say so."""

        reads = ()

        def bind(self, users, consent, history, rng, noise=b"", *, noisy_sums=False):
            everything = replace(consent, share_positives=np.ones(len(users), np.float32))
            return super().bind(users, everything, history, rng)

    algorithm = FPL(FPLConfig(embedding_size=3), 2)
    with pytest.raises(ConsentError, match="share_positives is set, but neither fpl nor"):
        behind(Devices, algorithm, Deaf(), Choice(share_positives=0.3))
    behind(Devices, algorithm, Deaf(), Choice(takes_part=False, share_positives=0.3))


def test_an_unregistered_relative_cannot_be_put_together():
    class Mine(FPLConfig):
        pass

    with pytest.raises(ConfigError, match="Mine is not registered as an algorithm"):
        check_fitting(Mine(), ShareFraction(), Direct())


# --- every combination ----------------------------------------------------------------------------

FILTERS = (FilterConfig("sex", ("f", "m"), (0.5, 0.5)),)
SETTINGS = {
    "fpl": [(FPLConfig(embedding_size=3, triples=4), 4), (FPLConfig(embedding_size=3), 1)],
    "fcf": [(FCFConfig(embedding_size=3), 0), (FCFConfig(embedding_size=3, variant="fpl"), 0)],
    "fmf": [
        (FMFConfig(embedding_size=3), 0),
        (FMFConfig(embedding_size=3, scale=3.0), 0),
        (FMFConfig(embedding_size=3, variant="rotated", scale=0.3), 0),
    ],
    "uc": [
        (UCConfig("mf", 5, pairs=4, local_epochs=2, cohort_size=40, attributes=FILTERS), 0),
        (UCConfig("ncf", 5, pairs=4, local_epochs=2, cohort_size=40, attributes=FILTERS), 0),
        (UCConfig("gnn", 5, pairs=4, local_epochs=2, cohort_size=40, attributes=FILTERS), 0),
    ],
}
CHOICES = {
    "share-fraction": [(ShareFraction(), 0.4), (ShareFraction("draw"), 0.4)],
    "everything": [(Everything(), 1.0)],
    "own-epsilon": [(OwnEpsilon(2.0), 0.0)],
    "k-reports": [(KReports(20, (Tier(1.0, 5), Tier(2.0, 5))), 0.0)],
    "clipped": [
        (Clipped(4.0), 0.5),
        (Clipped(4.0, "l1", 1.0, 0.5), 1.0),
        (Clipped(0.5, "scalar", 2.0), 1.0),
    ],
}
WAYS = {
    "direct": [Direct()],
    "proxy": [LINKS["proxy"]()],
    "secure-sum": [SecureSum(20), SecureSum(20, clip=0.5), SecureSum(20, clip=0.5, noise=1.0)],
}


chain = itertools.chain.from_iterable


def combinations():
    """All that `check_fitting` lets pass of every registered algorithm, release and link, with the
    settings above or, where there are none, those by default."""
    for name, kind in ALGORITHMS.items():
        if kind.family != "devices":
            continue
        parts = (
            SETTINGS.get(name, [(kind(), 0)]),
            chain(CHOICES.get(name, [(kind(), 1.0)]) for name, kind in RELEASES.items()),
            chain(WAYS.get(name, [kind()]) for name, kind in LINKS.items()),
        )
        for (settings, triples), (release, share), link in itertools.product(*parts):
            try:
                check_fitting(settings, release, link)
            except ConfigError:
                continue
            words = [settings.name, release.name, link.name]
            yield pytest.param(settings, triples, release, share, link, id="-".join(words))


def everyone(release: object, share: float, link: Link) -> Consent:
    """A third takes no part; others differ in what they permit."""
    priced = link.noise or release.sends != "rows" or release.adds_noise
    limit = 1e6 if priced else INF
    bits = {"max_reports": 20, "epsilon": 1.0} if release.sends == "bits" else {}
    bits |= {"epsilon": 1.0} if release.sends == "contributions" else {}
    hidden = {"hidden_attributes": ("sex",)} if release.clips else {}
    limit = INF if release.clips and not (release.dense or link.noise) else limit
    yes = Choice(share_positives=share, total_epsilon=limit, **bits)
    choices = [yes, replace(yes, **hidden), Choice(takes_part=False)]
    return Consent.of(USERS, choices, USERS % 3, ("sex",))


def test_every_registered_component_has_its_combinations_here():
    used = {(p.values[0].name, p.values[2].name, p.values[4].name) for p in combinations()}
    wanted = {
        (name, release, link)
        for name, kind in ALGORITHMS.items()
        for release in [*kind.releases, *(r for r in RELEASES if name in RELEASES[r].algorithms)]
        for link in [*kind.links, *(way for way in LINKS if name in LINKS[way].algorithms)]
    }
    assert used == wanted


@pytest.mark.parametrize(("settings", "triples", "release", "share", "link"), list(combinations()))
def test_fast_ways_give_what_the_definition_gives(settings, triples, release, share, link):
    algorithm = settings.build_under(release, link, triples)
    consent = everyone(release, share, link)
    plain = behind(Devices, algorithm, release, None, link, consent)
    fast = behind(SimulatedDevices, algorithm, release, None, link, consent)
    server = Server.start(algorithm, TRAIN.n_items, RNG)
    exact = settings.name != "uc"  # whose sums are the same up to single precision's rounding
    for round in range(2):
        view = ModelView(round, server.items)
        rows = plain.willing()
        assert np.array_equal(rows, fast.willing())
        assert 0 < len(rows) < len(USERS)
        if release.sends == "bits":
            one, other = plain.report_bits(view, rows), fast.report_bits(view, rows, threads=2)
            assert np.array_equal(one.reports, other.reports)
            assert np.array_equal(one.tier, other.tier)
        else:
            many = algorithm.report_shape(view)[0]
            wanted = plain.report_sum(view, rows).dense(many)
            told = fast.report_summed(view, rows, threads=2)
            got = told.dense(many)
            if release.sends == "contributions":  # whose next round is about others
                assert wanted.any()
                server.fold(told)
            if exact:
                assert np.array_equal(wanted, got)
            else:
                assert np.abs(wanted - got).max() <= 1e-4 * np.abs(wanted).max()
        if exact:
            assert np.array_equal(plain.cohort.vectors, fast.cohort.vectors)
        assert np.array_equal(plain.cohort.spent, fast.cohort.spent)
        assert np.array_equal(plain.cohort.sent, fast.cohort.sent)
    booked, computed = plain.ledger.pending(), fast.ledger.pending()
    assert booked.sort_by([("round", "ascending"), ("user", "ascending")]).equals(
        computed.sort_by([("round", "ascending"), ("user", "ascending")])
    )
    sent = plain.cohort.sent
    assert set(np.flatnonzero(sent)) <= set(np.flatnonzero(consent.takes_part))


@pytest.mark.parametrize(("settings", "triples", "release", "share", "link"), list(combinations()))
def test_budgets_hold_on_every_way(settings, triples, release, share, link):
    """With room for two rounds (of contributions: periods), the next one is refused, on every way,
    and nothing is booked."""
    algorithm = settings.build_under(release, link, triples)
    consent = everyone(release, share, link)
    first = behind(SimulatedDevices, algorithm, release, None, link, consent)
    if not first.spends or np.isinf(consent.total_epsilon).all():
        pytest.skip("nobody can limit what has no ε")
    if link.noise:
        from sottovoce.privacy.central import price

        limit = price(link.noise, 2) * (1 + 1e-9)
    else:
        limit = 2 * float(first._release.epsilons[first.willing()].min())
    tight = replace(consent, total_epsilon=np.full(len(USERS), limit))
    view = model(algorithm)
    for kind in (Devices, SimulatedDevices):
        devices = behind(kind, algorithm, release, None, link, tight)
        rows = devices.willing()
        rows = (
            rows[devices._release.epsilons[rows] * 2 <= limit * (1 + 1e-9)]
            if (not link.noise)
            else rows
        )
        ways = [devices.report_bits] if release.sends == "bits" else [devices.report]
        if release.sends == "contributions":
            ways = [devices.report_sum]
        if kind is SimulatedDevices and release.sends != "bits":
            ways = [devices.report_summed]
        many = 2 * (settings.rounds if release.sends == "contributions" else 1)
        for round in range(many):
            ways[0](ModelView(round, view.items), rows)
        before = devices.ledger.totals
        with pytest.raises(ConsentError, match="beyond what its owner permits"):
            ways[0](ModelView(many, view.items), rows)
        assert devices.ledger.totals == before
        for asked in (None, many):
            assert not np.isin(rows, devices.willing(asked)).any()
