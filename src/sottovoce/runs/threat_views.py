"""What each party saw of a run, and what was so.

What parties saw is read from the run's transcript. Without one the first rounds are enacted again
from the experiment in the manifest, which gives the same messages, since every draw is keyed and
all engines agree; the final model and the devices' vectors are those of the run's folder.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

import sottovoce
from sottovoce.algorithms.base import Contributing, Schedule
from sottovoce.algorithms.drift.blocks import DriftModel
from sottovoce.attacks.drift import DriftTruth
from sottovoce.attacks.pairs import drawn_positives
from sottovoce.attacks.suite.a05_linkage import Mixed
from sottovoce.attacks.suite.a12_known_others import Contributed
from sottovoce.attacks.suite.a12_shadows import Again
from sottovoce.attacks.suite.a13_draws import TOLD_DEVICES, TOLD_ROUNDS, told_words
from sottovoce.attacks.suite.a15_changed_minds import MindsSeen, MindsTruth
from sottovoce.attacks.views import Truth, View
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import SEALED_SEED_BYTES, Link
from sottovoce.core.messages import Batch, BitReports, DeviceReports, MaskSeeds, ModelView
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.core.redacted import Redacted
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import MessageObserver, Periodically, Report
from sottovoce.engines.silo import SiloWorld
from sottovoce.engines.silo_views import silo_views
from sottovoce.engines.transcripts import (
    Recorder,
    SeenMessages,
    network_of,
    read_transcript,
    seen_by,
)
from sottovoce.errors import RunError, UsageError
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.device import cut_profile
from sottovoce.parties.shuffler import Seeds, Shuffler, shuffled
from sottovoce.privacy.base import Release
from sottovoce.privacy.own_epsilon import auc_permitted
from sottovoce.privacy.reports import SEALED_BYTES
from sottovoce.rng import Streams
from sottovoce.runs.card import CardSetting
from sottovoce.runs.devices import federation_of
from sottovoce.runs.federation import Federation, MindsChanged
from sottovoce.runs.minds import KeptChange, kept_changes
from sottovoce.runs.owners import build_world
from sottovoce.runs.read import FinishedRun

if TYPE_CHECKING:
    import pyarrow as pa


# --- what a report card says of the run that was attacked ----------------------------------------


def facts_of(experiment: Experiment, dataset: Dataset, train: Interactions) -> dict[str, str]:
    """Which system on which data, what leaves by which way, and what people chose."""
    choices = experiment.consent.words(owners=experiment.silo is not None)
    release, link = experiment.release, experiment.link
    return {
        "experiment": experiment.name,
        "system": experiment.system,
        "data": f"{dataset.name}: {train.n_users:,} users, {train.n_items:,} items, "
        f"{train.n_interactions:,} training interactions{_cut(experiment)}",
        "what leaves": "interactions, sealed to the data owners of their item"
        if release is None
        else release.card(),
        "its way": "to data owners, and from them to an orchestrator"
        if link is None
        else link.describe(),
        "choices": "; ".join(" ".join(one.split()) for one in choices),
    }


def _cut(experiment: Experiment) -> str:
    least = experiment.data.min_item_users
    return f"; items that fewer than {least:,} users have are left out" if least else ""


def setting_of(experiment: Experiment) -> CardSetting:
    """What people relied on."""
    release, link = experiment.release, experiment.link
    there = (*(link.remedies if link is not None else ()), *experiment.algorithm.remedies)
    if release is None:
        return CardSetting("That interactions are sealed on their way", there)
    return CardSetting(release.relied_on(experiment.consent.choices), there)


# --- which rounds attacks look at ----------------------------------------------------------------

MOST_MODEL_BYTES = 1 << 30
"""Of published models that are kept in memory, over all rounds."""
OFTEN, SELDOM = 20, 3
"""How many times each device is seen, about."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The rounds that are looked at."""

    whole: int
    """Of the first of them every message."""
    sums: tuple[int, ...] = ()
    """Of these the sum that the server opens, and the models before and after it."""

    @property
    def models(self) -> frozenset[int]:
        """Rounds behind the first ones whose models are looked at."""
        after = {n for round in self.sums for n in (round, round + 1)}
        return frozenset(after | ({self.whole} if self.sums else set()))

    @property
    def count(self) -> int:
        return self.whole + len(self.sums)

    @property
    def end(self) -> int:
        """The round after the last of them."""
        return self.sums[-1] + 1 if self.sums else self.whole

    def describe(self, rounds: int) -> str:
        if not self.sums:
            return f"{self.whole:,} of {rounds:,} rounds"
        return (
            f"{self.whole:,} of {rounds:,} rounds, and the sums and models of {len(self.sums):,} "
            "more, spread to the last"
        )


def watched(
    release: Release,
    link: Link,
    plan: Schedule,
    model_bytes: int,
    rounds: int | None = None,
    *,
    enough: int | None = None,
) -> Watched:
    """So many `rounds`; or what would be `enough`, as far as memory holds it. By default as many as
    it takes to see each device `OFTEN` times; `SELDOM` times where whole tables are sent, which
    tell everything at once.

    Masked updates are large and look like noise. So behind a secure sum devices are seen `SELDOM`
    times. Of as many rounds as are left the sums are looked at: half of all are the first ones, in
    which vectors are read best, and half are spread over the rest of the run, to its end."""
    summed = link.adds_up is not None
    often = summed or release.reporting is not None or (plan.triples > 0 and plan.cohort_size > 1)
    count = rounds or enough or _sightings(plan, OFTEN if often else SELDOM)
    room = MOST_MODEL_BYTES // max(1, model_bytes * (2 if summed else 1))
    count = max(1, min(plan.rounds, count, room if rounds is None else count))
    if not summed:
        return Watched(count)
    whole = min(count, _sightings(plan, SELDOM))
    first = max(whole, count // 2)
    spread = np.linspace(first, plan.rounds - 1, count - first).round().astype(int)
    return Watched(whole, (*range(whole, first), *np.unique(spread).tolist()))


def _sightings(plan: Schedule, times: int) -> int:
    """Rounds in which each device is seen so many times, about."""
    return max(1, -(-times * plan.devices // max(1, plan.cohort_size)))


class Only:
    """Passes on what of some rounds is looked at: sums, and models."""

    def __init__(self, look: Watched, message_observers: list[MessageObserver]) -> None:
        self._sums, self._models = frozenset(look.sums), look.models
        self._observers = message_observers

    def on_message(self, party: str, message: object) -> None:
        wanted = self._models if isinstance(message, ModelView) else self._sums
        if message.round in wanted:  # type: ignore[attr-defined]
            for observer in self._observers:
                observer.on_message(party, message)


# --- what parties saw, and what was so -----------------------------------------------------------

MOST_NUMBERS = 1 << 27
"""Of plain updates that are kept in memory, over all rounds; 8 bytes each."""


@dataclass(frozen=True, slots=True, repr=False)
class ThreatViews(Redacted):
    """What parties saw of a run, and what was so."""

    views: Mapping[str, View]
    truth: Truth
    facts: Mapping[str, str]
    setting: CardSetting
    notes: tuple[str, ...] = ()
    looked: int = 0
    """Rounds that were looked at."""
    rounds: int = 0
    """Rounds that there are."""


def _threat(
    prepared: PreparedExperiment,
    views: Mapping[str, View],
    truth: Truth,
    more: Mapping[str, str],
    notes: list[str],
    counted: tuple[int, int],
) -> ThreatViews:
    """`counted` are the rounds that were looked at, and those that there are."""
    facts = facts_of(prepared.experiment, prepared.dataset, prepared.split.train)
    setting = setting_of(prepared.experiment)
    return ThreatViews(views, truth, {**facts, **more}, setting, tuple(notes), *counted)


# --- what was seen -------------------------------------------------------------------------------


def views_of(folder: Path, rounds: int | None = None) -> dict[str, View]:
    """What each party of a finished run saw, by its transcript alone."""
    run = FinishedRun.open(folder)
    kept = _transcript(run, None if rounds is None else Watched(rounds))
    if kept is None:
        raise RunError(f"{folder} has no transcript; run it with --transcript")
    run.scorer()
    return _views(run, federation_of(run), kept, run.folder.model(), run.folder.vectors())


def views_and_truth(
    run: Path | Experiment,
    *,
    rounds: int | None = None,
    enough: int | None = None,
    threads: int = 1,
    report: Report | None = None,
) -> ThreatViews:
    """What each party saw of a finished run, or of an experiment that is trained for it; and what
    was so. `rounds` are those whose messages are looked at; by default what is `enough`, or what is
    for most attacks, as far as memory holds it."""
    tell = report or (lambda what, done, total: None)
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds must be at least 1, not {rounds}")
    tell("data", 0, 1)
    world = run.prepared() if isinstance(run, Experiment) else FinishedRun.open(run)
    if isinstance(world, FinishedRun):
        world.scorer()  # raises if the model is not that of this run
    tell("data", 1, 1)
    if world.experiment.silo is not None:
        return _of_owners(world, rounds or enough, tell)
    return _of_devices(world, rounds, enough, threads, tell)


def _of_devices(
    world: PreparedExperiment, rounds: int | None, enough: int | None, threads: int, tell: Report
) -> ThreatViews:
    finished = world if isinstance(world, FinishedRun) else None
    federation, settings = federation_of(world), world.experiment.cross_device()
    plan, size = federation.schedule, federation.server.items.nbytes
    look = watched(settings.release, settings.link, plan, size, rounds, enough=enough)
    kept = None if finished is None else _transcript(finished, look)
    source, notes = "the run's transcript", []
    recorder = Recorder(MOST_NUMBERS // look.whole, federation.sum_width)
    minds: list[MindsChanged | KeptChange] = []
    if finished is None:
        federation.on_change = minds.append
    else:
        minds += kept_changes(finished.folder.path)
    # With a transcript, too: what was private then is needed for scoring.
    own = _enact(federation, look, threads, tell, [] if kept else [recorder])
    if kept is None:
        kept, share = recorder.seen, recorder.keeper.share
        source = "rounds enacted again from the manifest" if finished else "rounds listened to"
        if share < 1.0:
            notes.append(
                f"Of the devices' updates those of about {share:.0%} of the devices were kept, "
                "the same in every round; attacks on updates are attacks on these."
            )
    if finished is None:
        _go_on(federation, plan, threads, tell)
        final, vectors = federation.server.recommending.items, federation.vectors()
    else:
        final, vectors = finished.folder.model(), finished.folder.vectors()
        notes += _differences(finished) + _unlike_ledger(finished, federation, look.end)
    if look.end == plan.rounds and look.sums:  # what the last sum made of the model is published
        kept["device"][plan.rounds] = [ModelView(plan.rounds, final)]
    views = _views(world, federation, kept, final, vectors)
    if minds:
        tables, own["minds"] = _minds(world, federation, minds)
        views["anyone"] = replace(views["anyone"], own={**views["anyone"].own, "minds": tables})
    if mixed := own.pop("mixed", ()):
        views["coalition"] = replace(views["server"], party="coalition", own={"mixed": mixed})
    own |= _draws(world, federation, kept)
    own["again"] = _again(world, plan, threads)
    if settings.release.contributing is not None:
        own["contributed"] = _contributed(world, kept)
        delta = settings.release.contributing.delta
        own["permitted"] = auc_permitted(own["contributed"].epsilons, delta)
    elif settings.link.noise:
        seen = math.ceil(plan.rounds * min(1.0, plan.cohort_size / max(1, plan.devices)))
        own["permitted"] = float(ndtr(math.sqrt(seen / 2.0) / settings.link.noise))
    if world.experiment.draws == "secret":
        updates = _senders(kept, "server") if plan.triples else {}
        told, own["told senders"] = told_words(federation.devices.rng, own.get("bits", ()), updates)
        views["server"] = replace(views["server"], told=told)
    looked = f"{look.describe(plan.rounds)}: {source}"
    counted = look.count, plan.rounds
    return _threat(world, views, _truth(world, vectors, own), {"looked at": looked}, notes, counted)


def _transcript(finished: FinishedRun, look: Watched | None) -> SeenMessages | None:
    """What was kept of a run, all of it or of these rounds; None where it has no transcript."""
    folder = finished.folder.path / "transcript"
    if not folder.exists():
        return None
    identity = str(finished.folder.manifest().get("identity"))
    if look is None:
        return read_transcript(folder, identity)
    return read_transcript(folder, identity, look.whole, look.sums)


class _Private:
    """Keeps what parties do not see, for scoring: the devices' vectors before each round, as far as
    there is room, and what they seal to the server."""

    def __init__(self, federation: Federation) -> None:
        self.vectors: dict[int, NDArray[np.float32]] = {}
        self.bits: list[BitReports] = []
        self._federation, self._room = federation, MOST_MODEL_BYTES

    def on_message(self, party: str, message: object) -> None:
        if isinstance(message, ModelView):
            self.keep(message.round)

    def keep(self, round: int) -> None:
        vectors = self._federation.devices.cohort.vectors
        if self._room >= vectors.nbytes:
            self.vectors[round] = vectors.copy()
            self._room -= vectors.nbytes


SeedsOf = dict[tuple[int, int], list[bytes]]
"""By round and tier: from what the shufflers of a chain mixed, one after the other."""


class _GlassProxy(Shuffler):
    """A proxy that does what another one does, and shows what it was given and, of a chain, from
    which seeds its members mix."""

    def __init__(self, inner: Shuffler, bits: list[BitReports], seeds: SeedsOf) -> None:
        self._inner, self._open, self._seeds = inner, bits, seeds
        self.shufflers = inner.shufflers

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, seeds are kept."""
        own: Seeds = self._inner.seeds

        def seen(round: int, tier: int, hop: int) -> bytes:
            seed = own(round, tier, hop)
            self._seeds.setdefault((round, tier), []).append(seed)
            return seed

        self._inner.seeds = seen
        try:
            yield
        finally:
            self._inner.seeds = own

    def collect(self, bits: BitReports, threads: int = 1, ranks: Ranks = ALONE) -> list[Batch]:
        self._open.append(bits)
        return self._inner.collect(bits, threads, ranks)


def _enact(
    federation: Federation,
    look: Watched,
    threads: int,
    tell: Report,
    message_observers: list[MessageObserver],
) -> dict[str, Any]:
    """Runs the rounds with these listening; what was private in them, by the names that attacks
    are scored by."""
    plan, proxy, private = federation.schedule, federation.proxy, _Private(federation)
    bar = Periodically(max(1, look.end // 100), lambda m: tell("training", m.round, plan.rounds))
    seeds: SeedsOf = {}
    stack = contextlib.ExitStack()
    if proxy is not None:
        federation.proxy = glass = _GlassProxy(proxy, private.bits, seeds)
        stack.enter_context(glass.watched())
    try:
        federation.schedule = replace(plan, rounds=look.whole)
        federation.run([bar], [*message_observers, private], threads=threads)
        if look.sums:
            federation.schedule = replace(plan, rounds=look.end)
            only = Only(look, [*message_observers, private])
            federation.run([bar], [only], threads=threads, masked=False)
    finally:
        stack.close()
        federation.schedule, federation.proxy = plan, proxy
    private.keep(look.end)
    own: dict[str, Any] = {"vectors": private.vectors}
    if private.bits:
        own["bits"] = private.bits
        own["mixed"], own["mixed owners"] = mixed_by_members(private.bits[:TOLD_ROUNDS], seeds)
    return own


def mixed_by_members(
    sent: Sequence[BitReports], seeds: SeedsOf
) -> tuple[tuple[Mixed, ...], tuple[NDArray[np.int64], ...]]:
    """What the server and all shufflers of a chain but one know of these rounds' batches, for each
    choice of the honest one and for none; and whose report stands at each place of each. Nothing
    where there is one shuffler."""
    found, owners = [], []
    for bits in sent:
        for tier in np.unique(bits.tier).tolist():
            mixing = seeds.get((bits.round, tier), [])
            if len(mixing) < 2:
                continue
            mine, k = bits.tier == tier, bits.reports.shape[1]
            values, senders = bits.reports[mine].ravel(), np.repeat(bits.sender[mine], k)
            given = order = np.arange(len(values), dtype=np.uint32)
            whole = Batch(bits.round, tier, int(mine.sum()), values)
            firsts = order[::k][:TOLD_DEVICES]
            for hop in range(-1, len(mixing)):
                if hop >= 0:
                    given, order = order, shuffled(order, mixing[hop])
                handed_on = replace(whole, reports=values[order])
                told = np.argsort(order)[firsts].tolist()
                found.append(Mixed(hop, handed_on, senders[given], tuple(told)))
                owners.append(senders[order])
    return tuple(found), tuple(owners)


def _go_on(federation: Federation, plan: Schedule, threads: int, tell: Report) -> None:
    if federation.server.round < plan.rounds:
        step = max(1, plan.rounds // 100)
        bar = Periodically(step, lambda m: tell("training", m.round, plan.rounds))
        federation.run([bar], threads=threads)


def _views(
    world: PreparedExperiment,
    federation: Federation,
    kept: SeenMessages,
    final: NDArray[np.float32],
    vectors: NDArray[np.float32],
) -> dict[str, View]:
    settings = world.experiment.cross_device()
    algorithm = world.experiment.on(world.dataset, world.consent)[0]
    reports = settings.release.reporting
    k = 0 if reports is None else reports.max_reports
    base = View(
        "anyone",
        tuple(seen._replace(messages=()) for seen in seen_by(kept, "device")),
        algorithm,
        settings.release,
        settings.link,
        world.split.train.n_items,
        final,
        triples=settings.algorithm.most_draws(
            federation.devices.cohort.history.counts, federation.schedule.triples
        ),
        draws=world.experiment.draws,
    )
    each = SEALED_BYTES + settings.link.layer_bytes
    network = network_of(kept, 8 * final.size + SEALED_SEED_BYTES, k * each)
    views: dict[str, View] = {
        "anyone": base,
        "server": replace(base, party="server", rounds=seen_by(kept, "server")),
        "network": replace(base, party="network", rounds=network),
    }
    # UC-FedRec asks what embeddings tell if somebody gets hold of them all: the worst case.
    held = federation.server.algorithm.representations(vectors, final)
    if held is not None:
        views["anyone"] = replace(base, own={"representations": held})
    if "proxy" in settings.link.sees:
        views["proxy"] = replace(base, party="proxy", rounds=seen_by(kept, "proxy"))
    return views


# --- what was so ---------------------------------------------------------------------------------


def _draws(world: PreparedExperiment, federation: Federation, kept: SeenMessages) -> dict[str, Any]:
    """What pairs were drawn of, by those of whom something was kept: the seed alone decides."""
    if not federation.schedule.triples:
        return {}
    rounds = _senders(kept, "server") | _senders(kept, "proxy")
    algorithm, rng = federation.server.algorithm, federation.devices.rng
    return {"drawn": drawn_positives(algorithm, federation.devices.sendable, rounds, rng)}


def _minds(
    world: PreparedExperiment,
    federation: Federation,
    changes: Sequence[MindsChanged | KeptChange],
) -> tuple[tuple[MindsSeen, ...], tuple[MindsTruth, ...]]:
    """What somebody got hold of who had all embeddings when users changed their minds, before and
    after; and who they were."""
    later, users = world.experiment.later(world.consent), world.consent.users
    algorithm = federation.server.algorithm
    seen, truth = [], []
    for one in changes:
        then = [algorithm.representations(v, one.items) for v in (one.before, one.after)]
        before, after = (np.asarray(table, dtype=np.float64) for table in then)
        seen.append(MindsSeen(one.round, before, after))
        records = later[one.number][1]
        hidden = {
            name: records.hidden_attributes[:, column]
            for column, name in enumerate(records.attributes)
        }
        names = {name for each in one.hidden for name in each.attributes}
        changed = {
            name: np.isin(users, [h.user for h in one.hidden if name in h.attributes])
            for name in names
        }
        truth.append(MindsTruth(changed, hidden))
    return tuple(seen), tuple(truth)


def _again(world: PreparedExperiment, plan: Schedule, threads: int) -> Again:
    """The same system on the same people, other ones of whom take part."""
    experiment, train, chosen = world.experiment, world.split.train, world.consent
    parts = experiment.cross_device()
    algorithm, labels = experiment.on(world.dataset, chosen)
    willing = np.flatnonzero(chosen.takes_part)

    def learn(part: NDArray[np.bool_], rng: Streams) -> NDArray[np.float32]:
        rows = np.arange(train.n_users)
        rows[~chosen.takes_part] = np.resize(willing, int((~chosen.takes_part).sum()))
        consent = replace(chosen.take(rows), users=chosen.users, takes_part=part)
        named = experiment.items_named(world.dataset, train)
        made = Federation.build(
            algorithm, train, consent, parts.release, rng, labels, parts.link, experiment.defence,
            named,
        )  # fmt: skip
        made.run(threads=threads)
        return made.server.items

    summing = parts.link.adds_up
    least = 0 if summing is None else summing.min_devices
    locally = getattr(algorithm, "pairs", 0) * getattr(algorithm, "local_epochs", 1)
    steps = plan.triples or locally or plan.positives / plan.devices
    return Again(learn, plan.rounds * plan.cohort_size * steps, least)


def _contributed(world: PreparedExperiment, kept: SeenMessages) -> Contributed:
    """What everybody added to the sums of the rounds that were looked at, by the model that each
    round started from."""
    made = federation_of(world)
    algorithm, cohort = cast(Contributing, made.server.algorithm), made.devices.cohort
    release, rows = world.experiment.cross_device().release, made.devices.willing()
    told = made.devices.sendable
    bound = release.bind(cohort.users, cohort.consent, told, made.devices.rng)
    terms = bound.contributing
    if terms is None:
        raise RunError("what was added to sums is known of contributions alone")
    shown = replace(cohort, history=told)
    rounds = []
    for round in range(len(algorithm.shares)):
        view = next((m for m in kept["device"].get(round, ()) if isinstance(m, ModelView)), None)
        if view is not None:
            if round == 1 and algorithm.versioned:
                shown = replace(shown, published=view.items)  # the first one that is published
            profile = algorithm.device_profile(view, shown, rows)
            who = cohort.users[rows], terms.scale[rows]
            rng, link = made.devices.rng, world.experiment.cross_device().link
            rounds.append(cut_profile(algorithm, link, rng, profile, view, *who))
    return Contributed(tuple(rounds), terms.epsilons[rows])


def _senders(kept: SeenMessages, party: str) -> dict[int, NDArray[np.int64]]:
    """By round: whose messages reached a party, where that can be seen."""
    found = {}
    for round, messages in kept.get(party, {}).items():
        senders = [m.sender for m in messages if isinstance(m, DeviceReports | MaskSeeds)]
        if senders:
            found[round] = np.unique(np.concatenate(senders))
    return found


def _truth(
    world: PreparedExperiment, vectors: NDArray[np.float32], own: Mapping[str, Any] | None = None
) -> Truth:
    consent, labels = world.experiment.at_end(world.consent), {}
    for name, known in world.dataset.user_attributes.items():
        labels[name] = known.codes.astype(np.int64)
    if world.experiment.silo is None:
        settings, codes = world.experiment.on(world.dataset, world.consent)
        if codes is not None:  # by its own numbers of classes
            labels |= {one.name: codes[:, k] for k, one in enumerate(settings.attributes)}
    return Truth(
        train=world.split.train,
        test=_in_catalogue(world.split),
        takes_part=consent.takes_part,
        share_positives=consent.share_positives,
        hidden={
            name: consent.hidden_attributes[:, column]
            for column, name in enumerate(consent.attributes)
        },
        labels=labels,
        vectors=vectors,
        own=own or {},
    )


def _in_catalogue(split: Split) -> Interactions:
    """The test part over the items that were there to be learnt."""
    n = split.train.n_items
    known = split.test.select(split.test.items < n)
    return replace(known, n_items=n, item_ids=split.train.item_ids)


def _differences(finished: FinishedRun) -> list[str]:
    """What is not as it was when the run was made."""
    then = finished.folder.manifest().get("versions", {}).get("sottovoce")
    now = sottovoce.__version__
    if then == now:
        return []
    return [f"The run was made with release {then} of Sottovoce, and is attacked with {now}."]


def _unlike_ledger(finished: FinishedRun, federation: Federation, rounds: int) -> list[str]:
    """Where the run's ledger books other releases than those of the rounds that were enacted."""

    def booked(table: pa.Table) -> NDArray[np.int64]:
        names = ("round", "user", "positive_rows", "negative_rows", "reports")
        rows = np.stack([table[name].to_numpy().astype(np.int64) for name in names], axis=1)
        rows = rows[rows[:, 0] < rounds]
        return rows[np.lexsort(rows.T[::-1])]

    then, now = booked(finished.ledger()), booked(federation.devices.ledger.pending())
    if np.array_equal(then, now):
        return []
    return [
        "The run's ledger books other releases in these rounds than were enacted again: devices "
        "were missing then, or another release of Sottovoce learnt otherwise. What is attacked is "
        "what was enacted."
    ]


# --- data owners ---------------------------------------------------------------------------------


def _of_owners(world: PreparedExperiment, rounds: int | None, tell: Report) -> ThreatViews:
    finished = world if isinstance(world, FinishedRun) else None
    whole = world.experiment.split(world.dataset)
    silo = build_world(replace(world, split=whole))[0]
    epochs = min(rounds or 1, silo.config.epochs)
    if finished is None:
        model = _trained(silo, tell)
    else:
        model = DriftModel(finished.folder.vectors(), finished.folder.model())
    views, own = silo_views(silo, model, rounds=epochs)
    judged = replace(world, split=world.experiment.judged(whole, world.consent))
    notes = [] if finished is None else _differences(finished)
    drift: DriftTruth = own["drift"]
    more = {
        "owners": ", ".join(silo.owners),
        "looked at": f"{epochs:,} of {silo.config.epochs:,} epochs, replayed, with the "
        f"interactions of {len(drift.members):,} users",
    }
    counted = epochs, silo.config.epochs
    return _threat(world, views, _truth(judged, model.users, own), more, notes, counted)


def _trained(silo: SiloWorld, tell: Report) -> DriftModel:
    epochs = silo.config.epochs
    learning = silo.learning(silo.blocks(), silo.first_model())
    for epoch in range(1, epochs + 1):
        learning.epoch()
        learning.model().check()
        tell("training", epoch, epochs)
    return learning.model()
