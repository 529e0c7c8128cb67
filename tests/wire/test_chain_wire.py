"""What is sealed for a chain of shufflers: every layer opens for what it was sealed for, and for
nothing else; terms that name a chain, and those that name none."""

import secrets
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import LAYER_BYTES, MOST_SHUFFLERS, Hop, Proxied
from sottovoce.errors import ConfigError, KeyTrouble, MessageError
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.wire import shuffled
from sottovoce.wire.sealing import (
    SEALED_BYTES,
    key_id,
    layer_info,
    open_records,
    open_reports,
)
from sottovoce.wire.terms import Terms

SERVER = X25519PrivateKey.generate()
REPORT_KEY = SERVER.public_key().public_bytes_raw()
KEYS = [X25519PrivateKey.generate() for _ in range(MOST_SHUFFLERS)]
REPORTS = np.array([0, 1, 2**32 - 1, 81, 81], np.uint32)


def hop(number, **changes):
    public = KEYS[number].public_key().public_bytes_raw().hex()
    return Hop(**{"url": f"https://{number}.example", "authority": "pem", "key": public, **changes})


def terms_of(shufflers, federation="town", **link):
    chain = tuple(hop(n) for n in range(1, shufflers))
    release = KReports(5, (Tier(1.0, 2), Tier(2.0, 3)))
    made = Proxied(**{"url": "https://0.example", "authority": "pem", "chain": chain, **link})
    return Terms(federation, 40, FMFConfig(), release, made)


def passed(records, terms, hops, *, round, tier):
    """What is left after these shufflers, and how many records each refused."""
    refused = []
    for n in hops:
        size = shuffled.record_bytes(terms.link, n - 1)
        info = shuffled.hop_info(terms, key_id(REPORT_KEY), n, round=round, tier=tier)
        records, bad = open_records(records, size, KEYS[n].private_bytes_raw(), info)
        refused.append(bad)
    return records, refused


@settings(max_examples=25, deadline=None)
@given(
    shufflers=st.integers(1, 4),
    reports=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5),
    round=st.integers(0, 2**32 - 1),
    tier=st.integers(0, 1),
)
def test_each_shuffler_takes_its_layer_off_and_the_server_reads_the_reports(
    shufflers, reports, round, tier
):
    terms, values = terms_of(shufflers), np.array(reports, np.uint32)
    place = {"round": round, "tier": tier}
    sealed = shuffled.seal_for(values, REPORT_KEY, terms, **place)
    assert len(sealed) == len(values) * (SEALED_BYTES + LAYER_BYTES * (shufflers - 1))
    left, refused = passed(sealed, terms, range(1, shufflers), **place)
    assert not any(refused)
    private = SERVER.private_bytes_raw()
    opened, bad = open_reports(left, private, federation="town", **place)
    assert (opened.tolist(), bad) == (reports, 0)


NAMES = st.binary(min_size=32, max_size=32)
CHANGES = {
    "federation": st.just("another"), "round": st.integers(0, 9).filter(lambda r: r != 7),
    "tier": st.just(0), "hop": st.sampled_from([0, 2, 3]), "key": NAMES, "terms": NAMES,
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_for_anything_else_a_layer_does_not_open(data):
    terms, place = terms_of(3), {"round": 7, "tier": 1}
    sealed = shuffled.seal_for(REPORTS, REPORT_KEY, terms, **place)
    own = {
        "federation": "town", **place, "hop": 1, "key": key_id(REPORT_KEY),
        "terms": shuffled.terms_name(terms),
    }  # fmt: skip
    what = data.draw(st.sampled_from(sorted(CHANGES)))
    public, private = terms.link.chain[0].public(), KEYS[1].private_bytes_raw()
    size = shuffled.record_bytes(terms.link, 0)
    opened, refused = open_records(sealed, size, private, layer_info(public, **own))
    assert (len(opened), refused) == (len(REPORTS) * (size - LAYER_BYTES), 0)
    own[what] = data.draw(CHANGES[what])
    assert open_records(sealed, size, private, layer_info(public, **own)) == (b"", len(REPORTS))


def test_other_terms_open_nothing():
    """A server that shows a shuffler a smaller minimum, or another one behind it, gets nothing."""
    terms, place = terms_of(3), {"round": 7, "tier": 1}
    sealed = shuffled.seal_for(REPORTS, REPORT_KEY, terms, **place)
    smaller = replace(terms, release=KReports(5, (Tier(1.0, 2), Tier(2.0, 2))))
    other = replace(terms, link=replace(terms.link, chain=(hop(1), hop(5))))
    for shown in (smaller, other):
        assert passed(sealed, shown, [1], **place)[1] == [len(REPORTS)]


def test_layers_come_off_in_one_order_alone():
    terms, place = terms_of(3), {"round": 7, "tier": 1}
    sealed = shuffled.seal_for(REPORTS, REPORT_KEY, terms, **place)
    size = shuffled.record_bytes(terms.link, 0)
    info = shuffled.hop_info(terms, key_id(REPORT_KEY), 2, **place)
    assert open_records(sealed, size, KEYS[2].private_bytes_raw(), info)[1] == len(REPORTS)


def test_every_flipped_bit_is_noticed():
    """Also that of a public key which X25519 itself does not look at: a copy of a record with
    another bit there would not be known as one."""
    terms, place = terms_of(2), {"round": 7, "tier": 1}
    size = shuffled.record_bytes(terms.link, 0)
    sealed = shuffled.seal_for(REPORTS[:1], REPORT_KEY, terms, **place)
    for bit in range(size * 8):
        broken = bytearray(sealed)
        broken[bit // 8] ^= 1 << bit % 8
        assert passed(bytes(broken), terms, [1], **place)[1] == [1], bit


def test_nothing_of_a_report_shows_on_any_stretch():
    terms, place = terms_of(3), {"round": 7, "tier": 1}
    before = shuffled.seal_for(np.full(50, 5, np.uint32), REPORT_KEY, terms, **place)
    after, _ = passed(before, terms, [1], **place)
    for content, n in ((before, 0), (after, 1)):
        size = shuffled.record_bytes(terms.link, n)
        assert len(content) == 50 * size
        records = {content[at : at + size] for at in range(0, len(content), size)}
        assert len(records) == len({record[:8] for record in records}) == 50
    eights = {before[at : at + 8] for at in range(len(before) - 7)}
    assert not any(after[at : at + 8] in eights for at in range(0, len(after), 4))


def test_a_submission_and_a_part_have_the_size_that_the_chain_gives_them():
    sealed = secrets.token_bytes(2 * 100)
    made = shuffled.encode_submission(
        bytes(16), bytes(32), 5, 1, bytes(32), sealed, terms=bytes(32), size=100
    )
    found = shuffled.decode_submission(made, 2, 2, 100)
    assert bytes(found.reports) == sealed
    with pytest.raises(MessageError, match="has 52 bytes"):
        shuffled.decode_submission(made, 2, 2)
    part = shuffled.BatchPart(5, 1, bytes(32), 2, 0, 1, bytes(16), sealed, 100)
    assert shuffled.decode_part(shuffled.encode_part(part), 100) == part
    assert part.reports == 2
    with pytest.raises(MessageError, match="has 148 bytes, not 100"):
        shuffled.decode_part(shuffled.encode_part(part), 148)


def test_a_shufflers_key_that_hides_nothing_is_not_used():
    link = {"chain": (hop(1, key=bytes(32).hex()),)}
    with pytest.raises(KeyTrouble, match="a shuffler in the terms is not good"):
        shuffled.seal_for(REPORTS, REPORT_KEY, terms_of(2, **link), round=0, tier=0)


# --- terms ----------------------------------------------------------------------------------------


def test_terms_without_a_chain_are_what_they_were():
    table = terms_of(1).to_table()
    assert table["link"] == {"name": "proxy", "url": "https://0.example", "authority": "pem"}
    assert Terms.from_table(table) == terms_of(1)


def test_terms_with_a_chain_come_back_and_have_another_name():
    names = set()
    for shufflers in (1, 2, 3):
        terms = terms_of(shufflers)
        assert Terms.from_table(terms.to_table()) == terms
        names.add(shuffled.terms_name(terms))
    other = terms_of(3, chain=(hop(2), hop(1)))
    assert len(names | {shuffled.terms_name(other)}) == 4, "the order counts, too"


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ((hop(1), hop(1)), "same url"),
        ((hop(1, url="https://0.example"),), "same url"),
        ((hop(1, url="https://0.EXAMPLE:443/"),), "same url"),
        ((hop(1), hop(2, key=hop(1).key)), "same key"),
        ((hop(1), hop(2, key=hop(1).key.upper())), "same key"),
    ],
)
def test_one_organisation_twice_is_refused_in_a_sentence(chain, words):
    with pytest.raises(ConfigError, match=words):
        terms_of(2, chain=chain)
    table = terms_of(2).to_table()
    table["link"]["chain"] = [
        {"url": one.url, "authority": one.authority, "key": one.key} for one in chain
    ]
    with pytest.raises(MessageError, match=f"make no sense.*{words}"):
        Terms.from_table(table)


@pytest.mark.parametrize(
    "wrong", [{"key": "ab"}, {"key": "xy" * 32}, {"key": " " + "ab" * 32}, {"key": ""}, {"url": ""}]
)
def test_a_shuffler_without_address_or_key_is_refused(wrong):
    with pytest.raises(ConfigError, match="shuffler"):
        terms_of(2, chain=(hop(1, **wrong),))


def test_a_chain_has_an_end():
    with pytest.raises(ConfigError, match="at most 15 further"):
        Proxied(chain=(Hop(),) * MOST_SHUFFLERS)
    assert Proxied(chain=(Hop(),) * 2).shufflers == 3
