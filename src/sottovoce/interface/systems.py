"""Which systems can be fitted, and their settings. What is not set is as in a shipped preset."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sottovoce.errors import UsageError
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.interface.data import SplitDataset
from sottovoce.runs.standing import PRINTED, as_printed

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, repr=False)
class System:
    """A federated system with its settings, ready to be fitted.

    `Gram`, `FPL`, `FCF`, `FMFLDP`, `DRIFT` and `UCFedRec` make one. What is not set is as in the
    shipped experiment file that `preset` names.

    Example:
        ```python
        system = sv.Gram(epsilon=4.0)
        print(system)  # which preset, what was changed, and whether it is as printed
        fitted = sv.fit(system, parts)
        ```
    """

    preset: str
    """The experiment file that it begins with, by name or path."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings in the place of the file's, by dotted names such as `algorithm.rounds`."""

    def __repr__(self) -> str:
        said = self.experiment()
        changed = ", ".join(f"{name} = {value!r}" for name, value in self.changes.items())
        printed = as_printed(said.algorithm, said.release, said.link)
        return (
            f"<{said.system} as in {self.preset}"
            f"{f', with {changed}' if changed else ''}{f'; {PRINTED}' if printed else ''}>"
        )

    def experiment(self, parts: SplitDataset | None = None) -> Experiment:
        """The experiment that says the same, on these data.

        Args:
            parts: The data, split; without them the experiment names those of the preset.

        Returns:
            An experiment without baselines. What the preset asks of a crowd is lowered where there
            are fewer people than that.
        """
        table = copy.deepcopy(dict(Experiment.from_file(find_experiment(self.preset)).table))
        table.pop("baselines", None)
        for name, value in self.changes.items():
            _put(table, name, value)
        if parts is not None:
            table = on_data(table, parts, set(self.changes))
        return Experiment.from_table(table)


def on_data(table: dict[str, Any], parts: SplitDataset, asked: set[str]) -> dict[str, Any]:
    """An experiment's table with these data in the place of its own. Numbers of people that the
    table asks for, and nobody has `asked` for, become as many as there are."""
    table = {name: value for name, value in table.items() if name not in ("data", "town", "seeds")}
    table |= parts.sections()
    users = parts.train.n_users
    link, release = table.get("link", {}), table.get("release", {})
    if link.get("min_devices", 0) > users and "link.min_devices" not in asked:
        table["link"] = {**link, "min_devices": max(1, users // 2)}
    if "release.tiers" not in asked and any(
        tier.get("min_devices", 0) > users for tier in release.get("tiers", ())
    ):
        tiers = [
            {**tier, "min_devices": min(tier["min_devices"], max(1, users // 2))}
            for tier in release["tiers"]
        ]
        table["release"] = {**release, "tiers": tiers}
    owned = table.get("algorithm", {}).get("name") == "drift"
    if owned and parts.dataset.item_categories is None and "owners.by" not in asked:
        table["owners"] = {"by": "one"}
    return table


def lowered(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What `on_data` has changed beside the data, in sentences."""
    found = []
    asked = before.get("link", {}).get("min_devices"), after.get("link", {}).get("min_devices")
    if asked[0] != asked[1]:
        found.append(f"sums are opened over {asked[1]:,} devices or more, not {asked[0]:,}")
    if before.get("release", {}).get("tiers") != after.get("release", {}).get("tiers"):
        least = ", ".join(str(tier["min_devices"]) for tier in after["release"]["tiers"])
        found.append(f"batches of reports have at least {least} devices, fewer than in the preset")
    least = before.get("data", {}).get("min_item_users", 0)
    if least > after.get("data", {}).get("min_item_users", 0):
        found.append(
            f"items that fewer than {least:,} users have are not left out, as the preset has it; "
            f"load(min_item_users={least}) does that"
        )
    if before.get("owners") != after.get("owners"):
        found.append("one data owner has all items, since their categories are not known")
    return found


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"{name} names no setting: {part} is no section")
    table[last] = value


def _spoken(make: Callable[P, R]) -> Callable[P, R]:
    """Settings that there are not raise a sentence that lists those there are."""
    known = list(inspect.signature(make).parameters)

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        if args:
            raise UsageError(f"settings of {make.__name__} go by their names: {', '.join(known)}")
        for name in kwargs:
            if name not in known:
                raise UsageError(
                    f"{make.__name__} has no setting {name!r}; it has {', '.join(known)}, and "
                    'more={"algorithm.…": …} for what experiment files know'
                )
        return make(*args, **kwargs)

    return made


def _system(preset: str | Path, more: Mapping[str, Any] | None, **changes: Any) -> System:
    """Dotted names have two underscores here; None is what nobody has set."""
    said = {name.replace("__", "."): v for name, v in changes.items() if v is not None}
    return System(str(preset), {**said, **(more or {})})


@_spoken
def Gram(
    *,
    epsilon: float | None = None,
    embedding_size: int | None = None,
    min_devices: int | None = None,
    preset: str | Path = "sound/gram",
    more: Mapping[str, Any] | None = None,
) -> System:
    """gram: every user contributes once to noisy sums, at an ε of her own.

    It is sound: what is published is bounded for each user by her ε, while the server and the
    helper do not work together.

    Args:
        epsilon: What each user accepts; by default some choose 0.25, some 1 and some 4.
        embedding_size: Length of a vector.
        min_devices: The least number of devices over which a sum is opened.
        preset: The experiment file with all other settings.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7)
        ```
    """
    changes: dict[str, Any] = {}
    if epsilon is not None:
        most = Experiment.from_file(find_experiment(str(preset))).table.get("release", {})
        changes = {"consent": {"epsilon": float(epsilon)}}
        if epsilon > most.get("epsilon", 0.0):
            changes["release.epsilon"] = float(epsilon)
    return _system(
        preset,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        link__min_devices=min_devices,
    )


@_spoken
def FPL(
    *,
    share_positives: float | None = None,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    rounds: int | None = None,
    cohort_size: int | None = None,
    preset: str | Path = "presets/pfpl-plus",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FPL: devices learn from pairs of items, and share a part of their positive updates.

    The server reads single updates: it is there to be compared and attacked. `preset="sums/fpl"`
    adds updates up under masks, and `preset="sound/fpl-noise"` adds noise to the sums.

    Args:
        share_positives: π, the share of positive-item updates that may leave, from 0 to 1.
        embedding_size: Length of a vector.
        learning_rate: Step size on devices.
        reg: Pull of users' and items' vectors to 0.
        rounds: Rounds in all.
        cohort_size: Devices in a round; by default all.
        preset: The experiment file with all other settings; "presets/sfpl", "presets/sfpl-plus",
            "presets/pfpl" and "presets/pfpl-plus" are the four configurations of the paper.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.FPL(share_positives=0.5, rounds=200), parts)
        ```
    """
    changes: dict[str, Any] = {}
    if cohort_size is not None:  # a configuration would set it again
        draws = getattr(Experiment.from_file(find_experiment(str(preset))).algorithm, "triples", 0)
        changes = {"algorithm.configuration": "", "algorithm.cohort_size": cohort_size}
        changes |= {"algorithm.triples": draws} if draws else {}
    if reg is not None:
        changes |= dict.fromkeys(
            ("algorithm.reg_user", "algorithm.reg_positive", "algorithm.reg_negative"), reg
        )
    if share_positives is not None:
        changes["consent"] = {"share_positives": float(share_positives)}
    return _system(
        preset,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__rounds=rounds,
    )


@_spoken
def FCF(
    *,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    rounds: int | None = None,
    preset: str | Path = "presets/fcf",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FCF: every device solves for its vector, and sends a row for every item.

    A single upload shows the user's vector and all that she likes: it is there to be compared and
    attacked. `preset="sums/fcf"` adds uploads up under masks.

    Args:
        embedding_size: Length of a vector.
        learning_rate: Step size of the server.
        reg: Pull of vectors to 0; in the preset a multiple of a rule by the density of the data.
        rounds: Rounds in all.
        preset: The experiment file with all other settings.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.FCF(rounds=50), parts)
        ```
    """
    return _system(
        preset,
        more,
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__reg=reg,
        algorithm__rounds=rounds,
    )


@_spoken
def FMFLDP(
    *,
    epsilon: float | None = None,
    max_reports: int | None = None,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    rounds: int | None = None,
    min_devices: int | None = None,
    preset: str | Path = "presets/fmf",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FMF-LDP: devices send randomised one-bit reports through a shuffler.

    Every report costs ε, and all of a user's reports cost more together: the table of `compare`
    says whether that bounds anything. `preset="sound/fmf"` is for an ε of 1, and learns little from
    a thousand people.

    Args:
        epsilon: Cost of one report, for everybody.
        max_reports: Reports of a device and round.
        embedding_size: Length of a vector.
        learning_rate: Step size of the server.
        reg: Pull of vectors to 0.
        rounds: Rounds in all.
        min_devices: The least number of devices in a batch.
        preset: The experiment file with all other settings.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.FMFLDP(epsilon=2.5, max_reports=100), parts)
        ```
    """
    table = Experiment.from_file(find_experiment(str(preset))).table
    changes: dict[str, Any] = {}
    if epsilon is not None or max_reports is not None or min_devices is not None:
        tiers = [dict(tier) for tier in table["release"].get("tiers", [{"epsilon": 2.5}])]
        if epsilon is not None:
            tiers = [{**tiers[-1], "epsilon": float(epsilon)}]
        if min_devices is not None:
            tiers = [{**tier, "min_devices": min_devices} for tier in tiers]
            changes["release.tiers"] = tiers
        most = max(tier["epsilon"] for tier in tiers)
        reports = max_reports or table["release"]["max_reports"]
        asked = rounds or table["algorithm"]["rounds"]
        total = {"max_reports": reports, "total_epsilon": most * reports * asked}
        changes["release"] = {**table["release"], "tiers": tiers, "max_reports": reports}
        changes["consent"] = {"epsilon": most, **total}
    return _system(
        preset,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__reg=reg,
        algorithm__rounds=rounds,
    )


@_spoken
def DRIFT(
    *,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    epochs: int | None = None,
    min_users: int | None = None,
    preset: str | Path = "sound/drift-catalogue",
    more: Mapping[str, Any] | None = None,
) -> System:
    """DRIFT: data owners read users' interactions, and an orchestrator gets sums over people.

    There is an owner for each category of items; one owner, if categories are not known. Owners
    read what they are sent, and no ε bounds what sums tell. `preset="drift/movielens-1m"` is as
    printed.

    Args:
        embedding_size: Length of a vector.
        learning_rate: Step size.
        reg: Pull of vectors to 0.
        epochs: Passes over all interactions.
        min_users: The least number of people in a sum.
        preset: The experiment file with all other settings.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.DRIFT(epochs=10), parts)
        ```
    """
    return _system(
        preset,
        more,
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__reg=reg,
        algorithm__epochs=epochs,
        algorithm__min_users=min_users,
    )


@_spoken
def UCFedRec(
    *,
    hidden_attributes: Sequence[str] | None = None,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    rounds: int | None = None,
    cohort_size: int | None = None,
    min_devices: int | None = None,
    preset: str | Path = "sums/uc",
    more: Mapping[str, Any] | None = None,
) -> System:
    """UC-FedRec: filters hide the attributes that a user names, over matrix factorisation.

    It needs users' attributes in the data (`load(users=…)`) and the extra `torch`. Filters are no
    guarantee: `attack` says what they are worth.

    Args:
        hidden_attributes: Attributes that some users hide. Who hides them is drawn as in the
            preset; the others train the filters.
        embedding_size: Length of a vector.
        learning_rate: Step size on users' vectors.
        reg: Pull of vectors to 0.
        rounds: Rounds in all.
        cohort_size: Devices in a round.
        min_devices: The least number of devices over which a sum is opened.
        preset: The experiment file with all other settings; the others of "uc/" have networks.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        parts = sv.split(sv.load("town"))
        fitted = sv.fit(sv.UCFedRec(hidden_attributes=["gender"]), parts)
        ```
    """
    changes: dict[str, Any] = {}
    if hidden_attributes is not None:
        if isinstance(hidden_attributes, str):
            raise UsageError(f'hidden_attributes is a list of names, as in ["{hidden_attributes}"]')
        names = list(hidden_attributes)
        consent = copy.deepcopy(
            dict(Experiment.from_file(find_experiment(str(preset))).table.get("consent", {}))
        )
        for choice in (consent, *consent.get("mix", ())):
            if "hidden_attributes" in choice:
                choice["hidden_attributes"] = names
        changes = {
            "algorithm.attributes": [{"name": name} for name in names],
            "consent": consent,
        }
    return _system(
        preset,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__reg=reg,
        algorithm__rounds=rounds,
        algorithm__cohort_size=cohort_size,
        link__min_devices=min_devices,
    )
