"""What an attack gets, what it is judged by, and what comes of it.

A `View` is all that one party saw in a run, and nothing else. An attack is a function of a view:
`guess` sees the view alone, and only then `judge` holds the guess against the truth. Whoever has an
attack enters it where it is defined, in a file of `attacks/suite/` or anywhere else:

    POPULAR = ATTACKS.add("popular", Attack("popular items", "anyone", "Nobody …", guess))
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks import power
from sottovoce.core.installed import needs
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import ModelView
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, SottovoceError
from sottovoce.registry import Registry

Party = Literal["server", "proxy", "coalition", "orchestrator", "owner", "network", "anyone"]
"""The attacker. "network" is whoever reads what passes, "anyone" knows what is published. The
"coalition" is a server and all shufflers of a chain but one."""
M = TypeVar("M")
CONFIDENCE_Z = power.CONFIDENCE_Z
PERMITTED = "AUC, by ε"
"""The measure of an attack that is held against what ε permits, not against a guess."""


class SeenRound(NamedTuple):
    """One round."""

    round: int
    messages: tuple[object, ...]
    """What reached the party in it, in order: messages of `core.messages` or `drift.messages`, and
    for the network `TlsPacket`s."""
    published: ModelView | None = None
    """The model that the round started from, where it is published."""


class TlsPacket(NamedTuple):
    """What a network observer sees of a message inside TLS: from whom, to whom, how long."""

    sender: int
    receiver: str
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class View(Redacted):
    """All that a party saw."""

    party: Party
    rounds: tuple[SeenRound, ...]
    algorithm: Any
    """The configuration, which is public: learning rates and all. An attack knows its type by what
    it is `against`; the same holds for release and link."""
    release: Any
    link: Any
    n_items: int
    final: NDArray[np.float32]
    """The model after the last round, as published."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What the party holds itself, by name (an orchestrator's model, say)."""
    triples: int = 0
    """FPL's draws per device and round, which is public."""
    draws: str = "fast"
    """From which generator the run's devices drew; that of real ones is "secret"."""
    told: tuple[Any, ...] = ()
    """Draws that an attacker is told, in place of a search that would take him long (A13)."""

    def messages(self, kind: type[M]) -> list[M]:
        """All messages of one kind, in order."""
        return [m for seen in self.rounds for m in seen.messages if isinstance(m, kind)]


@dataclass(frozen=True, slots=True, repr=False)
class Truth(Redacted):
    """What was really so, for scoring alone; no `guess` gets it. Users and items are those of the
    training part."""

    train: Interactions
    test: Interactions
    takes_part: NDArray[np.bool_]
    share_positives: NDArray[np.float32]
    hidden: Mapping[str, NDArray[np.bool_]]
    """By attribute: who hides it."""
    labels: Mapping[str, NDArray[np.int64]]
    """By attribute: each user's class, -1 where it is not known to her device."""
    vectors: NDArray[np.float32]
    """Every device's vector at the end."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What single attacks need beside that, by name."""


Verdict = Literal["holds", "broken", "underpowered", "nothing to attack"]
Unit = Literal["rounds", "users"]
"""What an attack sees more of things in."""


@dataclass(frozen=True, slots=True)
class Result:
    """An attack's outcome, with what a guess without it would be worth."""

    code: str
    """A1 to A15, or a name."""
    attack: str
    party: Party
    promise: str
    """What a device owner may have hoped for, in her words."""
    measure: str
    """What `value` is: "precision", "AUC", …"""
    value: float
    interval: tuple[float, float]
    """95 %."""
    base_rate: float
    """The same measure for the best guess without the attack; of `PERMITTED`, what ε permits."""
    recall: float = math.nan
    claims: int = 0
    """How many things were claimed; 0 says that there was nothing to claim from."""
    detail: str = ""
    """A sentence, where there is more to say."""
    looked: int = 0
    """How many rounds or users were looked at; 0 where nobody has counted them."""
    unit: Unit = "rounds"

    @property
    def verdict(self) -> Verdict:
        if not self.claims:
            return "nothing to attack"
        if self.interval[0] > self.base_rate:
            return "broken"
        if self.far_above is None or power.decided(self.interval, self.base_rate):
            return "holds"
        return "underpowered"

    @property
    def far_above(self) -> float | None:
        """What the interval must stay below for a promise to hold; None of a measure that is
        neither a share nor an AUC."""
        known = self.measure in power.SHARES or self.measure in ("AUC", PERMITTED)
        return power.far_above(self.base_rate) if known else None

    @property
    def needed(self) -> int | None:
        """How many rounds or users would do, where these were too few for a verdict."""
        if self.verdict != "underpowered" or not self.looked:
            return None
        figures = self.measure, self.value, self.interval, self.base_rate, self.claims
        return max(self.looked + 1, math.ceil(self.looked * power.times_more(*figures)))

    def content(self) -> dict[str, Any]:
        """All of it, for JSON; what is no finite number is null."""
        known = {"verdict": self.verdict, "far_above": self.far_above, "needed": self.needed}
        plain: dict[str, Any] = _plain({**asdict(self), **known})
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Remedy(NamedTuple):
    """What is made for what an attack finds."""

    name: str = ""
    """As in a run's setting, where it is in force; empty where it is no setting."""
    words: str = ""


_NO_REMEDY = Remedy()
SECURE_SUM = Remedy(
    "secure-sum",
    "adding updates up under masks, so that nobody sees a single one (the link secure-sum)",
)


def _lacking(view: View) -> Any:
    raise ConfigError("this attack makes no guess")


def _nothing(view: View) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on one promise. What it is against is checked before it is asked for a guess."""

    name: str
    """As reports show it."""
    party: Party
    promise: str
    """What a device owner may have hoped for, in her words."""
    guess: Callable[[View], Any] = _lacking
    judge: Callable[[Any, Truth], Result] | None = None
    """By default a guess is `Claims`, and judged by `judge_claims`."""
    code: str = "X"
    """Under which reports sort it: A1 to A15, N1, O1; X is everybody's."""
    against: frozenset[str] = frozenset()
    """Names of algorithms; empty: any."""
    releases: frozenset[str] = frozenset()
    """The same of releases."""
    links: frozenset[str] = frozenset()
    """The same of links."""
    elsewhere: str = ""
    """Why it does not apply to anything else, in a sentence."""
    needs: Callable[[View], str] = _nothing
    """What this view lacks, in a sentence; empty where the attack can begin."""
    remedy: Remedy = _NO_REMEDY
    grows_with: Unit = "rounds"
    """What it needs more of if it has seen too little for a verdict."""
    claimed: Callable[[Any], Claims] | None = None
    """What a guess says of single users, so that it can be tried on one device alone; None where it
    says nothing of one without the others, or where a guess is `Claims`."""

    def __post_init__(self) -> None:
        if self.guess is _lacking or not callable(self.guess):
            raise ConfigError(f"the attack {self.name!r} lacks guess, a function of a view")
        if self.party not in get_args(Party):
            raise ConfigError(
                f"the attack {self.name!r} is by {self.party!r}; parties are {get_args(Party)}"
            )
        if any(isinstance(names, str) for names in (self.against, self.releases, self.links)):
            raise ConfigError(f"the attack {self.name!r} must name what it is against in a set")

    def applies(self, view: View) -> str:
        """Why it does not apply to this view, in a sentence; empty where it does."""
        parts = (
            (self.against, view.algorithm),
            (self.releases, view.release),
            (self.links, view.link),
        )
        fits = all(not names or getattr(part, "name", "") in names for names, part in parts)
        if fits and view.party == self.party:
            return self.needs(view)
        wanted = ", ".join(sorted(self.against | self.releases | self.links))
        return self.elsewhere or f"it is about what {self.party} sees of {wanted or 'any system'}"

    @property
    def tries_one(self) -> bool:
        """Whether it can be tried on one device alone."""
        return self.claimed is not None or self.judge is None

    def claims(self, view: View) -> Claims:
        """What it says of single users, each pair once."""
        guess = self.guess(view)
        found: Claims = guess if self.claimed is None else self.claimed(guess)
        return found.unique() if len(found) else found

    def run(self, view: View, truth: Truth) -> Result:
        guess = self.guess(view)
        if self.judge is not None:
            return self.judge(guess, truth)
        return judge_claims(self.name, self.code, self.party, self.promise, guess, truth.train)


ATTACKS: Registry[Attack] = Registry("attack", "sottovoce.attacks.suite", Attack)


@dataclass(frozen=True, slots=True, repr=False)
class Claims(Redacted):
    """That these users have these items."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.users)

    def unique(self) -> Claims:
        """Each pair once, by user, then item."""
        pairs = np.unique(np.stack([self.users, self.items], axis=1), axis=0)
        return Claims(pairs[:, 0], pairs[:, 1])


def judge_claims(
    attack: str,
    code: str,
    party: Party,
    promise: str,
    claims: Claims,
    truth: Interactions,
    wanted: Claims | None = None,
    detail: str = "",
) -> Result:
    """Precision of claimed pairs, against the precision of the same claims about other users, which
    is what popularity alone gives. The 95 % interval is as wide as that of their difference, over
    users (claims about one user go together). Recall is over `wanted`, or over all items of the
    users of whom anything is claimed."""
    claims = claims.unique() if len(claims) else claims
    if not len(claims):
        nothing = 0.0, (0.0, 1.0), 0.0, 0.0, 0
        return Result(code, attack, party, promise, "precision", *nothing, detail)
    n_items = truth.n_items
    known = np.unique(truth.users.astype(np.int64) * n_items + truth.items)
    right = np.isin(claims.users * n_items + claims.items, known)
    users, where = np.unique(claims.users, return_inverse=True)
    hits, counts = np.bincount(where, right), np.bincount(where)
    # The chance that a claimed item belongs to another of these users.
    mine = np.isin(truth.users, users)
    popular = np.bincount(truth.items[mine], minlength=n_items).astype(np.float64)
    others = max(1, len(users) - 1)
    base = float(((popular[claims.items] - right) / others).mean()) if len(users) > 1 else 0.0
    target = known[np.isin(known // n_items, users)]
    if wanted is not None:
        target = np.unique(wanted.users * n_items + wanted.items)
    found = int(np.isin(target, claims.users * n_items + claims.items).sum())
    recall = found / len(target) if len(target) else math.nan
    value = float(right.mean())
    interval = clustered(hits, counts)
    if len(users) > 2:
        about = np.bincount(claims.items, minlength=n_items)
        place = np.searchsorted(users, truth.users[mine])
        shared = np.bincount(place, about[truth.items[mine]], len(users)) - hits
        expected = np.bincount(where, popular[claims.items] - right)
        spread = _difference_spread(hits, counts, expected, shared)
        interval = clustered(hits, counts, spread)
    return Result(
        code, attack, party, promise, "precision", value, interval, base, recall, len(claims),
        detail,
    )  # fmt: skip


def _difference_spread(
    hits: NDArray[np.number],
    counts: NDArray[np.integer],
    expected: NDArray[np.number],
    shared: NDArray[np.number],
) -> float:
    """The standard error of a precision's distance from its base rate, by leaving out one user
    after the other. `expected` is how many others have what is claimed of a user, and `shared` how
    many claims about others would be right of her."""
    n = len(hits)
    value = (hits.sum() - hits) / (counts.sum() - counts)
    base = (expected.sum() - expected - shared) / (counts.sum() - counts) / (n - 2)
    apart = value - base
    return float(np.sqrt((n - 1) / n * ((apart - apart.mean()) ** 2).sum()))


def clustered(
    hits: NDArray[np.number], counts: NDArray[np.integer], spread: float | None = None
) -> tuple[float, float]:
    """The 95 % interval of a share Σ hits / Σ counts over independent groups; Wilson's where the
    groups do not differ or there is one alone. `spread` is its standard error, where that is known
    better."""
    total, n = float(counts.sum()), len(counts)
    p = float(hits.sum()) / total
    if spread is None:
        apart = float(((hits - p * counts) ** 2).sum())
        spread = math.sqrt(apart * n / (n - 1)) / total if n > 1 else 0.0
    z2 = CONFIDENCE_Z**2
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = math.sqrt(p * (1 - p) / total + z2 / (4 * total**2)) * CONFIDENCE_Z / (1 + z2 / total)
    low = min(middle - half, p - CONFIDENCE_Z * spread)
    high = max(middle + half, p + CONFIDENCE_Z * spread)
    return max(0.0, low), min(1.0, high)


# --- what may go wrong with an attack that is tried; the other attacks go on ---------------------

FAULTS = (
    *(SottovoceError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, OSError, RuntimeError, StopIteration, TypeError, ValueError),
)
"""What a bug in an attack raises, or a library that is missing."""


def trouble(error: Exception) -> str:
    """What went wrong, without values, which may be private."""
    if isinstance(error, SottovoceError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"it {needs(error.name or 'a library')}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__} in {place.name} ({where})"
