"""Run folders: one run each, resumable to the same numbers, never half-written."""

import errno
import json
import os
import shutil
import sys

import numpy as np
import pytest
from run_folders import content, same

from sottovoce.core import ledger as ledgers
from sottovoce.errors import (
    ConfigError,
    CorruptData,
    DataError,
    FolderInUse,
    RunError,
    UsageError,
)
from sottovoce.experiment import Experiment
from sottovoce.runs import devices, topology
from sottovoce.runs.folder import RunFolder, check_writable, load_arrays, new_figures, save_arrays
from sottovoce.runs.read import FinishedRun
from sottovoce.runs.train import run_experiment

TABLE = {
    "seed": 3,
    "town": {"residents": 60, "venues": 80, "visits_per_resident": 20.0},
    "algorithm": {"configuration": "pFPL+", "embedding_size": 8, "epochs": 3},
    "consent": {"mix": [{"weight": 3, "share_positives": 0.5}, {"weight": 1, "takes_part": False}]},
    "evaluation": {"every_epochs": 1},
    "baselines": {"top-pop": {}},
}


def make(**changes):
    return Experiment.from_table(TABLE | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    run_experiment(make(), path)
    return path


def test_a_run_leaves_what_it_promises(whole):
    manifest = RunFolder.open(whole).manifest()
    assert manifest["status"] == "finished"
    assert manifest["seed"] == 3
    assert set(manifest["versions"]) >= {"sottovoce", "numpy", "numba", "python"}
    assert manifest["data"]["fingerprint"]
    assert set(manifest["results"]) == {"top-pop", "pFPL+"}
    lines = RunFolder.open(whole).metrics()
    assert [round(line["epoch"]) for line in lines[:-1]] == [1, 2]
    assert lines[-1]["final"]
    assert not (whole / "checkpoint.npz").exists()
    assert not list(whole.glob("*.partial"))
    table = ledgers.read(whole / "ledger.parquet")
    assert table.num_rows == manifest["ledger"]["releases"]
    assert ledgers.totals_of(table).bytes == manifest["ledger"]["bytes"]


REPORTS = {"epsilon": 2.0, "max_reports": 5}
KINDS = {
    **{name: {"algorithm": TABLE["algorithm"] | {"configuration": name}}
       for name in ("pFPL+", "sFPL", "sFPL+")},
    "fcf": {
        "algorithm": {"name": "fcf", "embedding_size": 3, "rounds": 9},
        "consent": {"share_positives": 1.0},
    },
    "fmf": {
        "algorithm": {"name": "fmf", "embedding_size": 3, "rounds": 6},
        "release": {"max_reports": 5, "tiers": [{"epsilon": 2.0, "min_devices": 5}]},
        "consent": {"mix": [{"weight": 1, **REPORTS},
                            {"weight": 1, **REPORTS, "total_epsilon": 30.0}]},
    },
    "gram": {
        "algorithm": {"name": "gram", "quality_share": 0.2}, "link": {"min_devices": 20},
        "release": {"epsilon": 4.0}, "consent": {"epsilon": 4.0},
    },
}  # fmt: skip
MOMENTS = {"fcf": (1, 7), "fmf": (2, 4), "gram": (1, 2)}


@pytest.mark.parametrize(
    ("kind", "moment"), [(kind, at) for kind in KINDS for at in MOMENTS.get(kind, (1, 2, 7))]
)
def test_a_run_stopped_anywhere_resumes_to_the_same_numbers(tmp_path, monkeypatch, kind, moment):
    """With Adam's memory, with what everybody has spent, and with the versions of a model."""
    experiment = make(**KINDS[kind])
    run_experiment(experiment, tmp_path / "whole")
    calls = 0
    original = RunFolder.save_checkpoint

    def save_then_die(self, *arguments):
        nonlocal calls
        original(self, *arguments)
        calls += 1
        if calls == moment:
            raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(topology, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(RunFolder, "save_checkpoint", save_then_die)
        with pytest.raises(SystemError):
            run_experiment(experiment, tmp_path / "cut")
    with pytest.raises(RunError, match="not finished"):
        RunFolder.open(tmp_path / "cut").model()
    run_experiment(experiment, tmp_path / "cut", resume=True)
    assert same(content(tmp_path / "whole"), content(tmp_path / "cut"))
    whole, cut = (RunFolder.open(tmp_path / name).manifest() for name in ("whole", "cut"))
    assert cut["results"] == whole["results"]
    assert cut.get("model_versions") == whole.get("model_versions")


def test_threads_and_transcripts_do_not_change_a_run(tmp_path, whole):
    run_experiment(make(), tmp_path / "two", threads=2)
    run_experiment(make(), tmp_path / "heard", transcript=True)
    assert same(content(whole), content(tmp_path / "two"))
    assert same(content(whole), content(tmp_path / "heard"))
    assert len(list((tmp_path / "heard" / "transcript" / "server").glob("*.npz"))) == int(
        RunFolder.open(whole).manifest()["schedule"]["rounds"]
    )


def test_two_processes_cannot_write_one_folder(tmp_path):
    folder = RunFolder.claim(tmp_path / "run", {"identity": "x"}, resume=False)
    with folder.locked(), pytest.raises(FolderInUse, match="another process"), folder.locked():
        pass


@pytest.mark.parametrize("another", [0, 2])
def test_a_run_of_another_format_is_refused_with_both_numbers(tmp_path, whole, another):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    table = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(table | {"format": another}))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    said = f"has format {another}, and this release reads format 1 alone"
    with pytest.raises(RunError, match=said):
        FinishedRun.open(run)
    with pytest.raises(RunError, match=said):
        run_experiment(make(), run, resume=True)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_damaged_folders_give_one_sentence(tmp_path, whole):
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"identity"')
    with pytest.raises(CorruptData, match=r"manifest\.json"):
        RunFolder.open(tmp_path).manifest()
    (tmp_path / "model.npz").write_bytes(b"PK not really")
    with pytest.raises(CorruptData, match=r"model\.npz"):
        load_arrays(tmp_path / "model.npz")
    (tmp_path / "model.npz").write_bytes((whole / "model.npz").read_bytes()[:-200])
    with pytest.raises(CorruptData, match=r"model\.npz"):
        load_arrays(tmp_path / "model.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(CorruptData, match="single array"):
        load_arrays(tmp_path / "one.npy")
    (tmp_path / "manifest.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(CorruptData, match=r"manifest\.json cannot be read"):
        RunFolder.open(tmp_path).manifest()
    (tmp_path / "ledger.parquet").write_bytes(b"nothing")
    with pytest.raises(CorruptData, match="ledger"):
        ledgers.read(tmp_path / "ledger.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algoritm": {}}, "unknown keys"),
        ({"algorithm": {"name": "fpm"}}, "algorithm.name"),
        ({"algorithm": {"name": [1]}}, "algorithm.name"),
        ({"baselines": {"top-pop": {"name": {}}}}, "baselines.top-pop.name"),
        ({"baselines": {"mult-vae": {"hidden_size": 10**9}}}, "hidden_size"),
        ({"name": "../../x"}, "cannot name an experiment"),
        ({"name": ""}, "cannot name an experiment"),
        ({"name": "a/b"}, "cannot name an experiment"),
        ({"name": ".."}, "cannot name an experiment"),
        ({"data": {"min_user_items": -1}}, "data.min_user_items"),
        ({"data": {"min_item_users": -1}}, "data.min_item_users"),
        ({"data": {"min_rating": float("inf")}}, "data.min_rating"),
        ({"data": {"test_fraction": 0.0}}, "data.test_fraction"),
        ({"data": {"test_fraction": 1.5}}, "data.test_fraction"),
        ({"data": {"test_fraction": -0.2}}, "data.test_fraction"),
        ({"algorithm": {"embeding_size": 3}}, "unknown keys"),
        ({"algorithm": {"learning_rate": -1.0}}, "learning_rate"),
        ({"release": {"per": "week"}}, "release.per"),
        ({"data": {"split": "tomorrow"}}, "data.split"),
        ({"evaluation": {"k": 0}}, "evaluation.k"),
        ({"baselines": {"svd": {}}}, "baselines.svd"),
        ({"baselines": {"top-pop": 1}}, "must be a table"),
        ({"seed": "x"}, "seed"),
        ({"data": 3}, "must be a table"),
        ({"town": {"residents": -4}}, "residents"),
        ({"consent": {"share_positives": 2.0}}, "share_positives"),
    ],
)
def test_bad_experiments_raise(change, words):
    with pytest.raises(ConfigError, match=words):
        make(**change)


def test_filters_that_leave_nothing_raise(tmp_path):
    with pytest.raises(DataError):
        run_experiment(make(data={"min_user_items": 10_000}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"evaluation": {"candidates": 79}}, DataError, "fewer"),
        ({"evaluation": {"candidates": 5000}}, DataError, "ask for fewer"),
        ({"data": {"test_fraction": 0.0001}}, DataError, "test_fraction"),
        ({"baselines": {"mult-vae": {"device": "tpu"}}}, ConfigError, "device must be"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_folder_is_claimed(
    tmp_path, change, kind, words
):
    if "baselines" in change:
        pytest.importorskip("torch")
    with pytest.raises(kind, match=words):
        run_experiment(make(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_baseline_without_its_package_is_refused_before_a_folder_is_claimed(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sottovoce.baselines.mult_vae_training", raising=False)
    with pytest.raises(UsageError, match="needs torch"):
        run_experiment(make(baselines={"mult-vae": {}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        with pytest.raises(FolderInUse, match="a file, not a folder"):
            run_experiment(make(), place)
        with pytest.raises(FolderInUse, match="a file, not a folder"):
            RunFolder.claim(place, {"identity": "x"}, resume=False)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(RunError, match="too long"):
        check_writable(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunError, match="cannot be written"):
        run_experiment(make(), tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    save_arrays(tmp_path / "old.npz", a=np.arange(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_arrays(tmp_path / "old.npz", a=np.zeros(9))
    assert [p.name for p in tmp_path.iterdir()] == ["old.npz"]
    assert load_arrays(tmp_path / "old.npz")["a"].tolist() == [0, 1, 2]
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        with pytest.raises(RunError, match="No space"):
            run_experiment(make(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
        with pytest.raises(RunError, match=r"No space .* go on with --resume"):
            run_experiment(make(), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.partial"))
    run_experiment(make(), tmp_path / "run", resume=True)
    assert RunFolder.open(tmp_path / "run").finished


def test_figures_are_replaced_together(tmp_path):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "a.png").write_text("old")

    def draw_half():
        with new_figures(figures) as fresh:
            fresh.mkdir()
            (fresh / "a.png").write_text("half")
            full()

    with pytest.raises(OSError, match="No space"):
        draw_half()
    assert [p.name for p in tmp_path.iterdir()] == ["figures"]
    assert (figures / "a.png").read_text() == "old"
    with new_figures(figures) as fresh:
        fresh.mkdir()
        (fresh / "b.png").write_text("new")
    assert [p.name for p in tmp_path.rglob("*")] == ["figures", "b.png"]


def test_an_experiment_without_a_name_is_called_after_its_file(tmp_path):
    for stem, name in (("mine", "mine"), ("my run=2", "my-run-2"), ("__", "experiment")):
        (tmp_path / f"{stem}.toml").write_text("seed = 1\n")
        assert Experiment.from_file(tmp_path / f"{stem}.toml").name == name


def test_a_transcript_is_written_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.Federation, "check_device", lambda self, device: None)
    with pytest.raises(ConfigError, match="transcript"):
        run_experiment(make(), tmp_path / "run", device="cuda", transcript=True)
    assert not (tmp_path / "run").exists()
