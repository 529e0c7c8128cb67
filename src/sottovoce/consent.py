"""What each user permits. One record per user; the door reads it before anything leaves.

`Consent` holds a row per device of a cohort. Operators choose a `ConsentPolicy`: the same default
for everyone, or a stated mix. The draw of a mix depends on seed and user alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.rng import Keys, Streams, words_of


@dataclass(frozen=True, slots=True)
class Choice:
    """One person's settings. The default takes part and shares no positive item."""

    takes_part: bool = True
    share_positives: float = 0.0
    """π: the share of positive-item updates that may leave, in [0, 1]."""
    epsilon: float = 0.0
    """Largest privacy cost per report that the user accepts; 0 permits no randomised report."""
    max_reports: int = 0
    """k: most randomised reports per round."""
    total_epsilon: float = math.inf
    """Most ε that all rounds may cost together, for ever: of randomised reports and noisy updates
    by plain composition, of updates in noisy sums by `privacy.central.price`. What has left counts,
    whatever became of it. It limits nothing where no ε bounds what leaves."""
    hidden_attributes: tuple[str, ...] = ()
    """Attributes that must not be learnt."""
    strength: float = 0.5
    """β in [0, 1): the weight of hiding attributes against that of good recommendations."""
    refused_owners: tuple[str, ...] = ()
    """Data owners, by name, that must see nothing of hers."""

    def __post_init__(self) -> None:
        for name in ("hidden_attributes", "refused_owners"):
            names: object = getattr(self, name)
            if not isinstance(names, list | tuple) or not all(isinstance(a, str) for a in names):
                raise ConfigError(f"{name} must be a list of names")
            object.__setattr__(self, name, tuple(names))
        if not isinstance(self.takes_part, bool):
            raise ConfigError("takes_part must be true or false")
        _within("share_positives", self.share_positives, 0.0, 1.0)
        _within("epsilon", self.epsilon, 0.0, math.inf)
        _within("total_epsilon", self.total_epsilon, 0.0, math.inf)
        object.__setattr__(self, "total_epsilon", float(self.total_epsilon))
        _within("strength", self.strength, 0.0, 1.0)
        if self.strength == 1.0:
            raise ConfigError("strength must be below 1")
        if isinstance(self.max_reports, bool) or not isinstance(self.max_reports, int):
            raise ConfigError("max_reports must be a whole number")
        _within("max_reports", self.max_reports, 0, 2**31 - 1)

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
            parts.append(f"updates with noise at ε ≤ {self.epsilon:g} each")
        if math.isfinite(self.total_epsilon):
            noisy = "" if self.max_reports or self.epsilon else " that have an ε"
            most = f"no more than ε = {self.total_epsilon:.10g}"
            parts.append(f"{most} over all rounds{noisy} together")
        if self.hidden_attributes:
            names = ", ".join(self.hidden_attributes)
            parts.append(f"hides {names} with strength {self.strength:g}")
        if self.refused_owners:
            parts.append("sends nothing to " + ", ".join(self.refused_owners))
        return "takes part, " + "; ".join(parts)

    def owner_words(self) -> str:
        """The same for a system of data owners, who read what they get."""
        if not self.takes_part:
            return "does not take part: sends nothing to anybody"
        but = f"; sends nothing to {', '.join(self.refused_owners)}" if self.refused_owners else ""
        return "takes part: every owner of an item reads what she does with it" + but


_COLUMNS = (
    *("takes_part", "share_positives", "epsilon", "max_reports", "strength", "total_epsilon"),
)
"""What a record has one value of."""


@dataclass(frozen=True, slots=True, repr=False)
class Consent:
    """A row per device. Immutable: a change of mind is a new record."""

    users: NDArray[np.int64]
    takes_part: NDArray[np.bool_]
    share_positives: NDArray[np.float32]
    epsilon: NDArray[np.float32]
    max_reports: NDArray[np.int32]
    hidden_attributes: NDArray[np.bool_]
    """[n, attributes], columns named by `attributes`."""
    strength: NDArray[np.float32]
    total_epsilon: NDArray[np.float64]
    refused_owners: NDArray[np.bool_]
    """[n, owners], columns named by `owners`."""
    attributes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.users)
        for name in _COLUMNS:
            if getattr(self, name).shape != (n,):
                raise ConsentError(f"{name} must have one value per device")
        if self.hidden_attributes.shape != (n, len(self.attributes)):
            raise ConsentError("hidden_attributes must have one row per device")
        if self.refused_owners.shape != (n, len(self.owners)):
            raise ConsentError("refused_owners must have one row per device")
        share = self.share_positives
        if not np.all((share >= 0.0) & (share <= 1.0)):
            raise ConsentError("share_positives must lie in [0, 1]")
        for name in ("epsilon", "total_epsilon"):
            if not np.all(getattr(self, name) >= 0.0):
                raise ConsentError(f"{name} must not be below 0")

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
                        f"hidden attribute {name!r} is not among the data's {list(known)}"
                    )
            for name in choice.refused_owners:
                if name not in holders:
                    raise ConfigError(
                        f"refused_owners names {name!r}, who is not among the data owners "
                        f"{list(holders)}"
                        if holders
                        else "refused_owners is set, but there are no data owners in this system"
                    )
        hidden = _table([[a in c.hidden_attributes for a in known] for c in choices], known)
        refused = _table([[o in c.refused_owners for o in holders] for c in choices], holders)
        return cls(
            users=np.asarray(users, dtype=np.int64),
            takes_part=np.array([c.takes_part for c in choices], dtype=bool)[which],
            share_positives=np.array([c.share_positives for c in choices], np.float32)[which],
            epsilon=np.array([c.epsilon for c in choices], dtype=np.float32)[which],
            max_reports=np.array([c.max_reports for c in choices], dtype=np.int32)[which],
            hidden_attributes=hidden[which],
            strength=np.array([c.strength for c in choices], dtype=np.float32)[which],
            total_epsilon=np.array([c.total_epsilon for c in choices], dtype=np.float64)[which],
            refused_owners=refused[which],
            attributes=known,
            owners=holders,
        )

    def take(self, rows: NDArray[np.int64]) -> Consent:
        return replace(
            self,
            users=self.users[rows],
            hidden_attributes=self.hidden_attributes[rows],
            refused_owners=self.refused_owners[rows],
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
        )

    def only(self, fields: Sequence[str]) -> Consent:
        """The records with these fields alone; the others are as if nobody had chosen anything,
        but for who takes part."""
        neutral = Consent.uniform(self.users, Choice(), self.attributes, self.owners)
        kept = {name: getattr(self, name) for name in ("takes_part", *fields)}
        return replace(neutral, **kept)

    def row(self, index: int) -> Choice:
        """One device's record."""
        hidden, refused = self.hidden_attributes[index], self.refused_owners[index]
        return Choice(
            takes_part=bool(self.takes_part[index]),
            share_positives=float(self.share_positives[index]),
            epsilon=float(self.epsilon[index]),
            max_reports=int(self.max_reports[index]),
            total_epsilon=float(self.total_epsilon[index]),
            hidden_attributes=tuple(a for a, h in zip(self.attributes, hidden, strict=True) if h),
            strength=float(self.strength[index]),
            refused_owners=tuple(o for o, r in zip(self.owners, refused, strict=True) if r),
        )


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

    def may_leave(self, entry: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which positives leave, of draws given as interactions, shape [devices, draws]."""
        coins = words_of(self.keys, entry.shape[1]) >> np.uint64(32)
        leaves: NDArray[np.bool_] = coins < self.threshold[:, None]
        return leaves & self.allowed[entry] if len(self.allowed) else leaves


@dataclass(frozen=True, slots=True)
class ConsentPolicy:
    """How a federation's records come about in simulation: a mix of choices with weights."""

    choices: tuple[Choice, ...] = field(default_factory=lambda: (Choice(),))
    weights: tuple[float, ...] = (1.0,)

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
        """From an experiment file: one choice's fields, or `mix`, a list of them with `weight`."""
        if "mix" not in table:
            return cls.everyone(config.build(Choice, table, "consent"))
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
            choices.append(config.build(Choice, fields, where))
            weights.append(config.build(_Weight, weight, where).weight)
        return cls(tuple(choices), tuple(weights))

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

    def words(self, *, owners: bool = False) -> list[str]:
        """One line per choice: its share of the users and what it means, for data owners or for
        devices."""
        total = sum(self.weights)
        return [
            f"{100 * weight / total:3.4g}%  {choice.owner_words() if owners else choice.words()}"
            for choice, weight in zip(self.choices, self.weights, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Weight:
    weight: float


def _table(rows: list[list[bool]], columns: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.array(rows, dtype=bool).reshape(len(rows), len(columns))


def _within(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number")
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low:g}, {high:g}], not {value}")
