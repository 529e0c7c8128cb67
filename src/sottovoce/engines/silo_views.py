"""What each party of a federation of data owners saw, as views that the attack suite works on.

What left is delivered again, message by message (`drift.replay.deliver`), and everything is written
down where it arrives. Nothing is sealed here; the network's view has what TLS leaves open: who, to
whom, how long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sottovoce.algorithms.drift.aggregated import AggregatingOwner, owner_of
from sottovoce.algorithms.drift.blocks import DriftModel, Events, Ints, first_rows
from sottovoce.algorithms.drift.messages import Gradients, Interaction, RowRequest, Rows
from sottovoce.algorithms.drift.replay import deliver
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.attacks.drift import DriftTruth
from sottovoce.attacks.views import Party, SeenRound, TlsPacket, View
from sottovoce.config import require_whole
from sottovoce.core.redacted import Redacted
from sottovoce.engines.silo import SiloWorld
from sottovoce.parties.silo_door import SEALED_BYTES
from sottovoce.rng import Streams
from sottovoce.wire.silo_rounds import gradients_bytes, request_bytes, rows_bytes

RECORD_BYTES = 22
"""What TLS adds to a message."""
SESSION_BYTES = 16
"""A session's name, in front of an interaction."""
ORCHESTRATOR = -1
"""As the sender of a packet; owner k is −2 − k, users have their numbers."""
PRINTED_EVENTS = 20_000
"""Interactions that are replayed as printed, unless told otherwise: each of their many updates is
attacked by itself."""

OwnerKind = Callable[[int, Iterable[int], DRIFTConfig, Streams], Owner]


def silo_views(
    world: SiloWorld,
    model: DriftModel | None = None,
    *,
    rounds: int = 1,
    events: int | None = None,
    owner: int | None = None,
    kind: OwnerKind = owner_of,
) -> tuple[dict[str, View], dict[str, Any]]:
    """The views "orchestrator", "owner" and "network" of a replay of the first `rounds`, which are
    epochs, and of the first `events` interactions of each: all of them with release = "aggregated",
    otherwise PRINTED_EVENTS. `owner` is whose view is taken; by default the one that most refuse.
    `model` is what the run ended with; by default what the replay does.

    Beside them what `Truth.own` has to hold: "drift", a `DriftTruth`, and "refused", who refuses
    which owner ([users, owners], or None). `kind` makes the owners; a broken one is for controls.
    """
    require_whole("rounds", rounds, 1)
    if events is None and not world.config.sums_over_people:
        events = PRINTED_EVENTS
    part, refused = world.departed.first(events), world.door.refused
    if owner is None:
        owner = 0 if refused is None else int(refused.sum(axis=0).argmax())
    tape = _Tape(world, kind, owner)
    seen: dict[str, list[SeenRound]] = defaultdict(list)
    for epoch in range(1, rounds + 1):
        deliver(part.events, part.messages(), tape.owners, tape.orchestrator, world.config.window)
        since = tape.cut()
        for name, party in _parties(owner).items():
            seen[name].append(SeenRound(epoch, tuple(since.get(party, ()))))
    views: dict[str, View] = {
        name: tape.view(name, seen[name], owner, model) for name in _parties(owner)
    }
    return views, {"drift": tape.truth(part.events), "refused": refused}


def _parties(owner: int) -> dict[Party, tuple[str, int]]:
    return {"orchestrator": ("orchestrator", 0), "owner": ("owner", owner), "network": ("net", 0)}


class _Tape(Redacted):
    """The parties, and what each of them sees."""

    def __init__(self, world: SiloWorld, kind: OwnerKind, watched: int) -> None:
        config, table = world.config, world.table
        self._world, self._messages, self._watched = world, 0, watched
        self._seen: dict[tuple[str, int], list[object]] = defaultdict(list)
        self._touched: list[tuple[int, int, int, bool]] = []
        self._behind: list[tuple[int, int, int]] = []
        self._talking: dict[int, set[int]] = defaultdict(set)
        self._lines: list[Ints] = []
        self.orchestrator = Orchestrator(config, world.root)
        self.there: Ints = np.unique(world.departed.events.user)
        there = self.there.tolist()
        for number in table.all_owners():
            self.orchestrator.add_items(number, table.items(number))
        for user in () if config.sums_over_people else there:
            self.orchestrator.join_user(user)
        self.start = self.orchestrator.model
        self.owners: dict[int, Owner] = {}
        for number in table.all_owners():
            draws = of_owner(world.root, number)
            owner = kind(number, table.items(number), config, draws)
            for user in there:
                owner.admit(user)
            self._listen(owner)
            self.owners[number] = owner
        self._answer()

    def cut(self) -> dict[tuple[str, int], list[object]]:
        """What was seen since the last time."""
        seen, self._seen = self._seen, defaultdict(list)
        return seen

    def _packet(self, sender: int, receiver: str, size: int) -> None:
        self._seen["net", 0].append(TlsPacket(sender, receiver, size + RECORD_BYTES))

    def _listen(self, owner: Owner) -> None:
        """Writes down what an owner gets and sends."""
        receive, request, gradients = owner.receive, owner.request, owner.gradients
        size, watched = self._world.config.embedding_size, owner.number == self._watched
        address, sender = f"owner {owner.number}", ORCHESTRATOR - 1 - owner.number

        def seen_receive(interaction: Interaction) -> bool:
            if watched:
                self._seen["owner", owner.number].append(interaction)
            self._packet(interaction.user, address, SESSION_BYTES + SEALED_BYTES)
            self._talking[owner.number].add(interaction.user)
            return receive(interaction)

        def seen_request() -> RowRequest | None:
            found = request()
            if found is not None:
                self._seen["orchestrator", 0].append(found)
                length = request_bytes(len(found.users), len(found.items))
                self._packet(sender, "orchestrator", length)
            return found

        def seen_gradients(rows: Rows) -> Gradients | None:
            if watched:
                self._seen["owner", owner.number].append(rows)
            length = rows_bytes(len(rows.users), len(rows.items), size)
            self._packet(ORCHESTRATOR, address, length)
            behind = _people(owner)
            found = gradients(rows)
            if found is not None:
                self._seen["orchestrator", 0].append(found)
                length = gradients_bytes(len(found.users), len(found.items), size)
                self._packet(sender, "orchestrator", length)
                self._note(owner, found, behind)
            return found

        owner.receive = seen_receive  # type: ignore[method-assign]
        owner.request = seen_request  # type: ignore[method-assign]
        owner.gradients = seen_gradients  # type: ignore[method-assign]

    def _answer(self) -> None:
        answer = self.orchestrator.answer

        def seen_answer(request: RowRequest) -> Rows:
            rows = answer(request)
            self._seen["orchestrator", 0].append(rows)
            return rows

        self.orchestrator.answer = seen_answer  # type: ignore[method-assign]

    def _note(self, owner: Owner, sent: Gradients, behind: dict[int, set[int]]) -> None:
        for user, block in owner.asked:
            for liked, side in ((False, block.negatives), (True, block.positives)):
                self._touched += [(self._messages, user, item, liked) for item in side]
        for item in sent.items[sent.item_rows.any(axis=1)].tolist():
            self._behind.append((self._messages, item, len(behind.get(item, ()))))
        self._lines.append(np.array(sorted(self._talking.pop(owner.number, ())), dtype=np.int64))
        self._messages += 1

    def view(
        self, party: Party, rounds: list[SeenRound], owner: int, model: DriftModel | None
    ) -> View:
        world = self._world
        model = model or self.orchestrator.model
        own: dict[str, Any] = {"table": world.table}
        if party == "owner":
            own |= {"owner": owner, "users": self.there}
        if party == "orchestrator":
            # The lines are the network's: for one who watches both.
            own |= {"model": self.start, "users": self.there, "lines": tuple(self._lines)}
            if world.config.sums_over_people:
                # It may draw what it would have started users with, had it been asked to.
                size = world.config.embedding_size
                everybody, spread = range(world.n_users), world.config.spread
                own["first_users"] = first_rows("users", everybody, size, world.root, spread)
        return View(
            party=party, rounds=tuple(rounds), algorithm=world.config,
            release=world.config.release, link=None, n_items=len(world.catalogue),
            final=model.items, own=own,
        )  # fmt: skip

    def truth(self, part: Events) -> DriftTruth:
        touched = np.array(self._touched, dtype=np.int64).reshape(-1, 4)
        behind: Ints = np.array(self._behind, dtype=np.int64).reshape(-1, 3)
        return DriftTruth(
            touched[:, 0], touched[:, 1], touched[:, 2], touched[:, 3] > 0, behind,
            np.unique(part.user), self._world.n_users,
        )  # fmt: skip


def _people(owner: Owner) -> dict[int, set[int]]:
    """Return the users whose gradients would be in each item's row."""
    kept = owner.waiting_people() if isinstance(owner, AggregatingOwner) else {}
    found = {item: set(people) for item, people in kept.items()}
    for user, block in owner.asked:
        for item in block.negatives + block.positives:  # what was drawn is nobody's
            found.setdefault(item, set()).add(user)
    return found
