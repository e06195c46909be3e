"""Offset runs: a reader that moves reads each record that it has not read, and few others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.kafka.offset_runs import (
    BLOCK_RUNS,
    BLOCKS_MAX,
    KEPT_MAX,
    SYNCS_MAX,
    OffsetRun,
    OffsetRuns,
    StoredRuns,
    runs_of,
    syncs_of,
    thinned,
)

Flushes: TypeAlias = Sequence[Sequence[int]]
"""The gaps before each record of each flush."""
FLUSHES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12)


@dataclass
class Mirrored:
    """A partition, record by record: its offsets here and there."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    flushes: list[list[tuple[int, int]]] = field(default_factory=list)
    end: int = 0
    """The position of the mirror here."""

    @classmethod
    def of(cls, flushes: Flushes, begin_there: int = 0) -> Mirrored:
        found = cls()
        here, there = 0, begin_there
        for gaps in flushes:
            flush = []
            for gap in gaps:
                here += gap
                flush.append((here, there))
                here, there = here + 1, there + 1
            # The marker of the transaction.
            there += 1
            found.flushes.append(flush)
            found.pairs += flush
        found.end = here
        return found

    def runs(self) -> OffsetRuns:
        runs = OffsetRuns()
        for flush in self.flushes:
            runs = runs.with_more(runs_of_flush(flush))
        return runs

    def all_runs(self) -> list[OffsetRun]:
        return [run for flush in self.flushes for run in runs_of_flush(flush)]

    def unread(self, committed: int) -> list[int]:
        return [here for here, _ in self.pairs if here >= committed]

    def read_from(self, there: int) -> list[int]:
        return [here for here, at in self.pairs if at >= there]


def runs_of_flush(flush: Sequence[tuple[int, int]]) -> list[OffsetRun]:
    return runs_of([here for here, _ in flush], flush[0][1], flush[-1][1])


@given(FLUSHES, st.data())
def test_a_reader_continues_with_its_next_record(flushes: Flushes, data: st.DataObject) -> None:
    mirrored = Mirrored.of(flushes)
    committed = data.draw(st.integers(0, mirrored.end + 3))
    there = mirrored.runs().translated(committed)
    if not flushes:
        assert there is None
        return
    assert there is not None
    assert mirrored.read_from(there) == mirrored.unread(committed)


@given(FLUSHES, st.integers(1, 9), st.data())
def test_what_is_forgotten_is_read_again_and_never_passed_over(
    flushes: Flushes, begin_there: int, data: st.DataObject
) -> None:
    mirrored = Mirrored.of(flushes, begin_there)
    kept = thinned(mirrored.all_runs(), data.draw(st.integers(2, 8)))
    committed = data.draw(st.integers(0, mirrored.end + 3))
    there = OffsetRuns(kept).translated(committed)
    if there is None:
        # Others have written before the mirror's first record: what they wrote is not known here.
        assert not mirrored.pairs or committed < mirrored.pairs[0][0]
        return
    read, unread = mirrored.read_from(there), mirrored.unread(committed)
    assert read[len(read) - len(unread) :] == unread


@given(FLUSHES, st.data())
def test_the_pairs_for_others_lead_past_nothing(flushes: Flushes, data: st.DataObject) -> None:
    mirrored = Mirrored.of(flushes)
    pairs: list[tuple[int, int]] = []
    for flush in mirrored.flushes:
        pairs += syncs_of(runs_of([here for here, _ in flush], flush[0][1], flush[-1][1]))
    assert {*pairs} <= {*mirrored.pairs}
    committed = data.draw(st.integers(0, mirrored.end + 3))
    before = [pair for pair in pairs if pair[0] <= committed]
    if before:
        # As OffsetSyncStore does it, with the last pair at or before the offset.
        here, there = before[-1]
        there += here != committed
        read, unread = mirrored.read_from(there), mirrored.unread(committed)
        assert read[len(read) - len(unread) :] == unread
        if committed == mirrored.end:
            assert read == []


def test_others_that_write_the_topic_come_between() -> None:
    assert runs_of([5, 6, 7], 20, 24) == [OffsetRun(5, 20, 1), OffsetRun(7, 24, 1)]
    runs = OffsetRuns(runs_of([5, 6, 7], 20, 24))
    assert [runs.translated(each) for each in range(4, 10)] == [None, 20, 21, 24, 25, 25]


def test_a_position_that_was_set_back_begins_anew() -> None:
    runs = OffsetRuns().with_more([OffsetRun(0, 0, 10)]).with_more([OffsetRun(4, 11, 2)])
    assert [runs.translated(each) for each in (3, 4, 5, 9)] == [None, 11, 12, 13]
    # The target's topic was deleted and created again: there is nothing before its first record.
    again = runs.with_more([OffsetRun(6, 0, 2)])
    assert [again.translated(each) for each in (5, 7)] == [0, 1]


def test_bounds() -> None:
    runs = OffsetRuns()
    for number in range(3 * KEPT_MAX):
        runs = runs.with_more([OffsetRun(2 * number, number, 1)])
        assert len(runs) <= KEPT_MAX
    # The newer half is whole.
    for number in range(3 * KEPT_MAX - KEPT_MAX // 4, 3 * KEPT_MAX):
        assert runs.translated(2 * number) == number
    assert BLOCKS_MAX * BLOCK_RUNS + BLOCK_RUNS - 1 <= KEPT_MAX
    assert len(syncs_of([OffsetRun(2 * at, at, 1) for at in range(1_000)])) == SYNCS_MAX
    assert runs_of([], 0, 0) == runs_of([4], -1, -1) == []


@given(st.lists(st.integers(1, 200), max_size=40))
def test_what_is_stored_is_the_newest(sizes: list[int]) -> None:
    runs = [OffsetRun(2 * at, at, 1) for at in range(sum(sizes))]
    stored, slots, left = StoredRuns(), dict[int, tuple[int, Sequence[OffsetRun]]](), iter(runs)
    for size in sizes:
        stored, blocks = stored.with_more([next(left) for _ in range(size)])
        slots |= {number % BLOCKS_MAX: (number, block) for number, block in blocks.items()}
    # Each block is still in its slot, and all of them lead up to the tail without a gap.
    assert [slots[number % BLOCKS_MAX][0] for number in stored.numbers()] == [*stored.numbers()]
    found = [run for at in stored.numbers() for run in slots[at % BLOCKS_MAX][1]]
    whole = [*found, *stored.tail]
    assert whole == runs[len(runs) - len(whole) :]
    assert len(whole) >= min(len(runs), BLOCKS_MAX * BLOCK_RUNS)
    assert len(stored.tail) < BLOCK_RUNS
