"""A made-up federation of gram for tests of the consent centre: its server answers over a real
socket and keeps every byte; the helper's key is real, and nobody needs to open what is sealed."""

import json
from pathlib import Path

import numpy as np
from fake_federation import Federation, refusal
from fake_server import Reply

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import init_helper
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.signing import open_envelope
from sottovoce.wire.terms import Terms

KINDS = ("Food", "Arts", "Outdoors")
ITEMS = 30
CATALOGUE = [(f"venue-{n}", f"The {KINDS[n % 3]} place {n}") for n in range(ITEMS)]
CATEGORIES = {"names": list(KINDS), "of": [[n % 3] for n in range(ITEMS)]}
HISTORY = [(f"venue-{n}", 1_760_000_000 + 86_400 * n) for n in range(0, 24, 2)]
"""Twelve places, four of each kind."""


def gram_terms(folder, epsilon=8.0, min_devices=5, name="town-g"):
    """With the key of a helper whose folder is made, if it is not there."""
    key = Path(folder) / "key"
    if not key.exists():
        made = init_helper(Path(folder) / "helper")
        key.write_text(made)
    link = SecureSum(
        min_devices=min_devices, url="https://127.0.0.1:1", key=key.read_text(), bits=64
    )
    config = GramConfig(embedding_size=8, popularity_share=0.3, least_head=8, most_head=12)
    return Terms(name, ITEMS, config, OwnEpsilon(epsilon=epsilon), link)


class GramTown(Federation):
    """Takes what devices send, and moves on when told to."""

    def __init__(self, terms, devices=1):
        super().__init__(rounds=2, devices=devices, terms=terms)
        self._round, self._items = 0, self.server.items

    @property
    def round(self):
        return getattr(self, "_round", 0)

    def honest(self, request):
        if request.path == "/v1/catalogue":
            content = {"items": CATALOGUE, "categories": CATEGORIES}
            return Reply(200, json.dumps(content).encode())
        return super().honest(request)

    def _model(self, round, query):
        from sottovoce.wire.versions import encode_model

        if round != self.round:
            return Reply(410, b'{"error": "gone"}')
        return Reply(200, encode_model(ModelView(round, self._items)), {"ETag": f'"{round}"'})

    def _accept(self, envelope):
        if envelope.round != self.round or self.state != "open":
            return refusal(410, "late")
        self.accepted[envelope.round, envelope.attempt, envelope.number] = envelope.body
        return Reply(204)

    def next_round(self):
        """The first sum is opened: some places are popular, and the head is known."""
        items = self._items.copy()
        items[:, 0] = np.linspace(1.0, 0.1, ITEMS)
        items[:10, 1] = 1.0
        self._items, self._round = items, self._round + 1

    def bodies(self, path="/v1/reports"):
        """What came at this address, byte for byte."""
        return [one.body for one in self.heard if one.method == "POST" and one.path == path]

    def serve(self, context=None):
        server = super().serve(context)
        self.heard = server.requests
        return server


def newcomer(path, federation, url, number=0, items=HISTORY):
    """A store as `device join` and `device import` leave it: she has chosen nothing."""
    with CohortStore.create(path, [(number, "me")]) as store:
        token = federation.tokens[number].hex()
        store.accept(Invitation(url, "", token, number, federation.terms.federation))
        names, times = zip(*items, strict=True)
        store.add_history(number, list(names), list(times))
    return path


def envelope_of(body):
    return open_envelope(body)
