"""LastRecords: which record changed a row last, for the error of a row that can't be stored.

A row is written down once per commit, long after its records. Rule of the file: nothing is done
per record; what is kept are references to columns of the newest batches, until the store is
written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from streamlog.errors import ProcessingError, SerdeError
from streamlog.processing.columns import Batch, failed

NOTED_BATCHES_MAX = 32
"""Of older ones only the first offset is kept, by partition."""


class _Noted(NamedTuple):
    """The records of a batch."""

    topic: str
    partition: int
    offsets: Sequence[int]
    rows: Sequence[int]
    """Of the offsets."""
    raws: Sequence[bytes | None]


class LastRecords:
    """The records since the last flush of one node, by the keys of their rows."""

    __slots__ = ("_first", "_node", "_noted")

    def __init__(self, node: str) -> None:
        self._node = node
        self._noted: deque[_Noted] = deque(maxlen=NOTED_BATCHES_MAX)
        self._first: dict[tuple[str, int], int] = {}

    def note(self, batch: Batch, raws: Sequence[bytes | None]) -> None:
        """These records are folded, into rows with these keys."""
        origin, rows = batch.origin, batch.rows
        if rows:
            self._first.setdefault((origin.topic, origin.partition), origin.offsets[rows[0]])
            self._noted.append(_Noted(origin.topic, origin.partition, origin.offsets, rows, raws))

    def clear(self) -> None:
        """All rows are stored."""
        self._noted.clear()
        self._first.clear()

    def failure(self, raw: bytes, error: Exception) -> ProcessingError:
        """The error of a row that can't be stored, to be raised."""
        reason = SerdeError(f"can't store its state for key {raw!r}: {error}")
        for noted in reversed(self._noted):
            for at in range(len(noted.raws) - 1, -1, -1):
                if noted.raws[at] == raw:
                    offset = noted.offsets[noted.rows[at]]
                    return failed(self._node, noted.topic, noted.partition, offset, reason)
        for (topic, partition), offset in self._first.items():
            reason = SerdeError(f"{reason}; its record is at this offset or behind it")
            return failed(self._node, topic, partition, offset, reason)
        return ProcessingError(f"{self._node!r} {reason}", node=self._node)
