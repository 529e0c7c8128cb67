"""The house has no cycles, no imports against their direction, and no name or magic that means two
things; and each figure of `make facts` notices what it is there for. What a report costs is
measured by `make facts` alone."""

import re

import pytest

import facts

MEASURED = {"selects", "device_selects", "server_selects", "decodings", "report_modules"}


@pytest.fixture(scope="module")
def here():
    """The figures of this very tree."""
    tests = facts.tests_figure(facts.ROOT / "tests")
    return [*facts.figures_of(facts.ROOT / "src"), tests, *facts.interface_figures()]


def test_no_figure_of_this_tree_is_above_its_ceiling(here):
    assert facts.complaints(here, facts.limits_of(facts.LIMITS)) == []


def test_every_figure_has_its_limits_and_every_limit_its_figure(here):
    assert {figure.key for figure in here} | MEASURED == set(facts.limits_of(facts.LIMITS))


def test_no_size_has_a_ceiling():
    limits = facts.limits_of(facts.LIMITS)
    assert {key for key, limit in limits.items() if limit.ceiling is not None} == {
        "import_cycles",
        "upward_imports",
        "services_flower_edges",
        "duplicate_classes",
        "duplicate_magics",
        "protocols",
    }


# --- made-up trees --------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Writes files, and gives the figures of what is there by then."""

    def tree(files):
        for name, text in files.items():
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {figure.key: figure for figure in facts.figures_of(tmp_path / "src")}

    return tree


def edges(tmp_path):
    found = facts.edges_of(facts.modules_of(tmp_path / "src"))
    return {(edge.source, edge.target) for edge in found}


LAZY = "def f():\n    from sottovoce import a\n"


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ("import sottovoce.b", "import sottovoce.a", 1),
        ("from sottovoce import b", LAZY, 1),
        ("from .b import x", "class C:\n    async def f(self):\n        from . import a\n", 1),
        ("from . import b", "f = lambda: import_module('sottovoce.a')", 1),
        ("from . import b", "A = 'sottovoce.a'\nimportlib.import_module(A)", 1),
        ("from . import b", "from sottovoce.c import x", 0),
        ("from . import b", "if TYPE_CHECKING:\n    import sottovoce.a\n", 0),
        ("from . import b", "if t.TYPE_CHECKING:\n    pass\nelse:\n    from . import a\n", 1),
        ("from . import a", "", 0),
    ],
)
def test_cycles(tree, a, b, found):
    files = {"__init__": "", "a": a, "b": b, "c": ""}
    figures = tree({f"sottovoce/{name}.py": text for name, text in files.items()})
    assert figures["import_cycles"].now == found
    if found:
        first, *lines = figures["import_cycles"].details
        assert first == "cycle 1, 2 modules: sottovoce.a, sottovoce.b"
        assert len(lines) == 2


def test_a_long_cycle_is_one_and_two_are_two(tree):
    ring = {f"sottovoce/r{i}.py": f"from sottovoce import r{(i + 1) % 5}\n" for i in range(5)}
    assert tree({"sottovoce/__init__.py": "", **ring})["import_cycles"].now == 1
    pair = {"other/x.py": "import other.y, sottovoce.r0", "other/y.py": "import other.x"}
    assert tree(pair)["import_cycles"].now == 2


def test_a_submodule_is_no_edge_to_its_package_and_a_name_is(tree, tmp_path):
    tree(
        {
            "sottovoce/__init__.py": "",
            "sottovoce/inner/__init__.py": "from .. import top\nfrom .deep import x\n",
            "sottovoce/inner/deep.py": "import sottovoce.top\n",
            "sottovoce/top.py": "from sottovoce.inner import deep\nimport os\n",
            "sottovoce/user.py": "from sottovoce.inner import x\n",
        }
    )
    assert edges(tmp_path) == {
        ("sottovoce.inner", "sottovoce.top"),
        ("sottovoce.inner", "sottovoce.inner.deep"),
        ("sottovoce.inner.deep", "sottovoce.top"),
        ("sottovoce.top", "sottovoce.inner.deep"),
        ("sottovoce.user", "sottovoce.inner"),
    }


@pytest.mark.parametrize("services", ["sottovoce/engines/https", "sottovoce/services"])
def test_edges_between_services_and_flower(tree, services):
    name = services.replace("/", ".")
    figures = tree(
        {
            f"{services}/a.py": "def f():\n    import sottovoce.engines.flower.b\n",
            f"{services}/c.py": f"import {name}.a\nimport sottovoce.other\n",
            "sottovoce/engines/flower/b.py": f"import {name}.c\nimport {name}.c as again\n",
            "sottovoce/other.py": f"import {name}.a\nimport sottovoce.engines.flower.b\n",
        }
    )
    assert figures["services_flower_edges"].now == 2
    assert figures["services_flower_edges"].details == [
        "sottovoce.engines.flower.b:1 → " + f"{name}.c",
        f"{name}.a:2 → sottovoce.engines.flower.b (lazy)",
    ]


def test_imports_against_their_direction(tree):
    figures = tree(
        {
            "sottovoce/core/a.py": "def f():\n    from sottovoce.cli import b\n",
            "sottovoce/cli/b.py": "import sottovoce.core.a\n",
            "sottovoce/cli/c.py": "import sottovoce.cli.b\n",
            "sottovoce/unknown.py": "import sottovoce.cli.b\n",
        }
    )
    upward = figures["upward_imports"]
    assert (upward.now, *upward.details) == (1, "sottovoce.core.a:2 → sottovoce.cli.b (lazy)")


# --- names ----------------------------------------------------------------------------------------


def test_names_that_are_used_twice(tree):
    figures = tree(
        {
            "sottovoce/a.py": "class Twice: ...\nclass _Own: ...\nclass Once:\n    class In: ...\n",
            "papers/b.py": "class Twice: ...\nclass _Own: ...\nclass In: ...\n",
        }
    )
    assert figures["duplicate_classes"].details == ["Twice: papers.b, sottovoce.a"]
    assert figures["duplicate_classes"].now == 1


def test_magics_and_protocols(tree):
    figures = tree(
        {
            "sottovoce/a.py": '_FULL, _DELTA = b"SVM1", b"SVD1"\nPROTOCOL = 1\n',
            "sottovoce/b.py": 'KIND = Kind(magic=b"SVM1")\nb"SVM"\n"SVD1"\nPROTOCOL: int = 2\n',
            "sottovoce/c.py": 'from sottovoce.a import PROTOCOL\nb"SVX9"\n',
        }
    )
    assert figures["duplicate_magics"].details == ["SVM1: sottovoce.a:1, sottovoce.b:1"]
    assert figures["protocols"].details == ["sottovoce.a", "sottovoce.b"]


# --- what is told ---------------------------------------------------------------------------------


@pytest.fixture
def told(tree, tmp_path, capsys):
    """Exit code and output for a tree of three lines under this ceiling."""
    tree({"sottovoce/__init__.py": "x = 1\n" * 3})

    def told(ceiling, *options):
        limits = tmp_path / "facts.toml"
        limits.write_text(f"[lines]\nbefore = 5\naim = 1\nceiling = {ceiling}\n")
        code = facts.main(["--src", f"{tmp_path}/src", "--limits", str(limits), *options])
        return code, capsys.readouterr()

    return told


def test_a_figure_at_its_ceiling_is_good_and_one_above_it_is_not(told):
    code, said = told(3)
    assert (code, said.err) == (0, "")
    head, lines, *_ = (re.split(r" *\| *", line.strip()) for line in said.out.splitlines())
    assert head == ["figure", "before", "now", "aim", "ceiling"]
    assert lines == ["lines of src", "5", "3", "1", "3"]
    code, said = told(2)
    assert (code, said.err) == (1, "lines of src: 3, but no more than 2 may be.\n")
