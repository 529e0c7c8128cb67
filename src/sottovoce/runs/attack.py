"""Attack a run: every attack that applies, and the report card that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from sottovoce.attacks.one_run import SCORES, Audit, Canaries, audit_run, score_contributions
from sottovoce.attacks.trying import FAULTS, trouble
from sottovoce.attacks.views import ATTACKS, Attack, Result, View
from sottovoce.core.consent import Choice, Consent
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


def attack_run(
    folder: Path,
    *,
    rounds: int | None = None,
    only: Sequence[str] = (),
    threads: int = 1,
    report: Report | None = None,
    attacks: Sequence[Attack] | None = None,
) -> Card:
    """Every attack that applies to a finished run."""
    chosen = choose(attacks, only)
    threat = views_and_truth(folder, rounds=rounds, threads=threads, report=report)
    return _card(threat, chosen, report)


def attack_experiment(
    experiment: Experiment,
    *,
    rounds: int | None = None,
    threads: int = 1,
    report: Report | None = None,
    out: Path | None = None,
    only: Sequence[str] = (),
    attacks: Sequence[Attack] | None = None,
) -> Card:
    """Train an experiment and attack it; no run folder is needed, and none is left. `out` is a
    folder for the report card."""
    chosen = choose(attacks, only)
    threat = views_and_truth(experiment, rounds=rounds, threads=threads, report=report)
    card = _card(threat, chosen, report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_card(card, experiment.name, out / PAGE, out / JSON)
    return card


def choose(attacks: Sequence[Attack] | None, only: Sequence[str] = ()) -> tuple[Attack, ...]:
    """All that are registered, or those with these codes or names; raises where there is no such
    attack."""
    if attacks is None:
        attacks = tuple(ATTACKS.values())
    wanted = {code.strip().upper() for code in only if code.strip()}
    known = {word.upper() for attack in attacks for word in (attack.code, attack.name)}
    unknown = sorted(wanted - known)
    if unknown:
        codes = ", ".join(dict.fromkeys(attack.code for attack in attacks)) or "none"
        raise UsageError(f"there is no attack {unknown[0]}; there are {codes}")
    return tuple(a for a in attacks if not wanted or wanted & {a.code.upper(), a.name.upper()})


def _card(threat: ThreatViews, attacks: Sequence[Attack], report: Report | None) -> Card:
    tell = report or (lambda what, done, total: None)
    found = []
    for number, attack in enumerate(attacks):
        tell("attacks", number, len(attacks))
        found.append(try_attack(attack, threat))
    tell("attacks", len(attacks), len(attacks))
    facts = dict(threat.facts)
    if any(as_printed(v.algorithm, v.release, v.link) for v in threat.views.values()):
        facts[STANDS] = PRINTED
    return Card(
        threat.facts["experiment"],
        tuple(one for one in found if isinstance(one, Result)),
        tuple(one for one in found if isinstance(one, NotApplicable)),
        facts,
        threat.notes,
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
                return attack.run(view, threat.truth)
        except DoesNotApply as error:
            reason = str(error)
        except FAULTS as error:  # the other attacks go on
            why = trouble(error)
            return Failed(attack.code, attack.name, attack.party, why)
    return NotApplicable(attack.code, attack.name, attack.party, reason)


# --- a one-run audit -----------------------------------------------------------------------------

MOST_PAIRED = 100
"""Most popular items, of which gram's canaries have two each."""
_NOTHING_CLAIMED = (
    "--canaries hold a claimed ε against what is given away: that of randomised reports (fmf), of "
    "noise on FCF's sums (link.noise), or of contributions (gram); this run claims none, or "
    "canaries cannot be scored"
)


def audit_system(experiment: Experiment, canaries: int, threads: int = 1) -> Audit:
    """The same algorithm, release and link once more, with planted devices among its users, and
    what the server saw held against what is claimed. Everybody in it chooses alike: the largest ε
    of the release, or to share everything."""
    if experiment.silo is not None:
        raise UsageError(_NOTHING_CLAIMED)
    algorithm, release, link = experiment.cross_device()
    rng, train = experiment.streams().child("audit"), experiment.split(experiment.dataset()).train
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
