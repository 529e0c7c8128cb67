"""A small federation with a secure sum: its proxy as an application in this process, its server in
a database, its devices by hand."""

import secrets
from dataclasses import replace

import numpy as np
from app_world import HeardLines, InProcess
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_world import RoundsWorld
from server_world import ITEMS, SEED, USERS, quick_rules

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import masked
from sottovoce.engines.client import Answer
from sottovoce.errors import Unreachable
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.services.helper import Answering, HelperApplication, HelperLimits
from sottovoce.services.kit.application import Hosting
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper, init_helper
from sottovoce.stores.keys import RoleTokens
from sottovoce.stores.sums import most_summed
from sottovoce.testing import random_world
from sottovoce.wire.masked import (
    binding,
    encode_group_question,
    encode_masked,
    encode_question,
    model_name,
    seal_seed,
)
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.terms import Terms

TOKEN = "cd" * 32
LEAST = 3
SUMS, SEEDS = "/v1/sums", "/v1/seeds"
"""Addresses of the proxy."""
NOISY = {"clip": 0.5, "noise": 1.5}


def summed_terms(key="", **changes):
    url = changes.pop("url", "https://127.0.0.1:1")
    link = SecureSum(**{"min_devices": LEAST, "url": url, "key": key, "bits": 64, **changes})
    settings = FPLConfig(embedding_size=4, triples=10)
    return Terms.of("little-town", ITEMS, settings, 10, ShareFraction(), link)


def masker_folder(path, **changes):
    """A proxy with keys of its own and the terms that name them."""
    terms = summed_terms(init_helper(path), **changes)
    return create_helper(path, HelperIntroduction(terms, TOKEN))


MODEL = bytes(range(32))
"""Name of the model that devices have learnt from."""


class MaskerApp(InProcess):
    """The proxy in this process."""

    def __init__(self, folder):
        self.folder, self.tally, self.log = folder, RefusalCounts(), HeardLines()

    async def make(self):
        hosting = Hosting(RoleTokens(self.folder.keys), self.tally, HelperLimits())
        answering = Answering(self.folder, log=self.log)
        return HelperApplication(hosting, answering, self.folder.introduction.token)

    def sums(self, question, token=TOKEN, path=SUMS):
        return self.ask("POST", path, question, {"authorization": f"Bearer {token}"})

    def seeds(self, question, token=TOKEN):
        return self.sums(question, token, SEEDS)


class SeedKeeper:
    """A device that has a key and, for every round, a seed of its own choice."""

    def __init__(self, key=None, model=MODEL):
        self.key, self.model = key or Ed25519PrivateKey.generate(), model
        self.seeds = {}

    def seed(self, round, attempt=0):
        return self.seeds.setdefault((round, attempt), secrets.token_bytes(32))

    def record(self, terms, round, attempt=0, *, seed=None, sealed_for=None):
        """Its sealed seed; `sealed_for` seals for something else than it signs."""
        bound = binding(terms, round, attempt, self.model)
        seed = self.seed(round, attempt) if seed is None else seed
        made = seal_seed(seed, self.key, terms.secure_sum, bound)
        if sealed_for is None:
            return made
        return self.signed(replace(made, sealed=self._sealed(seed, sealed_for)), bound)

    def _sealed(self, seed, sealed_for):
        terms, round, attempt = sealed_for
        bound = binding(terms, round, attempt, self.model)
        return seal_seed(seed, self.key, terms.secure_sum, bound).sealed

    def signed(self, record, bound):
        """The record in this device's name, whoever sealed it."""
        device = self.key.public_key().public_bytes_raw()
        signature = self.key.sign(b"sottovoce sealed mask seed\0" + bound + record.sealed)
        return replace(record, device=device, signature=signature)


def question(terms, round, devices, attempt=0):
    sealed = [device.record(terms, round, attempt) for device in devices]
    return encode_question(terms, round, attempt, devices[0].model if devices else MODEL, sealed)


def group_question(terms, round, groups, group=0, attempt=0):
    """For one of several groups; devices seal their seeds anew each time."""
    sealed = [[device.record(terms, round, attempt) for device in one] for one in groups]
    return encode_group_question(terms, round, attempt, MODEL, sealed, group)


class SummedWorld(RoundsWorld):
    """With a proxy in this process."""

    def __init__(
        self,
        path,
        *,
        rounds=3,
        cohort_size="all",
        link=None,
        users=USERS,
        database=None,
        **rules,
    ):
        self.users = users
        rules.setdefault("min_devices", users)
        self.folder = masker_folder(path / "masker", **(link or {}))
        terms, root = self.folder.introduction.terms, Streams.from_seed(SEED).key
        self.down, self.change, self.seeds_change = False, None, None
        self.asked, self.seeds_asked = [], []
        self.keepers = [SeedKeeper() for _ in range(users)]
        self.devices = _devices(terms, users)
        self.proxy = MaskerApp(self.folder).__enter__()
        plan = Plan(terms, cohort_size, rounds, root, quick_rules(**rules))
        super().__init__(path, plan, [keeper.key for keeper in self.keepers], database)
        for keeper in self.keepers:
            keeper.model = self.model_name()

    def coordinating(self):
        return Coordinator(self.plan, lambda: self.time, MaskedSums(self.plan, self.ask))

    def close(self):
        self.proxy.__exit__()
        super().close()

    def restart_proxy(self):
        self.proxy.__exit__()
        self.proxy = MaskerApp(self.folder).__enter__()

    def ask(self, question, path):
        """The server's line to the proxy; `change` is what somebody makes of a sum, `seeds_change`
        of what it says of seeds."""
        if self.down:
            raise Unreachable("no server answers")
        asked, change = {
            SUMS: (self.asked, self.change),
            SEEDS: (self.seeds_asked, self.seeds_change),
            "/v1/terms": ([], None),
        }[path]
        asked.append(question)
        got = self.proxy.sums(question, path=path)
        told = Answer(got.status, "", got.body)
        return told if change is None else change(told)

    def model_name(self):
        return model_name(self.model())

    def shut_numbers(self):
        return self.read(records.shut_numbers)

    def bodies(self):
        """What the server has of the open or closing round and has not added up."""
        now = self.position()
        with self.database.reading() as link:
            return dict(sums.bodies(link, now.round, now.attempt))

    def body(self, number, record=None, values=None, now=None, view=None):
        """A device's message for the present round."""
        now, view, keeper = now or self.position(), view or self.view(), self.keepers[number]
        if values is None:
            values = self.plain(number, view)
        keeper.model = model_name(view.items)
        record = record or keeper.record(self.terms, now.round, now.attempt)
        hidden = masked(values, keeper.seed(now.round, now.attempt), self.terms.bits)
        return encode_masked(self.terms, hidden, record, now.round, now.attempt)

    def plain(self, number, view=None):
        """What this device would send if the server could read it."""
        view = view or self.view()
        reports = self.devices.report(view, np.array([number]))
        whole = np.zeros(view.items.shape, np.int64)
        whole[reports.item] = reports.values
        return whole

    def kept(self):
        """What is added up of the open or closing round: the sum, and whose sealed seeds."""
        now = self.position()
        with self.database.reading() as link:
            total = sums.total(link, now.round, now.attempt)
            return total, sums.seeds(link, now.round, now.attempt)

    def submissions(self, *numbers, **changes):
        now, view = self.position(), self.view()
        made = [(n, self.body(n, now=now, view=view, **changes)) for n in numbers]
        return [
            records.Submission(now.round, now.attempt, n, records.mark_of(b"", body), body)
            for n, body in made
        ]

    def report(self, *numbers, **changes):
        batch = self.submissions(*numbers, **changes)
        with self.database.writing() as link:
            return sums.accept(link, batch, most_summed(self.terms))


def _devices(terms, users=USERS):
    world = random_world(users, ITEMS, 100, seed=SEED)
    rng, everyone = Streams.from_seed(SEED), np.arange(users, dtype=np.int64)
    consent = Consent.uniform(everyone, Choice(share_positives=0.5))
    algorithm = terms.build()
    cohort = Cohort(everyone, world, consent, algorithm.device_init(everyone, rng))
    return Devices.behind_door(
        algorithm, cohort, ShareFraction(), Ledger(), rng, link=terms.secure_sum
    )


def folded(rounds, users=USERS, **link):
    """The model by the plain sums of what devices report; a round is who sent and who was summed,
    None where it was given up, "again" where it was tried again."""
    terms = summed_terms(**link)
    devices = _devices(terms, users)
    server = Server.start(terms.build(), ITEMS, Streams.from_seed(SEED))
    for sent, counted in rounds:
        reports = {n: devices.report(server.publish(), np.array([n])) for n in sent}
        if counted is None:
            server.round += 1
        elif counted != "again":
            server.fold(server.sum_reports([reports[n] for n in counted]))
    return server.items
