"""Runs in MLflow, in a store on this machine."""

import json

import pytest

import sottovoce as sv
import sottovoce.cli
from sottovoce.runs.tracking import named

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    table = {
        **parts.sections(),
        "name": "mine",
        "algorithm": {"rounds": 4, "embedding_size": 4, "epochs": 1},
        "consent": {"mix": [{"weight": 1, "share_positives": 0.5}, {"weight": 1}]},
        "evaluation": {"every_epochs": 1},
        "baselines": {"top-pop": {}},
    }
    out = tmp_path_factory.mktemp("runs") / "mine"
    sv.run_experiment(sv.Experiment.from_table(table), out, dataset=parts.dataset)
    (out / "report.html").write_text("<p>a report")
    (out / "figures").mkdir()
    (out / "figures" / "one.svg").write_text("<svg/>")
    return out


@pytest.mark.parametrize("store", ["files", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_a_run_in_a_store(store, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where MLflow puts artifacts
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}" if store == "sqlite" else str(tmp_path / "store")
    (number,) = sv.to_mlflow(run, experiment="films", tracking_uri=uri)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = client.get_run(number)
    manifest = json.loads((run / "manifest.json").read_text())
    own = manifest["results"]["FPL"]
    for key, value in own.items():
        assert found.data.metrics[named(key)] == pytest.approx(value)
    popular = found.data.metrics["baselines/top-pop/NDCG_at_10"]
    assert popular == pytest.approx(manifest["results"]["top-pop"]["NDCG@10"])
    assert found.data.metrics["ledger/bytes"] == manifest["ledger"]["bytes"]
    steps = [one.step for one in client.get_metric_history(number, "NDCG_at_10")]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [line["round"] for line in lines if "NDCG@10" in line]
    params = found.data.params
    assert (params["algorithm.rounds"], params["seed"], params["data.split"]) == (
        "4", "0", "temporal",
    )  # fmt: skip
    assert json.loads(params["consent.mix"])[0]["share_positives"] == 0.5
    assert found.data.tags["sottovoce.data.fingerprint"] == manifest["data"]["fingerprint"]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "mine")
    files = {one.path for one in client.list_artifacts(number)}
    assert files == {"manifest.json", "metrics.jsonl", "report.html", "figures"}
    assert not any("devices" in one or "ledger" in one for one in files)  # what is private stays
    # Exported again, it is the same one.
    words = ("export", "mlflow", run, "--experiment", "films", "--tracking-uri", uri, "--json")
    assert sottovoce.cli.call([str(word) for word in words]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [{"run": str(run), "mlflow": [number]}]
    assert len(client.search_runs([found.info.experiment_id])) == 1


def test_what_cannot_be_exported(run, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    half = tmp_path / "half"
    half.mkdir()
    text = (run / "manifest.json").read_text().replace('"finished"', '"running"')
    (half / "manifest.json").write_text(text)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    for folder, words, said in (
        (tmp_path, {"tracking_uri": uri}, "is not a run folder"),
        (half, {"tracking_uri": uri}, "has not finished"),
        (run, {"tracking_uri": uri, "experiment": " "}, "needs a name"),
        (run, {"tracking_uri": "nonsense://x"}, "MLflow cannot use nonsense://x"),
    ):
        with pytest.raises(sv.SottovoceError, match=said):
            sv.to_mlflow(folder, **words)


def test_names_are_as_every_store_takes_them():
    assert named("NDCG@10") == "NDCG_at_10"
    assert named("a:b|c d/e-f.g") == "a_b_c d/e-f.g"
    assert len(named("x" * 999)) == 250
