"""What the page of `sottovoce demo --web` asks of the town: its places, and where its federation
stands. All of it is public. Who looks at the page is a device by herself, in her browser
(`clients/browser`): what she clicks, and the lists for her, are there and nowhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol, cast

from sottovoce.algorithms.base import Contributing
from sottovoce.data.dataset import Dataset
from sottovoce.stores.server_folder import ServerFolder
from sottovoce.web.calls import call
from sottovoce.web.desk import RECOMMENDED
from sottovoce.web.process import ask_for_link

SHOP_CALLS = (
    call("GET places", "places"),
    call("GET town", "town"),
    call("POST go_on", "go_on"),
    call("POST console", "console"),
)


class Town(Protocol):
    """What runs behind the page."""

    residents: int
    most_epsilon: float
    dataset: Dataset
    server: ServerFolder

    @property
    def url(self) -> str: ...
    def facts(self) -> Mapping[str, Any] | None: ...
    def popular(self, facts: Mapping[str, Any], most: int) -> list[int]: ...
    def spent(self) -> float: ...
    def go_on(self) -> None: ...


class Shop:
    """The shop around its visitors."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._places = _places(town.dataset)
        self._built = cast(Contributing, town.server.plan.terms.build())
        self._turn = threading.Lock()
        self._popular: tuple[int | None, list[str]] = None, []

    def places(self) -> dict[str, Any]:
        """All of them, and where a device finds the server."""
        people = self._town.dataset.interactions.n_users
        who = {"residents": people, "take_part": self._town.residents}
        return {"places": self._places, "federation": self._town.url, **who}

    def town(self) -> dict[str, Any]:
        with self._turn:  # two windows ask one after the other
            facts = self._town.facts()
            if facts is not None and self._popular[0] != facts["published"]:
                found = self._town.popular(facts, RECOMMENDED)
                if found:
                    ids = [self._places[at]["item"] for at in found]
                    self._popular = facts["published"], ids
        return {
            "round": None if facts is None else self._round(facts),
            "popular": self._popular[1],
            "spent": round(self._town.spent(), 2),
            "limit": self._town.most_epsilon,
            "console": bool((self._town.server.running() or {}).get("console")),
        }

    def go_on(self) -> dict[str, Any]:
        """She has sent: nobody waits for her any longer."""
        self._town.go_on()
        return {}

    def console(self) -> dict[str, str]:
        """A link to the operator's console, for somebody who only looks."""
        return {"url": ask_for_link(self._town.server, "look", "visitor")}

    def _round(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """`stage` is what it asks, from 0, and `first` the first one of its period."""
        number, built = facts["round"], self._built
        first = number
        while first and built.period(first - 1) == built.period(number):
            first -= 1
        stage = built.stage(number)
        return {"number": number, "state": facts["state"], "stage": stage, "first": first}


def _places(dataset: Dataset) -> list[dict[str, str]]:
    """What everybody knows of each."""
    names = dataset.interactions.items_vocabulary()
    more = {name: labels.texts() for name, labels in (dataset.item_attributes or {}).items()}
    found = []
    for number in range(len(names)):
        categories = dataset.item_categories[number] if dataset.item_categories else ("",)
        found.append(
            {
                "item": names.name(number),
                "title": dataset.title(number),
                "category": categories[0],
                **{name: texts[number] or "" for name, texts in more.items()},
            }
        )
    return found
