"""The study of poisoning: its file, its tables, and that its claims can fail."""

import pytest

from sottovoce.errors import ConfigError
from sottovoce_papers.poisoning import Case, PoisoningConfig, TargetDataConfig, as_claims, as_rows


class FakeWorld:
    def __init__(self, source):
        self.config = TargetDataConfig(source)


class FakeStudy:
    def __init__(self):
        self.config = PoisoningConfig((), shares=(0.01,), attacks=("twin",))
        self.worlds = [FakeWorld("somewhere")]


def found(defended_exposure=0.02, defended_accuracy=0.2):
    clean = [0.0, 0.0, 0.1, 0.2, 0.5]
    return {
        Case(0, "direct"): clean,
        Case(0, "direct", "twin", 0.01, 3): [1.0, 1.0, 0.1, 0.15, 0.5],
        Case(0, "direct", "twin", 0.01, 4): [0.5, 1.0, 0.1, 0.15, 0.5],
        Case(0, "direct, defended"): clean,
        Case(0, "direct, defended", "twin", 0.01, 3): [
            defended_exposure, 0.1, 0.1, defended_accuracy, 0.5,
        ],
    }  # fmt: skip


def holds(figures):
    study = FakeStudy()
    return [c["holds"] for c in as_claims(study, as_rows(study, figures))]


def test_rows_are_means_over_targets():
    rows = as_rows(FakeStudy(), found())
    attacked = next(r for r in rows if r["way"] == "direct" and r["attack"] == "twin")
    assert attacked["ER@10"] == 0.75
    assert attacked["lost"] == pytest.approx(0.25)


def test_claims_fail_where_the_defence_does():
    assert holds(found()) == [True, True]
    assert holds(found(defended_exposure=0.06)) == [True, False]
    assert holds(found(defended_accuracy=0.19)) == [True, False]


@pytest.mark.parametrize("quick", [True, False])
def test_the_installed_file_is_read(quick):
    settings = PoisoningConfig.read(quick)
    assert 0.01 in settings.shares
    assert settings.worlds[0].source == "movielens-100k"


def test_unknown_attacks_raise():
    with pytest.raises(ConfigError, match="no attack"):
        PoisoningConfig((), attacks=("magic",))
