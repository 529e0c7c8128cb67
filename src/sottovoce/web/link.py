"""How `sottovoce console` asks a running server for a link.

The file that says where a server listens may be of one that is gone, and somebody else may listen
there by now. So both sides prove that they have the role's token, for this port, and neither shows
it: first the server, under a number that the asker has drawn, then the asker, under one that the
server has drawn when it started.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any
from urllib.parse import urlsplit

import httpx2

from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError
from sottovoce.stores.keys import Role, proof_by, read_token, role_token
from sottovoce.stores.server_folder import ServerFolder, start_command

SERVES, ASKS = "serves a console", "asks for a link"
"""What is proved."""
NONCE_BYTES = 32
_SECONDS = 10.0
_LONGEST = 1 << 16


def ask_for_link(folder: ServerFolder, role: Role, name: str) -> str:
    """A link that opens the console once, with this role, for somebody of this name. Raises with
    one sentence where there is none to be had."""
    running = folder.running()
    if running is None:
        raise UsageError(
            f"no server runs from {folder.path}; start it with `{start_command(folder.path)}`"
        )
    address = running.get("console")
    if not address:
        raise UsageError(
            "this server has no console, since it was started with --no-console or by an earlier "
            "release; start it anew"
        )
    token = read_token(role_token(folder.keys, role))
    nonce = secrets.token_hex(NONCE_BYTES)
    try:
        port = urlsplit(address).port or 0
        with httpx2.Client(base_url=address, timeout=_SECONDS, trust_env=False) as client:
            met = _ask(client, {"role": role, "nonce": nonce})
            theirs = str(met["nonce"])
            proof = proof_by(token, SERVES, port, role, nonce, theirs)
            if not hmac.compare_digest(proof.encode(), str(met["proof"]).encode()):
                raise KeyTrouble(
                    f"whoever listens at {address} does not have the token in {folder.keys} and "
                    f"was not told it; start the server of {folder.path} anew"
                )
            proof = proof_by(token, ASKS, port, role, name, nonce, theirs)
            asked = {"role": role, "nonce": nonce, "name": name, "proof": proof}
            return f"{address}/open?key={_ask(client, asked, proven=True)['key']}"
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unreachable(f"the console at {address} does not answer: {error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreachable(
            f"what listens at {address} is no console; start the server anew"
        ) from None


def _ask(client: httpx2.Client, asked: dict[str, str], *, proven: bool = False) -> dict[str, Any]:
    """What is answered; the words of a refusal are shown of nobody but the server."""
    with client.stream("POST", "/link", json=asked) as answer:
        content = bytearray()
        for part in answer.iter_bytes():
            content += part
            if len(content) > _LONGEST:
                raise ValueError("it says too much")
    found: dict[str, Any] = dict(json.loads(content))
    if answer.is_error:
        why = f"status {answer.status_code}"
        if proven:
            why = found.get("error", {}).get("values", {}).get("why", why)
        raise ServiceError(f"the console at {client.base_url} gave no link: {why}")
    return found
