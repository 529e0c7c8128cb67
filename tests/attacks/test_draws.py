"""A13: the fast generator is inverted and gives devices away; ChaCha20 is not."""

from dataclasses import replace

import numpy as np
import pytest
from draw_search import search
from hypothesis import given
from hypothesis import strategies as st
from open_proxy import Open

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.suite import a13_draws
from sottovoce.attacks.suite import a13_draws as draws
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Direct, Proxied
from sottovoce.core.one_bit import coordinates
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import SecretStreams, Streams, mix_array, words_of
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N_USERS, N_ITEMS, K = 120, 400, 20
REPORTS, DEVICES = a13_draws.REPORTS, a13_draws.DEVICES
STREAMS = {"fast": Streams, "secret": SecretStreams}


def played(settings, release, link, choice, kind, seed=1):
    """A run whose devices draw from one generator: the server's view, and what was so."""
    train = random_world(N_USERS, N_ITEMS, 12 * N_USERS, seed=2)
    consent = Consent.uniform(np.arange(N_USERS), choice)
    rng = STREAMS[kind].from_seed(seed)
    made, heard = Federation.build(settings, train, consent, release, rng, link=link), Recorder()
    bits = []
    if isinstance(release, KReports):
        made.proxy = Open([50], K)
        bits = made.proxy.bits
    made.run(message_observers=[heard])
    updates = {}
    if not bits:
        updates = {n: np.unique(m[0].sender) for n, m in heard.seen["server"].items()}
    told, whose = draws.told_words(rng, bits, updates)
    view = View(
        "server", seen_by(heard.seen, "server"), settings, release, link, N_ITEMS,
        made.server.items, triples=made.schedule.triples, draws="secret", told=told,
    )  # fmt: skip
    truth = Truth(
        train, train, consent.takes_part, consent.share_positives, {}, {}, made.vectors(),
        {"bits": bits, "told senders": whose},
    )  # fmt: skip
    return view, truth


def reports(kind, variant="rotated"):
    settings = FMFConfig(
        variant=variant, embedding_size=64, rounds=2, init_scale=1.0, learning_rate=1e-4,
    )  # fmt: skip
    choice = Choice(epsilon=1.0, max_reports=K)
    return played(settings, KReports(K, (Tier(1.0, 50),)), Proxied(), choice, kind)


def updates(kind):
    settings = FPLConfig(configuration="pFPL+", embedding_size=3, rounds=2)
    return played(settings, ShareFraction(), Direct(), Choice(share_positives=0.5), kind)


@given(st.integers(0, 2**64 - 1))
def test_mixing_is_undone(word):
    with np.errstate(over="ignore"):
        assert int(draws.unmix(mix_array(np.array([word], np.uint64)))[0]) == word


@given(st.integers(0, 2**40), st.integers(0, 30), st.integers(0, 30))
def test_neighbours_are_the_other_draws(seed, at, more):
    words = words_of(Streams.from_seed(seed).keys(np.array([3])), at + more + 1)[0]
    assert draws.neighbours(int(words[at]), at, more).tolist() == words.tolist()


@pytest.mark.parametrize("settings", [{}, {"variant": "published"}])
def test_the_fast_generator_gives_a_device_s_reports_away(settings):
    view, truth = reports("fast", **settings)
    found = REPORTS.run(view, truth)
    assert found.verdict == "broken", found
    assert found.value > 0.9
    assert found.base_rate < 0.02


@pytest.mark.parametrize("settings", [{}, {"variant": "published"}])
def test_secret_draws_do_not(settings):
    view, truth = reports("secret", **settings)
    found = REPORTS.run(view, truth)
    assert found.verdict == "holds", found
    assert found.claims > 1000
    assert found.value < 2.5 * found.base_rate


def test_reports_as_published_give_away_as_much():
    assert REPORTS.run(*reports("fast", "published")).value > 0.9


def test_the_fast_generator_gives_devices_away_by_the_items_they_draw():
    found = DEVICES.run(*updates("fast"))
    assert found.verdict == "broken", found
    assert found.value > 0.9
    found = DEVICES.run(*updates("secret"))
    assert found.verdict == "underpowered", found
    assert found.claims == 2 * draws.TOLD_DEVICES


def test_a_run_of_the_fast_generator_says_why_it_is_not_attacked():
    view, _ = reports("fast")
    assert "real device" in REPORTS.applies(replace(view, draws="fast"))
    assert "real device" in DEVICES.applies(replace(updates("fast")[0], draws="fast"))
    assert REPORTS.applies(replace(view, told=())).startswith("No draw")


def test_reports_and_updates_are_drawn_from_the_words_that_are_told():
    """What the attacker is told is what devices use: else he would win against nobody."""
    view, truth = reports("secret")
    told, sender = view.told[0], truth.own["told senders"][0]
    sent = truth.own["bits"][0]
    mine = coordinates(sent.reports[sent.sender == sender])[0]
    words = np.array([told.word], dtype=np.uint64)
    assert mine[0] == draws.coordinates_of(words, 512 * 64)[0]


# --- the search ----------------------------------------------------------------------------------


def batch(kind, places, devices=100, k=20):
    """The coordinates of each device's reports, drawn as the kernels draw them, and a flag for each
    that is in the batch."""
    keys = STREAMS[kind].from_seed(5).child("reports", 3).keys(np.arange(devices))
    words = words_of(keys, k)
    drawn = draws.coordinates_of(words.ravel(), places)
    present = np.zeros(places, dtype=bool)
    present[drawn] = True
    return words, drawn.reshape(words.shape), present


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_search_finds_the_word_and_the_device(at):
    words, drawn, present = batch("fast", 1 << 24)
    word = int(words[31, at])
    found = search(int(drawn[31, at]), present, (word - 2**21, word + 2**21))
    assert found == [word]
    linked = draws.linked(found[0], 20, present)
    assert sorted(linked) == sorted(np.delete(drawn[31], at))


def test_a_search_finds_nothing_in_secret_draws():
    words, drawn, present = batch("secret", 1 << 24)
    word = int(words[31, 4])
    assert search(int(drawn[31, 4]), present, (word - 2**21, word + 2**21)) == []


@pytest.mark.slow
def test_nobody_need_tell_the_attacker_anything():
    """2**30 coordinates, as in a large catalogue: of one report in a shuffled batch the attacker
    finds the other 19 of its device, knowing the batch alone. Against secret draws he finds
    none."""
    words, drawn, present = batch("fast", 1 << 30)
    found = search(int(drawn[31, 4]), present)
    assert int(words[31, 4]) in found
    groups = [draws.linked(word, 20, present) for word in found]
    assert sorted(np.delete(drawn[31], 4)) in [sorted(group) for group in groups]
    words, drawn, present = batch("secret", 1 << 30)
    near = (int(words[31, 4]) - 2**29, int(words[31, 4]) + 2**29)
    assert search(int(drawn[31, 4]), present, near) == []
