"""UC-FedRec on the devices: the local training of a whole cohort at once, in torch.

Every client has a copy of the weights of its own, stacked along the first axis, so that a step of
all clients is a few large operations. Of the items' table a client's copy holds the rows that its
draws touch. Per local epoch a client draws n items i of hers, and with each k others, j, and takes
one step of descent with momentum (which begins at 0 in each round) on

    −mean ln σ(s_ui − s_uj) + λ/2 (‖h_u‖² + 1/n Σ(‖h_i‖² + ‖h_j‖²)) + w Σ_private KL(target ‖ q_t)

and each filter of a public attribute one on CE(g_t(h_u), y_t), where h_u counts as a constant, as
filters do in the line above. w = β / (1 − β), so that β = 0 asks for nothing. For NeuMF the first
mean is that of −ln σ(s_ui) and −ln σ(−s_uj), over all items drawn. Filters of moments do without
slopes: they follow those who share, and those who hide are pulled after every step (`uc_hiding`).

Draws do not depend on who else is in the cohort, so a cohort of n gives what n cohorts of one give.
On a processor, with one thread, this holds to the last bit for MF; for NCF and NeuMF too where n is
a multiple of 4, with the matrix products of the library that we tested; elsewhere, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.uc_clipping import WILD, clip
from sottovoce.algorithms.uc_draws import Drops, Pairs, user_keys
from sottovoce.algorithms.uc_hiding import Wishes
from sottovoce.algorithms.uc_networks import Model, Weights, times
from sottovoce.algorithms.uc_updates import Updates
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How a client learns in a round. Rates, epochs and pairs are by default those of the published
    run, which takes thousands of rounds."""

    epochs: int = 30
    """E: steps per round."""
    pairs: int = 512
    """n: items of hers per step."""
    negatives: int = 1
    """k: other items with each of them. NeuMF's authors take 4."""
    rate: float = 0.1
    """For the user's own embedding. What has a rate of 0 stays as it is: with this rate alone, a
    client learns at home and finds nothing to send."""
    tower_rate: float = 0.1
    item_rate: float = 0.1
    """For items' embeddings. A step's gradient is a mean over its pairs, of which an item is in
    few, and the server takes the mean over all who drew it: at the rate of all else, items hardly
    move. Rates a thousand times as high need hundreds of rounds instead, and a far larger clip."""
    filter_rate: float = 0.005
    momentum: float = 0.9
    reg: float = 1e-5
    dropout: float = 0.1
    """Share of the towers' units that a step leaves out, to 1/256."""
    clip: float = 8.0
    """Bound on what a client sends; infinity does without. The user's embedding is not sent."""
    norm: Literal["l2", "l1", "scalar"] = "l2"
    """What the clip bounds: the L2 norm of items and towers together, and that of the filters
    together (apart, so that sharing an attribute changes nothing of the rest); the L1 norm of all
    of these together; or each number's size."""
    target: Literal["uniform", "prior"] = "prior"
    """What filters should say of those who hide an attribute: all classes alike (as published; it
    tells who hides), or the classes' public shares."""

    def __post_init__(self) -> None:
        for name in ("epochs", "pairs", "negatives"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        rates = ("rate", "tower_rate", "item_rate", "filter_rate")
        for name in rates:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a number from 0")
        if not any(getattr(self, name) for name in rates):
            raise ConfigError("a client whose rates are all 0 learns nothing")
        if not self.clip > 0:
            raise ConfigError("clip must be above 0")
        for name in ("momentum", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1)")
        if not self.reg >= 0:
            raise ConfigError("reg must not be below 0")
        if self.norm not in ("l2", "l1", "scalar"):
            raise ConfigError(f"norm must be l2, l1 or scalar, not {self.norm!r}")
        if self.target not in ("uniform", "prior"):
            raise ConfigError(f"target must be uniform or prior, not {self.target!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Clients:
    """What is private to a cohort's devices."""

    rows: NDArray[np.int64]
    """Their rows in the users' table."""
    users: NDArray[np.int64]
    """Their numbers, which key all draws."""
    history: Interactions
    """A row per client."""
    labels: NDArray[np.int64]
    """[clients, attributes]; -1 where an attribute is not known, which hides it."""
    hidden: NDArray[np.bool_]
    """[clients, attributes]"""
    strength: NDArray[np.float32]
    """β of each client."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if len(self.rows) != n:
            raise DataError("every client needs a row in the users' table")
        if self.history.n_users != n or self.strength.shape != (n,):
            raise DataError("every client needs a history and a strength")
        if self.labels.shape != self.hidden.shape or len(self.labels) != n:
            raise DataError("labels and hidden attributes must have a row per client")
        if n and not bool(np.all((self.strength >= 0) & (self.strength < 1))):
            raise DataError("strength must lie in [0, 1)")
        counts = self.history.counts
        if not bool(np.all((counts > 0) & (counts < self.history.n_items))):
            raise DataError("a client learns from pairs: it needs some, but not all, of the items")

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<Clients, {len(self):,}, redacted>"

    def take(self, rows: NDArray[np.int64]) -> Clients:
        return Clients(
            self.rows[rows],
            self.users[rows],
            self.history.take_users(rows),
            self.labels[rows],
            self.hidden[rows],
            self.strength[rows],
        )

    def shared(self) -> NDArray[np.bool_]:
        """[clients, attributes]: known and not hidden."""
        public: NDArray[np.bool_] = ~self.hidden & (self.labels >= 0)
        return public


def train(
    model: Model,
    clients: Clients,
    how: LocalTraining,
    rng: Streams,
    priors: Sequence[Tensor] = (),
    masks: Tensor | None = None,
) -> Updates:
    """One round of these clients. `rng` is the round's stream; `priors` are the classes' public
    shares, per attribute, for the target of that name. `masks` [C, d] are standard normal numbers
    that nobody else knows and that stay with a client: of whom it pretends to be in the eyes of
    filters of moments. Without, it is pulled to the middle, which leaves the order of clients as it
    is, and their faint differences to whoever magnifies them."""
    _check(model, clients)
    place, dropout = model.items.device, round(256 * how.dropout)
    keys = user_keys(clients.users, rng.child("pairs"), place)
    pairs = Pairs.draw(keys, clients.history, how.epochs, how.pairs, how.negatives)
    copy = _Copies.of(model, clients, pairs, how)
    terms = Wishes.of(model, clients, how, priors, masks)
    drops = Drops(
        user_keys(clients.users, rng.child("dropout"), place),
        dropout if model.recommender.drops else 0,
        model.recommender.size,
    )
    for epoch in range(how.epochs):
        copy.step(pairs.positives[epoch], pairs.negatives[epoch], terms, drops, epoch)
    copy.follow(terms)
    return copy.updates(terms.shared, pairs.liked)


@dataclass(slots=True, repr=False)
class _Copies:
    """The clients' weights, [C, ...], with their momentum."""

    model: Model
    how: LocalTraining
    rows: Tensor
    """[C]: the users."""
    item_rows: Tensor
    around: Tensor
    """The nearest users but herself, who stay as they are, [C, k, d]."""
    items: Tensor
    """[C · R, d]"""
    item_speed: Tensor
    users: Tensor
    """[C, 1, d]"""
    towers: dict[str, Tensor]
    filters: list[dict[str, Tensor]]
    speeds: list[Tensor]

    @classmethod
    def of(cls, model: Model, clients: Clients, pairs: Pairs, how: LocalTraining) -> _Copies:
        own = torch.tensor(clients.rows).to(model.users.device)
        around = own.new_empty((len(own), 0))
        if model.recommender.looks_around:
            around = model.nearest(own)[:, 1:]

        def copies(weights: Weights, rate: float) -> dict[str, Tensor]:
            """What is not trained needs no copy of its own."""
            views = {n: w.expand(len(clients), *w.shape) for n, w in weights.items()}
            return {n: w.clone() for n, w in views.items()} if rate else views

        items = model.items[pairs.items.clamp(min=0).flatten()]
        copy = cls(
            model,
            how,
            own,
            pairs.items,
            model.users[around],
            items,
            torch.zeros_like(items) if how.item_rate else items[:0],
            model.users[own][:, None],
            copies(model.towers, how.tower_rate),
            [copies(weights, how.filter_rate) for weights in model.filters],
            [],
        )
        copy.speeds = [torch.zeros_like(weight) for weight, _ in copy.trained()]
        return copy

    def trained(self) -> list[tuple[Tensor, float]]:
        """All weights that learn, but the items', and their rates."""
        how = self.how
        weights = [(self.users, how.rate), *((w, how.tower_rate) for w in self.towers.values())]
        networks = [some for some in self.filters if "moments" not in some]
        weights += [(w, how.filter_rate) for some in networks for w in some.values()]
        return [(weight, rate) for weight, rate in weights if rate]

    def step(
        self, positives: Tensor, negatives: Tensor, terms: Wishes, drops: Drops, epoch: int
    ) -> None:
        """One step of all clients on these items, [C, n] and [C, n, k]."""
        n, pairs = positives.shape
        trained = self.trained()
        first = torch.arange(n, device=positives.device)[:, None] * self.item_rows.shape[1]
        place = (torch.cat([positives, negatives.flatten(1)], dim=1) + first).flatten()
        rows = self.items[place]
        leaves = [weight for weight, _ in trained] + ([rows] if self.how.item_rate else [])
        for leaf in leaves:
            leaf.requires_grad_()
        user, item = self._represent(rows.view(n, place.numel() // n, -1), drops, epoch)
        loss = self._miss(user, item, pairs) + terms.loss(user, self.filters)
        # A filter that nobody here shares has no slope.
        slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            if self.how.item_rate:
                # Only the batch's rows have a slope, but all have momentum.
                self.item_speed.mul_(self.how.momentum).index_add_(0, place, slopes[-1])
                self.items.add_(self.item_speed, alpha=-self.how.item_rate)
            for (weight, rate), speed, slope in zip(trained, self.speeds, slopes, strict=False):
                weight.requires_grad_(False)
                speed.mul_(self.how.momentum)
                if slope is not None:
                    speed.add_(slope)
                weight.add_(speed, alpha=-rate)
            if terms.pull is not None and self.how.rate:
                kept, added = terms.pull
                self.users.copy_(times(self.users, kept) + added[:, None])

    def _represent(self, rows: Tensor, drops: Drops, epoch: int) -> tuple[Tensor, Tensor]:
        recommender = self.model.recommender
        kept_user, kept_items = drops.kept(epoch, rows.shape[1])
        around = self.users
        if recommender.looks_around:
            around = torch.cat([self.users, self.around], dim=1).mean(dim=1, keepdim=True)
        user = recommender.user(self.users, around, self.towers, kept_user)
        return user, recommender.item(rows, self.towers, kept_items)

    def _miss(self, user: Tensor, item: Tensor, pairs: int) -> Tensor:
        """Sum over clients of the mean loss and the penalty on long representations; right in its
        slope alone."""
        scores = self.model.recommender.score(user, item, self.towers)
        liked, other = scores[:, :pairs], scores[:, pairs:]
        if self.model.recommender.pairwise:
            margin = (liked[..., None] - other.view(len(other), pairs, -1)).flatten(1)
        else:
            margin = torch.cat([liked, -other], dim=1)
        # The slope of -ln σ(x) is -1 / (1 + exp x). By hand, because torch's own function rounds
        # the last few numbers of an array otherwise than the rest.
        pull = 1.0 / (1.0 + margin.detach().exp())
        length = user.square().sum() + item.square().sum() / pairs
        return 0.5 * self.how.reg * length - (pull * margin).sum() / margin.shape[1]

    def follow(self, terms: Wishes) -> None:
        """Moments come nearer to what the clients are by now."""
        rate = self.how.filter_rate
        for t, weights in enumerate(self.filters):
            if "moments" not in weights or not rate:
                continue
            own, share = self.users[:, 0], terms.targets[t]
            away = own - weights["center"]
            side = F.one_hot(terms.labels[:, t], len(share)) - share
            goals = {
                "center": own,
                "moments": away[:, :, None] * away[:, None],
                "means": side[:, :, None] * away[:, None],
            }
            mine = rate * terms.shared[:, t].float()
            for name, goal in goals.items():
                pace = mine.view(-1, *[1] * (goal.ndim - 1))
                weights[name].add_((goal - weights[name]) * pace)

    def updates(self, shared: Tensor, liked: Tensor) -> Updates:
        """What the clients' weights have become, less the model's."""
        model, how = self.model, self.how
        n, width = self.item_rows.shape
        users = self.users[:, 0] - model.users[self.rows]
        items = self.items.view(n, width, -1) - model.items[self.item_rows.clamp(min=0)]
        items *= (self.item_rows >= 0)[..., None]
        towers = _changes(self.towers, model.towers, how.tower_rate)
        filters = [
            _changes(weights, old, how.filter_rate)
            for weights, old in zip(self.filters, model.filters, strict=True)
        ]
        # What stays needs no clipping.
        rest = [items] if how.item_rate else []
        rest += [change for change in towers.values() if how.tower_rate]
        learnt = [change for some in filters for change in some.values() if how.filter_rate]
        if not bool(users.isfinite().all()):
            raise Diverged(WILD)
        numbers = model.items.numel() + sum(c[0].numel() for c in [*towers.values(), *learnt])
        for together in [rest, learnt] if how.norm == "l2" else [rest + learnt]:
            clip(together, how.clip, how.norm, numbers)
        return Updates(users, self.item_rows, items, liked, towers, tuple(filters), shared)


def _changes(now: Weights, before: Weights, rate: float) -> dict[str, Tensor]:
    """What has become of the copies; zeros, without memory of their own, where nothing could."""
    if not rate:
        return {name: torch.zeros_like(w).expand_as(now[name]) for name, w in before.items()}
    return {name: weight - before[name] for name, weight in now.items()}


def _check(model: Model, clients: Clients) -> None:
    if not len(clients):
        raise DataError("a cohort needs at least one client")
    if clients.history.n_items != len(model.items):
        raise DataError("the histories number other items than the model")
    if clients.rows.min() < 0 or clients.rows.max() >= len(model.users):
        raise DataError("a client has no row in the model's table of users")
    if clients.labels.shape[1] != len(model.attributes):
        raise DataError("labels need one column per filter")
    # A hidden label is not even looked at.
    known = np.where(clients.hidden, -1, clients.labels)
    for t, attribute in enumerate(model.attributes):
        if bool(np.any((known[:, t] >= attribute.classes) | (known[:, t] < -1))):
            raise DataError(f"{attribute.name}: a label names a class that its filter lacks")
    rows = slice(None) if model.recommender.looks_around else torch.tensor(clients.rows)
    networks = [weight for some in (model.towers, *model.filters) for weight in some.values()]
    for weight in (model.users[rows], model.items, *networks):
        if not bool(weight.isfinite().all()):
            raise Diverged("the model has weights that are not finite numbers")
