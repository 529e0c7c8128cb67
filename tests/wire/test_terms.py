"""Terms: they survive the wire, and a device is not talked into others."""

import json
import resource
from dataclasses import replace

import pytest

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.links import Proxied, SecureSum
from sottovoce.errors import ConfigError, MessageError, VersionMismatch
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.terms import LARGEST_MODEL, Terms, check_fitting

TERMS = Terms.of("town-1", 50, FPLConfig(configuration="pFPL+"), 7, ShareFraction("draw"))


def test_terms_survive_the_wire():
    again = Terms.from_table(json.loads(json.dumps(TERMS.to_table())))
    assert again == TERMS
    assert again.digest() == TERMS.digest()
    assert (again.triples, again.width, again.max_rows) == (7, 11, 14)


@pytest.mark.parametrize(
    "other",
    [
        replace(TERMS, federation="town-2"),
        replace(TERMS, n_items=51),
        replace(TERMS, algorithm=replace(TERMS.algorithm, learning_rate=0.06)),
        replace(TERMS, release=ShareFraction("item")),
    ],
)
def test_other_terms_have_another_digest(other):
    assert other.digest() != TERMS.digest()


def test_another_version_is_named():
    table = TERMS.to_table() | {"protocol": PROTOCOL + 1}
    with pytest.raises(VersionMismatch, match=f"version {PROTOCOL + 1}.*version {PROTOCOL}"):
        Terms.from_table(table)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"n_items": "50"},
        {"n_items": 1},
        {"n_items": 10**9},
        {"algorithm": {"name": "fpl", "triples": 3, "unknown": 1}},
        {"algorithm": {"name": "fpl", "triples": 3, "learning_rate": 10**400}},
        {"algorithm": {"name": "fpl", "triples": 3, "reg_user": 10**400}},
        {"algorithm": {"name": "other"}},
        {"algorithm": {"name": "fpl", "triples": "mean"}},
        {"release": {"name": "share-fraction", "per": "week"}},
        {"release": 3},
    ],
)
def test_nonsense_is_refused_whole(change):
    with pytest.raises(MessageError):
        Terms.from_table(TERMS.to_table() | change)


def test_a_model_that_no_device_could_take_is_no_federation():
    most = LARGEST_MODEL // (4 * TERMS.width)
    assert replace(TERMS, n_items=most).n_items == most
    with pytest.raises(ConfigError, match=r"larger than 512 MiB"):
        replace(TERMS, n_items=most + 1)


@pytest.mark.parametrize(("triples", "revealing"), [(1, False), (12, False), (13, True)])
def test_draws_that_cover_half_of_all_items_are_told(triples, revealing):
    terms = replace(TERMS, algorithm=replace(TERMS.algorithm, triples=triples))
    assert terms.revealing == revealing


def test_the_mean_number_of_items_is_nobodys_to_know():
    with pytest.raises(ConfigError, match="triples must be a number"):
        Terms("x", 10, FPLConfig(), ShareFraction())


# --- UC-FedRec ------------------------------------------------------------------------------------


def filters():
    """Terms with two filters and noise."""
    pytest.importorskip("torch")
    gender = FilterConfig("gender", ("female", "männlich"), (0.25, 0.75))
    age = FilterConfig("age", ("young", "old", "older"), (0.2, 0.3, 0.5))
    settings = UCConfig("ncf", embedding_size=6, attributes=(gender, age))
    return Terms.of("town-1", 50, settings, 0, Clipped(2.0, "l1", 0.5, 0.25))


def of(terms, **changes):
    return replace(terms, algorithm=replace(terms.algorithm, **changes))


def test_terms_with_filters_survive_the_wire():
    terms = filters()
    for kind, release in (
        ("mf", Clipped()), ("ncf", terms.release), ("neumf", Clipped(0.5, "scalar", 1.0)),
    ):  # fmt: skip
        sent = replace(of(terms, recommender=kind), release=release)
        again = Terms.from_table(json.loads(json.dumps(sent.to_table())))
        assert again == sent
        assert again.digest() == sent.digest()
        assert again.algorithm.attributes == terms.algorithm.attributes
        assert again.build() == sent.build()
        assert (again.n_items, again.width, again.triples) == (50, 7, 0)
        assert again.max_rows == again.n_rows > 50
        model = again.build().server_init(50, Streams(1))
        assert model.shape == (again.n_rows, again.width)
        assert again.revealing == (release.norm != "l1")
        assert again.noisy == (release.epsilon > 0)


def test_other_filters_have_another_digest():
    """What a device agreed to cannot be given another meaning: neither a class nor its share."""
    terms = filters()
    gender, age = terms.algorithm.attributes
    others = [
        of(terms, attributes=(gender,)),
        of(terms, attributes=(age, gender)),
        of(terms, attributes=(replace(gender, name="sex"), age)),
        of(terms, attributes=(replace(gender, classes=gender.classes[::-1]), age)),
        of(terms, attributes=(replace(gender, shares=(0.26, 0.74)), age)),
        of(terms, attributes=()),
        of(terms, recommender="mf"),
        of(terms, filters="deep"),
        of(terms, filters="two-layer"),
        of(terms, target="uniform"),
        replace(terms, release=replace(terms.release, epsilon=0.51)),
        replace(terms, release=replace(terms.release, hiding_epsilon=0.0)),
        replace(terms, release=replace(terms.release, norm="scalar")),
    ]
    digests = {each.digest() for each in (terms, *others)}
    assert len(digests) == 1 + len(others)


def test_a_real_federation_has_no_neighbours_and_knows_its_classes():
    terms = filters()
    with pytest.raises(ConfigError, match="gnn looks at other users"):
        of(terms, recommender="gnn")
    with pytest.raises(ConfigError, match="classes of the attribute 'city'"):
        of(terms, attributes=(FilterConfig("city"),))
    for release, link in ((Everything(), terms.link), (terms.release, Proxied("x", "y"))):
        with pytest.raises(ConfigError, match="uc needs the release clipped and the link direct"):
            replace(terms, release=release, link=link)
    with pytest.raises(ConfigError, match="at least two items"):
        replace(terms, n_items=1)


@pytest.mark.parametrize(
    "change",
    [
        {"recommender": "gnn"},
        {"recommender": "als"},
        {"filters": "linear"},
        {"attributes": [{"name": "gender"}]},
        {"attributes": [{"name": "gender", "classes": ["f"], "shares": [1.0]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "f"], "shares": [0.5, 0.5]}]},
        {"attributes": [{"name": "gender", "classes": ["f", ""], "shares": [0.5, 0.5]}]},
        {"attributes": [{"name": "gender", "classes": ["f", 3], "shares": [0.5, 0.5]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "m"], "shares": [0.5]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "m"], "shares": [0.5, -0.5]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "m"], "shares": [0, 0]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "m"], "shares": [1e999, 1]}]},
        {"attributes": [{"name": "gender", "classes": ["f", "m"], "shares": [10**400, 1]}]},
        {"attributes": [{"name": "", "classes": ["f", "m"], "shares": [0.5, 0.5]}]},
        {"attributes": [{"name": "x", "classes": ["f", "m"], "shares": [1, 1], "z": 1}]},
        {"attributes": [{"name": "x", "classes": ["f", "m"], "shares": [1, 1]}] * 2},
        {"attributes": [{"classes": ["f", "m"], "shares": [1, 1]}]},
        {"attributes": ["gender"]},
        {"attributes": [["gender"]]},
        {"attributes": [None]},
        {"attributes": {"name": "gender"}},
        {"attributes": "gender"},
        {"embedding_size": 4},
        {"embedding_size": 10**9},
        {"momentum": 1.0},
        {"local_epochs": 0},
        {"pairs": True},
        {"learning_rate": 10**400},
        {"unknown": 1},
    ],
)
def test_filters_that_make_no_sense_are_refused_whole(change):
    table = filters().to_table()
    table["algorithm"] = table["algorithm"] | change
    with pytest.raises(MessageError):
        Terms.from_table(json.loads(json.dumps(table)))


@pytest.mark.parametrize(
    "release",
    [
        {"norm": "l3"},
        {"norm": "l2", "epsilon": 1.0},
        {"norm": "l1", "epsilon": 0.0},
        {"norm": "l1", "epsilon": -1.0},
        {"norm": "l1", "epsilon": 1.0, "hiding_epsilon": 2.0},
        {"norm": "scalar", "epsilon": 1.0, "clip": 1000.0},
        {"norm": "l1", "epsilon": 1e-300},
        {"clip": 0.0},
        {"clip": 1e999},
        {"clip": "8"},
    ],
)
def test_releases_that_make_no_sense_are_refused_whole(release):
    table = filters().to_table()
    table["release"] = {"name": "clipped", "clip": 8.0} | release
    with pytest.raises(MessageError):
        Terms.from_table(json.loads(json.dumps(table)))


def test_noise_on_sums_is_for_updates_that_devices_leave_as_they_are():
    terms = replace(filters(), release=Clipped(), link=SecureSum(clip=1.0, noise=2.0))
    assert not terms.counts_senders
    assert replace(terms, link=SecureSum()).counts_senders
    with pytest.raises(ConfigError, match=r"link\.clip goes with link\.noise"):
        replace(terms, link=SecureSum(clip=1.0))
    with pytest.raises(ConfigError, match="not for gnn"):
        check_fitting(replace(terms.algorithm, recommender="gnn"), terms.release, terms.link)
    for norm in ("l1", "scalar"):
        with pytest.raises(ConfigError, match=r'release\.norm = "l2"'):
            replace(terms, release=Clipped(norm=norm, epsilon=1.0))


def test_networks_count_towards_the_largest_model():
    terms = filters()
    rows = terms.n_rows - terms.n_items
    most = LARGEST_MODEL // (4 * terms.width) - rows
    assert replace(terms, n_items=most).n_rows == most + rows
    with pytest.raises(ConfigError, match=r"larger than 512 MiB"):
        replace(terms, n_items=most + 1)


def test_a_model_that_is_too_large_is_refused_before_it_is_made():
    """A thousand deep filters fit into a short text. A device that is offered them must not need
    the gigabytes and the minute that it would take to make them."""
    table = filters().to_table()
    many = [{"name": str(n), "classes": ["a", "b"], "shares": [1, 1]} for n in range(1000)]
    table["algorithm"] |= {"attributes": many, "filters": "deep", "embedding_size": 64}
    assert len(json.dumps(table)) < 1 << 16
    with pytest.raises(MessageError, match="larger than 512 MiB"):
        Terms.from_table(table)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table["algorithm"] |= {"embedding_size": 65}
    with pytest.raises(MessageError, match="larger than 512 MiB"):
        Terms.from_table(table)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 500_000  # KiB


def test_terms_from_before_there_were_groups_keep_their_digest_and_have_one_sum_a_round():
    """As a server of that time published them; devices have agreed to this digest."""
    algorithm = {
        "name": "fpl", "embedding_size": 4, "learning_rate": 0.05, "cohort_size": "all",
        "triples": 10, "epochs": 20, "rounds": 0, "reg_bias": 0.0, "init_scale": 0.1,
        "init_bias": "normal",
    }  # fmt: skip
    link = {
        "name": "secure-sum", "min_devices": 3, "clip": 0.0, "noise": 0.0,
        "url": "https://127.0.0.1:1", "authority": "", "key": "ab" * 32,
    }  # fmt: skip
    table = {
        "protocol": 2, "federation": "little-town", "n_items": 40, "algorithm": algorithm,
        "release": {"name": "share-fraction", "per": "item"}, "link": link,
    }  # fmt: skip
    before = Terms.from_table(table)
    assert before.secure_sum.groups == 1
    assert before.digest() == "6cf0db25472185104b4e730bf37fbd41"
    after = Terms.from_table(table | {"link": link | {"groups": 8}})
    assert after.secure_sum.groups == 8
    assert after.digest() != before.digest()
    assert Terms.from_table(after.to_table()) == after
