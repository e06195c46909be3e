"""Loop watch: reports stalled tasks and agents with the line that they wait at, and a blocked loop.

`WorkerWatch` runs on the event loop, which stays free while tasks work on the engine thread.
`LoopWatch` is a thread that watches the loop itself: blocking code in an agent or a timer stops the
loop, and with it heartbeats and `WorkerWatch`.

Rule: it reports and, with `watchdog_exit`, ends the worker so that a supervisor replaces it; it
never repairs. Not done here: the decision what is stalled (`watchdog`).
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Protocol, Self

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import ProcessingError
from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.step import Step
from streamlog.worker.engine import EngineThread
from streamlog.worker.health.watchdog import Sight, Stall, Watchdog

PACKAGE = __file__.rpartition("/worker/")[0]
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
AWAITED_MAX = 100
"""The longest chain of coroutines that await each other; a longer one is a cycle."""


def thread_location(ident: int) -> str:
    """Return the node and line that a thread is at; empty if the thread has ended."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - the documented way
    frames = list(_outwards(frame))
    node = next(filter(None, map(_node, frames)), "")
    found = _location(frames)
    return f"{node!r} ({found})" if node else found


def task_location(task: asyncio.Task[object]) -> str:
    """Return the line at which an asyncio task waits."""
    return _location(list(_awaited_frames(task)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited_frames(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Return the frames of the coroutines that a task awaits, innermost first."""
    found: list[FrameType] = []
    waiting: object = task.get_coro()
    for _ in range(AWAITED_MAX):
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if isinstance(frame, FrameType):
            found.append(frame)
        # A coroutine and an async generator name what they await; a future names nothing, and ends
        # the chain.
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
        if waiting is None:
            break
    return reversed(found)


def _node(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    if isinstance(owner, Step):
        return owner.name
    return owner.topic.name if isinstance(owner, Input) else ""


def _location(frames: list[FrameType]) -> str:
    """Return the innermost line of the user's code; else of a library; else of streamlog."""
    foreign = [each for each in frames if not _is_streamlog(each.f_code)]
    own = [each for each in foreign if not each.f_code.co_filename.startswith(LIBRARIES)]
    for frame in [*own, *foreign, *frames]:
        code = frame.f_code
        return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}, in {code.co_name}"
    return ""


def _is_streamlog(code: CodeType) -> bool:
    return code.co_filename.startswith((PACKAGE, "<frozen"))


logger = repeated.logger(__name__)

LOOKS_PER_LIMIT = 5
"""A stall is reported at most a fifth of the limit late."""
LOOK_MS_MAX = 5_000
REPORTED_MAX = 3
"""The stalls of one look that get a log line each; the others share one line."""
NAMED_MAX = 20
"""The names in the shared line."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a task or agent that lags may make no progress."""

    tell_ms: int = 30_000
    """After this time the stall is logged."""
    exit_ms: int | None = None
    """After this time the worker ends; None: never."""

    @property
    def look_ms(self) -> int:
        """The interval between two looks."""
        return max(min(self.tell_ms // LOOKS_PER_LIMIT, LOOK_MS_MAX), 1)


class WatchedWorker(Protocol):
    """Port: the worker that is watched."""

    def sights(self) -> Mapping[str, Sight]:
        """Return the progress of all tasks and agents, by name."""

    def reason(self, who: str) -> str:
        """Return what a task or an agent waits for; empty if unknown."""


class WorkerWatch:
    """Watches the tasks and agents of one worker."""

    def __init__(
        self, limits: Limits, watched: WatchedWorker, engine: EngineThread, clock: Clock
    ) -> None:
        self._limits = limits
        self._watched = watched
        self._engine = engine
        self._clock = clock
        self._watchdog = Watchdog(limits.tell_ms, limits.exit_ms)

    async def run(self) -> None:
        """Look at intervals until cancelled.

        Raises:
            ProcessingError: a task or agent made no progress for `exit_ms`.
        """
        with LoopWatch(self._limits.tell_ms, self._clock) as loop_watch:
            while True:
                loop_watch.beat()
                self._look()
                await asyncio.sleep(self._limits.look_ms / 1000)

    @property
    def stalled(self) -> dict[str, int]:
        """The stalled tasks and agents, with the time without progress in milliseconds."""
        return self._watchdog.stalled(self._clock.now_ms())

    def _look(self) -> None:
        stalls = self._watchdog.look(self._watched.sights(), self._clock.now_ms())
        busy = self._engine.busy
        at_work = None if busy is None else f"task {busy.task_id}"
        # The task at work first, as it is the cause: the tasks that wait behind it are stalled too.
        stalls.sort(key=lambda stall: stall.who != at_work)
        for stall in stalls:
            if stall.is_over:
                text = self._describe(stall)
                raise ProcessingError(f"{text}; the worker ends, so that another one can take over")
        for stall in stalls[:REPORTED_MAX]:
            logger.warning("%s", self._describe(stall))
        if also := [stall.who for stall in stalls[REPORTED_MAX:]]:
            names = ", ".join(also[:NAMED_MAX])
            more = f" and {len(also) - NAMED_MAX} others" if len(also) > NAMED_MAX else ""
            logger.warning("%d more have made no progress either: %s%s", len(also), names, more)

    def _describe(self, stall: Stall) -> str:
        return f"{stall.describe()}; {self._reason(stall.who)}"

    def _reason(self, who: str) -> str:
        busy = self._engine.busy
        if busy is not None:
            since_s = (self._clock.now_ms() - busy.since_ms) // 1000
            working = f"task {busy.task_id}"
            line = f"has been at work in {thread_location(busy.thread_ident)} for {since_s} s"
            if who.startswith("task ") and who != working:
                return f"it waits behind {working}, which {line}"
            return f"{working} {line}"
        for task in asyncio.all_tasks():
            if task.get_name().startswith(f"{who} ") and (line := task_location(task)):
                return f"it waits in {line}"
        return self._watched.reason(who) or "no records arrive: is the broker reachable?"


class LoopWatch:
    """A thread that reports when the event loop is blocked."""

    def __init__(self, limit_ms: int, clock: Clock) -> None:
        self._limit_ms = limit_ms
        self._clock = clock
        # The event loop's thread, which creates this object.
        self._ident = threading.get_ident()
        self._beat_ms = clock.now_ms()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamlog-loop-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def beat(self) -> None:
        """Note that the event loop runs; call it on the loop at intervals below the limit."""
        self._beat_ms = self._clock.now_ms()

    def _run(self) -> None:
        limit_ms = self._limit_ms
        while not self._ended.wait(self._limit_ms / LOOKS_PER_LIMIT / 1000):
            # The loop is the only writer, and a stale value delays a report at most: no lock is
            # needed.
            blocked_ms = self._clock.now_ms() - self._beat_ms
            if blocked_ms < self._limit_ms:
                limit_ms = self._limit_ms
            # Again after twice the time, as in `Watchdog`.
            elif blocked_ms >= limit_ms:
                limit_ms *= 2
                logger.warning(
                    "the event loop has been blocked for %d s by %s: agents, timers, fetches and "
                    "heartbeats wait; run blocking code with `await asyncio.to_thread(...)`",
                    blocked_ms // 1000,
                    thread_location(self._ident),
                )
