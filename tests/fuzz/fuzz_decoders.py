"""Whatever reads a message as a target: only errors of our own may come out of it."""

import importlib
import inspect
import json
import pkgutil
from dataclasses import replace

import numpy as np
from collector_world import new_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fuzz_choices import Choices
from fuzz_watch import Trouble, escaped
from orchestrator_world import application
from secure_sum_world import MODEL, SeedKeeper, summed_terms
from server_world import terms
from wire_vectors import HERE, TRAVELLED, checked_terms, record_of_shares

from sottovoce import wire
from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.messages import (
    BitReports,
    CheckParts,
    DeviceReports,
    MaskSum,
    ModelView,
    SummedReports,
    SumPart,
)
from sottovoce.errors import MessageError, SottovoceError
from sottovoce.stores.server_folder import parse_introduction
from sottovoce.wire import cohort_rounds, frames, sealing, signing, silo_rounds, versions
from sottovoce.wire import masked as masked_wire
from sottovoce.wire import owners as owner_wire
from sottovoce.wire import reports as report_wire
from sottovoce.wire import shared as shared_wire
from sottovoce.wire import shuffled as proxy_wire
from sottovoce.wire import users as orchestrator_wire
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.directory import Directory
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.interactions import SEALED_BYTES, Identity
from sottovoce.wire.invitations import Invitation, PlaceRequest
from sottovoce.wire.passes import Issuer, Pass
from sottovoce.wire.silo_files import Admission, FederationFile, UserInvitation
from sottovoce.wire.terms import Terms

MODULES = (
    *(f"sottovoce.wire.{found.name}" for found in pkgutil.iter_modules(wire.__path__)),
    "sottovoce.stores.server_folder",
)
_READERS = ("decode", "from_table", "from_content", "parse_", "open_", "read_", "read")
ELSEWHERE = {
    "sottovoce.wire.masked.open_seed": "by questions for a sum of masks",
    "sottovoce.wire.refusals.read_or_refuse": "by the services",
    "sottovoce.stores.server_folder.read_introduction": "by parse_introduction",
    "sottovoce.stores.server_folder.open_folder": "by its own operator alone",
    "sottovoce.stores.server_folder.ServerFolder.ready_file": "by its own operator alone",
    "sottovoce.wire.directory.OwnerEntry.from_table": "by Directory.read",
    "sottovoce.wire.files.DocumentFile.from_table": "by its kinds",
    "sottovoce.wire.files.DocumentFile.read": "by from_table of its kinds",
}
"""What reads messages and is reached in another way."""


def readers():
    """Names of everything in these modules that reads what others have sent."""
    found = set()
    for name in MODULES:
        for label, thing in vars(importlib.import_module(name)).items():
            if getattr(thing, "__module__", None) != name or label.startswith("_"):
                continue
            if inspect.isfunction(thing) and label.startswith(_READERS):
                found.add(f"{name}.{label}")
            if inspect.isclass(thing):
                own = [key for key in vars(thing) if key.startswith(_READERS)]
                found |= {f"{name}.{label}.{key}" for key in own}
    return found


def _name(function):
    return f"{function.__module__}.{function.__qualname__}"


class Decoders:
    """Reads what somebody has made of good messages."""

    name = "decoders"
    statuses, app = {}, None

    def __init__(self, path):
        self.cases = {}
        """By name: what reads, and what makes of choices the message to be read."""
        self._plain()
        self._federation()
        self._silos(path)
        self._tables(path)
        self.read = dict.fromkeys(self.cases, 0)
        self._names = sorted(self.cases)

    def _bytes(self, reader, given, layout=None, *more, which="", **named):
        """A reader of bytes, such as `given`; `layout` describes their head."""
        contents = given if isinstance(given, list) else [given]

        def make(choices):
            made = choices.pick(contents)
            made = made if layout is None else choices.refielded(layout, made, one_in=3)
            return choices.perhaps_damaged(made, 2)

        read = lambda content: reader(content, *more, **named)  # noqa: E731
        self.cases[f"{_name(reader)} {which}".strip()] = read, make

    def _json(self, reader, message, *more):
        """A reader of JSON text, such as this message is."""
        table = json.loads(message)
        self.cases[_name(reader)] = (
            lambda content: reader(content, *more), lambda choices: choices.document(table)
        )  # fmt: skip

    def _table(self, reader, table, name=None):
        def read(content):
            try:
                found = json.loads(content)
            except (ValueError, RecursionError):
                return None  # nobody would hand this on
            if not isinstance(found, dict):
                return None
            return reader(found)

        case = name or _name(reader)
        self.cases[case] = read, lambda choices: choices.document(table)

    def _content(self, reader, content):
        """A reader of a table with whole numbers, texts and bytes."""

        def make(choices):
            if choices.below(6) == 0:
                return content
            made, key = dict(content), choices.pick(sorted(content))
            value = made[key]
            if choices.chance(6):
                del made[key]
            elif choices.chance(4):
                made[key] = choices.pick((None, True, 1.5, b"", "", -1, 2**70, [], {}, "é\ud800"))
            elif isinstance(value, bytes):
                made[key] = choices.damaged(value)
            elif isinstance(value, int):
                made[key] = choices.number(value, 64) - choices.below(3)
            else:
                made[key] = choices.damaged(value.encode()).decode("utf-8", "replace")
                if value.startswith("{"):
                    made[key] = choices.document(json.loads(value)).decode("utf-8", "replace")
            return made

        self.cases[_name(reader)] = reader, make

    # --- messages ---------------------------------------------------------------------------------

    def _plain(self):
        item, values = np.array([1, 5, 7], np.int32), np.arange(15).reshape(3, 5) * 70_000
        sender, place = np.zeros(3, np.int64), {"n_items": 40, "width": 5, "round": 2}
        sent = report_wire.encode_report(DeviceReports(2, sender, item, values))
        head = frames.REPORT.head
        self._bytes(report_wire.decode_report, sent, head, sender=3, max_rows=30, **place)
        total = report_wire.encode_sum(SummedReports(2, item, values + 1, 9))
        self._bytes(report_wire.decode_sum, total, frames.SUM.head, **place)
        bits = report_wire.encode_bits(
            BitReports(2, np.array([0]), np.array([1]), np.arange(6, dtype=np.uint32)[None])
        )
        self._bytes(report_wire.decode_bits, bits, frames.BITS.head)
        before = ModelView(1, np.ones((40, 5), np.float32))
        after = ModelView(2, before.items.copy())
        after.items[3:6, 1:] += 0.1
        changed = np.arange(40) // 3 == 1
        rough = ModelView(2, after.items * np.float32(np.pi))
        models = [
            content
            for view in (after, rough)  # in steps, and not
            for content in (versions.encode_model(view), versions.encode_delta(1, view, changed))
        ]
        head = frames.MODEL.head
        self._bytes(versions.decode_model, models, head, n_items=40, width=5, have=before)

    def _federation(self):
        summed = summed_terms(X25519PrivateKey.generate().public_key().public_bytes_raw().hex())
        record = SeedKeeper().record(summed, 2, 1)
        words = np.arange(summed.n_rows * summed.width, dtype=np.uint64)
        short = replace(summed, link=replace(summed.link, bits=40))
        for one, which in ((summed, ""), (short, "of 40 bits")):
            bits = 40 if which else 64
            body = masked_wire.encode_masked(one, words, record, 2, 1)
            more = one, 2, 1, len(words)
            self._bytes(masked_wire.decode_masked, body, frames.MASKED.head, *more, which=which)
            told = masked_wire.encode_mask_sum(MaskSum(2, 5, words, bits))
            head = frames.MASK_SUM.head
            self._bytes(masked_wire.decode_mask_sum, told, head, one, which=which)
        where, records = (summed, 2, 1, MODEL), [record, record]
        for which, question, frame in (
            ("", masked_wire.encode_question(*where, records), frames.MASK_QUESTION),
            ("of a group", masked_wire.encode_group_question(*where, [records, records], 1),
             frames.MASK_GROUPS),
            ("of contributions", masked_wire.encode_question(*where, records, 21),
             frames.CONTRIBUTIONS),
        ):  # fmt: skip
            self._bytes(masked_wire.decode_question, question, frame.head, which=which)
        sent = proxy_wire.encode_submission(
            bytes(16), bytes(32), 2, 1, bytes(32), bytes(4 * sealing.SEALED_BYTES), terms=bytes(32)
        )
        self._bytes(proxy_wire.decode_submission, sent, frames.SUBMISSION.head, 4, 2)
        part = proxy_wire.BatchPart(
            2, 1, bytes(32), 3, 0, 2, bytes(16), bytes(3 * sealing.SEALED_BYTES)
        )
        self._bytes(proxy_wire.decode_part, proxy_wire.encode_part(part), frames.BATCH_PART.head)
        head = frames.ENVELOPE.pack(1, 2, 3, bytes(16))
        envelopes = [head + bytes(80), bytes(signing.OVERHEAD)]
        self._bytes(signing.open_envelope, envelopes, frames.ENVELOPE.head)
        self._sealed()
        self._shares()

    def _shares(self):
        """What is said where sums are checked."""
        terms, one = checked_terms(), record_of_shares(checked_terms())
        sent, about = TRAVELLED, shared_wire.About.of(checked_terms(), 5, 1, bytes(32), 21)
        body = shared_wire.encode_shared(sent, one, 5, 1)
        self._bytes(shared_wire.decode_shared, body, frames.SHARED.head, 5, 1, 277)
        passed = shared_wire.encode_shares(about, [(one, sent), (one, sent)])
        self._bytes(shared_wire.decode_shares, passed, frames.SHARES.head)
        names, coins = tuple(bytes([k]) * 32 for k in (1, 2, 9)), (bytes(32),) * 3
        asked = shared_wire.SetQuestion(about, names, coins, np.array([True, False, True]))
        question, head = shared_wire.encode_question(asked), frames.PART_QUESTION.head
        self._bytes(shared_wire.decode_question, question, head, coins=True, kept=True)
        coin = shared_wire.encode_coin(5, bytes(32))
        self._bytes(shared_wire.decode_coin, coin, frames.COIN.head, 5)
        numbers = np.arange(6, dtype=np.uint32)
        checks = shared_wire.encode_checks(CheckParts(5, 1, numbers.reshape(3, 2)))
        self._bytes(shared_wire.decode_checks, checks, frames.CHECK_PARTS.head, 5, 1, 3)
        part = shared_wire.encode_part(SumPart(5, 1, 3, numbers))
        self._bytes(shared_wire.decode_part, part, frames.SUM_PART.head, 5, 1, 3, 6)
        key = X25519PrivateKey.from_private_bytes(HERE.private_bytes())
        bound = shared_wire.binding(terms, 5, 1, bytes(32), 21)

        def opened(content):
            record = shared_wire.SharedRecord.of(content)
            if not shared_wire.is_signed(record, bound):
                raise MessageError("not signed")
            return shared_wire.open_secrets(record, 0, key, bound)

        make = lambda choices: choices.perhaps_damaged(one.content, 2)  # noqa: E731
        self.cases[_name(shared_wire.open_secrets)] = opened, make

    def _sealed(self):
        private = X25519PrivateKey.generate()
        public, place = private.public_key().public_bytes_raw(), {"round": 1, "tier": 0}
        reports = np.arange(2, dtype=np.uint32)
        sealed = sealing.seal_reports(reports, public, federation="town", **place)
        raw, name = private.private_bytes_raw(), bytes(32)
        self._bytes(sealing.open_reports, sealed, None, raw, federation="town", **place)
        info = sealing.layer_info(public, federation="town", **place, hop=1, key=name, terms=name)
        layered = sealing.seal_layer(sealed, sealing.SEALED_BYTES, public, info)
        self._bytes(sealing.open_records, layered, None, 100, raw, info)

    def _silos(self, path):
        users, owners = orchestrator_wire, owner_wire
        issuer, user, other = Issuer("town"), Identity(), Identity()
        given = issuer.admit(7, user.public)
        self._bytes(Pass.decode, given.encode(), frames.PASS.head)
        sealed = [bytes(SEALED_BYTES)] * 3
        self._bytes(owners.decode_session, owners.encode_session(bytes(16), bytes(32), sealed))
        self._bytes(owners.decode_interactions, owners.encode_interactions(bytes(16), sealed))
        card = owners.OwnerCard("town", 3, "Bakery", bytes(32))
        self._json(owners.OwnerCard.decode, card.encode())
        self._json(owners.OfferMade.decode, owners.OfferMade(bytes(16), bytes(32)).encode())
        receipt = owners.OwnerReceipt(4, 2, 0, ((1, "tag"),), bytes(16))
        self._json(owners.OwnerReceipt.decode, receipt.encode(), 3)
        asked = users.ask("recommend", b"\5\0\0\0", given, user, "town", other.public, 1e9)
        self._bytes(users.read_question, asked, frames.USER_QUESTION.head)
        self._bytes(users.decode_count, users.encode_count(5))
        self._json(users.Recommended.decode, users.Recommended((1, 2), (0.5, 0.25)).encode())
        enrolment = users.Enrolment(bytes(32), user.public, bytes(32))
        self._json(users.Enrolment.decode, enrolment.encode())
        where = "town", issuer.public, user.public
        self._json(users.Enrolled.decode, users.Enrolled(given, other.public).encode(), *where)
        self._json(users.decode_key, users.encode_key(other.public))
        rows = np.ones((6, 4), np.float32)
        self._bytes(users.decode_vector, users.encode_vector(rows[0], 4), None, 4)
        head = frames.ITEM_ROWS.head
        self._bytes(users.decode_item_rows, users.encode_item_rows(rows), head, 9, 4)
        self._directory(path, issuer)
        self._nodes()

    def _directory(self, path, issuer):
        entry = application(path, "Bakery", (1, 2)).entry(3)
        settings, items = DRIFTConfig(), tuple(f"film {n}" for n in range(5))
        signed = Directory("town", issuer.public, 2, settings, items, (entry,)).sign(issuer)
        content = json.loads(signed.partition(b"\n")[2])

        def make(choices):
            """Signed by the issuer, whatever it says: what is behind the signature is read."""
            if choices.chance(4):
                return choices.damaged(signed)
            table = content
            if choices.chance(3):
                changed = json.loads(choices.document(content["owners"][0]) or b"null")
                table = {**content, "owners": [changed]}
            elif choices.chance(3):
                table = {**content, "settings": json.loads(choices.document(content["settings"]))}
            text = choices.document(table)
            return issuer.sign("directory", text).hex().encode() + b"\n" + text

        def guarded(choices):
            try:
                return make(choices)
            except (ValueError, RecursionError):  # what was put inside is no JSON
                return b"\n"

        read = lambda found: Directory.read(found, "town", issuer.public)  # noqa: E731
        self.cases[_name(Directory.read)] = read, guarded

    def _nodes(self):
        some, rows = np.array([1, 4]), np.ones((2, 4), np.float32)
        none = np.zeros(0, np.int64)
        request = silo_rounds.encode_row_request(RowRequest(3, some, some))
        self._bytes(silo_rounds.decode_row_request, request, silo_rounds._REQUEST)
        given = silo_rounds.encode_rows(Rows(2, some, some, rows, rows))
        self._bytes(silo_rounds.decode_rows, given, silo_rounds._ROWS)
        sent = silo_rounds.encode_gradients(Gradients(3, 2, some, some, rows, rows))
        self._bytes(silo_rounds.decode_gradients, sent, silo_rounds._GRADIENTS)
        for message in (
            silo_rounds.QueryRows("town", 3, 1, True, none, 2),
            silo_rounds.RowsWanted(3, 3, some, RowRequest(3, some, some)),
            silo_rounds.TaskRows("town", 3, Rows(2, some, some, rows, rows)),
            silo_rounds.GradientsSent(3, 3, Gradients(3, 2, some, some, rows, rows)),
            cohort_rounds.CohortQuestion(terms(), 3, 0, (2, 0), b"model"),
            cohort_rounds.CohortTask(terms(), 3, 0, None, numbers=some),
            cohort_rounds.CohortAnswer(some, 2, 3, 0, b"sum", 2, "nothing"),
        ):
            self._content(type(message).from_content, message.to_content())

    def _tables(self, path):
        self._table(Terms.from_table, terms().to_table())
        descriptor = {
            "protocol": PROTOCOL, "federation": "town", "terms": "ab", "round": 1, "attempt": 0,
            "state": "open", "selection": "all", "model": 1, "poll_seconds": 2.0,
            "report_key": {"id": sealing.key_id(new_key()).hex(), "public": new_key().hex()},
        }  # fmt: skip
        public = new_key()
        descriptor["report_key"] = {"id": sealing.key_id(public).hex(), "public": public.hex()}
        self._table(Descriptor.from_table, descriptor)
        place = PlaceRequest(bytes(48), bytes(8), bytes(32), bytes(64))
        self._table(PlaceRequest.from_table, json.loads(place.to_bytes()))
        self._table(
            parse_introduction,
            {"protocol": PROTOCOL, "server": "https://x", "ca": "", "federation": "town",
             "verifying_key": "ab" * 32, "token": "cd" * 32},
        )  # fmt: skip
        applied = application(path, "Bakery", (1, 2))
        for made in (
            Invitation("https://x", "", "ab", 3, "town"),
            FederationFile("town", bytes(32), DRIFTConfig(), ("a", "b")),
            applied,
            Admission("town", 3, "Bakery", "127.0.0.1:9", ""),
            UserInvitation("town", bytes(32), applied.url, applied.authority, bytes(32)),
        ):
            kind = type(made)
            name = f"{kind.__module__}.{kind.__qualname__}.from_table"
            self._table(kind.from_table, made.to_table(), name)

    # --- as a target ------------------------------------------------------------------------------

    def send(self, data):
        choices = Choices(data)
        name = choices.pick(self._names)
        self._read(name, choices)

    def _read(self, name, choices):
        read, make = self.cases[name]
        content = make(choices)
        self.sending = {"reader": name, "content": content}
        try:
            read(content)
        except SottovoceError:
            pass
        except Exception as error:
            raise escaped(error) from None
        else:
            self.read[name] += 1

    def reach(self):
        """Every reader reads a good message, and none is forgotten."""
        for name in self._names:
            before = self.read[name]
            self._read(name, Choices(b""))
            if self.read[name] == before:
                raise Trouble("not reached", f"{name} refuses what should be a good message")
        missing = readers() - set(self.cases) - set(ELSEWHERE)
        if missing:
            raise Trouble("not reached", f"teach tests/fuzz a good message for {sorted(missing)}")

    def tick(self):
        pass

    def check(self):
        pass

    def honest(self):
        self.reach()

    def log(self):
        return []

    def close(self):
        pass


TARGETS = (Decoders,)
