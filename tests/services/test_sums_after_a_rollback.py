"""A helper and aggregators whose folders are set back by a copy of files: they tell a second sum of
a round, and its noise is independent of the first one's. A helper of the derivation before, which
knew key, round and group alone, is caught by the same tests."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from app_world import exposed
from checked_world import DEVICES, CheckedWorld
from scipy import stats
from secure_sum_world import (
    LEAST,
    MODEL,
    NOISY,
    MaskerApp,
    SeedKeeper,
    masker_folder,
    question,
)

from sottovoce.core.masking import sum_masks
from sottovoce.engines.helper_client import SumRefused
from sottovoce.errors import ConfigError, ServiceError
from sottovoce.parties import helper
from sottovoce.parties.helper import NEVER, NoiseSecret, sum_name
from sottovoce.stores.aggregator_folder import init_aggregator, init_first
from sottovoce.stores.helper_folder import init_helper, open_helper
from sottovoce.stores.keys import operator_token
from sottovoce.stores.noted import note_of, notes_folder
from sottovoce.stores.sum_folder import read_noise, simulate_noise
from sottovoce.wire.masked import decode_mask_sum, encode_group_question, encode_question
from sottovoce.wire.shared import SharedRecord


def set_back(folder, copy):
    """A folder is put back to an older copy of its files."""
    shutil.rmtree(folder.path)
    shutil.copytree(copy, folder.path)


def set_machine_back(folder, copy):
    """What happens to a folder on a machine that is put back to an older snapshot, or on another
    machine: what was noted outside the folder is gone, too."""
    set_back(folder, copy)
    note_of(folder.path, folder.noise_secret().key).unlink(missing_ok=True)


def counted(app):
    """How often a service that tells sums says that its folder was set back."""
    bearer = {"authorization": f"Bearer {operator_token(app.folder.keys)}"}
    found = exposed(app.ask("GET", "/metrics", headers=bearer).body)
    (times,) = (one for name, one in found.items() if name.endswith("_set_back"))
    return times[()]


def is_noise_of_both(found, sigma):
    """Whether these differences have the variance of two independent noises."""
    square = float(np.sum((np.asarray(found) / sigma) ** 2)) / 2
    chance = stats.chi2(np.size(found))
    return 1e-6 < chance.cdf(square) < 1 - 1e-6


def by_round_and_group(secret, name, group=None):
    return helper._group_key(secret.key, group)


def without_the_set(secret, name, group=None):
    return OF_SUM(secret, b"some sum")


OF_SUM = NoiseSecret.of_sum
FAULTS = {"round and group alone": by_round_and_group, "no set": without_the_set}
"""Planted derivations; the first one is that of earlier releases."""


def plant(monkeypatch, fault):
    if fault is not None:
        monkeypatch.setattr(NoiseSecret, "of_sum", FAULTS[fault])


# --- the helper -----------------------------------------------------------------------------------


class Helped:
    """A helper that can be asked twice, since its folder is set back in between."""

    def __init__(self, path):
        self.folder = masker_folder(path / "helper", **NOISY, groups=2)
        self.terms, self.copy = self.folder.introduction.terms, path / "copy"
        self.numbers = self.terms.n_rows * self.terms.width
        self.sigma = self.terms.secure_sum.sigma
        shutil.copytree(self.folder.path, self.copy)

    def told(self, payload):
        """What it answers, after its folder was set back."""
        set_machine_back(self.folder, self.copy)
        with MaskerApp(open_helper(self.folder.path)) as app:
            got = app.sums(payload)
        assert got.status == 200, got.body
        return decode_mask_sum(got.body, self.terms).masks

    def noise(self, payload, devices, round, attempt=0):
        """In what it answers: all that the seeds' masks do not explain."""
        exact = sum_masks([one.seed(round, attempt) for one in devices], self.numbers)
        return (exact - self.told(payload)).view(np.int64).astype(np.float64)


def asked(here, devices, round, attempt=0):
    """The question for a sum, and the noise of the answer."""
    records = [one.record(here.terms, round, attempt) for one in devices]
    payload = encode_question(here.terms, round, attempt, MODEL, records)
    return here.noise(payload, devices, round, attempt)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_two_sums_of_a_helper_that_was_set_back_differ_by_the_noise_of_both(
    tmp_path, monkeypatch, fault
):
    """From both, whoever is in one of them alone is hidden as by noise of √2 times the size."""
    plant(monkeypatch, fault)
    here, devices = Helped(tmp_path), [SeedKeeper() for _ in range(LEAST + 1)]
    found = [asked(here, devices, n) - asked(here, devices[1:], n) for n in range(20)]
    assert np.size(found) > 1000
    assert is_noise_of_both(found, here.sigma) == (fault is None)
    if fault is not None:
        assert not np.any(found), "one device's update follows exactly"


def test_the_same_set_gets_the_same_answer_after_a_rollback_in_whatever_grouping(tmp_path):
    """Otherwise a server could take the mean of many answers."""
    here, groups = Helped(tmp_path), [[SeedKeeper() for _ in range(LEAST)] for _ in range(2)]
    sealed = [[one.record(here.terms, 3) for one in group] for group in groups]
    alone = encode_question(here.terms, 3, 0, MODEL, sealed[1])
    among = encode_group_question(here.terms, 3, 0, MODEL, sealed, 1)
    turned = encode_group_question(here.terms, 3, 0, MODEL, sealed[::-1], 0)
    backwards = encode_question(here.terms, 3, 0, MODEL, sealed[1][::-1])
    told = [here.told(one) for one in (alone, alone, among, turned, backwards)]
    assert all(np.array_equal(one, told[0]) for one in told[1:])


# --- aggregators ----------------------------------------------------------------------------------


class Checked:
    """A server and two aggregators, which can be asked for many sums of one round, since both
    folders are set back in between."""

    def __init__(self, path, noise_by):
        self.world = world = CheckedWorld(path / "world", noise_by=noise_by)
        self.about, self.form, self.copy = world.about, world.form, path / "copy"
        self.sent, self.entries = {}, {}
        for number in range(DEVICES):
            entries = world.entries()
            body = world.body(number, world.bits(entries))
            assert world.send(number, body) == "accepted"
            record = SharedRecord.of(body[-560:])
            self.sent[record.name], self.entries[record.name] = record, entries
        self.server = world.coordinator.collection
        with world.database.leading() as leader, leader.reading() as link:
            now = world.position()
            self.asked = self.server._about(link, now)
        with world.database.leading() as leader:
            self.server._add_up(leader, now)
        self.names = tuple(sorted(self.sent))
        for number, folder in world.folders.items():
            world.apps[number].__exit__()
            shutil.copytree(folder.path, self.copy / str(number))
            world.apps[number].__enter__()
        rules = self.server._rules
        sigma = rules.sigma(self.about.round, self.about.numbers)
        self.sigma = sigma * rules.link.grid(self.form).step

    def noise(self, *out):
        """In the opened sum without these, after both aggregators' machines were set back."""
        for number, folder in self.world.folders.items():
            self.world.apps[number].__exit__()
            set_machine_back(folder, self.copy / str(number))
            self.world.apps[number].__enter__()
        return self.sum(*out)

    def sum(self, *out):
        """All that the contributions do not explain, in the opened sum without these."""
        kept = np.array([at not in out for at in range(DEVICES)])
        lost, coins = self.server._coins(self.asked, self.names)
        assert not lost
        ordered = [self.sent[name] for name in self.names]
        opened = self.server._sum(self.asked, self.names, coins, ordered, kept)
        whole = sum(self.entries[name] for name, one in zip(self.names, kept, strict=True) if one)
        step = self.server._rules.link.grid(self.form).step
        return (opened - step * whole).astype(np.float64)


@pytest.fixture
def checked(tmp_path):
    made = []

    def one(noise_by):
        made.append(Checked(tmp_path, noise_by))
        return made[-1]

    yield one
    for here in made:
        here.world.close()


@pytest.mark.parametrize(
    ("noise_by", "fault"),
    [("helper", None), ("halves", None), *(("helper", f) for f in FAULTS)],
)
def test_two_sums_of_aggregators_that_were_set_back_differ_by_the_noise_of_both(
    checked, monkeypatch, noise_by, fault
):
    plant(monkeypatch, fault)
    here = checked(noise_by)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    twos = [((0, 2), (0, 3)), ((1, 4), (1, 5)), ((2, 6), (2, 7)), ((3, 5), (3, 6))]
    found = [here.noise(one) - here.noise(other) for one, other in pairs]
    found += [here.noise(*one) - here.noise(*other) for one, other in twos]
    assert np.size(found) > 500
    assert is_noise_of_both(found, here.sigma) == (fault is None)
    if fault is not None:
        assert not np.any(found), "one device's vector follows exactly"


def test_the_same_devices_have_the_same_noise_after_a_rollback(checked):
    here = checked("halves")
    assert np.array_equal(here.noise(3), here.noise(3))


# --- what is noted outside the folder -------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    """A helper of sums without noise that was copied and has told a sum since; the question."""
    folder, devices = masker_folder(tmp_path / "helper"), [SeedKeeper() for _ in range(LEAST + 1)]
    with MaskerApp(folder):
        pass
    shutil.copytree(folder.path, tmp_path / "copy")
    first = question(folder.introduction.terms, 3, devices)
    with MaskerApp(folder) as app:
        told = app.sums(first)
    assert told.status == 200
    return folder, devices, first, told.body


def test_a_helper_whose_folder_is_set_back_tells_no_second_sum(copied, tmp_path):
    """Where sums have no noise, the difference of two would be one device's update."""
    folder, devices, first, told = copied
    set_back(folder, tmp_path / "copy")
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.sums(question(folder.introduction.terms, 3, devices[1:])).error == (
            "second_submission"
        )
        assert app.sums(first).body == told
        assert app.sums(question(folder.introduction.terms, 2, devices)).error == "late"
        assert app.sums(question(folder.introduction.terms, 4, devices)).status == 200
        (alarm,) = (line for line in app.log.lines if line["event"] == "set back")
        assert counted(app) == 1, "for whoever is woken by Prometheus"
    assert alarm["round"] == 3
    assert "set back to an older copy" in alarm["detail"]
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.log.lines == [], "it has caught up"
        assert counted(app) == 0


def test_of_two_copies_side_by_side_one_tells_a_sum(copied, tmp_path):
    folder, devices, first, _ = copied
    terms, other = folder.introduction.terms, open_helper(tmp_path / "copy")
    with MaskerApp(folder) as one, MaskerApp(other) as two:
        assert two.sums(question(terms, 4, devices)).status == 200
        for _ in range(2):
            assert one.sums(question(terms, 4, devices[1:])).error == "second_submission"
        assert one.sums(first).error == "late"
        assert two.sums(question(terms, 4, devices[1:])).error == "second_submission"
        assert one.sums(question(terms, 5, devices)).status == 200
        assert two.sums(question(terms, 5, devices[1:])).error == "second_submission"
        alarms = [[one["event"] for one in app.log.lines].count("set back") for app in (one, two)]
        assert alarms == [1, 2], "the older one at its start, too"


def test_an_aggregator_whose_folder_is_set_back_tells_no_second_part(checked):
    here = checked("helper")
    here.noise(0)
    for number, folder in here.world.folders.items():
        here.world.apps[number].__exit__()
        set_back(folder, here.copy / str(number))
        here.world.apps[number].__enter__()
        assert [line["event"] for line in here.world.apps[number].log.lines][-1] == "set back"
        assert counted(here.world.apps[number]) == 1
    with pytest.raises(SumRefused, match="second_submission"):
        here.sum(1)


def test_a_place_for_notes_that_is_lost_while_it_runs_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(tmp_path / "marks"))
    folder, devices = masker_folder(tmp_path / "helper"), [SeedKeeper() for _ in range(LEAST)]
    with MaskerApp(folder) as app:
        shutil.rmtree(tmp_path / "marks")
        (tmp_path / "marks").write_text("")
        for round in range(2):
            assert app.sums(question(folder.introduction.terms, round, devices)).status == 200
        events = [line["event"] for line in app.log.lines]
    assert events == ["not noted", "sum told", "sum told"]


def test_where_nothing_is_noted_of_a_folder_that_has_told_sums_the_log_says_so(
    copied, tmp_path, monkeypatch
):
    folder, *_ = copied
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(tmp_path / "another machine"))
    with MaskerApp(open_helper(folder.path)) as app:
        (warned,) = app.log.lines
    assert (warned["event"], warned["round"]) == ("no note", 3)
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.log.lines == [], "from now on it would be noticed here"


def test_the_place_for_notes_is_the_same_wherever_a_process_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("SOTTOVOCE_MARKS", "marks")
    with pytest.raises(ConfigError, match=r"\$SOTTOVOCE_MARKS must be a whole path"):
        masker_folder(tmp_path / "helper").answers()
    monkeypatch.delenv("SOTTOVOCE_MARKS")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert notes_folder() == Path.home() / ".local" / "state" / "sottovoce" / "marks"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert notes_folder() == tmp_path / "sottovoce" / "marks"


def test_a_note_within_the_folder_or_a_damaged_one_is_refused(tmp_path, monkeypatch):
    folder = masker_folder(tmp_path / "helper")
    note = note_of(folder.path, folder.noise_secret().key)
    note.write_text("{")
    with pytest.raises(ServiceError, match=r"is damaged .* was never set back"):
        folder.answers()
    note.unlink()
    assert folder.answers().last == NEVER
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(folder.path / "marks"))
    with pytest.raises(ConfigError, match="a copy of it would have them"):
        folder.answers()


def test_a_note_tells_no_secret_and_a_trial_has_none(copied):
    folder, *_ = copied
    secret = folder.noise_secret().key
    note = note_of(folder.path, secret)
    assert note.read_bytes() == (folder.path / "answered.json").read_bytes()
    assert note.stat().st_mode & 0o777 == 0o600
    assert secret.hex()[:8] not in note.name
    note.unlink()
    simulate_noise(folder.path / "noise.secret", secret)
    folder.answers()
    assert not note.exists()


# --- the derivation -------------------------------------------------------------------------------


def test_noise_depends_on_everything_that_a_sum_is_of():
    """On key, binding (terms, round, attempt, model) and every submission; not on their order."""
    sent = [b"one", b"two", b"three"]
    secret = NoiseSecret(bytes(32))
    key = secret.of_sum(sum_name(b"bound", sent))
    assert secret.of_sum(sum_name(b"bound", sent[::-1])) == key
    assert secret.of_sum(sum_name(b"bound", sent), 1) == key, "in whatever grouping"
    others = [
        NoiseSecret(bytes([1] * 32)).of_sum(sum_name(b"bound", sent)),
        *(secret.of_sum(sum_name(b"bound", sent[:at] + sent[at + 1 :])) for at in range(3)),
        *(
            secret.of_sum(sum_name(b"bound", [*sent[:at], b"x", *sent[at + 1 :]]))
            for at in range(3)
        ),
        secret.of_sum(sum_name(b"bounds", sent)),
        secret.of_sum(sum_name(b"", [b"bound", *sent])),
    ]
    assert len({key, *others}) == 1 + len(others)


def test_only_a_trial_has_the_noise_of_a_simulation(tmp_path):
    """What an operator's command makes is never marked so, and no message has the secret."""
    init_helper(tmp_path / "h")
    init_aggregator(tmp_path / "a")
    init_first(tmp_path / "k")
    places = [tmp_path / "h/noise.secret", tmp_path / "a/noise.secret"]
    places.append(tmp_path / "k/aggregator-noise.secret")
    secrets = [read_noise(place) for place in places]
    assert len({one.key for one in secrets}) == 3
    assert not any(one.simulated for one in secrets)
    simulate_noise(places[0], bytes(range(32)))
    assert read_noise(places[0]) == NoiseSecret(bytes(range(32)), simulated=True)
    assert repr(secrets[0]) == "<NoiseSecret, redacted>"
