"""Nodes of windowed aggregations: clock, session, sliding and count windows.

A window belongs to a key. The clock makes tumbling and hopping windows. Records make sessions,
sliding windows and count windows, which are found by key: the earlier records of a key determine
which windows exist, and which of them a record changes. Those nodes keep a store by key in addition
to the rows, which are in the order in which windows close.

Rule: rows that are emitted when a window closes have a time source of their own; rows of updates
belong to the record that caused them. The name of a store by key has a slash and an at sign, which
no node's name has. Not done here: the windows (`windows`) and the fold (`processing`).
"""

from __future__ import annotations

from collections.abc import Callable

from streamlog.durations import duration_text
from streamlog.nodes.stream_nodes import Aggregation, Keyed, Node, OldValues
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes.erased_types import AnyRecord, AnySerde
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.definitions import Counted, Sessions, Sliding, Windows
from streamlog.windows.emit import FAR_MS, Emit


class CountedAggregate(Node, frozen=True, kw_only=True):
    """One result per key and number of its records."""

    store: StoreSpec
    """The open windows of each key."""
    due: StoreSpec
    """The windows that time out, by time."""
    key: AnySerde
    aggregation: Aggregation
    windows: Counted
    emit: Emit
    idle_after_ms: int | None = None
    """A source that is at its end and quiet for this long no longer holds back stream time."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores of the open windows and of their time-outs."""
        return (self.store, self.due)

    @property
    def table_key(self) -> AnySerde:
        """The key serde of the records."""
        return self.key

    @property
    def rows_kept_ms(self) -> int:
        """0: a full window is removed."""
        return 0

    @property
    def needs_equal_keys(self) -> bool:
        """The records of a key are counted together."""
        return True

    @property
    def feeds(self) -> tuple[str, ...]:
        """Windows that time out; those that are full belong to the record that filled them."""
        # A full window is forwarded with the record that fills it, and with `Emit.UPDATE` every
        # change is forwarded with its record. Only a final row after a time-out belongs to no
        # record.
        times_out = self.windows.timeout_ms is not None and self.emit == Emit.CLOSE
        return (self.name,) if times_out else ()

    @property
    def passes_on(self) -> bool:
        """A full window belongs to the record that filled it."""
        return True

    @property
    def waits_idle_ms(self) -> int | None:
        """The declared `idle_after`."""
        return self.idle_after_ms

    @property
    def detail(self) -> str:
        """Names the windows."""
        return f"{self.windows.description}, emit {self.emit.name}"


class WindowedRows(Keyed, frozen=True, kw_only=True):
    """One result per key and window."""

    aggregation: Aggregation
    emit: Emit
    early: StoreSpec | None = None
    """The marks of rows that wait for the end of an interval, with `Emit.early`."""
    late: TopicSpec | Callable[[AnyRecord], object] | None = None
    """Where late records go: a topic (as `Late`), a function, or only into the count."""
    idle_after_ms: int | None = None
    """A source that is at its end and quiet for this long no longer holds back windows."""
    united: bool = False
    """Whether it aggregates several streams, which share one time."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows, then the store of the marks of early rows, if any."""
        return (self.store,) if self.early is None else (self.store, self.early)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Its rows, unless every update is forwarded.

        On close, rows come in (end, start, key) order, whatever the interleaving of the inputs:
        their number is their identity. At commits, it is the number of the record that changed the
        row last. On update, rows belong to the record that caused them.
        """
        if self.emit == Emit.UPDATE:
            return ()
        return (self.name,) if self.early is None else (self.early_feed, self.name)

    @property
    def early_feed(self) -> str:
        """The name of the time source of early rows; final rows have the name of the node."""
        return f"{self.name}/@early"

    @property
    def waits_idle_ms(self) -> int | None:
        """The declared `idle_after`."""
        return self.idle_after_ms

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """The topic for late records, if they go to a topic."""
        return (self.late,) if isinstance(self.late, TopicSpec) else ()

    @property
    def old_values(self) -> OldValues:
        """It keeps rows; with early rows it does not know which of them were forwarded."""
        # The value that a change replaces for readers is the one that was forwarded last, and with
        # early rows that may be older than the row that is kept.
        return "kept" if self.early is None else "unknown"


class WindowedAggregate(WindowedRows, frozen=True, kw_only=True):
    """One result per key and tumbling, hopping or calendar window."""

    windows: Windows

    @property
    def rows_kept_ms(self) -> int:
        """The retention, which counts from a window's beginning."""
        return self.windows.retention_ms

    @property
    def detail(self) -> str:
        """Names the windows."""
        windows = self.windows
        return (
            f"{windows.description}, grace {duration_text(windows.grace_ms)}, emit {self.emit.name}"
        )


class RecordWindowsAggregate(WindowedRows, frozen=True, kw_only=True):
    """One result per key and window that follows from records: a session or a sliding window."""

    by_key: StoreSpec
    """The windows or records of each key."""
    windows: Sessions | Sliding

    @property
    def late_after_ms(self) -> int:
        """A window is closed to records of a source that has passed its end by more than this."""
        return self.windows.grace_ms

    @property
    def closes_after_ms(self) -> int:
        """A window is closed for good when stream time has passed its end by more than this."""
        return self.late_after_ms

    def end_range(self, at_ms: int) -> tuple[int, int]:
        """Return the first and the last end of windows that may contain this time."""
        # A window [end - size, end] contains `at` if it ends at `at` or up to a size later.
        return at_ms, at_ms + self.windows.size_ms

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The rows, by (end, start, key), come first."""
        own = (self.store, self.by_key)
        return own if self.early is None else (*own, self.early)

    @property
    def rows_kept_ms(self) -> int:
        """The retention; at least until the window has closed."""
        # A retention shorter than the grace would remove rows that may still change.
        return max(self.windows.retention_ms, self.closes_after_ms)


class SessionAggregate(RecordWindowsAggregate, frozen=True, kw_only=True):
    """One result per key and session."""

    windows: Sessions

    @property
    def late_after_ms(self) -> int:
        """A record that joins no session is late if its own session would be closed."""
        return self.windows.gap_ms + self.windows.grace_ms

    @property
    def closes_after_ms(self) -> int:
        """On update, a gap more: a record that is not late may still join the session.

        A session that was emitted as final stays unchanged.
        """
        # The gap is 10, the grace 5, and a session ends at 100.
        # 1. A record of time 110 joins it, and is late only when stream time exceeds 125, because
        #    its own session would be [110, 110].
        # 2. With `Emit.UPDATE` the session stays open that long: 100 + 10 + 5 + 10.
        # 3. With `Emit.CLOSE` its row is final when stream time exceeds 115: after that, the
        #    record begins a session of its own.
        return self.late_after_ms + (self.windows.gap_ms if self.emit == Emit.UPDATE else 0)

    def end_range(self, at_ms: int) -> tuple[int, int]:
        """Return the first end of sessions that may contain this time; there is no last one."""
        return at_ms, FAR_MS

    @property
    def detail(self) -> str:
        """Names the sessions."""
        windows, limit = self.windows, ""
        if windows.max_length_ms is not None:
            limit = f"up to {duration_text(windows.max_length_ms)} long, "
        return (
            f"sessions with gaps of {duration_text(windows.gap_ms)}, {limit}"
            f"grace {duration_text(windows.grace_ms)}, emit {self.emit.name}"
        )


class SlidingAggregate(RecordWindowsAggregate, frozen=True, kw_only=True):
    """One result per key and sliding window."""

    windows: Sliding
    value: AnySerde
    """The value serde of the records, which are kept as long as a new window may contain them."""

    @property
    def detail(self) -> str:
        """Names the windows."""
        windows = self.windows
        return (
            f"sliding windows of {duration_text(windows.size_ms)}, "
            f"grace {duration_text(windows.grace_ms)}, emit {self.emit.name}"
        )
