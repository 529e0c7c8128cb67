"""What holds for every test."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples for the same code, so that a failure comes of a change; `make test-all` looks
# for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("searching", print_blob=True)
settings.load_profile("steady")

# The longest modules, which begin first: a worker that gets one of them last works alone.
LONGEST = (
    "fuzz/test_fuzz.py",
    "contracts/test_engines.py",
    "contracts/test_drift_engines.py",
    "engines/flower/test_flower_processes.py",
    "engines/https/test_agent_process.py",
    "engines/https/test_server_crash.py",
    "attacks/test_item_sets.py",
    "e2e/test_https_fleet.py",
    "e2e/test_demo.py",
    "contracts/test_secure_sum_https.py",
    "contracts/test_uc_contract.py",
    "engines/https/test_postgres.py",
    "engines/https/test_server.py",
    "engines/https/test_owner_process.py",
)


def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONGEST)}
    if gone := [path for path in places if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names tests that are gone: {gone}")
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


# A shell starts background jobs deaf to Ctrl-C; tests of Ctrl-C want it heard, here and in the
# processes they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def signals_as_they_were():
    """A test that leaves a signal handler behind would change what the tests after it see."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)
    assert after == before, "the test left a signal handler behind"
