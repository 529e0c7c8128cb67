"""What filters' updates give away: the label and who hides, as printed; nothing that these attacks
find, where the whole upload has its noise. The failures of what is printed are asserted, so that
nobody takes it for protection."""

from dataclasses import replace

import numpy as np
import pytest
from hiding import who_hides, who_hides_by_guess, who_hides_by_size
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from sottovoce.attacks.filters import (
    label_from_bias,
    label_from_moments,
    rank,
    ranked,
    unmasked,
)
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.core.one_bit import noise_root
from sottovoce.errors import DataError
from sottovoce.privacy.updates import Clipped, steps
from sottovoce.rng import Streams

CLIENTS, WIDTH, UNITS, CLASSES = 1500, 8, 12, 7
SHAPES = {
    "weight0": (UNITS, WIDTH),
    "bias0": (UNITS,),
    "weight1": (CLASSES, UNITS),
    "bias1": (CLASSES,),
}
MOMENTS = {"center": (WIDTH,), "moments": (WIDTH, WIDTH), "means": (CLASSES, WIDTH)}
ITEM_ROWS = 10
PRINTED = Clipped(clip=8.0, norm="scalar", epsilon=1.0)
SOUND = Clipped(clip=8.0, norm="l1", epsilon=1.0)


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


class World:
    """Clients who train one filter with momentum, each a copy of her own; some hide the label."""

    shapes = SHAPES

    def __init__(self, epochs=10, rate=0.05, seed=4):
        draw = np.random.default_rng(seed)
        self.start = {
            name: draw.normal(0, 0.3, shape) * ("weight" in name)
            for name, shape in self.shapes.items()
        }
        self.users = draw.normal(0, 1, (CLIENTS, WIDTH))
        self.labels = draw.integers(0, CLASSES, CLIENTS)
        self.hides = draw.random(CLIENTS) < 0.3
        self.items = draw.normal(0, 0.05, (CLIENTS, ITEM_ROWS, WIDTH))
        copy = self.learnt(epochs, rate)
        shares = ~self.hides
        self.changes = {
            n: (copy[n] - w) * shares.reshape(-1, *[1] * w.ndim) for n, w in self.start.items()
        }

    def learnt(self, epochs, rate):
        copy = {n: np.repeat(w[None], CLIENTS, axis=0) for n, w in self.start.items()}
        speed = {n: np.zeros_like(w) for n, w in copy.items()}
        for _ in range(epochs):
            for name, slope in self.slopes(copy).items():
                speed[name] = 0.9 * speed[name] + slope
                copy[name] = copy[name] - rate * speed[name]
        return copy

    def inputs(self, weights):
        """What the last layer reads."""
        return leaky(np.einsum("nij,nj->ni", weights["weight0"], self.users) + weights["bias0"])

    def slopes(self, weights):
        units = self.inputs(weights)
        logits = np.einsum("nij,nj->ni", weights["weight1"], units) + weights["bias1"]
        q = np.exp(logits - logits.max(axis=1, keepdims=True))
        q /= q.sum(axis=1, keepdims=True)
        miss = q - np.eye(CLASSES)[self.labels]
        back = np.einsum("nci,nc->ni", weights["weight1"], miss) * np.where(units > 0, 1.0, 0.2)
        return {
            "weight0": back[:, :, None] * self.users[:, None, :],
            "bias0": back,
            "weight1": miss[:, :, None] * units[:, None, :],
            "bias1": miss,
        }

    def known_inputs(self):
        """For an attacker who has the representations and the published filter."""
        return self.inputs({n: np.repeat(w[None], CLIENTS, axis=0) for n, w in self.start.items()})

    def sent(self, release, root=1):
        """What the server gets: for each client and row whether it is there, and the filter's
        changes as it reads them."""
        lines = np.concatenate([c.reshape(CLIENTS, -1) for c in self.changes.values()], axis=1)
        pad = -lines.shape[1] % WIDTH
        lines = np.pad(lines, ((0, 0), (0, pad))).reshape(CLIENTS, -1, WIDTH)
        table = np.concatenate([self.items, lines], axis=1)
        if release.norm == "l1":
            norm = np.abs(table).sum(axis=(1, 2), keepdims=True)
            table = table * np.minimum(1.0, release.clip / norm)
        values = np.trunc(np.clip(table, -release.clip, release.clip) * GRID).astype(np.int64)
        if release.norm == "l1":
            assert np.abs(values).sum(axis=(1, 2)).max() <= steps(release.clip)
        there = np.ones(values.shape[:2], dtype=bool)
        there[:, ITEM_ROWS:] = ~self.hides[:, None]
        client, row = np.nonzero(there)
        counted = np.concatenate(
            [values[there], np.full((len(client), 1), int(GRID), dtype=np.int64)], axis=1
        )
        users = np.arange(CLIENTS)
        choices = Choice(share_positives=1.0), Choice(share_positives=1.0, hidden_attributes=("x",))
        consent = Consent.of(users, choices, self.hides.astype(np.int64), ("x",))
        history = Interactions.from_pairs(users, users % 3, n_users=CLIENTS, n_items=ITEM_ROWS)
        bound = release.bind(users, consent, history, Streams.from_seed(0), noise_root(root))
        reports = DeviceReports(3, client, row.astype(np.int32), counted)
        noisy = bound.add_noise(reports, users, values.shape[1], WIDTH + 1)
        seen = np.zeros(values.shape[:2], dtype=bool)
        got = np.zeros(values.shape)
        seen[noisy.sender, noisy.item] = True
        got[noisy.sender, noisy.item] = noisy.values[:, :-1] / GRID
        flat, changes, start = got[:, ITEM_ROWS:].reshape(CLIENTS, -1), {}, 0
        for name, shape in self.shapes.items():
            stop = start + int(np.prod(shape))
            changes[name] = flat[:, start:stop].reshape(CLIENTS, *shape)
            start = stop
        return seen[:, ITEM_ROWS:].all(axis=1), changes


class Followers(World):
    """The same clients, whose filter is one of moments, of a federation that has begun."""

    shapes = MOMENTS

    def __init__(self, rate=0.3, seed=4):
        self.rate = rate
        super().__init__(seed=seed)

    def learnt(self, epochs, rate):
        draw = np.random.default_rng(7)
        self.start["center"] = draw.normal(0, 0.3, WIDTH)
        self.start["moments"] = np.eye(WIDTH)
        self.start["means"] = draw.normal(0, 0.2, (CLASSES, WIDTH))
        away = self.users - self.start["center"]
        side = np.eye(CLASSES)[self.labels] - 1 / CLASSES
        goals = {
            "center": self.users,
            "moments": away[:, :, None] * away[:, None],
            "means": side[:, :, None] * away[:, None],
        }
        return {n: w + self.rate * (goals[n] - w) for n, w in self.start.items()}

    def published(self):
        return self.rate * self.start["means"]

    def known_inputs(self):
        return self.users - self.start["center"]


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def followers():
    return Followers()


@pytest.fixture(scope="module")
def followed(followers):
    """The same of them."""
    return np.where(followers.hides, -1, followers.labels)


@pytest.fixture(scope="module")
def hidden(world):
    """Labels as the truth about whoever shares them."""
    return np.where(world.hides, -1, world.labels)


# --- A9: the label -------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 10, 30])
def test_as_printed_the_bias_names_the_label(epochs):
    world = World(epochs)
    shown = np.where(world.hides, -1, world.labels)
    _, changes = world.sent(Clipped(clip=8.0))
    guesses, outcome = label_from_bias(changes, shown)
    assert outcome.claimed == int((~world.hides).sum())
    assert outcome.precision >= 0.99
    assert outcome.succeeds
    assert np.all(guesses[world.hides] == -1)
    assert outcome.base_rate < 0.25


def test_noise_on_each_number_lets_the_label_through(world, hidden):
    """At ε = 1 per number, with a clip that fits a filter's changes."""
    _, changes = world.sent(replace(PRINTED, clip=0.3))
    assert label_from_bias(changes, hidden).outcome.succeeds
    outcome = label_from_bias(changes, hidden, world.known_inputs()).outcome
    assert outcome.precision > 2.5 * outcome.base_rate


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("root", [1, 2, 3])
def test_under_noise_on_the_whole_upload_the_label_is_a_guess(world, hidden, root, known):
    sent, changes = world.sent(SOUND, root)
    assert sent.all()
    outcome = label_from_bias(changes, hidden, world.known_inputs() if known else None).outcome
    assert outcome.claimed == int((hidden >= 0).sum())
    assert not outcome.succeeds
    assert outcome.precision_interval.low <= 1 / CLASSES <= outcome.precision_interval.high


def test_the_attack_would_find_the_label_under_too_little_noise(world, hidden):
    """The same way through the release, at an ε that protects nobody."""
    _, changes = world.sent(replace(SOUND, epsilon=100.0))
    weak = label_from_bias(changes, hidden).outcome
    strong = label_from_bias(changes, hidden, world.known_inputs()).outcome
    assert weak.succeeds
    assert strong.precision > 0.9 > weak.precision


def test_moments_name_the_label_just_as_well(followers, followed):
    _, changes = followers.sent(Clipped(clip=8.0))
    blind = label_from_moments(changes, followed).outcome
    guesses, outcome = label_from_moments(changes, followed, followers.published())
    assert outcome.precision == outcome.recall == 1.0
    assert blind.precision > 0.99
    assert np.all(guesses[followers.hides] == -1)
    assert label_from_moments(changes, followed, None, followers.known_inputs()).outcome.succeeds


def test_noise_on_each_number_lets_the_label_through_moments(followers, followed):
    _, changes = followers.sent(replace(PRINTED, clip=0.3))
    told = label_from_moments(changes, followed, followers.published(), followers.known_inputs())
    assert told.outcome.precision > 2 * told.outcome.base_rate


def test_what_was_published_is_told_from_what_is_hers():
    """Means far from 0 come nearer to it by more than one near the center moves them."""
    away, side, means = np.array([0.1, 0.0]), np.array([-0.5, 0.5]), np.array([[-2.0, 0], [2.0, 0]])
    changes = {
        "center": 0.1 * away[None],
        "means": 0.1 * (side[:, None] * away - means)[None],
    }
    label = np.array([1])
    assert label_from_moments(changes, label).guesses.tolist() == [0]
    assert label_from_moments(changes, label, 0.1 * means).guesses.tolist() == [1]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("root", [1, 2, 3])
def test_under_noise_on_the_whole_upload_moments_tell_nothing_either(
    followers, followed, root, known
):
    sent, changes = followers.sent(SOUND, root)
    assert sent.all()
    inputs = followers.known_inputs() if known else None
    outcome = label_from_moments(changes, followed, followers.published(), inputs).outcome
    assert outcome.claimed == int((followed >= 0).sum())
    assert not outcome.succeeds
    assert not who_hides_by_size(changes, followers.hides).succeeds


def test_moments_would_tell_under_too_little_noise(followers, followed):
    _, changes = followers.sent(replace(SOUND, epsilon=100.0))
    inputs = followers.known_inputs()
    outcome = label_from_moments(changes, followed, followers.published(), inputs).outcome
    assert outcome.precision > 2 * outcome.base_rate
    assert outcome.succeeds


# --- A10: who hides ------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [Clipped(clip=8.0), PRINTED])
def test_as_printed_missing_rows_name_those_who_hide(world, release):
    sent, _ = world.sent(release)
    outcome = who_hides(sent[:, None], world.hides[:, None])
    assert outcome.precision == outcome.recall == 1.0
    assert outcome.succeeds


def test_as_printed_zeros_would_name_them_too(world):
    ranking = who_hides_by_size(world.changes, world.hides)
    assert ranking.auc == 1.0
    assert ranking.succeeds


@pytest.mark.parametrize("root", [1, 2, 3])
def test_under_noise_on_the_whole_upload_hiding_cannot_be_seen(world, root):
    sent, changes = world.sent(SOUND, root)
    outcome = who_hides(sent[:, None], world.hides[:, None])
    assert outcome.claimed == 0
    assert not outcome.succeeds
    assert not who_hides_by_size(changes, world.hides).succeeds


def test_more_noise_for_those_who_hide_marks_them(world):
    """What `hiding_epsilon` costs: the noise itself says who hides something."""
    _, changes = world.sent(replace(SOUND, hiding_epsilon=0.5))
    ranking = who_hides_by_size(changes, world.hides)
    assert ranking.auc < 0.01
    assert ranking.succeeds


def test_the_size_would_tell_under_too_little_noise(world):
    _, changes = world.sent(replace(SOUND, epsilon=2000.0))
    assert who_hides_by_size(changes, world.hides).auc > 0.9


def test_a_guess_near_the_target_marks_those_who_hide():
    draw = np.random.default_rng(2)
    target, hides = np.array([0.7, 0.3]), draw.random(400) < 0.5
    logits = np.log(target) + draw.normal(0, 1, (400, 2)) * np.where(hides, 0.1, 1.0)[:, None]
    ranking = who_hides_by_guess(logits, target, hides)
    assert ranking.auc > 0.8
    assert ranking.succeeds
    same = np.log(target) + draw.normal(0, 1, (400, 2))
    assert not who_hides_by_guess(same, target, hides).succeeds


def test_the_chance_interval_holds_chance():
    """19 of 20 times, ties or none."""
    draw = np.random.default_rng(5)
    for levels in (2, 1000):
        beyond = 0
        for _ in range(600):
            hides = np.arange(60) < 25
            beyond += rank("x", draw.integers(0, levels, 60).astype(float), hides).succeeds
        assert 10 <= beyond <= 55
    flat = rank("x", np.zeros(60), np.arange(60) < 25)
    assert flat.auc == 0.5
    assert not flat.succeeds


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError):
        label_from_bias({}, np.zeros(3, np.int64))
    with pytest.raises(DataError):
        label_from_bias({"weight0": np.zeros((3, 2, 2)), "bias0": np.zeros((3, 2))}, np.zeros(4))
    moved = {"center": np.zeros((3, 2)), "means": np.zeros((3, 4, 2))}
    for wrong in ({"center": moved["center"]}, {**moved, "center": np.zeros((2, 2))}):
        with pytest.raises(DataError):
            label_from_moments(wrong, np.zeros(3, np.int64))
    with pytest.raises(DataError):
        label_from_moments(moved, np.zeros(4, np.int64))
    with pytest.raises(DataError):
        who_hides(np.ones((3, 2), bool), np.ones((3, 1), bool))
    with pytest.raises(DataError):
        who_hides_by_size({"bias0": np.ones((2, 2))}, np.array([True, False, False]))
    with pytest.raises(DataError):
        rank("x", np.zeros(3), np.ones(3, bool))
    with pytest.raises(DataError):
        rank("x", np.array([0.0, np.nan]), np.array([True, False]))


def test_unmasked_embeddings_lack_what_the_filter_reads_and_nothing_else():
    draw = np.random.default_rng(3)
    rows, center = draw.normal(size=(50, 12)), draw.normal(size=12)
    lines = np.stack([np.outer([-1.0, 1.0], draw.normal(size=12)) for _ in range(3)])
    left = unmasked(rows, center, lines)
    assert np.allclose((left - center) @ lines.reshape(-1, 12).T, 0.0, atol=1e-9)
    assert np.linalg.matrix_rank(rows - left, tol=1e-8) == 3
    assert np.allclose(unmasked(left, center, lines), left)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_ranks_are_those_of_scipy(values):
    numbers = np.array(values, dtype=np.float64)
    assert ranked(numbers) == pytest.approx(rankdata(numbers))
