"""The public names."""

import subprocess
import sys

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
