"""Helper, aggregators and shufflers under terms that are changed: they keep those that their own
operators have agreed to, the former ones until the first sum under the others, and no change lets
them tell anything twice."""

import asyncio
import contextlib
import math
import time
from dataclasses import replace

import pytest
from checked_world import TOKENS, CheckedWorld
from proxy_world import App, Device, proxied, proxy_terms
from secure_sum_world import (
    LEAST,
    TOKEN,
    MaskerApp,
    SeedKeeper,
    SummedWorld,
    masker_folder,
    question,
    summed_terms,
)
from talk import until

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.services.server.asking import not_followed
from sottovoce.services.shuffler_handover import Forwarder
from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.aggregator_folder import AggregatorIntroduction
from sottovoce.stores.helper_folder import HelperIntroduction, open_helper
from sottovoce.stores.shuffler_folder import ShufflerFolder
from sottovoce.stores.sum_folder import NEXT
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms


@pytest.fixture
def folder(tmp_path):
    return masker_folder(tmp_path / "masker")


def changed(terms, more=5):
    algorithm = FPLConfig(embedding_size=4, triples=12)
    return replace(terms, n_items=terms.n_items + more, algorithm=algorithm)


def kept(app):
    return app.sums(b"", path="/v1/terms").json()["terms"]


def test_a_running_helper_keeps_what_its_operator_has_agreed_to(folder):
    terms = folder.introduction.terms
    after, everyone = changed(terms), [SeedKeeper() for _ in range(LEAST)]
    with MaskerApp(folder) as app:
        assert kept(app) == [terms_name(terms).hex()]
        refused = app.sums(question(after, 3, everyone))
        assert (refused.status, refused.json()["error"]) == (409, "other_terms")
        folder.agree(HelperIntroduction(after, TOKEN))
        assert kept(app) == [terms_name(terms).hex(), terms_name(after).hex()]
        assert app.sums(question(terms, 3, everyone)).status == 200, "rounds before go on"
        assert open_helper(folder.path).introduction.terms == terms
        # A round of which a sum was told is over, whatever the terms are.
        again = app.sums(question(after, 3, everyone))
        assert (again.status, again.json()["error"]) == (409, "second_submission")
        assert app.sums(question(after, 4, everyone)).status == 200
        assert open_helper(folder.path).introduction.terms == after
        assert not (folder.path / NEXT).exists()
        assert kept(app) == [terms_name(after).hex()]
        late = app.sums(question(terms, 5, everyone))
        assert (late.status, late.json()["error"]) == (409, "other_terms"), "it does not go back"
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.sums(question(after, 3, everyone)).status == 409, "nor does it forget"


def test_a_helper_that_is_killed_between_two_files_goes_on(folder, monkeypatch):
    after, everyone = changed(folder.introduction.terms), [SeedKeeper() for _ in range(LEAST)]
    folder.agree(HelperIntroduction(after, TOKEN))
    asked = question(after, 4, everyone)
    with monkeypatch.context() as patched, MaskerApp(folder) as app:
        patched.setattr(type(folder), "begin", lambda *given: None)
        first = app.sums(asked)
    assert first.status == 200
    assert open_helper(folder.path).introduction.terms != after
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.sums(asked).body == first.body, "the same, noise included"
    assert open_helper(folder.path).introduction.terms == after


def test_what_was_agreed_to_first_is_kept_until_it_is_over(folder):
    """Terms are in force at the server before the first sum under them is told: an operator who
    agrees to the next ones meanwhile does not take back what the open round needs."""
    terms, everyone = folder.introduction.terms, [SeedKeeper() for _ in range(LEAST)]
    second, third = changed(terms), changed(terms, more=9)
    with MaskerApp(folder) as app:
        folder.agree(HelperIntroduction(second, TOKEN))
        folder.agree(HelperIntroduction(third, TOKEN))
        assert kept(app) == [terms_name(one).hex() for one in (terms, second, third)]
        assert app.sums(question(second, 4, everyone)).status == 200
        assert kept(app) == [terms_name(one).hex() for one in (second, third)]
    with MaskerApp(open_helper(folder.path)) as app:
        assert kept(app) == [terms_name(one).hex() for one in (second, third)]
        assert app.sums(question(third, 5, everyone)).status == 200
        assert kept(app) == [terms_name(third).hex()]
        assert app.sums(question(second, 6, everyone)).json()["error"] == "other_terms"
    assert not (folder.path / NEXT).exists()


def test_terms_that_were_passed_over_are_not_gone_back_to(folder):
    terms, everyone = folder.introduction.terms, [SeedKeeper() for _ in range(LEAST)]
    second, third = changed(terms), changed(terms, more=9)
    with MaskerApp(folder) as app:
        folder.agree(HelperIntroduction(second, TOKEN))
        folder.agree(HelperIntroduction(third, TOKEN))
        assert app.sums(question(third, 4, everyone)).status == 200
        assert kept(app) == [terms_name(third).hex()]
        assert app.sums(question(second, 5, everyone)).json()["error"] == "other_terms"


def test_only_the_server_is_told_which_terms_are_kept(folder):
    with MaskerApp(folder) as app:
        assert app.sums(b"", token="ee" * 32, path="/v1/terms").status == 401


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (lambda i: replace(i, terms=replace(i.terms, federation="x")), UsageError, "federation x"),
        (lambda i: replace(i, token="ee" * 32), UsageError, "not from the server"),
        (
            lambda i: replace(i, terms=replace(i.terms, link=summed_terms("ab" * 32).link)),
            KeyTrouble,
            "another key",
        ),
        (lambda i: i, UsageError, "keeps these terms already"),
    ],
)
def test_introductions_of_others_are_refused_in_a_sentence(folder, change, error, why):
    with pytest.raises(error, match=why):
        folder.agree(change(folder.introduction))
    assert not (folder.path / NEXT).exists()


def test_an_operator_may_take_her_word_back(folder):
    after = changed(folder.introduction.terms)
    folder.agree(HelperIntroduction(after, TOKEN))
    with MaskerApp(folder) as app:
        assert len(kept(app)) == 2
        folder.agree(folder.introduction)
        assert len(kept(app)) == 1


def test_a_server_waits_for_the_helper_and_spends_nothing_on_sums_that_would_be_refused(tmp_path):
    here = SummedWorld(tmp_path)
    with contextlib.closing(here):
        here.step()
        after = changed(here.terms, more=0)
        with here.database.writing() as link:
            amending.propose(link, here.terms, after, b"{}", None, who="anna", at="now")
        here.report(*range(8))
        here.time += 10
        assert here.step() == ["closing"]
        assert here.step() == ["goal", "opened"], "a round under the former terms"
        with here.database.reading() as link:
            waits = amending.proposed(link)
        assert (waits.party, waits.state) == ("helper", "asked")
        assert "serve introduce" in waits.do
        here.down = True
        here.time += 10
        here.step()
        with here.database.reading() as link:
            assert "cannot be asked" in amending.proposed(link).waits
        here.down = False
        here.folder.agree(HelperIntroduction(after, TOKEN))
        here.time += 10
        here.step()
        here.report(*range(8))
        assert here.step() == ["closing"]
        assert here.step() == ["goal"]
        assert here.step() == ["amended"]
        assert here.position().terms == after.digest()


def test_both_aggregators_are_asked_and_open_the_first_sum_under_new_terms(tmp_path):
    here = CheckedWorld(tmp_path, rounds=4)
    with contextlib.closing(here):
        after = replace(here.terms, release=replace(here.terms.release, epsilon=4.0))
        with here.database.writing() as link:
            amending.propose(link, here.terms, after, b"{}", None, who="anna", at="now")
        here.folders[1].agree(AggregatorIntroduction(after, TOKENS[1], 1))
        here.step()
        with here.database.reading() as link:
            assert amending.proposed(link).party == "aggregator 2"
        with pytest.raises(UsageError, match="not from the server"):
            here.folders[2].agree(AggregatorIntroduction(after, TOKENS[2], 1))
        here.folders[2].agree(AggregatorIntroduction(after, TOKENS[2], 2))
        here.honest(*range(6))
        assert here.finish() == ["deadline", "published"], "the round goes on to its end"
        assert here.step() == ["amended"]
        now = here.position()
        assert (now.round, now.terms) == (2, after.digest()), "a period begins"
        here.terms, here.plan = after, replace(here.plan, terms=after)
        here.restart()
        with here.database.writing() as link:
            records.seen(link, range(8))
        assert here.step() == ["opened"]
        expected = here.model_after(here.honest(*range(6)))
        assert here.finish()[0] == "deadline"
        assert (here.view().items == expected).all(), "with the noise of the new terms"
        assert all(not (one.path / NEXT).exists() for one in here.folders.values())


def test_a_shuffler_follows_what_its_operator_has_agreed_to(tmp_path):
    with proxied(tmp_path) as (server, folder), App(folder) as app:
        devices = [Device(server).enrol(app.ask) for _ in range(4)]
        before = server.terms
        until(lambda: app.store.position.open)
        for device in devices[:3]:
            assert app.submit(device.submission(0)).status == 204
        until(lambda: server.batch(0, 0))
        after = replace(proxy_terms(reports=6, minimum=(2, 2)), n_items=45)
        names = [terms_name(before).hex()]
        assert app.ask("GET", "/v1/agreed").json()["terms"] == names
        server.terms = after
        server.move(1)
        until(lambda: any("changed the terms" in str(facts) for _, facts in app.log.lines))
        assert app.submit(devices[0].submission(1, terms=before, fresh=True)).status != 204
        with pytest.raises(UsageError, match="terms of the federation other"):
            folder.agree(replace(after, federation="other"))
        folder.agree(after)
        assert app.ask("GET", "/v1/agreed").json()["terms"][-1] == terms_name(after).hex()
        until(lambda: Terms.from_table(app.ask("GET", "/v1/terms").json()) == after)
        for device in devices[:2]:
            assert app.submit(device.submission(1)).status == 204
        until(lambda: server.batch(1, 0))
        assert len(server.batch(1, 0)) == 12
        assert folder.terms() == after
        assert folder.agreed() == []
        with pytest.raises(UsageError, match="follows these terms already"):
            folder.agree(after)


def test_a_shuffler_follows_in_turn_what_was_agreed_to(tmp_path):
    """One that was down when the server changed the terms, and whose operator has agreed to the
    next ones meanwhile, goes by the former first: else their round could never end."""
    with proxied(tmp_path) as (server, folder):
        with App(folder) as app:
            until(lambda: app.store.position.round == 0)
        second, third = (
            replace(proxy_terms(reports=6, minimum=(2, 2)), n_items=many) for many in (45, 50)
        )
        folder.agree(second)
        folder.agree(third)
        server.terms = second
        server.move(1)
        with App(folder) as app:
            until(lambda: folder.terms() == second)
            until(lambda: folder.agreed() == [third])  # the file beside it is written next
            server.terms = third
            server.move(2)
            until(lambda: folder.terms() == third)
            until(lambda: folder.agreed() == [])
            assert app.ask("GET", "/v1/agreed").json()["terms"] == [terms_name(third).hex()]


@pytest.fixture
def crowd(tmp_path):
    """A shuffler that waits for fifty devices, holds reports of four, and whose operator has agreed
    to hand over those of two, later on."""
    large, small = proxy_terms(minimum=(50, 50)), proxy_terms(minimum=(2, 2))
    with proxied(tmp_path, terms=large) as (server, folder):
        with App(folder) as app:
            devices = [Device(server).enrol(app.ask) for _ in range(4)]
            until(lambda: app.store.position.open)
            for device in devices:
                assert app.submit(device.submission(0)).status == 204
            folder.agree(small)
            server.terms = small
            until(lambda: any("within round 0" in str(facts) for _, facts in app.log.lines))
        yield server, folder, devices, large, small


def held(app):
    return [(one.round, one.devices, one.state) for one in app.store.held()]


def test_reports_never_leave_by_terms_that_are_shown_while_their_round_is_open(crowd):
    server, folder, devices, large, small = crowd
    with App(folder) as app:  # and not after a restart
        until(lambda: any("within round 0" in str(facts) for _, facts in app.log.lines))
        time.sleep(0.5)
        assert not server.seen
        assert held(app) == [(0, 4, "open")]
        assert folder.terms() == large
        server.state = "waiting"
        time.sleep(0.5)
        assert (folder.terms(), held(app)) == (large, [(0, 4, "open")]), "closed is not later"
        server.move(1)
        until(lambda: folder.terms() == small)
        until(lambda: app.store.position.open)
        assert held(app) == []
        for device in devices[:2]:
            assert app.submit(device.submission(1)).status == 204
        until(lambda: server.batch(1, 0))
        assert not server.batch(0, 0)


def test_reports_under_former_terms_are_not_taken_for_a_round_under_others(crowd):
    server, folder, devices, large, small = crowd
    with App(folder, forwarder=False) as app:
        app.forwarder._next_look = math.inf  # only a submission makes it look
        app.forwarder.start(lambda: None)
        server.move(1)
        got = app.submit(devices[0].submission(1, terms=large))
        assert (got.status, got.json()["error"]) == (409, "other_terms")
        assert folder.terms() == small
        assert held(app) == []
        app.forwarder.stop()


@pytest.mark.parametrize("cut", ["_follow", "keep_terms"])
def test_a_shuffler_killed_while_terms_change_holds_nothing_of_the_former_ones(crowd, cut):
    server, folder, devices, large, small = crowd
    sealed_too = folder.store()
    sealed_too.seal(sealed_too.held()[0])
    sealed_too.close()
    server.move(1)
    with App(folder, forwarder=False) as app, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forwarder if cut == "_follow" else ShufflerFolder, cut, _killed)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(_look_once(app.forwarder))
    store = folder.store()
    assert store.held() == []
    assert not store.position.open
    store.close()
    assert folder.terms() == large
    with App(folder) as app:
        until(lambda: app.store.position.open)
        assert folder.terms() == small
        for device in devices[:2]:
            assert app.submit(device.submission(1)).status == 204
        until(lambda: server.batch(1, 0))


def _killed(*_):
    raise ZeroDivisionError


async def _look_once(forwarder):
    try:
        await forwarder._ask()
    finally:
        await forwarder._asking.rest()


def test_a_server_waits_for_a_shuffler_that_does_not_answer():
    terms = proxy_terms()
    link = replace(terms.link, url="http://127.0.0.1:9", authority="")
    waits = not_followed(replace(terms, link=link))
    assert waits.party == "shuffler"
    assert "cannot be asked" in waits.why
