"""Commands on a terminal, and somebody who answers."""

import contextlib
import os
import pty
import subprocess
import sys
import threading
import time

_OWN = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal(subprocess.Popen):
    """A command on a terminal of its own. Each of the questions in `typed` is waited for, in order,
    and answered; all that was said is in the file `log`."""

    def __init__(self, words, log, typed=(), **where):
        self._hand, far = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), far)
        try:
            # Whose terminal it is, so that Ctrl-C reaches the command.
            own = [sys.executable, "-c", _OWN, *words]
            super().__init__(own, **streams, start_new_session=True, **where)
        finally:
            os.close(far)
        self._log, self._left = log.open("wb"), list(typed)
        self._interrupted = False
        self._sitting = threading.Thread(target=self._sit, daemon=True)
        self._sitting.start()

    def _sit(self):
        said, at, before = "", 0, 0
        with self._log, contextlib.suppress(OSError):  # the terminal is gone
            while part := os.read(self._hand, 1 << 16):
                self._log.write(part)
                self._log.flush()
                said += part.decode(errors="replace")
                while self._left and self._left[0][0] in said[at:]:
                    question, answer = self._left.pop(0)
                    at = said.index(question, at) + len(question)
                    key = answer in ("\x03", "\x04")
                    os.write(self._hand, answer.encode() if key else f"{answer}\n".encode())
                    self._interrupted, before = answer == "\x03", len(said)
                later = said[before:].partition("\n")[2]  # after the line that was being said
                if self._interrupted and later.replace("^C", "").strip():
                    self._interrupted = False  # it was heard
        os.close(self._hand)

    def ended(self, seconds=600):
        """The exit code, when all that it said is in the file. A Ctrl-C that comes a moment before
        the command begins to read is heard at the next key alone: it is pressed again."""
        end = time.monotonic() + seconds
        while True:
            try:
                code = self.wait(min(3.0, max(0.0, end - time.monotonic())))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    self.kill()
                    raise
                if self._interrupted:
                    os.write(self._hand, b"\x03")
        self._sitting.join(5)
        return code


def ask(log, typed, *words, seconds=600, **where):
    """One command to its end: exit code, and what was said."""
    command = [sys.executable, "-m", "sottovoce", *map(str, words)]
    with Terminal(command, log, typed, **where) as terminal:
        code = terminal.ended(seconds)
    assert not terminal._left, (terminal._left, log.read_text())
    return code, log.read_text()
