"""Real disks that are full or may not be written, with a file system of their own (which takes the
rights of root): one sentence, no acknowledgement, and nothing is lost."""

import contextlib
import json
import os
import subprocess

import orchestrator_world
import owner_world
import proxy_world
import pytest
import secure_sum_world
import server_world
from chaos_world import Forked, Nursery
from proxy_world import PATIENT, Link

from sottovoce.cli import call
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.acts import past_acts
from sottovoce.stores.orchestrator_folder import invite
from sottovoce.stores.user import UserStore
from sottovoce.wire.interactions import Identity
from sottovoce.wire.owners import OwnerReceipt, encode_session
from sottovoce.wire.passes import Issuer

pytestmark = pytest.mark.slow


class Disk:
    """A small file system."""

    def __init__(self, place):
        self.place, self._filler = place, place / "filler"

    def fill(self):
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def free(self):
        self._filler.unlink()

    def remount(self, mode):
        subprocess.run(["mount", "-o", f"remount,{mode}", self.place], check=True)

    def content(self):
        return {p: p.read_bytes() for p in sorted(self.place.rglob("*")) if p.is_file()}


@pytest.fixture
def disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", place], capture_output=True
    )
    if os.geteuid() or made.returncode:
        pytest.skip("only root can make a file system, so that a full disk cannot be made")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", place], check=True)


# --- a disk that may not be written ---------------------------------------------------------------


def made_folders(place):
    """A folder of every party."""
    assert call(["device", "init", str(place / "device")]) == 0
    server_world.new_folder(place / "server")
    with proxy_world.proxied(place):
        pass
    secure_sum_world.masker_folder(place / "masker")
    owner_world.World(place)
    orchestrator_world.new_folder(place)
    issuer, identity = Issuer("little-town"), Identity()
    with UserStore.create(
        place / "user", "little-town", issuer.public, "https://127.0.0.1:1", ""
    ) as store:
        store.add_users([(identity, issuer.admit(0, identity.public))], Identity().public)


COMMANDS = [
    ("device", "status", "device"),
    ("device", "consent", "device", "--take-part"),
    ("serve", "device", "device", "--once"),
    ("device", "status", "user"),
    ("device", "consent", "user", "--take-part"),
    ("device", "send", "user"),
    ("serve", "server", "server", "--port", "0"),
    ("serve", "status", "server"),
    ("serve", "shuffler", "proxy", "--port", "0"),
    ("serve", "helper", "masker", "--port", "0"),
    ("serve", "owner", "bakery", "--port", "0", "--users-only"),
    ("serve", "orchestrator", "town", "--port", "0", "--users-only"),
]


def test_a_place_that_may_not_be_written_is_told_in_one_sentence(disk, capfd):
    made_folders(disk.place)
    before = disk.content()
    disk.remount("ro")
    capfd.readouterr()
    for group, name, folder, *options in COMMANDS:
        code = call([group, name, str(disk.place / folder), *options])
        said = capfd.readouterr().err.splitlines()
        assert code, (group, name)
        assert len(said) == 1, said
        assert said[0].startswith("error: "), said
        assert str(disk.place / folder) in said[0], said
    disk.remount("rw")
    assert disk.content() == before
    assert call(["device", "consent", str(disk.place / "device"), "--take-part"]) == 0


# --- a disk that is full --------------------------------------------------------------------------


@contextlib.contextmanager
def server(place):
    folder, fleet = server_world.new_folder(place, min_fraction=1.0), server_world.Fleet()

    def prepare(ask, port):
        with server_world.Client(folder, port) as client:
            fleet.enrol(folder, client)
            client.wait(round=0, state="open")
            views.append(client.model(0))

    views = []
    yield folder, {}, prepare, lambda ask, n: ask("POST", "/v1/reports", fleet.report(n, views[0]))


@contextlib.contextmanager
def proxy(place):
    terms = proxy_world.proxy_terms(minimum=(100, 2))
    with proxy_world.proxied(place, terms=terms) as (there, folder):
        with proxy_world.App(folder, forwarder=False) as app:
            some = [proxy_world.Device(there).enrol(app.ask) for _ in range(3)]

        def prepare(ask, port):
            while ask("POST", "/v1/submissions", b"").status != 400:
                pass

        yield (
            folder,
            {"limits": PATIENT},
            prepare,
            lambda ask, n: ask("POST", "/v1/submissions", some[n].submission(0)),
        )


@contextlib.contextmanager
def masker(place):
    folder = secure_sum_world.masker_folder(place / "masker")
    keepers = [secure_sum_world.SeedKeeper() for _ in range(4)]
    terms = folder.introduction.terms
    asked = [secure_sum_world.question(terms, n, keepers) for n in range(3)]
    bearer = {"authorization": f"Bearer {secure_sum_world.TOKEN}"}
    yield folder, {}, None, lambda ask, n: ask("POST", "/v1/sums", asked[n], bearer)


@contextlib.contextmanager
def owner(place):
    world = owner_world.World(place)
    people = [world.user(n) for n in range(3)]

    def send(ask, n):
        offer, hello = people[n].offer(ask)
        sealed = [people[n].seal_one(0, (41, True), time=5)]
        return ask("POST", "/v1/sessions", encode_session(offer, hello, sealed))

    yield world.folder, {"limits": PATIENT}, None, send


@contextlib.contextmanager
def orchestrator(place):
    folder = orchestrator_world.new_folder(place)
    with folder.store() as store:
        invitations = invite(folder, store, 3, "https://127.0.0.1:1")
    users = [orchestrator_world.User(invitation) for invitation in invitations]
    yield folder, {}, None, lambda ask, n: users[n].enrol(ask)


def the_same_again(party, first, again):
    """What was acknowledged is there, and counts once."""
    if party in ("server", "proxy"):
        return again.error == "replay"
    if party == "owner":
        return OwnerReceipt.decode(again.body, 1).repeated == 1
    return again.body == first.body


@pytest.mark.parametrize("party", [server, proxy, masker, owner, orchestrator])
def test_a_full_disk_is_told_and_nothing_is_lost(disk, tmp_path, party):
    name = party.__name__
    with Nursery(name, tmp_path) as nursery, party(disk.place) as (folder, options, prepare, send):
        with Forked(nursery, folder.path, **options) as process:
            with Link(folder, process.port) as link:
                if prepare is not None:
                    prepare(link.ask, process.port)
                first = send(link.ask, 0)
                assert first.status in (200, 204), first.body
                disk.fill()
                for _ in range(3):
                    full = send(link.ask, 1)
                    assert (full.status, full.error) == (503, "unavailable"), full.body
                    assert full.json()["detail"].count(".") == 0
                assert link.ask("GET", "/health").status == 200
                disk.free()
                told = [json.loads(line) for line in process.log.read_text().splitlines()]
                trouble = [line["detail"] for line in told if line["level"] == "error"]
                assert trouble, "the operator is told, too"
                assert str(folder.path) in trouble[0]
                second = send(link.ask, 1)
                assert second.status in (200, 204), second.body
            process.kill()
        process = Forked(nursery, folder.path, **options)
        with process, Link(folder, process.port) as link:
            for number, before in enumerate((first, second)):
                if name == "masker" and number == 0:
                    continue  # of the last round alone
                assert the_same_again(name, before, send(link.ask, number))
            assert send(link.ask, 2).status in (200, 204)


# --- what an operator does on a full disk ---------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        ("shut-out", 1),
        ("devices", "--label", 1, "library"),
        ("pause",),
        ("target", "--rounds", 77),
        ("invite", "--count", 400, "--server", "https://127.0.0.1:1"),
        ("token", "--rotate"),
        ("token", "--role", "look", "--rotate"),
    ],
)
def test_an_act_on_a_full_disk_is_told_in_one_sentence_and_not_half_done(disk, capfd, act):
    folder = server_world.new_folder(disk.place / "town")
    name, *given = map(str, act)

    def run():
        code = call(["serve", name, str(folder.path), *given])
        return code, capfd.readouterr().err.splitlines()

    def state():
        with contextlib.closing(folder.database()) as store, store.reading() as link:
            devices = operating.list_devices(link, 0, 1000)
            kept = devices, past_acts(link, 0, 9), operating.paused(link), records.position(link)
        keys = {p.name: p.read_bytes() for p in sorted(folder.keys.iterdir())}
        return *kept, keys

    with contextlib.closing(folder.database()) as store:
        server_world.acting(store, folder).invite("https://127.0.0.1:1", 3)
    out = ["--out", str(disk.place.parent / "invitations")] if name == "invite" else []
    given += out
    before = state()
    disk.fill()
    code, said = run()
    assert code, "it cannot be done"
    assert len(said) == 1, said
    assert said[0].startswith("error: "), said
    assert "--help" not in said[0], "there is such an act"
    disk.free()
    assert state() == before
    assert run() == (0, [])
    assert len(state()[1][1]) == 2
