"""UC-FedRec's wishes: what a step of local training asks for beside good recommendations.

Those who share an attribute train its filter. Those who hide it are pulled to where the filter says
of them what it would say of anybody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sottovoce.algorithms.uc_clipping import WILD
from sottovoce.algorithms.uc_networks import Guesses, Model, Weights, divergence, guess
from sottovoce.errors import DataError, Diverged

if TYPE_CHECKING:
    from sottovoce.algorithms.uc_local import Clients, LocalTraining

LIKE = 1.0
"""How far from the middle, in the spread of those who share, clients pretend to be."""


@dataclass(frozen=True, slots=True, repr=False)
class Wishes:
    """Of a cohort."""

    labels: Tensor
    """[C, A]; 0 where it is not shared."""
    shared: Tensor
    """[C, A], true where the attribute trains its filter; all others are hidden."""
    weight: Tensor
    """[C]: w"""
    targets: tuple[Tensor, ...]
    pull: tuple[Tensor, Tensor] | None
    """Of filters of moments: what a step leaves of an embedding [C, d, d], and adds to it [C, d].
    That is where w ΣKL, as it bends at its lowest, and a step's length from where one was are
    lowest together; unlike a step down the slope it never goes too far."""
    hides: bool
    shares: bool

    @classmethod
    def of(
        cls,
        model: Model,
        clients: Clients,
        how: LocalTraining,
        priors: Sequence[Tensor],
        masks: Tensor | None,
    ) -> Wishes:
        place = model.items.device
        shared = clients.shared()
        beta = clients.strength.astype(np.float64)
        targets = [torch.full((a.classes,), 1.0 / a.classes) for a in model.attributes]
        if how.target == "prior" and (priors or not shared.all()):
            if len(priors) != len(targets):
                raise DataError("the target prior needs the classes' shares of every attribute")
            for attribute, prior in zip(model.attributes, priors, strict=True):
                fits = prior.shape == (attribute.classes,) and bool((prior >= 0).all())
                if not fits or not 0 < float(prior.sum()) < math.inf:
                    raise DataError(f"{attribute.name}: there must be one share per class")
            targets = [(prior / prior.sum()).float() for prior in priors]
        targets = [target.to(place) for target in targets]
        hides = not bool(shared.all())
        shown = torch.from_numpy(shared).to(place)
        weight = torch.from_numpy((beta / (1.0 - beta)).astype(np.float32)).to(place)
        return cls(
            torch.from_numpy(np.where(shared, clients.labels, 0)).to(place),
            shown,
            weight,
            tuple(targets),
            _pull(model, how.rate * weight[:, None] * ~shown, targets, masks) if hides else None,
            hides=hides,
            shares=bool(shared.any()) and how.filter_rate > 0,
        )

    def loss(self, user: Tensor, filters: Sequence[Weights]) -> Tensor:
        """Sum over clients of w ΣKL and of the filters' own losses; `user` is h_u [C, 1, width]."""
        total = user.new_zeros(())
        for t, weights in enumerate(filters):
            if "moments" in weights:
                continue
            if self.hides:
                fixed = {name: weight.detach() for name, weight in weights.items()}
                log_q = F.log_softmax(guess(user, fixed)[:, 0], dim=1)
                pull = self.weight * ~self.shared[:, t]
                total = total + (pull * divergence(self.targets[t], log_q)).sum()
            if self.shares:
                logits = guess(user.detach(), weights)[:, 0]
                miss = F.cross_entropy(logits, self.labels[:, t], reduction="none")
                total = total + (miss * self.shared[:, t]).sum()
        return total


def _pull(
    model: Model, weight: Tensor, targets: Sequence[Tensor], masks: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """`Wishes.pull` of clients to whom hiding each attribute is worth so much, [C, attributes]."""
    here = [t for t, weights in enumerate(model.filters) if "moments" in weights]
    if not here or not bool(weight[:, here].any()):
        return None
    bends, goal = [], torch.zeros((), dtype=torch.float64, device=weight.device)
    for t in here:
        guesses = Guesses.of(model.filters[t], targets[t])
        bends.append(guesses.bend().double())
        like = guesses.center.expand(len(weight), -1).double()
        if masks is not None:
            like = like + LIKE * (masks[:, None] * guesses.spread).sum(dim=-1)
        goal = goal + weight[:, t, None] * (like[:, None] * bends[-1]).sum(dim=-1)
    # Many clients, but few ways to choose. Each by itself: of several at once a library may round
    # one otherwise than alone.
    wishes, which = torch.unique(weight[:, here].double(), dim=0, return_inverse=True)
    plain = torch.eye(len(bends[0]), dtype=torch.float64, device=weight.device)
    sums = [sum((w * b for w, b in zip(wish, bends, strict=True)), plain) for wish in wishes]
    inverses, wrong = zip(*(torch.linalg.inv_ex(each) for each in sums), strict=True)
    if any(map(bool, wrong)):
        raise Diverged(WILD)
    kept = torch.stack(inverses)[which]
    return kept.float(), (kept * goal[:, None]).sum(dim=-1).float()
