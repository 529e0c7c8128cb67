"""Reading requests and writing answers of an ASGI application: bodies in pieces, documents whole or
in parts."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

from sottovoce.services.kit.connections import Share
from sottovoce.services.kit.documents import Document, etag_matches, wanted_range
from sottovoce.wire.refusals import Refused

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_CHUNK = 1 << 16
_DISCARD = 1 << 20
_LENGTH_DIGITS = 15
JSON = (b"content-type", b"application/json")
OCTETS = (b"content-type", b"application/octet-stream")
TEXT = (b"content-type", b"text/plain")
_STATUS_LINES = {
    int(status): f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


async def publish(scope: Scope, send: Send, document: Document, headers: Headers) -> None:
    """A document, a part of it, or word that the asker has it already."""
    known = header(scope, b"if-none-match")
    if known and etag_matches(known, document.etag):
        await answer(send, 304, [(b"etag", document.etag), *headers], b"")
        return
    tagged = _described(document, headers)
    size, status, body = len(document.body), 200, memoryview(document.body)
    asked, condition = header(scope, b"range"), header(scope, b"if-range")
    if asked and (not condition or condition == document.etag):
        part = wanted_range(asked, size)
        if part == "beyond":
            await answer(send, 416, [*tagged, (b"content-range", f"bytes */{size}".encode())], b"")
            return
        if part != "none":
            first, stop = part
            tagged.append((b"content-range", f"bytes {first}-{stop - 1}/{size}".encode()))
            status, body = 206, body[first:stop]
    await answer(send, status, tagged, body)


def ready_answer(document: Document, headers: Headers) -> tuple[bytes, bytes]:
    """What `publish` says to whoever asks for all of a document: a head, which has no end yet, and
    a body."""
    body = document.body
    return head_of(200, [*_described(document, headers), _length(body)]), body


def head_of(status: int, headers: Headers) -> bytes:
    """The head of an answer, without the empty line at its end."""
    parts = [_STATUS_LINES[status]]
    for name, value in headers:
        parts += name, b": ", value, b"\r\n"
    return b"".join(parts)


def _described(document: Document, headers: Headers) -> Headers:
    tagged = [(b"etag", document.etag), *headers]
    if document.coding != "identity":
        tagged.append((b"content-encoding", document.coding.encode()))
    return tagged


def _length(body: bytes | memoryview) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


async def answer(send: Send, status: int, headers: Headers, body: bytes | memoryview) -> None:
    if status not in (204, 304):
        headers = [*headers, _length(body)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # Large bodies go out piece by piece, as fast as they are taken, so that slow readers cost no
    # memory.
    for start in range(0, max(1, len(body)), _CHUNK):
        more = start + _CHUNK < len(body)
        piece = body[start : start + _CHUNK]
        await send({"type": "http.response.body", "body": piece, "more_body": more})


async def answer_json(send: Send, content: Any, *headers: tuple[bytes, bytes]) -> None:
    await answer(send, 200, [JSON, *headers], json.dumps(content).encode())


async def discard(receive: Receive) -> None:
    """Read on for a while, so that the sender gets to see the answer."""
    size = 0
    try:
        async with asyncio.timeout(1.0):
            while size < _DISCARD:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


async def read_body(
    scope: Scope, receive: Receive, limit: int, seconds: float, share: Share | None = None
) -> bytes:
    """The body of a request, never more than `limit` bytes of it, which must be here in time; as
    far as `share` has room for it."""
    if (content_length(scope) or 0) > limit:
        await discard(receive)
        raise Refused("oversized", f"a message has at most {limit} bytes")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(seconds) as clock:
            if share is not None:
                share.clock = clock
            while more and size <= limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused("malformed", "the message broke off")
                parts.append(message["body"])
                size, more = size + len(parts[-1]), message["more_body"]
                if share is not None:
                    share.take(parts[-1], lambda: b"".join(parts))
    except TimeoutError:
        if share is not None and share.was_cut:
            raise share.full from None
        raise Refused("malformed", "the message did not arrive in time") from None
    finally:
        if share is not None:
            share.clock = None
    if size > limit:
        if more:
            await discard(receive)
        raise Refused("oversized", f"a message has at most {limit} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def refuse(
    send: Send, status: int, error: str, detail: str, retry_seconds: int, *, close: bool = True
) -> None:
    """An error with its one word and its sentence; whoever may come back is told when. `close`
    frees the connection of one who has sent or wants too much."""
    headers: Headers = [JSON]
    if status in (429, 503):
        headers.append((b"retry-after", str(retry_seconds).encode()))
    if close and status in (413, 503):
        headers.append((b"connection", b"close"))
    content = json.dumps({"error": error, "detail": detail}).encode()
    await answer(send, status, headers, content)


def bears(scope: Scope, token: str) -> bool:
    """Whether a request carries this token."""
    return hmac.compare_digest(header(scope, b"authorization"), f"Bearer {token}".encode())


def bearer(scope: Scope) -> bytes:
    """The token that a request carries; empty where it carries none."""
    found = header(scope, b"authorization")
    return found.removeprefix(b"Bearer ") if found.startswith(b"Bearer ") else b""


def is_crowded(scope: Scope) -> bool:
    """Whether the request came on a connection above their limit."""
    return bool(scope.get("crowded"))


def header(scope: Scope, name: bytes) -> bytes:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return b""


def content_length(scope: Scope) -> int | None:
    """How many bytes a head announces; None where it does not. Of a number that no body reaches
    it is told only that it is one."""
    told = header(scope, b"content-length")
    if not told.isdigit():
        return None
    told = told.lstrip(b"0")  # of which there may be thousands, and `int` takes only so many
    return int(told or b"0") if len(told) <= _LENGTH_DIGITS else 10**_LENGTH_DIGITS


def number_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def table_of(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("malformed", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused("malformed", "the body is not a JSON object")
    return found
