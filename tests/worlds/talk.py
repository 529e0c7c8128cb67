"""What many tests do: wait for something, and ask a command within this process."""

import contextlib
import io
import json
import time

from sottovoce.cli import call


def until(found, seconds=600.0, why=lambda: ""):
    """What `found` gives, once that is something."""
    end = time.monotonic() + seconds
    while not (there := found()):
        assert time.monotonic() < end, f"it did not happen: {why()}"
        time.sleep(0.01)
    return there


def told(*arguments, code=0):
    """What a command answers as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert call([*map(str, arguments), "--json"]) == code
    return json.loads(out.getvalue())
