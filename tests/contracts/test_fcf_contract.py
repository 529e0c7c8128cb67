"""FCF keeps the cross-device contract, in both variants."""

import pytest

from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fcf.system import FCF, FCFConfig
from sottovoce.errors import ConfigError
from sottovoce.privacy.mechanisms import Everything, Release
from sottovoce.testing import CrossDeviceContract


class SharesAll(CrossDeviceContract):
    share_positives = 1.0

    def release(self) -> Release:
        return Everything()


class TestAsPublished(SharesAll):
    def algorithm(self) -> CrossDevice:
        return FCF(FCFConfig(embedding_size=4))


class TestWideRows(SharesAll):
    learns_in = 30

    def algorithm(self) -> CrossDevice:
        return FCF(FCFConfig(embedding_size=40, alpha=10.0))


class TestAsInFPL(SharesAll):
    def algorithm(self) -> CrossDevice:
        return FCF(FCFConfig(embedding_size=4, variant="fpl"))


def test_a_broken_algorithm_fails_the_contract():
    """Devices that send a little less when they are summed than when they write messages."""

    class Careless(FCF):
        def device_learn_summed(self, *arguments):
            sums, counts = FCF.device_learn_summed(self, *arguments)
            sums[3] -= 1 << 22
            return sums, counts

    class Broken(SharesAll):
        def algorithm(self):
            return Careless(FCFConfig(embedding_size=4))

    with pytest.raises(ConfigError, match="the fast way of fcf does not give"):
        Broken().test_messages_equal_sums()
    with pytest.raises(ConfigError, match="the fast way of fcf does not give"):
        Broken().test_a_cohort_of_one_equals_a_cohort_of_n()
