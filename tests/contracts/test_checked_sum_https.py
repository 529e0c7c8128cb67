"""gram over a checked sum by real processes: device agents, a server and two aggregators, some of
which are killed between any two questions. Model and ledger are the simulation's, bit for bit; a
device that does not keep to the bounds is left out by real services, and named."""

import asyncio
import contextlib
import secrets
import time
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from attacked_world import (
    ATTACKERS,
    DEVICES,
    EARLY,
    HONEST,
    LAST,
    ROUNDS,
    RULES,
    check,
    lines,
    reopened,
)  # fmt: skip
from checked_world import forged
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forwarder import Forwarder
from server_world import Client, enrolment
from test_secure_sum_https import nobody

from sottovoce.core.shares import P, bits_of, split
from sottovoce.engines.processes import wait_for
from sottovoce.engines.trial import aggregator_place
from sottovoce.experiment import Experiment
from sottovoce.parties.aggregator import form_of
from sottovoce.parties.secure_sum import summed
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.runs.train import run_experiment
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores.aggregator_folder import (
    OTHERS,
    aggregator_introduction,
    create_aggregator,
    open_aggregator,
)
from sottovoce.stores.device import CohortStore
from sottovoce.stores.keys import write_new_files
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.invitations import kept_invitation
from sottovoce.wire.masked import binding, model_name
from sottovoce.wire.shared import encode_shared
from sottovoce.wire.signing import seal

pytestmark = pytest.mark.usefixtures("forked_children")

TOWN = {
    "name": "checked-for-real",
    "seed": 5,
    "town": {"residents": 12, "venues": 90, "districts": 2},
    "algorithm": {"name": "gram", "popularity_share": 0.3, "least_head": 12},
    "release": {"epsilon": 8.0},
    "service": {"deadline_seconds": 8.0, "min_devices": 8},
    "consent": {"mix": [{"weight": 1, "epsilon": 0.5}, {"weight": 1, "epsilon": 4.0}]},
    "link": {"name": "checked-sum", "min_devices": 3},
}


def parties(**changes):
    experiment = Experiment.from_table(deepcopy(TOWN) | changes)
    prepared = experiment.prepared(experiment.dataset())
    made = federation_of(prepared)
    return made, world_of(experiment, prepared.dataset, made)


def fold(made, rows):
    """A round of these devices by the plain sum, with the aggregators' noise."""
    server, view = made.server, made.server.publish()
    many, _ = server.algorithm.report_shape(view)
    sums = made.devices.report_summed(view, np.array(rows)).dense(many)
    rules = made.aggregators[0].rules
    step = rules.link.grid(rules.form(view.round, many)).step
    for one in made.aggregators:
        noise = one.rules.noise(view.round, many, b"")
        if noise is not None:
            sums[:, 0] += step * noise
    server.fold(summed(view.round, sums, len(rows)))


class Between(Forwarder):
    """On the way to an aggregator, one connection for each question."""

    def __init__(self, before):
        super().__init__(1)
        self._before = before

    async def _accept(self, reader, writer):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._before, self.connections)
        await super()._accept(reader, writer)


class Killed(HttpsTrial):
    """A trial whose aggregators are killed (-9) before they are asked, as `kills` say of their
    number and how often they were asked, and started again."""

    def __init__(self, world, folder, processes, kills, stack):
        super().__init__(world, folder, processes)
        self.killed = dict.fromkeys(OTHERS, 0)
        self.ways = {}
        for number in OTHERS:
            way = Between(lambda asked, number=number: self._perhaps(number, asked))
            self.ways[number] = stack.enter_context(way)
            place = aggregator_place(folder, number)
            place.mkdir(parents=True, mode=0o700)
            write_new_files(place, {"port": str(way.port).encode()})
        self._kills = kills

    def _perhaps(self, number, asked):
        if self._kills(number, asked):
            self.aggregators[number].kill()
            self.killed[number] += 1
            self.start_aggregator(number)

    def start_aggregator(self, number):
        server, place = open_folder(self.folder / "server"), aggregator_place(self.folder, number)
        with contextlib.suppress(Exception):
            introduced = aggregator_introduction(server.plan.terms, server.keys, number)
            create_aggregator(place, introduced)
        found = open_aggregator(place)
        (place / "aggregator.json").unlink(missing_ok=True)
        child = self._start(f"aggregator-{number}", "serve", "aggregator", place, "--port", "0")
        wait_for(child, lambda: found.running() is not None)
        self.aggregators[number] = child
        self.ways[number].target = "127.0.0.1", found.running()["port"]

    def _watch(self):
        pass

    def serve(self, number, rows, url):
        stores = [self.store(row) for row in rows]
        return self._start(f"agent-{number}", "serve", "device", *stores, "--server", url)


def lost_and_killed(tmp_path, made, world, groups, kills, awake):
    """Agents serve `groups` of devices; `awake` says of each round which agents are there."""
    with contextlib.ExitStack() as stack:

        class Some(Killed):
            def _start_agents(self, url):
                self.url = url
                for one in awake[0]:
                    self.agents.append(self.serve(one, groups[one], url))

        trial = Some(world, tmp_path / "services", 2, kills, stack)
        with trial.running():
            for round, there in enumerate(awake):
                for one in set(awake[round - 1]) - set(there) if round else ():
                    trial.agents[awake[0].index(one)].kill()
                trial.advance(round + 1, nobody)
                fold(made, sorted(row for one in there for row in groups[one]))
            items = trial.operator().model(len(awake), trial.world.terms).items
            rounds, refused = trial.log()
            agents, trial.agents = trial.agents, []
            for agent in agents:
                if agent.alive:
                    agent.stop()
            ledger = trial.ledger()
    assert np.array_equal(items, made.server.items), "to the last bit"
    assert items.any()
    assert not refused
    assert [r["reported"] for r in rounds] == [sum(len(groups[o]) for o in t) for t in awake]
    return trial, ledger


def test_a_killed_aggregator_and_lost_devices_leave_the_sum_what_it_is(tmp_path):
    made, world = parties()
    groups = {k: range(k, 12, 3) for k in range(3)}
    # The third question of each round is for checks: coins were told, and the sum was not.
    trial, (table,) = lost_and_killed(
        tmp_path, made, world, groups, lambda number, asked: asked % 4 == number, [[0, 1], [0, 1]]
    )
    assert trial.killed == {1: 2, 2: 2}
    assert sorted(set(table.user.tolist())) == sorted([*groups[0], *groups[1]])
    with CohortStore.open(trial.store(0), readonly=True) as store:
        assert DeviceSession(store).recommend(0, 5)


class Liar:
    """A device of a trial that does what it likes, over HTTPS."""

    def __init__(self, trial, row):
        self.folder = open_folder(trial.folder / "server")
        self.number, self.terms = row, self.folder.plan.terms
        self.client = Client(self.folder, self.folder.running()["port"])
        with CohortStore.open(trial.store(row), readonly=True) as store:
            invitation = kept_invitation(store)
        self.key = Ed25519PrivateKey.generate()
        assert self.client.post("/v1/enrol", enrolment(invitation, self.key)).status == 200

    def made(self, change=lambda bits, form: None, **forgery):
        """Record and what travels, of honest bits that were changed."""
        now = self.client.round()
        view = self.client.model(now["model"])
        numbers = self.terms.build().report_shape(view)[0]
        bound = binding(self.terms, now["round"], 0, model_name(view.items), numbers)
        form = form_of(self.terms.build(), self.terms.link, now["round"], numbers)
        bits = bits_of(form, np.zeros((1, form.places), int))[0]
        change(bits, form)
        secret = tuple(secrets.token_bytes(32) for _ in range(3))
        travelled = split(bits, secret).astype("<u4").tobytes()
        forgery = {k: v(secret) for k, v in forgery.items()}
        return forged(secret, travelled, self.key, self.terms.link, bound, **forgery), travelled

    def send(self, record, travelled, cut=None, round=0):
        body = encode_shared(travelled, record, round, 0)[:cut]
        place = {"number": self.number, "round": round, "attempt": 0}
        nonce = secrets.token_bytes(16)
        sent = seal(self.key, self.terms.federation, "report", **place, nonce=nonce, body=body)
        return self.client.post("/v1/reports", sent)


def test_liars_are_refused_or_left_out_and_named(tmp_path):
    made, world = parties()
    honest, liars = range(7), {}

    class Some(HttpsTrial):
        def _start_agents(self, url):
            stores = [self.store(row) for row in honest]
            self.agents.append(self._start("agent", "serve", "device", *stores, "--server", url))

    def two(bits, form):
        bits[3] = 2

    def long(bits, form):
        bits[:] = 1

    def half(bits, form):
        bits[0] = (P + 1) // 2

    trial = Some(world, tmp_path / "services", 1)
    with trial.running():
        trial.operator().raise_target(1)
        liars = {row: Liar(trial, row) for row in range(7, 12)}
        liars[7].client.wait(state="open", round=0)
        for row, change in ((7, two), (8, long), (9, half)):
            assert liars[row].send(*liars[row].made(change)).status == 204
        other = {"sealed": lambda q: {2: secrets.token_bytes(32) + q[0]}}
        assert liars[10].send(*liars[10].made(**other)).status == 204
        eleven, (record, travelled) = liars[11], liars[11].made()
        large = travelled[:4] + (P + 5).to_bytes(4, "little") + travelled[8:]
        for answer, reason in (
            (eleven.send(record, large), "malformed"),
            (eleven.send(record, travelled[4:] + travelled[:4]), "malformed"),
            (eleven.send(record, travelled[: len(travelled) // 2]), "malformed"),
            (eleven.send(record, travelled, cut=-1), "malformed"),
            (eleven.send(record, travelled, round=1), "malformed"),
            (eleven.send(*liars[10].made()), "bad_signature"),
            (eleven.send(replace(record, sealed=record.sealed[::-1]), travelled), "bad_signature"),
        ):
            assert 400 <= answer.status < 500
            assert answer.error == reason
        assert liars[7].send(*liars[7].made()).error == "second_submission"
        trial.advance(1, nobody)
        items = trial.operator().model(1, trial.world.terms).items
        said = trial.operator().status()
        fold(made, list(honest))
        for liar in liars.values():
            liar.client.close()
    assert np.array_equal(items, made.server.items), "to the last bit"
    assert said["rounds"][0]["left_out"] == {"bad_shares": 1, "out_of_range": 3}
    assert said["refused"]["out_of_range"] == 3
    log = (trial.folder / "logs" / "server.log").read_text()
    assert "what devices 7, 8, 9 have shared is beyond the bounds that are checked" in log
    assert "the shares of devices 10 are not what they have signed" in log
    for number in OTHERS:
        log = (trial.folder / "logs" / f"aggregator-{number}.log").read_text()
        assert liars[7].key.public_key().public_bytes_raw().hex() not in log


@pytest.mark.slow
def test_64_devices_some_lost_and_aggregators_killed_before_every_question(tmp_path):
    made, world = parties(
        town={"residents": 64, "venues": 200},
        service={"deadline_seconds": 25.0, "min_devices": 40},
        link={"name": "checked-sum", "min_devices": 20, "noise_by": "halves"},
    )
    rng = np.random.default_rng(3)
    order = rng.permutation(64)
    groups = {k: order[k::8].tolist() for k in range(8)}
    everyone = list(range(7))
    trial, (table,) = lost_and_killed(
        tmp_path, made, world, groups,
        lambda number, asked: number == 1 or asked % 2 == 0,
        [everyone, everyone[:-1]],
    )  # fmt: skip
    assert trial.killed[1] >= 8
    assert len(table.user) == 56 + 48


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bad_bit_in_every_round_of_a_checked_sum(tmp_path):
    algorithm = {"name": "gram", "popularity_share": 0.3, "least_head": 12, "batches": 10}
    _, world = parties(
        algorithm=algorithm,
        service={"min_devices": 1, **RULES},
        link={"name": "checked-sum", "min_devices": len(HONEST)},
    )

    def two(bits, form):
        bits[3] = 2

    trial = HttpsTrial(world, tmp_path / "services", 0)
    log = tmp_path / "services" / "logs" / "server.log"
    with trial.running():
        trial.operator().raise_target(ROUNDS)
        devices = {row: Liar(trial, row) for row in range(DEVICES)}
        client = devices[0].client
        for round, attacker in enumerate(ATTACKERS):
            client.wait(state="open", round=round, timeout=120)
            messages = {n: devices[n].made() for n in HONEST}
            messages[attacker] = devices[attacker].made(two)
            for n in (*EARLY, attacker):
                assert devices[n].send(*messages[n], round=round).status == 204
            reopened(log, round)
            assert devices[LAST].send(*messages[LAST], round=round).status == 204
        client.wait(state="finished", round=ROUNDS, timeout=120)
        status = client.status()
        for one in devices.values():
            one.client.close()
    check(status, log)
    assert status["refused"]["out_of_range"] == ROUNDS
    # Each aggregator has told one part of every round's sum, over the five honest devices.
    for number in OTHERS:
        told = lines(tmp_path / "services" / "logs" / f"aggregator-{number}.log", left_out=0)
        assert [(one["round"], one["devices"]) for one in told] == [
            (round, len(HONEST)) for round in range(ROUNDS)
        ]


@pytest.mark.slow
def test_a_round_waits_for_an_aggregator_that_is_away_and_goes_on(tmp_path):
    made, world = parties()
    trial = HttpsTrial(world, tmp_path / "services", 2)
    with trial.running():
        trial.aggregators[2].kill()
        trial.operator().raise_target(1)
        until = time.monotonic() + 600
        while not (said := trial.operator().status())["waits"]:
            assert time.monotonic() < until
            time.sleep(0.2)
        assert said["waits"].startswith("round 0 waits for aggregator 2: ")
        assert (said["round"], said["state"]) == (0, "closing")
        trial.start_aggregator(2)
        trial.advance(1, nobody)
        fold(made, range(12))
        assert trial.operator().status()["waits"] == ""
        items = trial.operator().model(1, trial.world.terms).items
    assert np.array_equal(items, made.server.items)


@pytest.mark.slow
def test_a_run_over_https_is_the_simulations(tmp_path):
    table = deepcopy(TOWN) | {
        "town": {"residents": 64, "venues": 200},
        "service": {},
        "link": {"name": "checked-sum", "min_devices": 20},
    }
    table["algorithm"] |= {"quality_share": 0.1}
    for engine in ("simulation", "https"):
        run_experiment(Experiment.from_table(table), tmp_path / engine, engine=engine)
    models = [np.load(tmp_path / engine / "model.npz") for engine in ("simulation", "https")]
    assert np.array_equal(models[0]["items"], models[1]["items"])
    ledgers = [(tmp_path / e / "ledger.parquet").read_bytes() for e in ("simulation", "https")]
    assert ledgers[0] == ledgers[1]
