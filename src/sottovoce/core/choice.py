"""What one person permits, field by field: the only list of them.

A field says here what it may be, how a record of many people keeps it and which option of
`sottovoce device consent` sets it. Records (`consent`), stores, experiment files and the command
follow from that. What keeps to a field, a release or an algorithm, names it; docs/cli.md and
docs/experiment-files.md have its meaning. The command line reads it at every start, so it imports
nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ChoiceField:
    """What a field of a choice is, beside its type and default."""

    column: str = ""
    """Type of its values in a record; empty where there is a list of names instead."""
    most: float = math.inf
    """A number lies between 0 and this."""
    below: bool = False
    """Whether the number must not be `most` itself."""
    asks: bool = True
    """Whether a value other than the default asks something of a system by itself."""
    later: bool = True
    """Whether stores leave out the default, as those did that were written before the field
    existed."""
    option: str = ""
    """Its option on the command line; empty where there is none."""
    help: str = ""
    metavar: str | None = None


def _field(default: Any, column: str = "", **more: Any) -> Any:
    return field(default=default, metadata={"kind": ChoiceField(column, **more)})


@dataclass(frozen=True, slots=True)
class Choice:
    """One person's settings. The default takes part and shares no positive item."""

    takes_part: bool = _field(
        True, "bool", asks=False, later=False, option="--take-part/--no-part",
        help="Whether anything may leave at all.",
    )  # fmt: skip
    share_positives: float = _field(
        0.0, "float32", most=1.0, later=False, option="--share-positives",
        help="π, from 0 to 1: the share of positive-item updates that may leave.",
    )  # fmt: skip
    """π: the share of positive-item updates that may leave, in [0, 1]."""
    epsilon: float = _field(
        0.0, "float32", later=False, option="--epsilon",
        help="The largest ε of one report or update with noise.",
    )  # fmt: skip
    """Largest privacy cost per report that the user accepts; 0 permits no randomised report."""
    max_reports: int = _field(
        0, "int32", most=2**31 - 1, later=False, option="--reports",
        help="k: the most randomised reports in a round; 0 for none.",
    )  # fmt: skip
    """k: most randomised reports per round."""
    total_epsilon: float = _field(
        math.inf, "float64", option="--total-epsilon", metavar="E",
        help="The most ε over all rounds together, for ever; inf for no limit.",
    )  # fmt: skip
    """Most ε that all rounds may cost together, for ever: of randomised reports and noisy updates
    by plain composition, of updates in noisy sums by `privacy.central.price`. What has left counts,
    whatever became of it. It limits nothing where no ε bounds what leaves."""
    hidden_attributes: tuple[str, ...] = _field((), later=False)
    """Attributes that must not be learnt."""
    strength: float = _field(
        0.5, "float32", most=1.0, below=True, asks=False, later=False, option="--strength",
        metavar="B", help="β, from 0 to below 1: how much hiding weighs against recommending well; "
        "NAME=B for one attribute by itself; repeatable.",
    )  # fmt: skip
    """β in [0, 1): the weight of hiding attributes against that of good recommendations."""
    strengths: tuple[tuple[str, float], ...] = _field((), asks=False)
    """β of single attributes by name, where it is not `strength`; a mapping will do. In an
    experiment file `strength` may be such a table."""
    refused_owners: tuple[str, ...] = _field(())
    """Data owners, by name, that must see nothing of hers."""
    never_send: tuple[str, ...] = _field(())
    """Items by name, and categories of items, of which nothing ever leaves, noise or not. At home
    they count."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            object.__setattr__(self, each.name, _checked(each.name, value, each.default))

    def asked(self) -> list[str]:
        """The fields by which somebody who takes part asks something of a system."""
        return [
            each.name
            for each in fields(self)
            if FIELDS[each.name].asks and getattr(self, each.name) != each.default
        ]

    def table(self) -> dict[str, Any]:
        """As stores keep it: the same mind is the same text, whichever release wrote it."""
        plain = {each.name for each in fields(self) if getattr(self, each.name) == each.default}
        every = asdict(self) | {"strengths": dict(self.strengths)}
        return {k: v for k, v in every.items() if not (FIELDS[k].later and k in plain)}

    def strength_of(self, attribute: str) -> float:
        """β of one attribute."""
        return dict(self.strengths).get(attribute, self.strength)

    def hiding(self) -> list[tuple[str, float]]:
        """What is hidden, and β of each."""
        return [(name, self.strength_of(name)) for name in self.hidden_attributes]

    def words(self) -> str:
        """The settings as a device owner would read them."""
        if not self.takes_part:
            return "does not take part: learns at home, sends nothing"
        parts = []
        if self.share_positives or not (self.max_reports or self.epsilon):
            parts.append(f"shares {100 * self.share_positives:.6g} % of positive-item updates")
        if self.max_reports:
            each = f"at ε ≤ {self.epsilon:g} each"
            parts.append(f"at most {self.max_reports} randomised reports a round {each}")
        elif self.epsilon:
            parts.append(f"accepts ε ≤ {self.epsilon:g} for what leaves with noise")
        if math.isfinite(self.total_epsilon):
            noisy = "" if self.max_reports or self.epsilon else " that have an ε"
            most = f"no more than ε = {self.total_epsilon:.10g}"
            parts.append(f"{most} over all rounds{noisy} together")
        if self.hidden_attributes:
            names = ", ".join(self.hidden_attributes)
            if self.strengths:
                hides = [f"{name} with strength {b:g}" for name, b in self.hiding()]
                parts.append(f"hides {', '.join(hides)}")
            else:
                parts.append(f"hides {names} with strength {self.strength:g}")
        if self.refused_owners:
            parts.append("sends nothing to " + ", ".join(self.refused_owners))
        if self.never_send:
            parts.append("never sends anything of " + ", ".join(self.never_send))
        return "takes part, " + "; ".join(parts)

    def owner_words(self) -> str:
        """The same for a system of data owners, who read what they get."""
        if not self.takes_part:
            return "does not take part: sends nothing to anybody"
        but = f"; sends nothing to {', '.join(self.refused_owners)}" if self.refused_owners else ""
        if self.never_send:
            but += f"; never sends anything of {', '.join(self.never_send)}"
        return "takes part: every owner of an item reads what she does with it" + but


FIELDS: dict[str, ChoiceField] = {each.name: each.metadata["kind"] for each in fields(Choice)}
"""By field."""
COLUMN_TYPES = {name: kind.column for name, kind in FIELDS.items() if kind.column}
"""What a record has one value of, and its type."""


Drawn = Literal[
    "switch", "epsilon", "share", "count", "limit", "strength", "attributes", "owners", "things"
]
"""How a page draws a field: it knows these, and no system."""
LOUDNESS = ((0.25, "whisper"), (1.0, "low"), (2.0, "normal"), (4.0, "loud"))


@dataclass(frozen=True, slots=True)
class DrawnField:
    """A field of a choice as a component asks for it."""

    name: str
    drawn: Drawn
    words: str = ""
    """The key of its label and help text; its name if this is empty."""
    least: float = 0.0
    most: float = 1.0
    steps: tuple[tuple[float, str], ...] = ()
    """Values that have a name."""


_SHARES = ((0.0, "none"), (0.1, "some"), (0.5, "half"), (1.0, "all"))
_STRENGTHS = ((0.2, "gentle"), (0.5, "medium"), (0.8, "strong"))
ASKED = {
    each.name: each
    for each in (
        DrawnField("takes_part", "switch"),
        DrawnField("share_positives", "share", steps=_SHARES),
        DrawnField("epsilon", "epsilon", "epsilon.update", steps=LOUDNESS),
        DrawnField("max_reports", "count"),
        DrawnField("total_epsilon", "limit", most=math.inf, steps=LOUDNESS),
        DrawnField("hidden_attributes", "attributes"),
        DrawnField("strength", "strength", most=0.99, steps=_STRENGTHS),
        DrawnField("refused_owners", "owners"),
        DrawnField("never_send", "things"),
    )
}
"""What a component asks for that says no more of it."""


def loudness(least: float, most: float) -> tuple[tuple[float, str], ...]:
    """The named steps between these; the loudest is the largest that there is."""
    if most >= LOUDNESS[-1][0]:
        return tuple(step for step in LOUDNESS if step[0] >= least)
    return (*(step for step in LOUDNESS if least <= step[0] < most), (most, "loud"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Columns:
    """The fields of many people's choices that have one value each, a row per person."""

    takes_part: NDArray[np.bool_]
    share_positives: NDArray[np.float32]
    epsilon: NDArray[np.float32]
    max_reports: NDArray[np.int32]
    total_epsilon: NDArray[np.float64]
    strength: NDArray[np.float32]


def _checked(name: str, value: Any, default: object) -> Any:
    """The value, where it is one of its field's."""
    kind = FIELDS[name]
    if name == "strengths":
        return _by_attribute(value)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(a, str) for a in value):
            raise ConfigError(f"{name} must be a list of names")
        return tuple(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        what = "a number" if isinstance(default, float) else "a whole number"
        raise ConfigError(f"{name} must be {what}")
    if isinstance(default, int) and not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number")
    if not 0 <= value <= kind.most:
        raise ConfigError(f"{name} must lie in [0, {kind.most:g}], not {value}")
    if kind.below and value == kind.most:
        raise ConfigError(f"{name} must be below {kind.most:g}")
    return float(value) if isinstance(default, float) else value


def _by_attribute(value: Any) -> tuple[tuple[str, float], ...]:
    """β by attribute, in the order of their names; raises where it is not such a table."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    told = isinstance(pairs, list | tuple) and all(
        isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) and one[0]
        for one in pairs
    )
    if not told or len({one[0] for one in pairs}) < len(pairs):
        raise ConfigError(
            "strength must be a number from 0 to below 1, or a table of such numbers by attribute, "
            "such as { gender = 0.8, age = 0.3 }"
        )
    for name, b in pairs:
        if isinstance(b, bool) or not isinstance(b, int | float) or not 0 <= b < 1:
            raise ConfigError(f"strength of {name!r} must be a number from 0 to below 1, not {b!r}")
    return tuple(sorted((name, float(b)) for name, b in pairs))
