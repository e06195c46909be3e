"""MirrorReader: how the leader of a mirror partition copies its source.

The source is the leader of a partition in another cluster. Pure: events in, effects out. The
reader lives beside `Leader`, for one leader epoch of this cluster. Batches keep their offsets and
their leader epochs, so both logs share one history of leader epochs, and the comparison of KIP-101
and KIP-320 holds between clusters as it does within one. Followers here, and a cluster that fails
back later, compare by the same history.

Rules of this module:

- The leader epoch here is never below that of a batch. A Java client that has read a batch of epoch
  7 takes metadata with epoch 5 for outdated. So before the first batch of a higher epoch the
  reader asks the controller to raise the leader epoch.
- Committed records are cut only in a leader epoch that the controller has begun for this cut. The
  source loses committed records only by an unclean election.
- A log begins anew beyond its end only while no other replica can be elected. Otherwise one that
  ends lower could lead, and would lack what is readable here.
- Nothing is cut below `floor`, where the era of the source begins: those records are older than the
  source's leadership, so a source that lacks them has lost them.
- Records from `ceiling_epoch` on are cut without a comparison: the source counts in lower epochs,
  and refuses to compare with one that it does not know.

Not done here: the commit of what is copied (`leader_replica`), requests to the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from streamlog.broker.replication.replica_state import (
    NO_EPOCH,
    AdvanceLogStart,
    AppendBatches,
    Diverging,
    ReplicaLog,
    StartAt,
    Truncate,
)
from streamlog.broker.storage.compaction.cleaned_batch import filler
from streamlog.errors import CorruptData
from streamlog.records.batch import split_batches

if TYPE_CHECKING:
    from streamlog.protocol.schema import Buffer


class RaiseEpoch(msgspec.Struct, frozen=True):
    """Ask the controller for a leader epoch of at least `epoch`."""

    epoch: int


class AskCut(msgspec.Struct, frozen=True):
    """Ask the controller for a leader epoch in which committed records from `offset` on may go."""

    offset: int


class AskAlone(msgspec.Struct, frozen=True):
    """Ask the controller for a leader epoch in which no other replica may be elected.

    This log will begin anew at `offset`, and other replicas end lower.
    """

    offset: int


class KeepRecords(msgspec.Struct, frozen=True):
    """Keep the records from `offset` on in a file, for `MirrorReader.on_kept`: they will be cut."""

    offset: int
    is_deleted: bool = False
    """Whether the source has deleted these offsets: then only a log that leaders of this cluster
    have written before may have records here that the source never had."""


class AskEnds(msgspec.Struct, frozen=True):
    """Ask the source where its log starts and ends, for `MirrorReader.on_ends`."""


class StopMirror(msgspec.Struct, frozen=True):
    """Stop copying and report why: the source contradicts what may not be cut here."""

    reason: str


MirrorEffect: TypeAlias = (
    AppendBatches
    | AdvanceLogStart
    | Truncate
    | StartAt
    | RaiseEpoch
    | AskCut
    | AskAlone
    | KeepRecords
    | AskEnds
    | StopMirror
)


class SourceFetch(msgspec.Struct, frozen=True, kw_only=True):
    """A fetch from the source's leader."""

    number: int
    offset: int
    last_epoch: int
    """The leader epoch of the record before `offset`; `NO_EPOCH` of an empty log."""


class CopiedBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of the source that follow this log without a gap."""

    records: Buffer
    end_offset: int
    last_epoch: int = NO_EPOCH
    """The highest leader epoch in the batches; `NO_EPOCH` without batches."""
    begin_offset: int | None = None
    """The first batch's base offset, if it begins before the end of this log: the source's log
    starts within a batch, and an empty log begins with the whole batch."""


def parse_source_batches(data: Buffer, offset: int) -> CopiedBatches:
    """Return the batches in `data` for a log that ends at `offset`.

    Apache Kafka leaves gaps between batches where compaction has removed whole batches. Here an
    empty batch spans such a gap, with the leader epoch of the batch after it: an epoch that seems
    to begin early costs a cut a few offsets without records, one that seems to begin late would
    look like a divergence.

    A batch that is cut off at the end of `data` is left out, because a response is limited in
    size. The first batch may begin before `offset`, see `CopiedBatches.begin_offset`.

    Args:
        data: record batches of a fetch response.
        offset: the end of the mirror's log.

    Raises:
        CorruptData: a batch begins before the end of the one before it. The log checks the CRC
            when it appends.
    """
    begin_offset: int | None = None
    view = memoryview(data)
    pieces: list[Buffer] = []
    # The source's bytes go into the log as they came, without a copy; `kept` is where those begin
    # that are not in `pieces` yet.
    kept = position = 0
    due, last_epoch = offset, NO_EPOCH
    for batch in split_batches(view):
        following = position + batch.size_bytes
        if position == 0 and batch.base_offset < offset < batch.next_offset:
            if batch.record_count == 0:
                pieces.append(filler(offset, batch.last_offset, batch.leader_epoch))
                kept = following
            else:
                begin_offset = batch.base_offset
        elif batch.base_offset > due:
            pieces += (view[kept:position], filler(due, batch.base_offset - 1, batch.leader_epoch))
            kept = position
        elif batch.base_offset < due:
            raise CorruptData(
                f"the source sent a batch that begins at offset {batch.base_offset}, where {due}"
                " was due"
            )
        position = following
        due, last_epoch = batch.next_offset, max(last_epoch, batch.leader_epoch)
    whole = view[kept:position]
    return CopiedBatches(
        records=b"".join((*pieces, whole)) if pieces else whole,
        end_offset=due,
        last_epoch=last_epoch,
        begin_offset=begin_offset,
    )


class CutLeader(Protocol):
    """The part of `Leader` that a reader needs."""

    epoch: int
    """The leader epoch of this cluster."""
    epoch_start: int
    """Where the log ended when the epoch began, or where it was cut since."""
    is_alone: bool
    """Whether no other replica may be elected."""

    def on_cut(self, offset: int) -> None:
        """Note that the log ends at `offset` from now on."""
        ...

    def admit_others(self) -> None:
        """Note that the log need not begin anew, so that other replicas may join."""
        ...


class MirrorReader:
    """The reader of one mirror partition, in one leader epoch.

    Args:
        leader: the leader of the partition, in the same leader epoch.
        log: the offsets of the log, which the leader and the shell change too.
        may_cut: whether the controller has begun this epoch for a cut.
        floor: the offset below which nothing is cut.
        ceiling_epoch: the leader epoch from which on no record is the source's.
        keeps_cut: whether records have to be kept in a file before they are cut.
        is_compared: whether the log is known to be the source's up to its end, or to a divergence
            that the source tells of.
    """

    def __init__(
        self,
        leader: CutLeader,
        log: ReplicaLog,
        *,
        may_cut: bool = False,
        floor: int = 0,
        ceiling_epoch: int = NO_EPOCH,
        keeps_cut: bool = False,
        is_compared: bool = True,
    ) -> None:
        self.stopped: str | None = None
        """Why the reader has stopped; None while it reads."""
        self.source_end = -1
        """The source's high watermark as of the last answer; -1 before the first one in this epoch
        and after a divergence: an end alone does not tell how much is missing."""
        self._leader = leader
        self._log = log
        self._may_cut = may_cut
        self._floor = floor
        self._ceiling_epoch = ceiling_epoch
        self._number = 0
        self._open: SourceFetch | None = None
        self._keeps_cut = keeps_cut
        self._is_compared = is_compared
        self._kept_from: int | None = None
        """From where on the log's records are in a file."""
        self._waits = False
        """Whether something has to happen before the next fetch."""

    @property
    def epoch(self) -> int:
        """The leader epoch of this cluster."""
        return self._leader.epoch

    @property
    def lag(self) -> int | None:
        """The number of offsets that the source has and this log has not; None if not known."""
        return None if self.source_end < 0 else max(0, self.source_end - self._log.end_offset)

    def next_fetch(self) -> SourceFetch | None:
        """Return the next fetch; None while one is open, or while the reader waits or is stopped.

        A fetch confirms nothing to the source, so the reader need not wait for its own disk.
        """
        if self._open is not None or self._waits or self.stopped is not None:
            return None
        self._number += 1
        self._open = SourceFetch(
            number=self._number, offset=self._log.end_offset, last_epoch=self._log.last_epoch
        )
        return self._open

    def on_failed(self, number: int) -> None:
        """Allow the next fetch: this one was refused, or its answer is lost."""
        if self._open is not None and self._open.number == number:
            self._open = None

    def on_fetched(
        self, number: int, came: CopiedBatches, *, high_watermark: int, log_start: int
    ) -> list[MirrorEffect]:
        """Handle an answer of the source, with or without batches.

        `high_watermark` and `log_start` are those of the source.
        """
        if not self._take(number):
            return []
        if (strays := self._strays()) is not None:
            return self._permitted(strays) or self._cut(strays)
        log = self._log
        self.source_end = high_watermark
        # Also where it starts just here: 1. The source has lost 30 and 31 and has others in their
        # place. 2. It deletes its records below 32. 3. Nothing there tells any more that the 30 and
        # 31 in this log are not the source's, and a batch from 30 to 33 is due.
        is_empty = log.end_offset == log.start_offset
        if log_start > log.end_offset or (log_start == log.end_offset and not is_empty):
            return self._start_at(log_start)
        self._is_compared = True
        self._leader.admit_others()
        if came.begin_offset is not None and not is_empty:
            return self._stop(
                f"the source has a batch from offset {came.begin_offset} on, and this log ends"
                f" within it, at {log.end_offset}: their records differ below"
            )
        if came.last_epoch > self._leader.epoch:
            # The batches are fetched again in the new epoch: leaders change rarely.
            self._waits = True
            return [RaiseEpoch(came.last_epoch)]
        effects: list[MirrorEffect] = []
        if came.begin_offset is not None:
            effects += self._start_at(came.begin_offset)
        if came.end_offset > log.end_offset:
            effects.append(AppendBatches(came.end_offset))
        # The head goes here as it has gone there, as far as this cluster has committed:
        # 1. Followers have 30 records, the leader has 54. 2. If it deleted those before 34, no one
        # else would have what is committed from then on. Later fetches tell the start again.
        start = min(log_start, log.high_watermark)
        if start > log.start_offset:
            log.start_offset = start
            effects.append(AdvanceLogStart(start))
        return effects

    def on_diverging(self, number: int, diverging: Diverging) -> list[MirrorEffect]:
        """Cut the log where it diverges from the source's, see `Follower.on_diverging`."""
        if not self._take(number):
            return []
        self.source_end = -1
        log = self._log
        epoch, end_offset = log.end_of(diverging.epoch)
        if epoch == diverging.epoch:
            end_offset = min(end_offset, diverging.end_offset)
        offset = max(min(end_offset, log.end_offset), log.start_offset)
        if offset >= log.end_offset:
            return []
        return self._permitted(offset) or self._cut(offset)

    def on_out_of_range(self, number: int) -> list[MirrorEffect]:
        """Handle the refusal of an offset, or of a leader epoch, that the source does not have."""
        if not self._take(number):
            return []
        if (strays := self._strays()) is not None:
            return self._permitted(strays) or self._cut(strays)
        return [AskEnds()]

    def on_ends(self, start: int, end: int) -> list[MirrorEffect]:
        """Handle the offsets at which the source's log starts and ends."""
        log = self._log
        # A log that is longer than the source's diverges: it has no lag before it is cut.
        self.source_end = end if log.end_offset <= end else -1
        if log.end_offset < start:
            return self._start_at(start)
        # With records, the epochs tell where the logs part. An empty log has no epoch to compare.
        if log.end_offset > end and log.end_offset == log.start_offset:
            return self._permitted(end) or self._start_at(end)
        return []

    def on_kept(self, offset: int) -> None:
        """Note that the records from `offset` on are kept; the next fetch leads to the cut."""
        self._kept_from = offset
        self._waits = False

    def _take(self, number: int) -> bool:
        """Return whether this is the awaited answer; if so, the fetch is closed."""
        fetch = self._open
        if fetch is None or fetch.number != number:
            return False
        self._open = None
        return fetch.offset == self._log.end_offset

    def _strays(self) -> int | None:
        """Return where, by epochs, records begin that the source lacks; None if there are none."""
        log = self._log
        if self._ceiling_epoch == NO_EPOCH or log.last_epoch < self._ceiling_epoch:
            return None
        start = log.epochs.start_after(self._ceiling_epoch - 1)
        return None if start is None else max(start, log.start_offset)

    def _permitted(self, offset: int) -> list[MirrorEffect]:
        """Return what has to come before a cut at `offset`; nothing if it may happen now."""
        log = self._log
        if offset < self._floor:
            return self._stop(
                f"the source's log diverges at offset {offset}, below offset {self._floor}, where"
                " it began to lead: it has lost records that this log has"
            )
        # A new leader does not know yet what earlier leaders have committed: anything that it began
        # with may be, and a follower that knows it would refuse to cut it.
        if offset >= max(log.high_watermark, self._leader.epoch_start):
            return []
        # 1. The controller has begun epoch 3 for a cut. 2. Records of the source's epoch 3 are
        # copied and committed in it, and the source loses them. 3. Followers cut what is older
        # than the epoch that was begun for it, and these records are not: it takes another one.
        committed = log.high_watermark
        if self._may_cut and (
            committed <= log.start_offset or log.epochs.at(committed - 1) < self._leader.epoch
        ):
            return []
        # 1. Records 60 to 99 are committed here, and an unclean election lost them at the source.
        # 2. If this leader cut them in its epoch, a follower that has them could be elected in the
        # next one and bring them back. 3. So the cut has an epoch of its own, recorded as unclean,
        # in which followers may cut too.
        self._waits = True
        return [AskCut(offset)]

    def _stop(self, reason: str) -> list[MirrorEffect]:
        self.stopped = reason
        self._leader.admit_others()
        return [StopMirror(reason)]

    def _cut(self, offset: int) -> list[MirrorEffect]:
        # Nothing is appended while the reader waits, so what was kept is what is cut.
        if self._keeps_cut and (self._kept_from is None or self._kept_from > offset):
            self._waits = True
            return [KeepRecords(offset)]
        self._kept_from = None
        self._log.cut(offset)
        self._leader.on_cut(offset)
        return [Truncate(offset)]

    def _start_at(self, offset: int) -> list[MirrorEffect]:
        log = self._log
        # 1. The source's log starts at 84 now, and this one, which ends at 75, is to begin there.
        # 2. Replica 2, in sync, ends at 75, too. 3. If it led after this leader had copied up to
        # 90, groups would be ahead of it, and once promoted it would write its own 75 to 90.
        if offset > log.high_watermark and not self._leader.is_alone:
            self._waits = True
            return [AskAlone(offset)]
        # 1. Cluster `a` has 100 to 119, which `b` never had, and is to follow `b`. 2. `b` has
        # deleted its records below 150, and with them what tells where the logs part. 3. Nothing
        # tells 100 to 119 from what `b` has deleted: all of the log is kept.
        may_have_more = not self._is_compared and log.end_offset > log.start_offset
        if self._keeps_cut and may_have_more and self._kept_from is None:
            self._waits = True
            return [KeepRecords(log.start_offset, is_deleted=True)]
        self._kept_from = None
        log.start_at(offset)
        self._leader.on_cut(offset)
        self._leader.admit_others()
        return [StartAt(offset)]
