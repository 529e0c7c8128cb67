"""One person in federations of every kind, each with real messages over a real socket: for tests of
the consent centre. Servers keep every byte; whoever can open a message does so by its real key."""

import json
import secrets
from dataclasses import dataclass, field

from consent_world import CATALOGUE, CATEGORIES, ITEMS, GramTown, gram_terms, newcomer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fake_federation import refusal
from fake_server import FakeServer, Reply

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.links import CheckedSum, Direct, Proxied, SecureSum
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.stores.aggregator_folder import init_aggregator, init_first
from sottovoce.stores.helper_folder import init_helper
from sottovoce.stores.keys import ReportKey
from sottovoce.stores.server_folder import admit, is_admitted
from sottovoce.wire.sealing import open_reports
from sottovoce.wire.shuffled import decode_submission, is_authentic, terms_name
from sottovoce.wire.terms import Terms

K = 6
TIERS = (Tier(0.5, 2), Tier(2.0, 2))
FILTERS = (
    FilterConfig("gender", ("f", "m"), (0.5, 0.5)),
    FilterConfig("age", ("young", "old"), (0.6, 0.4)),
)
NOISE = {"clip": 0.5, "noise": 20.0}
PEOPLE = 5


class Town(GramTown):
    """Any federation of devices, whose rounds move on when a test says so."""

    def next_round(self):
        if self.terms.contributes:
            super().next_round()
        else:
            self._round += 1


class Shuffler:
    """Takes what it is sent, as a real one would."""

    def __init__(self):
        self.accounts, self.taken, self.challenges = {}, {}, []
        self.town = None
        self.server = FakeServer(self.answer)

    def answer(self, request):
        if request.path == "/v1/terms":
            return Reply(200, json.dumps(self.town.terms.to_table()).encode())
        if request.path == "/v1/challenge":
            self.challenges.append(secrets.token_bytes(48))
            return Reply(200, json.dumps({"challenge": self.challenges[-1].hex()}).encode())
        if request.path == "/v1/enrol":
            return self._enrol(json.loads(request.body))
        return self._submit(request.body)

    def _enrol(self, table):
        names = ("public_key", "admission", "signature", "challenge")
        public, word, signature, challenge = (bytes.fromhex(table[name]) for name in names)
        known = self.town.signing.public_key().public_bytes_raw()
        if not is_admitted(known, table["federation"], public, word, signature, challenge):
            return refusal(403, "bad_admission")
        account = public[:16]
        self.accounts[account] = secrets.token_bytes(32)
        told = {"account": account.hex(), "key": self.accounts[account].hex()}
        return Reply(200, json.dumps(told).encode())

    def _submit(self, body):
        found = decode_submission(body, K, len(TIERS))
        if found.account not in self.accounts or not is_authentic(
            body, self.accounts[found.account]
        ):
            return refusal(401, "unknown_account")
        if found.terms != terms_name(self.town.terms):
            return refusal(409, "other_terms")
        self.taken[found.round] = body
        return Reply(204)

    def opened(self, round):
        """What the server reads of a round: tier and reports."""
        found = decode_submission(self.taken[round], K, len(TIERS))
        reports, bad = open_reports(
            found.reports,
            self.town.report_key.private,
            federation=self.town.terms.federation,
            round=round,
            tier=found.tier,
        )
        assert bad == 0
        return found.tier, reports


class ShuffledTown(Town):
    def __init__(self, terms, shuffler):
        super().__init__(terms)
        self.state, self.shuffler = "open", shuffler
        self.report_key = ReportKey.of(secrets.token_bytes(32))
        self.signing = Ed25519PrivateKey.generate()
        shuffler.town = self

    def descriptor(self):
        key = self.report_key
        shown = {"report_key": {"id": key.id.hex(), "public": key.public.hex()}}
        return super().descriptor() | shown

    def _enrol(self, body):
        reply = super()._enrol(body)
        if reply.status == 200:
            public = bytes.fromhex(json.loads(body)["public_key"])
            word = admit(self.signing, self.terms.federation, public)
            reply.body = json.dumps(json.loads(reply.body) | {"admission": word.hex()}).encode()
        return reply


def terms_of(kind, folder, **changes):
    """Of a federation of devices; `changes` are to its way to the server."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "gram":
        return gram_terms(folder, name="kind-gram", **changes)
    fpl, fcf = FPLConfig(embedding_size=4, triples=10), FCFConfig(embedding_size=4, rounds=20)
    if kind == "checked":
        keys = [init_first(folder / "keys")]
        keys += [init_aggregator(folder / f"a{n}") for n in (1, 2)]
        named = {"urls": ("https://one", "https://two"), "authorities": ("one", "two")}
        link = CheckedSum(**{"min_devices": PEOPLE, **named, **changes}, keys=tuple(keys))
        config = GramConfig(popularity_share=0.3, least_head=6, most_head=6)
        return Terms("kind-checked", ITEMS, config, OwnEpsilon(8.0), link)
    if kind.endswith("sum"):
        key = init_helper(folder / "helper")
        wanted = {"min_devices": PEOPLE, "url": "https://127.0.0.1:1", "bits": 64, **NOISE}
        link = SecureSum(**{**wanted, **changes}, key=key)
        config, release = {
            "fpl sum": (fpl, ShareFraction()),
            "fcf sum": (fcf, Everything()),
            "uc sum": (_uc(), Clipped()),
        }[kind]
    else:
        link = Direct()
        config, release = {
            "fpl": (fpl, ShareFraction()),
            "fcf": (fcf, Everything()),
            "uc": (_uc(), Clipped()),
            "uc noise": (_uc(), Clipped(norm="l1", epsilon=2.0)),
        }[kind]
    return Terms.of(f"kind-{kind.replace(' ', '-')}", ITEMS, config, 10, release, link)


def _uc():
    return UCConfig(embedding_size=5, local_epochs=1, pairs=4, attributes=FILTERS)


@dataclass
class Kind:
    """A federation, and how she takes part in it."""

    name: str
    town: Town
    server: FakeServer
    others: list = field(default_factory=list)
    """Whoever else she sends to."""

    @property
    def requests(self):
        return [one for server in (self.server, *self.others) for one in server.requests]

    @property
    def connections(self):
        return sum(server.connections for server in (self.server, *self.others))

    @property
    def posts(self):
        return [one for one in self.requests if one.method == "POST"]


CHOICES = {
    "fpl": {"share_positives": 0.5},
    "fcf": {"share_positives": 1.0},
    "uc": {"share_positives": 1.0, "hidden_attributes": ["gender"], "strength": 0.5},
    "uc noise": {"share_positives": 1.0, "epsilon": 2.0},
    "fpl sum": {"share_positives": 1.0, "total_epsilon": 4.0},
    "fcf sum": {"share_positives": 1.0, "total_epsilon": 4.0},
    "uc sum": {"share_positives": 1.0, "total_epsilon": 4.0},
    "gram": {"epsilon": 1.0, "total_epsilon": 4.0},
    "checked": {"epsilon": 1.0, "total_epsilon": 4.0},
    "fmf": {"epsilon": 2.0, "max_reports": K, "total_epsilon": 100.0},
}
"""With which something leaves."""
KINDS = tuple(CHOICES)


def kind_of(name, folder, stack, **changes):
    """A federation that runs as long as the stack."""
    others = []
    if name == "fmf":
        shuffler = Shuffler()
        others = [stack.enter_context(shuffler.server)]
        config = FMFConfig(embedding_size=3)
        link = Proxied(shuffler.server.url, "")
        terms = Terms("kind-fmf", ITEMS, config, KReports(K, TIERS), link)
        town = ShuffledTown(terms, shuffler)
    else:
        town = Town(terms_of(name, folder / "parties", **changes))
    return Kind(name, town, stack.enter_context(town.serve()), others)


def joined(folder, kind):
    """Her store in it."""
    return newcomer(folder / kind.name.replace(" ", "-"), kind.town, kind.server.url)


__all__ = ["CATALOGUE", "CATEGORIES", "CHOICES", "KINDS", "Kind", "joined", "kind_of", "terms_of"]
