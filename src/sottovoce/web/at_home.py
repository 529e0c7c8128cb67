"""What one device would send, enacted at home: with copies of its state and draws of its own,
behind the same door as for real. Nothing leaves and nothing is kept.

The published model stands still meanwhile, and no limit counts what has left before: what is to be
seen is what a party gets of her in a round, or a period, in which she takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing
from sottovoce.attacks import alone
from sottovoce.attacks.alone import Added, Secret
from sottovoce.attacks.views import SeenRound
from sottovoce.core.ledger import Ledger
from sottovoce.core.masking import BITS
from sottovoce.core.messages import ModelView
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, ConsentError, DataError, DoesNotApply, MessageError
from sottovoce.parties.device import Devices
from sottovoce.rng import SecretStreams
from sottovoce.stores.session import HomeCopy
from sottovoce.wire.reports import decode_bits, decode_report

Ints = NDArray[np.int64]
ONE = np.zeros(1, np.int64)
"""The row of the only device."""
_DRAWING, _FEW = 20, 3
"""Rounds of a device that draws items, which are told little by little, and of others."""
_SCORES = 1e8
"""That attacks on drawn items work out, about."""


class ReadTogether(NamedTuple):
    """A contribution as two parties read it who put together what they have."""

    view: ModelView
    numbers: Ints
    noise: Ints
    """What of these is noise that the device itself has added."""


class AtHome(Redacted):
    """One device of a store."""

    def __init__(
        self, home: HomeCopy, model: ModelView, rounds: int | None, secret: Secret
    ) -> None:
        self.home, self.model, self.rounds, self.secret = home, model, rounds, secret
        self.terms, self.link = home.terms, home.terms.link
        self.algorithm = home.terms.build()
        self.own = home.cohort.history.row(0).astype(np.int64)
        """Her items."""
        self._seen: dict[str, tuple[SeenRound, ...]] = {}
        self._read: list[ReadTogether] = []

    @property
    def user(self) -> int:
        return int(self.home.cohort.users[0])

    @property
    def contributing(self) -> Contributing:
        return cast(Contributing, self.algorithm)

    @property
    def bits(self) -> int:
        """Of a number that is masked."""
        return (self.link.summing and self.link.summing.bits) or BITS[-1]

    # --- the door ---------------------------------------------------------------------------------

    def door(self, coins: bytes | None = None) -> Devices:
        """Her device behind its door: copies of its state, draws and coins of its own, an empty
        budget. What may ever leave is what was drawn for it once for all."""
        cohort, terms = self.home.cohort.take(ONE), self.terms
        cohort.spent, cohort.sent, cohort.beyond = np.zeros(1), ONE.copy(), np.zeros(1)
        rng = SecretStreams(self.secret(32)).with_lasting(self.home.lasting)
        coins = self.secret(32) if coins is None else coins
        return Devices.behind_door(
            terms.build(), cohort, terms.release, Ledger(), rng, coins, terms.link
        )

    def sends(self) -> bool:
        """Whether anything would leave."""
        try:
            return bool(len(self.door().willing(self.first())))
        except (ConsentError, ConfigError, DataError):
            return False

    def first(self) -> int:
        """The round with which enacting begins."""
        if self.algorithm.sends != "contributions":
            return self.model.round
        return self.model.round - self.contributing.stage(self.model.round)

    def view(self, round: int) -> ModelView:
        """The model, as if it were that of this round."""
        return ModelView(round, self.model.items)

    # --- updates, round by round ------------------------------------------------------------------

    def plain(self) -> tuple[SeenRound, ...]:
        """Her updates, as whoever reads them sees them."""
        return self._enacted("plain", lambda door, view: door.report(view, ONE))

    def masked(self) -> tuple[SeenRound, ...]:
        """The same as the server of a secure sum sees them."""
        return self._enacted(
            "masked", lambda door, view: door.report_masked(view, ONE, (self.secret(32),))[0]
        )

    def _enacted(
        self, kind: str, send: Callable[[Devices, ModelView], object]
    ) -> tuple[SeenRound, ...]:
        if kind not in self._seen:
            door, found, start = self.door(), [], self.model.round
            kept = self.kept() if kind == "plain" else None
            for round in range(start, start + self._many()):
                view = self.view(round)
                if round == start and kept is not None:
                    found.append(SeenRound(round, (kept,), view))
                elif len(door.willing(round)):
                    found.append(SeenRound(round, (send(door, view),), view))
            self._seen[kind] = tuple(found)
        return self._seen[kind]

    def _many(self) -> int:
        """Rounds that are enacted."""
        if self.rounds is not None:
            return self.rounds
        draws = self.terms.triples
        if not draws:
            return _FEW
        return int(np.clip(_SCORES // (2 * draws * self.terms.n_items), 1, _DRAWING))

    def kept(self) -> Any:
        """The latest message, where the store still has it and the model that it is about, and
        where it can be read by itself; None otherwise."""
        prepared = self.home.prepared
        readable = self.link.adds_up is None
        if prepared is None or prepared.round != self.model.round or not readable:
            return None
        try:
            if self.algorithm.sends == "bits":
                return decode_bits(prepared.message, sender=self.user)
            return decode_report(
                prepared.message, sender=self.user, n_items=self.terms.n_rows,
                width=self.terms.width, round=prepared.round,
            )  # fmt: skip
        except MessageError:  # it is a sum, say
            return None

    def update(self) -> Ints:
        """All numbers of one update, as they are masked."""
        reports: Any = self.plain()[0].messages[0]
        return alone.dense_update(reports, self.model.items.shape)

    def updates_in_sums(self) -> list[Added]:
        """What she adds to the sums of these rounds, where they have noise."""
        found = []
        for seen in self.plain():
            reports: Any = seen.messages[0]
            numbers = alone.dense_update(reports, self.model.items.shape)
            sigma = 0.0 if self.link.summing is None else self.link.summing.sigma
            found.append(Added(seen.round, numbers, np.full(len(numbers), sigma)))
        return found

    # --- contributions, stage by stage ------------------------------------------------------------

    def read_together(self) -> list[ReadTogether]:
        """What she contributes in a period, as two parties read it: the server who has masked
        numbers and the helper who has their seed, or two of three aggregators."""
        if not self._read:
            self._read = self._period()
        return self._read

    def _period(self) -> list[ReadTogether]:
        coins = self.secret(32)
        algorithm, door, found = self.contributing, self.door(coins), []
        bound = self.terms.release.bind(
            door.cohort.users, door.cohort.consent, door.cohort.history, door.rng, coins
        ).contributing
        for round in range(self.first(), self.first() + len(algorithm.shares)):
            view = self.view(round)
            if not algorithm.report_shape(view)[0]:
                view = self._announced(round)
            size = algorithm.report_shape(view)[0]
            if not size or not algorithm.held(round) or not len(door.willing(round)):
                continue
            numbers = self._opened(door, view)
            noise = np.zeros_like(numbers)
            if bound is not None and bound.settings.parts:
                noise = bound.part(0, round, algorithm.noise_spans(round, size))
            found.append(ReadTogether(view, numbers, noise))
        return found

    def _announced(self, round: int) -> ModelView:
        """The model that this round would begin with, had she alone been in the first: one that
        asks for nothing, because too little was learnt, is followed by one that does."""
        algorithm, start = self.contributing, self.view(self.first())
        alone_in_it = self.door().report_sum(start, ONE)
        memory = algorithm.server_memory(self.terms.n_items)
        return ModelView(round, algorithm.server_fold(start.items, memory, alone_in_it)[0])

    def _opened(self, door: Devices, view: ModelView) -> Ints:
        if self.link.checking is None:
            sent = door.report_masked(view, ONE, (self.secret(32),))
            return alone.read_masked(*sent, self.bits)
        entries = self.entries(door, view)
        form = self.form(view)
        step = self.link.checking.grid(form).step
        return alone.contribution_of(entries, step, form.pairs)

    def form(self, view: ModelView) -> Any:
        """What is shared in this round, where sums are checked."""
        algorithm, checking = self.contributing, self.link.checking
        if checking is None:
            raise DoesNotApply("nothing is shared")
        return checking.form(*algorithm.contribution(view.round, algorithm.report_shape(view)[0]))

    def entries(self, door: Devices, view: ModelView) -> Ints:
        """What she shares, by two who have all of it."""
        drawn = tuple(self.secret(32) for _ in range(3))
        first, second, _ = door.report_shared(view, ONE, [drawn])
        return alone.read_shared(self.form(view), first, second)

    def contributed(self) -> list[Added]:
        """What she adds to the sums of a period, without any noise of her own."""
        return [
            Added(view.round, numbers - noise, self.noise_on(view, len(numbers)))
            for view, numbers, noise in self.read_together()
        ]

    def noise_on(
        self, view: ModelView, numbers: int, *, of_one: bool = False
    ) -> NDArray[np.float64]:
        """The standard deviation that is claimed of the noise on each number of a sum, or of what
        one device adds of it."""
        release, checking = self.terms.release.contributing, self.link.checking
        if release is None:
            raise DoesNotApply("sums have noise by a release of contributions alone")
        sigma = release.sigma * (1.0 if checking is None else checking.more_noise)
        if of_one:
            sigma = release.sigma / math.sqrt(max(1, release.parts))
        return alone.claimed_noise(self.contributing, view.round, numbers, sigma)

    # --- what anybody could say -------------------------------------------------------------------

    def chance(self, claims: int) -> float:
        """The share of so many guesses that would be right by what is published alone: by the most
        popular things, as far as the model says which these are."""
        blind, items = len(self.own) / self.terms.n_items, self.model.items
        told = self.algorithm.popularity(items)
        if told is not None:
            popular = told[0]
        else:  # as it recommends to somebody of whom nothing is known
            nobody = np.zeros_like(self.home.cohort.vectors)
            popular = self.algorithm.device_scorer(nobody, items).scores(ONE)[0].astype(np.float64)
        if not np.ptp(popular):
            return blind
        best = np.argsort(-popular, kind="stable")[:claims]
        return max(blind, float(np.isin(best, self.own).mean()))
