"""`device preview`, `never`, `remove`, `stop`, `leave` and `erase`, on a store whose federation
keeps every byte."""

import hashlib

import pytest
from consent_world import GramTown, gram_terms, newcomer

from sottovoce.cli import call
from sottovoce.stores.device import CohortStore
from sottovoce.wire.invitations import kept_invitation

pytestmark = pytest.mark.usefixtures("quick_stores")


@pytest.fixture
def town(tmp_path):
    town = GramTown(gram_terms(tmp_path))
    with town.serve() as server:
        newcomer(tmp_path / "me", town, server.url)
        yield town


@pytest.fixture
def me(tmp_path, town):
    return tmp_path / "me"


@pytest.fixture
def ready(ask, me, town):
    """She has agreed, takes part and is enrolled."""
    ask("preview", me, "--plaintext")
    digest = ask("agree", me)["digest"]
    ask("agree", me, "--terms", digest)
    ask("consent", me, "--take-part", "--epsilon", 1, "--total-epsilon", 4)
    ask("preview", me, "--plaintext", "--send", "--yes")
    assert town.state == "open"


@pytest.mark.usefixtures("ready")
def test_what_is_shown_is_what_is_sent_and_what_the_ledger_has(ask, say, me, town, tmp_path):
    told = say("preview", me, "--plaintext")
    assert "12 of your things count in it" in told
    assert "The Outdoors place 20" in told
    assert "Whoever runs the helper: Sees the seed" in told
    shown = ask("preview", me, "--plaintext", "--bytes", tmp_path / "message.bin")["preview"]
    body = (tmp_path / "message.bin").read_bytes()
    assert hashlib.sha256(body).hexdigest() == shown["messages"][-1]["sha256"]
    assert town.bodies() == []
    assert "is there already" in say("preview", me, "--bytes", tmp_path / "message.bin", code=2)
    assert ask("preview", me, "--plaintext", "--send", "--yes")["sent"] == {"state": "arrived"}
    assert town.bodies() == [body]
    ledger = ask("ledger", me)
    assert [line["body_sha256"] for line in ledger["lines"]] == [hashlib.sha256(body).hexdigest()]
    named = [one["title"] for one in ledger["lines"][0]["things"]]
    assert sorted(named) == sorted(one["title"] for one in shown["items"])
    told = say("ledger", me)
    assert "12 things: The " in told
    assert "Your part of a sum" in told


@pytest.mark.usefixtures("ready")
def test_never_send_by_item_and_category(ask, say, me):
    assert "Nothing is switched off" in say("never", me)
    assert ask("never", me, "The Food place 0", "Arts")["kept_back"] == 5
    assert ask("preview", me, "--plaintext")["preview"]["total"] == 7
    told = say("never", me, "Museums", code=3)
    assert "no item or category called 'Museums'" in told
    assert ask("never", me, "--undo", "Arts")["never_send"] == ["The Food place 0"]
    assert "not among" in say("never", me, "--undo", "Arts", code=2)
    assert "choose one" in say("never", me, "Arts", "--undo", "Arts", code=2)


@pytest.mark.usefixtures("ready")
def test_removing_asks_first_and_stops_what_was_prepared(ask, say, me, town):
    ask("preview", me, "--plaintext")
    assert "--yes" in say("remove", me, "venue-0", code=2)
    assert "not in your history" in say("remove", me, "venue-1", "--yes", code=3)
    assert ask("remove", me, "venue-0", "The Outdoors place 2", "--yes")["removed"] == 2
    assert ask("preview", me, "--plaintext")["preview"]["total"] == 10
    assert town.bodies() == []


@pytest.mark.usefixtures("ready")
def test_stopping_is_heard_by_the_agent_and_leaving_forgets_the_way(ask, say, me, town, capsys):
    assert "Nothing of yours leaves" in say("stop", me)
    before = len(town.heard)
    assert call(["serve", "device", str(me), "--plaintext", "--once"]) == 0
    assert {one.method for one in town.heard[before:]} == {"GET"}
    assert "Not one byte" in say("stop", me, "--everything")
    before = len(town.heard)
    assert call(["serve", "device", str(me), "--plaintext", "--once"]) == 0
    assert len(town.heard) == before
    assert "stopped everything" in say("preview", me, "--plaintext", code=1)
    say("stop", me, "--undo")
    assert "--yes" in say("leave", me, code=2)
    assert ask("leave", me, "--yes")["left_federation"] == "done"
    with CohortStore.open(me) as store:
        assert kept_invitation(store) is None
        assert store.secret("signing-key") is None
        assert len(store.contacts()) == 1
        assert store.count_history() == 12


@pytest.mark.usefixtures("ready")
def test_erasing_says_before_what_cannot_be_undone(ask, say, me):
    assert "choose one" in say("erase", me, code=2)
    assert "--yes" in say("erase", me, "--everything", code=2)
    assert ask("erase", me, "--history", "--yes")["erased"] == "history"
    assert ask("status", me)["interactions"] == 0
    with CohortStore.open(me, agent=True):
        assert "Another program" in say("erase", me, "--everything", "--yes", code=1)
    assert ask("erase", me, "--everything", "--yes")["erased"] == "everything"
    assert not me.exists()


def test_a_limit_is_weighed_before_it_is_set(say, me):
    told = say("consent", me, "--total-epsilon", 60, "--epsilon", 1)
    assert "protects nothing" in told
