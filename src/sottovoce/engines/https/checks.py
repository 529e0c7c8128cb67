"""What is checked before a device's message is believed: cheap things first, and nothing of it is
looked at before its signature is good."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sottovoce.engines.https import records, roster
from sottovoce.engines.https.aside import Aside
from sottovoce.engines.https.board import Board, Snapshot
from sottovoce.engines.https.database import Database
from sottovoce.engines.https.masked_wire import (
    binding,
    decode_masked,
    is_signed,
    message_bytes,
    model_name,
)
from sottovoce.engines.https.records import Submission
from sottovoce.engines.https.refusals import Refused
from sottovoce.engines.https.signing import OVERHEAD, Envelope, Purpose, open_envelope
from sottovoce.errors import MessageError
from sottovoce.messages import GRID, decode, message_limit, other_version
from sottovoce.terms import PROTOCOL, Terms

_OTHER_RELEASE = (
    f"this server speaks version {PROTOCOL} of the protocol; install the same release of Sottovoce"
)


class Checks:
    def __init__(self, terms: Terms, board: Board, database: Database) -> None:
        self._terms = terms
        self._board = board
        self._database = database
        self._largest = int(terms.largest_value * GRID)
        self._keys: dict[int, Ed25519PublicKey] = {}
        self._named: tuple[int, bytes] = (-1, b"")
        with database.reading() as link:
            for number, key in roster.public_keys(link).items():
                self.enrolled(number, key)

    @property
    def longest(self) -> int:
        """Bytes of the longest message that can be a report."""
        if self._terms.secure_sum is not None:
            return OVERHEAD + message_bytes(self._terms)
        return OVERHEAD + message_limit(self._terms.max_rows, self._terms.width)

    def enrolled(self, number: int, public_key: bytes) -> None:
        self._keys[number] = Ed25519PublicKey.from_public_bytes(public_key)

    def number(self, payload: bytes) -> int:
        """Whose message this is, once it was checked."""
        return open_envelope(payload).number

    def announced(self, begun: bytes, digest: bytes) -> int | None:
        """The number of the device that signed a report with this digest, of which only the
        beginning is here; None where it is none that this process knows, or not asked now."""
        envelope = open_envelope(begun)
        key, now = self._keys.get(envelope.number), self._board.now
        if key is None or not now.open_for(envelope.round, envelope.attempt):
            return None
        if not now.asks(envelope.number):
            return None
        signed = envelope.signed_by(key, self._terms.federation, "report", digest)
        return envelope.number if signed else None

    async def check_in(self, payload: bytes, aside: Aside) -> int:
        """The number of the device that signed this. It must have been signed just now, that is in
        the present attempt, or in the one before while the round moved on."""
        envelope = await self._envelope(payload, "check-in", aside)
        if envelope.body:
            raise Refused("malformed", "a check-in has no body")
        sent, now = (envelope.round, envelope.attempt), self._board.now
        if sent > now.key:  # another process may have moved on, and told the device
            now = await aside(self._board.refresh)
        if sent > now.key:
            raise Refused("malformed", f"round {envelope.round} has not been opened")
        if sent not in (now.key, now.before):
            raise Refused("late", f"round {envelope.round} is closed; ask for the present one")
        return envelope.number

    async def report(self, payload: bytes, aside: Aside) -> Submission:
        """A report that counts if it is the first of its device in the open round."""
        envelope = await self._envelope(payload, "report", aside)
        now = self._board.now
        if not now.open_for(envelope.round, envelope.attempt):
            # Another process may have moved on, and told the device.
            now = await aside(self._board.refresh)
        mark = records.mark_of(envelope.nonce, envelope.body)
        if not now.open_for(envelope.round, envelope.attempt):
            await self._refuse_closed(envelope, mark, now, aside)
        if not now.asks(envelope.number):
            raise Refused("not_selected", "this device is not asked in this round")
        self._check_body(envelope)
        return Submission(envelope.round, envelope.attempt, envelope.number, mark, envelope.body)

    async def _envelope(self, payload: bytes, purpose: Purpose, aside: Aside) -> Envelope:
        if payload[:3] == b"SVE" and payload[3:4] != b"1":
            raise Refused("version", _OTHER_RELEASE)
        try:
            envelope = open_envelope(payload)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        key = self._keys.get(envelope.number)
        if key is None and self._database.shared:
            # It may have enrolled with another process.
            found = await aside(lambda: self._look_up_key(envelope.number))
            if found is not None:
                self.enrolled(envelope.number, found)
                key = self._keys[envelope.number]
        if key is None:
            raise Refused("unknown_device", "no such device has enrolled; enrol with an invitation")
        if not envelope.signed_by(key, self._terms.federation, purpose):
            raise Refused("bad_signature", "the signature is not that of the enrolled device")
        return envelope

    def _look_up_key(self, number: int) -> bytes | None:
        with self._database.reading() as link:
            return roster.public_key(link, number)

    async def _refuse_closed(
        self,
        envelope: Envelope,
        mark: bytes,
        now: Snapshot,
        aside: Aside,
    ) -> None:
        """Raises what is to be said of a report for a round that is not open."""
        sent, current = (envelope.round, envelope.attempt), now.position
        if sent > (current.round, current.attempt):
            raise Refused("malformed", f"round {envelope.round} has not been opened")

        def find() -> dict[int, bytes]:
            with self._database.reading() as link:
                return records.marks(link, *sent, [envelope.number])

        if (await aside(find)).get(envelope.number) == mark:
            raise Refused("replay", "this report was accepted before")
        raise Refused("late", f"round {envelope.round} is closed; the report did not count")

    def _check_masked(self, envelope: Envelope) -> None:
        """Of a masked update all that can be seen is its size; and that its seed is sealed by the
        same device, or the proxy would refuse the whole sum."""
        terms, round, attempt = self._terms, envelope.round, envelope.attempt
        if envelope.body[:3] == b"SVM" and envelope.body[3:4] != b"1":
            raise Refused("version", _OTHER_RELEASE)
        try:
            record = decode_masked(envelope.body, terms, round, attempt).record
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        key = self._keys[envelope.number].public_bytes_raw()
        bound = binding(terms, round, attempt, self._model_name(round))
        if record.device != key or not is_signed(record, bound):
            raise Refused(
                "bad_signature", "the sealed seed was not signed by the enrolled device for this"
            )

    def _model_name(self, round: int) -> bytes:
        """Of the open round's model, made once."""
        if self._named[0] != round:
            version = self._board.now.versions.get(round)
            if version is None:
                raise Refused("late", f"round {round} is closed; the report did not count")
            self._named = round, model_name(version.view.items)
        return self._named[1]

    def _check_body(self, envelope: Envelope) -> None:
        if self._terms.secure_sum is not None:
            self._check_masked(envelope)
            return
        terms, body = self._terms, envelope.body
        if other_version(body):
            raise Refused("version", _OTHER_RELEASE)
        try:
            reports = decode(
                body,
                sender=envelope.number,
                n_items=terms.n_rows,
                width=terms.width,
                round=envelope.round,
                max_rows=terms.max_rows,
            )
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        values = reports.values
        if terms.counts_senders and np.any(values[:, -1] != int(GRID)):
            raise Refused("malformed", "a row does not count its sender once")
        if values.size and max(int(np.max(values)), -int(np.min(values))) > self._largest:
            raise Refused("malformed", "a value is larger than an honest device can send")
