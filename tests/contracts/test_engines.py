"""The engines' contract: the same experiment file gives the same model, ledger and recommendations,
whether all devices are one cohort in this process, processes of their own that speak HTTPS, or
cohorts on gateways that speak Flower. Real processes, with TLS and node keys as in deployment."""

import contextlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli import call
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.runs.folder import RunFolder

EVERY = """
seed = 3
draws = "secret"    # as in deployment

[town]
residents = 8
venues = 60
districts = 2

[service]
deadline_seconds = 280.0    # a busy machine is no reason to go on without somebody

[baselines.top-pop]
"""
FPL = """
[algorithm]
configuration = "pFPL+"
embedding_size = 8
rounds = 5

[consent]
mix = [
  { weight = 2, takes_part = false },
  { weight = 3, share_positives = 0.3 },
  { weight = 3, share_positives = 1.0 },
]
"""
FCF = """
[algorithm]
name = "fcf"
embedding_size = 4
rounds = 5

[consent]
mix = [{ weight = 2, takes_part = false }, { weight = 6, share_positives = 1.0 }]
"""
FMF = """
[algorithm]
name = "fmf"
embedding_size = 3
rounds = 5

[release]
max_reports = 20
tiers = [{ epsilon = 1.0, min_devices = 2 }, { epsilon = 2.5, min_devices = 2 }]

[consent]
mix = [
  { weight = 2, takes_part = false },
  { weight = 3, epsilon = 1.5, max_reports = 20, total_epsilon = 1000.0 },
  { weight = 3, epsilon = 3.0, max_reports = 50 },
]
"""
ROTATED = FMF.replace('name = "fmf"', 'name = "fmf"\nvariant = "rotated"')
# Three devices in each tier: the first shuffler of a chain waits for one beyond the minimum.
SPARE = FMF.replace("weight = 2,", "weight = 20,").replace(
    "weight = 3, epsilon = 1.5", "weight = 31, epsilon = 1.5"
)
SPARE = SPARE.replace("weight = 3, epsilon = 3.0", "weight = 29, epsilon = 3.0")
CHAIN = {
    f"chain of {many}": f"{SPARE}\n[link]\nchain = [{', '.join(['{}'] * (many - 1))}]\n"
    for many in (2, 3)
}
UC = """
[algorithm]
name = "uc"
embedding_size = 8
item_rate = 4.0
local_epochs = 3
pairs = 16
rounds = 5
attributes = [{ name = "gender" }, { name = "age" }]

[consent]
mix = [
  { weight = 1, takes_part = false },
  { weight = 4, share_positives = 1.0 },
  { weight = 3, share_positives = 1.0, hidden_attributes = ["gender"], strength = 0.8 },
]
"""
WORLDS = {"fpl": FPL, "fcf": FCF, "fmf": FMF, "rotated": ROTATED, "uc": UC, **CHAIN}
RESIDENTS = generate_town(TownConfig(residents=8, venues=60, districts=2)).interactions


def sottovoce(*arguments):
    """What a command answers."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert call([*map(str, arguments), "--json"]) == 0
    return json.loads(out.getvalue())


def left_behind(folder):
    """Processes whose command line or working files name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    for name, world in {**WORLDS, "spare": SPARE}.items():
        (folder / f"{name}.toml").write_text(EVERY + world)
    return folder


@pytest.fixture(scope="module")
def simulated(place):
    return run(place, "simulation")


RUNS = {}


def run(place, engine, world="fpl"):
    """One run on each engine, for all tests of this file."""
    if (engine, world) not in RUNS:
        RUNS[engine, world] = run_once(place, engine, world)
    return RUNS[engine, world]


def run_once(place, engine, world):
    """With a process for each device where FPL goes over HTTPS, and two for all in other worlds."""
    out = place / f"{engine}-{world}"
    options = ["--processes", "2"] if (engine == "https" and world != "fpl") else []
    told = sottovoce("run", place / f"{world}.toml", "--engine", engine, "--out", out, *options)
    return RunFolder.open(out), told


@pytest.mark.parametrize(
    ("world", "engine"),
    [
        ("fpl", "https"),
        pytest.param("fpl", "flower", marks=pytest.mark.slow),
        pytest.param("fcf", "https", marks=pytest.mark.slow),
        pytest.param("fmf", "https", marks=pytest.mark.slow),
        pytest.param("chain of 2", "https", marks=pytest.mark.slow),
        pytest.param("chain of 3", "https", marks=pytest.mark.slow),
        pytest.param("rotated", "https", marks=pytest.mark.slow),
        pytest.param("uc", "flower", marks=pytest.mark.slow),
        pytest.param("fcf", "flower", marks=pytest.mark.slow),
    ],
)
def test_real_processes_give_the_simulations_model_ledger_and_recommendations(
    place, engine, world, request
):
    if world != "fpl":
        request.getfixturevalue("forked_children")
    (expected, told), (got, told_there) = run(place, "simulation", world), run(place, engine, world)
    assert np.allclose(got.model(), expected.model(), rtol=1e-6, atol=0)
    assert np.array_equal(got.model(), expected.model()), "sums of whole numbers: to the last bit"
    assert np.array_equal(got.vectors(), expected.vectors())
    assert got.ledger().to_pydict() == expected.ledger().to_pydict()
    assert got.ledger().num_rows == 5 * got.manifest()["schedule"]["devices"] > 0
    assert told_there["results"] == told["results"]
    for user in RESIDENTS.users_vocabulary().names():
        mine, theirs = (
            sottovoce("recommend", run_folder.path, "--user", user)["recommendations"]
            for run_folder in (expected, got)
        )
        assert mine == theirs
    assert not left_behind(got.path)


@pytest.mark.parametrize("world", CHAIN)
def test_a_chain_of_shufflers_gives_the_model_of_one(place, world):
    """A report is longer by a layer for each, and that is all."""
    (one, _), (chain, _) = run(place, "simulation", "spare"), run(place, "simulation", world)
    assert np.array_equal(chain.model(), one.model())
    assert np.array_equal(chain.vectors(), one.vectors())
    before, after = one.ledger().to_pydict(), chain.ledger().to_pydict()
    more = [b - a for a, b in zip(before.pop("bytes"), after.pop("bytes"), strict=True)]
    assert set(more) == {20 * 48 * (int(world[-1]) - 1)}
    assert before == after


@pytest.mark.parametrize("engine", ["https", pytest.param("flower", marks=pytest.mark.slow)])
def test_the_run_folder_says_how_every_round_ended(place, engine):
    folder, _ = run(place, engine)
    lines = (folder.path / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    assert [r["round"] for r in rounds] == [0, 1, 2, 3, 4]
    assert all(r["outcome"] == "goal" and not r["missing"] for r in rounds)
    assert folder.manifest()["engine"] == engine


def test_at_home_a_device_recommends_what_the_simulation_does(place, simulated):
    """Also one that takes no part: it fits its vector to the published model by itself."""
    expected, _ = simulated
    folder, _ = run(place, "https")
    consent = expected.manifest()["consent"]
    assert len(consent) == 3
    for store in sorted((folder.path / "services" / "devices").iterdir()):
        user = RESIDENTS.users_vocabulary().name(int(store.name))
        at_home = sottovoce("device", "recommend", store)["recommendations"]
        simulated_list = sottovoce("recommend", expected.path, "--user", user)["recommendations"]
        assert [r["item"] for r in at_home] == [r["item"] for r in simulated_list]
        assert [r["score"] for r in at_home] == pytest.approx([r["score"] for r in simulated_list])


@pytest.mark.slow
def test_at_home_reporting_devices_recommend_what_the_simulation_does(place):
    """Their vectors follow from the published model, so everyone fits them anew."""
    expected, _ = run(place, "simulation", "chain of 2")
    folder, _ = run(place, "https", "chain of 2")
    for store in sorted((folder.path / "services" / "devices").iterdir()):
        user = RESIDENTS.users_vocabulary().name(int(store.name))
        at_home = sottovoce("device", "recommend", store)["recommendations"]
        simulated_list = sottovoce("recommend", expected.path, "--user", user)["recommendations"]
        assert [r["item"] for r in at_home] == [r["item"] for r in simulated_list]


def test_flower_refuses_reports_that_must_stay_anonymous(place, capsys):
    out = place / "flower-fmf"
    assert call(["run", str(place / "fmf.toml"), "--engine", "flower", "--out", str(out)]) == 2
    assert "proxy" in capsys.readouterr().err
    assert not out.exists()
