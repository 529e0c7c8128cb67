"""FCF in FPL's Table 2: as published, and as FPL's authors most likely ran it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.baselines import Baseline, Progress
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.errors import Diverged
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce_papers.study import CHOSEN_BY, Part, Study, StudyConfig

FCF, FCF_IN_FPL = "FCF", "FCF (as in FPL)"


@dataclass(frozen=True, slots=True)
class Federated(Baseline):
    """FCF with everybody taking part, in the shape of a baseline."""

    settings: FCFConfig

    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Scorer:
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(share_positives=1.0))
        federation = Federation.build(self.settings, train, consent, Everything(), rng)
        federation.devices.ledger.keep_rows = False
        federation.run()
        return federation.scorer()

    def words(self) -> str:
        s = self.settings
        alpha = f", confidence 1+{s.alpha:g}" if s.variant == "paper" else ""
        return f"rate {s.learning_rate:g}, F={s.embedding_size}, λ={s.reg:g}{alpha}"


def candidates(config: StudyConfig) -> dict[str, list[Federated]]:
    """What validation chooses from, by row."""
    published = [
        FCFConfig(embedding_size=size, alpha=alpha, reg=reg, rounds=config.fcf_rounds)
        for size in config.fcf_sizes
        for alpha in config.fcf_alphas
        for reg in config.fcf_regs
    ]
    in_fpl = [
        FCFConfig(embedding_size=size, learning_rate=rate, rounds=config.fcf_rounds, variant="fpl")
        for size in config.fcf_sizes
        for rate in config.fcf_rates
    ]
    return {
        FCF: [Federated(one) for one in published],
        FCF_IN_FPL: [Federated(one) for one in in_fpl],
    }


def rows(study: Study) -> list[tuple[str, str, list[Evaluation]]]:
    """Both, with what validation chose in words, on test."""
    found = []
    for name, tried in candidates(study.config).items():
        scores = [_validated(study, name, one) for one in tried]
        best = tried[int(np.argmax(scores))]
        found.append((name, best.words(), [study.fit(name, best, "test")]))
    return found


def _validated(study: Study, name: str, one: Federated) -> float:
    part: Part = "validation"
    try:
        return study.fit(name, one, part).mean(CHOSEN_BY)
    except Diverged:
        return -1.0
