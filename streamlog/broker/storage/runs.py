"""PlainRun: what several requests bring for one log, as far as one write can take it.

Most batches need nothing but the look at their header: a client's own, for a topic that takes
them as they are. Those that follow each other are placed and written together, which is what a
log spends most of its time on when batches are small. Rule of the file: it decides and writes
nothing, and it refuses nobody. A batch that is special in any way ends the run, and the log
appends it by itself, by the way that is for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.broker.config import AS_PRODUCED, CREATE_TIME, TopicConfig
from streamlog.broker.settings import LONG_MAX
from streamlog.broker.storage.admission import plain
from streamlog.broker.storage.producers import ProducerStates
from streamlog.errors import LogError
from streamlog.records.batch import RecordBatch, place_batch

_SEQUENCES = 2**31


class PlainRun:
    """Batches that can be written behind each other from `next_offset` on.

    `room_bytes` is how much the segment takes.
    """

    __slots__ = (
        "_due",
        "_epoch",
        "_room_bytes",
        "base_offsets",
        "batches",
        "next_offset",
        "pieces",
    )

    def __init__(self, next_offset: int, leader_epoch: int, room_bytes: int) -> None:
        self.next_offset = next_offset
        self.pieces: list[memoryview] = []
        self.batches: list[RecordBatch] = []
        self.base_offsets: list[int] = []
        self._room_bytes = room_bytes
        self._epoch = leader_epoch
        self._due: tuple[int, int, int] | None = None
        """Producer, epoch and sequence number that go on where the run ends."""

    def extend(
        self, pieces: Sequence[memoryview], *, max_message_bytes: int, producers: ProducerStates
    ) -> None:
        """Take and place the batches in `pieces`, one in each, up to the first that is special."""
        for piece in pieces:
            size_bytes = len(piece)
            batch = plain(piece)
            if batch is None or size_bytes > max_message_bytes or size_bytes > self._room_bytes:
                return
            if batch.producer_id >= 0 and not self._is_next(batch, producers):
                return
            place_batch(piece, self.next_offset, self._epoch)
            self.pieces.append(piece)
            self.batches.append(batch)
            self.base_offsets.append(self.next_offset)
            self.next_offset += batch.record_count
            self._room_bytes -= size_bytes

    def _is_next(self, batch: RecordBatch, producers: ProducerStates) -> bool:
        """Whether its producer may go on with it, the run being in the log."""
        numbered = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if self.batches:
            if numbered != self._due:
                return False
        else:
            try:
                if producers.check(batch) is not None:
                    return False
            except LogError:
                return False
        due = (batch.base_sequence + batch.record_count) % _SEQUENCES
        self._due = (batch.producer_id, batch.producer_epoch, due)
        return True


def takes_as_they_are(config: TopicConfig) -> bool:
    """Whether the topic wants nothing to be done with batches, and asks nothing of records."""
    return (
        not config.compacts
        and config.compression_type == AS_PRODUCED
        and config.message_timestamp_type == CREATE_TIME
        and config.message_timestamp_before_max_ms == LONG_MAX
        and config.message_timestamp_after_max_ms == LONG_MAX
    )
