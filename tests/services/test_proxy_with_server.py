"""The real proxy in front of the real server, both as processes over TLS, both killed: the model is
the one that the same reports give in memory."""

import time

import numpy as np
import pytest
from chain_world import TIER_OF, USERS, enrol, submit
from collector_world import FACTORS, ITEMS, K, folded, proxied_folder, proxied_terms, some_reports
from proxy_world import Link, ProxyProcess
from server_world import Client, ServerProcess
from talk import until
from test_proxy_service import count

from sottovoce.core.links import Proxied
from sottovoce.engines.processes import free_port
from sottovoce.stores.keys import authority_pem, init_keys
from sottovoce.stores.server_folder import introduction
from sottovoce.stores.shuffler_folder import create_shuffler_folder
from sottovoce.wire.sealing import key_id, seal_reports
from sottovoce.wire.shuffled import encode_submission, terms_name
from sottovoce.wire.versions import decode_model

ROUNDS = 3


@pytest.mark.slow
def test_rounds_through_both_while_both_are_killed(tmp_path):
    port = free_port()
    init_keys(tmp_path / "proxy" / "keys")
    link = Proxied(f"https://127.0.0.1:{port}", authority_pem(tmp_path / "proxy" / "keys"))
    terms = proxied_terms(link=link)
    folder = proxied_folder(tmp_path / "server", rounds=ROUNDS, terms=terms)
    server_port = free_port()
    introduced = introduction(folder, f"https://127.0.0.1:{server_port}")
    proxy_folder = create_shuffler_folder(tmp_path / "proxy", introduced)
    options = {"port": port, "goal": {"0": 3, "1": 5}, "hold_seconds": 60.0}
    sent = []
    server = ServerProcess(folder.path, port=server_port)
    proxy = ProxyProcess(proxy_folder, **options)
    try:
        with Client(folder, server_port) as client, Link(proxy_folder, port) as link:
            accounts = [enrol(folder, client, link, number) for number in range(USERS)]
            for round in range(ROUNDS):
                now = client.wait(round=round, state="open")
                public = bytes.fromhex(now["report_key"]["public"])
                reports = some_reports(USERS, round).reshape(USERS, K)
                for number, (account, key) in enumerate(accounts):
                    tier = TIER_OF[number]
                    sealed = seal_reports(
                        reports[number], public, federation="little-town", round=round, tier=tier
                    )
                    payload = encode_submission(
                        account, key, round, tier, key_id(public), sealed, terms=terms_name(terms)
                    )
                    assert submit(link, payload).status == 204
                    if (round, number) == (1, 4):
                        server.kill()
                        client.close()
                    if (round, number) == (2, 3):
                        proxy.kill()
                        link.close()
                        proxy = ProxyProcess(proxy_folder, **options)
                if round == 1:
                    time.sleep(0.5)  # the proxy holds what it has
                    server = ServerProcess(folder.path, port=server_port)
                first, second = reports[:3].ravel(), reports[3:].ravel()
                sent.append({0: first, 1: second})
            client.wait(round=ROUNDS, state="finished", timeout=60)
            got = client.get(f"/v1/model/{ROUNDS}")
            model = decode_model(got.body, n_items=ITEMS, width=FACTORS)
            assert np.array_equal(model.items, folded(sent))
            refused = client.status()["refused"]
            assert not {"undecryptable", "out_of_range", "duplicate", "too_few"} & set(refused)
        until(lambda: count(proxy_folder, "reports") == 0)
    finally:
        server.kill()
        proxy.kill()
