"""UC-FedRec's tables and figures: systems on a small world, with a stand-in for training and
attackers, and the files."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams

pytest.importorskip("torch")

from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce_papers import uc, uc_rows
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import StudyLine, groups
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.uc import Attacked, AttackWork, UCKind, UCSnapshot, UCTrial
from sottovoce_papers.uc_data import AGES, AttributeData, UCData

SOURCE = "movielens-100k"
TINY = {"embedding_size": 8, "rounds": 6, "cohort_size": 40, "pairs": 8, "local_epochs": 2}
DATA = AttributeData(
    source=SOURCE, attributes=("gender", "age"), negatives=25, final=False, every=2,
    mf=UCConfig(**TINY), gnn=UCConfig(**TINY),
)  # fmt: skip
MF = {"recommender": "mf"}
UC = {**MF, "hide": "all", "filters": "two-layer"}


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
    }
    return Dataset("small", table, labels)


def small_world(data=DATA):
    world = data.world(SOURCE)
    world.dataset = small_data()
    return world


@pytest.fixture(scope="module")
def world():
    return small_world()


def trial(world, folder, settings=UC, seed=0):
    made = UCKind().prepared(dict(settings), world)
    return UCTrial(world, made, seed, Cells(folder, 1, quiet))


class Planted:
    """Ranks the held-out item of the first users first, and of all others last."""

    def __init__(self, halves, validation, test):
        self.n_items = halves.train.n_items
        n = halves.train.n_users
        self.table = np.zeros((n, self.n_items), dtype=np.float32)
        for part, share in ((halves.validation, validation), (halves.test, test)):
            for user, item in zip(part.users, part.items, strict=True):
                if item < self.n_items:
                    self.table[user, item] = 1.0 if user < share * n else -1.0

    def scores(self, users):
        return self.table[users]


def stand_in(curve=None, began=None):
    """Instead of training: the histories' leading factors, with less noise round by round. A curve
    of (validation, test) shares of users says whose held-out item gets a high score instead."""

    def train(mine, show):
        if began is not None:
            began.append(mine.run)
        halves, size = mine.world.halves, mine.config.embedding_size
        seen = np.zeros((halves.train.n_users, halves.train.n_items))
        seen[halves.train.users, halves.train.items] = 1.0
        left, values, right = np.linalg.svd(seen - seen.mean(axis=0), full_matrices=False)
        draw = np.random.default_rng(mine.seed)
        algorithm = mine.algorithm()
        rows = algorithm.server_init(halves.train.n_items, Streams.from_seed(mine.seed))
        for stop in mine.stops:
            users = left[:, :size] * np.sqrt(values[:size])
            users = (users + draw.normal(0, 1.0 / stop, users.shape)).astype(np.float32)
            items = (right[:size].T * np.sqrt(values[:size])).astype(np.float32)
            rows[: len(items), :size] = items
            scorer = FactorScorer.of(users, items)
            if curve is not None:
                scorer = Planted(halves, *curve[stop])
            show(
                UCSnapshot(
                    stop, rows.copy(), users, (10 * stop, 200 * stop),
                    lambda scorer=scorer: scorer,
                    lambda users=users: algorithm.representations(users, rows),
                )
            )  # fmt: skip

    return train


def nearest(work):
    """The nearest class mean instead of six attackers."""
    codes, rows = work.labels.codes, work.table.astype(np.float64)
    public, asked = ~work.private & (codes >= 0), work.private & (codes >= 0)
    known = np.unique(codes[public])
    if len(known) < 2:
        return None
    means = np.stack([rows[public & (codes == c)].mean(axis=0) for c in known])
    near = -((rows[asked][:, None] - means) ** 2).sum(axis=2)
    truth = codes[asked]
    gap = near[:, -1] - near[:, 0]
    pairs = np.sign(gap[truth == known[-1]][:, None] - gap[truth != known[-1]])
    auc = float(pairs.mean() / 2 + 0.5) if pairs.size else 0.5
    return Attacked(
        auc=auc, auc_low=auc - 0.05, auc_high=auc + 0.05,
        f1=float((known[near.argmax(axis=1)] == truth).mean()),
        majority=float(np.bincount(truth).max() / len(truth)), strong=auc > 0.6, turned=False,
        lowest=min(0.5, auc), families={}, classes=len(known), private=len(truth),
    )  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """Stand-ins for training and attackers; what is put in is the trainer."""
    real, used = uc.run, {"trainer": stand_in()}
    monkeypatch.setattr(uc, "run", lambda mine: real(mine, used["trainer"]))
    monkeypatch.setattr(AttackWork, "run", nearest)
    return used


# --- data ----------------------------------------------------------------------------------------


def test_the_latest_item_is_test_and_the_one_before_it_validation(world):
    table, halves = small_data().interactions, world.halves
    for user in range(0, table.n_users, 7):
        entries = slice(table.indptr[user], table.indptr[user + 1])
        order = np.lexsort((table.items[entries], table.timestamps[entries]))
        names = table.items_vocabulary().names(table.items[entries][order])
        known = halves.validation.items_vocabulary()
        assert known.names(halves.validation.row(user)) == [names[-2]]
        assert len(halves.test.row(user)) == 1
        train = set(halves.train.row(user).tolist())
        assert set(halves.train.items_vocabulary().names(sorted(train))) == set(names[:-2])
        held = {int(halves.validation.row(user)[0]), int(halves.test.row(user)[0])}
        assert not held & train
        more = {i for i in halves.validation.row(user).tolist() if i < halves.train.n_items}
        assert set(halves.seen.row(user).tolist()) == train | more


def test_data_without_times_hold_out_random_items():
    data = small_data()
    other = AttributeData(source="douban-book", attributes=("gender",)).world("douban")
    other.dataset = replace(data, interactions=replace(data.interactions, timestamps=None))
    assert "random" in other.describe()
    assert (other.halves.test.counts == 1).all()
    assert np.array_equal(other.halves.test.items, UCData.of(other.dataset).test.items)


def test_ages_by_year_become_the_groups_of_movielens_1m(world):
    labels, years = world.halves.labels["age"], small_data().user_attributes["age"].texts()
    assert labels.values == tuple(str(a) for a in AGES)
    for group, year in zip(labels.texts(), years, strict=True):
        assert int(group) == max(a for a in AGES if a <= int(year))


# --- who hides what ------------------------------------------------------------------------------


def test_who_hides_what_depends_on_seed_and_attribute_alone(tmp_path, world):
    base, mine = trial(world, tmp_path, MF), trial(world, tmp_path)
    gender = base.private("gender")
    assert np.array_equal(gender, mine.private("gender"))
    assert np.array_equal(gender, mine.consent.hidden_attributes[:, 0])
    assert not np.array_equal(gender, base.private("age"))
    assert not np.array_equal(gender, trial(world, tmp_path, MF, 1).private("gender"))
    more = trial(world, tmp_path, {**UC, "alpha": 0.6}).private("gender")
    assert (gender <= more).all()
    assert 0.15 < gender.mean() < 0.45
    assert set(mine.consent.strength) == {np.float32(0.5)}


def test_users_hide_all_attributes_together_or_exactly_one(tmp_path, world):
    both = trial(world, tmp_path, {**UC, "who": "together"})
    assert set(both.hidden_count()) == {0, 2}
    one = trial(world, tmp_path, {**UC, "who": "one"})
    assert set(one.hidden_count()) == {1}
    assert 0.35 < one.private("gender").mean() < 0.65
    # All who share age hide gender: attackers learn from some of them.
    about, guessed = trial(world, tmp_path, {**UC, "who": "one", "of": "gender"}).guessed("age")
    assert np.array_equal(about, one.private("gender"))
    assert 0.5 < guessed[about].mean() < 0.9


def test_where_all_hide_it_attackers_learn_from_a_leak(tmp_path, world):
    all_ = trial(world, tmp_path, {**UC, "alpha": 1.0})
    assert all_.private("gender").all()
    assert 0.55 < all_.guessed("gender")[1].mean() < 0.85
    some = trial(world, tmp_path)
    assert np.array_equal(some.guessed("gender")[1], some.private("gender"))


def test_a_fifth_of_all_users_change_their_mind_and_had_shared_it_before(tmp_path, world):
    mine = trial(world, tmp_path, {**UC, "protect": {"attribute": "gender", "share": 0.2}})
    assert not (mine.changed() & mine.private("gender")).any()
    assert 0.1 < mine.changed().mean() < 0.3
    about, guessed = mine.guessed("gender")
    assert np.array_equal(about, ~mine.private("gender"))
    assert np.array_equal(guessed, mine.changed())


# --- training ------------------------------------------------------------------------------------


def test_the_round_is_chosen_on_validation_and_measured_on_test(tmp_path, world, quick):
    quick["trainer"] = stand_in({2: (0.3, 0.9), 4: (0.8, 0.4), 6: (0.5, 0.7)})
    look, facts = trial(world, tmp_path, MF).result()
    assert (facts["round"], facts["rounds"], facts["stops"]) == (4, 6, [2, 4, 6])
    assert np.allclose(facts["validation"], [0.3, 0.8, 0.5], atol=0.03)
    assert np.allclose(facts["test"], [0.9, 0.4, 0.7], atol=0.03)
    assert look.mean("HR@10") == pytest.approx(facts["test"][1])
    assert facts["uploads"] == 60 / len(look)
    assert facts["sent_rows"] == 20


def test_nothing_is_chosen_before_filters_had_time_and_a_stop_is_the_end(tmp_path, world, quick):
    quick["trainer"] = stand_in({2: (0.9, 0.9), 3: (0.1, 0.1), 4: (0.6, 0.4), 6: (0.5, 0.7)})
    assert trial(world, tmp_path, {**MF, "choose_from": 0.5}).facts["round"] == 4
    assert trial(world, tmp_path, {**MF, "stop": 6}).facts["round"] == 6
    assert trial(world, tmp_path, {**MF, "stop": 3}).stops == (2, 3)
    last = trial(world, tmp_path, {**MF, "final": True})
    assert (last.facts["round"], last.facts["validation"]) == (6, [])


@pytest.mark.parametrize("final", [False, True])
def test_early_stopping_is_the_first_look_as_good_as_the_rival(tmp_path, world, quick, final):
    base = {2: (0.2, 0.3), 4: (0.6, 0.5), 6: (0.9, 0.9)}
    rival = {2: (0.1, 0.1), 4: (0.3, 0.2), 6: (0.55, 0.45)}

    def trainer(mine, show):
        stand_in(rival if mine.run.hide else base)(mine, show)

    quick["trainer"] = trainer
    mine = {**MF, "final": final, "early": {"hide": "all", "filters": "two-layer"}}
    kind = UCKind()
    job = uc.Job(world, kind.prepared(mine, world), "test", 0, (0.0,), Cells(tmp_path, 1, quiet))
    found = kind.train(job)
    assert found.facts["round"] == 4
    assert found.looks[0.0].mean("HR@10") == pytest.approx(0.5, abs=0.03)


def test_a_run_that_diverges_keeps_its_best_and_raises_where_it_has_none(tmp_path, world, quick):
    def breaks(mine, show):
        def once(snapshot):
            show(snapshot)
            raise Diverged("too far")

        stand_in()(mine, once)

    def never(mine, show):
        raise Diverged("at once")

    quick["trainer"] = breaks
    assert trial(world, tmp_path / "a", MF).facts["round"] == 2
    quick["trainer"] = never
    with pytest.raises(Diverged):
        trial(world, tmp_path / "b", MF).result()


def test_nothing_is_trained_or_attacked_twice(tmp_path, world, quick, monkeypatch):
    first = trial(world, tmp_path).result()
    base = trial(world, tmp_path, MF).result()

    def refuse(*given):
        raise AssertionError

    quick["trainer"] = refuse
    assert json.dumps(trial(world, tmp_path).result()[1]) == json.dumps(first[1])
    # A base model does not depend on who would hide what; its attacks do.
    assert trial(world, tmp_path, {**MF, "alpha": 0.7}).facts == trial(world, tmp_path, MF).facts
    for change in ({"stop": 2}, {"reg": 0.0}, {"clip": 1.0}, {"final": True}):
        with pytest.raises(AssertionError):
            trial(world, tmp_path, {**MF, **change}).result()
    for change in ({"alpha": 0.7}, {"beta": 0.1}, {"target": "uniform"}, {"who": "together"}):
        with pytest.raises(AssertionError):
            trial(world, tmp_path, {**UC, **change}).result()
    monkeypatch.setattr(AttackWork, "run", refuse)
    assert trial(world, tmp_path, MF).result()[1] == base[1]
    with pytest.raises(AssertionError):
        trial(world, tmp_path, {**MF, "alpha": 0.7}).result()


# --- afterwards ----------------------------------------------------------------------------------


def test_noise_moves_those_who_hide_something_by_sigma_and_nobody_else(tmp_path, world, quick):
    mine = trial(world, tmp_path, {**MF, "sigma": 2.0})
    gap = mine.noisy() - mine.model["embeddings"]
    hides = mine.hides_something()
    assert not gap[~hides].any()
    assert gap[hides].std() == pytest.approx(2.0, rel=0.1)
    clean, noisy = trial(world, tmp_path, MF).result(), mine.result()
    assert noisy[0].mean("HR@10") < clean[0].mean("HR@10")
    auc = [one[1]["attacks"]["gender"]["auc"] for one in (clean, noisy)]
    assert auc[1] < auc[0]


def test_rivals_with_noise_in_uploads_have_the_privacy_that_the_file_says(tmp_path, world):
    ldp = {**UC, "beta": 0.0, "norm": "scalar", "clip": 0.1, "epsilon": 1.0, "hiding_epsilon": 0.3}
    release = trial(world, tmp_path, ldp).release
    assert (release.norm, release.clip) == ("scalar", 0.1)
    assert (release.epsilon, release.hiding_epsilon) == (1.0, 0.3)


def test_attacks_without_enough_to_learn_from_are_left_out(tmp_path, world, quick, monkeypatch):
    monkeypatch.setattr(AttackWork, "run", lambda work: None)
    _, facts = trial(world, tmp_path, MF).result()
    assert facts["attacks"] == {"gender": None, "age": None}
    assert uc.attacked([facts], "gender") == []
    assert uc_rows.guesses([])["verdict"] == "has too little to learn from"


@pytest.mark.parametrize(
    ("recommender", "filters"),
    [("mf", "moments"), pytest.param("gnn", "two-layer", marks=pytest.mark.slow)],
)
def test_a_real_training_goes_through(tmp_path, world, recommender, filters, monkeypatch):
    monkeypatch.setattr(AttackWork, "run", nearest)
    settings = {
        "recommender": recommender, "hide": "all", "filters": filters, "knows": True, "clip": 64.0,
    }  # fmt: skip
    mine = trial(world, tmp_path, settings)
    look, facts = mine.result()
    assert mine.model["table"].shape == (150, 8 if recommender == "mf" else 16)
    assert 0 < look.mean("HR@10") <= 1
    assert facts["uploads"] == pytest.approx(6 * 40 / 150)
    assert ("known" in facts) == (filters == "moments")
    again = mine.algorithm().representations(mine.model["embeddings"], mine.model["rows"])
    assert np.allclose(again, mine.model["table"], atol=2e-3)
    changed = trial(world, tmp_path, {**settings, "protect": {"attribute": "gender"}})
    _, after = changed.result()
    assert after["protected"]["users"] == changed.changed().sum()
    assert after["protected"]["after"] <= after["protected"]["before"]


# --- the files -----------------------------------------------------------------------------------

NAMES = [name for name in reproduce.NAMES if name.startswith("uc-")]
ROWS = {"uc-table1": 3, "uc-table2": 12, "uc-table3": 4, "uc-figure3": 8, "uc-figure4": 3,
        "uc-figure5": 6, "uc-figure6": 6, "uc-figure7": 3, "uc-figure8": 3}  # fmt: skip


FAST = "uc-table3"


@pytest.mark.parametrize(
    "name", [FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n != FAST)]
)
def test_every_study_has_rows_claims_and_pictures(name, tmp_path, quick, monkeypatch):
    """With `--quick`, on small data."""
    monkeypatch.setattr("sottovoce_papers.uc_data.load", lambda source: small_data(items=130))
    table = installed(name, quick=True)
    found = StudyFile(name, table).run(Cells(tmp_path / "cells", 1, quiet), tmp_path)
    assert len([row for row in found["rows"] if "set" not in row]) == ROWS[name]
    assert found["claims"]
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in found["claims"])
    drawn = list((tmp_path / "figures").glob("*.svg"))
    assert len(drawn) == len(table.get("figures", ()))
    assert all("–" not in str(t.rows[0].get("HR@10", "")) for t in found["tables"])
    json.dumps({k: v for k, v in found.items() if k != "tables"})


@pytest.mark.parametrize("name", NAMES)
def test_what_is_called_printed_has_the_settings_of_the_paper(name):
    study = StudyFile(name, installed(name))
    assert len(study.settings.seeds) >= 3
    printed = [s for s in study.systems if s.key in ("uc", "before", "after")]
    assert printed
    for world in study.worlds.values():
        for recommender in ("gnn", "ncf", "mf"):
            assert world.recommender(recommender).embedding_size == 128
    for system in printed:
        wanted = {"filters": "two-layer", "filter_rate": 0.01, "target": "uniform"}
        assert wanted.items() <= system.settings.items()
        assert system.settings["hide"] == "all"


def test_data_without_attributes_are_refused_in_one_sentence():
    from sottovoce_papers.worlds import StudyData

    with pytest.raises(ConfigError, match="must name the attributes"):
        UCKind().prepared(MF, StudyData("town").world("town"))


def test_data_without_a_named_attribute_are_refused_before_anything_is_trained():
    world = replace(DATA, attributes=("gender", "income")).world(SOURCE)
    world.dataset = small_data()
    with pytest.raises(
        ConfigError, match=r"does not say the income of its users.*says gender, age"
    ):
        assert world.fingerprint


# --- claims --------------------------------------------------------------------------------------


def line(key, **row):
    usual = {"key": key, "system": key, "settings": "", "data": "here", "model": "MF"}
    return StudyLine({**usual, **row})


def leak(gain, name="gender"):
    return {f"{name} gain": gain, f"{name} either": 0.5 + gain, f"{name} wins": 1,
            f"{name} verdict": ""}  # fmt: skip


HALVED = {"text": "{model}", "of": {"key": "uc"}, "than": {"key": "base"}}


def test_half_a_gain_is_half_and_no_gain_cannot_be_halved():
    def holds(before, after):
        sets = {"main": [line("base", **leak(before)), line("uc", **leak(after))]}
        (found,) = uc_rows.halved(sets, HALVED)
        return found["holds"]

    assert holds(0.3, 0.14)
    assert not holds(0.3, 0.16)
    assert holds(-0.01, 0.0)
    sets = {"main": [line("base", **leak(0.3)), line("uc", **leak(0.2))]}
    assert uc_rows.less(sets, HALVED)[0]["holds"]
    sets = {"main": [line("base", **leak(0.2)), line("uc", **leak(0.2))]}
    assert not uc_rows.less(sets, HALVED)[0]["holds"]


def test_a_rival_that_is_as_private_and_as_useful_is_named():
    def points(rival):
        return {"main": [
            line("base", either=0.8, **{"private HR": 0.84}),
            line("uc", either=0.54, **{"private HR": 0.76}),
            line("noise", either=rival[0], settings="σ=5", **{"private HR": rival[1]}),
        ]}  # fmt: skip

    spec = {"text": "x", "of": {"key": "uc"}}
    assert uc_rows.unbeaten(points((0.53, 0.5)), spec)[0]["holds"]
    (beaten,) = uc_rows.unbeaten(points((0.53, 0.77)), spec)
    assert not beaten["holds"]
    assert "noise, σ=5" in beaten["detail"]


def test_equal_leakage_is_read_between_points():
    few = [line("uc", alpha=0.3, leak=x, **{"HR@10": hr}) for x, hr in ((0.8, 0.84), (0.5, 0.74))]
    many = [line("uc", alpha=1.0, leak=x, **{"HR@10": hr}) for x, hr in ((0.8, 0.84), (0.6, 0.6))]
    (found,) = uc_rows.equal_leakage({"main": [*few, *many]}, {"text": "x"})
    assert found["holds"]
    assert "0.600 against 0.773" in found["detail"]
    assert len(groups([*few, *many], ["alpha"])) == 2


def test_what_is_said_about_convergence_can_fail():
    def course(key, values):
        facts = [{"validation": values, "stops": [10 * k + 10 for k in range(len(values))]}]
        made = StudyLine({"key": key, "system": key, "settings": ""}, (), facts)
        made.row.update(uc_rows.course(made))
        return made

    base = course("base", [0.5, 0.7, 0.8, 0.8])
    slow, late = course("slow", [0.3, 0.6, 0.79, 0.79]), course("late", [0.5, 0.6, 0.5, 0.7])
    spec = {"texts": ["rounds", "beginning", "unsteady"]}
    found = uc_rows.converges({"main": [base, slow, late]}, spec)
    assert [c["holds"] for c in found] == [True, True, False, False, False, True]
    assert base.row["at 99%"] == 30
    assert late.row["unsteady"] == pytest.approx(0.1 / 3)
