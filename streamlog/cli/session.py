"""Session: the options before a command's name, the log that a command uses, and its run.

The first Ctrl-C asks a command's coroutine to stop, the second ends the process. A process with a
slot in its environment has a supervisor and ends when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from types import FrameType
from typing import TYPE_CHECKING, Annotated, BinaryIO, NoReturn, TypeVar

import typer

from streamlog.cli.cluster_profiles import (
    LOG_VARIABLE,
    AppliedProfile,
    apply_profiles,
    nearest,
)
from streamlog.errors import LogError, StreamlogError, UsageError
from streamlog.interrupts import EXIT_INTERRUPTED, exiting_at_once, interruptible
from streamlog.metrics.event_loop import MeasuredLoop
from streamlog.properties import read_properties

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.client.admin import Admin
    from streamlog.log import Log
    from streamlog.transport.security import Security
    from streamlog.worker.process.slots import Slot


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

COLLECTOR_DEFAULTS = (700, 10, 10)
COLLECTOR_THRESHOLDS = (100_000, 20, 50)
"""For a worker: batches of some thousand records and their values come and go between two
collections; with the defaults the collector would walk them after every 700 allocations. Cyclic
garbage waits longer, some megabytes for most apps."""

FROZEN_STEP = 100
"""How many partitions are at least created before they are exempt, or deleted before the collector
walks all of them again."""

KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory that a worker keeps at the end of its heap for the next batches."""
MAPPED_BYTES = 32 * 1024 * 1024
"""Allocations of this size come from the system and return to it as soon as they are freed."""
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of mallopt

T = TypeVar("T")
"""Result of a command's coroutine."""


def collect_rarely() -> None:
    """Make a worker's garbage collector walk fewer objects, and less often.

    Records and values come by the thousand and are in no cycle, so reference counts free them;
    walking them took 40 % of the worker's time (measured). Objects that exist now are exempt from
    collection. Thresholds that the app has set stay as they are.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == COLLECTOR_DEFAULTS:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)


class FrozenPartitions:
    """Exempts from collection what a broker's partitions consist of, as their number grows.

    A partition has some sixty objects, which stay as long as it does. With 5,000 partitions each
    full collection stalled every client for 150 ms, to find none of them free (measured).
    """

    def __init__(self, turnover: Callable[[], tuple[int, int]]) -> None:
        """`turnover` returns how many partitions there are, and how many were dropped so far."""
        self._turnover = turnover
        self._frozen = self._dropped = 0
        """The partitions whose objects are exempt, and those that had been dropped by then."""
        self._collections = 0
        """The full collections that have to be over before objects are exempt again."""

    def freeze(self) -> None:
        """Exempt all objects that exist now from collection."""
        self._frozen, self._dropped = self._turnover()
        gc.freeze()

    def on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """See `gc.callbacks`: exempt what is new before the collector walks it."""
        if phase != "start":
            return
        count, dropped = self._turnover()
        # By the quarter, as the collector itself grows its patience: garbage that waits for it is
        # exempt, too, so that this must be rare.
        step = max(self._frozen // 4, FROZEN_STEP)
        collections = gc.get_stats()[-1]["collections"]
        if dropped - self._dropped >= step:
            # 1. A partition is deleted. 2. Its objects are in cycles, so only the collector frees
            # them, and it does not look at exempt ones. 3. So it walks all of them once more.
            gc.unfreeze()
            self._frozen, self._dropped, self._collections = 0, dropped, collections + 1
        elif count - self._frozen >= step and collections >= self._collections:
            self.freeze()


def keep_freed_memory() -> None:
    """Make a worker's C library keep part of the memory that is freed.

    Fetched and written batches come and go by the megabyte. By default glibc returns such memory to
    the system each time, which has to clear it before it hands it out again. Does nothing if the
    environment sets one of `MALLOC_VARIABLES`, or with another C library.
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return
    import ctypes  # noqa: PLC0415 - the other commands start faster

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Either call also ends glibc's own adjustment of both thresholds.
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Return a broker's freed memory to the system, including memory between used blocks.

    Batches of all sizes come and go in several threads, and pile up while a cluster is in trouble.
    glibc keeps what it took at the peak: a quarter of a broker's memory after half an hour of
    trouble (`make soak`). Does nothing with another C library.
    """
    import ctypes  # noqa: PLC0415 - the other commands start faster

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def serve(
    main: Callable[[asyncio.Event], Awaitable[None]],
    on_stop: str,
    *,
    at_once: Callable[[], None] | None = None,
) -> None:
    """Run `main`; the first signal asks it to stop, the second ends the process.

    Args:
        main: the work; it returns soon after its event is set.
        on_stop: what `main` does before it returns, as text for the user; empty prints nothing.
        at_once: called before the second signal ends the process.
    """
    from streamlog.broker.storage.disk.descriptors import raise_limit  # noqa: PLC0415 - other commands start faster

    raise_limit()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The output of agents appears line by line, also through a pipe.
        sys.stdout.reconfigure(line_buffering=True)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with _signals(stop, on_stop, at_once):
            await main(stop)

    run(until_stopped())


async def wait_until_set(event: asyncio.Event, timeout_ms: int) -> bool:
    """Wait for an event for at most `timeout_ms`; return whether it was set."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


@contextmanager
def _signals(
    stop: asyncio.Event, on_stop: str, at_once: Callable[[], None] | None
) -> Iterator[None]:
    """Handle signals by Python's handlers: they run even while user code blocks the loop."""
    asked, loop = False, asyncio.get_running_loop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            # Straight to the descriptor: the signal may have come in the middle of a print.
            os.write(2, b"stopped at once: the next start repeats what was not committed\n")
            if at_once is not None:
                at_once()
            os._exit(EXIT_INTERRUPTED)
        asked = True
        if on_stop:
            os.write(2, f"stopping: {on_stop}; Ctrl-C again stops at once\n".encode())
        # Unlike `stop.set`, this also wakes a loop that waits for its sockets.
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine on an event loop of its own; uvloop's with the extra `[uvloop]`."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    elif sys.platform != "win32":  # There, the default loop has no selector.
        factory = MeasuredLoop
    with interruptible(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


DEFAULT_LOG = "embedded:./.streamlog/log"

WebOption = Annotated[
    str | None,
    typer.Option(
        "--web",
        metavar="HOST:PORT",
        help="Serve /live, /ready and /metrics at this address, and a broker's console;"
        " port 0 picks a free one.",
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        envvar="STREAMLOG_LOG",
        help="embedded:DIR, kafka://HOST:PORT, or kafka+ssl:// with TLS. Default: the app's, else"
        f" {DEFAULT_LOG}",
    ),
]


@dataclass
class Session:
    """The options before the command's name."""

    app: App | None = None
    security_file: str | None = None
    profile: AppliedProfile | None = None
    """What the cluster's profile and the project have set; None if neither was looked at."""

    def require_app(self) -> App:
        """Return the app.

        Raises:
            UsageError: no app was given.
        """
        if self.app is None:
            raise UsageError(
                "this command needs an app: streamlog -A MODULE COMMAND, where MODULE.py has "
                "`app = App(...)`"
            )
        return self.app

    def log_url(self, given: str | None) -> str:
        """Return the log's URL: of the option or the profile, of the app, or of the project."""
        if given is None and LOG_VARIABLE in os.environ:
            # Commands without the option have the profile's log here.
            return os.environ[LOG_VARIABLE]
        if given is not None:
            return given
        if self.app is not None and self.app.log != DEFAULT_LOG:
            return self.app.log
        project = None if self.profile is None else self.profile.project_log
        return project or DEFAULT_LOG

    def security(self) -> Security:
        """Return the security settings from the file and the environment, else the app's.

        Raises:
            ConfigError: a setting is unknown, is missing, or contradicts another.
        """
        from streamlog.transport.security import (  # noqa: PLC0415 - see above
            Security,
            security_settings,
        )

        # In this order: the file takes precedence over the environment, and both over the profile.
        settings = {} if self.profile is None else {**self.profile.security}
        settings |= security_settings(os.environ)
        if self.security_file is not None:
            settings |= read_properties(self.security_file)
        if not settings and self.app is not None and self.app.security is not None:
            return self.app.security
        return Security.of(settings)

    def open(
        self,
        given: str | None,
        *,
        create: bool = False,
        listen: bool = False,
        config: BrokerConfig | None = None,
    ) -> Log:
        """Return the log, to be opened.

        Args:
            given: the URL of the command's option; None if it was left out.
            create: create an embedded log that does not exist, for commands that write to it.
            listen: let other processes use an embedded log meanwhile, for commands that wait.
            config: settings of the broker, if this process runs it for the command.
        """
        from streamlog.log import Log  # noqa: PLC0415 - see above

        return Log.open(
            self.log_url(given),
            listen=listen,
            create=create,
            security=self.security(),
            config=config,
        )


async def use_registry_of(log: Log, app: App) -> None:
    """Let the serdes of an app use the schema registry of the log, unless the app sets another.

    If nothing serves it now, the schemas that it has are read from the log.
    """
    from streamlog.worker.topics.topic_schemas import has_schemas  # noqa: PLC0415 - see above

    if app.schema_registry is not None or not has_schemas(app.topics):
        return
    from streamlog.history.stored_schemas import read_stored_schemas  # noqa: PLC0415 - see above
    from streamlog.registry_client import RegistrySettings, SchemaBook  # noqa: PLC0415 - see above

    url = log.registry_url
    if url is None:
        app.schemas.use(await read_stored_schemas(log, app.id))
    else:
        app.schemas.use(SchemaBook(RegistrySettings.of(url), app_id=app.id))


QUOTED = re.compile(r"'([^']+)'")
"""A name in an error."""


async def hinted(log: Log, error: LogError) -> LogError:
    """Return an error about an unknown topic or group with the names that are most like it."""
    from streamlog.protocol.error_codes import ErrorCode  # noqa: PLC0415 - see above

    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        known = [each.name for each in await log.admin().list_topics()]
    elif error.code == ErrorCode.GROUP_ID_NOT_FOUND:
        known = [each.group_id for each in await log.admin().list_groups()]
    else:
        return error
    hints = [nearest(name, known) for name in QUOTED.findall(str(error)) if name not in known]
    hint = next((each for each in hints if each), "")
    if not hint or "did you mean" in str(error):
        return error
    return type(error)(f"{error}{hint}", code=error.code)


COMPLETION_S = 3
"""How long completion waits for names from the log."""


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin so, for the shell."""

    async def names(log: Log) -> list[str]:
        return [each.name for each in await log.admin().list_topics()]

    return _complete(context, incomplete, names)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin so, for the shell."""

    async def names(log: Log) -> list[str]:
        return [each.group_id for each in await log.admin().list_groups()]

    return _complete(context, incomplete, names)


def complete_links(context: typer.Context, incomplete: str) -> list[str]:
    """Return the links that begin so, for the shell."""

    async def names(log: Log) -> list[str]:
        return [each.name for each in (await log.admin().describe_mirrors()).links]

    return _complete(context, incomplete, names)


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Log], Awaitable[list[str]]]
) -> list[str]:
    given = context.find_root().params

    async def main() -> list[str]:
        async with asyncio.timeout(COMPLETION_S):
            app = given.get("app")
            session = Session(None if app is None else load_app(app), given.get("security"))
            session.profile = apply_profiles(given.get("cluster"), os.environ, has_app=bool(app))
            async with session.open(context.params.get("log")) as log:
                return await names(log)

    try:
        found = run(main())
    except (StreamlogError, TimeoutError, ImportError):
        return []  # A shell has no use for an error: the command reports it.
    return sorted(name for name in found if name.startswith(incomplete))


def with_log(
    session: Session,
    log: str | None,
    use: Callable[[Log], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Open the log, return what `use` returns, and close it; see `Session.open`."""

    async def main() -> T:
        async with session.open(log, create=create, config=config) as opened:
            try:
                return await use(opened)
            except LogError as error:
                raise await hinted(opened, error) from error

    return run(main())


def ask(
    session: Session,
    log: str | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Open the log and return what `question` returns for its `Admin`; see `Session.open`."""
    return with_log(
        session, log, lambda opened: question(opened.admin()), create=create, config=config
    )


def load_app(given: str) -> App:
    """Import and return the app `MODULE` or `MODULE:NAME`; the current directory is searched, too.

    Raises:
        UsageError: there is no such module, or it has no such app.
    """
    with exiting_at_once():
        from streamlog.app import App  # noqa: PLC0415 - see above

    module_name, _, name = given.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"-A takes a module, not a file: write -A {dotted}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with exiting_at_once():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            _end_with_own_frames(error)  # One that the module imports is missing.
        here_too = [each.stem for each in Path.cwd().glob("*.py")]
        raise UsageError(
            f"no module {module_name!r} in {Path.cwd()} or among the installed packages"
            f"{nearest(module_name, here_too)}"
        ) from None
    except StreamlogError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the module raises is its author's to see
        _end_with_own_frames(error)
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    return _chosen(module_name, name, found)


def _chosen(module_name: str, name: str, found: Mapping[str, App]) -> App:
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if not name and "app" in found:
        return found["app"]
    if not found:
        raise UsageError(f"module {module_name!r} has no app: it needs a line `app = App(...)`")
    there = ", ".join(f"{module_name}:{key}" for key in sorted(found))
    problem = f"has no app {name!r}" if name else "has several apps, so name one of them"
    raise UsageError(f"module {module_name!r} {problem}; its apps: {there}")


def _end_with_own_frames(error: Exception) -> NoReturn:
    """Print the traceback of a module that failed from the module on, and end with code 1.

    Forty lines of this package and of importlib, which come before, tell its author nothing.
    """
    _, *frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "importlib" not in each.filename]
    # A syntax error has no frame of the module: it never ran.
    heading = ["Traceback (most recent call last):\n"] if own else []
    lines = [*heading, *traceback.format_list(own), *traceback.format_exception_only(error)]
    sys.stderr.write("".join(lines))
    raise SystemExit(1) from None


ORPHAN_S = 5
"""How long a process may take to stop in order once its supervisor is gone."""


def my_slot() -> Slot | None:
    """Return the slot that a supervisor gave this process; its own children don't inherit it."""
    from streamlog.worker.process.slots import SLOT_VARIABLE, Slot  # noqa: PLC0415 - brokers start faster

    text = os.environ.pop(SLOT_VARIABLE, None)
    return None if text is None else Slot.decode(text)


async def serve_until_orphaned(
    slot: Slot, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Work until `stop` is set, by the caller or because the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        # The supervisor never writes. The read returns when the system closes its end of the pipe,
        # even if it was killed.
        with suppress(OSError):
            os.read(slot.alive_fd, 1)
        with suppress(OSError):
            os.write(2, b"the supervisor is gone: stopping\n")
        with suppress(RuntimeError):  # The loop is closed: the work has ended already.
            loop.call_soon_threadsafe(stop.set)
        # User code may block the loop for ever, so the process does not rely on the event.
        sleep(ORPHAN_S)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=wait_for_the_end, name="supervisor", daemon=True).start()
    await work(stop)


def printer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Return a function that prints the output of a supervisor's processes."""

    def write(lines: bytes) -> None:
        with suppress(BrokenPipeError):  # The reader is gone; the processes continue.
            stream.write(lines)
            stream.flush()

    return write
