"""The device agent of a federation with a proxy, visit by visit: what leaves goes to the proxy,
sealed, once, within the owner's limits; the server hears nothing of it."""

import asyncio
import json
import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fake_federation import WORLD, Federation, make_store, refusal
from fake_server import FakeServer, Reply

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.consent import Choice
from sottovoce.core.links import Proxied
from sottovoce.engines.client import Busy
from sottovoce.errors import KeyTrouble, MessageError, Unreachable
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.services.agent.agent import Agent
from sottovoce.stores import keys
from sottovoce.stores.device import CohortStore
from sottovoce.stores.keys import ReportKey
from sottovoce.stores.server_folder import admit, is_admitted
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.reports import decode_bits
from sottovoce.wire.sealing import open_reports
from sottovoce.wire.shuffled import decode_submission, is_authentic, terms_name
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

K = 6
TIERS = (Tier(0.5, 2), Tier(2.0, 2))
WILLING = Choice(epsilon=2.0, max_reports=K, total_epsilon=1000.0)


def new_report_key():
    return ReportKey.of(secrets.token_bytes(32))


class FakeProxy:
    """Takes what it is sent, unless `hook` answers first."""

    def __init__(self, federation):
        self.federation = federation
        self.accounts, self.taken, self.challenges = {}, {}, []
        self.hook = lambda request: None

    def answer(self, request):
        special = self.hook(request)
        if special is not None:
            return special
        if request.path == "/v1/terms":
            return Reply(200, json.dumps(self.federation.terms.to_table()).encode())
        if request.path == "/v1/challenge":
            self.challenges.append(secrets.token_bytes(48))
            return Reply(200, json.dumps({"challenge": self.challenges[-1].hex()}).encode())
        if request.path == "/v1/enrol":
            return self.enrol(json.loads(request.body))
        return self.submit(request.body)

    def enrol(self, table):
        public, word, signature, challenge = (
            bytes.fromhex(table[name])
            for name in ("public_key", "admission", "signature", "challenge")
        )
        known = self.federation.signing.public_key().public_bytes_raw()
        if not is_admitted(known, table["federation"], public, word, signature, challenge):
            return refusal(403, "bad_admission")
        if challenge not in self.challenges:
            return refusal(409, "replay")
        self.challenges.remove(challenge)
        account = public[:16]
        self.accounts[account] = secrets.token_bytes(32)
        told = {"account": account.hex(), "key": self.accounts[account].hex()}
        return Reply(200, json.dumps(told).encode())

    def submit(self, body):
        found = decode_submission(body, K, len(TIERS))
        if found.account not in self.accounts:
            return refusal(401, "unknown_account")
        if not is_authentic(body, self.accounts[found.account]):
            return refusal(401, "bad_mac")
        if found.terms != terms_name(self.federation.terms):
            return refusal(409, "other_terms")
        place = found.account, found.round
        if place in self.taken:
            return refusal(409, "replay" if self.taken[place] == body else "second_submission")
        if found.round != self.federation.round:
            return refusal(409, "late")
        self.taken[place] = body
        return Reply(204)

    def opened(self, round=0):
        """What the server would read of a round: by tier, all reports."""
        by_tier = {}
        for (_, number), body in self.taken.items():
            if number == round:
                found = decode_submission(body, K, len(TIERS))
                reports, bad = open_reports(
                    found.reports,
                    self.federation.report_key.private,
                    federation=self.federation.terms.federation,
                    round=round,
                    tier=found.tier,
                )
                assert bad == 0
                by_tier.setdefault(found.tier, []).append(reports)
        return by_tier


class ProxiedFederation(Federation):
    """The server's half: rounds move on when the test says so."""

    def __init__(self, terms, **settings):
        super().__init__(terms=terms, **settings)
        self.state = "open"
        self.report_key = new_report_key()
        self.signing = Ed25519PrivateKey.generate()

    def descriptor(self):
        found = super().descriptor()
        if self.state == "open":
            key = self.report_key
            found["report_key"] = {"id": key.id.hex(), "public": key.public.hex()}
        return found

    def _enrol(self, body):
        reply = super()._enrol(body)
        if reply.status == 200:
            public = bytes.fromhex(json.loads(body)["public_key"])
            word = admit(self.signing, self.terms.federation, public)
            told = json.loads(reply.body) | {"admission": word.hex()}
            reply.body = json.dumps(told).encode()
        return reply

    def next_round(self):
        self.server.round += 1


class Town:
    def __init__(self, path, folder):
        self.path = path
        self.context = keys.server_context(folder)
        self.ca = keys.authority_pem(folder)
        self.proxy = FakeProxy(None)
        self.mixer = FakeServer(self.proxy.answer, self.context).__enter__()
        link = Proxied(self.mixer.url, self.ca)
        config = FMFConfig(embedding_size=3)
        self.terms = Terms("town-1", WORLD.n_items, config, KReports(K, TIERS), link)
        self.federation = ProxiedFederation(self.terms, rounds=50, devices=6)
        self.proxy.federation = self.federation
        self.server = self.federation.serve(self.context).__enter__()
        self.stores, self.events = {}, []
        self.foreseen = self.terms.digest()  # the owners have seen these terms elsewhere

    def store(self, number=0, choice=WILLING):
        if number not in self.stores:
            path = self.path / f"device-{number}"
            make_store(path, self.federation, self.server.url, self.ca, number, choice)
            self.stores[number] = CohortStore.open(path, agent=True)
        return self.stores[number]

    def agent(self, number=0):
        def log(event, **details):
            self.events.append((event, details))

        return Agent(self.store(number), log=log, foreseen=self.foreseen)

    def visit(self, *numbers, times=1):
        for _ in range(times):
            for number in numbers or [0]:
                asyncio.run(self.one_visit(self.agent(number)))

    async def one_visit(self, agent):
        try:
            return await agent.visit()
        finally:
            await agent.close()

    def hosted(self, number=0):
        return DeviceSession(self.store(number))

    def state(self, number=0):
        latest = self.hosted(number).latest()
        return None if latest is None else (latest.round, latest.state)

    def spent(self, number=0):
        return float(self.store(number).spent()[0])

    def sent(self):
        """What went to the proxy."""
        return [r.path for r in self.mixer.requests if r.method == "POST"]

    def heard(self):
        """What the server was told, as opposed to asked."""
        return [r.path for r in self.server.requests if r.method != "GET"]

    def close(self):
        for store in self.stores.values():
            store.close()
        self.server.__exit__()
        self.mixer.__exit__()


@pytest.fixture
def town(folder, tmp_path):
    made = Town(tmp_path, folder)
    yield made
    made.close()


# --- taking part ----------------------------------------------------------------------------------


def test_reports_go_to_the_proxy_sealed_and_the_server_hears_of_the_enrolment_alone(town):
    town.store(1, Choice(epsilon=1.0, max_reports=100, total_epsilon=1000.0))
    town.visit(0, 1)
    town.visit(0, 1, times=3)
    assert town.sent() == ["/v1/enrol", "/v1/submissions"] * 2
    assert town.heard() == ["/v1/enrol"] * 2, "no check-in, no report, nothing about tiers"
    opened = town.proxy.opened()
    assert sorted(opened) == [0, 1]
    for number, tier in ((0, 1), (1, 0)):
        message = decode_bits(town.hosted(number).latest().message)
        assert opened[tier][0].tolist() == message.reports[0].tolist()
    assert (town.state(0), town.state(1)) == ((0, "arrived"), (0, "arrived"))
    assert (town.spent(0), town.spent(1)) == (K * 2.0, K * 0.5)
    assert len({len(body) for body in town.proxy.taken.values()}) == 1, "one size for all"
    town.federation.next_round()
    town.visit(0)
    assert town.sent()[4:] == ["/v1/submissions"], "the account is kept"
    assert town.store(0).ledger().num_rows == 2
    contacts = [(c.party, c.what, c.bytes, c.epsilon) for c in town.store(0).contacts()]
    first = [next(r for r in at.requests if r.method == "POST") for at in (town.server, town.mixer)]
    assert contacts == [
        (party, "enrolment", len(request.body), 0.0)
        for party, request in zip(("server", "proxy"), first, strict=True)
    ]


def test_what_is_asked_of_the_server_names_nobody(town):
    town.visit(times=2)
    for request in town.server.requests:
        if request.method == "GET":
            assert set(request.headers) <= {"host", "accept-encoding"}
            assert not request.body


def test_the_number_of_a_version_does_not_come_back(town):
    """A server that gave each device a version of its own would know it again by `since`."""
    town.visit()
    for _ in range(3):
        town.federation.next_round()
        town.visit()
    models = [r.path for r in town.server.requests if "model" in r.path]
    assert models == [f"/v1/model/{round}" for round in range(4)]
    assert len(town.proxy.taken) == 4


def test_the_server_gets_the_same_questions_from_every_tier(town):
    town.store(1, Choice(epsilon=0.5, max_reports=K, total_epsilon=1000.0))
    asked = []
    for number in (0, 1):
        start = len(town.server.requests)
        town.visit(number, number)
        asked.append([(r.method, r.path) for r in town.server.requests[start:]])
    assert asked[0] == asked[1]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice",
    [
        Choice(epsilon=2.0, max_reports=K, total_epsilon=K * 2.0 - 0.1),
        Choice(epsilon=0.4, max_reports=K, total_epsilon=1000.0),
        Choice(epsilon=2.0, max_reports=K - 1, total_epsilon=1000.0),
        Choice(takes_part=False),
        None,
    ],
)
def test_who_permits_no_report_sends_nothing_at_all(town, choice):
    town.store(0, choice)
    town.visit(times=3)
    assert town.mixer.requests == []
    assert town.heard() == []
    assert town.spent() == 0.0
    assert town.hosted().model() is not None, "what is published can be read"


def test_a_spent_budget_is_spent_for_ever(town):
    town.store(0, Choice(epsilon=2.0, max_reports=K, total_epsilon=2 * K * 2.0))
    for _ in range(5):
        town.visit()
        town.federation.next_round()
    assert town.sent() == ["/v1/enrol"] + ["/v1/submissions"] * 2
    assert town.spent() == 2 * K * 2.0
    assert town.heard() == ["/v1/enrol"]


def test_the_last_report_of_a_budget_is_sent_again_where_its_answer_was_lost(town):
    town.store(0, Choice(epsilon=2.0, max_reports=K, total_epsilon=K * 2.0))
    lost = [True]

    def lose(request):
        if request.path == "/v1/submissions" and lost.pop():
            town.proxy.submit(request.body)
            return Reply(raw=b"")
        return None

    town.proxy.hook = lose
    with pytest.raises(Unreachable):
        town.visit()
    assert town.state() == (0, "left")
    town.proxy.hook = lambda request: None
    town.visit()
    assert town.state() == (0, "arrived")
    assert len(town.proxy.taken) == 1


# --- a proxy that is not there, or says no --------------------------------------------------------


def test_while_the_proxy_is_down_nothing_is_spent_and_the_round_is_dropped_when_it_goes_on(town):
    town.visit()
    town.federation.next_round()
    town.proxy.hook = lambda request: Reply(raw=b"")
    for _ in range(3):
        with pytest.raises(Unreachable):
            town.visit()
        assert town.state() == (1, "prepared")
        assert town.spent() == K * 2.0, "of the round before alone"
    kept = town.hosted().latest().message
    town.proxy.hook = lambda request: None
    town.visit()
    assert town.state() == (1, "arrived")
    assert town.proxy.opened(1)[1][0].tolist() == decode_bits(kept).reports[0].tolist()

    town.federation.next_round()
    town.proxy.hook = lambda request: Reply(raw=b"")
    with pytest.raises(Unreachable):
        town.visit()
    town.federation.next_round()
    with pytest.raises(Unreachable):
        town.visit()
    assert town.state() == (3, "prepared")
    assert town.spent() == 2 * K * 2.0
    rounds = town.store().ledger().to_pydict()["round"]
    assert rounds == [0, 1]


def test_a_report_that_left_unanswered_and_was_overtaken_is_recorded_and_not_sent_again(town):
    town.visit()
    town.federation.next_round()
    town.proxy.hook = lambda request: Reply(raw=b"") if request.path == "/v1/submissions" else None
    with pytest.raises(Unreachable):
        town.visit()
    assert town.state() == (1, "left")
    assert town.spent() == 2 * K * 2.0, "it may have arrived"
    town.federation.next_round()
    town.federation.report_key = new_report_key()
    town.proxy.hook = lambda request: None
    before = len(town.sent())
    town.visit()
    assert len(town.sent()) == before + 1
    assert decode_submission(town.mixer.requests[-1].body, K, 2).round == 2
    refused = [details for event, details in town.events if event == "refused"]
    assert [(r["round"], "went on" in r["why"]) for r in refused] == [(1, True)]


def test_while_a_round_is_closing_what_left_waits(town):
    town.proxy.hook = lambda request: Reply(raw=b"") if request.path == "/v1/submissions" else None
    with pytest.raises(Unreachable):
        town.visit()
    town.federation.state = "waiting"
    before = len(town.mixer.requests)
    town.visit()
    assert len(town.mixer.requests) == before
    assert town.state() == (0, "left")


@pytest.mark.parametrize("reason", ["replay", "second_submission"])
def test_what_is_there_already_has_arrived(town, reason):
    town.proxy.hook = lambda request: (
        refusal(409, reason) if request.path == "/v1/submissions" else None
    )
    town.visit(times=2)
    assert town.state() == (0, "arrived")
    assert town.sent().count("/v1/submissions") == 1


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (409, "late"),
        (409, "wrong_key"),
        (409, "other_terms"),
        (400, "malformed"),
        (413, "oversized"),
    ],
)
def test_a_refusal_is_final_for_the_round_and_stays_in_the_ledger(town, status, reason):
    town.proxy.hook = lambda request: (
        refusal(status, reason) if request.path == "/v1/submissions" else None
    )
    town.visit(times=3)
    assert town.state() == (0, "refused")
    assert town.sent() == ["/v1/enrol", "/v1/submissions"], "never a second report"
    assert town.spent() == K * 2.0
    assert town.store().ledger().num_rows == 1


@pytest.mark.parametrize(
    "reply", [refusal(409, "early"), Reply(503, b"{}"), Reply(429, b"{}", {"Retry-After": "7"})]
)
def test_who_is_told_to_come_back_comes_back_with_the_same_reports(town, reply):
    town.proxy.hook = lambda request: reply if request.path == "/v1/submissions" else None
    for _ in range(2):
        with pytest.raises(Busy):
            town.visit()
    assert town.state() == (0, "left")
    town.proxy.hook = lambda request: None
    town.visit()
    assert town.state() == (0, "arrived")
    assert town.spent() == K * 2.0


def test_one_process_sends_the_very_same_bytes_again(town):
    """A proxy that has them knows them; another sealing would look like a second report."""
    town.proxy.hook = lambda request: (
        refusal(409, "early") if request.path == "/v1/submissions" else None
    )

    async def twice():
        agent = town.agent()
        try:
            for _ in range(2):
                with pytest.raises(Busy):
                    await agent.visit()
        finally:
            await agent.close()

    asyncio.run(twice())
    first, second = [r.body for r in town.mixer.requests if r.path == "/v1/submissions"]
    assert first == second


def test_a_proxy_that_forgot_the_device_is_asked_for_a_new_account(town):
    town.visit()
    town.federation.next_round()
    town.proxy.accounts.clear()
    with pytest.raises(Busy):
        town.visit()
    town.visit()
    assert town.state() == (1, "arrived")
    assert town.sent().count("/v1/enrol") == 2


def test_another_proxy_than_the_terms_name_gets_nothing(town, tmp_path):
    other = tmp_path / "other"
    keys.init_keys(other)
    link = Proxied(town.mixer.url, keys.authority_pem(other))
    terms = Terms("town-1", WORLD.n_items, FMFConfig(embedding_size=3), KReports(K, TIERS), link)
    town.federation.terms, town.foreseen = terms, terms.digest()
    with pytest.raises(KeyTrouble, match="authority"):
        town.visit()
    assert town.mixer.requests == []
    assert town.spent() == 0.0


def test_a_proxy_that_does_not_believe_the_server_is_one_sentence(town):
    town.proxy.hook = lambda request: (
        refusal(403, "bad_admission") if request.path == "/v1/enrol" else None
    )
    with pytest.raises(KeyTrouble, match="tell the operator"):
        town.visit()
    assert town.spent() == 0.0


@pytest.mark.parametrize("body", [b"{}", b'{"account": "00", "key": "00"}', b'{"account": 7}'])
def test_an_account_that_makes_no_sense_is_not_used(town, body):
    town.proxy.hook = lambda request: Reply(200, body) if request.path == "/v1/enrol" else None
    with pytest.raises(Unreachable, match="no account"):
        town.visit()
    assert town.spent() == 0.0


@pytest.mark.parametrize("word", [None, "", "zz", "00" * 63, 7])
def test_a_server_that_gives_no_admission_is_one_sentence(town, word):
    def enrol(request):
        if request.path != "/v1/enrol":
            return None
        told = {"number": 0} | ({} if word is None else {"admission": word})
        return Reply(200, json.dumps(told).encode())

    town.federation.hook = enrol
    with pytest.raises(MessageError, match="no word for the shuffler"):
        town.visit()
    assert town.mixer.requests == []


@pytest.mark.parametrize(
    "key", [7, {}, {"id": "00"}, {"id": "00" * 8, "public": "11" * 32}, {"id": 1, "public": 2}]
)
def test_a_report_key_that_makes_no_sense_is_not_used(town, key):
    def look(request):
        if request.path != "/v1/round":
            return None
        return Reply(200, json.dumps(town.federation.descriptor() | {"report_key": key}).encode())

    town.federation.hook = look
    with pytest.raises(MessageError, match="report key"):
        town.visit()
    assert town.mixer.requests == []


def test_what_the_proxy_sees_differs_in_nothing_but_account_round_and_tier(town):
    town.visit(0, 2, 4)
    submissions = [decode_submission(b, K, 2) for b in town.proxy.taken.values()]
    assert len({s.account for s in submissions}) == 3
    assert {(s.round, s.tier, len(s.reports)) for s in submissions} == {(0, 1, K * 52)}
    whole = np.concatenate([np.frombuffer(s.reports, np.uint8) for s in submissions])
    assert len(np.unique(whole.reshape(-1, 52), axis=0)) == 3 * K
    for request in town.mixer.requests:
        assert set(request.headers) <= {"host", "content-length"}


# --- a server that shows this device something else -----------------------------------------------


def test_where_the_proxy_was_told_other_terms_nothing_leaves_and_nothing_is_spent(town):
    """The batch would be smaller than this device was promised, or its reports stand out in it."""
    release = KReports(K, (Tier(0.5, 2), Tier(2.0, 3)))
    terms = town.terms
    theirs = Terms(terms.federation, terms.n_items, terms.algorithm, release, terms.link)

    def tell(request):
        if request.path == "/v1/terms":
            return Reply(200, json.dumps(theirs.to_table()).encode())
        return None

    town.proxy.hook = tell
    for _ in range(2):
        with pytest.raises(MessageError, match="other terms"):
            town.visit()
    assert town.sent() == [], "not even an account is asked for"
    assert town.spent() == 0.0
    town.proxy.hook = lambda request: None
    town.visit()
    assert town.state() == (0, "arrived")


def test_the_model_of_another_round_is_not_learnt_from(town):
    def look(request):
        if request.path != "/v1/round":
            return None
        return Reply(200, json.dumps(town.federation.descriptor() | {"model": 1}).encode())

    town.federation.hook = look
    with pytest.raises(MessageError, match="another round"):
        town.visit()
    assert town.mixer.requests == []
    assert town.hosted().latest() is None
