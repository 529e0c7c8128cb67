"""Owners' limits on ε where sums have noise, in simulation: each device sends as often as its limit
has room for, and never again."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import SecureSum
from sottovoce.errors import ConsentError, Stalled
from sottovoce.experiment import Experiment
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs import topology
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.train import run_experiment
from sottovoce.testing import random_world

N_USERS, ROUNDS, NOISE = 24, 6, 3.0
TRAIN = random_world(N_USERS, 30, 200, seed=4)
USERS = np.arange(N_USERS)
LINK = SecureSum(min_devices=8, clip=0.5, noise=NOISE)
FPL = FPLConfig(embedding_size=5, triples=4, rounds=ROUNDS)
KINDS = {
    "fpl": (FPL, ShareFraction("item")),
    "fcf": (FCFConfig(embedding_size=5, rounds=ROUNDS), Everything()),
    "uc": (
        UCConfig(embedding_size=5, local_epochs=1, pairs=4, rounds=ROUNDS, cohort_size=N_USERS),
        Clipped(),
    ),
}


def limited(rounds):
    """Room for so many rounds."""
    most = price(NOISE, rounds) if rounds else 0.9 * price(NOISE, 1)
    return Choice(share_positives=1.0, total_epsilon=most)


MIX = [limited(2), limited(4), Choice(share_positives=1.0)]


def made(kind, choices=MIX, link=LINK, **changes):
    if kind == "uc":
        pytest.importorskip("torch")
    settings, release = KINDS[kind]
    consent = Consent.of(USERS, choices, USERS % len(choices))
    rng = Streams.from_seed(7)
    return Federation.build(replace(settings, **changes), TRAIN, consent, release, rng, link=link)


class Senders:
    """Who has sent in each round, by what the server hears."""

    def __init__(self):
        self.rounds = {}

    def on_message(self, party, message):
        if party == "server" and hasattr(message, "sender"):
            self.rounds.setdefault(message.round, []).extend(message.sender.tolist())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_sends_as_often_as_its_limit_permits_and_the_others_go_on(kind):
    federation, heard = made(kind), Senders()
    federation.run(message_observers=[heard])
    for round, sent in heard.rounds.items():
        third = {user % 3 for user in sent}
        assert third == {place for place, most in enumerate((2, 4, ROUNDS)) if round < most}
        assert len(sent) == N_USERS // 3 * len(third)
    assert sorted(heard.rounds) == list(range(ROUNDS))
    assert federation.devices.cohort.sent.tolist() == [2, 4, ROUNDS] * (N_USERS // 3)
    with pytest.raises(ConsentError, match="beyond what its owner permits"):
        federation.devices.report(federation.server.publish(), np.array([0]))
    quiet = made(kind)
    quiet.run()
    assert quiet.devices.cohort.sent.tolist() == federation.devices.cohort.sent.tolist()
    assert np.array_equal(quiet.server.items, federation.server.items)


def test_those_who_are_asked_are_drawn_from_those_who_may_still_send():
    federation = made("fpl", [limited(1), limited(3), Choice()], cohort_size=8)
    federation.run()
    sent = federation.devices.cohort.sent.reshape(-1, 3)
    assert sent.sum() == 8 * ROUNDS
    assert sent.max(axis=0)[:2].tolist() == [1, 3]
    assert sent[:, 2].max() > 3


def test_a_run_ends_where_too_few_are_left():
    federation = made("fpl", [limited(2), limited(2), limited(2), limited(4)])
    with pytest.raises(Stalled, match="in round 2 only 6 devices may still send, where 8 are"):
        federation.run()
    assert federation.devices.cohort.sent.tolist() == [2] * N_USERS
    some = made("fpl", [limited(1)], cohort_size=10)
    with pytest.raises(Stalled, match="in round 2 only 4 devices may still send, where 10 are"):
        some.run()
    with pytest.raises(Stalled, match="in round 0 only 0 devices may still send"):
        made("fpl", [limited(0)]).run()


def test_without_noise_a_limit_means_what_it_meant():
    """FPL and FCF send on, since no ε bounds what leaves; UC-FedRec refuses."""
    plain = SecureSum(min_devices=8)
    for kind in ("fpl", "fcf"):
        federation = made(kind, link=plain)
        federation.run()
        assert federation.devices.cohort.sent.tolist() == [ROUNDS] * N_USERS
    with pytest.raises(ConsentError, match="total_epsilon is set, but clipped-l2 adds no noise"):
        made("uc", link=plain)


def test_a_limit_on_a_single_update_is_still_refused():
    for kind in KINDS:
        with pytest.raises(ConsentError, match="epsilon"):
            made(kind, [replace(MIX[0], epsilon=1.0)])


# --- experiments ----------------------------------------------------------------------------------


def experiment_of(algorithm):
    """Every third resident has room for two of four rounds, about."""
    if algorithm == "uc":
        pytest.importorskip("torch")
    small = {
        "fpl": {"triples": 4, "cohort_size": "all"},
        "fcf": {},
        "uc": {"cohort_size": 1000, "local_epochs": 1, "pairs": 4},
    }[algorithm]
    shares = {"share_positives": 1.0}
    mix = [{"weight": 1, **shares, "total_epsilon": 2.5}, {"weight": 2, **shares}]
    return Experiment.from_table(
        {
            "name": "limited",
            "town": {"residents": 40, "venues": 40},
            "algorithm": {"name": algorithm, "embedding_size": 5, "rounds": 4, **small},
            "link": {"name": "secure-sum", "min_devices": 5, "clip": 1.0, "noise": NOISE},
            "consent": {"mix": mix},
        }
    )


def require_obeyed(cohort):
    assert price(NOISE, 2) <= 2.5 < price(NOISE, 3)
    few = np.isfinite(cohort.consent.total_epsilon)
    assert few.any()
    assert set(cohort.sent[few]) == {2}
    assert set(cohort.sent[~few]) == {4}


@pytest.mark.parametrize("algorithm", ["fpl", "fcf", "uc"])
def test_an_experiment_file_takes_limits_and_the_run_obeys(algorithm):
    require_obeyed(run_experiment(experiment_of(algorithm)).federation.devices.cohort)


def test_a_run_that_was_stopped_goes_on_with_the_same_counts(tmp_path, monkeypatch):
    """Stopped after the last round with room for some: who has sent twice sends no more."""
    experiment, saved = experiment_of("fpl"), RunFolder.save_checkpoint

    def save_then_die(self, round, *arguments):
        saved(self, round, *arguments)
        if round == 2:
            raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(topology, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(RunFolder, "save_checkpoint", save_then_die)
        with pytest.raises(SystemError):
            run_experiment(experiment, tmp_path / "cut")
    again = run_experiment(experiment, tmp_path / "cut", resume=True)
    require_obeyed(again.federation.devices.cohort)
    whole = run_experiment(experiment).federation
    assert np.array_equal(again.federation.server.items, whole.server.items)
