"""Why a round waits, or why a device sends nothing in one: a kind, and one sentence for each kind.

The server finds out the kind (`services/server/reasons.py`), and publishes it with the state of the
round. Agents, `serve status`, the console and the figures for Prometheus say its sentence from this
table. A sentence has no numbers: how many reports are here, and whose, is for the operator alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Party = Literal["devices", "helper", "aggregator", "shuffler", "operator", "server", "owner"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A kind of wait."""

    party: Party
    """The party that can end it; the owner is the person whose device it is."""
    words: str


ROUNDS: Mapping[str, Wait] = {
    "few_enrolled": Wait("devices", "fewer devices have enrolled than a round needs"),
    "few_active": Wait("devices", "fewer of the enrolled devices can be asked than a round needs"),
    "few_agreed": Wait(
        "devices", "fewer devices have agreed to the changed terms than a round needs"
    ),
    "reports": Wait("devices", "the open round waits for reports from devices"),
    "counted": Wait(
        "devices", "too few devices are left that have not contributed to this period yet"
    ),
    "resting": Wait(
        "devices", "devices that contributed to an earlier period rest until its days are over"
    ),
    "helper_away": Wait("helper", "the helper does not answer the server"),
    "helper_terms": Wait("helper", "the helper keeps other terms than the server"),
    "helper_refuses": Wait("helper", "the helper does not accept this server"),
    "aggregator_away": Wait("aggregator", "an aggregator does not answer the server"),
    "aggregator_terms": Wait("aggregator", "an aggregator keeps other terms than the server"),
    "aggregator_refuses": Wait("aggregator", "an aggregator does not accept this server"),
    "batch": Wait("shuffler", "the open round waits for a batch from the shuffler"),
    "batch_part": Wait("shuffler", "a part of a batch from the shuffler has not come yet"),
    "disk_full": Wait("server", "the disk of the server is full"),
    "server_trouble": Wait("server", "the server cannot use its disk or its database"),
    "no_server": Wait("server", "no server of the federation answers"),
    "paused": Wait("operator", "an operator has paused the rounds"),
    "amendment": Wait("operator", "a change of terms waits to come into force"),
    "held_back": Wait(
        "operator", "all rounds are complete, and the newest version of the model is held back"
    ),
    "done": Wait("operator", "all rounds that were asked for are complete"),
}
"""The kinds for which a round can wait, as the server knows them."""

DEVICES: Mapping[str, Wait] = {
    "no_history": Wait("owner", "there is no history to learn from yet"),
    "kept_back": Wait("owner", "the user's choice keeps back all that there is to learn from"),
    "no_part": Wait("owner", "the user takes no part"),
    "limit": Wait("owner", "the user's limit has no room for another message"),
    "contributed": Wait(
        "devices", "this device has contributed already, and is counted once in a period"
    ),
}
"""The kinds for which a device sends nothing in an open round, as it finds them out itself."""

WAITS: Mapping[str, Wait] = {**ROUNDS, **DEVICES}


def words(kind: str) -> str:
    """Return the sentence for this kind, also if a newer server has made it up."""
    known = WAITS.get(kind)
    return (
        "the round waits for a reason that this release does not know" if not known else known.words
    )
