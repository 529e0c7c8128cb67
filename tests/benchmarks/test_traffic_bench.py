"""The benchmark of traffic counts what passes, and compares like with like."""

import asyncio
import socket
import threading

import numpy as np
import pytest

from sottovoce.experiment import load_benchmark
from sottovoce.runs.devices import federation_of, world_of


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("traffic")


def test_a_forwarder_counts_every_byte_each_way(bench):
    def answer(listener):
        there, _ = listener.accept()
        with there:
            while there.recv(1 << 16):
                pass
            there.sendall(b"x" * 70_000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        forwarder = bench.Forwarder(listener.getsockname()[1])
        forwarder.start()
        with socket.create_connection(("127.0.0.1", forwarder.port)) as here:
            here.sendall(b"y" * 100_000)
            here.shutdown(socket.SHUT_WR)
            got = 0
            while chunk := here.recv(1 << 16):
                got += len(chunk)
        assert got == 70_000
        assert asyncio.run(forwarder.since((0, 0))) == (100_000, 70_000)
        forwarder.close()


@pytest.mark.parametrize(("fpl", "met"), [(5_001.0, True), (4_900.0, False)])
def test_a_year_is_held_against_the_first_of_its_peers(bench, fpl, met):
    year = bench.Cost("a year", 60.0, 40.0, 0.1234)
    row = year.row([bench.Cost("FPL", fpl - 1.0, 1.0, None), bench.Cost("FCF", 200.0, 0.0, None)])
    assert row["value"] == 100
    assert row["ratio"] == pytest.approx(fpl / 100.0)
    assert row["met"] is met
    assert "2.0 × less than FCF" in row["peer"]
    assert "P@10 0.1234" in row["peer"]
    assert "met" not in year.row([])


def test_guests_take_no_part_and_devices_do(bench):
    experiment = bench._named({"source": "town"}, bench.TRAININGS["FPL over a secure sum"])
    prepared = experiment.prepared(experiment.dataset())
    federation = federation_of(prepared)
    whole = world_of(experiment, prepared.dataset, federation)
    world = bench._few(whole, federation, guests=2)
    assert world.cohort.consent.takes_part.tolist() == [True] * bench.DEVICES + [False] * 2
    assert world.rules.min_devices == world.cohort_size == bench.DEVICES
    rows = federation.devices.willing()[: bench.DEVICES + 2]
    assert np.array_equal(world.cohort.history.counts, whole.cohort.history.counts[rows])


@pytest.mark.slow
def test_a_year_and_a_training_are_counted_at_the_socket(bench):
    data = {"source": "town"}
    training = bench._training("FPL", data, bench.TRAININGS["FPL over a secure sum"], quick=True)
    year = bench._gram_year(data | {"min_item_users": 10}, 8.0)
    assert 0 < year.up < training.up / 10
    assert 0 < year.down < training.down / 2
