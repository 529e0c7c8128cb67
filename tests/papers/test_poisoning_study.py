"""The study of poisoning: its file, its tables, and that its claims can fail."""

from dataclasses import replace

import pytest

from sottovoce.errors import ConfigError
from sottovoce_papers import claims
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import StudyLine
from sottovoce_papers.files import installed
from sottovoce_papers.lines import Job
from sottovoce_papers.poisoning import PoisonedKind, compared, settings_of
from sottovoce_papers.stuffed import (
    ITEMS,
    LINKS,
    StuffedKind,
    StuffedSettings,
    StuffedWorld,
    strongest,
)
from sottovoce_papers.worlds import StudyData, laid_over


def quiet(what, done, total):
    pass


def claims_of(sets, about):
    """The claims of the file that are about a set of rows, tested."""
    specs = [one for one in installed("poisoning")["claims"] if one.get("set", "main") == about]
    return [claim for spec in specs for claim in claims.tested(spec, sets)]


def line(way, attack="none", share=0.0, shown=0.0, accuracy=0.2):
    return StudyLine(
        {
            "data": "somewhere",
            "way": way,
            "attack": attack,
            "share": share,
            "system": "FPL",
            "ER@10": shown,
            "NDCG@10": accuracy,
        }
    )


def rows(defended_exposure=0.02, defended_accuracy=0.2):
    lines = [
        line("direct"),
        line("direct", "twin", 0.01, 0.75, 0.15),
        line("direct, defended"),
        line("direct, defended", "twin", 0.01, defended_exposure, defended_accuracy),
    ]
    return compared({"main": lines}, {})


def holds(lines):
    return [claim["holds"] for claim in claims_of({"main": lines}, "main")]


def test_rows_are_held_against_the_training_without_attack_and_defence():
    _, attacked, clean, _ = rows()
    assert attacked.row["more"] == 0.75
    assert attacked.row["lost"] == pytest.approx(0.25)
    assert (clean.row["more"], clean.row["lost"]) == (0.0, 0.0)
    reports = [
        line("published reports", accuracy=0.1),
        line("published reports, drawn coordinates", "bits", 0.01, accuracy=0.05),
    ]
    assert compared({"main": [*rows(), *reports]}, {})[-1].row["lost"] == 0.5


def test_claims_fail_if_the_defence_does():
    assert holds(rows()) == [True, True]
    assert holds(rows(defended_exposure=0.06)) == [True, False]
    assert holds(rows(defended_accuracy=0.19)) == [True, False]
    words = claims_of({"main": rows()}, "main")[1]["claim"]
    assert words.startswith("somewhere, direct, defended, 1.0% malicious: exposure at most 0.05")


def test_unknown_attacks_raise():
    with pytest.raises(ConfigError, match="no attack 'magic'"):
        settings_of({"attack": "magic"})
    with pytest.raises(ConfigError, match="no way 'post'"):
        settings_of({"way": "post"})


@pytest.mark.parametrize("way", ["direct, defended", "secure sums of groups, capped"])
def test_a_training_among_malicious_devices(tmp_path, way):
    """On the town: the mean over targets, the same if it is run again."""
    world = StudyData(source="town").world("town")
    small = {"way": way, "rounds": 2, "targets": 2, "embedding_size": 4, "share": 0.01}

    def run(attack):
        job = Job(world, {**small, "attack": attack}, "test", 0, (0.0,), Cells(tmp_path, 1, quiet))
        return PoisonedKind().train(job)

    for attack in ("none", "twin"):
        one, again = run(attack), run(attack)
        assert dict(one.facts) == dict(again.facts)
        assert 0.0 <= one.facts["ER@10"] <= one.facts["ER@20"] <= 1.0
        assert 0.0 < one.looks[0.0].mean("NDCG@10") < 1.0


# --- gram -----------------------------------------------------------------------------------------


def stuffed_line(facts, accuracy=None, **settings):
    s = StuffedSettings(**{"epsilon": 1.0, "targets": 2, **settings})
    names = ("epsilon", "recency", "link", "attack", "items", "share", "partners", "entry")
    row = {name: getattr(s, name) for name in names}
    row |= {"data": "somewhere", "system": "gram", "size": "", "P@10": accuracy}
    return StudyLine(row, facts=facts)


def figures(reached=0.04, fallen=0.3, accuracy=0.1, alone=1.0):
    """Rows in which attacks with 15 partners did most, with two draws of the noise."""
    shown = {str(10 * n + t): 0.32 if n == 3 else 0.0 for n in range(4) for t in range(2)}
    lines = []
    for link in LINKS:
        good = accuracy if link == "checked sum" else 0.1
        lines.append(stuffed_line([{"exposures": shown}] * 2, good, link=link))
        for attack in ("stuffing", "fakes", "demotion"):
            for items in ITEMS[3:] if attack == "demotion" else ITEMS[:3]:
                plain = link == "secure sum" and attack != "fakes"
                for share in (0.0,) if plain else (0.01, 0.05):
                    for partners in (5, 15):
                        most = partners == 15
                        if plain:
                            found = 0.0 if attack == "demotion" else alone
                        elif attack == "demotion":
                            found = fallen if most else 0.32
                        else:
                            found = reached if most else 0.01
                        for target in range(2):
                            item = str(10 * ITEMS.index(items) + target)
                            facts = [{"target": item, "exposure": found}] * 2
                            lines.append(
                                stuffed_line(
                                    facts,
                                    link=link,
                                    attack=attack,
                                    items=items,
                                    share=share,
                                    partners=partners,
                                    target=target,
                                )
                            )
    return lines


def strong(lines):
    return [one.row for one in strongest({"gram": lines}, {})]


def test_of_gram_the_attack_is_told_that_did_most():
    found = strong(figures())
    pushed = [r for r in found if r["link"] == "checked sum" and r["attack"] == "stuffing"]
    assert {r["partners"] for r in pushed} == {15}
    assert {round(r["moved"], 9) for r in pushed} == {0.04}
    demoted = [r for r in found if r["link"] == "checked sum" and r["attack"] == "demotion"]
    assert {(r["partners"], round(r["moved"], 9)) for r in demoted} == {(15, 0.02)}
    alone = [r for r in found if r["malicious"] == "one device"]
    assert {r["link"] for r in alone} == {"secure sum"}
    assert len(found) == len({tuple(map(str, r.values())) for r in found})


def test_claims_about_gram_fail_if_checks_do():
    def failing(lines):
        sets = {"gram": strongest({"gram": lines}, {})}
        return [c["claim"] for c in claims_of(sets, "gram") if not c["holds"]]

    assert failing(figures()) == []
    assert len(failing(figures(reached=0.06))) == 6  # three kinds of items, two shares
    assert len(failing(figures(fallen=0.2))) == 2
    (dear,) = failing(figures(accuracy=0.097))
    assert "costs gram at most 2.5%" in dear
    (owned,) = failing(figures(alone=0.2))
    assert "one device owns" in owned


def test_a_run_of_gram_that_is_attacked(tmp_path):
    """On the town, over both kinds of sum: exposure of what was asked, the same if run again."""
    data = StudyData(source="town").world("town")
    for link in LINKS:
        settings = StuffedSettings(epsilon=8.0, recency=False, link=link, targets=1)
        world = StuffedWorld(data.split("test", 0).train, settings)
        pushed = replace(
            settings, attack="stuffing", items="end of the head", share=0.05, partners=10
        )
        (target,) = world.items(pushed.items, 1)
        for case in (pushed, replace(pushed, attack="fakes"), replace(pushed, partners=0)):
            one, again = (world.exposure(world.trained(case, 0), target) for _ in range(2))
            assert 0.0 <= one <= 1.0
            assert one == again
        if link == "secure sum":
            alone = world.trained(replace(pushed, share=0.0), 0)
            assert world.exposure(alone, target) > 0.9
    values = {"epsilon": 8.0, "recency": False, "targets": 1}
    job = Job(data, values, "test", 0, (0.0,), Cells(tmp_path, 1, quiet))
    kind = StuffedKind()
    found = kind.train(job)
    assert set(found.facts["exposures"]) == {str(i) for k in ITEMS for i in world.items(k, 1)}
    assert 0.0 < found.looks[0.0].mean("P@10") < 1.0
    pushed = kind.train(job._replace(settings=laid_over(values, {"attack": "fakes"})))
    assert len(pushed.looks[0.0].users) == 0
    assert kind.key(job) == StuffedKind().key(job)


def test_nonsense_about_gram_is_refused():
    with pytest.raises(ConfigError, match="no link 'post'"):
        StuffedSettings(link="post")
    with pytest.raises(ConfigError, match="targets"):
        StuffedSettings(targets=0)
    with pytest.raises(ConfigError, match="target"):
        StuffedSettings(target=2)
