"""A data owner's interface for users: what is taken, what is refused and with which word, and what
its operator sees."""

import asyncio
import json
import secrets
import threading

import pytest
from owner_world import ITEMS, NUMBER, App, World

from sottovoce.errors import (
    DataError,
    KeyTrouble,
    ServiceError,
    StoreError,
    UsageError,
)
from sottovoce.stores.keys import authority_pem
from sottovoce.stores.owner_folder import (
    create_owner_folder,
    keep_admission,
    keep_federation,
    open_owner_folder,
    read_items,
)
from sottovoce.wire.interactions import SEALED_BYTES, Identity, begin
from sottovoce.wire.owners import (
    MOST_SEALED,
    OfferMade,
    OwnerCard,
    OwnerReceipt,
    encode_interactions,
    encode_session,
)
from sottovoce.wire.passes import Issuer, Pass
from sottovoce.wire.silo_files import Admission, FederationFile

A, B, C = 41, 42, 43


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def app(world):
    with App(world.folder) as app:
        yield app


def status(app, world):
    return app.ask("GET", "/v1/status", headers=world.operator).json()


# --- what is taken --------------------------------------------------------------------------------


def test_a_user_agrees_on_a_session_and_sends_what_she_did(world, app):
    eve = world.user()
    got = eve.begin(app.ask, (A, False), (B, True))
    assert (got.sequence, got.taken, got.repeated, got.refused) == (1, 2, 0, ())
    got = eve.send(app.ask, (C, False), (A, True), "end")
    assert (got.sequence, got.taken, got.session) == (4, 3, None)
    asked = app.owner.request(0, -1, flush=True)
    assert asked.users.tolist() == [7]
    assert asked.items.tolist() == [A, B, C]


def test_the_card_says_who_answers(world, app):
    card = OwnerCard.decode(app.ask("GET", "/v1/owner").body)
    assert (card.number, card.name, card.federation) == (NUMBER, "Bakery", "little-town")
    assert card.public == world.folder.application.public
    assert app.ask("GET", "/health").body == b"ok"


def test_what_is_sent_again_in_another_session_counts_once(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False), (B, True))
    offer, hello = eve.offer(app.ask)
    again = [eve.seal_one(0, (A, False), 1000), eve.seal_one(1, (B, True), 1001)]
    fresh = eve.seal_one(2, (C, False), 1002)
    got = app.ask("POST", "/v1/sessions", encode_session(offer, hello, [*again, fresh]))
    receipt = OwnerReceipt.decode(got.body, 3)
    assert (receipt.sequence, receipt.taken, receipt.repeated) == (2, 1, 2)
    assert status(app, world)["messages"] == {"taken": 3, "repeated": 2}


def test_a_newer_session_ends_the_older_one(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False))
    old, sender = eve.session, eve.sender
    eve.begin(app.ask, (B, True))
    sealed = [sender.seal(5, "negative", A, 9999)]
    got = app.ask("POST", "/v1/interactions", encode_interactions(old, sealed))
    assert (got.status, got.error) == (401, "session")


def test_a_stranger_with_her_pass_cannot_push_her_out(world, app):
    eve, stranger = world.user(), world.user()
    eve.begin(app.ask, (A, False))
    stranger.given = eve.given
    offer, hello = stranger.offer(app.ask)
    sealed = stranger.seal((B, True))
    got = app.ask("POST", "/v1/sessions", encode_session(offer, hello, sealed))
    assert (got.status, got.error) == (401, "tag")
    assert eve.send(app.ask, (B, True)).taken == 1


def test_who_leaves_is_forgotten(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False), (B, True), (C, False))
    assert eve.send(app.ask, "leave").taken == 1
    assert app.owner.request(0, -1, flush=True) is None
    assert status(app, world)["held"]["users"] == 0


# --- what is not ----------------------------------------------------------------------------------


def test_messages_are_refused_one_by_one_with_a_word_and_the_others_are_taken(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False))
    sealed = [
        eve.seal_one(1, (B, True), 2000),
        flipped(eve.seal_one(9, (B, True), 5000)),
        eve.seal_one(2, (99, True), 2000),  # nobody's here
        eve.seal_one(3, (C, True), 1999),  # older than the last
        eve.seal_one(4, (C, True), 2000),
    ]
    got = eve.post(app.ask, sealed)
    assert got.refused == ((1, "tag"), (2, "item"), (3, "time"))
    assert got.taken == 2
    replayed = eve.post(app.ask, sealed[:1])
    assert (replayed.taken, replayed.repeated) == (0, 1)
    counted = status(app, world)["messages"]
    assert counted == {"taken": 3, "repeated": 1, "item": 1, "tag": 1, "time": 1}
    too_large = eve.post(app.ask, [eve.seal_one(2**64 - 1, (A, False), 2001)])
    assert too_large.refused == ((0, "sequence"),)
    assert eve.post(app.ask, [eve.seal_one(5, (A, False), 2001)]).taken == 1


def test_what_is_sealed_for_another_owner_or_user_is_not_taken(world, app):
    eve = world.user()
    public = world.folder.application.public
    for user, owner in ((7, NUMBER + 1), (8, NUMBER)):
        got = app.ask("POST", "/v1/offers", eve.given.encode())
        made = OfferMade.decode(got.body)
        sender, hello = begin(user, eve.identity, owner, public, made.public)
        body = encode_session(made.offer, hello, [sender.seal(0, "negative", A, 1)])
        got = app.ask("POST", "/v1/sessions", body)
        assert (got.status, got.error) == (401, "tag")
    assert status(app, world)["held"]["users"] == 0


def flipped(sealed):
    return sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:]


def test_a_user_who_is_all_positive_or_all_negative_does_no_harm(world, app):
    glad, sad = world.user(1), world.user(2)
    assert glad.begin(app.ask, *[(item, True) for item in ITEMS]).taken == len(ITEMS)
    assert sad.begin(app.ask, *[(item, False) for item in ITEMS]).taken == len(ITEMS)
    assert app.owner.request(0, -1, flush=True) is None, "no block has both sides"


def test_an_owner_that_holds_nothing_any_more_goes_on(world, app):
    got = app.ask(
        "POST", "/v1/operator/items", json.dumps({"withdraw": [*ITEMS]}).encode(), world.operator
    )
    assert (got.status, got.json()) == (200, {"items": 0})
    assert world.user().begin(app.ask, (A, False)).refused == ((0, "item"),)
    assert app.owner.request(0, -1, flush=True) is None


def test_every_refusal_has_its_word(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False))
    sealed = secrets.token_bytes(SEALED_BYTES)
    stranger = Issuer("little-town").admit(7, eve.identity.public)
    elsewhere = Issuer("big-town", world.issuer.private_bytes()).admit(7, eve.identity.public)
    stolen = Pass(8, eve.given.public, eve.given.signature)
    sender = eve.sender
    offer, hello = eve.offer(app.ask)
    low = bytes(32)
    for path, body, status, error in [
        ("/v1/offers", b"", 400, "malformed"),
        ("/v1/offers", eve.given.encode()[:-1], 400, "malformed"),
        ("/v1/offers", eve.given.encode() + b"x", 413, "oversized"),
        ("/v1/offers", stranger.encode(), 403, "bad_pass"),
        ("/v1/offers", elsewhere.encode(), 403, "bad_pass"),
        ("/v1/offers", stolen.encode(), 403, "bad_pass"),
        ("/v1/sessions", b"", 400, "malformed"),
        ("/v1/sessions", offer + hello, 400, "malformed"),
        ("/v1/sessions", offer + hello + sealed[1:], 400, "malformed"),
        ("/v1/sessions", bytes(16) + hello + sealed, 401, "session"),
        ("/v1/sessions", offer + low + sealed, 400, "malformed"),
        ("/v1/interactions", b"", 400, "malformed"),
        ("/v1/interactions", eve.session, 400, "malformed"),
        ("/v1/interactions", eve.session + sealed + b"x", 400, "malformed"),
        ("/v1/interactions", bytes(16) + sealed, 401, "session"),
        ("/v1/interactions", eve.session + sealed * (MOST_SEALED + 1), 413, "oversized"),
    ]:
        got = app.ask("POST", path, body)
        assert (got.status, got.error) == (status, error), (path, len(body))
        assert got.json()["detail"]
    assert app.ask("GET", "/v1/offers").status == 405
    assert app.ask("POST", "/v1/nothing").status == 404
    eve.sender = sender
    assert eve.send(app.ask, (B, True)).taken == 1
    counted = app.ask("GET", "/v1/status", headers=world.operator).json()["refused"]
    assert counted == {"bad_pass": 3, "malformed": 9, "oversized": 2, "session": 2}


def test_an_offer_is_good_once(world, app):
    eve = world.user()
    offer, hello = eve.offer(app.ask)
    body = encode_session(offer, hello, eve.seal((A, False)))
    assert app.ask("POST", "/v1/sessions", body).status == 200
    again = app.ask("POST", "/v1/sessions", body)
    assert (again.status, again.error) == (401, "session")


# --- too much at once -----------------------------------------------------------------------------


class Held:
    """The owner's disk, standing still."""

    def __init__(self, app, monkeypatch):
        self.go, self.waits = threading.Event(), threading.Event()
        take_many = app.owner.take_many

        def slow(batches):
            self.waits.set()
            assert self.go.wait(30)
            return take_many(batches)

        monkeypatch.setattr(app.owner, "take_many", slow)


@pytest.mark.parametrize("limits", [{"waiting": 2}, {"in_flight": 3 * (16 + SEALED_BYTES)}])
def test_what_is_too_much_is_told_to_come_back(world, monkeypatch, limits):
    with App(world.folder, limits={**limits, "retry_seconds": 3}) as app:
        people = [world.user(number) for number in range(8)]
        for person in people:
            person.begin(app.ask, (A, False))
        held = Held(app, monkeypatch)

        async def crowd():
            first = asyncio.ensure_future(post(people[0]))
            await asyncio.to_thread(held.waits.wait, 30)
            rest = [asyncio.ensure_future(post(person)) for person in people[1:]]
            busy, waiting = [], {*rest}
            while len(busy) < 5:  # the others are held until then
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                busy += [task.result() for task in done]
            held.go.set()
            return busy, await asyncio.gather(first, *rest)

        async def post(person):
            body = encode_interactions(person.session, person.seal((B, True)))
            return await app.asked("POST", "/v1/interactions", body)

        busy, answers = app.run(crowd())
        assert len(busy) == 5
        assert {(b.status, b.error, b.headers["retry-after"]) for b in busy} == {
            (503, "overload", "3")
        }
        assert sorted(got.status for got in answers) == [200] * 3 + [503] * 5
        assert people[0].send(app.ask, (B, True)).taken == 1, "it answers as before"


def test_one_request_of_a_session_at_a_time(world, app, monkeypatch):
    eve = world.user()
    eve.begin(app.ask, (A, False))
    held = Held(app, monkeypatch)

    async def twice():
        bodies = [encode_interactions(eve.session, eve.seal((B, True))) for _ in range(2)]
        first = asyncio.ensure_future(app.asked("POST", "/v1/interactions", bodies[0]))
        await asyncio.to_thread(held.waits.wait, 30)
        second = await app.asked("POST", "/v1/interactions", bodies[1])
        held.go.set()
        return await first, second

    first, second = app.run(twice())
    assert (first.status, second.status, second.error) == (200, 429, "too_often")


def test_what_is_not_on_the_disk_is_not_acknowledged(world, app, monkeypatch):
    eve = world.user()
    eve.begin(app.ask, (A, False))

    def full(self, *_):
        raise StoreError("there is no space left")

    with monkeypatch.context() as patch:
        patch.setattr(type(app.owner), "take_many", full)
        body = encode_interactions(eve.session, eve.seal((B, True)))
        got = app.ask("POST", "/v1/interactions", body)
        assert (got.status, got.error) == (503, "unavailable")
    assert app.log.lines == [("not stored", {"detail": "there is no space left"})]
    assert app.ask("POST", "/v1/interactions", body).status == 200


# --- the operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/status"),
        ("GET", "/metrics"),
        ("POST", "/v1/operator/items"),
        ("POST", "/v1/operator/forget"),
    ],
)
def test_only_the_operator_may_ask(world, app, method, path):
    for headers in ({}, {"authorization": "Bearer " + "0" * 64}):
        assert app.ask(method, path, b"{}", headers).status == 401


def test_the_operator_changes_items_and_forgets_a_user(world, app):
    eve = world.user()
    eve.begin(app.ask, (A, False), (B, True))

    def change(path, table):
        return app.ask("POST", path, json.dumps(table).encode(), world.operator)

    assert change("/v1/operator/items", {"add": [70, 71]}).json() == {"items": 22}
    assert eve.send(app.ask, (70, True)).taken == 1
    assert change("/v1/operator/items", {"withdraw": [B]}).json() == {"items": 21}
    assert eve.send(app.ask, (B, True)).refused == ((0, "item"),)
    for table in ({"add": "all"}, {"add": [-1]}, {"add": [True]}, {"add": [1.5]}, []):
        assert change("/v1/operator/items", table).status == 400
    assert change("/v1/operator/items", {"withdraw": [5]}).status in (200, 400)
    assert change("/v1/operator/forget", {"user": 7}).status == 204
    assert change("/v1/operator/forget", {"user": "eve"}).status == 400
    assert status(app, world)["held"]["users"] == 0


def test_no_user_and_no_item_in_what_the_operator_or_a_sender_reads(tmp_path):
    user, item, other = 98_765_432, 54_321_987, 54_321_988
    world = World(tmp_path, items=[item])
    with App(world.folder) as app:
        eve = world.user(user)
        eve.begin(app.ask, (item, False), (item, True), (other, True))
        eve.send(app.ask, (item, False), (other, True))
        said = [
            app.ask("GET", path, headers=world.operator).body.decode()
            for path in ("/metrics", "/v1/status", "/v1/owner")
        ]
        said.append(app.ask("POST", "/v1/offers", Pass(user, bytes(32), bytes(64)).encode()).body)
        said += [repr(app.log.lines), repr(app.owner), repr(eve.given), repr(world.folder)]
    assert 'sottovoce_owner_messages_total{outcome="taken"} 3.0' in said[0]
    assert 'sottovoce_owner_messages_total{outcome="item"} 2.0' in said[0]
    for text in map(str, said):
        for secret in (user, item, other):
            assert str(secret) not in text
            assert f"{secret:,}" not in text
            assert f"{secret:e}" not in text


# --- the folder -----------------------------------------------------------------------------------


def test_a_folder_is_made_in_two_steps(tmp_path):
    world = World(tmp_path)
    folder = open_owner_folder(world.folder.path)
    assert folder.application == world.folder.application
    assert folder.application.items == tuple(ITEMS)
    assert folder.application.authority == authority_pem(folder.keys)
    assert folder.identity().public == folder.application.public
    assert folder.path.stat().st_mode & 0o077 == 0
    for name in ("identity.key", "node", "owner.db", "keys/server.key", "keys/ca.key"):
        assert (folder.path / name).stat().st_mode & 0o077 == 0
    owner = folder.owner()
    assert (owner.number, owner.name, owner.items) == (NUMBER, "Bakery", frozenset(ITEMS))
    assert owner.issuer == world.issuer.public
    owner.close()


def test_what_stands_in_the_way_of_a_folder(tmp_path):
    world = World(tmp_path)
    make = (world.federation, "Bakery", "https://localhost:8445", [1])
    with pytest.raises(UsageError, match="already"):
        create_owner_folder(world.folder.path, *make)
    with pytest.raises(UsageError, match="at least one item"):
        create_owner_folder(tmp_path / "empty", *make[:3], [])
    with pytest.raises(UsageError, match="address like"):
        create_owner_folder(tmp_path / "lost", *make[:2], "localhost", [1])
    with pytest.raises(ServiceError, match="holds no data owner"):
        open_owner_folder(tmp_path / "nowhere")
    fresh = create_owner_folder(tmp_path / "fresh", *make)
    with pytest.raises(ServiceError, match="not been admitted yet"):
        fresh.owner()
    for wrong in (
        Admission("big-town", 0, "Bakery", "127.0.0.1:9", ""),
        Admission("little-town", 0, "School", "127.0.0.1:9", ""),
    ):
        with pytest.raises(UsageError, match="the admission is for"):
            keep_admission(fresh, wrong)
    with pytest.raises(UsageError, match="was admitted as number 3"):
        keep_admission(world.folder, Admission("little-town", 4, "Bakery", "127.0.0.1:9", ""))
    (world.folder.path / "identity.key").chmod(0o644)
    with pytest.raises(KeyTrouble, match="chmod 600"):
        world.folder.owner()
    (world.folder.path / "identity.key").chmod(0o600)
    (world.folder.path / "identity.key").write_text(Identity().private_bytes().hex())
    with pytest.raises(KeyTrouble, match="not the key that was applied with"):
        world.folder.owner()


def test_an_admission_that_was_cut_off_is_kept_the_second_time(tmp_path):
    world = World(tmp_path)
    (world.folder.path / "admission.json").unlink()
    with pytest.raises(UsageError, match="belongs to the data owner 3"):
        keep_admission(world.folder, Admission("little-town", 4, "Bakery", "127.0.0.1:9", ""))
    assert keep_admission(world.folder, world.admission)
    moved = Admission("little-town", NUMBER, "Bakery", "127.0.0.1:77", "")
    assert not keep_admission(world.folder, moved)
    assert world.folder.admission() == moved


def test_a_lost_store_is_not_replaced(tmp_path):
    world = World(tmp_path)
    (world.folder.path / "owner.db").unlink()
    for attempt in (world.folder.owner, lambda: keep_admission(world.folder, world.admission)):
        with pytest.raises(ServiceError, match="put it back"):
            attempt()


def test_a_longer_catalogue_of_the_same_federation_is_taken(tmp_path):
    world = World(tmp_path)
    known = world.federation
    longer = FederationFile(
        known.federation, known.issuer, known.settings, (*known.catalogue, "new")
    )
    assert keep_federation(world.folder, longer).federation == longer
    assert open_owner_folder(world.folder.path).federation == longer
    for wrong in (
        FederationFile(known.federation, bytes(32), known.settings, longer.catalogue),
        FederationFile(known.federation, known.issuer, known.settings, ("other", "one")),
    ):
        with pytest.raises(UsageError, match="longer catalogue"):
            keep_federation(world.folder, wrong)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.txt", "bread\ncake\n\nbread\n", [0, 1]),
        ("a.txt", "3\n0\n", [0, 3]),
        ("a.csv", "title,item\nx,tea\ny,bread\n", [0, 2]),
        ("a.csv", '\ufeffitem\n"tea"\n', [2]),
        ("a.txt", "12\n", [3]),  # a name, though it looks like a number
        ("a.txt", "12\n1\n", None),
        ("a.txt", "bread\n1\n", None),
        ("a.txt", "rye\n", None),
        ("a.txt", "4\n", None),
        ("a.txt", "-1\n", None),
        ("a.txt", "\n", None),
        ("a.csv", "name\nbread\n", None),
        ("a.csv", "item\n", None),
        ("a.csv", "", None),
        ("a.txt", None, None),
    ],
)
def test_lists_of_items(tmp_path, name, text, found):
    place = tmp_path / name
    if text is not None:
        place.write_text(text, encoding="utf-8")
    catalogue = ("bread", "cake", "tea", "12")
    if found is not None:
        assert read_items(place, catalogue) == found
        return
    with pytest.raises(DataError) as trouble:
        read_items(place, catalogue)
    assert str(place) in str(trouble.value)
