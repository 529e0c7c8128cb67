"""Makes a notebook of a page of the documentation, so that what the page shows is what is run.

    python tools/notebooks.py [PAGE.md ...]            writes build/notebooks/NAME.ipynb
    python tools/notebooks.py --run FOLDER PAGE.md     executes it there, and prints it as JSON

A block of a page is run if the line before it is

    <!-- run by tests/docs/test_tutorials.py -->

with any of these words behind the name of the file, after commas:

    stays until "ready"    a service: it goes on in the background, and the next block is run when
                           it has said so
    wait for "finished"    the block is repeated until its output has these words
    slow                   too long for the ordinary tests
    numbers vary           digits and digests differ from run to run
    file things.csv        the block is the content of this file

A block of the language `text` that follows shows what is printed. `…` stands for what was left out,
in a line or as a line of its own; every other line is printed as it is there, in this order.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, OUT = ROOT / "docs", ROOT / "build" / "notebooks"
MARK = "run by tests/docs/test_tutorials.py"
PAGES = ("tutorials", "how-to")
_SHELL = Path(__file__).with_name("notebook_shell.py")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A part of a page: text, or code with what it should print."""

    text: str
    language: str = ""
    words: dict[str, str] = field(default_factory=dict)
    """Of the mark; empty for what is only shown."""
    shown: str = ""

    @property
    def runs(self) -> bool:
        return bool(self.words)

    def source(self) -> str:
        """As Python of a notebook."""
        if not self.runs:
            return self.text
        if name := self.words.get("file"):
            return f"%%writefile {name}\n{self.text.rstrip()}"
        if self.language == "python":
            return self.text.rstrip()
        lines = _quoted("\n".join(_typed(self.text.splitlines())))
        if until := self.words.get("stays until"):
            return f"stays({lines}, until={until!r})"
        if words := self.words.get("wait for"):
            return f"wait_for({lines}, {words!r})"
        return f"sh({lines})"


def _typed(lines: list[str]) -> list[str]:
    return [line.removeprefix("$ ") for line in lines]


def _quoted(text: str) -> str:
    raw = "r" if "\\" in text else ""
    return f'{raw}"""\n{text}\n"""' if "\n" in text else f'{raw}"""{text}"""'


def words_of(mark: str) -> dict[str, str]:
    """What a mark says; empty if it is not ours. Raises if it says what nobody knows."""
    first, *more = [part.strip() for part in mark.split(",")]
    if first != MARK:
        return {}
    found = {"run": ""}
    for part in more:
        said = re.fullmatch(
            r'(stays until|wait for) "([^"]+)"|(file) (\S+)|(slow|numbers vary)', part
        )
        if said is None:
            raise ValueError(f"a mark says what nobody knows: {part!r}")
        key, value, name, path, flag = said.groups()
        found[key or name or flag] = value or path or ""
    return found


def cells_of(text: str) -> list[Cell]:
    """The parts of a page, in order."""
    text = _FRONT.sub("", text)
    found: list[Cell] = []
    at = 0
    for block in _BLOCK.finditer(text):
        between = text[at : block.start()].strip("\n")
        language, body = block["language"], block["body"]
        words = words_of(block["mark"] or "")
        at = block.end()
        if not words and block["mark"] and block["mark"].startswith("run by"):
            raise ValueError(f"nobody runs this block: {block['mark']}")
        if language == "text" and found and found[-1].runs and not between:
            found[-1] = Cell(found[-1].text, found[-1].language, found[-1].words, body)
            continue
        if between:
            found.append(Cell(between))
        if words:
            found.append(Cell(body, language, words))
        else:
            found.append(Cell(f"```{language}\n{body}```"))
    if rest := text[at:].strip("\n"):
        found.append(Cell(rest))
    return found


def notebook_of(cells: list[Cell]) -> dict[str, Any]:
    made = [_code(_SHELL.read_text(encoding="utf-8"))]
    made += [_code(cell.source()) if cell.runs else _markdown(cell.text) for cell in cells]
    made.append(_code("end()"))
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": made}


def _code(source: str) -> dict[str, Any]:
    none: dict[str, Any] = {"metadata": {}, "execution_count": None, "outputs": []}
    return {"cell_type": "code", "source": source, **none}


def _markdown(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def pages() -> list[Path]:
    """Pages that have something to run."""
    found = sorted(path for name in PAGES for path in (DOCS / name).glob("*.md"))
    return [path for path in found if any(cell.runs for cell in cells_of(path.read_text("utf-8")))]


def run(notebook: dict[str, Any], folder: Path, seconds: int = 600) -> dict[str, Any]:
    """The notebook, executed in this folder; an error ends it, and is in it."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    form: Any = nbformat  # which has no types
    node = form.from_dict(notebook)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(node, timeout=seconds, kernel_name="python3", resources=where)
    try:
        client.execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
    return dict(json.loads(form.writes(node)))


def printed(cell: dict[str, Any]) -> str:
    """What a cell has printed, and what its last expression is worth."""
    said = ""
    for one in cell["outputs"]:
        if one["output_type"] == "stream":
            said += "".join(one["text"])
        elif one["output_type"] in ("execute_result", "display_data"):
            said += "".join(one["data"].get("text/plain", "")) + "\n"
        elif one["output_type"] == "error":
            said += f"{one['ename']}: {one['evalue']}\n"
    return said


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make notebooks of pages of the documentation.")
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files; all by default.")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="Execute one page there.")
    parser.add_argument("--out", type=Path, default=OUT, help="Where notebooks are written.")
    given = parser.parse_args(arguments)
    if given.run is not None:
        [page] = given.pages
        found = run(notebook_of(cells_of(page.read_text("utf-8"))), given.run)
        print(json.dumps(found))
        return int(
            any(o["output_type"] == "error" for c in found["cells"] for o in c.get("outputs", ()))
        )
    given.out.mkdir(parents=True, exist_ok=True)
    for page in given.pages or pages():
        name = f"{page.parent.name}-{page.stem}.ipynb"
        made = notebook_of(cells_of(page.read_text("utf-8")))
        (given.out / name).write_text(
            json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        print(given.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
