"""`sottovoce device agree`: the terms of a federation, who reads what under them, and what the
server has changed in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output, plainly
from sottovoce.cli.options import Json, Store, Technical
from sottovoce.core.words import said
from sottovoce.errors import UsageError
from sottovoce.privacy.statements import bound_text, count_of
from sottovoce.wire.exactly import changes as differences
from sottovoce.wire.exactly import settings, short, who_reads

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
    technical: Technical = False,
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
                "what_leaves": who_reads(shown, gateway=gateway) if shown else [],
            }
        )
        return
    if shown is None:
        output.show(*terms_in_words(None, path, technical=technical))
        return
    if digest is None:
        output.show(*terms_in_words(shown, path, gateway=gateway, technical=technical))
    output.show(*what_changed(before, pending, technical=technical, waits=waits))
    if waits:
        output.show(*waiting(shown, path, technical=technical, left=bool(changes)))
    else:
        output.show("Agreed to." if technical else output.joined(said("terms.agreed")))
    if digest is None and not technical:
        output.show(output.joined(said("device.more")))


def agree_to(hosted: DeviceSession, shown: Terms | None, digest: str, path: Path) -> None:
    """Agree to the terms that are shown. Raises where the digest is that of others."""
    if shown is None:
        raise UsageError(terms_in_words(None, path, technical=True)[0])
    if digest != shown.digest():
        raise UsageError(
            "these are not the terms that the server shows now, so nothing was agreed to; see "
            f"them with `sottovoce device agree {path}`"
        )
    hosted.agree(shown)


def what_changed(
    before: Terms | None, pending: Terms | None, *, technical: bool, waits: bool = True
) -> list[str]:
    """What the terms that wait say otherwise than those before; nothing where none did."""
    changes = differences(before, pending)
    if not changes:
        return []
    head = "What the server has changed:" if waits else "What has changed:"
    shown = head if technical else f"{output.joined(said('terms.changes'))}:"
    return [shown, *_difference(changes, technical=technical)]


def _difference(changes: Sequence[tuple[str, Any, Any]], *, technical: bool) -> list[str]:
    """Every setting that is another; for people also what that means."""
    from sottovoce.wire.plainly import of_change

    lines = [f"  {k}: {a} → {b}" for k, a, b in changes]
    if technical:
        return lines
    means = [of_change(*change) for change in changes]
    told = output.told(*(one for one in means if one is not None))
    return [*(f"  {line}" for line in dict.fromkeys(told)), *lines]


def is_gateway(store: CohortStore) -> bool:
    """Whether its users' reports leave as one sum. A sum of one is none."""
    return len(store.users) > 1


def waiting(terms: Terms, path: Path, *, technical: bool, left: bool = False) -> list[str]:
    """That nothing leaves under these terms yet, or nothing more where something has `left` under
    others, and how to agree."""
    if not technical:
        return plainly.agreeing(terms, path, left=left)
    return [
        f"Nothing {'more leaves' if left else 'leaves yet'}: nobody has agreed to these terms. To "
        f"agree to them: sottovoce device agree {path} --terms {terms.digest()}"
    ]


def terms_in_words(
    terms: Terms | None,
    path: Path,
    *,
    gateway: bool = False,
    waits: bool = False,
    technical: bool,
) -> list[str]:
    """What whoever takes part should read: the terms, or how she will get to see them."""
    if terms is None and not technical:
        return plainly.asking(path)
    if terms is None:
        return [
            "Nothing leaves yet: who would read what is not known. `sottovoce serve device "
            f"{path} --once` asks the server for its terms and sends nothing; then see them with "
            f"`sottovoce device agree {path}`."
        ]
    words = _in_words if technical else plainly.in_words
    then = waiting(terms, path, technical=technical) if waits else []
    return [*words(terms, gateway=gateway), *then]


def _in_words(terms: Terms, *, gateway: bool) -> list[str]:
    return [
        "Who reads what, and what they can compute from it:",
        *(f"  {sentence}" for sentence in who_reads(terms, gateway=gateway)),
        *_warning(terms),
        *_costs(terms),
        f"The server's terms ({terms.federation}):",
        *(f"  {k} = {short(value)}" for k, value in sorted(settings(terms).items())),
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
    from sottovoce.stores.prepared import how_revealing

    return [f"Mind: {how_revealing(terms)}."]
