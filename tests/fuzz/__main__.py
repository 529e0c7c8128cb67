"""`make fuzz`: hostile inputs for every address of every service, and for whatever reads messages.

Each target runs in a process of its own, as many of them at once as there are cores. With atheris
the search is guided by what the inputs reach; without, inputs are drawn from the seed. A finding is
saved in a file that `--replay` takes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "worlds")]
SAVED = Path("fuzz-findings")


def arguments():
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="of generated inputs (default: 1)")
    parser.add_argument("--target", action="append", help="one of several; all where left out")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--together", action="store_true", help="all targets in one process")
    parser.add_argument("--guided", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--replay", type=Path, help="a saved finding")
    parser.add_argument("--save", type=Path, default=SAVED, help="folder for findings")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = arguments()
    if options.one is not None:
        return one(options)
    import fuzz_runner

    if options.replay:
        report = fuzz_runner.replay(json.loads(options.replay.read_text()))
        show(report.to_table())
        return 1 if report.findings else 0
    names, left_out = chosen(options, fuzz_runner)
    shares = fuzz_runner.shares(options.inputs, names)
    began = time.monotonic()
    if options.together:
        made = fuzz_runner.run_all(shares, options.seed, options.save)
        reports = [report.to_table() for report in made]
    else:
        order = sorted(names, key=lambda name: shares[name], reverse=True)
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            reports = list(pool.map(lambda name: child(options, name, shares[name]), order))
    if options.json:
        print(json.dumps(reports))
    else:
        for report in reports:
            show(report)
        total = sum(report["inputs"] for report in reports)
        print(f"{total:,} inputs in {time.monotonic() - began:.0f} s{left_out}")
    return 1 if any(report["findings"] for report in reports) else 0


def chosen(options, fuzz_runner):
    unknown = set(options.target or ()) - set(fuzz_runner.TARGETS)
    if unknown:
        sys.exit(
            f"there is no target {sorted(unknown)[0]}; there are {sorted(fuzz_runner.TARGETS)}"
        )
    names = list(options.target or fuzz_runner.TARGETS)
    if "server-postgres" in names and not options.target and not postgres_is_here():
        names.remove("server-postgres")
        return names, "; PostgreSQL is not installed here and was left out"
    return names, ""


def postgres_is_here():
    if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
        return True
    from postgres_world import binaries

    try:
        return binaries() is not None
    except BaseException as error:
        if type(error).__name__ in ("Skipped", "Failed"):
            return False
        raise


def child(options, name, inputs):
    """The report of one target, from a process of its own."""
    command = [
        sys.executable, str(HERE), "--one", str(inputs), "--target", name, "--seed",
        str(options.seed), "--guided", options.guided, "--save", str(options.save),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    try:
        return json.loads(last[0])
    except ValueError:
        why = f"the process ended with {done.returncode}: {done.stderr[-3000:]}"
        ended = {"times": 1, "index": -1, "why": why, "sent": "", "data": "", "target": name}
        return {
            "target": name, "inputs": 0, "seconds": 0, "grown": 0, "slowest": 0, "answers": {},
            "seed": options.seed, "findings": {"ended": ended},
        }  # fmt: skip


def one(options):
    """One target, here."""
    (name,) = options.target
    if options.guided != "no":
        import fuzz_guided

        if fuzz_guided.there_is():
            fuzz_guided.run(name, options.one, options.seed, options.save)
        elif options.guided == "yes":
            sys.exit("atheris is not installed: `make fuzz` installs it where it can")
    import fuzz_runner

    print(json.dumps(fuzz_runner.run(name, options.one, options.seed, options.save).to_table()))
    return 0


def show(report):
    print(
        f"{report['target']:24} {report['inputs']:9,} inputs {report['seconds']:7.1f} s, memory "
        f"+{report['grown'] / 2**20:.1f} MiB, slowest {report['slowest']:.2f} s, "
        f"{len(report['findings'])} findings"
    )
    for kind, found in report["findings"].items():
        print(f"  {kind} ({found['times']} times, first at input {found['index']}):")
        print("    " + found["why"].replace("\n", "\n    "))
        print(f"    sent: {found['sent'][:600]}")


if __name__ == "__main__":
    sys.exit(main())
