"""What a report says of a run with data owners: who reads what, what it costs, how it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import Block, FigureBlock, KeyValues, TextBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.parties.silo_door import SEALED_BYTES
from sottovoce.run_tables import Row, name_of, readable_bytes
from sottovoce.silo_running import SiloOutcome

NUMBER_BYTES = 4
"""Of a user's or an item's number, and of one number of a row."""


def silo_story(outcome: SiloOutcome) -> TextBlock:
    """How it went about, in a few sentences."""
    world, facts = outcome.world, outcome.facts
    if world.config.release == "aggregated":
        return TextBlock(
            f"{facts.members:,} users send what they do with an item, sealed, to each of "
            f"{len(world.owners):,} data owners that holds it. Owners keep users' vectors, fetch "
            "the rows of all their items and send one row back for each: a sum over at least "
            f"{world.config.min_users:,} people, or zeros; {facts.withheld:,} rows never leave. "
            f"Users rank at home. This is gone through {world.config.epochs:,} times, with "
            f"{facts.blocks:,} blocks in {facts.updates:,} updates each time."
        )
    served = (
        f"asks the orchestrator for the vectors concerned as soon as it has {world.config.theta:,} "
        "of them"
        if not world.config.window
        else f"asks the orchestrator, after every {world.config.window:,} interactions, for the "
        f"vectors concerned where it has {world.config.theta:,} of them"
    )
    return TextBlock(
        f"{facts.members:,} users send what they do with an item, sealed, to each of "
        f"{len(world.owners):,} data owners that holds it. An owner gathers a user's dislikes and "
        f"the likes behind them into blocks, {served}, and sends gradients back. The orchestrator "
        "holds all vectors and recommends. This is gone through "
        f"{world.config.epochs:,} times, with {facts.blocks:,} blocks in {facts.updates:,} updates "
        "each time."
    )


def silo_facts(outcome: SiloOutcome) -> dict[str, object]:
    """The rows of the table of facts that other systems have otherwise."""
    config, facts = outcome.world.config, outcome.facts
    rounds = f", {facts.rounds:,} rounds" if facts.rounds else ""
    by = {"user": "user by user", "time": "in the order of time"}[config.order]
    when = f"Θ = {config.theta:,}"
    if config.release == "aggregated":
        when = f"sums over at least {config.min_users:,} people"
    return {
        "learning": f"embedding size {config.embedding_size}, learning rate "
        f"{config.learning_rate:g}, {when}, {by}",
        "schedule": f"{config.epochs:,} epochs of {facts.updates:,} updates{rounds}",
        "positive": f"rated {config.positive_from:g} or better",
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
            figure.png, words,
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
