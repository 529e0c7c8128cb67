"""`make mutation`: small changes to what decides what leaves a device and what is booked, each of
which some test must notice.

Which functions and which tests is in `targets.toml`. A change that cannot change what leaves or
what is booked is in `equivalent.toml` with the reason, and is not run; any other that no test
notices makes the run fail. mutmut leaves properties alone and removes no statements, and with them
go prices and admissions; cosmic-ray starts the package anew for every change, ten seconds each.
"""

import argparse
import os
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
# A fork of a process with threads waits for threads that it has not got.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import pytest  # noqa: E402
from mutation_makers import ROOT, mutants  # noqa: E402
from mutation_runner import Runner  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--module", action="append", help="one of several; all where left out")
    parser.add_argument("--only", default="", help="changes whose name has this in it")
    parser.add_argument("--again", type=Path, help="those that a former run's output names")
    parser.add_argument("--listed", action="store_true", help="run those of the list, too")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--show", action="store_true", help="print the names, run nothing")
    return parser.parse_args()


def main():
    options = arguments()
    config = tomllib.loads((HERE / "targets.toml").read_text())
    listed = tomllib.loads((HERE / "equivalent.toml").read_text())
    targets = [t for t in config["target"] if t["module"] in (options.module or t["module"])]
    names = list(dict.fromkeys(t["module"] for t in targets))
    made = {name: [] for name in names}
    for target in targets:
        files = tuple(f"tests/{file}" for file in target["tests"])
        made[target["module"]] += mutants(target["module"], target["functions"], files)
    every = [m for name in names for m in made[name] if options.only in m.name]
    known = {name for entries in listed.values() for name in entries}
    run = [m for m in every if options.listed or m.name not in known]
    if options.again:
        named = {line.partition(": ")[2] for line in options.again.read_text().splitlines()}
        run = [m for m in run if m.name in named]
    if options.show:
        for mutant in every:
            print(mutant.name)
        return 0
    if not options.module and not options.only and (gone := known - {m.name for m in every}):
        print("equivalent.toml lists what is no longer there:", *sorted(gone), sep="\n  ")
        return 1
    began, out = time.monotonic(), os.fdopen(os.dup(1), "w", buffering=1)
    files = sorted({file for mutant in run for file in mutant.tests})
    runner = Runner(run, config["left_out"], options.jobs, lambda text: print(text, file=out))
    os.chdir(ROOT)
    without = [f"-pno:{plugin}" for plugin in ("xdist", "cacheprovider")]
    code = pytest.main(["-qq", "--assert=plain", "--timeout=0", *without, *files], [runner])
    if code and not runner.outcomes:
        print("the tests fail as the code is; run them by themselves first", file=out)
        return 1
    bad = table(names, made, runner.outcomes, known, out)
    print(f"{len(runner.outcomes)} changes in {time.monotonic() - began:.0f} s", file=out)
    return 1 if bad else 0


def table(names, made, outcomes, known, out):
    bad = 0
    print(f"{'module':22} {'mutants':>8} {'killed':>8} {'survived':>9} {'listed':>8}", file=out)
    for name in names:
        mine = [m.name for m in made[name] if m.name in outcomes or m.name in known]
        killed = sum(outcomes.get(one) == "killed" for one in mine)
        on_list = sum(one in known and outcomes.get(one) != "killed" for one in mine)
        left = len(mine) - killed - on_list
        bad += left
        print(f"{name:22} {len(mine):8} {killed:8} {left:9} {on_list:8}", file=out)
    return bad


if __name__ == "__main__":
    sys.exit(main())
