"""UC-FedRec on the core: the same rounds as messages and as sums, and consent does what it says."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.core.consent import Choice, Consent
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError, ConsentError, DataError, Diverged
from sottovoce.rng import Streams
from sottovoce.testing import Messages, checkerboard

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc.networks import Guesses, guess  # noqa: E402
from sottovoce.algorithms.uc.rows import ModelLayout  # noqa: E402
from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig  # noqa: E402
from sottovoce.core.links import Direct, SecureSum  # noqa: E402
from sottovoce.core.messages import GRID, SummedReports  # noqa: E402
from sottovoce.core.recommender import top_n  # noqa: E402
from sottovoce.engines.simulation import Simulation  # noqa: E402
from sottovoce.parties import device as door  # noqa: E402
from sottovoce.privacy.updates import Clipped  # noqa: E402
from sottovoce.runs.federation import Federation  # noqa: E402

TRAIN = checkerboard(24, 30, hole=2)
USERS = np.arange(24)
GENDER = FilterConfig("gender", ("f", "m"), (0.4, 0.6))
AGE = FilterConfig("age", ("young", "middle", "old"), (0.3, 0.4, 0.3))
LABELS = np.stack([USERS % 2, USERS % 3], axis=1)
SMALL = UCConfig(
    embedding_size=8, item_rate=4.0, local_epochs=3, pairs=16, rounds=4, cooling=0.0,
    attributes=(GENDER, AGE),
)  # fmt: skip
KINDS = ["mf", "ncf", "neumf", "gnn"]


pytestmark = pytest.mark.usefixtures("one_thread")


def consent_of(hides=None, strength=0.5):
    """`hides` maps a user to what she hides; all others share everything."""
    names = ("gender", "age")
    kinds = [(), *sorted(set((hides or {}).values()))]
    choices = [
        Choice(share_positives=1.0, hidden_attributes=hidden, strength=strength) for hidden in kinds
    ]
    which = np.array([kinds.index((hides or {}).get(int(u), ())) for u in USERS])
    return Consent.of(USERS, choices, which, names)


def built(settings=SMALL, consent=None, labels=LABELS, train=TRAIN, seed=1, release=None):
    if not settings.attributes:
        labels = None
    return Federation.build(
        settings, train, consent or consent_of(), release or Clipped(),
        Streams.from_seed(seed), labels,
    )  # fmt: skip


def rounds(federation, n, written=False):
    """Run to round n; what was heard of it, where messages are `written`."""
    heard = Messages()
    Simulation(
        federation.server, federation.devices, federation.schedule.cohort_size, n,
        message_observers=[heard] if written else [],
    ).run()  # fmt: skip
    return heard.seen


def sent_by(reports, user):
    mine = reports.sender == user
    return reports.item[mine], reports.values[mine]


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_every_weight_of_the_model_once(kind):
    settings = replace(SMALL, recommender=kind)
    layout = ModelLayout.of(settings, 30)
    table = layout.start(0.1, Streams.from_seed(2))
    assert table.shape == (settings.model_rows(30), 9)
    assert not table[:, 8].any()
    numbers = np.arange(table[:, :8].size, dtype=np.float32).reshape(-1, 8)
    table[:, :8] = numbers
    model = layout.model(table, np.zeros((3, 8), np.float32), torch.device("cpu"))
    parts = [model.items, *model.towers.values(), *(w for f in model.filters for w in f.values())]
    seen = torch.cat([part.flatten() for part in parts])
    assert len(torch.unique(seen)) == len(seen)
    assert table.size - len(table) - len(seen) < 8 * (1 + len(model.filters))  # padding alone


def test_a_row_moves_by_the_mean_over_those_who_sent_it():
    algorithm = built().server.algorithm
    items = np.zeros((50, 9), np.float32)
    values = np.zeros((2, 9), np.int64)
    values[0] = [int(GRID)] * 8 + [2 * int(GRID)]
    values[1] = [int(3 * GRID)] * 8 + [int(GRID)]
    after, _ = algorithm.server_fold(
        items,
        np.zeros((50, 0), np.float32),
        SummedReports(0, np.array([4, 7], np.int32), values, 2),
    )
    assert np.allclose(after[4, :8], 0.5)
    assert np.allclose(after[7, :8], 3.0)
    assert not after[:, 8].any()
    assert np.array_equal(np.delete(after, [4, 7], 0), np.delete(items, [4, 7], 0))


def test_who_claims_to_be_many_or_nobody_counts_as_one():
    algorithm = built().server.algorithm
    items = np.zeros((50, 9), np.float32)
    for claim in (0, -5, 1000):
        values = np.array([[int(GRID)] * 8 + [claim * int(GRID)]], np.int64)
        report = SummedReports(0, np.array([4], np.int32), values, 1)
        after, _ = algorithm.server_fold(items, np.zeros((50, 0), np.float32), report)
        assert np.allclose(after[4, :8], 1.0)


def test_rows_that_count_nobody_move_by_what_is_public():
    """The sum over as many devices as send a row on average, whatever stands where counts would."""
    algorithm = replace(built().server.algorithm, counted=False)
    c, n_items = SMALL, TRAIN.n_items
    items = np.zeros((SMALL.model_rows(n_items), 9), np.float32)
    row = np.array([3, n_items], np.int32)  # an item's, and the first of a network
    drawn = min(n_items, c.local_epochs * c.pairs * (1 + c.negatives))
    for last in (0, -5, 1000):
        values = np.full((2, 9), 6 * int(GRID), np.int64)
        values[:, 8] = last * int(GRID)
        report = SummedReports(0, row, values, 12)
        after, _ = algorithm.server_fold(items, np.zeros((len(items), 0), np.float32), report)
        assert np.allclose(after[3, :8], 6 / (12 * drawn / n_items))
        assert np.allclose(after[n_items, :8], 6 / 12)
        assert not after[:, 8].any()


# --- rounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_messages_and_sums_give_the_same_round(kind):
    consent = consent_of({3: ("gender",), 5: ("age", "gender"), 8: ("age",)})
    written, summed = (built(replace(SMALL, recommender=kind), consent) for _ in range(2))
    rounds(written, 2, written=True)
    rounds(summed, 2)
    assert np.allclose(written.server.items, summed.server.items, atol=2e-6)
    assert np.allclose(written.devices.cohort.vectors, summed.devices.cohort.vectors, atol=2e-6)
    assert written.devices.ledger.totals == summed.devices.ledger.totals


@pytest.mark.parametrize("link", [Direct(), SecureSum(min_devices=10)])
def test_neighbours_are_seen_as_they_were_before_the_round(monkeypatch, link):
    """Also where messages are written out a few at a time."""
    settings = replace(SMALL, recommender="gnn")
    made = [
        Federation.build(
            settings, TRAIN, consent_of(), Clipped(), Streams.from_seed(1), LABELS, link
        )
        for _ in range(2)
    ]
    made[0].devices.report_summed(made[0].server.publish(), made[0].devices.willing())
    monkeypatch.setattr(door, "_WRITTEN_AT_ONCE", 1)
    made[1].schedule = replace(made[1].schedule, rounds=1)
    made[1].run(message_observers=[Messages()])
    assert np.allclose(made[0].devices.cohort.vectors, made[1].devices.cohort.vectors, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_the_checkerboard(kind):
    settings = replace(
        SMALL, recommender=kind, rounds=120, item_rate=20.0, attributes=(), embedding_size=10,
        learning_rate=0.3, pairs=32, negatives=4 if kind == "neumf" else 1,
    )  # fmt: skip
    made = built(settings)
    rounds(made, 120)
    items, _ = top_n(made.scorer(), USERS, TRAIN, 2)
    assert np.mean(items % 2 == (USERS % 2)[:, None]) > 0.9


@pytest.mark.parametrize("noise", [0.001, 30.0])
def test_over_a_sum_with_little_noise_it_learns_as_well_and_with_much_nothing(noise):
    settings = replace(
        SMALL, recommender="mf", rounds=60, item_rate=20.0, attributes=(), embedding_size=10,
        learning_rate=0.3, pairs=32,
    )  # fmt: skip
    link = SecureSum(min_devices=10, clip=20.0, noise=noise)
    made = Federation.build(
        settings, TRAIN, consent_of(), Clipped(), Streams.from_seed(1), None, link
    )
    made.run()
    items, _ = top_n(made.scorer(), USERS, TRAIN, 2)
    right = np.mean(items % 2 == (USERS % 2)[:, None])
    assert right > 0.9 if noise < 1 else right < 0.7


def test_step_sizes_fall_at_the_end():
    algorithm = built(replace(SMALL, rounds=100, cooling=0.2)).server.algorithm
    paces = [algorithm.pace(round) for round in range(120)]
    assert paces[:80] == [1.0] * 80
    assert all(a >= b for a, b in pairwise(paces))
    assert 0 < paces[99] < 0.1
    assert paces[119] > 0  # a federation may go on


# --- consent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_where_nobody_hides_anything_it_is_the_base_model_exactly(kind):
    plain = replace(SMALL, recommender=kind, attributes=())
    base, filtered = built(plain), built(replace(SMALL, recommender=kind))
    rounds(base, 3)
    rounds(filtered, 3)
    n = len(base.server.items)
    assert np.array_equal(base.server.items, filtered.server.items[:n])
    assert np.array_equal(base.devices.cohort.vectors, filtered.devices.cohort.vectors)


@pytest.mark.parametrize("kind", KINDS)
def test_where_everybody_hides_everything_filters_stay_as_they_are(kind):
    everyone = consent_of({int(u): ("age", "gender") for u in USERS}, strength=0.8)
    made = built(replace(SMALL, recommender=kind), everyone)
    before = made.server.items.copy()
    rounds(made, 3)
    layout = ModelLayout.of(replace(SMALL, recommender=kind), TRAIN.n_items)
    first = layout.filters[0].first
    assert np.array_equal(made.server.items[first:], before[first:])
    assert not np.array_equal(made.server.items[:first], before[:first])
    assert np.isfinite(made.scorer().scores(USERS)).all()


def test_a_change_of_mind_changes_that_users_next_round_and_nothing_else():
    stays, changes = built(), built()
    rounds(stays, 1, written=True)
    rounds(changes, 1, written=True)
    changes.devices.change_consent(consent_of({5: ("gender",)}))
    (one,), (other,) = rounds(stays, 2, written=True), rounds(changes, 2, written=True)
    for user in USERS.tolist():
        before, after = sent_by(one, user), sent_by(other, user)
        if user == 5:
            assert not np.array_equal(before[1], after[1])
            continue
        assert np.array_equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])
    gender = ModelLayout.of(SMALL, TRAIN.n_items).filters[0]
    mine = sent_by(other, 5)[0]
    assert not ((mine >= gender.first) & (mine < gender.stop)).any()
    # Made public again, she trains the filter again.
    changes.devices.change_consent(consent_of())
    (third,) = rounds(changes, 3, written=True)
    mine = sent_by(third, 5)[0]
    assert ((mine >= gender.first) & (mine < gender.stop)).sum() == gender.rows


def test_the_value_of_a_hidden_attribute_is_not_read():
    consent, other = consent_of({5: ("gender",)}), LABELS.copy()
    other[5, 0] = 1 - other[5, 0]
    one, two = built(consent=consent), built(consent=consent, labels=other)
    for heard, there in zip(
        rounds(one, 2, written=True), rounds(two, 2, written=True), strict=True
    ):
        assert np.array_equal(heard.item, there.item)
        assert np.array_equal(heard.values, there.values)
    assert np.array_equal(one.devices.cohort.vectors, two.devices.cohort.vectors)


def test_an_attribute_that_a_device_does_not_know_counts_as_hidden():
    unknown = LABELS.copy()
    unknown[5, 0] = -1
    hidden, missing = built(consent=consent_of({5: ("gender",)})), built(labels=unknown)
    for heard, there in zip(
        rounds(hidden, 2, written=True), rounds(missing, 2, written=True), strict=True
    ):
        assert np.array_equal(heard.values, there.values)


def logits_of(model):
    """What the filter says of everybody; one of moments, by its guess of middle strength."""
    users, weights = model.represent()[0], model.filters[0]
    if "moments" not in weights:
        return guess(users[None], {name: weight[None] for name, weight in weights.items()})[0]
    guesses = Guesses.of(weights, torch.tensor(GENDER.shares))
    lines = guesses.lines[len(guesses.lines) // 2]
    return (users - guesses.center) @ lines.T + guesses.shares.log()


@pytest.mark.parametrize("filters", ["moments", "two-layer"])
def test_hiding_moves_what_filters_say_towards_the_public_shares(filters):
    """Gender is the colour of the board, so that embeddings give it away unless they are pulled."""
    hiders = {int(u): ("gender",) for u in USERS[::4]} | {int(u): ("gender",) for u in USERS[1::4]}
    settings = replace(
        SMALL, rounds=60, item_rate=20.0, filter_rate=0.2, pairs=32, attributes=(GENDER,),
        filters=filters,
    )  # fmt: skip

    def spread(strength):
        made = built(settings, consent_of(hiders, strength), LABELS[:, :1])
        rounds(made, 60)
        algorithm, items = made.server.algorithm, made.server.items
        vectors = made.devices.cohort.vectors
        model = algorithm.model(items, vectors)
        told = torch.softmax(logits_of(model), dim=1)[:, 0].numpy()
        private = np.array(sorted(hiders))
        public = np.setdiff1d(USERS, private)
        even, odd = private % 2 == 0, private % 2 == 1
        sharp = told[public][public % 2 == 0].mean() - told[public][public % 2 == 1].mean()
        return told[private][even].mean() - told[private][odd].mean(), sharp

    (loud, sharp), (quiet, _) = spread(0.0), spread(0.9)
    assert sharp > 0.5  # the filter works on those who share
    assert loud > 0.3
    assert abs(quiet) < 0.35 * loud


def test_hiding_what_has_no_filter_is_refused():
    choice = Choice(share_positives=1.0, hidden_attributes=("religion",))
    consent = Consent.uniform(USERS, choice, ("gender", "religion"))
    with pytest.raises(ConsentError, match="no filter"):
        built(consent=consent)


# --- settings and bad input -----------------------------------------------------------------------


def test_classes_and_shares_come_from_those_who_share():
    known = {"gender": Labels.of(["f"] * 20 + ["m"] * 3 + [""])}
    hides = Choice(share_positives=1.0, hidden_attributes=("gender",))
    consent = Consent.of(
        USERS, [Choice(share_positives=1.0), hides], (USERS < 15).astype(int), ("gender",)
    )
    settings = UCConfig(attributes=(FilterConfig("gender"),)).resolved(known, consent)
    assert settings.attributes[0].classes == ("f", "m")
    assert np.allclose(settings.attributes[0].shares, [6 / 10, 4 / 10])  # 5 and 3, one added each
    labels = settings.labels(known, 24)
    assert labels[:, 0].tolist() == [0] * 20 + [1] * 3 + [-1]
    with pytest.raises(DataError, match="no user attribute"):
        UCConfig(attributes=(FilterConfig("age"),)).resolved(known, consent)


def test_a_value_that_is_none_of_the_classes_counts_as_hidden():
    named = UCConfig(attributes=(FilterConfig("gender", ("f", "x"), (1.0, 1.0)),))
    labels = named.labels({"gender": Labels.of(["f", "m", "f"])}, 3)
    assert labels[:, 0].tolist() == [0, -1, 0]


@pytest.mark.parametrize(
    "fields",
    [
        ("", ("a", "b"), (1.0, 1.0)), ("x", ("a",), (1.0,)), ("x", ("a", "a"), (1.0, 1.0)),
        ("x", ("a", "b"), (1.0,)), ("x", ("a", "b"), (0.0, 0.0)), ("x", ("a", "b"), (-1.0, 2.0)),
        ("x", ("a", "b"), (float("nan"), 2.0)),
    ],
)  # fmt: skip
def test_attributes_that_make_no_sense_are_refused(fields):
    with pytest.raises(ConfigError):
        FilterConfig(*fields)


def test_weights_that_are_no_numbers_send_nothing():
    made = built()
    made.server.items[3, 2] = np.nan
    before = made.devices.cohort.vectors.copy()
    with pytest.raises(Diverged):
        made.devices.report(made.server.publish(), USERS)
    assert np.array_equal(made.devices.cohort.vectors, before)
    assert not made.devices.ledger.totals.bytes


def test_who_takes_no_part_learns_at_home_and_sends_nothing():
    home = Choice(takes_part=False)
    which = (USERS % 6 == 0).astype(int)
    consent = Consent.of(USERS, [Choice(share_positives=1.0), home], which, ("gender", "age"))
    settings = replace(SMALL, rounds=60, item_rate=20.0, pairs=32, attributes=())
    made = built(settings, consent)
    rounds(made, 60)
    quiet = USERS[USERS % 6 == 0]
    assert made.devices.ledger.totals.releases == 60 * (len(USERS) - len(quiet))
    items, _ = top_n(made.scorer(), quiet, TRAIN, 2)
    assert np.mean(items % 2 == (quiet % 2)[:, None]) > 0.8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_same_round(kind):
    consent = consent_of({3: ("gender",), 5: ("age", "gender")})
    here, there = (built(replace(SMALL, recommender=kind), consent) for _ in range(2))
    there.accelerate("cuda")
    rounds(here, 2)
    rounds(there, 2)
    assert np.allclose(here.server.items, there.server.items, atol=1e-4)
    assert here.devices.ledger.totals == there.devices.ledger.totals
