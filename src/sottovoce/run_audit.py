"""A one-run audit of the system behind a run: the same algorithm, release and link once more, with
planted devices among its users, and what the server saw held against what is claimed."""

from __future__ import annotations

import numpy as np

from sottovoce.attacks.one_run import SCORES, Audit, Canaries, audit_run
from sottovoce.attacks.views import View
from sottovoce.consent import Choice, Consent
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import UsageError
from sottovoce.experiment import Experiment
from sottovoce.federation import Federation
from sottovoce.privacy.accountant import DELTA, certify
from sottovoce.privacy.central import price

_NOTHING_CLAIMED = (
    "--canaries hold a claimed ε against what is given away: that of randomised reports (fmf), or "
    "of noise on FCF's sums (link.noise); this run claims none, or canaries cannot be scored"
)


def audit_system(experiment: Experiment, canaries: int, threads: int = 1) -> Audit:
    """Everybody in it chooses alike: the largest ε of the release, or to share everything."""
    if experiment.silo is not None:
        raise UsageError(_NOTHING_CLAIMED)
    algorithm, release, link = experiment.cross_device()
    rng, train = experiment.streams().child("audit"), experiment.split(experiment.dataset()).train
    users = np.arange(canaries + train.n_users, dtype=np.int64)
    score, reports = SCORES.get(algorithm.name), release.reporting
    if score is None or (reports is None and not link.noise):
        raise UsageError(_NOTHING_CLAIMED)
    if reports is not None:
        epsilon, k = float(reports.epsilons[-1]), reports.max_reports
        choice = Choice(epsilon=epsilon, max_reports=k)
        claimed = certify(epsilon, k, algorithm.rounds, len(users), DELTA).with_proxy
    else:
        choice, claimed = Choice(share_positives=1.0), price(link.noise, algorithm.rounds, DELTA)
    summed = link.summing is not None
    planted = Canaries.single_items(canaries, train.n_items, rng, summed)

    def run(these: Canaries) -> View:
        heard = Recorder()
        made = Federation.build(
            algorithm,
            these.histories(train),
            Consent.uniform(users, choice),
            release,
            rng,
            link=link,
        )
        made.run(listeners=[heard], threads=threads)
        seen = seen_by(heard.heard, "server")
        return View("server", seen, algorithm, release, link, train.n_items, made.server.items)

    return audit_run(planted, run, score, claimed, DELTA)
