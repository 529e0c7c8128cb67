"""A small world as researchers have it: a CSV file, and the same as frames."""

import csv

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.town import TownConfig, generate_town


@pytest.fixture(scope="session")
def town_rows():
    table = generate_town(TownConfig(residents=150, venues=60, visits_per_resident=25)).interactions
    users, items = table.users_vocabulary(), table.items_vocabulary()
    entries = np.stack([table.users, table.items, table.timestamps], axis=1).tolist()
    return [(users.name(u), items.name(i), t) for u, i, t in entries]


@pytest.fixture(scope="session")
def columns(town_rows):
    names = ("user_id", "venueId", "timestamp")
    return {name: [row[k] for row in town_rows] for k, name in enumerate(names)}


@pytest.fixture(scope="session")
def ratings(town_rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("user_id", "venueId", "timestamp"))
        writer.writerows(town_rows)
    return path


@pytest.fixture(scope="session")
def parts(ratings):
    return sv.split(sv.load(ratings), test_fraction=0.2)


@pytest.fixture(scope="session")
def gram(parts):
    return sv.fit(sv.Gram(epsilon=4.0), parts, seed=7, threads=1)


@pytest.fixture(scope="session")
def history_of(parts):
    """Somebody's items in training, oldest first."""

    def of(name):
        train = parts.train
        user = train.users_vocabulary().index(name)
        span = slice(train.indptr[user], train.indptr[user + 1])
        order = train.timestamps[span].argsort(kind="stable")
        return train.items_vocabulary().names(train.items[span][order])

    return of
