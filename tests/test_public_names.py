"""The public names."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sottovoce


def test_every_public_name_is_there_and_sorted():
    names = [name for name in sottovoce.__all__ if name != "__version__"]
    assert names == sorted(names)
    for name in names:
        assert getattr(sottovoce, name).__name__ == name
    assert set(names) <= set(dir(sottovoce))
    with pytest.raises(AttributeError, match="nonsense"):
        sottovoce.nonsense  # noqa: B018


def test_importing_the_package_is_free_and_silent():
    code = (
        "import sottovoce, sys; print(*sorted(m for m in sys.modules if m in ('numpy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_modules_of_the_release_before_say_where_they_are_now():
    """Each of them, and where it leads is there."""
    table = (Path(sottovoce.__file__).parent / "moved.txt").read_text().splitlines()[1:]
    packages = ("sottovoce.engines.https", "sottovoce.engines.copies", "sottovoce.reproduce", "")
    assert len(table) > 250
    for line in table:
        old, new = line.split()
        gone = next(place for place in packages if f"{old}.".startswith(place))
        with pytest.raises(ImportError, match=rf"^{re.escape(gone or old)} is .* now; "):
            importlib.import_module(old)
        assert importlib.util.find_spec(new) is not None, line
    with pytest.raises(ImportError, match=r"sottovoce\.running is sottovoce\.runs\.train now"):
        from sottovoce import running  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module("sottovoce.never_there")
