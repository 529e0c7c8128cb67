"""Several server processes on one PostgreSQL take a proxy's batches together."""

import numpy as np
from collector_world import folded, proxied_folder
from server_world import USERS, ServerProcess
from talk import until
from test_collector_service import Proxy, enrol

from sottovoce.stores.keys import ReportKeys


def test_parts_are_spread_over_two_processes_and_one_is_killed(tmp_path, postgres):
    url = postgres.fresh("mixed")
    folder = proxied_folder(tmp_path, rounds=20)
    rounds = []
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url) as two,
        Proxy(folder, one.port) as first,
        Proxy(folder, two.port) as second,
    ):
        enrol(folder, first, USERS, url)
        for number in range(3):
            for client in (first, second):
                client.wait(round=number, state="open")
            assert first.round()["report_key"] == second.round()["report_key"]
            here = {}
            for tier in (0, 1):
                reports, sent = first.batch(tier, 10 * number + tier, parts=4)
                for part in sent:
                    side, other = (first, second) if part.part % 2 else (second, first)
                    assert side.hand(part) == (204, "")
                    if part.part < 3:
                        assert other.hand(part) == (409, "replay")
                here[tier] = reports
            rounds.append(here)
        second.wait(round=3, state="open")
        one.kill()
        here = {}
        for tier in (0, 1):
            here[tier], (part,) = second.batch(tier, 40 + tier)
            assert second.hand(part) == (204, "")
        second.wait(round=4, state="open")
        assert np.array_equal(second.items(4), folded([*rounds, here]))


def test_a_key_goes_for_all_processes_of_a_folder(tmp_path, postgres):
    url = postgres.fresh("rotated")
    folder = proxied_folder(tmp_path, rounds=20)
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url),
        Proxy(folder, one.port) as client,
    ):
        enrol(folder, client, USERS, url)
        client.wait(state="open")
        new = ReportKeys(folder.keys).rotate()
        for number in range(4):
            for tier in (0, 1):
                _, (part,) = client.batch(tier, number)
                assert client.hand(part) == (204, "")
            client.wait(round=number + 1, state="open")
        until(lambda: ReportKeys(folder.keys).all() == [new])
        assert client.round()["report_key"]["id"] == new.id.hex()
