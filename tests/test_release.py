"""What is handed out: the wheel has all that commands and messages speak of and nothing else, and a
stranger can install and use it."""

import ast
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
import zipfile
from datetime import date, datetime
from itertools import chain
from pathlib import Path

import pytest
import yaml

import release
import sottovoce

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "experiments")
MOST_BYTES = 4_000_000
WITH_OTHERS = {
    "fastapi": "flwr",
    "httpx": "flwr",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
    "triton": "torch",
}
"""Modules of libraries that only go with the one that is named here, and come with it."""
# Folders of machines or of a person; not those that operators are told to make.
MACHINE = re.compile(rb"/(?:work|root|Users|home/(?!sottovoce)[a-z]+)/\w")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Source archive and wheel."""
    out = tmp_path_factory.mktemp("dist")
    return release.build(out)


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built[1]) as archive:
        yield archive


def tracked(*folders, new=True):
    """Files that git does not ignore; with `new` those, too, that are not added yet."""
    command = ["git", "ls-files", "-z", "--cached"]
    command += ["--others", "--exclude-standard"] if new else []
    listed = subprocess.run([*command, "--", *folders], cwd=ROOT, capture_output=True, check=True)
    return {name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()}


def needs_git():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout with a history: what belongs to it cannot be told")


# --- one version ----------------------------------------------------------------------------------


def test_there_is_one_version(built):
    version = sottovoce.__version__
    assert release.version() == version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert [path.name for path in built] == [
        f"sottovoce-{version}.tar.gz",
        f"sottovoce-{version}-py3-none-any.whl",
    ]
    client = ROOT / "clients" / "browser"
    lock = json.loads((client / "package-lock.json").read_text())
    assert json.loads((client / "package.json").read_text())["version"] == version
    assert lock["version"] == lock["packages"][""]["version"] == version


def test_documents_and_files_for_operators_name_this_version():
    places = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*"), ROOT / "README.md"]
    named = [
        found
        for place in places
        if place.is_file()
        for found in re.findall(
            r"sottovoce-(\d[\w.]*?)-py3|image: sottovoce:(\S+)", place.read_text(encoding="utf-8")
        )
    ]
    assert {wheel or image for wheel, image in named} == {sottovoce.__version__}


def test_the_changelog_has_this_version_and_what_comes_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text, re.MULTILINE)
    assert heads[0] == ("Unreleased", "")
    assert heads[1][0] == sottovoce.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert date.fromisoformat(heads[1][1]).isoformat() == cited["date-released"]


def test_the_citation_has_what_its_format_requires():
    """Keys and kinds are those of the Citation File Format 1.2.0."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    known = {
        *("abstract", "authors", "cff-version", "date-released", "keywords", "license", "message"),
        *("references", "title", "type", "version"),
    }
    assert set(cited) == known
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert cited["version"] == sottovoce.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["license"] == project["license"]
    assert cited["authors"] == project["authors"]
    kinds = {"article", "conference-paper", "report", "thesis"}
    allowed = {
        *("type", "scope", "title", "authors", "year", "doi", "conference", "collection-title"),
        *("identifiers", "institution", "thesis-type"),
    }
    scopes = set()
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "papers").glob("*.md"))
    for paper in cited["references"]:
        assert {"type", "title", "authors"} <= set(paper) <= allowed
        assert paper["type"] in kinds
        assert all(set(who) == {"given-names", "family-names"} for who in paper["authors"])
        assert isinstance(paper["year"], int)
        assert re.fullmatch(r"10\.\d{4,9}/\S+", paper.get("doi", "10.1000/x"))
        found = [paper["doi"]] if "doi" in paper else []
        found += [each["value"] for each in paper.get("identifiers", ())]
        assert found, f"{paper['title']} cannot be looked up"
        assert all(value in pages for value in found), "the page of the paper has others"
        scopes.add(paper["scope"].partition(",")[0])
    assert scopes == {"FPL", "FMF-LDP", "FCF", "DRIFT", "UC-FedRec"}


# --- the wheel ------------------------------------------------------------------------------------


def test_the_wheel_has_what_belongs_to_it_and_nothing_else(wheel):
    needs_git()
    names = set(wheel.namelist())
    wanted = {name.removeprefix("src/") for name in tracked("src")}
    wanted |= {f"sottovoce/{name}" for name in tracked(*FOLDERS)}
    wanted |= {f"sottovoce/{name}" for name in ("CHANGELOG.md", "CITATION.cff")}
    wanted |= {f"sottovoce/{name}" for name in ("README.md", "SECURITY.md")}
    extra = {name for name in names - wanted if ".dist-info/" not in name}
    assert not wanted - names
    assert not {name for name in extra if not name.startswith("sottovoce/browser/")}


def test_every_folder_is_there_and_no_test_no_data_no_cache(wheel):
    names = wheel.namelist()
    for folder in FOLDERS:
        assert any(name.startswith(f"sottovoce/{folder}/") for name in names), folder
    wrong = r"(^|/)(tests?|__pycache__|node_modules|secrets)/|\.(parquet|npz|pyc|key|pem|token)$"
    assert not [name for name in names if re.search(wrong, name)]
    assert "sottovoce/py.typed" in names


def test_the_wheel_is_small_and_names_no_machine(built, wheel):
    assert built[1].stat().st_size < MOST_BYTES
    for name in wheel.namelist():
        found = MACHINE.search(wheel.read(name))
        assert found is None, (name, found)


def test_pages_of_the_wheel_lead_to_files_of_the_wheel(wheel):
    names = set(wheel.namelist())
    folders = {name.rsplit("/", n)[0] for name in names for n in range(1, name.count("/") + 1)}
    pages = [name for name in names if name.endswith(".md")]
    assert len(pages) > 10
    for page in pages:
        text = re.sub(r"```.*?```", "", wheel.read(page).decode(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", text):
            there = Path("/", page).parent.joinpath(link).resolve().as_posix().strip("/")
            assert there in names | folders, (page, link)


def test_what_git_ignores_stays_out(tmp_path, monkeypatch):
    """An operator's keys lie in deploy/secrets."""
    ours = ("pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "LICENSE",
            ".gitignore", "tools/wheel.py", "src/sottovoce/__init__.py")  # fmt: skip
    theirs = ("deploy/secrets/server.key", "deploy/compose.yaml", "docs/a.md", "docs/b.parquet",
              "clients/browser/node_modules/x.js", "clients/browser/src/y.ts",
              "clients/browser/.installing")  # fmt: skip
    for name in ours:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    sdist, made = release.build(tmp_path / "dist")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert {"sottovoce/deploy/compose.yaml", "sottovoce/docs/a.md"} <= set(names)
    with tarfile.open(sdist) as archive:
        sources = archive.getnames()
    assert any(name.endswith("clients/browser/src/y.ts") for name in sources)
    assert not [
        n for n in names + sources if re.search("secrets|parquet|node_modules|installing", n)
    ]


def test_two_builds_have_the_same_bytes(built, tmp_path):
    again = release.build(tmp_path)
    for one, other in zip(built, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_the_source_archive_can_be_built_and_tested(built, wheel, tmp_path):
    needs_git()
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    built_ones = {name for name in names if name.startswith("clients/browser/dist/")}
    assert not tracked(new=False) - names
    assert names - built_ones - tracked() == {"PKG-INFO"}
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert archive.namelist() == wheel.namelist()


def test_a_build_without_files_for_tabs_says_so(tmp_path, monkeypatch, capfd, built, wheel):
    there = (ROOT / "clients" / "browser" / "dist" / "sottovoce.js").is_file()
    assert ("sottovoce/browser/sottovoce.js" in wheel.namelist()) == there
    release.build(tmp_path, "wheel")
    assert ("`make browser` builds them" in capfd.readouterr().err) != there


def test_every_library_is_declared():
    """What a module imports must come with the package or with an extra of it; what something else
    happens to bring may be gone tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[^\w.-]", one)[0].lower() for one in asked}
    owners = importlib.metadata.packages_distributions()
    imported = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"sottovoce", "sottovoce_papers"}
    assert {"numpy", "click", "flwr", "torch"} <= others
    brought = {
        module: {name.lower().replace("_", "-") for name in owners.get(module, [])}
        for module in others
    }
    undeclared = {module for module, names in brought.items() if not names & declared}
    assert undeclared == set(WITH_OTHERS)


def test_an_image_is_built_from_all_that_a_wheel_needs(tmp_path):
    """What Docker is sent, by its list, gives the same wheel."""
    listed = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    assert listed[0] == "*"
    sent = [name.removeprefix("!") for name in listed if name.startswith("!")]
    assert {"deploy/secrets", "deploy/setup"} <= set(listed[len(sent) :])
    for name in sent:
        there, place = ROOT / name, tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            shutil.copytree(
                there,
                place,
                ignore=shutil.ignore_patterns("__pycache__", "secrets", "node_modules"),
            )
        elif there.is_file():
            shutil.copy(there, place)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert all(any(n.startswith(f"sottovoce/{folder}/") for n in names) for folder in FOLDERS)


# --- bills of materials ---------------------------------------------------------------------------


def hashes(lock):
    """By another way than the tool reads them."""
    found, name = {}, ""
    for line in lock.read_text().splitlines():
        if asked := re.match(r"([\w-]+)==(\S+)", line):
            name = f"{asked[1]}=={asked[2]}"
            found[name] = set()
        found.get(name, set()).update(re.findall(r"sha256:([0-9a-f]{64})", line))
    return found


@pytest.mark.parametrize("name", release.BILLS)
def test_a_bill_has_every_package_of_its_lock_with_its_hashes(name, tmp_path):
    (place,) = (p for p in release.write_bills(tmp_path) if p.stem.endswith(f"-{name}.cdx"))
    bill = json.loads(place.read_text())
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert uuid.UUID(bill["serialNumber"].removeprefix("urn:uuid:"))
    assert datetime.fromisoformat(bill["metadata"]["timestamp"]).tzinfo is not None
    assert bill["metadata"]["component"]["version"] == sottovoce.__version__
    wanted = hashes(ROOT / "requirements" / f"{name}.lock")
    found = {}
    for part in bill["components"]:
        assert part["type"] == "library"
        assert part["purl"] == part["bom-ref"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert all(set(one) in ({"license"}, {"expression"}) for one in part.get("licenses", []))
        (reference,) = part["externalReferences"]
        assert {one["alg"] for one in reference["hashes"]} == {"SHA-256"}
        found[f"{part['name']}=={part['version']}"] = {
            one["content"] for one in reference["hashes"]
        }
    assert found == wanted
    refs = {part["bom-ref"] for part in bill["components"]}
    (graph,) = bill["dependencies"]
    assert graph["ref"] == bill["metadata"]["component"]["bom-ref"]
    assert set(graph["dependsOn"]) <= refs
    assert release.bill(ROOT / "requirements" / f"{name}.lock") == bill


def test_licences_are_of_the_version_that_is_locked():
    here = importlib.metadata.version("numpy")
    known = release.Locked("numpy", here, "", ())
    assert release._licences(known)
    assert not release._licences(release.Locked("numpy", "0.0.1", "", ()))
    assert not release._licences(release.Locked("no-such-package", "1", "", ()))


def test_checksums_are_those_of_the_files(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    place = release.write_sums(tmp_path, [tmp_path / "b", tmp_path / "a"])
    lines = place.read_text().splitlines()
    assert lines == [f"{hashlib.sha256(n.encode()).hexdigest()}  {n}" for n in ("a", "b")]


# --- a stranger -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stranger_installs_the_wheel_and_uses_it(built, tmp_path, capfd):
    release.smoke(built[1], tmp_path, limits=ROOT / "constraints.txt")
    told = capfd.readouterr().out
    for command in ("pip install", "sottovoce demo", "sottovoce reproduce fpl-table3 --quick"):
        assert command in told
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
    assert (tmp_path / "runs" / "fpl-table3").is_dir()
