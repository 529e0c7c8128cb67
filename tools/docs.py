"""The documents: what their pages hold, the checks that keep them true, and the site.

    python tools/docs.py check            what is wrong: file:line: what; what to do
    python tools/docs.py build            checks, reference and site, into build/site
    python tools/docs.py owed [--lower]   what unfinished pages still owe (docs/unfinished.toml)

A check is a function that takes the documents and returns problems. `docs/unfinished.toml` says how
many problems of a check a page may still have; no number in it may grow.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = "mkdocs.yml"
UNFINISHED = "docs/unfinished.toml"
BUILD = Path("build")
MOST_DESCRIBED = 160
"""Letters of a description: search engines show no more."""

BESIDE = {
    "CHANGELOG.md": ("changelog.md", "What changed in each release, and which results changed."),
    "SECURITY.md": ("security.md", "Who is trusted for what, and how to report a hole."),
    "deploy/README.md": ("deploy/files.md", "The units, containers and files of deploy/."),
    "clients/browser/README.md": ("browser.md", "The library that makes a browser tab a device."),
}
"""Pages of the site that lie outside of docs/: where each goes, and what it is."""
READ_TOO = ("README.md", *BESIDE)
"""Documents outside of docs/ that are checked like pages."""
HISTORY = "CHANGELOG.md"
"""It speaks of commands and settings as they were."""


# --- pages ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    title: str
    anchor: str
    """As GitHub makes it, and the site: the second of a title has -1 at its end."""
    line: int


@dataclass(frozen=True, slots=True)
class Link:
    target: str
    line: int


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    """The HTML comment in front of it, which says who runs it; else empty."""
    closed: bool = True

    @property
    def commands(self) -> list[str]:
        """The lines that somebody types: those after a prompt, or all if there is none."""
        lines = self.text.replace("\\\n", " ").splitlines()
        typed = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        found = typed or [line.strip() for line in lines]
        return [line for line in found if line and not line.startswith("#")]


@dataclass(frozen=True)
class Page:
    """A document: its text, and what is found in it."""

    path: str
    """From the root of the repository, with slashes."""
    text: str

    @cached_property
    def front(self) -> dict[str, Any]:
        """The front matter; empty if there is none."""
        found = _FRONT.match(self.text)
        read = yaml.safe_load(found[1]) if found else None
        return read if isinstance(read, dict) else {}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        lines = self.text.splitlines()
        number, before = 0, ""
        while number < len(lines):
            opened = _FENCE.match(lines[number])
            if opened is None:
                before = lines[number] if lines[number].strip() else before
                number += 1
                continue
            indent, fence, language = opened[1], opened[2], opened[3].strip()
            end = number + 1
            closing = re.compile(rf"\s*{re.escape(fence[0])}{{{len(fence)},}}\s*$")
            while end < len(lines) and not closing.match(lines[end]):
                end += 1
            inside = [line.removeprefix(indent) for line in lines[number + 1 : end]]
            comment = re.search(r"<!--\s*(.*?)\s*-->\s*$", before)
            yield Block(
                self.path, number + 1, language.split()[0] if language else "",
                "".join(f"{line}\n" for line in inside), comment[1] if comment else "",
                end < len(lines),
            )  # fmt: skip
            number, before = end + 1, ""

    @cached_property
    def prose(self) -> str:
        """The text with blocks, comments and front matter blanked; lines stay where they are."""
        lines = self.text.splitlines()
        for block in self.blocks:
            end = block.line + block.text.count("\n") + 1
            lines[block.line - 1 : end] = [""] * (min(end, len(lines)) - block.line + 1)
        blank: Callable[[re.Match[str]], str] = lambda found: "\n" * found[0].count("\n")  # noqa: E731
        text = _FRONT.sub(blank, "\n".join(lines))
        return re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)

    @cached_property
    def headings(self) -> tuple[Heading, ...]:
        found, seen = [], Counter[str]()
        for number, line in enumerate(self.prose.splitlines(), 1):
            if at := re.match(r"(#{1,6}) +(.+?)\s*#*$", line):
                anchor = slug(at[2])
                again = seen[anchor]
                seen[anchor] += 1
                found.append(Heading(len(at[1]), at[2], f"{anchor}-{again}" if again else anchor,
                                     number))  # fmt: skip
        return tuple(found)

    @cached_property
    def anchors(self) -> frozenset[str]:
        named = re.findall(r"<\w+ [^>]*\b(?:id|name)=\"([^\"]+)\"", self.prose)
        return frozenset([heading.anchor for heading in self.headings] + named)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda m: " " * len(m[0]), self.prose)
        places = [
            *re.finditer(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)", text),
            *re.finditer(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", text, re.MULTILINE),
            *re.finditer(r"<(?:a|img|source|object)\b[^>]*\b(?:href|src|data)=\"([^\"]+)\"", text),
        ]
        return tuple(
            Link(at[1], text.count("\n", 0, at.start(1)) + 1)
            for at in sorted(places, key=lambda at: at.start())
        )

    @cached_property
    def spoken(self) -> tuple[tuple[int, str], ...]:
        """Commands of this program in running text and tables, each with its line."""
        found = []
        for at in re.finditer(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", self.prose, re.DOTALL):
            words = " ".join(at[2].replace("\\|", "|").split())
            if re.match(r"sottovoce [^\\]+$", words) and "\n\n" not in at[2]:
                found.append((self.prose.count("\n", 0, at.start()) + 1, words))
        return tuple(found)


_FRONT = re.compile(r"\A---\n(.*?)^---\n", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})([^`]*)$")


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and the site's `slugify` make it."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
    plain = re.sub(r"[`*]|<[^>]+>", "", plain)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something that is wrong, and what to do about it."""

    page: str
    line: int
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.what}; {self.do}"


@dataclass(frozen=True)
class Documents:
    """All pages of a repository, and those that are made at the build."""

    root: Path
    pages: Mapping[str, Page]
    made: Mapping[str, Page] = field(default_factory=dict)
    """Pages of the reference by the path that they would have, such as docs/reference/python.md."""

    @classmethod
    def read(cls, root: Path = ROOT, made: Mapping[str, str] | None = None) -> Documents:
        """Those that are there; `made` has the text of those that are not."""
        inside = sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
        names = [name for name in (*READ_TOO, *inside) if (root / name).is_file()]
        pages = {name: Page(name, (root / name).read_text(encoding="utf-8")) for name in names}
        return cls(root, pages, {name: Page(name, text) for name, text in (made or {}).items()})

    @cached_property
    def configuration(self) -> dict[str, Any]:
        text = (self.root / CONFIGURATION).read_text(encoding="utf-8")
        read = yaml.load(text, Loader=_Tolerant)
        return read if isinstance(read, dict) else {}

    @cached_property
    def navigation(self) -> list[str]:
        """The pages of the menu by their place on the site, in its order."""
        return list(_leaves(self.configuration.get("nav", [])))

    def on_site(self, path: str) -> str | None:
        """Where a document is on the site; None if it is not on it."""
        if path in BESIDE:
            return BESIDE[path][0]
        inside = path.startswith("docs/") and (path in self.pages or path in self.made)
        return path.removeprefix("docs/") if inside else None

    def find(self, path: str) -> Page | None:
        return self.pages.get(path) or self.made.get(path)


class _Tolerant(yaml.SafeLoader):  # type: ignore[misc]
    """Names of Python functions are the site builder's business."""


_Tolerant.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)


def _leaves(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for inner in entries.values():
            yield from _leaves(inner)
    elif isinstance(entries, list):
        for inner in entries:
            yield from _leaves(inner)


# --- links ----------------------------------------------------------------------------------------


def check_links(documents: Documents) -> Iterator[Problem]:
    """A link leads to a file or page that is there, and its anchor to a heading of that page."""
    for page in documents.pages.values():
        for link in page.links:
            wrong = _amiss(documents, page, link.target)
            if wrong:
                yield Problem(page.path, link.line, f"({link.target}) {wrong[0]}", wrong[1])


def resolve(page: str, target: str) -> str:
    """The path from the root of the repository at which a link points."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page


def is_outside(target: str) -> bool:
    return re.match(r"[a-z][a-z+.-]*:|//", target) is not None


def _amiss(documents: Documents, page: Page, target: str) -> tuple[str, str] | None:
    if is_outside(target):
        return None
    path, _, anchor = target.partition("#")
    if path.startswith("/"):
        return "begins at the root of a server", "write it from the page's own folder"
    place = resolve(page.path, path)
    found = documents.find(place)
    if place.startswith(".."):
        return "leaves the repository", "link to a file of the repository"
    if found is None and not (documents.root / place).exists():
        return f"leads to {place}, which is not there", "correct the link or leave it out"
    if place in documents.made and documents.on_site(page.path) is None:
        return "leads to a page that only the site has", "name the page instead of a link to it"
    if found is not None and anchor and anchor not in found.anchors:
        close = [a for a in sorted(found.anchors) if a.split("-")[0] == anchor.split("-")[0]]
        like = f", such as #{close[0]}" if close else ""
        return f"names a heading that {place} does not have", f"take one that it has{like}"
    return None


# --- pages and the menu ---------------------------------------------------------------------------


def check_pages(documents: Documents) -> Iterator[Problem]:
    """A page has one title, which comes first, and, under docs/, a description."""
    for page in (*documents.pages.values(), *documents.made.values()):
        titles = [heading for heading in page.headings if heading.level == 1]
        if len(titles) != 1:
            line = titles[1].line if titles else 1
            yield Problem(page.path, line, f"it has {len(titles)} titles", "leave one `# Title`")
        elif page.headings[0] is not titles[0]:
            line = page.headings[0].line
            yield Problem(page.path, line, "a heading stands before the title", "begin with it")
        if not page.path.startswith("docs/"):
            continue
        described = page.front.get("description")
        if not isinstance(described, str) or not described.strip():
            yield Problem(
                page.path, 1, "it has no description", "begin with ---, description: …, ---"
            )
        elif len(described) > MOST_DESCRIBED:
            what = f"its description has {len(described)} letters"
            yield Problem(page.path, 1, what, f"leave at most {MOST_DESCRIBED}")


def check_menu(documents: Documents) -> Iterator[Problem]:
    """Every page of the site is once in the menu, and the menu has nothing else."""
    every = (*documents.pages, *documents.made)
    places = {place: name for name in every if (place := documents.on_site(name)) is not None}
    counted = Counter(documents.navigation)
    for place, name in places.items():
        if counted[place] == 0:
            yield Problem(name, 1, "it is not in the menu", f"add {place} to {CONFIGURATION}")
    for place, times in counted.items():
        if place not in places:
            what = f"the menu has {place}, which is not there"
            yield Problem(CONFIGURATION, 1, what, "write the page or leave it out")
        elif times > 1:
            what = f"the menu has {place} {times} times"
            yield Problem(CONFIGURATION, 1, what, "leave one")


# --- blocks ---------------------------------------------------------------------------------------

TYPED = ("console", "bash", "sh")
READ = ("json", "toml", "yaml")
SHOWN = ("csv", "css", "diff", "dockerfile", "html", "http", "ini", "javascript", "js", "nginx")
LANGUAGES = ("text", "python", *TYPED, *READ, *SHOWN)

REASONS = (
    "needs root",
    "needs a GPU",
    "needs several machines",
    "needs the network",
    "needs a browser",
    "needs a real data set",
    "stays running",
    "sets up an environment",
    "has names to fill in",
    "takes N minutes",
)
"""Why a block is not run; nothing else is a reason. What takes minutes is run by slow tests."""
RUN_BY = re.compile(r"run by (tests/[\w/]+\.py)(?:::(\w+))?(?:, .+)?")
NOT_RUN = re.compile(r"not run: (.+)")
RUN_WITH = re.compile(r"run with: (.+)")
FILE = re.compile(r"file: ([\w./-]+)")
WALKED = re.compile(r"([a-z]+)(?: again)?: (\w+)(?:, (stays|types))?")
"""A block that a test walks through: the test's mark, the machine, and how it ends."""


def check_languages(documents: Documents) -> Iterator[Problem]:
    """A block says which language it is in, and it is one that somebody reads or runs."""
    for block in all_blocks(documents):
        if not block.closed:
            yield Problem(block.page, block.line, "the block never ends", "close it with ```")
        elif block.language == "mermaid":
            what = "a mermaid block would be drawn by a script from elsewhere"
            yield Problem(block.page, block.line, what, "draw it as a figure in docs/figures")
        elif block.language not in LANGUAGES:
            what = f"the block has the language {block.language!r}"
            do = "name a language after ```: console, python, toml, json, or text for output"
            yield Problem(block.page, block.line, what if block.language else
                          "the block has no language", do)  # fmt: skip


def check_blocks(documents: Documents) -> Iterator[Problem]:
    """Of every block it is known who runs or reads it."""
    walkers = _walkers(documents.root)
    for block in all_blocks(documents):
        if block.page != HISTORY and block.language in LANGUAGES:
            wrong = _unclear(documents.root, block, walkers)
            if wrong:
                yield Problem(block.page, block.line, *wrong)


def all_blocks(documents: Documents) -> Iterator[Block]:
    """The blocks of all pages that somebody has written."""
    for page in documents.pages.values():
        yield from page.blocks


def walked_blocks(page: Page, *, slow: bool = False) -> list[Block]:
    """The blocks that the walk through a page runs, in its order."""
    return [block for block in page.blocks if is_run(block, slow=slow)]


def is_slow(block: Block) -> bool:
    return re.fullmatch(r"not run: takes \d+ minutes?", block.mark) is not None


def is_run(block: Block, *, slow: bool = False) -> bool:
    """Whether the walk through the page types or executes it."""
    if block.language not in (*TYPED, "python"):
        return False
    free = not block.mark or RUN_WITH.fullmatch(block.mark) or not _ours(block.mark)
    return bool(free) or (slow and is_slow(block))


def _ours(mark: str) -> bool:
    """Whether a comment is one of those that say who runs a block."""
    forms = (RUN_BY, NOT_RUN, RUN_WITH, FILE, WALKED)
    return any(form.fullmatch(mark) for form in forms)


def _unclear(
    root: Path, block: Block, walkers: Mapping[str, Sequence[str]]
) -> tuple[str, str] | None:
    mark = block.mark
    if found := NOT_RUN.fullmatch(mark):
        if re.sub(r"\d+ minutes?", "N minutes", found[1]) not in REASONS:
            return f"{found[1]!r} is no reason not to run it", f"take one of: {', '.join(REASONS)}"
        return None
    if found := RUN_BY.fullmatch(mark):
        return _claimed(root, block, found[1], found[2])
    if found := WALKED.fullmatch(mark):
        return _walked(block, walkers.get(found[1], []), found[1])
    if block.language == "text":
        typed = [line for line in block.text.splitlines() if _TYPED.match(line)]
        if typed:
            return f"{typed[0].strip()!r} is a command in a block of text", "make it a console"
    elif block.language in SHOWN and not FILE.fullmatch(mark):
        do = "write <!-- run by tests/… --> or <!-- file: NAME --> before it"
        return f"nobody reads this block of {block.language}", do
    elif block.language == "json":
        try:
            json.loads(block.text)
        except json.JSONDecodeError as error:
            return f"it is no JSON ({error})", "correct it, or make it text if it is a shape"
    elif block.language == "yaml":
        try:
            yaml.safe_load(block.text)
        except yaml.YAMLError as error:
            return f"it is no YAML ({' '.join(str(error).split())})", "correct it"
    elif block.language == "toml":
        return _unreadable(block.text)
    return None


_TYPED = re.compile(r"\s*(\$ |(?:\.venv/bin/)?sottovoce [a-z-]|make \w+$|pip install )")


def _unreadable(text: str) -> tuple[str, str] | None:
    from sottovoce.errors import SottovoceError
    from sottovoce.experiment import Experiment

    try:
        Experiment.from_table(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, SottovoceError) as error:
        do = "correct it, or write <!-- run by tests/… --> if it is no experiment file"
        return f"it is no experiment file ({error})", do
    return None


def _claimed(root: Path, block: Block, test: str, function: str | None) -> tuple[str, str] | None:
    """A test that is said to run a block reads its page and blocks like it, or has its lines."""
    do = "name the test that does, or let the block be run"
    if not (root / test).is_file():
        return f"{test} is not there", do
    text = (root / test).read_text(encoding="utf-8")
    if function and f"def {function}(" not in text:
        return f"{test} has no {function}", do
    lines = [line.strip() for line in block.text.splitlines() if len(line.strip()) > 3]
    if lines and all(line in text for line in lines):
        return None
    place = PurePosixPath(block.page)
    if place.name not in text and f'"{place.parent.name}"' not in text:
        return f"{test} does not read this page", do
    fence = rf"```(\\w[*+]|\(?:?[\w|]*)?{block.language}"
    asks = "run by" in text + _helping(root, text)  # it looks for the comments themselves
    if not asks and not re.search(fence, text) and not any(line in text for line in lines):
        return f"{test} reads this page, and no block of {block.language}", do
    return None


def _helping(root: Path, text: str) -> str:
    """The texts of our modules that a test imports by their bare names."""
    names = re.findall(r"^(?:from|import) (\w+)\b", text, re.MULTILINE)
    places = [
        root / folder / f"{name}.py" for name in names for folder in ("tools", "tests/worlds")
    ]
    return "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())


def _walkers(root: Path) -> dict[str, list[str]]:
    """The texts of the tests that walk through blocks, by the mark of these blocks."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for mark in re.findall(r"^    mark(?:, \w+)? = \"(\w+)\"", text, re.MULTILINE):
            found.setdefault(mark, []).append(text)
    return found


def _walked(block: Block, texts: Sequence[str], mark: str) -> tuple[str, str] | None:
    place = PurePosixPath(block.page).parts[1].removesuffix(".md")
    if not any(re.search(rf"\b{re.escape(place)}\b", text) for text in texts):
        do = f'let a test walk through this page with mark = "{mark}"'
        return f"no test walks through the blocks of {mark!r}", do
    return None


# --- commands and names ---------------------------------------------------------------------------


def check_commands(documents: Documents) -> Iterator[Problem]:
    """A command that the documents name is there, with the options that they name."""
    root = command_line()
    for page in documents.pages.values():
        if page.path == HISTORY:
            continue
        spoken = [*page.spoken, *(
            (block.line, line) for block in page.blocks if block.language in TYPED
            for line in calls(block)
        )]  # fmt: skip
        for line, words in sorted(spoken):
            if wrong := unknown_words(root, words):
                yield Problem(page.path, line, f"`{words}`: {wrong}", "see `sottovoce --help`")
        for block in page.blocks:
            for wrong in _unknown_targets(documents.root, block):
                yield Problem(page.path, block.line, wrong, "see the Makefile and pyproject.toml")


def command_line() -> Any:
    """The tree of commands."""
    import typer.main

    from sottovoce.cli import app

    return typer.main.get_command(app)


def calls(block: Block) -> list[str]:
    """What a block calls of this program, each from `sottovoce` on."""
    begins = r"(?:^|bin/|exec |-u \w+ |[;&|(`] ?|exec \S+ |run \S+ )(sottovoce\s[^|;&>#)'`\"]+)"
    found = [at for line in block.commands for at in re.findall(begins, line)]
    return [
        " ".join(words.split()) for words in found if re.match(r"sottovoce\s+(--)?[a-z]", words)
    ]


def unknown_words(root: Any, line: str) -> str:
    """What of a command line, which may have names to fill in, the program does not know."""
    plain = re.sub(r"(?<!\S)\[|\](?!\S)|[…()]|\.\.\.", " ", line)
    words = [word.strip(",.;:") for word in re.sub(r"\s*\|\s*", "|", plain).split()[1:]]
    commands, known = [root], _options(root)
    for before, word in zip(["", *words], words, strict=False):
        groups = [command for command in commands if hasattr(command, "commands")]
        if not groups or before == "--with" or not re.match(r"[a-z]", word):
            continue
        names = word.split("|")
        missing = [name for name in names if not any(name in each.commands for each in groups)]
        if missing:
            return f"there is no command {missing[0]}"
        commands = [c.commands[name] for c in groups for name in names if name in c.commands]
        known = known.union(*map(_options, commands))
    for group in commands:
        if group is not root:  # a whole group is spoken of, with an option of some of its commands
            known = known.union(*map(_options, getattr(group, "commands", {}).values()))
    for word in words:
        for option in word.split("|") if word.startswith("-") else ():
            name = option.partition("=")[0]
            if name not in known and not re.fullmatch(r"--?|-\d.*", name):
                return f"there is no option {name}"
    return ""


def _options(command: Any) -> set[str]:
    own = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return own | {"--help", "-h"}


def _unknown_targets(root: Path, block: Block) -> Iterator[str]:
    if block.language not in TYPED:
        return
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in block.commands:
        if found := re.match(r"make ((?:[\w-]+ ?)+)", line):
            yield from (f"make has no target {t}" for t in found[1].split() if t not in targets)
        for names in re.findall(r"sottovoce\[([\w,]+)\]", line):
            unknown = set(names.split(",")) - set(extras["optional-dependencies"])
            yield from (f"there is no extra {name}" for name in sorted(unknown))


def check_help(documents: Documents) -> Iterator[Problem]:
    """Every command, option and argument has words."""
    yield from _helpless(command_line(), "sottovoce")


def _helpless(command: Any, path: str) -> Iterator[Problem]:
    if not (command.help or "").strip():
        yield Problem("src/sottovoce/cli", 1, f"`{path}` has no help", "give it a docstring")
    for given in command.params:
        if not getattr(given, "hidden", False) and not (getattr(given, "help", "") or "").strip():
            what = f"`{path}` does not say what {given.opts[0]} is"
            yield Problem("src/sottovoce/cli", 1, what, "give it help=…")
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _helpless(inner, f"{path} {name}")


def check_docstrings(documents: Documents) -> Iterator[Problem]:
    """Every public name, and what is public of it, has a docstring; and so has every setting."""
    import reference

    for name, thing in reference.public_names().items():
        yield from _wordless(name, thing)
    for section, kinds in reference.sections().items():
        for kind in kinds:
            for setting in reference.settings(kind):
                if not setting.about:
                    what = f"[{section}] {kind.__name__}.{setting.name} has no docstring"
                    yield Problem(_source(kind), 1, what, "say below it what it does")


def _wordless(name: str, thing: object) -> Iterator[Problem]:
    if isinstance(thing, type):
        if not own_words(thing):
            what = f"the class {name} has no docstring"
            yield Problem(_source(thing), _first_line(thing), what, "say in a line what it is")
        for inner, member in vars(thing).items():
            plain = member.fget if isinstance(member, property) else member
            plain = getattr(plain, "__func__", plain)
            if inner.startswith("_") or not inspect.isfunction(plain):
                continue
            if not inspect.getdoc(getattr(thing, inner)):
                what = f"{name}.{inner} has no docstring"
                yield Problem(_source(plain), _first_line(plain), what, "say what it does")
    elif callable(thing) and not inspect.getdoc(thing):
        what = f"{name} has no docstring"
        yield Problem(_source(thing), _first_line(thing), what, "say in a line what it does")


def own_words(kind: type) -> str:
    """A class's docstring; empty if dataclasses have made it up or it is a base's."""
    said = kind.__dict__.get("__doc__") or ""
    return "" if said.startswith(f"{kind.__name__}(") else inspect.cleandoc(said)


def _source(thing: Any) -> str:
    file = inspect.getsourcefile(thing)
    return Path(file).resolve().relative_to(ROOT).as_posix() if file else "src/sottovoce"


def _first_line(thing: Any) -> int:
    return inspect.getsourcelines(thing)[1]


# --- all of them, and what is still owed ----------------------------------------------------------

Check = Callable[[Documents], Iterable[Problem]]
CHECKS: dict[str, Check] = {
    "links": check_links,
    "pages": check_pages,
    "menu": check_menu,
    "languages": check_languages,
    "blocks": check_blocks,
    "commands": check_commands,
    "help": check_help,
    "docstrings": check_docstrings,
}


def unfinished(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """How many problems of each check a page may still have."""
    path = root / UNFINISHED
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def found_by(name: str, documents: Documents) -> dict[str, list[Problem]]:
    """What a check finds, by page."""
    found: dict[str, list[Problem]] = {}
    for problem in sorted(set(CHECKS[name](documents))):
        found.setdefault(problem.page, []).append(problem)
    return found


def beyond(found: Mapping[str, list[Problem]], allowed: Mapping[str, int]) -> list[Problem]:
    """The problems of pages that have more than they are allowed."""
    return [
        problem for page, problems in found.items() if len(problems) > allowed.get(page, 0)
        for problem in problems
    ]  # fmt: skip


# --- the site -------------------------------------------------------------------------------------


def stage(documents: Documents, target: Path) -> None:
    """Write the pages of the site, with the reference, where the site builder reads them; links
    that leave docs/ go to copies."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(documents.root / "docs", target, ignore=shutil.ignore_patterns("*.toml"))
    for page in (*documents.pages.values(), *documents.made.values()):
        place = documents.on_site(page.path)
        if place is None:
            continue
        text = _coloured(page)
        if page.path in BESIDE:
            text = f"---\ndescription: {BESIDE[page.path][1]}\n---\n\n{text}"
        for link in dict.fromkeys(link.target for link in page.links):
            moved = _moved(documents, page, link, target)
            if moved is None:
                text = re.sub(rf"\[([^\]]*)\]\({re.escape(link)}\)", r"\1", text)
            elif moved != link:
                text = text.replace(f"]({link})", f"]({moved})")
                text = text.replace(f'"{link}"', f'"{moved}"')
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")


def _coloured(page: Page) -> str:
    """The text, in which consoles without a prompt are called bash: they are coloured by that."""
    lines = page.text.splitlines(keepends=True)
    for block in page.blocks:
        if block.language == "console" and not re.search(r"^\s*\$ ", block.text, re.MULTILINE):
            lines[block.line - 1] = lines[block.line - 1].replace("console", "bash")
    return "".join(lines)


def _moved(documents: Documents, page: Page, link: str, target: Path) -> str | None:
    """A link as the site has it; None if there is nothing to link to."""
    if is_outside(link):
        return link
    path, _, anchor = link.partition("#")
    source, here = resolve(page.path, path), documents.on_site(page.path) or ""
    found = documents.find(source)
    if found is not None:
        for heading in found.headings:
            if anchor == heading.anchor and anchor != slug(heading.title):  # a title's second time
                anchor = re.sub(r"-(\d+)$", r"_\1", anchor)
    place = "index.md" if source == "README.md" else documents.on_site(source)
    if place is None and source.startswith("docs/"):
        place = source.removeprefix("docs/")
    if place is None:
        original = documents.root / source
        if not original.is_file():
            return None
        shown = original.suffix in (".svg", ".png", ".webp", ".jpg")
        place = f"files/{source}" if shown else f"files/{source}.txt"
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, target / place)
        anchor = ""
    relative = posixpath.relpath(place, posixpath.dirname(here) or ".") if path else ""
    return f"{relative}#{anchor}" if anchor else relative


_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=\"?((?:https?:)?//[^\" >]+)"
    r"|<link\b(?![^>]*rel=\"?(?:canonical|next|prev))[^>]*?\bhref=\"?((?:https?:)?//[^\" >]+)"
    r"|url\([\"']?((?:https?:)?//[^\"')]+)"
)


def check_site(site: Path) -> Iterator[Problem]:
    """Nothing of a page is fetched from elsewhere, and every page is there and has a body."""
    built = sorted([*site.rglob("*.html"), *site.rglob("*.css")])
    if not (site / "index.html").is_file():
        yield Problem("index.html", 1, "the site has no first page", "see what the build says")
    for path in built:
        name, text = path.relative_to(site).as_posix(), path.read_text(encoding="utf-8")
        for at in _FETCHED.finditer(re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)):
            address = at[1] or at[2] or at[3]
            what = f"{address} is fetched from elsewhere"
            yield Problem(name, text.count("\n", 0, at.start()) + 1, what, "keep it in docs/assets")


def build(documents: Documents, root: Path = ROOT) -> list[str]:
    """Make the site; what its builder complains of, a line each."""
    stage(documents, root / BUILD / "docs")
    shutil.rmtree(root / BUILD / "site", ignore_errors=True)
    # What was kept of an earlier build would have the docstrings of then.
    how = ["--strict", "--clean", "--config-file", CONFIGURATION]
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", *how],
        cwd=root, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    troubled = done.returncode != 0 or re.search(r"warning|error", said, re.IGNORECASE)
    return said.splitlines() if troubled else []


# --- the command ----------------------------------------------------------------------------------


def read_all(root: Path = ROOT) -> Documents:
    """The documents of the repository with their reference."""
    import reference

    return Documents.read(root, reference.pages(root))


def _check(documents: Documents) -> int:
    allowed, wrong = unfinished(documents.root), 0
    for name in CHECKS:
        found = found_by(name, documents)
        problems = beyond(found, allowed.get(name, {}))
        wrong += len(problems)
        for problem in problems:
            print(f"{problem} [{name}]")
        owed = sum(map(len, found.values())) - len(problems)
        if owed:
            print(f"({owed} more of {name} in pages that {UNFINISHED} names)", file=sys.stderr)
    return 1 if wrong else 0


WALKS = "walks"
"""Of unfinished pages: those whose blocks are not run yet, with the number of these blocks."""


def _owed(documents: Documents, lower: bool) -> int:
    """Print what is owed, or write the file with numbers that are no larger than before."""
    before, lines = unfinished(documents.root), []
    for name in (*CHECKS, WALKS):
        if name == WALKS:
            counts = {path: len(walked_blocks(page)) for path, page in documents.pages.items()}
            found = {path: n for path, n in counts.items() if n and path in before.get(name, {})}
        else:
            found = {page: len(problems) for page, problems in found_by(name, documents).items()}
        if lower:
            known = before.get(name, {})
            found = {page: min(n, known[page]) for page, n in found.items() if page in known}
        if found:
            lines += [f"\n[{name}]", *(f'"{page}" = {n}' for page, n in sorted(found.items()))]
    text = f"{_OWED_HEAD}{chr(10).join(lines)}\n"
    if lower:
        (documents.root / UNFINISHED).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


_OWED_HEAD = """\
# How many problems of each check of tools/docs.py a page or file still has. No number may grow, and
# a page that is not here has none. `python tools/docs.py owed --lower` takes off what was mended.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say what is wrong")
    commands.add_parser("build", help="check, and build the site into build/site")
    owed = commands.add_parser("owed", help="say what unfinished pages owe")
    owed.add_argument("--lower", action="store_true", help=f"write {UNFINISHED}, numbers falling")
    given = parser.parse_args(arguments)
    documents = read_all()
    if given.command == "owed":
        return _owed(documents, given.lower)
    if given.command == "check":
        return _check(documents)
    code = _check(documents)
    complaints = build(documents)
    for line in complaints:
        print(line)
    foreign = [*check_site(ROOT / BUILD / "site")]
    for problem in foreign:
        print(problem)
    if code or complaints or foreign:
        return 1
    print(f"The site is in {BUILD / 'site'}; open {BUILD / 'site' / 'index.html'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
