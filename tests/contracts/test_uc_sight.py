"""Sight in UC-FedRec: what the server receives is what the link's table says, row by row, what it
can read in that (A9, A10), and what it refuses. What is published promises less than one might
think; it is asserted, so that nobody takes it for protection."""

import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hiding import who_hides, who_hides_by_size

from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.attacks.filters import (
    label_from_bias,
    label_from_moments,
)
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Direct
from sottovoce.core.messages import GRID
from sottovoce.engines.simulation import Simulation
from sottovoce.errors import ConfigError, MessageError
from sottovoce.parties.server import Server
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import Messages, checkerboard, random_world
from sottovoce.wire.reports import decode_report, encode_report, encode_sum
from sottovoce.wire.terms import Terms

torch = pytest.importorskip("torch")

from server_world import Client, ServerProcess, enrolment, quick_rules  # noqa: E402

from sottovoce.algorithms.uc.rows import ModelLayout  # noqa: E402
from sottovoce.algorithms.uc.training import ItemPairs, user_keys  # noqa: E402
from sottovoce.stores.server_folder import create_folder, invite  # noqa: E402
from sottovoce.wire.signing import OVERHEAD, seal  # noqa: E402

N_USERS, N_ITEMS = 100, 40
TRAIN = random_world(N_USERS, N_ITEMS, 600, seed=4)
USERS = np.arange(N_USERS)
GENDER = FilterConfig("gender", ("female", "male"), (0.4, 0.6))
AGE = FilterConfig("age", ("young", "middle", "old", "very old"), (0.2, 0.3, 0.3, 0.2))
SETTINGS = UCConfig(
    embedding_size=6, local_epochs=3, pairs=8, item_rate=2.0, rounds=2, cooling=0.0,
    filters="two-layer", attributes=(GENDER, AGE),
)  # fmt: skip
DRAW = np.random.default_rng(3)
LABELS = np.stack([DRAW.integers(0, 2, N_USERS), DRAW.integers(0, 4, N_USERS)], axis=1)
LABELS[::17, 0] = -1
HIDES = DRAW.random((N_USERS, 2)) < 0.35
SILENT = HIDES | (LABELS < 0)
"""Filters that a device does not train: of what its owner hides, and of what it does not know."""
L2 = Clipped()
L1 = Clipped(clip=4.0, norm="l1", epsilon=1.0)
SCALAR = Clipped(clip=0.5, norm="scalar", epsilon=1.0)
WEAK = replace(L1, epsilon=1e6)
"""The same way out with no noise to speak of."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def consent():
    choices = [
        Choice(share_positives=1.0, hidden_attributes=hidden)
        for hidden in ((), ("gender",), ("age",), ("gender", "age"))
    ]
    return Consent.of(USERS, choices, HIDES @ np.array([1, 2]), ("gender", "age"))


def built(settings=SETTINGS, release=L2, seed=1):
    return Federation.build(settings, TRAIN, consent(), release, Streams.from_seed(seed), LABELS)


HEARD = {}
KINDS = [("mf", "two-layer"), ("mf", "moments"), ("ncf", "two-layer"), ("neumf", "moments")]
MF = KINDS[0]


def settings_of(kind):
    recommender, filters = kind
    return replace(SETTINGS, recommender=recommender, filters=filters)


def heard(release=L2, kind=MF, seed=1):
    """The first round as its messages arrive: the model, and what each device sent, from bytes."""
    if (release, kind, seed) not in HEARD:
        made = built(settings_of(kind), release, seed)
        view, observer = made.server.publish(), Messages()
        Simulation(made.server, made.devices, N_USERS, 1, message_observers=[observer]).run()
        reports, bodies = observer.seen[0], []
        for user in USERS:
            mine = reports.sender == user
            part = replace(
                reports, sender=reports.sender[mine], item=reports.item[mine],
                values=reports.values[mine],
            )  # fmt: skip
            bodies.append(encode_report(part))
        shape = {"n_items": len(view.items), "width": view.items.shape[1], "round": 0}
        told = [decode_report(body, sender=user, **shape) for user, body in enumerate(bodies)]
        HEARD[release, kind, seed] = view, bodies, told, made
    return HEARD[release, kind, seed]


# --- what is there to see -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_each_party_sees_what_the_table_says_and_no_more(monkeypatch, kind):
    arrived = {"server": [], "device": []}
    sum_reports, publish = Server.sum_reports, Server.publish

    def receive(self, batches):
        arrived["server"] += batches
        return sum_reports(self, batches)

    def send(self):
        arrived["device"].append(publish(self))
        return arrived["device"][-1]

    monkeypatch.setattr(Server, "sum_reports", receive)
    monkeypatch.setattr(Server, "publish", send)
    made = built(settings_of(kind))
    Simulation(made.server, made.devices, 12, 2, message_observers=[Messages()]).run()
    for party, messages in arrived.items():
        assert len(messages) == 2
        for message in messages:
            allowed = Direct.sees[party][type(message).__name__]
            assert {field.name for field in fields(message)} == allowed


@pytest.mark.parametrize("release", [L2, SCALAR], ids=["l2", "scalar"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_rows_are_those_of_items_used_of_towers_and_of_shared_filters(kind, release):
    view, _, told, made = heard(release, kind)
    layout = made.devices.algorithm.layout(view.items)
    keys = user_keys(USERS, Streams.from_seed(1).child("learn", 0).child("pairs"), "cpu")
    drawn = ItemPairs.draw(keys, TRAIN, SETTINGS.local_epochs, SETTINGS.pairs).items.numpy()
    strangers = 0
    for user, report in enumerate(told):
        expected = {int(item) for item in drawn[user] if item >= 0}
        strangers += len(expected - set(TRAIN.row(user).tolist()))
        if layout.towers is not None:
            expected |= set(range(layout.towers.first, layout.towers.stop))
        for t, part in enumerate(layout.filters):
            if not SILENT[user, t]:
                expected |= set(range(part.first, part.stop))
        assert set(report.item.tolist()) == expected
        assert np.all(report.values[:, -1] == int(GRID)), "each counts as one"
    assert (layout.towers is None) == (kind[0] == "mf")
    assert strangers > N_USERS  # among her own items there are others', which she drew


def test_with_noise_on_the_whole_everybody_sends_every_row():
    view, _, told, _ = heard(L1)
    everything = np.arange(len(view.items))
    for report in told:
        assert np.array_equal(report.item, everything)
        assert np.all(report.values[:, -1] == int(GRID))
        assert report.values[:, :-1].any(axis=1).all()


def test_with_noise_on_the_whole_the_length_of_a_message_says_nothing():
    """It varies a little, because numbers are packed; by the noise alone."""
    _, bodies, _, made = heard(L1)
    length = np.array([len(body) for body in bodies])
    assert length.max() <= 1.01 * length.min()
    sent = made.devices.ledger.pending()
    assert len(set(sent["bytes"].to_pylist())) == 1
    for hides in HIDES.T:
        assert not who_hides_by_size({"length": length[:, None]}, hides).succeeds
    plain = np.array([len(body) for body in heard(L2)[1]])
    assert who_hides_by_size({"length": plain[:, None]}, SILENT[:, 1]).auc > 0.9


def test_without_noise_rows_are_near_multiples_of_the_senders_embedding():
    """As the module says: that the embedding stays at home is no protection by itself. Of an item
    that is hers the row points along it, of another one against it."""
    _, _, told, made = heard(L2)
    close, right = [], []
    start = made.devices.algorithm.device_init(USERS, made.devices.rng)
    for user, report in enumerate(told):
        items = report.item < N_ITEMS
        rows = report.values[items, :-1].astype(float)
        cosine = rows @ start[user] / np.linalg.norm(rows, axis=1) / np.linalg.norm(start[user])
        liked = np.isin(report.item[items], TRAIN.row(user))
        close.append(np.abs(cosine).mean())
        right.append(((cosine > 0) == liked).mean())
    assert np.mean(close) > 0.95
    assert np.mean(right) > 0.99


# --- what can be read in it -----------------------------------------------------------------------


def read_filter(release, t, kind=MF, seed=1):
    """Whose messages have this filter, and its changes, as the server unpacks them."""
    view, _, told, _ = heard(release, kind, seed)
    part = ModelLayout.of(settings_of(kind), N_ITEMS).filters[t]
    table = np.zeros((N_USERS, *view.items.shape))
    sent = np.zeros(N_USERS, dtype=bool)
    for user, report in enumerate(told):
        table[user, report.item] = report.values / GRID
        sent[user] = np.isin(np.arange(part.first, part.stop), report.item).all()
    rows = torch.tensor(table[:, part.first : part.stop, :-1])
    return sent, {name: change.numpy() for name, change in part.weights(rows).items()}


def read_label(changes, labels, kind):
    """A9, for either sort of filter."""
    read = label_from_moments if kind[1] == "moments" else label_from_bias
    return read(changes, labels)


def shown(t):
    """Labels as the truth about whoever shares them."""
    return np.where(SILENT[:, t], -1, LABELS[:, t])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("t", [0, 1])
def test_as_printed_the_server_reads_the_class_of_whoever_shares_it(t, kind):
    _, changes = read_filter(L2, t, kind)
    outcome = read_label(changes, shown(t), kind).outcome
    assert outcome.claimed == (~SILENT[:, t]).sum()
    assert outcome.precision == outcome.recall == 1.0
    assert outcome.succeeds


@pytest.mark.parametrize("kind", KINDS[:2], ids="-".join)
def test_as_printed_everybody_reads_the_class_of_one_who_shares_it_alone(kind):
    """The published filter moves by her update then: other devices see it, not the server alone."""
    alone, settings = 0, settings_of(kind)
    for user in range(1, 9):
        hiding = Choice(share_positives=1.0, hidden_attributes=("gender", "age"))
        choices, which = [hiding, Choice(share_positives=1.0)], (user == USERS).astype(int)
        consents = Consent.of(USERS, choices, which, ("gender", "age"))
        made = Federation.build(settings, TRAIN, consents, L2, Streams.from_seed(1), LABELS)
        before = made.server.publish().items
        Simulation(made.server, made.devices, N_USERS, 1).run()
        part = ModelLayout.of(settings, N_ITEMS).filters[1]
        moved = (made.server.publish().items - before)[part.first : part.stop, :-1]
        changes = part.weights(torch.tensor(moved)[None])
        read = read_label(
            {n: change.numpy() for n, change in changes.items()}, LABELS[[user], 1], kind
        )
        alone += read.outcome.right
    assert alone == 8


@pytest.mark.parametrize("release", [L2, SCALAR], ids=["l2", "scalar"])
def test_as_printed_missing_rows_tell_who_hides_or_does_not_know(release):
    """What a user hides and what her device does not know look the same."""
    sent = np.stack([read_filter(release, t)[0] for t in (0, 1)], axis=1)
    assert np.array_equal(sent, ~SILENT)
    outcome = who_hides(sent, SILENT)
    assert outcome.precision == outcome.recall == 1.0
    assert outcome.succeeds


@pytest.mark.parametrize("kind", KINDS[:3], ids="-".join)
@pytest.mark.parametrize("t", [0, 1])
def test_with_noise_on_the_whole_neither_can_be_told(t, kind):
    """In three federations, with noise of their own each."""
    right = claimed = 0
    for seed in (1, 2, 3):
        sent, changes = read_filter(L1, t, kind, seed)
        assert sent.all()
        assert who_hides(sent[:, None], SILENT[:, [t]]).claimed == 0
        assert not who_hides_by_size(changes, SILENT[:, t]).succeeds
        outcome = read_label(changes, shown(t), kind).outcome
        assert not outcome.succeeds
        right, claimed = right + outcome.right, claimed + outcome.claimed
    assert claimed == 3 * (~SILENT[:, t]).sum()
    chance = 1 / len(SETTINGS.attributes[t].classes)
    spread = np.sqrt(chance * (1 - chance) / claimed)
    assert abs(right / claimed - chance) < 3.5 * spread


@pytest.mark.parametrize("kind", KINDS[:2], ids="-".join)
@pytest.mark.parametrize("t", [0, 1])
def test_it_is_the_noise_that_hides_them(t, kind):
    """With the same rows and next to no noise, both attacks succeed on the same messages."""
    sent, changes = read_filter(WEAK, t, kind)
    assert sent.all()
    assert who_hides_by_size(changes, SILENT[:, t]).auc > 0.95
    assert read_label(changes, shown(t), kind).outcome.precision > 0.95


@pytest.mark.parametrize("recommender", ["mf", "neumf"])
def test_a_filter_of_moments_sends_the_embedding_of_whoever_shares_to_all_digits(recommender):
    """Without noise. The center moves by a share of the way to her, and the server knows which."""
    kind = (recommender, "moments")
    sent, changes = read_filter(L2, 1, kind)
    view, _, _, made = heard(L2, kind)
    layout = made.devices.algorithm.layout(view.items)
    before = layout.model(view.items, made.devices.cohort.vectors, torch.device("cpu")).filters[1]
    read = before["center"].numpy() + changes["center"] / SETTINGS.filter_rate
    np.testing.assert_allclose(read[sent], made.devices.cohort.vectors[sent], atol=1e-5)
    assert not np.allclose(read[~sent], made.devices.cohort.vectors[~sent], atol=1e-3)


def test_it_does_so_for_whoever_shares_any_other_attribute():
    """Who hides one attribute and shares another hides its value, and not her embedding."""
    kind = ("mf", "moments")
    view, _, told, made = heard(L2, kind)
    both = np.nonzero(SILENT[:, 0] & ~SILENT[:, 1])[0]
    part = made.devices.algorithm.layout(view.items).filters[1]
    assert len(both) > 10
    for user in both:
        report = told[user]
        rows = report.values[np.isin(report.item, np.arange(part.first, part.stop)), :-1] / GRID
        read = rows.ravel()[:6] / SETTINGS.filter_rate  # the first center is 0
        np.testing.assert_allclose(read, made.devices.cohort.vectors[user], atol=1e-5)


# --- what the server refuses ----------------------------------------------------------------------


TOWN = checkerboard(2, 10)
TERMS = Terms("filters", 10, replace(SETTINGS, recommender="ncf"), L2)


class Fleet:
    """Two devices that sign for themselves, and a server in a process of its own."""

    def __init__(self, client):
        everyone = Consent.uniform(np.arange(2), Choice(share_positives=1.0))
        self.client, self.keys = client, [Ed25519PrivateKey.generate() for _ in range(2)]
        self.made = Federation.build(
            TERMS.algorithm, TOWN, everyone, L2, Streams.from_seed(5), LABELS[1:3]
        )
        self.view = self.made.server.publish()

    def report(self, number):
        return self.made.devices.report(self.view, np.array([number]))

    def post(self, number, body):
        sealed = seal(
            self.keys[number], TERMS.federation, "report", number=number, round=0, attempt=0,
            nonce=bytes(16), body=body,
        )  # fmt: skip
        return self.client.post("/v1/reports", sealed)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    path = tmp_path_factory.mktemp("server")
    folder = create_folder(
        path, TERMS, [(f"v{n}", f"Venue {n}") for n in range(10)], rounds=1,
        root_key=Streams.from_seed(5).key, rules=quick_rules(min_devices=2),
    )  # fmt: skip
    with ServerProcess(path) as server, Client(folder, server.port) as client:
        devices, store = Fleet(client), folder.database(None)
        try:
            invitations = invite(folder, store, server.url, [0, 1])
        finally:
            store.close()
        for invitation in invitations:
            key = devices.keys[invitation.number]
            assert client.post("/v1/enrol", enrolment(invitation, key)).status == 200
        client.wait(state="open", round=0)
        yield devices


def altered(report, **changes):
    return encode_report(replace(report, **changes))


def test_a_server_refuses_what_no_honest_device_sends(fleet):
    good = fleet.report(0)
    rows = TERMS.n_rows
    assert rows > TERMS.n_items  # so that items and rows are not mixed up below
    head = struct.Struct("<4sBBHIII")
    more = rows + 1
    wrong = {
        "an unknown row": altered(good, item=np.r_[good.item[:-1], rows].astype(np.int32)),
        "wrong width": altered(good, values=good.values[:, :-1]),
        "a row twice": altered(good, item=np.r_[good.item[:1], good.item[:-1]]),
        "another round": altered(good, round=1),
        "too many rows": head.pack(b"SVU3", 1, 0, TERMS.width, 0, more, 24)
        + bytes(more * (4 + TERMS.width)),
        "a huge value": altered(good, values=good.values * (1 << 20)),
        "rows beyond the last": altered(
            good,
            item=np.arange(more, dtype=np.int32),
            values=np.zeros((more, TERMS.width), np.int64),
            sender=np.zeros(more, np.int64),
        ),
    }
    for what, body in wrong.items():
        answer = fleet.post(0, body)
        assert (answer.status, answer.error) == (400, "malformed"), what
    too_long = bytes(OVERHEAD + 24 + rows * (4 + 8 * TERMS.width) + 1)
    assert fleet.client.post("/v1/reports", too_long).status == 413


@pytest.mark.parametrize("claim", [-5, 0, 2, 100])
def test_a_server_refuses_a_device_that_claims_not_to_be_one(fleet, claim):
    """One who says -5 of a row that six others send makes each of these count for all of them."""
    good = fleet.report(0)
    values = good.values.copy()
    values[:, -1] = claim * int(GRID)
    answer = fleet.post(0, altered(good, values=values))
    assert (answer.status, answer.error) == (400, "malformed")


def test_a_server_that_would_cut_the_count_is_not_set_up(tmp_path):
    """What is cut below one would count for less than one."""
    rules = quick_rules(min_devices=2, max_value=0.5)
    with pytest.raises(ConfigError, match="max_value must be at least 1"):
        create_folder(
            tmp_path / "s", TERMS, [(f"v{n}", "x") for n in range(10)], rounds=1,
            root_key=1, rules=rules,
        )  # fmt: skip


def told_by(fleet, values, devices=2):
    """A gateway's sum of two devices, with other values, as a conductor looks at it."""
    pytest.importorskip("flwr")
    from sottovoce.engines.flower.conductor import check_sum
    from sottovoce.stores.conductor import ConductedRound
    from sottovoce.wire.cohort_rounds import CohortAnswer

    part = fleet.made.devices.report_summed(fleet.view, np.arange(2))
    body = encode_sum(replace(part, sums=values(part.sums.copy())))
    answer = CohortAnswer(np.arange(2), 0, round=0, attempt=0, sum=body, devices=devices)
    return check_sum(answer, ConductedRound(0, 0, 2, np.arange(2)), 2, TERMS)


@pytest.mark.parametrize("claim", [-5, 0, 0.5, 3, 100])
def test_nor_does_a_conductor_take_a_gateways_word_for_it(fleet, claim):
    def claims(sums):
        sums[3, -1] = int(claim * GRID)
        return sums

    assert told_by(fleet, lambda sums: sums).devices == 2
    with pytest.raises(MessageError, match="more devices"):
        told_by(fleet, claims)


@pytest.mark.parametrize("value", [2**62, -(2**62), 2**63 - 1, -(2**63)])
def test_no_value_is_too_large_to_be_refused(fleet, value):
    def huge(sums):
        sums[3, 0] = value
        return sums

    with pytest.raises(MessageError):
        told_by(fleet, huge)
