"""Which window a timestamp falls in.

Hot: called once per record, so it takes plain integers and returns a plain pair, and calls
nothing. Rule of the file: windows are half open [start, end), aligned to the epoch, and none
begins below it; Python's floor division makes that exact for every integer. Semantics are
those of Kafka Streams' TimeWindows. Not done here: lateness and closing (`emit`).
"""

from __future__ import annotations

from streamlog.errors import UsageError


def window_of(timestamp_ms: int, size_ms: int, offset_ms: int = 0) -> tuple[int, int]:
    """Start and end of the one tumbling window that holds `timestamp_ms`.

    Windows are `size_ms` long and their borders lie `offset_ms` after multiples of it
    (0 <= offset < size, as `Tumbling` has checked). With an offset the first window is cut
    off at the epoch and is [0, offset).

    Raises:
        UsageError: the timestamp is negative; such a record belongs to the error policy.
    """
    if timestamp_ms < 0:
        raise UsageError(f"a timestamp of {timestamp_ms} ms lies before 1970 and in no window")
    start_ms = (timestamp_ms - offset_ms) // size_ms * size_ms + offset_ms
    if start_ms < 0:
        return 0, start_ms + size_ms
    return start_ms, start_ms + size_ms
