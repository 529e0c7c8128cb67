"""FedGNN of Wu et al.: the layer, what is sent, what is learnt, and what noise does to it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.baselines.simple import TopPop
from sottovoce.core.interactions import Interactions
from sottovoce.data.splitting import leave_one_out
from sottovoce.errors import (
    ConfigError,
    DataError,
    Diverged,
    KeyTrouble,
    MessageError,
    UsageError,
)
from sottovoce.evaluation.protocol import evaluate
from sottovoce.rng import Streams
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")

from sottovoce_papers import wu_graph  # noqa: E402
from sottovoce_papers.wu_graph import (  # noqa: E402
    Graphs,
    Layer,
    Neighbours,
    WuModel,
    device_part,
)
from sottovoce_papers.wu_matcher import Matcher  # noqa: E402
from sottovoce_papers.wu_system import (  # noqa: E402
    Uploads,
    WuClients,
    WuConfig,
    WuFedGNN,
    device_learn,
    server_fold,
)

SEED = Streams.from_seed(7)
KEY = bytes(range(32))
OPEN = WuConfig(
    embedding_size=8, learning_rate=0.1, user_rate=0.1, pseudo_items=12, clip=math.inf, noise=0.0
)
"""Nothing is cut, and there is no noise."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(n_users=9, n_items=40, events=60):
    return random_world(n_users, n_items, events, seed=3)


def neighbours(own, size, most=3, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 1, len(own.items))
    rows = rng.normal(size=(int(counts.sum()), size)).astype(np.float32)
    return Neighbours(counts.astype(np.int64), rows)


def cohort(history, config, users=None, around=None):
    users = np.arange(history.n_users) if users is None else users
    learnt = device_part(history, np.arange(history.n_users), config.most_items, SEED)
    vectors = wu_graph.embeddings(users, config.embedding_size, SEED.child("users"))
    return WuClients(users, history.take_users(users), learnt.take_users(users), vectors, around)


def model_of(history, config, seed=1):
    """Not even at first, so that attention matters."""
    model = WuModel.init(history.n_items, config.embedding_size, Streams.from_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    attention = torch.randn(model.layer.attention.shape, generator=generator)
    return WuModel(10 * model.items, Layer(model.layer.weight, attention))


# --- the layer -----------------------------------------------------------------------------------


def softmax_of(logits):
    active = np.where(logits > 0, logits, wu_graph.SLOPE * logits)
    weights = np.exp(active - active.max())
    return weights / weights.sum()


def test_the_layer_is_what_the_formulas_say_device_by_device():
    history, size = world(), 6
    around = neighbours(history, size)
    model = model_of(history, replace(OPEN, embedding_size=size))
    layer = model.layer
    users = torch.randn(history.n_users, size, generator=torch.Generator().manual_seed(2))
    graphs = Graphs.of(history, around, size, torch.device("cpu"))
    got = layer.users(layer.project(users), layer.project(model.items[graphs.items]), graphs)

    weight, on = layer.weight.double().numpy(), layer.attention.double().numpy()
    edges = np.append(0, np.cumsum(around.counts))
    for user in range(history.n_users):
        own, mixed = weight @ users[user].double().numpy(), []
        for entry in range(history.indptr[user], history.indptr[user + 1]):
            item = weight @ model.items[history.items[entry]].double().numpy()
            beside = around.embeddings[edges[entry] : edges[entry + 1]] @ weight.T
            nodes = np.vstack([item, beside])
            mixed.append(softmax_of(on[0] @ item + nodes @ on[1]) @ nodes)
        mixed = np.array(mixed)
        expected = own + softmax_of(on[2] @ own + mixed @ on[3]) @ mixed
        np.testing.assert_allclose(got[user], expected, rtol=1e-4, atol=1e-5)


def test_a_user_without_items_is_her_own_embedding():
    empty = Interactions.from_pairs([1], [2], n_users=2, n_items=5)
    layer = Layer.init(4, SEED)
    graphs = Graphs.of(empty, None, 4, torch.device("cpu"))
    own = torch.ones(2, 4)
    hidden = layer.users(own, torch.ones(2, 1, 4), graphs)
    assert torch.equal(hidden[0], own[0])
    assert not torch.equal(hidden[1], own[1])


# --- what is sent --------------------------------------------------------------------------------


def test_slopes_are_those_of_the_loss():
    """Against differences of the loss, computed from scores alone."""
    history = Interactions.from_pairs([0, 0, 0], [1, 3, 4], n_users=1, n_items=6)
    config = replace(OPEN, embedding_size=3, pseudo_items=1, user_rate=1.0)
    model = model_of(history, config)
    around = neighbours(history, 3)
    clients = cohort(history, config, around=around)
    vectors, uploads = device_learn(model, clients, config, 0, SEED)
    (negative,) = set(uploads.items[0].tolist()) - {1, 3, 4}

    def loss(items, weight, attention, own):
        layer = Layer(weight, attention)
        graphs = Graphs.of(history, around, 3, torch.device("cpu"))
        graphs = Graphs(graphs.items, graphs.has_item, graphs.around.double(), graphs.has_user)
        hidden = layer.users(layer.project(own), layer.project(items[graphs.items]), graphs)
        scores = layer.project(items) @ hidden[0]
        ahead = scores[[1, 3, 4]] - scores[negative]
        return torch.nn.functional.softplus(-ahead).sum()

    point = [
        model.items.double(),
        model.layer.weight.double(),
        model.layer.attention.double(),
        torch.from_numpy(clients.vectors).double(),
    ]

    def slope(which):
        out = torch.zeros(point[which].shape, dtype=torch.float64)
        for place in np.ndindex(*out.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [tensor.clone() for tensor in point]
                moved[which][place] += step
                ends.append(loss(*moved))
            out[place] = (ends[0] - ends[1]) / 2e-5
        return out.numpy()

    np.testing.assert_allclose(uploads.rows[0], slope(0)[uploads.items[0]], rtol=1e-3, atol=1e-4)
    layer = np.concatenate([slope(1).ravel(), slope(2).ravel()])
    np.testing.assert_allclose(uploads.layer[0], layer, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(clients.vectors - vectors, slope(3), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pseudo", ["fresh", "fixed"])
def test_a_cohort_sends_what_its_devices_send_alone(pseudo):
    history = world()
    config = replace(OPEN, pseudo=pseudo, clip=0.1, noise=0.2)
    model = model_of(history, config)
    around = neighbours(history, 8)
    vectors, together = device_learn(model, cohort(history, config, around=around), config, 4, SEED)
    edges = np.append(0, np.cumsum(around.counts))
    for user in range(history.n_users):
        mine = slice(history.indptr[user], history.indptr[user + 1])
        rows = around.embeddings[edges[mine.start] : edges[mine.stop]]
        one = cohort(history, config, np.array([user]), Neighbours(around.counts[mine], rows))
        vector, alone = device_learn(model, one, config, 4, SEED)
        sent = together.items[user] >= 0
        np.testing.assert_array_equal(together.items[user][sent], alone.items[0])
        np.testing.assert_allclose(together.rows[user][sent], alone.rows[0], atol=1e-5)
        np.testing.assert_allclose(together.layer[user], alone.layer[0], atol=1e-5)
        np.testing.assert_allclose(vectors[user], vector[0], atol=1e-5)


def test_own_items_are_among_so_many_others_in_ascending_order():
    history = world()
    _, uploads = device_learn(model_of(history, OPEN), cohort(history, OPEN), OPEN, 0, SEED)
    for user in range(history.n_users):
        sent = uploads.items[user][uploads.items[user] >= 0]
        assert set(history.row(user).tolist()) <= set(sent.tolist())
        assert len(sent) == len(history.row(user)) + 12
        assert (np.diff(sent) > 0).all()


def test_where_items_are_few_all_are_sent():
    history = world(n_items=15, events=20)
    config = replace(OPEN, pseudo_items=1000)
    _, uploads = device_learn(model_of(history, config), cohort(history, config), config, 0, SEED)
    assert uploads.items.tolist() == [list(range(15))] * history.n_users


def test_fresh_pseudo_items_change_and_fixed_ones_stay():
    history = world()
    for pseudo, stays in (("fresh", False), ("fixed", True)):
        config = replace(OPEN, pseudo=pseudo)
        model, clients = model_of(history, config), cohort(history, config)
        first, second = (device_learn(model, clients, config, r, SEED)[1] for r in (0, 1))
        assert np.array_equal(first.items, second.items) == stays


def test_items_beyond_the_graph_are_neither_sent_nor_pseudo_items():
    history = Interactions.from_pairs([0] * 20, range(20), n_users=1, n_items=30)
    config = replace(OPEN, most_items=5, pseudo_items=100)
    clients = cohort(history, config)
    assert clients.learnt.counts.tolist() == [5]
    _, uploads = device_learn(model_of(history, config), clients, config, 0, SEED)
    assert set(uploads.items[0].tolist()) == set(clients.learnt.items.tolist()) | set(range(20, 30))


def test_pseudo_rows_are_as_large_as_true_ones_coordinate_by_coordinate():
    history = random_world(6, 3000, 200, seed=1)
    config = replace(OPEN, pseudo_items=2500)
    model = WuModel.init(3000, 8, SEED)
    _, uploads = device_learn(model, cohort(history, config), config, 0, SEED)
    for user in range(6):
        own = np.isin(uploads.items[user], history.row(user))
        others = ~own & (uploads.items[user] >= 0)
        true, drawn = (np.sqrt((uploads.rows[user][k] ** 2).mean(axis=0)) for k in (own, others))
        assert np.linalg.norm(drawn) == pytest.approx(np.linalg.norm(true), rel=0.25)
        assert drawn @ true > 0.97 * np.linalg.norm(drawn) * np.linalg.norm(true)


def test_every_number_is_cut_and_the_noise_is_laplace():
    history = random_world(20, 300, 400, seed=2)
    quiet = replace(OPEN, clip=0.1, pseudo_items=200)
    model, clients = model_of(history, quiet), cohort(history, quiet)
    _, cut = device_learn(model, clients, quiet, 0, SEED)
    assert max(np.abs(cut.rows).max(), np.abs(cut.layer).max()) == pytest.approx(0.1)
    _, loud = device_learn(model, clients, replace(quiet, noise=0.2), 0, SEED)
    sent = cut.items >= 0
    assert not loud.rows[~sent].any()
    for noise in ((loud.rows - cut.rows)[sent].ravel(), (loud.layer - cut.layer).ravel()):
        # |x| is exponential of mean λ, and x symmetric.
        bound = 5 / math.sqrt(len(noise))
        assert np.abs(noise).mean() == pytest.approx(0.2, rel=bound)
        assert (np.abs(noise) > 0.2 * math.log(4)).mean() == pytest.approx(0.25, abs=bound)
        assert noise.mean() == pytest.approx(0.0, abs=0.3 * bound)


def test_the_price_is_infinite_whatever_the_noise():
    config = WuConfig()
    assert config.epsilon_per_number == pytest.approx(1.0)
    assert config.epsilon_of_numbers(1100) == pytest.approx(1100 * 64 + 64 * 64 + 4 * 64)
    assert config.epsilon == math.inf
    assert replace(config, noise=0.0).epsilon_per_number == math.inf


def test_nothing_private_is_printed():
    history = world()
    clients = cohort(history, OPEN, around=neighbours(history, 8))
    _, uploads = device_learn(model_of(history, OPEN), clients, OPEN, 0, SEED)
    for holder in (clients, uploads, clients.around, Matcher()):
        assert "redacted" in repr(holder)
        assert len(repr(holder)) < 60


# --- the server ----------------------------------------------------------------------------------


def uploads_of(items, rows, layer=0.0, size=2):
    n = len(items)
    return Uploads(
        np.arange(n),
        np.array(items, dtype=np.int64),
        np.array(rows, dtype=np.float32),
        np.full((n, size * size + 4 * size), layer, dtype=np.float32),
    )


def test_the_mean_is_weighted_by_the_number_of_items():
    model = WuModel(torch.zeros(4, 2), Layer(torch.zeros(2, 2), torch.zeros(4, 2)))
    config = replace(OPEN, embedding_size=2, item_rate=2.0, learning_rate=1.0)
    uploads = uploads_of([[0, 1, 3], [1, -1, -1]], [[[4, 0]] * 3, [[8, 8], [0, 0], [0, 0]]], 1.0)
    after = server_fold(model, uploads, config)
    np.testing.assert_allclose(after.items.numpy(), [[-6, 0], [-10, -4], [0, 0], [-6, 0]])
    np.testing.assert_allclose(after.layer.weight.numpy(), -1.0)
    assert not model.items.any()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda u: replace(u, rows=np.where(u.rows > 0, np.nan, u.rows)),
        lambda u: replace(u, layer=u.layer + np.inf),
        lambda u: replace(u, layer=u.layer[:, 1:]),
        lambda u: replace(u, rows=u.rows[:, :, :1]),
        lambda u: replace(u, rows=u.rows[:1]),
        lambda u: replace(u, items=u.items + 1),
        lambda u: replace(u, items=u.items - 4),
        lambda u: replace(u, items=u.items[:, ::-1]),
        lambda u: replace(u, items=np.ones_like(u.items)),
        lambda u: replace(u, items=u.items[0]),
        lambda u: replace(u, users=u.users[:1]),
    ],
)
def test_a_bad_upload_is_refused_whole(spoil):
    model = WuModel(torch.zeros(4, 2), Layer(torch.zeros(2, 2), torch.zeros(4, 2)))
    good = uploads_of([[0, 1, 3], [0, 2, 3]], np.ones((2, 3, 2)))
    server_fold(model, good, replace(OPEN, embedding_size=2))
    with pytest.raises(MessageError):
        server_fold(model, spoil(good), replace(OPEN, embedding_size=2))


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [[], list(range(6))])
def test_a_device_needs_pairs(items):
    history = Interactions.from_pairs([0] * len(items), items, n_users=1, n_items=6)
    with pytest.raises(DataError, match="some, but not all"):
        cohort(history, OPEN)
    with pytest.raises(DataError, match="no user has some"):
        WuFedGNN(OPEN).fit(history, SEED)


def test_what_does_not_fit_is_refused():
    history = world()
    clients, model = cohort(history, OPEN), model_of(history, OPEN)
    with pytest.raises(DataError, match="at least one"):
        device_learn(model, cohort(history, OPEN, np.arange(0)), OPEN, 0, SEED)
    with pytest.raises(DataError, match="rows of 4"):
        device_learn(model, clients, replace(OPEN, embedding_size=4), 0, SEED)
    with pytest.raises(DataError, match="catalogue"):
        device_learn(WuModel(model.items[1:], model.layer), clients, OPEN, 0, SEED)
    with pytest.raises(DataError, match="finite"):
        replace(clients, vectors=clients.vectors * np.nan)
    with pytest.raises(DataError, match="every device"):
        replace(clients, vectors=clients.vectors[1:])
    with pytest.raises(DataError, match="fit each other"):
        WuModel(model.items[:, 1:], model.layer)
    with pytest.raises(Diverged):
        WuModel(model.items * torch.nan, model.layer)
    for around in (neighbours(history, 5), neighbours(history.take_users(np.arange(4)), 8)):
        with pytest.raises(MessageError):
            device_learn(model, replace(clients, around=around), OPEN, 0, SEED)
    with pytest.raises(MessageError, match="finite"):
        Neighbours(np.array([1]), np.full((1, 8), np.nan, dtype=np.float32))


@pytest.mark.parametrize(
    "wrong",
    [{"pseudo": "some"}, {"clip": 0.0}, {"noise": -1.0}, {"epochs": 0}, {"pseudo_items": 0}],
)
def test_a_bad_configuration_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        WuConfig(**wrong)


def test_rates_that_are_too_high_are_named():
    config = replace(OPEN, item_rate=1e5, user_rate=1e5, epochs=20)
    with pytest.raises(Diverged, match="rate"):
        WuFedGNN(config).fit(world(), SEED)


def test_a_third_party_is_given_nothing_without_a_key():
    with pytest.raises(KeyTrouble, match="32 bytes"):
        WuFedGNN(OPEN).fit(world(), SEED, Matcher())


def test_a_device_that_torch_does_not_know_is_named():
    with pytest.raises(UsageError, match="abacus"):
        WuFedGNN(OPEN, device="abacus").fit(world(), SEED)


# --- all of it -----------------------------------------------------------------------------------

LEARNING = WuConfig(
    embedding_size=16,
    learning_rate=0.1,
    item_rate=5.0,
    user_rate=0.1,
    cohort_size=64,
    epochs=12,
    pseudo_items=30,
    clip=math.inf,
    noise=0.0,
)


def four_tastes():
    """240 users of four tastes, each with 14 of her taste's 30 items; the last one held out. A list
    of ten from the right 17 holds it in 10 / 17 = 0.59 of all cases."""
    rng = np.random.default_rng(3)
    weights = np.arange(1, 31) ** -0.3
    rows = [rng.choice(30, 14, replace=False, p=weights / weights.sum()) for _ in range(240)]
    items = np.concatenate([row * 4 + user % 4 for user, row in enumerate(rows)])
    users, times = np.repeat(np.arange(240), 14), rng.integers(0, 1000, 240 * 14)
    table = Interactions.from_pairs(users, items, n_users=240, n_items=120, timestamps=times)
    return leave_one_out(table)


def hits(scorer, split):
    return evaluate(scorer, split.train, split.test, threads=1).mean("HR@10")


def learnt(split, config, **options):
    return hits(WuFedGNN(config).fit(split.train, SEED, Matcher(8), key=KEY, **options), split)


def test_it_learns_without_noise():
    split = four_tastes()
    popular = hits(TopPop().fit(split.train, SEED), split)
    untrained = learnt(split, LEARNING, rounds=0)
    assert max(popular, untrained) < 0.2
    assert learnt(split, LEARNING) > 0.5
    assert learnt(split, replace(LEARNING, pseudo="fixed")) > 0.45


def test_what_the_printed_noise_and_rates_leave():
    """The printed noise costs little here, and so protects little (`test_wu_item_sets.py`); five
    times as much takes most of what was learnt. At the printed rates nothing is learnt from
    implicit feedback in the printed three passes, with noise or without."""
    split = four_tastes()
    assert learnt(split, replace(LEARNING, clip=0.1, noise=0.2)) > 0.5
    assert learnt(split, replace(LEARNING, clip=0.1, noise=1.0)) < 0.4
    assert learnt(split, WuConfig(embedding_size=16, noise=0.0)) < 0.2


def test_the_same_streams_give_the_same_scores_and_progress_is_told():
    history, config = world(), replace(OPEN, cohort_size=4, epochs=2)
    told = []
    runs = [
        WuFedGNN(config).fit(
            history, SEED, Matcher(), key=KEY, progress=lambda done, all_: told.append((done, all_))
        )
        for _ in range(2)
    ]
    every = np.arange(history.n_users)
    np.testing.assert_array_equal(runs[0].scores(every), runs[1].scores(every))
    assert told[:6] == [(r, 6) for r in range(1, 7)]
    alone = WuFedGNN(config).fit(history, SEED)
    assert not np.allclose(alone.scores(every), runs[0].scores(every))


def test_users_without_items_are_served_and_never_asked():
    history = Interactions.from_pairs([0, 0, 2], [1, 2, 3], n_users=4, n_items=5)
    senders = []
    scorer = WuFedGNN(OPEN).fit(
        history, SEED, Matcher(), key=KEY, observe=lambda _r, _m, up: senders.extend(up.users)
    )
    assert set(senders) == {0, 2}
    assert np.isfinite(scorer.scores(np.arange(4))).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_gpu_learns_as_well():
    split = four_tastes()
    scorer = WuFedGNN(LEARNING, device="cuda").fit(split.train, SEED, Matcher(8), key=KEY)
    assert hits(scorer, split) > 0.5
