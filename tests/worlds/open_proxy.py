"""A proxy whose reports tests can look at."""

from sottovoce.core.ranks import ALONE
from sottovoce.parties.shuffler import Shuffler


class Open(Shuffler):
    """A proxy that keeps what it was sent, for the truth."""

    def __init__(self, minimum, reports):
        super().__init__(minimum, reports)
        self.bits = []

    def collect(self, bits, threads=1, ranks=ALONE):
        self.bits.append(bits)
        return super().collect(bits, threads, ranks)
