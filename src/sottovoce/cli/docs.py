"""What an installation has: `sottovoce docs`, its pages, and `sottovoce components`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.core.installed import find_page, pages
from sottovoce.errors import UsageError


class _Page(NamedTuple):
    title: str
    description: str
    text: str
    """Without what stands before the title."""


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", help="Such as privacy, deploy or security.")
    ] = None,
    path: Annotated[bool, typer.Option("--path", help="Print where the file is.")] = False,
    browser: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """The documents of this installation: without PAGE a list, with it the page itself.

    They are on this machine, in the version of the program that is installed; nothing is fetched.
    PAGE may be written as documents and messages write it: privacy, docs/privacy.md, SECURITY.md.

    \b
    Examples:
      sottovoce docs
      sottovoce docs privacy | less
      sottovoce docs deploy --open
    """
    known = pages()
    if page is None and not browser and not path:
        _list(known, as_json)
        return
    file = find_page(page or ("index" if "index" in known else "readme"))
    read = _read(file)
    if browser:
        shown = _rendered(known)[file]
        _open(shown)
    if as_json:
        name = next(name for name, place in known.items() if place == file)
        output.emit({"page": name, "path": file, **read._asdict()})
    elif path:
        output.show(str(file))
    elif not browser:
        output.show(read.text)


def _list(known: Mapping[str, Path], as_json: bool) -> None:
    rows = [
        {"page": name, "path": file, "title": read.title, "description": read.description}
        for name, file in known.items()
        for read in [_read(file)]
    ]
    if as_json:
        output.emit({"pages": rows})
        return
    width = max((len(name) for name in known), default=0)
    output.show(
        *[f"{row['page']:<{width}}  {row['description'] or row['title']}" for row in rows],
        "",
        f"To read one: {output.command('docs', 'privacy')}",
    )


def _read(file: Path) -> _Page:
    text = file.read_text(encoding="utf-8")
    found = re.match(r"---\n(.*?)\n---\n\s*", text, re.DOTALL)
    description = re.search(r"^description: *(.+)$", found[1] if found else "", re.MULTILINE)
    body = text[found.end() :] if found else text
    title = re.search(r"^# +(.+)$", body, re.MULTILINE)
    return _Page(
        title[1].strip() if title else file.stem,
        description[1].strip().strip("\"'") if description else "",
        body,
    )


# --- in a browser ---------------------------------------------------------------------------------

_STYLE = (
    "body{max-width:50rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}"
    "pre,table{overflow-x:auto;display:block}td,th{padding:.2rem .6rem;text-align:left;"
    "vertical-align:top;border-bottom:1px solid #8886}:root{color-scheme:light dark}"
)


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.as_uri()):
        raise UsageError(f"no browser could be opened; the page is {page}")


def _rendered(known: Mapping[str, Path]) -> dict[Path, Path]:
    """Every page as HTML in the user's cache, so that links between them lead somewhere."""
    from markdown_it import MarkdownIt  # rich brings it

    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "sottovoce" / "docs"
    places = {file: folder / f"{name.replace('/', '--')}.html" for name, file in known.items()}
    folder.mkdir(parents=True, exist_ok=True)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    for file, place in places.items():
        read = _read(file)
        tokens = parser.parse(read.text)
        for before, token in pairwise(tokens):
            if before.type == "heading_open":
                before.attrs["id"] = _anchor(token.content)
            for inner in token.children or []:
                for kind in ("href", "src"):
                    if kind in inner.attrs:
                        inner.attrs[kind] = _target(str(inner.attrs[kind]), file, places)
        body = parser.renderer.render(tokens, parser.options, {})
        place.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_plain(read.title)}'
            f"</title><style>{_STYLE}</style><body>{body}",
            encoding="utf-8",
        )
    return places


def _target(link: str, file: Path, places: Mapping[Path, Path]) -> str:
    """Where a link of a page leads once the page is in the cache."""
    path, mark, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return link
    there = (file.parent / path).resolve()
    index = there / "index.md"
    place = places.get(there) or places.get(index) or there
    return place.as_uri() + mark + anchor


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def components(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]", help="A kind of component, such as baseline, metric or attack."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what experiments and commands can name: ours, and what others have brought.

    Others bring components in a file (`sottovoce --with FILE.py`, or $SOTTOVOCE_COMPONENTS) or in a
    package with entry points of the group sottovoce.components.

    \b
    Examples:
      sottovoce components baseline
      sottovoce --with my_metric.py components metric
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.registry import registries

    known = registries()
    if kind is not None and kind not in known:
        raise UsageError(f"there is no kind {kind!r} of components; there are {', '.join(known)}")
    rows = [
        {"kind": of, "name": name, "from": registry.place(name), "what": registry.about(name)}
        for of, registry in known.items()
        if kind in (None, of)
        for name in registry
    ]
    if as_json:
        output.emit({"components": rows})
    else:
        columns = [Column("kind"), Column("name"), Column("what"), Column("from")]
        output.show(Table("Components", columns, rows))
