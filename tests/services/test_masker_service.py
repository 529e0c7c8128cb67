"""The proxy of a secure sum, in this process: what it tells, to whom, and what it never tells."""

import json
import secrets
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from app_world import exposed
from secure_sum_world import (
    LEAST,
    MODEL,
    NOISY,
    TOKEN,
    MaskerApp,
    SeedKeeper,
    group_question,
    masker_folder,
    question,
    summed_terms,
)
from server_world import ITEMS
from talk import until

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import Direct, SecureSum
from sottovoce.core.masking import sum_masks, unmasked
from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.parties.helper import GROUPED_ROUNDS, REGAINED_AFTER, Answered
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.services.kit import application
from sottovoce.stores import helper_folder as folders
from sottovoce.stores.keys import operator_token
from sottovoce.wire.masked import (
    LONGEST_QUESTION,
    SEALED_SEED_BYTES,
    binding,
    decode_mask_sum,
    decode_question,
    encode_group_question,
    encode_question,
    seal_seed,
)
from sottovoce.wire.terms import Terms

NUMBERS = ITEMS * 5
WIDE = summed_terms()
"""Terms with numbers of 64 bits."""


@pytest.fixture
def folder(tmp_path):
    return masker_folder(tmp_path / "masker")


@pytest.fixture
def app(folder):
    with MaskerApp(folder) as running:
        yield running


@pytest.fixture
def terms(folder):
    return folder.introduction.terms


@pytest.fixture
def devices():
    return [SeedKeeper() for _ in range(6)]


def told(got):
    assert got.status == 200, got.body
    return decode_mask_sum(got.body, WIDE)


def refused(got, status, reason):
    assert (got.status, got.error) == (status, reason), got.body
    return got.json()["detail"]


@pytest.mark.parametrize("link", [{}, NOISY], ids=["exact", "noisy"])
def test_the_same_set_gets_the_same_bytes_also_after_a_restart(tmp_path, devices, link):
    folder = masker_folder(tmp_path / "masker", **link)
    terms = folder.introduction.terms
    records = [device.record(terms, 4) for device in devices]
    ask = encode_question(terms, 4, 0, MODEL, records)
    with MaskerApp(folder) as app:
        first = app.sums(ask)
        assert first.status == 200
        assert app.sums(ask).body == first.body
        shuffled = encode_question(terms, 4, 0, MODEL, records[::-1])
        assert app.sums(shuffled).body == first.body
    with MaskerApp(folders.open_helper(folder.path)) as again:
        assert again.sums(ask).body == first.body
    exact = sum_masks([device.seed(4) for device in devices], NUMBERS)
    assert np.array_equal(told(first).masks, exact) == (not link)


def test_another_set_of_a_round_is_refused_also_after_a_restart(folder, terms, devices):
    with MaskerApp(folder) as app:
        told(app.sums(question(terms, 2, devices)))
        for others in (devices[1:], [*devices, SeedKeeper()], [*devices[1:], SeedKeeper()]):
            refused(app.sums(question(terms, 2, others)), 409, "second_submission")
    with MaskerApp(folders.open_helper(folder.path)) as app:
        refused(app.sums(question(terms, 2, devices[1:])), 409, "second_submission")
        refused(app.sums(question(terms, 1, devices)), 409, "late")
        told(app.sums(question(terms, 3, devices[1:])))


def test_the_same_devices_second_submissions_are_another_set(app, terms, devices):
    """Or from the sums of a first and a second attempt one device's change would follow."""
    first = [device.record(terms, 0) for device in devices]
    told(app.sums(encode_question(terms, 0, 0, MODEL, first)))
    refused(app.sums(question(terms, 0, devices, attempt=1)), 409, "second_submission")
    mixed = [devices[0].record(terms, 0, seed=secrets.token_bytes(32)), *first[1:]]
    refused(app.sums(encode_question(terms, 0, 0, MODEL, mixed)), 409, "second_submission")


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_below_the_minimum_nothing_is_told_or_kept(app, terms, devices, count):
    refused(app.sums(question(terms, 0, devices[:count])), 400, "too_few")
    assert told(app.sums(question(terms, 0, devices[:LEAST]))).devices == LEAST


def test_a_device_counts_once(app, terms, devices):
    """With one key it is one device, however many seeds it sends."""
    twice = [device.record(terms, 0) for device in devices[:2]]
    more = [devices[0].record(terms, 0, seed=secrets.token_bytes(32)) for _ in range(3)]
    refused(app.sums(encode_question(terms, 0, 0, MODEL, [*twice, *more])), 400, "duplicate")
    refused(app.sums(encode_question(terms, 0, 0, MODEL, [twice[0]] * 3)), 400, "duplicate")


def test_what_was_sealed_or_signed_for_something_else_is_not_opened(app, terms, devices):
    good = [device.record(terms, 5) for device in devices[1:]]
    odd = devices[0]
    elsewhere = replace(terms, federation="other-town")
    stricter = replace(terms, link=replace(terms.secure_sum, min_devices=2))
    for terms_there, round, attempt in (
        (terms, 4, 0), (terms, 5, 1), (elsewhere, 5, 0), (stricter, 5, 0),
    ):  # fmt: skip
        wrong = odd.record(terms_there, round, attempt)
        refused(app.sums(encode_question(terms, 5, 0, MODEL, [wrong, *good])), 401, "bad_signature")
        resigned = odd.record(terms, 5, sealed_for=(terms_there, round, attempt))
        got = app.sums(encode_question(terms, 5, 0, MODEL, [good[0], resigned, *good[1:]]))
        refused(got, 409, "undecryptable")
        assert got.json()["which"] == [1]
    bound = binding(terms, 5, 0, MODEL)
    stolen = odd.signed(devices[1].record(terms, 5), bound)
    got = app.sums(encode_question(terms, 5, 0, MODEL, [stolen, *good[1:]]))
    assert (got.status, got.json()["which"]) == (409, [0]), "sealed by another device"
    # Nothing of it was told: the others can still be.
    assert told(app.sums(encode_question(terms, 5, 0, MODEL, good))).devices == 5


def test_all_in_a_sum_have_learnt_from_one_model(app, terms, devices):
    """A server that shows one device the model, and all others one that teaches nothing, would read
    this device's update in the sum."""
    apart = SeedKeeper(model=bytes(32))
    sealed = [device.record(terms, 5) for device in (apart, *devices)]
    for model in (MODEL, apart.model):
        got = app.sums(encode_question(terms, 5, 0, model, sealed))
        refused(got, 401, "bad_signature")
    assert told(app.sums(encode_question(terms, 5, 0, MODEL, sealed[1:]))).devices == len(devices)


def test_a_changed_bit_is_found(app, terms, devices):
    records = [device.record(terms, 0) for device in devices]
    for at in (0, 40, SEALED_SEED_BYTES - 1):
        content = bytearray(records[0].content)
        content[at] ^= 1
        ask = bytearray(encode_question(terms, 0, 0, MODEL, records))
        ask[-6 * SEALED_SEED_BYTES : -5 * SEALED_SEED_BYTES] = content
        refused(app.sums(bytes(ask)), 401, "bad_signature")


def test_terms_other_than_its_own_are_refused(app, terms, devices):
    """It counts and adds noise as its own folder says, whatever the question is."""
    loose = replace(terms, link=replace(terms.secure_sum, min_devices=2))
    refused(app.sums(question(loose, 0, devices[:2])), 409, "other_terms")
    refused(app.sums(question(loose, 0, devices)), 409, "other_terms")


def test_only_the_server_may_ask(app, terms, devices, folder):
    ask = question(terms, 0, devices)
    for token in ("", "no", operator_token(folder.keys), TOKEN[:-1], "ä"):
        refused(app.sums(ask, token=token), 401, "unknown_server")
    refused(app.ask("POST", "/v1/sums", ask), 401, "unknown_server")
    assert app.ask("GET", "/v1/sums").status == 405
    refused(app.seeds(ask, token="no"), 401, "unknown_server")
    refused(app.ask("POST", "/v1/seeds", ask), 401, "unknown_server")
    assert app.ask("GET", "/v1/seeds").status == 405


def test_malformed_questions_are_refused_and_never_break_it(app, terms, devices):
    good = question(terms, 0, devices)
    bad = [b"", b"{}", good[:-1], good + b"x", b"SVQ2" + good[4:], good[: len(good) // 2]]
    bad.append(struct.pack("<4sIII32s32s", b"SVQ1", 0, 0, 1 << 31, bytes(32), bytes(32)))
    for payload in bad:
        got = app.sums(payload)
        assert 400 <= got.status < 500, (got.status, got.body)
    got = app.run(
        app.asked(
            "POST", "/v1/sums", b"",
            {"authorization": f"Bearer {TOKEN}", "content-length": str(LONGEST_QUESTION + 1)},
            pieces=[b"x"],
        )
    )  # fmt: skip
    refused(got, 413, "oversized")
    told(app.sums(good))


def test_nothing_of_a_question_stays_with_it(app, terms, devices, folder):
    told(app.sums(question(terms, 0, devices)))
    kept = b"".join(f.read_bytes() for f in folder.path.rglob("*") if f.is_file())
    for device in devices:
        assert device.seed(0) not in kept
        public = device.key.public_key().public_bytes_raw()
        assert public not in kept
        assert public.hex().encode() not in kept
    table = json.loads((folder.path / "answered.json").read_text())
    assert set(table) == {"round", "set", "spent", "stamp"}


def test_health_and_metrics(app, terms, devices, folder):
    assert app.ask("GET", "/health").body == b"ok"
    told(app.sums(question(terms, 7, devices)))
    app.sums(question(terms, 7, devices[1:]))
    assert app.ask("GET", "/metrics").status == 401
    bearer = {"authorization": f"Bearer {operator_token(folder.keys)}"}
    text = app.ask("GET", "/metrics", headers=bearer).body.decode()
    assert "sottovoce_masker_round 7.0" in text
    assert "sottovoce_masker_sums_total 1.0" in text
    assert 'sottovoce_masker_refused_total{reason="second_submission"} 1.0' in text


def test_a_helper_that_lacks_what_it_told_last_is_there_and_not_ready(app, folder):
    assert app.ask("GET", "/ready").status == 200
    (folder.path / "answered.json").unlink()
    until(lambda: app.ask("GET", "/ready").status == 503)
    assert app.ask("GET", "/health").status == 200


def test_a_look_that_hangs_is_the_only_one(app, folder, monkeypatch):
    """Whoever asks again and again whether it is ready takes one of the operators' places."""
    monkeypatch.setattr(application, "_READY_SECONDS", 0.0)
    monkeypatch.setattr(application, "_READY_PATIENCE", 0.01)
    looks, go_on = [], threading.Event()
    hangs = lambda: (looks.append(1), go_on.wait(60))  # noqa: E731
    monkeypatch.setattr(app.service, "require_ready", hangs)
    try:
        answers = [app.ask("GET", "/ready") for _ in range(40)]
        assert {(got.status, got.error) for got in answers} == {(503, "not_ready")}
    finally:
        go_on.set()
    bearer = {"authorization": f"Bearer {operator_token(folder.keys)}"}
    assert app.ask("GET", "/metrics", headers=bearer).status == 200  # behind all looks
    assert len(looks) == 1
    until(lambda: app.ask("GET", "/ready").status == 200)


def test_its_log_has_a_line_for_every_sum_and_names_no_device(app, terms, many):
    began = time.monotonic()
    told(app.sums(question(terms, 0, many)))
    two = group_question(terms, 1, (many[:5], many[5:]), 1)
    told(app.sums(two))
    app.sums(question(terms, 1, many))  # is refused
    app.seeds(question(terms, 1, many))  # tells no sum
    seconds = [line.pop("seconds") for line in app.log.lines]
    assert app.log.lines == [
        {"event": "sum told", "round": 0, "attempt": 0, "devices": 12},
        {"event": "sum told", "round": 1, "attempt": 0, "group": 1, "groups": 2, "devices": 7},
    ]
    assert all(0 <= took <= time.monotonic() - began + 0.001 for took in seconds)


def test_before_the_first_sum_nothing_is_said_of_the_last(app, terms, devices, folder):
    bearer = {"authorization": f"Bearer {operator_token(folder.keys)}"}

    def look():
        return exposed(app.ask("GET", "/metrics", headers=bearer).body)

    before = look()
    assert before["sottovoce_masker_last_sum_devices"] == {}
    earlier, began = time.time(), time.monotonic()
    told(app.sums(question(terms, 7, devices)))
    now = look()
    assert now["sottovoce_masker_last_sum_devices"] == {(): 6.0}
    assert 0 <= now["sottovoce_masker_last_sum_seconds"][()] <= time.monotonic() - began + 0.001
    assert earlier <= now["sottovoce_masker_last_sum_end_timestamp_seconds"][()] <= time.time()
    ends = now["sottovoce_certificate_expires_timestamp_seconds"]
    days = (ends["server", "helper"] - time.time()) / 86400
    assert 800 < days < 826
    assert ends["ca", "helper"] > ends["server", "helper"]
    assert (
        0
        < now["sottovoce_disk_free_bytes"]["helper",]
        <= (now["sottovoce_disk_size_bytes"]["helper",])
    )


def test_what_cannot_be_kept_is_not_told(app, terms, devices, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.stores.sum_folder.replace_file", full)
        refused(app.sums(question(terms, 0, devices)), 503, "unavailable")
    told(app.sums(question(terms, 0, devices[1:])))


def test_a_folder_is_made_once_and_for_its_own_key(tmp_path, folder):
    with pytest.raises(UsageError, match="already"):
        folders.init_helper(folder.path)
    with pytest.raises(UsageError, match="without --introduction"):
        folders.create_helper(folder.path, folder.introduction)
    with pytest.raises(UsageError, match="--init"):
        folders.create_helper(tmp_path / "empty", folder.introduction)
    folders.init_helper(tmp_path / "other")
    with pytest.raises(KeyTrouble, match="another key"):
        folders.create_helper(tmp_path / "other", folder.introduction)
    with pytest.raises(ServiceError, match="--init"):
        folders.open_helper(tmp_path / "other")
    plain = replace(folder.introduction.terms, link=Direct())
    with pytest.raises(UsageError, match="no secure sum"):
        folders.create_helper(tmp_path / "other", folders.HelperIntroduction(plain, TOKEN))


def test_a_proxy_that_forgot_what_it_told_does_not_start(folder):
    (folder.path / "answered.json").unlink()
    with pytest.raises(ServiceError, match="second one"):
        folders.open_helper(folder.path).answers()
    (folder.path / "answered.json").write_text("{}")
    with pytest.raises(ServiceError, match="put the right file back"):
        folders.open_helper(folder.path).answers()


def test_introductions_of_other_kinds_are_refused(tmp_path, folder):
    place = tmp_path / "introduction.json"
    for content in (b"", b"[]", b'{"protocol": 2}', b'{"protocol":2,"terms":{},"token":"ab"}'):
        place.write_bytes(content)
        with pytest.raises(UsageError):
            folders.HelperIntroduction.read(place)
    with pytest.raises(UsageError, match="cannot be read"):
        folders.HelperIntroduction.read(tmp_path / "none")
    place.unlink()
    folder.introduction.write(place)
    assert place.stat().st_mode & 0o077 == 0
    assert folders.HelperIntroduction.read(place) == folder.introduction
    assert TOKEN not in repr(folder.introduction) + repr(folder)


# --- which seeds it can open ----------------------------------------------------------------------


def test_it_says_which_seeds_it_cannot_open_and_tells_nothing_else(app, terms, devices, folder):
    before = (folder.path / "answered.json").read_bytes()
    records = [device.record(terms, 5) for device in devices]
    got = app.seeds(encode_question(terms, 5, 0, MODEL, records))
    assert (got.status, got.json()) == (200, {"which": []})
    bound, elsewhere = binding(terms, 5, 0, MODEL), replace(terms, federation="other-town")
    records[0] = devices[0].record(terms, 4)  # signed for another round
    records[2] = devices[2].record(terms, 5, sealed_for=(terms, 9, 0))
    records[3] = devices[3].signed(devices[1].record(terms, 5), bound)  # sealed by another device
    records[5] = devices[5].record(elsewhere, 5)
    got = app.seeds(encode_question(terms, 5, 0, MODEL, records))
    assert (got.status, got.json()) == (200, {"which": [0, 2, 3, 5]})
    assert (folder.path / "answered.json").read_bytes() == before, "no round is used up by it"
    good = [device.record(terms, 5) for device in devices]
    assert told(app.sums(encode_question(terms, 5, 0, MODEL, good))).devices == 6


def test_what_it_says_of_a_seed_does_not_depend_on_others_or_on_what_it_told(app, terms, devices):
    """One by one or together, before and after the sum, also below the fewest of a sum."""
    records = [device.record(terms, 5) for device in devices]
    records[2] = devices[2].record(terms, 5, sealed_for=(terms, 9, 0))
    said = []
    for _ in range(2):
        alone = [app.seeds(encode_question(terms, 5, 0, MODEL, [one])) for one in records]
        together = app.seeds(encode_question(terms, 5, 0, MODEL, records)).json()["which"]
        said.append(([bool(got.json()["which"]) for got in alone], together))
        app.sums(question(terms, 6, devices))
    assert said == [([False, False, True, False, False, False], [2])] * 2
    assert app.seeds(encode_question(terms, 5, 0, MODEL, [])).json() == {"which": []}


def test_questions_about_seeds_that_are_off_are_refused(app, terms, devices):
    good = question(terms, 0, devices)
    loose = replace(terms, link=replace(terms.secure_sum, min_devices=2))
    refused(app.seeds(question(loose, 0, devices)), 409, "other_terms")
    records = [device.record(terms, 0) for device in devices]
    contributed = encode_question(terms, 0, 0, MODEL, records, NUMBERS)
    for ask in (app.seeds, app.sums):
        refused(ask(contributed), 400, "malformed")  # these terms are not ones of contributions
    for payload in (b"", b"{}", good[:-1], good + b"x", b"SVQ2" + good[4:], b"SVQ3" + good[4:]):
        refused(app.seeds(payload), 400, "malformed")
    assert app.seeds(good).json() == {"which": []}


# --- contributions --------------------------------------------------------------------------------

HEAD = 9


@pytest.fixture
def contributed(tmp_path):
    """The helper of gram, at the first stage of which there is a number for each item and one."""
    key = folders.init_helper(tmp_path / "gram")
    link = SecureSum(min_devices=LEAST, url="https://127.0.0.1:1", key=key, bits=40)
    settings = GramConfig(least_head=HEAD, most_head=HEAD, embedding_size=6)
    terms = Terms.of("little-town", ITEMS, settings, settings.draws, OwnEpsilon(4.0), link)
    introduction = folders.HelperIntroduction(terms, TOKEN)
    with MaskerApp(folders.create_helper(tmp_path / "gram", introduction)) as app:
        yield app, terms


def contributing(terms, devices, numbers, said=None):
    bound = binding(terms, 0, 0, MODEL, numbers)
    records = [seal_seed(d.seed(0), d.key, terms.secure_sum, bound) for d in devices]
    return encode_question(terms, 0, 0, MODEL, records, numbers if said is None else said)


def test_sums_of_contributions_have_the_numbers_that_devices_signed(contributed, devices):
    app, terms = contributed
    numbers = ITEMS + 1
    ask = contributing(terms, devices, numbers)
    assert app.seeds(ask).json() == {"which": []}
    other = contributing(terms, devices, numbers, said=numbers - 1)
    assert app.seeds(other).json() == {"which": [0, 1, 2, 3, 4, 5]}
    refused(app.sums(other), 401, "bad_signature")
    got = app.sums(ask)
    sums = decode_mask_sum(got.body, terms)
    assert (sums.devices, sums.bits, len(sums.masks)) == (6, 40, numbers)
    assert len(got.body) == 16 + 5 * numbers
    exact = sum_masks([device.seed(0) for device in devices], numbers, bits=40)
    assert not np.array_equal(unmasked(exact, sums.masks, 1, 40), np.zeros((numbers, 1)))


def test_questions_that_are_not_ones_for_contributions_are_refused(contributed, devices):
    app, terms = contributed
    records = [device.record(terms, 0) for device in devices]
    most = terms.most_numbers
    assert most == HEAD * (HEAD + 1) // 2 == 45 > ITEMS + 1
    for ask in (app.seeds, app.sums):
        refused(ask(encode_question(terms, 0, 0, MODEL, records)), 400, "malformed")
        for many in (0, most + 1, 2**32 - 1):
            refused(ask(contributing(terms, devices, many)), 400, "malformed")


# --- groups ---------------------------------------------------------------------------------------


@pytest.fixture
def many():
    return [SeedKeeper() for _ in range(12)]


def sealed(terms, round, groups):
    return [[device.record(terms, round) for device in group] for group in groups]


@pytest.mark.parametrize("link", [{}, NOISY], ids=["exact", "noisy"])
def test_it_tells_one_sum_for_every_group_also_after_a_restart(tmp_path, many, link):
    folder = masker_folder(tmp_path / "masker", **link)
    terms, groups = folder.introduction.terms, (many[:3], many[3:7], many[7:])
    records = sealed(terms, 4, groups)
    asked = [encode_group_question(terms, 4, 0, MODEL, records, k) for k in range(3)]
    with MaskerApp(folder) as app:
        first = [app.sums(ask) for ask in asked]
        assert [told(got).devices for got in first] == [3, 4, 5]
    with MaskerApp(folders.open_helper(folder.path)) as again:
        assert [again.sums(ask).body for ask in asked[::-1]] == [got.body for got in first[::-1]]
    noise = []
    for group, got in zip(groups, first, strict=True):
        exact = sum_masks([device.seed(4) for device in group], NUMBERS)
        noise.append((exact - told(got).masks).view(np.int64))
    if not link:
        assert not np.any(noise)
        return
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert 0.5 < noise[one].std() / 2**24 / (NOISY["clip"] * NOISY["noise"]) < 1.5
        assert abs(np.corrcoef(noise[one], noise[other])[0, 1]) < 0.3


def test_no_other_groups_of_a_round_also_after_a_restart(folder, terms, many):
    records = sealed(terms, 2, (many[:3], many[3:6], many[6:9]))
    a, b, c = records
    others = (
        [[*a, *b, *c]],  # one sum over all
        [a],
        [a, b],
        [b, a, c],
        [[*a[:2], b[0]], [a[2], *b[1:]], c],
        [a, b, [*c, many[9].record(terms, 2)]],
        sealed(terms, 2, (many[:3], many[3:6], many[6:9])),  # sealed anew
    )
    with MaskerApp(folder) as app:
        told(app.sums(encode_group_question(terms, 2, 0, MODEL, records, 1)))
    for _ in range(2):
        with MaskerApp(folders.open_helper(folder.path)) as app:
            for other in others:
                if len(other) == 1:
                    ask = encode_question(terms, 2, 0, MODEL, other[0])
                else:
                    ask = encode_group_question(terms, 2, 0, MODEL, other, 0)
                refused(app.sums(ask), 409, "second_submission")
            told(app.sums(encode_group_question(terms, 2, 0, MODEL, records, 0)))
    with MaskerApp(folder) as app:
        told(app.sums(question(terms, 3, many)))
        refused(app.sums(group_question(terms, 3, (many[:6], many[6:]))), 409, "second_submission")


def test_groups_that_it_must_not_tell(app, terms, many):
    overlapping = (many[:4], many[3:7])
    refused(app.sums(group_question(terms, 0, overlapping)), 400, "duplicate")
    for group in (0, 1):
        small = (many[:6], many[6:8])
        refused(app.sums(group_question(terms, 0, small, group)), 400, "too_few")
    empty = (many[:6], [])
    refused(app.sums(group_question(terms, 0, empty)), 400, "too_few")
    other_seed = [[device.record(terms, 0) for device in many[:3]] for _ in range(2)]
    ask = encode_group_question(terms, 0, 0, MODEL, other_seed, 0)
    refused(app.sums(ask), 400, "duplicate")
    assert told(app.sums(group_question(terms, 0, (many[:6], many[6:])))).devices == 6


def test_more_groups_than_the_terms_permit_are_refused(tmp_path, many):
    folder = masker_folder(tmp_path / "masker", groups=2)
    terms = folder.introduction.terms
    three, two = (many[:4], many[4:8], many[8:]), (many[:6], many[6:])
    with MaskerApp(folder) as app:
        refused(app.sums(group_question(terms, 0, three)), 400, "too_many")
        told(app.sums(group_question(terms, 0, two)))
    older = masker_folder(tmp_path / "older", groups=1)
    with MaskerApp(older) as app:
        ask = group_question(older.introduction.terms, 0, two)
        refused(app.sums(ask), 400, "too_many")


def test_an_unopened_seed_in_any_group_is_named_before_anything_is_told(app, terms, many):
    records = sealed(terms, 5, (many[:4], many[4:8]))
    records[1][2] = many[6].record(terms, 5, sealed_for=(terms, 9, 0))
    got = app.sums(encode_group_question(terms, 5, 0, MODEL, records, 0))
    refused(got, 409, "undecryptable")
    assert got.json()["which"] == [6]
    told(app.sums(group_question(terms, 5, (many[:4], [*many[4:6], many[7]]))))


def test_rounds_in_groups_are_few_also_after_a_restart(folder, terms, many):
    two, left = (many[:6], many[6:]), folder.answers().last
    left = Answered(left.round, left.name, GROUPED_ROUNDS * REGAINED_AFTER - 1)
    folder.answers().keep(left)
    with MaskerApp(folder) as app:
        refused(app.sums(group_question(terms, 0, two)), 429, "too_often")
        told(app.sums(question(terms, 0, many)))  # nothing was kept of it
        for round in range(1, 3):
            refused(app.sums(group_question(terms, round, two)), 429, "too_often")
            told(app.sums(question(terms, round, many)))
    with MaskerApp(folders.open_helper(folder.path)) as app:
        told(app.sums(group_question(terms, 3, two)))
        refused(app.sums(group_question(terms, 4, two)), 429, "too_often")
    assert json.loads((folder.path / "answered.json").read_text())["spent"] == 256


def test_malformed_questions_for_groups_never_break_it(app, terms, many):
    good = group_question(terms, 0, (many[:6], many[6:]), 1)
    assert decode_question(good).sizes == (6, 6)
    head = struct.calcsize("<4sIII32s32s")
    bad = [good[:-1], good + b"x", b"SVQ1" + good[4:], good[:head], good[: head + 7]]
    for many_groups, group in ((0, 0), (1, 0), (2, 2), (65, 0), (2**32 - 1, 1), (3, 0)):
        bad.append(good[:head] + struct.pack("<II", many_groups, group) + good[head + 8 :])
    for sizes in ((12, 0), (7, 6), (2**32 - 6, 18), (0, 0)):
        bad.append(good[: head + 8] + struct.pack("<II", *sizes) + good[head + 16 :])
    for payload in bad:
        got = app.sums(payload)
        assert 400 <= got.status < 500, (got.status, got.body)
    told(app.sums(good))
