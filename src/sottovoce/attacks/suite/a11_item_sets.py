"""A11: a user's items among FedGNN's pseudo items. Wu's FedGNN has a study of its own, which runs
the attack as well: `sottovoce reproduce wu-fedgnn` (`sottovoce_papers.wu_item_sets`)."""

from __future__ import annotations

from typing import Final

from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View

_NAME: Final = "intersection of item sets"
_PROMISE: Final = "My items cannot be told from the pseudo items that my device sends with them."


def _needs(view: View) -> str:
    return (
        "Only devices of Wu's FedGNN send pseudo items, and it is not run from experiment files; "
        "`sottovoce reproduce wu-fedgnn` trains it and attacks it."
    )


def _guess(view: View) -> None:
    return None


def _judge(guess: None, truth: Truth) -> Result:
    return Result("A11", _NAME, "server", _PROMISE, "precision", 0.0, (0.0, 1.0), 0.0)


ATTACK = ATTACKS.add(
    "item-sets", Attack(_NAME, "server", _PROMISE, _guess, _judge, "A11", needs=_needs)
)
