"""What can be read from a finished run: recommendations, the ledger by user, round or choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import COUNTS, Totals
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import FactorScorer, Scorer, recommend
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.foursquare import with_top_categories
from sottovoce.data.splitting import Split
from sottovoce.errors import CorruptData, DataError, RunError, UsageError
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.silo_door import KIND
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.home import scorer_at_home, scorer_of_newcomers

if TYPE_CHECKING:
    import pyarrow as pa

Grouping = Literal["choice", "user", "round", "owner"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An item that is recommended to somebody.

    Example:
        ```python
        for one in fitted.recommend("r0007", n=3):
            print(one.rank, one.item, one.title, one.points)
        ```
    """

    rank: int
    item: str
    title: str
    categories: tuple[str, ...]
    score: float
    """The model's own number, which means nothing but an order."""
    points: float
    """The same where the first place has 100, and the average of all items that the user does not
    have 0."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Sums over the releases of one user, one round or one consent choice."""

    label: str
    devices: int
    totals: Totals


@dataclass(frozen=True, slots=True, repr=False)
class FinishedRun(PreparedExperiment):
    """A finished run with the data it was made from."""

    folder: RunFolder

    @classmethod
    def open(cls, path: Path) -> FinishedRun:
        """Refuses a run that has not finished, and data that has changed since."""
        folder = RunFolder.open(path)
        manifest = folder.manifest()
        if manifest.get("kind") == "search":
            raise RunError(
                f"{path} is a search for settings, not a run; run the best that it found with "
                f"`sottovoce run {path / 'best.toml'}`"
            )
        if manifest.get("seeds"):
            raise RunError(f"{path} has several seeds; take the run of one of them: {path}/seed-…")
        if not folder.finished:
            raise RunError(f"{path} has not finished; go on with `sottovoce run … --resume`")
        check_manifest(manifest, path)
        experiment = Experiment.from_table(manifest["experiment"])
        dataset = folder.kept_data(str(manifest["data"]["name"])) or experiment.dataset()
        # Ranks, none of which has the whole, go by how a generated one is made.
        if manifest["data"]["fingerprint"] not in (dataset.recipe(), dataset.fingerprint()):
            raise RunError(
                f"the data set {dataset.name} is not the one {path} was made from; restore it, or "
                "run the experiment again"
            )
        consent = experiment.records(dataset)
        split = experiment.judged(experiment.split(dataset), consent)
        return cls(experiment, dataset, split, consent, folder)

    def describe_choice(self, choice: Choice) -> str:
        """What a choice means in this system."""
        return choice.words() if self.experiment.silo is None else choice.owner_words()

    def scorer(self) -> Scorer:
        vectors, items = self.folder.vectors(), self.folder.model()
        train = self.split.train
        size, silo = vectors.shape[1], self.experiment.silo
        if silo is not None:
            shape = (train.n_items, silo.width)
        else:
            settings = self.experiment.on(self.dataset, self.consent)[0]
            shape = (settings.model_rows(train.n_items), settings.width)
        if vectors.shape != (train.n_users, size) or items.shape != shape:
            raise CorruptData(
                f"{self.folder.path} holds a model of another run: {len(vectors):,} users and "
                f"{len(items):,} items, where the data have {train.n_users:,} and {train.n_items:,}"
            )
        if silo is not None:
            return FactorScorer.of(vectors, items)
        release = self.experiment.cross_device().release
        algorithm = settings.build_under(release, None, 1)
        return scorer_at_home(self.experiment, self.dataset, train, algorithm, vectors, items)

    def user(self, name: str) -> int:
        """The number of a user; the error shows what ids look like."""
        known = self.split.train.users_vocabulary()
        if name not in known:
            shape = f"{known.name(0)!r} … {known.name(len(known) - 1)!r}"
            raise DataError(f"{self.folder.path} has no user {name!r}; ids look like {shape}")
        return known.index(name)

    def recommend(self, name: str, n: int, scorer: Scorer | None = None) -> list[Recommendation]:
        """As the device does it: from its own vector, its own history and the published model. Or,
        where there are data owners, as the orchestrator does, for those whom it knows. The `scorer`
        may be at hand already."""
        if n < 1:
            raise UsageError(f"-n must be at least 1, not {n}")
        user = self.user(name)
        if self.experiment.silo is not None and not self.consent.takes_part[user]:
            raise DataError(
                f"{name} takes no part, so nobody has a vector of hers and can recommend "
                "anything to her"
            )
        return best_items(self, scorer or self.scorer(), user, self.split.train.row(user), n)

    def recommend_to(self, history: Sequence[str], n: int) -> list[Recommendation]:
        """The same to a person who was never in training, by what she likes, oldest first."""
        if n < 1:
            raise UsageError(f"-n must be at least 1, not {n}")
        mine = person_of(self.split.train, history)
        return best_items(self, self.scorer_for(mine), 0, mine.row(0), n)

    def scorer_for(self, history: Interactions) -> Scorer:
        """What people with these histories, who were never in training, recommend to themselves:
        each fits a vector to the published model, and nothing leaves."""
        if self.experiment.silo is not None:
            raise DataError(
                "DRIFT has no vector for a person who was never in training: the orchestrator "
                "recommends, and knows those alone whose interactions data owners have read"
            )
        self.scorer()  # raises if the model is not that of this run
        view = ModelView(int(self._planned("rounds")), self.folder.model())
        return scorer_of_newcomers(self, history, view, int(self._planned("triples")))

    def _planned(self, name: str) -> int:
        value = self.folder.manifest()["schedule"].get(name)
        if not isinstance(value, int):
            raise CorruptData(f"the manifest of {self.folder.path} lacks schedule.{name}")
        return value

    def describe(self, item: int) -> tuple[str, str, tuple[str, ...]]:
        """Id, title and categories of an item, by its number in the split."""
        return described(self, item)

    # --- the ledger ------------------------------------------------------------------------------

    def ledger(self, user: int | None = None) -> pa.Table:
        return self.folder.ledger(user)

    def ledger_by(self, grouping: Grouping) -> list[LedgerLine]:
        """The ledger summed. By choice and by user, those who sent nothing are there, too."""
        if grouping == "choice":
            groups = choice_groups(self.experiment.consent.choices, self.consent)
            sums = self.ledger_per_user()
            return [
                LedgerLine(self.describe_choice(choice), int(mask.sum()), sums.total(mask))
                for choice, mask in groups
            ]
        if grouping == "user":
            sums = self.ledger_per_user()
            names = self.split.train.users_vocabulary()
            return [LedgerLine(names.name(u), 1, sums.row(u)) for u in range(len(names))]
        if grouping == "owner":
            if self.experiment.silo is None:
                raise UsageError("--by owner is for runs with data owners (drift)")
            return _by_owner(self.ledger())
        if self.experiment.silo is not None:
            raise UsageError(
                "data owners read the same in every epoch, so that there is nothing to tell by "
                "round; use --by owner, --by user or --by choice"
            )
        return _by_round(self.ledger())

    def ledger_of(self, user: int) -> tuple[Grouping, list[LedgerLine]]:
        """One user's releases, a line per round, or per data owner where there are some."""
        if self.experiment.silo is not None:
            return "owner", _by_owner(self.ledger(user))
        return "round", _by_round(self.ledger(user))

    def ledger_per_user(self) -> Sums:
        table = self.ledger()
        return Sums.of(table, table["user"].to_numpy(), self.split.train.n_users)


@dataclass(frozen=True, slots=True, repr=False)
class Sums:
    """Ledger columns summed by group."""

    releases: NDArray[np.int64]
    positive_rows: NDArray[np.int64]
    negative_rows: NDArray[np.int64]
    bytes: NDArray[np.int64]
    epsilon: NDArray[np.float64]
    reports: NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table, which: NDArray[np.integer], groups: int) -> Sums:
        def total(column: str) -> NDArray[np.float64]:
            values = table[column].to_numpy().astype(np.float64)
            return np.bincount(which, values, groups).astype(np.float64)

        return cls(
            np.bincount(which, minlength=groups).astype(np.int64),
            total("positive_rows").astype(np.int64),
            total("negative_rows").astype(np.int64),
            total("bytes").astype(np.int64),
            total("epsilon"),
            total("reports").astype(np.int64),
        )

    def row(self, group: int) -> Totals:
        return self.total(np.array([group]))

    def total(self, groups: NDArray[np.int64] | NDArray[np.bool_]) -> Totals:
        return Totals(
            int(self.releases[groups].sum()),
            int(self.positive_rows[groups].sum()),
            int(self.negative_rows[groups].sum()),
            int(self.bytes[groups].sum()),
            float(self.epsilon[groups].sum()),
            int(self.reports[groups].sum()),
        )


def best_items(
    world: PreparedExperiment, scorer: Scorer, user: int, own: NDArray[np.int32], n: int
) -> list[Recommendation]:
    """The n best of the items that she does not have."""
    items, scores = recommend(scorer, user, own, n)
    every = np.delete(scorer.scores(np.array([user]))[0].astype(np.float64), own)
    usual = float(every[np.isfinite(every)].mean()) if np.isfinite(every).any() else 0.0
    above = float(scores[0]) - usual if len(scores) else 0.0
    return [
        Recommendation(
            place,
            *described(world, item),
            score,
            100.0 * (score - usual) / above if above > 0.0 else 100.0,
        )
        for place, (item, score) in enumerate(
            zip(items.tolist(), scores.tolist(), strict=True), start=1
        )
    ]


def described(world: PreparedExperiment, item: int) -> tuple[str, str, tuple[str, ...]]:
    """Id, title and categories of an item, by its number in the split."""
    number = int(world.split.item_map[item])
    categories = world.dataset.item_categories
    name = world.dataset.interactions.items_vocabulary().name(number)
    return name, world.dataset.title(number), categories[number] if categories else ()


def person_of(train: Interactions, history: Sequence[str]) -> Interactions:
    """Somebody with these items, oldest first, as a table of one row over the training items."""
    known = train.items_vocabulary()
    names = [str(name) for name in history]
    if not names:
        raise DataError("a history needs at least one item; Top-Pop recommends without any")
    for name in names:
        if name not in known:
            shape = f"{known.name(0)!r} … {known.name(len(known) - 1)!r}"
            raise DataError(
                f"nobody in training has the item {name!r}, so that nothing is known of it; leave "
                f"it out (ids look like {shape})"
            )
    times = None if train.timestamps is None else np.arange(len(names))
    return Interactions.from_pairs(
        np.zeros(len(names), np.int64), [known.index(name) for name in names],
        n_users=1, n_items=train.n_items, timestamps=times, item_ids=known,
    )  # fmt: skip


def check_manifest(manifest: Mapping[str, object], path: Path) -> None:
    """Raises where a finished run's manifest lacks what is read from it, or has it otherwise."""
    shape: dict[str, type] = {
        "experiment": dict,
        "data": dict,
        "schedule": dict,
        "protocol": str,
        "results": dict,
        "ledger": dict,
    }
    missing = [key for key in shape if key not in manifest]
    if missing:
        raise CorruptData(f"the manifest of {path} lacks {', '.join(missing)}")
    wrong = [key for key, kind in shape.items() if not isinstance(manifest[key], kind)]
    inner: list[tuple[str, str, type]] = [
        ("data", "name", str),
        ("data", "fingerprint", str),
        ("schedule", "rounds_per_epoch", int),
        *[("ledger", count, int) for count in COUNTS],
    ]
    for key, name, kind in inner:
        table = manifest[key]
        if isinstance(table, dict) and not isinstance(table.get(name), kind):
            wrong.append(f"{key}.{name}")
    results = manifest["results"]
    for system, summary in results.items() if isinstance(results, dict) else ():
        numbers = isinstance(summary, dict) and summary.values()
        if not numbers or not all(isinstance(value, int | float) for value in numbers):
            wrong.append(f"results.{system}")
    if wrong:
        raise CorruptData(f"the manifest of {path} has something else for {', '.join(wrong)}")


def item_categories(dataset: Dataset, split: Split) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Category names, and which item of the split is in which. Foursquare's leaf categories are
    taken together to its top ones."""
    rolled = with_top_categories(dataset)
    before, after = (sum(map(bool, data.item_categories or ())) for data in (dataset, rolled))
    shown = rolled if after > 0.9 * before else dataset
    return shown.category_names(), shown.category_matrix()[split.item_map]


def _by_round(table: pa.Table) -> list[LedgerLine]:
    numbers, which = np.unique(table["round"].to_numpy(), return_inverse=True)
    sums = Sums.of(table, which, len(numbers))
    return [
        LedgerLine(str(number), int(sums.releases[k]), sums.row(k))
        for k, number in enumerate(numbers.tolist())
    ]


def _by_owner(table: pa.Table) -> list[LedgerLine]:
    kinds = [str(kind) for kind in table["kind"].cast("string").to_pylist()]
    names, which = np.unique(np.array(kinds, dtype=np.str_), return_inverse=True)
    sums = Sums.of(table, which, len(names))
    return [
        LedgerLine(name.removeprefix(f"{KIND}:"), int(sums.releases[k]), sums.row(k))
        for k, name in enumerate(names.tolist())
    ]


def choice_groups(
    choices: Sequence[Choice], consent: Consent
) -> list[tuple[Choice, NDArray[np.bool_]]]:
    """Who made which choice, for each choice of a mix that somebody made, in the mix's order."""
    groups: list[tuple[Choice, NDArray[np.bool_]]] = []
    left = np.ones(len(consent), dtype=bool)
    for choice in choices:
        mask = left & consent.chose(choice)
        if mask.any():
            groups.append((choice, mask))
            left &= ~mask
    return groups
