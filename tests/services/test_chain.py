"""A chain of shufflers, real processes over TLS: the model is that of one shuffler, bit for bit,
whoever is killed in the middle."""

import secrets
import threading
import time
from collections import Counter

import numpy as np
import pytest
from chain_world import USERS, Chain
from collector_world import K, some_reports
from server_world import ITEMS, SEED
from talk import until
from test_proxy_service import kept

from sottovoce.core.messages import Batch
from sottovoce.parties.server import Server
from sottovoce.rng import Streams
from sottovoce.stores.shuffler_folder import SEAL_KEY
from sottovoce.wire.shuffled import record_bytes

COUNTED = {"undecryptable", "out_of_range", "duplicate", "missing", "too_few"}


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_a_chain_gives_the_model_of_one_shuffler(tmp_path, shufflers):
    with Chain(tmp_path, shufflers).running() as chain:
        for round in range(chain.rounds):
            chain.play(round)
        assert np.array_equal(chain.model(), chain.expected()), "to the last bit"
        assert not COUNTED & set(chain.client.status()["refused"])


def logged(chain, hop):
    """What a shuffler's processes have said."""
    return "".join(path.read_text() for path in chain.folders[hop].path.glob("server-*.log"))


def test_a_shuffler_that_does_not_answer_is_waited_for_and_named_once(tmp_path):
    """Nothing is lost, and nothing is sent twice."""
    with Chain(tmp_path, 2, rounds=1).running(without=[1]) as chain:
        chain.play(0)
        sentence = "a batch cannot be handed over"
        until(lambda: sentence in logged(chain, 0))
        time.sleep(1.0)
        assert logged(chain, 0).count(sentence) == 1, "once, not at each try"
        assert f"127.0.0.1:{chain.ports[1]}" in logged(chain, 0)
        assert chain.client.status()["round"] == 0
        chain.start_shuffler(1)
        assert np.array_equal(chain.model(), chain.expected())
        assert not COUNTED & set(chain.client.status()["refused"])


def test_a_shuffler_with_another_key_does_not_start_and_nothing_is_lost(tmp_path):
    with Chain(tmp_path, 2, rounds=2).running() as chain:
        chain.play(0)
        chain.client.wait(round=1, state="open")
        chain.kill(1)
        place = chain.folders[1].path / SEAL_KEY
        right = place.read_text()
        place.write_text("ab" * 32 + "\n")
        chain.play(1)
        with pytest.raises(AssertionError, match="name another key for shuffler number 2"):
            chain.start_shuffler(1)
        place.write_text(right)
        chain.start_shuffler(1)
        assert np.array_equal(chain.model(), chain.expected())


def test_a_device_that_seals_for_nobody_is_left_out_and_not_named(tmp_path):
    """One of five of tier 1 sends what no shuffler can open: four are enough."""
    with Chain(tmp_path, 3, rounds=1).running() as chain:
        public = chain.open_key(0)
        reports = some_reports(USERS, 0).reshape(USERS, K)
        for number in range(USERS):
            junk = {"sealed": secrets.token_bytes(K * record_bytes(chain.link, 0))}
            changes = junk if number == 7 else {}
            payload = chain.payload(number, 0, reports[number], public, **changes)
            chain.send(payload)
        model = chain.model()
        assert chain.client.status()["refused"] == {"missing": K}
        second, third = logged(chain, 1), logged(chain, 2)
        assert f'"undecryptable": {K}' in second
        assert f'"missing": {K}' in third
        for text in (second, third):
            assert all(account.hex() not in text for account, _ in chain.accounts)
        server = Server.start(chain.terms.build(), ITEMS, Streams.from_seed(SEED))
        batches = [Batch(0, 0, 3, reports[:3].ravel()), Batch(0, 1, 5, reports[3:7].ravel())]
        server.fold(server.count(batches))
        assert np.array_equal(model, server.items), "five have sent, and four are counted"


@pytest.mark.slow
def test_a_batch_that_is_dropped_on_the_way_does_not_keep_the_round_open(tmp_path):
    """Three of five of tier 1 send what no shuffler can open, and two are too few. The second
    shuffler says so to the third, and that one to the server: the round ends with tier 0."""
    with Chain(tmp_path, 3, rounds=1).running() as chain:
        public = chain.open_key(0)
        reports = some_reports(USERS, 0).reshape(USERS, K)
        for number in range(USERS):
            junk = {"sealed": secrets.token_bytes(K * record_bytes(chain.link, 0))}
            changes = junk if number >= 5 else {}
            chain.send(chain.payload(number, 0, reports[number], public, **changes))
        model = chain.model()
        server = Server.start(chain.terms.build(), ITEMS, Streams.from_seed(SEED))
        server.fold(server.count([Batch(0, 0, 3, reports[:3].ravel())]))
        assert np.array_equal(model, server.items)
        assert "batch dropped" in logged(chain, 1)


@pytest.mark.parametrize("victim", [0, 1, 2, "server"])
def test_whoever_is_killed_nothing_is_lost_or_doubled(tmp_path, victim):
    with Chain(tmp_path, 3, rounds=2).running() as chain:
        chain.play(0)
        chain.client.wait(round=1, state="open")

        def between(number):
            if number == 5:  # tier 0 is on its way
                if victim == "server":
                    chain.server.kill()
                    chain.client.close()
                    chain.start_server()
                else:
                    chain.kill(victim)
                    chain.start_shuffler(victim)
                if victim == 0:
                    chain.first.close()

        chain.play(1, between)
        assert np.array_equal(chain.model(), chain.expected())
        assert not COUNTED & set(chain.client.status()["refused"])


@pytest.mark.slow
@pytest.mark.parametrize("shufflers", [2, 3])
def test_killed_again_and_again(tmp_path, shufflers):
    """Anybody at any moment while rounds go on, batches of many parts on their way."""
    users, rounds = 40, 4
    tier_of = [n % 2 for n in range(users)]
    world = Chain(tmp_path, shufflers, rounds=rounds, users=users, tier_of=tier_of)
    rng, kills = np.random.default_rng(shufflers), Counter()
    with world.running() as chain:
        stop = threading.Event()

        def killer():
            # Each once before anyone is again, however soon the rounds are over.
            while not stop.wait(rng.uniform(0.0, 0.7)):
                fewest = min(kills[hop] for hop in range(shufflers))
                victim = int(rng.choice([h for h in range(shufflers) if kills[h] == fewest]))
                chain.kill(victim)
                kills[victim] += 1
                chain.start_shuffler(victim)

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            for round in range(rounds):
                chain.play(round)
            chain.client.wait(round=rounds, state="finished", timeout=800)
        finally:
            stop.set()
            thread.join()
        assert np.array_equal(chain.model(), chain.expected()), "to the last bit"
        assert not COUNTED & set(chain.client.status()["refused"])
        handed = [kept(folder, "SELECT sum(devices) FROM outcomes") for folder in chain.folders]
        told = {hop: kills[hop] for hop in range(shufflers)}
        print(f"\nchain of {shufflers}: kills {told} in {rounds} rounds, 0 lost, 0 doubled")
        assert handed == [[(users * rounds,)]] * shufflers, "each batch once at each shuffler"
        assert min(told.values()) >= 1
