"""`sottovoce budget`: the table, the sentences, the limit, the figure, and bad input.

The command is called through an application of its own, with the error handling of the real one.
"""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import typer

import sottovoce.cli
from sottovoce.cli import spent
from sottovoce.cli.budget import budget
from sottovoce.core.consent import Choice
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.statements import grid, odds, sentences

POINT = ["--epsilon", "2.5", "--reports", "100", "--rounds", "20", "--users", "6040"]


@pytest.fixture
def call(capsys, monkeypatch):
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command()(budget)
    monkeypatch.setattr(sottovoce.cli, "app", app)

    def run(*arguments):
        code = sottovoce.cli.call(["budget", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_table_shows_both_certificates(call):
    code, out, err = call(*POINT)
    assert (code, err) == (0, "")
    line = next(line for line in out.splitlines() if "20 (asked)" in line)
    assert line.split() == ["20", "(asked)", "2,000", "5,000", "21.406", "14.508"]
    assert "no certificate" in out
    assert "does not collude" in out


def test_json_is_one_object_with_the_same_figures(call):
    code, out, err = call(*POINT, "--limit", "10", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    asked = certify(2.5, 100, 20, 6040)
    assert found["certificate"]["with_proxy"] == asked.with_proxy
    assert found["certificate"]["without_proxy"] == 5000
    assert [row["rounds"] for row in found["table"]] == [1, 5, 10, 20, 50]
    assert found["rounds_within"] == {
        "limit": 10.0, "without_proxy": 0, "with_proxy": 5, "optimistic": 10
    }  # fmt: skip
    assert set(found["sentences"]) == {"without_proxy", "with_proxy", "optimistic"}


def test_the_limit_in_words(call):
    code, out, _ = call(*POINT, "--limit", "10")
    assert code == 0
    assert "not even one round without a trusted proxy, 5 rounds with a proxy" in out
    small = ["--epsilon", "1", "--reports", "1", "--rounds", "1", "--users", "500"]
    assert "1 round without a trusted proxy" in call(*small, "--limit", "1")[1]


def test_what_protects_nothing_is_said_to(call):
    _, out, _ = call(*POINT)
    assert out.count("this protects nothing") == 2
    assert "a number of 2,172 digits" in out
    assert sentences(certify(1.0, 1, 1, 6040))["with_proxy"].startswith(
        "With a proxy (ε = 0.07): what a server sees in shuffled batches of at least 6,040 honest "
        "users is at most 1.072 times as likely"
    )
    assert "one in 1,000,000" in sentences(certify(1.0, 1, 1, 6040))["with_proxy"]


def test_a_crowd_that_hides_nobody_is_said_to():
    assert "shuffling gains nothing" in sentences(certify(4.0, 1, 1, 100))["with_proxy"]
    assert "shuffling gains nothing" not in sentences(certify(4.0, 1, 1, 6040))["with_proxy"]


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


@pytest.mark.parametrize(
    ("rounds", "reports", "expected"),
    [
        (1, 1, [1, 5]),
        (5, 1, [1, 5, 10]),
        (20, 100, [1, 5, 10, 20, 50]),
        (30, 1, [1, 5, 10, 20, 30, 50]),
        (100, 1, [1, 5, 10, 20, 50, 100, 200]),
        (1, 10_000_000, [1]),
    ],
)
def test_the_grid_goes_one_step_beyond_what_was_asked(rounds, reports, expected):
    assert grid(rounds, reports) == expected


def test_the_figure_is_written_as_png_and_svg(call, tmp_path):
    code, out, _ = call(*POINT, "--limit", "10", "--out", tmp_path / "new" / "budget.png")
    assert code == 0
    assert (tmp_path / "new" / "budget.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "new" / "budget.svg").read_text()
    assert "<path" in drawn
    assert "budget.png" in out
    first = (tmp_path / "new" / "budget.svg").read_bytes()
    call(*POINT, "--limit", "10", "--out", tmp_path / "new" / "budget.svg")
    assert (tmp_path / "new" / "budget.svg").read_bytes() == first


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--epsilon", "0"], "ε of one report must lie in"),
        (["--epsilon", "-1"], "ε of one report must lie in"),
        (["--epsilon", "nan"], "ε of one report must lie in"),
        (["--epsilon", "inf"], "ε of one report must lie in"),
        (["--epsilon", "900"], "nothing would be protected"),
        (["--reports", "0"], "reports per round must be at least 1"),
        (["--rounds", "-3"], "rounds must be at least 1"),
        (["--users", "0"], "users must be at least 1"),
        (["--delta", "0"], "δ must lie between 0 and 1"),
        (["--delta", "1"], "δ must lie between 0 and 1"),
        (["--limit", "0"], "limit on ε must be above 0"),
        (["--limit", "nan"], "limit on ε must be above 0"),
        (["--reports", "9000000"], "take fewer of either"),
        (["--out", "budget.pdf"], "must end in .png or .svg"),
        (["--rounds", "many"], "not a valid integer"),
    ],
)
def test_bad_input_is_one_sentence(call, changed, words):
    code, out, err = call(*POINT, *changed)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_folder_is_not_a_file(call, tmp_path):
    (tmp_path / "there.png").mkdir()
    code, _, err = call(*POINT, "--out", tmp_path / "there.png")
    assert code == 2
    assert "is a folder" in err


def test_help_has_examples_and_every_option(call):
    code, out, _ = call("--help")
    assert code == 0
    assert "sottovoce budget --epsilon 2.5 --reports 100 --rounds 20 --users 6040" in out
    for option in ("epsilon", "reports", "rounds", "users", "delta", "limit", "out", "json"):
        assert f"--{option}" in out


def test_importing_the_command_imports_nothing_heavy_and_the_accountant_needs_no_oracle():
    code = (
        "import sys\nimport sottovoce.cli.budget\n"
        "print([m for m in ('numpy', 'scipy', 'matplotlib') if m in sys.modules])\n"
        "sys.modules['dp_accounting'] = sys.modules['scipy'] = None\n"
        "from sottovoce.privacy.accountant import certify\n"
        "print(round(certify(2.5, 1, 1, 1000).with_proxy, 3))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n0.832\n", "")


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


def test_a_chain_is_told_for_every_number_of_dishonest_shufflers(call):
    code, out, err = call(*POINT, "--shufflers", "3")
    assert (code, err) == (0, "")
    assert "if at most 2 of them work with the server, ε = 21.406" in out
    assert "if all 3 do, ε = 5,000" in out
    found = json.loads(call(*POINT, "--shufflers", "3", "--json")[1])["chain"]["holding"]
    assert [one["dishonest"] for one in found] == [0, 1, 2, 3]
    assert [one["epsilon"] for one in found] == [found[0]["epsilon"]] * 3 + [5000.0]
    assert "chain" not in json.loads(call(*POINT, "--json")[1])
    assert call(*POINT, "--shufflers", "17")[0] == 2
