"""Items come and go in a catalogue whose places never change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import MessageError, UsageError
from sottovoce.wire.catalogue import (
    as_table,
    categories_in,
    changed,
    changed_categories,
    require_same_places,
    spare_places,
    with_former_categories,
    with_spare,
)

START = [("a", "Anna's"), ("b", "Bar"), ("c", "Cinema")]


def test_new_items_take_places_to_spare_and_the_others_stay():
    before = with_spare(START, 2)
    assert spare_places(before) == [3, 4]
    after = changed(before, [("d", "Diner")], [])
    assert after[:4] == [*START, ("d", "Diner")]
    assert spare_places(after) == [4]
    require_same_places(before, after)


def test_who_goes_keeps_the_place_and_may_come_back():
    gone = changed(with_spare(START, 1), [], ["b"])
    assert gone[1] == ("b", "")
    back = changed(gone, [("b", "Bar again")], [])
    assert back[1] == ("b", "Bar again")
    assert spare_places(back) == [3]


@pytest.mark.parametrize(
    ("added", "gone", "said"),
    [
        ([("d", "D"), ("e", "E")], [], "1 places to spare for 2 new items"),
        ([], ["x"], "x is not in the catalogue"),
        ([], ["~spare-3"], "is not in the catalogue"),
        ([("~spare-9", "")], [], "must not be called"),
    ],
)
def test_what_cannot_be_is_said(added, gone, said):
    with pytest.raises(UsageError, match=said):
        changed(with_spare(START, 1), added, gone)


def test_an_item_called_like_a_place_to_spare_is_refused_at_the_beginning():
    with pytest.raises(UsageError, match="must not be called"):
        with_spare([("~spare-0", "x")], 1)


def test_another_item_in_a_known_place_is_found_out():
    after = [START[1], START[0], START[2]]
    with pytest.raises(MessageError, match="in the place of a"):
        require_same_places(START, after)


@given(st.lists(st.sampled_from(["come", "go"]), max_size=12), st.randoms())
def test_whatever_comes_and_goes_no_place_ever_has_another_item(steps, draw):
    now = with_spare(START, 5)
    for number, step in enumerate(steps):
        known = [item for place, (item, _) in enumerate(now) if place not in spare_places(now)]
        before = now
        if step == "come" and spare_places(now):
            now = changed(now, [(f"new {number}", "")], [])
            assert (f"new {number}", f"new {number}") in now
        elif step == "go":
            now = changed(now, [], [draw.choice(known)])
        require_same_places(before, now)
        assert len(now) == len(before)


# --- categories -----------------------------------------------------------------------------------

OF = [("Shop", "Food"), (), ("Fun", "Food", "Fun")]


def test_categories_are_published_beside_the_items_and_only_where_there_are_any():
    table = as_table(START, OF)
    assert table == {
        "items": [list(item) for item in START],
        "categories": {"names": ["Food", "Fun", "Shop"], "of": [[0, 2], [], [0, 1]]},
    }
    assert categories_in(table, 3) == [("Food", "Shop"), (), ("Food", "Fun")]
    for none in ((), [(), (), ()], [("",), (), ()]):
        assert as_table(START, none) == {"items": [list(item) for item in START]}
    assert categories_in(as_table(START, ()), 3) == []


GOOD = {"names": ["a", "b"], "of": [[0], [0, 1], []]}


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], {}, "a", {"names": ["a"]}, GOOD | {"more": 1},
        GOOD | {"names": "ab"}, GOOD | {"names": ["a", "a"]}, GOOD | {"names": ["a", ""]},
        GOOD | {"names": ["a", 1]}, GOOD | {"names": ["a", "\ud800"]}, GOOD | {"names": ["a", []]},
        GOOD | {"of": None}, GOOD | {"of": [[0], []]}, GOOD | {"of": [[0], [], [], []]},
        GOOD | {"of": [[2], [], []]}, GOOD | {"of": [[-1], [], []]},
        GOOD | {"of": [[0, 0], [], []]},
        GOOD | {"of": [[1, 0], [], []]}, GOOD | {"of": [[True], [], []]},
        GOOD | {"of": [[0.0], [], []]}, GOOD | {"of": [["0"], [], []]}, GOOD | {"of": [0, [], []]},
        GOOD | {"of": [{}, [], []]},
    ],
)  # fmt: skip
def test_categories_that_make_no_sense_are_refused(wrong):
    assert categories_in({"categories": GOOD}, 3) == [("a",), ("a", "b"), ()]
    with pytest.raises(MessageError, match="categor"):
        categories_in({"categories": wrong}, 3)


def test_what_comes_brings_its_categories_and_what_stays_keeps_them():
    before = with_spare(START, 2)
    of, added = [*OF, (), ()], [("d", "Diner"), ("b", "Bar")]
    after = changed(before, added, ["a"])
    found = changed_categories(before, of, after, added, [("Food",), ("Fun",)])
    assert found == [("Shop", "Food"), ("Fun",), ("Fun", "Food", "Fun"), ("Food",), ()]
    kept = changed_categories(before, of, after, added, ())
    assert kept == [("Shop", "Food"), (), ("Fun", "Food", "Fun"), (), ()]
    assert changed_categories(before, (), after, added, ()) == []


def test_a_category_that_an_item_was_known_to_have_stays():
    after = [*START[:2], ("d", "Diner")]
    found = with_former_categories(START, OF, after, [("New",), (), ("Food",)])
    assert found == [("Food", "New", "Shop"), (), ("Food",)]
    assert with_former_categories([], [], after, ()) == [(), (), ()]
