"""Hiding an attribute in a trained model, without training again ("central protection").

Users who make attributes private move their embedding until the attributes' filters tell nothing
more of it: steps of plain descent on the sum of KL(target ‖ q) over these filters through h_u; a
step after which they would tell more is not taken, and the next ones are half as long. Each user
stops by herself, by the first of three rules: every filter tells almost nothing, the embedding has
gone as far as it may, or enough steps were tried. Filters, towers, items and other users'
embeddings stay as they are. A user of whom a filter gives no number, since the model is out of the
range of numbers, stays where she is: what she chose must not depend on the model.

A step needs the published model and the user's own embedding alone (of a GNN, her neighbours' as
well), so that whoever holds the embedding can do it: a server, or the user's device. Where it is
computed by one thread, a user moves by the same bits alone and in company.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.uc.networks import Guesses, UCModel, Weights, tells
from sottovoce.config import require_number, require_whole
from sottovoce.core.hiding import BROKEN, FAR, HIDDEN, TIRED
from sottovoce.core.hiding import REASONS as REASONS
from sottovoce.core.redacted import Redacted
from sottovoce.errors import DataError, UsageError

_BATCH, _NUMBERS = 256, 1 << 24
"""Users who move together, and numbers of one layer that they have in memory."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """How embeddings move, and when they stop."""

    rate: float = 0.1
    below: float = 0.01
    """KL(target ‖ q) at which a filter tells nothing."""
    furthest: float = 100.0
    """Longest way from where the embedding was; T in the paper."""
    steps: int = 100

    def __post_init__(self) -> None:
        require_number("rate", self.rate, 0.0, 1e6)
        require_number("below", self.below, 0.0, 1e6, above=False)
        require_number("furthest", self.furthest, 0.0, 1e12, above=False)
        require_whole("steps", self.steps, 0, 1_000_000)


@dataclass(frozen=True, slots=True, repr=False)
class Protected(Redacted):
    """The users' new embeddings, and how each came to hers."""

    users: NDArray[np.int64]
    embeddings: Tensor
    """[users, d]"""
    before: NDArray[np.float32]
    """KL(target ‖ q) at first, summed over the filters."""
    after: NDArray[np.float32]
    moved: NDArray[np.float32]
    """‖e′ − e‖₂"""
    steps: NDArray[np.int64]
    reason: NDArray[np.int8]
    """Places in `REASONS`."""

    def __len__(self) -> int:
        return len(self.users)

    def counts(self) -> dict[str, int]:
        """How many users each rule has stopped."""
        found = np.bincount(self.reason, minlength=len(REASONS)).tolist()
        return dict(zip(REASONS, found, strict=True))

    def applied(self, model: UCModel) -> UCModel:
        """The model with these users' embeddings in place of theirs, and nothing else changed."""
        table = model.users.clone()
        table[torch.from_numpy(self.users).to(table.device)] = self.embeddings.to(table.device)
        return replace(model, users=table)


def protect(
    model: UCModel,
    users: NDArray[np.int64],
    attributes: str | Sequence[str],
    target: Tensor | Sequence[Tensor | None] | None = None,
    how: Stopping | None = None,
) -> Protected:
    """Move the embeddings of these users until the filter of each attribute says `target` (its
    classes' shares; all alike where there is none) of each. The model stays as it is."""
    how = how or Stopping()
    wanted = [attributes] if isinstance(attributes, str) else [*attributes]
    targets = [target] * len(wanted) if target is None or isinstance(target, Tensor) else [*target]
    names = [a.name for a in model.attributes]
    for attribute in wanted:
        if attribute not in names:
            raise UsageError(f"there is no filter for {attribute!r}; there are {names}")
    rows = np.asarray(users, dtype=np.int64)
    if rows.ndim != 1 or len(np.unique(rows)) != len(rows):
        raise DataError("users to protect must be distinct")
    if len(rows) and (rows.min() < 0 or rows.max() >= len(model.users)):
        raise DataError("a user to protect has no row in the model's table of users")
    read = [
        _reader(model, names.index(name), one) for name, one in zip(wanted, targets, strict=True)
    ]
    largest = max([w.numel() for f in (*model.filters, model.towers) for w in f.values()])
    parts = [_descend(model, part, read, how) for part in _parts(rows, largest)]
    if not parts:
        none = np.zeros(0, dtype=np.float32)
        kept = model.users[:0].clone()
        return Protected(rows, kept, none, none, none, rows.copy(), rows.astype(np.int8))
    columns = list(zip(*parts, strict=True))
    arrays = [torch.cat(column).cpu().numpy() for column in columns[1:]]
    return Protected(rows, torch.cat(columns[0]), *arrays)


def _parts(rows: NDArray[np.int64], largest: int) -> Iterator[NDArray[np.int64]]:
    """`largest`: weights of a layer."""
    step = max(1, min(_BATCH, _NUMBERS // largest))
    return (rows[start : start + step] for start in range(0, len(rows), step))


Reader = Callable[[Tensor], Tensor]
"""KL(target ‖ q) of one filter for representations [C, 1, width]: [C, 1]."""


def _reader(model: UCModel, column: int, target: Tensor | None) -> Reader:
    weights, wanted = model.filters[column], _target(model, column, target)
    if "moments" in weights:
        return Guesses.of(weights, wanted).tell
    fixed: Weights = weights

    def read(user: Tensor) -> Tensor:
        return tells(user, fixed, wanted)

    return read


def _target(model: UCModel, column: int, target: Tensor | None) -> Tensor:
    classes, place = model.attributes[column].classes, model.users.device
    if target is None:
        return torch.full((classes,), 1.0 / classes, device=place)
    if target.shape != (classes,) or not bool((target >= 0).all()) or not float(target.sum()) > 0:
        raise DataError(f"{model.attributes[column].name}: there must be one share per class")
    return (target / target.sum()).float().to(place)


def _descend(
    model: UCModel, rows: NDArray[np.int64], readers: Sequence[Reader], how: Stopping
) -> tuple[Tensor, ...]:
    """New embeddings of these users, KL before and after, way, steps and reason."""
    place = model.users.device
    own = torch.from_numpy(rows).to(place)
    start = model.users[own]
    towers = {name: weight[None] for name, weight in model.towers.items()}
    others, near = torch.zeros_like(start), 1
    if model.recommender.needs_whole_cohort:
        nearest = model.nearest(own)
        near = nearest.shape[1]
        others = model.users[nearest[:, 1:]].sum(dim=1)  # she is the first of her nearest

    def told(embedding: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """KL(target ‖ q) of these embeddings, the largest of a filter, and the slope of the sum.
        Users stand along the first axis, so that no sum depends on how many there are."""
        leaf = embedding.detach().requires_grad_()
        around = (others[which] + leaf) / near
        user = model.recommender.user(leaf[:, None], around[:, None], towers)
        each = torch.stack([read(user)[:, 0] for read in readers])
        found = each.sum(dim=0) if len(each) > 1 else each[0]
        (slope,) = torch.autograd.grad(found.sum(), leaf)
        return found.detach(), each.detach().amax(dim=0), slope

    now, n = start.clone(), len(rows)
    moving = torch.arange(n, device=place)
    kl, most, slope = told(now, moving)
    broken = ~(kl.isfinite() & slope.isfinite().all(dim=1))
    kl[broken], moving = 0.0, moving[~broken]
    before, rate = kl.clone(), torch.full((n, 1), how.rate, device=place)
    steps = torch.zeros(n, dtype=torch.int64, device=place)
    reason = torch.full((n,), TIRED, dtype=torch.int8, device=place)
    reason[broken] = BROKEN
    at_end = torch.full((n,), how.furthest == 0, device=place)
    for step in range(how.steps + 1):
        reason[moving[at_end[moving]]] = FAR
        reason[moving[most[moving] < how.below]] = HIDDEN
        moving = moving[~at_end[moving] & (most[moving] >= how.below)]
        if step == how.steps or not len(moving):
            break
        way = now[moving] - rate[moving] * slope[moving] - start[moving]
        length = way.norm(dim=1)
        # Never further than permitted: the last step is cut short.
        tried = start[moving] + way * (how.furthest / length.clamp(min=how.furthest))[:, None]
        found, largest, next_slope = told(tried, moving)
        better = (found < kl[moving]) & next_slope.isfinite().all(dim=1)
        went = moving[better]
        now[went], kl[went], slope[went] = tried[better], found[better], next_slope[better]
        most[went] = largest[better]
        at_end[went] = length[better] >= how.furthest
        rate[moving[~better]] /= 2
        steps[moving] = step + 1
    moved = (now - start).norm(dim=1)
    moved[broken] = 0.0
    return now, before, kl, moved, steps, reason
