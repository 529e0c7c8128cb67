"""What a federation is about, and how it changes while it runs: `sottovoce serve terms` and
`catalogue`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.options import Said, Settings, says
from sottovoce.cli.serve_server import Folder, acting
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.stores.acts import Acts
    from sottovoce.stores.sum_folder import SumFolder, SumIntroduction
    from sottovoce.wire.terms import Terms

Added = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Items that come, as CSV or Parquet with the columns item and, if you like, title and "
        "categories (with | between them).",
    ),
]
Agreed = Annotated[
    str | None,
    typer.Option(
        "--agree",
        metavar="DIGEST",
        help="Agree to changed terms with this digest, which you saw without this option.",
    ),
]


@says
def terms(
    folder: Folder,
    settings: Settings = None,
    add: Added = None,
    spare: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="So many more places for items to come.")
    ] = 0,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back a change that waits.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the terms, as they will be, for a shuffler."),
    ] = None,
) -> Said:
    """Show the terms of a federation and how they have changed, or propose a change of them.

    The server may be running. A change comes into force between two rounds, once the operators of
    helper, aggregators or shufflers have agreed to it; rounds go on under the former terms until
    then. Devices are asked to agree: those that do go on with their budgets, the others send
    nothing and go on recommending by the model that they have. The federation's name, its
    algorithm, embedding_size, release and link stay, and so do the addresses and keys of others.

    With --add, items come that there are no places to spare for (for those that there are, see
    `sottovoce serve catalogue`), and with --spare more places.

    \b
    Examples:
      sottovoce serve terms town
      sottovoce serve terms town --set release.epsilon=2 --add new.csv --spare 100
      sottovoce serve terms town --out terms.json
      sottovoce serve terms town --withdraw
    """
    from sottovoce.cli.making import read_items

    if withdraw and (settings or add or spare):
        raise UsageError("--withdraw takes a change back; propose another one after that")
    if out is not None and out.exists():
        raise UsageError(f"{out} is there already and is not overwritten")
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"{out.absolute().parent} is no folder; make it first")
    with acting(folder) as acts:
        if withdraw:
            acts.withdraw()
        elif settings or add or spare:
            added, categories = ([], []) if add is None else read_items(add)
            acts.change_terms(settings or [], added, categories, spare)
        told, lines = _shown(acts, folder, out)
    return told, lines


def _shown(acts: Acts, folder: Path, out: Path | None) -> Said:
    from sottovoce.stores import amending
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.wire.plainly import settings, short

    with acts.database.reading() as link:
        now = open_folder(folder).caught_up(link).plan.terms
        waits, after = amending.proposed(link), amending.proposed_terms(link)
        past = amending.history(link)
    told: dict[str, Any] = {
        "folder": folder,
        "digest": now.digest(),
        "terms": now.to_table(),
        "history": past,
        "amendment": None if waits is None else waits.to_table(),
    }
    lines = [f"The terms of {now.federation}, {now.digest()}:"]
    lines += [f"  {k} = {short(value)}" for k, value in sorted(settings(now).items())]
    for one in past[1:]:
        words = f"Changed at {one['at']} by {one['who']}, from round {one['round']} on:"
        lines += [words, *_difference(one["changes"])]
    if waits is not None:
        lines += [f"{waits.who} proposed at {waits.at}:", *_difference(waits.changes)]
        lines += _why(waits, now, folder)
    if out is not None:
        out.write_text(json.dumps((after or now).to_table(), indent=1) + "\n")
        told["file"] = out
        lines.append(f"These terms, as they will be, are in {out}")
    return told, lines


def _why(waits: Any, now: Terms, folder: Path) -> list[str]:
    """For whom a change waits, and what they do."""
    from sottovoce.stores.server_folder import open_folder, start_command

    found = open_folder(folder)
    runs = found.kept_in() == "postgresql" or found.running() is not None
    if waits.state == "ready":
        words = "the open round has to end first"
    elif waits.waits:
        words = f"{waits.waits}; {waits.do}"
    elif not runs:
        words = f"no server runs; it comes into force when that runs: {start_command(found.path)}"
    else:
        words = "the server takes it up within seconds"
    lines = [f"That waits: {words}"]
    if waits.state == "ready":
        return lines
    introduce = f"sottovoce serve introduce {folder} --out FILE"
    agree = f"--introduction FILE --agree {waits.digest}"
    if now.link.mixing is not None:
        who, first = "every shuffler", f"sottovoce serve terms {folder} --out FILE"
        then = f"sottovoce serve shuffler DIR --terms FILE --agree {waits.digest}"
    elif now.link.checking is not None:
        who, first, then = "both aggregators", introduce, f"sottovoce serve aggregator DIR {agree}"
    elif now.link.adds_up is not None:
        who, first, then = "the helper", introduce, f"sottovoce serve helper DIR {agree}"
    else:
        return lines
    lines.append(f"Whoever runs {who} has to agree: hand over what `{first}` writes, and there:")
    return [*lines, f"  {then}"]


def _difference(changes: Any) -> list[str]:
    return [f"  {k}: {a} → {b}" for k, a, b in changes]


@says
def catalogue(
    folder: Folder,
    add: Added = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="An item that goes; may be repeated."),
    ] = None,
) -> Said:
    """Change the items of a federation: some come, others go. Without options, say how many there
    are.

    New items take places that were kept for them (`serve server --spare N`, at the first start),
    since devices know items by their place. Items that go keep theirs, and nobody is recommended
    them. The server may be running. Devices take the new catalogue up when they next ask for the
    round, and nobody has to agree; what they have of a new item counts at home at once. If there
    are no places to spare, `sottovoce serve terms --add` makes more, and devices are asked.

    \b
    Examples:
      sottovoce serve catalogue town --add new.csv
      sottovoce serve catalogue town --gone venue-17 --gone venue-20
    """
    from sottovoce.cli.making import read_items
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.wire.catalogue import spare_places

    added, categories = ([], []) if add is None else read_items(add)
    with acting(folder) as acts:
        same = False
        if added or gone:
            same = not acts.change_items(added, gone or [], categories).get("changed", True)
        with acts.database.reading() as link:
            found = open_folder(folder).caught_up(link).catalogue(link)
    items = [(item, title) for item, title in json.loads(found)["items"]]
    free = len(spare_places(items))
    there = sum(bool(title) for _, title in items)
    told = {"folder": folder, "items": there, "gone": len(items) - free - there, "spare": free}
    went = f"{told['gone']:,} that {'is' if told['gone'] == 1 else 'are'} gone"
    words = f"{there:,} items, {went}, {free:,} place{'' if free == 1 else 's'} to spare"
    return told, ["Nothing was changed: the catalogue is so already", words] if same else [words]


# --- those who keep terms of their own ------------------------------------------------------------


def agreed(folder: SumFolder[Any], new: SumIntroduction, digest: str | None, file: Path) -> Said:
    """What an introduction changes for whoever helps with sums; with the digest of its terms, that
    it agrees to them."""
    from sottovoce.stores.sum_folder import begin_folder

    if new == folder.introduction and not folder.agreed():
        begin_folder(folder)  # says that it has begun, and with nothing else
    name = f"sottovoce serve {new.command} {folder.path}"
    return _agreed(
        folder.introduction.terms, new.terms, digest, lambda: folder.agree(new),
        f"{name} --introduction {file} --agree {new.terms.digest()}",
    )  # fmt: skip


def agreed_by_shuffler(path: Path, file: Path, digest: str | None) -> Said:
    """The same of terms that a shuffler is to follow."""
    from sottovoce.errors import MessageError
    from sottovoce.stores.shuffler_folder import open_shuffler_folder
    from sottovoce.wire.terms import Terms

    folder = open_shuffler_folder(path)
    try:
        new = Terms.from_table(json.loads(file.read_bytes()))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, MessageError):
        raise UsageError(f"{file} holds no terms; ask the server's operator for them") from None
    how = f"sottovoce serve shuffler {path} --terms {file} --agree {new.digest()}"
    return _agreed(folder.terms(), new, digest, lambda: folder.agree(new), how)


def _agreed(before: Terms | None, new: Terms, digest: str | None, agree: Any, how: str) -> Said:
    from sottovoce.wire.plainly import changes

    if before is not None and before.federation != new.federation:
        agree()  # says why not
    found = changes(before, new)
    if digest is not None and digest != new.digest():
        raise UsageError("these are not the terms with that digest, so nothing was agreed to")
    if digest is not None:
        agree()
    told = {
        "digest": new.digest(),
        "agreed": digest is not None,
        "changes": [{"setting": k, "from": a, "to": b} for k, a, b in found],
    }
    lines = [f"What changes in the terms of {new.federation}:", *_difference(found)]
    if digest is None:
        return told, [*lines, f"Nothing was agreed to. To agree: {how}"]
    words = "Agreed to. Sums and rounds under the former terms go on until the server has changed"
    return told, [*lines, f"{words}; a service that runs takes this up by itself."]
