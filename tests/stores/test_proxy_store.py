"""The proxy's store against a model of it: whatever happens in whatever order, also crashes, what
was accepted is handed over once or dropped with its round, and never below the minimum."""

import contextlib
import secrets
import shutil
import sqlite3
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sottovoce.errors import ServiceError
from sottovoce.parties.shuffler import ShufflerRules, in_parts
from sottovoce.stores.shuffler import KEPT_ROUNDS, ShufflerPosition, ShufflerStore
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import SealedSubmission

REPORTS, PER_PART = 2, 3
RULES = ShufflerRules(REPORTS, (2, 3), hold_seconds=0.0)
ACCOUNTS = [bytes([n]) * 16 for n in range(6)]
accounts, tiers = st.sampled_from(ACCOUNTS), st.integers(0, 1)


def key_of(round):
    return round.to_bytes(8, "little")


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = ShufflerStore(self.folder / "proxy.db")
        self.round = 0
        self.store.move(ShufflerPosition(0, True, key_of(0)))
        self.sent = {}
        """What each account has sent, by round and account: tier, mark, body."""
        self.sealed, self.over = {}, {}
        """By round and tier: parts that the server has; how a batch ended."""
        self.received = {}

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    def submission(self, account, round, tier, again):
        known = self.sent.get((round, account))
        if again and known:
            tier, mark, body = known
        else:
            mark, body = secrets.token_bytes(16), secrets.token_bytes(REPORTS * SEALED_BYTES)
        return SealedSubmission(account, round, tier, key_of(round), mark, memoryview(body))

    @rule(account=accounts, tier=tiers, again=st.booleans(), back=st.integers(-1, 2))
    def submit(self, account, tier, again, back):
        round = max(0, self.round - back)
        made = self.submission(account, round, tier, again)
        (decision,) = self.store.accept([made], {})
        known = self.sent.get((round, account))
        if round != self.round:
            assert decision == "late"
        elif known:
            assert decision == ("replay" if known[1] == made.mark else "second_submission")
        elif (round, tier) in self.sealed or (round, tier) in self.over:
            assert decision == "late"
        else:
            assert decision == "accepted"
            self.sent[round, account] = tier, made.mark, bytes(made.reports)

    @rule(tier=tiers)
    def several_at_once(self, tier):
        """One transaction, with an account twice in it."""
        new = [self.submission(a, self.round, tier, False) for a in (*ACCOUNTS[:2], ACCOUNTS[0])]
        decisions = self.store.accept(new, {"malformed": 1})
        for made, decision in zip(new, decisions, strict=True):
            if decision == "accepted":
                assert (self.round, made.account) not in self.sent
                self.sent[self.round, made.account] = tier, made.mark, bytes(made.reports)

    @rule(parts=st.integers(0, 4))
    def hand_over_some(self, parts):
        """As the forwarder does; it may be cut off after any part."""
        for held in self.store.held():
            where = held.round, held.tier
            if held.state == "open":
                if not RULES.releases(held.tier, held.devices, 0.0):
                    continue
                held = self.store.seal(held)
                self.sealed[where] = held
            total = -(-held.devices * REPORTS // PER_PART)
            content = in_parts(
                lambda h=held: self.store.rows(h), held.devices * REPORTS, SEALED_BYTES, held.seed,
                per_part=PER_PART, first=held.sent,
            )  # fmt: skip
            for number, body in enumerate(content, held.sent):
                if number >= parts:
                    break
                self.received.setdefault(where, {})[number] = body
                held = self.store.sent(held, number + 1)
            if held.sent == total:
                self.store.end(held, "handed_over")
                self.over[where] = self.sealed.pop(where)

    @rule()
    def move_on(self):
        dropped = self.store.move(ShufflerPosition(self.round + 1, True, key_of(self.round + 1)))
        self.round += 1
        for held in dropped:
            self.over[held.round, held.tier] = held
            self.sealed.pop((held.round, held.tier), None)

    @rule()
    def forget(self):
        while self.store.forget():
            pass

    @rule()
    def crash(self):
        """The process is gone; its files are as they were."""
        copy = Path(tempfile.mkdtemp())
        for path in self.folder.iterdir():
            shutil.copy(path, copy / path.name)
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder, self.store = copy, ShufflerStore(copy / "proxy.db")

    @precondition(lambda self: self.store.held())
    @rule()
    def a_transaction_that_fails_changes_nothing(self):
        before = self.store.held(), self.store.position
        with pytest.raises(ZeroDivisionError), self.store._writing():
            _ = self.store._end(self.store.held()[0], "dropped"), 1 / 0
        assert (self.store.held(), self.store.position) == before

    @invariant()
    def devices_are_those_that_were_accepted(self):
        for held in self.store.held():
            mine = [
                account
                for (round, account), (tier, *_) in self.sent.items()
                if (round, tier) == (held.round, held.tier)
            ]
            assert held.devices == len(mine)

    @invariant()
    def the_server_has_what_was_accepted_and_nothing_below_the_minimum(self):
        for (round, tier), parts in self.received.items():
            expected = b"".join(
                body for (r, _), (t, _, body) in self.sent.items() if (r, t) == (round, tier)
            )
            devices = len(expected) // (REPORTS * SEALED_BYTES)
            assert devices >= RULES.minimum[tier]
            found = records(b"".join(parts[n] for n in sorted(parts)))
            assert len(set(found)) == len(found)
            assert set(found) <= set(records(expected))
            if len(parts) == -(-devices * REPORTS // PER_PART):
                assert sorted(found) == sorted(records(expected))

    @invariant()
    def nobody_is_remembered_for_long(self):
        with contextlib.closing(sqlite3.connect(self.folder / "proxy.db")) as link:
            oldest = link.execute("SELECT min(round) FROM seen").fetchone()[0]
            seeds = link.execute("SELECT count(*) FROM batches WHERE seed IS NOT NULL").fetchone()
        assert oldest is None or oldest >= self.round - KEPT_ROUNDS
        assert seeds[0] == len(self.sealed)


def records(content):
    return [content[at : at + SEALED_BYTES] for at in range(0, len(content), SEALED_BYTES)]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


@pytest.mark.parametrize("reports", [1, 2, 8, 40])
def test_of_a_tier_that_is_gone_no_byte_remains_while_another_still_holds_reports(
    tmp_path, reports
):
    """Now and then SQLite leaves a copy of a row in a page that it rearranged; so no page may hold
    rows of two batches, and the table of a batch that is over is dropped."""
    with contextlib.closing(ShufflerStore(tmp_path / "proxy.db")) as store:
        store.move(ShufflerPosition(0, True, key_of(0)))
        bodies = [secrets.token_bytes(reports * SEALED_BYTES) for _ in range(200)]
        for n in range(0, len(bodies), 10):
            made = [
                SealedSubmission(i.to_bytes(16, "big"), 0, i % 2, key_of(0), bytes(16), bodies[i])
                for i in range(n, n + 10)
            ]
            assert store.accept(made, {}) == ["accepted"] * 10
        (gone,) = (held for held in store.held() if held.tier == 0)
        store.end(store.seal(gone), "handed_over")
        while store.forget():
            pass
        assert store.wipe_log()
        (held,) = store.held()
        left = b"".join(part.tobytes() for part in store.rows(held))
        assert sorted(records(left)) == sorted(records(b"".join(bodies[1::2])))
        raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert all(record in raw for record in records(bodies[1])), "what is held is there"
        for record in records(b"".join(bodies[::2])):
            assert record[:16] not in raw
            assert record[-16:] not in raw
        with contextlib.closing(sqlite3.connect(tmp_path / "proxy.db")) as link:
            tables = link.execute("SELECT name FROM sqlite_master WHERE name LIKE 'reports%'")
            assert tables.fetchall() == [(held.table,)]


def test_a_store_of_another_release_is_left_alone(tmp_path):
    ShufflerStore(tmp_path / "proxy.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "proxy.db")) as link, link:
        link.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
        before = list(link.iterdump())
    with pytest.raises(ServiceError, match="has format 99, and this release reads format 2 alone"):
        ShufflerStore(tmp_path / "proxy.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "proxy.db")) as link:
        assert list(link.iterdump()) == before


def test_a_file_that_is_no_store_is_told(tmp_path):
    (tmp_path / "proxy.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(ServiceError, match="cannot be used"):
        ShufflerStore(tmp_path / "proxy.db")


def test_an_account_has_one_generation_after_the_other(tmp_path):
    with contextlib.closing(ShufflerStore(tmp_path / "proxy.db")) as store:
        assert store.generation(ACCOUNTS[0]) is None
        assert [store.enrol(ACCOUNTS[0]) for _ in range(3)] == [0, 1, 2]
        assert store.generation(ACCOUNTS[0]) == 2
        assert store.accounts() == 1
    assert (tmp_path / "proxy.db").stat().st_mode & 0o077 == 0


def test_a_submission_that_comes_again_when_its_round_is_closed_has_counted(tmp_path):
    """Its answer was lost, and the batch has gone meanwhile."""
    with contextlib.closing(ShufflerStore(tmp_path / "proxy.db")) as store:
        store.move(ShufflerPosition(0, True, key_of(0)))
        body = secrets.token_bytes(REPORTS * SEALED_BYTES)
        made = SealedSubmission(ACCOUNTS[0], 0, 0, key_of(0), bytes(16), memoryview(body))
        assert store.accept([made], {}) == ["accepted"]
        (held,) = store.held()
        store.end(store.seal(held), "handed_over")
        store.move(ShufflerPosition(0, False, key_of(0)))
        other = SealedSubmission(ACCOUNTS[1], 0, 0, key_of(0), bytes(16), memoryview(body))
        assert store.accept([made, other], {}) == ["replay", "late"]
        store.move(ShufflerPosition(1, True, key_of(1)))
        assert store.accept([made], {}) == ["late"]
