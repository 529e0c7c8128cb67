"""A data set: interactions, what is known about users and items, and where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.knowledge import Knowledge
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.errors import CorruptData, DataError


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Labels:
    """One categorical value per row. Code -1 means that the value is not known."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.ascontiguousarray(self.codes, dtype=np.int32).view()
        codes.flags.writeable = False
        object.__setattr__(self, "codes", codes)
        if len(codes) and not (int(codes.min()) >= -1 and int(codes.max()) < len(self.values)):
            raise CorruptData("a label's code lies outside its values")

    @classmethod
    def of(cls, texts: Sequence[str], ranks: Ranks = ALONE) -> Labels:
        """From one text per row. Empty texts are unknown; values, those of any rank, are ordered as
        `sorted_names`."""
        occurring: set[str] = set().union(*ranks.gather(set(texts)))
        values = sorted(occurring - {""})
        code = {"": -1} | {value: c for c, value in enumerate(values)}
        codes = np.array([code[text] for text in texts], dtype=np.int32)
        return cls(codes, tuple(values)).canonical(ranks)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"<Labels of {len(self):,}, {len(self.values)} values>"

    def texts(self) -> list[str]:
        """The value of every row; empty where it is not known."""
        return [self.values[c] if c >= 0 else "" for c in self.codes.tolist()]

    def take(self, rows: NDArray[np.integer]) -> Labels:
        """The labels of these rows; values that no longer occur stay listed."""
        return Labels(self.codes[rows], self.values)

    def canonical(self, ranks: Ranks = ALONE) -> Labels:
        """The same labels with only the values that occur, on any rank, in the common order."""
        known = np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))
        used = np.flatnonzero(ranks.all_sum(known.astype(np.int64)))
        names = [self.values[c] for c in used]
        order = sorted_names(names)
        rank = np.full(len(self.values) + 1, -1, dtype=np.int32)
        rank[used[order]] = np.arange(len(used), dtype=np.int32)
        return Labels(rank[self.codes], tuple(names[i] for i in order))


PARTS = ("train", "validation", "test")
"""Parts of a published split, the later ones held out."""
VALIDATION, TEST = 1, 2


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PublishedSplit:
    """A split that came with the data: which entries are held out, and sampled negatives."""

    held_out: NDArray[np.bool_]
    negatives: NDArray[np.int32] | None = None
    """Item numbers, shape [users, k]."""
    validation: NDArray[np.bool_] | None = None
    """Entries to tune on, where the split has such a part; they are none of those held out."""

    def parts(self) -> NDArray[np.uint8]:
        """The place in `PARTS` of each entry."""
        found = np.where(self.held_out, TEST, 0).astype(np.uint8)
        if self.validation is not None:
            found[self.validation] = VALIDATION
        return found


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dataset:
    """Interactions with side tables aligned to their user and item numbers.

    Example:
        ```python
        data = sv.load("town", residents=500)
        print(data.describe()["interactions"])
        print(data.title(3), data.attribute("gender").values)
        ```
    """

    name: str
    interactions: Interactions
    user_attributes: Mapping[str, Labels] = field(default_factory=dict)
    item_titles: tuple[str, ...] | None = None
    item_categories: tuple[tuple[str, ...], ...] | None = None
    item_attributes: Mapping[str, Labels] = field(default_factory=dict)
    published: PublishedSplit | None = None
    provenance: str = ""
    shard: Shard = WHOLE
    """Which users these are, where they are a rank's share. Items are those of all ranks."""
    known_as: str = ""
    """The fingerprint of the whole, where this is a shard of it."""
    named_by: Mapping[str, Any] = field(default_factory=dict)
    """The sections of an experiment file ([data], [town]) by which it is loaded again; nothing
    where only memory has it."""

    def __post_init__(self) -> None:
        users, items = self.interactions.n_users, self.interactions.n_items
        for key, labels in self.user_attributes.items():
            _same_length(f"user attribute {key!r}", len(labels), users)
        for key, labels in self.item_attributes.items():
            _same_length(f"item attribute {key!r}", len(labels), items)
        if self.item_titles is not None:
            _same_length("item titles", len(self.item_titles), items)
        if self.item_categories is not None:
            _same_length("item categories", len(self.item_categories), items)
        if self.published is not None:
            entries = self.interactions.n_interactions
            _same_length("the published split", len(self.published.held_out), entries)
            if self.published.validation is not None:
                _same_length("its validation part", len(self.published.validation), entries)
            if self.published.negatives is not None:
                _same_length("sampled negatives", len(self.published.negatives), users)

    def __repr__(self) -> str:
        i = self.interactions
        return (
            f"<Dataset {self.name}: {i.n_users:,} users, {i.n_items:,} items, {i.n_interactions:,}>"
        )

    def attribute(self, name: str) -> Labels:
        """A user attribute by name; the error lists those there are."""
        try:
            return self.user_attributes[name]
        except KeyError:
            known = ", ".join(self.user_attributes) or "none"
            raise DataError(
                f"{self.name} has no user attribute {name!r}; it has: {known}"
            ) from None

    def title(self, item: int) -> str:
        """What to call an item: its title, or its id where it has none."""
        title = self.item_titles[item] if self.item_titles is not None else ""
        return title or self.interactions.items_vocabulary().name(item)

    def category_names(self) -> tuple[str, ...]:
        """Every category that occurs, in alphabetical order."""
        return tuple(sorted({c for row in self.item_categories or () for c in row}))

    def category_matrix(self) -> NDArray[np.bool_]:
        """Which item is in which category: [items, categories], columns as `category_names`."""
        column = {name: j for j, name in enumerate(self.category_names())}
        matrix = np.zeros((self.interactions.n_items, len(column)), dtype=np.bool_)
        for i, row in enumerate(self.item_categories or ()):
            for name in row:
                matrix[i, column[name]] = True
        return matrix

    def knowledge(self, items: Vocabulary) -> Knowledge:
        """What is publicly known of these items: their categories, and every attribute."""
        from scipy.sparse import csr_array

        rows = positions(self.interactions.items_vocabulary(), items)
        kinds: dict[str, Any] = {}
        for name, labels in self.item_attributes.items():
            codes = labels.codes[rows]
            known = np.flatnonzero(codes >= 0)
            cells = (np.ones(len(known)), (known, codes[known]))
            kinds[name] = csr_array(cells, shape=(len(rows), len(labels.values)))
        if self.item_categories is not None:
            member = csr_array(self.category_matrix()[rows].astype(np.float64))
            many = np.maximum(np.asarray(member.sum(axis=1)).ravel(), 1.0)
            kinds["categories"] = (member / many[:, None]).tocsr()
        return Knowledge(kinds)

    def restrict(self, interactions: Interactions) -> Dataset:
        """Side tables realigned, by name, to a filtered copy of the interactions.

        A published split belongs to the unfiltered table and is dropped. Ranks, which have a share
        each, call this together.
        """
        ranks = self.shard.ranks
        old = self.interactions
        users = positions(old.users_vocabulary(), interactions.users_vocabulary())
        items = positions(old.items_vocabulary(), interactions.items_vocabulary())
        titles, categories = self.item_titles, self.item_categories
        return replace(
            self,
            interactions=interactions,
            user_attributes={k: v.take(users) for k, v in self.user_attributes.items()},
            item_attributes={k: v.take(items) for k, v in self.item_attributes.items()},
            item_titles=None if titles is None else tuple(titles[i] for i in items),
            item_categories=None if categories is None else tuple(categories[i] for i in items),
            published=None,
            shard=Shard(ranks, ranks.before(interactions.n_users)),
            known_as="",
            named_by={},
        )

    def evened(self, filtered: Dataset) -> range:
        """Which of all users a rank should have instead of these, so that filters leave each rank
        as many: numbers before the filters, which left `filtered` of this share."""
        ranks, left = self.shard.ranks, filtered.interactions.users_vocabulary()
        mine = self.shard.first + positions(self.interactions.users_vocabulary(), left)
        everybody, total = ranks.total(self.interactions.n_users, len(mine))
        ranks.span(total)  # raises where there are too few
        edges = np.zeros(ranks.size + 1, dtype=np.int64)
        for rank in range(1, ranks.size):
            place = total * rank // ranks.size - filtered.shard.first
            if 0 <= place < len(mine):
                edges[rank] = mine[place]
        edges = ranks.all_sum(edges)
        edges[-1] = everybody
        return range(int(edges[ranks.rank]), int(edges[ranks.rank + 1]))

    def known(self) -> Dataset:
        """The same share, with the fingerprint of the whole, which ranks find out together."""
        return replace(self, known_as=self.fingerprint())

    def recipe(self) -> str:
        """A digest of how a generated data set is made, which takes no look at it."""
        return "made-" + hashlib.blake2b(self.provenance.encode(), digest_size=16).hexdigest()

    def fingerprint(self) -> str:
        """A digest of everything a result may depend on; the name and provenance do not count."""
        if self.known_as:
            return self.known_as
        table, ranks = self.interactions, self.shard.ranks
        digest = hashlib.blake2b(table.fingerprint(ranks).encode(), digest_size=16)
        if table.ratings is not None:
            _feed_shares(digest, table.ratings, ranks)
        names = "\x1e".join(table.users_vocabulary().names())
        between = "\x1e" if self.shard.first and names else ""
        _feed_shares(digest, np.array(bytearray((between + names).encode()), np.uint8), ranks)
        digest.update(b"\x1d")
        _feed(digest, table.items_vocabulary().names())
        for side in (self.user_attributes, self.item_attributes):
            whose = ranks if side is self.user_attributes else ALONE  # items are everybody's
            for key in sorted(side):
                labels = side[key].canonical(whose)
                _feed(digest, (key, *labels.values))
                _feed_shares(digest, labels.codes, whose)
        _feed(digest, self.item_titles or ())
        _feed(digest, ("\x1f".join(row) for row in self.item_categories or ()))
        if self.published is not None:
            _feed_shares(digest, self.published.held_out, ranks)
            if self.published.validation is not None:
                _feed_shares(digest, self.published.validation, ranks)
            if self.published.negatives is not None:
                _feed_shares(digest, self.published.negatives, ranks)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What there is, in plain values that print and serialise."""
        table, counts = self.interactions, self.interactions.counts
        cells = table.n_users * table.n_items
        times = table.timestamps
        quantiles = np.quantile(counts, [0, 0.25, 0.5, 0.75, 1]) if len(counts) else np.zeros(5)
        names = ("min", "q25", "median", "q75", "max")
        return {
            "name": self.name,
            "users": table.n_users,
            "items": table.n_items,
            "interactions": table.n_interactions,
            "density": table.n_interactions / cells if cells else 0.0,
            "interactions_per_user": dict(zip(names, map(float, quantiles), strict=True)),
            "head_share": head_share(table),
            "time_range": _time_range(times) if times is not None and len(times) else None,
            "ratings": table.ratings is not None,
            "attributes": {key: len(v.values) for key, v in self.user_attributes.items()},
            "item_attributes": {key: len(v.values) for key, v in self.item_attributes.items()},
            "titles": self.item_titles is not None,
            "categories": len(self.category_names()),
            "published_split": self.published is not None,
            "fingerprint": self.fingerprint(),
            "provenance": self.provenance,
        }


def head_share(table: Interactions, fraction: float = 0.2) -> float:
    """The share of all interactions that falls on the most popular `fraction` of the items."""
    counts = np.sort(table.item_counts)[::-1]
    head = int(counts[: int(np.ceil(fraction * len(counts)))].sum())
    return head / table.n_interactions if table.n_interactions else 0.0


def sorted_names(names: Sequence[str]) -> NDArray[np.int64]:
    """The order of ids and values: by number where all are whole numbers, else by text."""
    keys: Sequence[Any] = names
    if all(_is_whole(name) for name in names):
        keys = [(int(name), name) for name in names]
    return np.array(sorted(range(len(names)), key=keys.__getitem__), dtype=np.int64)


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 1000


def _same_length(what: str, have: int, need: int) -> None:
    if have != need:
        raise CorruptData(f"{what}: {have:,} values for {need:,} rows")


def positions(old: Vocabulary, new: Vocabulary) -> NDArray[np.int64]:
    return np.array([old.index(name) for name in new.names()], dtype=np.int64)


def _feed(digest: hashlib.blake2b, texts: Iterable[str]) -> None:
    digest.update("\x1e".join(texts).encode())
    digest.update(b"\x1d")


def _feed_shares(digest: hashlib.blake2b, column: NDArray[np.generic], ranks: Ranks) -> None:
    for piece in ranks.in_turn(column):
        digest.update(piece.data)


def _time_range(times: NDArray[np.int64]) -> list[str]:
    edges = np.array([times.min(), times.max()]).astype("datetime64[s]")
    return [str(edge) for edge in edges]
