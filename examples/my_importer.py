"""An importer of one's own: a folder or a zip with likes.jsonl, one event a line, such as
{"user": "ada", "item": "b1", "time": 1700000000}

    sottovoce --with examples/my_importer.py data import likes folder/
"""

from __future__ import annotations

import json

import pyarrow as pa

from sottovoce.data.importers import IMPORTERS, Archive, Download, RawTables, Request
from sottovoce.errors import CorruptData


@IMPORTERS.register("likes")
class Likes(Download):
    """Likes as lines of JSON."""

    files = ("likes.jsonl",)
    terms = "yours alone"

    def read(self, archive: Archive, request: Request) -> RawTables:
        columns: dict[str, list[object]] = {"user": [], "item": [], "timestamp": []}
        with archive.open("likes.jsonl") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    event = json.loads(line)
                    columns["user"].append(str(event["user"]))
                    columns["item"].append(str(event["item"]))
                    columns["timestamp"].append(int(event["time"]))
                except (ValueError, KeyError, TypeError):
                    where = archive.where("likes.jsonl")
                    raise CorruptData(
                        f"{where}, line {number}: an event must have user, item and time"
                    ) from None
        return RawTables(pa.table(columns))
