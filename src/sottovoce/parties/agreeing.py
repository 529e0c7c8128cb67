"""The terms of a federation as a store has them: which the server showed, and which its owner has
agreed to. That she takes part is no agreement to what she has not seen."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod

from sottovoce.errors import ConsentError
from sottovoce.parties.prepared import how_revealing, space
from sottovoce.parties.store import CohortStore
from sottovoce.parties.store_rounds import RoundBook, kept_terms
from sottovoce.terms import Terms

_OFFERED, _SEEN = "offered-terms", "terms-seen"


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
        digests = terms.digest(), self._book.written_digest()
        seen = era > 0 or self.store.secret(_SEEN) in [digest.encode() for digest in digests]
        return None if seen else terms

    def meet(self, terms: Terms) -> None:
        """The server shows its terms. They are kept for the owner to look at; that she takes part
        is no agreement to what she has not seen. Raises where they are others than before: what may
        leave does not change behind her back."""
        with self.store.file.transaction():
            known, foreseen = self._book.latest_terms(), terms.digest() == self._foreseen
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
                if space(before) != space(terms):
                    self._book.forget_vectors()
                self._book.add_terms(era + 1, terms, self.store.now())
            if self.offered == terms:
                self.store.set_secret(_OFFERED, b"")
            self.store.set_secret(_SEEN, terms.digest().encode())

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
