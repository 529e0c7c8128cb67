"""What every target of the fuzzer does alike: it makes inputs from bytes, sends them, and says what
must hold."""

import contextlib
import itertools
import json
import time

from fuzz_choices import Choices
from fuzz_http import Connections, Request, address_of, call, changed, failures, written
from fuzz_watch import Trouble

GET, POST = "GET", "POST"
_REASONS = ("has just started", "has not heard from the server yet")
"""What may be answered with 503 to somebody who is alone: a service that has just begun."""


_BELOW = {"/v1/rounds/": "*/selected"}
"""What is asked for below an address, if it is more than a number."""


def addresses(service):
    """Method and path of everything at which the service answers, from its own tables. A star
    stands for what the path leaves open."""
    return [
        (method, path + _BELOW.get(path, "*") if path.endswith("/") else path)
        for path, (method, _) in service._routes.items()
    ]


class ServiceTarget:
    """A service with real state. A subclass says how it is set up (`opened`, which enters contexts
    into the stack and returns the application) and has a maker for each address that takes more
    than a plain request: `makers`, by address, each called with choices."""

    name = ""
    deep = True
    """Whether requests are also sent as bytes on a connection."""

    def __init__(self, path):
        self._stack = contextlib.ExitStack()
        self.makers, self.expected, self.statuses = {}, {}, {}
        self.acknowledged = 0
        self.sending, self.answered = None, 0
        """The input on its way, and how many requests the last one was."""
        try:
            self.app = self.opened(path, self._stack)
            self.addresses = addresses(self.app.service)
            # Most of what can go wrong does where something is sent.
            self._weighted = [a for a in self.addresses for _ in range(3 if a[0] == POST else 1)]
            self._connections = Connections(self.app.service)
        except BaseException:
            self._stack.close()
            raise

    def opened(self, path, stack):
        raise NotImplementedError

    def close(self):
        self._stack.close()

    # --- for subclasses ---------------------------------------------------------------------------

    def token(self, address):
        """What whoever may ask at this address bears."""
        return ""

    def heard(self, answer):
        """Learn from an answer."""

    def tick(self):
        """Now and then: let time go on."""

    def check(self):
        """Raises where something does not hold that must, whatever has come in."""

    def honest(self):
        """Raises where somebody honest is not served."""

    def log(self):
        """Errors that the service has logged."""
        return []

    # --- inputs -----------------------------------------------------------------------------------

    def good(self, address, choices=None):
        """A request that should be answered well, unless the choices want it otherwise."""
        choices = choices or Choices(b"")
        make = self.makers.get(address)
        made = make(choices) if make else b""
        path = address_of(address[1], choices, self.number(address))
        request = made if isinstance(made, Request) else Request(address[0], path, made)
        token = self.token(address)
        if token and not choices.chance(8):
            request.headers.append((b"authorization", f"Bearer {token}".encode()))
        return request

    def number(self, address):
        """What stands for the star of an address."""
        return "0"

    def send(self, data):
        """Make an input of these bytes and send it."""
        choices = Choices(data)
        address = choices.pick(self._weighted)
        way, altered = choices.below(4), choices.chance(3)
        request = self.good(address, choices)
        if altered:
            changed(request, choices, self.addresses)
        if way == 3 and self.deep:
            content = written(request, choices)
            cuts = sorted(choices.below(len(content) + 1) for _ in range(choices.below(3)))
            edges = [0, *cuts, len(content)]
            self.sending = content
            pieces = [content[a:b] for a, b in itertools.pairwise(edges)]
            self._send_bytes(address, pieces)
        else:
            self.sending = request
            self._call(address, request)

    def send_good(self, address):
        """As somebody honest would; the answer."""
        self._call(address, self.good(address))
        return self.last

    def _call(self, address, request):
        self.app.service.heard.clear()
        with contextlib.suppress(Exception):  # what escapes has been noted
            self.app.run(call(self.app.service, request))
        self._judge(address, 1)

    def _send_bytes(self, address, pieces):
        self.app.service.heard.clear()
        said = self.app.run(self._connections.send(pieces))
        self._judge(address, None)
        if b"500" in failures(said):
            raise Trouble("500 on a connection", said[:300].decode("latin-1"))

    # --- answers ----------------------------------------------------------------------------------

    def _judge(self, address, expected):
        service = self.app.service
        answers, service.heard = service.heard, []
        troubles, service.troubles = service.troubles, []
        self.answered = len(answers)
        if troubles:
            raise troubles[0]
        if expected is not None and len(answers) != expected:
            raise Trouble("no answer", "the service did not answer")
        for answer in answers:
            self.last = answer
            counts = self.statuses.setdefault(address, {})
            counts[answer.status] = counts.get(answer.status, 0) + 1
            self.heard(answer)
        for answer in answers:
            if answer.starts != 1 or (not answer.complete and expected):
                raise Trouble("broken answer", f"{answer.path[:60]}: {answer}")
            if answer.status >= 500 and not self._may_be_late(answer):
                raise Trouble(f"{answer.status} at {address}", answer.body[:300].decode("latin-1"))

    def _may_be_late(self, answer):
        said = answer.body.decode("latin-1")
        return answer.status == 503 and any(reason in said for reason in _REASONS)

    def reach(self):
        """Each address answers a good request well, or as is expected of it. Raises where one does
        not: then the fuzzer does not know what it takes."""
        for address in self.addresses:
            end = time.monotonic() + 600
            while self._may_be_late(answer := self.send_good(address)) and time.monotonic() < end:
                time.sleep(0.05)
            wanted = self.expected.get(address, (200, 204, 206))
            if answer.status not in wanted:
                said = answer.body[:300].decode("latin-1")
                raise Trouble(
                    "not reached",
                    f"{self.name}: a good request to {address} gets {answer.status} {said}; teach "
                    "the fuzzer in tests/fuzz what this address takes",
                )


def table(answer):
    return json.loads(answer.body)
