"""Copies of the helper of a secure sum, and of an aggregator of a checked one. An old one has
forgotten which sums were told since, and from two sums over sets that differ in one device this
device's update would follow: so it tells none of a round that may have been told already."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.services.copies.kind import (
    CHANGED_TERMS,
    FolderKind,
    Resumption,
    Whose,
    keep_newer_files,
)
from sottovoce.stores.aggregator_folder import COINS_SECRET, AggregatorIntroduction
from sottovoce.stores.helper_folder import HelperIntroduction
from sottovoce.stores.keys import read_private_key
from sottovoce.stores.sum_folder import (
    ANSWERED,
    INTRODUCTION,
    NEXT,
    NOISE_SECRET,
    PUBLIC_KEY,
    SEAL_KEY,
    Answers,
    SumIntroduction,
)


def _whose(path: Path) -> Whose:
    return _whose_of(path, HelperIntroduction)


def _whose_aggregator(path: Path) -> Whose:
    return _whose_of(path, AggregatorIntroduction)


def _whose_of(path: Path, kind: type[SumIntroduction]) -> Whose:
    for name in (PUBLIC_KEY, ANSWERED):
        if not (path / name).is_file():
            raise ServiceError(
                f"{path / name} is not there; this is no whole folder of a {kind.command}"
            )
    place = path / INTRODUCTION
    federation = kind.read(place).terms.federation if place.is_file() else ""
    public = (path / PUBLIC_KEY).read_bytes().strip()
    if (path / SEAL_KEY).is_file():
        key = X25519PrivateKey.from_private_bytes(read_private_key(path / SEAL_KEY))
        if key.public_key().public_bytes_raw().hex().encode() != public:
            raise KeyTrouble(f"{SEAL_KEY} is not the key of {PUBLIC_KEY}; look for the right one")
    return Whose.of(federation, public)


def _settle(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    answers, newer = Answers(copy / ANSWERED), _answers(before)
    if newer is None and next_round is None:
        raise UsageError(
            f"the copy knows of sums up to round {answers.last[0]}, and of which were told since, "
            "nobody here can say; name a round of which none was told with --next-round, by what "
            "its metrics or log, devices and their owners say, not by what the server "
            "says alone: too high costs rounds, too low a device's update"
        )
    changed = False
    if newer is not None and before is not None:
        # An older copy in its place knows no newer terms.
        if newer.last.round >= answers.last.round:
            changed = keep_newer_files(copy, before, (INTRODUCTION, NEXT))
        answers.go_on_from(newer.last)
    if next_round is not None:
        answers.refuse_before(next_round)
    first = answers.last[0] + 1
    told = [
        "It tells no sum of a round before that but, of the last that it knows of, the same again.",
        "A server that is not there yet has to skip to it: `sottovoce serve server DIR "
        f"--skip-to-round {first}`.",
    ]
    return Resumption(
        (
            f"The first round of which it tells a sum is {first}.",
            *(told if first else []),
            *([CHANGED_TERMS] if changed else []),
            "Let no other copy of this folder run or be started: two of them could tell two sums "
            "of one round.",
        ),
        first,
    )


def _answers(folder: Path | None) -> Answers | None:
    """What the folder that is replaced has told, as far as it can be read."""
    if folder is None:
        return None
    try:
        return Answers(folder / ANSWERED)
    except ServiceError:
        return None


HELPER = FolderKind(
    name="masker",
    words="the helper of a secure sum",
    mark=PUBLIC_KEY,
    whose=_whose,
    settle=_settle,
    files=("keys", SEAL_KEY, PUBLIC_KEY, NOISE_SECRET, INTRODUCTION, NEXT, ANSWERED),
    keys=("keys", SEAL_KEY, NOISE_SECRET, INTRODUCTION, NEXT),
    locks=("masker.lock",),
)
AGGREGATOR = FolderKind(
    name="aggregator",
    words="an aggregator of a checked sum",
    mark=COINS_SECRET,
    whose=_whose_aggregator,
    settle=_settle,
    # What devices have shared is of one round, which an old copy has no part in.
    files=("keys", SEAL_KEY, PUBLIC_KEY, NOISE_SECRET, COINS_SECRET, INTRODUCTION, NEXT, ANSWERED),
    keys=("keys", SEAL_KEY, NOISE_SECRET, COINS_SECRET, INTRODUCTION, NEXT),
    locks=("aggregator.lock",),
)
