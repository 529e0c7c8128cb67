"""The DRIFT thesis's parties, message by message: where the time of an epoch goes, and what the
orchestrator can guess. Needs the packages of the services, since messages are sealed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events, Ints, learn
from sottovoce.algorithms.drift.messages import Gradients, OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.drift import (
    Claim,
    ClaimOutcome,
    Cosine,
    cosine_claims,
    request_pairs,
    score_pairs,
)
from sottovoce.engines.silo_simulation import (
    PHASES,
    SEALINGS,
    SECURITY,
    Message,
    Party,
    Sealing,
    SiloSimulation,
)
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams
from sottovoce.wire.silo_rounds import gradients_bytes, request_bytes, rows_bytes
from sottovoce_papers.claims import Claim as Tested
from sottovoce_papers.claims import Row, Sets, Spec, StudyLine, chosen, claim, lines_of
from sottovoce_papers.drift import (
    DriftKind,
    component_of,
    models_of,
    owners_of,
    start_of,
    training_key,
)
from sottovoce_papers.lines import END, Job, Kind, TrainedLine, TrainedSystem

WARM = 500
"""Interactions that go through the parties before time is taken: they compile what is compiled."""


class DriftEpoch(NamedTuple):
    """A federation that stands before its first epoch, with some interactions."""

    settings: DRIFTConfig
    table: OwnerTable
    events: Events
    job: Job

    @classmethod
    def of(cls, job: Job) -> DriftEpoch:
        """The federation of a job; `events` is how many interactions count, 0 for all."""
        settings = component_of({**job.settings, "name": "drift"})
        if not isinstance(settings, DRIFTConfig):
            raise ConfigError("a system that has no data owners exchanges no messages")
        split = job.world.split(job.part, job.seed)
        events = Events.of(split.train, settings.positive_from, settings.order)
        return cls(settings, owners_of(job.world, split, job.settings), events, job)

    def first(self, n: int) -> Events:
        """The first n interactions; all of them if n is 0."""
        e, n = self.events, n or len(self.events)
        return Events(e.user[:n], e.item[:n], e.positive[:n], e.time[:n], e.order)

    def start(self) -> DriftModel:
        """The model before the epoch."""
        return start_of(self.job, self.settings.embedding_size)

    def simulation(self, sealing: Sealing, **more: Any) -> SiloSimulation:
        """The parties, in one process."""
        users, rng = range(self.job.split.train.n_users), Streams.from_seed(self.job.seed)
        return SiloSimulation(self.settings, self.table, users, rng, sealing, **more)


# --- Figure 6.3: the time of an epoch ------------------------------------------------------------


class EpochKind(Kind):
    """One epoch of DRIFT: by messages that are sealed in some way (`sealing`), or "compiled". What
    is kept is how long each phase took, and how many bytes were sent."""

    def key(self, job: Job) -> object:
        asked = job.settings["sealing"], job.settings["events"]
        return [training_key({**job.settings, "name": "drift"}), *asked]

    def train(self, job: Job) -> TrainedSystem:
        epoch, sealing = DriftEpoch.of(job), job.settings["sealing"]
        events, few, s = epoch.first(job.settings["events"]), epoch.first(WARM), epoch.settings
        if sealing in SEALINGS:
            epoch.simulation(sealing).epoch(few)
            simulation = epoch.simulation(sealing)
            cost, model = simulation.epoch(events), simulation.model
            facts = {
                "seconds": dict(cost.seconds),
                "updates": cost.updates,
                "bytes": dict(cost.bytes),
                "messages": dict(cost.messages),
            }
        elif sealing == "compiled":
            learn(epoch.start(), plan(few, epoch.table, s.theta, s.window), s.step())
            start = perf_counter()
            blocks = plan(events, epoch.table, s.theta, s.window)
            planned, model = perf_counter(), epoch.start()
            begun = perf_counter()
            learn(model, blocks, s.step())
            spent = {"blocks": planned - start, "gradients": perf_counter() - begun}
            facts = {"seconds": {**dict.fromkeys(PHASES, 0.0), **spent}, "updates": blocks.steps}
        else:
            raise ConfigError(f"sealing is one of {', '.join(SEALINGS)} or compiled")
        digest = hashlib.blake2b(model.users.tobytes() + model.items.tobytes()).hexdigest()
        counted = {**facts, "interactions": len(events), "model": digest}
        return TrainedSystem({END: job.unmeasured()}, counted)


def phases(line: TrainedLine) -> Row:
    """Seconds and shares of the phases of an epoch, and its bytes by kind of message."""
    facts = line.facts[0]
    counts = {name: facts[name] for name in ("interactions", "updates")}
    return {
        **_shares(facts["seconds"]),
        **counts,
        **facts.get("bytes", {}),
        "model": facts["model"],
    }


def _shares(spent: Mapping[str, float]) -> Row:
    total = sum(spent.values())
    sealing = spent["encryption"] + spent["decryption"]
    return {
        "seconds": total,
        **{f"{phase} s": spent[phase] for phase in PHASES},
        "security": sum(spent[phase] for phase in SECURITY) / total,
        "security later": sealing / (total - spent["keys"]),
        "encryption share": spent["encryption"] / total,
    }


def with_compiled(sets: Sets, values: Spec) -> list[StudyLine]:
    """The measured rows, the last of which learns in compiled loops with the sealing of the one
    before it: two measurements in one row."""
    *rest, sealed, fast = sets["main"]
    spent = {phase: sealed.facts[0]["seconds"][phase] for phase in SECURITY}
    row = {**fast.row, **_shares({**fast.facts[0]["seconds"], **spent})}
    return [*rest, sealed, StudyLine(row)]


def with_messages(sets: Sets, values: Spec) -> list[StudyLine]:
    """Bytes by kind of message, and how many messages there are."""
    *sealed, _ = sets["main"]
    return [*sealed, StudyLine({"system": "messages", **sealed[-1].facts[0]["messages"]})]


def one_model(sets: Sets, spec: Spec) -> list[Tested]:
    """Whether all ways give the same model."""
    same = len({line.row["model"] for line in lines_of(sets, spec)}) == 1
    return [claim(spec["text"], (same, "every row of users and items compared"))]


# --- Θ: what can be guessed ----------------------------------------------------------------------


class GuessesKind(Kind):
    """What the orchestrator can guess of DRIFT, and what an epoch costs: from the requests of a
    whole epoch, and from gradients of the first `events` interactions."""

    def key(self, job: Job) -> object:
        asked = job.settings["events"], job.settings["epochs"]
        return [training_key({**job.settings, "name": "drift"}), *asked]

    def train(self, job: Job) -> TrainedSystem:
        same = job._replace(settings={**job.settings, "name": "drift"})
        epoch, last = DriftEpoch.of(same), float(job.settings["epochs"])
        models, _ = models_of(same, [last], DriftKind().passes)
        requests = named_rows(blocks := plan(epoch.events, epoch.table, epoch.settings.theta))
        outcomes = {"request log": _request_log(epoch, requests)}
        for when, model in (("first epoch", epoch.start()), ("trained", models[last])):
            for attack, outcome in _cosine(epoch, model, job.settings["events"]).items():
                outcomes[f"{attack}, {when}"] = outcome
        facts = {
            "costs": _costs(blocks, requests, epoch.settings.embedding_size),
            "outcomes": {
                name: {**one.to_table(), "claims": one.claimed, "succeeds": one.succeeds}
                for name, one in outcomes.items()
            },
        }
        return TrainedSystem({END: job.unmeasured()}, facts)


class NamedRows(NamedTuple):
    """What an update's request names."""

    users: Ints
    items: Ints


def named_rows(blocks: Blocks) -> list[NamedRows]:
    """What the owner of each update asks for, as its `RowRequest` names it."""
    update = np.repeat(np.arange(blocks.steps), np.diff(blocks.updates))
    a, b, c, d = blocks.spans.T
    both = np.concatenate([_between(a, b), _between(c, d)])
    within = np.concatenate([np.repeat(update, b - a), np.repeat(update, d - c)])
    users = _by_update(update, blocks.user, blocks.steps)
    items = _by_update(within, blocks.entries[both].astype(np.int64), blocks.steps)
    return [NamedRows(u, i) for u, i in zip(users, items, strict=True)]


def _between(low: Ints, high: Ints) -> Ints:
    """low..high − 1 of each pair, one behind the other."""
    counts = high - low
    start = np.cumsum(counts) - counts
    places: Ints = np.arange(int(counts.sum())) + np.repeat(low - start, counts)
    return places


def _by_update(update: Ints, number: Ints, updates: int) -> list[Ints]:
    """The numbers of each update, ascending, each once."""
    several = int(number.max(initial=0)) + 1
    keys = np.unique(update * several + number)
    return np.split(keys % several, np.searchsorted(keys // several, np.arange(1, updates)))


def _costs(blocks: Blocks, requests: Sequence[NamedRows], size: int) -> dict[str, int]:
    counts = [(len(r.users), len(r.items)) for r in requests]
    asked = sum(request_bytes(*c) for c in counts)
    sent = sum(gradients_bytes(*c, size) for c in counts)
    a, b, c, d = blocks.spans.T
    printed = 3 * int(((b - a) * (d - c)).sum())
    envelopes = gradients_bytes(0, 0, 0) * blocks.steps
    down = sum(rows_bytes(*c, size) for c in counts)
    return {
        "updates": blocks.steps,
        "rows": sum(u + i for u, i in counts),
        "rows_paper": printed,
        "request bytes": asked,
        "gradients bytes": sent,
        "gradients bytes_paper": 4 * (1 + size) * printed + envelopes,
        "up": asked + sent,
        "down": down,
        "both ways": asked + sent + down,
    }


def _request_log(epoch: DriftEpoch, requests: Sequence[NamedRows]) -> ClaimOutcome:
    events, rng = epoch.events, Streams.from_seed(epoch.job.seed)
    truth = np.stack([events.user, events.item.astype(np.int64)], axis=1)
    return score_pairs(request_pairs(requests), truth, rng.child("request-log"))


def _cosine(epoch: DriftEpoch, model: DriftModel, events: int) -> dict[str, ClaimOutcome]:
    """Both versions of the attack, on gradients as they come while an epoch starts from a model."""
    attacks = [Cosine(named=True), Cosine(named=False)]
    simulation: SiloSimulation

    def watch(party: Party, message: Message) -> None:
        if party[0] != "orchestrator" or not isinstance(message, Gradients):
            return
        truth = block_claims(simulation, message.owner)
        for attack in attacks:
            step = epoch.settings.step()
            claims = cosine_claims(message, simulation.model, step, named=attack.named)
            attack.take(claims, truth, len(message.users))

    simulation = epoch.simulation("none", witness=watch, model=model)
    simulation.epoch(epoch.first(events))
    return {attack.outcome().attack: attack.outcome() for attack in attacks}


def block_claims(simulation: SiloSimulation, owner: int) -> list[Claim]:
    """What is true of the update that an owner has under way."""
    return [
        Claim(user, item, liked)
        for user, block in simulation.owners[owner].asked
        for liked, side in ((False, block.negatives), (True, block.positives))
        for item in side
    ]


def costs(line: TrainedLine) -> Row:
    """What an epoch costs."""
    found: Row = dict(line.facts[0].get("costs", {}))
    return found


def attacks(sets: Sets, values: Spec) -> list[StudyLine]:
    """A row for every attack at every Θ."""
    found = []
    for line in sets["costs"]:
        for name, one in line.facts[0]["outcomes"].items():
            words = {
                f"{what} 95": _words(one[key])
                for what, key in (("precision", "interval"), ("recall", "recall_interval"))
            }
            row = {"theta": line.row["theta"], **one, **words, "attack": name}
            found.append(StudyLine(row))
    return found


def _words(interval: Sequence[float]) -> str:
    low, high = interval
    return f"{low:.4f}–{high:.4f}"


def guessed(sets: Sets, spec: Spec) -> list[Tested]:
    """Whether attacks do no better than chance."""
    rows = [line.row for line in chosen(lines_of(sets, spec), spec["of"])]
    parts = [
        (
            not row["succeeds"],
            f"{row['value']:.2%} right, {row['recall']:.1%} found, "
            f"{row['base_rate']:.1%} by chance ({row['attack']})",
        )
        for row in rows
    ]
    return [claim(spec["text"], *parts)] if parts else []
