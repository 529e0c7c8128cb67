"""A node that stays deaf would make every round wait for it: what Flower's parts leave undone."""

import http.server
import threading
import time

import pytest
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import ActivateNodeResponse, RegisterNodeFleetResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.runtime import RuntimeHttpClient

from sottovoce.engines.flower import worker
from sottovoce.engines.flower.supernode import Connection, _serve_once
from sottovoce.errors import Unreachable


def test_a_message_that_comes_after_its_task_is_waited_for(monkeypatch):
    """Flower's SuperNode gives out a task before it has stored the message, and waits for the
    answer for ever where the worker has found none."""
    late = [0, 0, 1]

    def pull(self, request):
        return PullAppMessagesResponse(messages_list=[Message()] * late.pop(0))

    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", pull)
    client = worker._TaskClient.from_server_address("127.0.0.1:9", True, None, [])
    assert len(client.PullMessages(PullAppMessagesRequest()).messages_list) == 1
    monkeypatch.setattr(worker, "_MESSAGE_SECONDS", 0.2)
    late += [0] * 100
    assert not client.PullMessages(PullAppMessagesRequest()).messages_list, "not for ever"
    client.close()


ANSWERS = {
    "register-node": RegisterNodeFleetResponse(node_id=5),
    "activate-node": ActivateNodeResponse(node_id=5),
    "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
}


class Link(http.server.BaseHTTPRequestHandler):
    """A SuperLink that lets a node in and then answers with an error."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        found = ANSWERS.get(self.path.rpartition("/")[2])
        body = b"" if found is None else found.SerializeToString()
        self.send_response(500 if found is None else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_supernode_that_has_lost_its_connection_ends_and_is_started_again(tmp_path):
    """By itself, Flower's would say so, sign off, and stay: a node that nobody reaches."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Link) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = Connection(f"127.0.0.1:{server.server_port}", None, None)
        stop, told, node = threading.Event(), [], []
        timer = threading.Timer(100, stop.set)
        timer.start()
        began = time.monotonic()
        told = _serve_once(tmp_path, connection, ClientApp(), node.append, stop)
        timer.cancel()
        server.shutdown()
    assert node == [b"5"], "it was let in"
    assert isinstance(told, Unreachable), f"still there after {time.monotonic() - began:.0f} s"
