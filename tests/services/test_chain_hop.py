"""A shuffler behind another one: what it takes, what it leaves out and counts, what it hands on,
and in which order."""

import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fake_server import Reply
from hop_world import ACCEPTS, BEFORE, SIZE, layered, parts, random_records, second_of
from hypothesis import HealthCheck, given, settings
from proxy_world import FEDERATION, TOKEN, App, Server
from talk import until
from test_proxy_service import count, kept, opened

from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.services import shuffler_handover as handover
from sottovoce.stores.keys import operator_token
from sottovoce.stores.shuffler import ShufflerPosition, ShufflerStore
from sottovoce.stores.shuffler_folder import SEAL_KEY, create_shuffler_folder
from sottovoce.wire.sealing import SEALED_BYTES, layer_info, seal_layer
from sottovoce.wire.shuffled import BatchPart, encode_part

K = 4


@pytest.fixture
def world(tmp_path):
    """A server, and the folder of the second of two shufflers; tests play the first one."""
    with second_of(tmp_path) as made:
        yield made


def post(app, part, headers=BEFORE):
    return app.ask("POST", "/v1/batches", encode_part(part), headers)


def metrics(app, folder):
    token = {"authorization": f"Bearer {operator_token(folder.keys)}"}
    return app.ask("GET", "/metrics", headers=token).body.decode()


def test_a_whole_batch_loses_a_layer_and_goes_on_mixed(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        inner = random_records(5 * K)
        for part in parts(server, layered(server, inner), 5, many=3):
            assert not server.seen, "nothing goes on before all of it is here"
            assert post(app, part).status == 204
        batch = until(lambda: server.batch(0, 0))
        assert sorted(batch) == sorted(inner)
        assert batch != inner
        until(lambda: not count(folder, "reports"))
        assert not kept(folder, "SELECT name FROM sqlite_master WHERE name GLOB 'parts_*'")
        assert kept(folder, "SELECT * FROM outcomes") == [("handed_over", 0, 5)]
        said = dict(app.log.lines)["batch opened"]
        assert said.pop("seconds") >= 0
        assert said == {"round": 0, "tier": 0, "devices": 5, "reports": 20}


def test_of_a_batch_that_is_over_nothing_is_left_in_the_files(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        inner = random_records(5 * K)
        sealed = layered(server, inner)
        for part in parts(server, sealed, 5):
            assert post(app, part).status == 204
        until(lambda: not count(folder, "reports") and count(folder, "outcomes"))
        until(lambda: not (folder.path / "proxy.db-wal").stat().st_size)
    held = b"".join(path.read_bytes() for path in folder.path.glob("proxy.db*"))
    for record in (*inner, *(sealed[at : at + SIZE] for at in range(0, len(sealed), SIZE))):
        assert record[:16] not in held


def test_below_the_minimum_what_is_left_is_dropped_and_the_server_gets_no_report(world):
    """Three devices of tier 0 are enough, two and a half are not. The server hears that nothing
    will come, and when it cannot be reached, hears it later, also after a restart."""
    server, folder = world
    with App(folder) as app:
        opened(app)
        sealed = layered(server, random_records(3 * K))
        sealed = sealed[: 10 * SIZE] + sealed[: 2 * SIZE]
        server.down = True
        for part in parts(server, sealed, 3):
            assert post(app, part).status == 204
        until(lambda: "batch dropped" in dict(app.log.lines))
        said = dict(app.log.lines)["batch dropped"]
    with App(folder) as app:
        assert not count(folder, "outcomes")
        assert not server.dropped
        server.down = False
        until(lambda: count(folder, "outcomes"))
        assert server.dropped == {(0, 0)}
        until(lambda: not count(folder, "reports"))
        assert kept(folder, "SELECT * FROM outcomes") == [("dropped", 0, 3)]
        assert not server.seen
        assert said["detail"] == "fewer reports are left than the tier's minimum of devices sends"
        assert said["duplicate"] == 2


REFUSED = {
    "nobody's token": ({}, {"headers": {"authorization": f"Bearer {TOKEN}"}}, 401, "unknown_proxy"),
    "no token": ({}, {"headers": {}}, 401, "unknown_proxy"),
    "too few devices": ({"devices": 2}, {}, 400, "too_few"),
    "another key": ({"key": bytes(32)}, {}, 409, "wrong_key"),
    "no such tier": ({"tier": 9}, {}, 400, "malformed"),
    "a round to come": ({"round": 5}, {}, 409, "early"),
    "more reports than devices have": ({"devices": 4}, {}, 400, "malformed"),
    "fewer reports than devices have": ({"devices": 6}, {}, 400, "malformed"),
    "too many parts": ({"parts": 99}, {}, 400, "malformed"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_honest_shuffler_sends_is_refused_and_nothing_changes(world, what):
    changes, more, status, reason = REFUSED[what]
    server, folder = world
    with App(folder) as app:
        opened(app)
        inner = random_records(5 * K)
        sealed = layered(server, inner)
        (wrong,) = parts(server, sealed, **{"devices": 5, **changes})
        got = post(app, wrong, **more)
        assert (got.status, got.error) == (status, reason)
        assert not count(folder, "batches")
        for part in parts(server, sealed, 5):
            assert post(app, part).status == 204
        assert sorted(until(lambda: server.batch(0, 0))) == sorted(inner)


def test_records_of_another_size_are_refused(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        body = b"".join(random_records(5 * K))
        part = BatchPart(0, 0, server.key, 5, 0, 1, bytes(16), body)
        got = post(app, part)
        assert (got.status, got.error) == (400, "malformed")
        assert "has 100 bytes, not 52" in got.json()["detail"]


def test_a_tier_has_one_batch_in_a_round(world):
    """A part that comes again is known; a second batch, in which a report of the first would show
    which one it is, is not taken, also where the first was begun or announced alone."""
    server, folder = world
    server.answers = [Reply(503)] * 1000
    with App(folder) as app:
        opened(app)
        sealed = layered(server, random_records(5 * K))
        begun = parts(server, sealed, 5, many=2)
        assert post(app, begun[0]).status == 204
        again = post(app, begun[0])
        assert (again.status, again.error) == (409, "replay")
        (other,) = parts(server, sealed, 5)
        for late in (other, replace(other, body=b"")):
            assert post(app, late).error == "second_submission"
        (whole,) = parts(server, sealed, 5, mark=begun[0].mark)
        assert post(app, whole).error == "malformed"
        assert post(app, begun[1]).status == 204
        whole = begun[1]
        for late in (other, replace(other, body=b"")):
            got = post(app, late)
            assert (got.status, got.error) == (409, "second_submission")
        assert post(app, whole).error == "replay"
        server.answers = []
        until(lambda: server.batch(0, 0))
        until(lambda: count(folder, "outcomes"))
        assert post(app, whole).error == "replay", "also when it has gone"
        server.move(1)
        opened(app, 1)
        assert post(app, replace(whole, round=0)).error == "replay", "and the round with it"
        (old,) = parts(server, sealed, 5, tier=1)
        got = post(app, replace(old, round=0))
        assert (got.status, got.error) == (410, "late")


def test_a_batch_that_was_dropped_before_is_said_to_whoever_is_behind(world):
    """It comes from a shuffler between the first and this one."""
    server, folder = world
    with App(folder) as app:
        opened(app)
        app.forwarder.hop, hop = 2, app.forwarder.hop
        try:
            notice = BatchPart(0, 0, server.key, 3, 0, 0, bytes(16), b"", SIZE)
            assert post(app, notice).status == 204
            until(lambda: server.dropped == {(0, 0)})
            assert post(app, notice).error == "replay"
        finally:
            app.forwarder.hop = hop
        (late,) = parts(server, layered(server, random_records(3 * K)), 3)
        assert post(app, late).error == "second_submission"
        (first,) = parts(server, b"", 3, tier=1)
        assert post(app, replace(first, parts=0)).error == "malformed", "it opens nothing"
        assert not server.seen


def test_what_was_not_complete_when_its_round_ended_is_late_and_not_taken_for_there(world):
    """The shuffler before must not believe that it was handed over."""
    server, folder = world
    with App(folder) as app:
        opened(app)
        sealed = layered(server, random_records(5 * K))
        begun = parts(server, sealed, 5, many=2)
        assert post(app, begun[0]).status == 204
        server.move(1)
        opened(app, 1)
        for part in begun:
            got = post(app, part)
            assert (got.status, got.error) == (410, "late")
        assert kept(folder, "SELECT * FROM outcomes") == [("dropped", 0, 5)]
        assert not server.seen


def test_devices_send_to_the_first_shuffler_and_batches_come_to_the_others(world, tmp_path):
    _, folder = world
    with App(folder) as app:
        for method, path in (("POST", "/v1/submissions"), ("POST", "/v1/enrol")):
            assert app.ask(method, path).status == 404
    with Server() as other:
        first = create_shuffler_folder(tmp_path / "first", other.introduction())
        with App(first) as app:
            assert app.ask("POST", "/v1/batches", headers=BEFORE).status == 404


def test_the_first_of_a_chain_waits_for_devices_to_spare(tmp_path):
    """One device whose reports cannot be opened does not make those behind it drop a batch: at the
    minimum they would, and everybody's reports would be spent in vain."""
    with second_of(tmp_path, minimum=(3, 100)) as (server, second):
        first = create_shuffler_folder(tmp_path / "first", server.introduction())
        for folder, spare in ((first, (1, 5)), (second, (0, 0))):
            with App(folder) as app:
                opened(app)
                rules = app.forwarder.rules
                assert rules.spare == spare
                for tier, minimum in enumerate((3, 100)):
                    assert not rules.releases(tier, minimum + spare[tier] - 1, 1e9)
                    assert rules.releases(tier, minimum + spare[tier], 1e9)


def test_a_key_that_changed_is_named_and_nothing_is_taken(world):
    _, folder = world
    with App(folder) as app:
        opened(app)
    place = folder.path / SEAL_KEY
    place.write_text(X25519PrivateKey.generate().private_bytes_raw().hex() + "\n")
    with pytest.raises(KeyTrouble, match="name another key for shuffler number 2 than that of"):
        App(folder).__enter__()


def test_without_the_key_that_the_terms_name_there_is_no_folder(tmp_path):
    with Server() as server:
        told = replace(server.introduction(), hop=1, accepts=ACCEPTS)
        with pytest.raises(UsageError, match=r"has no seal\.key"):
            create_shuffler_folder(tmp_path / "second", told)


def test_a_restart_in_the_middle_opens_no_part_twice(world, monkeypatch):
    server, folder = world
    inner = random_records(6 * K)
    sealed = layered(server, inner)
    sealed = sealed[: 23 * SIZE] + sealed[:SIZE]
    opened_parts = []
    put = ShufflerStore.put_opened

    def dies(self, *given):
        if len(opened_parts) == 2:
            raise KeyError("as if it were killed")
        opened_parts.append(given)
        return put(self, *given)

    with App(folder) as app:
        opened(app)
        monkeypatch.setattr(ShufflerStore, "put_opened", dies)
        with monkeypatch.context() as patch:  # the thread ends by an error
            patch.setattr(threading, "excepthook", lambda told: None)
            for part in parts(server, sealed, 6, many=5):
                assert post(app, part).status == 204
            until(lambda: len(opened_parts) == 2)
            until(lambda: not app.forwarder._thread.is_alive())
    monkeypatch.setattr(ShufflerStore, "put_opened", put)
    with App(folder) as app:
        batch = until(lambda: server.batch(0, 0))
        assert sorted(batch) == sorted(inner[:23])
        assert 'reason="duplicate"} 1' in metrics(app, folder)


def test_the_order_in_which_a_batch_came_says_nothing_of_that_in_which_it_goes(world, monkeypatch):
    """For the service itself, with parts and files: neither the places of records nor who stood
    beside whom survive. Bounds are five standard deviations wide."""
    monkeypatch.setattr(handover, "PER_PART", 97)
    server, folder = world
    with App(folder) as app:
        opened(app)
        inner = random_records(200 * K)
        for part in parts(server, layered(server, inner), 200, many=7):
            assert post(app, part).status == 204
        batch = until(lambda: server.batch(0, 0), 30)
    place = {record: n for n, record in enumerate(inner)}
    order, n = np.array([place[record] for record in batch]), len(inner)
    assert sorted(order) == list(range(n))
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 5 / np.sqrt(n)
    beside = np.sum(np.abs(np.diff(order)) == 1)
    assert beside < 2 + 5 * np.sqrt(2)
    device = order // K
    assert abs(np.mean(device[1:] == device[:-1]) - (K - 1) / (n - 1)) < 5 * np.sqrt(K) / n


# --- whatever happens to a batch on its way -------------------------------------------------------


def _store(folder):
    store = ShufflerStore(folder / "proxy.db")
    store.move(ShufflerPosition(0, True, bytes(32)))
    return store


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    devices=st.integers(3, 6), many=st.integers(1, 4), seed=st.integers(0, 2**32 - 1),
    lost=st.integers(0, 5), doubled=st.integers(0, 5), junk=st.integers(0, 5),
    crash=st.integers(0, 4),
)  # fmt: skip
def test_permuted_lost_and_doubled_records_are_counted_and_the_rest_goes_on_once(
    devices, many, seed, lost, doubled, junk, crash
):
    rng, private = np.random.default_rng(seed), X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    place = {"federation": FEDERATION, "round": 0, "tier": 0, "hop": 2}
    info = layer_info(public, **place, key=bytes(32), terms=bytes(32))
    inner = [rng.bytes(SEALED_BYTES) for _ in range(devices * K)]
    sealed = seal_layer(b"".join(inner), SEALED_BYTES, public, info)
    records = [sealed[at : at + SIZE] for at in range(0, len(sealed), SIZE)]
    # What a dishonest shuffler may do, and no more records than devices have.
    keep = rng.permutation(len(records))[lost:]
    used = [records[n] for n in keep[: max(1, len(keep) - doubled - junk)]]
    room = devices * K - len(used) - lost
    extra = [used[int(rng.integers(len(used)))] for _ in range(min(doubled, room))]
    extra += [rng.bytes(SIZE) for _ in range(max(0, min(junk, room - len(extra))))]
    mixed = [*used, *extra]
    mixed = [mixed[n] for n in rng.permutation(len(mixed))]
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), _store(Path(name))
        many = min(many, len(mixed))
        for n in range(many):
            body = b"".join(mixed[len(mixed) * n // many : len(mixed) * (n + 1) // many])
            part = BatchPart(0, 0, bytes(32), devices, n, many, bytes(16), body, SIZE)
            assert store.take(part, 1, devices * K) == (n + 1 == many)
        missing, counted = devices * K - len(mixed), Counter()
        for step in range(many):
            if step == crash:
                store.close()
                store = ShufflerStore(folder / "proxy.db")
            (held,) = store.held()
            steps = handover.take_off(
                store, held, private.private_bytes_raw(), info, SIZE, Counter(), missing
            )
            next(steps)
            steps.close()
        (held,) = store.held()
        counted = Counter(store.refused())
        doubles = len(mixed) - len(set(mixed))
        bad = len([one for one in set(mixed) if one not in set(records)])
        assert +counted == +Counter(missing=missing, duplicate=doubles, undecryptable=bad)
        assert held.arrival.kept == len(set(used)) == len(mixed) - doubles - bad
        left = np.concatenate(list(store.rows(held, SEALED_BYTES)))
        expected = [inner[records.index(one)] for one in set(used)]
        assert sorted(map(bytes, left)) == sorted(expected)
        columns = store._reader.rows("SELECT name FROM pragma_table_info('refusals')")
        assert columns == [("reason",), ("count",)], "there is no place for a name"
        store.close()
