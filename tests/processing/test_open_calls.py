"""Open calls: bounded in flight, with results in the promised order."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.nodes.stream_nodes import Order
from streamlog.processing.async_map import OpenCalls

lanes = st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=30)


@pytest.mark.parametrize("ordered", ["key", "partition", "none"])
@given(of=lanes, in_flight_max=st.integers(1, 8), data=st.data())
def test_every_result_is_released_once_in_the_promised_order(
    ordered: Order, of: list[bytes | None], in_flight_max: int, data: st.DataObject
) -> None:
    calls: OpenCalls[int] = OpenCalls(ordered, in_flight_max)
    for number, lane in enumerate(of):
        calls.add(number, lane, number)
    in_flight: list[int] = []
    emitted: list[int] = []
    finished: set[int] = set()
    while len(calls):
        in_flight += [number for number, _ in calls.begin()]
        assert 0 < len(in_flight) <= in_flight_max
        number = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
        finished.add(number)
        calls.done(number, number * 10)
        ready = calls.ready()
        assert all(value == item * 10 for item, value in ready)
        emitted += [item for item, _ in ready]
        # No result waits longer than the order demands.
        if ordered == "none":
            assert set(emitted) == finished
        if ordered == "partition":
            assert calls.oldest is None or calls.oldest not in finished
        assert calls.oldest == min({*range(len(of))}.difference(emitted), default=None)
    assert sorted(emitted) == list(range(len(of)))
    if ordered == "partition":
        assert emitted == sorted(emitted)
    if ordered == "key":
        by_lane: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for number in emitted:
            by_lane[of[number]].append(number)
        assert all(numbers == sorted(numbers) for lane, numbers in by_lane.items() if lane)


def test_a_record_without_a_key_waits_for_no_other() -> None:
    calls: OpenCalls[str] = OpenCalls("key", 10)
    for number, lane in enumerate([b"a", b"a", None, b"b"]):
        calls.add(number, lane, str(number))
    calls.begin()
    for number in (3, 2, 1):
        calls.done(number, None)
    assert [item for item, _ in calls.ready()] == ["2", "3"]
    calls.done(0, None)
    assert [item for item, _ in calls.ready()] == ["0", "1"]
    assert len(calls) == 0
