"""What a device computes is what it computed: `tests/vectors/device`, which others read, too."""

import json

import pytest
from cross_language import answers
from device_functions import FUNCTIONS, answered
from device_vectors import FOLDER

KEPT = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
CASES = [(name, function) for name, content in KEPT.items() for function in content]


@pytest.mark.parametrize(("name", "function"), CASES)
def test_a_function_gives_what_it_gave(name, function):
    for case in KEPT[name][function]:
        given = case.pop("in")
        assert answered(function, given) == case


def test_every_function_has_vectors_and_refuses_some():
    assert {function for _, function in CASES} == set(FUNCTIONS)
    both = [case for content in KEPT.values() for cases in content.values() for case in cases]
    assert sum("refused" in case for case in both) > 50


def test_random_inputs_are_answered_a_line_each():
    lines = [
        '{"call": "exp", "in": {"x": "0000000000000000"}}',
        '{"call": "mask", "in": {"seed": "00", "numbers": 1, "bits": 32}}',
    ]
    assert [*answers(lines)] == ['{"out": "3ff0000000000000"}\n', '{"refused": true}\n']
