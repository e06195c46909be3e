"""Thread samples: what the threads of this worker are at, looked at by a thread of its own.

Rule of the module: one profile at a time, ten seconds, a hundred looks a second, and a bound for
the depth and the number of stacks. Threads that use no CPU are left out: a profile shows work.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

from streamlog.console.app_pages.profile_pages import Stack, profile
from streamlog.console.page_changes import Form, Made, PageChange
from streamlog.errors import UsageError

PROFILE_S: Final = 10.0
LOOK_S: Final = 0.01
DEPTH_MAX: Final = 80
STACKS_MAX: Final = 20_000
FILE_PARTS: Final = 3
"""The last parts of a file's path that a box names."""
LEAST_NS: Final = 100_000
"""CPU time between two looks from which a thread was at work."""
TASKS: Final = Path("/proc/self/task")
WAITS: Final = frozenset(
    {"EpollSelector.select", "EngineThread._run", "Condition.wait", "Event.wait", "_worker"}
)
"""Functions that wait inside of C: a thread at one of them has just finished its work."""


class ThreadSamples:
    """Takes profiles of this process."""

    def __init__(self) -> None:
        self._ended: threading.Event | None = None
        """Ends the profile that is being taken; None: there is none."""

    def stop(self) -> None:
        """End a profile early: a worker that stops does not wait for it."""
        if self._ended is not None:
            self._ended.set()

    def change_of(self) -> PageChange:
        """Return the profile as a change: it costs the worker something, so it is written down."""
        return PageChange("profile this worker", self._make)

    async def _make(self, _form: Form, token: str) -> Made:
        what = f"profile this worker for {PROFILE_S:.0f} s"
        try:
            stacks = await self.take()
        except UsageError as refused:
            error = str(refused)
            return Made(what=what, error=error, view=profile({}, token, error=error))
        return Made(what=what, view=profile(stacks, token))

    async def take(self, seconds: float = PROFILE_S) -> Counter[Stack]:
        """Return how often each stack was seen in some seconds.

        Raises:
            UsageError: another profile is being taken.
        """
        if self._ended is not None:
            raise UsageError("a profile is being taken: try again in some seconds")
        ended = self._ended = threading.Event()
        try:
            return await asyncio.to_thread(_look, ended, seconds)
        finally:
            # A browser that has gone away ends its profile.
            ended.set()
            self._ended = None


def _look(ended: threading.Event, seconds: float) -> Counter[Stack]:
    found, mine, used_ns = Counter[Stack](), threading.get_ident(), dict[int, int]()
    for _ in range(int(seconds / LOOK_S)):
        if ended.wait(LOOK_S) or len(found) >= STACKS_MAX:
            break
        threads = {each.ident: each for each in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
            thread = threads.get(ident)
            if ident == mine or thread is None or not _has_worked(thread, used_ns):
                continue
            if frame.f_code.co_qualname not in WAITS:
                found[stack_of(frame, thread.name)] += 1
    return found


def _has_worked(thread: threading.Thread, used_ns: dict[int, int]) -> bool:
    """Return whether a thread has used the CPU since the last look, and note how much it has.

    Its stack does not tell: a thread that waits inside of a C function looks busy.
    """
    number = thread.native_id or 0
    try:
        now_ns = int((TASKS / str(number) / "schedstat").read_text().split()[0])
    # Another system, or a thread that has just ended.
    except (OSError, ValueError, IndexError):
        return not TASKS.exists()
    before_ns = used_ns.get(number, now_ns)
    used_ns[number] = now_ns
    return now_ns - before_ns >= LEAST_NS


def stack_of(frame: FrameType | None, thread: str) -> Stack:
    """Return the functions that a thread is in, the outermost first."""
    names: list[str] = []
    while frame is not None and len(names) < DEPTH_MAX:
        held = frame.f_code
        names.append(f"{held.co_qualname} ({_shortened(held.co_filename)})")
        frame = frame.f_back
    return thread, *reversed(names)


def _shortened(path: str) -> str:
    # From the package on, so that it can be told whose code it is.
    for root in ("site-packages/", "/streamlog/", "/lib/"):
        _, found, after = path.rpartition(root)
        if found:
            return f"{found.lstrip('/')}{after}"
    return "/".join(path.split("/")[-FILE_PARTS:])
