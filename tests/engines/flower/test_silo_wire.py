"""What the orchestrator and an owner say to each other: as it was sent, or refused."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.engines.flower.client_app import content_of, record_of
from sottovoce.engines.flower.silo_node import build_owner_app
from sottovoce.errors import DataError, MessageError, VersionMismatch
from sottovoce.wire.silo_rounds import (
    GradientsSent,
    QueryRows,
    RowsWanted,
    TaskRows,
    encode_gradients,
    encode_row_request,
)

NUMBERS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6, unique=True).map(
    lambda numbers: np.array(sorted(numbers), dtype=np.int64)
)
ROUND = st.integers(0, 2**40)


@st.composite
def tables(draw):
    users, items, width = draw(NUMBERS), draw(NUMBERS), draw(st.integers(1, 5))
    values = st.floats(width=32, allow_nan=False)
    rows = [draw(hnp.arrays(np.float32, (len(n), width), elements=values)) for n in (users, items)]
    return draw(ROUND), users, items, *rows


def equal(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "__slots__"):
        return type(one) is type(other) and all(
            equal(getattr(one, name), getattr(other, name)) for name in type(one).__slots__
        )
    return one == other


def returns(message):
    """Whether a message comes out of its content as it went in."""
    return equal(message, type(message).from_content(message.to_content()))


@given(ROUND, st.integers(-1, 2**20), st.booleans(), NUMBERS)
def test_questions_arrive_as_they_were_sent(round, counted, flush, departed):
    asked = QueryRows("town", max(round, counted + 1), counted, flush, departed)
    assert returns(asked)
    assert returns(replace(asked, heard=asked.round))
    assert returns(QueryRows("town", 0, -1, flush, departed[:0]))


@given(st.integers(0, 2**20), ROUND, NUMBERS, NUMBERS, NUMBERS, st.booleans())
def test_wishes_arrive_as_they_were_sent(owner, round, held, users, items, wanted):
    request = RowRequest(owner, users, items) if wanted else None
    assert returns(RowsWanted(owner, round, held, request))
    assert returns(RowsWanted(owner, round, held[:0], None, "the disk is full"))


@given(st.integers(0, 2**20), ROUND, tables())
def test_rows_and_gradients_arrive_bit_for_bit(owner, round, table):
    assert returns(TaskRows("town", round, Rows(*table)))
    assert returns(GradientsSent(owner, round, Gradients(owner, *table)))
    assert returns(GradientsSent(owner, round, None, "no"))


ONE, ROW = np.array([1, 7], dtype=np.int64), np.ones((2, 4), np.float32)
WHOLE = [
    QueryRows("town", 3, 2, True, ONE),
    RowsWanted(1, 3, ONE, RowRequest(1, ONE, ONE)),
    TaskRows("town", 3, Rows(5, ONE, ONE, ROW, ROW)),
    GradientsSent(1, 3, Gradients(1, 5, ONE, ONE, ROW, ROW)),
]


@pytest.mark.parametrize("message", WHOLE, ids=lambda m: type(m).__name__)
def test_every_field_is_checked(message):
    whole, kind = message.to_content(), type(message)
    for name in whole:
        with pytest.raises(MessageError):
            kind.from_content({k: v for k, v in whole.items() if k != name})
        for wrong in (1.5, None, True, -9, 2**63, b"\1", [], "\0"):
            if type(wrong) is type(whole[name]) and name in ("federation", "problem"):
                continue
            with pytest.raises(MessageError):
                kind.from_content({**whole, name: wrong})
    for name, value in whole.items():
        if isinstance(value, bytes):
            with pytest.raises(MessageError):
                kind.from_content({**whole, name: value + value[:4]})
    with pytest.raises(VersionMismatch, match="same release"):
        kind.from_content({**whole, "protocol": 99})


def gradients(users, items, width, version=5):
    rows = np.ones((len(users) + len(items), width), np.float32)
    rows = rows[: len(users)], rows[len(users) :]
    return encode_gradients(Gradients(1, version, users, items, *rows))


def test_what_contradicts_itself_is_refused():
    asked, wanted, _, sent = (message.to_content() for message in WHOLE)
    for kind, whole, change in [
        (QueryRows, asked, {"counted": 3}),
        (QueryRows, asked, {"heard": 4}),
        (QueryRows, asked, {"heard": -2}),
        (QueryRows, asked, {"heard": "2"}),
        (RowsWanted, wanted, {"owner": 2}),
        (RowsWanted, wanted, {"request": encode_row_request(RowRequest(1, ONE, ONE[:0]))}),
        (RowsWanted, wanted, {"request": encode_row_request(RowRequest(1, ONE[:0], ONE[:0]))}),
        (RowsWanted, wanted, {"request": encode_row_request(RowRequest(1, ONE, ONE[::-1]))}),
        (GradientsSent, sent, {"owner": 2}),
        (GradientsSent, sent, {"gradients": gradients(ONE[:0], ONE[:0], 4)}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE[:0], 4)}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE[::-1], 4)}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE, 4, version=2**63)}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE, 4)[:-4]}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE, 0)}),
        (GradientsSent, sent, {"gradients": gradients(ONE, ONE, 4097)}),
    ]:
        with pytest.raises(MessageError):
            kind.from_content({**whole, **change})


def test_a_sentence_cannot_speak_to_a_terminal():
    long = RowsWanted(1, 3, ONE, None, "disk \x1b]0;full\x07" + "x" * 900)
    said = RowsWanted.from_content(long.to_content()).problem
    assert said.startswith("disk ?]0;full?x")
    assert len(said) == 500


def test_nothing_private_is_shown():
    assert not any("7" in repr(message) or "1." in repr(message) for message in WHOLE)


# --- as Flower calls it --------------------------------------------------------------------------


class Asking:
    """An owner that answers what it is told to."""

    number, federation, items = 1, "town", frozenset({7, 1})

    def request(self, round, counted, *, flush, departed=(), heard=-1):
        self.asked = round, counted, flush, departed, heard
        return RowRequest(1, ONE, ONE)

    def gradients(self, round, rows):
        if round != 3:
            raise DataError("another round")
        return Gradients(1, rows.version, rows.users, rows.items, rows.user_rows, rows.item_rows)


def ask(app, message, kind):
    asked = Message(content_of(message.to_content()), 7, kind, ttl=60.0)
    asked.metadata.__dict__["_message_id"] = "asked"
    return record_of(app(asked, Context(1, 7, {}, RecordDict(), {}, series_id=1)))


def test_the_app_answers_for_its_owner(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    owner = Asking()
    app = build_owner_app(owner)
    wanted = RowsWanted.from_content(ask(app, replace(WHOLE[0], heard=1), "query"))
    assert equal(wanted, WHOLE[1])
    assert owner.asked == (3, 2, True, [1, 7], 1)
    assert equal(GradientsSent.from_content(ask(app, WHOLE[2], "train")), WHOLE[3])
    other = TaskRows("town", 4, WHOLE[2].rows)
    assert GradientsSent.from_content(ask(app, other, "train")).problem == "another round"
    for kind, message in (("query", QueryRows("x", 3, 2, True, ONE)), ("train", WHOLE[2])):
        owner.federation = "elsewhere"
        assert "not of the one asking" in ask(app, message, kind)["problem"]
    with pytest.raises(MessageError):
        ask(app, WHOLE[2], "query")
