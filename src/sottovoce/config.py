"""From tables of an experiment file to frozen dataclasses: unknown keys and wrong types raise."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeGuard, TypeVar

from sottovoce.errors import ConfigError

T = TypeVar("T")


def build(cls: type[T], table: Mapping[str, object], where: str) -> T:
    """`cls(**table)` with every key and type checked. `where` names the table in messages."""
    if not isinstance(table, Mapping):  # what others have sent may be anything
        raise ConfigError(f"{where} must be a table")
    known = {f.name: f for f in fields(cls) if f.init} if is_dataclass(cls) else {}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"[{where}] has unknown keys {unknown}; known are {sorted(known)}")
    missing = [
        name
        for name, f in known.items()
        if name not in table and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"[{where}] lacks {missing}")
    hints = typing.get_type_hints(cls)
    values = {
        name: _checked(value, hints[name], f"{where}.{name}") for name, value in table.items()
    }
    try:
        return cls(**values)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if where in message else f"[{where}] {message}") from None


def _checked(value: object, hint: Any, where: str) -> object:
    for option in _options(hint):
        fits, converted = _fit(value, option)
        if fits:
            return converted
    shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:60]}…"
    raise ConfigError(f"{where} must be {_words(hint)}, not {shown}")


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fit(value: object, option: Any) -> tuple[bool, object]:
    origin = typing.get_origin(option)
    if origin is typing.Literal:
        return value in typing.get_args(option), value
    if origin is tuple:
        inner = typing.get_args(option)[0]
        if not isinstance(value, list | tuple):
            return False, value
        parts = [_fit(v, inner) for v in value]
        return all(fits for fits, _ in parts), tuple(v for _, v in parts)
    if option is type(None):
        return value is None, value
    if option is float:
        if isinstance(value, float):
            return value == value, value
        return (True, float(value)) if _is_int64(value) else (False, value)
    if option is int:
        return _is_int64(value), value
    if isinstance(option, type) and is_dataclass(option) and isinstance(value, dict):
        return True, build(option, value, option.__name__.lower())
    return isinstance(value, option), value


def require_whole(name: str, value: object, low: int, high: int = 2**62) -> None:
    """Raises where `value` is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        most = "" if high == 2**62 else f" and at most {high:,}"
        raise ConfigError(f"{name} must be a whole number of at least {low}{most}, not {value!r}")


def require_number(name: str, value: float, low: float, high: float, *, above: bool = True) -> None:
    """Raises where `value` lies not in (low, high], or, without `above`, in [low, high]."""
    if not (low < value or (value == low and not above)) or not value <= high:
        start = "(" if above else "["
        raise ConfigError(f"{name} must lie in {start}{low:g}, {high:g}], not {value:g}")


def _is_int64(value: object) -> TypeGuard[int]:
    # TOML and Python know larger ones; no array here does.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _words(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words += [repr(choice) for choice in typing.get_args(option)]
        elif typing.get_origin(option) is tuple:
            inner = typing.get_args(option)[0]
            words.append("a list of tables" if is_dataclass(inner) else "a list")
        elif option is not type(None):
            words.append(names.get(option, str(getattr(option, "__name__", option))))
    return " or ".join(words)


def assign(table: dict[str, Any], setting: str) -> None:
    """Apply one `a.b=c` from the command line to a nested table. The value is read as TOML where
    that works, else taken as text; a second assignment within it is refused."""
    import tomllib

    path, sign, text = setting.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not sign or not all(names):
        raise ConfigError(f"--set wants key=value with a dotted key, not {setting!r}")
    value: object = text
    lines = "\n" in text or "\r" in text
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        read = {}
    if read.keys() == {"value"}:
        value = read["value"]
    elif lines:
        raise ConfigError(f"--set takes one key=value, not {setting!r}; repeat --set for another")
    for name in names[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {setting}: {name} is not a table")
        table = inner
    table[names[-1]] = value


def toml_value(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {toml_value(one)}" for name, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(one) for one in value)}]"
    if isinstance(value, float):
        return repr(value)  # also inf and nan, which JSON has not
    if isinstance(value, str | bool | int):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"{value!r} cannot be written to an experiment file")


def toml_document(table: Mapping[str, object]) -> str:
    """A whole file: single values first, then a section for each table."""
    single = {name: one for name, one in table.items() if not isinstance(one, Mapping)}
    parts = ["".join(f"{_key(name)} = {toml_value(one)}\n" for name, one in single.items())]
    for name, section in table.items():
        if isinstance(section, Mapping):
            lines = (f"{_key(inner)} = {toml_value(one)}\n" for inner, one in section.items())
            parts.append(f"[{_key(name)}]\n{''.join(lines)}")
    return "\n".join(part for part in parts if part)


def edited(text: str, table: Mapping[str, object]) -> str:
    """The text of an experiment file, changed so that it says what `table` says: other values in
    place, new ones at the end of their sections, and all comments kept. Where that cannot be done
    so simply, it is written anew, without comments."""
    import tomllib

    lines, before = text.splitlines(), tomllib.loads(text)
    for section, value in table.items():
        inner = value if isinstance(value, Mapping) else {section: value}
        old = before.get(section, {}) if isinstance(value, Mapping) else before
        for name, one in inner.items():
            if not isinstance(old, Mapping) or name not in old or old[name] != one:
                head = section if isinstance(value, Mapping) else ""
                _put(lines, head, _key(name), toml_value(one))
    found = "\n".join(lines) + "\n"
    try:
        right = tomllib.loads(found) == table
    except tomllib.TOMLDecodeError:
        right = False
    return found if right else toml_document(table)


def _put(lines: list[str], section: str, name: str, value: str) -> None:
    """Sets one value of a section among the lines of a file."""
    heads = [k for k, line in enumerate(lines) if line.lstrip().startswith("[")]
    ends = [*heads, len(lines)]
    start, stop = 0, ends[0]
    if section:
        mine = [k for k in heads if lines[k].split("#")[0].strip() == f"[{section}]"]
        if not mine:
            lines += ["", f"[{section}]", f"{name} = {value}"]
            return
        start, stop = mine[0] + 1, ends[heads.index(mine[0]) + 1]
    for k in range(start, stop):
        found = re.fullmatch(rf"(\s*{re.escape(name)}\s*=\s*)([^#]*?)(\s*#.*)?", lines[k])
        if found is not None:
            lines[k] = f"{found[1]}{value}{found[3] or ''}"
            return
    while stop > start and not lines[stop - 1].strip():
        stop -= 1
    lines.insert(stop, f"{name} = {value}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
