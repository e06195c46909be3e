from __future__ import annotations

import pytest

from streamlog.broker.quorum.raft.log_entries import (
    SNAPSHOT_BATCH_RECORDS,
    decode_snapshot,
    encode_entry,
    encode_leader_change,
    encode_snapshot,
    entries_of,
    records_of,
)
from streamlog.broker.quorum.raft.raft_messages import Entry
from streamlog.errors import CorruptData


def test_an_entry_is_a_batch_with_offset_and_epoch() -> None:
    entry = encode_entry([b"x", b"yy"], base_offset=7, epoch=3, wall_ms=1_000)
    assert (entry.base_offset, entry.next_offset, entry.epoch) == (7, 9, 3)
    assert entries_of(entry.payload) == [entry]
    assert list(records_of(entry)) == [(7, b"x"), (8, b"yy")]


def test_a_leader_change_entry_holds_no_records() -> None:
    own = Entry(base_offset=4, count=1, epoch=2, payload=b"", is_control=True)
    entry = encode_leader_change(own, leader_id=1, voters=(1, 2, 3), wall_ms=1_000)
    assert entries_of(entry.payload) == [entry]
    assert list(records_of(entry)) == []


def test_changed_bytes_are_refused() -> None:
    damaged = bytearray(encode_entry([b"x"], base_offset=0, epoch=1, wall_ms=0).payload)
    damaged[-1] ^= 1
    with pytest.raises(CorruptData):
        entries_of(damaged)


@pytest.mark.parametrize("records", [0, 1, SNAPSHOT_BATCH_RECORDS, SNAPSHOT_BATCH_RECORDS + 1])
def test_an_incomplete_snapshot_is_refused(records: int) -> None:
    values = [b"%d" % each for each in range(records)]
    batches = list(encode_snapshot(values, epoch=3, wall_ms=1_000))
    assert list(decode_snapshot(b"".join(batches))) == values
    for end in range(1, len(batches)):
        with pytest.raises(CorruptData):
            list(decode_snapshot(b"".join(batches[:end])))
    with pytest.raises(CorruptData):
        list(decode_snapshot(b"".join(batches)[:-1]))
