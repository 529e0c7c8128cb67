"""Devices whose state lives in a store, behind the one door: what an agent or a gateway serves.

A round is prepared (durably, so that the same bytes are there after a crash), leaves (from then on
it is in the ledger and in the budget), and arrives or is refused (which decides whether what was
learnt counts). Consent and budget are read when a round is prepared and again when it is about to
leave, and so is whether the owner has agreed to the terms. What has left is spent, whatever becomes
of it; no clock has a part in that. What only says that a device is there (an enrolment, a check-in)
passes here, too, and is on record.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.hiding import Hidden
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import recommend
from sottovoce.core.redacted import Redacted
from sottovoce.core.words import Said, said
from sottovoce.errors import (
    ConsentError,
    DataNotFound,
    Diverged,
    MessageError,
    StoreError,
)
from sottovoce.parties.device import Devices
from sottovoce.parties.leaving import Booked, Leaving, let_go
from sottovoce.rng import Streams
from sottovoce.stores import word
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_limits import (
    has_room,
    plain_releases,
    rests_until,
    rounds_sent,
    spent_before,
    stages_done,
    sum_noise,
    told_beyond,
)
from sottovoce.stores.device_rounds import Round, drop_outdated
from sottovoce.stores.person import RequestSent
from sottovoce.stores.prepared import (
    Agreeing,
    Nothing,
    Pack,
    Prepared,
    among,
    as_bytes,
    check_shape,
    digest,
    explain,
    fits,
    same,
    things_named,
)
from sottovoce.stores.timeline import contents
from sottovoce.wire.invitations import SecretStore
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, WITHDRAWN
from sottovoce.wire.terms import Terms

__all__ = ["DeviceSession", "HomeCopy", "Inside", "Prepared"]

_NONCE_BYTES = 16
_COUNTER_LIMIT = 2**32
_TRIES = 5
_AT_HOME = Choice(takes_part=False)
_LARGEST_CONTACT = 2048
"""Bytes; more than keys and signatures need."""
_NAMED = "named-willing:"


@dataclass(frozen=True, slots=True, repr=False)
class Inside(Redacted):
    """What is in one user's report."""

    items: NDArray[np.int32]
    """Her own, by number."""
    weight: NDArray[np.float64]
    """How much of each; comparable within the report."""
    others: int
    """Rows of other items."""
    epsilon: float


@dataclass(frozen=True, slots=True, repr=False)
class HomeCopy(Redacted):
    """One device of a store, in copies, for what is tried at home."""

    terms: Terms
    cohort: Cohort
    model: ModelView | None
    catalogue: list[tuple[str, str]]
    lasting: Streams
    """Streams by which it was drawn what may ever leave."""
    prepared: Prepared | None
    """The latest message of this device, where the store still has it."""


class DeviceSession(Agreeing):
    """The users of a store as the devices they are."""

    def __init__(
        self,
        store: CohortStore,
        *,
        pack: Pack | None = None,
        foreseen: str = "",
    ) -> None:
        """`pack` makes a message of a masked update and its seed; without it there is no part in a
        secure sum. `foreseen` is as in `Agreeing`."""
        super().__init__(store, foreseen)
        self._pack = pack

    def __repr__(self) -> str:
        return f"<DeviceSession {self.store.path}, redacted>"

    # --- the model -------------------------------------------------------------------------------

    def keep_model(self, view: ModelView) -> None:
        """Keep the published model, for recommendations while offline."""
        terms = self.terms
        if terms is not None:
            check_shape(view, terms)
        self._book.keep_model(view)

    def model(self) -> ModelView | None:
        """The model that was kept last."""
        return self._book.model()

    def model_round(self) -> int | None:
        """The round of the model that was kept last."""
        return self._book.model_round()

    # --- rounds ----------------------------------------------------------------------------------

    def prepare(
        self,
        view: ModelView,
        attempt: int,
        numbers: NDArray[np.int64] | None = None,
        *,
        summed: bool,
    ) -> Prepared | Nothing:
        """One round of the asked devices (all of the store's where `numbers` is None) through the
        door, as one device's message or as the sum of several.

        Consent is read first. The result is durable; asked again for the same round and attempt,
        this gives the very same bytes. It returns why if none of the asked sends anything. A later
        attempt of a round starts where the first one did; one that left and was never confirmed
        before the next round does not count.
        """
        terms = self.require_agreed()
        check_shape(view, terms)
        if not (0 <= view.round < _COUNTER_LIMIT and 0 <= attempt < _COUNTER_LIMIT):
            raise MessageError("a round's number and attempt must be 32-bit counters")
        asked = digest(view, numbers, summed)
        for _ in range(_TRIES):
            with self.store.file.transaction():
                ready = self._again(view.round, attempt, asked)
            if ready is not None:
                return ready
            made = self._learn(view, attempt, numbers, summed, asked)
            if made is not None:
                return made
        raise ConsentError("choices changed while the round was being prepared; try again")

    def leaving(self, prepared: Prepared) -> Leaving:
        """The report, for a transport. Consent and budget are read again: where a choice has
        changed since, or a limit has no room, the round is dropped and this raises. Otherwise the
        round is in the ledger and in the budget when this returns, once however often it is sent:
        the bytes are the very same."""
        with self.store.file.transaction():
            entry = self._entry(prepared.round, prepared.attempt)
            if entry.state == "dropped" or entry.nonce != prepared.nonce:
                raise ConsentError(f"the report for round {entry.round} was dropped; prepare anew")
            changed, terms = self._book.minds_changed(entry), self.require_agreed()
            if entry.state == "prepared":
                word.require_word(self.store, word.of_report(entry.nonce))
            costs = self._book.costs(entry)
            beyond = entry.state == "prepared" and not has_room(self.store, terms, costs)
            if changed or beyond:
                self._withdraw(entry)
            elif entry.state == "prepared":
                self._book.mark_left(entry, self.store.now())
            elif entry.state == "refused":
                self._book.mark(entry, "left", "")
        if changed:
            raise ConsentError(
                f"a choice was changed, or what the device knows of its owner, since the report "
                f"for round {entry.round} was prepared, so that it does not leave"
            )
        if beyond:
            raise ConsentError(
                f"the report for round {entry.round} would cost more than the limit leaves, so "
                f"that it does not leave"
            )
        who, cost = tuple(n for n, _ in costs), max((each for _, each in costs), default=0.0)
        return let_go(entry.message, Booked(who, "report", len(entry.message), cost))

    def sent_as(self, prepared: Prepared, body: bytes) -> None:
        """Note in which bytes a report that the door has let go is about to leave: its envelope."""
        with self.store.file.transaction():
            entry = self._gone(prepared.round, prepared.attempt)
            if entry is not None:
                self._book.sent_as(entry, body)

    def contact(self, what: Literal["enrolment", "check-in"], party: str, body: bytes) -> Leaving:
        """A request that says that the store's devices are there, and has keys and signatures in
        it, nothing of a history. Raises where one of them takes no part, or the terms wait for a
        word.

        Each request gets its row before it leaves, also where it is the second one of its kind.
        Where a transport sends the same bytes once more, because a connection was lost, there is no
        second row: nobody learns more by it."""
        if len(body) > _LARGEST_CONTACT:
            raise ConsentError(f"{what} of {len(body):,} bytes has more in it than it should")
        with self.store.file.transaction():
            self.require_agreed()
            if not self.store.choices().takes_part.all():
                raise ConsentError(
                    f"a device of {self.store.path} takes no part, so that nobody is told that it "
                    f"is there; see `sottovoce device consent {self.store.path}`"
                )
            word.require_word(self.store, word.of_contact(what, party, body))
            return self._present(self.store.users, what, party, len(body), body)

    def willing(self) -> Leaving:
        """The numbers of the devices that take part and can learn, four bytes each, as a gateway
        tells them with each of its answers. A device is booked as checking in when it is named and
        was not in the answer before: to be named again says nothing new."""
        store, users = self.store, self.store.users
        if word.asks_first(store):
            raise ConsentError(
                f"the user of {store.path} wants to be asked each time, and a gateway asks nobody"
            )
        store.history()  # is kept: others need not wait until it is read
        with store.file.transaction():
            terms, vectors = self.require_agreed(), np.zeros((len(users), 0), np.float32)
            choices, things = store.choices(), things_named(store)
            cohort = Cohort(users, store.history(), choices, vectors, items_named=things)
            shown = replace(cohort, history=cohort.sendable(choices))
            named = users[choices.takes_part & terms.build().device_able(shown)]
            body, kept = named.astype("<u4").tobytes(), f"{_NAMED}{terms.federation}"
            before = store.secret(kept) or b""
            if before != body:
                store.set_secret(kept, body)
            new = named[~np.isin(named, np.frombuffer(before, "<u4"))]
            return self._present(new, "check-in", "server", 4, body)

    def withhold(self, prepared: Prepared) -> None:
        """Drop a report because its user says no: it never leaves, and costs nothing. Raise if it
        has left."""
        with self.store.file.transaction():
            entry = self._entry(prepared.round, prepared.attempt)
            if entry.nonce != prepared.nonce or entry.state not in ("prepared", "dropped"):
                raise ConsentError(
                    f"the report for round {entry.round} is not the one that was shown, or has "
                    "left; look again"
                )
            if entry.state == "prepared":
                self._book.drop(entry, "not sent: its user said no")

    def arrived(self, round: int, attempt: int) -> None:
        """The report was acknowledged: what was learnt counts."""
        with self.store.file.transaction():
            entry = self._gone(round, attempt)
            if entry is not None:
                self._book.mark(entry, "arrived", "")

    def refused(self, round: int, attempt: int, reason: str) -> None:
        """The report does not count: the vectors are those before the round. What left stays in
        the ledger."""
        with self.store.file.transaction():
            entry = self._gone(round, attempt)
            if entry is not None:
                self._book.mark(entry, "refused", reason)

    def follow(self, round: int, attempt: int) -> None:
        """The server says that this round is open: an earlier attempt at it was given up, also if
        it was acknowledged, and what was prepared for an earlier one will not leave."""
        with self.store.file.transaction():
            entry = self._book.latest()
            if entry is None or (entry.round, entry.attempt) >= (round, attempt):
                return
            if entry.state == "prepared":
                self._book.drop(entry, "overtaken")
            elif entry.round == round and entry.state in ("left", "arrived"):
                self._book.mark(entry, "refused", "the server tried the round again")

    def unresolved(self) -> Prepared | None:
        """The report that has left, but of which nobody knows whether it arrived."""
        entry = self._book.latest()
        return None if entry is None or entry.state != "left" else Prepared.of(entry)

    def latest(self) -> Prepared | None:
        """The latest round that was prepared, whatever became of it."""
        entry = self._book.latest()
        return None if entry is None else Prepared.of(entry)

    def inside(self, prepared: Prepared) -> Inside:
        """Return what of its one user is in the latest report, and what it costs: for her eyes."""
        with self.store.file.snapshot():
            entry = self._entry(prepared.round, prepared.attempt)
            ((number, cost),) = self._book.costs(entry)
            found = contents(self.store.file, number, *entry.key)
            others = self._book.other_rows(entry)
        items, weight = found if found is not None else (np.zeros(0, np.int32), np.zeros(0))
        return Inside(items, weight.astype(np.float64), others, cost)

    # --- a change of mind ------------------------------------------------------------------------

    def change_choice(
        self, number: int, change: Callable[[Choice], Choice]
    ) -> tuple[Choice, Hidden | None]:
        """`CohortStore.change_choice`; and if this hides an attribute that was not hidden before,
        move the user's vector at once, here, by the filters of the model that is kept. The new
        choice, and how far the vector moved: None if there is nothing to move, or to move by."""
        view = self.model()
        if view is not None and self.terms is not None:
            self._terms_of(view).build()  # its library may be slow to load
        with self.store.file.transaction():
            before = self.store.choice(number)
            choice = self.store.change_choice(number, change)
            anew = [n for n in choice.hidden_attributes if n not in before.hidden_attributes]
            hidden = self._hide(number, anew) if anew else None
        if hidden is not None:
            self.store.file.cut_log()  # where she was before is gone from here
        return choice, hidden

    def _hide(self, number: int, names: Sequence[str]) -> Hidden | None:
        view, users = self.model(), self.store.users
        if view is None or self.terms is None:
            return None
        drop_outdated(self.store.file, "a choice was changed")
        terms, row = self._terms_of(view), np.flatnonzero(users == number)
        algorithm, hides = terms.build(), np.ones((1, len(names)), dtype=bool)
        entry = self._book.latest()
        in_force = "learnt" if entry is not None and entry.state == "arrived" else "vectors"
        kept, moved = self._book.stands(number), None
        cohort = self._cohort(terms, self._vectors_at_start(), at_home=True).take(row)
        # What a report that has left was learnt with may still count, or not: both move.
        for table in ("vectors", *(["learnt"] if "learnt" in kept else [])):
            if table == "learnt":
                cohort.vectors = np.frombuffer(kept[table], "<f4").astype(np.float32)[None]
            found = algorithm.device_hide(view, cohort, hides, names)
            if not found:
                return None
            self._book.move(number, table, cohort.vectors[0])
            if table == in_force or moved is None:
                (moved,) = found
        if moved is not None:
            self._book.add_hiding(moved, self.store.now())
        return moved

    # --- at home ---------------------------------------------------------------------------------

    def vectors(self) -> NDArray[np.float32]:
        """The current vector of each of the store's users."""
        with self.store.file.snapshot():
            return self._vectors(None)

    def recommend(
        self, number: int, n: int, choice: Choice | None = None
    ) -> list[tuple[str, str, float]]:
        """Id, title and score of at most n items for one user, best first, computed here; as it
        would be under another choice, if one is given."""
        with self.store.file.snapshot():
            view = self.model()
            if view is None:
                raise DataNotFound(
                    f"the store in {self.store.path} has no model yet; run `sottovoce serve device "
                    f"{self.store.path}` while the server can be reached"
                )
            self.store.name(number)
            terms, row = self._terms_of(view), np.flatnonzero(self.store.users == number)
            cohort = self._cohort(terms, self._vectors(None), at_home=True).take(row)
            catalogue = self.store.catalogue()[: terms.n_items]
        if choice is not None:
            cohort.consent = Consent.uniform(cohort.users, choice, choice.hidden_attributes)
            cohort.items_named = things_named(self.store, choice.never_send)
        algorithm, vectors = terms.build(), cohort.vectors
        kept_back = cohort.sendable(cohort.consent).n_interactions < cohort.history.n_interactions
        if algorithm.refits or kept_back or not cohort.consent.takes_part[0]:
            # What she permits does not matter: nothing leaves.
            cohort.consent = Consent.uniform(cohort.users, _AT_HOME)
            vectors = Devices.behind_door(
                algorithm, cohort, terms.release, Ledger(), self.store.streams()
            ).vectors_at_home(view)
        scorer = algorithm.device_scorer(vectors, view.items)
        untitled = np.array([at for at, (_, title) in enumerate(catalogue) if not title], np.int32)
        kept = np.union1d(cohort.history.row(0), untitled).astype(np.int32)
        items, scores = recommend(scorer, 0, kept, n)
        return [
            (*catalogue[item], score)
            for item, score in zip(items.tolist(), scores.tolist(), strict=True)
        ]

    def copy_of(self, number: int) -> HomeCopy:
        """One user's device as it stands, in copies: nothing that is done with them is kept."""
        with self.store.file.snapshot():
            self.store.name(number)
            era, view = self._known()[0], self.model()
            terms = self._known()[1] if view is None else self._terms_of(view)
            row = np.flatnonzero(self.store.users == number)
            cohort = self._cohort(terms, self._vectors(None), at_home=True).take(row)
            entry, alone = self._book.latest(), len(self.store.users) == 1
            prepared = Prepared.of(entry) if entry and entry.message and alone else None
            return HomeCopy(
                terms, cohort, view, self.store.catalogue()[: terms.n_items],
                self.store.streams(era), prepared,
            )  # fmt: skip

    # --- helpers ---------------------------------------------------------------------------------

    def _again(self, round: int, attempt: int, asked: bytes) -> Prepared | None:
        """What was prepared before for this round and attempt, if it may still leave."""
        entry = self._book.latest()
        if entry is None or (entry.round, entry.attempt) < (round, attempt):
            return None
        if (entry.round, entry.attempt) > (round, attempt):
            raise MessageError(
                f"the server asks for attempt {attempt} at round {round}, which is over for this "
                f"store: it has been in attempt {entry.attempt} at round {entry.round}; nothing is "
                "sent until the server goes on with a later one: tell the operator"
            )
        if entry.state == "dropped":
            return None
        if entry.asked != asked and entry.gone:
            raise MessageError(
                f"the server asks for another model or other devices in round {round}, attempt "
                f"{attempt}, than it did before; only a new attempt may do so"
            )
        if entry.asked == asked and not self._book.minds_changed(entry):
            return Prepared.of(entry)
        self._withdraw(entry)
        return None

    def _learn(
        self,
        view: ModelView,
        attempt: int,
        numbers: NDArray[np.int64] | None,
        summed: bool,
        asked: bytes,
    ) -> Prepared | Nothing | None:
        """Make a message, and store it; return None if a choice has changed meanwhile."""
        book, file, ledger = self._book, self.store.file, Ledger()
        with file.snapshot():
            era, terms = self._known()
            before, choice, users = book.latest(), self.store.latest_choice(), self.store.users
            cohort = self._cohort(terms, self._vectors(view.round))
            noisy = terms.noisy or terms.reporting is not None
            left = book.has_left(era, view.round) if noisy else users[:0]
        noise = self.store.noise(era) if noisy else None
        streams = self.store.streams(era)
        devices = Devices.behind_door(
            terms.build(), cohort, terms.release, ledger, streams, noise, terms.link
        )
        rows = among(devices.willing(view.round), users, numbers)
        rested = rests_until(self.store, terms, view.round)[rows]
        if len(rows) and rested.min() > self.store.now():
            day = datetime.fromtimestamp(int(rested.min()), UTC).date()
            raise ConsentError(
                f"what left in an earlier period is too short ago: the next contribution may leave "
                f"on {day}, and nothing does until then"
            )
        rows = rows[rested <= self.store.now()]
        if not len(rows):
            asked_rows = among(np.arange(len(users), dtype=np.int64), users, numbers)
            plain = plain_releases(self.store)
            sigma, place = sum_noise(terms), self.store.path
            return explain(devices, asked_rows, view.round, sigma, plain, place)
        if before is not None and before.gone and before.key == (era, view.round, attempt):
            raise ConsentError(
                f"a report for round {view.round} has left already under an earlier choice; the "
                f"new choice holds from the next round on"
            )
        if noisy:
            # The coins of a round serve once. Another attempt may come with another model, and who
            # sees what the same coins make of two values learns by how much these differ: no ε
            # bounds that. A second report would also cost a second time.
            rows = rows[~np.isin(users[rows], left)]
            if not len(rows):
                raise ConsentError(
                    f"a report for round {view.round} has left already in an earlier attempt; of "
                    f"randomised reports and noisy updates there is one for each round"
                )
        message = as_bytes(devices, view, rows, terms, attempt, summed=summed, pack=self._pack)
        learnt = devices.cohort.vectors[rows]
        if not np.isfinite(learnt).all():
            raise Diverged("a user's vector ran off to infinity; nothing was sent")
        nonce, key = secrets.token_bytes(_NONCE_BYTES), (era, view.round, attempt)
        entry = Round(*key, "prepared", asked, choice, len(rows), nonce, message)
        with file.transaction():
            now, new = book.latest(), self.store.latest_choice() != choice
            changed = new and np.isin(users[rows], book.changed_since(choice)).any()
            if changed or not same(before, now):
                return None
            self._settle(view.round)
            contents = devices.contents if len(users) == 1 else None
            sha256 = hashlib.sha256(message).hexdigest()
            book.add(entry, ledger, sha256, self.store.now(), contents)
            book.keep_learnt(users[rows], learnt)
        return Prepared.of(entry)

    def _present(
        self, numbers: NDArray[np.int64], what: str, party: str, size: int, body: bytes
    ) -> Leaving:
        """Book that these devices, with so many bytes each, say that they are there."""
        who, now = tuple(numbers.tolist()), self.store.now()
        self.store.note_contacts(
            RequestSent(n, None, party, what, 0, 0, size, 0.0, now) for n in who
        )
        return let_go(body, Booked(who, what, len(body), 0.0))

    def _terms_of(self, view: ModelView) -> Terms:
        """The terms in force, or, of a model from before more items came, those that it was made
        under: what she has serves until the new one is here."""
        era, terms = self._known()
        while not fits(view, terms) and era > 0:
            era -= 1
            terms = self.terms_then(era) or terms
        return terms

    def _cohort(
        self, terms: Terms, vectors: NDArray[np.float32], *, at_home: bool = False
    ) -> Cohort:
        """The store's users, with these vectors."""
        history = self.store.history()
        if at_home and history.n_items > terms.n_items:  # a catalogue that is newer than the model
            history = history.first_items(terms.n_items)
        if history.n_items != terms.n_items:
            raise MessageError(
                f"the catalogue has {history.n_items:,} items, the federation {terms.n_items:,}"
            )
        store, algorithm = self.store, terms.algorithm
        labels = store.labels(algorithm.attributes)
        spent = spent_before(store, terms)
        sent = (
            stages_done(store, terms) if terms.contributes else rounds_sent(store, sum_noise(terms))
        )
        beyond = told_beyond(store, terms, sent) if terms.contributes else np.zeros(0)
        named = things_named(store)
        kept = self.model() if terms.build().versioned else None
        return Cohort(
            store.users, history, store.choices(), vectors, spent, labels, sent, beyond, named,
            published=None if kept is None else kept.items,
        )  # fmt: skip

    def _vectors(self, round: int | None) -> NDArray[np.float32]:
        """Everybody's vector as a round starts with it, or (None) as it is now."""
        entry = self._book.latest()
        learnt = entry is not None and entry.state == "arrived" and entry.round != round
        return self._vectors_at_start(learnt=learnt)

    def _vectors_at_start(self, *, learnt: bool = False) -> NDArray[np.float32]:
        """Everybody's vector at the start of the latest round, or what was learnt at its end."""
        users, terms = self.store.users, self._known()[1]
        vectors = terms.build().device_init(users, self.store.streams())
        self._book.overlay(users, vectors, learnt=learnt)
        return vectors

    def _settle(self, round: int | None) -> None:
        """Close the latest round, because `round` (or, None, whatever comes next) begins."""
        entry = self._book.latest()
        if entry is None:
            return
        if entry.state == "arrived" and entry.round != round:
            self._book.fold_learnt()
        elif entry.state == "prepared":
            self._book.drop(entry, "overtaken")
        elif entry.state in ("left", "arrived"):
            again = entry.round == round
            reason = "the server tried the round again" if again else "never confirmed"
            self._book.mark(entry, "refused", reason)
        self._book.forget_learnt()
        self._book.forget_message(entry)

    def _withdraw(self, entry: Round) -> None:
        """What has not left will not, and what may have left is not sent again."""
        if entry.state == "prepared":
            self._book.drop(entry, "a choice was changed, or something else was asked for")
        elif entry.state == "left":
            self._book.mark(entry, "refused", "a choice was changed before it was confirmed")

    def _entry(self, round: int, attempt: int) -> Round:
        entry = self._book.latest()
        if entry is None or (entry.round, entry.attempt) < (round, attempt):
            raise StoreError(f"nothing was prepared for round {round}, attempt {attempt}")
        if (entry.round, entry.attempt) > (round, attempt):
            raise ConsentError(f"round {round} is over for this store; its report does not leave")
        return entry

    def _gone(self, round: int, attempt: int) -> Round | None:
        """The round of which something is said, unless it was settled before."""
        entry = self._book.latest()
        if entry is not None and (entry.round, entry.attempt) > (round, attempt):
            return None
        if entry is None or (entry.round, entry.attempt) < (round, attempt) or not entry.gone:
            raise StoreError(f"no report for round {round}, attempt {attempt}, has left this store")
        return entry


_KEPT = "shut-out"
_SAID = {SHUT_OUT_BY_OPERATOR: "quiet.shut_out", WITHDRAWN: "quiet.withdrawn"}


@dataclass(frozen=True, slots=True)
class Expulsion:
    """That a device was shut out of its federation, as its own store keeps it."""

    why: str
    """In the server's words."""
    since: float
    """When this device was told."""
    asked: float
    """When it last asked whether that still holds."""

    @property
    def said(self) -> Said:
        """To the owner."""
        return said(_SAID.get(self.why, "quiet.shut_out_server"))


def expelled(store: SecretStore) -> Expulsion | None:
    """None where the device was not shut out, or is let in again."""
    found = store.secret(_KEPT)
    return Expulsion(**json.loads(found)) if found else None


def keep_expulsion(store: SecretStore, why: str, now: float) -> None:
    """The server has said so just now."""
    before = expelled(store)
    since = now if before is None else before.since
    store.set_secret(_KEPT, json.dumps(asdict(Expulsion(why, since, now))).encode())


def forget_expulsion(store: SecretStore) -> None:
    store.set_secret(_KEPT, b"")
