"""A13: which messages go together, by what their devices drew.

Coordinates of reports and items of updates are drawn without looking at private data. They identify
a device all the same if one draw tells the next. The attacker is told one word of each device that
he goes for, which is what a search over all words that fit would give him; from it he computes the
other draws as the fast generator makes them (`attacks/draws.py`), and looks for them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.draws import WORDS_PER_SECOND, ToldWord, linked, neighbours
from sottovoce.attacks.pairs import FPL
from sottovoce.attacks.views import ATTACKS, Attack, Remedy, Result, Truth, View, clustered
from sottovoce.messages import Batch, DeviceReports
from sottovoce.one_bit import coordinates
from sottovoce.rng import LOW32, Streams

Ints = NDArray[np.int64]
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
        items = view.final if seen.published is None else seen.published.items
        present = np.zeros(algorithm.coordinates(view.n_items), dtype=bool)
        there = coordinates(batch.reports)
        present[there] = True
        table = algorithm.sampling(items)[1]
        found = linked(told.word, most, present, view.algorithm.embedding_size, table)
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


# --- updates -------------------------------------------------------------------------------------


class Named(NamedTuple):
    """Which device is claimed to have drawn a told word, the chance of a guess among those that
    sent the item of that draw, and how many items there are."""

    sender: int
    chance: float
    places: int


def _updates_need(view: View) -> str:
    return _told(view, DeviceReports)


def _recognise(view: View) -> list[Named]:
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
        named.append(Named(sender, 1.0 / len(able), view.n_items))
    return named


def _items(words: NDArray[np.uint64], n_items: int) -> Ints:
    """The item of the catalogue that a word draws as the negative."""
    return (((words & LOW32) * np.uint64(n_items)) >> np.uint64(32)).astype(np.int64)


def _judge_updates(named: list[Named], truth: Truth) -> Result:
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
DEVICES = ATTACKS.add(
    "devices-by-draws",
    Attack(
        "devices by draws", "server", _KNOWN, _recognise, _judge_updates, "A13", against=FPL,
        elsewhere="It is about FPL's draws of items.", needs=_updates_need, remedy=_SECRET,
    ),
)  # fmt: skip
