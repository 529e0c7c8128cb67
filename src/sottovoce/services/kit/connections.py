"""Who is let in: connections are counted from when they are accepted, in all and by address. Those
that say nothing cost next to nothing, the idle ones give way to newcomers before the busy ones do,
and nobody has to wait behind the handshakes of another address."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import resource
import select
import selectors
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import UsageError
from sottovoce.wire.refusals import RefusalCounts, Refused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Room for the bodies of requests. It is taken by bytes that have arrived, never by what a head
# promises, and shared out by sender: who sends most gives way first.

FREE = 4096
"""Bytes of every body that need no room: so much is held by connections, whose number has a limit
of its own, and small messages get through when there is no room at all."""
_STEP, _STEP_SECONDS = 64 << 10, 4.0
"""A body of which so many bytes more take longer than this does not get on: half as fast as the
slowest line that is waited for."""
_HOUSEHOLD_DIGITS = 14
_PREFIX_BYTES = 8
"""Bytes of an IPv6 address that count: a household or a rented machine has a /64 and all addresses
in it."""


def neighbourhood(host: str) -> str:
    """Whom limits per address are for: an IPv4 address, or a /64 of IPv6."""
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    if packed[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return packed[:_PREFIX_BYTES].hex()


def sender_of(scope: dict[str, Any]) -> Hashable:
    """Return who sends this request, as far as its connection tells."""
    found: Hashable = scope.get("sender")
    if found is None and scope.get("client"):
        return neighbourhood(scope["client"][0])
    return found


def network_of(scope: dict[str, Any], forwarded: bytes, behind: Sequence[Network]) -> str:
    """From where a request comes, for limits on who may become a device: an IPv4 address, or a /56
    of IPv6, which many providers give to one household. Of a connection of the reverse proxies
    `behind` it is what the nearest of them says in the header `forwarded`; what is said there on
    other connections, or before it, anybody can make up."""
    sender = scope.get("sender")
    if not isinstance(sender, Visitor):
        return _wider(str(sender_of(scope)))
    told = b",".join(value for name, value in scope["headers"] if name == forwarded)
    for part in reversed(told.decode("latin-1").split(",")):
        found = _address(part.strip())
        if found is None:
            break
        if not is_within(found, behind):
            return _wider(neighbourhood(str(found)))
    return _wider(sender.sender.name)


def _wider(name: str) -> str:
    return name if "." in name else name[:_HOUSEHOLD_DIGITS]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as reverse proxies write it, some with a port."""
    bracketed, with_port = re.fullmatch(r"\[(.+)\](:\d+)?", text), text.count(":") == 1
    host = bracketed[1] if bracketed else text.partition(":")[0] if with_port else text
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_within(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Sequence[Network]
) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


class Room:
    """At most so many bytes at once, and so many of one sender. Where it is full, a sender of
    several bodies loses one to somebody who holds less, and a body that does not get on gives way
    to any other. The oldest body of all is taken however large it is, and so is a sender's only one
    where there is room."""

    def __init__(self, name: str, most: int, per_sender: int) -> None:
        self._name, self._most, self._per_sender = name, most, per_sender
        self._shares: dict[Share, None] = {}
        self._of: dict[Hashable, dict[Share, None]] = {}
        self._held: Counter[Hashable] = Counter()
        self.bytes = 0

    @property
    def full(self) -> Refused:
        """The refusal where there is no room."""
        return Refused("overload", f"{self._name} has too much to do; come back later")

    def enter(self, share: Share) -> None:
        self._shares[share] = None
        self._of.setdefault(share.sender, {})[share] = None

    def grow(self, share: Share, size: int) -> None:
        """Raises where there is no room for so many bytes more."""
        if size <= 0:
            return
        sender = share.sender
        wanted = self._held[sender] + size
        if wanted > self._per_sender and next(iter(self._of[sender])) is not share:
            raise self.full
        while self.bytes + size > self._most:
            victim = self._greediest(wanted) or self._slowest(share)
            if victim is not None:
                victim.cut()
            elif next(iter(self._shares)) is share:
                break
            else:
                raise self.full
        share.counted += size
        self._held[sender] += size
        self.bytes += size

    def leave(self, share: Share) -> None:
        if share not in self._shares:
            return
        del self._shares[share], self._of[share.sender][share]
        self.bytes -= share.counted
        self._held[share.sender] -= share.counted
        share.counted = 0
        if not self._of[share.sender]:
            del self._of[share.sender], self._held[share.sender]

    def _greediest(self, wanted: int) -> Share | None:
        """The largest body of who holds most, where that is more than `wanted` and several are
        coming."""
        for sender, held in self._held.most_common(1):
            coming = [share for share in self._of[sender] if share.clock is not None]
            if held > wanted and len(coming) > 1:
                return max(coming, key=lambda share: share.counted)
        return None

    def _slowest(self, other: Share) -> Share | None:
        """A body that does not get on."""
        late = time.monotonic() - _STEP_SECONDS
        for share in self._shares:
            if share.clock is not None and share.got_on < late and share is not other:
                return share
        return None


Prove = Callable[[bytes], tuple[Room, Hashable, int] | None]
"""Is given the beginning of a body, more than `FREE` bytes. It says which other room has a place
for it, in whose name and for how many bytes."""


class Share:
    """The room of one body, from its first byte until it is dealt with: within a `with`."""

    def __init__(self, room: Room, sender: Hashable, prove: Prove | None = None) -> None:
        self._room, self._prove = room, prove
        self.sender = self if sender is None else sender
        self._size = 0
        self.counted = 0
        self.clock: asyncio.Timeout | None = None
        """Runs while the body is being received; only then can its room be taken away."""
        self.was_cut = False
        self.got_on = time.monotonic()
        """When another step of it was here."""

    def __enter__(self) -> Share:
        self._room.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.clock = None
        self._room.leave(self)

    @property
    def full(self) -> Refused:
        return self._room.full

    def take(self, part: bytes, begun: Callable[[], bytes]) -> None:
        """Another part of the body has come, and what is here by now is `begun`. Raises where
        there is no room for it."""
        if self.was_cut:
            raise self.full
        if (self._size + len(part)) // _STEP > self._size // _STEP:
            self.got_on = time.monotonic()
        self._size += len(part)
        if self._prove is not None and self._size > FREE:
            found, self._prove = self._prove(begun()), None
            if found is not None:
                self.move(*found)
        self._room.grow(self, max(0, self._size - FREE) - self.counted)

    def move(self, room: Room, sender: Hashable, size: int = 0) -> None:
        """To another room, where so many bytes are kept free for the body, or those that are here.
        There all of them count. Raises where it has no place for them."""
        size = max(self._size, size)
        self._room.leave(self)
        self._room, self.sender = room, sender
        room.enter(self)
        room.grow(self, size)

    def cut(self) -> None:
        """Give the room back now; what is being received is refused."""
        self.was_cut = True
        self._room.leave(self)
        if self.clock is not None:
            self.clock.reschedule(asyncio.get_running_loop().time())


SILENT, GREETING, IDLE, BUSY = range(4)
"""What a connection does: nothing yet, TLS, waiting for its next request, or being answered."""
_GONE = -1
_SPARE = 16
"""Connections above the limit whose requests are told to come back; the operator's are answered."""
_OTHER_FILES = 256
"""Open files that are none of our connections: databases, logs, those just being closed."""
_AT_ONCE, _HANDSHAKES = 64, 4
"""Connections accepted, and handshakes begun, before others have their turn again."""
_FIRST_LOOK = 2048
"""Bytes of a connection that are looked at first; most greetings are no longer."""
_SENDERS_LOOKED_AT = 64
_PAUSE = 0.05
_RECORD_HEAD, _HANDSHAKE_RECORD, _LONGEST_RECORD = 5, 0x16, 5 + (1 << 14)
_LOOKS = 4
"""So often a connection is looked at before its first record is whole; then TLS may judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a service takes on at once, and how long it waits. What is beyond is told to come
    back later."""

    connections: int = 4000
    """In all, from when they are accepted. The idle ones give way to others."""
    per_address: int = 1000
    """Most connections of one IPv4 address or one /64 of IPv6. Many devices can be behind one."""
    behind: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies: behind each are many visitors, so there is no
    limit per address for them, and what they hold is not cut for others."""
    body_seconds: float = 30.0
    """A message must be here by then."""
    retry_seconds: int = 2
    """When whoever was turned away may come back."""
    handshake_seconds: float = 10.0
    """Until TLS is begun, and as long again until it is done."""
    head_seconds: float = 15.0
    """Until the head of a request is there."""
    rest_seconds: float = 5.0
    """Until the rest of a request is there that was answered already."""
    idle_seconds: int = 20
    """Until the next request begins."""
    write_seconds: float = 30.0
    """Seconds in which the other side takes nothing of an answer."""


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def reverse_proxies(texts: Sequence[str] | None) -> tuple[str, ...]:
    """What `behind` is to say; raises with one sentence where something is no address."""
    try:
        networks(texts or ())
    except ValueError as error:
        raise UsageError(
            f"--behind takes an address or a network, as 192.0.2.7 or 10.1.0.0/16: {error}"
        ) from None
    return tuple(texts or ())


class PeerAddress:
    """An address, or a /64, with what it has open, by what it does."""

    __slots__ = ("count", "name", "stages", "trusted")

    def __init__(self, name: str, trusted: bool) -> None:
        self.name, self.trusted, self.count = name, trusted, 0
        self.stages: tuple[dict[Visitor, None], ...] = ({}, {}, {}, {})


class Visitor:
    """One connection, from when it is accepted until it is closed."""

    __slots__ = ("extra", "looks", "protocol", "sender", "since", "sock", "stage", "task")

    def __init__(self, sock: socket.socket, sender: PeerAddress, extra: bool) -> None:
        self.sock, self.sender, self.extra = sock, sender, extra
        self.stage, self.looks = SILENT, 0
        self.since = time.monotonic()
        sender.stages[SILENT][self] = None
        self.protocol: Any = None
        self.task: asyncio.Task[None] | None = None

    @property
    def name(self) -> Hashable:
        """In whose name its requests take room; behind a reverse proxy each is somebody else."""
        return self if self.sender.trusted else self.sender.name

    def now(self, stage: int) -> None:
        """It does something else from now on."""
        if stage != self.stage and self.stage != _GONE:
            stages = self.sender.stages
            del stages[self.stage][self]
            stages[stage][self] = None
            self.stage, self.since = stage, time.monotonic()


class Deadlines:
    """Gives everybody the same time. Whoever is still there when it is over is dealt with; one
    timer does for all."""

    def __init__(self, seconds: float, over: Callable[[Visitor], None]) -> None:
        self._seconds, self._over = seconds, over
        self._due: dict[Visitor, float] = {}
        """Whoever came first is first."""
        self._loop = asyncio.get_running_loop()
        self._armed = False

    def begin(self, visitor: Visitor) -> None:
        self._due[visitor] = self._loop.time() + self._seconds
        if not self._armed:
            self._arm(self._seconds)

    def end(self, visitor: Visitor) -> None:
        self._due.pop(visitor, None)

    def _arm(self, seconds: float) -> None:
        self._armed = True
        self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._armed = False
        now = self._loop.time()
        for visitor, due in list(self._due.items()):
            if due > now:
                self._arm(due - now)
                return
            self.end(visitor)
            self._over(visitor)


class Acceptor:
    """Accepts the connections of one listening socket. It is what an event loop's server is to
    uvicorn."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], Any],
        context: ssl.SSLContext | None,
        limits: Limits,
        tally: RefusalCounts,
    ) -> None:
        """`make` makes the protocol of one connection, which has a `visitor`."""
        self._listener, self._make, self._context = listener, make, context
        self._tally, self._seconds = tally, limits.handshake_seconds
        self._greeted = Deadlines(limits.handshake_seconds, self._drop)
        self._behind = networks(limits.behind)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(limits.connections, max(1, files - _OTHER_FILES))
        self._per_address = limits.per_address
        self._senders: dict[str, PeerAddress] = {}
        self._sizes: list[dict[PeerAddress, None]] = [{}]
        """Senders by the number of their connections."""
        self._count = 0
        self._greeting: dict[PeerAddress, deque[Visitor]] = {}
        self._pumping = False
        self._turn, self._begun = 0.0, 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._accept)
        self._knocking = select.poll()
        self._knocking.register(listener, select.POLLIN)
        # The silent have a selector of their own: for the event loop each of them would be as much
        # as a connection.
        self._silent = selectors.DefaultSelector()
        self._loop.add_reader(self._silent, self._hear_some)

    def crowds(self, visitor: Visitor) -> bool:
        """Whether it is one of too many, and not one of those that were there before."""
        return visitor.extra and self._count > self._most

    def close(self) -> None:
        """Accept nobody any more, and let go whoever has not asked for anything."""
        self._loop.remove_reader(self._listener)
        for sender in list(self._senders.values()):
            for visitor in [*sender.stages[SILENT], *sender.stages[GREETING]]:
                self._drop(visitor)
        self._loop.remove_reader(self._silent)
        self._silent.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    # --- letting in -------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except (ConnectionError, InterruptedError):
                continue
            except OSError:  # no descriptor or no memory just now: others must be served first
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE, self._go_on)
                return
            self._admit(sock, address[0])
            if not self._knocking.poll(0):  # to be told so by an error costs as much as all of this
                return

    def _go_on(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _admit(self, sock: socket.socket, host: str) -> None:
        name = neighbourhood(host)
        sender = self._senders.get(name) or PeerAddress(name, self._is_trusted(host))
        extra = not self._has_room(sender)
        if extra and (self._is_full(sender) or self._count >= self._most + _SPARE):
            self._tally.count("overload")
            sock.close()
            return
        sock.setblocking(False)
        visitor = Visitor(sock, sender, extra)
        self._resize(sender, 1)
        self._greeted.begin(visitor)
        self._silent.register(sock, selectors.EVENT_READ, visitor)

    def _has_room(self, sender: PeerAddress) -> bool:
        """Whether there is room for another one of this sender, where need be after a cut."""
        if self._is_full(sender):
            return self._evict_idle(sender)
        return self._count < self._most or self._make_room(sender)

    def _is_full(self, sender: PeerAddress) -> bool:
        return not sender.trusted and sender.count >= self._per_address

    def _is_trusted(self, host: str) -> bool:
        if not self._behind:
            return False
        return is_within(ipaddress.ip_address(host.partition("%")[0]), self._behind)

    # --- who has to go ----------------------------------------------------------------------------

    def _make_room(self, newcomer: PeerAddress) -> bool:
        """Cut one connection: an idle one of who has most, or else one that waits for its line, of
        somebody who has more than the newcomer. Who has less loses none, or those who have much
        could cut everyone's first steps."""
        largest = [sender for sender in self._largest() if sender.count >= newcomer.count]
        if any(self._evict_idle(sender) for sender in largest):
            return True
        more = (sender for sender in largest if sender.count > newcomer.count + 1)
        return any(self._evict_waiting(sender) for sender in more)

    def _largest(self) -> Iterator[PeerAddress]:
        """Some of the senders, those with most connections first."""
        looked = 0
        for size in range(len(self._sizes) - 1, 0, -1):
            for sender in self._sizes[size]:
                if not sender.trusted:
                    yield sender
                looked += 1
                if looked == _SENDERS_LOOKED_AT:
                    return

    def _evict_idle(self, sender: PeerAddress) -> bool:
        """The one that has been so for longest: a newcomer shall have time to say what it
        wants."""
        idle = [next(iter(stage)) for stage in sender.stages[:BUSY] if stage]
        if idle:
            self._drop(min(idle, key=lambda visitor: visitor.since))
        return bool(idle)

    def _evict_waiting(self, sender: PeerAddress) -> bool:
        for visitor in sender.stages[BUSY]:
            if visitor.protocol.waits_for_line:
                self._drop(visitor)
                return True
        return False

    def _drop(self, visitor: Visitor) -> None:
        stage = visitor.stage
        self.gone(visitor)
        if stage in (IDLE, BUSY):
            # Even while its greeting has one step to go: to cancel that would close the transport
            # without a word to the protocol, whose request would then wait for ever.
            visitor.protocol.transport.abort()
        elif visitor.task is not None:
            with contextlib.suppress(OSError):
                visitor.sock.shutdown(socket.SHUT_RDWR)
            # A task that is cancelled before its first step, or before a transport has taken the
            # socket over, would leave it open.
            visitor.task.add_done_callback(lambda _: _quietly_close(visitor.sock))
            visitor.task.cancel()
        else:
            if stage == SILENT:
                self._silent.unregister(visitor.sock)
            _quietly_close(visitor.sock)

    def gone(self, visitor: Visitor) -> None:
        """It is closed, or about to be."""
        if visitor.stage == _GONE:
            return
        sender = visitor.sender
        del sender.stages[visitor.stage][visitor]
        visitor.stage = _GONE
        self._greeted.end(visitor)
        self._resize(sender, -1)

    def _resize(self, sender: PeerAddress, by: int) -> None:
        """Senders are known as long as they have connections."""
        sizes = self._sizes
        sizes[sender.count].pop(sender, None)
        sender.count += by
        self._count += by
        if sender.count == len(sizes):
            sizes.append({})
        if sender.count:
            sizes[sender.count][sender] = None
            self._senders[sender.name] = sender
        else:
            del self._senders[sender.name]
        while len(sizes) > 1 and not sizes[-1]:
            sizes.pop()

    # --- beginning to talk ------------------------------------------------------------------------

    def _hear_some(self) -> None:
        for key, _ in self._silent.select(0):
            if key.data.stage == SILENT:
                self._hear(key.data)

    def _hear(self, visitor: Visitor) -> None:
        """Something has come of somebody silent."""
        try:
            begun = self._has_begun(visitor)
        except BlockingIOError:
            return
        except OSError:
            self._drop(visitor)
            return
        if not begun:
            return
        self._silent.unregister(visitor.sock)
        visitor.now(GREETING)
        if not self._greeting and self._has_turn():
            self._greet_soon(visitor)
        else:
            self._greeting.setdefault(visitor.sender, deque()).append(visitor)
            self._pump_soon()

    def _has_begun(self, visitor: Visitor) -> bool:
        """Whether the first record is here. Until then no memory is spent on TLS, and the system
        is asked to wake us no sooner."""
        sock = visitor.sock
        head = sock.recv(_FIRST_LOOK, socket.MSG_PEEK)
        if not head:
            raise ConnectionResetError
        if self._context is None or head[0] != _HANDSHAKE_RECORD:
            return True
        wanted, here = _RECORD_HEAD, len(head)
        if here >= _RECORD_HEAD:
            wanted += int.from_bytes(head[3:_RECORD_HEAD], "big")
            if wanted > _LONGEST_RECORD or here >= wanted:
                return True
            if here == _FIRST_LOOK and len(sock.recv(wanted, socket.MSG_PEEK)) == wanted:
                return True
        visitor.looks += 1
        if visitor.looks >= _LOOKS:
            return True
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        return False

    def _has_turn(self) -> bool:
        """Whether another handshake may begin in this turn of the event loop."""
        now = self._loop.time()
        self._begun = self._begun + 1 if now == self._turn else 1
        self._turn = now
        return self._begun <= _HANDSHAKES

    def _greet_soon(self, visitor: Visitor) -> None:
        visitor.task = self._loop.create_task(self._greet(visitor))

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Begin some handshakes, of one sender after the other."""
        self._pumping = False
        for _ in range(min(_HANDSHAKES, len(self._greeting))):
            sender = next(iter(self._greeting))
            waiting = self._greeting.pop(sender)
            visitor = waiting.popleft()
            if waiting:
                self._greeting[sender] = waiting
            if visitor.stage != _GONE:
                self._greet_soon(visitor)
        if self._greeting:
            self._pump_soon()

    async def _greet(self, visitor: Visitor) -> None:
        sock, secure = visitor.sock, self._context is not None
        protocol = self._make()
        visitor.protocol, protocol.visitor, protocol.door = protocol, visitor, self
        try:
            if visitor.looks:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds if secure else None,
            )
        except OSError:  # strangers and broken lines; those that matter are counted
            self.gone(visitor)
            _quietly_close(sock)
        finally:
            visitor.task = None
            self._greeted.end(visitor)


def _quietly_close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.close()
