"""What every metric promises, and what is said of one that breaks it."""

import numpy as np
import pytest

from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError, UsageError
from sottovoce.evaluation import METRICS, Full, Metric, Protocol, Sampled, UserMetric, evaluate
from sottovoce.evaluation.metrics import every_metric
from sottovoce.testing import ContractBroken, MetricContract, random_world


def held(kind):
    """The contract of one of them."""
    return type(f"Test{kind.__name__}", (MetricContract,), {"metric": lambda self: kind()})


globals().update({f"Test{kind.__name__}": held(kind) for kind in METRICS.values()})


def test_results_have_them_in_their_order():
    assert [kind.key() for kind in METRICS.values()] == [
        *("P", "R", "F1", "HR", "NDCG", "MAP", "MRR", "IC", "Gini")
    ]


@pytest.fixture
def strange():
    """Registers a metric for one test."""
    before = dict(METRICS._found), dict(METRICS._places)
    yield METRICS.register
    METRICS._found, METRICS._places = before


def judged(candidates):
    train, test = random_world(20, 30, 80, seed=1), random_world(20, 30, 40, seed=2)
    rng = np.random.default_rng(0)
    scorer = FactorScorer.of(
        rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=(30, 3)).astype(np.float32)
    )
    return evaluate(scorer, train, test, Protocol(5, candidates)).summary()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (lambda n: np.full(n, np.nan), "gave 20 of 20 users a value that is no finite number"),
        (lambda n: np.zeros((n, 2)), r"one number for each of 20 users.* shape \(20, 2\)"),
        (lambda n: 0.5, r"one number for each of 20 users.* shape \(\)"),
        (lambda n: np.full(n, "good"), "one number for each of 20 users"),
        (lambda n: None, "one number for each of 20 users"),
    ],
)
def test_a_spoilt_metric_is_named(strange, values, words):
    @strange("spoilt")
    class Spoilt(UserMetric):
        def per_user(self, ranked):
            return values(len(ranked.users))

    with pytest.raises(UsageError, match=f"^the metric spoilt .*{words}"):
        judged(Full())
    with pytest.raises(UsageError, match="the metric spoilt"):
        held(Spoilt)().test_one_value_per_user_within_bounds()
    assert "spoilt@5" not in judged(Sampled(9))  # where it has no gains


@pytest.mark.parametrize(
    ("value", "kept"),
    [(np.float32(0.5), 0.5), (np.int64(3), 3), (2, 2), (None, None), (np.zeros(2), UsageError),
     ("many", UsageError), (True, UsageError)],
)  # fmt: skip
def test_a_figure_for_all_users_is_a_number(strange, value, kept):
    @strange("whole")
    class Whole(Metric):
        def overall(self, means, lists, n_items):
            return value

    if kept is UsageError:
        with pytest.raises(UsageError, match="the metric whole must give one number for all users"):
            judged(Full())
    else:
        found = judged(Full()).get("whole@5")
        assert found == kept
        assert not isinstance(found, np.generic)


def test_a_stranger_is_measured_wherever_it_can_be(strange):
    @strange("firsts")
    class Firsts(UserMetric):
        short = "First"

        def per_user(self, ranked):
            return ranked.hit[:, 0].astype(float)

        def gain(self, rank):
            return (rank == 1).astype(float)

    for candidates in (Full(), Sampled(9)):
        found = judged(candidates)
        assert list(found)[-1] == "First@5"
        assert 0 <= found["First@5"] <= 1


def test_two_metrics_of_one_short_name_are_told(strange):
    @strange("portion")
    class Portion(METRICS["precision"]):
        pass

    with pytest.raises(ConfigError, match="the metrics precision and portion both 'P'"):
        every_metric()


def test_the_contract_refuses_values_out_of_bounds(strange):
    @strange("twice")
    class Twice(UserMetric):
        def per_user(self, ranked):
            return 2.0 + np.cumsum(ranked.relevant)

    with pytest.raises(ContractBroken, match="above 1"):
        held(Twice)().test_one_value_per_user_within_bounds()
    with pytest.raises(ContractBroken, match="depends on others"):
        held(Twice)().test_a_value_does_not_depend_on_other_users()
