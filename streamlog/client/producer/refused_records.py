"""Refusals: records that a broker does not take and never will, told to whoever has sent them.

A batch may be refused for one of its records: too large, without a key in a compacted topic, a
time out of bounds. Brokers say which ones (KIP-467), but not for every reason, nor do old ones; a
batch that is too large the producer divides until a single record is left. Rule of the file: what
is told here is no error of the sending itself, so whoever asks for it (`send_batch`)
has to look. Not done here: what becomes of the records
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
"""What a broker says of records, and not of the moment or of itself."""


class RefusedRecord(NamedTuple):
    """Records that were refused together."""

    partition: TopicPartition
    error: StreamlogError
    records: FieldColumns
    blamed: tuple[int, ...]
    """The places of those that can't be written; the others went down with them. If there are
    none, nobody knows which of the records is to blame."""


def is_refusal(error: StreamlogError) -> bool:
    """Whether it is about the records, so that others may fare better."""
    return isinstance(error, LogError) and error.code in REFUSING


def refusal_of(
    partition: TopicPartition,
    records: FieldColumns | PackedRecords,
    rows: tuple[int, int],
    error: StreamlogError,
    blamed: Collection[int] = (),
) -> RefusedRecord:
    """A part of a batch that was refused.

    Args:
        partition: it was for.
        records: the whole batch.
        rows: the first and the last record of the part.
        error: what was said.
        blamed: the records that the broker has named, by their places in the batch.
    """
    first, last = rows
    is_denied = isinstance(error, LogError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if is_denied or len(records) == 1:
        blamed = range(len(records))
    own = tuple(at - first for at in range(first, last + 1) if at in blamed)
    return RefusedRecord(partition, error, records.part(first, last + 1), own)
