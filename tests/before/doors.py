"""All that the tests of this folder import of the program: where something moves, this is the file
to change."""

import contextlib
import dataclasses
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from sottovoce.cli import call
from sottovoce.stores.conductor import Checkpoint
from sottovoce.stores.device import CohortStore
from sottovoce.stores.shuffler_folder import open_shuffler_folder
from sottovoce.stores.user import UserStore


def ask(*arguments, code=0):
    """What a command answers."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        got = call([*map(str, arguments), "--json"])
    assert got == code, (arguments, got, out.getvalue())
    return json.loads(out.getvalue())


def exported(store):
    """All that a device's store holds about its users."""
    file = Path(f"{store}.exported")
    ask("device", "export", store, file)
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    finally:
        file.unlink()


def user_ledger(store):
    """What has left a user's store: a row for every request."""
    with UserStore.open(store, readonly=True) as opened:
        rows = [
            dataclasses.asdict(release) for user in opened.users for release in opened.ledger(user)
        ]
    return [row | {"epsilon": repr(row["epsilon"])} for row in rows]


def open_device(store):
    """For writing, as its agent does."""
    CohortStore.open(store, agent=True).close()


def open_proxy(folder):
    """What a shuffling proxy holds, as its service does."""
    open_shuffler_folder(folder).store().close()


def open_checkpoint(folder):
    """What a server's part in Flower remembers, as its conductor does."""
    with Checkpoint(folder):
        pass


def digests(run):
    """What a finished run came to: its arrays and its ledger, bit for bit."""
    found = {}
    for name in ("model.npz", "devices.npz"):
        with np.load(run / name) as arrays:
            for array in arrays.files:
                content = arrays[array]
                facts = f"{content.dtype} {content.shape}".encode()
                found[f"{name}:{array}"] = hashlib.sha256(facts + content.tobytes()).hexdigest()
    rows = pq.read_table(run / "ledger.parquet").to_pylist()
    found["ledger"] = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    return found
