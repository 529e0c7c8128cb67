"""A SuperLink with its executor, as it has to be started, and what an operator asks of it.

Its port stays on loopback: fleet, control and runtime interfaces share it, and the control
interface knows no accounts. Nodes come in through the gateway.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.engines.flower.quiet import flower_environment, superlink_command
from sottovoce.engines.processes import Child, require_port, wait_until_listening
from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.stores.private import (
    UMASK,
    close_to_others,
    private_file,
    private_folder,
    private_log,
    privately,
)

HOST = "127.0.0.1"
CONNECTION = "sottovoce"
_APP = """\
[project]
name = "sottovoce-federation"
version = "{version}"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "sottovoce"

[tool.flwr.app.components]
serverapp = "sottovoce_federation:server"
clientapp = "sottovoce_federation:client"

[tool.flwr.app.config]
{settings}
"""
_MODULE = """\
from sottovoce.engines.flower import client_app, server_app

client = client_app.app
server = server_app.app
"""


@dataclass(frozen=True, slots=True)
class SuperLinkPlace:
    """Where a SuperLink lives: a folder of its own, its port, and its keys (None: plaintext)."""

    work: Path
    port: int
    keys: Path | None

    def __post_init__(self) -> None:
        # Flower's programs run in other folders and refuse paths that are not absolute.
        object.__setattr__(self, "work", self.work.absolute())
        if self.keys is not None:
            object.__setattr__(self, "keys", self.keys.absolute())

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.work / "superlink.log"

    @property
    def environment(self) -> dict[str, str]:
        return flower_environment(self.work / "flwr")

    def prepare(self) -> None:
        """Make the folder and write the connection's settings, which `flwr` reads. Sums of the
        nodes pass through its database, so nobody else may read anything in it."""
        home = private_folder(private_folder(self.work) / "flwr")
        for path in self.work.rglob("*"):  # whatever was there before
            if not path.is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    close_to_others(path)
        lines = [f"[superlink.{CONNECTION}]", f"address = {json.dumps(self.address)}"]
        if self.keys is None:
            lines.append("insecure = true")
        else:
            lines.append(f"root-certificates = {json.dumps(str(self.keys / 'ca.crt'))}")
        private_file(home / "config.toml").write_text("\n".join(lines) + "\n")

    def flwr(self, *words: str | Path, seconds: float = 60.0) -> dict[str, Any]:
        """One `flwr` command, as JSON. Raises with what it said where it failed."""
        try:
            done = subprocess.run(
                ["flwr", *map(str, words), "--format", "json"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                umask=UMASK,
            )
        except subprocess.TimeoutExpired:
            raise ServiceError(f"the SuperLink at {self.address} does not answer") from None
        answer = _json(done.stdout)
        if done.returncode or not answer.get("success", False):
            said = answer.get("error-message") or done.stderr or done.stdout
            raise ServiceError(f"`flwr {words[0]}` failed: {' '.join(str(said).split())[:400]}")
        return answer


class SuperLink:
    """The running processes: the SuperLink and the executor that starts server apps."""

    def __init__(self, place: SuperLinkPlace) -> None:
        self.place = place
        place.prepare()
        require_port(HOST, place.port)
        command: list[str | Path] = [
            *superlink_command("--host", HOST, "--port", str(place.port)),
            *("--database", place.work / "superlink.db"),
            *("--isolation", "process", "--superexec-auth-secret-file", _secret(place)),
            "--disable-runtime-dependency-installation",
        ]
        if place.keys is None:
            command.append("--insecure")
        else:
            command += [
                *("--ssl-ca-certfile", _required(place.keys / "ca.crt")),
                *("--ssl-certfile", _required(place.keys / "server.crt")),
                *("--ssl-keyfile", _required(place.keys / "server.key")),
                "--enable-supernode-auth",
            ]
        environment = place.environment
        log = private_log(place.log)
        self.link = Child("the SuperLink", privately(command), log=log, environment=environment)
        self.executor: Child | None = None
        try:
            wait_until_listening(self.link, HOST, place.port)
            self._start_executor()
        except BaseException:
            self.stop()
            raise

    def _start_executor(self) -> None:
        place = self.place
        trust: list[str | Path] = ["--insecure"]
        if place.keys is not None:
            trust = ["--root-certificates", place.keys / "ca.crt"]
        command: list[str | Path] = [
            *("flower-superexec", "--runtime-api-address", place.address, *trust),
            *("--superexec-auth-secret-file", _secret(place)),
            *("--parent-pid", str(os.getpid())),
        ]
        self.executor = Child(
            "the SuperExec",
            privately(command),
            log=private_log(place.work / "superexec.log"),
            environment=place.environment,
        )

    def __enter__(self) -> SuperLink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def require_alive(self) -> None:
        self.link.require_alive()
        if self.executor is not None:
            self.executor.require_alive()

    def stop(self) -> None:
        """The executor first: it ends the server app with it."""
        if self.executor is not None:
            self.executor.stop()
        self.link.stop()


def register_nodes(place: SuperLinkPlace, public_keys: Sequence[Path]) -> int:
    """Let nodes with these keys in; how many were new."""
    new = 0
    for path in public_keys if place.keys is not None else ():
        try:
            place.flwr("supernode", "register", _required(path.absolute()), CONNECTION)
            new += 1
        except ServiceError as error:
            if "already in use" not in str(error):
                raise
    return new


def count_unknown_nodes(place: SuperLinkPlace) -> int:
    """How often a node whose key is not registered was refused, as the SuperLink's log says."""
    try:
        with place.log.open(errors="replace") as lines:
            return sum("No SuperNode found with the given public key" in line for line in lines)
    except FileNotFoundError:
        return 0


def start_run(place: SuperLinkPlace, settings: Mapping[str, str | float | bool]) -> int:
    """Start a training run with these settings; its number at the SuperLink. The app is made on the
    fly and only imports what is installed."""
    folder = private_folder(place.work / "app")
    rows = "\n".join(f"{name} = {_toml(value)}" for name, value in settings.items())
    # A version of its own for every run: an installed app of the same version is not replaced.
    version = f"1.0.{time.time_ns() // 1_000_000}"
    private_file(folder / "pyproject.toml").write_text(_APP.format(settings=rows, version=version))
    private_file(folder / "sottovoce_federation.py").write_text(_MODULE)
    answer = place.flwr("run", folder, CONNECTION)
    return int(answer["run-id"])


def run_state(place: SuperLinkPlace, run: int) -> str:
    """`finished:completed`, `finished:failed`, `running` and the like, as the SuperLink says it."""
    answer = place.flwr("list", CONNECTION)
    for entry in answer.get("runs", []):
        if int(entry.get("run-id", -1)) == run:
            return str(entry.get("status", "unknown"))
    return "unknown"


def _secret(place: SuperLinkPlace) -> Path:
    """The file with the executor's secret; made here where there are no keys."""
    if place.keys is not None:
        return _required(place.keys / "superexec.secret")
    path = place.work / "superexec.secret"
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
    return path


def _required(path: Path) -> Path:
    if not path.is_file():
        raise KeyTrouble(f"{path} is not there; make keys with `sottovoce keys init {path.parent}`")
    return path


def _toml(value: str | float | bool) -> str:
    if isinstance(value, str) and not value.isprintable():
        raise UsageError(f"a setting of the run cannot hold {value!r}")
    return json.dumps(value)


def _json(text: str) -> dict[str, Any]:
    """The JSON object in a program's output; empty where there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
