"""The conductor and the nodes' answers, without processes: the post is a dictionary, time is
moved by hand, and everything that is said goes through its wire format."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.core.consent import Choice
from sottovoce.core.messages import GRID, LIMIT, SummedReports
from sottovoce.engines.flower.conductor import MODELS, Conductor, check_sum
from sottovoce.engines.flower.members import OnlineNode, Reply
from sottovoce.engines.flower.node import answer_question, answer_task
from sottovoce.errors import (
    ConfigError,
    FolderInUse,
    MessageError,
    RunError,
    ServiceError,
    UsageError,
)
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import Server
from sottovoce.rng import Streams
from sottovoce.stores.allotment import parse_ranges, ranges_of, show_ranges, within
from sottovoce.stores.conductor import (
    Checkpoint,
    ConductedRound,
    conducted,
    only_one,
    read_status,
)
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import sealed_by
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.cohort_rounds import CohortAnswer, CohortQuestion, CohortTask
from sottovoce.wire.reports import encode_sum
from sottovoce.wire.versions import encode_model

pytestmark = pytest.mark.usefixtures("quick_stores")

RULES = RoundRules(over_selection=0.0, min_fraction=0.2, deadline_seconds=20.0, min_devices=8)


class Crash(BaseException):
    """The conductor is killed."""


def told(answer):
    """What the conductor reads of it."""
    return CohortAnswer.from_content(answer.to_content())


class Office:
    """A post office with real nodes behind it. `twist(node, kind, task, answer)` may change an
    answer; None keeps it back, a text is an error, a Crash kills the conductor."""

    def __init__(self, town, twist=None):
        self.nodes = {10 + k: path for k, path in enumerate(town.stores.values())}
        self.twist = twist or (lambda node, kind, asked, answer: answer)
        self.since = dict.fromkeys(self.nodes, "a")
        self.waiting = {}
        self.time = 0.0
        self.sent = []

    def online(self):
        return [OnlineNode(n, f"key {n}", self.since[n]) for n in self.nodes]

    def send(self, kind, letters, seconds):
        names = {}
        for node, letter in letters.items():
            name = f"{kind} {len(self.sent)}"
            self.sent.append((kind, node, letter))
            asked = (CohortTask if kind == "train" else CohortQuestion).from_content(letter)
            with CohortStore.open(self.nodes[node]) as store:
                do = answer_task if kind == "train" else answer_question
                answer = told(do(DeviceSession(store, pack=sealed_by(store)), asked))
            answer = self.twist(node, kind, asked, answer)
            if isinstance(answer, Crash):
                raise answer
            if isinstance(answer, str):
                self.waiting[name] = Reply(name, None, answer)
            elif isinstance(answer, dict):
                self.waiting[name] = Reply(name, answer)
            elif answer is not None:
                self.waiting[name] = Reply(name, answer.to_content())
            names[node] = name
        return names

    def collect(self, messages):
        return [self.waiting.pop(name) for name in messages if name in self.waiting]

    def clock(self):
        return self.time

    def wait(self, seconds):
        self.time += seconds


def allotments():
    """What each node of the office may answer for."""
    return {
        "key 10": ("alba", ((4, 4),)),
        "key 11": ("bora", ((0, 0), (7, 7))),
        "key 12": ("corso", ((1, 3), (5, 6))),
    }


def conduct(town, plan, office, **options):
    with Checkpoint(town.folder) as checkpoint:
        if not checkpoint.allotted():
            checkpoint.allot(allotments())
        conductor = Conductor(town.folder, plan, checkpoint, office, nodes=3, **options)
        conductor.run()
        return conductor.server.items, checkpoint.rounds(), checkpoint.refused()


def test_five_rounds_equal_simulation(town):
    items, rounds, refused = conduct(town, town.found(rules=RULES), Office(town))
    expected, vectors, ledger = town.simulate()
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)
    assert town.ledger() == ledger
    assert [r.outcome for r in rounds] == ["goal"] * 5
    assert not refused
    assert town.states() == {"arrived"}
    status = read_status(town.folder)
    assert (status["state"], status["round"], status["devices"]) == ("finished", 5, 8)


def test_a_run_that_holds_goes_on_when_the_target_is_raised(town):
    plan = town.found(rules=RULES, rounds=0)
    stops = []

    class Waiting(Office):
        def wait(self, seconds):
            super().wait(seconds)
            status = read_status(town.folder)
            if status["state"] == "finished" and status["round"] not in stops:
                stops.append(status["round"])
                assert town.states() <= {"arrived"}  # the nodes know at every stop how it went
                if status["round"] == 5:
                    raise Crash
                with Checkpoint(town.folder) as other:
                    other.raise_target(2 if status["round"] == 0 else 5)

    with pytest.raises(Crash):
        conduct(town, plan, Waiting(town), hold=True)
    assert stops == [0, 2, 5]
    with Checkpoint(town.folder, readonly=True) as checkpoint:
        assert np.array_equal(checkpoint.load().items, town.simulate()[0])
    assert np.array_equal(town.vectors(), town.simulate()[1])


def test_two_conductors_on_one_folder_are_refused(town):
    town.found()
    assert not conducted(town.folder)
    with only_one(town.folder):
        assert conducted(town.folder)
        with pytest.raises(FolderInUse, match="another run"), only_one(town.folder, 0.1):
            pass
    assert not conducted(town.folder)


def test_a_checkpoint_that_is_none_is_refused(town):
    town.found()
    with pytest.raises(RunError, match="no Flower run yet"):
        Checkpoint(town.folder, readonly=True)
    (town.folder / "flower.db").write_text("no database at all, but long enough to be read as one")
    with pytest.raises(ServiceError, match="not a database"):
        Checkpoint(town.folder)


def test_only_changed_rows_travel_after_the_first_round(town):
    office = Office(town)
    conduct(town, town.found(rules=RULES), office)
    sizes = {}
    for kind, node, letter in office.sent:
        if kind == "train" and node == 10:
            sizes[letter["round"]] = len(letter["model"])
    assert all(sizes[r] <= sizes[0] for r in range(1, 5))
    assert sizes[1] < sizes[0]


def test_a_part_of_the_devices_is_asked_as_simulation_would(town):
    plan = town.found(rules=RULES, cohort_size=3)
    items, rounds, _ = conduct(town, plan, Office(town))
    from sottovoce.parties.server import Server
    from sottovoce.rng import Streams

    server = Server.start(town.terms.build(), town.terms.n_items, Streams(plan.root_key))
    asked = []
    for _ in range(5):
        asked.append(np.sort(server.select(8, 3)).tolist())
        server.round += 1
    expected, vectors, ledger = town.simulate(asked=asked)
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)
    assert town.ledger() == ledger
    assert {r.asked for r in rounds} == {3}


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("crash_round", [0, 2, 4])
def test_a_conductor_that_is_killed_in_mid_round_goes_on_with_the_same_result(
    town, at, crash_round
):
    plan = town.found(rules=RULES)

    def twist(node, kind, asked, answer):
        here = kind == "train" and asked.round == crash_round and node == 10 + at
        return Crash() if here else answer

    with pytest.raises(Crash):
        conduct(town, plan, Office(town, twist))
    items, rounds, _ = conduct(town, plan, Office(town))
    expected, vectors, ledger = town.simulate()
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)
    assert town.ledger() == ledger
    assert len(rounds) == 5


def test_a_conductor_that_is_killed_after_the_last_round_still_tells_the_nodes(town):
    plan = town.found(rules=RULES)

    def twist(node, kind, asked, answer):
        return Crash() if kind == "query" and asked.round == 5 else answer

    with pytest.raises(Crash):
        conduct(town, plan, Office(town, twist))
    conduct(town, plan, Office(town))
    assert town.states() == {"arrived"}
    assert np.array_equal(town.vectors(), town.simulate()[1])


def test_a_silent_node_is_missing_and_its_vectors_stay(town):
    def twist(node, kind, asked, answer):
        silent = kind == "train" and node == 11 and asked.round == 2
        return None if silent else answer

    items, rounds, _ = conduct(town, town.found(rules=RULES), Office(town, twist))
    everyone = list(range(8))
    asked = [everyone] * 5
    asked[2] = [n for n in everyone if n not in (0, 7)]
    expected, vectors, _ = town.simulate(asked=asked)
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)
    assert [r.outcome for r in rounds] == ["goal", "goal", "deadline", "goal", "goal"]
    assert rounds[2].missing == (0, 7)
    # What has left is in the ledger although it did not count.
    assert town.states() == {"arrived", "refused"}


def test_a_round_with_too_few_reports_is_tried_again(town):
    lost = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 1 and asked.attempt == 0 and node != 10:
            lost.append(node)
            return None
        return answer

    rules = replace(RULES, min_fraction=0.9)
    items, rounds, _ = conduct(town, town.found(rules=rules), Office(town, twist))
    assert set(lost) == {11, 12}  # asked more than once, since the task may have been lost
    assert [(r.round, r.attempt, r.outcome) for r in rounds[:4]] == [
        (0, 0, "goal"),
        (1, 0, "abandoned"),
        (1, 1, "goal"),
        (2, 0, "goal"),
    ]
    expected, vectors, _ = town.simulate()
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)


def test_an_error_is_answered_with_the_same_task_again(town):
    failed = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 1 and len(failed) < 3 and node == 12:
            failed.append(node)
            return "node unavailable"
        return answer

    items, rounds, _ = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert len(failed) == 3
    assert np.array_equal(items, town.simulate()[0])
    assert town.ledger() == town.simulate()[2]
    assert {r.outcome for r in rounds} == {"goal"}


@pytest.mark.parametrize("answers", [False, True], ids=["the task", "its answer"])
def test_what_is_lost_on_its_way_does_not_cost_the_deadline(town, answers):
    """The node is online all the time; it has seen the task or not."""
    plan, lost = town.found(rules=RULES), []

    class Losing(Office):
        def send(self, kind, letters, seconds):
            if kind == "train" and 11 in letters and len(lost) < 2:
                lost.append(letters.pop(11))
                if answers:
                    super().send(kind, {11: lost[-1]}, seconds)
                    self.waiting.clear()
                return {11: "nobody's", **super().send(kind, letters, seconds)}
            return super().send(kind, letters, seconds)

    office = Losing(town)
    items, rounds, _ = conduct(town, plan, office)
    assert np.array_equal(items, town.simulate()[0])
    assert [(r.outcome, r.missing) for r in rounds] == [("goal", ())] * 5
    assert len(lost) == 2
    assert rounds[0].seconds < RULES.deadline_seconds
    assert sum(kind == "train" for kind, *_ in office.sent) <= 3 * 5 + 2


def test_a_restarted_node_is_sent_its_task_again(town):
    office = Office(town)
    lost = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 3 and node == 12 and not lost:
            lost.append(node)
            office.since[12] = "b"
            return None
        return answer

    office.twist = twist
    items, rounds, _ = conduct(town, town.found(rules=RULES), office)
    assert np.array_equal(items, town.simulate()[0])
    assert rounds[3].outcome == "goal"
    assert rounds[3].seconds < 5


def wrong_sum(task, devices, item, values, round=None):
    sums = SummedReports(
        task.round if round is None else round,
        np.array(item, dtype=np.int32),
        np.array(values, dtype=np.int64),
        devices,
    )
    return encode_sum(sums)


WIDTH = 5
NONSENSE = {
    "a round that is over": lambda t, a: replace(a, round=t.round - 1),
    "another attempt": lambda t, a: replace(a, attempt=7),
    "a sum of another round": lambda t, a: replace(
        a, devices=1, sum=wrong_sum(t, 1, [1], [[1] * WIDTH], t.round + 1)
    ),
    "noise": lambda t, a: replace(a, sum=b"noise"),
    "cut short": lambda t, a: replace(a, sum=a.sum[:-3]),
    "more devices than were asked": lambda t, a: replace(a, devices=3),
    "devices that do not match": lambda t, a: replace(a, devices=1),
    "more devices in the sum": lambda t, a: replace(
        a, devices=1, sum=wrong_sum(t, 9, [1], [[1] * WIDTH])
    ),
    "too many rows": lambda t, a: replace(
        a, devices=1, sum=wrong_sum(t, 1, range(13), [[1] * WIDTH] * 13)
    ),
    "values out of range": lambda t, a: replace(
        a, devices=1, sum=wrong_sum(t, 1, [1], [[int(7 * LIMIT * GRID)] + [0] * (WIDTH - 1)])
    ),
    "the least number there is": lambda t, a: replace(
        a, devices=1, sum=wrong_sum(t, 1, [1], [[-(2**63)] + [0] * (WIDTH - 1)])
    ),
    "not a number": lambda t, a: {**a.to_content(), "sum": float("nan")},
    "no content": lambda t, a: {},
    "another version": lambda t, a: {**a.to_content(), "protocol": 99},
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_and_counted_and_the_round_goes_on(town, name):
    def twist(node, kind, asked, answer):
        here = kind == "train" and node == 11 and asked.round == 2
        return NONSENSE[name](asked, answer) if here else answer

    items, rounds, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    reason = "version" if name in ("another version", "no content") else "malformed"
    assert refused == {reason: 1}
    assert rounds[2].missing == (0, 7)
    assert rounds[2].seconds < 5  # nobody waits for a node that has said its nonsense
    asked = [list(range(8))] * 5
    asked[2] = [1, 2, 3, 4, 5, 6]
    expected, vectors, _ = town.simulate(asked=asked)
    assert np.array_equal(items, expected)
    assert np.array_equal(town.vectors(), vectors)


def test_a_node_that_comes_first_and_claims_everybody_gets_its_own_devices_only(town):
    everybody = np.arange(200_000)
    asked_for = []

    def twist(node, kind, asked, answer):
        if node != 10:
            return answer
        if kind == "train":
            asked_for.append(asked.numbers.tolist())
            return replace(answer, willing=everybody, devices=1)
        return replace(answer, willing=everybody)

    items, rounds, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert asked_for == [[4]] * 5
    assert {r.asked for r in rounds} == {8}
    assert refused["foreign_device"] >= 5
    assert np.array_equal(items, town.simulate()[0])
    assert (town.folder / "flower.db").stat().st_size < 2**20  # nothing of it was kept


def test_a_released_node_is_not_spoken_to_and_its_devices_can_be_given_to_another(town):
    plan = town.found(rules=replace(RULES, min_devices=3))
    office = Office(town)
    with Checkpoint(town.folder) as checkpoint:
        checkpoint.allot(allotments())
        checkpoint.claim("key 12", np.array([1, 2, 3, 5, 6]))
        with pytest.raises(UsageError, match="5-6 are those of the node corso"):
            checkpoint.allot({"key 99": ("dora", ((5, 6),))})
        checkpoint.allot({"key 12": ("corso", ())})
        checkpoint.allot({"key 99": ("dora", ((5, 6),))})
        Conductor(town.folder, plan, checkpoint, office, nodes=2).run()
        assert {r.asked for r in checkpoint.rounds()} == {3}
        assert checkpoint.counted("key 12") is None
        assert checkpoint.counted("key 11") == (4, 0)
        assert set(checkpoint.allotted()) == {"key 10", "key 11", "key 99"}
    assert {node for _, node, _ in office.sent} == {10, 11}
    assert read_status(town.folder)["without_numbers"] == 1


def test_a_range_that_is_cut_down_in_mid_run_is_in_force_in_the_next_round(town):
    asked_for = {}

    def twist(node, kind, asked, answer):
        if kind == "train" and node == 12:
            asked_for[asked.round] = asked.numbers.tolist()
            if asked.round == 1:
                with Checkpoint(town.folder) as other:
                    other.allot({"key 12": ("corso", ((1, 3),))})
        return answer

    *_, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert asked_for[1] == [1, 2, 3, 5, 6]
    assert [asked_for[r] for r in (2, 3, 4)] == [[1, 2, 3]] * 3
    assert refused["foreign_device"] >= 1


def test_allotments_are_kept_and_made_whole_or_not_at_all(town):
    town.found()
    with Checkpoint(town.folder) as checkpoint:
        checkpoint.allot(allotments())
    with Checkpoint(town.folder) as checkpoint:
        assert checkpoint.allotted() == allotments()
        with pytest.raises(UsageError, match="are those of the node dora"):
            checkpoint.allot({"a": ("dora", ((50, 60),)), "b": ("elio", ((60, 70),))})
        assert checkpoint.allotted() == allotments()
        checkpoint.allot({"key 10": ("alba", ((4, 4), (100, 199)))})  # its own ones again, and more
        assert checkpoint.allotted()["key 10"] == ("alba", ((4, 4), (100, 199)))


def test_ranges_of_numbers():
    assert parse_ranges("1000-1999") == ((1000, 1999),)
    assert parse_ranges(" 7, 2 - 4") == ((2, 4), (7, 7))
    assert parse_ranges("0-4294967295") == ((0, 2**32 - 1),)
    for wrong in ("", "a-b", "-1", "5-4", "1-3,3", "0-4294967296", "1-2-3", "1;2"):
        with pytest.raises(UsageError):
            parse_ranges(wrong)
    assert ranges_of(np.array([1, 2, 3, 5, 6, 9])) == ((1, 3), (5, 6), (9, 9))
    assert ranges_of(np.zeros(0, np.int64)) == ()
    assert show_ranges(((1, 3), (9, 9))) == "1-3, 9"
    numbers = np.arange(12)
    assert numbers[within(numbers, ((1, 3), (9, 9)))].tolist() == [1, 2, 3, 9]
    assert not within(numbers, ()).any()


def test_a_sum_that_could_not_be_added_up_is_refused(town):
    class Many:
        """Stands for so many numbers."""

        def __len__(self):
            return 2**30

    part = SummedReports(0, np.array([1], np.int32), np.full((1, WIDTH), 2**62), 2**29)
    answer = CohortAnswer(np.zeros(0, np.int64), 0, 0, 0, encode_sum(part), 2**29)
    opened = ConductedRound(0, 0, 1, Many())
    with pytest.raises(MessageError, match="than can be added up"):
        check_sum(answer, opened, 2**30, town.terms)


def test_a_node_that_loses_every_model_is_sent_it_a_few_times_only(town):
    tasks = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 2 and node == 12:
            tasks.append(asked)
            return replace(answer, sum=b"", devices=0, kept=-1, problem="against version 1")
        return answer

    _, rounds, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert len(tasks) == 1 + MODELS
    assert refused == {"node_problem": 1}
    assert rounds[2].missing == (1, 2, 3, 5, 6)
    assert rounds[2].seconds < 5


def test_a_node_that_falls_over_every_time_is_asked_ever_more_seldom(town):
    tasks = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 2 and node == 12:
            tasks.append(asked)
            return "it fell over"
        return answer

    rules = replace(RULES, deadline_seconds=120.0)
    _, rounds, _ = conduct(town, town.found(rules=rules), Office(town, twist))
    assert 8 <= len(tasks) <= 14
    assert rounds[2].outcome == "deadline"


def test_what_a_node_says_cannot_speak_to_a_terminal(town):
    def twist(node, kind, asked, answer):
        if kind == "query" and node == 12:
            return replace(answer, problem="disk \x1b]0;full\x07\x9b2J\u202e\n è")
        return answer

    conduct(town, town.found(rules=RULES), Office(town, twist))
    [said] = read_status(town.folder)["problems"]
    assert said == "disk ?]0;full??2J?? è"


def test_nobody_else_can_read_what_the_conductor_keeps(town):
    plan = town.found(rules=RULES)
    (town.folder / "flower.db").touch(0o644)
    with only_one(town.folder), Checkpoint(town.folder):
        conductor_files = [p for p in town.folder.iterdir() if p.name.startswith("flower")]
        assert len(conductor_files) >= 3  # the database's companions too
        assert {p.stat().st_mode & 0o777 for p in conductor_files} == {0o600}
    conduct(town, plan, Office(town))
    assert (town.folder / "flower-status.json").stat().st_mode & 0o777 == 0o600


def test_a_cohort_in_which_nobody_takes_part_sends_no_sum(town):
    sums = {}

    def twist(node, kind, asked, answer):
        if kind == "train":
            sums.setdefault(asked.round, {})[node] = (len(answer.sum), answer.devices)
            if asked.round == 1 and node == 12:  # after this round two people change their minds
                with CohortStore.open(town.stores["bora"]) as store:
                    for number in (0, 7):
                        store.set_choice(number, Choice(takes_part=False))
        return answer

    _, rounds, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert not refused
    assert sums[2][11] == (0, 0)
    assert rounds[2].missing == (0, 7)
    assert 11 not in sums[3]  # the node has said so, and is not asked again
    rows = [row for row in town.ledger() if row["user"] in (0, 7)]
    assert {row["round"] for row in rows} == {0, 1}


def test_other_terms_are_refused_by_the_nodes_and_by_the_checkpoint(town):
    plan = town.found(rules=RULES, rounds=1)
    conduct(town, plan, Office(town))
    other = replace(plan, terms=replace(town.terms, federation="another"), rounds=2)
    with pytest.raises(ConfigError, match="under other terms"):
        conduct(town, other, Office(town))
    question = CohortQuestion(other.terms, 1, 0, None)
    answer = told(answer_question(town.hosted("corso"), question))
    assert len(answer.willing) == 0
    assert "device agree" in answer.problem


def test_a_gateway_tells_nothing_before_its_operator_has_agreed(town, tmp_path):
    people = [(number, f"user {number}") for number in (3, 4)]
    with CohortStore.create(tmp_path / "new", people) as store:
        store.set_catalogue([(f"item {n}", f"Item {n}") for n in range(town.terms.n_items)])
        for number in (3, 4):
            store.add_history(number, ["item 1", "item 2"], None)
            store.set_choice(number, Choice(share_positives=1.0))
        hosted = DeviceSession(store)
        view = Server.start(town.terms.build(), town.terms.n_items, Streams(1)).publish()
        letter = town.terms, 0, 0, None, encode_model(view)
        question, task = CohortQuestion(*letter), CohortTask(*letter, numbers=np.array([3, 4]))
        for answer in map(told, (answer_question(hosted, question), answer_task(hosted, task))):
            assert (len(answer.willing), answer.sum, answer.devices) == (0, b"", 0)
            assert "nobody has agreed" in answer.problem
        assert hosted.pending == town.terms
        assert (store.ledger().num_rows, store.contacts()) == (0, [])
        hosted.agree(town.terms)
        assert told(answer_question(hosted, question)).willing.tolist() == [3, 4]
        assert told(answer_task(hosted, task)).devices == 2


def test_a_node_that_lost_its_model_gets_all_of_it(town):
    dropped = []

    def twist(node, kind, asked, answer):
        if kind == "train" and asked.round == 2 and node == 12 and not dropped:
            dropped.append(node)
            return replace(answer, sum=b"", devices=0, kept=-1, problem="against version 1")
        return answer

    items, _, refused = conduct(town, town.found(rules=RULES), Office(town, twist))
    assert np.array_equal(items, town.simulate()[0])
    assert not refused


def test_a_late_task_gives_the_same_bytes_and_an_overtaken_one_gives_none(town):
    office = Office(town)
    conduct(town, town.found(rules=RULES, rounds=2), office)
    tasks = [letter for kind, node, letter in office.sent if kind == "train" and node == 12]
    for letter in tasks:
        again = told(answer_task(town.hosted("corso"), CohortTask.from_content(letter)))
        assert again.sum == b"" or again.round == 1
    assert len(town.ledger()) == 16
