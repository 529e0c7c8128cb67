"""`bench checked-sum` measures what really opens."""

import numpy as np
import pytest

from sottovoce.errors import WrongSum
from sottovoce.experiment import load_benchmark


def test_a_round_is_measured_only_if_it_is_right(monkeypatch):
    bench = load_benchmark("checked-sum")
    seen = bench.round_of(30)
    assert set(seen) == {"shares", "checks", "sum", "memory", "device"}
    assert all(one > 0 for one in seen.values())
    right = bench.opened_sum
    monkeypatch.setattr(bench, "opened_sum", lambda *how: right(*how) + np.int64(1))
    with pytest.raises(WrongSum, match="not the plain one"):
        bench.round_of(30)


def test_bytes_are_those_that_the_link_sends():
    bench = load_benchmark("checked-sum")
    for form in (bench.LINK.form(3_668, False), bench.LINK.form(500, True)):
        sent = bench.LINK.message_bytes(np.zeros(1, np.int64), 0, form.elements)
        assert bench.bytes_of(form) == sent[0]
