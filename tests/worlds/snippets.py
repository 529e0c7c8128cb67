"""A walk through a page: its files are written, its commands typed and its Python run, in order.

A page is walked in an empty folder, which is also the home of whoever types. Blocks of Python share
their names. What a block may not need is not there: no data sets but those that the page imports.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import docs

MOST_SECONDS = 800
PROGRAMS = Path(sys.executable).parent
SIZED = ("run", "tune", "plan", "attack", "demo", "benchmark", "reproduce")
"""Commands to which the words of `run with:` are added."""


class Walk:
    """One reader of a page, at a folder."""

    def __init__(self, page: docs.Page, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.said: list[str] = []

    def through(self, *, slow: bool = False) -> int:
        """Run every block that is run, and write every file; how many blocks were run."""
        count = 0
        for block in self.page.blocks:
            if named := docs.FILE.fullmatch(block.mark):
                place = self.folder / named[1]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.text, encoding="utf-8")
            elif docs.is_run(block, slow=slow):
                count += 1
                run = self.execute if block.language == "python" else self.type_in
                run(block)
        return count

    def execute(self, block: docs.Block) -> None:
        """Run a block of Python in this process, in the page's folder."""
        # Its lines have the numbers that they have on the page.
        code = compile("\n" * block.line + block.text, self.page.path, "exec")
        heard = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(heard):
            exec(code, self.names)
        self.said.append(heard.getvalue())

    def type_in(self, block: docs.Block) -> None:
        """Type the commands of a block, each of which must succeed."""
        more = docs.RUN_WITH.fullmatch(block.mark)
        lines = [sized(line, more[1]) if more else line for line in block.commands]
        script = "\n".join(["set -euo pipefail", *lines]).replace(".venv/bin/", "")
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment(), text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=MOST_SECONDS,
        )  # fmt: skip
        place = f"{block.page}:{block.line}"
        assert done.returncode == 0, f"{place}: {script}\n{done.stdout}{done.stderr}"
        self.said.append(done.stdout)

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SOTTOVOCE")}
        path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
        data = str(self.folder / ".data")
        return {**kept, "PATH": path, "HOME": str(self.folder), "SOTTOVOCE_DATA": data}


def sized(line: str, words: str) -> str:
    """A command with more words, by which it takes less time."""
    called = rf"(.*\bsottovoce (?:{'|'.join(SIZED)})\b[^|;&>#]*)(.*)"
    found = re.fullmatch(called, line)
    return f"{found[1].rstrip()} {words} {found[2]}".rstrip() if found else line
