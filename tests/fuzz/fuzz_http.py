"""Requests, what may be done to them, and the two ways in which they reach a service: as an
application is called, and as bytes on a connection."""

import asyncio
import re
from dataclasses import dataclass, field

from sottovoce.services.kit.connections import PeerAddress, Visitor
from sottovoce.services.kit.serving import HttpListener
from sottovoce.services.server.application import ServerLimits as Limits
from sottovoce.wire.refusals import RefusalCounts

METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PURGE")
CLIENT, SERVER = ("127.0.0.1", 50_000), ("127.0.0.1", 8443)
_NUMBERS = (
    "0", "00", "1", "999999999", "1000000000", "4294967295", "4294967296", "-1", "+1", "1.0", "1e3",
    "0x1", "", "a", "٣", "²", "1/1", " 1", "9" * 400, "0" * 5000,
)  # fmt: skip
_QUERIES = (
    b"since=0", b"since=1", b"since=4294967295", b"since=-1", b"since=a", b"since=", b"since",
    b"since=0&since=1", b"since=%30", b"since=\xff", b"&&&=&", b"a" * 5000, b"since=" + b"9" * 4400,
    b";" * 900, b"&" * 900, b"%" * 300,
)  # fmt: skip
_LENGTHS = (
    b"", b"0", b"-1", b"+1", b"1e3", b"0x10", b" 7", b"7 ", b"7, 7", b"7;", b"\xb2", b"\xd9\xa3",
    b"18446744073709551615", b"18446744073709551616", b"9" * 4000, b"0" * 4400 + b"2",
    b"0" * 60 + b"2", b"99999999999", b"a",
)  # fmt: skip
_RANGES = (
    b"bytes=0-0", b"bytes=0-", b"bytes=-1", b"bytes=-0", b"bytes=-", b"bytes=5-4", b"bytes=1-2,3-4",
    b"bytes=999999999999999-", b"bytes=" + b"9" * 5000 + b"-", b"bytes=-" + b"9" * 16, b"lines=1-2",
    b"bytes=a-b", b"bytes=\xb2-", b"",
)  # fmt: skip
_CODINGS = (
    b"zstd", b"gzip", b"*", b"identity", b"gzip;q=0", b"zstd;q=1.1.1", b"gzip;q=....",
    b"zstd;q=0,*", b"zstd;q=", b";q=1", b"," * 900, b"\xff;q=\xff", b"gzip;" * 900, b"",
)  # fmt: skip
_TAGS = (b"*", b'"x"', b"W/*", b"," * 900, b"W/" * 900, b"\xff", b"", b'"' + b"a" * 9000 + b'"')
_TOKENS = (
    b"", b"Bearer", b"Bearer ", b"bearer x", b"Basic eDp4", b"Bearer " + b"a" * 64,
    b"Bearer \xff\xfe", b"Bearer " + b"a" * 9000, b"\0",
)  # fmt: skip


@dataclass(slots=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    query: bytes = b""
    headers: list = field(default_factory=list)
    pieces: list | None = None
    """Of the body as it arrives; in one where there are none."""
    length: bytes | None = b"right"
    """What Content-Length says: the truth, something else, or nothing."""
    chunked: bool = False

    def told(self):
        """All headers."""
        length = str(len(self.body)).encode() if self.length == b"right" else self.length
        said = [] if length is None else [(b"content-length", length)]
        if self.chunked:
            said = [(b"transfer-encoding", b"chunked")]
        return [*self.headers, *said]

    def arriving(self):
        return [self.body] if self.pieces is None else self.pieces


def address_of(template, choices, numbers):
    """A path; a star in the template stands for a number, or several with a slash between."""
    parts = []
    for part in template.split("*"):
        parts.append(part)
        parts.append(choices.pick(_NUMBERS) if choices.chance(5) else numbers)
    return "".join(parts[:-1])


def changed(request, choices, addresses):
    """The request with something about it changed, apart from its body."""
    for _ in range(1 + choices.below(3)):
        _change(request, choices, addresses)
    return request


def _change(request, choices, addresses):
    headers = request.headers
    match choices.below(16):
        case 0:
            request.length = choices.pick(_LENGTHS)
        case 1:
            size = len(request.body)
            off = choices.pick((size + 1, max(0, size - 1), size + 70_000, 2 * size, 1 << 33))
            request.length = str(off).encode()
        case 2:
            request.length = None
        case 3:
            request.chunked = True
        case 4:
            request.method = choices.pick(METHODS)
        case 5:
            request.path = choices.pick(addresses)[1].replace("*", choices.pick(_NUMBERS))
        case 6:
            request.path = _other_path(request.path, choices)
        case 7:
            request.query = choices.pick(_QUERIES)
        case 8:
            headers.append((b"range", choices.pick(_RANGES)))
        case 9:
            headers.append((b"accept-encoding", choices.pick(_CODINGS)))
        case 10:
            headers.append((choices.pick((b"if-none-match", b"if-range")), choices.pick(_TAGS)))
        case 11:
            kept = [pair for pair in headers if pair[0] != b"authorization"]
            headers[:] = [*kept, (b"authorization", choices.pick(_TOKENS))]
        case 12:
            headers.insert(0, (b"content-length", choices.pick(_LENGTHS)))
        case 13:
            headers.append((b"x-" + choices.bytes(3).hex().encode(), choices.bytes(60)))
            headers.append((b"expect", b"100-continue"))
        case 14:
            request.pieces = _pieces(request.body, choices)
        case _:
            headers.extend((b"a%d" % n, b"b" * choices.below(90)) for n in range(choices.below(99)))


def _other_path(path, choices):
    return choices.pick((
        path + "/", "/" + path, path.upper(), path + "\0", path + "?", path + "#", path + "%00",
        path.replace("/", "//"), path[:-1], "/" + "a" * 9000, "", "*", "/..", path + "/../health",
        path.replace("v1", "v2"), "/v1/model/é", "/v1/model/", "/v1/rounds//selected",
        "/v1/rounds/0/0/0/selected", "http://x" + path,
    ))  # fmt: skip


def _pieces(body, choices):
    """The body in pieces, some of them empty; perhaps not all of it."""
    cuts = sorted(choices.below(len(body) + 1) for _ in range(choices.below(4)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    if choices.chance(4):
        parts.append(b"")
    if choices.chance(4):
        parts.pop()
    return parts


# --- called ---------------------------------------------------------------------------------------


async def call(application, request):
    """The application gets the request as a server would hand it over."""
    pieces = request.arriving()
    waiting = [
        {"type": "http.request", "body": piece, "more_body": n + 1 < len(pieces)}
        for n, piece in enumerate(pieces)
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": SERVER,
        "client": CLIENT,
        "scheme": "https",
        "root_path": "",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogatepass"),
        "query_string": request.query,
        "headers": request.told(),
        "state": {},
    }

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message):
        pass

    await application(scope, receive, send)


# --- on a connection ------------------------------------------------------------------------------


def written(request, choices):
    """The request as bytes, and what some would send instead."""
    path = request.path.encode("utf-8", "surrogatepass") or b"/"
    query = b"?" + request.query if request.query else b""
    version = choices.pick((b"HTTP/1.1",) * 6 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1.1", b""))
    head = [b" ".join([request.method.encode(), path + query, version]), b"host: localhost"]
    ends = choices.pick((b"\r\n",) * 7 + (b"\n", b"\r"))
    head += [name + b": " + value for name, value in request.told()]
    body = b"".join(request.arriving())
    if request.chunked:
        body = _chunks(request.arriving(), choices)
    content = ends.join([*head, b"", b""]) + body
    if choices.chance(3):
        content = choices.damaged(content)
    if choices.chance(12):
        content *= 1 + choices.below(20)
    return content


def _chunks(pieces, choices):
    made = b""
    for piece in [*(piece for piece in pieces if piece), b""]:
        size = b"%x" % choices.other(len(piece), 64, one_in=10)
        extension = choices.pick((b"",) * 8 + (b";a=b", b" ", b";" * 200, b"\0"))
        made += size + extension + b"\r\n" + piece + (b"" if not piece else b"\r\n")
    return made + choices.pick(
        (b"\r\n",) * 5 + (b"a: b\r\n\r\n", b"", b"content-length: 3\r\n\r\n")
    )


class Transport(asyncio.Transport):
    """Takes everything that is written at once."""

    def __init__(self):
        super().__init__({"peername": CLIENT, "sockname": SERVER})
        self.said, self._closing = b"", False

    def write(self, data):
        if len(self.said) < 1 << 20:
            self.said += bytes(data)

    def is_closing(self):
        return self._closing

    def close(self):
        self._closing = True

    abort = close

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0


class OpenDoor:
    """Nobody is turned away."""

    def crowds(self, visitor):
        return False

    def gone(self, visitor):
        pass


class Connections:
    """The protocol that listeners speak, without sockets."""

    def __init__(self, application):
        self._listener = HttpListener(application, Limits(), None, RefusalCounts(), lambda: None)

    async def send(self, pieces):
        """What is answered to these bytes, by which the connection ends."""
        state, config = self._listener.server_state, self._listener.config
        transport = Transport()
        protocol = config.http_protocol_class(
            config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
        )
        protocol.visitor = Visitor(None, PeerAddress(CLIENT[0], False), False)
        protocol.door = OpenDoor()
        protocol.connection_made(transport)
        for piece in pieces:
            if transport.is_closing():
                break
            protocol.data_received(piece)
            await asyncio.sleep(0)
        while state.tasks and not transport.is_closing() and not _incomplete(protocol):
            await asyncio.wait(state.tasks, return_when=asyncio.FIRST_COMPLETED)
        protocol.connection_lost(None)
        while state.tasks:
            await asyncio.wait(state.tasks)
        return transport.said


def _incomplete(protocol):
    return protocol.cycle is not None and protocol.cycle.more_body


def failures(said):
    """Status lines of the server's own failures in what a connection has answered."""
    return re.findall(rb"HTTP/1\.1 (5\d\d)", said)
