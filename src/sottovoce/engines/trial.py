"""A trial: an experiment run by real processes on this machine's loopback.

A trial starts the services as an operator and device owners would, lets them run to a round, and
then looks into the devices' stores, which only a trial may do: they lie on this machine, and so do
their keys.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.hiding import Hidden
from sottovoce.core.interactions import Vocabulary
from sottovoce.core.ledger import COLUMNS, Entries, entries_of
from sottovoce.core.links import CheckedSum, Proxied, SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import noise_root
from sottovoce.engines.processes import Child, free_port, sottovoce_command, wait_for
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.rng import streams_of
from sottovoce.wire.terms import Terms

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.server_folder import ServerFolder

Tick = Callable[[int], None]
"""Told how many rounds are done."""


@dataclass(frozen=True, slots=True, repr=False)
class TrialWorld:
    """Everything that a trial hands out to the parties at the start, each its own share."""

    terms: Terms
    rules: RoundRules
    cohort_size: int
    root_key: int
    """Root of all random streams, so that the model is the simulation's."""
    cohort: Cohort
    names: Sequence[str]
    """Names of the users."""
    catalogue: Sequence[tuple[str, str]]
    """Id and title of every item."""
    defence: Defence = NO_DEFENCE
    """The server's defence against what devices send."""
    categories: Sequence[Sequence[str]] = ()
    """Categories of every item, if the data name any."""


@dataclass(frozen=True, slots=True, repr=False)
class Gathered:
    """Where everybody is after `round` rounds."""

    round: int
    items: NDArray[np.float32]
    vectors: NDArray[np.float32]
    published: ModelView | None = None
    """The model by which devices recommend, if that is not the newest."""
    offered: tuple[Mapping[str, Any], ...] = ()
    """Versions so far (`parties.server.Offered`)."""


class Trial(Protocol):
    def running(self) -> AbstractContextManager[None]:
        """Within, every process runs; after it, none does. What they know stays on disk."""
        ...

    def round(self) -> int:
        """Rounds done so far."""
        ...

    def advance(self, to: int, tick: Tick) -> None:
        """Until `to` rounds are done."""
        ...

    def gather(self) -> Gathered:
        """The model from the server, the vectors from the devices' stores."""
        ...

    def ledger(self) -> list[Entries]:
        """Every row of every device's ledger, by round and user."""
        ...

    def stores(self) -> Sequence[Path]:
        """Every store of its devices."""
        ...

    def log(self) -> tuple[list[Mapping[str, Any]], Mapping[str, int]]:
        """How each round ended and who was missing; how many messages were refused, by reason."""
        ...


def trial_rules(given: RoundRules, named: Sequence[str], devices: int) -> RoundRules:
    """Rules for a trial: as in the file where it names them, else made for one machine, where
    everybody answers at once and nobody is asked in vain."""
    local: dict[str, Any] = {
        "over_selection": 0.0,
        "poll_seconds": 0.1,
        "deadline_seconds": 60.0,
        "min_devices": devices,
    }
    return replace(given, **{k: v for k, v in local.items() if k not in named})


def in_order(tables: Sequence[Entries]) -> list[Entries]:
    """Ledger rows of many stores as a simulation writes them: by round, then by user; a table per
    kind of release."""
    ordered = []
    for kind in sorted({t.kind for t in tables}):
        same = [t for t in tables if t.kind == kind]
        columns = {name: np.concatenate([getattr(t, name) for t in same]) for name in COLUMNS}
        order = np.lexsort((columns["user"], columns["round"]))
        ordered.append(Entries(kind, **{k: v[order] for k, v in columns.items()}))
    return ordered


def unequal_parts(n: int, parts: int) -> list[NDArray[np.int64]]:
    """0 … n-1 in so many runs of growing length, each with at least one."""
    parts = max(1, min(parts, n))
    shares = np.arange(1, parts + 1)
    sizes = 1 + (n - parts) * shares // shares.sum()
    sizes[-1] += n - sizes.sum()
    return np.split(np.arange(n, dtype=np.int64), np.cumsum(sizes)[:-1])


def make_store(path: Path, world: TrialWorld, rows: NDArray[np.int64]) -> CohortStore:
    """A new store with what these users have: their histories and choices, and what their devices
    know of them, hidden or not. Whoever starts a trial speaks for them, so the terms are agreed
    to."""
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession  # simulation does without their library

    part = world.cohort.take(rows)
    numbers = part.users.tolist()
    store = CohortStore.create(
        path, [(n, world.names[n]) for n in numbers], root_key=world.root_key
    )
    store.set_catalogue(world.catalogue, world.categories)
    store.add_histories(replace(part.history, item_ids=Vocabulary([i for i, _ in world.catalogue])))
    if world.terms.algorithm.attributes:
        _keep_attributes(store, world.terms.algorithm, part)
    store.set_choices(part.consent)
    DeviceSession(store).agree(world.terms)
    return store


def _keep_attributes(store: CohortStore, settings: AlgorithmSettings, part: Cohort) -> None:
    with store.file.transaction():
        for number, codes in zip(part.users.tolist(), part.labels.tolist(), strict=True):
            for attribute, code in zip(settings.attributes, codes, strict=True):
                if code >= 0:
                    store.set_attribute(number, attribute.name, attribute.classes[code])


def make_server_folder(path: Path, world: TrialWorld, first: Path | None = None) -> ServerFolder:
    """The server's folder of a new federation that waits for its first target. `first` has what it
    needs as an aggregator (`prepare_aggregators`)."""
    from sottovoce.stores.server_folder import create_folder

    if first is not None:
        shutil.copytree(first, path / "keys")
    return create_folder(
        path,
        world.terms,
        world.catalogue,
        categories=world.categories,
        cohort_size=world.cohort_size,
        rounds=0,
        root_key=world.root_key,
        rules=world.rules,
        defence=world.defence,
        hosts=["127.0.0.1", "localhost"],
    )


def change_minds(stores: Iterable[Path], consent: Consent, view: ModelView) -> list[Hidden]:
    """Let the users of these stores hide what they hide by these records, as they would themselves,
    by the model that is published by then; how far each has moved, by user."""
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession

    rows, found = {n: row for row, n in enumerate(consent.users.tolist())}, []
    for path in stores:
        with CohortStore.open(path) as store:
            session = DeviceSession(store)
            session.keep_model(view)
            for number in store.users.tolist():
                hides = consent.row(rows[number]).hidden_attributes
                if set(hides) - set(store.choice(number).hidden_attributes):
                    moved = session.change_choice(number, partial(_hiding, hides))[1]
                    found += [moved] if moved is not None else []
    return sorted(found, key=lambda one: one.user)


def _hiding(hides: tuple[str, ...], choice: Choice) -> Choice:
    return replace(choice, hidden_attributes=hides)


def ledger_of(stores: Iterable[Path]) -> list[Entries]:
    """Every row of these stores' ledgers, as a simulation writes them."""
    from sottovoce.stores.device import CohortStore

    tables = []
    for path in stores:
        with CohortStore.open(path, readonly=True) as store:
            tables += entries_of(store.ledger())
    return in_order(tables)


def number_width(users: int) -> int:
    """Digits with which the users' folders sort as their numbers do."""
    return max(4, len(str(users)))


def folder_of(run: Path) -> Path:
    """Where a trial keeps its services' files in a run folder."""
    return run / "services"


# --- the proxy of a trial -------------------------------------------------------------------------

PROXY = "proxy"
"""Its folder, within that of a trial."""
_PORT = "port"


def hop_folder(folder: Path, hop: int) -> Path:
    """Return the folder of a trial's shuffler at this place in the chain, counted from 0."""
    return folder / (f"{PROXY}-{hop + 1}" if hop else PROXY)


def prepare_chain(folder: Path, shufflers: int) -> Proxied:
    """Addresses, authorities and keys of a trial's shufflers."""
    from sottovoce.stores.shuffler_folder import HOP_FILE, init_shuffler, read_hop

    chain = []
    for hop in range(1, shufflers):
        place = hop_folder(folder, hop)
        if not (place / HOP_FILE).exists():
            init_shuffler(place, prepare_proxy(folder, hop).url)
        chain.append(read_hop(place / HOP_FILE))
    return replace(prepare_proxy(folder), chain=tuple(chain))


def prepare_proxy(folder: Path, hop: int = 0) -> Proxied:
    """Address and authority of a trial's shuffler, which the terms name and so must be there before
    them; the same ones where the trial is gone on with."""
    from sottovoce.stores.keys import CA_CERTIFICATE, authority_pem, init_keys, write_new_files

    place = hop_folder(folder, hop)
    if not (place / "keys" / CA_CERTIFICATE).exists():
        init_keys(place / "keys")
    if not (place / _PORT).exists():
        write_new_files(place, {_PORT: str(free_port()).encode()})
    return Proxied(f"https://127.0.0.1:{kept_port(place)}", authority_pem(place / "keys"))


def prepare_helper(folder: Path, link: SecureSum, root_key: int) -> SecureSum:
    """The same for the helper of a secure sum, with the noise of the simulation."""
    from sottovoce.stores.helper_folder import NOISE_SECRET, PUBLIC_KEY, init_helper
    from sottovoce.stores.sum_folder import simulate_noise

    place = folder / PROXY
    if not (place / PUBLIC_KEY).exists():
        init_helper(place)
    simulate_noise(place / NOISE_SECRET, noise_root(streams_of(root_key).child("masker").root))
    told = prepare_proxy(folder)
    key = (place / PUBLIC_KEY).read_text().strip()
    return replace(link, url=told.url, authority=told.authority, key=key)


def start_helper(folder: Path, server: ServerFolder, logs: Path) -> Child:
    """The helper of a trial, at the address that the terms name; also after it was stopped."""
    from sottovoce.stores.helper_folder import (
        INTRODUCTION,
        create_helper,
        helper_introduction,
        open_helper,
    )

    place = folder / PROXY
    if not (place / INTRODUCTION).exists():
        create_helper(place, helper_introduction(server))
    found, port = open_helper(place), str(kept_port(place))
    command = sottovoce_command("serve", "helper", place, "--port", port)
    helper = Child("the proxy", command, log=logs / "proxy.log")
    wait_for(helper, lambda: found.running() is not None)
    return helper


def aggregator_place(folder: Path, number: int) -> Path:
    """The folder of an aggregator, within that of a trial; of the first, its secrets alone."""
    return folder / f"aggregator-{number}"


def prepare_aggregators(folder: Path, link: CheckedSum, root_key: int) -> CheckedSum:
    """The same for the aggregators of a checked sum, of which the server is the first."""
    from sottovoce.stores.aggregator_folder import (
        FIRST_NOISE,
        OTHERS,
        init_aggregator,
        init_first,
    )
    from sottovoce.stores.keys import authority_pem, write_new_files
    from sottovoce.stores.sum_folder import NOISE_SECRET, PUBLIC_KEY, simulate_noise

    def simulate(number: int, file: str) -> None:
        noise = noise_root(streams_of(root_key).child("aggregator", number).root)
        simulate_noise(aggregator_place(folder, number) / file, noise)

    keys = [init_first(aggregator_place(folder, 0))]
    simulate(0, FIRST_NOISE)
    urls, authorities = [], []
    for number in OTHERS:
        place = aggregator_place(folder, number)
        if not (place / PUBLIC_KEY).exists():
            init_aggregator(place)
        simulate(number, NOISE_SECRET)
        if not (place / _PORT).exists():
            write_new_files(place, {_PORT: str(free_port()).encode()})
        keys.append((place / PUBLIC_KEY).read_text().strip())
        urls.append(f"https://127.0.0.1:{kept_port(place)}")
        authorities.append(authority_pem(place / "keys"))
    return replace(link, urls=tuple(urls), authorities=tuple(authorities), keys=tuple(keys))


def start_aggregator(folder: Path, server: ServerFolder, number: int, logs: Path) -> Child:
    """An aggregator of a trial, at the address that the terms name; also after it was stopped."""
    from sottovoce.stores.aggregator_folder import (
        aggregator_introduction,
        create_aggregator,
        open_aggregator,
    )
    from sottovoce.stores.sum_folder import INTRODUCTION

    place = aggregator_place(folder, number)
    if not (place / INTRODUCTION).exists():
        create_aggregator(place, aggregator_introduction(server.plan.terms, server.keys, number))
    found, port = open_aggregator(place), str(kept_port(place))
    command = sottovoce_command("serve", "aggregator", place, "--port", port)
    started = Child(f"aggregator {number}", command, log=logs / f"aggregator-{number}.log")
    wait_for(started, lambda: found.running() is not None)
    return started


def kept_port(place: Path) -> int:
    return int((place / _PORT).read_text())
