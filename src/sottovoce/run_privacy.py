"""What a run's report says of privacy: what is not protected, and what reports and sums cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.algorithms.drift import DRIFTConfig
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.links import SecureSum
from sottovoce.privacy.accountant import DELTA, Account, Sent, account, rounded_up
from sottovoce.privacy.central import noise_for, price
from sottovoce.privacy.mechanisms import Everything
from sottovoce.privacy.reports import KReports
from sottovoce.privacy.updates import Clipped

if TYPE_CHECKING:
    import pyarrow as pa

SHARES = (
    "The share π decides which rows for positive items are sent. It does not hide the others from "
    "a server that does the algebra: one negative row gives away the device's vector and, with it, "
    "the positive item behind the draw. The ledger therefore books an unbounded privacy cost for "
    "every release. Who must not be read should not take part: such a device sends nothing and is "
    "still served from the published model. See docs/privacy.md."
)
EVERYTHING = (
    "A device sends rows that are multiples of its vector, for every item or for its positives "
    "alone: whoever sees one upload reads every positive item from it, and much of the vector. "
    "Nothing is protected, and the ledger books an unbounded privacy cost for every release. Who "
    "must not be read should not take part: such a device sends nothing and is still served from "
    "the published model. See docs/privacy.md."
)
REPORTS = (
    "Each randomised report is protected by its ε alone, and the costs of all reports of all "
    "rounds add up. Towards whoever knows which reports are a user's own, because proxy and server "
    "collude or because the proxy is broken into, only the plain sum holds, and above ε = 10 that "
    "protects nothing. The smaller figure needs a proxy that keeps its word and honest others in "
    "the batch. That a device takes part, and in which tier, is not hidden from the proxy. See "
    "docs/privacy.md."
)
OWNERS = (
    "Sealing keeps interactions from the network, and from nobody else. A data owner reads every "
    "interaction with its items in full: who, what, when, and whether she liked it; an item in "
    "several categories is read by several owners. The orchestrator gets no interaction and still "
    "learns who touched what: owners' requests name the users and items of their blocks, and an "
    "item's gradient is a multiple of the vectors of the users behind it, which it holds, so that "
    "it can tell who it was and whether she liked it. Waiting for Θ blocks does not prevent that. "
    "The ledger therefore books an unbounded privacy cost for everything. Who must not be read can "
    "refuse owners, or take no part. See docs/privacy.md."
)
AGGREGATED_OWNERS = (
    "Sealing keeps interactions from the network. A data owner reads every interaction with its "
    "items in full: who, what, when, and whether she liked it. The orchestrator gets sums over "
    "many people, whose vectors it does not hold; our attacks on it do no better than guessing. "
    "There is no noise in the sums and no ε: they tell about how many touched an item and liked "
    "it. Who must not be read can refuse owners, or take no part. See docs/privacy.md."
)
FILTERED = (
    "Hiding an attribute keeps its value out of all training, and filters pull her embedding to "
    "where they can tell nothing. That is no guarantee: other attackers may still guess better "
    "than chance, because tastes go with attributes. Nothing else is hidden from the server: item "
    "rows name what she used and are near multiples of her embedding, a filter's update tells her "
    "class of an attribute that she shares, and its absence that she hides it. Who shares any "
    "attribute sends her embedding in the update of a filter of moments, as is the default; where "
    "she alone shares it, everybody reads her class in the published filter. The ledger books an "
    "unbounded privacy cost for every upload, also where noise is added to each number alone. Who "
    "must not be read should not take part. See docs/privacy.md."
)
NOISY = (
    "Every upload has the same rows and is protected by its ε as a whole: items, attributes, and "
    "what is hidden of them. The costs of all rounds add up, and above ε = 10 that protects "
    "nothing. How much noise a device adds can be seen, so that a limit of one's own is no secret. "
    "Filters are no guarantee: other attackers may still guess better than chance. See "
    "docs/privacy.md."
)
ASSUMED = (
    "With a proxy: at δ = {delta:g}, by the clone bound of 2021, if the proxy does not collude "
    "with the server and no batch has fewer honest users than the smallest batch. Without: the "
    "plain sum of all reports, δ = 0, which assumes nothing."
)
SUMMED = (
    "The server opens the sum over all devices of a round and sees no single update; the proxy "
    "sees masks, and no update. That holds while the two do not put together what they have: "
    "together they read everything. Devices that the server has made up hide nobody. Both see who "
    "takes part in which round."
)
OPEN_SUMS = (
    "The sums themselves are not protected. A row to which one device alone has added is this "
    "device's row, and who follows the published models sees the sums, too; the more devices draw "
    "an item in a round, the fewer such rows there are. So there is no ε, and the ledger books an "
    "unbounded privacy cost for every release. Noise on the sums (link.clip and link.noise) would "
    "bound it. See docs/privacy.md."
)
NOISY_SUMS = (
    "The proxy adds noise to every sum, and every update was clipped as a whole: what the server "
    "and everybody else can tell of a user from all sums and models is bounded by the run's "
    "certificate, and above ε = 10 that protects nothing. Against server and proxy together there "
    "is no such bound, which is why the ledger books an unbounded privacy cost for every release. "
    "See docs/privacy.md."
)
SUMMED_FILTERS = (
    "Filters are no guarantee: other attackers may still guess better than chance, because tastes "
    "go with attributes; and where she alone of a round shares an attribute, everybody reads her "
    "class in the published filter."
)
NOISY_FILTERS = (
    "Filters are no guarantee: other attackers may still guess better than chance, because tastes "
    "go with attributes. The certificate takes the shares of an attribute's classes as public; an "
    "experiment that does not name them has counted them from the data."
)
SUM_ASSUMED = (
    "At δ = {delta:g}, for one user's updates counted or left out, by the exact formula of the "
    "Gaussian mechanism; toward the server and everybody who sees the models, if the proxy does "
    "not collude with the server. Against the two together nothing is promised. Who takes part in "
    "which round is public, so that sampling makes nothing cheaper."
)
_PLACES = 12


def honest_notes(releases: Iterable[object], links: Iterable[object] = ()) -> TextBlock:
    """What these releases do not protect, each kind once; for data owners, the settings of DRIFT.
    `links` are the ways that they went, where they are known."""
    pairs = zip_longest(releases, links)
    notes = {note: None for release, link in pairs for note in _notes(release, link)}
    return TextBlock("\n\n".join(notes))


def owners_note(settings: DRIFTConfig | None) -> str:
    """What data owners and their orchestrator learn."""
    summed = settings is not None and settings.release == "aggregated"
    return AGGREGATED_OWNERS if summed else OWNERS


def _notes(release: object, link: object) -> list[str]:
    if not isinstance(link, SecureSum):
        return [_note(release)]
    notes = [SUMMED, NOISY_SUMS if link.noise else OPEN_SUMS]
    if isinstance(release, Clipped):
        # Noise of the devices' own bounds each upload by itself, whoever sees it.
        filters = NOISY_FILTERS if link.noise else SUMMED_FILTERS
        return [SUMMED, NOISY] if release.dense else [*notes, filters]
    return notes


def _note(release: object) -> str:
    if release is None or isinstance(release, DRIFTConfig):
        return owners_note(release)
    if isinstance(release, KReports):
        return REPORTS
    if isinstance(release, Clipped):
        return NOISY if release.dense else FILTERED
    return EVERYTHING if isinstance(release, Everything) else SHARES


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


def sum_sections(link: object, table: pa.Table) -> list[Section]:
    """The certificate of noisy sums, from the rows of a run's ledger; nothing where there was no
    noise, or where nothing has left."""
    if not isinstance(link, SecureSum) or not link.noise or not table.num_rows:
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


def budget_sections(
    release: object, table: pa.Table, figures: Path, link: object = None
) -> list[Section]:
    """Both certificates by tier, and how they grow with the rounds, or the one of noisy sums;
    nothing where neither has left."""
    if isinstance(link, SecureSum):
        return sum_sections(link, table)
    costs = tier_costs(table) if isinstance(release, KReports) else []
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
        notes=[ASSUMED.format(delta=DELTA)],
    )
    blocks: list[Block] = [shown]
    if any(cost.rounds > 1 for cost in costs):
        words = "Total ε of a user against the rounds in which she has reported, by tier"
        figure = _draw(figures / "certificate", costs)
        blocks.append(FigureBlock(figure.png, words, f"{words}; both axes are logarithmic."))
    return [Section("What it costs a user", blocks)]


def _draw(path: Path, costs: list[TierCost]) -> plots.Figures:
    """Solid with a proxy, dashed without; a colour for each tier."""
    with plots.drawing(path, "Cost of all reports so far", (6.4, 4.2)) as (figure, axes):
        for number, cost in enumerate(costs[: len(plots.PALETTE)]):
            places = _places(cost.rounds)
            each = cost.reports / cost.rounds
            sent = [Sent(round(each * t), cost.epsilon, cost.batch) for t in places]
            found = [account([one]) for one in sent]
            colour, marker = plots.PALETTE[number], plots.MARKERS[number]
            tier = f"ε = {cost.epsilon:g}"
            for values, style, how in (
                ([one.without_proxy for one in found], "--", "without a trusted proxy"),
                (
                    [one.with_proxy for one in found],
                    "-",
                    f"with a proxy, batches of {cost.batch:,}",
                ),
            ):
                positive = [value if value > 0 else math.nan for value in values]
                axes.plot(places, positive, color=colour, linestyle=style, linewidth=1.6,
                          marker=marker, markersize=4, label=f"{tier}, {how}")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel=f"total ε, δ = {DELTA:g}")
        most = max(cost.rounds for cost in costs)
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000) if t <= most]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return plots.figure_files(path)


def _places(most: int) -> list[int]:
    """Numbers of rounds, evenly spread on a logarithmic axis."""
    return sorted({round(most ** (step / _PLACES)) for step in range(_PLACES + 1)} | {1, most})
