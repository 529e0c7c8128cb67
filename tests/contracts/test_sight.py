"""Sight: what reaches each party is what the link's table says, field by field."""

from dataclasses import fields

import numpy as np
import pytest

from sottovoce.algorithms.fpl import FPL, FPLConfig
from sottovoce.consent import Choice, Consent
from sottovoce.parties.device import Devices
from sottovoce.parties.links import Direct
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.testing import random_world, small_run

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


def test_the_door_has_no_other_way_out():
    """A new public method on the door must be thought about here."""
    ways = {name for name in vars(Devices) if not name.startswith("_")}
    assert ways == {
        "report", "report_summed", "report_rounds",  # ways out, each with consent and ledger
        "vectors_at_home", "willing", "accelerate", "settle", "behind_door",  # at home
        "algorithm", "cohort", "ledger", "rng",  # what a simulation holds of its devices
    }  # fmt: skip
