"""A helper, aggregators and a shuffler that are set back by a file copy while a round is open, with
real processes: nothing leaves a second time, or the difference has the noise of both sums."""

import json
import os
import shutil

import numpy as np
import pytest
from checked_world import DEVICES
from proxy_world import Link, ProxyProcess, proxied, proxy_terms
from scipy import stats
from secure_sum_world import LEAST, NOISY, SUMS, TOKEN, SeedKeeper, masker_folder, question
from server_world import Client, ServerProcess, program
from talk import until
from test_proxy_crash import enrolled
from test_proxy_service import count
from test_shuffler_set_back import batches
from test_sums_after_a_rollback import Checked, is_noise_of_both

from sottovoce.core.masking import sum_masks
from sottovoce.engines.client import Answer
from sottovoce.engines.helper_client import SumRefused
from sottovoce.stores.keys import operator_token
from sottovoce.stores.noted import Left, note_of
from sottovoce.wire.masked import decode_mask_sum

ROUNDS = 24


class HelperProcess(ServerProcess):
    ready_files = "masker*.json"

    def __init__(self, folder):
        super().__init__(folder.path, program=program("helper", "HelperService"))
        self.client = Client(folder, self.port)

    def told(self, payload):
        return self.client.ask("POST", SUMS, payload, {"Authorization": f"Bearer {TOKEN}"})

    def kill(self):
        if self.ready is not None:
            self.client.close()
        super().kill()


def put_back(folder, copy):
    shutil.rmtree(folder.path)
    shutil.copytree(copy, folder.path)


def logged(path, event):
    lines = [line for log in path.glob("server-*.log") for line in log.read_text().splitlines()]
    return [one for one in map(json.loads, lines) if one["event"] == event]


@pytest.mark.slow
def test_two_sums_of_a_helper_whose_machine_was_set_back_have_the_noise_of_both(tmp_path):
    """In every round the server asks for all, then for all but one after folder and note were put
    back. Without noise of its own the difference would be that device's update."""
    folder = masker_folder(tmp_path / "helper", **NOISY)
    terms, devices = folder.introduction.terms, [SeedKeeper() for _ in range(LEAST + 1)]
    numbers, note = terms.n_rows * terms.width, note_of(folder.path, folder.noise_secret().key)
    shutil.copytree(folder.path, tmp_path / "copy")

    def noise(helper, some, round):
        got = helper.told(question(terms, round, some))
        assert got.status == 200, got.body
        told = decode_mask_sum(got.body, terms).masks
        exact = sum_masks([one.seed(round) for one in some], numbers)
        return (exact - told).view(np.int64).astype(float)

    pairs, helper = [], HelperProcess(folder)
    try:
        for round in range(ROUNDS):
            first = noise(helper, devices, round)
            helper.kill()
            put_back(folder, tmp_path / "copy")
            note.unlink()
            helper = HelperProcess(folder)
            pairs.append((first, noise(helper, devices[1:], round)))
    finally:
        helper.kill()
    one, other = np.concatenate(pairs, axis=1)
    sigma, many = terms.secure_sum.sigma, len(one)
    assert many == ROUNDS * numbers
    for found, size in ((one, 1), (other, 1), (one - other, 2)):
        square = float(np.sum((found / sigma) ** 2)) / size
        assert 1e-6 < stats.chi2(many).cdf(square) < 1 - 1e-6
    correlation = float(np.corrcoef(one, other)[0, 1])
    assert abs(correlation) < 5 / np.sqrt(many)


@pytest.mark.slow
def test_a_helper_whose_folder_alone_was_set_back_tells_nothing_more_of_the_round(tmp_path):
    folder = masker_folder(tmp_path / "helper")
    terms, devices = folder.introduction.terms, [SeedKeeper() for _ in range(LEAST + 1)]
    shutil.copytree(folder.path, tmp_path / "copy")
    first = question(terms, 3, devices)
    with HelperProcess(folder) as helper:
        told = helper.told(first)
        assert told.status == 200
    put_back(folder, tmp_path / "copy")
    with HelperProcess(folder) as helper:
        for some in (devices[1:], devices[:-1]):
            got = helper.told(question(terms, 3, some))
            assert (got.status, got.error) == (409, "second_submission")
        assert helper.told(first).body == told.body
        assert helper.told(question(terms, 4, devices)).status == 200
    assert [one["round"] for one in logged(folder.path, "set back")] == [3]


class RestartedAggregator:
    """In the place of an application: a process for as long as it is entered."""

    def __init__(self, folder):
        self.folder, self.process, self.client = folder, None, None

    def __enter__(self):
        run = program("aggregator", "AggregatorService")
        self.process = AggregatorProcess(self.folder.path, program=run)
        self.client = Client(self.folder, self.process.port)
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.client.close()
            self.process.kill()
        self.process = None

    def post(self, path, question):
        token = {"Authorization": f"Bearer {self.folder.introduction.token}"}
        got = self.client.ask("POST", path, question, token)
        return Answer(got.status, "", got.body)


class AggregatorProcess(ServerProcess):
    ready_files = "aggregator*.json"


@pytest.mark.slow
@pytest.mark.parametrize("noise_by", ["helper", "halves"])
def test_two_sums_of_aggregators_whose_machines_were_set_back_have_the_noise_of_both(
    tmp_path, noise_by
):
    """Pairs of sums over sets that differ in two devices. With the folders alone set back, nothing
    more is told."""
    here = Checked(tmp_path, noise_by)
    try:
        for number, folder in here.world.folders.items():
            here.world.apps[number].__exit__()
            here.world.apps[number] = RestartedAggregator(folder).__enter__()
        without = [((at,), (at + 1,)) for at in range(0, DEVICES, 2)]
        without += [((0, 2), (0, 3)), ((1, 4), (1, 5)), ((2, 6), (2, 7)), ((3, 5), (3, 6))]
        pairs = [(here.noise(*first), here.noise(*second)) for first, second in without]
        one, other = np.concatenate(pairs, axis=1)
        many = len(one)
        assert many > 500
        assert is_noise_of_both(one - other, here.sigma)
        for number, folder in here.world.folders.items():
            here.world.apps[number].__exit__()
            put_back(folder, here.copy / str(number))
            here.world.apps[number].__enter__()
            assert len(logged(folder.path, "set back")) == 1
        with pytest.raises(SumRefused, match="second_submission"):
            here.sum(2)
    finally:
        here.world.close()


@pytest.mark.slow
def test_a_shuffler_that_was_set_back_while_its_round_is_open_hands_no_second_batch_over(
    tmp_path, monkeypatch
):
    """Twelve devices send, the folder is copied, a thirteenth sends, a batch of 13 leaves. The copy
    is started, and the server takes whatever comes. In the next round all goes on."""
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(tmp_path / "marks"))
    later = {"hold_seconds": 0.3, "goal": {"0": 13}}
    terms = proxy_terms(minimum=(12, 2))
    with proxied(tmp_path, terms=terms) as (server, folder):
        some = enrolled(server, folder, 13)

        def send(link, round, devices):
            for device in devices:
                payload = device.submission(round)
                until(lambda payload=payload: link.submit(payload).status == 204)

        with ProxyProcess(folder, hold_seconds=60.0, goal={"0": 13}) as proxy:
            with Link(folder, proxy.port) as link:
                send(link, 0, some[:12])
            assert proxy.stop() == 0
        copy = shutil.copytree(folder.path, tmp_path / "copy")
        with ProxyProcess(folder, **later) as proxy, Link(folder, proxy.port) as link:
            send(link, 0, some[12:])
            until(lambda: count(folder, "outcomes"))
        assert len(server.batch(0, 0)) == 13 * 4
        put_back(folder, copy)
        server.remembers = False
        server.parts.clear()
        with ProxyProcess(folder, **later) as proxy, Link(folder, proxy.port) as link:
            assert len(logged(folder.path, "set back")) == 1
            got = link.submit(some[12].submission(0, tier=1, fresh=True))
            assert (got.status, got.error) == (409, "late")
            server.move(1)
            send(link, 1, some)
            until(lambda: server.batch(1, 0))
            operator = {"Authorization": f"Bearer {operator_token(folder.keys)}"}
            figures = link.ask("GET", "/metrics", headers=operator).body.decode()
            assert "proxy_set_back_total 1" in figures
        sets = batches(server)
        assert {where: [len(one) for one in found] for where, found in sets.items()} == {
            (0, 0): [13 * 4],
            (1, 0): [13 * 4],
        }
        assert folder.marks().read() != Left()
        # On another machine there are no marks, and nothing starts.
        os.rename(tmp_path / "marks", tmp_path / "elsewhere")
        put_back(folder, copy)
        with pytest.raises(AssertionError, match="start once with --next-round"):
            ProxyProcess(folder, **later)
