"""`sottovoce device agree`: the terms of a federation, and what the server has changed in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.device import Store
from sottovoce.cli.options import Json

if TYPE_CHECKING:
    from sottovoce.terms import Terms


def agree(
    path: Store,
    look: Annotated[
        bool, typer.Option("--look", help="Only show the terms; agree to nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Agree to the terms that the server has changed. Until then nothing leaves.

    The first terms are agreed to by joining; they say which algorithm and which release a
    federation uses, with all their settings.

    \b
    Examples:
      sottovoce device agree ~/sottovoce --look
      sottovoce device agree ~/sottovoce
    """
    from sottovoce.parties.hosted import Hosted
    from sottovoce.parties.store import CohortStore

    with CohortStore.open(path, readonly=look) as store:
        hosted = Hosted(store)
        before, offered = hosted.terms, hosted.offered
        agreed = offered is not None and not look
        if agreed:
            hosted.accept()
    changes = _changes(before, offered)
    if as_json:
        terms = offered if agreed else before
        output.emit(
            {
                "store": path,
                "agreed": agreed,
                "terms": terms.to_table() if terms else None,
                "changes": [{"setting": k, "from": a, "to": b} for k, a, b in changes],
            }
        )
        return
    if before is None:
        output.show("This store has joined no federation yet.")
    elif offered is None:
        output.show(f"The terms in force are the server's ({before.federation}):")
        output.show(*(f"  {k} = {value}" for k, value in sorted(_flat(before).items())))
    else:
        done = "Agreed to" if agreed else "Not agreed to yet"
        output.show(f"{done}:", *(f"  {k}: {a} → {b}" for k, a, b in changes))


def _flat(terms: Terms) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in terms.to_table().items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): v for name, v in inner.items()}
    return flat


def _changes(before: Terms | None, after: Terms | None) -> list[tuple[str, Any, Any]]:
    if before is None or after is None:
        return []
    old, new = _flat(before), _flat(after)
    keys = sorted(old.keys() | new.keys())
    return [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]
