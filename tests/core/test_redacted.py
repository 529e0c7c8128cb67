"""Whatever derives from `Redacted` prints nothing of what it holds."""

import importlib
import pkgutil
from dataclasses import dataclass

import sottovoce
from sottovoce.core.redacted import Redacted

ROOMS = ("algorithms", "attacks", "core", "engines", "parties", "privacy", "runs")
PRIVATE = {
    *("AggregatedPlan", "AggregatingOwner", "Aggregation", "Blocks", "Canaries", "Claims"),
    *("ClientUpdates", "Clients", "Cohort", "ComplementGuess", "Contributed", "Contributions"),
    *("Cosine", "CudaFederation", "CutCatalogue", "Departed", "Devices", "DrawnPositives"),
    *("DriftTruth", "EndedBlock", "Events", "Gradients", "Interaction", "InteractionDoor"),
    *("InversionGuess", "Inverted", "ItemPairs", "Learnt", "Leaving", "MemberPairs", "OpenBlock"),
    *("OpenedOnce", "Orchestrator", "Owner", "Profile", "Protected", "RankOneGuess", "Recorder"),
    *("RowRequest", "Rows", "SignGuess", "SiloWorld", "SimulatedDevices", "SumTarget"),
    *("ThreatViews", "Truth", "UpdateRows", "User", "UserAtDoor", "View"),
}
"""What holds what somebody has, has sent or was guessed to have."""


def kinds(kind=Redacted):
    for one in kind.__subclasses__():
        yield one
        yield from kinds(one)


def test_it_says_what_it_is_and_how_many():
    @dataclass(frozen=True, slots=True, repr=False)
    class Secrets(Redacted):
        values: list[int]

        def __len__(self):
            return len(self.values)

    class Secret(Redacted):
        pass

    assert repr(Secrets([7] * 1234)) == "<Secrets of 1,234, redacted>"
    assert repr(Secret()) == "<Secret, redacted>"


def test_no_kind_prints_itself_otherwise():
    """A dataclass without `repr=False` would print every field."""
    for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."):
        if module.name.split(".")[1] in ROOMS and "flower" not in module.name:
            importlib.import_module(module.name)
    mine = [one for one in kinds() if one.__module__.startswith("sottovoce.")]
    assert all(one.__repr__ is Redacted.__repr__ for one in mine)
    assert {one.__name__ for one in mine} >= PRIVATE
