"""A run's report: one HTML file that needs nothing else, offline, in light or dark."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.errors import DataNotFound, UsageError
from sottovoce.evaluation.tables import Table

if TYPE_CHECKING:
    from jinja2 import Template


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


Block = TextBlock | FigureBlock | KeyValues | Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def write_report(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the report and return its path. An older file is replaced whole or not at all."""
    parts = [
        {"id": f"s{number}", "title": section.title, "blocks": [_block(b) for b in section.blocks]}
        for number, section in enumerate(sections, start=1)
    ]
    page = _template().render(title=title, sections=parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # where the disk was full, say
    return path


def _block(block: Block) -> dict[str, object]:
    from markupsafe import Markup

    if isinstance(block, Table):
        return {"kind": "table", "table": Markup(block.to_html())}  # to_html escapes its values
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


def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)


_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #57606a;
  --line: #d0d7de; --band: #f6f8fa; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #12161c; --soft: #9da7b1;
  --line: #363d47; --band: #1b212a; --link: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; color: var(--text);
  background: var(--back); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
p { max-width: 44rem; } a { color: var(--link); }
nav ul { list-style: none; margin: 0; padding: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .5rem; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); } tbody th { font-weight: 400; }
tbody tr:nth-child(even) { background: var(--band); }
.number { text-align: right; white-space: nowrap; }
.protocol, .note, figcaption { color: var(--soft); font-size: .875rem; }
figure { margin: 1.25rem 0; }
figure img { width: 44rem; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .25rem 1.25rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media print { nav { display: none; } h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; } }
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
{% if sections | length > 1 -%}
<nav aria-label="Sections"><ul>
{% for section in sections %}<li><a href="#{{ section.id }}">{{ section.title }}</a></li>
{% endfor %}</ul></nav>
{%- endif %}
</header>
<main>
{% for section in sections %}
<section aria-labelledby="{{ section.id }}">
<h2 id="{{ section.id }}">{{ section.title }}</h2>
{% for block in section.blocks %}
{% if block.kind == "text" %}{% for text in block.paragraphs %}<p>{{ text }}</p>
{% endfor %}
{% elif block.kind == "table" %}<div class="scroll" role="region" tabindex="0"
 aria-labelledby="{{ section.id }}">{{ block.table }}</div>
{% elif block.kind == "figure" %}<figure><img src="{{ block.source }}"
 alt="{{ block.alt }}">{% if block.caption %}
<figcaption>{{ block.caption }}</figcaption>{% endif %}</figure>
{% else %}<dl>{% for key, value in block["values"].items() %}<dt>{{ key }}</dt><dd>{{ value }}</dd>
{% endfor %}</dl>
{% endif %}
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
