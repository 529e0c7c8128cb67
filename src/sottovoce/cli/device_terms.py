"""`sottovoce device agree`: the terms of a federation, who reads what under them, and what the
server has changed in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli import output, plainly
from sottovoce.cli.options import Json, Store
from sottovoce.core.words import said
from sottovoce.errors import UsageError
from sottovoce.wire.plainly import changes as differences

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession
    from sottovoce.wire.terms import Terms


def agree(
    path: Store,
    digest: Annotated[
        str | None,
        typer.Option(
            "--terms", metavar="DIGEST", help="Agree to the terms with this digest, which you saw."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the terms of a federation and who reads what under them, or agree to them.

    Nothing leaves before you have agreed, to the first terms and to every change of them, not even
    an enrolment; that you take part is no agreement. Terms have a digest, which is shown with them:
    to agree, name it. Only what you have seen can be meant then, whatever the server shows next.

    \b
    Examples:
      sottovoce device agree ~/sottovoce
      sottovoce device agree ~/sottovoce --terms 0123456789abcdef0123456789abcdef
    """
    from sottovoce.stores.opening import open_cohort
    from sottovoce.stores.session import DeviceSession

    with open_cohort(path, readonly=digest is None) as store:
        hosted, gateway = DeviceSession(store), is_gateway(store)
        before, pending = hosted.terms, hosted.pending
        shown = pending or before
        if digest is not None:
            agree_to(hosted, shown, digest, path)
    waits = pending is not None and digest is None
    changes = differences(before, pending)
    if as_json:
        output.emit(
            {
                "store": path,
                "agreed": shown is not None and not waits,
                "digest": shown.digest() if shown else None,
                "terms": shown.to_table() if shown else None,
                "changes": [{"setting": k, "from": a, "to": b} for k, a, b in changes],
                "what_leaves": plainly.readers(shown, gateway=gateway) if shown else [],
            }
        )
        return
    if shown is None:
        output.show(*plainly.asking(path))
        return
    if digest is None:
        output.show(*plainly.in_words(shown, gateway=gateway))
    output.show(*what_changed(before, pending))
    if waits:
        output.show(*plainly.agreeing(shown, path, left=bool(changes)))
    else:
        output.show(output.joined(said("terms.agreed")))


def agree_to(hosted: DeviceSession, shown: Terms | None, digest: str, path: Path) -> None:
    """Agree to the terms that are shown. Raises where the digest is that of others."""
    if shown is None:
        raise UsageError(
            "there are no terms to agree to yet; `sottovoce serve device "
            f"{path} --once` asks the server for them and sends nothing"
        )
    if digest != shown.digest():
        raise UsageError(
            "these are not the terms that the server shows now, so nothing was agreed to; see "
            f"them with `sottovoce device agree {path}`"
        )
    hosted.agree(shown)


def what_changed(before: Terms | None, pending: Terms | None) -> list[str]:
    """Return what the pending terms say otherwise than those before: what it means, and every
    setting. Empty if nothing changed."""
    from sottovoce.wire.plainly import of_change

    changes = differences(before, pending)
    if not changes:
        return []
    means = [of_change(*change) for change in changes]
    told = dict.fromkeys(output.told(*(one for one in means if one is not None)))
    settings = [f"{k}: {a} → {b}" for k, a, b in changes]
    head = f"{output.joined(said('terms.changes'))}:"
    return [head, *(f"  {line}" for line in (*told, *settings))]


def is_gateway(store: CohortStore) -> bool:
    """Whether its users' reports leave as one sum. A sum of one is none."""
    return len(store.users) > 1
