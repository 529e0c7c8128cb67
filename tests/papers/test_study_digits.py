"""The `--quick` form of studies gives the digits that are kept in `golden/`: the cells of tables as
they are shown, and which claims hold. `WITHOUT_DIGITS` names the studies that have none.

`python tests/papers/test_study_digits.py NAME …` writes the files anew, with $SOTTOVOCE_DATA set. A
change of digits must have a reason that its commit names.
"""

import os
import sys
from pathlib import Path

import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import DataNotFound

GOLDEN = Path(__file__).parent / "golden"
WITHOUT_DIGITS = {
    *("benchmark", "negatives-leak", "poisoning", "price-list"),
    *(f"uc-figure{n}" for n in range(3, 9)),
    *(f"uc-table{n}" for n in range(1, 4)),
}
"""Studies whose digits nobody has kept yet: attacks and trainings by torch take many minutes."""
CLOCK = ("s", "s per round", "seconds to train", "seconds", "seconds per user")
"""Headings of columns that say how long something took here."""
CLOCKED = ("DRIFT, Figure 6.3: seconds", "What security takes")
"""How titles of tables begin that are all about time."""
CLOCKED_CLAIMS = ("thesis: the security", "thesis: encryption takes", "the security layer")


def quiet(what, done, total):
    pass


def face(result):
    """What of a study's result must not change, as text: a line for each row and claim."""
    lines = []
    for table in result["tables"]:
        if table.title.startswith(CLOCKED):
            continue
        places = [n for n, c in enumerate(table.columns) if c.heading not in CLOCK]
        lines += [f"# {table.title}", " | ".join(table.columns[n].heading for n in places)]
        for cells in table.cells():
            lines.append(" | ".join(table.columns[n].text(cells[n]) for n in places))
    claims = [
        f"{'holds' if one['holds'] else 'does not hold'}: {one['claim']}"
        for one in result["claims"]
        if not one["claim"].startswith(CLOCKED_CLAIMS)
    ]
    lines += ["# Claims", *sorted(claims)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_every_study_has_digits_or_is_known_to_have_none():
    kept = {path.stem for path in GOLDEN.glob("*.txt")}
    assert kept | WITHOUT_DIGITS == set(reproduce.NAMES)
    assert not kept & WITHOUT_DIGITS


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_a_quick_study_gives_the_digits_of_before(name, tmp_path):
    if not os.environ.get("SOTTOVOCE_DATA"):
        pytest.skip("needs the papers' data sets under $SOTTOVOCE_DATA")
    try:
        # Studies of one paper share their cells, so that a folder for all saves hours.
        place = Path(os.environ.get("SOTTOVOCE_GOLDEN_RUNS", tmp_path))
        found = reproduce.run(name, quick=True, out=place / name, threads=2, report=quiet)
    except DataNotFound as missing:
        pytest.skip(str(missing))
    assert face(found) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        runs = Path(os.environ["SOTTOVOCE_GOLDEN_RUNS"])
        made = reproduce.run(asked, quick=True, out=runs / asked, threads=2, report=quiet)
        (GOLDEN / f"{asked}.txt").write_text(face(made), encoding="utf-8")
        print(asked, flush=True)
