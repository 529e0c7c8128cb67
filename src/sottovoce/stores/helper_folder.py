"""The folder of the proxy of a secure sum: its keys, whom it serves, and what it has answered
(`sum_folder`). `masker.json` says address and process of a running one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sottovoce.core.links import SecureSum
from sottovoce.errors import UsageError
from sottovoce.stores.server_folder import ServerFolder, proxy_token
from sottovoce.stores.sum_folder import (
    ANSWERED,
    INTRODUCTION,
    NOISE_SECRET,
    PUBLIC_KEY,
    SEAL_KEY,
    Answers,
    SumFolder,
    SumIntroduction,
    begin_folder,
    init_folder,
    introduced,
)

__all__ = ["ANSWERED", "INTRODUCTION", "NOISE_SECRET", "PUBLIC_KEY", "SEAL_KEY", "Answers"]


@dataclass(frozen=True, slots=True, repr=False)
class HelperIntroduction(SumIntroduction):
    who: ClassVar[str] = "proxy"
    sums: ClassVar[str] = "secure sum"
    command: ClassVar[str] = "helper"

    @property
    def link(self) -> SecureSum:
        link = self.terms.secure_sum
        if link is None:
            raise UsageError(
                f"the federation {self.terms.federation} has no secure sum; its proxy, if it has "
                "one, is served with `sottovoce serve shuffler`"
            )
        return link

    @property
    def key(self) -> str:
        return self.link.key


@dataclass(frozen=True, slots=True, repr=False)
class HelperFolder(SumFolder[HelperIntroduction]):
    party: ClassVar[str] = "masker"


def init_helper(path: Path, hosts: Sequence[str] = ()) -> str:
    """Make the keys of a helper, for its owner alone; its public key, which goes into the terms."""
    return init_folder(path, hosts)


def create_helper(path: Path, introduction: HelperIntroduction) -> HelperFolder:
    """A folder with keys becomes that of a federation, once and for all."""
    return begin_folder(HelperFolder(path, introduction))


def open_helper(path: Path) -> HelperFolder:
    """A folder that `create_helper` made. Raises with one sentence where it is none."""
    return HelperFolder(path, introduced(path, HelperIntroduction))


def helper_introduction(folder: ServerFolder) -> HelperIntroduction:
    """What the operator of the proxy is given, from the server's folder."""
    return HelperIntroduction(folder.plan.terms, proxy_token(folder.keys))
