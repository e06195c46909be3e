"""MirrorCopy: one mirror partition that this broker leads, as its source's fetcher sees it.

It performs the effects of `MirrorReader` on the log, and asks the controller and the source what
the reader wants to know. A request without an answer is repeated after a pause, as long as this
broker leads in the same epoch; the reader waits meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.replication.mirror_reader import (
    AskAlone,
    AskCut,
    AskEnds,
    KeepRecords,
    MirrorEffect,
    MirrorReader,
    RaiseEpoch,
    SourceFetch,
    StopMirror,
    parse_source_batches,
)
from streamlog.broker.replication.replica_state import (
    AdvanceLogStart,
    AppendBatches,
    Diverging,
    MirrorOf,
    StartAt,
    Truncate,
)
from streamlog.protocol.error_codes import ErrorCode, describe
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partition
    from streamlog.protocol.messages.produce_and_fetch import PartitionData
    from streamlog.protocol.schema import Buffer

_log = repeated.logger(__name__)


@dataclass(slots=True)
class LinkCounts:
    """What this broker has copied over a link since it started."""

    copied_bytes: int = 0
    copied_records: int = 0
    cuts: int = 0
    """How often a mirror was cut to the common end because its source had lost records."""


class MirrorCopy:
    """A mirror partition in one leader epoch of this broker.

    Args:
        partition: the partition, which this broker leads.
        reader: what decides.
        source: the partition's source.
        counts: what is copied is counted here.
    """

    def __init__(
        self, partition: Partition, reader: MirrorReader, source: MirrorOf, counts: LinkCounts
    ) -> None:
        self.partition = partition
        self.reader = reader
        self.source = source
        self._counts = counts
        self.wanted: RaiseEpoch | AskCut | AskAlone | KeepRecords | AskEnds | StopMirror | None = (
            None
        )
        """What has to be asked or told before the reader fetches again."""
        self.refusal = ""
        """Why the source has refused the last fetch; empty if it has not."""
        self.moved_ms: int | None = None
        """When an answer of the source last came."""
        self.began_ms = 0
        """When the first answer came."""
        self.complete_ms: int | None = None
        """When the mirror last had everything that the source had; None if it never had."""

    @property
    def key(self) -> tuple[str, int]:
        """The source's topic and the number of the partition."""
        return self.source.topic, self.partition.index

    def take_over(self, former: MirrorCopy) -> None:
        """Continue the times of a former leader epoch: the mirror is as far behind as before."""
        self.moved_ms, self.began_ms = former.moved_ms, former.began_ms
        self.complete_ms = former.complete_ms

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads in the epoch that the reader is for."""
        replica = self.partition.replica
        return replica is not None and replica.machine.mirror is self.reader

    def next_fetch(self) -> SourceFetch | None:
        """Return the next fetch; None while something is asked, or after a change of leaders."""
        if not self.is_current or self.wanted is not None:
            return None
        self._read_offsets()
        return self.reader.next_fetch()

    def on_answer(self, fetch: SourceFetch, data: PartitionData, now_ms: int) -> bool:
        """Handle the source's answer to a fetch; return whether to fetch again at once.

        Raises:
            StreamlogError: the batches are damaged, or the disk refused.
        """
        if not self.is_current:
            return False
        self._read_offsets()
        diverging = data.diverging_epoch
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._perform(self.reader.on_out_of_range(fetch.number), b"", now_ms)
            elif data.error_code:
                self.refusal = describe(data.error_code)
                return False
            elif diverging is not None and diverging.end_offset >= 0:
                found = Diverging(diverging.epoch, diverging.end_offset)
                self._perform(self.reader.on_diverging(fetch.number, found), b"", now_ms)
            else:
                came = parse_source_batches(one_buffer(data.records or b""), fetch.offset)
                effects = self.reader.on_fetched(
                    fetch.number,
                    came,
                    high_watermark=data.high_watermark,
                    log_start=data.log_start_offset,
                )
                self._perform(effects, came.records, now_ms)
        finally:
            # Otherwise the fetch would stay open, and the partition would never be fetched again.
            self.reader.on_failed(fetch.number)
        self.refusal = ""
        if self.moved_ms is None:
            self.began_ms = now_ms
        self.moved_ms = now_ms
        if self.partition.log.log_end_offset >= self.reader.source_end:
            self.complete_ms = now_ms
        return True

    def on_ends(self, start: int, end: int, now_ms: int) -> None:
        """Handle where the source starts and ends. Raises StreamlogError if the disk refused."""
        self.wanted = None
        if self.is_current:
            self._read_offsets()
            self._perform(self.reader.on_ends(start, end), b"", now_ms)

    def on_kept(self, offset: int) -> None:
        """Note that the records from `offset` on are kept in a file."""
        self.wanted = None
        if self.is_current:
            self.reader.on_kept(offset)

    def _read_offsets(self) -> None:
        """Take the offsets from the log: a leader without followers hears of no append."""
        replica = self.partition.replica
        if replica is not None:
            replica.read_offsets(keep=not self.partition.is_alone)

    def _perform(self, effects: list[MirrorEffect], records: Buffer, now_ms: int) -> None:
        partition, replica = self.partition, self.partition.replica
        if replica is None:
            return
        for effect in effects:
            match effect:
                case AppendBatches():
                    # Not `append`: offsets, timestamps and producers were checked at the source,
                    # and assigning them again would make another log.
                    before = partition.log.log_end_offset
                    partition.append_copies(records, now_ms=now_ms)
                    self._counts.copied_bytes += len(records)
                    self._counts.copied_records += partition.log.log_end_offset - before
                case AdvanceLogStart():
                    replica.change_log(effect)
                    replica.on_deleted()
                case Truncate() | StartAt():
                    # Followers must hear of it before they fetch again: what they have copied
                    # beyond the cut is not part of this log any more.
                    replica.change_log(effect)
                    partition.on_cut()
                    self._counts.cuts += isinstance(effect, Truncate)
                case _:
                    self.wanted = effect
