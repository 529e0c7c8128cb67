"""The public directory: believed where the issuer signed it, refused with a sentence otherwise."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import ConfigError, DataError, KeyTrouble, MessageError, SottovoceError
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer

ISSUER = Issuer("spring")
KEYS = Identity().public


def entry(number, items, name=None):
    name = name or f"owner {number}"
    return OwnerEntry(number, name, f"https://o{number}:8443", KEYS, "-----BEGIN", tuple(items))


def directory(owners, catalogue=("a", "b", "c"), **other):
    known = {"version": 3, "settings": DRIFTConfig(theta=5), **other}
    return Directory("spring", ISSUER.public, catalogue=catalogue, owners=tuple(owners), **known)


BOTH = directory([entry(0, [0, 1]), entry(4, [1])])


def signed(**changes):
    """A directory with other content, well signed."""
    _, _, content = BOTH.sign(ISSUER).partition(b"\n")
    table = {**json.loads(content), **changes}
    content = json.dumps({k: v for k, v in table.items() if v is not ...}).encode()
    return ISSUER.sign("directory", content).hex().encode() + b"\n" + content


# --- as it travels --------------------------------------------------------------------------------


@given(
    names=st.lists(st.text(max_size=8), max_size=6, unique=True),
    held=st.dictionaries(st.integers(0, 2**31), st.sets(st.integers(0, 5)), max_size=4),
    version=st.integers(0, 2**40),
)
def test_it_is_read_as_it_was_signed(names, held, version):
    owners = [
        entry(number, sorted(i for i in items if i < len(names)))
        for number, items in sorted(held.items())
    ]
    made = directory(owners, tuple(names), version=version)
    assert Directory.read(made.sign(ISSUER), "spring", ISSUER.public) == made


def test_any_changed_byte_is_not_believed():
    text = BOTH.sign(ISSUER)
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1
        with pytest.raises((KeyTrouble, MessageError)):
            Directory.read(bytes(changed), "spring", ISSUER.public)


def test_directories_of_others_are_not_believed():
    text = BOTH.sign(ISSUER)
    with pytest.raises(KeyTrouble, match="the directory was not signed"):
        Directory.read(text, "autumn", ISSUER.public)
    with pytest.raises(KeyTrouble, match="the directory was not signed"):
        Directory.read(text, "spring", Issuer("spring").public)
    for other in (Issuer("spring"), Issuer("autumn", ISSUER.private_bytes())):
        with pytest.raises(KeyTrouble, match="another issuer"):
            BOTH.sign(other)


def test_a_signature_for_something_else_is_not_believed():
    _, _, content = BOTH.sign(ISSUER).partition(b"\n")
    text = ISSUER.sign("pass", content).hex().encode() + b"\n" + content
    with pytest.raises(KeyTrouble, match="not signed"):
        Directory.read(text, "spring", ISSUER.public)


@pytest.mark.parametrize("text", [b"", b"\n", b"zz\n{}", b"\xff\xfe\n{}", b"00\n{}", b"{}"])
def test_what_is_no_directory_is_refused(text):
    with pytest.raises((MessageError, KeyTrouble)):
        Directory.read(text, "spring", ISSUER.public)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"protocol": PROTOCOL + 1}, MessageError, "version 3 of the protocol"),
        ({"protocol": ...}, MessageError, "cannot be read"),
        ({"federation": "autumn"}, MessageError, "another federation"),
        ({"issuer": "00" * 32}, MessageError, "another federation"),
        ({"owners": ...}, MessageError, "cannot be read"),
        ({"owners": [{"number": 1}]}, MessageError, "cannot be read"),
        ({"owners": 5}, MessageError, "cannot be read"),
        ({"version": "x"}, MessageError, "cannot be read"),
        ({"version": float("inf")}, MessageError, "cannot be read"),
        ({"version": -1}, DataError, "counted from 0"),
        ({"owners": [entry(0, [0], "two\nlines").to_table()]}, DataError, "in one line"),
        ({"owners": [entry(0, [0], "\x1b[31m").to_table()]}, DataError, "in one line"),
        ({"settings": {"theta": 0}}, ConfigError, "theta"),
        ({"settings": {"colour": 1}}, ConfigError, "colour"),
        ({"settings": ""}, ConfigError, "settings must be a table"),
        ({"settings": []}, ConfigError, "settings must be a table"),
        ({"catalogue": []}, DataError, "not in the catalogue"),
    ],
)
def test_signed_nonsense_is_refused_with_a_sentence(changes, error, why):
    with pytest.raises(error, match=why):
        Directory.read(signed(**changes), "spring", ISSUER.public)


def test_a_directory_of_the_release_before_is_the_same_one():
    """It was written under another number of the protocol, and says the same."""
    assert Directory.read(signed(protocol=1), "spring", ISSUER.public) == BOTH


@pytest.mark.parametrize(
    "field",
    [
        {"public": "00"}, {"public": "zz" * 32}, {"public": 5}, {"items": [True, "x"]},
        {"items": None}, {"number": None}, {"number": -1},
    ],
)  # fmt: skip
def test_owners_that_are_none_are_refused(field):
    owner = {**BOTH.owners[0].to_table(), **field}
    with pytest.raises(SottovoceError):
        Directory.read(signed(owners=[owner]), "spring", ISSUER.public)


@pytest.mark.parametrize("content", [b"[]", b"1", b"null", b"{", b"\xff", b"[" * 100_000])
def test_signed_content_that_is_no_table_is_refused(content):
    text = ISSUER.sign("directory", content).hex().encode() + b"\n" + content
    with pytest.raises(MessageError, match="cannot be read"):
        Directory.read(text, "spring", ISSUER.public)


# --- what is in it --------------------------------------------------------------------------------


def test_the_table_of_who_holds_what():
    table = BOTH.table()
    assert (table.owners(0), table.owners(1)) == ((0,), (0, 4))
    assert table.all_owners() == [0, 4]
    with pytest.raises(DataError, match="no data owner holds"):
        table.owners(2)


def test_owners_and_items_are_found_by_name_and_number():
    assert BOTH.owner("owner 4") is BOTH.numbered(4) is BOTH.owners[1]
    assert BOTH.item("c") == 2
    with pytest.raises(DataError, match="there are: owner 0, owner 4"):
        BOTH.owner("nobody")
    with pytest.raises(DataError, match="there are: none"):
        directory([]).owner("nobody")
    with pytest.raises(DataError, match="no data owner 1"):
        BOTH.numbered(1)
    with pytest.raises(DataError, match="'z' is not in the federation's catalogue"):
        BOTH.item("z")


@pytest.mark.parametrize(
    ("owners", "why"),
    [
        ([entry(1, []), entry(0, [])], "by number, each once"),
        ([entry(1, []), entry(1, [], "other")], "by number, each once"),
        ([entry(-1, [])], "numbered from 0"),
        ([entry(0, [], "x"), entry(1, [], "x")], "name of its own"),
        ([entry(0, [3])], "not in the catalogue"),
        ([entry(0, [-1])], "not in the catalogue"),
        ([entry(0, [1, 0])], "not in the catalogue"),
        ([entry(0, [1, 1])], "not in the catalogue"),
        ([replace(entry(0, []), public=bytes(31))], "32 bytes"),
    ],
)
def test_what_cannot_be_is_refused(owners, why):
    with pytest.raises(DataError, match=why):
        directory(owners)
