"""What attackers found out in the UC-FedRec study, as it is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.attributes import Inference, TooLittle, infer
from sottovoce.data.dataset import Labels
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True)
class Attacked:
    """The strongest attackers on one attribute of those who hide it."""

    attribute: str
    auc: float
    """Of the attacker that ranks best; 0.5 where no two private users differ."""
    auc_low: float
    auc_high: float
    auc_by: str
    f1: float
    """Micro-F1, the share guessed right, of the attacker that guesses best."""
    f1_low: float
    f1_high: float
    f1_by: str
    majority: float
    """The share that the best constant guess gets right."""
    strong: str
    """An attacker that beats chance; empty where none does."""
    families: Mapping[str, float]
    """The AUC of each attacker."""
    classes: int
    public: int
    private: int
    verdict: str
    lowest: float = 0.5
    """The AUC of the attacker that ranks worst. Far below 0.5 it tells as much as far above:
    protection has overshot, and whoever knows that turns the guesses round."""
    turned: str = ""
    """An attacker that beats chance when it is turned round; empty where none does."""

    @property
    def wins(self) -> bool:
        """Whether an attacker is better than chance, as it is or turned round."""
        return bool(self.strong or self.turned)

    @property
    def either(self) -> float:
        """The best AUC, of attackers as they are and turned round."""
        return max(self.auc, 1.0 - self.lowest)

    @property
    def auc_gain(self) -> float:
        """Either way."""
        return self.either - 0.5

    @property
    def f1_gain(self) -> float:
        return self.f1 - self.majority

    @property
    def gain(self) -> float:
        """As the paper measures: AUC above 0.5 of two classes, F1 above the majority's of more."""
        return self.auc_gain if self.classes == 2 else self.f1_gain

    @classmethod
    def of(cls, found: Inference) -> Attacked:
        ranks, guesses = found.by_auc, found.by_accuracy
        known = ranks.auc is not None
        worst = min(found.outcomes, key=lambda o: 0.5 if o.auc is None else o.auc)
        lowest = 0.5 if worst.auc is None else worst.auc
        turned = 1.0 - lowest > worst.auc_ceiling and worst.auc_interval.high < 0.5
        return cls(
            attribute=found.attribute,
            auc=ranks.auc if ranks.auc is not None else 0.5,
            auc_low=float(ranks.auc_interval.low) if known else 0.0,
            auc_high=float(ranks.auc_interval.high) if known else 1.0,
            auc_by=ranks.name,
            f1=guesses.accuracy,
            f1_low=float(guesses.accuracy_interval.low),
            f1_high=float(guesses.accuracy_interval.high),
            f1_by=guesses.name,
            majority=guesses.majority,
            strong="" if found.strong is None else found.strong.name,
            lowest=lowest,
            turned=f"{worst.name}, turned round" if turned else "",
            families={o.name: 0.5 if o.auc is None else o.auc for o in found.outcomes},
            classes=found.classes,
            public=found.public,
            private=found.private,
            verdict=found.verdict,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"attacked": np.array(json.dumps(asdict(self)))}

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[Any]]) -> Attacked | None:
        table = json.loads(str(found["attacked"]))
        return None if table is None else cls(**table)


@dataclass(frozen=True, slots=True, repr=False)
class Attack:
    """An attacker's work: the table, and whose attribute is private."""

    table: NDArray[Any]
    labels: Labels
    private: NDArray[np.bool_]
    seed: int
    attribute: str

    def run(self) -> dict[str, NDArray[Any]]:
        """What is kept of it; null where there is too little to learn from."""
        rng = Streams.from_seed(self.seed).child("attack")
        try:
            found = infer(self.table, self.labels, self.private, rng, attribute=self.attribute)
        except TooLittle:
            return {"attacked": np.array(json.dumps(None))}
        return Attacked.of(found).to_arrays()
