"""LateRecords: where records go whose window has closed to them.

Of windows that overlap, a record comes here once for each that has closed to it (`windowed`); where
records make windows, once if none is open (`record_windows`). Not done here: judging who is late
(`windows/emit`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from streamlog.durations import moment
from streamlog.processing.columns import Batch
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.step import Collector
from streamlog.record import Late
from streamlog.serdes import window_bytes
from streamlog.topology import TopicSpec


class LateRecords:
    """Those of one node: written to a topic as `Late`, given to a function, or only counted."""

    def __init__(
        self, node: str, to: TopicSpec | Callable[[Any], object] | None, collector: Collector
    ) -> None:
        self._node = node
        self._to = to
        self._collector = collector

    def leave_out(self, batch: Batch, at: int, *, end_ms: int, late_by_ms: int) -> None:
        """The record at this place in the batch goes no further.

        Args:
            batch: the record is one of these.
            at: which.
            end_ms: of its window.
            late_by_ms: how far its source's time had passed that end, and what is waited for after.
        """
        to = self._to
        if to is None:
            self._collector.drop(self._node, "late", late_by_ms=late_by_ms)
        elif isinstance(to, TopicSpec):
            record = batch.record(at)
            value = Late(record.value, timedelta(milliseconds=late_by_ms), moment(end_ms))
            self._collector.send(
                SinkBatch(
                    to.name,
                    None,
                    [batch.timestamps[at]],
                    [to.key.dumps(record.key)],
                    [to.value.dumps(value)],
                    [record.headers],
                    window_bytes(to.key),
                    partitioner=to.partitioner,
                )
            )
        else:
            to(batch.record(at))
