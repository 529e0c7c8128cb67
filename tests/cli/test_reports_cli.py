"""What the commands say of runs with FMF-LDP and FCF: nothing that is only true of FPL."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import sottovoce.cli
from sottovoce.core import ledger as ledgers
from sottovoce.privacy.accountant import certify

TOWN = ["--set", "town.residents=80", "--set", "town.venues=60", "--set", "algorithm.rounds=3"]
TIERS = (
    "release.tiers=[{epsilon=1.0,min_devices=20},{epsilon=2.5,min_devices=30},"
    "{epsilon=4.0,min_devices=500}]"
)
MIX = (
    "consent={mix=[{weight=45,epsilon=2.5,max_reports=10,total_epsilon=50.0},"
    "{weight=45,epsilon=1.0,max_reports=10},{weight=10,takes_part=false}]}"
)
FMF = [
    "papers/fmf", *TOWN, "--set", TIERS, "--set", MIX, "--set", "release.max_reports=10",
]  # fmt: skip
FCF = ["tuned/fcf", *TOWN, "--set", "algorithm.embedding_size=4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, words in (("fmf", FMF), ("fcf", FCF)):
        assert sottovoce.cli.call(["run", *words, "--out", str(root / name)]) == 0
    return root


@pytest.fixture
def say(capsys):
    def run(*words, code=0):
        assert sottovoce.cli.call([*map(str, words)]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


def page_of(path):
    """The words of a report."""
    text = re.sub(r"<style.*?</style>|<img[^>]*>", " ", path.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


# --- the ledger -----------------------------------------------------------------------------------


def test_the_ledger_of_reports_has_reports_and_costs_instead_of_rows(runs, say):
    shown = say("ledger", runs / "fmf")
    assert re.search(r"choice +devices +releases +reports +ε of each +bytes", shown)
    assert "positive rows" not in shown
    assert "shares 0 %" not in shown
    lines = say("ledger", runs / "fmf", "--by", "round", "--csv").splitlines()
    assert lines[0] == "round,devices,releases,positive_rows,negative_rows,bytes,reports,epsilon"
    table = ledgers.read(runs / "fmf" / "ledger.parquet")
    first = table.filter(np.asarray(table["round"]) == 0)
    assert lines[1].split(",")[6] == str(ledgers.totals_of(first).reports)
    assert float(lines[1].split(",")[7]) == ledgers.totals_of(first).epsilon
    rows = say("ledger", runs / "fcf")
    assert re.search(r"choice +devices +releases +positive rows +negative rows +bytes", rows)
    assert "reports" not in rows


def test_the_cost_of_all_users_is_that_of_the_one_who_spent_most(runs, say):
    shown = say("ledger", runs / "fmf")
    # Two rounds of 25 fit into her limit of 50; others spent three rounds of 10.
    assert "No user has spent more than ε = 50, in plain sum" in shown
    assert "summed over all users" not in shown
    assert "none, see `sottovoce docs privacy`" in say("ledger", runs / "fcf")


def test_both_certificates_of_a_user_are_those_of_the_accountant(runs, say):
    table = ledgers.read(runs / "fmf" / "ledger.parquet")
    users = {1.0: None, 2.5: None}
    for user, each in zip(
        table["user"].to_pylist(), table["report_epsilon"].to_pylist(), strict=True
    ):
        users[each] = user
    for each, batch, rounds in ((1.0, 20, 3), (2.5, 30, 2)):
        name = f"r{users[each]:04d}"
        told = json.loads(say("ledger", runs / "fmf", "--user", name, "--json"))["budget"]
        expected = certify(each, 10, rounds, batch)
        assert told["spent"] == expected.without_proxy
        proved = told["certificates"]
        assert proved["without_proxy"]["epsilon"] == expected.without_proxy
        assert proved["with_proxy"]["epsilon"] == pytest.approx(expected.with_proxy, rel=1e-9)
        assert proved["with_proxy"]["smallest_batch"] == batch
        assert "optimistic" not in json.dumps(told).lower()
        shown = say("ledger", runs / "fmf", "--user", name)
        assert "optimistic" not in shown.lower()
        assert ("protects nothing either" in shown) == (expected.with_proxy > 10)


# --- results and reports --------------------------------------------------------------------------


def test_hints_are_those_of_the_algorithm(runs, capsys):
    words = ["run", *FMF, "--out", str(runs / "fmf"), "--resume", "--json"]
    assert sottovoce.cli.call(words) == 0
    captured = capsys.readouterr()
    for note in [
        *json.loads(captured.out)["notes"],
        captured.err,
        page_of(runs / "fmf/report.html"),
    ]:
        assert "adds up the steps" not in note
        assert "try a smaller algorithm.learning_rate" not in note
    assert any("noise" in note for note in json.loads(captured.out)["notes"])


def test_the_report_of_randomised_reports_shows_their_budget(runs):
    page = page_of(runs / "fmf" / "report.html")
    assert "What it costs a user" in page
    for each, rounds, batch in ((1.0, 3, 20), (2.5, 2, 30)):
        found = certify(each, 10, rounds, batch)
        row = rf"{each:g} {batch} \d+ {rounds} {10 * rounds} {found.without_proxy:g} "
        assert re.search(row + f"{found.with_proxy:.3f}"[:-2], page), (row, page)
    assert "does not collude" in page
    assert "no certificate" not in page  # the optimistic figure is not shown at all
    assert "optimistic" not in page.lower()
    assert (runs / "fmf" / "figures" / "certificate.svg").is_file()
    assert not (runs / "fmf" / "figures" / "positive-rows.png").exists()
    for false in ("share π", "rows for positive items", "positive rows", "5e+", "an update for"):
        assert false not in page, false
    assert "1 rounds" not in page


def test_the_report_of_fcf_says_that_it_protects_nothing(runs):
    page = page_of(runs / "fcf" / "report.html")
    words = ["run", *FCF, "--set", 'algorithm.variant="fpl"', "--out", str(runs / "fcf-fpl")]
    assert sottovoce.cli.call(words) == 0
    other = page_of(runs / "fcf-fpl" / "report.html")
    assert "a row for each of their positive items" in other
    assert "send a row for every item" not in other
    assert "What it costs a user" not in page
    assert "share π" not in page
    assert "No message carries a user's vector" not in page
    assert "send a row for every item" in page
    assert "release Everything" not in page
    assert not (runs / "fcf" / "figures" / "certificate.png").exists()


def test_runs_of_all_kinds_side_by_side(runs, say):
    shown = say("report", runs / "fmf", runs / "fcf")
    assert re.search(r"reports +MB", shown)
    assert "MF-NP" in shown
    told = json.loads(say("report", runs / "fmf", runs / "fcf", "--json"))
    assert told["runs"][0]["ledger"]["reports"] > 0
    page = page_of(runs / "fmf" / "comparison" / "report.html")
    assert "proxy" in page.split("What this does not protect")[-1]
    assert "every positive item" in page.split("What this does not protect")[-1]
    assert "share π" not in page


def test_recommendations_come_from_any_run(runs, say):
    for name in ("fmf", "fcf"):
        told = json.loads(say("recommend", runs / name, "--user", "r0003", "-n", "4", "--json"))
        assert [place["rank"] for place in told["recommendations"]] == [1, 2, 3, 4]


# --- stopped and resumed --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_budgets_bit_for_bit(tmp_path):
    """Killed between two checkpoints and resumed: model, vectors and every row of the ledger."""
    without = "{weight=50,epsilon=2.5,max_reports=100}"
    limited = "{weight=50,epsilon=2.5,max_reports=100,total_epsilon=7500.0}"
    words = [
        *("run", "tuned/fmf", "--set", "town.residents=4000", "--set", "town.venues=300"),
        *("--set", "algorithm.rounds=60", "--set", f"consent={{mix=[{limited},{without}]}}"),
        *("--set", "evaluation.every_epochs=1", "--set", "baselines={}"),
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = [sys.executable, "-m", "sottovoce", *words, "--out"]
    assert subprocess.run([*command, str(whole)], capture_output=True).returncode == 0
    child = subprocess.Popen(
        [*command, str(cut)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    lines, end = cut / "metrics.jsonl", time.monotonic() + 60
    while not lines.exists() or len(lines.read_text().splitlines()) < 5:
        assert time.monotonic() < end
        assert child.poll() is None
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (cut / "model.npz").exists()
    assert subprocess.run([*command, str(cut), "--resume"], capture_output=True).returncode == 0
    for name in ("model.npz", "devices.npz"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    one, other = (ledgers.read(path / "ledger.parquet") for path in (whole, cut))
    assert one.equals(other)
    spent = np.bincount(one["user"].to_numpy(), one["epsilon"].to_numpy())
    # To the limit and not a round more, or all rounds.
    assert sorted(set(spent)) == [7500.0, 15000.0]


# --- making a federation --------------------------------------------------------------------------

EXPERIMENT = 'name = "mixed"\n[algorithm]\nname = "fmf"\n[release]\nmax_reports = 10\n'


@pytest.fixture
def files(tmp_path):
    from sottovoce.stores.keys import init_keys

    init_keys(tmp_path / "keys")
    (tmp_path / "items.csv").write_text("item,title\na,A\nb,B\nc,C\n")
    (tmp_path / "mixed.toml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "ca", "code", "words"),
    [
        ("http://proxy.example:8444", "ca.crt", 2, "must be an https:// address"),
        ("https://proxy.example", "server.crt", 7, "the certificate of the proxy's authority"),
        ("https://proxy.example", "ca.key", 7, "the certificate of the proxy's authority"),
        ("https://proxy.example", "operator.token", 7, "the certificate of the proxy's authority"),
        ("proxy.example", "ca.crt", 2, "--proxy is an address"),
        ("https://proxy.example/path", "ca.crt", 2, "--proxy is an address"),
        ("https://proxy.example", "none", 3, "cannot be read"),
    ],
)
def test_terms_that_no_device_could_follow_are_not_made(files, say, url, ca, code, words):
    told = say(
        *("serve", "server", files / "town", "--experiment", files / "mixed.toml"),
        *("--catalogue", files / "items.csv", "--port", 0, "--plaintext"),
        *("--proxy", url, "--proxy-ca", files / "keys" / ca),
        code=code,
    )
    assert words in told
    assert told.count("\n") == 1
    assert "invitation" not in told  # nobody was invited yet
    assert not (files / "town").exists()


def test_the_server_does_not_say_that_nobody_is_missing(files, say, monkeypatch):
    from sottovoce.cli import serve_status

    past = {"round": 0, "attempt": 0, "outcome": "goal", "seconds": 3.26, "missing": []}
    content = {
        "round": 1, "attempt": 0, "state": "open", "target": 4, "reported": 4, "goal": 7,
        "asked": 0, "enrolled": 8, "active": 8, "shut_out": [], "refused": {},
        "batches": [{"tier": 0, "devices": 4, "parts": 1, "stored": 1}],
        "rounds": [past | {"reported": 8, "asked": 0}],
    }  # fmt: skip
    monkeypatch.setattr(serve_status, "_status_in", lambda folder: content)
    told = say("serve", "status", files / "town")
    assert "round 0.0: goal after 3.3 s, 8 devices in batches" in told
    assert "Round 1 of 4, attempt 0: open\n" in told
    assert "missing" not in told
    content |= {"asked": 9, "rounds": [past | {"reported": 8, "asked": 9, "missing": [3]}]}
    told = say("serve", "status", files / "town")
    assert "8 of 9 reported; missing: 3" in told
    assert "open, 4 of 7 reports" in told


def test_those_who_take_no_part_have_spent_nothing(runs, say):
    shown = say("ledger", runs / "fmf", "--by", "user", "--csv").splitlines()[1:]
    idle = next(line.split(",")[0] for line in shown if line.endswith(",0,0,0,0,0,0.0"))
    told = json.loads(say("ledger", runs / "fmf", "--user", idle, "--json"))
    assert told["budget"] is None
    assert told["totals"]["epsilon"] == 0
    assert "sends nothing" in say("ledger", runs / "fmf", "--user", idle)
