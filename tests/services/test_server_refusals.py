"""Whatever is refused is counted, and the round goes on."""

import contextlib
import http.client
import json
import secrets
import socket
import ssl
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import (
    ITEMS,
    Client,
    Fleet,
    ServerProcess,
    enrolment,
    new_folder,
    selected,
    simulated,
    terms,
)
from talk import until

from sottovoce.core.messages import GRID, LIMIT
from sottovoce.stores import server as records
from sottovoce.stores.keys import authority_pem, device_context, init_keys
from sottovoce.stores.server_folder import invite
from sottovoce.wire.reports import encode_report, longest_report
from sottovoce.wire.signing import OVERHEAD


def message(round, rows, width=None, *, item=None, value=1, size=8, magic=b"SVU3"):
    """A report as bytes, put together by hand so that anything can be wrong with it."""
    width = terms().width if width is None else width
    items = range(rows) if item is None else item
    head = struct.pack("<4sBBHIII", magic, size, 0, width, round, rows, 24)
    steps = np.diff(np.array(items, dtype=np.int64), prepend=0).astype("<u4")
    numbers = steps.view(np.uint8).reshape(-1, 4).T.tobytes()
    values = value.to_bytes(size, "little", signed=True)
    return head + numbers + b"".join(bytes([byte]) * (rows * width) for byte in values)


class Refusals:
    """What was refused since the last look."""

    def __init__(self, client):
        self.client = client
        self.before = client.status()["refused"]

    def new(self):
        now = self.client.status()["refused"]
        found = {k: n - self.before.get(k, 0) for k, n in now.items() if n != self.before.get(k)}
        self.before = now
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("server")
    folder, fleet = new_folder(path, rounds=4, cohort_size=4, min_devices=8), Fleet()
    with ServerProcess(path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(state="open", round=0)
        yield folder, fleet, client, server


def test_each_reason_is_counted_while_the_round_goes_on(running):
    _, fleet, client, _ = running
    refusals = Refusals(client)
    view = client.model(0)
    asked = selected(client, 0, 0)
    a, b = asked[:2]
    other = next(n for n in range(8) if n not in asked)
    good = encode_report(fleet.devices.report(view, np.array([a])))
    limit = OVERHEAD + longest_report(terms().max_rows, terms().width)
    stranger = Ed25519PrivateKey.generate()
    largest = int(terms().triples * LIMIT * GRID)

    def sealed(body, number=a, **changes):
        round = changes.pop("round", 0)
        return fleet.sealed(number, round, changes.pop("attempt", 0), body, **changes)

    unknown = bytearray(sealed(good))
    unknown[4:8] = struct.pack("<I", 4_000_000_000)
    altered = bytearray(sealed(good))
    altered[-1] ^= 1
    old = bytearray(sealed(good))
    old[3:4] = b"0"
    wrong = [
        (bytes(unknown), 401, "unknown_device"),
        (sealed(good, key=stranger), 401, "bad_signature"),
        (sealed(good, federation="other"), 401, "bad_signature"),
        (sealed(good, purpose="check-in"), 401, "bad_signature"),
        (bytes(altered), 401, "bad_signature"),
        (bytes(old), 426, "version"),
        (sealed(message(0, 2, magic=b"SVU9")), 426, "version"),
        (sealed(good, other), 403, "not_selected"),
        (b"", 400, "malformed"),
        (b"SVE1" + bytes(300), 401, "bad_signature"),
        (secrets.token_bytes(300), 400, "malformed"),
        (sealed(b""), 400, "malformed"),
        (sealed(good[:-1]), 400, "malformed"),
        (sealed(b"\xff" * 60), 400, "malformed"),
        (sealed(struct.pack("<8d", *[float("nan")] * 8)), 400, "malformed"),
        (sealed(message(1, 2)), 400, "malformed"),
        (sealed(message(0, 2, width=9)), 400, "malformed"),
        (sealed(message(0, 2, item=[3, 3])), 400, "malformed"),
        (sealed(message(0, 1, item=[ITEMS])), 400, "malformed"),
        (sealed(message(0, terms().max_rows + 1, size=1)), 400, "malformed"),
        (sealed(message(0, 1, value=largest + 1)), 400, "malformed"),
        (sealed(message(0, 1, value=-largest - 1)), 400, "malformed"),
        (sealed(good, round=1), 400, "malformed"),
        (sealed(good, attempt=1), 400, "malformed"),
        (bytes(limit + 1), 413, "oversized"),
        (bytes(5_000_000), 413, "oversized"),
    ]
    expected = {}
    for payload, status, reason in wrong:
        got = client.post("/v1/reports", payload)
        assert (got.status, got.error) == (status, reason), got.body
        assert got.json()["detail"]
        expected[reason] = expected.get(reason, 0) + 1
    assert refusals.new() == expected
    assert client.status()["reported"] == 0

    first = sealed(good)
    assert client.post("/v1/reports", first).status == 204
    again = client.post("/v1/reports", first)
    assert (again.status, again.error) == (409, "replay")
    second = client.post("/v1/reports", sealed(good))
    assert (second.status, second.error) == (409, "second_submission")
    assert refusals.new() == {"replay": 1, "second_submission": 1}

    for number in asked[1:]:
        assert client.post("/v1/reports", fleet.report(number, view)).status == 204
    client.wait(round=1, state="open")
    assert np.array_equal(client.model(1).items, simulated(1, cohort_size=4))

    late = client.post("/v1/reports", sealed(good, b))
    assert (late.status, late.error) == (410, "late")
    again = client.post("/v1/reports", first)
    assert (again.status, again.error) == (409, "replay"), "it was accepted then"
    assert refusals.new() == {"late": 1, "replay": 1}


def test_replays_are_known_for_three_rounds(running):
    _, fleet, client, _ = running
    for round in (1, 2, 3):
        client.wait(round=round, state="open")
        fleet.run_round(client, selected(client, round, 0))
    client.wait(round=4, state="finished")
    kept = {r: s for (r, _, _), s in fleet.sent.items()}
    for round, reason in ((0, "late"), (1, "replay"), (3, "replay")):
        assert client.post("/v1/reports", kept[round]).error == reason


def test_enrolment_is_for_one_device(running):
    folder, _, client, _ = running
    refusals = Refusals(client)
    store = folder.database()
    invitation = invite(folder, store, "https://127.0.0.1", [50])[0]
    store.close()
    keys = [Ed25519PrivateKey.generate() for _ in range(2)]
    for _ in range(2):  # the answer may have been lost
        got = client.post("/v1/enrol", enrolment(invitation, keys[0]))
        assert (got.status, got.json()) == (200, {"number": 50})
    got = client.post("/v1/enrol", enrolment(invitation, keys[1]))
    assert (got.status, got.error) == (403, "bad_token")
    got = client.post("/v1/enrol", enrolment(invitation, keys[1], token=secrets.token_hex(32)))
    assert (got.status, got.error) == (403, "bad_token")
    assert refusals.new() == {"bad_token": 2}
    got = client.post("/v1/enrol", enrolment(invitation, keys[0], protocol=1))
    assert (got.status, got.error) == (426, "version")
    for body in (b"", b"[]", b"{", b'{"protocol": 2}', enrolment(invitation, keys[0], token="zz")):
        assert client.post("/v1/enrol", body).error == "malformed"
    assert (
        client.post("/v1/enrol", enrolment(invitation, keys[0], public_key="0011")).error
        == "malformed"
    )
    assert client.post("/v1/enrol", bytes(5000)).error == "oversized"
    assert refusals.new() == {"version": 1, "malformed": 6, "oversized": 1}


def test_only_the_operator_sees_the_status(running):
    _, _, client, _ = running
    for method, path in (
        ("GET", "/v1/operator/status"),
        ("GET", "/metrics"),
        ("POST", "/v1/operator/target"),
    ):
        assert client.ask(method, path).status == 401
        assert client.ask(method, path, headers={"Authorization": "Bearer x"}).status == 401
        odd = {"Authorization": "Bearer \u00e9".encode()}
        assert client.ask(method, path, headers=odd).status == 401
    assert client.operator("POST", "/v1/operator/target", {"rounds": "many"}).status == 400
    assert client.operator("POST", "/v1/operator/target", {"rounds": 1}).json() == {"rounds": 4}
    text = client.operator("GET", "/metrics").body.decode()
    assert "sottovoce_round 4.0" in text
    assert 'sottovoce_refused_total{reason="replay"}' in text


def test_a_foreign_certificate_and_plaintext_are_counted(running, tmp_path):
    folder, _, client, server = running
    refusals = Refusals(client)
    init_keys(tmp_path / "other")
    context = device_context(authority_pem(folder.keys))
    context.load_cert_chain(tmp_path / "other" / "server.crt", tmp_path / "other" / "server.key")
    link = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
    with contextlib.suppress(OSError):  # the refusal may come at any moment after this
        link.request("GET", "/health")
    with pytest.raises((OSError, http.client.HTTPException)):
        link.getresponse()
    link.close()
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in plain.recv(4096)
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(secrets.token_bytes(500))
        plain.recv(4096)
    found = refusals.new()
    assert found["wrong_certificate"] == 1
    assert found["plaintext"] >= 1
    assert client.get("/health").status == 200


def test_an_endless_body_is_cut_off_while_it_streams(running):
    folder, _, client, server = running
    refusals = Refusals(client)
    context = device_context(authority_pem(folder.keys))
    head = b"POST /v1/reports HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    sent, answer, chunk = 0, b"", b"10000\r\n" + bytes(65536) + b"\r\n"
    with (
        socket.create_connection(("127.0.0.1", server.port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as link,
        contextlib.suppress(OSError),  # it is cut off
    ):
        link.sendall(head)
        while not answer and sent < 200_000_000:
            link.settimeout(20)
            link.sendall(chunk)
            sent += 65536
            link.setblocking(False)
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = link.recv(4096)
    assert sent < 20_000_000
    assert answer.startswith(b"HTTP/1.1 413") or not answer
    assert refusals.new() == {"oversized": 1}


def test_counts_survive_a_kill(running):
    folder, _, client, server = running
    before = client.status()["refused"]
    client.post("/v1/reports", b"nonsense")

    def stored():
        with contextlib.closing(folder.database()) as store, store.reading() as link:
            return records.refused(link).get("malformed", 0)

    until(lambda: stored() > before["malformed"])
    server.kill()
    client.close()
    with ServerProcess(server.path) as again, Client(folder, again.port) as other:
        assert other.status()["refused"] == {**before, "malformed": before["malformed"] + 1}
        assert json.loads(other.get("/v1/round").body)["round"] == 4
