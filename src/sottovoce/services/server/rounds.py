"""Which collection the rounds of a server have, by the link of its terms."""

from __future__ import annotations

from pathlib import Path

from sottovoce.stores.collection import Collection, PlainReports
from sottovoce.stores.coordinator import Clock, Coordinator, Plan
from sottovoce.stores.keys import ReportKeys
from sottovoce.stores.server_folder import proxy_token
from sottovoce.wire.masked import mask_sum_bytes


def coordinator_of(plan: Plan, clock: Clock, keys: Path) -> Coordinator:
    """The coordinator of a federation whose server has these keys."""
    return Coordinator(plan, clock, collection_of(plan, keys))


def collection_of(plan: Plan, keys: Path) -> Collection:
    # Servers start sooner without the libraries of links that they do not have.
    terms = plan.terms
    if plan.proxied:
        from sottovoce.services.server.shuffled_rounds import ShuffledBatches

        return ShuffledBatches(plan, ReportKeys(keys))
    if terms.secure_sum is not None:
        from sottovoce.engines.helper_client import HelperClient
        from sottovoce.services.server.summed_rounds import MaskedSums

        helper = HelperClient(terms.secure_sum, proxy_token(keys), mask_sum_bytes(terms))
        return MaskedSums(plan, helper.ask)
    if terms.link.checking is not None:
        from sottovoce.services.server.checked_rounds import CheckedSums

        return CheckedSums.of(plan, keys)
    return PlainReports(plan.value_limit)
