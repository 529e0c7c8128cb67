"""UC-FedRec on the devices: the local training of a whole cohort at once, in torch.

Every client has a copy of the weights of its own, stacked along the first axis, so that a step of
all clients is a few large operations. Of the items' table a client's copy holds the rows that its
draws touch. Per local epoch a client draws n items i of hers, and with each k others, j, and takes
one step of descent with momentum (which begins at 0 in each round) on

    −mean ln σ(s_ui − s_uj) + λ/2 (‖h_u‖² + 1/n Σ(‖h_i‖² + ‖h_j‖²)) + w Σ_private KL(target ‖ q_t)

and each filter of a public attribute one on CE(g_t(h_u), y_t), where h_u counts as a constant, as
filters do in the line above. w = β / (1 − β), so that β = 0 asks for nothing. For NeuMF the first
mean is that of −ln σ(s_ui) and −ln σ(−s_uj), over all items drawn. Filters of moments do without
slopes: they follow those who share, and those who hide are pulled after every step (`_pull`).

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

from sottovoce.algorithms.uc import triton as fused
from sottovoce.algorithms.uc.networks import Guesses, UCModel, Weights, divergence, guess, times
from sottovoce.algorithms.uc.rows import ClientUpdates
from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import GAMMA, Streams, words_of

# --- bounds on what clients send -----------------------------------------------------------------

WILD = "a client's weights left the range of numbers; lower the rates"
_CELLS = 1 << 24
"""Numbers whose norm is taken at a time."""
_FAR = 0.98
"""Of a limit: a norm below this, in single precision, is below the limit."""


def clip(
    changes: Sequence[Tensor],
    limit: float,
    norm: Literal["l2", "l1", "scalar"] = "l2",
    numbers: int = 1 << 30,
) -> None:
    """Shorten each client's changes [C, ...], taken together, to `limit`, in place.

    The norm is added up in whole numbers, rounded up: it is never above the limit afterwards, and
    depends neither on the order of the numbers nor on zeros among them. A client has `numbers` of
    them at most."""
    if not changes:
        return
    flat = [change.flatten(1) for change in changes]
    sizes = [torch.linalg.vector_norm(change, math.inf, dim=1) for change in flat]
    largest = torch.stack(sizes).amax(dim=0).double()
    if not bool(largest.isfinite().all()):
        raise Diverged(WILD)
    if norm == "scalar":
        for change in changes:
            change.clamp_(-limit, limit)
        return
    if not limit < math.inf:
        return
    order = 2 if norm == "l2" else 1
    rough = torch.stack([torch.linalg.vector_norm(change, order, dim=1) for change in flat])
    if bool((torch.linalg.vector_norm(rough, order, dim=0) < _FAR * limit).all()):
        return  # nobody comes near it, however the sum is rounded
    unit = largest.clamp(min=torch.finfo(torch.float32).tiny)
    steps = 2.0 ** (62 - numbers.bit_length())
    total = torch.zeros_like(unit, dtype=torch.int64)
    for change in changes:
        step = max(1, _CELLS // change[0].numel())
        for start in range(0, len(change), step):
            part = slice(start, start + step)
            share = change[part].flatten(1).abs().double() / unit[part, None]
            share = share.square_() if norm == "l2" else share
            total[part] += (share * steps).ceil_().long().sum(dim=1)
    length = total.double() / steps
    length = unit * (length.sqrt() if norm == "l2" else length)
    # Two roundings may lengthen a number by 2**-23 of it.
    factor = torch.where(length > limit, limit / length * (1 - 2.0**-22), 1.0).float()
    for change in changes:
        change.mul_(factor.view(-1, *[1] * (change.ndim - 1)))


# --- which items a client's steps learn from, and which units they leave out ---------------------
# Draws are functions of (the round's stream, user, number of the draw), so they do not depend on
# who else is in the cohort.

_GAMMA = int(GAMMA) - (1 << 64)
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)


def user_keys(users: NDArray[np.int64], rng: Streams, place: torch.device) -> Tensor:
    """One key per user, as signed numbers: [n], or [n, 4] of secret streams."""
    return torch.from_numpy(np.ascontiguousarray(rng.keys(users)).view(np.int64)).to(place)


def words(keys: Tensor, draws: int, first: int = 0) -> Tensor:
    """Draws `first` to `first + draws` of each key, [len(keys), draws]: what `Streams.words` gives,
    as signed numbers."""
    if keys.dim() == 2:
        made = words_of(keys.cpu().numpy().view(np.uint32), draws, first)
        return torch.from_numpy(made.view(np.int64)).to(keys.device)
    offset = torch.arange(first + 1, first + draws + 1, device=keys.device) * _GAMMA
    z = keys[:, None] + offset
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _M1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _M2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


@dataclass(frozen=True, slots=True, repr=False)
class ItemPairs(Redacted):
    """All items that a round learns from, as places in a client's own list of items."""

    items: Tensor
    """[C, R]: the items that a client touches, ascending; -1 behind the last."""
    liked: Tensor
    """[C]: how many of these are hers."""
    positives: Tensor
    """[E, C, n]"""
    negatives: Tensor
    """[E, C, n, k]: those that go with each positive."""

    @classmethod
    def draw(
        cls, keys: Tensor, history: Interactions, epochs: int, pairs: int, negatives: int = 1
    ) -> ItemPairs:
        """n times an item of the client, uniformly, and k that are not hers, uniformly."""
        n, n_items, place = len(keys), history.n_items, keys.device
        counts_there = history.counts
        # Row c: the items of client c, then a number that no item has.
        counts = torch.from_numpy(counts_there.astype(np.int64)).to(place)[:, None]
        mine = torch.full((n, int(counts_there.max())), n_items, device=place)
        there = torch.arange(mine.shape[1], device=place) < counts
        mine[there] = torch.from_numpy(history.items.astype(np.int64)).to(place)
        word = words(keys, epochs * pairs * negatives)
        high, low = (word[:, ::negatives] >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
        positive = mine.gather(1, (high * counts) >> 32)
        # The r-th item that is not hers is r plus the number of hers before it: those with
        # (k-th item) - k <= r.
        rank = (low * (n_items - counts)) >> 32
        before = mine - torch.arange(mine.shape[1], device=place)
        # Behind the last of hers nothing counts.
        before = torch.where(mine < n_items, before, n_items)
        negative = rank + torch.searchsorted(before, rank, right=True)
        touched = torch.zeros((n, n_items), dtype=torch.bool, device=place)
        liked = touched.scatter_(1, positive, True).sum(dim=1)
        touched.scatter_(1, negative, True)
        where = touched.long().cumsum(1) - 1
        size = int(where[:, -1].max()) + 1
        items = torch.full((n, size), -1, dtype=torch.int64, device=place)
        client, item = touched.nonzero(as_tuple=True)
        items[client, where[client, item]] = item
        shape = (n, epochs, pairs)
        return cls(
            items,
            liked,
            where.gather(1, positive).view(shape).transpose(0, 1).contiguous(),
            where.gather(1, negative).view(*shape, negatives).transpose(0, 1).contiguous(),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Drops:
    """Which units of the towers a step leaves out."""

    keys: Tensor
    share: int
    """Of 256."""
    size: int
    """Units of a tower."""

    def kept(self, epoch: int, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Factors [C, 1, d] for the user and [C, rows, d] for items; none where all are kept."""
        if not self.share:
            return None, None
        width = -(-self.size // 8)
        word = words(self.keys, (rows + 1) * width, first=epoch * (rows + 1) * width)
        factor = self._factors(word, rows + 1)
        return factor[:, :1], factor[:, 1:]

    def kept_user(self, epoch: int, rows: int) -> Tensor | None:
        """The first of these alone."""
        if not self.share:
            return None
        width = -(-self.size // 8)
        return self._factors(words(self.keys, width, first=epoch * (rows + 1) * width), 1)

    def _factors(self, word: Tensor, rows: int) -> Tensor:
        byte = word.view(torch.uint8).view(len(word), rows, -1)[..., : self.size]
        return (byte >= self.share).float() * (256 / (256 - self.share))


# --- what a step asks for beside good recommendations --------------------------------------------
# Those who share an attribute train its filter. Those who hide it are pulled to where the filter
# says of them what it would say of anybody.

LIKE = 1.0
"""How far from the middle, in the spread of those who share, clients pretend to be."""


@dataclass(frozen=True, slots=True, repr=False)
class Wishes:
    """Of a cohort."""

    labels: Tensor
    """[C, A]; 0 where it is not shared."""
    shared: Tensor
    """[C, A], true where the attribute trains its filter; all others are hidden."""
    weight: Tensor
    """[C, A]: w"""
    targets: tuple[Tensor, ...]
    pull: tuple[Tensor, Tensor] | None
    """Of filters of moments: what a step leaves of an embedding [C, d, d], and adds to it [C, d].
    That is where w ΣKL, as it bends at its lowest, and a step's length from where one was are
    lowest together; unlike a step down the slope it never goes too far."""
    hides: bool
    shares: bool

    @classmethod
    def of(
        cls,
        model: UCModel,
        clients: Clients,
        how: LocalTraining,
        priors: Sequence[Tensor],
        masks: Tensor | None,
    ) -> Wishes:
        place = model.items.device
        shared = clients.shared()
        beta = clients.strength.astype(np.float64)
        targets = [torch.full((a.classes,), 1.0 / a.classes) for a in model.attributes]
        if how.target == "prior" and (priors or not shared.all()):
            if len(priors) != len(targets):
                raise DataError("the target prior needs the classes' shares of every attribute")
            for attribute, prior in zip(model.attributes, priors, strict=True):
                fits = prior.shape == (attribute.classes,) and bool((prior >= 0).all())
                if not fits or not 0 < float(prior.sum()) < math.inf:
                    raise DataError(f"{attribute.name}: there must be one share per class")
            targets = [(prior / prior.sum()).float() for prior in priors]
        targets = [target.to(place) for target in targets]
        hides = not bool(shared.all())
        shown = torch.from_numpy(shared).to(place)
        weight = torch.from_numpy((beta / (1.0 - beta)).astype(np.float32)).to(place)
        return cls(
            torch.from_numpy(np.where(shared, clients.labels, 0)).to(place),
            shown,
            weight,
            tuple(targets),
            _pull(model, how.rate * weight * ~shown, targets, masks) if hides else None,
            hides=hides,
            shares=bool(shared.any()) and how.filter_rate > 0,
        )

    def loss(self, user: Tensor, filters: Sequence[Weights]) -> Tensor:
        """Sum over clients of w ΣKL and of the filters' own losses; `user` is h_u [C, 1, width]."""
        total = user.new_zeros(())
        for t, weights in enumerate(filters):
            if "moments" in weights:
                continue
            if self.hides:
                fixed = {name: weight.detach() for name, weight in weights.items()}
                log_q = F.log_softmax(guess(user, fixed)[:, 0], dim=1)
                pull = self.weight[:, t] * ~self.shared[:, t]
                total = total + (pull * divergence(self.targets[t], log_q)).sum()
            if self.shares:
                logits = guess(user.detach(), weights)[:, 0]
                miss = F.cross_entropy(logits, self.labels[:, t], reduction="none")
                total = total + (miss * self.shared[:, t]).sum()
        return total


def _pull(
    model: UCModel, weight: Tensor, targets: Sequence[Tensor], masks: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """`Wishes.pull` of clients to whom hiding each attribute is worth so much, [C, attributes]."""
    here = [t for t, weights in enumerate(model.filters) if "moments" in weights]
    if not here or not bool(weight[:, here].any()):
        return None
    bends, goal = [], torch.zeros((), dtype=torch.float64, device=weight.device)
    for t in here:
        guesses = Guesses.of(model.filters[t], targets[t])
        bends.append(guesses.bend().double())
        like = guesses.center.expand(len(weight), -1).double()
        if masks is not None:
            like = like + LIKE * (masks[:, None] * guesses.spread).sum(dim=-1)
        goal = goal + weight[:, t, None] * (like[:, None] * bends[-1]).sum(dim=-1)
    # Many clients, but few ways to choose. Each by itself: of several at once a library may round
    # one otherwise than alone.
    wishes, which = torch.unique(weight[:, here].double(), dim=0, return_inverse=True)
    plain = torch.eye(len(bends[0]), dtype=torch.float64, device=weight.device)
    sums = [sum((w * b for w, b in zip(wish, bends, strict=True)), plain) for wish in wishes]
    inverses, wrong = zip(*(torch.linalg.inv_ex(each.cpu()) for each in sums), strict=True)
    if any(map(bool, wrong)):
        raise Diverged(WILD)
    kept = torch.stack(inverses).to(weight.device)[which]
    return kept.float(), (kept * goal[:, None]).sum(dim=-1).float()


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
class Clients(Redacted):
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
    """[clients, attributes]: β of each client."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if len(self.rows) != n:
            raise DataError("every client needs a row in the users' table")
        if self.history.n_users != n:
            raise DataError("every client needs a history")
        if not self.labels.shape == self.hidden.shape == self.strength.shape:
            raise DataError("every client needs a label, a choice and a strength per attribute")
        if len(self.labels) != n:
            raise DataError("labels and hidden attributes must have a row per client")
        if n and not bool(np.all((self.strength >= 0) & (self.strength < 1))):
            raise DataError("strength must lie in [0, 1)")
        counts = self.history.counts
        if not bool(np.all((counts > 0) & (counts < self.history.n_items))):
            raise DataError("a client learns from pairs: it needs some, but not all, of the items")

    def __len__(self) -> int:
        return len(self.users)

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
    model: UCModel,
    clients: Clients,
    how: LocalTraining,
    rng: Streams,
    priors: Sequence[Tensor] = (),
    masks: Tensor | None = None,
) -> ClientUpdates:
    """One round of these clients. `rng` is the round's stream; `priors` are the classes' public
    shares, per attribute, for the target of that name. `masks` [C, d] are standard normal numbers
    that nobody else knows and that stay with a client: of whom it pretends to be in the eyes of
    filters of moments. Without, it is pulled to the middle, which leaves the order of clients as it
    is, and their faint differences to whoever magnifies them."""
    _check(model, clients)
    place, dropout = model.items.device, round(256 * how.dropout)
    keys = user_keys(clients.users, rng.child("pairs"), place)
    pairs = ItemPairs.draw(keys, clients.history, how.epochs, how.pairs, how.negatives)
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

    model: UCModel
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
    def of(cls, model: UCModel, clients: Clients, pairs: ItemPairs, how: LocalTraining) -> _Copies:
        own = torch.tensor(clients.rows).to(model.users.device)
        around = own.new_empty((len(own), 0))
        if model.recommender.needs_whole_cohort:
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
        shaped = rows.view(n, place.numel() // n, -1)
        quick = fused.usable(self.model.recommender, self.items, self.how.momentum)
        if quick:
            user = self._user(drops.kept_user(epoch, shaped.shape[1]))
            given = self.towers, drops.keys, (drops.share, epoch), pairs, self.how.reg
            loss = fused.item_loss(shaped, user, *given) + 0.5 * self.how.reg * user.square().sum()
        else:
            user, item = self._represent(shaped, drops, epoch)
            loss = self._miss(user, item, pairs)
        loss = loss + terms.loss(user, self.filters)
        # A filter that nobody here shares has no slope.
        slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            if self.how.item_rate and quick:
                pace = self.how.momentum, self.how.item_rate
                fused.move(self.items, self.item_speed, slopes[-1], place, self.item_rows, pace)
            elif self.how.item_rate:
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
        kept_user, kept_items = drops.kept(epoch, rows.shape[1])
        return self._user(kept_user), self.model.recommender.item(rows, self.towers, kept_items)

    def _user(self, kept: Tensor | None) -> Tensor:
        around = self.users
        if self.model.recommender.needs_whole_cohort:
            around = torch.cat([self.users, self.around], dim=1).mean(dim=1, keepdim=True)
        return self.model.recommender.user(self.users, around, self.towers, kept)

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

    def updates(self, shared: Tensor, liked: Tensor) -> ClientUpdates:
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
        return ClientUpdates(users, self.item_rows, items, liked, towers, tuple(filters), shared)


def _changes(now: Weights, before: Weights, rate: float) -> dict[str, Tensor]:
    """What has become of the copies; zeros, without memory of their own, where nothing could."""
    if not rate:
        return {name: torch.zeros_like(w).expand_as(now[name]) for name, w in before.items()}
    return {name: weight - before[name] for name, weight in now.items()}


def _check(model: UCModel, clients: Clients) -> None:
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
    rows = slice(None) if model.recommender.needs_whole_cohort else torch.tensor(clients.rows)
    networks = [weight for some in (model.towers, *model.filters) for weight in some.values()]
    every = [weight.isfinite().all() for weight in (model.users[rows], model.items, *networks)]
    if not bool(torch.stack(every).all()):  # one look at a GPU, not one for each
        raise Diverged("the model has weights that are not finite numbers")
