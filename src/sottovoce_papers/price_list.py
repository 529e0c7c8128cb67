"""The price list: every system as printed and as it survives, with accuracy, bytes, time, and what
each attack came to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sottovoce.attacks.power import decided
from sottovoce.attacks.views import PERMITTED
from sottovoce.runs.tables import readable_bytes
from sottovoce_papers.claims import (
    Claim,
    Part,
    Row,
    Sets,
    Spec,
    StudyLine,
    chosen,
    claim,
    fits,
    groups,
)
from sottovoce_papers.lines import TrainedLine

MEMBERSHIP = "A12"
"""The attack that needs nothing but the published model."""
KNOWS_OTHERS = "whoever knows everybody else"
"""The attack of A12 that gets what ε permits, by its making."""
NOTHING = "nothing to attack"


# --- columns and rows ----------------------------------------------------------------------------


def columns(line: TrainedLine) -> Row:
    """Return what a way to run a system costs in a round, and which attacks won, held, or saw too
    little. Of several seeds the fastest round counts: other work only slows a machine down."""
    facts = line.facts
    if not facts or "attacks" not in facts[0]:
        return {}
    won, lost = _by_code(line, "broken"), _by_code(line, "holds")
    unclear = _by_code(line, "underpowered")
    broken = [
        code if len(seeds) == len(facts) else f"{code} ({len(seeds)} of {len(facts)} seeds)"
        for code, seeds in won.items()
    ]
    up = sum(one["round up"] for one in facts) / len(facts)
    return {
        "up": up,
        "down": facts[0]["round down"],
        "round seconds": min(one["round seconds"] for one in facts),
        "devices": facts[0]["devices"],
        "rounds": facts[0]["rounds"],
        "noise": facts[0]["noise"],
        "model": "+".join(one["model"] for one in facts),
        "won": "yes" if won else "no",
        "broken": ", ".join(broken) or "none",
        "held": ", ".join(code for code in lost if code not in won) or "none",
        "underpowered": ", ".join(code for code in unclear if code not in won) or "none",
        "words": f"{readable_bytes(up)} up; broken: {', '.join(broken) or 'none'}",
    }


def _by_code(line: TrainedLine, verdict: str) -> dict[str, set[int]]:
    """Return the seeds with which an attack of each code had this verdict."""
    found: dict[str, set[int]] = {}
    for one in line.facts:
        for attack in one["attacks"]:
            if attack["verdict"] == verdict:
                found.setdefault(attack["code"], set()).add(one["seed"])
    return found


def attacks(sets: Sets, values: Spec) -> list[StudyLine]:
    """Return a row for each attack on each way to run a system, with each seed."""
    found = []
    for line in sets["main"]:
        kept = {name: line.row.get(name) for name in ("data", "system", "key", "kind", "settings")}
        kept |= {"epsilon": line.row.get("epsilon"), "accuracy": line.row.get("P@10")}
        for facts in line.facts:
            for attack in facts["attacks"]:
                low, high = attack["interval"]
                row = {**attack, **kept, "seed": facts["seed"], "low": low, "high": high}
                row |= {"name": f"{attack['code']} {attack['attack']}"}
                row["interval"] = f"{low:.3f} to {high:.3f}"
                if attack["verdict"] == NOTHING:
                    row |= {"value": None, "interval": "–", "base_rate": None}
                found.append(StudyLine(row))
    return found


# --- claims ---------------------------------------------------------------------------------------


def _words(row: Row) -> str:
    found = "" if row["recall"] is None else f", {row['recall']:.1%} found"
    return (
        f"{row['settings']}: {row['name']}, seed {row['seed']}: {row['measure']} "
        f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}], {row['base_rate']:.3f} without "
        f"it{found}{', underpowered' * (row['verdict'] == 'underpowered')}"
    )


def _tried(sets: Sets, spec: Spec) -> Iterator[tuple[Any, list[Row]]]:
    """The attacks that a claim is about and that had something to attack, by data set."""
    for (source,) in groups(sets["main"], ["data"]):
        rows = [line.row for line in chosen(sets["attacks"], {"data": source, **spec["of"]})]
        yield source, [row for row in rows if row["verdict"] != NOTHING]


def wins(sets: Sets, spec: Spec) -> list[Claim]:
    """Return whether an attack wins against a system as printed: the best of its results, or all of
    them if they must find a share of what is hidden (`recall`)."""
    found = []
    for source, rows in _tried(sets, spec):
        if rows and "recall" not in spec:
            rows = [max(rows, key=lambda row: row["low"] - row["base_rate"])]
        least = spec.get("recall", 0.0)
        parts = [
            (row["verdict"] == "broken" and (row["recall"] or 0.0) >= least, _words(row))
            for row in rows
        ]
        if not parts and "must" in spec:
            ran = any(fits(line.row, {"data": source, **spec["must"]}) for line in sets["main"])
            parts = [(False, "the attack was not run")] * ran
        if parts:
            found.append(claim(spec["text"].format(data=source), *parts))
    return found


def holds(sets: Sets, spec: Spec) -> list[Claim]:
    """Return whether no attack wins against each way that was made against attacks. Membership
    inference is left out, because it has a claim of its own."""
    found = []
    for line in chosen(sets["main"], spec["of"]):
        where = {name: line.row[name] for name in ("data", "key", "settings")}
        rows = [one.row for one in chosen(sets["attacks"], where)]
        rows = [row for row in rows if row["code"] != MEMBERSHIP]
        lost = [row for row in rows if row["verdict"] == "broken"]
        unclear = [row for row in rows if row["verdict"] == "underpowered"]
        codes = ", ".join(dict.fromkeys(row["code"] for row in rows)) or "none"
        detail = "; ".join(map(_words, lost + unclear)) or f"tried: {codes}"
        text = (
            "{data}: {system}, {settings}: no attack beats the guess without it "
            f"({MEMBERSHIP} aside)"
        )
        found.append(claim(text.format_map(line.row), (not lost, detail)))
    return found


def membership(sets: Sets, spec: Spec) -> list[Claim]:
    """Return what the published model tells of members without noise, and what closing that with
    noise costs."""
    found = []
    for _, rows in _tried(sets, {"of": {**spec["of"], "code": MEMBERSHIP}}):
        ways: dict[tuple[Any, ...], list[Row]] = {}
        for row in sorted(rows, key=lambda row: row["epsilon"] is not None):
            ways.setdefault((row["system"], row["settings"]), []).append(row)
        plain: dict[str, Row] = {}
        for (system, _), mine in ways.items():
            first = mine[0]
            if first["epsilon"] is None:
                plain.setdefault(system, first)
                text = "{data}: {system}, {settings}: the model tells nothing of members (A12)"
            else:
                text = "{data}: {system}: noise for ε = {epsilon:g} closes A12"
            parts = [(_closed(row), _words(row) + _cost(row, plain.get(system))) for row in mine]
            found.append(claim(text.format_map(first), *parts))
    return found


def _cost(row: Row, base: Row | None) -> str:
    if row["epsilon"] is None or base is None or not base["accuracy"]:
        return ""
    return f", P@10 {row['accuracy']:.4f} ({row['accuracy'] / base['accuracy'] - 1.0:+.0%})"


def _closed(row: Row) -> bool:
    """Whether an attack is known to tell no more than a coin; that of somebody who knows everybody
    else, no more than ε permits."""
    if row["measure"] != PERMITTED or row["attack"] == KNOWS_OTHERS:
        return bool(row["verdict"] == "holds")
    return bool(row["low"] <= 0.5 and decided((row["low"], row["high"]), 0.5))


def same_model(sets: Sets, spec: Spec) -> list[Claim]:
    """Return whether a secure sum without noise gives the model of the direct link, bit for bit."""
    found = []
    for (source,), lines in groups(sets["main"], ["data"]).items():
        rows = {line.row["key"]: line.row for line in lines if "model" in line.row}
        for direct, summed in spec["pairs"]:
            if direct in rows and summed in rows:
                one, other = rows[direct], rows[summed]
                gap = other["P@10"] - one["P@10"]
                words = f"model and vectors {other['model'][:8]} and {one['model'][:8]}"
                part: Part = (one["model"] == other["model"], f"{words}, P@10 {gap:+.4f}")
                text = "over a secure sum is the same as on the direct link, bit for bit"
                found.append(claim(f"{source}: {one['system']} {text}", part))
    return found
