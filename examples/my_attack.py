"""An attack of one's own: `sottovoce --with examples/my_attack.py attack RUN`.

FPL publishes a number for each item that says how popular it is. Here the server claims the most
popular items of everyone who sent it something, and is judged against what popularity alone gives:
so it gets nowhere, and a better `guess` would show.
"""

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.views import ATTACKS, Attack, Claims, View
from sottovoce.core.messages import DeviceReports, MaskedReports

ITEMS = 5
"""That are claimed of each user."""


def senders(view: View) -> NDArray[np.int64]:
    found = [m.sender for m in (*view.messages(DeviceReports), *view.messages(MaskedReports))]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


def needs(view: View) -> str:
    return "" if len(senders(view)) else "no device sent the server anything"


def guess(view: View) -> Claims:
    """All that it gets is what the server saw; the truth is for the judge alone."""
    users, popular = senders(view), np.argsort(-view.final[:, -1], kind="stable")[:ITEMS]
    return Claims(np.repeat(users, len(popular)), np.tile(popular, len(users)))


POPULAR = ATTACKS.add(
    "popular-items",
    Attack(
        "popular items",
        "server",
        "Nobody can guess what I like from what everybody likes.",
        guess,
        against=frozenset({"fpl"}),
        needs=needs,
    ),
)
