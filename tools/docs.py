"""The documents: the checks that keep their pages true, and the site.

    python tools/docs.py check            what is wrong: file:line: what; what to do
    python tools/docs.py build            checks, reference and site, into build/site

A check is a function that takes the documents and returns problems. Zensical checks links between
pages and their anchors when it builds the site.
"""

from __future__ import annotations

import argparse
import ast
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
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from sybil import Document
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = "mkdocs.yml"
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
FRONT_DOOR = ("README.md", "files/readme.md")
"""The README is staged so that its links are checked; readers of the site are led to index.md."""
HISTORY = "CHANGELOG.md"
"""It speaks of commands and settings as they were."""


# --- pages ----------------------------------------------------------------------------------------


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
    follows: bool = False
    """Whether only blank lines stand between it and the block before."""

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
        return tuple(block for block, _ in self._blocks)

    @cached_property
    def _blocks(self) -> list[tuple[Block, tuple[int, int]]]:
        found, end = [], 0
        for region in _FENCED(Document(self.text, self.path)):
            between = self.text[end : region.start]
            comment = re.search(r"<!--\s*([^\n]*?)\s*-->\s*$", between)
            fence = self.text[region.start : region.end].lstrip()[:3]
            words = region.lexemes["language"].split()
            block = Block(
                self.path, self.text.count("\n", 0, region.start) + 1, words[0] if words else "",
                str(region.lexemes["source"]), comment[1] if comment else "",
                self.text[: region.end].rstrip().endswith(fence), bool(end) and not between.strip(),
            )  # fmt: skip
            found.append((block, (region.start, region.end)))
            end = region.end
        return found

    @cached_property
    def prose(self) -> str:
        """The text with blocks, comments and front matter blanked; lines stay where they are."""
        text = self.text
        blank: Callable[[str], str] = lambda words: "\n" * words.count("\n")  # noqa: E731
        for _, (start, end) in reversed(self._blocks):
            text = text[:start] + blank(text[start:end]) + text[end:]
        text = _FRONT.sub(lambda found: blank(found[0]), text)
        return re.sub(r"<!--.*?-->", lambda found: blank(found[0]), text, flags=re.DOTALL)

    @cached_property
    def headings(self) -> tuple[tuple[int, int, str], ...]:
        """Line, level and title of each."""
        return tuple(
            (number, len(at[1]), at[2])
            for number, line in enumerate(self.prose.splitlines(), 1)
            if (at := re.match(r"(#{1,6}) +(.+?)\s*#*$", line))
        )

    @cached_property
    def links(self) -> tuple[tuple[int, str], ...]:
        """Line and target of each."""
        text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda m: " " * len(m[0]), self.prose)
        places = [
            *re.finditer(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)", text),
            *re.finditer(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", text, re.MULTILINE),
            *re.finditer(r"<(?:a|img|source|object)\b[^>]*\b(?:href|src|data)=\"([^\"]+)\"", text),
        ]
        return tuple(sorted((text.count("\n", 0, at.start(1)) + 1, at[1]) for at in places))

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
_FENCED = FencedCodeBlockLexer(r"[^\n]*")


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
        names = [name for name in (FRONT_DOOR[0], *BESIDE, *inside) if (root / name).is_file()]
        pages = {name: Page(name, (root / name).read_text(encoding="utf-8")) for name in names}
        return cls(root, pages, {name: Page(name, text) for name, text in (made or {}).items()})

    @cached_property
    def every(self) -> tuple[Page, ...]:
        return (*self.pages.values(), *self.made.values())

    @cached_property
    def navigation(self) -> list[str]:
        """The pages of the menu by their place on the site, in its order."""
        text = (self.root / CONFIGURATION).read_text(encoding="utf-8")
        return list(_leaves((yaml.load(text, Loader=_Tolerant) or {}).get("nav", [])))

    def on_site(self, path: str) -> str | None:
        """Where a document is on the site; None if readers are not led to it."""
        if path in BESIDE:
            return BESIDE[path][0]
        inside = path.startswith("docs/") and (path in self.pages or path in self.made)
        return path.removeprefix("docs/") if inside else None


class _Tolerant(yaml.SafeLoader):  # type: ignore[misc]
    """Names of Python functions are the site builder's business."""


_Tolerant.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)


def _leaves(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, (dict, list)):
        for inner in entries.values() if isinstance(entries, dict) else entries:
            yield from _leaves(inner)


# --- pages and the menu ---------------------------------------------------------------------------


def check_pages(documents: Documents) -> Iterator[Problem]:
    """A page has one title, which comes first, and, under docs/, a description."""
    for page in documents.every:
        titles = [line for line, level, _ in page.headings if level == 1]
        if len(titles) != 1:
            line = titles[1] if titles else 1
            yield Problem(page.path, line, f"it has {len(titles)} titles", "leave one `# Title`")
        elif page.headings[0][0] != titles[0]:
            line = page.headings[0][0]
            yield Problem(page.path, line, "a heading stands before the title", "begin with it")
        described = str(page.front.get("description") or "").strip()
        if page.path.startswith("docs/") and not 0 < len(described) <= MOST_DESCRIBED:
            what = f"its description has {len(described)} letters" if described else ""
            do = f"begin with ---, description: (at most {MOST_DESCRIBED} letters), ---"
            yield Problem(page.path, 1, what or "it has no description", do)


def check_menu(documents: Documents) -> Iterator[Problem]:
    """Every page of the site is once in the menu, and the menu has nothing else."""
    there = Counter(filter(None, (documents.on_site(page.path) for page in documents.every)))
    counted = Counter(documents.navigation)
    for place in sorted({*there, *counted}):
        if counted[place] != there[place]:
            what = (
                f"the menu has {place} {counted[place]} times, and there are {there[place]} of it"
            )
            yield Problem(CONFIGURATION, 1, what, "make both of these 1, or both 0")


# --- blocks ---------------------------------------------------------------------------------------

TYPED = ("console", "bash", "sh")
SHOWN = ("csv", "css", "diff", "dockerfile", "html", "http", "ini", "javascript", "js", "nginx",
         "ts")  # fmt: skip
LANGUAGES = ("text", "python", "json", "toml", "yaml", *TYPED, *SHOWN)

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
RUN_BY = re.compile(r"run by (tests/[\w/]+\.py)(?:, .+)?")
NOT_RUN = re.compile(r"not run: (.+)")
RUN_WITH = re.compile(r"run with: (.+)")
FILE = re.compile(r"file: ([\w./-]+)")
WALKED = re.compile(r"([a-z]+)(?: again)?: (\w+)(?:, (stays|types))?")
"""A block that a test walks through: the test's mark, the machine, and how it ends."""


def check_blocks(documents: Documents) -> Iterator[Problem]:
    """A block says which language it is in, and it is known who runs or reads it."""
    tests = sorted((documents.root / "tests").rglob("*.py"))
    texts = {
        path.relative_to(documents.root).as_posix(): path.read_text(encoding="utf-8")
        for path in tests
    }
    for page in documents.pages.values():
        for block in page.blocks:
            if not block.closed:
                yield Problem(block.page, block.line, "the block never ends", "close it with ```")
            elif block.language not in LANGUAGES:
                what = f"the block has the language {block.language!r}"
                do = "name a language after ```: console, python, toml, json, or text for output"
                yield Problem(block.page, block.line, what, do)
            elif block.page != HISTORY and (wrong := _unclear(block, texts)):
                yield Problem(block.page, block.line, *wrong)


def is_slow(block: Block) -> bool:
    return re.fullmatch(r"not run: takes \d+ minutes?", block.mark) is not None


def is_run(block: Block, *, slow: bool = False) -> bool:
    """Whether the walk through the page types or executes it."""
    if block.language not in (*TYPED, "python"):
        return False
    ours = any(form.fullmatch(block.mark) for form in (RUN_BY, NOT_RUN, FILE, WALKED))
    free = not ours or RUN_WITH.fullmatch(block.mark) is not None
    return free or (slow and is_slow(block))


def _unclear(block: Block, tests: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with who runs or reads a block, and what to do."""
    if found := NOT_RUN.fullmatch(block.mark):
        if re.sub(r"\d+ minutes?", "N minutes", found[1]) not in REASONS:
            return f"{found[1]!r} is no reason not to run it", f"take one of: {', '.join(REASONS)}"
    elif found := RUN_BY.fullmatch(block.mark):
        return _claimed(block, found[1], tests.get(found[1]))
    elif found := WALKED.fullmatch(block.mark):
        if not RUN_WITH.fullmatch(block.mark) and not FILE.fullmatch(block.mark):
            walks = re.compile(rf"^    mark(?:, \w+)? = \"{found[1]}\"", re.MULTILINE)
            if not any(map(walks.search, tests.values())):
                do = f'let a test walk through this page with mark = "{found[1]}"'
                return f"no test walks through the blocks of {found[1]!r}", do
    elif block.language == "text":
        if typed := re.search(
            r"^\s*(\$ |(?:\.venv/bin/)?sottovoce [a-z-]|make \w+$|pip install ).*",
            block.text, re.MULTILINE,
        ):  # fmt: skip
            return f"{typed[0].strip()!r} is a command in a block of text", "make it a console"
    elif block.language in SHOWN and not FILE.fullmatch(block.mark):
        do = "write <!-- run by tests/… --> or <!-- file: NAME --> before it"
        return f"nobody reads this block of {block.language}", do
    elif read := _READERS.get(block.language):
        try:
            read(block.text)
        except Exception as error:
            what = f"it is no {block.language} that can be read ({' '.join(str(error).split())})"
            return what, "correct it, or write <!-- run by tests/… --> before it"
    return None


def _experiment(text: str) -> object:
    from sottovoce.experiment import Experiment

    return Experiment.from_table(tomllib.loads(text))


_READERS: Mapping[str, Callable[[str], object]] = {
    "json": json.loads, "yaml": yaml.safe_load, "toml": _experiment,
}  # fmt: skip


def _claimed(block: Block, test: str, text: str | None) -> tuple[str, str] | None:
    """A test that is said to run a block names its page or folder, or has the block's lines."""
    do = "name the test that does, or let the block be run"
    if text is None:
        return f"{test} is not there", do
    lines = [line.strip() for line in block.text.splitlines() if len(line.strip()) > 3]
    place = Path(block.page)
    if (
        place.name in text
        or f'"{place.parent.name}"' in text
        or all(line in text for line in lines)
    ):
        return None
    return f"{test} does not read this page", do


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
            for name in _unknown_files(documents.root / "experiments", words):
                what = f"`{words}`: there is no experiment {name}"
                yield Problem(page.path, line, what, "see experiments/")
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


def _unknown_files(folder: Path, line: str) -> Iterator[str]:
    """The experiment files and studies that a command line names and that are not there."""
    words = [word.strip(",.;:") for word in line.split()]
    named = [word for word in words if (folder / word.partition("/")[0]).is_dir() and "/" in word]
    if words[1:2] == ["reproduce"] and folder.is_dir():
        named += [f"reproduce/{word}" for word in words[2:3]]
    plain = (name for name in named if re.fullmatch(r"[a-z]+/[a-z0-9][a-z0-9-]*", name))
    yield from (name for name in plain if not (folder / f"{name}.toml").is_file())


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


NAMED = re.compile(r"\[`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`\]\(([^()\s#]+\.py)\)")
"""A link from the name of a function, class, field or constant to the module that has it."""


def check_names(documents: Documents) -> Iterator[Problem]:
    """A module that a name of the code leads to has that name."""
    for page in documents.pages.values():
        for at in NAMED.finditer(page.prose):
            source = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), at[2]))
            line = page.prose.count("\n", 0, at.start()) + 1
            if at[1].endswith(".py"):
                continue
            if not (documents.root / source).is_file():
                yield Problem(page.path, line, f"there is no {source}", "correct the link")
            elif at[1] not in _defined(documents.root / source):
                what = f"{source} has no {at[1]}"
                yield Problem(page.path, line, what, "link to what does this now")


@cache
def _defined(module: Path) -> frozenset[str]:
    """What a module defines: names of functions, classes, fields and constants, with those inside
    of others behind a dot."""
    return frozenset(_inside(ast.parse(module.read_text(encoding="utf-8")), ""))


def _inside(tree: ast.AST, before: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield before + node.name
            yield from _inside(node, f"{before}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (before + each.id for each in targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.If):
            yield from _inside(node, before)


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
        for label in _wordless(name, thing):
            yield Problem(
                "src/sottovoce", 1, f"{label} has no docstring", "say in a line what it is"
            )
    for section, kinds in reference.sections().items():
        for kind in kinds:
            for setting in reference.settings(kind):
                if not setting.about:
                    what = f"[{section}] {kind.__name__}.{setting.name} has no docstring"
                    yield Problem("src/sottovoce", 1, what, "say below it what it does")


def _wordless(name: str, thing: object) -> Iterator[str]:
    if isinstance(thing, type):
        said = thing.__dict__.get("__doc__") or ""
        if not said or said.startswith(f"{thing.__name__}("):  # dataclasses have made it up
            yield name
        for inner, member in vars(thing).items():
            plain = member.fget if isinstance(member, property) else member
            function = inspect.isfunction(getattr(plain, "__func__", plain))
            if not inner.startswith("_") and function and not inspect.getdoc(getattr(thing, inner)):
                yield f"{name}.{inner}"
    elif callable(thing) and not inspect.getdoc(thing):
        yield name


Check = Callable[[Documents], Iterable[Problem]]
CHECKS: dict[str, Check] = {
    "pages": check_pages,
    "menu": check_menu,
    "blocks": check_blocks,
    "commands": check_commands,
    "names": check_names,
    "help": check_help,
    "docstrings": check_docstrings,
}


# --- the site -------------------------------------------------------------------------------------


def stage(documents: Documents, target: Path) -> list[Problem]:
    """Write the pages of the site where Zensical reads them, and return what they lead to that is
    not there. Links to other files lead to copies. Zensical itself looks at links to pages."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(documents.root / "docs", target)
    problems = []
    for page in documents.every:
        readme = page.path == FRONT_DOOR[0]
        place = FRONT_DOOR[1] if readme else documents.on_site(page.path)
        if place is None:
            continue
        text = _coloured(page)
        if page.path in (FRONT_DOOR[0], *BESIDE):
            about = BESIDE[page.path][1] if page.path in BESIDE else "What Sottovoce is."
            hidden = "search:\n  exclude: true\n" if readme else ""
            text = f"---\ndescription: {about}\n{hidden}---\n\n{text}"
        for link, line in {link: line for line, link in reversed(page.links)}.items():
            try:
                moved = _moved(documents, page.path, place, link, target)
            except LookupError as error:
                problems.append(Problem(page.path, line, f"({link}) {error}", "correct the link"))
                continue
            if not moved:
                text = re.sub(rf"\[([^\]]*)\]\({re.escape(link)}\)", r"\1", text)
            elif moved != link:
                text = text.replace(f"]({link})", f"]({moved})")
                text = text.replace(f'"{link}"', f'"{moved}"')
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")
    return problems


def _coloured(page: Page) -> str:
    """The text, in which consoles without a prompt are called bash: they are coloured by that."""
    lines = page.text.splitlines(keepends=True)
    for block in page.blocks:
        if block.language == "console" and not re.search(r"^\s*\$ ", block.text, re.MULTILINE):
            lines[block.line - 1] = lines[block.line - 1].replace("console", "bash")
    return "".join(lines)


def _moved(documents: Documents, page: str, here: str, link: str, target: Path) -> str:
    """A link as the site has it; empty for a folder. Raises LookupError if it leads nowhere."""
    if re.match(r"[a-z][a-z+.-]*:|//", link):
        return link
    path, hash_sign, anchor = link.partition("#")
    source = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if path.startswith("/") or source.startswith(".."):
        raise LookupError("leaves the repository")
    if page == FRONT_DOOR[0] and source in documents.made:
        raise LookupError("leads to a page that only the site has")
    place = (
        here if not path else "index.md" if source == FRONT_DOOR[0] else documents.on_site(source)
    )
    original = documents.root / source
    if place is None and source.startswith("docs/") and source.endswith(".md"):
        return link  # Zensical will say that it is not there
    if place is None:
        if not original.exists():
            raise LookupError(f"leads to {source}, which is not there")
        if original.is_dir():
            return ""
        shown = original.suffix in (".svg", ".png", ".webp", ".jpg")
        place = source.removeprefix("docs/") if source.startswith("docs/") else f"files/{source}"
        place += "" if shown or source.startswith("docs/") else ".txt"
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, target / place)
        hash_sign = anchor = ""
    relative = posixpath.relpath(place, posixpath.dirname(here) or ".") if path else ""
    return f"{relative}{hash_sign}{anchor}"


_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=\"?((?:https?:)?//[^\" >]+)"
    r"|<link\b(?![^>]*rel=\"?(?:canonical|next|prev))[^>]*?\bhref=\"?((?:https?:)?//[^\" >]+)"
    r"|url\([\"']?((?:https?:)?//[^\"')]+)"
)


def check_site(site: Path) -> Iterator[Problem]:
    """Nothing of a page is fetched from elsewhere."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        name, text = path.relative_to(site).as_posix(), path.read_text(encoding="utf-8")
        for at in _FETCHED.finditer(re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)):
            what = f"{at[1] or at[2] or at[3]} is fetched from elsewhere"
            yield Problem(name, text.count("\n", 0, at.start()) + 1, what, "keep it in docs/assets")


def build(documents: Documents, root: Path = ROOT) -> list[str]:
    """Make the site, and return what is wrong with it, a line each."""
    problems = [*map(str, stage(documents, root / BUILD / "docs"))]
    shutil.rmtree(root / BUILD / "site", ignore_errors=True)
    # What was kept of an earlier build would have the docstrings of then.
    how = ["--strict", "--clean", "--config-file", CONFIGURATION]
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", *how],
        cwd=root, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    if done.returncode != 0 or re.search(r"warning|error", said, re.IGNORECASE):
        problems += said.partition("Traceback")[0].splitlines()
    return [*problems, *map(str, check_site(root / BUILD / "site"))]


def read_all(root: Path = ROOT) -> Documents:
    """The documents of the repository with their reference."""
    import reference

    return Documents.read(root, reference.pages(root))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("check", "build"))
    given = parser.parse_args(arguments)
    documents = read_all()
    wrong = [
        f"{problem} [{name}]"
        for name, check in CHECKS.items()
        for problem in sorted(set(check(documents)))
    ]
    if given.what == "build":
        wrong += build(documents)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not wrong and given.what == "build":
        print(f"The site is in {BUILD / 'site'}; open {BUILD / 'site' / 'index.html'}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
