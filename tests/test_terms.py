"""Terms: they survive the wire, and a device is not talked into others."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.fpl import FPLConfig
from sottovoce.errors import ConfigError, MessageError, VersionMismatch
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.terms import LARGEST_MODEL, PROTOCOL, Terms

TERMS = Terms.of("town-1", 50, FPLConfig(configuration="pFPL+"), 7, ShareFraction("draw"))


def test_terms_survive_the_wire():
    again = Terms.from_table(json.loads(json.dumps(TERMS.to_table())))
    assert again == TERMS
    assert again.digest() == TERMS.digest()
    assert (again.triples, again.width, again.max_rows) == (7, 11, 14)


@pytest.mark.parametrize(
    "other",
    [
        replace(TERMS, federation="town-2"),
        replace(TERMS, n_items=51),
        replace(TERMS, algorithm=replace(TERMS.algorithm, learning_rate=0.06)),
        replace(TERMS, release=ShareFraction("item")),
    ],
)
def test_other_terms_have_another_digest(other):
    assert other.digest() != TERMS.digest()


def test_another_version_is_named():
    table = TERMS.to_table() | {"protocol": PROTOCOL + 1}
    with pytest.raises(VersionMismatch, match=f"version {PROTOCOL + 1}.*version {PROTOCOL}"):
        Terms.from_table(table)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"n_items": "50"},
        {"n_items": 1},
        {"n_items": 10**9},
        {"algorithm": {"name": "fpl", "triples": 3, "unknown": 1}},
        {"algorithm": {"name": "fpl", "triples": 3, "learning_rate": 10**400}},
        {"algorithm": {"name": "fpl", "triples": 3, "reg_user": 10**400}},
        {"algorithm": {"name": "other"}},
        {"algorithm": {"name": "fpl", "triples": "mean"}},
        {"release": {"name": "share-fraction", "per": "week"}},
        {"release": 3},
    ],
)
def test_nonsense_is_refused_whole(change):
    with pytest.raises(MessageError):
        Terms.from_table(TERMS.to_table() | change)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x), max_leaves=5))
def test_anything_else_is_refused(table):
    with pytest.raises(MessageError):
        Terms.from_table(table)


def test_a_model_that_no_device_could_take_is_no_federation():
    most = LARGEST_MODEL // (4 * TERMS.width)
    assert replace(TERMS, n_items=most).n_items == most
    with pytest.raises(ConfigError, match=r"larger than 512 MiB"):
        replace(TERMS, n_items=most + 1)


@pytest.mark.parametrize(("triples", "revealing"), [(1, False), (12, False), (13, True)])
def test_draws_that_cover_half_of_all_items_are_told(triples, revealing):
    terms = replace(TERMS, algorithm=replace(TERMS.algorithm, triples=triples))
    assert terms.revealing == revealing


def test_the_mean_number_of_items_is_nobodys_to_know():
    with pytest.raises(ConfigError, match="triples must be a number"):
        Terms("x", 10, FPLConfig(), ShareFraction())
