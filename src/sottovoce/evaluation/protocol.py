"""How systems are compared: candidates, ties, cut-off. Printed with every table.

The rules. Candidates are the items of the training catalogue that the user has not touched in
training; items that occur in the test set alone cannot be ranked but count as relevant. Order is
by score, ties by item number. Users without test items are skipped and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.interactions import Interactions
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.core.recommender import Scorer, score_items, top_n
from sottovoce.errors import DataError, UsageError
from sottovoce.evaluation import metrics
from sottovoce.evaluation.metrics import Ranked, every_metric, user_metrics
from sottovoce.rng import GAMMA, Keys, Streams, below, mix


def draw_negatives(
    train: Interactions,
    test: Interactions,
    users: NDArray[np.int64],
    negatives: int,
    keys: Keys,
) -> NDArray[np.int32]:
    """[len(users), negatives] distinct training items in neither row of the user, in drawn order.

    Uniform over the sets of that size, and a pure function of a user's key and rows. Raises if a
    user has fewer such items.
    """
    if negatives > train.n_items:
        raise DataError(
            f"{negatives:,} negatives cannot be drawn from {train.n_items:,} items; ask for fewer"
        )
    out = np.empty((len(users), negatives), dtype=np.int32)
    short = _draw(
        keys,
        np.asarray(users, dtype=np.int64),
        train.indptr,
        train.items,
        test.indptr,
        test.items,
        train.n_items,
        out,
    )
    if short >= 0:
        raise DataError(
            f"user {short} has fewer than {negatives} items left to draw from; "
            "ask for fewer negatives"
        )
    return out


@njit(cache=True)
def _draw(keys, users, train_ptr, train_items, test_ptr, test_items, n_items, out):  # type: ignore[no-untyped-def]
    # taken[i] == r + 1: item i is not, or no longer, on offer for row r.
    taken = np.zeros(n_items, np.int64)
    negatives = out.shape[1]
    for r in range(len(users)):
        u = users[r]
        left = n_items
        for e in range(train_ptr[u], train_ptr[u + 1]):
            taken[train_items[e]] = r + 1
            left -= 1
        for e in range(test_ptr[u], test_ptr[u + 1]):
            if test_items[e] < n_items and taken[test_items[e]] != r + 1:
                taken[test_items[e]] = r + 1
                left -= 1
        if left < negatives:
            return u
        drawn = 0
        counter = keys[r]
        while drawn < negatives:
            counter += GAMMA
            item = below(mix(counter) >> uint64(32), n_items)
            if taken[item] != r + 1:
                taken[item] = r + 1
                out[r, drawn] = item
                drawn += 1
    return -1


SLAB = 8192
"""Users between two calls of `progress`."""

LONGEST = 10_000
"""Largest cut-off. Lists keep all their places, so an endless one would fill memory."""


@dataclass(frozen=True, slots=True)
class Full:
    """Rank the whole training catalogue."""

    ties: ClassVar[str] = "ties by item number"

    def describe(self) -> str:
        return "all training items the user has not touched"

    def draw(
        self, train: Interactions, test: Interactions, users: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """None: no negatives are drawn, since all items are ranked."""
        return None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Rank each test item against negatives drawn once per user, uniformly and without
    replacement, from the training items in neither the user's training nor test row."""

    negatives: int = 99
    seed: int = 0
    first: int = 0
    """The number of the first user, where these are a shard."""
    others: tuple[int, ...] = ()
    """Further seeds, where figures are the mean over several."""
    ties: ClassVar[str] = "ties against the system"

    def __post_init__(self) -> None:
        if self.negatives < 1:
            raise UsageError(f"at least one negative must be drawn, not {self.negatives}")

    def describe(self) -> str:
        seeds = f"seeds {listed(self.seed, *self.others)}" if self.others else f"seed {self.seed}"
        return f"each test item among {self.negatives} sampled negatives ({seeds})"

    def draw(
        self, train: Interactions, test: Interactions, users: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Distinct negatives [len(users), negatives]; a user's row depends on the user alone."""
        keys = Streams.from_seed(self.seed).child("negatives").keys(users + self.first)
        return draw_negatives(train, test, users, self.negatives, keys)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Given:
    """Rank each test item against published negatives: row u of `negatives` is for user u, -1
    where a user has fewer. Negatives that no system can rank (without training interactions) and
    those that are test items of the user count as missing; NCF's published lists hold both."""

    negatives: NDArray[np.int32]
    name: str = "given"
    digest: str = ""
    """Digest of the whole table, if this is a shard of it."""
    ties: ClassVar[str] = "ties against the system"

    def __post_init__(self) -> None:
        table = np.array(self.negatives, dtype=np.int32)
        if table.ndim != 2 or table.size == 0:
            raise UsageError("negatives must be a table with one row per user")
        table.flags.writeable = False
        object.__setattr__(self, "negatives", table)

    def describe(self) -> str:
        digest = self.digest or negatives_digest(self.negatives)
        width = self.negatives.shape[1]
        return f"each test item among {width} negatives of {self.name} ({digest})"

    def draw(
        self, train: Interactions, test: Interactions, users: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        if len(self.negatives) != test.n_users:
            raise DataError(
                f"{self.name} has negatives for {len(self.negatives):,} users, "
                f"the test set has {test.n_users:,}"
            )
        if self.negatives.max() >= test.n_items or self.negatives.min() < -1:
            raise DataError(f"{self.name} has negatives outside the {test.n_items:,} items")
        rows = self.negatives[users]
        missing = (rows >= train.n_items) | metrics.hits(rows, users, test)
        return np.where(missing, np.int32(-1), rows)


def listed(*numbers: int) -> str:
    """5, 10 and 20."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def negatives_digest(table: NDArray[np.int32]) -> str:
    """Return the digest by which a protocol names a table of negatives."""
    return hashlib.blake2b(table.tobytes(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Protocol:
    """Cut-offs and candidates."""

    k: int = 10
    """The cut-off that stands for the others where there are several."""
    candidates: Full | Sampled | Given = field(default_factory=Full)
    also: tuple[int, ...] = ()
    """Further cut-offs of the same lists."""
    metrics: tuple[str, ...] = ()
    """Keys of the metrics that tables have, in their order; empty: the usual ones. Those that must
    be asked for are measured beside the others."""

    def __post_init__(self) -> None:
        for k in self.cutoffs:
            if not 1 <= k <= LONGEST:
                raise UsageError(f"the cut-off must lie in [1, {LONGEST:,}], not {k}")
        if len(set(self.cutoffs)) < len(self.cutoffs):
            raise UsageError(f"a cut-off is there twice: {', '.join(map(str, self.cutoffs))}")

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return (self.k, *self.also)

    def describe(self) -> str:
        top = listed(*self.cutoffs)
        return f"top {top}; {self.candidates.describe()}; {self.candidates.ties}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Evaluation:
    """What one system did for each user.

    `values` holds one number per user in `users`, by metric ("P@10", "AP@10", ...). `served` tells
    who got any recommendation; users who got none count as zero. `lists` is there under `Full`
    only.

    Example:
        ```python
        found = fitted.evaluate(["NDCG"], k=10).evaluation
        print(found.mean("NDCG@10"), found.per_user("NDCG@10"))
        ```
    """

    protocol: Protocol
    users: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]
    served: NDArray[np.bool_]
    skipped: int
    n_items: int
    lists: NDArray[np.int32] | None = None
    ranks: Ranks = ALONE
    """Where the users are a rank's share, the ranks. Figures and counts are then over all of them,
    and all of them ask for one at the same time."""
    seeds: Mapping[int, Evaluation] = field(default_factory=dict)
    """The evaluations of single seeds, if this one is their mean; empty otherwise."""

    def __repr__(self) -> str:
        return f"<Evaluation {self.protocol.describe()}; {len(self):,} users here>"

    def __len__(self) -> int:
        return len(self.users)

    def per_user(self, metric: str) -> NDArray[np.float64]:
        """By the name that the values have (AP@10), or that their mean has (MAP@10)."""
        try:
            return self.values[self._value_name(metric)]
        except KeyError:
            known = ", ".join(self.values)
            raise UsageError(f"there is no per-user {metric!r}; there are {known}") from None

    def told_per_user(self, metric: str) -> bool:
        """Whether there is a value of it for every user."""
        return self._value_name(metric) in self.values

    def _value_name(self, metric: str) -> str:
        if metric in self.values:
            return metric
        name, at, k = metric.rpartition("@")
        asked = self.protocol.metrics
        short = {one.key(): short for short, one in user_metrics(asked).items()}.get(name, name)
        return f"{short}{at}{k}"

    def mean(self, metric: str) -> float:
        """Mean over all evaluated users, served or not: their exact sum, rounded once. Of several
        seeds, the mean of theirs."""
        if self.seeds:
            return sum(one.mean(metric) for one in self.seeds.values()) / len(self.seeds)
        values = self.per_user(metric)
        return self.ranks.exact_sum(values) / self.ranks.total(len(values))[0]

    def summary(self, *, gini_items: int | None = None) -> dict[str, float]:
        """Every metric that applies. `gini_items` is the catalogue of Gini; by default all items,
        those of the test set included. Of several seeds, the mean of theirs."""
        if self.seeds:
            every = [one.summary(gini_items=gini_items) for one in self.seeds.values()]
            told = [key for key in every[0] if all(key in one for one in every)]
            return {key: sum(one[key] for one in every) / len(every) for key in told}
        n_items = self.n_items if gini_items is None else gini_items
        kinds = every_metric(self.protocol.metrics)
        found: dict[str, float | None] = {}
        for k in self.protocol.cutoffs:
            at, lists = f"@{k}", None if self.lists is None else self.lists[:, :k]
            mine = [name for name in self.values if name.endswith(at)]
            means = {name.removesuffix(at): self.mean(name) for name in mine}
            counts = self._counts(lists)
            found |= {m.key() + at: m.figure(means, lists, n_items, counts) for m in kinds}
        return {key: value for key, value in found.items() if value is not None}

    def _counts(self, lists: NDArray[np.int32] | None) -> NDArray[np.int64] | None:
        """How often each item is recommended, where the lists are spread over ranks."""
        if lists is None or not self.ranks.several:
            return None
        chosen = lists[lists >= 0]
        return self.ranks.all_sum(np.bincount(chosen, minlength=self.n_items).astype(np.int64))

    def describe(self) -> str:
        """The protocol and the users in one line."""
        mine = len(self.users), self.skipped, int((~self.served).sum())
        users, skipped, missing = self.ranks.total(*mine)
        text = f"{self.protocol.describe()}; {users:,} users"
        if skipped:
            text += f" ({skipped:,} without test items skipped)"
        if missing:
            text += f", {missing:,} of them not served"
        return f"{text}; mean over seeds {listed(*self.seeds)}" if self.seeds else text


def evaluate(
    scorer: Scorer,
    train: Interactions,
    test: Interactions,
    protocol: Protocol | None = None,
    *,
    threads: int | None = None,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Rank for every user with test items, and measure. The users may be a rank's share of those of
    several `ranks`."""
    protocol = protocol or Protocol()
    _check(scorer, train, test)
    chosen = np.flatnonzero(test.counts > 0)
    if ranks.total(len(chosen)) == (0,):
        raise DataError("no user has test items; there is nothing to evaluate")
    parts: list[_Part] = [] if len(chosen) else [_nobody(protocol)]
    for start in range(0, len(chosen), SLAB):
        slab = chosen[start : start + SLAB]
        negatives = protocol.candidates.draw(train, test, slab)
        if negatives is None:
            lists, _ = top_n(scorer, slab, train, max(protocol.cutoffs), threads=threads)
            parts.append(_measure_lists(lists, slab, train, test, protocol))
        else:
            parts.append(_measure_ranks(scorer, train, test, slab, negatives, protocol, threads))
    return _joined(parts, protocol, chosen, test.n_users - len(chosen), test, ranks)


def evaluate_lists(
    lists: NDArray[np.int32],
    train: Interactions,
    test: Interactions,
    protocol: Protocol | None = None,
) -> Evaluation:
    """What `evaluate` gave when it made these lists under full ranking, for all users."""
    users, protocol = np.flatnonzero(test.counts > 0), protocol or Protocol()
    part = _measure_lists(lists, users, train, test, protocol)
    return _joined([part], protocol, users, test.n_users - len(users), test)


class _Part(NamedTuple):
    """`Evaluation` for some of the users."""

    values: dict[str, NDArray[np.float64]]
    served: NDArray[np.bool_]
    lists: NDArray[np.int32] | None


def _joined(
    parts: list[_Part],
    protocol: Protocol,
    users: NDArray[np.int64],
    skipped: int,
    test: Interactions,
    ranks: Ranks = ALONE,
) -> Evaluation:
    found = [part.lists for part in parts if part.lists is not None]
    return Evaluation(
        protocol=protocol,
        users=users,
        values={
            name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values
        },
        served=np.concatenate([part.served for part in parts]),
        skipped=skipped,
        n_items=test.n_items,
        lists=np.concatenate(found) if found else None,
        ranks=ranks,
    )


def _nobody(protocol: Protocol) -> _Part:
    """Return the empty evaluation of a rank none of whose users has test items."""
    full, known = isinstance(protocol.candidates, Full), user_metrics(protocol.metrics).items()
    told = [name for name, one in known if full or one.gain(np.ones(1, np.int64)) is not None]
    lists = np.zeros((0, max(protocol.cutoffs)), np.int32) if full else None
    values = {f"{name}@{k}": np.zeros(0) for k in protocol.cutoffs for name in told}
    return _Part(values, np.zeros(0, dtype=bool), lists)


def _measure_lists(
    lists: NDArray[np.int32],
    users: NDArray[np.int64],
    train: Interactions,
    test: Interactions,
    protocol: Protocol,
) -> _Part:
    hit = metrics.hits(lists, users, test)
    relevant = test.indptr[users + 1] - test.indptr[users]
    values = {}
    for k in protocol.cutoffs:
        ranked = Ranked(users, lists[:, :k], hit[:, :k], relevant, train, test)
        for name, metric in user_metrics(protocol.metrics).items():
            values[f"{name}@{k}"] = metric.checked(metric.per_user(ranked), len(users))
    return _Part(values, np.asarray(lists[:, 0] >= 0), lists)


def _measure_ranks(
    scorer: Scorer,
    train: Interactions,
    test: Interactions,
    users: NDArray[np.int64],
    negatives: NDArray[np.int32],
    protocol: Protocol,
    threads: int | None,
) -> _Part:
    owner, items = metrics.rows_of(test, users)
    counts = np.bincount(owner, minlength=len(users))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    positives = np.full((len(users), counts.max()), -1, dtype=np.int32)
    positives[owner, place] = np.where(items < train.n_items, items, -1)
    scores = score_items(scorer, users, np.hstack([negatives, positives]), threads=threads)
    against, mine = np.split(scores, [negatives.shape[1]], axis=1)
    score = mine[owner, place]
    # A missing negative scores -inf: it ties only with an item that is never recommended.
    rank = 1 + (against[owner] >= score[:, None]).sum(axis=1)
    values = {}
    for k in protocol.cutoffs:
        found = (rank <= k) & (score > -np.inf)
        for name, metric in user_metrics(protocol.metrics).items():
            gain = metric.gain(rank)
            if gain is not None:
                gain = np.where(found, metric.checked(gain, len(rank)), 0.0)
                values[f"{name}@{k}"] = np.bincount(owner, gain) / counts
    return _Part(values, np.asarray(scores.max(axis=1) > -np.inf), None)


def _check(scorer: Scorer, train: Interactions, test: Interactions) -> None:
    if not hasattr(scorer, "n_items") or not hasattr(scorer, "scores"):
        raise DataError(
            f"what should rank items must have n_items and scores(users); {scorer!r} has not"
        )
    if train.n_users != test.n_users:
        raise DataError(
            f"training and test set must number the same users; there are {train.n_users:,} "
            f"and {test.n_users:,}"
        )
    if train.n_items > test.n_items:
        raise DataError(
            f"the test set must number all items of the training set; it has {test.n_items:,} "
            f"of {train.n_items:,}"
        )
    if scorer.n_items != train.n_items:
        raise DataError(
            f"the model ranks {scorer.n_items:,} items, the training set has {train.n_items:,}"
        )
