"""The second of two shufflers; the first one and the server are played by tests."""

import contextlib
import secrets
from dataclasses import replace

from proxy_world import Server, proxy_terms

from sottovoce.core.links import LAYER_BYTES, Proxied
from sottovoce.stores.shuffler_folder import create_shuffler_folder, init_shuffler
from sottovoce.wire.sealing import SEALED_BYTES, seal_layer
from sottovoce.wire.shuffled import BatchPart, hop_info

SIZE = SEALED_BYTES + LAYER_BYTES
ACCEPTS = "cd" * 32
BEFORE = {"authorization": f"Bearer {ACCEPTS}"}


@contextlib.contextmanager
def second_of(path, minimum=(3, 2), **options):
    """A server, and the folder of a shuffler behind another one."""
    hop = init_shuffler(path / "second", "https://127.0.0.1:2")
    link = Proxied("https://127.0.0.1:1", "PEM", (hop,))
    with Server(terms=replace(proxy_terms(minimum=minimum), link=link), **options) as server:
        told = replace(server.introduction(), hop=1, accepts=ACCEPTS)
        yield server, create_shuffler_folder(path / "second", told)


def layered(server, inner, tier=0, **changes):
    """Records as the first shuffler has them; `inner` is what was sealed to the server."""
    public = server.terms.link.chain[0].public()
    place = {"round": server.round, "tier": tier, **changes}
    info = hop_info(server.terms, server.key, 1, **place)
    return seal_layer(b"".join(inner), SEALED_BYTES, public, info)


def random_records(number):
    """Nobody can tell them from sealed ones."""
    return [secrets.token_bytes(SEALED_BYTES) for _ in range(number)]


def parts(server, sealed, devices, *, many=1, tier=0, mark=None, **changes):
    total, mark = len(sealed) // SIZE, mark or secrets.token_bytes(16)
    cuts = [SIZE * (total * n // many) for n in range(many + 1)]
    return [
        BatchPart(**{
            "round": server.round, "tier": tier, "key": server.key, "devices": devices, "part": n,
            "parts": many, "mark": mark, "body": sealed[cuts[n] : cuts[n + 1]], "size": SIZE,
            **changes,
        })
        for n in range(many)
    ]  # fmt: skip
