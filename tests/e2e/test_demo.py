"""`sottovoce demo`, once, as a user starts it; every assertion looks at that one run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
"""Two demos take 41 s of a processor; tests/cli/test_demo_cli.py has one of a smaller town."""

COMMAND = str(Path(sys.executable).with_name("sottovoce"))
SYSTEMS = {"random", "top-pop", "item-knn", "gram"}
PRINTED = [f"{name}, as printed" for name in ("FPL", "FCF", "FMF-LDP", "DRIFT", "UC-FedRec")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def told(place):
    """What the demo prints for people."""
    done = subprocess.run([COMMAND, "demo"], cwd=place, capture_output=True, text=True, timeout=800)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def again(place, told):
    """The second time, as JSON: it goes to a folder of its own."""
    done = subprocess.run(
        [COMMAND, "demo", "--json"], cwd=place, capture_output=True, text=True, timeout=800
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_table_has_every_system_and_its_protocol(told):
    for name in ("Random", "Top-Pop", "Item-kNN", *PRINTED, "gram"):
        assert re.search(rf"^\s+{re.escape(name)}\s+0\.\d{{4}}", told, re.MULTILINE), name
    assert "Protocol: top 10; all training items" in told
    assert "paired t-test" in told


def test_gram_beats_random_and_popularity_by_more_than_chance(told, again):
    results = again["results"]
    assert set(results) == SYSTEMS
    for metric in ("P@10", "R@10", "NDCG@10"):
        assert results["gram"][metric] > 1.5 * results["top-pop"][metric]
        assert results["top-pop"][metric] > results["random"][metric]
    row = re.search(r"^\s+gram\s+0\.\d{4}(\S*)", told, re.MULTILINE)
    assert row is not None
    assert "†" in row.group(1)


def test_every_papers_system_is_above_chance(again):
    found = again["papers"]
    assert list(found) == ["random", "top-pop", "gram", *PRINTED]
    for name in PRINTED:
        assert found[name]["P@10"] > 1.5 * found["random"]["P@10"], name
    for name in (PRINTED[0], PRINTED[1], PRINTED[4]):
        assert found[name]["P@10"] > 1.3 * found["top-pop"]["P@10"], name


def test_both_are_attacked_and_one_of_them_gives_everything_away(told, again):
    ours, theirs = again["given_away"]["gram"], again["given_away"]["fpl"]
    assert ours["verdict"] == "holds"
    assert 0.5 < ours["value"] < 0.65
    assert ours["interval"][0] <= ours["base_rate"]
    assert theirs["verdict"] == "broken"
    assert theirs["value"] > 0.95
    assert f"AUC of {ours['value']:.2f}" in told
    assert f"{theirs['claims']:,} names are right" in told


def test_both_times_give_the_same_numbers_in_folders_of_their_own(place, again):
    assert Path(again["run"]) == Path("runs/demo-2")
    first, second = (
        json.loads((place / "runs" / name / "manifest.json").read_text())
        for name in ("demo", "demo-2")
    )
    assert first["results"] == second["results"]
    assert first["ledger"] == second["ledger"]
    assert all(again["results"][name] == first["results"][name] for name in first["results"])


def test_residents_are_counted_by_their_choice(told, again):
    assert sum(choice["users"] for choice in again["consent"]) == again["town"]["users"]
    chosen = [c["epsilon"] for c in again["consent"] if c["takes_part"]]
    assert chosen == pytest.approx([0.5, 1.0, 1.0, 4.0])
    assert [c["takes_part"] for c in again["consent"]].count(False) == 1
    assert [c["never_send"] for c in again["consent"]].count(["Nightlife Spot"]) == 1
    for choice in again["consent"]:
        counted = f"{choice['users']:,}"
        assert re.search(rf"\b{counted} .*{re.escape(choice['choice'])}", told)


def test_the_figures_of_the_readme_are_those_of_the_demo(again):
    """To two in the third digit: another processor may round a sum differently."""
    labels = {
        "Random": "random",
        "Top-Pop": "top-pop",
        "Item-kNN (central)": "item-knn",
        "**gram**, as the residents chose": "gram",
    }
    text = (Path(__file__).parents[2] / "README.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\.\d+) \| (\.\d+) \| (\.\d+) \|$", text, re.MULTILINE)
    assert [name for name, *_ in rows if name not in PRINTED] == list(labels)
    for name, *printed in rows:
        found = again["papers"][name] if name in PRINTED else again["results"][labels[name]]
        measured = [found[metric] for metric in ("P@10", "R@10", "NDCG@10")]
        assert [float(value) for value in printed] == pytest.approx(measured, abs=0.002)
