"""The search for devices that spoil secure sums: how soon it finds them, and that it finds nobody
else, whatever those who do it think of."""

import json
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.core.links import SecureSum
from sottovoce.core.messages import GRID, MaskedReports, MaskSum
from sottovoce.errors import ConfigError, SpoiledSum
from sottovoce.parties.searching import SURE, Mark, Search, leniency
from sottovoce.parties.secure_sum import LENIENT, MaskedSum
from sottovoce.rng import Streams

LINK = SecureSum(min_devices=8, groups=8)
EVERYONE = list(range(64))


def draws(seed):
    return Streams.from_seed(seed).generator()


class Federation:
    """Rounds in which everybody reports, and some of them, chosen by `plan`, send garbage."""

    def __init__(self, seed, link=LINK, devices=64):
        self.rng, self.link = draws(seed), link
        self.there, self.search = list(range(devices)), Search()
        self.out, self.rounds, self.lost, self.counted = {}, 0, 0, 0.0
        self.low = {}
        """Of every device, the least chance that it ever had."""

    def round(self, liars):
        numbers = [n for n in self.there if n not in self.out]
        sending = set(liars) & set(numbers)  # before the groups are drawn
        groups = self.search.groups(numbers, self.link, self.rng.shuffle)
        spoiled = [bool(sending & set(group)) for group in groups]
        good = [group for group, wrong in zip(groups, spoiled, strict=True) if not wrong]
        self.counted += sum(map(len, good)) / len(numbers)
        self.lost += not good
        self.search, out = self.search.after(numbers, groups, spoiled)
        self.out |= out
        self.rounds += 1
        for number, mark in [*self.search.marks.items(), *out.items()]:
            self.low[number] = min(self.low.get(number, 1.0), mark.chance)
        return groups, spoiled

    def until_found(self, liars, most=400):
        while set(liars) - set(self.out) and self.rounds < most:
            self.round(liars)
        return self


@pytest.mark.parametrize(
    ("liars", "usual", "most"), [((5,), 8, 8), ((5, 6, 60), 15, 18)], ids=["one", "three"]
)
def test_two_hundred_federations_find_them_and_nobody_else(liars, usual, most):
    done = [Federation(seed).until_found(liars) for seed in range(200)]
    assert all(sorted(each.out) == sorted(liars) for each in done)
    rounds = sorted(each.rounds for each in done)
    assert rounds[100] == usual
    assert rounds[-1] <= most
    assert all(each.lost == 1 for each in done), "the first one alone counts for nobody"
    shares = [each.counted / each.rounds for each in done]
    assert min(shares) > 0.45


def test_without_garbage_every_round_has_one_sum_over_everybody():
    here = Federation(0)
    for _ in range(50):
        groups, spoiled = here.round(())
        assert (groups, spoiled) == ([EVERYONE], [False])
    assert here.search == Search()


def test_after_they_are_out_there_is_one_sum_again():
    here = Federation(1).until_found((5,))
    assert here.search.on
    assert len(here.round(())[0]) == 7, "63 devices in groups of at least 8"
    assert len(here.round(())[0]) == 1
    assert not here.search.on


@pytest.mark.parametrize("devices", [8, 9, 15, 16, 17, 63, 64, 100])
@pytest.mark.parametrize(
    "link", [LINK, SecureSum(min_devices=8, groups=3), SecureSum(min_devices=2)]
)
def test_groups_have_no_device_in_common_and_none_is_too_small(devices, link):
    numbers, drawn = list(range(100, 100 + devices)), set()
    for seed in range(20):
        search, _ = Search().after(numbers, [numbers], [True])
        groups = search.groups(numbers, link, draws(seed).shuffle)
        everyone = [n for group in groups for n in group]
        assert len(set(everyone)) == len(everyone)
        assert set(everyone) <= set(numbers)
        assert min(map(len, groups)) >= link.min_devices
        assert len(groups) == min(link.groups, devices // link.min_devices) or len(groups) == 1
        if len(groups) > 1:
            assert set(everyone) == set(numbers)
            assert max(map(len, groups)) - min(map(len, groups)) <= 1
        drawn.add(str(groups))
    assert len(drawn) > 1 or devices == 8, "drawn anew"


def test_where_one_sum_a_round_is_agreed_it_is_over_a_part_and_failing_parts_are_halved():
    """Which needs nothing of the proxy that it did not permit before."""
    link = SecureSum(min_devices=8, groups=1)
    here = Federation(3, link)
    here.round((5,))
    sizes, failed = [], []
    for _ in range(12):
        (group,), (spoiled,) = here.round((5,))
        sizes.append(len(group))
        failed.append(spoiled)
    assert sizes[0] == 32
    for (size, spoiled), (after, _) in pairwise(zip(sizes, failed, strict=True)):
        assert after == (max(8, size // 2) if spoiled else after)
        assert spoiled or after >= size
    done = [Federation(seed, link).until_found((5,)) for seed in range(21)]
    assert all(list(each.out) == [5] for each in done)
    assert sorted(each.rounds for each in done)[10] <= 60


def test_with_no_more_than_the_minimum_nobody_can_be_found():
    here = Federation(0, devices=8)
    for _ in range(40):
        groups, spoiled = here.round((5,))
        assert (len(groups[0]), spoiled) == (8, [True])
    assert not here.out
    assert not here.search.marks


def test_who_sends_garbage_now_and_then_is_found_too():
    for share, median in ((0.5, 25), (0.2, 70)):
        rounds = []
        for seed in range(15):
            here, coin = Federation(seed), draws(1000 + seed)
            while 5 not in here.out:
                here.round((5,) if coin.random() < share else ())
                assert here.rounds < 400
            assert list(here.out) == [5]
            rounds.append(here.rounds)
            assert here.lost <= 12, "the longer it takes, the longer rounds stay in groups"
        assert sorted(rounds)[7] <= median


def always(here):
    return {5, 6, 7}


def in_turns(here):
    return {here.rounds % 12}


def those_least_suspected(here):
    """As if they could look into the server."""
    marks = here.search.marks
    return sorted(range(12), key=lambda n: marks[n].bold if n in marks else 0.0)[:3]


def until_close(here):
    marks = here.search.marks
    return {n for n in range(12) if n not in marks or marks[n].chance > 0.001}


@pytest.mark.parametrize("plan", [always, in_turns, those_least_suspected, until_close])
def test_however_they_plan_it_an_honest_device_is_rarely_suspected(plan):
    """The bound behind every shutting out: that the chance of an honest device ever falls below x
    happens to no more than a share of x. (For SURE itself nobody has the time to try.)"""
    lows = []
    for seed in range(25):
        here = Federation(seed)
        for _ in range(40):
            here.round(plan(here))
        assert not [n for n in here.out if n >= 12]
        lows += [here.low.get(n, 1.0) for n in range(12, 64)]
    for x in (0.2, 0.05, 0.01, 0.001):
        share = sum(low <= x for low in lows) / len(lows)
        assert share <= x + 3 * (x / len(lows)) ** 0.5, (x, share)
    assert sum(low <= 0.2 for low in lows), "the bound is no empty one"


def test_a_rule_that_counts_failures_alone_would_shut_out_honest_devices():
    """The broken control: seven failures were enough for a liar, but with many liars that
    happens to many."""
    wrong = 0
    for seed in range(5):
        here = Federation(seed)
        for _ in range(15):
            here.round(set(range(8)))
        wrong += sum(mark.failed >= 7 for n, mark in here.search.marks.items() if n >= 8)
        assert not [n for n in here.out if n >= 8]
    assert wrong > 20


def test_a_mark_is_a_fair_bet():
    """What it comes to on average after a round is what it was, in both bets."""
    for q in (0.05, 1 / 9, 0.5, 0.9):
        for start in (Mark(), Mark().after(True, 0.2).after(False, 0.3)):
            up, down = start.after(True, q), start.after(False, q)
            for bet in ("bold", "patient"):
                worth = [2.718281828459045 ** getattr(mark, bet) for mark in (up, down, start)]
                assert q * worth[0] + (1 - q) * worth[1] == pytest.approx(worth[2])
    assert Mark().chance == 1.0
    sure = Mark()
    while not sure.convicts:
        sure = sure.after(True, 1 / 9)
    assert (sure.failed, sure.rounds) == (7, 7)
    assert sure.chance <= 1 / SURE
    assert "7 rounds" in sure.words


def test_it_is_kept_and_found_again():
    here = Federation(2)
    for _ in range(4):
        here.round((5,))
    again = Search.from_table(json.loads(json.dumps(here.search.to_table())))
    assert again == here.search
    assert next(iter(again.suspects())) == 5
    assert 5 not in again.without([5]).marks


def test_how_many_groups_is_a_setting():
    for groups in (0, 65, True):
        with pytest.raises(ConfigError, match=r"link\.groups"):
            SecureSum(groups=groups)


# --- what counts as spoiled -----------------------------------------------------------------------

ROWS, WIDTH, LARGEST = 4, 2, 2.0**20


def opened(values, uniform, counted=False):
    """The sum of eight devices' updates under a limit that is drawn by `uniform`."""
    total = MaskedSum(0, ROWS, WIDTH, SecureSum(min_devices=2), LARGEST)
    for number, one in enumerate(values):
        words = np.asarray(one, np.int64).ravel().view(np.uint64)
        total.add(MaskedReports(0, np.array([number]), words[None]))
    nothing = MaskSum(0, len(values), np.zeros(ROWS * WIDTH, np.uint64))
    return total.open(nothing, leniency(uniform), counted=counted).dense(ROWS)


def spoils(values, uniform, **options):
    try:
        opened(values, uniform, **options)
    except SpoiledSum:
        return True
    return False


def updates(garbage, victim):
    """Seven devices, of whom one alone has the first row, and one that sends garbage there."""
    values = np.zeros((8, ROWS, WIDTH), np.int64)
    values[0, 0, 0], values[7, 0, 0] = victim, garbage
    return values


LIMIT = int(8 * LARGEST)
"""What eight honest devices can add up to."""


@pytest.mark.parametrize("garbage", [LIMIT, 2 * LIMIT, 100 * LIMIT, 1000 * LIMIT, 1900 * LIMIT])
def test_nobody_can_make_a_sum_fail_by_whether_another_device_is_in_it(garbage):
    """Under a fixed limit he could: with the victim's row it is passed, without it not."""
    for edge in (0, -1, int(-LARGEST)):
        sent = garbage + edge
        grid = np.concatenate([np.linspace(0, 1, 400, endpoint=False), 1 - 0.5 ** np.arange(40)])
        with_her = [spoils(updates(sent, int(LARGEST)), u) for u in grid]
        alone = [spoils(updates(sent, 0), u) for u in grid]
        # The threshold on `uniform` below which a sum passes; above is the chance to fail.
        fails = [1.0 - max(u for u, bad in zip(grid, each, strict=True) if not bad)
                 for each in (with_her, alone)]  # fmt: skip
        assert abs(fails[0] - fails[1]) <= 0.005, "on so coarse a grid they are the same"
    chance = [chance_to_fail(garbage + step) for step in (0, LARGEST)]
    if min(chance) > 0:
        assert chance[1] / chance[0] < 1.01
    else:
        assert max(chance) < 1e-8, "at the edge it does not happen"


def chance_to_fail(largest):
    """Exactly, of a sum whose largest number this is: that of a limit below it."""
    beyond = (largest - LIMIT) / (LENIENT * LIMIT)
    if beyond <= 0:
        return 0.0
    return min(1.0, np.exp(-(1.0 - beyond) * 20.0))


def test_the_chance_to_fail_is_that_of_the_draw():
    rng = draws(3)
    for share in (0.9, 0.95, 0.99):
        sent = LIMIT + int(share * LENIENT * LIMIT)
        failed = np.mean([spoils(updates(sent, 0), rng.random()) for _ in range(400)])
        assert failed == pytest.approx(chance_to_fail(sent), abs=0.1)


def test_honest_sums_always_pass_and_garbage_never_does():
    most = np.full((8, ROWS, WIDTH), int(LARGEST))
    for uniform in (0.0, 0.5, 0.999999999, 1 - 2**-53):
        assert np.array_equal(opened(most, uniform), most.sum(axis=0))
        assert np.array_equal(opened(-most, uniform), -most.sum(axis=0))
        assert spoils(updates(2**50, 0), uniform)
        assert spoils(updates(-(2**62), 0), uniform)
    between = opened(updates(5 * LIMIT, 0), 0.1)
    assert between.max() == LIMIT, "what passes is cut to what honest devices could have sent"


def test_rows_count_their_senders_whoever_they_are():
    """A count that is off by itself convicts; one that is off with some devices only does not."""
    one = int(GRID)
    rows = np.zeros((8, ROWS, WIDTH), np.int64)
    rows[0, 0], rows[1, 1] = (5, one), (7, one)
    largest = 200 * GRID / 2**20
    assert largest > 1
    for mine, alone in (([9, 8 * one], 8 * one), ([9, -one], 0)):
        for row in (0, 2):
            lying = rows.copy()
            lying[7, row] = mine
            got = counted_rows(lying)
            assert got[1].tolist() == [7, one], "others' rows count"
            assert not got[row].any() or got[row, 1] == alone
    lying[7, 3] = [9, one // 2]
    with pytest.raises(SpoiledSum, match="whole numbers"):
        counted_rows(lying)


def counted_rows(values):
    total = MaskedSum(0, ROWS, WIDTH, SecureSum(min_devices=2), 127 * GRID)
    for number, one in enumerate(values):
        total.add(MaskedReports(0, np.array([number]), one.ravel().view(np.uint64)[None]))
    nothing = MaskSum(0, len(values), np.zeros(ROWS * WIDTH, np.uint64))
    return total.open(nothing, leniency(0.5), counted=True).dense(ROWS)
