"""A federation whose reports pass a chain of shufflers, all real processes over TLS; devices are
in this process."""

import contextlib
import http.client
import json
import time

import numpy as np
from collector_world import FACTORS, ITEMS, K, folded, proxied_folder, proxied_terms, some_reports
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from proxy_world import RUN, Link, ProxyProcess
from server_world import Client, ServerProcess, enrolment

from sottovoce.core.links import Proxied
from sottovoce.engines.processes import free_port
from sottovoce.stores.keys import authority_pem, init_keys
from sottovoce.stores.server_folder import introduction, invite
from sottovoce.stores.shuffler_folder import create_shuffler_folder, init_shuffler
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.sealing import key_id
from sottovoce.wire.shuffled import (
    encode_submission,
    enrolment_statement,
    record_bytes,
    seal_for,
    terms_name,
)
from sottovoce.wire.versions import decode_model

FEW_AT_A_TIME = RUN.replace(
    "options = json.loads",
    "from sottovoce.services import shuffler_handover\nshuffler_handover.PER_PART = 7\n"
    "options = json.loads",
)
"""A shuffler's process whose batches come in several parts."""
HOUR = 3600.0
"""However busy the machine is, no round and no batch ends before all of it is there."""
USERS = 8
TIER_OF = [0, 0, 0, 1, 1, 1, 1, 1]


def enrol(folder, client, link, number):
    """A device with the server and with the proxy: its account and key there."""
    store = folder.database()
    try:
        (given,) = invite(folder, store, "https://127.0.0.1:1", [number])
    finally:
        store.close()
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    got = client.post("/v1/enrol", enrolment(given, key))
    assert got.status == 200, got.body
    admission = bytes.fromhex(got.json()["admission"])
    challenge = bytes.fromhex(link.ask("GET", "/v1/challenge").json()["challenge"])
    asked = {
        "protocol": PROTOCOL,
        "federation": given.federation,
        "public_key": public,
        "admission": admission.hex(),
        "signature": key.sign(enrolment_statement(given.federation, admission, challenge)).hex(),
        "challenge": challenge.hex(),
    }
    got = link.ask("POST", "/v1/enrol", json.dumps(asked).encode())
    assert got.status == 200, got.body
    return bytes.fromhex(got.json()["account"]), bytes.fromhex(got.json()["key"])


def submit(link, payload):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        got = link.submit(payload)
        if got.status != 503 and not (got.status == 409 and got.error == "early"):
            return got
        time.sleep(0.05)
    raise AssertionError("no answer")


def chain_link(path, shufflers, ports=None):
    """The keys of so many shufflers in folders of their own, and the link that names them."""
    ports = ports or [free_port() for _ in range(shufflers)]
    init_keys(path / "shuffler-1" / "keys")
    urls = [f"https://127.0.0.1:{port}" for port in ports]
    hops = []
    for hop in range(1, shufflers):
        place = path / f"shuffler-{hop + 1}"
        hops.append(init_shuffler(place, urls[hop]))
    return Proxied(urls[0], authority_pem(path / "shuffler-1" / "keys"), tuple(hops)), ports


class Chain:
    """A server, its shufflers and accounts of devices; anybody can be killed and started again."""

    def __init__(self, path, shufflers, *, rounds=3, users=USERS, tier_of=None, tiers=None):
        self.path, self.rounds, self.users = path, rounds, users
        self.tier_of = tier_of or TIER_OF
        self.link, self.ports = chain_link(path, shufflers)
        self.terms = proxied_terms(link=self.link, **({"tiers": tiers} if tiers else {}))
        self.folder = proxied_folder(
            path / "server", rounds=rounds, terms=self.terms, deadline_seconds=HOUR
        )
        self.server_port = free_port()
        address = f"https://127.0.0.1:{self.server_port}"
        self.folders = [
            create_shuffler_folder(
                path / f"shuffler-{hop + 1}", introduction(self.folder, address, hop)
            )
            for hop in range(shufflers)
        ]
        counts = np.bincount(self.tier_of)
        self.goal = {str(tier): int(n) for tier, n in enumerate(counts)}
        self.shufflers = [None] * shufflers
        self.server, self.sent = None, []

    def start_shuffler(self, hop):
        options = {"goal": self.goal, "hold_seconds": HOUR} if hop == 0 else {}
        self.shufflers[hop] = ProxyProcess(
            self.folders[hop], port=self.ports[hop], program=FEW_AT_A_TIME, **options
        )

    def start_server(self):
        self.server = ServerProcess(self.folder.path, port=self.server_port)

    def kill(self, hop):
        self.shufflers[hop].kill()
        self.shufflers[hop] = None

    @contextlib.contextmanager
    def running(self, without=()):
        try:
            self.start_server()
            for hop in range(len(self.shufflers)):
                if hop not in without:
                    self.start_shuffler(hop)
            with (
                Client(self.folder, self.server_port) as self.client,
                Link(self.folders[0], self.ports[0]) as self.first,
            ):
                self.accounts = [
                    enrol(self.folder, self.client, self.first, n) for n in range(self.users)
                ]
                yield self
        finally:
            for process in (self.server, *self.shufflers):
                if process is not None:
                    process.kill()

    def open_key(self, round):
        now = self.client.wait(round=round, state="open", timeout=60)
        return bytes.fromhex(now["report_key"]["public"])

    def payload(self, number, round, reports, public, **changes):
        tier = self.tier_of[number]
        account, key = self.accounts[number]
        sealed = changes.get("sealed") or seal_for(
            reports, public, self.terms, round=round, tier=tier
        )
        return encode_submission(
            account, key, round, tier, key_id(public), sealed, terms=terms_name(self.terms),
            size=record_bytes(self.link, 0),
        )  # fmt: skip

    def send(self, payload):
        """Until it is answered, whoever is killed meanwhile."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                got = submit(self.first, payload)
                assert got.status == 204 or got.error == "replay", got.body
                return
            self.first.close()
            time.sleep(0.02)
        raise AssertionError("no answer")

    def play(self, round, between=lambda number: None):
        """Every device sends; `between` is called after each."""
        public = self.open_key(round)
        reports = some_reports(self.users, round).reshape(self.users, K)
        for number in range(self.users):
            self.send(self.payload(number, round, reports[number], public))
            between(number)
        tiers = np.array(self.tier_of)
        self.sent.append({t: reports[tiers == t].ravel() for t in np.unique(tiers).tolist()})

    def model(self):
        self.client.wait(round=self.rounds, state="finished", timeout=120)
        got = self.client.get(f"/v1/model/{self.rounds}")
        return decode_model(got.body, n_items=ITEMS, width=FACTORS).items

    def expected(self):
        return folded(self.sent)
