"""A plan says what rounds then take: bytes as the ledger has them, memory nearly, time roughly."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.base import ALGORITHMS, Work
from sottovoce.cli import call
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs import measuring
from sottovoce.runs.plan import Constants, MeasuredCosts, UsersAlike, Where, planned, rank_bytes

FILES = {
    "pfpl-plus": (),
    "pfpl-plus-per-draw": (),
    "sfpl": (),
    "fcf": (),
    "fmf": (),
    "sound/gram": ("town.residents=2000",),
    "sums/fcf": (),
}


def prepared_of(name, *settings):
    return Experiment.from_file(find_experiment(name), settings).prepared()


def measured(process=1e6, **seconds):
    return MeasuredCosts(
        seconds, {"process": process, "device": 100.0, "entry": 2.0}, "a desk", "today"
    )


@pytest.mark.parametrize("name", FILES)
def test_bytes_of_messages_are_those_of_the_ledger(name):
    prepared = prepared_of(name, *FILES[name])
    crowd = UsersAlike.of(prepared)
    devices = 3_000
    world = measuring.repeated(prepared, devices)
    running = measuring.SampledRun.of(world)
    running.run()
    constants = Constants({crowd.algorithm.name: measured(device=1e-6)})
    said = planned(prepared.experiment, crowd, Where(devices), constants)
    assert (said.cohort_size, said.rounds) == (running.plan.cohort_size, running.plan.rounds)
    draws = name in ("pfpl-plus", "pfpl-plus-per-draw", "sfpl")
    if said.largest:  # how many pairs there are follows from what devices say
        assert running.up <= said.up
    else:
        assert said.up == pytest.approx(running.up, rel=0.02 if draws else 1e-12)


def test_every_algorithm_says_what_a_round_has():
    """Twice the devices have twice of what is shared out, and as much of what is repeated."""
    for name, kind in ALGORITHMS.items():
        if not kind.__module__.startswith("sottovoce.") or name == "uc":
            continue  # the networks of UC-FedRec are told by its data
        settings, release = kind(), measuring_release(kind)
        one, two = (settings.work(settings.plan(n, 30 * n), 500, release) for n in (4000, 8000))
        assert set(one.shared) == set(two.shared)
        if settings.asks is None:
            for work, times in (("shared", 2.0), ("repeated", 1.0)):
                first, second = getattr(one, work), getattr(two, work)
                grown = {k: second[k] / first[k] for k in first if first[k]}
                alike = {k: v for k, v in grown.items() if k != "event"}
                assert all(v == pytest.approx(times) for v in alike.values()), (name, grown)
        assert min([*one.shared.values(), *one.repeated.values()]) >= 0


def measuring_release(kind):
    from sottovoce.privacy.base import RELEASES

    return RELEASES[kind.releases[0]]() if kind.releases else None


def test_constants_measured_on_small_worlds_hold_for_larger_ones():
    """Generous, since the machine may be busy; `sottovoce bench plan` has the narrow bounds."""
    prepared = prepared_of("pfpl-plus")
    found, samples = measuring.measure(prepared, (1_000, 8_000, 24_000))
    crowd, experiment = UsersAlike.of(prepared), prepared.experiment
    constants = Constants({"fpl": found})
    least = samples[1]
    for devices in (16_000, 32_000, 48_000):
        seen = measuring.run_sample(prepared, devices)
        said = planned(experiment, crowd, Where(devices), constants)
        assert 0.2 < said.seconds_round / seen.seconds < 5.0
        one, other = (
            rank_bytes(Where(s.devices), crowd, found, s.numbers) - crowd.table_bytes * s.devices
            for s in (least, seen)
        )
        assert 0.7 < (other - one) / (seen.bytes - least.bytes) < 1.4
    assert found.when
    assert len(samples) == 3


def test_a_fit_finds_the_constants_that_there_are():
    rng = np.random.default_rng(1)
    samples = []
    for devices, numbers in ((100, 10), (1_000, 10), (1_000, 5_000), (9_000, 70)):
        entries = int(devices * rng.integers(3, 9))
        work = Work({"device": devices, "entry": entries}, {"round": 1.0, "number": numbers})
        seconds = 2e-6 * devices + 3e-7 * entries + 1e-3 + 5e-8 * numbers
        held = 40.0 * devices + 7.0 * entries + 24.0 * numbers
        samples.append(measuring.RunSample(devices, entries, numbers, work, seconds, held, 1.0, 1))
    found = measuring.fit(samples, 5e6, "here")
    expected = {"device": 2e-6, "entry": 3e-7, "number": 5e-8, "round": 1e-3}
    assert {k: pytest.approx(v, rel=1e-3) for k, v in expected.items()} == dict(found.seconds)
    assert found.bytes == pytest.approx({"device": 40, "entry": 7, "number": 24, "process": 5e6})


def test_ranks_share_devices_and_memory_not_the_model():
    prepared = prepared_of("pfpl-plus")
    crowd, experiment = UsersAlike.of(prepared), prepared.experiment
    constants = Constants({"fpl": measured(device=1e-6, number=1e-6)}, thread_gain=0.5)
    one, eight = (planned(experiment, crowd, Where(10**8, n), constants) for n in (1, 8))
    model = 1e-6 * crowd.items * crowd.algorithm.width
    assert one.seconds_round - model == pytest.approx(
        8 * (eight.seconds_round - model - eight.sum_seconds)
    )
    assert eight.rank_bytes - 1e6 == pytest.approx((one.rank_bytes - 1e6) / 8, rel=1e-3)
    assert eight.up_whole == one.up_whole
    two = planned(experiment, crowd, Where(10**8, 1, threads=3), constants)
    assert one.seconds_round - model == pytest.approx(2 * (two.seconds_round - model))
    seen = [(1e6, 1e9), (2e6, 1.5e9)]
    line = planned(experiment, crowd, Where(10**8, 8), constants, seen)
    assert line.rank_bytes == pytest.approx(0.5e9 + 500 * 10**8 / 8)
    with pytest.raises(ConfigError, match="two sizes"):
        planned(experiment, crowd, Where(10), constants, [(5, 5), (5, 6)])


def test_constants_are_kept_and_refused_where_they_are_none(tmp_path):
    path = tmp_path / "here.toml"
    before = Constants({"my own": measured(draw=1e-9)}, thread_gain=0.25)
    before.save(path)
    assert Constants.load(path) == before
    with pytest.raises(ConfigError, match="nothing was measured of fpl, only of my own"):
        before.of("fpl")
    path.write_text("[algorithms.fpl]\nspeed = 1\n")
    with pytest.raises(ConfigError, match="no constants"):
        Constants.load(path)


def test_every_algorithm_of_the_package_comes_with_constants():
    shipped = Constants.load()
    ours = {n for n, k in ALGORITHMS.items() if k.__module__.startswith("sottovoce.")}
    assert set(shipped.algorithms) == ours
    for one in (*shipped.algorithms.values(), *shipped.gpus.values()):
        assert one.where
        assert one.when
        assert min(one.seconds.values()) >= 0
        assert max(one.seconds.values()) > 0


def test_repeated_users_are_the_same_users(tmp_path):
    prepared = prepared_of("uc/town-mf")
    world = measuring.repeated(prepared, 2_500)
    train, again = prepared.split.train, world.split.train
    for place in (0, 999, 1_000, 2_499):
        assert again.row(place).tolist() == train.row(place % 1_000).tolist()
    assert world.consent.users.tolist() == list(range(2_500))
    hidden = prepared.consent.hidden_attributes
    assert np.array_equal(world.consent.hidden_attributes[1_000:2_000], hidden)


def test_the_command_plans_and_refuses(capsys):
    assert call(["plan", "pfpl-plus", "--devices", "1e9", "--machines", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["devices"], told["ranks"], told["machines"]) == (10**9, 8, 8)
    assert told["up_round"] == pytest.approx(told["up"] * told["cohort_size"])
    assert call(["plan", "pfpl-plus", "--devices", "1e9", "--gpus", "2", "--items", "100000"]) == 0
    assert "GPU" in capsys.readouterr().out
    for bad, word in (
        (["--devices", "many"], "many"),
        (["--devices", "1.5"], "whole"),
        (["--seen", "1e6"], "--seen"),
        (["--items", "10"], "nobody can have"),
        (["--constants", "nowhere.toml"], "--measure"),
    ):
        assert call(["plan", "pfpl-plus", *bad]) == 2
        assert word in capsys.readouterr().err
    # One device a round, rotated reports and data owners were never timed there.
    for name in ("sfpl", "fmf", "drift"):
        assert call(["plan", name, "--gpus", "1"]) == 2
        assert "on a GPU" in capsys.readouterr().err


def test_gpu_constants_say_what_was_timed():
    """1e7 and 1e8 devices of pFPL+, and an epoch of 1e7 users of FMF-LDP, on one H200."""
    shipped = Constants.load()
    for devices, seconds in ((1e7, 0.0564), (1e8, 0.558)):
        found = shipped.of("fpl", gpu=True).seconds
        assert found["draw"] * 32 * devices + found["round"] == pytest.approx(seconds, rel=0.01)
    assert shipped.of("fmf", gpu=True).seconds["report"] * 1e9 == pytest.approx(0.166)


def test_who_takes_no_part_has_a_history_and_sends_nothing():
    prepared = prepared_of("pfpl-plus")
    out = prepared.consent.takes_part.copy()
    out[::2] = False
    half = replace(prepared, consent=replace(prepared.consent, takes_part=out))
    whole, some = UsersAlike.of(prepared), UsersAlike.of(half)
    assert some.taking_part == pytest.approx(whole.taking_part / 2, rel=0.01)
    assert some.entries == whole.entries
