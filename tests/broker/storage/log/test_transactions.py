"""Transactions in a log, compared with a model: reads of committed records, crashes, indexes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles, Tear
from streamlog.broker.storage.log.aborted_index import ABORTED_SUFFIX, decode_entries
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.producer_states import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    TRANSACTION_COORDINATOR_FENCED,
    EndedTransaction,
)
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogDirectoryError, LogError
from streamlog.records.batch import encode_batch, split_batches
from streamlog.records.control_batches import ABORT, COMMIT, Marker, marker_of
from tests.broker.storage.batches import (
    DIRECTORY,
    SMALL,
    batch,
    contents,
    log_files,
    new_log,
    overwrite,
    read_batches,
    reopened,
)

PRODUCERS = 4


def data(values: list[bytes], producer: tuple[int, int, int]) -> bytes:
    """Return a transactional batch."""
    producer_id, epoch, sequence = producer
    return encode_batch(
        [(0, b"k", value, ()) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def write(log: PartitionLog, value: bytes, producer: tuple[int, int, int]) -> int:
    """Append one record in a transaction; return its offset."""
    written = log.append(data([value], producer), now_ms=0, origin=AppendOrigin.TRANSACTION)
    return written.base_offset


def end(log: PartitionLog, producer_id: int, kind: int, *, epoch: int = 0, by: int = 0) -> int:
    """End a transaction; return the marker's offset."""
    marker = Marker(kind, by)
    return log.end_transaction(producer_id, epoch, marker, now_ms=0, wall_ms=0).base_offset


def stable_offset(log: PartitionLog) -> int:
    log.producers.transactions.settle(log.log_end_offset)
    first = log.producers.transactions.first_unstable_offset
    return log.log_end_offset if first is None else first


def committed(log: PartitionLog, offset: int = 0) -> list[tuple[int, bytes]]:
    """Return the offsets and values that a client with read_committed gets."""
    seen: list[tuple[int, bytes]] = []
    limit = stable_offset(log)
    while found := log.read(offset, max_bytes=300, before_offset=limit):
        aborted = sorted(log.aborted(offset, log.read_end_offset), key=_first_offset)
        hidden: set[int] = set()
        for each in split_batches(found):
            while aborted and aborted[0].first_offset <= each.last_offset:
                hidden.add(aborted.pop(0).producer_id)
            if each.is_control:
                marker = marker_of(each)
                if marker is not None and marker.kind == ABORT:
                    hidden.discard(each.producer_id)
            elif not (each.is_transactional and each.producer_id in hidden):
                seen += [(r.offset, r.value or b"") for r in each.records() if r.offset >= offset]
        offset = each.next_offset
    return seen


def _first_offset(decided: EndedTransaction) -> int:
    return decided.first_offset


# ---- a random history ----


class Written(NamedTuple):
    """A batch of the history: data if `kind` is None, else a marker."""

    offset: int
    next_offset: int
    producer_id: int
    values: list[bytes]
    kind: int | None = None


class Model:
    """What readers of committed records see of a history."""

    def __init__(self, history: list[Written]) -> None:
        self.open: dict[int, list[int]] = {}
        self.values: dict[int, bytes] = {}
        self.aborted: list[tuple[int, int, int]] = []
        for each in history:
            if each.kind is None:
                offsets = range(each.offset, each.next_offset)
                self.values.update(zip(offsets, each.values, strict=True))
                if each.producer_id >= 0:
                    self.open.setdefault(each.producer_id, []).extend(offsets)
                continue
            begun = self.open.pop(each.producer_id, [])
            if begun and each.kind == ABORT:
                self.aborted.append((each.producer_id, begun[0], each.offset))
                for offset in begun:
                    del self.values[offset]

    def committed(self, offset: int, end_offset: int) -> list[tuple[int, bytes]]:
        return sorted((at, value) for at, value in self.values.items() if offset <= at < end_offset)

    def stable_offset(self, end_offset: int) -> int:
        return min([end_offset, *(offsets[0] for offsets in self.open.values())])

    def overlapping(self, offset: int, end_offset: int) -> set[tuple[int, int, int]]:
        return {each for each in self.aborted if each[2] >= offset and each[1] < end_offset}


@dataclass
class History:
    """A log on a disk, and the batches that were written to it."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    written: list[Written] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    trimmed: bool = False

    def __post_init__(self) -> None:
        self.log = new_log(self.files, SMALL)

    def write(self, producer_id: int, count: int) -> None:
        values = [b"%d/%d" % (len(self.written), number) for number in range(count)]
        epoch, sequence = self.epochs.get(producer_id, 0), self.sequences.get(producer_id, 0)
        if producer_id < 0:
            sent = encode_batch([(0, None, value, ()) for value in values])
            result = self.log.append(sent, now_ms=0)
        else:
            sent = data(values, (producer_id, epoch, sequence))
            result = self.log.append(sent, now_ms=0, origin=AppendOrigin.TRANSACTION)
            self.sequences[producer_id] = sequence + count
        base, last = result.base_offset, result.last_offset
        self.written.append(Written(base, last + 1, producer_id, values))

    def end(self, producer_id: int, kind: int, *, fence: bool) -> None:
        if fence:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        at = end(self.log, producer_id, kind, epoch=self.epochs.get(producer_id, 0))
        self.written.append(Written(at, at + 1, producer_id, [], kind))

    def reopen(self, *, clean: bool = False, recovery_point: int = 0) -> None:
        self.log = PartitionLog.open(
            self.files,
            DIRECTORY,
            name="topic-0",
            config=SMALL,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=self.log.log_start_offset,
        )
        end_offset = self.log.log_end_offset
        self.written = [each for each in self.written if each.next_offset <= end_offset]
        self.sequences = {
            producer_id: known.last_sequence + 1 for producer_id, known in self.log.producers
        }
        self.epochs = {producer_id: known.epoch for producer_id, known in self.log.producers}

    def sync_sealed(self) -> None:
        """Sync the sealed segments, so that a power cut can't leave a hole, which is damage."""
        pending = self.log.begin_sync(sealed_only=True)
        if pending is not None:
            pending.run()
            self.log.end_sync(pending)

    def trim(self, chance: Random) -> None:
        self.log.advance_start(chance.randint(self.log.log_start_offset, self.log.log_end_offset))
        for path in self.log.retire():
            self.files.remove(path)
        self.trimmed = True

    def check(self, chance: Random) -> None:
        log, model = self.log, Model(self.written)
        assert log.damage == ()
        start, end_offset = log.log_start_offset, log.log_end_offset
        stable = stable_offset(log)
        if self.trimmed:
            # The state of a transaction whose records were deleted may be lost, too.
            begun = [offset for offsets in model.open.values() for offset in offsets]
            assert not [offset for offset in begun if start <= offset < stable]
        else:
            firsts = {producer_id: offsets[0] for producer_id, offsets in model.open.items()}
            assert dict(log.producers.transactions) == firsts
            assert stable == model.stable_offset(end_offset)
        for offset in {start, chance.randint(start, end_offset)}:
            assert committed(log, offset) == model.committed(offset, stable)
        begin = chance.randint(start, end_offset)
        stop = chance.randint(begin, end_offset)
        if not self.trimmed:
            found = {each[:3] for each in log.aborted(begin, stop)}
            assert found == model.overlapping(begin, stop)


def torn_by(chance: Random) -> Tear:
    def torn(durable: bytes, written: bytes) -> bytes:
        added = written[len(durable) :]
        if len(written) < len(durable) or chance.random() < 0.3:
            return durable
        return durable + added[: chance.randint(0, len(added))]

    return torn


def run_history(history: History, chance: Random, steps: int) -> None:
    for _ in range(steps):
        producer_id = chance.randrange(PRODUCERS)
        what = chance.random()
        if what < 0.5:
            history.write(producer_id, chance.randint(1, 4))
        elif what < 0.6:
            history.write(-1, chance.randint(1, 3))
        elif what < 0.9:
            kind = chance.choice([ABORT, COMMIT])
            history.end(producer_id, kind, fence=kind == ABORT and chance.random() < 0.3)
        elif what < 0.93:
            history.log.flush()
        else:
            history.check(chance)


@given(seed=st.integers(0, 2**32), trims=st.booleans())
@settings(max_examples=100, deadline=None)
def test_read_committed_returns_what_was_committed(seed: int, *, trims: bool) -> None:
    chance = Random(seed)
    history = History()
    for _ in range(chance.randint(1, 5)):
        run_history(history, chance, chance.randint(1, 60))
        if trims and chance.random() < 0.3:
            history.trim(chance)
        point = 0
        match chance.randrange(3):
            case 0:
                history.log.close()
                history.reopen(clean=True, recovery_point=history.log.log_end_offset)
            case 1:
                history.files.crash(keep_bytes=None)
                history.reopen(recovery_point=history.log.recovery_point)
            case _:
                history.sync_sealed()
                point = history.log.recovery_point
                history.files.crash(torn=torn_by(chance))
                history.reopen(recovery_point=point)
        assert history.log.log_end_offset >= point
        history.check(chance)


class PowerCut(Exception):
    """The machine has lost its power."""


class Dying(MemoryFiles):
    """A disk that raises `PowerCut` at the write or sync number `left`."""

    left = 0

    def admit(self, size_bytes: int, growth_bytes: int) -> int:
        self._step()
        return super().admit(size_bytes, growth_bytes)

    def admit_sync(self) -> None:
        self._step()
        super().admit_sync()

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise PowerCut


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_write_keeps_transactions_right(seed: int) -> None:
    step = 1
    while True:
        chance = Random(seed)
        disk = Dying()
        history = History(disk)
        disk.left = step
        try:
            run_history(history, chance, 40)
            history.log.close()
        except PowerCut:
            point = history.log.recovery_point
            disk.crash(torn=torn_by(chance))
            disk.left = 0
            history.log._closed = True
            history.reopen(recovery_point=point)
            step += 11
            if history.log.damage:
                continue  # A hole: its content is unknown.
            history.check(chance)
            run_history(history, chance, 10)
            history.check(chance)
        else:
            break


# ---- one by one ----


def test_a_transactional_batch_needs_an_open_transaction() -> None:
    log = new_log(config=SMALL)
    with pytest.raises(LogError) as caught:
        log.append(data([b"a"], (7, 0, 0)), now_ms=0)
    assert caught.value.code == INVALID_TXN_STATE
    unnumbered = encode_batch([(0, None, b"a", ())], transactional=True)
    with pytest.raises(LogError) as caught:
        log.append(unnumbered, now_ms=0, origin=AppendOrigin.TRANSACTION)
    assert caught.value.code == INVALID_TXN_STATE
    assert log.log_end_offset == 0


def test_a_repeated_batch_returns_its_first_offset() -> None:
    log = new_log(config=SMALL)
    assert write(log, b"a", (7, 0, 0)) == write(log, b"a", (7, 0, 0)) == 0
    end(log, 7, COMMIT)
    assert write(log, b"a", (7, 0, 0)) == 0
    assert log.producers.transactions.first_unstable_offset == 0
    assert stable_offset(log) == 2


def test_markers_fence_older_producers_and_coordinators() -> None:
    log = new_log(config=SMALL)
    write(log, b"a", (7, 0, 0))
    end(log, 7, ABORT, epoch=1, by=5)
    for producer in ((7, 0, 1), (7, 0, 0)):
        with pytest.raises(LogError) as caught:
            write(log, b"b", producer)
        assert caught.value.code == INVALID_PRODUCER_EPOCH
    with pytest.raises(LogError) as caught:
        end(log, 7, COMMIT, epoch=1, by=4)
    assert caught.value.code == TRANSACTION_COORDINATOR_FENCED
    assert log.log_end_offset == 2


def test_coordinator_batches_need_no_sequence_numbers() -> None:
    log = new_log(config=SMALL)
    for _ in range(2):
        log.append(data([b"a"], (7, 0, -1)), now_ms=0, origin=AppendOrigin.COORDINATOR)
    assert (log.producers.transactions.first_unstable_offset, log.log_end_offset) == (0, 2)
    with pytest.raises(LogError):
        write(log, b"a", (7, 0, -1))
    end(log, 7, COMMIT, epoch=2)
    with pytest.raises(LogError) as caught:
        log.append(data([b"a"], (7, 1, -1)), now_ms=0, origin=AppendOrigin.COORDINATOR)
    assert caught.value.code == INVALID_PRODUCER_EPOCH


def test_a_marker_takes_effect_once_it_is_synced() -> None:
    log = new_log(config=SMALL)
    write(log, b"a", (7, 0, 0))
    end(log, 7, COMMIT)
    pending = log.begin_sync()
    assert pending is not None
    log.producers.transactions.settle(log.synced.offset)
    assert log.producers.transactions.first_unstable_offset == 0
    pending.run()
    log.end_sync(pending)
    log.producers.transactions.settle(log.synced.offset)
    assert log.producers.transactions.first_unstable_offset is None


def aborted_log(files: MemoryFiles, transactions: int = 30) -> PartitionLog:
    """Return a log of several segments in which every second transaction is aborted."""
    log = new_log(files, SMALL)
    for number in range(transactions):
        write(log, b"v%d" % number, (7, 0, number))
        end(log, 7, ABORT if number % 2 else COMMIT)
    return log


def test_aborted_indexes_on_disk_equal_a_replays() -> None:
    files = MemoryFiles()
    aborted_log(files).close()
    stored = contents(files, ABORTED_SUFFIX)
    assert len(stored) > 2
    entries = [entry for path in sorted(stored) for entry in decode_entries(stored[path]) or []]
    assert [entry[:3] for entry in entries] == [(7, 2 * n, 2 * n + 1) for n in range(1, 30, 2)]
    for path in stored:
        overwrite(files, path, b"nonsense")
    log = reopened(files, config=SMALL, clean=True)
    assert len(log.aborted(0, log.log_end_offset)) == 15
    log.close()
    assert contents(files, ABORTED_SUFFIX) == stored


def test_a_missing_aborted_index_of_the_last_segment_is_rebuilt() -> None:
    files = MemoryFiles()
    log = aborted_log(files)
    log.close()
    (*_, last) = log_files(files, ABORTED_SUFFIX)
    found = log.end.aborted_entries
    assert found
    files.remove(last)
    again = PartitionLog.open(
        files, DIRECTORY, name="topic-0", config=SMALL, clean=True, end=log.end
    )
    assert len(again.aborted(0, again.log_end_offset)) == 15


def test_retired_segments_take_their_aborted_index_along() -> None:
    files = MemoryFiles()
    log = aborted_log(files)
    before = len(log_files(files, ABORTED_SUFFIX))  # the last segment's is not written yet
    log.advance_start(log.log_end_offset)
    renamed = log.retire()
    assert sum(ABORTED_SUFFIX in path for path in renamed) == before
    for path in renamed:
        files.remove(path)
    assert log.aborted(log.log_start_offset, log.log_end_offset) == []


def test_a_full_disk_loses_no_aborted_index_entry() -> None:
    files = MemoryFiles()
    log = new_log(files, SMALL)
    write(log, b"a", (7, 0, 0))
    end(log, 7, ABORT)
    segments = len(log_files(files))
    sequence = 1
    while len(log_files(files)) == segments:
        try:
            write(log, b"b" * 100, (7, 0, sequence))
        except LogDirectoryError:
            continue
        sequence += 1
        if sequence % 2:
            files.fail_next_write()
    assert [each[:3] for each in log.aborted(0, 2)] == [(7, 0, 1)]
    (path, *_) = log_files(files, ABORTED_SUFFIX)
    assert len(decode_entries(read_file(files, path)) or []) == 1


def test_plain_batches_belong_to_no_transaction() -> None:
    log = new_log(config=SMALL)
    write(log, b"a", (7, 0, 0))
    log.append(batch(), now_ms=0)
    log.append(batch(producer=(8, 0, 0)), now_ms=0)
    with pytest.raises(LogError) as caught:
        log.append(batch(producer=(7, 0, 1)), now_ms=0)
    assert caught.value.code == INVALID_TXN_STATE
    end(log, 7, ABORT)
    log.append(batch(producer=(7, 0, 1)), now_ms=0)
    assert [offset for offset, _ in committed(log)] == [1, 2, 4]
    assert len(read_batches(log)) == 5
