"""FPL of a browser tab in a real Chromium, beside agents in Python: straight to the server, where a
tab keeps back what its owner does not share, and over a secure sum."""

import numpy as np
import pytest
from chromium import browser  # noqa: F401
from tab_world import (
    Front,
    asked,
    bundled,
    opened,
    said,
    tab_in,
    take_part,
    trial_of,
    upstream_of,
)
from talk import until

from sottovoce.rng import streams_of
from sottovoce.stores.device import CohortStore

ROUNDS = 3
SHARED = {
    "round": "round", "kind": "kind", "epsilon": "epsilon", "positiveRows": "positive_rows",
    "negativeRows": "negative_rows",
}  # fmt: skip
"""Of a row of the ledger: its name in a tab, and with Python."""
LINKS = {
    "direct": {"link": {"name": "direct"}, "release": {"name": "share-fraction", "per": "draw"}},
    "secure-sum": {
        "link": {"name": "secure-sum", "min_devices": 4, "clip": 2.0},
        "release": {"name": "share-fraction", "per": "item"},
    },
}


def table(name):
    """Some share half of their items, some all; draws are those of real devices."""
    halves = {"weight": 1, "share_positives": 0.5}
    return {
        "seed": 6, "draws": "secret", "town": {"residents": 6, "venues": 36, "districts": 1},
        "algorithm": {"name": "fpl", "embedding_size": 4, "cohort_size": "all", "triples": 12,
                      "rounds": ROUNDS},
        "consent": {"mix": [halves, {"weight": 1, "share_positives": 1.0}]}, **LINKS[name],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["direct", pytest.param("secure-sum", marks=pytest.mark.slow)])
def test_a_tab_and_agents_make_the_simulations_model_and_ledgers(browser, tmp_path, name):  # noqa: F811
    simulated, trial = trial_of(tmp_path / "services", **table(name))
    cohort = trial.world.cohort
    shares = cohort.consent.share_positives.tolist()
    tab = next(row for row, share in enumerate(shares) if share == 0.5)
    assert 1.0 in shares
    trial.tabs = (tab,)
    with Front() as front, trial.running(), browser.new_context() as context:
        front.upstream = upstream_of(trial)
        page = tab_in(context, front.url)
        opened(page, front, trial.invitation(tab))
        page.evaluate(bundled("test/given.ts"))
        secret = streams_of(trial.world.root_key).root_bytes().hex()
        vector = cohort.vectors[tab].tolist()
        page.evaluate("([...given]) => give(...given)", [front.url, secret, vector])
        take_part(page, trial.visits(tab), epsilon=0, sharePositives=0.5)
        trial.operator().raise_target(ROUNDS)
        until(lambda: trial.round() == ROUNDS, 120, lambda: asked(page, "status"))
        last = {"round": ROUNDS - 1, "attempt": 0, "state": "arrived"}
        until(lambda: asked(page, "status")["report"] == last)
        asked(page, "refresh")
        model = trial.operator().model(ROUNDS, trial.world.terms)
        status, told = asked(page, "status"), asked(page, "ledger")
        best = asked(page, "recommend", 5)
        # An ε is no limit where there is no noise: nothing leaves under it, and she is told.
        asked(page, "choose", {"epsilon": 1.0})
        trial.operator().raise_target(ROUNDS + 1)
        until(lambda: "no noise to keep to it" in str(page.evaluate("heard")), 60)
        refused = said(page, "preview")["found"]
    simulated.run()
    rows = simulated.devices.ledger.pending().to_pylist()
    for other in sorted(set(range(len(cohort))) - {tab}):
        with CohortStore.open(trial.store(other), readonly=True) as store:
            found = [row for row in store.ledger().to_pylist() if row["round"] < ROUNDS]
        assert found == [row for row in rows if row["user"] == other]
    expected = [row for row in rows if row["user"] == tab]
    assert np.array_equal(model.items, simulated.server.items), "to the last bit"
    reports = [row for row in told if row["what"] == "report"]
    assert [row["state"] for row in reports] == ["arrived"] * ROUNDS
    for mine, theirs in zip(reports, expected, strict=True):
        assert {key: mine[key] for key in SHARED} == {k: theirs[v] for k, v in SHARED.items()}
    (totals,) = status["budget"]["totals"]
    assert totals["releases"] == ROUNDS
    assert totals["bytes"] == sum(row["bytes"] for row in expected)
    assert totals["epsilon"] == float("inf"), "no ε bounds what it tells"
    assert [path for path, _ in front.posted].count("/v1/reports") == ROUNDS
    assert (refused["messages"], refused["why"]) == ([], "choice")
    assert len(best) == 5
    assert not page.troubles
