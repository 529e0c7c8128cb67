"""A fair benchmark of federated recommenders: ours, published rivals and central references under
one protocol, with intervals, bytes, ε and what attacks came to. Others can add their rows.

`benchmark.json` is what others add to. It has

    {"format": "sottovoce-benchmark", "version": 1,
     "sets": {"movielens-1m": {"test": "…", "protocol": "…"}, …},
     "rows": [{"data": "movielens-1m", "system": "…", "kind": "others", "test": "…",
               "NDCG@10": .1, "NDCG@10 half": .002, "HR@10": …, "HR@10 half": …, "R@10": …, …}, …]}

A row needs `data`, `system`, `test` and NDCG@10. `test` is a digest of the test part: figures on
other held-out items are no comparison, and are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import DataError
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.tables import readable_bytes
from sottovoce_papers.benchmark_cells import METRICS, NOT_ATTACKED, BenchmarkStudy
from sottovoce_papers.study import Claim, Row, claim, interval, shown

NAME = "benchmark"
FORMAT, FORMAT_VERSION = "sottovoce-benchmark", 1
KINDS = {"ours": "of ours", "rival": "published rival", "central": "central", "others": "added"}
_NEEDED = ("data", "system", "test", METRICS[0])
_NUMBERS = (*METRICS, *(f"{metric} half" for metric in METRICS), "up", "down", "epsilon", "seconds")
_WORDS = ("data", "system", "kind", "test", "bound", "attacks", "protocol", "source")
_KNOWN = {*_NUMBERS, *_WORDS, "settings"}


# --- rows ----------------------------------------------------------------------------------------


def _line(row: Row) -> Row:
    """As JSON has it: what nobody knows, and what no ε bounds, is null."""
    line = {key: value for key, value in row.items() if key != "values"}
    for metric, values in row["values"].items():
        line[metric], line[f"{metric} half"] = float(values.mean()), interval(values)
    for name in ("up", "down"):
        line[name] = line[name] if line[name] >= 0 else None
    line["epsilon"] = line["epsilon"] if math.isfinite(line["epsilon"]) else None
    return line


def added_rows(path: Path, sets: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """The rows of a file that are about these data sets and their test parts. Raises with the row
    and the field that is wrong, and names nothing of it as good."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise DataError(f'{path} is no benchmark: "format" must be "{FORMAT}"')
    if table.get("version") != FORMAT_VERSION:
        raise DataError(f'{path}: "version" must be {FORMAT_VERSION}, not {table.get("version")!r}')
    rows = table.get("rows")
    if not isinstance(rows, list) or not rows:
        raise DataError(f'{path} has no "rows"')
    return [_checked(row, f"{path}, rows[{n}]", sets) for n, row in enumerate(rows)]


def _checked(row: object, where: str, sets: Mapping[str, Mapping[str, str]]) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where} must be an object")
    lacks = [name for name in _NEEDED if row.get(name) is None]
    if lacks:
        raise DataError(f"{where} lacks {', '.join(lacks)}")
    unknown = sorted(set(row) - _KNOWN)
    if unknown:
        raise DataError(f"{where} has unknown fields {unknown}; known are {sorted(_KNOWN)}")
    for name in _NUMBERS:
        value = row.get(name)
        good = value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not good or (value is not None and value < 0):
            raise DataError(f"{where}: {name} must be a number from 0, or null, not {value!r}")
    for name in METRICS:
        if row.get(name) is not None and row[name] > 1:
            raise DataError(f"{where}: {name} must lie between 0 and 1, not {row[name]!r}")
    for name in _WORDS:
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{where}: {name} must be text, not {row[name]!r}")
    if row["data"] not in sets:
        raise DataError(f"{where}: there is no data set {row['data']}; there are {sorted(sets)}")
    if row["test"] != sets[row["data"]]["test"]:
        raise DataError(
            f"{where} has figures on other held-out items (test {row['test']}, here "
            f"{sets[row['data']]['test']}), which cannot be compared"
        )
    empty = dict.fromkeys((*_NUMBERS, "settings"))
    words = {"bound": "not said", "attacks": NOT_ATTACKED, "protocol": "", "source": ""}
    return {**empty, **words, **row, "kind": "others"}


def merged(mine: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """In the order of accuracy within each data set. Of two rows of one system the added one is
    refused: nobody's figures are replaced unseen."""
    known = {(row["data"], row["system"]) for row in mine}
    rows = list(mine)
    for row in others:
        if (row["data"], row["system"]) in known:
            raise DataError(
                f"there is a row of {row['system']} on {row['data']} already; give the added one "
                "another name"
            )
        known.add((row["data"], row["system"]))
        rows.append(row)
    order = list(dict.fromkeys(row["data"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["data"]), -row[METRICS[0]]))


# --- what is claimed -----------------------------------------------------------------------------


def _claims(source: str, rows: Sequence[Row]) -> list[Claim]:
    def of(kind: str) -> list[Row]:
        return [row for row in rows if row["data"] == source and row["kind"] == kind]

    ours, rivals, central = of("ours"), of("rival"), of("central")
    found = []
    if ours and rivals:
        best, rival = max(ours, key=_score), max(rivals, key=_score)
        found.append(
            claim(
                f"{source}: a system of ours is at least as accurate as every published rival",
                (_score(best) >= _score(rival), f"{_told(best)} against {_told(rival)}"),
            )
        )
        bounded = [row for row in ours if row["epsilon"] is not None and row["epsilon"] <= 10]
        if bounded:
            best = max(bounded, key=_score)
            found.append(
                claim(
                    f"{source}: so is one that an ε of 10 or less bounds",
                    (_score(best) >= _score(rival), f"{_told(best)} against {_told(rival)}"),
                )
            )
    floor = next((row for row in central if row["system"] == "Top-Pop"), None)
    if floor is not None and ours + rivals:
        below = [row for row in ours + rivals if _score(row) < _score(floor)]
        words = "; ".join(_told(row) for row in below) or f"Top-Pop has {_score(floor):.4f}"
        found.append(claim(f"{source}: nothing federated is below Top-Pop", (not below, words)))
    return found


def _score(row: Row) -> float:
    return float(row[METRICS[0]])


def _told(row: Row) -> str:
    return f"{row['system']} {_score(row):.4f}"


# --- table and plot ------------------------------------------------------------------------------


def _table(study: BenchmarkStudy, source: str, rows: Sequence[Row]) -> Table:
    columns = [Column("system"), Column("kind")]
    for metric in METRICS:
        columns += [Column(metric, metric, ".4f", "max"), Column(f"{metric} half", "±", ".4f")]
    columns += [
        Column("share", "of the best central", ".0%"), Column("up", "up, a user"),
        Column("down", "down, a user"), Column("epsilon", "ε, a user"), Column("bound", "bound"),
        Column("attacks"), Column("seconds", "s", ".1f"),
    ]  # fmt: skip
    mine = [row for row in rows if row["data"] == source]
    best = max((_score(row) for row in mine if row["kind"] == "central"), default=math.nan)
    lines = [
        {**row, "kind": KINDS[row["kind"]], "share": _score(row) / best if best > 0 else None,
         "up": _bytes(row["up"]), "down": _bytes(row["down"]),
         "epsilon": "none" if row["epsilon"] is None else f"{row['epsilon']:.3g}"}
        for row in mine
    ]  # fmt: skip
    notes = ["Bytes are those of one user in all rounds together; a central system has histories."]
    if study.config.rounds:
        notes.append(
            f"Rivals had rounds for a look alone, {study.config.rounds} of them: their figures say "
            "nothing of them, and nothing is claimed."
        )
    left_out = [one for one in study.systems if one.sources and source not in one.sources]
    notes += [f"{one.label} is not here: {one.why or 'not run on these data'}." for one in left_out]
    protocol = mine[0]["protocol"] if mine else ""
    return shown(f"Federated recommenders on {source}", columns, lines, protocol, notes)


def _bytes(value: float | None) -> str:
    return "–" if value is None else readable_bytes(value)


def _draw(source: str, rows: Sequence[Row], path: Path) -> FigureBlock:
    """Accuracy against what a user sends; central references are level lines."""
    mine = [row for row in rows if row["data"] == source]
    metric = METRICS[0]
    with plots.drawing(path, f"{source}: accuracy against bytes", (7.6, 5.2)) as (figure, axes):
        sent = [row for row in mine if row["up"] is not None]
        for number, kind in enumerate(("ours", "rival", "others")):
            chosen = [row for row in sent if row["kind"] == kind]
            if chosen:
                axes.scatter(
                    [max(1.0, row["up"]) for row in chosen], [row[metric] for row in chosen],
                    color=plots.PALETTE[number], marker=plots.MARKERS[number], s=44, zorder=3,
                    label=KINDS[kind],
                )  # fmt: skip
        for row in sent:
            epsilon = "" if row["epsilon"] is None else f" (ε {row['epsilon']:.3g})"
            axes.annotate(
                row["system"] + epsilon, (max(1.0, row["up"]), row[metric]), fontsize=7,
                xytext=(4, 4), textcoords="offset points",
            )  # fmt: skip
        for row in (row for row in mine if row["kind"] == "central"):
            axes.axhline(row[metric], color=plots.SOFT, linestyle=(0, (5, 2)), linewidth=0.8)
            axes.annotate(
                row["system"], (1.0, row[metric]), xycoords=("axes fraction", "data"), fontsize=7,
                color=plots.SOFT, va="center",
            )  # fmt: skip
        if sent:
            axes.set_xscale("log")
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        axes.set(xlabel="bytes that a user sends in all", ylabel=metric)
    words = f"{metric} on {source} against what a user sends; ε where one bounds it"
    return FigureBlock(plots.figure_files(path).svg, words, f"{words}.")


def benchmark(study: BenchmarkStudy, out: Path, add: Sequence[Path] = ()) -> dict[str, Any]:
    """The table and plot of every data set, and `benchmark.json`."""
    lines = [_line(row) for source in study.config.sources for row in study.rows(source)]
    sets = {
        row["data"]: {"test": row["test"], "protocol": row["protocol"]} for row in reversed(lines)
    }
    rows = merged(lines, [row for path in add for row in added_rows(path, sets)])
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    sources = list(dict.fromkeys(row["data"] for row in rows))
    tables = [_table(study, source, rows) for source in sources]
    pictures = [_draw(source, rows, figures / source) for source in sources]
    fair = not study.config.rounds
    claims = [one for source in sources for one in _claims(source, rows)] if fair else []
    content = {"format": FORMAT, "version": FORMAT_VERSION, "sets": sets, "rows": rows}
    place = out / "benchmark.json"
    place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return study.result(
        NAME, out, tables, claims, pictures, rows=rows, sets=sets, file=str(place)
    )  # fmt: skip


STUDY = BenchmarkStudy
VIEWS = {NAME: benchmark}
