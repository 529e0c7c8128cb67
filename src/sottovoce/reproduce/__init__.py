"""Published tables and figures, run again beside the printed figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.errors import UsageError
from sottovoce.running import Report

NAMES: Mapping[str, str] = {
    "fpl-table2": "accuracy and diversity of FPL and its baselines (Foursquare Italy)",
    "fpl-table3": "communication cost and freshness (Brazil, from the published counts)",
    "fpl-table4": "bias disparity by category (Foursquare Italy)",
    "fpl-figure2": "F1 against π (Foursquare Italy)",
    "fpl-figure3": "item coverage against precision as π grows (Foursquare Italy)",
    "fpl-figure4": "precision against communication cost, with the Pareto front (Foursquare Italy)",
    "fmf-figure2": "FMF-LDP: HR@10 against ε and k (MovieLens 1M, and generated crowds)",
    "fmf-figure3": "FMF-LDP: learning curves (MovieLens 1M, and generated crowds)",
    "fmf-figure4": "FMF-LDP: HR@10 by users and items (MovieLens 1M, and generated crowds)",
    "fmf-figure5": "FMF-LDP beside MF-NP, DPLCF and Random, with budgets and bytes (MovieLens 1M)",
    "drift-figure61": "DRIFT: loss in training and test beside SAROS (MovieLens 1M)",
    "drift-figure62": "DRIFT: MAP and NDCG after one epoch and in the end, beside SAROS "
    "(MovieLens 1M)",
    "drift-figure63": "DRIFT: the time of an epoch by phase, and security's share (MovieLens 1M)",
    "drift-theta": "DRIFT: updates, bytes, accuracy and what can be guessed, by Θ (MovieLens 1M)",
}


def run(name: str, *, quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    """Run one of `NAMES`. Trained models are kept in `cells/` beside `out`, shared by all names."""
    if name not in NAMES:
        raise UsageError(f"there is no {name!r}; there are {', '.join(NAMES)}")
    if name == "fpl-table3":
        from sottovoce.reproduce import fpl_table3

        return fpl_table3.run(out)
    if name.startswith("drift-"):
        return _drift(name, quick, out, threads, report)
    if name.startswith("fmf-"):
        return _fmf(name, quick, out, threads, report)
    from sottovoce.reproduce import fpl_sweep, fpl_table2
    from sottovoce.reproduce.study import Study, StudyConfig

    study = Study(StudyConfig.read(name, quick), out.parent / "cells", threads, report)
    views = {
        "fpl-table2": fpl_table2.run,
        "fpl-table4": fpl_sweep.table4,
        "fpl-figure2": fpl_sweep.figure2,
        "fpl-figure3": fpl_sweep.figure3,
        "fpl-figure4": fpl_sweep.figure4,
    }
    return views[name](study, out)


def _fmf(name: str, quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    from sottovoce.reproduce import fmf_figure5, fmf_figures
    from sottovoce.reproduce.fmf_study import FMFStudy

    views = {
        "fmf-figure2": fmf_figures.figure2,
        "fmf-figure3": fmf_figures.figure3,
        "fmf-figure4": fmf_figures.figure4,
        "fmf-figure5": fmf_figure5.figure5,
    }
    study = FMFStudy.read(name, quick, out.parent / "cells", threads, report)
    return views[name](study, out)


def _drift(name: str, quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    from sottovoce.reproduce import drift_figure61, drift_figure62, drift_figure63, drift_theta
    from sottovoce.reproduce.drift_epochs import EpochStudy
    from sottovoce.reproduce.drift_study import DriftStudy

    given = name, quick, out.parent / "cells", threads, report
    if name in ("drift-figure61", "drift-figure62"):
        accuracy = {"1": drift_figure61.figure61, "2": drift_figure62.figure62}[name[-1]]
        return accuracy(DriftStudy.read(*given), out)
    epochs = drift_theta.by_theta if name == "drift-theta" else drift_figure63.figure63
    return epochs(EpochStudy.read(*given), out)
