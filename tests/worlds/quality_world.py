"""A federation of gram just before devices say how good its model is: what is true of it, what they
tell, and the same told again with other noise."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from sottovoce.algorithms.gram import quality
from sottovoce.algorithms.gram.system import FACTORS, SCALE, Q
from sottovoce.core.interactions import recency
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import SummedReports
from sottovoce.errors import DataNotFound
from sottovoce.experiment import Experiment
from sottovoce.parties.helper import Helper
from sottovoce.runs.devices import federation_of
from sottovoce.runs.federation import noise_spans

ASKED = 2
"""The round about quality."""


def at_home(items, before, held):
    """Who finds one of ten recommendations among what she held out, ranked as gram's formula says
    and by nothing that gram has: q_j + (Σ v_i Y_i) · Y_j s_j."""
    hit = np.zeros(before.n_users, dtype=bool)
    weights, factors = recency(before, 8.0), items[:, FACTORS:].astype(np.float64)
    scaled = factors * np.abs(items[:, SCALE, None].astype(np.float64))
    shape = before.n_users, before.n_items
    own = csr_array((weights, before.items, before.indptr), shape=shape)
    out = csr_array((np.ones(len(held.items)), held.items, held.indptr), shape=shape)
    for some in np.array_split(np.flatnonzero(held.counts), 1 + before.n_users // 500):
        mine = own[some].toarray()
        scores = (mine / np.linalg.norm(mine, axis=1)[:, None]) @ factors @ scaled.T + items[:, Q]
        scores[mine > 0] = -np.inf
        ten = np.argpartition(-scores, 10, axis=1)[:, :10]
        hit[some] = np.take_along_axis(out[some].toarray(), ten, axis=1).any(axis=1)
    return hit


class AskedFederation:
    """After two rounds; `spoilt` gives the candidate's factors to other items."""

    def __init__(self, table, seed=0):
        experiment = Experiment.from_table({**table, "seed": seed})
        try:
            prepared = experiment.prepared(experiment.dataset())
        except DataNotFound as error:
            pytest.skip(str(error))
        self.made = federation_of(prepared)
        self.run_to(ASKED)
        self.release = self.made.devices._release.settings

    def run_to(self, rounds):
        self.made.schedule = replace(self.made.schedule, rounds=rounds)
        self.made.run()

    def spoil(self):
        items = self.made.server.items.copy()
        items[:, SCALE:] = np.random.default_rng(1).permutation(items[:, SCALE:])
        self.made.server.items = items

    def parted(self):
        config = self.made.server.algorithm.config
        return quality.parted(self.made.devices.cohort.history, config.held_out)

    def found(self):
        """By candidate, published and popularity, everybody's hits; and who holds something out."""
        server, (before, held) = self.made.server, self.parted()
        popular = server.items.copy()
        popular[:, SCALE:] = 0
        of_each = [
            at_home(items, before, held)
            for items in (server.items, server.published.items, popular)
        ]
        return np.array(of_each), held.counts > 0

    def sums(self, rows=None):
        """What these devices tell, before any noise; as if they had told nothing of it yet."""
        made = self.made
        made.devices.cohort.sent[:] = 0
        made.devices.cohort.spent[:] = 0
        made.devices.cohort.published = made.server.published.items
        rows = made.devices.willing(ASKED) if rows is None else rows
        view = made.server.publish()
        return made.devices.report_summed(view, np.asarray(rows)).dense(quality.NUMBERS)[:, 0]

    def noise(self, draw):
        """Of a helper with a key of its own."""
        spans = noise_spans(self.made.server.algorithm, self.release)
        key = hashlib.sha256(f"draw {draw}".encode()).digest()
        return Helper(SecureSum(20), 0, key, spans).noise(ASKED, quality.NUMBERS)

    def told(self, sums, draw):
        """As the server understands it, with this noise."""
        server = self.made.server
        noisy = (sums + self.noise(draw))[:, None]
        reports = SummedReports(ASKED, np.arange(quality.NUMBERS, dtype=np.int32), noisy, 1000)
        _, memory = server.algorithm.server_fold(server.items, server.memory, reports)
        return server.algorithm.quality(memory)


TOWN = {
    "algorithm": {"name": "gram", "quality_share": 0.1}, "data": {"source": "town"},
    "town": {"residents": 1000}, "consent": {"epsilon": 8.0}, "release": {"epsilon": 8.0},
}  # fmt: skip
MOVIES = {
    "data": {"source": "movielens-1m"}, "algorithm": {"name": "gram", "quality_share": 0.05},
    "link": {"min_devices": 100}, "release": {"epsilon": 1.0}, "consent": {"epsilon": 1.0},
}  # fmt: skip
