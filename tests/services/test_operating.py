"""What operators do while a federation runs: several at once, killed in the middle, with roles, and
with many devices."""

import contextlib
import json
import threading
import time
from datetime import UTC, datetime

import pytest
from forked import ForkedProcess
from server_world import USERS, Client, Fleet, ServerProcess, acting, new_folder
from talk import until

from sottovoce.cli import call
from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.services.server.operator import Operator, devices
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.acts import past_acts
from sottovoce.stores.database import contacts
from sottovoce.stores.database import devices as rows_of_devices
from sottovoce.stores.keys import CA_CERTIFICATE, OPERATOR_TOKEN, VIEWER_TOKEN

SERVER = "https://127.0.0.1:1"
MANY = 20_000


def logged(store):
    with store.reading() as link:
        return past_acts(link, 0, 1000)[1]


# --- several at once ------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    """None, or the URL of an empty database."""
    if request.param == "sqlite":
        return None
    return request.getfixturevalue("postgres").fresh(f"acts{time.monotonic_ns()}")


@pytest.fixture
def ways(url, tmp_path):
    """Several ways to one database, as several processes have them, and the folder."""
    folder = new_folder(tmp_path)
    made = [folder.database(url) for _ in range(6)]
    acting(made[0], folder).invite(SERVER, USERS)
    yield folder, made
    for database in made:
        database.close()


def at_once(ways, act):
    """What became of it for each."""
    barrier, told = threading.Barrier(len(ways)), []

    def work(way, name):
        barrier.wait()
        try:
            told.append((name, act(way, name)))
        except UsageError as error:
            told.append((name, str(error)))

    threads = [threading.Thread(target=work, args=(w, f"op{k}")) for k, w in enumerate(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.parametrize(
    ("what", "given"), [("pause", ()), ("shut_out", ([3],)), ("label", (3, "library"))]
)
def test_of_those_who_do_the_same_at_once_one_does_it_and_the_others_are_told_who(
    ways, what, given
):
    folder, made = ways
    told = at_once(made, lambda way, name: getattr(acting(way, folder, name), what)(*given))
    [won] = [name for name, done in told if isinstance(done, dict)]
    rest = [done for name, done in told if name != won]
    assert all(f"by {won}; nothing was done" in words for words in rest), rest
    assert [one["what"] for one in logged(made[0])] == [what, "invite"]


def test_the_same_click_from_several_sides_is_one_act(ways):
    folder, made = ways
    told = at_once(made, lambda way, name: acting(way, folder, name).pause("lunch", key="click"))
    assert len({json.dumps(done) for _, done in told}) == 1
    assert len(logged(made[0])) == 2


def test_those_who_do_different_things_at_once_all_do_them(ways):
    folder, made = ways

    def act(way, name):
        number = int(name[2:])
        return acting(way, folder, name).shut_out([number])

    assert all(isinstance(done, dict) for _, done in at_once(made, act))
    with made[0].reading() as link:
        assert records.shut_numbers(link) == list(range(len(made)))
    assert len(logged(made[0])) == 1 + len(made)
    acting(made[0], folder).label(7, "Library")
    heard = operating.LastContacts()
    heard.heard([1, 7])
    heard.store(made[0], now=True)
    for query, wanted in (("LIB", [7]), ("7", [7]), ("", list(range(USERS)))):
        found = devices(made[1], 0, 50, query)
        assert [row["number"] for row in found["rows"]] == wanted
    assert [row["number"] for row in found["rows"] if row["last_contact"]] == [1, 7]


# --- killed in the middle -------------------------------------------------------------------------

_LABELLING = """
import sys
from pathlib import Path
from sottovoce.stores.acts import Actor, Acts
from sottovoce.stores.server_folder import open_folder
folder = open_folder(Path(sys.argv[1]))
acts = Acts(folder, folder.database(), Actor("anna", "command"))
for n in range(int(sys.argv[2])):
    acts.label(n % 8, f"label {n}", key=f"click {n}")
    acts.rotate_token("look", key=f"token {n}")
"""


def test_whoever_is_killed_in_the_middle_does_nothing_twice_and_nothing_half(tmp_path):
    folder, many = new_folder(tmp_path), 400
    with contextlib.closing(folder.database()) as store:
        acting(store, folder).invite(SERVER, USERS)
        for reached in (100, 200, 300):
            with (tmp_path / "log").open("w") as log:
                process = ForkedProcess(_LABELLING, tmp_path, many, output=log)
            until(lambda reached=reached: len(logged(store)) > reached)
            process.kill()
            process.wait()
        before = len(logged(store))
        with (tmp_path / "log").open("w") as log:
            assert ForkedProcess(_LABELLING, tmp_path, many, output=log).wait(timeout=60) == 0
        lines = logged(store)
        assert before < len(lines) == 1 + 2 * many
        labels = [one["about"]["label"] for one in lines if one["what"] == "label"][::-1]
        assert labels == [f"label {n}" for n in range(many)]
        with store.reading() as link:
            last = {n % 8: f"label {n}" for n in range(many)}
            assert {n: operating.label_of(link, n) for n in last} == last
    left = [p.name for p in folder.keys.iterdir() if p.name.startswith(".")]
    assert len(left) <= 6, "of a kill, at most its two files"
    assert all((folder.keys / name).stat().st_mode & 0o077 == 0 for name in left)


# --- many devices ---------------------------------------------------------------------------------


def steps(link, question):
    """What the database does for a page of the list: steps of its machine, and statements. Unlike
    seconds, they are the same on every machine."""
    counted, asked = [0], []
    raw = link.connection.driver_connection

    def count():
        counted[0] += 10
        return 0

    raw.set_progress_handler(count, 10)
    raw.set_trace_callback(asked.append)
    try:
        found = operating.list_devices(link, **{"offset": 0, "limit": 50, **question})
    finally:
        raw.set_progress_handler(None, 0)
        raw.set_trace_callback(None)
    assert found["rows"], question
    return counted[0] / MANY, len(asked)


def test_a_list_of_many_devices_is_read_from_indexes(tmp_path):
    folder = new_folder(tmp_path)
    with contextlib.closing(folder.database()) as store:
        with store.writing() as link:
            stamp = "2026-11-17T17:04+00:00"
            for first in range(0, MANY, 10_000):
                part = range(first, first + 10_000)
                link.execute(
                    rows_of_devices.insert(),
                    [
                        {
                            "number": n, "token_hash": n.to_bytes(32, "big"), "missed": 0,
                            "public_key": n.to_bytes(32, "big") if n % 3 else None,
                            "dormant": n % 7 == 0,
                        }
                        for n in part
                    ],
                )  # fmt: skip
                link.execute(
                    contacts.insert(),
                    [
                        {
                            "number": n, "label": f"Via Roma {n}", "enrolled": stamp,
                            "last_contact": stamp,
                        }
                        for n in part
                    ],
                )  # fmt: skip
            records.shut(link, range(0, MANY, 1000))
        with store.reading() as link:
            for question, most in (
                ({}, 0.5), ({"offset": MANY - 50}, 3.5), ({"which": "silent"}, 3),
                ({"which": "active", "offset": MANY // 2}, 15), ({"which": "shut-out"}, 0.5),
                ({"which": "invited"}, 18), ({"query": f"roma {MANY - 1}"}, 18),
                ({"query": "99"}, 18),
            ):  # fmt: skip
                taken, statements = steps(link, question)
                assert (taken <= most, statements <= 4) == (True, True), (question, taken)
        assert devices(store, 0, 50)["total"] == MANY
        assert devices(store, 0, 50, f"roma {MANY - 1}")["total"] == 1
        assert devices(store, 0, 50, which="shut-out")["total"] == 20


def test_devices_are_found_by_state_label_and_number(url, tmp_path):
    folder = new_folder(tmp_path)
    with contextlib.closing(folder.database(url)) as store:
        acts = acting(store, folder)
        made = acts.invite(SERVER, 12, label="é 50%_of Via Roma")
        acts.label(11, "")
        with store.writing() as link:
            for one in made[:4]:
                token = bytes.fromhex(one.token)
                number = records.enrol(link, token, one.number.to_bytes(32, "big"))
                operating.enrolled(link, number)
            records.missed(link, [1], 1)
            records.shut(link, [2], "it spoils sums")
        acts.shut_out([3])

        def numbers(*given, **more):
            return [row["number"] for row in devices(store, 0, 50, *given, **more)["rows"]]

        assert numbers(which="active") == [0]
        assert numbers(which="silent") == [1]
        assert numbers(which="shut-out") == [2, 3]
        assert numbers(which="invited") == list(range(4, 12))
        assert numbers("1") == [1, 10, 11], "numbers by their first digits"
        assert numbers("via ROMA") == list(range(11))
        assert numbers("50%_") == list(range(11))
        assert numbers("50__") == numbers("1%") == []
        rows = devices(store, 1, 3)["rows"]
        assert [row["why"] for row in rows] == ["", "it spoils sums", "by the operator"]
        assert rows[0]["enrolled"] == rows[0]["last_contact"] != None  # noqa: E711
        assert devices(store, 50, 3) == {"total": 12, "rows": []}
        assert devices(store, 2**80, 2**80)["total"] == 12
        for nonsense in ("\0", "x" * 100_000, "%", "_", "9" * 300, "'; DROP TABLE devices; --"):
            assert devices(store, 0, 50, nonsense)["rows"] == [] or nonsense in ("%", "_")


def test_the_commands_say_what_they_did(tmp_path, capsys):
    def said(*arguments):
        assert call(["serve", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    new_folder(tmp_path / "town")
    out = ["--out", tmp_path / "invitations", "--server", SERVER]
    said("invite", tmp_path / "town", "--count", 3, "--label", "Via Roma", *out)
    assert (
        said("devices", tmp_path / "town", "--label", 2, "library")
        == "Device 2 is called 'library'\n"
    )
    said("shut-out", tmp_path / "town", 0)
    lines = said("devices", tmp_path / "town").splitlines()
    assert lines[0] == "3 device(s)"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["0", "shut-out"], ["1", "invited"], ["2", "invited"],
    ]  # fmt: skip
    assert lines[2].endswith("Via Roma  (by the operator)")
    one = said("devices", tmp_path / "town", "--find", "LIB").splitlines()
    assert [line.split()[0] for line in one[2:]] == ["2"]
    assert said("devices", tmp_path / "town", "--limit", 1).startswith("3 device(s), of which 1")
    assert said("devices", tmp_path / "town", "--which", "silent") == "0 device(s)\n"
    assert f"until `sottovoce serve pause {tmp_path}/town --undo`" in said(
        "pause", tmp_path / "town", "--why", "lunch"
    )
    waits = "Waits for the server: no server of the federation answers: no server runs"
    assert waits in said("status", tmp_path / "town")
    paused = next(
        line for line in said("status", tmp_path / "town").splitlines() if "Paused" in line
    )
    assert paused.startswith("Paused since ")
    assert paused.endswith(": lunch")
    assert "paused since" in said("pause", tmp_path / "town", "--undo")
    lines = said("log", tmp_path / "town").splitlines()
    assert [line.split("): ")[1] for line in lines] == [
        "rounds let go on",
        "rounds paused: lunch",
        "shut out: 0",
        "device 2 is called 'library'",
        "invited: 0-2, as 'Via Roma'",
    ]


# --- what is kept of a device ---------------------------------------------------------------------


def test_last_contacts_are_kept_to_the_minute_and_nothing_else_of_a_visit(tmp_path):
    """A report costs no transaction more: what was heard is written together, at the latest when
    the server stops."""
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        with contextlib.closing(folder.database()) as store:
            with store.writing() as link:
                link.execute(contacts.update().values(last_contact=None))
            view = client.model(0)
            for number in range(3):
                assert client.post("/v1/reports", fleet.report(number, view)).status == 204
            sent = fleet.sealed(3, 0, 0, b"", "check-in")
            assert client.post("/v1/checkin", sent).status == 204
            assert server.stop() == 0
            rows = devices(store, 0, 50)["rows"]
            fields = {"number", "label", "state", "enrolled", "last_contact", "came", "why"}
            assert all(set(row) == fields for row in rows)
            heard = [row["number"] for row in rows if row["last_contact"]]
            assert heard == [0, 1, 2, 3]
            for row in rows[:4]:
                for at in (row["enrolled"], row["last_contact"]):
                    then = datetime.fromisoformat(at)
                    assert (then.second, then.microsecond, then.tzinfo) == (0, 0, UTC)
            names = {column.name for column in contacts.columns}
            assert names == {"number", "label", "enrolled", "last_contact"}


def test_what_cannot_be_stored_of_contacts_waits_for_the_next_time(tmp_path, monkeypatch):
    folder = new_folder(tmp_path)
    with contextlib.closing(folder.database()) as store:
        acting(store, folder).invite(SERVER, 3)
        heard = operating.LastContacts()
        heard.heard([0, 2])
        heard.store(store)
        assert not any(row["last_contact"] for row in devices(store, 0, 9)["rows"]), "not yet"
        store.close()
        with monkeypatch.context() as patch:
            patch.setattr(store, "writing", lambda: (_ for _ in ()).throw(UsageError("full")))
            with pytest.raises(UsageError):
                heard.store(store, now=True)
        heard.store(store, now=True)
        found = [row["number"] for row in devices(store, 0, 9)["rows"] if row["last_contact"]]
        assert found == [0, 2]


# --- roles ----------------------------------------------------------------------------------------


def asked(client, token, method="GET", path="/v1/operator/status", body=None):
    return client.ask(method, path, body=body, headers={"Authorization": f"Bearer {token}"})


def secret(folder, name):
    return (folder.keys / name).read_text().strip()


def test_who_may_only_look_cannot_act_and_a_rotated_token_ends_soon(tmp_path, ask):
    folder = new_folder(tmp_path)
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert asked(client, "").status == 401
        place = ask("serve", "token", tmp_path, "--role", "look")["file"]
        assert place == str(folder.keys / VIEWER_TOKEN)
        look, act = secret(folder, VIEWER_TOKEN), secret(folder, OPERATOR_TOKEN)
        end = time.monotonic() + 600
        while asked(client, look).status != 200:
            assert time.monotonic() < end
        assert asked(client, look, path="/metrics").status == 200
        more = json.dumps({"rounds": 7})
        got = asked(client, look, "POST", "/v1/operator/target", more)
        assert (got.status, got.error) == (403, "forbidden")
        assert asked(client, act, "POST", "/v1/operator/target", more).status == 200
        for role, old in (("look", look), ("act", act)):
            said = ask("serve", "token", tmp_path, "--role", role, "--rotate")
            end = time.monotonic() + 600
            while asked(client, old).status == 200:
                assert time.monotonic() < end
            new = (folder.keys / said["file"]).read_text().strip()
            assert new != old
            assert asked(client, new).status == 200
        with contextlib.closing(
            Operator.at(server.url, folder.keys / CA_CERTIFICATE, folder.keys / VIEWER_TOKEN)
        ) as viewer:
            assert viewer.status()["target"] == 7
            with pytest.raises(KeyTrouble, match="looking"):
                viewer.raise_target(9)
    lines = ask("serve", "log", tmp_path)["acts"]
    assert [line["what"] for line in lines] == ["token", "token", "target"]
    assert lines[2]["who"] == "the operator's token"
    written = json.dumps(lines)
    for token in (look, act, new):
        assert token not in written


# --- pause ----------------------------------------------------------------------------------------


def test_devices_wait_while_rounds_are_paused_and_an_open_round_goes_on(tmp_path, ask):
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        ask("serve", "pause", tmp_path, "--why", "lunch")
        assert "by" in ask("serve", "pause", tmp_path, code=2)["error"]
        assert client.round()["state"] == "open"
        assert set(fleet.run_round(client)) == {204}
        client.wait(round=1, state="waiting")
        time.sleep(1.2)
        assert client.round()["state"] == "waiting"
        told = client.status()
        assert (told["paused"]["why"], told["reason"]["party"]) == ("lunch", "operator")
        server.kill()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert client.round()["state"] == "waiting", "a pause outlives the server"
        ask("serve", "pause", tmp_path, "--undo")
        client.wait(round=1, state="open", timeout=60)


def test_a_target_is_raised_or_nothing_is_done(tmp_path, capsys):
    folder = new_folder(tmp_path, rounds=6)
    with contextlib.closing(folder.database()) as store:
        with store.writing() as link:
            records.raise_target(link, 6)
        acts = acting(store, folder)
        with pytest.raises(
            UsageError, match="6 rounds already; it can only be raised, and nothing"
        ):
            acts.raise_target(6)
        acts.raise_target(9)
        with pytest.raises(UsageError, match=r"9 rounds already, since at .* by anna; it can only"):
            acts.raise_target(9)
        assert [one["words"] for one in logged(store)] == ["target raised: 6 → 9 rounds"]
    assert call(["serve", "target", str(tmp_path), "--rounds", "12"]) == 0
    assert capsys.readouterr().out == "12 rounds to run; before, 9\n", "it costs nobody a budget"


def test_a_blank_label_is_none(tmp_path):
    folder = new_folder(tmp_path)
    with contextlib.closing(folder.database()) as store:
        acts = acting(store, folder)
        acts.invite(SERVER, 1, label="  ")
        assert logged(store)[0]["words"] == "invited: 0"
        assert acts.label(0, "  library ")["label"] == "library"
        assert acts.label(0, "   ")["label"] == ""
        assert logged(store)[0]["words"] == "device 0 has no label any more"
        with pytest.raises(UsageError, match="device 0 has no label; nothing was done"):
            acts.label(0, "")


def test_devices_that_have_not_agreed_to_changed_terms_are_said_to_be_silent_for_that(tmp_path):
    folder = new_folder(tmp_path)
    with contextlib.closing(folder.database()) as store:
        for one in acting(store, folder).invite(SERVER, 3):
            with store.writing() as link:
                token = bytes.fromhex(one.token)
                records.enrol(link, token, one.number.to_bytes(32, "big"))
                operating.enrolled(link, one.number)
        with store.writing() as link:
            records.missed(link, [0, 1], 1)
            link.execute(
                contacts.update()
                .where(contacts.c.number == 0)
                .values(last_contact="2026-11-17T18:04+00:00")
            )
            link.execute(
                contacts.update()
                .where(contacts.c.number != 0)
                .values(last_contact="2026-11-17T18:09+00:00")
            )
            changed = "2026-11-17T18:04:30+00:00"
            rows = operating.list_devices(link, 0, 9, changed=changed)["rows"]
            assert [(row["state"], row["why"]) for row in rows] == [
                ("silent", "has not agreed to the changed terms yet, or has not asked since"),
                ("silent", ""),
                ("active", ""),
            ]
            assert operating.count_unagreed(link, changed) == 1
            records.shut(link, [0])
            assert operating.count_unagreed(link, changed) == 0
            assert operating.shut_out_devices(link) == [0]
