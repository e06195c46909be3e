"""Lanes: one item of each lane is in use at a time, in order, and no item waits needlessly."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from streamlog.agents.feed import Lanes

lane_names = st.sampled_from(["a", "b", "c", None])


@given(st.lists(lane_names, min_size=1), st.data())
def test_items_of_a_lane_are_taken_one_by_one_in_order(
    lanes_of: list[str | None], data: st.DataObject
) -> None:
    lanes: Lanes[int] = Lanes()
    left: defaultdict[str | None, list[int]] = defaultdict(list)
    out: list[str | None] = []
    entered = 0
    while entered < len(lanes_of) or lanes.waiting or out:
        choices = ["enter"] * (entered < len(lanes_of)) + ["take"] * (lanes.ready > 0)
        choices += ["done"] * bool(out)
        match data.draw(st.sampled_from(choices)):
            case "enter":
                lanes.put(lanes_of[entered], entered)
                entered += 1
            case "take":
                lane, item = lanes.take()
                assert lane is None or lane not in out
                left[lane].append(item)
                out.append(lane)
            case _:
                lane = out.pop(data.draw(st.integers(0, len(out) - 1)))
                lanes.done(lane)
        # An item that is not ready waits for an item of its lane that is in use.
        assert lanes.ready or not lanes.waiting or out
    for lane, items in left.items():
        assert items == [number for number, each in enumerate(lanes_of) if each == lane]


def test_the_holder_of_a_lane_can_take_its_next_item() -> None:
    lanes: Lanes[int] = Lanes()
    for item in range(3):
        lanes.put("a", item)
    assert lanes.take() == ("a", 0)
    assert (lanes.ready, lanes.waiting) == (0, 2)
    assert lanes.follow("a") == 1
    lanes.done("a")
    assert lanes.take() == ("a", 2)
    assert lanes.follow("a") is None


def test_dropped_items_leave_their_lane_free() -> None:
    lanes: Lanes[int] = Lanes()
    for item in range(4):
        lanes.put("a", item)
    lanes.put("b", 10)
    lanes.keep(lambda item: item in {1, 3})
    assert lanes.waiting == 2
    assert lanes.take() == ("a", 1)
    lanes.keep(lambda _: False)
    assert lanes.waiting == 0
    lanes.put("a", 5)
    assert lanes.ready == 0
    lanes.done("a")
    assert lanes.take() == ("a", 5)
