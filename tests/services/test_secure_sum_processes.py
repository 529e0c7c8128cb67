"""A device that sends garbage into secure sums, by real processes: the server and the proxy, both
killed again and again, and devices that are played by hand."""

import contextlib
import io
import secrets
import time
from dataclasses import replace

import numpy as np
import pytest
from attacked_world import ATTACKERS, DEVICES, EARLY, HONEST, LAST, ROUNDS, RULES, check, reopened
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_sum_world import SeedKeeper, summed_terms
from server_world import ITEMS, SEED, Client, ServerProcess, enrolment, program, quick_rules
from talk import until

from sottovoce.cli import call
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import cut_sum
from sottovoce.engines.trial import prepare_helper
from sottovoce.parties.secure_sum import summed
from sottovoce.parties.server import Server
from sottovoce.rng import Streams, streams_of
from sottovoce.stores.helper_folder import create_helper, helper_introduction
from sottovoce.stores.server_folder import create_folder, invite
from sottovoce.wire.masked import binding, encode_masked, model_name, seal_seed
from sottovoce.wire.signing import seal

USERS, LIAR = 12, 7
RUN_MASKER = program("helper", "HelperService")


class MaskerProcess(ServerProcess):
    ready_files = "masker*.json"

    def __init__(self, path):
        super().__init__(path, program=RUN_MASKER, port=int((path / "port").read_text()))


class Town:
    """The folders of both services, and what devices know."""

    def __init__(self, path, link, rounds=60, **rules):
        root = Streams.from_seed(SEED).key
        link = prepare_helper(path, link, root)
        names = {"url": link.url, "authority": link.authority, "groups": link.groups}
        self.terms = summed_terms(link.key, min_devices=link.min_devices, **names)
        self.path, self.masker = path / "server", path / "proxy"
        self.folder = create_folder(
            self.path,
            self.terms,
            [(f"v{n}", f"Venue {n}") for n in range(ITEMS)],
            rounds=rounds,
            root_key=root,
            rules=quick_rules(**{"min_devices": USERS, **rules}),
        )
        create_helper(self.masker, helper_introduction(self.folder))
        self.keys = [Ed25519PrivateKey.generate() for _ in range(USERS)]

    def enrol(self, client, database=""):
        with contextlib.closing(self.folder.database(database)) as store:
            invitations = invite(self.folder, store, "https://127.0.0.1:1", range(USERS))
        for one in invitations:
            got = client.post("/v1/enrol", enrolment(one, self.keys[one.number]))
            assert got.status == 200, got.body

    def message(self, number, round, attempt, items, values, *, foreign=False):
        """A report, with a seed that was sealed for another round if it is `foreign`."""
        key, seed = self.keys[number], secrets.token_bytes(32)
        bound = binding(self.terms, round, attempt, model_name(items))
        record = seal_seed(seed, key, self.terms.secure_sum, bound)
        if foreign:
            keeper = SeedKeeper(key)
            other = binding(self.terms, round + 1, attempt, model_name(items))
            sealed = seal_seed(seed, key, self.terms.secure_sum, other).sealed
            record = keeper.signed(replace(record, sealed=sealed), bound)
        hidden = masked(values, seed, self.terms.bits)
        body = encode_masked(self.terms, hidden, record, round, attempt)
        return self.sealed(number, round, attempt, body)

    def sealed(self, number, round, attempt, body):
        return seal(
            self.keys[number], self.terms.federation, "report", number=number, round=round,
            attempt=attempt, nonce=secrets.token_bytes(16), body=body,
        )  # fmt: skip

    def report_all(self, client, liars):
        """Everybody's report in the open round; the answers by number."""
        now, draw = client.round(), np.random.default_rng(1)
        round, attempt = now["round"], now["attempt"]
        items = client.model(round).items
        answers = {}
        for n in range(USERS):
            honest = draw.integers(-(2**18), 2**18, (ITEMS, 5))
            garbage = draw.integers(-(2**63), 2**63, (ITEMS, 5))
            values = garbage if n in liars else honest
            body = self.message(n, round, attempt, items, values)
            answers[n] = client.post("/v1/reports", body)
        return round, answers


def shown(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert call([*map(str, arguments)]) == 0
    return out.getvalue()


def moved_on(client, round):
    until(lambda: client.round()["round"] != round)


@pytest.mark.slow
def test_services_that_are_killed_again_and_again_find_who_sends_garbage(tmp_path):
    town = Town(tmp_path, SecureSum(min_devices=3, groups=4))
    server, masker = ServerProcess(town.path), MaskerProcess(town.masker)
    client, chance, answers = Client(town.folder, server.port), np.random.default_rng(3), {}
    try:
        town.enrol(client)
        for done in range(30):
            client.wait(state="open", timeout=60)
            round, answers = town.report_all(client, {LIAR})
            assert {a.status for n, a in answers.items() if n != LIAR} == {204}
            if answers[LIAR].status != 204:
                break
            time.sleep(float(chance.uniform(0, 0.1)))
            if done % 3 == 1:
                masker.kill()
                masker = MaskerProcess(town.masker)
            if done % 3 == 2:
                server.kill()
                client.close()
                server = ServerProcess(town.path)
                client = Client(town.folder, server.port)
            moved_on(client, round)
        assert done == 11, "one round is lost, ten are in groups"
        assert (answers[LIAR].status, answers[LIAR].error) == (403, "shut_out")
        assert "it spoils sums: of 10 rounds" in answers[LIAR].json()["detail"]
        moved_on(client, round)
        told = client.status()
        assert told["shut_out"] == [LIAR]
        assert told["refused"]["wrong_sum"] == 1
        assert told["refused"]["spoiled_group"] == 10
        words = shown("serve", "status", town.path)
        assert f"Shut out: {LIAR}\n  {LIAR}: the server has shut this device out" in words
        logs = "".join(log.read_text() for log in town.path.glob("server-*.log"))
        assert f"device {LIAR} was shut out: of 10 rounds with spoiled sums" in logs
    finally:
        client.close()
        server.kill()
        masker.kill()


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2], ids=["SQLite", "PostgreSQL and two servers"])
def test_a_seed_that_cannot_be_opened_in_every_round_of_a_secure_sum(tmp_path, servers, request):
    link = SecureSum(min_devices=len(HONEST))
    town = Town(tmp_path, link, ROUNDS, min_devices=1, **RULES)
    database = request.getfixturevalue("postgres").fresh("attacked") if servers > 1 else ""
    values = np.random.default_rng(1).integers(-(2**18), 2**18, (ROUNDS, DEVICES, ITEMS, 5))
    plan = town.folder.plan
    expected = Server.start(town.terms.build(), ITEMS, streams_of(plan.root_key))
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(ServerProcess(town.path, database=database)) for _ in range(servers)
        ]
        stack.enter_context(MaskerProcess(town.masker))
        clients = [stack.enter_context(Client(town.folder, one.port)) for one in running]
        logs, first = [one.log for one in running], clients[0]
        town.enrol(first, database)
        for round, attacker in enumerate(ATTACKERS):
            for client in clients:
                client.wait(state="open", round=round, timeout=120)
            items = first.model(round).items
            messages = {
                n: town.message(n, round, 0, items, values[round, n], foreign=n == attacker)
                for n in (*HONEST, attacker)
            }
            for n in (*EARLY, attacker):
                assert clients[n % servers].post("/v1/reports", messages[n]).status == 204
            reopened(logs, round)
            assert clients[round % servers].post("/v1/reports", messages[LAST]).status == 204
            for n in EARLY:  # whoever has sent is not asked again, and nothing counts twice
                got = clients[(n + 1) % servers].post("/v1/reports", messages[n])
                assert got.error in ("replay", "late")
            sums = values[round, list(HONEST)].sum(axis=0)
            limit = plan.value_limit
            expected.fold(cut_sum(summed(round, sums, len(HONEST)), limit))
        first.wait(state="finished", round=ROUNDS, timeout=120)
        assert np.array_equal(first.model(ROUNDS).items, expected.items), "to the last bit"
        status = first.status()
        check(status, logs)
        assert status["refused"]["undecryptable"] == ROUNDS
