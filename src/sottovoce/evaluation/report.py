"""A run's report: one HTML file that needs nothing else, offline, in light or dark.

Template and style are files in `pages/`; `core/look.css` has what all our pages share. The page's
policy permits the one style in it by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sottovoce import core
from sottovoce.errors import DataNotFound, UsageError
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
    figures: str
    """The result beside a guess."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """A row for each attack."""

    title: str
    rows: Sequence[Verdict]
    notes: Sequence[str] = ()


Block = TextBlock | FigureBlock | KeyValues | Table | Verdicts


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
    style = LOOK.read_text(encoding="utf-8") + _file("report.css")
    page = _template().render(
        title=title,
        lead=lead and {"kind": lead.kind, "sign": _SIGNS[lead.kind], "label": lead.label,
                       "words": lead.words},
        sections=parts,
        policy=_policy(style),
        style=Markup(style),  # our own files
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")  # others may write the same page
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # where the disk was full, say
    return path


def _policy(style: str) -> str:
    """Nothing is loaded from anywhere, nothing runs, and no other style is taken."""
    known = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{known}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


@cache
def _file(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _block(block: Block) -> dict[str, object]:
    from markupsafe import Markup

    if isinstance(block, Table):
        table = Markup(block.to_html())  # which escapes its values
        return {"kind": "table", "table": table, "name": block.title}
    if isinstance(block, Verdicts):
        rows = [asdict(row) | {"sign": f"{_SIGNS[row.kind]} "} for row in block.rows]
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
