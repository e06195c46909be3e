"""Offload: one thread that does long work next to the broker's event loop.

Long work is a generator of steps. Its driver can pause it after each step. Where the work has to
open, read, sync, compress or remove something, it yields an `OffloadedJob`. The driver may start
the job in the thread and continue when it has ended. A driver that does not, such as a test, makes
the job run in place.

Rules of this module: a job touches nothing that the event loop touches meanwhile. It holds the
interpreter lock for at most about two milliseconds at a time, because the loop waits that long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeAlias, TypeVar

OFFLOAD_THREAD = "streamlog-offload"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


Threads: TypeAlias = Callable[[str], Executor]
"""Starts a thread and returns it as an executor, which runs one job at a time."""


def os_thread(name: str) -> Executor:
    """Return a thread of this process, which starts with the first job."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


class OffloadedJob(Generic[T_co]):
    """Work that runs once: in the thread if it is started, otherwise when its result is read."""

    def __init__(self, work: Callable[[], T_co]) -> None:
        self._work = work
        self._future: Future[T_co] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was started and has ended."""
        return self._future is not None and self._future.done()

    def start(self, executor: Executor) -> Future[T_co]:
        """Run the work in `executor`."""
        self._future = executor.submit(self._work)
        return self._future

    def result(self) -> T_co:
        """Return the result of the work, or raise what it raised."""
        return self._work() if self._future is None else self._future.result()


Steps = Generator[int | OffloadedJob[object], None, T]
"""A generator that yields, after each step, the bytes read and written, or a job to do first."""


def offload(work: Callable[[], T], size_bytes: int = 0) -> Steps[T]:
    """Do the work as a job; `size_bytes` is what it reads and writes."""
    job = OffloadedJob(work)
    yield job
    result = job.result()
    if size_bytes:
        yield size_bytes
    return result


class Offload:
    """One thread, which starts with the first job."""

    def __init__(self, threads: Threads = os_thread, name: str = OFFLOAD_THREAD) -> None:
        self._thread = threads(name)
        self._closed = False

    def start(self, job: OffloadedJob[object], then: Callable[[], None]) -> None:
        """Run the job after those started before; the running loop then calls `then`."""
        loop = asyncio.get_running_loop()

        def done(_: Future[object]) -> None:
            # Checked in the thread: after `close` the loop may be gone.
            if not self._closed:
                loop.call_soon_threadsafe(then)

        job.start(self._thread).add_done_callback(done)

    def wait(self) -> None:
        """Wait until the jobs started so far have ended."""
        if not self._closed:
            # One thread runs jobs in order, so an empty job ends after all others.
            self._thread.submit(int).result()

    def close(self) -> None:
        """Wait for the jobs that were started. No callback is called afterwards."""
        # From here on `done` calls nothing back: the loop may be closing.
        self._closed = True
        self._thread.shutdown(wait=True)
