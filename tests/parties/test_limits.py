"""An owner's limit on ε where sums have noise, at a store: after the last round with room nothing
leaves, whatever is restarted or agreed to."""

import json
import math

import numpy as np
import pytest

from sottovoce.algorithms.fcf import FCFConfig
from sottovoce.algorithms.fpl import FPLConfig
from sottovoce.algorithms.uc_config import UCConfig
from sottovoce.cli import call
from sottovoce.consent import Choice
from sottovoce.errors import ConsentError
from sottovoce.links import Direct, SecureSum
from sottovoce.messages import ModelView
from sottovoce.parties.hosted import Hosted
from sottovoce.parties.store import CohortStore
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.terms import Terms

N_ITEMS, ME, NOISE = 20, 5, 4.0
ITEMS = [(str(i), f"Venue number {i}") for i in range(N_ITEMS)]
KINDS = {
    "fpl": (FPLConfig(embedding_size=5, triples=3), ShareFraction()),
    "fcf": (FCFConfig(embedding_size=5), Everything()),
    "uc": (UCConfig(embedding_size=5, local_epochs=1, pairs=4), Clipped()),
}


def noisy(noise=NOISE, kind="fpl", federation="town"):
    """Terms whose sums have noise; none where it is 0."""
    settings, release = KINDS[kind]
    link = SecureSum(min_devices=5, clip=1.0 if noise else 0.0, noise=noise)
    return Terms(federation, N_ITEMS, settings, release, link)


def pack(terms, attempt, view, reports, seeds):
    return reports.masked.tobytes() + seeds.seeds[0]


def phone(path, limit, terms):
    store = CohortStore.create(path, [(ME, "me")], root_key=77)
    store.set_catalogue(ITEMS)
    store.add_history(ME, ["1", "4", "7"])
    store.set_choice(ME, Choice(share_positives=1.0, total_epsilon=limit))
    hosted = Hosted(store, pack=pack)
    hosted.agree(terms)
    return hosted


def view(hosted, round):
    rng, terms = np.random.default_rng(round), hosted.terms
    return ModelView(round, rng.normal(0, 0.1, (terms.n_rows, terms.width)).astype(np.float32))


def prepared(hosted, round, attempt=0):
    return hosted.prepare(view(hosted, round), attempt, summed=False)


def send(hosted, round, attempt=0):
    hosted.leaving(prepared(hosted, round, attempt))


def reopened(hosted):
    path = hosted.store.path
    hosted.store.close()
    return Hosted(CohortStore.open(path, agent=True), pack=pack)


def move(hosted, terms):
    """The server offers other terms and the owner agrees."""
    with pytest.raises(ConsentError, match="changed the terms"):
        hosted.agree(terms)
    hosted.accept()


# --- where it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_after_the_last_round_with_room_nothing_leaves_also_after_a_restart(tmp_path, kind):
    if kind == "uc":
        pytest.importorskip("torch")
    hosted = phone(tmp_path / "s", price(NOISE, 3), noisy(kind=kind))
    send(hosted, 0)
    hosted.arrived(0, 0)
    send(hosted, 1)
    hosted = reopened(hosted)
    hosted.refused(1, 0, "late")  # it has left all the same
    send(hosted, 2)
    hosted.arrived(2, 0)
    for round in (3, 4):
        with pytest.raises(ConsentError, match="the limit on ε is reached"):
            prepared(hosted, round)
        hosted = reopened(hosted)
    assert hosted.store.ledger().num_rows == 3
    hosted.store.close()


def test_every_attempt_that_left_counts_and_one_that_did_not_is_free(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 2), noisy())
    prepared(hosted, 0)
    hosted.follow(0, 1)  # given up before anything has left
    send(hosted, 0, attempt=1)
    again = prepared(hosted, 0, attempt=1)
    hosted.leaving(again)  # the same bytes once more
    send(hosted, 0, attempt=2)
    with pytest.raises(ConsentError, match="limit"):
        prepared(hosted, 1)
    hosted.store.close()


def test_the_limit_is_read_again_before_the_first_byte_leaves(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 1) + 0.5, noisy())
    ready = prepared(hosted, 0)
    with hosted.store.file.transaction():  # as if another process had let something leave
        hosted.store.file.write("INSERT INTO spent VALUES (?, 1.0, 0, 1)", [ME])
    with pytest.raises(ConsentError, match="more than the limit leaves"):
        hosted.leaving(ready)
    assert hosted.store.ledger().num_rows == 0
    hosted.store.close()


def test_a_higher_limit_goes_on(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 1), noisy())
    send(hosted, 0)
    hosted.arrived(0, 0)
    with pytest.raises(ConsentError, match="limit"):
        prepared(hosted, 1)
    hosted.store.set_choice(ME, Choice(share_positives=1.0, total_epsilon=price(NOISE, 2)))
    send(hosted, 1)
    hosted.arrived(1, 0)
    with pytest.raises(ConsentError, match="limit"):
        prepared(hosted, 2)
    hosted.store.close()


# --- other terms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("then", "now"), [(2.0, 8.0), (8.0, 2.0), (3.0, 4.1)])
def test_rounds_under_other_noise_count_by_what_they_told(tmp_path, then, now):
    """Under whatever noise, in all no more leaves than the limit permits, and no round that fits is
    refused, but for what rounding up to whole rounds costs."""
    limit = price(2.0, 3)
    hosted = phone(tmp_path / "s", limit, noisy(then))
    for round in range(2):
        send(hosted, round)
        hosted.arrived(round, 0)
    move(hosted, noisy(now))

    def cost(rounds):
        """Of all together: squares of 1/noise add up."""
        return price(1 / math.sqrt(2 / then**2 + rounds / now**2), 1)

    fitting = max(n for n in range(200) if cost(n) <= limit * (1 + 1e-9))
    for round in range(fitting - 1):
        send(hosted, round)
        hosted.arrived(round, 0)
    with pytest.raises(ConsentError, match="limit"):  # noqa: PT012
        for round in (fitting - 1, fitting):
            send(hosted, round)
            hosted.arrived(round, 0)
    hosted.store.close()


def test_what_left_without_noise_counts_as_a_round_each(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 3), noisy(0.0))
    for round in range(2):
        send(hosted, round)
        hosted.arrived(round, 0)
    move(hosted, noisy(federation="village"))
    send(hosted, 0)
    hosted.arrived(0, 0)
    with pytest.raises(ConsentError, match="limit"):
        prepared(hosted, 1)
    hosted.store.close()


def test_without_noise_a_limit_stops_nothing_as_ever(tmp_path):
    direct = Terms("town", N_ITEMS, *KINDS["fpl"], Direct())
    for name, terms in (("sum", noisy(0.0)), ("direct", direct)):
        hosted = phone(tmp_path / name, 0.1, terms)
        for round in range(3):
            send(hosted, round)
            hosted.arrived(round, 0)
        hosted.store.close()


# --- words ----------------------------------------------------------------------------------------


def told(capsys, *arguments):
    capsys.readouterr()
    assert call(["device", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_words_say_why_and_how_to_go_on(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 1), noisy())
    send(hosted, 0)
    hosted.arrived(0, 0)
    with pytest.raises(ConsentError) as caught:
        prepared(hosted, 1)
    words = str(caught.value)
    assert f"another would make it {rounded_up(price(NOISE, 2)):.10g}" in words
    assert f"{price(NOISE, 1):.10g} is permitted" in words
    assert "nothing leaves any more" in words
    assert f"sottovoce device consent {hosted.store.path} --total-epsilon" in words
    assert "\n" not in words
    hosted.store.close()


def test_consent_and_status_say_how_many_rounds_are_left(tmp_path, capsys):
    path, most = tmp_path / "s", f"{price(NOISE, 3):.12g}"
    hosted = phone(path, math.inf, noisy())
    words = told(capsys, "consent", path)
    assert f"0 rounds of noisy sums cost ε = 0, another makes it {price(NOISE, 1):.2f}" in words
    assert "There is no limit in all: set one with --total-epsilon." in words
    words = told(capsys, "consent", path, "--total-epsilon", most)
    assert f"no more than ε = {float(most):.10g} over all rounds of noisy sums together" in words
    assert "in all has room for 3 more rounds." in words
    for round, left in enumerate(("2 more rounds.", "1 more round.")):
        send(hosted, round)
        hosted.arrived(round, 0)
        for command in ("consent", "status"):
            assert f"in all has room for {left}" in told(capsys, command, path)
    send(hosted, 2)
    for command in ("consent", "status"):
        words = told(capsys, command, path)
        assert "has no room for another round: nothing leaves; --total-epsilon raises it." in words
    assert call(["device", "status", str(path), "--json"]) == 0
    sums = json.loads(capsys.readouterr().out)["sums"]
    assert (sums["rounds"], sums["rounds_left"], sums["delta"]) == (3, 0, 1e-6)
    assert sums["spent"] == price(NOISE, 3)
    assert sums["after_next_round"] == price(NOISE, 4) > sums["limit"]
    hosted.store.close()


def test_where_nothing_bounds_what_leaves_the_words_say_so(tmp_path, capsys):
    hosted = phone(tmp_path / "s", 2.0, noisy(0.0))
    words = told(capsys, "consent", tmp_path / "s")
    assert "No ε bounds what leaves here, so that the limit of 2 in all stops nothing." in words
    assert "of noisy sums cost" not in told(capsys, "status", tmp_path / "s")
    hosted.store.close()
