"""The study of poisoning: its file, its tables, and that its claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.errors import ConfigError
from sottovoce_papers import stuffed
from sottovoce_papers.poisoning import Case, PoisoningConfig, TargetDataConfig, as_claims, as_rows
from sottovoce_papers.stuffed import ITEMS, Stuffed, StuffedConfig


class FakeWorld:
    def __init__(self, source):
        self.config = TargetDataConfig(source)


class FakeStudy:
    def __init__(self):
        self.config = PoisoningConfig((), shares=(0.01,), attacks=("twin",))
        self.worlds = [FakeWorld("somewhere")]


def found(defended_exposure=0.02, defended_accuracy=0.2):
    clean = [0.0, 0.0, 0.1, 0.2, 0.5]
    return {
        Case(0, "direct"): clean,
        Case(0, "direct", "twin", 0.01, 3): [1.0, 1.0, 0.1, 0.15, 0.5],
        Case(0, "direct", "twin", 0.01, 4): [0.5, 1.0, 0.1, 0.15, 0.5],
        Case(0, "direct, defended"): clean,
        Case(0, "direct, defended", "twin", 0.01, 3): [
            defended_exposure, 0.1, 0.1, defended_accuracy, 0.5,
        ],
    }  # fmt: skip


def holds(figures):
    study = FakeStudy()
    return [c["holds"] for c in as_claims(study, as_rows(study, figures))]


def test_rows_are_means_over_targets():
    rows = as_rows(FakeStudy(), found())
    attacked = next(r for r in rows if r["way"] == "direct" and r["attack"] == "twin")
    assert attacked["ER@10"] == 0.75
    assert attacked["lost"] == pytest.approx(0.25)


def test_claims_fail_where_the_defence_does():
    assert holds(found()) == [True, True]
    assert holds(found(defended_exposure=0.06)) == [True, False]
    assert holds(found(defended_accuracy=0.19)) == [True, False]


@pytest.mark.parametrize("quick", [True, False])
def test_the_installed_file_is_read(quick):
    settings = PoisoningConfig.read(quick)
    assert 0.01 in settings.shares
    assert settings.worlds[0].source == "movielens-100k"


def test_unknown_attacks_raise():
    with pytest.raises(ConfigError, match="no attack"):
        PoisoningConfig((), attacks=("magic",))


# --- gram -----------------------------------------------------------------------------------------

SMALL = StuffedConfig(
    sources=("somewhere",), epsilons=(1.0,), recency=(True,), shares=(0.01, 0.05), draws=2,
    targets=2, partners=(5, 15),
)  # fmt: skip


def items_of(case, kind):
    first = 10 * ITEMS.index(kind)
    return [first, first + 1]


def figures(reached=0.04, fallen=0.3, accuracy=0.1):
    """Of every case: what would be found if attacks with 15 partners did most."""
    found = {}
    for case in stuffed.cases(SMALL, items_of):
        loved = case.items == "most popular"
        if not case.attack:
            asked = sorted(item for kind in ITEMS for item in items_of(case, kind))
            shown = np.where(np.array(asked) >= 30, 0.32, 0.0)
            good = accuracy if case.link == "checked sum" else 0.1
            found[case] = {"items": np.array(asked), "exposure": shown, "P@10": np.array(good)}
        elif case.link == "secure sum" and case.attack != "fakes":
            found[case] = {"exposure": np.array(0.0 if loved else 1.0)}
        elif loved:
            found[case] = {"exposure": np.array(fallen if case.partners == 15 else 0.32)}
        else:
            found[case] = {"exposure": np.array(reached if case.partners == 15 else 0.01)}
    return found


def test_of_gram_the_attack_is_told_that_did_most():
    rows = stuffed.as_rows(figures())
    pushed = [r for r in rows if r["link"] == "checked sum" and r["attack"] == "stuffing"]
    assert {r["partners"] for r in pushed} == {15}
    assert {round(r["moved"], 9) for r in pushed} == {0.04}
    demoted = [r for r in rows if r["link"] == "checked sum" and r["attack"] == "demotion"]
    assert {(r["partners"], round(r["moved"], 9)) for r in demoted} == {(15, 0.02)}
    alone = [r for r in rows if r["malicious"] == "one device"]
    assert {r["link"] for r in alone} == {"secure sum"}
    assert len(rows) == len({tuple(map(str, r.values())) for r in rows})


def test_claims_about_gram_fail_where_checks_do():
    def failing(found):
        return [c["claim"] for c in stuffed.as_claims(stuffed.as_rows(found)) if not c["holds"]]

    assert failing(figures()) == []
    assert len(failing(figures(reached=0.06))) == 6  # three kinds of items, two shares
    assert len(failing(figures(fallen=0.2))) == 2
    (dear,) = failing(figures(accuracy=0.097))
    assert "costs gram at most 2.5%" in dear
    weak = {
        case: {"exposure": np.array(0.2)} if case.attack and case.link == "secure sum" else one
        for case, one in figures().items()
    }
    (owned,) = failing(weak)
    assert "one device owns" in owned


def test_a_run_of_gram_that_is_attacked():
    """On the town, over both kinds of sum: exposure of what was asked, the same when run again."""
    for link in stuffed.LINKS:
        world = stuffed.StuffedWorld("town", 8.0, False, link, 1)
        clean = Stuffed("town", 8.0, False, link, 0)
        found = world.run(clean)
        assert found["items"].tolist() == sorted({i for kind in ITEMS for i in world.items(kind)})
        assert 0.0 < float(found["P@10"]) < 1.0
        (target,) = world.items("end of the head")
        pushed = replace(clean, attack="stuffing", items="end of the head", share=0.05,
                         target=target, partners=10)  # fmt: skip
        for case in (pushed, replace(pushed, attack="fakes"), replace(pushed, partners=0)):
            one, again = world.run(case), world.run(case)
            assert 0.0 <= float(one["exposure"]) <= 1.0
            assert one["exposure"] == again["exposure"]
        if link == "secure sum":
            assert float(world.run(replace(pushed, share=stuffed.ALONE))["exposure"]) > 0.9
        assert case.clean == clean


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_attacked_of_gram_is_in_the_file(quick):
    from sottovoce_papers.poisoning import Poisoning

    assert Poisoning.gram_settings(quick).sources[0] == "movielens-100k"


def test_nonsense_about_gram_is_refused():
    with pytest.raises(ConfigError, match="partners names"):
        StuffedConfig(partners=())
    with pytest.raises(ConfigError, match="draws"):
        StuffedConfig(draws=0)
