"""What holds for every test."""

import signal

import pytest
from hypothesis import settings

# The same examples for the same code, so that a failure comes of a change; `make test-all` looks
# for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("searching", print_blob=True)
settings.load_profile("steady")

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
