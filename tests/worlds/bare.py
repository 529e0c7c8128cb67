"""A machine that has numpy, scipy, numba, pyarrow, torch and pytest, and nothing else that it could
do without: all other installed packages cannot be imported in a process that calls `block`."""

import importlib.metadata
import re
import sys
from importlib.machinery import PathFinder

THERE = ("numpy", "scipy", "numba", "pyarrow", "torch", "pytest", "sottovoce")


def needed(names):
    """These distributions and what they need in turn."""
    found, waiting = set(), [_plain(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name == "sottovoce":
            continue  # whose core asks for nothing more
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [_plain(re.split(r"[^\w.-]", one)[0]) for one in wanted if "extra" not in one]
    return found


def _plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


class _Finder:
    """Finds modules on the path as ever, but for some, which are as if they were not there."""

    def __init__(self, gone):
        self.gone = gone

    find_distributions = staticmethod(PathFinder.find_distributions)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.gone:
            return None
        return PathFinder.find_spec(name, path, target)


def block():
    """From now on, in this process."""
    there = needed(THERE)
    gone = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not any(_plain(owner) in there for owner in owners)
    }
    place = sys.meta_path.index(PathFinder)
    sys.meta_path[place] = _Finder(gone - set(sys.modules))
