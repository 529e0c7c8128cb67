"""The server as a process: rounds, downloads, refusals, limits, starts and stops."""

import numpy as np
from server_world import Client, Fleet, ServerProcess, new_folder, simulated


def test_three_rounds_give_the_model_of_simulation(tmp_path):
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert client.get("/health").body == b"ok"
        assert client.round()["state"] == "waiting"
        fleet.enrol(folder, client)
        for round in range(3):
            client.wait(round=round, state="open")
            assert fleet.run_round(client) == [204] * 8
        client.wait(round=3, state="finished")
        assert np.array_equal(client.model(3).items, simulated(3))
        print(client.status())
        assert server.stop() == 0
    print(server.log.read_text())
