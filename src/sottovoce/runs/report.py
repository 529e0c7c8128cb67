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

from sottovoce.algorithms.base import AlgorithmSettings, Schedule
from sottovoce.core.quality import Estimate
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
from sottovoce.parties.silo_door import SEALED_BYTES
from sottovoce.runs import minds
from sottovoce.runs.costs import budget_sections as budget_sections
from sottovoce.runs.costs import honest_notes as honest_notes
from sottovoce.runs.costs import sum_sections as sum_sections
from sottovoce.runs.folder import new_figures
from sottovoce.runs.read import FinishedRun, Sums, item_categories
from sottovoce.runs.standing import standing, titled
from sottovoce.runs.tables import (
    REFERENCES,
    Row,
    consent_table,
    hints,
    name_of,
    own_metric,
    readable_bytes,
    results_table,
    sent_table,
    service_table,
)
from sottovoce.runs.train import DeviceOutcome, Report, RunOutcome, SiloOutcome, run_experiment

# --- data owners: who reads what, what it costs, how it learns -----------------------------------

NUMBER_BYTES = 4
"""Of a user's or an item's number, and of one number of a row."""


def silo_story(outcome: SiloOutcome) -> TextBlock:
    """How it went about, in a few sentences."""
    world, facts = outcome.world, outcome.facts
    many = world.config.negatives_per_positive
    drawn = f"puts every like beside {many:,} items that it draws and she has not touched"
    if world.config.sums_over_people:
        compared = f"An owner {drawn}. " if world.config.draws else ""
        return TextBlock(
            f"{facts.members:,} users send what they do with an item, sealed, to each of "
            f"{len(world.owners):,} data owners that holds it. {compared}Owners keep users' "
            "vectors, fetch "
            "the rows of all their items and send one row back for each: a sum over at least "
            f"{world.config.min_users:,} people, or zeros; {facts.withheld:,} rows never leave. "
            f"Users rank at home. This is gone through {world.config.epochs:,} times, with "
            f"{facts.blocks:,} blocks in {facts.updates:,} updates each time."
        )
    gathers = "gathers a user's dislikes and the likes behind them into blocks"
    if world.config.draws:
        gathers = f"{drawn}, and the dislikes before it, in a block"
    served = (
        f"asks the orchestrator for the vectors concerned as soon as it has {world.config.theta:,} "
        "of them"
        if not world.config.window
        else f"asks the orchestrator, after every {world.config.window:,} interactions, for the "
        f"vectors concerned where it has {world.config.theta:,} of them"
    )
    return TextBlock(
        f"{facts.members:,} users send what they do with an item, sealed, to each of "
        f"{len(world.owners):,} data owners that holds it. An owner {gathers}, {served}, and sends "
        "gradients back. The orchestrator holds all vectors and recommends. This is gone through "
        f"{world.config.epochs:,} times, with {facts.blocks:,} blocks in {facts.updates:,} updates "
        "each time."
    )


def silo_facts(outcome: SiloOutcome) -> dict[str, object]:
    """The rows of the table of facts that other systems have otherwise."""
    config, facts = outcome.world.config, outcome.facts
    rounds = f", {facts.rounds:,} rounds" if facts.rounds else ""
    by = {"user": "user by user", "time": "in the order of time"}[config.order]
    when = f"Θ = {config.theta:,}"
    if config.sums_over_people:
        when = f"sums over at least {config.min_users:,} people"
    if config.draws:
        when += f", {config.negatives_per_positive:,} drawn negatives for a positive"
    return {
        "learning": f"embedding size {config.embedding_size}, learning rate "
        f"{config.learning_rate:g}, {when}, {by}",
        "schedule": f"{config.epochs:,} epochs of {facts.updates:,} updates{rounds}",
        "positive": f"rated {config.positive_from:g} or better"
        if outcome.split.train.ratings is not None
        else "everything",
        "owners": ", ".join(outcome.world.owners),
        "users without any block": f"{facts.without_blocks:,} of {facts.members:,}",
    }


def owners_table(outcome: SiloOutcome) -> Table:
    """What each owner reads in an epoch."""
    read, world = outcome.read, outcome.world
    rows: list[Row] = []
    for number, name in enumerate(world.owners):
        mine = read.owner == number
        positive, negative = int(read.positive[mine].sum()), int(read.negative[mine].sum())
        rows.append(
            {
                "owner": name,
                "items": len(world.table.items(number)),
                "users": int(mine.sum()),
                "positive": positive,
                "negative": negative,
                "mega": (positive + negative) * SEALED_BYTES / 1e6,
            }
        )
    columns = [
        Column("owner"),
        Column("items", format=","),
        Column("users", format=","),
        Column("positive", "positive interactions", ","),
        Column("negative", "negative interactions", ","),
        Column("mega", "MB sealed", ",.2f"),
    ]
    notes = [
        "In one epoch; every epoch sends the same again. An item of several owners is sent to each."
    ]
    return Table("What each data owner reads", columns, rows, notes=notes)


def silo_cost(outcome: SiloOutcome) -> KeyValues:
    """What travels, between users and owners and between owners and the orchestrator."""
    config, facts, read = outcome.world.config, outcome.facts, outcome.read
    sealed = int((read.positive + read.negative).sum()) * SEALED_BYTES
    named = (facts.user_rows + facts.item_rows) * NUMBER_BYTES
    rows = named * config.embedding_size

    def words(each: int) -> str:
        return f"{readable_bytes(each)} an epoch, {readable_bytes(each * config.epochs)} in all"

    return KeyValues(
        {
            "users to owners": f"{words(sealed)} ({SEALED_BYTES} bytes an interaction)",
            "owners ask": f"{words(named)} ({facts.user_rows:,} rows of users and "
            f"{facts.item_rows:,} of items an epoch)",
            "orchestrator answers": words(rows + named),
            "owners send gradients": words(rows + named),
        }
    )


def held_out_table(outcome: SiloOutcome) -> Table:
    """Every system by the measures of the SAROS paper and of its public code."""
    keys = list(next(iter(outcome.held_out.values())))
    rows: list[Row] = [
        {"system": name_of(label), **values} for label, values in outcome.held_out.items()
    ]
    columns = [Column("system"), *(Column(key, key, ".4f", "max") for key in keys)]
    notes = [
        "Own: each user's held-out items alone are ranked, liked or not. Legacy: the same as the "
        "public SAROS code measures it. With few candidates, most of them liked, any order does "
        "well; the table above says how good lists are."
    ]
    return Table("Ranking held-out items alone", columns, rows, notes=notes)


def loss_figure(outcome: SiloOutcome, figures: Path) -> list[Block]:
    """The loss in training and test by epoch."""
    lines = outcome.folder.metrics() if outcome.folder is not None else []
    curves = {}
    for name, key in (("training", "loss"), ("test", "test_loss")):
        points = [(line["round"], line[key]) for line in lines if key in line]
        if len(points) > 1:
            epochs, values = (list(column) for column in zip(*points, strict=True))
            curves[name] = epochs, values
    if not curves:
        return []
    figure = plots.learning_curves(figures / "loss", curves, metric="loss of a block")
    words = f"Loss of {outcome.system} in {' and '.join(curves)}, by epoch"
    return [
        FigureBlock(
            figure.svg, words,
            f"{words}: the ranking loss of a block, on average. Test: the blocks that owners would "
            "have of the held-out interactions.",
        )
    ]  # fmt: skip


def what_left(outcome: SiloOutcome) -> KeyValues:
    read, epochs = outcome.read, outcome.world.config.epochs
    senders = len(np.unique(read.user))
    messages = int((read.positive + read.negative).sum())
    return KeyValues(
        {
            "interactions sent": f"{messages:,} in each of {epochs:,} epochs",
            "users who sent something": f"{senders:,} of {outcome.world.n_users:,}",
            "guaranteed bound on a user's ε": "none",
        }
    )


# --- the report ----------------------------------------------------------------------------------


def write_run_report(run: RunOutcome | Path, *, threads: int = 1) -> Path:
    """report.html and figures/ in the run's folder. A folder's run must have finished; its
    baselines are fitted again, since a run keeps averages and no per-user values."""
    outcome = run if isinstance(run, RunOutcome) else outcome_of(run, threads)
    if outcome.folder is None:
        raise RunError("this run was not kept in a folder; there is nowhere to write a report")
    finished = FinishedRun(
        outcome.experiment, outcome.dataset, outcome.split, outcome.consent, outcome.folder
    )
    page = outcome.folder.path / "report.html"
    with new_figures(page.parent / "figures") as figures:
        sections = [
            Section("What was run", _facts(outcome)),
            Section("What people chose", [consent_table(finished)]),
            Section("Results", _results(outcome, figures)),
            Section("Does permitting more serve a user better?", _service(outcome, finished)),
            *_by_devices(outcome, figures),
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
        stands = standing(outcome.experiment, finished.ledger())
        title = f"{outcome.experiment.name}: {outcome.system}"
        return write_report(page, title, sections, stands.lead())


def _by_devices(outcome: RunOutcome, figures: Path) -> list[Section]:
    """How good each version of the model is by what devices found on items held out at home."""
    versions = outcome.folder.manifest().get("model_versions", []) if outcome.folder else []
    told = [one for one in versions if one["quality"] is not None]
    if not told:
        return []
    names = ("candidate", "published", "popularity", "over_published", "over_popularity")
    rows: list[Row] = [
        {
            "version": one["version"],
            **{name: str(Estimate(**one["quality"][name])) for name in names},
            "state": one["held_back"] or "published",
        }
        for one in told
    ]
    columns = [
        Column("version"),
        Column("candidate", "users with a hit"),
        Column("published", "by the version before"),
        Column("popularity", "by popularity"),
        Column("over_published", "gain over the version before"),
        Column("over_popularity", "gain over popularity"),
        Column("state", "what became of it"),
    ]
    notes = [
        "One of ten recommendations is among the latest items, which devices held out at home; "
        "from noisy sums, with 95 % intervals. A version that is worse than the one before or than "
        "popularity, beyond a one-sided bound of 95 %, is held back."
    ]
    words = "Users with a hit among ten, by version, with 95 % intervals"
    figure = plots.quality_of_versions(figures / "versions", told)
    blocks: list[Block] = [
        Table("Versions of the model", columns, rows, notes=notes),
        FigureBlock(figure.svg, words, f"{words}."),
    ]
    return [Section("How good the model is, by what devices say", blocks)]


def side_by_side(outcome: RunOutcome) -> dict[str, Evaluation]:
    """The baselines, then the run's own system."""
    others = {k: e for k, e in outcome.evaluations.items() if k != outcome.system}
    return {**others, outcome.system: outcome.evaluations[outcome.system]}


def outcome_of(folder: Path, threads: int = 1, report: Report | None = None) -> RunOutcome:
    """What a finished run of one seed gave, with its baselines fitted again."""
    run = FinishedRun.open(folder)
    run.scorer()  # raises where the model is not that of this run
    return run_experiment(
        run.experiment, folder, resume=True, threads=threads, report=report, dataset=run.dataset
    )


def _facts(outcome: RunOutcome) -> list[Block]:
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


def _how(outcome: RunOutcome) -> tuple[TextBlock, Mapping[str, object]]:
    """How a system goes about, as a story and as facts."""
    if isinstance(outcome, SiloOutcome):
        return silo_story(outcome), silo_facts(outcome)
    plan, (algorithm, release, _) = _schedule(outcome), outcome.experiment.cross_device()
    story = (
        f"In each of {plan.rounds:,} rounds {plan.cohort_size:,} of {plan.devices:,} devices that "
        f"take part {algorithm.describe(plan)}"
    )
    return TextBlock(story), {
        "learning": _settings(outcome).learning(),
        "schedule": _rounds(plan),
        "release": release.describe(),
    }


def _settings(outcome: RunOutcome) -> AlgorithmSettings:
    """With numbers in the place of rules."""
    return outcome.experiment.on(outcome.dataset, outcome.consent)[0]


def _schedule(outcome: RunOutcome) -> Schedule:
    if not isinstance(outcome, DeviceOutcome):
        raise RunError("this run has no rounds of devices")
    return outcome.federation.schedule


def _rounds(plan: Schedule) -> str:
    whole = f"{plan.rounds:,} {'round' if plan.rounds == 1 else 'rounds'}"
    if plan.rounds_per_epoch == 1:
        return f"{whole}, each of them an epoch"
    return f"{plan.rounds_per_epoch:,} rounds an epoch, {whole} in all"


def _results(outcome: RunOutcome, figures: Path) -> list[Block]:
    title = f"{titled(outcome.experiment)} beside others"
    blocks: list[Block] = [results_table(side_by_side(outcome), title, notes(outcome))]
    if outcome.folder is None:
        return blocks
    silo = isinstance(outcome, SiloOutcome)
    per_epoch = 1 if silo else _schedule(outcome).rounds_per_epoch
    metric = own_metric(outcome.evaluations[outcome.system])
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
        blocks.append(FigureBlock(figure.svg, words, f"{words}; level lines are baselines."))
    if isinstance(outcome, SiloOutcome):
        blocks += loss_figure(outcome, figures)
        if any(outcome.held_out.values()):
            blocks.append(held_out_table(outcome))
    return blocks


def notes(outcome: RunOutcome) -> list[str]:
    """What a table of results must say: what it measures where that is not plain, and hints."""
    said = []
    if isinstance(outcome, SiloOutcome):
        least = f"rated {outcome.world.config.positive_from:g} or better"
        told = outcome.split.train.ratings is not None
        if told and outcome.experiment.evaluation.relevant == "liked":
            said = [
                f"Test items are those {least}, of users who take part; SAROS learns from likes "
                f"and dislikes as {outcome.system} does, the other baselines from the items {least}"
            ]
        chosen = outcome.consent
        limited = outcome.world.door.refused is not None or chosen.never_send.any()
        if limited or not chosen.takes_part.all():
            said.append("Baselines are central: they learn from everybody, whatever she permits")
    if isinstance(outcome, DeviceOutcome) and outcome.folder is not None:
        said += minds.lines(outcome.folder.manifest().get("changes_of_mind", []))
    return said + hints(outcome)


def _what_left(outcome: RunOutcome, run: FinishedRun, figures: Path) -> list[Section]:
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


def _service(outcome: RunOutcome, run: FinishedRun) -> list[Block]:
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
            blocks.append(FigureBlock(figure.svg, words, f"{words}."))
    return blocks


def _cost(outcome: RunOutcome, sums: Sums) -> Block:
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


def _bias(outcome: RunOutcome, figures: Path) -> list[Section]:
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
            [FigureBlock(figure.svg, words, f"{words}; 0 is as in the training data."), table],
        )
    ]
