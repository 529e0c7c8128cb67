"""`sottovoce device ...` with data owners: what a user reads, permits, sends and gets."""

import functools
import json

import pytest
from fake_server import Reply
from user_world import CATALOGUE, world

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.stores.user import UserStore


@pytest.fixture
def here(tmp_path):
    with world(tmp_path) as found:
        yield found


@pytest.fixture
def user(sottovoce_):
    return functools.partial(sottovoce_, "device")


@pytest.fixture
def ask(user):
    """The same as JSON."""

    def run(command, *arguments, code=0):
        got, out, err = user(command, *arguments, "--json")
        assert got == code, err
        assert out.count("\n") == 1
        return json.loads(out)

    return run


@pytest.fixture
def store(here, tmp_path, ask):
    here.invitation().write(tmp_path / "invitation.json")
    ask("join", tmp_path / "store", tmp_path / "invitation.json")
    return tmp_path / "store"


def table(path, *lines, header="item,rating,timestamp"):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_joining_reads_and_sends_nothing(here, store, user, tmp_path):
    assert [(r.method, r.path, r.body) for r in here.server.requests] == [
        ("GET", "/v1/directory", b"")
    ]
    code, out, _ = user("join", store, tmp_path / "invitation.json")
    assert code == 0
    assert "alpha and beta" in out
    assert "Nothing leaves until you take part" in out


def test_joining_goes_on_where_the_orchestrator_was_away(here, tmp_path, user, ask):
    here.invitation().write(tmp_path / "i.json")
    here.away = True
    code, _, err = user("join", tmp_path / "s", tmp_path / "i.json")
    assert code == 7
    assert err.count("\n") == 1
    assert "call this again" in err
    here.away = False
    assert ask("join", tmp_path / "s", tmp_path / "i.json")["owners"] == ["alpha", "beta"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"protocol": 1}'])
def test_a_bad_invitation_is_one_sentence_and_makes_nothing(tmp_path, user, content):
    (tmp_path / "i.json").write_text(content)
    code, _, err = user("join", tmp_path / "s", tmp_path / "i.json")
    assert (code, err.count("\n")) == (2, 1)
    assert not (tmp_path / "s").exists()


def test_consent_says_in_plain_words_what_each_owner_would_read(store, user):
    _, out, _ = user("consent", store)
    assert "You do not take part: nothing leaves" in out
    for name in ("alpha", "beta"):
        assert f"The data owner {name}: Reads in full what you do with its things" in out
    assert "The orchestrator: " in out
    assert "It can work out whether you liked them." in out
    assert f"To take part: sottovoce device consent {store} --take-part" in out
    _, out, _ = user("consent", store, "--take-part", "--refuse", "beta")
    assert "You take part." in out
    assert "The data owner alpha: Reads in full" in out
    assert "The data owner beta: Is refused and told nothing." in out


def test_consent_is_kept_and_changed_piece_by_piece(store, ask):
    assert ask("consent", store)["takes_part"] is False
    ask("consent", store, "--take-part", "--refuse", "beta")
    found = ask("consent", store, "--refuse", "alpha")
    assert (found["takes_part"], found["refused_owners"]) == (True, ["beta", "alpha"])
    found = ask("consent", store, "--allow", "beta")
    assert found["refused_owners"] == ["alpha"]
    assert [o["reads"] for o in found["owners"]] == [False, True]
    assert len(found["records"]) == 3
    wrong = ask("consent", store, "--refuse", "gamma", code=3)
    assert "there are: alpha, beta" in wrong["error"]
    ask("consent", store, "--refuse", "beta", "--allow", "beta", code=2)
    assert ask("consent", store)["refused_owners"] == ["alpha"]


def test_a_file_goes_to_its_owners_once(here, store, ask, tmp_path):
    file = table(tmp_path / "r.csv", "film 4,5,30", "film 0,2.9,10", "film 11,1,20")
    refused = ask("send", store, file, code=5)
    assert "--take-part" in refused["error"]
    assert not any(place.bodies for place in here.owners.values())
    ask("consent", store, "--take-part")
    found = ask("send", store, file)
    assert found["said"] == {"messages": 3, "known": 0, "at_home": 1}
    assert (found["arrived"], found["waiting"], found["troubles"]) == (3, 0, {})
    # In the order of time: film 0 was negative, film 4 positive.
    stream = here.owners["alpha"].stream(7)
    assert (stream.negatives, stream.positives) == ((0,), (4,))
    again = ask("send", store, file)
    assert again["said"]["known"] == 3
    assert again["arrived"] == 0


@pytest.mark.parametrize(
    ("header", "line", "words"),
    [
        ("item,rating,timestamp", "film 99,5,1", "line 3: 'film 99' is not in"),
        ("item,rating,timestamp", "film 1,good,1", "line 3: the rating 'good'"),
        ("item,rating,timestamp", "film 1,5,soon", "line 3: the timestamp 'soon'"),
        ("item,positive,timestamp", "film 1,maybe,1", "positive must be 1 or 0"),
        ("item,rating", "film 1,5", "no column 'timestamp'"),
        ("item,timestamp", "film 1,5", "neither a column 'rating' nor"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_taken(store, ask, tmp_path, header, line, words):
    ask("consent", store, "--take-part")
    good = line.replace("film 99", "film 1").replace("good", "5").replace("soon", "1")
    file = table(tmp_path / "r.csv", good.replace("maybe", "1"), line, header=header)
    assert words in ask("send", store, file, code=3)["error"]
    assert ask("status", store)["seen"] == 0


def test_an_interaction_that_nobody_may_read_stays_at_home(here, store, user, ask):
    code, out, _ = user("interact", store, "film 1", "--liked")
    assert code == 0
    assert "nothing leaves" in out
    ask("consent", store, "--take-part", "--refuse", "alpha")
    ask("interact", store, "film 0", "--disliked")
    assert not any(place.bodies for place in here.owners.values())
    found = ask("interact", store, "film 4", "--liked", "--time", 5)
    assert found["delivery"]["arrived"] == 1
    assert here.owners["alpha"].bodies == []
    assert "--liked or --disliked" in ask("interact", store, "film 4", code=2)["error"]
    assert "catalogue" in ask("interact", store, "film 99", "--liked", code=3)["error"]


def test_an_interaction_waits_for_the_process_that_sends(store, user, ask):
    ask("consent", store, "--take-part")
    with UserStore.open(store, agent=True):
        code, out, _ = user("interact", store, "film 0", "--liked")
        assert code == 0
        assert "film 0: waits for the program that sends from this store now." in out
        assert "in use" in ask("send", store, code=7)["error"]
    assert ask("send", store)["arrived"] == 1


def test_show_tells_what_waits_and_what_left(here, store, user, ask, tmp_path):
    ask("consent", store, "--take-part")
    here.owners["beta"].owner.close()
    here.owners["beta"].server.answer = lambda request: Reply(404)
    file = table(tmp_path / "r.csv", "film 0,5,1", "film 4,1,2", "film 0,1,0")
    found = ask("send", store, file)
    assert (found["arrived"], found["waiting"]) == (3, 1)
    assert "no data owner of Sottovoce" in found["troubles"]["beta"]
    shown = ask("status", store)
    alpha, beta = shown["owners"]
    assert (alpha["arrived"], alpha["interactions_left"], alpha["waiting"]) == (3, 3, 0)
    assert alpha["bytes"] == sum(len(body) for _, body in here.owners["alpha"].bodies)
    assert alpha["epsilon"] is None  # no bound
    assert (beta["waiting"] + beta["unanswered"], beta["interactions_left"]) == (1, 0)
    assert shown["number"] == 7
    _, out, _ = user("status", store)
    assert "∞" not in out
    assert "alpha: Was told 3 things that you did.\n" in out
    assert "beta: Was told 0 things that you did. One message " in out
    assert "In this federation you are number 7." in out
    # She changes her mind: what waits does not leave.
    assert ask("consent", store, "--refuse", "beta")["dropped"] == 1
    assert ask("status", store)["owners"][1]["why"] == {"consent": 1}


def test_recommendations_are_without_what_she_has_seen(here, store, user, ask):
    assert "take part" in ask("recommend", store, code=5)["error"]
    ask("consent", store, "--take-part")
    ask("interact", store, "film 0", "--liked")
    found = ask("recommend", store, "-n", 2)["recommendations"]
    assert [row["item"] for row in found] == list(CATALOGUE[1:3])
    code, out, _ = user("recommend", store, "-n", 2)
    assert code == 0
    assert "film 1" in out
    assert "at least 1" in ask("recommend", store, "-n", 0, code=2)["error"]


def test_where_owners_send_sums_it_is_said_what_refusing_one_of_them_tells(tmp_path, user, ask):
    sums = DRIFTConfig(release="aggregated", min_users=25)
    with world(tmp_path, secure=False, settings=sums) as here:
        here.invitation().write(tmp_path / "invitation.json")
        ask("join", tmp_path / "store", tmp_path / "invitation.json")
        _, said, _ = user("consent", tmp_path / "store", "--take-part")
        assert "The orchestrator: Sees sums of what was learnt from 25 people or more." in said
        assert "difference" not in said
        assert "whether you liked them" not in said
        _, said, _ = user("consent", tmp_path / "store", "--refuse", "beta")
        assert "some who hold things of beta, and not of others. The difference tells much" in said
        _, said, _ = user("consent", tmp_path / "store", "--refuse", "alpha")
        assert "difference" not in said.lower(), "nobody is told anything"


def test_leaving_asks_first_and_then_is_done(here, store, user, ask):
    ask("consent", store, "--take-part")
    ask("interact", store, "film 4", "--liked")
    assert "--yes" in ask("leave", store, code=2)["error"]
    assert "there are: alpha, beta" in ask("leave", store, "--owner", "x", "--yes", code=3)["error"]
    found = ask("leave", store, "--owner", "alpha", "--yes")
    assert found["asked_to_forget"] == ["alpha"]
    assert here.owners["alpha"].owner.counts()["users"] == 0
    assert here.owners["beta"].owner.counts()["users"] == 1
    code, out, _ = user("leave", store, "--yes")
    assert code == 0
    assert "Asked to forget you: beta" in out
    assert "You have left the federation" in out
    assert here.left == [7]
    assert "joins it anew" in ask("consent", store, "--take-part", code=2)["error"]
    assert "you have left this federation" in ask("recommend", store, code=5)["error"]
    assert "Nobody has anything of you to forget." in user("leave", store, "--yes")[1]


def test_a_stream_that_has_just_begun_can_end_at_once(here, store, ask, tmp_path):
    ask("consent", store, "--take-part")
    file = table(tmp_path / "r.csv", "film 0,1,1", "film 1,5,2")
    assert ask("send", store, file, "--end")["arrived"] == 3
    assert here.owners["alpha"].owner.counts()["waiting"] == 1


def test_no_store_is_one_sentence(tmp_path, ask):
    for command in ("consent", "send", "status", "recommend"):
        assert "sottovoce device init" in ask(command, tmp_path / "none", code=7)["error"]


def test_a_choice_that_means_nothing_to_data_owners_is_refused(store, ask):
    assert "--refuse" in ask("consent", store, "--epsilon", "1", code=2)["error"]
    assert "--refuse" in ask("consent", store, "--hide", "age", code=2)["error"]
    assert ask("consent", store)["records"] == []


@pytest.mark.parametrize("command", ["agree", "attributes"])
def test_what_only_devices_have_is_one_sentence(store, ask, command):
    assert "data owners" in ask(command, store, code=2)["error"]


def test_a_devices_store_knows_no_data_owners(ask, tmp_path):
    ask("init", tmp_path / "device")
    for command, *more in (["send"], ["interact", "x", "--liked"]):
        assert "serve device" in ask(command, tmp_path / "device", *more, code=2)["error"]
    left = ask("leave", tmp_path / "device", "--owner", "x", "--yes", code=2)
    assert "no data owners" in left["error"]
    assert "no data owners" in ask("consent", tmp_path / "device", "--refuse", "x", code=2)["error"]


def test_what_is_imported_waits_until_it_is_sent(here, store, ask, user, tmp_path):
    file = table(tmp_path / "r.csv", "film 0,5,1", "film 4,1,2")
    assert ask("import", store, file)["said"] == {"messages": 0, "known": 0, "at_home": 2}
    ask("consent", store, "--take-part")
    assert ask("import", store, file)["said"]["messages"] == 3
    assert not any(place.bodies for place in here.owners.values())
    assert "3 were told before" in user("import", store, file)[1]
    assert ask("send", store)["arrived"] == 3


def test_the_ledger_and_the_export_have_all_that_left(here, store, ask, user, tmp_path):
    assert ask("ledger", store)["lines"] == []
    ask("consent", store, "--take-part", "--refuse", "beta")
    ask("interact", store, "film 0", "--liked")
    found = ask("ledger", store)
    assert found["totals"]["interactions"] == 1
    assert found["totals"]["epsilon"] is None
    assert {line["party"] for line in found["lines"]} == {"orchestrator", "alpha"}
    sent = sum(line["bytes"] for line in found["lines"] if line["party"] == "alpha")
    assert sent == sum(len(body) for _, body in here.owners["alpha"].bodies)
    assert user("ledger", store, "--csv")[1].count("\n") == 1 + len(found["lines"])
    told = user("ledger", store)[1]
    assert "Data owners have read one thing that you did." in told
    assert "Things that you did" in told
    assert "A message that this device is there" in told
    ask("export", store, tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds.count("release") == len(found["lines"])
    assert [line["item"] for line in lines if line["kind"] == "interaction"] == ["film 0"]
    assert [line["refused_owners"] for line in lines if line["kind"] == "choice"] == [["beta"]]
    assert [line["state"] for line in lines if line["kind"] == "message"] == ["arrived"]
