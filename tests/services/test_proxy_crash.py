"""kill -9, too much at once, a server that comes and goes: what was acknowledged reaches the server
once, in the order that was settled, or is dropped when its round is over."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_server import Reply
from proxy_world import App, Link, ProxyProcess, proxied, proxy_terms
from talk import until
from test_proxy_service import count, devices, kept, opened

from sottovoce.services import shuffler_handover as proxy_handover


class Links:
    """A connection for each thread; `close` them all."""

    def __init__(self, folder):
        self._folder, self._own, self._all = folder, threading.local(), []

    def to(self, port):
        link = getattr(self._own, "link", None)
        if link is None or link.port != port:
            if link is not None:
                link.close()
            link = self._own.link = Link(self._folder, port)
            self._all.append(link)
        return link

    def close(self):
        for link in self._all:
            link.close()


class Restarting:
    """A proxy that is killed and started again, and devices that send until they are answered."""

    def __init__(self, folder, **options):
        self.folder, self.options = folder, options
        self.proxy = ProxyProcess(folder, **options)
        self.kills = 0
        self._links = Links(folder)

    def kill_and_restart(self):
        self.proxy.kill()
        self.kills += 1
        self.proxy = ProxyProcess(self.folder, **self.options)

    def close(self):
        self._links.close()
        self.proxy.kill()

    def send(self, payload):
        """What a device is told in the end."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            link = self._links.to(self.proxy.port)
            try:
                got = link.submit(payload)
            except (OSError, http.client.HTTPException):
                link.close()
            else:
                if got.status != 503 and not (got.status == 409 and got.error == "early"):
                    return got
            time.sleep(0.02)
        raise AssertionError("no answer")


def enrolled(server, folder, count):
    """Devices with accounts, without asking for each of them."""
    with App(folder, forwarder=False) as app:
        return devices(app, server, count)


def run_with_kills(path, *, rounds, users, kills, seed):
    """Devices send while the proxy is killed; the batch of each round must be exactly what was
    acknowledged in it."""
    rng = np.random.default_rng(seed)
    terms = proxy_terms(minimum=(users - 2, 2))
    with proxied(path, terms=terms, poll_seconds=0.2) as (server, folder):
        some = enrolled(server, folder, users)
        here = Restarting(folder, hold_seconds=0.3, goal={"0": users - 2})
        stop = threading.Event()

        def killer():
            while here.kills < kills and not stop.wait(rng.uniform(0.0, 1.5)):
                here.kill_and_restart()

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            round = 0
            while round < rounds or here.kills < kills:  # rounds go on while it is killed
                payloads = [device.submission(round) for device in some]
                with ThreadPoolExecutor(8) as pool:
                    answers = list(pool.map(here.send, payloads))
                counted = {
                    n for n, got in enumerate(answers)
                    if got.status == 204 or got.error == "replay"
                }  # fmt: skip
                assert {got.error for n, got in enumerate(answers) if n not in counted} <= {"late"}
                batch = until(lambda r=round: server.batch(r, 0), 180)
                expected = [r for n in counted for r in some[n].records(round)]
                assert sorted(batch) == sorted(expected), "none lost, none doubled"
                round += 1
                server.move(round)
        finally:
            stop.set()
            thread.join()
            here.close()
        assert here.kills >= kills
        marks = {}
        for part in server.parts.values():
            marks.setdefault((part.round, part.tier), set()).add(part.mark)
        assert all(len(names) == 1 for names in marks.values())


# Python leaves a socket open whose peer is killed in the middle of the handshake.
half_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@half_open
def test_killed_under_load(tmp_path):
    run_with_kills(tmp_path, rounds=2, users=24, kills=3, seed=1)


def small_parts(monkeypatch, records=5):
    monkeypatch.setattr(proxy_handover, "PER_PART", records)


def test_a_server_that_has_a_part_already_is_not_troubled_by_it(tmp_path, monkeypatch):
    small_parts(monkeypatch)
    replay = Reply(409, json.dumps({"error": "replay", "detail": ""}).encode())
    with proxied(tmp_path) as (server, folder), App(folder) as app:
        opened(app)
        server.answers = [Reply(204), replay]
        for device in devices(app, server, 3):
            assert app.submit(device.submission(0)).status == 204
        until(lambda: count(folder, "outcomes"))
        assert len(server.seen) == 3
        assert kept(folder, "SELECT * FROM outcomes") == [("handed_over", 0, 3)]


@pytest.mark.parametrize("status", [401, 503])
def test_a_server_that_refuses_is_asked_again(tmp_path, status):
    no = Reply(status, json.dumps({"error": "no", "detail": "not now"}).encode())
    with proxied(tmp_path) as (server, folder), App(folder) as app:
        opened(app)
        server.answers = [no]
        some = devices(app, server, 3)
        for device in some:
            assert app.submit(device.submission(0)).status == 204
        until(lambda: server.batch(0, 0))
        assert len(server.seen) == 2
        assert len({body for _, body in server.seen}) == 1
        said = [line for line in app.log.lines if line[0] == "a batch cannot be handed over"]
        assert len(said) == 1, "once"


def test_what_is_over_is_deleted_also_after_a_restart(tmp_path, monkeypatch):
    with proxied(tmp_path) as (server, folder):
        with App(folder) as app:
            opened(app)
            with monkeypatch.context() as patch:
                patch.setattr(type(app.store), "forget", lambda self: False)
                for device in devices(app, server, 3):
                    assert app.submit(device.submission(0)).status == 204
                until(lambda: count(folder, "outcomes"))
        assert count(folder, "reports") == 3
        with App(folder) as app:
            until(lambda: not count(folder, "reports"))


# --- too much at once -----------------------------------------------------------------------------
