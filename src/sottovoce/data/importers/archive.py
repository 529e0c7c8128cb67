"""A download, zipped or unpacked: its files by base name."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sottovoce.errors import CorruptData, DataNotFound


@dataclass(frozen=True, slots=True)
class Archive:
    """Files of a zip or a folder. Where a base name occurs twice, the least nested one counts."""

    path: Path
    members: dict[str, str]

    @classmethod
    def at(cls, path: Path, *, deep: bool = True) -> Archive:
        """The archive at a path; `deep=False` leaves the folder's own folders aside."""
        if path.is_dir():
            found = path.glob("**/*" if deep else "*")
            inside = [p.relative_to(path).as_posix() for p in found if p.is_file()]
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                files = [i for i in archive.infolist() if not i.is_dir()]
            if any(i.flag_bits & 1 for i in files):
                raise CorruptData(f"{path} is encrypted; unpack it and give the folder")
            inside = [i.filename for i in files]
        elif path.suffix.lower() == ".zip":
            raise CorruptData(f"{path} is not a zip file, or is cut short; download it again")
        else:
            raise DataNotFound(f"{path} is neither a folder nor a zip file")
        members: dict[str, str] = {}
        for member in sorted(inside, key=lambda m: (m.count("/"), m)):
            base = member.rsplit("/", 1)[-1]
            if not base.startswith("."):
                members.setdefault(base, member)
        return cls(path, members)

    def __contains__(self, base: object) -> bool:
        return base in self.members

    def where(self, base: str) -> str:
        """The file as a message should name it."""
        return f"{self.path}: {self.members.get(base, base)}"

    @contextmanager
    def open(self, base: str) -> Iterator[IO[bytes]]:
        """The file's bytes. Damage found while reading raises CorruptData."""
        if base not in self.members:
            raise DataNotFound(f"{self.path} has no file {base}; is the download complete?")
        try:
            if self.path.is_dir():
                with (self.path / self.members[base]).open("rb") as stream:
                    yield stream
            else:
                with (
                    zipfile.ZipFile(self.path) as archive,
                    archive.open(self.members[base]) as stream,
                ):
                    yield stream
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise CorruptData(
                f"{self.where(base)} is damaged ({error}); download it again"
            ) from None
