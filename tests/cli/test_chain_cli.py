"""A chain of shufflers by commands: keys, the federation that names them, an introduction for each,
the running processes, and what a device owner reads; bad input in one sentence."""

import contextlib
import json
import shutil

import pytest
from talk import told

from sottovoce.cli import call
from sottovoce.cli.making import make_federation
from sottovoce.core.words import say
from sottovoce.engines.processes import Child, free_port, sottovoce_command, wait_for
from sottovoce.errors import ConfigError, KeyTrouble, UsageError
from sottovoce.stores.server_folder import read_introduction
from sottovoce.stores.shuffler_folder import create_shuffler_folder, open_shuffler_folder, read_hop
from sottovoce.wire.plainly import agreed_to, onlookers, settings, short
from sottovoce.wire.refusals import Refused
from sottovoce.wire.shuffled import BatchPart

pytestmark = pytest.mark.usefixtures("forked_children")

EXPERIMENT = """
seed = 3
[algorithm]
name = "fmf"
embedding_size = 3
rounds = 3
[release]
max_reports = 20
tiers = [{ epsilon = 1.0, min_devices = 3 }]
[service]
min_devices = 3
"""


def refused(capsys, *arguments):
    """The sentence with which a command ends."""
    assert call([*map(str, arguments)]) != 0
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return said


@pytest.fixture
def place(tmp_path):
    """Keys of a first, a second and a third shuffler."""
    (tmp_path / "reports.toml").write_text(EXPERIMENT)
    (tmp_path / "items.csv").write_text("item\n" + "\n".join(f"i{n}" for n in range(30)))
    told("keys", "init", tmp_path / "first" / "keys")
    for name in ("second", "third"):
        url = f"https://127.0.0.1:{free_port()}"
        made = told("serve", "shuffler", tmp_path / name, "--init", "--url", url)
        assert made["file"] == str(tmp_path / name / "hop.json")
        assert read_hop(tmp_path / name / "hop.json").url == url
    return tmp_path


def make(place, *names, file="reports.toml", **options):
    ca = place / "first" / "keys" / "ca.crt"
    chain = [place / name / "hop.json" for name in names]
    given = (place / "town", str(place / file), [], place / "items.csv", [], 3)
    return make_federation(*given, ("https://127.0.0.1:4433", ca), chain=chain, **options)


def test_from_keys_to_running_shufflers(place):
    port, ca = free_port(), place / "first" / "keys" / "ca.crt"
    first = f"https://127.0.0.1:{free_port()}"
    then = [f"--then={place / name / 'hop.json'}" for name in ("second", "third")]
    made = sottovoce_command(
        *("serve", "server", place / "town", "--experiment", place / "reports.toml"),
        *("--catalogue", place / "items.csv", "--proxy", first, "--proxy-ca", ca, *then),
        *("--port", str(port)),
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Child("the server", made, log=place / "server.log"))
        wait_for(server, (place / "town" / "server.json").exists)
        for hop, name in enumerate(("first", "second", "third"), 1):
            file, url = place / f"{name}.json", f"https://127.0.0.1:{port}"
            told("serve", "introduce", place / "town", "--hop", hop, "--out", file, "--server", url)
            own = first if hop == 1 else read_hop(place / name / "hop.json").url
            command = sottovoce_command(
                *("serve", "shuffler", place / name, "--introduction", file),
                *("--port", own.rpartition(":")[2]),
            )
            child = stack.enter_context(Child(name, command, log=place / f"{name}.log"))
            wait_for(child, (place / name / "proxy.json").exists)
            wait_for(child, (place / name / "terms.json").exists)
        links = [open_shuffler_folder(place / n).terms().link for n in ("first", "second", "third")]
        assert links[0] == links[1] == links[2]
        assert [hop.key for hop in links[0].chain] == [
            read_hop(place / name / "hop.json").key for name in ("second", "third")
        ]


def test_each_shuffler_is_known_to_its_neighbours_alone(place):
    make(place, "second", "third")
    found = []
    for hop in (1, 2, 3):
        file = place / f"{hop}.json"
        told("serve", "introduce", place / "town", "--hop", hop, "--out", file,
             "--server", "https://example.org")  # fmt: skip
        found.append(read_introduction(file))
    assert [one.hop for one in found] == [0, 1, 2]
    assert [one.accepts for one in found] == ["", found[0].token, found[1].token]
    assert len({one.token for one in found}) == 3
    assert found[2].token == (place / "town" / "keys" / "proxy.token").read_text().strip()
    assert set(json.loads((place / "1.json").read_text())) == {
        "protocol", "server", "ca", "federation", "verifying_key", "token"
    }, "as before there were chains"  # fmt: skip


def test_bad_input_is_told_in_one_sentence(place, capsys):
    with pytest.raises(ConfigError, match="same url"):
        make(place, "second", "second")
    (place / "third" / "hop.json").write_text(
        json.dumps(
            json.loads((place / "second" / "hop.json").read_text()) | {"url": "https://b.example"}
        )
    )
    with pytest.raises(ConfigError, match="same key"):
        make(place, "second", "third")
    (place / "third" / "hop.json").write_text("{}")
    with pytest.raises(Exception, match=r"hop\.json is for version None"):
        make(place, "third")
    with pytest.raises(UsageError, match="cannot be read"):
        make(place, "nobody")
    (place / "empty.toml").write_text(EXPERIMENT + "[link]\nchain = [{}, {}]\n")
    with pytest.raises(ConfigError, match=r"has 2 further shuffler.*--then"):
        make(place, file="empty.toml")
    (place / "fpl.toml").write_text('[algorithm]\nname = "fpl"\ntriples = 5\nrounds = 3\n')
    with pytest.raises(ConfigError, match="--then is for randomised reports"):
        make_federation(place / "fpl", str(place / "fpl.toml"), [], place / "items.csv", [], 3,
                        chain=[place / "second" / "hop.json"])  # fmt: skip
    assert not (place / "town").exists()
    make(place, "second")
    capsys.readouterr()
    introduce = ("serve", "introduce", place / "town", "--server", "https://example.org")
    assert "there is no number 3" in refused(capsys, *introduce, "--hop", "3")
    second = ("serve", "shuffler", place / "second")
    assert "not overwritten" in refused(capsys, *second, "--init", "--url", "https://b.example")
    assert "go together" in refused(capsys, *second, "--init")
    assert "--url is an address" in refused(
        capsys, "serve", "shuffler", place / "new", "--init", "--url", "b"
    )
    told(*introduce, "--hop", "2", "--out", place / "2.json")
    make_new = ("serve", "shuffler", place / "new", "--introduction", place / "2.json")
    assert "has no seal.key" in refused(capsys, *make_new)
    create_shuffler_folder(place / "second", read_introduction(place / "2.json"))
    assert "--goal is the first shuffler's" in refused(capsys, *second, "--goal", "5")


def test_a_shuffler_that_the_terms_do_not_name_follows_nobody(place):
    make(place, "second")
    told("serve", "introduce", place / "town", "--hop", "2", "--out", place / "2.json",
         "--server", "https://example.org")  # fmt: skip
    folder = create_shuffler_folder(place / "third", read_introduction(place / "2.json"))
    with pytest.raises(KeyTrouble, match="name another key for shuffler number 2"):
        folder.require_place(make_terms(place))


def make_terms(place):
    from sottovoce.stores.server_folder import open_folder

    return open_folder(place / "town").plan.terms


def test_a_device_owner_reads_who_the_shufflers_are_and_what_holds(place):
    terms = make(place, "second", "third").plan.terms
    told = [*(one.sees for one in onlookers(terms)), *agreed_to(terms)]
    said = " ".join(map(say, told))
    urls = [read_hop(place / name / "hop.json").url for name in ("second", "third")]
    places = [said.index(url) for url in ("https://127.0.0.1:4433", *urls)]
    assert places == sorted(places)
    assert "All this holds while one of the 3 shufflers is honest." in said
    assert "Can read your reports as yours." in said
    chain = short(settings(terms)["link.chain"])
    assert chain.startswith(f"url {urls[0]}, authority certificate ")
    assert "BEGIN" not in chain


def test_a_backup_of_a_later_shuffler_has_its_key(place):
    make(place, "second")
    told("serve", "introduce", place / "town", "--hop", "2", "--out", place / "2.json",
         "--server", "https://example.org")  # fmt: skip
    before = create_shuffler_folder(place / "second", read_introduction(place / "2.json"))
    key = before.seal_key()
    told("backup", place / "second", place / "copy")
    shutil.rmtree(place / "second")
    told("restore", place / "copy", place / "second", "--next-round", "7")
    after = open_shuffler_folder(place / "second")
    assert after.seal_key() == key
    assert after.introduction == before.introduction
    with contextlib.closing(after.store()) as store:
        part = BatchPart(6, 0, bytes(32), 3, 0, 1, bytes(16), bytes(100), 100)
        with pytest.raises(Refused, match="round 6 is over"):
            store.take(part, 1, 60)
