"""UC-FedRec by real processes: eight device agents over HTTPS, in three processes since each has to
load torch, a change of mind in between, and the model of the simulation."""

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.cli import call
from sottovoce.config import toml_document
from sottovoce.engines.simulation import Simulation
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import world_of
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.minds import KeptChange, kept_changes

pytest.importorskip("torch")

from sottovoce.services.trial import HttpsTrial

pytestmark = pytest.mark.usefixtures("forked_children")

TABLE = {
    "name": "uc",
    "seed": 5,
    "town": {"residents": 8, "venues": 60, "districts": 2},
    "algorithm": {
        "name": "uc",
        "embedding_size": 8,
        "learning_rate": 1.0,
        "filter_rate": 1.0,  # after one round the filter tells something already
        "item_rate": 4.0,
        "local_epochs": 4,
        "pairs": 32,
        "rounds": 3,
        "attributes": [{"name": "gender"}, {"name": "age"}],
    },
    "consent": {
        "mix": [
            {"weight": 1, "share_positives": 1.0},
            {"weight": 1, "share_positives": 1.0, "hidden_attributes": ["age"], "strength": 0.8},
        ]
    },
    "service": {"deadline_seconds": 280.0},
}


def told(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert call([*map(str, arguments), "--json"]) == 0
    return json.loads(out.getvalue())


def parties():
    experiment = Experiment.from_table(TABLE)
    dataset = experiment.dataset()
    consent = experiment.records(dataset)
    settings, labels = experiment.on(dataset, consent)
    train = experiment.split(dataset).train
    rng = experiment.streams().child("federation")
    release = experiment.cross_device().release
    return experiment, dataset, Federation.build(settings, train, consent, release, rng, labels)


@pytest.mark.slow
def test_eight_agents_with_a_change_of_mind_give_the_simulations_model(tmp_path):
    _, _, simulated = parties()
    experiment, dataset, real = parties()
    before = simulated.devices.cohort.consent
    (willing,) = np.nonzero(~before.hidden_attributes.any(axis=1))
    who = int(willing[0])
    trial = HttpsTrial(world_of(experiment, dataset, real), tmp_path / "services", 3)
    with trial.running():
        assert len(trial.agents) == 3
        trial.advance(1, lambda done: None)
        trial.gather()  # waits until every device has the model after this round
        said = told("device", "consent", trial.store(who), "--hide", "gender", "--strength", "0.7")
        assert said["choice"]["hidden_attributes"] == ["gender"]
        trial.advance(3, lambda done: None)
        got = trial.gather()
        rounds, refused = trial.log()
        assert not refused
        assert [entry["reported"] for entry in rounds] == [8, 8, 8]
        ledger = trial.ledger()

    server, devices = simulated.server, simulated.devices
    Simulation(server, devices, 8, 1).run()
    (hidden,) = devices.change_consent(changed(before, who), server.recommending)
    assert said["hidden"] == hidden.to_table(), "she moved as far, to the last bit"
    assert hidden.moved > 0
    assert hidden.after < hidden.before
    Simulation(server, devices, 8, 3).run()
    assert np.array_equal(got.items, server.items), "to the last bit"
    assert np.array_equal(got.vectors, devices.cohort.vectors)
    assert sum(int(table.bytes.sum()) for table in ledger) == devices.ledger.totals.bytes


def changed(consent, who):
    hidden, strength = consent.hidden_attributes.copy(), consent.strength.copy()
    hidden[who, consent.attributes.index("gender")] = True
    strength[who] = 0.7
    return replace(consent, hidden_attributes=hidden, strength=strength)


@pytest.mark.slow
def test_users_who_change_their_minds_do_so_alike_by_processes_and_in_simulation(
    tmp_path, monkeypatch
):
    """Everybody who shares her gender hides it after the second of three rounds, by the same
    experiment on both engines: who moves how far, what it costs, model and vectors are the same,
    also if the run is killed right after the change and goes on; each device's own ledger has it;
    and to hide it again moves nothing."""
    consent = {**TABLE["consent"], "changes": [{"after_round": 2, "hide": ["gender"]}]}
    file = tmp_path / "uc.toml"
    file.write_text(toml_document({**TABLE, "consent": consent}))
    plain = told("run", file, "--out", tmp_path / "plain", "--threads", "1")
    again = ["run", file, "--out", tmp_path / "real", "--engine", "https", "--processes", "3"]
    original = KeptChange.save

    def save_then_die(self, run):
        original(self, run)
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(KeptChange, "save", save_then_die)
        with pytest.raises(SystemError, match="killed"):
            told(*again)
    real = told(*again, "--resume")
    (one,), (other,) = plain["changes_of_mind"], real["changes_of_mind"]
    assert one == other
    assert one["users"] == 8
    assert 0 < one["moved"]["mean"] <= one["moved"]["most"] <= 100
    assert one["filter_tells"]["after"] < one["filter_tells"]["before"]
    folders = [RunFolder.open(tmp_path / name) for name in ("plain", "real")]
    assert np.array_equal(*(folder.model() for folder in folders)), "to the last bit"
    assert np.array_equal(*(folder.vectors() for folder in folders))
    kept = [kept_changes(folder.path)[0] for folder in folders]
    assert kept[0].hidden == kept[1].hidden
    assert np.array_equal(kept[0].before, kept[1].before)
    assert np.array_equal(kept[0].after, kept[1].after)

    store = sorted((tmp_path / "real" / "services" / "devices").iterdir())[0]
    (line,) = told("device", "ledger", store)["hidings"]
    assert line == {"when": line["when"], **kept[1].hidden[0].to_table()}
    assert "gender" in told("device", "consent", store)["choice"]["hidden_attributes"]
    once_more = told("device", "consent", store, "--hide", "gender")
    assert once_more["hidden"] is None
    assert len(told("device", "ledger", store)["hidings"]) == 1
    trouble = io.StringIO()
    with contextlib.redirect_stderr(trouble):
        assert call(["device", "consent", str(store), "--hide", "income"]) != 0
    assert trouble.getvalue().count("\n") == 1
    assert "no filter for 'income'" in trouble.getvalue()
