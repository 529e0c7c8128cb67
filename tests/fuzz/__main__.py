"""`make fuzz`: long searches for hostile inputs, one target after the other, each in a process.

With atheris (libFuzzer) the search is guided by what the inputs reach. A finding is saved in
`fuzz-findings/TARGET/`; the next search begins with everything that is there. Without atheris,
Hypothesis draws the inputs, and keeps findings in its own database.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "worlds")]
SAVED = Path("fuzz-findings")
WATCHED = tuple(f"sottovoce.{part}" for part in ("services", "wire", "config", "parties", "stores"))


def guided(name, runs, files):
    """Search with atheris, in this process, which ends with the search."""
    import atheris

    root = Path(importlib.util.find_spec("sottovoce").origin).parent
    modules = (".".join(path.relative_to(root.parent).with_suffix("").parts)
               for path in root.rglob("*.py"))  # fmt: skip
    # numba compiles no function that is watched.
    left_alone = [m.removesuffix(".__init__") for m in modules if not m.startswith(WATCHED)]
    with atheris.instrument_imports(
        include=["sottovoce"], exclude=left_alone, enable_loader_override=False
    ):
        import fuzz_runner

    folder = SAVED / name
    folder.mkdir(parents=True, exist_ok=True)
    with fuzz_runner.Fuzzed(name, memory=True) as fuzzed:
        how = [f"-runs={runs}", f"-artifact_prefix={folder}/", f"-max_len={2 * fuzz_runner.LONG}",
               "-len_control=0", "-timeout=120", "-rss_limit_mb=0"]  # fmt: skip
        atheris.Setup([sys.argv[0], *how, *(files or [str(folder)])], fuzzed.feed)
        atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    parser.add_argument("--target", help="one of them; all where left out")
    parser.add_argument("--guided", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help="saved findings of the target, to run again")
    given = parser.parse_args()
    if given.guided:
        return guided(given.target, given.inputs, given.files)
    if importlib.util.find_spec("atheris") is None:
        only = ["-k", given.target] if given.target else []
        command = ["-m", "pytest", "-q", "-m", "", str(HERE), "--hypothesis-profile", "searching"]
        inputs = {"FUZZ_INPUTS": str(given.inputs)}
        return subprocess.run(
            [sys.executable, *command, *only], env={**os.environ, **inputs}
        ).returncode
    from fuzz_runner import TARGETS, share

    names = [given.target] if given.target else list(TARGETS)
    ends = [
        subprocess.run(
            [sys.executable, str(HERE), "--guided", "--target", name, "--inputs",
             str(share(name, given.inputs)), *given.files]
        ).returncode
        for name in names
    ]  # fmt: skip
    return max(map(abs, ends))


if __name__ == "__main__":
    sys.exit(main())
