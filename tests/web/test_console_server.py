"""The console without a browser: who comes in, what each role may do, what is done once, and what
is in no answer."""

import base64
import contextlib
import http.server
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import zipfile
from io import BytesIO
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from console_world import ConsoleServer, Crowd, Seat, log_of, offer, signed, why
from postgres_world import postgres  # noqa: F401
from server_world import new_folder
from talk import until

from sottovoce.cli import call
from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError
from sottovoce.services.server.process import RunningServer
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.acts import Actor, Acts, account_name
from sottovoce.stores.database import (
    Database,
    batch_parts,
    batches,
    devices,
    rounds,
    submissions,
    summed_seeds,
    sums,
    unsummed,
)
from sottovoce.stores.keys import TOKENS, ReportKeys, RoleTokens, proof_by, role_token
from sottovoce.stores.server_folder import open_folder
from sottovoce.web.console import CALLS, Console, ConsoleViews
from sottovoce.web.entrance import SESSION_SECONDS, Entrance, Guest
from sottovoce.web.process import ASKS, SERVES, ask_for_link

READS = {
    "/api/state": "",
    "/api/rounds": "",
    "/api/missing": "?round=1&attempt=0",
    "/api/devices": "?which=all&query=",
    "/api/versions": "",
    "/api/terms": "",
    "/api/health": "",
    "/api/storage": "",
    "/api/acts": "",
}
ACTS = {
    "/api/invite": {"count": 2, "server": "https://town.example:8443", "label": "lab"},
    "/api/shut_out": {"numbers": [1]},
    "/api/readmit": {"numbers": [1]},
    "/api/label": {"number": 2, "text": "front desk"},
    "/api/pause": {"why": "new disk"},
    "/api/go_on": {},
    "/api/target": {"rounds": 50},
    "/api/publish": {"version": 1, "seen": 2},
    "/api/rotate": {"what": "look"},
    "/api/backup": {"place": "/nowhere/at/all"},
    "/api/propose": {"items": "item,title\nnew,New\n"},
    "/api/withdraw": {},
}


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A federation of eight after two rounds, with two versions of its model; in the second one
    device was missing."""
    folder = new_folder(tmp_path_factory.mktemp("console") / "town", rounds=6)
    with ConsoleServer(folder) as server:
        with server.client() as client:
            crowd = Crowd(users=8)
            crowd.enrol(folder, client)
            for round in range(2):
                client.wait(state="open", round=round)
                offer(folder, round + 1)
                assert set(crowd.run_round(client)) == {204}
            client.wait(state="open", round=2)
        forget(folder, 1, 7)
        server.crowd = crowd
        yield server


def forget(folder, round, number):
    """As if this device had not reported."""
    database = folder.database()
    with database.writing() as link:
        missing = records.packed(np.array([number]))
        here = rounds.c.round == round
        link.execute(rounds.update().where(here).values(missing=missing, reported=7))
    database.close()


@pytest.fixture
def anna(town):
    return town.come_in()


@pytest.fixture
def bruno(town):
    return town.come_in("look", "bruno")


def changed(town):
    """All that an act could change, without what goes on by itself."""
    database = town.folder.database()
    try:
        with database.reading() as link:
            return (
                operating.paused(link),
                records.shut_numbers(link),
                records.position(link).target,
                records.position(link).published,
                operating.list_devices(link, 0, 1)["total"],
                [role_token(town.folder.keys, role).read_text() for role in ("act", "look")],
                len(log_of(town.folder)),
            )
    finally:
        database.close()


def test_every_call_is_in_these_tests():
    assert {one.path for one in CALLS if one.method == "GET"} == set(READS)
    assert {one.path for one in CALLS if one.method == "POST"} == set(ACTS)
    assert all(one.role == "act" for one in CALLS if one.method == "POST")


# --- the way in -----------------------------------------------------------------------------------


def test_the_command_prints_a_link_that_works_once(town, capsys):
    assert call(["console", str(town.path), "--name", "carla", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["role"] == "act"
    seat = Seat(urlsplit(town.console).port).enter(told["url"])
    assert seat.look("state")["session"]["name"] == "carla"
    parts = urlsplit(told["url"])
    again = seat.ask("GET", f"{parts.path}?{parts.query}", cookie="")
    assert again.status == 403
    assert b"This link was used, or is too old" in again.body
    assert not again["set-cookie"]


def test_without_a_console_or_a_server_there_is_one_sentence(tmp_path):
    folder = new_folder(tmp_path / "town")
    with pytest.raises(UsageError, match="no server runs from"):
        ask_for_link(folder, "act", "anna")
    with ConsoleServer(folder, "--no-console") as server:
        assert "console" not in server.ready
        with pytest.raises(UsageError, match="--no-console"):
            ask_for_link(folder, "act", "anna")
    assert call(["console", str(folder.path), "--role", "owner"]) == 2


def test_a_link_needs_the_token_of_its_role(town):
    tokens = {role: role_token(town.folder.keys, role).read_bytes().strip() for role in TOKENS}
    port, nonce = urlsplit(town.console).port, "0" * 64

    def post(content, **headers):
        return httpx2.post(f"{town.console}/link", json=content, headers=headers)

    def ask(role, token, name="anna", **headers):
        theirs = post({"role": "act", "nonce": nonce}).json()["nonce"]
        proof = proof_by(token, ASKS, port, role, name, nonce, theirs)
        return post({"role": role, "nonce": nonce, "name": name, "proof": proof}, **headers)

    for role, token in tokens.items():
        met = post({"role": role, "nonce": nonce}).json()
        assert met["proof"] == proof_by(token, SERVES, port, role, nonce, met["nonce"])
        assert set(ask(role, token).json()) == {"key"}
    other = "act", nonce, met["nonce"]
    for role, token in (("act", tokens["look"]), ("look", tokens["act"]), ("act", b"x")):
        assert ask(role, token).status_code == 401
    for said in ((SERVES, port, *other), (ASKS, port + 1, "act", "anna", nonce, met["nonce"]),
                 (ASKS, port, "act", "bruno", nonce, met["nonce"]),
                 (ASKS, port, "act", "anna", nonce, nonce)):  # fmt: skip
        proof = proof_by(tokens["act"], *said)
        content = {"role": "act", "nonce": nonce, "name": "anna", "proof": proof}
        assert post(content).status_code == 401, said
    for role, name in (("owner", "anna"), (None, "anna"), ("act", ""), ("act", "x" * 99),
                       ("act", 7), ("act", "two\nlines")):  # fmt: skip
        assert ask(role, tokens["act"], name).status_code == 400
    for strange in ("", "0" * 63, "0" * 65, "G" * 64, 7, None):
        assert post({"role": "act", "nonce": strange}).status_code == 400
    for strange in ({"origin": town.console}, {"origin": "http://evil.example"},
                    {"host": "evil.example"}):  # fmt: skip
        assert ask("act", tokens["act"], **strange).status_code in (403, 421)
    much = httpx2.post(f"{town.console}/link", content=b"[" * 5000)
    assert much.status_code == 413, "nobody's long words are read"


class Thief(http.server.BaseHTTPRequestHandler):
    """Listens where a server has listened."""

    heard, answer = [], b""

    def do_POST(self):
        length = int(self.headers.get("content-length", "0"))
        self.heard.append(str(self.headers).encode() + self.rfile.read(length))
        self.send_response(200)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *words):
        pass


def test_who_listens_where_a_killed_server_did_learns_nothing(tmp_path):
    folder = new_folder(tmp_path / "town")
    with ConsoleServer(folder) as server:
        port = urlsplit(server.console).port
        genuine = httpx2.post(f"{server.console}/link", json={"role": "act", "nonce": "0" * 64})
        os.kill(server.ready["pid"], signal.SIGKILL)
        server.process.wait(10)
    place = folder.path / "server.json"
    table = json.loads(place.read_text())
    place.write_text(json.dumps(table | {"pid": os.getpid()}))  # the number is another's by now
    token = (folder.keys / "operator.token").read_text().strip()
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Thief) as thief:
        threading.Thread(target=thief.serve_forever, daemon=True).start()
        try:
            for answer, error in (
                (b'{"key": "x", "url": "http://127.0.0.1:1/open?key=x"}', Unreachable),
                (genuine.content, KeyTrouble),
                (b'{"nonce": "0", "proof": "\xc3\xa9"}', KeyTrouble),
                (b"[" * 50_000, Unreachable),
                (b" " * 70_000, Unreachable),
            ):
                Thief.heard, Thief.answer = [], answer
                with pytest.raises(error) as told:
                    ask_for_link(folder, "act", "anna")
                assert len(Thief.heard) == 1, "it is asked who it is, and nothing more"
                assert token.encode() not in Thief.heard[0]
                assert b"anna" not in Thief.heard[0]
                assert token not in str(told.value)
        finally:
            thief.shutdown()


def test_several_come_in_and_a_new_link_ends_nobody(town):
    seats = [town.come_in("act", f"anna-{n}") for n in range(3)]
    for n, seat in enumerate(seats):
        assert seat.look("state")["session"]["name"] == f"anna-{n}"
    for seat, other in itertools.pairwise(seats):  # a token is of no use to another
        other_cookie = seat.post("/api/go_on", {"key": "k"}, cookie=other.cookie)
        assert other_cookie.status == 403


def test_sessions_and_links_are_bounded_and_viewers_push_no_operator_out():
    clock = [0.0]
    entrance = Entrance(lambda: clock[0], most=3)
    act, look = Guest("act", "anna"), Guest("look", "bruno")
    first = entrance.open(entrance.fresh_key(act), 1)
    for _ in range(10):
        assert entrance.open(entrance.fresh_key(look), 1)
    assert entrance.session([first.cookie], 1) is first
    assert entrance.session([first.cookie], 2) is None, "another user of this machine"
    assert entrance.session([first.cookie], None) is None
    keys = [entrance.fresh_key(act) for _ in range(5)]
    assert [entrance.open(key) is not None for key in keys] == [False, False, True, True, True]
    assert entrance.session([first.cookie], 1) is None, "the oldest has made way"
    clock[0] += SESSION_SECONDS + 1
    assert entrance.open(entrance.fresh_key(act)) is not None


# --- roles, tokens, origins -----------------------------------------------------------------------


def test_who_may_look_sees_everything_and_changes_nothing(town, bruno):
    before = changed(town)
    assert bruno.look("state")["session"]["role"] == "look"
    for path, query in READS.items():
        assert bruno.get(path + query).status == 200, path
    for path, body in ACTS.items():
        answer = bruno.post(path, {**body, "key": "bruno"})
        assert (answer.status, why(answer)) == (403, "You may look, and not act; nothing was done.")
    assert changed(town) == before


def test_without_session_token_or_from_elsewhere_nothing_is_answered_or_done(town, anna):
    before = changed(town)
    for path, query in READS.items():
        assert anna.get(path + query, cookie="").status == 401
        assert anna.get(path + query, host="evil.example").status == 421
        assert anna.get(path + query, {"Origin": "http://evil.example"}).status == 403
        assert anna.get(path + query, {"Sec-Fetch-Site": "cross-site"}).status == 403
    for path, body in ACTS.items():
        body = {**body, "key": "stranger"}
        assert anna.post(path, body, cookie="").status == 401
        assert anna.post(path, body, host="evil.example").status == 421
        for headers, status in (
            ({"Origin": "http://evil.example"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"X-Sottovoce-Token": None}, 403),
            ({"X-Sottovoce-Token": "0" * 64}, 403),
            ({"Content-Type": "text/plain"}, 415),
        ):
            assert anna.post(path, body, headers).status == status, (path, headers)
        assert anna.get(path).status == 405
    assert changed(town) == before


def test_strange_arguments_do_nothing(town, anna):
    before = changed(town)
    for path, bodies in {
        "shut_out": [{"numbers": []}, {"numbers": [-1]}, {"numbers": ["1"]}, {"numbers": [True]},
                     {"numbers": 1}, {"numbers": [2**40]}, {"numbers": list(range(10_001))}, {}],
        "target": [{"rounds": 0}, {"rounds": "9"}, {"rounds": 1.5}, {"rounds": 2**40}],
        "invite": [{"count": 0, "server": "https://a.example"}, {"count": 10**6, "server": "https://a.example"},
                   {"count": 1, "server": "no address"}, {"count": 1, "server": "https://u:p@a.example"}],
        "label": [{"number": 1, "text": "two\nlines"}, {"number": 1, "text": "x" * 500}],
        "pause": [{"why": 1}, {"why": "x" * 500}, {"more": 1}],
        "publish": [{"version": 77, "seen": 2}, {"version": None, "seen": 2}, {"version": 1}],
        "backup": [{"place": "relative/path"}, {"place": str(town.path / "inside")},
                   {"place": "/"}, {"place": "/tmp/a\0b"}, {"place": "/tmp/" + "x" * 300},
                   {"place": "/tmp" + "/x" * 3000}, {"place": "/dev/null/x"}],
        "rotate": [{"what": "all"}, {"what": "report"}],
        "propose": [{"items": 7}, {}],
    }.items():  # fmt: skip
        for body in bodies:
            assert anna.act(path, **body).status in (400, 413), (path, body)
    assert anna.post("/api/pause", {"why": ""}).status == 400, "without a key"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is not read to its end
        assert anna.act("propose", items="x" * (1 << 20)).status == 413
    assert changed(town) == before


# --- acts -----------------------------------------------------------------------------------------


def test_acts_are_done_once_for_each_key_and_are_in_the_log(town, anna):
    for name, body, again in (
        ("pause", {"why": "new disk"}, {"why": "other words"}),
        ("go_on", {}, {}),
        ("shut_out", {"numbers": [3]}, {"numbers": [3]}),
        ("readmit", {"numbers": [3]}, {"numbers": [3]}),
        ("label", {"number": 4, "text": "cellar"}, {"number": 4, "text": "cellar"}),
        ("publish", {"version": 1, "seen": 2}, {"version": 1, "seen": 2}),
        ("publish", {"version": 2, "seen": 1}, {"version": 2, "seen": 1}),
        ("rotate", {"what": "look"}, {"what": "look"}),
    ):
        key, before = secrets.token_hex(8), len(log_of(town.folder))
        first = anna.act(name, key, **body)
        assert first.status == 200, first
        second = anna.act(name, key, **again)
        assert (second.status, second.json) == (200, first.json)
        lines = log_of(town.folder)[before:]
        assert [(one["who"], one["how"]) for one in lines] == [(signed("anna"), "console")], name
    found = anna.look("devices?which=all&query=cellar")
    assert [(row["number"], row["label"]) for row in found["rows"]] == [(4, "cellar")]
    assert anna.look("acts?limit=1")["rows"][0]["what"] == "token"


def test_the_log_has_the_account_beside_a_name_that_anybody_can_give(town):
    mine = account_name(os.geteuid())
    for name, who in (
        ("x" * 64, signed("x" * 64)),
        (mine, mine),
        ("y (uid x)", signed("y (uid x)")),
    ):
        seat = town.come_in("act", name)
        assert seat.act("pause", why="").status == 200
        assert seat.act("go_on").status == 200
        assert log_of(town.folder)[-1]["who"] == who
    assert Actor.at_console("anna", None).who == "anna (uid unknown)"
    assert Actor.at_console("anna", 4_000_000_000).who == "anna (uid account 4000000000)"


def test_an_act_on_a_round_that_has_just_closed_is_one_sentence(town, anna):
    """The page still shows an older round: the target it asks for is behind, the round whose
    absentees it wants is open again, and what is paused between rounds stays paused."""
    state = anna.look("state")
    low = anna.act("target", rounds=max(1, state["target"] - 1))
    assert (low.status, "it can only be raised" in why(low)) == (400, True)
    open_one = anna.get(f"/api/missing?round={state['round']}&attempt=0")
    assert (open_one.status, "is not over" in why(open_one)) == (400, True)
    assert anna.look("missing?round=1&attempt=0") == {"total": 1, "rows": [7]}
    with town.client() as client:
        assert anna.act("pause", why="").status == 200
        assert set(town.crowd.run_round(client)) == {204}  # the open one goes on to its end
        found = anna.until(lambda now: now["round"] == state["round"] + 1)
        assert (found["state"], found["reason"]["party"]) == ("waiting", "operator")
        assert anna.act("go_on").status == 200
        client.wait(state="open", round=state["round"] + 1)


def test_invitations_are_handed_over_once_and_kept_nowhere(town, anna):
    body = {"count": 3, "server": "https://town.example:8443", "label": "lab"}
    answer = anna.act("invite", "one-click", **body)
    assert answer["content-disposition"][0].startswith('attachment; filename="devices-')
    with zipfile.ZipFile(BytesIO(answer.body)) as files:
        tokens = [json.loads(files.read(name))["token"] for name in files.namelist()]
    assert len(set(tokens)) == 3
    again = anna.act("invite", "one-click", **body)
    assert (again.status, "cannot be shown again" in why(again)) == (400, True)
    single = anna.act("invite", count=1, server="https://town.example:8443")
    assert single["content-disposition"][0].endswith('.json"')
    tokens.append(json.loads(single.body)["token"])
    everything = b"".join(anna.get(path + query).body for path, query in READS.items())
    everything += json.dumps(log_of(town.folder)).encode() + town.log.read_bytes()
    for place in town.path.rglob("*"):
        if place.is_file():
            everything += place.read_bytes()
    for token in tokens:
        assert token.encode() not in everything
        assert bytes.fromhex(token) not in everything
    assert anna.look("devices?which=invited")["total"] >= 4


def test_no_backup_without_a_line_in_the_log(town, anna, tmp_path):
    def lines():
        return [one for one in log_of(town.folder) if one["what"] == "backup"]

    before = len(lines())
    silent = anna.act("backup", "two\nlines", place=str(tmp_path / "silent"))
    assert silent.status == 400
    assert anna.act("pause", "of a pause", why="").status == 200
    assert anna.act("go_on").status == 200
    wrong = anna.act("backup", "of a pause", place=str(tmp_path / "wrong"))
    assert (wrong.status, "used for something else" in why(wrong)) == (400, True)
    assert (names_in(tmp_path), len(lines())) == ([], before)
    seats, answers = [town.come_in() for _ in range(2)], {}

    def press(n):
        answers[n] = seats[n].act("backup", "at once", place=str(tmp_path / str(n)))

    threads = [threading.Thread(target=press, args=[n]) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (made,) = names_in(tmp_path)
    (line,) = lines()[before:]
    assert line["about"]["place"] == line["outcome"]["place"] == str(tmp_path / made)
    assert answers[int(made)].json == line["outcome"]
    other = answers[1 - int(made)]
    assert other.status == 400 or other.json == line["outcome"]
    assert anna.act("backup", "at once", place="/tmp/elsewhere").json == line["outcome"]


def test_a_backup_that_fails_or_is_broken_off_stays_in_the_log(town, anna, tmp_path):
    for place in ("/proc/x", "/proc/x/y"):
        answer = anna.act("backup", f"to {place}", place=place)
        assert (answer.status, "nothing was copied" in why(answer)) == (400, True)
        again = anna.act("backup", f"to {place}", place=place)
        assert (again.status, why(answer) in why(again)) == (400, True)
        line = log_of(town.folder)[-1]
        assert (line["what"], line["outcome"]) == ("backup", {"failed": why(answer)})
    acts = Acts(town.folder, town.folder.database(), Actor("anna", "console"))
    with pytest.raises(KeyboardInterrupt):
        acts.backup(str(tmp_path / "copy"), interrupted)
    assert log_of(town.folder)[-1]["outcome"] == {"failed": "it was broken off"}
    with contextlib.closing(acts.database), pytest.raises(UsageError, match="begun"):
        acts.backup("/a", lambda: acts.backup("/a", dict, key="within"), key="within")


def interrupted():
    raise KeyboardInterrupt


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_report_key_is_rotated_once(tmp_path):
    folder = new_folder(tmp_path / "town")
    ring = ReportKeys(folder.keys)
    ring.create()
    with ConsoleServer(folder) as server:
        seat = server.come_in()
        assert seat.look("health")["report_keys"] is True
        first = seat.act("rotate", "click", what="report")
        assert first.json == {"report_key": ring.newest().id.hex()}
        assert seat.act("rotate", "click", what="report").json == first.json
        assert len(ring.all()) == 2
        told = first.body + seat.get("/api/acts").body + seat.get("/api/health").body
        assert not any(key.private.hex().encode() in told for key in ring.all())


def test_rotating_a_token_ends_the_sessions_that_came_with_it(town, anna, bruno):
    watcher = town.come_in("look", "dino")
    assert anna.act("rotate", what="look").status == 200
    for seat in (bruno, watcher):
        until(lambda seat=seat: seat.get("/api/state").status == 401)
        answer = seat.get("/api/state")
        assert answer.status == 401
        assert why(answer).startswith("The token by which you came in was changed")
        document = seat.ask("GET", "/")
        assert b"The token by which you came in was changed" in document.body
    assert anna.look("state")
    other = town.come_in("act", "carla")
    link = town.link("act", "late")
    assert anna.act("rotate", what="act").status == 200
    for seat in (anna, other):
        until(lambda seat=seat: seat.get("/api/state").status == 401)
        assert seat.act("pause", why="").status == 401
    parts = urlsplit(link)
    assert other.ask("GET", f"{parts.path}?{parts.query}", cookie="").status == 403
    assert town.come_in().look("state")["paused"] is None


def test_a_server_that_starts_deletes_half_a_new_token(tmp_path):
    folder = new_folder(tmp_path / "town")
    left = folder.keys / ".operator.token.0123abcd"
    left.write_text("0" * 64)
    with ConsoleServer(folder) as server:
        assert not left.exists()
        assert server.come_in().look("state")


def test_after_a_restart_an_old_session_is_told_so(tmp_path):
    folder = new_folder(tmp_path / "town")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ConsoleServer(folder, "--console-port", port) as server:
        seat = server.come_in()
        start = seat.look("state")["start"]
        assert server.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            seat.get("/api/state")
    with ConsoleServer(folder, "--console-port", port) as server:
        answer = seat.get("/api/state")
        assert (answer.status, "the server was started anew" in why(answer)) == (401, True)
        old_token = seat.token
        seat.enter(server.link())
        assert seat.look("state")["start"] != start
        stale = seat.post("/api/pause", {"why": "", "key": "k"}, {"X-Sottovoce-Token": old_token})
        assert stale.status == 403
        assert seat.look("state")["paused"] is None


def test_a_second_server_at_the_port_of_the_console_is_one_sentence(town, tmp_path, capfd):
    folder = new_folder(tmp_path / "other")
    port = str(urlsplit(town.console).port)
    assert call(["serve", "server", str(folder.path), "--port", "0", "--console-port", port]) == 7
    assert "cannot listen at 127.0.0.1" in capfd.readouterr().err


# --- others who are gone, a disk that is full -----------------------------------------------------


def test_a_helper_that_is_gone_is_named(tmp_path):
    from secure_sum_world import masker_folder, summed_terms
    from server_world import quick_rules

    from sottovoce.stores.keys import authority_pem
    from sottovoce.stores.server_folder import create_folder

    helper = masker_folder(tmp_path / "helper")
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{gone.getsockname()[1]}"
        key = helper.introduction.terms.secure_sum.key
        terms = summed_terms(key, url=url, authority=authority_pem(helper.keys))
        items = [(f"v{n}", f"Venue {n}") for n in range(terms.n_items)]
        folder = create_folder(tmp_path / "town", terms, items, rules=quick_rules())
        with ConsoleServer(folder) as server:
            seat = server.come_in()
            database = folder.database()
            with database.writing() as link:
                operating.keep_since(link, operating.AWAY, "the helper does not answer", "helper")
                records.set_fact(link, "waits", "the helper does not answer")
            database.close()
            seat.look("health")
            found = seat.until(lambda now: now["parties"][0]["answers"] is not None, "health")
            (party,) = found["parties"]
            assert (party["party"], party["answers"]) == ("helper", False)
            assert party["what"].startswith("does not answer")
            state = seat.until(lambda now: now["reason"]["party"] == "helper")
            assert state["reason"]["do"]
            assert seat.act("pause", why="").status == 200


@pytest.fixture
def disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", place]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can make a file system, so that a full disk cannot be made")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_database_that_is_full_is_one_sentence_and_nothing_is_done(disk, tmp_path):
    folder = new_folder(disk / "town")
    with ConsoleServer(folder) as server:
        seat = server.come_in()
        filler = disk / "filler"
        try:
            with filler.open("wb", buffering=0) as out:
                while True:
                    out.write(bytes(4096))
        except OSError:
            pass
        body = {"count": 5000, "server": "https://town.example:8443"}
        answer = seat.act("invite", "full", **body)
        assert answer.status == 409, answer
        assert "full" in why(answer)
        assert "nothing was stored" in why(answer)
        assert seat.look("storage")["free"] < 1 << 20
        filler.unlink()
        assert seat.look("devices")["total"] == 0
        assert [one for one in log_of(folder) if one["what"] == "invite"] == []
        assert seat.act("invite", "full", **body).status == 200
        assert seat.look("devices")["total"] == 5000


def test_two_servers_that_share_a_database_have_consoles_that_agree(
    tmp_path,
    postgres,  # noqa: F811
    monkeypatch,
):
    url = postgres.fresh("consoles")
    monkeypatch.setenv("SOTTOVOCE_DATABASE", url)
    folder = new_folder(tmp_path / "one")
    shutil.copytree(folder.path, tmp_path / "two")
    other = open_folder(tmp_path / "two")
    with (
        ConsoleServer(folder, name="one") as one,
        ConsoleServer(other, name="two") as two,
    ):
        anna, carla = one.come_in(), two.come_in("act", "carla")
        answers, gate = [], threading.Barrier(2)

        def press(seat):
            gate.wait()
            answers.append(seat.act("pause", why=""))

        threads = [threading.Thread(target=press, args=[seat]) for seat in (anna, carla)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.status for answer in answers) == [200, 400]
        assert anna.act("invite", count=3, server="https://town.example:8443").status == 200
        carla.until(lambda now: now["total"] == 3, "devices")
        for path, query in READS.items():
            if path != "/api/missing":
                assert carla.get(path + query).status == 200, path
        assert carla.look("storage")["kind"] == "PostgreSQL"
        assert anna.look("acts")["total"] == carla.look("acts")["total"] == 2
        assert url.encode() not in b"".join(carla.get(path + q).body for path, q in READS.items())


# --- what is in no answer -------------------------------------------------------------------------


class Canaries:
    """Bytes that no answer may have, in any spelling."""

    def __init__(self):
        self.all = {}

    def make(self, name, size=32):
        self.all[name] = secrets.token_bytes(size)
        return self.all[name]

    def keep(self, name, content):
        self.all[name] = content
        return content

    def found(self, answer):
        whole = answer.body + repr(answer.headers).encode()
        for name, canary in self.all.items():
            spellings = [canary, canary.hex().encode(), canary.hex().upper().encode(),
                         base64.b64encode(canary)[:-4], base64.urlsafe_b64encode(canary)[:-4],
                         str(int.from_bytes(canary)).encode(),
                         str(int.from_bytes(canary, "little")).encode(),
                         json.dumps(list(canary))[1:-1].encode()]  # fmt: skip
            if any(spelling in whole for spelling in spellings):
                yield name


def test_nothing_of_a_device_and_no_secret_is_in_any_answer(tmp_path):
    folder = new_folder(tmp_path / "town", rounds=3)
    canaries = Canaries()
    with ConsoleServer(folder) as server, server.client() as client:
        crowd = Crowd(users=8)
        crowd.enrol(folder, client)
        client.wait(state="open", round=0)
        offer(folder, 1)
        crowd.run_round(client)
        client.wait(state="open", round=1)
        crowd.run_round(client, [0, 1, 2])  # real bodies of an open round
        database = folder.database()
        size = 77_777
        with database.writing() as link:
            for row in link.execute(submissions.select()).mappings():
                canaries.keep(f"mark {row['number']}", row["mark"])
                if row["body"]:
                    canaries.keep(f"body {row['number']}", row["body"][:64])
            for row in link.execute(devices.select()).mappings():
                canaries.keep(f"token {row['number']}", row["token_hash"])
                canaries.keep(f"key {row['number']}", row["public_key"])
            place = {"round": 77, "attempt": 0, "number": 5}
            link.execute(
                submissions.insert().values(
                    **place, mark=canaries.make("mark"), body=canaries.make("body") + bytes(size)
                )
            )
            link.execute(unsummed.insert().values(**place, body=canaries.make("masked")))
            link.execute(sums.insert().values(round=77, attempt=0, total=canaries.make("sum")))
            link.execute(summed_seeds.insert().values(**place, sealed=canaries.make("seed")))
            link.execute(
                batches.insert().values(
                    round=77,
                    tier=0,
                    mark=canaries.make("batch"),
                    devices=1,
                    parts=1,
                    stored=1,
                    reports=1,
                )
            )
            link.execute(
                batch_parts.insert().values(round=77, tier=0, part=0, body=canaries.make("part"))
            )
            selected = link.execute(rounds.select().where(rounds.c.round == 1)).mappings().one()
            canaries.keep("selected", selected["selected"])
        database.close()
        table = json.loads((folder.path / "federation.json").read_text())
        canaries.keep("root key", table["root_key"].to_bytes(40).lstrip(b"\0"))
        for name in ("operator.token", "viewer.token", "superexec.secret"):
            canaries.keep(name, bytes.fromhex((folder.keys / name).read_text()))
        for name in ("server.key", "ca.key"):
            text = (folder.keys / name).read_bytes().splitlines()[1]
            canaries.keep(name, text)
        seat = server.come_in()
        answers = [seat.get(path + query) for path, query in READS.items()]
        answers += [
            seat.get("/api/devices?which=all&query=5"),
            seat.get("/api/missing?round=0&attempt=0"),
        ]
        answers += [
            seat.get(path) for path in ("/", "/nowhere", "/static/console.js", "/words/en.json")
        ]
        for path, body in ACTS.items():
            answers += [
                seat.post(path, {**body, "key": path}),
                seat.post(path, {**body, "key": path + "!"}),
            ]
        answers += [seat.get(path + query) for path, query in READS.items()]
        good = [answer for answer in answers if answer.status == 200]
        assert len(good) > 2 * len(READS) + 8
        found = {(name, answer.status) for answer in answers for name in canaries.found(answer)}
        assert found == set()
        assert not any(str(size).encode() in answer.body for answer in answers)
        for answer in answers:  # rounds are told of devices by nobody but the list of the missing
            if answer.status == 200 and answer["content-type"] == ["application/json"]:
                assert not {
                    "body",
                    "mark",
                    "epsilon",
                    "rows_sent",
                    "public_key",
                    "token_hash",
                } & keys_in(answer.json)


def keys_in(value):
    if isinstance(value, dict):
        return set(value).union(*map(keys_in, value.values()))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


def test_the_canaries_would_be_found():
    """What the test above looks for, it sees."""
    canaries = Canaries()
    canary = canaries.make("one")

    class Told:
        headers = ()

        def __init__(self, body):
            self.body = body

    for told in (canary, canary.hex().encode(), base64.b64encode(canary),
                 json.dumps({"x": list(canary)}).encode()):  # fmt: skip
        assert list(canaries.found(Told(b"x" + told + b"y"))) == ["one"]


def test_the_password_of_a_database_is_in_no_sentence(tmp_path):
    folder = new_folder(tmp_path / "town")
    database = Database.at("postgresql://town:canary-of-a-password@127.0.0.1:1/town")
    try:
        from sottovoce.services.server.operator import status

        tokens = RoleTokens(folder.keys)
        server = RunningServer(
            lambda: folder, database, tokens, lambda: status(database), lambda: None, None
        )
        entrance = Entrance(most=2)
        session = entrance.open(entrance.fresh_key(Guest("act", "anna")))
        console = Console(ConsoleViews.of(server), session)
        for ask in (
            console.state,
            console.storage,
            lambda: console.acts(0, 1),
            lambda: console.pause("", "k"),
            lambda: console.devices("", "all", 0, 1),
        ):
            with pytest.raises(ServiceError) as error:
                ask()
            assert "canary" not in str(error.value)
    finally:
        database.close()
