"""A small DRIFT federation for tests of a data owner's service: its folder, users in this process,
and the service as an application in this process or as a process of its own."""

import contextlib
import itertools

from app_world import InProcess
from proxy_world import Log
from server_world import ServerProcess, program

from sottovoce.algorithms.drift.messages import Interaction
from sottovoce.algorithms.drift.system import DRIFTConfig, Owner
from sottovoce.services.kit.application import Hosting
from sottovoce.services.owner import OwnerApplication, OwnerLimits
from sottovoce.stores.keys import RoleTokens, operator_token
from sottovoce.stores.owner_folder import create_owner_folder, keep_admission
from sottovoce.wire.interactions import Identity, begin
from sottovoce.wire.owners import OfferMade, OwnerReceipt, encode_interactions, encode_session
from sottovoce.wire.passes import Issuer
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.silo_files import Admission, FederationFile

FEDERATION = "little-town"
NUMBER = 3
ITEMS = range(40, 60)
PATIENT = {"lag_seconds": 60.0}
"""Tests share their machine with others, and are late for no fault of the service's."""


class World:
    """The folder of an admitted data owner, and whoever signs passes."""

    def __init__(self, path, *, items=ITEMS, gateway="127.0.0.1:9", settings=None):
        self.issuer = Issuer(FEDERATION)
        catalogue = tuple(f"item {n}" for n in range(100))
        self.federation = FederationFile(
            FEDERATION, self.issuer.public, settings or DRIFTConfig(), catalogue
        )
        self.folder = create_owner_folder(
            path / "bakery", self.federation, "Bakery", "https://localhost:8445", list(items)
        )
        self.admission = Admission(FEDERATION, NUMBER, "Bakery", gateway, "")
        assert keep_admission(self.folder, self.admission)

    def user(self, number=7):
        return Person(self, number)

    @property
    def operator(self):
        return {"authorization": f"Bearer {operator_token(self.folder.keys)}"}


class Person:
    """A user, with her sequence and, while it lasts, a session."""

    def __init__(self, world, number):
        self.world, self.number, self.identity = world, number, Identity()
        self.given = world.issuer.admit(number, self.identity.public)
        self.session = self.sender = None
        self.sequence = itertools.count()
        self.time = itertools.count(1000)

    def seal(self, *events):
        """Sealed messages, from (item, positive) or words like "end"."""
        return [self.seal_one(next(self.sequence), event) for event in events]

    def seal_one(self, sequence, event, time=None):
        if isinstance(event, str):
            return self.sender.seal(sequence, event)
        item, positive = event
        time = next(self.time) if time is None else time
        return self.sender.seal(sequence, "positive" if positive else "negative", item, time)

    def offer(self, ask):
        """Take an offer up; its name and the hello."""
        got = ask("POST", "/v1/offers", self.given.encode())
        assert got.status == 200, got.body
        made, public = OfferMade.decode(got.body), self.world.folder.application.public
        self.sender, hello = begin(self.number, self.identity, NUMBER, public, made.public)
        return made.offer, hello

    def begin(self, ask, *events):
        """A session, with these events in its first request."""
        offer, hello = self.offer(ask)
        got = ask("POST", "/v1/sessions", encode_session(offer, hello, self.seal(*events)))
        assert got.status == 200, got.body
        receipt = OwnerReceipt.decode(got.body, len(events))
        self.session = receipt.session
        return receipt

    def send(self, ask, *events):
        return self.post(ask, self.seal(*events))

    def post(self, ask, sealed):
        got = ask("POST", "/v1/interactions", encode_interactions(self.session, sealed))
        assert got.status == 200, got.body
        return OwnerReceipt.decode(got.body, len(sealed))


def reference(histories, items=ITEMS, settings=None):
    """What an owner must have after these events, by user, each taken once and in order."""
    owner = Owner(NUMBER, items, settings or DRIFTConfig())
    for user, events in histories.items():
        owner.admit(user)
        for time, (item, positive) in enumerate(events):
            owner.receive(Interaction(NUMBER, user, item, positive, time))
    return state_of(owner, histories)


def state_of(owner, users):
    return {
        user: (owner.stream(user), [block for who, block in owner.saved if who == user])
        for user in users
    }


def stored(folder, users):
    """The same from the owner's disk."""
    from sottovoce.stores.owner_store import OwnerStore

    with contextlib.closing(OwnerStore.open(folder.path)) as store:
        kept = store.load()
    return {
        user: (kept.streams.get(user), [block for who, block in kept.saved if who == user])
        for user in users
    }


# --- the application in this process --------------------------------------------------------------


class App(InProcess):
    def __init__(self, folder, *, limits=None, node=lambda: "none"):
        self.folder, self.log, self.node = folder, Log(), node
        self.limits = OwnerLimits(**{**PATIENT, **(limits or {})})

    def __enter__(self):
        self.owner = self.folder.owner()
        return super().__enter__()

    async def make(self):
        hosting = Hosting(
            RoleTokens(self.folder.keys), RefusalCounts(), self.limits,
            failed=lambda error: self.log.error("not stored", detail=str(error)),
        )  # fmt: skip
        return OwnerApplication(hosting, self.owner, self.node)

    def __exit__(self, *_):
        super().__exit__()
        self.owner.close()


# --- the service as a process ---------------------------------------------------------------------

RUN = program(
    "owner",
    "OwnerService",
    """
if not options.pop("users_only"):
    from sottovoce.engines.flower.silo_node import Participation
    options["join"] = Participation
""",
)


class OwnerProcess(ServerProcess):
    ready_files = "owner.json"

    def __init__(self, folder, *, limits=None, program=RUN, users_only=True, **options):
        limits = {**PATIENT, **(limits or {})}
        super().__init__(
            folder.path, program=program, limits=limits, users_only=users_only, **options
        )
