"""`sottovoce device ...` as an owner starts it: real processes on a real store."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.cli import output
from sottovoce.cli.spent import of_store
from sottovoce.core.consent import Choice
from sottovoce.core.links import Proxied
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Prepared
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.invitations import Invitation, kept_invitation
from sottovoce.wire.terms import Terms

COMMAND = str(Path(sys.executable).with_name("sottovoce"))
ITEMS = [(f"venue-{i}", f"Venue number {i}") for i in range(12)]
TERMS = Terms.of("town", len(ITEMS), FPLConfig(embedding_size=3), 4, ShareFraction())


def run(*arguments):
    """One command in a process of its own: exit code, standard output, standard error."""
    done = subprocess.run(
        [COMMAND, "device", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def visits(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("item,timestamp\nvenue-1,100\nvenue-2,200\nvenue-2,250\nnowhere,300\n")
    return path


def model(round=3):
    rng = np.random.default_rng(5)
    return ModelView(round, rng.normal(size=(len(ITEMS), 4)).astype(np.float32))


def joined(path, choice=None):
    """A store in a federation, with a report that has left."""
    with CohortStore.create(path, [(7, "anna")]) as store:
        store.set_catalogue(ITEMS)
        store.add_history(7, ["venue-1", "venue-2", "venue-3"], [1, 2, 3])
        store.set_choice(7, choice or Choice(share_positives=1.0))
        hosted = DeviceSession(store)
        hosted.agree(TERMS)
        hosted.keep_model(model())
        prepared = hosted.prepare(model(), 0, summed=False)
        if isinstance(prepared, Prepared):
            hosted.leaving(prepared)
            hosted.arrived(3, 0)


def test_a_day_in_the_life_of_a_device_in_real_processes(tmp_path, visits):
    store, card = tmp_path / "phone", tmp_path / "invitation.json"
    Invitation("https://localhost:1", "PEM", "ab" * 16, 4711, "town").write(card)
    code, out, err = run("init", store, "--invitation", card, "--name", "anna")
    assert (code, err) == (0, "")
    assert "invited to town" in out
    assert stat.S_IMODE(os.stat(store / "store.key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(store).st_mode) == 0o700
    assert run("import", store, visits)[1].startswith(
        "3 things were added to your history. One was there already."
    )
    assert "anna: takes no part, so nothing leaves." in run("consent", store)[1]
    code, out, _ = run("consent", store, "--take-part", "--share-positives", "0.3")
    assert (code, "Of the things in the history, 30% may be used." in out) == (0, True)
    code, out, _ = run("status", store, "--json")
    told = json.loads(out)
    assert (told["federation"], told["server"]) == ("town", "https://localhost:1")
    assert (told["interactions"], told["taking_part"], told["agent_running"]) == (3, 1, False)
    with CohortStore.open(store) as opened:
        assert opened.users.tolist() == [4711]
        kept = kept_invitation(opened)
        assert kept is not None
        assert kept.token == "ab" * 16


def test_an_invitation_may_come_later(tmp_path, ask, say, visits):
    store, card = tmp_path / "phone", tmp_path / "invitation.json"
    ask("init", store)
    ask("import", store, visits)
    ask("consent", store, "--take-part")
    Invitation("https://localhost:1", "PEM", "ab" * 16, 4711, "town").write(card)
    assert ask("init", store, "--invitation", card)["federation"] == "town"
    assert ask("init", store, "--invitation", card)["users"] == 1  # once more does no harm
    with CohortStore.open(store) as opened:
        assert opened.users.tolist() == [4711]
        assert opened.count_history() == 3
        assert opened.choice(4711).takes_part
    other = tmp_path / "other.json"
    Invitation("https://localhost:1", "PEM", "ab" * 16, 5, "town").write(other)
    assert "make a new store" in say("init", store, "--invitation", other, code=2)


def test_what_is_there_is_not_made_again(tmp_path, say):
    say("init", tmp_path / "phone")
    assert "already a store" in say("init", tmp_path / "phone", code=7)
    assert "already something else" in say("init", tmp_path, code=7)
    assert "cannot be read" in say("init", tmp_path / "b", "--invitation", "nothing.json", code=2)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no column 'item'"),
        ("thing,timestamp\na,1\n", "it names thing, timestamp"),
        ("item,timestamp\na,1\nb,yesterday\n", "line 3: the timestamp 'yesterday'"),
        ("item,timestamp\na,1.0\nb,1.5\n", "line 3: the timestamp '1.5'"),
        ("item,timestamp\na,1\nb\n", "line 3: 2 fields"),
        ("item,timestamp\na,1\nb,2,3\n", "line 3: 2 fields"),
        ("item\na\n \n", "line 3: the item is missing"),
        ("item\na\0\xe9", "no CSV file in UTF-8"),
        ("item,timestamp\na,9223372036854775808\n", "no whole number"),
    ],
)
def test_a_wrong_file_is_told_and_adds_nothing(tmp_path, ask, say, content, words):
    path, store = tmp_path / "visits.csv", tmp_path / "phone"
    path.write_bytes(content.encode("latin-1"))
    ask("init", store)
    assert words in say("import", store, path, code=3)
    assert ask("status", store)["interactions"] == 0


def test_unknown_items_are_told_once_there_is_a_catalogue(tmp_path, ask, say, visits):
    ask("init", tmp_path / "phone")
    assert ask("import", tmp_path / "phone", visits) == {
        "store": str(tmp_path / "phone"),
        "added": 3,
        "already_there": 1,
        "unknown": 0,
    }
    with CohortStore.open(tmp_path / "phone") as store:
        store.set_catalogue(ITEMS)
    told = ask("import", tmp_path / "phone", visits)
    assert (told["added"], told["already_there"], told["unknown"]) == (0, 4, 1)
    assert "One thing (nowhere) is not known in this federation." in say(
        "import", tmp_path / "phone", visits
    )


def test_recommendations_ledger_and_status_of_a_device_that_took_part(tmp_path, ask, say):
    joined(tmp_path / "phone")
    found = ask("recommend", tmp_path / "phone", "-n", 5)
    places = found["recommendations"]
    assert (found["user"], found["model"], len(places)) == ("anna", 3, 5)
    assert not {p["item"] for p in places} & {"venue-1", "venue-2", "venue-3"}
    assert [p["score"] for p in places] == sorted((p["score"] for p in places), reverse=True)
    assert "Venue number" in say("recommend", tmp_path / "phone")
    sent = ask("ledger", tmp_path / "phone")
    (line,) = sent["lines"]
    assert (line["user"], line["round"], line["state"], line["epsilon"]) == (7, 3, "arrived", None)
    assert sent["totals"]["releases"] == 1
    assert sent["totals"]["bytes"] == line["bytes"] > 0
    assert "in one message." in say("ledger", tmp_path / "phone")
    assert say("ledger", tmp_path / "phone", "--csv").count("\n") == 2
    assert sent["contacts"] == []
    assert "only said" not in say("ledger", tmp_path / "phone")
    with CohortStore.open(tmp_path / "phone") as store:
        for what in ("enrolment", "check-in", "check-in"):
            DeviceSession(store).contact(what, "server", bytes(100))
    again = ask("ledger", tmp_path / "phone")
    assert [c["what"] for c in again["contacts"]] == ["enrolment", "check-in", "check-in"]
    assert (again["totals"], again["lines"]) == (sent["totals"], sent["lines"])
    assert "3 messages only said that this device is there." in say("ledger", tmp_path / "phone")
    told = ask("status", tmp_path / "phone")
    assert told["latest"] == {"round": 3, "attempt": 0, "state": "arrived"}
    assert "anna: takes part." in say("status", tmp_path / "phone")


def test_everything_she_has_can_be_exported(tmp_path, ask, say):
    joined(tmp_path / "phone")
    target = tmp_path / "all.jsonl"
    told = ask("export", tmp_path / "phone", target)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert told["lines"] == len(lines)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert kinds.count("interaction") == 3
    assert {"terms", "user", "choice", "budget", "vector", "report"} < set(kinds)
    assert "not overwritten" in say("export", tmp_path / "phone", target, code=2)


def test_changed_terms_are_shown_and_agreed_to(tmp_path, ask, say):
    joined(tmp_path / "phone")
    assert ask("agree", tmp_path / "phone")["terms"]["algorithm"]["embedding_size"] == 3
    other = Terms.of("town", len(ITEMS), FPLConfig(embedding_size=3), 9, ShareFraction("draw"))
    with CohortStore.open(tmp_path / "phone") as store, pytest.raises(ConsentError, match="agree"):
        DeviceSession(store).meet(other)
    standing = ask("status", tmp_path / "phone")
    assert standing["other_terms_offered"]
    assert not standing["agreed"]
    assert other.digest() in standing["nothing_leaves"]
    told = ask("agree", tmp_path / "phone")
    assert not told["agreed"]
    assert {c["setting"] for c in told["changes"]} == {"algorithm.triples", "release.per"}
    assert "release.per: item → draw" in say("agree", tmp_path / "phone")
    assert ask("status", tmp_path / "phone")["other_terms_offered"], "looking is no agreement"
    for wrong in (TERMS.digest(), other.digest()[:8], ""):
        refused = say("agree", tmp_path / "phone", "--terms", wrong, code=2)
        assert "not the terms that the server shows now" in refused
    assert "release.per: item → draw" in say("agree", tmp_path / "phone", "--terms", other.digest())
    standing = ask("status", tmp_path / "phone")
    assert (standing["other_terms_offered"], standing["nothing_leaves"]) == (False, None)
    with CohortStore.open(tmp_path / "phone") as store:
        DeviceSession(store).meet(other)


def test_whoever_takes_part_sees_the_terms(tmp_path, say, ask):
    say("init", tmp_path / "phone")
    assert "serve device" in say("consent", tmp_path / "phone", "--take-part")
    assert "Nothing leaves yet" in say("consent", tmp_path / "phone")
    assert "Nothing leaves yet" in say("agree", tmp_path / "phone")
    assert "Nothing leaves yet" in ask("status", tmp_path / "phone")["nothing_leaves"]
    assert "serve device" in say("agree", tmp_path / "phone", "--terms", "00", code=2)
    assert "terms" not in say("consent", tmp_path / "phone", "--no-part")
    terms = Terms.of("town", len(ITEMS), FPLConfig(embedding_size=3), 12, ShareFraction())
    with CohortStore.open(tmp_path / "phone") as store:
        DeviceSession(store).meet(terms)
        told = say("consent", tmp_path / "phone", "--take-part")
        assert f"--terms {terms.digest()}" in told
        assert not ask("agree", tmp_path / "phone")["agreed"]
        assert f"--terms {terms.digest()}" in say("agree", tmp_path / "phone")
        with pytest.raises(ConsentError):
            DeviceSession(store).require_agreed()
        assert "You have agreed to these terms." in say(
            "agree", tmp_path / "phone", "--terms", terms.digest()
        )
        assert DeviceSession(store).require_agreed() == terms
        assert "Nothing leaves yet" not in say("consent", tmp_path / "phone")


def test_what_others_wrote_cannot_steer_the_terminal(tmp_path, say, ask):
    joined(tmp_path / "phone")
    evil = "\x1b[31mRED\x1b]0;owned\x07\x9b2J\u202e\nnext"
    with CohortStore.open(tmp_path / "phone") as store:
        store.set_catalogue([(f"venue-{i}\x1b[2J", f"Café ☕ 北京 {i} {evil}") for i in range(12)])
    told = say("recommend", tmp_path / "phone", "-n", "2")
    assert "Café ☕ 北京" in told
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told)
    assert not [line for line in told.splitlines() if line.strip().startswith("next")]
    shown = ask("recommend", tmp_path / "phone", "-n", "1")  # JSON escapes it all
    assert shown["recommendations"][0]["title"].endswith(evil)


def test_text_for_people_is_kept_but_for_what_steers(capsys):
    output.show("π ≥ 0.3, שלום, 👩‍👩‍👧 x\ny", "a\x1b[1m\u2066b\r")
    assert capsys.readouterr().out == "π ≥ 0.3, שלום, 👩‍👩‍👧 x\ny\na�[1m�b�\n"
    assert output.fail("say \x1b[31m", 6, "MessageError", False) == 6
    assert capsys.readouterr().err == "error: say �[31m\n"


def test_a_name_that_is_anothers_number_is_refused(tmp_path, say):
    users = tmp_path / "users.csv"
    users.write_text("number,name\n5,anna\n9,5\n")
    told = say("init", tmp_path / "gate", "--users", users, code=3)
    assert "user 9 is called '5', which is the number of another user" in told
    assert not (tmp_path / "gate").exists()
    users.write_text("number,name\n5,5\n9,\n")
    say("init", tmp_path / "gate", "--users", users)


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path):
    joined(tmp_path / "phone")
    command = [COMMAND, "device", "status", tmp_path / "phone"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr == "error: No space left on device; free some space and try again\n"


def test_commands_work_while_an_agent_runs(tmp_path, ask, visits):
    joined(tmp_path / "phone")
    with CohortStore.open(tmp_path / "phone", agent=True) as store:
        ask("consent", tmp_path / "phone", "--no-part")
        assert not store.choice(7).takes_part
        ask("import", tmp_path / "phone", visits)
        assert store.count_history() == 4
        assert ask("ledger", tmp_path / "phone")["totals"]["releases"] == 1
        assert ask("status", tmp_path / "phone")["agent_running"]


def test_a_gateway_names_its_users(tmp_path, ask, say):
    users, visits = tmp_path / "users.csv", tmp_path / "visits.csv"
    users.write_text("number,name\n5,anna\n9,bert\n")
    visits.write_text("user,item\nanna,a\n9,b\n9,c\n")
    assert ask("init", tmp_path / "gate", "--users", users)["users"] == 2
    assert ask("import", tmp_path / "gate", visits)["added"] == 3
    assert "choose by --user" in say("consent", tmp_path / "gate", code=2)
    assert ask("consent", tmp_path / "gate", "--user", "bert", "--take-part")["user"] == "bert"
    assert ask("status", tmp_path / "gate")["taking_part"] == 1
    assert "no user 'carl'" in say("consent", tmp_path / "gate", "--user", "carl", code=3)
    visits.write_text("user,item\nanna,z\ncarl,b\n")
    assert "line 3: there is no user 'carl'" in say("import", tmp_path / "gate", visits, code=3)
    assert ask("status", tmp_path / "gate")["interactions"] == 3


def test_bad_stores_are_one_sentence(tmp_path, say):
    for command in ("consent", "recommend", "ledger", "status", "agree"):
        told = say(command, tmp_path / "nowhere", code=7)
        assert told.count("\n") == 1
        assert "there is no store" in told
    say("init", tmp_path / "phone")
    assert "no model yet" in say("recommend", tmp_path / "phone", code=3)
    (tmp_path / "phone" / "store.key").chmod(0o644)
    assert "chmod 600" in say("status", tmp_path / "phone", code=7)


# --- randomised reports and their budget ----------------------------------------------------------

REPORTING = Terms(
    "village",
    len(ITEMS),
    FMFConfig(embedding_size=4),
    KReports(10, (Tier(0.5, 50), Tier(2.5, 200))),
    Proxied("https://proxy.example", "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"),
)


def reporting(path, rounds=0):
    """A store of a device that sends randomised reports, after so many rounds."""
    with CohortStore.create(path, [(7, "anna")]) as store:
        store.set_catalogue(ITEMS)
        store.add_history(7, ["venue-1", "venue-2", "venue-3"], [1, 2, 3])
        store.set_choice(7, Choice(epsilon=2.5, max_reports=10, total_epsilon=100.0))
        DeviceSession(store).agree(REPORTING)
    more_rounds(path, rounds)


def more_rounds(path, rounds):
    with CohortStore.open(path) as store:
        hosted = DeviceSession(store)
        latest = hosted.latest()
        first = 0 if latest is None else latest.round + 1
        for round in range(first, first + rounds):
            hosted.leaving(hosted.prepare(model(round), 0, summed=False))
            hosted.arrived(round, 0)


def test_a_choice_says_what_it_costs_and_how_long_it_lasts(tmp_path, ask, say):
    path = tmp_path / "phone"
    say("init", path)
    options = ("--take-part", "--reports", "10", "--epsilon", "2.5", "--total-epsilon", "100")
    told = say("consent", path, *options)
    assert "At most 10 reports in a round, each with a loudness of up to 2.5." in told
    assert "In all, for ever: at most 100." in told
    assert "A round sends 10 reports and uses 25 in all." in told  # the terms may ask for less
    assert "lasts for 4 more rounds" in told
    with CohortStore.open(path) as store:
        DeviceSession(store).agree(REPORTING)
        assert store.choice(0) == Choice(epsilon=2.5, max_reports=10, total_epsilon=100.0)
    told = ask("consent", path)
    assert (told["round_cost"], told["spent"]) == (25.0, 0)
    assert told["choice"]["total_epsilon"] == 100.0
    assert "lasts for 4 more rounds" in told["means"][1]
    assert "lasts for 20 more rounds" in say("consent", path, "--epsilon", "0.5")  # lower tier
    assert "has no room for more" in say("consent", path, "--total-epsilon", "4.9")
    assert "no limit" in say("consent", path, "--total-epsilon", "inf")
    assert ask("consent", path)["choice"]["total_epsilon"] is None
    told = say("consent", path, "--reports", "9")
    assert "With this choice nothing would leave." in told
    assert "asks for 10 reports in a round, each with a loudness of 0.5 or more" in told
    for bad in ("nan", "-1"):
        assert "total_epsilon" in say("consent", path, "--total-epsilon", bad, code=2)
    assert "max_reports" in say("consent", path, "--reports", "-1", code=2)
    assert ask("consent", path)["choice"]["max_reports"] == 9


def test_status_and_ledger_show_spent_limit_rounds_left_and_both_certificates(tmp_path, ask, say):
    path = tmp_path / "phone"
    reporting(path)
    before = ask("status", path)["budget"]
    assert (before["spent"], before["rounds_left"], before["reports"]) == (0.0, 4, 0)
    more_rounds(path, 3)
    expected = certify(2.5, 10, 3, 200)
    for command in ("status", "ledger"):
        budget = ask(command, path)["budget"]
        assert (budget["spent"], budget["limit"], budget["round_cost"]) == (75.0, 100.0, 25.0)
        assert (budget["rounds_left"], budget["reports"]) == (1, 30)
        proved = budget["certificates"]
        assert proved["without_proxy"] == {"epsilon": expected.without_proxy, "delta": 0.0}
        assert proved["with_proxy"] == {
            "epsilon": expected.with_proxy, "delta": 1e-6, "smallest_batch": 200,
        }  # fmt: skip
        told = say(command, path)
        assert "75 of 100 used. There is room for one more round." in told  # what assumes nothing
        assert "It had 30 reports." in told
    more_rounds(path, 1)
    assert "There is no room for another round: nothing leaves any more." in say("status", path)
    with pytest.raises(ConsentError, match=r"100 of 100 is spent.*device status"):
        more_rounds(path, 1)
    say("consent", path, "--no-part")
    assert "100 of 100 used." in say("status", path)  # what was spent stays to be seen
    say("consent", path, "--take-part", "--total-epsilon", "inf", "--epsilon", "0.5")
    more_rounds(path, 1)
    budget = ask("ledger", path)["budget"]
    assert (budget["spent"], budget["limit"], budget["rounds_left"]) == (105.0, None, None)
    proved = budget["certificates"]["with_proxy"]
    assert proved["smallest_batch"] == 50
    assert certify(2.5, 10, 4, 200).with_proxy < proved["epsilon"] < 105.0
    assert "105 used, and no limit is set." in say("status", path)
    header = say("ledger", path, "--csv").splitlines()[0]
    assert header.endswith("digest,reports,report_epsilon,batch,epsilon")


def test_other_releases_are_not_hidden_by_a_budget(tmp_path, ask, say):
    path = tmp_path / "phone"
    joined(path)
    assert ask("status", path)["budget"] is None  # item rows have no ε to count
    with CohortStore.open(path) as store:
        hosted = DeviceSession(store)
        hosted.agree(REPORTING)
        store.set_choice(7, Choice(epsilon=2.5, max_reports=10))
        hosted.leaving(hosted.prepare(model(0), 0, summed=False))
    told = ask("ledger", path)
    assert told["budget"]["other_releases_without_bound"]
    assert (told["totals"]["epsilon"], told["totals"]["reports"]) == (None, 10)
    assert "Part of it had no noise." in say("ledger", path)


def test_an_export_has_what_was_spent(tmp_path, ask):
    reporting(tmp_path / "phone", 2)
    ask("export", tmp_path / "phone", tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    (spent,) = [line for line in lines if line["kind"] == "spent"]
    assert spent == {"kind": "spent", "number": 7, "epsilon": 2.5, "batch": 200, "reports": 20}
    assert sum(line["reports"] for line in lines if line["kind"] == "report") == 20


@pytest.mark.parametrize("epsilon", ["inf", "1000"])
def test_an_absurd_epsilon_is_no_limit(tmp_path, ask, say, epsilon):
    reporting(tmp_path / "phone")
    assert "is no limit" in say("consent", tmp_path / "phone", "--epsilon", epsilon, code=2)
    assert ask("consent", tmp_path / "phone")["choice"]["epsilon"] == 2.5


def test_a_crowd_that_hides_nobody_is_said_to(tmp_path, say):
    path = tmp_path / "phone"
    terms = Terms("hamlet", len(ITEMS), FMFConfig(embedding_size=4), KReports(10, (Tier(2.5, 2),)),
                  Proxied("https://proxy.example", "x"))  # fmt: skip
    with CohortStore.create(path, [(7, "anna")]) as store:
        store.set_catalogue(ITEMS)
        store.set_choice(7, Choice(epsilon=2.5, max_reports=10))
        DeviceSession(store).agree(terms)
    more_rounds(path, 1)
    with CohortStore.open(path) as store:
        words = " ".join(of_store(store, 7, terms).lines())
    assert "So few users hide nobody at this ε" in words
