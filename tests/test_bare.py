"""Tests that are marked `cuda` ask for the core's packages alone: a machine with a GPU has few."""

import os
import subprocess
import sys
from pathlib import Path

import machines
import pytest

TESTS = Path(__file__).parent
PROGRAM = (
    "import sys\nsys.path.insert(0, sys.argv[1])\nimport bare\nbare.block()\n"
    "import pytest\nsys.exit(pytest.main(sys.argv[2:]))\n"
)


def on_bare_machine(*arguments):
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-c", PROGRAM, str(TESTS / "worlds"), *arguments]
    return subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=800
    )


def test_gpu_tests_are_found_with_the_core_packages_alone():
    pytest.importorskip("torch")
    found = on_bare_machine("-m", "cuda", "--collect-only", "tests")
    assert found.returncode == 0, found.stdout + found.stderr
    marked = {
        path.relative_to(TESTS.parent).as_posix()
        for path in TESTS.rglob("test_*.py")
        if machines.asks_for_a_gpu(path)
    }
    assert len(marked) > 4
    assert {line.split("::")[0] for line in found.stdout.splitlines() if "::" in line} == marked


def test_a_bare_machine_has_no_other_packages(tmp_path):
    """The machine above is one: a test that asks for more is not found there."""
    other = tmp_path / "test_other.py"
    other.write_text("import cryptography\nimport pytest\n\n\ndef test_it():\n    pass\n")
    found = on_bare_machine(
        "--rootdir", str(tmp_path), "-c", os.devnull, "--collect-only", str(other)
    )
    assert found.returncode == 2
    assert "No module named 'cryptography'" in found.stdout
