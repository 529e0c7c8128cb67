"""A server's rounds of gram over a secure sum, with the helper in this process."""

import secrets

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_world import RoundsWorld
from secure_sum_world import TOKEN, MaskerApp
from server_world import quick_rules

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SEALED_SEED_BYTES, SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import MaskedReports, MaskSeeds
from sottovoce.engines.client import Answer
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper, init_helper
from sottovoce.wire.masked import seal_masked
from sottovoce.wire.terms import Terms

ITEMS, DEVICES, LEAST = 12, 8, 4


class ContributedWorld(RoundsWorld):
    def __init__(self, path, **link):
        key = init_helper(path / "masker")
        config = GramConfig(popularity_share=0.3, least_head=4, batches=3)
        way = SecureSum(**{"min_devices": LEAST, "bits": 32, **link}, url="https://h", key=key)
        terms = Terms("town", ITEMS, config, OwnEpsilon(8.0), way)
        folder = create_helper(path / "masker", HelperIntroduction(terms, TOKEN))
        self.helper = MaskerApp(folder).__enter__()
        self.keys = [Ed25519PrivateKey.generate() for _ in range(DEVICES)]
        rules = quick_rules(min_devices=LEAST, deadline_seconds=100.0)
        super().__init__(path, Plan(terms, "all", 6, 1, rules), self.keys)

    def coordinating(self):
        return Coordinator(self.plan, lambda: self.time, MaskedSums(self.plan, self.ask))

    def close(self):
        self.helper.__exit__()
        super().close()

    def ask(self, question, path):
        got = self.helper.ask("POST", path, question, {"authorization": f"Bearer {TOKEN}"})
        return Answer(got.status, "", got.body)

    def send(self, *numbers, size=1000, foreign=False, most=10**6):
        now, view, batch = self.position(), self.view(), []
        many, _ = self.terms.build().report_shape(view)
        for number in numbers:
            seed, who = secrets.token_bytes(32), np.array([number])
            hidden = masked(np.full(many, size), seed, self.terms.bits)[None, :]
            seeds = MaskSeeds(now.round, who, (seed,))
            told = MaskedReports(now.round, who, hidden)
            made = self.terms, now.attempt, view, told, seeds, self.keys[number]
            body = seal_masked(*made)
            if foreign:  # a seed that is bound to another attempt does not open
                other = seal_masked(self.terms, now.attempt + 1, *made[2:])
                body = body[:-SEALED_SEED_BYTES] + other[-SEALED_SEED_BYTES:]
            mark = records.mark_of(b"", body)
            batch.append(records.Submission(now.round, now.attempt, number, mark, body))
        with self.database.writing() as at:
            return sums.accept(at, batch, most)
