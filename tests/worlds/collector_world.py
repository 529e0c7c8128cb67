"""A small federation with a proxy, whose part the tests play themselves."""

import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_world import RoundsWorld
from server_world import ITEMS, SEED, quick_rules

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import Proxied
from sottovoce.core.messages import Batch
from sottovoce.parties.server import Server
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.stores import batches
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.keys import ReportKeys
from sottovoce.stores.server_folder import create_folder
from sottovoce.wire.refusals import Refused
from sottovoce.wire.sealing import SEALED_BYTES, key_id, seal_reports
from sottovoce.wire.shuffled import BatchPart
from sottovoce.wire.terms import Terms

K, FACTORS = 4, 3
TIERS = (Tier(1.0, 2), Tier(2.5, 3))
ENROLLED = 8


def proxied_terms(tiers=TIERS, link=None):
    return Terms(
        "little-town",
        ITEMS,
        FMFConfig(embedding_size=FACTORS),
        KReports(K, tiers),
        link or Proxied("https://127.0.0.1:1", "PEM"),
    )


def proxied_folder(path, *, rounds=3, terms=None, **rules):
    return create_folder(
        path,
        terms or proxied_terms(),
        [(f"v{n}", f"Venue {n}") for n in range(ITEMS)],
        rounds=rounds,
        root_key=Streams.from_seed(SEED).key,
        rules=quick_rules(**rules),
    )


def some_reports(devices, seed):
    """Any reports that can be."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 * ITEMS * FACTORS, devices * K).astype(np.uint32)


def parts_of(reports, public, *, round=0, tier=0, parts=1, mark=None, **changes):
    """A batch as a proxy sends it; `changes` says what is wrong with it."""
    sealed = changes.pop("sealed", None)
    if sealed is None:
        sealed = seal_reports(reports, public, federation="little-town", round=round, tier=tier)
    mark = secrets.token_bytes(16) if mark is None else mark
    count = len(sealed) // SEALED_BYTES
    cuts = [SEALED_BYTES * (count * n // parts) for n in range(parts + 1)]
    return [
        BatchPart(
            **{
                "round": round,
                "tier": tier,
                "key": key_id(public),
                "devices": len(reports) // K,
                "part": n,
                "parts": parts,
                "mark": mark,
                "body": sealed[cuts[n] : cuts[n + 1]],
                **changes,
            }
        )
        for n in range(parts)
    ]


def folded(rounds):
    """The model after rounds, each of them {tier: reports}, by the server's own arithmetic."""
    server = Server.start(proxied_terms().build(), ITEMS, Streams.from_seed(SEED))
    for number, of_round in enumerate(rounds):
        server.fold(
            server.count(
                [Batch(number, tier, len(r) // K, r) for tier, r in sorted(of_round.items())]
            )
        )
    return server.items


def new_key():
    return Ed25519PrivateKey.generate().public_key().public_bytes_raw()


class BatchesWorld(RoundsWorld):
    def __init__(self, path, *, rounds=3, enrolled=ENROLLED, terms=None, **rules):
        root = Streams.from_seed(SEED).key
        self.keys = ReportKeys(path)
        if not self.keys.exists:
            self.keys.create()
        plan = Plan(terms or proxied_terms(), "all", rounds, root, quick_rules(**rules))
        super().__init__(path, plan)
        self.enrol(range(enrolled))

    def coordinating(self):
        return coordinator_of(self.plan, lambda: self.time, self.path)

    def restart(self):
        self.database.close()
        self.database = Database.sqlite(self.path / "server.db")
        super().restart()

    def close_round(self):
        """Until the next one is open."""
        assert self.step() == ["closing"]
        return self.step()

    def hand_over(self, tier=0, devices=4, seed=0, **options):
        """A whole batch; what was in it."""
        now = self.position()
        reports = some_reports(devices, seed)
        for part in parts_of(reports, now.report_key, round=now.round, tier=tier, **options):
            self.accept(part)
        return reports

    def accept(self, part):
        with self.database.writing() as link:
            return batches.accept(link, part, K)

    def reason(self, part):
        with pytest.raises(Refused) as refused:
            self.accept(part)
        return refused.value.reason, refused.value.status

    def heads(self, round=0):
        return self.read(batches.heads, round)

    def bodies(self):
        with self.database.reading() as link:
            return link.exec_driver_sql("SELECT count(*) FROM batch_parts").scalar()
