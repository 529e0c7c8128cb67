"""Sums of pairs by torch against the compiled loops: the same bits.

The torch path runs here on the CPU; on a machine with a GPU the same tests run there."""

import numpy as np
import pytest
from machines import here_and_on_a_gpu

from sottovoce.algorithms.gram import accelerated as torch_sums
from sottovoce.algorithms.gram.accelerated import ResidentProfiles, sum_pairs_on
from sottovoce.algorithms.gram.kernels import LARGEST_STEP, sum_pairs
from sottovoce.errors import DataError, UsageError

torch = pytest.importorskip("torch")
DEVICES = here_and_on_a_gpu()


def crowd(seed, users, size, share=0.3, most=LARGEST_STEP):
    rng = np.random.default_rng(seed)
    taken = rng.random((users, size)) < share
    steps = rng.integers(0, most + 1, (users, size))
    indptr = np.concatenate([[0], taken.sum(1).cumsum()])
    return indptr, np.nonzero(taken)[1].astype(np.int32), steps[taken].astype(np.int32)


def full(users, size, steps):
    """Users alike, with these steps at every place."""
    indptr = np.arange(users + 1, dtype=np.int64) * size
    place = np.tile(np.arange(size, dtype=np.int32), users)
    return indptr, place, np.full(users * size, steps, dtype=np.int32)


@pytest.fixture
def chunks(monkeypatch):
    """(users, chunk, largest number) of every product that is made."""
    made = []
    add = ResidentProfiles._add

    def spy(self, first, stop, chunk, total):
        largest = add(self, first, stop, chunk, total)
        made.append((stop - first, chunk, largest))
        return largest

    monkeypatch.setattr(ResidentProfiles, "_add", spy)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("users", "size"), [(1, 1), (7, 3), (300, 1), (900, 33), (2500, 130)])
def test_the_same_bits_as_the_compiled_loops(device, users, size):
    world = crowd(users, users, size)
    found = sum_pairs_on(*world, size, device)
    assert found.dtype == np.int64
    assert np.array_equal(found, sum_pairs(*world, size, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_sums_beyond_single_precision_are_exact(device, chunks, monkeypatch):
    """Odd numbers far above 2**24, which single precision does not have: chunks stay below."""
    monkeypatch.setitem(torch_sums._BYTES, device, 1 << 20)
    users, size = 30_000, 40
    world = crowd(5, users, size, share=0.5, most=301)
    found = sum_pairs_on(*world, size, device)
    assert np.array_equal(found, sum_pairs(*world, size, 1))
    assert found.min() > 1 << 24
    assert max(chunk for _, chunk, _ in chunks) > 64
    assert sum(n for n, _, largest in chunks if largest < 1 << 24) == users


@pytest.mark.parametrize("device", DEVICES)
def test_a_chunk_that_passes_the_limit_is_taken_again_in_halves(device, chunks, monkeypatch):
    """Users with small steps first, so that chunks grow; then the largest steps everywhere."""
    monkeypatch.setitem(torch_sums._BYTES, device, 1 << 12)
    size, few, many = 9, full(3_000, 9, 3), full(501, 9, LARGEST_STEP)
    indptr = np.concatenate([few[0], few[0][-1] + many[0][1:]])
    world = indptr, *(np.concatenate(both) for both in zip(few[1:], many[1:], strict=True))
    found = sum_pairs_on(*world, size, device)
    assert set(found.tolist()) == {3_000 * 9 + 501 * LARGEST_STEP**2}
    assert any(largest >= 1 << 24 for _, _, largest in chunks)
    assert any(chunk == 8 and largest == 8 << 20 for _, chunk, largest in chunks)


@pytest.mark.parametrize("device", DEVICES)
def test_fewest_users_of_a_chunk_never_reach_the_limit(device):
    assert torch_sums._FEWEST * LARGEST_STEP**2 < torch_sums._EXACT
    world = full(200, 3, LARGEST_STEP)
    assert set(sum_pairs_on(*world, 3, device).tolist()) == {200 * LARGEST_STEP**2}


@pytest.mark.parametrize("device", DEVICES)
def test_users_without_items_and_nobody(device):
    none = np.zeros(0, dtype=np.int32)
    assert sum_pairs_on(np.zeros(1, dtype=np.int64), none, none, 2, device).tolist() == [0, 0, 0]
    assert sum_pairs_on(np.zeros(9, dtype=np.int64), none, none, 2, device).tolist() == [0, 0, 0]
    indptr, one = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([1, 1])
    assert sum_pairs_on(indptr, one, np.array([3, 4]), 2, device).tolist() == [0, 25, 0]


def test_profiles_lie_there_in_four_bytes_a_place():
    profiles = ResidentProfiles.load(*crowd(1, 50, 20), 20, "cpu")
    assert profiles.place.element_size() + profiles.steps.element_size() == 4


@pytest.mark.parametrize("size", [1 << 15, (1 << 15) + 1])
def test_the_last_place_of_a_large_head_is_not_lost(size):
    profiles = ResidentProfiles.load(
        np.array([0, 1]), np.array([size - 1]), np.array([7]), size, "cpu"
    )
    assert profiles.place.tolist() == [size - 1]


@pytest.mark.parametrize(
    ("place", "steps"),
    [
        ([0, 3], [1, 1]),
        ([-1, 2], [1, 1]),
        ([1, 1], [1, 1]),
        ([2, 1], [1, 1]),
        ([0, 1], [1, LARGEST_STEP + 1]),
        ([0, 1], [-1, 1]),
        ([0, (1 << 16) + 1], [1, 1]),
    ],
)
@pytest.mark.parametrize("looked_at", [1, 1 << 26])
def test_profiles_that_are_none_are_refused(place, steps, looked_at, monkeypatch):
    monkeypatch.setattr(torch_sums, "_CHECKED", looked_at)
    indptr = np.array([0, 0, 2, 2, 4, 4])
    fine, one = [0, 2], [1, 1]
    assert sum_pairs_on(indptr, np.array(fine * 2), np.array(one * 2), 3, "cpu").any()
    with pytest.raises(DataError, match=r"ascend within 0 … 2 and have 0 to 1024 steps"):
        sum_pairs_on(indptr, np.array(fine + place), np.array(one + steps), 3, "cpu")


def test_torch_is_left_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        world = crowd(3, 100, 12)
        assert np.array_equal(sum_pairs_on(*world, 12, "cpu"), sum_pairs(*world, 12, 1))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_device_that_is_not_there_is_named():
    none = np.zeros(0, dtype=np.int32)
    with pytest.raises(UsageError, match="'nowhere'"):
        sum_pairs_on(np.zeros(1, dtype=np.int64), none, none, 2, "nowhere")
