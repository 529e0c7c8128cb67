"""The systems of the five papers, as their commands run them."""

import importlib.util

import pytest

from sottovoce.experiment import Experiment, find_experiment, shipped_experiments
from sottovoce.runs.standing import origin, standing
from sottovoce.runs.train import run_experiment

TRAINED = {
    "fpl": ["town.residents=300", "algorithm.epochs=60"],
    "fcf": ["town.residents=300", "algorithm.rounds=60"],
    "fmf": [],
    "drift": ["algorithm.epochs=20"],
    "uc": ["algorithm.rounds=15"],
}
"""Settings for a training of a second or two."""
ABOVE_POPULARITY = {"fpl", "fcf", "uc"}


def read(name, *settings):
    return Experiment.from_file(find_experiment(name), list(settings))


def test_a_bare_name_is_the_system_as_printed():
    shipped = shipped_experiments()
    assert {name for name in shipped if name.startswith("papers/")} == {
        f"papers/{name}" for name in TRAINED
    }
    for name in TRAINED:
        assert find_experiment(name) == find_experiment(f"papers/{name}")
    for word in ("papers", "tuned", "sums", "sound"):
        for name in (name for name in shipped if name.startswith(f"{word}/")):
            assert origin(read(name)) == ("as printed" if word == "papers" else "ours"), name


def test_what_is_changed_is_no_longer_as_printed():
    for name, setting in (
        ("fpl", "algorithm.server_rate=0.1"),
        ("fpl", 'algorithm.draws_by="interaction"'),
        ("fpl", 'release.per="item"'),
        ("fpl", 'link={name="secure-sum", min_devices=20}'),
        ("fcf", "algorithm.by_density=true"),
        ("fcf", 'link={name="secure-sum", min_devices=20}'),
        ("fmf", 'algorithm.variant="rotated"'),
        ("fmf", "release.tiers=[{epsilon=1.0}, {epsilon=2.5}]"),
        ("drift", 'algorithm.negatives="untouched"'),
        ("drift", 'algorithm.release="aggregated"'),
        ("uc", 'algorithm.target="prior"'),
        ("uc", 'algorithm.filters="moments"'),
    ):
        assert origin(read(name, setting)) == "ours", setting
    for other in ('algorithm.configuration="sFPL"', 'algorithm.draws_by="positives"'):
        assert origin(read("fpl", other)) == "as printed"


def test_they_are_what_the_papers_print():
    fpl, fmf, drift, uc = (read(name) for name in ("fpl", "fmf", "drift", "uc"))
    step = fpl.algorithm.step()
    rate = fpl.algorithm.learning_rate
    assert (step.reg_user, step.reg_positive) == (rate / 20, rate / 20)
    assert (step.reg_negative, step.reg_bias) == (rate / 200, 0.0)
    assert fpl.algorithm.plan(1000, 26_999).triples == 26
    assert (fmf.algorithm.embedding_size, fmf.algorithm.server_steps) == (5, 20)
    assert (fmf.release.max_reports, fmf.release.tiers[0].epsilon) == (100, 2.5)
    assert (drift.algorithm.theta, drift.algorithm.positive_from) == (2, 3.0)
    assert drift.owners.by == "categories"
    assert (uc.algorithm.embedding_size, uc.algorithm.filter_rate) == (128, 0.01)
    assert uc.algorithm.learning_rate == 0.1


@pytest.mark.parametrize("name", TRAINED)
def test_it_learns_more_than_chance_on_the_town(name, tmp_path):
    if name == "uc" and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    least = ["baselines={random={}, top-pop={}}", 'evaluation.metrics=["precision"]']
    outcome = run_experiment(read(name, *least, *TRAINED[name]), tmp_path / "run")
    own, random, popular = (
        outcome.evaluations[label].summary()["P@10"]
        for label in (outcome.system, "random", "top-pop")
    )
    assert own > 1.5 * random
    if name in ABOVE_POPULARITY:
        assert own > popular
    stands = standing(outcome.experiment, outcome.folder.ledger())
    assert stands.short.startswith("as printed, ")
