"""Every kind of binary message: its magic, its name, and the numbers at its head.

A message begins with four bytes, `SV`, a letter of its kind and its version; fixed fields follow,
little-endian, and then what the kind's own module says. Whoever changes a message counts its
version up: then a program of another release refuses it with one sentence. What is kept on disk
from one release to the next keeps its magic, or is still read.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

from sottovoce.errors import MessageError, VersionMismatch

PROTOCOL = 2
"""The version of everything that parties say to each other, in the documents that name it."""
DRIFT_PROTOCOLS = (1, PROTOCOL)
"""What DRIFT's files and documents may say, which the release before wrote with a 1: their content
is the same."""
SLOWEST_LINE = 32 << 10
"""Bytes a second of the slowest line on which the longest message still gets through."""
SAME_RELEASE = "install the same release of Sottovoce on both sides"


def check_protocol(
    spoken: object, who: str, advice: str, known: Collection[int] = (PROTOCOL,)
) -> None:
    """Raises if `spoken` is no version of the protocol that is understood here."""
    if type(spoken) is not int or spoken not in known:
        raise VersionMismatch(
            f"{who} version {str(spoken)[:40]} of the protocol, this program speaks version "
            f"{PROTOCOL}; {advice}"
        )


class Frame:
    """The beginning of one kind of message."""

    __slots__ = ("head", "magic", "size", "what")

    def __init__(self, magic: bytes, what: str, fields: str) -> None:
        self.magic, self.what = magic, what
        self.head = struct.Struct(f"<4s{fields}")
        self.size = self.head.size

    def __repr__(self) -> str:
        return f"<Frame {self.magic.decode()}, {self.what}>"

    def pack(self, *fields: Any) -> bytes:
        return self.head.pack(self.magic, *fields)

    def unpack(self, payload: bytes) -> tuple[Any, ...]:
        """The fields. Raises if this is another message, or one of another release."""
        kin = payload[:3] == self.magic[:3]
        if kin and payload[:4] != self.magic and payload[3:4].isdigit():
            raise VersionMismatch(
                f"this is {self.what} of another release of Sottovoce, version "
                f"{payload[:4].decode()}, and this program reads {self.magic.decode()}; "
                f"{SAME_RELEASE}"
            )
        if len(payload) < self.size or payload[:4] != self.magic:
            raise MessageError(f"this is not {self.what}")
        return self.head.unpack_from(payload)[1:]


_REPORT = "BBHIII"
"""Bytes per value, whether packed, columns, round, rows, bits of the grid."""
REPORT = Frame(b"SVU3", "a device's report", _REPORT)
SUM = Frame(b"SVS3", "a sum of reports", _REPORT)
BITS = Frame(b"SVR1", "a message of randomised reports", "IBI")
MASKED = Frame(b"SVM1", "a masked update", "III")
MASK_SUM = Frame(b"SVK1", "a sum of masks", "III")
_MASK_QUESTION = "III32s32s"
MASK_QUESTION = Frame(b"SVQ1", "a question for a sum of masks", _MASK_QUESTION)
MASK_GROUPS = Frame(b"SVQ2", "a question for a group's sum of masks", _MASK_QUESTION)
CONTRIBUTIONS = Frame(b"SVQ3", "a question for a sum of contributions' masks", f"{_MASK_QUESTION}I")
"""The last: numbers of a contribution."""
SHARED = Frame(b"SVT1", "a contribution in shares", "III")
_SHARES = f"{_MASK_QUESTION}I"
SHARES = Frame(b"SVA1", "shares for an aggregator", _SHARES)
COIN_QUESTION = Frame(b"SVC1", "a question for a coin", _SHARES)
CHECK_QUESTION = Frame(b"SVF1", "a question for checks", _SHARES)
PART_QUESTION = Frame(b"SVG1", "a question for a part of a sum", _SHARES)
COIN = Frame(b"SVO1", "an aggregator's coin", "I32s")
CHECK_PARTS = Frame(b"SVJ1", "an aggregator's parts of checks", "II")
SUM_PART = Frame(b"SVN1", "an aggregator's part of a sum", "III")
_MODEL = "IIIII"
"""Round, the round that changes are against, items, rows, columns."""
MODEL = Frame(b"SVV1", "a model", _MODEL)
MODEL_CHANGES = Frame(b"SVD1", "changes of a model", _MODEL)
MODEL_STEPS = Frame(b"SVV2", "a model in steps", _MODEL)
CHANGES_STEPS = Frame(b"SVD2", "changes of a model in steps", _MODEL)
ENVELOPE = Frame(b"SVE1", "an envelope", "III16s")
PASS = Frame(b"SVP1", "a pass", "I")
SUBMISSION = Frame(b"SVL1", "a submission", "16sIB32s32sHH32s")
BATCH_PART = Frame(b"SVB1", "a part of a batch", "IB32sIIHII16s")
USER_QUESTION = Frame(b"SVU1", "a question of a user", "Q16s")
ITEM_ROWS = Frame(b"SVH1", "the rows of all items", "II")
