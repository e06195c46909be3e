"""Windows of whole columns against those of single records."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.partial_aggregation.window_grid import WindowGrid
from streamlog import hopping, tumbling
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import is_late
from streamlog.windows.window_assigner import Assigner

TIMES_MS = st.integers(0, 500)


@st.composite
def definitions(draw: st.DrawFn) -> Windows:
    size_ms = draw(st.integers(1, 60))
    grace = f"{draw(st.integers(0, 30))}ms"
    if draw(st.booleans()):
        step_ms = draw(st.integers(1, size_ms))
        return hopping(f"{size_ms}ms", f"{step_ms}ms", grace=grace)
    offset_ms = draw(st.integers(0, size_ms - 1))
    return tumbling(f"{size_ms}ms", offset=f"{offset_ms}ms", grace=grace)


@given(windows=definitions(), times=st.lists(st.tuples(TIMES_MS, TIMES_MS), min_size=1))
def test_windows_of_columns_equal_those_of_single_records(
    windows: Windows, times: list[tuple[int, int]]
) -> None:
    grid = WindowGrid(windows)
    stamps = np.array([at for at, _ in times], np.int64)
    stream = np.maximum(stamps, np.array([ahead for _, ahead in times], np.int64))
    first, last, late = grid.numbers(stamps, stream)
    for at in range(len(times)):
        spans = Assigner(windows).of(int(stamps[at]))
        is_open = [not is_late(end, int(stream[at]), windows.grace_ms) for _, end in spans]
        found = [grid.bounds(number) for number in range(int(first[at]), int(last[at]) + 1)]
        assert found == [span for span, kept in zip(spans, is_open, strict=True) if kept]
        assert int(late[at]) == is_open.count(False)
        assert [end for _, end in found] == [
            int(grid.ends(np.int64(n))) for n in range(int(first[at]), int(last[at]) + 1)
        ]
