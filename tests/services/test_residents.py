"""Made-up residents against a real server and helper: what counts is the simulation's, each signs
with her own key, and what she permits is kept to, also when they are killed."""

import contextlib
import json
import time

import numpy as np
import pytest

from sottovoce.core.cohort import Cohort
from sottovoce.core.interactions import Interactions
from sottovoce.engines.processes import Child, sottovoce_command, wait_for
from sottovoce.engines.trial import make_server_folder, prepare_helper, start_helper
from sottovoce.errors import ConsentError, StoreError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import world_of
from sottovoce.runs.federation import Federation
from sottovoce.services.agent.residents import Habits, fitted
from sottovoce.services.server.operator import Operator
from sottovoce.stores.residents import ResidentsDoor
from sottovoce.stores.server_folder import invite
from sottovoce.wire.invitations import Invitation

pytestmark = pytest.mark.usefixtures("forked_children")

GRAM = """name = "residents"
seed = 5
[town]
residents = 40
venues = 60
districts = 2
[algorithm]
name = "gram"
least_head = 12
popularity_share = 0.3
[release]
epsilon = 8.0
[link]
min_devices = 10
[service]
deadline_seconds = 10.0
min_devices = 30
poll_seconds = 0.1
[consent]
mix = [
  { weight = 2, takes_part = false },
  { weight = 4, epsilon = 2.0, total_epsilon = 4.0, never_send = ["Food"] },
  { weight = 4, epsilon = 4.0, total_epsilon = 40.0 },
]
"""


class Town:
    """Server, helper, and residents as a process."""

    def __init__(self, folder, text=GRAM, **rules):
        from dataclasses import replace

        self.folder, self.file = folder, folder / "experiment.toml"
        self.file.write_text(text)
        experiment = Experiment.from_file(self.file)
        dataset = experiment.dataset()
        self.consent, chosen = experiment.records(dataset), experiment.cross_device()
        settings, labels = experiment.on(dataset, self.consent)
        train = dataset.interactions
        made = Federation.build(
            settings, train, self.consent, chosen.release, experiment.party_streams(), labels,
            chosen.link, items_named=experiment.items_named(dataset, train),
        )  # fmt: skip
        world = world_of(experiment, dataset, made)
        if world.terms.secure_sum is not None:
            link = prepare_helper(folder, world.terms.secure_sum, world.root_key)
            world = replace(world, terms=replace(world.terms, link=link))
        self.world = world
        self.server_folder = make_server_folder(folder / "server", world)
        self.children = []

    @contextlib.contextmanager
    def running(self):
        try:
            if self.world.terms.secure_sum is not None:
                logs = self.folder / "logs"
                self.children.append(start_helper(self.folder, self.server_folder, logs))
            self.start_server()
            self.invited = self.folder / "invited"
            self.invited.mkdir()
            url = self.server_folder.running()["url"]
            with contextlib.closing(self.server_folder.database()) as database:
                for one in invite(self.server_folder, database, url, count=len(self.consent)):
                    one.write(self.invited / f"device-{one.number}.json")
            self.operator = Operator.of(self.server_folder, url)
            with contextlib.closing(self.operator):
                yield self
        finally:
            for child in reversed(self.children):
                child.stop()

    def start_server(self, port="0"):
        self.server = self.start(
            "server", "serve", "server", self.folder / "server", "--port", port
        )
        wait_for(self.server, lambda: self.server_folder.running() is not None)

    def start(self, name, *words):
        child = Child(name, sottovoce_command(*words), log=self.folder / "logs" / f"{name}.log")
        self.children.append(child)
        return child

    def residents(self, *more):
        return self.start(
            "residents", "serve", "residents", self.invited, "--experiment", self.file, *more
        )

    def until(self, found, seconds=600):
        end = time.monotonic() + seconds
        while not found():
            for child in self.children:
                if child.process.returncode is None:
                    child.require_alive()
            assert time.monotonic() < end, (self.operator.status(), self.events())
            time.sleep(0.05)

    def events(self):
        lines = (self.folder / "logs" / "residents.log").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def book(self):
        with np.load(self.invited / "residents.npz") as found:
            return {name: found[name] for name in found.files}


@pytest.mark.slow
def test_they_contribute_to_sums_keep_to_their_choices_and_go_on_when_killed(tmp_path):
    with Town(tmp_path).running() as town:
        takes_part = int(town.consent.takes_part.sum())
        first = town.residents()
        town.operator.raise_target(2)
        town.until(lambda: town.operator.status()["round"] >= 2)
        status = town.operator.status()
        assert status["enrolled"] == takes_part, "who takes no part is not even known"
        assert [one["reported"] for one in status["rounds"]] == [takes_part] * 2
        assert not status["refused"]
        spent = town.book()["spent"]
        assert (spent <= town.consent.epsilon + 1e-9).all()
        assert (spent > 0).sum() == takes_part
        first.kill()
        second = town.residents()
        agreed = lambda: [one["event"] for one in town.events()].count("agreed")  # noqa: E731
        town.until(lambda: agreed() == 2)
        town.operator.raise_target(4)
        town.until(lambda: town.operator.status()["round"] >= 4)
        told = town.operator.status()
        assert told["enrolled"] == takes_part, "with the same keys as before"
        assert [one["reported"] for one in told["rounds"]][2:] == [takes_part] * 2
        # A third period does not fit into the smaller limit, and the rest are enough for a sum.
        poor = (town.consent.total_epsilon == 4.0) & town.consent.takes_part
        town.operator.raise_target(6)
        town.until(lambda: town.operator.status()["round"] >= 6)
        reported = [one["reported"] for one in town.operator.status()["rounds"]][4:]
        assert poor.any()
        assert reported == [takes_part - poor.sum()] * 2
        after = town.book()
        assert (after["spent"] <= town.consent.total_epsilon + 1e-6).all()
        second.stop()


def test_they_wait_for_a_newcomer_until_they_are_told_to_go_on(tmp_path):
    with Town(tmp_path).running() as town:
        Habits(hold_seconds=600.0, hold_from=1).write(town.invited)
        town.residents()
        town.operator.raise_target(2)
        town.until(lambda: any(one["event"] == "waiting" for one in town.events()))
        time.sleep(0.5)
        assert town.operator.status()["round"] == 1
        assert town.operator.status()["reported"] == 0
        (town.invited / "go-on").touch()
        town.until(lambda: town.operator.status()["round"] == 2)


def test_they_bear_a_server_that_is_killed_in_the_middle(tmp_path):
    with Town(tmp_path).running() as town:
        town.residents()
        town.operator.raise_target(1)
        town.until(lambda: town.operator.status()["round"] == 1)
        port = str(town.server_folder.running()["port"])
        town.server.kill()
        time.sleep(0.5)
        town.start_server(port)
        town.operator.raise_target(2)
        town.until(lambda: town.operator.status()["round"] == 2)
        assert town.operator.status()["rounds"][-1]["reported"] == town.consent.takes_part.sum()


def test_rows_leave_them_as_well(tmp_path):
    text = """name = "rows"
[town]
residents = 12
venues = 60
districts = 2
[algorithm]
name = "fpl"
triples = 4
embedding_size = 4
[service]
min_devices = 8
poll_seconds = 0.1
min_fraction = 0.1
deadline_seconds = 10.0
over_selection = 2.0
"""
    with Town(tmp_path, text).running() as town:
        town.residents()
        town.operator.raise_target(2)
        town.until(lambda: town.operator.status()["round"] >= 2)
        assert all(one["reported"] for one in town.operator.status()["rounds"])


# --- habits ---------------------------------------------------------------------------------------


def test_habits_are_those_of_the_folder(tmp_path):
    assert Habits.read(tmp_path) == Habits()
    habits = Habits(hold_seconds=2.5, first_share=0.5, poll_seconds=0.1)
    habits.write(tmp_path)
    assert Habits.read(tmp_path) == habits


@pytest.mark.parametrize(
    "text", ['{"silent": 3}', '{"hold_seconds": "long"}', '{"poll_seconds": 0}', "no json", "[]"],
)  # fmt: skip
def test_a_file_that_says_something_else_is_refused(tmp_path, text):
    (tmp_path / "habits.json").write_text(text)
    with pytest.raises(UsageError, match=r"habits\.json"):
        Habits.read(tmp_path)


def test_visits_begin_with_the_earliest_and_each_period_adds_some():
    users, items = np.zeros(10, np.int32), np.arange(10, dtype=np.int32)
    history = Interactions.from_pairs(users, items, timestamps=np.arange(10), n_users=1, n_items=10)
    visits = Habits(first_share=0.5, more_share=0.2).visits_of(history)
    assert [visits(period).n_interactions for period in range(4)] == [5, 7, 9, 10]
    assert Habits().visits_of(history)(0) is history


# --- the door -------------------------------------------------------------------------------------


def door(tmp_path, **changes):
    world = Town(tmp_path).world
    cohort = world.cohort
    fresh = Cohort(cohort.users, cohort.history, cohort.consent, cohort.vectors)
    return world, ResidentsDoor(fresh, tmp_path / "book.npz")


def test_a_door_lets_nobody_send_twice_or_before_the_book_is_written(tmp_path, monkeypatch):
    from sottovoce.core.messages import ModelView
    from sottovoce.stores import residents

    world, mine = door(tmp_path)
    mine.meet(world.terms, world.cohort.history, world.cohort.items_named)
    rows = np.flatnonzero(mine.takes_part)
    mine.has_enrolled(rows.tolist())
    model = np.zeros((world.terms.n_items, world.terms.width), np.float32)
    view = ModelView(0, model)

    def full(place, content):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(residents, "replace_file", full)
        with pytest.raises(OSError, match="no space"):
            next(mine.reports(view, 0, rows[:1]))
    left = list(mine.reports(view, 0, rows[1:4]))
    assert [row for row, _ in left] == rows[1:4].tolist()
    assert all(one.booked.epsilon > 0 for _, one in left)
    with pytest.raises(ConsentError):
        list(mine.reports(view, 0, rows[1:2]))
    again = ResidentsDoor(
        Cohort(mine.users, world.cohort.history, world.cohort.consent, world.cohort.vectors),
        tmp_path / "book.npz",
    )
    assert np.array_equal(again.spent, mine.spent)
    assert again.key(3).private_bytes_raw() == mine.key(3).private_bytes_raw()
    assert mine.key(3).private_bytes_raw() != mine.key(4).private_bytes_raw()
    assert "redacted" in repr(mine).lower() or str(tmp_path) not in repr(mine)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a file", b"{}"])
def test_another_file_in_the_place_of_the_book_is_one_sentence(tmp_path, content):
    world, _ = door(tmp_path)
    (tmp_path / "other.npz").write_bytes(content)
    with pytest.raises(StoreError, match="not what residents have written"):
        ResidentsDoor(world.cohort, tmp_path / "other.npz")


def test_visits_follow_the_catalogues_numbers():
    visits = Interactions.from_pairs([0, 0, 1], [0, 2, 1], n_items=3, timestamps=[5, 6, 7])
    names = visits.items_vocabulary()
    moved = fitted(visits, [names.name(2), "new", names.name(0)])
    assert moved.n_items == 3
    assert [moved.row(0).tolist(), moved.row(1).tolist()] == [[0, 2], []]


def test_a_folder_without_invitations_is_one_sentence(tmp_path):
    from sottovoce.cli.serve_agents import residents

    with pytest.raises(UsageError, match="has no invitations"):
        residents(tmp_path, "demo")


def test_invitations_of_people_are_not_used_up(tmp_path):
    from sottovoce.cli.serve_agents import residents

    for server in ("https://town.example:8443", "https://10.0.0.7:8443"):
        Invitation(server, "PEM", "ab" * 32, 7, "town-1").write(tmp_path / "device-7.json")
        with pytest.raises(UsageError, match="not this machine"):
            residents(tmp_path, "demo")
        (tmp_path / "device-7.json").unlink()
    assert list(tmp_path.iterdir()) == []
