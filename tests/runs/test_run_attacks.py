"""From a run to a report card: views hold what a party saw, truth what was so, and an attack that
finds nothing to read says so."""

import json
import math
import shutil
from dataclasses import fields

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.views import Attack, Claims, Result, TlsPacket, clustered
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.core.messages import (
    Batch,
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    ModelView,
    SummedReports,
)
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.errors import (
    AttackFailed,
    CorruptData,
    DataError,
    DoesNotApply,
    RunError,
    UsageError,
)
from sottovoce.experiment import Experiment
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.reports import KReports
from sottovoce.runs import threat_views as run_scenes
from sottovoce.runs.attack import attack_experiment, attack_run, views_and_truth, views_of
from sottovoce.runs.card import Card, CardSetting, NotApplicable, in_words, write_card
from sottovoce.runs.folder import RunFolder, save_arrays
from sottovoce.runs.threat_views import Watched, watched
from sottovoce.runs.train import run_experiment

TABLE = {
    "name": "small",
    "seed": 3,
    "town": {"residents": 60, "venues": 80, "visits_per_resident": 20.0},
    "algorithm": {"configuration": "pFPL+", "embedding_size": 8, "epochs": 3},
    "consent": {"mix": [{"weight": 3, "share_positives": 1.0}, {"weight": 1, "takes_part": False}]},
}


def make(**changes):
    return Experiment.from_table(TABLE | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "small"
    run_experiment(make(), path, transcript=True)
    return path


@pytest.fixture
def run(finished, tmp_path):
    """A copy to be spoilt, without a transcript."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    shutil.move(path / "transcript", tmp_path / "transcript")
    return path


def same(one, other):
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return one == other


# --- two attacks: one that reads what is there, one that has nothing but popularity --------------


def senders_rows(view):
    """With π = 1, the rows whose bias went up are positives."""
    found = view.messages(DeviceReports)
    up = [m.values[:, -1] > 0 for m in found]
    users = [np.zeros(0, np.int64), *(m.sender[mine] for m, mine in zip(found, up, strict=True))]
    items = [np.zeros(0, np.int64), *(m.item[mine] for m, mine in zip(found, up, strict=True))]
    return Claims(np.concatenate(users), np.concatenate(items))


def everybody_has_the_first(view):
    return Claims(np.arange(40), np.zeros(40, dtype=np.int64))


def attack(code, party, guess, needs=lambda view: ""):
    return Attack(f"fake {code}", party, "Nobody reads it.", guess, code=code, needs=needs)


READER = attack("A3", "server", senders_rows)
GUESSER = attack("A98", "anyone", everybody_has_the_first)


def test_views_of_a_transcript_and_of_rounds_enacted_again_are_the_same(finished, run):
    kept, again = views_and_truth(finished), views_and_truth(run)
    assert "transcript" in kept.facts["looked at"]
    assert "enacted again" in again.facts["looked at"]
    assert kept.views.keys() == again.views.keys() == {"server", "network", "anyone"}
    for party in kept.views:
        assert same(kept.views[party], again.views[party]), party
    assert same(views_of(finished, rounds=20), dict(kept.views))
    assert len(views_of(finished)["server"].rounds) == RunFolder.open(finished).manifest()[
        "schedule"]["rounds"]  # fmt: skip
    assert not kept.notes
    assert not again.notes


def test_a_view_has_what_the_party_saw_and_what_is_public(run):
    threat = views_and_truth(run, rounds=2)
    server, anyone = threat.views["server"], threat.views["anyone"]
    assert [seen.round for seen in server.rounds] == [0, 1]
    assert all(isinstance(seen.published, ModelView) for seen in anyone.rounds)
    assert not any(seen.messages for seen in anyone.rounds)
    assert all(isinstance(p, TlsPacket) for p in threat.views["network"].rounds[0].messages)
    assert isinstance(server.algorithm, FPLConfig)
    assert server.triples >= 1
    assert np.array_equal(server.final, RunFolder.open(run).model())
    assert not server.own
    assert "redacted" in repr(threat)


def test_the_truth_is_that_of_the_run(run):
    truth = views_and_truth(run, rounds=2).truth
    experiment = make()
    dataset = experiment.dataset()
    split, consent = experiment.split(dataset), experiment.records(dataset)
    assert np.array_equal(truth.train.items, split.train.items)
    assert truth.test.n_items == truth.train.n_items
    assert truth.test.n_interactions == int((split.test.items < split.train.n_items).sum())
    assert np.array_equal(truth.takes_part, consent.takes_part)
    assert np.array_equal(truth.share_positives, consent.share_positives)
    assert set(truth.labels) == set(truth.hidden) == set(dataset.user_attributes)
    assert np.array_equal(truth.vectors, RunFolder.open(run).vectors())
    # What devices drew, by which attacks are scored: theirs, in rounds in which they were asked.
    drawn = truth.own["drawn"]
    known = set(zip(truth.train.users.tolist(), truth.train.items.tolist(), strict=True))
    assert known.issuperset(zip(drawn.user.tolist(), drawn.item.tolist(), strict=True))
    assert set(drawn.round.tolist()) == {0, 1}
    assert sorted(truth.own["vectors"]) == [0, 1, 2]


def test_an_attack_that_reads_is_told_from_one_that_guesses(run):
    card = attack_run(run, attacks=[READER, GUESSER])
    reader, guesser = card.results
    assert (reader.value, reader.verdict) == (1.0, "broken")
    assert guesser.verdict == "underpowered"  # 40 claims
    assert card.broken == (reader,)
    assert card.facts["system"] == "pFPL+"
    assert "π = 0 or 1" in card.setting.relied_on


def test_an_experiment_is_attacked_without_a_folder(run, tmp_path):
    told = []
    card = attack_experiment(
        make(), rounds=5, attacks=[READER, GUESSER], out=tmp_path / "card",
        report=lambda *step: told.append(step),
    )  # fmt: skip
    assert [r.verdict for r in card.results] == ["broken", "underpowered"]
    assert {"data", "training", "attacks"} == {what for what, _, _ in told}
    content = json.loads((tmp_path / "card" / "attacks.json").read_text())
    assert content["attacks"][0]["code"] == "A3"
    assert (tmp_path / "card" / "report-card.html").exists()
    # It is trained to its end, and the model is that of the run.
    threat = views_and_truth(make(), rounds=5)
    assert np.array_equal(threat.views["server"].final, RunFolder.open(run).model())
    assert np.array_equal(threat.truth.vectors, RunFolder.open(run).vectors())


def test_a_secure_sum_leaves_the_server_the_sum():
    table = {
        "link": {"name": "secure-sum", "min_devices": 10},
        "algorithm": TABLE["algorithm"] | {"configuration": "pFPL"},
    }
    threat = views_and_truth(make(**table), rounds=2)
    server, proxy = threat.views["server"], threat.views["proxy"]
    assert isinstance(server.link, SecureSum)
    assert not server.messages(DeviceReports)
    assert not server.messages(MaskSeeds)
    assert len(server.messages(SummedReports)) == len(proxy.messages(MaskSeeds)) == 2
    assert len({p.bytes for p in threat.views["network"].messages(TlsPacket)}) == 1
    card = attack_experiment(make(**table), rounds=2, attacks=[READER])
    assert card.results[0].verdict == "nothing to attack"  # no rows of single devices are there
    assert len(threat.truth.own["drawn"].user)
    assert threat.setting.remedies == ("secure-sum",)


def test_randomised_reports_reach_the_server_mixed_and_the_proxy_sealed():
    table = {
        "algorithm": {"name": "fmf", "embedding_size": 3, "rounds": 4},
        "release": {"max_reports": 5, "tiers": [{"epsilon": 2.0, "min_devices": 5}]},
        "consent": {"epsilon": 2.0, "max_reports": 5},
    }
    threat = views_and_truth(make(**table))
    assert len(threat.views["server"].rounds) == 4  # all there are
    assert {type(m) for s in threat.views["server"].rounds for m in s.messages} == {Batch}
    assert all(m.reports.size == 0 for m in threat.views["proxy"].messages(BitReports))
    assert len({p.bytes for p in threat.views["network"].messages(TlsPacket)}) == 1
    assert "k = 5" in threat.setting.relied_on
    # For scoring, whose they were.
    for batch, bits in zip(
        threat.views["server"].messages(Batch), threat.truth.own["bits"], strict=True
    ):
        assert np.array_equal(np.sort(batch.reports), np.sort(bits.reports.ravel()))


def test_uc_has_the_embeddings_of_all_as_the_worst_case():
    pytest.importorskip("torch")
    table = {
        "algorithm": {
            "name": "uc", "embedding_size": 5, "rounds": 4, "local_epochs": 2, "pairs": 8,
            "cohort_size": 20, "attributes": [{"name": "gender"}],
        },
        "consent": {"hidden_attributes": ["gender"]},
    }  # fmt: skip
    threat = views_and_truth(make(**table), rounds=2)
    assert threat.views["anyone"].own["representations"].shape == (60, 5)
    assert not threat.views["server"].own
    assert threat.truth.hidden["gender"].all()
    assert set(np.unique(threat.truth.labels["gender"])) <= {-1, 0, 1, 2}


def test_data_owners_and_their_orchestrator(tmp_path, small_ratings):
    table = {
        "data": {"source": "small"},
        "algorithm": {"name": "drift", "embedding_size": 4, "epochs": 2},
        "consent": {},
    }
    run_experiment(make(**table), tmp_path / "run")
    kept, again = views_and_truth(tmp_path / "run"), views_and_truth(make(**table))
    assert set(kept.views) == set(again.views) == {"orchestrator", "owner", "network"}
    assert np.array_equal(kept.views["orchestrator"].final, again.views["orchestrator"].final)
    assert np.allclose(kept.truth.vectors, again.truth.vectors)
    assert kept.truth.own["drift"]
    assert "1 of 2 epochs" in kept.facts["looked at"]
    card = attack_run(tmp_path / "run", only=["A6", "A7"])
    assert card.results
    assert "sealed" in card.setting.relied_on


@pytest.fixture
def small_ratings(tmp_path, monkeypatch):
    """A set with ratings, times and categories, prepared under the name "small"."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(30 * 24)[:400], 24)
    interactions = Interactions.from_pairs(
        users,
        items,
        n_users=30,
        n_items=24,
        timestamps=rng.integers(1, 10**6, 400),
        ratings=rng.integers(1, 6, 400).astype(np.float32),
    )
    categories = tuple((("Food",) if k % 2 else ("Arts",)) for k in range(24))
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "data"))
    write_prepared(
        Dataset("small", interactions, item_categories=categories), tmp_path / "data" / "small"
    )


# --- attacks that cannot be run ------------------------------------------------------------------


def lacks(view):
    return view.own["what nobody has"]


def refuses(view):
    raise DoesNotApply("the model has no biases")


def misreads(view):
    return view.nothing_of_this_name


def miscounts(view):
    raise DataError("every client needs a label")


def breaks(view):
    raise ZeroDivisionError("an error of the attack's own")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (attack("A1", "server", refuses), "no biases"),
        (attack("A1", "orchestrator", lacks), "there is no orchestrator here"),
        (attack("A1", "server", lacks, lambda view: "it needs filters"), "it needs filters"),
    ],
)
def test_an_attack_without_what_it_needs_does_not_apply_and_the_others_go_on(run, broken, reason):
    card = attack_run(run, rounds=3, attacks=[broken, READER])
    (one,) = card.not_applicable
    assert (one.code, one.party) == ("A1", broken.party)
    assert reason in one.reason
    assert [r.code for r in card.results] == ["A3"]


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (lacks, "KeyError in lacks"),
        (misreads, "AttributeError in misreads"),
        (breaks, "ZeroDivisionError in breaks"),
        (miscounts, "every client needs a label"),
    ],
)
def test_a_bug_in_an_attack_is_an_error_and_the_others_go_on(run, bug, words, tmp_path):
    """Nothing of it is taken for protection, or for an attack that does not apply."""
    card = attack_run(run, rounds=1, attacks=[attack("A1", "server", bug), READER])
    assert card.not_applicable == ()
    assert [r.code for r in card.results] == ["A3"]
    (one,) = card.failed
    assert (one.code, one.party) == ("A1", "server")
    assert words in one.error
    assert "what nobody has" not in one.error  # values may be private
    with pytest.raises(AttackFailed, match=r"A1 .*not known|not known.*A1"):
        card.require_whole()
    page = write_card(card, "run", tmp_path / "card.html", tmp_path / "card.json")
    assert "fell over" in page.read_text()
    assert json.loads((tmp_path / "card.json").read_text())["failed"][0]["error"] == one.error


def test_a_bug_where_an_attack_says_whether_it_applies_is_an_error_too(run):
    card = attack_run(run, rounds=1, attacks=[attack("A1", "server", breaks, lacks)])
    assert [one.error[:8] for one in card.failed] == ["KeyError"]


# --- bad input -----------------------------------------------------------------------------------


def test_a_foreign_transcript_is_refused_and_left_alone(run, tmp_path):
    run_experiment(make(seed=4), tmp_path / "other", transcript=True)
    shutil.copytree(tmp_path / "other" / "transcript", run / "transcript")
    before = sorted(run.rglob("*"))
    with pytest.raises(RunError, match="transcript of another run"):
        attack_run(run, attacks=[READER])
    assert sorted(run.rglob("*")) == before


def test_a_damaged_transcript_is_refused(run, tmp_path):
    shutil.move(tmp_path / "transcript", run / "transcript")
    path = run / "transcript" / "server" / "round-000001.npz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptData, match=r"round-000001\.npz is cut short"):
        attack_run(run, attacks=[READER])


def test_data_that_have_changed_are_refused(run):
    manifest = RunFolder.open(run).manifest()
    RunFolder.open(run).update_manifest(data=manifest["data"] | {"fingerprint": "other"})
    with pytest.raises(RunError, match="not the one"):
        attack_run(run, attacks=[READER])


def test_a_model_of_another_run_is_refused(run):
    save_arrays(run / "model.npz", items=np.zeros((3, 3), np.float32))
    with pytest.raises(CorruptData, match="another run"):
        attack_run(run, attacks=[READER])


def test_no_rounds_are_refused(run):
    with pytest.raises(UsageError, match="at least 1"):
        views_and_truth(run, rounds=0)
    with pytest.raises(RunError, match="no transcript"):
        views_of(run)


def test_what_is_not_as_it_was_is_noted(run):
    RunFolder.open(run).update_manifest(versions={"sottovoce": "0.0.1"})
    (note,) = views_and_truth(run, rounds=1).notes
    assert "0.0.1" in note


def test_releases_that_the_ledger_does_not_book_are_noted(run, tmp_path):
    run_experiment(make(seed=4), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ledger.parquet", run / "ledger.parquet")
    (note,) = views_and_truth(run, rounds=2).notes
    assert "ledger" in note


def test_what_memory_cannot_hold_is_noted(run, monkeypatch):
    monkeypatch.setattr(run_scenes, "MOST_NUMBERS", 1_500)
    threat = views_and_truth(run, rounds=3)
    (note,) = threat.notes
    assert "were kept" in note
    senders = np.unique(np.concatenate([m.sender for m in threat.views["server"].messages(
        DeviceReports)]))  # fmt: skip
    assert 0 < len(senders) < 30


def test_how_many_rounds_are_looked_at():
    experiment = make()
    dataset = experiment.dataset()
    devices = dataset.interactions.n_users
    every = FPLConfig(configuration="pFPL", epochs=50).plan(devices, 900)
    shares, direct = ShareFraction(), Direct()
    assert watched(shares, direct, every, 1) == Watched(20)
    whole = FCFConfig(rounds=50).plan(devices, 900)
    assert watched(KReports(), Proxied(), whole, 1) == Watched(20)
    assert watched(Everything(), direct, whole, 1) == Watched(3)
    assert watched(Everything(), direct, whole, 1, rounds=7) == Watched(7)
    single = FPLConfig(configuration="sFPL", epochs=50).plan(devices, 900)
    assert watched(shares, direct, single, 1) == Watched(3 * devices)
    assert watched(shares, direct, single, 1 << 29) == Watched(2)
    short = FPLConfig(configuration="pFPL", rounds=2).plan(devices, 900)
    assert watched(shares, direct, short, 1) == Watched(2)


def test_sums_are_looked_at_from_the_first_to_the_last():
    plan = FPLConfig(configuration="pFPL", rounds=500).plan(60, 900)
    found = watched(ShareFraction(), SecureSum(), plan, 1)
    assert found.whole == 3
    assert len(found.sums) == 17
    assert found.sums[:7] == (3, 4, 5, 6, 7, 8, 9)
    assert found.sums[-1] == 499
    assert {10, 499, 500} <= found.models
    assert found.end == 500
    assert watched(ShareFraction(), SecureSum(), plan, 1, rounds=3) == Watched(3)
    exact = FPLConfig(configuration="pFPL", rounds=20).plan(60, 900)
    assert watched(Everything(), SecureSum(), exact, 1) == Watched(3, tuple(range(3, 20)))
    assert watched(Everything(), SecureSum(), exact, 1 << 28) == Watched(2)


def test_sums_of_later_rounds_are_those_of_the_run(tmp_path):
    table = {
        "link": {"name": "secure-sum", "min_devices": 10},
        "algorithm": TABLE["algorithm"] | {"epochs": 6},
    }
    run_experiment(make(**table), tmp_path / "run", transcript=True)
    kept, every = views_and_truth(tmp_path / "run"), views_of(tmp_path / "run")
    again = views_and_truth(make(**table))
    for party in kept.views:
        assert same(kept.views[party], again.views[party]), party
    server, last = kept.views["server"], RunFolder.open(tmp_path / "run").manifest()["schedule"]
    sums = {m.round: m for m in server.messages(SummedReports)}
    assert len(sums) == 20
    assert last["rounds"] - 1 in sums
    for one in every["server"].messages(SummedReports):  # opened from masked updates at the time
        assert same(one, sums.get(one.round, one))
    # Of each there are the models before and after it, the published one at the end included.
    models = {seen.round: seen.published for seen in kept.views["anyone"].rounds}
    assert all(models[r] and models[r + 1] for r in sums)
    assert np.array_equal(models[last["rounds"]].items, server.final)
    # Masked updates are of the first rounds alone.
    assert {m.round for m in server.messages(MaskedReports)} == {0, 1, 2}
    assert "3 of" in kept.facts["looked at"]
    assert "17 more" in kept.facts["looked at"]
    assert not kept.notes


# --- the card ------------------------------------------------------------------------------------


def result(**changes):
    values = {
        "code": "A1", "attack": "inversion", "party": "server",
        "promise": "The server does not learn which items I hold back.", "measure": "precision",
        "value": 0.97, "interval": (0.95, 0.98), "base_rate": 0.08, "recall": 0.9, "claims": 700,
    }  # fmt: skip
    return Result(**values | changes)


def test_words_for_the_owner_of_a_device():
    text = in_words(result(), CardSetting("Your setting π = 0"))
    assert "97 of 100" in text
    assert "8 of 100" in text
    assert "Your setting π = 0 did not prevent that" in text
    assert "secure-sum" in text
    held = in_words(result(value=0.08, interval=(0.05, 0.1)), CardSetting("Your setting π = 0"))
    assert "no better than guessing" in held
    assert "did not prevent" not in held
    nothing = in_words(result(claims=0), CardSetting("x"))
    assert "nothing to make a guess from" in nothing
    # What is in force already is no advice.
    summed = in_words(result(), CardSetting("x", ("secure-sum",)))
    assert "secure-sum" not in summed
    assert "should not take part" in summed
    # Nor is what does not keep anyone else from reading it.
    lone = in_words(result(party="anyone"), CardSetting("x"))
    assert "secure-sum" not in lone
    auc = in_words(
        result(code="A12", measure="AUC", party="anyone"), CardSetting("x", ("secure-sum",))
    )
    assert "link.noise" in auc
    own = in_words(result(code="one-run", measure="ε", value=3.25), CardSetting("x"))
    assert "3.25" in own


def test_a_card_is_written_whole(tmp_path):
    card = Card(
        "small",
        (result(), result(code="A2", value=0.1, interval=(0.05, 0.12), base_rate=0.1),
         result(code="A8", claims=0, recall=math.nan)),
        (NotApplicable("A6", "cosine", "orchestrator", "there is no <orchestrator> here"),),
        {"experiment": "small", "system": "pFPL"},
        ("A note.",),
    )  # fmt: skip
    page = write_card(card, "runs/small", tmp_path / "card.html", tmp_path / "card.json")
    text = page.read_text()
    assert "data:image/svg+xml" in text
    assert "97 of 100" in text
    assert "&lt;orchestrator&gt;" in text
    assert (tmp_path / "card-figures" / "attacks.svg").exists()
    content = json.loads((tmp_path / "card.json").read_text())
    assert content["run"] == "runs/small"
    first, second, third = content["attacks"]
    assert set(first) == {
        "attack", "code", "party", "promise", "measure", "value", "interval", "base_rate",
        "recall", "claims", "verdict", "detail", "looked", "unit", "far_above", "needed",
    }  # fmt: skip
    assert [first["verdict"], second["verdict"]] == ["broken", "holds"]
    assert (third["verdict"], third["recall"]) == ("nothing to attack", None)
    assert content["not_applicable"][0]["code"] == "A6"


# --- a second look -------------------------------------------------------------------------------

LONG = {
    "link": {"name": "secure-sum", "min_devices": 10},
    "algorithm": TABLE["algorithm"] | {"embedding_size": 3, "epochs": 16},
}


def counts(name, share, each, grows_with="rounds"):
    """An attack that makes so many claims a round, of which this share is right."""

    def judge(rounds, truth):
        claims = each * rounds
        right = np.zeros(claims, np.int64)
        right[: round(share * claims)] = 1
        interval = clustered(right, np.ones(claims, np.int64)) if claims else (0.0, 1.0)
        return result(attack=name, value=share, interval=interval, claims=claims, base_rate=0.05)

    def sums(view):
        return len(view.messages(SummedReports))

    return Attack(name, "server", "Nobody reads it.", sums, judge, code=name, grows_with=grows_with)


def test_attacks_that_saw_too_little_look_again_at_as_many_rounds_as_it_takes():
    little, none, plenty = (
        counts("little", 0.05, 6), counts("none", 0.0, 0), counts("plenty", 0.05, 1000),
    )  # fmt: skip
    people = counts("people", 0.05, 6, "users")
    once = attack_experiment(make(**LONG), attacks=[little, plenty, people], seconds=0)
    assert [r.verdict for r in once.results] == ["underpowered", "holds", "underpowered"]
    assert [(r.looked, r.unit) for r in once.results] == [
        (20, "rounds"), (20, "rounds"), (60, "users"),
    ]  # fmt: skip
    needed = once.results[0].needed
    assert 20 < needed < 160
    assert any("would have taken longer" in note for note in once.notes)
    again = attack_experiment(make(**LONG), attacks=[little, plenty, people])
    assert [r.verdict for r in again.results] == ["holds", "holds", "underpowered"]
    # Whoever had a verdict, or needs more users, did not look again.
    assert [r.looked for r in again.results] == [needed, 20, 60]
    assert "(first 20)" in again.facts["looked at"]
    assert any("looked a second time" in note for note in again.notes)
    # What claimed nothing looks at ten times as many, or at all.
    nothing = attack_experiment(make(**LONG), attacks=[none])
    assert nothing.results[0].looked == views_and_truth(make(**LONG), rounds=1).rounds == 160
    # Who says how many rounds gets these.
    fixed = attack_experiment(make(**LONG), attacks=[little], rounds=4)
    assert (fixed.results[0].looked, fixed.results[0].verdict) == (4, "underpowered")
    assert not fixed.notes


def test_a_finished_run_is_looked_at_again_with_the_same_outcome(tmp_path):
    run_experiment(make(**LONG), tmp_path / "run")
    little = counts("little", 0.05, 6)
    kept = attack_run(tmp_path / "run", attacks=[little])
    live = attack_experiment(make(**LONG), attacks=[little])
    assert kept.attacks() == live.attacks()
    assert not any("ledger" in note for note in kept.notes)


def test_no_more_is_looked_at_than_memory_holds():
    plan = FPLConfig(configuration="pFPL", rounds=500).plan(60, 900)
    assert watched(ShareFraction(), SecureSum(), plan, 1, enough=200).count == 200
    assert watched(ShareFraction(), SecureSum(), plan, 1, enough=2000).count == 500
    assert watched(ShareFraction(), SecureSum(), plan, 1 << 24, enough=200).count == 32
