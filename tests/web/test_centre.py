"""The consent centre without a browser: what a page is told, and what leaves at the socket."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from consent_world import GramTown, gram_terms, newcomer

from sottovoce.cli import call
from sottovoce.core.words import Said, say
from sottovoce.errors import Told
from sottovoce.stores.device import CohortStore
from sottovoce.web.centre import Centre


@pytest.fixture
def town(tmp_path):
    return GramTown(gram_terms(tmp_path))


@pytest.fixture
def server(town):
    with town.serve() as running:
        yield running


@pytest.fixture
def centre(tmp_path, town, server):
    newcomer(tmp_path / "me", town, server.url)
    with Centre([tmp_path / "me"], plaintext=True) as made:
        yield made


def store(centre):
    (found,) = centre.state()["stores"]
    return found


def words(told):
    return say(Said(told["key"], told["values"]))


def ready(centre, town):
    """She has read the terms, agreed, takes part at ε = 1 and is enrolled; a round is open."""
    assert centre.preview("s0")["messages"] == []
    centre.agree("s0", store(centre)["terms"]["digest"])
    centre.choose("s0", {"takes_part": True, "epsilon": 1.0, "total_epsilon": 4.0})
    first = centre.preview("s0")
    assert [m["what"]["key"] for m in first["messages"]] == ["preview.enrolment"]
    body = centre.body("s0", 0)
    assert town.bodies("/v1/enrol") == []
    assert centre.send("s0", first["nonce"])["state"] == "arrived"
    assert town.bodies("/v1/enrol") == [body]
    assert town.state == "open"


def test_a_newcomer_reads_where_she_stands_and_nothing_leaves(centre, town, server):
    found = store(centre)
    assert words(found["stands"]).startswith("Nothing has left")
    assert found["quiet"]["key"] == "quiet.off"
    assert [f["name"] for f in found["fields"]] == ["takes_part", "asks_first", "never_send"]
    assert server.requests == []
    shown = centre.preview("s0")  # asks for what is public
    assert not shown["ready"]
    assert shown["messages"] == []
    assert {r.method for r in server.requests} == {"GET"}
    found = store(centre)
    names = [f["name"] for f in found["fields"]]
    assert names == ["takes_part", "asks_first", "epsilon", "total_epsilon", "never_send"]
    assert not found["terms"]["agreed"]
    assert all(words(one) for one in found["terms"]["said"])
    json.dumps(centre.state(), allow_nan=False)


def test_a_thing_that_is_called_otherwise_is_still_off_and_shows_why(centre, town, tmp_path):
    ready(centre, town)
    with CohortStore.open(tmp_path / "me") as other:
        catalogue, categories = other.catalogue(), other.categories()
        at = [item for item, _ in catalogue].index("venue-2")
        title = catalogue[at][1]
        centre.choose("s0", {"never_send": [title]})
        catalogue[at] = "venue-2", ""
        other.set_catalogue(catalogue, categories)
    things = centre.things("s0", "", 0, 100)["things"]
    assert [(t["item"], t["by"], t["former"]) for t in things if not t["on"]] == [
        ("venue-2", "item", [title])
    ]
    assert title in centre.known_names("s0")
    assert title not in {one["name"] for one in centre.things("s0", "", 0, 100)["categories"]}


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": "loud"}, {"nonsense": 1}, {"epsilon": -1}, {"never_send": "all"},
        {"strength": 2}, {"never_send": {"add": "all"}}, {"never_send": {"add": [1]}},
        {"never_send": {"lift": ["Food"]}}, {"epsilon": {"add": [1.0]}},
    ],
)  # fmt: skip
def test_a_strange_change_is_refused_in_a_sentence(centre, change):
    before = store(centre)["choice"]
    with pytest.raises(Told) as error:
        centre.choose("s0", change)
    assert say(Said(error.value.key, error.value.values))
    assert store(centre)["choice"] == before


def test_rules_of_two_programs_take_none_of_each_others_back(centre, tmp_path):
    """Each says what it adds and drops. A list that one had read before would undo the other's."""
    with Centre([tmp_path / "me"], plaintext=True) as second, ThreadPoolExecutor(2) as pool:

        def rules(which, names):
            for name in names:
                which.choose("s0", {"never_send": {"add": [name, f"{name} too"]}})
                which.choose("s0", {"never_send": {"drop": [f"{name} too"]}})

        mine, others = ([f"{who} {n:02d}" for n in range(10)] for who in ("mine", "others"))
        list(pool.map(rules, (centre, second), (mine, others)))
    assert sorted(store(centre)["choice"]["never_send"]) == [*mine, *others]


def test_a_large_history_comes_in_parts(tmp_path, town, server):
    with CohortStore.create(tmp_path / "big", [(0, "me")]) as made:
        made.add_history(0, [f"x{n:06}" for n in range(100_000)], list(range(100_000)))
    with Centre([tmp_path / "big"]) as centre:
        found = centre.things("s0", "", 99_990, 20)
        assert (found["total"], len(found["things"])) == (100_000, 10)
        assert found["things"][-1]["item"] == "x000000"
        assert centre.things("s0", "x09999", 0, 100)["total"] == 10


def test_an_agent_enrols_nobody_whose_choice_lets_nothing_leave(centre, town, server, tmp_path):
    centre.preview("s0")
    centre.agree("s0", store(centre)["terms"]["digest"])
    centre.choose("s0", {"takes_part": True, "epsilon": 0.0})
    assert store(centre)["quiet"]["key"] == "objection.loudness"
    centre.close()
    assert call(["serve", "device", str(tmp_path / "me"), "--plaintext", "--once"]) == 0
    assert {one.method for one in server.requests} == {"GET"}
