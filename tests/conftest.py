"""Three hypothesis profiles: fixed examples, a few of them, or many more.

Also the folders and files whose tests run on one test worker, because they share an expensive
resource.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, TextIO

import pytest
from hypothesis import HealthCheck, settings

from streamlog import repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import SupportsIndex

    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

pytest_plugins = ["tests.servers.fixtures"]

SHARING = ("tests/conformance/", "tests/spark_bridge/", "tests/test_tidy.py")
"""What is shared: one broker with all its data, a JVM, and the syntax trees of all modules."""

SETUP = Path(__file__).parent.parent / "setup.py"
REBUILD = "python setup.py build_ext --inplace"

# Two cores run everything at once: a slow example is the machine's fault, not the code's.
settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=10)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("STREAMLOG_PROFILE", "default"))

# What a shell runs in the background ignores Ctrl-C, and so do the processes that it starts. Tests
# start processes and interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_handle_error = logging.StreamHandler.handleError


def _handle_unless_closed(
    handler: logging.StreamHandler[TextIO], record: logging.LogRecord
) -> None:
    # A command that a test has run logs to its stderr, which is closed when the command ends, and
    # brokers that other threads of the test serve log on.
    if not handler.stream.closed:
        _handle_error(handler, record)


setattr(logging.StreamHandler, "handleError", _handle_unless_closed)  # noqa: B010 - for mypy


@pytest.fixture(autouse=True)
def fresh_log_lines() -> None:
    """Let rate-limited log lines be logged in every test, and to no stream of an earlier one."""
    repeated.forget()
    root = logging.getLogger()
    for handler in [*root.handlers]:
        # A command that a test has run logs to its stderr, which is closed when it ends.
        if isinstance(handler, logging.StreamHandler) and handler.stream.closed:
            root.removeHandler(handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the modules and the tests, which live to the end, out of all garbage collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def stale_modules() -> list[str]:
    """Return the compiled modules of this checkout that belong to another source."""
    found: list[str] = run_path(str(SETUP))["stale_modules"]()
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests have failed, if it may be this: after a rebase, it is the first suspect."""
    reporter = terminalreporter
    if (reporter.stats.get("failed") or reporter.stats.get("error")) and (found := stale_modules()):
        reporter.write_line(f"{len(found)} compiled modules are of another source: {REBUILD}")


class Collected(list[str]):
    """The ids of all tests, in which one is found at once: xdist looks up each of them."""

    def __init__(self, nodeids: Iterable[str]) -> None:
        super().__init__(nodeids)
        self._at = {nodeid: number for number, nodeid in enumerate(self)}

    def index(self, nodeid: str, *bounds: SupportsIndex) -> int:  # type: ignore[override]
        """Return the number of a test."""
        return self._at[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Distribute single tests to test workers, but those that share something to one."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - runs without xdist, too

    class ByRoom(LoadScopeScheduling):
        """Keeps what is pending only: xdist's own looks at all finished tests after each test."""

        def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
            super().add_node_collection(node, Collected(collection))

        def mark_test_complete(
            self, node: WorkerController, item_index: int, duration: float = 0
        ) -> None:
            super().mark_test_complete(node, item_index, duration)
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in SHARING if nodeid.startswith(folder)), nodeid)

    return ByRoom(config, log)
