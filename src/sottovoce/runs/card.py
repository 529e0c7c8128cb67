"""The report card: what attacks on a run's promises came to, in a table, in words, in a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sottovoce.attacks.views import ATTACKS, PERMITTED, Remedy, Result
from sottovoce.core.words import LANGUAGES, Said, catalogue, said, say
from sottovoce.errors import AttackFailed
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import (
    Block,
    FigureBlock,
    KeyValues,
    Lead,
    Section,
    TextBlock,
    Verdict,
    Verdicts,
    write_report,
)
from sottovoce.evaluation.tables import Column, Table, Tabular
from sottovoce.runs.folder import new_figures, write_text

PAGE, JSON = "report-card.html", "attacks.json"
STANDS = "stands"
"""The fact that a system is as printed."""
READING = (
    "A promise is broken where even the low end of the 95 % interval lies above what the best "
    "guess without the attack would reach; where the measure is by ε, above what ε permits. It "
    "holds where the high end is not far above that, which is 5 of 100; where a guess is right in "
    "fewer than 5, as much again, and 1 of 100 at least. An attack between the two is "
    "underpowered: it saw too little. How much it would take makes the interval no wider than that "
    "distance, if what is added is like what was seen. That a promise holds says that this attack "
    "got nowhere on these data, not that none could."
)
_PARTIES = {
    "server": "the server",
    "proxy": "the proxy",
    "coalition": "a coalition of the server and all shufflers but one",
    "orchestrator": "the orchestrator",
    "owner": "a data owner",
    "network": "whoever watches the network",
    "anyone": "anyone who knows what is published",
}


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """An attack that was not run, and why."""

    code: str
    attack: str
    party: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An attack that fell over, and by what; whether its promise holds is not known."""

    code: str
    attack: str
    party: str
    error: str


@dataclass(frozen=True, slots=True)
class CardSetting:
    """What the people of a run relied on."""

    relied_on: str
    """As the subject of a sentence: "π = 0", say."""
    remedies: tuple[str, ...] = ()
    """What is in force already: "secure-sum", "noise", "aggregated"."""


@dataclass(frozen=True, slots=True)
class Card(Tabular):
    """What came of all attacks on one run.

    It prints as a table with a row for each attack: who attacks, what the attack reached, its 95 %
    interval, what a guess without it reaches, and the verdict. `broken`, `results` and
    `not_applicable` have the same as objects.

    Example:
        ```python
        card = fitted.attack()
        print(card)
        print([result.attack for result in card.broken])
        ```
    """

    name: str
    results: tuple[Result, ...]
    not_applicable: tuple[NotApplicable, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    """System, data, link, release, choices, what was looked at: in words."""
    notes: tuple[str, ...] = ()
    setting: CardSetting = CardSetting("what was set")
    failed: tuple[Failed, ...] = ()

    def require_whole(self) -> None:
        """Raises where an attack fell over."""
        if self.failed:
            named = "; ".join(f"{one.code} {one.attack}: {one.error}" for one in self.failed)
            raise AttackFailed(
                f"{len(self.failed)} of the attacks fell over, and whether the promises that they "
                f"test hold is not known: {named}"
            )

    @property
    def broken(self) -> tuple[Result, ...]:
        """Results of attacks that broke a promise."""
        return tuple(r for r in self.results if r.verdict == "broken")

    @property
    def underpowered(self) -> tuple[Result, ...]:
        """Results of attacks that saw too little for a verdict."""
        return tuple(r for r in self.results if r.verdict == "underpowered")

    def records(self) -> list[dict[str, Any]]:
        """A row for each attack: attack, party, value, low, high, base_rate, verdict and more.

        Returns:
            What `attacks` has, with the ends of the interval as `low` and `high`.
        """
        return [
            {**{k: v for k, v in one.items() if k != "interval"},
             **dict(zip(("low", "high"), one["interval"], strict=True))}
            for one in self.attacks()
        ]  # fmt: skip

    def __str__(self) -> str:
        lead = " ".join(say(sentence) for sentence in self.summary())
        stands = f" The system is {self.facts[STANDS]}." if self.facts.get(STANDS) else ""
        whole = self.table()
        # Promises are long; the page, `paragraphs` and --json have them.
        columns = [column for column in whole.columns if column.key not in ("promise", "recall")]
        kept = [column.key for column in columns]
        rows = [{key: row[key] for key in kept if key in row} for row in whole.rows]
        parts = [Table(whole.title, columns, rows).to_text()] if rows else []
        return "\n".join([*parts, f"{lead}{stands}"])

    def attacks(self) -> list[dict[str, Any]]:
        """The results for JSON; what is no finite number is null."""
        return [r.content() for r in self.results]

    def content(self, run: object) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "run": str(run),
            "attacks": self.attacks(),
            "not_applicable": [asdict(one) for one in self.not_applicable],
            "failed": [asdict(one) for one in self.failed],
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        rows = [_row(r) for r in self.results]
        columns = [
            Column("promise"),
            Column("attack"),
            Column("party", "by"),
            Column("measure"),
            Column("value", "result", ".3f"),
            Column("interval", "95 %"),
            Column("base", "without the attack", ".3f"),
            Column("recall", "found", ".3f"),
            Column("verdict"),
        ]
        if any(r.needed for r in self.results):
            columns.append(Column("needed", "it would take"))
        return Table(f"Attacks on {self.name}", columns, rows, notes=[READING])

    def left_out(self) -> Table:
        """A table of the attacks that do not apply, and why."""
        rows: list[Mapping[str, str]] = [
            {"attack": f"{one.code} {one.attack}", "by": one.party, "why": one.reason}
            for one in self.not_applicable
        ]
        return Table(
            "Attacks that do not apply", [Column("attack"), Column("by"), Column("why")], rows
        )

    def fallen(self) -> Table:
        """What fell over."""
        rows: list[Mapping[str, str]] = [
            {"attack": f"{one.code} {one.attack}", "by": one.party, "error": one.error}
            for one in self.failed
        ]
        columns = [Column("attack"), Column("by"), Column("error")]
        return Table("Attacks that fell over: nothing is known of what they test", columns, rows)

    def summary(self) -> list[Said]:
        """How many promises held, for whom they were made."""
        if not self.results and not self.failed:
            return [said("attack.summary_none")]
        if not self.results:
            return [said("attack.fell", n=len(self.failed)), said("attack.summary_failed")]
        of, broken, unclear = len(self.results), len(self.broken), len(self.underpowered)
        open_ = [said("attack.summary_underpowered", n=unclear)] if unclear else []
        open_ += [said("attack.fell", n=len(self.failed))] if self.failed else []
        if broken:
            return [said("attack.summary_broken", n=broken, of=of), *open_]
        if unclear == of:
            return [*open_, said("attack.no_proof")]
        held = said("attack.summary_some", n=of - unclear, of=of)
        if not unclear:
            held = said("attack.summary_held", n=of)
        return [held, *open_, said("attack.no_proof")]

    def plainly(self) -> list[list[Said]]:
        """What each result means to the owner of a device; its promise is not among the
        sentences."""
        return [plain_words(result) for result in self.results]

    def paragraphs(self) -> list[str]:
        """A few sentences for each promise, for whom it was made."""
        if not self.results and self.failed:
            return ["No attack of the suite came to an end. That is no proof of anything."]
        if not self.results:
            return ["No attack of the suite applies to this run. That is no proof of anything."]
        return [in_words(result, self.setting) for result in self.results]


def _row(r: Result) -> Mapping[str, str | int | float]:
    row: dict[str, str | int | float] = {
        "promise": r.promise,
        "attack": f"{r.code} {r.attack}",
        "party": r.party,
        "measure": r.measure,
        "value": r.value if r.claims else math.nan,
        "interval": _interval(r),
        "base": r.base_rate if r.claims else math.nan,
        "recall": r.recall,
        "verdict": r.verdict,
    }
    if r.needed:
        row["needed"] = f"{r.needed:,} {r.unit}"
    return row


def plain_promise(result: Result) -> Said:
    """What was promised, as the person would say it to whom it was."""
    for key, attack in ATTACKS.items():
        same = (attack.code, attack.name, attack.party) == (
            result.code,
            result.attack,
            result.party,
        )
        if same and result.measure == PERMITTED:  # no more is promised
            return said("attack.promise.known-others")
        if same and f"attack.promise.{key}" in catalogue(LANGUAGES[0]):
            return said(f"attack.promise.{key}")
    return said("attack.promise.other", promise=result.promise)


def plain_words(result: Result) -> list[Said]:
    """What a result means to the owner of a device, in plain sentences: what follows for her
    first."""
    who = said(f"attack.who.{result.party}")
    if result.verdict == "nothing to attack":
        return [said("attack.nothing", who=who)]
    broken = result.verdict == "broken"
    first = said(f"attack.{_FIRST[result.verdict]}", who=who)
    value, base = _plain_share(result.value), _plain_share(result.base_rate)
    kinds = {"AUC": "pair", PERMITTED: "permitted", "precision": "claims"}
    kinds |= dict.fromkeys(("accuracy", "share", "recall"), "right")
    if result.measure in kinds:
        found = [said(f"attack.{kinds[result.measure]}", who=who, value=value, base=base)]
    else:
        shown, plain = f"{result.value:.3g}", f"{result.base_rate:.3g}"
        found = [said("attack.other", who=who, value=shown, base=plain)]
    if result.measure == "precision" and not math.isnan(result.recall):
        found.append(said("attack.found", value=_plain_share(result.recall)))
    if broken:
        return [first, *found, said("attack.remedy")]
    if result.verdict == "underpowered":
        return [first, *found, *_what_it_takes(result)]
    if result.measure == PERMITTED:
        return [first, *found, said("attack.within")]
    return [first, *found, said("attack.no_better")]


_FIRST = {"broken": "was_broken", "holds": "held", "underpowered": "underpowered"}


def _what_it_takes(result: Result) -> list[Said]:
    few = [said("attack.too_few")]
    if result.needed is None:
        return few
    return [*few, said(f"attack.needs_{result.unit}", n=_about(result.needed), seen=result.looked)]


def _about(number: int) -> int:
    """Two digits of it, rounded up: no more is known."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step


def _plain_share(share: float) -> int | Said:
    """Of 100."""
    return round(100 * share) if share < 0.995 or share == 1 else said("attack.more_than_99")


def in_words(result: Result, setting: CardSetting) -> str:
    """What a result means to the owner of a device."""
    head = f"{result.promise.rstrip('.')} ({result.code})."
    if result.verdict == "nothing to attack":
        return f"{head} {meaning(result, setting)}"
    more = f" More: {result.detail.rstrip('.')}." if result.detail else ""
    return f"{head} {meaning(result, setting)}{more}"


def meaning(result: Result, setting: CardSetting) -> str:
    """The same in plain words alone: what was found, and what follows."""
    who = _PARTIES[result.party]
    who = who[0].upper() + who[1:]
    if result.verdict == "nothing to attack":
        return f"{who} had nothing to make a guess from."
    found = _found(result, who)
    if result.verdict == "holds" and result.measure == PERMITTED:
        return (
            f"{found} That is no more than ε permits, but for chance; it can be more than a guess."
        )
    if result.verdict == "holds":
        return f"{found} That is no better than guessing, so this attack failed."
    if result.verdict == "underpowered":
        return f"{found} {_undecided(result)}"
    return f"{found} {setting.relied_on} did not prevent that. {_remedy(result, setting)}"


def _undecided(result: Result) -> str:
    base = "what ε permits" if result.measure == PERMITTED else "a guess"
    words = (
        f"Too little was seen for a verdict: the interval reaches {result.interval[1]:.3f}, and "
        f"from {result.far_above:.3f} on it would be far above {base}."
    )
    if result.needed is None:
        return words
    return (
        f"{words} It would take about {_about(result.needed):,} {result.unit}; {result.looked:,} "
        "were looked at."
    )


def _found(result: Result, who: str) -> str:
    value, base = _of_hundred(result.value), _of_hundred(result.base_rate)
    if result.measure == "AUC":
        return (
            f"Shown a pair, one that is so and one that is not, {_lower(who)} picks the right one "
            f"{value} times; a guess without the attack, {base}."
        )
    if result.measure == PERMITTED:
        return (
            f"Shown a pair, one that is so and one that is not, {_lower(who)}, if it knew "
            f"everything else, would pick the right one {value} times; ε permits {base}, and a "
            "coin gives 50."
        )
    if result.measure == "precision":
        whole = ""
        if not math.isnan(result.recall):
            whole = f" It found {_of_hundred(result.recall)} of what there was to find."
        return (
            f"Of the claims of {_lower(who)}, {value} are right; without the attack, {base} would "
            f"be.{whole}"
        )
    if result.measure in ("accuracy", "share", "recall"):
        return f"{who} is right in {value} cases; the best guess without the attack, in {base}."
    shown, plain = f"{result.value:.3g}", f"{result.base_rate:.3g}"
    return f"{who} reaches a {result.measure} of {shown}; without the attack it is {plain}."


def _remedy(result: Result, setting: CardSetting) -> str:
    stay = "Who must not be read should not take part."
    alike = [a for a in ATTACKS.values() if (a.code, a.party) == (result.code, result.party)]
    alike.sort(key=lambda attack: attack.name != result.attack)
    name, words = alike[0].remedy if alike else Remedy()
    if not words or name in setting.remedies:
        return stay
    return f"What is made for it: {words}. {stay}"


def _of_hundred(share: float) -> str:
    return f"{100 * share:.0f} of 100" if share < 0.995 or share == 1 else "more than 99 of 100"


def _lower(who: str) -> str:
    return who[0].lower() + who[1:]


def _interval(result: Result) -> str:
    return "–" if not result.claims else f"{result.interval[0]:.3f} to {result.interval[1]:.3f}"


# --- in files ------------------------------------------------------------------------------------


def write_card(card: Card, run: object, page: Path, content: Path) -> Path:
    """The page, its figure in a folder beside it, and the same as JSON; each replaces an older one
    whole or not at all."""
    folder = page.with_name(f"{page.stem}-figures")
    with new_figures(folder) as figures:
        sections = [
            Section("What was attacked", _attacked(card)),
            Section("Promises, and what they are worth", _results(card, figures)),
        ]
        if card.failed:
            sections.insert(1, Section("What fell over", [card.fallen()]))
        if card.not_applicable:
            sections.append(Section("What does not apply", [card.left_out()]))
        write_report(page, f"{card.name}: what its promises are worth", sections, lead_of(card))
    write_text(content, json.dumps(card.content(run), indent=2, allow_nan=False) + "\n")
    return page


def _attacked(card: Card) -> list[Block]:
    blocks: list[Block] = [KeyValues(card.facts)]
    return [*blocks, TextBlock("\n\n".join(card.notes))] if card.notes else blocks


def lead_of(card: Card) -> Lead:
    """How many promises are broken, before anything else."""
    first, *more = (say(sentence) for sentence in card.summary())
    if card.facts.get(STANDS):
        more.append(f"The system is {card.facts[STANDS]}.")
    if card.broken:
        return Lead("broken", first, more)
    if card.underpowered:
        return Lead("underpowered", first, more)
    whole = any(r.claims for r in card.results) and not card.failed
    return Lead("holds" if whole else "nothing", first, more)


def _results(card: Card, figures: Path) -> list[Block]:
    if not card.results:
        return [TextBlock("\n\n".join(card.paragraphs()))]
    rows = [_verdict(result, card.setting) for result in card.results]
    blocks: list[Block] = [Verdicts(f"Attacks on {card.name}", rows, [_LEGEND, READING])]
    shown = [r for r in card.results if r.claims and math.isfinite(r.value)]
    if shown:
        drawn = draw_results(figures / "attacks", shown)
        words = "What each attack reached, with its 95 % interval, beside a guess without it"
        blocks.append(FigureBlock(drawn.svg, words, f"{words}."))
    return blocks


_LEGEND = (
    "In the figure a mark is what an attack reached: a diamond where the promise is broken, a "
    "circle where it holds, an empty one where the attack is underpowered. The bar is its 95 % "
    "interval. The upright line is a guess without the attack, or what ε permits."
)


def _verdict(result: Result, setting: CardSetting) -> Verdict:
    drawn = bool(result.claims) and math.isfinite(result.value)
    base = "ε permits" if result.measure == PERMITTED else "a guess"
    figures = f"{result.measure}: {result.value:.3f}; {base}: {result.base_rate:.3f}"
    kind: Literal["broken", "holds", "underpowered", "nothing"] = "nothing"
    if result.verdict != "nothing to attack":
        kind = result.verdict
    return Verdict(
        say(plain_promise(result)),
        " ".join(say(sentence) for sentence in plain_words(result)),
        f"{result.code} {result.attack}",
        _technical(result, setting),
        say(said(f"attack.who.{result.party}")),
        kind,
        result.verdict,
        figures if drawn else "–",
    )


def _technical(result: Result, setting: CardSetting) -> str:
    """The exact promise and result, by numbers, and what else the attack has to say."""
    parts = [f"{result.promise.rstrip('.')}.", meaning(result, setting)]
    if result.claims:
        recall = "" if math.isnan(result.recall) else f", recall {result.recall:.3f}"
        parts.append(
            f"{result.measure[0].upper()}{result.measure[1:]} {result.value:.3f}, 95 % interval "
            f"{_interval(result)}, base rate {result.base_rate:.3f}{recall}, from "
            f"{result.claims:,} {'claim' if result.claims == 1 else 'claims'}."
        )
    if result.detail:
        parts.append(f"{result.detail[0].upper()}{result.detail[1:].rstrip('.')}.")
    return " ".join(parts)


def draw_results(path: Path, results: Sequence[Result]) -> plots.Figures:
    """A line for each attack: its result with the interval, and the base rate."""
    height, light = 1.6 + 0.42 * len(results), plots.page_colours()[0]
    with plots.drawing(path, "", (7.6, height)) as (figure, axes):
        places = range(len(results))[::-1]
        for verdict, name, marker in (
            ("broken", "bad", "D"),
            ("holds", "good", "o"),
            ("underpowered", "warn", "o"),
        ):
            mine = [(p, r) for p, r in zip(places, results, strict=True) if r.verdict == verdict]
            if not mine:
                continue
            low = [max(0.0, r.value - r.interval[0]) for _, r in mine]
            high = [max(0.0, r.interval[1] - r.value) for _, r in mine]
            axes.errorbar(
                [r.value for _, r in mine], [p for p, _ in mine], xerr=[low, high], fmt=marker,
                color=light[name], markerfacecolor=light["paper" if name == "warn" else name],
                capsize=3, markersize=6, linewidth=1.6, label=f"attack, {verdict}",
            )  # fmt: skip
        axes.scatter(
            [r.base_rate for r in results], list(places), marker="|", s=220, linewidths=2.2,
            color=plots.SOFT, zorder=3, label="without the attack",
        )  # fmt: skip
        axes.set_yticks(list(places), [f"{r.code} {r.attack}\n({r.party}, {r.measure})"
                                       for r in results], fontsize=8)  # fmt: skip
        top = max(1.0, *(r.interval[1] for r in results if math.isfinite(r.interval[1])))
        axes.set(xlim=(-0.03, 1.03 * top), ylim=(-0.7, len(results) - 0.3), xlabel="result")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return plots.figure_files(path)
