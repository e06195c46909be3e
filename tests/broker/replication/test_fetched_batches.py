"""The batches that a follower accepts from a leader's answer."""

from __future__ import annotations

import pytest

from streamlog.broker.replication.follower_replica import parse_fetched_batches
from streamlog.broker.storage.compaction.cleaned_batch import filler
from streamlog.errors import CorruptData
from streamlog.records.batch import set_offset_and_epoch, split_batches
from tests.broker.node import batch


def at(offset: int, count: int) -> bytes:
    data = bytearray(batch(*[b"v"] * count))
    set_offset_and_epoch(data, offset, 3)
    return bytes(data)


def test_consecutive_batches_are_accepted_unchanged() -> None:
    data = at(5, 2) + at(7, 1)
    assert parse_fetched_batches(data, 5, is_void=False) == (data, 8, None)
    assert parse_fetched_batches(b"", 5, is_void=False) == (b"", 5, None)


@pytest.mark.parametrize("data", [at(6, 1), at(5, 1) + at(7, 1), at(3, 4)])
def test_a_gap_or_an_overlap_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="begins at offset"):
        parse_fetched_batches(data, 5, is_void=False)


def test_a_filler_of_compacted_offsets_is_accepted() -> None:
    came = parse_fetched_batches(filler(2, 9, 3) + at(10, 1), 5, is_void=False)
    found = list(split_batches(bytes(came.records)))
    assert [(each.base_offset, each.next_offset) for each in found] == [(5, 10), (10, 11)]
    assert (found[0].leader_epoch, came.end_offset, came.begin_offset) == (3, 11, None)


def test_a_void_log_accepts_a_batch_that_contains_the_fetch_offset() -> None:
    came = parse_fetched_batches(at(3, 4) + at(7, 1), 5, is_void=True)
    assert (came.end_offset, came.begin_offset) == (8, 3)
