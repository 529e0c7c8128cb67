"""The other services as targets: the proxy that shuffles, the one of a secure sum, an
aggregator, data owners and orchestrators, with DRIFT as printed and aggregated."""

import json
import secrets
import struct
import time
from dataclasses import replace

import numpy as np
from checked_world import LEAST as CHECKED_LEAST
from checked_world import TOKENS, AggregatorApp, checked_folders
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fuzz_choices import Choices
from fuzz_targets import POST, ServiceTarget, table
from fuzz_watch import Trouble, here
from hop_world import ACCEPTS, layered, random_records, second_of
from orchestrator_world import ITEMS as FILMS
from orchestrator_world import App as OrchestratorApp
from orchestrator_world import User, let_in
from owner_world import FEDERATION, World
from owner_world import App as OwnerApp
from proxy_world import App as ProxyApp
from proxy_world import Device, challenge_of, proxied
from secure_sum_world import LEAST, MODEL, TOKEN, MaskerApp, SeedKeeper, masker_folder

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.shares import bits_of, split
from sottovoce.services.owner import FORGET_PATH, ITEMS_PATH
from sottovoce.stores.keys import operator_token
from sottovoce.stores.orchestrator_folder import create_orchestrator_folder, invite
from sottovoce.wire import frames, interactions
from sottovoce.wire import masked as masked_wire
from sottovoce.wire import owners as owner_wire
from sottovoce.wire import shared as shared_wire
from sottovoce.wire import shuffled as proxy_wire
from sottovoce.wire import users as orchestrator_wire
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Pass
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import terms_name

SUMS = DRIFTConfig(release="aggregated", min_users=2)
_PLAIN = struct.Struct("<IIqBQ")


class PartyTarget(ServiceTarget):
    operator = ""

    def served(self, *addresses):
        """Raise if somebody honest is refused at one of these addresses."""
        for address in addresses:
            answer = self.send_good(address)
            if answer.status not in self.expected.get(address, (200, 204)):
                raise Trouble("honest", f"somebody honest is refused: {answer}")

    def counted(self, stored):
        """Raise if something else is stored than was acknowledged."""
        if stored != self.acknowledged:
            raise Trouble("counts", f"{self.acknowledged} were acknowledged, {stored} are stored")

    def token(self, address):
        return "" if address[0] == POST and "operator" not in address[1] else self.operator

    def log(self):
        lines = getattr(getattr(self.app, "log", None), "lines", [])
        told = [(one["event"], one) if isinstance(one, dict) else one for one in lines]
        return [f"{what}: {facts}" for what, facts in told if what in ("not stored", "unforeseen")]


# --- the proxy that shuffles ----------------------------------------------------------------------


class Shuffler(PartyTarget):
    name = "shuffler"
    DEVICES = 12
    SUBMIT, ENROL = (POST, "/v1/submissions"), (POST, "/v1/enrol")

    def opened(self, path, stack):
        # Asks seldom by itself: `tick` says when there is something to hear.
        self.server, folder = stack.enter_context(proxied(path, poll_seconds=8.0))
        app = stack.enter_context(here(ProxyApp)(folder))
        self.operator = operator_token(folder.keys)
        self.app = app
        self._until(lambda: app.store.position.round >= 0)
        self.devices = [Device(self.server).enrol(app.ask) for _ in range(self.DEVICES)]
        self.makers |= {self.SUBMIT: self.submission, self.ENROL: self.enrolment}
        self.terms, self.fresh = terms_name(self.server.terms), 0
        return app

    def submission(self, choices):
        store, device = self.app.store, choices.pick(self.devices)
        now, terms = store.position, self.terms
        count = self.server.terms.release.max_reports
        if choices.chance(10):
            count = choices.pick((count + 1, count - 1, 0, 1))
        round = now.round
        if choices.chance(12):  # before: a proxy that hears of a later one asks the server
            round = max(0, round - 1 - choices.below(4))
        if choices.chance(200):
            round = choices.number(round)
        content = proxy_wire.encode_submission(
            device.account if not choices.chance(24) else choices.bytes(16),
            device.account_key if not choices.chance(24) else choices.bytes(32),
            max(0, round),
            choices.other(choices.below(2), 8),
            choices.bytes(len(now.key)) if choices.chance(16) else now.key,
            secrets.token_bytes(count * SEALED_BYTES),
            terms=choices.bytes(32) if choices.chance(16) else terms,
        )
        content = choices.refielded(frames.SUBMISSION.head, content, one_in=12)
        return choices.perhaps_damaged(content, 12)

    def enrolment(self, choices):
        """Of a device that is not asked to send: an enrolment makes the keys before worthless."""
        challenge = challenge_of(self.app.ask)
        if choices.chance(3):
            challenge = choices.bytes(len(challenge))
        return choices.document(json.loads(Device(self.server).enrolment(challenge)))

    def heard(self, answer):
        if answer.status == 204 and answer.path == self.SUBMIT[1]:
            self.acknowledged += 1

    def tick(self):
        """The server opens the next round."""
        self.server.move(self.server.round + 1)
        self._until(self._follows)

    def _follows(self):
        self.app.run(self.app.forwarder.look(1.0))
        return self.app.store.position.round == self.server.round

    def check(self):
        held = sum(held.devices for held in self.app.store.held() if held.state != "over")
        ended = sum(count for _, _, count in self.app.store.outcomes())
        self.counted(held + ended)

    def honest(self):
        self.tick()
        self.served(self.SUBMIT)

    def _until(self, holds, seconds=120):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise Trouble("stands still", "the proxy does not follow its server")
            time.sleep(0.01)


class LaterShuffler(Shuffler):
    """The second one of a chain."""

    name = "shuffler-behind"
    BATCHES = POST, "/v1/batches"

    def opened(self, path, stack):
        self.server, folder = stack.enter_context(second_of(path, poll_seconds=8.0))
        self.app = app = stack.enter_context(here(ProxyApp)(folder))
        self.operator = operator_token(folder.keys)
        self._until(lambda: app.store.position.round >= 0)
        self.makers[self.BATCHES] = self.part
        self._whole = {}
        return app

    def token(self, address):
        return ACCEPTS if address == self.BATCHES else super().token(address)

    def part(self, choices):
        now, tier = self.app.store.position, choices.below(2)
        where = now.round, tier
        if where not in self._whole:
            sealed = layered(self.server, random_records(4 * 4), tier, round=now.round)
            self._whole = {where: sealed}
        sealed, size = self._whole[where], len(self._whole[where]) // 16
        many = 1 + (choices.below(4) if choices.chance(4) else 0)
        number, cuts = choices.below(many), [16 * n // many * size for n in range(many + 1)]
        body = sealed[cuts[number] : cuts[number + 1]]
        if choices.chance(8):
            body = choices.perhaps_damaged(body, 2)
        mark = choices.pick((bytes(16), secrets.token_bytes(16)))
        made = (max(0, now.round), tier, now.key, 4, number, many, mark, body, size)
        content = proxy_wire.encode_part(proxy_wire.BatchPart(*made))
        content = choices.refielded(frames.BATCH_PART.head, content, one_in=4)
        return choices.perhaps_damaged(content, 10)

    def heard(self, answer):
        pass

    def check(self):
        for held in self.app.store.held():
            arrival, most = held.arrival, held.devices * 4
            if not arrival.kept <= arrival.records <= most or arrival.stored > arrival.parts:
                raise Trouble("counts", f"{held} has more than there is: {arrival}")

    def honest(self):
        self.tick()
        self.served(self.BATCHES)


def nearly_nothing(choices):
    """For an address that takes no body."""
    return choices.bytes(4) if choices.chance(8) else b""


# --- the proxy of a secure sum --------------------------------------------------------------------


class Masker(PartyTarget):
    name = "masker"
    SUMS, SEEDS = (POST, "/v1/sums"), (POST, "/v1/seeds")
    TERMS = POST, "/v1/terms"

    def opened(self, path, stack):
        folder = masker_folder(path / "masker")
        app = stack.enter_context(here(MaskerApp)(folder))
        self.terms, self.operator = folder.introduction.terms, operator_token(folder.keys)
        self.devices = [SeedKeeper() for _ in range(LEAST)]
        self.round, self._records = 0, {}
        self.makers |= {
            self.SUMS: self.question,
            self.SEEDS: self.question,
            self.TERMS: nearly_nothing,
        }
        return app

    def token(self, address):
        return TOKEN if address in (self.SUMS, self.SEEDS, self.TERMS) else self.operator

    def question(self, choices):
        """About the next round, whose sum was not told yet, or about the last one."""
        round = self.round if choices.below(3) == 0 else max(0, self.round - 1)
        attempt = choices.other(0, one_in=40)
        where = (round, attempt)
        if where not in self._records:
            made = [device.record(self.terms, round, attempt) for device in self.devices]
            self._records = {key: self._records[key] for key in list(self._records)[-3:]}
            self._records[where] = made
        records = list(self._records[where])
        if choices.chance(3):
            self._change(choices, records, round, attempt)
        model = choices.bytes(32) if choices.chance(40) else MODEL
        # Devices have not signed for another round, or a server could end all rounds with the last.
        said = choices.other(round, one_in=24)
        content = masked_wire.encode_question(self.terms, said, attempt, model, records)
        if choices.chance(12):
            content = masked_wire.encode_question(self.terms, said, attempt, model, records, 21)
        if choices.chance(3):
            content = self._grouped(choices, said, attempt, model, records)
        content = choices.refielded(frames.MASK_QUESTION.head, content, one_in=6)
        return choices.perhaps_damaged(content, 8)

    def _grouped(self, choices, round, attempt, model, records):
        """One of several sums; the groups are what the server says they are."""
        cut = choices.below(len(records) + 1)
        groups = [records[:cut], records[cut:]]
        if choices.chance(4):
            groups = [records] * (1 + choices.below(3))
        content = masked_wire.encode_group_question(
            self.terms, round, attempt, model, groups, choices.other(choices.below(2), one_in=8)
        )
        size = frames.MASK_GROUPS.size
        fields = choices.refielded(masked_wire._GROUPS, content[size:], one_in=4)
        return content[:size] + fields

    def _change(self, choices, records, round, attempt):
        at = choices.below(len(records))
        device, record = self.devices[at], records[at]
        bound = masked_wire.binding(self.terms, round, attempt, MODEL)
        low = choices.pick((bytes(32), b"\xff" * 32, b"\1" + bytes(31), choices.bytes(32)))
        match choices.below(8):
            case 0:
                records.pop(at)
            case 1:
                records.append(record)
            case 2:
                records[at] = device.signed(replace(record, sealed=choices.bytes(80)), bound)
            case 3:  # sealed with a key of low order, with which nothing is secret
                sealed = low + record.sealed[32:]
                records[at] = device.signed(replace(record, sealed=sealed), bound)
            case 4:
                records[at] = replace(record, device=low)
            case 5:
                records[at] = device.record(self.terms, round + 1, attempt)
            case 6:
                records[at] = device.record(self.terms, round, attempt, seed=choices.bytes(32))
            case _:
                records.extend(SeedKeeper().record(self.terms, round, attempt) for _ in range(2))

    def heard(self, answer):
        if answer.status == 200 and answer.path == self.SUMS[1]:
            self.acknowledged += 1
            self.round = self.app.service._answering.round + 1

    def check(self):
        self.counted(self.app.service._answering.told.times)

    def honest(self):
        self.served(self.SUMS)


# --- an aggregator of a checked sum ---------------------------------------------------------------


class Aggregator(PartyTarget):
    name = "aggregator"
    SHARES, COINS = (POST, "/v1/shares"), (POST, "/v1/coins")
    CHECKS, PARTS = (POST, "/v1/checks"), (POST, "/v1/parts")
    TERMS = POST, "/v1/terms"
    NUMBERS = 21

    def opened(self, path, stack):
        self.terms, folders = checked_folders(path, items=self.NUMBERS - 1)
        folder = folders[1]
        app = stack.enter_context(here(AggregatorApp)(folder))
        self.operator = operator_token(folder.keys)
        self.keys = [Ed25519PrivateKey.generate() for _ in range(CHECKED_LEAST + 1)]
        self.round, self._sent = 0, {}
        self.makers |= {
            self.SHARES: self.shares,
            self.COINS: lambda choices: self.question(choices),
            self.CHECKS: lambda choices: self.question(choices, coins=True),
            self.PARTS: lambda choices: self.question(choices, coins=True, kept=True),
            self.TERMS: nearly_nothing,
        }
        return app

    def token(self, address):
        ours = (self.SHARES, self.COINS, self.CHECKS, self.PARTS, self.TERMS)
        return TOKENS[1] if address in ours else self.operator

    def about(self, round):
        return shared_wire.About.of(self.terms, round, 0, MODEL, self.NUMBERS)

    def sent(self, round):
        """Submissions of a first stage, in order."""
        if round not in self._sent:
            about, link = self.about(round), self.terms.link
            form = link.form(self.NUMBERS, False)
            bits = bits_of(form, np.zeros((1, self.NUMBERS), int))[0]
            made = []
            for key in self.keys:
                secret = tuple(secrets.token_bytes(32) for _ in range(3))
                travelled = split(bits, secret).astype("<u4").tobytes()
                bound = about.bound(self.terms)
                record = shared_wire.make_record(secret, travelled, key, link, bound)
                made.append((record, travelled))
            self._sent = {k: v for k, v in self._sent.items() if k >= round - 2}
            self._sent[round] = sorted(made, key=lambda one: one[0].name)
        return self._sent[round]

    def shares(self, choices):
        sent = list(self.sent(self.round))
        if choices.chance(3):
            at = choices.below(len(sent))
            record, travelled = sent[at]
            match choices.below(5):
                case 0:
                    sent[at] = (
                        record,
                        choices.damaged(travelled)[: len(travelled)].ljust(len(travelled), b"\0"),
                    )
                case 1:
                    sent[at] = replace(record, device=choices.bytes(32)), travelled
                case 2:
                    sent[at] = replace(record, sealed=(bytes(112),) * 3), travelled
                case 3:
                    sent.pop(at)
                case _:
                    sent.append(sent[at])
        said = choices.other(self.round, one_in=24)
        if said > self.round:  # a server could end all rounds with the last
            said = max(0, self.round - 1)
        content = shared_wire.encode_shares(self.about(said), sent)
        return choices.perhaps_damaged(content, 8)

    def question(self, choices, coins=False, kept=False):
        sent = self.sent(self.round)
        self.app.answering.take(shared_wire.encode_shares(self.about(self.round), sent))
        names = [record.name for record, _ in sent]
        if choices.chance(6):
            names.pop(choices.below(len(names)))
        if choices.chance(12):
            names.append(choices.bytes(32))
        if not choices.chance(12):
            names.sort()
        told = tuple(choices.bytes(32) for _ in range(3)) if coins else ()
        who = np.ones(len(names), bool) if kept else None
        if kept and choices.chance(6):
            who[choices.below(len(names))] = False
        about = self.about(self.round)
        if choices.chance(12):
            about = about._replace(numbers=choices.other(self.NUMBERS, one_in=2))
        asked = shared_wire.SetQuestion(about, tuple(names), told, who)
        content = shared_wire.encode_question(asked)
        return choices.perhaps_damaged(content, 8)

    def heard(self, answer):
        if answer.status == 200 and answer.path == self.PARTS[1]:
            self.acknowledged += 1
            self.round = self.app.answering.round + 2

    def check(self):
        self.counted(self.app.answering.told.times)

    def honest(self):
        self.served(self.PARTS)


# --- data owners ----------------------------------------------------------------------------------


class Owner(PartyTarget):
    name = "owner"
    settings = None
    USERS = 8
    OFFERS, SESSIONS = (POST, owner_wire.OFFERS_PATH), (POST, owner_wire.SESSIONS_PATH)
    INTERACTIONS, VECTOR = (POST, owner_wire.INTERACTIONS_PATH), (POST, orchestrator_wire.VECTOR)

    def opened(self, path, stack):
        self.world = World(path, settings=self.settings)
        limits = {"per_minute": 1_000_000}
        app = self.app = stack.enter_context(here(OwnerApp)(self.world.folder, limits=limits))
        self.operator = operator_token(self.world.folder.keys)
        self.public = self.world.folder.application.public
        self.next_user, self.users = 100, []
        self._newcomers()
        self.makers |= {
            self.OFFERS: self.offer, self.SESSIONS: self.session,
            self.INTERACTIONS: self.interactions, self.VECTOR: self.vector,
            (POST, ITEMS_PATH): self.items, (POST, FORGET_PATH): self.forget,
        }  # fmt: skip
        return app

    def _newcomers(self):
        """Instead of those who have left or were forgotten."""
        while len(self.users) < self.USERS:
            self.users.append(self.world.user(self.next_user))
            self.next_user += 1

    def offer(self, choices):
        given = self._pass(choices, choices.pick(self.users))
        content = choices.refielded(frames.PASS.head, given.encode(), one_in=6)
        return choices.perhaps_damaged(content, 6)

    def _pass(self, choices, user):
        """Hers, or one that the issuer gave to somebody odd, or nobody gave."""
        given = user.given
        if choices.chance(8):
            number, public = choices.number(given.user), given.public
            if choices.chance(2):
                public = choices.pick((bytes(32), b"\xff" * 32, Identity().public))
            given = self.world.issuer.admit(number, public)
        if choices.chance(12):
            given = Pass(given.user, given.public, choices.bytes(64))
        return given

    def session(self, choices):
        """An offer that is taken up, and the first messages. Good ones begin another session."""
        user = choices.pick(self.users)
        if choices.below(4) or user.sender is None:
            if choices.chance(3) and user.sender is not None:
                offer, hello = choices.bytes(16), choices.bytes(32)
            else:
                offer, hello = user.offer(self._ask)
                self._waiting = user
        else:
            offer, hello = user.offer(self._ask)
            self._waiting = user
        if choices.chance(10):
            hello = choices.pick((bytes(32), b"\xff" * 32, choices.bytes(32), self.public))
        content = owner_wire.encode_session(offer, hello, self._messages(choices, user))
        return choices.perhaps_damaged(content, 8)

    def interactions(self, choices):
        user = choices.pick(self.users)
        if user.session is None:
            self.begin(user)
        session = choices.bytes(16) if choices.chance(16) else user.session
        content = owner_wire.encode_interactions(session, self._messages(choices, user))
        return choices.perhaps_damaged(content, 8)

    def begin(self, user):
        self._waiting = user
        offer, hello = user.offer(self._ask)
        body = owner_wire.encode_session(offer, hello, user.seal((41, True)))
        got = self._ask(*self.SESSIONS, body)
        if got.status != 200:
            raise Trouble("honest", f"an honest user cannot begin a session: {got}")

    def _ask(self, method, path, body=b"", headers=None):
        """On the side, while an input is being made."""
        self.app.service.heard.clear()
        got = self.app.ask(method, path, body, headers)
        for answer in self.app.service.heard:
            self.heard(answer)
        return got

    def _messages(self, choices, user):
        """Sealed by the user herself, with whatever may stand in them."""
        made = []
        for _ in range(1 + choices.below(3)):
            event = (choices.pick((41, 42, 43, 59, 60, 0)), bool(choices.below(2)))
            if choices.chance(10):
                event = "end"
            elif choices.chance(150):
                event = "leave"
            if choices.chance(5):
                made.append(self._odd(choices, user))
            elif choices.chance(16):
                made.append(choices.bytes(interactions.SEALED_BYTES))
            else:
                made += user.seal(event)
        if choices.chance(20):
            made *= choices.pick((2, 600))
        return made

    def _odd(self, choices, user):
        """Of the right key, but no client of ours would send it."""
        sender = user.sender
        plain = _PLAIN.pack(
            choices.other(user.number, one_in=6),
            choices.number(41),
            int.from_bytes(choices.bytes(8), "little", signed=True)
            if choices.chance(2)
            else choices.pick((0, -1, 2**63 - 1, -(2**63), 10**12)),
            choices.other(choices.below(4), 8, one_in=4),
            choices.number(next(user.sequence), 64) if choices.chance(3) else next(user.sequence),
        )
        counter = choices.number(sender._next, 64) if choices.chance(8) else sender._next
        nonce = counter.to_bytes(interactions.NONCE_BYTES, "big")
        sender._next = max(sender._next, min(counter, 2**31)) + 1
        return nonce + sender._cipher.encrypt(nonce, plain, sender._owner + nonce)

    def vector(self, choices):
        user = choices.pick(self.users)
        content = asked(choices, "vector", user, FEDERATION, self.public)
        return choices.perhaps_damaged(content, 8)

    def items(self, choices):
        if choices.below(6) == 0:
            return choices.document({"add": [60 + choices.below(9)], "withdraw": []})
        odd = [choices.number(41, 33) for _ in range(choices.below(4))]
        if choices.chance(3):
            odd = [choices.pick((True, None, -1, 1.0, 1e300, "1", [1]))]
        return choices.document({choices.pick(("add", "withdraw", "with")): odd})

    def forget(self, choices):
        if choices.below(3):
            return choices.document({"user": choices.number(self.users[0].number, 33)})
        self.users.pop(choices.below(len(self.users)))
        user = self.users[0]
        self._newcomers()
        return choices.document({"user": user.number})

    def heard(self, answer):
        if answer.status == 200 and answer.path in (self.SESSIONS[1], self.INTERACTIONS[1]):
            told = table(answer)
            self.acknowledged += told["taken"]
            if "session" in told:
                self._waiting.session = bytes.fromhex(told["session"])
        elif answer.status == 401 and answer.path == self.INTERACTIONS[1]:
            for user in self.users:  # whoever it was begins anew
                user.session = None
            self.users.pop(0)
            self._newcomers()

    def check(self):
        self.counted(self.app.owner.counts()["taken"])

    def honest(self):
        user = self.world.user(self.next_user)
        self.next_user += 1
        self.begin(user)


class AggregatedOwner(Owner):
    name = "owner-aggregated"
    settings = SUMS


def asked(choices, purpose, user, federation, public, content=b""):
    """A question of a user's, proven, but perhaps not for what it is sent."""
    now = time.time()
    if choices.chance(8):
        now = choices.pick((0, now - 400, now + 400, now + 200, 2**63, 2**64 - 1, now - 100))
    body = orchestrator_wire.ask(
        choices.pick(("recommend", "leave", "vector")) if choices.chance(12) else purpose,
        content, user.given, user.identity, federation, public, now,
    )  # fmt: skip
    return choices.refielded(frames.USER_QUESTION.head, body, one_in=16)


# --- orchestrators --------------------------------------------------------------------------------


class Orchestrator(PartyTarget):
    name = "orchestrator"
    settings = DRIFTConfig(theta=2)
    USERS, INVITED = 8, 64
    ENROL, RECOMMEND = (POST, orchestrator_wire.ENROL), (POST, orchestrator_wire.RECOMMEND)
    LEAVE = (POST, orchestrator_wire.LEAVE)

    def opened(self, path, stack):
        limits = {"per_minute": 1_000_000, "guess_seconds": 0.0}
        folder = create_orchestrator_folder(path / "town", FILMS, self.settings, root_key=77)
        app = self.app = stack.enter_context(here(OrchestratorApp)(folder, **limits))
        let_in(folder, app.store, path, "Bakery", range(5))
        self.operator = operator_token(folder.keys)
        self.public = folder.users_identity().public
        self.folder, self.free, self.users, self.inside = folder, [], [], set()
        self.makers |= {
            self.ENROL: self.enrolment, self.RECOMMEND: self.recommend, self.LEAVE: self.leave
        }  # fmt: skip
        for _ in range(self.USERS):
            self.send_good(self.ENROL)
        return app

    def _next(self):
        if not self.free:
            made = invite(self.folder, self.app.store, self.INVITED, "https://127.0.0.1:1")
            self.free = [User(invitation) for invitation in made]
        return self.free[0]

    def enrolment(self, choices):
        """Of somebody who is not there yet, or of one who has lost the answer."""
        user = self._next() if len(self.users) < self.USERS else choices.pick(self.users)
        if choices.chance(12) and len(self.users) < 64:
            user = self._next()
        self._knocking = user
        found = json.loads(user.enrolment(self.public))
        if choices.chance(8):
            key = choices.pick((bytes(32), b"\xff" * 32, b"\1" + bytes(31), choices.bytes(32)))
            return choices.document({**found, "public": key.hex()})
        return choices.document(found)

    def recommend(self, choices):
        n = choices.other(1 + choices.below(9), one_in=3)
        content = choices.perhaps_damaged(n.to_bytes(4, "little"), 6)
        return self._asked(choices, "recommend", content)

    def leave(self, choices):
        if choices.below(12) == 0:
            self._leaving = self.users[0]
            return self._asked(Choices(b""), "leave", b"")
        return self._asked(choices, "leave", b"" if choices.chance(200) else b"\0")

    def _asked(self, choices, purpose, content):
        user = choices.pick(self.users)
        if choices.chance(16):  # a good pass of somebody who never enrolled, or has left
            user = User(user.invitation)
            issuer = self.folder.issuer()
            user.given = issuer.admit(choices.number(3), user.identity.public)
        federation = user.invitation.federation
        body = asked(choices, purpose, user, federation, self.public, content)
        return choices.perhaps_damaged(body, 10)

    def heard(self, answer):
        if answer.status == 200 and answer.path == self.ENROL[1]:
            given = Pass.decode(bytes.fromhex(table(answer)["pass"]))
            self.inside.add(given.user)
            user = self._knocking
            if user in self.free:
                user.given = given
                if given.public == user.identity.public:
                    self.users.append(user)
                self.free.remove(user)
        elif answer.status == 204 and answer.path == self.LEAVE[1]:
            self._left()

    def _left(self):
        gone = set(self.app.store.departed())
        self.inside -= gone
        self.users = [user for user in self.users if user.given.user not in gone]
        while len(self.users) < 2:
            self._knocking = self._next()
            self.app.service.heard.clear()
            self.app.ask(*self.ENROL, self._knocking.enrolment(self.public))
            self.heard(self.app.service.heard[-1])

    def check(self):
        stored = self.app.store.n_users
        if stored != len(self.inside):
            raise Trouble("counts", f"{len(self.inside)} were let in, {stored} are stored")

    def honest(self):
        self.served(self.RECOMMEND, self.ENROL)


class AggregatedOrchestrator(Orchestrator):
    """Holds no user's vector, and recommends nothing."""

    name = "orchestrator-aggregated"
    settings = SUMS

    def opened(self, path, stack):
        self.expected[self.RECOMMEND] = (400,)
        return super().opened(path, stack)


TARGETS = (
    Shuffler,
    LaterShuffler,
    Masker,
    Aggregator,
    Owner,
    AggregatedOwner,
    Orchestrator,
    AggregatedOrchestrator,
)
