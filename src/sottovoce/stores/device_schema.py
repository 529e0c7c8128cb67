"""What is in a store, as SQL. Each entry of `MIGRATIONS` brings a store one version further;
entries are never changed once they were released, only added.

Promises that the database itself keeps, whatever a program does: choices and agreed terms are only
ever added, a budget never falls, and what left stays on record.
"""

from __future__ import annotations

APPLICATION_ID = 0x53564F43
"""Marks a file as a store ("SVOC")."""

_FIRST = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    number INTEGER PRIMARY KEY CHECK (number BETWEEN 0 AND 4294967295),
    name TEXT NOT NULL
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
    changed_at INTEGER NOT NULL
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
    PRIMARY KEY (number, kind)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER consent_stays BEFORE DELETE ON consent
BEGIN SELECT RAISE(ABORT, 'a choice that was made stays on record'); END;
CREATE TRIGGER consent_is_new BEFORE UPDATE OF version, choice, changed_at ON consent
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
"""

_REPORTS = """
ALTER TABLE ledger ADD COLUMN reports INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN report_epsilon REAL NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN batch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget ADD COLUMN reports INTEGER NOT NULL DEFAULT 0;

-- How many randomised reports of which ε have left, under whatever terms and whatever became of
-- them, in batches of at least so many. Whole numbers: no sum of them drifts.
CREATE TABLE spent (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    epsilon REAL NOT NULL CHECK (epsilon > 0),
    batch INTEGER NOT NULL CHECK (batch >= 0),
    reports INTEGER NOT NULL CHECK (reports > 0),
    PRIMARY KEY (number, epsilon, batch)
) STRICT, WITHOUT ROWID;

DROP TRIGGER budget_never_falls;
CREATE TRIGGER budget_never_falls BEFORE UPDATE ON budget
WHEN new.releases < old.releases OR new.positive_rows < old.positive_rows
    OR new.negative_rows < old.negative_rows OR new.bytes < old.bytes OR new.epsilon < old.epsilon
    OR new.reports < old.reports
BEGIN SELECT RAISE(ABORT, 'a budget never falls'); END;
CREATE TRIGGER spent_stays BEFORE DELETE ON spent
BEGIN SELECT RAISE(ABORT, 'a budget that was spent stays spent'); END;
CREATE TRIGGER spent_never_falls BEFORE UPDATE OF epsilon, batch, reports ON spent
WHEN new.reports < old.reports OR new.epsilon <> old.epsilon OR new.batch <> old.batch
BEGIN SELECT RAISE(ABORT, 'a budget never falls'); END;
"""

_ATTRIBUTES = """
-- What the device knows of its owner. Not on record: what is forgotten is gone.
CREATE TABLE attributes (
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    name TEXT NOT NULL CHECK (name <> ''),
    value TEXT NOT NULL CHECK (value <> ''),
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (number, name)
) STRICT, WITHOUT ROWID;
"""

_CONTACTS = """
-- Requests that say that a device is there, and nothing of its history: written before they leave.
CREATE TABLE contacts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE,
    party TEXT NOT NULL,
    what TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    epsilon REAL NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX contacts_by_user ON contacts (number);
CREATE TRIGGER contacts_stay BEFORE DELETE ON contacts
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER contacts_are_fixed
BEFORE UPDATE OF id, party, what, bytes, epsilon, at ON contacts
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _REPORTS, _ATTRIBUTES, _CONTACTS)
