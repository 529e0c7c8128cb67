"""What could they learn of me? Our attacks, run on this device, on her own messages.

What her device would send next is enacted here with copies of its state and with draws of its own:
nothing leaves, nothing is booked, and the store stays as it was. The published model stands still
meanwhile, and no limit counts what has left before. Then every party is given what reaches it, and
nothing else, and every attack that can be tried on one device is tried and held against her
history. What cannot be tried alone is said to be so; what is found is never more than what came
out.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing, Reporting
from sottovoce.attacks import alone
from sottovoce.attacks.alone import Added, Guessed, Questions, Secret
from sottovoce.attacks.trying import FAULTS, trouble
from sottovoce.attacks.views import ATTACKS, Attack, SeenRound, View, clustered
from sottovoce.core.ledger import Ledger
from sottovoce.core.masking import BITS
from sottovoce.core.messages import ModelView
from sottovoce.core.redacted import Redacted
from sottovoce.core.words import Said, said
from sottovoce.errors import ConfigError, ConsentError, DataError, DoesNotApply, MessageError
from sottovoce.parties.device import Devices
from sottovoce.privacy.own_epsilon import distance
from sottovoce.rng import SecretStreams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession, HomeCopy
from sottovoce.stores.user import UserStore
from sottovoce.wire.reports import decode_bits, decode_report

Ints = NDArray[np.int64]
Report = Callable[[int, int], None]
"""What is done, of how much."""
MOST_ITEMS = 500
"""That a finding names."""
_DRAWING, _FEW = 20, 3
"""Rounds of a device that draws items, which are told little by little, and of others."""
_REPORTING, _TIMES, _QUESTIONS = 5, 20, 20
"""Rounds of randomised reports, how often they are enacted, and questions asked of each."""
_SCORES = 1e8
"""That attacks on drawn items work out, about."""
_ONE = np.zeros(1, np.int64)
"""The row of the only device."""
_RESULTS = "docs/results.md"
_PROMISES = frozenset(
    ("a1", "a2", "a3", "a4", "a5", "a8", "a9", "a10", "a12", "a13", "a14", "n1")
)  # fmt: skip
"""Codes of attacks whose promise has words."""


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Redacted):
    """What one attack by one party found."""

    attack: str
    """Its code."""
    who: Said
    promise: Said
    """What she may have hoped for."""
    said: Said
    """What came out."""
    verdict: str
    """"holds", "broken" or "cannot"."""
    items: tuple[tuple[str, str, bool], ...] = ()
    """Id, title, and whether it is right, of what was claimed to be hers."""
    hits: int = 0
    claims: int = 0
    chance: int = 0
    """Right out of 100 by guessing."""
    right: int = 0
    """Out of 100."""
    technical: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "who": self.who.to_json(),
            "promise": self.promise.to_json(),
            "said": self.said.to_json(),
            "items": [{"item": i, "title": t, "right": r} for i, t, r in self.items],
            "hits": self.hits,
            "claims": self.claims,
            "chance": self.chance,
            "right": self.right,
            "verdict": self.verdict,
            "technical": list(self.technical),
        }


def what_they_learn(
    store: CohortStore,
    number: int,
    *,
    rounds: int | None = None,
    report: Report = lambda done, total: None,
    secret: Secret = secrets.token_bytes,
    attacks: Iterable[Attack] | None = None,
) -> list[Finding]:
    """What each party could learn of this user from what her device would send in the next
    `rounds` rounds (by default as many as attacks need), under her present choice."""
    session = DeviceSession(store)
    if session.terms is None:
        return [_cannot("all", said("learn.who.anyone"), said("learn.cannot.terms"))]
    home = session.copy_of(number)
    if home.model is None:
        return [_cannot("all", said("learn.who.anyone"), said("learn.cannot.model"))]
    trial = _Trial(home, home.model, rounds, secret)
    if not trial.sends():
        return [_nothing("all", said("learn.who.anyone"), said("learn.nothing_leaves"))]
    tasks = [*trial.tasks(), *trial.registered(ATTACKS.values() if attacks is None else attacks)]
    found: list[Finding] = []
    for done, task in enumerate(tasks):
        report(done, len(tasks))
        found += _tried(task)
    report(len(tasks), len(tasks))
    return _once(found)


@dataclass(frozen=True, slots=True)
class _Task:
    """One attack by one party."""

    attack: str
    who: Said
    run: Callable[[], list[Finding]]


def _tried(task: _Task) -> list[Finding]:
    """What it found; where it fails, that it could not be tried, which says nothing of a
    promise."""
    try:
        return task.run()
    except DoesNotApply:
        return []
    except FAULTS as error:  # the other attacks go on
        what = said("learn.cannot.failed")
        return [_cannot(task.attack, task.who, what, f"{task.attack}: {trouble(error)}")]


def _once(found: list[Finding]) -> list[Finding]:
    """Of attacks that cannot be tried alone one of each code, and none of a code that was
    tried."""
    tried = {one.attack for one in found if one.verdict != "cannot"}
    kept: list[Finding] = []
    for one in found:
        if one.said.key == "learn.cannot.alone":
            if one.attack in tried:
                continue
            tried.add(one.attack)
        kept.append(one)
    return sorted(kept, key=lambda one: one.verdict == "cannot")


def _promise(code: str) -> Said:
    return said(f"learn.promise.{code.lower() if code.lower() in _PROMISES else 'other'}")


def _cannot(code: str, who: Said, why: Said, *technical: str) -> Finding:
    return Finding(code, who, _promise(code), why, "cannot", technical=technical)


def _nothing(code: str, who: Said, what: Said, *technical: str) -> Finding:
    """Where there is nothing to attack."""
    return Finding(code, who, _promise(code), what, "holds", technical=technical)


def _interval(hits: NDArray[np.number], counts: NDArray[np.integer]) -> tuple[float, float]:
    return clustered(np.atleast_1d(hits), np.atleast_1d(counts))


class _Trial(Redacted):
    """One user's device, and what is tried on it."""

    def __init__(
        self, home: HomeCopy, model: ModelView, rounds: int | None, secret: Secret
    ) -> None:
        self._home, self._model, self._rounds, self._secret = home, model, rounds, secret
        self._terms, self._link = home.terms, home.terms.link
        self._algorithm = home.terms.build()
        self._own = home.cohort.history.row(0).astype(np.int64)
        self._seen: dict[str, tuple[SeenRound, ...]] = {}

    # --- at the door ------------------------------------------------------------------------------

    def _door(self, coins: bytes | None = None) -> Devices:
        """Her device behind its door: copies of its state, draws and coins of its own, an empty
        budget. What may ever leave is what was drawn for it once for all."""
        cohort, terms = self._home.cohort.take(_ONE), self._terms
        cohort.spent, cohort.sent = np.zeros(1), _ONE.copy()
        rng = SecretStreams(self._secret(32)).with_lasting(self._home.lasting)
        return Devices.behind_door(
            terms.build(),
            cohort,
            terms.release,
            Ledger(),
            rng,
            coins or self._secret(32),
            terms.link,
        )

    def sends(self) -> bool:
        """Whether anything would leave."""
        try:
            return bool(len(self._door().willing(self._first())))
        except (ConsentError, ConfigError, DataError):
            return False

    def _first(self) -> int:
        """The round with which enacting begins."""
        if self._algorithm.sends != "contributions":
            return self._model.round
        return self._model.round - cast(Contributing, self._algorithm).stage(self._model.round)

    def _view(self, round: int) -> ModelView:
        return ModelView(round, self._model.items)

    def _many(self) -> int:
        """Rounds that are enacted of a device that sends rows."""
        if self._rounds is not None:
            return self._rounds
        draws = self._terms.triples
        if not draws:
            return _FEW
        return int(np.clip(_SCORES // (2 * draws * self._terms.n_items), 1, _DRAWING))

    # --- what leaves, round by round --------------------------------------------------------------

    def _plain(self) -> tuple[SeenRound, ...]:
        """Her updates, as whoever reads them sees them."""
        return self._enacted("plain", lambda door, view: door.report(view, _ONE))

    def _masked(self) -> tuple[SeenRound, ...]:
        """The same as the server of a secure sum sees them."""
        return self._enacted(
            "masked", lambda door, view: door.report_masked(view, _ONE, (self._secret(32),))[0]
        )

    def _enacted(
        self, kind: str, send: Callable[[Devices, ModelView], object]
    ) -> tuple[SeenRound, ...]:
        if kind not in self._seen:
            door, found = self._door(), []
            kept = self._kept() if kind == "plain" else None
            for round in range(self._model.round, self._model.round + self._many()):
                view = self._view(round)
                if round == self._model.round and kept is not None:
                    found.append(SeenRound(round, (kept,), view))
                elif len(door.willing(round)):
                    found.append(SeenRound(round, (send(door, view),), view))
            self._seen[kind] = tuple(found)
        return self._seen[kind]

    def _kept(self) -> Any:
        """The latest message, where the store still has it and the model that it is about, and
        where it can be read; None otherwise."""
        prepared, sender = self._home.prepared, int(self._home.cohort.users[0])
        direct = self._link.adds_up is None
        if prepared is None or prepared.round != self._model.round or not direct:
            return None
        try:
            if self._algorithm.sends == "bits":
                return decode_bits(prepared.message, sender=sender)
            return decode_report(
                prepared.message, sender=sender, n_items=self._terms.n_rows,
                width=self._terms.width, round=prepared.round,
            )  # fmt: skip
        except MessageError:  # it is a sum, say
            return None

    # --- who attacks, and what there is to try ----------------------------------------------------

    def tasks(self) -> list[_Task]:
        """What is tried by what leaves and by which way it goes."""
        kind, link = self._algorithm.sends, self._link
        server, helper = said("learn.who.server"), said("learn.who.helper")
        found: list[_Task] = []
        if kind == "bits":
            found.append(_Task("A5", self._reader_of_bits(), self._try_reports))
            if link.mixing is not None:
                what = said("learn.sees.shuffler")
                found.append(self._says(_nothing("A5", said("learn.who.shuffler"), what)))
                found.append(self._says(self._alone("A13", server)))
        if link.summing is not None:
            found.append(_Task("mask", server, self._try_mask))
            found.append(self._says(_nothing("mask", helper, said("learn.sees.helper"))))
        if link.checking is not None:
            found.append(_Task("mask", said("learn.who.aggregator"), self._try_shares))
        if kind == "contributions":
            found.append(_Task("A12", said("learn.who.anyone"), self._try_sums))
            found.append(_Task("together", self._together(), self._try_together))
        elif link.noise:
            found.append(_Task("A12", said("learn.who.anyone"), self._try_noisy_rows))
        elif link.adds_up is not None:
            why = said("learn.cannot.sum")
            found.append(self._says(_cannot("A12", said("learn.who.anyone"), why, _RESULTS)))
        if self._terms.algorithm.attributes:
            why = said("learn.cannot.attributes")
            found.append(self._says(_cannot("A8", said("learn.who.anyone"), why, _RESULTS)))
        found.append(self._says(self._alone("N1", said("learn.who.network"))))
        return found

    def registered(self, attacks: Iterable[Attack]) -> list[_Task]:
        """Every attack of the registry on every view that there is of one device."""
        return [
            _Task(attack.code, who, lambda a=attack, p=party, w=who: self._try(a, p, w))  # type: ignore[misc]
            for attack in attacks
            for party, who in self._parties()
        ]

    def _parties(self) -> list[tuple[str, Said]]:
        found = [("anyone", said("learn.who.anyone"))]
        if self._algorithm.sends == "rows":
            found.insert(0, ("server", said("learn.who.server")))
            if self._link.adds_up is not None:
                found.append(("together", self._together()))
        return found

    def _together(self) -> Said:
        checked = self._link.checking is not None
        return said("learn.who.two" if checked else "learn.who.together")

    def _reader_of_bits(self) -> Said:
        mixed = self._link.mixing is not None
        return said("learn.who.with_shuffler" if mixed else "learn.who.server")

    def _says(self, finding: Finding) -> _Task:
        return _Task(finding.attack, finding.who, lambda: [finding])

    def _alone(self, code: str, who: Said, *technical: str) -> Finding:
        return _cannot(code, who, said("learn.cannot.alone"), *technical, _RESULTS)

    # --- attacks of the registry ------------------------------------------------------------------

    def _try(self, attack: Attack, party: str, who: Said) -> list[Finding]:
        """An attack on what this party saw. Together, two read what each of them reads masked."""
        read = "server" if party == "together" else party
        if attack.party != read:
            return []
        view = self._seen_by(party)
        if attack.applies(view):
            return []
        if not attack.tries_one:
            if party == "together":
                return []
            return [self._alone(attack.code, who, f"{attack.code}, {attack.name}")]
        claims = attack.claims(view)
        mine = claims.items[claims.users == int(self._home.cohort.users[0])]
        return [self._of_claims(attack.code, who, mine, attack.name, len(view.rounds))]

    def _seen_by(self, party: str) -> View:
        terms = self._terms
        seen: tuple[SeenRound, ...] = (SeenRound(self._model.round, (), self._model),)
        if party != "anyone":
            hidden = self._link.adds_up is not None and party != "together"
            seen = self._masked() if hidden else self._plain()
        return View(
            "anyone" if party == "anyone" else "server", seen, terms.algorithm, terms.release,
            terms.link, terms.n_items, self._model.items, triples=terms.triples, draws="secret",
        )  # fmt: skip

    def _of_claims(
        self, code: str, who: Said, items: Ints, name: str, rounds: int, promise: Said | None = None
    ) -> Finding:
        """What is claimed to be hers, held against her history."""
        items = np.unique(items)
        items = items[items < self._terms.n_items]
        right = np.isin(items, self._own)
        hits, claims = int(right.sum()), len(items)
        promise = promise or _promise(code)
        over = f"over {rounds:,} {'rounds' if rounds != 1 else 'round'}"
        if not claims:
            what, technical = said("learn.nothing_out"), f"{code}, {name}, {over}: no claim"
            return Finding(code, who, promise, what, "holds", technical=(technical,))
        chance, (low, high) = self._chance(claims), _interval(right.sum(), np.array(claims))
        verdict = "broken" if low > chance else "holds"
        values = {"n": hits, "all": len(self._own), "wrong": claims - hits}
        technical = (
            f"{code}, {name}, {over}: precision {hits / claims:.3f} (95 %: {low:.3f} to "
            f"{high:.3f}), by popularity {chance:.3f}; recall {hits / max(1, len(self._own)):.3f}"
        )
        return Finding(
            code, who, promise, Said("learn.came_out", values), verdict, self._named(items, right),
            hits, claims, round(100 * chance), round(100 * hits / claims), (technical,),
        )  # fmt: skip

    def _chance(self, claims: int) -> float:
        """The share of as many guesses that would be right by what is published alone: by the most
        popular things, as far as the model says which these are."""
        blind, items = len(self._own) / self._terms.n_items, self._model.items
        told = self._algorithm.popularity(items)
        if told is not None:
            popular = told[0]
        else:  # as it recommends to somebody of whom nothing is known
            nobody = np.zeros_like(self._home.cohort.vectors)
            popular = self._algorithm.device_scorer(nobody, items).scores(_ONE)[0]
        if not np.ptp(popular):
            return blind
        best = np.argsort(-popular, kind="stable")[:claims]
        return max(blind, float(np.isin(best, self._own).mean()))

    def _named(self, items: Ints, right: NDArray[np.bool_]) -> tuple[tuple[str, str, bool], ...]:
        """What is right first."""
        order = np.argsort(~right, kind="stable")[:MOST_ITEMS]
        catalogue = self._home.catalogue
        return tuple((*catalogue[int(items[at])], bool(right[at])) for at in order)

    # --- masked and shared ------------------------------------------------------------------------

    @property
    def _bits(self) -> int:
        return (self._link.summing and self._link.summing.bits) or BITS[-1]

    def _try_mask(self) -> list[Finding]:
        if self._algorithm.sends == "contributions":
            numbers = self._contributed()[0].numbers
        else:
            seen = self._plain()[0]
            reports: Any = seen.messages[0]
            shape = self._algorithm.report_shape(self._view(seen.round))
            numbers = alone.dense_update(reports, shape)
        found = alone.guess_masked(numbers, self._bits, self._secret)
        return [self._of_guesses("mask", said("learn.who.server"), found, "learn.coin")]

    def _try_shares(self) -> list[Finding]:
        algorithm, view, checking = self._contributing(), self._view(self._first()), self._checking
        form = checking.form(*algorithm.contribution(view.round, algorithm.report_shape(view)[0]))
        first, second, _ = self._door().report_shared(view, _ONE, [self._three()])
        entries = alone.read_shared(form, first, second)
        found = alone.guess_shared(form, entries, self._secret)
        return [self._of_guesses("mask", said("learn.who.aggregator"), found, "learn.coin")]

    def _of_guesses(
        self, code: str, who: Said, found: Guessed, key: str, promise: str = "learn.promise.masked"
    ) -> Finding:
        low, high = _interval(np.array(found.right), np.array(found.of))
        right, most = round(100 * found.right / found.of), round(100 * found.permitted)
        values = {"right": right, "tries": found.of, "most": most}
        technical = (
            f"{found.right:,} of {found.of:,} guesses were right (95 %: {low:.3f} to {high:.3f}); "
            f"permitted are {found.permitted:.4f}"
        )
        verdict = "broken" if low > found.permitted else "holds"
        return Finding(
            code, who, said(promise), Said(key, values), verdict, (), found.right, found.of, 50,
            right, (technical,),
        )  # fmt: skip

    # --- contributions to sums --------------------------------------------------------------------

    def _contributing(self) -> Contributing:
        return cast(Contributing, self._algorithm)

    @property
    def _checking(self) -> Any:
        return self._link.checking

    def _three(self) -> tuple[bytes, ...]:
        return tuple(self._secret(32) for _ in range(3))

    def _contributed(self) -> list[Added]:
        """What she adds to the sums of a period, without any noise of hers."""
        found = []
        for view, numbers, noise in self._read_by_two():
            claimed = alone.claimed_noise(
                self._contributing(), view.round, len(numbers), self._sigma()
            )
            found.append(Added(view.round, numbers - noise, claimed))
        return found

    def _read_by_two(self) -> list[tuple[ModelView, Ints, Ints]]:
        """Of every stage of a period: the round, her numbers as two parties read them together, and
        what of these is noise that her own device has added."""
        coins = self._secret(32)
        algorithm, door, found = self._contributing(), self._door(coins), []
        bound = self._terms.release.bind(
            door.cohort.users, door.cohort.consent, door.cohort.history, door.rng, coins
        ).contributing
        for round in range(self._first(), self._first() + len(algorithm.shares)):
            view = self._view(round)
            size = algorithm.report_shape(view)[0]
            if not size or not algorithm.held(round) or not len(door.willing(round)):
                continue
            if self._link.checking is not None:
                form = self._checking.form(*algorithm.contribution(round, size))
                first, second, _ = door.report_shared(view, _ONE, [self._three()])
                entries, step = alone.read_shared(form, first, second), self._checking.grid(form)
                numbers = alone.contribution_of(entries, step.step, form.pairs)
            else:
                sent = door.report_masked(view, _ONE, (self._secret(32),))
                numbers = alone.read_masked(*sent, self._bits)
            noise = np.zeros_like(numbers)
            if bound is not None and bound.settings.parts:
                noise = bound.part(0, round, algorithm.noise_spans(round, size))
            found.append((view, numbers, noise))
        return found

    def _try_sums(self) -> list[Finding]:
        """Whoever knows everybody else, and asks whether she is in the sums."""
        release = self._terms.release.contributing
        if release is None:
            raise DoesNotApply("sums have noise by a release of contributions alone")
        own = min(float(self._home.cohort.consent.epsilon[0]), release.epsilon)
        found = alone.guess_in_sum(self._contributed(), distance(own, release.delta), self._secret)
        return [self._of_sum(found)]

    def _try_noisy_rows(self) -> list[Finding]:
        """The same of updates in sums that have noise, over the rounds that are enacted."""
        parts, link = [], self._link.summing
        if link is None:
            raise DoesNotApply("there is no sum")
        for seen in self._plain():
            reports: Any = seen.messages[0]
            numbers = alone.dense_update(reports, self._model.items.shape)
            parts.append(Added(seen.round, numbers, np.full(len(numbers), link.sigma)))
        permitted = math.sqrt(len(parts)) / link.noise
        return [self._of_sum(alone.guess_in_sum(parts, permitted, self._secret))]

    def _of_sum(self, found: Guessed) -> Finding:
        who = said("learn.who.knows_others")
        return self._of_guesses("A12", who, found, "learn.in_sum", "learn.promise.epsilon")

    def _try_together(self) -> list[Finding]:
        """Two parties who put together what they have read her contribution."""
        items, algorithm = [np.zeros(0, np.int64)], self._contributing()
        told = self._read_by_two()
        for view, numbers, noise in told:
            size = None
            if noise.any():
                sigma = self._sigma(of_one=True)
                size = alone.claimed_noise(algorithm, view.round, len(numbers), sigma)
            items.append(alone.items_in(algorithm, view, numbers, size))
        promise, name = said("learn.promise.together"), "what two parties read together"
        every = np.concatenate(items)
        return [self._of_claims("together", self._together(), every, name, len(told), promise)]

    def _sigma(self, *, of_one: bool = False) -> float:
        """Of the noise that sums have in a period, or of what one device adds of it."""
        release, checking = self._terms.release.contributing, self._link.checking
        if release is None:
            raise DoesNotApply("sums have noise by a release of contributions alone")
        if of_one:
            return release.sigma / math.sqrt(max(1, release.parts))
        return release.sigma * (1.0 if checking is None else checking.more_noise)

    # --- randomised reports -----------------------------------------------------------------------

    def _try_reports(self) -> list[Finding]:
        """Whoever knows which reports are hers, and all her things but one, is asked which of two
        things that one is."""
        reporting = self._terms.reporting
        if reporting is None or not len(self._own):
            raise DoesNotApply("there are no randomised reports to ask")
        algorithm = cast(Reporting, self._algorithm)
        rounds = self._rounds or _REPORTING
        wins, asked, first, told = [], [], None, 0
        for time in range(_TIMES):
            rng = SecretStreams(self._secret(32))
            questions = Questions.about(self._own, self._terms.n_items, _QUESTIONS, rng)
            if not len(questions):
                raise DoesNotApply("she has everything")
            door, weights = self._door(), np.zeros(len(questions) + 1)
            kept = self._kept() if not time else None
            told = 0
            for round in range(self._model.round, self._model.round + rounds):
                view = self._view(round)
                if kept is not None and round == self._model.round:
                    sent = kept
                elif len(door.willing(round)):
                    sent = door.report_bits(view, _ONE)
                else:
                    break
                told += 1
                weights += alone.likelihoods(
                    algorithm, view, questions.history, sent, reporting.epsilons.tolist()
                )
            right = alone.answers(weights)
            wins.append(right.sum())
            asked.append(len(right))
            first = first or (questions, right)
        return [self._of_answers(np.array(wins), np.array(asked), first, told)]

    def _of_answers(
        self,
        wins: NDArray[np.float64],
        asked: NDArray[np.int64],
        first: tuple[Questions, NDArray[np.float64]] | None,
        rounds: int,
    ) -> Finding:
        low, high = _interval(wins, asked)
        n, hits = int(asked.sum()), int(wins.sum())
        items, right = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        if first is not None:
            questions, answer = first
            sure, right = answer != 0.5, answer > 0.5
            items = np.where(right, questions.hers, questions.others)[sure]
            right = right[sure]
        reporting, epsilon = self._terms.reporting, 0.0
        if reporting is not None:
            tier = int(reporting.tier_of(self._home.cohort.consent)[0])
            epsilon = rounds * reporting.max_reports * float(reporting.epsilons[tier])
        technical = (
            f"A5, {n:,} questions over {rounds:,} rounds: {wins.sum() / n:.3f} right (95 %: "
            f"{low:.3f} to {high:.3f}); ε = {epsilon:g} in all permits "
            f"{alone.most_by_epsilon(epsilon):.4f}"
        )
        share = round(100 * float(wins.sum()) / n)
        what = said("learn.reports", right=share, tries=n, rounds=rounds)
        return Finding(
            "A5", self._reader_of_bits(), said("learn.promise.reports"), what,
            "broken" if low > 0.5 else "holds", self._named(items, right), hits, n, 50, share,
            (technical,),
        )  # fmt: skip


# --- data owners ----------------------------------------------------------------------------------

_TOLD = ("left", "arrived", "refused", "given_up")
"""States of what a data owner has, or may have."""


def what_owners_read(store: UserStore, number: int) -> list[Finding]:
    """What each data owner has been told of this user, or will be; no attack is needed. And what
    the orchestrator can work out."""
    with store.file.snapshot():
        choice = store.in_force(number)
        directory = store.world.directory if store.has_directory else None
        messages, seen = store.messages(number), store.seen(number)
        asked = [one for one in store.ledger(number) if one.owner is None]
    if directory is None:
        return [_cannot("owner", said("learn.who.anyone"), said("learn.cannot.model"))]
    found = []
    for owner in directory.owners:
        reads = choice.takes_part and owner.name not in choice.refused_owners
        mine = [
            one
            for one in messages
            if one["owner"] == owner.number and one["kind"] in ("negative", "positive")
        ]
        told = {one["item"] for one in mine if one["state"] in _TOLD}
        waits = {one["item"] for one in mine if one["state"] == "waiting"} - told
        who, promise = said("learn.who.owner", name=owner.name), said("learn.promise.owner")
        key = "learn.owner.reads" if told or waits or reads else "learn.owner.refused"
        what = said(key, told=len(told), waits=len(waits))
        items = [(name, name, True) for name in _titles(directory.catalogue, told, waits)]
        n = len(told) + len(waits)
        chance = round(100 * len(seen) / max(1, len(directory.catalogue)))
        found.append(
            Finding(
                "owner", who, promise, what, "broken" if n else "holds", tuple(items[:MOST_ITEMS]),
                n, n, chance, 100 if n else 0,
            )
        )  # fmt: skip
    return [*found, _orchestrator(directory.settings.sums_over_people, len(asked))]


def _titles(catalogue: tuple[str, ...], *parts: set[int]) -> list[str]:
    return [catalogue[item] for part in parts for item in sorted(part)]


def _orchestrator(over_people: bool, asked: int) -> Finding:
    """It is told nothing by her device but that she is there; what it works out needs the owners'
    messages, which are not here."""
    why = said("learn.orchestrator.sums" if over_people else "learn.orchestrator.requests")
    technical = f"this device has asked it {asked:,} times", _RESULTS
    who, promise = said("learn.who.orchestrator"), said("learn.promise.orchestrator")
    return Finding("A7", who, promise, why, "cannot", technical=technical)
