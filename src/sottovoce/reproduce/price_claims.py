"""What the price list claims, and whether it is so: what fails as printed, what holds if sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.reproduce.fpl_table2 import claim
from sottovoce.reproduce.price_cells import Cell, PriceStudy, Row

Found = Sequence[tuple[Row, Cell]]
FOUND_AT_LEAST = 0.95
"""Of the hidden positives that were drawn, by A1 as printed."""
EXPECTED: Mapping[str, tuple[str, str]] = {
    "A3": ("FPL", "the sign of a bias names positives (A3)"),
    "A4": ("FCF", "one upload names every item (A4)"),
    "A6": ("DRIFT", "the orchestrator recognises users in gradients (A6)"),
    "A7": ("DRIFT", "requests name who touched what (A7)"),
    "A9": ("UC-FedRec", "a filter's update names the class (A9)"),
}
"""What must succeed as printed, so that nobody takes it for protection: by code, and whose."""
MEMBERSHIP = "A12"
"""The attack that needs nothing but the published model."""


def broken_codes(cell: Cell) -> list[str]:
    """Codes of the attacks that have won."""
    return list(dict.fromkeys(a["code"] for a in cell.attacks if a["verdict"] == "broken"))


def every_claim(study: PriceStudy, source: str, found: Found) -> list[dict[str, Any]]:
    claims = [
        *_inversion(source, found),
        *_expected(source, found),
        *_sound(source, found),
        *_membership(source, found),
        *_same_model(study, source, found),
    ]
    return claims


def _words(attack: Mapping[str, Any]) -> str:
    low, high = attack["interval"]
    return (
        f"{attack['code']} {attack['attack']}, seed {attack['seed']}: {attack['measure']} "
        f"{attack['value']:.3f} "
        f"[{low:.3f}, {high:.3f}], {attack['base_rate']:.3f} without it"
    )


def _inversion(source: str, found: Found) -> list[dict[str, Any]]:
    """A1 on updates in the clear, where no positive may leave."""
    claims = []
    for row, cell in found:
        shares = {choice.get("share_positives") for choice in _choices(row, source)}
        if row.system != "FPL" or row.kind != "printed" or shares != {0.0}:
            continue
        tried = [a for a in cell.attacks if (a["code"], a["party"]) == ("A1", "server")]
        parts = [
            (
                a["recall"] is not None
                and a["recall"] >= FOUND_AT_LEAST
                and a["verdict"] == "broken",
                f"{_found(a)} found, {_words(a)}",
            )
            for a in tried
        ]
        text = (
            f"{source}: as printed, with π = 0, A1 recovers at least {FOUND_AT_LEAST:.0%} of the "
            "hidden positives that were drawn"
        )
        claims.append(claim(text, *(parts or [(False, "the attack was not run")])))
    return claims


def _found(attack: Mapping[str, Any]) -> str:
    return "none" if attack["recall"] is None else f"{attack['recall']:.1%}"


def _choices(row: Row, source: str) -> list[Mapping[str, Any]]:
    """The choices of those who take part."""
    consent = {**row.sections.get("consent", {}), **row.at.get(source, {}).get("consent", {})}
    choices = consent.get("mix", [consent])
    return [choice for choice in choices if choice.get("takes_part", True)]


def _expected(source: str, found: Found) -> list[dict[str, Any]]:
    claims = []
    for code, (system, words) in EXPECTED.items():
        tried = [
            (row, a)
            for row, cell in found
            if row.system == system and row.kind == "printed"
            for a in cell.attacks
            if a["code"] == code and a["verdict"] != "nothing to attack"
        ]
        if tried:
            row, best = max(tried, key=lambda one: one[1]["interval"][0] - one[1]["base_rate"])
            text = f"{source}: as printed, {words}"
            claims.append(
                claim(text, (best["verdict"] == "broken", f"{row.label}, {_words(best)}"))
            )
    return claims


def _sound(source: str, found: Found) -> list[dict[str, Any]]:
    """That no attack wins, membership inference left out, which has a claim of its own."""
    claims = []
    for row, cell in found:
        if row.kind != "sound":
            continue
        tried = [a for a in cell.attacks if a["code"] != MEMBERSHIP]
        lost = [a for a in tried if a["verdict"] == "broken"]
        codes = ", ".join(dict.fromkeys(a["code"] for a in tried)) or "none"
        detail = "; ".join(map(_words, lost)) or f"tried: {codes}"
        text = (
            f"{source}: {row.system}, {row.label}: no attack beats the guess without it "
            f"({MEMBERSHIP} aside)"
        )
        claims.append(claim(text, (not lost, detail)))
    return claims


def _membership(source: str, found: Found) -> list[dict[str, Any]]:
    """What the published model tells, and what closing it costs."""
    plain = [(r, c) for r, c in found if r.kind == "sound" and not r.epsilon and _members(c)]
    noisy = [(r, c) for r, c in found if r.kind == "sound" and r.epsilon and _members(c)]
    claims = []
    for row, cell in plain:
        text = f"{source}: {row.system}, {row.label}: the model tells nothing of members (A12)"
        claims.append(claim(text, *[(a["verdict"] != "broken", _words(a)) for a in _members(cell)]))
    for row, cell in noisy:
        base = next((c for r, c in plain if r.system == row.system), None)
        cost = ""
        if base is not None and base.accuracy["P@10"] > 0:
            change = cell.accuracy["P@10"] / base.accuracy["P@10"] - 1.0
            cost = f", P@10 {cell.accuracy['P@10']:.4f} ({change:+.0%})"
        text = f"{source}: {row.system}: noise for ε = {row.epsilon:g} closes A12"
        claims.append(
            claim(text, *[(a["verdict"] != "broken", _words(a) + cost) for a in _members(cell)])
        )
    return claims


def _members(cell: Cell) -> list[Mapping[str, Any]]:
    return [
        a for a in cell.attacks if a["code"] == MEMBERSHIP and a["verdict"] != "nothing to attack"
    ]


def _same_model(study: PriceStudy, source: str, found: Found) -> list[dict[str, Any]]:
    """A secure sum without noise gives the model of the direct link, bit for bit."""
    claims = []
    direct: dict[str, Cell] = {}
    for row, cell in found:
        table = dict(row.experiment(source, study.data[source], study.config.seeds[0]).table)
        link = table.pop("link", {})
        key = repr(table)
        if link.get("name", "direct") == "direct":
            direct.setdefault(key, cell)
        elif link.get("name") == "secure-sum" and not link.get("clip") and key in direct:
            same = direct[key].digest == cell.digest
            gap = cell.accuracy["P@10"] - direct[key].accuracy["P@10"]
            text = (
                f"{source}: {row.system} over a secure sum is the same as on the direct link, bit "
                "for bit"
            )
            claims.append(
                claim(text, (same, f"model and vectors {cell.digest[:8]} and "
                             f"{direct[key].digest[:8]}, P@10 {gap:+.4f}"))
            )  # fmt: skip
    return claims
