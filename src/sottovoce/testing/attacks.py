"""What every attack promises."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.attacks import views
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import Direct
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.engines.transcripts import Recorder, network_of, seen_by
from sottovoce.errors import DoesNotApply
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.testing.worlds import (
    random_world,
    require,
)


def small_threat_view(party: views.Party) -> tuple[views.View, views.Truth]:
    """What a party saw of a few rounds of FPL that were sent openly, and what was so."""
    train, rng = random_world(40, 60, 400, seed=7), Streams.from_seed(7)
    settings, triples, rounds = FPLConfig(embedding_size=4), 5, 4
    algorithm, users = FPL(settings, triples), np.arange(train.n_users, dtype=np.int64)
    consent = Consent.uniform(users, Choice(share_positives=0.5))
    cohort = Cohort(users, train, consent, algorithm.device_init(users, rng))
    release, recorder = ShareFraction(), Recorder()
    devices = SimulatedDevices.behind_door(algorithm, cohort, release, Ledger(), rng)
    server = Server.start(algorithm, train.n_items, rng)
    Simulation(server, devices, len(users), rounds, message_observers=[recorder]).run()
    kept = recorder.seen
    saw = {
        "server": seen_by(kept, "server"),
        "network": network_of(kept, 0, 0),
        "anyone": tuple(seen._replace(messages=()) for seen in seen_by(kept, "device")),
    }
    require(party in saw, f"this world has no {party}; give the contract a threat of your own")
    view = views.View(
        party, saw[party], settings, release, Direct(), train.n_items, server.items, triples=triples
    )
    none = Interactions.from_pairs([], [], n_users=train.n_users, n_items=train.n_items)
    return view, views.Truth(
        train, none, consent.takes_part, consent.share_positives, {}, {}, cohort.vectors
    )


class AttackContract(ABC):
    """What every attack promises. Subclass it and say which attack; where it is not against FPL,
    also on what it is tried."""

    @abstractmethod
    def attack(self) -> views.Attack: ...

    def threat(self) -> tuple[views.View, views.Truth]:
        """What its party saw of a run to which it applies, and what was so."""
        return small_threat_view(self.attack().party)

    def test_it_applies_where_it_should_and_says_why_elsewhere(self) -> None:
        attack, (view, _) = self.attack(), self.threat()
        require(not attack.applies(view), f"it does not apply: {attack.applies(view)}")
        other: views.Party = "proxy" if view.party != "proxy" else "server"
        require(bool(attack.applies(replace(view, party=other))), "it takes others' views")
        if attack.against:
            require(bool(attack.applies(replace(view, algorithm=None))), "it takes any system")

    def test_a_guess_gets_the_view_alone(self) -> None:
        attack, (view, truth) = self.attack(), self.threat()
        given: list[tuple[Any, ...]] = []

        def guess(*arguments: Any) -> Any:
            given.append(arguments)
            return attack.guess(*arguments)

        replace(attack, guess=guess).run(view, truth)
        require(len(given) == 1 and len(given[0]) == 1, "a guess is made once, of one view")
        require(given[0][0] is view, "a guess is made of something else than the view")

    def test_the_same_view_gives_the_same_result(self) -> None:
        attack, (view, truth) = self.attack(), self.threat()
        one, other = attack.run(view, truth), attack.run(view, truth)
        require(one.content() == other.content(), "two guesses from one view differ")

    def test_numbers_are_finite_and_in_order(self) -> None:
        result = self.attack().run(*self.threat())
        low, high = result.interval
        require(
            all(map(math.isfinite, (result.value, low, high, result.base_rate))),
            "the value, its interval or the base rate is no number",
        )
        require(low <= high and result.claims >= 0, "the interval or the claims are upside down")
        if result.claims:
            require(low - 1e-9 <= result.value <= high + 1e-9, "the value is not in its interval")

    def test_where_nothing_was_seen_there_is_nothing_to_attack(self) -> None:
        attack, (view, truth) = self.attack(), self.threat()
        blank = np.zeros_like(view.final)
        empty = replace(view, rounds=(), own={}, told=(), final=blank)
        try:
            if attack.applies(empty):
                return
            verdict = attack.run(empty, truth).verdict
        except DoesNotApply:
            return
        # The model is published to all; who has that alone may guess, and must not be right.
        require(
            verdict == "nothing to attack" or (view.party == "anyone" and verdict != "broken"),
            f"of nothing it says: {verdict}",
        )

    def test_a_result_is_json_with_every_field(self) -> None:
        attack = self.attack()
        content = attack.run(*self.threat()).content()
        json.dumps(content, allow_nan=False)
        wanted = {field.name for field in fields(views.Result)}
        wanted |= {"verdict", "far_above", "needed"}
        require(set(content) == wanted, f"a result has the fields {sorted(wanted)}")
        require(
            (content["code"], content["party"]) == (attack.code, attack.party),
            "the result is of another code or party than the attack",
        )
