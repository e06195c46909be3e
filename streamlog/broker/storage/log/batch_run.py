"""BatchRun: the batches of several requests that one write can append to a log.

For most batches a check of the header and a scan of the records is enough: for batches of clients
in a topic that stores batches as they are. Consecutive batches of this kind get their offsets and
are written together, because the write dominates the cost of an append when batches are small.

Rules of this module: it writes nothing and refuses nothing. A batch that is special in any way ends
the run, and the log appends it alone with the full validation. The module may be compiled, where
integers wrap: sums are bounded by a segment's size and by the size of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.broker.config.broker import AS_PRODUCED, CREATE_TIME, TopicConfig
from streamlog.broker.config.settings import LONG_MAX
from streamlog.broker.storage.log.producer_states import ProducerStates
from streamlog.broker.storage.validator import PLAIN_BYTES_MAX, AppendResult, RecordRules
from streamlog.errors import CorruptData, LogError
from streamlog.records import header as layout
from streamlog.records.batch import HEADER_BYTES, RecordBatch
from streamlog.records.compression import Compression
from streamlog.records.record_scan import RecordScan

# C integers when compiled.
_SEQUENCES = 2**31
_CODEC_MAX = Compression.ZSTD.value
_EMPTY_BYTES = HEADER_BYTES
_SCANNED_BYTES_MAX = PLAIN_BYTES_MAX
_CODEC_AT = 22
_CODEC_BITS = 0x07
_NOT_IN_LENGTH = 12
_new_tuple = tuple.__new__  # makes a named tuple without its handling of keywords and defaults


class BatchRun:
    """Consecutive batches from `next_offset` on; `room_bytes` is the room in the segment."""

    __slots__ = (
        "_due_epoch",
        "_due_producer",
        "_due_sequence",
        "_epoch",
        "_newest_ms",
        "_oldest_ms",
        "_room_bytes",
        "_scans",
        "base_offset",
        "batches",
        "next_offset",
        "pieces",
    )

    def __init__(self, next_offset: int, leader_epoch: int, room_bytes: int) -> None:
        self.base_offset = next_offset
        self.next_offset = next_offset
        self.pieces: list[memoryview] = []
        self.batches: list[RecordBatch] = []
        self._room_bytes = room_bytes
        self._epoch = leader_epoch
        self._scans = False
        self._oldest_ms = 0
        self._newest_ms = LONG_MAX
        # The producer of the run's last batch, and the sequence number that its next batch has.
        self._due_producer = -1
        self._due_epoch = -1
        self._due_sequence = -1

    def extend(
        self,
        pieces: Sequence[memoryview],
        *,
        max_message_bytes: int,
        producers: ProducerStates,
        rules: RecordRules,
        scans: bool,
    ) -> None:
        """Take the batches of `pieces`, one in each, up to the first that is special.

        Without `scans`, the records need no scan or have had one, and the header is trusted.
        """
        self._scans, self._oldest_ms, self._newest_ms = scans, rules.oldest_ms, rules.newest_ms
        for piece in pieces:
            if len(piece) > max_message_bytes or not self._take(piece, producers):
                return

    def results(self) -> list[AppendResult]:
        """Return where the batches are in the log, once they are written."""
        results: list[AppendResult] = []
        offset = self.base_offset
        for batch in self.batches:
            following = offset + batch.last_offset_delta + 1
            results.append(_new_tuple(AppendResult, (offset, following - 1, -1, batch.size_bytes)))
            offset = following
        return results

    def _take(self, piece: memoryview, producers: ProducerStates) -> bool:
        size_bytes = len(piece)
        if size_bytes > self._room_bytes:
            return False
        batch = _plain(piece, size_bytes)
        if (
            batch is None
            or batch.max_timestamp_ms > self._newest_ms
            or (self._scans and not self._is_sound(batch, size_bytes))
            or (batch.producer_id >= 0 and not self._is_next(batch, producers))
        ):
            return False
        layout.write_offset_and_epoch(piece, self.next_offset, self._epoch)
        self.pieces.append(piece)
        self.batches.append(batch)
        self.next_offset += batch.record_count
        self._room_bytes -= size_bytes
        return True

    def _is_sound(self, batch: RecordBatch, size_bytes: int) -> bool:
        """Whether the records agree with the header and the topic's rules, as far as is cheap."""
        if batch.attributes != 0 or size_bytes > _SCANNED_BYTES_MAX:
            return False
        scan = RecordScan(batch)
        try:
            scan.read_plain(batch)
        except CorruptData:
            return False
        return scan.newest_ms == batch.max_timestamp_ms and scan.oldest_ms >= self._oldest_ms

    def _is_next(self, batch: RecordBatch, producers: ProducerStates) -> bool:
        """Whether the batch continues its producer's sequence after the batches of the run."""
        # The producer states don't know the batches of this run yet, as nothing is written. So only
        # the first batch is checked against them, and each other one has to continue the one
        # before, of the same producer. Anything else ends the run.
        if not self.batches:
            try:
                if producers.check(batch) is not None:
                    return False
            except LogError:
                return False
        elif (
            batch.producer_id != self._due_producer
            or batch.producer_epoch != self._due_epoch
            or batch.base_sequence != self._due_sequence
        ):
            return False
        self._due_producer = batch.producer_id
        self._due_epoch = batch.producer_epoch
        following = batch.base_sequence
        following += batch.record_count
        self._due_sequence = following % _SEQUENCES
        return True


def _plain(piece: memoryview, size_bytes: int) -> RecordBatch | None:
    """Return the batch that fills `piece`, if it is valid and has nothing special.

    Special are transactions and every attribute other than the codec. The size is not checked.
    """
    try:
        batch = RecordBatch(piece)
        batch.check_crc()
    except CorruptData:
        return None
    count = batch.last_offset_delta
    count += 1
    if (
        batch.size_bytes != size_bytes
        or size_bytes == _EMPTY_BYTES
        or batch.attributes < 0
        or batch.attributes > _CODEC_MAX
        or count <= 0
        or batch.record_count != count
    ):
        return None
    if batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        return None
    return batch


def wait_for_thread(pieces: Sequence[memoryview]) -> bool:
    """Whether a thread should check the records: they are compressed, or large."""
    for piece in pieces:
        end = len(piece)
        position = 0
        while end - position >= _EMPTY_BYTES:
            if piece[position + _CODEC_AT] & _CODEC_BITS:
                return True
            size_bytes = layout.read_header(piece, position)[1] + _NOT_IN_LENGTH
            if size_bytes > _SCANNED_BYTES_MAX:
                return True
            if size_bytes < _EMPTY_BYTES:
                break
            position += size_bytes
    return False


def is_plain_topic(config: TopicConfig) -> bool:
    """Whether the topic stores batches as they are, and needs no record keys."""
    return (
        not config.compacts
        and config.compression_type == AS_PRODUCED
        and config.message_timestamp_type == CREATE_TIME
    )
