"""Contract suites and tiny worlds. A new algorithm's test begins as a three-line subclass:

class TestFPL(CrossDeviceContract):
    def algorithm(self) -> CrossDevice: ...
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings, Cohort, CrossDevice
from sottovoce.algorithms.fpl import FPL, FPLConfig
from sottovoce.attacks import views
from sottovoce.baselines.base import BASELINES, Baseline
from sottovoce.consent import Choice, Consent
from sottovoce.data.importers import IMPORTERS, Archive, Importer, detect, import_path
from sottovoce.data.interactions import Interactions
from sottovoce.engines.simulated import SimulatedDevices
from sottovoce.engines.simulation import Simulation
from sottovoce.engines.transcripts import Recorder, network_of, seen_by
from sottovoce.errors import ConsentError, DoesNotApply, SottovoceError
from sottovoce.evaluation.base import METRICS, Metric, Ranked, UserMetric, every_metric
from sottovoce.evaluation.metrics import hits
from sottovoce.evaluation.protocol import Protocol, evaluate_lists
from sottovoce.federation import Federation
from sottovoce.ledger import Ledger, Totals
from sottovoce.links import LINKS, Direct, Link
from sottovoce.messages import DeviceReports, ModelView
from sottovoce.parties.defence import Defence
from sottovoce.parties.device import Devices
from sottovoce.parties.server import NO_DEFENCE, Server
from sottovoce.privacy.base import RELEASES, Release
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.recommender import FactorScorer, Scorer
from sottovoce.rng import SecretStreams, Streams
from sottovoce.terms import Terms, named


class ContractBroken(SottovoceError):
    """A contract does not hold."""


def checkerboard(n_users: int = 40, n_items: int = 30, hole: int = 1) -> Interactions:
    """Even users like even items, odd users odd items; each lacks `hole` items of her colour, which
    are what a recommender should find."""
    users, items = [], []
    for user in range(n_users):
        colour = np.arange(user % 2, n_items, 2)
        missing = {(user // 2 + k) % len(colour) for k in range(hole)}
        kept = [int(c) for k, c in enumerate(colour) if k not in missing]
        users += [user] * len(kept)
        items += kept
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items)


def random_world(n_users: int, n_items: int, events: int, seed: int) -> Interactions:
    """Events drawn uniformly; every user has at least one item and lacks at least one."""
    rng = np.random.default_rng(seed)
    users = np.concatenate([np.arange(n_users), rng.integers(0, n_users, events)])
    items = np.concatenate(
        [rng.integers(0, n_items - 1, n_users), rng.integers(0, n_items - 1, events)]
    )
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items)


class Messages:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[DeviceReports] = []

    def hear(self, party: str, message: object) -> None:
        if isinstance(message, DeviceReports):
            self.heard.append(message)


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    items: NDArray[np.float32]
    vectors: NDArray[np.float32]
    totals: Totals
    messages: Messages

    def equals(self, other: Result) -> bool:
        """The same model, vectors and ledger totals, bit for bit."""
        return (
            np.array_equal(self.items, other.items)
            and np.array_equal(self.vectors, other.vectors)
            and self.totals == other.totals
        )


def small_run(
    algorithm: CrossDevice,
    train: Interactions,
    *,
    rounds: int,
    cohort_size: int | None = None,
    choice: Choice | None = None,
    consent: Consent | None = None,
    release: Release | None = None,
    seed: int = 0,
    threads: int = 1,
    fuse: bool = True,
    written: bool = False,
    defence: Defence = NO_DEFENCE,
    streams: type[Streams] = Streams,
) -> Result:
    """A few rounds in simulation; `written` sends every report as a message."""
    rng = streams.from_seed(seed)
    users = np.arange(train.n_users, dtype=np.int64)
    records = consent or Consent.uniform(users, choice or Choice(share_positives=0.5))
    cohort = Cohort(users, train, records, algorithm.device_init(users, rng))
    ledger, messages = Ledger(), Messages()
    devices = SimulatedDevices.behind_door(
        algorithm, cohort, release or ShareFraction(), ledger, rng
    )
    server = Server.start(algorithm, train.n_items, rng)
    server.guard = defence.guard()
    Simulation(
        server,
        devices,
        cohort_size or len(devices.willing()),
        rounds,
        listeners=[messages] if written else [],
        threads=threads,
        fuse=fuse,
    ).run()
    return Result(server.items, cohort.vectors, ledger.totals, messages)


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
        _require(found >= 0.9 * train.n_users, f"{found} of {train.n_users} users served well")

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
            _require(np.array_equal(summed.dense(n), alone.dense(n)), "sums differ")
            server.fold(alone)
        vectors = np.concatenate([phone.vectors for phone in apart])
        _require(np.array_equal(vectors, whole.vectors), "vectors differ")

    def test_messages_equal_sums(self) -> None:
        train = random_world(50, 130, 900, seed=2)
        plain = self._run(train, rounds=4)
        written = self._run(train, rounds=4, written=True)
        _require(plain.equals(written), "messages and sums give different runs")

    def test_one_thread_equals_two(self) -> None:
        train = random_world(300, 90, 3000, seed=4)
        one = self._run(train, rounds=3, threads=1)
        two = self._run(train, rounds=3, threads=2)
        _require(one.equals(two), "threads change the result")

    def test_fused_rounds_equal_single_rounds(self) -> None:
        train = random_world(30, 65, 400, seed=5)
        fused = self._run(train, rounds=200, cohort_size=1)
        single = self._run(train, rounds=200, cohort_size=1, fuse=False)
        written = self._run(train, rounds=200, cohort_size=1, written=True)
        _require(fused.equals(single) and fused.equals(written), "fusing changes the result")

    def test_report_order_does_not_matter(self) -> None:
        algorithm, train = self.algorithm(), random_world(20, 40, 200, seed=6)
        run = self._run(train, rounds=1, written=True)
        reports = run.messages.heard[0]
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
            _require(same, "order matters")

    def _run(self, train: Interactions, **options: Any) -> Result:
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
        _require(back == terms and back.digest() == terms.digest(), "terms do not come back")

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
                made.run(listeners=[Messages()] if written else [])
                models.append(made.server.items)
            _require(np.array_equal(models[0], models[1]), f"{link_name}: messages and sums differ")
            _require(bool(np.isfinite(models[0]).all()), f"over {link_name} it diverges")
            _require(not np.array_equal(models[0], _start(made)), f"over {link_name} nothing moves")

    def test_real_devices_draw_otherwise_and_learn_as_well(self) -> None:
        train = random_world(30, 40, 300, seed=8)
        fast = self._run(train, rounds=2, written=True)
        secret = self._run(train, rounds=2, written=True, streams=SecretStreams)
        again = self._run(train, rounds=2, written=True, streams=SecretStreams)
        _require(secret.equals(again), "the same secret draws give another run")
        _require(not secret.equals(fast), "it does not draw from the streams that it is given")

    def _built(self, release: Release, link: Link | None) -> CrossDevice:
        return cast(CrossDevice, self.settings().build_under(release, link, self.triples))


class ReleaseContract(ABC):
    """What every release of item rows promises. Subclass it and say which, and what a user must
    permit for it."""

    @abstractmethod
    def release(self) -> Release: ...

    def choice(self) -> Choice:
        return Choice(share_positives=0.4)

    def test_it_has_a_price_for_everybody(self) -> None:
        bound = self._devices(self.choice())._release
        prices = bound.epsilons
        _require(prices.shape == bound.users.shape, "there must be one price per device")
        _require(bool(np.all(prices >= 0)) and not np.isnan(prices).any(), "a price is below 0")
        _require(bool(bound.kind), "the ledger needs a name for it")

    def test_nobody_spends_beyond_her_limit(self) -> None:
        bound = self._devices(self.choice())._release
        prices = bound.epsilons
        if not bound.spends or np.isinf(prices).any():
            return
        limited = self._devices(replace(self.choice(), total_epsilon=float(prices.max())))
        view = limited.algorithm.server_init(_WORLD.n_items, _RNG)
        rows = limited.willing()
        limited.report(ModelView(0, view), rows)
        _require(not len(limited.willing()), "it goes on although the limit is reached")
        _require(
            np.allclose(limited.cohort.spent[rows], prices[rows]), "it books another price than its"
        )

    def test_who_shares_no_positive_sends_none_in_the_open(self) -> None:
        try:
            devices = self._devices(replace(self.choice(), share_positives=0.0))
        except ConsentError:
            return  # refused is as good
        view = ModelView(0, devices.algorithm.server_init(_WORLD.n_items, _RNG))
        reports = devices.report(view, devices.willing())
        if devices._release.dense:
            return
        hers = _WORLD.find(reports.sender, reports.item.astype(np.int64)) >= 0
        _require(not hers.any(), "a row of a positive item left at share_positives = 0")

    def test_a_device_sends_alone_what_it_sends_in_company(self) -> None:
        together = self._devices(self.choice())
        view = ModelView(0, together.algorithm.server_init(_WORLD.n_items, _RNG))
        rows = together.willing()
        all_of_them = together.report(view, rows)
        for row in rows[:5].tolist():
            alone = self._devices(self.choice()).report(view, np.array([row]))
            mine = all_of_them.sender == row
            same = np.array_equal(alone.item, all_of_them.item[mine])
            same &= np.array_equal(alone.values, all_of_them.values[mine])
            _require(same, "what a device sends depends on its company")

    def _devices(self, choice: Choice) -> Devices:
        users = np.arange(_WORLD.n_users, dtype=np.int64)
        algorithm = FPL(FPLConfig(embedding_size=3), triples=5)
        vectors = algorithm.device_init(users, _RNG)
        cohort = Cohort(users, _WORLD, Consent.uniform(users, choice), vectors)
        return Devices.behind_door(algorithm, cohort, self.release(), Ledger(), _RNG)


class LinkContract(ABC):
    """What every link promises. Subclass it and say which."""

    @abstractmethod
    def link(self) -> Link: ...

    def test_it_says_who_sees_what(self) -> None:
        sees = self.link().sees
        fields = [f for messages in sees.values() for names in messages.values() for f in names]
        _require("server" in sees and bool(fields), "a link says what each party sees")

    def test_a_file_that_names_it_brings_it_back(self) -> None:
        link = self.link()
        back = named({"name": link.name, **link.table()}, LINKS, "", "link")
        _require(back == link, "its settings do not come back")

    def test_bytes_of_a_message_never_fall_with_its_rows(self) -> None:
        rows = np.arange(0, 50, dtype=np.int64)
        told = self.link().message_bytes(rows, 40, 10_000)
        _require(told.shape == rows.shape and bool(np.all(np.diff(told) >= 0)), "bytes fall")


_WORLD, _RNG = random_world(30, 40, 200, seed=9), Streams.from_seed(4)


def _start(federation: Federation) -> NDArray[np.float32]:
    """The model before the first round."""
    algorithm, rng = federation.server.algorithm, federation.server.rng
    return algorithm.server_init(federation.devices.cohort.history.n_items, rng)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractBroken(what)


# --- attacks -------------------------------------------------------------------------------------


def small_scene(party: views.Party) -> tuple[views.View, views.Truth]:
    """What a party saw of a few rounds of FPL that were sent openly, and what was so."""
    train, rng = random_world(40, 60, 400, seed=7), Streams.from_seed(7)
    settings, triples, rounds = FPLConfig(embedding_size=4), 5, 4
    algorithm, users = FPL(settings, triples), np.arange(train.n_users, dtype=np.int64)
    consent = Consent.uniform(users, Choice(share_positives=0.5))
    cohort = Cohort(users, train, consent, algorithm.device_init(users, rng))
    release, recorder = ShareFraction(), Recorder()
    devices = SimulatedDevices.behind_door(algorithm, cohort, release, Ledger(), rng)
    server = Server.start(algorithm, train.n_items, rng)
    Simulation(server, devices, len(users), rounds, listeners=[recorder]).run()
    heard = recorder.heard
    saw = {
        "server": seen_by(heard, "server"),
        "network": network_of(heard, 0, 0),
        "anyone": tuple(seen._replace(messages=()) for seen in seen_by(heard, "device")),
    }
    _require(party in saw, f"this world has no {party}; give the contract a scene of your own")
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

    def scene(self) -> tuple[views.View, views.Truth]:
        """What its party saw of a run to which it applies, and what was so."""
        return small_scene(self.attack().party)

    def test_it_applies_where_it_should_and_says_why_elsewhere(self) -> None:
        attack, (view, _) = self.attack(), self.scene()
        _require(not attack.applies(view), f"it does not apply: {attack.applies(view)}")
        other: views.Party = "proxy" if view.party != "proxy" else "server"
        _require(bool(attack.applies(replace(view, party=other))), "it takes others' views")
        if attack.against:
            _require(bool(attack.applies(replace(view, algorithm=None))), "it takes any system")

    def test_a_guess_gets_the_view_alone(self) -> None:
        attack, (view, truth) = self.attack(), self.scene()
        given: list[tuple[Any, ...]] = []

        def guess(*arguments: Any) -> Any:
            given.append(arguments)
            return attack.guess(*arguments)

        replace(attack, guess=guess).run(view, truth)
        _require(len(given) == 1 and len(given[0]) == 1, "a guess is made once, of one view")
        _require(given[0][0] is view, "a guess is made of something else than the view")

    def test_the_same_view_gives_the_same_result(self) -> None:
        attack, (view, truth) = self.attack(), self.scene()
        one, other = attack.run(view, truth), attack.run(view, truth)
        _require(one.content() == other.content(), "two guesses from one view differ")

    def test_numbers_are_finite_and_in_order(self) -> None:
        result = self.attack().run(*self.scene())
        low, high = result.interval
        _require(
            all(map(math.isfinite, (result.value, low, high, result.base_rate))),
            "the value, its interval or the base rate is no number",
        )
        _require(low <= high and result.claims >= 0, "the interval or the claims are upside down")
        if result.claims:
            _require(low - 1e-9 <= result.value <= high + 1e-9, "the value is not in its interval")

    def test_where_nothing_was_seen_there_is_nothing_to_attack(self) -> None:
        attack, (view, truth) = self.attack(), self.scene()
        blank = np.zeros_like(view.final)
        empty = replace(view, rounds=(), own={}, told=(), final=blank)
        try:
            if attack.applies(empty):
                return
            verdict = attack.run(empty, truth).verdict
        except DoesNotApply:
            return
        # The model is published to all; who has that alone may guess, and must not be right.
        fine = ("nothing to attack", "holds") if view.party == "anyone" else ("nothing to attack",)
        _require(verdict in fine, f"of nothing it says: {verdict}")

    def test_a_result_is_json_with_every_field(self) -> None:
        attack = self.attack()
        content = attack.run(*self.scene()).content()
        json.dumps(content, allow_nan=False)
        wanted = {field.name for field in fields(views.Result)} | {"verdict"}
        _require(set(content) == wanted, f"a result has the fields {sorted(wanted)}")
        _require(
            (content["code"], content["party"]) == (attack.code, attack.party),
            "the result is of another code or party than the attack",
        )


# Contracts of baselines, metrics and importers


class BaselineContract(ABC):
    """What every baseline promises. Subclass it and say which one, with settings that are quick."""

    @abstractmethod
    def baseline(self) -> Baseline: ...

    def train(self) -> Interactions:
        """40 users with 25 items, times and ratings; user 0 has none, item 24 nobody."""
        table = random_world(40, 25, 200, seed=8)
        kept = table.select(table.users > 0)
        rng = np.random.default_rng(8)
        return Interactions.from_pairs(
            kept.users,
            kept.items,
            n_users=40,
            n_items=25,
            timestamps=rng.integers(0, 1000, kept.n_interactions),
            ratings=rng.integers(1, 6, kept.n_interactions).astype(np.float32),
        )

    def test_is_registered(self) -> None:
        BASELINES.require(self.baseline())

    def test_scores_every_item_for_every_user(self) -> None:
        train = self.train()
        scorer, scores = self._fit(train)
        _require(scorer.n_items == train.n_items, "the scorer ranks another number of items")
        _require(scores.shape == (train.n_users, train.n_items), "scores have another shape")
        _require(scores.dtype == np.float32, f"scores are {scores.dtype}, not float32")
        _require(bool(np.isfinite(scores).all()), "scores are not finite")
        nobody = scorer.scores(np.zeros(0, dtype=np.int64))
        _require(nobody.shape == (0, train.n_items), "no users give scores of another shape")

    def test_the_same_stream_gives_the_same_scores(self) -> None:
        train = self.train()
        _require(np.array_equal(self._fit(train)[1], self._fit(train)[1]), "scores differ")

    def test_a_row_does_not_depend_on_the_batch(self) -> None:
        scorer, scores = self._fit(self.train())
        mixed = np.array([39, 7, 0, 7, 12])
        # The last bits of a matrix product may depend on its shape.
        close = np.allclose(scorer.scores(mixed), scores[mixed], rtol=1e-5, atol=1e-5)
        _require(close, "a user's scores depend on who else is asked for")

    def test_masking_an_answer_does_not_spoil_the_next(self) -> None:
        scorer, before = self._fit(self.train())
        everyone = np.arange(len(before))
        scorer.scores(everyone)[:] = -np.inf
        _require(np.array_equal(scorer.scores(everyone), before), "answers share their memory")

    def test_leaves_the_training_data_alone(self) -> None:
        train, same = self.train(), self.train()
        self._fit(train)
        for name in ("indptr", "items", "ratings", "timestamps"):
            kept = np.array_equal(getattr(train, name), getattr(same, name))
            _require(kept, f"fitting changes {name} of the training data")

    def test_progress_rises_to_the_end(self) -> None:
        seen: list[tuple[int, int]] = []
        rng = Streams.from_seed(11)
        self.baseline().fit(self.train(), rng, lambda done, total: seen.append((done, total)))
        done = [step for step, _ in seen]
        _require(done == sorted(set(done)), "progress does not rise")
        _require(not seen or seen[-1][0] == seen[-1][1], "progress ends before its end")

    def test_settings_cannot_change(self) -> None:
        baseline = self.baseline()
        for name in getattr(baseline, "__dataclass_fields__", ()):
            try:
                setattr(baseline, name, getattr(baseline, name))
            except (AttributeError, TypeError):
                continue
            raise ContractBroken(f"{name} can be changed; use @dataclass(frozen=True)")

    def _fit(self, train: Interactions) -> tuple[Scorer, NDArray[np.float32]]:
        scorer = self.baseline().fit(train, Streams.from_seed(11))
        return scorer, scorer.scores(np.arange(train.n_users, dtype=np.int64)).copy()


class MetricContract(ABC):
    """What every metric promises. Subclass it and say which one."""

    @abstractmethod
    def metric(self) -> Metric: ...

    def test_is_registered(self) -> None:
        METRICS.require(self.metric())

    def test_results_can_tell_it_from_others(self) -> None:
        every_metric()

    def test_one_value_per_user_within_bounds(self) -> None:
        ranked = self._ranked()
        values = self._values(ranked)
        if values is None:
            return
        low, high = self._bounds()
        _require(bool((values >= low - 1e-9).all()), f"values lie below {low:g}")
        _require(bool((values <= high + 1e-9).all()), f"values lie above {high:g}")

    def test_a_value_does_not_depend_on_other_users(self) -> None:
        ranked = self._ranked()
        values = self._values(ranked)
        if values is None:
            return
        for row in (0, len(values) // 2, len(values) - 1):
            alone = self._values(_rows(ranked, np.array([row])))
            same = alone is not None and np.array_equal(alone, values[[row]])
            _require(same, "a user's value depends on others")

    def test_a_perfect_list_is_no_worse_than_an_empty_one(self) -> None:
        ranked = self._ranked()
        perfect = self._values(_relisted(ranked, _perfect(ranked)))
        empty = self._values(_relisted(ranked, np.full_like(ranked.lists, -1)))
        if perfect is None or empty is None or self.metric().best is None:
            return
        gap = perfect - empty if self.metric().best == "max" else empty - perfect
        _require(bool((gap >= -1e-9).all()), "an empty list is better than a perfect one")

    def test_gains_are_numbers_within_bounds(self) -> None:
        metric, rank = self.metric(), np.arange(1, 101)
        gain = metric.gain(rank) if isinstance(metric, UserMetric) else None
        if gain is None or not isinstance(metric, UserMetric):
            return
        low, high = self._bounds()
        gain = metric.checked(gain, len(rank))
        inside = bool(((gain >= low) & (gain <= high)).all())
        _require(inside, "the gain of a test item lies out of bounds")

    def test_leaves_what_it_measures_alone(self) -> None:
        ranked, same = self._ranked(), self._ranked()
        self._values(ranked)
        self.metric().figure({}, ranked.lists, ranked.test.n_items)
        for name in ("lists", "hit", "relevant"):
            kept = np.array_equal(getattr(ranked, name), getattr(same, name))
            _require(kept, f"measuring changes {name}")

    def test_a_summary_has_it(self) -> None:
        ranked = self._ranked()
        whole = evaluate_lists(ranked.lists, ranked.train, ranked.test, Protocol(5)).summary()
        _require(f"{self.metric().key()}@5" in whole, "the summary of full lists lacks it")

    def _values(self, ranked: Ranked) -> NDArray[np.float64] | None:
        """None where it has no values per user."""
        metric = self.metric()
        if not isinstance(metric, UserMetric):
            return None
        return metric.checked(metric.per_user(ranked), len(ranked.users))

    def _bounds(self) -> tuple[float, float]:
        metric = self.metric()
        return metric.within if isinstance(metric, UserMetric) else (-np.inf, np.inf)

    def _ranked(self) -> Ranked:
        """Lists of five for thirty users; some are short, some have no hit."""
        train, test = random_world(30, 20, 100, seed=3), random_world(30, 20, 60, seed=4)
        lists = np.random.default_rng(5).permuted(
            np.tile(np.arange(20, dtype=np.int32), (30, 1)), axis=1
        )[:, :5]
        lists[::7, 3:] = -1
        lists[11] = -1
        users = np.arange(30, dtype=np.int64)
        return Ranked(users, lists, hits(lists, users, test), test.counts, train, test)


class ImporterContract(ABC):
    """What every importer promises. Subclass it, say which one, and write a small download."""

    @abstractmethod
    def importer(self) -> Importer: ...

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Make this folder, with files in it that this importer should know."""

    def test_is_registered(self) -> None:
        IMPORTERS.require(self.importer())

    def test_knows_its_own(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        found = detect(Archive.at(folder))
        _require(found == self.importer().name, f"it is taken for {found}")

    def test_knows_no_others(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
        (tmp_path / "readme.md").write_text("nothing to import")
        _require(not self.importer().fits(Archive.at(tmp_path), None), "it takes anything")

    def test_reads_the_same_tables_every_time(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        first, second = (import_path(folder, self.importer().name) for _ in range(2))
        _require(first.interactions.n_interactions > 0, "it finds no interactions")
        _require(first.fingerprint() == second.fingerprint(), "two readings differ")
        _require(bool(first.provenance), "it does not say where the data come from")

    def test_refuses_damaged_files_in_one_sentence(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        for path in folder.iterdir():
            path.write_bytes(b"\x00\xff not what it was\n" * 3)
        try:
            import_path(folder, self.importer().name)
        except SottovoceError as error:
            _require("\n" not in str(error), "the sentence has several lines")
        else:
            raise ContractBroken("it reads noise")


def _rows(ranked: Ranked, at: NDArray[np.int64]) -> Ranked:
    """The same of some users alone."""
    return replace(
        ranked,
        users=ranked.users[at],
        lists=ranked.lists[at],
        hit=ranked.hit[at],
        relevant=ranked.relevant[at],
    )


def _relisted(ranked: Ranked, lists: NDArray[np.int32]) -> Ranked:
    return replace(ranked, lists=lists, hit=hits(lists, ranked.users, ranked.test))


def _perfect(ranked: Ranked) -> NDArray[np.int32]:
    """Every list begins with the user's test items."""
    lists = np.full_like(ranked.lists, -1)
    for row, user in enumerate(ranked.users):
        best = ranked.test.row(int(user))[: lists.shape[1]]
        lists[row, : len(best)] = best
    return lists
