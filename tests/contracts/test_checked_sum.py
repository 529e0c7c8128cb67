"""gram over a checked sum, in simulation: three aggregators compute by their shares what the plain
sum of the same contributions is, bit for bit; each party sees what the table says."""

from dataclasses import fields, replace

import numpy as np
import pytest

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import CheckParts, ModelView, SharedReports, SummedReports, SumPart
from sottovoce.errors import ConfigError
from sottovoce.parties.device import Devices
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N = 60
TRAIN = random_world(N, 90, 700, seed=1)
TRAIN = replace(TRAIN, timestamps=np.random.default_rng(0).permutation(TRAIN.n_interactions))
MIX = [Choice(epsilon=0.5), Choice(epsilon=4.0), Choice(takes_part=False), Choice(epsilon=2.0)]
RELEASE = OwnEpsilon(4.0)
CONFIG = GramConfig(least_head=8, most_head=12, embedding_size=6)


class Ears:
    def __init__(self):
        self.messages = {}

    def on_message(self, party, message):
        self.messages.setdefault(party, []).append(message)


def federation(link=None, config=CONFIG, seed=3):
    consent = Consent.of(np.arange(N), MIX, np.arange(N) % len(MIX))
    return Federation.build(
        config, TRAIN, consent, RELEASE, Streams.from_seed(seed), link=link or CheckedSum(20)
    )


@pytest.mark.parametrize("noise_by", ["helper", "halves"])
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, recency=False),
        replace(CONFIG, quality_share=0.1),
        replace(CONFIG, batches=2),
        replace(CONFIG, batches=2, noise="factorised"),
    ],
    ids=["time", "plain", "quality", "batches", "factorised"],
)
def test_shares_give_what_the_plain_sum_gives(config, noise_by):
    link, ears = CheckedSum(8, noise_by), Ears()
    fast, written = federation(link, config), federation(link, config)
    fast.run()
    written.run(message_observers=[ears])
    assert np.array_equal(fast.server.items, written.server.items)
    assert np.array_equal(fast.server.memory, written.server.memory)
    assert fast.devices.ledger.pending().equals(written.devices.ledger.pending())
    opened = [m for m in ears.messages["server"] if isinstance(m, SummedReports)]
    assert len(opened) == config.rounds
    assert all(m.devices > 0 for m in opened)


def test_the_sum_is_that_of_the_contributions_and_the_aggregators_noise():
    """By the definition: each device's contribution written out, added up."""
    ears, made = Ears(), federation()
    made.run(message_observers=[ears])
    again = federation()
    for message in [m for m in ears.messages["server"] if isinstance(m, SummedReports)]:
        view = next(m for m in ears.messages["device"] if m.round == message.round)
        rows = again.devices.willing(view.round)
        numbers = again.server.algorithm.report_shape(view)[0]
        plain = Devices.report_sum(again.devices, view, rows).dense(numbers)[:, 0]
        rules = made.aggregators[1].rules
        step = rules.link.grid(rules.form(view.round, numbers)).step
        noise = rules.noise(view.round, numbers, b"")
        assert np.array_equal(message.dense(numbers)[:, 0], plain + step * noise)
        for other in (0, 2):
            assert made.aggregators[other].rules.noise(view.round, numbers, b"") is None


def test_every_party_sees_what_the_table_says():
    ears, made = Ears(), federation()
    made.run(message_observers=[ears])
    sees = CheckedSum.sees
    assert set(ears.messages) == set(sees)
    for party, messages in ears.messages.items():
        for message in messages:
            name = type(message).__name__
            if name == "SummedReports":  # what the server opens by itself
                continue
            assert name in sees[party], (party, name)
            assert {field.name for field in fields(message)} == sees[party][name]
    kinds = {type(m) for m in ears.messages["server"]}
    assert kinds == {SharedReports, CheckParts, SumPart, SummedReports}
    assert {type(m) for m in ears.messages["device"]} == {ModelView}


def test_contributions_are_within_the_bounds_that_are_checked():
    made = federation()
    view = made.server.publish()
    rows = made.devices.willing(0)
    some = made.devices._contributions(view, rows)
    grid = CheckedSum().grid(CheckedSum().form(some.size, False))
    assert np.all(some.steps % grid.step == 0)
    assert some.steps.max() <= grid.most * grid.step
    squares = np.add.reduceat(some.steps.astype(float) ** 2, some.indptr[:-1])
    assert np.all(squares <= STEPS**2)


def test_messages_cost_what_the_ledger_says():
    made = federation()
    made.run()
    table = made.devices.ledger.pending()
    form = CheckedSum().form(TRAIN.n_items + 1, False)
    first = table["bytes"].to_numpy()[table["round"].to_numpy() == 0]
    assert set(first.tolist()) == {4 * form.elements + 560}


def test_an_epsilon_for_which_whole_numbers_are_too_coarse_is_refused():
    everyone = Consent.uniform(np.arange(N), Choice(epsilon=64.0))
    made = Federation.build(
        CONFIG, TRAIN, everyone, OwnEpsilon(64.0), Streams.from_seed(1), link=CheckedSum(8)
    )
    with pytest.raises(ConfigError, match=r"choose a smaller\s+release.epsilon"):
        made.run()


def test_too_few_devices_are_not_asked():
    with pytest.raises(ConfigError, match="checked sum needs at least"):
        federation(CheckedSum(N))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"urls": ("https://a", "https://a")}, "twice"),
        ({"keys": ("aa", "bb", "aa")}, "twice"),
        ({"authorities": ("x",)}, "one for each organisation"),
        ({"noise_by": "server"}, "noise_by"),
        ({"min_devices": 1}, "min_devices"),
    ],
)
def test_bad_links_are_refused_in_one_sentence(settings, said):
    with pytest.raises(ConfigError, match=said):
        CheckedSum(**settings)


@pytest.mark.parametrize("most", [8, 50, 57, 63, 64, 128, 256])
def test_the_largest_entry_of_pairs_is_a_setting(most):
    form = CheckedSum(8, largest_pair=most).form(12, True)
    assert (form.most, len(form.weights)) == (most, most.bit_length())
    if most in (64, 128):
        fast, written = (federation(CheckedSum(8, largest_pair=most)) for _ in range(2))
        fast.run()
        written.run(message_observers=[Ears()])
        assert np.array_equal(fast.server.items, written.server.items)
