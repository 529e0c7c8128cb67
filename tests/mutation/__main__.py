"""`make mutation`: small changes to what decides what leaves a device and what is booked, each of
which some test must notice.

Which functions and which tests is in `targets.toml`. A change that cannot change what leaves or
what is booked is in `equivalent.toml` with the reason, and is not run; any other that no test
notices makes the run fail. mutmut 3.8 leaves properties, SQL and whole statements alone, and with
them go prices and admissions. cosmic-ray starts the package anew for each change: ten seconds.
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


def main():
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--module", action="append", help="one of several; all where left out")
    parser.add_argument("--only", default="", help="changes whose name has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    config = tomllib.loads((HERE / "targets.toml").read_text())
    known = {name for names in tomllib.loads((HERE / "equivalent.toml").read_text()).values()
             for name in names}  # fmt: skip
    every = [
        mutant
        for target in config["target"] if target["module"] in (options.module or target["module"])
        for mutant in mutants(target["module"], target["functions"],
                              tuple(f"tests/{file}" for file in target["tests"]))
        if options.only in mutant.name
    ]  # fmt: skip
    run = [mutant for mutant in every if mutant.name not in known]
    files = sorted({file for mutant in run for file in mutant.tests})
    began, out = time.monotonic(), os.fdopen(os.dup(1), "w", buffering=1)
    runner = Runner(run, config["left_out"], options.jobs, lambda text: print(text, file=out))
    os.chdir(ROOT)
    without = [f"-pno:{plugin}" for plugin in ("xdist", "cacheprovider")]
    code = pytest.main(["-qq", "--assert=plain", "--timeout=0", *without, *files], [runner])
    if code and not runner.outcomes:
        print("the tests fail as the code is; run them by themselves first", file=out)
        return 1
    print(f"{'module':22} {'mutants':>8} {'killed':>8} {'survived':>9} {'listed':>8}", file=out)
    for name in dict.fromkeys(mutant.module for mutant in every):
        mine = [mutant.name for mutant in every if mutant.module == name]
        killed = sum(runner.outcomes.get(one) == "killed" for one in mine)
        listed = sum(one in known for one in mine)
        left = len(mine) - killed - listed
        print(f"{name:22} {len(mine):8} {killed:8} {left:9} {listed:8}", file=out)
    print(f"{len(runner.outcomes)} changes in {time.monotonic() - began:.0f} s", file=out)
    return int(any(outcome != "killed" for outcome in runner.outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
