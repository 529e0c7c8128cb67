"""What UC-FedRec's clients find in a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sottovoce.algorithms.uc_networks import Weights


@dataclass(frozen=True, slots=True, repr=False)
class Updates:
    """Each client's weights less those it was given, clipped where they are to be sent.

    Rows of items beyond a client's own are numbered -1 and hold zeros. Filters that a client does
    not train hold zeros, and `shared` tells which those are."""

    users: Tensor
    """[C, d]. These stay on the devices, and are not clipped."""
    item_rows: Tensor
    items: Tensor
    """[C, R, d], for the items in `item_rows` [C, R]."""
    liked: Tensor
    """[C]: how many of these are hers."""
    towers: Weights
    filters: tuple[Weights, ...]
    shared: Tensor

    def __len__(self) -> int:
        return len(self.users)

    def without(self, held: Tensor) -> Updates:
        """The same less some rows of items that clients have; `held` is [C, R]."""
        return replace(
            self,
            item_rows=self.item_rows.masked_fill(held, -1),
            items=self.items * ~held[..., None],
            liked=self.liked - held.sum(dim=1),
        )

    def __repr__(self) -> str:
        return f"<Updates of {len(self):,}, redacted>"
