"""A small federation for tests of the proxy: a server that a test plays, devices in this process,
and the proxy as an application in this process or as a process of its own."""

import contextlib
import json
import secrets
import threading
from dataclasses import dataclass, field

from app_world import InProcess
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fake_server import FakeServer, Reply
from server_world import Client, ServerProcess, program

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import Proxied
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.services import shuffler_handover as proxy_handover
from sottovoce.services.kit.application import Hosting
from sottovoce.services.kit.cors import NO_ORIGINS
from sottovoce.services.shuffler import ShufflerApplication, ShufflerLimits
from sottovoce.stores.keys import RoleTokens
from sottovoce.stores.server_folder import Introduction, admit, enrolment_statement
from sottovoce.stores.shuffler_folder import create_shuffler_folder
from sottovoce.wire.frames import BATCH_PART, PROTOCOL
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.sealing import SEALED_BYTES, key_id
from sottovoce.wire.shuffled import decode_part, encode_submission, terms_name
from sottovoce.wire.terms import Terms

FEDERATION = "little-town"
TOKEN = "ab" * 32
PATIENT = {"lag_seconds": 60.0}
"""Tests share their machine with others, and are late for no fault of the proxy's."""


def proxy_terms(reports=4, minimum=(3, 2)):
    tiers = tuple(Tier(1.0 + n, least) for n, least in enumerate(minimum))
    return Terms(FEDERATION, 40, FMFConfig(), KReports(reports, tiers), Proxied())


class Server(FakeServer):
    """Publishes a round and takes batches as the real one does; a test moves it on."""

    def __init__(self, terms=None, poll_seconds=0.2):
        super().__init__(self._reply)
        self.terms, self.poll_seconds = terms or proxy_terms(), poll_seconds
        self.admission_key = Ed25519PrivateKey.generate()
        self.parts = {}
        """Parts that were stored, by round, tier and number."""
        self.down = False
        self.answers = []
        """What the next batches are answered, instead of what is right."""
        self.seen = []
        """Head and body of every request for /v1/batches that has reports."""
        self.announced = {}
        """The mark of the batch of each round and tier."""
        self.dropped = set()
        """Round and tier of batches of which a shuffler has said that it dropped them."""
        self.remembers = True
        """A server that works against the shuffler forgets which batches were announced."""
        self._lock = threading.Lock()
        self.move(0)

    def move(self, round, state="open"):
        self.round, self.state = round, state
        self.public = X25519PrivateKey.generate().public_key().public_bytes_raw()

    @property
    def key(self):
        return key_id(self.public)

    def introduction(self):
        verifying = self.admission_key.public_key().public_bytes_raw().hex()
        return Introduction(self.url, "", FEDERATION, verifying, TOKEN)

    def descriptor(self):
        told = {
            "protocol": PROTOCOL,
            "federation": FEDERATION,
            "terms": self.terms.digest(),
            "round": self.round,
            "attempt": 0,
            "state": self.state,
            "selection": "all",
            "model": self.round,
            "poll_seconds": self.poll_seconds,
        }
        if self.state == "open":
            told["report_key"] = {"id": self.key.hex(), "public": self.public.hex()}
        return told

    def _reply(self, request):
        if self.down:
            return Reply(raw=b"")
        if request.path == "/v1/round":
            return Reply(body=json.dumps(self.descriptor()).encode())
        if request.path == "/v1/terms":
            return Reply(body=json.dumps(self.terms.to_table()).encode())
        with self._lock:
            if len(request.body) == BATCH_PART.size:
                return self._announce(decode_part(request.body))
            self.seen.append((request.headers, request.body))
            return self._take(request)

    def _announce(self, part):
        where = part.round, part.tier
        if part.round != self.round or self.state != "open":
            return _refusal(409, "late")
        if self.remembers and self.announced.setdefault(where, part.mark) != part.mark:
            return _refusal(409, "second_submission")
        if part.says_dropped:
            self.dropped.add(where)
        return Reply(204)

    def _take(self, request):
        if self.answers:
            return self.answers.pop(0)
        if request.headers.get("authorization") != f"bearer {TOKEN}":
            return _refusal(401, "unknown_proxy")
        part = decode_part(request.body)
        if (part.round, self.state) != (self.round, "open"):
            return _refusal(409, "late")
        where = part.round, part.tier, part.part
        if where in self.parts:
            return _refusal(409, "replay")
        least = self.terms.release.tiers[part.tier].min_devices
        if part.devices < least or part.key != self.key:
            return _refusal(400, "malformed")
        self.parts[where] = part
        return Reply(204)

    def batch(self, round, tier):
        """All records of a batch in their order; None where it is not complete."""
        found = [p for (r, t, _), p in sorted(self.parts.items()) if (r, t) == (round, tier)]
        if not found or len(found) != found[0].parts:
            return None
        body = b"".join(part.body for part in found)
        return [body[at : at + SEALED_BYTES] for at in range(0, len(body), SEALED_BYTES)]


def _refusal(status, error):
    return Reply(status, json.dumps({"error": error, "detail": "no"}).encode())


def challenge_of(ask):
    return bytes.fromhex(ask("GET", "/v1/challenge").json()["challenge"])


@dataclass
class Device:
    """A device with an account. Its reports are random bytes of the right size: the proxy cannot
    tell them from sealed ones."""

    server: Server
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    account: bytes = b""
    account_key: bytes = b""
    sent: dict = field(default_factory=dict)

    def enrolment(self, challenge, **changes):
        public = self.key.public_key().public_bytes_raw()
        admission = admit(self.server.admission_key, FEDERATION, public)
        return json.dumps(
            {
                "protocol": PROTOCOL,
                "federation": FEDERATION,
                "public_key": public.hex(),
                "admission": admission.hex(),
                "signature": self.key.sign(
                    enrolment_statement(FEDERATION, admission, challenge)
                ).hex(),
                "challenge": challenge.hex(),
                **changes,
            }
        ).encode()

    def enrol(self, ask):
        got = ask("POST", "/v1/enrol", self.enrolment(challenge_of(ask)))
        assert got.status == 200, got.body
        self.account = bytes.fromhex(got.json()["account"])
        self.account_key = bytes.fromhex(got.json()["key"])
        return self

    def submission(self, round, tier=0, *, key=None, reports=None, terms=None, fresh=False):
        """What it sends in a round; the same again unless it is `fresh`."""
        count = self.server.terms.release.max_reports if reports is None else reports
        if fresh or (round, tier) not in self.sent:
            sealed = secrets.token_bytes(count * SEALED_BYTES)
            key = self.server.key if key is None else key
            made = encode_submission(
                self.account, self.account_key, round, tier, key, sealed,
                terms=terms_name(terms or self.server.terms),
            )  # fmt: skip
            if fresh:
                return made
            self.sent[round, tier] = made
        return self.sent[round, tier]

    def records(self, round, tier=0):
        body = self.sent[round, tier][-SEALED_BYTES * self.server.terms.release.max_reports :]
        return [body[at : at + SEALED_BYTES] for at in range(0, len(body), SEALED_BYTES)]


# --- the application in this process --------------------------------------------------------------


class Log:
    def __init__(self):
        self.lines = []

    def info(self, what, **facts):
        self.lines.append((what, facts))

    error = info


class App(InProcess):
    def __init__(
        self,
        folder,
        *,
        limits=None,
        hold_seconds=0.0,
        goal=None,
        forwarder=True,
        origins=NO_ORIGINS,
    ):
        self.folder, self.log, self._origins = folder, Log(), origins
        self.limits = limits or ShufflerLimits(**PATIENT)
        self._options = {"goal": goal or {}, "hold_seconds": hold_seconds}
        self._forwarder = forwarder

    def __enter__(self):
        self.store = self.folder.store()
        self.forwarder = proxy_handover.Forwarder(
            self.folder, self.store, self.log, **self._options
        )
        self.tally = RefusalCounts()
        super().__enter__()
        if self._forwarder:
            self.forwarder.start(lambda: None)
        return self

    async def make(self):
        hosting = Hosting(
            RoleTokens(self.folder.keys), self.tally, self.limits,
            failed=lambda error: self.log.error("not stored", detail=str(error)),
        )  # fmt: skip
        parts = self.folder, self.store, self.forwarder
        return ShufflerApplication(hosting, *parts, self._origins)

    def __exit__(self, *_):
        if self._forwarder:
            self.forwarder.stop()
        super().__exit__()
        self.store.close()

    def submit(self, payload):
        return self.ask("POST", "/v1/submissions", payload)


# --- the proxy as a process -----------------------------------------------------------------------

RUN = program(
    "shuffler",
    "ShufflerService",
    """
goal = options.pop("goal", {})
options["goal"] = {int(tier) if tier else None: n for tier, n in goal.items()}
""",
)


class ProxyProcess(ServerProcess):
    ready_files = "proxy.json"

    def __init__(self, folder, *, limits=None, program=RUN, **options):
        limits = {**PATIENT, **(limits or {})}
        super().__init__(folder.path, program=program, limits=limits, **options)


class Link(Client):
    """One connection to a proxy's process, opened again where it was lost."""

    def submit(self, payload):
        return self.post("/v1/submissions", payload)


@contextlib.contextmanager
def proxied(path, **options):
    """A server, the folder of its proxy and some devices that are not enrolled yet."""
    with Server(**options) as server:
        yield server, create_shuffler_folder(path / "proxy", server.introduction())
