"""The collector as a real process: what a proxy hands over, what strangers try, what a kill -9
leaves, and keys that are rotated meanwhile."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from collector_world import FACTORS, K, folded, parts_of, proxied_folder, some_reports
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import ITEMS, USERS, Client, ServerProcess, enrolment
from talk import told

from sottovoce.cli import call
from sottovoce.cli.serve_server import make_federation
from sottovoce.core.links import Proxied
from sottovoce.errors import ConfigError, DataNotFound, KeyTrouble, UsageError
from sottovoce.stores.keys import ReportKeys, authority_pem, init_keys
from sottovoce.stores.server_folder import (
    admission_key,
    admission_statement,
    introduction,
    invite,
    open_folder,
    proxy_token,
    read_introduction,
)
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import PART_BYTES, encode_part
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model


class Proxy(Client):
    """A client that also plays the proxy."""

    def hand(self, part, token=None):
        word = proxy_token(self.folder.keys) if token is None else token
        body = part if isinstance(part, bytes) else encode_part(part)
        got = self.ask("POST", "/v1/batches", body, {"Authorization": f"Bearer {word}"})
        return got.status, (got.error if got.body else "")

    def key(self):
        return bytes.fromhex(self.round()["report_key"]["public"])

    def batch(self, tier, seed, *, devices=4, parts=1):
        now, reports = self.round()["round"], some_reports(devices, seed)
        sent = parts_of(reports, self.key(), round=now, tier=tier, parts=parts)
        return reports, sent

    def items(self, round):
        got = self.get(f"/v1/model/{round}")
        return decode_model(got.body, n_items=ITEMS, width=FACTORS).items


def enrol(folder, client, count=USERS, database=None):
    store = folder.database(database)
    try:
        invitations = invite(folder, store, "https://127.0.0.1:1", count=count)
    finally:
        store.close()
    answers = []
    for invitation in invitations:
        key = Ed25519PrivateKey.generate()
        got = client.post("/v1/enrol", enrolment(invitation, key))
        assert got.status == 200, got.body
        answers.append((key.public_key().public_bytes_raw(), got.json()))
    return answers


@pytest.fixture
def town(tmp_path):
    return proxied_folder(tmp_path / "town", rounds=20)


@pytest.fixture
def open_round(town):
    with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
        enrol(town, client)
        client.wait(state="open")
        yield client


def test_batches_become_models_and_the_server_knows_nobody(town):
    rounds = []
    with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
        assert "report_key" not in client.round()
        for key, answer in enrol(town, client):
            word = bytes.fromhex(answer["admission"])
            public = admission_key(town.keys).public_key()
            public.verify(word, admission_statement("little-town", key))
        for number in range(3):
            now = client.wait(round=number, state="open")
            assert (now["selection"], now["attempt"]) == ("all", 0)
            batches = {tier: client.batch(tier, 10 * number + tier, parts=3) for tier in (0, 1)}
            for _, sent in batches.values():
                assert [client.hand(part) for part in sent] == [(204, "")] * 3
            rounds.append({tier: reports for tier, (reports, _) in batches.items()})
        client.wait(round=3, state="open")
        assert np.array_equal(client.items(3), folded(rounds))
        status = client.status()
        assert [r["reported"] for r in status["rounds"]] == [8, 8, 8]
        assert all(r["missing"] == [] and r["asked"] == 0 for r in status["rounds"])
        assert status["refused"] == {}
        assert server.stop() == 0
    assert Terms.from_table(json.loads((town.path / "federation.json").read_text())["terms"])


def test_devices_cannot_report_past_the_proxy(open_round):
    for path in ("/v1/reports", "/v1/checkin"):
        got = open_round.post(path, b"anything")
        assert (got.status, got.error) == (400, "malformed")


def test_only_the_proxy_hands_over(open_round, town):
    _, (part,) = open_round.batch(0, 1)
    assert open_round.hand(part, token="00" * 32) == (401, "unknown_proxy")
    assert open_round.hand(part, token="") == (401, "unknown_proxy")
    operator = (town.keys / "operator.token").read_text().strip()
    assert open_round.hand(part, token=operator) == (401, "unknown_proxy")
    assert open_round.post("/v1/batches", encode_part(part)).status == 401
    assert open_round.get("/v1/batches").status == 405
    assert open_round.hand(part) == (204, "")
    assert open_round.status()["refused"]["unknown_proxy"] == 4


def test_what_no_honest_proxy_sends_is_refused_and_counted(open_round):
    _, (good,) = open_round.batch(0, 1)
    whole = encode_part(good)
    head = struct.calcsize("<4sIB32sIIHII16s")
    cases = [
        (replace(good, devices=1, body=good.body[: K * SEALED_BYTES]), (400, "too_few")),
        (replace(good, tier=2), (400, "malformed")),
        (replace(good, tier=255), (400, "malformed")),
        (replace(good, tier=1, devices=2), (400, "too_few")),
        (replace(good, round=1), (400, "malformed")),
        (replace(good, round=2**32 - 1), (400, "malformed")),
        (replace(good, key=bytes(8)), (409, "wrong_key")),
        (replace(good, devices=5), (400, "malformed")),
        (replace(good, devices=3), (400, "malformed")),
        (replace(good, devices=USERS + 1), (400, "malformed")),
        (replace(good, devices=2**32 - 1), (400, "malformed")),
        (replace(good, part=1), (400, "malformed")),
        (replace(good, parts=0), (400, "malformed")),
        (replace(good, parts=17), (400, "malformed")),
        (b"", (400, "malformed")),
        (b"SVB1", (400, "malformed")),
        (b"SVB2" + whole[4:], (426, "version")),
        (b"XXXX" + whole[4:], (400, "malformed")),
        (whole[:-1], (400, "malformed")),
        (whole + b"x", (400, "malformed")),
        (whole[: head - 1], (400, "malformed")),
        (whole[: head - 26] + struct.pack("<H", 51) + whole[head - 24 :], (400, "malformed")),
        (whole + bytes(PART_BYTES), (413, "oversized")),
    ]
    for body, expected in cases:
        assert open_round.hand(body) == expected, body
    refused = open_round.status()["refused"]
    assert refused["too_few"] >= 2
    assert refused["wrong_key"] >= 1
    assert refused["malformed"] > 15
    assert "unavailable" not in refused


def test_a_killed_server_has_what_it_acknowledged_and_takes_nothing_twice(town):
    rounds = []
    with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
        enrol(town, client)
        client.wait(state="open")
    for number in range(3):
        with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
            client.wait(round=number, state="open")
            first, sent = client.batch(0, 10 * number, parts=4)
            assert [client.hand(part)[0] for part in sent[:2]] == [204, 204]
            server.kill()
        with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
            client.wait(round=number, state="open")
            answers = [client.hand(part) for part in sent]
            assert answers == [(409, "replay"), (409, "replay"), (204, ""), (204, "")]
            second, more = client.batch(1, 10 * number + 1)
            assert client.hand(more[0]) == (204, "")
            server.kill()  # at any moment of closing
        rounds.append({0: first, 1: second})
    with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
        client.wait(round=3, state="open")
        assert np.array_equal(client.items(3), folded(rounds))
        assert client.hand(sent[0]) == (409, "replay")
        assert [r["reported"] for r in client.status()["rounds"]] == [8, 8, 8]


def test_a_key_is_rotated_without_a_restart(town):
    with ServerProcess(town.path) as server, Proxy(town, server.port) as client:
        enrol(town, client)
        client.wait(state="open")
        first = client.round()["report_key"]["id"]
        new = told("keys", "renew", town.keys, "--reports")["report_key"]
        assert client.round()["report_key"]["id"] == first != new
        shown = told("keys", "show", town.keys)
        assert shown["report_keys"] == [first, new]
        secret = ReportKeys(town.keys).newest().private.hex()
        assert secret not in json.dumps(shown)
        for number in range(4):
            for tier in (0, 1):
                _, sent = client.batch(tier, number)
                assert client.hand(sent[0]) == (204, "")
            client.wait(round=number + 1, state="open")
            assert client.round()["report_key"]["id"] == new
        assert client.status()["refused"] == {}
        for _ in range(100):
            if len(ReportKeys(town.keys).all()) == 1:
                break
            client.wait(round=4)
        assert [key.id.hex() for key in ReportKeys(town.keys).all()] == [new]


def test_the_operator_introduces_the_proxy(town, tmp_path):
    file = tmp_path / "intro.json"
    url = "https://example.org:8443"
    assert told("serve", "introduce", town.path, "--out", file, "--server", url)["server"] == url
    found = read_introduction(file)
    assert found == introduction(town, url)
    assert found.ca == authority_pem(town.keys)
    assert found.token == proxy_token(town.keys)
    assert call(["serve", "introduce", str(town.path), "--out", str(file), "--server", url]) == 2
    assert call(["serve", "introduce", str(town.path), "--out", str(tmp_path / "b")]) == 2
    assert call(["keys", "renew", str(tmp_path), "--reports"]) == 2


def test_a_federation_without_a_proxy_has_nobody_to_introduce(tmp_path):
    from server_world import new_folder

    folder = new_folder(tmp_path)
    with pytest.raises(UsageError, match="has no shuffler; its terms name none"):
        introduction(folder, "https://example.org")
    with ServerProcess(folder.path) as server, Client(folder, server.port) as client:
        assert client.post("/v1/batches", b"SVB1").status == 404
    assert not (folder.keys / "admission.key").exists()


@pytest.mark.parametrize("name", ["admission.key", "proxy.token", "report-keys.json"])
def test_a_server_without_its_keys_does_not_start(town, name):
    (town.keys / name).unlink()
    with ServerProcess(town.path, wait=False) as server:
        assert server.process.wait(timeout=60) == 7
        assert name in server.log.read_text()


EXPERIMENT = """
name = "mixed"
[town]
residents = 12
venues = 40
districts = 2
[algorithm]
name = "fmf"
[release]
max_reports = 10
[consent]
epsilon = 2.5
max_reports = 10
"""


def test_a_federation_is_made_with_the_proxy_that_its_operator_names(tmp_path, capsys):
    (tmp_path / "mixed.toml").write_text(EXPERIMENT)
    init_keys(tmp_path / "proxy")
    ca, file, url = tmp_path / "proxy" / "ca.crt", str(tmp_path / "mixed.toml"), "https://mixer:1"
    with pytest.raises(ConfigError, match="--proxy URL"):
        make_federation(tmp_path / "town", file, [], None, [], 5)
    with pytest.raises(UsageError, match="--proxy is an address"):
        make_federation(tmp_path / "town", file, [], None, [], 5, ("mixer", ca))
    with pytest.raises(DataNotFound):
        make_federation(tmp_path / "town", file, [], None, [], 5, (url, tmp_path / "no"))
    with pytest.raises(KeyTrouble):
        make_federation(tmp_path / "town", file, [], None, [], 5, (url, tmp_path / "mixed.toml"))
    assert not (tmp_path / "town").exists()
    made = make_federation(tmp_path / "town", file, [], None, [], 5, (url, ca))
    assert made.plan.terms.link == Proxied(url, ca.read_text())
    assert made.plan.proxied
    assert open_folder(tmp_path / "town").plan == made.plan
    assert introduction(made, "https://example.org").federation == made.plan.terms.federation
    assert call(["serve", "server", str(tmp_path / "town"), "--proxy", url]) == 2
    assert "go together" in capsys.readouterr().err
