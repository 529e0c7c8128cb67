"""A federation in a few lines, behind a FakeServer: what a device should meet, with hooks for what
it should not. The parties are the real ones; only the service around the server is made up."""

import json
import threading

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fake_server import FakeServer, Reply

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice
from sottovoce.errors import MessageError
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.testing import checkerboard, small_run
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.invitations import Invitation, keep_invitation
from sottovoce.wire.reports import decode_report
from sottovoce.wire.signing import open_envelope
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import encode_delta, encode_model

SEED = 5
WORLD = checkerboard(6, 20)
CONFIG = FPLConfig(embedding_size=4, triples=5)
CHOICE = Choice(share_positives=0.5)
TERMS = Terms("town-1", WORLD.n_items, CONFIG, ShareFraction())
CATALOGUE = [(f"item-{n}", f"Title {n}") for n in range(WORLD.n_items)]


def simulated(rounds, users=None, **settings):
    """What a simulation of the same federation gives."""
    world = WORLD if users is None else checkerboard(users, 20)
    settings = {"choice": CHOICE, "seed": SEED, "written": True} | settings
    return small_run(TERMS.build(), world, rounds=rounds, **settings)


class Federation:
    """Everyone who was invited is asked, unless `asked` names some."""

    def __init__(self, rounds=3, devices=1, terms=TERMS):
        self.terms, self.target, self.devices = terms, rounds, devices
        self.server = Server.start(terms.build(), terms.n_items, Streams.from_seed(SEED))
        self.changed = np.zeros(terms.n_items, dtype=np.int64)
        self.attempt, self.state = 0, "waiting"
        self.tokens = {n: bytes([n + 1]) * 32 for n in range(devices)}
        self.keys, self.accepted, self.asked = {}, {}, None
        self.posted, self.checked_in, self.enrolments = [], [], []
        self.poll_seconds, self.protocol, self.roster = 0.05, PROTOCOL, ""
        self.hook = lambda request: None
        self._turn = threading.RLock()

    @property
    def round(self):
        return self.server.round

    def serve(self, context=None):
        return FakeServer(self.answer, context)

    def answer(self, request):
        with self._turn:
            special = self.hook(request)
            return special if special is not None else self.honest(request)

    def honest(self, request):
        path, _, query = request.path.partition("?")
        parts = path.strip("/").split("/")
        if request.method == "POST":
            return getattr(self, f"_{parts[1]}")(request.body)
        if path == "/v1/round":
            body = json.dumps(self.descriptor()).encode()
            return Reply(200, body, {"ETag": f'"{hash(body)}"'})
        if path == "/v1/terms":
            return Reply(200, json.dumps(self.terms.to_table()).encode())
        if path == "/v1/catalogue":
            return Reply(200, json.dumps({"items": CATALOGUE}).encode())
        if parts[1] == "model":
            return self._model(int(parts[2]), query)
        if parts[1] == "rounds":
            return Reply(200, np.array(self.asked, dtype="<u4").tobytes())
        return Reply(404, b"{}")

    def descriptor(self):
        return {
            "protocol": self.protocol,
            "federation": self.terms.federation,
            "terms": self.terms.digest(),
            "round": self.round,
            "attempt": self.attempt,
            "state": self.state,
            "selection": "all" if self.asked is None else "list",
            "model": self.round,
            "poll_seconds": self.poll_seconds,
            **({"roster": self.roster} if self.roster else {}),
        }

    def abandon(self):
        self.attempt += 1

    def _model(self, round, query):
        if round != self.round:
            return Reply(410, b'{"error": "gone"}')
        view = self.server.publish()
        if query:
            since = int(query.removeprefix("since="))
            return Reply(200, encode_delta(since, view, self.changed > since), {"ETag": '"d"'})
        return Reply(200, encode_model(view), {"ETag": f'"{round}"'})

    def _enrol(self, body):
        table = json.loads(body)
        self.enrolments.append(table)
        for number, token in self.tokens.items():
            if bytes.fromhex(table["token"]) == token:
                if self.keys.setdefault(number, table["public_key"]) != table["public_key"]:
                    break
                if len(self.keys) == self.devices and self.state == "waiting":
                    self.state = "open" if self.target else "finished"
                return Reply(200, json.dumps({"number": number}).encode())
        return refusal(403, "bad_token")

    def _reports(self, body):
        envelope = open_envelope(body)
        self.posted.append((envelope.round, envelope.attempt, envelope.number, body))
        return self._judge(envelope, "report") or self._accept(envelope)

    def _checkin(self, body):
        envelope = open_envelope(body)
        refused = self._judge(envelope, "check-in")
        self.checked_in.append(envelope.number)
        return refused or Reply(204)

    def _judge(self, envelope, purpose):
        if envelope.number not in self.keys:
            return refusal(401, "unknown_device")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.keys[envelope.number]))
        if not envelope.signed_by(key, self.terms.federation, purpose):
            return refusal(401, "bad_signature")
        return None

    def _accept(self, envelope):
        place = (envelope.round, envelope.attempt, envelope.number)
        if place in self.accepted:
            same = self.accepted[place] == (envelope.nonce, envelope.body)
            return refusal(409, "replay" if same else "second_submission")
        if (envelope.round, envelope.attempt) != (self.round, self.attempt) or self.state != "open":
            return refusal(410, "late")
        try:
            decode_report(envelope.body, sender=0, round=self.round, **self.shape)
        except MessageError as error:
            return refusal(400, "malformed", str(error))
        self.accepted[place] = envelope.nonce, envelope.body
        there = [p for p in self.accepted if p[:2] == (self.round, self.attempt)]
        if len(there) == (self.devices if self.asked is None else len(self.asked)):
            self.close(there)
        return Reply(204)

    @property
    def shape(self):
        return {"n_items": self.terms.n_items, "width": self.terms.width}

    def close(self, there):
        before = self.server.items.copy()
        reports = [
            decode_report(self.accepted[p][1], sender=p[2], round=self.round, **self.shape)
            for p in there
        ]
        self.server.fold(self.server.sum_reports(reports))
        self.changed[(before != self.server.items).any(axis=1)] = self.round
        self.attempt = 0
        self.state = "open" if self.round < self.target else "finished"


def refusal(status, reason, detail="no"):
    return Reply(status, json.dumps({"error": reason, "detail": detail}).encode())


def make_store(path, federation, url, ca="", number=0, choice=CHOICE):
    """A device's store, as `device init`, `import` and `consent` leave it."""
    with CohortStore.create(
        path, [(number, f"user-{number}")], root_key=Streams.from_seed(SEED).key
    ) as store:
        token = federation.tokens[number].hex()
        keep_invitation(store, Invitation(url, ca, token, number, federation.terms.federation))
        store.add_history(number, [CATALOGUE[i][0] for i in WORLD.row(number)], None)
        if choice is not None:
            store.set_choice(number, choice)
    return path
