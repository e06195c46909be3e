"""The reader of a mirror partition, against a source that is written as a list of batches.

The source here has its own definition: batches of one epoch each, the comparison of KIP-320 as the
KIP states it, elections that lose nothing or lose a tail, a trimmed head, and batches that
compaction has removed. The law: once everything is read, the mirror is the source.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from streamlog.broker.replication.mirror_reader import (
    AskAlone,
    AskCut,
    AskEnds,
    CopiedBatches,
    MirrorEffect,
    MirrorReader,
    RaiseEpoch,
    SourceFetch,
    StopMirror,
    parse_source_batches,
)
from streamlog.broker.replication.replica_state import (
    NO_EPOCH,
    AdvanceLogStart,
    AppendBatches,
    Diverging,
    ReplicaLog,
    StartAt,
    Truncate,
)
from streamlog.errors import CorruptData
from streamlog.records.batch import encode_batch, set_offset_and_epoch, split_batches

SEEDS = 1_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 40


class Written(NamedTuple):
    """A batch of the source."""

    base_offset: int
    next_offset: int
    epoch: int
    data: bytes


@dataclass
class Source:
    """A partition of another cluster."""

    random: Random
    batches: list[Written] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    start: int = 0
    end: int = 0

    def produce(self) -> None:
        """Append a batch of one to three records in the current epoch."""
        count, epoch = self.random.randint(1, 3), self.epochs[-1][0]
        text = b"%d" % self.random.randrange(10**9)
        data = bytearray(encode_batch([(0, None, text, ())] * count))
        set_offset_and_epoch(data, self.end, epoch)
        self.batches.append(Written(self.end, self.end + count, epoch, bytes(data)))
        self.end += count

    def elect(self, end: int) -> None:
        """Elect a leader whose log ends at `end`, which is a boundary of batches."""
        self.batches = [each for each in self.batches if each.next_offset <= end]
        epoch = self.epochs[-1][0] + self.random.randint(1, 3)
        self.epochs = [each for each in self.epochs if each[1] < end]
        self.epochs.append((epoch, end))
        self.end = end
        self.start = min(self.start, end)

    def ends(self) -> list[int]:
        """Return the offsets at which the log could be cut."""
        return [each for each in (b.base_offset for b in self.batches) if each >= self.start]

    def trim(self) -> None:
        """Delete the head, up to a random offset."""
        self.start = self.random.randint(self.start, self.end)
        self.batches = [each for each in self.batches if each.next_offset > self.start]

    def compact(self) -> None:
        """Remove a batch that is not the last one."""
        if len(self.batches) > 1:
            del self.batches[self.random.randrange(len(self.batches) - 1)]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch`, and where the next one begins (KIP-320)."""
        known = [each for each, _ in self.epochs if each <= epoch]
        after = [start for each, start in self.epochs if each > epoch]
        return (max(known) if known else epoch), max(min(after, default=self.end), self.start)

    def fetch(self, offset: int, last_epoch: int) -> bytes | Diverging | None:
        """Return batches, a divergence, or None for an offset that is out of range."""
        if last_epoch != NO_EPOCH:
            epoch, end = self.end_of(last_epoch)
            if epoch < last_epoch or end < offset:
                return Diverging(epoch, end)
        if not self.start <= offset <= self.end:
            return None
        data = b"".join(each.data for each in self.batches if each.next_offset > offset)
        return data[: self.random.randint(61, 400)]


@dataclass
class LeaderDouble:
    """The leader of a mirror partition, as its reader sees it."""

    epoch: int
    epoch_start: int = 0
    is_alone: bool = True
    admits: bool = False
    cuts: list[int] = field(default_factory=list)

    def on_cut(self, offset: int) -> None:
        """See `CutLeader`."""
        self.cuts.append(offset)

    def admit_others(self) -> None:
        """See `CutLeader`."""
        self.admits = True


class Epochs:
    """The epochs of the mirror's batches."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror

    def at(self, offset: int) -> int:
        """See `Epochs`."""
        found = [e for b, e, _ in self.mirror.batches if b <= offset]
        return max(found, default=0)

    def start_after(self, epoch: int) -> int | None:
        """See `Epochs`."""
        return min((b for b, e, _ in self.mirror.batches if e > epoch), default=None)


class Mirror:
    """A mirror partition: its log, and the controller that begins its epochs."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.batches: list[tuple[int, int, bytes]] = []
        self.log = ReplicaLog(
            epochs=Epochs(self), start_offset=0, end_offset=0, flushed_offset=0, high_watermark=0
        )
        self.reader = MirrorReader(LeaderDouble(0), self.log)
        self.epoch = 0

    def step(self) -> None:
        """Fetch once, and perform what the reader says."""
        fetch = self.reader.next_fetch()
        assert fetch is not None
        answer = self.source.fetch(fetch.offset, fetch.last_epoch)
        self.perform(self.effects(fetch, answer), answer)
        # Everything counts as committed at once: the hardest case for cuts.
        self.log.high_watermark = self.log.flushed_offset = self.log.end_offset

    def effects(self, fetch: SourceFetch, answer: bytes | Diverging | None) -> list[MirrorEffect]:
        """Give the reader the source's answer."""
        if answer is None:
            return self.reader.on_out_of_range(fetch.number)
        if isinstance(answer, Diverging):
            return self.reader.on_diverging(fetch.number, answer)
        return self.reader.on_fetched(
            fetch.number,
            parse_source_batches(answer, fetch.offset),
            high_watermark=self.source.end,
            log_start=self.source.start,
        )

    def perform(self, effects: list[MirrorEffect], answer: bytes | Diverging | None) -> None:
        """Perform effects, as the shell and the controller do."""
        for effect in effects:
            match effect:
                case AppendBatches(end_offset):
                    assert isinstance(answer, bytes)
                    came = parse_source_batches(answer, self.log.end_offset)
                    for each in split_batches(bytes(came.records)):
                        self.batches.append((each.base_offset, each.leader_epoch, bytes(each.data)))
                    self.log.end_offset = end_offset
                case Truncate(offset):
                    # A log ends with a whole batch, so a cut within one removes it.
                    self.batches = [each for each in self.batches if next_of(each) <= offset]
                    end = max(map(next_of, self.batches), default=self.log.start_offset)
                    self.log.end_offset = self.log.flushed_offset = min(end, offset)
                case StartAt():
                    self.batches = []
                case AdvanceLogStart():
                    pass
                case _:
                    self.decide(effect)

    def decide(self, effect: MirrorEffect) -> None:
        """Answer as the controller and the source do."""
        match effect:
            case RaiseEpoch(epoch):
                self.epoch = epoch
                self.reader = MirrorReader(LeaderDouble(epoch), self.log)
            case AskCut(offset):
                assert offset < self.log.high_watermark
                self.epoch += 1
                leader = LeaderDouble(self.epoch)
                self.reader = MirrorReader(leader, self.log, may_cut=True)
            case AskEnds():
                self.perform(self.reader.on_ends(self.source.start, self.source.end), None)
            case _:
                pytest.fail(str(effect))

    def records(self) -> list[tuple[int, int, bytes | None]]:
        """Return offset, epoch and value of each record from the start of the log on."""
        return records_of([data for _, _, data in self.batches], self.log.start_offset)


def next_of(batch: tuple[int, int, bytes]) -> int:
    return next(split_batches(batch[2])).next_offset


def records_of(batches: list[bytes], start: int) -> list[tuple[int, int, bytes | None]]:
    return [
        (record.offset, batch.leader_epoch, record.value)
        for data in batches
        for batch in split_batches(data)
        for record in batch.records()
        if record.offset >= start
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_mirror_that_has_read_everything_is_its_source(seed: int) -> None:
    random = Random(seed)
    source = Source(random)
    mirror = Mirror(source)
    for _ in range(150):
        match random.randrange(12):
            case 0:
                source.elect(source.end)
            case 1 if source.ends():
                source.elect(random.choice(source.ends()))
            case 2:
                source.trim()
            case 3:
                source.compact()
            case each if each < 8:
                source.produce()
            case _:
                mirror.step()
    source.produce()  # An epoch without a batch is not known to readers.
    for _ in range(400):
        mirror.step()
    assert mirror.log.end_offset == source.end
    expected = records_of([each.data for each in source.batches], mirror.log.start_offset)
    # Compaction of the source after the mirror has read: the mirror may have more, never other
    # records.
    found = mirror.records()
    assert [each for each in found if each in set(expected)] == expected
    assert mirror.log.start_offset >= source.start or not source.batches
    assert mirror.reader.lag == 0


def new_log(*, end: int, committed: int) -> ReplicaLog:
    mirror = Mirror(Source(Random(0)))
    mirror.batches = [(0, 3, b"")]
    mirror.log.end_offset = mirror.log.flushed_offset = end
    mirror.log.high_watermark = committed
    return mirror.log


def new_reader(*, end: int = 10, committed: int = 10, floor: int = 0) -> MirrorReader:
    return MirrorReader(LeaderDouble(5), new_log(end=end, committed=committed), floor=floor)


def test_one_fetch_is_open_at_a_time_and_an_old_answer_does_not_count() -> None:
    reader = new_reader()
    fetch = reader.next_fetch()
    assert fetch == SourceFetch(number=1, offset=10, last_epoch=3)
    assert reader.next_fetch() is None
    reader.on_failed(0)
    assert reader.next_fetch() is None
    reader.on_failed(1)
    again = reader.next_fetch()
    assert again is not None
    assert again.number == 2
    came = CopiedBatches(records=b"x", end_offset=12, last_epoch=3)
    assert reader.on_fetched(1, came, high_watermark=12, log_start=0) == []
    assert reader.on_fetched(2, came, high_watermark=12, log_start=0) == [AppendBatches(12)]


def test_a_batch_of_a_higher_epoch_waits_for_the_leader_epoch_here() -> None:
    reader = new_reader()
    reader.next_fetch()
    came = CopiedBatches(records=b"x", end_offset=12, last_epoch=6)
    assert reader.on_fetched(1, came, high_watermark=12, log_start=0) == [RaiseEpoch(6)]
    assert reader.next_fetch() is None


def test_committed_records_are_cut_only_in_an_epoch_for_the_cut() -> None:
    reader = new_reader()
    reader.next_fetch()
    assert reader.on_diverging(1, Diverging(3, 7)) == [AskCut(7)]
    assert reader.next_fetch() is None
    uncommitted = new_reader(committed=7)
    uncommitted.next_fetch()
    assert uncommitted.on_diverging(1, Diverging(3, 7)) == [Truncate(7)]


def test_what_an_epoch_for_a_cut_has_committed_itself_takes_another_one() -> None:
    """Life 1200 of the simulation: followers refuse a second cut in the epoch of the first."""
    for epoch, expected in ((3, [AskCut(7)]), (4, [Truncate(7)])):
        reader = MirrorReader(LeaderDouble(epoch), new_log(end=10, committed=10), may_cut=True)
        reader.next_fetch()
        assert reader.on_diverging(1, Diverging(3, 7)) == expected


def test_the_head_is_deleted_as_far_as_records_are_committed_here() -> None:
    """Life 2407 of the simulation: a leader deleted what its followers did not have yet."""
    reader = new_reader(committed=6)
    nothing = CopiedBatches(records=b"", end_offset=10)
    for number, (start, expected) in enumerate(
        ((4, [AdvanceLogStart(4)]), (9, [AdvanceLogStart(6)]), (9, [])), 1
    ):
        reader.next_fetch()
        assert reader.on_fetched(number, nothing, high_watermark=12, log_start=start) == expected


def test_a_log_that_diverges_or_is_longer_than_the_source_s_has_no_lag() -> None:
    """A promotion that waits for lag 0 must not take a longer log for a complete one."""
    reader = new_reader(committed=7)
    assert reader.lag is None
    reader.next_fetch()
    reader.on_fetched(1, CopiedBatches(records=b"", end_offset=10), high_watermark=12, log_start=0)
    assert reader.lag == 2
    reader.next_fetch()
    reader.on_diverging(2, Diverging(3, 7))
    assert reader.lag is None
    reader.on_ends(0, 5)
    assert reader.lag is None
    reader.on_ends(0, 9)
    assert reader.lag == 2


def test_a_log_begins_anew_beyond_its_end_only_where_no_other_replica_may_lead() -> None:
    """Else one that ends lower could be elected, and lack what is readable here."""
    nothing = CopiedBatches(records=b"", end_offset=10)
    for is_alone, expected in ((False, [AskAlone(84)]), (True, [StartAt(84)])):
        leader = LeaderDouble(5, is_alone=is_alone)
        reader = MirrorReader(leader, new_log(end=10, committed=10))
        reader.next_fetch()
        assert reader.on_fetched(1, nothing, high_watermark=90, log_start=84) == expected
        assert (reader.next_fetch() is None) == (not is_alone)
        # Before that, a replica that ends lower must not join.
        assert leader.admits == is_alone
    # All replicas that may lead have what is committed, and lose nothing if it goes.
    reader = MirrorReader(LeaderDouble(5, is_alone=False), new_log(end=10, committed=10))
    reader.next_fetch()
    assert reader.on_fetched(1, nothing, high_watermark=90, log_start=10) == [StartAt(10)]


def test_what_a_leader_began_with_counts_as_committed() -> None:
    """Life 201 of the simulation: followers knew the high watermark, their leader did not."""
    log = new_log(end=10, committed=3)
    reader = MirrorReader(LeaderDouble(5, epoch_start=8), log)
    reader.next_fetch()
    assert reader.on_diverging(1, Diverging(3, 7)) == [AskCut(7)]
    beyond = MirrorReader(LeaderDouble(5, epoch_start=7), new_log(end=10, committed=3))
    beyond.next_fetch()
    assert beyond.on_diverging(1, Diverging(3, 7)) == [Truncate(7)]


def test_records_from_before_the_source_led_are_never_cut() -> None:
    reader = new_reader(floor=8)
    reader.next_fetch()
    (effect,) = reader.on_diverging(1, Diverging(3, 7))
    assert isinstance(effect, StopMirror)
    assert "offset 7" in effect.reason
    assert "below offset 8" in effect.reason
    assert reader.stopped == effect.reason
    assert reader.next_fetch() is None


def test_batches_that_overlap_are_refused() -> None:
    data = bytearray(encode_batch([(0, None, b"v", ())]))
    set_offset_and_epoch(data, 5, 3)
    with pytest.raises(CorruptData, match="begins at offset 5, where 6 was due"):
        parse_source_batches(bytes(data) + bytes(data), 5)


def test_a_gap_becomes_an_empty_batch_of_the_epoch_after_it() -> None:
    data = bytearray(encode_batch([(0, None, b"v", ())]))
    set_offset_and_epoch(data, 9, 3)
    came = parse_source_batches(bytes(data), 5)
    found = list(split_batches(bytes(came.records)))
    assert [(b.base_offset, b.next_offset, b.record_count) for b in found] == [
        (5, 9, 0),
        (9, 10, 1),
    ]
    assert (found[0].leader_epoch, came.end_offset, came.last_epoch) == (3, 10, 3)
