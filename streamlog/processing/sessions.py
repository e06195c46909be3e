"""SessionStep: one result per key and session.

The open sessions of keys in use are objects; others are found by key when a record comes. A record
that joins sessions makes one of them: their states are merged, from a fresh one on and the earliest
first, and then the record is added, as in Kafka Streams. On update the sessions that are replaced
are deleted first, each with its end for a time; one that holds nothing but records of one
millisecond is only updated. Rule of the file: sessions of a key that are open are all in memory, or
none of them. Not done here: who joins whom (`windows/sessions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from streamlog.processing.aggregate import ROWS_BYTES_MAX
from streamlog.processing.open_rows import Change, OpenWindow
from streamlog.processing.record_windows import Arrival, RecordWindowsStep
from streamlog.processing.step import StepContext
from streamlog.tables.folding import Row
from streamlog.tables.session_store import SessionStore
from streamlog.tables.store import NamedStore, split_window_key
from streamlog.topology import SessionAggregate
from streamlog.windows.sessions import joined


class SessionStep(RecordWindowsStep):
    """One result per key and session."""

    def __init__(self, node: SessionAggregate, context: StepContext) -> None:
        super().__init__(node, context)
        self._windows = node.windows
        self._joined_ms = node.closes_after_ms - node.late_after_ms
        self._by_key = SessionStore(
            NamedStore(context.store, node.by_key), retention_ms=node.closes_after_ms + 1
        )
        self._open: dict[bytes, list[OpenWindow]] = {}
        """The sessions of keys in use, in order."""

    def add(self, arrival: Arrival) -> list[Change] | None:
        """The session that it makes, after those that go for it; None if that is closed."""
        raw, time_ms = arrival.raw, arrival.timestamp_ms
        there = self._open.get(raw)
        if there is None:
            there = self._found(raw)
        open_to_it = [each for each in there if each.end_ms >= arrival.open_ms - self._joined_ms]
        spans = [(window.start_ms, window.end_ms) for window in open_to_it]
        places, (start_ms, end_ms) = joined(self._windows, spans, time_ms)
        if end_ms < arrival.open_ms:
            return None
        replaced = [open_to_it[at] for at in places]
        gone = [Change(each, is_gone=True, before=self._told(each)) for each in replaced]
        state = self._state(replaced, arrival.value)
        # Nothing has changed before this: functions may have failed.
        window = OpenWindow(start_ms, end_ms, Row(state, end_ms, raw))
        for each in replaced:
            self._rows.remove(each)
        self._rows.put(window)
        kept = [each for each in there if each not in replaced]
        self._open[raw] = sorted([*kept, window], key=_order)
        if start_ms == end_ms:
            return [Change(window, before=gone[0].before if gone else None)]
        return [*gone, Change(window)]

    def forget(self, window: OpenWindow) -> None:
        """It is closed."""
        raw = window.row.raw
        there = self._open.get(raw)
        if there is not None:
            left = [each for each in there if each.key != window.key]
            if left:
                self._open[raw] = left
            else:
                del self._open[raw]

    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:
        """The sessions of each key."""
        self._by_key.advance(time_ms)
        for key, window in written.items():
            end_ms, start_ms, raw = split_window_key(key)
            if window is None:
                self._by_key.remove(raw, start_ms, end_ms)
            else:
                self._by_key.put(raw, start_ms, end_ms, b"")
        if self._rows.bytes_of(sum(map(len, self._open.values()))) > ROWS_BYTES_MAX:
            self._open.clear()

    def last_end_ms(self, timestamp_ms: int) -> int:
        """Alone it is a session of one record."""
        return timestamp_ms

    def first_time_ms(self, end_ms: int) -> int:
        """A session's result has its end for a time."""
        return end_ms

    def _found(self, raw: bytes) -> list[OpenWindow]:
        spans = [(each.start_ms, each.end_ms) for each in self._by_key.find(raw)]
        found = [self._rows.load(start_ms, end_ms, raw) for start_ms, end_ms in spans]
        return [window for window in found if window is not None]

    def _state(self, replaced: Sequence[OpenWindow], value: object) -> object:
        aggregation = self._aggregation
        state = aggregation.initial()
        if aggregation.merge is not None:
            for window in replaced:
                state = aggregation.merge(state, window.row.state)
        return aggregation.add(state, value)


_order = attrgetter("end_ms", "start_ms")
