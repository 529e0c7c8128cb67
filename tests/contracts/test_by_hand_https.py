"""One device in its owner's hand among devices that send by themselves: real processes, TLS. What
she was shown is in the sum that is opened, and the model is the simulation's, bit for bit."""

import time

import numpy as np
import pytest
from test_gram_https import fold, parties

from sottovoce.services.trial import HttpsTrial
from sottovoce.web.centre import Centre

pytestmark = pytest.mark.usefixtures("forked_children")


class OneByHand(HttpsTrial):
    """Everybody but the first device has an agent."""

    url = ""

    def _start_agents(self, url):
        OneByHand.url = url
        stores = [self.store(row) for row in range(1, 12)]
        self.agents.append(self._start("agents", "serve", "device", *stores, "--server", url))


def wait_for(look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_what_was_shown_is_in_the_sum_that_is_opened(tmp_path):
    algorithm = {"name": "gram", "popularity_share": 0.3, "batches": 1, "least_head": 12}
    made, world = parties(
        algorithm=algorithm, service={"deadline_seconds": 60.0, "min_devices": 12}
    )
    trial = OneByHand(world, tmp_path / "services", 1)
    with trial.running():
        trial.operator().raise_target(2)
        path = trial.store(0)
        with Centre([path], server=OneByHand.url) as centre:
            first = centre.preview("s0")
            assert [m["what"]["key"] for m in first["messages"]] == ["preview.enrolment"]
            assert centre.send("s0", first["nonce"])["state"] == "arrived"
            for round in (0, 1):

                def ready(round=round):
                    shown = centre.preview("s0")
                    return shown if shown["ready"] and shown["round"] == round else None

                shown = wait_for(ready)
                assert shown["total"] > 0
                assert centre.send("s0", shown["nonce"])["state"] == "arrived"
                newest = centre.ledger("s0", 0, 1)["rows"][0]
                assert newest["sha256"] == shown["messages"][0]["sha256"]
        wait_for(lambda: trial.round() == 2)
        items = trial.operator().model(2, trial.world.terms).items
    fold(made, range(12))
    fold(made, range(12))
    assert np.array_equal(items, made.server.items), "to the last bit"
