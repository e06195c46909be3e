"""Sink latency: the time from a record's timestamp until readers can see what was made of it.

Exactly once, rows are visible when the transaction of their commit has ended; at least once, when
the log has acknowledged them; the worker learns this at its next commit. Until then, this module
keeps samples: up to four evenly spaced timestamps of a batch. Each stands for its share of the
records, so the histogram counts every record, and a batch costs no more than its samples.

Rule: time marks and dead letters are no results, and do not count. Not done here: when a commit
ends (`tasks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import Family
from streamlog.processing.outbox import SinkBatch, sample

RECORD: Final = "record"
"""Since the result's timestamp: the event time of the record, or the start of the window."""
APPEND: Final = "append"
"""Since the source record's timestamp in its log."""
PENDING_MAX = 100_000
"""The samples of a topic that may wait for a commit; further ones are left out."""


class SinkLatency:
    """The latencies of this worker's sinks."""

    def __init__(self, family: Family[Histogram], sinks: Iterable[str]) -> None:
        """`family` has the labels topic and since; `sinks` are the topics that sinks write to."""
        self._family = family
        self._sinks = frozenset(sinks)
        self._pending: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """Topic and since what to times, each with the number of records that it stands for."""

    def note(self, batches: Iterable[SinkBatch]) -> None:
        """Remember what a task has written, until it is visible."""
        for batch in batches:
            if batch.topic in self._sinks:
                count = len(batch.timestamps)
                self._add(batch.topic, RECORD, sample(batch.timestamps), count)
                if batch.log_times:
                    self._add(batch.topic, APPEND, batch.log_times, count)

    def end(self, now_ms: int) -> None:
        """Count everything that was noted: it is visible since `now_ms`, wall-clock time."""
        pending, self._pending = self._pending, {}
        for labels, times in pending.items():
            record_many = self._family.series(*labels).record_many
            for time_ms, count in times:
                # A timestamp ahead of the clock counts as 0: it tells nothing about the app.
                record_many(max(now_ms - time_ms, 0) / 1000, count)

    def forget(self) -> None:
        """Forget what was noted: it was not committed, and is written again."""
        self._pending = {}

    def _add(self, topic: str, since: str, times: Sequence[int], count: int) -> None:
        """Add sampled times of a batch, each with its share of the records."""
        pending = self._pending.setdefault((topic, since), [])
        if len(pending) >= PENDING_MAX:
            return
        each, more = divmod(count, len(times))
        for time_ms in times:
            pending.append((time_ms, each))
        if more:
            pending.append((times[-1], more))
