"""The vectors of `tests/vectors`: every message as bytes, what it says, and what must be refused.

An implementation in another language can be held to them. Run this file to write them
anew. A file says what its reader must know (`given`, and the keys); each vector has its
kind of message, the bytes, what they say, and bytes that must be refused. Keys are fixed, and so
are the ephemeral keys of what is sealed: HPKE is written out here, since a library draws them.
"""

import dataclasses
import hashlib
import hmac
import json
from pathlib import Path
from unittest import mock

import numpy as np
import place_vectors
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from server_world import terms as made_terms

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import (
    BitReports,
    CheckParts,
    DeviceReports,
    MaskSum,
    ModelView,
    SummedReports,
    SumPart,
)
from sottovoce.core.shares import drawn
from sottovoce.errors import MessageError
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.wire import (
    masked,
    owners,
    reports,
    sealing,
    shared,
    shuffled,
    silo_rounds,
    users,
    versions,
)
from sottovoce.wire.cohort_rounds import CohortAnswer, CohortQuestion, CohortTask
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import SEALED_BYTES, Identity, Offer, SessionSender
from sottovoce.wire.passes import Issuer, Pass
from sottovoce.wire.signing import open_envelope, prove, seal
from sottovoce.wire.terms import Terms

FOLDER = Path(__file__).parents[1] / "vectors"
HERE, THERE = Identity(bytes(range(32))), Identity(bytes(range(32, 64)))
EPHEMERAL = bytes(range(64, 96))
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(96, 128)))
ISSUER = Issuer("town", bytes(range(128, 160)))
NONCE = bytes(range(16))
GIVEN = ISSUER.admit(7, HERE.public)
TIME = 1_700_000_000


# --- as JSON -------------------------------------------------------------------------------------


def plain(thing):
    """What a message says, as JSON tells it: bytes are hexadecimal."""
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if isinstance(thing, bytes | memoryview):
        return bytes(thing).hex()
    if isinstance(thing, list | tuple):
        return [plain(one) for one in thing]
    if isinstance(thing, dict):
        return {name: plain(one) for name, one in thing.items()}
    if isinstance(thing, Terms):
        return thing.to_table()
    if isinstance(thing, Directory):
        return {
            "version": thing.version,
            "catalogue": list(thing.catalogue),
            "owners": [owner.to_table() for owner in thing.owners],
        }
    if dataclasses.is_dataclass(thing):
        names = [f.name for f in dataclasses.fields(thing) if not f.name.startswith("_")]
        return {name: plain(getattr(thing, name)) for name in names}
    return thing.item() if isinstance(thing, np.generic) else thing


def packed(content):
    """A table of numbers, texts and bytes: the bytes in hexadecimal, by another name."""
    table = {f"{k}:hex" if isinstance(v, bytes) else k: plain(v) for k, v in content.items()}
    return json.dumps(table, sort_keys=True).encode()


def unpacked(text):
    table = json.loads(text)
    return {
        k.removesuffix(":hex"): bytes.fromhex(v) if k.endswith(":hex") else v
        for k, v in table.items()
    }


# --- what is sealed ------------------------------------------------------------------------------


def hpke(plaintext, public, info, ephemeral=EPHEMERAL):
    """RFC 9180, base mode, X25519, HKDF-SHA256 and AES-128-GCM, with a fixed ephemeral key."""
    once = X25519PrivateKey.from_private_bytes(ephemeral)
    enc = once.public_key().public_bytes_raw()
    kem = b"KEM" + (0x20).to_bytes(2, "big")
    suite = b"HPKE" + b"".join(one.to_bytes(2, "big") for one in (0x20, 1, 1))

    def extract(name, salt, label, key):
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + name + label + key, "sha256")

    def expand(name, key, label, info, length):
        labelled = length.to_bytes(2, "big") + b"HPKE-v1" + name + label + info
        return hmac.digest(key, labelled + b"\1", "sha256")[:length]

    agreed = once.exchange(X25519PublicKey.from_public_bytes(public))
    shared = expand(kem, extract(kem, b"", b"eae_prk", agreed), b"shared_secret", enc + public, 32)
    names = b"\0", extract(suite, b"", b"psk_id_hash", b""), extract(suite, b"", b"info_hash", info)
    secret = extract(suite, shared, b"secret", b"")
    key = expand(suite, secret, b"key", b"".join(names), 16)
    nonce = expand(suite, secret, b"base_nonce", b"".join(names), 12)
    return enc + AESGCM(key).encrypt(nonce, plaintext, None)


def sealed_reports(values):
    public = THERE.public
    place = (5).to_bytes(4, "little") + b"\1" + hashlib.sha256(public).digest()
    info = b"sottovoce report\0town\0" + place
    return b"".join(hpke(int(value).to_bytes(4, "little"), public, info) for value in values)


def layered_reports(values):
    """Sealed to the server and then to the second shuffler of a chain."""
    inner, size = sealed_reports(values), sealing.SEALED_BYTES
    place = (5).to_bytes(4, "little") + b"\1" + hashlib.sha256(THERE.public).digest() + b"\1"
    info = b"sottovoce layer\0town\0" + place + hashlib.sha256(HERE.public).digest() + bytes(32)
    return b"".join(
        hpke(inner[at : at + size], HERE.public, info) for at in range(0, len(inner), size)
    )


def sealed_seed(terms):
    bound, device = masked.binding(terms, 5, 1, bytes(32)), SIGNER.public_key().public_bytes_raw()
    found = hpke(bytes(range(32)), THERE.public, b"sottovoce mask seed\0" + bound + device)
    signature = SIGNER.sign(b"sottovoce sealed mask seed\0" + bound + found)
    return masked.SealedSeed(device, found, signature)


def checked_terms():
    keys = tuple(one.public.hex() for one in (HERE, THERE, Identity(EPHEMERAL)))
    link = CheckedSum(3, urls=("https://one", "https://two"), authorities=("1", "2"), keys=keys)
    return Terms("town", 20, GramConfig(popularity_share=0.5), OwnEpsilon(2.0), link)


SECRETS = tuple(bytes([k]) * 32 for k in range(3))
TRAVELLED = np.arange(21 * 12 + 25, dtype="<u4").tobytes()
"""Of a round with 21 places, each of 12 bits, and 25 bits of slack."""


def record_of_shares(terms):
    """With a fixed ephemeral key, which a device draws."""
    bound = shared.binding(terms, 5, 1, bytes(32), 21)
    device = SIGNER.public_key().public_bytes_raw()
    committed = tuple(
        hashlib.sha256(b"sottovoce secret of a share\0" + bound + bytes([k]) + one).digest()
        for k, one in enumerate(SECRETS)
    )
    sealed = tuple(
        hpke(
            SECRETS[k] + SECRETS[(k + 1) % 3],
            bytes.fromhex(key),
            b"sottovoce secrets of shares\0" + bound + bytes([k]) + device,
        )
        for k, key in enumerate(terms.link.keys)
    )
    digest = hashlib.sha256(TRAVELLED).digest()
    said = b"".join([device, *committed, digest, *sealed])
    signature = SIGNER.sign(b"sottovoce record of shares\0" + bound + said)
    return shared.SharedRecord(device, committed, digest, sealed, signature)


def shares_of(body):
    terms = checked_terms()
    found = shared.SharedRecord.of(body)
    bound = shared.binding(terms, 5, 1, bytes(32), 21)
    keys = HERE, THERE, Identity(EPHEMERAL)
    opened = [
        shared.open_secrets(
            found, k, X25519PrivateKey.from_private_bytes(one.private_bytes()), bound
        )
        for k, one in enumerate(keys)
    ]
    return {
        **plain(found),
        "name": plain(found.name),
        "signed": shared.is_signed(found, bound),
        "secrets": plain(opened),
        "fits": shared.fits(found, TRAVELLED, 277),
    }


def refuse():
    raise MessageError("this is none")


def pair_of_aggregators(body):
    """What each shares with the next one and with the one before, from its private key."""
    number, private = body[0], body[1:]
    if len(private) != 32 or number > 2:
        refuse()
    key = X25519PrivateKey.from_private_bytes(private)
    return plain(shared.pair_secrets(checked_terms(), number, key))


def session():
    """Key of the session between user 7 and data owner 3, agreed with fixed one-time keys."""
    hers, its = Identity(EPHEMERAL), Identity(bytes(range(160, 192)))
    info = b"sottovoce interaction 1\0" + (7).to_bytes(4, "little") + (3).to_bytes(4, "little")
    info += HERE.public + THERE.public + hers.public + its.public
    secret = HERE.agree(its.public) + hers.agree(THERE.public) + hers.agree(its.public)
    salt = hashlib.sha256(info).digest()
    key = HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(secret)
    offer = Offer(3, THERE)
    offer._once, offer.public = its, its.public
    return key, offer.accept(7, HERE.public, hers.public)


# --- every kind of message -----------------------------------------------------------------------


def i64(values):
    return np.array(values, dtype=np.int64)


def summed_terms(**changes):
    from secure_sum_world import summed_terms as made

    return made(THERE.public.hex(), **changes)


SHORT = summed_terms(bits=40)
PLACE = {"n_items": 40, "width": 2, "round": 5}
ITEM, VALUES = np.array([1, 5, 39], np.int32), i64([[1, -70_000], [3, 2**30], [-5, 0]])
BEFORE = ModelView(4, np.ones((40, 2), np.float32))
AFTER = ModelView(5, np.where(np.arange(40)[:, None] == 3, np.float32(0.1), BEFORE.items))
IN_STEPS = ModelView(5, np.where(np.arange(40)[:, None] == 3, np.float32([0.1, -0.5]), 1.0))
"""The second column has whole multiples of a half."""
ENTRY = OwnerEntry(3, "Bakery", "https://bakery.example:8443", THERE.public, "", (1, 2))
SETTINGS = DRIFTConfig(positive_from=4.0)
"""As it was recorded; the default is another one by now."""
DIRECTORY = Directory("town", ISSUER.public, 2, SETTINGS, ("a", "b", "c"), (ENTRY,))
SOME, TABLE = i64([1, 4]), np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


def asked(purpose, content):
    with mock.patch("sottovoce.wire.users.os.urandom", return_value=NONCE):
        return users.ask(purpose, content, GIVEN, HERE, "town", THERE.public, TIME)


def question_of(body):
    found = users.read_question(body)
    return {**plain(found), "proven": found.is_proven("recommend", "town", THERE)}


def envelope_of(body):
    found = open_envelope(body)
    return {**plain(found), "signed": found.signed_by(SIGNER.public_key(), "town", "report")}


def enveloped(number, round, attempt, nonce, body):
    place = {"number": number, "round": round, "attempt": attempt, "nonce": nonce}
    return seal(SIGNER, "town", "report", **place, body=body)


def submission_of(body):
    found = plain(shuffled.decode_submission(body, 2, 2))
    return {**found, "authentic": shuffled.is_authentic(body, bytes(32))}


def seed_of(body):
    terms = summed_terms()
    found, bound = masked.SealedSeed.of(body), masked.binding(terms, 5, 1, bytes(32))
    key = X25519PrivateKey.from_private_bytes(THERE.private_bytes())
    signed = masked.is_signed(found, bound)
    return {**plain(found), "seed": plain(masked.open_seed(found, key, bound)), "signed": signed}


def opened(body):
    private = THERE.private_bytes()
    found, bad = sealing.open_reports(body, private, federation="town", round=5, tier=1)
    return {"reports": found.tolist(), "refused": bad}


def one_layer_off(body):
    info = sealing.layer_info(
        HERE.public, federation="town", round=5, tier=1, hop=1, key=sealing.key_id(THERE.public),
        terms=bytes(32),
    )  # fmt: skip
    inner, bad = sealing.open_records(body, 100, HERE.private_bytes(), info)
    return {"records": inner.hex(), "refused": bad, "inside": opened(inner)}


def interactions_of(body):
    receiver, size = session()[1], SEALED_BYTES
    return [plain(receiver.open(body[at : at + size])) for at in range(0, len(body), size)]


def as_json(kind):
    return lambda body: plain(kind.from_content(unpacked(body)))


READERS = {
    "report": lambda b: plain(reports.decode_report(b, sender=0, max_rows=30, **PLACE)),
    "sum": lambda b: plain(reports.decode_sum(b, **PLACE)),
    "bits": lambda b: plain(reports.decode_bits(b)),
    "model": lambda b: plain(versions.decode_model(b, n_items=40, width=2, have=BEFORE)),
    "envelope": envelope_of,
    "masked update": lambda b: plain(masked.decode_masked(b, summed_terms(), 5, 1, 200)),
    "masked update of 40 bits": lambda b: plain(masked.decode_masked(b, SHORT, 5, 1, 200)),
    "sealed seed": seed_of,
    "question for masks": lambda b: plain(masked.decode_question(b)),
    "sum of masks": lambda b: plain(masked.decode_mask_sum(b, summed_terms())),
    "sum of masks of 40 bits": lambda b: plain(masked.decode_mask_sum(b, SHORT)),
    "contribution in shares": lambda b: plain(shared.decode_shared(b, 5, 1, 277)),
    "record of shares": shares_of,
    "pair of aggregators": pair_of_aggregators,
    "shares for an aggregator": lambda b: plain(shared.decode_shares(b)),
    "question for a coin": lambda b: plain(shared.decode_question(b)),
    "question for checks": lambda b: plain(shared.decode_question(b, coins=True)),
    "question for a part": lambda b: plain(shared.decode_question(b, coins=True, kept=True)),
    "numbers of a secret": lambda b: plain(drawn(b, 8)) if len(b) == 32 else refuse(),
    "coin": lambda b: plain(shared.decode_coin(b, 5)),
    "parts of checks": lambda b: plain(shared.decode_checks(b, 5, 1, 3)),
    "part of a sum": lambda b: plain(shared.decode_part(b, 5, 1, 3, 4)),
    "sealed reports": opened,
    "layered reports": one_layer_off,
    "submission": submission_of,
    "part of a batch": lambda b: plain(shuffled.decode_part(b)),
    "pass": lambda b: plain(Pass.decode(b)),
    "question of a user": question_of,
    "vector": lambda b: plain(users.decode_vector(b, 2)),
    "item rows": lambda b: plain(users.decode_item_rows(b, 9, 2)),
    "enrolment of a user": lambda b: plain(users.Enrolment.decode(b)),
    "session": lambda b: plain(owners.decode_session(b)),
    "interactions": lambda b: plain(owners.decode_interactions(b)),
    "sealed interactions": interactions_of,
    "row request": lambda b: plain(silo_rounds.decode_row_request(b)),
    "rows": lambda b: plain(silo_rounds.decode_rows(b)),
    "gradients": lambda b: plain(silo_rounds.decode_gradients(b)),
    "query of rows": as_json(silo_rounds.QueryRows),
    "rows wanted": as_json(silo_rounds.RowsWanted),
    "task with rows": as_json(silo_rounds.TaskRows),
    "gradients sent": as_json(silo_rounds.GradientsSent),
    "question of a cohort": as_json(CohortQuestion),
    "task of a cohort": as_json(CohortTask),
    "answer of a cohort": as_json(CohortAnswer),
    "directory": lambda b: plain(Directory.read(b, "town", ISSUER.public)),
    "terms": lambda b: plain(Terms.from_table(json.loads(b))),
}
"""By kind of message: from bytes to what they say."""


def _federation():
    """What devices, server, shuffler and helper say to each other."""
    sender = np.zeros(3, np.int64)
    report = reports.encode_report(DeviceReports(5, sender, ITEM, VALUES))
    alike = i64([[7, 7]] * 40)
    many = SummedReports(5, np.arange(40, dtype=np.int32), alike, 9)
    yield "report", report, [b"SVU2" + report[4:], report[:-1], report + b"\0"]
    yield "sum", reports.encode_sum(SummedReports(5, ITEM, VALUES, 9)), [report]
    yield "sum", reports.encode_sum(many), []
    bits = BitReports(5, np.array([0]), np.array([1]), np.array([[2, 9]], np.uint32))
    yield "bits", reports.encode_bits(bits), [reports.encode_bits(bits)[:-1]]
    whole = versions.encode_model(AFTER)
    part = versions.encode_delta(4, AFTER, np.any(AFTER.items != BEFORE.items, axis=1))
    yield "model", whole, [b"SVM1" + whole[4:], whole[:-4]]
    yield "model", part, [part[:-4], part + part[-4:]]
    stepped = versions.encode_model(IN_STEPS)
    part = versions.encode_delta(4, IN_STEPS, np.any(IN_STEPS.items != BEFORE.items, axis=1))
    yield "model", stepped, [b"SVV3" + stepped[4:], stepped[:-4], stepped[:25]]
    yield "model", part, [part[:-4], part + part[-4:]]
    sent = enveloped(2, 5, 1, NONCE, report)
    yield "envelope", sent, [b"SVE2" + sent[4:], sent[:90]]
    yield "envelope", sent[:-1] + b"\xff", []

    terms, words = summed_terms(), np.arange(10_000, dtype=np.uint64)
    words = words[: terms.n_rows * terms.width] * np.uint64(2**50)
    one = sealed_seed(terms)
    update = masked.encode_masked(terms, words, one, 5, 1)
    yield "masked update", update, [b"SVM2" + update[4:], update[:-1]]
    short = masked.encode_masked(SHORT, words >> np.uint64(24), sealed_seed(SHORT), 5, 1)
    yield "masked update of 40 bits", short, [update, short[:-1]]
    yield "sealed seed", one.content, []
    yield "sealed seed", one.content[:-1] + b"\0", []
    question = masked.encode_question(terms, 5, 1, bytes(32), [one, one])
    yield "question for masks", question, [question[:-1], b"SVQ3" + question[4:]]
    many = masked.encode_question(terms, 5, 1, bytes(32), [one, one], 21)
    yield "question for masks", many, [many[:-1], b"SVQ1" + many[4:]]
    groups = masked.encode_group_question(terms, 5, 1, bytes(32), [[one], [one]], 1)
    yield "question for masks", groups, [groups[:-1], b"SVQ1" + groups[4:]]
    told = masked.encode_mask_sum(MaskSum(5, 2, words[:3]))
    yield "sum of masks", told, [told[:-1], b"SVK2" + told[4:]]
    short = masked.encode_mask_sum(MaskSum(5, 2, words[:3] >> np.uint64(24), 40))
    yield "sum of masks of 40 bits", short, [told, short[:-1]]

    yield from _checked()
    sealed = sealed_reports([8, 13])
    yield "sealed reports", sealed, [sealed[:-1]]
    yield "sealed reports", sealed[:52] + bytes(52), []
    layered = layered_reports([8, 13])
    yield "layered reports", layered, [layered[:-1], sealed]
    yield "layered reports", layered[:100] + bytes(100), []
    name, key = shuffled.terms_name(made_terms()), sealing.key_id(THERE.public)
    submitted = shuffled.encode_submission(NONCE, bytes(32), 5, 1, key, sealed, terms=name)
    yield "submission", submitted, [b"SVP1" + submitted[4:], submitted[:-1], submitted + sealed]
    yield "submission", submitted[:-1] + b"\0", []
    batch = shuffled.encode_part(shuffled.BatchPart(5, 1, key, 2, 0, 1, NONCE, sealed))
    yield "part of a batch", batch, [batch[:-1], b"SVB2" + batch[4:]]
    question = CohortQuestion(made_terms(), 5, 1, (4, 0), whole)
    yield "question of a cohort", packed(question.to_content()), [b'{"protocol": 1}', b"{}"]
    task = CohortTask(made_terms(), 5, 1, None, numbers=SOME)
    yield "task of a cohort", packed(task.to_content()), [packed(question.to_content())]
    answer = CohortAnswer(SOME, 5, 5, 1, b"sum", 2, "")
    yield "answer of a cohort", packed(answer.to_content()), [b"{}"]
    table = made_terms().to_table()
    other = json.dumps({**table, "protocol": 3}).encode()
    yield "terms", json.dumps(table, sort_keys=True).encode(), [other, b"[]"]


def _checked():
    """What devices, server and aggregators say to each other where sums are checked."""
    terms = checked_terms()
    one, about = record_of_shares(terms), shared.About.of(terms, 5, 1, bytes(32), 21)
    sent = shared.encode_shared(TRAVELLED, one, 5, 1)
    large = sent[:16] + b"\xff\xff\xff\x7f" + sent[20:]
    yield "contribution in shares", sent, [b"SVT2" + sent[4:], sent[:-1], sent + b"\0", large]
    yield "numbers of a secret", SECRETS[1], [bytes(31)]
    yield "record of shares", one.content, []
    yield "record of shares", one.content[:40] + b"\0" + one.content[41:], []
    for number, who in enumerate((HERE, THERE, Identity(EPHEMERAL))):
        yield "pair of aggregators", bytes([number]) + who.private_bytes(), [b"\3" + bytes(32)]
    passed = shared.encode_shares(about, [(one, TRAVELLED), (one, TRAVELLED)])
    yield "shares for an aggregator", passed, [passed[:-1], b"SVA2" + passed[4:], passed[:90]]
    names, coins = (
        tuple(bytes([k]) * 32 for k in (1, 2, 9)),
        tuple(bytes([k]) * 32 for k in range(3)),
    )
    asked = shared.encode_question(shared.SetQuestion(about, names))
    unordered = shared.encode_question(shared.SetQuestion(about, names[::-1]))
    yield "question for a coin", asked, [asked[:-1], b"SVC2" + asked[4:], unordered, asked[:84]]
    checks = shared.encode_question(shared.SetQuestion(about, names, coins))
    yield "question for checks", checks, [checks[:-32], asked, b"SVF2" + checks[4:]]
    kept = np.array([True, False, True])
    part = shared.encode_question(shared.SetQuestion(about, names, coins, kept))
    yield "question for a part", part, [part[:-1], part[:-1] + b"\xff", checks]
    coin = shared.encode_coin(5, coins[1])
    yield "coin", coin, [coin[:-1], shared.encode_coin(6, coins[1]), coin + b"\0"]
    numbers = np.arange(6, dtype=np.uint32)
    told = shared.encode_checks(CheckParts(5, 1, numbers.reshape(3, 2)))
    other = shared.encode_checks(CheckParts(6, 1, numbers.reshape(3, 2)))
    yield "parts of checks", told, [told[:-4], other, told[:-4] + b"\xff\xff\xff\xff"]
    told = shared.encode_part(SumPart(5, 1, 3, numbers[:4]))
    wrong = shared.encode_part(SumPart(5, 1, 2, numbers[:4]))
    yield "part of a sum", told, [told[:-4], wrong, told[:-4] + b"\xff\xff\xff\xff"]


def _silos():
    """What users, data owners and the orchestrator of a DRIFT federation say to each other."""
    given = GIVEN.encode()
    yield "pass", given, [given[:-1], b"SVP2" + given[4:]]
    question = asked("recommend", users.encode_count(3))
    yield "question of a user", question, [question[:140], b"SVU2" + question[4:]]
    yield "question of a user", question[:-1] + b"\0", []
    yield "vector", users.encode_vector(TABLE[0], 2), [b"\2" + bytes(8), bytes(8)]
    yield "vector", users.encode_vector(None, 2), []
    rows = users.encode_item_rows(TABLE)
    yield "item rows", rows, [b"SVR1" + rows[4:], rows[:-4]]
    wanted = users.Enrolment.of(bytes(range(32)), HERE, "town", THERE.public).encode()
    unproven = json.dumps({**json.loads(wanted), "proof": "00"}).encode()
    yield "enrolment of a user", wanted, [unproven, b"{}"]
    yield "enrolment of a user", wanted.replace(b'"protocol": 2', b'"protocol": 1'), []

    sender = SessionSender(session()[0], 7, 3)
    sealed = [sender.seal(0, "positive", 1, TIME), sender.seal(1, "end")]
    both, first = b"".join(sealed), sealed[0]
    yield "sealed interactions", both, [sealed[1] + first, first * 2, both[:-1] + b"\0"]
    begun = owners.encode_session(NONCE, HERE.public, sealed)
    yield "session", begun, [begun[:-1], begun[:48]]
    more = owners.encode_interactions(NONCE, sealed)
    yield "interactions", more, [more[:-1], more[:16]]

    request, given_rows = RowRequest(3, SOME, SOME), Rows(8, SOME, SOME, TABLE, TABLE)
    gradients = Gradients(3, 8, SOME, SOME, TABLE, TABLE)
    content = silo_rounds.encode_row_request(request)
    yield "row request", content, [content[:-1], content + b"\0" * 4]
    content = silo_rounds.encode_rows(given_rows)
    yield "rows", content, [content[:-1], content[:16]]
    content = silo_rounds.encode_gradients(gradients)
    yield "gradients", content, [content[:-1], content[:20]]
    for kind, message in (
        ("query of rows", silo_rounds.QueryRows("town", 5, 4, False, SOME)),
        ("rows wanted", silo_rounds.RowsWanted(3, 5, SOME, request)),
        ("task with rows", silo_rounds.TaskRows("town", 5, given_rows)),
        ("gradients sent", silo_rounds.GradientsSent(3, 5, gradients)),
        ("gradients sent", silo_rounds.GradientsSent(3, 5, None, "everybody has left")),
    ):
        table = message.to_content()
        yield kind, packed(table), [packed({**table, "protocol": 1}), b"{}"]
    signed = DIRECTORY.sign(ISSUER)
    yield "directory", signed, [signed.replace(b"Bakery", b"Butchr"), signed[2:]]


GIVENS = {
    "federation": {
        "federation": "town", **PLACE, "attempt": 1, "tier": 1, "tiers": 2, "reports": 2,
        "model before": "round 4, 40 rows of two ones", "model name": bytes(32).hex(),
        "account key": bytes(32).hex(), "sealed to": "there", "signed by": "signer",
        "checked sum": {
            "terms": checked_terms().to_table(), "numbers": 21,
            "keys of aggregators": ["here", "there", "ephemeral"],
            "secrets": [one.hex() for one in SECRETS], "travels": "numbers 0 to 276",
        },
        "second shuffler": "here", "name of its terms": bytes(32).hex(),
    },
    "silos": {
        "federation": "town", "user": 7, "her key": "here", "data owner": 3,
        "key of the owner and of the orchestrator": "there", "embedding size": 2,
        "her one-time key": "ephemeral", "the owner's one-time key": bytes(range(160, 192)).hex(),
        "purpose of questions": "recommend",
    },
}  # fmt: skip
"""What a reader of the vectors knows beforehand."""


READERS |= place_vectors.READERS


def vectors():
    """By file: what stands in it."""
    known = {"here": HERE, "there": THERE, "issuer": ISSUER}
    keys = {name: thing.private_bytes().hex() for name, thing in known.items()}
    keys |= {"signer": SIGNER.private_bytes_raw().hex(), "ephemeral": EPHEMERAL.hex()}
    files = {}
    for name, made in (("federation", _federation()), ("silos", _silos())):
        cases = [
            {
                "kind": kind,
                "bytes": content.hex(),
                "says": READERS[kind](content),
                "refused": [one.hex() for one in refused],
            }
            for kind, content, refused in made
        ]
        files[f"{name}.json"] = {"given": GIVENS[name], "private_keys": keys, "vectors": cases}
    token = bytes(range(32))
    proof = {"token": token.hex(), "signature": prove(SIGNER, "town", token).hex()}
    files["federation.json"]["enrolment of a device"] = proof
    return files | place_vectors.files()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in vectors().items():
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")
