"""Real data sets lie outside the repository; tests that need one say so when they skip."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import available, load

# Shared machines are slow at times; a property that holds must not fail for that.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def real() -> Callable[[str], Dataset]:
    def get(name: str) -> Dataset:
        if name not in available():
            pytest.skip(f"data set {name!r} is not under $SOTTOVOCE_DATA or in the cache")
        return load(name)

    return get
