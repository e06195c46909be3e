"""Appending batches together has the outcome of appending them one by one."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import LOG_APPEND_TIME, TopicConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.validator import AppendResult
from streamlog.errors import LogDirectoryFull, LogError, StreamlogError
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from streamlog.replace import replace
from tests.broker.storage.batches import SMALL, batch, contents, new_log, read_records, reopened

WALL_MS = 5_000
CONFIGS = [
    SMALL,
    TopicConfig(segment_bytes=1024, index_interval_bytes=0),
    TopicConfig(segment_bytes=4096, index_interval_bytes=256, segment_index_bytes=12),
    replace(SMALL, segment_ms=30),
    replace(SMALL, max_message_bytes=100),
    replace(SMALL, message_timestamp_type=LOG_APPEND_TIME),
    replace(SMALL, message_timestamp_before_max_ms=10),
    replace(SMALL, message_timestamp_after_max_ms=10),
    replace(SMALL, message_timestamp_after_max_ms=10, validate_records=False),
    replace(SMALL, cleanup_policy="compact"),
    replace(SMALL, compression_type="lz4"),
]


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


plain = st.builds(
    batch, st.integers(1, 4), timestamp_ms=st.integers(0, 6_000), value=st.binary(max_size=80)
)
numbered = st.builds(
    lambda count, producer, sequence: batch(count, producer=(*producer, sequence)),
    st.integers(1, 2),
    st.tuples(st.integers(0, 1), st.integers(-1, 1)),
    st.integers(-1, 6),
)
special = st.sampled_from(
    [
        b"",
        bytes(70),
        batch()[:-1],
        batch(2) + batch(1),
        batch(2) + b"x",
        damaged(batch(), 16),
        damaged(batch(), 22),
        damaged(batch(), 70),
        encode_batch([(1, b"k", b"v" * 50, ())] * 5, codec=Compression.GZIP),
        encode_batch([(1, None, b"v", ())]),
    ]
)
pieces = st.lists(st.one_of(plain, plain, numbered, numbered, special), max_size=25)


def one_by_one(log: PartitionLog, sent: list[bytes]) -> list[AppendResult | StreamlogError]:
    outcomes: list[AppendResult | StreamlogError] = []
    for piece in sent:
        try:
            outcomes.append(log.append(writable(piece), now_ms=0, wall_ms=WALL_MS))
        except StreamlogError as error:
            outcomes.append(error)
    return outcomes


def together(log: PartitionLog, sent: list[bytes]) -> list[AppendResult | StreamlogError]:
    return log.append_each([writable(piece) for piece in sent], now_ms=0, wall_ms=WALL_MS)


def writable(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def comparable(outcomes: list[AppendResult | StreamlogError]) -> list[object]:
    return [
        (type(each), getattr(each, "code", None), str(each))
        if isinstance(each, StreamlogError)
        else each
        for each in outcomes
    ]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
@given(first=pieces, then=pieces)
def test_appending_together_equals_appending_one_by_one(
    config: TopicConfig, first: list[bytes], then: list[bytes]
) -> None:
    files, same = MemoryFiles(), MemoryFiles()
    log, other = new_log(files, config), new_log(same, config)
    for sent in (first, then):
        assert comparable(together(log, sent)) == comparable(one_by_one(other, sent))
        assert dict(log.producers) == dict(other.producers)
    assert read_records(log) == read_records(other)
    segments = contents(files, ".log").values()
    largest = max(map(len, [*first, *then]), default=0)
    assert all(len(data) <= max(config.segment_bytes, largest) for data in segments)
    log.close()
    again = reopened(files, config=config)
    assert again.damage == ()
    assert dict(again.producers) == dict(other.producers)


def test_batches_appended_together_are_one_write() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig())
    files.short_next_write(100)  # the next write takes the rest
    sent = [batch(2, producer=(4, 0, 2 * number)) for number in range(5)]
    outcomes = together(log, sent)
    assert outcomes == [
        AppendResult(2 * n, 2 * n + 1, -1, len(data)) for n, data in enumerate(sent)
    ]
    assert len(read_records(log)) == 10
    assert together(log, sent) == [outcome._replace(size_bytes=0) for outcome in outcomes]


@pytest.mark.parametrize("written_bytes", [0, 100])
def test_a_failed_write_fails_all_batches_and_leaves_nothing(written_bytes: int) -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig())
    kept = together(log, [batch(producer=(4, 0, 0))])
    files.fail_next_write(errno.ENOSPC, after_bytes=written_bytes)
    sent = [batch(producer=(4, 0, number)) for number in range(1, 4)]
    outcomes = together(log, sent)
    assert [type(outcome) for outcome in outcomes] == [LogDirectoryFull] * 3
    assert log.log_end_offset == 1
    assert {p: (k.epoch, k.last_sequence) for p, k in log.producers} == {4: (0, 0)}
    # The disk has room again: the producer continues with its sequence.
    again = together(log, sent)
    assert [each.base_offset for each in (*kept, *again) if isinstance(each, AppendResult)] == [
        *range(4)
    ]
    assert len(read_records(log)) == 4


def test_a_closed_log_refuses_each_batch() -> None:
    log = new_log()
    log.close()
    outcomes = together(log, [batch(), batch()])
    assert [isinstance(outcome, LogError) for outcome in outcomes] == [True, True]
