"""The presets that survive attacks, and those that only sum, run as they are, and are what their
comments say."""

import math

import pytest

from sottovoce.core.links import Proxied, SecureSum
from sottovoce.experiment import Experiment, find_experiment, shipped_folder
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports
from sottovoce.runs.train import run_experiment

SHIPPED = shipped_folder("experiments")
FILES = {
    f"{kind}/{p.stem}": p
    for kind in ("sound", "sums")
    for p in sorted((SHIPPED / kind).glob("*.toml"))
}
SUMS = {"sums/fpl", "sums/fcf", "sums/uc", "sums/combined"}
SHORT = {
    "sums/fpl": ["algorithm.epochs=1"],
    "sound/fpl": ["algorithm.rounds=3"],
    "sums/fcf": ["algorithm.rounds=3"],
    "sound/fmf": ["algorithm.rounds=2"],
    "sums/uc": ["algorithm.rounds=2"],
    "sums/combined": ["algorithm.rounds=2"],
    "sound/gram": ["town.residents=1000"],
}


def read(name, *settings):
    return Experiment.from_file(FILES[name], settings)


def test_what_attacks_break_is_not_called_sound():
    assert {name for name in FILES if name.startswith("sums/")} == SUMS
    for name in SUMS:
        assert find_experiment(name) == FILES[name]


def test_there_is_one_for_each_system():
    """Tests of its own are for DRIFT, which has no links."""
    assert set(FILES) - {"sound/drift"} == set(SHORT)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "sums/combined" else n for n in sorted(SHORT)],
)
def test_it_runs_on_the_town(name, tmp_path):
    experiment = read(name, *SHORT[name])
    assert experiment.data.source == "town"
    outcome = run_experiment(experiment, tmp_path / "run")
    assert (tmp_path / "run" / "model.npz").exists()
    assert 0 <= outcome.evaluations[outcome.system].summary()["P@10"] <= 1


@pytest.mark.parametrize("name", sorted(SHORT))
def test_no_single_update_reaches_the_server_in_the_clear(name):
    """By the sight table of the link, which tests of its own hold the engines to."""
    link = read(name).cross_device().link
    assert isinstance(link, SecureSum | Proxied)
    assert "DeviceReports" not in link.sees["server"]


@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_sum_hides_in_hundreds(name):
    experiment = read(name)
    assert experiment.cross_device().link.min_devices >= 200


def test_pi_is_per_item():
    for name in ("sums/fpl", "sound/fpl"):
        assert read(name).release == ShareFraction("item")


def test_the_noise_costs_what_the_comment_says():
    experiment = read("sound/fpl")
    link, rounds = experiment.cross_device().link, experiment.algorithm.rounds
    assert 7.5 < price(link.noise, rounds) <= 8.0
    assert math.isinf(price(read("sums/fpl").cross_device().link.noise, rounds))


def test_who_reports_is_mixed_with_others_of_her_tier():
    release = read("sound/fmf").release
    assert isinstance(release, KReports)
    assert len(release.tiers) == 2
    assert min(tier.min_devices for tier in release.tiers) >= 200


def test_many_wishes_in_one_federation():
    choices = read("sums/combined").consent.choices
    assert {c.share_positives for c in choices if c.takes_part} == {0.0, 0.5, 1.0}
    assert {c.hidden_attributes for c in choices} == {(), ("gender",), ("gender", "age")}
    assert not all(c.takes_part for c in choices)
