"""A data owner's process: it takes users' messages over HTTPS, and takes part in the orchestrator's
rounds as a Flower node; both on the same store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx2

from sottovoce.errors import (
    DataError,
    KeyTrouble,
    ServiceError,
    Unreachable,
    UsageError,
)
from sottovoce.services.kit.serving import Beside, Process, is_loopback, listen, logger, tls_of
from sottovoce.services.owner import (
    FORGET_PATH,
    ITEMS_PATH,
    STATUS_PATH,
    OwnerLimits,
    OwnerService,
    change_items,
    describe,
)
from sottovoce.stores.keys import authority_pem, device_context, operator_token
from sottovoce.stores.owner import DataOwner
from sottovoce.stores.owner_folder import OwnerFolder, open_owner_folder
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.silo_files import Admission

# What the operator of a data owner does to it, whether or not its service runs.

_SECONDS = 30.0


class Desk(Protocol):
    def status(self) -> Mapping[str, Any]:
        """Names and counts."""

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        """How many items the owner holds afterwards."""

    def forget(self, user: int) -> None:
        """Nothing of this user remains."""


@contextlib.contextmanager
def desk(folder: OwnerFolder) -> Iterator[Desk]:
    """Through the service where one runs from this folder, else on the store itself."""
    running = folder.running()
    if running is not None:
        with _Service(folder, str(running.get("url"))) as service:
            if service.answers():
                yield service
                return
    with contextlib.closing(folder.owner()) as owner:
        yield _Store(owner)


class _Store:
    def __init__(self, owner: DataOwner) -> None:
        self._owner = owner

    def status(self) -> Mapping[str, Any]:
        return {**describe(self._owner), "node": "none", "running": False}

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        return change_items(self._owner, add, withdraw)

    def forget(self, user: int) -> None:
        self._owner.forget(user)


class _Service:
    def __init__(self, folder: OwnerFolder, url: str) -> None:
        self._url = url
        secure = url.startswith("https://")
        self._http = httpx2.Client(
            base_url=url,
            verify=device_context(authority_pem(folder.keys)) if secure else False,
            headers={"authorization": f"Bearer {operator_token(folder.keys)}"},
            timeout=_SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> _Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def answers(self) -> bool:
        """A killed service leaves word of itself behind."""
        try:
            self._ask("GET", "/health")
        except Unreachable:
            return False
        return True

    def status(self) -> Mapping[str, Any]:
        return {**self._ask("GET", STATUS_PATH).json(), "running": True}

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        content = {"add": list(add), "withdraw": list(withdraw)}
        return int(self._ask("POST", ITEMS_PATH, content).json()["items"])

    def forget(self, user: int) -> None:
        self._ask("POST", FORGET_PATH, {"user": user})

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, json=content)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(f"the data owner at {self._url} does not answer: {error}") from None
        if answer.status_code == 401:
            raise KeyTrouble(f"the token in this folder is not that of the service at {self._url}")
        if answer.is_error:
            try:
                detail = str(answer.json()["detail"])
            except (ValueError, KeyError, TypeError):
                detail = f"the data owner at {self._url} answered with {answer.status_code}"
            raise (DataError if answer.status_code == 400 else ServiceError)(detail)
        return answer


_SWITCH = 0.0005


class Node(Protocol):
    """The owner's part in the orchestrator's rounds, in a thread of its own."""

    @property
    def state(self) -> str:
        """One word, or what stands in the way."""

    def start(self, died: Callable[[], None]) -> None: ...

    def stop(self) -> None: ...


def run_owner(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8445,
    *,
    plaintext: bool = False,
    join: Callable[[OwnerFolder, Admission, DataOwner, Any], Node] | None = None,
    limits: OwnerLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the data owner in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where the service listens is in the ready file, and
    `ready` is told. `join` makes its part in the orchestrator's rounds; without it only users are
    served. Raises with one sentence if it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_owner_folder(path)
    limits = limits or OwnerLimits()
    tally = RefusalCounts()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(contextlib.closing(folder.owner()))
        listener = stack.enter_context(listen(host, port))
        log = logger()
        admission = None if join is None else folder.admission()
        node = None if join is None or admission is None else join(folder, admission, owner, log)
        if node is None:
            log.info("serving users only, without the orchestrator")
        process = Process("the data owner", folder, listener, context, tally, log)

        def service() -> OwnerService:
            return OwnerService(
                owner,
                token,
                tally,
                limits,
                node=lambda: "none" if node is None else node.state,
                failed=lambda error: log.error("not stored", detail=str(error)),
                died=process.fail,
            )

        beside = [] if node is None else [Beside(node.start, node.stop)]
        # Requests must not wait long for the threads that write and take part in rounds.
        sys.setswitchinterval(_SWITCH)
        process.run(service, limits, beside, ready)
