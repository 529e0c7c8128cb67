"""One catalogue of messages, in English and Italian, for pages and the command line.

A sentence has a key and values; what is said of a person's privacy is kept as that (`Said`) until
somebody reads it, in her language. Templates have `{name}`, or `{name:kind}` with one of the kinds
`day` (seconds since 1970), `bytes` and `percent` (of a share from 0 to 1). Where there is
`KEY.one` beside `KEY.other`, the value `n` decides. How a language writes numbers, days and lists
is in the catalogue, too, under `format`, so that a page writes them in the same way. A value may be
a sentence itself.

The command line reads this at every start, so it imports nothing heavy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError

LANGUAGES = ("en", "it")
KINDS = ("day", "bytes", "percent")
PLACE = re.compile(r"\{(\w+)(?::(\w+))?\}")
"""A place in a template: a name, and perhaps a kind."""
_SIGNS = {True: "∞", False: "–"}
_UNITS = ((1e9, "gigabytes"), (1e6, "megabytes"), (1e3, "kilobytes"), (0.0, "bytes"))


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence before it is read."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "values": {k: _plain(v) for k, v in self.values.items()}}


@dataclass(frozen=True, slots=True)
class Explained:
    """A word that is not plain, and what it means."""

    forms: tuple[str, ...]
    means: str


def said(key: str, **values: Any) -> Said:
    return Said(key, values)


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Every template of a language by its key."""
    return _flat(_read(_known(language)))


@cache
def glossary(language: str) -> Mapping[str, Explained]:
    """The words that the catalogue uses and explains, in this language."""
    _known(language)
    return {
        name: Explained(tuple(word[language]), word[f"{language}_means"])
        for name, word in _read("glossary").items()
    }


def say(what: Said, language: str = "en") -> str:
    """The sentence, in this language. A value is put in as it is, and never read as a template."""
    template = _template(what, language)

    def put(place: re.Match[str]) -> str:
        name, kind = place.group(1), place.group(2) or ""
        value = what.values.get(name)
        if value is None:
            raise ConfigError(f"the words of {what.key} need a value for {name}")
        return _shown(value, kind, language, f"{name} of {what.key}")

    return PLACE.sub(put, template)


def _template(what: Said, language: str) -> str:
    templates = catalogue(language)
    if what.key in templates:
        return templates[what.key]
    if f"{what.key}.other" not in templates:
        raise ConfigError(f"there are no words for {what.key}")
    if "n" not in what.values:
        raise ConfigError(f"the words of {what.key} need a value for n")
    one = what.values["n"] == 1 and f"{what.key}.one" in templates
    return templates[f"{what.key}.one" if one else f"{what.key}.other"]


def _shown(value: Any, kind: str, language: str, where: str) -> str:
    """A value as the language writes it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind:
        write = _WRITE.get(kind)
        if write is None:
            raise ConfigError(f"{where} has the kind {kind!r}, and there are only {KINDS}")
        if not number or not math.isfinite(value):
            raise ConfigError(f"{where} must be a number to be written as {kind}")
        return write(float(value), language)
    if number:
        return _number(value, language)
    if isinstance(value, Said):
        return say(value, language)
    if isinstance(value, list | tuple):
        return _listed([_shown(one, "", language, where) for one in value], language)
    return str(value)


def _number(value: float, language: str, digits: int = 10) -> str:
    if not math.isfinite(value):
        return _SIGNS[value > 0]
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"
    if "e" in text:  # "g" writes what is very large or small with an exponent, which nobody reads
        text = f"{value:,.0f}" if abs(value) >= 1 else f"{value:.12f}".rstrip("0").rstrip(".")
    signs = catalogue(language)
    swapped = {",": signs["format.thousands"], ".": signs["format.point"]}
    return "".join(swapped.get(sign, sign) for sign in text)


def _day(value: float, language: str) -> str:
    try:
        when = datetime.fromtimestamp(value, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        raise ConfigError(f"{value:g} seconds are no day") from None
    words = catalogue(language)
    parts = {"day": str(when.day), "month": words[f"format.month.{when.month}"]}
    parts["year"] = str(when.year)
    return PLACE.sub(lambda place: parts[place.group(1)], words["format.day"])


def _bytes(value: float, language: str) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if value >= size or not size)
    shown = int(value) if not size else float(f"{value / size:.3g}")
    text = _number(shown, language)
    return catalogue(language)[f"format.{unit}"].replace("{number}", text)


def _percent(value: float, language: str) -> str:
    text = _number(float(f"{100 * value:.6g}"), language)
    return catalogue(language)["format.percent"].replace("{number}", text)


_WRITE: dict[str, Callable[[float, str], str]] = {
    "day": _day,
    "bytes": _bytes,
    "percent": _percent,
}


def _plain(value: Any) -> Any:
    """A value that JSON knows; a number that is not finite is told as a sign."""
    if isinstance(value, Said):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _SIGNS[value > 0]
    return value


def _listed(names: list[str], language: str) -> str:
    words = catalogue(language)
    if not names:
        return words["format.nothing"]
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} {words['format.and']} {names[-1]}"


def _known(language: str) -> str:
    if language not in LANGUAGES:
        raise ConfigError(f"there are words in {' and '.join(LANGUAGES)}, not in {language!r}")
    return language


def _read(name: str) -> dict[str, Any]:
    import tomllib  # an agent that has nothing to say reads no catalogue

    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found
