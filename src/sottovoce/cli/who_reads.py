"""Who reads what of a device under the terms of a federation, and what they can compute from it:
in sentences for whoever decides whether to take part. docs/privacy.md has the tests behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.cli.budget import bound_text, count_of
from sottovoce.cli.output import listed, one_line

if TYPE_CHECKING:
    from sottovoce.algorithms.base import AlgorithmSettings
    from sottovoce.links import SecureSum
    from sottovoce.terms import Terms

_SAME_PEOPLE = (
    "This holds while whoever runs the server and whoever runs the proxy do not put together "
    "what they have, and while the others in the sum are people: a server that makes up all "
    "other devices can read yours."
)


def who_reads(terms: Terms, *, gateway: bool = False) -> list[str]:
    """What whoever takes part gives away, to whom; what the server can compute comes first. A
    `gateway` sends one sum of all its users."""
    algorithm, release = terms.algorithm, terms.release
    filters = _filters(algorithm) if "hidden_attributes" in algorithm.reads else []
    if terms.reporting is not None:
        told = _reports(terms)
    elif terms.secure_sum is not None:
        told = [*filters, *_summed(terms.secure_sum)]
    elif gateway:
        told = [*_hosted(terms), *filters]
    else:
        told = [*filters, *algorithm.server_reads(release, terms.n_items)]
    return [*told, *([algorithm.published] if algorithm.published else [])]


def _hosted(terms: Terms) -> list[str]:
    """Any system, on a gateway."""
    reader = (
        "Whoever runs the server reads the sum over those of this store who took part in a round, "
        "how many they were, and the numbers of those who are willing."
    )
    hosts = (
        "Whoever runs this gateway can read everything of its users: histories, choices and what "
        "was learnt are in this store."
    )
    if terms.release.dense:
        each = f"{terms.release.epsilon:g}"
        return [f"{reader} Each user's part has noise that costs ε = {each} a round.", hosts]
    return [
        f"{reader} A sum of one is no sum: the server can compute that user's tastes and items "
        "from it, and the same from rows of the sum to which one user alone has added. No ε "
        "bounds what it learns.",
        hosts,
    ]


def _reports(terms: Terms) -> list[str]:
    """FMF-LDP, through a proxy."""
    release, link = terms.reporting, terms.link.mixing
    if release is None or link is None:
        return []
    k, where = release.max_reports, f" at {one_line(link.url)}" * bool(link.url)
    return [
        f"What leaves in a round: {count_of(k, 'randomised report')} of one bit, each sealed to "
        f"the server, by way of the proxy{where}.",
        "Whoever runs the proxy sees that your device sends, from which address, when, and in "
        "which tier, which is the largest ε that you accept. It cannot read the reports.",
        "Whoever runs the server knows that your device has enrolled, and reads all reports of a "
        "tier in an order that says nothing: not whose they are, nor which belong together. That "
        "holds while the two do not put together what they have, and while the others in a batch "
        "are people. If they do, the server reads your reports as yours, and what it can compute "
        "is bounded by the plain sum: "
        + "; ".join(f"{bound_text(k * tier.epsilon)} a round" for tier in release.tiers)
        + " by tier. What rounds cost adds up.",
    ]


def _summed(link: SecureSum) -> list[str]:
    """Any system, over a secure sum."""
    told = [
        "What leaves in a round: a change of every number of the model, masked. The server cannot "
        "read it; the proxy gets the mask and not the change. What the server can read is the sum "
        f"over at least {link.min_devices:,} devices, and the proxy tells one such sum in a round"
        + _groups_words(link)
    ]
    if link.clip:
        told.append(f"A change as a whole is cut to a length of {link.clip:g} before.")
    if link.noise:
        told.append(f"The proxy adds noise to the sum: Gaussian, {link.noise:g} times that length.")
    else:
        told.append(
            "The sum has no noise: what it tells of those who are in it is not hidden. Rows of it "
            "to which one device alone has added can be read by everybody."
        )
    return [*told, _SAME_PEOPLE]


def _groups_words(link: SecureSum) -> str:
    if link.groups == 1:
        return "."
    return (
        "; or, while the server looks for a device that spoils sums, at most "
        f"{link.groups:,}, over groups that have no device in common. Yours is in one of them."
    )


def _filters(algorithm: AlgorithmSettings) -> list[str]:
    if not algorithm.attributes:
        return ["There are no filters, so that no attribute can be hidden."]
    names = listed([attribute.name for attribute in algorithm.attributes])
    return [f"There are filters for {names}, each of which every user may hide."]
