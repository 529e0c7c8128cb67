"""The architecture, held by tests: imports run one way, one door, quiet imports, short modules."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import sottovoce

ROOT = Path(sottovoce.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Each layer may import from itself and from the layers before it.
LAYERS = [
    {"errors"},
    {"chacha", "rng", "resources", "config", "sums", "parallel", "stamps", "registry", "choice"},
    {"messages", "consent", "data", "links", "one_bit", "masking", "shuffling"},
    {"ledger", "recommender", "_ranking"},
    {"privacy", "algorithms", "evaluation", "attacks"},
    {"terms"},
    {"baselines", "parties"},
    {"engines"},
    {"runs", "testing"},
    {"experiment", "federation"},
    {"trials"},
    {"outcomes"},
    {"running", "silo_running"},
    {
        "run_views",
        "run_tables",
        "run_privacy",
        "run_silo",
        "run_facts",
        "run_scenes",
        "run_watched",
        "run_attacks",
        "run_audit",
        "attack_card",
    },
    {"reproduce", "run_report", "run_comparison", "experiment_files", "demo"},
    {"cli", "cli_output"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def part(path):
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


@cache
def nodes(path):
    """Everything in a file's syntax that these tests ask for."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Assert, ast.ExceptHandler)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imports(path):
    """Names of sottovoce modules that a file imports, at module level or inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "sottovoce":
                yield from (f"sottovoce.{a.name}" for a in node.names)


def test_imports_run_one_way():
    wrong = []
    for path in MODULES:
        here = part(path)
        if here in ("__init__", "__main__"):
            continue
        assert here in RANK, f"{here} has no place in the layers"
        for name in imports(path):
            pieces = name.split(".")
            above = pieces[0] == "sottovoce" and RANK.get(pieces[-1 if len(pieces) < 2 else 1], 0)
            if above > RANK[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_algorithms_and_privacy_are_strangers():
    for path in (ROOT / "algorithms").rglob("*.py"):
        assert not [n for n in imports(path) if n.startswith("sottovoce.privacy")]
    for path in (ROOT / "privacy").rglob("*.py"):
        assert not [n for n in imports(path) if n.startswith("sottovoce.algorithms")]


def builders(name):
    """Files of the package that call `name(...)`."""
    found = set()
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                found.add(str(path.relative_to(ROOT)))
    return found


def test_only_the_door_and_the_decoder_build_reports():
    """Beside them: who opens a sum, who reads a transcript back, and attackers, who ask no door."""

    def honest(name):
        return {path for path in builders(name) if not path.startswith("attacks/")}

    readers = {"messages.py", "testing.py", "engines/transcripts.py"}
    assert honest("DeviceReports") <= {"parties/device.py", *readers}
    opening = {"parties/secure_sum.py", "parties/defence.py", "engines/simulated.py"}
    assert honest("SummedReports") <= {"parties/device.py", *readers, *opening}
    assert honest("MaskedReports") <= {
        "parties/device.py", "engines/https/summed_rounds.py", *readers,
    }  # fmt: skip


def test_no_module_is_too_long():
    """A module is as long as its thought, and one of 700 lines is rarely one thought."""
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in MODULES}
    assert not {name: n for name, n in lines.items() if n > 700}


def test_no_assert_and_no_swallowed_error_in_the_package():
    for path in MODULES:
        for node in nodes(path):
            assert not isinstance(node, ast.Assert), path
            if isinstance(node, ast.ExceptHandler):
                bare = node.type is None or getattr(node.type, "id", "") == "Exception"
                # What somebody else's module raises when it is imported can be anything.
                assert not bare or path.name == "registry.py", f"{path} swallows every error"


def test_the_simulation_core_imports_on_a_bare_machine():
    """numpy, scipy, numba, pyarrow are enough; nothing is printed."""
    absent = ["typer", "rich", "matplotlib", "jinja2", "torch", "pydantic", *EXTRAS]
    imports_without(
        absent,
        "import sottovoce.experiment, sottovoce.testing, sottovoce.baselines\n"
        "import sottovoce.evaluation, sottovoce.data.town, sottovoce.running\n",
    )


def test_simulation_and_its_commands_need_no_extra():
    """Every command can be asked for help, and the demo's can run."""
    imports_without(EXTRAS, "import sottovoce.cli, sottovoce.demo, sottovoce.run_report\n")


EXTRAS = [
    *("apsw", "cryptography", "flwr", "httptools", "httpx2", "msgspec", "prometheus_client"),
    *("psycopg", "sqlalchemy", "starlette", "structlog", "torch", "uvicorn", "uvloop"),
]


def imports_without(absent, code):
    hide = f"import sys\nfor name in {absent}:\n    sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
