"""Studies whose systems are experiments: gram beside everything else, and shipped presets."""

import json

import numpy as np
import pytest

from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.central import price
from sottovoce_papers import experiments
from sottovoce_papers.cells import Cells, differing
from sottovoce_papers.experiments import OWN, report_epsilon, sections_of
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.lines import Job
from sottovoce_papers.worlds import StudyData, StudyWorld

GRAM = {"label": "gram", "kind": "experiment", "settings": {"algorithm": {"name": "gram"}}}
FLOOR = {"label": "Top-Pop", "kind": "experiment", "settings": {"baseline": {"name": "top-pop"}}}


def quiet(what, done, total):
    pass


def town(table, **more):
    """A file on the town alone, with few systems."""
    return {**table, "study": {"data": ["town"], "seeds": [0, 1]}, **more}


def test_rows_claims_groups_and_a_picture(tmp_path):
    table = installed("one-shot")
    (groups,) = table["sets"]["groups"]
    sets = {
        "main": [{"systems": ["gram"], "vary": {"epsilon": [1.0, 8.0]}}, {"systems": ["floor"]}],
        "groups": [{**groups, "systems": ["gram"], "data": ["town"]}],
    }
    study = town(table, sets=sets, systems={"gram": GRAM, "floor": {**FLOOR, "seeds": 1}})
    found = StudyFile("one-shot", study).run(Cells(tmp_path / "cells", 1, quiet), tmp_path / "out")
    rows = [row for row in found["rows"] if "set" not in row]
    named = [(row["system"], row.get("epsilon"), row["seeds"]) for row in rows]
    assert named == [("gram", 1.0, 2), ("gram", 8.0, 2), ("Top-Pop", None, 1)]
    everybody, alone = [row for row in found["rows"] if "set" in row]
    assert (everybody["who"], alone["who"]) == ("everybody", "the loudest alone")
    assert 0 < everybody["ε = 0.25"] < 1
    (said,) = found["claims"]
    assert said["claim"] == "town: gram is better with those who whisper than without them"
    assert "data:image/svg+xml;base64," in (tmp_path / "out" / "report.html").read_text()
    json.dumps({k: v for k, v in found.items() if k != "tables"})


def test_an_epsilon_goes_to_release_and_consent_or_to_a_baseline():
    gram = sections_of({"algorithm": {"name": "gram"}, "epsilon": 2.0})
    assert gram["release"] == gram["consent"] == {"epsilon": 2.0}
    rival = sections_of({"baseline": {"name": "dpals"}, "epsilon": 2.0})
    assert rival["baseline"] == {"name": "dpals", "epsilon": 2.0}


def test_what_a_user_pays_in_all_is_the_epsilon_of_the_figure():
    """However settings follow from it: never more, and hardly less."""
    noisy = {"pays": "sums", "algorithm": {"rounds": 20}, "link": {"clip": 4.0}}
    link = sections_of({**noisy, "epsilon": 2.0})["link"]
    assert link["clip"] == 4.0
    assert 1.99 < price(link["noise"], 20) <= 2.0
    bits = {"pays": "times", "times": 50, "baseline": {"name": "dplcf"}, "epsilon": 2.0}
    assert sections_of(bits)["baseline"]["epsilon"] * 50 == 2.0
    reports = {"pays": "reports", "times": 900, "algorithm": {"rounds": 4}, "epsilon": 0.5,
               "release": {"name": "k-reports", "max_reports": 5}}  # fmt: skip
    found = sections_of(reports)
    [tier] = found["release"]["tiers"]
    assert tier["min_devices"] == 900
    assert 0.49 < certify(tier["epsilon"], 5, 4, 900).with_proxy <= 0.5
    assert found["consent"]["total_epsilon"] == tier["epsilon"] * 20


def test_another_epsilon_is_another_cell():
    def key(**settings):
        job = Job(StudyWorld("town", StudyData("town")), settings, "test", 0, (), None)
        return differing(experiments.ExperimentKind().key(job))

    for one in ({"baseline": {"name": "dpals"}}, {"algorithm": {"name": "gram"}}):
        assert key(**one, epsilon=1.0) != key(**one, epsilon=8.0)
        assert key(**one, epsilon=1.0) == key(**one, epsilon=1.0)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="pays must be one of once, times"):
        sections_of({"pays": "never", "epsilon": 1.0})
    with pytest.raises(ConfigError, match="cannot cost as little"):
        report_epsilon(1e-6, 5, 4, 900)


@pytest.mark.parametrize("name", ["one-shot", "one-shot-rivals", "presets"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_system_is_an_experiment_on_every_data_set(tmp_path, quick, name, monkeypatch):
    monkeypatch.setattr(experiments, "report_epsilon", lambda *_: 0.5)  # seconds each
    study = StudyFile(name, installed(name, quick))
    entries = study.table.get("sets", {"main": [{}]})["main"]
    for key, data in study.worlds.items():
        for system in study.systems:
            epsilons = [
                one
                for entry in entries
                if system.key in entry.get("systems", ())
                for one in entry.get("vary", {}).get("epsilon", [])
            ]
            settings, _ = system.on(StudyWorld(key, data))
            for more in [{"epsilon": one} for one in epsilons] or [{}]:
                job = Job(StudyWorld(key, data), {**settings, **more}, "test", 3, (), None)
                assert experiments.experiment_of(job).seed == 3


def test_cells_keep_what_each_user_chose(tmp_path):
    mix = [{"weight": 1, "epsilon": 0.5}, {"weight": 1, "epsilon": 8.0}]
    cells = Cells(tmp_path, 1, quiet)
    settings = {"algorithm": {"name": "gram"}, "epsilon": 8.0, "mix": mix}
    job = Job(StudyWorld("town", StudyData("town")), settings, "test", 0, (), cells)
    (found,) = experiments.ExperimentKind().train(job).looks.values()
    assert set(np.unique(found.values[OWN])) == {0.5, 8.0}


def test_presets_are_shown_beside_the_best_central_system(tmp_path):
    table = installed("presets")
    systems = {
        "top-pop": FLOOR,
        "item-knn": {**FLOOR, "label": "item", "settings": {"baseline": {"name": "item-knn"}}},
        "user-knn": {**FLOOR, "label": "user", "settings": {"baseline": {"name": "user-knn"}}},
        "own": {
            "label": "pFPL+, two rounds",
            "kind": "experiment",
            "settings": {"preset": "tuned/fpl", "lay": {"algorithm": {"rounds": 2}}},
        },
    }
    table["claims"][0]["least"] = {"own": 0.999}
    study = StudyFile("presets", town(table, systems=systems))
    found = study.run(Cells(tmp_path / "cells", 1, quiet), tmp_path / "out")
    best, floor, own = [row for row in found["rows"] if row.get("set") == "table"]
    assert best["system"].startswith("best central (")
    assert (best["share"], floor["system"]) == (1.0, "Top-Pop")
    assert own["share"] == own["NDCG@10"] / best["NDCG@10"] < 1.0
    median, silent = found["claims"]
    assert not median["holds"]  # it is not nearly the best after two rounds
    assert silent["holds"]
    assert own["warned"]
