"""The closed form: against the printed equations, and the same bits in every setting."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from machines import fingerprint_without_vector_instructions
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.closed_form.vectors import Confidence
from sottovoce.core import one_bit
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.core.one_bit import ReportRule
from sottovoce.errors import DataError, Diverged
from sottovoce.rng import GAMMA, Streams
from sottovoce.testing import random_world

PAPER = Confidence(positive=11.0, other=1.0, reg=0.05)
POSITIVES_ONLY = Confidence(positive=1.0, other=0.0, reg=1.0)
CONFIDENCES = (PAPER, POSITIVES_ONLY, Confidence(positive=2.5, other=0.5, reg=1e-6))
SIZES = (1, 8, 33)
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class World:
    """A small federation."""

    indptr: NDArray[np.int64]
    history: NDArray[np.int32]
    items: NDArray[np.float32]

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.arange(len(self.indptr) - 1)

    def positives(self) -> NDArray[np.float64]:
        """p_ui, [devices, items]."""
        p = np.zeros((len(self.rows), len(self.items)))
        p[np.repeat(self.rows, np.diff(self.indptr)), self.history] = 1.0
        return p

    def solve(self, conf: Confidence, rows: Any = None, **options: Any) -> NDArray[np.float32]:
        rows = self.rows if rows is None else rows
        return closed_form.solve(conf, self.items, rows, self.indptr, self.history, **options)

    def call(self, learn: Any, conf: Confidence, vectors: Any, *more: Any, rows: Any = None) -> Any:
        """A function of closed_form for some of the devices, `vectors` being everyone's."""
        rows = self.rows if rows is None else rows
        return learn(conf, self.items, vectors[rows], rows, self.indptr, self.history, *more)

    def rule(self, reports: int, rows: Any = None, **change: Any) -> ReportRule:
        rows = self.rows if rows is None else rows
        epsilons = np.array([one_bit.lowest(e) for e in (0.5, 2.5, 6.0)], dtype=np.uint64)
        made = ReportRule(
            keys=Streams.from_seed(8).keys(rows),
            noise=one_bit.noise_keys(one_bit.noise_root(9), rows),
            round=2**32 + 3,
            low=epsilons[rows % 3],
            reports=reports,
            scale=0.8,
        )
        return replace(made, **change)


def world(
    size: int = 5, devices: int = 40, n_items: int = 1100, seed: int = 1, scale: float = 0.3
) -> World:
    """1100 items are two whole tiles and a part of one; one device has no item, one has many."""
    data = random_world(devices, n_items, 25 * devices, seed=seed)
    rows = [data.items[data.indptr[u] : data.indptr[u + 1]] for u in range(devices)]
    rows[1], rows[2] = rows[1][:0], np.arange(0, n_items, 2, dtype=np.int32)
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    items = scale * Streams.from_seed(seed).child("V").normal(np.arange(n_items), size)
    return World(indptr, np.concatenate(rows), items.astype(np.float32))


@pytest.fixture
def threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device is worth a thread."""
    monkeypatch.setattr(closed_form, "_WORTH_A_THREAD", 1)


# --- the equations -------------------------------------------------------------------------------


def confidences(conf: Confidence, p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(p > 0, conf.positive, conf.other)


@pytest.mark.parametrize("size", [*SIZES, 64, 128])
@pytest.mark.parametrize("conf", CONFIDENCES)
def test_vectors_solve_the_printed_system(size: int, conf: Confidence) -> None:
    w = world(size, devices=12, n_items=300)
    v, p = w.items.astype(np.float64), w.positives()
    x = w.solve(conf)
    for u in w.rows:
        c = np.diag(confidences(conf, p[u]))
        expected = np.linalg.solve(v.T @ c @ v + conf.reg * np.eye(size), v.T @ c @ p[u])
        np.testing.assert_allclose(x[u], expected, rtol=2e-5, atol=2e-6)
    assert not x[1].any(), "who has no item has no taste"


def updates(conf: Confidence, w: World, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """f(u, i), [devices, items, F], in double precision."""
    wide, p = x.astype(np.float64), w.positives()
    weight = confidences(conf, p) * (p - wide @ w.items.astype(np.float64).T)
    return weight[:, :, None] * wide[:, None, :]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("conf", CONFIDENCES)
def test_updates_are_the_printed_ones_on_the_grid(size: int, conf: Confidence) -> None:
    w = world(size)
    x = w.solve(conf)
    expected = updates(conf, w, x)
    rows = w.call(closed_form.learn_rows, conf, x)
    assert rows.dtype == np.int32
    slack = 0.5 / GRID + 1e-6 * np.abs(expected).max()
    assert np.abs(rows / GRID - expected).max() <= slack
    summed = closed_form.summed_gradient(conf, w.items, x, w.indptr, w.history)
    np.testing.assert_allclose(summed, expected.sum(axis=0), rtol=1e-10, atol=1e-12)


def test_updates_are_rounded_to_the_nearest_step_and_ties_to_even() -> None:
    w = World(np.array([0, 0]), np.zeros(0, np.int32), np.array([[1], [3], [5], [-3]], np.float32))
    x = np.array([[2.0**-12]], dtype=np.float32)
    conf = Confidence(1.0, 0.5, 0.0)  # f = −v/2 steps
    assert w.call(closed_form.learn_rows, conf, x)[0, :, 0].tolist() == [0, -2, -2, 2]
    assert w.call(closed_form.learn_summed, conf, x)[:, 0].tolist() == [0, -2, -2, 2]


# --- the same bits in every setting --------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 0.3, 30.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("conf", CONFIDENCES)
@pytest.mark.usefixtures("threads_at_once")
def test_sums_are_the_sum_of_rows(size: int, conf: Confidence, scale: float) -> None:
    """Also where 32 bits do not hold them, and where updates meet the limit."""
    w = world(size)
    x = (scale * Streams.from_seed(3).normal(w.rows, size)).astype(np.float32)
    rows = w.call(closed_form.learn_rows, conf, x)
    expected = rows.sum(axis=0, dtype=np.int64)
    if scale == 30.0:
        assert np.abs(rows).max() == LIMIT * GRID
        assert np.abs(expected).max() > 2**32
    for threads in (1, 2, 7):
        sums = w.call(closed_form.learn_summed, conf, x, threads)
        assert sums.dtype == np.int64
        assert np.array_equal(sums, expected)
    few = np.array([9, 2, 30])
    assert np.array_equal(
        w.call(closed_form.learn_summed, conf, x, rows=few), rows[few].sum(axis=0, dtype=np.int64)
    )


@pytest.mark.parametrize("size", [*SIZES, 40])
@pytest.mark.usefixtures("threads_at_once")
def test_a_vector_is_the_same_alone_in_any_batch_and_with_any_threads(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(size)
    monkeypatch.setattr(closed_form, "_WORTH_A_TABLE", 1)
    x = w.solve(PAPER)
    for threads in (2, 7):
        assert np.array_equal(w.solve(PAPER, threads=threads), x)
    order = np.random.default_rng(0).permutation(w.rows)[:17]
    assert np.array_equal(w.solve(PAPER, order), x[order])
    monkeypatch.setattr(closed_form, "_WORTH_A_TABLE", 10**9)
    assert np.array_equal(w.solve(PAPER), x), "a table of products changes nothing"
    for u in (0, 1, 2, 39):
        assert np.array_equal(w.solve(PAPER, np.array([u])), x[u : u + 1])


def test_summed_gradients_do_not_depend_on_threads() -> None:
    w = world()
    x = w.solve(PAPER)
    one, three = (
        closed_form.summed_gradient(PAPER, w.items, x, w.indptr, w.history, threads)
        for threads in (1, 3)
    )
    assert np.array_equal(one, three)


@pytest.mark.usefixtures("threads_at_once")
def test_reports_are_the_same_alone_in_any_batch_and_with_any_threads() -> None:
    w = world()
    x = w.solve(PAPER)
    whole = w.call(closed_form.learn_reports, PAPER, x, w.rule(50))
    for threads in (2, 7):
        again = w.call(closed_form.learn_reports, PAPER, x, w.rule(50), threads)
        assert np.array_equal(again, whole)
    for rows in (np.array([4]), np.array([30, 2, 1])):
        rule = w.rule(50, rows)
        some = w.call(closed_form.learn_reports, PAPER, x, rule, rows=rows)
        assert np.array_equal(some, whole[rows])
    fewer = w.call(closed_form.learn_reports, PAPER, x, w.rule(7))
    assert np.array_equal(fewer, whole[:, :7]), "report j does not depend on how many there are"


def fingerprint() -> str:
    w = world(7)
    x = w.solve(PAPER)
    digest = hashlib.blake2b(x.tobytes(), digest_size=8)
    digest.update(w.call(closed_form.learn_summed, PAPER, x).tobytes())
    digest.update(w.call(closed_form.learn_reports, PAPER, x, w.rule(40)).tobytes())
    digest.update(closed_form.summed_gradient(PAPER, w.items, x, w.indptr, w.history).tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_results_do_not_depend_on_vector_instructions(tmp_path: Path) -> None:
    assert fingerprint_without_vector_instructions("test_closed_form", tmp_path) == fingerprint()


# --- reports, as the contract words them ---------------------------------------------------------


def _mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def written_out(conf: Confidence, w: World, x: NDArray[np.float32], rule: ReportRule) -> Any:
    """Every report in plain integers, with the library's ChaCha20."""
    n_items, size = w.items.shape
    g = -2.0 * updates(conf, w, x)
    out = np.zeros((len(x), rule.reports), dtype=np.uint32)
    for n in range(len(x)):
        key = rule.noise[n].astype("<u4").tobytes()
        nonce = (0).to_bytes(4, "little") + rule.round.to_bytes(12, "little")
        stream = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(4 * rule.reports))
        coins = np.frombuffer(stream, "<u4").tolist()
        low = int(rule.low[n])
        for j in range(rule.reports):
            word = _mix(int(rule.keys[n]) + (j + 1) * int(GAMMA))
            item, factor = divmod((word * n_items * size) >> 64, size)
            y = min(1.0, max(-1.0, rule.scale * float(g[n, item, factor])))
            limit = low + (y + 1) / 2 * ((1 << 32) - 2 * low)
            out[n, j] = ((item * size + factor) << 1) | (coins[j] < limit)
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("conf", CONFIDENCES)
def test_reports_are_those_of_the_contract(size: int, conf: Confidence) -> None:
    w = world(size)
    x = w.solve(conf)
    rule = w.rule(37)
    reports = w.call(closed_form.learn_reports, conf, x, rule)
    assert reports.shape == (len(w.rows), 37)
    assert np.array_equal(reports, written_out(conf, w, x, rule))


# --- what is refused -----------------------------------------------------------------------------


def all_of(w: World, x: NDArray[np.float32]) -> list[Any]:
    return [
        lambda: w.call(closed_form.learn_rows, PAPER, x),
        lambda: w.call(closed_form.learn_summed, PAPER, x),
        lambda: w.call(closed_form.learn_reports, PAPER, x, w.rule(3)),
        lambda: closed_form.summed_gradient(PAPER, w.items, x, w.indptr, w.history),
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e7, -1e30])
def test_what_is_not_finite_is_never_sent(value: float) -> None:
    w = world()
    x = w.solve(PAPER)
    items, vectors = w.items.copy(), x.copy()
    items[5, 2] = vectors[3, 1] = value
    spoilt = replace(w, items=items)
    for call in [lambda: spoilt.solve(PAPER), *all_of(spoilt, x), *all_of(w, vectors)]:
        with pytest.raises(Diverged):
            call()


def test_numbers_up_to_the_limit_stay_finite() -> None:
    w = replace(world(128, n_items=20), items=np.full((20, 128), -1e6, dtype=np.float32))
    w = replace(w, history=w.history % 1, indptr=np.minimum(w.indptr, 1))
    x = np.full((len(w.rows), 128), 1e6, dtype=np.float32)
    rows = w.call(closed_form.learn_rows, Confidence(1e9, 1e9, 0.0), x)
    assert np.all(rows == LIMIT * GRID)
    conf = Confidence(1e9, 1e9, 0.0)
    assert np.array_equal(w.call(closed_form.learn_summed, conf, x), rows.sum(0, dtype=np.int64))


@pytest.mark.parametrize("size", [3, 30])
def test_a_singular_system_is_refused_with_what_to_do(size: int) -> None:
    w = world(size)
    flat = np.repeat(w.items[:, :1], size, axis=1)
    for bad, conf in [
        (replace(w, items=flat), replace(PAPER, reg=0.0)),
        (replace(w, items=np.zeros_like(flat)), replace(PAPER, reg=0.0)),
        (w, replace(POSITIVES_ONLY, reg=0.0)),  # a device without items
    ]:
        with pytest.raises(Diverged, match="set reg above 0"):
            bad.solve(conf)
    assert np.isfinite(replace(w, items=flat).solve(PAPER)).all()


@pytest.mark.parametrize("where", ["beyond", "negative", "pointers", "past the end"])
def test_histories_that_are_none_are_refused(where: str) -> None:
    w = world()
    x = w.solve(PAPER)
    history, indptr = w.history.copy(), w.indptr.copy()
    if where == "beyond":
        history[indptr[1] - 1] = 1100
    elif where == "negative":
        history[0] = -1
    elif where == "pointers":
        indptr[3] = indptr[4] + 1
    else:
        indptr[-1] += 1
    bad = replace(w, history=history, indptr=indptr)
    for call in [lambda: bad.solve(PAPER), *all_of(bad, x)]:
        with pytest.raises(DataError, match="history"):
            call()


def test_sums_notice_a_history_out_of_order() -> None:
    w = world()
    history = w.history.copy()
    history[w.indptr[2] : w.indptr[3]] = history[w.indptr[2] : w.indptr[3]][::-1]
    with pytest.raises(DataError, match="ascend"):
        replace(w, history=history).call(closed_form.learn_summed, PAPER, w.solve(PAPER))


def test_shapes_that_do_not_fit_are_refused() -> None:
    w = world()
    x = w.solve(PAPER)
    for call in [
        lambda: w.solve(PAPER, np.array([40])),
        lambda: w.solve(PAPER, np.array([-1])),
        lambda: replace(w, items=np.zeros((5, 0), np.float32)).solve(PAPER),
        lambda: replace(w, items=np.zeros((5, 129), np.float32)).solve(PAPER),
        lambda: w.call(closed_form.learn_reports, PAPER, x, w.rule(3, w.rows[:4])),
        *all_of(w, x[:, :3]),
    ]:
        with pytest.raises(DataError):
            call()


def test_nobody_taking_part_is_no_error() -> None:
    w = world()
    nobody = w.rows[:0]
    x = w.solve(PAPER)
    assert w.solve(PAPER, nobody).shape == (0, 5)
    assert w.call(closed_form.learn_reports, PAPER, x, w.rule(3, nobody), rows=nobody).size == 0
    assert not w.call(closed_form.learn_summed, PAPER, x, rows=nobody).any()
