"""What a run's report says first: what bounds it, or that it is as printed."""

import math

import pyarrow as pa
import pytest

from sottovoce.experiment import Experiment
from sottovoce.privacy.central import price
from sottovoce.runs.standing import PRINTED, origin, standing, titled

SUM = {"name": "secure-sum", "min_devices": 20}
FILTERS = {"filters": "two-layer", "target": "uniform"}


def ledger(*costs, reports=0, each=0.0, batch=0):
    """Of user 0: a release at each of these costs."""
    n = len(costs)
    return pa.table(
        {
            "user": [0] * n,
            "round": list(range(n)),
            "epsilon": [*map(float, costs)],
            "reports": [reports] * n,
            "report_epsilon": [each] * n,
            "batch": [batch] * n,
        }
    )


def stands(rows, **sections):
    return standing(Experiment.from_table({"name": "small", **sections}), rows)


@pytest.mark.parametrize(
    ("sections", "printed", "kind"),
    [
        ({"release": {"per": "draw"}}, True, "open"),
        ({"release": {"per": "item"}}, False, "open"),
        ({"release": {"per": "draw"}, "link": SUM}, False, "sums"),
        ({"algorithm": {"name": "fcf"}}, True, "open"),
        ({"algorithm": {"name": "fcf"}, "link": SUM}, False, "sums"),
        ({"algorithm": {"name": "fcf", "by_density": True}}, False, "open"),
        ({"algorithm": {"server_rate": 0.1}, "release": {"per": "draw"}}, False, "open"),
        ({"algorithm": {"name": "uc"}}, False, "open"),
        ({"algorithm": {"name": "uc", **FILTERS}}, True, "open"),
        ({"algorithm": {"name": "drift"}}, True, "open"),
        ({"algorithm": {"name": "drift", "release": "aggregated"}}, False, "sums"),
    ],
)
def test_what_has_no_epsilon(sections, printed, kind):
    found = stands(ledger(math.inf, math.inf), **sections)
    assert (found.printed, found.kind) == (printed, kind)
    assert math.isinf(found.epsilon)
    assert (PRINTED in found.label) == printed
    assert found.short.startswith("as printed, " if printed else "ours, ")
    assert found.lead().kind == kind
    assert "No ε" in " ".join(found.words)


def test_a_contribution_is_bounded_by_each_users_own_epsilon():
    found = stands(ledger(0.5, 1.0), algorithm={"name": "gram"}, release={"epsilon": 4.0})
    assert (found.printed, found.kind, found.epsilon) == (False, "bounded", 1.5)
    assert found.label == "bounded: ε is 1.5 at most"
    assert "the server and the helper work apart" in " ".join(found.words)
    checked = stands(ledger(1), algorithm={"name": "gram"}, link={"name": "checked-sum"})
    assert "no two of the three aggregators" in " ".join(checked.words)


def test_noise_on_sums_bounds_all_rounds_of_a_user_together():
    link = SUM | {"clip": 1.0, "noise": 5.0}
    found = stands(ledger(math.inf, math.inf, math.inf), link=link)
    assert (found.kind, found.epsilon) == ("bounded", price(5.0, 3))
    little = stands(ledger(math.inf, math.inf), link=link | {"noise": 0.2})
    assert little.epsilon > 10
    assert "protects nothing" in little.label
    assert (little.lead().kind, little.short) == ("weak", "ours, ε too large")


def test_reports_have_noise_of_their_own_also_as_printed():
    rows = ledger(5.0, 5.0, reports=10, each=0.5, batch=500)
    algorithm = {"name": "fmf", "variant": "rotated"}
    found = stands(rows, algorithm=algorithm)
    assert found.kind == "bounded"
    assert 0 < found.epsilon < 10
    assert "otherwise ε is 10" in " ".join(found.words)
    published = stands(rows, algorithm=algorithm | {"variant": "published"})
    assert published.printed
    assert published.label.startswith(f"{PRINTED}; bounded")
    assert published.lead().kind == "open"


def test_where_nothing_has_left_nothing_was_spent():
    assert stands(ledger(), release={"per": "item"}).epsilon == 0


def test_a_system_of_somebody_else_is_neither_printed_nor_ours(monkeypatch):
    experiment = Experiment.from_table({"name": "small", "algorithm": {"name": "gram"}})
    assert (origin(experiment), titled(experiment)) == ("ours", "gram (ours)")
    monkeypatch.setattr(type(experiment.algorithm), "__module__", "theirs")
    assert (origin(experiment), titled(experiment)) == ("", "gram")
    assert standing(experiment, ledger(1)).short == "bounded by ε"
