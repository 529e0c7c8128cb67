"""What could they learn of me: attacks on one device's own messages, run at home. A system as
printed gives its user's items away, a noisy sum as much as its ε, and nothing leaves a trace."""

import hashlib
import itertools
import json
import math
import socket
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.attacks import alone
from sottovoce.attacks.power import clopper_pearson
from sottovoce.attacks.views import ATTACKS, Attack, Claims
from sottovoce.cli import call
from sottovoce.core import words
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import CheckedSum, Direct, Proxied, SecureSum
from sottovoce.core.messages import DeviceReports, ModelView
from sottovoce.core.words import LANGUAGES
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.parties.device import Devices
from sottovoce.privacy.central import gaussian_noise
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon, distance
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import sealed_by, signing_key
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.web import learn
from sottovoce.web.learn import what_owners_read, what_they_learn
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer
from sottovoce.wire.reports import decode_report
from sottovoce.wire.terms import Terms

pytestmark = pytest.mark.usefixtures("quick_stores")

NUMBER, RESIDENT = 7, 3
TOWN = generate_town(TownConfig(residents=400, venues=300))
TRAIN = TOWN.interactions
NAMES = TRAIN.items_vocabulary().names()
CATALOGUE = list(zip(NAMES, TOWN.item_titles, strict=True))
HERS = {NAMES[item] for item in TRAIN.row(RESIDENT).tolist()}
WANTED = Path(learn.__file__).with_name("learn_wanted.toml")

SHARING = Choice(share_positives=1.0)
FPL = FPLConfig(embedding_size=8, epochs=3), ShareFraction(), Direct()
FPL_SUM = FPL[0], ShareFraction(), SecureSum(min_devices=20, key="ab" * 32)
FCF = FCFConfig(embedding_size=8, rounds=4), Everything(), Direct()
FCF_NOISE = *FCF[:2], SecureSum(min_devices=20, clip=1.0, noise=4.0, key="ab" * 32)
GRAM = (
    GramConfig(popularity_share=0.3),
    OwnEpsilon(8.0),
    SecureSum(min_devices=20, bits=32, key="ab" * 32),
)
CHECKED = *GRAM[:2], CheckedSum(min_devices=20)
PARTS = GRAM[0], OwnEpsilon(8.0, parts=20), GRAM[2]


def reporting(epsilon):
    return FMFConfig(rounds=4), KReports(100, (Tier(epsilon, 20),)), Proxied()


def draws(seed=0):
    """Bytes that are the same every time: an interval that is missed once in ten thousand draws is
    then missed always, or never."""
    numbers = itertools.count()

    def draw(size):
        return hashlib.sha256(f"{seed} {next(numbers)}".encode()).digest()[:size]

    return draw


@dataclass
class Phone:
    store: CohortStore
    session: DeviceSession
    terms: Terms
    model: ModelView

    def learn(self, **how):
        how.setdefault("secret", draws())
        return what_they_learn(self.store, NUMBER, **how)

    def send(self):
        """A round that leaves."""
        prepared = self.session.prepare(self.model, 0, summed=False)
        self.session.leaving(prepared)
        return prepared


@pytest.fixture(scope="module")
def trained():
    """The model of a system on the town, and how many draws its devices make."""
    made = {}

    def train(system, choice):
        config, release, link = system
        key = repr((system, choice))
        if key not in made:
            everyone = Consent.uniform(np.arange(TRAIN.n_users), choice)
            federation = Federation.build(
                config, TRAIN, everyone, release, Streams.from_seed(1), link=link
            )
            federation.run()
            server = federation.server
            made[key] = ModelView(server.round, server.items), federation.schedule.triples
        return made[key]

    return train


@pytest.fixture
def phone(tmp_path, trained):
    """A device in the town, which knows the terms and the model: `phone(system, choice)`."""
    numbers, opened = itertools.count(), []

    def make(system, choice, everybody=None, labels=None):
        model, triples = trained(system, everybody or choice)
        store = CohortStore.create(tmp_path / f"phone{next(numbers)}", [(NUMBER, "anna")])
        opened.append(store)
        store.set_catalogue(CATALOGUE)
        times = TRAIN.timestamps[TRAIN.indptr[RESIDENT] : TRAIN.indptr[RESIDENT + 1]].tolist()
        store.add_history(NUMBER, [NAMES[i] for i in TRAIN.row(RESIDENT).tolist()], times)
        store.set_choice(NUMBER, choice)
        session = DeviceSession(store, pack=sealed_by(store))
        config, release, link = system
        terms = Terms.of("town", TRAIN.n_items, config, triples, release, link)
        session.agree(terms)
        session.keep_model(model)
        return Phone(store, session, terms, model)

    yield make
    for store in opened:
        store.close()


def by_code(findings):
    """The first finding of each code."""
    found = {}
    for one in findings:
        found.setdefault(one.attack, one)
    return found


def claimed(finding, right=True):
    return {item for item, _, hers in finding.items if hers is right}


def dump(store):
    """All that is in a store, row by row, and nothing else."""
    names = store.file.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    digest = hashlib.sha256()
    for (name,) in names:
        digest.update(
            repr((name, sorted(map(repr, store.file.rows(f"SELECT * FROM {name}"))))).encode()
        )
    return digest.hexdigest()


# --- systems as printed ---------------------------------------------------------------------------


def test_of_plain_updates_her_items_come_out_by_title(phone):
    found = by_code(phone(FPL, SHARING).learn())
    for code in ("A1", "A3"):
        one = found[code]
        assert one.verdict == "broken"
        assert len(claimed(one)) > 0.8 * len(HERS)
        assert claimed(one) <= HERS
        assert not claimed(one, right=False) & HERS
        assert one.right > one.chance + 40
        assert one.hits == len(claimed(one))
        assert one.said.values == {"n": one.hits, "all": len(HERS), "wrong": one.claims - one.hits}
    assert {title for _, title, _ in found["A3"].items} <= set(TOWN.item_titles)
    # What she never sends as a negative holds all of her items, and others.
    assert claimed(found["A2"]) == HERS
    assert found["A2"].claims > len(HERS)


def test_who_shares_no_positive_gives_less_away_and_still_her_items(phone):
    every, none = phone(FPL, SHARING).learn(), phone(FPL, Choice()).learn()
    assert sum(one.hits for one in none) < sum(one.hits for one in every)
    found = by_code(none)
    assert (found["A3"].claims, found["A3"].verdict) == (0, "holds")
    assert found["A1"].verdict == "broken"
    assert found["A1"].said.key == "learn.came_out"


def test_guessing_is_by_what_is_popular_not_blind(phone):
    found = by_code(phone(FPL, SHARING).learn())
    assert found["A1"].chance > 100 * len(HERS) / TRAIN.n_items + 5


def test_fewer_rounds_tell_less(phone):
    device = phone(FPL, SHARING)
    few, many = (by_code(device.learn(rounds=n))["A3"].hits for n in (1, 10))
    assert 0 < few < many <= len(HERS)


def test_tables_of_all_items_tell_all_of_hers_at_once(phone):
    found = by_code(phone(FCF, SHARING).learn(rounds=1))
    assert claimed(found["A4"]) == HERS
    assert (found["A4"].right, found["A4"].verdict) == (100, "broken")
    assert found["A4"].chance < 30


def test_the_message_that_has_left_is_what_is_attacked(phone):
    device = phone(FPL, SHARING)
    sent = device.send()
    message = decode_report(
        sent.message, sender=NUMBER, n_items=TRAIN.n_items, width=device.terms.width,
        round=sent.round,
    )  # fmt: skip
    hers = {NAMES[item] for item in message.item.tolist()} & HERS
    assert hers != HERS
    for seed in range(3):  # whatever would be drawn now
        found = by_code(device.learn(rounds=1, secret=draws(seed)))
        assert claimed(found["A3"]) == hers


def test_what_people_hide_about_themselves_cannot_be_tried_on_one_device(tmp_path, phone):
    pytest.importorskip("torch")
    gender = FilterConfig("gender", ("female", "male"), (0.3, 0.7))
    config = UCConfig(embedding_size=5, local_epochs=1, pairs=8, attributes=(gender,))
    terms = Terms.of("town", 40, config, 0, Clipped())
    items = np.random.default_rng(0).normal(size=(terms.n_rows, terms.width)).astype(np.float32)
    with CohortStore.create(tmp_path / "uc", [(NUMBER, "anna")]) as store:
        store.set_catalogue(CATALOGUE[:40])
        store.add_history(NUMBER, NAMES[:9])
        store.set_choice(NUMBER, Choice(share_positives=1.0, hidden_attributes=("gender",)))
        store.set_attribute(NUMBER, "gender", "female")
        session = DeviceSession(store)
        session.agree(terms)
        session.keep_model(ModelView(0, items))
        findings = what_they_learn(store, NUMBER, secret=draws())
    found = by_code(findings)
    assert (found["A8"].verdict, found["A8"].said.key) == ("cannot", "learn.cannot.attributes")
    assert "sottovoce docs results" in found["A8"].technical
    assert found["A14"].verdict != "cannot"  # it is tried


# --- sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [GRAM, CHECKED, PARTS], ids=["masked", "checked", "in parts"])
def test_a_noisy_sum_tells_as_much_as_her_epsilon_and_no_more(phone, system):
    shares = {}
    for epsilon in (1.0, 8.0):
        choice = Choice(epsilon=epsilon)
        found = by_code(phone(system, choice).learn())["A12"]
        permitted = float(ndtr(distance(epsilon, OwnEpsilon(8.0).delta) / 2))
        low, high = clopper_pearson(found.hits, found.claims, 1e-3)
        assert low <= permitted
        assert high > permitted - 0.02  # a contribution is cut down to whole numbers
        assert found.claims >= 2000
        assert (found.verdict, found.chance) == ("holds", 50)
        assert found.said.values["most"] == round(100 * permitted)
        assert found.said.values["tries"] == found.claims
        shares[epsilon] = found.hits / found.claims
    assert shares[1.0] < 0.57 < 0.75 < shares[8.0]


@pytest.mark.parametrize("system", [GRAM, CHECKED], ids=["masked", "checked"])
def test_one_party_alone_sees_a_coin_and_two_together_see_her_items(phone, system):
    findings = phone(system, Choice(epsilon=1.0)).learn()
    found = by_code(findings)
    assert abs(found["mask"].right - 50) <= 3
    assert found["mask"].verdict == "holds"
    assert found["mask"].claims >= 1000
    # In the few whole numbers of a checked sum a quiet item may be 0.
    assert len(claimed(found["together"])) > 0.9 * len(HERS)
    assert found["together"].verdict == "not_promised"
    assert found["together"].right == 100


def test_noise_of_her_own_hides_her_from_two_together(phone):
    plain, parts = (
        by_code(phone(system, Choice(epsilon=8.0)).learn())["together"] for system in (GRAM, PARTS)
    )
    assert claimed(plain) == HERS
    assert len(claimed(parts)) < len(HERS) / 2
    assert parts.verdict == "holds"


@pytest.mark.parametrize(
    ("system", "choice", "code"),
    [
        (GRAM, Choice(epsilon=8.0), "together"),
        (FPL, SHARING, "A3"),
        (FCF, SHARING, "A4"),
    ],
    ids=["gram", "fpl", "fcf"],
)
def test_what_is_never_sent_comes_out_nowhere(phone, system, choice, code):
    gone = sorted(HERS)[:5]
    title = dict(CATALOGUE)[gone[0]]
    never = replace(choice, never_send=(title, *gone[1:]))
    hidden = {item for item, name in CATALOGUE if name == title} | set(gone)
    findings = phone(system, never, everybody=choice).learn()
    found = by_code(findings)
    assert claimed(found[code]) == HERS - hidden
    for one in findings:
        if one.attack != "A2":  # which claims all that was not sent as a negative
            assert not {item for item, *_ in one.items} & hidden


def test_masks_that_hide_nothing_are_caught(phone, monkeypatch):
    monkeypatch.setattr(alone, "masked", lambda whole, seed, bits: whole.astype(np.uint64))
    found = by_code(phone(FPL_SUM, SHARING).learn(rounds=2))
    assert (found["mask"].verdict, found["mask"].right) == ("broken", 100)


def test_noise_that_is_too_small_is_caught(phone, monkeypatch):
    def half(key, round, numbers, sigma):
        return gaussian_noise(key, round, numbers, sigma / 2)

    monkeypatch.setattr(alone, "gaussian_noise", half)
    found = by_code(phone(GRAM, Choice(epsilon=8.0)).learn())
    assert found["A12"].verdict == "broken"
    assert found["A12"].right > found["A12"].said.values["most"]


def test_masked_updates_tell_the_server_nothing_and_both_together_all(phone):
    findings = phone(FPL_SUM, SHARING).learn(rounds=5)
    alone_, both = (
        [one for one in findings if one.who.key == f"learn.who.{who}"]
        for who in ("server", "together")
    )
    assert {one.attack for one in alone_} >= {"mask", "A1"}
    assert all(one.verdict == "holds" for one in alone_ if one.attack in ("mask", "A1"))
    assert {one.attack for one in both} >= {"A1", "A2", "A3"}
    assert all(one.verdict == "broken" for one in both if one.attack in ("A1", "A3"))
    [of_sum] = [one for one in findings if one.said.key == "learn.cannot.sum"]
    assert of_sum.verdict == "cannot"


def test_updates_in_noisy_sums_are_held_to_the_price_of_their_rounds(phone):
    found = by_code(phone(FCF_NOISE, SHARING).learn(rounds=2))
    permitted = float(ndtr(math.sqrt(2) / 4.0 / 2))
    assert found["A12"].said.values["most"] == round(100 * permitted)
    assert found["A12"].verdict == "holds"
    assert found["A12"].right >= round(100 * permitted) - 4
    assert found["A4"].who.key == "learn.who.together"
    assert claimed(found["A4"]) == HERS


def test_who_has_contributed_already_can_look_all_the_same(phone):
    device = phone(GRAM, Choice(epsilon=1.0, total_epsilon=1.0))
    before = by_code(device.learn())["A12"].claims
    device.session.arrived(device.send().round, 0)
    assert by_code(device.learn())["A12"].claims == before


# --- randomised reports ---------------------------------------------------------------------------


def test_reports_of_a_small_epsilon_are_a_coin_and_of_a_large_one_are_not(phone):
    found = {}
    for epsilon in (0.1, 8.0):
        choice = Choice(epsilon=epsilon, max_reports=100)
        findings = phone(reporting(epsilon), choice).learn()
        found[epsilon] = by_code(findings)["A5"]
        keys = [one.said.key for one in findings]
        assert "learn.cannot.linkage" in keys
        assert found[epsilon].who.key == "learn.who.with_shuffler"
    assert abs(found[0.1].right - 50) <= 7
    assert found[0.1].verdict == "holds"
    assert found[8.0].right > 75
    assert found[8.0].verdict == "broken"
    assert found[8.0].claims >= 500
    right, wrong = claimed(found[8.0]), claimed(found[8.0], right=False)
    assert right <= HERS
    assert not wrong & HERS


def test_a_limit_on_epsilon_is_kept_to_at_home_too(phone):
    choice = Choice(epsilon=8.0, max_reports=100, total_epsilon=1700.0)
    everybody = Choice(epsilon=8.0, max_reports=100)
    found = by_code(phone(reporting(8.0), choice, everybody).learn(rounds=9))["A5"]
    assert found.said.values["rounds"] == 2


# --- where there is nothing to try ----------------------------------------------------------------


def test_where_nothing_leaves_there_is_nothing_to_attack(phone):
    for choice in (
        Choice(takes_part=False),
        Choice(epsilon=0.0),
        Choice(epsilon=4.0, total_epsilon=1.0),
    ):
        [one] = phone(GRAM, choice, everybody=Choice(epsilon=8.0)).learn()
        assert (one.verdict, one.said.key) == ("holds", "learn.nothing_leaves")


def test_of_a_gateway_with_several_users_one_is_looked_at(tmp_path, trained):
    model, triples = trained(FCF, SHARING)
    with CohortStore.create(tmp_path / "gateway", [(NUMBER, "anna"), (2, "bert")]) as store:
        store.set_catalogue(CATALOGUE)
        store.add_history(NUMBER, sorted(HERS))
        store.add_history(2, NAMES[:3])
        for number in (2, NUMBER):
            store.set_choice(number, SHARING)
        session = DeviceSession(store)
        session.agree(Terms.of("town", TRAIN.n_items, FCF[0], triples, FCF[1]))
        session.keep_model(model)
        session.leaving(session.prepare(model, 0, summed=True))  # of both, which is nobody's own
        for number, items in ((NUMBER, HERS), (2, set(NAMES[:3]))):
            found = by_code(what_they_learn(store, number, secret=draws()))
            assert claimed(found["A4"]) == items


def test_without_terms_or_a_model_nothing_can_be_tried(tmp_path):
    with CohortStore.create(tmp_path / "new", [(NUMBER, "anna")]) as store:
        [one] = what_they_learn(store, NUMBER)
        assert (one.verdict, one.said.key) == ("cannot", "learn.cannot.terms")
        store.set_catalogue(CATALOGUE)
        DeviceSession(store).agree(Terms.of("town", TRAIN.n_items, FPL[0], 9, FPL[1]))
        [one] = what_they_learn(store, NUMBER)
        assert (one.verdict, one.said.key) == ("cannot", "learn.cannot.model")


def test_an_attack_that_fails_says_nothing_and_the_others_go_on(phone):
    def fails(view):
        raise ValueError(f"of {view.messages(DeviceReports)[0].item.tolist()}")

    broken = Attack("a wrong one", "server", "Nobody …", fails, code="X9")
    findings = phone(FPL, SHARING).learn(attacks=[broken, *ATTACKS.values()])
    [one] = [one for one in findings if one.attack == "X9"]
    assert (one.verdict, one.said.key, one.claims) == ("cannot", "learn.cannot.failed", 0)
    assert "ValueError" in one.technical[0]
    assert "[" not in one.technical[0]  # an error's values may be private
    assert by_code(findings)["A1"].verdict == "broken"


def test_an_attack_of_ones_own_is_tried_where_it_claims_items(phone):
    def popular(view):
        items = np.argsort(-view.final[:, -1])[:20]
        return Claims(np.full(20, NUMBER), items)

    mine = Attack("popular items", "anyone", "Nobody …", popular, code="X1")
    [one] = [f for f in phone(FPL, SHARING).learn(attacks=[mine]) if f.attack == "X1"]
    assert one.claims == 20
    assert (one.right, one.verdict) == (one.chance, "holds")  # it is what guessing gives


# --- nothing leaves, nothing stays, nothing secret is told ----------------------------------------

EVERY = {
    "fpl": (FPL, SHARING),
    "fcf": (FCF, SHARING),
    "fpl-sum": (FPL_SUM, SHARING),
    "gram": (GRAM, Choice(epsilon=1.0)),
    "checked": (CHECKED, Choice(epsilon=1.0)),
    "fmf": (reporting(0.1), Choice(epsilon=0.1, max_reports=100)),
}


@pytest.mark.parametrize("name", EVERY)
def test_the_store_stays_as_it_was_and_nothing_is_connected(phone, monkeypatch, name):
    device = phone(*EVERY[name])
    if name in ("fpl", "fcf", "fmf", "gram"):
        device.send()
    before = dump(device.store)

    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    steps = []
    findings = device.learn(report=lambda done, total: steps.append((done, total)))
    assert dump(device.store) == before
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1]
    assert len({total for _, total in steps}) == 1
    assert all(a[0] < b[0] for a, b in itertools.pairwise(steps))
    assert findings


@pytest.mark.parametrize("name", EVERY)
def test_no_secret_is_in_a_finding(phone, name):
    device = phone(*EVERY[name])
    store = device.store
    secrets_ = [store.streams().root_bytes(), store.noise(0)]
    secrets_.append(signing_key(store).private_bytes_raw())
    drawn, own = [], draws()

    def draw(size):
        drawn.append(own(size))
        return drawn[-1]

    findings = device.learn(secret=draw)
    text = json.dumps([one.to_json() for one in findings])
    assert drawn
    for one in (*secrets_, *drawn):
        assert one.hex() not in text
        assert str(int.from_bytes(one, "little")) not in text
    assert all("redacted" in repr(one) for one in findings)
    assert not any(item in repr(findings) for item in HERS)


def test_coins_and_draws_are_not_those_of_the_store(phone, monkeypatch):
    """What is enacted is not what will leave: the same coins twice would tell how values differ."""
    device, seen = phone(reporting(8.0), Choice(epsilon=8.0, max_reports=100)), []
    real = Devices.report_bits
    monkeypatch.setattr(Devices, "report_bits", lambda *a: seen.append(real(*a)) or seen[-1])
    device.learn(rounds=1)
    device.send()
    *enacted, left = seen
    assert left.round == enacted[0].round
    assert len({one.reports.tobytes() for one in (*enacted, left)}) == len(enacted) + 1


# --- data owners ----------------------------------------------------------------------------------

ISSUER, FILMS = Issuer("films"), tuple("abcdefgh")
HELD = {"alpha": (0, 1, 2, 3), "beta": (2, 3, 4, 5), "gamma": (6, 7)}


@pytest.fixture
def owners(tmp_path):
    def make(choice, name="owners", **settings):
        from sottovoce.algorithms.drift.system import DRIFTConfig

        store = UserStore.create(tmp_path / name, "films", ISSUER.public, "http://127.0.0.1:1", "")
        one = Identity()
        store.add_users([(one, ISSUER.admit(0, one.public))], Identity().public)
        entries = tuple(
            OwnerEntry(n, who, f"https://{who}.example", Identity().public, "", held)
            for n, (who, held) in enumerate(HELD.items())
        )
        config = DRIFTConfig(**settings)
        signed = Directory("films", ISSUER.public, 1, config, FILMS, entries).sign(ISSUER)
        store.keep_directory(signed)
        door = UserDoor(store)
        with store.file.transaction():
            door.choose(0, choice)
        opened.append(store)
        return store, door

    opened = []
    yield make
    for store in opened:
        store.close()


def test_owners_read_what_they_were_told_and_it_is_listed_without_any_attack(owners):
    store, door = owners(Choice(refused_owners=("beta",)))
    door.interact(0, 0, True, 5)
    door.interact(0, 2, False, 6)
    door.depart(0, 0, 10, 16)  # leaves for alpha
    door.interact(0, 3, True, 7)
    before = dump(store)
    alpha, beta, gamma, orchestrator = what_owners_read(store, 0)
    assert dump(store) == before
    assert alpha.who.values == {"name": "alpha"}
    assert [title for _, title, _ in alpha.items] == ["a", "c", "d"]
    assert alpha.said.values == {"told": 2, "waits": 1}
    assert alpha.verdict == "broken"
    assert (beta.items, beta.verdict, beta.said.key) == ((), "holds", "learn.owner.refused")
    assert (gamma.items, gamma.verdict, gamma.said.key) == ((), "holds", "learn.owner.would")
    # As printed, owners' requests name her items.
    assert [title for _, title, _ in orchestrator.items] == ["a", "c"]
    assert orchestrator.verdict == "broken"


def test_of_sums_over_people_the_orchestrator_cannot_be_tried_here(owners):
    store, door = owners(Choice(), release="aggregated")
    door.interact(0, 0, True, 5)
    door.depart(0, 0, 10, 16)
    *_, orchestrator = what_owners_read(store, 0)
    assert (orchestrator.items, orchestrator.verdict) == ((), "cannot")
    assert orchestrator.said.key == "learn.orchestrator.sums"


# --- words and the command ------------------------------------------------------------------------


def wanted(language):
    """The words of this page, wherever they are by now."""
    found = dict(words.catalogue(language))
    if WANTED.exists():
        found |= words._flat(tomllib.loads(WANTED.read_text())[language])
    return found


@pytest.fixture
def spoken(monkeypatch):
    both = {language: wanted(language) for language in LANGUAGES}
    monkeypatch.setattr(words, "catalogue", both.__getitem__)
    return both


def test_all_that_is_said_has_words_and_none_is_long(phone, owners, spoken):
    findings = [one for name in EVERY for one in phone(*EVERY[name]).learn()]
    store, _ = owners(Choice(refused_owners=("beta",)))
    findings += what_owners_read(store, 0)
    for language in LANGUAGES:
        for one in findings:
            for what in (one.who, one.promise, one.said):
                assert "{" not in words.say(what, language)
        mine = {key: text for key, text in spoken[language].items() if key.startswith("learn.")}
        assert len(mine) > 50
        for key, text in mine.items():
            for sentence in text.replace("; ", ". ").split(". "):
                assert len(sentence.split()) <= 20, key


def test_both_languages_say_the_same_things():
    assert {k for k in wanted("en") if k.startswith("learn.")} == {
        k for k in wanted("it") if k.startswith("learn.")
    }


def told(capsys, *arguments):
    capsys.readouterr()
    assert call(["device", "attack", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_command_tells_a_person_and_a_program_the_same(phone, spoken, capsys):
    device = phone(FPL, SHARING)
    before = dump(device.store)
    path = device.store.path
    findings = json.loads(told(capsys, path, "--json"))["findings"]
    assert {
        "attack",
        "who",
        "promise",
        "said",
        "items",
        "hits",
        "claims",
        "chance",
        "right",
        "verdict",
    } <= set(findings[0])
    assert {one["verdict"] for one in findings} >= {"broken", "cannot"}
    assert {"key", "values"} == set(findings[0]["said"])
    plain, exact = told(capsys, path), told(capsys, path, "--rounds", "5", "--json")
    assert "of your 34 things came out" in plain
    assert dict(CATALOGUE)[min(HERS)].split()[0] in plain
    assert "precision" not in plain
    assert "precision" in exact
    assert "over 5 rounds" in exact
    assert dump(device.store) == before


def test_the_command_lists_what_owners_read(owners, spoken, capsys):
    store, door = owners(Choice())
    door.interact(0, 1, True, 5)
    out = told(capsys, store.path)
    assert "alpha" in out
    assert "+ b" in out
    assert "\nbeta: " in out
