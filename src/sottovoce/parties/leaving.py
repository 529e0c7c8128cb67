"""What a door has let go: the only thing that a transport of a device, a gateway or a user takes.

A door reads consent, books what leaves, and then makes a `Leaving` with `let_go`; an architecture
test holds that nobody else names this function, and that only transports wrap what they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, ConsentError

_KEY = object()


@dataclass(frozen=True, slots=True, repr=False)
class Booked:
    """What a store has on record of something that leaves."""

    who: tuple[int, ...]
    """Numbers of the users whose it is."""
    what: str
    bytes: int
    epsilon: float
    """Cost for the user whom it costs most."""

    def __repr__(self) -> str:
        return f"<Booked {self.what}, redacted>"


class Leaving(Redacted):
    """Bytes that may leave, and that are on record as having left."""

    __slots__ = ("_body", "_booked", "_key")

    _body: bytes
    _booked: Booked
    _key: object

    def __init__(self, key: object, body: bytes, booked: Booked) -> None:
        if key is not _KEY:
            raise ConsentError("only a door lets anything leave; ask it, and send what it returns")
        for name, value in (("_body", bytes(body)), ("_booked", booked), ("_key", key)):
            object.__setattr__(self, name, value)

    def __init_subclass__(cls, **options: Any) -> NoReturn:
        raise TypeError("Leaving has no subclasses: each would be another way out")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("what leaves is as the door has booked it")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("what leaves is as the door has booked it")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("what leaves is not copied and not pickled; ask the door again")

    def __len__(self) -> int:
        return len(self._body)

    @property
    def booked(self) -> Booked:
        return self._booked

    def wrapped(self, seal: Callable[[bytes], bytes]) -> Leaving:
        """The same, signed or sealed or put into a frame on its way."""
        return Leaving(self._key, seal(self._body), self._booked)


def let_go(body: bytes, booked: Booked) -> Leaving:
    """For doors alone, once `booked` is durable."""
    return Leaving(_KEY, body, booked)


def body_of(leaving: Leaving) -> bytes:
    """The bytes, for a transport; raises where no door has let them go."""
    if type(leaving) is not Leaving or getattr(leaving, "_key", None) is not _KEY:
        raise ConfigError(
            f"a device sends what its door has let go, not {type(leaving).__name__}; ask the door "
            "(DeviceSession, UserDoor) for it"
        )
    return leaving._body
