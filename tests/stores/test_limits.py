"""An owner's limit on ε where sums have noise, at a store: after the last round with room nothing
leaves, whatever is restarted or agreed to."""

import json
import math

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.cli import call
from sottovoce.core.consent import Choice
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError, MessageError
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.central import MOST_ROUNDS, price
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.services.agent.shuffled import may_report
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

N_ITEMS, ME, NOISE = 20, 5, 4.0
ITEMS = [(str(i), f"Venue number {i}") for i in range(N_ITEMS)]
KINDS = {
    "fpl": (FPLConfig(embedding_size=5, triples=3), ShareFraction()),
    "fcf": (FCFConfig(embedding_size=5), Everything()),
    "uc": (UCConfig(embedding_size=5, local_epochs=1, pairs=4), Clipped()),
}


def noisy(noise=NOISE, kind="fpl", federation="town", clip=1.0):
    """Terms whose sums have noise; none where it is 0."""
    settings, release = KINDS[kind]
    link = SecureSum(min_devices=5, clip=clip if noise else 0.0, noise=noise)
    return Terms(federation, N_ITEMS, settings, release, link)


def with_noise_of_its_own(epsilon):
    """Terms by which each update has noise enough to cost no more, and sums have none."""
    return Terms("town", N_ITEMS, KINDS["uc"][0], Clipped(norm="l1", epsilon=epsilon), Direct())


def with_reports(epsilon, k):
    release = KReports(tiers=(Tier(epsilon, 2),), max_reports=k)
    return Terms("town", N_ITEMS, FMFConfig(embedding_size=5), release, Proxied())


def pack(terms, attempt, view, reports, seeds):
    return reports.masked.tobytes() + seeds.seeds[0]


def phone(path, limit, terms):
    store = CohortStore.create(path, [(ME, "me")], root_key=77)
    store.set_catalogue(ITEMS)
    store.add_history(ME, ["1", "4", "7"])
    store.set_choice(ME, Choice(share_positives=1.0, total_epsilon=limit))
    hosted = DeviceSession(store, pack=pack)
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
    return DeviceSession(CohortStore.open(path, agent=True), pack=pack)


def move(hosted, terms):
    """The server offers other terms and the owner agrees."""
    with pytest.raises(ConsentError, match="changed the terms"):
        hosted.meet(terms)
    hosted.agree(terms)


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


def gone(hosted, rounds):
    for round in rounds:
        send(hosted, round)
        hosted.arrived(round, 0)


def test_noisy_sums_count_where_updates_have_noise_of_their_own(tmp_path):
    """What sums have cost under former terms adds to what each update costs now."""
    pytest.importorskip("torch")
    hosted = phone(tmp_path / "s", price(NOISE, 3) + 2.01 * 0.7, noisy(kind="uc"))
    gone(hosted, range(3))
    move(hosted, with_noise_of_its_own(0.7))
    gone(hosted, range(2))
    with pytest.raises(
        ConsentError, match=r"the limit on ε is reached: 3\.3\d+ of 3\.3\d+ is spent"
    ):
        prepared(hosted, 2)
    hosted.store.close()


def test_noisy_sums_count_where_reports_are_randomised(tmp_path, capsys):
    path, limit = tmp_path / "s", price(NOISE, 3) + 2.01 * 0.6
    reporting, terms = Choice(total_epsilon=limit, max_reports=2, epsilon=0.3), with_reports(0.3, 2)
    hosted = phone(path, limit, noisy())
    gone(hosted, range(3))
    hosted.store.set_choice(ME, reporting)
    move(hosted, terms)
    words = told(capsys, "status", path)
    assert "There is room for 2 more rounds." in words
    assert "It went into sums with noise." in words
    assert "had no noise" not in words
    for round in range(2):
        assert may_report(hosted.store, terms)
        gone(hosted, [round])
    assert not may_report(hosted.store, terms)
    with pytest.raises(ConsentError, match="the limit on ε is reached"):
        prepared(hosted, 2)
    budget = standing(capsys, path)["budget"]
    assert budget["spent"] == pytest.approx(price(NOISE, 3) + 4 * 0.3)
    assert budget["noisy_sums"]["epsilon"] == pytest.approx(price(NOISE, 3))
    assert (budget["rounds_left"], budget["other_releases_without_bound"]) == (0, False)
    hosted.store.close()


def test_noisy_sums_of_former_terms_are_read_again_before_anything_leaves(tmp_path, monkeypatch):
    hosted, limit = phone(tmp_path / "s", 2.0, noisy()), price(NOISE, 1) + 0.5
    gone(hosted, [0])
    hosted.store.set_choice(ME, Choice(total_epsilon=limit, max_reports=2, epsilon=0.3))
    move(hosted, with_reports(0.3, 2))
    with monkeypatch.context() as patch:  # as if they were forgotten while it is prepared
        patch.setattr("sottovoce.stores.session.spent_before", lambda store, terms: store.spent())
        ready = prepared(hosted, 0)
    with pytest.raises(ConsentError, match="more than the limit leaves"):
        hosted.leaving(ready)
    assert hosted.store.spent().tolist() == [0.0]
    hosted.store.close()


def test_without_a_limit_no_noise_is_too_much_or_too_little(tmp_path, capsys):
    """A round under a millionth of the noise counts as 10¹² rounds, which is the most there are."""
    path = tmp_path / "s"
    hosted = phone(path, math.inf, noisy(1e-4))
    gone(hosted, [0])
    move(hosted, noisy(1e6, clip=0.1))
    gone(hosted, range(2))
    sums = standing(capsys, path)["sums"]
    assert (sums["rounds"], sums["spent"]) == (MOST_ROUNDS, price(1e-4, 1))
    hosted.store.set_choice(ME, Choice(share_positives=1.0, total_epsilon=5.0))
    with pytest.raises(
        ConsentError, match=f"after {MOST_ROUNDS:,} rounds another would make it more"
    ):
        prepared(hosted, 2)
    assert "has no room for more: nothing leaves" in told(capsys, "status", path)
    hosted.store.close()


def test_terms_with_noise_that_nobody_can_draw_are_not_read():
    table = noisy().to_table()
    for noise in (1e-160, 1e6):
        with pytest.raises(MessageError, match="standard deviation of noise must lie in"):
            Terms.from_table(table | {"link": table["link"] | {"noise": noise}})


# --- words ----------------------------------------------------------------------------------------


def told(capsys, *arguments):
    capsys.readouterr()
    assert call(["device", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def standing(capsys, path):
    """Its status, as JSON."""
    capsys.readouterr()
    assert call(["device", "status", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_words_say_why_and_how_to_go_on(tmp_path):
    hosted = phone(tmp_path / "s", price(NOISE, 1), noisy())
    send(hosted, 0)
    hosted.arrived(0, 0)
    with pytest.raises(ConsentError) as caught:
        prepared(hosted, 1)
    words = str(caught.value)
    assert "after 1 round another would make it" in words
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
    assert f"One more round makes it {rounded_up(price(NOISE, 1)):.10g}." in words
    assert "You have set no limit." in words
    words = told(capsys, "consent", path, "--total-epsilon", most)
    assert "lasts for 3 more rounds." in words
    for round, left in enumerate(("2 more rounds.", "one more round.")):
        send(hosted, round)
        hosted.arrived(round, 0)
        for command in ("consent", "status"):
            assert f"lasts for {left}" in told(capsys, command, path)
    send(hosted, 2)
    for command in ("consent", "status"):
        assert "has no room for more: nothing leaves." in told(capsys, command, path)
    sums = standing(capsys, path)["sums"]
    assert (sums["rounds"], sums["rounds_left"], sums["delta"]) == (3, 0, 1e-6)
    assert sums["spent"] == price(NOISE, 3)
    assert sums["after_next_round"] == price(NOISE, 4) > sums["limit"]
    hosted.store.close()


def test_where_nothing_bounds_what_leaves_the_words_say_so(tmp_path, capsys):
    hosted = phone(tmp_path / "s", 2.0, noisy(0.0))
    words = told(capsys, "consent", tmp_path / "s")
    assert "A limit stops nothing here. What leaves has no noise." in words
    assert standing(capsys, tmp_path / "s")["sums"] is None
    hosted.store.close()


def test_no_price_is_put_on_what_left_without_noise(tmp_path, capsys):
    path = tmp_path / "s"
    hosted = phone(path, price(NOISE, 3), noisy(0.0))
    gone(hosted, [0])
    move(hosted, noisy())
    words = told(capsys, "status", path)
    assert f"One more round makes it {rounded_up(price(NOISE, 1)):.10g}." in words
    assert "lasts for 2 more rounds. Once something left without noise." in words
    assert "It had no noise. Nothing limits what others can learn from it." in words
    move(hosted, noisy(0.0))
    gone(hosted, [0])
    move(hosted, noisy())
    gone(hosted, [0])
    words = told(capsys, "status", path)
    used = f"{rounded_up(price(NOISE, 1)):.10g}"
    assert f"One round of sums with noise used {used} so far." in words
    assert "has no room for more: nothing leaves. 2 times something left without noise." in words
    for command in ("status", "ledger"):
        assert "Part of it had no noise." in told(capsys, command, path)
    with pytest.raises(ConsentError) as caught:
        prepared(hosted, 1)
    assert "after 3 rounds, counting 2 releases without noise on sums, which no ε bounds, as a" in (
        str(caught.value)
    )
    assert "another would make it" not in str(caught.value)
    sums = standing(capsys, path)["sums"]
    assert (sums["rounds"], sums["releases_without_noise"], sums["rounds_left"]) == (1, 2, 0)
    assert sums["spent"] == price(NOISE, 1)
    hosted.store.close()


def test_what_other_releases_cost_is_said_apart(tmp_path, capsys):
    pytest.importorskip("torch")
    path = tmp_path / "s"
    hosted = phone(path, 2.0, with_noise_of_its_own(0.7))
    gone(hosted, [0])
    move(hosted, noisy(kind="uc"))
    sums = standing(capsys, path)["sums"]
    assert (sums["rounds"], sums["other_releases"]) == (0, 0.7)
    assert f"One more round makes it {rounded_up(sums['after_next_round']):.10g}." in told(
        capsys, "status", path
    )
    assert sums["after_next_round"] == pytest.approx(0.7 + price(NOISE, 1))
    hosted.store.close()
