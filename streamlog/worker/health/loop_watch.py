"""Watching: tells when a worker does not get on, who it is, and what it waits for.

The looks are taken on the event loop, which goes on while tasks work in their thread. A second
one is taken from a thread, at the loop itself: code in an agent or a timer that blocks stops the
loop, and with it heartbeats and everything here. Rule of the file: it reports and, if it was told
to, ends the worker, so that a supervisor replaces it; it never repairs. Not done here: deciding
who is stalled (`watchdog`), and where somebody hangs (`stacks`).
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
"""Coroutines that wait for each other: more is a loop."""


def thread_location(ident: int) -> str:
    """Where a thread is; empty if it is not there any more."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - the documented way
    frames = list(_outwards(frame))
    node = next(filter(None, map(_node, frames)), "")
    found = _location(frames)
    return f"{node!r} ({found})" if node else found


def task_location(task: asyncio.Task[object]) -> str:
    """Where a coroutine waits."""
    return _location(list(_awaited_frames(task)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited_frames(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """The frames of what a task awaits, the innermost first."""
    found: list[FrameType] = []
    waiting: object = task.get_coro()
    for _ in range(AWAITED_MAX):
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if isinstance(frame, FrameType):
            found.append(frame)
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
    """The innermost line of the user's; else of anybody's but ours."""
    mine = [each for each in frames if not _is_ours(each.f_code)]
    own = [each for each in mine if not each.f_code.co_filename.startswith(LIBRARIES)]
    for frame in [*own, *mine, *frames]:
        code = frame.f_code
        return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}, in {code.co_name}"
    return ""


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((PACKAGE, "<frozen"))


logger = repeated.logger(__name__)

LOOKS_PER_LIMIT = 5
"""So much later than its time a stall is told at most: a fifth."""
LOOK_MS_MAX = 5_000
REPORTED_MAX = 3
"""Of those that are found at one look, so many have a line each; the others share one."""
NAMED_MAX = 20
"""In that."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long somebody may not get on."""

    tell_ms: int = 30_000
    exit_ms: int | None = None
    """Then the worker ends; None: it never does for that."""

    @property
    def look_ms(self) -> int:
        """From one look to the next."""
        return max(min(self.tell_ms // LOOKS_PER_LIMIT, LOOK_MS_MAX), 1)


class WatchedWorker(Protocol):
    """Port: a worker that is watched."""

    def sights(self) -> Mapping[str, Sight]:
        """Where everybody stands."""

    def reason(self, who: str) -> str:
        """What one of them waits for, as far as the worker knows; may be empty."""


class WorkerWatch:
    """Watches one worker."""

    def __init__(
        self, limits: Limits, watched: WatchedWorker, engine: EngineThread, clock: Clock
    ) -> None:
        self._limits = limits
        self._watched = watched
        self._engine = engine
        self._clock = clock
        self._watchdog = Watchdog(limits.tell_ms, limits.exit_ms)

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            ProcessingError: somebody has not got on for so long that the worker is to end.
        """
        with LoopWatch(self._limits.tell_ms, self._clock) as loop_watch:
            while True:
                loop_watch.beat()
                self._look()
                await asyncio.sleep(self._limits.look_ms / 1000)

    @property
    def stalled(self) -> dict[str, int]:
        """Who does not get on, and for how many milliseconds."""
        return self._watchdog.stalled(self._clock.now_ms())

    def _look(self) -> None:
        stalls = self._watchdog.look(self._watched.sights(), self._clock.now_ms())
        busy = self._engine.busy
        at_work = None if busy is None else f"task {busy.task_id}"
        # First those to whom the reason belongs: tasks that wait behind one are told in one line.
        stalls.sort(key=lambda stall: stall.who != at_work)
        for stall in stalls:
            if stall.is_over:
                text = self._told(stall)
                raise ProcessingError(f"{text}; the worker ends, so that another one may try")
        for stall in stalls[:REPORTED_MAX]:
            logger.warning("%s", self._told(stall))
        if also := [stall.who for stall in stalls[REPORTED_MAX:]]:
            names = ", ".join(also[:NAMED_MAX])
            more = f" and {len(also) - NAMED_MAX} others" if len(also) > NAMED_MAX else ""
            logger.warning("%d more have not moved either: %s%s", len(also), names, more)

    def _told(self, stall: Stall) -> str:
        return f"{stall.told()}; {self._reason(stall.who)}"

    def _reason(self, who: str) -> str:
        busy = self._engine.busy
        if busy is not None:
            since_s = (self._clock.now_ms() - busy.since_ms) // 1000
            working = f"task {busy.task_id}"
            place = f"at work in {thread_location(busy.thread_ident)} for {since_s} s"
            if who.startswith("task ") and who != working:
                return f"it waits for its turn behind {working}, which is {place}"
            return f"{working} is {place}"
        for task in asyncio.all_tasks():
            if task.get_name().startswith(f"{who} ") and (place := task_location(task)):
                return f"it waits in {place}"
        return self._watched.reason(who) or "the log gives it no records: is its broker reachable?"


class LoopWatch:
    """A thread that tells when the event loop is blocked."""

    def __init__(self, limit_ms: int, clock: Clock) -> None:
        self._limit_ms = limit_ms
        self._clock = clock
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
        """The loop is alive."""
        self._beat_ms = self._clock.now_ms()

    def _run(self) -> None:
        limit_ms = self._limit_ms
        while not self._ended.wait(self._limit_ms / LOOKS_PER_LIMIT / 1000):
            blocked_ms = self._clock.now_ms() - self._beat_ms
            if blocked_ms < self._limit_ms:
                limit_ms = self._limit_ms
            elif blocked_ms >= limit_ms:
                limit_ms *= 2
                logger.warning(
                    "the event loop has been blocked for %d s by %s: agents, timers, fetches and "
                    "heartbeats wait; use `await asyncio.to_thread(...)` for what blocks",
                    blocked_ms // 1000,
                    thread_location(self._ident),
                )
