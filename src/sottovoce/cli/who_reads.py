"""Who reads what of a device under the terms of a federation, and what they can compute from it:
in sentences for whoever decides whether to take part. docs/privacy.md has the tests behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.cli.budget import bound_text, count_of
from sottovoce.cli.output import listed, one_line

if TYPE_CHECKING:
    from sottovoce.algorithms.uc_config import UCConfig
    from sottovoce.links import SecureSum
    from sottovoce.privacy.updates import Clipped
    from sottovoce.terms import Terms

_SAME_PEOPLE = (
    "This holds while whoever runs the server and whoever runs the proxy do not put together "
    "what they have, and while the others in the sum are people: a server that makes up all "
    "other devices can read yours."
)


def who_reads(terms: Terms, *, gateway: bool = False) -> list[str]:
    """What whoever takes part gives away, to whom; what the server can compute comes first. A
    `gateway` sends one sum of all its users."""
    from sottovoce.algorithms.uc_config import UCConfig
    from sottovoce.privacy.updates import Clipped

    algorithm, release = terms.algorithm, terms.release
    filtered = isinstance(algorithm, UCConfig) and isinstance(release, Clipped)
    filters = _filters(algorithm) if isinstance(algorithm, UCConfig) else []
    if terms.reporting is not None:
        told = _reports(terms)
    elif terms.secure_sum is not None:
        told = [*filters, *_summed(terms.secure_sum)]
    elif gateway:
        told = [*_hosted(terms), *filters]
    elif isinstance(algorithm, UCConfig) and isinstance(release, Clipped):
        told = [*filters, *_filtered(algorithm, release, noisy=terms.noisy)]
    else:
        told = _rows(terms)
    if terms.reporting is None and not filtered:
        told.append(
            "Everybody can read the models that are published. Who knows many of your items can "
            "tell from them, better than by chance, which others were learnt from."
        )
    return told


def _rows(terms: Terms) -> list[str]:
    """FPL and FCF, straight to the server."""
    from sottovoce.privacy.mechanisms import ShareFraction

    told = [
        "Whoever runs the server reads every report by itself and knows that it is yours: your "
        f"device's number, the round, the address it came from, and for {_how_many(terms)}, by "
        "name, the numbers that your device has learnt."
    ]
    if not isinstance(terms.release, ShareFraction):
        told.append(
            "A single report gives every item of yours away: the server can compute all of your "
            "history from it, and your vector, which holds your tastes. No ε bounds what it learns."
        )
        return told
    told += [
        "The server can compute from a single row of it your vector, which holds your tastes, and "
        "an item that you have, also where no row of an item of yours leaves: "
        "`--share-positives 0` does not keep your items from a curious server. No ε bounds what it "
        "learns.",
        "The other rows are of items that you do not have, so that the items that never come are "
        "yours. Rows of items of yours show by their sign.",
    ]
    if terms.release.per == "item":
        told.append(
            "What you decide by --share-positives is of which share of your items rows are sent at "
            "all; the share is drawn once, and others are never sent."
        )
    else:
        told.append(
            "What you decide by --share-positives is how often a row of an item of yours is sent "
            "when it is drawn; in time nearly every item of yours is."
        )
    return told


def _how_many(terms: Terms) -> str:
    if terms.triples:
        return f"up to {terms.max_rows:,} of {terms.n_items:,} items"
    if getattr(terms.algorithm, "variant", "") == "fpl":
        return "each of your items"
    return f"each of {terms.n_items:,} items"


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
    if getattr(terms.release, "dense", False):
        each = getattr(terms.release, "epsilon", 0.0)
        return [f"{reader} Each user's part has noise that costs ε = {each:g} a round.", hosts]
    return [
        f"{reader} A sum of one is no sum: the server can compute that user's tastes and items "
        "from it, and the same from rows of the sum to which one user alone has added. No ε "
        "bounds what it learns.",
        hosts,
    ]


def _reports(terms: Terms) -> list[str]:
    """FMF-LDP, through a proxy."""
    from sottovoce.links import Proxied

    release, link = terms.reporting, terms.link
    if release is None or not isinstance(link, Proxied):
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


def _filters(algorithm: UCConfig) -> list[str]:
    if not algorithm.attributes:
        return ["There are no filters, so that no attribute can be hidden."]
    names = listed(algorithm.names)
    return [f"There are filters for {names}, each of which every user may hide."]


def _filtered(algorithm: UCConfig, release: Clipped, *, noisy: bool) -> list[str]:
    """UC-FedRec, straight to the server."""
    reader = "Whoever runs the server reads every report by itself and knows that it is yours"
    if release.dense:
        whose = ", also of the filters of hidden attributes" if algorithm.attributes else ""
        told = [
            f"{reader}, but for its noise.",
            f"What leaves in a round: a change of every row of the model{whose}, with noise on "
            f"each number, by which a report costs ε = {release.epsilon:g} in all. What rounds "
            "cost adds up.",
        ]
        if release.hiding_epsilon:
            told.append(
                "Who hides an attribute adds more noise, so that a report costs ε = "
                f"{release.hiding_epsilon:g}. How much noise there is can be seen: it tells that "
                "something is hidden."
            )
        return told
    networks = "" if algorithm.recommender == "mf" else "; and of the recommender's networks"
    told = [
        f"{reader}: your device's number, the round, and the address it came from.",
        "What leaves in a round: changes of some items' rows, by name, items of the history among "
        f"them{networks}.",
        "The server can compute from them which of the items are yours and, nearly, your "
        "embedding, which holds your tastes.",
    ]
    if algorithm.attributes:
        told.append(
            "For each attribute that is shared, the change of its filter leaves, too, in which a "
            "server can read the value. Filters of which no change comes tell it what is hidden, "
            "or not known."
        )
        if algorithm.filters == "moments":
            told.append(
                "Who shares an attribute sends her embedding with it: all that the model knows of "
                "her tastes, from which what she hides may be guessed. Who alone shares an "
                "attribute shows her value to everybody who reads the model."
            )
    if noisy:
        told.append(
            f"Each number has noise: its ε = {release.epsilon:g} bounds what one number tells, not "
            "what a report of thousands does."
        )
    else:
        told.append("No ε bounds what it learns.")
    return told
