"""Devices that send garbage into secure sums: what they cost, and how they are found. The server
over a database and the proxy's application, with 64 devices, of whom 8 and more are in every sum."""

import numpy as np
import pytest
from secure_sum_world import SummedWorld
from server_world import ITEMS

USERS, LEAST = 64, 8


@pytest.fixture
def world(tmp_path):
    made = []

    def make(**options):
        link = {"min_devices": LEAST, **options.pop("link", {})}
        users = options.pop("users", USERS)
        made.append(SummedWorld(tmp_path, users=users, link=link, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Round:
    """Everybody whom the server asks reports; `liars` send garbage."""

    def __init__(self, here, liars):
        now = here.position()
        out = set(here.shut_numbers())
        rng = np.random.default_rng([now.round, 7])
        for n in range(here.users):
            if n in out:
                assert here.report(n) == ["unknown_device"]
            elif n in liars:
                garbage = rng.integers(-(2**63), 2**63, (ITEMS, 5))
                assert here.report(n, values=garbage) == ["accepted"]
        honest = [n for n in range(here.users) if n not in liars and n not in out]
        assert set(here.report(*honest)) == {"accepted"}
        assert here.step() == ["closing"]
        before = here.model()
        self.what = here.step()[0]
        self.moved = not np.array_equal(before, here.model())
        self.notices = getattr(here.events[0], "notices", ())
        self.shut_out = sorted(set(here.shut_numbers()) - out)


def rounds_until_found(here, liars, most):
    """Every round until all of these are shut out and rounds are whole again."""
    here.step()
    done = []
    while set(liars) - set(here.shut_numbers()):
        assert len(done) < most, f"after {most} rounds out are {here.shut_numbers()}"
        done.append(Round(here, liars))
    return done


@pytest.mark.parametrize(("liars", "most"), [((13,), 12), ((3, 30, 60), 40)], ids=["one", "three"])
def test_who_sends_garbage_is_found_and_rounds_go_on_without(world, liars, most):
    here = world(rounds=100)
    done = rounds_until_found(here, liars, most)
    print(len(done), [r.moved for r in done], [r.shut_out for r in done])
    assert here.shut_numbers() == sorted(liars), "and nobody else"
