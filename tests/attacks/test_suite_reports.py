"""A5: what a server behind a proxy gets out of randomised reports, and that a proxy which
does not mix is found out."""

from dataclasses import replace

import numpy as np
import pytest
from open_proxy import Open

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.attacks.suite import a05_linkage
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Proxied
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import DataError
from sottovoce.parties import shuffler as shuffling
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N_USERS, N_ITEMS, K = 1500, 300, 20
TRAIN = random_world(N_USERS, N_ITEMS, 20 * N_USERS, seed=2)
PLACE, CONTENT, ITEM = a05_linkage.PLACE, a05_linkage.CONTENT, a05_linkage.ITEM


def played(variant="rotated", epsilon=1.0, rounds=2, seed=1, scale=1.0, size=3):
    settings = FMFConfig(
        variant=variant, embedding_size=size, rounds=rounds, scale=scale, init_scale=1.0,
        learning_rate=1e-4,
    )  # fmt: skip
    release, link = KReports(K, (Tier(epsilon, 50),)), Proxied()
    choice = Choice(epsilon=epsilon, max_reports=K)
    consent = Consent.uniform(np.arange(N_USERS), choice)
    made = Federation.build(settings, TRAIN, consent, release, Streams.from_seed(seed), link=link)
    made.proxy, heard = Open([50], K), Recorder()
    made.run(message_observers=[heard])
    view = View(
        "server", seen_by(heard.seen, "server"), settings, release, link, N_ITEMS,
        made.server.items,
    )  # fmt: skip
    truth = Truth(
        TRAIN, TRAIN, consent.takes_part, consent.share_positives, {}, {}, made.vectors(),
        {"bits": made.proxy.bits},
    )  # fmt: skip
    return view, truth


@pytest.mark.parametrize("variant", ["published", "rotated"])
def test_behind_the_proxy_nothing_is_linked(variant):
    view, truth = played(variant)
    for attack in (PLACE, CONTENT):
        assert attack.applies(view) == ""
        found = attack.run(view, truth)
        assert found.verdict == "holds", found
        assert found.claims > 50_000
        assert abs(found.value - 0.5) < 0.02


def test_a_proxy_that_does_not_mix_is_caught(monkeypatch):
    """Coordinates are many here, so that few reports are equal and senders are known for sure."""
    monkeypatch.setattr(shuffling, "shuffled", lambda values, seed, threads=1: values.copy())
    found = PLACE.run(*played("published", rounds=1, size=128))
    assert found.verdict == "broken"
    assert found.value > 0.7


def test_reports_that_are_bare_signs_can_be_linked_a_little():
    """As published, with gradients scaled up until each is cut to ±1: bits about one factor of
    similar items agree. Asserted so that nobody takes mixing for more than it is."""
    found = CONTENT.run(*played("published", epsilon=2.5, scale=1e6))
    assert found.verdict == "broken"
    assert 0.505 < found.value < 0.6


def test_reports_without_coins_of_a_marked_user_can_be_linked_by_content():
    """The attack by content is no formality: of two users whose reports are all alike it tells."""
    view, truth = played("published", epsilon=16.0, rounds=1)
    batch, sent = view.rounds[0].messages[0], truth.own["bits"][0]
    # Half of the devices say 1 and half 0, about the same coordinate each time.
    reports = np.tile((np.arange(N_USERS) % 2)[:, None], (1, K)).astype(np.uint32)
    mixed = np.random.default_rng(0).permutation(reports.ravel())
    seen = view.rounds[0]._replace(messages=(replace(batch, reports=mixed),))
    told = replace(truth, own={"bits": [replace(sent, reports=reports)]})
    found = CONTENT.run(replace(view, rounds=(seen,)), told)
    assert found.verdict == "broken"
    assert found.value == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(("variant", "scale"), [("published", 1e6), ("rotated", 1.0)])
def test_the_pool_does_not_tell_an_item_but_a_colluding_proxy_helps(variant, scale):
    view, truth = played(variant, scale=scale)
    found = ITEM.run(view, truth)
    assert found.interval[0] <= found.base_rate, found
    assert found.verdict in ("holds", "underpowered")
    assert found.claims > 500
    share = float(found.detail.split("is right in ")[1].split()[0])
    assert share > 0.7
    assert "colludes" in found.detail


def test_without_coins_and_mixing_the_item_is_told(monkeypatch):
    """One device in the batch: nothing is mixed with its reports."""
    monkeypatch.setattr(a05_linkage, "MOST_TARGETS", N_USERS)
    view, truth = played("rotated", epsilon=16.0, rounds=2)
    rounds = []
    for seen, sent in zip(view.rounds, truth.own["bits"], strict=True):
        batch = seen.messages[0]
        alone = replace(batch, devices=1, reports=sent.reports[7])
        rounds.append(seen._replace(messages=(alone,)))
    mine = np.arange(N_USERS) == 7
    found = ITEM.run(replace(view, rounds=tuple(rounds)), replace(truth, takes_part=mine))
    assert found.value > 0.8
    assert found.claims > 5


def test_what_cannot_be_judged_is_said():
    view, truth = played(rounds=1)
    blind = replace(truth, own={})
    found = PLACE.run(view, blind)
    assert found.verdict == "nothing to attack"
    assert "truth.own['bits']" in found.detail
    assert "colludes" not in ITEM.run(view, blind).detail
    nobody = replace(truth, takes_part=np.zeros(N_USERS, bool))
    assert ITEM.run(view, nobody).verdict == "nothing to attack"
    other = [replace(bits, reports=bits.reports ^ np.uint32(1)) for bits in truth.own["bits"]]
    with pytest.raises(DataError, match="that were sent"):
        PLACE.run(view, replace(truth, own={"bits": other}))
    with pytest.raises(DataError, match="every round once"):
        PLACE.run(view, replace(truth, own={"bits": truth.own["bits"] * 2}))
