"""Whatever strangers and broken devices send: a refusal, never a fault of the proxy's own; and
nothing of a sender but its sealed reports gets past the proxy."""

import json
import os
import sqlite3
import subprocess

import numpy as np
from proxy_world import Device, Link, ProxyProcess, proxied
from talk import until
from test_proxy_service import count

from sottovoce.cli import call
from sottovoce.engines.processes import sottovoce_command
from sottovoce.stores.server_folder import write_introduction

# --- what reaches the server ----------------------------------------------------------------------

SPY = {
    "User-Agent": "canary-agent/7",
    "X-Forwarded-For": "203.0.113.77",
    "Forwarded": "for=203.0.113.77",
    "Cookie": "canary=1",
    "X-Canary": "canary-header",
    "Traceparent": "00-canary",
}


def test_nothing_of_a_sender_but_its_reports_reaches_the_server_the_disk_or_the_log(tmp_path):
    here = {"hold_seconds": 600.0, "goal": {"": 60}}
    with proxied(tmp_path) as (server, folder), ProxyProcess(folder, **here) as proxy:
        with Link(folder, proxy.port) as link:
            some = [Device(server).enrol(link.ask) for _ in range(60)]
            until(lambda: link.ask("POST", "/v1/submissions", b"").status == 400)
            for device in some[:-1]:
                payload = device.submission(0)
                assert link.ask("POST", "/v1/submissions", payload, SPY).status == 204
            assert_no_trace_in_rows(folder, some[:-1])
            assert link.ask("POST", "/v1/submissions", some[-1].submission(0), SPY).status == 204
        batch = until(lambda: server.batch(0, 0))
        until(lambda: not count(folder, "reports"))
        proxy.stop()
        log = proxy.log.read_text()
    owner = {record: n for n, device in enumerate(some) for record in device.records(0)}
    assert len(batch) == len(owner) == 240
    order = [owner[record] for record in batch]
    assert order != sorted(order)
    for headers, body in server.seen:
        assert set(headers) == {"host", "authorization", "content-length"}
        told = json.dumps(headers).encode() + body
        for device in some:
            assert device.account not in body
            assert device.key.public_key().public_bytes_raw() not in body
        for value in SPY.values():
            assert value.lower().encode() not in told.lower()
    for value in [*SPY.values(), *(device.account.hex() for device in some), "127.0.0.1:"]:
        assert value not in log.replace(f"https://127.0.0.1:{proxy.port}", "")
    held = b"".join(p.read_bytes() for p in folder.path.glob("proxy.db*"))
    for value in SPY.values():
        assert value.encode() not in held
    for device in some:
        for record in device.records(0):
            assert record not in held, "what was handed over is forgotten"
    # Arrival: neighbours in the batch are of neighbours at the door no more often than by chance.
    near = np.mean(np.abs(np.diff(order)) <= 1)
    chance = (60 * 4 * 3 + 2 * 59 * 16) / (240 * 239)
    assert near < chance + 5 * np.sqrt(chance / 239)


def assert_no_trace_in_rows(folder, some):
    """A stored submission has a place and a body, and the place is not in the order of arrival."""
    link = sqlite3.connect(folder.path / "proxy.db", timeout=60)
    try:
        columns = [row[1] for row in link.execute("PRAGMA table_info(reports_0)")]
        assert columns == ["place", "body"]
        rows = link.execute("SELECT place, body FROM reports_0 ORDER BY place").fetchall()
        seen = [row[1] for row in link.execute("PRAGMA table_info(seen)")]
        assert seen == ["round", "account", "mark"]
    finally:
        link.close()
    arrival = {b"".join(device.records(0)): n for n, device in enumerate(some)}
    order = [arrival[bytes(body)] for _, body in rows]
    assert len(order) == len(some)
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.7


# --- against the process --------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    """First start from an introduction, a second one from the folder, and what goes wrong."""

    def fails(*arguments):
        code = call(["serve", "shuffler", *map(str, arguments)])
        return code, capsys.readouterr().err

    with proxied(tmp_path) as (server, _):
        write_introduction(tmp_path / "town.json", server.introduction())
        folder = tmp_path / "mixer"
        for arguments in (["--introduction", tmp_path / "town.json", "--goal", "1=5"], []):
            process = subprocess.Popen(
                sottovoce_command("serve", "shuffler", folder, "--port=0", *arguments),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                assert process.stdout.readline().startswith("The shuffler listens at https://127.")
                ready = json.loads((folder / "proxy.json").read_text())
                assert ready["pid"] == process.pid
                code, words = fails(folder, "--port=0")
                assert (code, "another process" in words) == (7, True)
                until(lambda: (folder / "terms.json").exists())  # what `--goal` is held against
            finally:
                process.terminate()
                process.communicate(timeout=120)
            assert process.returncode == 0
            assert not (folder / "proxy.json").exists()
        assert os.stat(folder).st_mode & 0o077 == 0
        for path in folder.iterdir():
            if path.is_file() and path.suffix != ".lock":
                assert path.stat().st_mode & 0o077 == 0 or path.name == "terms.json"
        for arguments, code, words in [
            ([folder, "--introduction", tmp_path / "town.json"], 2, "holds a shuffler already"),
            ([folder, "--name", "example.org"], 2, "--introduction"),
            ([folder, "--goal", "many"], 2, "number of devices"),
            ([folder, "--goal", "7=5"], 2, "tier 7"),
            ([folder, "--goal", "5", "--goal", "6"], 2, "twice"),
            ([folder, "--plaintext", "--host", "0.0.0.0"], 2, "loopback"),
            ([tmp_path / "nowhere"], 7, "holds no shuffler"),
        ]:
            got = fails(*arguments, "--port=0")
            assert got[0] == code
            assert words in got[1]
        (folder / "proxy.db").rename(folder / "lost.db")
        assert "put it back" in fails(folder, "--port=0")[1]
