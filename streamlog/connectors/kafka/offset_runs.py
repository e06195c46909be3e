"""Offset runs: where a partition's records are in another cluster, which gave them new offsets.

Records that follow each other on both sides are one run. A transaction's marker on either side ends
a run, and so does an aborted record or one that compaction has removed. A translated offset never
passes a record that was not read: the end of the run before a forgotten run stands for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

KEPT_MAX: Final = 1_024
"""The runs of one partition that are in memory: as many flushes, if the source has no gaps."""
BLOCK_RUNS: Final = 64
"""The runs that are stored together once there are so many; those after them are stored with each
position."""
BLOCKS_MAX: Final = 15
"""The blocks of a partition that stay stored: with the runs after them, `KEPT_MAX` at most."""
SYNCS_MAX: Final = 64
"""The pairs of one flush that are written for others: `OffsetSyncStore` keeps 64 of a partition."""


class OffsetRun(NamedTuple):
    """Records that lie side by side in both clusters."""

    upstream: int
    """The offset of the first one in the source."""
    downstream: int
    """Its offset in the target."""
    length: int


class OffsetRuns:
    """What is known of one partition, oldest first."""

    def __init__(self, runs: Iterable[OffsetRun] = ()) -> None:
        self._runs = [*runs]

    def with_more(self, added: Iterable[OffsetRun]) -> OffsetRuns:
        """Return these runs and those that follow; this object stays as it is."""
        more = OffsetRuns(self._runs)
        for each in added:
            more._add(each)
        if len(more._runs) > KEPT_MAX:
            more._runs = thinned(more._runs, KEPT_MAX)
        return more

    def _add(self, run: OffsetRun) -> None:
        if self._runs:
            last = self._runs[-1]
            # An operator has set the position back, or the target's topic was created again: what
            # was known is of other records.
            if run.upstream < last.upstream + last.length or run.downstream <= last.downstream:
                self._runs = []
            elif run[:2] == (last.upstream + last.length, last.downstream + last.length):
                self._runs[-1] = last._replace(length=last.length + run.length)
                return
        self._runs.append(run)

    def translated(self, upstream: int) -> int | None:
        """Return the offset in the target at which a reader at an offset of the source continues.

        The reader has read all records before that offset. None if no such offset is known.
        """
        at = bisect_right(self._runs, upstream, key=lambda run: run.upstream) - 1
        if at < 0:
            # Before the first record that was mirrored. If nothing lies before that one in the
            # target, the reader has it all before it.
            return 0 if self._runs and self._runs[0].downstream == 0 else None
        run = self._runs[at]
        # Behind the last record of a run lie only offsets without records, or forgotten runs.
        return run.downstream + min(upstream - run.upstream, run.length)

    def downstream_of(self, upstream: int) -> int | None:
        """Return the offset in the target of a record of the source; None if it is not known."""
        at = bisect_right(self._runs, upstream, key=lambda run: run.upstream) - 1
        if at < 0 or upstream >= self._runs[at].upstream + self._runs[at].length:
            return None
        return self._runs[at].downstream + upstream - self._runs[at].upstream

    def oldest_pair(self, upstream: int, downstream: int) -> tuple[int, int] | None:
        """Return the two offsets of the first record at or behind these; None if there is none."""
        for run in self._runs:
            skipped = max(upstream - run.upstream, downstream - run.downstream, 0)
            if skipped < run.length:
                return run.upstream + skipped, run.downstream + skipped
        return None

    @property
    def end(self) -> int:
        """The offset in the target behind the last record that is known; 0 without one."""
        return self._runs[-1].downstream + self._runs[-1].length if self._runs else 0

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)


class StoredRuns(NamedTuple):
    """What is stored of a partition: each run at most twice, however long the history is."""

    blocks: int = 0
    """How many blocks were stored since the beginning; the last `BLOCKS_MAX` of them count."""
    tail: tuple[OffsetRun, ...] = ()
    """The runs after the last block."""

    def with_more(
        self, added: Sequence[OffsetRun]
    ) -> tuple[StoredRuns, dict[int, tuple[OffsetRun, ...]]]:
        """Return what to store next, and the blocks that are now full, by their numbers."""
        tail = (*self.tail, *added)
        whole = len(tail) // BLOCK_RUNS
        blocks = {
            self.blocks + at: tail[at * BLOCK_RUNS : (at + 1) * BLOCK_RUNS]
            # Of a flush with thousands of gaps, the first ones would be overwritten at once.
            for at in range(max(whole - BLOCKS_MAX, 0), whole)
        }
        return StoredRuns(self.blocks + whole, tail[whole * BLOCK_RUNS :]), blocks

    def numbers(self) -> range:
        """Return the numbers of the blocks that are stored."""
        return range(max(self.blocks - BLOCKS_MAX, 0), self.blocks)


def thinned(runs: Sequence[OffsetRun], most: int) -> list[OffsetRun]:
    """Thin out runs to a maximum: keep the first, the newer half, and ever fewer older ones.

    `most` is 2 or more.
    """
    kept = [*runs]
    while len(kept) > most:
        half = (len(kept) + 1) // 2
        # Each time this leaves out every second one, so that distances double with the age.
        kept = kept[:half:2] + kept[half:]
    return kept


def runs_of(offsets: Sequence[int], first: int, last: int) -> list[OffsetRun]:
    """Return the runs of records that were sent together.

    Args:
        offsets: their offsets in the source.
        first: the target's offset of the first one.
        last: the target's offset of the last one.
    """
    # A broker may no longer know where a batch is that was sent to it twice.
    if not offsets or first < 0 or last < first:
        return []
    if last - first != len(offsets) - 1:
        # Someone else writes the topic, too, and has come between: only these two are certain.
        return [OffsetRun(offsets[0], first, 1), OffsetRun(offsets[-1], last, 1)]
    found: list[OffsetRun] = []
    start = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            found.append(OffsetRun(offsets[start], first + start, at - start))
            start = at
    return found


def syncs_of(runs: Sequence[OffsetRun]) -> list[tuple[int, int]]:
    """Return the pairs of offsets that let others translate as well as they can.

    A reader of offset syncs knows, of an offset behind a pair, only that the pair itself was read:
    the first record of a run tells the gap before it, and the last one of a flush its end.
    """
    pairs = [(run.upstream, run.downstream) for run in runs]
    if runs and runs[-1].length > 1:
        upstream, downstream, length = runs[-1]
        pairs.append((upstream + length - 1, downstream + length - 1))
    return pairs[-SYNCS_MAX:]
