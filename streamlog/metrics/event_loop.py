"""Event loop: how much of its time it waits, and how long it is held.

A loop is held from the moment at which it has found events until it looks for the next ones:
everything that becomes ready meanwhile waits. The selector of a `MeasuredLoop` takes the time twice
per turn, which costs less than a microsecond for any number of events. Of another loop, such as
uvloop's, the waiting is the time in which its thread did not use the CPU; its holds are unknown.

Rule of this module: compiled, because a loop looks for events once in each turn.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter  # noqa: TID251 - asyncio's own clock
from typing import TYPE_CHECKING

from streamlog.metrics.instruments import LoopTimes
from streamlog.metrics.registry import Kind, Metric, number

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

WINDOW_S = 60.0
"""The share of idle time is that of the last window, or of the time since the look before."""
IDLE_NAMES = {
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": "request handlers",
    "kafka_network_socketserver_networkprocessoravgidle_percent": "network threads",
}
"""One loop does the work of both of Kafka's pools."""

# C integers when compiled.
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_NOT_IN, _NOT_OUT = ~0x001, ~0x004
"""All events but the one: EPOLLIN and EPOLLOUT. An error or an end wakes readers and writers."""


class MeasuredSelector(selectors.DefaultSelector):
    """The system's selector, which notes when a loop waits.

    Linux's epoll it asks by itself: this is what a process runs first when it wakes, with cold
    caches, and the calls of `selectors` were a tenth of what a small request costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times = LoopTimes(perf_counter())
        self._keys: dict[int, selectors.SelectorKey] = {}
        """What is watched, by descriptor."""
        self._epoll = epoll_of(self)

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.register`."""
        key = super().register(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.modify`."""
        key = super().modify(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.unregister`."""
        key = super().unregister(fileobj)
        self._keys.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`."""
        times, epoll = self.times, self._epoll
        began_s = perf_counter()
        times.on_wait(began_s)
        found = super().select(timeout) if epoll is None else _ready(epoll, self._keys, timeout)
        times.on_wake(began_s, perf_counter())
        return found

    def close(self) -> None:
        """See `selectors.BaseSelector.close`."""
        if self._epoll is not None:
            self._epoll.close()
        self._keys.clear()
        super().close()


def epoll_of(selector: selectors.BaseSelector) -> select.epoll | None:
    """Return the epoll of a selector, under a descriptor of its own; None if it has none."""
    if sys.platform == "linux" and isinstance(selector, selectors.EpollSelector):
        return select.epoll.fromfd(os.dup(selector.fileno()))
    return None


def _ready(
    epoll: select.epoll, keys: dict[int, selectors.SelectorKey], timeout: float | None
) -> list[tuple[selectors.SelectorKey, int]]:
    """Wait for events, no longer than the timeout, in seconds; return what they are for."""
    found: list[tuple[selectors.SelectorKey, int]] = []
    try:
        events = epoll.poll(-1 if timeout is None else max(timeout, 0), max(len(keys), 1))
    except InterruptedError:
        return found
    for descriptor, event in events:
        key = keys.get(descriptor)
        if key is not None:
            mask = (_WRITE if event & _NOT_IN else 0) | (_READ if event & _NOT_OUT else 0)
            found.append((key, mask & key.events))
    return found


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its times."""

    time = staticmethod(monotonic)
    """The clock itself: it is asked a few times per event, and asyncio's method is a call more."""

    def __init__(self) -> None:
        selector = MeasuredSelector()
        super().__init__(selector)
        self.times = selector.times

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - as asyncio has it
        """See `asyncio.AbstractEventLoop.set_debug`."""
        self._is_debugged = enabled
        super().set_debug(enabled)

    def get_debug(self) -> bool:
        """See `asyncio.AbstractEventLoop.get_debug`; each future and each handle asks for it."""
        return self._is_debugged


class LoopMetrics:
    """Describes a loop; create it in the thread that runs the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._times = loop.times if isinstance(loop, MeasuredLoop) else None
        self._now_s = now_s
        self._cpu_s = _thread_clock()
        self._began_s = began_s = now_s()
        self._cpu_began_s = self._cpu_s()
        self._looks = deque([(began_s, 0.0 if self._times is None else self._times.idle_s)])
        """When the idle time was looked at, and what it was."""

    def metrics(self) -> Iterator[Metric]:
        """Yield the share of idle time, and the holds if they are known."""
        now_s = self._now_s()
        idle_s = self._idle_s(now_s)
        yield number(
            "streamlog_event_loop_idle_seconds_total",
            "How long the event loop has waited for events.",
            idle_s,
            kind=Kind.COUNTER,
        )
        share = self._share(now_s, idle_s)
        for name, of in IDLE_NAMES.items():
            text = f"Idle share of the event loop, which does the work of Kafka's {of}; 0 to 1."
            yield number(name, text, share)
        times = self._times
        if times is not None:
            yield number(
                "streamlog_event_loop_longest_hold_seconds",
                "Longest time without a look for events, in the last one to two minutes.",
                times.longest_hold_s(now_s),
            )
            yield Metric(
                "streamlog_event_loop_hold_seconds",
                "Times without a look for events: what became ready meanwhile had to wait.",
                Kind.HISTOGRAM,
                (),
                [((), times.holds)],
            )

    def _idle_s(self, now_s: float) -> float:
        """Return how long the loop has waited."""
        if self._times is not None:
            return self._times.idle_s
        used_s = self._cpu_s() - self._cpu_began_s
        return max(now_s - self._began_s - used_s, 0.0)

    def _share(self, now_s: float, idle_s: float) -> float:
        looks = self._looks
        # The newest look that is as old as a window stays, so that the share covers all of it.
        while len(looks) > 1 and looks[1][0] <= now_s - WINDOW_S:
            looks.popleft()
        then_s, idle_then_s = looks[0]
        # Looks come as often as scrapes do; two a second would be too many to keep.
        if now_s - looks[len(looks) - 1][0] >= 1:
            looks.append((now_s, idle_s))
        span_s = now_s - then_s
        return min((idle_s - idle_then_s) / span_s, 1.0) if span_s > 0 else 1.0


def _thread_clock() -> Callable[[], float]:
    """Return the clock of this thread's CPU time, for any thread; of the process where needed."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
