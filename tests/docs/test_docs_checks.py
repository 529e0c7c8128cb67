"""The checks of the documents: a broken page fails each of them, and these documents pass."""

import re
from types import SimpleNamespace

import pytest

import docs


@pytest.mark.parametrize("name", docs.CHECKS)
def test_these_documents_pass(documents, name):
    assert "\n".join(map(str, docs.CHECKS[name](documents))) == ""


def says(check, documents):
    return [str(problem) for problem in check(documents)]


# --- pages and the menu ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# First\n", "it has no description"),
        ("---\ntitle: x\n---\n# First\n", "it has no description"),
        (f"---\ndescription: {'x' * 161}\n---\n# First\n", "161 letters; begin with"),
        ("---\ndescription: One.\n---\n# First\n\n# Second\n", "index.md:6: it has 2 titles"),
        ("---\ndescription: One.\n---\nText.\n", "it has 0 titles"),
        ("---\ndescription: One.\n---\n## Part\n\n# First\n", "stands before the title"),
    ],
)
def test_a_page_without_what_a_page_needs_is_found(repository, text, words):
    [said] = says(docs.check_pages, repository(docs__index_md=text))
    assert words in said


def test_a_page_that_is_not_in_the_menu_is_found(repository, tmp_path):
    documents = repository(docs__third_md=docs.ROOT.joinpath("docs/index.md").read_text())
    [said] = says(docs.check_menu, documents)
    assert "the menu has third.md 0 times, and there are 1 of it" in said
    (tmp_path / "docs" / "third.md").unlink()
    (tmp_path / "docs" / "second.md").unlink()
    [said] = says(docs.check_menu, repository())
    assert "the menu has second.md 1 times, and there are 0 of it" in said
    (tmp_path / "mkdocs.yml").write_text("nav: [index.md, More: [index.md]]\n")
    assert "the menu has index.md 2 times" in says(docs.check_menu, repository())[0]


# --- blocks ---------------------------------------------------------------------------------------


def with_block(block):
    return f"---\ndescription: One.\n---\n# First\n\n{block}\n"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```\nx\n```", "index.md:6: the block has the language ''"),
        ("- a list\n\n    ```\n    x\n    ```", "index.md:8: the block has the language ''"),
        ("```cobol\nx\n```", "the block has the language 'cobol'"),
        ("```mermaid\nflowchart LR\n```", "the block has the language 'mermaid'"),
        ("```text\nx\n", "the block never ends"),
    ],
)
def test_a_block_without_a_language_is_found(repository, block, words):
    [said] = says(docs.check_blocks, repository(docs__index_md=with_block(block)))
    assert words in said


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```json\n{x}\n```", "it is no json"),
        ("```yaml\n- [\n```", "it is no yaml"),
        ("```toml\n[data]\nsauce = 'town'\n```", "can be read ([data] has unknown"),
        ("```toml\n[data\n```", "it is no toml"),
        ("```html\n<p>\n```", "nobody reads this block of html"),
        ("```text\n$ sottovoce demo\n```", "is a command in a block of text"),
        ("```text\nsottovoce run FILE\n```", "is a command in a block of text"),
        ("<!-- not run: I am lazy -->\n```bash\nls\n```", "'I am lazy' is no reason"),
        ("<!-- not run: takes some minutes -->\n```bash\nls\n```", "is no reason"),
        ("<!-- run by tests/gone.py -->\n```bash\nls\n```", "tests/gone.py is not there"),
        ("<!-- run by tests/other.py -->\n```bash\nls -l\n```", "does not read this page"),
        ("<!-- tried: anna -->\n```bash\nls\n```", "no test walks through the blocks of 'tried'"),
    ],
)  # fmt: skip
def test_a_block_that_nobody_runs_is_found(repository, block, words):
    documents = repository(
        docs__index_md=with_block(block),
        tests__other_py="def test_a(): ...",
        tests__reads_py='def test_a(): read("index.md", "```bash")',
    )
    [said] = says(docs.check_blocks, documents)
    assert said.startswith(f"docs/index.md:{6 + block.startswith('<!')}: ")
    assert words in said


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sottovoce jump", "there is no command jump"),
        ("sottovoce serve jump", "there is no command jump"),
        ("sottovoce run FILE --sets a=b", "there is no option --sets"),
        ("sottovoce data show|jump", "there is no command jump"),
        ("sottovoce recommend RUN --engine https", "there is no option --engine"),
    ],
)
def test_a_command_that_is_not_there_is_found(line, words):
    assert docs.unknown_words(docs.command_line(), line) == words


def test_commands_of_running_text_tables_and_blocks_are_looked_at(repository):
    text = (
        "# R\n\nType `sottovoce\njump`.\n\n| a |\n|---|\n| `sottovoce run --no` |\n\n"
        "```bash\nsudo -u x .venv/bin/sottovoce leap >y\nmake lunch\n"
        "pip install 'sottovoce[moon]'\n```\n"
    )
    said = says(docs.check_commands, repository(README_md=text))
    assert [re.search(r"no (command|option|target|extra) [\w-]+", line)[0] for line in said] == [
        "no command jump", "no option --no", "no command leap", "no target lunch", "no extra moon",
    ]  # fmt: skip
    assert [line.split(":")[1] for line in said] == ["3", "8", "10", "10", "10"]


def test_an_experiment_or_study_that_is_not_there_is_found(repository):
    text = (
        "# R\n\n`sottovoce run papers/fpl` `sottovoce run papers/moon` `sottovoce attack runs/a`\n"
        "`sottovoce reproduce table1` `sottovoce reproduce --list` `sottovoce reproduce moon`\n"
    )
    there = {"experiments__papers__fpl.toml": "", "experiments__reproduce__table1.toml": ""}
    said = says(docs.check_commands, repository(README_md=text, **there))
    assert [line.split("no experiment ")[1].split(";")[0] for line in said] == [
        "papers/moon", "reproduce/moon",
    ]  # fmt: skip


def test_the_changelog_may_speak_of_what_was(repository):
    assert says(docs.check_commands, repository(CHANGELOG_md="# C\n\n`sottovoce jump`\n")) == []


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("[`gone`](../code.py)", "index.md:6: code.py has no gone"),
        ("[`Table.gone`](../code.py)", "index.md:6: code.py has no Table.gone"),
        ("[`add`](../code.py)", "index.md:6: code.py has no add"),
        ("[`Table`](../other.py)", "index.md:6: there is no other.py"),
    ],
)
def test_a_name_that_its_module_does_not_have_is_found(repository, link, words):
    documents = repository(docs__index_md=with_block(link), code_py=CODE)
    [said] = says(docs.check_names, documents)
    assert words in said


def test_names_that_are_there_files_and_code_in_blocks_pass(repository):
    names = ("Table", "Table.add", "Table.size", "Table.FIRST", "outer.inner", "RATE", "LATE")
    links = " ".join(f"[`{name}`](../code.py)" for name in names)
    block = "```text\n[`gone`](../code.py)\n```"
    text = f"{links} [`code.py`](../code.py) [gone](../code.py)\n\n{block}"
    assert says(docs.check_names, repository(docs__index_md=with_block(text), code_py=CODE)) == []


def test_the_functions_of_drifts_sequence_diagrams_are_there(documents):
    from sottovoce.algorithms.drift import blocks, messages, system
    from sottovoce.parties import silo_door

    page = documents.pages["docs/papers/drift.md"]
    diagrams = [block.text for block in page.blocks if block.language == "text"]
    named = re.findall(r"(?<!/)\b(\w+)\.([a-z_]\w*)(?=[ ,\n])", "".join(diagrams))
    places = {"blocks": blocks, **vars(messages), **vars(blocks), **vars(system), **vars(silo_door)}
    assert len(diagrams) == 2
    assert len(named) >= 15
    missing = [f"{home}.{name}" for home, name in named if not hasattr(places.get(home), name)]
    assert missing == []


CODE = """\
RATE = 1
if RATE:
    LATE = 2
class Table:
    size: int
    FIRST = 3
    def add(self): ...
def outer():
    def inner(): ...
"""


# --- help and docstrings --------------------------------------------------------------------------


def test_a_command_or_option_without_help_is_found(repository, monkeypatch):
    option = SimpleNamespace(opts=["--silent"], help="", hidden=False)
    inner = SimpleNamespace(help="It does.", params=[option], hidden=False)
    dumb = SimpleNamespace(help=None, params=[], hidden=False)
    hidden = SimpleNamespace(help=None, params=[], hidden=True)
    root = SimpleNamespace(
        help="All.", params=[], commands={"inner": inner, "dumb": dumb, "old": hidden}
    )
    monkeypatch.setattr(docs, "command_line", lambda: root)
    assert [line.split(": ", 1)[1] for line in says(docs.check_help, repository())] == [
        "`sottovoce inner` does not say what --silent is; give it help=…",
        "`sottovoce dumb` has no help; give it a docstring",
    ]
