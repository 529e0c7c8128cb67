"""The one class behind every SQLite file: versions, and what it holds in memory."""

import pytest

from sottovoce.errors import StoreError
from sottovoce.stores.encrypted import StoreFile
from sottovoce.stores.file import SQLiteFile, statements

KEY = "ab" * 32


class Notes(SQLiteFile):
    schema = "CREATE TABLE notes (text TEXT); CREATE TABLE others (text TEXT)"
    application_id = 77


def read(file):
    sql = "SELECT text FROM notes"
    return file.held("notes", ("notes",), lambda: [text for (text,) in file.rows(sql)])


@pytest.fixture(params=["", KEY], ids=["plain", "encrypted"])
def opened(request, tmp_path):
    path, files = tmp_path / "notes.db", []
    path.touch(0o600)

    def another():
        files.append(Notes(path, key=request.param, make=True))
        return files[-1]

    yield another
    for file in files:
        file.close()


def test_what_is_held_is_read_once_and_anew_when_it_was_written(opened, monkeypatch):
    mine, other = opened(), opened()
    asked = []
    rows = mine.rows
    monkeypatch.setattr(mine, "rows", lambda sql, *v: (asked.append(sql), rows(sql, *v))[1])
    assert read(mine) == read(mine) == []
    mine.write("INSERT INTO others VALUES ('x')")
    assert read(mine) == []
    assert asked.count("SELECT text FROM notes") == 1
    mine.write("INSERT INTO notes VALUES ('mine')")
    assert read(mine) == ["mine"]
    other.write("INSERT INTO notes VALUES ('other')")
    with mine.transaction():
        assert read(mine) == ["mine", "other"], "what another connection has written is seen"
    with mine.snapshot():
        read(mine)
        other.write("DELETE FROM notes")
        assert read(mine) == ["mine", "other"], "a snapshot stays as it was"
    assert read(mine) == []


def test_what_was_rolled_back_is_not_held(opened):
    file = opened()

    def write_and_fail():
        with file.transaction():
            file.write("INSERT INTO notes VALUES ('never')")
            assert read(file) == ["never"]
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert read(file) == []


def test_a_newer_file_and_one_of_another_program_are_refused(opened):
    file = opened()
    file.pragma("user_version", 2)
    with pytest.raises(StoreError, match="has format"):
        opened()
    file.pragma("application_id", 78)
    with pytest.raises(StoreError, match="another program"):
        opened()


def test_a_script_is_cut_into_statements_and_a_trigger_is_one():
    trigger = "CREATE TRIGGER t BEFORE DELETE ON a BEGIN SELECT 1; SELECT 2; END;"
    assert [s.strip() for s in statements(f"CREATE TABLE a (b);\n{trigger}")][:2] == [
        "CREATE TABLE a (b);",
        trigger,
    ]
    whole = [*statements(StoreFile.schema)]
    assert sum("CREATE TRIGGER" in s for s in whole) == StoreFile.schema.count("CREATE TRIGGER")
