"""A walk through a page: its files are written, its commands typed and its Python run, in order.

A page is walked in an empty folder. Blocks of Python share their names. There are no data sets but
those that the page imports. Pages of `PRINTED` are run in this way, too, with these words behind
`run by tests/docs/test_tutorials.py`, after commas:

    stays until "ready"    a service: it goes on in the background, and the next block is run when
                           it has said so
    wait for "finished"    the block is repeated until its output has these words
    slow                   too long for the ordinary tests
    numbers vary           digits and digests differ from run to run
    file things.csv        the block is the content of this file

There, a block of text that follows shows what is printed. `…` stands for what was left out, in a
line or as a line of its own; every other line is printed as it is there, in this order.
"""

import ast
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import docs

MOST_SECONDS = 800
PROGRAMS = Path(sys.executable).parent
MARK = "run by tests/docs/test_tutorials.py"
PRINTED = ("docs/tutorials/", "docs/how-to/")
SIZED = ("run", "tune", "plan", "attack", "demo", "benchmark", "reproduce")
"""Commands to which the words of `run with:` are added."""


def words_of(mark):
    """What a mark says; empty if the walk of tutorials does not run the block. Raises ValueError if
    it says what nobody knows."""
    first, *more = [part.strip() for part in mark.split(",")]
    if first != MARK:
        if mark.startswith("run by tests/docs/"):
            raise ValueError(f"nobody runs this block: {mark}")
        return {}
    found = {"run": ""}
    for part in more:
        said = re.fullmatch(
            r'(stays until|wait for) "([^"]+)"|(file) (\S+)|slow|numbers vary', part
        )
        if said is None:
            raise ValueError(f"a mark says what nobody knows: {part!r}")
        key, value, name, path = said.groups()
        found[key or name or part] = value or path or ""
    return found


class Walk:
    """One reader of a page, at a folder. `changes` are what is typed otherwise because ports are
    taken; `before` has functions that are called before the block that has the words is run."""

    def __init__(self, page, folder, changes=None, before=None):
        self.page, self.folder = page, folder
        self.changes, self.before = changes or {}, before or {}
        self.prints = page.path.startswith(PRINTED)
        self.home = folder / "home" if self.prints else folder
        self.home.mkdir(exist_ok=True)
        self.names = {"__name__": "__main__"}
        self.said, self.running, self.changed = [], {}, set()

    def through(self, *, slow=False):
        """Run every block that is run, and write every file; how many blocks were run."""
        try:
            for block, after in zip(self.page.blocks, [*self.page.blocks[1:], None], strict=True):
                words = words_of(block.mark)
                named = docs.FILE.fullmatch(block.mark)
                if name := words.get("file") or (named and named[1]):
                    place = self.folder / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(self._typed(block.text), encoding="utf-8")
                elif docs.is_run(block, slow=slow) or (words and (slow or "slow" not in words)):
                    self.said.append(self._run(block, words))
                    if after is not None and after.language == "text" and after.follows:
                        self._compare(block, after, "numbers vary" in words)
        finally:
            for child, _ in reversed(self.running.values()):
                stop(child)
        assert self.changed == set(self.changes), "a change for the test changes nothing"
        return len(self.said)

    def _run(self, block, words):
        prompts = re.search(r"^\s*\$ ", block.text, re.MULTILINE)
        text = "\n".join(block.commands) if prompts else block.text
        if more := docs.RUN_WITH.fullmatch(block.mark):
            text = "\n".join(sized(line, more[1]) for line in block.commands)
        text = self._typed(text)
        for old, call in self.before.items():
            if old in text:
                call()
        with mock.patch.dict(os.environ, self.environment(), clear=True):
            if block.language == "python":
                return self.execute(block, text)
            text = text.replace(".venv/bin/", "")
            place = f"{block.page}:{block.line}"
            if until := words.get("stays until"):
                return self.stays(text, until, place)
            if wanted := words.get("wait for"):
                return self.type_in(text, place, wanted)
            return self.type_in(text, place)

    def _typed(self, text):
        for old, new in self.changes.items():
            self.changed |= {old} if old in text else set()
            text = text.replace(old, new)
        return text

    def execute(self, block, text):
        """Run a block of Python in this process, in the page's folder. What its last expression is
        worth is printed."""
        # Its lines have the numbers that they have on the page.
        tree = ast.parse("\n" * block.line + text, self.page.path)
        last = tree.body.pop() if self.prints else ast.Pass(lineno=1, col_offset=0)
        heard = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(heard):
            exec(compile(tree, self.page.path, "exec"), self.names)
            exec(compile(ast.Interactive([last]), self.page.path, "single"), self.names)
        return heard.getvalue()

    def type_in(self, text, place, wanted=""):
        """Type commands, each of which must succeed; again until the output has what is wanted."""
        end = time.monotonic() + MOST_SECONDS
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=MOST_SECONDS,
            )  # fmt: skip
            if not wanted or wanted in done.stdout or time.monotonic() > end:
                break
            time.sleep(0.5)
        assert wanted in done.stdout, f"{place}: {wanted!r} did not come: {done.stdout}"
        assert wanted or done.returncode == 0, f"{place}: {text}\n{done.stdout}"
        return done.stdout

    def stays(self, text, until, place):
        """Start what serves, as in a terminal of its own, and wait until it says so. The same lines
        again are a restart: Ctrl-C, and typed once more."""
        if text in self.running:
            stop(self.running.pop(text)[0])
        log = self.folder / f".terminal-{len(self.running) + 1}.log"
        with log.open("wb") as said:
            child = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.running[text] = child, log
        end = time.monotonic() + MOST_SECONDS
        while until not in (told := log.read_text(errors="replace")):
            assert child.poll() is None, f"{place}: it did not say {until!r}: {told}"
            assert time.monotonic() < end, f"{place}: it did not say {until!r}: {told}"
            time.sleep(0.1)
        return told

    def environment(self):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SOTTOVOCE") and "COLOR" not in name
        }
        path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
        data = str(self.folder / ("data" if self.prints else ".data"))
        return {
            **kept, "PATH": path, "HOME": str(self.home), "SOTTOVOCE_DATA": data, "COLUMNS": "120",
        }  # fmt: skip

    def _compare(self, block, shown, vary):
        if self.prints:
            missing = differs(shown.text, self.said[-1], vary)
            place = f"{shown.page}:{shown.line}"
            assert not missing, f"{place} shows {missing!r}; printed was:\n{self.said[-1]}"


def stop(child):
    """As Ctrl-C does."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def differs(shown, said, vary=False):
    """The first line that the page shows and that was not printed, after those before it."""
    lines, at = [plain(line, vary) for line in said.splitlines()], 0
    for line in shown.splitlines():
        if line.strip() in ("…", ""):
            continue
        wanted = ".*".join(map(re.escape, plain(line, vary).split("…")))
        found = [n for n in range(at, len(lines)) if re.fullmatch(wanted, lines[n])]
        if not found:
            return line
        at = found[0] + 1
    return ""


def plain(line, vary):
    """Without what differs from machine to machine: spaces, and where numbers vary, these."""
    line = " ".join(line.split())
    if vary:
        line = re.sub(r"\b(?=\w*\d)[0-9a-f]{6,}\b", "#", line)
        line = re.sub(r"[\d][\d.,:]*\d|\d", "#", line)
    return line


def sized(line, words):
    """A command with more words, by which it takes less time."""
    called = rf"(.*\bsottovoce (?:{'|'.join(SIZED)})\b[^|;&>#]*)(.*)"
    found = re.fullmatch(called, line)
    return f"{found[1].rstrip()} {words} {found[2]}".rstrip() if found else line
