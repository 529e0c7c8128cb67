"""`sottovoce device` where attributes can be hidden: what is told, hidden, shown and exported."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.consent import Choice
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

ITEMS = [(f"venue-{i}", f"Venue number {i}") for i in range(12)]
GENDER = FilterConfig("gender", ("female", "male"), (0.3, 0.7))
AGE = FilterConfig("age", ("young", "middle", "old"), (0.2, 0.3, 0.5))
SETTINGS = UCConfig(embedding_size=5, local_epochs=1, pairs=4, attributes=(GENDER, AGE))
NOISY = Clipped(clip=1.0, norm="l1", epsilon=2.0)
SHARING = Choice(share_positives=1.0)


def terms_of(release=None, settings=SETTINGS):
    pytest.importorskip("torch")
    return Terms.of("town", len(ITEMS), settings, 0, release or Clipped())


def joined(path, terms, choice=SHARING):
    """A store in a federation with these terms."""
    with CohortStore.create(path, [(7, "anna")]) as store:
        store.set_catalogue(ITEMS)
        store.add_history(7, ["venue-1", "venue-2", "venue-3"])
        store.set_choice(7, choice)
        DeviceSession(store).agree(terms)
    return path


def states(told):
    return {line["name"]: line["words"].split(":")[0] for line in told["attributes"]}


# --- telling --------------------------------------------------------------------------------------


def test_attributes_are_told_shown_and_forgotten(tmp_path, ask, say):
    path = tmp_path / "phone"
    ask("init", path, "--name", "anna")
    assert "knows nothing of anna" in say("attributes", path)
    told = ask("attributes", path, "gender=female", "home town= A=B ")
    assert told["changed"]
    assert {line["name"]: line["value"] for line in told["attributes"]} == {
        "gender": "female",
        "home town": "A=B",
    }
    shown = say("attributes", path)
    assert "female" in shown
    assert "not used by anything" in shown  # there is no filter
    assert not ask("attributes", path)["changed"]
    told = ask("attributes", path, "gender=anything", "--forget", "home town")
    assert [(line["name"], line["value"]) for line in told["attributes"]] == [
        ("gender", "anything")
    ]


def test_values_must_be_classes_once_the_terms_are_known(tmp_path, ask, say):
    path = joined(tmp_path / "phone", terms_of())
    error = say("attributes", path, "gender=canary", code=2)
    assert "no class of gender in this federation, which has female, male" in error
    assert "canary" not in error
    assert ask("attributes", path)["attributes"][0]["value"] is None
    told = ask("attributes", path, "gender=male", "income=high")
    assert states(told) == {
        "gender": "shared",
        "age": "not known",
        "income": "no filter",
    }
    shown = say("attributes", path)
    assert "age: young, middle, old." in shown
    ask("consent", path, "--hide", "gender")
    assert states(ask("attributes", path))["gender"] == "hidden"


def test_a_value_of_another_federation_counts_as_hidden(tmp_path, ask):
    path = joined(tmp_path / "phone", terms_of())
    with CohortStore.open(path) as store:
        store.set_attribute(7, "gender", "f")
    told = ask("attributes", path)
    assert states(told)["gender"] == "no class of it"


def test_many_classes_are_named_as_far_as_they_can_be_read(tmp_path, say):
    many = FilterConfig("town", tuple(f"town {k}" for k in range(453)), (1.0,) * 453)
    path = joined(tmp_path / "phone", terms_of(settings=replace(SETTINGS, attributes=(many,))))
    error = say("attributes", path, "town=nowhere", code=2)
    assert "town 0, town 1" in error
    assert "(453 in all)" in error
    assert len(error) < 1000
    assert len(say("agree", path)) < 5000


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["canary"], "told as NAME=VALUE"),
        (["gender="], "told as NAME=VALUE"),
        (["=canary"], "told as NAME=VALUE"),
        (["gender=canary", "gender=male"], "'gender' is named twice"),
        (["gender=canary", "--forget", "gender"], "'gender' is named twice"),
        (["--forget", "age"], "knows no 'age' that it could forget; it knows gender"),
    ],
)
def test_wrong_words_change_nothing(tmp_path, ask, say, words, error):
    path = tmp_path / "phone"
    ask("init", path)
    ask("attributes", path, "gender=first")
    told = say("attributes", path, *words, code=2)
    assert error in told
    assert "canary" not in told
    assert "first" not in told
    assert [line["value"] for line in ask("attributes", path)["attributes"]] == ["first"]


# --- hiding ---------------------------------------------------------------------------------------


def test_hiding_and_revealing(tmp_path, ask):
    path = joined(tmp_path / "phone", terms_of())
    told = ask("consent", path, "--hide", "gender", "--hide", "age", "--strength", "0.7")
    assert told["choice"]["hidden_attributes"] == ["gender", "age"]
    assert told["choice"]["strength"] == 0.7
    assert "hides gender, age with strength 0.7" in told["words"]
    assert told["choice"]["share_positives"] == 1.0  # as it was
    assert ask("consent", path, "--hide", "age")["choice"]["hidden_attributes"] == ["gender", "age"]
    assert "hides age with strength 0.7" in ask("consent", path, "--reveal", "gender")["words"]
    told = ask("consent", path)
    assert not told["changed"]
    assert [r["hidden_attributes"] for r in told["records"]] == [[], ["gender", "age"], ["age"]]
    assert "strength" not in ask("consent", path, "--reveal", "age")["words"]


def test_each_attribute_may_have_its_own_strength(tmp_path, ask):
    path = joined(tmp_path / "phone", terms_of())
    told = ask("consent", path, "--hide", "gender", "--hide", "age", "--strength", "gender=0.8")
    assert told["words"].endswith("hides gender with strength 0.8, age with strength 0.5")
    assert ask("consent", path, "--strength", "age=0.3")["choice"]["strengths"] == [
        ["age", 0.3],
        ["gender", 0.8],
    ]
    with CohortStore.open(path, readonly=True) as store:
        assert store.choices().strength_of(["gender", "age"]).tolist() == [
            [pytest.approx(0.8), pytest.approx(0.3)]
        ]
    told = ask("consent", path, "--strength", "0.6")  # a number is for all
    assert told["words"].endswith("hides gender, age with strength 0.6")


def test_hiding_in_a_trained_model_is_said_and_on_record(tmp_path, ask, say):
    """With the first model there is a filter that tells nothing; without one, nothing to move."""
    terms = terms_of()
    path = joined(tmp_path / "phone", terms)
    assert "from the first round on" in say("consent", path, "--hide", "gender")
    assert ask("ledger", path)["hidings"] == []
    with CohortStore.open(path) as store:
        session, stream = DeviceSession(store), Streams.from_seed(1)
        items = terms.build().server_init(len(ITEMS), stream).copy()
        items[len(ITEMS) :] = stream.child("told").normal(np.arange(len(items) - len(ITEMS)), 6)
        session.keep_model(ModelView(9, items.astype(np.float32)))
    told = ask("consent", path, "--hide", "age")
    assert told["hidden"]["attributes"] == ["age"]
    assert told["hidden"]["round"] == 9
    assert told["hidden"]["after"] <= told["hidden"]["before"]
    assert "This takes nothing back." in " ".join(told["at_once"])
    (line,) = ask("ledger", path)["hidings"]
    assert {**line, "when": 0} == {"when": 0, **told["hidden"]}
    assert "age: your device moved what it has learnt" in say("ledger", path)
    assert "hidden" in ask("consent", path)
    assert ask("consent", path)["hidden"] is None


def test_a_filter_out_of_order_keeps_nobody_from_hiding(tmp_path, say, ask):
    terms = terms_of()
    path = joined(tmp_path / "phone", terms)
    with CohortStore.open(path) as store:
        items = terms.build().server_init(len(ITEMS), Streams.from_seed(1)).copy()
        items[len(ITEMS) :, :-1] = -3e38
        DeviceSession(store).keep_model(ModelView(9, items))
    told = say("consent", path, "--hide", "gender")
    assert "what is published about gender is out of order. It is hidden all the same" in told
    assert "moved what it has learnt" not in told
    assert ask("consent", path)["choice"]["hidden_attributes"] == ["gender"]
    (line,) = ask("ledger", path)["hidings"]
    assert (line["moved"], line["reason"]) == (0.0, "the filter gives no number")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--hide", "income"], "no filter for 'income', so that it cannot be hidden; it has "
         "filters for gender, age"),
        (["--reveal", "age"], "'age' is not hidden; hidden are: gender"),
        (["--hide", "age", "--reveal", "age"], "choose one of --hide age and --reveal age"),
        (["--hide", ""], "needs the name"),
        (["--strength", "1"], "strength must be below 1"),
        (["--strength", "age=1"], "strength of 'age' must be a number from 0 to below 1, not 1.0"),
        (["--strength", "strong"], "--strength takes a number from 0 to below 1, or NAME=NUMBER"),
        (["--strength", "=0.5"], "--strength takes a number from 0 to below 1, or NAME=NUMBER"),
        (["--strength", "income=0.5"], "no filter for 'income', so that --strength cannot be for"),
        (["--strength", "-0.1"], "strength must lie in [0, 1]"),
    ],
)  # fmt: skip
def test_what_cannot_be_hidden_is_told(tmp_path, ask, say, words, error):
    path = joined(tmp_path / "phone", terms_of())
    ask("consent", path, "--hide", "gender")
    assert error in say("consent", path, *words, code=2)
    assert ask("consent", path)["choice"]["hidden_attributes"] == ["gender"]


def test_a_federation_without_filters_says_so(tmp_path, ask, say):
    terms = Terms.of("town", len(ITEMS), FPLConfig(embedding_size=3), 4, ShareFraction())
    path = joined(tmp_path / "phone", terms)
    assert "it has filters for none" in say("consent", path, "--hide", "age", code=2)
    assert "filter" not in one_text(" ".join(ask("status", path)["what_leaves"]))


def test_hiding_before_the_terms_are_known_holds_and_may_stop_everything(tmp_path, ask):
    path = tmp_path / "phone"
    ask("init", path)
    told = ask("consent", path, "--take-part", "--share-positives", "1", "--hide", "income")
    assert told["choice"]["hidden_attributes"] == ["income"]
    with CohortStore.open(path) as store:
        store.set_catalogue(ITEMS)
        store.add_history(int(store.users[0]), ["venue-1"])
        hosted, terms = DeviceSession(store), terms_of()
        hosted.agree(terms)
        model = ModelView(0, terms.build().server_init(len(ITEMS), Streams.from_seed(1)))
        with pytest.raises(ConsentError, match="income"):
            hosted.prepare(model, 0, summed=False)
    means = " ".join(ask("consent", path)["means"])
    assert "Nobody here can hide income. Choose --reveal income" in means
    (means,) = ask("consent", path, "--reveal", "income")["means"]
    assert means == "Nothing limits what this tells."


# --- what leaves, in words ------------------------------------------------------------------------


def one_text(told):
    return " ".join(told.split())


@pytest.fixture
def leaves(ask):
    """Who sees what of a store, as one text."""
    return lambda command, path: " ".join(ask(command, path)["what_leaves"])


def test_the_terms_say_what_leaves_and_what_it_tells(tmp_path, leaves, ask, say):
    path = joined(tmp_path / "phone", terms_of())
    ask("attributes", path, "gender=male")
    ask("consent", path, "--hide", "age")
    for told in (leaves("agree", path), leaves("status", path)):
        assert "Sees rows by name. It can work out what you have" in told
        assert "Can work out what you do not hide about yourself." in told
        assert "Sees for what about you nothing comes: you hide it, or have not told it." in told
    standing = {one["name"]: one["words"] for one in ask("status", path)["attributes"]}
    assert standing == {"gender": "shared: trains its filter", "age": "hidden: trains nothing"}
    assert "male" not in say("status", path)
    assert "male" not in json.dumps(ask("status", path)["attributes"])


def test_noise_and_a_model_without_filters_have_other_words(tmp_path, leaves):
    values, hidden = "do not hide about yourself", "about you nothing comes"
    noisy = leaves("agree", joined(tmp_path / "noisy", terms_of(NOISY)))
    assert "Sees your message with noise." in noisy
    marked = terms_of(replace(NOISY, hiding_epsilon=1.0))
    shown = "that you hide something about yourself"
    assert shown in leaves("agree", joined(tmp_path / "marked", marked))
    bare = terms_of(settings=replace(SETTINGS, attributes=()))
    plain = leaves("agree", joined(tmp_path / "bare", bare))
    for told in (noisy, plain):
        assert not any(words in told for words in (values, hidden, shown))


def test_what_a_choice_means_under_each_release(tmp_path, ask):
    exact = joined(tmp_path / "exact", terms_of())
    open_to_all = ["Nothing limits what this tells."]
    assert ask("consent", exact)["means"] == open_to_all
    assert ask("consent", exact, "--share-positives", "0.5")["means"] == open_to_all
    for words, line in (
        (["--share-positives", "1", "--epsilon", "1"], "adds no noise"),
        (["--epsilon", "0", "--total-epsilon", "3"], "Choose --total-epsilon inf"),
    ):
        told = " ".join(ask("consent", exact, *words)["means"])
        assert line in told
        assert "nothing would leave" in told
    noisy = joined(tmp_path / "noisy", terms_of(NOISY), Choice())
    assert ask("consent", noisy)["means"][1] == "Choose --epsilon 2."
    told = ask("consent", noisy, "--epsilon", "2", "--total-epsilon", "7")
    assert told["words"] == (
        "takes part, accepts ε ≤ 2 for what leaves with noise; no more than ε = 7 over all rounds "
        "together"
    )
    assert told["round_cost"] == 2.0
    assert told["means"] == [
        "A round uses 2. What is used never comes back.",
        "Your limit of 7 lasts for 3 more rounds.",
    ]
    assert ask("consent", noisy, "--epsilon", "0.5")["round_cost"] == 0.5  # by more noise
    assert ask("consent", noisy, "--reports", "3")["means"][1] == "Choose --reports 0."
