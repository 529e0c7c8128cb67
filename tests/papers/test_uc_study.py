"""UC-FedRec's tables: the harness on a small world, with a stand-in for training and attackers."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.errors import ConfigError, Diverged, UsageError
from sottovoce.rng import Streams

pytest.importorskip("torch")

from sottovoce.attacks.drift import Interval
from sottovoce.attacks.suite.a08_attributes import AttackerOutcome, Inference, TooLittle
from sottovoce_papers import uc_study as uc_attacked
from sottovoce_papers import uc_table3, uc_tables
from sottovoce_papers.uc_study import AttackJob, UCCell, UCStudy, UCStudyConfig
from sottovoce_papers.uc_systems import Guessed, noisier, perturbed, stopped
from sottovoce_papers.uc_tables import UCLine, gain_left
from sottovoce_papers.uc_training import AGES, ATTRIBUTES, UCData, UCSnapshot, federated

SOURCE = "movielens-100k"
SETTINGS = {
    SOURCE: {
        name: {
            "embedding_size": 8, "rounds": 6, "cohort_size": 40, "pairs": 8, "local_epochs": 2,
            "filters": "two-layer",
        }
        for name in ("mf", "ncf", "gnn")
    }
}  # fmt: skip
SMALL = UCStudyConfig(
    (SOURCE,),
    ("mf",),
    ("gender", "age"),
    seeds=(0, 1),
    stops=2,
    negatives=25,
    scalar_epsilon=0.5,
    as_published=True,
)


def quiet(what, done, total):
    pass


def small_data(users=150, items=60):
    """Two tastes, which go with gender; ages mean nothing."""
    draw = np.random.default_rng(3)
    gender = draw.integers(0, 2, users)
    likes = np.where((np.arange(items) % 2)[None] == gender[:, None], 0.45, 0.12)
    u, i = np.nonzero(draw.random((users, items)) < likes)
    table = Interactions.from_pairs(
        u, i, n_users=users, n_items=items, timestamps=draw.integers(0, 50, len(u))
    )
    labels = {
        "gender": Labels(gender.astype(np.int32), ("F", "M")),
        "age": Labels.of([str(a) for a in draw.integers(10, 70, users)]),
        "occupation": Labels(np.zeros(users, dtype=np.int32), ("any",)),
    }
    return Dataset("small", table, labels)


def stand_in(curve=None):
    """Instead of training: the histories' leading factors, with less noise round by round. A curve
    of (validation, test) shares of users says whose held-out item gets a high score instead."""

    def train(training, show):
        world, size = training.world, training.settings.embedding_size
        seen = np.zeros((world.n_users, world.train.n_items))
        seen[world.train.users, world.train.items] = 1.0
        left, values, right = np.linalg.svd(seen - seen.mean(axis=0), full_matrices=False)
        draw = np.random.default_rng(training.seed)
        algorithm = training.settings.build(training.release.clip, training.release.norm)
        rows = algorithm.server_init(world.train.n_items, Streams.from_seed(training.seed))
        for stop in training.stops:
            users = left[:, :size] * np.sqrt(values[:size])
            users = (users + draw.normal(0, 1.0 / stop, users.shape)).astype(np.float32)
            items = (right[:size].T * np.sqrt(values[:size])).astype(np.float32)
            rows[: len(items), :size] = items
            scorer = FactorScorer.of(users, items)
            if curve is not None:
                scorer = Planted(world, *curve[stop])
            show(
                UCSnapshot(
                    stop, rows.copy(), users, (10 * stop, 200 * stop),
                    lambda scorer=scorer: scorer,
                    lambda users=users: algorithm.representations(users, rows),
                )
            )  # fmt: skip

    return train


class Planted:
    """Ranks the held-out item of the first users first, and of all others last."""

    def __init__(self, world, validation, test):
        self.n_items = world.train.n_items
        self.table = np.zeros((world.n_users, self.n_items), dtype=np.float32)
        for part, share in ((world.validation, validation), (world.test, test)):
            for user, item in zip(part.users, part.items, strict=True):
                if item < self.n_items:
                    self.table[user, item] = 1.0 if user < share * world.n_users else -1.0

    def scores(self, users):
        return self.table[users]


def fake_infer(table, labels, private, rng, *, attribute, each):
    """The nearest class mean instead of three families."""
    codes, rows = labels.codes, np.asarray(table, dtype=np.float64)
    if len(np.unique(codes[~private])) < 2:
        raise TooLittle("nothing to learn")
    known = np.unique(codes[~private])
    means = np.stack([rows[~private & (codes == c)].mean(axis=0) for c in known])
    near = -((rows[private][:, None] - means[None]) ** 2).sum(axis=2)
    truth = codes[private]
    right = int((known[near.argmax(axis=1)] == truth).sum())
    gap = near[:, -1] - near[:, 0]
    top, rest = gap[truth == known[-1]], gap[truth != known[-1]]
    gaps = np.sign(top[:, None] - rest[None])
    auc = float(gaps.mean() / 2 + 0.5) if gaps.size else 0.5
    majority = float(np.bincount(truth).max() / len(truth))
    outcome = AttackerOutcome(
        "means", False, 0.5, 0.5, auc, Interval(auc - 0.1, auc + 0.1), 0.6,
        right, len(truth), majority, Interval(right / len(truth) - majority - 0.05, 1.0), (), (),
    )  # fmt: skip
    return Inference(attribute, len(known), int((~private).sum()), len(truth), 0, 0, (outcome,))


@pytest.fixture(autouse=True)
def quick_attackers(monkeypatch):
    monkeypatch.setattr(uc_attacked, "infer", fake_infer)


@pytest.fixture(scope="module")
def world():
    return UCData.of(SOURCE, small_data())


def new_study(place, world, trainer=None, **changes):
    study = UCStudy(
        replace(SMALL, **changes), SETTINGS, place, 1, quiet, trainer=trainer or stand_in()
    )
    study.add_world(world)
    return study


# --- data ----------------------------------------------------------------------------------------


def test_the_latest_item_is_test_and_the_one_before_it_validation(world):
    table = small_data().interactions
    for user in range(0, table.n_users, 7):
        entries = slice(table.indptr[user], table.indptr[user + 1])
        order = np.lexsort((table.items[entries], table.timestamps[entries]))
        names = table.items_vocabulary().names(table.items[entries][order])
        known = world.validation.items_vocabulary()
        assert known.names(world.validation.row(user)) == [names[-2]]
        assert len(world.test.row(user)) == 1
        train = set(world.train.row(user).tolist())
        assert set(world.train.items_vocabulary().names(sorted(train))) == set(names[:-2])
        held = {int(world.validation.row(user)[0]), int(world.test.row(user)[0])}
        assert not held & train
        expected = train | {
            i for i in world.validation.row(user).tolist() if i < world.train.n_items
        }
        assert set(world.seen.row(user).tolist()) == expected
    # Numbers of the three parts mean the same items.
    rankable = [i for i in np.unique(world.test.items) if i < world.train.n_items]
    assert len(rankable)
    latest = table.select(_last(table))
    names = latest.items_vocabulary().names(latest.items)
    catalogue = world.train.items_vocabulary()
    for user, name in zip(latest.users, names, strict=True):
        item = int(world.test.row(user)[0])
        assert item >= world.train.n_items or catalogue.name(item) == name


def _last(table):
    order = np.lexsort((table.items, table.timestamps, table.users))
    mask = np.zeros(len(order), dtype=bool)
    mask[order[table.indptr[1:] - 1]] = True
    return mask


def test_data_without_times_hold_out_random_items():
    data = small_data()
    timeless = replace(data.interactions, timestamps=None)
    world = UCData.of("douban-book", replace(data, interactions=timeless))
    assert "random" in world.describe()
    assert (world.test.counts == 1).all()
    assert (world.validation.counts == 1).all()
    again = UCData.of("douban-book", replace(data, interactions=timeless))
    assert np.array_equal(world.test.items, again.test.items)


def test_ages_by_year_become_the_groups_of_movielens_1m(world):
    labels, years = world.labels["age"], small_data().user_attributes["age"].texts()
    assert labels.values == tuple(str(a) for a in AGES)
    for group, year in zip(labels.texts(), years, strict=True):
        assert int(group) == max(a for a in AGES if a <= int(year))


# --- consent -------------------------------------------------------------------------------------


def test_who_hides_what_depends_on_seed_and_attribute_alone(tmp_path, world):
    study = new_study(tmp_path, world)
    base, uc = study.cell(SOURCE, "mf", 0), study.cell(SOURCE, "gnn", 0, 0.8)
    gender = study.private(base, "gender")
    assert np.array_equal(gender, study.private(uc, "gender"))
    assert np.array_equal(gender, study.hiders(uc)[:, 0])
    assert not np.array_equal(gender, study.private(base, "age"))
    assert not np.array_equal(gender, study.private(replace(base, seed=1), "gender"))
    more = study.private(replace(base, alpha=0.6), "gender")
    assert (gender <= more).all()
    assert 0.15 < gender.mean() < 0.45
    consent = study.consent(uc)
    assert np.array_equal(consent.hidden_attributes, study.hiders(uc))
    assert set(consent.strength) == {np.float32(0.8)}


def test_where_all_hide_it_attackers_learn_from_a_leak(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = study.cell(SOURCE, "mf", 0, 0.5, alpha=1.0)
    assert study.private(cell, "gender").all()
    assert 0.55 < study.targets(cell, "gender").mean() < 0.85
    some = replace(cell, alpha=0.3)
    assert np.array_equal(study.targets(some, "gender"), study.private(some, "gender"))


# --- training ------------------------------------------------------------------------------------


def test_the_round_is_chosen_on_validation_and_measured_on_test(tmp_path, world):
    curve = {2: (0.3, 0.9), 4: (0.8, 0.4), 6: (0.5, 0.7)}
    study = new_study(tmp_path, world, stand_in(curve))
    found = study.trained(study.cell(SOURCE, "mf", 0))
    assert (found.round, found.rounds) == (4, 6)
    assert found.stops.tolist() == [2, 4, 6]
    assert np.allclose(found.validation_hr, [0.3, 0.8, 0.5], atol=0.03)
    assert np.allclose(found.test_hr, [0.9, 0.4, 0.7], atol=0.03)
    assert found.hr == pytest.approx(found.test_hr[1])
    assert found.validation == found.validation_hr[1]
    assert found.hits.mean() == pytest.approx(found.hr)
    assert found.gains.mean() == pytest.approx(found.ndcg, abs=1e-6)
    few = np.arange(world.n_users) < 10
    assert found.of(few)[0] == found.hits[:10].mean()
    assert np.isnan(found.of(few & False)[0])
    assert found.uploads == 60 / world.n_users
    assert found.sent_rows == 20


def test_nothing_is_chosen_before_filters_had_time_and_a_stop_is_the_end(tmp_path, world):
    curve = {2: (0.9, 0.9), 4: (0.6, 0.4), 6: (0.5, 0.7)}
    study = new_study(tmp_path, world, stand_in(curve), choose_from=0.5)
    assert study.trained(study.cell(SOURCE, "mf", 0)).round == 4
    early = study.trained(study.cell(SOURCE, "mf", 0, stop=6))
    assert early.round == 6
    assert study.stops(study.cell(SOURCE, "mf", 0, stop=3)) == (2, 3)


def test_a_run_that_diverges_keeps_its_best_and_raises_where_it_has_none(tmp_path, world):
    def breaks(training, show):
        stand_in()(replace(training, stops=training.stops[:1]), show)
        raise Diverged("too far")

    def never(training, show):
        raise Diverged("at once")

    assert new_study(tmp_path / "a", world, breaks).trained(UCCell(SOURCE, "mf")).round == 2
    with pytest.raises(Diverged):
        new_study(tmp_path / "b", world, never).trained(UCCell(SOURCE, "mf"))


def test_nothing_is_trained_or_attacked_twice(tmp_path, world):
    study = new_study(tmp_path, world)
    cells = [study.cell(SOURCE, "mf", 0), study.cell(SOURCE, "mf", 0, 0.5)]
    first = study.train_all(cells)
    attacked = study.attacked(cells[1], "gender")

    def refuse(training, show):
        raise AssertionError

    again = new_study(tmp_path, world, refuse)
    assert again.attacked(cells[1], "gender") == attacked
    for cell, old in zip(cells, first, strict=True):
        assert np.array_equal(again.trained(cell).table, old.table)
    # A base model does not depend on who would hide what.
    again.trained(replace(cells[0], alpha=0.7, beta=0.1))
    for change in ({"seed": 1}, {"stop": 2}, {"overrides": (("reg", 0.0),)}, {"clip": 1.0}):
        with pytest.raises(AssertionError):
            again.trained(replace(cells[0], **change))
    for change in ({"alpha": 0.7}, {"beta": 0.1}, {"target": "uniform"}):
        with pytest.raises(AssertionError):
            again.trained(replace(cells[1], **change))


def timeless(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result["rows"]]
    return json.dumps([rows, result["claims"], result["data"], result["protocol"]])


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_a_killed_study_goes_on_to_the_same_table(tmp_path, world, monkeypatch, after):
    """It is stopped in the middle of a training, and once more in the middle of an attack."""
    whole = uc_tables.table2(new_study(tmp_path / "whole", world), tmp_path / "a")
    train, begun = stand_in(), []

    def dies(training, show):
        begun.append(training.seed)
        if len(begun) == after:
            raise KeyboardInterrupt
        train(training, show)

    with pytest.raises(KeyboardInterrupt):
        uc_tables.table2(new_study(tmp_path / "cells", world, dies), tmp_path / "b")
    kept = len(list((tmp_path / "cells").glob("*.npz")))
    assert kept == after - 1
    tried = []

    def attack_dies(*given, **more):
        tried.append(given)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return fake_infer(*given, **more)

    monkeypatch.setattr(uc_attacked, "infer", attack_dies)
    count = len(begun)
    with pytest.raises(KeyboardInterrupt):
        uc_tables.table2(new_study(tmp_path / "cells", world, dies), tmp_path / "b")
    trainings = len(list((tmp_path / "whole").glob("*.npz"))) - _attacks(tmp_path / "whole")
    assert len(begun) - count == trainings - kept
    assert _attacks(tmp_path / "cells") == 2
    monkeypatch.setattr(uc_attacked, "infer", fake_infer)
    count = len(begun)
    again = uc_tables.table2(new_study(tmp_path / "cells", world, dies), tmp_path / "b")
    assert timeless(again) == timeless(whole)
    assert len(begun) == count


def _attacks(folder):
    return sum("attacked" in np.load(path) for path in folder.glob("*.npz"))


def test_what_another_process_is_training_comes_last(tmp_path, world):
    order = []

    def train(training, show):
        order.append(training.seed)
        stand_in()(training, show)

    study = new_study(tmp_path, world, train)
    cells = [study.cell(SOURCE, "mf", seed) for seed in (0, 1, 2)]
    other = new_study(tmp_path, world)
    begun, go = threading.Event(), threading.Event()

    def slow(training, show):
        begun.set()
        assert go.wait(20)
        stand_in()(training, show)

    other._trainer = slow
    busy = threading.Thread(target=lambda: other.trained(cells[0]))
    busy.start()
    assert begun.wait(20)
    study.report = lambda what, done, total: go.set() if done == 2 else None
    found = study.train_all(cells)
    busy.join(20)
    assert order == [1, 2]
    assert np.array_equal(found[0].table, other.trained(cells[0]).table)


def test_rounds_trainings_and_attacks_are_reported(tmp_path, world):
    told = []
    study = new_study(tmp_path, world, federated)
    study.report = lambda *done: told.append(done)
    cell = study.cell(SOURCE, "mf", 0)
    study.train_all([cell], "some")
    study.attacked(cell, "gender")
    assert ("some", 0, 1) in told
    assert ("some", 1, 1) in told
    assert ("movielens-100k, MF, seed 0: rounds", 6, 6) in told
    assert told[-1] == ("attacks", 1, 1)


def test_attackers_see_the_table_they_are_given(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = study.cell(SOURCE, "mf", 0)
    known = study.attacked(cell, "gender")
    assert known.auc > 0.8
    assert known.wins
    blind = np.zeros_like(study.trained(cell).table)
    nothing = study.attacked(cell, "gender", blind, "zeros")
    assert nothing.auc_gain < 0.1
    assert study.attacked(cell, "occupation") is None
    later = study.attack_all([AttackJob(cell, "gender", alpha=0.6)])[0]
    assert later.private == study.private(replace(cell, alpha=0.6), "gender").sum()
    json.dumps(known.verdict)


def test_an_attacker_that_is_wrong_too_often_wins_when_turned_round(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = study.cell(SOURCE, "mf", 0)
    plain, table = study.attacked(cell, "gender"), study.trained(cell).table.copy()
    private = study.private(cell, "gender")
    table[private] *= -1
    wrong = study.attacked(cell, "gender", table, "mirrored")
    assert wrong.auc < 0.4
    assert not wrong.strong
    assert "turned round" in wrong.turned
    assert wrong.wins
    assert wrong.either == pytest.approx(1 - wrong.lowest)
    assert wrong.auc_gain > 0.1
    assert not plain.turned
    assert plain.either == plain.auc


def test_settings_are_those_of_the_file_and_the_cell(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = study.cell(SOURCE, "mf", 0, 0.5, overrides=(("reg", 0.5),), target="uniform")
    settings = study.settings(cell)
    assert (settings.recommender, settings.reg, settings.target) == ("mf", 0.5, "uniform")
    assert settings.names == ("gender", "age")
    assert settings.attributes[0].classes == ("F", "M")
    assert study.release(replace(cell, clip=3.0)).clip == 3.0
    with pytest.raises(ConfigError, match="neumf"):
        study.settings(replace(cell, recommender="neumf"))
    with pytest.raises(ConfigError):
        study.settings(replace(cell, overrides=(("colour", 1),)))
    for wrong in ({"sources": ("moon",)}, {"seeds": ()}, {"stops": 0}, {"choose_from": 2.0}):
        with pytest.raises(ConfigError):
            replace(SMALL, **wrong)


# --- rivals --------------------------------------------------------------------------------------


def test_early_stopping_is_the_first_look_as_good_as_the_rival(tmp_path, world):
    base = {2: (0.3, 0.3), 4: (0.6, 0.3), 6: (0.8, 0.3)}
    ours = {2: (0.1, 0.1), 4: (0.2, 0.2), 6: (0.5, 0.2)}

    def train(training, show):
        stand_in(ours if training.settings.attributes else base)(training, show)

    study = new_study(tmp_path, world, train)
    plain, uc = study.cell(SOURCE, "mf", 0), study.cell(SOURCE, "mf", 0, 0.5)
    early = stopped(study, plain, uc)
    assert early.stop == 4
    assert study.trained(early).round == 4
    assert stopped(study, uc, plain).stop == 6  # which never gets there


def test_noise_moves_private_users_alone(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = study.cell(SOURCE, "mf", 0)
    trained = study.trained(cell)
    rival = perturbed(study, cell, 2.0, ["gender"])
    private = study.private(cell, "gender")
    assert np.array_equal(rival.changed, private)
    assert np.array_equal(rival.table[~private], trained.table[~private])
    moved = rival.table[private].astype(float) - trained.table[private]
    assert moved.std() == pytest.approx(2.0 * trained.embeddings.std(), rel=0.1)
    every = perturbed(study, cell, 2.0)
    assert every.changed.sum() > private.sum()
    assert every.tag != rival.tag
    assert perturbed(study, cell, 0.0).measured.hr == pytest.approx(trained.hr)


def test_noisier_uploads_are_for_those_who_hide_something(tmp_path, world):
    study = new_study(tmp_path, world)
    cell = noisier(study, study.cell(SOURCE, "mf", 0), 0.1)
    release = study.release(cell)
    assert (release.norm, release.epsilon, release.hiding_epsilon) == ("scalar", 0.5, 0.1)
    assert cell.beta == 0.0
    assert study.hiders(cell).any()


# --- tables --------------------------------------------------------------------------------------


def checked(result):
    assert Path(result["report"]).exists()
    assert result["claims"]
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)
    for table in result["tables"]:
        assert table.to_markdown()
    return result["rows"]


def test_table2_has_every_line_beside_its_base_and_says_who_wins(tmp_path, world):
    study = new_study(tmp_path / "cells", world)
    result = uc_tables.table2(study, tmp_path)
    rows = {row["kind"]: row for row in checked(result)}
    assert list(rows) == ["base", "early", "uc-0.5", "uc-0.8", "published"]
    assert rows["base"]["kept"] == 1.0
    assert rows["base"]["gender_left"] == 1.0
    assert rows["base"]["hr_ci"] is not None
    assert rows["base"]["hr"] >= rows["base"]["full_hr"]
    assert rows["uc-0.5"]["gender_verdict"] == "still wins (2 of 2 seeds)"
    assert rows["uc-0.5"]["gender_majority"] < 0.75
    texts = [c["claim"] for c in result["claims"]]
    assert any("keeps its accuracy" in text for text in texts)
    assert any("gender AUC ≤ 0.55" in text for text in texts)
    # The stand-in hides nothing, and the table says so.
    halves = [c for c in result["claims"] if "halves" in c["claim"]]
    assert halves
    assert not any(c["holds"] for c in halves if "AUC" in c["claim"])
    _, early = uc_tables._rows_of_table2(study, SOURCE, "mf")["early"]
    assert all(cell.stop for cell in early)


def test_table1_prices_noise_on_single_numbers(tmp_path, world):
    study = new_study(tmp_path / "cells", world)
    result = uc_tables.table1(study, tmp_path)
    rows = {row["kind"]: row for row in checked(result)}
    assert list(rows) == ["base", "scalar"]
    price = 0.5 * 20 * 8
    notes = " ".join(result["tables"][0].notes)
    assert f"costs ε = {price:,.0f}" in notes


@pytest.mark.slow
def test_table3_says_what_protection_costs_and_who_stopped_it(tmp_path, world):
    study = new_study(tmp_path / "cells", world, protect_steps=60)
    result = uc_table3.table3(study, tmp_path)
    rows = {row["attribute"]: row for row in checked(result)}
    assert list(rows) == ["gender", "age"]
    gender = rows["gender"]
    stops = [v for k, v in gender.items() if k.startswith("stopped") and not k.endswith("_ci")]
    assert sum(stops) == pytest.approx(gender["users"])
    assert gender["kl_after"] < gender["kl_before"]
    assert gender["per_user"] == pytest.approx(gender["seconds"] / gender["users"], rel=0.3)
    assert gender["majority_before"] == gender["majority_after"]
    cells = [uc_table3.shared(study, SOURCE, "mf", seed) for seed in study.config.seeds]
    assert not any(study.hiders(cell).any() for cell in cells)
    rival, found, _ = uc_table3.protected(study, cells[0], "gender")
    private = study.private(replace(cells[0], alpha=SMALL.alpha), "gender")
    assert (rival.changed <= private).all()
    assert np.array_equal(np.flatnonzero(private), found.users)


def test_claims_are_held_against_the_base_and_need_no_gain_to_halve(tmp_path, world):
    study = new_study(tmp_path, world)
    cells = [study.cell(SOURCE, "mf", seed) for seed in (0, 1)]
    runs, known = study.train_all(cells), study.attacked(cells[0], "gender")

    def line(auc):
        seen = replace(known, auc=auc, lowest=0.5, strong="" if auc < 0.6 else "means")
        return UCLine("MF", "base", cells, runs, {"gender": Guessed("gender", (seen, seen))})

    base = line(0.8)
    assert uc_tables._halved(line(0.64), base, "gender", "auc_gain")[0]
    assert not uc_tables._halved(line(0.66), base, "gender", "auc_gain")[0]
    assert gain_left(line(0.65), base, "gender", "auc_gain") == pytest.approx(0.5)
    holds, words = uc_tables._halved(base, line(0.5), "gender", "auc_gain")
    assert holds
    assert "the base has no gain" in words
    assert line(0.55).verdict("gender") == "does not beat chance"
    assert not uc_tables._halved(UCLine("MF", "base", cells, runs, {}), base, "gender", "gain")[0]


# --- the real thing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recommender", "filters"),
    [("mf", "moments"), pytest.param("gnn", "two-layer", marks=pytest.mark.slow)],
)
def test_a_real_training_goes_through(tmp_path, world, recommender, filters):
    study = new_study(tmp_path, world, federated)
    cell = study.cell(SOURCE, recommender, 0, 0.5, overrides=(("filters", filters),))
    found = study.trained(cell)
    assert found.table.shape == (world.n_users, 8 if recommender == "mf" else 16)
    assert found.embeddings.shape == (world.n_users, 8)
    assert len(found.rows) > world.train.n_items
    assert 0 < found.hr <= 1
    assert found.uploads == pytest.approx(6 * 40 / world.n_users)
    algorithm = study.algorithm(cell)
    again = algorithm.representations(found.embeddings, found.rows)
    assert np.allclose(again, found.table, atol=2e-3)
    rival, protected, _ = uc_table3.protected(study, cell, "gender")
    assert np.array_equal(rival.changed.sum(), (protected.moved > 0).sum())


# --- files and names -----------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", [n for n in reproduce.NAMES if n.startswith("uc-")])
def test_every_file_has_settings_for_what_it_runs(name, quick, tmp_path):
    study = UCStudy.read(name, quick, tmp_path, 1, quiet)
    assert quick == (study.config.sources == (SOURCE,))
    data = small_data()
    for source in study.config.sources:
        users = {k: data.user_attributes["gender"] for k in ATTRIBUTES[source]}
        study.add_world(UCData.of(source, replace(data, user_attributes=users)))
        for recommender in study.config.recommenders:
            assert study.settings(study.cell(source, recommender, 0, 0.5)).rounds > 0
        assert study.attributes(source)
    if not quick:
        assert len(study.config.seeds) >= 3


def test_a_gpu_is_refused_where_there_is_no_way_on_one(tmp_path):
    given = {"quick": True, "out": tmp_path, "threads": 1, "report": quiet}
    with pytest.raises(UsageError, match="no way on a GPU"):
        reproduce.run("fpl-table2", device="cuda", **given)
    with pytest.raises(UsageError, match="the-moon"):
        reproduce.run("the-moon", device="cuda", **given)
