"""The catalogue of messages: how a sentence is said, and the rules by which all are written. Both
languages have the same, no sentence is long, no word needs knowing, and it can be read at thirteen.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

import sottovoce
from sottovoce.core.words import KINDS, LANGUAGES, PLACE, Said, catalogue, glossary, said, say
from sottovoce.errors import ConfigError

PLAIN = tomllib.loads((Path(__file__).parent / "plain_words.toml").read_text(encoding="utf-8"))
SOURCE = Path(sottovoce.__file__).parent
LONGEST = 20
FLOORS = {"en": 80.0, "it": 70.0}
"""Of Flesch's reading ease 80 is "easy"; of Gulpease 60 is easy after middle school, 80 before."""
DAY = 1793664000 + 12 * 3600  # 3 November 2026, at noon UTC
_WORD = re.compile(r"[^\W\d_]+")


# --- the rules --------------------------------------------------------------------------------


def sentences(text):
    """What stands between full stops, question marks and line ends; a place counts as a word."""
    return [s for s in re.split(r"(?<=[.!?…])\s+|\n", PLACE.sub("X", text)) if s.strip()]


def words(text):
    """In small letters, without numbers and what is put in. An apostrophe parts words."""
    return [word.lower() for word in _WORD.findall(PLACE.sub(" ", text))]


def syllables(word):
    """Of an English word, near enough: groups of vowels, without a silent e."""
    spoken = re.sub(r"(?<=[^aeiouy])es?$|(?<=[^aeioutdy])ed$", "", word)
    if re.search(r"[^aeiouyl]le$", word):
        spoken += "e"
    return max(1, len(re.findall(r"[aeiouy]+", spoken)))


def flesch(texts):
    """Reading ease of English (Flesch 1948); the higher, the easier."""
    counted = [word for text in texts for word in words(text)]
    many = sum(len(sentences(text)) for text in texts)
    each = sum(map(syllables, counted)) / len(counted)
    return 206.835 - 1.015 * len(counted) / many - 84.6 * each


def gulpease(texts):
    """Reading ease of Italian (GULP 1988); the higher, the easier."""
    counted = [word for text in texts for word in words(text)]
    many = sum(len(sentences(text)) for text in texts)
    return 89.0 + (300.0 * many - 10.0 * sum(map(len, counted))) / len(counted)


EASE = {"en": flesch, "it": gulpease}


def allowed(language):
    plain = {word for group in PLAIN[language].values() for word in group.split()}
    return plain | {form for word in glossary(language).values() for form in word.forms}


def problems(language, messages):
    """What is against the rules in one language."""
    known, found = allowed(language), []
    for key, text in messages.items():
        found += [
            f"{key}: {len(one.split())} words in {one!r}"
            for one in sentences(text)
            if len(one.split()) > LONGEST
        ]
        found += [f"{key}: {word!r} is not plain" for word in words(text) if word not in known]
        found += [
            f"{key}: there is no kind {kind!r}"
            for _, kind in PLACE.findall(text)
            if kind and kind not in KINDS
        ]
        if re.search(r"[{}]", PLACE.sub("", text)):
            found.append(f"{key}: a brace is left open")
        if f"{key}.one" in messages or f"{key}.other" in messages:
            found.append(f"{key} is a message and has plurals")
    for key in messages:
        stem, _, form = key.rpartition(".")
        if form == "one" and f"{stem}.other" not in messages:
            found.append(f"{stem} has no plural")
    return found


def differences(first, second):
    """What one language has and the other has not."""
    found = [f"{key} is in one language" for key in sorted(first.keys() ^ second.keys())]
    for key in sorted(first.keys() & second.keys()):
        if Counter(set(PLACE.findall(first[key]))) != Counter(set(PLACE.findall(second[key]))):
            found.append(f"{key} has other places in the other language")
    return found


def groups(messages):
    """The texts by the part of the page that they are for; those that are sentences."""
    found = defaultdict(list)
    for key, text in messages.items():
        if text.rstrip().endswith((".", "?")) and len(words(text)) > 2:
            found[key.split(".")[0]].append(text)
    return {name: texts for name, texts in found.items() if sum(map(len, texts)) > 500}


def explanations(language):
    return {f"glossary.{name}": word.means for name, word in glossary(language).items()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_keeps_to_the_rules(language):
    assert problems(language, catalogue(language)) == []
    assert problems(language, explanations(language)) == []


def test_both_languages_have_the_same_messages_and_the_same_places():
    assert differences(catalogue("en"), catalogue("it")) == []
    assert differences(explanations("en"), explanations("it")) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_part_can_be_read_at_thirteen(language):
    ease, parts = EASE[language], groups(catalogue(language))
    assert {"stands", "quiet", "sees", "terms", "erase", "trouble"} <= parts.keys()
    read = {name: round(ease(texts), 1) for name, texts in parts.items()}
    assert not {name: value for name, value in read.items() if value < FLOORS[language]}


def asked_for():
    """The keys that commands and pages name outright, each with a file that does."""
    pattern = re.compile(r"""\bsaid\(\s*["'`]([a-z_]+(?:\.[\w-]+)+)["'`]""")
    files = [p for p in SOURCE.rglob("*") if p.suffix in (".py", ".js", ".html")]
    return {key: path for path in files for key in pattern.findall(path.read_text("utf-8"))}


def test_every_message_that_is_asked_for_is_there():
    found, english = asked_for(), catalogue("en")
    assert len(found) > 300
    missing = {k: p.name for k, p in found.items() if not {k, f"{k}.other"} & english.keys()}
    assert missing == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_word_of_the_glossary_is_used_and_explained(language):
    used = {word for text in catalogue(language).values() for word in words(text)}
    used |= {word for text in explanations(language).values() for word in words(text)}
    plain = {word for group in PLAIN[language].values() for word in group.split()}
    for name, word in glossary(language).items():
        assert word.means, name
        assert used & set(word.forms), f"{name} is explained and never used"
        assert not plain & set(word.forms), f"{name} is plain and explained"


def test_the_plain_part_of_the_privacy_page_keeps_to_the_rules():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    plain = page.split("## In plain words\n", 1)[1].split("\n## ", 1)[0]
    texts = [" ".join(part.split()) for part in re.split(r"\n\n|\n- ", plain.replace("*", ""))]
    texts = [text for text in texts if text]
    assert len(texts) > 10
    assert problems("en", {f"part {at}": text for at, text in enumerate(texts)}) == []
    assert flesch(texts) > FLOORS["en"]


# --- how it is said ---------------------------------------------------------------------------


def test_plurals_days_and_numbers_are_written_as_the_language_writes_them():
    left = said("stands.spent", n=2, last=DAY, spent=1.4, limit=4)
    assert say(left) == (
        "Something left this device 2 times, last on 3 November 2026. That is 1.4 of the 4 you "
        "allowed."
    )
    assert say(left, "it") == (
        "Qualcosa ha lasciato questo dispositivo 2 volte, l'ultima il 3 novembre 2026. È 1,4 dei "
        "4 che hai permesso."
    )
    once = said("stands.left", n=1, last=DAY)
    assert say(once) == "Something left this device once, on 3 November 2026."
    assert say(said("ledger.total", n=12345)).startswith("12,345 lines")
    assert say(said("ledger.total", n=12345), "it").startswith("12.345 righe")


@pytest.mark.parametrize(
    ("size", "en", "it"),
    [
        (0, "0 bytes", "0 byte"),
        (999, "999 bytes", "999 byte"),
        (1234, "1.23 kB", "1,23 kB"),
        (98_765_432, "98.8 MB", "98,8 MB"),
        (5_000_000_000, "5 GB", "5 GB"),
    ],
)
def test_bytes(size, en, it):
    assert say(said("page.size", size=size)) == en
    assert say(said("page.size", size=size), "it") == it


@pytest.mark.parametrize(
    ("share", "en"), [(0.3, "30%"), (1.0, "100%"), (0.125, "12.5%"), (0, "0%")]
)
def test_percent(share, en):
    assert en in say(said("device.shares", share=share))
    assert en.replace(".", ",") in say(said("device.shares", share=share), "it")


@pytest.mark.parametrize(
    ("value", "en", "it"),
    [
        (float("inf"), "∞", "∞"),
        (1e-6, "0.000001", "0,000001"),
        (12_345_678.5, "12,345,678.5", "12.345.678,5"),
        (10**15, "1,000,000,000,000,000", "1.000.000.000.000.000"),
        (1e15, "1,000,000,000,000,000", "1.000.000.000.000.000"),
        (-0.5, "-0.5", "-0,5"),
    ],
)
def test_numbers(value, en, it):
    assert say(said("ledger.number", number=value)) == en
    assert say(said("ledger.number", number=value), "it") == it


def test_lists_are_joined():
    def hidden(*names, language="en"):
        return say(said("device.hides", names=list(names)), language)

    assert hidden("age") == "Hidden: age."
    assert hidden("age", "town") == "Hidden: age and town."
    assert hidden("a", "b", "c") == "Hidden: a, b and c."
    assert hidden("a", "b", "c", language="it") == "Nascosto: a, b e c."
    assert hidden() == "Hidden: nothing."


def test_a_value_is_put_in_once_and_never_read_as_a_template():
    evil = "{limit} {name} {n:day} %s \\1"
    told = say(said("device.takes_part", name=evil, limit="no"))
    assert told == f"{evil}: takes part."


def test_a_sentence_may_be_in_a_sentence():
    who = said("attack.who.server")
    assert say(said("attack.held", who=who)) == "Tried by the server: the promise held."
    assert said("attack.held", who=who).to_json() == {
        "key": "attack.held",
        "values": {"who": {"key": "attack.who.server", "values": {}}},
    }


def test_what_is_told_to_a_page_is_json():
    told = said("device.limit", limit=float("inf"), names=("a", "b"))
    assert json.loads(json.dumps(told.to_json(), allow_nan=False)) == {
        "key": "device.limit",
        "values": {"limit": "∞", "names": ["a", "b"]},
    }


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (said("nothing.here"), "no words for nothing.here"),
        (said("stands"), "no words for stands"),
        (said("stands.left", last=0), "need a value for n"),
        (said("stands.left", n=2), "need a value for last"),
        (said("stands.left", n=2, last=None), "need a value for last"),
        (said("stands.left", n=2, last="soon"), "last of stands.left must be a number"),
        (said("stands.left", n=2, last=float("nan")), "must be a number"),
        (said("stands.left", n=2, last=1e30), "no day"),
        (said("page.size", size=True), "must be a number"),
    ],
)
def test_what_is_missing_is_named(what, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        say(what)


def test_another_language_is_refused():
    for ask in (catalogue, glossary):
        with pytest.raises(ConfigError, match="en and it"):
            ask("fr")
    with pytest.raises(ConfigError, match="not in 'fr'"):
        say(said("stands.nothing"), "fr")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_can_be_said(language):
    """With numbers for all places, none is left over."""
    for key, text in catalogue(language).items():
        if key.startswith("format."):
            continue
        values = {name: 3 for name, _ in PLACE.findall(text)}
        stem, _, form = key.rpartition(".")
        if form in ("one", "other"):
            values["n"] = 1 if form == "one" else 3
        else:
            stem = key
        told = say(Said(stem, values), language)
        assert not re.search(r"[{}]", told), key


def test_the_steps_of_loudness_have_words_and_rise():
    shown = [say(said(f"step.{name}")) for name in ("whisper", "low", "normal", "loud")]
    assert len(set(shown)) == 4
    assert all(first != second for first, second in pairwise(shown))


def test_reading_the_words_loads_nothing_heavy():
    code = (
        "import sys; from sottovoce.core.words import said, say; say(said('stands.nothing'), 'it');"
        "print(sorted({'numpy', 'scipy', 'pyarrow', 'numba', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
