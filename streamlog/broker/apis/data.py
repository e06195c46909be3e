"""DataRequests: Produce, Fetch and ListOffsets, across many partitions.

Synchronous: a request is answered from the logs as they are now. A Fetch that finds too little
says what it lacks, and `broker.py` decides whether to wait for it. An error of one partition is
that partition's answer and disturbs no other. Bytes go from the request to the log and from the
log to the response as they are; nothing here looks into a batch, but for the codec in its header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamlog import repeated
from streamlog.broker.apis.fetch_sessions import TOPIC_IDS_VERSION
from streamlog.broker.replication.partition import NO_EPOCH
from streamlog.broker.security.coordinator_rules import refusal_without_id
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import CorruptData, LogError, NotLeader, RecordsRefused, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.fetch_patterns import FetchAlike, FoundRecords, PartitionEnds
from streamlog.protocol.messages.cluster_metadata import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from streamlog.protocol.messages.produce_and_fetch import (
    AbortedTransaction,
    BatchIndexAndErrorMessage,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.protocol.schema import ZERO_UUID, one_buffer
from streamlog.records.batch import RecordBatch, split_batches
from streamlog.records.compression import Compression
from streamlog.records.control_batches import CLOCK_BYTES_MAX, MarkTold

if TYPE_CHECKING:
    from streamlog.broker.config.broker import TopicConfig
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.storage.validator import Prepared
    from streamlog.protocol.schema import Buffer, Piece

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""No response is larger, but for a first batch; Kafka's `fetch.max.bytes` of the broker."""
ZSTD_PRODUCE_VERSION = 7
"""Clients that speak less don't know zstd (KIP-110)."""
ABORTABLE_PRODUCE_VERSION = 11
"""From this version on clients know TRANSACTION_ABORTABLE (KIP-890)."""
ZSTD_FETCH_VERSION = 10
READ_COMMITTED = 1
NOBODY = -1
"""A reader need not go to another broker."""
ALL = -1
"""acks=all: every replica that is in sync has it."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
"""Everything is local here, so it is the earliest of all."""
LATEST_REMOTE = -5
"""Nothing is remote here, so there is none."""

_log = repeated.logger(__name__)


class FetchWait(NamedTuple):
    """What a Fetch that has not found enough waits for."""

    partitions: tuple[tuple[str, int], ...]
    missing_bytes: int


class FetchAttempt(NamedTuple):
    """What a Fetch gets if it is answered now, and what it lacks to be answered for good."""

    response: FetchResponse
    partitions: tuple[tuple[str, int], ...] = ()
    """Where more bytes could come from."""
    missing_bytes: int = 0
    """How many more are asked for; 0 if the response should go out as it is."""

    @property
    def wait(self) -> FetchWait:
        """If bytes are missing: what to wait for."""
        return FetchWait(self.partitions, self.missing_bytes)


class Uncommitted(NamedTuple):
    """An acks=all append to a partition with followers."""

    partition: Partition
    end_offset: int
    refuse: Callable[[StreamlogError], None]
    """Makes its answer an error."""


class ProduceAttempt(NamedTuple):
    """The response to a Produce, to be sent once everything required is durable and committed."""

    response: ProduceResponse
    durable: bool
    """Whether everything required is already on disk."""
    uncommitted: list[Uncommitted]
    """The appends that must also be committed."""

    def failed(self, failure: StreamlogError) -> ProduceResponse:
        """Return the response if the disk has failed: an error for every partition."""
        responses = [
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    each if each.error_code else refuse_partition(each.index, failure)
                    for each in topic.partition_responses
                ],
            )
            for topic in self.response.responses
        ]
        return ProduceResponse(responses=responses)


class _Sending(NamedTuple):
    """The parts of a Produce that all its partitions share."""

    transactional_id: str | None
    version: int
    now_ms: int
    wall_ms: int
    acks: int
    uncommitted: list[Uncommitted]
    checked: Checked


Checked: TypeAlias = Mapping[tuple[str, int], "Prepared | StreamlogError"]
"""Batches of some partitions, by topic and index, that a thread has checked; or their refusal."""
CheckTransaction = Callable[[str, tuple[int, int], tuple[str, int]], None]
"""Raises LogError unless a producer (id, epoch) may write to a partition in its transaction."""
WantMark = Callable[["Partition", int, MarkTold | None], None]
"""Told that a reader at the end of a partition wants a time mark after so much quiet, in ms, and to
which event time the mark brings the readers of one clock."""


class DataRequests:
    """Reads and writes the partitions of this broker."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        internal_topics: frozenset[str],
        check_transaction: CheckTransaction,
        want_mark: WantMark,
    ) -> None:
        self._partitions = partitions
        self._want_mark = want_mark
        self._internal_topics = internal_topics
        self._check_transaction = check_transaction

    # ---- produce ----

    def config_of(self, topic: str, index: int) -> TopicConfig | None:
        """The settings of a partition here; None if there is none that clients write to."""
        try:
            return self.writable(topic, index).log.config
        except StreamlogError:
            return None  # Its answer says why.

    def produce(
        self,
        request: ProduceRequest,
        version: int,
        now_ms: int,
        wall_ms: int,
        checked: Checked = MappingProxyType({}),
    ) -> ProduceAttempt:
        """Append what is in the request; every partition has an answer of its own.

        `checked` is what has come of a check beside the loop (`produce`).
        """
        refusal = _produce_refusal(request)
        sending = _Sending(
            request.transactional_id, version, now_ms, wall_ms, request.acks, [], checked
        )
        responses = []
        durable = True
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                if refusal is None:
                    answer, is_durable = self._produce_one(topic.name, data, sending)
                    durable = durable and is_durable
                else:
                    answer = refuse_partition(data.index, refusal)
                answers.append(answer)
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceAttempt(ProduceResponse(responses=responses), durable, sending.uncommitted)

    def _produce_one(
        self, topic: str, data: PartitionProduceData, sending: _Sending
    ) -> tuple[PartitionProduceResponse, bool]:
        """The answer, and whether it may be given at once."""
        try:
            partition = self.writable(topic, data.index)
            if sending.acks == ALL:
                partition.check_insync()
            ready = sending.checked.get((topic, data.index))
            if isinstance(ready, StreamlogError):
                return refuse_partition(data.index, ready), True
            batches = one_buffer(data.records) if ready is None else ready.data
            if sending.version < ZSTD_PRODUCE_VERSION:
                _refuse_zstd(batches, f"{topic}-{data.index}: Produce version {sending.version}")
            result = partition.append(
                batches,
                now_ms=sending.now_ms,
                wall_ms=sending.wall_ms,
                origin=self._origin(batches, (topic, data.index), sending.transactional_id),
                prepared=ready,
            )
        except StreamlogError as error:
            return _in_version(refuse_partition(data.index, error), sending), True
        answer = PartitionProduceResponse(
            index=data.index,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=partition.log.log_start_offset,
        )
        end_offset = result.last_offset + 1
        if partition.is_alone or sending.acks != ALL:
            return answer, partition.is_kept(end_offset)
        if not partition.may_acknowledge(end_offset):
            sending.uncommitted.append(Uncommitted(partition, end_offset, partial(_refuse, answer)))
        return answer, True

    def _origin(
        self, batches: Buffer, place: tuple[str, int], transactional_id: str | None
    ) -> AppendOrigin:
        """Whether the batches belong to a transaction that has got as far as this partition.

        Raises:
            LogError: they belong to another, or to none that is open.
        """
        if transactional_id is None or not len(batches):
            return AppendOrigin.CLIENT
        try:
            batch = RecordBatch(batches)
        except CorruptData:
            return AppendOrigin.CLIENT  # The log says what is wrong with it.
        if not batch.is_transactional:
            return AppendOrigin.CLIENT
        producer = (batch.producer_id, batch.producer_epoch)
        self._check_transaction(transactional_id, producer, place)
        return AppendOrigin.TRANSACTION

    def writable(self, topic: str, index: int) -> Partition:
        """The partition, for records of a client.

        Raises:
            UnknownTopicOrPartition: it is not there.
            LogError: INVALID_TOPIC_EXCEPTION, clients don't write there;
                NOT_LEADER_OR_FOLLOWER, another broker leads it.
        """
        if topic in self._internal_topics:
            raise error_for(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"clients can't write to {topic}: it is an internal topic",
            )
        partition = self._partitions.get(topic, index)
        partition.check_leader()
        return partition

    # ---- fetch ----

    def fetch(self, request: FetchRequest, version: int) -> FetchAttempt:
        """Read as much as there is room for; the very first batch always fits (KIP-74)."""
        reading = _Reading(self._partitions, request, version, self._want_mark)
        response = FetchResponse(responses=[reading.topic(each) for each in request.topics])
        missing_bytes = request.min_bytes - reading.found_bytes
        if reading.failed or missing_bytes <= 0 or request.max_wait_ms <= 0:
            self._partitions.copy_bytes_read += reading.copy_bytes
            return FetchAttempt(response)
        return FetchAttempt(response, tuple(reading.places), missing_bytes)

    def fetch_alike(self, alike: FetchAlike) -> FoundRecords | FetchWait | None:
        """The answer to a Fetch that repeats another one, or what it has to wait for.

        None if it has to be read for as any other: it may be refused, told more, or sent elsewhere.
        """
        request = alike.pattern.request
        topic = request.topics[0]
        asked = topic.partitions[0]
        name = topic.topic or self._partitions.name_of(topic.topic_id)
        if name is None or request.rack_id:
            return None
        try:
            partition = self._partitions.get(name, asked.partition)
            partition.check_epoch(asked.current_leader_epoch)
            epoch = asked.last_fetched_epoch
            if epoch != NO_EPOCH and partition.diverges(epoch, alike.offset) is not None:
                return None
            if alike.offset >= partition.high_watermark:
                return _wait_at_end(alike, partition)
            room_bytes = min(asked.partition_max_bytes, request.max_bytes, FETCH_BYTES_MAX)
            committed = request.isolation_level == READ_COMMITTED
            found = _read(partition, alike.offset, room_bytes, min_one=True, committed=committed)
        except StreamlogError:
            return None
        if len(found.records) < max(request.min_bytes, 1) or found.aborted:
            return None
        return FoundRecords(found.ends, found.records)

    # ---- list offsets ----

    def is_settled(self, request: ListOffsetsRequest) -> bool:
        """Whether all that was appended to the partitions asked for may be told of."""
        return not any(
            self._partitions.is_behind(topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        )

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Look up offsets by timestamp or by name."""
        stable = request.isolation_level == READ_COMMITTED
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._offset(topic.name, each, stable=stable) for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _offset(
        self, topic: str, wanted: ListOffsetsPartition, *, stable: bool
    ) -> ListOffsetsPartitionResponse:
        try:
            partition = self._partitions.get(topic, wanted.partition_index)
            partition.check_epoch(wanted.current_leader_epoch)
            partition.check_end_known()
            end_offset = partition.last_stable_offset if stable else partition.high_watermark
            found = _look_up(partition, wanted.timestamp, end_offset)
        except StreamlogError as error:
            code = _code(error)
            return ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, error_code=code
            )
        if found is None:
            return ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        offset, timestamp_ms = found
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            timestamp=timestamp_ms,
            offset=offset,
            leader_epoch=partition.log.epochs.at(offset),
        )

    # ---- leader epochs ----

    def epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Return where epochs ended: what a client read beyond that was lost (KIP-320)."""
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[self._epoch_end(topic.topic, each) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = self._partitions.get(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
        except StreamlogError as error:
            return EpochEndOffset(partition=wanted.partition, error_code=_code(error))
        epochs = partition.log.epochs
        epoch, end_offset = epochs.end_of(wanted.leader_epoch, partition.epoch_end)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


class _Reading:
    """One Fetch in progress: the bytes found so far, and whether a partition could not be read."""

    def __init__(
        self, partitions: Partitions, request: FetchRequest, version: int, want_mark: WantMark
    ) -> None:
        self._partitions = partitions
        self._want_mark = want_mark
        self._room_bytes = min(request.max_bytes, FETCH_BYTES_MAX)
        self._version = version
        self._committed = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        self.found_bytes = 0
        self.copy_bytes = 0
        """Of them, those of copies that others lead."""
        self.failed = False
        self.places: list[tuple[str, int]] = []
        """What was read, by name."""

    def topic(self, asked: FetchTopic) -> FetchableTopicResponse:
        """Read the partitions of one topic, given by name or by id."""
        name: str | None = asked.topic
        # Inside of a process both may be given: then the id tells a topic from its namesake.
        if asked.topic_id != ZERO_UUID or (not name and self._version >= TOPIC_IDS_VERSION):
            name = self._partitions.name_of(asked.topic_id)
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            partitions = [self._unreadable(each, code) for each in asked.partitions]
        else:
            partitions = [self._partition(name, each) for each in asked.partitions]
        return FetchableTopicResponse(
            topic=asked.topic, topic_id=asked.topic_id, partitions=partitions
        )

    def _unreadable(
        self, wanted: FetchPartition, code: int, error: StreamlogError | None = None
    ) -> PartitionData:
        self.failed = True
        return PartitionData(
            partition_index=wanted.partition,
            error_code=code,
            high_watermark=-1,
            current_leader=_current_leader(error),
            records=b"",
        )

    def _partition(self, topic: str, wanted: FetchPartition) -> PartitionData:
        self.places.append((topic, wanted.partition))
        try:
            partition = self._place(topic, wanted)
            diverging = _diverging(partition, wanted) if partition.is_leader else None
            elsewhere = None if diverging else self._elsewhere(partition, wanted)
            if diverging is None and elsewhere is None:
                found = self._read(partition, wanted)
            else:
                self.failed = True  # There is nothing to wait for.
                found = _Found(b"", _ends(partition), [] if self._committed else None)
        except StreamlogError as error:
            return self._unreadable(wanted, _code(error), error)
        self.found_bytes += len(found.records)
        if not partition.is_leader:
            self.copy_bytes += len(found.records)
        if wanted.mark_after_ms >= 0 and wanted.fetch_offset == found.ends.high_watermark:
            self._want_mark(partition, wanted.mark_after_ms, _told(wanted))
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=found.ends.high_watermark,
            last_stable_offset=found.ends.last_stable_offset,
            log_start_offset=found.ends.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=found.aborted,
            preferred_read_replica=NOBODY if elsewhere is None else elsewhere,
            records=found.records,
        )

    def _place(self, topic: str, wanted: FetchPartition) -> Partition:
        """Where to read: what is led here, or for a reader with a rack a copy (KIP-392)."""
        find = self._partitions.readable if self._rack else self._partitions.get
        partition = find(topic, wanted.partition)
        if not self._rack or partition.is_leader:
            partition.check_epoch(wanted.current_leader_epoch)
        else:
            partition.check_copy(
                wanted.fetch_offset,
                leader_epoch=wanted.current_leader_epoch,
                last_epoch=wanted.last_fetched_epoch,
            )
        return partition

    def _elsewhere(self, partition: Partition, wanted: FetchPartition) -> int | None:
        """The broker that this reader is nearer to. Time marks are set by leaders alone."""
        if not self._rack or wanted.mark_after_ms >= 0:
            return None
        return partition.nearest(self._rack, wanted.fetch_offset)

    def _read(self, partition: Partition, wanted: FetchPartition) -> _Found:
        is_first = self.found_bytes == 0
        room_bytes = min(wanted.partition_max_bytes, self._room_bytes - self.found_bytes)
        found = _read(
            partition,
            wanted.fetch_offset,
            room_bytes,
            min_one=is_first,
            committed=self._committed,
        )
        if self._version < ZSTD_FETCH_VERSION:
            where = f"{partition.topic}-{partition.index}: Fetch version {self._version}"
            _refuse_zstd(one_buffer(found.records), where)
        return found


class _Found(NamedTuple):
    """What a Fetch returns for one partition."""

    records: Piece
    ends: PartitionEnds
    aborted: list[AbortedTransaction] | None
    """Told to readers of committed records: whose records they have to leave out."""


def _read(
    partition: Partition, offset: int, room_bytes: int, *, min_one: bool, committed: bool
) -> _Found:
    """Read on from `offset`, for both ways of a Fetch. Raises what `Partition.range` raises."""
    records = partition.range(
        offset, max_bytes=max(room_bytes, 0), min_one=min_one, stable=committed
    )
    if not committed:
        return _Found(records, _ends(partition), None)
    aborted = [
        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in (partition.aborted(offset) if len(records) else ())
    ]
    return _Found(records, _ends(partition), aborted)


def _wait_at_end(alike: FetchAlike, partition: Partition) -> FetchWait | None:
    """Return what a reader at the end of its partition waits for; None if it does not wait."""
    request = alike.pattern.request
    waits = request.max_wait_ms > 0 and request.min_bytes > 0
    if not waits or alike.offset != partition.high_watermark:
        return None
    return FetchWait(((partition.topic, partition.index),), request.min_bytes)


def _told(wanted: FetchPartition) -> MarkTold | None:
    """What a reader wants a mark to tell; None: nothing, or what no mark may tell."""
    clock, time_ms = wanted.mark_clock, wanted.mark_to_ms
    is_sound = clock and len(clock.encode()) <= CLOCK_BYTES_MAX and 0 <= time_ms <= TIMESTAMP_MS_MAX
    return MarkTold(clock, time_ms) if is_sound else None


def _ends(partition: Partition) -> PartitionEnds:
    return PartitionEnds(
        partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset
    )


def _diverging(partition: Partition, wanted: FetchPartition) -> DivergingEpoch | None:
    """Where a reader that tells the epoch of its last batch has left this log (KIP-595)."""
    if wanted.last_fetched_epoch == NO_EPOCH:
        return None
    found = partition.diverges(wanted.last_fetched_epoch, wanted.fetch_offset)
    return None if found is None else DivergingEpoch(epoch=found[0], end_offset=found[1])


def _look_up(partition: Partition, timestamp_ms: int, end_offset: int) -> tuple[int, int] | None:
    """Return an offset and its timestamp (-1 if unknown); None if there is no such offset.

    Offsets from `end_offset` on are not visible.
    """
    log = partition.log
    if timestamp_ms == LATEST:
        return end_offset, -1
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp_ms == MAX_TIMESTAMP:
        return _before(end_offset, log.max_timestamp())
    if timestamp_ms == LATEST_REMOTE:
        return None
    if timestamp_ms < 0:
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"{partition.topic}-{partition.index}: invalid timestamp {timestamp_ms}",
        )
    return _before(end_offset, log.offset_for_timestamp(timestamp_ms))


def _before(end_offset: int, found: tuple[int, int] | None) -> tuple[int, int] | None:
    return found if found is not None and found[0] < end_offset else None


def _produce_refusal(request: ProduceRequest) -> LogError | None:
    if (refusal := refusal_without_id(request)) is not None:
        return refusal
    if request.acks not in (-1, 0, 1):
        return error_for(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: use all (-1), 1 or 0"
        )
    return None


def _refuse_zstd(data: Buffer, where: str) -> None:
    for batch in split_batches(data):
        if batch.codec is Compression.ZSTD:
            raise error_for(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{where} does not support zstd"
            )


def refuse_partition(index: int, error: StreamlogError) -> PartitionProduceResponse:
    """The answer to a Produce that could not be appended."""
    # Not the batch that was sent is corrupt, but the end of the log that it should go behind.
    stored = isinstance(error, CorruptData)
    code = ErrorCode.KAFKA_STORAGE_ERROR if stored else _code(error)
    return PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=-1,
        error_message=str(error),
        current_leader=_current_leader(error),
        record_errors=_record_errors(error),
    )


def _in_version(answer: PartitionProduceResponse, sending: _Sending) -> PartitionProduceResponse:
    """The refusal as newer clients have it: a transaction to be aborted is no fatal error."""
    is_known = sending.version >= ABORTABLE_PRODUCE_VERSION and sending.transactional_id is not None
    if is_known and answer.error_code == ErrorCode.INVALID_TXN_STATE:
        answer.error_code = ErrorCode.TRANSACTION_ABORTABLE
    return answer


def _record_errors(error: StreamlogError) -> list[BatchIndexAndErrorMessage]:
    """The bad records of a batch that was refused (KIP-467)."""
    if not isinstance(error, RecordsRefused):
        return []
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index, reason in error.record_errors.items()
    ]


def _refuse(answer: PartitionProduceResponse, error: StreamlogError) -> None:
    """Make an error of what was going to be a good answer."""
    answer.error_code, answer.error_message = _code(error), str(error)
    answer.base_offset = answer.log_append_time_ms = -1
    answer.current_leader = _current_leader(error)


def _current_leader(error: StreamlogError | None) -> LeaderIdAndEpoch | None:
    """Return the current leader, for a client that asked another broker (KIP-951)."""
    if not isinstance(error, NotLeader) or error.current is None:
        return None
    leader_id, epoch = error.current
    return LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)


def _code(error: StreamlogError) -> int:
    """Return the error code for a client; disk errors are also logged."""
    if isinstance(error, LogError):
        return error.code
    if isinstance(error, CorruptData):
        return ErrorCode.CORRUPT_MESSAGE  # Told by the log, where it is and once.
    _log.error("could not use a partition: %s", error)
    return ErrorCode.KAFKA_STORAGE_ERROR
