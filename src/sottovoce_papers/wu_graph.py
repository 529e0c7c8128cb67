"""FedGNN of Wu et al. (2021): the graph on each device, for a whole cohort at once, in torch.

A device's graph is its user u, her items, and for each of these items some other users who have it
too. Of those she knows an embedding and nothing else; a third party found them by keyed tokens of
items (`wu_matcher.py`). One graph attention layer, with p = We for the embedding of any node:

    q_i = Σ α_ik p_k      over the item itself and the users around it
    h_u = p_u + Σ β_ui q_i      over her items

where α and β are softmaxes of LeakyReLU(a·[p_self ; p_other]), with an a for either kind of edge.
An item that is to be scored stands alone, so that it is p_j whether she has it or not, and its
score is h_u·p_j. (The authors' code goes the same way, with more dense layers between.)
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, Diverged, KeyTrouble, MessageError
from sottovoce.rng import Streams

KEY_BYTES = 32
SLOPE = 0.2
_PURPOSE = b"sottovoce item token 1\0"
_NEVER = -1e9
"""The logit of a place that holds nothing."""


def device_tokens(key: bytes, items: NDArray[np.integer]) -> NDArray[np.uint64]:
    """The items' names towards the third party: 64 bits of HMAC-SHA256 under a key that all
    devices have and the third party must not have. Equal items have equal tokens: that is what it
    is for, and what remains to be counted. Whoever has the key can name every token."""
    if len(key) != KEY_BYTES:
        raise KeyTrouble(f"the devices' key has {KEY_BYTES} bytes")
    distinct, place = np.unique(np.asarray(items, dtype=np.int64), return_inverse=True)
    tokens = [
        int.from_bytes(hmac.digest(key, _PURPOSE + item.to_bytes(8, "little"), hashlib.sha256)[:8])
        for item in distinct.tolist()
    ]
    return np.array(tokens, dtype=np.uint64)[place.reshape(-1)]


@dataclass(frozen=True, slots=True, repr=False)
class Neighbours:
    """The third party's answer to some devices: embeddings alone, no numbers of users."""

    counts: NDArray[np.int64]
    """How many there are for each token, in the order in which the devices sent their tokens."""
    embeddings: NDArray[np.float32]
    """[sum of counts, d]"""

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or int(self.counts.sum()) != len(self.embeddings):
            raise MessageError("an answer must have as many neighbours as it counts")
        if len(self.counts) and self.counts.min() < 0:
            raise MessageError("an answer counts neighbours below 0")
        if not np.isfinite(self.embeddings).all():
            raise MessageError("an answer has an embedding that is not finite")

    def __repr__(self) -> str:
        return f"<Neighbours, {len(self.embeddings):,}, redacted>"


# --- graphs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Graphs:
    """The graphs of C devices, padded to the largest: I items each, K users around each item."""

    items: Tensor
    """[C, I]; 0 where there is none."""
    has_item: Tensor
    around: Tensor
    """[C, I, K, d]; 0 where there is nobody."""
    has_user: Tensor
    """[C, I, K]"""

    @classmethod
    def of(
        cls, own: Interactions, around: Neighbours | None, size: int, place: torch.device
    ) -> Graphs:
        """From each device's items and what the third party said of them (None: it was not
        asked)."""
        counts = own.counts
        n, width = len(counts), max(1, int(counts.max(initial=0)))
        has_item = np.arange(width) < counts[:, None]
        items = np.zeros((n, width), dtype=np.int64)
        items[has_item] = own.items
        if around is None:
            around = Neighbours(np.zeros(len(own.items), np.int64), np.zeros((0, size), np.float32))
        if len(around.counts) != len(own.items):
            raise MessageError("an answer must have a count for each item that was asked for")
        if around.embeddings.shape[1] != size:
            raise MessageError(f"a neighbour's embedding must have {size} numbers")
        most = int(around.counts.max(initial=0))
        entry_has = np.arange(most) < around.counts[:, None]
        entries = np.zeros((len(own.items), most, size), dtype=np.float32)
        entries[entry_has] = around.embeddings
        has_user = np.zeros((n, width, most), dtype=np.bool_)
        has_user[has_item] = entry_has
        users = np.zeros((n, width, most, size), dtype=np.float32)
        users[has_item] = entries
        return cls(
            torch.from_numpy(items).to(place),
            torch.from_numpy(has_item).to(place),
            torch.from_numpy(users).to(place),
            torch.from_numpy(has_user).to(place),
        )

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<Graphs of {len(self):,} devices, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """The layer's weights: shared, [d, d] and [4, d], or a copy for each device, with a C before.
    Attention's rows: item as self, user around it; user as self, item of hers."""

    weight: Tensor
    attention: Tensor

    @classmethod
    def init(cls, size: int, rng: Streams) -> Layer:
        """Xavier's uniform weights; attention is even at first."""
        draws = 2.0 * rng.child("weight").uniform(np.arange(size), size) - 1.0
        weight = (draws * np.sqrt(3.0 / size)).astype(np.float32)
        return cls(torch.from_numpy(weight), torch.zeros(4, size))

    @property
    def size(self) -> int:
        return self.weight.shape[-1]

    def copies(self, n: int) -> Layer:
        """One for each of n devices, so that each has slopes of its own."""
        return Layer(
            self.weight.expand(n, *self.weight.shape).clone(),
            self.attention.expand(n, *self.attention.shape).clone(),
        )

    def project(self, rows: Tensor) -> Tensor:
        """p of nodes [C, B, d]."""
        return rows @ self.weight.mT

    def users(self, own: Tensor, items: Tensor, graphs: Graphs) -> Tensor:
        """h_u [C, d] from the projected embeddings of users [C, d] and of their items [C, I, d]."""
        n, width, most, size = graphs.around.shape
        on = self.attention.expand(n, 4, size)
        # Neighbours are by far the most numbers here. All that is done with p_k is linear, so that
        # W can be applied to what comes out instead.
        every = graphs.around.view(n, width * most, size)
        near = (every @ (on[:, 1:2] @ self.weight).mT).view(n, width, most)
        self_logit = items @ on[:, 0, :, None]
        alone = self_logit + items @ on[:, 1, :, None]
        places = torch.cat([torch.ones_like(graphs.has_item)[..., None], graphs.has_user], dim=2)
        alpha = _softmax(torch.cat([alone, self_logit + near], dim=2), places)
        beside = (alpha[..., None, 1:] @ graphs.around)[..., 0, :]
        mixed = alpha[..., :1] * items + self.project(beside)
        toward = own[:, None, :] @ on[:, 2, :, None] + mixed @ on[:, 3, :, None]
        beta = _softmax(toward[..., 0], graphs.has_item)
        return own + (beta[:, None] @ mixed)[:, 0]


def _softmax(logits: Tensor, there: Tensor) -> Tensor:
    """Over the last axis, of LeakyReLU, among the places that hold something; 0 elsewhere."""
    active = F.leaky_relu(logits, SLOPE).masked_fill(~there, _NEVER)
    return torch.softmax(active, dim=-1) * there


def require_pairs(history: Interactions) -> None:
    """Raises where a device has no item, or all of them."""
    counts = history.counts
    if len(counts) and (counts.min() < 1 or counts.max() >= history.n_items):
        raise DataError("a device learns from pairs: it needs some, but not all, of the items")


def device_part(
    history: Interactions, users: NDArray[np.int64], most: int, rng: Streams
) -> Interactions:
    """At most so many items of each device, by draws that depend on user and item alone."""
    rows = history.users
    chance = rng.child("part").paired_keys(users[rows], history.items.astype(np.int64))
    order = np.lexsort((chance, rows))
    kept = np.zeros(len(order), dtype=np.bool_)
    kept[order] = np.arange(len(order)) - history.indptr[rows] < most
    return history.select(kept)


@dataclass(frozen=True, slots=True, repr=False)
class WuModel:
    """What the server holds and publishes: items' embeddings [M, d] and the layer."""

    items: Tensor
    layer: Layer

    def __post_init__(self) -> None:
        size = self.layer.size
        shapes = (self.layer.weight.shape, self.layer.attention.shape)
        if shapes != ((size, size), (4, size)) or self.items.shape[1:] != (size,):
            raise DataError("the layer and the items' embeddings do not fit each other")
        tensors = (self.items, self.layer.weight, self.layer.attention)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise Diverged("the model holds numbers that are not finite; lower the rates")

    def __repr__(self) -> str:
        return f"<WuModel of {len(self.items):,} items>"

    @classmethod
    def init(cls, n_items: int, size: int, rng: Streams) -> WuModel:
        return cls(
            torch.from_numpy(embeddings(np.arange(n_items), size, rng.child("items"))),
            Layer.init(size, rng.child("layer")),
        )

    def to(self, device: torch.device | str) -> WuModel:
        layer = Layer(self.layer.weight.to(device), self.layer.attention.to(device))
        return WuModel(self.items.to(device), layer)


def embeddings(rows: NDArray[np.int64], size: int, rng: Streams) -> NDArray[np.float32]:
    """Small random ones; each row depends on its number alone."""
    return (0.1 * rng.normal(rows, size)).astype(np.float32)
