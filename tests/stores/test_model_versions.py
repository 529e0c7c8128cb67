"""Versions of a model: which are kept, which one is published, and what an operator can say."""

import numpy as np
import pytest
from server_world import acting
from versions_world import BAD, GOOD, VersionsWorld, answering

from sottovoce.core.quality import Quality
from sottovoce.errors import ServiceError, UsageError
from sottovoce.services.server.operator import status
from sottovoce.services.server.state import RoundState
from sottovoce.stores import versions
from sottovoce.stores.acts import past_acts
from sottovoce.stores.database import models


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Of models that are offered after every second round, with these answers of the devices."""
    made = []

    def make(*answers, rounds=40):
        answering(monkeypatch, *answers)
        made.append(VersionsWorld(tmp_path, rounds))
        return made[-1]

    yield make
    for each in made:
        each.database.close()


def test_where_every_model_is_published_there_are_no_versions(tmp_path):
    here = VersionsWorld(tmp_path, 4)
    for _ in range(4):
        assert {event.what for event in here.run_round()} <= {"goal", "opened"}
    assert (here.kept(), here.position().published) == ([], None)
    with here.database.reading() as link:
        assert [*link.execute(models.select().order_by(models.c.round)).scalars()] == [3, 4]
    with (
        pytest.raises(UsageError, match="no versions to choose from"),
        here.database.writing() as link,
    ):
        versions.publish(link, 4)
    here.database.close()


def test_versions_are_published_when_they_are_whole(world):
    here = world()
    told = [[event.what for event in here.run_round()] for _ in range(4)]
    first = ["goal", "published", "opened"]
    assert told == [first, first, ["goal", "opened"], first]
    assert (here.kept(), here.position().published) == ([1, 2, 4], 4)
    # The versions stay, the models in between do not.
    assert here.model(1) is not None
    for _ in range(2):
        here.run_round()
    assert here.model(3) is None
    assert here.model(1) is not None


def test_the_oldest_is_let_go_and_the_published_one_never(world):
    here = world()
    for _ in range(16):
        here.run_round()
    assert here.kept() == [2, 4, 6, 8, 10, 12, 14, 16]
    assert here.publish(2) == 16
    for _ in range(2):
        here.run_round()
    assert here.position().published == 2
    assert here.kept() == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    here.publish(18)
    for _ in range(2):
        here.run_round()
    assert here.position().published == 20  # the rule goes on
    here.publish(6)
    here.run_round()
    here.restart()
    assert (here.position().published, len(here.kept())) == (6, 8)


def test_a_worse_one_is_held_back_until_the_operator_says_otherwise(world):
    here = world(GOOD, BAD, BAD, GOOD)
    for _ in range(3):
        here.run_round()
    over, held, opened = here.run_round()
    assert (over.what, held.what, opened.what) == ("goal", "held_back", "opened")
    assert "version 4 was held back: it is worse than version 2" in held.notices[0]
    here.restart()
    assert here.position().published == 2
    told = status(here.database)
    assert told["published"] == 2
    assert [v["version"] for v in told["versions"] if v["held_back"]] == [4]
    assert told["versions"][-1]["quality"] == BAD.to_table()
    snapshot = RoundState(here.database, here.plan)
    assert b'"published": 2' in snapshot.refresh().descriptor.body
    assert sorted(snapshot.now.versions) == [2, 3, 4]
    assert np.array_equal(snapshot.now.versions[2].view.items, here.model(2))
    assert here.publish(4) == 2
    assert b'"published": 4' in snapshot.refresh().descriptor.body
    assert not any(v["held_back"] for v in status(here.database)["versions"])
    for _ in range(2):
        here.run_round()
    assert here.position().published == 4  # held back against the operator's
    here.publish(2)
    for _ in range(2):
        here.run_round()
    assert here.position().published == 2
    here.publish(8)
    for _ in range(2):
        here.run_round()
    assert here.position().published == 10


def test_a_version_that_an_operator_went_back_to_stays_until_she_publishes_another(world):
    here = world(GOOD)
    for _ in range(4):
        here.run_round()
    acting(here.database).publish(2)
    here.run_round()
    over, offered, _ = here.run_round()
    assert (over.what, offered.what) == ("goal", "held_back")
    assert "an operator went back to version 2, which stays published" in offered.notices[0]
    told = status(here.database)
    assert (told["published"], told["pinned"]) == (2, 2)
    assert "an operator went back to version 2" in told["versions"][-1]["held_back"]
    with here.database.reading() as link:
        [act] = [one["words"] for one in past_acts(link, 0, 9)[1] if "published" in one["words"]]
    assert act == "version 2 published; it stays, and new versions are held back"
    here.restart()
    for _ in range(2):
        here.run_round()
    assert here.position().published == 2
    acting(here.database).publish(8)
    assert status(here.database)["pinned"] is None
    for _ in range(2):
        here.run_round()
    assert here.position().published == 10


def test_learning_is_the_same_whatever_is_published(world):
    here = world(GOOD, BAD)
    for _ in range(3):
        here.run_round()
    before = here.model(3)
    here.publish(1)
    here.restart()
    assert np.array_equal(here.model(3), before)
    here.run_round()
    assert here.position().round == 4


def test_a_version_that_is_not_there(world):
    here = world()
    for _ in range(2):
        here.run_round()
    with pytest.raises(UsageError, match="version 7 is not here; these are: 1, 2"):
        here.publish(7)
    assert here.position().published == 2
    with here.database.writing() as link:
        link.execute(models.delete().where(models.c.round == 1))
    here.restart()  # nobody needs it
    with pytest.raises(UsageError, match="version 1 is not here; these are: 2"):
        here.publish(1)
    for _ in range(2):
        here.run_round()
    here.publish(2)
    with here.database.writing() as link:
        link.execute(models.delete().where(models.c.round == 2))
    with pytest.raises(ServiceError, match="lacks version 2 of the model, which is published"):
        here.restart()


def test_a_database_that_was_set_back_keeps_its_versions(world):
    here = world()
    for _ in range(3):
        here.run_round()
    newest = here.model(3)
    with here.database.writing() as link:
        here.coordinator.skip_to(link, 20)
    assert (here.kept(), here.position().published) == ([1, 2], 2)
    assert np.array_equal(here.model(20), newest)
    for _ in range(2):
        here.run_round()
    assert (here.position().round, here.position().published) == (22, 22)


# --- what speaks against the published one --------------------------------------------------------

OLD_BAD = Quality((50.0, 20.0, 40.0), (50.0, 80.0, 60.0), 1.0)
"""The new one is good, and the published one worse than popularity."""


def test_a_bad_version_that_the_operator_has_published_is_told_until_it_is_taken_back(world):
    here = world(GOOD, BAD, OLD_BAD)
    for _ in range(4):
        here.run_round()
    assert status(here.database)["quality_trouble"] == ""  # it was held back
    here.publish(4)
    trouble = status(here.database)["quality_trouble"]
    assert trouble.startswith("version 4, which is published, is worse than version 2: one of ten")
    here.publish(2)
    assert status(here.database)["quality_trouble"] == ""
    here.publish(4)
    here.run_round()
    over, offered, _ = here.run_round()
    assert (over.what, offered.what, offered.notices) == ("goal", "published", ())
    told = status(here.database)
    assert (told["published"], told["versions"][-1]["against"]) == (6, 4)
    assert told["quality_trouble"] == ""
    here.publish(4)  # of which the newest sums tell
    trouble = status(here.database)["quality_trouble"]
    assert trouble.startswith("version 4, which is published, is worse than popularity alone")


def test_one_that_stays_because_all_later_ones_are_worse_still_is_told_in_the_log(world):
    worse_still = Quality((10.0, 20.0, 40.0), (90.0, 80.0, 60.0), 1.0)
    here = world(GOOD, worse_still)
    for _ in range(3):
        here.run_round()
    _, offered, _ = here.run_round()
    assert offered.what == "held_back"
    held, trouble = offered.notices
    assert held.startswith("version 4 was held back")
    assert trouble.startswith("version 2, which is published, is worse than popularity alone")
    assert status(here.database)["quality_trouble"] == trouble


def test_sums_are_not_held_against_a_version_that_was_published_while_they_were_made(world):
    """Devices have then compared with one version or the other."""
    here = world(GOOD, OLD_BAD)
    for _ in range(3):
        here.run_round()
    here.publish(1)  # the round about version 4 is open
    here.run_round()
    told = status(here.database)
    assert told["versions"][-1]["version"] == 4
    assert told["versions"][-1]["against"] is None
    here.publish(1)  # of which those of version 2 tell, and no others
    assert "is worse than version 2" in status(here.database)["quality_trouble"]
