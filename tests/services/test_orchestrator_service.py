"""The orchestrator's interface for users: who is let in, what is answered, what is refused and with
which word; and the same as a process."""

import itertools
import json
import secrets
import signal
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
from orchestrator_world import (
    ITEMS,
    ROOT,
    App,
    OrchestratorProcess,
    User,
    application,
    key_of,
    let_in,
    new_folder,
)
from talk import until

from sottovoce.algorithms.drift.blocks import first_rows
from sottovoce.engines.flower import training as orchestrator_training
from sottovoce.engines.flower.training import SiloTraining, TrainingPlan
from sottovoce.errors import (
    KeyTrouble,
    MessageError,
    ServiceError,
    UsageError,
    VersionMismatch,
)
from sottovoce.rng import Streams
from sottovoce.stores.conductor import write_status
from sottovoce.stores.keys import operator_token
from sottovoce.stores.orchestrator_folder import (
    admit,
    create_orchestrator_folder,
    extend_catalogue,
    invite,
    open_orchestrator_folder,
    remove,
    request_flush,
)
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import FederationFile
from sottovoce.wire.users import (
    LONGEST,
    MOST_ITEMS,
    Enrolled,
    Enrolment,
    Recommended,
    ask,
    encode_count,
    read_question,
)

BEST = "/v1/recommend"


@pytest.fixture
def folder(tmp_path):
    return new_folder(tmp_path)


@pytest.fixture
def app(folder, tmp_path):
    with App(folder) as app:
        let_in(folder, app.store, tmp_path, "alpha", range(6))
        let_in(folder, app.store, tmp_path, "beta", range(4, 9))
        yield app


def best(app, user, n=5, **changes):
    return app.ask("POST", BEST, user.asks("recommend", encode_count(n), **changes))


# --- what is answered -----------------------------------------------------------------------------


def test_a_user_enrols_reads_the_directory_is_recommended_to_and_leaves(app):
    one, two = app.users(2)
    assert (one.given.user, two.given.user) == (0, 1)
    shown = one.directory(app.ask("GET", "/v1/directory").body)
    assert shown.catalogue == ITEMS
    assert [(o.name, o.items) for o in shown.owners] == [
        ("alpha", tuple(range(6))),
        ("beta", tuple(range(4, 9))),
    ]
    found = Recommended.decode(best(app, two, 100).body)
    users = first_rows("users", [1], 4, Streams(ROOT))
    items = first_rows("items", range(9), 4, Streams(ROOT))
    scores = (items @ users[0]).astype(np.float32)
    assert list(found.items) == np.argsort(-scores).tolist(), "what somebody holds, best first"
    assert np.allclose(found.scores, np.sort(scores)[::-1], atol=1e-5)
    assert Recommended.decode(best(app, two, 3).body).items == found.items[:3]

    assert app.ask("POST", "/v1/leave", two.asks("leave")).status == 204
    assert app.store.departed() == [1]
    assert app.store.public(1) is None
    gone = best(app, two)
    assert (gone.status, gone.error) == (401, "unknown_account")
    assert app.ask("POST", "/v1/leave", two.asks("leave")).status == 204, "told once more"
    (three,) = app.users(1)
    assert three.given.user == 2, "a number is not given twice"
    assert best(app, one).status == 200


def test_enrolment_counts_once(app):
    (invitation,) = invite(app.folder, app.store, 1, "https://127.0.0.1:1")
    user = User(invitation)
    assert user.enrol(app.ask).status == 200
    before = user.given
    assert user.enrol(app.ask).status == 200, "the answer may have been lost"
    assert user.given == before
    other = User(invitation).enrol(app.ask)
    assert (other.status, other.error) == (403, "bad_token")
    assert app.ask("POST", "/v1/leave", user.asks("leave")).status == 204
    again = user.enrol(app.ask)
    assert (again.status, again.error) == (403, "bad_token")


def test_the_directory_has_a_tag_and_follows_changes(app, tmp_path):
    (user,) = app.users(1)
    first = app.ask("GET", "/v1/directory")
    again = app.ask("GET", "/v1/directory", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    small = app.ask("GET", "/v1/directory", headers={"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert len(small.body) < len(first.body)
    let_in(app.folder, app.store, tmp_path, "gamma", [9])
    newer = app.ask("GET", "/v1/directory", headers={"If-None-Match": first.headers["etag"]})
    assert newer.status == 200
    before, after = user.directory(first.body), user.directory(newer.body)
    assert after.version > before.version
    assert after.owner("gamma").items == (9,)
    remove(app.store, "alpha")
    last = user.directory(app.ask("GET", "/v1/directory").body)
    assert [owner.number for owner in last.owners] == [1, 2]
    found = Recommended.decode(best(app, user, 100).body)
    assert sorted(found.items) == list(range(4, 10)), "what alpha alone held is nobody's now"


def test_where_nobody_holds_anything_nothing_is_recommended(folder):
    with App(folder) as app:
        (user,) = app.users(1)
        assert Recommended.decode(best(app, user).body).items == ()
        assert user.directory(app.ask("GET", "/v1/directory").body).owners == ()


# --- what is refused ------------------------------------------------------------------------------


def test_every_refusal_has_its_word(app, tmp_path):
    one, two = app.users(2)
    now = time.time()
    count = encode_count(3)
    other = Issuer(one.invitation.federation)
    foreign = other.admit(0, one.identity.public)
    elsewhere = new_folder(tmp_path / "elsewhere")
    flipped = bytearray(one.asks("recommend", count))
    flipped[-33] ^= 1  # how many items are wanted
    promoted = one.asks("recommend", count, identity=two.identity)
    asked = one.asks("recommend", count)
    assert app.ask("POST", BEST, asked).status == 200
    for body, status, error in [
        (asked, 409, "replay"),
        (one.asks("leave"), 401, "bad_mac"),
        (promoted, 401, "bad_mac"),
        (bytes(flipped), 401, "bad_mac"),
        (one.asks("recommend", count, federation="another"), 401, "bad_mac"),
        (one.asks("recommend", count, orchestrator=Identity().public), 401, "bad_mac"),
        (one.asks("recommend", count, given=two.given), 401, "bad_mac"),
        (one.asks("recommend", count, given=foreign), 403, "bad_pass"),
        (
            one.asks(
                "recommend",
                count,
                given=elsewhere.issuer().admit(0, one.identity.public),
                orchestrator=elsewhere.users_identity().public,
            ),
            403,
            "bad_pass",
        ),
        (one.asks("recommend", count, now=now - 310), 410, "late"),
        (one.asks("recommend", count, now=now + 310), 410, "late"),
        (one.asks("recommend", count, now=now - 60), 503, "unavailable"),
        (one.asks("recommend", b""), 400, "malformed"),
        (one.asks("recommend", b"\0\0\0\0"), 400, "malformed"),
        (one.asks("recommend", (MOST_ITEMS + 1).to_bytes(4, "little")), 400, "malformed"),
        (one.asks("recommend", count + b"x"), 400, "malformed"),
        (b"", 400, "malformed"),
        (asked[:100], 400, "malformed"),
        (b"SVX1" + asked[4:], 400, "malformed"),
        (b"SVU2" + asked[4:], 426, "version"),
        (b"x" * (LONGEST + 1), 413, "oversized"),
    ]:
        answer = app.ask("POST", BEST, body)
        assert (answer.status, answer.error) == (status, error), error
    leave = app.ask("POST", "/v1/leave", one.asks("leave", b"more"))
    assert (leave.status, leave.error) == (400, "malformed")
    assert app.store.departed() == []
    stranger = app.folder.issuer().admit(99, one.identity.public)
    answer = best(app, one, given=stranger)
    assert (answer.status, answer.error) == (401, "unknown_account")
    counts = app.refused()
    assert counts["bad_mac"] == 6
    assert counts["late"] == 2
    assert counts["replay"] == 1


def test_bad_enrolments_are_refused(app):
    (invitation,) = invite(app.folder, app.store, 1, "https://127.0.0.1:1")
    good = json.loads(User(invitation).enrolment(key_of(app.ask)))
    for changes, status, error in [
        ({"token": secrets.token_hex(32)}, 403, "bad_token"),
        ({"token": "00"}, 400, "malformed"),
        ({"token": 3}, 400, "malformed"),
        ({"public": "zz"}, 400, "malformed"),
        ({"public": "00" * 32}, 400, "malformed"),
        ({"protocol": 9}, 426, "version"),
        ({"protocol": True}, 400, "malformed"),
    ]:
        answer = app.ask("POST", "/v1/enrol", json.dumps({**good, **changes}).encode())
        assert (answer.status, answer.error) == (status, error), changes
    for body in (b"", b"{", b"[]", b"[" * 1000, b"\xff"):
        assert app.ask("POST", "/v1/enrol", body).error == "malformed"
    assert app.store.n_users == 0
    assert User(invitation).enrol(app.ask).status == 200, "nothing of that used it up"


def test_nobody_asks_too_often(folder):
    now = [1_000_000.0]
    with App(folder, clock=lambda: now[0], per_minute=3) as app:
        one, two = app.users(2)
        for _ in range(3):
            assert best(app, one, now=now[0]).status == 200
        often = best(app, one, now=now[0])
        assert (often.status, often.error) == (429, "too_often")
        assert often.headers["retry-after"]
        assert best(app, two, now=now[0]).status == 200
        now[0] += 61
        assert best(app, one, now=now[0]).status == 200


def test_a_question_is_known_as_long_as_it_could_be_asked_again(folder):
    now = [1_000_000.0]
    with App(folder, clock=lambda: now[0], nonces=3) as app:
        (user,) = app.users(1)
        ahead = user.asks("recommend", encode_count(1), now=now[0] + 299)
        assert app.ask("POST", BEST, ahead).status == 200
        for _ in range(2):
            assert best(app, user, now=now[0]).status == 200
        full = best(app, user, now=now[0])
        assert (full.status, full.error) == (503, "overload")
        now[0] += 400  # the others have gone, and there is room
        assert app.ask("POST", BEST, ahead).error == "replay"
        assert best(app, user, now=now[0]).status == 200
        now[0] += 300
        assert app.ask("POST", BEST, ahead).error == "late"


def test_the_operator_is_known_by_a_token(app):
    (user,) = app.users(1)
    assert best(app, user, given=Issuer("x").admit(0, user.identity.public)).status == 403
    for path in ("/v1/status", "/metrics"):
        assert app.ask("GET", path).status == 401
        assert app.ask("GET", path, headers={"Authorization": "Bearer no"}).status == 401
    token = {"Authorization": f"Bearer {operator_token(app.folder.keys)}"}
    found = app.ask("GET", "/v1/status", headers=token).json()
    assert (found["users"], found["held"], found["round"]) == (1, 9, 0)
    assert [owner["name"] for owner in found["owners"]] == ["alpha", "beta"]
    assert found["refused"] == {"bad_pass": 1}
    text = app.ask("GET", "/metrics", headers=token).body.decode()
    assert "sottovoce_orchestrator_users 1.0" in text
    assert 'sottovoce_orchestrator_refused_total{reason="bad_pass"} 1.0' in text


def test_a_store_that_fails_is_said_and_counted(app):
    (user,) = app.users(1)
    app.store.close()
    answer = best(app, user)
    assert (answer.status, answer.error) == (503, "unavailable")
    (answer,) = [app.ask("POST", "/v1/enrol", user.enrolment(user.orchestrator))]
    assert answer.status == 503


# --- the folder -----------------------------------------------------------------------------------


def test_owners_are_admitted_once_and_may_move(app, tmp_path):
    again = admit(
        app.folder, app.store, application(tmp_path, "alpha", [1], port=7), "example.org:9092"
    )
    assert (again.number, again.gateway) == (0, "example.org:9092")
    (alpha, _) = app.store.owners()
    assert (alpha.items, alpha.entry.url) == ((1,), "https://127.0.0.1:7")
    with pytest.raises(UsageError, match="the catalogue has 10"):
        let_in(app.folder, app.store, tmp_path, "delta", [10])
    with pytest.raises(UsageError, match="--gateway is a place"):
        admit(app.folder, app.store, application(tmp_path, "delta", [1]), "here")
    with pytest.raises(UsageError, match="there are: alpha, beta"):
        remove(app.store, "delta")
    assert remove(app.store, "beta") == 1
    assert let_in(app.folder, app.store, tmp_path, "delta", [1]).number == 2


def test_the_catalogue_only_grows(app):
    assert extend_catalogue(app.folder, app.store, ["film 3", "new one"]) == 1
    assert app.store.catalogue == (*ITEMS, "new one")
    assert FederationFile.read(app.folder.federation_file).catalogue == (*ITEMS, "new one")
    assert extend_catalogue(app.folder, app.store, ITEMS) == 0
    with pytest.raises(UsageError, match="more than once"):
        extend_catalogue(app.folder, app.store, ["a", "a"])


def test_a_flush_behind_the_last_round_is_one_more_round(app):
    request_flush(app.store)
    assert (app.store.flush_requested, app.store.target()) == (True, 0)
    app.store.raise_target(5)
    request_flush(app.store)
    assert app.store.target() == 5, "there are rounds to come"


def test_what_is_missing_or_foreign_is_said(folder, tmp_path):
    with pytest.raises(UsageError, match="holds a federation already"):
        create_orchestrator_folder(folder.path, ["a"], folder.store().settings)
    with pytest.raises(ServiceError, match="holds no orchestrator"):
        open_orchestrator_folder(tmp_path)
    for name in ("issuer.key", "users.key"):
        place = folder.path / name
        kept = place.read_bytes()
        place.write_text("00")
        with pytest.raises(KeyTrouble, match="is no key"):
            open_orchestrator_folder(folder.path)
        place.write_bytes(kept)
        place.chmod(0o644)
        with pytest.raises(KeyTrouble, match="may be read by others"):
            open_orchestrator_folder(folder.path)
        place.chmod(0o600)
    (folder.path / "orchestrator.db").unlink()
    with pytest.raises(ServiceError, match="put it back"):
        open_orchestrator_folder(folder.path).store()
    assert {p.name: p.stat().st_mode & 0o077 for p in folder.path.glob("*.key")} == {
        "issuer.key": 0,
        "users.key": 0,
    }


def test_two_federations_have_two_names(tmp_path):
    one = new_folder(tmp_path, name="town")
    two = new_folder(tmp_path / "more", name="town")
    assert one.federation.startswith("town-")
    assert one.federation != two.federation
    with pytest.raises(UsageError, match="--name must be a name"):
        new_folder(tmp_path / "bad", name="a\nb")
    assert not (tmp_path / "bad" / "town").exists()


# --- rounds ---------------------------------------------------------------------------------------


class SuperLinkOnPaper:
    """What `SiloTraining` asks of a SuperLink, written down."""

    def __init__(self, monkeypatch):
        self.registered, self.runs = [], []
        self.conducted, self.state = False, "running"
        for name, stand_in in {
            "register_nodes": lambda place, keys: self.registered.extend(
                key.read_text().split()[-1] for key in keys
            ),
            "start_run": lambda place, settings: self.runs.append(settings) or len(self.runs),
            "run_state": lambda place, run: self.state,
            "conducted": lambda folder: self.conducted,
        }.items():
            monkeypatch.setattr(orchestrator_training, name, stand_in)


class Log:
    def __init__(self):
        self.lines = []

    def info(self, event, **more):
        self.lines.append((event, more))

    error = warning = info


@pytest.fixture
def paper(monkeypatch):
    return SuperLinkOnPaper(monkeypatch)


def training(app, log=None, **plan):
    return SiloTraining(app.folder, app.store, log or Log(), TrainingPlan(**plan))


def test_owners_are_registered_once_also_over_restarts(app, paper, tmp_path):
    one = training(app)
    one._let_in()
    one._let_in()
    assert paper.registered == ["owner-0", "owner-1"]
    let_in(app.folder, app.store, tmp_path, "gamma", [9])
    one._let_in()
    training(app)._let_in()
    assert paper.registered == ["owner-0", "owner-1", "owner-2"]


def test_a_registration_that_fails_is_tried_again(app, paper, monkeypatch):
    def away(place, keys):
        raise ServiceError("the SuperLink does not answer")

    one = training(app)
    with monkeypatch.context() as patch:
        patch.setattr(orchestrator_training, "register_nodes", away)
        with pytest.raises(ServiceError):
            one._let_in()
    one._let_in()
    assert paper.registered == ["owner-0", "owner-1"]


def test_a_run_goes_on_as_long_as_there_is_something_to_do(app, paper):
    one = training(app, rounds=0, every=2.0, wait_for=2)
    one._go_on()
    assert paper.runs == [], "no round is to be run"
    app.store.raise_target(3)
    one._go_on()
    (settings,) = paper.runs
    wanted = {"kind": "drift", "rounds": 3, "nodes": 2, "every_seconds": 2.0, "hold": True}
    assert wanted.items() <= settings.items()
    one._go_on()
    one._patient_until = 0.0
    one._go_on()
    assert len(paper.runs) == 1, "it is at work, or about to be"
    paper.conducted = True
    one._go_on()
    assert len(paper.runs) == 1


def test_a_run_that_failed_is_followed_by_another_later_and_later(app, paper):
    log = Log()
    one = training(app, log)
    waits = []
    for turn in range(4):
        one._patient_until = 0.0
        one._go_on()
        assert len(paper.runs) == turn + 1
        assert "rounds" not in paper.runs[-1], "without end"
        sentence = f"no room {turn}"
        failed = {"run": str(turn + 1), "state": "failed", "error": sentence}
        write_status(app.folder.path, failed)
        one._patient_until, paper.state = 0.0, "finished:failed"
        one._go_on()
        assert log.lines[-1] == ("run failed", {"detail": sentence})
        waits.append(one._patient_until - time.monotonic())
        one._go_on()
        assert len(paper.runs) == turn + 1, "not at once"
    assert all(b > 1.5 * a for a, b in itertools.pairwise(waits))


def test_without_owners_no_run_is_started(folder, paper):
    with App(folder) as app:
        training(app)._go_on()
    assert paper.runs == []


def test_a_superlink_that_dies_is_told(app, paper):
    told = []
    one = training(app)

    class Dead:
        def require_alive(self):
            raise ServiceError("the SuperLink has ended")

        def stop(self):
            pass

    one._link = Dead()
    one.watch(told.append)
    one._thread.join(10)
    assert [str(error) for error in told] == ["the SuperLink has ended"]
    one.stop()


# --- the wire -------------------------------------------------------------------------------------


def test_answers_are_checked_by_the_user():
    issuer, user, key = Issuer("town"), Identity(), Identity().public
    good = Enrolled(issuer.admit(7, user.public), key)
    found = Enrolled.decode(good.encode(), "town", issuer.public, user.public)
    assert (found.given.user, found.orchestrator) == (7, key)
    with pytest.raises(KeyTrouble, match="another key"):
        Enrolled.decode(good.encode(), "town", issuer.public, Identity().public)
    with pytest.raises(KeyTrouble, match="not signed"):
        Enrolled.decode(good.encode(), "other", issuer.public, user.public)
    with pytest.raises(KeyTrouble, match="not signed"):
        Enrolled.decode(good.encode(), "town", Issuer("town").public, user.public)
    for bad in (
        b'{"items":[1],"scores":[]}',
        b'{"items":[1,1],"scores":[0.5,0.5]}',
        b'{"items":[-1],"scores":[0.5]}',
        b'{"items":["1"],"scores":[0.5]}',
        b'{"items":[1],"scores":["x"]}',
        b'{"items":[1],"scores":[NaN]}',
        b'{"items":[1],"scores":[1e999]}',
        b'{"items":[1]}',
        b"null",
    ):
        with pytest.raises(MessageError):
            Recommended.decode(bad)
    assert Recommended.decode(Recommended((), ()).encode()).items == ()
    assert Recommended.decode(Recommended((3, 1), (2.0, -1.0)).encode()).scores == (2.0, -1.0)
    with pytest.raises(MessageError):
        encode_count(0)
    with pytest.raises(VersionMismatch):
        Enrolment.decode(
            Enrolment(bytes(32), bytes(32), bytes(32)).encode().replace(b": 2,", b": 3,")
        )


def test_nothing_private_is_in_a_repr():
    issuer, identity = Issuer("town"), Identity()
    given, orchestrator = issuer.admit(7, identity.public), Identity().public
    body = ask("recommend", encode_count(3), given, identity, "town", orchestrator, 0.0)
    question = read_question(body)
    for thing in (question, Enrolled(given, orchestrator), Recommended((7,), (1.0,))):
        assert "redacted" in repr(thing)
        assert "7" not in repr(thing)


# --- as a process ---------------------------------------------------------------------------------


def test_the_users_front_as_a_process(tmp_path):
    folder = new_folder(tmp_path)
    store = folder.store()
    let_in(folder, store, tmp_path, "alpha", range(6))
    some = [User(i) for i in invite(folder, store, 2, "https://127.0.0.1:1")]
    with OrchestratorProcess(folder) as process, closing(process.client()) as client:
        for user in some:
            assert user.enrol(client.ask).status == 200
        one, two = some
        with pytest.raises(ServiceError, match="another process"), folder.locked():
            pass
        shown = client.get("/v1/directory")
        assert one.directory(shown.body).owner("alpha").items == tuple(range(6))
        assert client.get("/v1/directory", If_None_Match=shown.headers["etag"]).status == 304
        asked = one.asks("recommend", encode_count(3))
        assert len(Recommended.decode(client.post(BEST, asked).body).items) == 3
        assert client.post(BEST, asked).error == "replay"
        assert client.post(BEST, one.asks("leave")).error == "bad_mac"
        old = one.asks("recommend", encode_count(3), now=time.time() - 400)
        assert client.post(BEST, old).error == "late"
        foreign = Issuer(folder.federation).admit(0, one.identity.public)
        assert (
            client.post(BEST, one.asks("recommend", encode_count(3), given=foreign)).status == 403
        )
        # An owner that is admitted while it runs is in the directory soon.
        let_in(folder, store, tmp_path, "beta", [9])
        until(lambda: len(two.directory(client.get("/v1/directory").body).owners) >= 2)
        assert client.post("/v1/leave", two.asks("leave")).status == 204
        process.kill()

    # What was acknowledged is there after a crash; what was refused comes with the next stop.
    assert (store.n_users, store.departed()) == (1, [1])
    time.sleep(1.0)  # questions say when they were asked to the second
    with OrchestratorProcess(folder) as process, closing(process.client()) as client:
        assert client.post(BEST, asked).error == "unavailable", "it may have been answered before"
        assert client.post(BEST, two.asks("recommend", encode_count(1))).status == 401
        assert client.post(BEST, one.asks("recommend", encode_count(1))).status == 200
        process.process.send_signal(signal.SIGHUP)
        assert client.get("/health").status == 200
        client.close()
        assert process.stop() == 0
        said = process.log.read_text()
    assert store.refused()["unknown_account"] == 1
    assert "certificate renewed" in said
    assert not folder.ready_file.exists()
    store.close()
    # No number of a user, no key and no address is in the log.
    events = [json.loads(line) for line in said.splitlines()]
    assert {event["event"] for event in events} <= {"listening", "certificate renewed", "stopped"}
    with sqlite3.connect(folder.path / "orchestrator.db") as link:
        assert link.execute("SELECT count(*) FROM invitations").fetchone() == (1,)
