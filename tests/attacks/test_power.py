"""A verdict says whether an attack saw enough, and how much more it would take."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.attacks import power
from sottovoce.attacks.views import PERMITTED, Claims, Result, clustered, judge_claims
from sottovoce.core.interactions import Interactions
from sottovoce.core.words import LANGUAGES, say
from sottovoce.experiment import Experiment
from sottovoce.privacy.own_epsilon import distance
from sottovoce.runs.attack import attack_experiment
from sottovoce.runs.card import (
    Card,
    CardSetting,
    in_words,
    lead_of,
    plain_promise,
    plain_words,
    write_card,
)
from sottovoce.runs.side_by_side import attacked


def result(**changes):
    values = {
        "code": "A1", "attack": "rows", "party": "anyone", "promise": "Nobody reads me.",
        "measure": "precision", "value": 0.0, "interval": (0.0, 0.2), "base_rate": 0.0005,
        "recall": math.nan, "claims": 17, "looked": 20,
    }  # fmt: skip
    return Result(**values | changes)


def played(share, base, claims, rng):
    """An attack whose claims are right with this chance, each of another user."""
    right = rng.random(claims) < share
    interval = clustered(right.astype(np.int64), np.ones(claims, np.int64))
    return result(value=right.mean(), interval=interval, base_rate=base, claims=claims)


# --- what a verdict says --------------------------------------------------------------------------


def test_between_a_guess_and_far_above_it_nothing_is_decided():
    assert result(interval=(0.0, 0.2)).verdict == "underpowered"
    assert result(interval=(0.0, 0.01)).verdict == "holds"
    assert result(interval=(0.001, 0.9)).verdict == "broken"
    assert result(claims=0).verdict == "nothing to attack"
    # One claim that was right of one or two is not nothing.
    assert result(value=0.5, interval=(0.09, 0.91), base_rate=0.1).verdict == "underpowered"
    # Of a measure that is no share nothing can be said of far and near.
    assert result(measure="ε", interval=(0.0, 3.0)).verdict == "holds"
    assert (
        result(measure=PERMITTED, interval=(0.5, 0.62), base_rate=0.566).verdict == "underpowered"
    )


@given(st.floats(0.0, 1.0))
def test_what_is_far(base):
    far = power.far_above(base) - base
    assert power.NEAREST - 1e-12 <= far <= power.FAR + 1e-12
    assert far <= max(base, power.NEAREST) + 1e-12


def test_more_is_needed_where_intervals_are_wider():
    few = result(claims=17, interval=(0.0, 0.184))
    assert 1500 < power.times_more("precision", 0.0, (0.0, 0.184), 0.0005, 17) * 17 < 1900
    assert few.needed == math.ceil(
        20 * power.times_more("precision", 0.0, (0.0, 0.184), 0.0005, 17)
    )
    assert result(interval=(0.0, 0.01)).needed is None
    assert result(looked=0).needed is None
    auc = {"measure": "AUC", "value": 0.51, "base_rate": 0.5, "claims": 400, "unit": "users"}
    wide, wider = result(interval=(0.46, 0.56), **auc), result(interval=(0.41, 0.61), **auc)
    assert (wide.needed, wider.needed) == (80, 320)


@given(
    st.floats(0.0, 0.9), st.integers(1, 400), st.floats(0.0, 1.0), st.floats(1.0, 6.0)
)  # fmt: skip
def test_what_is_needed_makes_the_interval_as_narrow_as_it_must_be(base, claims, share, alike):
    """Claims that go together count for fewer, and remain so."""
    right = round(share * claims) / claims
    width = power.share_width(right, claims) * math.sqrt(alike)
    interval = max(0.0, right - width / 2), min(1.0, right + width / 2)
    more = power.times_more("precision", right, interval, base, claims)
    far = power.far_above(base)
    together = max(1.0, ((interval[1] - interval[0]) / power.share_width(right, claims)) ** 2)
    widths = [power.share_width(s, more * claims / together) for s in np.linspace(base, far, 50)]
    assert max(widths) == pytest.approx(far - base, rel=2e-3)


# --- error rates ----------------------------------------------------------------------------------

WORLDS = 600


@pytest.mark.parametrize("base", [0.0005, 0.03, 0.2])
def test_errors_are_as_rare_as_is_promised_and_enough_claims_decide(base):
    """Attacks of known worth: with few claims most are underpowered, with as many as the first look
    asks for all are decided, and rightly but for 2.5 of 100."""
    rng = np.random.default_rng(7)
    for share, wrong in ((base, "broken"), (power.far_above(base), "holds")):
        verdicts, second = [], []
        for _ in range(WORLDS):
            first = played(share, base, 30, rng)
            verdicts.append(first.verdict)
            if first.verdict == "underpowered":
                claims = math.ceil(30 * first.needed / first.looked)
                second.append(played(share, base, claims, rng).verdict)
        assert verdicts.count("underpowered") > 0.8 * WORLDS
        slack = 3 * math.sqrt(0.025 * 0.975 / len(second))
        assert second.count(wrong) <= (0.025 + slack) * len(second)
        assert second.count("underpowered") <= 0.02 * len(second)


def test_a_leak_is_found_with_as_many_as_it_takes():
    """Last.fm and latest-small: .042 right where a guess has .0005; three rounds say nothing."""
    rng = np.random.default_rng(1)
    few = [played(0.042, 0.0005, 17, rng) for _ in range(200)]
    verdicts = [one.verdict for one in few]
    assert verdicts.count("holds") == 0
    assert verdicts.count("underpowered") > 60
    enough = max(one.needed for one in few if one.needed) * 17 // 20
    assert {played(0.042, 0.0005, enough, rng).verdict for _ in range(200)} == {"broken"}


# --- the interval of claims ----------------------------------------------------------------------


def world(rng, users=120, items=60):
    has = rng.random((users, items)) < 0.4 * rng.random(items) ** 2
    has[:, 0] = True
    pairs = np.nonzero(has)
    return Interactions.from_pairs(*pairs, n_users=users, n_items=items), has


def judged(claims, train):
    return judge_claims("x", "X", "server", "p", claims, train)


def test_what_is_claimed_of_everybody_alike_is_held_against_itself():
    """Popularity is estimated from the same users, so the distance from it does not vary."""
    train, _ = world(np.random.default_rng(3))
    users, items = np.repeat(np.arange(120), 8), np.tile(np.arange(1, 9), 120)
    found = judged(Claims(users, items), train)
    assert found.value == pytest.approx(found.base_rate)
    share = found.interval[1] - found.interval[0]
    assert share == pytest.approx(power.share_width(found.value, len(users)))


def test_the_interval_is_that_of_leaving_out_one_user_after_the_other():
    rng = np.random.default_rng(4)
    train, has = world(rng)
    users = np.concatenate([np.arange(120), np.full(150, 7), np.full(40, 9)])
    items = rng.integers(0, 60, len(users))
    claims = Claims(users, items).unique()
    apart = []
    for user in range(120):
        kept = claims.users != user
        there = np.unique(claims.users[kept])
        right = has[claims.users[kept], claims.items[kept]]
        others = has[there].sum(axis=0)[claims.items[kept]] - right
        apart.append(right.mean() - (others / (len(there) - 1)).mean())
    spread = math.sqrt(119 / 120 * ((np.array(apart) - np.mean(apart)) ** 2).sum())
    found = judged(claims, train)
    assert found.interval[1] - found.value >= power.CONFIDENCE_Z * spread - 1e-12
    hits = np.bincount(claims.users, has[claims.users, claims.items])
    wanted = clustered(hits, np.bincount(claims.users), spread)
    assert found.interval == pytest.approx(wanted)


def test_claims_that_know_nothing_are_seldom_called_broken():
    rng, broken = np.random.default_rng(5), 0
    for _ in range(200):
        train, _ = world(rng)
        claims = Claims(rng.integers(0, 120, 200), rng.integers(1, 60, 200))
        broken += judged(claims, train).verdict == "broken"
    assert broken <= 12


# --- what ε permits -------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["noise", "gram", "plain"])
def test_who_took_part_is_held_against_what_epsilon_permits_where_one_bounds_it(system):
    """With enough users any ε above 0 is told from a coin, which nobody promises."""
    mix = [{"weight": 5}, {"weight": 5, "takes_part": False}]
    table = {
        "town": {"residents": 150, "venues": 80, "visits_per_resident": 20.0},
        "algorithm": {"configuration": "", "cohort_size": "all", "triples": 4, "rounds": 8},
        "link": {"name": "secure-sum", "min_devices": 20},
        "consent": {"mix": mix},
    }  # fmt: skip
    if system == "noise":
        table["link"] |= {"clip": 1.0, "noise": 4.0}
    if system == "gram":
        table |= {
            "algorithm": {"name": "gram", "least_head": 30, "most_head": 30},
            "release": {"epsilon": 4.0},
            "link": {"min_devices": 20},
            "consent": {"mix": [{**mix[0], "epsilon": 1.0}, mix[1]]},
        }
    (found,) = attack_experiment(Experiment.from_table(table), only=["participation"]).results
    if system == "plain":
        assert (found.measure, found.base_rate) == ("AUC", 0.5)
        return
    mu = math.sqrt(8) / 4.0 if system == "noise" else distance(1.0, 1e-6)
    assert found.measure == PERMITTED
    assert found.base_rate == pytest.approx(0.5 * math.erfc(-mu / 2.0))
    assert "better than" in found.promise
    assert plain_promise(found).key == "attack.promise.known-others"


# --- where verdicts are shown --------------------------------------------------------------------

UNCLEAR = result()
HELD = result(interval=(0.0, 0.01))
BROKEN = result(interval=(0.2, 0.9), value=0.5)


def test_words_say_that_it_is_open_and_what_it_would_take():
    text = in_words(UNCLEAR, CardSetting("x"))
    assert "Too little was seen for a verdict" in text
    assert "no better than guessing" not in text
    assert "It would take about 2,400 rounds; 20 were looked at" in text
    assert 2300 < UNCLEAR.needed <= 2400  # two digits of it are said
    english = [say(one) for one in plain_words(UNCLEAR)]
    assert english[0].endswith("too little was seen to say.")
    assert any("rounds; 20 were seen" in one for one in english)
    people = [say(one) for one in plain_words(result(unit="users", looked=900))]
    assert any("people; 900 were there" in one for one in people)
    for language in LANGUAGES:
        assert not any("{" in say(one, language) for one in plain_words(UNCLEAR))


@pytest.mark.parametrize(
    ("results", "kind", "first"),
    [
        ((UNCLEAR, HELD), "underpowered", "One promise held, of 2 that were attacked."),
        ((UNCLEAR,), "underpowered", "One promise is still open: its attack saw too little."),
        ((UNCLEAR, HELD, BROKEN), "broken", "One promise was broken of 3 that were attacked."),
        ((HELD,), "holds", "The one promise that was attacked held."),
    ],
)
def test_a_card_leads_with_it(results, kind, first, tmp_path):
    card = Card("small", results, ())
    lead = lead_of(card)
    assert (lead.kind, lead.label) == (kind, first)
    open_ = "One promise is still open: its attack saw too little."
    assert (open_ in (lead.label, *lead.words)) == (UNCLEAR in results)
    page = write_card(card, "run", tmp_path / "report-card.html", tmp_path / "attacks.json")
    assert ('<span class="underpowered">' in page.read_text()) == (UNCLEAR in results)
    drawn = (tmp_path / "report-card-figures" / "attacks.svg").read_text()
    assert ("attack, underpowered" in drawn) == (UNCLEAR in results)
    content = card.content("run")["attacks"][0]
    assert content["verdict"] == results[0].verdict
    assert content["needed"] == results[0].needed
    assert content["far_above"] == pytest.approx(0.0105)
    assert (card.table().columns[-1].key == "needed") == (UNCLEAR in results)
    # And so does a comparison of runs.
    entry = attacked(tmp_path, tmp_path)
    assert ("1 underpowered" in str(entry.value)) == (UNCLEAR in results)
    assert ("✓" in str(entry.value)) == (results == (HELD,))
