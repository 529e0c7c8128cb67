"""Sight: what reaches each party is what the link's table says, field by field."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Vocabulary
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import Direct, Gateway, Hop, Proxied, hop_party
from sottovoce.core.messages import BitReports, SealedBatch, add_up
from sottovoce.engines.flower.node import answer_task
from sottovoce.engines.transcripts import Recorder, Transcript, read_transcript
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.testing import random_world, small_run
from sottovoce.wire.cohort_rounds import CohortAnswer, CohortTask
from sottovoce.wire.reports import decode_sum
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import encode_model

USERS = np.arange(24)
TRAIN = random_world(24, 60, 250, seed=4)
CHOICES = [Choice(share_positives=0.0), Choice(share_positives=0.5), Choice(takes_part=False)]


@pytest.fixture
def seen(monkeypatch):
    """Everything that crosses between the parties in a run, by the party it reaches."""
    arrived = {"server": [], "device": []}
    sum_reports, publish = Server.sum_reports, Server.publish

    def receive(self, batches):
        arrived["server"] += batches
        return sum_reports(self, batches)

    def send(self):
        view = publish(self)
        arrived["device"].append(view)
        return view

    monkeypatch.setattr(Server, "sum_reports", receive)
    monkeypatch.setattr(Server, "publish", send)
    consent = Consent.of(USERS, CHOICES, USERS % 3)
    algorithm = FPL(FPLConfig(embedding_size=5), 6)
    small_run(
        algorithm, TRAIN, rounds=5, consent=consent, release=ShareFraction("item"), written=True
    )
    return arrived


def test_each_party_sees_what_the_table_says_and_no_more(seen):
    for party, messages in seen.items():
        assert len(messages) == 5
        for message in messages:
            allowed = Direct.sees[party][type(message).__name__]
            assert {field.name for field in fields(message)} == allowed


def test_what_the_server_sees_is_rows_of_willing_senders(seen):
    for reports in seen["server"]:
        assert set(np.unique(reports.sender) % 3) == {0, 1}
        assert reports.item.dtype == np.int32
        assert reports.values.dtype == np.int64
        assert reports.values.shape == (len(reports.item), 6)
        for sender in np.unique(reports.sender[reports.sender % 3 == 0]):
            sent = set(reports.item[reports.sender == sender].tolist())
            assert not sent & set(TRAIN.row(int(sender)).tolist())


def test_a_gateway_tells_the_sum_over_its_cohort_and_no_more(tmp_path):
    terms = Terms.of("sight", TRAIN.n_items, FPLConfig(embedding_size=5), 6, ShareFraction("item"))
    consent = Consent.of(USERS, CHOICES, USERS % 3)
    names = [f"item {n}" for n in range(TRAIN.n_items)]
    view = Server.start(terms.build(), TRAIN.n_items, Streams(1)).publish()
    with CohortStore.create(
        tmp_path / "store", [(n, str(n)) for n in range(24)], root_key=1
    ) as store:
        store.set_catalogue([(name, name) for name in names])
        store.add_histories(replace(TRAIN, item_ids=Vocabulary(names)))
        store.set_choices(consent)
        DeviceSession(store).agree(terms)
        task = CohortTask(terms, 0, 0, None, encode_model(view), numbers=USERS)
        answer = CohortAnswer.from_content(answer_task(DeviceSession(store), task).to_content())
    assert not answer.problem
    assert {field.name for field in fields(answer)} == Gateway.sees["server"]["CohortAnswer"]
    told = decode_sum(answer.sum, n_items=TRAIN.n_items, width=6, round=0)
    assert {field.name for field in fields(told)} == Gateway.sees["server"]["SummedReports"]
    cohort = Cohort(USERS, TRAIN, consent, terms.build().device_init(USERS, Streams(1)))
    devices = Devices.behind_door(terms.build(), cohort, terms.release, Ledger(), Streams(1))
    one_by_one = devices.report(view, devices.willing())
    expected = add_up(0, [one_by_one], 6)
    assert np.array_equal(told.dense(TRAIN.n_items), expected.dense(TRAIN.n_items))
    assert told.devices == 16
    sent = Counter(one_by_one.item.tolist())
    shared = [n for n, count in sent.items() if count > 1]
    assert len(shared) > 10  # of these no device's own row can be told


def test_the_door_has_no_other_way_out():
    """A new public method on the door must be thought about here."""
    ways = {name for name in vars(Devices) if not name.startswith("_")}
    assert ways == {
        # ways out, each with consent and ledger
        "report", "report_in_parts", "report_sum", "report_masked", "report_bits", "report_shared",
        # at home
        "vectors_at_home", "willing", "tiers", "behind_door", "change_consent",
        "reports_bits", "contributes", "spends", "at_once",
        "contents",  # of one device's report, for its user
        "able", "sendable",  # who can learn, and from what
        "has_sent",  # why nothing leaves in this period, said to the device's own user
        "algorithm", "cohort", "ledger", "rng",  # what a simulation holds of its devices
    }  # fmt: skip


def test_behind_a_proxy_the_server_sees_reports_in_no_order_and_of_no_one():
    consent = Consent.of(
        USERS, [Choice(takes_part=False), Choice(epsilon=2.0, max_reports=20)], USERS % 2
    )
    release = KReports(20, (Tier(2.0, 5),))
    made = Federation.build(
        FMFConfig(embedding_size=4, rounds=1), TRAIN, consent, release, Streams(1)
    )
    view = made.server.publish()
    sent = made.devices.report_bits(view, made.devices.willing())
    (batch,) = made.proxy.collect(sent)
    assert {field.name for field in fields(batch)} == Proxied.sees["server"]["Batch"]
    assert Proxied.sees["proxy"]["BitReports"] < {field.name for field in fields(sent)}
    assert "reports" not in Proxied.sees["proxy"]["BitReports"]  # they are sealed there
    assert sorted(batch.reports.tolist()) == sorted(sent.reports.ravel().tolist())
    assert batch.reports.tolist() != sent.reports.ravel().tolist()
    assert set((sent.sender % 2).tolist()) == {1}


@pytest.mark.parametrize("shufflers", [2, 3])
def test_in_a_chain_each_shuffler_sees_what_the_table_says_and_no_more(tmp_path, shufflers):
    """Those behind the first one see how many records a batch has; so it is kept of a run."""
    consent = Consent.uniform(USERS, Choice(epsilon=2.0, max_reports=20))
    link, release = Proxied(chain=(Hop(),) * (shufflers - 1)), KReports(20, (Tier(2.0, 5),))
    made = Federation.build(
        FMFConfig(embedding_size=4, rounds=2), TRAIN, consent, release, Streams(1), link=link
    )
    heard, written = Recorder(), Transcript(tmp_path / "transcript")
    made.run(message_observers=[heard, written])
    behind = [hop_party(hop) for hop in range(1, shufflers)]
    assert set(heard.seen) == {"device", "server", "proxy", *behind}
    for party, rounds in heard.seen.items():
        table = link.sees[party.partition("-")[0]]
        for message in (m for messages in rounds.values() for m in messages):
            shown = {field.name for field in fields(message)}
            if isinstance(message, BitReports):
                assert message.reports.size == 0  # they are sealed
                shown.remove("reports")
            assert shown == table[type(message).__name__]
    for party in behind:
        for round, (batch,) in heard.seen[party].items():
            assert batch == SealedBatch(round, 0, 24, 24 * 20)
    kept = read_transcript(tmp_path / "transcript", "")
    assert [kept[party] for party in behind] == [heard.seen[party] for party in behind]
