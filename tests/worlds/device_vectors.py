"""The vectors of `tests/vectors/device`: what a device computes, from inputs that determine it.

Run this file to write them anew. A file maps the name of a function (`device_functions.py`) to its
cases: `in` with `out`, or with `refused` where a device must not go on.
"""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
from device_functions import FUNCTIONS, answered, as_table, f32, f64, report_of
from wire_vectors import EPHEMERAL, THERE, checked_terms

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.wire import reports, versions
from sottovoce.wire.terms import Terms

FOLDER = Path(__file__).parents[1] / "vectors" / "device"
SIGNER, SEED, KEY, NONCE = (bytes([k] * n) for k, n in ((96, 32), (7, 32), (9, 32), (5, 16)))
INFINITE = f64(math.inf)
N_ITEMS = 40
rng = np.random.default_rng


def told(terms):
    """As a server publishes them."""
    return json.dumps(terms.to_table())


def gram_terms(bits=32, **changes):
    release = OwnEpsilon(epsilon=8.0, period_days=changes.pop("period_days", 0))
    settings = {"embedding_size": 4, "popularity_share": 0.2, "least_head": 2, "most_head": 12}
    link = SecureSum(min_devices=3, groups=1, bits=bits, url="https://1", key=THERE.public.hex())
    return Terms("town", N_ITEMS, GramConfig(**{**settings, **changes}), release, link)


def fpl_terms(summed=False, embedding_size=4, **link):
    settings = FPLConfig(embedding_size=embedding_size, triples=10)
    link = {"min_devices": 3, "bits": 48, "url": "https://1", "key": THERE.public.hex(), **link}
    way = SecureSum(**link) if summed else None
    return Terms.of("town", N_ITEMS, settings, 10, ShareFraction(), way)


def gram_model(seed=0):
    """Popularity, a head of ten items (one of them about to leave it), factors."""
    draws = rng(seed)
    table = np.zeros((N_ITEMS, 6), dtype=np.float32)
    table[:, 0] = draws.gamma(1.0, 3.0, N_ITEMS)
    head = np.sort(draws.choice(N_ITEMS, 10, replace=False))
    table[head, 1] = draws.random(10) + 0.5
    table[head, 2:] = draws.normal(size=(10, 4))
    table[head[3], 1] *= -1
    return table


HISTORY = [3, 4, 8, 9, 15, 16, 23, 31, 39]
TIMES = [100, 50, 50, 70, 300, 10, 10, 10, 200]
RELEASE = {"epsilon": f64(8.0), "delta": f64(1e-6)}


# --- arithmetic ----------------------------------------------------------------------------------


def _points():
    draws = rng(1)
    ends = [0.0, -0.0, 1.0, -1.0, 709.0, 709.78, 710.5, -708.5, -745.0, -746.5, 1e-300, math.inf]
    ends += [-math.inf, 0.34657359027997264, -0.34657359027997264]
    return [*ends, *draws.uniform(-745, 709, 60).tolist(), *draws.uniform(-2, 2, 60).tolist()]


def _arithmetic():
    draws = rng(2)
    yield from (("exp", {"x": f64(x)}) for x in _points())
    large = np.exp(draws.uniform(-600, 600, 40)).tolist()
    yield from (("log", {"x": f64(x)}) for x in [1.0, 2.0, 0.5, 1e-12, 1e6, 5e-324, *large])
    tails = [0.0, 1e-300, 1.0, 3.0, 26.0, 1e6, *np.exp(draws.uniform(-8, 5, 40)).tolist()]
    yield from (("scaled_erfc", {"x": f64(x)}) for x in tails)
    for distance in (1e-3, 0.05, 0.3, 1.0, 2.5, 6.0, 40.0):
        for share in (0.0, 0.1, 0.5, 1.0):
            most = distance**2 / 2 + 5 * distance
            given = {"distance": f64(distance), "epsilon": f64(share * most)}
            yield "gaussian_delta", given
    singles = [0.0, -0.0, 1.0, -1.0, 88.5, -87.5, 87.99, 1e-30, math.inf, -math.inf, math.nan]
    singles += [*draws.uniform(-90, 90, 40), *draws.uniform(-3, 3, 40)]
    for x in singles:
        yield "exp32", {"x": f32(x)}
        yield "sigmoid32", {"x": f32(x)}
    for numbers in ([], [1.0], [0.1] * 10, [1e16, 1.0, -1e16], [0.1, 0.9], [1.0, 2.0**-53, 2e-70]):
        yield "exact_sum", {"numbers": [f64(x) for x in numbers]}


# --- ε -------------------------------------------------------------------------------------------


def _epsilon():
    draws = rng(3)
    for delta in (1e-12, 1e-6, 1e-5, 1e-3):
        for epsilon in (1e-3, 0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0):
            yield "noise_for", {"epsilon": f64(epsilon), "delta": f64(delta)}
        for noise in (0.0, 0.05, 0.5, 1.0, 3.7, 100.0, 1e5, 1e-7):
            yield "price", {"noise": f64(noise), "delta": f64(delta)}
    yield "noise_for", {"epsilon": f64(0.0), "delta": f64(1e-6)}
    for most in (1.0, 8.0, 64.0):
        for epsilon in (0.0, 1e-4, 1e-3, 0.3, 0.7, 1.0, 2.0, 3.3, 8.0, 50.0):
            yield "scale", {"release": {**RELEASE, "epsilon": f64(most)}, "epsilon": f64(epsilon)}
    marks = [(0, 2, 1, 0), (1, 2, 1, 1), (2, 2, 1, 3), (5, 3, 4, 257), (9, 2, 3, 258)]
    for round, stages, batches, sent in [*marks, (24, 3, 4, 0), (3, 2, 1, 1025)]:
        yield "mark", {"round": round, "stages": stages, "batches": batches, "sent": sent}
    shares = {2: (0.2, 0.8), 3: (0.9 * 0.1, 0.9 * 0.9, 0.1), 1: (1.0,)}
    for then, now in (([(0.2, 0.5)], 0.5), ([(0.2, 0.5)], 0.7), ([(0.1, 0.9), (0.9, 0.2)], 0.3),
                      ([], 0.3), ([(0.2, 0.5)], 0.0)):  # fmt: skip
        pairs = [[f64(a), f64(b)] for a, b in then]
        own = [f64(one) for one in shares[2]]
        yield "beyond", {"then": pairs, "stages": 1, "shares": own, "now": f64(now)}
    for _ in range(60):
        stages, batches = int(draws.integers(1, 4)), int(draws.integers(1, 4))
        period, done = int(draws.integers(0, 3)), int(draws.integers(0, 1 << stages))
        yield (
            "cost",
            {
                "release": RELEASE,
                "epsilon": f64(draws.choice([0.0, 0.3, 1.0, 2.5, 8.0])),
                "total": draws.choice([f64(0.5), f64(3.0), INFINITE]).item(),
                "shares": [f64(one) for one in shares[stages]],
                "batches": batches,
                "round": int(draws.integers(0, 3 * stages * batches)),
                "sent": period << 8 | done,
                "beyond": f64(draws.choice([0.0, 0.0, 0.4, -0.1])),
                "spent": f64(draws.choice([0.0, 0.2, 2.0])),
            },
        )
    for spent, cost, limit in ((0.1 + 0.1, 0.1, 0.3), (0.0, 1.0, 1.0), (0.0, 1.0 + 1e-11, 1.0),
                               (1.0, 1.0, math.inf)):  # fmt: skip
        yield "has_room", {"spent": f64(spent), "cost": f64(cost), "limit": f64(limit)}


# --- gram ----------------------------------------------------------------------------------------


def histories():
    draws = rng(4)
    yield HISTORY, TIMES
    yield HISTORY, None
    yield [7], [5]
    yield [], []
    for many in (2, 5, 17, 39):
        own = draws.choice(N_ITEMS, many, replace=False).tolist()
        yield own, draws.integers(0, many, many).tolist()


def _gram():
    draws, model = rng(5), gram_model()
    plain, timed, asking = gram_terms(recency=False), gram_terms(), gram_terms(quality_share=0.1)
    for items, times in histories():
        mine = {"items": items, "times": times, "n_items": N_ITEMS}
        yield "positions", mine
        yield "home_weights", {**mine, "memory": f64(8.0)}
        yield "held_out", {**mine, "share": f64(0.3)}
        about = {"model": as_table(model), "items": items, "times": times}
        for terms in (plain, timed):
            yield "home_vector", {"terms": told(terms), **about}
        yield "gram_list", {"terms": told(timed), **about, "many": 10}
        for terms, rounds in ((plain, 2), (timed, 4), (asking, 3)):
            for round in range(rounds):
                about["published"] = as_table(gram_model(8)) if round % 2 else None
                yield "profile", {"terms": told(terms), "round": round, **about}
        for published in (None, as_table(gram_model(8)), as_table(gram_model(8)[:30])):
            yield "hits", {"terms": told(asking), **about, "published": published}
    for size in (1, 4, 16, 33):
        table = draws.normal(size=(60, size)).astype(np.float32)
        bias = draws.normal(size=60).astype(np.float32)
        bias[draws.integers(0, 60, 6)] = 0.5
        vector = as_table(draws.normal(size=size))
        given = {"items": as_table(table), "bias": as_table(bias), "size": size}
        yield "ranked", {"vector": vector, **given, "seen": [0, 5, 59], "many": 12}
    zero = {"items": as_table(np.zeros((20, 2))), "bias": as_table(np.zeros(20)), "size": 2}
    yield "ranked", {"vector": as_table([1.0, 1.0]), **zero, "seen": [1], "many": 5}


def profiles():
    draws = rng(6)
    for many, size in ((0, 5), (1, 5), (3, 9), (30, 41), (41, 41)):
        place = np.sort(draws.choice(size, many, replace=False)).tolist()
        value = draws.random(many)
        value /= np.sqrt((value**2).sum()) if many else 1.0
        for pairs in (False, True):
            yield place, value, size, pairs


def _contributions():
    refused = {"size": 3, "pairs": False, "scale": f64(1.0)}
    for place, value, size, pairs in profiles():
        given = {"place": place, "value": [f64(x) for x in value], "size": size, "pairs": pairs}
        for scale in (1.0, 0.3, 1e-3, 0.0):
            yield "cut", {**given, "scale": f64(scale)}
        steps = FUNCTIONS["cut"](**given, scale=f64(0.5))
        yield "contribution", {"place": place, "steps": steps, "size": size, "pairs": pairs}
        terms = told(checked_terms())
        form = FUNCTIONS["form"](terms=terms, places=size, pairs=pairs)
        yield "form", {"terms": terms, "places": size, "pairs": pairs}
        for scale in (1.0, 0.2):
            given["scale"] = f64(scale)
            yield "cut_to", {**given, "grid": form["grid"], "key": KEY.hex()}
            entries = [0] * size
            steps = FUNCTIONS["cut_to"](**given, grid=form["grid"], key=KEY.hex())
            for at, one in zip(place, steps, strict=True):
                entries[at] = one // form["grid"]["step"]
            about = {"terms": terms, "places": size, "pairs": pairs, "entries": entries}
            yield "bits", about
    for value in ([0.9, 0.9], [2.5], [-0.1], [math.nan], [math.inf]):
        yield "cut", {"place": list(range(len(value))), "value": [f64(x) for x in value], **refused}
    yield "cut", {"place": [1, 0], "value": [f64(0.1)] * 2, **refused}
    yield "cut", {"place": [1, 3], "value": [f64(0.1)] * 2, **refused}
    large = told(checked_terms())
    yield "form", {"terms": large, "places": 2000, "pairs": False}
    yield "bits", {"terms": large, "places": 2, "pairs": True, "entries": [128, 0]}
    yield "bits", {"terms": large, "places": 2, "pairs": True, "entries": [127, -1]}
    secrets = [bytes([k] * 32).hex() for k in range(3)]
    yield "share", {"bits": [0, 1, 1, 0, 1] * 9, "secrets": secrets}
    yield "field_numbers", {"secret": SEED.hex(), "many": 100}


# --- masks, seals, signatures --------------------------------------------------------------------


def _sealed():
    draws = rng(7)
    for bits in (32, 40, 48, 64):
        for numbers in (0, 1, 7, 16, 33):
            yield "mask", {"seed": SEED.hex(), "numbers": numbers, "bits": bits}
        values = draws.integers(-(1 << 30), 1 << 30, 20).tolist()
        yield "hidden", {"values": values, "seed": KEY.hex(), "bits": bits}
    yield "mask", {"seed": SEED.hex()[2:], "numbers": 3, "bits": 32}
    for first in (0, 5, 1000):
        yield "words", {"key": KEY.hex(), "first": first, "many": 20}
    for size in (0, 1, 32, 64, 200):
        info, plain = draws.bytes(size).hex(), draws.bytes(size).hex()
        ephemeral = draws.bytes(32).hex()
        given = {"public": THERE.public.hex(), "info": info, "plaintext": plain}
        yield "hpke_seal", {**given, "ephemeral": ephemeral}
        sealed = FUNCTIONS["hpke_seal"](**given, ephemeral=ephemeral)
        for one in (sealed, sealed[:-2] + f"{int(sealed[-2:], 16) ^ 1:02x}", sealed[:90]):
            private = THERE.private_bytes().hex()
            yield "hpke_open", {"private": private, "info": info, "sealed": one}
    yield "public_keys", {"private": SIGNER.hex()}
    weak = [bytes(32), (1).to_bytes(32, "little"), bytes(31), (2**255 - 20).to_bytes(32, "little")]
    weak += [(2**255 - 18).to_bytes(32, "little"), bytes.fromhex(
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")]  # fmt: skip
    public = FUNCTIONS["public_keys"](private=SIGNER.hex())["ed25519"]
    yield from (("weak_key", {"public": one.hex()}) for one in [*weak, bytes.fromhex(public)])
    for purpose, federation, body in (("report", "town", b"abc"), ("check-in", "tówn", b"")):
        place = {"number": 2**32 - 1, "round": 5, "attempt": 1, "nonce": NONCE.hex()}
        given = {"private": SIGNER.hex(), "federation": federation, "purpose": purpose}
        yield "envelope", {**given, **place, "body": body.hex()}
        made = FUNCTIONS["envelope"](**given, **place, body=body.hex())["bytes"]
        for one in (made, made[:-2] + "00", "5356" + "4532" + made[8:], made[:180]):
            read = {"public": public, "federation": federation, "purpose": purpose}
            yield "open_envelope", {"bytes": one, **read}
    yield "enrol", {"private": SIGNER.hex(), "invitation": json.dumps(INVITATION)}
    name = bytes(range(32)).hex()
    yield "model_name", {"model": as_table(gram_model()), "width": 6}
    keys = {"private": SIGNER.hex(), "ephemeral": EPHEMERAL.hex(), "seed": SEED.hex()}
    for terms, numbers in ((gram_terms(), 41), (fpl_terms(summed=True), None)):
        place = {"terms": told(terms), "round": 5, "attempt": 1, "model_name": name}
        yield "binding", {**place, "numbers": numbers}
        yield "sealed_seed", {**place, "numbers": numbers, **keys}
        record = FUNCTIONS["sealed_seed"](**place, numbers=numbers, **keys)
        words = FUNCTIONS["hidden"](values=[5, -7, 0], seed=SEED.hex(), bits=terms.bits)
        del place["model_name"]
        yield "masked_message", {**place, "masked_words": words, "record": record}
    secrets = [bytes([k] * 32).hex() for k in range(3)]
    travelled = FUNCTIONS["share"](bits=[0, 1, 1, 0, 1], secrets=secrets)
    yield (
        "shared_message",
        {
            "terms": told(checked_terms()), "round": 5, "attempt": 1, "model_name": name,
            "numbers": 21, "travelled": travelled, "secrets": secrets, "private": SIGNER.hex(),
            "ephemeral": [bytes([60 + k] * 32).hex() for k in range(3)],
        },
    )  # fmt: skip


# --- documents -----------------------------------------------------------------------------------

INVITATION = {
    "protocol": 2, "server": "https://town.example:8443", "ca": "", "token": "00ff" * 16,
    "number": 7, "federation": "town",
}  # fmt: skip
DESCRIPTOR = {
    "protocol": 2, "federation": "town", "terms": "0" * 32, "round": 5, "attempt": 1,
    "state": "open", "selection": "all", "model": 5, "poll_seconds": 2.5,
}  # fmt: skip


def _without(table, name):
    return {key: value for key, value in table.items() if key != name}


def _documents():
    for table in (
        INVITATION, {**INVITATION, "protocol": 1}, {**INVITATION, "more": 1}, [],
        {**INVITATION, "server": "ftp://x"}, {**INVITATION, "number": 2**32},
        {**INVITATION, "number": True}, {**INVITATION, "token": "xy"}, _without(INVITATION, "ca"),
    ):  # fmt: skip
        yield "invitation", {"text": json.dumps(table)}
    good = [gram_terms(), gram_terms(64), gram_terms(quality_share=0.1, batches=3, recency=False),
            fpl_terms(), fpl_terms(summed=True), fpl_terms(summed=True, clip=1.0, noise=0.5),
            checked_terms()]  # fmt: skip
    yield from (("terms", {"text": told(one)}) for one in good)
    base = gram_terms().to_table()
    for changed in (
        {**base, "protocol": 3}, {**base, "more": 1}, _without(base, "link"), [],
        {**base, "n_items": 1}, {**base, "n_items": "40"}, {**base, "federation": 5},
        {**base, "algorithm": {**base["algorithm"], "more": 1}},
        {**base, "algorithm": {**base["algorithm"], "name": "unheard-of"}},
        {**base, "release": {**base["release"], "epsilon": 65.0}},
        {**base, "link": {**base["link"], "bits": 33}},
        {**base, "link": {"name": "direct"}},
    ):  # fmt: skip
        yield "terms", {"text": json.dumps(changed)}
    key = THERE.public.hex()
    id = hashlib.sha256(THERE.public).hexdigest()
    for changed in (
        {}, {"published": 3, "catalogue": "ab", "roster": "cd"}, {"unheard": 1}, {"protocol": 1},
        {"round": -1}, {"round": 2**32}, {"round": 1.0}, {"round": True}, {"state": "closed"},
        {"selection": "some"}, {"poll_seconds": "2"}, {"poll_seconds": True},
        {"poll_seconds": 10**400}, {"published": -1}, {"catalogue": "x" * 65}, {"roster": 5},
        {"report_key": {"public": key, "id": id}}, {"report_key": {"public": key, "id": key}},
    ):  # fmt: skip
        yield "descriptor", {"text": json.dumps({**DESCRIPTOR, **changed})}
    yield "descriptor", {"text": json.dumps(_without(DESCRIPTOR, "terms"))}
    items = [[f"v{n}", f"Venue {n}"] for n in range(N_ITEMS)]
    named = {"names": ["a", "b"], "of": [[0]] + [[0, 1]] * (N_ITEMS - 1)}
    for table in (
        {"items": items}, {"items": items, "categories": named}, {"items": items[1:]}, {},
        {"items": items, "categories": {**named, "names": ["a", "a"]}},
        {"items": items, "categories": {**named, "of": [[1, 0]] * N_ITEMS}},
        {"items": items, "categories": {**named, "of": [[2]] * N_ITEMS}},
        {"items": [["\ud800", "x"], *items[1:]]},
    ):  # fmt: skip
        body = json.dumps(table).encode().hex()
        yield "catalogue_of", {"terms": told(gram_terms()), "body": body}
    known = [["a", "A"], ["~spare-1", ""], ["c", "C"]]
    for after in (known, [*known, ["d", ""]], [["a", ""], ["b", "B"], ["c", "C"]],
                  [["b", "A"], *known[1:]], known[:2]):  # fmt: skip
        yield "same_places", {"before": known, "after": after}
    yield from _models()
    draws = [f64(x) for x in (0.0, 0.25, 0.5, 0.999)]
    events = [["success", f64(5.0), draws[:1]], ["failure", f64(0.0), draws[1:3]]]
    events += [["failure", f64(60.0), draws[:2]]] * 3 + [["failure", f64(0.0), draws[2:]]] * 12
    events += [["success", f64(0.001), draws[1:2]], ["success", f64(1e9), draws[3:]]]
    for poll, near in ((None, False), (None, True), (f64(0.2), False)):
        yield "pace", {"poll": poll, "near": near, "events": events}


def _models():
    draws = rng(8)
    full = draws.normal(size=(N_ITEMS, 3)).astype(np.float32)
    stepped = full.copy()
    stepped[:, 1] = draws.integers(-100, 100, N_ITEMS) * np.float32(2.0**-7)
    stepped[draws.integers(0, N_ITEMS, 9), 2] = 0.0
    have = draws.normal(size=(N_ITEMS, 3)).astype(np.float32)
    none = {"have_round": 0, "have": None, "n_rows": N_ITEMS, "width": 3}
    some = {**none, "have_round": 4, "have": as_table(have)}
    whole = [versions.encode_model(ModelView(5, one)) for one in (full, stepped)]
    yield from (("model", {"bytes": one.hex(), **none}) for one in whole)
    for rows in ([2], [0, 3, 39], [*range(0, 40, 2)]):
        changed = np.zeros(N_ITEMS, dtype=bool)
        changed[rows] = True
        for one in (full, stepped):
            after = ModelView(5, np.where(changed[:, None], one, have))
            part = versions.encode_delta(4, after, changed)
            yield "model", {"bytes": part.hex(), **some}
            yield "model", {"bytes": part.hex(), **none}
            yield "model", {"bytes": part[:-1].hex(), **some}
    infinite = versions.encode_model(ModelView(5, full * np.float32(np.inf)))
    for wrong in (whole[0][:-4], b"SVV9" + whole[0][4:], whole[1] + b"\0", infinite, b""):
        yield "model", {"bytes": wrong.hex(), **none}
    yield "model", {"bytes": whole[0].hex(), **none, "width": 4}


# --- FPL and whole devices -----------------------------------------------------------------------


def _fpl():
    draws = rng(9)
    for triples in (1, 10, 60):
        given = {"items": HISTORY, "n_items": N_ITEMS}
        yield "pairs_drawn", {"key": KEY.hex(), "triples": triples, **given}
    most = [*range(N_ITEMS - 1)]
    for items in (most, [*most, N_ITEMS - 1], []):
        given = {"key": KEY.hex(), "triples": 10, "items": items, "n_items": N_ITEMS}
        yield "pairs_drawn", given
    for share in (0.0, 0.3, 0.5, 0.6, 1.0):
        yield "share_subset", {"key": KEY.hex(), "items": HISTORY, "share": f64(share)}
        yield "coins", {"key": SEED.hex(), "draws": 20, "share": f64(share)}
    for size in (4, 10, 16, 33):  # rows of 8, 16, 24 and 40 lanes
        terms = fpl_terms(embedding_size=size)
        model = (0.3 * draws.normal(size=(N_ITEMS, size + 1))).astype(np.float32)
        given = {"vector": as_table(0.3 * draws.normal(size=size)), "items": HISTORY}
        yield "learn", {"terms": told(terms), "model": as_table(model), **given, "key": KEY.hex()}
    far = as_table(1e20 * draws.normal(size=(N_ITEMS, 5)))
    given = {"vector": as_table([1.0, -1.0, 50.0, 0.0]), "items": HISTORY, "key": KEY.hex()}
    yield "learn", {"terms": told(fpl_terms()), "model": far, **given}
    item, values = [0, 3, 39], draws.integers(-(1 << 22), 1 << 22, (3, 5)).tolist()
    for largest in (0.01, 0.3, 0.5, 1.0, 100.0):
        yield "clip", {"item": item, "values": values, "largest": f64(largest)}
    three = [[3 * 2**20, 0], [0, 4 * 2**20]]  # a norm of 5/16 exactly
    for largest in (0.3125, math.nextafter(0.3125, 0.0)):
        yield "clip", {"item": [1, 2], "values": three, "largest": f64(largest)}
    for scale in (1, 2**8, 2**17, 2**40):
        some = (draws.integers(-100, 100, (3, 5)) * scale).tolist()
        yield "report", {"round": 5, "item": item, "values": some}
    edges = [[127, -128], [-129, 0]]
    yield "report", {"round": 5, "item": [0, 1], "values": edges}
    place = {"round": 5, "n_rows": N_ITEMS, "width": 2, "max_rows": 30}
    long = np.tile([[7, 7]], (30, 1))
    packed = reports.encode_report(report_of(5, [*range(30)], long))
    plain = bytes.fromhex(FUNCTIONS["report"](round=5, item=[0, 1], values=edges))
    for one in (packed, plain, packed[:-1], plain + b"\0", b"SVU9" + plain[4:]):
        yield "read_report", {"bytes": one.hex(), **place}
    twice = FUNCTIONS["report"](round=5, item=[1, 1], values=edges)
    yield "read_report", {"bytes": twice, **place}
    yield "read_report", {"bytes": packed.hex(), **place, "max_rows": 29}


def _devices():
    keys = {"seed": SEED.hex(), "private": SIGNER.hex(), "ephemeral": EPHEMERAL.hex()}
    for terms in (gram_terms(), gram_terms(40, recency=False), gram_terms(quality_share=0.1)):
        for round, sent in ((0, 0), (1, 1), (1, 0), (2, 3), (5, 0)):
            for epsilon in (1.0, 8.0):
                given = {
                    "terms": told(terms), "round": round, "attempt": 0,
                    "model": as_table(gram_model()), "published": as_table(gram_model(8)),
                    "items": HISTORY, "times": TIMES, "epsilon": f64(epsilon), "total": INFINITE,
                    "spent": f64(0.0), "sent": sent, "beyond": f64(0.0), **keys,
                }  # fmt: skip
                yield "gram_message", given
    yield "gram_message", {**given, "round": 0, "sent": 1}  # she was in it
    yield "gram_message", {**given, "round": 0, "total": f64(1.0)}  # no room
    yield "gram_message", {**given, "round": 0, "epsilon": f64(0.0)}  # permits nothing
    yield "gram_message", {**given, "round": 0, "items": [], "times": []}
    draws = rng(10)
    model = as_table(0.3 * draws.normal(size=(N_ITEMS, 5)))
    mine = {"model": model, "vector": as_table(0.3 * draws.normal(size=4)), "items": HISTORY}
    for terms in (fpl_terms(), fpl_terms(summed=True), fpl_terms(summed=True, clip=0.5, noise=1.0)):
        for share in (0.0, 0.5, 1.0):
            place = {"terms": told(terms), "round": 3, "attempt": 1, "share": f64(share)}
            yield "fpl_message", {**place, **mine, "root": KEY.hex(), "number": 7, **keys}
    yield "fpl_message", {**place, **mine, "root": KEY.hex(), "number": 7, **keys, "items": []}


def _states():
    models = [as_table(gram_model()), as_table(gram_model(8))]
    given = {"models": models, "items": HISTORY, "times": TIMES, "total": f64(10.0)}
    given |= {"terms": told(gram_terms(batches=2)), "epsilon": f64(2.0)}
    ready, away = ["prepare", 0, 0, 0], [["prepare", 0, 0, 0], ["leave"]]
    whole = [*away, ["arrived"]]
    stories = {
        "a period": [*whole, ["prepare", 1, 0, 0], ["leave"], ["arrived"], ["prepare", 2, 0, 0],
                     ["prepare", 3, 0, 0], ["prepare", 4, 0, 0], ["leave"], ["arrived"]],
        "killed": [ready, ["restart"], ready, ["leave"], ["restart"], ready, ["leave"],
                   ["arrived"], ["restart"], ready],
        "refused": [*away, ["refused"], ready, ["prepare", 0, 1, 0], ["prepare", 2, 0, 0],
                    ["prepare", 3, 0, 0], ["leave"], ["arrived"]],
        "tried again": [*away, ["follow", 0, 1], ["prepare", 0, 1, 0], ["follow", 1, 0],
                        ["prepare", 1, 0, 0], ["leave"], ["arrived"], ["follow", 1, 1]],
        "tried again before it left": [ready, ["follow", 0, 1], ["leave"], ["prepare", 0, 1, 0],
                                       ["leave"], ["arrived"]],
        "another model": [ready, ["prepare", 0, 0, 1], ["leave"], ready, ["prepare", 0, 0, 1]],
        "back": [["prepare", 1, 1, 0], ["prepare", 1, 0, 0], ready, ["leave"]],
        "another mind": [ready, ["choose", f64(1.0), f64(10.0)], ["leave"], ready, ["leave"],
                         ["choose", f64(4.0), f64(10.0)], ["leave"], ready,
                         ["prepare", 1, 0, 0], ["leave"], ["arrived"]],
        "no room": [*whole, ["choose", f64(2.0), f64(1.9)], ["prepare", 1, 0, 0],
                    ["choose", f64(2.0), f64(2.0)], ["prepare", 1, 0, 0], ["leave"]],
        "never confirmed": [*away, ["prepare", 1, 0, 0], ["leave"], ["arrived"]],
    }  # fmt: skip
    for events in stories.values():
        yield "story", {**given, "events": events}
    rests = told(gram_terms(period_days=30))
    wait = [*whole, ["prepare", 2, 0, 0], ["days", 29], ["prepare", 2, 0, 0], ["days", 1],
            ["prepare", 2, 0, 0], ["leave"]]  # fmt: skip
    yield "story", {**given, "terms": rests, "events": wait}


FILES = {
    "arithmetic": _arithmetic, "epsilon": _epsilon, "gram": _gram,
    "contributions": _contributions, "sealed": _sealed, "documents": _documents, "fpl": _fpl,
    "devices": _devices, "states": _states,
}  # fmt: skip


def vectors():
    """By file: what stands in it."""
    found = {}
    for name, made in FILES.items():
        cases = found.setdefault(f"{name}.json", {})
        for function, given in made():
            told = json.loads(json.dumps(given))
            cases.setdefault(function, []).append({"in": told, **answered(function, given)})
    return found


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in vectors().items():
        lines = [
            f" {json.dumps(function)}: [\n  " + ",\n  ".join(map(json.dumps, cases)) + "\n ]"
            for function, cases in content.items()
        ]
        (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
