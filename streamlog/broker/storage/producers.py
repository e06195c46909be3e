"""ProducerStates: what each idempotent producer has written to a partition (KIP-98).

A producer numbers its records; the last five batches of each are remembered here, so that a
batch sent again after a lost answer is answered with the offsets it got the first time, and a
batch that skips numbers is refused. An older epoch of the same producer id is fenced off.
Rule of the file: the state is a function of the log. `check` decides and changes nothing,
`replay` is the only thing that changes state, live and on opening alike; a snapshot only
spares the replay. Transactions are not kept here yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from streamlog.errors import CorruptData, LogError
from streamlog.records.batch import RecordBatch

BATCHES_REMEMBERED = 5
"""As many as a producer may have in flight, Kafka's bound on `max.in.flight.requests`."""
PRODUCERS_MAX = 10_000
"""Producers remembered in a partition. The one that has been silent for longest makes room; if
it comes back its next batch is taken with whatever number it has, as after retention."""

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47

_SEQUENCES = 2**31
"""Sequence numbers wrap to 0 after 2**31 - 1."""
_FORMAT = 1
_HEAD = struct.Struct(">hI")
_PRODUCER = struct.Struct(">qhB")
_APPENDED = struct.Struct(">iiqq")


class Appended(NamedTuple):
    """A batch of an idempotent producer that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class _Producer(NamedTuple):
    epoch: int
    batches: tuple[Appended, ...]  # oldest first


class ProducerStates:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: RecordBatch) -> Appended | None:
        """May this batch be appended? None if so; where it is if it is there already.

        Raises:
            LogError: with Kafka's codes 45 (numbers are missing before it), 46 (it was appended
                so long ago that its offsets are forgotten) or 47 (its epoch is over).
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            return None
        first = batch.base_sequence
        if batch.producer_epoch != known.epoch:
            _check_epoch(batch, known)
            return None
        last = (first + batch.last_offset_delta) % _SEQUENCES
        for appended in known.batches:
            if appended.first_sequence == first and appended.last_sequence == last:
                return appended
        newest = known.batches[-1].last_sequence
        if first == (newest + 1) % _SEQUENCES:
            return None
        if (newest - last) % _SEQUENCES < _SEQUENCES // 2:
            raise LogError(
                f"producer {batch.producer_id} sent sequence {first} to {last} again, which is in"
                " the log but too long ago to tell its offsets",
                code=DUPLICATE_SEQUENCE_NUMBER,
            )
        raise LogError(
            f"producer {batch.producer_id} sent sequence {first}, {(newest + 1) % _SEQUENCES} is"
            " due: a batch before it is missing",
            code=OUT_OF_ORDER_SEQUENCE_NUMBER,
        )

    def replay(self, batch: RecordBatch, base_offset: int) -> None:
        """The batch is in the log at `base_offset`."""
        if batch.producer_id < 0 or batch.base_sequence < 0:
            return
        last_sequence = (batch.base_sequence + batch.last_offset_delta) % _SEQUENCES
        last_offset = base_offset + batch.last_offset_delta
        appended = Appended(batch.base_sequence, last_sequence, base_offset, last_offset)
        # Taken out and put back, so that the dict is in order of last use.
        known = self._producers.pop(batch.producer_id, None)
        if known is not None and known.epoch == batch.producer_epoch:
            batches = (*known.batches[1 - BATCHES_REMEMBERED :], appended)
        else:
            batches = (appended,)
        self._producers[batch.producer_id] = _Producer(batch.producer_epoch, batches)
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def last_sequences(self) -> dict[int, tuple[int, int]]:
        """Epoch and last sequence number of each producer."""
        return {
            producer_id: (known.epoch, known.batches[-1].last_sequence)
            for producer_id, known in self._producers.items()
        }

    def snapshot(self) -> bytes:
        """The state as bytes, for `restore`."""
        parts: list[bytes] = []
        for producer_id, (epoch, batches) in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, epoch, len(batches)))
            parts += [_APPENDED.pack(*appended) for appended in batches]
        body = b"".join(parts)
        return _HEAD.pack(_FORMAT, crc32c(body)) + body

    @classmethod
    def restore(cls, data: bytes) -> ProducerStates:
        """The state that `snapshot` wrote.

        Raises:
            CorruptData: it is damaged or of another format.
        """
        states = cls()
        try:
            version, crc = _HEAD.unpack_from(data)
            if version != _FORMAT or crc != crc32c(data[_HEAD.size :]):
                raise CorruptData("a producer snapshot is damaged")
            for producer_id, producer in _producers(data):
                states._producers[producer_id] = producer
        except struct.error as error:
            raise CorruptData(f"a producer snapshot is cut off: {error}") from error
        return states


def _check_epoch(batch: RecordBatch, known: _Producer) -> None:
    if batch.producer_epoch < known.epoch:
        raise LogError(
            f"producer {batch.producer_id} has epoch {batch.producer_epoch}, but epoch"
            f" {known.epoch} has written already: a newer instance has taken over",
            code=INVALID_PRODUCER_EPOCH,
        )
    if batch.base_sequence != 0:
        raise LogError(
            f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence"
            f" {batch.base_sequence} instead of 0",
            code=OUT_OF_ORDER_SEQUENCE_NUMBER,
        )


def _producers(data: bytes) -> Iterator[tuple[int, _Producer]]:
    position = _HEAD.size
    while position < len(data):
        producer_id, epoch, batches = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size
        appended = [
            Appended(*_APPENDED.unpack_from(data, position + number * _APPENDED.size))
            for number in range(batches)
        ]
        position += batches * _APPENDED.size
        yield producer_id, _Producer(epoch, tuple(appended))
