"""A8, A9 and A10: what UC-FedRec gives away of attributes, as printed and over a secure sum."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.attacks.suite import a08_attributes, a09_a10_filters
from sottovoce.attacks.suite import a08_attributes as attributes
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Direct, SecureSum
from sottovoce.core.masking import words_of
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import DataError, WrongSum
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")

N_USERS, N_ITEMS = 120, 40
TRAIN = random_world(N_USERS, N_ITEMS, 600, seed=4)
DRAW = np.random.default_rng(3)
LABELS = np.stack([DRAW.integers(0, 2, N_USERS), DRAW.integers(0, 4, N_USERS)], axis=1)
HIDES = DRAW.random((N_USERS, 2)) < 0.35
SETTINGS = UCConfig(
    embedding_size=6, local_epochs=3, pairs=8, item_rate=2.0, rounds=2, cooling=0.0,
    cohort_size=N_USERS, filters="two-layer",
    attributes=(
        FilterConfig("gender", ("female", "male"), (0.4, 0.6)),
        FilterConfig("age", ("young", "middle", "old", "very old"), (0.2, 0.3, 0.3, 0.2)),
    ),
)  # fmt: skip
BIAS, OF_SUM = a09_a10_filters.BIAS, a09_a10_filters.OF_SUM
CONSENT, ATTRIBUTES = a09_a10_filters.CONSENT, a08_attributes.ATTACK


pytestmark = pytest.mark.usefixtures("one_thread")


class All:
    """Keeps every message, more than a transcript does."""

    def __init__(self):
        self.seen = {}

    def on_message(self, party, message):
        self.seen.setdefault(party, {}).setdefault(message.round, []).append(message)


def played(link, release=None, filters="two-layer", heard=None):
    settings, release = replace(SETTINGS, filters=filters), release or Clipped()
    noisy = {"epsilon": release.epsilon} if release.epsilon else {"share_positives": 1.0}
    choices = [
        Choice(hidden_attributes=hidden, **noisy)
        for hidden in ((), ("gender",), ("age",), ("gender", "age"))
    ]
    users = np.arange(N_USERS)
    consent = Consent.of(users, choices, HIDES @ np.array([1, 2]), ("gender", "age"))
    made = Federation.build(
        settings, TRAIN, consent, release, Streams.from_seed(1), LABELS, link=link
    )
    heard = heard or All()
    made.run(message_observers=[heard])
    view = View(
        "server", seen_by(heard.seen, "server"), settings, release, link, N_ITEMS,
        made.server.items,
    )  # fmt: skip
    truth = Truth(
        TRAIN, TRAIN, consent.takes_part, consent.share_positives,
        {"gender": HIDES[:, 0], "age": HIDES[:, 1]},
        {"gender": LABELS[:, 0], "age": LABELS[:, 1]}, made.vectors(),
    )  # fmt: skip
    return view, truth


@pytest.mark.parametrize("filters", ["two-layer", "moments"])
def test_as_printed_the_server_reads_classes_and_who_hides_them(filters):
    """Asserted so that nobody takes it for protection."""
    view, truth = played(Direct(), filters=filters)
    found = BIAS.run(view, truth)
    assert BIAS.applies(view) == CONSENT.applies(view) == ""
    assert found.verdict == "broken"
    assert found.value > 0.95
    assert found.claims == int((~HIDES).sum(axis=0)[1]) or found.claims > 50
    hiding = CONSENT.run(view, truth)
    assert hiding.verdict == "broken"
    assert hiding.value == 1.0
    assert "age" in hiding.detail
    assert "opened no sum" in OF_SUM.applies(view)


@pytest.mark.parametrize("filters", ["two-layer", "moments"])
def test_over_a_secure_sum_neither_is_told(filters):
    view, truth = played(SecureSum(), filters=filters)
    for attack in (BIAS, OF_SUM, CONSENT):
        assert attack.applies(view) == ""
        found = attack.run(view, truth)
        assert found.verdict == "underpowered", found
        assert found.claims > 100


def test_what_a_transcript_keeps_of_a_secure_sum_is_enough():
    view, truth = played(SecureSum(), heard=Recorder())
    assert OF_SUM.run(view, truth).verdict == "underpowered"
    assert 0 < BIAS.run(view, truth).claims < N_USERS


def test_a_mask_of_nothing_is_caught(monkeypatch):
    """The broken control: devices send their updates bare, and both attacks read them."""
    from sottovoce.parties import device

    def bare_words(whole, seed, bits):
        return words_of(whole, bits)

    monkeypatch.setattr(device, "masked", bare_words)
    heard = All()
    with pytest.raises(WrongSum):  # the server notices that the masks do not add up
        played(SecureSum(), heard=heard)
    sent = [m for m in heard.seen["server"][0] if hasattr(m, "masked")]
    rounds = tuple(seen_by({"server": {0: sent}}, "server"))
    monkeypatch.undo()
    view, truth = played(SecureSum())
    bare = replace(view, rounds=rounds)
    assert BIAS.run(bare, truth).verdict == "broken"
    assert CONSENT.run(bare, truth).verdict == "broken"


def test_noise_on_the_whole_hides_both():
    view, truth = played(Direct(), Clipped(clip=4.0, norm="l1", epsilon=1.0))
    assert BIAS.run(view, truth).verdict == "underpowered"
    assert CONSENT.run(view, truth).verdict == "underpowered"


def test_views_without_filters_or_messages_are_not_attacked():
    view, truth = played(Direct())
    other, silent = replace(view, algorithm=FCFConfig()), replace(view, rounds=())
    for attack in (BIAS, CONSENT):
        assert "UC-FedRec" in attack.applies(other)
        assert "no message" in attack.applies(silent)
    assert "UC-FedRec" in OF_SUM.applies(other)
    unknown = {name: np.full(N_USERS, -1) for name in truth.labels}
    assert BIAS.run(view, replace(truth, labels=unknown)).verdict == "nothing to attack"
    open_hearted = {name: np.zeros(N_USERS, bool) for name in truth.hidden}
    assert CONSENT.run(view, replace(truth, hidden=open_hearted)).verdict == "nothing to attack"
    assert CONSENT.run(view, replace(truth, hidden={})).verdict == "nothing to attack"


# --- embeddings ----------------------------------------------------------------------------------


@pytest.fixture
def one_family(monkeypatch):
    """The attackers themselves are tested elsewhere; the fastest does here."""
    families = attributes._families

    def fastest(classes, users):
        return {"logistic regression": families(classes, users)["logistic regression"]}

    monkeypatch.setattr(attributes, "_families", fastest)


def embedded(strength, seed=0):
    """Embeddings that tell gender by so much, and nothing of age."""
    pytest.importorskip("sklearn")
    draw = np.random.default_rng(seed)
    n = 400
    labels = {"gender": draw.integers(0, 2, n), "age": draw.integers(0, 3, n)}
    labels["zip"] = draw.integers(0, 2, n)  # nobody was asked about it
    hidden = {name: draw.random(n) < 0.4 for name in ("gender", "age")}
    table = draw.normal(size=(n, 4)) + strength * labels["gender"][:, None] * [1, 0, 0, 0]
    train = random_world(n, 20, 500, seed=1)
    truth = Truth(
        train, train, np.ones(n, bool), np.ones(n, np.float32), hidden, labels,
        np.zeros((n, 4), np.float32),
    )  # fmt: skip
    view = View(
        "anyone", (), SETTINGS, Clipped(), Direct(), 20, np.zeros((20, 7), np.float32),
        {"representations": table},
    )  # fmt: skip
    return view, truth


@pytest.mark.usefixtures("one_family")
def test_the_worst_attribute_counts_and_the_others_are_named():
    found = ATTRIBUTES.run(*embedded(3.0))
    assert found.verdict == "broken"
    assert found.value > 0.9
    assert found.base_rate == 0.5
    assert "gender: learnt" in found.detail
    assert "age: no attacker is better than chance" in found.detail
    assert "zip" not in found.detail


@pytest.mark.usefixtures("one_family")
def test_embeddings_that_tell_nothing_hold():
    found = ATTRIBUTES.run(*embedded(0.0))
    assert found.verdict == "underpowered"
    assert found.claims > 100


def test_embeddings_that_nobody_got_are_not_attacked():
    view, truth = embedded(0.0)
    assert "stay on the devices" in ATTRIBUTES.applies(replace(view, own={}))
    assert ATTRIBUTES.applies(view) == ""
    few = {"gender": np.zeros(400, bool)}
    assert ATTRIBUTES.run(view, replace(truth, hidden=few)).verdict == "nothing to attack"
    short = replace(view, own={"representations": np.zeros((3, 4))})
    with pytest.raises(DataError, match="row"):
        ATTRIBUTES.run(short, truth)
