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
    end = time.monotonic() + 60
    while client.round()["round"] == round:
        assert time.monotonic() < end
        time.sleep(0.05)


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


# --- masked reports behind a right model name -----------------------------------------------------


@pytest.mark.slow
def test_masked_reports_that_are_off_are_refused_and_cost_nobody_the_round(tmp_path):
    """Everything around the one thing that is right: round, attempt, model and sender."""
    town = Town(tmp_path, SecureSum(min_devices=3))
    other = prepare_helper(tmp_path / "elsewhere", SecureSum(min_devices=3), 1)
    draw = np.random.default_rng(0)
    with (
        MaskerProcess(town.masker),
        ServerProcess(town.path) as server,
        Client(town.folder, server.port) as client,
    ):
        town.enrol(client)
        client.wait(round=0, state="open", timeout=60)
        items, key, terms = client.model(0).items, town.keys[1], town.terms
        bound, zeros = binding(terms, 0, 0, model_name(items)), np.zeros((ITEMS, 5), np.int64)

        def body(words=None, bound=bound, link=terms.secure_sum, key=key):
            record = seal_seed(bytes(32), key, link, bound)
            hidden = masked(zeros, bytes(32)) if words is None else words
            return encode_masked(terms, hidden, record, 0, 0)

        good, numbers = body(), 8 * ITEMS * 5
        nudged = items.copy()
        nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(1))
        off = {
            "cut off in a number": (good[: 16 + numbers // 2 + 3], "malformed"),
            "cut off in the record": (good[:-1], "malformed"),
            "a byte too many": (good + b"0", "oversized"),
            "numbers of four bytes": (good[: 16 + numbers // 2] + good[-176:], "malformed"),
            "a number too few": (body(masked(zeros[1:], bytes(32))), "malformed"),
            "twice the numbers": (good[:16] + 2 * good[16:-176] + good[-176:], "oversized"),
            "another count in its head": (good[:12] + b"\x01\0\0\0" + good[16:], "malformed"),
            "another round in its head": (good[:4] + b"\x01\0\0\0" + good[8:], "malformed"),
            "another attempt in its head": (good[:8] + b"\x01\0\0\0" + good[12:], "malformed"),
            "another version": (b"SVM9" + good[4:], "version"),
            "no masked update": (b"SVU1" + good[4:], "malformed"),
            "no record": (good[:-176], "malformed"),
            "a record of zeros": (good[:-176] + bytes(176), "bad_signature"),
            "a model that differs in one bit": (
                body(bound=binding(terms, 0, 0, model_name(nudged))), "bad_signature",
            ),
            "bound to the next round": (
                body(bound=binding(terms, 1, 0, model_name(items))), "bad_signature",
            ),
            "sealed and signed by another device": (body(key=town.keys[2]), "bad_signature"),
        }  # fmt: skip
        for what, (content, reason) in off.items():
            got = client.post("/v1/reports", town.sealed(1, 0, 0, content))
            assert (got.status // 100, got.error) == (4, reason), what
        for _ in range(150):
            broken = bytearray(good)
            for _ in range(int(draw.integers(1, 4))):
                place = (
                    int(draw.integers(16)) if draw.random() < 0.5 else -int(draw.integers(1, 176))
                )
                broken[place] ^= 1 << int(draw.integers(8))
            got = client.post("/v1/reports", town.sealed(1, 0, 0, bytes(broken)))
            assert got.status in (400, 401, 426), got.body
        assert client.status()["reported"] == 0
        # What the server cannot see: a seed for another proxy's key, and one that is no seed.
        foreign = body(link=other)
        assert client.post("/v1/reports", town.sealed(1, 0, 0, foreign)).status == 204
        assert client.post("/v1/reports", town.sealed(1, 0, 0, good)).status == 409, "one each"
        for n in (n for n in range(USERS) if n != 1):
            values = draw.integers(-(2**18), 2**18, (ITEMS, 5))
            assert client.post("/v1/reports", town.message(n, 0, 0, items, values)).status == 204
        moved_on(client, 0)
        told = client.status()
        assert told["rounds"][0]["outcome"] == "goal"
        assert told["refused"]["undecryptable"] == 1
        assert told["shut_out"] == []
        assert "the seeds of devices 1;" in server.log.read_text()
        assert not np.array_equal(client.model(1).items, items)
