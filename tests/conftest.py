"""Options, markers and order of all tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from contextlib import ExitStack
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

# Examples have no deadline: their time depends on the load of the machine. A run draws the same few examples each
# time, so that only the code decides whether it passes. `make fuzz` draws many new examples.
settings.register_profile(
    "qq", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25, derandomize=True
)
# A test with a number of examples of its own must derive the number from `settings.default.max_examples`. Otherwise
# `make quick` would try all of them, and `make fuzz` no more.
settings.register_profile("quick", settings.get_profile("qq"), max_examples=6)
settings.load_profile("qq")

gc.disable()  # until all tests are collected

# Processes that a test starts run this tree, wherever they are started.
TESTS = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))

# Hundreds of nodes are started. Where no byte code may be kept, as in many images, each would compile all of it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores Ctrl-C for its background processes, and their children would ignore it too. Tests interrupt
# programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make quick` runs these without tests marked slow: the pure packages, the log, and some of the packages above.
QUICK = [
    TESTS / name
    for name in (
        "amqp",
        "amqp10",
        "amqp_server/test_channel.py",
        "chaos/sim/checks/test_queue_model.py",
        "chaos/sim/world/test_disk.py",
        "cluster",
        "http/test_app.py",
        "machine",
        "metrics",
        "node/test_node_machine.py",
        "routing",
        "sessions/test_batch.py",
        "sessions/test_entries.py",
        "sessions/test_resume.py",
        "stored",
        "test_config.py",
        "test_ranges.py",
        "test_tables.py",
        "test_testing.py",
        "test_tidy.py",
    )
]
# But not these of them, which take some seconds each.
NOT_QUICK = [
    TESTS / name
    for name in (
        "cluster/group/test_tick_entries.py",
        "machine/catalog/test_limits.py",
        "machine/handlers/test_cost_estimate.py",
        "machine/queue/test_deferred_free.py",
        "machine/queue/test_serving.py",
        "routing/test_hashing.py",
    )
]

# These groups take a single worker minutes, so they begin first; simulation tests follow. Short tests of a module
# stay in one group, because distributing them one by one takes longer.
FIRST = [
    "members",
    "faults",
    "releases",
    "spark",
    "queues-0",
    "queues-1",
    "interop-suites",
    "live",
    "page",
    "queues-processes",
    "interop-celery",
    "examples",
    "workloads",
    "deploy",
    "seeds",
]

# Seconds that a test has to clean up after its timeout, before its process ends.
CLEANUP_S = 120.0
TESTS_PER_COLLECTION = 200
"""Tests of a process between two full collections of garbage."""
_ended = count(1)
"""Counts the tests that have ended in this process."""

_SHARED = pytest.StashKey[dict[str, Any]]()


@pytest.fixture(scope="module")
def until_left(request: pytest.FixtureRequest) -> Callable[[str, AbstractContextManager[Any]], Any]:
    """Return a function that enters a context once for all tests of a directory; a name identifies the context.

    The context is left after the last of these tests in this process. A session fixture would keep idle nodes running
    during all remaining tests.
    """
    directory = request.node.getparent(pytest.Dir)
    assert directory is not None
    shared = directory.stash.setdefault(_SHARED, {})

    def enter(name: str, context: AbstractContextManager[Any]) -> Any:
        if name not in shared:
            cleanup = ExitStack()
            directory.addfinalizer(cleanup.close)
            cleanup.callback(partial(shared.pop, name, None))
            shared[name] = cleanup.enter_context(context)
        return shared[name]

    return enter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="what `make quick` runs, with few examples")
    parser.addoption("--examples", type=int, help="how many examples and seeds, where 25 are usual")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # groups begin in the order of collection
    if examples := config.getoption("examples"):
        settings.register_profile(
            "examples", settings.get_profile("qq"), max_examples=examples, derandomize=False
        )
        settings.load_profile("examples")
    if config.getoption("quick"):
        settings.load_profile("quick")
        if missing := [path for path in (*QUICK, *NOT_QUICK) if not path.exists()]:
            raise pytest.UsageError(f"tests/conftest.py: not there any more: {missing}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_quick = collection_path not in NOT_QUICK and any(
        path.is_relative_to(collection_path) or collection_path.is_relative_to(path) for path in QUICK
    )
    return True if config.getoption("quick") and not is_quick else None


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection, because scanning them slows all tests.

    Full collections come between tests only. They take half a second, which tests of times would measure.
    """
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 2**31 - 1)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Print all stacks and end the process if a test still runs long after its timeout: the run ends with its name.

    The alarm of pytest-timeout comes once, so it ends neither a call outside Python nor a cleanup that hangs after it.
    """
    timeout_s = _timeout_s(item)
    if timeout_s:
        # The descriptor that pytest has kept for this purpose: it captures the usual one.
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(timeout_s + CLEANUP_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if next(_ended) % TESTS_PER_COLLECTION == 0:
            gc.collect()


def _timeout_s(item: pytest.Item) -> float:
    """Return the timeout of a test as pytest-timeout finds it, in seconds; 0.0 stands for none."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return mark.args[0]
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout")) if option is None else option


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
    turns: dict[pytest.Item, int] = {}
    for item in items:
        group = _group(item)
        if not group and _is_quick(item.path):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
        turns[item] = FIRST.index(group) if group in FIRST else len(FIRST) + (not _is_simulation(item.path))
    items.sort(key=turns.__getitem__)


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark is not None else ""


# A file has up to a thousand tests, and each worker asks for all of them.
@cache
def _is_quick(path: Path) -> bool:
    return any(path.is_relative_to(quick) for quick in QUICK)


@cache
def _is_simulation(path: Path) -> bool:
    return path.is_relative_to(TESTS / "chaos" / "sim")
