"""The device's HTTPS client against servers that behave and servers that do not."""

import asyncio
import gzip
import re
import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from fake_server import FakeServer, Reply
from forwarder import Forwarder
from talk import until

from sottovoce.engines import client as client_module
from sottovoce.engines.client import Busy, Client, loopback
from sottovoce.engines.connection import Timeouts
from sottovoce.errors import ConfigError, KeyTrouble, Unreachable, UsageError
from sottovoce.parties.leaving import Booked, let_go
from sottovoce.stores import keys

LARGE = np.random.default_rng(7).integers(0, 40, 400_000, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def ca(folder):
    return keys.authority_pem(folder)


@pytest.fixture
def serve(folder):
    """Start a server with this answer; stopped at the end of the test."""
    started = []

    def start(answer, context=None):
        server = FakeServer(answer, context or keys.server_context(folder))
        started.append(server.__enter__())
        return server

    yield start
    for server in started:
        server.__exit__()


def gone(body):
    """As a door would let it go."""
    return let_go(body, Booked((0,), "report", len(body), 0.0))


def ask(client, *calls):
    """The results of calls on one client, within one event loop."""

    async def all_of_them():
        try:
            return [await call(client) for call in calls]
        finally:
            await client.rest()

    return asyncio.run(all_of_them())


def trouble(client, call, kind=Unreachable):
    """The one sentence that `call` ends with."""
    with pytest.raises(kind) as caught:
        ask(client, call)
    sentence = str(caught.value)
    assert sentence == " ".join(sentence.split())
    assert len(sentence) < 300
    return sentence


def test_a_request_has_few_headers_and_counts_its_bytes(serve, ca, folder):
    server = serve(lambda r: Reply(200, b'{"a": 1}', {"ETag": '"x"'}))
    with Forwarder(server.port) as forwarder:
        client = Client(f"https://127.0.0.1:{forwarder.port}", ca)
        (answer,) = ask(client, lambda c: c.get("/v1/round"))
        assert (answer.status, answer.etag, answer.table()) == (200, '"x"', {"a": 1})
        assert set(server.requests[0].headers) == {"host"}
        ask(client, lambda c: c.post("/v1/reports", gone(b"12345")))
        assert set(server.requests[1].headers) == {"host", "content-length"}
        assert client.traffic.requests == 2
        # What the client counts is what HTTP is; TLS comes on top of it, as the socket shows.
        head = f"GET /v1/round HTTP/1.1\r\nHost: 127.0.0.1:{forwarder.port}\r\n\r\n"
        post = f"POST /v1/reports HTTP/1.1\r\nHost: 127.0.0.1:{forwarder.port}\r\n"
        post += "Content-Length: 5\r\n\r\n12345"
        assert client.traffic.sent == len(head) + len(post)
        answered = 'HTTP/1.1 200 X\r\nContent-Length: 8\r\nETag: "x"\r\n\r\n{"a": 1}'
        assert client.traffic.received == 2 * len(answered)
        assert client.traffic.sent < forwarder.sent < client.traffic.sent + 2 * 1000
        assert client.traffic.received < forwarder.received < client.traffic.received + 2 * 2000


def test_one_connection_serves_a_round_and_none_is_kept_afterwards(serve, ca):
    server = serve(lambda r: Reply(200, b"{}"))

    async def round(client):
        for _ in range(3):
            await client.get("/v1/round")
        await client.post("/v1/reports", gone(b"x"))
        open_within = server.open_connections
        await client.rest()
        return open_within

    client = Client(server.url, ca)
    assert ask(client, round) == [1]
    assert {request.connection for request in server.requests} == {1}
    until(lambda: server.open_connections == 0)
    ask(client, round)
    assert server.connections == 2


def test_no_mark_of_a_server_is_ever_sent_back(serve, ca):
    """A tag, a date or a cookie of its own for each device would come back at each visit."""
    marks = {"Last-Modified": "Wed, 18 Nov 2026 20:00:00 GMT", "Set-Cookie": "you=17; Path=/"}

    def answer(request):
        n = len(server.requests)
        told = {"ETag": f'"you-{n}"', "Cache-Control": "no-cache", **marks}
        if request.path == "/v1/round":
            return Reply(200, b"{}", told)
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if start is None:
            return Reply(200, LARGE, {**told, "ETag": '"you-and-nobody-else"'}, cut_after=70_001)
        span = f"bytes {start[1]}-{len(LARGE) - 1}/{len(LARGE)}"
        told |= {"ETag": '"you-and-nobody-else"', "Content-Range": span}
        return Reply(206, LARGE[int(start[1]) :], told)

    server = serve(answer)
    client = Client(server.url, ca)
    for _ in range(3):
        ask(client, lambda c: c.get("/v1/round"), lambda c: c.get("/v1/round", packed=True))
        (got,) = ask(client, lambda c: c.download("/v1/model/3", len(LARGE)))
        assert got.body == LARGE
    sent = [request.headers for request in server.requests]
    assert {name for headers in sent for name in headers} == {"host", "accept-encoding", "range"}
    assert not any("you" in value for headers in sent for value in headers.values())


def test_an_answer_that_nothing_has_changed_was_not_asked_for(serve, ca):
    server = serve(lambda r: Reply(304, headers={"ETag": '"7"'}))
    assert "points elsewhere" in trouble(Client(server.url, ca), lambda c: c.get("/v1/round"))


def test_a_server_that_is_not_there(ca):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sentence = trouble(Client(f"https://127.0.0.1:{port}", ca), lambda c: c.get("/v1/round"))
    assert "no server answers" in sentence
    sentence = trouble(Client("https://nowhere.invalid", ca), lambda c: c.get("/v1/round"))
    assert "no server answers" in sentence


def test_a_large_message_has_the_time_of_a_slow_line():
    message = bytes(16 << 20) + b"end"
    heard = bytearray()

    def answer(listener):
        link, _ = listener.accept()
        with link:
            time.sleep(0.5)  # the line is full
            while not heard.endswith(b"end"):
                heard.extend(link.recv(1 << 20))
            time.sleep(0.5)
            link.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener], daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = Client(url, "", plaintext=True, timeouts=Timeouts(0.2, 0.2))
        (got,) = ask(client, lambda c: c.post("/v1/reports", gone(message)))
        thread.join(10)
    assert got.status == 204
    assert heard.endswith(message)


def test_another_authority(serve, tmp_path):
    keys.init_keys(tmp_path)
    server = serve(lambda r: Reply(200))
    client = Client(server.url, keys.authority_pem(tmp_path))
    sentence = trouble(client, lambda c: c.post("/v1/reports", gone(b"secret")), KeyTrouble)
    assert "not of the authority" in sentence
    assert server.requests == []


def test_a_certificate_for_another_host_or_address(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "LOOPBACK", ("localhost",))
    keys.init_keys(tmp_path)
    server = serve(lambda r: Reply(200), keys.server_context(tmp_path))
    client = Client(server.url, keys.authority_pem(tmp_path))
    assert "another address" in trouble(client, lambda c: c.get("/v1/round"), KeyTrouble)
    monkeypatch.setattr(keys, "LOOPBACK", ("127.0.0.1",))
    keys.init_keys(tmp_path / "b")
    server = serve(lambda r: Reply(200), keys.server_context(tmp_path / "b"))
    url = server.url.replace("127.0.0.1", "localhost")
    client = Client(url, keys.authority_pem(tmp_path / "b"))
    assert "another name" in trouble(client, lambda c: c.get("/v1/round"), KeyTrouble)


@pytest.mark.parametrize(
    ("days", "words"), [(-40, "has expired.*clock.*date"), (40, "not valid yet.*clock.*date")]
)
def test_a_certificate_outside_its_time_hints_at_the_clock(serve, tmp_path, days, words):
    made = datetime.now(UTC) + timedelta(days=days)
    keys.init_keys(tmp_path, days=30, now=made)
    context = keys.server_context(tmp_path, now=made)
    server = serve(lambda r: Reply(200), context)
    client = Client(server.url, keys.authority_pem(tmp_path))
    sentence = trouble(client, lambda c: c.get("/v1/round"), KeyTrouble)
    assert re.search(words, sentence)
    assert server.requests == []


def test_a_plaintext_server_gets_nothing(ca):
    heard = []

    def answer(listener):
        link, _ = listener.accept()
        with link:
            heard.append(link.recv(65536))
            link.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener])
        thread.start()
        client = Client(f"https://127.0.0.1:{listener.getsockname()[1]}", ca)
        sentence = trouble(client, lambda c: c.post("/v1/reports", gone(b"secret")))
        thread.join(10)
    assert "does not speak TLS" in sentence
    assert b"secret" not in heard[0]
    assert b"POST" not in heard[0]


def test_plaintext_needs_its_flag_and_loopback(serve, ca):
    with FakeServer(lambda r: Reply(200, b"{}")) as server:
        with pytest.raises(UsageError, match="--plaintext"):
            Client(server.url, ca)
        (answer,) = ask(Client(server.url, "", plaintext=True), lambda c: c.get("/v1/round"))
        assert answer.status == 200
    for url in ("http://example.org", "https://192.0.2.7:8443", "http://10.0.0.1"):
        with pytest.raises(UsageError, match="this machine only"):
            Client(url, ca, plaintext=True)
    for url in ("", "nonsense", "ftp://localhost", "https://"):
        with pytest.raises(UsageError, match="no address"):
            Client(url, ca)
    tls = serve(lambda r: Reply(200))
    trouble(Client(tls.url, "", plaintext=True), lambda c: c.get("/v1/round"))
    assert [loopback(u) for u in ("http://[::1]:1", "http://localhost", "http://a")] == [1, 1, 0]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("told", "seconds"), [("17", 17), ("", 0), ("soon", 0), ("-5", 0), ("9" * 30, 86400)]
)
def test_retry_after(serve, ca, status, told, seconds):
    server = serve(lambda r: Reply(status, b"{}", {"Retry-After": told} if told else {}))
    with pytest.raises(Busy) as caught:
        ask(Client(server.url, ca), lambda c: c.get("/v1/round"))
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("status", [500, 502, 301, 307])
def test_faults_and_redirects_are_one_sentence(serve, ca, status):
    elsewhere = {"Location": "https://127.0.0.1:1/"}
    server = serve(lambda r: Reply(status, b"<html>", elsewhere))
    assert str(status) in trouble(Client(server.url, ca), lambda c: c.get("/v1/round"))


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 300,
        b"HTTP/1.1 abc def\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10**6 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: zstd\r\n\r\nnot zstd at all",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"{}", mtime=0),
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\n\r\nx",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10**5 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 10**5,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_garbage_is_one_sentence(serve, ca, raw):
    server = serve(lambda r: Reply(raw=raw))
    trouble(Client(server.url, ca), lambda c: c.get("/v1/round"))
    trouble(Client(server.url, ca), lambda c: c.download("/v1/model/1", 10**6))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 50_000, b"null"])
def test_an_answer_that_is_no_table(serve, ca, body):
    server = serve(lambda r: Reply(200, body))
    (answer,) = ask(Client(server.url, ca), lambda c: c.get("/v1/round"))
    with pytest.raises(Unreachable, match="JSON"):
        answer.table()
    assert (answer.reason, answer.detail) == ("", "")


@pytest.mark.parametrize("body", [b"secret", bytearray(b"secret"), "secret", None])
def test_what_no_door_has_let_go_is_not_sent(serve, ca, body):
    server = serve(lambda r: Reply(200, b""))
    sentence = trouble(Client(server.url, ca), lambda c: c.post("/v1/reports", body), ConfigError)
    assert "what its door has let go" in sentence
    assert "secret" not in sentence
    assert not server.requests


def test_a_refusal_is_fit_for_a_log(serve, ca):
    body = b'{"error": "late", "detail": "a\\n\\u001b[31mb\\u0000 ' + b"c" * 1000 + b'"}'
    server = serve(lambda r: Reply(410, body))
    (answer,) = ask(Client(server.url, ca), lambda c: c.post("/v1/reports", gone(b"")))
    assert answer.reason == "late"
    assert len(answer.detail) <= 300
    assert answer.detail.startswith("a [31mb c")
    assert answer.detail.isprintable()


def test_an_endless_answer_is_thrown_away(serve, ca):
    server = serve(lambda r: Reply(200, LARGE))
    assert "far more" in trouble(Client(server.url, ca), lambda c: c.get("/v1/round"))


def test_a_small_answer_that_unpacks_to_much_is_thrown_away(serve, ca):
    packed = zstd(bytes(50_000_000))
    server = serve(lambda r: Reply(200, packed, {"Content-Encoding": "zstd"}))
    assert "far more" in trouble(Client(server.url, ca), lambda c: c.get("/v1/round", packed=True))


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


def parts(content, encoding="", etag='"v1"', cuts=()):
    """A server's answer with ranges, which cuts the n-th answer after so many bytes of its body."""
    left = list(cuts)

    def answer(request):
        told = {"ETag": etag, "Accept-Ranges": "bytes"}
        if encoding:
            told["Content-Encoding"] = encoding
        start, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if asked and request.headers.get("if-range") in (None, etag):
            start, status = int(asked[1]), 206
            told["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return Reply(status, content[start:], told, cut_after=left.pop(0) if left else None)

    return answer


@pytest.mark.parametrize("encoding", ["", "zstd"])
def test_an_interrupted_download_goes_on_where_it_stopped(serve, ca, encoding):
    content = zstd(LARGE) if encoding else LARGE
    server = serve(parts(content, encoding, cuts=[100_000, 50_000]))
    client = Client(server.url, ca)
    (answer,) = ask(client, lambda c: c.download("/v1/model/3", len(LARGE)))
    assert answer.body == LARGE
    ranges = [request.headers.get("range") for request in server.requests]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert client.traffic.received < len(content) + 1000


def test_the_rest_of_a_download_comes_with_the_next_call(serve, ca):
    """From a multiple of a step: the place where a server cut it off would be a mark."""
    larger = 5 * LARGE
    step = client_module._STEP
    server = serve(parts(larger, cuts=[step + 50_000, 1000, 2000, 3000]))
    client = Client(server.url, ca)
    with pytest.raises(Unreachable, match="broke off"):
        ask(client, lambda c: c.download("/v1/model/3", len(larger)))
    assert server.requests[-1].headers["range"] == f"bytes={step + 51_000}-"
    (answer,) = ask(client, lambda c: c.download("/v1/model/3", len(larger)))
    assert answer.body == larger
    ranges = [request.headers.get("range") for request in server.requests[3:]]
    assert ranges == [f"bytes={step}-", f"bytes={step + 3000}-"]
    # Another model begins from its beginning.
    ask(client, lambda c: c.download("/v1/model/4", len(larger)))
    assert "range" not in server.requests[-1].headers


def test_who_is_not_to_be_known_begins_a_download_anew(serve, ca):
    """A server that cut it off where it chose would know the device again by where it goes on."""
    larger = 5 * LARGE
    server = serve(parts(larger, cuts=[client_module._STEP + 50_000, 1000, 2000, 3000]))
    client = Client(server.url, ca)
    path = "/v1/model/3"
    with pytest.raises(Unreachable, match="broke off"):
        ask(client, lambda c: c.download(path, len(larger), resume=False))
    first = len(server.requests)
    (answer,) = ask(client, lambda c: c.download(path, len(larger), resume=False))
    assert answer.body == larger
    assert "range" not in server.requests[first].headers
    # Nor is what was cut off then gone on with when the device says who it is.
    server = serve(parts(larger, cuts=[client_module._STEP + 50_000, 1000, 2000]))
    client = Client(server.url, ca)
    with pytest.raises(Unreachable, match="broke off"):
        ask(client, lambda c: c.download(path, len(larger), resume=False))
    first = len(server.requests)
    ask(client, lambda c: c.download(path, len(larger)))
    assert "range" not in server.requests[first].headers


def test_a_model_that_changed_in_between_is_fetched_whole(serve, ca):
    other = LARGE[::-1]
    calls = [parts(LARGE, cuts=[60_000]), parts(other, etag='"v2"')]
    server = serve(lambda r: calls[min(len(server.requests) - 1, 1)](r))
    (answer,) = ask(Client(server.url, ca), lambda c: c.download("/v1/model/3", len(LARGE)))
    assert answer.body == other


@pytest.mark.parametrize(
    "wrong",
    [
        Reply(206, LARGE[10:], {"ETag": '"v1"', "Content-Range": "bytes 10-399999/400000"}),
        Reply(206, LARGE[60_000:], {"ETag": '"v2"', "Content-Range": "bytes 60000-399999/400000"}),
        Reply(206, LARGE[60_000:], {"ETag": '"v1"'}),
        Reply(416, b"", {"Content-Range": "bytes */400000"}),
    ],
)
def test_a_wrong_part_is_never_put_together(serve, ca, wrong):
    first = parts(LARGE, cuts=[60_000])
    server = serve(lambda r: wrong if len(server.requests) == 2 else first(r))
    (answer,) = ask(Client(server.url, ca), lambda c: c.download("/v1/model/3", len(LARGE)))
    assert answer.body == LARGE
    assert "range" not in server.requests[-1].headers


def test_without_a_strong_tag_a_download_begins_again(serve, ca):
    server = serve(parts(LARGE, etag='W/"v1"', cuts=[60_000]))
    (answer,) = ask(Client(server.url, ca), lambda c: c.download("/v1/model/3", len(LARGE)))
    assert answer.body == LARGE
    assert "range" not in server.requests[-1].headers


def test_a_download_that_is_gone_is_an_answer(serve, ca):
    server = serve(lambda r: Reply(410, b'{"error": "gone"}'))
    (answer,) = ask(Client(server.url, ca), lambda c: c.download("/v1/model/3", 1000))
    assert (answer.status, answer.reason) == (410, "gone")
