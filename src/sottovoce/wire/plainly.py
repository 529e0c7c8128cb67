"""The terms of a federation for somebody who knows nothing of it: who sees what of her, what she
would agree to, and why a choice lets nothing leave.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sottovoce.core.links import has_noise
from sottovoce.core.words import Said, said
from sottovoce.privacy.own_epsilon import EPSILONS

if TYPE_CHECKING:
    from sottovoce.core.consent import Choice
    from sottovoce.wire.terms import Terms

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.wire.terms import Terms


class Onlooker(NamedTuple):
    """Somebody, and what she or he sees."""

    who: Said
    sees: Said


@dataclass(frozen=True, slots=True)
class Objection:
    """Why nothing leaves under a choice."""

    said: Said
    options: str
    """What would be chosen instead on a command line; empty where there is no one answer."""


def is_bounded(terms: Terms) -> bool:
    """Whether an ε bounds what leaves."""
    release = terms.release
    return bool(terms.reporting or terms.contributes or release.dense or has_noise(terms.link))


def is_printed(terms: Terms) -> bool:
    """Whether the server reads single reports that nothing bounds, as the papers have it."""
    return terms.link.adds_up is None and not is_bounded(terms)


def onlookers(terms: Terms, *, gateway: bool = False) -> list[Onlooker]:
    """Return who sees what of a participant. A `gateway` sends one sum of all its users."""
    if terms.reporting is not None:
        found = _of_reports(terms)
    elif terms.link.checking is not None:
        found = _of_checked_sum(terms)
    elif terms.secure_sum is not None:
        found = _of_secure_sum(terms, gateway)
    elif gateway:
        found = [("reads.server", said("sees.sum_store"))]
    elif terms.release.dense:
        found = [("reads.server", said("sees.update_noise"))]
        if terms.release.shows_hiding:
            found.append(("reads.server", said("sees.hiding_noise")))
    else:
        found = [("reads.server", said("sees.rows_guess"))]
        if terms.triples:  # a row of a thing that is not hers gives one away that is
            found.append(("reads.server", said("sees.share_none")))
        if terms.algorithm.attributes:
            found.append(("reads.server", said("sees.attribute_values")))
            found.append(("reads.server", said("sees.attribute_hidden")))
    if gateway:
        found.append(("reads.gateway", said("sees.everything_here")))
    if terms.algorithm.published:
        found.append(("reads.everybody", said("sees.model")))
    return [Onlooker(said(who), sees) for who, sees in found]


def _of_reports(terms: Terms) -> list[tuple[str, Said]]:
    """FMF-LDP."""
    if terms.chained:
        return [
            ("reads.first_shuffler", said("sees.sealed")),
            ("reads.first_shuffler", said("sees.tier")),
            ("reads.other_shufflers", said("sees.sealed_on")),
            ("reads.server", said("sees.batch")),
            ("reads.together_shufflers", said("sees.reports_yours")),
        ]
    if terms.link.mixing is None:
        return [("reads.server", said("sees.reports_read"))]
    return [
        ("reads.shuffler", said("sees.sealed")),
        ("reads.shuffler", said("sees.tier")),
        ("reads.server", said("sees.batch")),
        ("reads.together_shuffler", said("sees.reports_yours")),
    ]


def _of_checked_sum(terms: Terms) -> list[tuple[str, Said]]:
    link = terms.link.checking
    least = 0 if link is None else link.min_devices
    return [
        ("reads.aggregator", said("sees.share")),
        ("reads.two_aggregators", said("sees.two")),
        ("reads.everybody", said("sees.sum", n=least)),
        ("reads.nobody", said("sees.loudness")),
    ]


def _of_secure_sum(terms: Terms, gateway: bool) -> list[tuple[str, Said]]:
    """gram, and other systems over a secure sum, of people or of gateways."""
    link, own = terms.secure_sum, terms.release.contributing
    least = 0 if link is None else link.min_devices
    found = [("reads.server", said("sees.masked")), ("reads.helper", said("sees.seed"))]
    if own is not None and own.parts:
        key = "sees.sum_parts_gateways" if gateway else "sees.sum_parts"
        found.append(("reads.everybody", said(key, n=least, parts=own.parts)))
    elif own is not None or has_noise(terms.link):
        key = "sees.sum_gateways" if gateway else "sees.sum"
        found.append(("reads.everybody", said(key, n=least)))
        found.append(("reads.helper", said("sees.noise_too")))
    else:
        key = "sees.sum_plain_gateways" if gateway else "sees.sum_plain"
        found.append(("reads.everybody", said(key, n=least)))
    found.append(("reads.together", said("sees.both")))
    if own is not None:
        found.append(("reads.nobody", said("sees.loudness")))
    return found


def agreed_to(terms: Terms, *, gateway: bool = False) -> list[Said]:
    """What whoever agrees should know besides who sees what: how many people at least, or gateways
    where each sends one sum, whose noise, how long, what it rests on."""
    link, own = terms.link, terms.release.contributing
    found = [said("terms.federation", name=terms.federation)]
    found += _places(terms)
    if link.adds_up is not None:
        key = "terms.least_gateways" if gateway else "terms.least_people"
        found.append(said(key, n=link.adds_up.min_devices))
    elif terms.reporting is not None:
        least = min(tier.min_devices for tier in terms.reporting.tiers)
        found.append(said("terms.least_batch", n=least))
    else:
        found.append(said("terms.no_least"))
    found += _noise(terms)
    if own is not None:
        found.append(said("terms.most_loud", most=own.epsilon))
        found.append(said("terms.chance", n=round(1 / own.delta)))
        if own.period_days:
            found.append(said("terms.period", n=own.period_days))
    found.append(said("terms.no_end"))
    found += _rests_on(terms)
    if is_printed(terms):
        found.append(said("terms.printed"))
    return found


def _places(terms: Terms) -> list[Said]:
    """Return which party is reached where, as far as the terms name it."""
    link, found = terms.link, []
    if link.mixing is not None and link.mixing.url:
        places = [link.mixing.url, *(hop.url for hop in link.mixing.chain)]
        found = [said("terms.runs_shuffler", address=place) for place in places]
    if terms.secure_sum is not None and terms.secure_sum.url:
        found = [said("terms.runs_helper", address=terms.secure_sum.url)]
    if link.checking is not None and any(link.checking.urls):
        found = [said("terms.runs_aggregators", addresses=list(link.checking.urls))]
    return found


def _noise(terms: Terms) -> list[Said]:
    own = terms.release.contributing
    if terms.link.checking is not None:
        return [said("terms.noise_by_aggregators")]
    if own is not None and own.parts:
        return [said("terms.noise_by_devices", n=own.parts)]
    if own is not None or has_noise(terms.link):
        return [said("terms.noise_by_helper")]
    if terms.reporting is not None or terms.release.dense:
        return [said("terms.noise_here")]
    return [said("terms.noise_none")]


def _rests_on(terms: Terms) -> list[Said]:
    link = terms.link
    if link.checking is not None:
        return [said("terms.two_apart"), said("terms.others_real")]
    if link.summing is not None:
        return [said("terms.helper_apart"), said("terms.others_real")]
    if link.mixing is not None and link.mixing.chain:
        return [said("terms.one_honest", n=link.mixing.shufflers), said("terms.others_real")]
    if link.mixing is not None:
        return [said("terms.shuffler_apart"), said("terms.others_real")]
    return []


_RISES = {
    "link.min_devices": ("more_people", "fewer_people"),
    "link.noise": ("more_noise", "less_noise"),
    "release.epsilon": ("louder", "quieter"),
    "release.period_days": ("longer", "sooner"),
}
"""What it means where a setting rises, and where it falls."""
_MEANS = (
    (r".*\.urls?", "moved"),
    (r".*\.(keys?|authority|authorities)", "other_key"),
    (r"n_items", "other_things"),
    (r"algorithm\..*", "other_model"),
    (r"link\..*", "other_way"),
    (r"release\..*", "other_sent"),
)
"""What it means where a setting is another, by its name."""


def of_change(setting: str, before: Any, after: Any) -> Said | None:
    """What the change of one setting means to whoever agreed to the former; None where nobody has
    plain words for it."""
    if setting in _RISES and isinstance(before, int | float) and isinstance(after, int | float):
        return said(f"terms.{_RISES[setting][after < before]}")
    for pattern, key in _MEANS:
        if re.fullmatch(pattern, setting):
            return said(f"terms.{key}")
    return None


def objection(
    terms: Terms, choice: Choice, missing: Sequence[str] = (), *, noisy_sums: bool = False
) -> Objection | None:
    """Why nothing leaves under this choice of somebody who takes part; None where something may.
    `missing` is what she hides and the federation has no filter for."""
    if missing:
        return Objection(said("objection.no_filter", names=list(missing)), f"--reveal {missing[0]}")
    release = terms.release
    if not release.objection(choice, noisy_sums=noisy_sums):
        return None
    if release.contributing is not None or release.dense:
        if choice.max_reports:
            return Objection(said("objection.no_reports"), "--reports 0")
        cost, least = release.cost(choice), EPSILONS[0]
        if cost is not None and release.contributing is not None:
            why = said("objection.limit", cost=cost, limit=choice.total_epsilon)
            return Objection(why, f"--total-epsilon {cost:g}")
        if release.contributing is not None:
            why = said("objection.loudness", least=least, most=release.epsilon)
            return Objection(why, f"--epsilon {min(1.0, release.epsilon):g}")
        why = said("objection.loudness_least", least=release.epsilon)
        return Objection(why, f"--epsilon {release.epsilon:g}")
    if terms.reporting is not None:
        if choice.share_positives:
            return Objection(said("objection.no_share"), "--share-positives 0")
        k, least = terms.reporting.max_reports, terms.reporting.tiers[0].epsilon
        why = said("objection.reports", n=k, least=least)
        return Objection(why, f"--reports {k} --epsilon {least:g}")
    if release.clips and choice.total_epsilon < math.inf and not noisy_sums:
        return Objection(said("objection.no_limit"), "--total-epsilon inf")
    if choice.max_reports or choice.epsilon:
        return Objection(said("objection.no_noise"), "--reports 0 --epsilon 0")
    if choice.share_positives < 1:
        return Objection(said("objection.share_all"), "--share-positives 1")
    return Objection(said("objection.choice"), "")


_MOST_CLASSES = 8


def settings(terms: Terms) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in terms.to_table().items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): v for name, v in inner.items()}
    return flat


def short(value: Any) -> Any:
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


def changes(before: Terms | None, after: Terms | None) -> list[tuple[str, Any, Any]]:
    if before is None or after is None:
        return []
    old, new = settings(before), settings(after)
    keys = sorted(old.keys() | new.keys())
    changed = [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]
    return [(k, short(a), short(b)) for k, a, b in changed]
