"""Runs in memory, with what a server and a network saw of them, and what was so."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.pairs import drawn_positives
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import SEALED_SEED_BYTES, Direct
from sottovoce.data.sources import available, load
from sottovoce.data.splitting import keep_active, temporal_holdout
from sottovoce.engines.transcripts import Recorder, SeenMessages, network_of, seen_by
from sottovoce.parties import shuffler
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation


@dataclass
class Played:
    """A run that was listened to."""

    view: View
    """The server's."""
    heard: SeenMessages
    truth: Truth
    federation: Federation

    @property
    def network(self):
        """The view of whoever watches the wire."""
        masked = 8 * self.view.final.size + SEALED_SEED_BYTES
        return replace(self.view, party="network", rounds=network_of(self.heard, masked, 0))

    def run(self, attack):
        view = self.network if attack.party == "network" else self.view
        assert attack.applies(view) == ""
        return attack.run(view, self.truth)


@pytest.fixture(scope="session")
def play():
    """Runs a federation and keeps what was seen: `play(config, train, …)`."""
    return played


def played(config, train, *, share=0.0, release=None, link=None, seed=1, after=0):
    """Rounds before `after` are trained without anybody listening."""
    release, link = release or ShareFraction(), link or Direct()
    rng, everyone = Streams.from_seed(seed), np.arange(train.n_users)
    consent = Consent.uniform(everyone, Choice(share_positives=share))
    federation = Federation.build(config, train, consent, release, rng, link=link)
    plan, recorder = federation.schedule, Recorder()
    if after:
        federation.schedule = replace(plan, rounds=after)
        federation.run()
        federation.schedule = plan
    federation.run(message_observers=[recorder])
    heard, final = recorder.seen, federation.server.items
    view = View(
        "server", seen_by(heard, "server"), config, release, link, train.n_items, final,
        triples=plan.triples,
    )  # fmt: skip
    own = {}
    if isinstance(config, FPLConfig):
        told = heard.get("proxy") or heard["server"]
        senders = {n: np.unique(messages[0].sender) for n, messages in told.items()}
        own["drawn"] = drawn_positives(federation.server.algorithm, train, senders, rng)
    none = Interactions.from_pairs([], [], n_users=train.n_users, n_items=train.n_items)
    truth = Truth(
        train, none, consent.takes_part, consent.share_positives, {}, {}, federation.vectors(), own
    )
    return Played(view, heard, truth, federation)


@pytest.fixture(scope="session")
def real():
    """The training part of a data set that lies here, or the test is skipped."""
    return training_part


def training_part(name):
    if name not in available():
        pytest.skip(f"{name} is not under $SOTTOVOCE_DATA")
    data = load(name)
    if name == "foursquare-italy":
        data = keep_active(data, 20)
    return temporal_holdout(data.interactions, 0.2).train


@pytest.fixture(autouse=True)
def the_same_shuffles(monkeypatch):
    """A verdict by a 95 % interval is wrong once in forty draws: tests draw the same."""
    numbers = itertools.count()

    def seed():
        return hashlib.sha256(f"shuffle {next(numbers)}".encode()).digest()

    monkeypatch.setattr(shuffler, "new_seed", seed)
