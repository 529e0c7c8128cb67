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
    {"chacha", "rng", "resources", "config", "sums", "parallel", "stamps", "registry"},
    {"messages", "consent", "data", "links", "one_bit", "masking", "shuffling"},
    {"ledger", "recommender", "_ranking"},
    {"privacy", "algorithms", "evaluation", "attacks"},
    {"terms"},
    {"baselines", "parties"},
    {"engines"},
    {"runs"},
    {"experiment", "federation"},
    {"testing"},
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


def test_only_the_door_and_who_opens_a_message_give_interactions_to_owners():
    """In simulation as for real. Studies of the algorithm alone plan what nobody sends."""
    assert builders("Departed") == {"parties/silo_door.py"}
    opening = {"engines/silo_ways.py", "parties/owner_memory.py"}
    assert builders("Interaction") == {"algorithms/drift.py", "parties/silo_door.py", *opening}
    assert not builders("User"), "a user stands at her door"
    studies = {path for path in builders("plan") if path.startswith("reproduce/")}
    assert builders("plan") == {"algorithms/drift_replay.py", "engines/silo.py", *studies}


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


# --- components answer for themselves -------------------------------------------------------------

ROOMS = {
    "algorithms": ("algorithms/",),
    "releases": ("privacy/",),
    "links": ("links.py",),
    "baselines": ("baselines/",),
    "importers": ("data/importers/",),
    "attacks": ("attacks/",),
    "metrics": ("evaluation/",),
}
"""Where questions of type may be asked of a kind of component: in its room. Contracts may, too."""

NO_CLASSES = ("sottovoce.reproduce",)
"""Modules whose constants are called like components."""


def component_types():
    """Every class by which somebody could ask what a component is, with the kind of room."""
    from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, FactorModel
    from sottovoce.attacks.views import Attack
    from sottovoce.baselines.base import BASELINES, Baseline
    from sottovoce.data.importers.base import IMPORTERS, Importer
    from sottovoce.evaluation.base import Metric
    from sottovoce.links import LINKS, Link
    from sottovoce.privacy.base import RELEASES, BoundRelease, Release

    def below(kind):
        yield kind.__name__
        for child in kind.__subclasses__():
            if child.__module__.startswith("sottovoce."):
                yield from below(child)

    import sottovoce.algorithms.uc  # noqa: F401

    for registry in (ALGORITHMS, RELEASES, LINKS, BASELINES, IMPORTERS):
        list(registry)  # which imports them
    bases = {
        "algorithms": (AlgorithmSettings, FactorModel),
        "releases": (Release, BoundRelease),
        "links": (Link,),
        "baselines": (Baseline,),
        "importers": (Importer,),
        "attacks": (Attack,),
        "metrics": (Metric,),
    }
    return {name: room for room, kinds in bases.items() for kind in kinds for name in below(kind)}


def questions_of_type(tree, types):
    """(line, class) wherever a type of a component is asked for: isinstance, issubclass, type(x)
    compared, a class pattern, or a table keyed by classes."""

    def names(node):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in types:
                yield inner.id
            elif isinstance(inner, ast.Attribute) and inner.attr in types:
                yield inner.attr

    classes = {  # constants may be called alike
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith(NO_CLASSES)
        for alias in node.names
    }
    for node in ast.walk(tree):
        asked = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            *("isinstance", "issubclass"),
        ):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_type = any(
                isinstance(side, ast.Call) and getattr(side.func, "id", "") == "type"
                for side in sides
            )
            asked = sides if is_type else []
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Dict):
            asked = [key for key in node.keys if getattr(key, "id", "") in classes]
        for part in asked:
            yield from ((node.lineno, name) for name in names(part))


def test_nobody_asks_a_component_for_its_type():
    types, found = component_types(), []
    assert {"FPLConfig", "FMF", "KReports", "BoundClipped", "SecureSum", "TopPop"} <= set(types)
    for path in MODULES:
        place = str(path.relative_to(ROOT))
        for line, name in questions_of_type(ast.parse(path.read_text()), types):
            if not place.startswith((*ROOMS[types[name]], "testing/")):
                found.append(f"{place}:{line} {name}")
    assert not found


def test_questions_of_type_are_seen():
    types = {"FPLConfig": "algorithms", "SecureSum": "links"}
    asking = [
        "isinstance(x, FPLConfig)",
        "isinstance(x, int | FPLConfig)",
        "isinstance(x, (int, fpl.FPLConfig))",
        "issubclass(type(x), SecureSum)",
        "type(x) is FPLConfig",
        "FPLConfig == type(x)",
        "from sottovoce.algorithms.fpl import FPLConfig\nWORDS = {FPLConfig: 'pairs'}",
        "match x:\n    case SecureSum():\n        pass",
    ]
    for source in asking:
        assert list(questions_of_type(ast.parse(source), types)), source
    for source in ("FPLConfig(rounds=3)", "def f(x: FPLConfig): ...", "isinstance(x, int)"):
        assert not list(questions_of_type(ast.parse(source), types)), source
