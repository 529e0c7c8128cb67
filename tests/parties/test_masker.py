"""Both halves of a secure sum: which sums the proxy tells, and what the server takes for one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.links import SecureSum
from sottovoce.core.masking import expand, masked, seeds_from
from sottovoce.core.messages import GRID, MaskedReports, MaskSeeds, MaskSum
from sottovoce.errors import ConfigError, MessageError, WrongSum
from sottovoce.parties.helper import (
    NEVER,
    Helper,
    check_groups,
    set_name,
)
from sottovoce.parties.secure_sum import MaskedSum, sum_limit

ROWS, WIDTH = 30, 4
NUMBERS = ROWS * WIDTH
KEY = bytes(range(32))
LINK = SecureSum(min_devices=3)
NOISY = SecureSum(min_devices=3, clip=2.0, noise=1.5)
DRAW = np.random.default_rng(8)
UPDATES = DRAW.integers(-(2**20), 2**20, (12, ROWS, WIDTH))


def seeds_of(users, round=0):
    users = np.array(users, dtype=np.int64)
    return MaskSeeds(round, users, tuple(seeds_from(b"s" * 32, users, round)))


def sent_by(users, round=0):
    seeds = seeds_of(users, round)
    rows = [masked(UPDATES[u], seed) for u, seed in zip(users, seeds.seeds, strict=True)]
    return MaskedReports(round, seeds.sender, np.array(rows, np.uint64).reshape(-1, NUMBERS))


def masker(link=LINK):
    return Helper(link, NUMBERS, KEY)


def collected(users, round=0, link=LINK):
    total = MaskedSum(round, ROWS, WIDTH, link, 2.0**20)
    total.add(sent_by(users, round))
    return total


# --- the proxy ------------------------------------------------------------------------------------


def test_the_least_minimum_is_two_because_the_sum_over_one_is_its_update():
    with pytest.raises(ConfigError, match="min_devices"):
        SecureSum(min_devices=1)


def test_a_device_named_twice_does_not_make_up_the_numbers():
    with pytest.raises(MessageError, match="twice"):
        masker().sum_masks(seeds_of([4, 5, 5]))
    with pytest.raises(MessageError, match="twice"):
        check_groups(LINK, NEVER, 0, [[b"a", b"b", b"c", b"a"]])


def test_what_a_second_set_would_have_told():
    """The broken control: two proxies that do not know of each other's answers."""
    sums = []
    for users in ([1, 2, 3, 4], [1, 2, 3]):
        opened = collected(users).open(masker().sum_masks(seeds_of(users)))
        sums.append(opened.dense(ROWS))
    assert np.array_equal(sums[0] - sums[1], UPDATES[4])


def test_sets_have_names_of_their_own():
    names = {
        set_name(one)
        for one in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"a", b"b", b"c"], [b""], [])
    }
    assert len(names) == 6
    assert set_name([b"x", b"y"]) == set_name([b"y", b"x"])


def test_every_device_needs_one_seed_of_the_right_size():
    three = np.arange(3)
    with pytest.raises(MessageError, match="one seed"):
        masker().sum_masks(MaskSeeds(0, three, (KEY, KEY)))
    with pytest.raises(MessageError, match="32 bytes"):
        masker().sum_masks(MaskSeeds(0, three, (KEY, KEY, b"short")))


def test_noise_is_in_what_is_opened_once_whatever_the_number_of_devices():
    for users in ([1, 2, 3], list(range(12))):
        total = collected(users, link=NOISY)
        opened = total.open(masker(NOISY).sum_masks(seeds_of(users)))
        noise = opened.dense(ROWS) - UPDATES[users].sum(axis=0)
        assert np.array_equal(noise.ravel(), masker(NOISY).noise(0))
        # Of the size that the terms say: 1.5 times the largest norm, in steps of the grid.
        assert 0.8 < noise.std() / (1.5 * 2.0 * GRID) < 1.2
    assert masker(LINK).noise(0) is None
    assert not np.array_equal(masker(NOISY).noise(0), masker(NOISY).noise(1))
    other = Helper(NOISY, NUMBERS, bytes(32))
    assert not np.array_equal(masker(NOISY).noise(0), other.noise(0))


def test_nothing_secret_is_shown():
    assert "redacted" in repr(masker())
    assert KEY.hex() not in repr(masker())
    assert repr(seeds_of([1, 2, 3])) == "<MaskSeeds round=0 devices=3, redacted>"


# --- the server -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 11), min_size=3, max_size=12, unique=True),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3]),
)
def test_the_opened_sum_is_that_of_those_who_came(users, at_once, threads):
    total = MaskedSum(0, ROWS, WIDTH, LINK, 2.0**20)
    for start in range(0, len(users), at_once):
        total.add(sent_by(users[start : start + at_once]), threads)
    opened = total.open(masker().sum_masks(seeds_of(users[::-1]), threads))
    assert np.array_equal(opened.dense(ROWS), UPDATES[users].sum(axis=0))
    assert opened.devices == total.devices == len(users)
    assert opened.round == 0


def test_a_second_submission_of_a_device_is_refused_and_does_not_count():
    total = collected([1, 2, 3])
    for again in ([2], [4, 2], [5, 5]):
        with pytest.raises(MessageError, match="twice"):
            total.add(sent_by(again))
    opened = total.open(masker().sum_masks(seeds_of([1, 2, 3])))
    assert np.array_equal(opened.dense(ROWS), UPDATES[[1, 2, 3]].sum(axis=0))


def test_what_does_not_belong_here_is_refused():
    total = collected([1, 2, 3])
    with pytest.raises(MessageError, match="round 1 in round 0"):
        total.add(sent_by([4], round=1))
    with pytest.raises(MessageError, match="number for every number"):
        total.add(MaskedReports(0, np.array([4]), np.zeros((1, NUMBERS - 1), np.uint64)))
    with pytest.raises(MessageError, match="number for every number"):
        total.add(MaskedReports(0, np.array([4, 5]), np.zeros((1, NUMBERS), np.uint64)))


def answer(users, round=0, of=0):
    masks = masker().sum_masks(seeds_of(users, of)).masks
    return MaskSum(round, 4, masks)


WRONG = {
    "one seed missing": answer([1, 2, 3]),
    "one too many": answer([1, 2, 3, 4, 5]),
    "another device's": answer([1, 2, 3, 5]),
    "of another round": answer([1, 2, 3, 4], of=1),
    "nothing": MaskSum(0, 4, np.zeros(NUMBERS, np.uint64)),
    "one number of all is wrong": MaskSum(
        0, 4, answer([1, 2, 3, 4]).masks + np.where(np.arange(NUMBERS) == 77, 2**40, 0).astype("u8")
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_sum_of_masks_is_found_out(wrong):
    total = collected([1, 2, 3, 4])
    with pytest.raises(WrongSum, match="larger than these devices could have sent"):
        total.open(WRONG[wrong])
    right = total.open(answer([1, 2, 3, 4]))
    assert np.array_equal(right.dense(ROWS), UPDATES[[1, 2, 3, 4]].sum(axis=0))


def test_an_answer_to_another_question_is_found_out():
    total, masks = collected([1, 2, 3, 4]), answer([1, 2, 3, 4]).masks
    for told in (MaskSum(1, 4, masks), MaskSum(0, 3, masks), MaskSum(0, 5, masks)):
        with pytest.raises(WrongSum, match="was asked for 4 of round 0"):
            total.open(told)
    with pytest.raises(WrongSum, match="another size"):
        total.open(MaskSum(0, 4, masks[:-4]))


def test_a_device_that_sends_what_no_honest_one_does_spoils_the_round_and_is_found_out():
    total = collected([1, 2, 3])
    seed = seeds_of([4]).seeds[0]
    wild = np.full((ROWS, WIDTH), 2**50)
    total.add(MaskedReports(0, np.array([4]), masked(wild, seed)[None]))
    with pytest.raises(WrongSum, match="no honest one"):
        total.open(answer([1, 2, 3, 4]))


def test_a_single_masked_update_cannot_be_opened_with_the_sum():
    """What the server has: masked updates and one sum of masks."""
    told = answer([1, 2, 3, 4]).masks
    for one in sent_by([1, 2, 3, 4]).masked:
        guess = (one - told).view(np.int64)
        assert np.mean(np.abs(guess) < 2**55) < 0.05
    # The broken control: who has the seed as well reads everything.
    opened = sent_by([1]).masked[0] - expand(seeds_of([1]).seeds[0], NUMBERS)
    assert np.array_equal(opened.view(np.int64).reshape(ROWS, WIDTH), UPDATES[1])


def test_the_limit_of_a_sum_leaves_room_for_noise_and_none_for_what_cannot_be_added():
    assert sum_limit(LINK, 10, 100.0) == 1000
    assert sum_limit(SecureSum(clip=2.0), 10, 2.0**40) == 10 * 2 * int(GRID)
    noisy = sum_limit(NOISY, 10, 100.0)
    assert noisy > 1000 + 20 * 1.5 * 2.0 * GRID
    with pytest.raises(ConfigError, match="no room"):
        sum_limit(LINK, 10**6, 2.0**50)


# --- groups ---------------------------------------------------------------------------------------

GROUPED = SecureSum(min_devices=3, groups=3)
NOISY_GROUPS = SecureSum(min_devices=3, clip=2.0, noise=1.5, groups=3)


def groups_of(*groups, round=0):
    return [seeds_of(users, round) for users in groups]


@pytest.mark.parametrize("link", [GROUPED, NOISY_GROUPS])
def test_sums_over_groups_add_up_to_the_whole_with_noise_for_each(link):
    parts, proxy = ([1, 2, 3], [4, 5, 6], [7, 8, 9, 10]), masker(link)
    told = proxy.sum_groups(groups_of(*parts))
    noise = []
    for users, one in zip(parts, told, strict=True):
        opened = collected(users, link=link).open(one)
        assert opened.devices == len(users)
        noise.append(opened.dense(ROWS) - UPDATES[users].sum(axis=0))
    if not link.noise:
        assert not np.any(noise)
        return
    noise.append(proxy.noise(0).reshape(ROWS, WIDTH))
    for one, each in enumerate(noise):
        assert 0.8 < each.std() / (1.5 * 2.0 * GRID) < 1.2
        for other in noise[:one]:
            like = np.corrcoef(each.ravel(), other.ravel())[0, 1]
            assert abs(like) < 0.35, "no two sums share their noise"
    again = proxy.sum_groups(groups_of(*parts))
    assert all(np.array_equal(a.masks, b.masks) for a, b in zip(told, again, strict=True))
