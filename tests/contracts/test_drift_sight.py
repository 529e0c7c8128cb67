"""Sight in DRIFT: what each party saw, against the table, and against the thesis's Figure 5.1.

The figure says: an owner sees the interactions, blocks and rows of its own items; a user her
interactions; the orchestrator (COS) rows alone; whoever reads the network (Ext) interactions as
ciphertext, and nothing else. The tests say where that holds and where it does not.
"""

from collections import defaultdict
from dataclasses import fields, replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import DriftModel, Events
from sottovoce.algorithms.drift.messages import Gradients, Interaction, OwnerTable, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.drift import Claim, cosine_claims, request_pairs, score_pairs
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo_simulation import SEALINGS, SESSION_BYTES, SIGHT, SiloSimulation
from sottovoce.errors import MessageError
from sottovoce.rng import Streams
from sottovoce.wire import silo_rounds as silo_bytes
from sottovoce.wire.interactions import SEALED_BYTES, SHARED_BYTES, SharedKey

N_USERS, N_ITEMS = 60, 40
DRAW = np.random.default_rng(2)
TRAIN = Interactions.from_pairs(
    DRAW.integers(0, N_USERS, 900), DRAW.integers(0, N_ITEMS, 900), n_users=N_USERS,
    n_items=N_ITEMS, timestamps=DRAW.integers(0, 900, 900), ratings=DRAW.integers(1, 6, 900),
)  # fmt: skip
MEMBER = DRAW.random((N_ITEMS, 4)) < 0.3
MEMBER[np.arange(N_ITEMS), np.arange(N_ITEMS) % 4] = True
TABLE = OwnerTable.of_membership(MEMBER)
EVENTS = Events.of(TRAIN, 4.0, "time")
CONFIG = DRIFTConfig(theta=2)
TRUTH = {
    (int(u), int(i)): bool(p)
    for u, i, p in zip(EVENTS.user, EVENTS.item, EVENTS.positive, strict=True)
}
SENT = sorted(
    (u, i, p, k) for (u, i), p in TRUTH.items() for k in np.flatnonzero(MEMBER[i]).tolist()
)
"""User, item, sign and owner of everything that was said."""


class Seen:
    """Everything that reached each party in an epoch."""

    def __init__(self, sealing, theta=CONFIG.theta):
        self.by_party = defaultdict(list)
        self.claims = []
        self.blocks = set()
        self.federation = SiloSimulation(
            replace(CONFIG, theta=theta), TABLE, range(N_USERS), Streams.from_seed(1), sealing,
            witness=self,
        )  # fmt: skip
        self.federation.epoch(EVENTS)

    def __call__(self, party, message):
        self.by_party[party].append(message)
        if party[0] == "orchestrator" and isinstance(message, Gradients):
            self.claims += cosine_claims(message, self.federation.model, CONFIG.step(), named=False)
            for user, block in self.federation.owners[message.owner].asked:
                for liked, side in ((False, block.negatives), (True, block.positives)):
                    self.blocks |= {Claim(user, item, liked) for item in side}

    def of(self, who, kind, number=None):
        return [
            m for (party, n), messages in self.by_party.items()
            if party == who and number in (None, n) for m in messages if isinstance(m, kind)
        ]  # fmt: skip

    def packets(self, kind):
        """On the network. Without a window, an owner's requests and gradients take turns."""
        ends = {"interaction": ("user", "owner"), "rows": ("orchestrator", "owner")}.get(
            kind, ("owner", "orchestrator")
        )
        found = [p for p in self.by_party["network", 0] if (p.sender[0], p.receiver[0]) == ends]
        return found[{"request": 0, "gradients": 1}[kind] :: 2] if ends[0] == "owner" else found


@pytest.fixture(scope="module", params=SEALINGS)
def seen(request):
    return Seen(request.param)


@pytest.fixture(scope="module")
def thesis():
    return Seen("shared")


@pytest.fixture(scope="module")
def ours():
    return Seen("pairs")


# --- the table -----------------------------------------------------------------------------------


def test_each_party_sees_what_the_table_says_and_no_more(seen):
    kinds = defaultdict(set)
    for (who, _), messages in seen.by_party.items():
        for message in messages:
            name = type(message).__name__
            assert {field.name for field in fields(message)} == SIGHT[who][name]
            kinds[who].add(name)
    assert kinds == {who: set(messages) for who, messages in SIGHT.items()}


def test_a_user_sees_her_own_interactions(seen):
    for user in range(N_USERS):
        mine = seen.of("user", Interaction, user)
        found = sorted((m.user, m.item, m.positive, m.owner) for m in mine)
        assert found == [s for s in SENT if s[0] == user]


def test_an_owner_sees_the_interactions_with_its_items_and_no_others(seen):
    for owner in range(4):
        there = seen.of("owner", Interaction, owner)
        assert sorted((m.user, m.item, m.positive, m.owner) for m in there) == [
            s for s in SENT if s[3] == owner
        ]


def test_an_owner_sees_rows_of_its_items_and_of_users_in_its_blocks_alone(seen):
    for owner in range(4):
        users = {u for u, _, _, k in SENT if k == owner}
        for rows in seen.of("owner", Rows, owner):
            assert MEMBER[rows.items, owner].all()
            assert set(rows.users.tolist()) <= users


def test_the_orchestrator_gets_no_interaction_and_no_block(seen):
    got = seen.by_party["orchestrator", 0]
    assert {type(m) for m in got} == {RowRequest, Rows, Gradients}


# --- where the thesis is wrong: the orchestrator -------------------------------------------------


def test_figure_5_1_is_wrong_requests_tell_the_orchestrator_who_touched_what(seen):
    """COS × interaction is empty in the figure."""
    requests = seen.of("orchestrator", RowRequest)
    truth = np.array(sorted(TRUTH), dtype=np.int64)
    outcome = score_pairs(request_pairs(requests), truth, Streams.from_seed(0))
    assert outcome.recall > 0.8
    assert outcome.succeeds
    alone = [r for r in requests if len(r.users) == 1]
    assert alone, "some updates are one user's"
    assert {tuple(pair) for pair in request_pairs(alone).tolist()} <= set(TRUTH)


def test_figure_5_1_is_wrong_gradients_tell_the_orchestrator_who_liked_what(seen):
    """COS × block of interaction is empty in the figure; all blocks are found, without a name."""
    found = set(seen.claims)
    assert found <= seen.blocks
    assert len(found) > 0.97 * len(seen.blocks) > 500
    assert all(TRUTH[c.user, c.item] == c.liked for c in found)


def test_an_item_s_gradient_is_a_multiple_of_the_user_s_vector():
    """Less the ridge; minus where she liked it."""
    seen = Seen("shared", theta=1)
    checked = 0
    every = seen.of("orchestrator", Rows), seen.of("orchestrator", Gradients)
    for rows, sent in zip(*every, strict=True):
        vector = rows.user_rows[0].astype(np.float64)
        left = sent.item_rows - 2 * CONFIG.reg * rows.item_rows.astype(np.float64)
        factor = left @ vector / (vector @ vector)
        np.testing.assert_allclose(left, factor[:, None] * vector, atol=1e-7)
        for item, f in zip(sent.items.tolist(), factor.tolist(), strict=True):
            assert (f < 0) == TRUTH[int(sent.users[0]), item]
            checked += 1
    assert checked > 500


def test_an_owner_learns_that_a_user_was_active_elsewhere():
    """The thesis: "they cannot have any information about another DO". But a user's row comes back
    changed when another owner's update has moved it."""
    seen = Seen("pairs")
    moved = 0
    for owner in range(4):
        last = {}
        rate = CONFIG.learning_rate
        gradients = [g for g in seen.of("orchestrator", Gradients) if g.owner == owner]
        for rows, sent in zip(seen.of("owner", Rows, owner), gradients, strict=True):
            for user, row in zip(rows.users.tolist(), rows.user_rows, strict=True):
                moved += user in last and not np.array_equal(last[user], row)
            for user, row, g in zip(
                rows.users.tolist(), rows.user_rows, sent.user_rows, strict=True
            ):
                step = np.float64(row) - rate * np.float64(g)
                last[user] = step.astype(np.float32)
    assert moved > 50


# --- where the thesis is wrong: the network ------------------------------------------------------


def test_in_the_thesis_the_network_reads_the_flag_and_the_owner(thesis):
    """Ext × interaction is "Enc" in the figure; user and item are, the flag is not."""
    packets = thesis.packets("interaction")
    signs = [(p.receiver[1], p.content[-1]) for p in packets]
    assert sorted(signs) == sorted((k, int(p)) for _, _, p, k in SENT)
    assert {len(p.content) for p in packets} == {SHARED_BYTES}


def test_in_the_thesis_the_network_knows_what_the_orchestrator_knows(thesis):
    """Ext × weights is grey in the figure, though the text has it that they are in the clear."""
    read = [silo_bytes.decode_row_request(p.content) for p in thesis.packets("request")]
    told = thesis.of("orchestrator", RowRequest)
    assert [(r.owner, r.users.tolist(), r.items.tolist()) for r in read] == [
        (r.owner, r.users.tolist(), r.items.tolist()) for r in told
    ]
    rows = [silo_bytes.decode_rows(p.content) for p in thesis.packets("rows")]
    own = thesis.of("orchestrator", Rows)
    assert len(rows) == len(own)
    for one, other in zip(rows, own, strict=True):
        np.testing.assert_array_equal(one.user_rows, other.user_rows)


def test_in_the_thesis_the_network_finds_who_liked_what(thesis):
    """The text: an external observer "cannot guess the interactions". With the rows and gradients
    of one update it can, as the orchestrator does."""
    checked = 0
    for rows, sent in zip(thesis.packets("rows"), thesis.packets("gradients"), strict=True):
        read, pull = silo_bytes.decode_rows(rows.content), silo_bytes.decode_gradients(sent.content)
        known = DriftModel(np.zeros((N_USERS, 4), np.float32), np.zeros((N_ITEMS, 4), np.float32))
        known.users[read.users], known.items[read.items] = read.user_rows, read.item_rows
        for claim in cosine_claims(pull, known, CONFIG.step(), named=False):
            assert TRUTH[claim.user, claim.item] == claim.liked
            checked += 1
    assert checked > 500


def test_in_the_thesis_every_user_of_an_owner_reads_the_others():
    """The key is the owner's, and all its users have it."""
    key = SharedKey.new_key()
    hers, his = SharedKey(key), SharedKey(key)
    assert his.open(hers.seal(5, 8, True)) == (5, 8, True)


def test_with_a_key_per_pair_the_network_reads_neither_flag_nor_numbers(ours):
    packets = ours.packets("interaction")
    sealed = [p.content for p in packets if len(p.content) == SESSION_BYTES + SEALED_BYTES]
    assert len(sealed) == len(SENT)
    assert {p.receiver[1] for p in packets} == set(range(4)), "the owner's address is open"
    # No byte behind the session's name and the counter says whether she liked it.
    body = np.frombuffer(b"".join(sealed), np.uint8).reshape(len(sealed), -1)
    # Events go in their order, each to its owners.
    liked = np.repeat(EVENTS.positive, MEMBER.sum(axis=1)[EVENTS.item])
    for column in body[:, SESSION_BYTES + 12 :].T.astype(float):
        spread = column.std() * np.sqrt(1 / liked.sum() + 1 / (~liked).sum())
        assert abs(column[liked].mean() - column[~liked].mean()) < 5 * spread
    assert len({c[SESSION_BYTES + 12 :] for c in sealed}) == len(sealed)


def test_with_sealed_links_the_network_reads_no_request_and_no_row(ours):
    """As TLS between owners and the orchestrator does; the lengths are open."""
    numbers = [silo_bytes.encode_row_request(r)[12:] for r in ours.of("orchestrator", RowRequest)]
    rows = [r.user_rows.tobytes() for r in ours.of("orchestrator", Rows)]
    wire = b"".join(p.content for p in ours.by_party["network", 0])
    assert not [n for n in numbers if len(n) >= 12 and n in wire]
    assert not [r for r in rows if r in wire]
    for packet in ours.packets("rows"):
        with pytest.raises(MessageError):
            silo_bytes.decode_rows(packet.content)
    lengths = [len(p.content) for p in ours.packets("rows")]
    told = [silo_bytes.rows_bytes(len(r.users), len(r.items), 4) for r in ours.of("owner", Rows)]
    assert sorted(lengths) == sorted(n + 22 for n in told)


def test_in_both_the_network_sees_who_talks_to_which_owner(thesis, ours):
    for seen in (thesis, ours):
        pairs = {(p.sender[1], p.receiver[1]) for p in seen.packets("interaction")}
        assert pairs == {(u, k) for u, _, _, k in SENT}
