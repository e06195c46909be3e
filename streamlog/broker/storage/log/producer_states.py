"""ProducerStates: what each idempotent producer has written, and its open transactions (KIP-98).

A producer numbers its records. The last five batches of each are kept, so a retried batch gets
the offsets of its first copy, and a batch that skips numbers is refused. A batch with an older
epoch of the same producer id is fenced.

A transaction begins in a partition with its producer's first batch and ends with the coordinator's
marker. Records before the first open transaction are *stable*. A power cut can remove a marker
that is not committed yet, so its transaction holds the last stable offset back until the marker is
committed.

Rules of this module: the state is a function of the log, less the producers that have expired. It
receives batch by batch in log order: live, on opening and in compaction. Checks decide and change
nothing; `replay` changes the state, and a snapshot only saves the replay.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from streamlog.errors import CorruptData, LogError
from streamlog.records.batch import RecordBatch
from streamlog.records.control_batches import ABORT, MARKERS, AbortedRange, Marker, marker_of


class EndedTransaction(NamedTuple):
    """A transaction that has ended, with its offsets in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """The offset before which no transaction was open after the marker."""
    aborted: bool

    @property
    def range(self) -> AbortedRange:
        """The range that readers of committed records skip if the transaction was aborted."""
        return AbortedRange(self.producer_id, self.first_offset, self.last_offset)


class OpenTransactions:
    """The open and undecided transactions of one partition."""

    def __init__(self) -> None:
        self.first_offsets: dict[int, int] = {}
        """Of the open ones, by producer id, in their order."""
        self.unsettled: list[EndedTransaction] = []
        """Those that have ended, and whose markers may not be committed; see `settle`."""

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.first_offsets

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over producer id and first offset of the open transactions, earliest first."""
        return iter(self.first_offsets.items())

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the earliest open transaction; None without one."""
        return next(iter(self.first_offsets.values()), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open or whose marker may be lost."""
        # 1. Producer 7 writes offset 10; its commit marker is at 20; the high watermark is 15.
        # 2. A consumer that reads 10 as committed now would be wrong if the leader failed and the
        #    new leader had lost the marker and then aborted the transaction.
        # 3. So 10 stays unstable until the marker itself is committed (`settle`).
        if not self.unsettled and not self.first_offsets:
            return None  # Most partitions, and each Fetch of committed records asks.
        unsettled = [decided.first_offset for decided in self.unsettled]
        return min([*unsettled, *list(self.first_offsets.values())[:1]], default=None)

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction; None without one."""
        return self.first_offsets.get(producer_id)

    def take(self, batch: RecordBatch, base_offset: int) -> EndedTransaction | None:
        """Add the next batch of the log, at `base_offset`; return the transaction that it ends.

        Raises:
            CorruptData: the batch is a malformed marker.
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
        """Note that a batch at `offset` belongs to the producer's transaction."""
        self.first_offsets.setdefault(producer_id, offset)  # Only the first batch sets the offset.

    def end(self, producer_id: int, offset: int, *, aborted: bool) -> EndedTransaction | None:
        """Note a marker at `offset`; return the transaction that it ends, if any."""
        first = self.first_offsets.pop(producer_id, None)
        if first is None:
            return None
        stable = next(iter(self.first_offsets.values()), offset + 1)
        return EndedTransaction(producer_id, first, offset, stable, aborted)

    def hold(self, decided: EndedTransaction) -> None:
        """Keep the transaction unstable until `settle` passes its marker."""
        self.unsettled.append(decided)

    def settle(self, offset: int) -> None:
        """Note that everything before `offset`, markers included, is committed."""
        while self.unsettled and self.unsettled[0].last_offset < offset:
            del self.unsettled[0]


BATCHES_REMEMBERED = 5
"""Kafka's bound on `max.in.flight.requests.per.connection` of an idempotent producer."""
PRODUCERS_MAX = 10_000
"""Producers kept per partition. To make room, the producer that has been silent for longest and
has no open transaction is forgotten; if it returns, its next batch is accepted with any sequence
number, as after retention."""
LOOKS_MAX = 8
"""How often, within the time after which a silent producer is forgotten, the log's end is sampled:
a producer may be kept an eighth longer."""

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
# producer id, epoch, coordinator epoch, last offset and its timestamp, first offset of the open
# transaction, number of batches that follow
_PRODUCER = struct.Struct(">qhiqqqB")
_APPENDED = struct.Struct(">iiqq")


class ProducerBatch(NamedTuple):
    """A batch of an idempotent producer that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """What is known of one producer."""

    epoch: int
    batches: tuple[ProducerBatch, ...] = ()
    """Its newest numbered batches of this epoch, oldest first."""
    coordinator_epoch: int = _NONE
    """The epoch of the coordinator that ended its last transaction."""
    newest_offset: int = _NONE
    """The last offset of its newest batch or marker."""
    timestamp_ms: int = _NONE
    """The timestamp of that batch or marker."""

    @property
    def last_sequence(self) -> int:
        """The last sequence number of this epoch; -1 without one."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """The last offset of the batch from which a compacted log can restore this state."""
        return self.batches[-1].last_offset if self.batches else self.newest_offset


class _Look(NamedTuple):
    """The log's end at one time. A producer without a later batch is silent since then."""

    at_ms: int
    end_offset: int


class ProducerStates:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self._producers: dict[int, ProducerState] = {}
        """In order of last use, which is the order of `newest_offset`."""
        self._looks: list[_Look] = []

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        """Iterate over producer ids and states."""
        return iter(self._producers.items())

    def state(self, producer_id: int) -> ProducerState | None:
        """Return what is known of a producer; None if nothing is."""
        return self._producers.get(producer_id)

    def has_begun(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction here in this epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch == epoch and producer_id in self.transactions

    def check(self, batch: RecordBatch, *, has_sequence: bool = True) -> ProducerBatch | None:
        """Decide whether a batch may be appended.

        Returns None if it may, or the batch that it repeats. A batch that is not `has_sequence`, as
        the broker's own are, only needs the current producer epoch.

        Raises:
            LogError: with Kafka's codes 45 (sequence numbers before it are missing), 46 (it was
                appended, but too long ago to know its offsets), 47 (its epoch is fenced) or 48 (its
                producer has an open transaction, to which it does not belong).
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:  # Unknown or expired: accepted with any number, as in Kafka.
            return None
        if not has_sequence:
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
                f"producer {batch.producer_id} has an open transaction, but the batch is not part"
                " of it",
                code=INVALID_TXN_STATE,
            )
        return appended

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker) -> None:
        """Check that a marker may be appended.

        Raises:
            LogError: INVALID_PRODUCER_EPOCH, a newer instance of the producer has taken over, or
                its next transaction is open;
                TRANSACTION_COORDINATOR_FENCED, a newer coordinator has.
        """
        known = self._producers.get(producer_id)
        if known is None:
            return  # Nothing that it wrote is left, so nothing can fence the marker.
        if producer_epoch < known.epoch:
            raise _fenced(producer_id, producer_epoch, known.epoch)
        # 1. Coordinator A (epoch 1) decides to abort and pauses. 2. B (epoch 2) takes over and
        # writes its marker here. 3. A wakes up and sends its marker: it must not end the
        # producer's next transaction.
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise LogError(
                f"a marker for producer {producer_id} comes from coordinator epoch"
                f" {marker.coordinator_epoch}, but epoch {known.coordinator_epoch} has written"
                " already",
                code=TRANSACTION_COORDINATOR_FENCED,
            )
        # The transaction that it ends has the epoch before. An open one with its own epoch is the
        # next one, so the marker is late. Without an open one it may be a repetition, which does
        # no harm, and whose commit has to be waited for.
        is_next = producer_epoch == known.epoch and producer_id in self.transactions
        if marker.raises_epoch and is_next:
            raise _fenced(producer_id, producer_epoch - 1, known.epoch)

    def replay(self, batch: RecordBatch, base_offset: int) -> EndedTransaction | None:
        """Add a batch of the log at `base_offset`; return the transaction that it ends.

        Raises:
            CorruptData: the batch is a malformed marker.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        if batch.is_control:
            return self._replay_marker(batch, base_offset)
        if batch.base_sequence < 0 and not batch.is_transactional:
            return None  # Neither numbered nor transactional: nothing to remember.
        last_offset = base_offset + batch.last_offset_delta
        known = self._producers.get(producer_id)
        coordinator_epoch = _NONE if known is None else known.coordinator_epoch
        batches: tuple[ProducerBatch, ...] = ()
        # A new epoch starts its numbers at 0, so batches of the old one can't be duplicates.
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
        """Forget producers silent for `silent_ms` and without an open transaction (KIP-854).

        Call it regularly, with the log's end offset. `now_ms` is monotonic: batch timestamps are
        set by producers and may be years old.
        """
        looks = self._looks
        before = -1
        # Offsets stand in for time: a producer whose newest offset is below the log's end of
        # `silent_ms` ago has written nothing since then.
        while looks and now_ms - looks[0].at_ms >= silent_ms:
            before = looks.pop(0).end_offset
        if self._producers and (not looks or now_ms - looks[-1].at_ms >= silent_ms // LOOKS_MAX):
            looks.append(_Look(now_ms, end_offset))
        for producer_id in self._silent(before):
            del self._producers[producer_id]

    def _silent(self, before: int) -> list[int]:
        """Return the producers without a batch from `before` on and without an open transaction."""
        silent = []
        for producer_id, known in self._producers.items():
            if known.newest_offset >= before:  # The dict is in order of the newest offset.
                break
            if producer_id not in self.transactions:
                silent.append(producer_id)
        return silent

    def last_offsets(self) -> dict[int, int]:
        """Return per producer the offset that compaction keeps; see `ProducerState.last_offset`."""
        return {producer_id: known.last_offset for producer_id, known in self._producers.items()}

    def snapshot(self) -> bytes:
        """Encode the state for `restore`."""
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
        """Decode what `snapshot` has encoded.

        Raises:
            CorruptData: the data is damaged or of another format.
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

    def _replay_marker(self, batch: RecordBatch, base_offset: int) -> EndedTransaction | None:
        marker = marker_of(batch)
        known = self._producers.get(batch.producer_id)
        batches: tuple[ProducerBatch, ...] = ()
        coordinator_epoch = _NONE
        if known is not None:
            # The coordinator raises the epoch in the marker when it fences a producer (KIP-890):
            # batches of the older epoch are no duplicates of what comes next.
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
        # Removed and inserted again, so that the dict is in order of last use.
        self._producers.pop(producer_id, None)
        self._producers[producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            idle = (each for each in self._producers if each not in self.transactions)
            silent = next(idle, None)
            if silent is not None:
                del self._producers[silent]


def _find_or_check(batch: RecordBatch, known: ProducerState) -> ProducerBatch | None:
    """Return the copy of the batch that is in the log, or None if it is the next in sequence.

    Raises LogError if it is neither.
    """
    first = batch.base_sequence
    if batch.producer_epoch != known.epoch:
        _check_epoch(batch, known)
        return None
    last = (first + batch.last_offset_delta) % _SEQUENCES
    # Duplicate detection, over the last five batches (KIP-98):
    # 1. The producer sends batches 0-4 and gets no response for the first.
    # 2. It sends them again. Each is found here, and the response carries its first offset.
    # Five suffice because an idempotent producer has at most five requests in flight.
    for appended in known.batches:
        if appended.first_sequence == first and appended.last_sequence == last:
            return appended
    newest = known.last_sequence
    if first == (newest + 1) % _SEQUENCES:
        return None
    # Sequence numbers wrap at 2**31, so "before" is a distance below half the circle.
    if newest >= 0 and (newest - last) % _SEQUENCES < _SEQUENCES // 2:
        raise LogError(
            f"producer {batch.producer_id} sent sequence numbers {first} to {last} again; they are"
            " in the log already, but their offsets are no longer known",
            code=DUPLICATE_SEQUENCE_NUMBER,
        )
    raise LogError(
        f"producer {batch.producer_id} sent sequence number {first} instead of"
        f" {(newest + 1) % _SEQUENCES}: a batch before it is missing",
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
            f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence number"
            f" {batch.base_sequence} instead of 0",
            code=OUT_OF_ORDER_SEQUENCE_NUMBER,
        )


def _producers(data: bytes) -> Iterator[tuple[int, ProducerState, int]]:
    """Iterate over id, state, and the first offset of the open transaction (-1 without one)."""
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
