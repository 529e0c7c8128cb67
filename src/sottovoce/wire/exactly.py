"""The terms of a federation setting by setting: each on one line, and what a server has changed in
them. For people: `plainly`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.wire.terms import Terms

_MOST_CLASSES = 8


def settings(terms: Terms) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in terms.to_table().items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): v for name, v in inner.items()}
    return flat


def short(value: Any) -> Any:
    """A setting on one line."""
    if isinstance(value, str):
        return _fingerprint(value)
    if isinstance(value, list | tuple):
        return "; ".join(
            ", ".join(f"{k} {_few(v)}" for k, v in one.items())
            if isinstance(one, dict)
            else str(one)
            for one in value
        )
    return value


def _few(value: Any) -> str:
    """The first of many classes, or of their shares."""
    if not isinstance(value, list | tuple):
        return _fingerprint(str(value))
    more = " | …" if len(value) > _MOST_CLASSES else ""
    return f"({' | '.join(map(str, value[:_MOST_CLASSES]))}{more})"


def _fingerprint(text: str) -> str:
    """In the place of a certificate; any other text as it is."""
    if "-----BEGIN" not in text:
        return text
    return f"certificate {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def changes(before: Terms | None, after: Terms | None) -> list[tuple[str, Any, Any]]:
    if before is None or after is None:
        return []
    old, new = settings(before), settings(after)
    keys = sorted(old.keys() | new.keys())
    changed = [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]
    return [(k, short(a), short(b)) for k, a, b in changed]
