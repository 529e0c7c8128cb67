"""The way to the helper of a secure sum, or to an aggregator of a checked one, for whoever adds up
what it cannot read: a server over HTTPS, or the conductor of a Flower federation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sottovoce.core.links import Link
from sottovoce.core.messages import MaskSum
from sottovoce.engines.client import Answer, ServiceClient
from sottovoce.engines.connection import Timeouts
from sottovoce.errors import ConfigError, MessageError, Unreachable, WrongSum
from sottovoce.wire.masked import decode_mask_sum
from sottovoce.wire.terms import Terms

Ask = Callable[[bytes, str], Answer]
"""Puts a question to the helper, at one of its addresses; raises `Unreachable` or `KeyTrouble`
where it cannot."""

SUMS, SEEDS, TERMS = "/v1/sums", "/v1/seeds", "/v1/terms"
_TIMEOUTS = Timeouts(answer=600.0)
"""The helper adds up before it answers."""
_LONGEST_REFUSAL = 1 << 22
_SETTLED_ELSEWHERE = (401, 403, 404, 405, 426)
"""Answers that say nothing of the question: somebody has to put the services right."""


class HelperElsewhere(Unreachable):
    """The party that answered is not the one of this federation, or it does not know the server."""


class HelperTerms(Unreachable):
    """The helper, or the aggregator, keeps other terms than the server."""


class SumRefused(MessageError):
    """The helper will not tell this sum."""


class HelperClient:
    """The server's way to the helper that the terms name, or to one of their aggregators."""

    def __init__(self, link: Link, token: str, answer_bytes: int, number: int = 1) -> None:
        """`number` is that of an aggregator."""
        summed, checked, key = link.summing, link.checking, ""
        self._url, self._authority, self.who = "", "", "the helper"
        if summed is not None:
            self._url, self._authority, key = summed.url, summed.authority, summed.key
        elif checked is not None:
            self.who, key = f"aggregator {number}", "".join(checked.keys)
            self._url = "".join(checked.urls[number - 1 : number])
            self._authority = "".join(checked.authorities[number - 1 : number])
        if not self._url or not key:
            raise ConfigError(
                f"the terms of the federation name no {self.who.removeprefix('the ')} for its sums"
            )
        self._token = token
        self._limit = max(answer_bytes, _LONGEST_REFUSAL)
        self._client()  # raises now where it cannot be one

    def __repr__(self) -> str:
        return f"<HelperClient {self._url}, redacted>"

    def ask(self, question: bytes, path: str) -> Answer:
        return asyncio.run(self._ask(question, path))

    async def _ask(self, question: bytes, path: str) -> Answer:
        client = self._client()
        try:
            return await client.hand_over(path, question, self._token, limit=self._limit)
        finally:
            await client.rest()

    def _client(self) -> ServiceClient:
        plain = self._url.startswith("http://")
        return ServiceClient(self._url, self._authority, plaintext=plain, timeouts=_TIMEOUTS)


def check_reached(answer: Answer, who: str = "the helper") -> None:
    """Raises where it was not the helper, or the aggregator, of this federation that answered, or
    it keeps other terms."""
    if answer.reason == "other_terms":
        raise HelperTerms(
            f"{who} keeps other terms than the server, and answers for no others: "
            f"{answer.detail or 'it says nothing more'}"
        )
    if answer.status in _SETTLED_ELSEWHERE:
        raise HelperElsewhere(
            f"it answered with status {answer.status}, {answer.reason or 'no reason'}: "
            f"{answer.detail or 'nothing more'}; see whether it is {who} of this "
            "federation, of this release, and has its introduction"
        )


def told_sum(answer: Answer, terms: Terms) -> MaskSum:
    """The sum of masks in the helper's answer. Raises where it told none."""
    check_reached(answer)
    if answer.status != 200:
        raise SumRefused(
            f"the helper refused with status {answer.status}, {answer.reason or 'no reason'}: "
            f"{answer.detail}"
        )
    try:
        return decode_mask_sum(answer.body, terms)
    except MessageError as error:
        raise WrongSum(str(error)) from None


def is_undecryptable(answer: Answer) -> bool:
    """Whether the helper has told nothing, since it cannot open some of the seeds."""
    return (answer.status, answer.reason) == (409, "undecryptable")


def which_unopened(answer: Answer, devices: int) -> list[int]:
    """The places that the helper names; at least one where it refuses for their sake."""
    named = answer.table().get("which")
    places = named if isinstance(named, list) else [-1]
    good = all(type(at) is int and 0 <= at < devices for at in places)
    if not good or not (places or answer.status == 200):
        raise SumRefused("the helper did not say which seeds it could not open")
    return places
