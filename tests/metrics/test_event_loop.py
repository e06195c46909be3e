"""The times of an event loop, held against planted holds and the CPU time of its thread."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.event_loop import MeasuredLoop, MeasuredSelector
from streamlog.metrics.instruments import HOLD_WINDOW_S, Histogram, LoopTimes
from streamlog.metrics.loop_metrics import WINDOW_S, LoopMetrics

IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
LONGEST = "streamlog_event_loop_longest_hold_seconds"
HOLDS = "streamlog_event_loop_hold_seconds"


def look(metrics: LoopMetrics) -> dict[str, object]:
    return {metric.name: value for metric in metrics.metrics() for _, value in [*metric.points][:1]}


def hold(seconds: float) -> None:
    """Use the CPU for this long."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


async def work(busy_s: float, idle_s: float) -> tuple[dict[str, object], float]:
    """Hold the loop, then wait; return its metrics, and the share in which the thread was idle."""
    metrics = LoopMetrics(asyncio.get_running_loop())
    began_s, used_s = time.perf_counter(), time.thread_time()
    hold(busy_s)
    await asyncio.sleep(idle_s)
    found = look(metrics)
    used_s = time.thread_time() - used_s
    return found, 1 - used_s / (time.perf_counter() - began_s)


@pytest.mark.parametrize("make", [MeasuredLoop, asyncio.SelectorEventLoop])
def test_the_idle_share_is_what_the_thread_does_not_use(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        found, share = runner.run(work(0.1, 0.3))
    idle = found[IDLE]
    assert isinstance(idle, float)
    # On a busy machine the loop is held also while its thread waits for the CPU: then the measured
    # loop, which counts that as a hold, is idle for less.
    assert 0 < idle <= share + 0.02
    if make is not MeasuredLoop:
        assert idle == pytest.approx(share, abs=0.02)


def test_the_longest_hold_is_at_least_the_planted_one() -> None:
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        found, _ = runner.run(work(0.15, 0.01))
    longest, holds = found[LONGEST], found[HOLDS]
    assert isinstance(longest, float)
    assert isinstance(holds, Histogram)
    assert longest >= 0.15
    assert sum(holds.counts[sum(bound < 0.15 for bound in holds.bounds) :]) >= 1


def test_other_loops_say_nothing_of_holds() -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        found, _ = runner.run(work(0, 0))
    assert LONGEST not in found
    assert HOLDS not in found


def test_a_hold_counts_for_one_to_two_windows() -> None:
    times = LoopTimes(0.0)

    def turn(now_s: float, hold_s: float) -> None:
        times.on_wait(now_s + hold_s)
        times.on_wake(now_s + hold_s, now_s + hold_s)

    times.on_wake(0.0, 10.0)
    turn(10.0, 3.0)
    assert times.longest_hold_s(14.0) == 3.0
    times.on_wake(13.0, HOLD_WINDOW_S)
    turn(HOLD_WINDOW_S, 1.0)
    assert times.longest_hold_s(HOLD_WINDOW_S + 2) == 3.0
    assert times.longest_hold_s(2 * HOLD_WINDOW_S + 2) == 1.0
    # Nobody looked for hours, in which the loop waited.
    assert times.longest_hold_s(100 * HOLD_WINDOW_S) == 0.0


def test_the_idle_share_is_that_of_the_last_window() -> None:
    now_s = 0.0
    loop = MeasuredLoop()
    try:
        metrics = LoopMetrics(loop, lambda: now_s)
        shares = []
        for step in range(1, 13):
            # Idle for half of the first ten steps, then not at all.
            now_s += WINDOW_S / 4
            loop.times.idle_s += WINDOW_S / 8 if step <= 4 else 0.0
            shares.append(look(metrics)[IDLE])
    finally:
        loop.close()
    assert shares[:4] == [0.5] * 4
    assert shares[7:] == [0.0] * 5


EVENTS = st.sampled_from([selectors.EVENT_READ, selectors.EVENT_WRITE, 3])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.integers(0, 2), EVENTS),
        st.tuples(st.just("modify"), st.integers(0, 2), EVENTS),
        st.tuples(st.just("unregister"), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["send", "end", "close"]), st.integers(0, 2), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS)
def test_a_measured_selector_finds_what_another_finds(
    steps: list[tuple[str, int, int]],
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    both = measured, other = MeasuredSelector(), selectors.DefaultSelector()
    open_ends = {0, 1, 2}
    registered: set[int] = set()
    try:
        for step, (what, number, events) in enumerate(steps):
            ours, theirs = pairs[number]
            if what == "send" and number in open_ends:
                theirs.send(b"x")
            elif what == "end" and number in open_ends:
                open_ends.remove(number)
                theirs.shutdown(socket.SHUT_WR)
            elif what == "close":
                open_ends.discard(number)
                theirs.close()
            elif what == "unregister" and number in registered:
                registered.remove(number)
                assert measured.unregister(ours) == other.unregister(ours)
            elif (what == "modify") == (number in registered) and events:
                registered.add(number)
                keys = [getattr(each, what)(ours, events, step) for each in both]
                assert keys[0] == keys[1]
            found = [{key.fd: (key, mask) for key, mask in each.select(0)} for each in both]
            assert found[0] == found[1]
    finally:
        for each in both:
            each.close()
        for pair in pairs:
            for end in pair:
                end.close()
    assert measured.times.holds.count == len(steps)
