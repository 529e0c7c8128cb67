"""Components by name: who may enter, what is found where, and what is said of strangers."""

import json
import os
import subprocess
import sys
import textwrap
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from sottovoce import registry
from sottovoce.baselines.base import BASELINES
from sottovoce.errors import ConfigError
from sottovoce.registry import Component, Registry


class Tool(Component, ABC):
    @abstractmethod
    def work(self): ...


class Hammer(Tool):
    """Drives nails.

    And more.
    """

    def work(self):
        return "bang"


class Saw(Tool):
    def work(self):
        return "ritsch"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A registry whose room is an empty package."""
    (tmp_path / "toolroom").mkdir()
    (tmp_path / "toolroom" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registries", dict(registry._registries))
    yield Registry("tool", "toolroom", Tool)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toolroom"]:
        del sys.modules[name]


@pytest.fixture
def environment(monkeypatch):
    """Files that a test loads are forgotten after it."""
    monkeypatch.setenv(registry.FILES, "")  # so that it is put back
    monkeypatch.delenv(registry.FILES)
    before = dict(BASELINES._found), dict(BASELINES._places), set(sys.modules)
    yield
    BASELINES._found, BASELINES._places = before[:2]
    for name in set(sys.modules) - before[2]:
        if getattr(sys.modules[name], "MINE", False):
            del sys.modules[name]


def baseline(name="mine", extra=""):
    """A file with a baseline."""
    return textwrap.dedent(
        f"""
        from sottovoce.baselines import BASELINES, Baseline, TopPop

        MINE = True


        @BASELINES.register("{name}")
        class Mine(Baseline):
            "What I recommend."

            def fit(self, train, rng, progress=None):
                return TopPop().fit(train, rng)
        """
    ) + textwrap.dedent(extra)


def python(code, *, cwd=None, **variables):
    """Runs code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


# --- who may enter -------------------------------------------------------------------------------


def test_a_class_is_found_by_its_name(tools):
    assert tools.register("hammer")(Hammer) is Hammer
    assert Hammer.name == "hammer"
    assert tools["hammer"] is Hammer
    assert (list(tools), len(tools), "hammer" in tools) == (["hammer"], 1, True)
    assert list(tools.items()) == [("hammer", Hammer)]
    assert list(tools.values()) == [Hammer]
    assert tools.get("hammer") is Hammer
    assert tools.get("saw") is None
    assert tools.about("hammer") == "Drives nails."
    assert tools.place("hammer") == "test_registry.Hammer"
    tools.require(Hammer())


def test_something_that_is_no_class_is_found_by_its_name(tools):
    hammer = Hammer()
    assert tools.add("big-hammer", hammer) is hammer
    assert tools["big-hammer"] is hammer
    assert tools.place("big-hammer").startswith("test_registry, line ")
    assert tools.about("big-hammer") == "Drives nails."


@pytest.mark.parametrize("name", ["", "Hammer", "a hammer", "-", "hammer-", "ham/mer", None, "ä"])
def test_bad_names_are_refused(tools, name):
    with pytest.raises(ConfigError, match=r"test_registry.Hammer needs a name of small letters"):
        tools.register(name)(Hammer)
    assert not len(tools)


def test_a_class_must_derive_from_the_base(tools):
    with pytest.raises(ConfigError, match="registered as a tool and does not derive from Tool"):
        tools.register("fish")(type("Fish", (), {}))
    with pytest.raises(
        ConfigError, match=r"line \d+ is registered as a tool and does not derive from Tool"
    ):
        tools.add("three", 3)


def test_a_class_must_have_every_method(tools):
    with pytest.raises(ConfigError, match="Idle lacks work, which a tool must have"):
        tools.register("idle")(type("Idle", (Tool,), {}))


def test_two_of_one_name_are_refused_with_both_places(tools):
    tools.register("hammer")(Hammer)
    tools.register("hammer")(Hammer)
    with pytest.raises(
        ConfigError, match=r"two tools are called 'hammer', test_registry.Hammer and test_re.*Saw;"
    ):
        tools.register("hammer")(Saw)
    assert tools["hammer"] is Hammer
    tools.add("one", Hammer())
    with pytest.raises(ConfigError, match=r"two tools are called 'one', test_registry, line \d+ a"):
        tools.add("one", Hammer())


def test_a_module_may_be_imported_again(tools):
    for _ in range(2):
        again = type("Again", (Tool,), {"work": Hammer.work, "__module__": "elsewhere"})
        tools.register("again")(again)
        tools.add("another", again())
    assert tools["again"] is again


def test_an_unknown_name_is_told_with_those_there_are(tools):
    tools.register("hammer")(Hammer)
    with pytest.raises(
        ConfigError, match=r"no tool is called 'saw'; there are \['hammer'\]; .* --with FILE.py"
    ):
        tools["saw"]


def test_a_relative_of_a_component_is_not_one(tools):
    tools.register("hammer")(Hammer)
    with pytest.raises(ConfigError, match="Sledge is not registered as a tool"):
        tools.require(type("Sledge", (Hammer,), {})())
    with pytest.raises(ConfigError, match="Saw is not registered"):
        tools.require(Saw())


# --- the room ------------------------------------------------------------------------------------


def room(path, **modules):
    for name, code in modules.items():
        (path / "toolroom" / f"{name}.py").write_text(textwrap.dedent(code))


def test_the_first_question_reads_the_modules_that_register(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TOOLS", tools, raising=False)
    room(
        tmp_path,
        b_saw="from test_registry import TOOLS, Saw\nMADE = TOOLS.add('b-saw', Saw())\n",
        a_hammer="""
            from test_registry import TOOLS, Hammer

            SEEN = list(TOOLS)  # a component may ask while its room is being read

            @TOOLS.register("a-hammer")
            class Own(Hammer):
                pass
            """,
        helper="raise RuntimeError('a helper registers nothing and is not imported')\n",
    )
    assert "toolroom.a_hammer" not in sys.modules
    assert list(tools) == ["a-hammer", "b-saw"]
    assert sys.modules["toolroom.a_hammer"].SEEN == []


def test_a_room_that_cannot_be_read_is_asked_again(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TOOLS", tools, raising=False)
    room(tmp_path, broken="raise OSError('not yet')\nX = TOOLS.add('x', 1)\n")
    for _ in range(2):
        with pytest.raises(OSError, match="not yet"):
            list(tools)
    room(tmp_path, broken="from test_registry import TOOLS, Saw\nTOOLS.add('x', Saw())\n")
    assert list(tools) == ["x"]


def test_every_registry_of_the_package_is_known():
    found = registry.registries()
    assert {"baseline", "importer", "metric"} <= set(found)
    assert found["baseline"] is BASELINES


# --- files ---------------------------------------------------------------------------------------


def test_a_file_brings_components(tmp_path, environment):
    file = tmp_path / "own.py"
    file.write_text(baseline())
    for _ in range(2):
        registry.use_file(file)  # the second time nothing happens
    assert os.environ[registry.FILES] == str(file)
    assert list(BASELINES)[-1] == "mine"
    assert BASELINES.about("mine") == "What I recommend."
    assert BASELINES.place("mine") == f"{file}.Mine"


def test_two_files_of_one_stem_are_two(tmp_path, environment):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(baseline(f"mine-{folder}"))
        registry.use_file(tmp_path / folder / "own.py")
    assert {"mine-a", "mine-b"} <= set(BASELINES)
    assert BASELINES["mine-a"] is not BASELINES["mine-b"]
    assert os.environ[registry.FILES].count(os.pathsep) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "own.py is no Python file with components"),
        ("1 / 0\n", "own.py cannot be loaded: ZeroDivisionError: division by zero"),
        ("raise KeyError\n", "own.py cannot be loaded: KeyError$"),
        ("def\n", "own.py cannot be loaded: SyntaxError"),
        ("import nothing_of_this_name\n", "own.py cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(0)\n", "own.py cannot be loaded: SystemExit"),
        (baseline("top-pop"), r"own.py cannot be loaded: two baselines are called 'top-pop', "
         r"sottovoce.baselines.simple.TopPop and .*own.py.Mine; give one"),
        (baseline("Top Pop"), "own.py cannot be loaded: .*needs a name of small letters"),
        (baseline().replace("def fit", "def fat"), "Mine lacks fit, which a baseline must have"),
        (baseline().replace("Mine(Baseline)", "Mine"), "does not derive from Baseline"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, environment, content, words):
    file = tmp_path / "own.py"
    if content is not None:
        file.write_text(content)
    for _ in range(2):
        with pytest.raises(ConfigError, match=words):
            registry.use_file(file)
    assert registry.FILES not in os.environ
    assert "top-pop" in BASELINES
    with pytest.raises(ConfigError, match="no Python file"):
        registry.use_file(tmp_path)


def test_a_file_that_was_mended_can_be_loaded(tmp_path, environment):
    file = tmp_path / "own.py"
    file.write_text(baseline(extra="raise OSError('half-way')\n"))
    with pytest.raises(ConfigError, match="half-way"):
        registry.use_file(file)
    file.write_text(baseline(extra="# now it is well\n"))
    registry.use_file(file)
    assert "mine" in BASELINES


def test_the_environment_names_files(tmp_path):
    (tmp_path / "one.py").write_text(baseline("mine-1"))
    (tmp_path / "two.py").write_text(baseline("mine-2"))
    done = python(
        """
        import os
        from sottovoce.baselines.base import BASELINES
        os.chdir("/")  # names are those of the place where the process began
        print(list(BASELINES)[-2:], os.environ["SOTTOVOCE_COMPONENTS"])
        """,
        cwd=tmp_path,
        SOTTOVOCE_COMPONENTS=os.pathsep.join(["one.py", "", "two.py"]),
    )
    both = os.pathsep.join(map(str, (tmp_path / "one.py", tmp_path / "two.py")))
    assert done.stdout == f"['mine-1', 'mine-2'] {both}\n"
    assert done.stderr == ""


def test_a_bad_file_in_the_environment_is_told_at_every_question():
    done = python(
        """
        from sottovoce.baselines.base import BASELINES
        from sottovoce.errors import ConfigError
        for _ in range(2):
            try:
                "top-pop" in BASELINES
            except ConfigError as error:
                print(error)
        """,
        SOTTOVOCE_COMPONENTS="/nowhere/own.py",
    )
    assert done.stdout == "/nowhere/own.py is no Python file with components\n" * 2


def test_another_process_can_unpickle_what_a_file_defines(tmp_path):
    (tmp_path / "own.py").write_text(baseline())
    done = python(
        """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        from sottovoce import registry
        from sottovoce.baselines import BASELINES

        registry.use_file("own.py")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            print(pool.submit(registry._words, ValueError(BASELINES["mine"]())).result())
        """,
        cwd=tmp_path,
    )
    assert "Mine object" in done.stdout


# --- packages ------------------------------------------------------------------------------------


def installed(folder: Path, name: str, module: str, code: str) -> None:
    """A package with an entry point, as an installer leaves it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sottovoce.components]\nall = {module}\n")
    (folder / f"{module}.py").write_text(code)


def test_packages_bring_components_and_bad_ones_spoil_nothing(tmp_path):
    installed(tmp_path, "good-ones", "good_ones", baseline("good"))
    installed(tmp_path, "bad-ones", "bad_ones", baseline("bad", "import nothing_of_this_name\n"))
    installed(tmp_path, "rude-ones", "rude_ones", "raise SystemExit(3)\n")
    installed(tmp_path, "copied-ones", "copied_ones", baseline("top-pop"))
    done = python(
        """
        import json
        from sottovoce.baselines import BASELINES, TopPop
        from sottovoce.errors import ConfigError
        from sottovoce.evaluation import METRICS
        try:
            BASELINES["worse"]
        except ConfigError as error:
            said = str(error)
        print(json.dumps([sorted(BASELINES), BASELINES["top-pop"] is TopPop, len(METRICS), said]))
        """,
        PYTHONPATH=tmp_path,
    )
    names, kept, metrics, said = json.loads(done.stdout)
    assert "good" in names
    assert kept
    assert metrics == 9
    bad = "the components of bad-ones (bad_ones) cannot be loaded: ModuleNotFoundError"
    rude = "the components of rude-ones (rude_ones) cannot be loaded: SystemExit"
    copied = "the components of copied-ones (copied_ones) cannot be loaded: two baselines are"
    assert len(done.stderr.splitlines()) == 3
    for sentence in (bad, rude, copied):
        assert f"sottovoce: {sentence}" in done.stderr
        assert sentence in said


# --- the command line ----------------------------------------------------------------------------


def command(*words, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "sottovoce", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_command_line_loads_files_and_lists_components(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(baseline(f"mine-{name}"))
    files = [word for name in ("one", "two") for word in ("--with", tmp_path / f"{name}.py")]
    done = command(*files, "components", "baseline", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)["components"]
    assert [row["name"] for row in found[:2]] == ["random", "top-pop"]
    assert found[-1] == {
        "kind": "baseline",
        "name": "mine-two",
        "from": f"{tmp_path / 'two.py'}.Mine",
        "what": "What I recommend.",
    }
    shown = command("components", "metric").stdout
    assert "precision" in shown
    assert "top-pop" not in shown


def test_the_command_line_refuses_bad_files_in_one_sentence(tmp_path):
    (tmp_path / "own.py").write_text("1 / 0\n")
    done = command("--with", tmp_path / "own.py", "components")
    assert (done.returncode, done.stdout) == (2, "")
    sentence = f"{tmp_path / 'own.py'} cannot be loaded: ZeroDivisionError: division by zero"
    assert done.stderr == f"error: {sentence}\n"
    done = command("--with", tmp_path / "no.py", "components", "--json")
    assert done.returncode == 2
    assert "is no Python file with components" in json.loads(done.stdout)["error"]
    done = command("components", "fish")
    assert done.returncode == 2
    assert "there is no kind 'fish' of components; there are" in done.stderr


def test_the_command_line_tells_of_packages_that_are_broken(tmp_path):
    """They are loaded only where our own names do not suffice; nobody may miss their trouble."""
    installed(tmp_path, "bad-ones", "bad_ones", "import nothing_of_this_name\n")
    (tmp_path / "wrong.toml").write_text('[algorithm]\nname = "worse"\n')
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    bad = "the components of bad-ones (bad_ones) cannot be loaded: ModuleNotFoundError"
    done = python(
        """
        from sottovoce.cli import call
        print(call(["components", "baseline", "--json"]))
        print(call(["run", "wrong.toml", "--json"]))
        """,
        cwd=tmp_path,
        PYTHONPATH=places,
    )
    listed, good, refused, code = done.stdout.splitlines()
    assert (good, code) == ("0", "2")
    assert json.loads(listed)["components"]
    assert done.stderr.startswith(f"sottovoce: {bad}")
    said = json.loads(refused)["error"]
    assert "'worse'" in said
    assert bad in said


def test_every_look_that_may_miss_something_loads_the_packages(tmp_path):
    installed(tmp_path, "bad-ones", "bad_ones", "import nothing_of_this_name\n")
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = python(
        """
        from sottovoce import registry
        from sottovoce.baselines import BASELINES as R
        looks = [
            lambda: R["top-pop"], lambda: R.get("top-pop"), lambda: "top-pop" in R,
            lambda: R.get("worse"), lambda: "worse" in R, lambda: list(R), lambda: len(R),
        ]
        for look in looks:
            registry._packages_loaded = False
            registry._troubles.clear()
            look()
            print("bad-ones" in R.hint)
        """,
        PYTHONPATH=places,
    )
    assert done.stdout.split() == ["False"] * 3 + ["True"] * 4
