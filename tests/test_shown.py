"""How somebody else's components are shown, who say nothing of it; and what a choice asks for."""

import json
import math
from dataclasses import dataclass, fields

import numpy as np
import pytest

from sottovoce.algorithms.base import AlgorithmSettings, Schedule
from sottovoce.core.consent import COLUMN_TYPES, FIELDS, Choice, Columns, Consent
from sottovoce.core.links import Direct, Link, SecureSum
from sottovoce.errors import ConsentError
from sottovoce.privacy.base import UNKNOWN, BoundRelease, Release
from sottovoce.runs.report import honest_notes

PLAN = Schedule(devices=60, positives=600, cohort_size=20, triples=0, rounds_per_epoch=3, rounds=9)


@dataclass(frozen=True)
class OwnSettings(AlgorithmSettings):
    name = "own"
    embedding_size: int = 3
    rounds: int = 2

    def build_under(self, release, link, triples):
        raise NotImplementedError


class OwnBound(BoundRelease):
    def __init__(self, users, cost):
        self.users, self.cost = users, cost

    @property
    def epsilons(self):
        return np.full(len(self.users), self.cost)


@dataclass(frozen=True)
class OwnRelease(Release):
    name = "own-release"
    price: float = math.inf

    def bind(self, users, consent, history, rng, noise=b"", *, noisy_sums=False):
        if consent.max_reports.any():
            raise ConsentError("this release sends no reports")
        return OwnBound(users, self.price)


@dataclass(frozen=True)
class OwnLink(Link):
    name = "own-link"


def test_an_algorithm_that_says_nothing_is_shown():
    own = OwnSettings()
    assert own.learning() == "embedding size 3"
    assert own.describe(PLAN).startswith("learn at home")
    assert own.traffic(PLAN, 40, 0.5) == {}
    assert own.advice(20)
    assert "each of 40 items" in own.how_revealing(40)
    assert (own.caveats(), own.remedies, own.waits_for) == ((), (), "all")


def test_a_release_that_says_nothing_is_shown_and_priced_by_what_it_binds():
    own = OwnRelease()
    assert own.describe() == own.card() == "by the release own-release"
    assert own.relied_on([Choice()]) == "That raw data stay on the device"
    assert own.cost(Choice()) is None
    assert OwnRelease(0.5).cost(Choice()) == 0.5
    assert OwnRelease(0.5).cost(Choice(takes_part=False)) is None
    assert own.objection(Choice()) == ""
    assert "sends no reports" in own.objection(Choice(max_reports=1))
    assert OwnRelease(0.5).cost(Choice(max_reports=1)) is None


@pytest.mark.parametrize("link", [None, Direct(), OwnLink()])
def test_a_release_that_says_nothing_is_not_taken_to_protect(link):
    assert honest_notes([OwnRelease()], [link]).text == UNKNOWN


def test_over_a_secure_sum_the_link_says_what_is_not_protected():
    link = SecureSum()
    assert OwnRelease().caveats(link) == link.caveats()
    assert link.remedies == ("secure-sum",)
    assert OwnLink().describe() == "by the link own-link"


# --- choices --------------------------------------------------------------------------------------


def test_every_field_of_a_choice_is_in_the_records_of_many():
    assert [each.name for each in fields(Columns)] == [n for n in COLUMN_TYPES]
    names = {each.name for each in fields(Consent)}
    assert {*FIELDS} <= names


def test_what_a_choice_asks_for():
    assert Choice().asked() == Choice(takes_part=False, strength=0.1).asked() == []
    asked = Choice(share_positives=0.5, total_epsilon=3, refused_owners=["shop"]).asked()
    assert asked == ["share_positives", "total_epsilon", "refused_owners"]


def test_stores_leave_out_what_former_releases_did_not_know():
    first = "epsilon hidden_attributes max_reports share_positives strength takes_part"
    assert sorted(Choice().table()) == first.split()
    choice = Choice(total_epsilon=2.0, hidden_attributes=("age",), refused_owners=("shop",))
    assert Choice(**json.loads(json.dumps(choice.table()))) == choice


def test_who_made_a_choice_is_found_in_the_records():
    choices = [Choice(share_positives=0.7), Choice(share_positives=0.7, hidden_attributes=("age",))]
    records = Consent.of(np.arange(4), choices, np.array([0, 1, 0, 1]), ["age"])
    assert records.chose(choices[1]).tolist() == [False, True, False, True]
    assert not records.chose(Choice()).any()
