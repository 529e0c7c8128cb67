"""What every release of item rows, and every link, promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import LINKS, Link
from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError
from sottovoce.parties.device import Devices
from sottovoce.privacy.base import Release
from sottovoce.rng import Streams
from sottovoce.testing.worlds import (
    random_world,
    require,
)
from sottovoce.wire.terms import named

_WORLD, _RNG = random_world(30, 40, 200, seed=9), Streams.from_seed(4)


class ReleaseContract(ABC):
    """What every release of item rows promises. Subclass it and say which, and what a user must
    permit for it."""

    @abstractmethod
    def release(self) -> Release: ...

    def choice(self) -> Choice:
        return Choice(share_positives=0.4)

    def test_it_has_a_price_for_everybody(self) -> None:
        bound = self._devices(self.choice())._release
        prices = bound.epsilons
        require(prices.shape == bound.users.shape, "there must be one price per device")
        require(bool(np.all(prices >= 0)) and not np.isnan(prices).any(), "a price is below 0")
        require(bool(bound.kind), "the ledger needs a name for it")

    def test_nobody_spends_beyond_her_limit(self) -> None:
        bound = self._devices(self.choice())._release
        prices = bound.epsilons
        if not bound.spends or np.isinf(prices).any():
            return
        limited = self._devices(replace(self.choice(), total_epsilon=float(prices.max())))
        view = limited.algorithm.server_init(_WORLD.n_items, _RNG)
        rows = limited.willing()
        limited.report(ModelView(0, view), rows)
        require(not len(limited.willing()), "it goes on although the limit is reached")
        require(
            np.allclose(limited.cohort.spent[rows], prices[rows]), "it books another price than its"
        )

    def test_who_shares_no_positive_sends_none_in_the_open(self) -> None:
        try:
            devices = self._devices(replace(self.choice(), share_positives=0.0))
        except ConsentError:
            return  # refused is as good
        view = ModelView(0, devices.algorithm.server_init(_WORLD.n_items, _RNG))
        reports = devices.report(view, devices.willing())
        if devices._release.dense:
            return
        hers = _WORLD.find(reports.sender, reports.item.astype(np.int64)) >= 0
        require(not hers.any(), "a row of a positive item left at share_positives = 0")

    def test_a_device_sends_alone_what_it_sends_in_company(self) -> None:
        together = self._devices(self.choice())
        view = ModelView(0, together.algorithm.server_init(_WORLD.n_items, _RNG))
        rows = together.willing()
        all_of_them = together.report(view, rows)
        for row in rows[:5].tolist():
            alone = self._devices(self.choice()).report(view, np.array([row]))
            mine = all_of_them.sender == row
            same = np.array_equal(alone.item, all_of_them.item[mine])
            same &= np.array_equal(alone.values, all_of_them.values[mine])
            require(same, "what a device sends depends on its company")

    def _devices(self, choice: Choice) -> Devices:
        users = np.arange(_WORLD.n_users, dtype=np.int64)
        algorithm = FPL(FPLConfig(embedding_size=3), triples=5)
        vectors = algorithm.device_init(users, _RNG)
        cohort = Cohort(users, _WORLD, Consent.uniform(users, choice), vectors)
        return Devices.behind_door(algorithm, cohort, self.release(), Ledger(), _RNG)


class LinkContract(ABC):
    """What every link promises. Subclass it and say which."""

    @abstractmethod
    def link(self) -> Link: ...

    def test_it_says_who_sees_what(self) -> None:
        sees = self.link().sees
        fields = [f for messages in sees.values() for names in messages.values() for f in names]
        require("server" in sees and bool(fields), "a link says what each party sees")

    def test_a_file_that_names_it_brings_it_back(self) -> None:
        link = self.link()
        back = named({"name": link.name, **link.table()}, LINKS, "", "link")
        require(back == link, "its settings do not come back")

    def test_bytes_of_a_message_never_fall_with_its_rows(self) -> None:
        rows = np.arange(0, 50, dtype=np.int64)
        told = self.link().message_bytes(rows, 40, 10_000)
        require(told.shape == rows.shape and bool(np.all(np.diff(told) >= 0)), "bytes fall")
