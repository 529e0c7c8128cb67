"""Refusals: what is said to the sender, and how often it was said."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, ParamSpec, TypeVar

from sottovoce.errors import MessageError, VersionMismatch

P = ParamSpec("P")
T = TypeVar("T")

SHUT_OUT_BY_OPERATOR = "the operator has shut this device out"
WITHDRAWN = "the operator has withdrawn this invitation"
"""What a device is told that was shut out, unless the server did that by itself."""

Reason = Literal[
    "unknown_device",
    "shut_out",
    "wrong_certificate",
    "bad_signature",
    "replay",
    "second_submission",
    "oversized",
    "malformed",
    "late",
    "not_selected",
    "version",
    "bad_token",
    "overload",
    "unavailable",
    "unknown_proxy",
    "wrong_key",
    "too_few",
    "undecryptable",
    "out_of_range",
    "duplicate",
    "plaintext",
    "handshake",
    "unknown_account",
    "bad_mac",
    "bad_admission",
    "early",
    "other_terms",
    "too_often",
    "too_many",
    "bad_pass",
    "session",
    "tag",
    "unknown_server",
    "missing",
    "other_origin",
    "no_place",
    "bad_work",
]

STATUS: dict[Reason, int] = {
    "unknown_device": 401,
    "shut_out": 403,
    "bad_signature": 401,
    "replay": 409,
    "second_submission": 409,
    "oversized": 413,
    "malformed": 400,
    "late": 410,
    "not_selected": 403,
    "version": 426,
    "bad_token": 403,
    "overload": 503,
    "unavailable": 503,
    "unknown_proxy": 401,
    "wrong_key": 409,
    "too_few": 400,
    "unknown_account": 401,
    "bad_mac": 401,
    "bad_admission": 403,
    "early": 409,
    "other_terms": 409,
    "too_often": 429,
    "too_many": 400,
    "bad_pass": 403,
    "session": 401,
    "tag": 401,
    "unknown_server": 401,
    "duplicate": 400,
    "undecryptable": 409,
    "other_origin": 403,
    "no_place": 403,
    "bad_work": 403,
}


class Refused(MessageError):
    """A message that is not taken, and why. Its sender reads the text."""

    def __init__(
        self, reason: Reason, detail: str, *, status: int | None = None, retry_seconds: int = 0
    ) -> None:
        """`retry_seconds`: when the sender may come back, where that is not the same for all."""
        super().__init__(detail)
        self.reason, self.retry_seconds = reason, retry_seconds
        self.status = STATUS[reason] if status is None else status


def read_or_refuse(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What was sent, or a refusal of what cannot be read."""
    try:
        return read(*args, **kwargs)
    except VersionMismatch as error:
        raise Refused("version", str(error)) from None
    except MessageError as error:
        raise Refused("malformed", str(error)) from None


class RefusalCounts:
    """Counts by reason. Any thread may count; the writer takes what is new to the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._new: Counter[str] = Counter()

    def count(self, reason: Reason) -> None:
        with self._lock:
            self._new[reason] += 1

    @contextlib.contextmanager
    def storing(self) -> Iterator[dict[str, int]]:
        """What is new, to be stored within; it stays new where that raises."""
        with self._settling:
            with self._lock:
                taken, self._new = self._new, Counter()
            try:
                yield dict(taken)
            except BaseException:
                with self._lock:
                    self._new.update(taken)
                raise

    @contextlib.contextmanager
    def settled(self) -> Iterator[dict[str, int]]:
        """What is not stored. Within, nothing is being stored: the sum with what is, is right."""
        with self._settling:
            with self._lock:
                new = dict(self._new)
            yield new


def count_handshakes(context: ssl.SSLContext, tally: RefusalCounts) -> None:
    """Count connections that `context` turns away before there is a request."""

    class Counting(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                tally.count(_reason(error))
                raise

    context.sslobject_class = Counting


def _reason(error: ssl.SSLError) -> Reason:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "wrong_certificate"
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST"):
        return "plaintext"
    return "handshake"
