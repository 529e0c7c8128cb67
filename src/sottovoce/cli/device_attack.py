"""`sottovoce device attack`: our attacks on what a device would send, run on this device alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Store, User

if TYPE_CHECKING:
    from sottovoce.web.learn import Finding


def attack(
    path: Store,
    user: User = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", metavar="T", min=1, max=1000,
            help="Rounds that are enacted; by default as many as attacks need.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Say what others could learn of you: try attacks on what this device would send, here.

    The command enacts what the device would send next under the choice in force, with copies and
    with draws of its own. It gives each party what would reach it, and tries every attack that can
    be tried on one device. Nothing leaves, nothing is booked, and the store stays as it is. In a
    federation of data owners no attack is needed: what each was told, or will be, is listed.

    \b
    Examples:
      sottovoce device attack ~/sottovoce
      sottovoce device attack ~/sottovoce --rounds 50 --json
    """
    from sottovoce.core.words import said, say
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import UserStore, whose
    from sottovoce.web.learn import what_owners_read, what_they_learn

    with open_store(path, readonly=True) as store, output.interruptible("nothing was changed"):
        number = whose(store, user)
        name = store.name(number)
        if isinstance(store, UserStore):
            found = what_owners_read(store, number)
        else:
            with output.progress() as progress:
                found = what_they_learn(
                    store, number, rounds=rounds,
                    report=lambda done, total: progress("attacks", done, total),
                )  # fmt: skip
    if as_json:
        output.emit({"store": path, "user": name, "findings": [f.to_json() for f in found]})
        return
    output.show(say(said("learn.about")))
    for finding in found:
        output.show("", *_lines(finding))


def _lines(finding: Finding) -> list[str]:
    """A finding as its owner reads it."""
    from sottovoce.core.words import said, say

    verdict = say(said(f"learn.verdict.{finding.verdict}"))
    lines = [
        f"{output.one_line(say(finding.who))}: “{say(finding.promise)}” {verdict}",
        f"  {output.one_line(say(finding.said))}",
    ]
    right = [title or item for item, title, right in finding.items if right]
    wrong = [title or item for item, title, right in finding.items if not right]
    return lines + [
        f"  {mark} {output.listed(names)}" for mark, names in (("+", right), ("-", wrong)) if names
    ]
