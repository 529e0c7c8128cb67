"""Who may enrol: whoever was invited, with a key that is hers, once; and nobody else notices those
who guess."""

import json
import secrets
import struct
import time

import pytest
from app_world import InProcess
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from orchestrator_world import App as OrchestratorApp
from orchestrator_world import User, key_of
from orchestrator_world import new_folder as new_orchestrator
from proxy_world import App as ProxyApp
from proxy_world import Device, challenge_of, proxied
from server_world import Fleet, enrolment, new_folder

from sottovoce.services.kit.application import Tarpit
from sottovoce.services.kit.questions import CHALLENGE_BYTES, SECONDS, Challenges
from sottovoce.services.server.checks import Enrolments
from sottovoce.services.server.places import Places
from sottovoce.stores.orchestrator_folder import invite as invite_users
from sottovoce.stores.server_folder import admit, invite, is_admitted
from sottovoce.wire.interactions import Identity
from sottovoce.wire.masked import SealedSeed, is_signed
from sottovoce.wire.refusals import Refused
from sottovoce.wire.shuffled import enrolment_statement
from sottovoce.wire.signing import is_proven, is_weak, prove

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
IDENTITY = (1).to_bytes(32, "little")


def raw(key):
    return key.public_key().public_bytes_raw()


# --- keys that are nobody's -----------------------------------------------------------------------


def point(y, odd):
    """The point of Ed25519 with this y, or None."""
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if (x * x - x2) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - x2) % P:
        return None
    return ((P - x) % P if x % 2 != odd else x), y


def add(one, other):
    (a, b), (c, d) = one, other
    t = D * a * b * c * d % P
    x = (a * d + b * c) * pow(1 + t, P - 2, P)
    return x % P, (b * d + a * c) * pow(1 - t, P - 2, P) % P


def times(n, one):
    found = (0, 1)
    while n:
        found = add(found, one) if n & 1 else found
        one, n = add(one, one), n >> 1
    return found


def test_every_point_of_small_order_is_refused_in_every_spelling():
    # Any point times the prime order is of small order; one of order 8 gives all of them.
    eighth = next(
        t for y in range(2, 200) if (q := point(y, 0)) and times(4, t := times(ORDER, q)) != (0, 1)
    )
    small = {times(n, eighth) for n in range(8)}
    assert len(small) == 8
    spelled = {y + more for _, y in small for more in (0, P) if y + more < 2**255}
    assert len(spelled) == 7
    for y in spelled:
        for sign in (0, 1 << 255):
            assert is_weak((y | sign).to_bytes(32, "little"))
    assert is_weak(bytes(31))
    assert not any(is_weak(raw(Ed25519PrivateKey.generate())) for _ in range(50))
    assert not is_weak((2).to_bytes(32, "little")), "whether it is on the curve, verifying says"


def forged(message):
    """A signature under the identity point that needs no private key: S = 1, R = B."""
    base = (4 * pow(5, P - 2, P) % P).to_bytes(32, "little")
    signature = base + (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(IDENTITY).verify(signature, message)  # OpenSSL takes it
    return signature


def test_forged_signatures_under_the_identity_point_are_not_believed():
    signature = forged(b"anything")
    token = secrets.token_bytes(32)
    assert not is_proven(IDENTITY, "town", token, signature)
    assert not is_signed(SealedSeed(IDENTITY, bytes(80), signature), b"bound")
    server = Ed25519PrivateKey.generate()
    word, challenge = admit(server, "town", IDENTITY), bytes(CHALLENGE_BYTES)
    assert not is_admitted(raw(server), "town", IDENTITY, word, signature, challenge)


def test_a_proof_is_good_for_one_federation_invitation_and_key():
    key, token = Ed25519PrivateKey.generate(), secrets.token_bytes(32)
    proof = prove(key, "town", token)
    assert is_proven(raw(key), "town", token, proof)
    assert not is_proven(raw(key), "tow", token, proof)
    assert not is_proven(raw(key), "town", secrets.token_bytes(32), proof)
    assert not is_proven(raw(Ed25519PrivateKey.generate()), "town", token, proof)
    # What devices sign otherwise, nobody can pass off as a proof.
    report = Fleet().sealed(0, 0, 0, b"")
    assert not is_proven(raw(key), "town", token, report[32:96])
    assert not is_proven(raw(key), "town", token, b"")


# --- the server -----------------------------------------------------------------------------------


class Door(InProcess):
    """The server's `POST /v1/enrol` alone."""

    def __init__(self, folder, guess_seconds=0.0):
        self.folder, self.guess_seconds = folder, guess_seconds
        self.enrolled = {}

    def __enter__(self):
        self.database = self.folder.database()
        return super().__enter__()

    def __exit__(self, *_):
        super().__exit__()
        self.database.close()

    async def make(self):
        self.places = Places("little-town", self.database)
        self.enrolments = Enrolments(
            "little-town",
            self.database,
            self.places,
            admission_key=None,
            body_seconds=5.0,
            guess_seconds=self.guess_seconds,
            enrolled=self.enrolled.__setitem__,
        )
        return self

    def close(self):
        self.enrolments.close()
        self.places.close()

    async def __call__(self, scope, receive, send):
        await self.enrolments.take(scope, receive, send)

    def bring(self, body):
        """The answer, or why it was refused."""
        try:
            return self.ask("POST", "/v1/enrol", body.encode()).json()["number"]
        except Refused as error:
            return error.reason


@pytest.fixture
def door(tmp_path):
    with Door(new_folder(tmp_path)) as opened:
        yield opened


def invited(door, *numbers):
    return invite(door.folder, door.database, "https://127.0.0.1:1", numbers)


def test_an_invited_stranger_cannot_lock_out_the_holder_of_a_key(door):
    """The invitee brings the victim's public key, which is no secret (it was in a sum, say)."""
    mallory, alice = invited(door, 0, 1)
    victim, own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    for signer in (own, Ed25519PrivateKey.generate()):
        taken = enrolment(mallory, signer, public_key=raw(victim).hex())
        assert door.bring(taken) == "bad_signature"
    # Nor with what the victim sent: it is bound to her invitation.
    hers = json.loads(enrolment(alice, victim))
    assert door.bring(enrolment(mallory, own, **{**hers, "token": mallory.token})) == (
        "bad_signature"
    )
    assert door.enrolled == {}
    assert door.bring(enrolment(alice, victim)) == 1
    assert door.bring(enrolment(alice, victim)) == 1, "the answer may have been lost"
    assert door.bring(enrolment(mallory, own)) == 0, "the invitation is still good"
    assert door.enrolled == {1: raw(victim), 0: raw(own)}


def test_a_key_has_one_number_and_its_second_invitation_is_refused_clearly(door):
    first, second = invited(door, 0, 1)
    key = Ed25519PrivateKey.generate()
    assert door.bring(enrolment(first, key)) == 0
    with pytest.raises(Refused, match="this key has enrolled under another number") as refused:
        door.ask("POST", "/v1/enrol", enrolment(second, key).encode())
    assert (refused.value.reason, refused.value.status) == ("duplicate", 400)
    assert door.bring(enrolment(first, key)) == 0, "the answer may have been lost"
    assert door.bring(enrolment(second, Ed25519PrivateKey.generate())) == 1, "it is still good"


def test_nobodys_key_cannot_be_enrolled(door):
    (invitation,) = invited(door, 0)
    signature = forged(b"").hex()
    for y in (0, 1, P - 1, P, P + 1):
        weak = y.to_bytes(32, "little").hex()
        body = enrolment(
            invitation, Ed25519PrivateKey.generate(), public_key=weak, signature=signature
        )
        assert door.bring(body) == "malformed"
    assert door.enrolled == {}


def test_an_enrolment_without_a_signature_is_none(door):
    (invitation,) = invited(door, 0)
    body = json.loads(enrolment(invitation, Ed25519PrivateKey.generate()))
    del body["signature"]
    assert door.bring(json.dumps(body)) == "malformed"
    for signature in ("", "zz", 7, None, "00" * 63):
        assert door.bring(json.dumps({**body, "signature": signature})) == "malformed"


def test_guesses_do_not_wait_for_the_database_and_their_senders_wait(tmp_path, monkeypatch):
    """While somebody writes, a guess is answered all the same; and not at once."""
    waited, wait = [], Tarpit.__call__

    async def counted(self):
        waited.append(self)
        await wait(self)

    monkeypatch.setattr(Tarpit, "__call__", counted)
    with Door(new_folder(tmp_path), guess_seconds=0.3) as door:
        (invitation,) = invited(door, 0)
        key = Ed25519PrivateKey.generate()
        guess = enrolment(invitation, key, token=secrets.token_hex(32))
        with door.database.writing():
            began = time.monotonic()
            assert door.bring(guess) == "bad_token"
            assert time.monotonic() - began >= 0.3
        assert len(waited) == 1
        assert door.bring(enrolment(invitation, key, signature="00" * 64)) == "bad_signature"
        guesses = len(waited)
        assert door.bring(enrolment(invitation, key)) == 0
        assert len(waited) == guesses, "who was invited does not wait"


# --- the proxy ------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    with proxied(tmp_path) as made:
        yield made


def test_an_enrolment_with_the_proxy_cannot_be_replayed(world):
    """Before, whoever had seen one got the account's next key, and the device lost its own."""
    server, folder = world
    with ProxyApp(folder) as app:
        device = Device(server)
        body = device.enrolment(challenge_of(app.ask))
        first = app.ask("POST", "/v1/enrol", body)
        assert first.status == 200
        again = app.ask("POST", "/v1/enrol", body)
        assert (again.status, again.error) == (409, "replay")
        # Nor is it good with another challenge, or with one that nobody gave.
        table = json.loads(body)
        fresh = table | {"challenge": challenge_of(app.ask).hex()}
        assert app.ask("POST", "/v1/enrol", json.dumps(fresh).encode()).error == "bad_admission"
        made_up = device.enrolment(secrets.token_bytes(CHALLENGE_BYTES))
        assert app.ask("POST", "/v1/enrol", made_up).error == "late"
        del table["challenge"]
        assert app.ask("POST", "/v1/enrol", json.dumps(table).encode()).error == "malformed"
        waiting = device.enrolment(challenge_of(app.ask))
    with ProxyApp(folder) as app:
        assert app.ask("POST", "/v1/enrol", body).error == "late", "nor after a restart"
        assert app.ask("POST", "/v1/enrol", waiting).error == "late"
        assert device.enrol(app.ask).account_key


def test_challenges_are_good_once_and_for_a_minute():
    now = [100.0]
    asked = Challenges(most=3, clock=lambda: now[0])
    first, late, other = asked.new(), asked.new(), Challenges(clock=lambda: now[0]).new()
    assert len({first, late, other}) == 3
    asked.spend(first)
    for bad, reason in (
        (first, "replay"),
        (other, "late"),
        (b"", "late"),
        (first[:-1] + bytes([first[-1] ^ 1]), "late"),
        (struct.pack("<Q", 2**63) + late[8:], "late"),
    ):
        with pytest.raises(Refused) as refused:
            asked.spend(bad)
        assert refused.value.reason == reason
    now[0] += SECONDS + 0.01
    with pytest.raises(Refused, match="older"):
        asked.spend(late)
    for _ in range(3):  # what is too old makes room
        asked.spend(asked.new())
    with pytest.raises(Refused, match="come back"):
        asked.spend(asked.new())
    assert "redacted" in repr(asked)
    assert len(first) == CHALLENGE_BYTES


def test_a_signature_for_the_proxy_is_bound_to_the_challenge():
    statements = {
        enrolment_statement(name, word, challenge)
        for name in ("town", "city")
        for word in (bytes(64), bytes([1]) * 64)
        for challenge in (bytes(48), bytes([1]) * 48)
    }
    assert len(statements) == 8


# --- the orchestrator -----------------------------------------------------------------------------


@pytest.fixture
def orchestrator(tmp_path):
    with OrchestratorApp(new_orchestrator(tmp_path), guess_seconds=0.0) as app:
        yield app


def test_nobody_gets_a_pass_for_somebody_elses_key(orchestrator):
    app = orchestrator
    mallory, alice = invite_users(app.folder, app.store, 2, "https://127.0.0.1:1")
    key, victim = key_of(app.ask), User(alice)
    own = json.loads(User(mallory).enrolment(key))
    hers = json.loads(victim.enrolment(key))
    for changes in (
        {"public": hers["public"]},
        {"public": hers["public"], "proof": hers["proof"]},
        {"proof": "00" * 32},
    ):
        got = app.ask("POST", "/v1/enrol", json.dumps({**own, **changes}).encode())
        assert (got.status, got.error) == (401, "bad_mac")
    del own["proof"]
    assert app.ask("POST", "/v1/enrol", json.dumps(own).encode()).error == "malformed"
    assert app.store.n_users == 0
    assert victim.enrol(app.ask).status == 200
    assert victim.orchestrator == key
    other = User(mallory).enrolment(Identity().public)
    assert app.ask("POST", "/v1/enrol", other).error == "bad_mac", "proven to somebody else"


def test_guesses_at_the_orchestrator_hold_nobody_up(tmp_path):
    with OrchestratorApp(new_orchestrator(tmp_path), guess_seconds=0.3) as app:
        (invitation,) = invite_users(app.folder, app.store, 1, "https://127.0.0.1:1")
        (user,) = app.users(1)
        guess = json.loads(User(invitation).enrolment(key_of(app.ask)))
        guess["token"] = secrets.token_hex(32)
        began = time.monotonic()
        assert app.ask("POST", "/v1/enrol", json.dumps(guess).encode()).error == "bad_token"
        assert time.monotonic() - began >= 0.3
        assert User(invitation).enrol(app.ask).status == 200
        assert user.given.user == 0
