"""Attack a run: every attack that applies, and the report card that comes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from sottovoce.attacks.one_run import SCORES, Audit, Canaries, audit_run, score_contributions
from sottovoce.attacks.views import ATTACKS, FAULTS, Attack, Result, View, trouble
from sottovoce.core.consent import Choice, Consent
from sottovoce.data.dataset import Dataset
from sottovoce.engines.observers import Report
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import DoesNotApply, UsageError
from sottovoce.experiment import Experiment
from sottovoce.privacy.accountant import DELTA, certify
from sottovoce.privacy.central import price
from sottovoce.runs.card import JSON, PAGE, STANDS, Card, Failed, NotApplicable, write_card
from sottovoce.runs.federation import Federation
from sottovoce.runs.standing import PRINTED, as_printed
from sottovoce.runs.threat_views import ThreatViews as ThreatViews
from sottovoce.runs.threat_views import views_and_truth as views_and_truth
from sottovoce.runs.threat_views import views_of as views_of

SECONDS = 300.0
"""How long more rounds are looked at, about, where the first ones decide nothing."""
NOTHING_YET = 10
"""How many times as many are looked at where the first ones gave an attack nothing to claim."""


def attack_run(
    folder: Path,
    *,
    rounds: int | None = None,
    seconds: float = SECONDS,
    only: Sequence[str] = (),
    threads: int = 1,
    report: Report | None = None,
    attacks: Sequence[Attack] | None = None,
) -> Card:
    """Every attack that applies to a finished run. Where `rounds` is not given, attacks that have
    seen too little look a second time, at as many as a verdict needs, for about `seconds`."""
    return _attacked(folder, choose(attacks, only), rounds, seconds, threads, report)


def attack_experiment(
    experiment: Experiment,
    *,
    rounds: int | None = None,
    seconds: float = SECONDS,
    threads: int = 1,
    report: Report | None = None,
    out: Path | None = None,
    only: Sequence[str] = (),
    attacks: Sequence[Attack] | None = None,
) -> Card:
    """Train an experiment and attack it as `attack_run` does; no run folder is needed, and none is
    left. `out` is a folder for the report card."""
    card = _attacked(experiment, choose(attacks, only), rounds, seconds, threads, report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_card(card, experiment.name, out / PAGE, out / JSON)
    return card


def choose(attacks: Sequence[Attack] | None, only: Sequence[str] = ()) -> tuple[Attack, ...]:
    """All that are registered, or those with these codes or names; raises where there is no such
    attack."""
    if attacks is None:
        attacks = tuple(ATTACKS.values())
    wanted = {_plain(code) for code in only if code.strip()}
    known = {_plain(word) for attack in attacks for word in (attack.code, attack.name)}
    unknown = sorted(wanted - known)
    if unknown:
        codes = ", ".join(dict.fromkeys(attack.code for attack in attacks)) or "none"
        raise UsageError(f"there is no attack {unknown[0]}; there are {codes}")
    return tuple(a for a in attacks if not wanted or wanted & {_plain(a.code), _plain(a.name)})


def _plain(word: str) -> str:
    """An attack's code or name as it may be typed: in any case, with dashes for spaces."""
    return word.strip().upper().replace("-", " ")


Tried = list[tuple[Attack, Result | NotApplicable | Failed]]


def _attacked(
    run: Path | Experiment,
    attacks: Sequence[Attack],
    rounds: int | None,
    seconds: float,
    threads: int,
    report: Report | None,
) -> Card:
    began = time.monotonic()
    threat = views_and_truth(run, rounds=rounds, threads=threads, report=report)
    took = time.monotonic() - began
    found, lasted = _try_all(attacks, threat, report)
    again = {
        attack: enough
        for attack, one in found
        if attack.grows_with == "rounds" and (enough := _enough(one)) > threat.looked
    }
    if rounds is not None or not again or threat.looked >= threat.rounds:
        return _card(threat, found)
    # Longer ones are not begun: what a round took is known.
    each = (took + sum(lasted[attack] for attack in again)) / threat.looked
    affordable = int(seconds / max(each, 1e-9))
    enough = min(max(again.values()), threat.rounds, affordable)
    said = f"A second look may take about {seconds:,.4g} s"
    if enough <= threat.looked:
        return _card(threat, found, f"{said}, and more rounds would have taken longer.")
    more = views_and_truth(run, enough=enough, threads=threads, report=report)
    second = dict(_try_all(list(again), more, report)[0])
    merged = [(attack, second.get(attack, one)) for attack, one in found]
    facts = dict(more.facts) | {"looked at": f"{more.facts['looked at']} (first {threat.looked:,})"}
    note = f"{len(again):,} of the attacks had seen too little, and looked a second time."
    short = "" if more.looked >= min(max(again.values()), threat.rounds) else f" {said}."
    return _card(replace(more, facts=facts), merged, note + short)


def _enough(one: Result | NotApplicable | Failed) -> int:
    """Rounds with which an attack might have a verdict; 0 where it has one, or never will."""
    if not isinstance(one, Result):
        return 0
    if one.verdict == "nothing to attack":
        return NOTHING_YET * one.looked
    return one.needed or 0


def _try_all(
    attacks: Sequence[Attack], threat: ThreatViews, report: Report | None
) -> tuple[Tried, dict[Attack, float]]:
    """What came of each, and how many seconds it took."""
    tell = report or (lambda what, done, total: None)
    found: Tried = []
    lasted = {}
    for number, attack in enumerate(attacks):
        tell("attacks", number, len(attacks))
        began = time.monotonic()
        found.append((attack, try_attack(attack, threat)))
        lasted[attack] = time.monotonic() - began
    tell("attacks", len(attacks), len(attacks))
    return found, lasted


def _card(threat: ThreatViews, tried: Tried, note: str = "") -> Card:
    found = [one for _, one in tried]
    facts = dict(threat.facts)
    # Without a link to devices (DRIFT), the release is a part of the algorithm.
    whole = [(v.algorithm, v.release if v.link else None, v.link) for v in threat.views.values()]
    if any(as_printed(*one) for one in whole):
        facts[STANDS] = PRINTED
    return Card(
        threat.facts["experiment"],
        tuple(one for one in found if isinstance(one, Result)),
        tuple(one for one in found if isinstance(one, NotApplicable)),
        facts,
        (*threat.notes, note) if note else threat.notes,
        threat.setting,
        tuple(one for one in found if isinstance(one, Failed)),
    )


def try_attack(attack: Attack, threat: ThreatViews) -> Result | NotApplicable | Failed:
    """The result, or why there is none. That there is nothing to attack is for the attack itself to
    say, by `applies` or `DoesNotApply`; whatever else goes wrong is a failure, which says nothing
    of the promise."""
    view = threat.views.get(attack.party)
    reason = f"there is no {attack.party} here"
    if view is not None:
        try:
            reason = attack.applies(view)
            if not reason:
                return _counted(attack, attack.run(view, threat.truth), threat)
        except DoesNotApply as error:
            reason = str(error)
        except FAULTS as error:  # the other attacks go on
            why = trouble(error)
            return Failed(attack.code, attack.name, attack.party, why)
    return NotApplicable(attack.code, attack.name, attack.party, reason)


def _counted(attack: Attack, result: Result, threat: ThreatViews) -> Result:
    """With how much was looked at."""
    whole = threat.looked if attack.grows_with == "rounds" else threat.truth.train.n_users
    return replace(result, looked=result.looked or whole, unit=attack.grows_with)


# --- a one-run audit -----------------------------------------------------------------------------

MOST_PAIRED = 100
"""Most popular items, of which gram's canaries have two each."""
_NOTHING_CLAIMED = (
    "--canaries hold a claimed ε against what is given away: that of randomised reports (fmf), of "
    "noise on FCF's sums (link.noise), or of contributions (gram); this run claims none, or "
    "canaries cannot be scored"
)


def audit_system(
    experiment: Experiment, canaries: int, threads: int = 1, dataset: Dataset | None = None
) -> Audit:
    """The same algorithm, release and link once more, with planted devices among its users, and
    what the server saw held against what is claimed. Everybody in it chooses alike: the largest ε
    of the release, or to share everything."""
    if experiment.silo is not None:
        raise UsageError(_NOTHING_CLAIMED)
    algorithm, release, link = experiment.cross_device()
    train = experiment.split(dataset or experiment.dataset()).train
    rng = experiment.streams().child("audit")
    users = np.arange(canaries + train.n_users, dtype=np.int64)
    score, reports, own = SCORES.get(algorithm.name), release.reporting, release.contributing
    if score is None or (reports is None and own is None and not link.noise):
        raise UsageError(_NOTHING_CLAIMED)
    delta = DELTA
    if own is not None:
        choice, claimed, delta = Choice(epsilon=own.epsilon), own.epsilon, own.delta
    elif reports is not None:
        epsilon, k = float(reports.epsilons[-1]), reports.max_reports
        choice = Choice(epsilon=epsilon, max_reports=k)
        claimed = certify(epsilon, k, algorithm.rounds, len(users), DELTA).with_proxy
    else:
        choice, claimed = Choice(share_positives=1.0), price(link.noise, algorithm.rounds, DELTA)
    if own is not None:  # of items whose pairs are summed, as far as any chart tells
        popular = np.argsort(-train.item_counts, kind="stable")[:MOST_PAIRED]
        planted = Canaries.pairs(canaries, np.sort(popular), train.n_items, rng)
        away = Choice(takes_part=False)
        absent = np.concatenate([~planted.included, np.zeros(train.n_users, bool)])
        consent = Consent.of(users, [choice, away], absent.astype(np.int64))
        # Canaries have no times, and so nobody has in their run.
        score = partial(score_contributions, others=replace(train, timestamps=None))
    else:
        summed = link.adds_up is not None
        planted = Canaries.single_items(canaries, train.n_items, rng, summed)
        consent = Consent.uniform(users, choice)

    def run(these: Canaries) -> View:
        made = Federation.build(
            algorithm,
            these.histories(train),
            consent,
            release,
            rng,
            link=link,
        )
        kept = Recorder(width=made.sum_width)
        made.run(message_observers=[kept], threads=threads)
        seen = seen_by(kept.seen, "server")
        return View("server", seen, algorithm, release, link, train.n_items, made.server.items)

    return audit_run(planted, run, score, claimed, delta)
