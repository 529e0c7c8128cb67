"""The price list: its file, its claims, and a small one from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import sottovoce_papers as reproduce
from sottovoce.attacks.views import PERMITTED, Result
from sottovoce.core.links import SEALED_SEED_BYTES
from sottovoce.errors import ConfigError
from sottovoce.privacy.central import price
from sottovoce.runs.card import Card
from sottovoce_papers import price_list as price_claims
from sottovoce_papers.price_cells import PriceCell, PriceConfig, PriceRow, PriceStudy
from sottovoce_papers.price_list import _broken, price_list

DATA = {"town": {"source": "town"}}
FPL = {"configuration": "pFPL+", "embedding_size": 4, "rounds": 3}
SUM = {"name": "secure-sum", "min_devices": 20}
HALF = {"mix": [{"weight": 80, "share_positives": 0.5}, {"weight": 20, "takes_part": False}]}
NONE = {"mix": [{"weight": 80, "share_positives": 0.0}, {"weight": 20, "takes_part": False}]}


def quiet(what, done, total):
    pass


def fpl(label, kind, **more):
    table = {"system": "FPL", "label": label, "kind": kind, "algorithm": FPL, "consent": HALF}
    return PriceRow.of({**table, **more}, 0)


ROWS = [
    fpl("as printed, π = 0", "printed", consent=NONE, rounds=1, release={"per": "draw"}),
    fpl("direct", "other", rounds=1),
    fpl("secure sum", "sound", link=SUM, rounds=1),
    fpl("noise", "sound", link={**SUM, "clip": 1.0}, epsilon=8.0, rounds=1),
]


def study(tmp_path, rows=ROWS, **more):
    small = {"town": {"source": "town"}}
    return PriceStudy(
        PriceConfig(sources=("town",)), small, rows, tmp_path / "cells", 1, quiet, **more
    )


@pytest.fixture
def small_town(monkeypatch):
    original = PriceRow.experiment

    def shrunk(self, source, data, seed):
        made = original(self, source, data, seed)
        table = {**made.table, "town": {"residents": 150, "venues": 80}}
        return type(made).from_table(table)

    monkeypatch.setattr(PriceRow, "experiment", shrunk)


def test_a_small_list_from_end_to_end(tmp_path, small_town):
    found = price_list(study(tmp_path), tmp_path / "out")
    assert Path(found["report"]).exists()
    for suffix in ("png", "svg"):
        assert (tmp_path / "out" / "figures" / f"price-list-town.{suffix}").exists()
    tables = found.pop("tables")
    json.dumps(found, allow_nan=False)
    assert [len(table.rows) for table in tables] == [4, len(found["attacks"])]
    printed, direct, summed, noisy = found["rows"]
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


def test_a_cell_is_not_run_twice(tmp_path, small_town):
    runs = []

    def attacker(folder, rounds, threads):
        runs.append(folder)
        return Card("x", (result(),), ())

    made = study(tmp_path, ROWS[2:3], attacker=attacker)
    first = made.cell(ROWS[2], "town")
    again = study(tmp_path, ROWS[2:3], attacker=attacker).cell(ROWS[2], "town")
    assert (first, len(runs)) == (again, 1)
    made.cell(replace(ROWS[2], rounds=2), "town")
    assert len(runs) == 2
    assert not any(folder.exists() for folder in runs)


def result(code="A1", value=0.1, low=0.0, high=0.2, base=0.1, party="server", recall=math.nan):
    return Result(code, "an attack", party, "x", "precision", value, (low, high), base, recall, 9)


def cell(*results, digest="d", p=0.1):
    return PriceCell.joined({0: of_one_seed(*results, digest=digest, p=p)})


def of_one_seed(*results, digest="d", p=0.1, seconds=1.0):
    attacks = tuple(Card("x", results, ()).attacks())
    return PriceCell(
        {"P@10": p, "NDCG@10": p}, 0.05, "", "", 1, 1, 1.0, 1.0, seconds, digest, 0.0, attacks, ()
    )


def test_of_several_seeds_there_is_the_mean_and_every_attack():
    won, lost = result(value=0.5, low=0.4, high=0.6), result()
    found = PriceCell.joined({
        3: of_one_seed(won, result("A3"), digest="a", p=0.1, seconds=2.0),
        5: of_one_seed(lost, result("A3", 0.9, 0.8, 1.0), digest="b", p=0.2, seconds=3.0),
        6: of_one_seed(lost, result("A3", 0.9, 0.8, 1.0), digest="b", p=0.3, seconds=1.5),
    })  # fmt: skip
    assert found.accuracy["P@10"] == pytest.approx(0.2)
    assert (found.seconds, found.digest) == (1.5, "a+b+b")
    assert [a["seed"] for a in found.attacks] == [3, 3, 5, 5, 6, 6]
    assert price_claims.broken_codes(found) == ["A1", "A3"]
    assert _broken(found) == ["A1 (1 of 3 seeds)", "A3 (2 of 3 seeds)"]
    assert _broken(PriceCell.joined({0: of_one_seed(won)})) == ["A1"]


def test_of_several_seeds_there_is_every_attack_that_was_left_out():
    one, other = ({"code": code, "reason": "no such message"} for code in ("A2", "A7"))
    left = {0: (one,), 1: (dict(one), other), 2: (), 3: ({**one, "reason": "too few"},)}
    cells = {seed: replace(of_one_seed(), left_out=each) for seed, each in left.items()}
    assert PriceCell.joined(cells).left_out == (one, other, {**one, "reason": "too few"})


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_are_named_once_each(seeds):
    with pytest.raises(ConfigError, match="seeds"):
        PriceConfig(seeds=seeds)


def claims_of(tmp_path, *cells):
    made = study(tmp_path, ROWS[: len(cells)])
    found = list(zip(ROWS, cells, strict=False))
    return {c["claim"]: c for c in price_claims.every_claim(made, "town", found)}


def one(claims, words):
    (found,) = [claim for text, claim in claims.items() if words in text]
    return found["holds"]


@pytest.mark.parametrize(("recall", "low", "holds"), [(0.97, 0.9, True), (0.9, 0.9, False),
                                                      (0.97, 0.0, False)])  # fmt: skip
def test_a1_must_find_nearly_all(tmp_path, recall, low, holds):
    printed = cell(result(value=0.95, low=low, high=1.0, recall=recall))
    assert one(claims_of(tmp_path, printed), "hidden positives") is holds


def test_an_attack_that_wins_against_a_sound_way_is_named(tmp_path):
    weak, strong = result(high=0.15), result("A3", 0.9, 0.8, 1.0)
    held = claims_of(tmp_path, cell(weak), cell(weak), cell(weak))
    lost = claims_of(tmp_path, cell(weak), cell(weak), cell(weak, strong))
    assert one(held, "secure sum: no attack") is True
    assert one(lost, "secure sum: no attack") is False
    detail = next(c["detail"] for text, c in lost.items() if "secure sum: no attack" in text)
    assert "A3" in detail
    assert "A1" not in detail
    few = claims_of(tmp_path / "few", cell(weak), cell(weak), cell(result()))
    detail = next(c["detail"] for text, c in few.items() if "secure sum: no attack" in text)
    assert "A1" in detail
    assert detail.endswith("underpowered")


def test_membership_has_a_claim_of_its_own_with_what_noise_costs(tmp_path):
    leak, closed = result("A12", 0.7, 0.6, 0.8, 0.5), result("A12", 0.5, 0.47, 0.53, 0.5)
    claims = claims_of(tmp_path, cell(), cell(), cell(leak), cell(closed, p=0.05))
    assert one(claims, "tells nothing of members") is False
    assert one(claims, "noise for ε = 8 closes A12") is True
    assert one(claims, "FPL, secure sum: no attack") is True
    assert any("(-50%)" in claim["detail"] for claim in claims.values())
    unclear = cell(result("A12", 0.5, 0.4, 0.6, 0.5))
    claims = claims_of(tmp_path / "few", cell(), cell(), cell(leak), unclear)
    assert one(claims, "noise for ε = 8 closes A12") is False
    # That ε permits more than a coin does not close anything.
    for value, closed in ((0.5, True), (0.55, False)):
        found = replace(result("A12", value, value - 0.02, value + 0.02, 0.86), measure=PERMITTED)
        claims = claims_of(tmp_path / str(value), cell(), cell(), cell(leak), cell(found))
        assert found.verdict == "holds"
        assert one(claims, "noise for ε = 8 closes A12") is closed


def test_another_model_is_seen(tmp_path):
    claims = claims_of(tmp_path, cell(), cell(digest="d"), cell(digest="e"))
    assert one(claims, "bit for bit") is False


@pytest.mark.parametrize(
    "table",
    [
        {"system": "FPL", "label": "x", "kind": "good"},
        {"system": "FPL", "label": "x"},
        {"system": "FPL", "label": "x", "kind": "sound", "colour": "red"},
    ],
)
def test_rows_that_make_no_sense_are_refused(table):
    with pytest.raises(ConfigError):
        PriceRow.of(table, 3)


def test_noise_needs_to_know_the_rounds():
    row = fpl("x", "sound", epsilon=1.0, link={**SUM, "clip": 1.0}, algorithm={"epochs": 2})
    with pytest.raises(ConfigError, match="rounds"):
        row.experiment("town", DATA["town"], 0)


@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick):
    made = PriceStudy.read("price-list", quick, tmp_path, 1, quiet)
    for source in made.config.sources:
        rows = made.rows_of(source)
        kinds = {(row.system, row.kind) for row in rows}
        systems = {row.system for row in rows}
        assert systems >= {"FPL", "FCF", "FMF-LDP", "UC-FedRec", "gram"}
        printed = systems - {"gram"}  # which nobody has printed
        assert kinds >= {(s, "sound") for s in systems} | {(s, "printed") for s in printed}
        for row in rows:
            assert row.experiment(source, made.data[source], 0).baselines


def test_it_is_among_what_can_be_reproduced(tmp_path, monkeypatch):
    made = study(tmp_path, ROWS[:1], attacker=lambda *_: Card("x", (), ()))
    monkeypatch.setattr(PriceStudy, "read", lambda *_: made)
    monkeypatch.setattr(PriceStudy, "cell", lambda *_: cell(result()))
    found = reproduce.run("price-list", quick=True, out=tmp_path / "o", threads=1, report=quiet)
    assert found["name"] == "price-list"
    assert found["rows"][0]["system"] == "FPL"
