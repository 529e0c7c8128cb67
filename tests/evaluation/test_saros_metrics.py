"""MAP and NDCG over streams with negatives: ours, and the public SAROS code's."""

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, Qrel, ScoredDoc, nDCG

from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import DataError
from sottovoce.evaluation import saros_metrics as saros


def scorer_of(scores):
    """Any table of scores as factors: a user's vector picks her column."""
    table = np.asarray(scores, dtype=np.float32)
    return FactorScorer.of(np.eye(len(table), dtype=np.float32), np.ascontiguousarray(table.T))


def rated(rows, n_items):
    """{user: {item: rating}} as a table."""
    triples = [(u, i, r) for u, row in rows.items() for i, r in row.items()]
    users, items, ratings = zip(*triples, strict=True)
    return Interactions.from_pairs(
        users, items, n_users=max(rows) + 1, n_items=n_items, ratings=ratings
    )


def random_case(seed=0, n_users=25, n_items=60, per_user=18):
    draw = np.random.default_rng(seed)
    rows = {
        u: {int(i): int(draw.integers(1, 6)) for i in draw.choice(n_items, per_user, replace=False)}
        for u in range(n_users)
    }
    return scorer_of(draw.permuted(np.tile(np.arange(n_items), (n_users, 1)), axis=1)), rows


# --- standard ------------------------------------------------------------------------------------


def test_the_users_own_items_are_measured_as_by_ir_measures():
    scorer, rows = random_case()
    test = rated(rows, 60)
    found = saros.own(scorer, test, 4.0)
    scores = scorer.scores(np.arange(25))
    for k in (5, 10):
        for n, u in enumerate(found.users.tolist()):
            run = [ScoredDoc("u", str(i), float(scores[u, i])) for i in rows[u]]
            truth = [Qrel("u", str(i), int(r >= 4)) for i, r in rows[u].items()]
            measured = ir_measures.calc_aggregate([AP @ k, nDCG @ k], truth, run)
            relevant = sum(r >= 4 for r in rows[u].values())
            scale = relevant / min(k, relevant)
            assert found.values[f"AP@{k}"][n] == pytest.approx(measured[AP @ k] * scale, abs=1e-9)
            assert found.values[f"NDCG@{k}"][n] == pytest.approx(measured[nDCG @ k], abs=1e-9)


def test_the_printed_ideal_has_k_relevant_items_for_everybody():
    # Ranked 0, 1, 2; liked 0 and 2: ranks 1 and 3 of a list of 5, worth 1 and 1/2 (1/log2 4).
    scorer = scorer_of([[9, 8, 7, 0, 0, 0], [9, 8, 7, 6, 5, 4]])
    rows = {0: {0: 5, 1: 1, 2: 4}, 1: dict.fromkeys(range(5), 3)}
    test = rated(rows, 6)
    ideal = 1 + 1 / np.log2(3) + 1 / 2 + 1 / np.log2(5) + 1 / np.log2(6)
    found = saros.printed(scorer, test, 3.0)
    # Whoever has five relevant items in the first five places has 1, and nobody else can.
    assert found.values["NDCG@5"].tolist() == pytest.approx([1.5 / ideal, 1.0])
    assert found.values["NDCG@5"][0] == pytest.approx(0.50874, abs=1e-5)
    own = saros.own(scorer, test, 3.0)
    assert own.values["NDCG@5"][0] == pytest.approx(1.5 / (1 + 1 / np.log2(3)))
    assert found.values["AP@5"].tolist() == own.values["AP@5"].tolist()
    assert found.values["NDCG@10"][1] < 1.0


def test_full_ranking_leaves_out_training_items_and_counts_liked_ones_alone():
    scorer = scorer_of([[9, 8, 7, 6, 5, 4]])
    train = rated({0: {0: 5}}, 6)
    test = rated({0: {1: 2, 2: 4, 5: 5}}, 6)
    found = saros.full(scorer, train, test, 4.0)
    # The list is 1, 2, 3, 4, 5; of these 2 and 5 are liked.
    assert found.means()["MAP@5"] == pytest.approx((1 / 2 + 2 / 5) / 2)
    ideal = 1 + 1 / np.log2(3)
    assert found.means()["NDCG@10"] == pytest.approx((1 / np.log2(3) + 1 / np.log2(6)) / ideal)
    assert list(found.means()) == ["MAP@5", "NDCG@5", "MAP@10", "NDCG@10"]


def test_users_without_liked_items_are_left_out_of_the_standard_and_count_0_in_the_other():
    test = rated({0: {0: 5, 1: 1}, 1: {0: 1, 1: 2}}, 2)
    scorer = scorer_of([[2, 1], [2, 1]])
    assert saros.own(scorer, test, 4.0).users.tolist() == [0]
    assert saros.own(scorer, test, 4.0).means()["MAP@5"] == 1.0
    assert saros.legacy(scorer, test, 4.0).means()["MAP@5"] == 0.5
    assert saros.legacy(scorer, test, 4.0).means()["NDCG@10"] == 0.5


# --- the public code's variant -------------------------------------------------------------------


def written_out(flags, k):
    """AP and NDCG of one list of exported places, step by step."""
    found, precision = 0, []
    for rank, good in enumerate(flags[:k], start=1):
        if good:
            found += 1
            precision.append(found / rank)
    ap = sum(precision) / len(precision) if precision else 0.0

    def dcg(gains):
        return sum(g if r == 1 else g / np.log2(r) for r, g in enumerate(gains[:k], start=1))

    ideal = dcg(sorted(flags, reverse=True))
    return ap, dcg(flags) / ideal if ideal else 0.0


def test_the_public_codes_metrics_are_as_described():
    hit = np.random.default_rng(3).random((200, 10)) < 0.3
    for k in (5, 10):
        ap, ndcg = saros.legacy_average_precision(hit[:, :k]), saros.legacy_ndcg(hit, k)
        expected = np.array([written_out(row.astype(float).tolist(), k) for row in hit])
        np.testing.assert_allclose(ap, expected[:, 0], atol=1e-12)
        np.testing.assert_allclose(ndcg, expected[:, 1], atol=1e-12)


def test_where_the_two_differ():
    one_hit = np.zeros((1, 10), dtype=bool)
    one_hit[0, 0] = True
    # One liked item of many found: perfect there, a fifth here.
    assert saros.legacy_average_precision(one_hit[:, :5])[0] == 1.0
    second = np.roll(one_hit, 1, axis=1)
    assert saros.legacy_ndcg(second, 5)[0] == 1.0, "the first two ranks count alike"
    ninth = np.roll(one_hit, 8, axis=1)
    assert saros.legacy_ndcg(ninth, 5)[0] == 0.0, "the ideal looks at ten places"
    scorer, rows = random_case(seed=5)
    test = rated(rows, 60)
    means, public = saros.own(scorer, test, 4.0).means(), saros.legacy(scorer, test, 4.0).means()
    assert public["MAP@5"] > means["MAP@5"] + 0.1


# --- candidates ----------------------------------------------------------------------------------


def test_ties_go_to_the_smaller_number_and_unknown_items_are_not_ranked():
    test = rated({0: {0: 1, 1: 5, 2: 1, 4: 5}}, 5)
    hit = saros.own_hits(scorer_of([[1, 1, 1, 9]]), test, np.array([0]), 4.0)
    assert hit.shape == (1, 10)
    assert np.flatnonzero(hit[0]).tolist() == [1]
    # Item 4 has no row, but counts as relevant.
    found = saros.own(scorer_of([[1, 1, 1, 9]]), test, 4.0)
    assert found.values["AP@5"][0] == pytest.approx((1 / 2) / 2)


def test_a_test_part_without_ratings_is_refused():
    bare = Interactions.from_pairs([0], [0])
    with pytest.raises(DataError, match="without ratings"):
        saros.own(scorer_of([[1]]), bare, 4.0)


def test_it_shows_no_users():
    test = rated({0: {0: 5, 1: 1}}, 2)
    shown = repr(saros.legacy(scorer_of([[2, 1]]), test, 4.0))
    assert shown == "<Measured 1 users; the user's held-out items alone, as the public SAROS code>"
