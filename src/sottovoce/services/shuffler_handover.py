"""The thread of a shuffler that talks to the server: it follows the rounds, lets batches go when
the rules say so, hands them over part by part, and forgets them.

In a chain all shufflers follow the server's rounds, and each hands over to the one behind it, the
last one to the server. One behind another takes its layer off a batch when all of it is there.

Two batches of one round and tier must never leave, since their difference is somebody's reports. A
batch's mark is noted outside the folder, and announced to whoever takes the batch, before anything
of it leaves. If either knows another mark, the folder was set back to a copy: all that it holds is
discarded, and it takes nothing more until a round of which nothing has left."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from sottovoce.core.links import LAYER_BYTES
from sottovoce.engines.client import Busy, ServiceClient, loopback
from sottovoce.errors import (
    ConfigError,
    MessageError,
    ServiceError,
    SottovoceError,
    Unreachable,
)
from sottovoce.parties.shuffler import ShufflerRules, in_parts, once, spare_of
from sottovoce.services.kit.openers import Openers
from sottovoce.services.kit.pacing import Pace
from sottovoce.services.kit.told import ToldSums
from sottovoce.stores.noted import Left
from sottovoce.stores.shuffler import Held, ShufflerPosition, ShufflerStore
from sottovoce.stores.shuffler_folder import ShufflerFolder
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.sealing import SEALED_BYTES, key_id
from sottovoce.wire.shuffled import (
    PART_BYTES,
    BatchPart,
    encode_part,
    hop_info,
    record_bytes,
    terms_name,
)
from sottovoce.wire.terms import Terms

PER_PART = PART_BYTES // SEALED_BYTES
"""Reports in a part of a batch for the server; of larger ones there are fewer."""
_LONGEST_LOOK = 5.0
"""Seconds after which the shuffler looks for a new round, at most, while the server answers."""
_LONGEST_PAUSE = 30.0
_SHORTEST_LOOK = 0.1
"""However many ask."""
_TERMS_BYTES = 1 << 20
_BREATH = 0.005
"""Seconds between deletions, in which others may write."""
_WIPE_SECONDS = 1.0
"""After which the log is wiped again where that could not be done."""

_NEVER = 1 << 63

Goal = Mapping[int | None, int]
"""By tier, or for all others, the devices with which a batch waits no longer."""


class Forwarder:
    def __init__(
        self,
        folder: ShufflerFolder,
        store: ShufflerStore,
        log: Any,
        *,
        goal: Goal,
        hold_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._store, self._log, self._clock = folder, store, log, clock
        self._introduction = folder.introduction
        self._goal, self._hold = goal, hold_seconds
        self.rules: ShufflerRules | None = None
        """None until the terms of the federation are known."""
        self.terms: Terms | None = None
        self.terms_name = b""
        self.hop = self._introduction.hop
        """Its place in the chain, from 0."""
        self.size = SEALED_BYTES
        """Bytes of a record that is handed over."""
        self._behind = "the server"
        self._digest = ""
        self._next_wipe = 0.0  # a process that was killed may have left something
        self._reached: dict[int, float] = {}
        self._looked, self._next_look, self._next_try = -math.inf, 0.0, 0.0
        near = loopback(self._introduction.server)
        self._looking, self._trying = Pace(near=near), Pace(near=near)
        self._trouble = ""
        self.told = ToldSums("batch", log)
        self._told = _LONGEST_LOOK
        self._died: Callable[[], None] = lambda: None
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self._asking, self._handing = (
            _client(self._introduction.server, self._introduction.ca) for _ in range(2)
        )
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self.set_back = 0
        """How often the folder was found to be set back."""
        self._marks = folder.marks()
        self._check_marks()
        terms = folder.terms()
        if terms is not None:
            self._follow(terms)

    def require_marks(self) -> None:
        """Raise if the marks are gone: no batch leaves without them."""
        if self._marks.read() is None:
            raise ServiceError(f"{self._marks.place} was removed")

    def _check_marks(self) -> None:
        """Raise if nobody knows which batches have left. Discard what the folder holds if others
        have left than it knows of."""
        left = self._marks.read()
        if left is None and self._store.position == ShufflerPosition():
            # The folder is new, and has taken nothing yet.
            self._marks.begin()
            return
        if left is None:
            raise ServiceError(
                f"{self._marks.place}, which says which batches of {self._folder.path} have left, "
                "is not there; this may be a copy, and nothing of it leaves: put the file back, or "
                "start once with --next-round and a round that no device has sent in, which "
                "discards what the folder holds"
            )
        if self._store.is_behind(left):
            self._set_back("batches have left of which the folder knows nothing")

    def _set_back(self, found: str) -> None:
        """The folder is an old one: discard what it holds, take nothing more in rounds of which
        something may have left, and say so."""
        left, here = self._marks.read() or Left(), self._store.position.round
        first = max(left.next_round, here + 1)
        self._marks.begin(first)
        self._move(ShufflerPosition(first), sealed=True)
        self.set_back += 1
        self._log.error(
            "set back",
            detail=f"{found}: it was set back to a copy, or two of it run; what it held is "
            f"discarded, and nothing is taken before round {first}. Find out who put it back",
        )

    def start(self, died: Callable[[], None]) -> None:
        """`died` is called where the thread ends by an error that nobody has foreseen."""
        self._died = died
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        self._thread.join(timeout=3)

    def wake(self) -> None:
        """Something was accepted."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has stopped
                self._loop.call_soon_threadsafe(self._woken.set)

    async def look(self, seconds: float) -> None:
        """See whether the server has moved on, for so long at most. For another event loop."""
        if self._loop is None or not self._loop.is_running():
            return
        asked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._look(), self._loop))
        await asyncio.wait([asked], timeout=seconds)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._own_loop) as runner:
                runner.run(self._work())
        finally:
            if not self._stopping:
                self._died()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.new_event_loop()

    async def _work(self) -> None:
        try:
            while not self._stopping:
                self._woken.clear()
                if self._clock() >= self._next_look:
                    await self._look()
                await self._deliver()
                await self._forget()
                await self._wait()
        finally:
            await self._asking.rest()
            await self._handing.rest()

    async def _wait(self) -> None:
        now = self._clock()
        until = [self._next_look, self._next_wipe]
        for held in self._store.held():
            if held.state in ("sealed", "whole", "short"):
                until.append(self._next_try)
            elif held.number in self._reached:
                until.append(max(self._next_try, self._reached[held.number] + self._hold))
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.02, min(until) - now))
        except TimeoutError:
            return
        await asyncio.sleep(0.02)  # many submissions make one look

    # --- the rounds -------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Ask the server where it is. Whoever asks while others wait gets the same answer."""
        asked = self._clock()
        async with self._turn:
            if self._looked > asked:
                return
            await asyncio.sleep(max(0.0, self._looked + _SHORTEST_LOOK - asked))
            try:
                await self._ask()
            except SottovoceError as error:
                wait = error.retry_after if isinstance(error, Busy) else 0.0
                pause = min(self._looking.after_failure(wait), _LONGEST_PAUSE)
                self._say("the server cannot be followed", error)
            else:
                pause = self._looking.after_success(min(self._told / 4, _LONGEST_LOOK))
                self._trouble = ""
            self._looked = self._clock()
            self._next_look = self._looked + pause

    async def _ask(self) -> None:
        answer = await self._asking.get("/v1/round")
        if answer.status != 200:
            raise ServiceError(f"the server refused to tell the round (status {answer.status})")
        now = Descriptor.from_table(answer.table())
        if now.federation != self._introduction.federation:
            raise MessageError(f"the server is that of another federation, {now.federation}")
        if self.rules is None:
            await self._fetch_terms(now.terms)
        if now.terms != self._digest:
            self._change_terms(now)
        if now.round < self._store.position.round:
            # Who has sent in that round may be forgotten: anything could be taken twice.
            raise MessageError(
                f"the server went back to round {now.round}, or is still there; nothing is taken "
                f"before round {self._store.position.round}"
            )
        key = key_id(now.report_key) if now.report_key else b""
        self._told = now.poll_seconds
        position = ShufflerPosition(now.round, now.state == "open" and bool(key), key)
        if position != self._store.position:
            self._move(position)
            self._log.info("round", round=position.round, open=position.open)

    def _move(self, position: ShufflerPosition, *, sealed: bool = False) -> None:
        dropped = self._store.move(position, sealed=sealed)
        self._reached = {h.number: self._reached[h.number] for h in self._store.held()
                         if h.number in self._reached}  # fmt: skip
        for held in dropped:
            self._log.info("batch dropped", round=held.round, tier=held.tier, devices=held.devices)

    async def _fetch_terms(self, digest: str) -> None:
        answer = await self._asking.get("/v1/terms", limit=_TERMS_BYTES)
        if answer.status != 200:
            raise ServiceError(f"the server refused to tell the terms (status {answer.status})")
        terms = Terms.from_table(answer.table())
        if terms.federation != self._introduction.federation:
            raise MessageError(f"the terms are those of another federation, {terms.federation}")
        if terms.digest() != digest:
            raise MessageError("the server published other terms than those of its round")
        self._follow(terms)
        self._folder.keep_terms(terms)

    def _change_terms(self, now: Descriptor) -> None:
        """The server goes by other terms: they are followed where the operator has agreed, from a
        round on for which nothing was taken under those before. What is held goes by no others."""
        found = [one for one in self._folder.agreed() if one.digest() == now.terms]
        known = self._store.position
        if not found:
            raise MessageError(
                "the server has changed the terms; batches under others are held until the "
                "operator agrees, with --terms"
            )
        if now.round < known.round or (now.round == known.round and known.key):
            raise MessageError(
                f"the server has changed the terms within round {known.round}; others are followed "
                "from a later round on"
            )
        # First of all nothing is held or taken, so that a process that is killed in between never
        # judges by the new terms what was made under the former ones.
        self._move(ShufflerPosition(now.round), sealed=True)
        self._follow(found[0])
        self._folder.keep_terms(found[0])
        self._log.info("terms changed", digest=now.terms)

    def names(self) -> list[bytes]:
        """Return the names of the terms that are followed, and of those that the operator has
        agreed to since."""
        return [self.terms_name, *map(terms_name, self._folder.agreed())]

    def _follow(self, terms: Terms) -> None:
        if terms.reporting is None:
            raise ServiceError(
                f"the federation {terms.federation} sends nothing through a shuffler"
            )
        self._folder.require_place(terms)
        tiers = terms.reporting.tiers
        unknown = [tier for tier in self._goal if tier is not None and tier >= len(tiers)]
        if unknown:
            raise ConfigError(f"--goal names tier {unknown[0]}, but the last is {len(tiers) - 1}")
        wanted = [self._goal.get(n, self._goal.get(None)) for n in range(len(tiers))]
        minimum = tuple(tier.min_devices for tier in tiers)
        # A goal below the minimum is reached with it.
        goal = tuple(_NEVER if count is None else count for count in wanted)
        link = terms.link.mixing
        chained = link is not None and link.shufflers > 1 and not self.hop
        spare = tuple(spare_of(least) if chained else 0 for least in minimum)
        self.terms, self.terms_name, self._digest = terms, terms_name(terms), terms.digest()
        self.rules = ShufflerRules(terms.reporting.max_reports, minimum, goal, self._hold, spare)
        if link is not None:
            self.size = record_bytes(link, self.hop)
            if self.hop < len(link.chain):
                after = link.chain[self.hop]
                self._behind = f"the next shuffler, {after.url},"
                self._handing = _client(after.url, after.authority)

    # --- batches ----------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Hand over what may go. A server that is down or refuses is tried again later."""
        if self.rules is None:
            return
        for held in self._store.held():
            free = held.state in ("sealed", "whole", "short") or self._releases(held)
            if not free or self._clock() < self._next_try:
                continue
            if held.number not in {one.number for one in self._store.held()}:
                continue  # it was dropped while another was handed over
            try:
                if held.state == "whole" and not await self._opened(held):
                    held = next((h for h in self._store.held() if h.number == held.number), held)
                    if held.state != "short":
                        continue
                if held.state == "short":
                    await self._say_dropped(held)
                    continue
                if held.state != "sealed":
                    held = self._store.seal(held)
                    self._reached.pop(held.number, None)
                await self._hand_over(held)
            except SottovoceError as error:
                wait = error.retry_after if isinstance(error, Busy) else 0.0
                pause = min(self._trying.after_failure(wait), max(_LONGEST_PAUSE, wait))
                self._next_try = self._clock() + pause
                self._say("a batch cannot be handed over", error)
            else:
                self._next_try = 0.0
                self._trying.after_success(1.0)
                self._trouble = ""

    def _releases(self, held: Held) -> bool:
        rules = self.rules
        if rules is None or held.state != "open" or held.round != self._store.position.round:
            return False
        if held.devices < rules.least(held.tier):
            return False
        now = self._clock()
        reached = self._reached.setdefault(held.number, now)
        return rules.releases(held.tier, held.devices, now - reached)

    async def _opened(self, held: Held) -> bool:
        """Take the layer that is this shuffler's off a whole batch; whether it may go on. It may
        not where fewer reports are left than the tier's minimum of devices sends."""
        if self.rules is None or self.terms is None or held.arrival is None:
            return False
        begun, sealed = self._clock(), self.size + LAYER_BYTES
        place = {"round": held.round, "tier": held.tier}
        info = hop_info(self.terms, held.key, self.hop, **place)
        left_out = Counter[str]()
        missing = held.devices * self.rules.reports - held.arrival.records
        steps = take_off(
            self._store, held, self._folder.seal_key(), info, sealed, left_out, missing
        )
        try:
            while not self._stopping:
                after = await asyncio.to_thread(next, steps, None)
                if after is None:
                    break
                held = after
                if self._clock() >= self._next_look:
                    await self._look()  # which may find the round over
        finally:
            steps.close()
        arrival = held.arrival
        if arrival is None or held.state != "whole" or arrival.opened < arrival.parts:
            return False
        facts = {"devices": held.devices, "reports": arrival.kept, **+left_out}
        if arrival.kept < self.rules.minimum[held.tier] * self.rules.reports:
            self._store.shorten(held)
            why = "fewer reports are left than the tier's minimum of devices sends"
            self._log.error("batch dropped", **place, **facts, detail=why)
            return False
        seconds = round(self._clock() - begun, 3)
        self._log.info("batch opened", **place, **facts, seconds=seconds)
        return True

    async def _hand_over(self, held: Held) -> None:
        if self.rules is None:
            return
        records = held.records(self.rules.reports)
        if records < self.rules.minimum[held.tier] * self.rules.reports:
            raise ServiceError("a batch below its minimum is not handed over")
        if not self._marks.commit(held.round, held.tier, held.mark):
            if self._overtaken(held):
                self._drop(held)
            else:
                self._set_back("another batch of this round and tier has left")
            return
        begun = self._clock()
        per_part = max(1, PER_PART * SEALED_BYTES // self.size)
        parts = -(-records // per_part)
        content = in_parts(
            lambda: self._store.rows(held, self.size), records, self.size, held.seed,
            per_part=per_part, first=held.sent,
        )  # fmt: skip
        if not held.sent and not await self._passed(held, 0, parts, b""):
            return
        for number, body in enumerate(content, held.sent):
            if not await self._passed(held, number, parts, body):
                return
            held = self._store.sent(held, number + 1)
            if self._clock() >= self._next_look:
                await self._look()  # which may find the round over
            if number + 1 < parts and self._overtaken(held):
                self._drop(held)
                return
        self._store.end(held, "handed_over")
        self.told.tell(
            "batch handed over",
            round=held.round,
            tier=held.tier,
            devices=held.devices,
            parts=parts,
            seconds=self._clock() - begun,
        )

    async def _passed(self, held: Held, number: int, parts: int, body: bytes) -> bool:
        """Whether whoever is behind has this part now; without a body it is the announcement. If
        not, the batch is over. Raises where it has to be tried again."""
        part = BatchPart(
            held.round, held.tier, held.key, held.devices, number, parts,
            held.mark or (held.arrival.source if held.arrival else b""), body, self.size,
        )  # fmt: skip
        try:
            answer = await self._handing.hand_over(
                "/v1/batches", encode_part(part), self._introduction.token
            )
        except Unreachable:
            if not self._overtaken(held):
                raise
            self._drop(held)
            return False
        # Known there by this batch's own mark: another one is no replay.
        if answer.status == 204 or (answer.status, answer.reason) == (409, "replay"):
            return True
        if (answer.status, answer.reason) == (409, "second_submission") and parts:
            self._drop(held)
            self._set_back(f"{self._behind} has had another batch of this round and tier")
            return False
        over = answer.reason == "late" and answer.status in (409, 410)
        if over or self._overtaken(held):
            self._drop(held)
            return False
        raise ServiceError(
            f"{self._behind} refused part {number} of {parts} with status {answer.status}, "
            f"{answer.reason or 'no reason'}: {answer.detail}"
        )

    async def _say_dropped(self, held: Held) -> None:
        """Tell whoever is behind that nothing of this batch will come, so that the round ends."""
        if await self._passed(held, 0, 0, b""):
            self._store.end(held, "dropped")

    def _overtaken(self, held: Held) -> bool:
        return self._store.position.round > held.round

    def _drop(self, held: Held) -> None:
        self._store.end(held, "dropped")
        self._log.info("batch dropped", round=held.round, tier=held.tier, devices=held.devices)

    async def _forget(self) -> None:
        """Delete what is over, also from the log."""
        try:
            while self._store.forget() and not self._stopping:
                self._next_wipe = min(self._next_wipe, self._clock())
                await asyncio.sleep(_BREATH)
            if self._clock() >= self._next_wipe:
                self._next_wipe = self._clock() + _WIPE_SECONDS
                if self._store.wipe_log():
                    self._next_wipe = math.inf
        except ServiceError as error:
            self._say("what is over cannot be deleted yet", error)

    def _say(self, what: str, error: Exception) -> None:
        """Once for each kind of trouble."""
        if self._trouble != f"{what}: {error}":
            self._trouble = f"{what}: {error}"
            self._log.error(what, detail=str(error))


def take_off(
    store: ShufflerStore,
    held: Held,
    private: bytes,
    info: bytes,
    size: int,
    left_out: Counter[str],
    missing: int = 0,
) -> Generator[Held, None, None]:
    """Take the layer `info` off the records of a whole batch, `size` bytes each: a part at each
    step, after which it is on the disk. What does not open or comes twice is left out, and counted
    with what was `missing` before; parts that were opened before a crash are not opened again."""
    arrival = held.arrival
    if arrival is None:
        return
    openers = Openers(private, info, size)
    new = Counter({"missing": 0 if arrival.opened else missing})
    each_once = once(partial(store.parts, held), arrival.records, size, new)
    with openers.helped(arrival.records):
        for number, sealed in enumerate(each_once):
            if number >= arrival.opened:
                body, bad = openers.open(sealed)
                new["undecryptable"] += bad
                held = store.put_opened(held, body, size - LAYER_BYTES, +new)
                left_out.update(new)
                yield held
                if held.state != "whole":
                    return
            new.clear()


def _client(url: str, authority: str) -> ServiceClient:
    return ServiceClient(url, authority, plaintext=not authority)
