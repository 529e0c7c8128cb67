"""The checks of the documents: a broken page fails each of them, and these documents pass."""

import json
import re
from types import SimpleNamespace

import pytest

import docs

UNFINISHED = docs.unfinished()


@pytest.mark.parametrize("name", docs.CHECKS)
def test_these_documents_pass(documents, name):
    """Pages that docs/unfinished.toml names may have as many problems as it says, and no more."""
    found = docs.found_by(name, documents)
    problems = docs.beyond(found, UNFINISHED.get(name, {}))
    assert not problems, "\n".join(map(str, problems))


def test_what_is_owed_is_of_a_check_and_above_nothing():
    assert set(UNFINISHED) <= {*docs.CHECKS, docs.WALKS}
    assert all(number > 0 for pages in UNFINISHED.values() for number in pages.values())


def says(check, documents):
    return [str(problem) for problem in check(documents)]


PAGE_CHECKS = ("links", "pages", "menu", "languages", "blocks", "commands")


@pytest.mark.parametrize("name", PAGE_CHECKS)
def test_a_good_page_passes(repository, name):
    assert says(docs.CHECKS[name], repository()) == []


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("gone.md", "leads to docs/gone.md, which is not there"),
        ("second.md#a-prat", "a heading that docs/second.md does not have; take one that it has, "
         "such as #a-part"),
        ("#nowhere", "a heading that docs/index.md does not have"),
        ("../src/gone.py", "leads to src/gone.py, which is not there"),
        ("../../elsewhere.md", "leaves the repository"),
        ("/second.md", "begins at the root of a server"),
    ],
)  # fmt: skip
def test_a_broken_link_is_found_with_its_line(repository, link, words):
    page = f"---\ndescription: One.\n---\n\n# First\n\nText, and\n[a\nlink]({link}).\n"
    [said] = says(docs.check_links, repository(docs__index_md=page))
    assert said.startswith(f"docs/index.md:9: ({link}) ")
    assert words in said


def test_links_in_other_documents_images_and_html_are_looked_at(repository):
    html = '# Read\n\n![x](no.svg) <img src="no.png"> [r]\n\n[r]: no.md\n'
    said = says(docs.check_links, repository(README_md=html, SECURITY_md="# S\n\n[x](no.md#y)\n"))
    assert [line.split(" ")[:2] for line in said] == [
        ["README.md:3:", "(no.svg)"], ["README.md:3:", "(no.png)"], ["README.md:5:", "(no.md)"],
        ["SECURITY.md:3:", "(no.md#y)"],
    ]  # fmt: skip


def test_what_is_code_is_no_link(repository):
    text = "# Read\n\n`[x](no.md)` and ``[y](no`.md)``\n\n```text\n[z](no.md)\n```\n"
    assert says(docs.check_links, repository(README_md=text)) == []


def test_only_the_site_has_pages_that_are_made(repository):
    made = {"docs/reference/python.md": "# Python\n\n## Names\n"}
    good = repository(made, SECURITY_md="# S\n\n[x](docs/reference/python.md#names)\n")
    assert says(docs.check_links, good) == []
    bad = repository(made, README_md="# R\n\n[x](docs/reference/python.md)\n")
    assert "that only the site has" in says(docs.check_links, bad)[0]
    bad = repository(
        made, README_md="# R\n", SECURITY_md="# S\n\n[x](docs/reference/python.md#n)\n"
    )
    assert "a heading that docs/reference/python.md does not have" in says(docs.check_links, bad)[0]


@pytest.mark.parametrize(
    ("title", "anchor"),
    [("A part", "a-part"), ("`SVE1`", "sve1"), ("ε and the ledger", "ε-and-the-ledger"),
     ("What is left, and why?", "what-is-left-and-why"), ("`[data]`", "data"),
     ("[A link](x.md) here", "a-link-here"), ("a & b", "a--b"),
     ("1.2 `serve shut-out`", "12-serve-shut-out")],
)  # fmt: skip
def test_anchors_are_those_of_github(title, anchor):
    assert docs.slug(title) == anchor


def test_the_second_time_of_a_title_has_a_number():
    page = docs.Page("x.md", "# T\n\n## Terms\n\n### Terms\n")
    assert page.anchors == {"t", "terms", "terms-1"}


# --- pages and the menu ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# First\n", "it has no description"),
        ("---\ntitle: x\n---\n# First\n", "it has no description"),
        (f"---\ndescription: {'x' * 161}\n---\n# First\n", "161 letters; leave at most 160"),
        ("---\ndescription: One.\n---\n# First\n\n# Second\n", "index.md:6: it has 2 titles"),
        ("---\ndescription: One.\n---\nText.\n", "it has 0 titles"),
        ("---\ndescription: One.\n---\n## Part\n\n# First\n", "stands before the title"),
    ],
)
def test_a_page_without_what_a_page_needs_is_found(repository, text, words):
    [said] = says(docs.check_pages, repository(docs__index_md=text))
    assert words in said


def test_a_line_of_a_script_is_no_title(repository):
    text = "---\ndescription: One.\n---\n# First\n\n```bash\n# not a title\n```\n"
    assert says(docs.check_pages, repository(docs__index_md=text)) == []


def test_a_page_that_is_not_in_the_menu_is_found(repository, tmp_path):
    documents = repository(docs__third_md=docs.ROOT.joinpath("docs/index.md").read_text())
    assert says(docs.check_menu, documents) == [
        "docs/third.md:1: it is not in the menu; add third.md to mkdocs.yml"
    ]
    (tmp_path / "docs" / "third.md").unlink()
    (tmp_path / "docs" / "second.md").unlink()
    assert "the menu has second.md, which is not there" in says(docs.check_menu, repository())[0]
    (tmp_path / "mkdocs.yml").write_text("nav: [index.md, More: [index.md]]\n")
    assert "the menu has index.md 2 times" in says(docs.check_menu, repository())[0]


# --- blocks ---------------------------------------------------------------------------------------


def with_block(block):
    return f"---\ndescription: One.\n---\n# First\n\n{block}\n"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```\nx\n```", "index.md:6: the block has no language"),
        ("- a list\n\n    ```\n    x\n    ```", "index.md:8: the block has no language"),
        ("```cobol\nx\n```", "the block has the language 'cobol'"),
        ("```mermaid\nflowchart LR\n```", "drawn by a script from elsewhere"),
        ("```text\nx\n", "the block never ends"),
    ],
)
def test_a_block_without_a_language_is_found(repository, block, words):
    [said] = says(docs.check_languages, repository(docs__index_md=with_block(block)))
    assert words in said


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```json\n{x}\n```", "it is no JSON"),
        ("```yaml\n- [\n```", "it is no YAML"),
        ("```toml\n[data]\nsauce = 'town'\n```", "it is no experiment file ([data] has unknown"),
        ("```toml\n[data\n```", "it is no experiment file"),
        ("```html\n<p>\n```", "nobody reads this block of html"),
        ("```text\n$ sottovoce demo\n```", "is a command in a block of text"),
        ("```text\nsottovoce run FILE\n```", "is a command in a block of text"),
        ("<!-- not run: I am lazy -->\n```bash\nls\n```", "'I am lazy' is no reason"),
        ("<!-- not run: takes some minutes -->\n```bash\nls\n```", "is no reason"),
        ("<!-- run by tests/gone.py -->\n```bash\nls\n```", "tests/gone.py is not there"),
        ("<!-- run by tests/other.py -->\n```bash\nls -l\n```", "does not read this page"),
        ("<!-- run by tests/other.py::test_b -->\n```bash\nls\n```", "has no test_b"),
        ("<!-- run by tests/reads.py -->\n```toml\nabcd\n```", "and no block of toml"),
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


@pytest.mark.parametrize(
    "block",
    [
        "```json\n{}\n```",
        "```toml\n[data]\nsource = 'town'\n```",
        "```text\nwhat it said\n```",
        "```bash\nls\n```",
        "<!-- file: a.csv -->\n```csv\na,b\n```",
        "<!-- not run: needs a GPU -->\n```bash\nls\n```",
        "<!-- not run: takes 12 minutes -->\n```bash\nls\n```",
        "<!-- run by tests/reads.py -->\n```bash\nls\n```",
        "<!-- run by tests/reads.py::test_a -->\n```bash\nls\n```",
        "<!-- run by tests/asks.py, numbers vary -->\n```bash\nls\n```",
        "<!-- run by tests/has.py -->\n```html\n<p>long</p>\n```",
        "<!-- walk: anna, stays -->\n```bash\nls\n```",
    ],
)
def test_a_block_that_is_run_passes(repository, block):
    documents = repository(
        docs__index_md=with_block(block),
        tests__reads_py='def test_a(): read("index.md", r"```bash\\n(.*)```")',
        tests__asks_py='import helping\nread("docs", "index.md")',
        tests__worlds__helping_py='MARK = "<!-- run by "',
        tests__has_py='LINE = "<p>long</p>"',
        tests__walks_py='PAGE = "docs/index.md"\nclass Town:\n    mark = "walk"\n',
    )
    assert says(docs.check_blocks, documents) == []


@pytest.mark.parametrize(
    ("block", "quick", "slow"),
    [
        ("```bash\nls\n```", True, True),
        ("<!-- a remark -->\n```python\n1\n```", True, True),
        ("<!-- run with: --set town.residents=9 -->\n```bash\nls\n```", True, True),
        ("<!-- not run: takes 2 minutes -->\n```bash\nls\n```", False, True),
        ("<!-- not run: needs root -->\n```bash\nls\n```", False, False),
        ("<!-- run by tests/x.py -->\n```bash\nls\n```", False, False),
        ("<!-- tried: anna -->\n```bash\nls\n```", False, False),
        ("```text\nls\n```", False, False),
    ],
)
def test_which_blocks_a_walk_runs(block, quick, slow):
    page = docs.Page("x.md", block)
    assert bool(docs.walked_blocks(page)) is quick
    assert bool(docs.walked_blocks(page, slow=True)) is slow


def test_commands_are_lines_after_a_prompt_or_all():
    block = docs.Page("x.md", "```console\n$ one \\\n  two\nsaid\n$ three\n```").blocks[0]
    assert block.commands == ["one    two", "three"]
    block = docs.Page("x.md", "```bash\n# why\none\n\ntwo\n```").blocks[0]
    assert block.commands == ["one", "two"]


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


@pytest.mark.parametrize(
    "line",
    [
        "sottovoce run [FILE] [--set a.b=c]", "sottovoce data show | import NAME",
        "sottovoce --with FILE.py run x.toml --seeds 3", "sottovoce serve …", "sottovoce COMMAND",
        "sottovoce recommend RUN --user ID [-n 10]", "sottovoce serve --help", "sottovoce --help",
        "sottovoce report RUN...", "sottovoce device consent ~/store --epsilon=1",
    ],
)  # fmt: skip
def test_a_command_that_is_there_passes(line):
    assert docs.unknown_words(docs.command_line(), line) == ""


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


def test_the_changelog_may_speak_of_what_was(repository):
    assert says(docs.check_commands, repository(CHANGELOG_md="# C\n\n`sottovoce jump`\n")) == []


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


def test_a_public_name_without_a_docstring_is_found(repository, monkeypatch):
    from wordless import Dumb, Said, silent, spoken

    import reference

    names = {"Dumb": Dumb, "Said": Said, "silent": silent, "spoken": spoken}
    monkeypatch.setattr(reference, "public_names", lambda: names)
    monkeypatch.setattr(reference, "sections", lambda: {"dumb": [Dumb], "said": [Said]})
    said = [problem.what for problem in docs.check_docstrings(repository())]
    assert said == [
        "the class Dumb has no docstring", "Dumb.act has no docstring",
        "silent has no docstring", "[dumb] Dumb.size has no docstring",
    ]  # fmt: skip


# --- the command and what is owed -----------------------------------------------------------------


def test_a_page_may_owe_what_it_owed_and_no_more():
    problem = docs.Problem("a.md", 1, "x", "y")
    found = {"a.md": [problem] * 2, "b.md": [problem]}
    assert docs.beyond(found, {"a.md": 2, "b.md": 1}) == []
    assert docs.beyond(found, {"a.md": 1, "b.md": 1}) == [problem] * 2
    assert docs.beyond(found, {"a.md": 2}) == [problem]


def test_numbers_of_what_is_owed_only_fall(repository, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(docs, "CHECKS", {"languages": docs.check_languages})
    bad = "# R\n\n```\nx\n```\n\n```\ny\n```\n"
    documents = repository(README_md=bad)
    path = tmp_path / docs.UNFINISHED
    path.write_text('[languages]\n"README.md" = 1\n"docs/gone.md" = 4\n')
    assert docs._owed(documents, lower=True) == 0
    assert docs.unfinished(tmp_path) == {"languages": {"README.md": 1}}
    path.write_text('[languages]\n"README.md" = 5\n')
    docs._owed(documents, lower=True)
    assert docs.unfinished(tmp_path)["languages"] == {"README.md": 2}
    docs._owed(documents, lower=False)
    assert '"README.md" = 2' in capsys.readouterr().out


def test_json_of_a_page_is_read_as_it_stands():
    block = docs.Page("x.md", '1. list\n\n   ```json\n   {"a": [1,\n     2]}\n   ```\n').blocks[0]
    assert json.loads(block.text) == {"a": [1, 2]}
