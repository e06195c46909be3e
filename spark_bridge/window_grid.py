"""WindowGrid: which tumbling or hopping windows records fall in, whole columns at a time.

Windows are numbered: the window `n` begins `n` steps after the first one. The arithmetic is that of
`windows/assign`, in numbers of 64 bits; so is what is late (`windows/emit`): a record comes too
late for a window whose end and grace its own source's stream time has come to. Rule of the file:
pure; no record is looked at alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamlog.history.lowering import NotLowered
from streamlog.windows.definitions import Hopping, Tumbling, Windows


class WindowGrid:
    """The windows of one definition."""

    def __init__(self, windows: Windows) -> None:
        """Make it.

        Raises:
            NotLowered: these windows have no numbers.
        """
        if not isinstance(windows, Tumbling | Hopping):
            raise NotLowered(f"{windows.described} are not lowered")
        self._size_ms = windows.size_ms
        self._grace_ms = windows.grace_ms
        self._step_ms = windows.step_ms if isinstance(windows, Hopping) else windows.size_ms
        self._offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0

    def numbers(self, times_ms: Any, stream_times_ms: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - NumPy's
        """The first and the last window of each record, and for how many it comes too late.

        The first one is behind the last one if it comes too late for all of its windows.
        """
        last = (times_ms - self._offset_ms) // self._step_ms
        first = (times_ms - self._offset_ms - self._size_ms) // self._step_ms + 1
        # None begins before 1970; with an offset the one that holds it is cut off there.
        first = np.maximum(first, -1 if self._offset_ms else 0)
        passed_ms = stream_times_ms - self._grace_ms - self._size_ms - self._offset_ms
        first_open = np.maximum(first, passed_ms // self._step_ms + 1)
        return first_open, last, np.minimum(first_open, last + 1) - first

    def ends(self, numbers: Any) -> Any:  # noqa: ANN401 - NumPy's
        """Where windows end."""
        return numbers * self._step_ms + (self._offset_ms + self._size_ms)

    def bounds(self, number: int) -> tuple[int, int]:
        """Start and end of a window."""
        start_ms = number * self._step_ms + self._offset_ms
        return max(start_ms, 0), start_ms + self._size_ms
