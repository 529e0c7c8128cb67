"""What an operator asks a running server, with the operator's token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from sottovoce.engines.https.folder import ServerFolder
from sottovoce.engines.https.keys import authority_pem, device_context, operator_token
from sottovoce.engines.versions import decode_model
from sottovoce.errors import ServiceError, Unreachable
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
        return cls(
            url,
            httpx2.Client(
                base_url=url,
                verify=device_context(authority_pem(folder.keys)),
                headers={"authorization": f"Bearer {operator_token(folder.keys)}"},
                timeout=_SECONDS,
                trust_env=False,
            ),
        )

    def close(self) -> None:
        self._http.close()

    def status(self) -> Mapping[str, Any]:
        return dict(self._ask("GET", "/v1/operator/status").json())

    def raise_target(self, rounds: int) -> None:
        self._ask("POST", "/v1/operator/target", {"rounds": rounds})

    def model(self, round: int, terms: Terms) -> ModelView:
        """The published model, as every device can get it."""
        content = self._ask("GET", f"/v1/model/{round}").content
        return decode_model(content, n_items=terms.n_items, width=terms.width)

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        try:
            answer = self._http.request(
                method, path, json=content, headers={"accept-encoding": "identity"}
            )
        except httpx2.HTTPError as error:
            raise Unreachable(f"the server at {self.url} does not answer: {error}") from None
        if answer.is_error:
            raise ServiceError(
                f"the server at {self.url} refused {path} with status {answer.status_code}"
            )
        return answer
