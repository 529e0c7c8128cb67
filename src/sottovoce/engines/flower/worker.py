"""Does a node's work beside its SuperNode, with the program that is installed here.

Flower would fetch the app's code from the SuperLink and run it, a process for each message. Then
whoever runs the SuperLink could read every store. This worker takes the messages and ignores the
code: nothing leaves but through the door of this installation. It also saves the start of a process
for every message.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from sottovoce.errors import SottovoceError

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_HEARTBEAT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_MESSAGE_SECONDS = 30.0
"""How long the message of a task may take to be there."""


class _TaskClient(RuntimeHttpClient):
    """Waits for the message of its task: the SuperNode gives a task out a moment before it stores
    the message. Whoever finds none and gives up leaves the SuperNode waiting for an answer for
    ever: it stays online, and takes nothing more."""

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        end = time.monotonic() + _MESSAGE_SECONDS
        while True:
            found = super().PullMessages(request)
            if found.messages_list or time.monotonic() >= end:
                return found
            time.sleep(0.05)


class Worker:
    """Takes tasks from the SuperNode at `socket` and does them with `app`."""

    def __init__(self, socket: Path, secret: bytes, app: ClientApp) -> None:
        self._socket = socket
        self._app = app
        self._client = client_at(
            socket,
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE}),
        )

    def run(self, stop: threading.Event, poll_seconds: float = 0.1) -> None:
        """Until `stop` is set. A SuperNode that does not answer is asked again."""
        try:
            while not stop.is_set():
                try:
                    # Before it is there, a client would leave a socket of its own behind each time.
                    busy = self._socket.exists() and self.do_one()
                except (httpx.HTTPError, ObjectPullError, RuntimeError):
                    busy = False  # the conductor will ask again
                if not busy:
                    stop.wait(poll_seconds)
        finally:
            self._client.close()

    def do_one(self) -> bool:
        """Do the next task, if there is one."""
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        taken = self._client.AcquireTask(request)
        if not (taken.HasField("task") and taken.token):
            return False
        # Without Flower's retries, which end the whole process where a token is refused.
        client = client_at(
            self._socket,
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(taken.token),
        )
        try:
            self._do(client)
        finally:
            client.close()
        return True

    def _do(self, client: RuntimeHttpClient) -> None:
        done = threading.Event()
        beat = threading.Thread(target=_keep_alive, args=(client, done), daemon=True)
        beat.start()
        try:
            message, context, _, _ = pull_task_input(client)
            try:
                reply = self._app(message, context)
                status, details = SubStatus.COMPLETED, ""
            except SottovoceError as error:
                status, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
                failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details)
                reply = Message(failed, reply_to=message)
            push_message(client, reply, context)
            push_task_output(client, context, status, details)
        finally:
            done.set()
            beat.join()


def client_at(socket: Path, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
    """Talks to a SuperNode that listens at a socket, which Flower's own client cannot."""
    client = _TaskClient("http://supernode", interceptors=interceptors)
    client._client.close()
    client._client = httpx.Client(
        transport=httpx.HTTPTransport(uds=str(socket)), timeout=_ANSWER_SECONDS
    )
    return client


def _keep_alive(client: RuntimeHttpClient, done: threading.Event) -> None:
    """Tells the SuperNode that the task is being worked on."""
    while not done.wait(_HEARTBEAT_SECONDS):
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError:
            continue


def sign_off(address: str, authority: Path, key: Path, node: int) -> bool:
    """Tell the SuperLink that this node is gone. False where it does not know or is not there."""
    private = load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        return False
    try:
        with FleetHttpClient.from_server_address(
            address,
            False,
            authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        ) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    except httpx.HTTPError:
        return False
    return True
