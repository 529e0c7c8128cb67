"""`sottovoce device agree`: the terms of a federation, who reads what under them, and what the
server has changed in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output, plainly
from sottovoce.cli.options import Json, Store, Technical
from sottovoce.cli.output import listed, one_line
from sottovoce.core.words import said
from sottovoce.errors import UsageError
from sottovoce.privacy.statements import bound_text, count_of

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession
    from sottovoce.wire.terms import Terms

_MOST_CLASSES = 8


def agree(
    path: Store,
    digest: Annotated[
        str | None,
        typer.Option(
            "--terms", metavar="DIGEST", help="Agree to the terms with this digest, which you saw."
        ),
    ] = None,
    look: Annotated[bool, typer.Option("--look", help="Only show; so does leaving all out.")] = (
        False
    ),
    technical: Technical = False,
    as_json: Json = False,
) -> None:
    """Show the terms of a federation and who reads what under them, or agree to them.

    Nothing leaves before you have agreed, to the first terms and to every change of them, not even
    an enrolment; that you take part is no agreement. Terms have a digest, which is shown with them:
    to agree, name it. Only what you have seen can be meant then, whatever the server shows next.

    \b
    Examples:
      sottovoce device agree ~/sottovoce
      sottovoce device agree ~/sottovoce --terms 0123456789abcdef0123456789abcdef
    """
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import open_cohort

    if look and digest is not None:
        raise UsageError("choose one of --look and --terms")
    with open_cohort(path, readonly=digest is None) as store:
        hosted, gateway = DeviceSession(store), is_gateway(store)
        before, pending = hosted.terms, hosted.pending
        shown = pending or before
        if digest is not None:
            _agree_to(hosted, shown, digest, path)
    waits = pending is not None and digest is None
    changes = _changes(before, pending)
    if as_json:
        output.emit(
            {
                "store": path,
                "agreed": shown is not None and not waits,
                "digest": shown.digest() if shown else None,
                "terms": shown.to_table() if shown else None,
                "changes": [{"setting": k, "from": a, "to": b} for k, a, b in changes],
                "what_leaves": who_reads(shown, gateway=gateway) if shown else [],
            }
        )
        return
    if shown is None:
        output.show(*terms_in_words(None, path, technical=technical))
        return
    if digest is None:
        output.show(*terms_in_words(shown, path, gateway=gateway, technical=technical))
    if changes:
        head = "What the server has changed:" if waits else "What has changed:"
        output.show(head if technical else f"{output.joined(said('terms.changes'))}:")
        output.show(*(f"  {k}: {a} → {b}" for k, a, b in changes))
    if waits:
        output.show(*waiting(shown, path, technical=technical))
    else:
        output.show("Agreed to." if technical else output.joined(said("terms.agreed")))
    if digest is None and not technical:
        output.show(output.joined(said("device.more")))


def _agree_to(hosted: DeviceSession, shown: Terms | None, digest: str, path: Path) -> None:
    if shown is None:
        raise UsageError(terms_in_words(None, path, technical=True)[0])
    if digest != shown.digest():
        raise UsageError(
            "these are not the terms that the server shows now, so nothing was agreed to; see "
            f"them with `sottovoce device agree {path}`"
        )
    hosted.agree(shown)


def is_gateway(store: CohortStore) -> bool:
    """Whether its users' reports leave as one sum. A sum of one is none."""
    return len(store.users) > 1


def waiting(terms: Terms, path: Path, *, technical: bool) -> list[str]:
    """That nothing leaves under these terms yet, and how to agree."""
    if not technical:
        return plainly.agreeing(terms, path)
    return [
        "Nothing leaves yet: nobody has agreed to these terms. To agree to them: sottovoce device "
        f"agree {path} --terms {terms.digest()}"
    ]


def terms_in_words(
    terms: Terms | None,
    path: Path,
    *,
    gateway: bool = False,
    waits: bool = False,
    technical: bool,
) -> list[str]:
    """What whoever takes part should read: the terms, or how she will get to see them."""
    if terms is None and not technical:
        return plainly.asking(path)
    if terms is None:
        return [
            "Nothing leaves yet: who would read what is not known. `sottovoce serve device "
            f"{path} --once` asks the server for its terms and sends nothing; then see them with "
            f"`sottovoce device agree {path}`."
        ]
    words = _in_words if technical else plainly.in_words
    then = waiting(terms, path, technical=technical) if waits else []
    return [*words(terms, gateway=gateway), *then]


def _in_words(terms: Terms, *, gateway: bool) -> list[str]:
    return [
        "Who reads what, and what they can compute from it:",
        *(f"  {sentence}" for sentence in who_reads(terms, gateway=gateway)),
        *_warning(terms),
        *_costs(terms),
        f"The server's terms ({terms.federation}):",
        *(f"  {k} = {_short(value)}" for k, value in sorted(_flat(terms).items())),
    ]


def _costs(terms: Terms) -> list[str]:
    """What a round costs in each tier, where reports are randomised."""
    release = terms.reporting
    if release is None:
        return []
    k = release.max_reports
    return [
        f"A round sends {count_of(k, 'randomised report')} of one bit. Each device is in the tier "
        "of the largest ε that its owner permits:",
        *(
            f"  ε = {tier.epsilon:g} a report, {bound_text(k * tier.epsilon)} a round, in batches "
            f"of at least {tier.min_devices:,} devices"
            for tier in release.tiers
        ),
    ]


def _warning(terms: Terms) -> list[str]:
    if not terms.revealing:
        return []
    from sottovoce.stores.prepared import how_revealing

    return [f"Mind: {how_revealing(terms)}."]


def _flat(terms: Terms) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in terms.to_table().items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): v for name, v in inner.items()}
    return flat


def _short(value: Any) -> Any:
    """A setting on one line."""
    if isinstance(value, str):
        return _fingerprint(value)
    if isinstance(value, list | tuple):
        return "; ".join(
            ", ".join(f"{k} {_few(v)}" for k, v in one.items())
            if isinstance(one, dict)
            else str(one)
            for one in value
        )
    return value


def _few(value: Any) -> str:
    """The first of many classes, or of their shares."""
    if not isinstance(value, list | tuple):
        return _fingerprint(str(value))
    more = " | …" if len(value) > _MOST_CLASSES else ""
    return f"({' | '.join(map(str, value[:_MOST_CLASSES]))}{more})"


def _fingerprint(text: str) -> str:
    """In the place of a certificate; any other text as it is."""
    if "-----BEGIN" not in text:
        return text
    return f"certificate {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _changes(before: Terms | None, after: Terms | None) -> list[tuple[str, Any, Any]]:
    if before is None or after is None:
        return []
    old, new = _flat(before), _flat(after)
    keys = sorted(old.keys() | new.keys())
    changed = [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]
    return [(k, _short(a), _short(b)) for k, a, b in changed]


# Who reads what of a device under the terms of a federation, and what they can compute from it:
# in sentences for whoever decides whether to take part. docs/privacy.md has the tests behind
# them.

if TYPE_CHECKING:
    from sottovoce.algorithms.base import AlgorithmSettings
    from sottovoce.core.links import CheckedSum, Proxied, SecureSum
    from sottovoce.privacy.own_epsilon import OwnEpsilon
    from sottovoce.privacy.reports import KReports
    from sottovoce.wire.terms import Terms

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
    elif terms.release.contributing is not None and terms.secure_sum is not None:
        told = _contributions(terms.release.contributing, terms.secure_sum, gateway=gateway)
    elif terms.release.contributing is not None and terms.link.checking is not None:
        told = _checked(terms.release.contributing, terms.link.checking)
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
    if link.chain:
        return _chained_reports(release, link)
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


def _chained_reports(release: KReports, link: Proxied) -> list[str]:
    """FMF-LDP, through a chain of shufflers."""
    k, many = release.max_reports, link.shufflers
    places = ", then ".join(one_line(url) for url in (link.url, *(hop.url for hop in link.chain)))
    costs = "; ".join(f"{bound_text(k * tier.epsilon)} a round" for tier in release.tiers)
    return [
        f"What leaves in a round: {count_of(k, 'randomised report')} of one bit, each sealed to "
        f"the server and to the shufflers that it passes, {many} one after the other: {places}.",
        "Whoever runs the first shuffler sees that your device sends, from which address, when, "
        "and in which tier, which is the largest ε that you accept. The others see batches of a "
        "tier. None of them can read a report.",
        "Whoever runs the server knows that your device has enrolled, and reads all reports of a "
        "tier in an order that says nothing: not whose they are, nor which belong together. That "
        f"holds as long as one of the {many} shufflers is honest, also if the server and all "
        "others put together what they have, and while the others in a batch are people: whoever "
        "runs the server or the first shuffler could make up devices, and each shuffler can leave "
        f"reports out. If all {many} work with the server, it reads your reports as yours, and "
        f"what it can compute is bounded by the plain sum: {costs} by tier. What rounds cost adds "
        "up.",
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


def _contributions(release: OwnEpsilon, link: SecureSum, *, gateway: bool) -> list[str]:
    """gram."""
    whole, who = ("the sum of its users", "gateways") if gateway else ("it", "devices")
    told = [
        "What leaves: one contribution in each stage of a period, as long as your ε permits and no "
        f"longer, masked. The server cannot read {whole}; the proxy gets the mask and nothing "
        f"else. What the server reads is one sum over at least {link.min_devices:,} {who}, with "
        "noise.",
        "What everybody can tell of you from all that is published in a period is bounded by the ε "
        f"that you choose, at most {release.epsilon:g}, but for a chance of {release.delta:g}. "
        "Nobody learns which ε that is.",
    ]
    if release.parts:
        told.append(
            f"Devices add the noise, each a part, and {release.parts:,} parts are the whole: your "
            "ε holds while so many devices of a sum keep to it."
        )
    else:
        told.append(
            "The proxy adds the noise: your ε does not hold toward it, and nobody would notice if "
            "it added none."
        )
    if gateway:
        told.append(
            "Whoever runs this gateway can read everything of its users: histories and choices are "
            "in this store."
        )
    if release.period_days:
        told.append(f"Between two periods your device waits {release.period_days:,} days.")
    return [
        *told,
        "This holds while whoever runs the server and whoever runs the proxy do not put together "
        "what they have: together they read your contribution.",
    ]


def _checked(release: OwnEpsilon, link: CheckedSum) -> list[str]:
    """gram, over a checked sum."""
    from sottovoce.core.links import NOISE_BY

    where = listed([f"at {one_line(url)}" for url in link.urls])
    told = [
        "What leaves: one contribution in each stage of a period, as long as your ε permits and no "
        "longer, divided into three shares. Three organisations have two of the shares each: "
        f"whoever runs the server, and whoever runs the aggregators{f' {where}' * bool(where)}. No "
        "one of them alone can read anything of it. Any two of them together read everything.",
        "What they check without seeing it: that every number of a contribution, and all of it "
        "together, keeps to the bounds. They learn whether it does, and leave out who does not. "
        f"What is opened is one sum over at least {link.min_devices:,} devices, with noise. All "
        "three see that your device takes part in a round.",
        "What everybody can tell of you from all that is published in a period is bounded by the ε "
        f"that you choose, at most {release.epsilon:g}, but for a chance of {release.delta:g}. "
        "Nobody learns which ε that is.",
        NOISE_BY[link.noise_by],
    ]
    if release.period_days:
        told.append(f"Between two periods your device waits {release.period_days:,} days.")
    return [
        *told,
        "This holds while no two of the three organisations put together what they have, and while "
        "the others in the sum are people: a server that makes up all other devices can read "
        "yours, but for the noise.",
    ]


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
