"""A5 and A13 on a chain of shufflers: the server and all of them but one link nothing, whichever is
honest; all of them together link everything."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.attacks.suite import a05_linkage, a13_draws
from sottovoce.experiment import Experiment
from sottovoce.parties import shuffler as shuffling
from sottovoce.runs import threat_views
from sottovoce.runs.threat_views import views_and_truth

ATTACKS = [a05_linkage.MEMBERS, a13_draws.MEMBERS]


def played(shufflers, rounds=2):
    table = {
        "name": "chain",
        "town": {"residents": 800, "venues": 150, "visits_per_resident": 20.0},
        "algorithm": {"name": "fmf", "embedding_size": 8, "rounds": rounds},
        "release": {
            "name": "k-reports",
            "max_reports": 20,
            "tiers": [{"epsilon": 1.0, "min_devices": 50}],
        },
        "link": {"name": "proxy", "chain": [{}] * (shufflers - 1)},
        "consent": {"epsilon": 1.0, "max_reports": 20},
    }
    draw = np.random.default_rng(4)
    with pytest.MonkeyPatch.context() as patch:  # the same figures each time
        patch.setattr(shuffling, "new_seed", lambda: draw.bytes(32))
        return views_and_truth(Experiment.from_table(table))


@pytest.fixture(scope="module", params=[2, 3])
def threat(request):
    return request.param, played(request.param)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.code)
def test_with_one_honest_shuffler_nothing_is_linked(threat, attack):
    shufflers, seen = threat
    view = seen.views["coalition"]
    assert attack.applies(view) == ""
    found = attack.run(view, seen.truth)
    print(found.code, shufflers, found.value, found.interval, found.base_rate, found.detail)
    assert found.verdict == "holds", found
    low, high = found.interval
    assert low <= found.base_rate <= high
    assert found.party == "coalition"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.code)
def test_all_shufflers_together_link_everything(threat, attack):
    """The control: the same attack by the same code, with what nobody has mixed for them."""
    view, truth = threat[1].views["coalition"], threat[1].truth
    known = zip(view.own["mixed"], truth.own["mixed owners"], strict=True)
    together = [(one, owner) for one, owner in known if one.honest == -1]
    twice = [*together, *((one._replace(honest=0), owner) for one, owner in together)]
    mixed, owners = zip(*twice, strict=True)
    told = replace(truth, own={**truth.own, "mixed owners": owners})
    found = attack.run(replace(view, own={"mixed": mixed}), told)
    print(found.code, found.value, found.interval, found.base_rate)
    assert found.verdict == "broken"
    assert found.value > 0.99


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.code)
def test_a_chain_whose_honest_shuffler_does_not_mix_is_caught(monkeypatch, attack):
    def lazy(values, seed, threads=1):
        return values.copy()

    for module in (shuffling, threat_views):
        monkeypatch.setattr(module, "shuffled", lazy)
    seen = played(2)
    assert attack.run(seen.views["coalition"], seen.truth).verdict == "broken"


def test_the_coalition_knows_what_its_members_know_and_no_more(threat):
    """The order in which the honest one handed on, and whose reports it was given; the chain's last
    order is the server's own."""
    shufflers, seen = threat
    mixed, bits = seen.views["coalition"].own["mixed"], seen.truth.own["bits"]
    assert [m.honest for m in mixed] == [-1, *range(shufflers)] * 2
    for one in mixed:
        sent = next(b for b in bits if b.round == one.batch.round)
        assert sorted(one.batch.reports.tolist()) == sorted(sent.reports.ravel().tolist())
        assert np.array_equal(np.bincount(one.senders), np.bincount(sent.sender) * 20)
        if one.honest == shufflers - 1:
            (final,) = seen.views["server"].rounds[one.batch.round].messages
            assert np.array_equal(final.reports, one.batch.reports)


def test_with_one_shuffler_there_is_no_coalition():
    assert "coalition" not in played(1, rounds=1).views
