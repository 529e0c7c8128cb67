"""What a device knows of its owner: kept encrypted, used as she permits, forgotten for good."""

import subprocess
import sys
from dataclasses import replace

import apsw
import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError, DataError, MessageError, StoreError
from sottovoce.parties.device import Devices
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Prepared
from sottovoce.stores.session import DeviceSession
from sottovoce.wire import reports as report_wire
from sottovoce.wire.terms import Terms

N_ITEMS = 40
ITEMS = [(str(i), f"Venue number {i}") for i in range(N_ITEMS)]
RNG = Streams.from_seed(4)
ME = 2
GENDER = FilterConfig("gender", ("female", "male"), (0.3, 0.7))
AGE = FilterConfig("age", ("under 18", "18 to 24", "older"), (0.2, 0.3, 0.5))
SETTINGS = UCConfig(
    embedding_size=6, local_epochs=2, pairs=8, item_rate=1.0, attributes=(GENDER, AGE)
)
SHARING = Choice(share_positives=1.0)
NOISY = Clipped(clip=1.0, norm="l1", epsilon=2.0)


@pytest.fixture
def store(tmp_path):
    with CohortStore.create(tmp_path / "store", [(9, "bert"), (4, "anna")], root_key=11) as opened:
        yield opened


def terms_of(release=None, settings=SETTINGS):
    pytest.importorskip("torch")
    return Terms.of("town", N_ITEMS, settings, 0, release or Clipped())


def phone(path, known=None, choice=SHARING, release=None, root_key=RNG.key):
    """A device with a short history in a federation that has filters."""
    store = CohortStore.create(path, [(ME, "me")], root_key=root_key)
    store.set_catalogue(ITEMS)
    store.add_history(ME, ["1", "4", "7", "9"])
    for name, value in (known or {}).items():
        store.set_attribute(ME, name, value)
    store.set_choice(ME, choice)
    hosted = DeviceSession(store)
    hosted.agree(terms_of(release))
    return hosted


def view(round=0, settings=SETTINGS):
    table = terms_of(settings=settings).build().server_init(N_ITEMS, RNG.child(round))
    return ModelView(round, table)


def rows_of(prepared, hosted):
    """The rows of the model that a report has."""
    shape = {"n_items": hosted.terms.n_rows, "width": hosted.terms.width, "round": prepared.round}
    return report_wire.decode_report(prepared.message, sender=ME, **shape).item


def filters_in(prepared, hosted):
    """Which filters' rows a report has."""
    from sottovoce.algorithms.uc.rows import ModelLayout

    found, rows = [], set(rows_of(prepared, hosted).tolist())
    for name, part in zip(SETTINGS.names, ModelLayout.of(SETTINGS, N_ITEMS).filters, strict=True):
        span = set(range(part.first, part.stop))
        assert span <= rows or not span & rows  # whole or not at all
        found += [name] if span <= rows else []
    return found


def elsewhere(store, code):
    """The owner does something in a process of her own."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom dataclasses import replace\n"
        "from sottovoce.stores.device import CohortStore\n"
        f"with CohortStore.open(Path(sys.argv[1])) as store:\n    {code}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


HIDE = f"store.set_choice({ME}, replace(store.choice({ME}), hidden_attributes=('gender',)))"


def decrypted(path):
    """A closed store's pages as they are under their encryption, free ones included."""
    connection = apsw.Connection(str(path / "store.db"))
    connection.pragma("hexkey", (path / "store.key").read_text().strip())
    content = connection.serialize("main")
    connection.close()
    assert content.startswith(b"SQLite format 3")
    return content


# --- in the store ---------------------------------------------------------------------------------


def test_what_is_told_is_there_after_reopening_until_it_is_forgotten(store):
    store.set_attribute(4, "gender", "female")
    store.set_attribute(4, "age", "older")
    store.set_attribute(9, "gender", "male")
    store.set_attribute(4, "age", "18 to 24")
    store.close()
    with CohortStore.open(store.path) as again:
        assert again.attributes(4) == {"age": "18 to 24", "gender": "female"}
        again.set_attribute(4, "gender", None)
        again.set_attribute(4, "gender", None)  # once more does no harm
        again.renumber(4, 77)
        assert (again.attributes(77), again.attributes(9)) == (
            {"age": "18 to 24"},
            {"gender": "male"},
        )


def test_bad_attributes_change_nothing(store):
    store.set_attribute(4, "gender", "female")
    for name, value in (("", "x"), ("gender", "")):
        with pytest.raises(DataError, match="a name and a value"):
            store.set_attribute(4, name, value)
    for call in (lambda: store.attributes(5), lambda: store.set_attribute(5, "gender", "x")):
        with pytest.raises(DataError, match="user 5 is not"):
            call()
    with pytest.raises(StoreError, match="halves of characters"):
        store.set_attribute(4, "gender", "\ud800")
    assert store.attributes(4) == {"gender": "female"}


def test_labels_are_classes_and_everything_else_is_missing(store):
    store.set_attribute(4, "gender", "male")
    store.set_attribute(9, "gender", "something else")
    store.set_attribute(9, "age", "under 18")
    store.set_attribute(4, "town", "male")
    assert store.labels([GENDER, AGE]).tolist() == [[1, -1], [-1, 0]]
    assert store.labels([AGE, GENDER]).tolist() == [[-1, 1], [0, -1]]
    assert store.labels([FilterConfig("gender")]).tolist() == [[-1], [-1]]
    assert store.labels([]).shape == (2, 0)


def test_a_changed_attribute_is_no_change_of_mind_on_record(store):
    store.set_choice(4, SHARING)
    store.set_attribute(4, "gender", "female")
    store.set_attribute(4, "gender", "male")
    store.set_choice(4, SHARING)
    assert [record.choice for record in store.records(4)] == [SHARING]
    assert store.choice(4) == SHARING
    store.set_choice(4, Choice(takes_part=False))
    store.set_choice(4, SHARING)
    assert [record.choice.takes_part for record in store.records(4)] == [True, False, True]


# --- secrecy --------------------------------------------------------------------------------------


def test_no_value_can_be_read_in_any_of_the_files(store):
    """While it is open, so that the write-ahead log is there, and after it was closed."""
    values = ["canary-of-gender", "canary-of-age"]
    for name, value in zip(("gender", "age"), values, strict=True):
        store.set_attribute(4, name, value)

    def look():
        for file in store.path.iterdir():
            content = file.read_bytes()
            assert not [v for v in (*values, "gender") if v.encode() in content], file.name

    assert (store.path / "store.db-wal").stat().st_size > 1000
    look()
    store.close()
    look()
    assert b"canary-of-age" in decrypted(store.path)  # so that looking means something


def test_what_is_forgotten_is_gone_also_beneath_the_encryption(store):
    store.set_attribute(4, "gender", "canary-of-gender")
    store.set_attribute(4, "age", "canary-of-youth")
    store.set_attribute(9, "age", "canary-that-stays")
    for value in ("canary-of-many" * 20, None):  # so that pages are split and left
        with store.file.transaction():
            for number in range(200):
                store.set_attribute(9, f"attribute {number}", value)
    store.set_attribute(4, "gender", None)
    store.set_attribute(4, "age", "older")
    log = store.path / "store.db-wal"
    assert not log.exists() or log.stat().st_size == 0
    store.close()
    content = decrypted(store.path)
    assert content.count(b"canary-") == content.count(b"canary-that-stays") == 1


def test_values_are_in_no_repr_and_no_error(store):
    store.set_attribute(4, "gender", "canary")
    hosted = DeviceSession(store)
    hosted.agree(terms_of())
    store.set_catalogue(ITEMS)
    cohort = hosted._cohort(hosted.terms, np.zeros((2, 6), np.float32))
    for thing in (store, store.file, hosted, cohort):
        assert "canary" not in repr(thing)
    for name, value in (("", "canary"), ("gender", "canary\udc80")):
        with pytest.raises((DataError, StoreError)) as caught:
            store.set_attribute(4, name, value)
        assert "canary" not in str(caught.value)
    store.file.write("DROP TABLE consent")
    with pytest.raises(StoreError) as caught:
        store.set_attribute(4, "gender", "canary again")
    assert "canary" not in str(caught.value)
    assert store.file.row("SELECT value FROM attributes") == ("canary",)  # whole or not at all


# --- in rounds ------------------------------------------------------------------------------------


def test_a_filter_is_trained_with_what_is_shared_and_nothing_else(tmp_path):
    """The same bytes leave whatever a hidden attribute's value is, and where it is not known."""
    hiding = replace(SHARING, hidden_attributes=("gender",))
    sent = {}
    for key, known, choice in (
        ("female", {"gender": "female", "age": "older"}, SHARING),
        ("male", {"gender": "male", "age": "older"}, SHARING),
        ("hidden female", {"gender": "female", "age": "older"}, hiding),
        ("hidden male", {"gender": "male", "age": "older"}, hiding),
        ("not known", {"age": "older"}, SHARING),
        ("no class", {"gender": "neither", "age": "older"}, SHARING),
    ):
        hosted = phone(tmp_path / key, known, choice)
        prepared = hosted.prepare(view(), 0, summed=False)
        shared = ["age"] if key not in ("female", "male") else ["gender", "age"]
        assert filters_in(prepared, hosted) == shared, key
        sent[key] = prepared.message
        hosted.store.close()
    assert sent["female"] != sent["male"]
    others = {sent[key] for key in ("hidden female", "hidden male", "not known", "no class")}
    assert len(others) == 1


def test_a_store_gives_what_the_door_gives(tmp_path):
    hosted = phone(tmp_path / "s", {"gender": "male"})
    users, store = np.array([ME]), hosted.store
    algorithm = hosted.terms.build()
    cohort = Cohort(
        users, store.history(), Consent.uniform(users, SHARING),
        algorithm.device_init(users, store.streams()), labels=np.array([[1, -1]]),
    )  # fmt: skip
    devices = Devices.behind_door(
        algorithm, cohort, Clipped(), Ledger(), store.streams(), store.noise(0)
    )
    for round in range(2):
        expected = report_wire.encode_report(devices.report(view(round), np.array([0])))
        prepared = hosted.prepare(view(round), 0, summed=False)
        assert prepared.message == expected
        hosted.leaving(prepared)
        hosted.arrived(round, 0)
        assert np.array_equal(hosted.vectors(), cohort.vectors)
    hosted.keep_model(view(2))
    scorer = algorithm.device_scorer(cohort.vectors, view(2).items)
    best = np.argsort(-scorer.scores(np.array([0]))[0], kind="stable")
    mine = {"1", "4", "7", "9"}
    expected = [ITEMS[i][0] for i in best if ITEMS[i][0] not in mine][:5]
    assert [item for item, _, _ in hosted.recommend(ME, 5)] == expected
    assert len(hosted.recommend(ME, 100)) == N_ITEMS - 4  # networks' rows are no items
    with pytest.raises(MessageError, match="shape"):
        hosted.prepare(ModelView(2, view().items[:N_ITEMS]), 0, summed=False)
    hosted.store.close()


def test_who_hides_before_it_leaves_sends_nothing_of_the_filter(tmp_path):
    hosted = phone(tmp_path / "s", {"gender": "male", "age": "older"})
    first = hosted.prepare(view(), 0, summed=False)
    assert filters_in(first, hosted) == ["gender", "age"]
    elsewhere(hosted.store, HIDE)
    with pytest.raises(ConsentError, match="choice was changed"):
        hosted.leaving(first)
    second = hosted.prepare(view(), 0, summed=False)
    assert filters_in(second, hosted) == ["age"]
    hosted.leaving(second)
    hosted.store.close()


def test_who_hides_after_it_left_sends_nothing_of_it_from_the_next_round_on(tmp_path):
    hosted = phone(tmp_path / "s", {"gender": "male", "age": "older"})
    first = hosted.prepare(view(), 0, summed=False)
    hosted.leaving(first)
    elsewhere(hosted.store, HIDE)
    with pytest.raises(ConsentError, match="does not leave"):
        hosted.leaving(first)
    with pytest.raises(ConsentError, match="next round on"):
        hosted.prepare(view(), 0, summed=False)
    second = hosted.prepare(view(1), 0, summed=False)
    assert filters_in(second, hosted) == ["age"]
    hosted.leaving(second)
    hosted.arrived(1, 0)
    elsewhere(hosted.store, HIDE.replace("('gender',)", "()"))
    assert filters_in(hosted.prepare(view(2), 0, summed=False), hosted) == ["gender", "age"]
    hosted.store.close()


@pytest.mark.parametrize("value", ["None", "'female'"])
def test_what_was_prepared_with_another_value_does_not_leave(tmp_path, value):
    hosted = phone(tmp_path / "s", {"gender": "male", "age": "older"})
    first = hosted.prepare(view(), 0, summed=False)
    elsewhere(hosted.store, f"store.set_attribute({ME}, 'gender', {value})")
    with pytest.raises(ConsentError, match="knows of its owner"):
        hosted.leaving(first)
    second = hosted.prepare(view(), 0, summed=False)
    assert ("gender" in filters_in(second, hosted)) == (value != "None")
    assert second.message != first.message
    hosted.leaving(second)
    assert hosted.store.ledger().num_rows == 1
    hosted.store.close()


def test_hiding_while_the_device_learns_is_in_force(tmp_path, monkeypatch):
    hosted = phone(tmp_path / "s", {"gender": "male", "age": "older"})
    report, changed = Devices.report, []

    def slow(devices, *arguments):
        if not changed:
            changed.append(True)
            elsewhere(hosted.store, HIDE)
        return report(devices, *arguments)

    monkeypatch.setattr(Devices, "report", slow)
    assert filters_in(hosted.prepare(view(), 0, summed=False), hosted) == ["age"]
    hosted.store.close()


def test_hiding_what_has_no_filter_stops_everything_but_recommendations(tmp_path):
    hosted = phone(tmp_path / "s", choice=replace(SHARING, hidden_attributes=("income",)))
    with pytest.raises(ConsentError, match="income"):
        hosted.prepare(view(), 0, summed=False)
    assert hosted.latest() is None
    hosted.keep_model(view())
    assert len(hosted.recommend(ME, 3)) == 3
    hosted.store.close()


def test_other_filters_make_another_model(tmp_path):
    hosted = phone(tmp_path / "s", {"gender": "male"})
    prepared = hosted.prepare(view(), 0, summed=False)
    hosted.leaving(prepared)
    hosted.arrived(0, 0)
    hosted.keep_model(view(1))
    initial = hosted.terms.build().device_init(np.array([ME]), hosted.store.streams())
    assert not np.array_equal(hosted.vectors(), initial)
    fewer = replace(SETTINGS, attributes=(GENDER,))
    with pytest.raises(ConsentError, match="changed the terms"):
        hosted.meet(terms_of(settings=fewer))
    hosted.agree(terms_of(settings=fewer))
    assert hosted.model() is None
    assert np.array_equal(hosted.vectors(), initial)
    assert isinstance(hosted.prepare(view(0, fewer), 0, summed=False), Prepared)
    hosted.store.close()


# --- with noise -----------------------------------------------------------------------------------


def limited(total):
    return Choice(epsilon=2.0, total_epsilon=total)


def test_noisy_updates_leave_once_a_round_and_are_paid_for(tmp_path):
    hosted = phone(tmp_path / "s", {"gender": "male"}, limited(6.0), NOISY)
    first = hosted.prepare(view(), 0, summed=False)
    assert len(rows_of(first, hosted)) == hosted.terms.n_rows
    hosted.leaving(first)
    hosted.refused(0, 0, "late")
    other = ModelView(0, view(5).items)
    with pytest.raises(ConsentError, match="one for each round"):
        hosted.prepare(other, 1, summed=False)
    assert hosted.store.spent().tolist() == [2.0]
    for round in (1, 2):
        hosted.leaving(hosted.prepare(view(round), 0, summed=False))
        hosted.arrived(round, 0)
    assert hosted.store.spent().tolist() == [6.0]
    with pytest.raises(ConsentError, match=r"limit on ε is reached: 6 of 6"):
        hosted.prepare(view(3), 0, summed=False)
    assert [s.epsilon for s in hosted.store.budget()] == [6.0]
    hosted.store.close()


def test_a_limit_that_was_lowered_meanwhile_is_kept(tmp_path):
    hosted = phone(tmp_path / "s", {}, limited(2.0), NOISY)
    prepared = hosted.prepare(view(), 0, summed=False)
    elsewhere(
        hosted.store, f"store.set_choice({ME}, replace(store.choice({ME}), total_epsilon=1.5))"
    )
    with pytest.raises(ConsentError, match="does not leave"):
        hosted.leaving(prepared)
    with pytest.raises(ConsentError, match=r"limit on ε is reached: 0 of 1\.5"):
        hosted.prepare(view(), 0, summed=False)
    assert hosted.store.spent().tolist() == [0.0]
    hosted.store.close()


def test_the_noise_is_the_stores_own_and_new_under_new_terms(tmp_path):
    """Who knows the root of all learning randomness does not know the noise."""
    hosted = phone(tmp_path / "s", {}, limited(9.0), NOISY, root_key=None)
    store, users = hosted.store, np.array([ME])
    algorithm = hosted.terms.build()

    def at_door(noise, era=0):
        cohort = Cohort(
            users, store.history(), store.choices(),
            algorithm.device_init(users, store.streams()), labels=np.array([[-1, -1]]),
        )  # fmt: skip
        release = hosted.terms.release
        devices = Devices.behind_door(
            algorithm, cohort, release, Ledger(), store.streams(era), noise
        )
        return report_wire.encode_report(devices.report(view(), np.array([0])))

    first = hosted.prepare(view(), 0, summed=False).message
    assert first == at_door(store.noise(0))
    assert first != at_door(None)
    hosted.agree(terms_of(NOISY, replace(SETTINGS, pairs=8, rounds=77, cooling=0.0)))
    algorithm = hosted.terms.build()
    second = hosted.prepare(view(), 0, summed=False).message
    assert second == at_door(store.noise(1), era=1)
    assert second != first
    store.close()


# --- trials ---------------------------------------------------------------------------------------


def test_a_trials_stores_know_what_is_hidden_too(tmp_path):
    from sottovoce.engines.trial import TrialWorld, make_store
    from sottovoce.parties.rounds import RoundRules
    from sottovoce.testing import random_world

    history, users = random_world(4, N_ITEMS, 20, seed=1), np.arange(4)
    hiding = replace(SHARING, hidden_attributes=("age",))
    consent = Consent.of(users, [SHARING, hiding], users % 2, ("gender", "age"))
    labels = np.array([[0, 1], [1, 2], [-1, 0], [0, -1]])
    cohort = Cohort(users, history, consent, np.zeros((4, 6), np.float32), labels=labels)
    names = [f"user {n}" for n in range(4)]
    world = TrialWorld(terms_of(), RoundRules(), 2, RNG.key, cohort, names, ITEMS)
    with make_store(tmp_path / "some", world, np.array([1, 2, 3])) as store:
        assert [store.attributes(n) for n in (1, 2, 3)] == [
            {"gender": "male", "age": "older"},
            {"age": "under 18"},
            {"gender": "female"},
        ]
        assert np.array_equal(store.labels(SETTINGS.attributes), labels[1:])
        assert store.choice(1).hidden_attributes == ("age",)
    plain = replace(world, terms=Terms.of("town", N_ITEMS, FPLConfig(), 3, ShareFraction()))
    free = replace(cohort, consent=Consent.uniform(users, Choice()), labels=np.zeros((4, 0)))
    with make_store(tmp_path / "plain", replace(plain, cohort=free), users) as store:
        assert store.attributes(1) == {}
