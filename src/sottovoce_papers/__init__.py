"""Published tables and figures, run again beside the printed figures; and what our own releases
cost and withstand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.errors import UsageError
from sottovoce.runs.train import Report

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
    "uc-table1": "UC-FedRec: what base models tell of attributes (MovieLens 1M)",
    "uc-table2": "UC-FedRec: accuracy and strong attackers, beside base models and early stopping "
    "(MovieLens 1M, Douban)",
    "uc-table3": "UC-FedRec: hiding an attribute in a trained model (MovieLens 1M, Douban)",
    "uc-figure3": "UC-FedRec: accuracy against leakage, beside rivals",
    "uc-figure4": "UC-FedRec: accuracy of users who hide nothing",
    "uc-figure5": "UC-FedRec: the right filter for the right attribute",
    "uc-figure6": "UC-FedRec: by the share of users who hide",
    "uc-figure7": "UC-FedRec: by the number of hidden attributes",
    "uc-figure8": "UC-FedRec: learning curves",
    "price-list": "every system as printed and as it survives: accuracy, bytes, time, and what "
    "each attack came to (MovieLens 1M, Foursquare Italy)",
    "poisoning": "malicious devices that push an item, with and without defences",
}
ON_GPU = "uc-"
"""How names begin that can be trained on a GPU."""


def run(
    name: str,
    *,
    quick: bool,
    out: Path,
    threads: int,
    report: Report,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run one of `NAMES`. Trained models are kept in `cells/` beside `out`, shared by all names."""
    check(name, device)
    if name == "poisoning":
        from sottovoce_papers import poisoning

        return poisoning.run(quick, out, threads, report)
    if name == "price-list":
        from sottovoce_papers.price_cells import PriceStudy
        from sottovoce_papers.price_list import price_list

        prices = PriceStudy.read(name, quick, out.parent / "cells", threads, report)
        return price_list(prices, out)
    if name.startswith("uc-"):
        return _uc(name, quick, out, threads, report, device)
    if name == "fpl-table3":
        from sottovoce_papers import fpl_table3

        return fpl_table3.run(out)
    if name.startswith("drift-"):
        return _drift(name, quick, out, threads, report)
    if name.startswith("fmf-"):
        return _fmf(name, quick, out, threads, report)
    from sottovoce_papers import fpl_sweep, fpl_table2
    from sottovoce_papers.study import Study, StudyConfig

    study = Study(StudyConfig.read(name, quick), out.parent / "cells", threads, report)
    views = {
        "fpl-table2": fpl_table2.run,
        "fpl-table4": fpl_sweep.table4,
        "fpl-figure2": fpl_sweep.figure2,
        "fpl-figure3": fpl_sweep.figure3,
        "fpl-figure4": fpl_sweep.figure4,
    }
    return views[name](study, out)


def check(name: str, device: str) -> None:
    """Raises where there is no such name, or where it cannot be trained on `device`."""
    if name not in NAMES:
        raise UsageError(f"there is no {name!r}; there are {', '.join(NAMES)}")
    if device == "cpu":
        return
    if not name.startswith(ON_GPU):
        raise UsageError(f"{name} has no way on a GPU; leave it on --device cpu")
    from sottovoce.algorithms.fpl.cuda import require

    require(device)


def _uc(
    name: str, quick: bool, out: Path, threads: int, report: Report, device: str
) -> dict[str, Any]:
    from sottovoce_papers import uc_figures, uc_sweeps, uc_table3, uc_tables
    from sottovoce_papers.uc_study import UCStudy

    views = {
        "uc-table1": uc_tables.table1,
        "uc-table2": uc_tables.table2,
        "uc-table3": uc_table3.table3,
        "uc-figure3": uc_sweeps.figure3,
        "uc-figure4": uc_figures.figure4,
        "uc-figure5": uc_figures.figure5,
        "uc-figure6": uc_sweeps.figure6,
        "uc-figure7": uc_figures.figure7,
        "uc-figure8": uc_sweeps.figure8,
    }
    study = UCStudy.read(name, quick, out.parent / "cells", threads, report, device)
    return views[name](study, out)


def _fmf(name: str, quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    from sottovoce_papers import fmf_figure5, fmf_figures
    from sottovoce_papers.fmf_study import FMFStudy

    views = {
        "fmf-figure2": fmf_figures.figure2,
        "fmf-figure3": fmf_figures.figure3,
        "fmf-figure4": fmf_figures.figure4,
        "fmf-figure5": fmf_figure5.figure5,
    }
    study = FMFStudy.read(name, quick, out.parent / "cells", threads, report)
    return views[name](study, out)


def _drift(name: str, quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    from sottovoce_papers import drift_figure61, drift_figure62, drift_figure63, drift_theta
    from sottovoce_papers.drift_study import DriftStudy, EpochStudy

    given = name, quick, out.parent / "cells", threads, report
    if name in ("drift-figure61", "drift-figure62"):
        accuracy = {"1": drift_figure61.figure61, "2": drift_figure62.figure62}[name[-1]]
        return accuracy(DriftStudy.read(*given), out)
    epochs = drift_theta.by_theta if name == "drift-theta" else drift_figure63.figure63
    return epochs(EpochStudy.read(*given), out)
