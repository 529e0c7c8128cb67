"""A user's agent against data owners and an orchestrator that fail in every way."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from fake_server import Reply
from orchestrator_world import OrchestratorProcess
from owner_world import OwnerProcess
from user_world import CATALOGUE, world

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.consent import Choice
from sottovoce.errors import (
    ConsentError,
    KeyTrouble,
    MessageError,
    StoreError,
    Unreachable,
    UsageError,
)
from sottovoce.services.agent.process import Options, serve_devices
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores.orchestrator_folder import admit, create_orchestrator_folder
from sottovoce.stores.owner_folder import create_owner_folder, keep_admission
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.wire.interactions import SEALED_BYTES, Identity
from sottovoce.wire.owners import OfferMade, OwnerReceipt
from sottovoce.wire.passes import PASS_BYTES, Issuer, Pass
from sottovoce.wire.silo_files import FederationFile

SEVEN = 7
"""The number that the orchestrator gives to whoever enrols."""


async def at_once(seconds):
    """A wait that is none."""


@pytest.fixture
def here(tmp_path):
    with world(tmp_path) as found:
        yield found


@pytest.fixture
def phone(here, tmp_path):
    """A store of one who takes part, and her agent."""
    with UserStore.join(tmp_path / "phone", here.invitation()) as store:
        store.file.pragma("synchronous", "off")
        with UserAgent(store, sleep=at_once) as agent:
            agent.refresh_directory()
            agent.door.choose(0, Choice())
            yield agent


def users_at(place):
    return place.owner.counts()["users"]


def sent_bytes(place):
    return sum(len(body) for _, body in place.bodies)


def ledger_bytes(agent, name):
    return sum(r.bytes for r in agent.store.ledger() if r.party == name)


def test_nothing_is_sent_before_she_takes_part(here, tmp_path):
    with (
        UserStore.join(tmp_path / "s", here.invitation()) as store,
        UserAgent(store, sleep=at_once) as agent,
    ):
        agent.refresh_directory()
        agent.door.interact(0, 0, True, 1)
        assert agent.send_all().arrived == 0
        with pytest.raises(ConsentError):
            agent.recommend(0, 3)
        with pytest.raises(ConsentError):
            agent.enrol(0)
        asked = {(r.method, r.path, r.body) for r in here.server.requests}
        assert asked == {("GET", "/v1/directory", b"")}
        assert not any(place.bodies for place in here.owners.values())
        assert store.ledger() == []


def test_each_owner_gets_its_part_and_every_byte_is_on_record(here, phone):
    for moment, item in enumerate((0, 4, 1, 7, 11)):
        phone.door.interact(0, item, bool(moment % 2), moment)
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting, delivery.troubles) == (5, 0, {})
    for name, count in (("alpha", 3), ("beta", 2)):
        place = here.owners[name]
        assert place.owner.counts()["taken"] == count
        assert sent_bytes(place) == ledger_bytes(phone, name)
        rows = [r for r in phone.store.ledger() if r.party == name]
        assert sum(r.interactions for r in rows) == count
        assert {r.epsilon for r in rows} == {float("inf")}
    posted = sum(len(r.body) for r in here.server.requests)
    assert posted == ledger_bytes(phone, "orchestrator")


def test_later_messages_go_in_the_same_session(here, phone):
    phone.door.interact(0, 0, True, 1)
    phone.send_all()
    phone.door.interact(0, 1, True, 2)
    phone.send_all()
    paths = [path for path, _ in here.owners["alpha"].bodies]
    assert paths == ["/v1/offers", "/v1/sessions", "/v1/interactions"]


def test_a_restarted_owner_is_met_with_another_session(here, phone):
    alpha = here.owners["alpha"]
    for moment in range(3):
        phone.door.interact(0, 0, True, moment)
        assert phone.send_all().arrived == 1
        alpha.restart()
    assert alpha.events[-1][1].sequence == 2
    phone.door.interact(0, 0, True, 9)
    assert phone.send_all().waiting == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_answers_double_nothing(here, phone, lost):
    alpha = here.owners["alpha"]
    for moment in range(6):
        phone.door.interact(0, moment % 2, bool(moment % 2), moment)
    alpha.lose_answers = lost
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting, delivery.troubles) == (6, 0, {})
    counts = alpha.owner.counts()
    assert counts["taken"] == 6
    assert counts["repeated"] >= 1
    assert sent_bytes(alpha) == ledger_bytes(phone, "alpha")
    rows = [r for r in phone.store.ledger() if r.party == "alpha"]
    assert sum(r.interactions for r in rows) == 6


def test_an_owner_that_takes_nothing_and_calls_it_old_is_given_up_for_this_time(here, phone):
    alpha = here.owners["alpha"]

    def mad(path, body):
        if path == "/v1/offers":
            return Reply(body=OfferMade(*alpha.owner.offer(Pass.decode(body))).encode())
        sent = (len(body) - 16 - (32 if path == "/v1/sessions" else 0)) // SEALED_BYTES
        return Reply(body=OwnerReceipt(0, 0, sent, (), bytes(16)).encode())

    alpha._answer = mad
    for moment in range(3):
        phone.door.interact(0, 0, True, moment)
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting) == (0, 3)
    assert "takes nothing" in delivery.troubles["alpha"]
    del alpha._answer
    assert phone.send_all().arrived == 3
    assert alpha.owner.counts()["taken"] == 3


def test_a_busy_owner_is_asked_again(here, phone):
    here.owners["alpha"].refuse_first = 2
    phone.door.interact(0, 0, True, 1)
    assert phone.send_all().arrived == 1


def test_what_is_for_an_owner_that_is_away_waits_and_others_get_theirs(here, phone):
    alpha = here.owners["alpha"]
    alpha.refuse_first = 10**6
    phone.door.interact(0, 4, True, 1)
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting) == (1, 1)
    assert "busy" in delivery.troubles["alpha"]
    assert list(delivery.troubles) == ["alpha"]
    alpha.refuse_first = 0
    assert phone.send_all().waiting == 0


def test_the_directory_goes_forward_and_only_by_the_issuers_word(here, phone):
    here.show(3)
    assert phone.refresh_directory()
    assert not phone.refresh_directory()
    assert set(here.server.requests[-1].headers) == {"host", "accept-encoding"}
    here.show(2)
    with pytest.raises(MessageError, match="has seen version 3"):
        phone.refresh_directory()
    here.show(9, issuer=Issuer("films"))
    with pytest.raises(KeyTrouble, match="not signed"):
        phone.refresh_directory()
    # What can be sent is sent with the directory that is believed.
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert delivery.arrived == 1
    assert "not signed" in delivery.troubles["orchestrator"]
    assert phone.store.world.directory.version == 3


@pytest.mark.parametrize("url", ["ftp://nowhere", "http://example.org:80", "https://", "x"])
def test_an_address_that_is_none_holds_nobody_else_up(here, phone, url):
    alpha = here.owners["alpha"]
    entry = alpha.entry
    alpha.entry = lambda *args: replace(entry(*args), url=url)
    here.show(2)
    phone.door.interact(0, 4, True, 1)
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting, list(delivery.troubles)) == (1, 1, ["alpha"])


def test_signed_nonsense_holds_nobody_up(here, phone):
    content = here.signed.partition(b"\n")[2].replace(b'"version":1', b'"version":-1')
    here.signed = here.issuer.sign("directory", content).hex().encode() + b"\n" + content
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert (delivery.arrived, list(delivery.troubles)) == (1, ["orchestrator"])


def test_another_key_in_the_owners_place_gets_nothing_readable(here, phone):
    """Whoever answers at an owner's address without its key learns nothing."""
    from sottovoce.stores.owner import DataOwner

    alpha = here.owners["alpha"]
    alpha.owner.close()
    false = alpha.folder.parent / "false"
    alpha.owner = DataOwner.create(
        false,
        number=0,
        name="alpha",
        federation="films",
        issuer=here.issuer.public,
        settings=phone.store.world.directory.settings,
        items=range(6),
        identity=Identity(),
    )
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert delivery.arrived == 0
    assert users_at(alpha) == 0
    assert delivery.waiting == 1


def test_another_certificate_in_the_owners_place_gets_nothing(here, phone, tmp_path):
    from sottovoce.stores.keys import init_keys

    init_keys(tmp_path / "other")
    here.authority = (tmp_path / "other/ca.crt").read_text()
    here.show(2)
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert delivery.waiting == 1
    assert "nothing was sent" in delivery.troubles["alpha"]
    assert here.owners["alpha"].bodies == []


def test_an_invitation_that_was_used_by_somebody_else_is_said_so(here, phone):
    here.tokens[b"t" * 32] = b"x" * 32
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert "did not accept the invitation" in delivery.troubles["orchestrator"]
    assert delivery.waiting == 1
    with pytest.raises(KeyTrouble):
        phone.enrol(0)


def test_enrolling_again_after_a_lost_answer_gives_the_same_pass(here, phone):
    answer, lost = here.server.answer, []

    def lose_one(request):
        reply = answer(request)
        if request.path == "/v1/enrol" and not lost:
            lost.append(request)
            return replace(reply, raw=b"")
        return reply

    here.server.answer = lose_one
    phone.door.interact(0, 0, True, 1)
    assert phone.send_all().arrived == 1
    assert len({e.public for e in here.enrolments}) == 1
    assert len(here.enrolments) == 2


def test_recommendations_leave_out_what_she_has_seen_and_do_not_tell_it(here, phone):
    phone.door.choose(0, Choice(refused_owners=("beta",)))
    phone.door.interact(0, 9, True, 1)  # beta's alone, so nobody is told
    phone.door.interact(0, 0, True, 1)
    found = phone.recommend(0, 3)
    assert [one.item for one in found] == [1, 2, 3]
    assert [one.name for one in found] == list(CATALOGUE[1:4])
    assert here.asked == [len(CATALOGUE)]
    assert 9 not in {one.item for one in phone.recommend(0, 12)}
    bodies = {len(r.body) for r in here.server.requests if r.path == "/v1/recommend"}
    assert len(bodies) == 1
    phone.door.choose(0, Choice(takes_part=False))
    with pytest.raises(ConsentError):
        phone.recommend(0, 3)


def test_leaving_all_is_finished_when_everybody_was_told(here, phone):
    for item in (0, 9):
        phone.door.interact(0, item, True, item)
    phone.send_all()
    alpha, beta = here.owners["alpha"], here.owners["beta"]
    alpha.refuse_first, here.away = 10**6, True
    delivery = phone.leave(0)
    assert (users_at(alpha), users_at(beta)) == (1, 0)
    assert delivery.waiting == 1
    assert set(delivery.troubles) == {"alpha", "orchestrator"}
    assert phone.store.person(0).departure == "asked"
    alpha.refuse_first, here.away = 0, False
    assert phone.send_all().waiting == 0
    assert users_at(alpha) == 0
    assert here.left == [SEVEN]
    assert phone.store.person(0).departure == "done"


def test_an_owner_that_heard_of_her_departure_needs_no_further_word(here, phone):
    phone.door.interact(0, 0, True, 1)
    phone.send_all()
    alpha = here.owners["alpha"]
    alpha.refuse_first = 10**6
    phone.leave(0)
    alpha.refuse_first = 0
    alpha.owner.request(0, -1, flush=False, departed=[SEVEN])
    delivery = phone.send_all()
    assert (delivery.waiting, delivery.troubles) == (0, {})


def test_an_orchestrator_that_never_answered_is_one_sentence(here, tmp_path):
    here.away = True
    with (
        UserStore.join(tmp_path / "s", here.invitation()) as store,
        UserAgent(store, sleep=at_once) as agent,
    ):
        with pytest.raises(Unreachable, match="busy"):
            agent.refresh_directory()
        with pytest.raises(Unreachable):
            agent.send_all()
        with pytest.raises(StoreError, match="no directory"):
            agent.door.interact(0, 0, True, 1)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"sequence": 5}', b"\xff", b'{"sequence":1e9,"taken":1}']
)
def test_nonsense_from_an_owner_settles_nothing(here, phone, body):
    alpha = here.owners["alpha"]
    answer = alpha.server.answer
    alpha.server.answer = lambda request: replace(answer(request), body=body)
    phone.door.interact(0, 0, True, 1)
    delivery = phone.send_all()
    assert (delivery.arrived, delivery.waiting) == (0, 1)
    assert delivery.troubles["alpha"]
    alpha.server.answer = answer
    assert phone.send_all().waiting == 0
    assert alpha.owner.counts()["taken"] == 1


# --- many users ----------------------------------------------------------------------------------


def crowd(here, path, users, each):
    store = UserStore.create(path, "films", here.issuer.public, here.server.url, here.authority)
    store.file.pragma("synchronous", "off")
    store.add_users(here.people(users), here.users.public)
    store.keep_directory(here.signed)
    agent = UserAgent(store, sleep=at_once)
    with store.file.transaction():
        for user in range(users):
            agent.door.choose(user, Choice())
    said = agent.door.interact_many(
        (user, (7 * moment + 3 * user) % 10, (moment + user) % 3 > 0, moment)
        for moment in range(each)
        for user in range(users)
    )
    return store, agent, said.messages


def test_many_users_of_one_store_at_once_while_answers_are_lost(here, tmp_path):
    store, agent, messages = crowd(here, tmp_path / "s", 30, 8)
    with store, agent:
        for place in here.owners.values():
            place.lose_answers = 5
        delivery = agent.send_all()
        assert (delivery.arrived, delivery.waiting) == (messages, 0)
        counts = [place.owner.counts() for place in here.owners.values()]
        assert sum(c["taken"] for c in counts) == messages
        for name, place in here.owners.items():
            assert sent_bytes(place) == ledger_bytes(agent, name)
        assert all(place.server.connections <= 8 + 5 for place in here.owners.values())


def test_large_outboxes_go_in_bounded_requests(here, tmp_path):
    store, agent, messages = crowd(here, tmp_path / "s", 1, 4500)
    with store, agent:
        assert agent.send_all().arrived == messages
        sizes = [len(b) for path, b in here.owners["alpha"].bodies if path == "/v1/interactions"]
        assert max(sizes) == 16 + 2000 * SEALED_BYTES
        assert here.owners["alpha"].bodies[0][1][:4] == b"SVP1"
        assert len(here.owners["alpha"].bodies[0][1]) == PASS_BYTES


_SENDER = """
import sys
from pathlib import Path
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor

with UserStore.open(Path(sys.argv[1]), agent=True) as store, UserAgent(store) as agent:
    print("ready", flush=True)
    print(agent.send_all().waiting, flush=True)
"""


def test_kill_9_while_sending_loses_and_doubles_nothing(here, tmp_path):
    store, agent, messages = crowd(here, tmp_path / "s", 40, 6)
    with agent:
        pass  # another process sends
    store.close()
    slow = {name: place.server.answer for name, place in here.owners.items()}
    for name, place in here.owners.items():
        place.server.answer = lambda request, name=name: (time.sleep(0.01), slow[name](request))[1]
    kills = 0
    while True:
        command = [sys.executable, "-c", _SENDER, tmp_path / "s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            if kills < 2:
                before = sum(len(place.bodies) for place in here.owners.values())
                while sum(len(p.bodies) for p in here.owners.values()) < before + 25:
                    time.sleep(0.002)
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
                continue
            assert child.stdout.readline() == "0\n"
            break
    counts = [place.owner.counts() for place in here.owners.values()]
    assert sum(c["taken"] for c in counts) == messages
    with UserStore.open(tmp_path / "s", readonly=True) as store:
        for name, place in here.owners.items():
            on_record = sum(r.bytes for r in store.ledger() if r.party == name)
            assert on_record >= sent_bytes(place)


# --- real processes ------------------------------------------------------------------------------


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def federation(path, *, owners=4, items=200, settings=None):
    """A running orchestrator and running data owners, each with a share of the items."""
    catalogue = [f"film {n}" for n in range(items)]
    orchestrator = create_orchestrator_folder(path / "town", catalogue, settings or DRIFTConfig())
    about = FederationFile.read(orchestrator.federation_file)
    folders, ports = [], [free_port() for _ in range(owners)]
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(orchestrator.store()))
        for k, port in enumerate(ports):
            held = list(range(k, items, owners))
            url = f"https://127.0.0.1:{port}"
            folder = create_owner_folder(path / f"owner{k}", about, f"owner{k}", url, held)
            keep_admission(folder, admit(orchestrator, store, folder.application, "127.0.0.1:9"))
            folders.append(folder)
        running = [
            stack.enter_context(OwnerProcess(folder, port=port))
            for folder, port in zip(folders, ports, strict=True)
        ]
        front = stack.enter_context(OrchestratorProcess(orchestrator))
        yield orchestrator, store, front, folders, running, ports


def trial_store(path, orchestrator, store, front, users, each):
    """Users who are all enrolled, with messages that wait."""
    people = [Identity() for _ in range(users)]
    numbers = store.add_users([one.public for one in people])
    issuer, ca = orchestrator.issuer(), (orchestrator.keys / "ca.crt").read_text()
    made = UserStore.create(path, store.federation, issuer.public, front.url, ca)
    passes = [
        (one, issuer.admit(int(number), one.public))
        for one, number in zip(people, numbers, strict=True)
    ]
    made.add_users(passes, orchestrator.users_identity().public)
    agent = UserAgent(made)
    agent.refresh_directory()
    with made.file.transaction():
        for user in made.users:
            agent.door.choose(user, Choice())
    size = len(made.world.directory.catalogue)
    said = agent.door.interact_many(
        (user, (7 * moment + 3 * user) % size, (moment + user) % 3 > 0, moment)
        for moment in range(each)
        for user in made.users
    )
    return made, agent, said.messages


def taken(folders):
    """What the owners have on their disks."""
    found = 0
    for folder in folders:
        with contextlib.closing(folder.owner()) as owner:
            found += owner.counts()["taken"]
    return found


@pytest.mark.slow
def test_real_parties_and_an_owner_that_is_killed_while_users_send(tmp_path):
    with federation(tmp_path) as (orchestrator, store, front, folders, running, ports):
        crowd, agent, messages = trial_store(
            tmp_path / "crowd", orchestrator, store, front, 300, 40
        )
        with crowd, agent:
            killer = threading.Timer(0.5, running[0].kill)
            killer.start()
            delivery = agent.send_all()
            killer.join()
            assert "owner0" in delivery.troubles
            assert delivery.waiting > 0
            with OwnerProcess(folders[0], port=ports[0]) as again:
                delivery = agent.send_all()
                assert (delivery.waiting, delivery.troubles, delivery.refused) == (0, {}, 0)
                again.stop()
        for one in running[1:]:
            one.stop()
        assert taken(folders) == messages


def test_a_service_brings_what_waits_until_nothing_does(here, tmp_path, capsys):
    """`serve device` with a store of data owners' users, which ends when all has arrived."""
    with UserStore.join(tmp_path / "s", here.invitation()) as store, UserAgent(store) as agent:
        agent.refresh_directory()
        door = UserDoor(store)
        door.choose(0, Choice())
        door.interact(0, 4, True, 1)
    found = serve_devices([tmp_path / "s"], Options(until_finished=True, poll=0.01))
    assert [(one.visits, one.counted, one.failures) for one in found] == [(1, 2, 0)]
    assert found[0].bytes_sent > 0
    with UserStore.open(tmp_path / "s") as store:
        assert UserDoor(store).waiting() == 0
    assert "delivered" in capsys.readouterr().err
    with pytest.raises(UsageError, match="has no terms"):
        serve_devices([tmp_path / "s"], Options(once=True, foreseen="0" * 32))
