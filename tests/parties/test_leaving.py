"""What a transport takes can be had from a door alone."""

import copy
import dataclasses
import pickle

import pytest

from sottovoce.errors import ConfigError, ConsentError, SottovoceError
from sottovoce.parties.leaving import Booked, Leaving, body_of, let_go

BOOKED = Booked((7,), "report", 6, 0.5)


@pytest.fixture
def leaving():
    return let_go(b"secret", BOOKED)


def test_a_door_lets_go_what_it_has_booked(leaving):
    assert (body_of(leaving), len(leaving), leaving.booked) == (b"secret", 6, BOOKED)
    sealed = leaving.wrapped(lambda body: b"<" + body + b">")
    assert (type(sealed), body_of(sealed), sealed.booked) == (Leaving, b"<secret>", BOOKED)
    assert body_of(leaving) == b"secret"


@pytest.mark.parametrize("key", [None, object(), 0, "key"])
def test_nobody_else_makes_one(key):
    with pytest.raises(ConsentError, match="only a door"):
        Leaving(key, b"secret", BOOKED)


def test_it_has_no_subclass():
    with pytest.raises(TypeError):
        type("Other", (Leaving,), {})


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda one: dataclasses.replace(one, _body=b"other"),
        lambda one: setattr(one, "_body", b"other"),
        lambda one: setattr(one, "other", b"other"),
        lambda one: delattr(one, "_body"),
    ],
)
def test_it_is_neither_copied_nor_changed(leaving, again):
    with pytest.raises((TypeError, AttributeError)):
        again(leaving)
    assert body_of(leaving) == b"secret"


def empty():
    return object.__new__(Leaving)


def forged():
    made = object.__new__(Leaving)
    for name, value in (("_body", b"secret"), ("_booked", BOOKED), ("_key", object())):
        object.__setattr__(made, name, value)
    return made


class Alike:
    _body, booked, _key = b"secret", BOOKED, None


@pytest.mark.parametrize("make", [empty, forged, Alike, lambda: b"secret", lambda: None])
def test_a_transport_takes_nothing_else(make):
    with pytest.raises(ConfigError, match="what its door has let go"):
        body_of(make())


@pytest.mark.parametrize("make", [empty, forged])
def test_what_was_forged_is_not_good_once_it_is_wrapped(make):
    with pytest.raises((SottovoceError, AttributeError)):
        make().wrapped(lambda body: b"secret")


def test_nothing_of_it_is_in_a_repr(leaving):
    for text in (repr(leaving), repr(leaving.booked), f"{leaving}"):
        assert "redacted" in text
        assert "secret" not in text
        assert "7" not in text
