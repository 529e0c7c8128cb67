"""What every algorithm promises."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings, CrossDevice
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import LINKS, Link
from sottovoce.core.messages import DeviceReports
from sottovoce.core.recommender import FactorScorer
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.base import RELEASES, Release
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import SecretStreams, Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing.worlds import (
    Messages,
    SmallRun,
    checkerboard,
    random_world,
    require,
    small_run,
)
from sottovoce.wire.terms import Terms


class CrossDeviceContract(ABC):
    """What every cross-device algorithm promises. Subclass it and say which algorithm; a registered
    one has `AlgorithmContract`, which asks more."""

    learns_in = 60
    """Rounds in which the checkerboard must be learnt."""

    share_positives = 0.4
    """What everyone chooses, but where learning is tested; there they share all."""

    streams: type[Streams] = Streams
    """What devices and server draw from; real ones draw from `SecretStreams`."""

    @abstractmethod
    def algorithm(self) -> CrossDevice: ...

    def release(self) -> Release:
        return ShareFraction()

    def test_learns_the_checkerboard(self) -> None:
        train = checkerboard()
        result = self._run(train, rounds=self.learns_in, choice=Choice(share_positives=1.0))
        everyone = np.arange(train.n_users, dtype=np.int64)
        scores = FactorScorer.of(result.vectors, result.items).scores(everyone)
        found = 0
        for user in range(train.n_users):
            scores[user, train.row(user)] = -np.inf
            found += int(scores[user].argmax()) % 2 == user % 2
        require(found >= 0.9 * train.n_users, f"{found} of {train.n_users} users served well")

    def test_a_cohort_of_one_equals_a_cohort_of_n(self) -> None:
        algorithm, train = self.algorithm(), random_world(23, 70, 200, seed=1)
        rng = self.streams.from_seed(3)
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(share_positives=self.share_positives))
        whole = Cohort(users, train, consent, algorithm.device_init(users, rng))
        apart = [whole.take(np.array([row])) for row in users]
        server = Server.start(algorithm, train.n_items, rng)
        together = SimulatedDevices.behind_door(algorithm, whole, self.release(), Ledger(), rng)
        for _ in range(3):
            view = server.publish()
            one_by_one = [
                Devices.behind_door(algorithm, phone, self.release(), Ledger(), rng).report(
                    view, np.array([0])
                )
                for phone in reversed(apart)
            ]
            summed = together.report_summed(view, users)
            alone = server.sum_reports(one_by_one)
            n = train.n_items
            require(np.array_equal(summed.dense(n), alone.dense(n)), "sums differ")
            server.fold(alone)
        vectors = np.concatenate([phone.vectors for phone in apart])
        require(np.array_equal(vectors, whole.vectors), "vectors differ")

    def test_messages_equal_sums(self) -> None:
        train = random_world(50, 130, 900, seed=2)
        plain = self._run(train, rounds=4)
        written = self._run(train, rounds=4, written=True)
        require(plain.equals(written), "messages and sums give different runs")

    def test_one_thread_equals_two(self) -> None:
        train = random_world(300, 90, 3000, seed=4)
        one = self._run(train, rounds=3, threads=1)
        two = self._run(train, rounds=3, threads=2)
        require(one.equals(two), "threads change the result")

    def test_fused_rounds_equal_single_rounds(self) -> None:
        train = random_world(30, 65, 400, seed=5)
        fused = self._run(train, rounds=200, cohort_size=1)
        single = self._run(train, rounds=200, cohort_size=1, fuse=False)
        written = self._run(train, rounds=200, cohort_size=1, written=True)
        require(fused.equals(single) and fused.equals(written), "fusing changes the result")

    def test_report_order_does_not_matter(self) -> None:
        algorithm, train = self.algorithm(), random_world(20, 40, 200, seed=6)
        run = self._run(train, rounds=1, written=True)
        reports = run.messages.seen[0]
        rng = np.random.default_rng(0)
        server = Server.start(algorithm, train.n_items, Streams.from_seed(0))
        parts = [
            DeviceReports(0, reports.sender[at], reports.item[at], reports.values[at])
            for at in (np.flatnonzero(reports.sender == s) for s in np.unique(reports.sender))
        ]
        sums = server.sum_reports(parts)
        for _ in range(3):
            shuffled = [parts[k] for k in rng.permutation(len(parts))]
            again = server.sum_reports(shuffled)
            same = np.array_equal(sums.item, again.item) and np.array_equal(sums.sums, again.sums)
            require(same, "order matters")

    def _run(self, train: Interactions, **options: Any) -> SmallRun:
        options.setdefault("choice", Choice(share_positives=self.share_positives))
        options.setdefault("streams", self.streams)
        return small_run(self.algorithm(), train, release=self.release(), **options)


class AlgorithmContract(CrossDeviceContract):
    """What every registered algorithm promises that sends item rows. Subclass it and say with which
    settings."""

    triples = 0
    """Draws of a device and round, where it draws pairs."""

    @abstractmethod
    def settings(self) -> AlgorithmSettings: ...

    def choice(self, release: Release, link: Link) -> Choice:
        """What everyone permits where this release is tried over this link."""
        return Choice(share_positives=1.0)

    def algorithm(self) -> CrossDevice:
        return self._built(self.release(), None)

    def release(self) -> Release:
        return RELEASES[self.settings().releases[0]]()

    def test_terms_name_it_and_bring_it_back(self) -> None:
        settings = self.settings().in_terms(self.triples)
        link = LINKS[settings.links[0]]()
        terms = Terms("contract", 40, settings, self.release(), link)
        back = Terms.from_table(json.loads(json.dumps(terms.to_table())))
        require(back == terms and back.digest() == terms.digest(), "terms do not come back")

    def test_it_goes_with_every_release_and_link_that_it_names(self) -> None:
        train, settings = random_world(40, 30, 300, seed=7), self.settings()
        for release_name, link_name in product(settings.releases, settings.links):
            release, link = RELEASES[release_name](), LINKS[link_name]()
            users = np.arange(train.n_users, dtype=np.int64)
            consent = Consent.uniform(users, self.choice(release, link))
            models = []
            for written in (False, True):
                rng = SecretStreams.from_seed(2)
                made = Federation.build(settings, train, consent, release, rng, link=link)
                made.schedule = replace(made.schedule, rounds=2)
                made.run(message_observers=[Messages()] if written else [])
                models.append(made.server.items)
            require(np.array_equal(models[0], models[1]), f"{link_name}: messages and sums differ")
            require(bool(np.isfinite(models[0]).all()), f"over {link_name} it diverges")
            require(not np.array_equal(models[0], _start(made)), f"over {link_name} nothing moves")

    def test_real_devices_draw_otherwise_and_learn_as_well(self) -> None:
        train = random_world(30, 40, 300, seed=8)
        fast = self._run(train, rounds=2, written=True)
        secret = self._run(train, rounds=2, written=True, streams=SecretStreams)
        again = self._run(train, rounds=2, written=True, streams=SecretStreams)
        require(secret.equals(again), "the same secret draws give another run")
        require(not secret.equals(fast), "it does not draw from the streams that it is given")

    def _built(self, release: Release, link: Link | None) -> CrossDevice:
        return cast(CrossDevice, self.settings().build_under(release, link, self.triples))


def _start(federation: Federation) -> NDArray[np.float32]:
    """The model before the first round."""
    algorithm, rng = federation.server.algorithm, federation.server.rng
    return algorithm.server_init(federation.devices.cohort.history.n_items, rng)
