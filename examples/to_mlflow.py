"""Log finished runs to MLflow: settings, metrics by round, and the report.

pip install mlflow-skinny
python examples/to_mlflow.py sqlite:///mlflow.db runs/demo runs/mine
"""

import json
import math
import sys
from pathlib import Path

from mlflow.tracking import MlflowClient


def flat(table, before=""):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def log(client, folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    known = client.get_experiment_by_name("sottovoce")
    experiment = known.experiment_id if known else client.create_experiment("sottovoce")
    run = client.create_run(experiment, run_name=folder.name).info.run_id
    for name, value in flat(manifest["experiment"]):
        client.log_param(run, name, value)
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                client.log_metric(run, name.replace("@", "_at_"), value, step=line["round"])
    client.log_artifact(run, str(folder / "report.html"))
    client.set_terminated(run)
    return run


if __name__ == "__main__":
    uri, *folders = sys.argv[1:]
    for folder in map(Path, folders):
        print(folder, log(MlflowClient(uri), folder))
