"""The one door: what consent forbids does not leave, and what leaves is in the ledger."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import CheckedSum, SecureSum
from sottovoce.core.masking import expand, unmasked
from sottovoce.core.messages import DeviceReports, row_bytes
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, ConsentError, DataError, MessageError
from sottovoce.parties import device as parties_device
from sottovoce.parties.device import _leaving
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction, share_subsets
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world
from sottovoce.wire.reports import encode_report

SIZE, TRIPLES = 6, 25


def federation(train, consent, per="draw", seed=1, triples=TRIPLES):
    rng = Streams.from_seed(seed)
    algorithm = FPL(FPLConfig(embedding_size=SIZE), triples)
    users = np.arange(train.n_users)
    cohort = Cohort(users, train, consent, algorithm.device_init(users, rng))
    devices = SimulatedDevices.behind_door(algorithm, cohort, ShareFraction(per), Ledger(), rng)
    return devices, Server.start(algorithm, train.n_items, rng)


def shares(n, *values):
    users = np.arange(n)
    choices = [Choice(share_positives=v) for v in values]
    return Consent.of(users, choices, users % len(values))


@pytest.mark.parametrize("per", ["draw", "item"])
def test_nothing_positive_leaves_at_zero(per):
    train = random_world(40, 90, 700, seed=1)
    devices, server = federation(train, shares(40, 0.0), per)
    for _ in range(3):
        reports = devices.report(server.publish(), devices.willing())
        for sender in range(40):
            sent = reports.item[reports.sender == sender]
            assert not set(sent.tolist()) & set(train.row(sender).tolist())
            assert len(sent) > 0
        server.fold(server.sum_reports([reports]))


def test_one_round_of_many_draws_tells_the_history_by_what_it_leaves_out():
    """What docs/privacy.md says of the complement: at π = 0, and with no algebra at all."""
    train = random_world(30, 12, 120, seed=3)
    devices, server = federation(train, shares(30, 0.0), triples=200)
    reports = devices.report(server.publish(), devices.willing())
    for sender in range(30):
        sent = set(reports.item[reports.sender == sender].tolist())
        assert set(range(12)) - sent == set(train.row(sender).tolist())


def test_per_item_never_sends_a_positive_outside_the_fixed_subset():
    train = random_world(40, 90, 700, seed=2)
    consent = shares(40, 0.0, 0.3, 0.7, 1.0)
    devices, server = federation(train, consent, "item")
    allowed = share_subsets(np.arange(40), consent, train, Streams.from_seed(1))
    seen = [set() for _ in range(40)]
    for _ in range(20):
        reports = devices.report(server.publish(), devices.willing())
        for sender in range(40):
            seen[sender] |= set(reports.item[reports.sender == sender].tolist())
        server.fold(server.sum_reports([reports]))
    for user in range(40):
        own = set(train.row(user).tolist())
        span = slice(train.indptr[user], train.indptr[user + 1])
        subset = set(train.items[span][allowed[span]].tolist())
        assert seen[user] & own <= subset
        assert len(subset) == int(float(consent.share_positives[user]) * len(own) + 1e-3)
        assert seen[user] & own == subset  # after 500 draws all of the subset has been sent


def test_per_draw_gives_nearly_every_positive_away_in_time():
    """Not a feature: the printed reading of π, and why `per="item"` is the default."""
    train = random_world(60, 90, 900, seed=3)
    devices, server = federation(train, shares(60, 0.1), "draw")
    seen = [set() for _ in range(60)]
    for _ in range(40):
        reports = devices.report(server.publish(), devices.willing())
        for sender in range(60):
            seen[sender] |= set(reports.item[reports.sender == sender].tolist())
        server.fold(server.sum_reports([reports]))
    given_away = [len(seen[u] & set(train.row(u).tolist())) / len(train.row(u)) for u in range(60)]
    assert np.mean(given_away) > 0.95


def test_the_share_of_positives_sent_is_the_users_share():
    train = random_world(400, 300, 8000, seed=4)
    devices, server = federation(train, shares(400, 0.25), "draw")
    updates = devices.algorithm.device_learn(
        server.publish(), devices.cohort, np.arange(400), devices.rng
    )
    rule = devices._release.rule(np.arange(400), np.array([0]))
    leaves = _leaving(updates, rule)
    n = 400 * TRIPLES
    assert leaves[~updates.positive].all()
    assert abs(leaves[updates.positive].sum() - 0.25 * n) < 4 * np.sqrt(n * 0.25 * 0.75)


def test_who_does_not_take_part_sends_nothing_and_cannot_be_made_to():
    train = random_world(30, 50, 300, seed=5)
    users = np.arange(30)
    choices = [Choice(share_positives=1.0), Choice(takes_part=False, share_positives=1.0)]
    devices, server = federation(train, Consent.of(users, choices, users % 2))
    assert set(devices.willing() % 2) == {0}
    for way in (devices.report, devices.report_summed):
        with pytest.raises(ConsentError):
            way(server.publish(), np.array([0, 1]))
    with pytest.raises(ConsentError):
        devices.report_rounds(server.items, 0, np.array([1]))
    assert devices.ledger.totals.releases == 0


def test_home_learning_leaves_no_trace_and_helps():
    train = random_world(30, 50, 300, seed=6)
    users = np.arange(30)
    choices = [Choice(share_positives=1.0), Choice(takes_part=False)]
    devices, server = federation(train, Consent.of(users, choices, users % 2))
    for _ in range(200):
        server.fold(devices.report_summed(server.publish(), devices.willing()))
    before, released = devices.cohort.vectors.copy(), devices.ledger.totals
    at_home = devices.vectors_at_home(server.publish())
    assert devices.ledger.totals == released
    assert np.array_equal(devices.cohort.vectors, before)
    assert np.array_equal(at_home[::2], before[::2])

    def ranks_own_above_others(vectors):
        scores = vectors @ server.items[:, :-1].T + server.items[:, -1]
        own = np.array([scores[u, train.row(u)].mean() for u in range(1, 30, 2)])
        return float((own - scores[1::2].mean(axis=1)).mean())

    assert ranks_own_above_others(at_home) > ranks_own_above_others(before) + 0.1


@pytest.mark.parametrize("room", [1, 800, 2500, 1 << 22])
def test_in_parts_everybody_reports_once_and_the_parts_keep_to_the_room(monkeypatch, room):
    monkeypatch.setattr("sottovoce.parties.device._WRITTEN_AT_ONCE", room)
    train = random_world(25, 60, 400, seed=7)
    devices, server = federation(train, shares(25, 0.0, 0.5, 1.0))
    whole, _ = federation(train, shares(25, 0.0, 0.5, 1.0))
    view, rows = server.publish(), devices.willing()
    parts = list(devices.report_in_parts(view, rows))
    expected = whole.report(view, rows)
    for name in ("sender", "item", "values"):
        together = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(together, getattr(expected, name))
    assert devices.ledger.totals == whole.ledger.totals
    one = max(int((expected.sender == user).sum()) for user in range(25)) * (SIZE + 1)
    assert max(part.values.size for part in parts) <= max(2 * room, one)
    assert len(parts) <= 2 + 2 * expected.values.size / max(room, one)


def test_every_release_is_in_the_ledger_with_what_it_sent():
    train = random_world(25, 60, 400, seed=7)
    devices, server = federation(train, shares(25, 0.0, 0.5, 1.0))
    heard = []
    for _ in range(3):
        heard.append(devices.report(server.publish(), devices.willing()))
        server.fold(server.sum_reports([heard[-1]]))
    table = devices.ledger.pending().to_pydict()
    assert len(table["user"]) == 75
    for k in range(75):
        reports = heard[table["round"][k]]
        mine = reports.item[reports.sender == table["user"][k]]
        own = set(train.row(table["user"][k]).tolist())
        positive = sum(int(i) in own for i in mine)
        assert table["positive_rows"][k] == positive
        assert table["negative_rows"][k] == len(mine) - positive
        assert table["bytes"][k] == len(mine) * row_bytes(SIZE)
        assert table["epsilon"][k] == float("inf")


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(2, 70), st.integers(0, 60), st.integers(0, 2**20))
def test_any_small_world_passes_the_door(n_users, n_items, events, seed):
    train = random_world(n_users, n_items, events, seed)
    devices, server = federation(train, shares(n_users, 0.0, 0.6), seed=seed)
    rows = devices.willing()
    if not len(rows):
        return
    twin, _ = federation(train, shares(n_users, 0.0, 0.6), seed=seed)
    view = server.publish()
    summed = twin.report_summed(view, rows)
    written = server.sum_reports([devices.report(view, rows)])
    assert np.array_equal(summed.dense(n_items), written.dense(n_items))
    assert twin.ledger.totals == devices.ledger.totals


@pytest.mark.parametrize(
    ("alike", "company", "part_by_part"),
    [(False, 40, True), (False, None, False), (True, 40, False), (True, None, False)],
)
def test_a_share_of_a_round_is_added_up_part_by_part_where_sums_depend_on_who_is_in_them(
    monkeypatch, alike, company, part_by_part
):
    """Ranks of a run give the sum of one process to the last bit. An accelerator sees to it."""
    devices, server = federation(random_world(40, 30, 300, seed=5), shares(40, 1.0), triples=200)
    view, rows, real, calls = server.publish(), devices.willing(), SimulatedDevices.report_sum, []

    def report_sum(self, view, rows):
        calls.append(len(rows))
        return real(self, view, rows)

    class AcceleratedError(Exception):
        pass

    class Accelerator:
        def learn_summed(self, *_):
            raise AcceleratedError

    monkeypatch.setattr(SimulatedDevices, "report_sum", report_sum)
    monkeypatch.setattr(FPL, "sums_alike", alike)
    assert not devices.writes_messages(view, 40)
    assert devices.report_summed(view, rows, company=company).devices == len(rows)
    assert calls == ([len(rows)] if part_by_part else [])
    devices._accelerator = Accelerator()
    with pytest.raises(AcceleratedError):
        devices.report_summed(view, rows, company=company)


def test_devices_that_cannot_learn_are_not_asked():
    from sottovoce.core.interactions import Interactions

    full = np.arange(5)
    train = Interactions.from_pairs(
        [1] * 5 + [2], [*full, 0], n_users=4, n_items=5
    )  # 0 and 3 have nothing, 1 has everything
    devices, _ = federation(train, shares(4, 1.0))
    assert devices.willing().tolist() == [2]


def test_the_server_rejects_what_is_off():
    train = random_world(10, 30, 60, seed=8)
    devices, server = federation(train, shares(10, 1.0))
    good = devices.report(server.publish(), np.array([0, 1]))
    with pytest.raises(MessageError, match="twice"):
        server.sum_reports([good, good])
    stale = DeviceReports(5, good.sender, good.item, good.values)
    unknown = DeviceReports(0, good.sender, good.item + 30, good.values)
    narrow = DeviceReports(0, good.sender, good.item, good.values[:, 1:])
    for bad, words in [(stale, "round"), (unknown, "unknown item"), (narrow, "width")]:
        with pytest.raises(MessageError, match=words):
            server.sum_reports([bad])


def test_no_user_vector_is_in_any_message():
    """The vector itself does not travel (what can be computed from messages is another matter)."""
    train = random_world(10, 30, 60, seed=9)
    devices, server = federation(train, shares(10, 1.0))
    before = devices.cohort.vectors.copy()
    for row in range(10):
        payload = encode_report(devices.report(server.publish(), np.array([row])))
        for vector in (before[row], devices.cohort.vectors[row]):
            assert vector.tobytes() not in payload


def test_a_cohort_must_be_of_one_piece():
    train = random_world(4, 10, 10, seed=0)
    with pytest.raises(DataError, match="one history"):
        Cohort(np.arange(3), train, shares(3, 1.0), np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match="in order"):
        Cohort(np.array([3, 2, 1, 0]), train, shares(4, 1.0), np.zeros((4, 2), np.float32))


def test_what_one_device_sends_is_named_and_what_several_send_is_not():
    """Her ledger shows which of her things were in a report; the others in it are negatives."""
    train = random_world(20, 60, 400, seed=1)
    devices, server = federation(train, shares(20, 1.0))
    view, [first, second, *_] = server.publish(), devices.willing().tolist()
    reports = devices.report(view, np.array([first]))
    own = set(reports.item.tolist()) & set(train.row(first).tolist())
    assert own
    assert set(devices.contents.items.tolist()) == own
    assert (devices.contents.weight > 0).all()
    devices.report(view, np.array([first, second]))
    assert devices.contents is None


def test_it_is_known_who_has_contributed_to_the_stage_of_a_round():
    train = random_world(30, 25, 300, seed=1)
    consent = Consent.uniform(np.arange(30), Choice(epsilon=8.0))
    config = GramConfig(least_head=5, most_head=12, embedding_size=3)
    made = Federation.build(
        config, train, consent, OwnEpsilon(8.0), Streams.from_seed(3), link=SecureSum(20)
    )
    everyone, some = np.arange(30), np.arange(0, 30, 2)
    view = made.server.publish()
    made.devices.report_summed(view, some)
    assert np.flatnonzero(made.devices.has_sent(everyone, view.round)).tolist() == some.tolist()
    assert made.devices.has_sent(np.array([1, 2]), view.round).tolist() == [False, True]
    assert not made.devices.has_sent(everyone, view.round + 1).any()


@pytest.mark.parametrize("parts", [0, 20])
@pytest.mark.parametrize("sums", [True, False])
def test_summed_contributions_are_those_of_each_device_and_its_noise(monkeypatch, parts, sums):
    """The fast way is held to its definition, and gives its sum where there is one."""
    train, calls = random_world(30, 25, 300, seed=1), []
    consent = Consent.uniform(np.arange(30), Choice(epsilon=8.0))
    config = GramConfig(least_head=5, most_head=12, embedding_size=3)
    release = OwnEpsilon(8.0, parts=parts)
    one, other = (
        Federation.build(config, train, consent, release, Streams.from_seed(3), link=SecureSum(20))
        for _ in range(2)
    )
    some, view = np.arange(0, 30, 2), one.server.publish()
    expected, real = one.devices.report_sum(view, some), SimulatedDevices.report_sum

    def report_sum(self, view, rows):
        calls.append("definition")
        return real(self, view, rows)

    monkeypatch.setattr(SimulatedDevices, "report_sum", report_sum)
    monkeypatch.setattr(SimulatedDevices, "_hold", lambda self, view: calls.append(view.round))
    monkeypatch.setattr(type(one.devices.algorithm), "sums", sums)
    found = other.devices.report_summed(view, some)
    many = one.devices.algorithm.report_shape(view)[0]
    assert np.array_equal(found.dense(many), expected.dense(many))
    assert found.devices == expected.devices == len(some)
    assert calls == ([view.round] if sums else ["definition"])
    assert not other.devices.writes_messages(view, 1)


def test_so_few_write_messages_that_these_cost_less_than_all_rows():
    devices, server = federation(random_world(40, 300, 300, seed=5), shares(40, 1.0), triples=1)
    view = server.publish()
    assert devices.writes_messages(view, 1)
    assert not devices.writes_messages(view, 1000)


def test_what_is_hidden_from_now_on_is_hidden_by_the_published_model(monkeypatch):
    devices, server = federation(random_world(6, 20, 60, seed=2), shares(6, 1.0))
    before, view, hidden, asked = devices.cohort.consent, server.publish(), [], []
    after = Consent.uniform(np.arange(6), Choice(share_positives=1.0), ("sex",))

    def newly_hidden(*records):
        asked.append(records)
        return hides

    monkeypatch.setattr(parties_device, "newly_hidden", newly_hidden)
    monkeypatch.setattr(FPL, "device_hide", lambda self, *given: [hidden.append(given)])
    hides = np.zeros((6, 1), bool)
    hides[2] = True
    assert devices.change_consent(after) == []
    assert len(asked[0]) == 2
    assert asked[0][0] is before
    assert asked[0][1] is after
    assert not hidden, "there is no model yet"
    assert devices.change_consent(after, view) == [None]
    ((model, cohort, whose, attributes),) = hidden
    assert model is view
    assert cohort is devices.cohort
    assert whose is hides
    assert attributes == ("sex",)
    hides = np.zeros((6, 1), bool)
    assert devices.change_consent(after, view) == []
    assert len(hidden) == 1, "nothing new is hidden"


def contributing(link=None, parts=0):
    train = random_world(30, 25, 300, seed=1)
    consent = Consent.uniform(np.arange(30), Choice(epsilon=8.0))
    config = GramConfig(least_head=5, most_head=12, embedding_size=3, batches=2)
    made = Federation.build(
        config, train, consent, OwnEpsilon(8.0, parts=parts), Streams.from_seed(3),
        link=link or SecureSum(20),
    )  # fmt: skip
    return made.devices, made.server.publish(), train


def test_the_sum_of_several_contributions_travels_as_one_masked_message():
    some = np.array([4, 2, 9])
    for bits, dtype in ((32, np.uint32), (64, np.uint64)):
        link = SecureSum(20, bits=bits)
        (plain, view, _), (devices, _, _) = contributing(link), contributing(link)
        masked, seeds = devices.report_masked(view, some, summed=True)
        assert masked.sender.tolist() == seeds.sender.tolist() == [4]
        assert masked.masked.dtype == dtype
        many = devices.algorithm.report_shape(view)[0]
        mask = expand(seeds.seeds[0], many, bits)
        expected = plain.report_sum(view, some).dense(many)
        assert np.array_equal(unmasked(masked.masked[0], mask, 1, bits), expected)
    rows, server = federation(random_world(6, 20, 60, seed=2), shares(6, 1.0))
    with pytest.raises(ConfigError, match="masked reports are for a secure sum"):
        rows.report_masked(server.publish(), np.array([0]))
    rows._link = SecureSum(2)
    with pytest.raises(ConfigError, match="sums of them for contributions"):
        rows.report_masked(server.publish(), np.array([0, 1]), summed=True)
    assert rows.report_masked(server.publish(), np.array([0, 1]))[0].masked.dtype == np.uint64


def test_shares_are_for_a_checked_sum_and_go_by_the_secrets_that_are_given():
    devices, view, _ = contributing()
    with pytest.raises(ConfigError, match="only a checked sum takes shares"):
        devices.report_shared(view, np.array([0]))
    made = contributing(CheckedSum(20))[0]
    own = [tuple(bytes([10 * u + k]) * 32 for k in range(3)) for u in range(2)]
    told = made.report_shared(view, np.array([3, 5]), own)
    assert [one.sender.tolist() for one in told] == [[3, 5]] * 3
    assert [list(one.secrets) for one in told] == [
        [(mine[k], mine[(k + 1) % 3]) for mine in own] for k in range(3)
    ]
    with pytest.raises(ValueError, match="zip"):
        contributing(CheckedSum(20))[0].report_shared(view, np.array([3, 5]), own[:1])


def test_each_device_adds_its_own_part_of_the_noise_of_its_round():
    devices, view, _ = contributing(parts=20)
    algorithm, release = devices._contributing()
    spans = algorithm.noise_spans(view.round, algorithm.report_shape(view)[0])
    rows = np.array([7, 3, 11])
    found = list(devices._noise_parts(view, rows))
    assert len(found) == 3
    for row, part in zip(rows.tolist(), found, strict=True):
        assert np.array_equal(part, release.part(row, view.round, spans))
        assert part.any()


def test_what_one_device_contributes_is_named_and_what_several_do_is_not():
    devices, view, train = contributing()
    twin, _, _ = contributing()
    one = twin.report_sum(view, np.array([4]))
    many = devices.algorithm.report_shape(view)[0]
    assert np.array_equal(devices.report_summed(view, np.array([4])).dense(many), one.dense(many))
    for made in (devices, twin):
        assert set(made.contents.items.tolist()) <= set(train.row(4).tolist())
        assert len(made.contents.items)
        assert (made.contents.weight > 0).all()
        assert made.contents.items.tolist() == sorted(set(made.contents.items.tolist()))
    devices.report_summed(view, np.array([5, 6, 7]))
    assert devices.contents is None
    twin.report_sum(view, np.array([5, 6, 7]))
    assert twin.contents is None


def test_who_contributed_to_a_later_period_is_done_with_those_before():
    devices, view, _ = contributing()
    rounds = len(devices.algorithm.shares) * devices.algorithm.batches
    later = replace(view, round=rounds)
    devices.report_summed(later, np.array([1, 2]))
    assert devices.has_sent(np.array([1, 3]), 0).tolist() == [True, False]
    assert devices.has_sent(np.array([1, 3]), rounds).tolist() == [True, False]


def test_a_profile_of_another_size_does_not_leave(monkeypatch):
    devices, view, _ = contributing()
    many = devices.algorithm.report_shape(view)[0]
    monkeypatch.setattr(type(devices.algorithm), "report_shape", lambda *_: (many + 1, 1))
    with pytest.raises(MessageError, match="a profile of another size"):
        devices.report_sum(view, np.array([1]))
    assert not devices.ledger.totals.releases


def test_what_one_device_reports_at_random_is_about_things_of_hers_that_are_named(monkeypatch):
    train = random_world(30, 25, 300, seed=1)
    consent = Consent.uniform(np.arange(30), Choice(epsilon=2.0, max_reports=10))
    made = Federation.build(
        FMFConfig(embedding_size=3), train, consent, KReports(10, (Tier(2.0, 2),)),
        Streams.from_seed(3),
    )  # fmt: skip
    view = made.server.publish()
    drawn, real = [], parties_device.drawn_coordinates
    monkeypatch.setattr(
        parties_device, "drawn_coordinates", lambda *about: drawn.append(real(*about)) or drawn[-1]
    )
    parties_device.Devices.report_bits(made.devices, view, np.array([4]))
    about = (drawn[0][0] // 3).tolist()
    own = sorted(set(about) & set(train.row(4).tolist()))
    assert 0 < len(own) < train.counts[4]
    assert made.devices.contents.items.tolist() == own
    assert made.devices.contents.weight.tolist() == [about.count(item) for item in own]
    parties_device.Devices.report_bits(made.devices, view, np.array([5, 6]))
    assert made.devices.contents is None


@pytest.mark.parametrize("rows", [[2, 2], [1, 2, 2, 3], [3, 2, 2], [2, 1, 2]])
def test_nobody_is_asked_twice_in_one_round_in_whatever_order(rows):
    devices, server = federation(random_world(6, 20, 60, seed=2), shares(6, 1.0))
    with pytest.raises(ConsentError, match="asked twice in one round"):
        devices.report(server.publish(), np.array(rows))
    assert not devices.ledger.totals.releases
    assert devices.report(server.publish(), np.array([3, 1, 2])).sender.tolist()


def test_what_was_told_beyond_counts_until_another_period_begins():
    devices, view, _ = contributing()
    devices.cohort.beyond[:] = 0.5
    devices.report_summed(view, np.array([1, 2]))
    assert devices.cohort.beyond[:4].tolist() == [0.5] * 4
    rounds = len(devices.algorithm.shares) * devices.algorithm.batches
    devices.report_summed(replace(view, round=rounds), np.array([2, 3]))
    assert devices.cohort.beyond[:4].tolist() == [0.5, 0.5, 0.0, 0.0]
