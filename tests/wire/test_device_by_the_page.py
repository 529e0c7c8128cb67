"""A device written from docs/protocol.md alone gets the vectors: nothing of Sottovoce is imported.

What is here is slow and plain on purpose. It is what a stranger would write.
"""

import hashlib
import hmac
import json
import math
import re
import struct
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FOLDER = Path(__file__).parents[1] / "vectors" / "device"
KEPT = {
    function: cases
    for path in sorted(FOLDER.glob("*.json"))
    for function, cases in json.loads(path.read_text()).items()
}
PAGE = {}
single = np.float32
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Refused(Exception):
    pass


def written(made):
    PAGE[made.__name__] = made
    return made


# --- conventions ---------------------------------------------------------------------------------


def bits64(x):
    return struct.pack(">d", x).hex()


def double(text):
    return struct.unpack(">d", bytes.fromhex(text))[0]


def bits32(x):
    return struct.pack(">f", x).hex()


def read32(text):
    return single(struct.unpack(">f", bytes.fromhex(text))[0])


def table(text, width):
    return np.frombuffer(bytes.fromhex(text), "<f4").reshape(-1, width)


def stream(key, size):
    made = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return made.update(bytes(size))


def draw(key, number):
    return int.from_bytes(stream(key, 8 * number + 8)[-8:], "little")


def canonical(text):
    """Python keeps what the server has written of a number: floats are written alike."""
    return json.dumps(json.loads(text), sort_keys=True).encode()


# --- arithmetic ----------------------------------------------------------------------------------


def exp_(x):
    if x != x:
        return x
    if x < -746 or x > 710:
        return 0.0 if x < 0 else math.inf
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    t = 0.0
    for n in range(13, 1, -1):
        t = t * r + 1 / math.factorial(n)
    h = k // 2
    return ((1 + (r + (r * r) * t)) * math.ldexp(1.0, h)) * math.ldexp(1.0, k - h)


@written
def exp(x):
    return bits64(exp_(double(x)))


@written
def log(x):
    m, k = math.frexp(double(x))
    if m < 0.7071067811865476:
        m, k = 2 * m, k - 1
    s = (m - 1) / (m + 1)
    q, t = s * s, 0.0
    for n in range(23, 0, -2):
        t = t * q + 1 / n
    return bits64(k * 0.6931471803691238 + (k * 1.9082149292705877e-10 + (2 * s) * t))


SERIES = [
    float(one)
    for one in re.findall(r"[-\d.e]+", re.search(r"^C = ([^a-df-z]*)$", PROTOCOL, re.MULTILINE)[1])
]


def tail(x):
    t, a, b = (x - 3) / (x + 3), 0.0, 0.0
    for n in range(24, 0, -1):
        a, b = ((2 * t) * a - b) + SERIES[n], a
    return ((t * a - b) + SERIES[0]) / (1 + 2 * x)


def delta_(d, epsilon):
    f, root = epsilon / d, 1.4142135623730951
    a, b = d / 2 - f, d / 2 + f
    w = 0.5 * exp_(-((a * a) / 2))
    if a > 0:
        return 1 - w * (tail(a / root) + tail(b / root))
    return w * (tail(-a / root) - tail(b / root))


@written
def scaled_erfc(x):
    return bits64(tail(double(x)))


@written
def gaussian_delta(distance, epsilon):
    return bits64(delta_(double(distance), double(epsilon)))


def summed(numbers):
    return float(sum(map(Fraction, numbers)))


@written
def exact_sum(numbers):
    return bits64(summed(double(one) for one in numbers))


def exponential32(x):
    x = x if x < single(88) else single(88)
    x = x if x > single(-87) else single(-87)
    n = np.rint(x * single(1.44269504088896341))
    r = (x - n * single(0.693359375)) - n * single(-2.12194440e-4)
    q = r * r
    c = [single(one) for one in (0.50000001201, 0.16666665459, 4.1665795894e-2, 8.3334519073e-3,
                                 1.3981999507e-3, 1.9875691500e-4)]  # fmt: skip
    t = (c[0] + c[1] * r) + q * ((c[2] + c[3] * r) + q * (c[4] + c[5] * r))
    return (single(1) + (r + q * t)) * single(2.0 ** int(n))


def sigmoid(x):
    return single(1) / (single(1) + exponential32(x))


@written
def exp32(x):
    return bits32(exponential32(read32(x)))


@written
def sigmoid32(x):
    return bits32(sigmoid(read32(x)))


def total(row):
    row = np.concatenate([row, np.zeros(-len(row) % 8, single)])
    chunks = [row[at : at + 16] for at in range(0, len(row), 16)]
    short = chunks.pop() if len(chunks[-1]) == 8 else None
    if not chunks:
        lanes = short
    else:
        lanes = chunks[0]
        for one in chunks[1:]:
            lanes = lanes + one
        if short is not None:
            lanes = (lanes[:8] + lanes[8:]) + short
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def fma(a, b, c):
    """By a sum that is rounded to odd, as the page says."""
    p, c = float(a) * float(b), float(c)
    s = p + c
    back = s - p
    e = (p - (s - back)) + (c - back)
    if e and math.isfinite(s) and not struct.unpack("<q", struct.pack("<d", s))[0] & 1:
        s = math.nextafter(s, math.inf if e > 0 else -math.inf)
    return single(s)


@written
def ranked(vector, items, bias, size, seen, many):
    mine, rows, first = table(vector, size)[0], table(items, size), table(bias, 1)[:, 0]
    scores = []
    for item, row in enumerate(rows):
        s = first[item]
        for a, b in zip(mine, row, strict=True):
            s = fma(a, b, s)
        scores.append(s)
    best = sorted((-float(s), item) for item, s in enumerate(scores) if item not in seen)[:many]
    return {"items": [item for _, item in best], "scores": [bits32(-s) for s, _ in best]}


# --- ε -------------------------------------------------------------------------------------------


@cache
def price_(noise, delta):
    if noise == 0:
        return math.inf
    d = 1 / noise
    low, high = 0.0, d * d / 2 + d * math.sqrt(2 * double(log(bits64(1 / delta))))
    if d > 1e6:
        return high
    if delta_(d, 0.0) <= delta:
        return 0.0
    while high - low > 1e-11 * high:
        mid = (low + high) / 2
        if delta_(d, mid) > delta:
            low = mid
        else:
            high = mid
    return high


@cache
def noise_(epsilon, delta):
    if not 0 < epsilon < math.inf:
        raise Refused
    low, high = 0.0, 1.0
    while price_(high, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        mid = (low + high) / 2
        if price_(mid, delta) > epsilon:
            low = mid
        else:
            high = mid
    return high


@written
def price(noise, delta):
    return bits64(price_(double(noise), double(delta)))


@written
def noise_for(epsilon, delta):
    return bits64(noise_(double(epsilon), double(delta)))


def loud(release, epsilon):
    most, delta = double(release["epsilon"]), double(release["delta"])
    own = min(float(single(double(epsilon))), most)
    sigma = 1 / (1 / noise_(most, delta))
    mu = 1 / noise_(own, delta) if own >= 0.001 else 0.0
    return sigma, mu, min(mu * sigma, 1.0)


@written
def scale(release, epsilon):
    sigma, mu, c = loud(release, epsilon)
    return {"sigma": bits64(sigma), "loudness": bits64(mu), "scale": bits64(c)}


@written
def mark(round, stages, batches, sent):
    period, bit = round // (stages * batches), 1 << round % stages
    one = period * 256 + bit
    if sent // 256 == period:
        return {"mark": one, "sent": period * 256 + (sent % 256 | bit)}
    return {
        "mark": one,
        "sent": max(sent // 256, period) * 256 + (bit if sent < one else sent % 256),
    }


@written
def beyond(then, stages, shares, now):
    mu = double(now)
    if not mu:
        return bits64(0.0)
    told = summed(double(s) * ((double(m) / mu) * (double(m) / mu)) for s, m in then)
    return bits64(told - summed(double(s) for k, s in enumerate(shares) if stages >> k & 1))


@written
def cost(release, epsilon, total, shares, batches, round, sent, beyond, spent):
    sigma, _, c = loud(release, epsilon)
    period, bit = round // (len(shares) * batches), 1 << round % len(shares)
    same = sent // 256 == period
    done, more = (sent % 256, double(beyond)) if same else (0, 0.0)

    def told(stages):
        share = summed(double(s) for k, s in enumerate(shares) if stages >> k & 1)
        share = max((1.0 if abs(share - 1) <= 1e-12 else share) + more, 0.0)
        return (
            price_(sigma / (c * math.sqrt(share)), double(release["delta"])) if c and share else 0.0
        )

    rest = told(done | (1 << len(shares)) - 1) - told(done)
    room = double(spent) + rest <= double(total) * (1 + 1e-12)
    room = room and c > 0 and sent // 256 <= period and not done & bit
    return {"cost": bits64(max(told(done | bit) - told(done), 0.0)), "room": bool(room)}


@written
def has_room(spent, cost, limit):
    return double(spent) + double(cost) <= double(limit) * (1 + 1e-12)


# --- masks and documents -------------------------------------------------------------------------


@written
def mask(seed, numbers, bits):
    key, size = bytes.fromhex(seed), 4 if bits == 32 else 8
    if len(key) != 32:
        raise Refused
    found = stream(key, size * numbers)
    return b"".join(found[at : at + bits // 8] for at in range(0, len(found), size)).hex()


@written
def hidden(values, seed, bits):
    masks, size = bytes.fromhex(mask(seed, len(values), bits)), bits // 8
    made = b""
    for k, value in enumerate(values):
        one = int.from_bytes(masks[k * size : (k + 1) * size], "little")
        made += ((value + one) % 2**bits).to_bytes(size, "little")
    return made.hex()


@written
def binding(terms, round, attempt, model_name, numbers):
    name = json.loads(terms)["federation"].encode()
    made = struct.pack("<III", len(name), round, attempt) + name
    made += hashlib.sha256(canonical(terms)).digest() + bytes.fromhex(model_name)
    return (made + (b"" if numbers is None else struct.pack("<I", numbers))).hex()


@written
def model_name(model, width):
    return hashlib.sha256(bytes.fromhex(model)).hexdigest()


@written
def envelope(private, federation, purpose, number, round, attempt, nonce, body):
    head = b"SVE1" + struct.pack("<III", number, round, attempt) + bytes.fromhex(nonce)
    name, digest = federation.encode(), hashlib.sha256(bytes.fromhex(body)).digest()
    said = b"sottovoce\0" + purpose.encode() + b"\0" + struct.pack("<I", len(name)) + name
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    signature = key.sign(said + b"\0" + head + digest)
    made = head + signature + bytes.fromhex(body)
    return {"bytes": made.hex(), "digest": digest.hex()}


@written
def enrol(private, invitation):
    told = json.loads(invitation)
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    name, token = told["federation"].encode(), bytes.fromhex(told["token"])
    public = key.public_key().public_bytes_raw()
    said = b"sottovoce enrolment\0" + struct.pack("<I", len(name)) + name
    signature = key.sign(said + hashlib.sha256(token).digest() + public)
    return {"protocol": 2, "token": told["token"], "public_key": public.hex(),
            "signature": signature.hex()}  # fmt: skip


@written
def model(bytes, n_rows, width, have_round, have):
    content = as_bytes(bytes)
    if len(content) < 24 or content[:4] not in (b"SVV1", b"SVD1", b"SVV2", b"SVD2"):
        raise Refused
    round, since, rows, n, c = struct.unpack("<IIIII", content[4:24])
    changes, steps = content[2:3] == b"D", content[3:4] == b"2"
    if (rows, c) != (n_rows, width) or n > rows or (not changes and n != rows):
        raise Refused
    rest, where = content[24:], list(range(n))
    if changes:
        many = min(4 * n, -(-rows // 8))
        if len(rest) < many or have is None or have_round != since:
            raise Refused
        places, rest = rest[:many], rest[many:]
        if 4 * n <= -(-rows // 8):
            where = list(struct.unpack(f"<{n}I", places))
        else:
            flags = [places[k // 8] >> (7 - k % 8) & 1 for k in range(8 * many)]
            where = [k for k, flag in enumerate(flags) if flag]
        if len(where) != n or any(a >= b for a, b in pairwise(where)):
            raise Refused
    found = _steps(rest, n, c) if steps else _planes(rest, n, c)
    if not np.isfinite(found).all():
        raise Refused
    whole = table(have, width).copy() if changes else found
    whole[where] = found
    return {"round": round, "items": whole.astype("<f4").tobytes().hex()}


def as_bytes(text):
    return bytes.fromhex(text)


def _planes(content, rows, columns):
    n = rows * columns
    if len(content) != 4 * n:
        raise Refused
    numbers = b"".join(bytes(content[k + b * n] for b in range(4)) for k in range(n))
    return np.frombuffer(numbers, "<f4").reshape(rows, columns).copy()


def _steps(content, n, c):
    if len(content) < c:
        raise Refused
    powers = struct.unpack(f"{c}b", content[:c])
    kinds = [[k for k, e in enumerate(powers) if test(e)] for test in (
        lambda e: e > -127, lambda e: e == -127, lambda e: e == -128)]  # fmt: skip
    sizes = [n * len(kinds[0]), 4 * n * len(kinds[1]), 4 * n * len(kinds[2])]
    if len(content) != c + sum(sizes):
        raise Refused
    first, second = c + sizes[0], c + sizes[0] + sizes[1]
    found = np.zeros((n, c), single)
    multiples = struct.unpack(f"{sizes[0]}b", content[c:first])
    for k, m in enumerate(multiples):
        column = kinds[0][k % len(kinds[0])]
        found[k // len(kinds[0]), column] = math.ldexp(m, powers[column])
    found[:, kinds[1]] = _planes(content[first:second], n, len(kinds[1]))
    found[:, kinds[2]] = _planes(content[second:], len(kinds[2]), n).T
    return found


# --- gram ----------------------------------------------------------------------------------------


def in_order(items, times):
    order = sorted(range(len(items)), key=lambda k: items[k])
    return [items[k] for k in order], None if times is None else [times[k] for k in order]


def places(times, n):
    if times is None:
        return [(n - 1) / 2] * n
    found = []
    for one in times:
        found.append(sum(t < one for t in times) + (times.count(one) - 1) / 2)
    return found


@written
def positions(items, times, n_items):
    return [bits64(one) for one in places(in_order(items, times)[1], len(items))]


@written
def home_weights(items, times, n_items, memory):
    when, n = in_order(items, times)[1], len(items)
    if when is None:
        return [bits64(1.0)] * n
    return [bits64(exp_(-((n - 1) - one) / double(memory))) for one in places(when, n)]


def parted(items, times, share):
    own, when = in_order(items, times)
    out = max(1, math.floor(share * len(own))) if len(own) >= 5 else 0
    order = sorted(
        range(len(own)), key=lambda k: (when[k] if when else 0, own[k] * 2654435761 % 2**32)
    )
    held = set(order[len(own) - out :])
    return [k for k in range(len(own)) if k not in held], sorted(held)


@written
def held_out(items, times, n_items, share):
    own = sorted(items)
    before, held = parted(items, times, double(share))
    return {"before": [own[k] for k in before], "held": [own[k] for k in held]}


def unit(weights):
    squares = 0.0
    for w in weights:
        squares += w * w
    return [w / math.sqrt(squares) for w in weights]


@written
def profile(terms, round, model, published, items, times):
    told = json.loads(terms)
    settings, n_items = told["algorithm"], told["n_items"]
    own, when = in_order(items, times)
    q, p = settings["quality_share"], settings["popularity_share"] or 0.1
    stages = (1 if p == 1 else 2) + (q > 0)
    stage, held = round % stages, []
    if q:
        kept, held = parted(items, times, settings["held_out"])
        late = [own[k] for k in held]
        when = when and [when[k] for k in kept]
        own = [own[k] for k in kept]
    if q and stage == stages - 1:
        if not held:
            return {"place": [], "value": [], "size": 6, "pairs": False, "items": 0}
        about = {"items": own, "times": when, "late": late}
        told = _hits(settings, n_items, model, published, **about)
        place = [2 * k + (not hit) for k, hit in enumerate(told)]
        value = [bits64(math.sqrt(1 / 3))] * 3
        return {"place": place, "value": value, "size": 6, "pairs": False, "items": len(late)}
    n = len(own)
    weights = [math.sqrt((at + 1) / n) for at in places(when, n)]
    weights = weights if settings["recency"] else [1.0] * n
    if stage == 0:
        value = [math.sqrt(1 - 0.1) * one for one in unit(weights)] + [math.sqrt(0.1)]
        return {"place": [*own, n_items], "value": [bits64(x) for x in value],
                "size": n_items + 1, "pairs": False, "items": n}  # fmt: skip
    rows = table(model, 2 + settings["embedding_size"])
    head = [item for item in range(n_items) if rows[item, 1] > 0]
    inside = [k for k in range(n) if own[k] in head]
    value = unit([weights[k] for k in inside])
    return {"place": [head.index(own[k]) for k in inside], "value": [bits64(x) for x in value],
            "size": len(head), "pairs": True, "items": len(inside)}  # fmt: skip


def _hits(settings, n_items, model, published, items, times, late):
    width = 2 + settings["embedding_size"]
    rows = table(model, width)
    other = rows if published is None else table(published, width)
    if len(other) < n_items:
        new = np.zeros((n_items - len(other), width), single)
        new[:, 0] = min(float(other[:, 0].min()), 0.0)
        other = np.vstack([other, new])
    popular = rows.copy()
    popular[:, 1:] = 0
    found = []
    for one in (rows, other, popular):
        best = _list(settings, one, items, times, 10)[0]
        found.append(any(item in late for item in best))
    return found


def _vector(settings, rows, items, times):
    timed = times is not None and settings["recency"] and settings["memory"]
    n = len(items)
    weights = [1.0] * n
    if timed:
        weights = [exp_(-((n - 1) - at) / settings["memory"]) for at in places(times, n)]
    sums = np.zeros(rows.shape[1] - 2)
    for item, weight in zip(items, unit(weights), strict=True):
        sums = sums + weight * rows[item, 2:].astype(np.float64)
    return sums.astype(single)


def _list(settings, rows, items, times, many):
    vector, scored = _vector(settings, rows, items, times), []
    for item, row in enumerate(rows):
        s, size = row[0], np.abs(row[1])
        for a, b in zip(vector, row[2:], strict=True):
            s = fma(a, b * size, s)
        scored.append((-float(s), item))
    best = sorted(one for one in scored if one[1] not in items)[:many]
    return [item for _, item in best], [-s for s, _ in best]


@written
def hits(terms, model, published, items, times):
    told = json.loads(terms)
    own, when = in_order(items, times)
    before, held = parted(items, times, told["algorithm"]["held_out"])
    when = when and [when[k] for k in before]
    late = [own[k] for k in held]
    own = [own[k] for k in before]
    return _hits(told["algorithm"], told["n_items"], model, published, own, when, late)


@written
def home_vector(terms, model, items, times):
    settings = json.loads(terms)["algorithm"]
    rows = table(model, 2 + settings["embedding_size"])
    return _vector(settings, rows, *in_order(items, times)).astype("<f4").tobytes().hex()


@written
def gram_list(terms, model, items, times, many):
    settings = json.loads(terms)["algorithm"]
    rows = table(model, 2 + settings["embedding_size"])
    found, scores = _list(settings, rows, *in_order(items, times), many)
    return {"items": found, "scores": [bits32(s) for s in scores]}


@written
def cut(place, value, size, pairs, scale):
    c, values = double(scale), [double(one) for one in value]
    if any(not 0 <= v <= 2 for v in values) or any(not 0 <= at < size for at in place):
        raise Refused
    if any(a >= b for a, b in pairwise(place)):
        raise Refused
    unit = 256 if pairs else 65536
    factor = (math.sqrt(c) if pairs else c) * (unit * (1 - 2.0**-40))
    k = [math.floor(v * factor) for v in values]
    most = Fraction(c) * 256**2 if pairs else (Fraction(c) * 65536) ** 2
    if sum(one * one for one in k) > most:
        raise Refused
    return k


@written
def contribution(place, steps, size, pairs):
    found = [0] * (size * (size + 1) // 2 if pairs else size)
    for at, (a, k) in enumerate(zip(place, steps, strict=True)):
        found[a] = k * k if pairs else k
        for b, other in zip(place[at + 1 :], steps[at + 1 :], strict=True):
            if pairs:
                found[size + a * (2 * size - a - 1) // 2 + (b - a - 1)] = k * other
    return found


# --- a checked sum -------------------------------------------------------------------------------


@written
def cut_to(place, value, size, pairs, scale, grid, key):
    cut(place, value, size, pairs, scale)
    c, unit, secret = double(scale), grid["unit"], bytes.fromhex(key)
    limit = math.floor(Fraction(c) * unit**2 * (1 if pairs else Fraction(c)))
    y = [double(v) * ((math.sqrt(c) if pairs else c) * unit) for v in value]
    u = [(draw(secret, at) >> 11) * 2.0**-53 for at in place]

    def numbers(s, top):
        return [min(math.floor(s * a + b), top) for a, b in zip(y, u, strict=True)]

    def filled(top):
        low, high, mid = 0.0, 16.0, 16.0
        for _ in range(36):
            if sum(k * k for k in numbers(mid, top)) <= limit:
                low = mid
            else:
                high = mid
            if low == high:
                break
            mid = 0.5 * (low + high)
        return low

    quiet, loud, top, kept = 0, grid["most"] + 1, grid["most"], []
    while quiet + 1 < loud:
        k = numbers(filled(top), top)
        if grid["loudness"] and max(k, default=0) * sum(k) > grid["loudness"]:
            loud = top
        else:
            quiet, kept = top, k
        top = (quiet + loud) // 2
    return [one * grid["step"] for one in kept]


def form_of(terms, places, pairs):
    most = json.loads(terms)["link"]["largest_pair"]
    if pairs:
        weights = []
        while sum(weights) + (1 << len(weights)) <= most:
            weights.append(1 << len(weights))
        if most > sum(weights):
            weights = sorted([*weights, most - sum(weights)])
        return weights, 256, 78643
    return ([1 << k for k in range(12)], 4096, 0) if places <= 64 else ([1, 2, 4, 8], 64, 0)


@written
def form(terms, places, pairs):
    weights, unit, loudness = form_of(terms, places, pairs)
    slack, loud = (unit * unit).bit_length(), loudness.bit_length()
    elements = places * len(weights) + slack
    elements += (places + 1) * len(weights) + loud if loudness else 0
    return {
        "weights": weights, "bound": unit * unit, "loudness": loudness, "slack": slack,
        "loud_slack": loud, "elements": elements,
        "grid": {"step": 1 if pairs else 65536 // unit, "most": sum(weights), "unit": unit,
                 "loudness": loudness},
    }  # fmt: skip


@written
def bits(terms, places, pairs, entries):
    weights, unit, loudness = form_of(terms, places, pairs)

    def weighed(number):
        found = [0] * len(weights)
        for at in reversed(range(len(weights))):
            if number >= weights[at]:
                found[at], number = 1, number - weights[at]
        return found

    def powers(number, many):
        return [number >> at & 1 for at in range(many)]

    slack, largest = unit * unit - sum(k * k for k in entries), max(entries, default=0)
    quiet = loudness - largest * sum(entries)
    if (
        min(entries, default=0) < 0
        or largest > sum(weights)
        or slack < 0
        or (loudness and quiet < 0)
    ):
        raise Refused
    found = [bit for k in entries for bit in weighed(k)]
    found += powers(slack, (unit * unit).bit_length())
    if loudness:
        found += [bit for k in entries for bit in weighed(largest - k)] + weighed(largest)
        found += powers(quiet, loudness.bit_length())
    return found


def numbers_of(secret, many):
    found, p = stream(bytes.fromhex(secret), 8 * many + 64), 2**31 - 1
    numbers = [int.from_bytes(found[at : at + 4], "little") & p for at in range(0, len(found), 4)]
    return [one for one in numbers if one != p][:many]


@written
def field_numbers(secret, many):
    return b"".join(one.to_bytes(4, "little") for one in numbers_of(secret, many)).hex()


@written
def share(bits, secrets):
    first, second, third = (numbers_of(one, len(bits)) for one in secrets)
    made = [(b - x - y + z) % (2**31 - 1) for b, x, y, z in zip(bits, first, second, third,
                                                                strict=True)]  # fmt: skip
    return b"".join(one.to_bytes(4, "little") for one in made).hex()


# --- FPL -----------------------------------------------------------------------------------------


def mixed(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@written
def pairs_drawn(key, triples, items, n_items):
    own, found = sorted(items), {"positive": [], "negative": []}
    if not 0 < len(own) < n_items:
        raise Refused
    for t in range(triples):
        word = draw(bytes.fromhex(key), t)
        found["positive"].append(own[(word >> 32) * len(own) >> 32])
        negative = word % 2**32 * n_items >> 32
        while negative in own:
            word = mixed((word + 0x9E3779B97F4A7C15) % 2**64)
            negative = word % 2**32 * n_items >> 32
        found["negative"].append(negative)
    return found


@written
def share_subset(key, items, share):
    wanted = math.floor(float(single(double(share))) * len(items) + 0.001)
    return sorted(sorted(items, key=lambda item: draw(bytes.fromhex(key), item))[:wanted])


@written
def coins(key, draws, share):
    limit = round(float(single(double(share))) * 2**32)
    return [draw(bytes.fromhex(key), t) >> 32 < limit for t in range(draws)]


@written
def learn(terms, model, vector, items, key):
    told = json.loads(terms)
    settings, size = told["algorithm"], told["algorithm"]["embedding_size"]
    rate, rows = settings["learning_rate"], table(model, size + 1)
    regs = [settings.get(name, other) * 2.0**24 for name, other in (
        ("reg_positive", rate / 20), ("reg_negative", rate / 200))]  # fmt: skip
    bias, grid = settings["reg_bias"] * 2.0**24, single(2**24)
    reg_i, reg_j = (np.array([reg] * size + [bias]).astype(single) for reg in regs)
    a, e = single(rate), single(rate * settings.get("reg_user", rate / 20))
    p = np.concatenate([table(vector, size)[0], [single(1)]]).astype(single)
    drawn = pairs_drawn(key, settings["triples"], items, told["n_items"])
    found = {"item": [], "values": []}
    for i, j in zip(drawn["positive"], drawn["negative"], strict=True):
        q_i, q_j = rows[i], rows[j]
        s = sigmoid(total(p * (q_i - q_j)))
        found["item"] += [j, i]
        found["values"].append([-one for one in rounded((grid * s) * p + reg_j * q_j)])
        found["values"].append(rounded((grid * s) * p - reg_i * q_i))
        p = p + ((a * s) * (q_i - q_j) - e * p)
        p[-1] = 1
    return {**found, "vector": p[:-1].astype("<f4").tobytes().hex()}


def rounded(row):
    limit = single(127 * 2**24)
    row = np.where(row > -limit, row, -limit)
    return np.rint(np.where(row < limit, row, limit)).astype(np.int64).tolist()


@written
def clip(item, values, largest):
    numbers = [x for row in values for x in row]
    limit, square = double(largest) * 2.0**24, 0.0
    for x in numbers:
        square += float(x) * float(x)
    if sum(x * x for x in numbers) <= Fraction(limit) ** 2:
        return values
    slack = (len(numbers) + 16) * 2.0**-52
    factor = limit / math.sqrt(square) * (1 - slack)
    return [[math.trunc(x * factor) for x in row] for row in values]


@written
def report(round, item, values):
    numbers = [x for row in values for x in row]
    k = next(k for k in range(1, 9) if all(-(256**k) // 2 <= x < 256**k // 2 for x in numbers))
    steps = [b - a for a, b in zip([0, *item], item, strict=False)]
    head = struct.pack("<4sBBHIII", b"SVU3", k, 0, len(values[0]), round, len(item), 24)
    for part, size in ((steps, 4), (numbers, k)):
        written = [(x % 256**size).to_bytes(size, "little") for x in part]
        head += b"".join(bytes(one[b] for one in written) for b in range(size))
    return head.hex()


# --- seals and whole devices ----------------------------------------------------------------------


@written
def hpke_seal(public, info, plaintext, ephemeral):
    """RFC 9180, base mode, by its own text."""
    once = X25519PrivateKey.from_private_bytes(bytes.fromhex(ephemeral))
    key, enc = bytes.fromhex(public), once.public_key().public_bytes_raw()
    kem, suite = b"KEM\0\x20", b"HPKE\0\x20\0\1\0\1"

    def extract(name, salt, label, what):
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + name + label + what, "sha256")

    def expand(name, secret, label, what, size):
        said = size.to_bytes(2, "big") + b"HPKE-v1" + name + label + what + b"\1"
        return hmac.digest(secret, said, "sha256")[:size]

    agreed = once.exchange(X25519PublicKey.from_public_bytes(key))
    both = expand(kem, extract(kem, b"", b"eae_prk", agreed), b"shared_secret", enc + key, 32)
    context = b"\0" + extract(suite, b"", b"psk_id_hash", b"")
    context += extract(suite, b"", b"info_hash", bytes.fromhex(info))
    secret = extract(suite, both, b"secret", b"")
    cipher = AESGCM(expand(suite, secret, b"key", context, 16))
    nonce = expand(suite, secret, b"base_nonce", context, 12)
    return (enc + cipher.encrypt(nonce, bytes.fromhex(plaintext), None)).hex()


@written
def sealed_seed(terms, round, attempt, model_name, numbers, seed, private, ephemeral):
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    bound = bytes.fromhex(binding(terms, round, attempt, model_name, numbers))
    public, to = key.public_key().public_bytes_raw(), json.loads(terms)["link"]["key"]
    info = b"sottovoce mask seed\0" + bound + public
    sealed = bytes.fromhex(hpke_seal(to, info.hex(), seed, ephemeral))
    return (public + sealed + key.sign(b"sottovoce sealed mask seed\0" + bound + sealed)).hex()


@written
def masked_message(terms, round, attempt, masked_words, record):
    bits, words = json.loads(terms)["link"].get("bits", 64), bytes.fromhex(masked_words)
    head = b"SVM1" + struct.pack("<III", round, attempt, len(words) * 8 // bits)
    return (head + words + bytes.fromhex(record)).hex()


def summed_body(terms, round, attempt, model, values, numbers, seed, private, ephemeral):
    bits = json.loads(terms)["link"].get("bits", 64)
    place = {"terms": terms, "round": round, "attempt": attempt}
    keys = {"seed": seed, "private": private, "ephemeral": ephemeral}
    record = sealed_seed(**place, model_name=model_name(model, 0), numbers=numbers, **keys)
    return masked_message(**place, masked_words=hidden(values, seed, bits), record=record)


@written
def gram_message(terms, round, attempt, model, published, items, times, epsilon, total, spent,
                 sent, beyond, seed, private, ephemeral):  # fmt: skip
    told = json.loads(terms)
    p, q = told["algorithm"]["popularity_share"] or 0.1, told["algorithm"]["quality_share"]
    learnt = (p, 1 - p) if p < 1 else (1.0,)
    shares = [*((1 - q) * one for one in learnt), q] if q else learnt
    release = {name: bits64(told["release"][name]) for name in ("epsilon", "delta")}
    batches, parts = told["algorithm"]["batches"], [bits64(one) for one in shares]
    asked = {"release": release, "epsilon": epsilon, "total": total, "shares": parts}
    so_far = {"batches": batches, "round": round, "sent": sent, "beyond": beyond, "spent": spent}
    booked = cost(**asked, **so_far)
    if not booked["room"]:
        raise Refused
    made = profile(terms, round, model, published, items, times)
    shape = {"place": made["place"], "size": made["size"], "pairs": made["pairs"]}
    steps = cut(value=made["value"], scale=scale(release, epsilon)["scale"], **shape)
    numbers = contribution(steps=steps, **shape)
    many, keys = len(numbers), {"seed": seed, "private": private, "ephemeral": ephemeral}
    return {
        "body": summed_body(terms, round, attempt, model, numbers, many, **keys),
        "epsilon": booked["cost"],
        "bytes": many * told["link"].get("bits", 64) // 8 + 176,
        "positive_rows": made["items"],
        "sent": mark(round, len(shares), batches, sent)["sent"],
        "spent": bits64(double(spent) + double(booked["cost"])),
    }


def derived(root, *path):
    for text in path:
        root = hashlib.blake2b(text.encode(), key=root, digest_size=32).digest()
    return root.hex()


@written
def fpl_message(terms, round, attempt, model, vector, items, share, root, number, seed, private,
                ephemeral):  # fmt: skip
    told, own = json.loads(terms), bytes.fromhex(root)
    width, link = told["algorithm"]["embedding_size"] + 1, told["link"]
    key = derived(own, "name:learn", f"number:{round}", f"number:{number}")
    learnt = learn(terms, model, vector, items, key)
    may = share_subset(derived(own, "name:share-subset", f"number:{number}"), items, share)
    sums = {}
    for item, row in zip(learnt["item"], learnt["values"], strict=True):
        if item not in items or item in may:
            before = sums.get(item, [0] * width)
            sums[item] = [a + b for a, b in zip(before, row, strict=True)]
    item = sorted(sums)
    values = [sums[one] for one in item]
    mine = sum(one in items for one in item)
    if link["name"] == "direct":
        body = report(round, item, values)
    else:
        if link["clip"]:
            values = clip(item, values, bits64(link["clip"]))
        whole = {one: row for one, row in zip(item, values, strict=True)}
        every = [x for one in range(told["n_items"]) for x in whole.get(one, [0] * width)]
        keys = {"seed": seed, "private": private, "ephemeral": ephemeral}
        body = summed_body(terms, round, attempt, model, every, None, **keys)
    return {"body": body, "vector": learnt["vector"], "rows": [mine, len(item) - mine]}


# --- held to the vectors --------------------------------------------------------------------------


@pytest.mark.parametrize("function", sorted(PAGE))
def test_a_device_by_the_page_has_the_vectors(function):
    for case in KEPT[function]:
        try:
            found = {"out": PAGE[function](**case["in"])}
        except Refused:
            found = {"refused": True}
        assert found == {name: value for name, value in case.items() if name != "in"}
