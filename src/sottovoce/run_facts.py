"""What a report card says of the run that was attacked."""

from __future__ import annotations

from sottovoce.attack_card import Setting
from sottovoce.data.dataset import Dataset
from sottovoce.data.interactions import Interactions
from sottovoce.experiment import Experiment


def facts_of(experiment: Experiment, dataset: Dataset, train: Interactions) -> dict[str, str]:
    """Which system on which data, what leaves by which way, and what people chose."""
    choices = experiment.consent.words(owners=experiment.silo is not None)
    release, link = experiment.release, experiment.link
    return {
        "experiment": experiment.name,
        "system": experiment.system,
        "data": f"{dataset.name}: {train.n_users:,} users, {train.n_items:,} items, "
        f"{train.n_interactions:,} training interactions",
        "what leaves": "interactions, sealed to the data owners of their item"
        if release is None
        else release.card(),
        "its way": "to data owners, and from them to an orchestrator"
        if link is None
        else link.describe(),
        "choices": "; ".join(" ".join(one.split()) for one in choices),
    }


def setting_of(experiment: Experiment) -> Setting:
    """What people relied on."""
    release, link = experiment.release, experiment.link
    there = (*(link.remedies if link is not None else ()), *experiment.algorithm.remedies)
    if release is None:
        return Setting("That interactions are sealed on their way", there)
    return Setting(release.relied_on(experiment.consent.choices), there)
