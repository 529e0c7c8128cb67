"""The tables of the orchestrator's SQLite file, which several processes may have open."""

from __future__ import annotations

from sottovoce.stores.file import SQLiteFile

DATABASE = "orchestrator.db"
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE catalogue (item INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE invitations (token BLOB PRIMARY KEY, user INTEGER UNIQUE) WITHOUT ROWID;
CREATE TABLE users (number INTEGER PRIMARY KEY, public BLOB NOT NULL, row BLOB NOT NULL);
CREATE TABLE departed (number INTEGER PRIMARY KEY);
CREATE TABLE items (number INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE owners (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, url TEXT NOT NULL,
                     public BLOB NOT NULL, authority TEXT NOT NULL, node_key TEXT NOT NULL UNIQUE,
                     counted INTEGER NOT NULL, flushed INTEGER NOT NULL);
CREATE TABLE holdings (owner INTEGER, item INTEGER, PRIMARY KEY (owner, item)) WITHOUT ROWID;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, flush INTEGER NOT NULL, names TEXT NOT NULL,
                     seconds REAL NOT NULL, version INTEGER NOT NULL);
CREATE TABLE open_round (round INTEGER, flush INTEGER, requested INTEGER);
CREATE TABLE refused (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE heard (owner INTEGER PRIMARY KEY, round INTEGER NOT NULL);
CREATE TABLE ended (round INTEGER PRIMARY KEY, at REAL NOT NULL);
"""


class OrchestratorFile(SQLiteFile):
    schema, format = _SCHEMA, 5
    application_id = 0x53564F31
    busy_seconds = 20.0
    kind = "orchestrator's store"
    taken = "holds a federation already; choose another folder"
