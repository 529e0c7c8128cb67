"""A secure sum changes who sees what, and nothing else: the model is that of the direct link, bit
for bit, and nobody hears more than the table says."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import stats

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import SEALED_SEED_BYTES, Direct, SecureSum
from sottovoce.core.messages import GRID, MaskedReports, MaskSeeds, MaskSum, ModelView, add_up
from sottovoce.errors import ConfigError, MessageError, WrongSum
from sottovoce.parties import helper as maskers
from sottovoce.parties.device import Devices
from sottovoce.parties.helper import Helper
from sottovoce.parties.secure_sum import MaskedSum
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N_USERS, N_ITEMS, ROUNDS = 36, 40, 3
TRAIN = random_world(N_USERS, N_ITEMS, 300, seed=4)
USERS = np.arange(N_USERS)
CHOICES = [Choice(share_positives=0.5), Choice(share_positives=1.0), Choice(takes_part=False)]
SUM = SecureSum(min_devices=10)
NOISY = SecureSum(min_devices=10, clip=0.05, noise=0.02)
FPL = FPLConfig(embedding_size=5, triples=4, rounds=ROUNDS)
FCF = FCFConfig(embedding_size=4, rounds=ROUNDS)
GENDER = FilterConfig("gender", ("female", "male"), (0.4, 0.6))
UC = UCConfig(
    embedding_size=6, local_epochs=2, pairs=6, item_rate=2.0, rounds=ROUNDS, cohort_size=20,
    filters="two-layer", attributes=(GENDER,),
)  # fmt: skip
KINDS = {
    "fpl per item": (FPL, ShareFraction("item")),
    "fpl per draw": (FPL, ShareFraction("draw")),
    "fpl of some": (replace(FPL, cohort_size=14), ShareFraction("item")),
    "fcf": (FCF, Everything()),
    "uc": (UC, Clipped()),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class SeenMessages:
    def __init__(self):
        self.messages = []

    def on_message(self, party, message):
        self.messages.append((party, message))

    def of(self, party, kind):
        return [m for who, m in self.messages if who == party and isinstance(m, kind)]


def built(kind, link):
    settings, release = KINDS[kind]
    labels, choices = None, CHOICES
    if isinstance(settings, UCConfig):
        labels = (USERS % 2)[:, None]
    if not isinstance(release, ShareFraction):
        choices = [replace(c, share_positives=1.0) for c in CHOICES]
    consent = Consent.of(USERS, choices, USERS % 3)
    rng = Streams.from_seed(7)
    return Federation.build(settings, TRAIN, consent, release, rng, labels, link)


def after(kind, link, *, written, threads=1):
    made, heard = built(kind, link), SeenMessages()
    made.run(message_observers=[heard] if written else [], threads=threads)
    return made, heard


def same(one, other):
    return (
        np.array_equal(one.server.items, other.server.items)
        and np.array_equal(one.server.memory, other.server.memory)
        and np.array_equal(one.devices.cohort.vectors, other.devices.cohort.vectors)
    )


# --- the same model -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_masked_messages_sums_and_the_direct_link_give_the_same_model(kind):
    written, heard = after(kind, SUM, written=True, threads=2)
    summed, _ = after(kind, SUM, written=False)
    direct, _ = after(kind, Direct(), written=True)
    assert len(heard.of("server", MaskSum)) == ROUNDS
    assert same(written, summed)
    assert same(written, direct)
    start = built(kind, SUM)
    assert not np.array_equal(start.server.items, written.server.items), "something was learnt"


@pytest.mark.parametrize("kind", KINDS)
def test_with_clipping_and_noise_masked_messages_and_sums_give_the_same_model(kind):
    written, _ = after(kind, NOISY, written=True)
    summed, _ = after(kind, NOISY, written=False, threads=2)
    assert same(written, summed)
    for quieter in (replace(NOISY, noise=0.01), SUM):
        other, _ = after(kind, quieter, written=False)
        assert not np.array_equal(other.server.items, written.server.items)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("link", "number"), [(SUM, 8), (NOISY, 5)], ids=["64 bits", "40 bits"])
def test_the_ledger_books_a_whole_model_and_a_sealed_seed_for_every_release(kind, link, number):
    """24 devices or fewer, whose updates are cut to 0.05 of the grid's 2²⁴ steps, add up to less
    than 2²⁵ with noise, and to less than 2³⁸ with the room for a search: 40 bits."""
    written, _ = after(kind, link, written=True)
    summed, _ = after(kind, link, written=False)
    totals = written.devices.ledger.totals
    assert totals == summed.devices.ledger.totals
    each = number * written.server.items.size + SEALED_SEED_BYTES
    assert totals.releases == ROUNDS * written.schedule.cohort_size
    assert totals.bytes == totals.releases * each


# --- sight ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_party_hears_what_the_table_says_and_no_more(kind):
    made, heard = after(kind, SUM, written=True)
    there = Counter()
    for party, message in heard.messages:
        allowed = SecureSum.sees[party][type(message).__name__]
        assert {field.name for field in fields(message)} == allowed
        there[party, type(message).__name__] += 1
    named = {(party, kind) for party, kinds in SecureSum.sees.items() for kind in kinds}
    assert set(there) == named, "and everything that the table says does come"
    every = made.server.items.size
    for message in heard.of("server", MaskedReports):
        assert message.masked.shape == (len(message), every)
        assert message.masked.dtype == np.uint64
    for seeds, told in zip(heard.of("proxy", MaskSeeds), heard.of("server", MaskSum), strict=True):
        sent = [m for m in heard.of("server", MaskedReports) if m.round == told.round]
        senders = np.concatenate([m.sender for m in sent])
        assert sorted(seeds.sender.tolist()) == sorted(senders.tolist())
        assert told.devices == len(senders) == made.schedule.cohort_size
        assert np.all(senders % 3 != 2), "who takes no part sends nothing"
    rounds = [view.round for view in heard.of("device", ModelView)]
    assert rounds == list(range(ROUNDS))


def test_what_the_server_hears_of_a_device_is_uniform_whatever_it_sent():
    _, heard = after("fpl per item", SUM, written=True)
    masked = np.concatenate([m.masked for m in heard.of("server", MaskedReports)])
    for place in range(8):
        counts = np.bincount(masked.view(np.uint8).ravel()[place::8], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert len({row.tobytes() for row in masked}) == len(masked)
    # A zero of the update must not be one of what leaves, nor any number in two devices' messages.
    assert len(np.unique(masked)) == masked.size
    reports = built("fpl per item", Direct())
    view = reports.server.publish()
    sent = reports.devices.report(view, reports.devices.willing())
    plain = np.bincount(sent.values.view(np.uint8).ravel(), minlength=256)
    assert stats.chisquare(plain).pvalue < 1e-9, "the broken control: unmasked, bytes tell"


def test_no_seed_serves_twice():
    _, heard = after("fpl of some", SUM, written=True)
    seeds = [seed for message in heard.of("proxy", MaskSeeds) for seed in message.seeds]
    assert len(set(seeds)) == len(seeds) == ROUNDS * 14


# --- drop-outs and what must not pass -------------------------------------------------------------


@pytest.fixture
def first_round():
    made = built("fpl per item", SUM)
    view, rows = made.server.publish(), made.devices.willing()
    direct = built("fpl per item", Direct()).devices.report(view, rows)
    masked, seeds = made.devices.report_masked(view, rows)
    return made, view, direct, masked, seeds


def some_of(masked, seeds, kept):
    return (
        replace(masked, sender=masked.sender[kept], masked=masked.masked[kept]),
        replace(seeds, sender=seeds.sender[kept], seeds=tuple(seeds.seeds[k] for k in kept)),
    )


def open_sum(made, view, masked, seeds, *, masker=None):
    total = MaskedSum(view.round, *view.items.shape, made.masker.link, made.largest_value)
    total.add(masked)
    return total.open((masker or made.masker).sum_masks(seeds))


def test_drop_outs_do_not_count_and_cost_nobody_anything(first_round):
    made, view, direct, masked, seeds = first_round
    kept = [k for k in range(len(seeds)) if k % 5]
    came = np.isin(direct.sender, masked.sender[kept])
    expected = add_up(
        0,
        [replace(direct, sender=direct.sender[came], item=direct.item[came],
                 values=direct.values[came])],
        view.items.shape[1],
    )  # fmt: skip
    found = open_sum(made, view, *some_of(masked, seeds, kept))
    assert np.array_equal(found.dense(N_ITEMS), expected.dense(N_ITEMS))
    assert found.devices == len(kept)


def test_below_the_threshold_nothing_is_opened(first_round):
    made, view, _, masked, seeds = first_round
    for few in ([], [0], range(9)):
        with pytest.raises(MessageError, match="least is 10"):
            open_sum(made, view, *some_of(masked, seeds, list(few)))
    assert open_sum(made, view, *some_of(masked, seeds, list(range(10)))).devices == 10


def test_a_threshold_that_is_ignored_gives_an_update_away(first_round, monkeypatch):
    """The broken control of the test above."""
    made, view, direct, masked, seeds = first_round
    monkeypatch.setattr(maskers, "check_groups", lambda link, answered, *asked: answered)
    alone = open_sum(made, view, *some_of(masked, seeds, [3]))
    mine = direct.sender == masked.sender[3]
    assert np.array_equal(alone.item, direct.item[mine])
    assert np.array_equal(alone.sums, direct.values[mine])


def test_a_proxy_that_answers_wrongly_leaves_the_model_as_it_was(monkeypatch):
    made = built("fpl per item", SUM)
    before, right = made.server.items.copy(), Helper.sum_masks

    def wrong(self, seeds, threads=1, numbers=None, draws=None):
        told = right(self, seeds, threads, numbers, draws)
        return replace(told, masks=told.masks + np.uint64(1 << 50))

    monkeypatch.setattr(Helper, "sum_masks", wrong)
    with pytest.raises(WrongSum):
        made.run(message_observers=[SeenMessages()])
    assert made.server.round == 0
    assert np.array_equal(made.server.items, before)


def test_a_round_that_is_too_small_is_refused_before_it_begins():
    with pytest.raises(ConfigError, match=r"min_devices = 30.* 24 are asked"):
        built("fpl per item", SecureSum(min_devices=30))


# --- clipping and noise ---------------------------------------------------------------------------


def opened_sums(kind, link):
    """What the server opens in the first round, and each update as it was masked."""
    made = built(kind, link)
    view, rows = made.server.publish(), made.devices.willing()
    reports = made.devices.report(view, rows)
    fresh = built(kind, link)
    total = MaskedSum(0, *view.items.shape, fresh.masker.link, fresh.largest_value)
    masked, seeds = fresh.devices.report_masked(view, rows)
    total.add(masked)
    opened = total.open(fresh.masker.sum_masks(seeds)).dense(len(view.items))
    return reports, add_up(0, [reports], view.items.shape[1]).dense(len(view.items)), opened


@pytest.mark.parametrize("kind", ["fpl per item", "fcf", "uc"])
def test_every_update_is_clipped_as_a_whole_before_it_is_masked(kind):
    reports, _, _ = opened_sums(kind, NOISY)
    norms = [
        np.linalg.norm(reports.values[reports.sender == user].astype(float)) / GRID
        for user in np.unique(reports.sender)
    ]
    assert max(norms) <= NOISY.clip
    assert np.mean(np.array(norms) > 0.999 * NOISY.clip) > 0.5, "most are longer here"


def test_rows_count_their_senders_only_where_there_is_no_noise():
    """A count would take its part of the clipped length, and noise would spoil it."""
    counted, noisy = (built("uc", link) for link in (SUM, NOISY))
    for made, mark in ((counted, GRID), (noisy, 0)):
        reports = made.devices.report(made.server.publish(), made.devices.willing())
        assert np.all(reports.values[:, -1] == mark)
        assert reports.values[:, :-1].any()


def test_the_noise_of_the_terms_is_in_what_the_server_opens_and_in_nothing_before():
    """Noise off would be noticed here."""
    link = replace(NOISY, noise=2.0)
    _, plain, opened = opened_sums("fpl per item", link)
    noise = (opened - plain) / (link.noise * link.clip * GRID)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-4
    _, quiet, silent = opened_sums("fpl per item", replace(NOISY, noise=0.0))
    assert np.array_equal(quiet, silent)
    assert np.array_equal(quiet, plain)


def test_noise_off_on_the_proxy_is_noticed(monkeypatch):
    monkeypatch.setattr(maskers, "noise_of", lambda *asked: None)
    _, plain, opened = opened_sums("fpl per item", replace(NOISY, noise=2.0))
    assert np.array_equal(plain, opened), "the test above has something to find"


def test_masked_reports_need_the_link():
    made = built("fpl per item", Direct())
    with pytest.raises(ConfigError, match="secure sum"):
        made.devices.report_masked(made.server.publish(), made.devices.willing())
    assert isinstance(made.devices, Devices)
    assert made.masker is None
