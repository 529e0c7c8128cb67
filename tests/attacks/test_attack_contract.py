"""Every registered attack keeps to the contract, on the first small world to which it applies; and
the contract refuses attacks that do not."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from sottovoce.attacks.views import ATTACKS, Attack, Claims, Result
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import DeviceReports
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.experiment import Experiment
from sottovoce.runs.threat_views import views_and_truth
from sottovoce.testing import AttackContract, ContractBroken

TOWN = {"residents": 50, "venues": 60, "visits_per_resident": 15.0}
SUM = {"name": "secure-sum", "min_devices": 10}
WORLDS = {
    "fpl": {
        "draws": "secret",
        "algorithm": {"configuration": "pFPL", "embedding_size": 3, "rounds": 4},
    },
    "fpl, summed": {
        "link": SUM,
        "algorithm": {"configuration": "pFPL", "embedding_size": 3, "rounds": 4},
    },
    "fpl, summed, by Adagrad": {
        "link": SUM,
        "algorithm": {
            "configuration": "pFPL", "embedding_size": 3, "rounds": 4, "server_rate": 0.1,
        },
    },
    "fcf": {
        "link": SUM,
        "algorithm": {"name": "fcf", "embedding_size": 4, "rounds": 2},
        "consent": {"share_positives": 1.0},
    },
    "fmf": {
        "draws": "secret",
        "algorithm": {"name": "fmf", "embedding_size": 3, "rounds": 2},
        "release": {"max_reports": 5, "tiers": [{"epsilon": 2.0, "min_devices": 5}]},
        "consent": {"epsilon": 2.0, "max_reports": 5},
    },
    "fmf, chained": {
        "draws": "secret",
        "link": {"name": "proxy", "chain": [{}]},
        "algorithm": {"name": "fmf", "embedding_size": 3, "rounds": 2},
        "release": {"max_reports": 5, "tiers": [{"epsilon": 2.0, "min_devices": 5}]},
        "consent": {"epsilon": 2.0, "max_reports": 5},
    },
    "uc": {
        "link": SUM,
        "algorithm": {
            "name": "uc", "embedding_size": 5, "rounds": 2, "local_epochs": 1, "pairs": 8,
            "cohort_size": 30, "attributes": [{"name": "gender"}],
        },
        "consent": {"mix": [{"weight": 1, "hidden_attributes": ["gender"]}, {"weight": 1}]},
    },
    "uc, changed": {
        "algorithm": {
            "name": "uc", "embedding_size": 5, "rounds": 2, "local_epochs": 1, "pairs": 8,
            "cohort_size": 30, "attributes": [{"name": "gender"}],
        },
        "consent": {
            "share_positives": 1.0,
            "changes": [{"after_round": 1, "share": 0.5, "hide": ["gender"]}],
        },
    },
    "gram": {
        "link": SUM,
        "algorithm": {"name": "gram", "least_head": 30, "most_head": 30},
        "consent": {"epsilon": 4.0},
        "release": {"epsilon": 4.0},
    },
    "drift": {
        "data": {"source": "contract"},
        "algorithm": {
            "name": "drift", "embedding_size": 4, "epochs": 1, "release": "aggregated",
            "min_users": 3,
        },
        "consent": {},
    },
}  # fmt: skip
DEAR = {"attributes", "changed-minds"}
"""They train many attackers."""
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in ATTACKS]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Views and truth by name, made when first asked for."""
    made, folder = {}, tmp_path_factory.mktemp("data")

    def of(name):
        if name not in made:
            table = {"name": "small", **WORLDS[name]}
            table |= {} if "data" in table else {"town": TOWN}
            made[name] = views_and_truth(Experiment.from_table(table))
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_DATA", str(folder))
        write_prepared(ratings(), folder / "contract")
        yield of


def ratings():
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(30 * 24)[:400], 24)
    interactions = Interactions.from_pairs(
        users, items, n_users=30, n_items=24, timestamps=rng.integers(1, 10**6, 400),
        ratings=rng.integers(1, 6, 400).astype(np.float32),
    )  # fmt: skip
    categories = tuple((("Food",) if k % 2 else ("Arts",)) for k in range(24))
    return Dataset("contract", interactions, item_categories=categories)


def first_that_fits(attack, world):
    for name in WORLDS:
        if attack.against and name.split(",")[0] not in attack.against:
            continue
        if name == "uc" and find_spec("torch") is None:
            pytest.skip("UC-FedRec needs PyTorch")
        threat = world(name)
        view = threat.views.get(attack.party)
        if view is not None and not attack.applies(view):
            return view, threat.truth
    raise AssertionError(f"{attack.name} applies to none of {list(WORLDS)}")


class TestEveryAttack(AttackContract):
    @pytest.fixture(autouse=True, params=CASES)
    def chosen(self, request, world):
        self._attack = ATTACKS[request.param]
        self._threat = first_that_fits(self._attack, world)

    def attack(self):
        return self._attack

    def threat(self):
        return self._threat


def senders(view):
    found = view.messages(DeviceReports)
    users = np.concatenate([np.zeros(0, np.int64), *(np.unique(m.sender) for m in found)])
    return Claims(users, users % 7)


PLAIN = Attack("plain", "server", "Nobody guesses.", senders, against=frozenset({"fpl"}))


class TestOfAStranger(AttackContract):
    """With nothing but a guess, on the world that comes with the contract."""

    def attack(self):
        return PLAIN


def restless(view, draw=np.random.default_rng(0)):  # noqa: B008
    users = draw.choice(40, 20, replace=False)
    return Claims(users, users)


def always(view):
    return Claims(np.arange(40), np.arange(40))


def upside_down(guess, truth):
    return Result("X", "plain", "server", "", "AUC", 0.5, (0.9, 0.1), 0.5, claims=1)


def of_another(guess, truth):
    return Result("A1", "plain", "server", "", "AUC", 0.5, (0.1, 0.9), 0.5, claims=1)


@pytest.mark.parametrize(
    ("broken", "test", "words"),
    [
        (replace(PLAIN, needs=lambda view: "never"), "it_applies_where", "never"),
        (replace(PLAIN, guess=restless), "the_same_view_gives", "differ"),
        (replace(PLAIN, guess=always), "where_nothing_was_seen", "of nothing it says"),
        (replace(PLAIN, judge=upside_down), "numbers_are_finite", "upside down"),
        (replace(PLAIN, judge=of_another), "a_result_is_json", "another code"),
        (replace(PLAIN, party="owner"), "numbers_are_finite", "no owner"),
    ],
)
def test_the_contract_refuses_what_breaks_it(broken, test, words):
    class Broken(AttackContract):
        def attack(self):
            return broken

    (method,) = [name for name in dir(Broken) if name.startswith(f"test_{test}")]
    with pytest.raises(ContractBroken, match=words):
        getattr(Broken(), method)()
