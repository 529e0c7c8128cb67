"""What holds for every test."""

import contextlib
import functools
import gc
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import warnings
from multiprocessing import resource_tracker
from pathlib import Path

import compiled
import forked
import machines
import pytest

import leftovers
from sottovoce import compiled as loops
from sottovoce.engines.processes import descendants

compiled.use_locks()


def _memory_for_files():
    """The memory file system, if it has room for what tests write and runs programs there."""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or sys.platform != "linux":
        return None
    about = os.statvfs(place)
    roomy = about.f_bavail * about.f_frsize >= 4 << 30
    return str(place) if roomy and not about.f_flag & os.ST_NOEXEC else None


# Every change of a store waits until a disk has it, 5 to 10 ms each, and tests make tens of
# thousands. That a store asks for it is tested; how long a disk takes is no matter of tests.
if "TMPDIR" not in os.environ and (place := _memory_for_files()):
    os.environ["TMPDIR"], tempfile.tempdir = place, None

with contextlib.suppress(ModuleNotFoundError):  # on a bare machine with a GPU
    from hypothesis import HealthCheck, settings

    # The same examples for the same code, so that a failure comes of a change; `make test-all`
    # looks for new ones. How long an example takes, or is drawn, is the machine's affair.
    slow = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("steady", derandomize=True, **slow)
    settings.register_profile("searching", print_blob=True, **slow)
    settings.load_profile("steady")

with contextlib.suppress(ModuleNotFoundError):
    import typer.main

    # A process that runs one command builds them all once, in a tenth of a second. Tests run
    # hundreds of commands in one process.
    typer.main.get_command = functools.cache(typer.main.get_command)

# The longest modules, which begin first: a worker that gets one of them last works alone.
LONGEST = (
    "services/test_checked_rounds.py",
    "services/test_chaos.py",
    "contracts/test_engines.py",
    "engines/flower/test_flower_processes.py",
    "contracts/test_gram_https.py",
    "contracts/test_checked_sum_https.py",
    "clients/test_tab.py",
    "e2e/test_paper_presets.py",
    "clients/test_package.py",
    "mutation/test_mutation.py",
    "services/test_agent_process.py",
    "services/test_agent.py",
    "services/test_chain.py",
    "fuzz/test_fuzz.py",
    "cli/test_cli.py",
    "contracts/test_golden.py",
    "cli/test_join_cli.py",
    "cli/test_device_cli.py",
    "docs/test_docs_site.py",
    "docs/test_docs_snippets.py",
    "web/test_consent_centre.py",
    "web/test_page_server.py",
    "web/test_console_server.py",
    "contracts/test_uc_canary.py",
    "contracts/test_my_algorithm.py",
    "privacy/test_accountant.py",
    "cli/test_attributes_cli.py",
    "statistics/test_audit.py",
    "algorithms/test_factors.py",
    "services/test_residents.py",
    "contracts/test_uc_contract.py",
)


_BROWSERS = {"browser", "chromium"}
"""Fixtures that start one."""


# --- a machine with a GPU that has the simulation core's packages and pytest alone ----------------


def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.has_plugin("timeout"):
        parser.addini("timeout", "of pytest-timeout, which is not installed here")


def pytest_ignore_collect(collection_path, config):
    """With `-m cuda`, modules and folders that have no such test are not even loaded: they need
    other packages than a machine with a GPU has."""
    if config.option.markexpr != "cuda":
        return None
    inside = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return not any(map(machines.asks_for_a_gpu, inside)) or None


gc.disable()  # until all modules are loaded: none of what they bring goes away again


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONGEST)}
    if gone := [path for path in places if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names tests that are gone: {gone}")
    no_data = pytest.mark.skip(reason="needs a real data set under $SOTTOVOCE_DATA")
    for item in items:
        if item.get_closest_marker("data") and not os.environ.get("SOTTOVOCE_DATA"):
            item.add_marker(no_data)
        # A page in a real browser takes seconds of a processor; what it is served is tested without
        # one. A few stay, by their mark, for what only a browser can show.
        if _BROWSERS & set(item.fixturenames) and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.slow)
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


@pytest.fixture(autouse=True)
def loops_are_compiled():
    """A command that is one device, run in this process, would leave the compiler out from then
    on."""
    with loops.left_out(False):
        yield


@pytest.fixture(scope="module")
def quick_stores():
    """Stores' keys are taken as they are: to stretch one, as if it were a password, takes 26 ms of
    each time that a store is opened. No other process can open such a store."""
    import apsw

    class QuickConnection(apsw.Connection):
        def pragma(self, name, *value, **options):
            if name == "hexkey":
                super().pragma("kdf_iter", 1)
            return super().pragma(name, *value, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apsw, "Connection", QuickConnection)
        yield


@pytest.fixture
def one_thread():
    """Of torch: tables of tests gain nothing from more, and on a busy machine threads wait in
    vain."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forked_children():
    """Processes that engines start are forked from one that has loaded the program: each start
    takes two seconds of a processor otherwise."""
    with forked.children() as started:
        yield started


# --- a test that is cut off ends what it has started ----------------------------------------------

# Whatever this process starts inherits it, and so do pytest processes that a test starts, but for
# what they start in turn.
os.environ[leftovers.MARK] = secrets.token_hex(8)
# Parties note outside their folders what has left, which must not be this user's own home.
_marks = tempfile.TemporaryDirectory(prefix="marks-")
os.environ["SOTTOVOCE_MARKS"] = _marks.name
_watch, _failed = pytest.StashKey[subprocess.Popen](), pytest.StashKey[bool]()
_shared = set()
"""Processes of fixtures that serve many tests."""


def pytest_sessionstart(session):
    session.stash[_watch] = leftovers.watch(os.environ[leftovers.MARK])
    _shared.update(descendants(os.getpid()))


def pytest_sessionfinish(session):
    forked.close()
    _marks.cleanup()
    watch = session.stash.get(_watch, None)
    if watch is not None:
        watch.communicate(timeout=30)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    result = yield
    if fixturedef.scope != "function":
        _shared.update(descendants(os.getpid()))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    began = leftovers.now() - 1
    try:
        return (yield)
    finally:
        if item.stash.get(_failed, False):
            _end_leftovers(began)


def _end_leftovers(began):
    """End what was started since then, and let go of what the test held: a process, a socket or a
    file that nobody has closed would warn in the middle of another test, and fail it."""
    ours = {*descendants(os.getpid()), *leftovers.marked(os.environ[leftovers.MARK])} - _shared
    tracker = resource_tracker._resource_tracker._pid  # serves all tests, whichever began it
    ended = leftovers.end(
        [(pid, born) for pid, born in ours if born and int(born) >= began and pid != tracker]
    )
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _let_go(ended)
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _let_go(ended):
    # The traceback that is kept for a debugger holds all that the test had.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    # By type, since some libraries' objects do something when they are asked for their class.
    for process in [found for found in gc.get_objects() if type(found) is subprocess.Popen]:
        if process.pid in ended:
            process.wait()
