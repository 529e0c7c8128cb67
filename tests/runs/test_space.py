"""Ranges of a search: what their words mean, and what is refused."""

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce import config
from sottovoce.algorithms.base import ALGORITHMS
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment, find_experiment, shipped_experiments
from sottovoce.runs.space import Range, changed, parse_range, read_space

ONE = ("algorithm.learning_rate",)
numbers = st.floats(1e-9, 1e9)


@pytest.fixture(scope="module")
def pfpl():
    return Experiment.from_file(find_experiment("tuned/fpl"))


@given(numbers, numbers, st.booleans(), st.booleans())
def test_a_range_says_again_what_was_read(a, b, log, whole):
    low, high = sorted((round(a), round(b)) if whole else (a, b))
    words = f"{'log:' * log}{low}:{high}"
    if low == high or (log and low <= 0):
        with pytest.raises(ConfigError):
            parse_range(ONE, words, whole=whole)
        return
    found = parse_range(ONE, words, whole=whole)
    assert (found.low, found.high, found.log, found.whole) == (low, high, log, whole)
    assert parse_range(ONE, str(found), whole=whole) == found
    assert found.has(found.ends[0])
    assert found.has(found.ends[1])
    assert not found.has(math.nextafter(low, -math.inf))
    assert not found.has(math.nextafter(high, math.inf))
    assert all(isinstance(end, int) for end in found.ends) == whole


values = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True).filter(
        lambda word: word not in ("true", "false", "inf", "nan", "infinity")
    ),
)


@given(st.lists(values, min_size=2, max_size=6, unique=True))
def test_choices_say_again_what_was_read(chosen):
    found = parse_range(ONE, list(chosen))
    assert found.choices == tuple(chosen)
    assert parse_range(ONE, str(found)) == found
    assert all(found.has(one) for one in chosen)


@given(st.text(alphabet="lgo:,.0123456789e-+ abc", max_size=14))
def test_any_words_are_a_range_or_one_sentence(words):
    try:
        found = parse_range(ONE, words)
    except ConfigError as error:
        said = str(error)
    else:
        said = str(found)
        assert found.choices or found.low < found.high
    assert "\n" not in said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("learning_rate=log:1:2", "no setting of an experiment"),
        ("algorithm.learning_rate", "SETTING=RANGE"),
        ("algorithm.learning_rat=log:1e-3:1", "unknown keys ['learning_rat']"),
        ("algorithm.learning_rate=log:0:1", "begin above 0"),
        ("algorithm.learning_rate=0.3:0.1", "is empty"),
        ("algorithm.learning_rate=0.1:0.1", "is empty"),
        ("algorithm.learning_rate=1:2:3", "two numbers"),
        ("algorithm.learning_rate=0.1:much", "two numbers"),
        ("algorithm.learning_rate=0.1:99", "must lie in (0, 10]"),
        ("algorithm.learning_rate=fast,slow", "must be a number"),
        ("algorithm.learning_rate=", "must be LOW:HIGH"),
        ("algorithm.learning_rate=0.1", "two different values"),
        ("algorithm.learning_rate=0.1,0.1", "two different values"),
        ("algorithm.embedding_size=0.5:8", "whole numbers alone"),
        ("algorithm.embedding_size=8,16.5", "a whole number"),
        ("algorithm.cohort_size=10:20", "it is all here, whatever"),
        ("algorithm.epochs=5:15", "algorithm.rounds = 400 overrides it"),
        ("data.min_user_items=1:5", "judged alike"),
        ("seed=1:5", "no setting of an experiment"),
        ("town.residents=10:20", "judged alike"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_sentence(pfpl, asked, words):
    with pytest.raises(ConfigError) as refused:
        read_space(pfpl, [asked])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_setting_is_searched_once(pfpl):
    both = ["algorithm.reg_user+reg_positive=log:.001:.1", "algorithm.reg_positive=0:1"]
    with pytest.raises(ConfigError, match="reg_positive is searched twice"):
        read_space(pfpl, both)


def test_settings_that_are_tied_have_one_value(pfpl):
    space = read_space(pfpl, ["algorithm.reg_user+reg_positive=log:.001:.3"])
    assert space.ranges[0].settings == ("algorithm.reg_user", "algorithm.reg_positive")
    assert space.settings({space.ranges[0].name: 0.1}) == {
        "algorithm.reg_user": 0.1,
        "algorithm.reg_positive": 0.1,
    }
    one, other = space.ranges[0].settings
    assert space.inside({one: 0.1, other: 0.1}) == {space.ranges[0].name: 0.1}
    assert space.inside({one: 0.1, other: 0.2}) is None
    assert space.inside({one: 0.5, other: 0.5}) is None


def test_the_command_line_comes_before_the_file_and_the_file_before_the_algorithm(pfpl):
    table = {**pfpl.table, "search": {"algorithm": {"rounds": "2:9", "embedding_size": [4, 8]}}}
    filed = Experiment.from_table(table)
    assert read_space(filed).words() == {
        "algorithm.rounds": "2:9",
        "algorithm.embedding_size": "4,8",
    }
    assert read_space(filed).ranges[0] == Range(("algorithm.rounds",), 2.0, 9.0, whole=True)
    assert list(read_space(filed, ["algorithm.init_scale=1,2"]).words()) == ["algorithm.init_scale"]
    assert "algorithm.learning_rate" in read_space(pfpl).words()


@pytest.mark.parametrize("name", shipped_experiments())
def test_every_shipped_experiment_has_a_space_of_its_own(name):
    experiment = Experiment.from_file(find_experiment(name))
    assert len(read_space(experiment).ranges) >= 2


def test_every_algorithm_says_what_to_search():
    for name, kind in ALGORITHMS.items():
        assert kind().searched(), name


@pytest.mark.parametrize("name", shipped_experiments())
def test_a_file_is_edited_and_keeps_its_comments(name):
    text = find_experiment(name).read_text(encoding="utf-8")
    table = changed(
        tomllib.loads(text),
        {"algorithm.learning_rate": 0.0123, "algorithm.name": "x", "link.noise": 1.5},
    )
    table["name"] = "other"
    found = config.edited(text, table)
    assert tomllib.loads(found) == table
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in found.splitlines() if line.startswith("#")] == comments
    assert tomllib.loads(config.toml_document(table)) == table


def test_a_file_that_cannot_be_edited_is_written_anew():
    text = 'algorithm = { learning_rate = 1.0, name = "a # b" }\n"odd key" = [1, 2]\n'
    table = changed(tomllib.loads(text), {"algorithm.learning_rate": 2.0})
    assert tomllib.loads(config.edited(text, table)) == table
    hard = '[algorithm]\nlearning_rate = 0.1\nwords = """\n[link]\nlearning_rate = 3\n"""\n'
    table = changed(tomllib.loads(hard), {"algorithm.learning_rate": 0.5, "link.noise": 2.0})
    assert tomllib.loads(config.edited(hard, table)) == table
