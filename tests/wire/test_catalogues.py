"""Items come and go in a catalogue whose places never change."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import MessageError, UsageError
from sottovoce.wire.catalogue import (
    LONGEST_NAME,
    as_table,
    catalogue_limit,
    categories_in,
    changed,
    changed_categories,
    cleaned,
    items_of,
    require_fit,
    require_good_ids,
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


@pytest.mark.parametrize(
    ("items", "categories"),
    [
        ([*START, ("~spare-3", "Clinic")], ()),
        ([*START, ("~spare-3", "")], [*OF, ("Health",)]),
        ([*START, ("a", "")], ()),
    ],
)
def test_an_id_that_could_move_has_no_title_and_no_category(items, categories):
    """A server could otherwise put an item that a user keeps back into another place, under another
    category: what she has said would not hold there."""
    with pytest.raises(MessageError, match=r"reserved for places without|two items alike"):
        require_good_ids(items, categories)
    with pytest.raises(UsageError, match="devices would refuse"):
        require_fit(json.dumps(as_table(items, categories)).encode())
    require_good_ids(with_spare(START, 2), [*OF, (), ()])


def test_a_place_to_spare_that_was_given_a_title_is_not_free():
    before = [*START, ("~spare-3", "Clinic")]
    assert spare_places(before) == []
    with pytest.raises(MessageError, match="in the place of ~spare-3"):
        require_same_places(before, [*START, ("d", "Diner")])


# --- what an operator may publish -----------------------------------------------------------------


def content(items, categories=()):
    return json.dumps(as_table(items, categories)).encode()


LONG = "x" * (LONGEST_NAME + 1)


@pytest.mark.parametrize(
    "name", ["", " ", LONG, "ü" * 251, "a\nb", "\x00", "\x1b[31m", "\u202etxt", "\ud800", "\u2028"]
)
def test_a_name_that_nobody_can_read_is_refused_wherever_it_stands(name):
    for items, categories in (
        ([(name, "Title")], ()),
        ([("a", name or "\t")], ()),
        ([("a", "A")], [(name or "\t",)]),
    ):
        with pytest.raises(UsageError, match="nothing was changed") as said:
            require_fit(content(items, categories))
        assert len(str(said.value)) < 600
        assert str(said.value).isprintable()


@pytest.mark.parametrize("name", ["Caffè", "l'Olmo\xa0", "東京", "👩\u200d🍳", "x" * LONGEST_NAME])
def test_names_of_all_languages_are_good(name):
    require_fit(content([(name, name), ("gone", "")], [(name,), ()]))


@given(st.text(min_size=1) | st.text("é\x1a", min_size=1, max_size=600))
def test_a_name_in_published_data_can_be_made_one_for_a_catalogue(text):
    made = cleaned(text)
    assert cleaned(made) == made
    if made.strip():
        require_fit(content([("a", made)]))
    assert cleaned("Caf\x1a") == "Caf\ufffd"


def test_a_catalogue_has_room_on_devices():
    many = [(f"{n:0500}", f"{n:0500}") for n in range(100)]
    require_fit(content(many))
    wide = [("é" * 240 + f"{n:04}", "A") for n in range(200)]  # each is six bytes as published
    with pytest.raises(UsageError, match="devices take"):
        require_fit(content(wide))
    shorter = [*wide[:-1], (wide[-1][0], "")]
    require_fit(content(shorter), content(wide))


def test_a_row_without_an_item_names_none():
    items, _ = items_of([{"title": "T", "item": None}], "here")
    with pytest.raises(UsageError, match="nothing was changed"):
        require_fit(content(items))


NAMES = st.text(max_size=12) | st.text("aé\n\x00", min_size=400, max_size=600)
ROWS = st.lists(st.tuples(NAMES, NAMES, st.lists(NAMES, max_size=3)), min_size=1, max_size=6)


@given(ROWS)
def test_what_is_accepted_is_taken_by_every_device_and_can_be_read(rows):
    items, of = [(item, title) for item, title, _ in rows], [names for *_, names in rows]
    made = content(items, of)
    require_fit(made, made)  # what was always there may stay
    with contextlib.suppress(UsageError):
        require_fit(made)
        assert len(made) <= catalogue_limit(len(items))
        table = json.loads(made)
        categories_in(table, len(items))
        names = {name for item in table["items"] for name in item}
        for name in names | {*table.get("categories", {}).get("names", [])}:
            assert len(name.encode()) <= LONGEST_NAME
            assert not {*name} & {chr(n) for n in range(32)}
