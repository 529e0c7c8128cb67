"""The search that coverage guides, by atheris (libFuzzer), where that is installed.

Half of the inputs are drawn from the seed, as without it. Some of them are where the search begins:
what they and their changes reach of the services decides which of them are changed further.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

WATCHED = (
    "sottovoce.services", "sottovoce.wire", "sottovoce.config", "sottovoce.parties",
    "sottovoce.stores",
)  # fmt: skip
_BEGIN = 1000


def there_is():
    return importlib.util.find_spec("atheris") is not None


def _left_alone():
    """All other modules: of whole packages alone can be said that they are watched, and numba
    compiles no function that is."""
    root = Path(importlib.util.find_spec("sottovoce").origin).parent
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not module.startswith(WATCHED):
            yield module


def run(name, inputs, seed, save):
    """Prints the report and ends the process, as libFuzzer does."""
    import atheris

    out = os.dup(1)
    os.dup2(2, 1)  # libFuzzer's own words are not the report
    left_alone = list(_left_alone())
    with atheris.instrument_imports(
        include=["sottovoce"], exclude=left_alone, enable_loader_override=False
    ):
        import fuzz_runner
    from fuzz_choices import LONG, drawn

    runner = fuzz_runner.Runner(name, seed, save)
    for index in range(inputs // 2):
        runner.feed(drawn(seed, name, index))

    def feed(data):
        if runner.report.inputs == 3 * inputs // 5:  # libFuzzer has what it needs by now
            runner.mark()
        runner.feed(data)
        if runner.report.inputs >= inputs:
            _finish(runner, out)

    corpus = Path(tempfile.mkdtemp(prefix="sottovoce-corpus-"))
    for index in range(_BEGIN):
        (corpus / str(index)).write_bytes(drawn(seed, name, index))
    options = [
        f"-max_len={2 * LONG}",
        f"-seed={seed}",
        "-runs=-1",
        "-timeout=120",
        "-rss_limit_mb=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], feed)
    atheris.Fuzz()


def _finish(runner, out):
    report = runner.end()
    with contextlib.suppress(Exception):
        runner.close()
    os.write(out, json.dumps(report.to_table()).encode() + b"\n")
    os._exit(0)
