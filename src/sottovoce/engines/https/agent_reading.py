"""What a device reads of what is published: where the federation is, its terms, catalogue and
model. The questions name nobody, and our server keeps nothing of them; a device that takes no part
asks no others. Whoever runs a server can still see from which address a question comes, and that
whoever takes part fetches the model of every round, others about one a day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sottovoce.engines.https.agent_checks import catalogue_items, catalogue_limit, identity
from sottovoce.engines.https.client import Answer, Busy, Client
from sottovoce.engines.https.descriptor import Descriptor
from sottovoce.engines.versions import decode_model, full_size
from sottovoce.errors import MessageError, Unreachable, VersionMismatch
from sottovoce.messages import ModelView
from sottovoce.parties.hosted import Hosted
from sottovoce.parties.store import CohortStore
from sottovoce.terms import Terms

T = TypeVar("T")

_REFRESH_SECONDS = 86400
_REFRESHED = "refreshed"


class Reader:
    """One device: one store, one server."""

    def __init__(
        self,
        store: CohortStore,
        server: str | None,
        *,
        plaintext: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.hosted = Hosted(store)
        self.number, self._invitation = identity(store)
        self.client = Client(
            server or self._invitation.server, self._invitation.ca, plaintext=plaintext
        )
        self._clock = clock
        self._worker = ThreadPoolExecutor(1, "store")
        self._known: tuple[str, Descriptor] | None = None

    async def _look(self) -> Descriptor:
        """The round descriptor; a short question where nothing has changed."""
        tag = self._known[0] if self._known else ""
        answer = await self.client.get("/v1/round", etag=tag)
        if answer.status == 304 and self._known:
            return self._known[1]
        now = Descriptor.from_table(self._good(answer).table())
        expected = self._invitation.federation
        if now.federation != expected:
            raise MessageError(
                f"the server at {self.client.url} serves another federation than {expected}, which "
                "the invitation names; nothing was sent to it"
            )
        self._known = (answer.etag, now) if answer.etag else None
        return now

    async def _meet(self, now: Descriptor) -> Terms:
        """The terms that this device goes by. The first ones are kept to be looked at; others raise
        until the owner agrees."""
        terms, pending = await self._aside(lambda: (self.hosted.terms, self.hosted.pending))
        if terms is None or pending is not None or terms.digest() != now.terms:
            told = Terms.from_table(self._good(await self.client.get("/v1/terms")).table())
            if told.digest() != now.terms or told.federation != now.federation:
                self._known = None
                raise Unreachable(f"the server at {self.client.url} is about to change its terms")
            await self._aside(lambda: self.hosted.meet(told))
            terms = told
        if len(await self._aside(self.store.catalogue)) != terms.n_items:
            await self._fetch_catalogue(terms)
        return terms

    async def _fetch_catalogue(self, terms: Terms) -> None:
        answer = await self.client.get("/v1/catalogue", limit=catalogue_limit(terms), packed=True)
        items = catalogue_items(self._good(answer).table(), terms)
        await self._aside(lambda: self.store.set_catalogue(items))

    async def _model(self, now: Descriptor, terms: Terms) -> ModelView:
        """The published model, of which only what changed is fetched where that is shorter."""
        kept = await self._aside(self.hosted.model)
        if kept is not None and kept.round == now.model:
            return kept
        if kept is not None and (
            kept.round > now.model or kept.items.shape != (terms.n_rows, terms.width)
        ):
            kept = None
        try:
            view = await self._download(now, terms, kept)
        except MessageError:
            if kept is None:
                raise
            view = await self._download(now, terms, None)
        await self._aside(lambda: self.hosted.keep_model(view))
        await self._aside(lambda: self._stamp(_REFRESHED))
        return view

    async def _download(self, now: Descriptor, terms: Terms, kept: ModelView | None) -> ModelView:
        limit = full_size(terms.n_rows, terms.width) + terms.n_rows + 1024
        since = "" if kept is None else f"?since={kept.round}"
        answer = await self.client.download(f"/v1/model/{now.model}{since}", limit)
        if answer.status in (404, 410):
            self._known = None
            raise Busy("the round went on while its model was asked for", 0.0)
        body = self._good(answer).body
        view = decode_model(body, n_items=terms.n_rows, width=terms.width, have=kept)
        if view.round != now.model:
            raise MessageError("the server sent the model of another round")
        return view

    async def _refresh(self, now: Descriptor, terms: Terms) -> None:
        """Keep a model for recommendations while offline: the last one, or one a day old."""
        kept = await self._aside(self.hosted.model)
        if (
            kept is None
            or (now.state == "finished" and kept.round != now.model)
            or await self._aside(lambda: self._older(_REFRESHED, _REFRESH_SECONDS))
        ):
            await self._model(now, terms)

    def _good(self, answer: Answer) -> Answer:
        """The answer, where it is one of success."""
        if 200 <= answer.status < 300:
            return answer
        if answer.status == 426:
            raise VersionMismatch(
                "the server speaks another version of the protocol; install the same release of "
                "Sottovoce on both sides"
            )
        if answer.status == 404:
            raise Unreachable(f"what answers at {self.client.url} is no server of Sottovoce")
        said = f" ({answer.reason}: {answer.detail})" if answer.reason else ""
        raise Unreachable(
            f"the server at {self.client.url} refused with status {answer.status}{said}"
        )

    def _older(self, name: str, seconds: int) -> bool:
        """Whether what was stamped lies so far back; a clock that jumped counts as far."""
        stamped = self.store.secret(name)
        return stamped is None or abs(self._clock() - float(stamped)) >= seconds

    def _stamp(self, name: str) -> None:
        self.store.set_secret(name, f"{self._clock():.0f}".encode())

    async def _aside(self, work: Callable[[], T]) -> T:
        """In this store's own thread, so that other stores' agents go on."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)
