"""RefusedRecord: records that a broker never accepts, as reported to callers of `send_batch`.

A broker refuses a batch for one of its records: too large, without a key in a compacted topic, a
timestamp out of bounds. Brokers name the bad records (KIP-467), but not for every reason, and old
brokers name none; the producer divides a batch that is too large until a single record is left.
Rule of the file: a refusal does not fail the future of `send_batch(refusals=...)`, so a caller that
collects refusals must read them. Not done here: what a worker does with refused records
(`worker/commit/refused_sinks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns

REFUSING: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors about the records themselves, which no retry changes."""


class RefusedRecord(NamedTuple):
    """Records that a broker refused together."""

    partition: TopicPartition
    error: StreamlogError
    records: FieldColumns
    blamed: tuple[int, ...]
    """Indexes of the bad records; the others were refused only because they share the batch. Empty
    if the broker does not say which records are bad."""


def is_refusal(error: StreamlogError) -> bool:
    """Whether an error is about the records, so that other records may be accepted."""
    return isinstance(error, LogError) and error.code in REFUSING


def refusal_of(
    partition: TopicPartition,
    records: FieldColumns | PackedRecords,
    rows: tuple[int, int],
    error: StreamlogError,
    blamed: Collection[int] = (),
) -> RefusedRecord:
    """Return the refusal of a part of a batch.

    Args:
        partition: the batch's partition.
        records: the whole batch.
        rows: indexes of the first and the last record of the part.
        error: the broker's error.
        blamed: indexes, in the batch, of the records that the broker names.
    """
    first, last = rows
    # Brokers authorize whole topics, so no record of a denied batch is good. A batch of one record
    # is refused for that record, also by brokers that name none.
    is_denied = isinstance(error, LogError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if is_denied or len(records) == 1:
        blamed = range(len(records))
    # Brokers count in the batch, the caller counts in its own part of it.
    own = tuple(at - first for at in range(first, last + 1) if at in blamed)
    return RefusedRecord(partition, error, records.part(first, last + 1), own)
