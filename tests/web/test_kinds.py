"""The consent centre for one person in federations of every kind at once: what it shows, what she
chooses, and what then leaves at the sockets."""

import asyncio
import base64
import contextlib
import hashlib
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from consent_world import CATALOGUE, HISTORY, newcomer
from fake_server import FakeServer, Reply
from kinds_world import CHOICES, KINDS, K, joined, kind_of, terms_of
from user_world import world as owners_world

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.words import LANGUAGES, Said, say
from sottovoce.errors import SottovoceError, Told
from sottovoce.privacy.central import price
from sottovoce.services.agent.agent import Agent
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores.device import CohortStore
from sottovoce.stores.keys import authority_pem, init_keys, server_context
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.web.centre import Centre
from sottovoce.wire.interactions import SessionReceiver
from sottovoce.wire.invitations import keep_invitation, kept_invitation
from sottovoce.wire.reports import decode_bits, decode_report
from sottovoce.wire.signing import open_envelope

pytestmark = pytest.mark.usefixtures("quick_stores")

HERS = [item for item, _ in HISTORY]
NUMBER = {item: at for at, (item, _) in enumerate(CATALOGUE)}
NOISY_SUMS = ("fpl sum", "fcf sum", "uc sum")
PLAIN = ("fpl", "fcf", "uc")
ROWS = ("fpl", "fcf", "uc")
"""Whose server reads rows of items by number."""


@pytest.fixture
def stack():
    with contextlib.ExitStack() as made:
        yield made


class Watched:
    """A centre whose every answer must be JSON, and in words that both languages have."""

    def __init__(self, centre):
        self._centre = centre

    def __getattr__(self, name):
        def call(*args):
            try:
                found = getattr(self._centre, name)(*args)
            except Told as error:
                readable({"key": error.key, "values": dict(error.values)})
                raise
            if not isinstance(found, bytes | tuple | set):
                readable(json.loads(json.dumps(found, allow_nan=False)))
            return found

        return call


def readable(found):
    """All that is said in there, in both languages, without places that nothing was put into."""
    if isinstance(found, dict):
        if set(found) == {"key", "values"}:
            for language in LANGUAGES:
                text = say(Said(found["key"], found["values"]), language)
                assert text
                assert not re.search(r"\{\w+(:\w+)?\}", text), text
            return
        for one in found.values():
            readable(one)
    elif isinstance(found, list):
        for one in found:
            readable(one)


def centre_of(stack, *paths):
    return Watched(stack.enter_context(Centre(list(paths), plaintext=True)))


def store(centre, name="s0"):
    return next(one for one in centre.state()["stores"] if one["id"] == name)


def fields(centre, name="s0"):
    return {one["name"]: one for one in store(centre, name)["fields"]}


def agreed(centre, kind, name="s0", **changes):
    """She has read the terms, agreed, and chosen so that something leaves."""
    assert centre.preview(name)["messages"] == []
    centre.agree(name, store(centre, name)["terms"]["digest"])
    return centre.choose(name, {"takes_part": True, **CHOICES[kind.name], **changes})


def enrolled(centre, kind, name="s0", **changes):
    agreed(centre, kind, name, **changes)
    if kind.name != "fmf":  # which tells that it is there together with its first reports
        shown = centre.preview(name)
        assert [one["what"]["key"] for one in shown["messages"]] == ["preview.enrolment"]
        assert centre.send(name, shown["nonce"])["state"] == "arrived"


@pytest.fixture
def place(stack, tmp_path):
    """A federation of a kind, and her centre in it."""

    def make(name, **changes):
        kind = kind_of(name, tmp_path, stack, **changes)
        return kind, centre_of(stack, joined(tmp_path, kind))

    return make


def sent_bodies(kind, since):
    return [one.body for one in kind.posts[since:]]


# --- one person in all of them at once ------------------------------------------------------------


def test_one_person_in_federations_of_every_kind(stack, tmp_path):
    kinds = [kind_of(name, tmp_path / str(at), stack) for at, name in enumerate(KINDS)]
    paths = [joined(tmp_path, kind) for kind in kinds]
    here = stack.enter_context(owners_world(tmp_path / "drift", secure=False))
    with UserStore.join(tmp_path / "drift-me", here.invitation()) as me, UserAgent(me) as agent:
        agent.refresh_directory()
    CohortStore.create(tmp_path / "alone", [(0, "me")]).close()
    centre = centre_of(stack, *paths, tmp_path / "drift-me", tmp_path / "alone")
    stores = centre.state()["stores"]
    assert [one["kind"] for one in stores] == ["devices"] * len(kinds) + ["owners", "alone"]
    assert [one["stands"]["key"] for one in stores] == (
        ["stands.nothing_off"] * (len(kinds) + 1) + ["stands.alone"]
    )
    for at, kind in enumerate(kinds):
        enrolled(centre, kind, f"s{at}")
    for at, kind in enumerate(kinds):
        shown = centre.preview(f"s{at}")
        assert shown["ready"], kind.name
        assert centre.send(f"s{at}", shown["nonce"])["state"] == "arrived"
    assert [one["contributions"] for one in centre.state()["stores"]][:-2] == [1] * len(kinds)
    assert [len(kind.posts) for kind in kinds] == [3 if k.name == "fmf" else 2 for k in kinds]
    centre.stop(None, True)
    before = [(kind.connections, len(kind.requests)) for kind in kinds]
    for at in range(len(stores)):
        with pytest.raises(Told, match="stopped"):
            centre.preview(f"s{at}")
        centre.recommend(f"s{at}", None)
    assert [(kind.connections, len(kind.requests)) for kind in kinds] == before
    assert all(one["stopped"] and not one["takes_part"] for one in centre.state()["stores"])
    for at in range(len(stores)):
        centre.erase(f"s{at}", "everything")
    assert centre.state()["stores"] == []
    assert not any(path.exists() for path in paths)


def test_a_store_in_no_federation_has_nothing_to_send(stack, tmp_path):
    with CohortStore.create(tmp_path / "alone", [(0, "me")]) as made:
        made.add_history(0, HERS, None)
    centre = centre_of(stack, tmp_path / "alone")
    assert set(fields(centre)) == {"takes_part", "never_send"}
    found = centre.choose("s0", {"takes_part": True, "never_send": ["venue-0"]})
    assert (found["quiet"]["key"], found["terms"], found["meter"]) == ("quiet.alone", None, None)
    assert (found["history"]["items"], found["history"]["off"]) == (12, 1)
    assert centre.weigh("s0", {"total_epsilon": 3.0})["odds"] is None
    assert centre.recommend("s0", {"never_send": []}) == {"now": [], "after": []}
    assert centre.ledger("s0", 0, 10) == {"total": 0, "rows": []}
    for call in (lambda: centre.preview("s0"), lambda: centre.send("s0", "0" * 32)):
        with pytest.raises(Told, match=r"quiet\.alone"):
            call()
    with pytest.raises(Told, match="no_terms"):
        centre.agree("s0", "0" * 32)
    centre.remove("s0", ["venue-2"])
    assert centre.things("s0", "", 0, 50)["total"] == 11


# --- fields and choices ---------------------------------------------------------------------------

ASKED = {
    "fpl": ["share_positives"],
    "fcf": ["share_positives"],
    "uc": ["share_positives", "hidden_attributes", "strength"],
    "uc noise": ["epsilon", "total_epsilon", "hidden_attributes", "strength"],
    "fpl sum": ["share_positives", "total_epsilon"],
    "fcf sum": ["share_positives", "total_epsilon"],
    "uc sum": ["share_positives", "hidden_attributes", "strength", "total_epsilon"],
    "gram": ["epsilon", "total_epsilon"],
    "checked": ["epsilon", "total_epsilon"],
    "fmf": ["epsilon", "max_reports", "total_epsilon"],
}
DRAWN = {
    "share_positives": "share", "epsilon": "epsilon", "total_epsilon": "limit",
    "max_reports": "count", "hidden_attributes": "attributes", "strength": "strength",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_fields_come_from_the_components_and_each_choice_is_kept(place, name):
    kind, centre = place(name)
    centre.preview("s0")
    found = fields(centre)
    assert list(found) == ["takes_part", "asks_first", *ASKED[name], "never_send"]
    for field in ASKED[name]:
        one = found[field]
        assert one["kind"] == DRAWN[field]
        most = math.inf if one["most"] is None else one["most"]
        values = [step["value"] for step in one["steps"]]
        assert values == sorted(set(values)), "steps differ, and grow"
        assert all(one["least"] <= value <= most for value in values)
        for value in values:
            assert centre.choose("s0", {field: value})["choice"][field] == value
            weighed = centre.weigh("s0", {"takes_part": True, field: value})
            assert weighed["verdict"] in ("none", "good", "weak", "nothing")
    if "hidden_attributes" in found:
        assert [one["name"] for one in found["hidden_attributes"]["options"]] == ["gender", "age"]
        centre.choose("s0", {"hidden_attributes": ["age"]})
        options = fields(centre)["hidden_attributes"]["options"]
        assert {one["name"]: one["on"] for one in options} == {"gender": False, "age": True}
    assert kind.posts == []


@pytest.mark.parametrize("name", KINDS)
def test_odds_are_given_where_something_bounds_and_nowhere_else(place, name):
    kind, centre = place(name)
    agreed(centre, kind)
    weighed = centre.weigh("s0", {})
    assert weighed["objection"] is None
    if name in PLAIN:
        assert weighed["odds"] is None
        assert [one["key"] for one in weighed["said"]] == ["verdict.none"]
        limited = centre.weigh("s0", {"total_epsilon": 1.0})
        assert "verdict.limit_useless" in [one["key"] for one in limited["said"]]
        assert limited["verdict"] == "none"
    else:
        assert 50 <= weighed["odds"]["right"] <= 100
        large = centre.weigh("s0", {"total_epsilon": 60.0})
        assert large["verdict"] == "nothing"
        assert "verdict.limit_nothing" in [one["key"] for one in large["said"]]
        tiny = centre.weigh("s0", {"total_epsilon": 0.001})
        assert tiny["objection"]["key"] == "objection.limit"
        assert tiny["odds"] is None
    assert centre.weigh("s0", {"takes_part": False})["odds"]["right"] == 50


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("fcf", {"share_positives": 0.5}, "objection.share_all"),
        ("fcf sum", {"share_positives": 0.5}, "objection.share_all"),
        ("fpl", {"epsilon": 1.0}, "objection.no_noise"),
        ("fpl", {"hidden_attributes": ["gender"]}, "objection.no_filter"),
        ("uc", {"hidden_attributes": ["income", "gender"]}, "objection.no_filter"),
        ("uc", {"total_epsilon": 1.0}, "objection.no_limit"),
        ("uc sum", {"epsilon": 1.0}, "objection.no_noise"),
        ("gram", {"epsilon": 0.0}, "objection.loudness"),
        ("checked", {"max_reports": 3}, "objection.no_reports"),
        ("fmf", {"epsilon": 0.4}, "objection.reports"),
        ("fmf", {"max_reports": K - 1}, "objection.reports"),
        ("fmf", {"share_positives": 1.0}, "objection.no_share"),
        ("fmf", {"hidden_attributes": ["gender"]}, "objection.no_filter"),
        ("fmf", {"total_epsilon": 11.9}, "objection.limit"),
        ("fpl sum", {"total_epsilon": 0.1}, "objection.limit"),
    ],
)
def test_a_choice_that_fits_nothing_lets_nothing_leave_and_says_why(place, name, change, key):
    kind, centre = place(name)
    agreed(centre, kind)
    assert centre.weigh("s0", change)["objection"]["key"] == key
    kept = centre.choose("s0", change)
    assert kept["quiet"]["key"] == key
    shown = centre.preview("s0")
    if name == "fpl sum":  # that she is there is no part of a sum
        assert [one["what"]["key"] for one in shown["messages"]] == ["preview.enrolment"]
        centre.send("s0", shown["nonce"])
        shown = centre.preview("s0")
    assert (shown["ready"], shown["nonce"], shown["messages"]) == (False, None, [])
    assert shown["said"]["key"] == key
    assert len(kind.posts) == (name == "fpl sum")


@pytest.mark.parametrize("name", NOISY_SUMS)
def test_a_limit_on_noisy_sums_is_weighed_as_it_is_kept(place, name):
    """So many rounds are promised as then leave, and not one more."""
    kind, centre = place(name)
    limit = (price(20.0, 3) + price(20.0, 4)) / 2
    enrolled(centre, kind, total_epsilon=limit)
    promised = {one["key"]: one["values"] for one in centre.weigh("s0", {})["said"]}
    assert promised["costs.lasts_rounds"]["n"] == 3
    sent = 0
    for _ in range(5):
        shown = centre.preview("s0")
        if not shown["ready"]:
            assert shown["said"]["key"] == "quiet.limit"
            break
        assert shown["epsilon"] == pytest.approx(price(20.0, 1), abs=1e-3)
        assert centre.send("s0", shown["nonce"])["state"] == "arrived"
        sent += 1
        kind.town.next_round()
    assert sent == 3
    assert store(centre)["meter"]["spent"] == pytest.approx(price(20.0, 3), abs=1e-3)
    assert centre.weigh("s0", {})["objection"]["key"] == "quiet.limit"
    rows = [row for row in centre.ledger("s0", 0, 10)["rows"] if row["sha256"]]
    assert [(row["bounded"], row["what"]["key"]) for row in rows] == [
        (True, "ledger.contribution")
    ] * 3


@pytest.mark.parametrize("name", ["fpl", "fcf"])
def test_a_limit_that_stops_nothing_is_said_to(place, name):
    kind, centre = place(name)
    enrolled(centre, kind, total_epsilon=0.5)
    for _ in range(3):
        shown = centre.preview("s0")
        assert shown["ready"]
        assert shown["epsilon"] is None
        centre.send("s0", shown["nonce"])
        kind.town.next_round()
    assert store(centre)["stands"]["key"] == "stands.no_bound"


# --- preview, send, ledger ------------------------------------------------------------------------


def rows_in(kind, at=-1):
    """Items of which the server reads rows in a report."""
    body = open_envelope(kind.town.bodies()[at]).body
    shape = {"n_items": kind.town.terms.n_rows, "width": kind.town.terms.width}
    return decode_report(body, sender=0, round=kind.town.round, **shape).item.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_previewed_is_what_leaves_and_what_the_ledger_says(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    since = len(kind.posts)
    shown = centre.preview("s0")
    assert centre.preview("s0")["nonce"] == shown["nonce"], "looking changes nothing"
    assert len(kind.posts) == since
    bodies = [centre.body("s0", at) for at in range(len(shown["messages"]))]
    for message, body in zip(shown["messages"], bodies, strict=True):
        assert (len(body), hashlib.sha256(body).hexdigest()) == (
            message["bytes"], message["sha256"],
        )  # fmt: skip
        assert base64.b64decode(message["start"]) == body[:512]
    # Which items randomised reports are about is drawn by lot: now and then none is hers.
    assert (name != "fmf") <= shown["total"] <= len(HERS)
    assert {one["item"] for one in shown["items"]} <= set(HERS)
    assert max((one["weight"] for one in shown["items"]), default=1.0) == 1.0
    sent = centre.send("s0", shown["nonce"])
    assert (sent["state"], sent["said"]["key"]) == ("arrived", "preview.arrived")
    left = sent_bodies(kind, since)
    assert len(left) == len(bodies)
    for message, body, there in zip(shown["messages"], bodies, left, strict=True):
        assert (body == there) is message["exact"]
    newest, *_ = centre.ledger("s0", 0, 10)["rows"]
    assert newest["items"] == shown["total"]
    assert newest["epsilon"] == (
        None if name in PLAIN else pytest.approx(shown["epsilon"], abs=1e-3)
    )
    assert newest["bounded"] is (name not in PLAIN)
    row = centre.row("s0", newest["id"])
    assert row["items"] == shown["items"]
    assert row["receipt"]["choice_in_force"]["takes_part"]
    assert row["receipt"]["federation"] == kind.town.terms.federation
    if name == "fmf":
        assert [one["exact"] for one in shown["messages"]] == [True, False, False]
        assert [len(one) for one in left][:2] == [one["bytes"] for one in shown["messages"]][:2]
        told, meant = json.loads(left[1]), json.loads(bodies[1])
        assert {k for k in told if told[k] != meant[k]} <= {"admission", "challenge", "signature"}
        message = decode_bits(bodies[2])
        assert kind.town.shuffler.opened(0)[1].tolist() == message.reports[0].tolist()
        parties = [one["to"]["key"] for one in centre.ledger("s0", 0, 10)["rows"]]
        assert parties == ["reads.shuffler", "reads.shuffler", "reads.server"]
    else:
        assert all(one["exact"] for one in shown["messages"])
        assert newest["sha256"] == shown["messages"][0]["sha256"]
        assert newest["bytes"] == row["receipt"]["bytes"] == len(left[0])
    if name in ROWS:
        assert {NUMBER[one["item"]] for one in shown["items"]} <= set(rows_in(kind))
    with pytest.raises(Told, match="changed"):
        centre.send("s0", shown["nonce"])
    assert len(kind.posts) == since + len(left)
    for format in ("csv", "ndjson"):
        _, parts = centre.export("s0", format)
        lines = b"".join(parts).decode().splitlines()
        assert len(lines) == centre.ledger("s0", 0, 1)["total"] + (format == "csv")


@pytest.mark.parametrize("name", KINDS)
def test_what_is_never_sent_is_in_no_byte(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    before = centre.preview("s0")
    off = ["venue-2", "Arts"]  # by id, and every third place
    centre.choose("s0", {"never_send": off})
    gone = {"venue-2", "venue-4", "venue-10", "venue-16", "venue-22"}
    things = centre.things("s0", "", 0, 100)
    by = {one["item"]: one["by"] for one in things["things"] if not one["on"]}
    assert by == {item: "item" if item == "venue-2" else "category" for item in gone}
    with pytest.raises(Told, match="changed"):
        centre.send("s0", before["nonce"])
    for _ in range(4):
        shown = centre.preview("s0")
        assert shown["kept_back"] == len(gone)
        assert not {one["item"] for one in shown["items"]} & gone
        if not shown["ready"]:
            break
        since = len(kind.town.bodies())
        assert centre.send("s0", shown["nonce"])["state"] == "arrived"
        row = centre.row("s0", centre.ledger("s0", 0, 1)["rows"][0]["id"])
        assert not {one["item"] for one in row["items"]} & gone
        if name == "fpl" and len(kind.town.bodies()) > since:
            # Things of others are in it, too: of hers those that count, and no more.
            hers = {NUMBER[item] for item in HERS}
            named = {NUMBER[one["item"]] for one in shown["items"]}
            assert set(rows_in(kind)) & hers - {NUMBER[item] for item in gone} == named
        kind.town.next_round()
    centre.choose("s0", {"never_send": HERS})
    found = store(centre)
    if name in ("gram", "checked", "fmf"):  # that she is there is all that is in it
        assert centre.preview("s0")["items"] == []
    else:
        assert found["quiet"]["key"] == "quiet.all_off"
        shown = centre.preview("s0")
        assert (shown["ready"], shown["said"]["key"]) == (False, "quiet.all_off")


def test_hiding_is_said_before_it_is_kept_and_each_thing_has_its_strength(place):
    kind, centre = place("uc")
    agreed(centre, kind)
    centre.choose("s0", {"hidden_attributes": [], "strength": 0.4})
    weighed = centre.weigh("s0", {"hidden_attributes": {"add": ["gender"], "drop": []}})
    keys = [one["key"] for one in weighed["said"]]
    assert {"hiding.will", "hiding.cannot"} <= set(keys) or "hiding.first" in keys
    assert "hiding.will" not in [one["key"] for one in centre.weigh("s0", {})["said"]]
    centre.choose("s0", {"hidden_attributes": {"add": ["gender"], "drop": []}})
    assert "strength:gender" not in fields(centre)  # the one number is enough
    centre.choose("s0", {"hidden_attributes": ["gender", "age"]})
    drawn = fields(centre)
    assert drawn["strength:gender"]["value"] == drawn["strength:age"]["value"] == 0.4
    centre.choose("s0", {"strength:gender": 0.9})
    drawn = fields(centre)
    values = [drawn[name]["value"] for name in ("strength", "strength:gender", "strength:age")]
    assert values == [0.4, 0.9, 0.4]
    centre.choose("s0", {"strength": 0.6})
    assert fields(centre)["strength:gender"]["value"] == 0.6
    for wrong in ({"strength:gender": 1}, {"strength:gender": "much"}, {"strength:income": 0.5}):
        with pytest.raises(Told):
            centre.choose("s0", wrong)


@pytest.mark.parametrize("name", KINDS)
def test_what_they_could_learn_is_said_in_words(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    centre.send("s0", centre.preview("s0")["nonce"])
    sent = len(kind.requests)
    centre.learn("s0")
    end = time.monotonic() + 60
    while (found := centre.learnt("s0"))["findings"] is None and not found["error"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert found["error"] is None
    assert found["findings"]
    assert found["done"] == found["total"]
    assert len(kind.requests) == sent


def test_many_windows_at_once(place):
    kind, centre = place("fpl")
    enrolled(centre, kind)

    def window(n):
        for turn in range(6):
            with contextlib.suppress(Told):
                if n % 3 == 0:
                    centre.choose("s0", {"never_send": [f"venue-{2 * turn}"] * (turn % 2)})
                elif n % 3 == 1:
                    centre.send("s0", centre.preview("s0")["nonce"] or "0")
                else:
                    centre.things("s0", "", 0, 5)
                    centre.ledger("s0", 0, 5)

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(window, range(9)))
    assert len(kind.town.bodies()) == 1
    (row,) = [one for one in centre.ledger("s0", 0, 9)["rows"] if one["sha256"]]
    assert row["sha256"] == hashlib.sha256(kind.town.bodies()[0]).hexdigest()


@pytest.mark.parametrize("name", KINDS)
def test_changed_terms_are_a_difference_and_stop_everything(place, name, tmp_path):
    kind, centre = place(name)
    enrolled(centre, kind)
    shown, since = centre.preview("s0"), len(kind.posts)
    terms = kind.town.terms
    if name in (*NOISY_SUMS, "gram", "checked"):
        kind.town.terms = terms_of(name, tmp_path / "other", min_devices=2)
        setting = "link.min_devices"
    else:
        config = replace(terms.algorithm, embedding_size=7)
        kind.town.terms = replace(terms, algorithm=config)
        setting = "algorithm.embedding_size"
    with pytest.raises(Told, match="changed"):
        centre.send("s0", shown["nonce"])
    assert centre.preview("s0")["said"]["key"] == "quiet.terms_changed"
    found = store(centre)
    assert not found["terms"]["agreed"]
    assert setting in [one["setting"] for one in found["terms"]["changes"]]
    assert found["quiet"]["key"] == "quiet.terms_changed"
    assert len(kind.posts) == since
    with pytest.raises(Told, match="terms_other"):
        centre.agree("s0", "0" * 32)
    centre.agree("s0", found["terms"]["digest"])
    assert store(centre)["terms"]["agreed"]


@pytest.mark.parametrize("name", KINDS)
def test_removing_forgetting_and_recommending(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    shown = centre.preview("s0")
    found = centre.recommend("s0", {"never_send": ["Food"]})
    assert 0 < len(found["now"]) <= 10
    assert len(found["after"]) == len(found["now"])
    assert not {one["item"] for one in found["now"]} & set(HERS)
    assert centre.remove("s0", ["venue-0", "venue-2"])["history"]["items"] == 10
    with pytest.raises(Told, match="changed"):
        centre.send("s0", shown["nonce"])
    again = centre.preview("s0")
    assert not {one["item"] for one in again["items"]} & {"venue-0", "venue-2"}
    centre.stop("s0", False)
    assert len(centre.recommend("s0", None)["now"]) == len(found["now"]), "after a stop, too"
    centre.erase("s0", "history")
    assert centre.things("s0", "", 0, 10)["total"] == 0
    assert centre.erase("s0", "everything")["stores"] == []


# --- stop -----------------------------------------------------------------------------------------


async def visits(path, times, each):
    """The ordinary agent on her store, as a service runs it."""
    opened = CohortStore.open(path)
    agent = Agent(opened, plaintext=True)
    try:
        for _ in range(times):
            with contextlib.suppress(SottovoceError):
                await agent.run(once=True)
            each()
    finally:
        await agent.close()
        opened.close()


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_after_a_stop_only_public_documents_are_read_and_then_nothing(
    place, tmp_path, name, by_hand
):
    kind, centre = place(name)
    enrolled(centre, kind)
    path = tmp_path / name.replace(" ", "-")

    def ten_rounds():
        if not by_hand:
            asyncio.run(visits(path, 10, kind.town.next_round))
            return
        for _ in range(10):
            kind.town.next_round()
            with contextlib.suppress(Told):
                assert not centre.preview("s0")["ready"]

    if not by_hand:  # it does send before
        since = len(kind.posts)
        asyncio.run(visits(path, 1, lambda: None))
        assert len(kind.posts) > since
    centre.stop("s0", False)
    before, others = len(kind.server.requests), [len(one.requests) for one in kind.others]
    ten_rounds()
    asked = kind.server.requests[before:]
    assert len(asked) >= 10
    assert [len(one.requests) for one in kind.others] == others
    assert {(one.method, one.body) for one in asked} == {("GET", b"")}
    assert {one.path.split("?")[0].split("/")[2] for one in asked} <= {
        "round", "terms", "catalogue", "model",
    }  # fmt: skip
    centre.stop("s0", True)
    silent = kind.connections, len(kind.requests)
    ten_rounds()
    assert (kind.connections, len(kind.requests)) == silent
    centre.start("s0")
    assert not store(centre)["takes_part"]


# --- data owners ----------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, stack):
    return stack.enter_context(owners_world(tmp_path / "drift", secure=False))


@pytest.fixture
def owners(here, stack, tmp_path):
    """Her centre in a federation of data owners; films 0, 4, 7 and 11 were seen before she chose,
    and nothing of them waits."""
    with UserStore.join(tmp_path / "me", here.invitation()) as made, UserAgent(made) as agent:
        agent.refresh_directory()
        for moment, item in enumerate((0, 4, 7, 11)):
            agent.door.interact(0, item, True, 1_760_000_000 + moment)
    return centre_of(stack, tmp_path / "me")


def does(tmp_path, *items):
    """What she does while the page is open."""
    with UserStore.open(tmp_path / "me") as made:
        for moment, item in enumerate(items):
            UserDoor(made).interact(0, item, bool(moment % 2), 1_770_000_000 + moment)


def posted(here):
    found = [one for one in here.server.requests if one.method == "POST"]
    return found + [one for p in here.owners.values() for one in p.server.requests]


def test_data_owners_are_told_what_was_shown_and_nothing_else(here, owners, tmp_path, monkeypatch):
    read, open_one = [], SessionReceiver.open

    def opened(self, sealed):
        read.append(open_one(self, sealed))
        return read[-1]

    monkeypatch.setattr(SessionReceiver, "open", opened)
    assert fields(owners)["refused_owners"]["kind"] == "owners"
    owners.choose("s0", {"takes_part": True, "never_send": ["film 1"]})
    does(tmp_path, 0, 1, 4, 7, 11)
    shown = owners.preview("s0")
    assert posted(here) == []
    keys = [(one["what"]["key"], one["to"]["key"], one["exact"]) for one in shown["messages"]]
    assert keys == [
        ("preview.enrolment", "reads.orchestrator", True),
        ("preview.interactions", "reads.owner", False),
        ("preview.interactions", "reads.owner", False),
    ]
    assert {one["item"] for one in shown["items"]} == {"film 0", "film 4", "film 7"}
    bodies = [owners.body("s0", at) for at in range(3)]
    assert [hashlib.sha256(one).hexdigest() for one in bodies] == [
        one["sha256"] for one in shown["messages"]
    ]
    assert owners.send("s0", shown["nonce"])["state"] == "arrived"
    enrolment, *_ = [one for one in here.server.requests if one.method == "POST"]
    assert enrolment.body == bodies[0]
    for name, message in zip(("alpha", "beta"), shown["messages"][1:], strict=True):
        assert sum(len(one) for _, one in here.owners[name].bodies) == message["bytes"]
    meant = [json.loads(line) for body in bodies[1:] for line in body.splitlines()]
    assert len(meant) == 4
    assert {(f"film {one.item}", one.kind, one.time) for one in read} == {
        (one["item"], one["says"], one["time"]) for one in meant
    }
    assert "film 1" not in str(bodies)
    rows = owners.ledger("s0", 0, 20)["rows"]
    assert {one["what"]["key"] for one in rows} == {
        "ledger.enrolment", "ledger.introduction", "ledger.interactions",
    }  # fmt: skip
    assert sum(one["bytes"] for one in rows) == sum(len(one.body) for one in posted(here))
    told = next(one for one in rows if one["items"])
    assert "film 1" not in str(owners.row("s0", told["id"])["items"])
    assert not told["bounded"]
    again = owners.preview("s0")
    assert (again["ready"], again["messages"]) == (False, [])
    for format in ("csv", "ndjson"):
        assert b"film 1" not in b"".join(owners.export("s0", format)[1])


def test_what_waits_for_data_owners_can_be_looked_at_beside_an_agent(here, owners, stack, tmp_path):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0, 4)
    sent = owners.preview("s0")  # this page is the agent, and another one looks
    beside = centre_of(stack, tmp_path / "me")
    shown = beside.preview("s0")
    assert shown["said"]["key"] == "busy.agent"
    assert (shown["ready"], shown["nonce"]) == (True, None)
    assert shown["messages"] == sent["messages"]
    bodies = [beside.body("s0", at) for at in range(len(shown["messages"]))]
    assert bodies == [owners.body("s0", at) for at in range(len(bodies))]
    with pytest.raises(Told, match="busy"):
        beside.send("s0", sent["nonce"])
    assert posted(here) == []
    assert owners.send("s0", sent["nonce"])["state"] == "arrived"
    assert beside.preview("s0")["messages"] == []


def test_what_data_owners_mean_for_her_is_weighed_without_odds(here, owners):
    weighed = owners.weigh("s0", {"takes_part": True})
    assert (weighed["odds"], weighed["verdict"]) == (None, "nothing")
    nobody = owners.weigh("s0", {"takes_part": True, "refused_owners": ["alpha", "beta"]})
    assert nobody["objection"]["key"] == "quiet.all_refused"
    with pytest.raises(Told, match="unknown_owner"):
        owners.choose("s0", {"refused_owners": ["gamma"]})
    found = owners.choose("s0", {"takes_part": True, "refused_owners": ["alpha", "beta"]})
    assert found["quiet"]["key"] == "quiet.all_refused"
    assert posted(here) == []


def test_a_refused_owner_and_one_that_is_away(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True, "refused_owners": ["alpha"]})
    does(tmp_path, 0, 4, 7)
    shown = owners.preview("s0")
    assert [one["to"]["values"] for one in shown["messages"][1:]] == [{"name": "beta"}]
    here.owners["beta"].server.__exit__()
    sent = owners.send("s0", shown["nonce"])
    assert (sent["said"]["key"], sent["said"]["values"]) == ("trouble.owner_gone", {"name": "beta"})
    assert here.owners["alpha"].bodies == []
    waits = owners.preview("s0")
    assert [one["item"] for one in waits["items"]] == ["film 4", "film 7"], "nothing is lost"


def test_a_data_owner_that_has_left_meanwhile_gets_nothing(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0, 7)
    before = owners.preview("s0")
    here.show(2, owners=["alpha"])
    with pytest.raises(Told, match="changed"):
        owners.send("s0", before["nonce"])
    shown = owners.preview("s0")
    assert [one["item"] for one in shown["items"]] == ["film 0"]
    assert owners.send("s0", shown["nonce"])["state"] == "arrived"
    assert here.owners["beta"].bodies == []


def test_an_orchestrator_that_is_gone_is_a_sentence(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0)
    shown = owners.preview("s0")
    here.away = True
    with pytest.raises(Told, match="server_gone"):
        owners.preview("s0")
    with pytest.raises(Told, match="server_gone"):
        owners.send("s0", shown["nonce"])
    assert posted(here) == []
    here.away = False
    assert owners.send("s0", shown["nonce"])["state"] == "arrived"


def test_asking_for_recommendations_does_not_tell_that_she_is_there(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True})
    assert owners.recommend("s0", None)["now"] == []
    assert posted(here) == []
    does(tmp_path, 0)
    owners.send("s0", owners.preview("s0")["nonce"])
    assert owners.recommend("s0", None)["now"]
    assert [one["what"]["key"] for one in owners.ledger("s0", 0, 1)["rows"]] == [
        "ledger.recommendation"
    ]
    before = len(posted(here))
    assert owners.recommend("s0", {"takes_part": False})["after"] == []
    owners.stop("s0", False)
    asked = len(posted(here))
    assert asked <= before + 1
    assert owners.recommend("s0", None)["now"] == []
    assert len(posted(here)) == asked


@pytest.mark.parametrize("by_hand", [True, False])
def test_after_a_stop_nobody_is_told_what_she_does(here, owners, tmp_path, by_hand):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0)
    owners.send("s0", owners.preview("s0")["nonce"])

    async def visit():
        with UserStore.open(tmp_path / "me") as made:
            agent = UserAgent(made)
            await agent.run(once=True)
            await agent.close()

    def ten_rounds():
        for item in range(10):
            does(tmp_path, item)
            if not by_hand:
                asyncio.run(visit())
                continue
            with contextlib.suppress(Told):
                assert not owners.preview("s0")["ready"]

    owners.stop("s0", False)
    before, asked = len(posted(here)), len(here.server.requests)
    ten_rounds()
    assert len(posted(here)) == before
    new = here.server.requests[asked:]
    assert {(one.method, one.path) for one in new} == {("GET", "/v1/directory")}
    owners.stop("s0", True)
    silent = here.server.connections, len(here.server.requests)
    ten_rounds()
    assert (here.server.connections, len(here.server.requests)) == silent
    assert len(posted(here)) == before


def test_whoever_leaves_sees_that_it_is_told(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0)
    owners.send("s0", owners.preview("s0")["nonce"])
    does(tmp_path, 1)
    with UserStore.open(tmp_path / "me") as made:
        UserDoor(made).leave(0)
    assert store(owners)["stands"]["key"] == "stands.leaving"
    before = sum(len(one.body) for one in posted(here))
    shown = owners.preview("s0")
    assert shown["items"] == [], "what waited does not leave any more"
    assert [(one["what"]["key"], one["to"]["key"]) for one in shown["messages"]] == [
        ("ledger.departure", "reads.owner"), ("ledger.departure", "reads.orchestrator"),
    ]  # fmt: skip
    assert owners.send("s0", shown["nonce"])["state"] == "arrived"
    left = sum(len(one.body) for one in posted(here)) - before
    assert sum(one["bytes"] for one in shown["messages"]) == left
    assert here.left == [7]
    assert store(owners)["stands"]["key"] == "stands.left_federation"
    assert not owners.preview("s0")["ready"]
    with pytest.raises(Told):
        owners.choose("s0", {"takes_part": True})


def test_owners_who_keep_her_vector_and_add_it_up(stack, tmp_path):
    settings = DRIFTConfig(theta=1, release="aggregated", min_users=5)
    here = stack.enter_context(owners_world(tmp_path / "drift", secure=False, settings=settings))
    with UserStore.join(tmp_path / "me", here.invitation()) as made, UserAgent(made) as agent:
        agent.refresh_directory()
    centre = centre_of(stack, tmp_path / "me")
    centre.choose("s0", {"takes_part": True})
    does(tmp_path, 0)
    assert store(centre)["readers"][-1]["sees"] == {
        "key": "sees.sums_of_people", "values": {"n": 5},
    }  # fmt: skip
    assert centre.send("s0", centre.preview("s0")["nonce"])["state"] == "arrived"
    centre.recommend("s0", None)
    rows = centre.ledger("s0", 0, 20)["rows"]
    assert sum(one["bytes"] for one in rows) == sum(len(one.body) for one in posted(here))


def test_removing_what_waits_for_data_owners(here, owners, tmp_path):
    owners.choose("s0", {"takes_part": True})
    does(tmp_path, 0, 1)
    shown = owners.preview("s0")
    assert owners.remove("s0", ["film 0"])["history"]["items"] == 4
    with pytest.raises(Told, match="changed"):
        owners.send("s0", shown["nonce"])
    assert [one["item"] for one in owners.preview("s0")["items"]] == ["film 1"]
    owners.erase("s0", "history")
    assert not owners.preview("s0")["ready"]
    assert posted(here) == []
    owners.erase("s0", "everything")
    assert not (tmp_path / "me").exists()


# --- trouble --------------------------------------------------------------------------------------


def keeps_everything(centre, kind, call, key):
    """One sentence, nothing sent, nothing lost."""
    before, sent = store(centre), len(kind.posts)
    with pytest.raises(Told) as error:
        call()
    assert error.value.key == key
    assert len(kind.posts) == sent
    assert store(centre) == before


@pytest.mark.parametrize("name", ["fpl", "fmf", "gram"])
def test_a_server_that_is_gone(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    shown = centre.preview("s0")
    kind.server.__exit__()
    keeps_everything(centre, kind, lambda: centre.preview("s0"), "trouble.server_gone")
    keeps_everything(centre, kind, lambda: centre.send("s0", shown["nonce"]), "trouble.server_gone")


def test_a_shuffler_that_is_gone(place):
    kind, centre = place("fmf")
    agreed(centre, kind)
    shown = centre.preview("s0")
    kind.others[0].__exit__()
    with pytest.raises(Told, match="maybe_sent"):  # the server knows that she is there
        centre.send("s0", shown["nonce"])
    assert [one.path for one in kind.posts] == ["/v1/enrol"]
    assert store(centre)["meter"]["spent"] == 0.0
    assert [one["what"]["key"] for one in centre.ledger("s0", 0, 9)["rows"]] == ["ledger.enrolment"]
    again = centre.preview("s0")
    keeps_everything(centre, kind, lambda: centre.send("s0", again["nonce"]), "trouble.server_gone")


def test_an_enrolment_without_an_answer_counts_as_sent(place):
    kind, centre = place("fpl")
    agreed(centre, kind)
    shown = centre.preview("s0")
    kind.town.hook = lambda one: Reply(raw=b"") if one.method == "POST" else None
    with pytest.raises(Told, match="maybe_sent"):
        centre.send("s0", shown["nonce"])
    assert centre.ledger("s0", 0, 9)["total"] == 1
    kind.town.hook = lambda one: None
    assert centre.send("s0", centre.preview("s0")["nonce"])["state"] == "arrived"


def test_a_server_of_another_federation(place, tmp_path):
    kind, centre = place("fpl")
    enrolled(centre, kind)
    kind.town.terms = terms_of("fcf", tmp_path / "x")
    keeps_everything(centre, kind, lambda: centre.preview("s0"), "trouble.untrusted")


def test_an_answer_that_nobody_thought_of_is_a_sentence_without_its_words(place, monkeypatch):
    kind, centre = place("fpl")
    enrolled(centre, kind)

    async def look(self):
        raise KeyError("something of hers")

    monkeypatch.setattr(Agent, "_look", look)
    with pytest.raises(Told) as error:
        centre.preview("s0")
    assert (error.value.key, error.value.values) == ("trouble.untrusted", {})


@pytest.mark.parametrize(
    ("days", "key"), [(-40, "trouble.clock"), (40, "trouble.clock"), (0, "trouble.untrusted")]
)
def test_a_certificate_of_another_time_or_of_somebody_else(stack, tmp_path, days, key):
    init_keys(tmp_path / "keys")
    other = tmp_path / "other"
    made = datetime.now(UTC) + timedelta(days=days)
    init_keys(other, days=30, now=made)
    kind = kind_of("fpl", tmp_path, stack)
    server = stack.enter_context(FakeServer(kind.town.answer, server_context(other, now=made)))
    ca = authority_pem(other if days else tmp_path / "keys")
    path = newcomer(tmp_path / "me", kind.town, server.url)
    with CohortStore.open(path) as mine:
        keep_invitation(mine, replace(kept_invitation(mine), ca=ca))
    centre = Watched(stack.enter_context(Centre([path])))
    with pytest.raises(Told) as error:
        centre.preview("s0")
    assert error.value.key == key
    assert server.requests == []


@pytest.mark.parametrize("name", ["fpl", "fmf"])
def test_a_full_disk(place, name):
    kind, centre = place(name)
    enrolled(centre, kind)
    file = centre._centre._desks["s0"].store.file
    pages = file.pragma("page_count")
    file.pragma("max_page_count", pages)
    before = store(centre)["choice"]
    long = [f"a thing with a long name {n:09}" for n in range(5000)]
    with pytest.raises(Told, match="disk_full"):
        centre.choose("s0", {"never_send": long})
    assert store(centre)["choice"] == before
    file.pragma("max_page_count", 1 << 30)
    assert centre.preview("s0")["ready"]
    assert len(kind.posts) == (name != "fmf")


@pytest.mark.parametrize("wrong", ["another's", "open to others", "none", "nonsense"])
def test_a_key_that_does_not_open_the_store(stack, tmp_path, wrong):
    CohortStore.create(tmp_path / "me", [(0, "me")]).close()
    CohortStore.create(tmp_path / "other", [(0, "other")]).close()
    key, kept = tmp_path / "me/store.key", (tmp_path / "me/store.key").read_bytes()
    if wrong == "another's":
        key.write_bytes((tmp_path / "other/store.key").read_bytes())
    elif wrong == "open to others":
        key.chmod(0o644)
    elif wrong == "none":
        key.unlink()
    else:
        key.write_bytes(b"x\n")
    with pytest.raises(Told, match=r"trouble\.key"):
        Centre([tmp_path / "me"])
    key.unlink(missing_ok=True)
    key.touch(0o600)
    key.write_bytes(kept)
    assert len(centre_of(stack, tmp_path / "me").state()["stores"]) == 1, "nothing was changed"


def test_a_store_of_several_people_is_refused_in_a_sentence(tmp_path):
    CohortStore.create(tmp_path / "many", [(0, "a"), (1, "b")]).close()
    with pytest.raises(SottovoceError, match="2 people; a page is one"):
        Centre([tmp_path / "many"])
    CohortStore.open(tmp_path / "many", agent=True).close()


def test_a_store_that_another_program_lets_go_is_taken_up_without_a_restart(place, tmp_path, stack):
    kind, first = place("fpl")
    enrolled(first, kind)
    second = centre_of(stack, tmp_path / "fpl")
    assert second.preview("s0")["nonce"] is None, "the other program sends"
    with pytest.raises(Told, match="busy"):
        second.send("s0", "0" * 32)
    with pytest.raises(Told, match="in_use"):
        second.erase("s0", "everything")
    second.choose("s0", {"never_send": ["venue-0"]})
    assert store(first)["choice"]["never_send"] == ["venue-0"]
    first._centre.close()
    shown = second.preview("s0")
    assert second.send("s0", shown["nonce"])["state"] == "arrived"
    with pytest.raises(SottovoceError, match="in use"):
        CohortStore.open(tmp_path / "fpl", agent=True)
    third = centre_of(stack, tmp_path / "fpl")
    assert third.preview("s0")["nonce"] is None
    second.erase("s0", "everything")
    assert not (tmp_path / "fpl").exists()


# --- very much of everything ----------------------------------------------------------------------


@pytest.fixture
def long_past(place, tmp_path):
    """10⁵ rows in her ledger, and as many things in her history."""
    kind, centre = place("fpl sum")
    enrolled(centre, kind)
    centre.send("s0", centre.preview("s0")["nonce"])
    with CohortStore.open(tmp_path / "fpl-sum") as made:
        for table in ("rounds", "ledger", "contents"):
            names = [row[1] for row in made.file.rows(f"PRAGMA table_info({table})")]
            new = {"round": "n.value", "message": "NULL", "left_at": "1700000000 + n.value"}
            values = ", ".join(new.get(name, name) for name in names)
            made.file.write(
                "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n "
                f"WHERE value <= {MANY}) INSERT INTO {table} ({', '.join(names)}) "
                f"SELECT {values} FROM {table}, n WHERE round = 0"
            )
        made.add_history(0, [f"x{n:06}" for n in range(MANY)], list(range(MANY)))
    return centre


MANY = 100_000


def seconds(call, *args):
    """Of this thread's work, however busy the machine is; and what came of it."""
    start = time.thread_time()
    found = call(*args)
    return time.thread_time() - start, found


@pytest.mark.slow
def test_a_ledger_of_a_hundred_thousand_rows(long_past):
    inner = long_past._centre
    file = inner._desks["s0"].store.file
    whole, _ = seconds(lambda: [*file.rows("SELECT * FROM ledger")])
    for offset in (0, MANY // 2, MANY - 50):
        took, found = seconds(inner.ledger, "s0", offset, 50)
        assert took < 10 * whole
        assert (found["total"], len(found["rows"])) == (MANY + 3, 50)
        when = [one["when"] for one in found["rows"]]
        assert when == sorted(when, reverse=True)
    assert len(inner.ledger("s0", MANY, 50)["rows"]) == 3
    assert inner.ledger("s0", MANY, 50)["rows"][-1]["when"] == 1_700_000_001
    took, _ = seconds(inner.state)
    assert took < 30 * whole
    _, parts = inner.export("s0", "csv")
    sizes = [(len(part), part.count(b"\n")) for part in parts]
    assert sum(lines for _, lines in sizes) == MANY + 4
    assert max(size for size, _ in sizes) < sum(size for size, _ in sizes) / 5, "in parts"


@pytest.mark.slow
def test_a_history_of_a_hundred_thousand_things(long_past):
    inner = long_past._centre
    first, found = seconds(inner.things, "s0", "", MANY - 10, 100)
    again, _ = seconds(inner.things, "s0", "", 0, 100)
    assert found["total"] == MANY + 12
    assert again < first / 3


def test_what_leaves_while_the_ledger_is_saved_is_in_it_once_or_not(place):
    kind, centre = place("fpl")
    enrolled(centre, kind)
    _, parts = centre.export("s0", "ndjson")
    centre.send("s0", centre.preview("s0")["nonce"])
    names = [json.loads(line)["id"] for line in b"".join(parts).splitlines()]
    assert len(names) == len(set(names))
    assert names[-1] == centre.ledger("s0", 0, 9)["rows"][-1]["id"]
