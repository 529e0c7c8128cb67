"""One catalogue of messages, in English and Italian, for pages and the command line.

A sentence has a key and values; what is said of a person's privacy is kept as that (`Said`) until
somebody reads it, in her language. Templates have `{name}`, or `{name:kind}` with one of the kinds
`day`, `bytes` and `percent`. Where there is `KEY.one` beside `KEY.other`, the value `n` decides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError

LANGUAGES = ("en", "it")


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence before it is read."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "values": dict(self.values)}


def said(key: str, **values: Any) -> Said:
    return Said(key, values)


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Every template of a language by its key."""
    if language not in LANGUAGES:
        raise ConfigError(f"there are words in {' and '.join(LANGUAGES)}, not in {language!r}")
    text = (Path(__file__).parent / f"{language}.toml").read_text(encoding="utf-8")
    return _flat(tomllib.loads(text))


def say(what: Said, language: str = "en") -> str:
    """The sentence, in this language."""
    templates = catalogue(language)
    key = what.key
    if key not in templates:
        key += ".one" if what.values.get("n") == 1 else ".other"
    if key not in templates:
        raise ConfigError(f"there are no words for {what.key}")
    text = templates[key]
    for name, value in what.values.items():
        for kind in ("", ":day", ":bytes", ":percent"):
            text = text.replace("{" + name + kind + "}", _shown(value, kind[1:], language))
    return text


def _shown(value: Any, kind: str, language: str) -> str:
    if kind == "day" and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d")
    return str(value)


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found
