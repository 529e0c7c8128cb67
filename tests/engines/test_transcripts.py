"""What reaches a party is kept whole, read again as it was, and never mixed with another run's."""

import json
import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.views import TlsPacket
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import (
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    MaskSum,
    ModelView,
    SummedReports,
)
from sottovoce.engines.transcripts import (
    MASKED_KEPT,
    Recorder,
    Transcript,
    network_of,
    read_transcript,
    seen_by,
)
from sottovoce.errors import CorruptData, RunError
from sottovoce.parties import device as door
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import Messages, random_world
from sottovoce.wire.reports import encode_report

USERS = 90


def federation(link=None, rounds=3, algorithm=None, release=None):
    train = random_world(USERS, 40, 700, seed=1)
    if algorithm is None:
        algorithm = FPLConfig(configuration="pFPL", embedding_size=3, epochs=rounds)
    choice = Choice(share_positives=0.5)
    if release is not None:
        choice = Choice(epsilon=2.0, max_reports=4)
    made = Federation.build(
        algorithm, train, Consent.uniform(np.arange(USERS), choice), release or ShareFraction(),
        Streams.from_seed(5), link=link,
    )  # fmt: skip
    made.schedule = replace(made.schedule, rounds=rounds)
    return made


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


CASES = {
    "direct": {},
    "masked": {"link": SecureSum(min_devices=5)},
    "reports": {
        "algorithm": FMFConfig(embedding_size=3, rounds=3),
        "release": KReports(4, (Tier(2.0, min_devices=5),)),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_is_what_was_heard(tmp_path, case):
    recorder = Recorder()
    federation(**CASES[case]).run(message_observers=[Transcript(tmp_path / "t", "me"), recorder])
    read = read_transcript(tmp_path / "t", "me")
    assert same(read, recorder.seen)
    assert sorted(read["server"]) == sorted(read["device"]) == [0, 1, 2]
    assert sorted(read_transcript(tmp_path / "t", "me", rounds=2)["server"]) == [0, 1]
    about = json.loads((tmp_path / "t" / "about.json").read_text())
    assert about["identity"] == "me"
    assert about["rounds"] == [[0, 2]]


def test_a_party_sees_its_own_messages_and_what_is_published():
    recorder = Recorder()
    made = federation()
    made.run(message_observers=[recorder])
    seen = seen_by(recorder.seen, "server")
    assert [s.round for s in seen] == [0, 1, 2]
    assert all([type(m) for m in s.messages] == [DeviceReports] for s in seen)
    assert all(isinstance(s.published, ModelView) and s.published.round == s.round for s in seen)
    assert not same(seen[0].published.items, seen[1].published.items)
    assert not any(s.messages for s in seen_by(recorder.seen, "proxy"))
    # A view of one party has nothing that reached another one.
    masked = Recorder()
    federation(SecureSum(min_devices=5)).run(message_observers=[masked])
    server = {type(m) for s in seen_by(masked.seen, "server") for m in s.messages}
    proxy = {type(m) for s in seen_by(masked.seen, "proxy") for m in s.messages}
    assert server == {MaskedReports, MaskSum, SummedReports}
    assert proxy == {MaskSeeds}


def test_of_masked_updates_few_are_kept_and_the_sum_of_all():
    plain, masked = Recorder(), Recorder()
    federation(rounds=2).run(message_observers=[plain])
    federation(SecureSum(min_devices=5), rounds=2).run(message_observers=[masked])
    for round in (0, 1):
        heard = masked.seen["server"][round]
        kept = sum(len(m) for m in heard if isinstance(m, MaskedReports))
        assert kept == MASKED_KEPT < USERS
        (opened,) = [m for m in heard if isinstance(m, SummedReports)]
        (reports,) = plain.seen["server"][round]
        sums = np.zeros((40, 4), dtype=np.int64)
        np.add.at(sums, reports.item, reports.values)
        assert opened.devices == USERS
        assert np.array_equal(opened.dense(40), sums)


def test_a_sum_that_the_server_would_turn_down_is_not_opened():
    recorder = Recorder()
    recorder.on_message("device", ModelView(0, np.zeros((2, 3), np.float32)))
    recorder.on_message("server", MaskedReports(0, np.arange(2), np.ones((2, 6), np.uint64)))
    recorder.on_message("server", MaskSum(0, 3, np.ones(6, np.uint64)))
    assert [type(m) for m in recorder.seen["server"][0]] == [MaskedReports, MaskSum]


def test_memory_is_limited_by_keeping_some_devices_whole():
    whole, some = Recorder(), Recorder(numbers=120)
    federation().run(message_observers=[whole])
    federation().run(message_observers=[some])
    senders = []
    for round in range(3):
        (all_,), (few,) = whole.seen["server"][round], some.seen["server"][round]
        kept = np.unique(few.sender)
        senders.append(set(kept.tolist()))
        mine = np.isin(all_.sender, kept)
        assert np.array_equal(all_.values[mine], few.values)
        assert 0 < few.values.size < all_.values.size / 3
    assert senders[0] & senders[1] & senders[2]
    assert len(senders[0] | senders[1] | senders[2]) < USERS / 3
    assert some.keeper.share < 0.3
    assert whole.keeper.share == 1.0


def test_a_round_that_comes_in_parts_is_kept_as_one(tmp_path, monkeypatch):
    once, few, parts, fewer, ear = (
        Recorder(), Recorder(120), Recorder(), Recorder(120), Messages(),
    )  # fmt: skip
    federation().run(message_observers=[once, few])
    monkeypatch.setattr(door, "_WRITTEN_AT_ONCE", 200)
    federation().run(message_observers=[parts, fewer, ear, Transcript(tmp_path / "t", "me")])
    assert len(ear.seen) > 5 * 3
    assert same(parts.seen, once.seen)
    assert same(fewer.seen, few.seen)
    assert fewer.keeper.share == few.keeper.share < 0.3
    assert same(read_transcript(tmp_path / "t", "me"), once.seen)


def test_the_network_sees_lengths_alone():
    recorder = Recorder()
    federation(rounds=1).run(message_observers=[recorder])
    (seen,) = network_of(recorder.seen, 0, 0)
    (reports,) = recorder.seen["server"][0]
    assert all(isinstance(p, TlsPacket) and p.receiver == "server" for p in seen.messages)
    assert [p.sender for p in seen.messages] == np.unique(reports.sender).tolist()
    packet = seen.messages[7]
    at = reports.sender == packet.sender
    one = DeviceReports(0, reports.sender[at], reports.item[at], reports.values[at])
    assert packet.bytes == len(encode_report(one))
    masked = Recorder()
    federation(SecureSum(min_devices=5), rounds=1).run(message_observers=[masked])
    (seen,) = network_of(masked.seen, 1234, 0)
    assert [p.sender for p in seen.messages] == list(range(USERS))
    assert {p.bytes for p in seen.messages} == {1234}
    bits = Recorder()
    bits.on_message("device", ModelView(0, np.zeros((2, 3), np.float32)))
    empty = np.zeros((2, 0), np.uint32)
    bits.on_message("proxy", BitReports(0, np.array([4, 6]), np.zeros(2, np.int32), empty))
    (seen,) = network_of(bits.seen, 0, 99)
    assert seen.messages == (TlsPacket(4, "proxy", 99), TlsPacket(6, "proxy", 99))


def test_a_run_that_goes_on_goes_on_in_its_transcript(tmp_path):
    made = federation(rounds=3)
    made.schedule = replace(made.schedule, rounds=2)
    made.run(message_observers=[Transcript(tmp_path, "me")])
    first = read_transcript(tmp_path, "me")
    # Killed while a round was written: what is left of it is replaced.
    (tmp_path / "server" / "round-000001.npz").write_bytes(b"PK half a fi")
    again = federation(rounds=3)
    again.run(message_observers=[Transcript(tmp_path, "me")])
    read = read_transcript(tmp_path, "me")
    assert sorted(read["server"]) == [0, 1, 2]
    assert same(read["server"][1], first["server"][1])


def test_the_transcript_of_another_run_is_never_touched(tmp_path):
    federation(rounds=1).run(message_observers=[Transcript(tmp_path, "me")])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="another run"):
        federation(rounds=1).run(message_observers=[Transcript(tmp_path, "you")])
    with pytest.raises(RunError, match="another run"):
        read_transcript(tmp_path, "you")
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def other_round(path):
    path.write_bytes(path.with_name("round-000001.npz").read_bytes())


def other_fields(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("0.DeviceReports.secret.npy", archive.read("0.DeviceReports.item.npy"))


def other_kind(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("1.Pickle.item.npy", archive.read("0.DeviceReports.item.npy"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut, "cut short or damaged"),
        (flip, "cut short or damaged"),
        (lambda path: path.write_text("no zip"), "cut short or damaged"),
        (lambda path: path.unlink(), "lacks round 0"),
        (other_round, "another round"),
        (other_fields, "other fields"),
        (other_kind, "cut short or damaged"),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path, harm, words):
    federation(rounds=2).run(message_observers=[Transcript(tmp_path, "me")])
    harm(tmp_path / "server" / "round-000000.npz")
    with pytest.raises(CorruptData, match=words):
        read_transcript(tmp_path, "me")


@pytest.mark.parametrize(
    "about",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "identity": "me", "parties": ["server"], "rounds": [[3, 1]]}',
        '{"format": 1, "identity": "me", "parties": ["../.."], "rounds": [[0, 1]]}',
        '{"format": 1, "identity": "me", "parties": ["server"], "rounds": ["a"]}',
    ],
)
def test_a_folder_that_does_not_say_what_it_is_is_refused(tmp_path, about):
    federation(rounds=2).run(message_observers=[Transcript(tmp_path, "me")])
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(CorruptData):
        read_transcript(tmp_path, "me")


def test_what_is_kept_says_nothing_in_a_repr(tmp_path):
    transcript, recorder = Transcript(tmp_path, "me"), Recorder()
    federation(rounds=1).run(message_observers=[transcript, recorder])
    assert "redacted" in repr(transcript)
    assert "redacted" in repr(recorder)
