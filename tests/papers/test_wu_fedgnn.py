"""The study of Wu et al.'s FedGNN: a small one from end to end, and its file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, DataNotFound
from sottovoce_papers import wu_fedgnn
from sottovoce_papers.wu_fedgnn import WuStudy, WuStudyConfig, WuVariant, first_there
from sottovoce_papers.wu_system import WuConfig

TOWN = generate_town(TownConfig(residents=60, venues=300, visits_per_resident=25))
PRINTED = WuConfig(
    embedding_size=8, learning_rate=0.03, item_rate=5.0, user_rate=0.03, cohort_size=60, epochs=3,
    pseudo_items=80,
)  # fmt: skip
VARIANTS = {
    "printed": WuVariant("printed", PRINTED),
    "fixed": WuVariant("fixed", replace(PRINTED, pseudo="fixed")),
}


def quiet(what, done, total):
    pass


def new_study(folder):
    config = WuStudyConfig(watched=30, neighbours=5, top=10)
    return WuStudy(config, VARIANTS, TOWN, folder, 1, quiet)


def test_a_small_study_from_end_to_end(tmp_path, monkeypatch):
    found = wu_fedgnn.wu_fedgnn(new_study(tmp_path / "cells"), tmp_path / "out")
    tables = found.pop("tables")
    assert [row["system"] for row in found["rows"]] == ["Top-Pop", "BPR-MF", "printed", "fixed"]
    assert {"P@10", "P@10_paper", "HR@10", "NDCG@10"} <= set(found["rows"][0])
    assert Path(found["report"]).exists()
    assert "ε = ∞" in " ".join(tables[1].notes)
    tried = {(a["run"], a["attack"]): a for a in found["attacks"]}
    assert len(tried) == 2 * 4
    assert tried["printed", "recurrence"]["verdict"] == "guesses"
    assert tried["fixed", "recurrence"]["verdict"] == "no better than chance"
    holds = {c["claim"]: c["holds"] for c in found["claims"]}
    assert [v for text, v in holds.items() if "looks twice" in text] == [False]
    assert [v for text, v in holds.items() if "from recurrence" in text] == [True]
    json.dumps(found, allow_nan=False)
    monkeypatch.setattr(WuStudy, "_train", None)  # a second training would fail
    again = wu_fedgnn.wu_fedgnn(new_study(tmp_path / "cells"), tmp_path / "out")
    assert again["rows"] == found["rows"]


def test_the_first_data_set_that_is_there_is_taken(monkeypatch):
    def load(name):
        if name == "movielens-1m":
            raise DataNotFound("not here")
        return name

    monkeypatch.setattr(wu_fedgnn, "load", load)
    assert first_there(("movielens-1m", "town")) == "town"
    assert first_there(("town", "movielens-1m")) == "town"
    with pytest.raises(DataNotFound):
        first_there(("movielens-1m",))
    with pytest.raises(ConfigError, match="sources"):
        WuStudyConfig(sources=())


@pytest.mark.parametrize("quick", [True, False])
def test_the_installed_file_is_read(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(wu_fedgnn, "load", lambda name: TOWN)
    study = WuStudy.read("wu-fedgnn", quick, tmp_path, 1, quiet)
    assert list(study.variants) == ["printed", "fixed", "quiet"]
    assert study.variants["printed"].settings.clip == 0.1
    assert study.variants["printed"].settings.noise == 0.2
    assert (study.config.sources == ("town",)) == quick
