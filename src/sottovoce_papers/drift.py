"""The DRIFT thesis: how DRIFT and SAROS are trained there, and in which ways they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from sottovoce import config
from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events, losses
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.baselines import SAROS, Random, TopPop
from sottovoce.config import require_whole
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError
from sottovoce.evaluation import saros_metrics
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.significance import paired_t
from sottovoce.rng import Streams
from sottovoce_papers.cells import differing
from sottovoce_papers.claims import (
    Claim,
    Floats,
    Part,
    Row,
    Sets,
    Spec,
    StudyLine,
    chosen,
    claim,
    groups,
    interval,
    lines_of,
    plus_minus,
)
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedLine, TrainedSystem
from sottovoce_papers.worlds import StudyWorld

DRIFT, SAROS_B = "drift-time", "saros-b"
"""Keys of the systems that claims compare."""
RANKED = {
    "own": ("the user's own held-out items", "the user's held-out items alone"),
    "full": ("the whole catalogue", "all training items the user has not touched"),
    "printed": ("own items, NDCG as the thesis prints it", "the user's held-out items alone"),
    "legacy": ("own items, the public SAROS code's metrics", "the user's held-out items alone"),
}
"""Looks at ranked lists, as saros_metrics.py defines them: their names, and what is ranked."""
LOSSES = ("train loss", "test loss")
"""Looks at the ranking loss."""
TRAINED_WITH = ("owners", "delay", "who", "come", "go", "away", "turn")
OURS = ("name", "look", "moment", "epochs", "sealing", "events", *TRAINED_WITH)
"""Settings of the study; the others are those of the system."""
FIRST, CONVERGED = "one epoch", "convergence"
AS_MUCH = {"DRIFT's steps": "steps", "DRIFT's blocks": "blocks"}
"""Moments of SAROS: as many steps, or blocks, as one epoch of DRIFT by time takes."""
NEAR = 0.01
"""A loss within this share of the least one of its curve has settled."""


class EpochSize(NamedTuple):
    """What an epoch is made of."""

    steps: int
    """Updates of the model."""
    blocks: int
    """Blocks whose gradients they use; an update of DRIFT sums those of Θ blocks."""


class DriftKind(Kind):
    """DRIFT or SAROS (`name`), trained for some epochs, or a baseline that needs no training. The
    `look` says what is measured; all looks at a training share its models."""

    def along(self, settings: Settings) -> str:
        ranked = settings["look"] in RANKED and settings["name"] in COMPONENTS
        return "epochs" if ranked else ""

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        found = {"look": "own", **settings}
        if found["look"] not in (*RANKED, *LOSSES):
            raise ConfigError(f"look is one of {', '.join((*RANKED, *LOSSES))}")
        if found.get("moment") in AS_MUCH:
            much = getattr(reference(world, found["positive_from"]), AS_MUCH[found["moment"]])
            found["epochs"] = much / epoch_size(world, found).steps
        return found

    def key(self, job: Job) -> object:
        look = job.settings["look"]
        length = job.settings["epochs"] if look in LOSSES else 0
        return [look, length, *training_key(job.settings)]

    def train(self, job: Job) -> TrainedSystem:
        if job.settings["look"] in LOSSES:
            return TrainedSystem({END: job.unmeasured()}, _losses(job))
        if job.settings["name"] not in COMPONENTS:
            return TrainedSystem({END: lists_of(job, _untrained(job))})
        models, size = models_of(job, job.stops, self.passes)
        looks = {stop: self.looked(job, stop, model) for stop, model in models.items()}
        return TrainedSystem(looks, size._asdict())

    def passes(self, job: Job) -> Iterator[Blocks]:
        """What each pass learns from, without an end."""
        return repeat(blocks_of(job.world, job.split, job.settings, job.seed))

    def looked(self, job: Job, stop: float, model: DriftModel) -> Evaluation:
        """What a model's lists are worth after some epochs."""
        return lists_of(job, FactorScorer.of(model.users, model.items))


# --- training ------------------------------------------------------------------------------------

COMPONENTS: Mapping[str, type[SAROS] | type[DRIFTConfig]] = {"saros": SAROS, "drift": DRIFTConfig}


def component_of(settings: Settings) -> SAROS | DRIFTConfig:
    """The system itself; it is trained for as long as the study says."""
    kind: Any = COMPONENTS[settings["name"]]
    values = {name: value for name, value in settings.items() if name not in OURS}
    made: SAROS | DRIFTConfig = config.build(kind, values, settings["name"])
    return made


def training_key(settings: Settings) -> list[object]:
    """What a training depends on besides its data, its seed and its length."""
    if settings["name"] not in COMPONENTS:
        return [settings["name"], settings["positive_from"]]
    with_these = {name: settings[name] for name in TRAINED_WITH if name in settings}
    return [component_of(settings), with_these]


def owners_of(world: StudyWorld, split: Split, settings: Settings) -> OwnerTable:
    """Return who holds the training items: a data owner per genre, or one that has them all."""
    numbers = split.dataset_items(np.arange(split.train.n_items))
    owners = settings.get("owners", "genre")
    if owners == "one":
        return OwnerTable.of_membership(np.ones((len(numbers), 1), dtype=bool))
    if owners != "genre":
        raise ConfigError(f'owners is "genre" or "one", not {owners!r}')
    return OwnerTable.of_membership(world.dataset.category_matrix()[numbers])


def blocks_of(world: StudyWorld, split: Split, settings: Settings, seed: int) -> Blocks:
    """What an epoch learns from."""
    component = component_of(settings)
    if isinstance(component, SAROS):
        return component.blocks(split.train, Streams.from_seed(seed))
    events = Events.of(split.train, component.positive_from, component.order)
    table = owners_of(world, split, settings)
    return delayed(plan(events, table, component.theta, component.window), settings)


def delayed(blocks: Blocks, settings: Settings) -> Blocks:
    """Return the blocks with late gradients: `delay` updates at a time start from the same rows, so
    that up to delay − 1 others have moved the rows by the time an update arrives."""
    delay = settings.get("delay", 1)
    require_whole("delay", delay, 1)
    if delay == 1:
        return blocks
    edges = np.append(np.arange(0, blocks.steps, delay), blocks.steps)
    return replace(blocks, rounds=edges.astype(np.int64))


def epoch_size(world: StudyWorld, settings: Settings) -> EpochSize:
    """An epoch on all that is not held out for the test."""
    blocks = blocks_of(world, world.split("test", 0), settings, 0)
    return EpochSize(blocks.steps, len(blocks))


def reference(world: StudyWorld, positive_from: float) -> EpochSize:
    """An epoch of DRIFT by time, with which epochs of SAROS are compared."""
    return epoch_size(world, {"name": "drift", "positive_from": positive_from})


def start_of(job: Job, size: int) -> DriftModel:
    """The model before training."""
    train = job.split.train
    return DriftModel.start(train.n_users, train.n_items, size, Streams.from_seed(job.seed))


def models_of(
    job: Job, stops: Sequence[float], passes: Callable[[Job], Iterator[Blocks]]
) -> tuple[dict[float, DriftModel], EpochSize]:
    """The models after these epochs, which all looks share, and the size of the first epoch. A part
    of an epoch is learnt on a copy: a momentum does not survive a break within a user."""

    def train() -> dict[str, Any]:
        component = component_of(job.settings)
        model = start_of(job, component.embedding_size)
        found: dict[str, Any] = {}
        for epoch, blocks in zip(range(1, int(np.ceil(max(stops))) + 1), passes(job), strict=False):
            found.setdefault("size", np.array([blocks.steps, len(blocks)]))
            for stop in (stop for stop in stops if epoch - 1 < stop < epoch):
                partly, part = model.copy(), round(blocks.steps * stop) - blocks.steps * (epoch - 1)
                component.epoch(partly, blocks.take(np.arange(part)))
                found |= {f"{stop:g} users": partly.users, f"{stop:g} items": partly.items}
            component.epoch(model, blocks)
            if epoch in stops:
                now = model.copy()
                found |= {f"{epoch} users": now.users, f"{epoch} items": now.items}
        return found

    key = training_cell("drift model", job, 0)
    found = job.cells.kept(key, [f"{stop:g} users" for stop in stops], train)
    models = {s: DriftModel(found[f"{s:g} users"], found[f"{s:g} items"]) for s in stops}
    return models, EpochSize(*(int(n) for n in found["size"]))


def training_cell(what: str, job: Job, epochs: int) -> list[object]:
    """The key of what a training leaves for all looks."""
    world, key = job.world, differing(training_key(job.settings))
    data = [world.config.source, world.fingerprint, world.split_key]
    return [what, *data, job.part, job.seed, epochs, key]


def _losses(job: Job) -> dict[str, Any]:
    """The mean ranking loss of all blocks after 0, 1, 2, ... epochs; of SAROS also after as many
    steps and blocks as an epoch of DRIFT has."""
    settings, split = job.settings, job.split
    component = component_of(settings)
    marks = reference(job.world, component.positive_from) if settings["name"] == "saros" else ()
    key = training_cell("drift losses", job, settings["epochs"])

    def train() -> dict[str, Any]:
        blocks = blocks_of(job.world, split, settings, job.seed)
        model, steps = start_of(job, component.embedding_size), blocks.steps
        parts = dict(zip(LOSSES, loss_blocks(split, component.positive_from), strict=True))
        curves = {look: [mean_loss(model, part)] for look, part in parts.items()}
        found: dict[str, Any] = {"size": np.array([steps, len(blocks)])}
        last = -(-max(marks, default=0) // max(1, steps))
        for epoch in range(max(last, settings["epochs"])):
            for what, mark in zip(AS_MUCH.values(), marks, strict=False):
                if epoch * steps < mark <= (epoch + 1) * steps:
                    partly = model.copy()
                    component.epoch(partly, blocks.take(np.arange(mark - epoch * steps)))
                    for look, part in parts.items():
                        found[f"{look} {what}"] = np.array(mean_loss(partly, part))
            component.epoch(model, blocks)
            for look, part in parts.items():
                curves[look].append(mean_loss(model, part))
        return found | {look: np.array(curve) for look, curve in curves.items()}

    found, look = job.cells.kept(key, LOSSES, train), settings["look"]
    after = {what: float(found[f"{look} {what}"]) for what in AS_MUCH.values() if len(marks)}
    curve = found[look][: settings["epochs"] + 1].tolist()
    return {
        **dict(zip(("steps", "blocks"), found["size"].tolist(), strict=True)),
        "loss": curve,
        "after": after,
    }


def loss_blocks(split: Split, positive_from: float) -> tuple[Blocks, Blocks]:
    """The blocks on which losses are taken, of training and test: every user's, for all systems the
    same, less items that no model has learnt."""
    tables = [part.select(part.items < split.train.n_items) for part in (split.train, split.test)]
    train, test = (Blocks.of_users(Events.of(t, positive_from, "user")) for t in tables)
    return train, test


def mean_loss(model: DriftModel, blocks: Blocks) -> float:
    """The mean ranking loss of these blocks."""
    return float(losses(model, blocks).mean()) if len(blocks) else 0.0


# --- looking -------------------------------------------------------------------------------------


def _untrained(job: Job) -> Scorer:
    """A baseline without training: popularity counts the likes alone."""
    train, rng = job.split.train, Streams.from_seed(job.seed)
    if job.settings["name"] == "random":
        return Random().fit(train, rng)
    if job.settings["name"] != "top-pop" or train.ratings is None:
        raise ConfigError(f"name is drift, saros, random or top-pop, not {job.settings['name']!r}")
    return TopPop().fit(train.select(train.ratings >= job.settings["positive_from"]), rng)


def lists_of(job: Job, scorer: Scorer) -> Evaluation:
    """What a model's lists are worth to every user."""
    split, look, liked = job.split, job.settings["look"], job.settings["positive_from"]
    if look == "full":
        found = saros_metrics.full(scorer, split.train, split.test, liked, threads=1)
    else:
        found = getattr(saros_metrics, look)(scorer, split.test, liked, threads=1)
    return replace(
        job.unmeasured(),
        users=found.users,
        values=dict(found.values),
        served=np.ones(len(found.users), dtype=bool),
    )


# --- columns -------------------------------------------------------------------------------------


def size(line: TrainedLine) -> Row:
    """How much was done until a model was looked at, and what its lists are ranked from."""
    row: Row = {}
    if line.settings.get("look") in RANKED:
        row["candidates"], row["ranking"] = RANKED[line.settings["look"]]
    if line.facts and "steps" in line.facts[0]:
        epochs = line.row["epochs"]
        row["length"] = f"{epochs:g} epoch{'s' * (epochs > 1)}"
        row |= {what: round(epochs * line.facts[0][what]) for what in EpochSize._fields}
    return row


def course(line: TrainedLine) -> Row:
    """A curve of losses: the mean over seeds after each epoch, and where it has settled."""
    every, steps = _curves(line), line.facts[0]["steps"]
    mean = every.mean(axis=0)
    settled = int(np.argmax(mean <= mean.min() * (1.0 + NEAR)))
    return {
        **{f"loss after {epoch}": float(value) for epoch, value in enumerate(mean)},
        **{
            f"loss by steps after {epoch * steps / 1e6:g}": float(value)
            for epoch, value in enumerate(mean)
        },
        "part": line.settings["look"].removesuffix(" loss"),
        "steps": steps,
        "blocks": line.facts[0]["blocks"],
        "half 1": interval(every[:, 1]),
        "half last": interval(every[:, -1]),
        "settled": settled,
        "settled steps": settled * steps,
    }


def _curves(line: StudyLine) -> Floats:
    """[seeds, epochs + 1]."""
    return np.array([facts["loss"] for facts in line.facts])


# --- claims that no table can say ----------------------------------------------------------------


def losses_compared(sets: Sets, spec: Spec) -> list[Claim]:
    """What Figure 6.1 says of DRIFT's loss and that of SAROS_b."""
    found = []
    for (liked,), mine in groups(lines_of(sets, spec), ["positive_from"]).items():
        by = {(line.row["key"], line.row["part"]): line for line in mine}
        both = {part: (by[DRIFT, part], by[SAROS_B, part]) for part in ("train", "test")}
        drift = both["train"][0].row
        looks: dict[str, Callable[[StudyLine], Floats]] = {
            "after one epoch DRIFT's loss is below that of SAROS_b": lambda b: _curves(b)[:, 1],
            **{
                f"so it is when SAROS_b has taken as many {what} ({drift[what]:,})": partial(
                    _after, what=what
                )
                for what in AS_MUCH.values()
            },
        }
        claims = {
            text: [_below(part, _curves(a)[:, 1], look(b)) for part, (a, b) in both.items()]
            for text, look in looks.items()
        }
        fewer: list[Part] = []
        same: list[Part] = []
        for part, (a, b) in both.items():
            epochs = "epoch {settled} ({settled steps:,} steps)".format_map
            words = f"{part}: {epochs(a.row)} against {epochs(b.row)}"
            fewer.append((a.row["settled"] < b.row["settled"], words))
            ours, theirs = _curves(a)[:, -1], _curves(b)[:, -1]
            apart = ours.mean() / theirs.mean() - 1.0
            words = f"{part}: {plus_minus(ours)} against {plus_minus(theirs)}, {apart:+.1%}"
            same.append((bool(abs(apart) <= NEAR), words))
        claims["DRIFT's loss settles within fewer epochs than that of SAROS_b"] = fewer
        text = f"after {drift['epochs']} epochs both have the same loss, within {NEAR:.0%}"
        claims[text] = same
        found += [claim(f"{t}, positive from {liked:g}", *parts) for t, parts in claims.items()]
    return found


def _after(line: StudyLine, what: str) -> Floats:
    """The loss with each seed after as many steps or blocks as an epoch of DRIFT has."""
    return np.array([facts["after"][what] for facts in line.facts])


def _below(part: str, ours: Floats, theirs: Floats) -> Part:
    """Whether it is, seed by seed: both start from the same rows. One seed is taken as it is."""
    apart, half = float((ours - theirs).mean()), interval(ours - theirs)
    words = f"{part}: {ours.mean():.4f} against {theirs.mean():.4f}, {apart:+.4f}"
    spread = ", one seed" if half is None else f" ± {half:.4f}"
    return apart + (half or 0.0) < 0.0, f"{words}{spread}"


def converged(sets: Sets, spec: Spec) -> list[Claim]:
    """What Figure 6.2 says of the end of training. If the best epoch is the last that was tried,
    the claim says that more epochs might still bring a little."""
    found = []
    for (liked,), mine in groups(lines_of(sets, spec), ["positive_from"]).items():
        at = {
            (line.row["key"], line.row["moment"]): line
            for line in chosen(mine, {"look": "own"})
            if isinstance(line, TrainedLine)
        }
        ends = drift, saros = at[DRIFT, CONVERGED], at[SAROS_B, CONVERGED]
        last = max(epochs for grid in drift.system.grids for epochs in grid["epochs"])
        short = [line.row["system"] for line in ends if line.row["epochs"] == last]
        where = f"positive from {liked:g}"
        if short:
            where += f" (not yet converged, as the best epoch is the last of {last}: "
            where += f"{'; '.join(short)})"
        gains = [line.row["MAP@5"] - at[line.row["key"], FIRST].row["MAP@5"] for line in ends]
        words = (
            f"MAP@5 {gain:+.4f} in {line.row['epochs']:g} epochs"
            for gain, line in zip(gains, ends, strict=True)
        )
        claims: dict[str, list[Part]] = {
            "from one epoch to convergence DRIFT gains less than SAROS_b": [
                (gains[0] < gains[1], " against ".join(words))
            ],
            "at convergence DRIFT and SAROS_b are within each other's 95 % interval": [
                _alike(drift, saros, metric) for metric in spec["metrics"]
            ],
        }
        path = [at[key, CONVERGED] for key in spec["path"] if (key, CONVERGED) in at]
        if len(path) == len(spec["path"]):
            steps = [abs(b.row["MAP@5"] - a.row["MAP@5"]) for a, b in pairwise(path)]
            told = "; ".join(f"{one.row['system']} {_words(one, 'MAP@5')}" for one in path)
            text = "what is between them at convergence is less the owners than the rest"
            claims[text] = [(steps[-1] <= max(steps[:-1]), f"MAP@5: {told}")]
        found += [claim(f"{text}, {where}", *parts) for text, parts in claims.items()]
    return found


def _words(line: StudyLine, metric: str) -> str:
    return plus_minus([run.mean(metric) for run in line.runs])


def _alike(one: StudyLine, other: StudyLine, metric: str) -> Part:
    apart = abs(one.row[metric] - other.row[metric])
    test = paired_t(one.over_seeds().per_user(metric), other.over_seeds().per_user(metric))
    words = (
        f"{metric} {_words(one, metric)} against {_words(other, metric)}, "
        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}] over users (p={test.p:.2g})"
    )
    halves = [line.row[f"{metric} half"] for line in (one, other)]
    if None in halves:  # one seed has no interval
        return test.p >= 0.05, f"{words}, one seed"
    return apart <= min(halves), words
