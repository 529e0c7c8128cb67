"""One table, five faces: terminal, Markdown, CSV, HTML, LaTeX. The protocol line goes with it."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeGuard

from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a mark behind it, such as a sign of significance."""

    value: Value
    mark: str = ""
    half: float = math.nan
    """Half of the value's 95 % interval, where there is one."""


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
class Table:
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

    def to_csv(self) -> str:
        """Header and raw values; half of an interval and a mark go to columns of their own,
        `<key>_half` and `<key>_mark`."""
        rows, numbers = list(self.cells()), range(len(self.columns))
        halved = [any(not math.isnan(row[c].half) for row in rows) for c in numbers]
        marked = [any(row[c].mark for row in rows) for c in numbers]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header: list[str] = []
        for column, half, mark in zip(self.columns, halved, marked, strict=True):
            header += [column.key, *[f"{column.key}_half"] * half, *[f"{column.key}_mark"] * mark]
        writer.writerow(header)
        for row in rows:
            record: list[Value] = []
            for cell, half, mark in zip(row, halved, marked, strict=True):
                known = None if math.isnan(cell.half) else cell.half
                record += [cell.value, *[known] * half, *[cell.mark] * mark]
            writer.writerow(record)
        return out.getvalue()

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
        for texts, strong in self._shown():
            cells = []
            for c, (text, bold) in enumerate(zip(texts, strong, strict=True)):
                content = html.escape(text)
                content = f"<strong>{content}</strong>" if bold else content
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

        foot = "\n".join([f"Protocol: {self.protocol}"] * bool(self.protocol) + list(self.notes))
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
