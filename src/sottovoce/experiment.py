"""An experiment file: which data, which algorithm, which release, whose consent, how evaluated.

`Experiment` is a TOML file read into frozen parts; unknown keys raise.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.baselines import BASELINES, Baseline
from sottovoce.core.consent import Choice, Consent, ConsentPolicy
from sottovoce.core.installed import shipped_folder
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import LINKS, Link
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import load
from sottovoce.data.splitting import (
    Split,
    keep_active,
    leave_one_out,
    published_split,
    published_validation,
    random_holdout,
    temporal_holdout,
    validation_split,
)
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.engines.silo import Sharing, owners_of
from sottovoce.errors import ConfigError, DataError, UsageError
from sottovoce.evaluation.metrics import metric_named, sampled_too
from sottovoce.evaluation.protocol import Full, Given, Protocol, Sampled, negatives_digest
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import RoundRules
from sottovoce.privacy.base import RELEASES, Release
from sottovoce.rng import SecretStreams, Streams
from sottovoce.wire.terms import check_fitting, named

# --- files that come with the package -------------------------------------------------------------


def find_experiment(name: str) -> Path:
    """A path to a TOML file, or the name of an installed one ("demo", "papers/fpl"). A
    bare "fpl" is the system as printed in its paper, "papers/fpl"."""
    given = Path(name)
    if given.is_file():
        return given
    if given.is_dir():
        raise UsageError(f"{name} is a folder, not an experiment file")
    known = shipped_experiments()
    asked = given.as_posix().removesuffix(".toml")
    matches = [path for path in known if asked in (path, path.rsplit("/", 1)[-1])]
    if f"papers/{asked}" in matches:
        return known[f"papers/{asked}"]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise UsageError(f"{name} could be {' or '.join(sorted(matches))}; say which")
    raise UsageError(
        f"there is no experiment file {name}; those that come with the package are "
        f"{', '.join(known)}"
    )


def shipped_experiments() -> dict[str, Path]:
    """Names of the experiment files of this installation, without suffix, and their paths."""
    root = shipped_folder("experiments")
    found = sorted(p for p in root.rglob("*.toml") if p.parent.name != "reproduce")
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in found}


def load_benchmark(name: str) -> Any:
    """The benchmark `name` as a module; dashes in the name are underscores in the file's name."""
    root = shipped_folder("benchmarks")
    known = {
        path.stem.replace("_", "-"): path
        for path in sorted(root.glob("*.py"))
        if not path.name.startswith("_")
    }
    path = known.get(name.replace("_", "-"))
    if path is None:
        listed = ", ".join(known) or "none in this installation"
        raise UsageError(f"there is no benchmark {name}; there are: {listed}")
    spec = importlib.util.spec_from_file_location(f"sottovoce_benchmark_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the benchmark {name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, "run"):
        raise UsageError(f"the benchmark {name} has no function run")
    return module


Draws = Literal["fast", "secret"]
MOST_SEEDS = 1000
"""Of one run: more are a slip of the pen."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    source: str = "town"
    """A prepared data set by name, or "town", the generated one."""
    min_user_items: int = 0
    """Keep users with at least so many items."""
    min_item_users: int = 0
    """Keep items with at least so many users."""
    min_rating: float = 0.0
    """Only interactions rated so high count as positive; 0 takes all."""
    split: Literal["temporal", "random", "leave-one-out", "published"] = "temporal"
    """What is held out: each user's latest share, a random share, one item, or as published."""
    test_fraction: float = 0.2
    """Share held out by "temporal" and "random", and for validation under "published"."""
    hold_out: Literal["latest", "random"] = "latest"
    """Which item "leave-one-out" takes."""
    split_seed: int | None = None
    """By which random items are drawn; the experiment's own seed where it is not given."""
    part: Literal["test", "validation"] = "test"
    """Evaluate on the test part, or on a validation part split from training in the same way."""

    def __post_init__(self) -> None:
        for name in ("min_user_items", "min_item_users"):
            if getattr(self, name) < 0:
                raise ConfigError(f"data.{name} must not be negative, not {getattr(self, name)}")
        if not math.isfinite(self.min_rating):
            raise ConfigError(f"data.min_rating must be finite, not {self.min_rating}")
        if not 0.0 < self.test_fraction < 1.0:
            raise ConfigError(
                f"data.test_fraction must lie between 0 and 1, not {self.test_fraction:g}"
            )


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    k: int | tuple[int, ...] = 10
    """Length of the lists, or several; the first one stands for the others in drawings."""
    metrics: tuple[str, ...] = ()
    """Columns of tables of results, such as ["NDCG", "HR", "MAP", "F1", "recall", "MRR"], the
    first of which stands for the others; the usual ones where nothing is said."""
    candidates: Literal["full"] | int = "full"
    """Rank the whole catalogue, or the positive among so many sampled negatives."""
    every_epochs: int = 0
    """Evaluate after so many epochs, too; 0 only at the end."""
    relevant: Literal["liked", "all"] = "liked"
    """What of the held-out part a list should find. Only drift tells likes from dislikes (by
    algorithm.positive_from); with "all" its lists are judged by everything that was held out, as
    those of all other systems are, and can be put beside them. Its baselines then learn from all,
    too."""

    def __post_init__(self) -> None:
        if self.relevant not in ("liked", "all"):
            raise ConfigError(f'evaluation.relevant is "liked" or "all", not {self.relevant!r}')
        if self.every_epochs < 0 or not self.cutoffs or min(self.cutoffs) < 1:
            raise ConfigError("evaluation.k must be at least 1 and every_epochs not negative")
        if len(set(self.cutoffs)) < len(self.cutoffs):
            raise ConfigError("evaluation.k has a cut-off twice")
        kinds = [metric_named(word) for word in self.metrics]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ConfigError(f"evaluation.metrics has {kind.key()} twice")
            if self.candidates != "full" and not sampled_too(kind):
                raise ConfigError(
                    f"evaluation.metrics has {kind.key()}, which needs whole lists; leave it out, "
                    'or set evaluation.candidates = "full"'
                )

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return self.k if isinstance(self.k, tuple) else (self.k,)

    def protocol(self, split: Split, seed: int, shard: Shard = WHOLE) -> Protocol:
        """Of a split of these users."""
        candidates: Full | Given | Sampled = Full()
        if self.candidates != "full":
            candidates = Sampled(self.candidates, seed, shard.first)
            if split.negatives is not None and split.negatives.shape[1] == self.candidates:
                table = np.concatenate(shard.ranks.gather(split.negatives))
                candidates = Given(split.negatives, digest=negatives_digest(table))
        k, *also = self.cutoffs
        asked = tuple(metric_named(word).key() for word in self.metrics)
        return Protocol(k, candidates, tuple(also), asked)


@dataclass(frozen=True, slots=True)
class HomeConfig:
    """What a device uses at home beside the published model. Nothing leaves for it."""

    knowledge: bool = False
    """Whether what is publicly known of the items (categories, a city) is a prior of what is
    recommended, of the system and of its baselines alike."""


@dataclass(frozen=True, slots=True)
class OwnersConfig:
    by: Sharing = "categories"
    """An owner for every category of the items, or one for all items."""


class DeviceParts(NamedTuple):
    """What an experiment says of a system in which devices learn and reports leave them."""

    algorithm: AlgorithmSettings
    release: Release
    link: Link


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file, read and checked; unknown keys raise.

    `from_file` reads one, with settings on top; `from_table` takes the same as dictionaries.

    Example:
        ```python
        from sottovoce.experiment import find_experiment

        experiment = sv.Experiment.from_file(find_experiment("demo"), ["town.residents=4000"])
        fitted = sv.fit(experiment, parts)
        ```
    """

    name: str
    seed: int
    """The first one, where there are several."""
    seeds: tuple[int, ...]
    """Several, each of which is a run (`runs.seeds`); else empty."""
    draws: Draws
    """From which generator devices and server draw what others can see: the fast one, or the one
    that real ones use."""
    data: DataConfig
    algorithm: AlgorithmSettings
    release: Release | None
    """None where interactions go to data owners; so is the link."""
    link: Link | None
    owners: OwnersConfig
    consent: ConsentPolicy
    evaluation: EvaluationConfig
    baselines: tuple[tuple[str, Baseline], ...]
    town: TownConfig
    service: RoundRules
    defence: Defence
    home: HomeConfig
    table: Mapping[str, Any] = field(repr=False)
    """The file as read, for the manifest."""

    @classmethod
    def from_file(cls, path: Path, settings: Sequence[str] = ()) -> Experiment:
        """Read a TOML file, with `a.b=c` settings applied on top.

        Args:
            path: The file.
            settings: Values in the place of the file's, such as `["algorithm.rounds=50"]`.

        Returns:
            The experiment.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        for setting in settings:
            config.assign(table, setting)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")
        table.setdefault("name", plain or "experiment")
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Experiment:
        """Take the sections of a file as dictionaries.

        Args:
            table: By section, as `tomllib` reads a file.

        Returns:
            The experiment.
        """
        known = {
            "name", "seed", "seeds", "draws", "data", "town", "algorithm", "release", "link",
            "consent", "evaluation", "baselines", "service", "owners", "defence", "home",
            "search",
        }  # fmt: skip
        unknown = sorted(set(table) - known)
        if unknown:
            raise ConfigError(
                f"the experiment has unknown keys {unknown}; known are {sorted(known)}"
            )
        name, seeds = table.get("name", "experiment"), _seeds(table)
        seed = seeds[0] if seeds else table.get("seed", 0)
        if not isinstance(name, str) or isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError("name must be text and seed a whole number")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):  # the run's folder is called so
            raise ConfigError(
                f"{name!r} cannot name an experiment; use letters, digits, dots, dashes and "
                "underscores"
            )
        _section(table, "search")  # which `runs.space` reads
        draws: Draws = table.get("draws", "fast")
        if draws not in get_args(Draws):
            raise ConfigError(f'draws must be "fast" or "secret", not {draws!r}')
        algorithm = named(_section(table, "algorithm"), ALGORITHMS, "fpl", "algorithm")
        consent = ConsentPolicy.from_table(_section(table, "consent"))
        if consent.changes and "hidden_attributes" not in algorithm.reads:
            raise ConfigError(
                f"consent.changes hides attributes, for which {algorithm.system} has no filters; "
                'leave it out, or set algorithm.name = "uc"'
            )
        release: Release | None = None
        link: Link | None = None
        if algorithm.family == "owners":
            _check_owned(table, consent.choices, algorithm.reads)
            if draws != "fast":
                raise ConfigError("users of data owners draw nothing; leave draws out")
        else:
            release = named(_section(table, "release"), RELEASES, algorithm.releases[0], "release")
            link = named(_section(table, "link"), LINKS, algorithm.links[0], "link")
            check_fitting(algorithm, release, link)
            if "owners" in table:
                raise ConfigError('[owners] is for algorithm.name = "drift", which has some')
        return cls(
            name=name,
            seed=seed,
            seeds=seeds,
            draws=draws,
            data=config.build(DataConfig, _section(table, "data"), "data"),
            algorithm=algorithm,
            release=release,
            link=link,
            owners=config.build(OwnersConfig, _section(table, "owners"), "owners"),
            consent=consent,
            evaluation=config.build(EvaluationConfig, _section(table, "evaluation"), "evaluation"),
            baselines=tuple(_baselines(_section(table, "baselines"))),
            town=config.build(TownConfig, _section(table, "town"), "town"),
            service=config.build(RoundRules, _section(table, "service"), "service"),
            defence=_defence(table, link, algorithm),
            home=config.build(HomeConfig, _section(table, "home"), "home"),
            table=json.loads(json.dumps(table, default=str)),
        )

    def with_seed(self, seed: int) -> Experiment:
        """The same with one seed, as a file would say it."""
        return self.from_table(
            {k: v for k, v in self.table.items() if k != "seeds"} | {"seed": seed}
        )

    def with_seeds(self, seeds: Sequence[int]) -> Experiment:
        """The same with these seeds, as a file would say it."""
        table = {k: v for k, v in self.table.items() if k != "seed"}
        return self.from_table(table | {"seeds": list(seeds)})

    @property
    def system(self) -> str:
        """The name of the federated system in tables."""
        return self.algorithm.system

    @property
    def silo(self) -> DRIFTConfig | None:
        """The settings of a system of data owners, where it is one."""
        owned = self.algorithm.family == "owners"
        return cast(DRIFTConfig, self.algorithm) if owned else None

    def cross_device(self) -> DeviceParts:
        """The settings of a system of devices; raises where it is another."""
        if self.release is None or self.link is None:
            others = sorted(n for n, kind in ALGORITHMS.items() if kind.family == "devices")
            raise ConfigError(
                f"{self.name} is an experiment with data owners ({self.algorithm.name}), which "
                f"have no server for devices; name an algorithm of {others}"
            )
        return DeviceParts(self.algorithm, self.release, self.link)

    def on(
        self, dataset: Dataset, consent: Consent
    ) -> tuple[AlgorithmSettings, NDArray[np.int64] | None]:
        """The settings of a system of devices on these data, and what each device knows of its
        owner, where that matters."""
        algorithm, release, _ = self.cross_device()
        n_items = dataset.interactions.n_items
        places = self.home.knowledge and bool(dataset.item_attributes)
        known, ranks = dataset.user_attributes, dataset.shard.ranks
        # A stranger's algorithm may know nothing of ranks, and need not where there is one.
        more = {"ranks": ranks} if ranks.several else {}
        settings, labels = algorithm.on_data(known, consent, n_items, release, places, **more)
        table = dataset.interactions
        users, positives = ranks.total(table.n_users, table.n_interactions)
        return settings.by_rule(users, positives, n_items), labels

    def prepared(self, dataset: Dataset | None = None) -> PreparedExperiment:
        """With these data, or those that it names, split, and the consent of their users."""
        data = dataset or self.dataset()
        return PreparedExperiment(self, data, self.split(data), self.records(data))

    def streams(self) -> Streams:
        """What everything is drawn from, by the seed."""
        return Streams.from_seed(self.seed)

    def party_streams(self) -> Streams:
        """What devices and server draw from."""
        kind = SecretStreams if self.draws == "secret" else Streams
        return kind.from_seed(self.seed).child("federation")

    def records(self, dataset: Dataset) -> Consent:
        """The consent of every user of the data."""
        users = dataset.shard.first + np.arange(dataset.interactions.n_users, dtype=np.int64)
        owners = () if self.silo is None else owners_of(dataset, self.owners.by)[0]
        return self.consent.draw(users, self.streams(), tuple(dataset.user_attributes), owners)

    def later(self, consent: Consent) -> list[tuple[int, Consent]]:
        """After which rounds users change their minds, and the records from then on; `consent` are
        those of the beginning."""
        return self.consent.later(consent, self.streams())

    def at_end(self, consent: Consent) -> Consent:
        """The records at the end of a run that begins with these."""
        changes = self.later(consent)
        return changes[-1][1] if changes else consent

    def items_named(self, dataset: Dataset, train: Interactions) -> dict[str, NDArray[np.int32]]:
        """The items, by their numbers in training, that each name in `never_send` stands for: an
        item's own name, its title, or a category of items."""
        asked = {name for choice in self.consent.choices for name in choice.never_send}
        if not asked:
            return {}
        known, kept = train.items_vocabulary(), dataset.interactions.items_vocabulary()
        found: dict[str, list[int]] = {name: [] for name in asked}
        seen = set()
        for number in range(len(kept)):
            name = kept.name(number)
            categories = dataset.item_categories[number] if dataset.item_categories else ()
            for one in asked & {name, dataset.title(number), *categories}:
                seen.add(one)
                if name in known:
                    found[one].append(known.index(name))
        unknown = sorted(asked - seen)
        if unknown:
            raise ConfigError(
                f"consent.never_send names {unknown[0]!r}, which is neither an item nor a category "
                f"of {dataset.name}"
            )
        return {name: np.array(sorted(items), dtype=np.int32) for name, items in found.items()}

    def naming(self) -> dict[str, dict[str, Any]]:
        """The sections of a file that say which data these are, without what is as usual."""
        wanted = ("source", "min_user_items", "min_item_users", "min_rating")
        usual = DataConfig()
        said = {name: getattr(self.data, name) for name in wanted}
        data = {k: v for k, v in said.items() if k == "source" or v != getattr(usual, k)}
        town = self.table.get("town", {}) if self.data.source == "town" else {}
        return {"data": data, **({"town": dict(town)} if town else {})}

    def names(self, dataset: Dataset) -> bool:
        """Whether it would load these data by itself."""
        return dataset.named_by == self.naming()

    def dataset(self, ranks: Ranks = ALONE) -> Dataset:
        """The data, loaded and filtered; of several ranks, the share of one. Where filters leave
        fewer users, ranks take other shares, of as many each."""
        bare = self._loaded(ranks)
        found = self.filtered(bare)
        if found is not bare and ranks.several:
            everybody, left = ranks.total(bare.interactions.n_users, found.interactions.n_users)
            if left < everybody:
                mine = bare.evened(found)
                del bare, found
                found = self.filtered(self._loaded(ranks, mine))
        found = replace(found, named_by=self.naming())
        return found.known() if ranks.together else found

    def _loaded(self, ranks: Ranks, users: range | None = None) -> Dataset:
        if self.data.source == "town":
            return generate_town(self.town, ranks, users)
        return load(self.data.source, ranks=ranks, users=users)

    def uncut(self) -> Dataset:
        """The data as they are without the cut of items that few users have."""
        return self.filtered(self._loaded(ALONE), items=False)

    def filtered(self, found: Dataset, items: bool = True) -> Dataset:
        """These data without what the experiment leaves out, or but for rare items."""
        data = self.data
        if data.min_rating:
            if found.interactions.ratings is None:
                raise ConfigError(
                    f"data.min_rating is set, but {found.name} has no ratings; leave it out, or "
                    "import them (--column rating=NAME)"
                )
            kept = found.interactions.select(found.interactions.ratings >= data.min_rating)
            found = found.restrict(kept)
        least = data.min_item_users if items else 0
        if data.min_user_items or least:
            found = keep_active(found, data.min_user_items, least)
        if found.shard.ranks.total(found.interactions.n_interactions) == (0,):
            raise DataError(
                f"no interaction of {found.name} is left after the filters; lower data.min_rating, "
                "data.min_user_items or data.min_item_users"
            )
        return found

    def split(self, dataset: Dataset) -> Split:
        """The parts of these data that the settings of [data] ask for."""
        data = self.data
        seed = self.seed if data.split_seed is None else data.split_seed
        rng = Streams.from_seed(seed).child("split")
        table, shard = dataset.interactions, dataset.shard
        if data.split == "temporal" and table.timestamps is None and dataset.published is not None:
            raise DataError(
                f"{dataset.name} has no time stamps but a ready split; set data.split to "
                '"published" (or to "random")'
            )
        if data.split == "published":
            split = published_split(dataset)
        elif data.split == "leave-one-out":
            split = leave_one_out(table, data.hold_out, rng, shard)
        elif data.split == "random":
            split = random_holdout(table, data.test_fraction, rng, shard)
        else:
            split = temporal_holdout(table, data.test_fraction, shard)
        if data.part == "test":
            return split
        if data.split == "published":
            return published_validation(dataset, data.test_fraction, data.hold_out, rng)
        one = data.split == "leave-one-out"
        which: Literal["latest", "random"] = "random" if data.split == "random" else data.hold_out
        return validation_split(split, None if one else data.test_fraction, which, rng, shard)

    def judged(self, split: Split, consent: Consent) -> Split:
        """The split with those test items alone that a recommender should find. Where there are
        ratings to say so, the ones a user liked; and data owners can serve nobody else than those
        who take part."""
        if self.silo is None:
            return split
        test = split.test
        return replace(split, test=test.select(self.liked(test) & consent.takes_part[test.users]))

    def liked(self, table: Interactions) -> NDArray[np.bool_]:
        """Which entries count as positive; all, where ratings do not matter."""
        if self.silo is None or table.ratings is None or self.evaluation.relevant == "all":
            return np.ones(table.n_interactions, dtype=bool)
        rated: NDArray[np.bool_] = table.ratings >= self.silo.positive_from
        return rated


@dataclass(frozen=True, slots=True, repr=False)
class PreparedExperiment:
    """An experiment with its data, before anything is run."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    """What is learnt from, and what is to be found."""
    consent: Consent


def _check_owned(table: Mapping[str, Any], choices: Sequence[Choice], reads: Sequence[str]) -> None:
    """Raises where a file wants of data owners what they do not do."""
    for name in ("release", "link", "service", "defence"):
        if name in table:
            raise ConfigError(
                f"[{name}] is not for drift, whose users send every interaction, sealed, to the "
                "owners of its item; leave it out"
            )
    if "home" in table:
        raise ConfigError("[home] is for devices, which recommend there; leave it out for drift")
    for choice in choices:
        asked = choice.asked() if choice.takes_part else []
        kept = [name for name in asked if name not in reads]
        if kept:
            raise ConfigError(
                f"consent.{kept[0]} is set, but in drift the owners of an item read everything; a "
                "user can refuse owners (refused_owners), keep things back (never_send) or take no "
                "part (takes_part = false)"
            )


def _defence(table: Mapping[str, Any], link: Link | None, algorithm: AlgorithmSettings) -> Defence:
    """Raises where a cap looks at what the server does not see."""
    found: Defence = config.build(Defence, _section(table, "defence"), "defence")
    if found.looks_at_devices and not (link is not None and link.shows_devices):
        raise ConfigError(
            "defence.burst looks at single devices' updates, which this link hides from the "
            "server; leave it out (over a secure sum there is max_sum_norm)"
        )
    if found.max_sum_norm and not (link is not None and link.shows_sums):
        raise ConfigError("defence.max_sum_norm is for sums of updates, which this system has not")
    if algorithm.counts_senders and (found.burst or found.max_sum_norm):
        raise ConfigError(
            "defence.burst and max_sum_norm would cut what counts senders in UC-FedRec's rows; use "
            "release.clip"
        )
    return found


def _seeds(table: Mapping[str, Any]) -> tuple[int, ...]:
    found = table.get("seeds")
    if found is None:
        return ()
    whole = isinstance(found, list) and all(type(one) is int and 0 <= one < 2**63 for one in found)
    if not whole or not 0 < len(set(found)) == len(found) <= MOST_SEEDS:
        raise ConfigError(
            f"seeds must be a list of 1 to {MOST_SEEDS:,} different whole numbers, like [1, 2, 3]"
        )
    if "seed" in table:
        raise ConfigError("the experiment has seed and seeds; leave one of them out")
    return tuple(found)


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"[{name}] must be a table")
    return section


def _baselines(table: Mapping[str, Any]) -> list[tuple[str, Baseline]]:
    """Each key is a label; its table may name the kind where the label is not one itself."""
    found: list[tuple[str, Baseline]] = []
    for label, fields in table.items():
        if not isinstance(fields, dict):
            raise ConfigError(f"baselines.{label} must be a table (it may be empty)")
        found.append((label, named(fields, BASELINES, label, f"baselines.{label}")))
    return found
