"""Copies of a federation's server, over HTTPS or on Flower. Devices never take part in a round
twice, so an old copy goes on with a round that no device has seen."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from sottovoce.errors import ServiceError, UsageError
from sottovoce.services.copies.kind import FolderKind, Resumption, Whose
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.stores import server as records
from sottovoce.stores.database import Database
from sottovoce.stores.former import LOST, Former, bring_forward
from sottovoce.stores.keys import ReportKeys
from sottovoce.stores.server_folder import CHECKPOINT, DATABASE, ServerFolder, open_folder

"""Its name is spelt here so that servers without Flower can be copied without its libraries."""
_UNKNOWN = (
    "If items or terms were changed since, make the same changes again before you "
    "start it (`sottovoce serve catalogue`, `sottovoce serve terms`): devices refuse older ones."
)
_POSTGRES = (
    "The state is in PostgreSQL and not in the copy: copy it with pg_dump and put it back with "
    "pg_restore, by a file that only you can read."
)


def _whose(path: Path) -> Whose:
    folder = open_folder(path)
    if folder.kept_in() == "sqlite" and not (path / DATABASE).is_file():
        raise ServiceError(
            f"{path / DATABASE} is not there, but the state of this federation was in it"
        )
    federation = folder.plan.terms.federation
    return Whose.of(federation, federation.encode())


def _notes(path: Path) -> tuple[str, ...]:
    shared = open_folder(path).kept_in() == "postgresql"
    flower = (path / "superlink").is_dir()
    return (
        *([_POSTGRES] if shared else []),
        *(
            ["The SuperLink's own folder, superlink/, is not in it; nodes are let in again."]
            if flower
            else []
        ),
    )


def _settle(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    folder = open_folder(copy)
    if folder.kept_in() == "postgresql":
        if next_round is not None:
            raise UsageError(
                "the state of this server is in PostgreSQL and not in the backup; give the round "
                "to `sottovoce serve server DIR --skip-to-round N` instead of --next-round"
            )
        former = None if before is None else Former.read(before)
        return Resumption((_POSTGRES, *_of_files(folder, former), *_means(folder)))
    seen = _rounds(before)
    if seen:
        next_round = max(next_round or 0, max(seen) + 1)
    former = None if before is None else Former.read(before)
    news = _go_on(copy, folder, next_round, former)
    at = max(_rounds(copy), default=0)
    folder = open_folder(copy)
    return Resumption((_goes_on(at, next_round is not None), *news, *_means(folder)), at)


def _of_files(folder: ServerFolder, former: Former | None) -> tuple[str, ...]:
    """Return what the operator should know if only files can be compared: the database decides."""
    if former is None:
        return (LOST, _UNKNOWN)
    if (former.terms, former.catalogue) == (folder.plan.terms, folder.catalogue()):
        return (LOST,)
    return (
        "Items or terms of the copy's files are not those of the former folder. The database "
        "decides: if it was not set back, nothing is lost.",
        LOST,
        _UNKNOWN,
    )


def _go_on(
    copy: Path, folder: ServerFolder, round: int | None, former: Former | None
) -> tuple[str, ...]:
    """Skip the rounds that devices have seen, bring the copy up to the former folder, and return in
    sentences what that changed."""
    news: tuple[str, ...] = (LOST,) if former is not None else (LOST, _UNKNOWN)
    for name in (DATABASE, CHECKPOINT):
        if not (copy / name).is_file():
            continue
        with contextlib.closing(Database.sqlite(copy / name)) as store:
            store.require()
            with store.writing() as link:
                folder = folder.caught_up(link)
                now = records.position(link).round
                amended = former is not None and former.terms != folder.plan.terms
                first = now + 1 if round is None and amended else round
                # Flower's may have been made for its gateways, before the first round.
                begun = name == DATABASE or records.fact(link, "terms") is not None
                if first is not None and first > now and begun:
                    coordinator_of(folder.plan, time.monotonic, folder.keys).skip_to(link, first)
                if former is not None and name == DATABASE:
                    news = bring_forward(link, folder, former)
            folder = folder.follow(store)
        if folder.plan.proxied and round is not None:  # keys that were destroyed are not used again
            ReportKeys(folder.keys).rotate()
    return news


def _rounds(folder: Path | None) -> list[int]:
    """Return the rounds at which the databases are that can be read."""
    found: list[int] = []
    if folder is None:
        return found
    for name in (DATABASE, CHECKPOINT):
        with contextlib.suppress(ServiceError):
            if (folder / name).is_file():
                with contextlib.closing(Database.sqlite(folder / name)) as store:
                    store.require()
                    with store.reading() as link:
                        found.append(records.position(link).round)
    return found


def _goes_on(at: int, skipped: bool) -> str:
    if skipped:
        return (
            f"It goes on with round {at} from the model of the copy; rounds between the two are "
            "lost and not run again (`sottovoce serve target` asks for as many more)."
        )
    return (
        f"It is at round {at}. Devices that have done this one or later ones do not do them again: "
        "where there are any, start it once with --skip-to-round and a number that no device has "
        "seen."
    )


def _means(folder: ServerFolder) -> tuple[str, ...]:
    found = [
        "Budgets are the devices' own: what left since stays in their ledgers and stays spent, "
        "though this server has forgotten it.",
    ]
    if folder.plan.summed:
        found.append(
            "The helper of the secure sum remembers what it has told: for a round before its last "
            "one it refuses, and this server then gives the round up."
        )
    if folder.plan.checked:
        found.append(
            "The other aggregators remember what they have told: for a round before their last one "
            "they refuse, and this server then gives the round up."
        )
    if folder.plan.proxied:
        found.append(
            "Reports that were sealed to keys of the copy can be read by whoever has the copy, "
            "also where the server has destroyed these keys."
        )
    return tuple(found)


SERVER = FolderKind(
    name="server",
    words="the server of a federation",
    mark="catalogue.json",
    whose=_whose,
    settle=_settle,
    files=("federation.json", "catalogue.json", "state.json", "keys"),
    keys=("keys",),
    databases=(DATABASE, CHECKPOINT),
    first=("federation.json", "catalogue.json"),
    locks=("server.lock", "flower.lock"),
    ready=("server-*.json", "superlink.json"),
    notes=_notes,
)
