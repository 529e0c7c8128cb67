"""The architecture, held by tests: imports run one way, one door, quiet imports, short modules."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import facts
import sottovoce

ROOT = Path(sottovoce.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Who builds what leaves a device: the door, and who reads it back (decoder, transcripts, tests).
# Besides: who opens a sum. Attackers ask no door.
_READERS = {
    "core/messages.py", "wire/reports.py", "engines/transcripts.py", "testing/algorithms.py",
    "testing/worlds.py",
}  # fmt: skip
BUILDERS = {
    "DeviceReports": {"parties/device.py", *_READERS},
    "BitReports": {"parties/device.py", *_READERS},
    "MaskedReports": {
        "parties/device.py", "services/server/summed_rounds.py",
        "engines/flower/summed_conductor.py", *_READERS,
    },
    "SummedReports": {
        "parties/device.py", "parties/secure_sum.py", "parties/defence.py", *_READERS,
        "engines/simulation.py",  # nothing of which leaves
    },
    "Departure": {"stores/user_door.py"},
}  # fmt: skip
# Who handles reports, and makes some object anew with `replace`: the door and the releases that it
# asks; who reads; the server's defence; and whom the rest of an experiment is told by.
RESHAPERS = {
    *("parties/device.py", "privacy/central.py", "privacy/updates.py", "algorithms/uc/system.py"),
    *("algorithms/fpl/system.py", "algorithms/gram/system.py", "core/links.py"),  # their settings
    *_READERS,
    *("parties/defence.py", "services/server/summed_rounds.py", "engines/simulation.py"),
    *("../sottovoce_papers/poisoning.py", "runs/threat_views.py", "stores/user_door.py"),
}
# The doors in front of stores, which alone make a `Leaving`, and the transports that seal it.
# (`stores/residents.py` is that of nobody: of residents who are made up.)
DOORS = {
    "parties/leaving.py", "stores/session.py", "stores/user_door.py", "stores/residents.py",
}  # fmt: skip
SEALERS = {
    "parties/leaving.py", "stores/user_door.py",
    "services/agent/agent.py", "services/agent/shuffled.py", "services/agent/residents.py",
}  # fmt: skip
SERVICES = {
    "engines/client.py", "engines/helper_client.py", "services/shuffler_handover.py",
}  # fmt: skip

RANK = {name: rank for rank, layer in enumerate(facts.LAYERS) for name in layer}


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


FAST = re.compile(r"sottovoce\.(algorithms\.\w+|core)\.(accelerated|triton)$")
"""Fast forms of what an algorithm's own modules and the recommender say plainly."""


def reaches_fast_forms(path):
    """Names of the fast forms that a file imports, and whether all of it is within functions."""
    tree = ast.parse(path.read_text())
    found = {name for name in imports_with_names(tree) if FAST.match(name)}
    return found, not any(
        FAST.match(name) for node in tree.body for name in imports_with_names(node, deep=False)
    )


def imports_with_names(tree, *, deep=True):
    for node in ast.walk(tree) if deep else [tree]:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_an_algorithm_reaches_its_fast_forms_by_one_seam():
    """`accelerated.py` of its folder, when a run asks for it. Kernels for Triton stand behind that.
    UC-FedRec learns in torch on every machine, and its training itself has a fused step."""
    systems = [ROOT / "core/recommender.py", *(ROOT / "algorithms").glob("*/system.py")]
    assert len(systems) > 5
    seams = 0
    for path in systems:
        found, within = reaches_fast_forms(path)
        own = ".".join(("sottovoce", *path.relative_to(ROOT).parent.parts, "accelerated"))
        assert found <= {own}, path
        assert within, path
        seams += bool(found)
    assert seams == 4
    behind = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if any(name.endswith(".triton") for name in reaches_fast_forms(path)[0])
    }
    apart = {one for one in behind if Path(one).stem not in ("accelerated", "triton")}
    assert apart == {"algorithms/uc/training.py"}


def test_algorithms_and_privacy_are_strangers():
    for path in (ROOT / "algorithms").rglob("*.py"):
        assert not [n for n in imports(path) if n.startswith("sottovoce.privacy")]
    for path in (ROOT / "privacy").rglob("*.py"):
        assert not [n for n in imports(path) if n.startswith("sottovoce.algorithms")]


class Builds(ast.NodeVisitor):
    """Which of the classes in `BUILDERS` a module may build: it calls one, under whatever name, or
    hands it to somebody who could. To name one as a type builds nothing."""

    def __init__(self, source):
        self.found, self.replaces, self._types = set(), False, 0
        tree = ast.parse(source)
        self.known = {name: name for name in BUILDERS}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.known |= {
                    a.asname: a.name for a in node.names if a.name in BUILDERS and a.asname
                }
        self.handles = any(re.search(rf"\b{name}\b", source) for name in BUILDERS)
        self.visit(tree)

    def _as_types(self, *parts):
        self._types += 1
        for part in parts:
            if part is not None:
                self.visit(part)
        self._types -= 1

    def visit_Name(self, node):
        if not self._types and isinstance(node.ctx, ast.Load) and node.id in self.known:
            self.found.add(self.known[node.id])

    def visit_Attribute(self, node):
        if not self._types and node.attr in BUILDERS:
            self.found.add(node.attr)
        self.visit(node.value)

    def visit_Constant(self, node):
        if not self._types and node.value in BUILDERS:  # getattr(messages, "DeviceReports")
            self.found.add(node.value)

    def visit_Call(self, node):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        again = called == "replace" and (isinstance(node.func, ast.Name) or _of_objects(node.func))
        of_its_type = (
            isinstance(node.func, ast.Call) and getattr(node.func.func, "id", "") == "type"
        )
        strange = called in ("__class__", "__new__", "__replace__")
        self.replaces |= again or of_its_type or strange
        before, self._types = self._types, 0
        if called in ("isinstance", "issubclass", "cast"):
            self._as_types(*node.args)
        else:
            self.generic_visit(node)
        self._types = before

    def visit_Subscript(self, node):
        self.visit(node.value)
        self._as_types(node.slice)

    def visit_BinOp(self, node):
        (self._as_types if isinstance(node.op, ast.BitOr) else self._each)(node.left, node.right)

    def visit_Compare(self, node):
        self._as_types(node.left, *node.comparators)

    def visit_Dict(self, node):
        self._as_types(*node.keys)
        self._each(*node.values)

    def visit_MatchClass(self, node):
        self._each(*node.patterns, *node.kwd_patterns)

    def visit_AnnAssign(self, node):
        self._as_types(node.annotation)
        self._each(*([node.value] if node.value else []))

    def visit_arg(self, node):
        self._as_types(node.annotation)

    def visit_FunctionDef(self, node):
        self._each(node.args, *node.decorator_list, *node.body)
        self._as_types(node.returns)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _each(self, *parts):
        for part in parts:
            self.visit(part)


def _of_objects(function):
    """`dataclasses.replace`, `copy.replace`; not that of a text."""
    return getattr(function.value, "id", "") in ("dataclasses", "copy")


@cache
def honest():
    """What each module of the package builds, but for attackers."""
    names = {str(path.relative_to(ROOT)): path for path in MODULES}
    return {
        name: Builds(path.read_text())
        for name, path in names.items()
        if not name.startswith("attacks/")
    }


@pytest.mark.parametrize("kind", BUILDERS)
def test_only_the_door_and_its_readers_build_reports(kind):
    assert {name for name, module in honest().items() if kind in module.found} <= BUILDERS[kind]


def test_only_they_make_reports_anew():
    """Whoever changes a report with `replace` has built another one."""
    found = {name for name, module in honest().items() if module.handles and module.replaces}
    assert found <= RESHAPERS


@pytest.mark.parametrize(
    "source",
    [
        "from sottovoce.core.messages import DeviceReports\nDeviceReports(0, 1, 2, 3)",
        "from sottovoce.core.messages import DeviceReports as D\nD(0, 1, 2, 3)",
        "from sottovoce import messages\nmessages.DeviceReports(0, 1, 2, 3)",
        "import sottovoce.core.messages\nsottovoce.messages.DeviceReports(0, 1, 2, 3)",
        "from sottovoce.core.messages import DeviceReports\nmake = DeviceReports",
        "from sottovoce.core.messages import DeviceReports\nlist(map(DeviceReports, rows))",
        "from sottovoce.core.messages import DeviceReports\npartial(DeviceReports, 0)",
        "from sottovoce.core.messages import DeviceReports\nobject.__new__(DeviceReports)",
        "from sottovoce import messages\ngetattr(messages, 'DeviceReports')(0, 1, 2, 3)",
        "def f(x: list[int] = [DeviceReports(0, 1, 2, 3)]): ...",
        "table: dict[str, int] = {'a': DeviceReports(0, 1, 2, 3)}",
        "found = kinds[DeviceReports(0, 1, 2, 3)]",
    ],
)
@pytest.mark.parametrize("kind", BUILDERS)
def test_whoever_builds_a_report_is_found(source, kind):
    assert Builds(source.replace("DeviceReports", kind)).found == {kind}


@pytest.mark.parametrize(
    "line",
    [
        "replace(reports, values=other)",
        "dataclasses.replace(reports, values=other)",
        "copy.replace(reports, values=other)",
        "reports.__replace__(values=other)",
        "type(reports)(0, 1, 2, 3)",
        "reports.__class__(0, 1, 2, 3)",
    ],
)
def test_whoever_makes_a_report_anew_is_found(line):
    source = f"def change(reports: BitReports, other: int) -> BitReports:\n    return {line}"
    module = Builds(source)
    assert module.handles
    assert module.replaces
    assert not Builds(source.replace(line, "reports.name.replace('a', 'b')")).replaces


def test_who_only_names_a_report_builds_none():
    module = Builds(
        "from sottovoce.core.messages import BitReports, DeviceReports as D\n"
        "Any = D | BitReports\n"
        "def take(x: D, y: list[D] | None = None) -> BitReports:\n"
        "    z: D = x\n"
        "    match x:\n        case D(): pass\n"
        "    return isinstance(z, D | BitReports) and type(y) is D and {D: 1}"
    )
    assert module.found == set()


def naming(pattern):
    """Files of the package in whose text this is."""
    return {str(p.relative_to(ROOT)) for p in MODULES if re.search(pattern, p.read_text())}


def test_only_doors_let_anything_go():
    """Not in any text, so that no alias, attribute or getattr gets around it."""
    assert naming(r"\blet_go\b") == DOORS
    assert naming(r"\bleaving\._[A-Za-z]|import \*") <= {"parties/leaving.py"}
    assert naming(r"\.wrapped\(|\bdef wrapped\b") <= SEALERS


def test_only_a_door_books_rounds_and_contacts():
    """What `as_bytes` has made enters a store by the door's own way."""
    door = "stores/session.py"
    assert naming(r"\bas_bytes\b") == {door, "stores/prepared.py"}
    assert naming(r"\bnote_contacts\b") == {door, "stores/user_door.py", "stores/person.py"}
    books = {"stores/prepared.py", "stores/device_limits.py", "stores/device_rounds.py"}
    assert naming(r"\bRoundBook\b") == books


def test_plain_bytes_are_for_services_alone():
    assert naming(r"\bServiceClient\b|\bhand_over\b") <= SERVICES


def test_a_device_reaches_the_network_by_its_client_alone():
    network = {"aiohttp", "flwr", "h11", "http", "httpcore", "httpcore2", "httpx", "httpx2"}
    network |= {"requests", "socket", "ssl", "urllib3"}
    at_home = (
        *("parties/", "services/agent/", "engines/flower/node.py"),
        *("stores/device", "stores/user", "stores/session", "stores/prepared", "stores/encrypted"),
        *("stores/person", "stores/residents"),
    )
    for path in MODULES:
        if str(path.relative_to(ROOT)).startswith(at_home):
            found = {name.split(".")[0] for name in imports(path)}
            if path.name == "client.py":
                continue
            assert not found & network, path
            assert "urllib.request" not in imports(path), path
    assert not naming(r"\._(twice|exchange)\(") & naming(r"engines\.client\b")
    assert naming(r"\bimport httpcore2\b") == {"engines/client.py", "engines/connection.py"}


def builders(name):
    """Files of the package that call `name(...)`."""
    found = set()
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                found.add(str(path.relative_to(ROOT)))
    return found


def test_only_the_door_and_who_opens_a_message_give_interactions_to_owners():
    """In simulation as for real. Studies of the algorithm alone plan what nobody sends."""
    assert builders("Departed") == {"parties/silo_door.py"}
    opening = {"engines/silo_simulation.py", "stores/owner_memory.py"}
    assert builders("Interaction") == {
        "algorithms/drift/system.py",
        "parties/silo_door.py",
        *opening,
    }
    assert not builders("User"), "a user stands at her door"
    studies = {path for path in builders("plan") if path.startswith("reproduce/")}
    assert builders("plan") == {"engines/silo.py", *studies}


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
        "import sottovoce.evaluation, sottovoce.data.town, sottovoce.runs.train\n",
    )


def test_simulation_and_its_commands_need_no_extra():
    """Every command can be asked for help, and the demo's can run."""
    imports_without(EXTRAS, "import sottovoce.cli, sottovoce.runs.demo, sottovoce.runs.report\n")


EXTRAS = [
    *("apsw", "backports", "cryptography", "flwr", "httpcore2", "httptools", "httpx2", "msgspec"),
    *(
        "prometheus_client",
        "psycopg",
        "sqlalchemy",
        "starlette",
        "structlog",
        "torch",
        "uvicorn",
        "uvloop",
    ),
]


def imports_without(absent, code):
    hide = f"import sys\nfor name in {absent}:\n    sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- components answer for themselves -------------------------------------------------------------

ROOMS = {
    "algorithms": ("algorithms/",),
    "releases": ("privacy/",),
    "links": ("core/links.py",),
    "baselines": ("baselines/",),
    "importers": ("data/importers/",),
    "attacks": ("attacks/",),
    "metrics": ("evaluation/",),
}
"""Where questions of type may be asked of a kind of component: in its room. Contracts may, too."""

NO_CLASSES = ("sottovoce_papers",)
"""Modules whose constants are called like components."""


def component_types():
    """Every class by which somebody could ask what a component is, with the kind of room."""
    from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, FactorModel
    from sottovoce.attacks.views import Attack
    from sottovoce.baselines.base import BASELINES, Baseline
    from sottovoce.core.links import LINKS, Link
    from sottovoce.data.importers.base import IMPORTERS, Importer
    from sottovoce.evaluation.metrics import Metric
    from sottovoce.privacy.base import RELEASES, BoundRelease, Release

    def below(kind):
        yield kind.__name__
        for child in kind.__subclasses__():
            if child.__module__.startswith("sottovoce."):
                yield from below(child)

    import sottovoce.algorithms.uc.system  # noqa: F401

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
        "from sottovoce.algorithms.fpl.system import FPLConfig\nWORDS = {FPLConfig: 'pairs'}",
        "match x:\n    case SecureSum():\n        pass",
    ]
    for source in asking:
        assert list(questions_of_type(ast.parse(source), types)), source
    for source in ("FPLConfig(rounds=3)", "def f(x: FPLConfig): ...", "isinstance(x, int)"):
        assert not list(questions_of_type(ast.parse(source), types)), source
