"""A11: a user's items among FedGNN's pseudo items. It is in `attacks.item_sets`, for Wu's FedGNN,
which runs from its own study and not from experiment files."""

from __future__ import annotations

from typing import Final

from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View

_NAME: Final = "intersection of item sets"
_PROMISE: Final = "My items cannot be told from the pseudo items that my device sends with them."


def _needs(view: View) -> str:
    return (
        "Only devices of Wu's FedGNN send pseudo items, and it is not run from experiment files; "
        "`attacks.item_sets` attacks it where it is run."
    )


def _guess(view: View) -> None:
    return None


def _judge(guess: None, truth: Truth) -> Result:
    return Result("A11", _NAME, "server", _PROMISE, "precision", 0.0, (0.0, 1.0), 0.0)


ATTACK = ATTACKS.add(
    "item-sets", Attack(_NAME, "server", _PROMISE, _guess, _judge, "A11", needs=_needs)
)
