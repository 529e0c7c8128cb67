"""From a file or a frame to a compared table, by the public names alone."""

import inspect
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import sottovoce as sv
import sottovoce.cli
from sottovoce.evaluation.significance import paired_t
from sottovoce.experiment import find_experiment
from sottovoce.interface.speech import in_python
from sottovoce.runs.attack import attack_run
from sottovoce.runs.report import outcome_of
from sottovoce.runs.tables import half_width


def ten_lines(source):
    """What the documents begin with."""
    data = sv.load(source)
    parts = sv.split(data, test_fraction=0.2)
    gram = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7)
    told = gram.recommend("r0017", n=5), gram.recommend(history=["v0003", "v0009"])
    scores = gram.evaluate(["NDCG", "recall"], k=10)
    fpl = sv.fit(sv.FPL(rounds=20), parts)
    table = sv.compare([sv.fit(sv.TopPop(), parts), gram, fpl])
    return [one.records() for one in (*told, scores, table)], table


def test_a_file_and_frames_of_all_kinds_give_the_same_figures(ratings, columns):
    found, table = ten_lines(ratings)
    pandas = pd.DataFrame(columns)
    for frame in (pandas, pl.DataFrame(columns), pa.table(columns), columns):
        assert ten_lines(frame)[0] == found
    assert [row["system"] for row in found[-1]] == ["Top-Pop", "gram", "pFPL+"]
    bounds = ["sees everything", "ours, bounded by ε", "as printed, no bound"]
    assert [row["bound"] for row in found[-1]] == bounds
    assert "0." in str(table)
    assert "†" in str(table)


def test_a_table_has_the_intervals_of_users_and_marks_after_holm(parts, gram):
    random, knn = sv.fit(sv.Random(), parts), sv.fit(sv.ItemKNN(), parts)
    table = sv.compare([random, gram, knn], ["NDCG", "recall"], k=[5, 10])
    frame = table.to_pandas().set_index("system")
    of_gram = gram.evaluate(["NDCG", "recall"], k=[5, 10])
    values = of_gram.evaluation.per_user("NDCG@5")
    assert frame.loc["gram", "NDCG@5"] == pytest.approx(values.mean())
    assert of_gram["NDCG@5"].half == pytest.approx(half_width(values))
    assert frame.loc["gram", "NDCG@5_low"] == pytest.approx(values.mean() - half_width(values))
    others = random.evaluate(["NDCG"], k=5).evaluation.per_user("NDCG@5")
    assert len(table.tests) == 8
    (test,) = [t for t in table.tests if (t.system, t.metric) == ("gram", "NDCG@5")]
    assert test.test == paired_t(values, others)
    assert test.p_holm >= test.test.p
    assert table.to_polars()["R@10"].to_list() == frame["R@10"].to_list()
    text, page = table.to_latex(), table._repr_html_()
    assert "\\toprule" in text
    assert page.startswith("<table>")
    marked = [row["system"] for row in table.records() if (row["NDCG@10_p"] or 1) < 0.05]
    assert marked
    assert ("†" in str(table).partition("Protocol")[0]) == bool(marked)
    with pytest.raises(sv.SottovoceError, match=r"there is no system 'nope' here; there are Ran"):
        sv.compare([random, gram], reference="nope")
    with pytest.raises(sv.SottovoceError, match="nothing to compare"):
        sv.compare([])


def test_figures_on_different_splits_do_not_compare(parts, gram):
    other = sv.split(parts.dataset, test_fraction=0.5)
    with pytest.raises(sv.SottovoceError, match="gram and Top-Pop were fitted on different"):
        sv.compare([gram, sv.fit(sv.TopPop(), other)])
    again = sv.split(parts.dataset, test_fraction=0.2)
    assert len(sv.compare([gram, sv.fit(sv.TopPop(), again)], ["NDCG"]).evaluations) == 2


# --- splits ---------------------------------------------------------------------------------------


def test_how_data_are_split(parts, columns):
    assert parts.parts.protocol == "latest 0.2 of each user held out"
    timeless = sv.load({k: v for k, v in columns.items() if k != "timestamp"})
    drawn = [sv.split(timeless, seed=seed) for seed in (0, 0, 1)]
    assert all("random 0.2" in one.parts.protocol for one in drawn)
    first, same, other = (one.test.fingerprint() for one in drawn)
    assert first == same != other
    one = sv.split(timeless, how="leave-one-out")
    assert one.test.counts.max() == 1
    assert "random interaction" in one.parts.protocol
    assert (
        sv.split(timeless, part="validation").train.n_interactions < drawn[0].train.n_interactions
    )
    part = ["test" if n % 5 == 0 else "train" for n in range(len(columns["user_id"]))]
    ready = sv.load({**columns, "split": part})
    assert sv.split(ready).parts.protocol == "published split"
    assert "latest" in sv.split(ready, test_fraction=0.3).parts.protocol
    with pytest.raises(sv.SottovoceError, match="has no published split"):
        sv.split(timeless, how="published")
    with pytest.raises(sv.SottovoceError, match="must lie between 0 and 1"):
        sv.split(timeless, test_fraction=2.0)


def test_a_split_does_not_depend_on_the_seed_of_what_is_fitted(columns):
    timeless = sv.load({k: v for k, v in columns.items() if k != "timestamp"})
    parts = sv.split(timeless, seed=3)
    fitted = [sv.fit(sv.FPL(rounds=2), parts, seed=seed) for seed in (1, 2)]
    for one in fitted:
        assert one.run.split.test.fingerprint() == parts.test.fingerprint()
    assert not np.array_equal(*(one.run.folder.model() for one in fitted))
    assert len(sv.compare(fitted, ["NDCG"]).evaluations) == 2


# --- systems and their settings -------------------------------------------------------------------

SYSTEMS = {
    sv.Gram: ("gram", ["sound"]),
    sv.FPL: ("fpl", ["papers", "tuned", "sums", "sound"]),
    sv.FCF: ("fcf", ["papers", "tuned", "sums"]),
    sv.FMFLDP: ("fmf", ["papers", "tuned", "sound"]),
    sv.DRIFT: ("drift", ["papers", "tuned", "sound"]),
    sv.UCFedRec: ("uc", ["papers", "tuned", "sums"]),
}


@pytest.mark.parametrize("make", SYSTEMS, ids=lambda make: make.__name__)
def test_a_name_is_the_system_as_printed_and_words_are_other_forms_of_it(make):
    kind, words = SYSTEMS[make]
    assert make() == make(preset=words[0])
    for word in words:
        system, shipped = (
            make(preset=word),
            sv.Experiment.from_file(find_experiment(f"{word}/{kind}")),
        )
        mine = system.experiment()
        for part in ("algorithm", "release", "link", "consent", "owners", "draws", "home"):
            assert getattr(mine, part) == getattr(shipped, part)
        assert f"{word}/{kind}" in repr(system)
        assert repr(system).endswith("; as printed>" if word == "papers" else "; ours>")
        assert make(preset=f"{word}/{kind}") == system
    for lacking in {"papers", "tuned", "sums", "sound", "fast"} - set(words):
        has = ", ".join(map(repr, words))
        with pytest.raises(
            sv.SottovoceError, match=f"has no preset '{lacking}'; it has {has}, and"
        ):
            make(preset=lacking)
    with pytest.raises(sv.SottovoceError, match=rf"^{make.__name__} has no setting 'lerning_rate'"):
        make(lerning_rate=1)
    with pytest.raises(sv.SottovoceError, match="go by their names"):
        make(4.0)


def test_settings_are_where_experiment_files_have_them():
    fpl = sv.FPL(share_positives=1, reg=0.5, rounds=9, cohort_size=7, learning_rate=0.1,
                 embedding_size=3, more={"algorithm.server_rate": 0.3}).experiment()  # fmt: skip
    algorithm = fpl.algorithm
    assert (algorithm.reg_user, algorithm.reg_positive, algorithm.reg_negative) == (0.5, 0.5, 0.5)
    assert (algorithm.rounds, algorithm.cohort_size, algorithm.embedding_size) == (9, 7, 3)
    assert (algorithm.learning_rate, algorithm.server_rate, algorithm.triples) == (0.1, 0.3, "mean")
    assert [choice.share_positives for choice in fpl.consent.choices] == [1.0]
    printed = sv.FPL(configuration="sFPL+").experiment().algorithm
    assert (printed.system, printed.cohort_size, printed.triples) == ("sFPL+", 1, "mean")
    assert sv.FPL(configuration="pFPL", cohort_size=7).experiment().algorithm.triples == 1
    gram = sv.Gram(epsilon=9.5, min_devices=3).experiment()
    assert (gram.release.epsilon, gram.link.min_devices) == (9.5, 3)
    fmf = sv.FMFLDP(epsilon=1.5, max_reports=7, rounds=3, min_devices=20).experiment()
    (tier,) = fmf.release.tiers
    assert (tier.epsilon, tier.min_devices, fmf.release.max_reports) == (1.5, 20, 7)
    assert [c.total_epsilon for c in fmf.consent.choices] == [1.5 * 7 * 3]
    uc = sv.UCFedRec(hidden_attributes=["work"], cohort_size=9, min_devices=5, preset="sums")
    uc = uc.experiment()
    assert [one.name for one in uc.algorithm.attributes] == ["work"]
    assert {c.hidden_attributes for c in uc.consent.choices} == {(), ("work",)}
    drift = sv.DRIFT(epochs=3, min_users=4, preset="sound").experiment().algorithm
    assert (drift.epochs, drift.min_users) == (3, 4)
    for wrong, said in (
        (lambda: sv.UCFedRec(hidden_attributes="gender"), r'a list of names, as in \["gender"\]'),
        (lambda: repr(sv.FPL(rounds=-1)), "rounds"),
        (lambda: repr(sv.FPL(more={"algorithm.nonsense": 1})), "unknown keys"),
        (lambda: repr(sv.Gram(preset="sound/nothing")), "there is no experiment file"),
        (lambda: sv.FPL(preset="sound/gram"), "is an experiment of gram, so that FPL cannot"),
        (lambda: sv.DRIFT(min_users=4), r'for sums over people, as in DRIFT\(preset="sound"\)'),
        (lambda: sv.UCFedRec(min_devices=4), r'as in UCFedRec\(preset="sums"\)'),
        (lambda: sv.FPL(configuration="qFPL", cohort_size=3), "configuration must be one of"),
    ):
        with pytest.raises(sv.SottovoceError, match=said):
            wrong()


def test_small_crowds_are_taken_as_they_are_and_it_is_said(parts, gram):
    assert gram.run.experiment.link.min_devices == parts.train.n_users // 2
    assert gram.notes[0] == "sums are opened over 75 devices or more, not 500"
    assert "sums are opened over 75" in str(sv.compare([gram]))
    with pytest.raises(sv.SottovoceError, match=r"at least link\.min_devices = 500"):
        sv.fit(sv.Gram(min_devices=500), parts)


def test_a_name_of_a_file_an_experiment_and_a_path_can_be_fitted(parts, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 7\n[algorithm]\nrounds = 3\n[consent]\nshare_positives = 0.5\n")
    experiment = sv.Experiment.from_file(path)
    first, *others = (sv.fit(one, parts) for one in (path, str(path), experiment))
    for other in others:
        assert np.array_equal(first.run.folder.model(), other.run.folder.model())
    assert sv.fit("papers/fcf", parts).bound.startswith("as printed")
    for wrong, said in (
        ((sv.TopPop(), parts.dataset), "sv.fit.system, sv.split.data"),
        ((42, parts), "takes a system, a baseline, an Experiment or the name"),
        (("no-such", parts), "there is no experiment file no-such"),
    ):
        with pytest.raises(sv.SottovoceError, match=said):
            sv.fit(*wrong)
    with pytest.raises(sv.SottovoceError, match="a baseline has no run folder"):
        sv.fit(sv.TopPop(), parts, out=tmp_path / "run")


def test_a_baseline_gives_what_an_experiment_with_it_gives(parts):
    table = {**parts.sections(), "seed": 5, "algorithm": {"rounds": 1}, "baselines": {"bpr-mf": {}}}
    wanted = sv.run_experiment(sv.Experiment.from_table(table), dataset=parts.dataset)
    found = sv.fit(sv.BPRMF(), parts, seed=5).evaluate()
    assert found.evaluation.summary() == wanted.evaluations["bpr-mf"].summary()


def test_a_setting_that_a_baseline_has_not_raises_a_sentence():
    with pytest.raises(sv.SottovoceError, match="ItemKNN has no setting 'k'; it has neighbors"):
        sv.ItemKNN(k=3)
    with pytest.raises(sv.SottovoceError, match="TopPop has no setting 'k'; it has none"):
        sv.TopPop(k=3)


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_folder_is_opened_again_with_its_data(parts, tmp_path, capsys):
    out = tmp_path / "run"
    fitted = sv.fit(sv.FPL(rounds=5), parts, out=out, progress=True)
    before = (out / "manifest.json").read_text()
    again = sv.fit(sv.FPL(rounds=5), parts, out=out)
    opened = sv.open_run(out)
    assert (out / "manifest.json").read_text() == before
    assert (out / "data" / "interactions.parquet").is_file()
    assert fitted.folder == opened.folder == out
    for one in (again, opened):
        assert one.recommend("r0003").records() == fitted.recommend("r0003").records()
        assert one.evaluate().records() == fitted.evaluate().records()
    assert opened.parts.test.fingerprint() == parts.test.fingerprint()
    with pytest.raises(sv.SottovoceError, match="holds another run"):
        sv.fit(sv.FPL(rounds=6), parts, out=out)
    with pytest.raises(sv.SottovoceError, match="is not a run folder"):
        sv.open_run(tmp_path)


def test_a_named_data_set_is_not_copied(tmp_path):
    parts = sv.split(sv.load("town", residents=60, min_user_items=2))
    sv.fit(sv.FPL(rounds=1), parts, out=tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()
    opened = sv.open_run(tmp_path / "run")
    assert opened.parts.dataset.fingerprint() == parts.dataset.fingerprint()


def test_a_ready_split_comes_back_with_its_run(columns, tmp_path):
    part = ["test" if n % 5 == 0 else "train" for n in range(len(columns["user_id"]))]
    parts = sv.split(sv.load({**columns, "split": part}, name="mine"))
    fitted = sv.fit(sv.FPL(rounds=1), parts, out=tmp_path / "run")
    opened = sv.open_run(tmp_path / "run")
    assert opened.parts.dataset.name == "mine"
    assert sv.compare([fitted, opened], ["NDCG"]).data == "mine"


def test_a_device_that_is_not_there_is_said(parts):
    with pytest.raises(sv.SottovoceError, match='leave it on device="cpu"'):
        sv.fit(sv.DRIFT(epochs=1, preset="tuned"), parts, device="cuda")


def test_a_run_without_a_folder_leaves_nothing(parts, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fitted = sv.fit(sv.FPL(rounds=1), parts)
    assert fitted.folder is None
    assert list(tmp_path.iterdir())
    del fitted
    assert not list(tmp_path.iterdir())


def test_commands_take_a_run_on_a_frame(columns, tmp_path, capsys):
    parts = sv.split(sv.load(columns, name="nowhere-else"))
    experiment = sv.Gram(epsilon=4.0).experiment(parts).with_seed(3)
    sv.fit(experiment, parts, out=tmp_path / "run")
    for words in (("report",), ("ledger",), ("attack", "--only", "N1", "--canaries", "200")):
        assert sottovoce.cli.call([words[0], str(tmp_path / "run"), *words[1:]]) == 0
    assert (tmp_path / "run" / "report.html").is_file()
    assert "nowhere-else" in capsys.readouterr().out


def test_a_report_leaves_no_copy_of_named_data(tmp_path):
    out = tmp_path / "run"
    sv.fit(sv.FPL(rounds=1), sv.split(sv.load("town", residents=60)), out=out)
    outcome_of(out)
    assert not (out / "data").exists()


def test_what_a_preset_leaves_out_of_a_catalogue_is_said(parts):
    fitted = sv.fit(sv.FCF(preset="sums", rounds=1), parts)
    assert any("load(min_item_users=10)" in note for note in fitted.notes)


def test_text_in_a_notebook_is_text(gram, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "NDCG@10" in str(gram.evaluate(["NDCG"]))


def test_the_card_is_that_of_the_command(parts, tmp_path):
    fitted = sv.fit(sv.FPL(rounds=3, cohort_size=20), parts, out=tmp_path / "run")
    card = fitted.attack(only=["A1", "A3"], rounds=3)
    assert card == attack_run(tmp_path / "run", only=["A1", "A3"], rounds=3)
    kept = ("attack", "party", "value", "low", "high", "base_rate", "verdict")
    assert all(set(kept) <= set(row) for row in card.records())
    assert len(card.to_pandas()) == len(card.results) > 0
    first = str(card).splitlines()[0]
    assert first.startswith("Attacks on papers-fpl")
    with pytest.raises(sv.SottovoceError, match="there is no attack A99"):
        fitted.attack(only=["A99"])
    with pytest.raises(sv.SottovoceError, match="Top-Pop is central"):
        sv.fit(sv.TopPop(), parts).attack()


# --- recommendations ------------------------------------------------------------------------------


def test_recommendations_to_one_user_and_to_several(parts, gram):
    one, both = gram.recommend("r0003", n=4), gram.recommend(["r0003", "r0004"], n=4)
    assert len(one) == 4
    assert [row.item for row in both["r0003"]] == one.items
    assert both.to_polars()["user"].to_list() == ["r0003"] * 4 + ["r0004"] * 4
    assert both.to_pandas().columns.tolist() == [
        "user", "rank", "item", "title", "categories", "score", "points",
    ]  # fmt: skip
    assert not set(one.items) & set(parts.train.items_vocabulary().names(parts.train.row(3)))
    for wrong, said in (
        (
            lambda: gram.recommend("nobody"),
            "no user 'nobody' in the data; ids look like",
        ),
        (lambda: gram.recommend("r0003", n=0), "n must be at least 1"),
        (lambda: gram.recommend(), "name users of the data, or give the history"),
        (lambda: gram.recommend("r0003", history=["v0003"]), "or give the history of a new person"),
        (lambda: gram.recommend(history=[]), "a history needs at least one item"),
        (lambda: gram.recommend(history="v0003"), r"a list of items, as in \['v0003'\]"),
        (lambda: gram.recommend(history=["v0003", "nowhere"]), "has the item 'nowhere'"),
        (lambda: both["r0009"], "'r0009' was not asked for"),
    ):
        with pytest.raises(sv.SottovoceError, match=said):
            wrong()
    assert gram.evaluate(["NDCG"])["NDCG"].value > 0
    with pytest.raises(sv.SottovoceError, match="there is no metric 'nonsense'"):
        gram.evaluate(["nonsense"])


EXACTLY = {
    "gram": sv.Gram(epsilon=8.0), "fcf": sv.FCF(rounds=3), "fmf": sv.FMFLDP(rounds=2),
    "top-pop": sv.TopPop(), "item-knn": sv.ItemKNN(memory=3.0), "user-knn": sv.UserKNN(),
    "ease": sv.EASE(memory=5.0), "slim": sv.SLIM(), "ials": sv.IALS(epochs=2),
    "mf-np": sv.MFNP(epochs=2), "dplcf": sv.DPLCF(), "dpals": sv.DPALS(),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXACTLY)
def test_a_newcomer_gets_what_a_trained_user_with_her_history_gets(kind, parts, history_of):
    fitted = sv.fit(EXACTLY[kind], parts)
    for name in ("r0003", "r0044"):
        wanted, found = fitted.recommend(name), fitted.recommend(history=history_of(name))
        # As her own nearest neighbour, a trained user is left out of the neighbourhood.
        if kind == "user-knn":
            assert len(set(wanted.items) & set(found.items)) >= 8
            continue
        assert found.items == wanted.items
        assert [a.score for a in found] == pytest.approx([a.score for a in wanted], rel=1e-5)


def test_fpl_learns_a_newcomers_vector_at_home(parts, history_of):
    """From a first vector of her own, by steps as in training: not what a trained user has, but
    near it, the same each time, and nothing is booked as sent."""
    fitted = sv.fit(sv.FPL(rounds=150, share_positives=1.0, preset="tuned"), parts)
    sent = fitted.run.ledger().num_rows
    shared = []
    for name in ("r0003", "r0044", "r0100"):
        found = fitted.recommend(history=history_of(name))
        assert found.items == fitted.recommend(history=history_of(name)).items
        assert not set(found.items) & set(history_of(name))
        shared.append(len(set(found.items) & set(fitted.recommend(name).items)))
    assert np.mean(shared) >= 5
    assert fitted.run.ledger().num_rows == sent


def test_newcomers_of_systems_with_networks(parts, history_of):
    pytest.importorskip("torch")
    vae = sv.fit(sv.MultVAE(epochs=1, hidden_size=8, embedding_size=4), parts)
    found = vae.recommend(history=history_of("r0003"))
    assert found.items == vae.recommend("r0003").items
    town = sv.split(sv.load("town", residents=60))
    small = {"embedding_size": 8, "rounds": 1, "cohort_size": 30, "min_devices": 10}
    uc = sv.fit(sv.UCFedRec(hidden_attributes=["gender"], preset="sums", **small), town)
    assert uc.system == "UC-MF"
    liked = town.train.items_vocabulary().names([3, 10])
    mine = uc.recommend(history=liked, n=3)
    assert len(mine) == 3
    assert mine.items == uc.recommend(history=liked, n=3).items
    gnn = sv.UCFedRec(
        **small, preset="sums", hidden_attributes=[], more={"algorithm.recommender": "gnn"}
    )
    with pytest.raises(sv.SottovoceError, match="looks at other users' embeddings"):
        sv.fit(gnn, town).recommend(history=liked)


def test_who_has_nothing_for_a_newcomer_says_why(parts):
    for system, said in (
        (sv.BPRMF(epochs=1), "BPR-MF learns a vector for each user in training"),
        (
            sv.DRIFT(epochs=1, preset="tuned"),
            "DRIFT has no vector for a person who was never in training",
        ),
    ):
        fitted = sv.fit(system, parts)
        assert fitted.recommend("r0003").items
        with pytest.raises(sv.SottovoceError, match=said):
            fitted.recommend(history=["v0003"])


# --- data that are not as they should be ----------------------------------------------------------


def test_data_that_a_system_cannot_learn_from_are_refused_in_a_sentence(parts):
    """The frames have no ratings and nothing about users."""
    for system, said in (
        (sv.DRIFT(), r'has no ratings; .*sv\.DRIFT\(preset="tuned"\) needs no ratings$'),
        (
            sv.UCFedRec(hidden_attributes=["gender"]),
            r"hidden attribute 'gender' is not among the data's \[\]; say it with "
            r"sv\.load\(users=\.\.\.\), or name others in hidden_attributes=$",
        ),
    ):
        with pytest.raises(sv.SottovoceError, match=said) as caught:
            sv.fit(system, parts)
        assert "\n" not in str(caught.value)


NAN = float("nan")
BAD = {
    "no column": ({"who": ["a"], "what": ["x"]}, r'looks like the user .*columns={"user": "NAME"}'),
    "no rows": ({"user": [], "item": []}, "has no rows"),
    "an empty id": ({"user": ["a", None], "item": ["x", "y"]}, "row 2: column user: is empty"),
    "no number": ({"user": [1.0, NAN], "item": ["x", "y"]}, "row 2: column user: is empty"),
    "a rating": (
        {"user": ["a", "b"], "item": ["x", "y"], "rating": [1.0, NAN]},
        r'row 2: column rating.* is not a finite number; skip_bad=True .*columns={"rating": "-"}',
    ),
    "a fraction": ({"user": [1.5, 2.0], "item": ["x", "y"]}, "must hold whole numbers"),
    "several types": ({"user": ["a", 2], "item": ["x", "y"]}, "values of several types"),
    "no time": (
        {"user": ["a", "b"], "item": ["x", "y"], "timestamp": ["2024-05-01", "soon"]},
        "row 2: column timestamp: 'soon' is no time",
    ),
    "two of a kind": (
        {"user_id": ["a"], "userid": ["b"], "item": ["x"]},
        r'could be the column user_id or userid; say which, as in columns={"user": "user_id"}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_bad_frames_get_one_sentence(case, kind):
    columns, said = BAD[case]
    if kind == "pandas":
        frame = pd.DataFrame(columns)
    elif case == "several types":
        frame = columns  # Polars would not make such a frame
    else:
        frame = pl.DataFrame(columns)
    with pytest.raises(sv.SottovoceError, match=said) as caught:
        sv.load(frame)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_other_sources_that_are_not_data(tmp_path):
    for source, said in (
        (42, "must be a file, the name of a data set, or a frame"),
        ("no-such-thing", "no-such-thing is neither a file nor a prepared data set"),
        (tmp_path / "no.csv", "is neither a file nor a prepared"),
    ):
        with pytest.raises(sv.SottovoceError, match=said):
            sv.load(source)
    with pytest.raises(sv.SottovoceError, match='residents is for "town"'):
        sv.load({"user": ["a"], "item": ["x"]}, residents=5)


def test_odd_frames_that_are_data():
    rows = {"uid": [7, 7, 7, 8], "movieId": ["x", "x", "y", "x"], "stars": [1, 5, 4, 2]}
    frame = pd.DataFrame(rows, index=[5, 5, 6, 7])
    data = sv.load(frame)
    assert data.interactions.n_interactions == 3  # of a pair that is there twice, the last counts
    assert data.interactions.ratings.tolist() == [5.0, 4.0, 2.0]
    assert sv.load(frame, min_rating=4).interactions.n_interactions == 2
    assert sv.load(frame, columns={"rating": "-"}).interactions.ratings is None
    categories = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"]}).cast(pl.Categorical)
    assert sv.load(categories).interactions.users_vocabulary().names() == ["a", "b"]
    some = {"user": ["a", None, "b"], "item": ["x", "y", "y"]}
    assert sv.load(some, skip_bad=True).interactions.n_interactions == 2


def test_what_is_known_of_users_and_items_comes_along(parts, tmp_path):
    events = {"user": ["a", "b", "b"], "item": ["x", "x", "y"]}
    people = pd.DataFrame({"user_id": ["b", "a", "z"], "gender": ["f", "m", "f"]})
    (tmp_path / "items.csv").write_text("item,title,category\nx,Ex,Film\ny,Why,Book\n")
    data = sv.load(events, users=people, items=tmp_path / "items.csv", name="mine")
    assert data.name == "mine"
    assert data.attribute("gender").texts() == ["m", "f"]
    assert data.item_titles == ("Ex", "Why")
    assert data.category_names() == ("Book", "Film")
    with pytest.raises(sv.SottovoceError, match="the table of users has no column for the user"):
        sv.load(events, users=pd.DataFrame({"gender": ["f"]}))


# --- words ----------------------------------------------------------------------------------------


def test_sentences_speak_of_arguments():
    assert in_python("say --column user=NAME") == 'say columns={"user": "NAME"}'
    assert in_python("leave it on --device cpu") == 'leave it on device="cpu"'
    assert in_python("choose another --out") == "choose another out="


def test_frames_are_not_needed_unless_asked_for():
    code = (
        "import sys\nfor name in ('pandas', 'polars'): sys.modules[name] = None\n"
        "import sottovoce as sv\n"
        "parts = sv.split(sv.load('town', residents=40))\n"
        "table = sv.compare([sv.fit(sv.TopPop(), parts)])\nprint(table)\n"
        "for call in (table.to_pandas, table.to_polars):\n"
        "    try:\n        call()\n"
        "    except sv.SottovoceError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("[frames]") == 2


EXAMPLES = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", [n for n in sv.__all__ if n != "__version__"])
def test_every_public_name_is_explained(name):
    """For the reference: what it is, and of functions each argument in a line."""
    public = getattr(sv, name)
    text = public.__doc__ or ""
    assert "Example:\n" in text
    compile("\n".join(textwrap.dedent(block) for block in EXAMPLES.findall(text)), name, "exec")
    if inspect.isfunction(public):
        args = text.partition("Args:\n")[2].partition("Returns:\n")
        assert args[1]
        told = re.findall(r"^        (\w+): ", args[0], re.MULTILINE)
        assert told == list(inspect.signature(public).parameters)


def test_the_example_runs(ratings, capsys):
    example = Path(__file__).parents[2] / "examples" / "compare.py"
    table = runpy.run_path(str(example))["main"](str(ratings))
    assert list(table.evaluations) == ["Top-Pop", "gram", "pFPL+", "Item-kNN"]
    assert "Attacks on sound-gram" in capsys.readouterr().out
