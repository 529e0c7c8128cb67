"""What a device computes, function by function, from JSON to JSON: `FUNCTIONS`, by name.

The vectors in `tests/vectors/device` are made by these, and `cross_language.py` answers for them.
Bytes are hexadecimal. A number that is not whole is the hexadecimal of its IEEE 754 bits, the sign
first: 16 digits of double precision, 8 of single. A table of single precision (a model) is the
hexadecimal of its bytes, little-endian, row by row.
"""

import hashlib
import json
import math
import struct
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numba import njit
from wire_vectors import hpke

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram import quality
from sottovoce.algorithms.pairwise import factors, kernels
from sottovoce.core import contributions, interactions, masking, portable, shares
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent, affords, thresholds
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import DeviceReports, ModelView
from sottovoce.core.recommender import FactorScorer, recommend
from sottovoce.errors import ConsentError, MessageError, SottovoceError, StoreError
from sottovoce.parties.device import Devices
from sottovoce.privacy import central, own_epsilon
from sottovoce.privacy.mechanisms import _flag_smallest
from sottovoce.privacy.own_epsilon import BoundContributions, OwnEpsilon
from sottovoce.rng import SecretStreams, Streams, words_of
from sottovoce.services.agent.agent import enrolment
from sottovoce.services.kit.pacing import Pace
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing, sealed_by
from sottovoce.stores.session import DeviceSession
from sottovoce.wire import catalogue, masked, reports, shared, shuffled, signing, versions
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.terms import Terms

# --- as JSON -------------------------------------------------------------------------------------


def f64(x):
    return struct.pack(">d", float(x)).hex()


def f32(x):
    return struct.pack(">f", float(x)).hex()


def d(text):
    """The double that these bits are."""
    return struct.unpack(">d", bytes.fromhex(text))[0]


def s(text):
    return struct.unpack(">f", bytes.fromhex(text))[0]


def doubles(texts):
    return np.array([d(one) for one in texts], dtype=np.float64)


def all_f64(values):
    return [f64(one) for one in np.asarray(values).ravel().tolist()]


def table(content, width):
    return np.frombuffer(bytes.fromhex(content), "<f4").astype(np.float32).reshape(-1, width)


def as_table(values):
    return np.ascontiguousarray(values, dtype="<f4").tobytes().hex()


def h(text):
    return bytes.fromhex(text)


def history_of(items, times, n_items):
    order = np.argsort(np.array(items, dtype=np.int64), kind="stable")
    when = None if times is None else np.array(times, dtype=np.int64)[order]
    own = np.array(items, dtype=np.int32)[order]
    return Interactions(np.array([0, len(own)]), own, n_items, when)


def terms_of(text):
    return Terms.from_table(json.loads(text))


FUNCTIONS = {}


def function(made):
    """Names a function by its own name."""
    FUNCTIONS[made.__name__] = made
    return made


# --- arithmetic ----------------------------------------------------------------------------------


@njit(cache=True)
def _slope(x):
    return kernels.slope(x)


@njit(cache=True)
def _exponential(x):
    return kernels.exponential(x)


@function
def exp(x):
    return f64(portable.exp(d(x)))


@function
def log(x):
    return f64(portable.log(d(x)))


@function
def scaled_erfc(x):
    return f64(portable.scaled_erfc(d(x)))


@function
def gaussian_delta(distance, epsilon):
    return f64(portable.gaussian_delta(d(distance), d(epsilon)))


@function
def exp32(x):
    """FPL's exponential, of single precision."""
    return f32(_exponential(np.float32(s(x))))


@function
def sigmoid32(x):
    """σ(−x) of FPL, of single precision."""
    return f32(_slope(np.float32(s(x))))


@function
def exact_sum(numbers):
    return f64(math.fsum(d(one) for one in numbers))


# --- ε -------------------------------------------------------------------------------------------


@function
def price(noise, delta):
    return f64(central.price(d(noise), 1, d(delta)))


@function
def noise_for(epsilon, delta):
    return f64(central.noise_for(d(epsilon), 1, d(delta)))


def bound(release, epsilon, total="7ff0000000000000"):
    users = np.zeros(1, dtype=np.int64)
    choice = Choice(takes_part=True, epsilon=d(epsilon), total_epsilon=d(total))
    consent = Consent.uniform(users, choice)
    settings = OwnEpsilon(epsilon=d(release["epsilon"]), delta=d(release["delta"]))
    made = settings.bind(users, consent, None, Streams.from_seed(0))
    assert isinstance(made, BoundContributions)
    return settings, made


@function
def scale(release, epsilon):
    """σ of the release, μ and c of a user who permits this ε."""
    settings, made = bound(release, epsilon)
    own = float(np.float32(d(epsilon)))
    loud = settings.loudness(own)
    return {"sigma": f64(settings.sigma), "loudness": f64(loud), "scale": f64(made.scale[0])}


@function
def mark(round, stages, batches, sent):
    """Of a round, and what is noted of a device that was in it, too."""
    one = own_epsilon.mark_of(round, stages, batches)
    return {"mark": one, "sent": int(own_epsilon.marked(np.array([sent]), one)[0])}


@function
def beyond(then, stages, shares, now):
    told = [(d(share), d(mu)) for share, mu in then]
    return f64(own_epsilon.beyond(told, stages, [d(one) for one in shares], d(now)))


@function
def cost(release, epsilon, total, shares, batches, round, sent, beyond, spent):
    """What a round adds to what she has spent, and whether there is room for the rest of its
    period."""
    _, made = bound(release, epsilon, total)
    own, so_far = [d(one) for one in shares], np.array([sent])
    more, before = np.array([d(beyond)]), np.array([d(spent)])
    return {
        "cost": f64(made.costs(round, so_far, own, batches, more)[0]),
        "room": bool(made.room(before, so_far, own, round, batches, more)[0]),
    }


@function
def has_room(spent, cost, limit):
    return bool(affords(doubles([spent]), doubles([cost]), doubles([limit]))[0])


# --- gram ----------------------------------------------------------------------------------------


@function
def positions(items, times, n_items):
    """By item, ascending."""
    return all_f64(interactions.positions(history_of(items, times, n_items)))


@function
def home_weights(items, times, n_items, memory):
    """By item, ascending, before they are scaled to norm 1."""
    return all_f64(interactions.recency(history_of(items, times, n_items), d(memory)))


@function
def held_out(items, times, n_items, share):
    before, held = quality.parted(history_of(items, times, n_items), d(share))
    return {"before": before.items.tolist(), "held": held.items.tolist()}


@function
def home_vector(terms, model, items, times):
    """The vector by which gram recommends."""
    settings = terms_of(terms)
    mine = history_of(items, times, settings.n_items)
    return as_table(settings.build()._vectors(table(model, settings.width), mine))


@function
def gram_list(terms, model, items, times, many):
    """The best items beside her own, and their scores."""
    settings = terms_of(terms)
    algorithm, view = settings.build(), table(model, settings.width)
    mine = history_of(items, times, settings.n_items)
    scorer = algorithm.device_scorer(algorithm._vectors(view, mine), view)
    found, scores = recommend(scorer, 0, mine.items, many)
    return {"items": found.tolist(), "scores": [f32(one) for one in scores.tolist()]}


@function
def ranked(vector, items, bias, size, seen, many):
    """By the chain of fused multiply-adds, of single precision."""
    scorer = FactorScorer(table(vector, size), table(items, size), table(bias, 1).ravel())
    found, scores = recommend(scorer, 0, np.array(seen, dtype=np.int32), many)
    return {"items": found.tolist(), "scores": [f32(one) for one in scores.tolist()]}


def cohort_of(settings, items, times, published=None, choice=None, spent=0.0, sent=0, beyond=0.0):
    users = np.zeros(1, dtype=np.int64)
    consent = Consent.uniform(users, choice or Choice(takes_part=True, epsilon=1.0))
    mine = history_of(items, times, settings.n_items)
    vectors = np.zeros((1, settings.algorithm.embedding_size), dtype=np.float32)
    return Cohort(
        users, mine, consent, vectors, np.array([spent]), sent=np.array([sent]),
        beyond=np.array([beyond]), published=published,
    )  # fmt: skip


@function
def profile(terms, round, model, published, items, times):
    """What a device could tell in a round of gram."""
    settings = terms_of(terms)
    view = ModelView(round, table(model, settings.width))
    before = None if published is None else table(published, settings.width)
    cohort = cohort_of(settings, items, times, before)
    made = settings.build().device_profile(view, cohort, np.array([0]))
    return {
        "place": made.place.tolist(), "value": all_f64(made.value), "size": made.size,
        "pairs": made.pairs, "items": int(made.items[0]),
    }  # fmt: skip


@function
def hits(terms, model, published, items, times):
    """By the model of the round, by the published one, and by popularity alone."""
    settings = terms_of(terms)
    algorithm, view = settings.build(), table(model, settings.width)
    mine = history_of(items, times, settings.n_items)
    before, held = quality.parted(mine, settings.algorithm.held_out)
    other = None if published is None else table(published, settings.width)
    found = algorithm._hits(view, other, before, held)
    return [bool(one[0]) for one in found]


def profile_of(place, value, size, pairs):
    return contributions.Profile(
        np.array([0, len(place)]), np.array(place, dtype=np.int32), doubles(value), size, pairs,
        np.array([len(place)], dtype=np.int32),
    )  # fmt: skip


@function
def cut(place, value, size, pairs, scale):
    made = contributions.cut(profile_of(place, value, size, pairs), doubles([scale]), "gram")
    return made.steps.tolist()


@function
def cut_to(place, value, size, pairs, scale, grid, key):
    """`cut` to the whole numbers of a checked sum, dithered by a key of 32 bytes."""
    keys = np.frombuffer(h(key), "<u4").astype(np.uint32).reshape(1, 8)
    made = contributions.cut_to(
        profile_of(place, value, size, pairs), doubles([scale]), "gram",
        contributions.Grid(**grid), keys,
    )  # fmt: skip
    return made.steps.tolist()


@function
def contribution(place, steps, size, pairs):
    """All numbers of a contribution."""
    made = contributions.Contributions(
        np.array([0, len(place)]), np.array(place, dtype=np.int32), np.array(steps, np.int32),
        size, pairs, np.array([len(place)], dtype=np.int32),
    )  # fmt: skip
    return made.whole(0).tolist()


# --- masks, seals and signatures -----------------------------------------------------------------


@function
def mask(seed, numbers, bits):
    return masking.to_bytes(masking.expand(h(seed), numbers, bits), bits).hex()


@function
def hidden(values, seed, bits):
    """Whole numbers, masked, as they travel."""
    whole = np.array(values, dtype=np.int64)
    return masking.to_bytes(masking.masked(whole, h(seed), bits), bits).hex()


@function
def words(key, first, many):
    """Draws of 64 bits from a key of 32 bytes: eight bytes each, little-endian."""
    keys = np.frombuffer(h(key), "<u4").astype(np.uint32).reshape(1, 8)
    return words_of(keys, many, first).astype("<u8").tobytes().hex()


@function
def hpke_seal(public, info, plaintext, ephemeral):
    return hpke(h(plaintext), h(public), h(info), h(ephemeral)).hex()


@function
def hpke_open(private, info, sealed):
    """What was sealed; refused where it was not sealed for this."""
    key = X25519PrivateKey.from_private_bytes(h(private))
    try:
        return masked._SUITE.decrypt(h(sealed), key, info=h(info)).hex()
    except Exception:
        raise MessageError("this was not sealed for this") from None


@function
def public_keys(private):
    """The public halves of 32 bytes as an Ed25519 and as an X25519 key."""
    kinds = {"ed25519": Ed25519PrivateKey, "x25519": X25519PrivateKey}
    return {
        name: kind.from_private_bytes(h(private)).public_key().public_bytes_raw().hex()
        for name, kind in kinds.items()
    }


@function
def weak_key(public):
    return signing.is_weak(h(public))


@function
def envelope(private, federation, purpose, number, round, attempt, nonce, body):
    key = Ed25519PrivateKey.from_private_bytes(h(private))
    place = {"number": number, "round": round, "attempt": attempt}
    made = signing.seal(key, federation, purpose, **place, nonce=h(nonce), body=h(body))
    return {"bytes": made.hex(), "digest": signing.digest_of(made)}


@function
def open_envelope(bytes, public, federation, purpose):
    found = signing.open_envelope(h(bytes))
    key = Ed25519PublicKey.from_public_bytes(h(public))
    return {
        "number": found.number, "round": found.round, "attempt": found.attempt,
        "nonce": found.nonce.hex(), "body": found.body.hex(),
        "signed": found.signed_by(key, federation, purpose),
    }  # fmt: skip


@function
def enrol(private, invitation):
    """The body with which a device enrols. Another order of fields, or other spaces, is as good."""
    key = Ed25519PrivateKey.from_private_bytes(h(private))
    return json.loads(enrolment(key, Invitation.from_table(json.loads(invitation))))


class Fixed:
    """Seals with an ephemeral key that is given, one after the other."""

    def __init__(self, *ephemeral):
        self._ephemeral = list(ephemeral)

    def encrypt(self, plaintext, public, info):
        return hpke(plaintext, public.public_bytes_raw(), info, self._ephemeral.pop(0))


@function
def model_name(model, width):
    return masked.model_name(table(model, width)).hex()


@function
def binding(terms, round, attempt, model_name, numbers):
    return masked.binding(terms_of(terms), round, attempt, h(model_name), numbers).hex()


@function
def sealed_seed(terms, round, attempt, model_name, numbers, seed, private, ephemeral):
    settings, key = terms_of(terms), Ed25519PrivateKey.from_private_bytes(h(private))
    bound = masked.binding(settings, round, attempt, h(model_name), numbers)
    with mock.patch.object(masked, "_SUITE", Fixed(h(ephemeral))):
        return masked.seal_seed(h(seed), key, settings.secure_sum, bound).content.hex()


@function
def masked_message(terms, round, attempt, masked_words, record):
    """The body of a report, from words as they travel and the sealed seed."""
    settings = terms_of(terms)
    found = masking.from_bytes(h(masked_words), settings.bits)
    one = masked.SealedSeed.of(h(record))
    return masked.encode_masked(settings, found, one, round, attempt).hex()


# --- a checked sum -------------------------------------------------------------------------------


@function
def form(terms, places, pairs):
    """What devices share of a contribution with so many places, and to what they cut it."""
    link = terms_of(terms).link.checking
    made = link.form(places, pairs)
    grid = link.grid(made)
    return {
        "weights": list(made.weights), "bound": made.bound, "loudness": made.loudness,
        "slack": made.slack, "loud_slack": made.loud_slack, "elements": made.elements,
        "grid": {"step": grid.step, "most": grid.most, "unit": grid.unit,
                 "loudness": grid.loudness},
    }  # fmt: skip


@function
def bits(terms, places, pairs, entries):
    """The bits of a vector of whole numbers, as they are shared."""
    made = terms_of(terms).link.checking.form(places, pairs)
    return shares.bits_of(made, np.array([entries], dtype=np.int64))[0].tolist()


@function
def share(bits, secrets):
    """What travels of these bits: numbers of four bytes."""
    made = shares.split(np.array(bits, dtype=np.uint32), [h(one) for one in secrets])
    return made.astype("<u4").tobytes().hex()


@function
def field_numbers(secret, many):
    """Drawn below the field's prime."""
    return shares.drawn(h(secret), many).astype("<u4").tobytes().hex()


@function
def shared_message(terms, round, attempt, model_name, numbers, travelled, secrets, private,
                   ephemeral):  # fmt: skip
    """The body of a report to a checked sum; an ephemeral key for each aggregator."""
    settings, key = terms_of(terms), Ed25519PrivateKey.from_private_bytes(h(private))
    bound, sent = masked.binding(settings, round, attempt, h(model_name), numbers), h(travelled)
    with mock.patch.object(shared, "_SUITE", Fixed(*map(h, ephemeral))):
        record = shared.make_record([h(one) for one in secrets], sent, key, settings.link, bound)
    return shared.encode_shared(sent, record, round, attempt).hex()


# --- documents -----------------------------------------------------------------------------------


@function
def invitation(text):
    found = Invitation.from_table(json.loads(text)).to_table()
    return {name: value for name, value in found.items() if name != "protocol"}


@function
def terms(text):
    found = terms_of(text)
    algorithm = found.build()
    told = {
        "digest": found.digest(), "name": shuffled.terms_name(found).hex(),
        "federation": found.federation, "n_items": found.n_items, "width": found.width,
        "n_rows": found.n_rows, "triples": found.triples, "max_rows": found.max_rows,
        "revealing": found.revealing, "contributes": found.contributes,
    }  # fmt: skip
    if found.secure_sum is not None:
        told |= {"bits": found.bits, "most_numbers": found.most_numbers}
    if found.contributes:
        told |= {"shares": all_f64(algorithm.shares), "batches": algorithm.batches}
        told |= {"counted": f64(algorithm.counted), "sigma": f64(found.release.sigma)}
    return told


@function
def descriptor(text):
    found = Descriptor.from_table(json.loads(text))
    return {
        "federation": found.federation, "terms": found.terms, "round": found.round,
        "attempt": found.attempt, "state": found.state, "selection": found.selection,
        "model": found.model, "poll_seconds": f64(found.poll_seconds),
        "published": found.published, "catalogue": found.catalogue, "roster": found.roster,
        "report_key": found.report_key.hex(),
    }  # fmt: skip


@function
def catalogue_of(terms, body):
    """Name, items and categories of a catalogue, from the bytes that a server published."""
    settings, content = terms_of(terms), h(body)
    if len(content) > catalogue.catalogue_limit(settings.n_items):
        raise MessageError("the catalogue is too long")
    found = json.loads(content)
    return {
        "name": hashlib.sha256(content).hexdigest(),
        "items": [list(one) for one in catalogue.items_in(found, settings.n_items)],
        "categories": [list(one) for one in catalogue.categories_in(found, settings.n_items)],
    }


@function
def same_places(before, after):
    """Nothing; refused where an item that was known stands elsewhere."""
    catalogue.require_same_places([tuple(one) for one in before], [tuple(one) for one in after])


@function
def model(bytes, n_rows, width, have_round, have):
    view = None if have is None else ModelView(have_round, table(have, width))
    found = versions.decode_model(h(bytes), n_items=n_rows, width=width, have=view)
    return {"round": found.round, "items": as_table(found.items)}


@function
def pace(poll, near, events):
    """Seconds to wait after each event: ["success", told, draw] or ["failure", retry_after, draws],
    a draw being from [0, 1)."""
    draws = []
    waits, one = [], Pace(None if poll is None else d(poll), lambda: draws.pop(0), near=near)
    for what, told, drawn in events:
        draws[:] = [d(x) for x in drawn]
        wait = one.after_success(d(told)) if what == "success" else one.after_failure(d(told))
        waits.append(f64(wait))
    return waits


# --- FPL -----------------------------------------------------------------------------------------


@function
def pairs_drawn(key, triples, items, n_items):
    """Positives and negatives of a round; `key` is 32 bytes that serve once."""
    own, words = np.array(sorted(items), dtype=np.int32), np.frombuffer(h(key), "<u4")
    model, vector = np.zeros((n_items, 5), np.float32), np.zeros((1, 4), np.float32)
    entries, drawn, _ = factors.learn_rows(
        FPLConfig().step(), factors.padded(model), vector, np.array([0]), np.array([0, len(own)]),
        own, words.astype(np.uint32).reshape(1, 8), triples,
    )  # fmt: skip
    return {"positive": own[entries].tolist(), "negative": drawn[::2].tolist()}


@function
def share_subset(key, items, share):
    """Items of which rows may ever leave, where a share is fixed once per item."""
    own, words = np.array(sorted(items), dtype=np.int32), np.frombuffer(h(key), "<u4")
    wanted = np.floor(float(np.float32(d(share))) * len(own) + 1e-3).astype(np.int64)
    allowed = np.zeros(len(own), dtype=bool)
    _flag_smallest(
        words.astype(np.uint32).reshape(1, 8), np.array([0, len(own)]), own, np.array([wanted]),
        allowed,
    )  # fmt: skip
    return own[allowed].tolist()


@function
def coins(key, draws, share):
    """Which of so many positive updates leave, where a coin is tossed for each."""
    keys = np.frombuffer(h(key), "<u4").astype(np.uint32).reshape(1, 8)
    limit = thresholds(np.array([float(np.float32(d(share)))]))[0]
    return [bool(one < limit) for one in words_of(keys, draws)[0] >> np.uint64(32)]


@function
def learn(terms, model, vector, items, key):
    """A round of FPL at home: every draw's updates (negative, positive, negative, …) in steps of
    the grid, and the vector after it."""
    settings = terms_of(terms)
    view, own = table(model, settings.width), np.array(sorted(items), dtype=np.int32)
    mine = table(vector, settings.algorithm.embedding_size).copy()
    keys = np.frombuffer(h(key), "<u4").astype(np.uint32).reshape(1, 8)
    _, item, values = factors.learn_rows(
        settings.algorithm.step(), factors.padded(view), mine, np.array([0]),
        np.array([0, len(own)]), own, keys, settings.triples,
    )  # fmt: skip
    return {"item": item.tolist(), "values": values.tolist(), "vector": as_table(mine)}


def report_of(round, item, values):
    found = np.array(values, dtype=np.int64).reshape(len(item), -1)
    return DeviceReports(round, np.zeros(len(item), np.int64), np.array(item, np.int32), found)


@function
def clip(item, values, largest):
    """An update with an L2 norm of at most `largest`."""
    return central.clip_reports(report_of(0, item, values), d(largest)).values.tolist()


def unpacked():
    """Within this nothing becomes shorter by compression."""
    return mock.patch.object(reports.zstd, "compress", lambda body: body)


@function
def report(round, item, values):
    """The body of a report, not compressed; a device may always send it so."""
    with unpacked():
        return reports.encode_report(report_of(round, item, values)).hex()


@function
def read_report(bytes, round, n_rows, width, max_rows):
    """As the server reads it, compressed or not."""
    place = {"n_items": n_rows, "width": width, "round": round, "max_rows": max_rows}
    found = reports.decode_report(h(bytes), sender=0, **place)
    return {"item": found.item.tolist(), "values": found.values.tolist()}


# --- whole devices -------------------------------------------------------------------------------


def door_of(settings, cohort, rng=None):
    return Devices.behind_door(
        settings.build(), cohort, settings.release, Ledger(), rng or Streams.from_seed(0),
        bytes(32), settings.link,
    )  # fmt: skip


@function
def gram_message(terms, round, attempt, model, published, items, times, epsilon, total, spent,
                 sent, beyond, seed, private, ephemeral):  # fmt: skip
    """A device's whole part in a round of gram over a secure sum: what it books, and the body of
    its report."""
    settings = terms_of(terms)
    view = ModelView(round, table(model, settings.width))
    before = None if published is None else table(published, settings.width)
    choice = Choice(takes_part=True, epsilon=d(epsilon), total_epsilon=d(total))
    told = {"choice": choice, "spent": d(spent), "sent": sent, "beyond": d(beyond)}
    devices = door_of(settings, cohort_of(settings, items, times, before, **told))
    rows, key = np.array([0]), Ed25519PrivateKey.from_private_bytes(h(private))
    made, seeds = devices.report_masked(view, rows, (h(seed),))
    with mock.patch.object(masked, "_SUITE", Fixed(h(ephemeral))):
        body = masked.seal_masked(settings, attempt, view, made, seeds, key)
    booked = devices.ledger.pending()
    return {
        "body": body.hex(), "epsilon": f64(booked["epsilon"].to_pylist()[0]),
        "bytes": booked["bytes"].to_pylist()[0],
        "positive_rows": booked["positive_rows"].to_pylist()[0],
        "sent": int(devices.cohort.sent[0]), "spent": f64(devices.cohort.spent[0]),
    }  # fmt: skip


@function
def fpl_message(terms, round, attempt, model, vector, items, share, root, number, seed, private,
                ephemeral):  # fmt: skip
    """A device's whole part in a round of FPL, straight to the server or over a secure sum; all of
    its draws are derived from a root of 32 bytes."""
    settings = terms_of(terms)
    view = ModelView(round, table(model, settings.width))
    users = np.array([number], dtype=np.int64)
    consent = Consent.uniform(users, Choice(takes_part=True, share_positives=d(share)))
    mine = history_of(items, None, settings.n_items)
    vectors = table(vector, settings.algorithm.embedding_size).copy()
    devices = door_of(settings, Cohort(users, mine, consent, vectors), SecretStreams(h(root)))
    key = Ed25519PrivateKey.from_private_bytes(h(private))
    if settings.secure_sum is None:
        with unpacked():
            body = reports.encode_report(devices.report(view, np.array([0])))
    else:
        made, seeds = devices.report_masked(view, np.array([0]), (h(seed),))
        with mock.patch.object(masked, "_SUITE", Fixed(h(ephemeral))):
            body = masked.seal_masked(settings, attempt, view, made, seeds, key)
    booked = devices.ledger.pending()
    rows = [booked[name].to_pylist()[0] for name in ("positive_rows", "negative_rows")]
    return {"body": body.hex(), "vector": as_table(devices.cohort.vectors), "rows": rows}


DAY = 86_400


@function
def story(terms, models, items, times, epsilon, total, events):
    """A device of gram with its store, event by event; after each the state of its latest round,
    whether it refused, whether what it has ready is what it had, and what is spent.

    follow ROUND ATTEMPT: the descriptor says that this is open. prepare ROUND ATTEMPT MODEL.
    leave: the door lets go of what was prepared last. arrived, refused: what the server said of it.
    choose EPSILON TOTAL. restart: the process was killed. days MANY: so much time goes by."""
    settings, now = terms_of(terms), [1000 * DAY]
    names = [(f"i{n}", f"Title {n}") for n in range(settings.n_items)]
    with tempfile.TemporaryDirectory() as folder:
        path, ready, told = Path(folder) / "store", None, []
        CohortStore.create(path, [(0, "somebody")])

        def opened():
            store = CohortStore(CohortStore.open(path).file, clock=lambda: now[0])
            return store, DeviceSession(store, pack=sealed_by(store))

        def choose(epsilon, total):
            choice = Choice(takes_part=True, epsilon=d(epsilon), total_epsilon=d(total))
            store.set_choice(0, choice)

        store, hosted = opened()
        store.set_catalogue(names)
        store.add_history(0, [f"i{item}" for item in items], times)
        choose(epsilon, total)
        hosted.agree(settings)
        for what, *more in events:
            before, good = ready and ready.message, True
            try:
                if what == "follow":
                    hosted.follow(*more)
                elif what == "prepare":
                    view = ModelView(more[0], table(models[more[2]], settings.width))
                    found = hosted.prepare(view, more[1], summed=False)
                    ready = None if isinstance(found, Nothing) else found
                elif what == "leave":
                    hosted.leaving(ready)
                elif what == "arrived":
                    hosted.arrived(ready.round, ready.attempt)
                elif what == "refused":
                    hosted.refused(ready.round, ready.attempt, "late")
                elif what == "choose":
                    choose(*more)
                elif what == "days":
                    now[0] += more[0] * DAY
                else:
                    store.close()
                    store, hosted = opened()
            except (ConsentError, MessageError, StoreError):
                good = False
            latest = hosted.latest()
            told.append({
                "state": latest and latest.state, "refused": not good,
                "same": before is not None and ready is not None and ready.message == before,
                "spent": f64(store.spent()[0]),
            })  # fmt: skip
        store.close()
    return told


def answered(name, given):
    """What a function makes of this, or that it refuses it."""
    try:
        return {"out": FUNCTIONS[name](**given)}
    except (SottovoceError, ValueError, RecursionError):
        return {"refused": True}
