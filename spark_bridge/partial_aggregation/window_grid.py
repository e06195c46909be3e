"""WindowGrid: numbers the windows of one definition, for whole columns of times.

Window `n` starts `n` steps after the first one. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamlog.history.lowering import NotLowered
from streamlog.windows.definitions import Hopping, Tumbling, Windows


class WindowGrid:
    """Numbers the windows of one definition."""

    def __init__(self, windows: Windows) -> None:
        """Prepare the grid of tumbling or hopping windows.

        Raises:
            NotLowered: windows of this kind can't be numbered.
        """
        if not isinstance(windows, Tumbling | Hopping):
            raise NotLowered(f"{windows.description} are not lowered")
        self._size_ms = windows.size_ms
        self._grace_ms = windows.grace_ms
        self._step_ms = windows.step_ms if isinstance(windows, Hopping) else windows.size_ms
        self._offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0

    def numbers(self, times_ms: Any, stream_times_ms: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - NumPy's
        """Return the first open and the last window of each record, and how many it is late for.

        The first is greater than the last if a record is late for all of its windows.
        """
        # Window n is [n * step + offset, n * step + offset + size).
        # 1. The last window of a time is the largest n that starts at it or before.
        # 2. The first one is the smallest n that ends after it: n > (time - offset - size) / step.
        # 3. A window is open while stream time is before its end and the grace, so the first open
        #    one is found as in 2, with stream time minus the grace.
        last = (times_ms - self._offset_ms) // self._step_ms
        first = (times_ms - self._offset_ms - self._size_ms) // self._step_ms + 1
        # No window starts before 1970; with an offset, the window that contains 1970 is cut there.
        first = np.maximum(first, -1 if self._offset_ms else 0)
        passed_ms = stream_times_ms - self._grace_ms - self._size_ms - self._offset_ms
        first_open = np.maximum(first, passed_ms // self._step_ms + 1)
        return first_open, last, np.minimum(first_open, last + 1) - first

    def ends(self, numbers: Any) -> Any:  # noqa: ANN401 - NumPy's
        """Return the ends of windows, ms since 1970."""
        return numbers * self._step_ms + (self._offset_ms + self._size_ms)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return start and end of a window, ms since 1970."""
        start_ms = number * self._step_ms + self._offset_ms
        return max(start_ms, 0), start_ms + self._size_ms
