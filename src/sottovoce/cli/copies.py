"""`sottovoce backup` and `sottovoce restore`, of every folder that has a state."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Said, says
from sottovoce.errors import SottovoceError

Target = Annotated[
    Path, typer.Argument(metavar="BACKUP", help="File to make; nothing may be there yet.")
]
Backup = Annotated[Path, typer.Argument(metavar="BACKUP", help="File of a backup.")]
WithoutKeys = Annotated[
    bool,
    typer.Option(
        "--without-keys", help="Leave keys and other secrets out, which are kept elsewhere."
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folder of the keys that were left out. By default it is the folder into "
        "which the copy is put.",
    ),
]


@says
def backup(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a store, or of a service.")
    ],
    target: Target,
    without_keys: WithoutKeys = False,
) -> Said:
    """Copy a person's store or the folder of a service, also while its agent or service runs.

    DIR is a store, also one of `sottovoce serve supernode`, or the folder of `serve server`,
    `superlink`, `shuffler`, `helper`, `aggregator`, `owner` or `orchestrator`. BACKUP is a new
    file of mode 600, a gzipped tar: databases as they are at one moment, and the keys (unless
    --without-keys: keep them elsewhere, nobody can use the copy without them). It is there whole or
    not at all and is as secret as DIR: whoever reads it has the keys and what is in the database.
    A state in PostgreSQL is copied by pg_dump, beside this. The reports that a shuffler holds are
    never in a copy.

    \b
    Examples:
      sottovoce backup ~/sottovoce /media/stick/sottovoce-monday.tar.gz
      sottovoce backup town /media/safe/town-monday.tar.gz
      sottovoce backup masks /media/safe/masks-monday.tar.gz --without-keys
    """
    content, words = _backup(folder, target, without_keys)
    if content["kind"] == "server":
        from sottovoce.cli.serve_server import acting

        # A copy is a copy, whether or not its server's database can be written.
        with contextlib.suppress(SottovoceError), acting(folder) as acts:
            acts.note("backup", {"place": str(target), "keys": not without_keys})
    return content, words


@says
def restore(
    source: Backup,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder into which it is put: the one of which it was made."
        ),
    ],
    next_round: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="A round that no device has seen yet, with which it goes on. A shuffler or helper "
            "needs it if the former folder is lost; else the former folder says it.",
        ),
    ] = None,
    keys: Keys = None,
) -> Said:
    """Put a backup back, and say what an old copy means.

    Stop the service first. Everything in BACKUP is checked before anything is changed; then DIR is
    exchanged as a whole, logs of its databases included, and what was there is kept beside it, as
    DIR.before-TIME. A backup of another federation or of another kind of service is refused.

    An old copy has forgotten what happened since. So that nothing is done twice, it goes on after
    the last round of the former folder, or with --next-round. The helper of a secure sum tells no
    sum of earlier rounds, a shuffler takes no report for them, and a server does not ask for them.
    Nobody in a store that is put back takes part until its user says so again, and a limit on ε
    over all rounds is 0 until she sets it anew. Set it lower than it was, by all that may have left
    since. A store that can be read and knows of more is not replaced.

    \b
    Examples:
      sottovoce restore /media/stick/sottovoce-monday.tar.gz ~/sottovoce
      sottovoce restore /media/safe/town-monday.tar.gz town
      sottovoce restore /media/safe/masks-monday.tar.gz masks --next-round 120
    """
    return _restore(source, folder, next_round, keys)


def _backup(folder: Path, target: Path, without_keys: bool) -> Said:
    from sottovoce.services.copies.copying import make_backup

    with output.interruptible("no backup was made"):
        made = make_backup(folder, target, keys=not without_keys)
    found = made.manifest
    content = {
        "folder": folder,
        "backup": target,
        "kind": found.kind,
        "federation": found.federation or None,
        "created": found.created,
        "files": made.files,
        "bytes": made.bytes,
        "left_out": list(found.left_out),
        "notes": list(made.notes),
    }
    federation = f" of {found.federation}" if found.federation else ""
    keys = "It has no keys: keep them elsewhere, it is of no use without them."
    if not without_keys:
        keys = f"Its keys are in it: guard it like {folder} itself."
    made_of = f"{target}: {made.kind.words}{federation}, {made.files} files"
    return content, [f"{made_of}, {made.bytes:,} bytes.", keys, *made.notes]


def _restore(
    source: Path,
    folder: Path,
    next_round: int | None,
    keys: Path | None,
) -> Said:
    from datetime import UTC, datetime

    from sottovoce.services.copies.copying import restore_backup

    with output.interruptible("nothing was changed"):
        done = restore_backup(source, folder, next_round=next_round, keys=keys)
    found, settled = done.manifest, done.settled
    means = list(settled.means)
    if done.open_to_others:
        means.append(f"{source} may be read by others: close it, and think of what they may know.")
    content = {
        "backup": source,
        "folder": folder,
        "kind": found.kind,
        "federation": found.federation or None,
        "created": found.created,
        "before": done.aside,
        "next_round": settled.next_round,
        "means": means,
    }
    federation = f" of {found.federation}" if found.federation else ""
    made = f"{found.created}, {found.age(datetime.now(UTC))}"
    lines = [f"{folder}: {done.kind.words}{federation} as it was at {made}."]
    if done.aside is not None:
        lines.append(f"What was there is in {done.aside}; it is as secret as before.")
    return content, [*lines, *means]
