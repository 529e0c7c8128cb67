"""Strict reading of experiment tables."""

from dataclasses import dataclass
from typing import Literal

import pytest

from sottovoce.config import assign, build
from sottovoce.errors import ConfigError


@dataclass(frozen=True)
class Part:
    needed: int
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    size: int | Literal["all"] = "all"
    names: tuple[str, ...] = ()
    maybe: float | None = None
    flag: bool = False


def test_good_tables_are_read_and_whole_numbers_pass_as_numbers():
    part = build(Part, {"needed": 1, "rate": 2, "size": 3, "names": ["x"], "maybe": 1}, "part")
    assert part == Part(1, 2.0, "a", 3, ("x",), 1.0)
    assert isinstance(part.rate, float)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "lacks \\['needed'\\]"),
        ({"needed": 1, "extra": 2}, "unknown keys \\['extra'\\]"),
        ({"needed": "1"}, "part.needed must be a whole number"),
        ({"needed": True}, "part.needed"),
        ({"needed": 1.0}, "part.needed"),
        ({"needed": 1, "kind": "c"}, "part.kind must be 'a' or 'b'"),
        ({"needed": 1, "size": "some"}, "part.size"),
        ({"needed": 1, "names": "x"}, "part.names must be a list"),
        ({"needed": 1, "names": [1]}, "part.names"),
        ({"needed": 1, "flag": 1}, "part.flag must be true or false"),
        ({"needed": 1, "rate": "fast"}, "part.rate must be a number"),
        ({"needed": 1, "rate": float("nan")}, "part.rate must be a number, not nan"),
        ({"needed": 1, "rate": 10**400}, "part.rate must be a number, not 1000*…"),
        ({"needed": 10**30}, "part.needed must be a whole number"),
    ],
)
def test_bad_tables_raise_one_clear_sentence(table, words):
    with pytest.raises(ConfigError, match=words):
        build(Part, table, "part")


def test_settings_from_the_command_line():
    table = {"a": {"b": 1}}
    for setting in ("a.b=2", "a.c=true", "d.e.f=0.5", "g=plain words", 'h="quoted"', "l=[1, 2]"):
        assign(table, setting)
    assert table == {
        "a": {"b": 2, "c": True},
        "d": {"e": {"f": 0.5}},
        "g": "plain words",
        "h": "quoted",
        "l": [1, 2],
    }
    for bad in ("a.b", "=1", "a..b=1", "a.b.c=1"):
        with pytest.raises(ConfigError):
            assign(table, bad)


@pytest.mark.parametrize("setting", ["a=1\nb=2", "a=1\n[b]", "a=plain\nwords", "a=\n1"])
def test_a_setting_is_one_assignment(setting):
    table = {}
    with pytest.raises(ConfigError, match="repeat --set"):
        assign(table, setting)
    assert table == {}


def test_a_setting_may_go_over_lines_where_toml_lets_it():
    table = {}
    assign(table, "a=[1,\n2]")
    assert table == {"a": [1, 2]}
