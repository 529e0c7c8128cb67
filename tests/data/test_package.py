from __future__ import annotations

import subprocess
import sys

import sottovoce.data

BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "polars", "rich", "typer", "torch", "matplotlib"}:
            raise ImportError(name + " is not part of the core")

sys.meta_path.insert(0, Refuse())
import sottovoce.data
assert not {"numba", "pyarrow"} & set(sys.modules), "importing the package must stay cheap"
for name in sottovoce.data.__all__:
    getattr(sottovoce.data, name)
print(sottovoce.data.load("town").interactions.n_users)
"""


def test_the_package_needs_the_bare_core_alone() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1000\n"


def test_every_public_name_has_a_home() -> None:
    assert sorted(sottovoce.data.__all__) == sottovoce.data.__all__
    assert set(sottovoce.data._HOMES) == set(sottovoce.data.__all__)
