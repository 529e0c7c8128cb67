"""Other machines than this one: one with a GPU, and one without vector instructions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def here_and_on_a_gpu():
    """For `parametrize`: torch on the processor, and the same on a machine with a GPU."""
    import torch

    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
    return ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, absent])]


def asks_for_a_gpu(path):
    """Whether a module has tests for such a machine."""
    text = path.read_text(encoding="utf-8")
    return "pytest.mark" + ".cuda" in text or "here_and_on_a_gpu()" in text


def fingerprint_without_vector_instructions(module, folder):
    """What `fingerprint` of a module of tests/algorithms says on a processor that has none."""
    places = [str(Path(__file__).parents[1] / "algorithms"), *sys.path]
    plain = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(places),
    }
    command = [sys.executable, "-c", f"import {module}; print({module}.fingerprint())"]
    called = subprocess.run(
        command, env=os.environ | plain, capture_output=True, text=True, check=True
    )
    return called.stdout.strip()
