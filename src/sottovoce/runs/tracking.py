"""Finished runs to MLflow: settings as parameters, figures with their rounds, files, tags."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.core.installed import needs
from sottovoce.errors import RunError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.runs.card import JSON, PAGE
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.read import check_manifest
from sottovoce.runs.seeds import parts_of

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

EXPERIMENT = "sottovoce"
_FILES = ("manifest.json", "metrics.jsonl", "report.html", PAGE, JSON)
_FOLDERS = ("figures", f"{PAGE.partition('.')[0]}-figures")
_LONGEST_KEY, _LONGEST_PARAM, _LONGEST_TAG = 250, 6000, 5000
"""Characters that every store takes."""
_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_IDENTITY = "sottovoce.identity"


def to_mlflow(
    folder: str | Path, *, experiment: str = EXPERIMENT, tracking_uri: str | None = None
) -> list[str]:
    """Export a finished run to MLflow; needs the extra `mlflow`.

    Settings become parameters by their dotted names. Every line of metrics.jsonl becomes metrics
    with the round as their step. Baselines' figures are under `baselines/`, and what left the
    devices under `ledger/`. The manifest, the report and the report card become artifacts. MLflow
    permits no @ in names: NDCG@10 is `NDCG_at_10`. A run that is there already is not exported
    again. MLflow's own telemetry is turned off, unless you have set `MLFLOW_DISABLE_TELEMETRY`.

    Args:
        folder: The run's folder. Each seed of one with several seeds is a run of MLflow.
        experiment: The experiment of MLflow; it is made if there is none.
        tracking_uri: Where MLflow keeps runs, such as "sqlite:///mlflow.db" or the address of a
            server; by default MLflow's own setting.

    Returns:
        Ids of the runs in MLflow.

    Example:
        ```python
        sv.fit(sv.Gram(), parts, out="runs/gram")
        sv.to_mlflow("runs/gram", experiment="films", tracking_uri="sqlite:///mlflow.db")
        ```
    """
    if not experiment.strip():
        raise UsageError("an experiment of MLflow needs a name")
    parts = list(parts_of(Path(folder)).values())
    manifests = [_checked(part) for part in parts]
    client, error = _client(tracking_uri)
    try:
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known is not None else client.create_experiment(experiment)
        return [
            _export(client, number, part, manifest)
            for part, manifest in zip(parts, manifests, strict=True)
        ]
    except error as trouble:
        raise RunError(f"MLflow refused the run: {str(trouble).splitlines()[0]}") from None


def _checked(part: Path) -> dict[str, Any]:
    """The manifest of a finished run."""
    folder = RunFolder.open(part)
    if not folder.finished:
        raise RunError(f"{part} has not finished; go on with `sottovoce run … --resume`")
    manifest = folder.manifest()
    check_manifest(manifest, part)
    return manifest


def _client(uri: str | None) -> tuple[MlflowClient, type[Exception]]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ModuleNotFoundError:
        raise UsageError(f"an export to MLflow {needs('mlflow')}") from None
    try:
        return MlflowClient(tracking_uri=uri), MlflowException
    except (MlflowException, ImportError) as error:
        raise UsageError(f"MLflow cannot use {uri}: {str(error).splitlines()[0]}") from None


def _export(client: MlflowClient, experiment: str, part: Path, manifest: Mapping[str, Any]) -> str:
    identity = str(manifest.get("identity", ""))
    there = client.search_runs(
        [experiment], f"tags.`{_IDENTITY}` = '{identity}' and attributes.status = 'FINISHED'"
    )
    if identity and there:
        return str(there[0].info.run_id)
    began = _stamp(manifest.get("started"))
    run = client.create_run(experiment, began, _tags(manifest, part), part.resolve().name)
    number, state = str(run.info.run_id), "FAILED"
    try:
        params = list(_params(manifest))
        for at in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(number, params=params[at : at + _PARAMS_AT_ONCE])
        ended = _stamp(manifest.get("finished")) or began or 0
        metrics = list(_metrics(RunFolder(part), manifest, ended))
        for at in range(0, len(metrics), _AT_ONCE):
            client.log_batch(number, metrics=metrics[at : at + _AT_ONCE])
        for name in _FILES:
            if (part / name).is_file():
                client.log_artifact(number, str(part / name))
        for name in _FOLDERS:
            if (part / name).is_dir():
                client.log_artifacts(number, str(part / name), name)
        state = "FINISHED"
    finally:
        client.set_terminated(number, state, _stamp(manifest.get("finished")))
    return number


def named(name: str) -> str:
    """A name that every store takes: letters, digits and _ - . / and spaces."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))[:_LONGEST_KEY]


def _params(manifest: Mapping[str, Any]) -> Iterator[Param]:
    from mlflow.entities import Param

    settings = dict(_flat(manifest["experiment"]))
    settings |= {f"by_rule.{k}": v for k, v in _flat(manifest.get("by_rule", {}))}
    settings |= {f"schedule.{k}": v for k, v in _flat(manifest["schedule"])}
    settings.setdefault("seed", manifest.get("seed", 0))
    for name, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield Param(named(name), text[:_LONGEST_PARAM])


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _metrics(folder: RunFolder, manifest: Mapping[str, Any], when: int) -> Iterator[Metric]:
    from mlflow.entities import Metric

    lines = folder.metrics()
    last = max((line["round"] for line in lines), default=0)
    ends = {f"ledger/{name}": value for name, value in manifest["ledger"].items()}
    own = Experiment.from_table(manifest["experiment"]).system
    for baseline, summary in manifest["results"].items():
        if baseline == own:  # the last line has it
            continue
        ends |= {f"baselines/{baseline}/{name}": value for name, value in summary.items()}
    for line in [*lines, {"round": last, **ends}]:
        for name, value in line.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if name != "round" and number and math.isfinite(value):
                yield Metric(named(name), float(value), when, line["round"])


def _tags(manifest: Mapping[str, Any], part: Path) -> dict[str, str]:
    said = {
        "mlflow.source.name": "sottovoce",
        "mlflow.source.type": "LOCAL",
        _IDENTITY: manifest.get("identity", ""),
        "sottovoce.name": manifest.get("name", ""),
        "sottovoce.engine": manifest.get("engine", ""),
        "sottovoce.data": manifest["data"]["name"],
        "sottovoce.data.fingerprint": manifest["data"]["fingerprint"],
        "sottovoce.protocol": manifest["protocol"],
        "sottovoce.folder": part.resolve().name,
        "sottovoce.version": manifest.get("versions", {}).get("sottovoce", ""),
    }
    return {name: str(value)[:_LONGEST_TAG] for name, value in said.items() if value}


def _stamp(text: object) -> int | None:
    """Milliseconds since 1970 of a time in a manifest."""
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
