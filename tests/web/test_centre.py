"""The consent centre without a browser: what a page is told, and what leaves at the socket."""

import hashlib
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


def test_what_is_previewed_is_what_leaves_and_what_the_ledger_says(centre, town):
    ready(centre, town)
    shown = centre.preview("s0")
    (message,) = shown["messages"]
    assert shown["total"] == 12
    assert len(shown["items"]) == 12
    assert message["exact"]
    body = centre.body("s0", 0)
    assert hashlib.sha256(body).hexdigest() == message["sha256"]
    assert len(body) == message["bytes"]
    sent = centre.send("s0", shown["nonce"])
    assert sent["state"] == "arrived"
    assert town.bodies() == [body]
    newest, *_ = centre.ledger("s0", 0, 10)["rows"]
    assert (newest["sha256"], newest["bytes"]) == (message["sha256"], message["bytes"])
    assert newest["epsilon"] == pytest.approx(shown["epsilon"], abs=1e-3)
    row = centre.row("s0", newest["id"])
    assert [i["item"] for i in row["items"]] == [i["item"] for i in shown["items"]]
    assert row["receipt"]["sha256"] == message["sha256"]
    assert row["receipt"]["choice_in_force"]["epsilon"] == 1.0
    assert centre.ledger("s0", 0, 10)["total"] == 2  # and the enrolment


def test_switched_off_things_are_in_nothing(centre, town):
    ready(centre, town)
    before = centre.preview("s0")
    off = ["venue-0", "venue-2", "venue-4", "Food"]
    centre.choose("s0", {"never_send": off})
    after = centre.preview("s0")
    named = {i["item"] for i in after["items"]}
    # Twelve: three off by name (0 is Food, too), and three more of Food.
    assert after["kept_back"] == 6
    assert len(named) == 6
    assert not named & {"venue-0", "venue-2", "venue-4", "venue-6", "venue-12", "venue-18"}
    assert after["nonce"] != before["nonce"]
    with pytest.raises(Told, match=r"preview\.changed"):
        centre.send("s0", before["nonce"])
    assert town.bodies() == []
    assert centre.send("s0", after["nonce"])["state"] == "arrived"
    things = centre.things("s0", "", 0, 100)
    assert {t["item"]: t["by"] for t in things["things"] if not t["on"]} == {
        "venue-0": "item", "venue-2": "item", "venue-4": "item",
        "venue-6": "category", "venue-12": "category", "venue-18": "category",
    }  # fmt: skip
    assert {c["name"]: c["on"] for c in things["categories"]}["Food"] is False


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


def test_terms_that_change_stop_everything_until_she_agrees(centre, town, tmp_path):
    ready(centre, town)
    shown = centre.preview("s0")
    town.terms = gram_terms(tmp_path, min_devices=2)
    with pytest.raises(Told, match=r"preview\.changed"):
        centre.send("s0", shown["nonce"])
    assert town.bodies() == []
    assert centre.preview("s0")["said"]["key"] == "quiet.terms_changed"
    found = store(centre)
    assert [c["setting"] for c in found["terms"]["changes"]] == ["link.min_devices"]
    assert (found["terms"]["changes"][0]["before"], found["terms"]["changes"][0]["after"]) == (
        "5",
        "2",
    )
    with pytest.raises(Told, match="terms_other"):
        centre.agree("s0", "0" * 32)
    centre.agree("s0", found["terms"]["digest"])
    again = centre.preview("s0")
    assert again["ready"]
    assert centre.send("s0", again["nonce"])["state"] == "arrived"


def test_after_stop_only_public_documents_are_read_and_after_stop_everything_nothing(
    centre, town, server
):
    ready(centre, town)
    centre.stop("s0", False)
    before = len(server.requests)
    for _ in range(10):
        town.next_round()
        assert not centre.preview("s0")["ready"]
    after = server.requests[before:]
    assert after
    assert {one.method for one in after} == {"GET"}
    assert {one.path.split("?")[0].split("/")[2] for one in after} <= {
        "round", "terms", "catalogue", "model",
    }  # fmt: skip
    centre.stop(None, True)
    before = len(server.requests), server.connections
    for _ in range(10):
        with pytest.raises(Told, match="stopped"):
            centre.preview("s0")
    assert (len(server.requests), server.connections) == before
    assert store(centre)["stopped"]
    centre.start("s0")
    assert not store(centre)["takes_part"]


def test_the_verdict_on_a_limit_comes_before_it_is_set(centre, town):
    ready(centre, town)
    weighed = centre.weigh("s0", {"total_epsilon": 60.0})
    assert weighed["verdict"] == "nothing"
    assert any("protects nothing" in words(one) for one in weighed["said"])
    assert store(centre)["choice"]["total_epsilon"] == 4.0
    one = centre.weigh("s0", {"epsilon": 1.0})
    loud = centre.weigh("s0", {"epsilon": 8.0, "total_epsilon": None})
    assert centre.weigh("s0", {"epsilon": 8.0})["objection"]["key"] == "objection.limit"
    assert 50 < one["odds"]["right"] < loud["odds"]["right"] < 90
    assert centre.weigh("s0", {"takes_part": False})["odds"]["right"] == 50
    assert centre.weigh("s0", {"epsilon": 0.0})["objection"]["key"] == "objection.loudness"


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


def test_two_tabs_see_one_store(centre, town):
    ready(centre, town)
    one, other = centre.preview("s0"), centre.preview("s0")
    assert one == other
    assert centre.send("s0", one["nonce"])["state"] == "arrived"
    with pytest.raises(Told, match="changed"):
        centre.send("s0", other["nonce"])
    assert len(town.bodies()) == 1


def test_a_store_that_another_agent_serves_can_be_looked_at_and_changed(centre, town, tmp_path):
    ready(centre, town)
    with Centre([tmp_path / "me"], plaintext=True) as second:
        second.choose("s0", {"never_send": ["Food"]})
        shown = second.preview("s0")
        assert (shown["ready"], shown["nonce"]) == (True, None)
        assert shown["said"]["key"] == "busy.sends"
        assert (
            hashlib.sha256(second.body("s0", 0)).hexdigest()
            == centre.preview("s0")["messages"][0]["sha256"]
        )
        with pytest.raises(Told, match="busy"):
            second.send("s0", "0" * 32)
        with pytest.raises(Told, match="in_use"):
            second.erase("s0", "everything")
    assert store(centre)["choice"]["never_send"] == ["Food"]


def test_forgetting(centre, town, tmp_path):
    ready(centre, town)
    shown = centre.preview("s0")
    centre.remove("s0", ["venue-0"])
    with pytest.raises(Told, match="changed"):
        centre.send("s0", shown["nonce"])
    assert centre.things("s0", "", 0, 100)["total"] == 11
    centre.erase("s0", "history")
    assert centre.things("s0", "", 0, 100)["total"] == 0
    empty = centre.preview("s0")  # of gram: that she is there, and nothing else
    assert (empty["items"], empty["total"]) == ([], 0)
    assert centre.erase("s0", "everything")["stores"] == []
    assert not (tmp_path / "me").exists()


def test_the_server_gone_is_a_sentence_and_nothing_is_lost(centre, town, server):
    ready(centre, town)
    shown = centre.preview("s0")
    town.hook = lambda request: (_ for _ in ()).throw(ConnectionError())
    server.__exit__()
    with pytest.raises(Told) as error:
        centre.send("s0", shown["nonce"])
    assert error.value.key in ("trouble.server_gone", "trouble.maybe_sent")
    assert store(centre)["choice"]["epsilon"] == 1.0


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
