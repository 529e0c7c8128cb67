"""UC-FedRec's figures: the harness on a small town with planted hits and leaks, and the files."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.attacks.suite.a08_attributes import auc
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import Diverged
from sottovoce.rng import Streams
from sottovoce_papers import uc_figures, uc_sweeps, uc_systems
from sottovoce_papers.uc_study import Attacked, AttackJob, AttackWork, UCStudy, UCStudyConfig
from sottovoce_papers.uc_training import ATTRIBUTES, UCData

ML100K = "movielens-100k"
TOWN = generate_town(TownConfig(residents=160, venues=90))
SETTINGS = {"embedding_size": 8, "rounds": 6, "cohort_size": 32, "clip": 64.0}
SMALL = UCStudyConfig(
    sources=(ML100K,), recommenders=("mf",), seeds=(0, 1), stops=2, choose_from=1.0,
    betas=(0.5, 0.8), alphas=(0.3, 0.5, 1.0), sigmas=(1.0, 7.0), epsilons=(0.1, 0.7), negatives=20,
)  # fmt: skip
VIEWS = {
    3: uc_sweeps.figure3, 4: uc_figures.figure4, 5: uc_figures.figure5,
    6: uc_sweeps.figure6, 7: uc_figures.figure7, 8: uc_sweeps.figure8,
}  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A model whose hits and leaks are made up: who hides more is served worse, and what is hidden
    is told less clearly. `harm` is what others lose, and `leaky` filters hide nothing."""

    training: object
    round: int
    harm: float = 0.0
    leaky: bool = False
    sent: tuple = (0, 0)

    @property
    def rows(self):
        return np.zeros((self.training.world.train.n_items, 9), np.float32)

    @property
    def embeddings(self):
        return np.zeros((self.training.world.n_users, 8), np.float32)

    def scorer(self):
        return self

    @property
    def n_items(self):
        return self.training.world.train.n_items

    def scores(self, users):
        t = self.training
        users = np.asarray(users)
        rng = Streams.from_seed(t.seed)
        scores = rng.child("scores").uniform(users, self.n_items).astype(np.float32)
        hidden = t.consent.hidden_attributes[users].sum(axis=1)
        chance = 0.95 - (0.2 * hidden + self.harm) * t.consent.strength[users]
        if not t.settings.attributes:
            chance = np.full(len(users), 0.95)
        chance = chance * (1 - np.exp(-0.5 * self.round))
        lucky = rng.child("luck").uniform(users, 1)[:, 0] < chance
        for part in (t.world.validation, t.world.test):
            item = part.items[part.indptr[users]]  # each user has one
            there = np.flatnonzero(lucky & (item < self.n_items))
            scores[there, item[there]] = 2.0
        return scores

    def representations(self):
        t = self.training
        users = np.arange(t.world.n_users)
        noise = Streams.from_seed(t.seed).child("noise")
        columns = []
        for name in ("gender", "age", "occupation"):
            codes = t.world.labels[name].codes
            classes = len(t.world.labels[name].values)
            told = 2.0 * (codes[:, None] == np.arange(classes))
            if name in t.settings.names and not self.leaky:
                hidden = t.consent.hidden_attributes[:, t.settings.names.index(name)]
                told *= np.where(hidden, 1 - t.consent.strength, 1.0)[:, None]
            columns.append(told + noise.child(name).normal(users, classes))
        return np.concatenate(columns, axis=1).astype(np.float32)


def planted(**how):
    def trainer(training, show):
        for round in training.stops:
            show(Planted(training, round, **how))

    return trainer


def guess(attack):
    """One simple attacker instead of six: the nearest mean."""
    codes, public = attack.labels.codes, ~attack.private
    table = attack.table.astype(np.float64)
    classes = np.unique(codes[public])
    means = np.stack([table[public & (codes == c)].mean(axis=0) for c in classes])
    distance = ((table[:, None] - means) ** 2).sum(axis=2)[attack.private]
    p = np.exp(-(distance - distance.min(axis=1, keepdims=True)))
    p /= p.sum(axis=1, keepdims=True)
    truth = np.searchsorted(classes, codes[attack.private])
    right = float((p.argmax(axis=1) == truth).mean())
    usual = float(np.bincount(truth).max() / len(truth))
    ranked = auc(p, truth)
    return Attacked(
        attribute=attack.attribute, auc=ranked, auc_low=ranked - 0.05, auc_high=ranked + 0.05,
        auc_by="nearest mean", f1=right, f1_low=right, f1_high=right, f1_by="nearest mean",
        majority=usual, strong="nearest mean" if ranked > 0.6 else "", families={},
        classes=len(classes), public=int(public.sum()), private=len(truth), verdict="",
    ).to_arrays()  # fmt: skip


@pytest.fixture(autouse=True)
def one_attacker(monkeypatch):
    monkeypatch.setattr(AttackWork, "run", guess)


def new_study(folder, trainer=None, **changes):
    study = UCStudy(
        replace(SMALL, **changes), {ML100K: {"mf": SETTINGS}}, folder, 1, lambda *done: None,
        trainer=trainer or planted(),
    )  # fmt: skip
    study.add_world(UCData.of(ML100K, TOWN))
    return study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cells")


def verdicts(result, part):
    found = [c["holds"] for c in result["claims"] if part in c["claim"]]
    assert found, f"no claim has {part!r}"
    return found


# --- all figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", VIEWS)
def test_every_figure_has_rows_claims_and_pictures(folder, tmp_path, number):
    result = VIEWS[number](new_study(folder), tmp_path)
    assert result["name"] == f"uc-figure{number}"
    assert list((tmp_path / "figures").glob("*.svg"))
    assert Path(result["report"]).exists()
    assert result["claims"]
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    expected = {3: 3 * (1 + 2 + 2 + 2 + 2), 4: 2 * 2, 5: 3 * 3, 6: 3 * 3, 7: 2 * 4, 8: 3}[number]
    assert len(result["rows"]) == expected
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


# --- who pays ------------------------------------------------------------------------------------


def test_those_who_hide_nothing_are_compared_with_themselves(folder, tmp_path):
    fair = uc_figures.figure4(new_study(folder), tmp_path)
    assert verdicts(fair, "hide nothing keep") == [True]
    kept = {(r["beta"], r["users"]): r["kept"] for r in fair["rows"]}
    assert kept[0.5, "those who hide nothing"] == kept[0.8, "those who hide nothing"] == 1.0
    assert kept[0.8, "those who hide something"] < kept[0.5, "those who hide something"] < 1.0
    harmed = new_study(tmp_path / "cells", planted(harm=0.4), seeds=(0,))
    unfair = uc_figures.figure4(harmed, tmp_path)
    assert verdicts(unfair, "hide nothing keep") == [False]
    row = unfair["rows"][0]
    assert row["apart"] < 0
    assert row["low"] < row["apart"] < row["high"]


def test_who_hides_more_keeps_less(folder, tmp_path):
    result = uc_figures.figure7(new_study(folder, alpha=0.5), tmp_path)
    strong = [r for r in result["rows"] if r["beta"] == 0.8]
    assert [r["hidden"] for r in strong] == [0, 1, 2, 3]
    assert sum(r["share"] for r in strong) == pytest.approx(1.0)
    assert strong[0]["kept"] == 1.0 > strong[-1]["kept"]


def test_what_is_said_about_many_attributes_can_fail():
    falling = {0: (0.8, 0.5, 0.8), 1: (0.78, 0.49, 0.8), 3: (0.74, 0.46, 0.8)}
    assert [c["holds"] for c in uc_figures._claims7(falling, "here")] == [True, True]
    rising = {0: (0.8, 0.5, 0.8), 1: (0.6, 0.4, 0.8), 3: (0.65, 0.4, 0.8)}
    assert [c["holds"] for c in uc_figures._claims7(rising, "here")] == [False, False]


def test_the_gap_is_that_of_the_users_asked_about(folder):
    study = new_study(folder)
    base = uc_systems.train(study, ML100K, "mf")
    line = uc_systems.train(study, ML100K, "mf", 0.8)
    some = uc_systems.apart(line, base, lambda cell: uc_systems.hidden_count(study, cell) > 0)
    none = uc_systems.apart(line, base, lambda cell: uc_systems.hidden_count(study, cell) == 0)
    assert some.difference < 0 == none.difference
    wanted = line.scores(lambda c: uc_systems.hidden_count(study, c) > 0)[0]
    assert wanted < base.scores()[0]


# --- what leaks ----------------------------------------------------------------------------------


def test_the_right_filter_hides_the_right_attribute(folder, tmp_path):
    result = uc_figures.figure5(new_study(folder, betas=(0.8,)), tmp_path)
    assert verdicts(result, "own filter") == [True]
    left = {(r["attribute"], r["filter"]): r["left"] for r in result["rows"]}
    for name in ATTRIBUTES[ML100K]:
        assert left[name, name] == min(left[name, f] for f in ATTRIBUTES[ML100K])
    leaky = new_study(tmp_path / "cells", planted(leaky=True), betas=(0.8,), seeds=(0,))
    assert verdicts(uc_figures.figure5(leaky, tmp_path), "own filter") == [False]


def test_attackers_elsewhere_ask_those_who_hide_the_filter(tmp_path, monkeypatch):
    study = new_study(tmp_path)
    seen = []

    def note(attack):
        seen.append(attack)
        return guess(attack)

    monkeypatch.setattr(AttackWork, "run", note)
    cell = study.cell(ML100K, "mf", 1, 0.5, attributes=("gender",))
    jobs = [AttackJob(cell, "age", hidden="gender")]
    first = study.attack_all(jobs)
    assert seen[0].attribute == "age"
    assert np.array_equal(seen[0].private, study.private(cell, "gender"))
    assert study.attack_all(jobs) == first
    assert len(seen) == 1  # the second time it was kept


def test_trade_off_by_share_of_hiders(folder, tmp_path):
    result = uc_sweeps.figure6(new_study(folder), tmp_path)
    assert verdicts(result, "falls by half") == [True]
    assert {r["alpha"] for r in result["rows"]} == {0.3, 0.5, 1.0}
    leaky = new_study(tmp_path / "cells", planted(leaky=True), alphas=(0.3,), seeds=(0,))
    assert verdicts(uc_sweeps.figure6(leaky, tmp_path), "falls by half") == [False]


def test_equal_leakage_is_read_between_points(folder):
    study = new_study(folder)
    lines = [uc_systems.train(study, ML100K, "mf", b) for b in (None, 0.8)]
    found = uc_systems.guess(study, lines, ["gender"])
    pairs = [(line, some["gender"]) for line, some in zip(lines, found, strict=True)]
    (high, low), (best, worst) = (
        [guessed.leak for _, guessed in pairs], [line.scores()[0] for line in lines],
    )  # fmt: skip
    assert uc_sweeps._at_leak(pairs, (high + low) / 2) == pytest.approx((best + worst) / 2)
    assert uc_sweeps._at_leak(pairs, low) == pytest.approx(worst)


def guessed(gain):
    one = Attacked(
        "gender", 0.5 + gain, 0.4, 0.6, "x", 0.5, 0.4, 0.6, "x", 0.5, "", {}, 2, 9, 9, ""
    )
    return uc_systems.Guessed("gender", (one,))


def point(group, gain, hr, strength=""):
    return uc_sweeps.TradeOff(
        uc_systems.UCSystem(group, strength, (), ()), (hr, hr / 2), guessed(gain)
    )


def test_a_rival_that_is_as_private_and_as_useful_is_named():
    base, ours = point(uc_systems.BASE, 0.3, 0.84), point(uc_systems.UC, 0.04, 0.76, "β=0.8")
    weak, strong = point("noise", 0.2, 0.80, "σ=1"), point("noise", 0.03, 0.50, "σ=7")
    found = uc_sweeps._claims3([base, ours, weak, strong], "gender", "here")
    assert [c["holds"] for c in found] == [True, True, True, True]
    better = point("noise", 0.03, 0.77, "σ=5")
    found = uc_sweeps._claims3([base, ours, weak, better], "gender", "here")
    assert [c["holds"] for c in found] == [True, False, True, False]
    assert "noise, σ=5" in found[1]["detail"]
    leaky = point(uc_systems.UC, 0.2, 0.76, "β=0.8")
    found = uc_sweeps._claims3([base, leaky, strong], "gender", "here")
    assert not found[2]["holds"]


def test_a_rival_that_cannot_be_trained_is_a_note(tmp_path):
    honest = planted()

    def trainer(training, show):
        if training.release.epsilon:
            raise Diverged("too much noise")
        honest(training, show)

    few = {"seeds": (0,), "attributes": ("gender",), "betas": (0.8,), "sigmas": ()}
    result = uc_sweeps.figure3(new_study(tmp_path, trainer, **few), tmp_path)
    assert [r["protection"] for r in result["rows"]] == [
        "base model", "UC-FedRec, β=0.8", "early stopping, as β=0.8",
    ]  # fmt: skip
    assert [n[:28] for n in result["tables"][0].notes] == [
        "Noisier uploads with ε=0.7: ", "Noisier uploads with ε=0.1: ",
    ]  # fmt: skip


def test_curves_run_from_the_base_model_to_stronger_protection():
    points = [point(uc_systems.BASE, 0.3, 0.84), point(uc_systems.UC, 0.1, 0.8, "β=0.5"),
              point(uc_systems.UC, 0.0, 0.7, "β=0.8")]  # fmt: skip
    curves = uc_sweeps._curves(points)
    assert curves[uc_systems.UC] == ([0.8, 0.6, 0.5], [0.84, 0.8, 0.7])
    assert curves[uc_systems.BASE] == ([0.8], [0.84])


# --- convergence ---------------------------------------------------------------------------------


def course(values, label="x"):
    return uc_sweeps.Course(label, np.arange(1, len(values) + 1) * 10, np.array(values))


def test_a_curve_settles_where_it_first_comes_near_its_best():
    curve = course([0.2, 0.7, 0.6, 0.795, 0.8])
    assert (curve.reaches(0.5), curve.reaches(0.99), curve.reaches(1.0)) == (20, 40, 50)
    assert curve.unsteady == pytest.approx(0.1 / 4)
    assert course([0.3]).unsteady == 0.0


def test_what_is_said_about_convergence_can_fail():
    base = course([0.5, 0.7, 0.8, 0.8])
    slow = course([0.3, 0.6, 0.79, 0.79], "slow start")
    said = [c["holds"] for c in uc_sweeps._claims8([base, slow], "here")]
    assert said == [True, True, False]
    late = course([0.5, 0.6, 0.5, 0.7], "late")
    said = [c["holds"] for c in uc_sweeps._claims8([base, late], "here")]
    assert said == [False, False, True]


def test_curves_are_the_validation_of_every_look(folder, tmp_path):
    result = uc_sweeps.figure8(new_study(folder), tmp_path)
    assert [c["rounds"] for c in result["curves"]] == [[2, 4, 6]] * 3
    base = new_study(folder).trained(new_study(folder).cell(ML100K, "mf", 0))
    other = new_study(folder).trained(new_study(folder).cell(ML100K, "mf", 1))
    mean = (base.validation_hr + other.validation_hr) / 2
    assert result["curves"][0]["HR@10"] == pytest.approx(mean.tolist(), abs=1e-6)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("number", VIEWS)
def test_the_installed_files_are_valid(number, quick, tmp_path):
    study = UCStudy.read(f"uc-figure{number}", quick, tmp_path, 1, lambda *done: None)
    assert (study.config.sources == (ML100K,)) == quick
    labels = {**TOWN.user_attributes, "location": TOWN.user_attributes["district"]}
    for source, recommender in uc_systems.places(study):
        study.add_world(UCData.of(source, replace(TOWN, user_attributes=labels)))
        for beta in (None, *study.config.betas):
            settings = study.settings(study.cell(source, recommender, 0, beta))
            assert settings.recommender == recommender
            assert bool(settings.attributes) == (beta is not None)
