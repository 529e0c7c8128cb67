"""`sottovoce export`: finished runs for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json


def mlflow(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="The experiment of MLflow; made if there is none.")
    ] = "sottovoce",
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where MLflow keeps runs, such as sqlite:///mlflow.db; by default MLflow's own "
            "setting (MLFLOW_TRACKING_URI).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export finished runs to MLflow: parameters, metrics by round, reports, tags.

    It needs the extra mlflow. Settings are parameters by their dotted names. Lines of metrics.jsonl
    are metrics with the round as their step; MLflow permits no @, so that NDCG@10 is NDCG_at_10.
    The manifest, the report and the report card are artifacts. A run that is there already is not
    exported again, and its id is printed. Each seed of a run with several seeds is a run.

    \b
    Example:
      sottovoce export mlflow runs/demo --tracking-uri sqlite:///mlflow.db
    """
    from sottovoce.runs.tracking import to_mlflow

    made = {
        folder: to_mlflow(folder, experiment=experiment, tracking_uri=tracking_uri)
        for folder in folders
    }
    if as_json:
        runs = [{"run": folder, "mlflow": ids} for folder, ids in made.items()]
        output.emit({"experiment": experiment, "runs": runs})
        return
    for folder, ids in made.items():
        output.show(f"{folder}: {output.listed(ids)}")
