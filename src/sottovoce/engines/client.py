"""The device's side of HTTPS: few bytes, no connection held open, one authority trusted. A device
posts what its door has let go, and nothing else.

Whatever goes wrong becomes `Unreachable` or `KeyTrouble` with one sentence. Nothing that a server
answers is trusted before it was measured: bodies have a limit, compressed ones are unpacked up to
it, and a download that was cut off goes on where it stopped.

No tag, date or other mark of a server is ever sent back: it would be a cookie. A server could put a
mark into a document, too, so a tag of the document's own bytes is no better.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpcore2

from sottovoce.engines.connection import Address, CountedStream, Timeouts, Traffic, size_of
from sottovoce.errors import (
    KeyTrouble,
    SottovoceError,
    Unreachable,
    Untrusted,
    UsageError,
    VersionMismatch,
    WrongClock,
)
from sottovoce.parties.leaving import Leaving, body_of
from sottovoce.wire import zstd
from sottovoce.wire.frames import SLOWEST_LINE
from sottovoce.wire.invitations import device_context

SMALL = 1 << 16
"""Limit of an answer that should be short, in bytes."""
_CODING = "zstd"
"""What a server may compress with: the same for every device."""
_TRIES = 3
_STEP = 1 << 20
"""A later call for the same document asks for its rest from a multiple of so many bytes."""
_LONGEST_WAIT = 86400.0
_OF_THE_WAY = (
    *(OSError, httpcore2.NetworkError),
    *(httpcore2.TimeoutException, httpcore2.ProtocolError),
)
"""What ends a request on its way."""


class Busy(Unreachable):
    """The server asks to come back later."""

    def __init__(self, sentence: str, retry_after: float) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after


class _CutOff(Unreachable):
    """The connection was lost; another one may work."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    etag: str
    """The server's mark, which nothing sends back."""
    body: bytes = field(repr=False)
    """Unpacked."""

    def table(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            raise Unreachable("the server's answer is not JSON as it should be") from None
        if not isinstance(content, dict):
            raise Unreachable("the server's answer is not a JSON object as it should be")
        return content

    @property
    def reason(self) -> str:
        """The one word by which a refusal is known; empty where there is none."""
        return self._told("error", 40)

    @property
    def detail(self) -> str:
        """The sentence that came with a refusal, fit for a log."""
        return self._told("detail", 300)

    def _told(self, name: str, limit: int) -> str:
        try:
            told = self.table().get(name, "")
        except Unreachable:
            return ""
        words = "".join(c if c.isprintable() else " " for c in str(told))
        return " ".join(words.split())[:limit]


def good(
    answer: Answer, what: str, url: str, name: str = "", refusal: type[SottovoceError] = Unreachable
) -> Answer:
    """The answer of a party, if it is one of success; raises what else it means. `what` says which
    kind of party it is, `name` which one if there are several."""
    who = f"{what} {name}" if name else f"the {what}"
    if 200 <= answer.status < 300:
        return answer
    if answer.status == 426:
        raise VersionMismatch(
            f"{who} speaks another version of the protocol; install the same release of Sottovoce "
            "on all sides"
        )
    if answer.status in (404, 405):
        raise Unreachable(f"what answers at {url} is no {what} of Sottovoce")
    said = f" ({answer.reason}: {answer.detail})" if answer.reason else ""
    raise refusal(f"{who} refused with status {answer.status}{said}")


@dataclass(slots=True)
class _Part:
    """What there is of a download, still packed."""

    path: str
    etag: str = ""
    encoding: str = ""
    body: bytearray = field(default_factory=bytearray)

    def clear(self) -> None:
        self.etag, self.encoding = "", ""
        self.body.clear()


class Client:
    """One server, as one device sees it."""

    def __init__(
        self,
        url: str,
        ca_pem: str,
        *,
        plaintext: bool = False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008
        longest: float = 900.0,
    ) -> None:
        self.url = url.rstrip("/")
        self.traffic = Traffic()
        self._address = _checked(self.url, plaintext)
        self._context = None if plaintext else device_context(ca_pem)
        self._timeouts = timeouts
        self._longest = longest
        self._kept: httpcore2.AsyncHTTPConnection | None = None
        self._line: CountedStream | None = None
        self._turn = asyncio.Lock()
        self._part = _Part("")

    async def rest(self) -> None:
        """Close the connection. The next request opens another one."""
        kept, self._kept, self._line = self._kept, None, None
        if kept is not None:
            await kept.aclose()

    async def get(self, path: str, *, limit: int = SMALL, packed: bool = False) -> Answer:
        """The answer. `packed` lets the server compress."""
        headers = {"accept-encoding": _CODING} if packed else {}
        return await self._twice("GET", path, headers, None, limit)

    async def post(
        self,
        path: str,
        leaving: Leaving,
        *,
        limit: int = SMALL,
        once: bool = False,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """The answer to what leaves. Sent again where the connection was lost before there was one,
        so it must be something that counts once; with `once` never."""
        return await self._twice("POST", path, headers, body_of(leaving), limit, once=once)

    async def download(self, path: str, limit: int, *, resume: bool = True) -> Answer:
        """Something large that never changes. What an interrupted download has brought is kept, in
        this call and, to `resume` it, for the next one, and only the rest is asked for."""
        if resume:
            return await self._download(path, limit)
        self._part = _Part("")
        try:
            return await self._download(path, limit)
        finally:
            self._part = _Part("")

    async def _download(self, path: str, limit: int) -> Answer:
        part = self._part = self._part if self._part.path == path else _Part(path)
        # Where an earlier download broke off was up to the server, which must not know it again.
        del part.body[len(part.body) // _STEP * _STEP :]
        for attempt in range(_TRIES):
            headers = {"accept-encoding": _CODING}
            if part.etag and part.body:
                headers["range"] = f"bytes={len(part.body)}-"
            else:
                part.clear()
            try:
                status, told, body = await self._exchange("GET", path, headers, None, limit, part)
            except _CutOff:
                if attempt + 1 == _TRIES:
                    raise
                continue
            if status == 416:
                part.clear()
                continue
            if status not in (200, 206):
                return self._answer(status, told, body, limit)
            whole, encoding, tag = bytes(part.body), part.encoding, part.etag
            part.clear()
            return Answer(200, tag, _unpack(whole, encoding, limit, self.url))
        raise Unreachable(f"the server at {self.url} does not give the rest of a download")

    async def _twice(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limit: int,
        *,
        once: bool = False,
    ) -> Answer:
        """A connection that was kept may be closed by the server just then: once more on a new
        one."""
        kept = self._kept is not None
        try:
            status, told, content = await self._exchange(method, path, headers, body, limit)
        except _CutOff:
            if once or not kept:
                raise
            status, told, content = await self._exchange(method, path, headers, body, limit)
        return self._answer(status, told, content, limit)

    def _answer(self, status: int, told: Mapping[str, str], body: bytes, limit: int) -> Answer:
        plain = _unpack(body, told.get("content-encoding", ""), limit, self.url)
        answer = Answer(status, told.get("etag", ""), plain)
        if status in (429, 503):
            wait = _seconds(told.get("retry-after", ""))
            raise Busy(f"the server at {self.url} is busy and asks to come back later", wait)
        if status >= 500:
            raise Unreachable(f"the server at {self.url} has a fault of its own (status {status})")
        if status < 200 or 300 <= status < 400:
            raise Unreachable(
                f"{self.url} points elsewhere (status {status}); put the federation's right "
                "address in with --server"
            )
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limit: int,
        part: _Part | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request and what came back, still packed. The body of a wanted download goes to
        `part`, also as far as it came before the connection was lost."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._longest + len(body or b"") / SLOWEST_LINE):
                    there = await self._open()
                    asked = self._address.request(
                        method, path, headers.items(), body, self._timeouts
                    )
                    self.traffic.requests += 1
                    before = self.traffic.received
                    answer = await there.handle_async_request(asked)
                    found = await self._receive(answer, limit, part)
                    # What came behind an answer is none to the next request.
                    if self.traffic.received - before == size_of(answer):
                        self._line = answer.extensions["network_stream"]
                    return found
            except (*_OF_THE_WAY, ValueError) as error:
                raise _trouble(error, self.url) from None
            finally:
                if self._kept is not None and not self._kept.is_available():
                    await self.rest()

    async def _receive(
        self, answer: httpcore2.Response, limit: int, part: _Part | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        told: dict[str, str] = {}
        for name, value in answer.headers:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            told[key] = f"{told[key]}, {text}" if key in told else text
        body = bytearray()
        wanted = part is not None and answer.status in (200, 206)
        if part is not None and wanted:
            body = part.body
            if answer.status == 200:
                part.clear()
                tag = told.get("etag", "")
                part.etag = tag if tag.startswith('"') else ""
                part.encoding = told.get("content-encoding", "")
            elif not _continues(told, part):
                part.clear()
                raise _CutOff(f"the server at {self.url} gave another part than was asked for")
        try:
            async for chunk in answer.aiter_stream():
                body += chunk
                if len(body) > limit:
                    body.clear()
                    raise Unreachable(
                        f"the server at {self.url} sends far more than it should; the answer was "
                        "thrown away"
                    )
        except _OF_THE_WAY as error:
            raise _CutOff(
                f"the server at {self.url} broke off in the middle of its answer"
            ) from error
        finally:
            await answer.aclose()
        return answer.status, told, b"" if wanted else bytes(body)

    async def _open(self) -> httpcore2.AsyncHTTPConnection:
        kept, line, self._line = self._kept, self._line, None
        if kept is not None:
            if line is not None and not kept.has_expired() and await line.is_quiet():
                return kept
            await self.rest()
        self._kept = self._address.connection(self._context, self.traffic)
        return self._kept


class ServiceClient(Client):
    """One service, as another one sees it. What they tell each other is no device's."""

    async def hand_over(self, path: str, body: bytes, token: str, *, limit: int = SMALL) -> Answer:
        """The answer to `body`, sent in the name of whoever has the token; sent again as in
        `post`."""
        headers = {"authorization": f"Bearer {token}"}
        return await self._twice("POST", path, headers, body, limit)


def loopback(url: str) -> bool:
    """Whether a URL points at this machine."""
    try:
        host = Address.of(url).host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked(url: str, plaintext: bool) -> Address:
    try:
        address = Address.of(url)
    except ValueError:
        raise UsageError(
            f"{url!r} is no address of a server; it must begin with https://"
        ) from None
    if not address.secure and not plaintext:
        raise UsageError(
            f"{url} is not encrypted; use https://, or --plaintext for a trial on this machine"
        )
    if plaintext and not loopback(url):
        raise UsageError(f"--plaintext is for a server on this machine only, not for {url}")
    return dataclasses.replace(address, secure=False) if plaintext else address


def _continues(told: Mapping[str, str], part: _Part) -> bool:
    same = told.get("etag", "") == part.etag
    same = same and told.get("content-encoding", "") == part.encoding
    return same and told.get("content-range", "").startswith(f"bytes {len(part.body)}-")


def _seconds(told: str) -> float:
    try:
        return min(max(float(int(told)), 0.0), _LONGEST_WAIT)
    except ValueError:
        return 0.0


def _unpack(body: bytes, encoding: str, limit: int, url: str) -> bytes:
    """Undo a content encoding, never to more than `limit` bytes."""
    try:
        if encoding in ("", "identity") or not body:
            plain = body
        elif encoding == _CODING:
            plain = zstd.decompress(body, limit + 1)
        else:
            raise Unreachable(f"the server at {url} answers in an encoding nobody asked for")
    except ValueError:
        raise Unreachable(f"the server at {url} sent a compressed answer that is broken") from None
    if len(plain) > limit:
        raise Unreachable(f"the server at {url} sends far more than it should")
    return plain


_CLOCK = "or this machine's clock is wrong: look at the date here first"
_CERTIFICATES = {
    9: f"the certificate of the server at {{url}} is not valid yet, {_CLOCK}",
    10: f"the certificate of the server at {{url}} has expired, {_CLOCK}; the operator renews it "
    "with `sottovoce keys renew`",
    62: "the certificate of the server at {url} is for another name; the operator adds the name "
    "with `sottovoce keys renew --host`",
    64: "the certificate of the server at {url} is for another address; the operator adds the "
    "address with `sottovoce keys renew --host`",
}
_OF_TIME = (9, 10)
_STRANGER = (
    "the server at {url} is not of the authority that the invitation names; nothing was sent to "
    "it: ask the operator for a new invitation"
)


def _trouble(error: BaseException, url: str) -> Unreachable | KeyTrouble:
    """One sentence for whatever went wrong on the way."""
    if isinstance(error, Unreachable):
        return error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = _CERTIFICATES.get(cause.verify_code, _STRANGER).format(url=url)
            return WrongClock(words) if cause.verify_code in _OF_TIME else Untrusted(words)
        if isinstance(cause, ssl.SSLError) and cause.reason in (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "PACKET_LENGTH_TOO_LONG",
        ):
            return Unreachable(f"what listens at {url} does not speak TLS; nothing was sent to it")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore2.ConnectError):
        return Unreachable(f"no server answers at {url}; it may be down, or the address wrong")
    if isinstance(error, TimeoutError | httpcore2.TimeoutException):
        return Unreachable(f"the server at {url} did not answer in time")
    if isinstance(error, ValueError | httpcore2.LocalProtocolError):
        return Unreachable(f"{url} cannot be asked for that")
    if isinstance(error, httpcore2.ProtocolError) and error.__cause__ is not None:
        return Unreachable(f"what listens at {url} does not answer as a web server would")
    return _CutOff(f"the server at {url} closed the connection without an answer")
