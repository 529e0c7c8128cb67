"""DRIFT for real: owners, the orchestrator and users as processes give the simulation's model."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import deliver
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.data.sources import load
from sottovoce.data.splitting import temporal_holdout
from sottovoce.engines.flower.superlink import SuperLinkPlace, count_unknown_nodes
from sottovoce.engines.processes import Child, sottovoce_command
from sottovoce.engines.silo import SiloWorld
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.rng import Streams
from sottovoce.services.silo_trial import SiloTrial
from sottovoce.stores.owner_folder import create_owner_folder, keep_admission
from sottovoce.wire.silo_files import Admission, FederationFile

pytestmark = pytest.mark.usefixtures("forked_children")

NAMES = ("Drama", "Children's", "Sci-Fi", "Film-Noir")


def small_train():
    """What users did, with which items' owners, and whom they refuse."""
    draw = np.random.default_rng(1)
    n_users, n_items, n = 30, 40, 900
    train = Interactions.from_pairs(
        draw.integers(0, n_users, n), draw.integers(0, n_items, n), n_users=n_users,
        n_items=n_items, timestamps=draw.integers(0, n, n), ratings=draw.integers(1, 6, n),
    )  # fmt: skip
    member = draw.random((n_items, 4)) < 0.3
    member[np.arange(n_items), np.arange(n_items) % 4] = True
    return train, member, draw.random((n_users, 4)) < 0.1


def small_world(**settings):
    config = DRIFTConfig(window=160, epochs=1, learning_rate=0.1, **settings)
    return world_of(*small_train(), config)


def world_of(train, member, refused, config):
    names = NAMES[: member.shape[1]]
    consent = Consent.uniform(np.arange(train.n_users), Choice(), owners=names)
    if refused is not None:
        consent = replace(consent, refused_owners=refused)
    return SiloWorld.of(
        config,
        InteractionDoor(consent, names, OwnerTable.of_membership(member)),
        Events.of(train, config.positive_from, "time"),
        tuple(f"film {k}" for k in range(train.n_items)),
        Streams.from_seed(5),
    )


def simulated(world, records):
    """By messages, with the owners silent in the rounds in which they were."""
    config, orchestrator, owners = world.config, Orchestrator(world.config, world.root), {}
    for number in range(len(NAMES)):
        items = world.table.items(number)
        orchestrator.add_items(number, items)
        owners[number] = Owner(number, items, config, of_owner(world.root, number))
    for user in range(world.n_users):
        orchestrator.join_user(user)
        for owner in owners.values():
            owner.admit(user)
    silent = {record["round"]: [NAMES.index(n) for n in record["silent"]] for record in records}
    left = world.departed
    deliver(left.events, left.messages(), owners, orchestrator, config.window, silent)
    return orchestrator.model


def addressed(world):
    """Messages for each owner."""
    counts = dict.fromkeys(NAMES, 0)
    for messages in world.departed.messages():
        for message in messages:
            counts[NAMES[message.owner]] += 1
    return counts


def taken(trial):
    """Interactions that each owner has on its disk as taken."""
    from sottovoce.stores.owner_folder import open_owner_folder

    found = {}
    for name in NAMES:
        owner = open_owner_folder(trial.owner_folder(name)).owner()
        found[name] = owner.counts()["taken"]
        owner.close()
    return found


def stranger(trial, tmp_path):
    """A data owner that nobody admitted: with a key of its own and an admission that it wrote."""
    place, ports = tmp_path / "stranger", trial._ports()
    about = FederationFile.read(trial.folder / "orchestrator" / "federation.json")
    folder = create_owner_folder(place, about, "Stranger", "https://127.0.0.1:1", [0, 1])
    authority = (trial.folder / "orchestrator" / "keys" / "ca.crt").read_text()
    gateway = f"127.0.0.1:{ports[1]}"
    keep_admission(folder, Admission(about.federation, 1, "Stranger", gateway, authority))
    return Child(
        "the stranger",
        sottovoce_command("serve", "owner", place, "--port", "0"),
        log=tmp_path / "stranger.log",
    )


def run_with_a_killed_owner(world, trial, tmp_path, kill_round, victim):
    """All rounds. In one of them an owner is killed while it takes messages, and started again
    after the round."""
    with trial.running():
        outsider = stranger(trial, tmp_path)
        try:
            for number in range(trial.rounds_in_all):
                trial.queue(number)
                if number == kill_round:
                    kill = threading.Timer(0.15, trial.owners[victim].kill)
                    kill.start()
                    trial.deliver()
                    kill.join()
                    assert trial.deliver().waiting > 0
                    trial.close_round(number)
                    trial.start_owner(victim)
                else:
                    trial.deliver_all()
                    trial.close_round(number)
            trial.deliver_all()
            model, records = trial.model(), trial.rounds()
            _, _, superlink = trial._ports()
            place = SuperLinkPlace(trial.folder / "orchestrator" / "superlink", superlink, None)
            until = time.monotonic() + 600
            while not count_unknown_nodes(place) and time.monotonic() < until:
                time.sleep(0.5)
            refused = count_unknown_nodes(place)
        finally:
            outsider.stop()
    return model, records, refused


def check(world, trial, model, records, refused, kill_round, victim):
    assert victim in records[kill_round]["silent"]
    assert all(set(record["asked"]) == set(NAMES) for record in records)
    assert victim in {name for record in records[kill_round + 1 :] for name in record["updated"]}
    assert refused > 0  # the stranger, at the SuperLink
    expected = simulated(world, records)
    np.testing.assert_array_equal(model.users, expected.users)
    np.testing.assert_array_equal(model.items, expected.items)
    assert taken(trial) == addressed(world)


@pytest.mark.slow
@pytest.mark.parametrize("negatives", ["touched", "untouched"])
def test_owners_as_processes_give_the_simulations_model(tmp_path, negatives):
    """Also where one of them is killed while it takes messages: nothing that it acknowledged is
    lost, nothing is there twice, and the round goes on without it and says so."""
    world = small_world(negatives=negatives)
    trial = SiloTrial(world, tmp_path / "trial", deadline=30.0)
    found = run_with_a_killed_owner(world, trial, tmp_path, 1, "Sci-Fi")
    check(world, trial, *found, 1, "Sci-Fi")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(1500)
def test_a_hundred_thousand_sealed_interactions_of_movielens(tmp_path):
    """MovieLens 1M's first 75,000 training interactions; four organisations share the genres, so
    that there are more than 100,000 messages."""
    dataset = load("movielens-1m")
    split = temporal_holdout(dataset.interactions, 0.2)
    train = split.train
    assert train.timestamps is not None
    train = train.select(train.timestamps < np.sort(train.timestamps)[75_000])
    genres = dataset.category_matrix()[split.item_map[: train.n_items]]
    member = np.stack([genres[:, k::4].any(axis=1) for k in range(4)], axis=1)
    world = world_of(train, member, None, DRIFTConfig(window=7_500, epochs=1))
    assert sum(addressed(world).values()) >= 100_000
    trial = SiloTrial(world, tmp_path / "trial", deadline=20.0)
    found = run_with_a_killed_owner(world, trial, tmp_path, 4, "Drama")
    check(world, trial, *found, 4, "Drama")
