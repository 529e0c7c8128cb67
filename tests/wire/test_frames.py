"""Magics: each is one message's, and what another release says is known for that."""

import pytest

from sottovoce.errors import MessageError, VersionMismatch
from sottovoce.wire import frames
from sottovoce.wire.frames import Frame, check_protocol

ALL = [thing for thing in vars(frames).values() if isinstance(thing, Frame)]


def test_every_magic_is_one_messages():
    assert len(ALL) == 26
    assert len({frame.magic for frame in ALL}) == len({frame.what for frame in ALL}) == len(ALL)
    for frame in ALL:
        assert frame.magic[:2] == b"SV"
        assert frame.magic[2:3].isupper()
        assert frame.magic[3:].isdigit()


@pytest.mark.parametrize("frame", ALL, ids=lambda frame: frame.magic.decode())
def test_the_head_is_read_or_refused(frame):
    fields = frame.head.unpack(bytes(frame.size))[1:]
    packed = frame.pack(*fields)
    assert frame.unpack(packed) == frame.unpack(packed + b"more") == fields
    for wrong in (b"", packed[:3], packed[:-1], b"SVX1" + packed[4:], b"\0" * 99, b"{}" * 99):
        with pytest.raises(MessageError, match=f"this is not {frame.what}"):
            frame.unpack(wrong)
    other = packed[:3] + b"9" + packed[4:]
    with pytest.raises(VersionMismatch, match=f"{frame.what} of another release .*install"):
        frame.unpack(other)


@pytest.mark.parametrize("spoken", [None, True, 1.0, "2", 3, [2], {}, "x" * 10_000])
def test_only_a_known_version_of_the_protocol_is_spoken(spoken):
    with pytest.raises(VersionMismatch, match=r"the server speaks version .*; go") as caught:
        check_protocol(spoken, "the server speaks", "go", frames.DRIFT_PROTOCOLS)
    assert len(str(caught.value)) < 150
    for known in frames.DRIFT_PROTOCOLS:
        check_protocol(known, "", "", frames.DRIFT_PROTOCOLS)
