"""FPL keeps the cross-device contract, in its local-computation and single-draw settings."""

import pytest

from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.errors import ConfigError
from sottovoce.rng import SecretStreams
from sottovoce.testing import ContractBroken, CrossDeviceContract


class TestManyDraws(CrossDeviceContract):
    def algorithm(self) -> CrossDevice:
        return FPL(FPLConfig(embedding_size=8), triples=14)


class TestSecretDraws(TestManyDraws):
    """As real devices draw."""

    streams = SecretStreams


class TestOneDraw(CrossDeviceContract):
    learns_in = 1500

    def algorithm(self) -> CrossDevice:
        return FPL(FPLConfig(embedding_size=8, learning_rate=0.1), triples=1)


class TestFewDevicesManyItems(CrossDeviceContract):
    """Rounds so small that they are summed from messages."""

    def algorithm(self) -> CrossDevice:
        class Few(FPL):
            def prefers_messages(self, view, devices):
                return True

        return Few(FPLConfig(embedding_size=8), triples=14)


class TestWideRows(CrossDeviceContract):
    """More than one cache line per row."""

    def algorithm(self) -> CrossDevice:
        return FPL(FPLConfig(embedding_size=50), triples=9)


def test_a_broken_algorithm_fails_the_contract():
    """The suite must reject something: an algorithm that never learns, and one whose fused rounds
    are not those of its definition."""

    class Frozen(FPL):
        fuses = False

        def server_fold(self, items, memory, aggregate):
            return items, memory

    class Fused(Frozen):
        fuses = True

    class Broken(CrossDeviceContract):
        made = Frozen

        def algorithm(self):
            return self.made(FPLConfig(embedding_size=8), triples=14)

    suite = Broken()
    with pytest.raises(ContractBroken):
        suite.test_learns_the_checkerboard()
    suite.made = Fused
    with pytest.raises(ConfigError, match="the fast way of fpl does not give"):
        suite.test_fused_rounds_equal_single_rounds()
