"""ProducerStates: what each idempotent producer has written, and its open transactions (KIP-98).

A producer numbers its records. The last five batches of each are kept, so a retried batch gets
the offsets of the first try, and a batch that skips numbers is refused. An older epoch of the same
producer id is fenced.

A transaction begins in a partition with its producer's first batch and ends with the coordinator's
marker. What lies before the first open transaction is *stable*. A marker that a power cut could
take back decides nothing yet, so its transaction holds the last stable offset back until the
marker is committed.

Rules of this module: the state is a function of the log, less the producers that have expired. It
is fed batch by batch in log order: live, on opening and in compaction. Checks decide and change
nothing; `replay` changes the state, and a snapshot only saves the replay.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from streamlog.errors import CorruptData, LogError
from streamlog.records.batch import RecordBatch
from streamlog.records.control_batches import ABORT, MARKERS, AbortedRange, Marker, marker_of


class Decided(NamedTuple):
    """A transaction that has ended, as it lies in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """Behind the marker no transaction that begins before this offset was open."""
    aborted: bool

    @property
    def range(self) -> AbortedRange:
        """What readers of committed records skip of it if it was aborted."""
        return AbortedRange(self.producer_id, self.first_offset, self.last_offset)


class OpenTransactions:
    """The transactions of one partition."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # by producer id, in order of the first offset
        self._unsettled: deque[Decided] = deque()

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Producer id and first offset of those that are open, the earliest first."""
        return iter(self._open.items())

    @property
    def first_open_offset(self) -> int | None:
        """Where the earliest open one begins; None if all are decided."""
        return next(iter(self._open.values()), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest one begins that is not decided for good; None if all are."""
        unsettled = [decided.first_offset for decided in self._unsettled]
        return min([*unsettled, *list(self._open.values())[:1]], default=None)

    def first_offset(self, producer_id: int) -> int | None:
        """Where the open transaction of a producer begins; None if it has none."""
        return self._open.get(producer_id)

    def take(self, batch: RecordBatch, base_offset: int) -> Decided | None:
        """The next batch of the log, at `base_offset`; returns the transaction that it has ended.

        Raises:
            CorruptData: it is a malformed marker.
        """
        if batch.is_control:
            marker = marker_of(batch)
            if marker is None or marker.kind not in MARKERS:
                return None
            return self.end(batch.producer_id, base_offset, aborted=marker.kind == ABORT)
        if batch.is_transactional:
            self.begin(batch.producer_id, base_offset)
        return None

    def begin(self, producer_id: int, offset: int) -> None:
        """A batch at `offset` belongs to the producer's transaction, and may be its first."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, aborted: bool) -> Decided | None:
        """A marker stands at `offset`; None if there was nothing to decide."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        stable = next(iter(self._open.values()), offset + 1)
        return Decided(producer_id, first, offset, stable, aborted)

    def hold(self, decided: Decided) -> None:
        """Its marker is in the log, and could still be lost: it does not count before `settle`."""
        self._unsettled.append(decided)

    def settle(self, offset: int) -> None:
        """Everything before `offset` is committed, markers too."""
        while self._unsettled and self._unsettled[0].last_offset < offset:
            self._unsettled.popleft()


BATCHES_REMEMBERED = 5
"""As many as a producer may have in flight, Kafka's bound on `max.in.flight.requests`."""
PRODUCERS_MAX = 10_000
"""Producers remembered in a partition. The one that has been silent for longest, and has no
transaction open, makes room; if it comes back its next batch is taken with whatever number it
has, as after retention."""
LOOKS_MAX = 8
"""So often in the time after which a producer is forgotten it is noted where the log ended then:
it may be silent for an eighth longer."""

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
TRANSACTION_COORDINATOR_FENCED = 52

_SEQUENCES = 2**31
"""Sequence numbers wrap to 0 after 2**31 - 1."""
_FORMAT = 2
_NONE = -1
_HEAD = struct.Struct(">hI")
# producer id, epoch, coordinator's epoch, last offset, its time, first offset of its open
# transaction, count of batches that follow
_PRODUCER = struct.Struct(">qhiqqqB")
_APPENDED = struct.Struct(">iiqq")


class ProducerBatch(NamedTuple):
    """A batch of an idempotent producer that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """What is known of a producer."""

    epoch: int
    batches: tuple[ProducerBatch, ...] = ()
    """The newest that it numbered in this epoch, oldest first."""
    coordinator_epoch: int = _NONE
    """Of the coordinator that ended its last transaction."""
    newest_offset: int = _NONE
    """The last one of its newest batch or marker."""
    timestamp_ms: int = _NONE
    """Of that."""

    @property
    def last_sequence(self) -> int:
        """-1 if none of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """Of the batch that all of this can be told from, but for the batches before it."""
        return self.batches[-1].last_offset if self.batches else self.newest_offset


class _Look(NamedTuple):
    """Where the log ended at a time: whose newest batch is before that has been silent since."""

    at_ms: int
    end_offset: int


class ProducerStates:
    """The producers of one partition."""

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self._producers: dict[int, ProducerState] = {}
        """In order of last use, which is that of `newest_offset`."""
        self._looks: deque[_Look] = deque()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        """Every producer with its id."""
        return iter(self._producers.items())

    def has_begun(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has a transaction open here, and in this epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch == epoch and producer_id in self.transactions

    def check(self, batch: RecordBatch, *, numbered: bool = True) -> ProducerBatch | None:
        """May this batch be appended? None if so; where it is if it is there already.

        One that no producer has `numbered`, the broker's own, only has to be of its epoch.

        Raises:
            LogError: with Kafka's codes 45 (numbers are missing before it), 46 (it was appended
                so long ago that its offsets are forgotten), 47 (its epoch is over) or 48 (its
                producer has a transaction open, to which it does not belong).
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            return None
        if not numbered:
            if batch.producer_epoch < known.epoch:
                raise _fenced(batch.producer_id, batch.producer_epoch, known.epoch)
            return None
        appended = _find_or_check(batch, known)
        if (
            appended is None
            and not batch.is_transactional
            and batch.producer_id in self.transactions
        ):
            raise LogError(
                f"producer {batch.producer_id} has a transaction open in which this batch is not",
                code=INVALID_TXN_STATE,
            )
        return appended

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker) -> None:
        """May this marker be appended?

        Raises:
            LogError: INVALID_PRODUCER_EPOCH, a newer instance of the producer has taken over;
                TRANSACTION_COORDINATOR_FENCED, a newer coordinator has.
        """
        known = self._producers.get(producer_id)
        if known is None:
            return
        if producer_epoch < known.epoch:
            raise _fenced(producer_id, producer_epoch, known.epoch)
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise LogError(
                f"a marker for producer {producer_id} comes from coordinator epoch"
                f" {marker.coordinator_epoch}, but epoch {known.coordinator_epoch} has written"
                " already",
                code=TRANSACTION_COORDINATOR_FENCED,
            )

    def replay(self, batch: RecordBatch, base_offset: int) -> Decided | None:
        """The batch is in the log at `base_offset`; returns the transaction that it has ended.

        Raises:
            CorruptData: it is a malformed marker.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        if batch.is_control:
            return self._replay_marker(batch, base_offset)
        if batch.base_sequence < 0 and not batch.is_transactional:
            return None
        last_offset = base_offset + batch.last_offset_delta
        known = self._producers.get(producer_id)
        coordinator_epoch = _NONE if known is None else known.coordinator_epoch
        batches: tuple[ProducerBatch, ...] = ()
        if known is not None and known.epoch == batch.producer_epoch:
            batches = known.batches
        if batch.base_sequence >= 0:
            last_sequence = (batch.base_sequence + batch.last_offset_delta) % _SEQUENCES
            appended = ProducerBatch(batch.base_sequence, last_sequence, base_offset, last_offset)
            batches = (*batches[1 - BATCHES_REMEMBERED :], appended)
        stamp_ms = batch.max_timestamp_ms
        self._note(
            producer_id,
            ProducerState(batch.producer_epoch, batches, coordinator_epoch, last_offset, stamp_ms),
        )
        if batch.is_transactional:
            self.transactions.begin(producer_id, base_offset)
        return None

    def forget_silent(self, *, end_offset: int, now_ms: int, silent_ms: int) -> None:
        """Forget who has written nothing for `silent_ms` and has no transaction open (KIP-854).

        To be called every now and then, with where the log ends. Times are monotonic: what a batch
        says of its time is its producer's word, and may be years ago.
        """
        looks = self._looks
        before = -1
        while looks and now_ms - looks[0].at_ms >= silent_ms:
            before = looks.popleft().end_offset
        if self._producers and (not looks or now_ms - looks[-1].at_ms >= silent_ms // LOOKS_MAX):
            looks.append(_Look(now_ms, end_offset))
        for producer_id in self._silent(before):
            del self._producers[producer_id]

    def _silent(self, before: int) -> list[int]:
        """Who has written nothing from an offset on, and has no transaction open."""
        silent = []
        for producer_id, known in self._producers.items():
            if known.newest_offset >= before:
                break
            if producer_id not in self.transactions:
                silent.append(producer_id)
        return silent

    def last_offsets(self) -> dict[int, int]:
        """Per producer, the last offset of the batch that tells of it; see `Producer`."""
        return {producer_id: known.last_offset for producer_id, known in self._producers.items()}

    def snapshot(self) -> bytes:
        """The state as bytes, for `restore`."""
        parts: list[bytes] = []
        for producer_id, known in self._producers.items():
            first_offset = self.transactions.first_offset(producer_id)
            first_offset = _NONE if first_offset is None else first_offset
            tail = (first_offset, len(known.batches))
            parts.append(_PRODUCER.pack(producer_id, known.epoch, *known[2:], *tail))
            parts += [_APPENDED.pack(*appended) for appended in known.batches]
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
                raise CorruptData("a producer snapshot is damaged, or of another format")
            begun: list[tuple[int, int]] = []
            for producer_id, producer, first_offset in _producers(data):
                states._producers[producer_id] = producer
                if first_offset >= 0:
                    begun.append((first_offset, producer_id))
        except struct.error as error:
            raise CorruptData(f"a producer snapshot is cut off: {error}") from error
        for first_offset, producer_id in sorted(begun):
            states.transactions.begin(producer_id, first_offset)
        return states

    def _replay_marker(self, batch: RecordBatch, base_offset: int) -> Decided | None:
        marker = marker_of(batch)
        known = self._producers.get(batch.producer_id)
        batches: tuple[ProducerBatch, ...] = ()
        coordinator_epoch = _NONE
        if known is not None:
            batches = known.batches if known.epoch == batch.producer_epoch else ()
            coordinator_epoch = known.coordinator_epoch
        if marker is not None and marker.kind in MARKERS:
            coordinator_epoch = marker.coordinator_epoch
        self._note(
            batch.producer_id,
            ProducerState(
                batch.producer_epoch,
                batches,
                coordinator_epoch,
                base_offset,
                batch.max_timestamp_ms,
            ),
        )
        if marker is None or marker.kind not in MARKERS:
            return None
        return self.transactions.end(batch.producer_id, base_offset, aborted=marker.kind == ABORT)

    def _note(self, producer_id: int, producer: ProducerState) -> None:
        # Taken out and put back, so that the dict is in order of last use.
        self._producers.pop(producer_id, None)
        self._producers[producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            idle = (each for each in self._producers if each not in self.transactions)
            silent = next(idle, None)
            if silent is not None:
                del self._producers[silent]


def _find_or_check(batch: RecordBatch, known: ProducerState) -> ProducerBatch | None:
    """Where the batch is in the log, or None if it is the one that is due."""
    first = batch.base_sequence
    if batch.producer_epoch != known.epoch:
        _check_epoch(batch, known)
        return None
    last = (first + batch.last_offset_delta) % _SEQUENCES
    for appended in known.batches:
        if appended.first_sequence == first and appended.last_sequence == last:
            return appended
    newest = known.last_sequence
    if first == (newest + 1) % _SEQUENCES:
        return None
    if newest >= 0 and (newest - last) % _SEQUENCES < _SEQUENCES // 2:
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


def _fenced(producer_id: int, epoch: int, known_epoch: int) -> LogError:
    return LogError(
        f"producer {producer_id} has epoch {epoch}, but epoch {known_epoch} has written already:"
        " a newer instance has taken over",
        code=INVALID_PRODUCER_EPOCH,
    )


def _check_epoch(batch: RecordBatch, known: ProducerState) -> None:
    if batch.producer_epoch < known.epoch:
        raise _fenced(batch.producer_id, batch.producer_epoch, known.epoch)
    if batch.base_sequence != 0:
        raise LogError(
            f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence"
            f" {batch.base_sequence} instead of 0",
            code=OUT_OF_ORDER_SEQUENCE_NUMBER,
        )


def _producers(data: bytes) -> Iterator[tuple[int, ProducerState, int]]:
    """Id, producer, and the first offset of its open transaction or -1."""
    position = _HEAD.size
    while position < len(data):
        producer_id, epoch, *known, first_offset, batches = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size
        appended = tuple(
            ProducerBatch(*_APPENDED.unpack_from(data, position + number * _APPENDED.size))
            for number in range(batches)
        )
        position += batches * _APPENDED.size
        yield producer_id, ProducerState(epoch, appended, *known), first_offset
