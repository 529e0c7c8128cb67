"""The door of residents who are made up: many devices in memory, each with a key of its own, for
demos and tests. No person's data belong here.

Everything that leaves them is made by `parties.device`, under their choices and budgets, as on a
real device. What they have spent and whose turn it was is in one small file, which is on the disk
before anything leaves; their histories are made up again from a seed when a process starts.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sottovoce.core.cohort import Cohort
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.masking import SEED_BYTES
from sottovoce.core.messages import ModelView
from sottovoce.core.redacted import Redacted
from sottovoce.errors import StoreError, UsageError
from sottovoce.parties.device import Devices
from sottovoce.parties.leaving import Booked, Leaving, let_go
from sottovoce.rng import SECRET_BYTES, SecretStreams
from sottovoce.stores.keys import read_secret, replace_file
from sottovoce.stores.prepared import check_shape
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.masked import seal_each
from sottovoce.wire.reports import encode_report
from sottovoce.wire.terms import Terms

Secret = Callable[[int], bytes]
"""Returns so many bytes that nobody can guess."""
_AT_ONCE = 64
"""Devices whose messages are made together."""
GO_ON = "go-on"
"""A file in their folder: who makes it tells those who wait to go on."""
_INVITATIONS = "invitations.json"
_FIELDS = ("secret", "users", "enrolled", "spent", "sent")


def write_invitations(folder: Path, invitations: Sequence[Invitation]) -> None:
    """All in one file, which is much faster to write than a thousand; each is a secret."""
    content = json.dumps([one.to_table() for one in invitations])
    replace_file(folder / _INVITATIONS, content.encode())


def read_invitations(folder: Path) -> list[Invitation]:
    """Those in a folder, of `write_invitations` or of `sottovoce serve invite`, by number."""
    found = [Invitation.read(file) for file in folder.glob("device-*.json")]
    together = folder / _INVITATIONS
    if together.exists():
        try:
            found += [Invitation.from_table(one) for one in json.loads(read_secret(together))]
        except (ValueError, TypeError):
            raise UsageError(f"{together} holds no invitations; invite residents anew") from None
    if not found:
        raise UsageError(
            f"{folder} has no invitations; write some with `sottovoce serve invite --out {folder}`"
        )
    return sorted(found, key=lambda one: one.number)


class ResidentsDoor(Redacted):
    """A cohort of residents, and what leaves each of them."""

    def __init__(self, cohort: Cohort, book: Path, draw: Secret = secrets.token_bytes) -> None:
        """`book` is the file in which they keep what they have spent; it is gone on with where it
        is there."""
        self._cohort, self._book, self._draw = cohort, book, draw
        self._terms: Terms | None = None
        self._devices: Devices | None = None
        self._secret = draw(SECRET_BYTES)
        self.enrolled = np.zeros(len(cohort), dtype=bool)
        if book.exists():
            self._read()
        else:
            self._keep()
        self._keys = [self._key(number) for number in cohort.users.tolist()]

    @property
    def terms(self) -> Terms:
        return self._behind()[0]

    @property
    def users(self) -> NDArray[np.int64]:
        return self._cohort.users

    @property
    def takes_part(self) -> NDArray[np.bool_]:
        return self._cohort.consent.takes_part

    @property
    def spent(self) -> NDArray[np.float64]:
        """ε of each so far."""
        return self._cohort.spent

    def key(self, row: int) -> Ed25519PrivateKey:
        return self._keys[row]

    def meet(
        self, terms: Terms, history: Interactions, named: Mapping[str, NDArray[np.int32]]
    ) -> None:
        """Go by these terms from now on, with these visits, and these items by what they are called
        in choices. Residents agree to everything: they are nobody. What they have spent stays
        spent."""
        if terms.link.summing is None and terms.link.adds_up is not None:
            raise UsageError("made-up residents take part in secure sums, or send their rows alone")
        if terms.reporting is not None:
            raise UsageError("made-up residents do not send through a shuffler")
        if history.n_users != len(self._cohort):
            raise UsageError("there are other residents than before")
        root = SecretStreams(self._secret)
        built = terms.build()
        self._cohort.history = history
        self._cohort.items_named = {
            name: named.get(name, np.zeros(0, np.int32)) for name in self._cohort.consent.things
        }
        if self._terms is None or self._terms.algorithm != terms.algorithm:
            self._cohort.vectors = built.device_init(self.users, root)
        self._devices = Devices.behind_door(
            built, self._cohort, terms.release, Ledger(), root, self._derived(b"noise"), terms.link
        )
        self._terms = terms

    def willing(self, round: int) -> NDArray[np.int64]:
        """Rows of those who are enrolled and may send in this round."""
        rows = self._behind()[1].willing(round)
        return rows[self.enrolled[rows]]

    # --- what leaves ------------------------------------------------------------------------------

    def contact(self, row: int, what: str, body: bytes) -> Leaving:
        """That a resident is there."""
        who = (int(self.users[row]),)
        return let_go(body, Booked(who, what, len(body), 0.0))

    def has_enrolled(self, rows: Sequence[int]) -> None:
        self.enrolled[list(rows)] = True
        self._keep()

    def reports(
        self, view: ModelView, attempt: int, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, Leaving]]:
        """One round of these residents: each one's row, and her message."""
        terms, devices = self._behind()
        check_shape(view, terms)
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            before = self.spent[part].copy()
            messages = list(self._messages(terms, devices, view, attempt, part))
            self._keep()
            cost = self.spent[part] - before
            for row, body, epsilon in zip(part.tolist(), messages, cost.tolist(), strict=True):
                who = (int(self.users[row]),)
                yield row, let_go(body, Booked(who, "report", len(body), epsilon))

    def _messages(
        self,
        terms: Terms,
        devices: Devices,
        view: ModelView,
        attempt: int,
        rows: NDArray[np.int64],
    ) -> Iterator[bytes]:
        if terms.secure_sum is None:
            for row in rows:
                yield encode_report(devices.report(view, np.array([row])))
            return
        seeds = tuple(self._draw(SEED_BYTES) for _ in rows)
        made = devices.report_masked(view, rows, seeds)
        keys = [self._keys[row] for row in rows.tolist()]
        yield from seal_each(terms, attempt, view, *made, keys)

    # --- helpers ----------------------------------------------------------------------------------

    def _behind(self) -> tuple[Terms, Devices]:
        if self._terms is None or self._devices is None:
            raise StoreError("the residents have seen no terms yet")
        return self._terms, self._devices

    def _key(self, number: int) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._derived(b"key %d" % number))

    def _derived(self, what: bytes) -> bytes:
        return hashlib.blake2b(what, digest_size=32, key=self._secret, person=b"residents").digest()

    def _keep(self) -> None:
        content, cohort = io.BytesIO(), self._cohort
        np.savez(
            content,
            secret=np.frombuffer(self._secret, np.uint8),
            users=cohort.users,
            enrolled=self.enrolled,
            spent=cohort.spent,
            sent=cohort.sent,
        )
        replace_file(self._book, content.getvalue())

    def _read(self) -> None:
        try:
            with (
                self._book.open("rb") as file,  # numpy leaves it open where it is none of its own
                np.load(file, allow_pickle=False) as found,
            ):
                kept = {name: found[name] for name in _FIELDS}
            same = np.array_equal(kept["users"], self._cohort.users)
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            raise StoreError(
                f"{self._book} is not what residents have written; invite new ones, into another "
                "folder"
            ) from None
        if not same:
            raise StoreError(f"{self._book} is of other residents; invite new ones")
        self._secret = kept["secret"].tobytes()
        self.enrolled = kept["enrolled"]
        self._cohort.spent, self._cohort.sent = kept["spent"], kept["sent"]
