"""An aggregator as a service: whom it answers, what it refuses to keep and to tell, and that it
says the same after a crash."""

import json
import secrets
import time
from dataclasses import replace

import numpy as np
import pytest
from checked_world import DEVICES, LEAST, TOKENS, AggregatorApp, CheckedWorld, checked_folders

from sottovoce.core.links import CheckedSum
from sottovoce.core.shares import P
from sottovoce.errors import ConfigError, KeyTrouble, ServiceError, UsageError
from sottovoce.parties.helper import Answered
from sottovoce.stores import aggregator_folder as folders
from sottovoce.stores.aggregator_folder import AggregatorIntroduction, open_aggregator
from sottovoce.stores.keys import authority_pem, operator_token
from sottovoce.wire.shared import (
    SetQuestion,
    decode_checks,
    decode_coin,
    decode_part,
    encode_question,
    encode_shares,
)

SHARES, COINS, CHECKS, PARTS = "/v1/shares", "/v1/coins", "/v1/checks", "/v1/parts"


@pytest.fixture
def world(tmp_path):
    made = CheckedWorld(tmp_path)
    yield made
    made.close()


class Talk:
    """A server that talks to aggregator 1 about the submissions of some devices."""

    def __init__(self, world, devices=DEVICES, number=1):
        self.world, self.number, self.about = world, number, world.about
        self.sent = sorted((world.sent(n) for n in range(devices)), key=lambda one: one[0].name)
        self.names = tuple(record.name for record, _ in self.sent)
        self.coins = tuple(secrets.token_bytes(32) for _ in range(3))

    def post(self, path, content, **more):
        return self.world.apps[self.number].post(path, content, **more)

    def take(self, sent=None):
        sent = self.sent if sent is None else sent
        return self.post(SHARES, encode_shares(self.about, sent))

    def ask(self, path, **changes):
        given = {"about": self.about, "names": self.names}
        if path != COINS:
            given["coins"] = self.coins
        if path == PARTS:
            given["kept"] = np.ones(len(changes.get("names", self.names)), bool)
        return self.post(path, encode_question(SetQuestion(**given | changes)))

    def kept(self, *out):
        return np.array([k not in out for k in range(len(self.names))])


@pytest.fixture
def talk(world):
    made = Talk(world)
    assert made.take().table() == {"bad": []}
    return made


def refused(answer, status, reason):
    assert (answer.status, answer.reason) == (status, reason), answer.body
    assert answer.detail


# --- who asks, and for what -----------------------------------------------------------------------


def test_only_the_server_is_answered(talk):
    for path in (SHARES, COINS, CHECKS, PARTS):
        for token in ("", TOKENS[2], "00" * 32):
            refused(talk.post(path, b"", token=token), 401, "unknown_server")


def test_everything_is_told_again_after_a_crash_byte_for_byte(talk):
    before = [talk.ask(path).body for path in (COINS, CHECKS, PARTS)]
    talk.world.restart_aggregator(1)
    after = [talk.ask(path).body for path in (COINS, CHECKS, PARTS)]
    assert before == after
    form, round = talk.world.form, talk.about.round
    assert len(decode_coin(before[0], round)) == 32
    assert decode_checks(before[1], round, 1, DEVICES).parts.shape == (DEVICES, 2)
    assert len(decode_part(before[2], round, 1, DEVICES, form.numbers).part) == form.numbers


def test_its_log_has_a_line_for_every_part_and_names_no_device(talk):
    began = time.monotonic()
    for path in (COINS, CHECKS, PARTS):
        assert talk.ask(path, **({"kept": talk.kept(2)} if path == PARTS else {})).status == 200
    (line,) = talk.world.apps[1].log.lines
    assert 0 <= line.pop("seconds") <= time.monotonic() - began + 0.001
    assert line == {
        "event": "part of a sum told", "round": talk.about.round, "attempt": 0,
        "devices": DEVICES - 1, "left_out": 1,
    }  # fmt: skip


def test_what_comes_again_is_taken_again_and_kept_once(talk):
    assert talk.take().table() == {"bad": []}
    kept = talk.world.apps[1].shares.value("SELECT count(*) FROM shares")
    assert kept == DEVICES


def test_what_is_not_here_is_named(world):
    talk = Talk(world)
    talk.take(talk.sent[:3])
    for path in (COINS, CHECKS, PARTS):
        answer = talk.ask(path)
        assert (answer.status, answer.reason) == (409, "missing")
        assert answer.table()["which"] == list(range(3, DEVICES))
    assert talk.take(talk.sent[3:]).status == 200
    assert talk.ask(COINS).status == 200


def test_bad_submissions_are_named_and_the_others_are_kept(world):
    talk = Talk(world)
    record, travelled = talk.sent[0]
    numbers = np.frombuffer(travelled, "<u4")
    large = numbers.copy()
    large[3] = P
    wrong = [
        (record, travelled),
        (record, travelled[4:] + travelled[:4]),
        (replace(record, signature=bytes(64)), travelled),
        (replace(record, device=talk.sent[1][0].device), travelled),
        world.sent(0, travelled=large.astype("<u4").tobytes()),
        world.sent(0, about=talk.about._replace(round=1)),
        (replace(record, sealed=record.sealed[::-1]), travelled),
        talk.sent[1],
    ]
    assert talk.take(wrong).table() == {"bad": [1, 2, 3, 4, 5, 6]}
    assert talk.world.apps[1].shares.value("SELECT count(*) FROM shares") == 2


def test_half_an_upload_is_refused(world):
    talk = Talk(world)
    record, travelled = talk.sent[0]
    half = travelled[: len(travelled) // 8 * 4]
    refused(talk.take([(record, half)]), 400, "malformed")
    content = encode_shares(talk.about, talk.sent)
    for cut in (3, 40, len(content) // 2, len(content) - 1):
        assert talk.post(SHARES, content[:cut]).status == 400
    assert talk.world.apps[1].shares.value("SELECT count(*) FROM shares") == 0


def test_questions_about_something_else_are_refused(talk):
    about = talk.about
    for path in (COINS, CHECKS, PARTS):
        refused(talk.ask(path, about=about._replace(terms=bytes(32))), 409, "other_terms")
        refused(talk.ask(path, about=about._replace(numbers=10**9)), 400, "malformed")
        for other in ({"attempt": 1}, {"model": bytes(32)}, {"numbers": about.numbers - 1}):
            refused(talk.ask(path, about=about._replace(**other)), 409, "missing")
    refused(talk.post(COINS, b"SVC2" + bytes(200)), 426, "version")
    refused(talk.post(PARTS, encode_question(SetQuestion(about, talk.names))), 400, "malformed")


def test_a_device_is_in_a_set_once(world):
    talk = Talk(world)
    again = world.sent(0)
    both = sorted([*talk.sent, again], key=lambda one: one[0].name)
    assert talk.take(both).table() == {"bad": []}
    names = tuple(record.name for record, _ in both)
    for path in (COINS, CHECKS, PARTS):
        refused(talk.ask(path, names=names), 400, "duplicate")
    unordered = (talk.names[1], talk.names[0], *talk.names[2:])
    refused(talk.ask(COINS, names=unordered), 400, "malformed")
    refused(talk.ask(COINS, names=(talk.names[0], *talk.names)), 400, "malformed")


# --- one set in a round ---------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_the_sum_of_a_second_set_is_not_told(talk, restarted):
    first = talk.ask(PARTS)
    assert first.status == 200
    if restarted:
        talk.world.restart_aggregator(1)
    refused(talk.ask(PARTS, kept=talk.kept(0)), 409, "second_submission")
    refused(talk.ask(PARTS, names=talk.names[1:]), 409, "second_submission")
    assert talk.ask(PARTS).body == first.body
    assert talk.world.apps[1].answering.told.times == (1 if restarted else 2)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_answer_is_bound_to_set_and_coins(talk, restarted):
    """Also for the same devices that are kept, whose sum is the same: blinding and checks are by
    set and coins, and nothing of a round is told under two of them."""
    without = talk.kept(0)
    first = talk.ask(PARTS, kept=without)
    assert first.status == 200
    if restarted:
        talk.world.restart_aggregator(1)
    refused(talk.ask(PARTS, names=talk.names[1:]), 409, "second_submission")
    for place in range(3):
        coins = tuple(
            secrets.token_bytes(32) if k == place else one for k, one in enumerate(talk.coins)
        )
        got = talk.ask(PARTS, kept=without, coins=coins)
        refused(got, 409, "second_submission")
        assert "for other devices, sets or coins" in got.detail
    assert talk.ask(PARTS, kept=without).body == first.body


def test_a_sum_below_the_minimum_is_not_told(talk):
    few = np.zeros(DEVICES, bool)
    few[: LEAST - 1] = True
    refused(talk.ask(PARTS, kept=few), 400, "too_few")
    assert talk.world.apps[1].answering.round == -1
    few[LEAST - 1] = True
    assert talk.ask(PARTS, kept=few).status == 200


def test_rounds_that_are_over_stay_so(talk):
    assert talk.ask(PARTS).status == 200
    later = talk.about._replace(round=2)
    sent = [talk.world.sent(n, about=later) for n in range(DEVICES)]
    answer = talk.post(SHARES, encode_shares(later, sent))
    assert answer.table() == {"bad": []}
    rounds = talk.world.apps[1].shares.rows("SELECT DISTINCT round FROM shares")
    assert rounds == [(2,)], "what was shared earlier is gone"
    names = tuple(sorted(record.name for record, _ in sent))
    assert talk.ask(PARTS, about=later, names=names).status == 200
    refused(talk.take(), 409, "late")
    refused(talk.ask(PARTS), 409, "late")


def test_what_cannot_be_kept_is_not_told(talk, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.stores.sum_folder.replace_file", full)
        refused(talk.ask(PARTS), 503, "unavailable")
    assert talk.world.apps[1].answering.told.times == 0
    assert talk.ask(PARTS, kept=talk.kept(0)).status == 200


def test_a_damaged_file_of_shares_is_found_out(talk):
    talk.world.apps[1].shares.write(
        "UPDATE shares SET body = substr(body, 1, 600) || x'00' || substr(body, 602)"
    )
    refused(talk.ask(CHECKS), 503, "unavailable")
    assert talk.world.apps[1].answering.told.times == 0


def test_nothing_in_words_tells_a_secret(talk):
    app = talk.world.apps[1]
    for thing in (app.answering, app.folder, app.folder.introduction, app.shares, talk.sent[0][0]):
        shown = repr(thing)
        assert TOKENS[1] not in shown
        assert talk.sent[0][0].device.hex() not in shown
        assert len(shown) < 200


def test_metrics_count_and_name_nobody(talk):
    talk.ask(PARTS)
    app = talk.world.apps[1]
    token = operator_token(app.folder.keys)
    got = app.ask("GET", "/metrics", headers={"authorization": f"Bearer {token}"})
    assert b"aggregator_parts_total 1" in got.body
    assert app.ask("GET", "/metrics").status == 401
    assert app.ask("GET", "/health").body == b"ok"


# --- keys and introductions -----------------------------------------------------------------------


def test_terms_that_name_one_organisation_twice_are_refused():
    for named in (
        {"urls": ("https://one", "https://one")},
        {"authorities": ("a", "a")},
        {"keys": ("aa", "bb", "aa")},
        {"keys": ("aa", "bb", "bb")},
    ):
        with pytest.raises(ConfigError, match="names one organisation twice"):
            CheckedSum(**named)


def test_keys_that_have_changed_are_refused_before_anything_is_asked(tmp_path):
    terms, made = checked_folders(tmp_path)
    other = folders.init_aggregator(tmp_path / "other")
    keys = (terms.link.keys[0], other, terms.link.keys[2])
    changed = replace(terms, link=replace(terms.link, keys=keys))
    folders.init_aggregator(tmp_path / "third")
    with pytest.raises(KeyTrouble, match=r"name another key than .*devices would seal"):
        folders.create_aggregator(tmp_path / "third", AggregatorIntroduction(changed, TOKENS[1], 1))
    (tmp_path / "a1" / "seal.key").write_text((tmp_path / "a2" / "seal.key").read_text())
    with pytest.raises(KeyTrouble, match="name another key"), AggregatorApp(made[1]):
        pass
    folders.init_first(tmp_path / "others-keys")
    with pytest.raises(KeyTrouble, match="name another key than that of"):
        folders.first_rules(terms, tmp_path / "others-keys")


def test_an_introduction_is_read_or_refused_in_one_sentence(tmp_path):
    _, made = checked_folders(tmp_path)
    place = tmp_path / "i.json"
    made[2].introduction.write(place)
    assert place.stat().st_mode & 0o777 == 0o600
    assert AggregatorIntroduction.read(place) == made[2].introduction
    table = json.loads(place.read_text())
    for change in (
        {"number": 0}, {"number": 3}, {"number": True}, {"number": "1"}, {"token": "xyz"},
        {"more": 1}, {"token": ""},
    ):  # fmt: skip
        place.write_text(json.dumps(table | change))
        with pytest.raises(UsageError, match="no introduction to a checked sum"):
            AggregatorIntroduction.read(place)
    del table["number"]
    place.write_text(json.dumps(table))
    with pytest.raises(UsageError, match="no introduction to a checked sum"):
        AggregatorIntroduction.read(place)
    with pytest.raises(ServiceError, match="holds no aggregator of a checked sum"):
        open_aggregator(tmp_path / "nowhere")


def test_an_aggregator_is_begun_once(tmp_path):
    _, made = checked_folders(tmp_path)
    with pytest.raises(UsageError, match="holds an aggregator already"):
        folders.create_aggregator(made[1].path, made[1].introduction)
    with pytest.raises(UsageError, match="not overwritten"):
        folders.init_aggregator(made[1].path)
    made[1].answers().keep(Answered(4, b"x" * 32))
    (made[1].path / "introduction.json").unlink()
    with pytest.raises(UsageError, match="has told sums already"):
        folders.create_aggregator(made[1].path, made[1].introduction)
    assert authority_pem(made[1].keys) != authority_pem(made[2].keys)
