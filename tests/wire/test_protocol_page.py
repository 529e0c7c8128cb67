"""docs/protocol.md says what the code does: its tables are read and compared."""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from device_vectors import FOLDER

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core import portable
from sottovoce.core.links import (
    SEALED_SEED_BYTES,
    SHARED_RECORD_BYTES,
    CheckedSum,
    Direct,
    SecureSum,
)
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.services.agent import agent
from sottovoce.services.kit import pacing
from sottovoce.services.server import application
from sottovoce.stores import device_rounds
from sottovoce.wire import frames, masked, refusals, shared, signing
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.frames import PROTOCOL, Frame
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.terms import Terms

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FRAMES = {one.magic.decode(): one for one in vars(frames).values() if isinstance(one, Frame)}
SIZES = {"I": 4, "H": 2, "B": 1, "Q": 8}


def section(heading):
    """What stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    found = TEXT.split(f"\n{heading}\n", 1)
    assert len(found) == 2, f"there is no {heading!r}"
    return re.split(rf"\n#{{1,{level}}} ", found[1], maxsplit=1)[0]


def rows(text, number=0):
    """The cells of the first table in this text, or of a later one, without its head."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    lines = blocks[number].strip().splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def named(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_frame_is_there_with_its_head():
    told = {named(magic)[0]: (named(head)[0], int(size), what) for magic, head, size, what in rows(
        section("## Frames"))}  # fmt: skip
    assert told == {
        magic: (one.head.format.removeprefix("<4s"), one.size, one.what)
        for magic, one in FRAMES.items()
    }


@pytest.mark.parametrize(
    ("heading", "magic"),
    [("### `SVE1`", "SVE1"), ("### `SVU3`", "SVU3"), ("### `SVM1`", "SVM1"),
     ("### `SVT1`", "SVT1"), ("### Models", "SVV1")],
)  # fmt: skip
def test_the_bytes_of_a_head_stand_where_the_page_says(heading, magic):
    frame = FRAMES[magic]
    codes = re.findall(r"\d*[a-zA-Z]", frame.head.format.removeprefix("<"))
    sizes = [int(code[:-1]) if code[-1] == "s" else SIZES[code] for code in codes]
    told = rows(section(heading))[: len(sizes)]
    at = 0
    for (place, size, kind, _), wanted, code in zip(told, sizes, codes, strict=True):
        assert (int(place), int(size)) == (at, wanted)
        letter = {"u32": "I", "u16": "H", "u8": "B", "u64": "Q"}.get(kind)
        assert code == letter if letter else code.endswith("s")
        at += wanted
    assert at == frame.size


def test_what_follows_a_head_has_the_size_that_the_page_says():
    assert int(rows(section("### `SVE1`"))[-1][0]) == signing.OVERHEAD
    behind = [int(row[1]) for row in rows(section("### `SVM1`"))[-3:]]
    assert sum(behind) == SEALED_SEED_BYTES
    assert behind[1] == masked._SEALED_BYTES == int(rows(section("## Seals"))[0][-1])
    assert int(rows(section("## Seals"))[1][-1]) == shared._SEALED_BYTES
    assert int(rows(section("### `SVT1`"))[-1][1]) == SHARED_RECORD_BYTES


FIELDS = {
    "### Invitation": ({"protocol"} | {one.name for one in dataclasses.fields(Invitation)}),
    "### Terms": {"protocol"} | {one.name for one in dataclasses.fields(Terms)},
    "### Round descriptor": {"protocol"} | {one.name for one in dataclasses.fields(Descriptor)},
    **{
        f"#### `{name}`": {one.name for one in dataclasses.fields(kind)}
        for name, kind in {
            "gram": GramConfig, "fpl": FPLConfig, "own-epsilon": OwnEpsilon,
            "share-fraction": ShareFraction, "secure-sum": SecureSum, "checked-sum": CheckedSum,
        }.items()
    },
}  # fmt: skip


def test_components_have_the_names_by_which_terms_know_them():
    kinds = GramConfig, FPLConfig, OwnEpsilon, ShareFraction, SecureSum, CheckedSum, Direct
    told = set(re.findall(r"^#### `(.+)`$", TEXT, re.MULTILINE))
    assert told == {kind.name for kind in kinds}


@pytest.mark.parametrize("heading", FIELDS)
def test_every_field_of_a_document_is_there(heading):
    assert {named(row[0])[0] for row in rows(section(heading))} == FIELDS[heading]


def test_ranges_are_refused_beyond_their_ends():
    """Whole numbers and decimals of the tables, where both ends are plain."""
    kinds = {"gram": GramConfig, "own-epsilon": OwnEpsilon, "secure-sum": SecureSum}
    tried = 0
    for name, kind in kinds.items():
        for field, told, _ in rows(section(f"#### `{name}`")):
            ends = re.fullmatch(r"([\d.,]+) to ([\d.,]+)", told)
            if ends is None:
                continue
            low, high = (float(end.replace(",", "")) for end in ends.groups())
            whole = isinstance(getattr(kind(), named(field)[0]), int)
            beyond = [low - 1, high + 1] if whole else [low - 1e-6, high * (1 + 1e-6)]
            for value in beyond:
                with pytest.raises(Exception, match=named(field)[0]):
                    kind(**{named(field)[0]: int(value) if whole else value})
                tried += 1
    assert tried > 15


def test_every_refusal_is_there_with_its_status():
    told = {named(reason)[0]: status for reason, status, _ in rows(section("### Refusals"))}
    assert set(told) == set(get_args(refusals.Reason))
    assert {reason: int(status) for reason, status in told.items() if status != "–"} == (
        refusals.STATUS
    )


def test_every_path_of_the_agent_is_there_with_its_method():
    told = {(method, named(path)[0]) for method, path, *_ in rows(section("## HTTP"))}
    source = inspect.getsource(agent)
    calls = re.findall(r"client\.(get|post|download)\(\s*f?\"(/v1/[^\"?]+)", source)
    calls += [("get", path) for path in re.findall(r"path = f\"(/v1/[^\"]+)\"", source)]
    used = set()
    for how, path in calls:
        plain = re.sub(r"\{since\}$", "", path)
        plain = re.sub(r"\{(?:now\.)?(\w+)\}", r"{\1}", plain)
        used.add(("POST" if how == "post" else "GET", plain))
    assert told == used
    routes = inspect.getsource(application.ServerApplication.__init__)
    for method, path in told:
        root = path.split("{")[0]
        assert f'"{root}": ("{method}"' in routes, path
    assert f"`{signing.DIGEST_HEADER}`" in section("## HTTP")


def test_statements_and_infos_are_those_of_the_code():
    signed = [row[1] for row in rows(section("## Signatures"))]
    for text, made in zip(
        [one for k, one in enumerate(signed) if k != 1],
        [signing._PURPOSE, masked._SIGNED_FOR, shared._SIGNED_FOR],
        strict=True,
    ):
        assert named(text)[0] == made.decode().replace("\0", "\\0")
    infos = [named(row[2])[0] for row in rows(section("## Seals"))]
    made = masked._SEALED_FOR, shared._SEALED_FOR
    assert infos == [one.decode().replace("\0", "\\0") for one in made]
    assert shared._COMMITTED_FOR.decode().replace("\0", "\\0") in TEXT
    assert f"0x{signing._EIGHTH:064X}" in TEXT


def test_constants_are_those_of_the_code():
    arithmetic = section("## Arithmetic")
    for number in (portable._LOG2_E, portable._LN2_HIGH, portable._LN2_LOW):
        assert repr(number) in arithmetic
    series = re.search(r"^C = ([^a-df-z]*)$", arithmetic, re.MULTILINE)[1]
    assert [float(one) for one in re.findall(r"[-\d.e]+", series)] == [*portable._SERIES]
    assert f'"protocol": {PROTOCOL}' in TEXT
    assert f"max({pacing.LONGEST_BACK_OFF:g}, poll)" in section("## Pacing")


def test_every_state_of_a_round_is_there():
    told = {named(row[0])[0] for row in rows(section("## States"))}
    assert told == set(get_args(device_rounds.State))


def test_every_function_with_vectors_is_listed_by_its_file():
    told = {named(file)[0]: set(named(functions)) for file, functions in rows(
        section("## Checking an implementation"))}  # fmt: skip
    kept = {path.name: set(json.loads(path.read_text())) for path in FOLDER.glob("*.json")}
    assert told == kept


def test_links_within_the_page_lead_to_a_heading():
    """As GitHub names headings."""
    names = []
    for heading in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    for target in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert target in names, target
