"""Every block of the documents is run: here, by the test that its comment names, or for a reason
from a short list not at all."""

import pytest
from snippets import PRINTED, Walk, sized

import docs

PAGES = docs.Documents.read().pages
QUICK = [
    path for path, page in PAGES.items()
    if any(map(docs.is_run, page.blocks)) and not path.startswith(PRINTED)
]  # fmt: skip
SLOW = [path for path, page in PAGES.items() if any(map(docs.is_slow, page.blocks))]


@pytest.mark.parametrize("path", QUICK)
def test_what_a_page_says_to_type_works(path, tmp_path):
    assert Walk(PAGES[path], tmp_path).through() == sum(map(docs.is_run, PAGES[path].blocks))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", SLOW)
def test_what_takes_minutes_works_too(path, tmp_path):
    assert Walk(PAGES[path], tmp_path).through(slow=True) > 0


# --- the walk itself ------------------------------------------------------------------------------


def walked(text, folder, **options):
    walk = Walk(docs.Page("docs/page.md", text), folder)
    walk.through(**options)
    return walk


def test_files_commands_and_python_of_a_page_work_together(tmp_path):
    text = """
<!-- file: in/one.csv -->
```csv
a,b
```

```console
$ cp in/one.csv two.csv
$ pwd
/somewhere
```

```python
from pathlib import Path
name = Path("two.csv").read_text()
```

```python
print(name + "!")
```
"""
    walk = walked(text, tmp_path)
    assert walk.said == [f"{tmp_path}\n", "", "a,b\n!\n"]


@pytest.mark.parametrize(
    "block",
    ["```bash\nfalse\ntrue\n```", "```bash\nfalse | true\n```", "```console\n$ sottovoce jump\n```",
     "```bash\nsottovoce data show never-imported\n```"],
)  # fmt: skip
def test_a_command_that_fails_fails_the_walk(block, tmp_path):
    with pytest.raises(AssertionError, match=r"docs/page\.md:1: "):
        walked(block, tmp_path)


def test_python_that_fails_fails_the_walk_with_its_line(tmp_path):
    with pytest.raises(ZeroDivisionError) as found:
        walked("text\n\n```python\nx = 0\n1 / x\n```", tmp_path)
    last = found.traceback[-1]
    assert (str(last.path), last.lineno + 1) == ("docs/page.md", 5)


def test_what_takes_minutes_is_left_to_slow_tests(tmp_path):
    text = "<!-- not run: takes 3 minutes -->\n```bash\ntouch done\n```\n"
    walked(text, tmp_path)
    assert not (tmp_path / "done").exists()
    walked(text, tmp_path, slow=True)
    assert (tmp_path / "done").exists()


def test_words_are_added_to_what_takes_time():
    more = "--set town.residents=9"
    assert sized("sottovoce run demo > x", more) == f"sottovoce run demo {more} > x"
    assert sized(".venv/bin/sottovoce run", more) == f".venv/bin/sottovoce run {more}"
    assert sized("sottovoce run demo  # why", more) == f"sottovoce run demo {more} # why"
    assert (
        sized("sottovoce recommend runs/x --user a", more) == "sottovoce recommend runs/x --user a"
    )
