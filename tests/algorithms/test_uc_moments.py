"""UC-FedRec's filters of moments: what those who share give to them, what they tell, and how those
who hide are pulled to where they tell little."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from uc_world import (  # noqa: E402
    HOW,
    ITEMS,
    KINDS,
    PRIORS,
    RNG,
    USERS,
    changes,
    clients_of,
    everything,
    model_of,
    same,
)

from sottovoce.algorithms.uc.networks import (  # noqa: E402
    Attribute,
    Guesses,
    Recommender,
    tells,
)
from sottovoce.algorithms.uc.rows import ModelLayout  # noqa: E402
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig  # noqa: E402
from sottovoce.algorithms.uc.training import (  # noqa: E402
    LIKE,
    LocalTraining,
    train,
)
from sottovoce.errors import Diverged  # noqa: E402
from sottovoce.rng import Streams  # noqa: E402

TWO = (Attribute("gender", 2, None), Attribute("age", 3, None))
THREE = (*TWO, Attribute("job", 7, None))
SHARES = (*PRIORS, torch.full((7,), 1 / 7))
STRENGTHS = [0.5, 0.8, 0.99, 0.9999]


pytestmark = pytest.mark.usefixtures("one_thread")


def moments_of(rows, labels, shares):
    """What a filter holds in the end, if these are those who share."""
    away = rows - rows.mean(axis=0)
    side = np.eye(len(shares))[labels] - shares.numpy()
    weights = {
        "center": rows.mean(axis=0),
        "moments": away.T @ away / len(rows),
        "means": side.T @ away / len(rows),
    }
    return {name: torch.tensor(weight, dtype=torch.float32) for name, weight in weights.items()}


def crowd(size, attributes=TWO, apart=1.0):
    """Users whose numbers vary less and less, and whose classes lie apart in some directions."""
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(0, 1, (2000, size)), []
    for shares in SHARES[: len(attributes)]:
        chances = shares.double().numpy()
        labels.append(draw.choice(len(shares), 2000, p=chances / chances.sum()))
        rows = rows + apart * draw.normal(0, 1, (len(shares), size))[labels[-1]]
    return rows * np.geomspace(1.0, 0.01, size), labels


def trained_model(kind="mf", attributes=TWO, size=6, apart=1.0):
    """A model whose filters know a crowd well."""
    rows, labels = crowd(size, attributes, apart)
    filters = [moments_of(rows, found, SHARES[t]) for t, found in enumerate(labels)]
    return replace(model_of(kind, attributes, size), filters=tuple(filters))


def quiet(model):
    """The same where items say nothing, so that nothing but filters moves anybody."""
    return replace(model, items=torch.zeros_like(model.items))


PULLED = LocalTraining(epochs=1, pairs=8, item_rate=0.0, reg=0.0)
"""Nothing but the pull, on a quiet model."""


# --- what those who share give ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_shares_brings_the_moments_nearer_to_herself(kind):
    model, clients = trained_model(kind), clients_of(hidden=False)
    how = replace(HOW, clip=np.inf, filter_rate=0.25)
    sent = train(model, clients, how, RNG, PRIORS)
    after = (model.users + sent.users).double().numpy()
    for t, shares in enumerate(PRIORS):
        old = {name: weight.double().numpy() for name, weight in model.filters[t].items()}
        away = after - old["center"]
        side = np.eye(len(shares))[clients.labels[:, t]] - shares.double().numpy()
        goals = {
            "center": after,
            "moments": np.einsum("ni,nj->nij", away, away),
            "means": np.einsum("nc,nj->ncj", side, away),
        }
        for name, goal in goals.items():
            moved = sent.filters[t][name].double().numpy()
            np.testing.assert_allclose(moved, 0.25 * (goal - old[name]), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_hides_sends_nothing_of_the_filter(kind):
    model, clients = trained_model(kind), clients_of()
    settings = UCConfig(
        recommender=kind, embedding_size=6,
        attributes=(
            FilterConfig("gender", ("f", "m"), (0.7, 0.3)),
            FilterConfig("age", ("a", "b", "c"), (0.2, 0.5, 0.3)),
        ),
    )  # fmt: skip
    layout = ModelLayout.of(settings, ITEMS)
    sent = train(model, clients, HOW, RNG, PRIORS)
    assert clients.hidden.any(axis=0).all()
    for n, (numbers, _) in enumerate(layout.messages(sent)):
        rows = numbers.numpy()
        for t, part in enumerate(layout.filters):
            there = np.isin(np.arange(part.first, part.stop), rows)
            assert set(there) == {not clients.hidden[n, t]}
            if clients.hidden[n, t]:
                assert not any(change[n].any() for change in sent.filters[t].values())


# --- what they tell -----------------------------------------------------------------------------


def test_guesses_go_from_the_classes_means_to_the_best_direction():
    """Two classes whose means differ by (1, 1); the second number hardly varies, so that it tells
    much more than the first, which the means alone do not say."""
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 2, 20_000)
    rows = (2 * labels - 1)[:, None] * [0.5, 0.5] + draw.normal(0, 1, (20_000, 2)) * [3.0, 0.1]
    shares = torch.tensor([0.5, 0.5])
    guesses = Guesses.of(moments_of(rows, labels, shares), shares)
    ways = (guesses.lines[:, 1] - guesses.lines[:, 0]).double().numpy()
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    plain = np.array([1.0, 1.0]) / np.sqrt(2)
    within = np.cov((rows - (2 * labels - 1)[:, None] * 0.5).T)
    best = np.linalg.solve(within, plain)
    best /= np.linalg.norm(best)
    near_plain, near_best = ways @ plain, ways @ best
    assert near_plain[0] > 0.9  # strong shrinking
    assert np.all(np.diff(near_plain) < 0)
    assert near_best[-1] > near_best[0]
    assert near_best[-1] > 0.9  # weak shrinking
    right = [np.mean((rows @ way > 0) == labels) for way in ways]
    assert right[0] > 0.55
    assert right[-1] > 0.95


@pytest.mark.parametrize("t", [0, 1, 2])
def test_guesses_name_the_classes_of_a_crowd(t):
    shares, (rows, found) = SHARES[t], crowd(12, THREE, apart=2.0)
    labels = found[t]
    guesses = Guesses.of(moments_of(rows, labels, shares), shares)
    away = torch.tensor(rows, dtype=torch.float32) - guesses.center
    often, right = np.bincount(labels).max() / len(labels), []
    for lines in guesses.lines:
        told = (away @ lines.T + shares.log()).argmax(dim=1).numpy()
        right.append((np.mean(told == labels) - often) / (1 - often))
    assert min(right) > 0.2
    assert max(right) > 0.6
    assert guesses.tell(guesses.center[None, None]).abs().max() < 1e-6
    assert guesses.tell(torch.tensor(rows, dtype=torch.float32)[None]).mean() > 0.2


def test_moments_of_nobody_tell_nothing():
    attribute = Attribute("age", 3, None)
    weights = attribute.init(Recommender("mf", 8), RNG)
    assert not tells(torch.randn(1, 50, 8), weights, PRIORS[1]).abs().max() > 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e8, 1e38])
def test_noise_in_place_of_moments_breaks_nothing(seed, scale):
    """As under noise on the whole upload: neither symmetric nor possible."""
    draw = torch.Generator().manual_seed(seed)
    weights = {
        "center": torch.randn(12, generator=draw),
        "moments": scale * torch.randn(12, 12, generator=draw).clamp(-3, 3),
        "means": torch.randn(3, 12, generator=draw),
    }
    guesses = Guesses.of(weights, PRIORS[1])
    assert guesses.lines.isfinite().all()
    assert guesses.spread.isfinite().all()
    told = guesses.tell(torch.randn(2, 20, 12, generator=draw))
    assert told.isfinite().all()
    assert told.min() > -1e-5
    bend = guesses.bend()
    assert bend.isfinite().all()
    values = torch.linalg.eigvalsh(bend.double())
    assert values.min() >= -1e-9 * values.max()


def test_moments_of_one_and_the_same_break_nothing():
    shares = PRIORS[0]
    for moments, means in (
        (torch.zeros(6, 6), torch.zeros(2, 6)),
        (-torch.eye(6), 1e-6 * torch.ones(2, 6)),
        (torch.ones(6, 6), torch.ones(2, 6)),
    ):
        weights = {"center": torch.zeros(6), "moments": moments, "means": means}
        guesses = Guesses.of(weights, shares)
        assert guesses.lines.isfinite().all()
        model = replace(model_of("mf", TWO[:1]), filters=(weights,))
        clients = clients_of(hidden=True, strength=0.9, attributes=TWO[:1])
        how, free = replace(HOW, epochs=30), replace(clients, strength=0 * clients.strength)
        moved, plain = (train(model, c, how, RNG, PRIORS[:1]).users for c in (clients, free))
        assert moved.isfinite().all()
        assert moved.abs().max() < 1.5 * plain.abs().max()


# --- the pull -----------------------------------------------------------------------------------


def bends_of(model):
    return [
        Guesses.of(weights, SHARES[t]).bend().double().numpy()
        for t, weights in enumerate(model.filters)
    ]


def by_hand(model, beta, hidden, epochs, rate, masks=None):
    """Where w ΣKL/2 and the way from where one was, squared, are lowest together; step by step."""
    w = rate * float(np.float32(beta)) / (1.0 - float(np.float32(beta)))
    bends = bends_of(model)
    x = model.users.double().numpy().copy()
    for n in range(len(x)):
        square, right = np.eye(x.shape[1]), np.zeros(x.shape[1])
        for t, weights in enumerate(model.filters):
            if hidden[n, t]:
                like = weights["center"].double().numpy().copy()
                if masks is not None:
                    root = Guesses.of(weights, SHARES[t]).spread.double().numpy()
                    like += LIKE * root @ masks[n].double().numpy()
                square += w * bends[t]
                right += w * bends[t] @ like
        for _ in range(epochs):
            x[n] = np.linalg.solve(square, x[n] + right)
    return x


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("beta", STRENGTHS)
def test_the_pull_is_the_closed_form(beta, masked):
    """For those who hide one attribute, the other, both or none."""
    model, clients = quiet(trained_model(size=8)), clients_of(strength=beta)
    masks = torch.randn(USERS, 8, generator=torch.Generator().manual_seed(1)) if masked else None
    how = replace(PULLED, epochs=3)
    after = (model.users + train(model, clients, how, RNG, PRIORS, masks).users).numpy()
    expected = by_hand(model, beta, clients.hidden, 3, how.rate, masks)
    assert len(np.unique(clients.hidden @ [1, 2])) == 4
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beta", STRENGTHS)
@pytest.mark.parametrize("apart", [0.3, 30.0])
@pytest.mark.parametrize("size", [6, 64])
def test_the_pull_never_goes_too_far(beta, apart, size):
    """However strong, and however sure the filter: what it sees of her shrinks, and she comes no
    further from the center, in a thousand steps."""
    model = quiet(trained_model(attributes=TWO[:1], size=size, apart=apart))
    clients = clients_of(hidden=True, strength=beta, attributes=TWO[:1])
    center, (bend,) = model.filters[0]["center"].double(), bends_of(model)
    bend = torch.tensor(bend)

    def seen(users):
        away = users.double() - center
        return ((away @ bend) * away).sum(dim=1), away.norm(dim=1)

    before, far = seen(model.users)
    for epochs in (1, 10, 1000):
        moved = train(model, clients, replace(PULLED, epochs=epochs), RNG, PRIORS[:1]).users
        now, distance = seen(model.users + moved)
        assert torch.all(now < before + 1e-9)
        assert torch.all(distance <= far * (1 + 1e-4))
        before = now
    assert torch.all(now < 0.5 * seen(model.users)[0] + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.8, 0.9999])
def test_a_whole_round_stays_finite_however_strongly_one_hides(kind, beta):
    model, clients = trained_model(kind, apart=10.0), clients_of(hidden=True, strength=beta)
    how = replace(HOW, epochs=100, item_rate=5.0)
    masks = torch.randn(USERS, 6, generator=torch.Generator().manual_seed(2))
    sent = train(model, clients, how, RNG, PRIORS, masks)
    assert all(bool(change.isfinite().all()) for change in everything(sent))
    # No further than those who share are, whom they pretend to be like.
    spread = torch.stack([weights["moments"].trace().sqrt() for weights in model.filters])
    far = (model.users + sent.users - model.filters[0]["center"]).norm(dim=1)
    assert far.max() < 3 * spread.max()


def test_a_devices_mask_is_its_own_and_stays():
    settings = UCConfig(embedding_size=8, attributes=(FilterConfig("x", ("a", "b"), (1.0, 1.0)),))
    halves = settings.build(8.0, "l2")

    class Some:
        users = np.array([4, 7, 9])

    rows = np.arange(3)
    masks = halves.masks(Some, rows, Streams.from_seed(1))
    assert torch.equal(masks[1:2], halves.masks(Some, rows[1:2], Streams.from_seed(1)))
    assert not torch.allclose(masks[0], masks[1])
    assert not torch.allclose(masks, halves.masks(Some, rows, Streams.from_seed(2)))


# --- in company ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [6, 33, 63, 64])
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_cohort_of_n_is_n_cohorts_of_one_to_the_last_bit(size, norm):
    """With three filters and as many wishes as clients."""
    model = trained_model("mf", THREE, size)
    strength = np.repeat(np.linspace(0.1, 0.97, USERS).astype(np.float32)[:, None], 3, axis=1)
    clients = replace(clients_of(attributes=THREE), strength=strength)
    masks = torch.randn(USERS, size, generator=torch.Generator().manual_seed(0))
    how = replace(HOW, clip=0.05, norm=norm)
    together = train(model, clients, how, RNG, SHARES, masks)
    for n in range(USERS):
        alone = train(model, clients.take(np.array([n])), how, RNG, SHARES, masks[n : n + 1])
        hers = alone.item_rows.shape[1]
        found = [together.users, together.items[:, :hers], *changes(together)[1:]]
        same([change[n] for change in found], [change[0] for change in everything(alone)])


def test_numbers_that_left_their_range_are_named():
    for name, value in (("means", 1e38), ("center", 3e38), ("moments", np.nan)):
        model = trained_model()
        model.filters[0][name].fill_(value)
        with pytest.raises(Diverged):
            train(model, clients_of(), HOW, RNG, PRIORS)
    nobody_varies = {"center": torch.zeros(6), "moments": torch.zeros(6, 6)}
    filters = ({**nobody_varies, "means": torch.ones(2, 6)},)
    model = replace(model_of("mf", TWO[:1]), filters=filters)
    with pytest.raises(Diverged):
        train(model, clients_of(hidden=True, attributes=TWO[:1]), HOW, RNG, PRIORS[:1])
