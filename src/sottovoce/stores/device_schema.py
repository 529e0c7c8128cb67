"""What is in a store, as SQL.

Promises that the database itself keeps, whatever a program does: choices and agreed terms are only
ever added, a budget never falls, and what left stays on record, message by message and request by
request.
"""

from __future__ import annotations

APPLICATION_ID = 0x53564F43
"""Marks a file as a store ("SVOC")."""

FORMAT = 9
"""The format of a store. A file of another format is refused."""

SCHEMA = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    number INTEGER PRIMARY KEY CHECK (number BETWEEN 0 AND 4294967295),
    name TEXT NOT NULL,
    -- In a federation of data owners a user has a key, and a pass once she is enrolled.
    private BLOB,
    pass BLOB,
    departure TEXT NOT NULL DEFAULT '' CHECK (departure IN ('', 'asked', 'done'))
) STRICT;

CREATE TABLE catalogue (
    item INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL
) STRICT;

CREATE TABLE history (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    item TEXT NOT NULL,
    time INTEGER,
    PRIMARY KEY (number, item)
) STRICT, WITHOUT ROWID;

-- Every choice that was ever made; the latest of a user is in force.
CREATE TABLE consent (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    choice TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    -- A choice was made in sight of the data owners up to this number: later ones get nothing.
    shown INTEGER NOT NULL DEFAULT -1
) STRICT;
CREATE INDEX consent_by_user ON consent (number, version);

-- The terms that were agreed to; the latest are in force.
CREATE TABLE terms (
    era INTEGER PRIMARY KEY,
    content TEXT NOT NULL,
    agreed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE model (
    only INTEGER PRIMARY KEY CHECK (only = 0),
    round INTEGER NOT NULL,
    width INTEGER NOT NULL,
    items BLOB NOT NULL
) STRICT;

-- The state of users at the start of the latest round, where it is not the initial one, and what
-- its participants had learnt at its end.
CREATE TABLE vectors (
    number INTEGER PRIMARY KEY REFERENCES users ON UPDATE CASCADE,
    vector BLOB NOT NULL
) STRICT;
CREATE TABLE learnt (
    number INTEGER PRIMARY KEY REFERENCES users ON UPDATE CASCADE,
    vector BLOB NOT NULL
) STRICT;

CREATE TABLE rounds (
    era INTEGER NOT NULL REFERENCES terms,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('prepared', 'dropped', 'left', 'arrived', 'refused')),
    asked BLOB NOT NULL,
    consent INTEGER NOT NULL,
    devices INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    message BLOB,
    wire_bytes INTEGER NOT NULL,
    digest TEXT NOT NULL,
    prepared_at INTEGER NOT NULL,
    left_at INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    -- What a report was at the socket, in the envelope in which it left.
    body_bytes INTEGER NOT NULL DEFAULT 0,
    body_sha256 TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (era, round, attempt)
) STRICT;

CREATE TABLE ledger (
    era INTEGER NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    kind TEXT NOT NULL,
    positive_rows INTEGER NOT NULL,
    negative_rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    epsilon REAL NOT NULL,
    reports INTEGER NOT NULL DEFAULT 0,
    report_epsilon REAL NOT NULL DEFAULT 0,
    batch INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (era, round, attempt, number),
    FOREIGN KEY (era, round, attempt) REFERENCES rounds
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_by_user ON ledger (number);

CREATE TABLE budget (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    kind TEXT NOT NULL,
    releases INTEGER NOT NULL,
    positive_rows INTEGER NOT NULL,
    negative_rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    epsilon REAL NOT NULL,
    reports INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (number, kind)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER consent_stays BEFORE DELETE ON consent
BEGIN SELECT RAISE(ABORT, 'a choice that was made stays on record'); END;
CREATE TRIGGER consent_is_new BEFORE UPDATE OF version, choice, shown, changed_at ON consent
BEGIN SELECT RAISE(ABORT, 'a change of mind is a new record'); END;
CREATE TRIGGER terms_stay BEFORE DELETE ON terms
BEGIN SELECT RAISE(ABORT, 'terms that were agreed to stay on record'); END;
CREATE TRIGGER terms_are_new BEFORE UPDATE ON terms
BEGIN SELECT RAISE(ABORT, 'terms that were agreed to stay as they were'); END;
CREATE TRIGGER budget_stays BEFORE DELETE ON budget
BEGIN SELECT RAISE(ABORT, 'a budget that was spent stays spent'); END;
CREATE TRIGGER budget_never_falls BEFORE UPDATE ON budget
WHEN new.releases < old.releases OR new.positive_rows < old.positive_rows
    OR new.negative_rows < old.negative_rows OR new.bytes < old.bytes OR new.epsilon < old.epsilon
    OR new.reports < old.reports
BEGIN SELECT RAISE(ABORT, 'a budget never falls'); END;
CREATE TRIGGER ledger_stays BEFORE DELETE ON ledger
WHEN (SELECT state FROM rounds WHERE (era, round, attempt) = (old.era, old.round, old.attempt))
    IN ('left', 'arrived', 'refused')
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER rounds_stay BEFORE DELETE ON rounds
BEGIN SELECT RAISE(ABORT, 'a round stays on record'); END;
CREATE TRIGGER rounds_have_left BEFORE UPDATE OF state ON rounds
WHEN old.state IN ('left', 'arrived', 'refused') AND new.state IN ('prepared', 'dropped')
BEGIN SELECT RAISE(ABORT, 'what left cannot be taken back'); END;

-- How many randomised reports of which ε have left, under whatever terms and whatever became of
-- them, in batches of at least so many. Whole numbers: no sum of them drifts.
CREATE TABLE spent (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    epsilon REAL NOT NULL CHECK (epsilon > 0),
    batch INTEGER NOT NULL CHECK (batch >= 0),
    reports INTEGER NOT NULL CHECK (reports > 0),
    PRIMARY KEY (number, epsilon, batch)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER spent_stays BEFORE DELETE ON spent
BEGIN SELECT RAISE(ABORT, 'a budget that was spent stays spent'); END;
CREATE TRIGGER spent_never_falls BEFORE UPDATE OF epsilon, batch, reports ON spent
WHEN new.reports < old.reports OR new.epsilon <> old.epsilon OR new.batch <> old.batch
BEGIN SELECT RAISE(ABORT, 'a budget never falls'); END;

-- What the device knows of its owner. Not on record: what is forgotten is gone.
CREATE TABLE attributes (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    value TEXT NOT NULL CHECK (value <> ''),
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (number, name)
) STRICT, WITHOUT ROWID;

-- Requests that say that a device is there, and nothing of its history: written before they leave.
CREATE TABLE contacts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    party TEXT NOT NULL,
    what TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    epsilon REAL NOT NULL,
    at INTEGER NOT NULL,
    -- With data owners, all requests that have anything of a user's in them.
    owner INTEGER,
    interactions INTEGER NOT NULL DEFAULT 0,
    messages INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX contacts_by_user ON contacts (number);
CREATE TRIGGER contacts_stay BEFORE DELETE ON contacts
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER contacts_are_fixed
BEFORE UPDATE OF id, party, what, bytes, epsilon, at, owner, interactions, messages ON contacts
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;

-- Each time a user hid attributes in a model that was trained already: how her vector moved at
-- once. The choice itself is in consent. For her eyes: nothing here leaves.
CREATE TABLE hidings (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    round INTEGER NOT NULL,
    attributes TEXT NOT NULL,
    before REAL NOT NULL,
    after REAL NOT NULL,
    moved REAL NOT NULL,
    steps INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX hidings_by_user ON hidings (number);
CREATE TRIGGER hidings_stay BEFORE DELETE ON hidings
BEGIN SELECT RAISE(ABORT, 'what was hidden, and when, stays on record'); END;
CREATE TRIGGER hidings_are_fixed
BEFORE UPDATE OF id, round, attributes, before, after, moved, steps, reason, at ON hidings
BEGIN SELECT RAISE(ABORT, 'what was hidden, and when, stays on record'); END;

CREATE TABLE seen (
    user INTEGER NOT NULL REFERENCES users,
    item INTEGER NOT NULL,
    PRIMARY KEY (user, item)
) STRICT, WITHOUT ROWID;

-- Every data owner that a directory has named: a number is given once, to one name and key.
CREATE TABLE owners (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    public BLOB NOT NULL
) STRICT;

-- The number of the next message to each owner.
CREATE TABLE counters (
    user INTEGER NOT NULL REFERENCES users,
    owner INTEGER NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (user, owner)
) STRICT, WITHOUT ROWID;

-- The outbox, and what became of what was in it. waiting: has never left; left: has left, not yet
-- answered; arrived; refused: by the owner; dropped: never left and never will; given_up: has left,
-- was never answered, and is not sent again. sends counts how often it has left; unanswered, after
-- how many of these nobody knows whether it arrived.
CREATE TABLE messages (
    user INTEGER NOT NULL REFERENCES users,
    owner INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('negative', 'positive', 'end', 'leave')),
    item INTEGER NOT NULL,
    time INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'left', 'arrived', 'refused', 'dropped', 'given_up')),
    sends INTEGER NOT NULL DEFAULT 0,
    unanswered INTEGER NOT NULL DEFAULT 0 CHECK (unanswered BETWEEN 0 AND sends),
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (user, owner, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_open ON messages (owner, user, sequence) WHERE state IN ('waiting', 'left');
CREATE INDEX messages_by_item ON messages (user, owner, item, time);

CREATE TRIGGER messages_stay BEFORE DELETE ON messages WHEN old.sends > 0
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER messages_have_left BEFORE UPDATE OF state, sends ON messages
WHEN new.sends < old.sends OR (new.sends > 0 AND new.state IN ('waiting', 'dropped'))
BEGIN SELECT RAISE(ABORT, 'what left cannot be taken back'); END;
CREATE TRIGGER owners_stay BEFORE DELETE ON owners
BEGIN SELECT RAISE(ABORT, 'who was a data owner stays on record'); END;
CREATE TRIGGER owners_are_fixed BEFORE UPDATE ON owners
BEGIN SELECT RAISE(ABORT, 'a number belongs to one data owner'); END;
CREATE TRIGGER counters_stay BEFORE DELETE ON counters
BEGIN SELECT RAISE(ABORT, 'a number is given out once'); END;
CREATE TRIGGER counters_never_fall BEFORE UPDATE ON counters WHEN new.next < old.next
BEGIN SELECT RAISE(ABORT, 'a number is given out once'); END;

-- Categories of the catalogue's items, where a federation names them.
CREATE TABLE categories (
    item INTEGER NOT NULL,
    name TEXT NOT NULL CHECK (name <> ''),
    PRIMARY KEY (item, name)
) STRICT, WITHOUT ROWID;

-- Which of a user's own items were in a report, by number, and how much of each (f4); of stores of
-- one user. For her eyes: nothing here leaves.
CREATE TABLE contents (
    era INTEGER NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    items BLOB NOT NULL,
    weights BLOB NOT NULL,
    PRIMARY KEY (era, round, attempt, number),
    FOREIGN KEY (era, round, attempt) REFERENCES rounds
) STRICT, WITHOUT ROWID;
CREATE TRIGGER contents_stay BEFORE DELETE ON contents
WHEN (SELECT state FROM rounds WHERE (era, round, attempt) = (old.era, old.round, old.attempt))
    IN ('left', 'arrived', 'refused')
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER contents_are_fixed BEFORE UPDATE OF era, round, attempt, items, weights ON contents
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
"""
