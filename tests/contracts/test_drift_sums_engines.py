"""DRIFT with sums over people for real: owners, the orchestrator and users as processes give the
simulation's model, also where all of them are stopped or killed between two epochs."""

from dataclasses import replace

import numpy as np
import pytest
from test_drift_engines import small_train, world_of

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.services.silo_trial import SiloTrial

CONFIG = DRIFTConfig(release="aggregated", min_users=10, epochs=2, learning_rate=0.1)


def world_of_two(**settings):
    """Two owners that share some items, and users who refuse one of them."""
    train, _, refused = small_train()
    config = replace(CONFIG, **settings)
    return world_of(train, np.arange(40)[:, None] % 3 != np.arange(2), refused[:, :2], config)


@pytest.mark.slow
@pytest.mark.parametrize("negatives", ["touched", "untouched"])
def test_owners_that_add_up_give_the_simulations_model(tmp_path, negatives):
    """One round an epoch, owner after owner. An owner is killed when an epoch is over, and then
    everything is stopped; the next epoch goes on from the disks."""
    world = world_of_two(negatives=negatives)
    expected = world.aggregation()
    for _ in range(CONFIG.epochs):
        expected.epoch()
    assert expected.sent.any()
    assert not expected.sent.all(), "some rows never leave, and count as average ones"
    trial = SiloTrial(world, tmp_path / "trial", deadline=30.0)
    assert trial.rounds_in_all == CONFIG.epochs
    with trial.running():
        trial.queue(0)
        trial.deliver_all()
        trial.close_round(0)
        trial.owners[world.owners[0]].kill()
    model = SiloTrial(world, tmp_path / "trial", deadline=30.0).train(lambda *_: None)
    assert model.users.tobytes() == expected.model().users.tobytes()
    assert model.items.tobytes() == expected.model().items.tobytes()
    for record in trial.rounds():
        assert (record["updated"], record["silent"]) == (world.owners, ())
    mine = (tmp_path / "trial" / "orchestrator").rglob("*")
    seen = b"".join(file.read_bytes() for file in mine if file.is_file())
    vectors = {row.tobytes() for row in expected.vectors}
    assert len(vectors) > 40
    assert not [row for row in vectors if row in seen], "of users the orchestrator has no vector"
