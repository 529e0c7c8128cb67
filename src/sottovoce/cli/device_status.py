"""`sottovoce device status`."""

from __future__ import annotations

from typing import Any

from sottovoce.cli import output
from sottovoce.cli.device import Store
from sottovoce.cli.options import Json


def status(path: Store, as_json: Json = False) -> None:
    """Where a store stands: federation, history, choice, who reads what, budget, round, agent.

    \b
    Example:
      sottovoce device status ~/sottovoce
    """
    from sottovoce.cli import spent, spent_sums
    from sottovoce.cli.device_attributes import standing, status_words, to_json
    from sottovoce.cli.device_terms import is_gateway, terms_in_words, waiting
    from sottovoce.cli.who_reads import who_reads
    from sottovoce.engines.https.invitations import kept_invitation
    from sottovoce.parties.hosted import Hosted
    from sottovoce.parties.store import CohortStore

    with CohortStore.open(path, readonly=True) as store:
        hosted, invitation = Hosted(store), kept_invitation(store)
        terms, view, latest = hosted.terms, hosted.model(), hosted.latest()
        pending, gateway = hosted.pending, is_gateway(store)
        history, records = store.count_history(), store.choices()
        content: dict[str, Any] = {
            "store": path,
            "users": len(records),
            "taking_part": int(records.takes_part.sum()),
            "choice": records.row(0).words() if len(records) == 1 else None,
            "federation": invitation.federation if invitation else terms and terms.federation,
            "server": invitation.server if invitation else None,
            "interactions": history,
            "unknown_items": len(store.unknown()),
            "model": view.round if view else None,
            "latest": latest
            and {"round": latest.round, "attempt": latest.attempt, "state": latest.state},
            "terms": terms.digest() if terms else None,
            "agreed": terms is not None and pending is None,
            "other_terms_offered": hosted.offered is not None,
            "agent_running": store.file.served(),
        }
        alone = int(store.users[0]) if len(records) == 1 else None
        budget = None if alone is None else spent.of_store(store, alone, terms)
        sums = None if alone is None else spent_sums.of_store(store, alone, terms)
        known = [] if alone is None else standing(store, alone, terms)
    shown = pending or terms
    leaves = who_reads(shown, gateway=gateway) if shown else []
    nothing: str | None = None
    if not content["taking_part"]:
        nothing = "Nothing leaves: nobody takes part."
    elif shown is None:
        nothing = terms_in_words(None, path)[0]
    elif pending is not None:
        nothing = waiting(pending, path)[0]
    if as_json:
        content |= {"attributes": to_json(known), "what_leaves": leaves, "nothing_leaves": nothing}
        costs = {"budget": budget and budget.to_table(), "sums": sums and sums.to_table()}
        output.emit({**content, **costs})
        return
    content["attributes"] = status_words(known)
    if content["other_terms_offered"]:
        content["other_terms_offered"] = f"yes, see: sottovoce device agree {path}"
    width = max(map(len, content))
    output.show(
        *(
            f"{key.replace('_', ' '):<{width}}  {output.words(value)}"
            for key, value in content.items()
            if value is not None
        ),
        *((nothing,) if nothing else ()),
        *leaves,
        *(budget.lines() if budget else ()),
        *(sums.lines() if sums else ()),
    )
