"""What a person sees before anything leaves, and how she takes things back: `device preview`,
`attack`, `never`, `remove`, `stop` and `erase`. The consent centre (`device page`) asks the
same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import AgentsServer, Json, PlaintextTrial, Store, User
from sottovoce.core.words import Said, said
from sottovoce.errors import DataError, UsageError

if TYPE_CHECKING:
    from sottovoce.web.learn import Finding

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")]
_NAMED = 10


def preview(
    path: Store,
    send: Annotated[
        bool, typer.Option("--send", help="Ask, and then send exactly what is shown.")
    ] = False,
    decline: Annotated[
        bool, typer.Option("--decline", help="Say no: what is shown does not leave.")
    ] = False,
    yes: Yes = False,
    bytes_to: Annotated[
        Path | None,
        typer.Option(
            "--bytes", metavar="FILE", help="Write the bytes of the last message to this file."
        ),
    ] = None,
    server: AgentsServer = None,
    plaintext: PlaintextTrial = False,
    as_json: Json = False,
) -> None:
    """Show what would leave now: which of your things count, how much, the bytes, who sees what.

    It asks for what is published and sends nothing of yours. What is shown is kept: with --send, or
    if `sottovoce serve device` runs next, the very same bytes leave, unless you change something.

    This works while the agent runs. By default the agent sends by itself. After `sottovoce device
    consent STORE --ask-first` it waits for --send here or on your page. With --decline the message
    does not leave, and costs nothing; you are asked again when the round moves on.

    \b
    Examples:
      sottovoce device preview ~/sottovoce
      sottovoce device preview ~/sottovoce --bytes message.bin
      sottovoce device preview ~/sottovoce --send
      sottovoce device preview ~/sottovoce --decline
    """
    from sottovoce.stores.private import write_new
    from sottovoce.web.centre import Centre

    if send and decline:
        raise UsageError("choose one of --send and --decline")
    if bytes_to is not None and bytes_to.exists():
        raise UsageError(f"{bytes_to} is there already and is not overwritten")
    with Centre([path], server=server, plaintext=plaintext) as centre:
        shown = centre.preview("s0")
        if bytes_to is not None and shown["messages"]:
            write_new(bytes_to, centre.body("s0", len(shown["messages"]) - 1))
        if not as_json:
            output.show(*_previewed(shown))
        sent: dict[str, Any] | None = None
        if send and shown["nonce"] and _sure(yes, said("preview.send"), as_json):
            sent = centre.send("s0", shown["nonce"])
        elif decline and shown["nonce"]:
            sent = centre.decline("s0", shown["nonce"])
        if sent is not None and not as_json:
            output.show(*output.told(_said(sent["said"])))
    if as_json:
        fate = None if sent is None else {"state": sent["state"]}
        output.emit({"store": path, "preview": shown, "sent": fate})


def _previewed(shown: dict[str, Any]) -> list[str]:
    lines = output.told(_said(shown["said"]))
    if not shown["ready"]:
        return lines
    more = [said("preview.items", n=shown["total"])]
    if shown["kept_back"]:
        more.append(said("preview.kept_back", n=shown["kept_back"]))
    if shown["others"]:
        more.append(said("preview.others", n=shown["others"]))
    if any(message["exact"] for message in shown["messages"][-1:]) and shown["round"] is not None:
        cost = shown["epsilon"]
        more.append(
            said("preview.no_bound") if cost is None else said("preview.uses", epsilon=cost)
        )
    lines += output.told(*more)
    for one in shown["items"][:_NAMED]:
        lines.append(f"  {one['weight']:4.0%}  {output.one_line(one['title'])}")
    if len(shown["items"]) > _NAMED:
        lines += output.told(said("preview.first", n=_NAMED))
    for message in shown["messages"]:
        what, to = output.told(_said(message["what"]), _said(message["to"]))
        size = output.joined(said("page.size", size=message["bytes"]))
        lines.append(f"{what} → {to}: {size}")
    lines += output.told(said("device.who_reads"))
    for reader in shown["readers"]:
        who, sees = output.told(_said(reader["who"]), _said(reader["sees"]))
        lines.append(f"  {who}: {sees}")
    return lines


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
    output.show(*output.told(said("learn.about")))
    for finding in found:
        output.show("", *_finding_lines(finding))


def _finding_lines(finding: Finding) -> list[str]:
    """A finding as its owner reads it."""
    verdict = said(f"learn.verdict.{finding.verdict}")
    who, promise, what, stands = output.told(finding.who, finding.promise, finding.said, verdict)
    lines = [f"{output.one_line(who)}: “{promise}” {stands}", f"  {output.one_line(what)}"]
    right = [title or item for item, title, right in finding.items if right]
    wrong = [title or item for item, title, right in finding.items if not right]
    return lines + [
        f"  {mark} {output.listed(names)}" for mark, names in (("+", right), ("-", wrong)) if names
    ]


def never(
    path: Store,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Items, by id or title, or categories."),
    ] = None,
    undo: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What may be sent again; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is never sent, or add to it: things by name, and whole categories in advance.

    What is named here is in no message from the next round on, with noise or without: a message is
    the one that a history without it would make. It still counts for recommendations at home.

    \b
    Examples:
      sottovoce device never ~/sottovoce
      sottovoce device never ~/sottovoce "St. Mary Clinic" "Medical Center"
      sottovoce device never ~/sottovoce --undo "Medical Center"
    """
    from sottovoce.web.centre import Centre

    both = sorted(set(names or ()) & set(undo or ()))
    if both:
        raise UsageError(f"choose one: never send {both[0]!r}, or --undo it")
    with Centre([path]) as centre:
        (store,) = centre.state()["stores"]
        kept = list(store["choice"]["never_send"])
        unknown = [name for name in undo or () if name not in kept]
        if unknown:
            raise UsageError(
                f"{unknown[0]!r} is not among what is never sent: {output.listed(kept)}"
            )
        if names:
            _require_known(centre.known_names("s0"), names)
        if names or undo:
            rules = {"add": list(names or ()), "drop": list(undo or ())}
            store = centre.choose("s0", {"never_send": rules})
    found = store["choice"]["never_send"]
    if as_json:
        history = store["history"]
        output.emit({"store": path, "never_send": found, "kept_back": history["off"]})
        return
    if not found:
        output.show(*output.told(said("device.never_none")))
        return
    output.show(*output.told(said("device.never", names=found)))
    output.show(*output.told(said("page.history_off", n=store["history"]["off"])))


def _require_known(known: set[str], names: list[str]) -> None:
    """Raises where a name is nothing here: a rule that does not hold would be worse than none."""
    strange = [name for name in names if known and name not in known]
    if strange:
        raise DataError(
            f"there is no item or category called {strange[0]!r} in this federation or in your "
            "history; nothing was changed"
        )


def remove(
    path: Store,
    items: Annotated[list[str], typer.Argument(metavar="ITEM...", help="Items, by id or title.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove single things from your history here. What has left because of them stays where it is.

    To keep a thing and never send it, use `sottovoce device never`.

    \b
    Example:
      sottovoce device remove ~/sottovoce "St. Mary Clinic"
    """
    from sottovoce.web.centre import Centre

    with Centre([path]) as centre:
        have = centre.things("s0", "", 0, sys.maxsize)["things"]
        ids = [one["item"] for one in have if {one["item"], one["title"]} & set(items)]
        named = {name for one in have for name in (one["item"], one["title"])}
        strange = [name for name in items if name not in named]
        if strange:
            raise DataError(f"{strange[0]!r} is not in your history; nothing was removed")
        if not _sure(yes, said("erase.remove_before"), as_json):
            return
        centre.remove("s0", ids)
    if as_json:
        output.emit({"store": path, "removed": len(ids)})
    else:
        output.show(*output.told(said("erase.removed", n=len(ids))))


def stop(
    paths: Annotated[list[Path], typer.Argument(metavar="STORE...", help="Your stores.")],
    everything: Annotated[
        bool,
        typer.Option("--everything", help="Send not one byte: not even public documents are read."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Read public documents again; taking part stays off.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop now: nothing of yours leaves any more, and nobody is told that you stopped.

    This works while an agent runs. Public documents are still read, so that recommendations stay
    new; with --everything not even these are asked for.

    \b
    Examples:
      sottovoce device stop ~/sottovoce
      sottovoce device stop ~/sottovoce ~/films --everything
      sottovoce device stop ~/sottovoce --undo
    """
    from sottovoce.web.centre import Centre

    if everything and undo:
        raise UsageError("choose one of --everything and --undo")
    with Centre(paths) as centre:
        for place in range(len(paths)):
            if undo:
                centre.start(f"s{place}")
            else:
                centre.stop(f"s{place}", everything)
    if as_json:
        output.emit({"stores": paths, "stopped": not undo, "everything": everything})
        return
    key = "stop.started" if undo else "stop.done_everything" if everything else "stop.done"
    output.show(*output.told(said(key), *([] if undo else [said("stop.before")])))


def erase(
    path: Store,
    history: Annotated[
        bool, typer.Option("--history", help="Delete only your history; choices and ledger stay.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="Delete the whole store, with its key.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete your history here, or everything. What has left cannot be called back.

    What was deleted is overwritten. Copies and backups that you made elsewhere stay. With
    --everything the ledger goes as well, and with it what you have used of your limit.

    \b
    Examples:
      sottovoce device erase ~/sottovoce --history
      sottovoce device erase ~/sottovoce --everything
    """
    from sottovoce.web.centre import Centre

    if history == everything:
        raise UsageError("choose one of --history and --everything")
    with Centre([path]) as centre:
        (store,) = centre.state()["stores"]
        before = [said("erase.before"), said("erase.before_copies")]
        if store["contributions"]:
            before.insert(1, said("erase.before_sum"))
        if everything:
            before += [said("erase.before_ledger"), said("erase.before_limit")]
        if not as_json and not yes:
            output.show(*output.told(*before))
        if not _sure(yes, said("erase.sure"), as_json):
            return
        centre.erase("s0", "history" if history else "everything")
    many = store["history"]["items"]
    if as_json:
        output.emit({"store": path, "erased": "history" if history else "everything"})
        return
    done = said("erase.done_history", n=many) if history else said("erase.done_everything")
    output.show(*output.told(done))


def _sure(yes: bool, question: Said, as_json: bool) -> bool:
    """Whether she says so; where nobody can be asked, --yes must."""
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise UsageError("this asks first; say --yes to go on without being asked")
    if not typer.confirm(output.joined(question)):
        output.show(*output.told(said("verdict.kept")))
        return False
    return True


def _said(told: dict[str, Any]) -> Said:
    return Said(told["key"], told["values"])
