"""Which systems can be fitted, and their settings.

A name alone is the system as printed in its paper. `preset` takes a word for another form of it.
Word and system name a shipped experiment file, so that `sottovoce run tuned/fpl` and
`sv.FPL(preset="tuned")` are the same. What is not set is as in that file."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.errors import UsageError
from sottovoce.experiment import Experiment, find_experiment, shipped_experiments
from sottovoce.interface.data import SplitDataset
from sottovoce.runs.standing import origin

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, repr=False)
class System:
    """A federated system with its settings, ready to be fitted.

    `FPL`, `FCF`, `FMFLDP`, `DRIFT` and `UCFedRec` make one as printed in its paper, and `Gram`
    makes ours. What is not set is as in the shipped experiment file that `preset` names.

    Example:
        ```python
        system = sv.FPL(share_positives=0.2)
        print(system)  # which preset, what was changed, and whether it is as printed
        fitted = sv.fit(system, parts)
        ```
    """

    preset: str
    """The experiment file that it begins with, such as "papers/fpl", or its path."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings in the place of the file's, by dotted names such as `algorithm.rounds`."""

    def __repr__(self) -> str:
        said = self.experiment()
        changed = ", ".join(f"{name} = {value!r}" for name, value in self.changes.items())
        return (
            f"<{said.system} as in {self.preset}"
            f"{f', with {changed}' if changed else ''}; {origin(said)}>"
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


def _system(preset: str, more: Mapping[str, Any] | None, **changes: Any) -> System:
    """Dotted names have two underscores here; None is what nobody has set."""
    said = {name.replace("__", "."): v for name, v in changes.items() if v is not None}
    return System(preset, {**said, **(more or {})})


WORDS = {
    "papers": "as printed in its paper",
    "tuned": "ours: what learns most from the same messages",
    "sums": "ours: the server sees sums of many people",
    "sound": "ours: what our attacks do not break",
}
"""The words that `preset` takes. Each is a folder of experiment files, one for each system that has
such a form."""


SYSTEMS = {
    "gram": "Gram",
    "fpl": "FPL",
    "fcf": "FCF",
    "fmf": "FMFLDP",
    "drift": "DRIFT",
    "uc": "UCFedRec",
}
"""Algorithms by their names in experiment files, and the function that makes the system."""


def words_of(kind: str) -> list[str]:
    """The words that this system has, by the name of its algorithm."""
    shipped = shipped_experiments()
    return [word for word in WORDS if f"{word}/{kind}" in shipped]


def _table(file: str) -> Mapping[str, Any]:
    """The sections of an experiment file."""
    return Experiment.from_file(find_experiment(file)).table


def _file(kind: str, preset: str | Path) -> str:
    """The experiment file that this preset of a system names."""
    word = str(preset)
    if word in WORDS or not ("/" in word or "\\" in word or word.endswith(".toml")):
        has = words_of(kind)
        if word not in has:
            raise UsageError(
                f"{SYSTEMS[kind]} has no preset {word!r}; it has {', '.join(map(repr, has))}, and "
                "takes the name or path of an experiment file"
            )
        return f"{word}/{kind}"
    other = _table(word).get("algorithm", {}).get("name", "fpl")
    if other != kind:
        raise UsageError(
            f"{word} is an experiment of {other}, so that {SYSTEMS[kind]} cannot begin with it"
        )
    return word


@_spoken
def Gram(
    *,
    epsilon: float | None = None,
    embedding_size: int | None = None,
    min_devices: int | None = None,
    preset: str | Path = "sound",
    more: Mapping[str, Any] | None = None,
) -> System:
    """gram: every user contributes once to noisy sums, at an ε of her own.

    It is sound: what is published is bounded for each user by her ε, while the server and the
    helper do not work together.

    Args:
        epsilon: What each user accepts; by default some choose 0.25, some 1 and some 4.
        embedding_size: Length of a vector.
        min_devices: The least number of devices over which a sum is opened.
        preset: "sound", or the name or path of an experiment file, with all other settings.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7)
        ```
    """
    file = _file("gram", preset)
    changes: dict[str, Any] = {}
    if epsilon is not None:
        most = _table(file).get("release", {})
        changes = {"consent": {"epsilon": float(epsilon)}}
        if epsilon > most.get("epsilon", 0.0):
            changes["release.epsilon"] = float(epsilon)
    return _system(
        file,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        link__min_devices=min_devices,
    )


@_spoken
def FPL(
    *,
    configuration: str | None = None,
    share_positives: float | None = None,
    embedding_size: int | None = None,
    learning_rate: float | None = None,
    reg: float | None = None,
    rounds: int | None = None,
    cohort_size: int | None = None,
    preset: str | Path = "papers",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FPL: devices learn from pairs of items, and share a part of their positive updates.

    As printed, the server adds the updates up as they come, and a coin is tossed for every draw of
    a positive item: pFPL+ with π = 0.5. The server reads single updates. It is there to be
    compared and attacked.

    Args:
        configuration: One of the paper's four: "sFPL", "sFPL+", "pFPL" or "pFPL+". "s" asks one
            device in a round and "p" all of them; "+" draws as often as users have positives on
            average, the others once.
        share_positives: π, the share of positive-item updates that may leave, from 0 to 1.
        embedding_size: Length of a vector.
        learning_rate: Step size; α in the paper. Where `reg` is not given, it sets that, too.
        reg: Pull of users' and items' vectors to 0.
        rounds: Rounds in all.
        cohort_size: Devices in a round, in the place of what the configuration says.
        preset: "papers", as printed. "tuned" is ours: the server goes by Adagrad, draws go by each
            user's positives, and π is per item. "sums" adds updates up under masks, and "sound"
            adds noise to the sums. Or the name or path of an experiment file.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        printed = sv.fit(sv.FPL(configuration="sFPL", share_positives=0.2), parts)
        ours = sv.fit(sv.FPL(preset="tuned"), parts)
        ```
    """
    file = _file("fpl", preset)
    changes: dict[str, Any] = {}
    if configuration is not None:
        changes = {"algorithm.configuration": configuration}
    if cohort_size is not None:  # a configuration would set it again
        chosen = cast(FPLConfig, System(file, changes).experiment().algorithm)
        changes = {
            "algorithm.configuration": "",
            "algorithm.cohort_size": cohort_size,
            "algorithm.triples": chosen.triples,
        }
    if reg is not None:
        changes |= dict.fromkeys(
            ("algorithm.reg_user", "algorithm.reg_positive", "algorithm.reg_negative"), reg
        )
    if share_positives is not None:
        changes["consent"] = {"share_positives": float(share_positives)}
    return _system(
        file,
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
    preset: str | Path = "papers",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FCF: every device solves for its vector, and sends a row for every item.

    As printed, the server takes steps of Adam. A single upload shows the user's vector and all that
    she likes: it is there to be compared and attacked.

    Args:
        embedding_size: Length of a vector.
        learning_rate: Step size of the server.
        reg: Pull of vectors to 0; λ in the paper. With "tuned" it is a multiple of a rule by the
            density of the data.
        rounds: Rounds in all.
        preset: "papers", as printed. "tuned" is ours: confidence and λ go by the density of the
            data. "sums" adds uploads up under masks. Or the name or path of an experiment file.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.FCF(rounds=50), parts)
        ```
    """
    return _system(
        _file("fcf", preset),
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
    preset: str | Path = "papers",
    more: Mapping[str, Any] | None = None,
) -> System:
    """FMF-LDP: devices send randomised one-bit reports through a shuffler.

    As printed, a report is about one number of the item table, drawn uniformly: k = 100 of them a
    round at ε = 2.5 each. All of a user's reports cost more together: the table of `compare` says
    whether that bounds anything. A thousand people are too few to learn much from.

    Args:
        epsilon: Cost of one report, for everybody.
        max_reports: Reports of a device and round.
        embedding_size: Length of a vector.
        learning_rate: Step size of the server.
        reg: Pull of vectors to 0.
        rounds: Rounds in all.
        min_devices: The least number of devices in a batch.
        preset: "papers", as printed. "tuned" is ours: reports are about rotated histories, which
            tells more at the same cost. "sound" is that for an ε of 1 in all. Or the name or path
            of an experiment file.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        fitted = sv.fit(sv.FMFLDP(epsilon=2.5, max_reports=100), parts)
        ```
    """
    file = _file("fmf", preset)
    table = _table(file)
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
        file,
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
    preset: str | Path = "papers",
    more: Mapping[str, Any] | None = None,
) -> System:
    """DRIFT: data owners read users' interactions, and an orchestrator gets their gradients.

    There is an owner for each category of items; one owner, if categories are not known. As
    printed, it learns from likes and dislikes, so the data need ratings and times; below 3 is a
    dislike. Owners read what they are sent, and the orchestrator can tell who touched what.

    Args:
        embedding_size: Length of a vector.
        learning_rate: Step size.
        reg: Pull of vectors to 0.
        epochs: Passes over all interactions.
        min_users: The least number of people in a sum, with "sound".
        preset: "papers", as printed. "tuned" is ours: owners also draw items that the user has not
            touched, which needs no ratings. "sound" is that with sums over people in the place of
            their gradients. Or the name or path of an experiment file.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        parts = sv.split(sv.load("town"))
        fitted = sv.fit(sv.DRIFT(epochs=10), parts)
        ```
    """
    file = _file("drift", preset)
    if min_users is not None and "release" not in _table(file)["algorithm"]:
        raise UsageError('min_users is for sums over people, as in DRIFT(preset="sound")')
    return _system(
        file,
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
    preset: str | Path = "papers",
    more: Mapping[str, Any] | None = None,
) -> System:
    """UC-FedRec: filters hide the attributes that a user names.

    As printed, filters are networks of two layers, and are to find all classes alike of those who
    hide. It needs users' attributes in the data (`load(users=…)`) and the extra `torch`. Filters
    are no guarantee: `attack` says what they are worth.

    Args:
        hidden_attributes: Attributes that some users hide. Who hides them is drawn as in the
            preset; the others train the filters.
        embedding_size: Length of a vector.
        learning_rate: Step size on users' vectors.
        reg: Pull of vectors to 0.
        rounds: Rounds in all.
        cohort_size: Devices in a round.
        min_devices: The least number of devices over which a sum is opened, with "sums".
        preset: "papers", as printed. "tuned" is ours: matrix factorisation with filters of moments.
            "sums" adds that up under masks. Or the name or path of an experiment file.
        more: Further settings by their names in experiment files.

    Returns:
        The system, to be given to `fit`.

    Example:
        ```python
        parts = sv.split(sv.load("town"))
        fitted = sv.fit(sv.UCFedRec(hidden_attributes=["gender"]), parts)
        ```
    """
    file = _file("uc", preset)
    if min_devices is not None and "link" not in _table(file):
        raise UsageError('min_devices is for sums under masks, as in UCFedRec(preset="sums")')
    changes: dict[str, Any] = {}
    if hidden_attributes is not None:
        if isinstance(hidden_attributes, str):
            raise UsageError(f'hidden_attributes is a list of names, as in ["{hidden_attributes}"]')
        names = list(hidden_attributes)
        consent = copy.deepcopy(dict(_table(file).get("consent", {})))
        for choice in (consent, *consent.get("mix", ())):
            if "hidden_attributes" in choice:
                choice["hidden_attributes"] = names
        changes = {
            "algorithm.attributes": [{"name": name} for name in names],
            "consent": consent,
        }
    return _system(
        file,
        {**changes, **(more or {})},
        algorithm__embedding_size=embedding_size,
        algorithm__learning_rate=learning_rate,
        algorithm__reg=reg,
        algorithm__rounds=rounds,
        algorithm__cohort_size=cohort_size,
        link__min_devices=min_devices,
    )
