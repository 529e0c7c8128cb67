"""What the Makefile installs is known by its hash: the lists are complete, go with
`constraints.txt`, and name no place to fetch from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def entries(path):
    """Name, version and hashes of everything in a list."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        asked = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)( ;[^-]*)?((?: +--hash=\S+)+)", line.strip())
        assert asked is not None, line[:80]
        found[asked[1]] = asked[2], re.findall(r"--hash=sha256:([0-9a-f]{64})(?: |$)", asked[4])
    return found


def names(*requirements):
    return {re.match(r"[A-Za-z0-9-]+", one)[0].lower() for one in requirements}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_entry_has_hashes_and_the_version_of_the_constraints(path):
    for name, (version, hashes) in entries(path).items():
        assert hashes, name
        assert version.removesuffix("+cpu") == PINNED.get(name, version.removesuffix("+cpu")), name
    assert not re.search(r"://|--index|--find-links|--extra|--trusted", path.read_text())


def test_constraints_have_versions_and_no_hashes():
    """With one, pip asks for hashes of everything, and refuses a wheel on the disk and `-e .`."""
    text = (ROOT / "constraints.txt").read_text()
    assert "--" not in text
    assert all(re.fullmatch(r"[\w.!]+", version) for version in PINNED.values())


def test_the_lists_have_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    build = names(*project["build-system"]["requires"])
    lists = {path.stem: set(entries(path)) for path in LOCKS}
    assert set(lists) == {"core", "web", "dev", "torch", "torch-cpu", "fuzz"}
    assert names(*core) | build <= lists["core"] <= lists["web"]
    assert names(*extras["web"]) <= lists["web"] <= lists["dev"]
    for extra in ("flower", "attacks", "tune", "frames", "docs", "dev"):
        assert names(*extras[extra]) <= lists["dev"], extra
    assert names(*extras["torch"]) == lists["torch-cpu"] <= lists["torch"]
    # The build for processors alone is installed without looking at what it needs.
    needs = (ROOT / "requirements" / "torch-needs.in").read_text()
    assert {line for line in needs.splitlines() if not line.startswith("#")} <= lists["dev"]


def test_nothing_is_installed_past_the_lists():
    makefile = (ROOT / "Makefile").read_text()
    variables = dict(re.findall(r"^(\w+) := (.*)$", makefile, re.MULTILINE))
    assert "--no-deps" in variables["PIP"]
    assert variables["HASHED"].startswith("$(PIP) --require-hashes -r ")
    assert variables["UV_ITSELF"] == "$(PIP) --require-hashes -r $(VENV)/uv.txt"
    assert variables["UV"].endswith(" --no-deps --require-hashes -r requirements")
    recipes = re.findall(r"^\t(.*)$", makefile, re.MULTILINE)
    made = [line for line in recipes if line.endswith("uv.txt")]
    assert made == [r"@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock >$(VENV)/uv.txt"]
    for line in recipes:
        assert "pip install" not in line, "by its variable"
        if "$(PIP)" in line:
            assert line == "@$(PIP) --no-build-isolation -e ."
    assert sum("$(HASHED)" in line for line in recipes) == 7
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    packages, ours = re.findall(r"pip install (.*?)(?: \\)?$", image, re.MULTILINE)
    assert packages.endswith("--no-deps --require-hashes -r requirements/web.lock")
    assert ours.endswith("--no-deps --no-build-isolation .")
