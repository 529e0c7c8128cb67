"""A5: what a server behind a proxy gets out of randomised reports.

Which reports come from one device, by where they stand in the batch and by what they say; and
whether a user has an item, for a server that knows all her other items. (How much one report gives
away is audited where it is made, in `privacy.audit`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.attacks.filters import rank
from sottovoce.attacks.one_run import Counted, counted, values_before_coins
from sottovoce.attacks.suite.a12_membership import MemberPairs, against_chance
from sottovoce.attacks.views import ATTACKS, Attack, Party, Remedy, Result, Truth, View
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import Batch, BitReports
from sottovoce.core.one_bit import bits, coordinates
from sottovoce.errors import DataError
from sottovoce.rng import Streams

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PAIRS = 20_000
"""Pairs of reports that are looked at, half of them from one device and half from two."""
MOST_ROUNDS, MOST_TARGETS, AT_ONCE = 5, 300, 64
_RNG = Streams.from_seed(5)
_LINK: Final = "Nobody can tell which of the reports are from the same device as mine."
_ITEM: Final = "The server cannot read from the reports whether I have an item."
_NO_RECORD: Final = (
    "nobody kept a record of who sent what (truth.own['bits']), without which no pairing can be "
    "judged"
)


@dataclass(frozen=True, slots=True, repr=False)
class Pool:
    """What the server knows."""

    settings: FMFConfig
    batches: tuple[Batch, ...]
    models: tuple[NDArray[np.float32], ...]
    """Which each batch is about."""
    rounds: tuple[Counted, ...]

    @classmethod
    def of(cls, view: View) -> Pool:
        rounds = [s for s in view.rounds if any(isinstance(m, Batch) for m in s.messages)]
        batches = [(m, s) for s in rounds for m in s.messages if isinstance(m, Batch)]
        models = [view.final if s.published is None else s.published.items for _, s in batches]
        return cls(
            view.algorithm, tuple(b for b, _ in batches), tuple(models), tuple(counted(view))
        )

    def __repr__(self) -> str:
        return f"<Pool of {len(self.batches)} batches>"

    def likeness(self, batch: int, one: Ints, other: Ints) -> Floats:
        """How much two reports each, by their places, sound like one device. As published, bits
        about the same factor of similar items agree for one user. Of rotated reports no two about
        different rows have to do with each other; about the same row they agree, or differ, as the
        signs of the factors do for most users."""
        signs = np.where(bits(self.batches[batch].reports), 1.0, -1.0)
        place = coordinates(self.batches[batch].reports)
        size = self.settings.embedding_size
        row, factor = place // size, place % size
        said = signs[one] * signs[other]
        if self.settings.variant == "rotated":
            main = np.where(self.models[batch].sum(axis=0) < 0, -1.0, 1.0)
            agree = main[factor[one]] * main[factor[other]]
            return np.asarray(said * agree * (row[one] == row[other]))
        items = self.models[batch].astype(np.float64)
        items = items / np.maximum(np.linalg.norm(items, axis=1, keepdims=True), 1e-30)
        cosine = (items[row[one]] * items[row[other]]).sum(axis=1)
        return np.asarray(said * cosine * (factor[one] == factor[other]))


def _needs(view: View) -> str:
    return "" if view.messages(Batch) else "The server got no batch of reports."


# --- which reports go together -------------------------------------------------------------------


def _judge_place(pool: Pool, truth: Truth) -> Result:
    def near(batch: int, one: Ints, other: Ints) -> Floats:
        return np.asarray(-np.abs(one - other), dtype=np.float64)

    return _linked("linkage by place", pool.batches[:MOST_ROUNDS], truth, near)


def _judge_content(pool: Pool, truth: Truth) -> Result:
    return _linked("linkage by content", pool.batches[:MOST_ROUNDS], truth, pool.likeness)


def _linked(
    name: str,
    batches: Sequence[Batch],
    truth: Truth,
    score: Any,
    party: Party = "server",
    owners: Sequence[Ints] = (),
) -> Result:
    """`truth.own["bits"]`: the `BitReports` of the run, open, as devices sent them. `owners` says
    whose report stands at each place, where that is known."""
    sent = truth.own.get("bits")
    if not sent:
        return _result(name, _LINK, 0.5, (0.0, 1.0), 0.5, 0, _NO_RECORD, party)
    draw, scores, same = _RNG.child(name).generator(), [], []
    for number, batch in enumerate(batches):
        owner = owners[number] if len(owners) else _owners(batch, sent, draw)
        by_owner = np.argsort(owner, kind="stable")
        per = len(owner) // max(1, batch.devices)
        if per < 2:
            continue
        # Two different reports of one device, and two of any two.
        device = draw.integers(0, batch.devices, PAIRS) * per
        first = draw.integers(0, per, PAIRS)
        second = (first + draw.integers(1, per, PAIRS)) % per
        pairs = [(by_owner[device + first], by_owner[device + second])]
        pairs.append((draw.integers(0, len(owner), PAIRS), draw.integers(0, len(owner), PAIRS)))
        for one, other in pairs:
            apart = one != other
            scores.append(score(number, one[apart], other[apart]))
            same.append(owner[one[apart]] == owner[other[apart]])
    if not scores:
        alone = "every device sent one report a round"
        return _result(name, _LINK, 0.5, (0.0, 1.0), 0.5, 0, alone, party)
    found = rank(name, np.concatenate(scores), np.concatenate(same))
    half = found.chance.high - 0.5
    ends = (max(0.0, found.auc - half), min(1.0, found.auc + half))
    detail = (
        "whoever reads the proxy's memory as well as the server's knows it without any attack: "
        "then only the coins of each report protect"
    )
    claims = found.hiding + found.others
    return _result(name, _LINK, found.auc, ends, 0.5, claims, detail, party)


def _owners(batch: Batch, sent: list[BitReports], draw: np.random.Generator) -> Ints:
    """Return who sent the report at each place. Equal reports are given to their senders at random,
    because nobody can tell them apart."""
    mine = [b for b in sent if b.round == batch.round]
    if len(mine) != 1:
        raise DataError("truth.own['bits'] must have the reports of every round once")
    members = np.flatnonzero(mine[0].tier == batch.tier)
    reports = mine[0].reports[members]
    value = reports.ravel()
    sender = np.repeat(np.arange(len(members)), reports.shape[1])
    mixed = draw.permutation(len(value))
    order = mixed[np.argsort(value[mixed], kind="stable")]
    place = np.argsort(batch.reports, kind="stable")
    if not np.array_equal(value[order], batch.reports[place]):
        raise DataError("the batch does not hold the reports that were sent")
    owner = np.empty(len(value), dtype=np.int64)
    owner[place] = sender[order]
    return owner


# --- the same for a chain of shufflers of which one is honest ------------------------------------


class Mixed(NamedTuple):
    """One batch as the server and all shufflers of a chain but one know it: they have undone what
    those behind the honest one did, and followed what those before it did."""

    honest: int
    """Its place in the chain, from 0; -1 where all of them work with the server."""
    batch: Batch
    """In the order in which the honest one handed it on."""
    senders: NDArray[np.int64]
    """Who sent the report at each place when the honest shuffler got it. (For the first shuffler
    nobody else knows it; the attacker is told, as if he had watched its line.)"""
    told: tuple[int, ...] = ()
    """Places of one report of some devices, which the attacker is told (A13)."""


def _members_need(view: View) -> str:
    return "" if view.own.get("mixed") else "There is one shuffler, and no chain of them."


def _judge_members(mixed: Sequence[Mixed], truth: Truth) -> Result:
    """Two reports are said to be of one device if the same device's stood at their places before
    the honest shuffler mixed them; else the nearer they are. `truth.own["mixed owners"]` says whose
    they are, also of equal ones: seals tell them apart."""
    owners = truth.own["mixed owners"]

    def linked(which: Sequence[int]) -> Result:
        def score(number: int, one: Ints, other: Ints) -> Floats:
            senders = mixed[which[number]].senders
            near = np.abs(one - other) / len(senders)
            return np.asarray((senders[one] == senders[other]) - near, dtype=np.float64)

        batches, whose = [mixed[n].batch for n in which], [owners[n] for n in which]
        return _linked("linkage by members", batches, truth, score, "coalition", whose)

    found = linked([n for n, one in enumerate(mixed) if one.honest >= 0])
    each = {
        k: linked([n for n, one in enumerate(mixed) if one.honest == k])
        for k in chain_places(mixed)
    }
    told = [f"if number {k + 1} is honest {one.value:.3f}" for k, one in each.items() if k >= 0]
    return replace(
        found, detail=f"{', '.join(told)}; if all of them work with the server {each[-1].value:.3f}"
    )


def chain_places(mixed: Sequence[Mixed]) -> list[int]:
    """The places in the chain of whom one is honest, each once; -1 for nobody."""
    return sorted({one.honest for one in mixed})


# --- whether a user has an item ------------------------------------------------------------------


def _judge_items(pool: Pool, truth: Truth) -> Result:
    """The attacker knows all of a user's items but one, and is asked about that one and about
    another that she does not have, about as popular: which of the two is hers?"""
    question = MemberPairs.took_part(truth.train, _RNG, MOST_TARGETS)
    inside = truth.takes_part[question.users]
    users = question.users[inside]
    if not len(users):
        return _result("item by reports", _ITEM, 0.5, (0.0, 1.0), 0.5, 0, "")
    rounds = pool.rounds[:MOST_ROUNDS]
    sent = {b.round: b for b in truth.own.get("bits", ())}
    told, colluding = _effects(pool, rounds, sent, truth.train, question, inside)
    wins = (np.sign(told) + 1.0) / 2.0
    found = against_chance(users, wins)
    base = max(0.5, float(question.popular_wins()[inside].mean()))
    detail = "held against popularity alone, for a server that knows all the other items of hers"
    if sent:
        share = float(((np.sign(colluding) + 1.0) / 2.0).mean())
        detail += (
            f"; one that colludes with the proxy, and so reads whose reports are whose, is right "
            f"in {share:.3f} of cases"
        )
    made = _result("item by reports", _ITEM, found.auc, found.interval, base, len(wins), detail)
    return replace(made, looked=len(np.unique(users)))


def _effects(
    pool: Pool,
    rounds: tuple[Counted, ...],
    sent: dict[int, BitReports],
    train: Interactions,
    question: MemberPairs,
    inside: NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    """Return, for each pair, by how much better the reports fit if the user has the one item than
    if she has the other: for all reports, and for her own alone."""
    users, gone, new = (c[inside] for c in (question.users, question.members, question.strangers))
    told, own = np.zeros(len(users)), np.zeros(len(users))
    for start in range(0, len(users), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        with_one = _rows(train, users[part])
        with_other = _swapped(with_one, gone[part], new[part])
        for seen in rounds:
            said = [
                values_before_coins(pool.settings, seen.published.items, history)
                for history in (with_one, with_other)
            ]
            effect = said[0].astype(np.float64) - said[1]
            told[part] += effect @ seen.total
            if seen.published.round in sent:
                mine = _own_counts(sent[seen.published.round], users[part], effect.shape[1])
                own[part] += (effect * mine).sum(axis=1)
    return told, own


def _rows(train: Interactions, users: Ints) -> Interactions:
    """These users' items; a user may come more than once."""
    counts = train.counts[users]
    starts = np.cumsum(counts) - counts
    entries = np.repeat(train.indptr[users] - starts, counts) + np.arange(int(counts.sum()))
    return Interactions.from_pairs(
        np.repeat(np.arange(len(users)), counts), train.items[entries],
        n_users=len(users), n_items=train.n_items,
    )  # fmt: skip


def _swapped(history: Interactions, gone: Ints, new: Ints) -> Interactions:
    """Every user with another item in the place of one."""
    items = np.where(history.items == gone[history.users], new[history.users], history.items)
    return Interactions.from_pairs(
        history.users, items, n_users=history.n_users, n_items=history.n_items
    )


def _own_counts(sent: BitReports, users: Ints, places: int) -> Floats:
    table = np.zeros((len(users), places))
    row = {int(user): k for k, user in enumerate(sent.sender)}
    for k, user in enumerate(users.tolist()):
        if user in row:
            reports = sent.reports[row[user]]
            table[k] = np.bincount(coordinates(reports), np.where(bits(reports), 1, -1), places)
    return table


def _result(
    name: str,
    promise: str,
    value: float,
    interval: tuple[float, float],
    base: float,
    claims: int,
    detail: str,
    party: Party = "server",
) -> Result:
    return Result(
        "A5", name, party, promise, "AUC", value, interval, base, claims=claims, detail=detail
    )


_WHAT: Final[dict[str, Any]] = {
    "against": frozenset({"fmf"}),
    "elsewhere": "Only devices of FMF-LDP send randomised reports.",
    "needs": _needs,
    "remedy": Remedy(words="fewer reports with a smaller ε, and a proxy that does not collude"),
}
PLACE = ATTACKS.add(
    "linkage-by-place",
    Attack("linkage by place", "server", _LINK, Pool.of, _judge_place, "A5", **_WHAT),
)
CONTENT = ATTACKS.add(
    "linkage-by-content",
    Attack("linkage by content", "server", _LINK, Pool.of, _judge_content, "A5", **_WHAT),
)
MEMBERS = ATTACKS.add(
    "linkage-by-members",
    Attack(
        "linkage by members", "coalition", _LINK, lambda view: view.own["mixed"], _judge_members,
        "A5", **{**_WHAT, "needs": _members_need},
    ),
)  # fmt: skip
ITEM = ATTACKS.add(
    "item-by-reports",
    Attack(
        "item by reports", "server", _ITEM, Pool.of, _judge_items, "A5", grows_with="users", **_WHAT
    ),
)
