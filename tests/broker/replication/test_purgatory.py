"""Purgatory: bytes, a deadline or a removed partition completes a waiting request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.replication.purgatory import STALE_DEADLINES_MAX, Purgatory


def test_enough_bytes_wake_a_request() -> None:
    waiting: Purgatory[str] = Purgatory()
    waiting.park(1, ["a", "b"], missing_bytes=10, deadline_ms=100)
    assert waiting.on_append("a", 4) == []
    assert waiting.on_append("c", 100) == []
    assert waiting.on_append("b", 6) == [1]
    assert waiting.on_append("b", 6) == []
    assert waiting.next_deadline_ms() is None


def test_a_deadline_wakes_a_request() -> None:
    waiting: Purgatory[str] = Purgatory()
    waiting.park(1, ["a"], missing_bytes=1, deadline_ms=100)
    waiting.park(2, [], missing_bytes=1, deadline_ms=50)
    assert waiting.next_deadline_ms() == 50
    assert waiting.on_tick(99) == [2]
    assert waiting.on_tick(100) == [1]
    assert len(waiting) == 0


def test_a_removed_partition_wakes_a_request() -> None:
    waiting: Purgatory[str] = Purgatory()
    waiting.park(1, ["a", "b"], missing_bytes=1, deadline_ms=100)
    assert waiting.on_gone("b") == [1]
    assert waiting.on_append("a", 1) == []


def test_a_cancelled_request_is_not_woken() -> None:
    waiting: Purgatory[str] = Purgatory()
    waiting.park(1, ["a"], missing_bytes=1, deadline_ms=100)
    waiting.cancel(1)
    waiting.cancel(1)
    assert waiting.on_append("a", 1) == []
    assert waiting.on_tick(1_000) == []


def test_stale_deadlines_do_not_accumulate() -> None:
    waiting: Purgatory[str] = Purgatory()
    for ticket in range(10 * STALE_DEADLINES_MAX):
        waiting.park(ticket, ["a"], missing_bytes=1, deadline_ms=10**9)
        assert waiting.on_append("a", 1) == [ticket]
    assert len(waiting._deadlines) <= STALE_DEADLINES_MAX + 1


events = st.one_of(
    st.tuples(st.just("park"), st.sets(st.integers(0, 2)), st.integers(1, 9), st.integers(0, 9)),
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("tick"), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
)


@given(st.lists(events))
def test_purgatory_agrees_with_a_slow_reference(story: list[tuple[object, ...]]) -> None:
    waiting: Purgatory[int] = Purgatory()
    parked: dict[int, list[object]] = {}
    now_ms = tickets = 0
    for event in story:
        match event:
            case "park", set() as keys, int() as missing, int() as wait_ms:
                waiting.park(tickets, keys, missing_bytes=missing, deadline_ms=now_ms + wait_ms)
                parked[tickets] = [keys, missing, now_ms + wait_ms]
                tickets += 1
                woken, expected = [], set()
            case "append", int() as key, int() as size:
                for wait in parked.values():
                    wait[1] -= size * (key in wait[0])  # type: ignore[operator]
                expected = {t for t, wait in parked.items() if wait[1] <= 0}  # type: ignore[operator]
                woken = waiting.on_append(key, size)
            case "tick", int() as by_ms:
                now_ms += by_ms
                expected = {t for t, wait in parked.items() if wait[2] <= now_ms}  # type: ignore[operator]
                woken = waiting.on_tick(now_ms)
            case _, int() as ticket:
                waiting.cancel(ticket)
                parked.pop(ticket, None)
                woken, expected = [], set()
        assert set(woken) == expected
        for ticket in woken:
            del parked[ticket]
        assert len(waiting) == len(parked)
        deadlines = [wait[2] for wait in parked.values()]
        assert waiting.next_deadline_ms() == min(deadlines, default=None)  # type: ignore[type-var]
