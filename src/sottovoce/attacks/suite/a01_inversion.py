"""A1: the item behind a negative.

With π = 0 an FPL device sends rows of items that it does *not* have. One such row tells its vector
and the score of the positive that was drawn with it (`attacks.pairs`), and so the positive. It does
so against the published protocol, whatever π.

Under a secure sum the server tries the same on what it can get at: on the sum that it opens, as if
one device had sent it, and on masked updates. It looks for masks that serve twice, too: the
difference of two updates under one mask is plain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.pairs import (
    FPL,
    NOT_FPL,
    DrawnPositives,
    Floats,
    Ints,
    UpdateRows,
    device_rows,
    invert,
    joined,
    masked_updates,
    models,
    of_everyone,
    opened,
    single_draws,
    slopes,
    why_not_read,
)
from sottovoce.attacks.views import (
    ATTACKS,
    SECURE_SUM,
    Attack,
    Claims,
    Result,
    Truth,
    View,
    judge_claims,
)
from sottovoce.core.messages import GRID, DeviceReports, MaskedReports
from sottovoce.core.redacted import Redacted

PROMISE = "With π = 0 nobody learns what I liked: only rows of things I have not touched leave."
MASKED_PROMISE = "My masked update tells the server nothing about me."
_MOST_ITEMS = 200
"""Items of a sum that are claimed of everybody in it."""
_GUESSES = 10
"""Items that are guessed from one masked update."""
_PROBE = 64
"""Numbers of a masked update by which reused masks are looked for."""
_COMPARED = 512
"""Masked updates that are looked at."""
_SMALL = 1 << 50
"""Differences of two updates are far below, in steps of the grid; those of two masks are not."""


@dataclass(frozen=True, slots=True, repr=False)
class InversionGuess(Redacted):
    claims: Claims
    users: Ints
    """Users who were attacked."""
    rounds: Ints
    rows: int
    """How many rows were looked at."""
    reused: int = 0
    """Pairs of updates that had one mask."""
    summed: bool = False


# --- what the server reads -----------------------------------------------------------------------


def _guess(view: View) -> InversionGuess:
    return _from_devices(view) if view.messages(DeviceReports) else _from_sums(view)


def _from_devices(view: View) -> InversionGuess:
    known, step = models(view), view.algorithm.step()
    every = device_rows(view)
    rows = single_draws(every, known, step)
    found = invert(rows, known, step)
    claims = Claims(rows.sender[found.sure], found.item[found.sure])
    # Who sent nothing that could be read was attacked all the same.
    looked = every.take(np.isin(every.round, rows.round))
    users, rounds = np.unique(looked.sender), np.unique(looked.round)
    return InversionGuess(claims, users, rounds, len(rows))


def _from_sums(view: View) -> InversionGuess:
    known, step = models(view), view.algorithm.step()
    sums = {one.round: one for one in opened(view) if one.round in known}
    every = UpdateRows.joined([one.rows() for one in sums.values()], view.final.shape[1])
    rows = single_draws(every, known, step)
    found = invert(rows, known, step, known_negatives=False)
    items, sure = found.item, found.sure
    if not sure.any():  # nothing looks like one draw; the most likely rows are read all the same
        rows = every.take(np.argsort(np.abs(slopes(every, known, step)))[:_MOST_ITEMS])
        items = invert(rows, known, step, known_negatives=False).item
        sure = np.ones(len(rows), np.bool_)
    rounds = np.unique(rows.round)
    claims = joined(
        [
            of_everyone(
                np.unique(items[sure & (rows.round == number)])[:_MOST_ITEMS],
                sums[int(number)].senders,
            )
            for number in rounds
        ]
    )
    return InversionGuess(claims, np.unique(claims.users), rounds, len(rows), summed=True)


def _judge(guess: InversionGuess, truth: Truth) -> Result:
    wanted, many = _hidden(guess, truth)
    result = judge_claims(
        "inversion", "A1", "server", PROMISE, guess.claims, truth.train, wanted, ""
    )
    if guess.summed:
        return _with_detail(
            result,
            f"from {guess.rows:,} rows of opened sums, each taken for one device's draw; what "
            "comes of them is claimed of everyone in the sum",
        )
    which = "items that" if wanted is None else "items that were drawn of those that"
    return _with_detail(
        result,
        f"{result.recall:.1%} of the {many:,} {which} {len(guess.users):,} users liked were found "
        f"in {len(guess.rounds):,} rounds, from {guess.rows:,} rows of things they had not touched",
    )


def _hidden(guess: InversionGuess, truth: Truth) -> tuple[Claims | None, int]:
    """The positives that were drawn, where the truth holds them (`own["drawn"]`), and how many they
    are. Without that all items of these users."""
    drawn = truth.own.get("drawn")
    if isinstance(drawn, DrawnPositives):
        wanted = drawn.among(guess.users, guess.rounds)
        return wanted, len(wanted)
    return None, int(truth.train.counts[guess.users].sum())


def _with_detail(result: Result, detail: str) -> Result:
    return replace(result, detail=detail)


# --- masked updates ------------------------------------------------------------------------------


def _guess_masked(view: View) -> InversionGuess:
    known, step = models(view), view.algorithm.step()
    updates = [m for m in masked_updates(view, _COMPARED) if m.round in known]
    width = view.final.shape[1]
    open_rows, reused = _reused(updates, width)
    if reused:
        rows = single_draws(open_rows, known, step)
        found = invert(rows, known, step, known_negatives=False)
        claims = Claims(rows.sender[found.sure], found.item[found.sure])
    else:
        rows = UpdateRows.joined([r for m in updates for r in _smallest(m, width)], width)
        claims = Claims(rows.sender, invert(rows, known, step, known_negatives=False).item)
    users, rounds = np.unique(rows.sender), np.unique(rows.round)
    return InversionGuess(claims, users, rounds, len(rows), reused)


def _smallest(message: MaskedReports, width: int) -> list[UpdateRows]:
    """Return the rows of each masked update that look most like one draw: those with the least
    bias."""
    found = []
    for sender, one in zip(message.sender.tolist(), message.masked, strict=True):
        table = one.view(np.int64).reshape(-1, width)
        item = np.argsort(np.abs(table[:, -1].astype(np.float64)), kind="stable")[:_GUESSES]
        place = np.full(len(item), 1, np.int64)
        # As a share of all there are, or the numbers say nothing but their size.
        values = table[item] / 2.0**63
        values[:, -1] = -np.abs(values[:, -1])
        found.append(
            UpdateRows(place * message.round, place * sender, item.astype(np.int64), values)
        )
    return found


def _reused(updates: list[MaskedReports], width: int) -> tuple[UpdateRows, int]:
    """The differences of updates with one mask, as rows of both, and how many such pairs there
    are."""
    flat = [
        (m.round, int(sender), one)
        for m in updates
        for sender, one in zip(m.sender, m.masked, strict=True)
    ]
    groups = _alike([one[: max(width, _PROBE)] for _, _, one in flat])
    parts: list[UpdateRows] = []
    pairs = [(flat[a], flat[b]) for group in groups for a, b in pairwise(group)]
    for (round_a, a, first), (round_b, b, second) in pairs:
        table = (first - second).view(np.int64).reshape(-1, width)
        item = np.flatnonzero(table.any(axis=1))
        for number, sender, sign in ((round_a, a, 1.0), (round_b, b, -1.0)):
            ones = np.ones(len(item), np.int64)
            values: Floats = sign * table[item] / GRID
            parts.append(UpdateRows(ones * number, ones * sender, item.astype(np.int64), values))
    return UpdateRows.joined(parts, width), len(pairs)


def _alike(probes: list[NDArray[np.uint64]]) -> list[list[int]]:
    """Groups of two and more whose numbers differ by little."""
    groups: list[list[int]] = []
    for place, probe in enumerate(probes):
        for group in groups:
            first = probes[group[0]]
            if len(first) == len(probe):
                apart = np.abs((probe - first).view(np.int64).astype(np.float64))
                if np.mean(apart < _SMALL) > 0.5:
                    group.append(place)
                    break
        else:
            groups.append([place])
    return [group for group in groups if len(group) > 1]


def _judge_masked(guess: InversionGuess, truth: Truth) -> Result:
    words = (
        f"{guess.reused:,} pairs of updates had the same mask, so that their difference was plain"
        if guess.reused
        else f"no mask served twice; {guess.rows:,} rows of masked updates were read as they are"
    )
    return judge_claims(
        "inversion of masked updates", "A1", "server", MASKED_PROMISE, guess.claims, truth.train,
        _hidden(guess, truth)[0], words,
    )  # fmt: skip


def _why_not_masked(view: View) -> str:
    if not masked_updates(view, 1):
        return "no update was masked"
    return "" if models(view) else "it needs the published model of a round that was recorded"


INVERSION = ATTACKS.add(
    "inversion",
    Attack(
        "inversion", "server", PROMISE, _guess, _judge, "A1",
        against=FPL, elsewhere=NOT_FPL, needs=why_not_read, remedy=SECURE_SUM,
        claimed=attrgetter("claims"),
    ),
)  # fmt: skip
MASKED = ATTACKS.add(
    "inversion-masked",
    Attack(
        "inversion of masked updates", "server", MASKED_PROMISE, _guess_masked, _judge_masked, "A1",
        against=FPL, elsewhere=NOT_FPL, needs=_why_not_masked, remedy=SECURE_SUM,
        claimed=attrgetter("claims"),
    ),
)  # fmt: skip
