"""The rule for aborted transactions; random histories are in `storage/log/test_transactions.py`."""

from __future__ import annotations

import pytest

from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch, encode_batch, set_offset_and_epoch
from streamlog.records.control_batches import (
    ABORT,
    COMMIT,
    AbortedBatches,
    AbortedRange,
    Marker,
    encode_marker,
)


def batch(offset: int, producer_id: int = 7, *, count: int = 1) -> RecordBatch:
    """Return a transactional batch."""
    return placed(
        encode_batch(
            [(0, b"k", b"v", ())] * count,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        ),
        offset,
    )


def marker(offset: int, kind: int, producer_id: int = 7) -> RecordBatch:
    return placed(encode_marker(Marker(kind, 0), (producer_id, 0), timestamp_ms=0), offset)


def placed(data: bytes, offset: int) -> RecordBatch:
    written = bytearray(data)
    set_offset_and_epoch(written, offset, 0)
    return RecordBatch(written)


def hidden(batches: AbortedBatches, *log: RecordBatch) -> list[int]:
    return [each.base_offset for each in log if batches.hides(each)]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    log = [batch(0), batch(2), marker(3, ABORT), batch(4), marker(5, COMMIT)]
    assert hidden(AbortedBatches([AbortedRange(7, 2, 3)]), *log) == [2]
    assert hidden(AbortedBatches([AbortedRange(7, 2)]), *log) == [2]
    assert hidden(AbortedBatches(), *log) == []


def test_other_producers_and_plain_batches_stay_visible() -> None:
    outside = placed(encode_batch([(0, b"k", b"v", ())], producer_id=7, base_sequence=0), 2)
    assert hidden(AbortedBatches([AbortedRange(7, 0)]), batch(0), batch(1, 8), outside) == [0]


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    log = [batch(0), marker(1, COMMIT, 8), marker(2, COMMIT), batch(3), marker(4, ABORT), batch(5)]
    assert hidden(AbortedBatches([AbortedRange(7, 0)]), *log) == [0, 3]


def test_each_marker_ends_the_transaction_before_it() -> None:
    log = [batch(0), marker(1, ABORT), batch(2), marker(3, COMMIT), batch(4), marker(5, ABORT)]
    ranges = [AbortedRange(7, 4), AbortedRange(7, 0)]
    assert hidden(AbortedBatches(ranges), *log) == [0, 4]


def test_a_marker_without_records_before_it_hides_nothing() -> None:
    log = [batch(0), marker(1, COMMIT), marker(2, ABORT), batch(3), marker(4, ABORT)]
    assert hidden(AbortedBatches([AbortedRange(7, 3)]), *log) == [3]


def test_an_aborted_range_may_begin_within_a_batch() -> None:
    assert hidden(AbortedBatches([AbortedRange(7, 2)]), batch(0, count=5)) == [0]


def test_a_damaged_marker_raises_only_if_it_ends_a_transaction() -> None:
    damaged = bytearray(marker(1, ABORT).data)
    damaged[-8] = 1  # the key's size
    log = [batch(0), RecordBatch(damaged)]
    with pytest.raises(CorruptData):
        hidden(AbortedBatches([AbortedRange(7, 0)]), *log)
    assert hidden(AbortedBatches([AbortedRange(7, 0, 1)]), *log) == [0]
    assert hidden(AbortedBatches([AbortedRange(8, 0)]), *log) == []
