"""What tests of the documents share."""

import pytest
from chromium import browser  # noqa: F401

import docs


@pytest.fixture(scope="session")
def documents():
    """The pages of this repository, with the reference that is made from it."""
    return docs.read_all()


MENU = """\
site_name: Small
docs_dir: build/docs
site_dir: build/site
use_directory_urls: false
nav:
  - Home: index.md
  - More:
      - Second: second.md
"""
FIRST = """\
---
description: The first page.
---

# First

See [the second](second.md#a-part).
"""
SECOND = """\
---
description: The second page.
---

# Second

## A part

See [the first](index.md) and [a file](../notes.txt).
"""


@pytest.fixture
def repository(tmp_path):
    """A small repository in which nothing is wrong; the function writes files and reads it."""

    def read(made=None, **files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_md", ".md").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return docs.Documents.read(tmp_path, made)

    (tmp_path / "mkdocs.yml").write_text(MENU)
    (tmp_path / "Makefile").write_text("demo: venv\n\ttrue\n")
    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\nweb = []\n")
    (tmp_path / "notes.txt").write_text("notes\n")
    read(docs__index_md=FIRST, docs__second_md=SECOND)
    return read
