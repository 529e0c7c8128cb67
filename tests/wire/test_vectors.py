"""Every message as bytes that do not change, in both directions, and what must be refused."""

import json

import pytest
from wire_vectors import FOLDER, READERS, vectors

from sottovoce.errors import SottovoceError
from sottovoce.wire import frames
from sottovoce.wire.frames import Frame

KEPT = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
CASES = [(name, k) for name, content in KEPT.items() for k in range(len(content["vectors"]))]


def test_what_is_written_today_is_what_was_written():
    """Encoders: the same keys and fields give the same bytes."""
    made = json.loads(json.dumps(vectors()))
    assert made.keys() == KEPT.keys()
    for name, content in made.items():
        cases = zip(content.pop("vectors"), KEPT[name]["vectors"], strict=True)
        for k, (one, kept) in enumerate(cases):
            assert one == kept, f"{name}, vector {k}, {kept['kind']}"
        assert content == {k: v for k, v in KEPT[name].items() if k != "vectors"}


@pytest.mark.parametrize(("name", "k"), CASES)
def test_what_was_written_is_read_and_the_rest_refused(name, k):
    case = KEPT[name]["vectors"][k]
    read = READERS[case["kind"]]
    assert json.loads(json.dumps(read(bytes.fromhex(case["bytes"])))) == case["says"]
    for wrong in case["refused"]:
        with pytest.raises(SottovoceError):
            read(bytes.fromhex(wrong))


def test_every_kind_and_every_magic_has_a_vector():
    cases = [case for content in KEPT.values() for case in content["vectors"]]
    assert {case["kind"] for case in cases} == set(READERS)
    begin = {bytes.fromhex(case["bytes"][:8]) for case in cases}
    known = {thing.magic for thing in vars(frames).values() if isinstance(thing, Frame)}
    assert known <= begin
