"""What the operator of a data owner does to it, whether or not its service runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import httpx2

from sottovoce.engines.https.keys import authority_pem, device_context, operator_token
from sottovoce.engines.https.owner_folder import OwnerFolder
from sottovoce.engines.https.owner_service import (
    FORGET_PATH,
    ITEMS_PATH,
    STATUS_PATH,
    change_items,
    describe,
)
from sottovoce.errors import DataError, KeyTrouble, ServiceError, Unreachable
from sottovoce.parties.owner import DataOwner

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
