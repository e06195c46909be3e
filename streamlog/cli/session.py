"""Session: the options before a command's name, the log of a command, and its run until Ctrl-C.

The first Ctrl-C asks a command's coroutine to stop, the second ends it. A process that finds a
slot in its environment has a supervisor, and ends when that is gone.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from types import FrameType
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import typer

from streamlog.errors import UsageError
from streamlog.interrupts import EXIT_INTERRUPTED, exiting_at_once, interruptible
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
"""Of a worker: batches of some thousand records and their values come and go between two looks,
instead of being walked at every seventh hundred. What is in a cycle waits as long, which for most
takes some megabytes."""

KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory that a worker keeps at the end of its heap for what comes next."""
MAPPED_BYTES = 32 * 1024 * 1024
"""What is as large as this is asked of the system by itself, and given back at once."""
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of mallopt

T = TypeVar("T")
"""What a command's coroutine returns."""


def collect_rarely() -> None:
    """Let the garbage collector look at fewer objects, and less often: for a worker.

    Records and values are made by thousands, are in no cycle and go by themselves; walking them
    cost 40 % of the worker's time (measured). What there is at the start is not looked at again.
    Thresholds that the app has set itself are left alone.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == COLLECTOR_DEFAULTS:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)


def keep_freed_memory() -> None:
    """Let the C library keep some of the memory that is freed: for a worker.

    What is fetched and what is written come and go by the megabyte. glibc gives as much back to
    the system each time, which has to clear it before it gives it again. Where the environment says
    what to do (`MALLOC_VARIABLES`), or the library is another one, nothing is changed.
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return
    import ctypes  # noqa: PLC0415 - the other commands start faster

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Let the system have what is freed, and lies between what is not: for a broker, at times.

    Batches of all sizes come and go in several threads, and what troubles a cluster makes them
    pile up for a while. glibc keeps what it took then: a quarter of a broker's memory after half
    an hour of such (`make soak`). With another library nothing is done.
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
    """Run until the first signal and what `main` does about it; a second one ends it all.

    Args:
        main: is told by the event to stop.
        on_stop: what it does then, for the user; nothing is printed if it is empty.
        at_once: called before the second signal ends the process.
    """
    from streamlog.broker.storage.disk.descriptors import raise_limit  # noqa: PLC0415 - other commands start faster

    raise_limit()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What agents print is to be seen at once.

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with _signals(stop, on_stop, at_once):
            await main(stop)

    run(until_stopped())


async def wait_until_set(event: asyncio.Event, timeout_ms: int) -> bool:
    """Wait for an event, but not for ever; whether it was set."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


@contextmanager
def _signals(
    stop: asyncio.Event, on_stop: str, at_once: Callable[[], None] | None
) -> Iterator[None]:
    """Python's own handlers, not the loop's: they run even while user code blocks the loop."""
    asked, loop = False, asyncio.get_running_loop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            # Straight to the descriptor: the signal may have come in the middle of a print.
            os.write(2, b"stopped at once: what was not committed is done again next time\n")
            if at_once is not None:
                at_once()
            os._exit(EXIT_INTERRUPTED)
        asked = True
        if on_stop:
            os.write(2, f"stopping: {on_stop}; Ctrl-C again stops at once\n".encode())
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(work: Coroutine[object, object, T]) -> T:
    """On uvloop's event loop if it is installed (the extra `[uvloop]`)."""
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with interruptible(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


DEFAULT_LOG = "embedded:./.streamlog/log"

"""What a command asks for."""

WebOption = Annotated[
    str | None,
    typer.Option(
        "--web",
        metavar="HOST:PORT",
        help="Answer /live, /ready and /metrics there; port 0 takes a free one.",
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help="embedded:DIR, kafka://HOST:PORT, or kafka+ssl:// with TLS. Default: the app's, else"
        f" {DEFAULT_LOG}",
    ),
]


@dataclass
class Session:
    """What was given before the command's name."""

    app: App | None = None
    security_file: str | None = None

    def require_app(self) -> App:
        """The app, for a command that needs one.

        Raises:
            UsageError: none was given.
        """
        if self.app is None:
            raise UsageError(
                "this command needs an app: streamlog -A MODULE COMMAND, where MODULE.py holds "
                "`app = App(...)`"
            )
        return self.app

    def log_url(self, given: str | None) -> str:
        """The log to talk to: the option, else the app's, else the embedded one here."""
        if given is not None:
            return given
        return DEFAULT_LOG if self.app is None else self.app.log

    def security(self) -> Security:
        """How brokers are talked to: what file and environment say, else what the app says.

        Raises:
            ConfigError: a setting is unknown, is missing, or contradicts another.
        """
        from streamlog.transport.security import (  # noqa: PLC0415 - see above
            Security,
            security_settings,
        )

        settings = security_settings(os.environ)
        if self.security_file is not None:
            settings |= read_properties(self.security_file)
        if not settings and self.app is not None and self.app.security is not None:
            return self.app.security
        return Security.of(settings)

    def open(
        self, given: str | None, *, create: bool = False, config: BrokerConfig | None = None
    ) -> Log:
        """The log, for a command that does not serve it to others.

        An embedded log that is not there is made only for who wants to `create` something in it;
        `config` is for a broker that this process runs for the command.
        """
        from streamlog.log import Log  # noqa: PLC0415 - see above

        return Log.open(
            self.log_url(given),
            listen=False,
            create=create,
            security=self.security(),
            config=config,
        )


def with_log(
    session: Session,
    log: str | None,
    use: Callable[[Log], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Open the log that was meant, use it, close it; see `Session.open`."""

    async def main() -> T:
        async with session.open(log, create=create, config=config) as opened:
            return await use(opened)

    return run(main())


def ask(
    session: Session,
    log: str | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    create: bool = False,
    config: BrokerConfig | None = None,
) -> T:
    """Ask the log something; see `Session.open`."""
    return with_log(
        session, log, lambda opened: question(opened.admin()), create=create, config=config
    )


def load_app(given: str) -> App:
    """The app in `MODULE` or `MODULE:NAME`; modules of the current directory count.

    Raises:
        UsageError: there is no such module, or it holds no such app.
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
            raise  # The module is there; what it imports is not. Its traceback tells where.
        raise UsageError(
            f"there is no module {module_name!r} in {Path.cwd()} or among the installed ones"
        ) from None
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if not name and "app" in found:
        return found["app"]
    there = ", ".join(f"{module_name}:{key}" for key in sorted(found)) or "none"
    wanted = f"no app {name!r}" if name else "no single app"
    raise UsageError(f"module {module_name!r} holds {wanted}; apps there: {there}")


ORPHAN_S = 5
"""How long a process whose supervisor is gone may take to end in order."""


def my_slot() -> Slot | None:
    """What a supervisor has told this process; its own children are not to hear it."""
    from streamlog.worker.process.slots import SLOT_VARIABLE, Slot  # noqa: PLC0415 - brokers start faster

    text = os.environ.pop(SLOT_VARIABLE, None)
    return None if text is None else Slot.decode(text)


async def serve_until_orphaned(
    slot: Slot, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Work until `stop` is set, here or because the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        with suppress(OSError):
            os.read(slot.alive_fd, 1)
        with suppress(OSError):
            os.write(2, b"the supervisor is gone: finishing\n")
        with suppress(RuntimeError):  # The loop is closed: it has ended already.
            loop.call_soon_threadsafe(stop.set)
        sleep(ORPHAN_S)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=wait_for_the_end, name="supervisor", daemon=True).start()
    await work(stop)


def printer(stream: BinaryIO) -> Callable[[bytes], None]:
    """Prints what a supervisor has heard; nobody may be there to read it."""

    def write(lines: bytes) -> None:
        with suppress(BrokenPipeError):  # Nobody reads it any more; the processes go on.
            stream.write(lines)
            stream.flush()

    return write
