"""A run's report: one HTML file that needs nothing else, offline, in light or dark.

Template, styles and script are files in `pages/`; `core/look.css` has what all our pages share. The
page's policy permits the one style and the one script in it by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sottovoce import core
from sottovoce.errors import DataNotFound, UsageError
from sottovoce.evaluation.compared import Compared
from sottovoce.evaluation.tables import Table

if TYPE_CHECKING:
    from jinja2 import Template

PAGES = Path(__file__).parent / "pages"
LOOK = Path(core.__file__).parent / "look.css"


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Paragraphs, separated by blank lines. Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A PNG or SVG file, embedded; `alt` says in words what it shows."""

    path: Path
    alt: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Facts in two columns: the experiment, the seed, the machine."""

    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DrawingBlock:
    """A drawing in the page itself. `svg` and `key` are trusted, as `drawings` makes them."""

    svg: str
    name: str
    caption: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one attack."""

    promise: str
    plain: str
    """What it means, in plain words."""
    name: str
    technical: str
    who: str
    kind: Literal["broken", "holds", "underpowered", "nothing"]
    words: str
    """The verdict."""
    gauge: str = ""
    """Trusted, like a drawing."""
    figures: str = ""
    """What the gauge shows."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """A row for each attack."""

    title: str
    rows: Sequence[Verdict]
    notes: Sequence[str] = ()


Block = TextBlock | FigureBlock | KeyValues | Table | DrawingBlock | Verdicts | Compared


@dataclass(frozen=True, slots=True)
class Lead:
    """What a reader must know before anything else."""

    kind: Literal["open", "sums", "weak", "bounded", "broken", "holds", "underpowered", "nothing"]
    label: str
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def write_report(
    path: Path, title: str, sections: Sequence[Section], lead: Lead | None = None
) -> Path:
    """Write the report and return its path. An older file is replaced whole or not at all."""
    from markupsafe import Markup

    parts = [
        {"id": f"s{number}", "title": section.title, "blocks": [_block(b) for b in section.blocks]}
        for number, section in enumerate(sections, start=1)
    ]
    moves = any(isinstance(block, Compared) for section in sections for block in section.blocks)
    style = LOOK.read_text(encoding="utf-8") + _file("drawing.css") + _file("report.css")
    script = _file("compared.js") if moves else ""
    page = _template().render(
        title=title,
        lead=lead and {"kind": lead.kind, "sign": _SIGNS[lead.kind], "label": lead.label,
                       "words": lead.words},
        sections=parts,
        policy=_policy(style, script),
        style=Markup(style),  # our own files
        script=Markup(script),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # where the disk was full, say
    return path


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and nothing inline is taken but these two."""
    rules = ["default-src 'none'", f"style-src {_hash(style)}", "img-src data:"]
    if script:
        rules.append(f"script-src {_hash(script)}")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _file(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _block(block: Block) -> dict[str, object]:
    from markupsafe import Markup

    if isinstance(block, Table):
        table = Markup(block.to_html())  # which escapes its values
        return {"kind": "table", "table": table, "name": block.title}
    if isinstance(block, Compared):
        return {"kind": "compared", **block.content()}
    if isinstance(block, DrawingBlock):
        return {
            "kind": "drawing",
            "svg": Markup(block.svg),
            "key": Markup(block.key),
            "name": block.name,
            "caption": block.caption,
        }
    if isinstance(block, Verdicts):
        rows = [
            {
                "promise": row.promise,
                "plain": row.plain,
                "name": row.name,
                "technical": row.technical,
                "who": row.who,
                "kind": row.kind,
                "sign": f"{_SIGNS[row.kind]} ",
                "verdict": row.words,
                "gauge": Markup(row.gauge),
                "figures": row.figures,
            }
            for row in block.rows
        ]
        return {"kind": "verdicts", "title": block.title, "rows": rows, "notes": block.notes}
    if isinstance(block, FigureBlock):
        kind = _IMAGES.get(block.path.suffix)
        if kind is None:
            raise UsageError(f"a figure must be a PNG or SVG file, not {block.path.name}")
        try:
            data = base64.b64encode(block.path.read_bytes()).decode()
        except OSError as error:
            raise DataNotFound(f"cannot read the figure {block.path}: {error.strerror}") from None
        source = f"data:{kind};base64,{data}"
        return {"kind": "figure", "source": source, "alt": block.alt, "caption": block.caption}
    if isinstance(block, KeyValues):
        return {"kind": "facts", "values": {k: str(v) for k, v in block.values.items()}}
    paragraphs = [p.strip() for p in block.text.split("\n\n") if p.strip()]
    return {"kind": "text", "paragraphs": paragraphs}


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(_file("page.html"))


_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}
_SIGNS = {
    "open": "⚠", "sums": "◐", "weak": "⚠", "bounded": "✓", "broken": "✗", "holds": "✓",
    "underpowered": "?", "nothing": "○",
}  # fmt: skip
