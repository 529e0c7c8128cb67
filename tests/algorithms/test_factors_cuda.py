"""The resident cohort against `factors.learn_summed`. The torch half runs anywhere; the kernels run
on a GPU, or slowly anywhere Triton is installed and TRITON_INTERPRET=1 is set."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.algorithms.pairwise import factors
from sottovoce.core.consent import ShareRule, thresholds
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")
from sottovoce.algorithms.pairwise import accelerated as factors_cuda  # noqa: E402
from sottovoce.algorithms.pairwise import triton as factors_triton  # noqa: E402

STEP = factors.PairStep(0.05, 0.0025, 0.002, 0.0003, 0.001)
GPU = torch.cuda.is_available()
INTERPRETED = factors_triton.AVAILABLE and os.environ.get("TRITON_INTERPRET") == "1"
KERNEL_DEVICE = "cuda" if GPU else "cpu"
kernels = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (INTERPRETED or (GPU and factors_triton.AVAILABLE)), reason="needs a GPU and Triton"
    ),
]
fused = pytest.param(True, id="kernels", marks=kernels)
both = pytest.mark.parametrize("fused", [pytest.param(False, id="torch"), fused])


@dataclass
class World:
    """A tiny federation, and the reference's way through its rounds."""

    model: NDArray[np.float32]
    vectors: NDArray[np.float32]
    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    share: NDArray[np.float64]
    users: NDArray[np.int64]
    takes_part: NDArray[np.bool_]
    allowed: NDArray[np.bool_]
    rng: Streams

    @classmethod
    def of(
        cls, seed: int, size: int, *, n_users: int = 60, n_items: int = 40, subset: bool = False
    ) -> World:
        """Users 0 and 1 cannot learn: one has no positives, the other has every item."""
        rng = Streams.from_seed(seed)
        draw = rng.child("world").generator()
        rows = [
            np.sort(draw.choice(n_items, draw.integers(1, n_items), replace=False))
            for _ in range(n_users)
        ]
        rows[0], rows[1] = rows[0][:0], np.arange(n_items)
        items = np.concatenate(rows).astype(np.int32)
        return cls(
            model=draw.normal(0, 0.3, (n_items, size + 1)).astype(np.float32),
            vectors=draw.normal(0, 0.3, (n_users, size)).astype(np.float32),
            indptr=np.cumsum([0, *map(len, rows)]),
            items=items,
            share=draw.choice([0.0, 0.3, 1.0], n_users),
            users=draw.permutation(1000)[:n_users].astype(np.int64),
            takes_part=draw.random(n_users) < 0.8,
            allowed=draw.random(len(items)) < 0.5 if subset else np.zeros(0, dtype=bool),
            rng=rng,
        )

    def able(self) -> NDArray[np.int64]:
        counts = np.diff(self.indptr)
        return np.flatnonzero(self.takes_part & (counts > 0) & (counts < len(self.model)))

    def keys(self, round: int) -> tuple[int, int]:
        return self.rng.child("learn", round).key, self.rng.child("share", round).key

    def reference(
        self, model: NDArray[np.float32], rows: NDArray[np.int64], round: int, triples: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """One round by `learn_summed`; `self.vectors` moves."""
        learn, share = (Streams(key).keys(self.users[rows]) for key in self.keys(round))
        rule = ShareRule(share, thresholds(self.share[rows]), self.allowed)
        return factors.learn_summed(
            STEP, model, self.vectors, rows, self.indptr, self.items, learn, triples, rule
        )

    def resident(self, device: str = "cpu") -> factors_cuda.CudaFederation:
        return factors_cuda.CudaFederation.load(
            STEP, self.model, self.vectors, self.indptr, self.items, self.share,
            users=self.users, takes_part=self.takes_part, allowed=self.allowed, device=device,
        )  # fmt: skip


def where(fused: bool) -> str:
    return KERNEL_DEVICE if fused else "cpu"


def learn(federation, keys, triples, fused, rows=None):  # type: ignore[no-untyped-def]
    counts = factors_cuda.learn_summed_cuda(
        STEP, federation.tables, federation.cohort, *keys, triples, rows, fused
    )
    return tuple(c.cpu().numpy() for c in counts)


def close(ours: NDArray[np.float32], theirs: NDArray[np.float32], relative: float) -> None:
    """The largest difference, relative to a typical value."""
    assert np.abs(ours - theirs).max() <= relative * np.sqrt(np.mean(np.square(theirs)))


@both
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize(("size", "triples"), [(10, 1), (10, 40), (32, 9), (50, 9), (3, 17)])
def test_a_round_equals_the_reference(size: int, triples: int, subset: bool, fused: bool) -> None:
    world = World.of(size * triples, size, subset=subset)
    federation = world.resident(where(fused))
    positives, negatives = learn(federation, world.keys(0), triples, fused)
    rows = world.able()
    sums, sent_i, sent_j = world.reference(factors.padded(world.model), rows, 0, triples)
    others = np.setdiff1d(np.arange(len(world.users)), rows)
    assert np.array_equal(positives[rows], sent_i)
    assert np.array_equal(negatives[rows], sent_j)
    assert not positives[others].any()
    assert not negatives[others].any()
    drift = np.abs(federation.sums() - sums[:, : size + 1])
    assert drift.max() <= 2 * len(rows) * triples
    assert drift.max() <= 1e-6 * np.abs(sums).max()
    close(federation.vectors(), world.vectors, 1e-6)


@both
def test_draws_are_the_references_draws(fused: bool) -> None:
    world = World.of(5, 4)
    federation = world.resident(where(fused))
    rows, triples = world.able(), 23
    keys, share_keys = world.keys(0)
    _, item, _ = factors.learn_rows(
        STEP, factors.padded(world.model), world.vectors.copy(), rows, world.indptr, world.items,
        Streams(keys).keys(world.users[rows]), triples,
    )  # fmt: skip
    coins = Streams(share_keys).words(world.users[rows], triples) >> np.uint64(32)
    leaves = coins < thresholds(world.share[rows])[:, None]
    device = federation.cohort.users.device
    signed = torch.tensor(np.array([keys, share_keys], dtype=np.uint64).view(np.int64))
    packed = torch.zeros(triples, len(rows), dtype=torch.int64, device=device)
    counts = torch.zeros(2, len(rows), dtype=torch.int32, device=device)
    draw = factors_triton.draw if fused else factors_cuda._draw_torch
    draw(
        federation.cohort, len(world.model), torch.tensor(rows, device=device),
        signed.to(device), packed, counts,
    )  # fmt: skip
    words = packed.T.cpu().numpy()
    negative, positive = item.reshape(len(rows), triples, 2).transpose(2, 0, 1)
    assert np.array_equal(words >> 32, positive)
    assert np.array_equal(words & 0x7FFFFFFF, negative)
    assert np.array_equal((words >> 31) & 1, leaves)


@both
def test_a_cohort_of_some_rows_is_the_same_as_alone(fused: bool) -> None:
    """Rows in any order, and devices one by one, add up to the same bits as all at once."""
    world = World.of(8, 10)
    whole, parts = world.resident(where(fused)), world.resident(where(fused))
    counts = learn(whole, world.keys(0), 6, fused)
    order = np.random.default_rng(0).permutation(len(world.users))
    for rows in (order[:1], order[1:7], order[7:]):
        some = learn(parts, world.keys(0), 6, fused, rows)
        assert np.array_equal(some[0], counts[0][rows])
        assert np.array_equal(some[1], counts[1][rows])
    assert np.array_equal(whole.sums(), parts.sums())
    assert np.array_equal(whole.vectors(), parts.vectors())


@both
def test_chunks_do_not_matter(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.of(9, 10)
    whole, chunked = world.resident(where(fused)), world.resident(where(fused))
    learn(whole, world.keys(0), 6, fused)
    monkeypatch.setattr(factors_cuda, "_CHUNK", 6 * 7 * (1 if fused else 16))
    learn(chunked, world.keys(0), 6, fused)
    assert np.array_equal(whole.sums(), chunked.sums())
    assert np.array_equal(whole.vectors(), chunked.vectors())


def test_every_item_has_rows_of_its_own() -> None:
    popularity = torch.tensor([1, 900, 2, 700, 3, 0])
    tables = factors_cuda.Tables.of(torch.zeros(6, 9), 8, popularity)
    first = tables.spare & ((1 << factors_triton.ROW_BITS) - 1)
    copies = 1 << (tables.spare >> factors_triton.ROW_BITS)
    for item in range(6):
        rows = tables.owner[int(first[item]) : int(first[item]) + int(copies[item])]
        assert len(rows) == copies[item]
        assert (rows == item).all()
    assert copies.sum() == len(tables.owner) == len(tables.halves)
    assert copies[1] >= 4 * copies[0]


def with_halves(world: World, device: str) -> factors_cuda.CudaFederation:
    made = world.resident(device)
    items = torch.tensor(world.model, device=device)
    popularity = torch.bincount(made.cohort.items, minlength=len(items))
    tables = factors_cuda.Tables.of(items, world.vectors.shape[1], popularity)
    return factors_cuda.CudaFederation(STEP, tables, made.cohort)


@pytest.mark.parametrize("fused", [fused])
@pytest.mark.parametrize("size", [3, 10, 32, 50])
@pytest.mark.parametrize("large", [False, True])
def test_two_sums_to_a_word_are_the_same_sums(
    size: int, large: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a number is too large for that, or the rows of an item are too few."""
    monkeypatch.setattr(factors_cuda, "_LEAST_HALVES", 1)
    monkeypatch.setattr(factors_cuda, "_ROWS", 64)
    loads: list[int] = []
    after = factors_cuda.ChunkPace.after
    monkeypatch.setattr(
        factors_cuda.ChunkPace,
        "after",
        lambda self, found: (loads.extend(found), after(self, found)),
    )
    world = World.of(size, size)
    if large:
        world.vectors *= 12
    plain, ours = world.resident(where(fused)), with_halves(world, where(fused))
    plain = factors_cuda.CudaFederation(
        STEP, factors_cuda.Tables.of(torch.tensor(world.model).to(where(fused)), size), plain.cohort
    )
    for round in range(2):
        counts = [learn(made, world.keys(round), 6, fused) for made in (plain, ours)]
        assert np.array_equal(counts[0], counts[1])
        assert np.array_equal(plain.sums(), ours.sums())
        assert np.array_equal(plain.vectors(), ours.vectors())
        plain.fold()
        ours.fold()
    assert loads
    assert (max(loads) > factors_triton.MOST_LOAD) == large
    assert not ours.tables.halves.any()
    assert not ours.tables.bias_halves.any()


def test_a_round_of_nobody_changes_nothing() -> None:
    world = World.of(3, 10)
    world.takes_part[:] = False
    federation = world.resident()
    positives, negatives = federation.round(*world.keys(0), 6)
    assert not positives.any()
    assert not negatives.any()
    assert np.array_equal(federation.model(), world.model)
    assert np.array_equal(federation.vectors(), world.vectors)


def test_loading_copies() -> None:
    world = World.of(3, 10)
    before = world.vectors.copy()
    world.resident().round(*world.keys(0), 6)
    assert np.array_equal(world.vectors, before)


def test_bad_input_is_refused() -> None:
    world = World.of(3, 10)
    federation = world.resident()
    with pytest.raises(ConfigError, match="triples"):
        federation.round(*world.keys(0), 0)
    with pytest.raises(ConfigError, match="bias"):
        World(**{**vars(world), "model": world.model[:, :10]}).resident()
    with pytest.raises(ConfigError, match="number of devices"):
        World(**{**vars(world), "share": world.share[1:]}).resident()
    if not GPU:
        with pytest.raises(ConfigError, match="no GPU"):
            world.resident("cuda")
    federation.tables.bias[0] = float("nan")
    with pytest.raises(Diverged):
        federation.model()


@pytest.mark.skipif(factors_triton.AVAILABLE, reason="Triton is installed")
def test_kernels_without_triton_say_so() -> None:
    world = World.of(3, 10)
    with pytest.raises(ConfigError, match="triton"):
        learn(world.resident(), world.keys(0), 6, True)


@pytest.mark.cuda
@pytest.mark.skipif(not (GPU and factors_triton.AVAILABLE), reason="needs a GPU and Triton")
@pytest.mark.parametrize("size", [1, 10, 32, 50, 100, 200, 300])
def test_kernels_repeat_themselves_bit_for_bit(size: int) -> None:
    """With thousands of devices in flight at once, in whatever order, and against torch."""
    world = World.of(size, size, n_users=5000, n_items=300)
    first, second, plain = (world.resident("cuda") for _ in range(3))
    for round in range(3):
        counts = [learn(f, world.keys(round), 33, True) for f in (first, second)]
        counts.append(learn(plain, world.keys(round), 33, False))
        assert all(np.array_equal(counts[0], other) for other in counts[1:])
        for federation in (first, second, plain):
            federation.fold()
    assert np.array_equal(first.model(), second.model())
    assert np.array_equal(first.vectors(), second.vectors())
    close(first.model(), plain.model(), 1e-5)
    close(first.vectors(), plain.vectors(), 1e-5)
