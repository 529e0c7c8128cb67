"""The HTTP interface of a secure sum's proxy: one address for the server, and two for its operator.

What it tells follows from its own folder alone: the fewest devices, the most groups and the noise
are those of the terms it keeps, whatever a question says. Nothing of a question is kept but its
round and the name of its set or its groups; nothing of it is logged.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.core.messages import MaskSum
from sottovoce.core.recommender import default_threads
from sottovoce.errors import MessageError, UsageError
from sottovoce.parties.helper import (
    Answered,
    check_groups,
    noise_of,
    sum_told,
)
from sottovoce.services.kit.answers import (
    Receive,
    Routed,
    Scope,
    Send,
    answer,
    bears,
    read_body,
    refuse,
)
from sottovoce.services.kit.executor import Aside
from sottovoce.services.kit.serving import Process, is_loopback, listen, logger, tls_of
from sottovoce.stores.helper_folder import MaskerFolder, open_masker
from sottovoce.stores.keys import (
    operator_token,
)
from sottovoce.wire.masked import (
    LONGEST_QUESTION,
    MaskSumQuestion,
    binding,
    decode_question,
    encode_mask_sum,
    is_signed,
    open_seed,
)
from sottovoce.wire.refusals import Reason, RefusalCounts, Refused
from sottovoce.wire.shuffled import terms_name

# The folder of the proxy of a secure sum: its keys, whom it serves, and what it has answered.
# `keys/` (a certificate authority of its own, which the server learns from the terms), `seal.key`
# and `seal.pub` (to which devices seal the seeds of their masks; the public one goes into the
# terms), `noise.secret` (from which the noise of every round is made), `introduction.json` (the
# terms that it follows for ever, and the token of the server; a secret), `answered.json` (for
# which set of devices it has answered last, and how much room for rounds in groups is used up),
# `masker.json` (address and process of a running one).


_OCTETS = (b"content-type", b"application/octet-stream")
_JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class MaskerLimits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 2
    """Questions of the server that wait."""
    connections: int = 200
    per_address: int = 50
    behind: tuple[str, ...] = ()
    """`service.Limits` says what these three are."""
    body_seconds: float = 120.0
    """A question must be here by then."""
    retry_seconds: int = 2
    head_seconds: float = 15.0
    rest_seconds: float = 5.0
    idle_seconds: int = 20
    write_seconds: float = 60.0
    handshake_seconds: float = 10.0
    """`protocol.Patience` and `door.DoorLimits` say what these five are."""


class Unopened(MessageError):
    """Seeds that were not sealed for this by these devices; the server may ask without them."""

    def __init__(self, which: list[int]) -> None:
        super().__init__(f"{len(which):,} seeds cannot be opened")
        self.which = which


class Answering:
    """The rules of the proxy over what is in its folder."""

    def __init__(self, folder: MaskerFolder, threads: int = 1) -> None:
        self._terms, self._link = folder.introduction.terms, folder.introduction.link
        self._name = terms_name(self._terms)
        self._key, self._noise = folder.seal_key(), folder.noise_key()
        self._answers, self._threads = folder.answers(), threads
        noise_of(self._link, 0, 1, self._noise)  # raises now where the terms cannot be kept
        self.told = 0
        """Sums, since the start."""

    def __repr__(self) -> str:
        return f"<Answering for {self._terms.federation}, redacted>"

    @property
    def round(self) -> int:
        """The last one of which a sum was told."""
        return self._answers.last[0]

    def answer(self, payload: bytes) -> bytes:
        """The sum that was asked for. Before it is told, it is on the disk for whom."""
        try:
            question = decode_question(payload)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        answered = self._check(question)
        seeds = self._open(question, again=answered == self._answers.last)
        self._answers.keep(answered)
        numbers = self._terms.n_rows * self._terms.width
        group = question.group if len(question.sizes) > 1 else None
        masks = sum_told(
            self._link, question.round, seeds, numbers, self._noise, self._threads, group
        )
        self.told += 1
        return encode_mask_sum(MaskSum(question.round, len(seeds), masks))

    def _check(self, question: MaskSumQuestion) -> Answered:
        """What is to be kept before the sum is told. Raises where it must not be."""
        records, last = question.records, self._answers.last
        if question.terms != self._name:
            raise Refused("other_terms", "the question is about other terms than ours")
        if len(question.sizes) > self._link.groups:
            raise Refused("too_many", "the terms do not permit so many sums in a round")
        if min(question.sizes) < self._link.min_devices:
            raise Refused("too_few", "a sum over so few devices is not told")
        if len({record.device for record in records}) < len(records):
            raise Refused("duplicate", "a device is named twice in one round")
        grouped = len(question.sizes) > 1 and question.round > last.round
        if grouped and last.grouped_rounds_left < 1:
            raise Refused("too_often", "there were too many rounds in groups; ask for one sum")
        try:
            # By what they sent: from two sums over the same devices' first and second attempts one
            # device's could follow, too.
            sent = [[one.device + one.sealed for one in group] for group in question.groups]
            return check_groups(self._link, last, question.round, sent)
        except MessageError as error:
            reason: Reason = "late" if question.round < last.round else "second_submission"
            raise Refused(reason, str(error), status=409) from None

    def _open(self, question: MaskSumQuestion, *, again: bool) -> list[bytes]:
        """The seeds of the group that is asked for. All groups must be good before one is told,
        since afterwards there can be no others; whoever asks `again` has shown that they are."""
        bound = binding(self._terms, question.round, question.attempt, question.model)
        start = sum(question.sizes[: question.group])
        mine = slice(start, start + question.sizes[question.group])
        records = question.records[mine] if again else question.records
        if not all(is_signed(record, bound) for record in records):
            raise Refused("bad_signature", "a sealed seed was not signed by its device for this")
        seeds = [open_seed(record, self._key, bound) for record in records]
        which = [at for at, seed in enumerate(seeds) if seed is None]
        if which:
            raise Unopened(which)
        return [seed for seed in (seeds if again else seeds[mine]) if seed is not None]


class MaskerService(Routed):
    def __init__(
        self,
        folder: MaskerFolder,
        token: str,
        tally: RefusalCounts,
        limits: MaskerLimits,
        threads: int = 1,
    ) -> None:
        """`token` is the operator's."""
        super().__init__("the proxy", token, tally, retry_seconds=limits.retry_seconds)
        self._limits, self._server_token = limits, folder.introduction.token
        self._answering = Answering(folder, threads)
        # One at a time: what was told last decides what may be told next.
        self._aside = Aside(limits.waiting, threads=1)
        self._routes = {
            "/v1/sums": ("POST", self._sum),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }

    def close(self) -> None:
        self._aside.close()

    async def _sum(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not bears(scope, self._server_token):
            raise Refused("unknown_server", "only the server of the federation may ask for a sum")
        limits = self._limits
        payload = await read_body(scope, receive, LONGEST_QUESTION, limits.body_seconds)
        try:
            told = await self._aside(lambda: self._answering.answer(payload))
        except Unopened as error:
            self._tally.count("undecryptable")
            content = {"error": "undecryptable", "detail": str(error), "which": error.which}
            await answer(send, 409, [_JSON], json.dumps(content).encode())
            return
        await answer(send, 200, [_OCTETS], told)

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain")], b"ok")

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not bears(scope, self._token):
            await refuse(send, 401, "unauthorized", "this needs the operator's token", 0)
            return
        with self._tally.settled() as counts:
            figures = _Figures(self._answering.round, self._answering.told, Counter(counts))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(figures)
        content = generate_latest(registry)
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], content)


class _Figures(Collector):
    def __init__(self, round: int, told: int, refused: Counter[str]) -> None:
        self._round, self._told, self._refused = round, told, refused

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "sottovoce_masker_round", "Last round of which a sum was told.", self._round
        )
        yield CounterMetricFamily("sottovoce_masker_sums", "Sums told.", self._told)
        refused = CounterMetricFamily(
            "sottovoce_masker_refused", "Questions refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            refused.add_metric([reason], count)
        yield refused


# A process of a secure sum's proxy: what it needs to start, what it does until it is told to
# stop.


def run_masker(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8447,
    *,
    plaintext: bool = False,
    threads: int | None = None,
    limits: MaskerLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the proxy in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed certificate.
    Port 0 takes a free one; where the proxy listens is in the ready file, and `ready` is told.
    Raises with one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder, tally, limits = open_masker(path), RefusalCounts(), limits or MaskerLimits()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        folder.seal_key(), folder.noise_key(), folder.answers()  # raise now where they cannot
        listener = stack.enter_context(listen(host, port))
        process = Process("the proxy", folder, listener, context, tally, logger())

        def service() -> MaskerService:
            return MaskerService(folder, token, tally, limits, threads or default_threads())

        process.run(service, limits, ready=ready)
