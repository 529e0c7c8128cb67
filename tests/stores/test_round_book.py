"""A store's book by itself: what is written when a round is prepared, leaves or is dropped, and who
has room for it. Two users, of whom one has nothing left."""

import json

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.core.links import Direct, SecureSum
from sottovoce.parties.device import Contents
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_limits import (
    _noise_then,
    has_room,
    plain_releases,
    rounds_sent,
    spent_before,
    spent_on_sums,
    sum_noise,
)
from sottovoce.stores.device_rounds import Round, RoundBook, ledger_rows
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

POOR, RICH, NOISE = 5, 9, 4.0


def terms(noise):
    link = SecureSum(min_devices=5, clip=1.0, noise=noise) if noise else Direct()
    return Terms("town", 20, FPLConfig(embedding_size=3, triples=2), ShareFraction(), link)


@pytest.fixture
def store(tmp_path):
    with CohortStore.create(tmp_path / "s", [(POOR, "poor"), (RICH, "rich")], root_key=1) as made:
        yield made


def booked(*users, epsilon=np.inf, reports=0, each=0.0, bytes=100):
    ledger, n = Ledger(), len(users)
    ledger.record(
        Entries(
            kind="share-item", user=np.array(users), round=np.zeros(n, np.int64),
            positive_rows=np.ones(n, np.int32), negative_rows=np.ones(n, np.int32),
            bytes=np.full(n, bytes), epsilon=np.full(n, epsilon),
            reports=np.full(n, reports, np.int32), report_epsilon=np.full(n, each),
            batch=np.full(n, 7),
        )
    )  # fmt: skip
    return ledger


def entry(store, number, ledger, under, message=b"bytes", era=0):
    book = RoundBook(store.file)
    with store.file.transaction():
        if era not in dict(book.all_terms()):
            book.add_terms(era, under, 1)
        made = Round(era, number, 0, "prepared", b"", store.latest_choice(), 2, bytes(16), message)
        book.add(made, ledger, "digest", 3)
    return book, made


def left(store, number, ledger, under, now=1234, era=0):
    book, made = entry(store, number, ledger, under, era=era)
    with store.file.transaction():
        book.mark_left(made, now)
    return book, made


def test_everybody_in_a_round_of_noisy_sums_needs_room_and_nobody_else(store):
    one = price(NOISE, 1) * (1 + 1e-9)
    store.set_choice(POOR, Choice(total_epsilon=one))
    store.set_choice(RICH, Choice(total_epsilon=100 * one))
    left(store, 0, booked(POOR, RICH), terms(NOISE))
    book, both = entry(store, 1, booked(POOR, RICH), terms(NOISE))
    assert not has_room(store, terms(NOISE), book.costs(both))
    book, hers = entry(store, 2, booked(RICH), terms(NOISE))
    assert has_room(store, terms(NOISE), book.costs(hers))
    book, his = entry(store, 3, booked(POOR), terms(NOISE))
    assert not has_room(store, terms(NOISE), book.costs(his))


def test_everybody_in_a_round_with_a_price_needs_room_and_nobody_else(store):
    store.set_choice(POOR, Choice(total_epsilon=1.0))
    store.set_choice(RICH, Choice(total_epsilon=100.0))
    left(store, 0, booked(POOR, RICH, epsilon=0.75), terms(0.0))
    cases = [((POOR, RICH), False), ((RICH,), True), ((POOR,), False)]
    for number, (who, fits) in enumerate(cases, start=1):
        book, next_one = entry(store, number, booked(*who, epsilon=0.75), terms(0.0))
        assert has_room(store, terms(0.0), book.costs(next_one)) == fits
    book, free = entry(store, 9, booked(POOR), terms(0.0))
    assert has_room(store, terms(0.0), book.costs(free)), (
        "what no ε bounds is not paid for from a limit"
    )


def test_what_leaves_is_written_with_its_time_and_its_price(store):
    left(store, 0, booked(POOR, epsilon=0.7, reports=1, each=0.5), terms(0.0))
    left(store, 1, booked(POOR, epsilon=0.25), terms(0.0))
    left(store, 2, booked(POOR, epsilon=0.0), terms(0.0))
    left(store, 3, booked(POOR), terms(0.0))
    rows = ledger_rows(store.file, POOR).to_pydict()
    assert rows["time"] == [1234] * 4
    assert rows["state"] == ["left"] * 4
    assert {reason for (reason,) in store.file.rows("SELECT reason FROM rounds")} == {""}
    paid = store.file.rows("SELECT number, epsilon, batch, reports FROM spent ORDER BY epsilon")
    assert [tuple(row) for row in paid] == [(POOR, 0.25, 7, 1), (POOR, 0.5, 7, 1)]
    assert store.spent().tolist() == [0.75, 0.0]
    total = store.file.row("SELECT releases, bytes, positive_rows, reports FROM budget")
    assert tuple(total) == (4, 400, 4, 1)


def test_a_round_costs_its_reports_or_its_own_price(store):
    book, reports = entry(store, 0, booked(POOR, epsilon=0.7, reports=2, each=0.5), terms(0.0))
    assert book.costs(reports) == [(POOR, 1.0)]
    book, single = entry(store, 2, booked(POOR, epsilon=0.7, reports=1, each=0.5), terms(0.0))
    assert book.costs(single) == [(POOR, 0.5)]
    book, update = entry(store, 1, booked(RICH, POOR, epsilon=0.7), terms(0.0))
    assert book.costs(update) == [(POOR, 0.7), (RICH, 0.7)]


@pytest.mark.parametrize(("message", "bytes", "wire"), [(b"x" * 30, 10, 30), (b"x" * 30, 99, 99)])
def test_a_message_is_as_long_as_it_is_on_the_wire(store, message, bytes, wire):
    book, made = entry(store, 0, booked(POOR, bytes=bytes), terms(0.0), message)
    with store.file.transaction():
        book.mark_left(made, 5)
    assert ledger_rows(store.file, None)["wire_bytes"].to_pylist() == [wire]


def test_of_a_round_that_is_dropped_nothing_is_left_but_why(store):
    book, made = entry(store, 0, booked(POOR, RICH), terms(0.0))
    with store.file.transaction():
        book.keep_learnt(np.array([POOR]), np.ones((1, 3), np.float32))
        book.drop(made, "a reason")
    latest = book.latest()
    assert (latest.state, latest.message, latest.gone) == ("dropped", b"", False)
    assert book.costs(made) == []
    assert not store.file.rows("SELECT 1 FROM learnt")
    assert not ledger_rows(store.file, None).num_rows
    assert store.file.row("SELECT reason FROM rounds")[0] == "a reason"
    book, again = entry(store, 0, booked(RICH), terms(0.0), b"other")
    assert (book.latest().state, book.latest().message) == ("prepared", b"other")
    assert book.costs(again) == [(RICH, np.inf)]
    assert store.file.row("SELECT reason FROM rounds")[0] == ""


@pytest.mark.parametrize(
    ("content", "noise"),
    [
        ({"protocol": 1}, 0.0),  # before there were links
        ({"link": {"name": "direct"}}, 0.0),
        ({"link": {"name": "secure-sum", "noise": 3.5}}, 3.5),
        ({"link": {"name": "secure-sum", "noise": -1.0}}, 0.0),
    ],
)
def test_former_terms_say_what_noise_there_was(content, noise):
    assert _noise_then(json.dumps(content)) == noise


def test_rounds_are_counted_by_the_noise_that_they_had(store):
    assert (sum_noise(None), sum_noise(terms(0.0)), sum_noise(terms(NOISE))) == (0.0, 0.0, NOISE)
    left(store, 0, booked(POOR), terms(NOISE))
    left(store, 1, booked(POOR), terms(NOISE))
    assert rounds_sent(store, 0.0).tolist() == [0, 0]
    assert rounds_sent(store, NOISE).tolist() == [2, 0]
    assert rounds_sent(store, 2 * NOISE).tolist() == [8, 0], "with less noise they told more"
    assert plain_releases(store).tolist() == [0, 0]
    assert spent_on_sums(store)[0] == pytest.approx(price(NOISE, 2))
    assert spent_before(store, terms(NOISE)).tolist() == [0.0, 0.0]
    assert spent_before(store, None)[0] == spent_on_sums(store)[0]
    left(store, 0, booked(RICH), terms(0.0), era=1)
    assert rounds_sent(store, 0.0).tolist() == [0, 0], "there is no noise to count by"
    assert rounds_sent(store, NOISE).tolist() == [2, 1], "what nothing bounds counts as a round"
    assert plain_releases(store).tolist() == [0, 1]


def test_an_older_round_that_is_written_later_is_not_the_latest(store):
    book, latest = entry(store, 3, booked(POOR), terms(0.0), b"three")
    assert book.latest() == latest
    entry(store, 1, booked(RICH), terms(0.0), b"one")
    assert book.latest() == latest
    book, later = entry(store, 4, booked(RICH), terms(0.0), b"four")
    assert book.latest() == later


def test_what_of_her_own_is_in_a_round_is_written_with_it_and_forgotten_with_it(store):
    book = RoundBook(store.file)
    items, weight = np.array([2, 5], np.int32), np.array([0.5, 2.0])
    with store.file.transaction():
        book.add_terms(0, terms(0.0), 1)
        made = Round(0, 2, 1, "prepared", b"", store.latest_choice(), 1, bytes(16), b"message")
        book.add(made, booked(RICH), "digest", 3, Contents(items, weight))
    (row,) = store.file.rows("SELECT era, round, attempt, number, items, weights FROM contents")
    expected = (0, 2, 1, RICH, items.astype("<i4").tobytes(), weight.astype("<f4").tobytes())
    assert tuple(row) == expected
    with store.file.transaction():
        book.drop(made, "a reason")
    assert not store.file.rows("SELECT 1 FROM contents")
