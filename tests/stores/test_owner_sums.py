"""A data owner that sends sums over people: what leaves it, once, and what its disk keeps."""

import contextlib
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.algorithms.drift.aggregated import START, AggregatingOwner
from sottovoce.algorithms.drift.messages import Interaction, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator
from sottovoce.engines.flower.silo_node import OwnerNode
from sottovoce.errors import MessageError, StoreError, UsageError
from sottovoce.rng import SecretStreams, Streams
from sottovoce.stores import noted
from sottovoce.stores.noted import LastAnswer
from sottovoce.stores.owner import DataOwner
from sottovoce.wire.interactions import Identity, begin
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import FederationFile
from sottovoce.wire.silo_rounds import QueryRows

ISSUER, KEYS, RNG = Issuer("spring"), Identity(), Streams.from_seed(3)
CONFIG = DRIFTConfig(release="aggregated", min_users=2, learning_rate=0.1, window=1)
ITEMS = range(8)


class House:
    """An owner in a folder, people who come to it, and an orchestrator's rows."""

    def __init__(self, path, config=CONFIG, people=6):
        self.path, self.config = path, config
        self.owner = DataOwner.create(
            path, number=0, name="films", federation="spring", issuer=ISSUER.public,
            settings=config, items=ITEMS, identity=KEYS,
        )  # fmt: skip
        self.orchestrator = Orchestrator(config, RNG)
        self.orchestrator.add_items(0, ITEMS)
        self.keys = [Identity() for _ in range(people)]
        self.said = [0] * people
        self.round = 0

    def say(self, user, *kinds):
        """In a session of its own, so that it may follow a restart."""
        offer, once = self.owner.offer(ISSUER.admit(user, self.keys[user].public))
        sender, hello = begin(user, self.keys[user], 0, KEYS.public, once)
        sealed = []
        for kind, item in kinds:
            sealed.append(sender.seal(self.said[user], kind, item, self.said[user]))
            self.said[user] += 1
        assert self.owner.take(self.owner.accept(offer, hello, sealed[0]), sealed).taken

    def block(self, user, negative, positive):
        self.say(user, ("negative", negative), ("positive", positive), ("end", 0))

    def restart(self):
        self.owner.close()
        self.owner = DataOwner.open(self.path, KEYS)

    def ask(self, counted=-1, flush=False, departed=()):
        """A new round; what leaves in it."""
        self.round += 1
        request = self.owner.request(self.round, counted, flush=flush, departed=departed)
        return self.answer(request)

    def answer(self, request):
        return self.owner.gradients(self.round, self.orchestrator.answer(request))

    def again(self, counted=-1):
        return self.answer(self.owner.request(self.round, counted, flush=False))

    def everything(self):
        """All that is known of what was learnt, in comparable form."""
        memory = self.owner._known()
        learnt = memory.owner.learnt
        return (
            {u: v.tobytes() for u, v in learnt.vectors.items()},
            {i: v.tobytes() for i, v in learnt.waiting.items()},
            learnt.people,
            {i: v.tobytes() for i, v in memory._sent.items()},
            memory._answered_round,
            sorted(memory.owner.saved),
            sorted(memory.owner.asked),
        )


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path / "o")
    yield house
    house.owner.close()


def test_it_is_the_algorithms_owner_and_its_disk_has_all_of_it(house):
    """Whatever the moment at which it is started anew."""
    twin, orchestrator = AggregatingOwner(0, ITEMS, CONFIG), Orchestrator(CONFIG, RNG)
    orchestrator.add_items(0, ITEMS)
    draw, counted = np.random.default_rng(4), -1
    for user in range(6):
        twin.admit(user)
    sent = withheld = 0
    for time in range(12):
        for user in draw.permutation(6)[:3].tolist():
            negative, positive = draw.permutation(8)[:2].tolist()
            house.block(user, negative, positive)
            twin.receive(Interaction(0, user, negative, False, 2 * time))
            twin.receive(Interaction(0, user, positive, True, 2 * time + 1))
            twin.end_stream(user)
        house.round = time
        known = house.everything()
        house.restart()
        assert house.everything() == known
        request = house.owner.request(time, counted, flush=False)
        assert (request.users.tolist(), request.items.tolist()) == ([], list(ITEMS))
        house.restart()
        found = house.answer(request)
        expected = twin.gradients(orchestrator.answer(twin.request()))
        assert np.array_equal(found.item_rows, expected.item_rows)
        known = house.everything()
        house.restart()
        assert house.everything() == known
        twin.settle(True)
        for each in (orchestrator, house.orchestrator):
            each.fold(expected)
        counted = time
        sent += expected.item_rows.any()
        withheld += house.owner.counts()["withheld"]
    assert sent > 5
    assert withheld > 5
    for user in range(6):
        assert np.array_equal(house.owner.vector(user), twin.vector(user))
        assert not np.array_equal(twin.vector(user), np.full(4, START))


def test_in_one_round_the_answer_is_the_same_whatever_happens(house):
    """Were it made again, with somebody else in it, the difference would be hers."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    sent = house.ask()
    assert sent.item_rows[[1, 2]].any(axis=1).all()
    house.block(2, 1, 2)
    assert np.array_equal(house.again().item_rows, sent.item_rows)
    house.restart()
    house.orchestrator.fold(sent)  # other rows
    again = house.again()
    assert again.version == 1
    assert np.array_equal(again.item_rows, sent.item_rows)


def test_what_was_not_counted_is_sent_as_it_was_and_never_with_one_more(house):
    """An orchestrator that did not count an answer has seen it: the next one must not differ from
    it by one user."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    first = house.ask().item_rows
    house.block(2, 1, 2)
    house.restart()
    assert np.array_equal(house.ask().item_rows, first), "user 2 alone is in no row"
    house.block(3, 1, 2)
    both = house.ask().item_rows
    new = both.astype(np.float64) - first
    assert new[[1, 2]].any(axis=1).all(), "of users 2 and 3"
    house.orchestrator.fold(house.again())
    done = house.round
    assert not house.ask(counted=done).item_rows.any(), "counted, so not sent again"
    assert house.owner.counts()["withheld"] == 0


def test_an_owner_speaks_in_every_round_and_not_without_items(house):
    for _ in range(3):
        found = house.ask(counted=house.round if house.round else -1)
        assert (len(found.users), len(found.items), found.item_rows.any()) == (0, 8, False)
    house.owner.withdraw_items(ITEMS)
    assert house.owner.request(house.round + 1, house.round, flush=False) is None


def test_without_a_window_an_owner_speaks_when_streams_end_and_not_before(tmp_path):
    house = House(tmp_path / "o", replace(CONFIG, window=0))
    for user in range(3):
        house.block(user, 1, 2)
    for round in range(2):
        assert house.owner.request(round, -1, flush=False) is None
    house.round = 1
    assert house.ask(flush=True).item_rows[[1, 2]].any(axis=1).all()
    house.owner.close()


def test_who_leaves_takes_her_vector_and_every_sum_with_her(house):
    """Also what has left and may come to be sent again; no byte of it is in the files."""
    house.block(0, 1, 2)
    house.block(1, 1, 3)
    house.block(2, 4, 5)
    sent = house.ask()
    assert sent.item_rows[1].any()
    vector, known = house.owner.vector(0).tobytes(), house.everything()
    secrets = [vector, sent.item_rows[1].tobytes(), np.frombuffer(known[1][2]).tobytes()]
    assert all(secret in files(house.path) for secret in secrets)
    house.owner.forget(0)
    assert house.owner.vector(0) is None
    assert not any(secret in files(house.path) for secret in secrets)
    assert house.owner.vector(2).tobytes() in files(house.path)
    assert set(house.everything()[1]) == {3, 4, 5}, "sums that she is not in wait on"
    assert not house.again().item_rows.any()
    assert not house.ask().item_rows.any()


DRAWING = replace(CONFIG, negatives="untouched", negatives_per_positive=4, min_users=3)


def test_for_whom_an_item_was_merely_drawn_does_not_count_and_takes_its_sum_with_her(tmp_path):
    """Sums with what was drawn wait for people who touched the item; the disk has all of it."""
    house = House(tmp_path / "o", DRAWING)
    for user in (0, 1):
        house.say(user, ("positive", 2), ("end", 0))
    assert not house.ask().item_rows.any(), "two people touched it, three are needed"
    learnt = house.owner._known().owner.learnt
    assert set(learnt.people) == {2}
    drew = {user for users in learnt.drew.values() for user in users}
    assert drew == {0, 1}
    assert set(learnt.waiting) == {2, *learnt.drew}
    known = house.everything(), learnt.drew
    house.restart()
    assert (house.everything(), house.owner._known().owner.learnt.drew) == known
    house.say(3, ("positive", 2), ("end", 0))
    sent = house.ask()
    assert np.flatnonzero(sent.item_rows.any(axis=1)).tolist() == [2], "others were merely drawn"
    before = house.owner._known().owner.learnt
    house.owner.forget(0)
    left = house.owner._known().owner.learnt
    assert set(left.waiting) == set(left.drew) < set(before.drew), "others' sums wait on"
    assert not any(0 in users for users in left.drew.values())
    house.owner.close()


def test_what_a_user_touched_is_on_the_disk_until_she_leaves(tmp_path):
    house = House(tmp_path / "o", DRAWING)
    house.say(1, ("positive", 2), ("negative", 3), ("end", 0))
    house.say(0, ("positive", 5), ("end", 0))
    house.restart()
    owner = house.owner._known().owner
    assert (owner.touched(1), owner.touched(0)) == ({2, 3}, {5})
    house.owner.forget(1)
    house.restart()
    owner = house.owner._known().owner
    assert (owner.touched(1), owner.touched(0)) == (frozenset(), {5})
    others = [House(tmp_path / name, DRAWING).owner for name in "ab"]
    secrets = [other._store.load().draws for other in others]
    assert secrets[0] != secrets[1], "nobody else can draw what an owner draws"
    assert all(isinstance(one, SecretStreams) for one in secrets)
    for owner in (house.owner, *others):
        owner.close()


def test_who_leaves_without_a_block_takes_nothing_from_others(house):
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    house.say(2, ("negative", 1))
    sent = house.ask()
    assert np.array_equal(house.ask(departed=[2]).item_rows, sent.item_rows)


def test_that_an_answer_was_counted_is_heard_before_who_has_left(house):
    """Else the sums that she is in would be dropped where they are done with anyway."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    house.orchestrator.fold(house.ask())
    house.ask(counted=house.round, departed=[0])
    assert (house.owner.counts()["counted"], house.owner.counts()["returned"]) == (1, 0)


def test_withdrawn_items_go_with_their_sums(house):
    house.block(0, 1, 2)
    house.block(1, 1, 3)
    house.ask()
    house.owner.withdraw_items([1, 2])
    for _ in range(2):
        assert set(house.everything()[1]) == {3}
        assert not house.everything()[3]
        house.restart()
    house.orchestrator.withdraw_items(0, [1, 2])
    assert house.ask().items.tolist() == [0, 3, 4, 5, 6, 7]


def test_rows_that_were_not_asked_for_change_nothing(house):
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    house.round += 1
    rows = house.orchestrator.answer(house.owner.request(house.round, -1, flush=False))
    known = house.everything()
    fewer = Rows(rows.version, rows.users, rows.items[1:], rows.user_rows, rows.item_rows[1:])
    with pytest.raises(MessageError, match="lacks"):
        house.owner.gradients(house.round, fewer)
    with pytest.raises(MessageError, match="not asked"):
        house.owner.gradients(house.round + 1, rows)
    assert house.everything() == known


def chosen_rows(request, **rows):
    """Zeros, but for these."""
    table = np.zeros((len(request.items), 4), np.float32)
    for item, number in rows.items():
        table[int(item[1:])] = number
    none = np.zeros((0, 4), np.float32)
    return Rows(0, request.users, request.items, none, table)


@pytest.mark.parametrize("blocks", [[], [(0, 1, 2)], [(0, 1, 2), (1, 3, 4)]])
def test_rows_beyond_all_bounds_are_refused_whatever_anybody_did(house, blocks):
    """Were it so for some people's blocks only, the refusal would tell of them."""
    for block in blocks:
        house.block(*block)
    request = house.owner.request(1, -1, flush=True)
    known = house.everything()
    for number in (100.1, -3e38, np.inf):
        with pytest.raises(MessageError) as said:
            house.owner.gradients(1, chosen_rows(request, i1=number, i2=-number))
        words = "not finite" if np.isinf(number) else "the rows are beyond all bounds"
        assert words in str(said.value)
    assert house.everything() == known
    house.owner.gradients(1, chosen_rows(request, i1=99.0, i2=-99.0))


def test_rows_can_be_chosen_so_that_one_person_is_all_of_a_sum(tmp_path):
    """What an orchestrator that lies gets, within all bounds: privacy.md says so, and this must be
    no longer there when it does not hold any more. All like item 0; one of them disliked item 7."""
    seen = {}
    for who in (3, None):
        house = House(tmp_path / str(who), replace(CONFIG, min_users=5))
        for user in range(6):
            house.block(user, 7 if user == who else 1 + user % 3, 0)
        request = house.owner.request(1, -1, flush=True)
        rows = chosen_rows(request, i1=-50, i2=-50, i3=-50, i7=50)
        seen[who] = np.abs(house.owner.gradients(1, rows).item_rows[0]).max()
        house.owner.close()
    assert seen[3] > 0.1
    assert seen[None] < 1e-6


def test_what_runs_off_is_dropped_without_a_word_and_the_owner_goes_on(tmp_path):
    """With rows that any owner takes, and a learning rate with which nothing holds."""
    house = House(tmp_path / "o", replace(CONFIG, learning_rate=10.0, reg=1e3))
    for round in range(1, 4):
        for user in (0, 1):
            house.block(user, 1, 2)
            house.block(user, 2, 1)
        request = house.owner.request(round, round - 1 if round > 1 else -1, flush=True)
        sent = house.owner.gradients(round, chosen_rows(request, i1=100, i2=-100))
        assert not sent.item_rows.any()
        assert (np.abs(house.owner.vector(0)) <= 100).all()
        house.restart()
    assert house.owner.counts()["refused_overflow"] > 0
    house.owner.forget(0)
    assert house.owner.vector(0) is None
    house.owner.close()


def test_streams_do_not_end_in_a_round_that_was_answered(house):
    """The second answer of a round would be another one."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    sent = house.ask()
    house.block(2, 1, 2)
    house.block(3, 1, 2)
    with pytest.raises(MessageError, match="later one"):
        house.owner.request(house.round, -1, flush=True)
    assert np.array_equal(house.again().item_rows, sent.item_rows)
    assert house.ask(flush=True).item_rows.any()


def test_a_sum_over_one_person_is_no_setting_of_a_federation():
    with pytest.raises(UsageError, match="at least 2"):
        FederationFile("spring", ISSUER.public, replace(CONFIG, min_users=1), ("a",))


def test_an_older_copy_of_the_store_is_refused_in_one_sentence(house, tmp_path):
    """What was sent since would be sent again, with others in it."""
    house.block(0, 1, 2)
    house.owner.close()
    shutil.copytree(house.path, tmp_path / "copy")
    house.owner = DataOwner.open(house.path, KEYS)
    house.block(1, 1, 2)
    house.orchestrator.fold(house.ask())
    with contextlib.closing(DataOwner.open(tmp_path / "copy", KEYS)) as older:
        for _ in range(2):
            with pytest.raises(MessageError, match="older copy"):
                older.request(house.round + 1, house.round, flush=False)
        with pytest.raises(MessageError, match="older copy"):  # it came in, and was not counted
            older.request(house.round + 1, -1, flush=False, heard=house.round)
    house.owner.request(house.round + 1, -1, flush=False, heard=house.round)


def copied(house, tmp_path):
    """The owner, and a copy of its folder, to be opened."""
    house.owner.close()
    place = shutil.copytree(house.path, tmp_path / "copy")
    house.owner = DataOwner.open(house.path, KEYS)
    copy = House.__new__(House)
    vars(copy).update(vars(house) | {"path": place, "said": [*house.said]})
    return copy


def note_of_owner(house):
    return house.owner._store.last_answer()._place


@pytest.mark.parametrize("fault", [False, True], ids=["as it is", "without the note"])
def test_an_older_copy_says_no_second_sum_whatever_the_orchestrator_says(
    house, tmp_path, monkeypatch, fault
):
    """Two users are in one answer. The folder is set back by a file copy, a third user comes, and
    the orchestrator claims that no answer came in. The difference of both answers would be hers."""
    if fault:
        monkeypatch.setattr(LastAnswer, "keep", lambda *args: True)
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    copy = copied(house, tmp_path)
    first = house.ask()
    house.owner.close()
    copy.owner = DataOwner.open(copy.path, KEYS)
    copy.block(2, 1, 2)
    copy.round = house.round
    with contextlib.closing(copy.owner):
        if fault:
            assert (copy.ask().item_rows - first.item_rows)[1:3].any(), "one user's part"
            return
        for _ in range(2):
            with pytest.raises(MessageError, match="another copy of it has answered since"):
                copy.ask()
        with pytest.raises(MessageError, match="has not asked for rows"):
            copy.owner.gradients(copy.round, None)
    house.restart()
    assert np.array_equal(house.again().item_rows, first.item_rows)


def test_the_log_of_a_store_that_was_set_back_says_so(house, tmp_path):
    house.block(0, 1, 2)
    copy = copied(house, tmp_path)
    house.ask()
    house.owner.close()
    lines = []
    log = SimpleNamespace(error=lambda event, **facts: lines.append((event, facts)))
    copy.owner = DataOwner.open(copy.path, KEYS)
    with contextlib.closing(copy.owner):
        node = OwnerNode(copy.owner, log)
        asked = QueryRows("spring", 2, -1, False, np.zeros(0, np.int64))
        told = node.answer_query(asked)
        assert "older copy" in told.problem
        assert told.request is None
        ((event, facts),) = lines
        assert (event, facts["round"]) == ("set back", 2)
        assert facts["detail"].endswith("another folder. Find out who put it back")
        told = node.answer_query(replace(asked, federation="other"))
        assert "not of the one asking" in told.problem
        assert len(lines) == 1, "other trouble is no alarm"


def test_of_two_copies_that_run_at_once_one_answers(house, tmp_path):
    """Both are asked in the same round, before either has answered."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    copy = copied(house, tmp_path)
    copy.owner = DataOwner.open(copy.path, KEYS)
    with contextlib.closing(copy.owner):
        copy.block(2, 1, 2)
        house.round = copy.round = 1
        requests = [one.owner.request(1, -1, flush=False) for one in (house, copy)]
        sent = house.answer(requests[0])
        for _ in range(2):
            with pytest.raises(MessageError, match="older copy"):
                copy.answer(requests[1])
        for _ in range(2):
            with pytest.raises(MessageError, match="older copy"):
                copy.ask()
        assert np.array_equal(house.again().item_rows, sent.item_rows)
        house.block(3, 1, 2)
        assert house.ask(counted=1) is not None


def test_an_answer_that_is_on_the_disk_and_not_noted_yet_leaves_as_it_is(house, monkeypatch):
    """The process was killed in between, or there was no room for the note."""
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    house.round = 1
    request = house.owner.request(1, -1, flush=False)
    place = note_of_owner(house)
    with monkeypatch.context() as full:
        full.setattr(noted, "replace_file", lambda *args: (_ for _ in ()).throw(OSError(28, "x")))
        with pytest.raises(
            StoreError, match=r"nothing was sent: name another .* \$SOTTOVOCE_MARKS"
        ):
            house.answer(request)
    known = house.everything()
    assert known[4] == 1, "it is on the disk"
    before = place.read_bytes()
    house.restart()
    sent = house.again()
    assert sent.item_rows.any()
    assert place.read_bytes() != before
    assert house.everything() == known
    house.restart()
    assert np.array_equal(house.again().item_rows, sent.item_rows)


def test_a_note_tells_no_secret_and_a_damaged_one_is_not_taken_for_none(house, tmp_path):
    house.block(0, 1, 2)
    house.block(1, 1, 2)
    house.ask()
    place = note_of_owner(house)
    assert set(json.loads(place.read_bytes())) == {"number", "mark"}
    assert place.stat().st_mode & 0o777 == 0o600
    assert not place.is_relative_to(house.path)
    place.write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        house.ask()
    place.unlink()
    assert house.ask() is not None, "as on another machine"
    trial = DataOwner.create(
        tmp_path / "trial", number=0, name="films", federation="spring", issuer=ISSUER.public,
        settings=CONFIG, items=ITEMS, identity=KEYS, draws=7,
    )  # fmt: skip
    with contextlib.closing(trial):
        assert trial._store.last_answer() is None


def test_an_owner_as_printed_keeps_no_vectors(tmp_path):
    house = House(tmp_path / "o", replace(CONFIG, release="printed"))
    house.block(0, 1, 2)
    assert house.owner.vector(0) is None
    assert "withheld" not in house.owner.counts()
    house.owner.close()


def test_nothing_private_is_shown(house):
    house.block(0, 1, 2)
    house.ask()
    memory = house.owner._known()
    for thing in (memory, memory.owner.learnt, house.owner._store.sums, house.owner):
        assert "0." not in repr(thing)
        assert "array" not in repr(thing)
    assert "array" not in repr(house.owner._store.sums.load(4))


def files(path):
    return b"".join(file.read_bytes() for file in path.iterdir())
