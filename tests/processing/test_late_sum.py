"""On-time, late and dropped records add up to the input, in whatever order it comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Late, Windowed, Windows, calendar, session, tumbling

SECOND_MS = 1_000
END_MS = 400 * 24 * 3_600 * SECOND_MS
"""Beyond every window that holds a record."""

times_ms = st.lists(st.integers(0, 300 * 24 * 3_600) | st.integers(0, 300), max_size=40)
keys = st.sampled_from(["a", "b", None])


@pytest.mark.parametrize(
    "windows",
    [
        tumbling("10s"),
        tumbling("1d", grace="6h"),
        session("20s", grace="5s"),
        calendar("week", tz="Europe/Berlin"),
    ],
    ids=["tumbling", "with grace", "session", "calendar"],
)
@given(seconds=times_ms, data=st.data())
def test_on_time_late_and_dropped_records_add_up(
    windows: Windows, seconds: Sequence[int], data: st.DataObject
) -> None:
    app = App("late")
    readings = app.topic("readings", key=str, value=int)
    counts = app.topic("counts", key=Windowed[str], value=int)
    late = app.topic("late", key=str, value=Late[int])
    windowed = app.stream(readings).group_by_key().windowed(windows).late(late)
    windowed.count(name="counts").changes().to(counts)
    with app.test() as t:
        for number, second in enumerate(seconds):
            key = data.draw(keys)
            t.input(readings).send(number, key=key, at=second * SECOND_MS)
        t.input(readings).send(-1, key="end", at=END_MS)
        on_time = sum(t.output(counts).values)
        late_values = t.output(late).values
        dropped = sum(t.drops.values())
    assert on_time + len(late_values) + dropped == len(seconds)
    assert all(each.late_by.total_seconds() >= 0 for each in late_values)
