"""Folders as text, and back: what an earlier version of the program has left on a disk, without a
line of the program.

A fixture is a JSON file with the folder's files in `files` (by path: mode and content), the modes
of its folders in `folders`, and what the program of then said of it in `said`. A database is kept
as its tables, rows and pragmas; an encrypted one also with its cipher, and its key is that of
`store.key` beside it. Everything else is kept byte by byte.
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path

import apsw

FIXTURES = Path(__file__).parent / "fixtures"
LARGEST = 60_000
"""Bytes of a fixture."""
_PRAGMAS = ("application_id", "user_version", "page_size", "auto_vacuum", "encoding")
_CIPHER = ("legacy", "legacy_page_size", "kdf_iter")
_PASSING = ("-wal", "-shm", ".log", ".partial")
"""Ends of names of files that nobody needs after a program has ended."""
_LEFT_OUT = ("report.html", "figures", "logs", "superlink", "gateway")
"""What is drawn from the rest, and what Flower and nginx get anew at every start."""
_INTERNAL = ("sqlite_sequence", "sqlite_stat1")


# --- from a folder to text ------------------------------------------------------------------------


def captured(folder):
    """The folder as tables of text."""
    files, folders = {}, {".": _mode(folder)}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).as_posix()
        if {*path.relative_to(folder).parts} & {*_LEFT_OUT} or place.endswith(_PASSING):
            continue
        if path.is_dir():
            folders[place] = _mode(path)
        else:
            files[place] = {"mode": _mode(path), **_content(path)}
    return {"folders": folders, "files": files}


def _mode(path):
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def _content(path):
    if path.suffix == ".db":
        return {"kind": "sqlite", **database(path)}
    content = path.read_bytes()
    with contextlib.suppress(UnicodeDecodeError):
        text = content.decode("ascii")
        if "\0" not in text:
            return {"kind": "text", "text": text.split("\n")}
    return {"kind": "base64", "base64": base64.b64encode(content).decode()}


def database(path):
    """A database that nobody has open: its pragmas, what it is made of, and all rows."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        copy = Path(scratch) / path.name
        for end in ("", "-wal"):
            if Path(f"{path}{end}").exists():
                shutil.copy(f"{path}{end}", f"{copy}{end}")
        plain = path.read_bytes()[:15] == b"SQLite format 3"
        link = stack.enter_context(contextlib.closing(apsw.Connection(str(copy))))
        found = {}
        if not plain:
            link.pragma("hexkey", _key(path))
            link.pragma("schema_version")
            found["cipher"] = {"cipher": link.pragma("cipher")}
            found["cipher"] |= {name: link.pragma(name) for name in _CIPHER}
        found["pragmas"] = {name: link.pragma(name) for name in _PRAGMAS}
        found["pragmas"]["journal_mode"] = link.pragma("journal_mode")
        made = link.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            " ORDER BY type <> 'table', rowid"
        ).fetchall()
        found["schema"] = [sql.split("\n") for _, _, sql in made if sql]
        names = [name for kind, name, _ in made if kind == "table"]
        there = {name for (name,) in link.execute("SELECT name FROM sqlite_master")}
        names += [name for name in _INTERNAL if name in there]
        found["rows"] = {
            name: [
                [_told(value) for value in row] for row in link.execute(f'SELECT * FROM "{name}"')
            ]
            for name in names
        }
        return found


def _told(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": repr(value)}
    return value


def _key(path):
    return path.with_name("store.key").read_text().strip()


# --- from text to a folder ------------------------------------------------------------------------


def fixture(name):
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def write_fixture(name, content):
    text = _pretty(content) + "\n"
    assert json.loads(text) == content
    assert len(text) < LARGEST, f"{name} has {len(text):,} bytes"
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"{name}.json").write_text(text, encoding="ascii")


def _pretty(value):
    """What fits into a line is one, so that a row, too, is a line."""
    line = json.dumps(value)
    if len(line) <= 100 or not isinstance(value, dict | list):
        return line
    if isinstance(value, list):
        if not any(isinstance(part, dict | list) and not _is_blob(part) for part in value):
            return line  # a row, or a statement
        return "[\n" + ",\n".join(map(_pretty, value)) + "\n]"
    parts = (f"{json.dumps(key)}: {_pretty(part)}" for key, part in value.items())
    return "{\n" + ",\n".join(parts) + "\n}"


def _is_blob(part):
    return isinstance(part, dict) and part.keys() <= {"hex", "real"}


def restored(name, folder):
    """The folder of that fixture, made here; and the fixture."""
    content = fixture(name)
    restore(content, folder)
    return content


def restore(content, folder):
    """Make the folder that was captured, or add to it, where it comes in several fixtures."""
    before = os.umask(0o077)
    try:
        for place in content["folders"]:
            (folder / place).mkdir(parents=True, exist_ok=True)
        # Keys first, without which databases cannot be made.
        for place, told in sorted(content["files"].items(), key=lambda f: f[1]["kind"] == "sqlite"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            _make(folder / place, told)
            (folder / place).chmod(int(told["mode"], 8))
    finally:
        os.umask(before)
    for place, mode in sorted(content["folders"].items(), reverse=True):
        (folder / place).chmod(int(mode, 8))
    for place in content["files"]:
        if Path(place).name == "backup.json":
            _sum_up(folder / place)


def _make(path, told):
    if told["kind"] == "text":
        path.write_text("\n".join(told["text"]), encoding="ascii", newline="")
    elif told["kind"] == "base64":
        path.write_bytes(base64.b64decode(told["base64"]))
    else:
        _make_database(path, told)


def _make_database(path, told):
    pragmas = dict(told["pragmas"])
    journal, cipher = pragmas.pop("journal_mode"), told.get("cipher")
    with contextlib.closing(_new(path, cipher)) as link:
        run = link.execute
        for name in ("page_size", "auto_vacuum", "encoding"):
            run(f"PRAGMA {name} = '{pragmas.pop(name)}'")
        run(f"PRAGMA journal_mode = {journal}").fetchall()
        run("BEGIN")
        later = []
        for lines in told["schema"]:
            sql = "\n".join(lines)
            if sql.upper().startswith("CREATE TABLE"):
                run(sql)
            else:
                later.append(sql)
        for table, rows in told["rows"].items():
            run(f'DELETE FROM "{table}"')
            for row in rows:
                marks = ", ".join("?" * len(row))
                run(f'INSERT INTO "{table}" VALUES ({marks})', tuple(map(_meant, row)))
        for sql in later:
            run(sql)
        run("COMMIT")
        for name, value in pragmas.items():
            run(f"PRAGMA {name} = {value}")


def _new(path, cipher):
    if cipher is None:
        return sqlite3.connect(path, isolation_level=None)
    link = apsw.Connection(str(path))
    for name, value in cipher.items():
        link.pragma(name, value)
    link.pragma("hexkey", _key(path))
    return link


def _meant(value):
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else float(value["real"])
    return value


def _sum_up(manifest):
    """A backup says what every file in it is, and a database that is made anew has the same rows in
    other bytes: say so."""
    table = json.loads(manifest.read_text())
    for name in table["files"]:
        content = (manifest.parent / "content" / name).read_bytes()
        table["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
    del table["sha256"]
    plain = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    table["sha256"] = hashlib.sha256(plain).hexdigest()
    manifest.write_text(json.dumps(table, indent=1) + "\n")
