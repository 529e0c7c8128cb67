"""Who sees what, in plain words: told for every system over every link, and true to what the exact
words say."""

import math
import re

import pytest

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.choice import Choice
from sottovoce.core.links import CheckedSum, Direct, Hop, Proxied, SecureSum
from sottovoce.core.words import LANGUAGES, say
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.wire.plainly import (
    agreed_to,
    is_bounded,
    is_printed,
    objection,
    of_change,
    onlookers,
)
from sottovoce.wire.terms import Terms

FILTERS = (FilterConfig("gender", ("f", "m"), (0.5, 0.5)),)
UC = UCConfig(embedding_size=6, recommender="mf", attributes=FILTERS)
FPL, FCF = FPLConfig(embedding_size=3, triples=4), FCFConfig(embedding_size=3)
FMF, GRAM = FMFConfig(embedding_size=3), GramConfig()
NOISE = SecureSum(clip=0.5, noise=1.5)
REPORTS = KReports(10, (Tier(1.0, 30), Tier(2.5, 40)))
CHAIN = (Hop("https://second.example", "x", "aa" * 32),)
SYSTEMS = {
    "fpl": (FPL, ShareFraction(), Direct()),
    "fcf": (FCF, Everything(), Direct()),
    "uc": (UC, Clipped(), Direct()),
    "uc with noise": (UC, Clipped(norm="l1", epsilon=2.0), Direct()),
    "fpl summed": (FPL, ShareFraction(), SecureSum()),
    "uc summed with noise": (UC, Clipped(), NOISE),
    "fmf": (FMF, REPORTS, Proxied("https://shuffler.example", "x")),
    "gram": (GRAM, OwnEpsilon(), SecureSum(min_devices=33)),
    "gram in parts": (GRAM, OwnEpsilon(parts=40), SecureSum(min_devices=44)),
    "gram checked": (GRAM, OwnEpsilon(), CheckedSum(min_devices=55)),
}


def terms_of(name):
    return Terms("town", 40, *SYSTEMS[name])


def told(name, **options):
    """Who sees what, a line each."""
    found = onlookers(terms_of(name), **options)
    return [f"{say(one.who)}: {say(one.sees)}" for one in found]


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_system_says_who_sees_what_and_what_is_agreed_to(name, language):
    terms = terms_of(name)
    for gateway in (False, True):
        for one in onlookers(terms, gateway=gateway):
            assert say(one.who, language)
            assert say(one.sees, language)
    said = [say(one, language) for one in agreed_to(terms)]
    assert len(said) > 2
    assert "town" in said[0]
    assert not re.search("[επδ]", " ".join(said))


@pytest.mark.parametrize("name", ["fpl", "fcf", "uc"])
def test_where_the_server_reads_single_reports_it_is_said_first(name):
    first = told(name)[0]
    assert first.startswith("Whoever runs the server: ")
    assert "can work out what you have" in first
    assert is_printed(terms_of(name))
    assert not is_bounded(terms_of(name))


def test_that_sharing_nothing_hides_nothing_is_said_where_there_is_a_share():
    assert any("even if you share none" in line for line in told("fpl"))
    assert not any("share none" in line for line in told("fcf"))


def test_a_sum_without_noise_is_not_called_one_with():
    plain, noisy = " ".join(told("fpl summed")), " ".join(told("uc summed with noise"))
    assert "without noise. A thing that only you have shows in it." in plain
    assert "with noise. Your part is in it." in noisy
    assert "without noise" not in noisy
    assert "took the noise off again" in noisy
    assert not is_bounded(terms_of("fpl summed"))
    assert is_bounded(terms_of("uc summed with noise"))


def test_gram_says_what_helper_aggregators_and_both_together_can():
    one, parts, checked = (" ".join(told(n)) for n in ("gram", "gram in parts", "gram checked"))
    assert "one sum of 33 people or more" in one
    assert "took the noise off again" in one
    assert "Server and helper together: Can read your part." in one
    assert "while 40 devices add their part" in parts
    assert "took the noise off" not in parts
    assert "Any two aggregators together: Can read your part." in checked
    assert "Nobody: Learns how loudly you chose to speak." in checked
    agreed = " ".join(say(line) for line in agreed_to(terms_of("gram")))
    assert "No sum is opened of fewer than 33 people." in agreed
    assert "one in 1,000,000" in agreed
    assert "while server and helper do not work together" in agreed


def test_reports_say_what_holds_with_and_without_an_honest_shuffler():
    line = " ".join(told("fmf"))
    assert "sealed reports, and cannot open them" in line
    assert "Server and shuffler together: Can read your reports as yours." in line
    agreed = " ".join(say(one) for one in agreed_to(terms_of("fmf")))
    assert "https://shuffler.example" in agreed
    assert "fewer than 30 people" in agreed


def test_a_gateway_says_that_whoever_runs_it_reads_everything():
    for name in ("fpl", "gram", "fmf"):
        lines = told(name, gateway=True)
        assert any("gateway: Can read everything of everybody here" in line for line in lines)
    assert "A sum of one hides nothing." in told("fpl", gateway=True)[0]


CHOICES = [
    Choice(),
    Choice(share_positives=1.0),
    Choice(share_positives=0.3),
    Choice(epsilon=1.0),
    Choice(epsilon=0.05),
    Choice(epsilon=1.0, total_epsilon=0.5),
    Choice(epsilon=1.0, max_reports=10),
    Choice(epsilon=2.5, max_reports=9),
    Choice(epsilon=1.0, max_reports=10, share_positives=0.5),
    Choice(total_epsilon=3.0),
    Choice(share_positives=1.0, total_epsilon=3.0),
]


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_choice_is_objected_to_exactly_where_nothing_leaves_and_the_advice_helps(name, choice):
    terms = terms_of(name)
    noisy = name == "uc summed with noise"
    why = objection(terms, choice, noisy_sums=noisy)
    assert (why is None) == (not terms.release.objection(choice, noisy_sums=noisy))
    if why is None:
        return
    assert say(why.said).startswith("With this choice nothing would leave.")
    # Whoever follows the advice, again and again, ends where something leaves.
    for _ in range(4):
        choice = followed(choice, why.options)
        why = objection(terms, choice, noisy_sums=noisy)
        if why is None:
            return
    raise AssertionError(f"{choice}: {why}")


def followed(choice, options):
    names = {
        "--reports": "max_reports", "--epsilon": "epsilon", "--total-epsilon": "total_epsilon",
        "--share-positives": "share_positives",
    }  # fmt: skip
    words = options.split()
    changes = {
        names[name]: float(value) for name, value in zip(words[::2], words[1::2], strict=True)
    }
    if "max_reports" in changes:
        changes["max_reports"] = int(changes["max_reports"])
    kept = {name: getattr(choice, name) for name in names.values()}
    return Choice(**(kept | changes))


def test_what_is_hidden_without_a_filter_is_named():
    why = objection(terms_of("uc"), Choice(hidden_attributes=("income",)), ["income"])
    assert why is not None
    assert "Nobody here can hide income." in say(why.said)
    assert why.options == "--reveal income"


def test_a_limit_is_none_to_a_release_that_nothing_bounds():
    why = objection(terms_of("uc"), Choice(share_positives=1.0, total_epsilon=3.0))
    assert why is not None
    assert why.options == "--total-epsilon inf"
    assert objection(terms_of("uc"), Choice(share_positives=1.0, total_epsilon=math.inf)) is None


@pytest.mark.parametrize(
    ("setting", "before", "after", "words"),
    [
        ("link.min_devices", 20, 10, "Fewer people are enough for a sum. That hides you less."),
        ("link.min_devices", 10, 20, "That hides you better."),
        ("link.noise", 1.0, 2.0, "more noise"),
        ("release.epsilon", 4.0, 8.0, "People may now speak louder."),
        ("release.period_days", 30, 1, "sooner"),
        ("link.url", "https://a.example", "https://b.example", "moved to another address"),
        ("link.key", "aa", "bb", "new key"),
        ("link.name", "secure-sum", "direct", "Read again who sees what."),
        ("release.per", "item", "draw", "What leaves has changed."),
        ("algorithm.embedding_size", 3, 4, "The model has changed."),
        ("n_items", 40, 41, "The list of things has changed."),
    ],
)
def test_what_a_change_of_terms_means_is_said(setting, before, after, words):
    found = of_change(setting, before, after)
    assert found is not None
    assert words in say(found)


def test_a_setting_that_is_new_or_unknown_has_no_direction():
    found = of_change("link.min_devices", None, 20)
    assert found is not None
    assert found.key == "terms.other_way"
    assert of_change("protocol", 1, 2) is None


@pytest.mark.parametrize("name", ["fpl summed", "gram", "gram in parts", "uc summed with noise"])
def test_where_gateways_are_counted_nobody_is_told_of_so_many_people(name):
    terms = terms_of(name)
    for gateway, unit in [(False, "people"), (True, "gateways")]:
        told = [say(one) for one in agreed_to(terms, gateway=gateway)]
        assert [one for one in told if one.startswith("No sum is opened of fewer than")] == [
            one for one in told if re.match(rf"No sum is opened of fewer than \d+ {unit}\.", one)
        ]
        seen = [say(one.sees) for one in onlookers(terms, gateway=gateway)]
        assert any(re.match(rf"Sees one sum of \d+ {unit} or more", one) for one in seen)
