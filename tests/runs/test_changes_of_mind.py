"""Users who change their minds hide attributes in a trained model: whom that moves, how far, what
is on record, and that a run that was stopped goes on to the same numbers."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.core.consent import ChangeOfMind, Choice, Consent, ConsentPolicy
from sottovoce.core.hiding import Hidden
from sottovoce.errors import ConfigError, StoreError
from sottovoce.experiment import Experiment
from sottovoce.rng import Streams
from sottovoce.testing import checkerboard

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig  # noqa: E402
from sottovoce.attacks.suite.a15_changed_minds import (  # noqa: E402
    ATTACK,
    MindsSeen,
    MindsTruth,
)
from sottovoce.attacks.views import Truth  # noqa: E402
from sottovoce.core.cohort import Cohort  # noqa: E402
from sottovoce.core.messages import ModelView  # noqa: E402
from sottovoce.engines.simulation import Simulation  # noqa: E402
from sottovoce.privacy.updates import Clipped  # noqa: E402
from sottovoce.runs import topology  # noqa: E402
from sottovoce.runs.attack import attack_run  # noqa: E402
from sottovoce.runs.federation import Federation  # noqa: E402
from sottovoce.runs.folder import RunFolder  # noqa: E402
from sottovoce.runs.minds import kept_changes  # noqa: E402
from sottovoce.runs.train import run_experiment  # noqa: E402
from sottovoce.stores.device import CohortStore  # noqa: E402
from sottovoce.stores.session import DeviceSession  # noqa: E402
from sottovoce.wire.terms import Terms  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TRAIN = checkerboard(24, 30, hole=2)
USERS = np.arange(24)
LABELS = np.stack([USERS % 2, USERS % 3], axis=1)
NAMES = ("gender", "age")
CONFIG = UCConfig(
    embedding_size=8, learning_rate=1.0, filter_rate=1.0, item_rate=4.0, local_epochs=3, pairs=16,
    rounds=4, cooling=0.0, attributes=(
        FilterConfig("gender", ("f", "m"), (0.5, 0.5)),
        FilterConfig("age", ("young", "middle", "old"), (0.3, 0.4, 0.3)),
    ),
)  # fmt: skip
KINDS = ["mf", "ncf", "neumf", "gnn"]
CHANGED = np.array([2, 5, 9, 17])


def consent_of(hides=None):
    """`hides` maps a user to what she hides; all others share everything."""
    told = hides or {}
    kinds = [(), *sorted(set(told.values()))]
    choices = [Choice(share_positives=1.0, hidden_attributes=hidden) for hidden in kinds]
    which = np.array([kinds.index(told.get(int(user), ())) for user in USERS])
    return Consent.of(USERS, choices, which, NAMES)


def trained(settings=CONFIG, before=None, rounds=2):
    made = Federation.build(
        settings, TRAIN, before or consent_of(), Clipped(), Streams.from_seed(1), LABELS
    )
    Simulation(made.server, made.devices, made.schedule.cohort_size, rounds).run()
    return made


# --- the devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", ["moments", "two-layer"])
@pytest.mark.parametrize("kind", KINDS)
def test_those_who_change_move_and_nobody_else(kind, filters):
    made = trained(replace(CONFIG, recommender=kind, filters=filters))
    before, items = made.devices.cohort.vectors.copy(), made.server.items.copy()
    after = consent_of({int(user): NAMES for user in CHANGED})
    hidden = made.devices.change_consent(after, made.server.recommending)
    assert [one.user for one in hidden] == CHANGED.tolist()
    now, others = made.devices.cohort.vectors, np.setdiff1d(USERS, CHANGED)
    assert np.array_equal(now[others], before[others])
    assert np.array_equal(made.server.items, items)
    assert made.devices.cohort.consent is after
    for one in hidden:
        way = np.linalg.norm(now[one.user] - before[one.user])
        assert one.moved == pytest.approx(way, rel=1e-4, abs=1e-6)
        assert (one.attributes, one.round) == (NAMES, 2)
        assert one.after < one.before or not one.moved
    told = [one for one in hidden if one.before > 0.02]
    assert all(one.moved for one in told)
    assert told or filters == "two-layer"


@pytest.mark.parametrize("furthest", [0.0, 1e-3, 0.02, 100.0])
def test_nobody_moves_further_than_permitted(furthest):
    made = trained(replace(CONFIG, furthest=furthest))
    before = made.devices.cohort.vectors.copy()
    everyone = consent_of({int(user): NAMES for user in USERS})
    hidden = made.devices.change_consent(everyone, made.server.recommending)
    way = np.linalg.norm(made.devices.cohort.vectors - before, axis=1)
    assert way.max() <= furthest * (1 + 1e-4)
    assert {one.reason for one in hidden} <= {
        "the filter tells nothing", "as far as permitted", "all steps taken",
    }  # fmt: skip
    if furthest < 0.01:
        assert "as far as permitted" in {one.reason for one in hidden}


@pytest.mark.parametrize("kind", ["mf", "ncf", "neumf"])
@pytest.mark.parametrize("filters", ["moments", "two-layer"])
def test_a_device_alone_moves_as_in_company_to_the_last_bit(kind, filters):
    made = trained(replace(CONFIG, recommender=kind, filters=filters))
    algorithm, view = made.server.algorithm, made.server.recommending
    every = made.devices.cohort.take(USERS)
    alone = [made.devices.cohort.take(np.array([user])) for user in range(4)]
    hides = np.ones((24, 2), dtype=bool)
    found = algorithm.device_hide(view, every, hides, NAMES)
    for user, one in enumerate(alone):
        assert algorithm.device_hide(view, one, hides[:1], NAMES) == [found[user]]
        assert np.array_equal(one.vectors[0], every.vectors[user])


def test_what_was_hidden_before_moves_nobody_again():
    before = consent_of({int(user): ("gender",) for user in USERS})
    made = trained(before=before)
    vectors = made.devices.cohort.vectors.copy()
    assert made.devices.change_consent(before, made.server.recommending) == []
    assert made.devices.change_consent(consent_of(), made.server.recommending) == []
    assert np.array_equal(made.devices.cohort.vectors, vectors)
    again = made.devices.change_consent(consent_of({5: NAMES}), made.server.recommending)
    assert [one.attributes for one in again] == [NAMES]  # it was revealed in between


# --- experiments ----------------------------------------------------------------------------------

TABLE = {
    "seed": 3,
    "town": {"residents": 60, "venues": 60, "visits_per_resident": 20.0},
    "algorithm": {
        "name": "uc", "embedding_size": 8, "learning_rate": 1.0, "filter_rate": 1.0,
        "item_rate": 4.0, "local_epochs": 3, "pairs": 16, "rounds": 6, "cohort_size": 30,
        "attributes": [{"name": "gender"}, {"name": "age"}],
    },
    "consent": {
        "share_positives": 1.0,
        "changes": [
            {"after_round": 3, "share": 0.6, "hide": ["gender"]},
            {"after_round": 6, "share": 0.6, "hide": ["age"]},
        ],
    },
}  # fmt: skip


def make(*changes):
    return Experiment.from_table({**TABLE, "consent": {**TABLE["consent"], "changes": [*changes]}})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("minds") / "whole"
    run_experiment(Experiment.from_table(TABLE), path)
    return path


def test_a_run_says_who_moved_and_what_it_cost(whole):
    first, second = RunFolder.open(whole).manifest()["changes_of_mind"]
    assert (first["after_round"], first["hide"]) == (3, ["gender"])
    assert (second["after_round"], second["hide"]) == (6, ["age"])
    for one in (first, second):
        assert 20 <= one["users"] <= 50
        assert sum(one["stopped"].values()) == one["users"]
        assert one["filter_tells"]["after"] <= one["filter_tells"]["before"]
        costs = one["metrics"]
        assert set(costs) == {"before", "after", "end"}
        assert costs["before"]["others"] == costs["after"]["others"]
        many = costs["after"]["changed"]["users"] + costs["after"]["others"]["users"]
        assert many == 60
    assert second["metrics"]["end"] == second["metrics"]["after"]
    kept = kept_changes(whole)
    assert np.array_equal(kept[1].after, RunFolder.open(whole).vectors())
    rows = np.isin(np.arange(60), kept[0].users)
    assert np.array_equal(kept[0].before[~rows], kept[0].after[~rows])


@pytest.mark.parametrize("moment", [2, 3, 4, 6])
def test_a_run_stopped_anywhere_resumes_to_the_same_numbers(tmp_path, monkeypatch, whole, moment):
    """Before, at and after the round of the change, and at the end."""
    original, calls = RunFolder.save_checkpoint, 0

    def save_then_die(self, *arguments):
        nonlocal calls
        original(self, *arguments)
        calls += 1
        if calls == moment:
            raise SystemError("killed")

    experiment = Experiment.from_table(TABLE)
    with monkeypatch.context() as patch:
        patch.setattr(topology, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(RunFolder, "save_checkpoint", save_then_die)
        with pytest.raises(SystemError):
            run_experiment(experiment, tmp_path / "cut")
    run_experiment(experiment, tmp_path / "cut", resume=True)
    one, other = RunFolder.open(whole), RunFolder.open(tmp_path / "cut")
    assert np.array_equal(one.model(), other.model())
    assert np.array_equal(one.vectors(), other.vectors())
    assert one.ledger().equals(other.ledger())
    for name in ("results", "changes_of_mind"):
        assert one.manifest()[name] == other.manifest()[name]


def test_until_they_change_a_run_is_as_without_them(tmp_path):
    """And a change at the end leaves the model alone."""
    plain, late = tmp_path / "plain", tmp_path / "late"
    run_experiment(make(), plain)
    run_experiment(make({"after_round": 6, "hide": ["gender"]}), late)
    one, other = RunFolder.open(plain), RunFolder.open(late)
    assert np.array_equal(one.model(), other.model())
    assert np.array_equal(kept_changes(late)[0].before, one.vectors())
    assert not np.array_equal(one.vectors(), other.vectors())
    assert "changes_of_mind" not in one.manifest()


def test_who_changes_depends_on_the_seed_and_the_user_alone():
    users, every = np.arange(200), Choice(hidden_attributes=("age",))
    policy = ConsentPolicy(
        (Choice(), every, Choice(takes_part=False)), (6.0, 2.0, 2.0),
        (ChangeOfMind(3, ("gender", "age"), 0.5),),
    )  # fmt: skip
    rng = Streams.from_seed(4)
    before = policy.draw(users, rng, NAMES)
    ((round, after),) = policy.later(before, rng)
    assert round == 3
    changed = (after.hidden_attributes != before.hidden_attributes).any(axis=1)
    assert not changed[~before.takes_part].any()
    assert after.hidden_attributes[changed].all()
    assert 50 < changed.sum() < 110
    part = np.array([7, 30, 111])
    ((_, some),) = policy.later(before.take(part), rng)
    assert np.array_equal(some.hidden_attributes, after.hidden_attributes[part])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"after_round": 3, "hide": ["income"]}, "hides 'income', which is not among the attribut"),
        ({"after_round": 3, "hide": []}, "hide must name the attributes"),
        ({"after_round": 0, "hide": ["age"]}, "after_round must be a whole number of at least 1"),
        ({"after_round": 7, "hide": ["age"]}, "after_round = 7, and the run has 6 rounds"),
        ({"after_round": 3, "hide": ["age"], "share": 0.0}, r"share must lie in \(0, 1\]"),
        ({"after_round": 3, "hide": ["age"], "who": 1}, r"unknown keys \['who'\]"),
    ],
)
def test_bad_changes_are_told_in_a_sentence(change, why):
    with pytest.raises(ConfigError, match=why):
        run_experiment(make(change))


def test_a_system_without_filters_has_nothing_to_hide():
    with pytest.raises(ConfigError, match="has no filters; leave it out"):
        Experiment.from_table({"consent": {"changes": [{"after_round": 1, "hide": ["age"]}]}})
    with pytest.raises(ConfigError, match="must be a list of tables"):
        Experiment.from_table({**TABLE, "consent": {"changes": {"after_round": 1}}})


# --- a strength for each attribute ----------------------------------------------------------------


def test_a_number_and_a_table_of_it_are_the_same():
    plain = ConsentPolicy.from_table({"hidden_attributes": ["age"], "strength": 0.8})
    table = ConsentPolicy.from_table(
        {"hidden_attributes": ["age"], "strength": {"age": 0.8, "gender": 0.3}}
    )
    one, other = (p.draw(USERS, Streams.from_seed(1), NAMES) for p in (plain, table))
    assert np.array_equal(one.strength_of(["age"]), other.strength_of(["age"]))
    assert np.allclose(other.strength_of(["gender", "age"]), [0.3, 0.8])
    assert np.allclose(one.strength_of(["gender", "age"]), [0.8, 0.8])
    assert other.row(3).strengths == (("age", pytest.approx(0.8)), ("gender", pytest.approx(0.3)))
    assert other.take(USERS[:2]).chose(table.choices[0]).tolist() == [True, True]
    assert not one.chose(table.choices[0]).any()


def test_each_attribute_is_hidden_as_strongly_as_it_is_weighed():
    """With a strength of nought nothing is asked for, whatever the other attribute's is."""
    hides = {int(user): NAMES for user in CHANGED}

    def learnt(**strengths):
        consent = consent_of(hides)
        own = np.full((24, 2), np.nan, dtype=np.float32)
        for name, b in strengths.items():
            own[:, NAMES.index(name)] = b
        made = trained(before=replace(consent, strengths=own), rounds=3)
        return made.devices.cohort.vectors

    both = learnt(gender=0.8, age=0.8)
    assert not np.array_equal(both, learnt(gender=0.8, age=0.0))
    assert not np.array_equal(learnt(gender=0.8, age=0.0), learnt(gender=0.0, age=0.0))
    assert np.array_equal(learnt(gender=0.5, age=0.5), learnt())  # the number for all


@pytest.mark.parametrize(
    ("strength", "why"),
    [
        ({"age": 1.0}, "strength of 'age' must be a number from 0 to below 1, not 1.0"),
        ({"age": "strong"}, "strength of 'age' must be a number"),
        ({"": 0.5}, "or a table of such numbers by attribute"),
        ({"income": 0.5}, "strength names 'income', which is not among the data's attributes"),
        ("strong", "strength must be a number"),
    ],
)
def test_a_strength_that_is_none_is_told_in_a_sentence(strength, why):
    with pytest.raises(ConfigError, match=why):
        ConsentPolicy.from_table({"strength": strength}).draw(USERS, Streams.from_seed(1), NAMES)


# --- a device's own store -------------------------------------------------------------------------


def device(path, made, user=5):
    """A store that has learnt as this user of a simulation has, with the model of that moment."""
    terms = Terms.of("town", TRAIN.n_items, made.server.algorithm.config, 0, Clipped())
    store = CohortStore.create(path, [(user, "anna")], root_key=made.devices.rng.root)
    store.set_catalogue([(str(item), "") for item in range(TRAIN.n_items)])
    store.add_history(user, [str(item) for item in TRAIN.row(user)])
    store.set_attribute(user, "gender", ("f", "m")[user % 2])
    store.set_choice(user, Choice(share_positives=1.0))
    session = DeviceSession(store)
    session.agree(terms)
    return store, session


@pytest.mark.usefixtures("quick_stores")
def test_a_device_moves_by_itself_and_has_it_on_record(tmp_path):
    """After a round that has arrived, and in its vector from before it, which may count again."""
    made = trained(rounds=0)
    store, session = device(tmp_path / "phone", made)
    with store:
        view = made.server.recommending
        ready = session.prepare(view, 0, summed=False)
        session.leaving(ready)
        session.arrived(0, 0)
        Simulation(made.server, made.devices, 24, 1).run()
        assert np.array_equal(session.vectors()[0], made.devices.cohort.vectors[5])
        session.keep_model(made.server.recommending)
        (expected,) = made.devices.change_consent(
            consent_of({5: ("gender",)}), made.server.recommending
        )
        choice, hidden = session.change_choice(
            5, lambda now: replace(now, hidden_attributes=("gender",))
        )
        assert choice.hidden_attributes == ("gender",)
        assert hidden == expected
        assert hidden.moved > 0
        assert np.array_equal(session.vectors()[0], made.devices.cohort.vectors[5])
        assert [one for one, _ in store.hidings(5)] == [expected]
        # The server tries the round again: what counts is the vector before it, which moved, too.
        session.follow(0, 1)
        start = trained(rounds=0).devices
        start.change_consent(consent_of({5: ("gender",)}), made.server.recommending)
        assert np.array_equal(session.vectors()[0], start.cohort.vectors[5])
        # Once more moves nothing, and the record stays.
        assert session.change_choice(5, lambda now: now)[1] is None
        with pytest.raises(StoreError, match="stays on record"):
            store.file.write("DELETE FROM hidings")


@pytest.mark.usefixtures("quick_stores")
@pytest.mark.parametrize("filters", ["moments", "two-layer"])
def test_what_she_hides_is_hidden_whatever_the_filter_is(tmp_path, filters):
    """A server could publish a filter whose guesses are no numbers. It must not thereby keep users
    from hiding: the choice is kept, nothing moves, and the record says why. A simulation says the
    same."""
    made = trained(replace(CONFIG, filters=filters), rounds=0)
    items = made.server.items.copy()
    items[TRAIN.n_items :, :-1] = -3e38
    view = ModelView(1, items)
    store, session = device(tmp_path / "phone", made)
    with store:
        session.keep_model(view)
        before = session.vectors()
        choice, hidden = session.change_choice(
            5, lambda now: replace(now, hidden_attributes=("gender",))
        )
        assert choice == store.choice(5)
        assert choice.hidden_attributes == ("gender",)
        assert hidden == Hidden(5, 1, ("gender",), 0.0, 0.0, 0.0, 0, "the filter gives no number")
        assert [one for one, _ in store.hidings(5)] == [hidden]
        assert np.array_equal(session.vectors(), before)
    assert made.devices.change_consent(consent_of({5: ("gender",)}), view) == [hidden]


@pytest.mark.usefixtures("quick_stores")
def test_a_device_without_a_model_hides_from_the_first_round_on(tmp_path):
    store, session = device(tmp_path / "phone", trained(rounds=0))
    with store:
        found = session.change_choice(5, lambda now: replace(now, hidden_attributes=("age",)))
        assert found == (store.choice(5), None)
        assert store.choice(5).hidden_attributes == ("age",)
        assert store.hidings() == []


@pytest.mark.usefixtures("quick_stores")
def test_a_report_that_was_prepared_before_does_not_leave(tmp_path):
    made = trained(rounds=0)
    store, session = device(tmp_path / "phone", made)
    with store:
        session.keep_model(ModelView(0, made.server.items))
        session.prepare(made.server.recommending, 0, summed=False)
        before = session.vectors()
        session.change_choice(5, lambda now: replace(now, hidden_attributes=("gender",)))
        assert session.latest().state == "dropped"
        assert np.array_equal(session.vectors(), before)  # the first filter tells nothing


# --- attacks --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_attack_compares_before_and_after():
    """Of those who changed their minds, and of nobody who hid it from the start."""
    pytest.importorskip("sklearn")
    draw = np.random.default_rng(1)
    codes = np.arange(240) % 2
    before = draw.normal(size=(240, 4)) + 3.0 * codes[:, None]
    changed, always = np.arange(240) < 80, np.arange(240) >= 200
    after = before.copy()
    after[changed] = draw.normal(size=(80, 4)) + 1.5
    after[always] += 100.0  # neither learnt from nor guessed
    seen = MindsSeen(5, before, after)
    known = MindsTruth({"gender": changed}, {"gender": changed | always})
    truth = Truth(
        TRAIN, TRAIN, np.ones(240, bool), np.ones(240), {}, {"gender": codes}, before,
        {"minds": (known,)},
    )  # fmt: skip
    found = ATTACK.judge((seen,), truth)
    assert found.code == "A15"
    assert found.verdict != "broken"
    assert found.value < 0.65
    assert "gender, hidden after round 5 by 80 users: AUC 0.9" in found.detail.replace("1.0", "0.9")


@pytest.mark.slow
def test_a_run_is_attacked_before_and_after(whole, tmp_path):
    pytest.importorskip("sklearn")
    card = attack_run(whole, rounds=1, only=["A15"])
    (found,) = card.results
    assert found.code == "A15"
    assert "after round" in found.detail or found.claims == 0
    plain = tmp_path / "plain"
    run_experiment(make(), plain)
    assert not attack_run(plain, rounds=1, only=["A15"]).results


def test_a_cohort_of_one_needs_no_label_to_hide():
    """What is not known to the device may be hidden all the same."""
    made = trained()
    alone = made.devices.cohort.take(np.array([5]))
    unknown = Cohort(alone.users, alone.history, alone.consent, alone.vectors.copy())
    found = made.server.algorithm.device_hide(
        made.server.recommending, unknown, np.ones((1, 1), bool), ["gender"]
    )
    assert [one.user for one in found] == [5]
