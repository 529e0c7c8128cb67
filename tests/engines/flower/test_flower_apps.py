"""Our apps as Flower calls them, without its processes."""

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from sottovoce.engines.flower.client_app import app, content_of, record_of
from sottovoce.engines.flower.node import Outgoing
from sottovoce.engines.flower.server_app import GridTransport, conduct
from sottovoce.errors import (
    ConfigError,
    MessageError,
    ServiceError,
    SottovoceError,
    StoreError,
    VersionMismatch,
)
from sottovoce.parties.server import Server
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.wire.cohort_rounds import CohortAnswer, CohortQuestion, CohortTask
from sottovoce.wire.fields import unpack_numbers
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.versions import encode_model


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def context(**config):
    return Context(1, 7, config, RecordDict(), {}, series_id=1)


def ask(question, kind, node_config):
    message = Message(content_of(question.to_content()), 7, kind, ttl=60.0)
    message.metadata.__dict__["_message_id"] = "asked"
    return app(message, context(**node_config))


def first_task(town, numbers, **changes):
    server = Server.start(town.terms.build(), town.terms.n_items, Streams(5))
    given = {"model": encode_model(server.publish()), "numbers": np.array(numbers, dtype=np.int64)}
    return CohortTask(town.terms, 0, 0, None, **(given | changes))


def test_a_node_answers_from_the_store_that_its_configuration_names(town):
    config = {"store": str(town.stores["corso"])}
    reply = ask(CohortQuestion(town.terms, 0, 0, None), "query", config)
    answer = CohortAnswer.from_content(record_of(reply))
    assert answer.willing.tolist() == [1, 2, 3, 5, 6]
    assert (answer.kept, answer.sum, answer.problem) == (-1, b"", "")
    reply = ask(first_task(town, [2, 5]), "train", config)
    answer = CohortAnswer.from_content(record_of(reply))
    assert (answer.devices, answer.kept, answer.round) == (2, 0, 0)
    assert len(answer.sum) > 20
    assert not reply.has_error()
    again = CohortAnswer.from_content(record_of(ask(first_task(town, [2, 5]), "train", config)))
    assert again.sum == answer.sum
    with CohortStore.open(town.stores["corso"], readonly=True) as store:
        named = [(c.number, c.what) for c in store.contacts()]
    assert named == [(number, "check-in") for number in (1, 2, 3, 5, 6)], "each once"
    # Context.state is Flower's to lose: nothing of ours is in it.
    assert town.states() == {"left"}


def test_terms_that_are_nested_without_end_are_refused(town):
    content = {**CohortQuestion(town.terms, 0, 0, None).to_content(), "terms": "[" * 100_000}
    with pytest.raises(MessageError, match="terms of the federation cannot be read"):
        CohortQuestion.from_content(content)


def test_a_node_without_a_store_says_so(town, tmp_path):
    question = CohortQuestion(town.terms, 0, 0, None)
    with pytest.raises(StoreError, match="names no store"):
        ask(question, "query", {})
    with pytest.raises(SottovoceError, match="no store in"):
        ask(question, "query", {"store": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": b"noise"},
        {"numbers": np.array([4])},
        {"round": 3},
    ],
)
def test_a_task_that_makes_no_sense_is_answered_with_a_sentence(town, changes):
    given = {"numbers": np.array([1]), "round": 0} | changes
    task = first_task(town, given["numbers"])
    task = CohortTask(
        town.terms, given["round"], 0, None, changes.get("model", task.model), numbers=task.numbers
    )
    answer = CohortAnswer.from_content(
        record_of(ask(task, "train", {"store": str(town.stores["corso"])}))
    )
    assert answer.problem
    assert answer.sum == b""
    assert town.states() == set()


def test_what_arrives_is_checked_field_by_field(town):
    whole = CohortAnswer(np.array([1, 2]), 3, 4, 5, b"sum", 2).to_content()
    assert CohortAnswer.from_content(whole).to_content() == whole
    for name in whole:
        with pytest.raises(MessageError):
            CohortAnswer.from_content({k: v for k, v in whole.items() if k != name})
        with pytest.raises(MessageError):
            CohortAnswer.from_content({**whole, name: 1.5})
    with pytest.raises(VersionMismatch, match="same release"):
        CohortAnswer.from_content({**whole, "protocol": PROTOCOL + 1})
    task = first_task(town, [1, 2]).to_content()
    assert CohortTask.from_content(task).to_content() == task
    for name in task:
        with pytest.raises(MessageError):
            CohortTask.from_content({k: v for k, v in task.items() if k != name})
    for broken in (b"abc", b"\1\0\0\0\1\0\0\0", b"\2\0\0\0\1\0\0\0"):
        with pytest.raises(MessageError):
            unpack_numbers(broken)


@pytest.mark.parametrize("field", ["willing", "sum"])
def test_an_answer_takes_what_the_door_has_let_go_alone(field):
    with pytest.raises(ConfigError, match="what its door has let go"):
        Outgoing(0, 0, 0, **{field: b"1234"}).to_content()


class Grid:
    """As much of Flower's grid as the post office uses."""

    def __init__(self, replies):
        self.replies, self.pushed = replies, []

    def push_messages(self, messages):
        self.pushed += messages
        return [f"m{k}" for k, _ in enumerate(messages)]

    def pull_messages(self, names):
        return [make(name) for name, make in self.replies.items() if name in names]


def reply_to(name, content=None, error=None, source=7):
    asked = Message(RecordDict(), source, "query", ttl=60.0)
    asked.metadata.__dict__["_message_id"] = name
    return Message(content if error is None else error, reply_to=asked)


def test_the_post_office_matches_answers_and_errors_by_what_they_answer():
    fine = content_of(CohortAnswer(np.array([1]), 0).to_content())
    failed = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
    grid = Grid(
        {
            "m0": lambda name: reply_to(name, fine),
            "m1": lambda name: reply_to(name, error=failed, source=999),
            "m2": lambda name: reply_to(name, RecordDict()),
            "m9": lambda name: reply_to(name, fine),
        }
    )
    post = GridTransport(grid)
    sent = post.send("query", {10: {"a": 1}, 11: {"a": 2}, 12: {"a": 3}}, 30.0)
    assert sent == {10: "m0", 11: "m1", 12: "m2"}
    assert [m.metadata.dst_node_id for m in grid.pushed] == [10, 11, 12]
    assert all(m.metadata.ttl == 30.0 for m in grid.pushed)
    found = {reply.to: reply for reply in post.collect(list(sent.values()))}
    assert set(found) == {"m0", "m1", "m2"}
    assert found["m0"].content["kept"] == 0
    assert (found["m1"].content, found["m1"].error) == (None, "gone")
    assert found["m2"].content == {}
    assert post.send("query", {}, 1.0) == {}
    assert post.collect([]) == []


def test_a_run_that_cannot_start_leaves_the_reason(town):
    from sottovoce.stores.conductor import read_status

    town.found()
    run = Context(5, 1, {}, RecordDict(), {"folder": str(town.folder), "rounds": 1.5}, series_id=1)
    with pytest.raises(ConfigError, match="whole numbers"):
        conduct(Grid({}), run)
    assert read_status(town.folder)["state"] == "failed"
    (town.folder / "federation.json").write_text("{")
    run.run_config["rounds"] = 1
    with pytest.raises(ServiceError, match="not JSON"):
        conduct(Grid({}), run)
    assert "not JSON" in read_status(town.folder)["error"]
