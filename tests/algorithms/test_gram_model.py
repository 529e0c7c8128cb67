"""gram's mathematics at the server: the head, and the linear model of a noisy sum of pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.gram import model
from sottovoce.algorithms.gram.model import PLAIN, POPULARITY, TIMED, Rules
from sottovoce.core.messages import ModelView
from sottovoce.errors import DataError
from sottovoce.wire.versions import encode_model

N, H = 400, 30


def profiles(seed=0, users=N, size=H):
    """Unit vectors of users with one of three tastes."""
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 3, users)
    chance = np.where(np.arange(size) % 3 == taste[:, None], 0.5, 0.08)
    x = (rng.random((users, size)) < chance).astype(float)
    x[:, 0] = 1.0
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def triangle(gram):
    return np.concatenate([np.diag(gram), gram[np.triu_indices(len(gram), 1)]])


def noisy(gram, noise, seed=1):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.normal(0, noise / np.sqrt(2), gram.shape), 1)
    return gram + upper + upper.T + np.diag(rng.normal(0, noise, len(gram)))


def dense(gram, noise, ridge):
    """B of the specification, by explicit inverse."""
    edge = noise * np.sqrt(2 * len(gram))
    y, v = np.linalg.eigh(gram)
    kept = np.sqrt(np.where(y > edge, y**2 - edge**2, 0.0))
    p = np.linalg.inv(v @ np.diag(kept) @ v.T + ridge * np.eye(len(gram)))
    b = -p / np.diag(p)
    np.fill_diagonal(b, 0.0)
    return b


def scored(fitted, history, count):
    """What a device computes for every item, without q, in the units of v B."""
    mine = history @ fitted.factors
    return (mine @ (fitted.factors * fitted.scales[:, None]).T) * POPULARITY / count


@pytest.mark.parametrize("rules", [PLAIN, TIMED])
@pytest.mark.parametrize("noise", [0.5, 2.0, 5.0])
def test_unseen_items_score_as_by_the_inverse(rules, noise):
    x = profiles()
    gram = noisy(x.T @ x, noise)
    fitted = model.fit_pairs(triangle(gram), noise, N, rules, H)
    ridge = max(rules.noise_ridge * noise * np.sqrt(2 * H), rules.user_ridge * N)
    wanted = x @ dense(gram, noise, ridge)
    unseen = x == 0
    assert unseen.sum() > N
    found = scored(fitted, x, N)
    assert found[unseen] == pytest.approx(wanted[unseen], abs=1e-8)
    assert not np.allclose(found[~unseen], wanted[~unseen], atol=1e-3)  # its diagonal is not 0


def test_without_noise_it_is_ease_on_the_head():
    x = profiles()
    gram = x.T @ x
    fitted = model.fit_pairs(triangle(gram), 0.0, N, Rules(5.0, 3.0, 0.01), H)
    p = np.linalg.inv(gram + 0.01 * N * np.eye(H))
    b = -p / np.diag(p)
    np.fill_diagonal(b, 0.0)
    unseen = x == 0
    assert scored(fitted, x, N)[unseen] == pytest.approx((x @ b)[unseen], abs=1e-8)


def test_no_column_is_longer_than_popularity_supports():
    """And those that are not stay as they are."""
    x = profiles()
    sums, q = triangle(noisy(x.T @ x, 0.5)), x.sum(axis=0)

    def lengths(fitted):
        table = fitted.factors @ fitted.factors.T * (fitted.scales * POPULARITY / N)
        np.fill_diagonal(table, 0.0)
        return np.linalg.norm(table, axis=0)

    free = model.fit_pairs(sums, 0.5, N, TIMED, H)
    root = np.sqrt(q / N)
    support = float(np.median(lengths(free) / root))
    held = model.fit_pairs(sums, 0.5, N, TIMED, H, q, support)
    over = lengths(free) > support * root
    assert 0 < over.sum() < H
    assert lengths(held)[over] == pytest.approx(support * root[over])
    assert np.array_equal(held.scales[~over], free.scales[~over])
    assert np.array_equal(held.factors, free.factors)
    for unlimited in (0.0, 1e6):
        same = model.fit_pairs(sums, 0.5, N, TIMED, H, q, unlimited)
        assert np.array_equal(same.scales, free.scales)
    silent = model.fit_pairs(sums, 0.5, N, TIMED, H, -q, support)
    assert not silent.scales.any()


def test_it_falls_back_without_signal_and_only_then():
    empty = np.zeros((H, H))
    found = [
        model.fit_pairs(triangle(noisy(empty, 3.0, seed)), 3.0, N, PLAIN, H) for seed in range(200)
    ]
    assert sum(fitted is not None for fitted in found) <= 10
    x = profiles()
    for seed in range(50):
        assert model.fit_pairs(triangle(noisy(x.T @ x, 3.0, seed)), 3.0, N, PLAIN, H) is not None
    assert model.fit_pairs(triangle(empty), 0.0, N, PLAIN, H) is None
    assert model.fit_pairs(triangle(empty), 0.0, 0.0, PLAIN, H) is None


def test_noise_is_shrunk_away():
    """With all eigenvalues as they are, scores are farther from those without noise."""
    x = profiles()
    gram, noise = x.T @ x, 3.0
    ridge = PLAIN.noise_ridge * noise * np.sqrt(2 * H)
    exact = x @ dense(gram, 0.0, ridge)
    unseen = x == 0
    far = []
    for seed in range(20):
        sums = noisy(gram, noise, seed)
        fitted = model.fit_pairs(triangle(sums), noise, N, PLAIN, H)
        raw = np.linalg.inv(sums + ridge * np.eye(H))
        raw = -raw / np.diag(raw)
        np.fill_diagonal(raw, 0.0)
        errors = [scored(fitted, x, N) - exact, x @ raw - exact]
        far.append([np.mean(error[unseen] ** 2) for error in errors])
    ours, raws = np.mean(far, axis=0)
    assert ours < 0.5 * raws


def test_fewer_factors_are_the_strongest_and_scales_stay():
    x = profiles()
    sums = triangle(noisy(x.T @ x, 0.2))
    whole = model.fit_pairs(sums, 0.2, N, TIMED, H)
    assert whole.factors.shape[1] > 3
    few = model.fit_pairs(sums, 0.2, N, TIMED, 3)
    assert np.array_equal(few.factors, whole.factors[:, :3])
    assert np.array_equal(few.scales, whole.scales)
    strength = np.sum(whole.factors**2, axis=0)
    assert (np.diff(strength) <= 1e-12).all()
    assert (whole.scales > 0).all()


def test_the_order_of_items_does_not_matter():
    x = profiles()
    gram = noisy(x.T @ x, 0.5)
    turn = np.random.default_rng(3).permutation(H)
    one = model.fit_pairs(triangle(gram), 0.5, N, PLAIN, H)
    other = model.fit_pairs(triangle(gram[np.ix_(turn, turn)]), 0.5, N, PLAIN, H)
    assert other.factors == pytest.approx(one.factors[turn], abs=1e-9)
    assert other.scales == pytest.approx(one.scales[turn])


@pytest.mark.parametrize("sums", [np.zeros(2), np.zeros(5), np.array([1.0, np.nan, 0.0])])
def test_sums_of_no_triangle_are_refused(sums):
    with pytest.raises(DataError, match="numbers are not the sums"):
        model.fit_pairs(sums, 1.0, N, PLAIN, H)


# --- the head -------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 40))
def test_the_head_are_the_largest_and_ties_go_to_the_smaller_number(values, size):
    q = np.array(values, dtype=float)
    head = model.choose_head(q, size)
    wanted = sorted(range(len(q)), key=lambda i: (-q[i], i))[:size]
    assert head.tolist() == sorted(wanted)


def test_the_head_grows_with_users_and_epsilon_between_its_bounds():
    def size(count, sigma, rules=PLAIN, n_items=5000):
        return model.head_size(count, sigma, n_items, 100, 1000, rules)

    assert size(6040, 4.2247) == 189
    assert size(6040, 4.2247, TIMED) == 249
    assert size(6040, 0.65294) == 480
    assert size(10, 4.0) == size(-30, 4.0) == 100
    assert size(10**8, 1.0) == 1000
    assert size(6040, 4.2247, n_items=60) == 60


def test_few_users_spend_more_on_popularity_and_fewer_all():
    share = model.first_share
    assert share(29_858, 40_981, 4.22) == 0.1
    assert 0.1 < share(6040, 3706, 4.22) < 0.15
    assert 0.3 < share(943, 1682, 4.22) < 0.35
    assert share(943, 1682, 8.06) == 1.0
    assert share(1353, 25_498, 2.23) == 1.0 > share(1353, 25_498, 0.653)
    assert share(0, 100, 1.0) == 1.0
    assert share(1353, 25_498, 0.653, places=True) == 1.0 > share(12_000, 600, 1.19, places=True)
    many = [share(n, 2000, 2.0) for n in range(100, 20_000, 100)]
    assert (np.diff(many) <= 0).all()


# --- rounding -------------------------------------------------------------------------------------


def table(seed=0, n_items=50, factors=6):
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(n_items, 2 + factors)) * 10.0 ** rng.uniform(-6, 6, 2 + factors)
    made[n_items // 2 :, 1:] = 0.0
    made[:, -1] = 0.0
    return made.astype(np.float32)


@given(st.integers(0, 1000), st.integers(2, 24))
def test_a_rounded_model_is_near_and_has_few_bits(seed, bits):
    exact = table(seed)
    got = model.rounded(exact, bits, 2)
    assert got.dtype == np.float32
    few, most = exact[:, :2].astype(float), np.abs(exact[:, 2:]).max(axis=0).astype(float)
    assert np.all(np.abs(got[:, :2] - few) <= np.abs(few) * 2.0**-bits)
    assert np.all(np.abs(got[:, 2:] - exact[:, 2:].astype(float)) <= most / (2 ** (bits - 1) - 1))
    for column in got[:, 2:].T:
        levels = np.unique(np.abs(column[column != 0]).astype(float))
        if len(levels):
            step = 2.0 ** np.ceil(np.log2(levels[-1] / (2 ** (bits - 1) - 1)))
            assert np.all(levels / step == np.rint(levels / step))
    assert not np.any((got == 0) & np.signbit(got))
    assert np.array_equal(model.rounded(got, bits, 2), got)


def test_all_bits_leave_a_model_alone():
    exact = table()
    assert model.rounded(exact, 32, 2) is exact
    assert not np.array_equal(model.rounded(exact, 8, 2), exact)


def test_a_rounded_model_takes_a_byte_for_a_factor():
    exact = table(n_items=400, factors=32)
    whole = len(encode_model(ModelView(2, model.rounded(exact, 8, 2))))
    assert whole <= len(encode_model(ModelView(2, exact))) / 3
    assert whole <= 400 * (2 * 4 + 32) + 100
