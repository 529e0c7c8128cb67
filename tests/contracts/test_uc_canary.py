"""The value of an attribute that a user hides is in no byte that leaves her device: devices that
differ in it alone send the same bytes, and its name is nowhere."""

import asyncio
import json
import secrets
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.consent import Choice
from sottovoce.core.messages import ModelView
from sottovoce.errors import ServiceError, SottovoceError
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.reports import decode_report
from sottovoce.wire.terms import Terms

pytest.importorskip("torch")

from fake_federation import Federation, make_store, refusal
from fake_server import FakeServer, Reply

from sottovoce.algorithms.uc.system import UC
from sottovoce.services.agent.agent import Agent
from sottovoce.stores import keys
from sottovoce.wire.signing import open_envelope

CANARY = "canary-value-7f3a"
DIARY = "canary-diary-51c0"
N_ITEMS = 20
ITEMS = [(f"item-{i}", f"Title {i}") for i in range(N_ITEMS)]
ME = 0
SECRET = FilterConfig("secret", (CANARY, "plain", "other"), (0.3, 0.3, 0.4))
GENDER = FilterConfig("gender", ("female", "male"), (0.5, 0.5))
SETTINGS = UCConfig(
    embedding_size=6, local_epochs=3, pairs=8, item_rate=2.0, attributes=(SECRET, GENDER)
)
SHARING = Choice(share_positives=1.0)
HIDING = replace(SHARING, hidden_attributes=("secret",), strength=0.8)
RELEASES = {
    "l2": Clipped(),
    "scalar": Clipped(clip=0.5, norm="scalar", epsilon=1000.0),
    "l1": Clipped(clip=4.0, norm="l1", epsilon=1.0),
}
KINDS = [("mf", "moments"), ("mf", "two-layer"), ("ncf", "moments"), ("neumf", "two-layer")]
ROUNDS = 3
UNKNOWN = (None, "canary-of-no-class")
"""Not known to the device, and known but none of the filter's classes."""


def terms_of(kind, norm):
    recommender, filters = kind
    settings = replace(SETTINGS, recommender=recommender, filters=filters)
    return Terms("town-1", N_ITEMS, settings, RELEASES[norm])


# --- what is prepared -----------------------------------------------------------------------------


def views(terms):
    """Models as a server might publish them, one for each round."""
    built = terms.build()
    return [ModelView(r, built.server_init(N_ITEMS, Streams(r))) for r in range(ROUNDS)]


def prepared(path, terms, value, choice):
    """Every message of a device that has `value`, in a few rounds, and its ledger."""
    with CohortStore.create(path, [(ME, "me")], root_key=7) as store:
        store.set_catalogue(ITEMS)
        store.add_history(ME, [ITEMS[i][0] for i in (1, 4, 7, 9)])
        store.set_attribute(ME, "gender", "female")
        if value is not None:
            store.set_attribute(ME, "secret", value)
        store.set_choice(ME, choice)
        hosted, sent = DeviceSession(store), []
        hosted.agree(terms)
        for view in views(terms):
            ready = hosted.prepare(view, 0, summed=False)
            hosted.leaving(ready)
            hosted.arrived(view.round, 0)
            sent.append(ready.message)
        return sent, store.ledger_rows().drop_columns("time").to_pydict()


@pytest.mark.parametrize("norm", RELEASES)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_the_value_of_a_hidden_attribute_changes_no_byte(tmp_path, kind, norm):
    terms = terms_of(kind, norm)
    hidden = [
        prepared(tmp_path / f"hidden-{n}", terms, value, HIDING)
        for n, value in enumerate((CANARY, "other", *UNKNOWN))
    ]
    assert len(hidden[0][0]) == ROUNDS
    assert all(other == hidden[0] for other in hidden[1:])
    # The same look at what is shared sees it in every round, so that it could have seen it above.
    shared = [
        prepared(tmp_path / f"shared-{n}", terms, value, SHARING)[0]
        for n, value in enumerate((CANARY, "other"))
    ]
    assert all(one != two for one, two in zip(*shared, strict=True))
    assert all(one != two for one, two in zip(hidden[0][0], shared[0], strict=True))


@pytest.mark.parametrize("norm", RELEASES)
def test_nor_does_it_change_what_a_gateway_sends_for_her(tmp_path, norm):
    terms, sent = terms_of(KINDS[0], norm), {}
    for choice in (HIDING, SHARING):
        for value in (CANARY, "other"):
            path = tmp_path / f"{len(sent)}"
            with CohortStore.create(path, [(n, str(n)) for n in range(2)], root_key=7) as store:
                store.set_catalogue(ITEMS)
                for number in range(2):
                    store.add_history(number, [ITEMS[i][0] for i in (1, 4 + number, 9)])
                    store.set_choice(number, SHARING if number else choice)
                    store.set_attribute(number, "secret", "plain" if number else value)
                hosted = DeviceSession(store)
                hosted.agree(terms)
                sent[choice, value] = hosted.prepare(views(terms)[0], 0, summed=True).message
    assert sent[HIDING, CANARY] == sent[HIDING, "other"]
    assert sent[SHARING, CANARY] != sent[SHARING, "other"]


# --- what an agent sends --------------------------------------------------------------------------


class Filtered(Federation):
    """A made-up server whose model has networks."""

    def __init__(self, terms):
        super().__init__(ROUNDS, 1, terms)
        self.changed = np.zeros(terms.n_rows, dtype=np.int64)

    @property
    def shape(self):
        return {"n_items": self.terms.n_rows, "width": self.terms.width}


class Town:
    """One address at which one federation after another is served, with TLS."""

    def __init__(self, folder, path):
        keys.init_keys(folder)
        self.ca, self.path, self.federation = keys.authority_pem(folder), path, None
        context = keys.server_context(folder)
        self.server = FakeServer(lambda request: self.federation.answer(request), context)
        self.stores = 0

    def store(self, terms, value, choice, diary=DIARY):
        """A device that would sign with the same key and has the same coins each time."""
        self.federation = Filtered(terms)
        self.stores += 1
        path = self.path / f"device-{self.stores}"
        make_store(path, self.federation, self.server.url, self.ca, ME, choice)
        store = CohortStore.open(path, agent=True)
        store.set_secret("signing-key", bytes(range(32)))
        for name, known in (("gender", "female"), ("secret", value), ("diary", diary)):
            store.set_attribute(ME, name, known)
        DeviceSession(store).agree(terms)
        return store

    def visits(self, store, times):
        """What an agent sends in so many visits, what it logs, and what it raises."""
        del self.server.requests[:]
        logged = []

        async def visit():
            agent = Agent(store, log=lambda event, **told: logged.append((event, told)))
            try:
                for _ in range(times):
                    try:
                        await agent._guarded()
                    except SottovoceError as error:
                        logged.append(("raised", {"why": str(error)}))
            finally:
                await agent.close()

        asyncio.run(visit())
        return [(r.method, r.path, r.headers, r.body) for r in self.server.requests], logged


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    made = Town(tmp_path_factory.mktemp("keys"), tmp_path_factory.mktemp("stores"))
    with made.server:
        yield made


@pytest.fixture
def tame(monkeypatch):
    """What the operating system draws (nonces) repeats, when told to."""
    state = {"drawn": 0}

    def token_bytes(length=32):
        state["drawn"] += 1
        return state["drawn"].to_bytes(length, "little")

    def start():
        state["drawn"] = 0
        monkeypatch.setattr(secrets, "token_bytes", token_bytes)

    return start


def everything_in(thing):
    """All bytes of requests, logs or tables."""
    return json.dumps(
        thing, default=lambda each: each.hex() if isinstance(each, bytes) else str(each)
    ).encode() + b"".join(part for request in thing for part in request if isinstance(part, bytes))


def looks_clean(*things):
    return not [c for c in (CANARY, DIARY) for t in things if c.encode() in everything_in(t)]


@pytest.mark.parametrize(
    ("kind", "norm"), list(zip(KINDS, ("l2", "scalar", "l1", "l2"), strict=True))
)
def test_an_agent_sends_the_same_requests_whatever_is_hidden(town, tame, kind, norm):
    """Paths, headers and bodies, as they are inside TLS, with all signatures and nonces."""
    terms, sent = terms_of(kind, norm), {}
    for value, choice in (
        (CANARY, HIDING), ("other", HIDING), (None, HIDING), (CANARY, SHARING), ("other", SHARING),
    ):  # fmt: skip
        store = town.store(terms, value, choice, DIARY if value == CANARY else None)
        tame()
        with store:
            requests, logged = town.visits(store, ROUNDS + 1)
            exported = store.ledger_rows().to_pylist()
        assert town.federation.state == "finished"
        assert [event for event, _ in logged].count("counted") == ROUNDS
        assert looks_clean(requests, logged, exported)
        assert looks_clean([r.body for r in map(open_envelope, reports_in(requests))])
        sent[value, choice] = requests, logged
    assert len(reports_in(sent[CANARY, HIDING][0])) == ROUNDS
    assert sent[CANARY, HIDING] == sent["other", HIDING] == sent[None, HIDING]
    # What is shared is seen in every report, and in nothing else.
    shared = [sent[value, SHARING][0] for value in (CANARY, "other")]
    assert all(one != two for one, two in zip(*map(reports_in, shared), strict=True))
    assert [r[:2] for r in shared[0]] == [r[:2] for r in shared[1]]


def reports_in(requests):
    return [body for _, path, _, body in requests if path == "/v1/reports"]


def test_the_search_finds_a_canary_that_is_there():
    assert not looks_clean([("POST", "/", {"x": CANARY}, b"")])
    assert not looks_clean([("POST", "/", {}, f"..{DIARY}..".encode())])
    assert not looks_clean([("failed", {"why": f"no {CANARY}"})])


def test_no_error_and_no_log_names_what_is_hidden(town, monkeypatch):
    """Whatever goes wrong: a model of no numbers, a refusal, a fault of ours that has it in its
    words, an attribute that has no filter."""
    terms = terms_of(KINDS[0], "l2")
    with town.store(terms, CANARY, HIDING) as store:
        federation = town.federation
        federation.server.items = np.full_like(federation.server.items, np.nan)
        requests, logged = town.visits(store, 2)
        assert "not finite" in str(logged)
        assert not reports_in(requests)
        assert looks_clean(requests, logged)

    with town.store(terms, CANARY, HIDING) as store:
        federation = town.federation
        federation.hook = lambda request: (
            refusal(400, "malformed", "no such row") if request.path == "/v1/reports" else None
        )
        requests, logged = town.visits(store, 2)
        assert [told["reason"] for event, told in logged if event == "refused"] == ["malformed"]
        assert looks_clean(requests, logged, store.ledger_rows().to_pylist())
        federation.hook = lambda request: Reply(500, b"{}") if request.path == "/v1/round" else None
        assert looks_clean(*town.visits(store, 1))

    def clumsy(self, cohort, rows):
        raise ValueError(f"label {SECRET.classes[cohort.labels[rows][0, 0]]} is not mine")

    with town.store(terms, CANARY, HIDING) as store, monkeypatch.context() as faulty:
        faulty.setattr(UC, "clients", clumsy)
        requests, logged = town.visits(store, 2)
        assert any("ValueError in clumsy" in str(told) for _, told in logged)
        assert looks_clean(requests, logged)
        assert not reports_in(requests)

    hides_more = replace(HIDING, hidden_attributes=("secret", "income"))
    with town.store(terms, CANARY, hides_more) as store:
        requests, logged = town.visits(store, 2)
        assert "income" in str(logged)
        assert not reports_in(requests)
        assert looks_clean(requests, logged)


def test_an_agent_that_ends_with_an_error_says_no_value(town, monkeypatch):
    """What a terminal would show."""

    def clumsy(self, cohort, rows):
        raise LookupError(CANARY)

    monkeypatch.setattr(UC, "clients", clumsy)
    with town.store(terms_of(KINDS[0], "l2"), CANARY, HIDING) as store:

        async def once():
            agent = Agent(store)
            try:
                await agent.visit()  # which enrols
                await agent.run(once=True)
            finally:
                await agent.close()

        with pytest.raises(ServiceError) as caught:
            asyncio.run(once())
    assert CANARY not in str(caught.value)


def test_what_a_report_says_is_numbers_alone(town):
    """The inner message is row numbers and values; there is no other field that could carry more,
    and no byte behind them."""
    terms = terms_of(KINDS[0], "l2")
    with town.store(terms, CANARY, HIDING) as store:
        requests, _ = town.visits(store, 2)
    body = open_envelope(reports_in(requests)[0]).body
    shape = {"n_items": terms.n_rows, "width": terms.width, "round": 0}
    told = decode_report(body, sender=ME, **shape)
    assert told.item.max() < terms.n_rows
    with pytest.raises(SottovoceError):
        decode_report(body + b"\0", sender=ME, **shape)
