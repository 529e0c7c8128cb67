"""What each user permits. One record per user; the door reads it before anything leaves.

`Consent` holds a row per device of a cohort. Operators choose a `ConsentPolicy`: the same default
for everyone, or a stated mix. The draw of a mix depends on seed and user alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.core.choice import COLUMN_TYPES as COLUMN_TYPES
from sottovoce.core.choice import FIELDS as FIELDS
from sottovoce.core.choice import Choice as Choice
from sottovoce.core.choice import Columns as Columns
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.rng import Keys, Streams, words_of

LISTS = {"hidden_attributes": "attributes", "refused_owners": "owners", "never_send": "things"}
"""What a record has a list of names of, and by what its columns are named."""


def _nothing() -> NDArray[np.bool_]:
    return np.zeros((0, 0), dtype=bool)


def _no_strengths() -> NDArray[np.float32]:
    return np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Consent(Columns):
    """A row per device. Immutable: a change of mind is a new record."""

    users: NDArray[np.int64]
    hidden_attributes: NDArray[np.bool_]
    """[n, attributes], columns named by `attributes`."""
    refused_owners: NDArray[np.bool_]
    """[n, owners], columns named by `owners`."""
    never_send: NDArray[np.bool_] = field(default_factory=_nothing)
    """[n, things], columns named by `things`: those items and categories that anybody names."""
    strengths: NDArray[np.float32] = field(default_factory=_no_strengths)
    """[n, attributes]: β of each attribute by itself; NaN where it is `strength`."""
    attributes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    things: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.users)
        if not self.strengths.size:
            none = np.full((n, len(self.attributes)), np.nan, dtype=np.float32)
            object.__setattr__(self, "strengths", none)
        if not self.never_send.size:
            object.__setattr__(self, "never_send", np.zeros((n, len(self.things)), dtype=bool))
        for name in COLUMN_TYPES:
            if getattr(self, name).shape != (n,):
                raise ConsentError(f"{name} must have one value per device")
        for name, columns in LISTS.items():
            if getattr(self, name).shape != (n, len(getattr(self, columns))):
                raise ConsentError(f"{name} must have one row per device")
        if self.strengths.shape != (n, len(self.attributes)):
            raise ConsentError("strengths must have one row per device")
        if not np.all(np.isnan(self.strengths) | ((self.strengths >= 0) & (self.strengths < 1))):
            raise ConsentError("strengths must lie in [0, 1)")
        for name in COLUMN_TYPES:
            values, most = getattr(self, name), FIELDS[name].most
            if not np.all((values >= 0) & (values <= most)):
                within = f"must lie in [0, {most:g}]" if most < np.inf else "must not be below 0"
                raise ConsentError(f"{name} {within}")

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<Consent of {len(self):,}, redacted>"

    @classmethod
    def uniform(
        cls,
        users: NDArray[np.int64],
        choice: Choice,
        attributes: Sequence[str] = (),
        owners: Sequence[str] = (),
    ) -> Consent:
        """The same choice for every user."""
        return cls.of(users, [choice], np.zeros(len(users), dtype=np.int64), attributes, owners)

    @classmethod
    def of(
        cls,
        users: NDArray[np.int64],
        choices: Sequence[Choice],
        which: NDArray[np.int64],
        attributes: Sequence[str] = (),
        owners: Sequence[str] = (),
    ) -> Consent:
        """choices[which[n]] for the n-th user."""
        known, holders = tuple(attributes), tuple(owners)
        for choice in choices:
            for name in choice.hidden_attributes:
                if name not in known:
                    raise ConfigError(
                        f"hidden attribute {name!r} is not among the data's {list(known)}; take "
                        "data that have it, or name others in hidden_attributes"
                    )
            for name, _ in choice.strengths:
                if name not in known:
                    raise ConfigError(
                        f"strength names {name!r}, which is not among the data's attributes "
                        f"{list(known)}"
                    )
            for name in choice.refused_owners:
                if name not in holders:
                    raise ConfigError(
                        f"refused_owners names {name!r}, who is not among the data owners "
                        f"{list(holders)}"
                        if holders
                        else "refused_owners is set, but there are no data owners in this system"
                    )
        named = {
            "attributes": known,
            "owners": holders,
            "things": tuple(sorted({name for c in choices for name in c.never_send})),
        }
        columns: dict[str, Any] = dict(named)
        for name, by in LISTS.items():
            rows = [[n in getattr(c, name) for n in named[by]] for c in choices]
            columns[name] = np.array(rows, dtype=bool).reshape(len(rows), len(named[by]))[which]
        own = [[dict(c.strengths).get(n, np.nan) for n in known] for c in choices]
        columns["strengths"] = np.array(own, dtype=np.float32).reshape(len(own), len(known))[which]
        for name, kind in COLUMN_TYPES.items():
            columns[name] = np.array([getattr(c, name) for c in choices], dtype=kind)[which]
        return cls(users=np.asarray(users, dtype=np.int64), **columns)

    def take(self, rows: NDArray[np.int64]) -> Consent:
        return replace(
            self,
            users=self.users[rows],
            **{name: getattr(self, name)[rows] for name in (*LISTS, *COLUMN_TYPES, "strengths")},
        )

    def asked(self) -> list[str]:
        """The fields by which somebody who takes part asks something of a system."""
        neutral, willing = Choice(), self.takes_part
        found = []
        for name in (name for name, kind in FIELDS.items() if kind.asks):
            values, default = getattr(self, name)[willing], getattr(neutral, name)
            if (values if values.ndim > 1 else values != default).any():
                found.append(name)
        return found

    def only(self, fields: Sequence[str]) -> Consent:
        """The records with these fields alone; the others are as if nobody had chosen anything,
        but for who takes part."""
        neutral = Consent.uniform(self.users, Choice(), self.attributes, self.owners)
        neutral = replace(neutral, things=self.things)
        kept = {name: getattr(self, name) for name in ("takes_part", *fields)}
        return replace(neutral, **kept)

    def row(self, index: int) -> Choice:
        """One device's record."""
        fields: dict[str, Any] = {name: getattr(self, name)[index].item() for name in COLUMN_TYPES}
        for name, by in LISTS.items():
            named, chosen = getattr(self, by), getattr(self, name)[index]
            fields[name] = tuple(n for n, here in zip(named, chosen, strict=True) if here)
        own = zip(self.attributes, self.strengths[index].tolist(), strict=True)
        fields["strengths"] = tuple((name, b) for name, b in own if b == b)
        return Choice(**fields)

    def strength_of(self, names: Sequence[str]) -> NDArray[np.float32]:
        """[n, names]: β of each of these attributes."""
        found = np.repeat(self.strength[:, None], len(names), axis=1)
        for column, name in enumerate(names):
            if name in self.attributes:
                own = self.strengths[:, self.attributes.index(name)]
                found[:, column] = np.where(np.isnan(own), self.strength, own)
        return found

    def chose(self, choice: Choice) -> NDArray[np.bool_]:
        """Return the users who made this choice."""
        mine = np.ones(len(self), dtype=bool)
        for name, by in LISTS.items():
            wanted = np.array([n in getattr(choice, name) for n in getattr(self, by)], dtype=bool)
            mine &= (getattr(self, name) == wanted).all(axis=1)
        own = np.array([dict(choice.strengths).get(n, np.nan) for n in self.attributes], np.float32)
        mine &= ((self.strengths == own) | (np.isnan(self.strengths) & np.isnan(own))).all(axis=1)
        for name, kind in COLUMN_TYPES.items():
            mine &= getattr(self, name) == np.array(getattr(choice, name), dtype=kind)
        return mine


def newly_hidden(before: Consent, after: Consent) -> NDArray[np.bool_]:
    """[n, attributes of `after`]: what each user hides now and did not hide before."""
    hides = after.hidden_attributes.copy()
    for column, name in enumerate(after.attributes):
        if name in before.attributes:
            hides[:, column] &= ~before.hidden_attributes[:, before.attributes.index(name)]
    return hides


def affords(
    spent: NDArray[np.float64], cost: NDArray[np.float64], limit: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether one more release of this cost stays within the limit; reaching it is permitted.

    Three times 0.1 is a little more than 0.3 in binary, so the last digits are forgiven.
    """
    fits: NDArray[np.bool_] = spent + cost <= limit * (1.0 + 1e-12)
    return fits


ALWAYS = 1 << 32
"""The threshold of a draw that always leaves."""


def thresholds(share: NDArray[np.floating]) -> NDArray[np.uint64]:
    """A draw leaves where its 32-bit coin lies below this; π = 1 gives `ALWAYS`."""
    return np.round(np.asarray(share, dtype=np.float64) * float(ALWAYS)).astype(np.uint64)


@dataclass(frozen=True, slots=True, repr=False)
class ShareRule:
    """Which positive updates may leave, in the form the kernels read, a row per device of a round:
    the draw's coin must fall below `threshold`, and, where `allowed` is not empty, the item must be
    in the user's subset (a flag per interaction of the cohort's history)."""

    keys: Keys
    threshold: NDArray[np.uint64]
    allowed: NDArray[np.bool_]

    def may_leave(self, row: NDArray[np.int64], entry: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which positives leave, each given by its device's row and its interaction. A device's
        t-th has its t-th coin, however many the others have."""
        leaves = self.allowed[entry] if len(self.allowed) else np.ones(len(entry), dtype=bool)
        if np.all(self.threshold == ALWAYS):
            return leaves
        order, counts = np.argsort(row, kind="stable"), np.bincount(row, minlength=len(self.keys))
        turn = np.empty(len(row), dtype=np.int64)
        turn[order] = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        coins = words_of(self.keys, int(counts.max(initial=0))) >> np.uint64(32)
        found: NDArray[np.bool_] = leaves & (coins[row, turn] < self.threshold[row])
        return found


@dataclass(frozen=True, slots=True)
class ChangeOfMind:
    """In a simulation: some users hide attributes from a round on that they did not hide before."""

    after_round: int
    """How many rounds are done by then."""
    hide: tuple[str, ...]
    share: float = 1.0
    """How many of those who take part and do not hide all of these yet; each is drawn by herself,
    so that this is about the share of them that changes."""

    def __post_init__(self) -> None:
        config.require_whole("after_round", self.after_round, 1)
        config.require_number("share", self.share, 0.0, 1.0)
        object.__setattr__(self, "hide", tuple(self.hide))
        if not self.hide or not all(isinstance(name, str) and name for name in self.hide):
            raise ConfigError('hide must name the attributes to hide, such as ["age"]')

    def words(self) -> str:
        """One line for a report."""
        who = "everybody" if self.share == 1 else f"{100 * self.share:.4g}% of those"
        return (
            f"after round {self.after_round:,}, {who} who shared it until then "
            f"hides {', '.join(self.hide)}"
        )

    def applied(self, consent: Consent, rng: Streams) -> Consent:
        """The records after it."""
        missing = [name for name in self.hide if name not in consent.attributes]
        if missing:
            raise ConfigError(
                f"consent.changes hides {missing[0]!r}, which is not among the attributes of the "
                f"data; they have {list(consent.attributes)}"
            )
        columns = [consent.attributes.index(name) for name in self.hide]
        open_to_it = consent.takes_part & ~consent.hidden_attributes[:, columns].all(axis=1)
        drawn = rng.uniform(consent.users, 1)[:, 0] < self.share
        hidden = consent.hidden_attributes.copy()
        for column in columns:
            hidden[open_to_it & drawn, column] = True
        return replace(consent, hidden_attributes=hidden)


@dataclass(frozen=True, slots=True)
class ConsentPolicy:
    """How a federation's records come about in simulation: a mix of choices with weights, and how
    users change their minds on the way."""

    choices: tuple[Choice, ...] = field(default_factory=lambda: (Choice(),))
    weights: tuple[float, ...] = (1.0,)
    changes: tuple[ChangeOfMind, ...] = ()
    """In the order of their rounds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        if not self.choices or len(self.choices) != len(self.weights):
            raise ConfigError("a consent mix needs one weight per choice, and at least one choice")
        if min(self.weights) < 0 or not 0 < sum(self.weights) < float("inf"):
            raise ConfigError(
                "the weights of a consent mix must be finite, non-negative and not all zero"
            )

    @classmethod
    def everyone(cls, choice: Choice) -> ConsentPolicy:
        return cls((choice,), (1.0,))

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> ConsentPolicy:
        """From an experiment file: one choice's fields, or `mix`, a list of them with `weight`; and
        `changes`, a list of changes of mind."""
        table = dict(table)
        changes = _changes(table.pop("changes", []))
        if "mix" not in table:
            return cls((_choice(table, "consent"),), (1.0,), changes)
        others = sorted(set(table) - {"mix"})
        if others:
            raise ConfigError(f"[consent] has a mix and also {others}; choose one way")
        mix = table["mix"]
        if not isinstance(mix, list) or not all(isinstance(entry, dict) for entry in mix):
            raise ConfigError("consent.mix must be a list of tables")
        choices, weights = [], []
        for number, entry in enumerate(mix):
            where, fields = f"consent.mix[{number}]", dict(entry)
            weight = {"weight": fields.pop("weight")} if "weight" in fields else {}
            choices.append(_choice(fields, where))
            weights.append(config.build(_Weight, weight, where).weight)
        return cls(tuple(choices), tuple(weights), changes)

    def draw(
        self,
        users: NDArray[np.int64],
        rng: Streams,
        attributes: Sequence[str] = (),
        owners: Sequence[str] = (),
    ) -> Consent:
        edges = np.cumsum(self.weights) / sum(self.weights)
        where = rng.child("consent").uniform(np.asarray(users, dtype=np.int64), 1)[:, 0]
        which = np.minimum(np.searchsorted(edges, where, side="right"), len(edges) - 1)
        return Consent.of(users, self.choices, which.astype(np.int64), attributes, owners)

    def later(self, consent: Consent, rng: Streams) -> list[tuple[int, Consent]]:
        """From which round on other records hold than those that were drawn at first, by what the
        seed says of each user alone."""
        found = []
        for number, change in enumerate(self.changes):
            consent = change.applied(consent, rng.child("change-of-mind", number))
            found.append((change.after_round, consent))
        return found

    def words(self, *, owners: bool = False) -> list[str]:
        """One line per choice: its share of the users and what it means, for data owners or for
        devices; and one per change of mind."""
        total = sum(self.weights)
        return [
            f"{100 * weight / total:3.4g}%  {choice.owner_words() if owners else choice.words()}"
            for choice, weight in zip(self.choices, self.weights, strict=True)
        ] + [change.words() for change in self.changes]


def _choice(fields: Mapping[str, object], where: str) -> Choice:
    """A choice of an experiment file, in which `strength` may be a table by attribute."""
    strength = fields.get("strength")
    if not isinstance(strength, Mapping):
        return config.build(Choice, fields, where)
    plain: Choice = config.build(
        Choice, {k: v for k, v in fields.items() if k != "strength"}, where
    )
    try:
        return replace(plain, strengths=tuple(strength.items()))
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from None


def _changes(entries: object) -> tuple[ChangeOfMind, ...]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError("consent.changes must be a list of tables")
    found = [
        config.build(ChangeOfMind, entry, f"consent.changes[{number}]")
        for number, entry in enumerate(entries)
    ]
    return tuple(sorted(found, key=lambda change: change.after_round))


@dataclass(frozen=True, slots=True)
class _Weight:
    weight: float
