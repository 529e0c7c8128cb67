"""The study of gram beside everything else, on a small town."""

import json

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.central import price
from sottovoce_papers.one_shot import (
    OneShotConfig,
    OneShotStudy,
    OneShotSystem,
    one_shot,
    report_epsilon,
)


def quiet(what, done, total):
    pass


GRAM = {"label": "gram", "line": True, "algorithm": {"name": "gram"}}
SYSTEMS = [GRAM, {"label": "Top-Pop", "seeds": 1, "baseline": {"name": "top-pop"}}]
WANTED = [
    {"data": "town", "system": "gram", "epsilon": 8.0, "least": 0.01},
    {"data": "town", "system": "gram", "epsilon": 1.0, "least": 0.9},
    {"data": "town", "system": "gram", "epsilon": 8.0, "not_below": "Top-Pop", "spare": 0.9},
]


def study(place, **more):
    settings = {"sources": ("town",), "seeds": (0, 1), "epsilons": (1.0, 8.0), **more}
    systems = [OneShotSystem.of(each, n) for n, each in enumerate(SYSTEMS)]
    data = {"town": {"source": "town"}}
    return OneShotStudy(OneShotConfig(**settings), data, systems, WANTED, place, 1, quiet)


def test_rows_claims_groups_and_a_picture(tmp_path):
    made = study(tmp_path / "cells", mixed="town")
    found = one_shot(made, tmp_path / "out")
    named = [(row["system"], row["epsilon"], row["seeds"]) for row in found["rows"]]
    assert named == [("gram", 1.0, 2), ("gram", 8.0, 2), ("Top-Pop", None, 1)]
    assert [one["holds"] for one in found["claims"][:3]] == [True, False, True]
    everybody, alone = found["groups"]
    assert (everybody["who"], alone["who"]) == ("everybody", "the loudest alone")
    assert 0 < everybody["ε = 0.25"] < 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "data:image/svg+xml;base64," in page
    json.dumps({k: v for k, v in found.items() if k != "tables"})


def test_nothing_is_run_twice(tmp_path, monkeypatch):
    first = study(tmp_path).table("town")
    monkeypatch.setattr(OneShotStudy, "_train", lambda *_: pytest.fail("trained again"))
    assert study(tmp_path).table("town") == first


def test_an_epsilon_goes_to_release_and_consent_or_to_a_baseline():
    gram = OneShotSystem.of(GRAM, 0).sections_at("town", 2.0)
    assert gram["release"] == gram["consent"] == {"epsilon": 2.0}
    rival = OneShotSystem.of({"label": "x", "line": True, "baseline": {"name": "dpals"}}, 0)
    assert rival.sections_at("town", 2.0)["baseline"] == {"name": "dpals", "epsilon": 2.0}


def test_what_a_user_pays_in_all_is_the_epsilon_of_the_figure():
    """However settings follow from it: never more, and hardly less."""
    noisy = {"label": "x", "pays": "sums", "algorithm": {"rounds": 20}, "link": {"clip": 4.0}}
    link = OneShotSystem.of(noisy, 0).sections_at("town", 2.0)["link"]
    assert link["clip"] == 4.0
    assert 1.99 < price(link["noise"], 20) <= 2.0
    bits = {"label": "x", "pays": "times", "times": 50, "baseline": {"name": "dplcf"}}
    assert OneShotSystem.of(bits, 0).sections_at("town", 2.0)["baseline"]["epsilon"] * 50 == 2.0
    reports = {"label": "x", "pays": "reports", "times": 900, "algorithm": {"rounds": 4},
               "release": {"name": "k-reports", "max_reports": 5}}  # fmt: skip
    found = OneShotSystem.of(reports, 0).sections_at("town", 0.5)
    [tier] = found["release"]["tiers"]
    assert tier["min_devices"] == 900
    assert 0.49 < certify(tier["epsilon"], 5, 4, 900).with_proxy <= 0.5
    assert found["consent"]["total_epsilon"] == tier["epsilon"] * 20


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="pays must be one of once, times"):
        OneShotSystem.of({"label": "x", "pays": "never"}, 0)
    with pytest.raises(ConfigError, match="cannot cost as little"):
        report_epsilon(1e-6, 5, 4, 900)
    with pytest.raises(ConfigError, match=r"systems\[3\]"):
        OneShotSystem.of({"label": "x", "colour": "red"}, 3)
    with pytest.raises(ConfigError, match=r"no \[data\.moon\]"):
        study(tmp_path, sources=("moon",))


@pytest.mark.parametrize("name", ["one-shot", "one-shot-rivals"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick, name, monkeypatch):
    monkeypatch.setattr("sottovoce_papers.one_shot.report_epsilon", lambda *_: 0.5)  # seconds each
    made = OneShotStudy.read(name, quick, tmp_path, 1, quiet)
    labels = {system.label for system in made.systems}
    assert {wanted["system"] for wanted in made.wanted} <= labels
    for source in made.config.sources:
        for system in made.systems:
            for epsilon in made.config.epsilons if system.line else (None,):
                sections = system.sections_at(source, epsilon)
                assert made.experiment(source, 0, sections).seed == 0
    assert made.name == name
    assert name in reproduce.NAMES


def test_cells_keep_what_each_user_chose(tmp_path):
    made = study(tmp_path)
    mix = [{"weight": 1, "epsilon": 0.5}, {"weight": 1, "epsilon": 8.0}]
    sections = made.systems[0].sections_at("town", 8.0) | {"consent": {"mix": mix}}
    cell = made.cell("town", 0, sections)
    assert set(np.unique(cell["epsilon"])) == {0.5, 8.0}
    assert len(cell["values"]) == len(cell["users"])
