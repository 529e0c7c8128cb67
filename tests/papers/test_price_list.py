"""The price list: its file, its claims, and a small one from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import sottovoce_papers as reproduce
from sottovoce.attacks.views import PERMITTED, Result
from sottovoce.core.links import SEALED_SEED_BYTES
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import AttackFailed
from sottovoce.experiment import Experiment
from sottovoce.privacy.central import price
from sottovoce.runs.card import Card, Failed
from sottovoce_papers import costs, price_list
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import StudyLine
from sottovoce_papers.experiments import experiment_of
from sottovoce_papers.files import StudyFile, installed, run
from sottovoce_papers.lines import Job
from sottovoce_papers.worlds import StudyData

TOWN = generate_town(TownConfig(residents=150, venues=80))
FPL = {"configuration": "pFPL+", "embedding_size": 4, "rounds": 3}
SUM = {"name": "secure-sum", "min_devices": 20}
HALF = {"mix": [{"weight": 80, "share_positives": 0.5}, {"weight": 20, "takes_part": False}]}
NONE = {"mix": [{"weight": 80, "share_positives": 0.0}, {"weight": 20, "takes_part": False}]}


def quiet(what, done, total):
    pass


def fpl(words, kind, **settings):
    common = {"algorithm": FPL, "consent": HALF, "attack_rounds": 1}
    return {
        "label": "FPL",
        "words": words,
        "kind": "attacked",
        "row": {"kind": kind},
        "settings": {**common, **settings},
    }


SYSTEMS = {
    "fpl-nothing": fpl("as printed, π = 0", "printed", consent=NONE, release={"per": "draw"}),
    "fpl-direct": fpl("direct", "other"),
    "fpl-sum": fpl("secure sum", "sound", link=SUM),
    "fpl-noise": fpl("noise", "sound", link={**SUM, "clip": 1.0}, epsilon=8.0, pays="sums"),
    "top-pop": {
        "label": "Top-Pop",
        "kind": "experiment",
        "settings": {"baseline": {"name": "top-pop"}},
    },
}


def table(*keys):
    whole, ways = installed("price-list"), keys or tuple(key for key in SYSTEMS if key != "top-pop")
    sets = {"main": [{"systems": list(ways)}], "floor": [{"systems": ["top-pop"]}]}
    data = {"town": {"source": "town"}}
    return {**whole, "systems": SYSTEMS, "sets": sets, "data": data, "study": {}}


@pytest.fixture
def small_town(monkeypatch):
    monkeypatch.setattr(Experiment, "dataset", lambda self, *_: TOWN)


def made(place, *keys):
    cells = Cells(place / "cells", 1, quiet)
    return run("price-list", table(*keys), cells, place / "out")


def test_a_small_list_from_end_to_end(tmp_path, small_town):
    found = made(tmp_path)
    assert Path(found["report"]).exists()
    assert list((tmp_path / "out" / "figures").glob("price-list*.svg"))
    tables = found.pop("tables")
    json.dumps(found, allow_nan=False)
    rows = [row for row in found["rows"] if "set" not in row]
    attacks = [row for row in found["rows"] if row.get("set") == "attacks"]
    assert [len(one.rows) for one in tables] == [4, len(attacks)]
    printed, direct, summed, noisy = rows
    assert "A1" in printed["broken"]
    assert "A1" in direct["broken"]
    assert direct["model"] == summed["model"] != noisy["model"]
    items = summed["down"] / (4 * 5)
    assert summed["up"] == 8 * items * 5 + SEALED_SEED_BYTES
    assert direct["up"] < summed["up"]
    assert price(noisy["noise"], 3) <= 8.0
    claims = {claim["claim"]: claim["holds"] for claim in found["claims"]}
    assert [holds for text, holds in claims.items() if "bit for bit" in text] == [True]
    assert len([text for text in claims if "hidden positives" in text]) == 1
    assert made(tmp_path)["rows"] == found["rows"]


def test_a_cell_is_not_run_twice(tmp_path, small_town, monkeypatch):
    runs = []

    def attacker(folder, **_):
        runs.append(folder)
        return Card("x", (result(),), ())

    monkeypatch.setattr(costs, "attack_run", attacker)
    first = made(tmp_path, "fpl-sum")["rows"]
    assert (made(tmp_path, "fpl-sum")["rows"], len(runs)) == (first, 1)
    monkeypatch.setitem(SYSTEMS["fpl-sum"]["settings"], "attack_rounds", 2)
    made(tmp_path, "fpl-sum")
    assert len(runs) == 2
    assert not any(folder.exists() for folder in runs)


def test_nothing_is_kept_if_an_attack_falls_over(tmp_path, small_town, monkeypatch):
    broken = Card("x", (), (), failed=(Failed("A1", "an attack", "server", "oh"),))
    monkeypatch.setattr(costs, "attack_run", lambda *_, **__: broken)
    with pytest.raises(AttackFailed, match="A1 an attack: oh"):
        made(tmp_path, "fpl-sum")
    whole = Card("x", (result(high=0.15),), ())
    monkeypatch.setattr(costs, "attack_run", lambda *_, **__: whole)
    assert made(tmp_path, "fpl-sum")["rows"][0]["held"] == "A1"


# --- columns and claims ---------------------------------------------------------------------------


def result(code="A1", value=0.1, low=0.0, high=0.2, base=0.1, party="server", recall=math.nan):
    return Result(code, "an attack", party, "x", "precision", value, (low, high), base, recall, 9)


def facts(*results, seed=0, model="d", seconds=1.0, up=1.0):
    return {
        "attacks": Card("x", results, ()).attacks(),
        "seed": seed,
        "model": model,
        "round seconds": seconds,
        "round up": up,
        "round down": 1.0,
        "devices": 1,
        "rounds": 1,
        "noise": 0.0,
    }


def line(key, *several, p=0.1):
    system = SYSTEMS[key]
    row = {"data": "town", "system": "FPL", "key": key, "settings": system["words"], "P@10": p}
    row |= {**system["row"], "epsilon": system["settings"].get("epsilon")}
    one = StudyLine(row, facts=several)
    row.update(price_list.columns(one))
    return one


def test_of_several_seeds_every_attack_counts():
    won, lost = result(value=0.5, low=0.4, high=0.6), result()
    strong = result("A3", 0.9, 0.8, 1.0)
    row = line(
        "fpl-sum",
        facts(won, result("A3"), seed=3, model="a", seconds=2.0),
        facts(lost, strong, seed=5, model="b", seconds=3.0),
        facts(lost, strong, seed=6, model="b", seconds=1.5),
    ).row
    assert (row["round seconds"], row["model"]) == (1.5, "a+b+b")
    assert row["broken"] == "A1 (1 of 3 seeds), A3 (2 of 3 seeds)"
    assert line("fpl-sum", facts(won)).row["broken"] == "A1"


def claims_of(*lines):
    sets = {"main": list(lines)}
    sets["attacks"] = price_list.attacks(sets, {})
    made = [
        claim
        for spec in installed("price-list")["claims"]
        for claim in getattr(price_list, spec["test"].split(":")[1])(sets, spec)
    ]
    return {claim["claim"]: claim for claim in made}


def ways(*found, p=0.1):
    return [line(key, one) for key, one in zip(SYSTEMS, found, strict=False)]


def one(claims, words):
    (found,) = [claim for text, claim in claims.items() if words in text]
    return found["holds"]


@pytest.mark.parametrize(
    ("recall", "low", "holds"), [(0.97, 0.9, True), (0.9, 0.9, False), (0.97, 0.0, False)]
)
def test_a1_must_find_nearly_all(recall, low, holds):
    printed = facts(result(value=0.95, low=low, high=1.0, recall=recall))
    assert one(claims_of(*ways(printed)), "hidden positives") is holds


def test_an_attack_that_was_not_run_proves_nothing():
    assert one(claims_of(*ways(facts())), "hidden positives") is False


def test_an_attack_that_wins_against_a_sound_way_is_named():
    weak, strong = result(high=0.15), result("A3", 0.9, 0.8, 1.0)
    held = claims_of(*ways(facts(weak), facts(weak), facts(weak)))
    lost = claims_of(*ways(facts(weak), facts(weak), facts(weak, strong)))
    assert one(held, "secure sum: no attack") is True
    assert one(lost, "secure sum: no attack") is False
    detail = next(c["detail"] for text, c in lost.items() if "secure sum: no attack" in text)
    assert "A3" in detail
    assert "A1" not in detail
    few = claims_of(*ways(facts(weak), facts(weak), facts(result())))
    detail = next(c["detail"] for text, c in few.items() if "secure sum: no attack" in text)
    assert "A1" in detail
    assert detail.endswith("underpowered")


def test_membership_has_a_claim_of_its_own_with_what_noise_costs():
    leak, closed = result("A12", 0.7, 0.6, 0.8, 0.5), result("A12", 0.5, 0.47, 0.53, 0.5)

    def with_noise(found, p=0.1):
        return claims_of(*ways(facts(), facts(), facts(leak)), line("fpl-noise", facts(found), p=p))

    claims = with_noise(closed, 0.05)
    assert one(claims, "tells nothing of members") is False
    assert one(claims, "noise for ε = 8 closes A12") is True
    assert one(claims, "FPL, secure sum: no attack") is True
    assert any("(-50%)" in claim["detail"] for claim in claims.values())
    assert one(with_noise(result("A12", 0.5, 0.4, 0.6, 0.5)), "noise for ε = 8 closes") is False
    # That ε permits more than a coin does not close anything.
    for value, holds in ((0.5, True), (0.55, False)):
        found = replace(result("A12", value, value - 0.02, value + 0.02, 0.86), measure=PERMITTED)
        assert found.verdict == "holds"
        assert one(with_noise(found), "noise for ε = 8 closes A12") is holds


def test_another_model_is_seen():
    claims = claims_of(*ways(facts(), facts(model="d"), facts(model="e")))
    assert one(claims, "bit for bit") is False


# --- the file -------------------------------------------------------------------------------------


def test_rare_items_are_cut_from_the_data_of_one_way(tmp_path):
    study = StudyFile("price-list", installed("price-list"))
    (known,) = [one for one in study.systems if one.key == "fcf-known"]
    world = StudyData(source="town").world("town")
    settings, _ = known.on(world)
    made = experiment_of(Job(world, settings, "test", 0, (0.0,), Cells(tmp_path, 1, quiet)))
    assert made.data.min_item_users == 10
    assert "price-list" in reproduce.NAMES
