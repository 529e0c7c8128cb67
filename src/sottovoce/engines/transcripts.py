"""What reaches each party of a run, kept: in memory, or in a folder beside the run.

about.json                   whose run it is, which rounds and parties are there, what was left out
server/round-000000.npz      the messages of a round that reached a party, in order
proxy/…  device/…            what reaches devices is what is published
hop-2/…                      what reaches the shufflers of a chain behind the first one

Masked updates are large, and each looks like noise. Of those of a round the first 64 are kept, and
behind the proxy's answer the sum that the server opens with it, which holds what all of them tell.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.views import SeenRound, TlsPacket
from sottovoce.core.links import MOST_SHUFFLERS, hop_party
from sottovoce.core.masking import Words, unmasked
from sottovoce.core.messages import (
    Batch,
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    MaskSum,
    ModelView,
    SealedBatch,
    SummedReports,
)
from sottovoce.core.redacted import Redacted
from sottovoce.errors import CorruptData, RunError, other_format
from sottovoce.parties.secure_sum import summed
from sottovoce.rng import Streams
from sottovoce.wire.reports import encode_report

FORMAT = 1
MASKED_KEPT = 64
"""Masked updates of a round that are kept."""
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(ModelView, DeviceReports, Batch, BitReports, SealedBatch),
        *(MaskedReports, MaskSeeds, MaskSum, SummedReports),
    )
}
_PARTIES = ("device", "server", *(hop_party(hop) for hop in range(MOST_SHUFFLERS)))

SeenMessages = dict[str, dict[int, list[object]]]
"""By party and round: what reached it, in order."""


class MessageKeeper:
    """Says what is kept of a message."""

    def __init__(self, numbers: int | None = None, width: int | None = None) -> None:
        """`numbers` limits what is kept of a round's plain updates: beyond it, those of some
        devices are kept whole, the same in every round, and of the others nothing. `width` is how
        many numbers a row of a sum has, where that is not a row of the model."""
        self._numbers, self._share, self._own_width = numbers, 1.0, width
        self._measured, self._plain = -1, 0
        self._round, self._width, self._devices = -1, 0, 0
        self._total: Words = np.zeros(0, dtype=np.uint64)

    @property
    def share(self) -> float:
        """The share of devices that is kept, approximately."""
        return self._share

    def keep(self, message: object) -> list[object]:
        if isinstance(message, ModelView):
            self._width = self._own_width or message.items.shape[1]
            return [replace(message, items=message.items.copy())]
        if isinstance(message, DeviceReports):
            self._measure(message)
            return [self.some(message)]
        if isinstance(message, MaskedReports):
            return self._first_masked(message)
        if isinstance(message, MaskSum):
            return [message, *self._opened(message)]
        return [message]

    def _measure(self, message: DeviceReports) -> None:
        """The first round with an update says how much there is."""
        size = message.values.size
        if self._numbers is not None and size and self._measured in (-1, message.round):
            self._measured = message.round
            self._plain += size
            self._share = min(1.0, self._numbers / self._plain)

    def some(self, message: DeviceReports) -> DeviceReports:
        """What is kept of these updates, as far as is known by now."""
        if self._share == 1.0:
            return message
        # Which devices depends on their numbers alone.
        draw = Streams.from_seed(0).child("kept").uniform(message.sender, 1)[:, 0]
        mine = draw < self._share
        return replace(
            message, sender=message.sender[mine], item=message.item[mine],
            values=message.values[mine],
        )  # fmt: skip

    def _first_masked(self, message: MaskedReports) -> list[object]:
        if message.round != self._round:
            self._round, self._devices = message.round, 0
            self._total = np.zeros_like(message.masked, shape=message.masked.shape[1])
        self._total += message.masked.sum(axis=0, dtype=message.masked.dtype)
        room = max(0, MASKED_KEPT - self._devices)
        self._devices += len(message)
        if not room:
            return []
        few = message.masked[:room].copy()
        return [replace(message, sender=message.sender[:room].copy(), masked=few)]

    def _opened(self, told: MaskSum) -> list[object]:
        """The sum as the server has it; nothing where it would turn the proxy's answer down."""
        if told.round != self._round or told.devices != self._devices or not self._width:
            return []
        sums = unmasked(self._total, told.masks, self._width, told.bits)
        return [summed(told.round, sums, told.devices)]


class Recorder(Redacted):
    """Keeps what it sees in memory."""

    def __init__(self, numbers: int | None = None, width: int | None = None) -> None:
        self._seen: SeenMessages = {}
        self.keeper = MessageKeeper(numbers, width)

    @property
    def seen(self) -> SeenMessages:
        for rounds in self._seen.values():
            for round, messages in rounds.items():
                rounds[round] = _joined(messages)
        return self._seen

    def on_message(self, party: str, message: object) -> None:
        share = self.keeper.share
        for kept in self.keeper.keep(message):
            mine = self._seen.setdefault(party, {})
            mine.setdefault(kept.round, []).append(kept)  # type: ignore[attr-defined]
        if self.keeper.share < share:  # there is more than was known, so that less is kept of each
            for messages in self._seen[party].values():
                messages[:] = [
                    self.keeper.some(m) if isinstance(m, DeviceReports) else m for m in messages
                ]


def _joined(messages: list[object]) -> list[object]:
    """The plain updates of a round in one message, however many they came in."""
    plain = [m for m in messages if isinstance(m, DeviceReports)]
    if len(plain) < 2:
        return messages
    whole = replace(
        plain[0],
        sender=np.concatenate([m.sender for m in plain]),
        item=np.concatenate([m.item for m in plain]),
        values=np.concatenate([m.values for m in plain]),
    )
    return [whole, *(m for m in messages if not isinstance(m, DeviceReports))]


def seen_by(messages_seen: SeenMessages, party: str) -> tuple[SeenRound, ...]:
    """What a party saw, round by round. Everybody sees what is published."""
    mine, published = messages_seen.get(party, {}), messages_seen.get("device", {})
    return tuple(
        SeenRound(round, tuple(mine.get(round, ())), _published(published.get(round, ())))
        for round in sorted({*mine, *published})
    )


def _published(messages: Iterable[object]) -> ModelView | None:
    return next((m for m in messages if isinstance(m, ModelView)), None)


def network_of(
    messages_seen: SeenMessages, masked_bytes: int, report_bytes: int
) -> tuple[SeenRound, ...]:
    """What shows on the way: who sent to whom, and how much. Masked updates all have one size, and
    so have randomised reports."""
    rounds: dict[int, list[TlsPacket]] = {}
    for party in ("server", "proxy"):
        for round, messages in messages_seen.get(party, {}).items():
            packets = rounds.setdefault(round, [])
            for message in messages:
                if isinstance(message, DeviceReports):
                    packets += [
                        TlsPacket(u, "server", len(encode_report(one))) for u, one in _each(message)
                    ]
                elif isinstance(message, MaskSeeds):  # the server gets them, with the masked ones
                    packets += [
                        TlsPacket(u, "server", masked_bytes) for u in message.sender.tolist()
                    ]
                elif isinstance(message, BitReports):
                    packets += [
                        TlsPacket(u, "proxy", report_bytes) for u in message.sender.tolist()
                    ]
    return tuple(
        SeenRound(seen.round, tuple(rounds.get(seen.round, ())), seen.published)
        for seen in seen_by(messages_seen, "device")
    )


def _each(reports: DeviceReports) -> list[tuple[int, DeviceReports]]:
    """Each sender's own message."""
    order = np.argsort(reports.sender, kind="stable")
    users, starts = np.unique(reports.sender[order], return_index=True)
    parts = np.split(order, starts[1:])
    return [
        (user, replace(reports, sender=reports.sender[at], item=reports.item[at],
                       values=reports.values[at]))
        for user, at in zip(users.tolist(), parts, strict=len(users) > 0)
    ]  # fmt: skip


# --- in a folder ---------------------------------------------------------------------------------


@dataclass(slots=True, repr=False)
class Transcript:
    """Keeps what it sees in a folder, a file for each party and round. A run that is resumed goes
    on in the same folder; the transcript of another run is never touched."""

    folder: Path
    identity: str = ""
    """Identity of the run, as in its manifest."""
    keeper: MessageKeeper = field(default_factory=MessageKeeper)
    _spans: list[list[int]] = field(default_factory=list)
    _open: dict[str, int] = field(default_factory=dict)
    _begun: bool = False

    def __repr__(self) -> str:
        return f"<Transcript in {self.folder}, redacted>"

    def on_message(self, party: str, message: object) -> None:
        if not self._begun:
            self._begin()
        for kept in self.keeper.keep(message):
            self._add(party, kept)

    def _begin(self) -> None:
        if (self.folder / "about.json").exists():
            about = _about(self.folder)
            if about["identity"] != self.identity:
                raise RunError(
                    f"{self.folder} is the transcript of another run; move it away, or choose "
                    "another --out"
                )
            self._spans = [list(span) for span in about["rounds"]]
        self._begun = True

    def _add(self, party: str, message: object) -> None:
        kind = type(message).__name__
        if party not in _PARTIES or kind not in _KINDS:
            raise RunError(f"a transcript cannot keep {kind} for {party!r}")
        round = int(message.round)  # type: ignore[attr-defined]
        path = _file(self.folder, party, round)
        # What a run that was stopped has left of this round is replaced.
        again = self._open.get(party) == round
        if not again:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[party] = round
        with zipfile.ZipFile(
            path, "a" if again else "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as archive:
            number = len({name.partition(".")[0] for name in archive.namelist()})
            for name, values in _arrays(message).items():
                with archive.open(f"{number}.{kind}.{name}.npy", "w", force_zip64=True) as handle:
                    np.lib.format.write_array(handle, values, allow_pickle=False)
        if not again:
            self._note(round)

    def _note(self, round: int) -> None:
        if not any(first <= round <= last for first, last in self._spans):
            if self._spans and self._spans[-1][1] == round - 1:
                self._spans[-1][1] = round
            else:
                self._spans.append([round, round])
        content = {
            "format": FORMAT,
            "identity": self.identity,
            "rounds": self._spans,
            "parties": [p for p in _PARTIES if (self.folder / p).is_dir()],
            "left_out": f"of masked updates all but the first {MASKED_KEPT} of a round; the sum of "
            "all that the server opened is there",
        }
        partial = self.folder / "about.json.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.folder / "about.json")


def read_transcript(
    folder: Path, identity: str, rounds: int | None = None, sums: Collection[int] = ()
) -> SeenMessages:
    """What was kept of the first `rounds` rounds (of all by default), and of the rounds `sums` the
    sums that the server opened, with the models before and after. Refuses what is not whole or not
    of this run."""
    about = _about(folder)
    if about["identity"] != identity:
        raise RunError(
            f"{folder} is the transcript of another run; bring back this run's own, or take it "
            "away and the first rounds are enacted again"
        )
    numbers = [n for first, last in about["rounds"] for n in range(first, last + 1)]
    whole = sorted(numbers)[:rounds]
    messages_seen: SeenMessages = {}
    wanted = {"server": {*sums}, "device": {r for n in sums for r in (n, n + 1)}}
    for party in about["parties"]:
        messages_seen[party] = {n: _read(folder, party, n) for n in whole}
        for n in sorted(wanted.get(party, set()).intersection(numbers).difference(whole)):
            messages_seen[party][n] = _read(folder, party, n, (ModelView, SummedReports))
    return messages_seen


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "about.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise CorruptData(
            f"{folder} is no transcript: its about.json is missing or cannot be read"
        ) from None
    if isinstance(about, dict) and about.get("format") != FORMAT:
        raise CorruptData(other_format(folder, about.get("format"), FORMAT))
    if not isinstance(about, dict) or not _well_formed(about):
        raise CorruptData(f"{path} does not say which rounds of which run it is about")
    return about


def _well_formed(about: Mapping[str, Any]) -> bool:
    spans, parties = about.get("rounds"), about.get("parties")
    return (
        isinstance(about.get("identity"), str)
        and isinstance(parties, list)
        and all(party in _PARTIES for party in parties)
        and isinstance(spans, list)
        and all(
            isinstance(span, list)
            and len(span) == 2
            and all(isinstance(n, int) for n in span)
            and 0 <= span[0] <= span[1]
            for span in spans
        )
    )


def _file(folder: Path, party: str, round: int) -> Path:
    return folder / party / f"round-{round:06d}.npz"


def _arrays(message: object) -> dict[str, NDArray[Any]]:
    found = {}
    for part in fields(message):  # type: ignore[arg-type]
        value = getattr(message, part.name)
        if isinstance(value, tuple):
            value = np.frombuffer(b"".join(value), np.uint8).reshape(len(value), -1)
        found[part.name] = np.asarray(value)
    return found


def _read(folder: Path, party: str, round: int, only: tuple[type[Any], ...] = ()) -> list[object]:
    path = _file(folder, party, round)
    if not path.exists():
        raise CorruptData(f"{folder} lacks round {round} of what reached the {party}")
    try:
        with zipfile.ZipFile(path) as archive:
            parts: dict[tuple[int, str], dict[str, NDArray[Any]]] = {}
            for entry in archive.namelist():
                number, kind, name = entry.removesuffix(".npy").split(".")
                if only and _KINDS.get(kind) not in only:
                    continue
                with archive.open(entry) as handle:
                    values = np.lib.format.read_array(handle, allow_pickle=False)
                parts.setdefault((int(number), kind), {})[name] = values
        messages = [_message(kind, arrays) for (_, kind), arrays in sorted(parts.items())]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptData(f"{path} is cut short or damaged ({error})") from None
    if any(m.round != round for m in messages):
        raise CorruptData(f"{path} holds messages of another round")
    return _joined(messages)


def _message(kind: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    made = _KINDS[kind]
    if {part.name for part in fields(made)} != set(arrays):
        raise ValueError(f"a {kind} has other fields")
    values: dict[str, Any] = {}
    for part in fields(made):
        value: Any = arrays[part.name]
        if part.type == "int":
            value = int(value)
        elif str(part.type).startswith("tuple"):
            value = tuple(row.tobytes() for row in value)
        values[part.name] = value
    return made(**values)
