"""A data set that was imported before."""

from __future__ import annotations

from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.base import IMPORTERS, Importer, Request
from sottovoce.data.importers.files import Archive
from sottovoce.data.prepared import EVENTS, read_prepared


@IMPORTERS.register("prepared")
class PreparedFolder(Importer):
    """A folder that `sottovoce data import` has written."""

    listed_at = 1001
    certain = True

    def fits(self, archive: Archive, only: str | None) -> bool:
        here = archive.path.is_dir() and archive.members.get(EVENTS) == EVENTS
        return here and only in (None, EVENTS)

    def dataset(self, archive: Archive, request: Request) -> Dataset:
        return read_prepared(archive.path, request.name)
