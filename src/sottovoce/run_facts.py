"""What a report card says of the run that was attacked."""

from __future__ import annotations

from sottovoce.attack_card import Setting
from sottovoce.data.dataset import Dataset
from sottovoce.data.interactions import Interactions
from sottovoce.experiment import Experiment
from sottovoce.links import Proxied, SecureSum
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports
from sottovoce.privacy.updates import Clipped


def facts_of(experiment: Experiment, dataset: Dataset, train: Interactions) -> dict[str, str]:
    """Which system on which data, what leaves by which way, and what people chose."""
    choices = experiment.consent.words(owners=experiment.silo is not None)
    return {
        "experiment": experiment.name,
        "system": experiment.system,
        "data": f"{dataset.name}: {train.n_users:,} users, {train.n_items:,} items, "
        f"{train.n_interactions:,} training interactions",
        "what leaves": _release_words(experiment.release),
        "its way": _link_words(experiment.link),
        "choices": "; ".join(" ".join(one.split()) for one in choices),
    }


def _release_words(release: object) -> str:
    if release is None:
        return "interactions, sealed to the data owners of their item"
    if isinstance(release, ShareFraction):
        return f"rows of items, of her positives a share π, drawn by {release.per}"
    if isinstance(release, KReports):
        tiers = " or ".join(f"{tier.epsilon:g}" for tier in release.tiers)
        return f"k = {release.max_reports:,} randomised reports a round at ε = {tiers} each"
    if isinstance(release, Clipped):
        noise = f" with noise at ε = {release.epsilon:g}" if release.epsilon else ", no noise"
        return f"updates cut to {release.clip:g}{noise}"
    return "everything that was learnt"


def _link_words(link: object) -> str:
    if link is None:
        return "to data owners, and from them to an orchestrator"
    if isinstance(link, Proxied):
        return "through a proxy that mixes reports and cannot read them"
    if isinstance(link, SecureSum):
        noise = f", with noise of {link.noise:g} times {link.clip:g}" if link.noise else ""
        return f"masked; sums of at least {link.min_devices:,} devices are opened{noise}"
    return "straight to the server, which reads every update"


def setting_of(experiment: Experiment) -> Setting:
    """What people relied on."""
    release, link = experiment.release, experiment.link
    there = ["secure-sum"] * isinstance(link, SecureSum)
    there += ["noise"] * (isinstance(link, SecureSum) and link.noise > 0)
    silo = experiment.silo
    there += ["aggregated"] * (silo is not None and silo.release == "aggregated")
    if release is None:
        words = "That interactions are sealed on their way"
    elif isinstance(release, ShareFraction):
        shares = sorted({f"{c.share_positives:g}" for c in experiment.consent.choices})
        words = "Your setting π = " + " or ".join(shares)
    elif isinstance(release, KReports):
        tiers = " or ".join(f"{tier.epsilon:g}" for tier in release.tiers)
        words = f"Your setting of k = {release.max_reports} reports a round at ε = {tiers} each"
    elif isinstance(release, Clipped):
        noise = f" with noise at ε = {release.epsilon:g}" if release.epsilon else ""
        words = f"Hiding attributes{noise}"
    else:
        words = "That raw data stay on the device"
    return Setting(words, tuple(there))
