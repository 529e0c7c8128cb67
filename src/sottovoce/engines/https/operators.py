"""What an operator asks a running server, with the operator's token."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from sottovoce.engines.https.client import loopback
from sottovoce.engines.https.folder import ServerFolder
from sottovoce.engines.https.keys import CA_CERTIFICATE, OPERATOR_TOKEN, device_context
from sottovoce.engines.versions import decode_model
from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError
from sottovoce.messages import ModelView
from sottovoce.terms import Terms

_SECONDS = 30.0


@dataclass(slots=True, repr=False)
class Operator:
    """A connection that is kept open; `close` it."""

    url: str
    _http: httpx2.Client

    @classmethod
    def of(cls, folder: ServerFolder, url: str) -> Operator:
        """With the keys of the server's own folder."""
        return cls.at(url, folder.keys / CA_CERTIFICATE, folder.keys / OPERATOR_TOKEN)

    @classmethod
    def at(cls, url: str, ca: Path | None, token: Path) -> Operator:
        """With the authority's certificate and the operator's token, as files. Plain HTTP, on this
        machine only, needs no certificate."""
        plaintext = url.startswith("http://")
        if plaintext and not loopback(url):
            raise UsageError(f"{url} is not encrypted, and the token is a secret; use https://")
        if ca is None and not plaintext:
            raise UsageError(f"{url} needs the certificate of the federation's authority, ca.crt")
        secret = _read(token)
        if token.stat().st_mode & 0o077:
            raise KeyTrouble(f"{token} may be read by others; run `chmod 600 {token}`")
        trusted = False if ca is None else _context(ca)
        http = httpx2.Client(
            base_url=url,
            verify=trusted,
            headers={"authorization": f"Bearer {secret.strip()}"},
            timeout=_SECONDS,
            trust_env=False,
        )
        return cls(url, http)

    def close(self) -> None:
        self._http.close()

    def status(self) -> Mapping[str, Any]:
        try:
            return dict(self._ask("GET", "/v1/operator/status").json())
        except (ValueError, TypeError):
            raise ServiceError(f"what answers at {self.url} is no server of Sottovoce") from None

    def raise_target(self, rounds: int) -> None:
        self._ask("POST", "/v1/operator/target", {"rounds": rounds})

    def model(self, round: int, terms: Terms) -> ModelView:
        """The published model, as every device can get it."""
        content = self._ask("GET", f"/v1/model/{round}").content
        return decode_model(content, n_items=terms.n_rows, width=terms.width)

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        try:
            answer = self._http.request(
                method, path, json=content, headers={"accept-encoding": "identity"}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(f"the server at {self.url} does not answer: {error}") from None
        if answer.status_code == 401:
            raise KeyTrouble(f"the token is not that of the operator of {self.url}")
        if answer.is_error:
            raise ServiceError(
                f"the server at {self.url} refused {path} with status {answer.status_code}"
            )
        return answer


def _context(ca: Path) -> ssl.SSLContext:
    authority = _read(ca)
    try:
        return device_context(authority)
    except KeyTrouble:
        raise KeyTrouble(f"{ca} is no certificate; take the federation's ca.crt") from None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise KeyTrouble(f"{path} cannot be read: {error.strerror}") from None
