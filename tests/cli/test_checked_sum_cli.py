"""A checked sum by commands: keys of two organisations, the federation that names them,
introductions, and what a device owner reads."""

import contextlib
import shutil

import numpy as np
import pytest
from talk import told

from sottovoce.cli import call
from sottovoce.core.links import CheckedSum
from sottovoce.errors import KeyTrouble
from sottovoce.services.server.checked_rounds import CheckedSums
from sottovoce.services.server.rounds import collection_of, coordinator_of
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.aggregator_folder import AggregatorIntroduction, create_aggregator
from sottovoce.stores.server_folder import open_folder

URLS = "https://one.example.net:8448", "https://two.example.com:8448"
EXPERIMENT = """
seed = 3
[town]
residents = 12
venues = 60
districts = 2
[algorithm]
name = "gram"
popularity_share = 0.3
[release]
epsilon = 4.0
[link]
name = "checked-sum"
min_devices = 5
noise_by = "halves"
"""


def refused(capsys, *arguments):
    assert call([*map(str, arguments)]) != 0
    said = capsys.readouterr().err.strip()
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1, said
    return said


@pytest.fixture
def place(tmp_path):
    (tmp_path / "checked.toml").write_text(EXPERIMENT)
    (tmp_path / "items.csv").write_text("item\n" + "\n".join(f"i{n}" for n in range(30)))
    for name in ("one", "two"):
        told("serve", "aggregator", tmp_path / name, "--init", "--name", f"{name}.example.net")
    return tmp_path


def making(place, *others):
    """The command that makes the federation, with these aggregators."""
    given = ["serve", "server", place / "town", "--experiment", place / "checked.toml"]
    given += ["--catalogue", place / "items.csv", "--port", "0"]
    for url, folder in others:
        ca, key = place / folder / "keys" / "ca.crt", place / folder / "seal.pub"
        given += ["--aggregator", url, "--aggregator-ca", ca, "--aggregator-key", key]
    return given


@pytest.fixture
def made(place, monkeypatch):
    """The federation, whose server is not started here."""
    monkeypatch.setattr("sottovoce.services.kit.serving.serve", lambda *a, **k: None)
    assert call([*map(str, making(place, *zip(URLS, ("one", "two"), strict=True)))]) == 0
    return open_folder(place / "town")


def test_periods_that_follow_each_other_at_once_are_told(place, monkeypatch, capsys):
    """60 rounds cost each user ε = 80 in 23 minutes, and nothing had said so."""
    monkeypatch.setattr("sottovoce.services.kit.serving.serve", lambda *a, **k: None)
    made = [*map(str, making(place, *zip(URLS, ("one", "two"), strict=True)))]
    capsys.readouterr()
    assert call(made) == 0
    assert "as with --set release.period_days=365" in capsys.readouterr().err
    shutil.rmtree(place / "town")
    assert call([*made, "--set", "release.period_days=365"]) == 0
    assert "period_days" not in capsys.readouterr().err


def test_from_keys_to_a_federation_and_back(place, made):
    link = made.plan.terms.link
    assert isinstance(link, CheckedSum)
    assert (link.urls, link.min_devices, link.noise_by) == (URLS, 5, "halves")
    for number, name in ((1, "one"), (2, "two")):
        assert link.keys[number] == (place / name / "seal.pub").read_text().strip()
        assert link.authorities[number - 1] == (place / name / "keys" / "ca.crt").read_text()
    said = told("serve", "introduce", place / "town", "--out", place / "town.json")
    assert said["files"] == [str(place / f"town-{number}.json") for number in (1, 2)]
    introduced = [AggregatorIntroduction.read(place / f"town-{n}.json") for n in (1, 2)]
    assert introduced[0].token != introduced[1].token
    for number, (name, one) in enumerate(zip(("one", "two"), introduced, strict=True), 1):
        assert (one.number, one.terms) == (number, made.plan.terms)
        create_aggregator(place / name, one)
        for secret in ("seal.key", "noise.secret", "coins.secret", "introduction.json"):
            assert (place / name / secret).stat().st_mode & 0o077 == 0
    collection = collection_of(made.plan, made.keys)
    assert isinstance(collection, CheckedSums)
    for secret in ("aggregator.key", "aggregator-coins.secret", "aggregator-1.token"):
        assert (made.keys / secret).stat().st_mode & 0o077 == 0


def test_an_introduction_makes_a_folder_that_of_the_federation(place, made, capsys):
    told("serve", "introduce", place / "town", "--out", place / "town.json")
    start = ["serve", "aggregator", str(place / "one")]
    capsys.readouterr()
    assert call([*start, "--introduction", str(place / "town-1.json")]) == 0
    said = capsys.readouterr().err
    assert "holds aggregator 1 of the federation" in said
    assert "at least 5 devices, one in a round" in said
    assert call(start) == 0
    again = refused(capsys, *start, "--introduction", place / "town-1.json")
    assert "holds an aggregator already" in again


def test_status_says_for_whom_a_round_waits_and_how_many_were_left_out(place, made, capsys):
    with contextlib.closing(made.database()) as store, store.writing() as at:
        records.set_fact(at, "waits", "round 1 waits for aggregator 2: nobody answers")
        records.open_round(at, 0, 0, 9, np.arange(9, dtype=np.uint32))
        ended = {"missing": records.packed(np.zeros(0, np.uint32)), "outcome": "goal"}
        records.move_round(at, 0, 0, "open", "closed", **ended, seconds=2.0)
        sums.leave_out(at, 0, 0, {3: "out_of_range", 5: "out_of_range", 7: "bad_shares"})
    assert call(["serve", "status", str(place / "town")]) == 0
    said = capsys.readouterr().out
    assert "Waits: round 1 waits for aggregator 2: nobody answers" in said
    assert "left out: bad_shares 1, out_of_range 2" in said


def test_an_introduction_is_for_one_of_the_two(place, made, capsys):
    told("serve", "introduce", place / "town", "--out", place / "town.json")
    said = refused(
        capsys, "serve", "aggregator", place / "one", "--introduction", place / "town-2.json"
    )
    assert "name another key" in said


def test_a_server_with_other_keys_does_not_start(place, made):
    (made.keys / "aggregator.key").write_text("11" * 32 + "\n")
    with pytest.raises(KeyTrouble, match="name another key"):
        coordinator_of(made.plan, lambda: 0.0, made.keys)


def test_one_organisation_cannot_be_two(place, capsys):
    one, two = (URLS[0], "one"), (URLS[1], "two")
    for others in ([one, one], [one, (URLS[0], "two")], [one, (URLS[1], "one")]):
        assert "names one organisation twice" in refused(capsys, *making(place, *others))
    for others in ([], [one], [one, two, one]):
        said = refused(capsys, *making(place, *others))
        assert "twice each" in said
    assert not (place / "town" / "federation.json").exists()
    assert not (place / "town" / "keys" / "aggregator.key").exists()


def test_mistakes_are_one_sentence(place, capsys):
    both = [(URLS[0], "one"), (URLS[1], "two")]
    plain = [("http://one.example.net", "one"), both[1]]
    assert "must be an https:// address" in refused(capsys, *making(place, *plain))
    wrong = making(place, *both)
    wrong[wrong.index("--aggregator-key") + 1] = place / "one" / "seal.key"
    assert "seal.key is a secret" in refused(capsys, *wrong)
    wrong = making(place, *both)
    wrong[wrong.index("--aggregator-ca") + 1] = place / "one" / "seal.pub"
    assert "--aggregator-ca must be the certificate" in refused(capsys, *wrong)
    said = refused(capsys, *making(place), "--proxy", URLS[0], "--proxy-ca", place / "checked.toml")
    assert "--aggregator" in said
    (place / "checked.toml").write_text(EXPERIMENT.replace("checked-sum", "secure-sum").replace(
        'noise_by = "halves"', ""))  # fmt: skip
    assert "--aggregator is for a checked sum" in refused(capsys, *making(place, *both))


def test_flower_refuses_in_one_sentence(place, capsys):
    pytest.importorskip("flwr")
    set_ = "--set", "consent.mix=[{weight=1, epsilon=2.0}]"
    file, out = place / "checked.toml", place / "run"
    said = refused(capsys, "run", file, *set_, "--engine", "flower", "--out", out)
    assert "in a checked sum every device is checked by itself" in said
    assert not out.exists()
