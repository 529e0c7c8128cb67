"""An orchestrator for tests: its folder, data owners that exist on paper, and users in this
process."""

import time

from app_world import InProcess
from server_world import Client, ServerProcess, program

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.services.kit.application import Hosting
from sottovoce.services.orchestrator import OrchestratorApplication, OrchestratorLimits, stands
from sottovoce.stores.keys import RoleTokens, authority_pem, init_keys, node_keys
from sottovoce.stores.orchestrator_folder import admit, create_orchestrator_folder, invite
from sottovoce.wire.directory import Directory
from sottovoce.wire.interactions import Identity
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.silo_files import Application
from sottovoce.wire.users import Enrolled, Enrolment, ask, decode_key

ITEMS = tuple(f"film {n}" for n in range(10))
ROOT = 77


def new_folder(path, **options):
    options = {"root_key": ROOT, **options}
    return create_orchestrator_folder(path / "town", ITEMS, DRIFTConfig(theta=2), **options)


def application(path, name, items, port=9999):
    """As an owner would write it; its keys are in a folder of `path`."""
    folder = path / f"keys of {name}"
    if not folder.exists():
        init_keys(folder)
        node_keys(folder, "node")
        (folder / "identity").write_bytes(Identity().private_bytes())
    return Application(
        name,
        f"https://127.0.0.1:{port}",
        Identity((folder / "identity").read_bytes()).public,
        authority_pem(folder),
        (folder / "node.pub").read_text(),
        tuple(items),
    )


def let_in(folder, store, path, name, items):
    return admit(folder, store, application(path, name, items), "127.0.0.1:9092")


def key_of(ask):
    return decode_key(ask("GET", "/v1/key").body)


class User:
    """Knows her invitation, then her pass."""

    def __init__(self, invitation, identity=None):
        self.invitation, self.identity = invitation, identity or Identity()

    def enrol(self, ask):
        answer = ask("POST", "/v1/enrol", self.enrolment(key_of(ask)))
        if answer.status == 200:
            mine = self.invitation
            given = Enrolled.decode(answer.body, mine.federation, mine.issuer, self.identity.public)
            self.given, self.orchestrator = given.given, given.orchestrator
        return answer

    def enrolment(self, orchestrator):
        mine = self.invitation
        return Enrolment.of(mine.token, self.identity, mine.federation, orchestrator).encode()

    def asks(self, purpose, content=b"", *, now=None, **changes):
        with_ = {
            "given": self.given,
            "identity": self.identity,
            "federation": self.invitation.federation,
            "orchestrator": self.orchestrator,
            **changes,
        }
        return ask(purpose, content, now=time.time() if now is None else now, **with_)

    def directory(self, body):
        return Directory.read(body, self.invitation.federation, self.invitation.issuer)


class App(InProcess):
    def __init__(self, folder, *, clock=time.time, **limits):
        self.folder, self._clock = folder, clock
        self.limits = OrchestratorLimits(**{"look_seconds": 0.0, **limits})

    def __enter__(self):
        self.store = self.folder.store()
        self.tally = RefusalCounts()
        return super().__enter__()

    async def make(self):
        hosting = Hosting(RoleTokens(self.folder.keys), self.tally, self.limits)
        keys = self.folder.issuer(), self.folder.users_identity()
        return OrchestratorApplication(hosting, self.store, *keys, clock=self._clock)

    def __exit__(self, *_):
        super().__exit__()
        self.store.close()

    def users(self, count):
        found = [User(i) for i in invite(self.folder, self.store, count, "https://127.0.0.1:1")]
        for user in found:
            assert user.enrol(self.ask).status == 200
        return found

    def refused(self):
        return stands(self.store, self.tally)["refused"]


RUN = program("orchestrator", "OrchestratorService")


class OrchestratorProcess(ServerProcess):
    """Serves users, and holds no rounds."""

    ready_files = "orchestrator.json"

    def __init__(self, folder, **options):
        self.folder = folder
        super().__init__(folder.path, program=RUN, **options)

    def client(self):
        return Client(self.folder, self.port)
