"""RecBole's atomic files: .inter, .user and .item, tables whose first line names columns and types,
as in `user_id:token`. Ready splits are files such as mine.train.inter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from sottovoce.data.importers.base import (
    IMPORTERS,
    EventStream,
    Piece,
    Request,
    Streamed,
    split_files,
)
from sottovoce.data.importers.columns import choose_columns
from sottovoce.data.importers.files import TEXT, Archive, TextLayout, bare, read_text, split_fields
from sottovoce.data.importers.table import plan_table, stream_tables
from sottovoce.errors import CorruptData

_TYPES = ("token", "token_seq", "float", "float_seq")
_TITLES = ("title", "name")
_KINDS = ("categories", "category", "genres", "genre", "class", "type", "tags")


@IMPORTERS.register("recbole")
class AtomicFiles(Streamed):
    """RecBole's atomic files (.inter, .user, .item)."""

    listed_at = 70
    takes_columns = True

    def pieces(self, archive: Archive, only: str | None) -> tuple[Piece, ...]:
        if only is not None:
            return (Piece(archive, only),) if _ends(only, ".inter") else ()
        inside = [base for base in archive.members if _ends(base, ".inter")]
        if len(inside) == 1:
            return (Piece(archive, inside[0]),)
        return split_files(archive, (".inter",))

    def stream(
        self, pieces: Sequence[Piece], request: Request, report: Callable[[int, int], None]
    ) -> EventStream:
        for piece in pieces:
            _header(piece)
        plain = replace(request, delimiter=request.delimiter or "\t")
        stream = stream_tables([plan_table(piece, plain) for piece in pieces], request, report)
        unused: list[str] = []
        stream.users = _side(pieces[0], ".user", "user", unused)
        stream.items = _side(pieces[0], ".item", "item", unused)
        if unused:
            before = stream.decided.get("left out", "")
            stream.decided["left out"] = f"{before}{', ' if before else ''}{', '.join(unused)}"
        return stream


def _ends(base: str, suffix: str) -> bool:
    return bare(base).lower().endswith(suffix)


def _header(piece: Piece) -> dict[str, str]:
    """Columns as they stand in the first line, and their types."""
    with piece.archive.open(piece.base) as stream:
        fields = split_fields(stream.readline(1 << 16), "\t")
    found = {}
    for name in fields:
        kind = name.rpartition(":")[2]
        if ":" not in name or kind not in _TYPES:
            raise CorruptData(
                f"{piece.where}, line 1: {name[:60]!r} is no column with a type, as user_id:token; "
                "an ordinary table is imported with --kind table"
            )
        found[name] = kind
    return found


def _side(piece: Piece, suffix: str, role: str, unused: list[str]) -> pa.Table | None:
    """What is known of users or items: tokens are attributes, sequences of them categories."""
    archive = piece.archive
    files = sorted(base for base in archive.members if _ends(base, suffix))
    stem = bare(piece.base).split(".")[0]
    files = [base for base in files if base.split(".")[0] == stem] or files
    if len(files) != 1:
        return None
    here = Piece(archive, files[0])
    kinds = _header(here)
    plain = {name.rpartition(":")[0]: name for name in kinds}
    other = "item" if role == "user" else "user"
    # Such a table has no column for the other role: whichever stands in for it is not looked at.
    key = choose_columns([*plain, other], {other: other}, here.where).get(role, "")
    table = read_text(archive, here.base, TextLayout((), dict.fromkeys(kinds, TEXT), "\t", True))
    columns = {role: table[plain[key]]}
    wordy = [name for name in plain if kinds[plain[name]] == "token_seq"]
    title = next((n for n in plain if role == "item" and n.lower().endswith(_TITLES)), None)
    listed = [n for n in wordy if role == "item" and n != title]
    several = next((n for kind in _KINDS for n in listed if n.lower().endswith(kind)), None)
    several = several or next(iter(listed), None)
    for name, header in plain.items():
        if name == title:
            columns["title"] = table[header]
        elif name == several:
            words = pc.split_pattern(pc.utf8_trim_whitespace(table[header]), " ")
            columns["categories"] = _without_empty(words)
        elif name != key and kinds[header] == "token" and name not in columns:
            columns[name] = table[header]
        elif name != key:
            unused.append(f"{header} of {here.base}")
    return pa.table(columns)


def _without_empty(lists: pa.ChunkedArray) -> pa.Array:
    rows = [[word for word in row if word] for row in lists.to_pylist()]
    return pa.array(rows, pa.list_(pa.string()))
