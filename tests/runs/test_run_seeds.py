"""Several seeds of one experiment: parts that are ordinary runs, resumed, averaged and compared."""

import json
from pathlib import Path

import numpy as np
import pytest

import sottovoce.cli
from sottovoce.errors import ConfigError, FolderInUse, RunError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.runs.compare import compare_runs
from sottovoce.runs.read import FinishedRun
from sottovoce.runs.seeds import part_of, parts_of, run_seeds, seeds_asked
from sottovoce.runs.train import run_experiment

TABLE = {
    "name": "several",
    "town": {"residents": 40, "venues": 60, "visits_per_resident": 15},
    "algorithm": {"embedding_size": 3, "epochs": 1},
    "baselines": {"top-pop": {}, "random": {}},
}
SEEDS = (1, 5)


def experiment(**changes):
    return Experiment.from_table({**TABLE, **changes})


def figures(run):
    return {system: one.summary() for system, one in run.evaluations().items()}


def same_files(one, other):
    """Of two folders of the same experiment: model, vectors, ledger and metrics."""
    for name in ("model.npz", "devices.npz", "ledger.parquet", "metrics.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    out = tmp_path_factory.mktemp("seeds") / "run"
    return run_seeds(experiment(seeds=list(SEEDS)), out)


def test_parts_are_the_runs_of_single_seeds(several, tmp_path):
    alone = run_experiment(experiment(seed=5), tmp_path / "alone")
    part = part_of(several.folder.path, 5)
    same_files(part, tmp_path / "alone")
    manifests = [json.loads((p / "manifest.json").read_text()) for p in (part, tmp_path / "alone")]
    assert manifests[0]["identity"] == manifests[1]["identity"]
    assert several.by_seed[5]["random"].summary() == alone.evaluations["random"].summary()
    assert FinishedRun.open(part).experiment.seed == 5


def test_the_manifest_has_mean_and_spread(several):
    manifest = several.folder.manifest()
    assert manifest["seeds"] == [1, 5]
    found = manifest["spread"]["random"]["NDCG@10"]
    by_seed = [several.by_seed[seed]["random"].summary()["NDCG@10"] for seed in SEEDS]
    assert list(found["seeds"].values()) == by_seed
    assert found["mean"] == pytest.approx(np.mean(by_seed))
    assert found["sd"] == pytest.approx(np.std(by_seed, ddof=1))
    assert manifest["results"]["random"]["NDCG@10"] == pytest.approx(found["mean"])
    assert manifest["spread"]["top-pop"]["P@10"]["sd"] == 0.0


def test_a_stopped_run_goes_on_to_the_same_end(several, tmp_path):
    out, stopped = tmp_path / "run", []

    def stop(what, done, total):
        if what == "training" and (out / "seed-5").exists() and done:
            stopped.append(done)
            raise KeyboardInterrupt

    whole = experiment(seeds=list(SEEDS))
    with pytest.raises(KeyboardInterrupt):
        run_seeds(whole, out, report=stop)
    assert stopped
    with pytest.raises(RunError, match="has not finished"):
        compare_runs([out], out)
    with pytest.raises(FolderInUse, match="holds this run already; add --resume"):
        run_seeds(whole, out)
    with pytest.raises(FolderInUse, match="holds another run"):
        run_seeds(experiment(seeds=[1, 2]), out, resume=True)
    again = run_seeds(whole, out, resume=True)
    assert figures(again) == figures(several)
    for seed in SEEDS:
        same_files(part_of(out, seed), part_of(several.folder.path, seed))
    assert again.folder.manifest()["spread"] == several.folder.manifest()["spread"]


def test_the_first_seed_is_meant_unless_told(several, tmp_path):
    folder = several.folder.path
    assert part_of(folder) == part_of(folder, 1) == folder / "seed-1"
    with pytest.raises(UsageError, match="has the seeds 1 and 5, and not 7"):
        part_of(folder, 7)
    with pytest.raises(RunError, match="has several seeds"):
        FinishedRun.open(folder)
    assert part_of(folder / "seed-5") == part_of(folder / "seed-5", 5) == folder / "seed-5"
    with pytest.raises(UsageError, match="has the seed 5, and not 1"):
        part_of(folder / "seed-5", 1)


def test_runs_with_several_seeds_are_paired_by_seed(several, tmp_path):
    other = run_seeds(
        experiment(seeds=list(SEEDS), algorithm={"embedding_size": 3, "epochs": 3}),
        tmp_path / "longer",
    )
    paths = [several.folder.path, other.folder.path]
    found = compare_runs(paths, tmp_path / "both")
    table = found.tables[0]
    assert [row["run"] for row in table.rows] == ["Random", "Top-Pop", "run", "longer"]
    assert [row["seeds"] for row in found.rows] == [[1, 5], [1, 5]]
    values = [
        np.mean([run.by_seed[s][run.system].per_user("P@10") for s in SEEDS], axis=0)
        for run in (other, several)
    ]
    tests = {(one["system"], one["metric"]): one for one in found.significance}
    assert tests["longer", "P@10"]["difference"] == pytest.approx((values[0] - values[1]).mean())
    assert tests["top-pop", "P@10"]["n"] == len(values[0])
    assert {one["reference"] for one in found.significance} == {"run"}
    assert "± " in table.to_markdown()
    assert "By seed" in (tmp_path / "both" / "report.html").read_text()


def test_a_run_is_compared_on_the_seeds_in_common(several, tmp_path):
    lone = tmp_path / "lone"
    run_experiment(experiment(seed=5, algorithm={"embedding_size": 8, "epochs": 1}), lone)
    found = compare_runs([lone, several.folder.path], tmp_path / "both", write=False)
    (test,) = (t for t in found.significance if (t["system"], t["metric"]) == ("run", "P@10"))
    here = FinishedRun.open(lone).folder.manifest()["results"][several.system]["P@10"]
    there = several.by_seed[5][several.system].summary()["P@10"]
    assert test["difference"] == pytest.approx(there - here)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"seeds": []}, "a list of 1 to 1,000 different whole numbers"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": [1, True]}, "different whole numbers"),
        ({"seeds": [-1]}, "different whole numbers"),
        ({"seeds": 3}, "a list"),
        ({"seeds": [1], "seed": 2}, "seed and seeds; leave one of them out"),
    ],
)
def test_wrong_seeds_are_refused(table, words):
    with pytest.raises(ConfigError, match=words):
        experiment(**table)


def test_seeds_on_the_command_line():
    assert seeds_asked("3", 7) == (7, 8, 9)
    assert seeds_asked("1, 4,2", 7) == (1, 4, 2)
    assert seeds_asked("5,", 7) == (5,)
    for wrong in ("", "0", "-2", "three", "1,x", ","):
        with pytest.raises(UsageError, match="--seeds wants"):
            seeds_asked(wrong, 0)
    with pytest.raises(ConfigError, match="1 to 1,000"):
        experiment().with_seeds(seeds_asked("9999999999", 0))


def test_engines_and_functions_for_one_seed_say_so(tmp_path):
    whole = experiment(seeds=[1, 2])
    with pytest.raises(UsageError, match="distributed takes one seed at a time"):
        run_seeds(whole, tmp_path / "run", engine="distributed")
    with pytest.raises(UsageError, match="has several seeds"):
        run_experiment(whole)
    assert not (tmp_path / "run").exists()


def test_commands_know_seeds(tmp_path, capsys):
    file, out = tmp_path / "file.toml", tmp_path / "run"
    file.write_text(
        "seed = 2\n[town]\nresidents = 40\nvenues = 60\nvisits_per_resident = 15\n"
        "[algorithm]\nembedding_size = 3\nepochs = 1\n[evaluation]\nk = [5, 10]\n"
        'metrics = ["NDCG", "hr", "MAP", "F1", "MRR", "coverage"]\n[baselines.top-pop]\n'
    )

    def call(*words):
        code = sottovoce.cli.call([*map(str, words)])
        return code, capsys.readouterr().out

    code, text = call("run", file, "--seeds", 2, "--out", out, "--json")
    found = json.loads(text)
    assert (code, found["seeds"]) == (0, [2, 3])
    spread = found["spread"][found["system"]]["MRR@5"]
    assert spread["mean"] == pytest.approx(found["results"][found["system"]]["MRR@5"])
    assert [part["run"] for part in found["parts"]] == [str(p) for p in parts_of(out).values()]
    assert Path(found["report"]).is_file()
    code, text = call("recommend", out / "seed-3", "--user", "r0003", "--json")
    own = FinishedRun.open(out / "seed-3").recommend("r0003", 10)
    assert [row["item"] for row in json.loads(text)["recommendations"]] == [r.item for r in own]
    assert call("ledger", out / "seed-4")[0] == 4
    code, text = call("report", out, "--latex")
    assert code == 0
    head = text.splitlines()[5]
    wanted = [f"{m}@{k}" for m in ("NDCG", "HR", "MAP", "F1", "MRR", "coverage") for k in (5, 10)]
    assert head == " & ".join(["run", "system", *wanted]) + r" \\"
    assert r"$\pm$" in text
