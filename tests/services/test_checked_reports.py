"""What devices of a checked sum send: what the server looks at before it is stored, what a device
keeps and sends, and what reaches each party."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from checked_world import DEVICES, CheckedWorld
from scipy import stats
from unpacked import unpacked

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import CheckedSum
from sottovoce.core.shares import P, added, share
from sottovoce.errors import UsageError
from sottovoce.services.copies.copying import make_backup, restore_backup
from sottovoce.services.server.checks import Checks
from sottovoce.services.server.state import RoundState
from sottovoce.stores.aggregator_folder import open_aggregator
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import sealed_by, signing_key
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.sums import most_summed
from sottovoce.testing import random_world
from sottovoce.wire.refusals import Refused
from sottovoce.wire.shared import (
    SharedRecord,
    decode_question,
    decode_shared,
    decode_shares,
    elements_of,
    encode_question,
    encode_shared,
    is_signed,
    message_bytes,
    open_secrets,
)
from sottovoce.wire.signing import OVERHEAD, seal


@pytest.fixture
def world(tmp_path):
    made = CheckedWorld(tmp_path)
    yield made
    made.close()


class Door:
    """The server's checks on reports of an open round."""

    def __init__(self, world):
        self.world = world
        self.state = RoundState(world.database, world.plan)
        self.state.refresh()
        self.checks = Checks(world.terms, self.state, world.database)

    def take(self, number, body, **changes):
        async def aside(work):
            return work()

        said = {"number": number, "round": 0, "attempt": 0, "nonce": bytes(16), "body": body}
        key, federation = self.world.keys[number], self.world.terms.federation
        payload = seal(key, federation, "report", **{**said, **changes})
        return asyncio.run(self.checks.report(payload, aside))

    def refused(self, number, body, reason):
        with pytest.raises(Refused) as caught:
            self.take(number, body)
        assert caught.value.reason == reason, caught.value
        assert 400 <= caught.value.status < 500


# --- the door -------------------------------------------------------------------------------------


def test_a_good_message_is_taken_and_all_have_the_same_length(world):
    door, form = Door(world), world.form
    lengths = set()
    for number in range(DEVICES):
        body = world.body(number)
        assert door.take(number, body).body == body
        lengths.add(len(body))
    nothing = world.body(0, world.bits(np.zeros(form.places, int)))
    assert lengths == {len(nothing)} == {message_bytes(form.elements)}
    assert door.checks.longest >= OVERHEAD + len(nothing)


def test_what_can_be_seen_to_be_wrong_is_refused_at_once(world):
    door = Door(world)
    record, travelled = world.sent(1)
    good = encode_shared(travelled, record, 0, 0)
    half = travelled[: len(travelled) // 8 * 4]
    large = world.sent(1, travelled=travelled[:-4] + P.to_bytes(4, "little"))
    other = world.about._replace
    for body, reason in (
        (good[:-1], "malformed"),
        (good + b"x", "malformed"),
        (b"", "malformed"),
        (b"SVT2" + good[4:], "version"),
        (encode_shared(half, record, 0, 0), "malformed"),
        (encode_shared(*reversed(large), 0, 0), "malformed"),
        (encode_shared(travelled[4:] + travelled[:4], record, 0, 0), "malformed"),
        (encode_shared(travelled, record, 1, 0), "malformed"),
        (encode_shared(travelled, record, 0, 1), "malformed"),
        (world.body(2), "bad_signature"),
        (world.body(1, about=other(round=1)), "bad_signature"),
        (world.body(1, about=other(model=bytes(32))), "bad_signature"),
        (world.body(1, about=other(numbers=3)), "bad_signature"),
        (encode_shared(travelled, replace(record, signature=bytes(64)), 0, 0), "bad_signature"),
        (encode_shared(travelled, replace(record, device=bytes(32)), 0, 0), "bad_signature"),
        (world.body(1, digest=bytes(32)), "malformed"),
    ):
        door.refused(1, body, reason)
    assert door.take(1, good).body == good


def test_no_more_than_the_field_has_room_for(world):
    form = world.form
    most = most_summed(world.terms)
    assert 1000 < most <= form.most_devices(0.0)
    assert most * form.most < 1 << 30


# --- a device -------------------------------------------------------------------------------------


def test_a_device_sends_what_its_door_has_made_the_same_bytes_again(world, tmp_path):
    history = random_world(1, world.items, 30, seed=4)
    store = CohortStore.create(tmp_path / "store", [(3, "ann")], root_key=7)
    store.set_catalogue([(f"i{n}", f"I {n}") for n in range(world.items)])
    store.add_histories(history)
    store.set_choices(Consent.uniform(np.array([3]), Choice(epsilon=2.0)))
    session = DeviceSession(store, pack=sealed_by(store))
    session.agree(world.terms)
    view = world.view()
    first = session.prepare(view, 0, summed=False)
    again = DeviceSession(store, pack=sealed_by(store)).prepare(view, 0, summed=False)
    assert first.message == again.message
    found = decode_shared(first.message, 0, 0, world.form.elements)
    bound = world.about.bound(world.terms)
    assert is_signed(found.record, bound)
    assert found.record.device == signing_key(store).public_key().public_bytes_raw()
    keys = [world.coordinator.collection._key, *(world.folders[n].seal_key() for n in (1, 2))]
    mine = [open_secrets(found.record, k, key, bound) for k, key in enumerate(keys)]
    secret = [both[0] for both in mine]
    assert [both[1] for both in mine] == [*secret[1:], secret[0]]
    parts = [share(world.form, k, secret[k], elements_of(found.travelled)) for k in range(3)]
    bits = added(parts)
    assert set(bits.tolist()) <= {0, 1}
    assert bits.any()
    content = b"".join(p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file())
    assert not any(one in content for one in secret), "a secret of a share stays nowhere"
    with pytest.raises(UsageError, match="not as a sum"):
        DeviceSession(store, pack=sealed_by(store)).prepare(view, 1, summed=True)
    store.close()


# --- sight ----------------------------------------------------------------------------------------


def uniform(numbers):
    """Whether they look drawn below p."""
    found = np.asarray(numbers, float).ravel() / P
    return stats.kstest(found, "uniform").pvalue > 1e-4


def test_what_reaches_an_aggregator_is_what_the_table_says(world):
    """By what it is sent: who takes part (by key), two secrets of each, what travels. Shares are
    uniform whatever is shared, and no number of a device is in it."""
    full = np.zeros(world.form.places, int)
    full[:16] = world.form.most
    for number in range(DEVICES):
        world.send(number, world.body(number, world.bits(full if number % 2 else 0 * full)))
    world.finish()
    assert set(CheckedSum.sees) == {"server", "aggregator-1", "aggregator-2", "device"}
    for number in (1, 2):
        told = [(path, content) for who, path, content in world.asked if who == number]
        assert [path for path, _ in told] == ["/v1/shares", "/v1/coins", "/v1/checks", "/v1/parts"]
        about, sent = decode_shares(told[0][1])
        devices = {record.device for record, _ in sent}
        assert devices == {key.public_key().public_bytes_raw() for key in world.keys}
        bound, key = about.bound(world.terms), world.folders[number].seal_key()
        form, shares = world.coordinator.collection._rules.form(0, about.numbers), []
        for record, travelled in sent:
            mine = open_secrets(record, number, key, bound)
            for other in {0, 1, 2} - {number}:
                assert open_secrets(record, other, key, bound) is None
            numbers = elements_of(travelled)
            shares += [share(form, (number + k) % 3, mine[k], numbers) for k in range(2)]
        assert uniform(shares)
        assert uniform(np.stack(shares)[:, : form.elements // 2])
        question = decode_question(told[3][1], coins=True, kept=True)
        assert question.kept.all()
        assert set(question.names) == {record.name for record, _ in sent}


def test_what_reaches_the_server_is_what_the_table_says(world):
    """Of devices: records, of which it opens its own part, and what travels. Of aggregators: coins,
    and parts that are uniform, whatever they are parts of."""
    told, ask = [], world.ask

    def listen(number, question, path):
        answer = ask(number, question, path)
        told.append((number, path, answer.body))
        return answer

    world.ask = listen
    bodies = {
        n: world.body(n, world.bits(np.zeros(world.form.places, int))) for n in range(DEVICES)
    }
    form, bound = world.form, world.about.bound(world.terms)
    for number, body in bodies.items():
        world.send(number, body)
    world.finish()
    key, mine = world.coordinator.collection._key, []
    for body in bodies.values():
        record = SharedRecord.of(body[-560:])
        both = open_secrets(record, 0, key, bound)
        for other in (1, 2):
            assert open_secrets(record, other, key, bound) is None
        mine += [share(form, k, both[k], None) for k in range(2)]
        assert uniform(elements_of(decode_shared(body, 0, 0, form.elements).travelled))
    assert uniform(mine)
    for number in (1, 2):
        answers = {path: body for who, path, body in told if who == number}
        assert answers["/v1/shares"] == b'{"bad": []}'
        assert len(answers["/v1/coins"]) == 4 + 4 + 32
        assert len(answers["/v1/checks"]) == 12 + DEVICES * 2 * 4
        assert uniform(np.frombuffer(answers["/v1/parts"][16:], "<u4"))


# --- copies ---------------------------------------------------------------------------------------


def test_an_old_copy_of_an_aggregator_tells_no_second_sum(world, tmp_path):
    world.honest(*range(DEVICES))
    make_backup(world.folders[1].path, tmp_path / "b")
    names = {p.name for p in unpacked(tmp_path / "b", tmp_path / "content").rglob("*")}
    assert "coins.secret" in names
    assert "shares.db" not in names
    assert "goal" in world.finish()
    asked = {path: content for who, path, content in world.asked if who == 1}
    first = world.apps[1].post("/v1/parts", asked["/v1/parts"])
    world.apps[1].__exit__()
    restore_backup(tmp_path / "b", world.folders[1].path)
    world.folders[1] = open_aggregator(world.folders[1].path)
    world.apps[1] = type(world.apps[2])(world.folders[1]).__enter__()
    app = world.apps[1]
    assert app.post("/v1/shares", asked["/v1/shares"]).status == 200
    assert app.post("/v1/parts", asked["/v1/parts"]).body == first.body
    question = decode_question(asked["/v1/parts"], coins=True, kept=True)
    other = replace(question, kept=np.arange(DEVICES) > 0)
    assert app.post("/v1/parts", encode_question(other)).status == 409


def test_a_copy_whose_folder_is_lost_must_be_told_where_to_go_on(world, tmp_path):
    path = world.folders[2].path
    make_backup(path, tmp_path / "b")
    world.apps[2].__exit__()
    path.rename(tmp_path / "lost")
    with pytest.raises(UsageError, match="--next-round"):
        restore_backup(tmp_path / "b", path)
    restore_backup(tmp_path / "b", path, next_round=7)
    assert open_aggregator(path).answers().last.round == 6
    world.apps[2] = type(world.apps[1])(open_aggregator(path)).__enter__()
    world.honest(*range(DEVICES))
    what = world.finish()
    assert what == ["sum_refused"]
    assert "round 0 is over" in world.events[0].trouble
