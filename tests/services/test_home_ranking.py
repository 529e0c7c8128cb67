"""Ranking at home: owners give a user her own vector and nobody else's; she does the rest."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from orchestrator_world import App as OrchestratorApp
from orchestrator_world import let_in
from owner_world import FEDERATION, App, World
from user_world import CATALOGUE
from user_world import world as user_world

from sottovoce.algorithms.drift.messages import Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.cli import call
from sottovoce.core.consent import Choice
from sottovoce.errors import MessageError, Unreachable
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores.orchestrator_folder import create_orchestrator_folder
from sottovoce.stores.user import UserStore
from sottovoce.wire.interactions import Identity
from sottovoce.wire.owners import OFFERS_PATH
from sottovoce.wire.users import (
    ROWS,
    VECTOR,
    ask,
    decode_item_rows,
    decode_vector,
    encode_count,
    encode_item_rows,
    encode_vector,
)

SUMS = DRIFTConfig(release="aggregated", min_users=2)


def asks(user, purpose="vector", given=None, identity=None, public=None, now=None):
    public = public or user.world.folder.application.public
    when = time.time() if now is None else now
    who = identity or user.identity
    return ask(purpose, b"", given or user.given, who, FEDERATION, public, when)


def learn(owner):
    """A round, without an orchestrator."""
    request = owner.request(0, -1, flush=True)
    table = np.sin(np.outer(request.items + 1, np.arange(1, 5))).astype(np.float32)
    none = np.zeros((0, 4), np.float32)
    owner.gradients(0, Rows(0, request.users, request.items, none, table))


def test_a_user_gets_her_own_vector_and_nobody_else_does(tmp_path):
    world = World(tmp_path, settings=SUMS)
    with App(world.folder) as app:
        eve, ann = world.user(7), world.user(8)
        eve.begin(app.ask, (41, False), (42, True))
        before = app.ask("POST", VECTOR, asks(eve))
        assert (before.status, decode_vector(before.body, 4)) == (200, None)
        learn(app.owner)
        body = asks(eve)
        got = app.ask("POST", VECTOR, body)
        assert decode_vector(got.body, 4).tobytes() == app.owner.vector(7).tobytes()
        assert len(got.body) == len(before.body), "its length tells nothing"
        assert decode_vector(app.ask("POST", VECTOR, asks(ann)).body, 4) is None
        twin = world.issuer.admit(7, ann.identity.public)
        for wrong, status, word in [
            (body, 409, "replay"),
            (asks(eve, identity=ann.identity), 401, "bad_mac"),
            (asks(eve, given=ann.given), 401, "bad_mac"),
            (asks(ann, given=twin), 403, "bad_pass"),
            (asks(eve, purpose="leave"), 401, "bad_mac"),
            (asks(eve, public=Identity().public), 401, "bad_mac"),
            (asks(eve, now=time.time() - 400), 410, "late"),
            (b"", 400, "malformed"),
        ]:
            refused = app.ask("POST", VECTOR, wrong)
            assert (refused.status, refused.json()["error"]) == (status, word)
        nobody, none = np.zeros(0, np.int64), np.zeros((0, 4), np.float32)
        with pytest.raises(MessageError):  # after which the owner reads its disk again
            app.owner.gradients(0, Rows(0, nobody, nobody, none, none))
        assert app.ask("POST", VECTOR, asks(ann, given=twin)).status == 403


def test_who_asks_too_often_is_told_to_wait_and_others_are_not(tmp_path):
    world = World(tmp_path, settings=SUMS)
    with App(world.folder, limits={"per_minute": 2}) as app:
        eve, ann = world.user(7), world.user(8)
        found = [app.ask("POST", VECTOR, asks(eve)).status for _ in range(3)]
        assert found == [200, 200, 429]
        assert app.ask("POST", VECTOR, asks(ann)).status == 200


def test_offers_do_not_wait_for_a_vector_while_sums_are_made(tmp_path):
    world = World(tmp_path, settings=SUMS)
    with App(world.folder) as app, ThreadPoolExecutor(2) as pool:
        with app.owner._turn:  # as while sums are made
            vector = pool.submit(app.ask, "POST", VECTOR, asks(world.user(7)))
            while not app.service._vectors._waiting:
                time.sleep(0.01)
            offer = pool.submit(app.ask, "POST", OFFERS_PATH, world.user(8).given.encode())
            assert offer.result(timeout=60).status == 200
            assert not vector.done()
        assert vector.result(timeout=60).status == 200


def test_owners_as_printed_have_no_such_address(tmp_path):
    world = World(tmp_path)
    with App(world.folder) as app:
        assert app.ask("POST", VECTOR, asks(world.user())).status == 404


def test_answers_arrive_as_they_were_sent_or_not_at_all():
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(decode_item_rows(encode_item_rows(rows), 2, 4), rows)
    assert np.array_equal(decode_vector(encode_vector(rows[1], 4), 4), rows[1])
    whole, endless = encode_item_rows(rows), encode_item_rows(rows + np.float32(np.inf))
    for wrong in (whole[:-1], b"", endless, whole[1:]):
        with pytest.raises(MessageError):
            decode_item_rows(wrong, 2, 4)
    for body, most, size in ((encode_item_rows(rows), 1, 4), (encode_item_rows(rows), 2, 2)):
        with pytest.raises(MessageError):
            decode_item_rows(body, most, size)
    for wrong in (b"", encode_vector(rows[0], 4)[:-1], b"\2" + bytes(16)):
        with pytest.raises(MessageError):
            decode_vector(wrong, 4)


def test_the_orchestrator_shows_rows_and_cannot_recommend(tmp_path):
    names = [f"film {n}" for n in range(6)]
    folder = create_orchestrator_folder(tmp_path / "town", names, SUMS)
    with OrchestratorApp(folder) as app:
        let_in(folder, app.store, tmp_path, "alpha", range(4))
        (user,) = app.users(1)
        shown = app.ask("GET", ROWS)
        rows = decode_item_rows(shown.body, 6, 4)
        assert np.array_equal(rows, app.store.rows_to_rank())
        assert app.ask("GET", ROWS, headers={"if-none-match": shown.headers["etag"]}).status == 304
        let_in(folder, app.store, tmp_path, "beta", range(6))
        assert len(decode_item_rows(app.ask("GET", ROWS).body, 6, 4)) == 6
        refused = app.ask("POST", "/v1/recommend", user.asks("recommend", encode_count(3)))
        assert refused.status == 400
        assert "data owners keep them" in refused.body.decode()


@pytest.fixture
def here(tmp_path):
    with user_world(tmp_path, secure=False, settings=SUMS) as found:
        found.rows = np.sin(np.arange(48, dtype=np.float32)).reshape(12, 4)
        yield found


@pytest.fixture
def phone(here, tmp_path):
    async def at_once(seconds):
        pass

    with (
        UserStore.join(tmp_path / "phone", here.invitation()) as store,
        UserAgent(store, sleep=at_once) as agent,
    ):
        agent.refresh_directory()
        agent.door.choose(0, Choice())
        for moment, item in enumerate((0, 9)):  # alpha's, beta's
            agent.door.interact(0, item, True, moment)
        agent.send_all()
        yield agent


def test_a_catalogue_that_has_grown_is_read_before_ranking(here, phone):
    before = {one.name for one in phone.recommend(0, 20)}
    assert len(before) == 8
    here.rows = np.sin(np.arange(52, dtype=np.float32)).reshape(13, 4)
    here.show(2, catalogue=(*CATALOGUE, "film 12"))
    assert {one.name for one in phone.recommend(0, 20)} == before, "nobody holds the new one yet"
    assert len(phone.store.world.directory.catalogue) == 13


def test_rows_beyond_the_catalogue_are_not_taken(here, phone):
    here.rows = np.zeros((13, 4), np.float32)
    with pytest.raises(Unreachable, match="more than it should"):
        phone.recommend(0, 3)


def test_an_owner_that_does_not_answer_is_left_out_and_named(here, phone):
    phone.recommend(0, 3)
    assert phone.left_out == ()
    here.owners["beta"].refuse_first = 1000
    assert len(phone.recommend(0, 3)) == 3
    assert phone.left_out == ("beta",)
    here.owners["alpha"].refuse_first = 1000
    with pytest.raises(Unreachable, match="alpha, beta"):
        phone.recommend(0, 3)


def test_the_command_says_whose_vector_is_left_out(here, phone, capsys):
    here.owners["beta"].refuse_first = 1000
    place = str(phone.store.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sottovoce.services.agent.loop.FIRST_WAIT", 0.0)
        assert call(["device", "recommend", place]) == 0
        told = capsys.readouterr()
    assert "beta did not answer; its vector is left out" in told.err
