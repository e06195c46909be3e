"""Which windows contain a timestamp, and how windowed keys store their window as bytes.

Rule of the module: windows are half open, [start, end), and none begins below the epoch; windows of
a fixed size are aligned to it, and Python's floor division makes that exact for every integer. The
semantics are those of Kafka Streams' TimeWindows. `WindowFold` repeats this arithmetic in its loop
(`processing/windows`). `layout_of` chooses Kafka Streams' layout of a windowed key. Not done here:
lateness and closing (`emit`).
"""

from __future__ import annotations

from streamlog.durations import duration_text
from streamlog.errors import UsageError
from streamlog.serdes import END_AND_START, Layout, StartOnly
from streamlog.windows.calendar import Calendar, CalendarSpans
from streamlog.windows.definitions import Counted, Hopping, Sessions, Sliding, Tumbling, Windows


def window_of(timestamp_ms: int, size_ms: int, offset_ms: int = 0) -> tuple[int, int]:
    """Return start and end of the tumbling window that contains `timestamp_ms`.

    Windows are `size_ms` long, and their borders lie `offset_ms` after multiples of it; `Tumbling`
    has checked that 0 <= offset < size. With an offset, the first window is [0, offset).

    Raises:
        UsageError: the timestamp is negative; the error policy decides on such a record.
    """
    if timestamp_ms < 0:
        raise _before_1970(timestamp_ms)
    start_ms = (timestamp_ms - offset_ms) // size_ms * size_ms + offset_ms
    if start_ms < 0:
        return 0, start_ms + size_ms
    return start_ms, start_ms + size_ms


def _before_1970(timestamp_ms: int) -> UsageError:
    return UsageError(f"a timestamp of {timestamp_ms} ms is before 1970, so it is in no window")


def windows_of(timestamp_ms: int, size_ms: int, step_ms: int) -> list[tuple[int, int]]:
    """Return starts and ends of the hopping windows that contain `timestamp_ms`, ascending.

    Raises:
        UsageError: the timestamp is negative.
    """
    if timestamp_ms < 0:
        raise _before_1970(timestamp_ms)
    first_ms = max((timestamp_ms - size_ms) // step_ms + 1, 0) * step_ms
    return [(start, start + size_ms) for start in range(first_ms, timestamp_ms + 1, step_ms)]


class Assigner:
    """Finds the windows of one definition that contain a timestamp."""

    __slots__ = ("_calendar", "_offset_ms", "_size_ms", "_step_ms")

    def __init__(self, windows: Windows) -> None:
        """`windows` is `Tumbling`, `Hopping` or `Calendar`."""
        self._size_ms = windows.size_ms
        self._offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0
        self._step_ms = windows.step_ms if isinstance(windows, Hopping) else 0
        self._calendar = CalendarSpans(windows) if isinstance(windows, Calendar) else None

    def of(self, timestamp_ms: int) -> list[tuple[int, int]]:
        """Return starts and ends of all windows that contain the timestamp, ascending.

        Raises:
            UsageError: the timestamp is negative, or beyond the calendar.
        """
        if self._step_ms:
            return windows_of(timestamp_ms, self._size_ms, self._step_ms)
        return [self.only(timestamp_ms)]

    def only(self, timestamp_ms: int) -> tuple[int, int]:
        """Return start and end of the one window that contains the timestamp; not for `Hopping`.

        Raises:
            UsageError: as `of`.
        """
        if self._calendar is not None:
            return self._calendar.window_of(timestamp_ms)
        return window_of(timestamp_ms, self._size_ms, self._offset_ms)

    def end_of(self, start_ms: int) -> int:
        """Return the end of the window that begins at `start_ms`."""
        return self.of(start_ms)[-1][1]

    def first_open(self, closed_ms: int) -> int:
        """Return the earliest start of a window that ends after `closed_ms`."""
        return self.of(closed_ms)[0][0]


def layout_of(windows: Windows) -> Layout:
    """Return how a key stores its window: the start, if it determines the end, or end and start."""
    if isinstance(windows, Sessions | Counted):
        return END_AND_START
    if isinstance(windows, Sliding):
        size_ms = windows.size_ms
        return StartOnly(f"sliding {windows.description}", lambda start_ms: start_ms + size_ms)
    offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0
    offset = f" from {duration_text(offset_ms)} on" if offset_ms else ""
    return StartOnly(windows.description + offset, Assigner(windows).end_of)
