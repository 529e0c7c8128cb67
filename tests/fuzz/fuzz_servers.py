"""The server of a federation as a target: with plain updates, UC-FedRec's, masked ones, and with
batches of a proxy; in SQLite and in PostgreSQL."""

import json
import secrets
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from checked_world import AggregatorApp, checked_folders, forged
from collector_world import FACTORS, TIERS, K, parts_of, proxied_terms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fuzz_choices import Choices
from fuzz_http import Request
from fuzz_targets import POST, ServiceTarget, table
from fuzz_watch import Here, Trouble
from proxy_world import Log, challenge_of
from secure_sum_world import LEAST, TOKEN, MaskerApp, SeedKeeper
from server_world import ITEMS, SEED, USERS, enrolment, quick_rules, terms

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.core.shares import P, bits_of, split
from sottovoce.engines.client import Answer
from sottovoce.parties.aggregator import form_of
from sottovoce.parties.places import PlaceRules
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.services.kit.application import Hosting
from sottovoce.services.server.application import ServerApplication, ServerLimits
from sottovoce.services.server.checked_rounds import CheckedSums
from sottovoce.services.server.process import RoundsThread
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.services.server.state import RoundState
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores import server as roster
from sottovoce.stores.aggregator_folder import first_rules
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.database import rounds
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper, init_helper
from sottovoce.stores.keys import RoleTokens, operator_token
from sottovoce.stores.operating import LastContacts
from sottovoce.stores.places import set_place_rules
from sottovoce.stores.server_folder import ShufflerSecrets, create_folder, invite, proxy_token
from sottovoce.wire import frames, signing, zstd
from sottovoce.wire import masked as masked_wire
from sottovoce.wire import reports as report_wire
from sottovoce.wire import shared as shared_wire
from sottovoce.wire.invitations import PlaceRequest, worked
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.shuffled import encode_part
from sottovoce.wire.terms import Terms

RULES = {"deadline_seconds": 2.0, "dormant_after": 1000, "min_fraction": 0.3}
NEWCOMERS = 24
_USUAL = (
    "round opened",
    "round over",
    "round is closing",
    "round is open again",  # bad submissions were left out, and too few are left
    "round takes in what is on its way",
    "round given up",
    "round notice",
    "version published",
    "version held back",
)
"""What a server logs."""
REPORTS, CHECK_IN, ENROL = (POST, "/v1/reports"), (POST, "/v1/checkin"), (POST, "/v1/enrol")
PLACES = PlaceRules(places=1000, per_hour=10**6, per_day=10**6, bits=4)
VISITORS = 2
"""Of devices without an invitation; they come again and again."""
TARGET, BATCHES = (POST, "/v1/operator/target"), (POST, "/v1/batches")


class FullLog(Log):
    warning = Log.info


class App(Here):
    """A server in this thread; its rounds move on in one of their own."""

    def __init__(self, folder, url=None, coordinator=None):
        self.folder, self.log, self.tally = folder, FullLog(), RefusalCounts()
        self._url, self._coordinator = url, coordinator
        self.died = []

    def __enter__(self):
        plan = self.folder.plan
        self.store = self.folder.database(self._url)
        coordinator = self._coordinator or coordinator_of(plan, time.monotonic, self.folder.keys)
        with self.store.writing() as link:
            self.store.take_turn(link)
            coordinator.start(link)
        self.board = RoundState(self.store, plan)
        self.board.refresh()
        self.contacts = LastContacts()
        self.rounds = RoundsThread(self.store, coordinator, self.board, self.log, self.contacts)
        super().__enter__()
        self.rounds.start(lambda: self.died.append("rounds"))
        return self

    def __exit__(self, *_):
        self.rounds.stop()
        super().__exit__()
        self.store.close()

    async def make(self):
        plan = self.folder.plan
        hosting = Hosting(
            RoleTokens(self.folder.keys), self.tally, ServerLimits(guess_seconds=0.0),
            failed=lambda error: self.log.error("not stored", detail=str(error)),
            died=lambda: self.died.append("writer"),
        )  # fmt: skip
        proxy = ShufflerSecrets.of(self.folder.keys) if plan.proxied else None
        return ServerApplication(
            hosting, plan, self.folder.catalogue(), self.store, self.board,
            moved=self.rounds.wake, proxy=proxy, contacts=self.contacts,
        )  # fmt: skip


class ServerTarget(ServiceTarget):
    """Devices that have enrolled, some who have not yet, and rounds that move on."""

    cohort_size = "all"

    def terms(self, path, stack):
        return terms()

    def place(self, path, stack):
        """The URL of the database; none for the folder's own."""
        return None

    def coordinator(self, plan):
        return None

    def opened(self, path, stack):
        self.federation = self.terms(path, stack)
        rules = quick_rules(**RULES, min_devices=USERS)
        catalogue = [(f"v{n}", f"Venue {n}") for n in range(ITEMS)]
        folder = create_folder(
            path / "server", self.federation, catalogue, cohort_size=self.cohort_size,
            rounds=1_000_000, root_key=Streams.from_seed(SEED).key, rules=rules,
        )  # fmt: skip
        url = self.place(path, stack)
        store = folder.database(url)
        try:
            self.invitations = invite(folder, store, "https://127.0.0.1:1", count=USERS + NEWCOMERS)
            with store.writing() as link:
                set_place_rules(link, PLACES)
        finally:
            store.close()
        self.app = stack.enter_context(App(folder, url, self.coordinator(folder.plan)))
        self.operator = operator_token(folder.keys)
        self.keys, self.pending, self.enrolled = {}, {}, set()
        self.visitors = [Ed25519PrivateKey.generate() for _ in range(VISITORS)]
        self.makers |= {
            ENROL: self.enrolment, CHECK_IN: self.check_in, REPORTS: self.report,
            TARGET: lambda c: c.document({"rounds": 1_000_000 + c.below(2)}),
        }  # fmt: skip
        for _ in range(USERS):
            answer = self.send_good(ENROL)
            if answer.status != 200:
                raise Trouble("set-up", f"a device cannot enrol: {answer}")
        self._wait(lambda: self.app.board.now.position.state == "open")
        self._bodies, self._before = {}, Request(*REPORTS)
        return self.app

    def token(self, address):
        return self.operator if "operator" in address[1] or address[1] == "/metrics" else ""

    def number(self, address):
        now = self.position
        return f"{now.round}/{now.attempt}" if "rounds" in address[1] else str(now.round)

    @property
    def position(self):
        now = self.app.board.now.position
        return now if now.round >= 0 else replace(now, round=0)

    # --- what devices send ------------------------------------------------------------------------

    def enrolment(self, choices):
        """Of the next who is invited, while there are some, or of one who has enrolled."""
        if choices.chance(4):
            return self.visit(choices)
        new = len(self.enrolled)
        if new >= USERS and (new >= len(self.invitations) or not choices.chance(6)):
            new = choices.pick(sorted(self.enrolled))
        invitation = self.invitations[new]
        key = self.pending.setdefault(invitation.number, Ed25519PrivateKey.generate())
        body = json.loads(enrolment(invitation, key))
        if choices.chance(8):  # a key with which everybody can sign, or somebody else's
            other = choices.pick((bytes(32), b"\1" + bytes(31), b"\xff" * 32, choices.bytes(32)))
            body["public_key"] = other.hex()
        return choices.document(body)

    def visit(self, choices):
        """Of a device that asks for a place."""
        self.visiting, name = choices.pick(self.visitors), self.federation.federation
        challenge = challenge_of(self.app.ask)
        public = self.visiting.public_key().public_bytes_raw()
        work = worked(name, challenge, public, PLACES.bits + choices.below(2) - 1)
        if choices.chance(6):
            challenge = choices.bytes(len(challenge))
        made = PlaceRequest.made(self.visiting, name, challenge, work)
        return choices.document(json.loads(made.to_bytes()))

    def heard(self, answer):
        if answer.status == 200 and answer.path == ENROL[1]:
            number = table(answer)["number"]
            invited = number < len(self.invitations)
            if invited:
                self.enrolled.add(number)
            self.keys[number] = self.pending[number] if invited else self.visiting
        elif answer.status == 204 and answer.path == REPORTS[1]:
            self.acknowledged += 1

    def check_in(self, choices):
        # Most of them are from the past: each good one is a transaction.
        round = None if choices.below(4) == 0 else choices.number(self.position.round)
        return self.sealed(choices, choices.perhaps_damaged(b"", 6), "check-in", round=round)

    def report(self, choices, number=None):
        now = self.position
        number = choices.pick(sorted(self.keys)) if number is None else number
        if choices.chance(16):
            return replace(self._before, headers=list(self._before.headers))  # once more
        round, attempt = choices.other(now.round), choices.other(now.attempt)
        body = self.body(choices, number, round, attempt)
        content = self.sealed(choices, body, "report", number, round, attempt)
        self._before = Request(*REPORTS, content)
        if choices.chance(2):
            told = choices.perhaps_damaged(signing.digest_of(content).encode(), 3)
            self._before.headers.append((signing.DIGEST_HEADER.encode(), told))
        if choices.chance(4):  # so that it is known what begins before all of it is here
            cut = choices.below(len(content) + 1)
            self._before.pieces = [content[:cut], content[cut:]]
        return self._before

    def sealed(self, choices, body, purpose, number=None, round=None, attempt=None):
        """Signed by a device, nearly always by the right one for the right thing."""
        now = self.position
        number = choices.pick(sorted(self.keys)) if number is None else number
        key = self.keys[choices.pick(sorted(self.keys)) if choices.chance(24) else number]
        name = self.federation.federation
        content = signing.seal(
            key,
            "elsewhere" if choices.chance(32) else name,
            choices.pick(("report", "check-in")) if choices.chance(24) else purpose,
            number=choices.other(number, one_in=24),
            round=choices.other(now.round) if round is None else round,
            attempt=choices.other(now.attempt) if attempt is None else attempt,
            nonce=secrets.token_bytes(16),
            body=body,
        )
        content = choices.refielded(frames.ENVELOPE.head, content, one_in=24)
        return choices.perhaps_damaged(content, 16)

    def body(self, choices, number, round, attempt):
        """A device's update, or one that is wrong somewhere behind its signature."""
        width, rows = self.federation.width, self.federation.n_rows
        if not choices.chance(4):
            body = self._bodies.get(round)
            if body is None:
                body = self._update(Choices(b""), round, width, [3, rows - 1])
                self._bodies = {round: body}
        else:
            items = [choices.below(rows) for _ in range(choices.below(9))]
            if not choices.chance(6):
                items = sorted(set(items))
            if choices.chance(12):
                items = list(range(rows))
            body = self._update(choices, round, max(1, choices.other(width, 4)), items)
        body = choices.refielded(frames.REPORT.head, body)
        if choices.chance(12):
            body = self._repacked(choices, body)
        return choices.perhaps_damaged(body, 10)

    def _update(self, choices, round, width, items):
        values = np.full((len(items), width), 1000 - choices.below(2000), np.int64)
        if choices.chance(3):
            values[choices.below(max(1, len(items))) :] = choices.pick(
                (0, -1, 2**31, -(2**31), 2**63 - 1, -(2**63), int(GRID) * 127, int(GRID) * 128)
            )
        if self.federation.counts_senders and not choices.chance(6):
            values[:, -1] = int(GRID)
        sender = np.zeros(len(items), np.int64)
        return report_wire.encode_report(
            DeviceReports(round, sender, np.array(items, np.int32), values)
        )

    def _repacked(self, choices, body):
        """Compressed, whatever is in it, and perhaps longer than it says."""
        size = frames.REPORT.head.size
        content = choices.perhaps_damaged(body[size:], 2) * choices.pick((1, 2, 500))
        head = bytearray(body[:size])
        if len(head) == size:
            head[5] = 1
        return bytes(head) + zstd.compress(content or b"\0")

    # --- what must hold ---------------------------------------------------------------------------

    def check(self):
        if self.app.died:
            raise Trouble("died", f"a thread of the server has ended: {self.app.died}")
        with self.app.store.reading() as link:
            stored = int(link.execute(sa.select(sa.func.sum(rounds.c.reported))).scalar() or 0)
            devices = roster.count_keys(link)
        if REPORTS in self.makers and stored != self.acknowledged:
            raise Trouble(
                "counts", f"{self.acknowledged} reports were acknowledged, {stored} are counted"
            )
        if devices != len(self.keys):
            raise Trouble("counts", f"{len(self.keys)} have enrolled, {devices} are stored")

    def log(self):
        # What devices mask cannot be seen before it is summed: such rounds are given up, and said
        # to be.
        return [f"{what}: {facts}" for what, facts in self.app.log.lines if what not in _USUAL]

    def honest(self):
        """Of devices that all report, a round is folded."""
        before = self.position.round
        self._wait(lambda: self.position.round > before, self._report_all)

    def _report_all(self):
        for number in sorted(self.keys):
            self._call(REPORTS, self.report(Choices(b""), number))

    def _wait(self, until, meanwhile=lambda: None, seconds=60):
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                raise Trouble("stands still", f"{self.name} does not move on: {self.position}")
            meanwhile()
            time.sleep(0.02)


class Direct(ServerTarget):
    name = "server"


class UC(ServerTarget):
    """UC-FedRec, whose rows count their sender."""

    name = "server-uc"

    def terms(self, path, stack):
        return Terms.of("little-town", ITEMS, UCConfig("mf", embedding_size=8), 0, Clipped())


class Postgres(ServerTarget):
    """Shared with other processes, and with devices that are asked by name."""

    name = "server-postgres"
    cohort_size = USERS

    def place(self, path, stack):
        from postgres_world import Postgres

        # Not below a folder into which only its owner may look.
        folder = Path(tempfile.mkdtemp(prefix="sottovoce-fuzz-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = Postgres(folder)
        stack.callback(server.stop)
        return server.fresh("fuzz")


def wide_masker(path):
    """The proxy of a model so large that devices say beforehand what they send."""
    key = init_helper(path)
    link = SecureSum(min_devices=LEAST, url="https://127.0.0.1:1", key=key)
    settings = FPLConfig(embedding_size=16, triples=10)
    federation = Terms.of("little-town", ITEMS, settings, 10, ShareFraction(), link)
    return create_helper(path, HelperIntroduction(federation, TOKEN))


class Summed(ServerTarget):
    """Masked updates, of which the server sees nothing but their size and their sealed seeds."""

    name = "server-sum"

    def terms(self, path, stack):
        self.masker = stack.enter_context(MaskerApp(wide_masker(path / "masker")))
        self.keepers, self._records = {}, {}
        return self.masker.folder.introduction.terms

    def coordinator(self, plan):
        def ask(question, path):
            got = self.masker.sums(question, path=path)
            return Answer(got.status, "", got.body)

        return Coordinator(plan, time.monotonic, MaskedSums(plan, ask))

    def keeper(self, number):
        if number not in self.keepers:
            self.keepers[number] = SeedKeeper(self.keys[number])
        keeper = self.keepers[number]
        version = self.app.board.now.versions.get(self.position.round)
        if version is not None:
            keeper.model = masked_wire.model_name(version.view.items)
        return keeper

    def report(self, choices, number=None):
        """The first devices are honest: what others mask stops sums, and has them shut out."""
        if number is None:
            strange = [number for number in sorted(self.keys) if number >= USERS]
            number = choices.pick(strange) if strange else 0
            choices = choices if strange else Choices(b"")
        return super().report(choices, number)

    def body(self, choices, number, round, attempt):
        federation, key = self.federation, (number, round, attempt)
        keeper = self.keeper(number)
        record = self._records.get((*key, keeper.model))
        if record is None:
            if len(self._records) > 1000:
                self._records, keeper.seeds = {}, {}
            record = keeper.record(federation, round, attempt)
            self._records[*key, keeper.model] = record
        if choices.chance(5):
            record = self._other_record(choices, keeper, record, round, attempt)
        count = federation.n_rows * federation.width
        if choices.chance(12):
            count = choices.pick((count + 1, count - 1, 0, 1, 2 * count))
        body = masked_wire.encode_masked(
            federation,
            masked(np.zeros(count, np.int64), keeper.seed(round, attempt), federation.bits),
            record,
            choices.other(round, one_in=24),
            choices.other(attempt, one_in=24),
        )
        body = choices.refielded(frames.MASKED.head, body, one_in=12)
        return choices.perhaps_damaged(body, 12)

    def _other_record(self, choices, keeper, record, round, attempt):
        """Behind a right signature of the envelope and a right model's name."""
        bound = masked_wire.binding(self.federation, round, attempt, keeper.model)
        match choices.below(6):
            case 0:
                return keeper.record(self.federation, round ^ 1, attempt)
            case 1:
                return keeper.signed(replace(record, sealed=choices.bytes(80)), bound)
            case 2:
                return replace(record, signature=choices.bytes(64))
            case 3:
                return replace(record, device=choices.pick((bytes(32), b"\xff" * 32)))
            case 4:
                other = replace(self.federation, federation="elsewhere")
                return keeper.record(other, round, attempt)
            case _:
                return keeper.record(self.federation, round, attempt, seed=choices.bytes(32))


class Checked(ServerTarget):
    """Contributions in shares, of which the server has two of three."""

    name = "server-checked"

    def terms(self, path, stack):
        federation, folders = checked_folders(path, ITEMS, server="server/keys")
        self.aggregators = {n: stack.enter_context(AggregatorApp(f)) for n, f in folders.items()}
        self.keys_at, self._made = path / "server" / "keys", {}
        return federation

    def coordinator(self, plan):
        asks = {
            n: lambda question, path, app=app: app.post(path, question)
            for n, app in self.aggregators.items()
        }
        rules = first_rules(plan.terms, self.keys_at)
        return Coordinator(plan, time.monotonic, CheckedSums(plan, *rules, asks))

    def report(self, choices, number=None):
        """The first devices are honest, so that there is always a sum."""
        if number is None:
            strange = [number for number in sorted(self.keys) if number >= USERS]
            number = choices.pick(strange) if strange else 0
            choices = choices if strange else Choices(b"")
        return super().report(choices, number)

    def body(self, choices, number, round, attempt):
        version = self.app.board.now.versions.get(self.position.round)
        if version is None:
            return b""
        federation, view = self.federation, version.view
        numbers = federation.build().report_shape(view)[0]
        name = masked_wire.model_name(view.items)
        about = shared_wire.About.of(federation, round, attempt, name, numbers)
        form = form_of(federation.build(), federation.link, view.round, numbers)
        if choices.chance(24):
            about = about._replace(numbers=numbers + 1)
        key = (number, about)
        if key not in self._made or choices.chance(3):
            bits = bits_of(form, np.zeros((1, form.places), int))[0]
            if choices.chance(3):
                bits[choices.below(len(bits))] = choices.pick((2, P - 1, (P + 1) // 2))
            secret = tuple(secrets.token_bytes(32) for _ in range(3))
            travelled = split(bits, secret).astype("<u4").tobytes()
            other = {}
            if choices.chance(4):
                other["sealed"] = {choices.below(3): choices.bytes(64)}
            if choices.chance(6):
                other["committed"] = {choices.below(3): choices.bytes(32)}
            bound = about.bound(federation)
            record = forged(secret, travelled, self.keys[number], federation.link, bound, **other)
            self._made = self._made if len(self._made) < 500 else {}
            self._made[key] = travelled, record
        travelled, record = self._made[key]
        if choices.chance(12):
            travelled = choices.damaged(travelled)
        if choices.chance(12):
            record = replace(record, device=choices.pick((bytes(32), b"\xff" * 32)))
        body = shared_wire.encode_shared(travelled, record, round, attempt)
        body = choices.refielded(frames.SHARED.head, body, one_in=12)
        return choices.perhaps_damaged(body, 12)


class Proxied(ServerTarget):
    """Batches that a proxy hands over."""

    name = "server-proxied"

    def terms(self, path, stack):
        return proxied_terms()

    def opened(self, path, stack):
        app = super().opened(path, stack)
        self.proxy = proxy_token(app.folder.keys)
        del self.makers[REPORTS]
        self.makers[BATCHES] = self.part
        self.expected |= {REPORTS: (400,), CHECK_IN: (400,)}
        self._sealed = {}
        return app

    def token(self, address):
        return self.proxy if address == BATCHES else super().token(address)

    def part(self, choices, tier=None):
        now = self.position
        tier = choices.below(len(TIERS)) if tier is None else tier
        if not now.report_key:
            return b""
        where = now.round, tier, now.report_key
        if where not in self._sealed:
            reports = np.arange(3 * K, dtype=np.uint32) % (2 * ITEMS * FACTORS)
            (part,) = parts_of(reports, now.report_key, round=now.round, tier=tier)
            self._sealed = {where: part}
        part = replace(self._sealed[where], mark=secrets.token_bytes(16))
        if choices.chance(4):
            body = choices.perhaps_damaged(part.body, 2)
            part = replace(part, parts=1 + choices.below(4), part=choices.below(4), body=body)
        content = choices.refielded(frames.BATCH_PART.head, encode_part(part), one_in=3)
        return choices.perhaps_damaged(content, 10)

    def heard(self, answer):
        if answer.path == ENROL[1]:
            super().heard(answer)

    def _report_all(self):
        for tier in range(len(TIERS)):
            request = self.good(BATCHES)
            request.body = self.part(Choices(b""), tier)
            self._call(BATCHES, request)


TARGETS = (Direct, UC, Postgres, Summed, Checked, Proxied)
