from __future__ import annotations

import sottovoce.data


def test_every_public_name_has_a_home() -> None:
    assert sorted(sottovoce.data.__all__) == sottovoce.data.__all__
    assert set(sottovoce.data._HOMES) == set(sottovoce.data.__all__)
