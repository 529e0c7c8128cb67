"""A report on its way out of a store, and what is checked about the question that it answers."""

from __future__ import annotations

import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sottovoce.core.arrays import distinct
from sottovoce.core.masking import SEED_BYTES
from sottovoce.core.messages import ModelView
from sottovoce.core.shares import AGGREGATORS
from sottovoce.errors import ConsentError, MessageError, UsageError
from sottovoce.parties.device import Devices
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.central import MOST_ROUNDS, price
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_rounds import Round, RoundBook, State, kept_terms
from sottovoce.wire.masked import seal_masked
from sottovoce.wire.reports import encode_bits, encode_report, encode_sum
from sottovoce.wire.shared import seal_shared
from sottovoce.wire.terms import Terms

Pack = Callable[[Terms, int, ModelView, Any, Any], bytes]
"""The message of a device or a gateway from the terms, the attempt, the model that was learnt from,
the masked update and the seed of its mask; or what travels of shares, and their secrets."""
_SIGNING_KEY = "signing-key"


@dataclass(frozen=True, slots=True, repr=False)
class Prepared:
    """A report that is ready to leave, or that has left already (`state`)."""

    round: int
    attempt: int
    message: bytes
    nonce: bytes
    """Drawn from the operating system, once for this message."""
    devices: int
    state: State

    @classmethod
    def of(cls, entry: Round) -> Prepared:
        return cls(
            entry.round, entry.attempt, entry.message, entry.nonce, entry.devices, entry.state
        )

    def __repr__(self) -> str:
        return f"<Prepared round={self.round} attempt={self.attempt} {self.state}, redacted>"


def same(one: Round | None, other: Round | None) -> bool:
    """Whether a round is as it was."""
    if one is None or other is None:
        return one is other
    return (one.key, one.state, one.nonce) == (other.key, other.state, other.nonce)


def among(
    willing: NDArray[np.int64], users: NDArray[np.int64], numbers: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Rows of the willing that were asked."""
    if numbers is None:
        return willing
    wanted = np.asarray(numbers, dtype=np.int64)
    if not np.isin(wanted, users).all():
        raise MessageError("the server asks for devices that are not in this store")
    return willing[np.isin(users[willing], wanted)]


def as_bytes(
    devices: Devices,
    view: ModelView,
    rows: NDArray[np.int64],
    terms: Terms,
    attempt: int,
    *,
    summed: bool,
    pack: Pack | None,
) -> bytes:
    """What leaves these devices in a round, through the door, as one message."""
    if summed and devices.reports_bits:
        raise UsageError("randomised reports are sent by each device itself, not as a sum")
    if summed and terms.link.checking is not None:
        raise UsageError("what is checked is sent by each device itself, not as a sum")
    if summed and terms.secure_sum is not None and not devices.contributes:
        raise UsageError("masked updates are sent by each device itself, not as a sum")
    if summed and terms.secure_sum is None:
        return encode_sum(devices.report_sum(view, rows))
    if len(rows) > 1 and not summed:
        raise UsageError(f"{len(rows)} devices take part, a message carries the report of one")
    if devices.reports_bits:
        return encode_bits(devices.report_bits(view, rows))
    if terms.link.adds_up is None:
        return encode_report(devices.report(view, rows))
    if pack is None:
        raise UsageError("this store has no key to sign with, which a secure sum needs")
    if terms.link.checking is not None:
        secret = tuple(secrets.token_bytes(SEED_BYTES) for _ in range(AGGREGATORS))
        first, *_ = devices.report_shared(view, rows, [secret])
        return pack(terms, attempt, view, first, secret)
    # From the operating system, anew for every message: a mask serves once.
    seed = secrets.token_bytes(SEED_BYTES)
    return pack(terms, attempt, view, *devices.report_masked(view, rows, (seed,), summed=summed))


def signing_key(store: CohortStore) -> Ed25519PrivateKey:
    """The key of whoever sends for this store, made here at first use and durable before it is
    used."""
    kept = store.secret(_SIGNING_KEY)
    if kept is not None:
        return Ed25519PrivateKey.from_private_bytes(kept)
    key = Ed25519PrivateKey.generate()
    store.set_secret(_SIGNING_KEY, key.private_bytes_raw())
    return key


def sealed_by(store: CohortStore) -> Pack:
    """A masked update with its seed, sealed to the helper, or shares with their secrets, sealed to
    the aggregators; signed with this store's key."""

    def pack(terms: Terms, attempt: int, view: ModelView, reports: Any, secret: Any) -> bytes:
        key = signing_key(store)
        if terms.link.checking is not None:
            (travelled,) = reports.travelled
            return seal_shared(terms, attempt, view, travelled, secret, key)
        return seal_masked(terms, attempt, view, reports, secret, key)

    return pack


def items_named(
    catalogue: Sequence[tuple[str, str]], categories: Sequence[Sequence[str]] = ()
) -> dict[str, NDArray[np.int32]]:
    """The items that a name in a choice stands for, by id, by title or by category."""
    of = categories or [()] * len(catalogue)
    return _by_name([{*item, *more} for item, more in zip(catalogue, of, strict=True)])


def _by_name(names: Sequence[Collection[str]]) -> dict[str, NDArray[np.int32]]:
    found: dict[str, list[int]] = {}
    for number, each in enumerate(names):
        for name in each:
            found.setdefault(name, []).append(number)
    return {name: np.array(items, dtype=np.int32) for name, items in found.items()}


def things_named(
    store: CohortStore, things: Sequence[str] | None = None
) -> dict[str, NDArray[np.int32]]:
    """The same of these names, or of all that the store's users never send, also by titles that
    items had before. One that its catalogue does not know is a rule in advance, and stands for
    nothing yet."""
    things = store.choices().things if things is None else things
    known = _by_name(store.names()) if things else {}
    return {name: known.get(name, np.zeros(0, np.int32)) for name in things}


def space(terms: Terms) -> tuple[object, ...]:
    """Vectors mean something within one federation, algorithm and size alone; more items change
    nothing."""
    algorithm = terms.algorithm
    shape = terms.n_rows - terms.n_items, terms.width, algorithm.embedding_size
    return terms.federation, *algorithm.vector_space, *shape


def is_as_large(terms: Terms, others: Terms) -> bool:
    """Whether what a server publishes under the others serves at home under these, too."""
    return space(terms) == space(others) and terms.n_items == others.n_items


def fits(view: ModelView, terms: Terms) -> bool:
    """Whether a model is one of these terms, by its shape."""
    return view.items.shape == (terms.n_rows, terms.width)


def how_revealing(terms: Terms) -> str:
    """Why a single round may give a history away under terms that are `revealing`."""
    why = terms.algorithm.how_revealing(terms.n_items)
    if terms.link.checking is not None:
        return f"if two of the three aggregators put together what they have, {why}"
    if terms.secure_sum is not None:
        return f"if the server and the proxy put together what they have, {why}"
    return why


def check_shape(view: ModelView, terms: Terms) -> None:
    if not fits(view, terms):
        raise MessageError("the model has another shape than the federation's terms say")


def digest(view: ModelView, numbers: NDArray[np.int64] | None, summed: bool) -> bytes:
    """Return the digest of what was asked for."""
    asked = hashlib.blake2b(b"summed" if summed else b"single", digest_size=16)
    asked.update(np.ascontiguousarray(view.items, dtype="<f4").tobytes())
    if numbers is not None:
        asked.update(distinct(np.asarray(numbers, dtype="<i8")).tobytes())
    return asked.digest()


@dataclass(frozen=True, slots=True)
class Nothing:
    """No message is made; `kind` is the reason (`core.waiting`)."""

    kind: str


def explain(
    devices: Devices,
    asked: NDArray[np.int64],
    round: int,
    noise: float,
    plain: NDArray[np.int64],
    store: Path,
) -> Nothing:
    """Return why none of the devices that were asked sends anything in this round. If there is one
    device, and its user's limit or choice is in the way, raise with the numbers that she needs.
    `noise` is the noise on sums; `plain` has the number of releases that no ε bounds, by device."""
    cohort = devices.cohort
    there = cohort.consent.takes_part[asked]
    if not there.any():
        return Nothing("no_part")
    if not devices.able()[asked].any():
        has = (cohort.history.counts[asked] > 0) & there
        return Nothing("kept_back" if has.any() else "no_history")
    if devices.contributes and cohort.sent[asked].any():
        return Nothing("contributed" if devices.has_sent(asked, round).any() else "limit")
    if len(asked) != 1:
        return Nothing("limit")
    row = int(asked[0])
    if devices.reports_bits and devices.tiers()[row] < 0:
        raise ConsentError(
            f"the federation asks for more reports, or for a larger ε of each, than the choice "
            f"permits; see `sottovoce device agree {store}` and `sottovoce device consent "
            f"{store}`"
        )
    if noise:
        raise ConsentError(
            f"the limit on ε is reached: {_no_room(devices, row, noise, int(plain[row]))}; nothing "
            f"leaves any more unless `sottovoce device consent {store} --total-epsilon` permits "
            "more"
        )
    raise ConsentError(
        f"the limit on ε is reached: {cohort.spent[row]:.10g} of "
        f"{cohort.consent.total_epsilon[row]:.10g} is spent, and another round does not fit; "
        f"nothing leaves any more, see `sottovoce device status {store}`"
    )


def _no_room(devices: Devices, row: int, noise: float, plain: int) -> str:
    """Why a limit has no room for another round of noisy sums."""
    cohort = devices.cohort
    sent, limit = int(cohort.sent[row]), f"{cohort.consent.total_epsilon[row]:.10g}"
    so_far = f"after {_count(sent, 'round')}"
    if plain:
        return (
            f"{so_far}, counting {_count(plain, 'release')} without noise on sums, which no ε "
            f"bounds, as a round each, {limit} has no room for another"
        )
    after = rounded_up(cohort.spent[row] + price(noise, min(sent + 1, MOST_ROUNDS)))
    more = "more than " if sent >= MOST_ROUNDS else ""
    return f"{so_far} another would make it {more}{after:.10g}, and {limit} is permitted"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


# The terms of a federation as a store has them: which the server showed, and which its owner has
# agreed to. That she takes part is no agreement to what she has not seen.

_OFFERED, _SEEN, _AGREED = "offered-terms", "terms-seen", "terms-agreed"


class Agreeing(ABC):
    """A store whose owner agrees to terms, or has not yet."""

    def __init__(self, store: CohortStore, foreseen: str = "") -> None:
        """`foreseen` is the digest of terms that the owner has seen elsewhere and agrees to."""
        self.store = store
        self._book, self._foreseen = RoundBook(store.file), foreseen

    @abstractmethod
    def _settle(self, round: int | None) -> None:
        """Close the latest round, because `round` (or, None, whatever comes next) begins."""

    @property
    def terms(self) -> Terms | None:
        """The terms that this store goes by: those that its owner agreed to last or, before she has
        agreed to any, the first that the server showed, which serve at home."""
        found = self._book.latest_terms()
        return None if found is None else found[1]

    def sizes(self, federation: str) -> set[int]:
        """How many items a federation had under all terms of it that were ever written down."""
        told = [json.loads(text) for _, text in self._book.all_terms()]
        return {int(one["n_items"]) for one in told if one.get("federation") == federation}

    def terms_then(self, era: int) -> Terms | None:
        """Those under which something left before."""
        found: dict[int, Terms] = self.store.file.held(
            "all terms",
            ("terms",),
            lambda: {at: kept_terms(text) for at, text in self._book.all_terms()},
        )
        return found.get(era)

    @property
    def offered(self) -> Terms | None:
        """Other terms that the server has published since, which nobody has agreed to."""
        content = self.store.secret(_OFFERED)
        return kept_terms(content.decode()) if content else None

    @property
    def pending(self) -> Terms | None:
        """Terms that wait for the owner's word; nothing leaves meanwhile."""
        offered, known = self.offered, self._book.latest_terms()
        if offered is not None or known is None:
            return offered
        era, terms = known
        seen = era > 0 or self.store.secret(_SEEN) == terms.digest().encode()
        return None if seen else terms

    def meet(self, terms: Terms) -> None:
        """The server shows its terms. They are kept for the owner to look at; that she takes part
        is no agreement to what she has not seen. Raises where they are others than before: what may
        leave does not change behind her back."""
        with self.store.file.transaction():
            known, foreseen = self._book.latest_terms(), self._foresaw(terms)
            changed = known is not None and known[1] != terms and not foreseen
            if known is None:
                self._book.add_terms(0, terms, self.store.now())
            content = json.dumps(terms.to_table()).encode() if changed else b""
            if content != (self.store.secret(_OFFERED) or b""):
                self.store.set_secret(_OFFERED, content)
            if foreseen and (known is None or known[1] != terms or self.pending is not None):
                self.agree(terms)
        if changed:
            raise ConsentError(
                f"the server changed the terms of the federation; {self._how_to_agree}"
            )

    def _foresaw(self, terms: Terms) -> bool:
        """Whether these are the terms that the owner has agreed to beforehand. Her word counts
        once: to terms that were in force here before others she is asked to agree again."""
        if terms.digest() != self._foreseen:
            return False
        table = json.loads(json.dumps(terms.to_table()))
        return all(json.loads(text) != table for _, text in self._book.all_terms()[:-1])

    def agree(self, terms: Terms) -> None:
        """The owner has seen these terms and agrees to them. What was learnt under others is kept
        where it still fits."""
        with self.store.file.transaction():
            known = self._book.latest_terms()
            if known is None:
                self._book.add_terms(0, terms, self.store.now())
            elif known[1] != terms:
                era, before = known
                self._settle(None)
                # Places are added behind the others, and none is ever taken away.
                if space(before) != space(terms) or terms.n_items < before.n_items:
                    self._book.forget_vectors()
                self._book.add_terms(era + 1, terms, self.store.now())
            if self.offered == terms:
                self.store.set_secret(_OFFERED, b"")
            self.store.set_secret(_SEEN, terms.digest().encode())
            self.store.set_secret(_AGREED, str(self.store.now()).encode())

    @property
    def agreed_at(self) -> int | None:
        """When the owner last agreed to terms; None where she has not, or nobody noted it."""
        found = self.store.secret(_AGREED)
        return int(found) if found else None

    def require_agreed(self) -> Terms:
        """The terms in force; raises where their owner has not agreed to them, or others wait for
        her word."""
        terms, pending = self._known()[1], self.pending
        if pending is None:
            return terms
        why = "nobody has agreed to the terms of the federation yet"
        if pending.revealing:
            why = f"{why}, and {how_revealing(pending)}"
        raise ConsentError(f"{why}; {self._how_to_agree}")

    @property
    def _how_to_agree(self) -> str:
        return (
            f"see who reads what with `sottovoce device agree {self.store.path}`, which also says "
            "how to agree; until then nothing leaves"
        )

    def _known(self) -> tuple[int, Terms]:
        found = self._book.latest_terms()
        if found is None:
            raise ConsentError(
                f"the store in {self.store.path} has not seen the terms of any federation yet"
            )
        return found
