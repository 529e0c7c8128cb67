"""What is checked before a device's message is believed: cheap things first, and nothing of it is
looked at before its signature is good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import GRID
from sottovoce.parties.aggregator import form_of
from sottovoce.services.kit.answers import Receive, Scope, Send, answer_json, read_body, table_of
from sottovoce.services.kit.application import BoundedExecutor, Tarpit
from sottovoce.services.server.places import Places
from sottovoce.services.server.state import RoundSnapshot, RoundState
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import longest_message
from sottovoce.stores.database import Database
from sottovoce.stores.server import KEY_IN_USE, Submission
from sottovoce.stores.server_folder import admit
from sottovoce.wire import shared
from sottovoce.wire.catalogue import OBJECTION
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.masked import (
    binding,
    decode_masked,
    is_signed,
    model_name,
)
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.reports import decode_report
from sottovoce.wire.signing import (
    SIGNATURE_BYTES,
    Envelope,
    Purpose,
    is_proven,
    is_weak,
    open_envelope,
)
from sottovoce.wire.terms import Terms


class Checks:
    def __init__(
        self,
        terms: Terms,
        state: RoundState,
        database: Database,
        keys: dict[int, Ed25519PublicKey] | None = None,
    ) -> None:
        """`keys` are those of devices, where another one has them already."""
        self._terms = terms
        self._state = state
        self._database = database
        self._largest = int(terms.largest_value * GRID)
        self._keys = {} if keys is None else keys
        self._named: tuple[int, bytes, int] = (-1, b"", 0)
        self._algorithm = terms.build()
        if keys is not None:
            return
        with database.reading() as link:
            for number, key in records.public_keys(link).items():
                self.enrolled(number, key)

    def under(self, terms: Terms) -> Checks:
        """The same for other terms, with the devices that are known here."""
        return Checks(terms, self._state, self._database, self._keys)

    @property
    def longest(self) -> int:
        """Bytes of the longest message that can be a report."""
        return longest_message(self._terms)

    def enrolled(self, number: int, public_key: bytes) -> None:
        """Believe this key from now on."""
        self._keys[number] = Ed25519PublicKey.from_public_bytes(public_key)

    def number(self, payload: bytes) -> int:
        """Return the number of the device that sent this message, once it was checked."""
        return open_envelope(payload).number

    def announced(self, begun: bytes, digest: bytes) -> int | None:
        """The number of the device that signed a report with this digest, of which only the
        beginning is here; None where it is none that this process knows, or not asked now."""
        envelope = open_envelope(begun)
        key, now = self._keys.get(envelope.number), self._state.now
        if key is None or not now.open_for(envelope.round, envelope.attempt):
            return None
        if not now.asks(envelope.number):
            return None
        signed = envelope.signed_by(key, self._terms.federation, "report", digest)
        return envelope.number if signed else None

    async def check_in(self, payload: bytes, queries: BoundedExecutor) -> tuple[int, bool]:
        """The number of the device that signed this, and whether it refuses the catalogue. It must
        have been signed just now, that is in the present attempt, or in the one before while the
        round moved on."""
        envelope = await self._envelope(payload, "check-in", queries)
        if envelope.body not in (b"", OBJECTION):
            raise Refused("malformed", "a check-in has no body, or says what it refuses")
        sent, now = (envelope.round, envelope.attempt), self._state.now
        if sent > now.key:  # another process may have moved on, and told the device
            now = await queries(self._state.refresh)
        if sent > now.key:
            self._require_up_to_date()
            raise Refused("malformed", f"round {envelope.round} has not been opened")
        if sent not in (now.key, now.before):
            raise Refused("late", f"round {envelope.round} is closed; ask for the present one")
        return envelope.number, bool(envelope.body)

    async def report(self, payload: bytes, queries: BoundedExecutor) -> Submission:
        """A report that counts if it is the first of its device in the open round."""
        envelope = await self._envelope(payload, "report", queries)
        now = self._state.now
        if not now.open_for(envelope.round, envelope.attempt):
            # Another process may have moved on, and told the device.
            now = await queries(self._state.refresh)
            self._require_up_to_date()
        mark = records.mark_of(envelope.nonce, envelope.body)
        if not now.open_for(envelope.round, envelope.attempt):
            await self._refuse_closed(envelope, mark, now, queries)
        if not now.asks(envelope.number):
            raise Refused("not_selected", "this device is not asked in this round")
        self._check_body(envelope)
        joined = not now.asked(envelope.number)
        return Submission(
            envelope.round, envelope.attempt, envelope.number, mark, envelope.body, joined
        )

    def _require_up_to_date(self) -> None:
        """Raises while changed terms are being taken up: what was sent under them is not refused
        for good, since it has cost its sender."""
        if self._state.outdated:
            raise Refused("overload", "the server takes up changed terms; come again later")

    async def _envelope(
        self, payload: bytes, purpose: Purpose, queries: BoundedExecutor
    ) -> Envelope:
        envelope = read_or_refuse(open_envelope, payload)
        key = self._keys.get(envelope.number)
        if key is None and self._database.shared:
            # It may have enrolled with another process.
            found = await queries(lambda: self._look_up_key(envelope.number))
            if found is not None:
                self.enrolled(envelope.number, found)
                key = self._keys.get(envelope.number)
        if key is None:
            raise Refused("unknown_device", "no such device has enrolled; enrol with an invitation")
        if not envelope.signed_by(key, self._terms.federation, purpose):
            raise Refused("bad_signature", "the signature is not that of the enrolled device")
        return envelope

    def _look_up_key(self, number: int) -> bytes | None:
        with self._database.reading() as link:
            return records.public_key(link, number)

    async def _refuse_closed(
        self,
        envelope: Envelope,
        mark: bytes,
        now: RoundSnapshot,
        queries: BoundedExecutor,
    ) -> None:
        """Raises what is to be said of a report for a round that is not open."""
        sent, current = (envelope.round, envelope.attempt), now.position
        if sent > (current.round, current.attempt):
            raise Refused("malformed", f"round {envelope.round} has not been opened")

        def find() -> dict[int, bytes]:
            with self._database.reading() as link:
                return records.marks(link, *sent, [envelope.number])

        if (await queries(find)).get(envelope.number) == mark:
            raise Refused("replay", "this report was accepted before")
        raise Refused("late", f"round {envelope.round} is closed; the report did not count")

    def _check_masked(self, envelope: Envelope) -> None:
        """Check a masked update. Only its size can be seen, and that its seed is sealed by the same
        device; otherwise the helper would refuse the whole sum."""
        terms, round, attempt = self._terms, envelope.round, envelope.attempt
        name, numbers = self._asked_for(round)
        place = round, attempt
        record = read_or_refuse(decode_masked, envelope.body, terms, *place, numbers).record
        key = self._keys[envelope.number].public_bytes_raw()
        bound = binding(terms, *place, name, numbers if terms.contributes else None)
        if record.device != key or not is_signed(record, bound):
            raise Refused(
                "bad_signature", "the sealed seed was not signed by the enrolled device for this"
            )

    def _check_shared(self, envelope: Envelope, link: CheckedSum) -> None:
        """Check shares. Without a key only their size can be seen, and that the same device has
        signed what travels."""
        terms, place = self._terms, (envelope.round, envelope.attempt)
        name, numbers = self._asked_for(envelope.round)
        form = form_of(self._algorithm, link, envelope.round, numbers)
        found = read_or_refuse(shared.decode_shared, envelope.body, *place, form.elements)
        bound = binding(terms, *place, name, numbers)
        key = self._keys[envelope.number].public_bytes_raw()
        if found.record.device != key or not shared.is_signed(found.record, bound):
            raise Refused(
                "bad_signature", "the shares were not signed by the enrolled device for this"
            )
        if not shared.fits(found.record, found.travelled, form.elements):
            raise Refused("malformed", "something else has travelled than what was signed")

    def _asked_for(self, round: int) -> tuple[bytes, int]:
        """The name of the open round's model, and the numbers of a message; made once."""
        if self._named[0] != round:
            version = self._state.now.versions.get(round)
            if version is None:
                raise Refused("late", f"round {round} is closed; the report did not count")
            rows, width = self._algorithm.report_shape(version.view)
            self._named = round, model_name(version.view.items), rows * width
        return self._named[1:]

    def _check_body(self, envelope: Envelope) -> None:
        if self._terms.link.checking is not None:
            self._check_shared(envelope, self._terms.link.checking)
            return
        if self._terms.secure_sum is not None:
            self._check_masked(envelope)
            return
        terms = self._terms
        reports = read_or_refuse(
            decode_report,
            envelope.body,
            sender=envelope.number,
            n_items=terms.n_rows,
            width=terms.width,
            round=envelope.round,
            max_rows=terms.max_rows,
        )
        values = reports.values
        if terms.counts_senders and (values[:, -1] != int(GRID)).any():
            raise Refused("malformed", "a row does not count its sender once")
        if values.size and max(int(values.max()), -int(values.min())) > self._largest:
            raise Refused("malformed", "a value is larger than an honest device can send")


# How devices come to a server: an invitation's token and a key that the device proves to hold, or,
# where places are open to all, work on a challenge in the place of a token (`places`).
# Anybody can post a guess, so guesses have a thread and places of their own, never wait for
# whoever writes to the database, and are answered after a while: those who are enrolled do not
# notice them.

LONGEST_ENROLMENT = 4096
_WAITING = 64
"""Enrolments that wait for the database."""


class Enrolments:
    def __init__(
        self,
        federation: str,
        database: Database,
        places: Places,
        *,
        admission_key: Ed25519PrivateKey | None,
        body_seconds: float,
        guess_seconds: float,
        enrolled: Callable[[int, bytes], None],
    ) -> None:
        """`admission_key` is there if reports come through a shuffler; `enrolled` is called with
        the number and key of every device that comes, also again."""
        self._federation, self._database, self._places = federation, database, places
        self._admission_key, self._enrolled = admission_key, enrolled
        self._body_seconds = body_seconds
        self._executor, self._tarpit = (
            BoundedExecutor("the server", _WAITING),
            Tarpit(guess_seconds),
        )

    def close(self) -> None:
        self._executor.close()

    async def take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `POST /v1/enrol`."""
        body = await read_body(scope, receive, LONGEST_ENROLMENT, self._body_seconds)
        found = _spoken(body)
        if "challenge" in found:
            number, key = await self._places.take(scope, found)
        else:
            number, key = await self._with_token(found)
        self._enrolled(number, key)
        told: dict[str, int | str] = {"number": number}
        if self._admission_key is not None:
            told["admission"] = admit(self._admission_key, self._federation, key).hex()
        await answer_json(send, told)

    async def _with_token(self, found: dict[str, Any]) -> tuple[int, bytes]:
        token, key, signature = _enrolment(found)
        try:
            return await self._executor(lambda: self._enrol(token, key, signature)), key
        except Refused as error:
            if error.reason in ("bad_token", "bad_signature"):
                await self._tarpit()
            raise

    def _enrol(self, token: bytes, key: bytes, signature: bytes) -> int:
        """What costs least comes first, and nothing is locked for somebody without an
        invitation."""
        with self._database.reading() as link:
            known = records.is_invited(link, token)
            out = None if known else operating.withdrawn(link, token)
        if out is not None:  # no stranger's guess: the token says who asks
            raise Refused("shut_out", out)
        if not known:
            raise _not_good()
        if not is_proven(key, self._federation, token, signature):
            raise Refused("bad_signature", "the enrolment was not signed with the key it brings")
        with self._database.writing() as link:
            number = records.enrol(link, token, key)
            if number is None and records.number_of_key(link, key) is not None:
                raise Refused("duplicate", KEY_IN_USE)
            if number is not None:
                operating.enrolled(link, number)
                records.seen(link, [number])
        if number is None:
            raise _not_good()
        return number


def _not_good() -> Refused:
    return Refused("bad_token", "the invitation is not good, or was used by another device")


def _spoken(body: bytes) -> dict[str, Any]:
    """What was posted, in this version of the protocol."""
    found = table_of(body)
    other = f"this server speaks version {PROTOCOL} of the protocol; install its release"
    if found.get("protocol") != PROTOCOL:
        raise Refused("version", other)
    return found


def _enrolment(found: dict[str, Any]) -> tuple[bytes, bytes, bytes]:
    """Token, public key and signature of an enrolment."""
    try:
        token, key = bytes.fromhex(found["token"]), bytes.fromhex(found["public_key"])
        signature = bytes.fromhex(found["signature"])
    except (KeyError, TypeError, ValueError):
        raise Refused("malformed", "token, public_key and signature must be hexadecimal") from None
    if is_weak(key):
        raise Refused("malformed", "a public key has 32 bytes and is one device's alone")
    if len(signature) != SIGNATURE_BYTES:
        raise Refused("malformed", f"a signature has {SIGNATURE_BYTES} bytes")
    return token, key, signature
