"""Loop metrics: how much of its time an event loop waits, and how long it is held.

The times of a `MeasuredLoop` come from its selector. Of another loop, such as uvloop's, the waiting
is the time in which its thread did not use the CPU; its holds are unknown.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

from streamlog.metrics.event_loop import MeasuredLoop
from streamlog.metrics.registry import Kind, Metric, number

WINDOW_S = 60.0
"""The share of idle time is that of the last window, or of the time since the look before."""
IDLE_NAMES = {
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": "request handlers",
    "kafka_network_socketserver_networkprocessoravgidle_percent": "network threads",
}
"""One loop does the work of both of Kafka's pools."""


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
