"""`sottovoce device agree`: the terms of a federation, who reads what under them, and what the
server has changed in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.budget import bound_text, count_of
from sottovoce.cli.device import Store
from sottovoce.cli.options import Json
from sottovoce.cli.who_reads import who_reads
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.parties.hosted import Hosted
    from sottovoce.parties.store import CohortStore
    from sottovoce.terms import Terms

_MOST_CLASSES = 8


def agree(
    path: Store,
    digest: Annotated[
        str | None,
        typer.Option(
            "--terms", metavar="DIGEST", help="Agree to the terms with this digest, which you saw."
        ),
    ] = None,
    look: Annotated[bool, typer.Option("--look", help="Only show; so does leaving all out.")] = (
        False
    ),
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
    from sottovoce.parties.hosted import Hosted
    from sottovoce.parties.store import CohortStore

    if look and digest is not None:
        raise UsageError("choose one of --look and --terms")
    with CohortStore.open(path, readonly=digest is None) as store:
        hosted, gateway = Hosted(store), is_gateway(store)
        before, pending = hosted.terms, hosted.pending
        shown = pending or before
        if digest is not None:
            _agree_to(hosted, shown, digest, path)
    waits = pending is not None and digest is None
    changes = _changes(before, pending)
    if as_json:
        output.emit(
            {
                "store": path,
                "agreed": shown is not None and not waits,
                "digest": shown.digest() if shown else None,
                "terms": shown.to_table() if shown else None,
                "changes": [{"setting": k, "from": a, "to": b} for k, a, b in changes],
                "what_leaves": who_reads(shown, gateway=gateway) if shown else [],
            }
        )
        return
    if shown is None:
        output.show(*terms_in_words(None, path))
        return
    if digest is None:
        output.show(*_in_words(shown, gateway=gateway))
    if changes:
        output.show("What the server has changed:" if waits else "What has changed:")
        output.show(*(f"  {k}: {a} → {b}" for k, a, b in changes))
    output.show(*(waiting(shown, path) if waits else ["Agreed to."]))


def _agree_to(hosted: Hosted, shown: Terms | None, digest: str, path: Path) -> None:
    if shown is None:
        raise UsageError(terms_in_words(None, path)[0])
    if digest != shown.digest():
        raise UsageError(
            "these are not the terms that the server shows now, so nothing was agreed to; see "
            f"them with `sottovoce device agree {path}`"
        )
    hosted.agree(shown)


def is_gateway(store: CohortStore) -> bool:
    """Whether its users' reports leave as one sum. A sum of one is none."""
    return len(store.users) > 1


def waiting(terms: Terms, path: Path) -> list[str]:
    """That nothing leaves under these terms yet, and how to agree."""
    return [
        "Nothing leaves yet: nobody has agreed to these terms. To agree to them: sottovoce device "
        f"agree {path} --terms {terms.digest()}"
    ]


def terms_in_words(
    terms: Terms | None, path: Path, *, gateway: bool = False, waits: bool = False
) -> list[str]:
    """What whoever takes part should read: the terms, or how she will get to see them."""
    if terms is None:
        return [
            "Nothing leaves yet: who would read what is not known. `sottovoce serve device "
            f"{path} --once` asks the server for its terms and sends nothing; then see them with "
            f"`sottovoce device agree {path}`."
        ]
    return [*_in_words(terms, gateway=gateway), *(waiting(terms, path) if waits else [])]


def _in_words(terms: Terms, *, gateway: bool) -> list[str]:
    return [
        "Who reads what, and what they can compute from it:",
        *(f"  {sentence}" for sentence in who_reads(terms, gateway=gateway)),
        *_warning(terms),
        *_costs(terms),
        f"The server's terms ({terms.federation}):",
        *(f"  {k} = {_short(value)}" for k, value in sorted(_flat(terms).items())),
    ]


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

    return [f"Mind: {how_revealing(terms)}."]


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
