"""Consent records and the mixes they are drawn from."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sottovoce.core.consent import (
    ALWAYS,
    Choice,
    Consent,
    ConsentPolicy,
    ShareRule,
    affords,
    thresholds,
)
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.rng import Streams, words_of

USERS = np.arange(20_000)


def test_the_default_shares_no_positive_and_permits_no_report():
    choice = Choice()
    assert (choice.share_positives, choice.epsilon, choice.max_reports) == (0.0, 0.0, 0)
    assert choice.total_epsilon == math.inf


@pytest.mark.parametrize(
    "fields",
    [
        {"share_positives": 1.1},
        {"share_positives": -0.1},
        {"share_positives": float("nan")},
        {"share_positives": "half"},
        {"epsilon": -1.0},
        {"max_reports": 1.5},
        {"strength": 1.0},
        {"takes_part": 1},
        {"max_reports": 2**31},
        {"epsilon": float("nan")},
        {"total_epsilon": float("nan")},
        {"total_epsilon": -0.1},
        {"total_epsilon": "much"},
        {"total_epsilon": True},
        {"hidden_attributes": "gender"},
        {"refused_owners": "shop"},
        {"refused_owners": [3]},
    ],
)
def test_out_of_range_choices_raise(fields):
    with pytest.raises(ConfigError):
        Choice(**fields)


def test_a_mix_is_drawn_in_its_proportions_whatever_the_batching():
    policy = ConsentPolicy.from_table(
        {
            "mix": [
                {"weight": 1, "takes_part": False},
                {"weight": 2, "share_positives": 0.25},
                {"weight": 1, "share_positives": 1.0},
            ]
        }
    )
    rng = Streams.from_seed(5)
    consent = policy.draw(USERS, rng)
    counts = [
        (~consent.takes_part).sum(),
        (consent.share_positives == 0.25).sum(),
        (consent.share_positives == 1.0).sum(),
    ]
    assert stats.chisquare(counts, np.array([0.25, 0.5, 0.25]) * len(USERS)).pvalue > 1e-3
    some = policy.draw(USERS[[17, 4, 9000]], rng)
    assert np.array_equal(some.share_positives, consent.share_positives[[17, 4, 9000]])


def test_unknown_keys_and_bad_weights_raise():
    for table, words in [
        ({"share": 1.0}, "unknown keys"),
        ({"mix": [{"share_positives": 1.0}]}, "weight"),
        ({"mix": [{"weight": -1}]}, "non-negative"),
        ({"mix": [{"weight": 1}], "epsilon": 1.0}, "choose one way"),
        ({"mix": 3}, "list of tables"),
        ({"mix": [{"weight": 1, "share_positives": 7}]}, "mix\\[0\\]"),
        ({"mix": []}, "at least one choice"),
        ({"mix": [{"weight": 1e308}, {"weight": 1e308}]}, "finite"),
        ({"mix": [{"weight": 10**400}]}, "weight"),
        ({"hidden_attributes": "gender"}, "must be a list"),
    ]:
        with pytest.raises(ConfigError, match=words):
            ConsentPolicy.from_table(table)


def test_hidden_attributes_must_exist():
    choice = Choice(hidden_attributes=("gender",))
    consent = Consent.uniform(USERS[:3], choice, ("age", "gender"))
    assert consent.hidden_attributes.tolist() == [[False, True]] * 3
    with pytest.raises(ConfigError, match="shoe size"):
        Consent.uniform(USERS[:3], Choice(hidden_attributes=("shoe size",)), ("age",))


def test_refused_owners_must_exist():
    choice = Choice(refused_owners=["bank"])
    consent = Consent.uniform(USERS[:3], choice, owners=("shop", "bank"))
    assert consent.refused_owners.tolist() == [[False, True]] * 3
    assert (consent.row(0), consent.owners) == (choice, ("shop", "bank"))
    with pytest.raises(ConfigError, match=r"'bank'.*not among the data owners \['shop'\]"):
        Consent.uniform(USERS[:3], choice, owners=("shop",))
    with pytest.raises(ConfigError, match="no data owners in this system"):
        Consent.uniform(USERS[:3], choice)
    mixed = ConsentPolicy((Choice(), choice, Choice(takes_part=False)), (1, 1, 2))
    drawn = mixed.draw(USERS, Streams.from_seed(2), owners=("shop", "bank"))
    assert 0.2 < drawn.refused_owners[:, 1].mean() < 0.3
    lines = mixed.words(owners=True)
    assert "reads what she does" in lines[0]
    assert "sends nothing to bank" in lines[1]
    assert "sends nothing to anybody" in lines[2]


def test_rows_come_back_as_they_went_in():
    choices = [
        Choice(
            share_positives=0.5,
            epsilon=1.0,
            max_reports=4,
            hidden_attributes=("age",),
            refused_owners=("shop",),
        ),
        Choice(takes_part=False, strength=0.75, total_epsilon=0.7),
    ]
    consent = Consent.of(USERS[:4], choices, np.array([1, 0, 0, 1]), ("age",), ("shop",))
    assert [consent.row(k) for k in range(4)] == [choices[k] for k in (1, 0, 0, 1)]
    assert consent.take(np.array([2])).row(0) == choices[0]


def test_records_of_the_wrong_shape_or_range_are_refused():
    good = Consent.uniform(USERS[:3], Choice())
    for name, value in [
        ("share_positives", np.full(3, 1.5, np.float32)),
        ("takes_part", [True]),
        ("total_epsilon", [1.0]),
        ("refused_owners", [[True]] * 3),
        ("total_epsilon", [1.0, math.nan, 1.0]),
        ("epsilon", [1.0, -1.0, 1.0]),
    ]:
        fields = {f: getattr(good, f) for f in good.__dataclass_fields__} | {
            name: np.asarray(value)
        }
        with pytest.raises(ConsentError):
            Consent(**fields)


def test_one_record_that_is_off_is_enough():
    good = Consent.uniform(np.arange(3), Choice(), ("sex",), ("shop",))
    for name in ("hidden_attributes", "refused_owners"):
        with pytest.raises(ConsentError, match=name):
            replace(good, **{name: np.zeros((3, 2), dtype=bool)})
    for name, values in {
        "share_positives": [0.5, 1.01, 0.0],
        "epsilon": [1.0, -0.1, 0.0],
        "total_epsilon": [1.0, 2.0, math.nan],
    }.items():
        with pytest.raises(ConsentError, match=name):
            replace(good, **{name: np.array(values, np.float32)})


def test_a_record_that_is_off_is_refused_by_name_and_range():
    good = Consent.uniform(np.arange(3), Choice(), ("sex",))
    for name, value, words in (
        ("share_positives", 1.01, r"^share_positives must lie in \[0, 1\]$"),
        ("total_epsilon", -0.1, "^total_epsilon must not be below 0$"),
        ("strengths", -0.01, r"^strengths must lie in \[0, 1\)$"),
        ("strengths", 1.0, r"^strengths must lie in \[0, 1\)$"),
    ):
        values = getattr(good, name).copy()
        values[1] = value
        with pytest.raises(ConsentError, match=words):
            replace(good, **{name: values})
    for shape in ((3, 2), (2, 1), (3,)):
        with pytest.raises(ConsentError, match="strengths must have one row per device"):
            replace(good, strengths=np.zeros(shape, np.float32))
    edges = np.array([[0.0], [0.999], [np.nan]], np.float32)
    assert np.array_equal(replace(good, strengths=edges).strengths, edges, equal_nan=True)


def test_own_strengths_are_those_of_attributes_that_the_data_have():
    own = Choice(hidden_attributes=("age",), strengths={"age": 0.25})
    consent = Consent.of(USERS[:3], [Choice(), own], np.array([1, 0, 1]), ("sex", "age"))
    nan = np.nan
    expected = np.array([[nan, 0.25], [nan, nan], [nan, 0.25]], np.float32)
    assert np.array_equal(consent.strengths, expected, equal_nan=True)
    assert [consent.row(k) for k in range(3)] == [own, Choice(), own]
    for known in (("sex",), ()):
        with pytest.raises(ConfigError, match="strength names 'age'"):
            Consent.of(USERS[:3], [Choice(strengths={"age": 0.25})], np.zeros(3, int), known)
    without = {f: getattr(consent, f) for f in consent.__dataclass_fields__} | {
        "strengths": np.zeros((0, 0), np.float32)
    }
    none = Consent(**without).strengths
    assert none.shape == (3, 2)
    assert np.isnan(none).all()


def test_what_nobody_names_is_kept_back_by_nobody():
    choices = [Choice(), Choice(never_send=("bar",)), Choice(never_send=("pub", "bar"))]
    consent = Consent.of(USERS[:4], choices, np.array([1, 0, 2, 1]))
    assert consent.things == ("bar", "pub")
    expected = [[True, False], [False, False], [True, True], [True, False]]
    assert consent.never_send.tolist() == expected
    none = replace(Consent.uniform(USERS[:4], Choice()), things=("bar", "pub"))
    assert none.never_send.tolist() == [[False, False]] * 4


def test_records_of_some_fields_alone_keep_nothing_else_back():
    choices = [Choice(never_send=("bar",), share_positives=0.5), Choice(takes_part=False)]
    consent = Consent.of(USERS[:2], choices, np.array([0, 1]))
    shares = consent.only(["share_positives"])
    assert shares.things == ("bar",)
    assert shares.never_send.tolist() == [[False], [False]]
    assert shares.share_positives.tolist() == [0.5, 0.0]
    assert shares.takes_part.tolist() == [True, False]
    kept = consent.only(["never_send"])
    assert kept.never_send.tolist() == [[True], [False]]
    assert kept.share_positives.tolist() == [0.0, 0.0]


def test_words_say_what_leaves():
    assert "sends nothing" in Choice(takes_part=False).words()
    assert "30 %" in Choice(share_positives=0.3).words()
    assert "0.4 %" in Choice(share_positives=0.004).words()  # little is not nothing
    reporting = Choice(epsilon=0.5, max_reports=10)
    assert "at most 10 randomised reports a round at ε ≤ 0.5 each" in reporting.words()
    assert "over all rounds" not in reporting.words()
    assert "shares" not in reporting.words()
    limited = Choice(epsilon=0.5, max_reports=10, total_epsilon=250)
    assert "no more than ε = 250 over all rounds together" in limited.words()
    shared = Choice(share_positives=0.3, total_epsilon=2)
    assert "no more than ε = 2 over all rounds that have an ε together" in shared.words()
    assert "over all rounds" not in Choice(share_positives=0.3).words()
    assert "share_positives" not in repr(Consent.uniform(USERS[:2], Choice()))


def test_a_limit_in_all_comes_from_an_experiment_file():
    table = {"epsilon": 1, "max_reports": 5, "total_epsilon": 50}
    policy = ConsentPolicy.from_table(table)
    assert policy.choices[0].total_epsilon == 50.0
    assert policy.draw(USERS[:3], Streams.from_seed(1)).total_epsilon.tolist() == [50.0] * 3
    with pytest.raises(ConfigError, match="total_epsilon"):
        ConsentPolicy.from_table({"total_epsilon": -1})


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1, 2.5, 1e-4])
def test_a_limit_of_so_many_releases_affords_so_many(epsilon):
    """However the sum is rounded, and not one more."""
    for count in (1, 3, 10, 1000):
        limit, spent = np.array([float(f"{count * epsilon:.10g}")]), np.zeros(1)
        for _ in range(count):
            assert affords(spent, np.array([epsilon]), limit).all()
            spent = spent + epsilon
        assert not affords(spent, np.array([epsilon]), limit).any()
    assert affords(np.array([1e9]), np.array([epsilon]), np.array([math.inf])).all()
    assert not affords(np.zeros(1), np.array([epsilon]), np.zeros(1)).any()


def test_a_draw_leaves_below_its_threshold_and_inside_the_subset():
    keys = Streams.from_seed(5).keys(np.arange(2))
    coins = words_of(keys, 3) >> np.uint64(32)
    row, entry = np.array([0, 0, 0, 1, 1, 1]), np.arange(6)
    everything = np.zeros(0, dtype=bool)
    for more, leaves in ((0, False), (1, True)):
        rule = ShareRule(keys, coins[:, 1] + np.uint64(more), everything)
        assert (rule.may_leave(row, entry)[[1, 4]] == leaves).all()
    always, never = thresholds(np.array([1.0, 1.0])), thresholds(np.array([0.0, 0.0]))
    assert (always == ALWAYS).all()
    allowed = np.array([True, False, True, False, False, True])
    assert np.array_equal(ShareRule(keys, always, allowed).may_leave(row, entry), allowed[entry])
    assert not ShareRule(keys, never, allowed).may_leave(row, entry).any()
    assert not ShareRule(keys, never, everything).may_leave(row, entry).any()
    # Whoever else has how many, and in whatever order they come.
    rule = ShareRule(keys, coins[:, 1] + np.uint64(1), everything)
    told = rule.may_leave(row, entry)
    mixed = np.array([3, 0, 4, 1, 5, 2])
    assert np.array_equal(rule.may_leave(row[mixed], entry[mixed]), told[mixed])
    assert np.array_equal(rule.may_leave(row[:4], entry[:4]), told[:4])


def test_the_turn_of_a_draw_is_its_place_among_those_of_its_device():
    """Also of so many that a sort that is not stable would mix them."""
    rng = np.random.default_rng(0)
    row = rng.integers(0, 3, 500)
    keys = Streams.from_seed(5).keys(np.arange(5))  # the last two have none
    coins = words_of(keys, 500) >> np.uint64(32)
    rule = ShareRule(keys, np.full(5, ALWAYS // 2, np.uint64), np.zeros(0, dtype=bool))
    turns = [int((row[:at] == row[at]).sum()) for at in range(500)]
    expected = coins[row, turns] < ALWAYS // 2
    assert np.array_equal(rule.may_leave(row, np.arange(500)), expected)
