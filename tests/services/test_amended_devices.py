"""Devices whose server changes its terms: asked again whatever they were asked before, silent until
their owners agree, and never without recommendations."""

import asyncio
import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
from fake_federation import CATALOGUE, TERMS, Federation
from fake_server import Reply
from test_agent import start  # noqa: F401

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.errors import ConsentError, MessageError, Unreachable
from sottovoce.stores.server import catalogue_name
from sottovoce.wire.signing import open_envelope

OTHERS = replace(TERMS, algorithm=FPLConfig(embedding_size=4, triples=6))
MORE = replace(TERMS, n_items=TERMS.n_items + 2)
NEW = [("new-1", "New 1"), ("new-2", "New 2")]


@pytest.fixture
def one(start):  # noqa: F811
    devices = start(Federation(rounds=9, devices=2))
    devices.federation.state = "open"
    devices.visit(0)
    return devices


def amend(federation, terms, items=CATALOGUE, round=None, named=True):
    """The server goes by other terms, with a model that fits them."""
    server = federation.server
    fresh = Federation(terms=terms).server
    fresh.items[: len(server.items)] = server.items
    fresh.round = server.round + 3 if round is None else round
    federation.terms, federation.server = terms, fresh
    federation.changed = np.full(terms.n_items, fresh.round)
    content = json.dumps({"items": items}).encode()
    told = {"catalogue": catalogue_name(content)} if named else {}
    federation.hook = lambda r: (
        Reply(200, content)
        if r.path == "/v1/catalogue"
        else Reply(200, json.dumps({**federation.descriptor(), **told}).encode())
        if r.path == "/v1/round"
        else None
    )


def refused(devices, number=0):
    before = len(devices.posts())
    with pytest.raises(ConsentError, match="changed the terms"):
        devices.visit(number)
    assert len(devices.posts()) == before, "not even that it is there"


def test_who_has_not_agreed_sends_nothing_and_has_what_is_published_as_far_as_it_fits(one):
    rows = one.store().ledger().num_rows
    amend(one.federation, OTHERS)
    refused(one)
    assert one.hosted().model().round == 0, "a model of a day ago is not old"
    one.federation.state = "finished"
    refused(one)
    assert one.hosted().model().round == one.federation.round, "the last one, which fits"
    assert one.hosted().terms == TERMS
    amend(one.federation, MORE, [*CATALOGUE, *NEW])
    refused(one)
    assert one.hosted().model().items.shape[0] == TERMS.n_items
    assert one.store().catalogue() == CATALOGUE
    assert len(one.hosted().recommend(0, 3)) == 3
    assert one.store().ledger().num_rows == rows


def test_who_agrees_goes_on_with_history_vector_and_ledger(one):
    vectors, spent = one.hosted().vectors(), one.store().budget()[0].releases
    one.store().add_history(0, ["new-1"])
    assert one.store().unknown() == ["new-1"]
    amend(one.federation, MORE, [*CATALOGUE, *NEW])
    refused(one)
    one.hosted().agree(one.hosted().pending)
    assert len(one.hosted().recommend(0, 3)) == 3, "by what she has, until the rest is here"
    assert (one.hosted().vectors() == vectors).all(), "more items make no other vector"
    one.visit()
    assert one.store().unknown() == []
    assert one.hosted().model().items.shape[0] == MORE.n_items
    assert one.store().budget()[0].releases == spent + 1
    assert one.store().ledger_rows()["terms"].to_pylist() == [0, 1]
    recommended = {item for item, _, _ in one.hosted().recommend(0, 30)}
    assert "new-2" in recommended
    assert "new-1" not in recommended, "she has it"


def test_terms_of_before_are_asked_for_again(one):
    """Whoever agreed to A, then to B, has not agreed to A for ever."""
    one.foreseen = TERMS.digest()
    amend(one.federation, OTHERS)
    refused(one)
    one.hosted().agree(OTHERS)
    one.visit()
    amend(one.federation, TERMS)
    refused(one)
    assert one.hosted().pending == TERMS, "also where the agent was started with --agree for them"
    one.hosted().agree(TERMS)
    one.visit()
    assert one.store().ledger_rows()["terms"].to_pylist() == [0, 1, 2]
    roots = {one.store().noise(era) for era in range(3)}
    assert len(roots) == 3, "coins and draws of each are others"


def test_a_server_that_only_looks_away_for_a_moment_asks_nobody_again(one):
    """A, B, A again while nobody has agreed to B: she goes on under A."""
    amend(one.federation, OTHERS)
    refused(one)
    amend(one.federation, TERMS)
    one.visit()
    assert one.hosted().pending is None
    assert one.hosted().terms == TERMS


def test_a_device_asks_as_often_as_usual_so_that_it_goes_on_when_she_has_agreed(one):
    amend(one.federation, OTHERS)
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 8:
            raise asyncio.CancelledError

    async def serve(agent):
        with contextlib.suppress(asyncio.CancelledError):
            await agent.run()
        await agent.close()

    asyncio.run(serve(one.agent(sleep=sleep)))
    assert max(waits) <= 1.25 * one.federation.poll_seconds
    assert [event for event, _ in one.events].count("failed") == 1, "and says so once"


def test_who_foresees_changed_terms_goes_on_without_being_asked(one):
    one.foreseen = OTHERS.digest()
    amend(one.federation, OTHERS)
    one.visit()
    assert (one.hosted().terms, one.hosted().pending) == (OTHERS, None)


def test_a_server_that_shows_others_to_one_device_gets_nothing_of_it(one):
    """What she agrees to is what her own device will go by; terms and round must be of one kind."""
    one.visit(1)
    other = json.dumps(OTHERS.to_table()).encode()
    one.federation.hook = lambda r: Reply(200, other) if r.path == "/v1/terms" else None
    one.visit(0)  # it has agreed to those of the round, and asks for none
    told = {"terms": OTHERS.digest()}
    posts = len(one.posts())
    one.federation.hook = lambda r: (
        Reply(200, json.dumps({**one.federation.descriptor(), **told}).encode())
        if r.path == "/v1/round"
        else None
    )
    with pytest.raises(Unreachable, match="about to change its terms"):
        one.visit(0)
    assert one.hosted(0).pending is None, "nothing is asked of her that is not published"
    one.federation.hook = lambda r: (
        Reply(200, json.dumps({**one.federation.descriptor(), **told}).encode())
        if r.path == "/v1/round"
        else Reply(200, other)
        if r.path == "/v1/terms"
        else None
    )
    with pytest.raises(ConsentError, match="changed the terms"):
        one.visit(0)
    assert len(one.posts()) == posts
    one.federation.hook = lambda r: None
    one.visit(1)


@pytest.mark.parametrize(
    "items",
    [
        [CATALOGUE[1], CATALOGUE[0], *CATALOGUE[2:], *NEW],
        [NEW[0], *CATALOGUE, NEW[1]],
    ],
)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("noted", [True, False])
def test_more_items_come_behind_those_that_are_known(one, items, named, noted):
    """Else a history would be another's: what she never sends could leave as something else. It
    does not matter whether a server names its catalogue, nor whether the release did that has noted
    what the device knows."""
    amend(one.federation, TERMS, named=named)
    one.visit()
    if not noted:
        with one.store().file.transaction():
            one.store().file.write("DELETE FROM meta WHERE name LIKE 'secret:catalogue%'")
    amend(one.federation, MORE, items, named=named)
    refused(one)
    one.hosted().agree(one.hosted().pending)
    posts = len(one.posts())
    with pytest.raises(MessageError, match="in the place of"):
        one.visit()
    # Nothing but that it refuses, where the server names what is refused.
    said = [(post.path, open_envelope(post.body).body) for post in one.posts()[posts:]]
    assert said == [("/v1/checkin", b"catalogue")] * named
    assert one.store().catalogue() == CATALOGUE


def test_an_old_catalogue_from_a_cache_is_not_taken_for_the_new_one(one):
    amend(one.federation, TERMS, [["item-0", ""], *CATALOGUE[1:]])
    honest = one.federation.hook
    stale = json.dumps({"items": CATALOGUE}).encode()
    one.federation.hook = lambda r: Reply(200, stale) if "catalogue" in r.path else honest(r)
    with pytest.raises(Unreachable, match="about to change its catalogue"):
        one.visit()
    one.federation.hook = honest
    one.visit()
    assert one.store().catalogue()[0] == ("item-0", "")
