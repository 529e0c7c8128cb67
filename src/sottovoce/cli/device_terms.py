"""`sottovoce device agree`: the terms of a federation, and what the server has changed in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.budget import bound_text, count_of
from sottovoce.cli.device import Store
from sottovoce.cli.device_attributes import what_leaves
from sottovoce.cli.options import Json

if TYPE_CHECKING:
    from sottovoce.links import SecureSum
    from sottovoce.terms import Terms

_MOST_CLASSES = 8


def agree(
    path: Store,
    look: Annotated[
        bool, typer.Option("--look", help="Only show the terms; agree to nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Agree to the terms of a federation, the first or changed ones. Until then nothing leaves.

    They say which algorithm and which release a federation uses, with all their settings. Taking
    part is agreement enough to the first terms, unless they let a single report tell much of the
    history: then nothing leaves before this.

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
        agreed = before is not None and not look
        if offered is not None and agreed:
            hosted.accept()
        elif agreed:
            hosted.confirm()
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
        output.show(*_in_words(before))
        if agreed:
            output.show("Agreed to.")
    else:
        done = "Agreed to" if agreed else "Not agreed to yet"
        output.show(f"{done}:", *(f"  {k}: {a} → {b}" for k, a, b in changes))
        output.show(*leaving(offered), *_warning(offered))


def terms_in_words(terms: Terms | None, path: Path) -> list[str]:
    """What whoever takes part should read: the terms, or how she will get to see them."""
    if terms is None:
        return [
            "The terms of the federation are not known yet: let `sottovoce serve device "
            f"{path} --once` fetch them, then see them with `sottovoce device agree {path} --look`."
        ]
    return _in_words(terms)


def _in_words(terms: Terms) -> list[str]:
    return [
        f"The terms in force are the server's ({terms.federation}):",
        *(f"  {k} = {_short(value)}" for k, value in sorted(_flat(terms).items())),
        *leaving(terms),
        *_costs(terms),
        *_warning(terms),
    ]


def leaving(terms: Terms) -> list[str]:
    """What leaves, and who sees what of it, where that needs words."""
    link = terms.secure_sum
    if link is None:
        return what_leaves(terms)
    told = what_leaves(terms)[:1]  # the filters, where there are any
    told.append(
        "What leaves in a round: a change of every number of the model, masked. The server cannot "
        "read it; the proxy gets the mask and not the change. What the server can read is the sum "
        f"over at least {link.min_devices:,} devices, and the proxy tells one such sum in a round"
        + _groups_words(link)
    )
    if link.clip:
        told.append(f"A change as a whole is cut to a length of {link.clip:g} before.")
    if link.noise:
        told.append(f"The proxy adds noise to the sum: Gaussian, {link.noise:g} times that length.")
    else:
        told.append("The sum has no noise: what it tells of those who are in it is not hidden.")
    told.append(
        "This holds while whoever runs the server and whoever runs the proxy do not put together "
        "what they have, and while the others in the sum are people: a server that makes up all "
        "other devices can read yours."
    )
    return told


def _groups_words(link: SecureSum) -> str:
    if link.groups == 1:
        return "."
    return (
        "; or, while the server looks for a device that spoils sums, at most "
        f"{link.groups:,}, over groups that have no device in common. Yours is in one of them."
    )


def _costs(terms: Terms) -> list[str]:
    """What a round costs in each tier, where reports are randomised."""
    release = terms.reporting
    if release is None:
        return []
    k = release.max_reports
    return [
        f"A round sends {count_of(k, 'randomised report')} of one bit. Each device is in the tier "
        "of the largest ε that its owner permits:",
        *(
            f"  ε = {tier.epsilon:g} a report, {bound_text(k * tier.epsilon)} a round, in batches "
            f"of at least {tier.min_devices:,} devices"
            for tier in release.tiers
        ),
    ]


def _warning(terms: Terms) -> list[str]:
    if not terms.revealing:
        return []
    from sottovoce.parties.prepared import how_revealing

    return [f"Mind: {how_revealing(terms)}. Nothing leaves before `sottovoce device agree`."]


def _flat(terms: Terms) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in terms.to_table().items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): v for name, v in inner.items()}
    return flat


def _short(value: Any) -> Any:
    """A setting on one line."""
    if isinstance(value, str) and "-----BEGIN" in value:
        return f"certificate {hashlib.sha256(value.encode()).hexdigest()[:32]}"
    if isinstance(value, list | tuple):
        return "; ".join(
            ", ".join(f"{k} {_few(v)}" for k, v in one.items())
            if isinstance(one, dict)
            else str(one)
            for one in value
        )
    return value


def _few(value: Any) -> str:
    """The first of many classes, or of their shares."""
    if not isinstance(value, list | tuple):
        return str(value)
    more = " | …" if len(value) > _MOST_CLASSES else ""
    return f"({' | '.join(map(str, value[:_MOST_CLASSES]))}{more})"


def _changes(before: Terms | None, after: Terms | None) -> list[tuple[str, Any, Any]]:
    if before is None or after is None:
        return []
    old, new = _flat(before), _flat(after)
    keys = sorted(old.keys() | new.keys())
    changed = [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]
    return [(k, _short(a), _short(b)) for k, a, b in changed]
