"""What is left of a run, but for times."""

import numpy as np

from sottovoce.core import ledger as ledgers
from sottovoce.runs.folder import RunFolder


def content(path):
    folder = RunFolder.open(path)
    return folder.model(), folder.vectors(), ledgers.read(path / "ledger.parquet"), folder.metrics()


def same(one, other):
    return (
        np.array_equal(one[0], other[0])
        and np.array_equal(one[1], other[1])
        and one[2].equals(other[2])
        and one[3] == other[3]
    )
