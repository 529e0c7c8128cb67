"""Our own releases and links keep the contracts that strangers' are held to, and the contracts
reject something."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.privacy.mechanisms import BoundShare, Everything, ShareFraction
from sottovoce.privacy.updates import BoundClipped, Clipped
from sottovoce.testing import AlgorithmContract, ContractBroken, LinkContract, ReleaseContract


class TestFPLSettings(AlgorithmContract):
    triples = 14

    def settings(self):
        return FPLConfig(embedding_size=8, triples=14)


class TestFCFSettings(AlgorithmContract):
    share_positives = 1.0

    def settings(self):
        return FCFConfig(embedding_size=4)

    test_real_devices_draw_otherwise_and_learn_as_well = None  # it draws nothing


class TestByItem(ReleaseContract):
    def release(self):
        return ShareFraction()


class TestByDraw(ReleaseContract):
    def release(self):
        return ShareFraction("draw")


class TestEverything(ReleaseContract):
    def release(self):
        return Everything()

    def choice(self):
        return Choice(share_positives=1.0)


class TestClipped(ReleaseContract):
    def release(self):
        return Clipped(8.0)


class TestNoisy(ReleaseContract):
    def release(self):
        return Clipped(100.0, "l1", 1.0)

    def choice(self):
        return Choice(share_positives=1.0, epsilon=1.0)


@pytest.mark.parametrize(
    "link", [Direct(), Proxied("https://x", "pem"), SecureSum(20), SecureSum(5, 0.5, 1.0)]
)
def test_our_links_keep_the_contract(link):
    class Ours(LinkContract):
        def link(self):
            return link

    for name in (n for n in dir(Ours) if n.startswith("test_")):
        getattr(Ours(), name)()


# --- strangers' that do not -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Careless(ShareFraction):
    """Lets every positive go, whatever was permitted."""

    def bind(self, users, consent, history, rng, noise=b"", *, noisy_sums=False):
        bound = ShareFraction("item").bind(users, consent, history, rng)
        return replace(bound, allowed=np.ones(history.n_interactions, dtype=bool))


@dataclass(frozen=True, slots=True)
class Together(ShareFraction):
    """Draws by a device's place in the round."""

    def bind(self, users, consent, history, rng, noise=b"", *, noisy_sums=False):
        bound = ShareFraction("draw").bind(users, consent, history, rng)
        return Placed(**{name: getattr(bound, name) for name in BoundShare.__slots__})


class Placed(BoundShare):
    def rule(self, rows, rounds):
        rule = super().rule(rows, rounds)
        return replace(rule, keys=rule.keys + np.arange(len(rows), dtype=np.uint64))


@dataclass(frozen=True, slots=True)
class Cheap(Clipped):
    """Books half of what it costs."""

    def bind(self, users, consent, history, rng, noise=b"", *, noisy_sums=False):
        bound = Clipped(self.clip, "l1", self.epsilon).bind(users, consent, history, rng, noise)
        return Half(**{name: getattr(bound, name) for name in BoundClipped.__slots__})


class Half(BoundClipped):
    def permits(self, spent, times=1):
        return np.ones(len(self.users), dtype=bool)


def contract(release, choice):
    class Theirs(ReleaseContract):
        pass

    Theirs.release = lambda self: release
    Theirs.choice = lambda self: choice
    Theirs.__abstractmethods__ = frozenset()
    return Theirs()


def test_a_release_that_ignores_consent_breaks_its_contract():
    broken = contract(Careless(), Choice(share_positives=0.4))
    with pytest.raises(ContractBroken, match="left at share_positives = 0"):
        broken.test_who_shares_no_positive_sends_none_in_the_open()


def test_a_release_that_depends_on_company_breaks_its_contract():
    broken = contract(Together(), Choice(share_positives=0.4))
    with pytest.raises(ContractBroken, match="depends on its company"):
        broken.test_a_device_sends_alone_what_it_sends_in_company()


def test_a_release_without_a_limit_breaks_its_contract():
    broken = contract(Cheap(100.0, "l1", 1.0), Choice(share_positives=1.0, epsilon=1.0))
    with pytest.raises(ContractBroken, match="goes on although the limit is reached"):
        broken.test_nobody_spends_beyond_her_limit()
