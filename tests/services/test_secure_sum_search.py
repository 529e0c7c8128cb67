"""Devices that send garbage into secure sums: what they cost, and how they are found. The server
over a database and the proxy's application, which tells no sum over fewer than so many devices."""

import numpy as np
import pytest
from rounds_world import maker
from secure_sum_world import SummedWorld, folded
from server_world import ITEMS, acting

from sottovoce.cli import serve_status
from sottovoce.core.messages import MaskSum
from sottovoce.engines.client import Answer
from sottovoce.errors import ServiceError
from sottovoce.parties.helper import GROUPED_ROUNDS, REGAINED_AFTER, Answered
from sottovoce.services.kit.metrics import exposition
from sottovoce.services.server.figures import figures
from sottovoce.services.server.operator import status
from sottovoce.stores import search as searches
from sottovoce.wire.masked import decode_mask_sum, decode_question, encode_mask_sum
from sottovoce.wire.refusals import RefusalCounts

SOME, FEW = 12, 3
"""Devices of a small federation, and the fewest in a sum of theirs."""


def begun(path, users=SOME, least=FEW, **options):
    link = {"min_devices": least, **options.pop("link", {})}
    here = SummedWorld(path, users=users, link=link, rounds=200, **options)
    here.step()
    return here


world = maker(begun)


def report(here, liars):
    """Everybody who is not shut out; `liars` send garbage. Who has reported."""
    out, now = set(here.shut_numbers()), here.position()
    rng = np.random.default_rng([now.round, 7])
    there = [n for n in range(here.users) if n not in out]
    for n in set(there) & set(liars):
        garbage = rng.integers(-(2**63), 2**63, (ITEMS, 5))
        assert here.report(n, values=garbage) == ["accepted"]
    assert set(here.report(*(n for n in there if n not in liars))) == {"accepted"}
    assert here.step() == ["closing"]
    return there


def run_round(here, liars=()):
    """What became of a round, and whether the model has moved."""
    report(here, liars)
    before = here.model()
    return here.step()[0], not np.array_equal(before, here.model())


def groups_asked(here, questions):
    """The numbers of the devices in each group of a question, and which of them it asks for."""
    numbers = {k.key.public_key().public_bytes_raw(): n for n, k in enumerate(here.keepers)}
    asked = [decode_question(question) for question in questions]
    return [
        ([sorted(numbers[one.device] for one in group) for group in each.groups], each.group)
        for each in asked
    ]


@pytest.mark.parametrize(
    ("liars", "most"),
    [((13,), 8), pytest.param((3, 30, 60), 24, marks=pytest.mark.slow)],
    ids=["one", "three"],
)
def test_who_sends_garbage_is_found_and_rounds_go_on_without(world, liars, most):
    """64 devices, of whom 8 and more are in every sum. Before there were groups, each of these
    rounds was given up, and nobody was named."""
    here, done, notices = world(64, 8), [], []
    while set(liars) - set(here.shut_numbers()):
        assert len(done) < most, f"after {most} rounds out are {here.shut_numbers()}"
        done.append(run_round(here, liars))
        notices += here.events[0].notices
    assert done == [("wrong_sum", False)] + [("goal", True)] * (len(done) - 1)
    assert here.shut_numbers() == sorted(liars), "and nobody else"
    for liar in liars:
        assert any(f"device {liar} was shut out: of " in notice for notice in notices)
    assert here.report(liars[0]) == ["shut_out"]
    assert run_round(here) == ("goal", True)
    assert not status(here.database)["search"]["on"]
    here.asked.clear()
    assert run_round(here) == ("goal", True)
    (groups, _), *more = groups_asked(here, here.asked)
    assert not more
    assert groups == [[n for n in range(64) if n not in liars]], "one sum over all others again"


def test_what_counts_is_the_sum_over_the_good_groups_to_the_last_bit(world):
    here, everyone, rounds = world(link={"groups": 4}), range(SOME), []
    for _ in range(4):
        here.asked.clear()
        run_round(here, (5,))
        asked = groups_asked(here, here.asked)
        assert len({str(groups) for groups, _ in asked}) == 1, "one grouping for a round"
        groups = asked[0][0]
        assert [place for _, place in asked] == list(range(len(groups)))
        assert sorted(n for group in groups for n in group) == list(everyone)
        rounds.append(sorted(n for group in groups if 5 not in group for n in group))
    assert [len(counted) for counted in rounds] == [0, 9, 9, 9]
    assert len(set(map(str, rounds))) > 1, "drawn anew"
    sent = [(everyone, counted or None) for counted in rounds]
    assert np.array_equal(here.model(), folded(sent, users=SOME))
    assert here.refused() == {"wrong_sum": 1, "spoiled_group": 3}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_server_killed_between_two_groups_asks_for_the_same_ones(world, after):
    here = world(link={"groups": 4})
    run_round(here, (5,))
    report(here, (5,))
    here.asked.clear()
    answers = []

    def killed(told):
        answers.append(told.body)
        if len(answers) > after:
            raise Killed
        return told

    here.change = killed
    with pytest.raises(Killed):
        here.step()
    here.change = lambda told: answers.append(told.body) or told
    here.restart()
    here.restart_proxy()
    assert here.step()[0] == "goal"
    asked = groups_asked(here, here.asked)
    assert len({str(groups) for groups, _ in asked}) == 1
    assert len(answers) == after + 1 + 4
    assert answers[: after + 1] == answers[after + 1 :][: after + 1]
    counted = sorted(n for group in asked[0][0] if 5 not in group for n in group)
    everyone = range(SOME)
    expected = folded([(everyone, None), (everyone, counted)], users=SOME)
    assert np.array_equal(here.model(), expected)
    with here.database.reading() as link:
        marks = searches.found(link).marks
    assert {mark.rounds for mark in marks.values()} == {1}, "a round speaks once"


def test_while_the_proxy_is_down_the_groups_wait(world):
    here = world(link={"groups": 4})
    run_round(here, (5,))
    report(here, ())
    here.asked.clear()
    here.down = True
    with pytest.raises(ServiceError, match="waits for the helper"):
        here.step()
    here.down, here.time = False, here.time + 5
    assert here.step()[0] == "goal"
    assert len(here.asked) == 4


def test_an_answer_that_is_none_speaks_against_nobody(world):
    here = world(link={"groups": 4})
    run_round(here, (5,))
    report(here, ())
    here.change = lambda told: Answer(200, "", b"SVK1")
    assert here.step()[0] == "wrong_sum"
    with here.database.reading() as link:
        assert not searches.found(link).marks
    here.change = None
    assert run_round(here)[0] == "goal"


def test_a_proxy_that_lies_about_every_group_has_nobody_shut_out(world):
    here = world(link={"groups": 4})

    def lies(told):
        right = decode_mask_sum(told.body, here.terms)
        wrong = MaskSum(right.round, right.devices, right.masks + np.uint64(1 << 55))
        return Answer(200, "", encode_mask_sum(wrong))

    here.change = lies
    for _ in range(3):
        assert run_round(here) == ("wrong_sum", False)
    with here.database.reading() as link:
        assert not searches.found(link).marks
    assert not here.shut_numbers()


def test_seeds_that_cannot_be_opened_are_left_out_of_all_groups_and_named(world):
    here = world(link={"groups": 4})
    run_round(here, (5,))
    unopened = here.keepers[3].record(here.terms, 1, sealed_for=(here.terms, 9, 0))
    here.report(3, record=unopened)
    here.report(*(n for n in range(SOME) if n != 3))
    here.step()
    here.asked.clear()
    assert here.step()[0] == "goal"
    assert here.refused()["undecryptable"] == 1
    assert any("seeds of devices 3;" in notice for notice in here.events[0].notices)
    groups = groups_asked(here, here.asked)[-1][0]
    assert sorted(n for group in groups for n in group) == [n for n in range(SOME) if n != 3]


def test_where_there_is_no_room_for_groups_one_sum_over_a_part_is_asked_for(world):
    here = world(link={"groups": 4})
    run_round(here, (5,))
    here.proxy.__exit__()
    spent = GROUPED_ROUNDS * REGAINED_AFTER
    here.folder.answers().keep(Answered(0, here.folder.answers().last.name, spent))
    here.proxy.__enter__()
    report(here, ())
    here.asked.clear()
    assert here.step()[0] == "goal"
    asked = groups_asked(here, here.asked)
    assert [len(groups) for groups, _ in asked] == [4, 1]
    assert len(asked[1][0][0]) == SOME // 2


def test_who_is_let_in_again_begins_anew(world):
    here = world(link={"groups": 4})
    while not here.shut_numbers():
        run_round(here, (5,))
    told = status(here.database)
    assert told["shut_out"] == [5]
    assert "spoils sums: of 10 rounds" in told["shut_out_why"]["5"]
    acting(here.database).readmit([5])
    told = status(here.database)
    assert (told["shut_out"], told["shut_out_why"]) == ([], {})
    with here.database.reading() as link:
        assert 5 not in searches.found(link).marks
    assert here.report(5) == ["accepted"]


def test_the_operator_is_told_whom_the_server_suspects(world, tmp_path, monkeypatch):
    here = world(link={"groups": 4})
    for _ in range(4):
        run_round(here, (5,))
    content = status(here.database)
    monkeypatch.setattr(serve_status, "_status_in", lambda folder: content)
    _, lines = serve_status.server_status(str(tmp_path), None, None)
    said = "\n".join(lines)
    assert "A device spoils sums; the server looks for it by sums over groups." in said
    assert "5 (in 3 of 3)" in said
    # Groups are drawn, so that another one may have been beside it each time.
    suspects = content["search"]["suspects"]
    (found,) = [one for one in suspects if one["number"] == 5]
    assert found["chance"] == suspects[0]["chance"] < 0.05
    text = exposition("", figures(here.database, RefusalCounts(), 0)).decode()
    assert "sottovoce_searching 1.0" in text
