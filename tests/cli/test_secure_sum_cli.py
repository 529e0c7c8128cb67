"""A secure sum by commands: the proxy's keys, the federation that names them, the introduction, and
what a device owner reads."""

import json

import pytest
from talk import told

from sottovoce.cli import call
from sottovoce.cli.making import make_federation
from sottovoce.core.links import SecureSum
from sottovoce.errors import ConfigError, DataNotFound, KeyTrouble, UsageError
from sottovoce.services.server.rounds import collection_of
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper
from sottovoce.stores.keys import init_keys
from sottovoce.stores.server_folder import open_folder

URL = "https://proxy.example.net:8445"
EXPERIMENT = """
seed = 3
[town]
residents = 12
venues = 60
districts = 2
[algorithm]
name = "fpl"
embedding_size = 3
triples = 10
cohort_size = 10
rounds = 3
[link]
name = "secure-sum"
min_devices = 5
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "summed.toml").write_text(EXPERIMENT)
    (tmp_path / "items.csv").write_text("item\n" + "\n".join(f"i{n}" for n in range(30)))
    return tmp_path


@pytest.fixture
def proxy(place):
    made = told("serve", "helper", place / "masks", "--init", "--name", "proxy.example.net")
    assert made["key_file"] == str(place / "masks" / "seal.pub")
    return made


def make(place, proxy=None, key=None, **options):
    file = str(place / "summed.toml")
    return make_federation(
        place / "town", file, [], place / "items.csv", [], 3, proxy, key, **options
    )


def test_from_the_proxys_keys_to_a_federation_and_back(place, proxy):
    ca, key = place / "masks" / "keys" / "ca.crt", place / "masks" / "seal.pub"
    made = make(place, (URL, ca), key)
    link = made.plan.terms.link
    assert isinstance(link, SecureSum)
    assert (link.url, link.key, link.min_devices) == (URL, proxy["key"], 5)
    assert link.authority == ca.read_text()
    told("serve", "introduce", place / "town", "--out", place / "town.json")
    introduced = HelperIntroduction.read(place / "town.json")
    assert introduced.terms == open_folder(place / "town").plan.terms
    folder = create_helper(place / "masks", introduced)
    assert folder.introduction.link.min_devices == 5
    collection = collection_of(made.plan, made.keys)
    assert isinstance(collection, MaskedSums)
    token = (made.keys / "proxy.token").read_text().strip()
    assert introduced.token == token
    for secret in ("seal.key", "noise.secret", "introduction.json"):
        assert (place / "masks" / secret).stat().st_mode & 0o077 == 0


def test_a_federation_needs_all_of_the_proxy(place, proxy):
    ca, key = place / "masks" / "keys" / "ca.crt", place / "masks" / "seal.pub"
    for given in [(), ((URL, ca),), (None, key)]:
        with pytest.raises(ConfigError, match="--proxy-key FILE"):
            make(place, *given)
    with pytest.raises(DataNotFound, match=r"seal\.pubs"):
        make(place, (URL, ca), place / "masks" / "seal.pubs")
    with pytest.raises(KeyTrouble, match=r"seal\.pub"):
        make(place, (URL, ca), ca)
    with pytest.raises(KeyTrouble, match="secret"):
        make(place, (URL, ca), place / "masks" / "seal.key")
    with pytest.raises(UsageError, match="https://"):
        make(place, ("http://proxy.example.net", ca), key)
    with pytest.raises(ConfigError, match="gateways"):
        make(place, (URL, ca), key, gateways=True)
    assert not (place / "town").exists()


def test_the_key_is_for_a_secure_sum_alone(place, proxy):
    (place / "summed.toml").write_text(EXPERIMENT.split("[link]")[0])
    ca, key = place / "masks" / "keys" / "ca.crt", place / "masks" / "seal.pub"
    with pytest.raises(ConfigError, match="secure sum"):
        make(place, (URL, ca), key)
    with pytest.raises(ConfigError, match="secure sum"):
        make(place, (URL, ca))


@pytest.mark.parametrize("party", ["helper", "aggregator"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--init", "--introduction", "x.json"], "use one of them"),
        (["--name", "a.example"], "goes with --init"),
        ([], "--init"),
        (["--introduction", "missing.json"], "cannot be read"),
    ],
)
def test_mistakes_of_a_partys_operator_are_one_sentence(place, sottovoce_, party, arguments, words):
    code, _, said = sottovoce_("serve", party, place / "none", *arguments)
    assert code != 0
    assert words in said
    assert said.count("\n") == 1


def test_the_other_kind_of_introduction_is_refused(place, capsys):
    init_keys(place / "keys")
    (place / "other.json").write_text(json.dumps({"protocol": 2, "server": URL, "token": "ab"}))
    told("serve", "helper", place / "masks", "--init")
    arguments = ["serve", "helper", str(place / "masks"), "--introduction"]
    assert call([*arguments, str(place / "other.json")]) == 2
    assert "no introduction to a secure sum" in capsys.readouterr().err


def test_proxy_key_goes_with_proxy(place, capsys):
    arguments = ["serve", "server", str(place / "town"), "--experiment", str(place / "summed.toml")]
    assert call([*arguments, "--proxy-key", "seal.pub"]) == 2
    assert "--proxy-key goes with" in capsys.readouterr().err


def test_flower_cannot_run_it(place, capsys):
    pytest.importorskip("flwr")
    out = place / "run"
    arguments = ["run", str(place / "summed.toml"), "--engine", "flower", "--out", str(out)]
    assert call(arguments) == 2
    said = capsys.readouterr().err
    assert "gateways see the updates" in said
