"""Data owners that hold the same items and send sums: who refused one of them is their difference.

No party lies. This is what privacy.md says is left; with every item at one owner there is no such
difference."""

from dataclasses import replace

import numpy as np

from sottovoce.algorithms.drift.aggregated import AggregatingOwner
from sottovoce.algorithms.drift.messages import Interaction
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.rng import Streams

CONFIG = DRIFTConfig(release="aggregated", min_users=25)
PEOPLE, ITEMS, EACH, SHE = 100, 30, 8, 17


def guess(seed, shared, config=CONFIG):
    """Her items as the orchestrator guesses them, whether she liked them, and the truth. She
    refuses the second owner; both are served in turn, once."""
    draw = np.random.default_rng(seed)
    orchestrator = Orchestrator(config, Streams.from_seed(seed))
    held = [range(ITEMS)] * 2 if shared else [range(ITEMS), range(ITEMS, 2 * ITEMS)]
    streams = [of_owner(Streams.from_seed(seed), k) for k in range(2)]
    owners = [AggregatingOwner(k, i, config, streams[k]) for k, i in enumerate(held)]
    for owner, items in zip(owners, held, strict=True):
        orchestrator.add_items(owner.number, items)
    hers = {}
    for user in range(PEOPLE):
        items = draw.permutation(ITEMS)[:EACH].tolist()
        liked = [False, *(draw.random(EACH - 2) < 0.5).tolist(), True]
        if user == SHE:
            hers = dict(zip(items, liked, strict=True))
        elsewhere = draw.permutation(ITEMS)[:EACH].tolist()
        for owner, told in zip(owners, (items, items if shared else elsewhere), strict=True):
            if user == SHE and owner.number == 1:
                continue
            owner.admit(user)
            for time, (item, flag) in enumerate(zip(told, liked, strict=True)):
                place = held[owner.number][item]
                owner.receive(Interaction(owner.number, user, place, flag, time))
            owner.end_stream(user)
    sent = []
    for owner in owners:
        answer = owner.gradients(orchestrator.answer(owner.request()))
        owner.settle(True)
        orchestrator.fold(answer)
        sent.append(answer.item_rows.astype(np.float64))
    by_item = (sent[0] - sent[1]).sum(axis=1)
    guessed = np.argsort(-np.abs(sent[0] - sent[1]).sum(axis=1))[:EACH].tolist()
    right = sum(item in hers for item in guessed)
    return right, sum((by_item[item] < 0) == liked for item, liked in hers.items())


def rates(shared, config=CONFIG, draws=8):
    found = np.array([guess(seed, shared, config) for seed in range(draws)])
    return found.sum(axis=0) / (draws * EACH)


def test_owners_that_share_items_differ_by_who_refused_one_of_them():
    items, likes = rates(shared=True)
    assert items > 0.45, "chance: 8 of 30, .27"
    assert likes > 0.75, "chance: .5"


def test_where_each_item_has_one_owner_there_is_no_such_difference():
    items, likes = rates(shared=False)
    assert items < 0.4
    assert 0.3 < likes < 0.7


def test_drawn_negatives_weaken_it_and_do_not_end_it():
    """Each owner draws for itself, so that sums differ by that as well. What privacy.md says."""
    config = replace(CONFIG, negatives="untouched", negatives_per_positive=4)
    items, likes = rates(shared=True, config=config)
    assert items < 0.45, "chance: 8 of 30, .27; without drawn negatives .6"
    assert 0.3 < likes < 0.65
