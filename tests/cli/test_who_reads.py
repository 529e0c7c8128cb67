"""Who reads what, in words: told for every system over every link, and true to docs/privacy.md."""

import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports
from sottovoce.privacy.updates import Clipped
from sottovoce.wire.exactly import who_reads
from sottovoce.wire.terms import Terms

FILTERS = (FilterConfig("gender", ("f", "m"), (0.5, 0.5)),)
MADE = {
    FPLConfig: (FPLConfig(embedding_size=3, triples=4), ShareFraction()),
    FCFConfig: (FCFConfig(embedding_size=3), Everything()),
    FMFConfig: (FMFConfig(embedding_size=3), KReports(10)),
    UCConfig: (UCConfig(embedding_size=6, recommender="mf", attributes=FILTERS), Clipped()),
}
LINKS = {
    "direct": Direct(),
    "proxy": Proxied("https://proxy.example", "x"),
    "secure-sum": SecureSum(),
}


def told(algorithm, link, release=None, **options):
    settings, usual = MADE[algorithm]
    terms = Terms("town", 40, settings, release or usual, LINKS[link])
    return who_reads(terms, **options)


@pytest.mark.parametrize(("algorithm", "link"), [(a, link) for a in MADE for link in a.links])
def test_every_system_over_every_link_says_who_reads_what(algorithm, link):
    words = " ".join(told(algorithm, link))
    assert "server" in words
    if link == "direct":
        assert "reads every report by itself and knows that it is yours" in words
        assert "can compute" in words
        assert "cannot read" not in words
        assert "No ε bounds what it learns" in words
    else:
        assert "do not put together" in words
        assert "people" in words


def test_the_first_that_is_told_of_fpl_is_what_the_server_can_compute():
    reads, computes, *rest = told(FPLConfig, "direct")
    assert "up to 8 of 40 items, by name" in reads
    assert "compute from a single row of it your vector" in computes
    assert "`--share-positives 0` does not keep your items from a curious server" in computes
    assert "the items that never come are yours" in " ".join(rest)
    assert "drawn once, and others are never sent" in " ".join(rest)
    often = " ".join(told(FPLConfig, "direct", ShareFraction("draw")))
    assert "in time nearly every item of yours is" in often


def test_fcf_gives_everything_away():
    words = " ".join(told(FCFConfig, "direct"))
    assert "each of 40 items" in words
    assert "A single report gives every item of yours away" in words


def test_a_gateway_says_what_it_and_the_server_read():
    for algorithm in (FPLConfig, FCFConfig, UCConfig):
        words = " ".join(told(algorithm, "direct", gateway=True))
        assert "the numbers of those who are willing" in words
        assert "A sum of one is no sum" in words
        assert "runs this gateway can read everything of its users" in words
    noisy = told(UCConfig, "direct", Clipped(norm="l1", epsilon=2.0), gateway=True)
    assert "costs ε = 2 a round" in " ".join(noisy)
    assert "No ε" not in " ".join(noisy)


@pytest.mark.parametrize("gateway", [False, True])
@pytest.mark.parametrize("parts", [0, 30])
def test_gram_is_described_by_what_bounds_it(parts, gateway):
    release = OwnEpsilon(8.0, parts=parts, period_days=365)
    terms = Terms("town", 40, GramConfig(), release, SecureSum(min_devices=30, key="ab" * 32))
    told = " ".join(who_reads(terms, gateway=gateway))
    assert "bounded by the ε that you choose, at most 8" in told
    assert "no noise" not in told
    assert "can read yours" not in told
    assert "better than by chance" not in told
    assert ("The proxy adds the noise" in told) == (parts == 0)
    assert ("30 parts are the whole" in told) == (parts > 0)
    assert ("runs this gateway can read everything" in told) == gateway
    assert "together they read your contribution" in told
    assert "waits 365 days" in told
