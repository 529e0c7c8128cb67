"""`sottovoce device attributes`: what a device knows of its owner, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Store, User
from sottovoce.core.words import Said, said
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.settings import FilterConfig
    from sottovoce.core.consent import Choice
    from sottovoce.stores.device import CohortStore
    from sottovoce.wire.terms import Terms


def attributes(
    path: Store,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...", help="What you tell the device of yourself, as NAME=VALUE."
        ),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Erase this attribute from the store; repeatable."),
    ] = None,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Show what a device knows of its user, or tell it.

    Values stay in the store, encrypted. If the federation has a filter for an attribute, and its
    user does not hide it (sottovoce device consent STORE --hide NAME), the device trains that
    filter with the value. What it sends of the filter may tell the value: see sottovoce device
    agree STORE. A value that is not known counts as hidden. Once the federation's terms are known,
    a value must be one of its filter's classes.

    \b
    Examples:
      sottovoce device attributes ~/sottovoce
      sottovoce device attributes ~/sottovoce gender=F age=25-34
      sottovoce device attributes ~/sottovoce --forget age
    """
    from sottovoce.stores.opening import open_cohort
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import whose

    changes = _read(values or [], forget or [])
    with open_cohort(path, readonly=not changes) as store:
        number, terms = whose(store, user), DeviceSession(store).terms
        for known in filters_of(terms):
            value = changes.get(known.name)
            if value is not None and known.code(value) < 0:
                raise UsageError(
                    f"that is no class of {known.name} in this federation, which has "
                    f"{output.listed(known.classes)}"
                )
        before = store.attributes(number)
        for name in forget or []:
            if name not in before:
                raise UsageError(
                    f"the device knows no {name!r} that it could forget; it knows "
                    f"{output.listed(list(before))}"
                )
        with store.file.transaction():
            for name, value in changes.items():
                store.set_attribute(number, name, value)
        if changes:
            store.file.cut_log()
        name, lines = store.name(number), standing(store, number, terms)
    if as_json:
        shown = [{**output.plain(line), "words": line.words()} for line in lines]
        output.emit({"store": path, "user": name, "changed": bool(changes), "attributes": shown})
        return
    if not lines:
        output.show(output.joined(said("attributes.nothing", name=name)))
        return
    from sottovoce.evaluation.tables import Column, Table

    keys = ("name", "value", "becomes")
    heads = output.told(*(said(f"attributes.{key}") for key in keys))
    columns = [Column(key, head) for key, head in zip(keys, heads, strict=True)]
    unknown = output.joined(said("attributes.unknown_value"))
    rows = [
        {
            "name": output.one_line(line.name),
            "value": unknown if line.value is None else output.one_line(line.value),
            "becomes": output.joined(line.said()),
        }
        for line in lines
    ]
    output.show(Table(output.joined(said("attributes.head", name=name)), columns, rows))
    for known in filters_of(terms):
        output.show(f"{known.name}: {output.listed(known.classes)}.")


@dataclass(frozen=True, slots=True, repr=False)
class Standing:
    """An attribute of one user: what is known, and what may be done with it."""

    name: str
    value: str | None
    hidden: bool
    filter: bool
    """Whether the federation has one for it."""
    fits: bool
    """Whether the value is one of the filter's classes."""

    def __repr__(self) -> str:
        return f"<Standing of {self.name}, redacted>"

    def said(self) -> Said:
        """What becomes of it, for its owner."""
        if not self.filter:
            return said("attributes.no_filter")
        if self.hidden:
            return said("attributes.hidden")
        if self.value is None:
            return said("attributes.not_known")
        return said("attributes.shared" if self.fits else "attributes.no_class")

    def words(self) -> str:
        """The same in exact words."""
        if not self.filter:
            return "no filter: used by nothing"
        if self.hidden:
            return "hidden: trains nothing"
        if self.value is None:
            return "not known: counts as hidden"
        return "shared: trains its filter" if self.fits else "no class of it: counts as hidden"


def standing(store: CohortStore, number: int, terms: Terms | None) -> list[Standing]:
    """Every attribute that has a filter, is known or is hidden; those with filters first."""
    known, hidden = store.attributes(number), store.choice(number).hidden_attributes
    filters = {each.name: each for each in filters_of(terms)}
    return [
        Standing(
            name,
            known.get(name),
            name in hidden,
            name in filters,
            name in filters and filters[name].code(known.get(name)) >= 0,
        )
        for name in dict.fromkeys([*filters, *sorted({*known, *hidden})])
    ]


def filters_of(terms: Terms | None) -> Sequence[FilterConfig]:
    """The attributes for which a federation has filters."""
    return () if terms is None else terms.algorithm.attributes


def hiding(
    choice: Choice, hide: Sequence[str], reveal: Sequence[str], terms: Terms | None
) -> tuple[str, ...]:
    """What is hidden after these changes of a choice."""
    both = sorted({*hide} & {*reveal})
    if both:
        raise UsageError(f"choose one of --hide {both[0]} and --reveal {both[0]}")
    names = [each.name for each in filters_of(terms)]
    for name in hide:
        if not name:
            raise UsageError("--hide needs the name of an attribute")
        if terms is not None and name not in names:
            raise UsageError(
                f"this federation has no filter for {name!r}, so that it cannot be hidden; it has "
                f"filters for {output.listed(names)}"
            )
    for name in reveal:
        if name not in choice.hidden_attributes:
            raise UsageError(
                f"{name!r} is not hidden; hidden are: {output.listed(choice.hidden_attributes)}"
            )
    kept = [name for name in choice.hidden_attributes if name not in reveal]
    return tuple(dict.fromkeys([*kept, *hide]))


def with_strengths(
    choice: Choice, changes: Mapping[str, Any], terms: Terms | None
) -> dict[str, Any]:
    """Changes of a choice, in which strengths of single attributes leave those of the others as
    they are, and a number for all does not."""
    if "strengths" not in changes:
        return dict(changes)
    names = [each.name for each in filters_of(terms)]
    for name in changes["strengths"]:
        if terms is not None and name not in names:
            raise UsageError(
                f"this federation has no filter for {name!r}, so that --strength cannot be for it; "
                f"it has filters for {output.listed(names)}"
            )
    kept = {} if "strength" in changes else dict(choice.strengths)
    merged = {**kept, **changes["strengths"]}
    return {**changes, "strengths": tuple(sorted(merged.items()))}


def without_filter(choice: Choice, terms: Terms) -> list[str]:
    """What a choice hides that this federation has no filter for."""
    names = {each.name for each in filters_of(terms)}
    return [name for name in choice.hidden_attributes if name not in names]


def _read(values: Sequence[str], forget: Sequence[str]) -> dict[str, str | None]:
    """What to change; no message repeats a value."""
    changes: dict[str, str | None] = {}
    pairs: list[tuple[str, str | None]] = [(name, None) for name in forget]
    for text in values:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(
                "an attribute is told as NAME=VALUE, such as gender=F; --forget NAME erases one"
            )
        pairs.append((name, value))
    for name, told in pairs:
        if name in changes:
            raise UsageError(f"{name!r} is named twice; say one thing of it")
        changes[name] = told
    return changes


def to_json(lines: Sequence[Standing]) -> list[dict[str, Any]]:
    """Each attribute and what becomes of it, without its value."""
    return [
        {"name": line.name, "known": line.value is not None, "hidden": line.hidden}
        | {"filter": line.filter, "words": line.words()}
        for line in lines
    ]
