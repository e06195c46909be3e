"""How windows stand in the bytes of keys: which layout of Kafka Streams belongs to a definition."""

from __future__ import annotations

from streamlog.serdes import END_AND_START, Layout, StartOnly
from streamlog.windows.assign import Assigner
from streamlog.windows.counted import Counted
from streamlog.windows.definitions import Tumbling, Windows
from streamlog.windows.sessions import Sessions
from streamlog.windows.sliding import Sliding


def layout_of(windows: Windows) -> Layout:
    """What stands behind the key: the start if it tells the end, else the end and the start."""
    if isinstance(windows, Sessions | Counted):
        return END_AND_START
    if isinstance(windows, Sliding):
        size_ms = windows.size_ms
        return StartOnly(f"sliding {windows.described}", lambda start_ms: start_ms + size_ms)
    offset_ms = windows.offset_ms if isinstance(windows, Tumbling) else 0
    offset = f" from {offset_ms} ms on" if offset_ms else ""
    return StartOnly(windows.described + offset, Assigner(windows).end_of)
