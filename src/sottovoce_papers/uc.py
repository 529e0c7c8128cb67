"""UC-FedRec's paper: how its systems are trained, protected afterwards and attacked.

Each user's latest item is for test, the second-latest for validation. A *final* training learns
from both but the first, and its number of rounds is settled; otherwise validation chooses the
round, and its items are kept from training.

Attackers hold the whole table of representations. They learn from users who share the attribute and
guess it of those who hide it, who are drawn from the seed and the attribute alone: all systems are
attacked on the same users. Where everybody hides it, attackers learn from a random 30 % of users
whose attribute leaked, and guess the rest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.attacks.filters import unmasked
from sottovoce.attacks.suite.a08_attributes import (
    Each,
    Inference,
    TooLittle,
    infer,
    infer_as_published,
    one_by_one,
)
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Labels
from sottovoce.engines.observers import AtRounds, Moment, Observer, Periodically
from sottovoce.errors import ConfigError, Diverged
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce_papers.cells import Arrays, Cells, differing
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedSystem, packed, unpacked
from sottovoce_papers.uc_data import CUT, AttributeWorld
from sottovoce_papers.worlds import StudyWorld

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.protect import Protected
    from sottovoce.algorithms.uc.system import UC

Mask = NDArray[np.bool_]
Facts = dict[str, Any]
LEAKED = 0.3
"""Share of users whose attribute the attacker knows where everybody hides it."""
TOLD = 10
"""Rounds between two reports of progress."""
TRAINING = threading.Lock()
"""Trainings take turns: each has all cores, or the GPU."""


@dataclass(frozen=True, slots=True)
class UCRun:
    """How a system is trained, besides the settings of UC-FedRec."""

    hide: tuple[str, ...] = ()
    """Attributes that have filters; none for the base model."""
    alpha: float = 0.3
    """Share of users who hide an attribute."""
    who: Literal["apart", "together", "one"] = "apart"
    """Whether users are drawn for each attribute apart, or once for all of them; or whether each
    user hides exactly one."""
    beta: float = 0.5
    clip: float = 1000.0
    """Largest norm of an upload; far above what devices send."""
    norm: Literal["l2", "l1", "scalar"] = "l2"
    epsilon: float = 0.0
    hiding_epsilon: float = 0.0
    """The ε of those who hide something, if it differs from that of the others."""
    final: bool = True
    """Learn from validation items, too, for all rounds; otherwise validation chooses the round."""
    every: int = 0
    """Rounds between two looks; 0 looks at the end alone."""
    choose_from: float = 0.0
    """Share of the rounds before which no round is chosen: filters must have had time."""
    stop: int = 0
    """Early stopping: training ends with this round, which is the one that counts."""


@dataclass(frozen=True, slots=True)
class CentralProtection:
    """Hiding an attribute in a trained model."""

    attribute: str = ""
    share: float = 0.2
    """The share of all users who change their mind; they are drawn from those who share it."""
    move: bool = True
    """Whether their embeddings are moved; otherwise they are only attacked."""


@dataclass(frozen=True, slots=True)
class UCAfter:
    """What happens to a trained model: noise or protection, and attacks."""

    sigma: float = 0.0
    """Standard deviation of Gaussian noise on the embeddings of those who hide something."""
    protect: CentralProtection = field(default_factory=CentralProtection)
    guess: tuple[str, ...] = ()
    """Attributes that attackers guess; by default all that are under study."""
    of: str = ""
    """The attribute whose hiders are guessed, if it is not the guessed one."""
    knows: bool = False
    """Whether attackers who know the published filters try, too."""


# --- attackers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attacked:
    """The strongest attackers on one attribute of those who hide it, and the paper's own."""

    auc: float
    """The AUC of the attacker that ranks best; 0.5 if no two private users differ."""
    auc_low: float
    auc_high: float
    f1: float
    """Micro-F1, the share guessed right, of the attacker that guesses best."""
    majority: float
    """The share that the best constant guess gets right."""
    strong: bool
    """Whether an attacker beats chance."""
    turned: bool
    """Whether one beats chance when it is turned round. An AUC far below 0.5 tells as much as far
    above: protection has overshot, and whoever knows that turns the guesses round."""
    lowest: float
    """The AUC of the attacker that ranks worst."""
    families: Mapping[str, float]
    """The AUC of each attacker."""
    classes: int
    private: int
    paper_auc: float = 0.5
    """The AUC of the paper's attacker."""
    paper_f1: float = 0.0

    @property
    def wins(self) -> bool:
        """Whether an attacker is better than chance, as it is or turned round."""
        return self.strong or self.turned

    @property
    def either(self) -> float:
        """The best AUC, of attackers as they are and turned round."""
        return max(self.auc, 1.0 - self.lowest)

    @property
    def auc_gain(self) -> float:
        """How far the best AUC is above chance."""
        return self.either - 0.5

    @property
    def gain(self) -> float:
        """As the paper measures: AUC above 0.5 of two classes, F1 above the majority's of more."""
        return self.auc_gain if self.classes == 2 else self.f1 - self.majority

    @property
    def leak(self) -> float:
        """As the paper measures it: AUC of two classes, F1 of more."""
        return self.auc if self.classes == 2 else self.f1

    @property
    def paper_leak(self) -> float:
        """The `leak` of the paper's attacker."""
        return self.paper_auc if self.classes == 2 else self.paper_f1

    @classmethod
    def of(cls, found: Inference) -> Attacked:
        ranks, guesses = found.by_auc, found.by_accuracy
        worst = min(found.outcomes, key=lambda o: 0.5 if o.auc is None else o.auc)
        lowest = 0.5 if worst.auc is None else worst.auc
        return cls(
            auc=0.5 if ranks.auc is None else ranks.auc,
            auc_low=0.0 if ranks.auc is None else float(ranks.auc_interval.low),
            auc_high=1.0 if ranks.auc is None else float(ranks.auc_interval.high),
            f1=guesses.accuracy,
            majority=guesses.majority,
            strong=found.strong is not None,
            turned=1.0 - lowest > worst.auc_ceiling and worst.auc_interval.high < 0.5,
            lowest=lowest,
            families={o.name: 0.5 if o.auc is None else o.auc for o in found.outcomes},
            classes=found.classes,
            private=found.private,
        )


@dataclass(frozen=True, slots=True, repr=False)
class AttackWork:
    """An attackers' work: the table, and whose attribute is private."""

    table: NDArray[Any]
    labels: Labels
    private: Mask
    seed: int
    attribute: str
    each: Each = one_by_one
    """How their models are trained: one by one, or in processes."""

    def run(self) -> Attacked | None:
        """What they come to; None where there is too little to learn from."""
        rng = Streams.from_seed(self.seed).child("attack")
        given = self.table, self.labels, self.private, rng
        try:
            found = Attacked.of(infer(*given, attribute=self.attribute, each=self.each))
        except TooLittle:
            return None
        theirs = infer_as_published(*given, attribute=self.attribute)
        auc = 0.5 if theirs.auc is None else theirs.auc
        return replace(found, paper_auc=auc, paper_f1=theirs.accuracy)


# --- one system with one seed --------------------------------------------------------------------


class UCTrial:
    """A system on a data set with a seed: its training, and what is done to what came out."""

    version: ClassVar[int] = 1
    """The version of this code, in keys of cells."""

    def __init__(self, world: AttributeWorld, settings: Settings, seed: int, cells: Cells) -> None:
        self.world, self.seed, self.cells = world, seed, cells
        self.run, self.after, self.config = parts_of(settings)

    def with_run(self, **changes: Any) -> UCTrial:
        """Return the trial with another training."""
        other = UCTrial(self.world, {"recommender": self.config.recommender}, self.seed, self.cells)
        other.config, other.after = self.config, self.after
        other.run = replace(self.run, **changes)
        return other

    # --- who hides what

    def private(self, attribute: str) -> Mask:
        """Return who hides an attribute. It depends on seed, attribute and α, not on filters."""
        rng = Streams.from_seed(self.seed).child("private")
        names = self.world.config.attributes
        if self.run.who == "together":
            return self.world.draw(self.run.alpha, rng)
        if self.run.who == "one":
            below = [self.world.draw(k / len(names), rng) for k in range(len(names) + 1)]
            k = names.index(attribute)
            return below[k + 1] & ~below[k]
        return self.world.draw(self.run.alpha, rng.child(attribute))

    def hides_something(self) -> Mask:
        """Return who hides at least one of the attributes under study."""
        found: Mask = self.hidden_count() > 0
        return found

    def hidden_count(self) -> NDArray[np.int64]:
        """How many of the attributes under study each user hides."""
        every = [self.private(name) for name in self.world.config.attributes]
        found: NDArray[np.int64] = np.sum(every, axis=0, dtype=np.int64)
        return found

    def changed(self) -> Mask:
        """Return who makes an attribute private in the trained model."""
        how, private = self.after.protect, self.private(self.after.protect.attribute)
        share = min(1.0, how.share / max(1e-9, 1.0 - self.run.alpha * bool(self.run.hide)))
        if not self.run.hide:
            private = np.zeros_like(private)
        rng = Streams.from_seed(self.seed).child("changed", how.attribute)
        return ~private & self.world.draw(share, rng)

    def guessed(self, attribute: str) -> tuple[Mask, Mask]:
        """The users whom an attack is about, and which of them it guesses; it learns from the
        others."""
        everybody = np.ones(self.world.table.n_users, dtype=bool)
        private = self.private(attribute)
        leaked = self.world.draw(LEAKED, Streams.from_seed(self.seed).child("leaked", attribute))
        if self.after.protect.attribute:
            sharing = everybody if not self.run.hide else ~private
            return sharing, self.changed()
        if self.after.of and self.after.of != attribute:
            theirs = self.private(self.after.of)
            # Where each user hides one attribute, all who share this one hide the other.
            return (theirs, ~leaked) if self.run.who == "one" else (everybody, theirs)
        return everybody, ~leaked if self.run.alpha >= 1 else private

    # --- training

    @cached_property
    def consent(self) -> Consent:
        """What users permit."""
        users = np.arange(self.world.table.n_users, dtype=np.int64)
        names = self.run.hide
        everyone = Consent.uniform(
            users, Choice(share_positives=1.0, strength=self.run.beta), names
        )
        columns = [self.private(name) for name in names]
        hidden = np.stack(columns, axis=1) if columns else np.zeros((len(users), 0), dtype=bool)
        return replace(everyone, hidden_attributes=hidden)

    @cached_property
    def settings(self) -> UCConfig:
        """The settings of the training, with the classes of the data."""
        filters = tuple(FilterConfig(name) for name in self.run.hide)
        settings = replace(self.config, attributes=filters)
        return settings.resolved(self.world.halves.labels, self.consent)

    @property
    def release(self) -> Clipped:
        """What devices may send."""
        return Clipped(self.run.clip, self.run.norm, self.run.epsilon, self.run.hiding_epsilon)

    def algorithm(self) -> UC:
        """Both halves, to look at a trained model with."""
        return self.settings.build(self.run.clip, self.run.norm)

    @property
    def stops(self) -> tuple[int, ...]:
        """Rounds that are looked at; training ends with the last."""
        last = self.run.stop or self.config.rounds
        step = self.run.every or last
        return tuple(sorted({*range(step, last + 1, step), last}))

    @property
    def key(self) -> list[object]:
        """What a training depends on. Without filters nobody hides anything."""
        run = self.run if self.run.hide else replace(self.run, alpha=0.0, who="apart", beta=0.0)
        world = self.world
        return [self.version, world.fingerprint, world.split_key, differing(run),
                differing(self.config), self.seed]  # fmt: skip

    @cached_property
    def model(self) -> Arrays:
        """The trained model, from its cell."""
        names = ("table", "embeddings", "rows", "facts")
        return self.cells.kept(["uc model", *self.key], names, self._train)

    @property
    def facts(self) -> Facts:
        """What was noted of the training."""
        found: Facts = json.loads(bytes(self.model["facts"]))
        return found

    def _train(self) -> Arrays:
        with TRAINING:
            return run(self)

    def early(self, rival: UCTrial) -> UCTrial:
        """Return the trial, stopped at the first look that recommends as well as the rival does in
        the end, or at its best round if none does. Looks are on validation; if all rounds are run,
        they are on test, because equal utility is asked for."""
        mine, theirs = self.facts, rival.facts
        curve = "test" if self.run.final else "validation"
        goal = theirs[curve][theirs["stops"].index(theirs["round"])]
        good = [s for s, hr in zip(mine["stops"], mine[curve], strict=True) if hr >= goal]
        return self.with_run(stop=good[0] if good else mine["round"])

    # --- afterwards

    def noisy(self) -> NDArray[np.float32]:
        """The trained embeddings, with noise on those of users who hide something."""
        users = np.flatnonzero(self.hides_something())
        rng = Streams.from_seed(self.seed).child("perturbation")
        changed: NDArray[np.float32] = self.model["embeddings"].copy()
        noise = rng.normal(users, changed.shape[1])
        changed[users] += (self.after.sigma * noise).astype(np.float32)
        return changed

    def protected(self) -> tuple[NDArray[np.float32], Protected, float]:
        """The embeddings after those who now hide the attribute moved theirs; what became of each,
        and the seconds that it took."""
        import torch

        from sottovoce.algorithms.uc.protect import Stopping, protect

        how, algorithm = self.after.protect, self.algorithm()
        stopping = Stopping()
        place = torch.device(self.cells.device)
        model = algorithm.model(self.model["rows"], self.model["embeddings"], place)
        shares = algorithm.priors()[self.run.hide.index(how.attribute)]
        target = shares if self.config.target == "prior" else None
        users = np.flatnonzero(self.changed())
        protect(model, users[:1], how.attribute, target, stopping)  # so that no first call is timed
        begun = time.perf_counter()
        found = protect(model, users, how.attribute, target, stopping)
        seconds = time.perf_counter() - begun
        return found.applied(model).users.cpu().numpy(), found, seconds

    def unfiltered(self, attribute: str) -> NDArray[Any]:
        """Embeddings without the directions in which the published filter looks."""
        import torch

        from sottovoce.algorithms.uc.networks import Guesses

        embeddings, column = self.model["embeddings"], self.run.hide.index(attribute)
        weights = self.algorithm().model(self.model["rows"], embeddings).filters[column]
        guesses = Guesses.of(weights, torch.tensor(self.settings.attributes[column].shares))
        center, lines = guesses.center.double().numpy(), guesses.lines.double().numpy()
        return unmasked(embeddings.astype(np.float64), center, lines).astype(np.float16)

    def measured(self, scorer: Scorer) -> tuple[Evaluation, Facts]:
        """What a model recommends on test: among the candidates, and among all items."""
        seen, test = self.world.halves.seen, self.world.halves.test
        found = evaluate(scorer, seen, test, self.world.protocol(self.seed), threads=1)
        full = evaluate(scorer, seen, test, Protocol(CUT), threads=1)
        return found, {"full_hr": full.mean(f"HR@{CUT}"), "full_ndcg": full.mean(f"NDCG@{CUT}")}

    def result(self) -> tuple[Evaluation, Facts]:
        """What it recommends and what attackers guess."""
        facts, table = self.facts, self.model["table"]
        look, embeddings = unpacked("best", self.model, self.job), None
        how = self.after.protect
        if self.after.sigma:
            embeddings = self.noisy()
        if how.attribute and how.move:
            embeddings, found, seconds = self.protected()
            facts["protected"] = protection_facts(found, seconds)
        if embeddings is not None:
            algorithm = self.algorithm()
            scorer = algorithm.device_scorer(embeddings, self.model["rows"])
            table = algorithm.representations(embeddings, self.model["rows"]).astype(np.float16)
            look, full = self.measured(scorer)
            facts |= full
        asked = self.after.guess
        facts["attacks"] = self.attacks({name: table for name in asked})
        if self.after.knows and self.config.filters == "moments":
            known = {name: self.unfiltered(name) for name in asked if name in self.run.hide}
            facts["known"] = self.attacks(known, "knows the filter")
        return look, facts

    @property
    def job(self) -> Job:
        """The trial as a job of the runner."""
        return Job(self.world, {}, "test", self.seed, (END,), self.cells)

    def attacks(self, tables: Mapping[str, NDArray[Any]], how: str = "") -> Facts:
        """Attack each attribute on its table; models of attackers are trained in processes."""
        keys = {name: self._attack_key(name, how) for name in tables}
        missing, threads = sum(not self.cells.has(key) for key in keys.values()), self.cells.threads
        with ExitStack() as stack:
            each: Each = one_by_one
            if missing and threads > 1:
                spawn = get_context("spawn")
                pool = stack.enter_context(ProcessPoolExecutor(threads, mp_context=spawn))

                def each(work: Any, parts: Any, /) -> list[Any]:
                    return list(pool.map(work, parts))

            def attack(name: str) -> Arrays:
                about, private = self.guessed(name)
                labels = self.world.halves.labels[name]
                labels = Labels(labels.codes[about], labels.values)
                given = tables[name][about], labels, private[about], self.seed, name, each
                found = AttackWork(*given).run()
                text = json.dumps(None if found is None else asdict(found))
                return {"attacked": np.frombuffer(text.encode(), dtype=np.uint8)}

            def one(name: str) -> Any:
                kept = self.cells.kept(keys[name], ["attacked"], partial(attack, name))
                return json.loads(bytes(kept["attacked"]))

            return {name: one(name) for name in tables}

    def _attack_key(self, attribute: str, how: str) -> list[object]:
        after = replace(self.after, guess=(), knows=False)
        users = [self.run.alpha, self.run.who]
        return ["uc attack", *self.key, users, differing(after), attribute, how]


def protection_facts(found: Protected, seconds: float) -> Facts:
    """What moving embeddings came to."""
    mean = {name: getattr(found, name) for name in ("steps", "moved", "before", "after")}
    return {
        "users": len(found),
        "seconds": seconds,
        **{name: float(values.mean()) if len(found) else 0.0 for name, values in mean.items()},
        "stopped": found.counts(),
    }


def parts_of(settings: Settings) -> tuple[UCRun, UCAfter, UCConfig]:
    """A system's settings: its training, what comes after, and those of UC-FedRec."""
    training = {f.name for f in fields(UCRun)}
    after = {f.name for f in fields(UCAfter)}
    rest = {k: v for k, v in settings.items() if k not in training | after | {"early"}}
    return (
        config.build(UCRun, {k: v for k, v in settings.items() if k in training}, "uc"),
        config.build(UCAfter, {k: v for k, v in settings.items() if k in after}, "uc"),
        config.build(UCConfig, rest, "uc"),
    )


class UCKind(Kind):
    """UC-FedRec or its base model, `recommender` among its settings, which are laid over those that
    the data set has for it. `hide = "all"` gives every attribute a filter. `early` has what makes a
    rival of this system: training ends where this one recommends as well as the rival."""

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        if not isinstance(world, AttributeWorld):
            raise ConfigError(f"[data.{world.key}] must name the attributes of its users")
        name, usual = settings.get("recommender", "gnn"), UCConfig()
        base = world.config.recommender(name)
        mine = {f.name: getattr(base, f.name) for f in fields(UCConfig)}
        found = {k: v for k, v in mine.items() if v != getattr(usual, k)}
        found["guess"] = list(world.config.attributes)
        looks = {f: getattr(world.config, f) for f in ("final", "every", "choose_from")}
        found |= {"recommender": name, **looks, **settings}
        if found.get("hide") == "all":
            found["hide"] = list(world.config.attributes)
        if "early" in found:
            bare = {k: v for k, v in settings.items() if k != "early"}
            found["early"] = self.prepared({**bare, **settings["early"]}, world)
        return found

    def key(self, job: Job) -> object:
        rival = job.settings.get("early")
        every = [job.settings] if rival is None else [job.settings, rival]
        return [UCTrial.version, [list(map(differing, parts_of(one))) for one in every]]

    def train(self, job: Job) -> TrainedSystem:
        trial = trial_of(job)
        if "early" in job.settings:
            trial = trial.early(trial_of(job._replace(settings=job.settings["early"])))
        look, facts = trial.result()
        return TrainedSystem({END: look}, facts)


def trial_of(job: Job) -> UCTrial:
    """A job's system; the runner has checked its data."""
    world: Any = job.world
    return UCTrial(world, job.settings, job.seed, job.cells)


# --- a training ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class UCSnapshot:
    """A model in training."""

    round: int
    rows: NDArray[np.float32]
    """The published model."""
    embeddings: NDArray[np.float32]
    """The users' e_u, which stay on their devices."""
    sent: tuple[int, int]
    """Uploads so far, and rows in them."""
    scorer: Callable[[], Scorer]
    representations: Callable[[], NDArray[np.float32]]
    """h_u of all users: what attackers see."""


Show = Callable[[UCSnapshot], None]


def federated(trial: UCTrial, show: Show) -> None:
    """Train, and show the model at every stop."""
    settings, halves, device = trial.settings, trial.world.halves, trial.cells.device
    labels = settings.labels(halves.labels, trial.world.table.n_users)
    rng = Streams.from_seed(trial.seed).child("federation")
    history = halves.seen if trial.run.final else halves.train
    federation = Federation.build(settings, history, trial.consent, trial.release, rng, labels)
    federation.check_device(device)
    if device != "cpu":
        federation.accelerate(device)
    federation.schedule = replace(federation.schedule, rounds=trial.stops[-1])
    federation.devices.ledger.keep_rows = False
    name = f"{trial.world.key}, {settings.system}, seed {trial.seed}: rounds"

    def look(moment: Moment) -> None:
        totals = moment.ledger.totals
        sent = totals.releases, totals.positive_rows + totals.negative_rows
        given = moment.round, moment.items, moment.cohort.vectors, sent
        show(UCSnapshot(*given, federation.scorer, federation.representations))

    def tell(moment: Moment) -> None:
        trial.cells.report(name, moment.round, moment.rounds)

    observers: list[Observer] = [AtRounds(trial.stops, look), Periodically(TOLD, tell)]
    federation.run(observers, threads=trial.cells.threads)


def run(trial: UCTrial, trainer: Callable[[UCTrial, Show], None] = federated) -> Arrays:
    """Train, choose the round on validation (or take the last), and measure that one on test. A run
    that leaves the range of numbers keeps what it had; one that never had anything raises."""
    run_, stops, halves = trial.run, trial.stops, trial.world.halves
    first = stops[-1] if run_.stop or run_.final else round(run_.choose_from * trial.config.rounds)
    curve: list[tuple[int, float, float]] = []
    best: dict[str, Any] = {}
    facts: Facts = {}
    looking, sent = 0.0, (0, 0)

    def share(scorer: Scorer, part: str) -> float:
        known, wanted = (halves.seen, halves.test)
        if part == "validation":
            known, wanted = halves.train, halves.validation
        protocol = trial.world.protocol(trial.seed)
        return evaluate(scorer, known, wanted, protocol, threads=1).mean(f"HR@{CUT}")

    def show(snapshot: UCSnapshot) -> None:
        nonlocal best, facts, looking, sent
        begun = time.perf_counter()
        scorer, sent = snapshot.scorer(), snapshot.sent
        unseen = float("nan") if run_.final else share(scorer, "validation")
        curve.append((snapshot.round, unseen, share(scorer, "test")))
        chosen = [row[1] for row in curve if row[0] >= first]
        top = bool(chosen) and chosen[-1] == max(chosen) and chosen.count(chosen[-1]) == 1
        if top or (run_.final and snapshot.round >= first):
            look, full = trial.measured(scorer)
            best = {
                **packed("best", look),
                "table": snapshot.representations().astype(np.float16),
                "embeddings": snapshot.embeddings.astype(np.float32),  # copies
                "rows": snapshot.rows.astype(np.float32),
            }
            facts = {**full, "round": int(snapshot.round)}
        looking += time.perf_counter() - begun

    begun = time.perf_counter()
    try:
        trainer(trial, show)
    except Diverged:
        if not best:
            raise
    seconds = time.perf_counter() - begun - looking
    rounds, validation, test = zip(*curve, strict=True)
    facts |= {
        "rounds": rounds[-1],
        "seconds": seconds,
        "uploads": sent[0] / trial.world.table.n_users,
        "sent_rows": sent[1] / max(1, sent[0]),
        "size": trial.config.embedding_size,
        "stops": list(rounds),
        "test": list(test),
        "validation": [] if run_.final else list(validation),
    }
    return {**best, "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}


def attacked(facts: Sequence[Mapping[str, Any]], name: str, how: str = "attacks") -> list[Attacked]:
    """What attackers came to on one attribute, for each seed that had enough to learn from."""
    found = [one.get(how, {}).get(name) for one in facts]
    return [Attacked(**one) for one in found if one is not None]
