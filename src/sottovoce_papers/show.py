"""How a study's rows are shown: tables, a handful of plot kinds, and one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import ConfigError
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Cell, Column, Table
from sottovoce.runs.tables import readable_bytes
from sottovoce_papers.claims import (
    Claim,
    Row,
    Sets,
    Spec,
    StudyLine,
    chosen,
    fits,
    groups,
    lines_of,
    paired,
    significance,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- rows ----------------------------------------------------------------------------------------


def print_beside(printed: Spec, lines: Sequence[StudyLine]) -> None:
    """Put printed figures next to ours: `by` names the columns whose values are the keys of `rows`,
    `columns` the metrics of each. With `where` they are for these lines alone."""
    for line in chosen(lines, printed.get("where", {})):
        place = " ".join(str(line.row.get(name)) for name in printed["by"])
        theirs = printed["rows"].get(place, ())
        if isinstance(theirs, Mapping):
            theirs = [theirs.get(name) for name in printed["columns"]]
        line.row.update(
            {f"{name}_paper": None for name in printed["columns"]}
            | {f"{n}_paper": v for n, v in zip(printed["columns"], theirs, strict=False)}
        )


def derive(spec: Spec, lines: Sequence[StudyLine], others: Sequence[StudyLine]) -> None:
    """Add a column that compares a figure with that of a base line: their `ratio`, the relative
    `change`, which the base itself does not have, or `beside`, which it has; the `base` line's
    figure, or the `p` of a paired t-test over users. Of several base lines the best counts.
    `against` is a template for one more column, which names the base line."""
    metric, how = spec["of"], spec["how"]
    for place, mine in groups(lines, spec.get("within", ())).items():
        there = dict(zip(spec.get("within", ()), place, strict=True))
        bases = [one for one in chosen(others, there) if fits(one.row, spec["base"])]
        for line in mine:
            same = [
                one for one in bases if all(one.row[k] == line.row[k] for k in spec.get("like", ()))
            ]
            same = [one for one in same if one.row.get(metric) is not None]
            base = max(same, key=lambda one: one.row[metric], default=None)
            value = None
            if base is not None and base.row[metric] and line.row.get(metric) is not None:
                value = line.row[metric] / base.row[metric]
                if how == "base":
                    value = base.row[metric]
                elif how in ("change", "beside"):
                    value = None if base is line and how == "change" else value - 1.0
                elif how == "p":
                    value = None if base is line else paired(line, base, metric).p
            line.row[spec["column"]] = value
            if "against" in spec:
                other = None if base is line or base is None else base.row
                column = f"{spec['column']} against"
                line.row[column] = other and spec["against"].format_map(other)


# --- tables --------------------------------------------------------------------------------------


def columns_of(specs: Sequence[Spec | str], row: Row) -> list[Column]:
    """Columns as a file writes them: a key alone, or a table, whose label may name columns."""
    tables = [{"key": spec} if isinstance(spec, str) else dict(spec) for spec in specs]
    for table in tables:
        if "{" in table.get("label", ""):
            table["label"] = table["label"].format_map(row)
    return [Column(**table) for table in tables]


def tables_of(spec: Spec, sets: Sets, protocol: str, notes: Sequence[str]) -> list[Table]:
    """Return a table of a study's file, or one for each value of its columns in `each`. With
    `only_known` columns that no row has are left out."""
    lines = chosen(lines_of(sets, spec), spec.get("where", {}))
    if "group" in spec:
        lines = [line for mine in groups(lines, [spec["group"]]).values() for line in mine]
    found = []
    for mine in groups(lines, spec.get("each", ())).values():
        columns = columns_of(spec["columns"], mine[0].row)
        if spec.get("only_known"):
            columns = [one for one in columns if any(one.key in line.row for line in mine)]
        rows = [{one.key: line.row.get(one.key) for one in columns} for line in mine]
        for one in (one for one in columns if one.format == "bytes"):
            for row in rows:
                value = row[one.key]
                row[one.key] = None if value is None else readable_bytes(value)
        if "star" in spec:
            _star(spec["star"], mine, rows)
        title = spec["title"].format_map(mine[0].row)
        said = [*(note.format_map(mine[0].row) for note in spec.get("notes", ())), *notes]
        trained = "size" in mine[0].row
        how = protocol.format_map(mine[0].row) if trained else ""
        found.append(Table(title, columns, rows, how, said))
    return found


def _star(spec: Spec, lines: Sequence[StudyLine], rows: Sequence[Row]) -> None:
    """Mark figures that differ significantly from those of a reference."""
    metric = spec["metric"]
    for mine in groups(lines, spec.get("within", ())).values():
        tests = significance(mine, metric, spec["against"])
        for line, row in zip(lines, rows, strict=True):
            test = tests.get(line.row["system"])
            if line in mine and test is not None and test.significant():
                row[spec["column"]] = Cell(row[spec["column"]], "*")


# --- figures -------------------------------------------------------------------------------------


def _curves(spec: Spec, lines: Sequence[StudyLine]) -> dict[str, tuple[list[float], list[float]]]:
    """A curve for each label, in the order of the rows. With `along` in the place of `x` a row is a
    curve of its own: its figures after each length of training. With `start` every curve begins at
    the first row with these values."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    scale: Callable[[float], float] = SCALES[spec.get("scale", "")]
    starts = chosen(lines, spec["start"])[:1] if "start" in spec else []
    for line in [one for one in lines if all(one is not start for start in starts)]:
        row = line.row
        label = spec.get("label", "{system}").format_map(row)
        if label not in found:
            from_ = [(scale(float(one.row[spec["x"]])), one.row[spec["y"]]) for one in starts]
            found[label] = [x for x, _ in from_], [y for _, y in from_]
        xs, ys = found[label]
        if "xs" in spec:
            known = [(x, row[y]) for x, y in zip(spec["xs"], spec["ys"], strict=True) if y in row]
            xs += [x for x, _ in known]
            ys += [y for _, y in known]
            continue
        if "x" in spec:
            if row.get(spec["x"]) is not None and row.get(spec["y"]) is not None:
                xs.append(scale(float(row[spec["x"]])))
                ys.append(row[spec["y"]])
            continue
        start = f"{spec['y']} after "
        places = {float(k[len(start) :]): v for k, v in row.items() if k.startswith(start)}
        xs += sorted(places)
        ys += [places[x] for x in sorted(places)] if places else []
    return {label: curve for label, curve in found.items() if curve[0]}


SCALES: Mapping[str, Callable[[float], float]] = {
    "": float,
    "log2": lambda x: float(np.log2(x)),
    "log10": lambda x: float(np.log10(x)),
    "1e9/": lambda x: 1e9 / x,
}


def _lines(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    levels, drawn = dict(spec.get("levels", {})), []
    for line in lines:
        if spec.get("level_without") in (None, *line.row):
            drawn.append(line)
        else:
            levels[line.row["system"]] = line.row[spec["y"]]
    return plots.lines(
        path, _curves(spec, drawn), x_label=spec["x_label"], y_label=_y_label(spec),
        title=title, references=levels,
    )  # fmt: skip


def _y_label(spec: Spec) -> str:
    return str(spec.get("y_label", spec.get("y", "")))


def _paths(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    return plots.trade_off(
        path, _curves(spec, lines), x_label=spec["x_label"], y_label=_y_label(spec),
        title=title, front=spec.get("front", False),
    )  # fmt: skip


def _bars(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    values = {
        spec.get("label", "{system}").format_map(line.row): [line.row[y] for y in spec["ys"]]
        for line in lines
    }
    names = spec.get("names", spec["ys"])
    return plots.bias_bars(path, names, values, title=title, x_label=spec["x_label"])


def _dots(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    """A level for each label with a point for each of its rows, whose words (`say`) stand at the
    right. Rows that `across` chooses are lines."""
    x, label = spec["x"], spec.get("label", "{system}").format_map
    across, ((by, names),) = _across(spec, lines), spec["by"].items()
    rows = [one.row for one in lines if one.row.get(x) is not None and one.row.get(by) in names]
    places = list(dict.fromkeys(label(row) for row in rows))[::-1]
    with plots.drawing(path, title, (9.2, 1.6 + 0.36 * len(places))) as (figure, axes):
        most = max([row[x] for row in rows] + [*across.values()])
        _scatter(axes, spec, rows, [(row[x], places.index(label(row))) for row in rows])
        for row in rows if "say" in spec else ():
            place = places.index(label(row))
            axes.text(1.06 * most, place, spec["say"].format_map(row), fontsize=8, va="center")
        for name, level in across.items():
            axes.axvline(level, **ACROSS)
            axes.text(level, -0.6, name, fontsize=7, ha="center", color=plots.SOFT)
        axes.set_yticks(range(len(places)), places, fontsize=8)
        wide = (1.75 if "say" in spec else 1.06) * most
        axes.set(xlim=(0.0, wide), ylim=(-0.8, len(places) - 0.3), xlabel=spec["x_label"])
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return plots.figure_files(path)


ACROSS: Mapping[str, Any] = {"color": plots.SOFT, "linestyle": (0, (5, 2)), "linewidth": 1.0}


def _across(spec: Spec, lines: Sequence[StudyLine]) -> dict[str, float]:
    """The lines across a plot: figures of the rows that `across` chooses, by system."""
    axis = spec.get("level", spec["x"])
    return {one.row["system"]: one.row[axis] for one in chosen(lines, spec.get("across", {"": 0}))}


def _scatter(axes: Axes, spec: Spec, rows: Sequence[Row], at: Sequence[tuple[Any, Any]]) -> None:
    """Draw a point for each row. Its colour and marker go by the column `by`."""
    ((by, names),) = spec["by"].items()
    for number, (value, words) in enumerate(names.items()):
        mine = [place for row, place in zip(rows, at, strict=True) if row.get(by) == value]
        look = {"color": plots.PALETTE[number], "marker": plots.MARKERS[number], "label": words}
        if mine:
            xs, ys = zip(*mine, strict=True)
            axes.scatter(xs, ys, s=48, zorder=3, **look)


def _points(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    """A point with words (`say`) for each row, on a logarithmic axis; rows without a figure there
    are lines `across`."""
    x, y = spec["x"], spec["y"]
    rows = [line.row for line in lines if line.row.get(x) is not None]
    at = [(max(1.0, row[x]), row[y]) for row in rows]
    with plots.drawing(path, title, (7.6, 5.2)) as (figure, axes):
        _scatter(axes, spec, rows, at)
        for row, place in zip(rows, at, strict=True):
            words, near = spec["say"].format_map(row), (4, 4)
            axes.annotate(words, place, fontsize=7, xytext=near, textcoords="offset points")
        for name, level in _across({**spec, "level": y}, lines).items():
            axes.axhline(level, **ACROSS)
            edge: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
            axes.annotate(name, (1.0, level), fontsize=7, color=plots.SOFT, **edge)
        if rows:
            axes.set_xscale("log")
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        axes.set(xlabel=spec["x_label"], ylabel=_y_label(spec))
    return plots.figure_files(path)


def _stacked(spec: Spec, lines: Sequence[StudyLine], path: Path, title: str) -> plots.Figures:
    bars = {line.row["system"]: [line.row[part] for part in spec["parts"]] for line in lines}
    return plots.stacked_bars(path, spec["parts"], bars, x_label=spec["x_label"], title=title)


Drawing = Callable[[Spec, Sequence[StudyLine], Path, str], plots.Figures]
PLOTS: Mapping[str, Drawing] = {
    "lines": _lines,
    "paths": _paths,
    "bars": _bars,
    "dots": _dots,
    "points": _points,
    "stacked": _stacked,
}


def figures_of(spec: Spec, sets: Sets, folder: Path, name: str) -> list[FigureBlock]:
    """Draw a figure of a study's file, or one for each value of its columns in `each`."""
    draw = PLOTS.get(spec["is"])
    if draw is None:
        raise ConfigError(f"a figure is one of {', '.join(PLOTS)}, not {spec['is']!r}")
    lines = chosen(lines_of(sets, spec), spec.get("where", {}))
    found = []
    for number, mine in enumerate(groups(lines, spec.get("each", ())).values(), start=1):
        title = spec["title"].format_map(mine[0].row)
        stem = f"{name}-{spec['name']}" if "name" in spec else name
        stem += f"-{number}" * ("each" in spec)
        drawn = draw(spec, mine, folder / stem, title)
        found.append(FigureBlock(drawn.svg, spec.get("alt", title).format_map(mine[0].row)))
    return found


def files_of(pictures: Sequence[FigureBlock]) -> list[dict[str, str]]:
    """Return the files of figures with what each shows, as JSON has them."""
    return [{"file": str(one.path), "alt": one.alt} for one in pictures]


# --- the page ------------------------------------------------------------------------------------


def claimed(claims: Sequence[Claim]) -> Table:
    """Return a table of claims, whether each holds, and why."""
    columns = [Column(key) for key in ("claim", "holds", "detail")]
    return Table("What is claimed, tested", columns, list(claims))


def page_of(
    path: Path,
    title: str,
    tables: Sequence[Table],
    claims: Sequence[Claim],
    pictures: Sequence[FigureBlock],
    reading: str,
) -> Path:
    """Write a study's page: results, what was claimed, and how to read it."""
    sections = [
        Section("Results", [*tables, claimed(claims), *pictures]),
        Section("How to read this", [TextBlock(reading)]),
    ]
    return write_report(path, title, sections)
