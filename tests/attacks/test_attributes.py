"""Attackers who guess users' attributes: they find what is there, and nothing where there is not;
what is private they read only to be scored."""

import json
import pickle
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from sottovoce.attacks.suite import a08_attributes as attributes
from sottovoce.attacks.suite.a08_attributes import TooLittle, auc, auc_resampled
from sottovoce.data.dataset import Labels
from sottovoce.errors import DataError, UsageError
from sottovoce.rng import Streams

RNG = Streams.from_seed(11)
N, SIZE = 300, 6


infer = partial(attributes.infer, attribute="hair")
learning = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")


@pytest.fixture
def quick(monkeypatch):
    """Attackers with less choice, where how good they are does not matter."""
    families = attributes._families

    def short(*args):
        return {
            name: one._replace(settings=one.settings[1:2] or one.settings, stops=one.stops[:1])
            for name, one in families(*args).items()
        }

    monkeypatch.setattr(attributes, "_families", short)


def world(classes=2, strength=4.0, seed=1, n=N):
    """Rows that say the class in one column, and who is private."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, classes, n)
    rows = draw.normal(size=(n, SIZE))
    rows[:, 0] += strength * codes
    return rows, labels(codes), draw.random(n) < 0.4


def labels(codes):
    return Labels(np.asarray(codes, dtype=np.int32), ("a", "b", "c", "d"))


@learning
@pytest.mark.parametrize("classes", [2, 3])
def test_a_planted_attribute_is_found_by_every_family(classes):
    rows, values, private = world(classes)
    found = infer(rows, values, private, RNG)
    assert {o.family for o in found.outcomes} == {
        "logistic regression", "network", "boosted trees"
    }  # fmt: skip
    for outcome in found.outcomes:
        assert outcome.auc > 0.95
        assert outcome.auc_interval.low <= outcome.auc <= outcome.auc_interval.high
        assert outcome.accuracy > outcome.majority + 0.3
        assert outcome.ranks
        assert outcome.guesses
    assert found.strong.auc == max(o.auc for o in found.outcomes)
    assert "hair: learnt" in found.verdict
    assert found.public + found.private == N
    assert json.loads(json.dumps(found.to_table()))["strong"] == found.strong.name


@learning
@pytest.mark.slow
def test_the_papers_own_attacker_finds_what_is_there_and_nothing_else():
    """As the others, it reads what is private only to be scored, and no row's place matters."""
    rows, values, private = world(2)
    attack = partial(attributes.infer_as_published, attribute="hair")
    found = attack(rows, values, private, RNG)
    assert found.auc > 0.95
    assert found.accuracy > 0.85
    turned = np.random.default_rng(5).permutation(N)
    assert attack(rows[turned], labels(values.codes[turned]), private[turned], RNG) == found
    others = np.where(private, 1 - values.codes, values.codes)
    told = attack(rows, labels(others), private, RNG)
    assert told.auc == pytest.approx(1.0 - found.auc)
    rows[:, 0] = np.random.default_rng(6).normal(size=N)
    assert 0.35 < attack(rows, values, private, RNG).auc < 0.65


@learning
def test_what_is_no_line_is_found_too():
    """The sign of a product: nothing for logistic regression."""
    rows, _, private = world(n=700, strength=0)
    codes = (rows[:, 0] * rows[:, 1] > 0).astype(int)
    found = infer(rows, labels(codes), private, RNG)
    by_family = {o.name: o.auc for o in found.outcomes}
    assert by_family["network"] > 0.8
    assert by_family["boosted trees"] > 0.8
    assert by_family["logistic regression"] < 0.6


@learning
def test_random_labels_give_nothing_away():
    rows, _, private = world(strength=0)
    values = labels(np.random.default_rng(5).random(N) < 0.3)
    found = infer(rows, values, private, RNG)
    for outcome in found.outcomes:
        assert outcome.auc_interval.low < 0.5 < outcome.auc_interval.high
        assert outcome.accuracy_interval.low < outcome.majority
        assert not outcome.ranks
        assert not outcome.guesses
    assert found.strong is None
    assert "no attacker is better than chance" in found.verdict


@learning
@pytest.mark.usefixtures("quick")
def test_an_attacker_that_guesses_one_value_is_never_strong():
    """Every row is the same, so every guess is; nine in ten are right."""
    codes = (np.arange(N) % 10 == 0).astype(int)
    found = infer(np.ones((N, SIZE)), labels(codes), np.arange(N) % 3 == 0, RNG)
    for outcome in found.outcomes:
        assert outcome.auc == 0.5
        assert outcome.accuracy == outcome.majority > 0.85
    assert found.strong is None


@learning
@pytest.mark.usefixtures("quick")
def test_the_order_of_users_does_not_matter():
    rows, values, private = world(strength=1.0)
    order = np.random.default_rng(2).permutation(N)
    moved = infer(rows[order], values.take(order), private[order], RNG)
    assert moved == infer(rows, values, private, RNG)


@learning
@pytest.mark.usefixtures("quick")
def test_lessons_elsewhere_and_in_another_order_find_the_same():
    """What a pool of processes does: parts are written, read again, and done in any order."""
    sizes = []

    def elsewhere(work, parts, /):
        sizes.append(len(parts))
        done = {}
        for k in reversed(range(len(parts))):
            there, part = pickle.loads(pickle.dumps((work, parts[k])))
            done[k] = there(part)
        return [done[k] for k in range(len(parts))]

    given = world(classes=3, strength=1.5)
    assert infer(*given, RNG, each=elsewhere) == infer(*given, RNG)
    assert len(sizes) == 3
    assert min(sizes) > 1


@learning
@pytest.mark.usefixtures("quick")
def test_private_values_are_read_only_to_score(monkeypatch):
    """All that attackers say is the same where private users' values are exchanged."""
    rows, values, private = world(strength=1.5)
    said = []
    attack = attributes._attack

    def listen(*args):
        said.append(attack(*args))
        return said[-1]

    monkeypatch.setattr(attributes, "_attack", listen)
    codes = values.codes.copy()
    codes[private] = np.random.default_rng(3).permutation(codes[private])
    first = infer(rows, values, private, RNG)
    second = infer(rows, labels(codes), private, RNG)
    for a, b in zip(*said, strict=True):
        assert a[:4] == b[:4]
        np.testing.assert_array_equal(a[4], b[4])
        np.testing.assert_array_equal(a[5], b[5])
    assert first.strong is not None
    assert second.strong is None


@learning
def test_users_who_were_only_moved_aside_are_found_by_the_aligned_attacker():
    rows, values, private = world()
    rows[private] = 0.05 * rows[private] + 30.0
    found = infer(rows, values, private, RNG)
    by_name = {o.name: o for o in found.outcomes}
    assert by_name["logistic regression"].accuracy < 0.7
    assert by_name["logistic regression, aligned"].accuracy > 0.9


@learning
@pytest.mark.usefixtures("quick")
def test_missing_values_are_neither_learnt_nor_scored():
    rows, values, private = world()
    codes = values.codes.copy()
    codes[::7] = -1
    found = infer(rows, labels(codes), private, RNG)
    assert found.missing == len(codes[::7])
    assert found.public == int((~private & (codes >= 0)).sum())
    assert found.private == int((private & (codes >= 0)).sum())


@learning
@pytest.mark.usefixtures("quick")
def test_a_value_that_only_private_users_have_is_always_guessed_wrong():
    rows, values, private = world()
    codes = values.codes.copy()
    odd = np.flatnonzero(private)[:20]
    codes[odd] = 3
    found = infer(rows, labels(codes), private, RNG)
    assert (found.classes, found.not_learnt) == (2, 20)
    for outcome in found.outcomes:
        assert outcome.tried == private.sum()
        assert outcome.right <= private.sum() - 20
        assert outcome.auc > 0.95


@learning
@pytest.mark.usefixtures("quick")
def test_private_users_of_one_value_have_no_auc():
    rows, values, private = world()
    private &= values.codes == 1
    found = infer(rows, values, private, RNG)
    assert all(o.auc is None and not o.ranks and not o.guesses for o in found.outcomes)
    assert found.strong is None
    assert "no AUC" in found.verdict


def test_too_little_is_said():
    rows, values, private = world()
    nobody = np.zeros(N, dtype=bool)
    few = np.ones(N, dtype=bool)
    few[:20] = False
    with pytest.raises(TooLittle, match="hair: no private user has a known value"):
        infer(rows, values, nobody, RNG)
    with pytest.raises(TooLittle, match="only 20 users share it"):
        infer(rows, values, few, RNG)
    with pytest.raises(TooLittle, match="the same value"):
        infer(rows, labels(np.ones(N)), private, RNG)
    rare = np.zeros(N)
    rare[np.flatnonzero(~private)[:3]] = 1
    with pytest.raises(TooLittle, match="fewer than two values are shared by 6"):
        infer(rows, labels(rare), private, RNG)
    with pytest.raises(TooLittle, match="no private user"):
        infer(rows, labels(np.full(N, -1)), private, RNG)


def test_bad_tables_are_refused():
    rows, values, private = world()
    broken = rows.copy()
    broken[3, 1], broken[9, 0] = np.nan, np.inf
    with pytest.raises(DataError, match="2 users are not finite"):
        infer(broken, values, private, RNG)
    with pytest.raises(UsageError, match="a row for each user"):
        infer(rows[:, 0], values, private, RNG)
    with pytest.raises(UsageError, match="as many labels"):
        infer(rows[1:], values, private[1:], RNG)
    with pytest.raises(UsageError, match="truth values"):
        infer(rows, values, np.flatnonzero(private), RNG)


def test_without_scikit_learn_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.exceptions", raising=False)
    with pytest.raises(UsageError, match=r"needs sklearn.*\[attacks\]"):
        infer(*world(), RNG)


def test_auc_counts_pairs_and_ties():
    draw = np.random.default_rng(0)
    p, truth = draw.integers(0, 5, (60, 3)) / 5, draw.integers(0, 3, 60)

    def by_hand(c, rows):
        ours, rest = p[rows][truth[rows] == c, c], p[rows][truth[rows] != c, c]
        less = ours[:, None] - rest
        return ((less > 0) + 0.5 * (less == 0)).mean()

    everyone = np.arange(60)
    assert auc(p, truth) == pytest.approx(np.mean([by_hand(c, everyone) for c in range(3)]))
    assert auc(p[:, :2], (truth > 0).astype(int)) is not None
    assert auc(p, np.zeros(60, dtype=int)) is None
    drawn = draw.integers(0, 60, 60)
    again = auc_resampled(p, truth, np.bincount(drawn, minlength=60)[None])
    assert again[0] == pytest.approx(np.mean([by_hand(c, drawn) for c in range(3)]))


def test_what_chance_stays_below_is_what_shuffled_truth_stays_below():
    draw = np.random.default_rng(4)
    p, truth = draw.random((150, 3)), draw.integers(0, 3, 150)
    p[:, 1] = np.round(p[:, 0], 1)
    by_chance = np.array([auc(p, draw.permutation(truth)) for _ in range(1_500)])
    ceiling = attributes._ceiling(p, truth, 1)
    assert (ceiling - 0.5) / 1.959964 == pytest.approx(by_chance.std(), rel=0.08)
