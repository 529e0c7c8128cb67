"""One exception tree. Every error a user can cause says what, where and what to do.

SottovoceError (1)
├── UsageError (2)            a bad option, experiment file or value
│   └── ConfigError           unknown key, wrong type or out-of-range value
├── DataError (3)             a file or table that cannot be used
│   ├── DataNotFound
│   └── CorruptData
├── RunError (4)              a run folder or a training run that cannot go on
│   ├── FolderInUse
│   ├── Diverged
│   ├── Stalled               a federation in which too few may still take part
│   └── RankLost              a rank of a distributed run stops because another one has
├── ConsentError (5)          something would leave a device against its owner's word
├── Told                      trouble whose sentence is in the catalogue of messages
├── MessageError (6)          a message that must be rejected whole
│   └── VersionMismatch       the other side speaks another version
└── ServiceError (7)          a service that cannot start, or another one that cannot be reached
    ├── Unreachable           nobody answers, or not as a server of this federation would
    ├── KeyTrouble            a key or certificate that is missing, expired or not the right one
    │   └── Untrusted         a server that cannot show that it is the right one
    │       └── WrongClock    because its certificate holds at another time than now
    └── StoreError            a device's store that cannot be opened, read or written

The number is the exit code of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SottovoceError(Exception):
    """Base of everything we raise on purpose; its text is a sentence for whoever caused it.

    Example:
        ```python
        try:
            sv.load("nowhere.csv")
        except sv.SottovoceError as error:
            print(error)
        ```
    """

    exit_code = 1


class UsageError(SottovoceError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class DataError(SottovoceError):
    exit_code = 3


class DataNotFound(DataError):
    pass


class CorruptData(DataError):
    pass


class DoesNotApply(DataError):
    """An attack's own word that there is nothing here that it could attack."""


class RunError(SottovoceError):
    exit_code = 4


class FolderInUse(RunError):
    pass


class Diverged(RunError):
    pass


class AttackFailed(RunError):
    """An attack fell over, so that nothing is known of what it tests."""


class Stalled(RunError):
    pass


class RankLost(RunError):
    """Another rank has stopped, is gone, or is not like this one."""

    def __init__(self, sentence: str, *, said: bool = False) -> None:
        super().__init__(sentence)
        self.said = said
        """Whether the rank that it is about, or another one, says so; this one can be quiet."""


class ConsentError(SottovoceError):
    exit_code = 5


class Told(SottovoceError):
    """Trouble that a person reads in her language: a key of the catalogue, and values. They may be
    private, so that the error's own text has the key alone."""

    def __init__(self, key: str, /, **values: object) -> None:
        super().__init__(key)
        self.key, self.values = key, values


class MessageError(SottovoceError):
    exit_code = 6


class WrongSum(MessageError):
    """A proxy's sum of masks cannot be that of the submissions it was asked for."""


class SpoiledSum(WrongSum):
    """A sum that was opened is none of honest devices': one of them sent what no honest one does,
    or the proxy told a wrong sum of masks."""


class VersionMismatch(MessageError):
    pass


class ServiceError(SottovoceError):
    exit_code = 7


class Unreachable(ServiceError):
    pass


class KeyTrouble(ServiceError):
    pass


class Untrusted(KeyTrouble):
    pass


class WrongClock(Untrusted):
    pass


class StoreError(ServiceError):
    pass


def other_format(place: object, found: object, *known: int) -> str:
    """Return the sentence that refuses what was written in another format."""
    formats = f"format{'s' * (len(known) > 1)} {' and '.join(map(str, known))}"
    has = "no format number" if found is None else f"format {found}"
    return (
        f"{place} has {has}, and this release reads {formats} alone; nothing in it was "
        "changed: use the release that wrote it"
    )


@contextmanager
def said_of(whom: str) -> Iterator[None]:
    """What is raised on purpose in here begins with whom it is about."""
    try:
        yield
    except SottovoceError as error:
        error.args = (f"{whom}: {error}", *error.args[1:])
        raise
