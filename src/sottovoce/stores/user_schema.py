"""What is in a user's store, as SQL. Each entry of `MIGRATIONS` brings a store one version further;
entries are never changed once they were released, only added.

Promises that the database itself keeps, whatever a program does: choices are only ever added, and
what has left stays on record, message by message and request by request.
"""

from __future__ import annotations

APPLICATION_ID = 0x53565553
"""Marks a file as a user's store ("SVUS")."""

_FIRST = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    id INTEGER PRIMARY KEY CHECK (id BETWEEN 0 AND 4294967295),
    name TEXT NOT NULL,
    private BLOB NOT NULL,
    pass BLOB,
    departure TEXT NOT NULL DEFAULT '' CHECK (departure IN ('', 'asked', 'done'))
) STRICT;

-- Every choice that was ever made; the latest of a user is in force. It was made in sight of the
-- data owners up to the number `shown`: later ones are told nothing under it.
CREATE TABLE consent (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL REFERENCES users,
    choice TEXT NOT NULL,
    shown INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT;
CREATE INDEX consent_by_user ON consent (user, version);

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

-- A row for every request with anything of a user's in it, written before it leaves.
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL REFERENCES users,
    owner INTEGER,
    party TEXT NOT NULL,
    what TEXT NOT NULL,
    interactions INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    epsilon REAL NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX ledger_by_user ON ledger (user, owner);

CREATE TRIGGER consent_stays BEFORE DELETE ON consent
BEGIN SELECT RAISE(ABORT, 'a choice that was made stays on record'); END;
CREATE TRIGGER consent_is_new BEFORE UPDATE ON consent
BEGIN SELECT RAISE(ABORT, 'a change of mind is a new record'); END;
CREATE TRIGGER ledger_stays BEFORE DELETE ON ledger
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
CREATE TRIGGER ledger_is_fixed BEFORE UPDATE ON ledger
BEGIN SELECT RAISE(ABORT, 'what left stays on record'); END;
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
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)
