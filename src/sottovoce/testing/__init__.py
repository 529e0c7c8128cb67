"""Contracts for every kind of component, and tiny worlds. A component's test begins as a subclass
of three lines:

class TestMine(AlgorithmContract):
    def settings(self):
        return MySettings()
"""

from sottovoce.testing.algorithms import AlgorithmContract, CrossDeviceContract
from sottovoce.testing.attacks import AttackContract, small_threat_view
from sottovoce.testing.parts import BaselineContract, ImporterContract, MetricContract
from sottovoce.testing.releases import LinkContract, ReleaseContract
from sottovoce.testing.worlds import (
    ContractBroken,
    Messages,
    SmallRun,
    checkerboard,
    random_world,
    small_run,
)

__all__ = [
    "AlgorithmContract",
    "AttackContract",
    "BaselineContract",
    "ContractBroken",
    "CrossDeviceContract",
    "ImporterContract",
    "LinkContract",
    "Messages",
    "MetricContract",
    "ReleaseContract",
    "SmallRun",
    "checkerboard",
    "random_world",
    "small_run",
    "small_threat_view",
]
