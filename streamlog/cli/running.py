"""Running: a command's coroutine from its start to the first or the second Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from streamlog.interrupts import EXIT_INTERRUPTED, interruptible

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
    from streamlog.broker.storage.descriptors import (  # noqa: PLC0415 - other commands start faster
        raise_limit,
    )

    raise_limit()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What agents print is to be seen at once.

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with _signals(stop, on_stop, at_once):
            await main(stop)

    run(until_stopped())


async def set_within(event: asyncio.Event, timeout_ms: int) -> bool:
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
