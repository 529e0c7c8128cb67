"""That the mutation run changes what it says, and that its lists are about code that is there."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import mutation_makers as makers  # noqa: E402

CONFIG = tomllib.loads((HERE / "targets.toml").read_text())
LISTED = tomllib.loads((HERE / "equivalent.toml").read_text())


def changes(source):
    """What is made of a function, by its body's words."""
    tree = ast.parse(source)
    made = makers._of_function("m", tree, "f", tree.body[0], "m.py", ())
    return {mutant.change: mutant.code for mutant in made}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"a < b → a <= b", "a < b → a >= b"}),
        ("g(a, b)", {"g(a, b) → nothing", "g(a, b) → g(b, a)"}),
        ("return a[b]", {"a[b] → a"}),
        ("return g(a, part=b)", {"g(…) → without part"}),
        ("if a:\n  return b", {"if a: → if True:", "if a: → if False:"}),
        ("return a and not b", {"a and (not b) → a or not b", "a and (not b) → a",
                                "a and (not b) → not b", "not b → b"}),
        ("a.b = 1", {"a.b = 1 → nothing", "1 → 2"}),
        ("raise ValueError('no ' + a)", set()),
        ("'words'\nreturn 'x'", {"'x' → 'xXX'"}),
    ],
)  # fmt: skip
def test_what_is_made_of_a_function(body, expected):
    indented = "\n".join(" " + line for line in body.split("\n"))
    assert set(changes(f"def f(a, b, c=1):\n{indented}")) == expected


def test_a_mutant_is_put_in_the_place_of_its_function():
    code = changes("def f(a, b):\n return a + b")["a + b → a - b"]

    def f(a, b):
        return a + b

    f.__code__ = code
    assert f(5, 3) == 2


def test_targets_and_lists_are_about_code_and_tests_that_are_there():
    names = []
    for target in CONFIG["target"]:
        found = makers.mutants(target["module"], target["functions"], ())
        assert found, target
        names += [mutant.name for mutant in found]
        for mutant in found:
            free = makers.function_of(mutant).__code__.co_freevars
            assert set(mutant.code.co_freevars) <= set(free) <= {"__class__"}
        for file in target["tests"]:
            assert (HERE.parent / file).is_file(), file
    assert len(set(names)) == len(names)
    listed = [name for entries in LISTED.values() for name in entries]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(names)
