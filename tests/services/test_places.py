"""Devices that nobody has invited: where the operator has opened places, each shows its work and
gets a number; limits hold whatever is sent, and of addresses nothing is kept."""

import contextlib
import hashlib
import itertools
import json
import secrets
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import Client, ServerProcess, acting, enrolment, new_folder
from talk import until
from test_enrolment import IDENTITY, Door, forged, invited, raw

from sottovoce.errors import ConfigError, UsageError
from sottovoce.parties.places import CALM, DAY, HOUR, MORE_BITS, Arrivals, PlaceRules
from sottovoce.services.kit.connections import Visitor, network_of, networks
from sottovoce.services.server import places as places_module
from sottovoce.stores import operating
from sottovoce.stores import places as stored
from sottovoce.stores import server as records
from sottovoce.stores.database import Database, places
from sottovoce.stores.server_folder import invite
from sottovoce.wire.invitations import Invitation, PlaceRequest, worked
from sottovoce.wire.refusals import Refused

TOWN, BITS = "little-town", 8
HOME = "192.0.2.7"


def request(challenge, key=None, *, bits=BITS, federation=TOWN, **changes):
    """What an honest tab posts, or with some other parts."""
    key = Ed25519PrivateKey.generate() if key is None else key
    work = worked(federation, challenge, raw(key), bits)
    made = PlaceRequest.made(key, federation, challenge, work)
    return json.loads(made.to_bytes()) | changes


class OpenDoor(Door):
    """A server's enrolment with open places, and from where somebody asks."""

    def __init__(self, folder, **rules):
        super().__init__(folder)
        self.rules = PlaceRules(**{"places": 100, "bits": BITS, **rules})

    async def make(self):
        with self.database.writing() as link:
            stored.set_place_rules(link, self.rules)
        return await super().make()

    def tried(self, work):
        try:
            return self.run(work)
        except Refused as error:
            return error

    def challenge(self, host=HOME):
        """What is told to whoever asks for a place, or why not."""
        said = []

        async def send(message):
            said.append(message)

        async def ask():
            await self.places.ask({"headers": [], "client": (host, 1)}, None, send)
            return json.loads(said[1]["body"])

        return self.tried(ask())

    def come(self, body, host=HOME):
        """The number, or the refusal."""
        scope = {"headers": [], "client": (host, 1)}
        found = self.tried(self.places.take(scope, body))
        return found if isinstance(found, Refused) else found[0]

    def visitor(self, host=HOME, key=None):
        told = self.challenge(host)
        if isinstance(told, Refused):
            return told
        return self.come(request(bytes.fromhex(told["challenge"]), key, bits=told["bits"]), host)


@pytest.fixture
def door(tmp_path):
    with OpenDoor(new_folder(tmp_path)) as opened:
        yield opened


def reason(found):
    return found.reason if isinstance(found, Refused) else found


# --- rules ---------------------------------------------------------------------------------------


def test_a_rush_costs_more_up_to_a_bound():
    rules = PlaceRules(places=1, bits=10)
    asked = [rules.bits_after(n) for n in (0, CALM, 2 * CALM - 1, 2 * CALM, 4 * CALM, 10**9)]
    assert asked == [10, 10, 10, 11, 12, 10 + MORE_BITS]
    for wrong in ({"places": -1}, {"per_hour": 0}, {"per_day": 0}, {"bits": 29}, {"bits": -1}):
        with pytest.raises(ConfigError):
            PlaceRules(**wrong)


def test_networks_are_counted_under_keys_that_go_with_the_hour():
    now, drawn = [0.0], itertools.count()
    arrivals = Arrivals(lambda: now[0], lambda size: bytes([next(drawn)]) * size)
    rules = PlaceRules(places=9, per_hour=2, per_day=3)
    arrivals.came("a")
    assert arrivals.wait("a", rules) == 0
    arrivals.came("a")
    assert (arrivals.wait("a", rules), arrivals.wait("b", rules)) == (HOUR, 0)
    now[0] = HOUR
    assert (arrivals.wait("a", rules), arrivals.lately) == (0, 0)
    arrivals.came("a")
    assert arrivals.wait("a", rules) == DAY - HOUR, "the day is full"
    arrivals.went("a")
    assert arrivals.wait("a", rules) == 0
    hour, day = arrivals._spans
    assert "a" not in repr(vars(hour)["_counts"])
    keys = hour._key, day._key
    now[0] = DAY
    assert arrivals.forget() == HOUR, "also if nobody comes"
    assert keys[0] != hour._key
    assert keys[1] != day._key
    assert not hour._counts
    assert not day._counts
    assert "redacted" in repr(arrivals)


# --- who comes in --------------------------------------------------------------------------------


def test_numbers_are_given_in_the_order_of_arrival_and_once_for_a_key(door):
    key = Ed25519PrivateKey.generate()
    first = request(bytes.fromhex(door.challenge()["challenge"]), key)
    assert door.come(first) == 0
    assert door.come(first) == 0, "the answer may have been lost"
    assert door.visitor(key=key) == 0, "one key is one number, however often it works"
    assert door.visitor() == 1
    (invitation,) = invite(door.folder, door.database, "https://127.0.0.1:1")
    assert invitation.number == 2
    assert door.bring(enrolment(invitation, key)) == "duplicate", "nor another by an invitation"
    assert door.visitor() == 3
    with door.database.reading() as link:
        assert stored.count_places(link) == 3
        rows = operating.list_devices(link, 0, 9)["rows"]
    came = {row["number"]: (row["came"], row["state"]) for row in rows}
    assert came[0] == came[1] == came[3] == ("open place", "active")
    assert came[2] == ("invitation", "invited")


def test_a_key_that_an_invitation_enrols_at_the_same_moment_takes_no_place(door, monkeypatch):
    """Another process commits between the look and the insertion."""
    (invitation,) = invited(door, 0)
    key, looked = Ed25519PrivateKey.generate(), []
    assert door.bring(enrolment(invitation, key)) == 0

    def before(link, public):
        looked.append(public)
        return None if len(looked) == 1 else number_of_key(link, public)

    number_of_key = records.number_of_key
    monkeypatch.setattr(records, "number_of_key", before)
    with door.database.writing() as link:
        assert stored.give_place(link, raw(key), 100) == 0
        assert (stored.count_places(link), records.count_keys(link)) == (0, 1)
    assert len(looked) == 2


def test_what_is_not_good_is_refused_and_takes_no_place(door):
    told = door.challenge()
    challenge, key = bytes.fromhex(told["challenge"]), Ed25519PrivateKey.generate()
    good, other = request(challenge, key), Ed25519PrivateKey.generate()
    flipped = challenge[:-1] + bytes([challenge[-1] ^ 1])
    easier = challenge[:8] + b"\0" + challenge[9:]
    for body, why in (
        (request(flipped, key), "late"),
        (request(easier, key, bits=0), "late"),
        (request(secrets.token_bytes(48), key), "late"),
        (good | {"challenge": ""}, "late"),
        (good | {"public_key": raw(other).hex()}, "bad_work"),
        (request(challenge, key, federation="big-town"), "bad_work"),
        (request(challenge, key, signature="00" * 64), "bad_signature"),
        (request(challenge, other) | {"signature": good["signature"]}, "bad_signature"),
        (request(challenge, key, public_key=IDENTITY.hex()), "malformed"),
        (good | {"work": "00"}, "malformed"),
        (good | {"work": 7}, "malformed"),
        (good | {"signature": "zz"}, "malformed"),
        ({k: v for k, v in good.items() if k != "work"}, "malformed"),
    ):
        # Work for another key or federation is good here once in 2⁸ times.
        assert reason(door.come(body)) in (why, "bad_signature" if why == "bad_work" else why)
    # A signature for an invitation is not one for a place, nor the other way round.
    (invitation,) = invite(door.folder, door.database, "https://127.0.0.1:1", [50])
    hers = json.loads(enrolment(invitation, key))
    assert reason(door.come(good | {"signature": hers["signature"]})) == "bad_signature"
    assert door.bring(json.dumps(hers | {"signature": good["signature"]})) == "bad_signature"
    weak = request(challenge, key, public_key=IDENTITY.hex(), signature=forged(b"").hex())
    assert reason(door.come(weak)) == "malformed"
    with door.database.reading() as link:
        assert stored.count_places(link) == 0
        assert records.count_devices(link) == (0, 0)
    assert door.come(good) == 51


def test_a_challenge_is_of_one_federation_and_of_ten_minutes(tmp_path):
    with (
        OpenDoor(new_folder(tmp_path / "one")) as one,
        OpenDoor(new_folder(tmp_path / "two")) as two,
    ):
        foreign = request(bytes.fromhex(two.challenge()["challenge"]))
        assert reason(one.come(foreign)) == "late"
        assert two.come(foreign) == 0
        now = [time.time()]
        one.places._clock = lambda: now[0]
        late = request(bytes.fromhex(one.challenge()["challenge"]))
        one.places._known[1].challenges._clock = lambda: now[0] + places_module.SECONDS + 1
        assert reason(one.come(late)) == "late"


def test_a_network_has_so_many_places_an_hour_and_no_more(tmp_path):
    with OpenDoor(new_folder(tmp_path), per_hour=3) as door:
        ready = [request(bytes.fromhex(door.challenge()["challenge"])) for _ in range(6)]

        async def all_at_once():
            scope = {"headers": [], "client": (HOME, 1)}
            import asyncio

            tries = [door.places.take(scope, body) for body in ready]
            return await asyncio.gather(*tries, return_exceptions=True)

        found = door.run(all_at_once())
        assert sorted(one[0] for one in found if isinstance(one, tuple)) == [0, 1, 2]
        refused = [one for one in found if isinstance(one, Refused)]
        assert {one.reason for one in refused} == {"too_often"}
        assert len(refused) == 3
        assert all(0 < one.retry_seconds <= HOUR for one in refused)
        assert reason(door.challenge()) == "too_often", "and is told so before it works"
        assert door.visitor("192.0.2.8") == 3
        assert [reason(door.visitor(f"2001:db8:0:7{n}::1")) for n in range(4)] == [
            *(4, 5, 6), "too_often",
        ], "a /56 is one network"  # fmt: skip
        assert door.visitor("2001:db8:0:170::1") == 7
        known = next(body for body, one in zip(ready, found, strict=True) if isinstance(one, tuple))
        assert door.come(known) in (0, 1, 2), "whoever has a place is told which"


def test_places_run_out_are_closed_and_opened_again(tmp_path):
    with OpenDoor(new_folder(tmp_path), places=2) as door:
        acts = acting(door.database, door.folder)
        waiting = [request(bytes.fromhex(door.challenge()["challenge"])) for _ in range(4)]
        assert [reason(door.come(body)) for body in waiting[:3]] == [0, 1, "no_place"]
        door.places._known = -9.0, door.places._known[1]
        assert reason(door.challenge()) == "no_place", "nobody works in vain"
        assert door.come(waiting[0]) == 0
        acts.open_places(PlaceRules(places=3, bits=BITS))
        door.places._known = -9.0, door.places._known[1]
        assert door.come(waiting[2]) == 2, "its work is still good"
        acts.shut_out([2])
        assert reason(door.come(waiting[2])) == "shut_out"
        assert reason(door.come(waiting[3])) == "no_place", "one that was shut out gives none back"
        acts.open_places(PlaceRules(places=0, bits=BITS))
        door.places._known = -9.0, door.places._known[1]
        assert reason(door.come(waiting[3])) == reason(door.challenge()) == "no_place"
        with pytest.raises(UsageError, match="so already"):
            acts.open_places(PlaceRules(places=0, bits=BITS))


def test_nobody_comes_where_nothing_was_opened(tmp_path):
    with Door(new_folder(tmp_path)) as shut:
        body = request(secrets.token_bytes(48))
        assert shut.bring(json.dumps(body)) == "no_place"
        with shut.database.reading() as link:
            assert stored.places_table(link) is None


def test_an_operator_may_say_it_again_and_closed_stays_closed(tmp_path, ask):
    folder = new_folder(tmp_path)
    for _ in range(2):
        told = ask("serve", "places", folder.path, "--open", 0)
        assert (told["places"], told["taken"]) == (0, 0)
    assert len(ask("serve", "log", folder.path)["acts"]) == 1
    with ServerProcess(tmp_path, open_places=9) as server, Client(folder, server.port) as client:
        assert client.get("/v1/challenge").error == "no_place", "she has decided before"


def test_a_link_is_an_invitation_for_one_device(door, tmp_path, ask):
    page = "https://shop.example/welcome?lang=it"
    out, more = tmp_path / "links", ("--server", "https://api.shop.example", "--count", 2)
    told = ask("serve", "invite", door.folder.path, "--link", page, "--out", out, *more)
    first, second = map(Path, told["files"])
    assert first.stat().st_mode & 0o777 == 0o600
    text = first.read_text()
    assert text.startswith(f"{page}#sv=")
    invitation = Invitation.from_link(text)
    assert (invitation.server, invitation.number) == ("https://api.shop.example", 0)
    assert invitation.ca.startswith("-----BEGIN CERTIFICATE")
    assert invitation.token not in repr(invitation)
    assert door.bring(enrolment(invitation, Ed25519PrivateKey.generate())) == 0
    assert door.bring(enrolment(invitation, Ed25519PrivateKey.generate())) == "bad_token"
    assert Invitation.from_link(second.read_text()).number == 1
    for wrong in ("", page, f"{page}#sv=", f"{page}#sv=e30", text[:-9], f"{page}#sv=é", "#sv=[]"):
        with pytest.raises(UsageError):
            Invitation.from_link(wrong)
    for wrong in ("http://shop.example/", "shop.example", f"{page}#x", "https://u@shop.example/"):
        ask("serve", "invite", door.folder.path, "--link", wrong, *more, code=2)


def test_a_flood_of_challenges_is_kept_nowhere(door):
    door.challenge()
    before = len(door.places._known[1].challenges._spent)
    asked = [door.challenge()["challenge"] for _ in range(300)]
    assert len(set(asked)) == 300
    assert len(door.places._known[1].challenges._spent) == before == 0
    assert not any(span._counts for span in door.places._arrivals._spans)


# --- from where ----------------------------------------------------------------------------------


class _Sender:
    name, trusted = "127.0.0.1", True


def through_proxy(*told, header="x-forwarded-for", behind=("127.0.0.1", "10.0.0.0/8")):
    visitor = object.__new__(Visitor)
    visitor.sender = _Sender()
    headers = [(header.encode(), one.encode()) for one in told]
    return network_of({"sender": visitor, "headers": headers}, b"x-forwarded-for", networks(behind))


def test_only_the_nearest_trusted_word_counts():
    assert through_proxy("203.0.113.9") == "203.0.113.9"
    assert through_proxy("1.1.1.1, 203.0.113.9") == "203.0.113.9", "what stands before is made up"
    assert through_proxy("1.1.1.1", "203.0.113.9, 10.1.2.3") == "203.0.113.9", "a chain of ours"
    assert through_proxy("[2001:db8:0:7f::1]:443") == through_proxy("2001:db8:0:7e::2")
    assert through_proxy("::ffff:203.0.113.9") == through_proxy("203.0.113.9:5555")
    for junk in ("", "1.1.1.1, unknown", "1.1.1.1, <script>", "10.0.0.1", "a" * 9999):
        assert through_proxy(junk) == "127.0.0.1", "then all of them are one network"
    assert through_proxy("203.0.113.9", header="x-real-ip") == "127.0.0.1"
    forged = {"headers": [(b"x-forwarded-for", b"203.0.113.9")]}
    for sender in ("192.0.2.7", "20010db800000070"):
        scope = forged | {"sender": sender}
        assert network_of(scope, b"x-forwarded-for", networks(["10.0.0.0/8"])) == sender[:14]


CANARY = "203.0.113.77"


def test_a_real_server_takes_visitors_and_keeps_nothing_of_their_addresses(tmp_path, ask):
    folder = new_folder(tmp_path, rounds=1)
    options = {
        "open_places": 5,
        "forwarded": "X-Forwarded-For",
        "limits": {"behind": ["127.0.0.1"]},
    }
    told = {"X-Forwarded-For": CANARY}
    with ServerProcess(folder.path, **options) as server, Client(folder, server.port) as client:
        ask("serve", "places", folder.path, "--per-hour", 2, "--bits", 6)
        until(lambda: client.ask("GET", "/v1/challenge", headers=told).json()["bits"] == 6)

        def visit(headers=told):
            found = client.ask("GET", "/v1/challenge", headers=headers)
            if found.status != 200:
                return found
            assert found.headers["cache-control"] == "no-store"
            table = found.json()
            assert table["federation"] == TOWN
            body = request(bytes.fromhex(table["challenge"]), bits=table["bits"])
            return client.ask("POST", "/v1/enrol", json.dumps(body), headers)

        assert [visit().json() for _ in range(2)] == [{"number": 0}, {"number": 1}]
        full = visit()
        assert (full.status, full.error) == (429, "too_often")
        assert 2 < int(full.headers["retry-after"]) <= HOUR
        assert visit({"X-Forwarded-For": f"{CANARY}, 198.51.100.1"}).json() == {"number": 2}
        places = client.status()["places"]
        assert (places["places"], places["taken"], places["bits"]) == (5, 3, 6)
        client.wait(state="waiting")
        key = Ed25519PrivateKey.generate()
        challenge = client.ask("GET", "/v1/challenge", headers={"X-Forwarded-For": "9.9.9.9"})
        table = challenge.json()
        body = request(bytes.fromhex(table["challenge"]), key, bits=table["bits"])
        assert client.post("/v1/enrol", json.dumps(body)).json() == {"number": 3}
        metrics = client.operator("GET", "/metrics").body.decode()
        assert "sottovoce_open_places 5.0" in metrics
        assert "sottovoce_places_taken 4.0" in metrics
        assert server.stop() == 0
    shown = ask("serve", "devices", folder.path)
    assert [row["came"] for row in shown["rows"]] == ["open place"] * 4
    assert ask("serve", "status", folder.path)["places"]["taken"] == 4
    words = [one["words"] for one in ask("serve", "log", folder.path)["acts"]]
    assert len(words) == 2
    assert all(one.startswith("open places: 5 in all") for one in words)
    spelled = [CANARY.encode(), bytes(map(int, CANARY.split("."))), b"cb00714d", b"CB00714D"]
    spelled += [
        hashlib.sha256(CANARY.encode()).digest(),
        hashlib.sha256(CANARY.encode()).hexdigest().encode(),
    ]
    for place in folder.path.rglob("*"):
        content = place.read_bytes() if place.is_file() else b""
        assert not [one for one in spelled if one in content], place
    # A restart does not open again what an operator has closed.
    ask("serve", "places", folder.path, "--open", 0)
    with ServerProcess(folder.path, **options) as server, Client(folder, server.port) as client:
        assert client.get("/v1/challenge").error == "no_place"
        assert "as decided before" in server.log.read_text()


def test_two_processes_give_every_number_once_and_no_place_too_many(tmp_path, postgres):
    """Eight threads with connections of their own, as two processes have them."""
    url = postgres.fresh("places")
    folder, most = new_folder(tmp_path), 60
    with contextlib.closing(folder.database(url)) as first:
        invite(folder, first, "https://127.0.0.1:1", [0, 1])
        stores = [Database.at(url) for _ in range(2)]
        given, full, turn = [], [], threading.Lock()

        with first.writing() as link:
            stored.set_place_rules(link, PlaceRules(places=most))

        def come(store):
            server = object.__new__(places_module.Places)
            server._database = store
            for _ in range(10):
                try:
                    number = server._give(secrets.token_bytes(32))
                except Refused as error:
                    number = error.reason
                with turn:
                    (full if number == "no_place" else given).append(number)

        threads = [threading.Thread(target=come, args=[stores[n % 2]]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores:
            store.close()
        assert sorted(given) == list(range(2, 2 + most))
        assert len(full) == 80 - most
        with first.reading() as link:
            assert len(link.execute(sa.select(places)).all()) == most


def test_a_challenge_of_one_process_is_good_at_another(tmp_path, postgres):
    url = postgres.fresh("challenges")
    folder = new_folder(tmp_path, rounds=1)
    options = {"database": url, "open_places": 9}
    with (
        ServerProcess(tmp_path, **options) as one,
        ServerProcess(tmp_path, **options) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
    ):
        with contextlib.closing(folder.database(url)) as store:
            acting(store, folder).open_places(PlaceRules(places=9, bits=6))
        for client in (second, first):
            until(lambda at=client: at.get("/v1/challenge").json()["bits"] == 6)
        table = first.get("/v1/challenge").json()
        body = json.dumps(request(bytes.fromhex(table["challenge"]), bits=table["bits"]))
        assert second.post("/v1/enrol", body).json() == {"number": 0}
        assert first.post("/v1/enrol", body).json() == {"number": 0}, "and it is the same device"
