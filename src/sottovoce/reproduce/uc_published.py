"""Figures printed in the UC-FedRec paper, for comparison with ours.

Its Tables 1 and 2 call HR@10 "NDCG" and NDCG@10 "Recall"; here each has its own
name. Gender is AUC, all other attributes are micro-F1.
"""

from __future__ import annotations

from collections.abc import Mapping

Printed = Mapping[str, float]
_ML, _DB = "movielens-1m", "douban-book"

TABLE2: Mapping[tuple[str, str, str], Printed] = {
    (_ML, "gnn", "base"): {
        "hr": 0.843, "ndcg": 0.544, "gender": 0.817, "age": 0.489, "occupation": 0.171,
    },
    (_ML, "gnn", "early"): {
        "hr": 0.794, "ndcg": 0.509, "gender": 0.787, "age": 0.364, "occupation": 0.158,
    },
    (_ML, "gnn", "uc-0.5"): {
        "hr": 0.783, "ndcg": 0.509, "gender": 0.631, "age": 0.283, "occupation": 0.128,
    },
    (_ML, "gnn", "uc-0.8"): {"hr": 0.75, "ndcg": 0.457, "gender": 0.5},
    (_ML, "ncf", "base"): {
        "hr": 0.784, "ndcg": 0.496, "gender": 0.755, "age": 0.358, "occupation": 0.152,
    },
    (_ML, "ncf", "early"): {
        "hr": 0.742, "ndcg": 0.471, "gender": 0.653, "age": 0.284, "occupation": 0.131,
    },
    (_ML, "ncf", "uc-0.5"): {
        "hr": 0.734, "ndcg": 0.471, "gender": 0.602, "age": 0.212, "occupation": 0.117,
    },
    (_DB, "gnn", "base"): {"hr": 0.724, "ndcg": 0.492, "location": 0.265},
    (_DB, "gnn", "early"): {"hr": 0.692, "ndcg": 0.483, "location": 0.249},
    (_DB, "gnn", "uc-0.5"): {"hr": 0.688, "ndcg": 0.482, "location": 0.221},
    (_DB, "ncf", "base"): {"hr": 0.696, "ndcg": 0.489, "location": 0.263},
    (_DB, "ncf", "early"): {"hr": 0.686, "ndcg": 0.476, "location": 0.245},
    (_DB, "ncf", "uc-0.5"): {"hr": 0.683, "ndcg": 0.477, "location": 0.225},
}  # fmt: skip
"""By source, recommender and kind of line; β = 0.8 is from the text."""

TABLE1: Mapping[tuple[str, str, str], Printed] = {
    (_ML, "gnn", "base"): TABLE2[(_ML, "gnn", "base")],
    (_ML, "ncf", "base"): TABLE2[(_ML, "ncf", "base")],
    (_ML, "mf", "scalar"): {
        "hr": 0.694, "ndcg": 0.433, "gender": 0.685, "age": 0.296, "occupation": 0.136,
    },
}  # fmt: skip
"""LDP-Rec is its matrix factorisation with noise on each number."""

FEDFAST = {"hr": 0.72, "ndcg": 0.46, "gender": 0.745, "age": 0.353, "occupation": 0.15}
"""FedFast-BPR of Table 1, which is not run here."""

TABLE3: Mapping[tuple[str, str], tuple[Printed, Printed]] = {
    (_ML, "age"): (
        {"hr": 0.829, "ndcg": 0.535, "leak": 0.387},
        {"hr": 0.768, "ndcg": 0.502, "leak": 0.291},
    ),
    (_DB, "location"): (
        {"hr": 0.721, "ndcg": 0.492, "leak": 0.304},
        {"hr": 0.698, "ndcg": 0.473, "leak": 0.265},
    ),
}
"""Central protection, before and after."""
