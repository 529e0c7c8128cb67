"""What UC-FedRec is held against at equal cost: early stopping, noise on private users' embeddings,
and stronger noise in their uploads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import unmasked
from sottovoce.rng import Streams
from sottovoce_papers.uc_study import Cell, Job, UCStudy
from sottovoce_papers.uc_training import Measured


@dataclass(frozen=True, slots=True, repr=False)
class Rival:
    """A trained model whose users' embeddings were changed afterwards."""

    cell: Cell
    tag: str
    """For `UCStudy.attacked`, beside `table`."""
    measured: Measured
    table: NDArray[np.float16]
    """h_u, looked up again from the changed embeddings."""
    changed: NDArray[np.bool_]
    """Whose embedding was."""


def stopped(study: UCStudy, base: Cell, rival: Cell) -> Cell:
    """Early stopping: the base model at the first look whose HR on validation is that of `rival` or
    better; where it never is, at the base's own best round. Final trainings have no validation:
    they stop at a settled share of the rounds."""
    if study.config.final:
        return replace(base, stop=round(study.config.early * study.settings(base).rounds))
    curve, goal = study.trained(base), study.trained(rival).validation
    good = np.flatnonzero(curve.validation_hr >= goal)
    return replace(base, stop=int(curve.stops[good[0]]) if len(good) else curve.round)


def noisier(study: UCStudy, cell: Cell, epsilon: float) -> Cell:
    """Stronger noise for private users: the base model with noise on every number that leaves, and
    more of it (`epsilon` for each number) for those who hide something. Filters are there only to
    say who does: with β = 0 they pull at nothing."""
    return replace(
        cell,
        attributes=study.attributes(cell.source),
        beta=0.0,
        norm="scalar",
        clip=study.config.scalar_clip,
        epsilon=study.config.scalar_epsilon,
        hiding_epsilon=epsilon,
    )


def perturbed(study: UCStudy, cell: Cell, sigma: float, attributes: Sequence[str] = ()) -> Rival:
    """Gaussian noise on the trained embeddings of those who hide one of these attributes (all under
    study where none is named): σ standard deviations of the embeddings' numbers."""
    names = tuple(attributes) or study.attributes(cell.source)
    private = np.any([study.private(cell, name) for name in names], axis=0)
    trained = study.trained(cell)
    users = np.flatnonzero(private)
    rng = Streams.from_seed(cell.seed).child("perturbation")
    noise = rng.normal(users, trained.embeddings.shape[1])
    changed = trained.embeddings.copy()
    changed[users] += (sigma * float(trained.embeddings.std()) * noise).astype(np.float32)
    return moved(study, cell, changed, f"gaussian {sigma:g} {' '.join(names)}")


def moved(study: UCStudy, cell: Cell, embeddings: NDArray[np.float32], tag: str) -> Rival:
    """The cell's model with other embeddings of its users: measured and looked up again."""
    trained = study.trained(cell)
    algorithm = study.algorithm(cell)
    measured = study.measure(algorithm.device_scorer(embeddings, trained.rows), cell.source)
    table = algorithm.representations(embeddings, trained.rows).astype(np.float16)
    changed: NDArray[np.bool_] = (embeddings != trained.embeddings).any(axis=1)
    return Rival(cell, tag, measured, table, changed)


def knowing(study: UCStudy, cell: Cell, attribute: str) -> Job | None:
    """The attack of somebody who knows the published filter and looks where it does not; None where
    the filter is a network."""
    if attribute not in cell.attributes or study.settings(cell).filters != "moments":
        return None
    import torch

    from sottovoce.algorithms.uc.networks import Guesses

    trained, settings = study.trained(cell), study.settings(cell)
    column = settings.names.index(attribute)
    weights = study.algorithm(cell).model(trained.rows, trained.embeddings).filters[column]
    guesses = Guesses.of(weights, torch.tensor(settings.attributes[column].shares))
    center, lines = guesses.center.double().numpy(), guesses.lines.double().numpy()
    table = unmasked(trained.embeddings.astype(np.float64), center, lines)
    return Job(cell, attribute, table.astype(np.float16), "knows the filter")
