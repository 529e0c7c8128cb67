"""What comes with the package is found in a checkout and in a wheel, and messages lead to it."""

import ast
import json
import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

import sottovoce
from sottovoce.core import installed
from sottovoce.errors import UsageError

SOURCES = sorted(Path(sottovoce.__file__).parents[1].rglob("*.py"))


def make(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"# {path}\n")


PAGES = ("docs/privacy.md", "docs/deploy/index.md", "docs/deploy/https.md", "docs/index.md",
         "README.md", "SECURITY.md", "deploy/README.md")  # fmt: skip
NAMES = {"privacy", "deploy", "deploy/https", "index", "readme", "security", "deploy/readme"}


@pytest.fixture(params=["checkout", "wheel"])
def place(request, tmp_path, monkeypatch):
    """The folder with what is shipped, and in which of the two situations."""
    root = tmp_path / "a folder"
    package = root / "src" / "sottovoce" if request.param == "checkout" else root / "sottovoce"
    shipped = root if request.param == "checkout" else package
    make(shipped, *PAGES, "experiments/demo.toml")
    package.mkdir(parents=True, exist_ok=True)
    if request.param == "checkout":
        make(root, "pyproject.toml", "constraints.txt")
    monkeypatch.setattr(installed, "_PACKAGE", package)
    return request.param, shipped


# --- pages ----------------------------------------------------------------------------------------


def test_folders_and_pages_are_found(place):
    _, shipped = place
    assert installed.shipped_folder("experiments") == shipped / "experiments"
    with pytest.raises(UsageError, match="no folder of tests"):
        installed.shipped_folder("tests")
    assert set(installed.pages()) == NAMES
    for said, path in (
        ("privacy", "docs/privacy.md"),
        ("docs/privacy.md#what-holds", "docs/privacy.md"),
        ("deploy", "docs/deploy/index.md"),
        ("deploy/", "docs/deploy/index.md"),
        ("docs/deploy/https.md", "docs/deploy/https.md"),
        ("SECURITY.md", "SECURITY.md"),
        ("deploy/README.md", "deploy/README.md"),
    ):
        assert installed.find_page(said) == shipped / path


def test_a_page_that_is_not_there_is_one_sentence_with_a_hint(place):
    with pytest.raises(UsageError, match=r"no page 'privcy'; did you mean privacy\?"):
        installed.find_page("privcy")
    with pytest.raises(UsageError, match=r"did you mean deploy/https\?"):
        installed.find_page("https")
    with pytest.raises(UsageError, match=r"no page '\.\./pyproject'; `sottovoce docs` lists"):
        installed.find_page("../pyproject")


def messages():
    """Strings in the package that are no docstrings."""
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                commands = path.parent.name == "cli"  # whose docstrings are help
                if id(node) not in alone or commands:
                    yield path, node.value


def test_every_message_leads_to_a_page_that_is_there():
    led = set()
    for path, text in messages():
        for page in re.findall(r"sottovoce docs ([a-z][\w/-]*)", text):
            led.add(installed.find_page(page).name)
        if path.name not in ("docs.py", "installed.py"):
            assert not re.search(r"\bdocs/\w+\.md|SECURITY\.md|\bdeploy/[\w.]+", text), (path, text)
    assert "privacy.md" in led


def test_words_of_pages_name_no_file_of_a_checkout():
    for path in Path(sottovoce.__file__).parent.rglob("*.json"):
        assert not re.search(r"\bdocs/\w+|SECURITY\.md", path.read_text(encoding="utf-8")), path


# --- extras ---------------------------------------------------------------------------------------


def noted(monkeypatch, content):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if content is None else json.dumps(content)

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())


def test_an_extra_is_installed_from_where_the_package_came(place, monkeypatch, tmp_path):
    situation, shipped = place
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed, "program", lambda name: [name])
    wheel = tmp_path / "sottovoce-0.2.0-py3-none-any.whl"
    wheel.touch()
    noted(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    command = shlex.split(installed.installing("web"))
    if situation == "checkout":
        limits = str(shipped / "constraints.txt")
        assert command == ["pip", "install", "-c", limits, "-e", f"{shipped}[web]"]
        monkeypatch.chdir(shipped)
        assert installed.installing("web") == "pip install -c constraints.txt -e '.[web]'"
    else:
        assert command == ["pip", "install", f"sottovoce[web] @ {wheel.as_uri()}"]


@pytest.mark.parametrize("place", ["wheel"], indirect=True)
def test_a_wheel_that_is_gone_an_index_and_a_repository(place, monkeypatch):
    monkeypatch.setattr(installed, "program", lambda name: [name])
    noted(monkeypatch, {"url": "file:///no/such%20place/x.whl", "archive_info": {}})
    assert "put it back there" in installed.installing("web")
    noted(monkeypatch, None)
    assert installed.installing("web") == "pip install 'sottovoce[web]'"
    vcs = {"vcs": "git", "commit_id": "abc"}
    noted(monkeypatch, {"url": "https://example.org/s.git", "vcs_info": vcs})
    assert installed.installing("tune").endswith(
        "'sottovoce[tune] @ git+https://example.org/s.git@abc'"
    )


def test_what_needs_a_library_says_which_and_how(monkeypatch):
    monkeypatch.setattr(installed, "installing", lambda extra: f"<{extra}>")
    assert (
        installed.needs("torch") == "needs torch, which is not installed; install it with: <torch>"
    )
    assert installed.needs("flwr.app").endswith("install it with: <web,flower>")
    assert installed.needs("unheard_of") == "needs unheard_of, which is not installed"


def test_every_extra_that_is_named_is_there_and_has_the_library():
    import tomllib

    root = installed.checkout()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for module, extras in installed.EXTRA_OF.items():
        brought = [
            one for name in extras.split(",") for one in project["optional-dependencies"][name]
        ]
        library = {"sklearn": "scikit-learn", "threadpoolctl": "scikit-learn",
                   "apsw": "apsw-sqlite3mc"}  # fmt: skip
        wanted = library.get(module, module.replace("_", "-"))
        assert any(re.match(rf"{wanted}\b", one) for one in brought), module


def test_only_one_place_says_how_to_install():
    for path, text in messages():
        if path.name != "installed.py":
            assert not re.search(r"pip install|sottovoce\[", text), (path, text)
