"""Documents that people hand to each other as files: JSON with the version of the protocol.

If one cannot be used, the reason is one sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import typing
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from sottovoce import config
from sottovoce.errors import UsageError, VersionMismatch
from sottovoce.wire.frames import DRIFT_PROTOCOLS, PROTOCOL, SAME_RELEASE, check_protocol

_LARGEST_FILE = 256 << 20


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """What all kinds have in common."""

    _kind: ClassVar[str]
    _from: ClassVar[str]
    """What makes such files, for the message that asks for another one."""
    _secret: ClassVar[bool] = False
    _protocols: ClassVar[tuple[int, ...]] = DRIFT_PROTOCOLS
    """The versions of the protocol under which this content was written."""

    def to_table(self) -> dict[str, Any]:
        """As it stands in the file; bytes are hexadecimal."""
        table = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"protocol": PROTOCOL, **table}

    @classmethod
    def from_table(cls, table: object) -> Self:
        """From the content of a file. Raises with one sentence where it is none of this kind."""
        if not isinstance(table, dict):
            raise UsageError(f"this is no {cls._kind}; ask {cls._from} for another")
        names = [field.name for field in fields(cls)]
        if set(table) - {"protocol"} != set(names):
            raise UsageError(
                f"a file of this kind ({cls._kind}) has the fields {', '.join(names)}; ask "
                f"{cls._from} for another"
            )
        spoken = table.get("protocol")
        check_protocol(spoken, f"the {cls._kind} is for", SAME_RELEASE, cls._protocols)
        hints = typing.get_type_hints(cls)
        return cls(**{name: _value(name, hints[name], table[name]) for name in names})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises with one sentence where the file is missing or not of this kind."""
        try:
            with path.open("rb") as source:
                text = source.read(_LARGEST_FILE + 1)
        except OSError as error:
            raise UsageError(
                f"the {cls._kind} {path} cannot be read: {error.strerror or error}"
            ) from None
        if len(text) > _LARGEST_FILE:
            raise UsageError(f"{path} is too large for a file of this kind, {cls._kind}")
        try:
            return cls.from_table(json.loads(text))
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is no {cls._kind}; ask {cls._from} for another") from None
        except (UsageError, VersionMismatch) as error:
            raise type(error)(f"{path}: {error}") from None

    def write(self, path: Path, *, replace: bool = False) -> None:
        """Whole or not at all, on the disk when this returns; over an existing file only with
        `replace`. A secret is for the operator's eyes alone."""
        text = json.dumps(self.to_table(), indent=1) + "\n"
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        mode = 0o600 if self._secret else 0o644
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            if replace:
                os.replace(fresh, path)
            else:
                os.link(fresh, path)
        except FileExistsError:
            raise UsageError(f"{path} is there already and is not overwritten") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
        if sys.platform == "win32":  # which opens no folders
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value) and not isinstance(value, type):
        return value.to_table() if hasattr(value, "to_table") else asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _value(name: str, hint: Any, found: Any) -> Any:
    """What `_plain` gave that, for a field of this type."""
    kinds: dict[Any, tuple[type[Any], str]] = {
        str: (str, "text"),
        int: (int, "a whole number"),
        bytes: (str, "hexadecimal"),
    }
    other = (dict, "a table") if is_dataclass(hint) else (list, "a list")
    kind, words = kinds.get(hint, other)
    wrong = UsageError(f"{name} must be {words}")
    if not isinstance(found, kind) or isinstance(found, bool):
        raise wrong
    if isinstance(hint, type) and is_dataclass(hint):
        return config.build(hint, found, name)
    if hint is bytes:
        try:
            return bytes.fromhex(found)
        except ValueError:
            raise wrong from None
    return tuple(found) if isinstance(found, list) else found
