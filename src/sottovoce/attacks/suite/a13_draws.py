"""A13: which messages go together, by what their devices drew.

Coordinates of reports and items of updates are drawn without looking at private data. They identify
a device all the same if one draw tells the next. The fast generator (rng.py) gives the words
mix(s + γ), mix(s + 2γ), …, and `mix` can be inverted. So one word of 64 bits tells the state s and
with it every other draw of that device and round. A server sees no whole words, but coordinates. Of
the words that give a coordinate among n there are 2**64 / n; whoever tries them all keeps those
whose next draws are in the same batch, too. Against ChaCha20 there is nothing to try.

The attacker is told one word of each device that he goes for, which is what such a search would
give him; from it he computes the other draws, and looks for them. In a chain of shufflers all but
one of them help him, and he is told where one report of each device stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.pairs import FPL
from sottovoce.attacks.suite.a05_linkage import Mixed, chain_places
from sottovoce.attacks.views import ATTACKS, Attack, Remedy, Result, Truth, View, clustered
from sottovoce.core.messages import Batch, BitReports, DeviceReports
from sottovoce.core.one_bit import coordinates
from sottovoce.rng import GAMMA, LOW32, Streams, mix_array, words_of

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]
_BACK_1 = np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
_BACK_2 = np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
TOLD_ROUNDS, TOLD_DEVICES = 2, 50
"""Rounds and devices whose draws the attacker is told."""
CHECKS = 6
"""Draws after the first that must be in the batch for a state to be kept."""
WORDS_PER_SECOND = 5e8
"""That one core tries, about; for saying how long a search takes."""


class ToldWord(NamedTuple):
    """A word that an attacker was told, in place of the search by which he would find it."""

    round: int
    tier: int
    """Tier of the batch; -1 if there is none."""
    word: int


def told_words(
    rng: Streams, bits: Sequence[BitReports], updates: Mapping[int, Ints]
) -> tuple[tuple[ToldWord, ...], tuple[int, ...]]:
    """The first draw of some devices in some rounds, and whose they are. `rng` is the devices'; of
    `bits` they sent reports, in `updates` (by round, who) item rows of FPL."""
    told: list[ToldWord] = []
    senders: list[int] = []
    for sent in bits[:TOLD_ROUNDS]:
        rows = slice(0, TOLD_DEVICES)
        keys = rng.child("reports", sent.round).keys(sent.sender[rows])
        drawn = words_of(keys, 1)[:, 0].tolist()
        told += [
            ToldWord(sent.round, tier, word)
            for tier, word in zip(sent.tier[rows].tolist(), drawn, strict=True)
        ]
        senders += sent.sender[rows].tolist()
    for round, users in list(updates.items())[:TOLD_ROUNDS]:
        some = users[:TOLD_DEVICES]
        drawn = words_of(rng.child("learn", round).keys(some), 1)[:, 0].tolist()
        told += [ToldWord(round, -1, word) for word in drawn]
        senders += some.tolist()
    return tuple(told), tuple(senders)


def unmix(z: np.uint64) -> np.uint64:
    """The word that `mix` turns into z."""
    z = z ^ (z >> np.uint64(31)) ^ (z >> np.uint64(62))
    z = z * _BACK_2
    z = z ^ (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z = z * _BACK_1
    return z ^ (z >> np.uint64(30)) ^ (z >> np.uint64(60))


def neighbours(word: int, before: int, after: int) -> Words:
    """What the fast generator drew before and after this word: from the `before`-th draw before it
    to the `after`-th after it, itself among them."""
    with np.errstate(over="ignore"):
        steps = np.arange(-before, after + 1, dtype=np.int64).astype(np.uint64)
        return mix_array(unmix(np.uint64(word)) + steps * GAMMA)


def coordinates_of(words: Words, places: int) -> Ints:
    """The coordinates of reports that are drawn with these words, as devices draw them."""
    high, low = words >> np.uint64(32), words & LOW32
    n = np.uint64(places)
    return ((high * n + ((low * n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def linked(word: int, most: int, present: NDArray[np.bool_]) -> Ints:
    """The coordinates that the device of this word has drawn beside it, by the fast generator, as
    far as they are in the batch (`present`, a flag per coordinate) without a gap; `most` is how
    many reports a device sends."""
    drawn = coordinates_of(neighbours(word, most, most), len(present))
    there = present[drawn]
    first, last = most, most
    while first > 0 and there[first - 1]:
        first -= 1
    while last < 2 * most and there[last + 1]:
        last += 1
    found = np.concatenate([drawn[first:most], drawn[most + 1 : last + 1]])
    return found if last - first >= min(CHECKS, most - 1) else np.zeros(0, np.int64)


_RNG = Streams.from_seed(13)
_LINK: Final = "Nobody can tell which of the reports are from the same device as mine."
_KNOWN: Final = "Nobody recognises my device by the items that it happens to draw."
_FAST: Final = (
    "The run drew from the fast generator, which no real device does and which this attack "
    'inverts; run it with draws = "secret".'
)


def _told(view: View, kind: type) -> str:
    if view.draws == "fast":
        return _FAST
    if not view.told:
        return "No draw of a device is known, without which the attacker has nothing to start from."
    return "" if view.messages(kind) else "The server got no message of a single device."


# --- reports -------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Reports that are claimed to be of the device of a told word, as coordinates, of which there
    are so many."""

    told: ToldWord
    places: int
    coordinates: Ints


def _reports_need(view: View) -> str:
    return _told(view, Batch)


def _group(view: View) -> list[Group]:
    """For each told word the reports that the fast generator would have drawn beside it; if these
    are not in the batch, as many at random."""
    most, groups = view.release.max_reports, []
    algorithm = view.algorithm.build(view.release.epsilons)
    random = _RNG.child("reports").generator()
    for told in view.told:
        seen = next(s for s in view.rounds if s.round == told.round)
        batch = next(m for m in seen.messages if isinstance(m, Batch) and m.tier == told.tier)
        present = np.zeros(algorithm.coordinates(view.n_items), dtype=bool)
        there = coordinates(batch.reports)
        present[there] = True
        found = linked(told.word, most, present)
        claim = found if len(found) else random.choice(there, most - 1)
        groups.append(Group(told, len(present), claim))
    return groups


def _judge_reports(groups: list[Group], truth: Truth) -> Result:
    """`truth.own["told senders"]` says whose each told word is, `own["bits"]` what all sent."""
    sent = {b.round: b for b in truth.own["bits"]}
    hits, counts, chance = [], [], []
    for group, sender in zip(groups, truth.own["told senders"], strict=True):
        bits = sent[group.told.round]
        members = bits.tier == group.told.tier
        everyone = coordinates(bits.reports[members]).ravel()
        mine = coordinates(bits.reports[bits.sender == sender]).ravel()
        # Of equal reports nobody can say whose they are: each claim is right in part.
        right = [np.sum(mine == c) / np.sum(everyone == c) for c in group.coordinates]
        hits.append(float(np.sum(right)))
        counts.append(len(right))
        chance.append((len(mine) - 1) / (len(everyone) - 1))
    return _result("reports by draws", _LINK, hits, counts, chance, groups[0].places)


# --- the same for a chain of shufflers of which one is honest ------------------------------------


def _members_need(view: View) -> str:
    return "" if view.own.get("mixed") else "There is one shuffler, and no chain of them."


def _group_by_members(view: View) -> list[tuple[Mixed, list[Ints]]]:
    """Return, for each report of each batch that the attacker is told of, the places of the reports
    that go with it: where the device whose report stood at its place had its others before."""
    return [
        (mixed, [_others(mixed.senders == mixed.senders[place], place) for place in mixed.told])
        for mixed in view.own["mixed"]
    ]


def _others(same: NDArray[np.bool_], place: int) -> Ints:
    found = np.flatnonzero(same)
    return np.asarray(found[found != place])


def _judge_members(found: list[tuple[Mixed, list[Ints]]], truth: Truth) -> Result:
    """`truth.own["mixed owners"]` says whose report stands at each place of each batch."""
    hits: dict[int, list[float]] = {}
    counts: dict[int, list[int]] = {}
    chance: list[float] = []
    for (mixed, claims), owner in zip(found, truth.own["mixed owners"], strict=True):
        for place, claim in zip(mixed.told, claims, strict=True):
            right = owner[claim] == owner[place]
            hits.setdefault(mixed.honest, []).append(float(right.sum()))
            counts.setdefault(mixed.honest, []).append(len(claim))
            chance.append(len(claim) / (len(owner) - 1))
    words = {k: f"if number {k + 1} is honest" for k in chain_places([m for m, _ in found])}
    words[-1] = "if all of them work with the server"
    told = [f"{words[k]} {sum(hits[k]) / sum(counts[k]):.4g}" for k in sorted(words) if k >= 0]
    told.append(f"{words[-1]} {sum(hits[-1]) / sum(counts[-1]):.4g}")
    pooled, many = ([v for k in words if k >= 0 for v in one[k]] for one in (hits, counts))
    value, base = sum(pooled) / sum(many), float(np.mean(chance))
    interval = clustered(np.array(pooled), np.array(many))
    return Result(
        "A13", "reports by members", "coalition", _LINK, "precision", value, interval, base,
        claims=int(sum(many)),
        detail=f"for an attacker who was told one report of each device; {'; '.join(told)}",
    )  # fmt: skip


# --- updates -------------------------------------------------------------------------------------


class DrawClaims(NamedTuple):
    """Which device is claimed to have drawn a told word, the chance of a guess among those that
    sent the item of that draw, and how many items there are."""

    sender: int
    chance: float
    places: int


def _updates_need(view: View) -> str:
    return _told(view, DeviceReports)


def _recognise(view: View) -> list[DrawClaims]:
    named, random = [], _RNG.child("updates").generator()
    for told in view.told:
        seen = next(s for s in view.rounds if s.round == told.round)
        reports = [m for m in seen.messages if isinstance(m, DeviceReports)]
        senders = np.concatenate([m.sender for m in reports])
        items = np.concatenate([m.item for m in reports])
        drawn = neighbours(told.word, view.triples - 1, view.triples - 1)
        negatives = _items(drawn, view.n_items)
        # Whoever sent the item of the draw that was told may have drawn it.
        able = np.unique(senders[items == negatives[view.triples - 1]])
        if not len(able):  # it was one of her own, and another was drawn in its place
            able = np.unique(senders)
        shares = np.array([np.isin(negatives, items[senders == s]).mean() for s in able])
        best = np.flatnonzero(shares == shares.max())
        sender = int(able[random.choice(best)])
        named.append(DrawClaims(sender, 1.0 / len(able), view.n_items))
    return named


def _items(words: NDArray[np.uint64], n_items: int) -> Ints:
    """The item of the catalogue that a word draws as the negative."""
    return (((words & LOW32) * np.uint64(n_items)) >> np.uint64(32)).astype(np.int64)


def _judge_updates(named: list[DrawClaims], truth: Truth) -> Result:
    right = [
        float(one.sender == sender)
        for one, sender in zip(named, truth.own["told senders"], strict=True)
    ]
    chance = [one.chance for one in named]
    places = named[0].places
    return _result("devices by draws", _KNOWN, right, [1] * len(right), chance, places)


def _result(
    name: str, promise: str, hits: list[float], counts: list[int], chance: list[float], places: int
) -> Result:
    hours = 2.0**64 / places / WORDS_PER_SECOND / 3600
    detail = (
        "for an attacker who was told one draw of each device; against the fast generator he would "
        f"find it by a search of about {hours:.3g} core hours"
    )
    interval = clustered(np.array(hits), np.array(counts))
    value, base = sum(hits) / max(1, sum(counts)), float(np.mean(chance))
    return Result(
        "A13", name, "server", promise, "precision", value, interval, base, claims=sum(counts),
        detail=detail,
    )  # fmt: skip


_SECRET: Final = Remedy(words="a generator that cannot be inverted, as real devices have")
REPORTS = ATTACKS.add(
    "reports-by-draws",
    Attack(
        "reports by draws", "server", _LINK, _group, _judge_reports, "A13",
        against=frozenset({"fmf"}), releases=frozenset({"k-reports"}),
        elsewhere="Only devices of FMF-LDP send randomised reports.",
        needs=_reports_need, remedy=_SECRET,
    ),
)  # fmt: skip
MEMBERS = ATTACKS.add(
    "reports-by-members",
    Attack(
        "reports by members", "coalition", _LINK, _group_by_members, _judge_members, "A13",
        against=frozenset({"fmf"}), releases=frozenset({"k-reports"}),
        elsewhere="Only devices of FMF-LDP send randomised reports.",
        needs=_members_need,
        remedy=Remedy(words="a chain of shufflers of which one at least is honest"),
    ),
)  # fmt: skip
DEVICES = ATTACKS.add(
    "devices-by-draws",
    Attack(
        "devices by draws", "server", _KNOWN, _recognise, _judge_updates, "A13", against=FPL,
        elsewhere="It is about FPL's draws of items.", needs=_updates_need, remedy=_SECRET,
    ),
)  # fmt: skip
