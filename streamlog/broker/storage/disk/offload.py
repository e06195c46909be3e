"""Offload: one thread that does long work next to the broker's event loop.

Long work is a generator of steps. Its driver can pause it after each step. Where the work has to
open, read, sync, compress or remove something, it yields an `OffloadedJob`. The driver may start
the job in the thread and continue when it has ended. A driver that does not, such as a test, makes
the job run in place.

A small job, such as a sync that a request waits for, costs less than its way through a pool of
threads and back, so each thread here is a `LoopThread`.

Rules of this module: a job touches nothing that the event loop touches meanwhile. It holds the
interpreter lock for at most about two milliseconds at a time, because the loop waits that long.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from streamlog.errors import NoThread

OFFLOAD_THREAD = "streamlog-offload"
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


Threads: TypeAlias = Callable[[str], Executor]
"""Starts a thread and returns it as an executor, which runs one job at a time."""
Result: TypeAlias = Callable[[], T]
"""Returns what a job has returned, or raises what it has raised."""


def os_thread(name: str) -> Executor:
    """Return a thread of this process, which starts with the first job."""
    return LoopThread(name)


def begin_in(thread: Executor, work: Callable[[], T], then: Callable[[Result[T]], object]) -> None:
    """Run `work` in a thread; the running loop then calls `then` with its result.

    Raises:
        NoThread: the thread could not start, and nothing has begun.
    """
    if isinstance(thread, LoopThread):
        thread.begin(work, then)
        return
    loop = asyncio.get_running_loop()

    def on_done(done: Future[T]) -> None:
        loop.call_soon_threadsafe(then, done.result)

    thread.submit(work).add_done_callback(on_done)


def start(thread: Thread) -> None:
    """Start a thread.

    Raises:
        NoThread: it could not start; the thread may be started later.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(
            f"thread {thread.name} does not start ({error}): raise the limit on processes"
            " (ulimit -u, pids.max of a container), or the memory"
        ) from error


class _LoopJob(Generic[T]):
    """A job whose end the loop handles."""

    __slots__ = ("_error", "_value", "_work", "then")

    def __init__(self, work: Callable[[], T], then: Callable[[Result[T]], object]) -> None:
        self._work = work
        self.then = then

    def run(self) -> None:
        """Run the work, in the thread."""
        self._error: BaseException | None = None
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`, in the loop
            self._error = error

    def result(self) -> T:
        """Return what the work has returned, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value


_Job: TypeAlias = Callable[[], object]


class LoopThread(Executor):
    """One thread of this process, which starts with the first job.

    `ThreadPoolExecutor` and `call_soon_threadsafe` give a job a future with a lock of its own,
    count idle threads, and send a byte through a pair of sockets. Here, a job of `begin` takes a
    queue on its way there and an eventfd on its way back: a quarter to a third less CPU (measured).
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon, because it may wait for jobs when a program ends that has never shut it down.
        self._thread = Thread(target=_run_jobs, args=(self._jobs,), name=name, daemon=True)
        self._lock = Lock()
        self._has_begun = self._is_shut = False
        self._done: deque[_LoopJob[Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that calls `then`; set by the first `begin`."""
        self._wakes = -1
        """The eventfd by which the thread wakes that loop; -1 if there is none."""
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the future raises it again
                future.set_exception(error)
            else:
                future.set_result(value)

        self._put(run)
        return future

    def begin(self, work: Callable[[], T], then: Callable[[Result[T]], object]) -> None:
        """Run `work`; the running loop then calls `then` with its result.

        Raises:
            NoThread: the thread could not start, and nothing has begun.
        """
        if self._loop is None:
            self._watch(asyncio.get_running_loop())
        job = _LoopJob(work, then)

        def run() -> None:
            job.run()
            self._done.append(job)
            self._wake()

        self._put(run)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as Executor has it
        """End the thread after the jobs that were given; see `Executor`.

        No `then` is called afterwards. Nothing is cancelled: each job here has to be done.
        """
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                self._jobs.put(None)
        if wait:
            if self._has_begun:
                self._thread.join()
            self._unwatch()

    def _put(self, run: _Job) -> None:
        with self._lock:
            if self._is_shut:
                raise RuntimeError(f"thread {self._thread.name} has ended and takes no more jobs")
            if not self._has_begun:
                start(self._thread)
                self._has_begun = True
        self._jobs.put(run)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if sys.platform != "linux":
            return
        try:
            self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            # No descriptor is free. A broker has to sync then, too, to release some: the loop's own
            # way costs more, and needs none.
            return
        loop.add_reader(self._wakes, self._on_woken)

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        wakes, self._wakes = self._wakes, -1
        self._done.clear()
        if wakes >= 0:
            if loop is not None and not loop.is_closed():
                loop.remove_reader(wakes)
            os.close(wakes)

    def _wake(self) -> None:
        """Wake the loop, from the thread."""
        if sys.platform == "linux" and self._wakes >= 0:
            os.eventfd_write(self._wakes, 1)
        elif self._loop is not None:
            # A loop that has closed waits for nothing; the thread has more jobs to do.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell)

    def _on_woken(self) -> None:
        if sys.platform == "linux":
            os.eventfd_read(self._wakes)
        self._tell()

    def _tell(self) -> None:
        while self._done:
            job = self._done.popleft()
            # As the loop does for its callbacks: an error must not keep the others from theirs.
            try:
                job.then(job.result)
            except Exception as error:  # noqa: BLE001 - see above
                context = {"message": f"Exception in {job.then}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


def _run_jobs(jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs until there is None; the thread keeps nothing of a `LoopThread` alive meanwhile."""
    while (run := jobs.get()) is not None:
        run()
        del run


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

        def call() -> None:
            if not self._closed:  # The loop gets here an iteration after the job has ended.
                then()

        def done(_: Future[object]) -> None:
            # Checked in the thread, too: after `close` the loop may be gone.
            if not self._closed:
                loop.call_soon_threadsafe(call)

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
