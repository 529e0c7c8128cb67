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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Reporting
from sottovoce.attacks import alone
from sottovoce.attacks.alone import Added, Questions, RightGuesses, Secret
from sottovoce.attacks.power import clopper_pearson
from sottovoce.attacks.views import (
    ATTACKS,
    FAULTS,
    Attack,
    SeenRound,
    View,
    clustered,
    trouble,
)
from sottovoce.core.redacted import Redacted
from sottovoce.core.words import Said, said
from sottovoce.errors import DoesNotApply
from sottovoce.privacy.own_epsilon import distance
from sottovoce.rng import SecretStreams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.user import UserStore
from sottovoce.web.at_home import ONE, AtHome

Ints = NDArray[np.int64]
Report = Callable[[int, int], None]
"""What is done, of how much."""
MOST_ITEMS = 500
"""That a finding names."""
_REPORTING, _TIMES, _QUESTIONS = 5, (20, 50), (4, 20)
"""Rounds of randomised reports, how often they are enacted, and questions asked of each; fewer of a
long history."""
_SELDOM, _RARELY, _WIDER = 1e-3, 1e-4, 1.9
"""How often chance alone may break a promise that holds, of claims and of guesses; of answers,
which go together, by how much an interval of 95 % is wider for that."""
_RESULTS = "sottovoce docs results"
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
    """"holds", "broken", "unclear" (right more often than by chance, but too seldom tried to be
    sure), "not_promised" (as two who work together could) or "cannot"."""
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
    device = AtHome(home, home.model, rounds, secret)
    if not device.sends():
        who, what = said("learn.who.anyone"), said("learn.nothing_leaves")
        return [Finding("all", who, _promise("all"), what, "holds")]
    trial = _Trial(device)
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


def _alone(code: str, who: Said, *technical: str) -> Finding:
    """What needs many devices."""
    return _cannot(code, who, said("learn.cannot.alone"), *technical, _RESULTS)


def _says(finding: Finding) -> _Task:
    return _Task(finding.attack, finding.who, lambda: [finding])


def _surely_above(hits: int, of: int, level: float, error: float) -> bool:
    """Whether so many hits are more than this share explains, but for an error so small."""
    return bool(clopper_pearson(hits, of, error)[0] > level)


def _interval(hits: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Of their share in all; 95 %."""
    return clustered(np.array(hits, np.float64), np.array(counts, np.int64))


class _Trial(Redacted):
    """What is tried on one device."""

    def __init__(self, device: AtHome) -> None:
        self._device, self._terms, self._link = device, device.terms, device.link

    # --- who attacks, and what there is to try ----------------------------------------------------

    def tasks(self) -> list[_Task]:
        """What is tried, by what leaves and by which way it goes."""
        kind, link, anyone = self._device.algorithm.sends, self._link, said("learn.who.anyone")
        found: list[_Task] = []
        if kind == "bits":
            found.append(_Task("A5", self._reader_of_bits(), self._try_reports))
        if link.mixing is not None:
            who, what = said("learn.who.shuffler"), said("learn.sees.shuffler")
            found.append(_says(_cannot("A5", who, what)))
            why = said("learn.cannot.linkage")
            found.append(_says(_cannot("A5", said("learn.who.server"), why, _RESULTS)))
        if link.summing is not None:
            found.append(_Task("mask", said("learn.who.server"), self._try_mask))
            who, what = said("learn.who.helper"), said("learn.sees.helper")
            found.append(_says(_cannot("mask", who, what)))
        if link.checking is not None:
            found.append(_Task("mask", said("learn.who.aggregator"), self._try_shares))
        if kind == "contributions":
            found.append(_Task("A12", said("learn.who.knows_others"), self._try_sums))
            found.append(_Task("together", self._together(), self._try_together))
        elif link.noise:
            found.append(_Task("A12", said("learn.who.knows_others"), self._try_noisy_rows))
        elif link.adds_up is not None:
            found.append(_says(_cannot("A12", anyone, said("learn.cannot.sum"), _RESULTS)))
        if self._terms.algorithm.attributes:
            found.append(_says(_cannot("A8", anyone, said("learn.cannot.attributes"), _RESULTS)))
        found.append(_says(_alone("N1", said("learn.who.network"))))
        return found

    def registered(self, attacks: Iterable[Attack]) -> list[_Task]:
        """Every attack of the registry, on every view that there is of one device."""
        every = tuple(attacks)
        return [
            _Task(attack.code, who, partial(self._try, attack, party, who))
            for party, who in self._parties()
            for attack in every
        ]

    def _parties(self) -> list[tuple[str, Said]]:
        found = [("anyone", said("learn.who.anyone"))]
        if self._device.algorithm.sends == "rows":
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

    # --- attacks of the registry ------------------------------------------------------------------

    def _try(self, attack: Attack, party: str, who: Said) -> list[Finding]:
        """An attack on what this party saw. Together, server and helper read what the server alone
        gets masked."""
        if attack.party != ("server" if party == "together" else party):
            return []
        view = self._seen_by(party)
        if attack.applies(view):
            return []
        if not attack.tries_one:
            what = _alone(attack.code, who, f"{attack.code}, {attack.name}")
            return [] if party == "together" else [what]
        claims = attack.claims(view)
        mine = claims.items[claims.users == self._device.user]
        return [self._of_claims(attack.code, who, mine, attack.name, len(view.rounds))]

    def _seen_by(self, party: str) -> View:
        terms, model = self._terms, self._device.model
        seen: tuple[SeenRound, ...] = (SeenRound(model.round, (), model),)
        if party != "anyone":
            hidden = self._link.adds_up is not None and party != "together"
            seen = self._device.masked() if hidden else self._device.plain()
        return View(
            "anyone" if party == "anyone" else "server", seen, terms.algorithm, terms.release,
            terms.link, terms.n_items, model.items, triples=terms.triples, draws="secret",
        )  # fmt: skip

    def _of_claims(
        self, code: str, who: Said, items: Ints, name: str, rounds: int, promise: Said | None = None
    ) -> Finding:
        """What is claimed to be hers, held against her history."""
        own, promise = self._device.own, promise or _promise(code)
        items = np.unique(items)
        items = items[items < self._terms.n_items]
        right = np.isin(items, own)
        hits, claims = int(right.sum()), len(items)
        about = f"{code}, {name}, over {rounds:,} {'rounds' if rounds != 1 else 'round'}"
        if not claims:
            technical = (f"{about}: no claim",)
            return Finding(
                code, who, promise, said("learn.nothing_out"), "holds", technical=technical
            )
        chance, (low, high) = self._device.chance(claims), _interval([hits], [claims])
        technical = (
            f"{about}: precision {hits / claims:.3f} (95 %: {low:.3f} to {high:.3f}), by "
            f"popularity {chance:.3f}; recall {hits / max(1, len(own)):.3f}",
        )
        figures = hits, claims, round(100 * chance), round(100 * hits / claims)
        if not _surely_above(hits, claims, chance, _SELDOM):
            what = said("learn.by_popularity", right=figures[3], chance=figures[2], tries=claims)
            if hits > chance * claims:  # as far as so few claims can tell
                seen = self._named(items, right)
                return Finding(code, who, promise, what, "unclear", seen, *figures, technical)
            return Finding(code, who, promise, what, "holds", (), *figures, technical)
        out = said("learn.came_out", n=hits, all=len(own), wrong=claims - hits)
        named = self._named(items, right)
        return Finding(code, who, promise, out, "broken", named, *figures, technical)

    def _named(self, items: Ints, right: NDArray[np.bool_]) -> tuple[tuple[str, str, bool], ...]:
        """What is right first."""
        order, catalogue = np.argsort(~right, kind="stable"), self._device.home.catalogue
        return tuple((*catalogue[int(items[at])], bool(right[at])) for at in order[:MOST_ITEMS])

    # --- masked and shared ------------------------------------------------------------------------

    def _try_mask(self) -> list[Finding]:
        device = self._device
        plain = device.algorithm.sends == "rows"
        numbers = device.update() if plain else device.read_together()[0].numbers
        found = alone.guess_masked(numbers, device.bits, device.secret)
        return [_of_guesses("mask", said("learn.who.server"), found, "learn.coin")]

    def _try_shares(self) -> list[Finding]:
        device = self._device
        view, checking = device.view(device.first()), self._link.checking
        if checking is None:
            raise DoesNotApply("nothing is shared")
        pairs, entries = device.form(view).pairs, device.entries(device.door(), view)
        found = alone.guess_shared(lambda n: checking.form(n, pairs), entries, device.secret)
        return [_of_guesses("mask", said("learn.who.aggregator"), found, "learn.coin")]

    # --- sums, and who reads more than sums -------------------------------------------------------

    def _try_sums(self) -> list[Finding]:
        """Whoever knows everybody else, and asks whether she is in the sums of a period."""
        release, device = self._terms.release.contributing, self._device
        if release is None:
            raise DoesNotApply("sums have noise by a release of contributions alone")
        own = min(float(device.home.cohort.consent.epsilon[0]), release.epsilon)
        return self._in_sums(device.contributed(), distance(own, release.delta))

    def _try_noisy_rows(self) -> list[Finding]:
        """The same of updates in sums that have noise, over the rounds that are enacted."""
        parts = self._device.updates_in_sums()
        return self._in_sums(parts, math.sqrt(len(parts)) / self._link.noise)

    def _in_sums(self, parts: list[Added], permitted: float) -> list[Finding]:
        found = alone.guess_in_sum(parts, permitted, self._device.secret)
        who = said("learn.who.knows_others")
        return [_of_guesses("A12", who, found, "learn.in_sum", "learn.promise.epsilon")]

    def _try_together(self) -> list[Finding]:
        """Two parties who put together what they have read her contribution."""
        device, items = self._device, [np.zeros(0, np.int64)]
        told = device.read_together()
        for view, numbers, noise in told:
            size = device.noise_on(view, len(numbers), of_one=True) if noise.any() else None
            items.append(alone.items_in(device.contributing, view, numbers, size))
        promise, name = said("learn.promise.together"), "what two parties read together"
        every = np.concatenate(items)
        found = self._of_claims("together", self._together(), every, name, len(told), promise)
        # That they keep apart is what all rests on: if they do not, no promise is broken by that.
        return [replace(found, verdict="not_promised") if found.verdict == "broken" else found]

    # --- randomised reports -----------------------------------------------------------------------

    def _try_reports(self) -> list[Finding]:
        """Whoever knows which reports are hers, and all her things but one, is asked which of two
        things that one is."""
        device = self._device
        if not 0 < len(device.own) < self._terms.n_items:
            raise DoesNotApply("there is nothing to ask")
        wins, asked, first, rounds = [], [], None, 0
        long = len(device.own)  # takes long, too
        most, times = (
            int(np.clip(room // long, *ends)) for room, ends in ((1e5, _QUESTIONS), (2e6, _TIMES))
        )
        for time in range(times):
            rng = SecretStreams(device.secret(32))
            questions = Questions.about(device.own, self._terms.n_items, most, rng)
            right, rounds = self._answers(questions, device.kept() if not time else None)
            wins.append(float(right.sum()))
            asked.append(len(right))
            first = first or (questions, right)
        return [self._of_answers(wins, asked, first, rounds)]

    def _answers(self, questions: Questions, kept: Any) -> tuple[NDArray[np.float64], int]:
        """By the reports of some rounds, and of how many; `kept` are those of the first one, where
        there are some."""
        device, door, told = self._device, self._device.door(), 0
        reporting, algorithm = self._terms.reporting, cast(Reporting, device.algorithm)
        if reporting is None:
            raise DoesNotApply("there are no randomised reports")
        weights, start = np.zeros(len(questions) + 1), device.model.round
        for round in range(start, start + (device.rounds or _REPORTING)):
            view, sent = device.view(round), kept if round == start else None
            if sent is None:
                if not len(door.willing(round)):
                    break
                sent = door.report_bits(view, ONE)
            epsilon = float(reporting.epsilons[int(sent.tier[0])])
            weights += alone.likelihoods(algorithm, view, questions.history, sent, epsilon)
            told += 1
        return alone.answers(weights), told

    def _of_answers(
        self,
        wins: list[float],
        asked: list[int],
        first: tuple[Questions, NDArray[np.float64]] | None,
        rounds: int,
    ) -> Finding:
        (low, high), n = _interval(wins, asked), sum(asked)
        share, items, right = sum(wins) / n, ONE[:0], np.zeros(0, np.bool_)
        if first is not None:
            questions, answer = first
            sure = answer != 0.5
            right = answer[sure] > 0.5
            items = np.where(right, questions.hers[sure], questions.others[sure])
        technical = (
            f"A5, {n:,} questions, {rounds:,} rounds each: {share:.3f} right (95 %: {low:.3f} to "
            f"{high:.3f})",
        )
        broken = share - _WIDER * (share - low) > 0.5
        what = said("learn.reports", right=round(100 * share), tries=n, rounds=rounds)
        return Finding(
            "A5", self._reader_of_bits(), said("learn.promise.reports"), what,
            "broken" if broken else "holds", self._named(items, right) if broken else (),
            int(sum(wins)), n, 50, round(100 * share), technical,
        )  # fmt: skip


def _of_guesses(
    code: str, who: Said, found: RightGuesses, key: str, promise: str = "learn.promise.masked"
) -> Finding:
    (low, high), share = _interval([found.right], [found.of]), found.right / found.of
    values = {"right": round(100 * share), "tries": found.of, "most": round(100 * found.permitted)}
    technical = (
        f"{found.right:,} of {found.of:,} guesses were right, {share:.4f} (95 %: {low:.4f} to "
        f"{high:.4f}); permitted are {found.permitted:.4f}",
    )
    return Finding(
        code, who, said(promise), Said(key, values),
        "broken" if _surely_above(found.right, found.of, found.permitted, _RARELY) else "holds",
        (), found.right, found.of, 50,
        round(100 * share), technical,
    )  # fmt: skip


# --- data owners ----------------------------------------------------------------------------------

_SAYS = ("negative", "positive")
"""Messages that are about an item."""
_TOLD = ("left", "arrived", "refused", "given_up")
"""States of what a data owner has, or may have."""


def what_owners_read(store: UserStore, number: int) -> list[Finding]:
    """What each data owner has been told of this user, or will be: no attack is needed. And what
    the orchestrator can work out."""
    with store.file.snapshot():
        choice = store.in_force(number)
        directory = store.world.directory if store.has_directory else None
        messages, ledger = store.messages(number), store.ledger(number)
        seen = store.seen(number)
    if directory is None:
        return [_cannot("owner", said("learn.who.anyone"), said("learn.cannot.model"))]
    names = {one.owner: one.party for one in ledger if one.owner is not None}
    names |= {owner.number: owner.name for owner in directory.owners}
    everything: set[int] = set()
    chance, found = len(seen) / max(1, len(directory.catalogue)), []
    for owner, name in sorted(names.items()):
        mine = [one for one in messages if one["owner"] == owner and one["kind"] in _SAYS]
        told = {one["item"] for one in mine if one["state"] in _TOLD}
        waits = {one["item"] for one in mine if one["state"] == "waiting"} - told
        reads = choice.takes_part and name not in choice.refused_owners
        key = "would" if reads else "refused"
        key = f"learn.owner.{'reads' if told or waits else key}"
        what = said(key, told=len(told), waits=len(waits))
        titles = [directory.catalogue[item] for part in (told, waits) for item in sorted(part)]
        who, promise = said("learn.who.owner", name=name), said("learn.promise.owner")
        found.append(_read("owner", who, promise, what, titles, chance))
        everything |= told
    technical = (f"asked {sum(one.owner is None for one in ledger):,} times by this device",)
    who, promise = said("learn.who.orchestrator"), said("learn.promise.orchestrator")
    if directory.settings.sums_over_people:
        why = said("learn.orchestrator.sums")
        return [*found, Finding("A7", who, promise, why, "cannot", technical=technical)]
    titles = [directory.catalogue[item] for item in sorted(everything)]
    what = said("learn.orchestrator.requests", told=len(titles))
    return [*found, _read("A7", who, promise, what, titles, chance, technical)]


def _read(
    code: str,
    who: Said,
    promise: Said,
    what: Said,
    titles: list[str],
    chance: float,
    technical: tuple[str, ...] = (),
) -> Finding:
    """What somebody reads, without any attack."""
    n, items = len(titles), tuple((title, title, True) for title in titles[:MOST_ITEMS])
    verdict = "broken" if n else "holds"
    return Finding(
        code, who, promise, what, verdict, items, n, n, round(100 * chance), 100 if n else 0,
        technical,
    )  # fmt: skip
