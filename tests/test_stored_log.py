"""Every reader of committed records, compared with the written history and with the broker.

A history is random: interleaved transactions of several producers, committed or aborted with and
without records, also by a coordinator that fences the producer; compactions; and reads from any
offset. The history alone determines the committed records.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.history.stored_log_reader import StoredReader
from streamlog.record import TopicPartition
from streamlog.records.batch import split_batches
from streamlog.records.control_batches import ABORT, COMMIT, AbortedBatches, AbortedRange
from streamlog.stored_log import StoredLog, read_committed_view
from tests.broker.storage.batches import new_log, read_batches
from tests.broker.storage.compaction.test_cleaning import (
    COMPACTED,
    RETENTION_MS,
    begun,
    clean,
    ended,
    keyed,
)
from tests.broker.storage.log.test_transactions import committed, stable_offset

TOPIC, PARTITION = "rows", TopicPartition("rows", 0)
PRODUCERS = 3
FETCH_BYTES = 500
Rows = list[tuple[int, bytes]]

producers = st.integers(1, PRODUCERS)
keys = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("write"), producers, keys),
    st.tuples(st.just("write"), producers, keys),
    st.tuples(st.just("end"), producers, st.sampled_from([ABORT, COMMIT]), st.booleans()),
    st.tuples(st.just("end"), producers, st.sampled_from([ABORT, COMMIT]), st.booleans()),
    st.tuples(st.just("plain"), keys),
    st.tuples(st.just("clean"), st.sampled_from([0, RETENTION_MS + 1])),
)
HISTORIES = st.lists(STEPS, max_size=10) | st.lists(STEPS, min_size=25, max_size=80)


@dataclass
class History:
    """A log and the records written to it."""

    log: PartitionLog
    wall_ms: int = 1_000
    aborted: set[int] = field(default_factory=set)
    open: dict[int, list[int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def live(self, steps: Iterable[tuple[Any, ...]]) -> History:
        for what, *arguments in steps:
            getattr(self, what)(*arguments)
        return self

    def write(self, producer_id: int, names: list[str]) -> None:
        first, sequence = self.log.log_end_offset, self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(names)
        producer = (producer_id, self.epochs.get(producer_id, 0), sequence)
        begun(self.log, keyed(*self._rows(names), producer=producer, transactional=True))
        self.open.setdefault(producer_id, []).extend(range(first, self.log.log_end_offset))

    def plain(self, names: list[str]) -> None:
        self.log.append(keyed(*self._rows(names)), now_ms=0)

    def end(self, producer_id: int, kind: int, fences: bool) -> None:
        """Append a marker; with `fences` the coordinator writes it, with the next epoch."""
        if fences:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        offsets = self.open.pop(producer_id, [])
        if kind == ABORT:
            self.aborted.update(offsets)
        ended(self.log, kind, producer_id, self.epochs.get(producer_id, 0))

    def clean(self, later_ms: int) -> None:
        self.wall_ms += later_ms
        clean(self.log, wall_ms=self.wall_ms)

    def _rows(self, names: list[str]) -> list[tuple[str, str]]:
        first = self.log.log_end_offset
        return [(name, f"{first + number:040}") for number, name in enumerate(names)]

    def committed(self, start: int, end: int) -> Rows:
        """Return the committed records that are left."""
        return [
            (record.offset, record.value or b"")
            for batch in read_batches(self.log, start)
            if not batch.is_control
            for record in batch.records()
            if start <= record.offset < end and record.offset not in self.aborted
        ]

    def decided_end(self, start: int) -> int:
        """Return the offset of the first undecided record from `start` on."""
        undecided = [offset for offsets in self.open.values() for offset in offsets]
        return min([self.log.log_end_offset, *(each for each in undecided if each >= start)])


def by_client(log: PartitionLog, start: int) -> Rows:
    """Read with our own client, from the answers to Fetch requests."""
    positions = SubscriptionState()
    positions.assign([PARTITION])
    state = positions.state(PARTITION)
    state.move(start)
    rows: Rows = []
    limit = stable_offset(log)
    while data := log.read(state.fetch_offset, max_bytes=FETCH_BYTES, before_offset=limit):
        entries = log.aborted(state.fetch_offset, log.read_end_offset)
        ranges = [AbortedRange(each.producer_id, each.first_offset) for each in entries]
        positions.put(PARTITION, state.era, data, ranges)
        for records in positions.take(None).values():
            rows += [(record.offset, record.value or b"") for record in records]
    return rows


def by_index(log: PartitionLog, start: int) -> Rows:
    """Read with the indexes of aborted transactions, like the broker's own readers."""
    limit = stable_offset(log)
    ranges = [each.range for each in log.aborted(start, limit)]
    return read_rows(log, start, limit, AbortedBatches(ranges))


def by_view(log: PartitionLog, start: int) -> Rows:
    """Read by walking over the batches, like readers of the files."""
    view = read_committed_view(log, start, log.log_end_offset)
    return read_rows(log, start, view.end_offset, AbortedBatches(view.aborted))


def read_rows(log: PartitionLog, start: int, end: int, aborted: AbortedBatches) -> Rows:
    found: Rows = []
    while start < end and (data := log.read(start, max_bytes=FETCH_BYTES)):
        for batch in split_batches(data):
            if not batch.is_control and not aborted.hides(batch):
                found += [
                    (record.offset, record.value or b"")
                    for record in batch.records()
                    if start <= record.offset < end
                ]
            start = batch.next_offset
    return found


@given(steps=HISTORIES, begins=st.lists(st.integers(0, 200), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_every_reader_sees_the_committed_records(
    steps: list[tuple[Any, ...]], begins: list[int]
) -> None:
    history = History(new_log(config=COMPACTED)).live(steps)
    log = history.log
    for start in (0, *(begin % (log.log_end_offset + 1) for begin in begins)):
        stable = stable_offset(log)
        expected = history.committed(start, stable)
        assert committed(log, start) == expected
        assert by_client(log, start) == expected
        assert by_index(log, start) == expected
        # Readers of files know an open transaction by its records; the broker stops before it.
        assert by_view(log, start) == history.committed(start, history.decided_end(start))
        if start <= stable:
            assert by_view(log, start)[: len(expected)] == expected


@given(steps=HISTORIES, begin=st.integers(0, 200), length=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_a_partial_read_equals_that_part_of_the_whole(
    steps: list[tuple[Any, ...]], begin: int, length: int
) -> None:
    history = History(new_log(config=COMPACTED)).live(steps)
    log = history.log
    start = begin % (log.log_end_offset + 1)
    end = min(start + length, log.log_end_offset)
    view = read_committed_view(log, start, end)
    assert view.end_offset == min(end, max(history.decided_end(start), start))
    seen = read_rows(log, start, view.end_offset, AbortedBatches(view.aborted))
    assert seen == history.committed(start, view.end_offset)


def by_history(path: str, start: int, end: int) -> Rows:
    reader = StoredReader(path)
    try:
        found = reader.read(PARTITION, start, end)
        return [(r.offset, r.value or b"") for records, *_ in found for r in records]
    finally:
        reader.close()


def by_spark(path: str, start: int, end: int) -> Rows:
    log_sources = pytest.importorskip("spark_bridge.log_sources")
    options = pytest.importorskip("spark_bridge.source_options")
    asked = {
        "path": path,
        "subscribe": TOPIC,
        "startingOffsets": f'{{"{TOPIC}": {{"0": {start}}}}}',
        "endingOffsets": f'{{"{TOPIC}": {{"0": {end}}}}}',
    }
    source = log_sources.log_source(options.parse_options(asked))
    return [
        (offset, value)
        for wanted in source.plan()
        for batch in source.read(wanted, None)
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    ]


@pytest.mark.parametrize("read", [by_history, by_spark])
@given(steps=HISTORIES, begin=st.integers(0, 200))
@settings(max_examples=50, deadline=None)
def test_readers_of_the_files_agree_next_to_a_live_broker(
    read: Callable[[str, int, int], Rows], steps: list[tuple[Any, ...]], begin: int
) -> None:
    with tempfile.TemporaryDirectory() as path:
        directory = LogDirectory.open(path, config=BrokerConfig(topic=COMPACTED))
        try:
            directory.create_topic(TOPIC, 1)
            history = History(directory.log(TOPIC, 0)).live(steps)
            log = history.log
            start = begin % (log.log_end_offset + 1)
            with StoredLog(path) as stored:
                end = stored.committed(TOPIC, 0, start, log.log_end_offset).end_offset
            assert end == max(history.decided_end(start), start)
            assert read(path, start, end) == history.committed(start, end)
        finally:
            directory.close()
