"""RangeReader: a range is read completely and once, or the read says why not.

The model is a list of offsets: a record, a record of an aborted transaction, a marker, a time mark,
or a hole left by compaction. The log's data passes through the consumer's own buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.consumer import Consumer
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.range_reader import STALL_CHECKS_MIN, RangeReader, StallGuard
from streamlog.clock import ManualClock
from streamlog.errors import OffsetOutOfRange, RequestTimedOut
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, encode_batch, set_offset_and_epoch
from streamlog.records.control_batches import (
    COMMIT,
    AbortedRange,
    Marker,
    encode_marker,
    encode_time_mark,
)
from streamlog.records.record_columns import RecordColumns

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STALL_MS = 1_000
ABORTED_PRODUCER = (7, 0)
RECORD, ABORTED, MARKER, MARK, HOLE = "record", "aborted", "marker", "mark", "hole"

cells = st.lists(st.sampled_from((RECORD, RECORD, ABORTED, MARKER, MARK, HOLE)), max_size=30)
deliveries = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, STALL_MS // STALL_CHECKS_MIN - 1)), max_size=30
)
"""How many batches the log sends before each poll, and how long that poll takes."""


def encoded(kind: str, offset: int) -> bytes:
    if kind == MARKER:
        data = encode_marker(Marker(COMMIT, 0), (9, 0), timestamp_ms=0)
    elif kind == MARK:
        data = encode_time_mark(5, 0)
    else:
        producer_id, epoch = ABORTED_PRODUCER if kind == ABORTED else (-1, -1)
        data = encode_batch(
            [(0, None, b"%d" % offset, ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0 if kind == ABORTED else -1,
            transactional=kind == ABORTED,
        )
    batch = bytearray(data)
    set_offset_and_epoch(batch, offset, 0)
    return bytes(batch)


class ModelConsumer:
    """A consumer of a log that is a list; a script says what arrives when."""

    def __init__(self, log: Sequence[str], start: int, clock: ManualClock) -> None:
        self.log = list(log)
        self.first = 0
        """The log's start; retention moves it."""
        self.clock = clock
        self.script: list[tuple[int, int]] = []
        self._state = SubscriptionState()
        self._state.assign([T0])
        self._state.state(T0).move(start)

    async def position(self, partition: TopicPartition) -> int:
        position = self._state.state(partition).position
        assert position is not None
        return position

    async def poll(self, *, timeout_ms: int) -> dict[TopicPartition, list[LogRecord]]:
        self._receive(timeout_ms)
        return self._state.take(None)

    async def poll_columns(
        self, *, timeout_ms: int, max_records: int | None
    ) -> dict[TopicPartition, RecordColumns]:
        self._receive(timeout_ms)
        return self._state.take_columns(max_records)

    def _receive(self, timeout_ms: int) -> None:
        count, pause_ms = self.script.pop(0) if self.script else (1, timeout_ms)
        self.clock.advance(pause_ms)
        state = self._state.state(T0)
        if state.fetch_offset < self.first:
            state.move(self.first)  # auto_offset_reset="earliest"
        there = [n for n in range(state.fetch_offset, len(self.log)) if self.log[n] != HOLE]
        for offset in there[:count]:
            hidden = [AbortedRange(ABORTED_PRODUCER[0], offset, offset)]
            self._state.put(T0, state.era, encoded(self.log[offset], offset), hidden)


def reader_of(
    log: Sequence[str], start: int, end: int, script: Sequence[tuple[int, int]] = ()
) -> tuple[RangeReader, ModelConsumer]:
    clock = ManualClock()
    consumer = ModelConsumer(log, start, clock)
    consumer.script = list(script)
    reader = RangeReader(cast("Consumer", consumer), {T0: end}, clock, stall_ms=STALL_MS)
    return reader, consumer


async def offsets_of(reader: RangeReader, *, max_records: int | None, columns: bool) -> list[int]:
    found: list[int] = []
    while not await reader.is_at_end():
        if columns:
            polled = await reader.poll_columns(timeout_ms=20, max_records=max_records)
            found += polled.get(T0, RecordColumns()).offsets
        else:
            found += [each.offset for each in (await reader.poll(timeout_ms=20)).get(T0, [])]
    return found


@given(cells, st.data(), st.booleans(), st.none() | st.integers(1, 5))
def test_a_range_is_read_completely_and_once(
    log: list[str], data: st.DataObject, columns: bool, max_records: int | None
) -> None:
    log = [*log, MARKER]  # Compaction keeps the last offset of a log.
    end = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, end))
    # Enough silence to be suspicious, never enough for a stall: progress comes in between.
    script = [(1, 0), *((count or 1, pause) for count, pause in data.draw(deliveries))]
    reader, _ = reader_of(log, start, end, script)
    found = asyncio.run(offsets_of(reader, max_records=max_records, columns=columns))
    assert found == [n for n in range(start, end) if log[n] == RECORD]
    assert reader.remaining == {}


@given(cells, st.data())
def test_a_truncated_log_stalls_at_its_new_end(log: list[str], data: st.DataObject) -> None:
    log = [*log, MARKER]
    start = data.draw(st.integers(0, len(log)))
    end = len(log) + data.draw(st.integers(1, 10))
    reader, consumer = reader_of(log, start, end, data.draw(deliveries))
    with pytest.raises(RequestTimedOut, match=rf"^t-0: the read is at offset {len(log)} .*{end},"):
        asyncio.run(offsets_of(reader, max_records=None, columns=True))
    assert consumer.clock.now_ms() >= STALL_MS
    assert reader.remaining == {T0: end - len(log)}


@given(cells, st.data(), deliveries)
def test_a_log_start_that_moves_takes_the_reader_along(
    log: list[str], data: st.DataObject, script: list[tuple[int, int]]
) -> None:
    log = [*log, MARKER]
    first, after = data.draw(st.integers(0, len(log))), data.draw(st.integers(0, 5))
    reader, consumer = reader_of(log, 0, len(log), [(count or 1, 0) for count, _ in script])

    async def read() -> list[int]:
        found: list[int] = []
        for polls in range(1_000):
            if await reader.is_at_end():
                break
            if polls == after:
                consumer.first = first
            found += (await reader.poll_columns()).get(T0, RecordColumns()).offsets
        return found

    found = asyncio.run(read())
    wanted = [n for n, kind in enumerate(log) if kind == RECORD]
    assert reader.remaining == {}
    assert found == sorted({*found})
    assert {*found} <= {*wanted}
    assert {*found} >= {n for n in wanted if n >= first}


@given(st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 3 * STALL_MS)), max_size=60))
def test_a_stall_is_silence_over_several_checks(
    steps: list[tuple[int, int]],
) -> None:
    """Compare the guard with a direct translation of its description."""
    end, position, now_ms = 40, 20, 5
    guard = StallGuard({T0: end, T1: 7}, stall_ms=STALL_MS)
    assert not guard.is_at_end({T0: position, T1: 7}, now_ms)
    gaps: list[int] = []
    for by, gap_ms in steps:
        position, now_ms = position + by, now_ms + gap_ms
        gaps = [] if by > 0 else [*gaps, min(gap_ms, STALL_MS // STALL_CHECKS_MIN)]
        if position < end and sum(gaps) >= STALL_MS:
            with pytest.raises(RequestTimedOut, match=rf"^t-0: the read is at offset {position} "):
                guard.is_at_end({T0: position, T1: 9}, now_ms)
            assert len(gaps) >= STALL_CHECKS_MIN
            return
        assert guard.is_at_end({T0: position, T1: 9}, now_ms) == (position >= end)
        if position >= end:
            return


def test_the_time_of_a_suspended_process_is_no_stall() -> None:
    guard = StallGuard({T0: 1}, stall_ms=STALL_MS)
    assert not guard.is_at_end({T0: 0}, 0)
    assert not guard.is_at_end({T0: 0}, 3_600_000)
    assert guard.is_at_end({T0: 1}, 3_600_020)


def test_the_stall_error_names_partition_offsets_and_remedy() -> None:
    guard = StallGuard({T1: 9, T0: 5, TopicPartition("u", 0): 3}, stall_ms=0)
    positions = {T0: 2, T1: 8, TopicPartition("u", 0): 3}
    assert not guard.is_at_end(positions, 0)
    with pytest.raises(RequestTimedOut) as caught:
        guard.is_at_end(positions, 1)
    assert str(caught.value) == (
        "t-0: the read is at offset 2 and has made no progress for 0 s; it waits for the offsets "
        "before 5, which the log held when the read began (1 more partition waits as well). "
        "Check that the partition has a leader (`streamlog topics describe t`), that no "
        "transaction is open in it and that its log was not truncated, and try again"
    )
    assert caught.value.retriable


def test_read_range_returns_committed_records(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(transactional_id="x") as producer:
                for values in ((b"0", b"1"), (b"3",)):
                    async with producer.transaction():
                        for value in values:
                            await producer.send("t", value, partition=0)
                with suppress(ZeroDivisionError):
                    async with producer.transaction():
                        await (await producer.send("t", b"5", partition=0))
                        raise ZeroDivisionError
            # 0 1 marker 3 marker 5 (aborted) marker
            assert [each.offset for each in await log.read_range(T0)] == [0, 1, 3]
            assert [each.value for each in await log.read_range(T0, 1, 4)] == [b"1", b"3"]
            assert not len(await log.read_range(T0, 4, 7))
            assert not len(await log.read_range(T0, 3, 3))
            everything = await log.read_range(T0, isolation="read_uncommitted")
            assert list(everything.offsets) == [0, 1, 3, 5]

    asyncio.run(main())


def test_a_range_whose_start_was_deleted_is_refused(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer() as producer:
                for number in range(5):
                    await (await producer.send("t", b"%d" % number, partition=0))
            await log.admin().delete_records({T0: 3})
            with pytest.raises(OffsetOutOfRange):
                await log.read_range(T0, 1, 5)
            assert [each.offset for each in await log.read_range(T0)] == [3, 4]

    asyncio.run(main())


def test_a_range_beyond_the_end_stalls(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            with pytest.raises(RequestTimedOut, match=r"^t-0: the read is at offset 0 "):
                await log.read_range(T0, 0, 2, stall_ms=50)

    asyncio.run(main())
