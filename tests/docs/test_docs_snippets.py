"""Every block of the documents is run: here, by the test that its comment names, or for a reason
from a short list not at all."""

import pytest
from snippets import PRINTED, Walk

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


@pytest.mark.parametrize(
    "block",
    ["```bash\nfalse\ntrue\n```", "```bash\nfalse | true\n```", "```console\n$ sottovoce jump\n```",
     "```bash\nsottovoce data show never-imported\n```"],
)  # fmt: skip
def test_a_command_that_fails_fails_the_walk(block, tmp_path):
    with pytest.raises(AssertionError, match=r"docs/page\.md:1: "):
        walked(block, tmp_path)
