"""What rounds of masked and of checked sums have in common: which devices are left out and why,
what is said of them, and who helps to open a sum.

A submission that cannot be used is left out by name, before anybody is asked for a sum. If too few
are left, the round is open again: the others' submissions stay, and nobody pays twice. Whoever is
left out by her own fault again and again is shut out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from sottovoce.core.messages import ModelView
from sottovoce.engines.helper_client import HelperElsewhere, HelperTerms, SumRefused
from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, WrongSum
from sottovoce.parties.rounds import NotOpened, PartyAway, TooFew
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.database import Leader
from sottovoce.wire.masked import model_name

UNDECRYPTABLE, DOUBLED = "undecryptable", "doubled_key"
BAD_SHARES, OUT_OF_RANGE, LOST = "bad_shares", "out_of_range", "lost"
"""Why somebody is left out."""
FAULTS = frozenset({UNDECRYPTABLE, DOUBLED, BAD_SHARES, OUT_OF_RANGE})
"""Those of a device itself."""
_WORDS = {
    UNDECRYPTABLE: "the helper could not open the seeds of devices {}",
    DOUBLED: "devices {} have the key of another one",
    BAD_SHARES: "the shares of devices {} are not what they have signed, sealed or committed to",
    OUT_OF_RANGE: "what devices {} have shared is beyond the bounds that are checked",
    LOST: "an aggregator has lost the shares of devices {}",
}


@contextmanager
def asking(party: str = "helper") -> Iterator[None]:
    """Ask another party within. What goes wrong is raised as rounds know it."""
    try:
        yield
    except (Unreachable, KeyTrouble) as error:
        if isinstance(error, HelperTerms):
            raise PartyAway(party, str(error), "terms") from None
        refuses = isinstance(error, HelperElsewhere | KeyTrouble)
        raise PartyAway(party, str(error), "refuses" if refuses else "away") from None
    except WrongSum as error:
        raise NotOpened("wrong_sum", str(error)) from None
    except SumRefused as error:
        raise NotOpened("sum_refused", str(error)) from None


def model_of(link: sa.Connection, round: int, width: int) -> tuple[ModelView, bytes]:
    """The round's model and its name."""
    found = records.model(link, round, width)
    if found is None:
        raise ServiceError(f"the database lacks the model of round {round}")
    return ModelView(round, found[0]), model_name(found[0])


def doubled(leader: Leader, devices: Mapping[int, bytes]) -> dict[int, str]:
    """Those of these numbers, each with the key that signed its message, whose key is another
    number's: the helper and the aggregators refuse the whole set if a key is twice in it."""
    with leader.reading() as link:
        keys = sums.keys_of(link, list(devices))
    seen, out = set[bytes](), dict[int, str]()
    for number, key in sorted(devices.items()):
        if key in seen or keys.get(number) != key:
            out[number] = DOUBLED
        else:
            seen.add(key)
    return out


def too_few(leader: Leader, now: records.Position, least: int, asked: str) -> TooFew:
    """`asked` are those who were not asked for a sum, with a verb."""
    with leader.reading() as link:
        return TooFew(_few_left(link, now, least, asked))


def _few_left(link: sa.Connection, now: records.Position, least: int, asked: str) -> str:
    good = sums.there(link, now.round, now.attempt)
    return f"{good:,} good submissions are left, and a sum needs {least:,}; the {asked} not asked"


def replaced(
    link: sa.Connection, now: records.Position, least: int, asked: str
) -> tuple[str, ...] | None:
    """What is said if others are waited for in the place of those who were left out; None if that
    would not help: nobody is left, or another party has lost what devices sent, which they cannot
    send again."""
    place = now.round, now.attempt
    good, out = sums.there(link, *place), sums.who_is_out(link, *place)
    if not good or not FAULTS.issuperset(out.values()):
        return None
    searches.forget_drawn(link)
    return (f"{_few_left(link, now, least, asked)}; the round is open again", *_named(out))


def note_devices(link: sa.Connection, now: records.Position) -> list[str]:
    """What a round that is over says of its devices, before its messages are forgotten."""
    place = now.round, now.attempt
    out = sums.who_is_out(link, *place)
    bad = [number for number, reason in out.items() if reason in FAULTS]
    notices = _named(out)
    # Where most cannot be used, it is rather another party's fault.
    if len(bad) < sums.there(link, *place):
        for number, times in sums.offended(link, bad).items():
            why = (
                "the server has shut this device out, because what it sent could not be used "
                f"in {times} rounds"
            )
            records.shut(link, [number], why)
            notices.append(f"device {number} was shut out: it was left out of {times} rounds")
    return notices


def left_out(link: sa.Connection, now: records.Position) -> dict[str, int]:
    """How many were left out of the round, by reason."""
    return dict(Counter(sums.who_is_out(link, now.round, now.attempt).values()))


def _named(out: Mapping[int, str]) -> list[str]:
    """Return sentences that name the devices left out of a round, and why."""
    return [
        words.format(", ".join(str(n) for n, why in out.items() if why == reason)) + "; left out"
        for reason, words in _WORDS.items()
        if reason in out.values()
    ]
