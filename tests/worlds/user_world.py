"""A federation for a user's agent: data owners with real state behind servers that a test can make
fail, and an orchestrator that enrols, shows the directory, ranks and lets go."""

import contextlib

import numpy as np
from fake_server import FakeServer, Reply

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.stores.keys import init_keys, server_context
from sottovoce.stores.owner import DataOwner, UnknownSession
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import Identity
from sottovoce.wire.owners import OfferMade, OwnerReceipt, decode_interactions, decode_session
from sottovoce.wire.passes import Issuer, Pass
from sottovoce.wire.silo_files import UserInvitation
from sottovoce.wire.users import (
    ROWS,
    VECTOR,
    Enrolled,
    Enrolment,
    Recommended,
    decode_count,
    encode_item_rows,
    encode_key,
    encode_vector,
    read_question,
)

SETTINGS = DRIFTConfig(theta=1)
CATALOGUE = tuple(f"film {n}" for n in range(12))
HELD = {"alpha": range(0, 6), "beta": range(4, 10)}
"""Who holds what; films 4 and 5 are both's, 10 and 11 nobody's."""


class OwnerPlace:
    """A data owner that can be restarted, and whose answers can be lost."""

    def __init__(self, folder, number, name, items, issuer, context, settings):
        self.folder, self.identity = folder, Identity()
        self.number, self.name = number, name
        self.owner = DataOwner.create(
            folder,
            number=number,
            name=name,
            federation=issuer.federation,
            issuer=issuer.public,
            settings=settings,
            items=items,
            identity=self.identity,
        )
        self.lose_answers = self.refuse_first = 0
        self.bodies = []
        self.events = []
        """What became of each request: path and receipt."""
        self.server = FakeServer(self.answer, context)

    def restart(self):
        self.owner.close()
        self.owner = DataOwner.open(self.folder, self.identity)

    def entry(self, authority, items):
        return OwnerEntry(
            self.number, self.name, self.server.url, self.identity.public, authority, items
        )

    def stream(self, user):
        """Items of the user's open block and finished blocks, as the owner holds them."""
        memory = self.owner._memory.owner
        return memory.stream(user)

    def answer(self, request):
        self.bodies.append((request.path, request.body))
        if self.refuse_first:
            self.refuse_first -= 1
            return Reply(503, b'{"error": "overload"}', {"Retry-After": "0"})
        try:
            reply = self._answer(request.path, request.body)
        except UnknownSession:
            return Reply(401, b'{"error": "session"}')
        except KeyTrouble:
            return Reply(403, b'{"error": "bad_pass"}')
        except MessageError:
            return Reply(401, b'{"error": "tag"}')
        if self.lose_answers and request.path != "/v1/offers":
            self.lose_answers -= 1
            return Reply(raw=b"")
        return reply

    def _answer(self, path, body):
        if path == VECTOR:
            vector = self.owner.own_vector(read_question(body).given)
            return Reply(body=encode_vector(vector, self.owner.settings.embedding_size))
        if path == "/v1/offers":
            return Reply(body=OfferMade(*self.owner.offer(Pass.decode(body))).encode())
        session = None
        if path == "/v1/sessions":
            offer, hello, sealed = decode_session(body)
            name = session = self.owner.accept(offer, hello, sealed[0])
        else:
            name, sealed = decode_interactions(body)
        taken = self.owner.take(name, sealed)
        receipt = OwnerReceipt(taken.sequence, taken.taken, taken.repeated, taken.refused, session)
        self.events.append((path, receipt))
        return Reply(body=receipt.encode())


class World:
    """`lies` of the orchestrator are set by a test: `signed` is the directory that it shows."""

    def __init__(self, folder, stack, *, secure=True, settings=SETTINGS):
        self.settings, self.rows = settings, np.zeros((0, settings.embedding_size), np.float32)
        self.issuer, self.users = Issuer("films"), Identity()
        context = None
        self.authority = ""
        if secure:
            init_keys(folder / "keys")
            context = server_context(folder / "keys")
            self.authority = (folder / "keys/ca.crt").read_text()
        self.owners = {
            name: OwnerPlace(folder / name, n, name, held, self.issuer, context, settings)
            for n, (name, held) in enumerate(HELD.items())
        }
        for place in self.owners.values():
            stack.enter_context(place.server)
            stack.callback(lambda place=place: place.owner.close())
        self.server = stack.enter_context(FakeServer(self.answer, context))
        self.tokens, self.enrolments, self.left, self.asked = {}, [], [], []
        self.away = False
        self.show(1)

    def show(self, version, *, owners=None, catalogue=CATALOGUE, issuer=None):
        """The directory from now on."""
        entries = [
            place.entry(self.authority, tuple(HELD[name]))
            for name, place in self.owners.items()
            if owners is None or name in owners
        ]
        issuer = issuer or self.issuer
        directory = Directory(
            "films", issuer.public, version, self.settings, catalogue, tuple(entries)
        )
        self.signed = directory.sign(issuer)
        return self.signed

    def invitation(self, token=b"t" * 32):
        self.tokens.setdefault(token, None)
        return UserInvitation("films", self.issuer.public, self.server.url, self.authority, token)

    def people(self, count):
        """Identities and passes of users who are enrolled already."""
        made = [Identity() for _ in range(count)]
        return [(one, self.issuer.admit(n, one.public)) for n, one in enumerate(made)]

    def answer(self, request):
        if self.away:
            return Reply(503, b"{}", {"Retry-After": "0"})
        if request.path == "/v1/directory":
            return Reply(200, self.signed, {"ETag": f'"{hash(self.signed)}"'})
        if request.path == ROWS:
            return Reply(body=encode_item_rows(self.rows))
        if request.path == "/v1/key":
            return Reply(body=encode_key(self.users.public))
        if request.path == "/v1/enrol":
            wanted = Enrolment.decode(request.body)
            self.enrolments.append(wanted)
            if not wanted.is_proven("films", self.users):
                return Reply(401, b'{"error": "bad_mac"}')
            if self.tokens.get(wanted.token, b"") not in (None, wanted.public):
                return Reply(403, b'{"error": "bad_token"}')
            self.tokens[wanted.token] = wanted.public
            given = self.issuer.admit(7, wanted.public)
            return Reply(body=Enrolled(given, self.users.public).encode())
        question = read_question(request.body)
        purpose = request.path.removeprefix("/v1/")
        if not question.is_proven(purpose, "films", self.users):
            return Reply(401, b'{"error": "bad_mac"}')
        if purpose == "leave":
            self.left.append(question.given.user)
            return Reply(204)
        n = decode_count(question.content)
        self.asked.append(n)
        best = tuple(range(len(CATALOGUE)))[:n]
        return Reply(body=_recommended(best))


def _recommended(items):
    return Recommended(items, tuple(1.0 - item / 100 for item in items)).encode()


@contextlib.contextmanager
def world(folder, **how):
    with contextlib.ExitStack() as stack:
        yield World(folder, stack, **how)
