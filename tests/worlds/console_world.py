"""A server with its console, 200 devices in this process, and operators with and without a
browser."""

import os
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forked import COMMAND, ForkedProcess
from page_world import Page
from server_world import ITEMS, SEED, Client, Fleet, ServerProcess, terms

from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.quality import Quality
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Offered
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.stores import versions
from sottovoce.stores.acts import account_name
from sottovoce.testing import random_world
from sottovoce.web.process import ask_for_link

GOOD = Quality((60.0, 50.0, 40.0), (40.0, 50.0, 60.0), 1.0)
WORSE = Quality((55.0, 60.0, 40.0), (45.0, 40.0, 60.0), 1.0)


@dataclass
class Crowd(Fleet):
    """Devices that are played here: many, each with its own key, behind the door."""

    users: int = 200

    def __post_init__(self):
        world = random_world(self.users, ITEMS, 20 * self.users, seed=SEED)
        rng, everyone = Streams.from_seed(SEED), np.arange(self.users, dtype=np.int64)
        algorithm = terms().build()
        consent = Consent.uniform(everyone, Choice(share_positives=0.5))
        cohort = Cohort(everyone, world, consent, algorithm.device_init(everyone, rng))
        self.devices = Devices.behind_door(algorithm, cohort, ShareFraction(), Ledger(), rng)
        self.keys = [Ed25519PrivateKey.generate() for _ in range(self.users)]


class ConsoleServer(ServerProcess):
    """`sottovoce serve server`, as an operator starts it."""

    def __init__(self, folder, *options, name="server"):
        self.folder, self.path = folder, folder.path
        self.log = folder.path.parent / f"{name}.log"
        with self.log.open("a") as log:
            words = ("serve", "server", folder.path, "--port", "0", *options)
            self.process = ForkedProcess(COMMAND, *words, output=log)
        self.wait_until_ready()

    @property
    def console(self):
        return self.ready["console"]

    def link(self, role="act", name="anna"):
        return ask_for_link(self.folder, role, name)

    def client(self):
        return Client(self.folder, self.port)

    def come_in(self, role="act", name="anna"):
        """An operator who asks without a browser."""
        return Seat(urlsplit(self.console).port).enter(self.link(role, name))


class Seat(Page):
    """A session of the console."""

    def __init__(self, port):
        self.port, self.host = port, f"127.0.0.1:{port}"
        self.cookie = self.token = ""
        self.keys = 0

    def enter(self, link):
        parts = urlsplit(link)
        opened = self.ask("GET", f"{parts.path}?{parts.query}", cookie="")
        assert opened.status == 303, opened
        self.cookie = opened["set-cookie"][0].partition(";")[0]
        page = self.ask("GET", "/")
        assert page.status == 200, page
        self.token = re.search(rb'name="token" content="([^"]+)"', page.body)[1].decode()
        return self

    def act(self, name, key=None, **body):
        self.keys += 1
        return self.post(f"/api/{name}", {**body, "key": key or f"{self.token[:8]}-{self.keys}"})

    def look(self, path):
        answer = self.get(f"/api/{path}")
        assert answer.status == 200, answer
        return answer.json

    def until(self, wanted, path="state", seconds=600):
        """What is there once that holds."""
        end = time.monotonic() + seconds
        while not wanted(found := self.look(path)):
            assert time.monotonic() < end, found
            time.sleep(0.05)
        return found


def why(answer):
    """The sentence of an answer that gives nothing."""
    return answer.json["error"]["values"]["why"]


def offer(folder, version, quality=GOOD, held_back=""):
    """Keep a version, as an algorithm does that knows how good it is."""
    database = folder.database()
    try:
        with database.writing() as link:
            made = "2026-11-17T12:00:00+00:00"
            versions.keep(link, Offered(version, held_back, quality), made)
    finally:
        database.close()


def signed(name):
    """As the log has somebody who has given this name and opened the link from here."""
    return f"{name} (uid {account_name(os.geteuid())})"


def log_of(folder):
    """What operators did, oldest first."""
    from sottovoce.stores.acts import past_acts

    database = folder.database()
    try:
        with database.reading() as link:
            return past_acts(link, 0, 1000)[1][::-1]
    finally:
        database.close()
