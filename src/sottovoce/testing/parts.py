"""What every baseline, metric and importer promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.baselines.base import BASELINES, Baseline
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.data.importers import IMPORTERS, Archive, Importer, detect, import_path
from sottovoce.errors import SottovoceError
from sottovoce.evaluation.metrics import METRICS, Metric, Ranked, UserMetric, every_metric, hits
from sottovoce.evaluation.protocol import Protocol, evaluate_lists
from sottovoce.rng import Streams
from sottovoce.testing.worlds import (
    ContractBroken,
    random_world,
    require,
)


class BaselineContract(ABC):
    """What every baseline promises. Subclass it and say which one, with settings that are quick."""

    @abstractmethod
    def baseline(self) -> Baseline: ...

    def train(self) -> Interactions:
        """40 users with 25 items, times and ratings; user 0 has none, item 24 nobody."""
        table = random_world(40, 25, 200, seed=8)
        kept = table.select(table.users > 0)
        rng = np.random.default_rng(8)
        return Interactions.from_pairs(
            kept.users,
            kept.items,
            n_users=40,
            n_items=25,
            timestamps=rng.integers(0, 1000, kept.n_interactions),
            ratings=rng.integers(1, 6, kept.n_interactions).astype(np.float32),
        )

    def test_is_registered(self) -> None:
        BASELINES.require(self.baseline())

    def test_scores_every_item_for_every_user(self) -> None:
        train = self.train()
        scorer, scores = self._fit(train)
        require(scorer.n_items == train.n_items, "the scorer ranks another number of items")
        require(scores.shape == (train.n_users, train.n_items), "scores have another shape")
        require(scores.dtype == np.float32, f"scores are {scores.dtype}, not float32")
        require(bool(np.isfinite(scores).all()), "scores are not finite")
        nobody = scorer.scores(np.zeros(0, dtype=np.int64))
        require(nobody.shape == (0, train.n_items), "no users give scores of another shape")

    def test_the_same_stream_gives_the_same_scores(self) -> None:
        train = self.train()
        require(np.array_equal(self._fit(train)[1], self._fit(train)[1]), "scores differ")

    def test_a_row_does_not_depend_on_the_batch(self) -> None:
        scorer, scores = self._fit(self.train())
        mixed = np.array([39, 7, 0, 7, 12])
        # The last bits of a matrix product may depend on its shape.
        close = np.allclose(scorer.scores(mixed), scores[mixed], rtol=1e-5, atol=1e-5)
        require(close, "a user's scores depend on who else is asked for")

    def test_masking_an_answer_does_not_spoil_the_next(self) -> None:
        scorer, before = self._fit(self.train())
        everyone = np.arange(len(before))
        scorer.scores(everyone)[:] = -np.inf
        require(np.array_equal(scorer.scores(everyone), before), "answers share their memory")

    def test_leaves_the_training_data_alone(self) -> None:
        train, same = self.train(), self.train()
        self._fit(train)
        for name in ("indptr", "items", "ratings", "timestamps"):
            kept = np.array_equal(getattr(train, name), getattr(same, name))
            require(kept, f"fitting changes {name} of the training data")

    def test_progress_rises_to_the_end(self) -> None:
        seen: list[tuple[int, int]] = []
        rng = Streams.from_seed(11)
        self.baseline().fit(self.train(), rng, lambda done, total: seen.append((done, total)))
        done = [step for step, _ in seen]
        require(done == sorted(set(done)), "progress does not rise")
        require(not seen or seen[-1][0] == seen[-1][1], "progress ends before its end")

    def test_settings_cannot_change(self) -> None:
        baseline = self.baseline()
        for name in getattr(baseline, "__dataclass_fields__", ()):
            try:
                setattr(baseline, name, getattr(baseline, name))
            except (AttributeError, TypeError):
                continue
            raise ContractBroken(f"{name} can be changed; use @dataclass(frozen=True)")

    def _fit(self, train: Interactions) -> tuple[Scorer, NDArray[np.float32]]:
        scorer = self.baseline().fit(train, Streams.from_seed(11))
        return scorer, scorer.scores(np.arange(train.n_users, dtype=np.int64)).copy()


class MetricContract(ABC):
    """What every metric promises. Subclass it and say which one."""

    @abstractmethod
    def metric(self) -> Metric: ...

    def test_is_registered(self) -> None:
        METRICS.require(self.metric())

    def test_results_can_tell_it_from_others(self) -> None:
        every_metric()

    def test_one_value_per_user_within_bounds(self) -> None:
        ranked = self._ranked()
        values = self._values(ranked)
        if values is None:
            return
        low, high = self._bounds()
        require(bool((values >= low - 1e-9).all()), f"values lie below {low:g}")
        require(bool((values <= high + 1e-9).all()), f"values lie above {high:g}")

    def test_a_value_does_not_depend_on_other_users(self) -> None:
        ranked = self._ranked()
        values = self._values(ranked)
        if values is None:
            return
        for row in (0, len(values) // 2, len(values) - 1):
            alone = self._values(_rows(ranked, np.array([row])))
            same = alone is not None and np.array_equal(alone, values[[row]])
            require(same, "a user's value depends on others")

    def test_a_perfect_list_is_no_worse_than_an_empty_one(self) -> None:
        ranked = self._ranked()
        perfect = self._values(_relisted(ranked, _perfect(ranked)))
        empty = self._values(_relisted(ranked, np.full_like(ranked.lists, -1)))
        if perfect is None or empty is None or self.metric().best is None:
            return
        gap = perfect - empty if self.metric().best == "max" else empty - perfect
        require(bool((gap >= -1e-9).all()), "an empty list is better than a perfect one")

    def test_gains_are_numbers_within_bounds(self) -> None:
        metric, rank = self.metric(), np.arange(1, 101)
        gain = metric.gain(rank) if isinstance(metric, UserMetric) else None
        if gain is None or not isinstance(metric, UserMetric):
            return
        low, high = self._bounds()
        gain = metric.checked(gain, len(rank))
        inside = bool(((gain >= low) & (gain <= high)).all())
        require(inside, "the gain of a test item lies out of bounds")

    def test_leaves_what_it_measures_alone(self) -> None:
        ranked, same = self._ranked(), self._ranked()
        self._values(ranked)
        self.metric().figure({}, ranked.lists, ranked.test.n_items)
        for name in ("lists", "hit", "relevant"):
            kept = np.array_equal(getattr(ranked, name), getattr(same, name))
            require(kept, f"measuring changes {name}")

    def test_a_summary_has_it(self) -> None:
        ranked = self._ranked()
        key = self.metric().key()
        asked = Protocol(5, metrics=(key,))
        whole = evaluate_lists(ranked.lists, ranked.train, ranked.test, asked).summary()
        require(f"{key}@5" in whole, "the summary of full lists lacks it")

    def _values(self, ranked: Ranked) -> NDArray[np.float64] | None:
        """None where it has no values per user."""
        metric = self.metric()
        if not isinstance(metric, UserMetric):
            return None
        return metric.checked(metric.per_user(ranked), len(ranked.users))

    def _bounds(self) -> tuple[float, float]:
        metric = self.metric()
        return metric.within if isinstance(metric, UserMetric) else (-np.inf, np.inf)

    def _ranked(self) -> Ranked:
        """Lists of five for thirty users; some are short, some have no hit."""
        train, test = random_world(30, 20, 100, seed=3), random_world(30, 20, 60, seed=4)
        lists = np.random.default_rng(5).permuted(
            np.tile(np.arange(20, dtype=np.int32), (30, 1)), axis=1
        )[:, :5]
        lists[::7, 3:] = -1
        lists[11] = -1
        users = np.arange(30, dtype=np.int64)
        return Ranked(users, lists, hits(lists, users, test), test.counts, train, test)


class ImporterContract(ABC):
    """What every importer promises. Subclass it, say which one, and write a small download."""

    @abstractmethod
    def importer(self) -> Importer: ...

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Make this folder, with files in it that this importer should know."""

    def test_is_registered(self) -> None:
        IMPORTERS.require(self.importer())

    def test_knows_its_own(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        found = detect(Archive.at(folder))
        require(found == self.importer().name, f"it is taken for {found}")

    def test_knows_no_others(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
        (tmp_path / "readme.md").write_text("nothing to import")
        require(not self.importer().fits(Archive.at(tmp_path), None), "it takes anything")

    def test_reads_the_same_tables_every_time(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        first, second = (import_path(folder, self.importer().name) for _ in range(2))
        require(first.interactions.n_interactions > 0, "it finds no interactions")
        require(first.fingerprint() == second.fingerprint(), "two readings differ")
        require(bool(first.provenance), "it does not say where the data come from")

    def test_refuses_damaged_files_in_one_sentence(self, tmp_path: Path) -> None:
        folder = tmp_path / "download"
        self.write(folder)
        for path in folder.iterdir():
            path.write_bytes(b"\x00\xff not what it was\n" * 3)
        try:
            import_path(folder, self.importer().name)
        except SottovoceError as error:
            require("\n" not in str(error), "the sentence has several lines")
        else:
            raise ContractBroken("it reads noise")


def _rows(ranked: Ranked, at: NDArray[np.int64]) -> Ranked:
    """The same of some users alone."""
    return replace(
        ranked,
        users=ranked.users[at],
        lists=ranked.lists[at],
        hit=ranked.hit[at],
        relevant=ranked.relevant[at],
    )


def _relisted(ranked: Ranked, lists: NDArray[np.int32]) -> Ranked:
    return replace(ranked, lists=lists, hit=hits(lists, ranked.users, ranked.test))


def _perfect(ranked: Ranked) -> NDArray[np.int32]:
    """Every list begins with the user's test items."""
    lists = np.full_like(ranked.lists, -1)
    for row, user in enumerate(ranked.users):
        best = ranked.test.row(int(user))[: lists.shape[1]]
        lists[row, : len(best)] = best
    return lists
