"""What a search may change: settings of an experiment, each with a range or a choice of values.

    algorithm.learning_rate=log:1e-4:1e-1      a number, evenly on a logarithmic scale
    algorithm.scale=0.5:4                      a number, evenly
    algorithm.embedding_size=8,16,32           one of these values
    algorithm.reg_user+reg_positive=log:.001:.3  one number for both settings

A range of a setting that takes whole numbers alone has whole numbers. The same words stand in the
table `[search]` of an experiment file, and in what an algorithm says of itself
(`AlgorithmSettings.searched`).
"""

from __future__ import annotations

import copy
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sottovoce import config
from sottovoce.errors import ConfigError, SottovoceError
from sottovoce.experiment import Experiment

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = float | int | str | bool
Settings = Mapping[str, Value]
"""Values by the dotted names of settings."""

SECTIONS = ("algorithm", "release", "link", "consent", "owners", "defence", "home")
"""Of an experiment, those in which a search may change something: the others say what is judged."""
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Range:
    """The values that one setting may have, or several together."""

    settings: tuple[str, ...]
    """Dotted names, all of which get the same value."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Value, ...] = ()
    """Where they are given, these values and no others."""

    @property
    def name(self) -> str:
        first, *others = self.settings
        head = first.rpartition(".")[0] + "."
        return "+".join([first, *(one.removeprefix(head) for one in others)])

    def __str__(self) -> str:
        if self.choices:
            return ",".join(_written(one) for one in self.choices)
        ends = ":".join(str(int(end) if self.whole else end) for end in (self.low, self.high))
        return f"log:{ends}" if self.log else ends

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values of which each must be one that the setting takes."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def has(self, value: object) -> bool:
        if self.choices:
            return any(value == one and type(value) is type(one) for one in self.choices)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high  # type: ignore[operator]

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)


@dataclass(frozen=True, slots=True)
class Space:
    """All that a search may change."""

    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return "; ".join(f"{one.name}={one}" for one in self.ranges)

    def words(self) -> dict[str, str]:
        return {one.name: str(one) for one in self.ranges}

    def distributions(self) -> dict[str, BaseDistribution]:
        return {one.name: one.distribution() for one in self.ranges}

    def settings(self, found: Mapping[str, Value]) -> dict[str, Value]:
        """By the names of settings, from values by the names of ranges."""
        return {name: found[one.name] for one in self.ranges for name in one.settings}

    def values(self, experiment: Experiment, settings: Settings) -> dict[str, Any]:
        """Return all searched settings by name, as the experiment has them if not given."""
        names = (name for one in self.ranges for name in one.settings)
        return {name: settings.get(name, as_it_is(experiment, name)) for name in names}

    def inside(self, settings: Mapping[str, object]) -> dict[str, Value] | None:
        """By the names of ranges, from values by the names of settings; None where one of them is
        outside of its range, or settings of one range differ."""
        found: dict[str, Value] = {}
        for one in self.ranges:
            values = [settings.get(name) for name in one.settings]
            value: Any = values[0]
            if any(other != value for other in values) or not one.has(value):
                return None
            found[one.name] = value if one.choices or one.whole else float(value)
        return found


def read_space(
    experiment: Experiment, asked: Sequence[str] = (), *, own: Mapping[str, Any] | None = None
) -> Space:
    """The space of a search: what was `asked` for on the command line; else `own`, the experiment
    file's `[search]`; else what the algorithm says of itself. Raises where a range does not fit its
    setting."""
    table = experiment.table.get("search", {}) if own is None else own
    given: list[tuple[str, object]] = []
    if asked:
        for text in asked:
            name, sign, words = text.partition("=")
            if not sign:
                raise ConfigError(f"--search wants SETTING=RANGE, not {text!r}")
            given.append((name.strip(), words.strip()))
    elif table:
        given = list(_flat(table))
    else:
        given = [(f"algorithm.{k}", v) for k, v in experiment.algorithm.searched().items()]
        if not given:
            raise ConfigError(
                f"the algorithm {experiment.algorithm.name} says no ranges of its own; name some, "
                "such as --search algorithm.learning_rate=log:1e-4:1e-1"
            )
    ranges = [read_range(experiment, name, words) for name, words in given]
    seen: set[str] = set()
    for name in (setting for one in ranges for setting in one.settings):
        if name in seen:
            raise ConfigError(f"{name} is searched twice; name it once")
        seen.add(name)
    return Space(tuple(ranges))


def read_range(experiment: Experiment, name: str, words: object) -> Range:
    """One range, checked against the experiment in which it is searched."""
    settings = _settings(name)
    whole = not all(_takes_fractions(experiment, one) for one in settings)
    found = parse_range(settings, words, whole=whole)
    for value in found.ends:
        check_setting(experiment, {one: value for one in settings}, name)
    return found


def parse_range(settings: tuple[str, ...], words: object, *, whole: bool = False) -> Range:
    """A range from its words, or from a list of values."""
    where = f"the range of {settings[0]}"
    if isinstance(words, list | tuple):
        return _chosen(settings, list(words), where)
    if not isinstance(words, str) or not words.strip():
        raise ConfigError(
            f"{where} must be LOW:HIGH, log:LOW:HIGH or a list of values, not {words!r}"
        )
    log, text = words.startswith("log:"), words.removeprefix("log:")
    if ":" not in text:
        if log:
            raise ConfigError(f"{where} must be log:LOW:HIGH, not {words!r}")
        return _chosen(settings, [_read(one) for one in text.split(",")], where)
    ends = [_number(one) for one in text.split(":")]
    if len(ends) != 2 or None in ends:
        raise ConfigError(f"{where} has two numbers with a colon between them, not {words!r}")
    low, high = typing.cast("list[float]", ends)
    if not low < high:
        raise ConfigError(f"{where} is empty: {low:g} is not below {high:g}")
    if log and low <= 0.0:
        raise ConfigError(f"{where} is logarithmic and must begin above 0, not at {low:g}")
    if whole and (low != int(low) or high != int(high)):
        raise ConfigError(f"{where} takes whole numbers alone, not {words!r}")
    if whole and max(abs(low), abs(high)) > _LARGEST:
        raise ConfigError(f"{where} goes beyond {_LARGEST:,}")
    return Range(settings, low, high, log, whole)


def changed(table: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The table of an experiment with these settings."""
    found = copy.deepcopy(dict(table))
    for name, value in settings.items():
        *sections, last = name.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name} cannot be set: {section} is not a table")
        inner[last] = value
    return found


def check_setting(experiment: Experiment, settings: Settings, name: str) -> None:
    """Raises where the experiment cannot have these settings, or has others all the same."""
    try:
        found = Experiment.from_table(changed(experiment.table, settings))
    except SottovoceError as error:
        raise ConfigError(f"{name} cannot be searched: {error}") from None
    for path, value in settings.items():
        section, _, last = path.partition(".")
        if section == "algorithm" and (why := found.algorithm.idle().get(last)):
            raise ConfigError(f"{path} cannot be searched: {why}")
        there = as_it_is(found, path)
        if there is not None and there != value:
            raise ConfigError(
                f"{path} cannot be searched: it is {_written(there)} here, whatever it is set to"
            )


def as_it_is(experiment: Experiment, path: str) -> Any:
    """The value of a setting, also where the file does not name it; None where it has none."""
    found: Any = experiment
    for name in path.split("."):
        if not hasattr(found, name):
            return None
        found = getattr(found, name)
    return found


def _settings(name: str) -> tuple[str, ...]:
    """The dotted names in A.B+C, where C stands for A.C."""
    first, *others = (one.strip() for one in name.split("+"))
    head, dot, _ = first.rpartition(".")
    found = [first, *(one if "." in one else f"{head}{dot}{one}" for one in others)]
    for one in found:
        section, dot, last = one.partition(".")
        if not dot or not section or not last:
            raise ConfigError(
                f"{one or name!r} is no setting of an experiment; name it with its section, such "
                "as algorithm.learning_rate"
            )
        if section not in SECTIONS:
            raise ConfigError(
                f"{one} cannot be searched: trials must be judged alike, so that a search changes "
                f"[{'], ['.join(SECTIONS)}] alone"
            )
    return tuple(found)


def _takes_fractions(experiment: Experiment, path: str) -> bool:
    """Whether a setting takes other than whole numbers; True where nobody says."""
    section, _, name = path.partition(".")
    settings = getattr(experiment, section, None)
    if settings is None or not is_dataclass(settings):
        return True
    if name not in {one.name for one in fields(settings)}:
        return True
    hint = typing.get_type_hints(type(settings))[name]
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    return float in kinds or int not in kinds


def _flat(table: Mapping[str, Any], head: str = "") -> Iterable[tuple[str, object]]:
    """Dotted names and words of a nested table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{key}.")
        else:
            yield f"{head}{key}", value


def _chosen(settings: tuple[str, ...], values: list[Any], where: str) -> Range:
    if any(not isinstance(one, float | int | str | bool) or one == "" for one in values):
        raise ConfigError(f"{where} has values that are no number, word, true or false")
    if any(isinstance(one, float) and not math.isfinite(one) for one in values):
        raise ConfigError(f"{where} has a value that is no finite number")
    if len(set(values)) < max(2, len(values)):  # 1, 1.0 and true are no three, either
        raise ConfigError(f"{where} needs two different values or more, not {values}")
    return Range(settings, choices=tuple(values))


def _read(text: str) -> Value:
    """A value as TOML has it, or a word."""
    table: dict[str, Any] = {}
    config.assign(table, f"value={text.strip()}")
    value: Value = table["value"]
    number = _number(text)
    return number if isinstance(value, str) and number is not None else value  # .5 is no TOML


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _written(value: object) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)
