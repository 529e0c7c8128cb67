"""The benchmark of federated recommenders: which data sets and systems the command takes, what its
rows have, and rows that others add.

`benchmark.json` is what others add to. It has

    {"format": "sottovoce-benchmark", "version": 1,
     "sets": {"movielens-1m": {"test": "…", "protocol": "…"}, …},
     "rows": [{"data": "movielens-1m", "system": "…", "kind": "others", "test": "…",
               "NDCG@10": .1, "NDCG@10 half": .002, "HR@10": …, "HR@10 half": …, "R@10": …, …}, …]}

A row needs `data`, `system`, `test` and NDCG@10. `test` is a digest of the test part: figures on
other held-out items are no comparison, and are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError, DataError
from sottovoce_papers.claims import Row, Sets, Spec, StudyLine
from sottovoce_papers.costs import verdicts
from sottovoce_papers.kinds import over_users
from sottovoce_papers.lines import TrainedLine
from sottovoce_papers.worlds import laid_over

METRICS = ("NDCG@10", "HR@10", "R@10")
NOT_ATTACKED = "not attacked"
FORMAT, FORMAT_VERSION = "sottovoce-benchmark", 1
SMALL = 10.0
"""The ε up to which a system counts as bounded."""
KINDS = {"ours": "of ours", "rival": "published rival", "central": "central", "others": "added"}
_NEEDED = ("data", "system", "test", METRICS[0])
_NUMBERS = (*METRICS, *(f"{metric} half" for metric in METRICS), "up", "down", "epsilon", "seconds")
_WORDS = ("data", "system", "kind", "test", "bound", "attacks", "protocol", "source")
_KNOWN = {*_NUMBERS, *_WORDS, "settings"}


def narrowed(
    table: Mapping[str, Any],
    sets: Sequence[str],
    systems: Sequence[str],
    *,
    attacks: bool,
    add: Sequence[Path],
) -> dict[str, Any]:
    """Return the study with these data sets and systems (by label) alone if any are named, with
    attacks on systems of ours, and with the rows of others' files."""
    unknown = [name for name in sets if name not in table["data"]]
    if unknown:
        known = ", ".join(table["data"])
        raise ConfigError(f"the benchmark has no data set {unknown[0]}; there are {known}")
    keys = {system["label"].casefold(): key for key, system in table["systems"].items()}
    unknown = [name for name in systems if name.casefold() not in keys]
    if unknown:
        labels = ", ".join(system["label"] for system in table["systems"].values())
        raise ConfigError(f"the benchmark has no system {unknown[0]!r}; there are {labels}")
    changed: dict[str, Any] = {"values": {"add": [str(path) for path in add]}}
    if sets:
        changed["study"] = {"data": list(sets)}
    if systems:
        changed["sets"] = {"main": [{"systems": [keys[name.casefold()] for name in systems]}]}
    if attacks:
        ours = [key for key, one in table["systems"].items() if one["row"]["kind"] == "ours"]
        changed["systems"] = {key: {"settings": {"attacks": True}} for key in ours}
    return laid_over(table, changed)


# --- rows ----------------------------------------------------------------------------------------


def costs(line: TrainedLine) -> Row:
    """Return means and intervals over users, and what a user pays: bytes, ε, and attacks."""
    if not line.facts:
        return {}
    facts, known = line.facts, over_users(line)
    found = [verdicts(one["attacks"]) if "attacks" in one else NOT_ATTACKED for one in facts]
    row: Row = {name: known[name] for name in (*_NUMBERS, "seconds") if name in known}
    row |= {name: _mean([one.get(name) for one in facts]) for name in ("up", "down")}
    epsilons = [one["epsilon"] for one in facts if one.get("epsilon") is not None]
    row["epsilon"] = max(epsilons) if len(epsilons) == len(facts) else None
    row |= {"bound": facts[0]["bound"], "attacks": "; ".join(dict.fromkeys(found))}
    split, protocol = line.world.split("test", facts[0]["seed"]), line.runs[0].describe()
    return row | {"protocol": protocol, "test": answers_digest(split)}


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def answers_digest(split: Split) -> str:
    """Return a digest of who is to be recommended what, by the names of users and items."""
    found = hashlib.blake2b(digest_size=8)
    test = split.test
    users, items = test.users_vocabulary(), test.items_vocabulary()
    for user in range(test.n_users):
        row = test.items[test.indptr[user] : test.indptr[user + 1]].tolist()
        if row:
            names = "\t".join([users.name(user), *sorted(items.name(item) for item in row)])
            found.update(names.encode() + b"\n")
    return found.hexdigest()


def with_added(sets: Sets, values: Spec) -> list[StudyLine]:
    """Return our rows and those of others' files, as `benchmark.json` has them."""
    mine = [
        {name: row.get(name) for name in (*_NUMBERS, *_WORDS[:-1])}
        | {"settings": {**line.settings}, "size": row["size"]}
        for line, row in ((line, line.row) for line in sets["main"] if line.facts)
        if isinstance(line, TrainedLine)
    ]
    places = values.get("add", ())
    others = [row for place in places for row in added_rows(Path(place), sets_of(mine))]
    found = []
    for row in merged(mine, others):
        epsilon = row["epsilon"]
        bound = "none" if epsilon is None else f"{epsilon:.3g}"
        point = row["system"] + ("" if epsilon is None else f" (ε {bound})")
        small = epsilon is not None and epsilon <= SMALL
        more = {"group": KINDS[row["kind"]], "ε": bound, "point": point, "bounded": small}
        found.append(StudyLine({**row, **more}))
    return found


def sets_of(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """Return the digest of the test part and the protocol of each data set."""
    return {
        row["data"]: {"test": row["test"], "protocol": row["protocol"]}
        for row in reversed(rows)
        if row["kind"] != "others"
    }


def exchange(sets: Sets, out: Path) -> dict[str, Any]:
    """Write `benchmark.json`, and return where it is and which test parts it is about."""
    rows = [{k: v for k, v in line.row.items() if k in _KNOWN} for line in sets["main"]]
    about = sets_of(rows)
    content = {"format": FORMAT, "version": FORMAT_VERSION, "sets": about, "rows": rows}
    place = out / "benchmark.json"
    place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"rows": rows, "sets": about, "file": str(place)}


# --- rows of others ------------------------------------------------------------------------------


def added_rows(path: Path, sets: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """Return the rows of a file, which must be about these data sets and their test parts. Raise if
    anything is wrong, with the row and the field, and take no row then."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise DataError(f'{path} is no benchmark: "format" must be "{FORMAT}"')
    if table.get("version") != FORMAT_VERSION:
        raise DataError(f'{path}: "version" must be {FORMAT_VERSION}, not {table.get("version")!r}')
    rows = table.get("rows")
    if not isinstance(rows, list) or not rows:
        raise DataError(f'{path} has no "rows"')
    return [_checked(row, f"{path}, rows[{n}]", sets) for n, row in enumerate(rows)]


def _checked(row: object, where: str, sets: Mapping[str, Mapping[str, str]]) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where} must be an object")
    lacks = [name for name in _NEEDED if row.get(name) is None]
    if lacks:
        raise DataError(f"{where} lacks {', '.join(lacks)}")
    unknown = sorted(set(row) - _KNOWN)
    if unknown:
        raise DataError(f"{where} has unknown fields {unknown}; known are {sorted(_KNOWN)}")
    for name in _NUMBERS:
        value = row.get(name)
        good = value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not good or (value is not None and value < 0):
            raise DataError(f"{where}: {name} must be a number from 0, or null, not {value!r}")
    for name in METRICS:
        if row.get(name) is not None and row[name] > 1:
            raise DataError(f"{where}: {name} must lie between 0 and 1, not {row[name]!r}")
    for name in _WORDS:
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{where}: {name} must be text, not {row[name]!r}")
    if row["data"] not in sets:
        raise DataError(f"{where}: there is no data set {row['data']}; there are {sorted(sets)}")
    if row["test"] != sets[row["data"]]["test"]:
        raise DataError(
            f"{where} has figures on other held-out items (test {row['test']}, here "
            f"{sets[row['data']]['test']}), which cannot be compared"
        )
    empty = dict.fromkeys((*_NUMBERS, "settings"))
    words = {"bound": "not said", "attacks": NOT_ATTACKED, "protocol": "", "source": ""}
    return {**empty, **words, **row, "kind": "others"}


def merged(mine: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Return all rows in the order of accuracy within each data set. Raise if an added row has the
    name of another one: nobody's figures are replaced unseen."""
    known = {(row["data"], row["system"]) for row in mine}
    for row in others:
        if (row["data"], row["system"]) in known:
            raise DataError(
                f"there is a row of {row['system']} on {row['data']} already; give the added one "
                "another name"
            )
        known.add((row["data"], row["system"]))
    rows = [*mine, *others]
    order = list(dict.fromkeys(row["data"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["data"]), -row[METRICS[0]]))
