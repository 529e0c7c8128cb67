"""The rules of English: each finds what it is for, and leaves plain sentences alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import english

LONG = "The server opens a round, " + "and it waits for one more device, " * 5 + "and then it ends."
BAD = {
    "long": [
        LONG,
        f"- {LONG}",
        f"| a | b |\n|---|---|\n| one | {LONG} |",
        "It is `long` " + "and `code` is a word " * 6 + "too.",
    ],
    "where": [
        "Where there is no helper, the server says so.",
        "The token, where it is set, is checked first.",
        "It tells you where a promise does not hold: where noise is missing, it stops.",
        "Tests skip where nginx is not installed.",
        "| default | does |\n|---|---|\n| 1 | refuses, where nothing is agreed |",
        "A run is in vain where devices are few.",
    ],
    "fragment": [
        "Of all users of a store.",
        "Bytes with a name of their own.",
        "As a service of her own, which needs no root:",
        "And lets the agent run.",
        "The reports that the server has seen.",
        "If the helper is down.",
        "- Sums checked by two servers.",
        "Not by plain mail, and not one folder for everyone.",
        "Returns the sum of all reports.",
    ],
    "semicolons": [
        "The server asks; the device answers; the round ends.",
        "| a |\n|---|\n| it asks; it answers; it ends |",
    ],
    "brackets": [
        "The round ends (at the deadline (600 seconds) at the latest).",
        "It is slow (see the table [of speeds] below).",
    ],
    "word": [
        "The masker adds noise.",
        "The proxy sees no report.",
        "The courier carries it.",
        "Each scene has a view.",
        "It runs in eight lanes.",
        "A device owner agrees to the terms.",
        "A new era begins with new terms.",
    ],
}
GOOD = {
    "long": [
        "The server opens a round. It waits for devices. Then the round ends.",
        "| " + " | ".join(["a cell of five words"] * 12) + " |",
        "- one item of the list\n" * 12,
        "Read [the page](" + "a/" * 40 + "page.md) first.",
        "It is small and plain. " + "[privacy.md](a.md) has one more thing to say. " * 6,
        "```sh\n" + "word " * 60 + "\n```",
        "Lists e.g. the items of a round, i.e. those of all devices, cf. the table.",
    ],
    "where": [
        "If there is no helper, the server says so.",
        "Open the folder where the keys are.",
        "The page says where the keys are, and from where they came.",
        "It is on the machine where the server runs, in a file where each line is an item.",
        "Keep it where only you can read it.",
        "You decide where to put it. Where does it lie?",
        "`where` is a keyword of SQL.",
        "Then **Where you stand** says so.",
    ],
    "fragment": [
        "The server keeps the sum.",
        "Run it again, and look at the log.",
        "Anna, Bruno and Carla each join with one command.",
        "Nothing leaves.",
        "# The sums of all users",
        "| of all users of a store |",
        "- the sum of all users",
        "- `rounds`: how many there are to run.",
        "**Sound by default.** What runs first is sound.",
        "*Figure of the sums of all users.*",
        "This holds against everybody, also a server and a helper that work together.",
        "If all three work with the server it is known.",
        "A limit of 60 protects nothing.",
        "0 means that nothing leaves.",
        "- [Operator](operator.md): helper elsewhere, backups, console.",
        "With noise, each of the three adds half of it.",
        "What she chose is kept.",
        "Why does it wait?",
    ],
    "semicolons": [
        "The server asks; the device answers.",
        "The server asks; it waits. The device answers; it stops.",
        "Write `a; b; c` there.",
    ],
    "brackets": [
        "The round ends (at the deadline), and the next (of gram) begins.",
        "See [the page (of terms)](page.md) for it.",
        "It is small (about f(x) for all x).",
        "It runs (see `a (b)` for that).",
    ],
    "word": [
        "The helper adds noise, and the data owner agrees.",
        "A reverse proxy such as nginx stands before the server.",
        "Give `--proxy URL` to the command.",
        "Several data owners hold items. The folder's owner alone reads it.",
        "A general scenery is seen.",
    ],
}


PLAIN = ("README.md", "SECURITY.md", "deploy/README.md", "docs")
"""Pages that keep to the rules already; none may leave this list."""


def rules(text):
    return {finding.rule for finding in english.check(text).findings}


def cases(table):
    return [pytest.param(rule, text, id=f"{rule}-{n}") for rule, texts in table.items()
            for n, text in enumerate(texts)]  # fmt: skip


def test_every_rule_has_examples_of_both_kinds():
    assert set(BAD) == set(GOOD) == set(english.RULES)
    assert all(len(texts) >= 1 for texts in BAD.values())
    assert all(len(texts) >= 3 for texts in GOOD.values())


@pytest.mark.parametrize(("rule", "text"), cases(BAD))
def test_a_rule_finds_what_it_forbids(rule, text):
    assert rule in rules(text)


@pytest.mark.parametrize(("rule", "text"), cases(GOOD))
def test_a_rule_leaves_plain_sentences_alone(rule, text):
    assert rule not in rules(text)


@pytest.mark.parametrize("text", [text for texts in GOOD.values() for text in texts])
def test_what_a_rule_allows_no_other_forbids_unless_it_is_its_own(text):
    assert len(rules(text)) <= 1


def test_a_finding_names_the_line_and_the_sentence():
    head = "---\ndescription: One page.\n---\n# A page\n\n"
    page = head + "All is well here. It goes on\nfor a while. The\nmasker `m`\nadds noise.\n"
    [finding] = english.check(page, "a.md").findings
    assert (finding.file, finding.line, finding.rule) == ("a.md", 7, "word")
    assert finding.sentence == "The masker `m` adds noise."
    assert "helper" in finding.do


def test_code_comments_html_and_link_targets_are_not_read():
    page = """
<!-- The masker; the masker; the masker. -->
```text
The masker adds noise.
```
~~~
The masker adds noise.
~~~
1. Type this:

   ```console
   The masker adds noise.
   ```

See [the page](masker.md), <img alt="masker" src="masker.png"> and `masker`.
![masker](masker.png)
"""
    assert not english.check(page).findings


def test_the_description_of_a_page_is_read():
    page = "---\ntitle: masker\ndescription: What a masker does.\n---\n# Page\n"
    [finding] = english.check(page).findings
    assert (finding.line, finding.rule) == (3, "word")


def test_an_exception_is_for_one_sentence_and_is_counted():
    page = "<!-- english: as it is -->\nThe masker adds noise. It ends.\nThe masker adds noise.\n"
    checked = english.check(page)
    assert [finding.line for finding in checked.findings] == [3]
    assert checked.exceptions == 1


def test_an_exception_before_a_table_is_for_the_table():
    table = "| a |\n|---|\n| the masker |\n| the masker |\n"
    assert english.check(table).findings
    assert not english.check(f"<!-- english: as it is -->\n\n{table}").findings


def test_an_exception_without_need_is_a_finding():
    assert rules("<!-- english: as it is -->\nThe helper adds noise.\n") == {"exception"}
    assert english.check("```\n<!-- english: as it is -->\n```\n").exceptions == 0


def test_the_command_says_what_it_found(tmp_path, capsys):
    bad, good = tmp_path / "bad.md", tmp_path / "good.md"
    bad.write_text("The masker adds noise.\n")
    good.write_text("The helper adds noise.\n")
    assert english.main([str(good)]) == 0
    assert english.main([str(tmp_path)]) == 1
    assert f"{bad}:1: word: say helper" in capsys.readouterr().out
    assert english.main([str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {str(bad): {"word": 1}}
    assert [found["sentence"] for found in told["findings"]] == ["The masker adds noise."]
    assert english.main([str(tmp_path), "--summary"]) == 1
    assert "word 1" in capsys.readouterr().out
    assert english.main([str(bad), "--rule", "long"]) == 0
    assert english.main([str(tmp_path / "none.md")]) == 2


@pytest.mark.parametrize("page", [*english.pages(english.ROOT / place for place in PLAIN)],
                         ids=lambda page: page.stem)  # fmt: skip
def test_pages_that_were_gone_over_keep_to_the_rules(page):
    findings = english.check(page.read_text(encoding="utf-8"), str(page)).findings
    assert not [(finding.line, finding.rule, finding.do) for finding in findings]


@given(st.text())
def test_no_text_makes_it_fall(text):
    english.check(text)


@given(
    st.lists(
        st.sampled_from(
            ["---\n", "```", "~~~", "`", "**", "_", "[a](b)", "[", "](", "|", "\n", "\n\n", "- ",
             "1. ", "# ", "> ", "<!-- english: as it is -->\n", "<!--", "-->", "<b>", "Where ",
             "the masker ", "is ", "; ", "(", ")", ". ", ": ", "\\", "$", "description: ", "\x00",
             "\ue000", "e.g. ", "!!! note\n", "    ", "If ", ", which "]
        ),
        max_size=40,
    )
)  # fmt: skip
def test_no_markup_makes_it_fall_and_lines_are_on_the_page(parts):
    page = "".join(parts)
    for finding in english.check(page).findings:
        assert 1 <= finding.line <= page.count("\n") + 1


@given(st.text(alphabet="ab *_`[]()<>\\$!\n.:/htps"))
def test_markup_is_hidden_place_by_place(text):
    assert len(english.masked(text)) == len(text)
