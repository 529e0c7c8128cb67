"""Copies of a shuffler. They hold no report: of what a shuffler holds for the open round, nothing
may be handed over twice, and what it has forgotten must stay forgotten. Two batches of one
round would show the server, by what is in both, whose reports belong together."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sottovoce.errors import ServiceError, UsageError
from sottovoce.services.copies.kind import (
    CHANGED_TERMS,
    FolderKind,
    Resumption,
    Whose,
    connected,
    in_words,
    keep_newer_files,
)
from sottovoce.stores.server_folder import read_introduction
from sottovoce.stores.shuffler import ShufflerStore, copy_accounts
from sottovoce.stores.shuffler_folder import (
    DATABASE,
    HOP_FILE,
    INTRODUCTION,
    NEXT_TERMS,
    SEAL_KEY,
    SECRET,
    TERMS,
    open_shuffler_folder,
)


def _whose(path: Path) -> Whose:
    for name in (SECRET, INTRODUCTION):
        if not (path / name).is_file():
            raise ServiceError(f"{path / name} is not there; this is no whole folder of a shuffler")
    federation = read_introduction(path / INTRODUCTION).federation
    return Whose.of(federation, (path / SECRET).read_bytes().strip())


def _copy(source: Path, target: Path) -> None:
    with in_words(source), connected(source) as link:
        copy_accounts(link, target)


def _settle(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    place = copy / DATABASE
    if not place.is_file():
        raise ServiceError("the backup lacks the shuffler's accounts; use another one")
    # The marks of what has left are outside the folder, and may be here where the folder is not.
    marks = open_shuffler_folder(copy).marks()
    left, former = marks.read(), _round(before)
    seen, changed = former, False
    if left is not None:
        seen = max(-1 if seen is None else seen, left.next_round - 1)
    if seen is None and next_round is None:
        raise UsageError(
            "nobody here can say for which rounds devices have sent since the copy was made; name "
            "a round that no device has sent in with --next-round, by what devices or the server's "
            "operator say"
        )
    first = max([0 if seen is None else seen + 1, next_round or 0])
    with contextlib.closing(ShufflerStore(place)) as store:
        if before is not None and former is not None and former >= store.position.round:
            with contextlib.suppress(ServiceError):  # where they cannot be read, the copy's stay
                newer = open_shuffler_folder(before)
                _ = newer.terms(), newer.agreed()
                changed = keep_newer_files(copy, before, (TERMS, NEXT_TERMS))
        first = max(first, store.position.round + 1)
        marks.begin(first)
        store.go_on_with(first)
    return Resumption(
        (
            f"It takes nothing for rounds before round {first}. What devices had sent in the open "
            "one is not in a backup and counts for nobody; it stays in their ledgers as spent.",
            f"Let the server go on with that round: `sottovoce serve server DIR --skip-to-round "
            f"{first}`.",
            "Devices that came since are not known here; they enrol again by themselves.",
            *([CHANGED_TERMS] if changed else []),
        ),
        first,
    )


def _round(folder: Path | None) -> int | None:
    """The last round that the folder that is replaced knows of."""
    if folder is None or not (folder / DATABASE).is_file():
        return None
    try:
        with contextlib.closing(ShufflerStore(folder / DATABASE)) as store:
            return store.position.round
    except ServiceError:
        return None


SHUFFLER = FolderKind(
    name="proxy",
    words="a shuffler",
    mark=SECRET,
    whose=_whose,
    settle=_settle,
    files=("keys", SECRET, INTRODUCTION, TERMS, NEXT_TERMS, SEAL_KEY, HOP_FILE),
    keys=("keys", SECRET, INTRODUCTION, SEAL_KEY),
    databases=(DATABASE,),
    copy=_copy,
    locks=("proxy.lock",),
    notes=lambda path: (
        "The reports that it holds now are not in it: they are handed over once, or never.",
    ),
)
