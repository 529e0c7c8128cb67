"""A run's report: what was run, what people chose, how well it served them, what left the devices.

`write_run_report` writes report.html and figures/ into the run's folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Schedule
from sottovoce.errors import RunError
from sottovoce.evaluation import plots
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.report import (
    Block,
    FigureBlock,
    KeyValues,
    Section,
    TextBlock,
    write_report,
)
from sottovoce.evaluation.tables import Column, Table
from sottovoce.run_privacy import budget_sections, honest_notes
from sottovoce.run_silo import (
    held_out_table,
    loss_figure,
    owners_table,
    silo_cost,
    silo_facts,
    silo_story,
    what_left,
)
from sottovoce.run_tables import (
    REFERENCES,
    Row,
    consent_table,
    hints,
    name_of,
    readable_bytes,
    results_table,
    sent_table,
    service_table,
)
from sottovoce.run_views import FinishedRun, Sums, item_categories
from sottovoce.running import DeviceOutcome, Outcome, run_experiment
from sottovoce.runs import new_figures
from sottovoce.silo_running import SiloOutcome


def write_run_report(
    run: Outcome | Path, also: Mapping[str, Evaluation] | None = None, *, threads: int = 1
) -> Path:
    """report.html and figures/ in the run's folder. `also` adds systems to the results table. A
    folder's run must have finished; its baselines are fitted again, since a run keeps averages and
    no per-user values."""
    outcome = run if isinstance(run, Outcome) else _outcome(run, threads)
    if outcome.folder is None:
        raise RunError("this run was not kept in a folder; there is nowhere to write a report")
    finished = FinishedRun(
        outcome.folder, outcome.experiment, outcome.dataset, outcome.split, outcome.consent
    )
    page = outcome.folder.path / "report.html"
    with new_figures(page.parent / "figures") as figures:
        sections = [
            Section("What was run", _facts(outcome)),
            Section("What people chose", [consent_table(finished)]),
            Section("Results", _results(outcome, also or {}, figures)),
            Section("Does permitting more serve a user better?", _service(outcome, finished)),
            *_what_left(outcome, finished, figures),
            *_bias(outcome, figures),
            Section(
                "What this does not protect",
                [
                    honest_notes(
                        [outcome.experiment.release or outcome.experiment.algorithm],
                        [outcome.experiment.link],
                    )
                ],
            ),
        ]
        return write_report(page, f"{outcome.experiment.name}: {outcome.system}", sections)


def side_by_side(outcome: Outcome, also: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """The baselines, then `also`, then the run's own system."""
    others = {k: e for k, e in outcome.evaluations.items() if k != outcome.system}
    return {**others, **also, outcome.system: outcome.evaluations[outcome.system]}


def _outcome(folder: Path, threads: int) -> Outcome:
    run = FinishedRun.open(folder)
    run.scorer()  # raises where the model is not that of this run
    return run_experiment(run.experiment, folder, resume=True, threads=threads)


def _facts(outcome: Outcome) -> list[Block]:
    experiment = outcome.experiment
    data, train = experiment.data, outcome.split.train
    manifest = outcome.folder.manifest() if outcome.folder is not None else {}
    held_out = {
        "temporal": f"the latest {data.test_fraction:.0%} of each user",
        "random": f"a random {data.test_fraction:.0%} of each user",
        "leave-one-out": f"one item of each user ({data.hold_out})",
        "published": "as published with the data",
    }[data.split]
    versions, hardware = manifest.get("versions", {}), manifest.get("hardware", {})
    story, learning = _how(outcome)
    facts = {
        "system": outcome.system,
        "data": f"{outcome.dataset.name}: {train.n_users:,} users, {train.n_items:,} items, "
        f"{train.n_interactions:,} training interactions",
        "held out": f"{held_out}, {data.part} part",
        "protocol": outcome.evaluations[outcome.system].describe(),
        **learning,
        "seed": experiment.seed,
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "machine": f"{hardware.get('processor') or hardware.get('machine', 'unknown')}, "
        f"{hardware.get('cores', '?')} cores",
        "time": f"{outcome.seconds:.1f} s with baselines and evaluation",
        "finished": manifest.get("finished", "not yet"),
    }
    return [story, KeyValues(facts)]


def _how(outcome: Outcome) -> tuple[TextBlock, Mapping[str, object]]:
    """How a system goes about, as a story and as facts."""
    if isinstance(outcome, SiloOutcome):
        return silo_story(outcome), silo_facts(outcome)
    plan, (algorithm, release, _) = _schedule(outcome), outcome.experiment.cross_device()
    story = (
        f"In each of {plan.rounds:,} rounds {plan.cohort_size:,} of {plan.devices:,} devices that "
        f"take part {algorithm.describe(plan)}"
    )
    return TextBlock(story), {
        "learning": algorithm.learning(),
        "schedule": _rounds(plan),
        "release": release.describe(),
    }


def _schedule(outcome: Outcome) -> Schedule:
    if not isinstance(outcome, DeviceOutcome):
        raise RunError("this run has no rounds of devices")
    return outcome.federation.schedule


def _rounds(plan: Schedule) -> str:
    whole = f"{plan.rounds:,} {'round' if plan.rounds == 1 else 'rounds'}"
    if plan.rounds_per_epoch == 1:
        return f"{whole}, each of them an epoch"
    return f"{plan.rounds_per_epoch:,} rounds an epoch, {whole} in all"


def _results(outcome: Outcome, also: Mapping[str, Evaluation], figures: Path) -> list[Block]:
    blocks: list[Block] = [results_table(side_by_side(outcome, also), notes=notes(outcome))]
    if outcome.folder is None:
        return blocks
    silo = isinstance(outcome, SiloOutcome)
    per_epoch = 1 if silo else _schedule(outcome).rounds_per_epoch
    metric = next(iter(outcome.evaluations[outcome.system].summary()))
    lines = [line for line in outcome.folder.metrics() if metric in line]
    epochs = [line["round"] / per_epoch for line in lines]
    if len(lines) > 1:
        figure = plots.learning_curves(
            figures / "learning",
            {outcome.system: (epochs, [line[metric] for line in lines])},
            metric=metric,
            references={
                name_of(label): outcome.evaluations[label].mean(metric)
                for label in REFERENCES
                if label in outcome.evaluations
            },
        )
        words = f"{metric} of {outcome.system} from epoch {epochs[0]:g} to {epochs[-1]:g}"
        blocks.append(FigureBlock(figure.png, words, f"{words}; level lines are baselines."))
    if isinstance(outcome, SiloOutcome):
        blocks += [*loss_figure(outcome, figures), held_out_table(outcome)]
    return blocks


def notes(outcome: Outcome) -> list[str]:
    """What a table of results must say: what it measures where that is not plain, and hints."""
    said = []
    if isinstance(outcome, SiloOutcome):
        least = f"rated {outcome.world.config.positive_from:g} or better"
        said = [
            f"Test items are those {least}, of users who take part; SAROS learns from likes and "
            f"dislikes as {outcome.system} does, the other baselines from the items {least}"
        ]
        if not outcome.consent.takes_part.all() or outcome.world.door.refused is not None:
            said.append("Baselines are central: they learn from everybody, whatever she permits")
    return said + hints(outcome)


def _what_left(outcome: Outcome, run: FinishedRun, figures: Path) -> list[Section]:
    if isinstance(outcome, SiloOutcome):
        return [
            Section("Who reads what", [what_left(outcome), owners_table(outcome)]),
            Section("Cost of communication", [silo_cost(outcome)]),
        ]
    sums = run.ledger_per_user()
    return [
        Section("What left the devices", _sent(run, sums, figures)),
        *budget_sections(
            outcome.experiment.release, run.ledger(), figures, outcome.experiment.link
        ),
        Section("Cost of communication", [_cost(outcome, sums)]),
    ]


def _service(outcome: Outcome, run: FinishedRun) -> list[Block]:
    return [service_table(run, outcome.evaluations[outcome.system])]


def _sent(run: FinishedRun, sums: Sums, figures: Path) -> list[Block]:
    total = sums.total(np.ones(len(sums.releases), dtype=bool))
    senders = sums.releases > 0
    facts = {"releases": f"{total.releases:,}"}
    if total.reports:
        facts["randomised reports"] = f"{total.reports:,}"
    if total.positive_rows or total.negative_rows or not total.reports:
        facts["rows for positive items"] = f"{total.positive_rows:,}"
        facts["rows for negative items"] = f"{total.negative_rows:,}"
    most = float(sums.epsilon.max()) if len(sums.epsilon) else 0.0
    facts |= {
        "bytes": readable_bytes(total.bytes),
        "devices that sent something": f"{int(senders.sum()):,} of {len(senders):,}",
        "guaranteed bound on a user's ε": "none" if math.isinf(most) else f"{most:,.10g}",
    }
    blocks: list[Block] = [KeyValues(facts), sent_table(run, sums)]
    shown: list[tuple[str, NDArray[Any], str]] = [
        ("bytes", sums.bytes[senders] / 1000, "kB sent in the whole run")
    ]
    if total.reports:
        shown.insert(0, ("reports", sums.reports[senders], "randomised reports sent"))
    if total.positive_rows or total.negative_rows:
        rows = "rows for positive items sent"
        shown.insert(0, ("positive-rows", sums.positive_rows[senders], rows))
    if senders.any():
        for stem, values, label in shown:
            figure = plots.histogram(figures / stem, values, x_label=label)
            words = f"How many of {int(senders.sum()):,} sending devices: {label}"
            blocks.append(FigureBlock(figure.png, words, f"{words}."))
    return blocks


def _cost(outcome: Outcome, sums: Sums) -> Block:
    plan, train, consent = _schedule(outcome), outcome.split.train, outcome.consent
    algorithm = outcome.experiment.cross_device().algorithm
    share = float(consent.share_positives[consent.takes_part].mean())
    model = 4 * train.n_items * algorithm.width
    contacts = plan.cohort_size * plan.rounds
    more = algorithm.traffic(plan, train.n_items, share)
    up = [f"{readable_bytes(sums.bytes.sum())} in all", *([more.pop("up")] if "up" in more else [])]
    facts = {
        **more,
        "down": f"{readable_bytes(model)} per contact, {readable_bytes(model * contacts)} in "
        "all (the item table, unless a cache carries it)",
        "up": ", ".join(up),
    }
    return KeyValues(facts)


def _bias(outcome: Outcome, figures: Path) -> list[Section]:
    names, member = item_categories(outcome.dataset, outcome.split)
    if not names or outcome.evaluations[outcome.system].lists is None:
        return []
    disparities = {
        name_of(label): bias_disparity(e.lists, outcome.split.train, member)
        for label, e in outcome.evaluations.items()
        if e.lists is not None and label != "random"
    }
    figure = plots.bias_bars(
        figures / "bias", names, {k: v.disparity for k, v in disparities.items()}
    )
    first = next(iter(disparities.values()))
    rows: list[Row] = [
        {
            "category": category,
            "train": float(first.source[c]),
            **{label: float(found.disparity[c]) for label, found in disparities.items()},
        }
        for c, category in enumerate(names)
    ]
    columns = [Column("category"), Column("train", "bias in training", ".2f")]
    columns += [Column(label, format="+.2f") for label in disparities]
    k = outcome.evaluations[outcome.system].protocol.k
    table = Table(
        f"Bias disparity@{k}",
        columns,
        rows,
        outcome.evaluations[outcome.system].describe(),
        ["+1 means twice the share the category has in the training data; -1 that it vanished."],
    )
    words = "Bias disparity per category, a bar per system"
    return [
        Section(
            "Which categories are recommended more than they are visited?",
            [FigureBlock(figure.png, words, f"{words}; 0 is as in the training data."), table],
        )
    ]
