"""Whether those who keep terms of their own keep proposed ones: the helper of a secure sum, the
aggregators of a checked one, shufflers. Until all of them do, nobody is asked to go by them, since
what was sent under them would be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sottovoce.engines.client import Answer, Client
from sottovoce.engines.helper_client import TERMS, Ask
from sottovoce.errors import SottovoceError
from sottovoce.stores.amending import Waits
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms


def not_kept(terms: Terms, asks: Mapping[str, Ask]) -> Waits | None:
    """The first of these that does not keep these terms; None where all do."""
    name = terms_name(terms).hex()
    for party, ask in asks.items():
        command = party.split()[0]
        do = (
            "have its operator agree: give her the file of `sottovoce serve introduce DIR`, for "
            f"`sottovoce serve {command} DIR --introduction FILE`"
        )
        try:
            answer = ask(b"", TERMS)
        except SottovoceError as error:
            why = f"the {party} cannot be asked whether it keeps the new terms: {error}"
            return Waits(party, why, "see whether it runs and can be reached from the server")
        if answer.status != 200 or name not in _named(answer):
            return Waits(party, f"the {party} does not keep the new terms yet", do)
    return None


def not_followed(terms: Terms) -> Waits | None:
    """The same of the shufflers of these terms."""
    link = terms.link.mixing
    if link is None:
        return None
    hops = [(link.url, link.authority), *((hop.url, hop.authority) for hop in link.chain)]
    for number, (url, authority) in enumerate(hops, 1):
        who = f"shuffler number {number}" if len(hops) > 1 else "the shuffler"
        try:
            answer = asyncio.run(_ask(url, authority))
        except SottovoceError as error:
            why = f"{who} cannot be asked whether it follows the new terms: {error}"
            return Waits("shuffler", why, "see whether it runs and can be reached from the server")
        if answer.status != 200 or terms_name(terms).hex() not in _named(answer):
            return Waits(
                "shuffler",
                f"{who} does not follow the new terms yet",
                "have its operator agree: give her the file of `sottovoce serve terms DIR --out "
                "FILE`, for `sottovoce serve shuffler DIR --terms FILE`",
            )
    return None


async def _ask(url: str, authority: str) -> Answer:
    client = Client(url, authority, plaintext=not authority)
    try:
        return await client.get("/v1/agreed")
    finally:
        await client.rest()


def _named(answer: Answer) -> list[str]:
    """The terms that somebody keeps, by name."""
    try:
        found = answer.table().get("terms")
    except SottovoceError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
