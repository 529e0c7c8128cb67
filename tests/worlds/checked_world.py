"""A small federation with a checked sum: two aggregators as applications in this process, its
server, which is the first one, in a database, its devices by hand, honest and not."""

import hashlib
import secrets
from dataclasses import replace

import numpy as np
from app_world import HeardLines, InProcess
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_world import RoundsWorld
from server_world import quick_rules

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SHARED_RECORD_BYTES, CheckedSum
from sottovoce.core.shares import P, bits_of, split
from sottovoce.engines.client import Answer
from sottovoce.errors import Unreachable
from sottovoce.parties.helper import sum_name
from sottovoce.parties.secure_sum import summed
from sottovoce.parties.server import Server
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import streams_of
from sottovoce.services.aggregator import AggregatorApplication, AggregatorLimits, Opening
from sottovoce.services.kit.application import Hosting
from sottovoce.services.server.checked_rounds import CheckedSums
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.aggregator_folder import (
    AggregatorIntroduction,
    create_aggregator,
    first_rules,
    init_aggregator,
    init_first,
)
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.keys import RoleTokens
from sottovoce.stores.sums import most_summed
from sottovoce.wire import shared
from sottovoce.wire.masked import model_name
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.shared import About, SharedRecord
from sottovoce.wire.terms import Terms

ITEMS, DEVICES, LEAST = 70, 8, 4
TOKENS = {1: "ab" * 32, 2: "cd" * 32}
NAMED = {"urls": ("https://one", "https://two"), "authorities": ("one", "two")}


def checked_folders(path, items=ITEMS, config=None, server="keys", **link):
    """Two folders of aggregators, and the server's key folder, with the terms that name them."""
    keys = [init_first(path / server), *(init_aggregator(path / f"a{n}") for n in (1, 2))]
    way = CheckedSum(**{"min_devices": LEAST, **NAMED, **link}, keys=tuple(keys))
    config = config or GramConfig(popularity_share=0.3, least_head=6, most_head=6)
    terms = Terms("town", items, config, OwnEpsilon(8.0), way)
    folders = {
        n: create_aggregator(path / f"a{n}", AggregatorIntroduction(terms, TOKENS[n], n))
        for n in (1, 2)
    }
    return terms, folders


class AggregatorApp(InProcess):
    """An aggregator in this process."""

    def __init__(self, folder):
        self.folder, self.tally, self.log = folder, RefusalCounts(), HeardLines()

    async def make(self):
        hosting = Hosting(RoleTokens(self.folder.keys), self.tally, AggregatorLimits())
        self.shares = self.folder.shares()
        self.answering = Opening(self.folder, self.shares, log=self.log)
        introduced = self.folder.introduction
        return AggregatorApplication(hosting, self.answering, introduced.token)

    def __exit__(self, *_):
        super().__exit__()
        self.shares.close()

    def post(self, path, question, token=None):
        token = self.folder.introduction.token if token is None else token
        got = self.ask("POST", path, question, {"authorization": f"Bearer {token}"})
        return Answer(got.status, "", got.body)


def forged(secrets_of, travelled, key, link, bound, *, sealed=(), committed=(), digest=None):
    """A record as `make_record` makes it, but for what is given: by aggregator what is sealed to
    it, by place what is committed to, and the hash of what travels."""
    device = key.public_key().public_bytes_raw()
    sealed, committed = dict(sealed), dict(committed)
    commitments = tuple(
        shared._commitment(bound, k, committed.get(k, one)) for k, one in enumerate(secrets_of)
    )
    boxes = tuple(
        shared._SUITE.encrypt(
            sealed.get(k, secrets_of[k] + secrets_of[(k + 1) % 3]),
            public,
            info=shared._info(bound, k, device),
        )
        for k, public in enumerate(shared.public_keys(link))
    )
    digest = hashlib.sha256(travelled).digest() if digest is None else digest
    made = SharedRecord(device, commitments, digest, boxes, b"")
    return replace(made, signature=key.sign(shared._SIGNED_FOR + bound + made.said))


class CheckedWorld(RoundsWorld):
    """With both aggregators in this process."""

    def __init__(self, path, *, devices=DEVICES, rounds=2, least=LEAST, items=ITEMS, **link):
        self.path, self.items = path, items
        terms, self.folders = checked_folders(path, items, min_devices=least, **link)
        self.link = terms.link
        self.apps = {n: AggregatorApp(one).__enter__() for n, one in self.folders.items()}
        self.down, self.asked = set(), []
        self.before = lambda number, path: None
        """Called before an aggregator is asked."""
        self.change = lambda number, path, question: question
        """What somebody makes of a question on its way."""
        self.names = {}
        """Of all accepted submissions, by round."""
        self.keys = [Ed25519PrivateKey.generate() for _ in range(devices)]
        self.rng = np.random.default_rng(0)
        rules = quick_rules(min_devices=least, deadline_seconds=100.0)
        super().__init__(path, Plan(terms, "all", rounds, 1, rules), self.keys)
        self.step()

    def coordinating(self):
        rules = first_rules(self.terms, self.path / "keys")
        asks = {n: lambda question, path, n=n: self.ask(n, question, path) for n in (1, 2)}
        return Coordinator(self.plan, lambda: self.time, CheckedSums(self.plan, *rules, asks))

    def close(self):
        for app in self.apps.values():
            app.__exit__()
        super().close()

    def restart_aggregator(self, number):
        self.apps[number].__exit__()
        self.apps[number] = AggregatorApp(self.folders[number]).__enter__()

    def ask(self, number, question, path):
        self.before(number, path)
        if number in self.down:
            raise Unreachable("nobody answers")
        question = self.change(number, path, question)
        self.asked.append((number, path, question))
        return self.apps[number].post(path, question)

    # --- the server -------------------------------------------------------------------------------

    def finish(self):
        """The open round, to its end."""
        self.time += 1000.0
        assert self.step() == ["closing"]
        self.time += 1000.0
        return self.step()

    def out(self, round=0):
        return self.read(sums.who_is_out, round, 0)

    # --- devices ----------------------------------------------------------------------------------

    @property
    def about(self):
        now, view = self.position(), self.view()
        numbers = self.terms.build().report_shape(view)[0]
        name = model_name(view.items)
        return About.of(self.terms, now.round, now.attempt, name, numbers)

    @property
    def form(self):
        about = self.about
        return self.coordinator.collection._rules.form(about.round, about.numbers)

    def entries(self):
        """An honest device's."""
        form = self.form
        found = self.rng.integers(0, form.most + 1, form.places)
        while (found**2).sum() > form.bound or found.max() * found.sum() > (form.loudness or P):
            found[self.rng.integers(form.places)] = 0
        return found

    def bits(self, entries=None):
        entries = self.entries() if entries is None else np.asarray(entries)
        return bits_of(self.form, entries[None, :])[0]

    def sent(self, number, bits=None, about=None, **changes):
        """Record and what travels, of a device that shares these bits."""
        bits = self.bits() if bits is None else bits
        secret = tuple(secrets.token_bytes(32) for _ in range(3))
        travelled = split(bits, secret).astype("<u4").tobytes()
        travelled = changes.pop("travelled", travelled)
        changes = {k: v(secret) if callable(v) else v for k, v in changes.items()}
        bound = (about or self.about).bound(self.terms)
        record = forged(secret, travelled, self.keys[number], self.link, bound, **changes)
        return record, travelled

    def body(self, number, *args, **changes):
        record, travelled = self.sent(number, *args, **changes)
        now = self.position()
        return shared.encode_shared(travelled, record, now.round, now.attempt)

    def send(self, number, body=None):
        """What a device has brought past the server's door."""
        now, body = self.position(), body or self.body(number)
        mark = records.mark_of(b"", body)
        batch = [records.Submission(now.round, now.attempt, number, mark, body)]
        with self.database.writing() as at:
            decision = sums.accept(at, batch, most_summed(self.terms))[0]
        if decision == "accepted":
            record = SharedRecord.of(body[-SHARED_RECORD_BYTES:])
            self.names.setdefault(now.round, []).append(record.name)
        return decision

    def honest(self, *numbers):
        """These devices contribute; what they add up to, in the sum's own steps."""
        total = np.zeros(self.form.numbers, np.int64)
        for number in numbers:
            entries = self.entries()
            total += written(self.form, entries)
            assert self.send(number, self.body(number, self.bits(entries))) == "accepted"
        return total

    def model_after(self, total, names=None):
        """By the plain sum over all that was accepted so far, or over these submissions, and the
        noise of whoever adds it."""
        about, view, form = self.about, self.view(), self.form
        rules, _ = first_rules(self.terms, self.path / "keys")
        names = self.names[about.round] if names is None else names
        name = sum_name(about.bound(self.terms), names)
        secret = {number: folder.noise_secret() for number, folder in self.folders.items()}
        others = [replace(rules, number=n, noise_secret=one) for n, one in secret.items()]
        for one in (rules, *others):
            noise = one.noise(about.round, about.numbers, name)
            total = total if noise is None else total + noise
        algorithm = self.terms.build()
        memory = self.read(records.memory, about.round, len(view.items))
        server = Server(algorithm, view.items, streams_of(1), about.round, memory)
        step = self.link.grid(form).step
        server.fold(summed(about.round, step * total[:, None], len(names)))
        return server.items


def written(form, entries):
    """What one device adds to the sum."""
    entries = np.asarray(entries, np.int64)
    if not form.pairs:
        return entries
    first, second = np.triu_indices(form.places, 1)
    return np.concatenate([entries**2, entries[first] * entries[second]])


HALF = (P + 1) // 2
