"""`sottovoce budget`: what any release would cost a user; and what has been spent."""

import functools
import json
import math

import numpy as np
import pytest

from sottovoce.cli import spent
from sottovoce.core.consent import Choice
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.errors import UsageError
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.privacy import central
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.statements import odds
from sottovoce.runs.foreseen import outlook


def rows(name, *settings, **more):
    return outlook(Experiment.from_file(find_experiment(name), settings), **more).rows


@pytest.fixture
def call(sottovoce_):
    return functools.partial(sottovoce_, "budget")


# --- what is foreseen -----------------------------------------------------------------------------


def test_reports_cost_the_plain_sum_without_trust_and_the_certificate_with_it():
    (row,) = rows("tuned/fmf", users=1000)
    asked = certify(2.5, 100, 20, 1000)
    assert (row.times, row.cost, row.batch) == (20, 250.0, 1000)
    assert (row.together, row.apart) == (asked.without_proxy, asked.with_proxy)
    assert row.delta == asked.delta


def test_the_batch_is_the_least_that_the_tier_permits_unless_users_are_named():
    small, large = rows("sound/fmf")
    assert (small.batch, large.batch) == (200, 500)
    assert small.apart == certify(0.125, 25, 20, 200).with_proxy
    assert large.apart == certify(0.25, 25, 20, 500).with_proxy
    assert [row.batch for row in rows("sound/fmf", users=750)] == [750, 750]


def test_a_chain_costs_what_one_shuffler_costs_and_says_when_it_does_not():
    chained = "link.chain=[{}, {}]"
    experiment = Experiment.from_file(find_experiment("sound/fmf"), [chained])
    found = outlook(experiment)
    assert found.rows == rows("sound/fmf")
    assert any("if at most 2 of them work with the server" in one for one in found.assumed)
    assert any("any dishonest one can leave reports out" in one for one in found.assumed)
    assert not any("of them work" in one for one in outlook(
        Experiment.from_file(find_experiment("sound/fmf"))
    ).assumed)  # fmt: skip


def test_noisy_sums_cost_what_central_says_and_nothing_is_promised_against_both():
    (row,) = rows("sound/fpl", rounds=7)
    link = Experiment.from_file(find_experiment("sound/fpl")).link
    assert (row.times, row.apart) == (7, central.price(link.noise, 7))
    assert row.cost == central.price(link.noise, 1)
    assert math.isinf(row.together)


def test_a_limit_ends_what_is_sent():
    (row,) = rows("sound/fpl", "consent.total_epsilon=3", rounds=20)
    assert 0 < row.times < 20
    assert row.apart <= 3.0 < central.price(_noise(), row.times + 1)
    (row,) = rows("tuned/fmf", "consent.total_epsilon=999")
    assert (row.times, row.together) == (3, 750.0)
    (row,) = rows("tuned/fmf", "consent.total_epsilon=1")
    assert (row.times, row.apart, row.together) == (0, 0.0, 0.0)


def _noise():
    return Experiment.from_file(find_experiment("sound/fpl")).link.noise


def test_contributions_cost_each_her_own_epsilon_a_period():
    mix = "consent.mix=[{weight=1, epsilon=0.5}, {weight=3, epsilon=2.0, total_epsilon=5.0}]"
    first, second = rows("demo", mix, rounds=3)
    assert [row.each for row in (first, second)] == ["period"] * 2
    assert (first.share, first.times, first.apart) == (0.25, 3, 1.5)
    assert (second.times, second.apart) == (2, 4.0), "a third does not fit into her limit"
    assert first.delta == pytest.approx(3e-6)
    assert math.isinf(first.together)


def test_noise_that_devices_add_needs_no_trust():
    for row in rows("uc/movielens-100k-noise"):
        assert row.apart == row.together == row.times * row.cost


def test_what_nothing_bounds_is_infinite_and_who_sends_nothing_pays_nothing():
    for name in ("papers/fpl", "tuned/fcf", "sums/fcf", "drift/movielens-100k"):
        found = [row for row in rows(name) if row.times != 0]
        assert all(math.isinf(row.apart) for row in found), name
        assert found, name
    nobody = rows("papers/fpl", "consent.takes_part=false", "consent.share_positives=0")
    assert [(row.times, row.apart) for row in nobody] == [(0, 0.0)]
    (refused,) = rows("tuned/fmf", "consent.epsilon=1.0")
    assert (refused.times, refused.apart) == (0, 0.0)
    assert "nothing leaves" in refused.why_not


def test_rounds_that_only_the_data_know_are_asked_for():
    noisy = Experiment.from_file(find_experiment("sound/fpl"), ["algorithm.rounds=0"])
    with pytest.raises(UsageError, match="say --rounds"):
        outlook(noisy)


# --- the command ----------------------------------------------------------------------------------


def test_the_table_has_every_choice_and_what_it_rests_on(call):
    code, out, err = call("sound/fmf", "--users", 750)
    assert (code, err) == (0, "")
    assert "0.971" in out
    assert "125" in out
    assert "does not work with the server" in out
    assert "but for a chance of 1e-06" in out


def test_json_is_one_object_with_the_same_figures(call):
    code, out, err = call("tuned/fmf", "--users", 6040, "--set", "algorithm.rounds=20", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    (row,) = json.loads(out)["rows"]
    assert (row["epsilon_apart"], row["epsilon_together"]) == (21.406, 5000.0)
    (row,) = json.loads(call("papers/fpl", "--json")[1])["rows"]
    assert (row["epsilon_apart"], row["times"]) == (None, None)


def test_without_a_file_it_is_the_demo(call):
    assert "gram would cost a user of demo" in call()[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-file"], "there is no experiment file no-such-file"),
        (["--users", "0"], "--users"),
        (["--rounds", "-3"], "--rounds"),
        (["--users", "99999999999"], "at most 10,000,000,000"),
        (["--set", "consent.epsilon=-1"], "epsilon"),
        (["--rounds", "many"], "not a valid integer"),
    ],
)
def test_bad_input_is_one_sentence(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_what_protects_nothing_is_said_to(call):
    assert "this protects nothing" in call("tuned/fmf")[1]


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.0, "exactly as likely"),
        (0.01, "at most 1.011 times"),
        (1.0, "at most 2.72 times"),
        (3.0, "at most 21 times"),
        (5.0, "at most 149 times as likely with your data as with any other in their place, "
              "which is weak protection"),
        (10.0, "at most 22,027 times"),
        (10.01, "this protects nothing"),
        (5000.0, "e^5,000 times"),
    ],
)  # fmt: skip
def test_odds_in_words_are_never_rounded_down(epsilon, words):
    assert words in odds(epsilon)
    if "at most" in words:
        shown = odds(epsilon).split("at most ")[1].split(" times")[0]
        assert float(shown.replace(",", "")) >= math.exp(epsilon)


# --- what has been spent --------------------------------------------------------------------------


def sent_rows(*kinds):
    """One user's ledger: k, ε and batch of each round."""
    book = Ledger()
    for round, (k, epsilon, batch) in enumerate(kinds):
        one = np.ones(1, np.int64)
        book.record(
            Entries(
                "k-reports" if k else "share-item",
                one,
                round * one,
                one,
                one,
                one,
                np.array([k * epsilon if k else math.inf]),
                k * one,
                epsilon * one,
                batch * one,
            )
        )
    return book.pending()


def test_a_runs_ledger_has_the_same_budget_for_one_user():
    choice = Choice(epsilon=1.0, max_reports=10, total_epsilon=12.0)
    assert spent.of_ledger(sent_rows(), choice) is None
    assert spent.of_ledger(sent_rows((0, 0.0, 0)), choice) is None
    found = spent.of_ledger(sent_rows((10, 0.5, 100), (10, 0.5, 100)), choice)
    assert (found.account.without_proxy, found.rounds_left, found.round_cost) == (10.0, 0, 5.0)
    assert found.account.with_proxy == certify(0.5, 10, 2, 100).with_proxy
    assert not found.unbounded
    mixed = spent.of_ledger(sent_rows((0, 0.0, 0), (10, 0.5, 100), (4, 1.0, 50)), choice)
    assert (mixed.account.without_proxy, mixed.rounds_left) == (9.0, 0)
    assert (mixed.smallest_batch, mixed.unbounded, mixed.account.reports) == (50, True, 14)
    direct = spent.of_ledger(sent_rows((10, 0.5, 0)), choice)
    assert direct.account.with_proxy == 5.0
    assert any("no proxy" in line for line in direct.lines())


@pytest.mark.parametrize(
    ("used", "limit", "bar", "percent"),
    [
        (0.0, 10.0, 0, 0),
        (9.999, 10.0, 23, 99),  # not full before it is
        (10.0, 10.0, 24, 100),
        (0.1 + 0.1 + 0.1, 0.3, 24, 100),
        (0.3, 0.1 + 0.2, 24, 100),
        (30.0, 10.0, 24, 100),
        (0.0, 0.0, 24, 100),
    ],
)
def test_the_meter_is_full_when_the_budget_is(used, limit, bar, percent):
    told = spent.meter(used, limit)
    assert told.startswith("[" + "#" * bar + "-" * (24 - bar) + "]")
    assert told.endswith(f" {percent} %")
