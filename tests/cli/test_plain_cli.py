"""What commands say to whoever knows nothing of the project: what a limit is worth before it is
set, no Greek letter, Italian where it is asked for; the exact words are an option away."""

import json
import re

import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.cli import output, plainly
from sottovoce.core.choice import Choice
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.core.words import said
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.statements import NOTHING, guess, verdict
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

ITEMS = [(f"venue-{i}", f"Venue number {i}") for i in range(40)]
TERMS = {
    "gram": Terms("town", 40, GramConfig(), OwnEpsilon(), SecureSum()),
    "fpl": Terms("town", 40, FPLConfig(embedding_size=3, triples=4), ShareFraction(), Direct()),
    "fmf": Terms(
        "town", 40, FMFConfig(embedding_size=3), KReports(10, (Tier(1.0, 30),)),
        Proxied("https://proxy.example", "x"),
    ),
}  # fmt: skip
UNPLAIN = re.compile(r"[επδβ]|epsilon =|digest|vector|embedding|differential|\brows? of the model")


@pytest.fixture
def terminal(monkeypatch):
    """A person at a terminal, who is asked and answers."""
    asked = []

    class Person:
        answer = True

        def asked(self):
            return asked

    person = Person()

    def confirm(question):
        asked.append(question)
        return person.answer

    monkeypatch.setattr(plainly.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(plainly.typer, "confirm", confirm)
    return person


def joined(path, system=None, choice=None):
    with CohortStore.create(path, [(7, "anna")]) as store:
        store.set_catalogue(ITEMS)
        if choice is not None:
            store.set_choice(7, choice)
        if system is not None:
            DeviceSession(store).agree(TERMS[system])
    return path


def limit_of(path):
    with CohortStore.open(path) as store:
        return store.choice(7).total_epsilon


# --- a verdict before a limit is set -------------------------------------------------------------


def test_a_limit_of_60_is_told_that_it_protects_nothing_before_it_is_set(tmp_path, say, terminal):
    path = joined(tmp_path / "phone")
    terminal.answer = False
    told = say("consent", path, "--total-epsilon", "60", code=2)
    assert told == "error: nothing was changed\n"
    assert len(terminal.asked()) == 1
    assert limit_of(path) == float("inf")
    terminal.answer = True
    told = say("consent", path, "--total-epsilon", "60")
    assert len(terminal.asked()) == 2
    assert told.startswith("This protects nothing. With a limit of 60,")
    assert limit_of(path) == 60


def test_an_answer_undoes_nothing_that_was_chosen_while_it_was_waited_for(
    tmp_path, say, terminal, monkeypatch
):
    """A question stands on a terminal for minutes. Meanwhile she stops taking part on the page."""
    path = joined(tmp_path / "phone", choice=Choice(takes_part=True, epsilon=1.0))

    def confirm(question):
        with CohortStore.open(path) as store:
            store.set_choice(7, Choice(takes_part=False, epsilon=1.0, never_send=("clinic",)))
        return True

    monkeypatch.setattr(plainly.typer, "confirm", confirm)
    say("consent", path, "--total-epsilon", "60")
    with CohortStore.open(path) as store:
        assert store.choice(7) == Choice(
            takes_part=False, epsilon=1.0, never_send=("clinic",), total_epsilon=60.0
        )


def test_yes_or_no_terminal_is_not_asked_and_told_all_the_same(
    tmp_path, say, terminal, monkeypatch
):
    path = joined(tmp_path / "phone")
    assert "This protects nothing." in say("consent", path, "--total-epsilon", "60", "--yes")
    monkeypatch.setattr(plainly.sys.stdin, "isatty", lambda: False, raising=False)
    assert "This protects nothing." in say("consent", path, "--total-epsilon", "50")
    assert limit_of(path) == 50
    assert terminal.asked() == []


def test_json_is_one_object_and_has_the_verdict(tmp_path, say, terminal):
    path = joined(tmp_path / "phone")
    told = json.loads(say("consent", path, "--total-epsilon", "60", "--json"))
    assert told["worth"][0].startswith("This protects nothing.")
    assert json.loads(say("consent", path, "--json"))["worth"] == []
    assert terminal.asked() == []


@pytest.mark.parametrize(
    ("system", "limit", "words"),
    [
        ("gram", 60, "This protects nothing."),
        ("gram", 8, "A limit of 8 protects you little"),
        ("gram", 4, "A limit of 4 protects you."),
        ("fmf", 60, "This protects nothing."),
        ("fmf", 4, "A limit of 4 protects you little"),
        ("fmf", 1, "A limit of 1 protects you."),
        ("fpl", 1, "A limit stops nothing here."),
        ("gram", "inf", "This protects nothing in the long run: there is no limit."),
    ],
)
def test_a_limit_is_judged_by_what_leaves(tmp_path, say, system, limit, words):
    path = joined(tmp_path / "phone", system)
    assert say("consent", path, "--total-epsilon", limit, "--yes").startswith(words)


def test_a_limit_that_protects_is_not_asked_about(tmp_path, say, terminal):
    path = joined(tmp_path / "phone", "gram")
    say("consent", path, "--take-part", "--epsilon", "1", "--total-epsilon", "4")
    assert terminal.asked() == []
    assert limit_of(path) == 4


def test_the_odds_of_a_choice_are_told(tmp_path, say):
    path = joined(tmp_path / "phone", "gram")
    told = say("consent", path, "--take-part", "--epsilon", "1")
    assert "The guess is right in 55 of 100 cases; a coin is right in 50." in told
    assert "This protects you." in told
    told = say("consent", path, "--epsilon", "8")
    assert "right in 78 of 100 cases" in told
    assert "This protects you little." in told


def test_odds_and_verdict_rise_with_what_is_allowed():
    for delta in (0.0, 1e-6):
        odds = [guess(e, delta) for e in (0, 0.1, 1, 4, 10, 60, float("inf"))]
        assert odds == sorted(odds)
        assert (odds[0], round(odds[-1])) == (50.0, 100)
        found = [verdict(e, delta) for e in (0.1, 1, 4, 8, 10, 10.1, 60, float("inf"))]
        rank = {"good": 0, "weak": 1, "nothing": 2}
        assert [rank[one] for one in found] == sorted(rank[one] for one in found)
        assert found[0] == "good"
        assert verdict(NOTHING + 0.01, delta) == "nothing"


# --- plain words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("system", TERMS)
@pytest.mark.parametrize("language", ["en", "it"])
def test_no_command_has_a_word_that_needs_knowing_unless_asked(
    tmp_path, say, system, language, monkeypatch
):
    monkeypatch.setenv(output.LANGUAGE_VARIABLE, language)
    path = joined(tmp_path / "phone", system, Choice(share_positives=0.3))
    for command in (
        ["consent", path],
        ["consent", path, "--reports", 10, "--epsilon", 1, "--total-epsilon", 30],
        ["consent", path, "--share-positives", 0, "--reports", 0],
        ["status", path],
        ["agree", path],
        ["ledger", path],
    ):
        told = say(*command)
        assert not UNPLAIN.search(told), told


def test_italian_where_it_is_asked_for_and_errors_in_english(tmp_path, say, monkeypatch):
    path = joined(tmp_path / "phone", "gram")
    monkeypatch.setenv("SOTTOVOCE_LANGUAGE", "it_IT.UTF-8")
    told = say("consent", path, "--take-part", "--epsilon", "1.5", "--total-epsilon", "60", "--yes")
    assert "Questo non protegge niente." in told
    assert "anna: partecipa. Volume: fino a 1,5." in told
    assert "must lie in [0, 1]" in say("consent", path, "--share-positives", "7", code=2)
    monkeypatch.setenv("SOTTOVOCE_LANGUAGE", "fr")
    assert "must be one of en, it" in say("status", path, code=2)


def test_sentences_are_told_a_line_each():
    lines = output.told(said("stands.nothing"), said("quiet.off"))
    assert lines == ["Nothing has left this device.", "Nothing leaves: you do not take part."]
    assert output.joined(said("stands.nothing"), said("quiet.off")) == " ".join(lines)


def test_no_name_hides_a_sign_or_turns_writing_around():
    """As on the pages: a name could look like another one."""
    for sign in "\u200b\u2060\ufeff\u00ad\u202e\u2066\U000e0041\u200d":
        assert output.one_line(f"Ca{sign}fe") == "Ca\N{REPLACEMENT CHARACTER}fe"
    for name in ("Caffè Ñandú", "می\u200cخواهم", "👩\u200d🍳 Küche", "क\u094d\u200dष", "☕\ufe0f"):
        assert output.one_line(name) == name
