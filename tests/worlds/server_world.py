"""A small federation for tests of the server: real processes, real TLS, devices in this process."""

import contextlib
import http.client
import json
import os
import secrets
import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forked import ForkedProcess

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.parties.device import Devices
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.stores.acts import Actor, Acts
from sottovoce.stores.keys import authority_pem, device_context, operator_token
from sottovoce.stores.server_folder import create_folder, invite
from sottovoce.testing import random_world, small_run
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.reports import encode_report
from sottovoce.wire.signing import prove, seal
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model

SEED = 5
USERS, ITEMS = 8, 40


def terms(**changes):
    settings = FPLConfig(embedding_size=4, triples=10, **changes)
    return Terms.of("little-town", ITEMS, settings, 10, ShareFraction())


def quick_rules(**changes):
    return RoundRules(
        **{
            "over_selection": 0.0,
            "min_devices": USERS,
            "deadline_seconds": 3600.0,  # however busy the machine is
            "poll_seconds": 0.2,
            "grace_seconds": 0.0,
            **changes,
        }
    )


def new_folder(path, *, rounds=3, cohort_size="all", **rules):
    return create_folder(
        path,
        terms(),
        [(f"v{n}", f"Venue {n}") for n in range(ITEMS)],
        cohort_size=cohort_size,
        rounds=rounds,
        root_key=Streams.from_seed(SEED).key,
        rules=quick_rules(**rules),
    )


def simulated(rounds, cohort_size=None, defence=NO_DEFENCE):
    """The model of the same federation in simulation."""
    world = random_world(USERS, ITEMS, 100, seed=SEED)
    return small_run(
        terms().build(),
        world,
        rounds=rounds,
        cohort_size=cohort_size,
        choice=Choice(share_positives=0.5),
        seed=SEED,
        defence=defence,
    ).items


def acting(database, folder=None, who="anna", how="command", **options):
    """What an operator does."""
    if folder is None:  # what is asked of it most
        plan = SimpleNamespace(proxied=False)
        folder = SimpleNamespace(plan=plan, require_own_rounds=lambda instead: None)
    return Acts(folder, database, Actor(who, how), **options)


# --- the server's process -------------------------------------------------------------------------


def program(module, service, before=""):
    """A process that serves a folder; `before` it does, it may look at its `options`."""
    return f"""
import json, os, sys
from pathlib import Path
from sottovoce.services.{module} import {service}
from sottovoce.services.kit.serving import serve
from sottovoce.errors import SottovoceError
options = json.loads(sys.argv[2])
{before}
if "database" in options:
    os.environ["SOTTOVOCE_DATABASE"] = options.pop("database")
limits = {service}.limits(**options.pop("limits", {{}}))
where = {{name: options.pop(name) for name in ("port", "plaintext") if name in options}}
try:
    serve({service}(**options), Path(sys.argv[1]), limits=limits, **where)
except SottovoceError as error:
    print(f"error: {{error}}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


RUN = program("server.process", "ServerService")


class ServerProcess:
    ready_files = "server*.json"

    def __init__(self, path, *, wait=True, program=RUN, **options):
        self.path = path
        options.setdefault("port", 0)
        self.log = path / f"server-{secrets.token_hex(3)}.log"
        with self.log.open("w") as log:
            self.process = ForkedProcess(program, path, json.dumps(options), output=log)
        self.ready = None
        if wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self.kill()
                raise

    def wait_until_ready(self):
        end = time.monotonic() + 600
        while time.monotonic() < end:
            for place in self.path.glob(self.ready_files):
                with contextlib.suppress(ValueError, FileNotFoundError):
                    found = json.loads(place.read_text())
                    if found["pid"] == self.process.pid:
                        self.ready = found
                        return
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log.read_text()}")
            time.sleep(0.02)
        raise AssertionError(f"the server is not ready: {self.log.read_text()}")

    @property
    def url(self):
        return self.ready["url"]

    @property
    def port(self):
        return self.ready["port"]

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


# --- talking to it --------------------------------------------------------------------------------


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class Client:
    """One connection, as long as it lasts."""

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.context = device_context(authority_pem(folder.keys))
        self.link = None

    def ask(self, method, path, body=None, headers=None):
        for turn in (0, 1):
            if self.link is None:
                self.link = http.client.HTTPSConnection(
                    "127.0.0.1", self.port, context=self.context, timeout=30
                )
            try:
                self.link.request(method, path, body=body, headers=headers or {})
                got = self.link.getresponse()
                found = {k.lower(): v for k, v in got.getheaders()}
                return Answer(got.status, found, got.read())
            except OSError:  # also an idle connection that was closed there
                self.close()
                if turn:
                    raise
        raise AssertionError

    def get(self, path, **headers):
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path, body):
        return self.ask("POST", path, body=body)

    def operator(self, method, path, content=None):
        token = operator_token(self.folder.keys)
        body = None if content is None else json.dumps(content)
        return self.ask(method, path, body=body, headers={"Authorization": f"Bearer {token}"})

    def status(self):
        return self.operator("GET", "/v1/operator/status").json()

    def round(self):
        return self.get("/v1/round").json()

    def wait(self, *, timeout=600, **wanted):
        """Until the descriptor says so."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            now = self.round()
            if all(now.get(k) == v for k, v in wanted.items()):
                return now
            time.sleep(0.02)
        raise AssertionError(f"{now} is not {wanted}")

    def model(self, round, have=None):
        since = "" if have is None else f"?since={have.round}"
        got = self.get(f"/v1/model/{round}{since}")
        assert got.status == 200, got.body
        ours = self.folder.plan.terms
        return decode_model(got.body, n_items=ours.n_rows, width=ours.width, have=have)

    def close(self):
        if self.link is not None:
            self.link.close()
        self.link = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@dataclass
class Fleet:
    """All devices of the small federation. What they sent is kept, so that it can be sent again."""

    users: int = USERS
    keys: list = field(default_factory=list)
    sent: dict = field(default_factory=dict)

    def __post_init__(self):
        world = random_world(USERS, ITEMS, 100, seed=SEED)
        rng, everyone = Streams.from_seed(SEED), np.arange(USERS, dtype=np.int64)
        algorithm = terms().build()
        consent = Consent.uniform(everyone, Choice(share_positives=0.5))
        cohort = Cohort(everyone, world, consent, algorithm.device_init(everyone, rng))
        self.devices = Devices.behind_door(algorithm, cohort, ShareFraction(), Ledger(), rng)
        self.keys = [Ed25519PrivateKey.generate() for _ in range(USERS)]

    def enrol(self, folder, client, database=None, numbers=None):
        numbers = range(self.users) if numbers is None else numbers
        store = folder.database(database)
        try:
            invitations = invite(folder, store, "https://127.0.0.1:1", list(numbers))
        finally:
            store.close()
        for invitation in invitations:
            key = self.keys[invitation.number]
            got = client.post("/v1/enrol", enrolment(invitation, key))
            assert got.status == 200, got.body
            assert got.json() == {"number": invitation.number}

    def report(self, number, view, attempt=0):
        """This device's submission in a round, always the same one."""
        key = (view.round, attempt, number)
        if key not in self.sent:
            reports = self.devices.report(view, np.array([number]))
            self.sent[key] = self.sealed(number, view.round, attempt, encode_report(reports))
        return self.sent[key]

    def sealed(self, number, round, attempt, body, purpose="report", **changes):
        return seal(
            changes.get("key", self.keys[number]),
            changes.get("federation", terms().federation),
            purpose,
            number=number,
            round=round,
            attempt=attempt,
            nonce=changes.get("nonce", secrets.token_bytes(16)),
            body=body,
        )

    def run_round(self, client, numbers=None):
        """Every asked device reports; returns the answers."""
        now = client.round()
        view = client.model(now["model"])
        numbers = range(self.users) if numbers is None else numbers
        return [
            client.post("/v1/reports", self.report(n, view, now["attempt"])).status for n in numbers
        ]


def enrolment(invitation, key, **changes):
    """What the holder of the private key `key` sends, or with some other fields."""
    token = invitation.token
    table = {
        "protocol": PROTOCOL,
        "token": token,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": prove(key, invitation.federation, bytes.fromhex(token)).hex(),
    }
    return json.dumps(table | changes)


def selected(client, round, attempt):
    got = client.get(f"/v1/rounds/{round}/{attempt}/selected")
    assert got.status == 200, got.body
    return np.frombuffer(got.body, "<u4").tolist()
