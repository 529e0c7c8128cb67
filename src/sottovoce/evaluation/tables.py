"""One table, many faces: text, terminal, Markdown, CSV, HTML, LaTeX, and data frames. The protocol
line goes with it where there is a place for words."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from sottovoce.core.installed import needs
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from rich.table import Table as RichTable

Value = str | int | float | bool | None
_NARROWEST, _USUAL = 100, 120
"""Columns of text at least, and where nobody knows how wide the screen is."""


class Tabular(ABC):
    """Whatever can be shown as a table: on a terminal, in a notebook, as a data frame."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """The table, with its title, protocol and notes."""

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries, with unrounded values.

        Returns:
            One dictionary per row. Half of a value's interval is under `<key>_half`, and its mark
            under `<key>_mark`, if any row has one.
        """
        return self.table().records()

    def __str__(self) -> str:
        return self.table().to_text()

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def to_arrow(self) -> pa.Table:
        """The records as a pyarrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.records())

    def to_pandas(self) -> pd.DataFrame:
        """The records as a pandas frame; needs the extra `frames`."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise UsageError(f"to_pandas {needs('pandas')}") from None
        return pd.DataFrame(self.records())

    def to_polars(self) -> pl.DataFrame:
        """The records as a Polars frame; needs the extra `frames`."""
        try:
            import polars as pl
        except ModuleNotFoundError:
            raise UsageError(f"to_polars {needs('polars')}") from None
        found = pl.from_arrow(self.to_arrow())
        return found if isinstance(found, pl.DataFrame) else found.to_frame()

    def to_latex(self) -> str:
        """A floating table for LaTeX's package booktabs."""
        return self.table().to_latex()

    def to_markdown(self) -> str:
        """A table in Markdown."""
        return self.table().to_markdown()

    def to_csv(self) -> str:
        """Header and unrounded values as CSV."""
        return self.table().to_csv()


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a mark behind it, such as a sign of significance."""

    value: Value
    mark: str = ""
    half: float = math.nan
    """Half of the value's 95 % interval, where there is one."""
    href: str = ""
    """The address that the cell links to on a page; empty for none."""


@dataclass(frozen=True, slots=True)
class Column:
    """`format` is a format specification for numbers; `best` marks the best value in bold."""

    key: str
    label: str | None = None
    format: str = ""
    best: Literal["max", "min"] | None = None

    @property
    def heading(self) -> str:
        return self.key if self.label is None else self.label

    def text(self, cell: Cell) -> str:
        """The value as shown; a dash where there is none."""
        value = cell.value
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, str) or not self.format:
            shown = str(value)
        else:
            shown = format(value, self.format)
            if not math.isnan(cell.half):
                shown += f" ± {format(cell.half, self.format)}"
        return shown + cell.mark


@dataclass(frozen=True, slots=True)
class Table(Tabular):
    """Rows are mappings from column key to a value or a `Cell`; an unknown key raises.

    `protocol` says how the figures came about and is printed with every face but CSV, which holds
    the bare, unrounded values.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Value | Cell]]
    protocol: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        if len(set(keys)) != len(keys):
            raise UsageError(f"table {self.title!r} has two columns of one name")
        for row in self.rows:
            unknown = [key for key in row if key not in keys]
            if unknown:
                raise UsageError(f"table {self.title!r} has no column {unknown[0]!r}")

    def cells(self) -> Iterator[list[Cell]]:
        """The cells of each row in column order."""
        for row in self.rows:
            values = (row.get(column.key) for column in self.columns)
            yield [value if isinstance(value, Cell) else Cell(value) for value in values]

    def to_markdown(self) -> str:
        def line(texts: Sequence[str]) -> str:
            return "| " + " | ".join(texts) + " |"

        lines = [f"**{_markdown(self.title)}**", ""]
        if self.protocol:
            lines += [f"Protocol: {_markdown(self.protocol)}", ""]
        lines.append(line([_markdown(column.heading) for column in self.columns]))
        numeric = self._numeric()
        lines.append("|" + "|".join(" ---: " if right else " --- " for right in numeric) + "|")
        for texts, strong in self._shown():
            marked = zip(map(_markdown, texts), strong, strict=True)
            lines.append(line([f"**{text}**" if bold else text for text, bold in marked]))
        lines += [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def table(self) -> Table:
        return self

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """As a terminal shows it, without colours."""
        from rich.console import Console
        from rich.text import Text

        out = io.StringIO()
        width = max(_NARROWEST, shutil.get_terminal_size((_USUAL, 24)).columns)
        # In a notebook rich would show the table rather than write it.
        shown = Console(file=out, width=width, color_system=None, force_jupyter=False)
        # Words below it may be wider than the table.
        shown.print(replace(self, protocol="", notes=()).to_terminal())
        shown.print(Text("\n".join(self._said())))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")

    def _said(self) -> list[str]:
        return [f"Protocol: {self.protocol}"] * bool(self.protocol) + list(self.notes)

    def records(self) -> list[dict[str, Any]]:
        header, rows = self._flat()
        return [dict(zip(header, row, strict=True)) for row in rows]

    def to_csv(self) -> str:
        """Header and raw values; half of an interval and a mark go to columns of their own,
        `<key>_half` and `<key>_mark`."""
        header, rows = self._flat()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        return out.getvalue()

    def _flat(self) -> tuple[list[str], list[list[Value]]]:
        """Names of columns, and raw values."""
        rows, numbers = list(self.cells()), range(len(self.columns))
        halved = [any(not math.isnan(row[c].half) for row in rows) for c in numbers]
        marked = [any(row[c].mark for row in rows) for c in numbers]
        header: list[str] = []
        for column, half, mark in zip(self.columns, halved, marked, strict=True):
            header += [column.key, *[f"{column.key}_half"] * half, *[f"{column.key}_mark"] * mark]
        flat = []
        for row in rows:
            record: list[Value] = []
            for cell, half, mark in zip(row, halved, marked, strict=True):
                known = None if math.isnan(cell.half) else cell.half
                record += [cell.value, *[known] * half, *[cell.mark] * mark]
            flat.append(record)
        return header, flat

    def to_latex(self) -> str:
        """A floating table for the package booktabs; every text is escaped, marks are raised."""
        sides = "".join("r" if right else "l" for right in self._numeric())
        lines = ["\\begin{table}", "\\centering", f"\\caption{{{_latex(self.title)}}}"]
        lines += [f"\\begin{{tabular}}{{{sides}}}", "\\toprule"]
        lines += [" & ".join(_latex(column.heading) for column in self.columns) + " \\\\"]
        lines += ["\\midrule"]
        for cells, (_, strong) in zip(self.cells(), self._shown(), strict=True):
            texts = []
            for column, cell, bold in zip(self.columns, cells, strong, strict=True):
                text = _latex(column.text(replace(cell, mark="")))
                text = f"\\textbf{{{text}}}" if bold else text
                texts.append(
                    text + (f"\\textsuperscript{{{_latex(cell.mark)}}}" if cell.mark else "")
                )
            lines.append(" & ".join(texts) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        said = [f"Protocol: {self.protocol}."] * bool(self.protocol) + list(self.notes)
        if said:
            lines += ["\\par\\smallskip", f"{{\\footnotesize {_latex(' '.join(said))}}}"]
        return "\n".join([*lines, "\\end{table}"]) + "\n"

    def to_html(self) -> str:
        """A `<table>` with caption and header scopes; every text is escaped."""
        numeric = self._numeric()
        kind = [' class="number"' if right else "" for right in numeric]
        caption = f"<strong>{html.escape(self.title)}</strong>"
        if self.protocol:
            caption += f'<br><span class="protocol">Protocol: {html.escape(self.protocol)}</span>'
        head = "".join(
            f'<th scope="col"{k}>{html.escape(column.heading)}</th>'
            for column, k in zip(self.columns, kind, strict=True)
        )
        body = []
        for row, (texts, strong) in zip(self.cells(), self._shown(), strict=True):
            cells = []
            for c, (text, bold) in enumerate(zip(texts, strong, strict=True)):
                content = html.escape(text)
                content = f"<strong>{content}</strong>" if bold else content
                if row[c].href:
                    content = f'<a href="{html.escape(row[c].href)}">{content}</a>'
                tag, scope = ("th", ' scope="row"') if c == 0 else ("td", "")
                cells.append(f"<{tag}{scope}{kind[c]}>{content}</{tag}>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in self.notes)
        rows = "\n".join(body)
        return (
            f"<table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{rows}\n</tbody>\n</table>\n{notes}"
        )

    def to_terminal(self) -> RichTable:
        """A rich table, to be printed by a rich console."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        foot = "\n".join(self._said())
        table = RichTable(
            title=Text(self.title),
            caption=Text(foot) if foot else None,
            box=SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for column, right in zip(self.columns, self._numeric(), strict=True):
            table.add_column(Text(column.heading), justify="right" if right else "left")
        for texts, strong in self._shown():
            marked = zip(texts, strong, strict=True)
            table.add_row(*(Text(text, style="bold" if bold else "") for text, bold in marked))
        return table

    def _numeric(self) -> list[bool]:
        rows = list(self.cells())
        return [any(_is_number(row[c].value) for row in rows) for c in range(len(self.columns))]

    def _shown(self) -> Iterator[tuple[list[str], list[bool]]]:
        """Per row the texts, and which of them are the best of their column."""
        rows = list(self.cells())
        best = [
            self._best(column, [row[c].value for row in rows])
            for c, column in enumerate(self.columns)
        ]
        for row in rows:
            pairs = list(zip(self.columns, row, strict=True))
            # Compared as shown, so that two equal texts are never told apart.
            bare = [column.text(Cell(cell.value)) for column, cell in pairs]
            strong = [text == top for text, top in zip(bare, best, strict=True)]
            yield [column.text(cell) for column, cell in pairs], strong

    @staticmethod
    def _best(column: Column, values: Sequence[Value]) -> str | None:
        numbers = [value for value in values if _is_number(value)]
        if column.best is None or not numbers:
            return None
        return column.text(Cell(max(numbers) if column.best == "max" else min(numbers)))


def _markdown(text: str) -> str:
    """Plain text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_|<\[])", r"\\\1", " ".join(text.split()))


_SIGNS = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "%": "\\%",
    "#": "\\#", "_": "\\_", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}",
    "[": "{[}", "]": "{]}", "*": "{*}", '"': "''",
    "†": "\\textdagger{}", "‡": "\\textdaggerdbl{}", "±": "$\\pm$", "×": "$\\times$",
    "−": "$-$", "–": "--", "—": "---", "…": "\\dots{}", "≤": "$\\le$", "≥": "$\\ge$",
    "ε": "$\\varepsilon$", "δ": "$\\delta$", "π": "$\\pi$", "σ": "$\\sigma$", "α": "$\\alpha$",
    "β": "$\\beta$", "λ": "$\\lambda$", "Θ": "$\\Theta$", "⁺": "$^{+}$", "⁻": "$^{-}$", "\0": "{}",
}  # fmt: skip
"""What LaTeX would take for a command, or has no letter for."""


def _latex(text: str) -> str:
    """Plain text that LaTeX shows as it is, on one line."""
    apart = re.sub("-(?=-)", "-\0", " ".join(text.split()))  # two would be one longer dash
    return "".join(_SIGNS.get(sign, sign) for sign in apart)


def _is_number(value: Value) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)
