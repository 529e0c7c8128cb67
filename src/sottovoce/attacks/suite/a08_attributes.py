"""A8: hidden attributes from embeddings.

The server of our systems does not hold them, they stay on the devices. This is the worst case:
somebody got hold of all of them, and of the attribute of those who share it. He learns from these,
chooses his settings by cross-validation among them, and guesses for the others.

Three families: logistic regression, a network, boosted trees. Each guesses twice: from the rows as
they are, and from rows aligned, column by column, to the mean and spread of the public users' rows,
since protection may have moved private users aside without mixing them. The best of these attackers
on private users is the strong one. To pick it by its success makes leakage look larger, never
smaller; the verdict allows for the number of tries. A guess is held against the best constant
guess, and an AUC against 0.5.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from statistics import NormalDist
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.drift import Floats, Interval, Ints, wilson
from sottovoce.attacks.filters import ranked
from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View
from sottovoce.core.installed import needs
from sottovoce.data.dataset import Labels
from sottovoce.errors import DataError, DoesNotApply, UsageError
from sottovoce.evaluation.significance import paired_t
from sottovoce.rng import Streams

Mask = NDArray[np.bool_]
Table = NDArray[Any]
SEEDS, FOLDS, RESAMPLES, ERROR = 5, 3, 1_000, 0.05
LEAST_PUBLIC, LEAST_OF_CLASS, LEAST_ALIGNED = 30, 2 * FOLDS, 30
"""Public users to learn from, of them in a class that is learnt, and private users to align."""
TREE_CLASSES, TREES = 32, 300
"""Every step of boosting grows a tree for each class: of more classes, the most frequent are told
apart and the others taken as one, and there are no more steps than make so many trees."""
FURTHEST = 8.0  # standard deviations, beyond which a feature is cut off
Given = TypeVar("Given")
Found = TypeVar("Found")


class Each(Protocol):
    """work(part) of every part, in their order; `work` and the parts can be pickled."""

    def __call__(
        self, work: Callable[[Given], Found], parts: Sequence[Given], /
    ) -> Sequence[Found]: ...


def one_by_one(work: Callable[[Given], Found], parts: Sequence[Given], /) -> list[Found]:
    return [work(part) for part in parts]


class TooLittle(DoesNotApply):
    """There is not enough to learn from, or nobody to guess: such an attribute may be skipped."""


@dataclass(frozen=True, slots=True)
class AttackerOutcome:
    """One attacker, held against the truth of private users."""

    family: str
    aligned: bool
    public_auc: float
    """By cross-validation among public users: what there is to be learnt without protection."""
    public_accuracy: float
    auc: float | None
    """Of two classes, or the mean of each against the rest; None of a single class."""
    auc_interval: Interval  # 95 %, from resampled private users
    auc_ceiling: float
    """What chance stays below, in 95 % of cases for all attackers together."""
    right: int
    tried: int
    majority: float
    """The share that the best constant guess gets right."""
    gain: Interval
    """Accuracy less that share: 95 % for all attackers together."""
    seed_aucs: tuple[float, ...]
    """Of each seed alone; the attacker proper takes the mean of their probabilities."""
    seed_accuracies: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.family}, aligned" if self.aligned else self.family

    @property
    def accuracy(self) -> float:
        """The share of private users guessed right; micro-F1 is the same number."""
        return self.right / self.tried

    @property
    def accuracy_interval(self) -> Interval:
        """95 %, after Wilson."""
        return wilson(self.right, self.tried)

    @property
    def ranks(self) -> bool:
        """Whether the AUC is above 0.5 beyond chance."""
        above = self.auc is not None and self.auc > self.auc_ceiling
        return above and self.auc_interval.low > 0.5

    @property
    def guesses(self) -> bool:
        """Whether it is right more often than the best constant guess, beyond chance."""
        return self.gain.low > 0

    def to_table(self) -> dict[str, object]:
        return asdict(self) | {
            "attack": f"attribute inference, {self.name}",
            "party": "whoever holds the representations",
            "auc_base": 0.5,
            "micro_f1": self.accuracy,
            "micro_f1_interval": self.accuracy_interval,
            "verdict": "guesses" if self.ranks or self.guesses else "no better than chance",
        }


@dataclass(frozen=True, slots=True)
class Inference:
    """Every attacker on one attribute. Users without a value (`missing`) are not scored. A value
    that too few share (`not_learnt`) is always guessed wrong, and AUC leaves it out."""

    attribute: str
    classes: int
    """Values that attackers learnt to tell apart."""
    public: int
    private: int
    missing: int
    not_learnt: int
    outcomes: tuple[AttackerOutcome, ...]

    @property
    def by_auc(self) -> AttackerOutcome:
        return max(self.outcomes, key=lambda o: o.auc or 0.0)

    @property
    def by_accuracy(self) -> AttackerOutcome:
        return max(self.outcomes, key=lambda o: o.right)

    @property
    def strong(self) -> AttackerOutcome | None:
        """The best attacker: by AUC where that beats chance, else by its guesses. None where no
        attacker beats chance, which a constant guess never does."""
        ranking = [o for o in self.outcomes if o.ranks]
        guessing = [o for o in self.outcomes if o.guesses]
        best = max(ranking, key=lambda o: o.auc or 0.0, default=None)
        return best or max(guessing, key=lambda o: o.right, default=None)

    @property
    def verdict(self) -> str:
        auc, guess = self.by_auc, self.by_accuracy
        ends = "{:.3f} to {:.3f}".format
        how = "no attacker is better than chance"
        if any(o.guesses for o in self.outcomes):
            how = "learnt from the representations"
        elif self.strong is not None:
            how = "users are ranked by it, though no guess beats the majority"
        ranked = "no AUC, as no two private users differ"
        if auc.auc is not None:
            ranked = f"AUC {auc.auc:.3f} ({ends(*auc.auc_interval)}; {auc.name}) against 0.5"
        return (
            f"{self.attribute}: {how}: {ranked}; {guess.accuracy:.3f} right "
            f"({ends(*guess.accuracy_interval)}; {guess.name}) against {guess.majority:.3f} for "
            "the best constant guess"
        )

    def to_table(self) -> dict[str, object]:
        return asdict(self) | {
            "outcomes": [o.to_table() for o in self.outcomes],
            "strong": None if self.strong is None else self.strong.name,
            "verdict": self.verdict,
        }


Setting = tuple[float, float]
"""How strongly a model is held back (of trees, how many leaves), and its balance: a user weighs as
much as the size of her class to the power of minus this, which guesses undo."""
NETWORKS = ((1.0, 0.0), (10.0, 0.0), (10.0, 0.5))
PENALTIES = tuple(itertools.product((1.0, 0.3, 0.1, 0.03, 0.003), (0.0, 0.5)))
Stops = tuple[int, ...]
Answers = list[list[Floats]]
"""For each stop, the probabilities of classes for each table of rows."""


class Lesson(NamedTuple):
    """What a model learns from, after how many steps it is asked, and of which rows."""

    features: Floats
    codes: Ints
    weights: Floats
    strength: float
    stops: Stops
    rows: list[Floats]
    seed: int


class Family(NamedTuple):
    learn: Callable[[Lesson], Answers]
    settings: tuple[Setting, ...]
    stops: Stops
    seeds: int


def _logistic(lesson: Lesson) -> Answers:
    kind = import_module("sklearn.linear_model").LogisticRegression
    model = kind(C=1 / (lesson.strength * len(lesson.codes)), tol=1e-3, max_iter=200)
    model.fit(lesson.features, lesson.codes, sample_weight=lesson.weights)
    return [[model.predict_proba(r) for r in lesson.rows]]


def _network(lesson: Lesson) -> Answers:
    kind = import_module("sklearn.neural_network").MLPClassifier
    batch = max(16, min(128, len(lesson.codes) // 32))
    model = kind((128,), alpha=lesson.strength, batch_size=batch, random_state=lesson.seed)
    narrow, classes = lesson.features.astype(np.float32), np.unique(lesson.codes)
    found = []
    for epoch in range(1, lesson.stops[-1] + 1):
        model.partial_fit(narrow, lesson.codes, sample_weight=lesson.weights, classes=classes)
        if epoch in lesson.stops:
            rows = [model.predict_proba(r.astype(np.float32)) for r in lesson.rows]
            found.append([p.astype(np.float64) for p in rows])
    return found


def _trees(lesson: Lesson) -> Answers:
    sizes = np.bincount(lesson.codes)
    place = np.empty(len(sizes), dtype=np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    place = np.minimum(place, TREE_CLASSES - 1)
    share = sizes / np.bincount(place, weights=sizes)[place]
    model = import_module("sklearn.ensemble").HistGradientBoostingClassifier(
        learning_rate=0.15, max_leaf_nodes=int(lesson.strength), l2_regularization=5.0, max_bins=31,
        min_samples_leaf=max(2, min(20, len(lesson.codes) // 10)), early_stopping=False,
        max_features=min(1.0, max(0.1, 16 / lesson.features.shape[1])), warm_start=True,
        random_state=lesson.seed,
    )  # fmt: skip
    found = []
    for stop in lesson.stops:
        model.set_params(max_iter=stop)
        model.fit(lesson.features, place[lesson.codes])  # weights make it four times slower
        found.append([model.predict_proba(r)[:, place] * share for r in lesson.rows])
    return found


def _families(classes: int, users: int) -> dict[str, Family]:
    passes = max(6, 2_500 // users)
    most = min(160, TREES // (1 if classes == 2 else min(classes, TREE_CLASSES)))
    return {
        "boosted trees": Family(_trees, ((10, 0.0),), (most // 4, most // 2, most), SEEDS),
        "network": Family(_network, NETWORKS, (passes, 2 * passes), SEEDS),
        "logistic regression": Family(_logistic, PENALTIES, (1,), 1),
    }


def infer(
    representations: Table,
    labels: Labels,
    private: Table,
    rng: Streams,
    *,
    attribute: str,
    each: Each = one_by_one,
) -> Inference:
    """Learn from users who share the attribute, and guess it of those who do not, as `private`
    says; a user without a value counts as private and is not scored. The order of users does not
    matter. Private users' values are read only to score. Models are independent of each other, so
    that `each` may train them in processes; what is found is the same to the last bit. Needs
    scikit-learn."""
    table, codes, hidden = _checked(representations, labels, private)
    sizes = np.bincount(codes[~hidden], minlength=len(labels.values))
    learnt = np.flatnonzero(sizes >= LEAST_OF_CLASS)
    _require_enough(attribute, sizes, len(learnt), int((hidden & (codes >= 0)).sum()))
    # Users in an order that follows from what they are, not from where they stood.
    order = np.lexsort((codes, *table.T[::-1]))
    table, codes, hidden = table[order], codes[order], hidden[order]
    place = np.full(len(labels.values) + 1, -1, dtype=np.int64)
    place[learnt] = np.arange(len(learnt))
    public, asked = ~hidden & (place[codes] >= 0), hidden & (codes >= 0)
    streams = rng.child("attribute inference", attribute)
    views = _views(table, public, hidden, asked)
    guesses = _attack(*views, place[codes[public]], streams, each)
    truth = codes[asked]
    usual = truth == np.bincount(truth).argmax()
    outcomes = _score(guesses, place[truth], usual, streams.child("score"), each)
    taught, missing, odd = (int(x.sum()) for x in (sizes, codes < 0, place[truth] < 0))
    return Inference(attribute, len(learnt), taught, len(truth), missing, odd, outcomes)


def _checked(rows: Table, labels: Labels, private: Table) -> tuple[Floats, Ints, Mask]:
    table, mask = np.asarray(rows), np.asarray(private)
    if table.ndim != 2 or not table.shape[1] or table.dtype.kind not in "fiu":
        raise UsageError("representations are a table of numbers: a row for each user")
    if mask.dtype != np.bool_ or mask.shape != (len(table),) or len(labels) != len(table):
        raise UsageError(
            f"{len(table):,} representations need as many labels and as many truth values of who "
            f"is private, not {len(labels):,} and an array of {mask.dtype} in shape {mask.shape}"
        )
    table = table.astype(np.float64) + 0.0  # which makes one zero of two
    bad = int((~np.isfinite(table)).any(axis=1).sum())
    if bad:
        raise DataError(f"the representations of {bad:,} users are not finite numbers")
    codes = labels.codes.astype(np.int64)
    return table, codes, mask | (codes < 0)


def _require_enough(attribute: str, sizes: Ints, learnt: int, asked: int) -> None:
    reasons = {
        "no private user has a known value, so no guess can be scored": not asked,
        f"only {sizes.sum():,} users share it, too few to learn from": sizes.sum() < LEAST_PUBLIC,
        "all who share it have the same value, so nothing can be learnt": (sizes > 0).sum() == 1,
        f"fewer than two values are shared by {LEAST_OF_CLASS} users or more": learnt < 2,
    }
    for why in itertools.compress(reasons, reasons.values()):
        raise TooLittle(f"{attribute}: {why}")


def _views(table: Floats, public: Mask, hidden: Mask, asked: Mask) -> tuple[Floats, list[Floats]]:
    """Standardised features, with the length of rows as one more: of public users, and of those
    asked, as they are and, where private users are enough, aligned."""
    table = table / np.maximum(np.abs(table).max(axis=0), np.finfo(float).tiny)
    table = np.c_[table, np.log(np.maximum(np.linalg.norm(table, axis=1), 1e-12))]

    def standard(users: Mask, like: Mask) -> Floats:
        spread = table[like].std(axis=0)
        scaled = (table[users] - table[like].mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
        return np.asarray(np.clip(scaled, -FURTHEST, FURTHEST))

    aligned = [standard(asked, hidden)] if hidden.sum() >= LEAST_ALIGNED else []
    return standard(public, public), [standard(asked, public), *aligned]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Models are small: with more threads they are slower, and results would depend on them."""
    try:
        limits = import_module("threadpoolctl").threadpool_limits
        unfinished = import_module("sklearn.exceptions").ConvergenceWarning
    except ModuleNotFoundError as error:
        raise UsageError(f"attribute inference {needs(error.name or 'sklearn')}") from None
    with limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", unfinished)
        yield


Guess = tuple[str, bool, float, float, list[Floats], list[Floats]]
"""Family, aligned, AUC and accuracy by cross-validation; of each seed, the probabilities to rank by
and those to guess by, [users, classes]."""


class Lessons(NamedTuple):
    """What all lessons of an attack share."""

    public: Floats
    asked: list[Floats]
    codes: Ints
    folds: Ints


class Task(NamedTuple):
    """A lesson to be given: from all but a fold, of which the model is asked; where that is -1,
    from all, and those asked are the private users."""

    learn: Callable[[Lesson], Answers]
    lessons: Lessons
    setting: Setting
    stops: Stops
    seed: int
    fold: int = -1


def _teach(task: Task) -> Answers:
    public, asked, codes, folds = task.lessons
    users = folds != task.fold
    weights = np.bincount(codes).astype(np.float64)[codes[users]] ** -task.setting[1]
    taught = (public[users], codes[users], weights / weights.mean(), task.setting[0], task.stops)
    rows = asked if task.fold < 0 else [public[~users]]
    with _one_thread_each():
        return task.learn(Lesson(*taught, rows, task.seed))


def _attack(
    public: Floats, asked: list[Floats], codes: Ints, rng: Streams, each: Each = one_by_one
) -> list[Guess]:
    sizes = np.bincount(codes).astype(np.float64)
    families = _families(len(sizes), len(codes))
    # Folds have the same share of every class.
    shuffled = rng.child("folds").generator().permutation(len(codes))
    folds = np.empty(len(codes), dtype=np.int64)
    folds[shuffled[np.argsort(codes[shuffled], kind="stable")]] = np.arange(len(codes)) % FOLDS
    lessons = Lessons(public, asked, codes, folds)

    def task(name: str, setting: Setting, stops: Stops, seed: int, fold: int = -1) -> Task:
        key = rng.child("learn", name, seed).key & 0xFFFFFFFF
        return Task(families[name].learn, lessons, setting, stops, key, fold)

    def fair(p: Floats, setting: Setting) -> Floats:
        p = p * sizes ** setting[1]
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    truth = np.concatenate([codes[folds == k] for k in range(FOLDS)])
    trials = [(name, setting) for name, family in families.items() for setting in family.settings]
    tried = iter(
        each(
            _teach,
            [task(n, s, families[n].stops, SEEDS, k) for n, s in trials for k in range(FOLDS)],
        )
    )
    marks: dict[str, list[tuple[float, float, Setting, int]]] = {name: [] for name in families}
    for name, setting in trials:
        answers = [next(tried) for _ in range(FOLDS)]
        for i, stop in enumerate(families[name].stops):
            p = np.concatenate([stages[i][0] for stages in answers])
            right = float((fair(p, setting).argmax(axis=1) == truth).mean())
            marks[name].append((auc(p, truth) or 0.5, right, setting, stop))
    best = {
        name: (max(some, key=lambda m: m[0]), max(some, key=lambda m: m[1]))
        for name, some in marks.items()
    }
    chosen = [
        (name, setting, stop)
        for name, pair in best.items()
        for setting, stop in dict.fromkeys(one[2:] for one in pair)
    ]
    taught = iter(
        each(
            _teach,
            [task(n, s, (stop,), k) for n, s, stop in chosen for k in range(families[n].seeds)],
        )
    )
    fitted = {key: [next(taught)[0] for _ in range(families[key[0]].seeds)] for key in chosen}
    found = []
    for name, (ranker, guesser) in best.items():
        for view in range(len(asked)):
            ranks = [rows[view] for rows in fitted[name, *ranker[2:]]]
            values = [fair(rows[view], guesser[2]) for rows in fitted[name, *guesser[2:]]]
            found.append((name, view == 1, ranker[0], guesser[1], ranks, values))
    return found


def _score(
    guesses: list[Guess], truth: Ints, usual: Mask, rng: Streams, each: Each = one_by_one
) -> tuple[AttackerOutcome, ...]:
    """`truth` is −1 where no attacker learnt the value; `usual`: who has the most frequent."""
    n, tests = int((truth >= 0).sum()), 2 * len(guesses)
    draws = rng.generator().multinomial(n, np.full(n, 1 / max(1, n)), RESAMPLES)
    return tuple(each(partial(_outcome, truth, usual, draws.astype(np.int32), tests), guesses))


def _outcome(truth: Ints, usual: Mask, draws: Table, tests: int, guess: Guess) -> AttackerOutcome:
    known, (ranks, values) = truth >= 0, guess[4:]
    p = np.mean(ranks, axis=0)[known]
    right = np.mean(values, axis=0).argmax(axis=1) == truth
    value, ends = auc(p, truth[known]), [0.0, 1.0]
    if value is not None:
        ends = np.nanquantile(auc_resampled(p, truth[known], draws), (0.025, 0.975)).tolist()
    gain = paired_t(right, usual, 1 - ERROR / tests)
    aucs = [auc(one[known], truth[known]) for one in ranks]
    return AttackerOutcome(
        *(*guess[:4], value, Interval(*ends), _ceiling(p, truth[known], tests)),
        *(int(right.sum()), len(truth), float(usual.mean()), Interval(gain.low, gain.high)),
        seed_aucs=tuple(one for one in aucs if one is not None),
        seed_accuracies=tuple(float((v.argmax(1) == truth).mean()) for v in values),
    )


def auc(p: Floats, truth: Ints) -> float | None:
    """Of two classes, or the mean over classes, each against the rest; None of a single class."""
    found = float(auc_resampled(p, truth, np.ones((1, len(truth)), dtype=np.int64))[0])
    return None if math.isnan(found) else found


def auc_resampled(p: Floats, truth: Ints, draws: Table) -> Floats:
    """The AUC where each user counts as often as a row of `draws` says; one for each row. Classes
    that are not there do not count; NaN where there is only one."""
    weights = np.ascontiguousarray(draws.T, dtype=np.float32)  # whole numbers and halves: exact
    total, seen = np.zeros(len(draws)), np.zeros(len(draws))
    for c in _classes_there(truth, p.shape[1]):
        ours, others = np.flatnonzero(truth == c), np.flatnonzero(truth != c)
        others = others[np.argsort(p[others, c], kind="stable")]
        below = np.zeros((len(others) + 1, len(draws)), dtype=np.float32)
        np.cumsum(weights[others], axis=0, out=below[1:])
        ends = [np.searchsorted(p[others, c], p[ours, c], side) for side in ("left", "right")]
        won = weights[ours] * (below[ends[0]] + below[ends[1]]) / 2
        pairs = weights[ours].sum(axis=0, dtype=np.float64) * below[-1]
        total += won.sum(axis=0, dtype=np.float64) / np.maximum(pairs, 1.0)
        seen += pairs > 0
    return np.where(seen > 0, total / np.maximum(seen, 1.0), np.nan)


def _classes_there(truth: Ints, classes: int) -> list[int]:
    sizes = np.bincount(truth, minlength=classes)
    there: list[int] = np.flatnonzero((sizes > 0) & (sizes < len(truth))).tolist()
    return there[-1:] if classes == 2 else there


def _ceiling(p: Floats, truth: Ints, tests: int) -> float:
    """From the spread of the AUC over all orders of `truth`: it is a sum of a value for each user
    and class, whose variance Hoeffding gives."""
    n, there = len(truth), _classes_there(truth, p.shape[1])
    if not there:
        return 1.0
    sizes = np.bincount(truth, minlength=p.shape[1])
    value = np.zeros(p.shape)
    for c in there:
        value[:, c] = ranked(p[:, c]) / (sizes[c] * (n - sizes[c]) * len(there))
    centred = value - value.mean(axis=0)
    centred -= (centred @ sizes / n)[:, None]
    spread = math.sqrt(float((centred**2 @ sizes).sum()) / (n - 1))
    return 0.5 + NormalDist().inv_cdf(1 - ERROR / 2 / tests) * spread


# --- the attacker of UC-FedRec's paper -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedOutcome:
    """What the attacker of UC-FedRec's paper comes to."""

    auc: float | None
    """Of two classes, or the mean of each against the rest; None of a single class."""
    accuracy: float
    """The share of private users guessed right; micro-F1 is the same number."""


PUBLISHED_WIDTH, PUBLISHED_BATCH, PUBLISHED_PASSES = 128, 64, 200
"""Hidden units, users in a step and passes over all users. The paper does not name them."""


def infer_as_published(
    representations: Table, labels: Labels, private: Table, rng: Streams, *, attribute: str
) -> PublishedOutcome:
    """Attack as UC-FedRec's paper describes its attackers: one network of two layers, trained by
    plain descent at rate 0.01 on the rows as they are. It learns from those who share the attribute
    and guesses it of the others, as the attackers of `infer` do, and is weaker than these. Needs
    scikit-learn."""
    table, codes, hidden = _checked(representations, labels, private)
    sizes = np.bincount(codes[~hidden], minlength=len(labels.values))
    known = np.flatnonzero(sizes)
    asked = hidden & (codes >= 0)
    _require_enough(attribute, sizes, int((sizes >= LEAST_OF_CLASS).sum()), int(asked.sum()))
    place = np.full(len(labels.values), -1, dtype=np.int64)
    place[known] = np.arange(len(known))
    order = np.lexsort((codes, *table.T[::-1]))
    taught, tested = order[~hidden[order]], order[asked[order]]
    with _one_thread_each():
        model = import_module("sklearn.neural_network").MLPClassifier(
            (PUBLISHED_WIDTH,), solver="sgd", alpha=0.0, batch_size=PUBLISHED_BATCH,
            learning_rate_init=0.01, momentum=0.0, max_iter=PUBLISHED_PASSES, tol=0.0,
            n_iter_no_change=PUBLISHED_PASSES,
            random_state=rng.child("published attacker", attribute).key & 0xFFFFFFFF,
        )  # fmt: skip
        model.fit(table[taught].astype(np.float32), place[codes[taught]])
        p = model.predict_proba(table[tested].astype(np.float32)).astype(np.float64)
    truth = place[codes[tested]]
    ranked = auc(p[truth >= 0], truth[truth >= 0])
    return PublishedOutcome(ranked, float((p.argmax(axis=1) == truth).mean()))


_NAME: Final = "attribute inference"
_PROMISE: Final = "What I hide of myself cannot be guessed, even from my device's own numbers."
_RNG = Streams.from_seed(8)


def _needs(view: View) -> str:
    if "representations" not in view.own:
        return (
            "Embeddings stay on the devices, and this attacker got hold of none "
            '(view.own["representations"]).'
        )
    return ""


def _guess(view: View) -> NDArray[np.float64]:
    """`view.own["representations"]`: what an attacker holds who got all users' embeddings, a row
    each."""
    return np.asarray(view.own["representations"], dtype=np.float64)


def _judge(table: NDArray[np.float64], truth: Truth) -> Result:
    """Attackers learn from those who share an attribute; what the others hide is read only to
    score. The attribute that is guessed best counts, the others are named."""
    found = []
    for name in sorted(truth.labels):
        codes, hides = truth.labels[name], truth.hidden.get(name)
        if hides is None or not hides.any():
            continue
        if len(table) != len(codes):
            raise DataError("every user needs a row of representations and a label")
        values = tuple(str(c) for c in range(int(codes.max(initial=0)) + 1))
        try:
            labels = Labels(codes.astype(np.int32), values)
            found.append(infer(table, labels, hides, _RNG, attribute=name))
        except TooLittle:
            continue
    if not found:
        detail = "no attribute is hidden by some and shared by enough others to learn from"
        return _result(0.5, (0.0, 1.0), 0, detail)
    worst = max(found, key=_leak)
    best = worst.by_auc
    low, high = best.auc_interval
    # The best of several attackers must beat what the best of so many would by chance.
    low = low if best.ranks else min(low, 0.5)
    return _result(best.auc or 0.5, (low, high), best.tried, "; ".join(i.verdict for i in found))


def _leak(found: Inference) -> tuple[bool, float]:
    return found.by_auc.ranks, found.by_auc.auc or 0.0


def _result(value: float, interval: tuple[float, float], claims: int, detail: str) -> Result:
    return Result(
        "A8", _NAME, "anyone", _PROMISE, "AUC", value, interval, 0.5, claims=claims, detail=detail
    )


ATTACK = ATTACKS.add(
    "attributes",
    Attack(_NAME, "anyone", _PROMISE, _guess, _judge, "A8", needs=_needs, grows_with="users"),
)
