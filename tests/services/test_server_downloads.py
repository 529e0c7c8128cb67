"""What everyone may fetch: the right bytes, once, whole or in parts."""

import gzip
import hashlib
import json
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_world import ITEMS, Client, Fleet, ServerProcess, new_folder, selected, terms
from waits_world import WaitsTown

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.messages import ModelView
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.services.kit.documents import (
    Document,
    Version,
    best_coding,
    etag_matches,
    wanted_range,
)
from sottovoce.stores.keys import operator_token
from sottovoce.stores.server_folder import create_folder
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model, full_size


@st.composite
def histories(draw):
    """Versions of a small model, some rows changing in each."""
    n_items = draw(st.integers(2, 40))
    width = draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    items = [rng.normal(size=(n_items, width)).astype(np.float32)]
    changed = np.zeros(n_items, np.int32)
    for version in range(1, draw(st.integers(1, 5)) + 1):
        rows = rng.random(n_items) < draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
        items.append(np.where(rows[:, None], rng.normal(size=(n_items, width)), items[-1]))
        items[-1] = items[-1].astype(np.float32)
        changed = np.where(rows, version, changed).astype(np.int32)
    return items, changed


@given(histories(), st.integers(0, 9), st.sampled_from(["identity", "gzip", "zstd"]))
@settings(max_examples=80, deadline=None)
def test_a_device_has_the_model_after_any_download(history, since, coding):
    items, changed = history
    newest = len(items) - 1
    n_items, width = items[0].shape
    have = ModelView(since, items[since]) if since <= newest else None
    version = Version(ModelView(newest, items[newest]), changed)
    content = version.content(since)
    assert len(content) <= full_size(n_items, width)
    document = Document.of(content, coding)
    assert len(document.body) <= len(content)
    got = decode_model(unpacked(document), n_items=n_items, width=width, have=have)
    assert got.round == newest
    assert np.array_equal(got.items, items[newest])


def unpacked(document):
    if document.coding == "gzip":
        return zlib.decompress(document.body, 31)
    if document.coding == "zstd":
        return pa.CompressedInputStream(pa.BufferReader(document.body), "zstd").read()
    return document.body


@given(st.binary(max_size=60), st.integers(0, 70), st.integers(0, 70))
def test_ranges_are_those_of_the_bytes(content, first, last):
    size = len(content)
    part = wanted_range(b"bytes=%d-%d" % (first, last), size)
    if last < first:
        assert part == "none"
    elif first >= size:
        assert part == "beyond"
    else:
        assert content[slice(*part)] == content[first : last + 1]
    tail = wanted_range(b"bytes=-%d" % last, size)
    assert (content[slice(*tail)] == content[-last:]) if last and size else tail == "beyond"
    if first < size:
        assert wanted_range(b"bytes=%d-" % first, size) == (first, size)


@given(st.binary(max_size=40))
def test_strange_headers_mean_nothing(header):
    assert wanted_range(header, 100) == "none" or header.strip().startswith(b"bytes=")
    assert best_coding(header) in ("identity", "gzip", "zstd")
    etag_matches(header, b'"x"')


def test_several_ranges_give_everything():
    assert wanted_range(b"bytes=0-1,4-5", 10) == "none"
    assert wanted_range(b"bytes=-", 10) == "none"
    assert wanted_range(b"items=0-1", 10) == "none"


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"", "identity"),
        (b"gzip", "gzip"),
        (b"gzip, zstd", "zstd"),
        (b"zstd;q=0, gzip;q=0.5", "gzip"),
        (b"br, *;q=0", "identity"),
        (b"*", "zstd"),
        (b"gzip;q=oops", "gzip"),
    ],
)
def test_codings(header, coding):
    assert best_coding(header) == coding


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server after two of three rounds."""
    path = tmp_path_factory.mktemp("server")
    folder, fleet = new_folder(path, rounds=3), Fleet()
    with ServerProcess(path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        views = []
        for round in range(2):
            client.wait(round=round, state="open")
            views.append(client.model(round))
            fleet.run_round(client)
        client.wait(round=2, state="open")
        views.append(client.model(2))
        yield client, views


def test_deltas_lead_to_the_same_model(running):
    client, views = running
    for have in views[:2]:
        got = client.model(2, have)
        assert np.array_equal(got.items, views[2].items)
    assert client.get("/v1/model/2?since=2").body[:4] == b"SVD1"
    assert client.get("/v1/model/2?since=77").body[:4] == b"SVV1"
    assert client.get("/v1/model/2?since=x").body[:4] == b"SVV1"
    assert len(client.get("/v1/model/2?since=2").body) < 40


def test_old_and_future_versions_are_gone(running):
    client, _ = running
    assert client.get("/v1/model/1").headers["accept-ranges"] == "bytes"
    for round in (0, 3, 999999999):
        assert client.get(f"/v1/model/{round}").status == 410
    assert client.get("/v1/model/1e3").status == 404
    assert client.get("/v1/model/-1").status == 404


@pytest.mark.parametrize("coding", ["zstd", "gzip", "identity"])
def test_every_coding_holds_the_same_bytes(running, coding):
    client, _ = running
    plain = client.get("/v1/model/2")
    got = client.get("/v1/model/2", Accept_Encoding=coding)
    assert got.headers["vary"] == "accept-encoding"
    assert "immutable" in got.headers["cache-control"]
    kind = got.headers.get("content-encoding", "identity")
    assert unpacked(Document(got.body, kind, b"")) == plain.body
    if kind != "identity":
        assert kind == coding
        assert len(got.body) < len(plain.body)
        assert got.headers["etag"] != plain.headers["etag"]


def test_a_browser_without_zstd_gets_a_packed_model(tmp_path):
    items = [(f"v{n}", "") for n in range(4000)]
    learnt = FPLConfig(embedding_size=4, triples=10)
    ours = Terms.of("wide-town", len(items), learnt, 10, ShareFraction())
    folder = create_folder(tmp_path, ours, items, rounds=1)
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        plain = client.get("/v1/model/0")
        packed = client.get("/v1/model/0", Accept_Encoding="gzip, deflate, br")
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) < len(plain.body)
        tags = {answer.headers["etag"] for answer in (plain, packed)}
        assert len(tags) == 2
        for name in ("vary", "cache-control", "accept-ranges"):
            assert packed.headers[name] == plain.headers[name]
        tag = {"If_None_Match": packed.headers["etag"], "Accept_Encoding": "gzip"}
        assert client.get("/v1/model/0", **tag).status == 304
        both = client.get("/v1/model/0", Accept_Encoding="gzip, zstd")
        assert both.headers["content-encoding"] == "zstd"


def test_etags_and_ranges(running):
    client, _ = running
    place = "/v1/catalogue"  # the model is too small to be compressed
    whole = client.get(place, Accept_Encoding="zstd")
    assert whole.headers["content-encoding"] == "zstd"
    tag, size = whole.headers["etag"], len(whole.body)
    assert not tag.startswith("W/")
    same = client.get(place, Accept_Encoding="zstd", If_None_Match=tag)
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    other = client.get(place, Accept_Encoding="gzip", If_None_Match=tag)
    assert other.status == 200
    half = size // 2
    ask = {"Accept_Encoding": "zstd", "Range": f"bytes={half}-", "If_Range": tag}
    rest = client.get(place, **ask)
    assert rest.status == 206
    assert rest.headers["content-range"] == f"bytes {half}-{size - 1}/{size}"
    assert whole.body[:half] + rest.body == whole.body
    changed = client.get(place, **{**ask, "If_Range": '"other"'})
    assert (changed.status, changed.body) == (200, whole.body)
    beyond = client.get(place, Accept_Encoding="zstd", Range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")


def test_the_descriptor_is_cheap_to_ask_again(running):
    client, _ = running
    got = client.get("/v1/round")
    assert got.json() == {
        "catalogue": hashlib.sha256(client.folder.catalogue()).hexdigest(),
        "protocol": 2,
        "federation": "little-town",
        "terms": terms().digest(),
        "round": 2,
        "attempt": 0,
        "state": "open",
        "selection": "all",
        "model": 2,
        "poll_seconds": 0.2,
        "waits": "reports",
    }
    assert "max-age" in got.headers["cache-control"]
    assert client.get("/v1/round", If_None_Match=got.headers["etag"]).status == 304
    assert set(got.headers) == {"etag", "content-type", "cache-control", "content-length"}


def test_terms_catalogue_and_selection(running):
    client, _ = running
    assert client.get("/v1/terms").json() == terms().to_table()
    got = client.get("/v1/catalogue", Accept_Encoding="gzip")
    items = json.loads(zlib.decompress(got.body, 31))["items"]
    assert items[3] == ["v3", "Venue 3"]
    assert len(items) == ITEMS
    assert (
        client.get("/v1/terms", If_None_Match=client.get("/v1/terms").headers["etag"]).status == 304
    )
    assert selected(client, 2, 0) == list(range(8))
    assert client.get("/v1/rounds/1/0/selected").status == 410
    assert client.get("/v1/rounds/2/1/selected").status == 410
    assert client.get("/v1/rounds/x/0/selected").status == 404


def test_strange_requests_are_answered_with_4xx(running):
    client, _ = running
    assert client.get("/nothing").status == 404
    assert client.ask("PUT", "/v1/round").status == 405
    assert client.get("/v1/reports").status == 405
    assert client.ask("DELETE", "/v1/model/2").status == 405
    assert client.get("/v1/model/2?since=%00&since=4").status == 200
    assert client.ask("HEAD", "/v1/model/2").body == b""


def test_a_round_that_the_operator_hears_of_has_its_model(tmp_path):
    """Its status is of the database, where a round may be done before the server has looked."""
    with WaitsTown(tmp_path, "direct") as town:
        town.join(0, 1, 2, 3)
        town.visit(0, 1, 2, 3)
        town.step()
        town.visit(0, 1, 2, 3)
        with town.database.leading() as leader:
            town.rounds._coordinator.step(leader)
        assert town.state.now.position.round == 0
        bearer = {"authorization": f"Bearer {operator_token(town.folder.keys)}"}
        status = town.ask("GET", "/v1/operator/status", headers=bearer)
        assert json.loads(status.body)["round"] == 1
        assert town.ask("GET", "/v1/model/1").status == 200
