"""FPL's Table 3: communication cost and freshness on Brazil, from the published counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPLConfig, published_cost, schedule
from sottovoce.core.messages import row_bytes
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.train import Report
from sottovoce_papers.study import Study, claim, installed

NAME = "fpl-table3"


class CountedStudy(Study):
    """Nothing is trained: all follows from published counts."""

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        return cls(cells, threads, report)

    def describe_data(self) -> str:
        return "Foursquare Brazil, published counts"

    def describe(self) -> str:
        n, m, x = installed(NAME)["counts"].values()
        return f"Brazil as published: {n:,} users, {m:,} items, {x:,} positives; rows per epoch"


def table3(study: CountedStudy, out: Path) -> dict[str, Any]:
    file = installed(NAME)
    n, m, x = (file["counts"][name] for name in ("users", "items", "positives"))
    rows: list[dict[str, Any]] = []
    for name in CONFIGURATIONS:
        plus = name.endswith("+")
        plan = schedule(FPLConfig(configuration=name), n, x)
        rows += [
            {"system": name, "share_positives": share,
             "CCE": round(published_cost(n, m, x, plus, share)), "CCE_paper": printed[plus],
             "CCE as run": round(plan.communication_cost(m, share)),
             "nFRSH": round(100 * plan.freshness, 4),
             "nFRSH_paper": file["printed"]["freshness"][name]}
            for share, *printed in file["printed"]["cost"]
        ]  # fmt: skip
    equal = [r["CCE"] == r["CCE_paper"] for r in rows]
    size = 50
    terabytes = published_cost(n, m, x, False, 0.0) * row_bytes(size) / 1e12
    claims = [
        claim("CCE equals the paper's to the last digit",
              (all(equal), f"{sum(equal)} of {len(rows)} figures")),
        claim("normalised freshness equals the paper's",
              (all(r["nFRSH"] == r["nFRSH_paper"] for r in rows),
               "100 % for one device a round, 0.0057 % for all")),
        claim("the model, not the updates, is what costs",
              (True, f"at F={size} an epoch moves {terabytes:.1f} TB, nearly all of it downwards")),
    ]  # fmt: skip
    columns = [
        Column("system", ""), Column("share_positives", "π", ".1f"), Column("CCE", format=",d"),
        Column("CCE_paper", "paper", ",d"), Column("CCE as run", format=",d"),
        Column("nFRSH", "nFRSH %", ".4f"), Column("nFRSH_paper", "paper", ".4f"),
    ]  # fmt: skip
    title = "FPL, Table 3: communication cost and freshness"
    return study.result(NAME, out, [Table(title, columns, rows, study.describe())], claims)


STUDY, VIEWS = CountedStudy, {NAME: table3}
