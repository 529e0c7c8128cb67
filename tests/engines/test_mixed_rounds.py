"""Rounds through the proxy in simulation: who may report, what is held back, when it ends."""

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Hop, Proxied
from sottovoce.core.messages import Batch, BitReports
from sottovoce.engines.observers import AtRounds, Moment
from sottovoce.engines.transcripts import Transcript, read_transcript
from sottovoce.errors import ConfigError, ConsentError, Stalled
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

TRAIN = random_world(40, 30, 200, seed=2)
USERS = np.arange(40, dtype=np.int64)
RELEASE = KReports(10, (Tier(1.0, 8), Tier(2.0, 8)))


def federation(choices, which, rounds=5, release=RELEASE, link=None):
    consent = Consent.of(USERS, choices, np.asarray(which, dtype=np.int64))
    settings = FMFConfig(embedding_size=3, rounds=rounds)
    return Federation.build(settings, TRAIN, consent, release, Streams.from_seed(4), link=link)


class SeenMessages:
    def __init__(self):
        self.batches = []

    def on_message(self, party, message):
        if party == "server":
            self.batches.append(message)


def permits(epsilon, total=float("inf"), reports=10):
    return Choice(epsilon=epsilon, max_reports=reports, total_epsilon=total)


def test_each_reports_in_the_largest_tier_its_owner_accepts():
    choices = [permits(0.5), permits(1.5), permits(2.0), permits(9.0), permits(2.0, reports=9)]
    made = federation(choices, USERS % 5)
    assert made.devices.tiers().tolist() == [-1, 0, 1, 1, -1] * 8
    heard = SeenMessages()
    made.run(message_observers=[heard])
    assert all(isinstance(b, Batch) for b in heard.batches)
    sizes = {(b.tier, b.devices, len(b.reports)) for b in heard.batches}
    assert sizes == {(0, 8, 80), (1, 16, 160)}
    assert made.schedule.devices == 24
    assert made.devices.cohort.spent.tolist() == [0.0, 50.0, 100.0, 100.0, 0.0] * 8


def test_who_has_spent_the_limit_sends_no_more_and_the_others_go_on():
    made = federation([permits(2.0, total=60.0), permits(2.0)], USERS % 2)
    heard = SeenMessages()
    made.run(message_observers=[heard])
    assert [b.devices for b in heard.batches] == [40, 40, 40, 20, 20]
    assert made.devices.cohort.spent.tolist() == [60.0, 100.0] * 20
    with pytest.raises(ConsentError, match="beyond what its owner permits"):
        made.devices.report_bits(made.server.publish(), np.array([0]))


def test_a_federation_whose_budgets_are_spent_stands_still():
    made = federation([permits(1.0, total=30.0)], USERS * 0)
    with pytest.raises(Stalled, match="round 3"):
        made.run()
    assert made.server.round == 3
    assert made.devices.cohort.spent.tolist() == [30.0] * 40


def test_a_tier_that_falls_below_its_minimum_is_held_back():
    few = [permits(1.0, total=20.0), permits(1.0), permits(2.0)]
    which = np.where(USERS < 6, 0, np.where(USERS < 10, 1, 2))
    made, heard = federation(few, which), SeenMessages()
    made.run(message_observers=[heard])
    assert [(b.round, b.tier) for b in heard.batches] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (3, 1), (4, 1)
    ]  # fmt: skip
    assert made.proxy.held[0] == 3 * 4


def test_what_can_never_work_is_refused_at_once():
    with pytest.raises(ConfigError, match="nobody permits a report"):
        federation([permits(0.5)], USERS * 0)
    with pytest.raises(ConfigError, match="nobody permits a report"):
        federation([permits(1.0, total=9.9)], USERS * 0)
    with pytest.raises(ConfigError, match="4 devices report at ε = 1"):
        federation([permits(1.0), permits(2.0)], USERS >= 4)
    with pytest.raises(ConsentError, match="share_positives"):
        federation([Choice(share_positives=0.5, epsilon=2.0, max_reports=10)], USERS * 0)


def test_a_tier_without_devices_to_spare_is_refused_in_a_chain_alone():
    """Its first shuffler would wait for a ninth device until every round is over."""
    enough, chain = [permits(1.0), permits(2.0)], Proxied(chain=(Hop(),))
    federation(enough, USERS >= 8)
    federation(enough, USERS >= 9, link=chain)
    with pytest.raises(ConfigError, match=r"8 devices .* needs 8 and 1 to spare in a chain"):
        federation(enough, USERS >= 8, link=chain)


def test_interrupted_and_resumed_spends_no_more_and_no_less():
    """Model, memory and budgets come back as they were."""
    from sottovoce.core.ledger import Totals
    from sottovoce.runs.folder import RunCheckpoint

    whole = federation([permits(2.0, total=60.0), permits(2.0)], USERS % 2)
    kept = []

    def keep(moment: Moment) -> None:
        cohort = moment.cohort
        kept.append(
            RunCheckpoint(
                moment.round, moment.items.copy(), cohort.vectors.copy(), Totals(),
                moment.memory.copy(), cohort.spent.copy(),
            )
        )  # fmt: skip

    whole.run([AtRounds((2,), keep)])
    again = federation([permits(2.0, total=60.0), permits(2.0)], USERS % 2)
    again.restore(kept[0])
    again.run()
    assert np.array_equal(again.server.items, whole.server.items)
    assert np.array_equal(again.devices.cohort.spent, whole.devices.cohort.spent)


def test_a_transcript_holds_what_the_server_saw(tmp_path):
    made = federation([permits(2.0)], USERS * 0, rounds=2)
    made.run(message_observers=[Transcript(tmp_path, "this run")])
    heard = read_transcript(tmp_path, "this run")
    (batch,) = heard["server"][0]
    assert isinstance(batch, Batch)
    assert (batch.tier, batch.devices, batch.reports.shape) == (1, 40, (400,))
    (sealed,) = heard["proxy"][1]
    assert isinstance(sealed, BitReports)
    assert not sealed.reports.size
