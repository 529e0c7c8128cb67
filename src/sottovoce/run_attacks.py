"""Attack a run: every attack that applies, and the report card that comes of it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from sottovoce.attack_card import JSON, PAGE, Card, Failed, NotApplicable, write_card
from sottovoce.attacks.views import ATTACKS, Attack, Result
from sottovoce.errors import DoesNotApply, SottovoceError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.outcomes import Report
from sottovoce.run_scenes import Scene as Scene
from sottovoce.run_scenes import views_and_truth as views_and_truth
from sottovoce.run_scenes import views_of as views_of

_FAULTS = (
    *(SottovoceError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, OSError, RuntimeError, StopIteration, TypeError, ValueError),
)
"""What a bug in an attack raises, or a library that is missing."""


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
    scene = views_and_truth(folder, rounds=rounds, threads=threads, report=report)
    return _card(scene, chosen, report)


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
    scene = views_and_truth(experiment, rounds=rounds, threads=threads, report=report)
    card = _card(scene, chosen, report)
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


def _card(scene: Scene, attacks: Sequence[Attack], report: Report | None) -> Card:
    tell = report or (lambda what, done, total: None)
    found = []
    for number, attack in enumerate(attacks):
        tell("attacks", number, len(attacks))
        found.append(try_attack(attack, scene))
    tell("attacks", len(attacks), len(attacks))
    return Card(
        scene.facts["experiment"],
        tuple(one for one in found if isinstance(one, Result)),
        tuple(one for one in found if isinstance(one, NotApplicable)),
        scene.facts,
        scene.notes,
        scene.setting,
        tuple(one for one in found if isinstance(one, Failed)),
    )


def try_attack(attack: Attack, scene: Scene) -> Result | NotApplicable | Failed:
    """The result, or why there is none. That there is nothing to attack is for the attack itself to
    say, by `applies` or `DoesNotApply`; whatever else goes wrong is a failure, which says nothing
    of the promise."""
    view = scene.views.get(attack.party)
    reason = f"there is no {attack.party} here"
    if view is not None:
        try:
            reason = attack.applies(view)
            if not reason:
                return attack.run(view, scene.truth)
        except DoesNotApply as error:
            reason = str(error)
        except _FAULTS as error:  # the other attacks go on
            why = _trouble(error)
            return Failed(attack.code, attack.name, attack.party, why)
    return NotApplicable(attack.code, attack.name, attack.party, reason)


def _trouble(error: Exception) -> str:
    """What went wrong, without values, which may be private."""
    if isinstance(error, SottovoceError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"it needs {error.name}: pip install 'sottovoce[attacks]'"
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__} in {place.name} ({where})"
