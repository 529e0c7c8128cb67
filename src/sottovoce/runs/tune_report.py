"""What a search leaves behind for readers: the file of the best trial, tables and figures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce import config
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import (
    Block,
    FigureBlock,
    KeyValues,
    Section,
    TextBlock,
    write_report,
)
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.folder import new_figures, write_text
from sottovoce.runs.space import Range, changed
from sottovoce.runs.tables import Row
from sottovoce.runs.tune import SearchOutcome

FEWEST = 10
"""Trials that have ended, without which nothing is said of which setting matters."""


def best_table(table: Mapping[str, Any], found: SearchOutcome) -> dict[str, Any]:
    """The experiment of a file with the best settings, under a name of its own."""
    whole = changed(table, found.best.settings)
    whole["name"] = f"{found.experiment.name}-tuned"
    return whole


def write_best(text: str, table: Mapping[str, Any], found: SearchOutcome) -> Path:
    """best.toml in the folder of the search: the file's text, with its comments, and the best
    settings in it. `table` is what the file says, with what the command line changed in it."""
    best, as_it_was = found.best, found.trials[0].value
    many = f"the mean of {len(best.values)} seeds" if len(best.values) > 1 else "one seed"
    before = "it did not come to its end" if as_it_was is None else f"it gave {as_it_was:.4f}"
    header = (
        f"# Settings found by `sottovoce tune`, trial {best.number} of {len(found.trials)}: "
        f"{found.metric} = {best.mean:.4f}\n"
        f"# on the validation part ({many}); as the file was, {before}.\n#\n"
    )
    path = found.folder.path / "best.toml"
    write_text(path, header + config.edited(text, best_table(table, found)))
    return path


def finalists_table(found: SearchOutcome) -> Table:
    columns = [Column("trial"), *_setting_columns(found)]
    columns += [
        Column("value", f"{found.metric}, seed of the file", ".4f"),
        Column("mean", "mean over seeds", ".4f", "max" if found.maximise else "min"),
        Column("spread", "standard deviation", ".4f"),
    ]
    rows: list[Row] = [
        {
            "trial": one.number,
            **_settings(found, one.settings),
            "value": one.values[0],
            "mean": one.mean,
            "spread": one.spread,
        }
        for one in found.finalists
    ]
    notes = []
    first = found.trials[0]
    if first.value is not None:
        notes = [f"As the file is (trial 0): {first.value:.4f}."]
    return Table("The best trials, with several seeds", columns, rows, _protocol(found), notes)


def trials_table(found: SearchOutcome) -> Table:
    columns = [Column("trial"), *_setting_columns(found)]
    columns += [
        Column("state"),
        Column("value", found.metric, ".4f"),
        Column("epochs", "given up after epochs", ".4g"),
        Column("seconds", format=".1f"),
    ]
    rows: list[Row] = [
        {
            "trial": one.number,
            **_settings(found, one.settings),
            "state": one.why.partition(":")[0] if one.why else one.state,
            "value": one.value,
            "epochs": one.reached[-1][0] if one.state == "pruned" else None,
            "seconds": one.seconds,
        }
        for one in found.trials
    ]
    return Table("Every trial", columns, rows)


def write_search_report(found: SearchOutcome) -> Path:
    """report.html and figures/ in the folder of the search."""
    page = found.folder.path / "report.html"
    experiment, states = found.experiment, [one.state for one in found.trials]
    facts = {
        "system": experiment.system,
        "data": found.folder.manifest()["data"]["name"],
        "judged by": _protocol(found),
        "trials": f"{len(states)}: {states.count('finished')} to their end, "
        f"{states.count('pruned')} given up on the way, {states.count('failed')} failed",
        **{f"searched: {name}": words for name, words in found.space.words().items()},
        "time": f"{found.seconds:,.1f} s",
    }
    with new_figures(page.parent / "figures") as figures:
        sections = [
            Section("What was searched", [KeyValues(facts)]),
            Section("What was found", [finalists_table(found), *_history(found, figures)]),
            Section("Which settings matter", _by_setting(found, figures)),
            Section("What this would cost", [TextBlock(" ".join(found.cost.words()))]),
            Section("All trials", [trials_table(found)]),
        ]
        title = f"{experiment.name}: a search for settings of {experiment.system}"
        return write_report(page, title, sections)


def importance(found: SearchOutcome) -> dict[str, float]:
    """How much each setting tells good trials from others, in shares of 1 (PED-ANOVA); empty where
    too few trials have ended to say."""
    import optuna

    study = optuna.create_study(direction="maximize" if found.maximise else "minimize")
    distributions = found.space.distributions()
    for one in found.trials:
        inside = found.space.inside(found.space.values(found.experiment, one.settings))
        if inside is not None and one.value is not None:
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(inside), distributions=distributions, value=one.value
                )
            )
    if len(study.trials) < FEWEST or len(distributions) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where trials are few it warns that it knows little
        told = optuna.importance.get_param_importances(study)
    return told if sum(told.values()) > 0.0 else {}


def _history(found: SearchOutcome, figures: Path) -> list[Block]:
    better = max if found.maximise else min
    ended = [(one.number, one.value) for one in found.trials if one.value is not None]
    groups = {"to their end": _points(ended)}
    best: list[tuple[int, float]] = []
    for number, value in ended:
        best.append((number, value if not best else better(best[-1][1], value)))
    up = [(one.number, one.reached[-1][1]) for one in found.trials if one.state == "pruned"]
    if up:
        groups["given up (as far as they came)"] = _points(up)
    drawn = plots.scatter(
        figures / "history", groups, x_label="trial", y_label=found.metric, level=_points(best)
    )
    words = f"{found.metric} of {len(found.trials)} trials, and the best so far"
    return [FigureBlock(drawn.svg, words, f"{words}, on the validation part.")]


def _by_setting(found: SearchOutcome, figures: Path) -> list[Block]:
    shares = importance(found)
    blocks: list[Block] = []
    if shares:
        rows: list[Row] = [{"setting": name, "share": share} for name, share in shares.items()]
        columns = [Column("setting"), Column("share", "share of importance", ".2f")]
        notes = ["How much a setting tells the best trials from the others (PED-ANOVA)."]
        blocks.append(Table("Importance", columns, rows, notes=notes))
    for index, one in enumerate(found.space.ranges):
        points = [
            (found.space.values(found.experiment, trial.settings)[one.settings[0]], trial.value)
            for trial in found.trials
            if trial.value is not None
        ]
        known = [(x, y) for x, y in points if x is not None and one.has(x)]
        if not known:
            continue
        drawn = _against(one, known, figures / f"setting-{index}", found.metric)
        words = f"{found.metric} against {one.name}, a point for each trial that came to its end"
        blocks.append(FigureBlock(drawn.svg, words, f"{words}."))
    return blocks or [TextBlock("No trial came to its end within these ranges.")]


def _against(one: Range, points: list[tuple[Any, float]], path: Path, metric: str) -> plots.Figures:
    names = [str(choice) for choice in one.choices]
    places = [(names.index(str(x)) if names else float(x), y) for x, y in points]
    ends = (one.low, one.high) if one.log else None
    return plots.scatter(
        path, {"trials": _points(places)}, x_label=one.name, y_label=metric, log=ends, names=names
    )


def _points(pairs: Any) -> plots.Curve:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _settings(found: SearchOutcome, settings: Mapping[str, Any]) -> Row:
    values = found.space.values(found.experiment, settings)
    shown = {one.name: values[one.settings[0]] for one in found.space.ranges}
    return {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in shown.items()}


def _setting_columns(found: SearchOutcome) -> list[Column]:
    return [Column(one.name, one.name.partition(".")[2]) for one in found.space.ranges]


def _protocol(found: SearchOutcome) -> str:
    evaluation = found.experiment.evaluation
    among = "all items" if evaluation.candidates == "full" else f"{evaluation.candidates} sampled"
    return f"{found.metric} on the validation part, ranked among {among}"
