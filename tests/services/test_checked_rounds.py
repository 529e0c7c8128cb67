"""Rounds of a checked sum at the server and two real aggregators: the model is that of the plain
sum over those who keep to the rules; who does not is named and left out; servers and aggregators
that are killed say the same again; a server that tells aggregators two things learns nothing."""

import secrets
from dataclasses import replace

import numpy as np
import pytest
from checked_world import DEVICES, HALF, LEAST, CheckedWorld
from rounds_world import maker
from scipy import stats

from sottovoce.core.shares import P, added
from sottovoce.errors import ServiceError
from sottovoce.services.server import checked_rounds
from sottovoce.services.server.operator import status
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.database import summed_seeds, unsummed
from sottovoce.wire.shared import (
    SetQuestion,
    SharedRecord,
    decode_question,
    decode_shares,
    encode_question,
    encode_shares,
)

BAD = DEVICES - 1
"""The device that does not keep to the rules."""
HONEST = range(BAD)


make = maker(CheckedWorld)


@pytest.fixture
def world(make):
    return make()


# --- the sum --------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_by", ["helper", "halves"])
@pytest.mark.parametrize("items", [20, 70], ids=["few", "many"])
def test_both_rounds_are_the_plain_sums_to_the_last_bit(make, noise_by, items):
    world = make(noise_by=noise_by, items=items)
    for round in range(2):
        assert world.form.pairs == (round == 1)
        total = world.honest(*range(DEVICES))
        expected = world.model_after(total)
        assert "goal" in world.finish()
        assert np.array_equal(world.view().items, expected)
        assert world.out(round) == {}
    assert world.view().items.any()


def test_who_is_lost_is_not_waited_for_and_the_order_does_not_matter(world):
    world.honest(*reversed(HONEST))
    assert "deadline" in world.finish()
    with world.database.reading() as at:
        (past,) = records.past_rounds(at)
    assert (past.reported, past.missing) == (len(HONEST), (BAD,))


def test_messages_are_gone_when_both_have_taken_them(make):
    world = make(devices=20)
    world.honest(*range(18))
    assert world.step() == []
    with world.database.reading() as at:
        assert not at.execute(unsummed.select()).all()
        kept = at.execute(summed_seeds.select()).all()
    assert (len(kept), {len(row.sealed) for row in kept}) == (18, {560})
    assert [path for _, path, _ in world.asked] == ["/v1/shares"] * 2


# --- who does not keep to the rules ---------------------------------------------------------------


def beyond(world):
    """Bits of vectors that no honest device can share."""
    good, form = world.bits(np.zeros(world.form.places, int)), world.form

    def with_(**changes):
        made = good.copy()
        for at, value in changes.items():
            made[int(at[1:])] = value
        return made

    one_too_many = np.zeros(form.places, int)
    one_too_many[: form.bound // form.most**2] = form.most
    left, at = form.bound + 1 - (one_too_many**2).sum(), len(one_too_many) - 1
    while left:
        step = int(left**0.5)
        one_too_many[at], left, at = step, left - step * step, at - 1
    assert (one_too_many**2).sum() == form.bound + 1
    width, long = len(form.weights), good.copy()
    for place, entry in enumerate(one_too_many.tolist()):
        for k in reversed(range(width)):
            long[place * width + k], entry = divmod(entry, form.weights[k])
    assert set(long[: form.places * width].tolist()) <= {0, 1}
    long[-form.slack :] = 0
    slack = len(good) - form.slack
    wrapped = long.copy()
    wrapped[slack] = P - 1  # the slack says that one is missing
    return {
        "an entry out of range": with_(_3=2),
        "a bit that is none": with_(_0=7),
        "minus one": with_(_5=P - 1),
        "a half": with_(_9=HALF),
        "a norm one too large": long,
        "a norm one too large with a slack below 0": wrapped,
        "a slack too much": with_(**{f"_{slack}": 1 - int(good[slack])}),
        "everything": np.full_like(good, P - 1),
        "all ones": np.ones_like(good),
    }


CASES = [
    "an entry out of range", "a bit that is none", "minus one", "a half", "a norm one too large",
    "a norm one too large with a slack below 0", "a slack too much", "everything", "all ones",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_who_is_beyond_the_bounds_is_named_and_the_others_go_on(world, case):
    found = beyond(world)
    assert list(found) == CASES
    expected = world.model_after(world.honest(*HONEST))
    world.send(BAD, world.body(BAD, found[case]))
    assert "goal" in world.finish()
    assert np.array_equal(world.view().items, expected)
    assert world.out() == {BAD: "out_of_range"}
    assert world.refused() == {"out_of_range": 1}
    (notice,) = world.events[0].notices
    assert notice == (
        f"what devices {BAD} have shared is beyond the bounds that are checked; left out"
    )


def test_all_pairs_are_checked_too(world):
    world.honest(*range(DEVICES))
    world.finish()
    form = world.form
    assert form.pairs
    expected = world.model_after(world.honest(*range(DEVICES - 2)))
    bits = world.bits()
    bits[4] = 2
    world.send(BAD, world.body(BAD, bits))
    loud = world.bits()
    loud[-form.loud_slack - 1] ^= 1  # of what it says to be its largest entry
    world.send(BAD - 1, world.body(BAD - 1, loud))
    world.finish()
    assert np.array_equal(world.view().items, expected)
    assert world.out(1) == {BAD - 1: "out_of_range", BAD: "out_of_range"}


def another(secret):
    return secrets.token_bytes(32)


DISAGREE = {
    **{
        f"secret {place} differs at aggregator {holder}": lambda place=place, holder=holder: {
            "sealed": lambda q: {
                holder: b"".join(
                    another(q) if k % 3 == place else q[k % 3] for k in (holder, holder + 1)
                )
            }
        }
        for place in range(3)
        for holder in (place, (place - 1) % 3)
    },
    **{
        f"commitment {place} is to another secret": lambda place=place: {
            "committed": lambda q: {place: another(q)}
        }
        for place in range(3)
    },
    "a seal has nothing in it": lambda: {"sealed": lambda q: {1: bytes(64)}},
    "a seal has half of it": lambda: {"sealed": lambda q: {2: q[2]}},
    "the hash is that of something else": lambda: {"digest": bytes(32)},
}


@pytest.mark.parametrize("case", DISAGREE)
def test_shares_that_disagree_are_named_and_the_others_go_on(world, case):
    expected = world.model_after(world.honest(*HONEST))
    world.send(BAD, world.body(BAD, **DISAGREE[case]()))
    assert "goal" in world.finish()
    assert np.array_equal(world.view().items, expected)
    assert world.out() == {BAD: "bad_shares"}
    assert f"the shares of devices {BAD} are not what" in world.events[0].notices[0]


def test_who_sends_again_counts_once(world):
    total = world.honest(*HONEST)
    entries = world.entries()
    body = world.body(BAD, world.bits(entries))
    assert [world.send(BAD, body) for _ in range(2)] == ["accepted", "replay"]
    assert world.send(BAD) == "second_submission"
    expected = world.model_after(total + entries)
    world.finish()
    assert np.array_equal(world.view().items, expected)


# --- killed and away ------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [1, 2, "server"])
@pytest.mark.parametrize("when", ["/v1/shares", "/v1/coins", "/v1/checks", "/v1/parts"])
def test_whoever_is_killed_between_phases_says_the_same(world, victim, when):
    """Also where a device was found to be beyond the bounds before."""
    expected = world.model_after(world.honest(*HONEST))
    world.send(BAD, world.body(BAD, np.ones(world.form.elements, np.uint32)))
    left = [when]

    class Killed(BaseException):
        pass

    def kill(number, path):
        if path == when and left and number == (2 if victim == "server" else victim):
            left.clear()
            if victim == "server":
                raise Killed
            world.restart_aggregator(victim)

    world.before = kill
    world.time += 1000.0
    world.step()
    if victim == "server":
        with pytest.raises(Killed):
            world.step()
        world.restart()
    world.time += 1000.0
    assert {"goal", "deadline"} & set(world.step())
    assert np.array_equal(world.view().items, expected)
    assert world.out() == {BAD: "out_of_range"}
    assert not left


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["/v1/shares", "/v1/coins", "/v1/checks", "/v1/parts"])
def test_a_round_waits_for_an_aggregator_and_says_for_which(world, number, when):
    expected = world.model_after(world.honest(*range(DEVICES)))

    def away(who, path):
        world.down = {number} if path == when else set()

    world.before = away
    world.time += 1000.0
    assert world.step() == ["closing"]
    for _ in range(3):
        with pytest.raises(ServiceError, match=f"round 0 waits for aggregator {number}: nobody"):
            world.step()
        world.time += 100.0
        assert world.position().state == "closing"
        said = status(world.database)["waits"]
        assert said == f"round 0 waits for aggregator {number}: nobody answers"
    other = world.apps[3 - number].answering
    assert other.told.times <= 3
    world.before, world.down = lambda *_: None, set()
    world.time += 1000.0
    assert "goal" in world.step()
    assert status(world.database)["waits"] == ""
    assert np.array_equal(world.view().items, expected)


def test_an_aggregator_that_has_lost_everything_costs_the_round_and_no_more(world):
    world.honest(*range(DEVICES))

    def lose(number, path):
        if path == "/v1/coins" and number == 2:
            world.apps[2].shares.write("DELETE FROM shares")

    world.before = lose
    what = world.finish()
    assert what == ["sum_refused"]
    assert "0 good submissions are left" in world.events[0].trouble
    assert set(world.out().values()) == {"lost"}


def test_an_aggregator_that_has_lost_some_costs_them(world):
    expected = world.model_after(world.honest(*HONEST))
    lost = world.body(BAD)
    world.send(BAD, lost)
    name = SharedRecord.of(lost[-560:]).name

    def lose(number, path):
        if path == "/v1/coins" and number == 1:
            world.apps[1].shares.write("DELETE FROM shares WHERE name = ?", (name,))

    world.before = lose
    world.finish()
    assert np.array_equal(world.view().items, expected)
    assert world.out() == {BAD: "lost"}
    assert "an aggregator has lost the shares of devices 7" in world.events[0].notices[0]


# --- too few --------------------------------------------------------------------------------------


def test_below_the_minimum_after_the_checks_nothing_is_opened(world):
    total = world.honest(*range(LEAST - 1))
    bits = world.bits()
    bits[0] = 5
    world.send(BAD, world.body(BAD, bits))
    assert world.finish() == ["reopened"]
    assert world.events[0].notices == (
        "3 good submissions are left, and a sum needs 4; the aggregators were not asked; the round "
        "is open again",
        f"what devices {BAD} have shared is beyond the bounds that are checked; left out",
    )
    assert [path for _, path, _ in world.asked].count("/v1/parts") == 0
    assert [app.answering.told.times for app in world.apps.values()] == [0, 0]
    assert (world.position().round, world.position().state) == (0, "open")
    assert not world.view().items.any()
    # The others have paid, and need not send again; one more makes the sum.
    assert world.step() == []
    assert world.send(BAD) == "second_submission"
    total += world.honest(LEAST)
    names = world.names[0]
    expected = world.model_after(total, [*names[: LEAST - 1], *names[LEAST:]])
    assert "deadline" in world.finish()
    assert np.array_equal(world.view().items, expected)
    assert world.out() == {BAD: "out_of_range"}


def test_bad_devices_one_by_one_never_cost_the_others_their_round(world):
    """Each closes the round once, and cannot send again."""
    total = world.honest(*range(LEAST - 1))
    for bad in range(LEAST, DEVICES):
        bits = world.bits()
        bits[bad] = 2
        assert world.send(bad, world.body(bad, bits)) == "accepted"
        assert world.finish() == ["reopened"]
        world.restart()
        assert world.step() == []
    total += world.honest(LEAST - 1)
    names = world.names[0]
    expected = world.model_after(total, [*names[: LEAST - 1], names[-1]])
    assert "goal" in world.finish()
    assert np.array_equal(world.view().items, expected)
    assert set(world.out()) == set(range(LEAST, DEVICES))


def test_a_round_below_its_minimum_waits(world):
    world.honest(*range(LEAST - 1))
    world.time += 1000.0
    assert world.step() == []
    assert world.position().state == "open"
    assert world.asked == []


# --- a server that tells two things ---------------------------------------------------------------


def given_up(world, monkeypatch=None):
    """What is said of the round; what the server saw is noise, whatever devices have sent."""
    seen = []

    def spy(name, function):
        def call(*args):
            parts = args[0] if name == "left_out" else args[1]
            seen.append(added(parts).ravel() / P)
            return function(*args)

        monkeypatch.setattr(checked_rounds, name, call)

    if monkeypatch is not None:
        for name in ("left_out", "opened_sum"):
            spy(name, getattr(checked_rounds, name))
    what = world.finish()
    assert what[0] == "wrong_sum"
    assert not world.view().items.any()
    if monkeypatch is not None:
        assert stats.kstest(seen[-1], "uniform").pvalue > 1e-4
        assert (seen[-1] > 0).all()
    return world.events[0].trouble


def test_other_coins_for_one_aggregator_open_noise(world, monkeypatch):
    world.honest(*range(DEVICES))

    def change(number, path, question):
        if number == 2 and path == "/v1/checks":
            asked = decode_question(question, coins=True)
            coins = (secrets.token_bytes(32), *asked.coins[1:])
            return encode_question(replace(asked, coins=coins))
        return question

    world.change = change
    assert "nobody passes the checks" in given_up(world, monkeypatch)
    assert world.out() == {}, "nobody is accused"
    assert [app.answering.told.times for app in world.apps.values()] == [0, 0]


def test_another_set_for_one_aggregator_opens_noise(world):
    world.honest(*range(DEVICES))

    def change(number, path, question):
        if number == 2 and path == "/v1/parts":
            asked = decode_question(question, coins=True, kept=True)
            return encode_question(
                SetQuestion(asked.about, asked.names[1:], asked.coins, asked.kept[1:])
            )
        return question

    world.change = change
    assert "told a part of another sum" in given_up(world)


def test_others_kept_by_one_aggregator_open_noise(world, monkeypatch):
    """The server shows aggregator 2 the same set and keeps others of it; from the difference one
    device's vector would follow."""
    world.honest(*HONEST)
    world.send(BAD, world.body(BAD, np.ones(world.form.elements, np.uint32)))

    def change(number, path, question):
        if path != "/v1/parts" or number == 1:
            return question
        asked = decode_question(question, coins=True, kept=True)
        kept = asked.kept.copy()
        one, other = np.flatnonzero(kept)[0], np.flatnonzero(~kept)[0]
        kept[[one, other]] = False, True
        return encode_question(replace(asked, kept=kept))

    world.change = change
    assert "no sum of what devices may add" in given_up(world, monkeypatch)


def test_with_other_coins_for_the_sum_what_opens_is_no_sum(world, monkeypatch):
    world.honest(*range(DEVICES))

    def change(number, path, question):
        if number == 1 and path == "/v1/parts":
            asked = decode_question(question, coins=True, kept=True)
            coins = (*asked.coins[:2], secrets.token_bytes(32))
            return encode_question(replace(asked, coins=coins))
        return question

    world.change = change
    assert "no sum of what devices may add" in given_up(world, monkeypatch)


@pytest.mark.parametrize("number", [1, 2])
def test_what_travels_tampered_with_for_one_aggregator_is_found_out(world, number):
    """A flipped bit would show in the checks what it was; so the device is left out instead."""
    total = world.honest(*range(DEVICES))
    out = []

    def change(who, path, question):
        if who == number and path == "/v1/shares":
            about, sent = decode_shares(question)
            record, travelled = sent[0]
            out.append(record.device)
            return encode_shares(about, [(record, flip(travelled)), *sent[1:]])
        return question

    world.change = change
    world.finish()
    (gone,) = [
        n for n, key in enumerate(world.keys) if key.public_key().public_bytes_raw() == out[0]
    ]
    assert world.out() == {gone: "bad_shares"}
    assert len(total)


def flip(travelled):
    first = int.from_bytes(travelled[:4], "little")
    return ((first + 1) % P).to_bytes(4, "little") + travelled[4:]


def test_no_secret_and_no_vector_is_in_the_servers_database(world):
    entries = np.zeros(world.form.places, int)
    entries[::2] = world.form.most // 2
    secret = []

    def kept(q):
        secret.extend(q)
        return {}

    for number in range(DEVICES):
        world.send(number, world.body(number, sealed=kept))
    world.time += 1000.0
    world.step()
    with world.database.leading() as leader:
        world.coordinator.collection._add_up(leader, world.position())
    files = [*world.path.glob("server.db*"), *world.path.glob("a*/shares.db*")]
    content = b"".join(file.read_bytes() for file in files)
    assert len(files) >= 3
    assert len(secret) == 3 * DEVICES
    assert not any(one in content for one in secret)
    with world.database.reading() as at:
        assert len(sums.seeds(at, 0, 0)) == DEVICES
