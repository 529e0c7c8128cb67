"""A PostgreSQL that a test starts by itself."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from sottovoce.errors import ServiceError
from sottovoce.stores.database import Database


def binaries():
    """Where PostgreSQL's programs are."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("postgres")
    places += [Path(found).parent] if found else []
    for place in reversed(places):
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    sentence = "PostgreSQL is not installed here (Debian: apt install postgresql)"
    if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
        pytest.fail(sentence)
    pytest.skip(sentence)


def unprivileged(folder):
    """Options that run a program as somebody who is not root: PostgreSQL refuses to be."""
    if os.geteuid() != 0:
        return {}
    names = {user.pw_name for user in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Postgres:
    def __init__(self, folder):
        self.bin, self.folder = binaries(), folder
        self.options = {**unprivileged(folder), "cwd": folder}
        with (folder / "initdb.log").open("w") as log:
            subprocess.run(
                [self.bin / "initdb", "-D", folder / "data", "-U", "town", "-A", "trust", "-N"],
                check=True,
                stdout=log,
                stderr=log,
                **self.options,
            )
        self.start()

    def start(self):
        with (self.folder / "postgres.log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder,
                    "-c", "listen_addresses=", "-c", "fsync=on", "-c", "max_connections=60",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.options,
            )  # fmt: skip
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with contextlib.suppress(ServiceError):
                database = Database.at(self.url("postgres"))
                with database.reading():
                    pass
                database.close()
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "postgres.log").read_text())

    def url(self, name):
        return f"postgresql://town@/{name}?host={self.folder}"

    def fresh(self, name):
        """The URL of an empty database."""
        database = Database.at(self.url("postgres"))
        engine = database._engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as link:
            link.exec_driver_sql(f"CREATE DATABASE {name}")
        database.close()
        return self.url(name)

    def stop(self):
        self.process.send_signal(signal.SIGINT)  # "fast": clients are cut off
        self.process.wait(timeout=120)


@pytest.fixture(scope="module")
def postgres():
    # Not below pytest's folder, into which only its owner may look.
    folder = Path(tempfile.mkdtemp(prefix="sottovoce-pg-"))
    try:
        server = Postgres(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
