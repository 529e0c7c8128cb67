"""What a run does not protect, and what reports, sums and contributions cost their senders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.core.links import Link
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.privacy.accountant import DELTA, Account, Sent, account, rounded_up
from sottovoce.privacy.base import Release
from sottovoce.privacy.central import noise_for, price
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.statements import Curve, draw_totals, places

if TYPE_CHECKING:
    import pyarrow as pa

ASSUMED = (
    "With a proxy: at δ = {delta:g}, by the clone bound of 2021, if the proxy does not collude "
    "with the server and no batch has fewer honest users than the smallest batch. Without: the "
    "plain sum of all reports, δ = 0, which assumes nothing."
)
SUM_ASSUMED = (
    "At δ = {delta:g}, for one user's updates counted or left out, by the exact formula of the "
    "Gaussian mechanism; toward the server and everybody who sees the models, if the proxy does "
    "not collude with the server. Against the two together nothing is promised. Who takes part in "
    "which round is public, so that sampling makes nothing cheaper."
)
OWN_ASSUMED = (
    "At δ = {delta:g}, for one user who contributes or does not, by the exact formula of the "
    "Gaussian mechanism; toward everybody who sees what is published, the server too, if the "
    "helper does not collude with the server. Nobody sees who chose which; the most is {most:g}."
)
_PLACES = 12


def honest_notes(
    components: Iterable[Release | AlgorithmSettings], links: Iterable[Link | None] = ()
) -> TextBlock:
    """What these releases do not protect, each kind once; for data owners, the settings of their
    algorithm. `links` are the ways that they went, where they are known."""
    pairs = zip(components, chain(links, repeat(None)), strict=False)
    notes = {note: None for one, link in pairs for note in one.caveats(link)}
    return TextBlock("\n\n".join(notes))


@dataclass(frozen=True, slots=True)
class TierCost:
    """What the reports of a tier cost the one of its users who sent most."""

    epsilon: float
    batch: int
    devices: int
    """How many sent in this tier."""
    rounds: int
    reports: int
    account: Account


def tier_costs(table: pa.Table) -> list[TierCost]:
    """By ascending ε, from the rows of a run's ledger."""
    columns = {name: table[name].to_numpy() for name in ("user", "report_epsilon", "batch")}
    reports = table["reports"].to_numpy().astype(np.int64)
    keys = {*zip(columns["report_epsilon"].tolist(), columns["batch"].tolist(), strict=True)}
    found = []
    for epsilon, batch in sorted(keys):
        mine = (columns["report_epsilon"] == epsilon) & (columns["batch"] == batch) & (reports > 0)
        if not mine.any():
            continue
        users = columns["user"][mine]
        most = int(np.bincount(users, reports[mine]).max())
        sent = Sent(most, float(epsilon), int(batch))
        devices, rounds = len(np.unique(users)), int(np.bincount(users).max())
        found.append(TierCost(sent.epsilon, sent.batch, devices, rounds, most, account([sent])))
    return found


def sum_sections(link: Link | None, table: pa.Table) -> list[Section]:
    """The certificate of noisy sums, from the rows of a run's ledger; nothing where there was no
    noise, or where nothing has left."""
    if link is None or not link.noise or not table.num_rows:
        return []
    rounds = int(np.bincount(table["user"].to_numpy()).max())
    per_round = np.bincount(table["round"].to_numpy())
    row = {
        "clip": link.clip,
        "noise": link.noise,
        "devices": int(per_round[per_round > 0].min()),
        "rounds": rounds,
        "epsilon": rounded_up(price(link.noise, rounds)),
        "needed": rounded_up(noise_for(1.0, rounds)),
    }
    columns = [
        Column("clip", "largest norm of an update", "g"),
        Column("noise", "noise, as a multiple of it", "g"),
        Column("devices", "fewest devices in a round", ","),
        Column("rounds", "rounds of a user", ","),
        Column("epsilon", "total ε", ",.10g"),
        Column("needed", "noise for ε = 1", ",.10g"),
    ]
    shown = Table(
        "Certificate of the noisy sums, for the user who took part most often",
        columns,
        [row],
        notes=[SUM_ASSUMED.format(delta=DELTA)],
    )
    return [Section("What it costs a user", [shown])]


def own_sections(release: OwnEpsilon, table: pa.Table) -> list[Section]:
    """What contributions have cost, by each user's own ε, from the rows of a run's ledger."""
    if not table.num_rows:
        return []
    users, which = np.unique(table["user"].to_numpy(), return_inverse=True)
    spent = np.bincount(which, table["epsilon"].to_numpy())
    levels, many = np.unique(np.round(spent, 6), return_counts=True)
    rows = [
        {"epsilon": rounded_up(float(level)), "users": int(count)}
        for level, count in zip(levels, many, strict=True)
    ]
    columns = [Column("epsilon", "total ε", ",.10g"), Column("users", format=",")]
    notes = [OWN_ASSUMED.format(delta=release.delta, most=release.epsilon)]
    title = f"What {len(users):,} users have spent, each by her own ε"
    return [Section("What it costs a user", [Table(title, columns, rows, notes=notes)])]


def budget_sections(
    release: Release | None, table: pa.Table, figures: Path, link: Link | None = None
) -> list[Section]:
    """Both certificates by tier, and how they grow with the rounds, or the one of noisy sums;
    nothing where neither has left."""
    if release is not None and release.contributing is not None:
        return own_sections(release.contributing, table)
    if link is not None and link.summing is not None:
        return sum_sections(link, table)
    reports = release is not None and release.reporting is not None
    costs = tier_costs(table) if reports else []
    if not costs:
        return []
    rows = [
        {
            "epsilon": cost.epsilon,
            "batch": cost.batch,
            "devices": cost.devices,
            "rounds": cost.rounds,
            "reports": cost.reports,
            "without": rounded_up(cost.account.without_proxy),
            "with": rounded_up(cost.account.with_proxy),
        }
        for cost in costs
    ]
    columns = [
        Column("epsilon", "ε of a report", "g"),
        Column("batch", "smallest batch", ","),
        Column("devices", format=","),
        Column("rounds", format=","),
        Column("reports", "reports of a user", ","),
        Column("without", "total ε without a trusted proxy", ",.10g"),
        Column("with", "total ε with a proxy", ",.10g"),
    ]
    shown = Table(
        "Certificates by tier, for the user who sent most",
        columns,
        rows,
        notes=[ASSUMED.format(delta=DELTA), *_chain_notes(link)],
    )
    blocks: list[Block] = [shown]
    if any(cost.rounds > 1 for cost in costs):
        words = "Total ε of a user against the rounds in which she has reported, by tier"
        figure = _draw(figures / "certificate", costs)
        blocks.append(FigureBlock(figure.svg, words, f"{words}; both axes are logarithmic."))
    return [Section("What it costs a user", blocks)]


def _chain_notes(link: Link | None) -> list[str]:
    mixing = None if link is None else link.mixing
    if mixing is None or not mixing.chain:
        return []
    many = mixing.shufflers
    return [
        f"Reports pass {many} shufflers: the figure with a proxy holds if at most {many - 1} of "
        f"them work with the server, the other one if all {many} do. A dishonest first shuffler, "
        "or the server, can make devices up, which hide nobody; any dishonest one can leave "
        "reports out."
    ]


def _draw(path: Path, costs: list[TierCost]) -> plots.Figures:
    """Solid with a proxy, dashed without; a colour for each tier."""
    curves = []
    for number, cost in enumerate(costs[: len(plots.PALETTE)]):
        rounds, each = places(cost.rounds, _PLACES), cost.reports / cost.rounds
        found = [account([Sent(round(each * t), cost.epsilon, cost.batch)]) for t in rounds]
        colour, marker = plots.PALETTE[number], plots.MARKERS[number]
        tier = f"ε = {cost.epsilon:g}"
        for values, style, how in (
            ([one.without_proxy for one in found], "--", "without a trusted proxy"),
            ([one.with_proxy for one in found], "-", f"with a proxy, batches of {cost.batch:,}"),
        ):
            curves.append((rounds, Curve(f"{tier}, {how}", values, colour, style, marker)))
    most = max(cost.rounds for cost in costs)
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000) if t <= most]
    return draw_totals(path, "Cost of all reports so far", curves, ticks, DELTA)
