"""FPL's Table 3: communication cost and freshness on Brazil, from the published counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPLConfig, published_cost, schedule
from sottovoce.core.messages import row_bytes
from sottovoce.evaluation.report import Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.fpl_published import BRAZIL_COST, BRAZIL_FRESHNESS
from sottovoce_papers.study import installed

_READING = """\
CCE counts item rows exchanged in an epoch: ρ(M + T(1+π)) with ρ = X⁺ contacts. The printed \
figures come out to the last digit only with T = X⁺/N = 34.336 not rounded; a device cannot draw a \
third of a triple, and with whole draws and rounds, as the system runs, the cost is the one in the \
column "as run". The text's "rpe = ρ|U⁻|" must read ρ/|U⁻|."""


def run(out: Path) -> dict[str, Any]:
    counts = installed("fpl-table3")["counts"]
    n, m, x = counts["users"], counts["items"], counts["positives"]
    rows: list[dict[str, Any]] = []
    for name in CONFIGURATIONS:
        plus = name.endswith("+")
        plan = schedule(FPLConfig(configuration=name), n, x)
        for share, printed in BRAZIL_COST.items():
            rows.append(
                {
                    "system": name,
                    "share_positives": share,
                    "CCE": round(published_cost(n, m, x, plus, share)),
                    "CCE_paper": printed[plus],
                    "CCE as run": round(plan.communication_cost(m, share)),
                    "nFRSH": round(100 * plan.freshness, 4),
                    "nFRSH_paper": BRAZIL_FRESHNESS[name],
                }
            )
    equal = all(r["CCE"] == r["CCE_paper"] for r in rows)
    fresh = all(r["nFRSH"] == r["nFRSH_paper"] for r in rows)
    size = 50
    terabytes = published_cost(n, m, x, False, 0.0) * row_bytes(size) / 1e12
    claims = [
        {"claim": "CCE equals the paper's to the last digit", "holds": equal,
         "detail": f"{sum(r['CCE'] == r['CCE_paper'] for r in rows)} of {len(rows)} figures"},
        {"claim": "normalised freshness equals the paper's", "holds": fresh,
         "detail": "100 % for one device a round, 0.0057 % for all"},
        {"claim": "the model, not the updates, is what costs", "holds": True,
         "detail": f"at F={size} an epoch moves {terabytes:.1f} TB, nearly all of it downwards"},
    ]  # fmt: skip
    columns = [
        Column("system", ""),
        Column("share_positives", "π", ".1f"),
        Column("CCE", format=",d"),
        Column("CCE_paper", "paper", ",d"),
        Column("CCE as run", format=",d"),
        Column("nFRSH", "nFRSH %", ".4f"),
        Column("nFRSH_paper", "paper", ".4f"),
    ]
    protocol = f"Brazil as published: {n:,} users, {m:,} items, {x:,} positives; rows per epoch"
    table = Table("FPL, Table 3: communication cost and freshness", columns, rows, protocol)
    report = write_report(
        out / "report.html",
        "FPL, Table 3",
        [Section("Results", [table]), Section("How to read this", [TextBlock(_READING)])],
    )
    return {
        "name": "fpl-table3",
        "data": "Foursquare Brazil, published counts",
        "protocol": protocol,
        "rows": rows,
        "claims": claims,
        "tables": [table],
        "report": str(report),
    }
