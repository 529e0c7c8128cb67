"""Flower's programs as we start them: nobody else on the machine reaches a SuperNode, and nothing
describes itself to strangers."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sottovoce.engines.flower.quiet import flower_environment, superlink_command, supernode_command
from sottovoce.engines.processes import Child, descendants, free_port, wait_for

PAGES = ("/docs", "/openapi.json", "/redoc", "/docs/oauth2-redirect")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def listening(pid):
    """TCP ports at which a process or one of its children listens."""
    found = set()
    for one in (pid, *(child for child, _ in descendants(pid))):
        try:
            inodes = {os.readlink(fd) for fd in Path(f"/proc/{one}/fd").iterdir()}
            lines = [
                line.split()
                for name in ("tcp", "tcp6")
                for line in Path(f"/proc/{one}/net/{name}").read_text().splitlines()[1:]
            ]
        except OSError:
            continue
        found |= {
            int(words[1].rpartition(":")[2], 16)
            for words in lines
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes
        }
    return found


def test_a_supernode_listens_in_a_folder_of_its_own_and_describes_nothing(tmp_path):
    place = tmp_path / "private"
    place.mkdir(mode=0o700)
    (place / "secret").write_bytes(bytes(range(32)))
    # A SuperLink that accepts and says nothing, so that the node stays.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = supernode_command(
            place / "socket",
            *("--insecure", "--superlink", address, "--isolation", "process"),
            *("--superexec-auth-secret-file", place / "secret"),
        )
        log = tmp_path / "log"
        environment = flower_environment(tmp_path)
        with Child("the SuperNode", command, log=log, environment=environment) as child:
            wait_for(child, (place / "socket").exists)
            transport = httpx.HTTPTransport(uds=str(place / "socket"))
            with httpx.Client(transport=transport, base_url="http://node") as client:
                assert [client.get(path).status_code for path in PAGES] == [404] * len(PAGES)
                assert client.post("/v1/runtime/acquire-task").status_code not in (200, 404)
            assert listening(child.process.pid) == set()
            assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_supernode_does_not_listen_where_others_may_enter(tmp_path):
    tmp_path.chmod(0o755)
    command = supernode_command(tmp_path / "socket", "--insecure")
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=120,
        env=flower_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode != 0
    assert "may be entered by others" in done.stderr


def test_a_superlink_describes_nothing(tmp_path):
    port = free_port()
    command = superlink_command(
        *("--insecure", "--host", "127.0.0.1", "--port", str(port)),
        *("--database", tmp_path / "db", "--isolation", "process"),
    )
    environment = flower_environment(tmp_path)
    with (
        Child("the SuperLink", command, log=tmp_path / "log", environment=environment) as child,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):

        def answers():
            try:
                return client.get("/health").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(child, answers)
        assert [client.get(path).status_code for path in PAGES] == [404] * len(PAGES)
        assert listening(child.process.pid) == {port}
        child.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
