"""What an operator says to a running server, from the machine that has the server's keys."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sottovoce.engines.https.keys import authority_pem, device_context, operator_token
from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError


class Operator:
    """Speaks with the server at `url`. `keys` has the authority to trust and the token."""

    def __init__(self, url: str, keys: Path, *, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a server; it begins with https://")
        self._url, self._timeout = url, timeout
        self._host, self._port = parts.hostname, parts.port
        self._token = operator_token(keys)
        self._context = device_context(authority_pem(keys)) if parts.scheme == "https" else None

    def status(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/operator/status")

    def raise_target(self, rounds: int) -> int:
        """Run at least so many rounds. How many will be run."""
        return int(self._ask("POST", "/v1/operator/target", {"rounds": rounds})["rounds"])

    def _ask(self, method: str, path: str, content: object = None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content)
        link: http.client.HTTPConnection
        if self._context is None:
            link = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        else:
            link = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context
            )
        try:
            link.request(method, path, body, {"Authorization": f"Bearer {self._token}"})
            answer = link.getresponse()
            text = answer.read()
        except ssl.SSLCertVerificationError as error:
            raise KeyTrouble(
                f"{self._url} does not show a certificate of this federation: "
                f"{error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no server answers at {self._url}: {error}") from None
        finally:
            link.close()
        if answer.status == 401:
            raise KeyTrouble(f"{self._url} does not know this operator token")
        try:
            found = json.loads(text)
        except ValueError:
            raise Unreachable(f"what answers at {self._url} is no server of ours") from None
        if answer.status != 200 or not isinstance(found, dict):
            detail = found.get("detail", "") if isinstance(found, dict) else ""
            raise ServiceError(f"{self._url} refused ({answer.status}): {detail}")
        return found
