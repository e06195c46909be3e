"""PublishRequests: appends the staged batches of a finished job in one transaction (decision 010).

Staged batches are in files until their job publishes them. A publication is a generator of `Steps`
that `CooperativeRun` drives from callbacks of the event loop: it yields a future to wait for, or
None to let other requests run between two pieces.

`Publications` recognizes published jobs by their receipts in the topic `__publications`. A receipt
is a record of the job's own transaction, so it is committed exactly if everything else of the job
is. The topic is compacted and has no retention: a job that is repeated years later is recognized.

Rule of the file: only committed receipts count.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from crc32c import crc32c

from streamlog import repeated
from streamlog.broker.apis.produce import check_records, needs_thread
from streamlog.broker.coordinator.pending_requests import when_all_committed
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.security.principals import IN_PROCESS, RequestContext
from streamlog.broker.storage.data_directory import check_staged_name
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import (
    ConnectionLost,
    CorruptData,
    LogError,
    NotLeader,
    StreamlogError,
    UsageError,
)
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListGroupsRequest,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    DropStagedResponse,
    PublishedPartition,
    PublishedTopic,
    PublishGroup,
    PublishPartition,
    PublishRequest,
    PublishResponse,
    PublishSegment,
    StageRequest,
    StageResponse,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from streamlog.protocol.schema import Message, one_buffer
from streamlog.records.batch import RecordBatch, encode_batch, split_batches
from streamlog.records.control_batches import AbortedBatches
from streamlog.records.staged_segment import adopt_batches

if TYPE_CHECKING:
    from streamlog.broker.apis.produce import Outcome, RecordChecks
    from streamlog.broker.coordinator.group.group_requests import GroupRequests
    from streamlog.broker.coordinator.transaction.transaction_requests import TransactionRequests
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.storage.disk.files import Buffer, File
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.validator import Prepared
    from streamlog.clock import Clock


T = TypeVar("T")
Steps: TypeAlias = Generator["asyncio.Future[Any] | None", Any, T]


def pause(ms: int) -> asyncio.Future[None]:
    """Return a future that is done after `ms` milliseconds, for a generator to yield."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(ms / 1000, lambda: None if over.done() else over.set_result(None))
    return over


class CooperativeRun(Generic[T]):
    """Drives one generator; sets its result or error on `answer`, then calls `on_over`."""

    def __init__(
        self, steps: Steps[T], answer: asyncio.Future[T], on_over: Callable[[], None]
    ) -> None:
        self._steps = steps
        self._answer = answer
        self._on_over = on_over
        self._stopped = False

    def go_on(self, done: asyncio.Future[Any] | None = None) -> None:
        """Run the generator to its next yield; `done` is the future that it waited for."""
        if self._stopped:
            # `stop` has failed `answer` already. Reading the exception of `done` keeps asyncio from
            # logging it as never retrieved. Errors of the program itself are still raised.
            error = None if done is None or done.cancelled() else done.exception()
            if error is not None and not isinstance(error, StreamlogError | OSError):
                raise error
            return
        try:
            if done is None:
                waits_for = self._steps.send(None)
            elif (error := done.exception()) is not None:
                waits_for = self._steps.throw(error)
            else:
                waits_for = self._steps.send(done.result())
        except StopIteration as end:
            self._over(result=end.value)
        except (StreamlogError, OSError) as error:
            self._over(error=error)
        else:
            if waits_for is None:
                # `call_soon`, not a loop here: the callbacks that are ready now run before it.
                asyncio.get_running_loop().call_soon(self.go_on)
            else:
                waits_for.add_done_callback(self.go_on)

    def stop(self, reason: StreamlogError) -> None:
        """Close the generator and fail `answer` with the reason; `on_over` is not called."""
        self._stopped = True
        self._steps.close()
        if not self._answer.done():
            self._answer.set_exception(reason)

    def _over(self, *, result: Any = None, error: Exception | None = None) -> None:  # noqa: ANN401 - of the generator
        self._stopped = True
        if not self._answer.done():  # The client may have disconnected and cancelled it.
            if error is None:
                self._answer.set_result(result)
            else:
                self._answer.set_exception(error)
        self._on_over()


PUBLICATIONS_TOPIC: Final = "__publications"
PUBLICATIONS_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}
READ_BYTES: Final = 1024 * 1024

_VERSION = 0


def encode_receipt(topics: list[PublishedTopic], *, wall_ms: int) -> bytes:
    """Return the value of a job's record in `__publications`, as JSON."""
    return json.dumps(
        {
            "version": _VERSION,
            "published_ms": wall_ms,
            "topics": {
                topic.name: [
                    [each.partition_index, each.base_offset, each.last_offset, each.record_count]
                    for each in topic.partitions
                ]
                for topic in topics
            },
        }
    ).encode()


def decode_receipt(data: bytes) -> list[PublishedTopic]:
    """Return what a receipt says was published: topics, partitions, offsets and counts."""
    return [
        PublishedTopic(
            name=name,
            partitions=[
                PublishedPartition(
                    partition_index=index, base_offset=base, last_offset=last, record_count=count
                )
                for index, base, last, count in partitions
            ],
        )
        for name, partitions in json.loads(data)["topics"].items()
    ]


class Publications:
    """The receipts of this broker's jobs, read from the log as far as they are needed."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._position = 0
        self._receipts: dict[str, bytes] = {}

    def partition(self) -> Partition:
        """Return the partition that holds the receipts.

        Raises:
            UnknownTopicOrPartition: the topic has not been created yet.
        """
        return self._partitions.get(PUBLICATIONS_TOPIC, 0)

    def receipt(self, job_id: str) -> list[PublishedTopic] | None:
        """Return what a job has published; None if it has not been published.

        Raises:
            CorruptData: the log of receipts is damaged.
            LogDirectoryError: the receipts can't be read from the disk.
        """
        if not self._partitions.exists(PUBLICATIONS_TOPIC, 0):
            return None
        self._read_on(self.partition())
        found = self._receipts.get(job_id)
        return None if found is None else decode_receipt(found)

    def _read_on(self, partition: Partition) -> None:
        # Up to the last stable offset: a receipt beyond it is of an open transaction, which may
        # still be aborted.
        log, end_offset = partition.log, partition.last_stable_offset
        position = max(self._position, log.log_start_offset)
        if position >= end_offset:
            return
        aborted = AbortedBatches(each.range for each in log.aborted(position, end_offset))
        while self._position < end_offset:
            found = log.read(position, max_bytes=READ_BYTES, before_offset=end_offset)
            for batch in split_batches(found):
                if not batch.is_control and not aborted.hides(batch):
                    self._note(batch)
                position = batch.next_offset
            # After each read, not at the end: a read that fails later does not repeat this one.
            self._position = position

    def _note(self, batch: RecordBatch) -> None:
        for record in batch.records():
            self._receipts[(record.key or b"").decode()] = record.value or b""


PIECE_BYTES: Final = 1024 * 1024
"""How much of a staged file is appended at a time; a larger batch is appended alone."""
BUSY_PAUSE_MS: Final = 20
BUSY_PAUSES_MAX: Final = 1_500
"""How often to wait for the end of an earlier attempt's transaction: 30 s in all."""

NO_CONNECTION: Final = -1
"""The queue of record checks for publications; one is enough, as they run one at a time."""

_log = repeated.logger(__name__)
M = TypeVar("M", bound=Message)

CLIENT_ID: Final = "publishing"
"""The client id of requests that the broker sends to its own coordinators."""


class _Producer(NamedTuple):
    """The transactional producer of one attempt to publish a job."""

    job_id: str
    producer_id: int
    producer_epoch: int
    staged_by: str
    """The job id under which its segments were staged."""


class Coordinators(NamedTuple):
    """The parts of the broker that a publication uses."""

    transacting: TransactionRequests
    groups: GroupRequests
    checks: RecordChecks


class PublishRequests:
    """Handles Publish, Stage and DropStaged; publishes one job at a time."""

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        coordinators: Coordinators,
        *,
        internal_topics: frozenset[str],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._internal_topics = internal_topics
        self._partitions = partitions
        self._transacting, self._groups, self._checks = coordinators
        self._handlers = self._transacting.handlers()
        self._publications = Publications(partitions)
        self._clock = clock
        self._waiting: deque[tuple[PublishRequest, asyncio.Future[PublishResponse]]] = deque()
        self._current: CooperativeRun[PublishResponse] | None = None

    def handlers(self) -> Handlers:
        """Return the handler of each request type, for a broker's table."""
        return dict(
            [
                entry(PublishRequest, lambda request, _: self._begin(request)),
                entry(StageRequest, lambda request, _: self._stage(request)),
                entry(DropStagedRequest, lambda request, _: self._drop(request)),
            ]
        )

    def stop(self, reason: ConnectionLost) -> None:
        """Stop the current publication, and fail it and the waiting ones with `reason`."""
        current, self._current = self._current, None
        if current is not None:
            current.stop(reason)
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(reason)
        self._waiting.clear()

    # ---- staged files ----

    def _stage(self, request: StageRequest) -> StageResponse:
        data = one_buffer(request.records)
        try:
            size_bytes = self._directory.staging.write(
                request.job_id, request.name, request.position, data, is_last=request.is_last
            )
        except (LogError, OSError) as error:
            code, message = self._code_and_message(error)
            return StageResponse(error_code=code, error_message=message)
        return StageResponse(size_bytes=size_bytes)

    def _drop(self, request: DropStagedRequest) -> DropStagedResponse:
        try:
            self._directory.staging.drop(request.job_id)
        except (LogError, OSError) as error:
            code, message = self._code_and_message(error)
            return DropStagedResponse(error_code=code, error_message=message)
        return DropStagedResponse()

    # ---- publications ----

    def _begin(self, request: PublishRequest) -> PublishResponse | asyncio.Future[PublishResponse]:
        answer: asyncio.Future[PublishResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._next()
        return answer.result() if answer.done() else answer

    def _next(self) -> None:
        """Begin the next job, even if its client has disconnected."""
        if self._current is not None or not self._waiting:
            return
        request, answer = self._waiting.popleft()
        self._current = CooperativeRun(self._answered(request), answer, self._on_over)
        self._current.go_on()

    def _on_over(self) -> None:
        self._current = None
        self._next()

    def _answered(self, request: PublishRequest) -> Steps[PublishResponse]:
        try:
            response = yield from self._published(request)
        except (StreamlogError, OSError) as error:
            if isinstance(error, ConnectionLost):
                # The broker stops: fail the request instead of answering it.
                raise
            _log.warning("could not publish job %s: %s", request.job_id, error)
            code, message = self._code_and_message(error)
            return PublishResponse(error_code=code, error_message=message)
        # Only now: until the commit, a repeated attempt needs the files.
        try:
            self._directory.staging.drop(request.staged_by or request.job_id)
        except OSError as error:
            _log.warning("could not remove the staged batches of job %s: %s", request.job_id, error)
        return response

    def _published(self, request: PublishRequest) -> Steps[PublishResponse]:
        check_staged_name("the id of a job", request.job_id)
        staged_by = request.staged_by or request.job_id
        check_staged_name("the id of a job", staged_by)
        known = self._publications.receipt(request.job_id)
        if known is not None:
            return PublishResponse(is_repeated=True, topics=known)
        self._check(request)
        producer = yield from self._new_producer(request.job_id, staged_by)
        # A second look, because the first may have come too early:
        # 1. An attempt decides to commit. 2. The broker is killed before the markers are written.
        # 3. The client repeats the job: the receipt is not below the last stable offset yet.
        # 4. InitProducerId returns once the decided transaction is complete: the receipt counts.
        known = self._publications.receipt(request.job_id)
        if known is not None:
            return PublishResponse(is_repeated=True, topics=known)
        try:
            topics = yield from self._fill(request, producer)
            # Checked again: a member may have joined while the batches were appended.
            for group in request.groups:
                self._check_empty(group)
        except (StreamlogError, OSError):
            yield from self._end(producer, committed=False)
            raise
        yield from self._end(producer, committed=True)
        return PublishResponse(topics=topics)

    def _check(self, request: PublishRequest) -> None:
        """Raise LogError for a request that can't succeed, before anything is written."""
        seen: set[tuple[str, int]] = set()
        for topic in request.topics:
            for each in topic.partitions:
                partition = topic.name, each.partition_index
                if partition in seen or topic.name in self._internal_topics:
                    why = " twice" if partition in seen else ", which only brokers may write to"
                    raise _refused(f"job {request.job_id} names {partition[0]}-{partition[1]}{why}")
                seen.add(partition)
                self._check_led(request.job_id, *partition)
                for segment in each.segments:
                    self._check_size(request.staged_by or request.job_id, segment)
        for group in request.groups:
            self._check_empty(group)
            for placed in group.topics:
                for at in placed.partitions:
                    self._partitions.get(placed.name, at.partition_index)

    def _check_led(self, job_id: str, topic: str, index: int) -> None:
        """Raise LogError unless this broker leads the partition: it writes all of a publication."""
        try:
            self._partitions.get(topic, index)
        except NotLeader as error:
            current = error.current
            where = "which has no leader" if current is None else f"which broker {current[0]} leads"
            raise _refused(
                f"job {job_id} publishes to {topic}-{index}, {where}: the broker that gets the"
                " request has to lead all partitions of a publication; in a cluster, write with a"
                " transactional producer instead"
            ) from error

    def _check_size(self, job_id: str, segment: PublishSegment) -> None:
        file = self._directory.staging.open(job_id, segment.name)
        try:
            size_bytes = file.size()
        finally:
            file.close()
        if size_bytes != segment.size_bytes:
            raise _refused(
                f"{segment.name} of job {job_id} has {size_bytes} bytes, not {segment.size_bytes}:"
                " stage it again"
            )

    def _check_empty(self, group: PublishGroup) -> None:
        for listed in self._groups.list_groups(ListGroupsRequest()).groups:
            if listed.group_id == group.group_id and listed.group_state not in {"Empty", "Dead"}:
                raise error_for(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"group {group.group_id} has members (state: {listed.group_state}): stop"
                    " them, then publish again",
                )

    def _fill(self, request: PublishRequest, producer: _Producer) -> Steps[list[PublishedTopic]]:
        """Append the batches, offsets and receipt of a job; wait until they are committed."""
        receipts = self._publications.partition()
        partitions = [
            (t.name, each.partition_index) for t in request.topics for each in t.partitions
        ]
        yield from self._add_partitions(producer, [*partitions, (PUBLICATIONS_TOPIC, 0)])
        topics: list[PublishedTopic] = []
        for topic in request.topics:
            published = []
            for each in topic.partitions:
                partition = topic.name, each.partition_index
                published.append((yield from self._fill_partition(producer, partition, each)))
            topics.append(PublishedTopic(name=topic.name, partitions=published))
        for group in request.groups:
            yield from self._commit_offsets(producer, group)
        wall_ms = self._clock.wall_ms()
        key, receipt = producer.job_id.encode(), encode_receipt(topics, wall_ms=wall_ms)
        batch = encode_batch([(wall_ms, key, receipt, ())])
        yield from self._append(producer, receipts, batch)
        yield from self._durable(
            [receipts, *(self._partitions.get(*partition) for partition in partitions)]
        )
        return topics

    def _fill_partition(
        self, producer: _Producer, partition_key: tuple[str, int], wanted: PublishPartition
    ) -> Steps[PublishedPartition]:
        partition = self._partitions.get(*partition_key)
        base_offset = last_offset = -1
        total = 0
        for segment in wanted.segments:
            count = 0
            for piece in self._pieces(producer.staged_by, segment):
                first, last, records = yield from self._append(producer, partition, piece)
                base_offset = first if base_offset < 0 else base_offset
                last_offset, count = last, count + records
                yield None
            if count != segment.record_count:
                raise _refused(
                    f"{segment.name} of job {producer.job_id} has {count} records, not"
                    f" {segment.record_count}: stage it again"
                )
            total += count
        if wanted.records is not None and len(wanted.records):
            given = one_buffer(wanted.records)
            first, last, records = yield from self._append(producer, partition, given)
            base_offset = first if base_offset < 0 else base_offset
            last_offset, total = last, total + records
        return PublishedPartition(
            partition_index=partition_key[1],
            base_offset=base_offset,
            last_offset=last_offset,
            record_count=total,
        )

    def _pieces(self, job_id: str, segment: PublishSegment) -> Generator[bytes, None, None]:
        """Yield the batches of a staged file, in pieces of about `PIECE_BYTES`.

        Raises:
            CorruptData: the file is not what was staged. The CRC is known only at the end, when
                the pieces are appended: the caller aborts the transaction.
        """
        position = checksum = 0
        with closing(self._directory.staging.open(job_id, segment.name)) as file:
            while position < segment.size_bytes:
                piece = _whole_batches(file, position)
                if not piece:
                    raise CorruptData(
                        f"{segment.name} of job {job_id} ends within a batch: stage it again"
                    )
                checksum = crc32c(piece, checksum)
                position += len(piece)
                yield piece
        if checksum != segment.crc32c:
            raise CorruptData(
                f"{segment.name} of job {job_id} has CRC {checksum:#010x}, and"
                f" {segment.crc32c:#010x} was staged"
            )

    def _append(
        self, producer: _Producer, partition: Partition, data: Buffer
    ) -> Steps[tuple[int, int, int]]:
        """Append batches for the producer; return first and last offset and number of records."""
        job_id, producer_id, epoch, _ = producer
        batches = adopt_batches(data, producer_id, epoch)
        wall_ms, config, prepared = self._clock.wall_ms(), partition.log.config, None
        own = memoryview(batches.data)
        if needs_thread([own], config):
            check = partial(check_records, own, config, wall_ms, origin=AppendOrigin.COORDINATOR)
            prepared = yield self._checks.begin(NO_CONNECTION, check, _or_raised)
        # After the check in a thread, right before the append: meanwhile the transaction may have
        # timed out, or a newer attempt may have fenced this one.
        self._transacting.check(job_id, (producer_id, epoch), (partition.topic, partition.index))
        result = partition.append(
            own,
            now_ms=self._clock.now_ms(),
            wall_ms=wall_ms,
            origin=AppendOrigin.COORDINATOR,
            prepared=prepared,
        )
        return result.base_offset, result.last_offset, batches.record_count

    # ---- the transaction ----

    def _new_producer(self, job_id: str, staged_by: str) -> Steps[_Producer]:
        """Start an attempt: its producer epoch fences earlier ones and ends their transaction."""
        request = InitProducerIdRequest(
            transactional_id=job_id,
            transaction_timeout_ms=self._directory.config.transaction.timeout_ms_max,
            producer_id=-1,
            producer_epoch=-1,
        )
        for _ in range(BUSY_PAUSES_MAX):
            answer = yield from self._ask(request, InitProducerIdResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                _raise(answer.error_code, f"begin the publication of job {job_id}")
                return _Producer(job_id, answer.producer_id, answer.producer_epoch, staged_by)
            yield pause(BUSY_PAUSE_MS)
        raise error_for(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"an earlier publication of job {job_id} has not finished",
        )

    def _add_partitions(
        self, producer: _Producer, partitions: list[tuple[str, int]]
    ) -> Steps[None]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.job_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=[index])
                for topic, index in partitions
            ],
        )
        answer = yield from self._ask(request, AddPartitionsToTxnResponse)
        for topic in answer.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                _raise(each.partition_error_code, f"publish to {topic.name}-{each.partition_index}")

    def _commit_offsets(self, producer: _Producer, group: PublishGroup) -> Steps[None]:
        adding = AddOffsetsToTxnRequest(
            transactional_id=producer.job_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group.group_id,
        )
        added = yield from self._ask(adding, AddOffsetsToTxnResponse)
        _raise(added.error_code, f"publish offsets of group {group.group_id}")
        request = TxnOffsetCommitRequest(
            transactional_id=producer.job_id,
            group_id=group.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=each.partition_index,
                            committed_offset=each.committed_offset,
                            committed_metadata=each.committed_metadata,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in group.topics
            ],
        )
        answer = yield from self._ask(request, TxnOffsetCommitResponse)
        for topic in answer.topics:
            for each in topic.partitions:
                where = f"{topic.name}-{each.partition_index}"
                _raise(each.error_code, f"publish the offset of group {group.group_id} in {where}")

    def _end(self, producer: _Producer, *, committed: bool) -> Steps[None]:
        request = EndTxnRequest(
            transactional_id=producer.job_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        answer = yield from self._ask(request, EndTxnResponse)
        if committed:
            _raise(answer.error_code, f"commit the publication of job {producer.job_id}")

    def _ask(self, request: Message, kind: type[M]) -> Steps[M]:
        """Send a request to a coordinator on this broker; return its response."""
        own = RequestContext(
            version=api_of(type(request)).max_version,
            client_id=CLIENT_ID,
            client_host="",
            principal=IN_PROCESS,
        )
        answer = self._handlers[type(request)](request, own)
        if isinstance(answer, asyncio.Future):
            answer = yield answer
        if not isinstance(answer, kind):
            raise UsageError(f"{type(request).__name__} was answered by {type(answer).__name__}")
        return answer

    def _durable(self, partitions: list[Partition]) -> Steps[None]:
        """Wait until everything in the partitions is below the high watermark."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_durable(failure: StreamlogError | None) -> None:
            if not done.done():
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)

        when_all_committed(partitions, on_durable)
        yield done

    def _code_and_message(self, error: StreamlogError | OSError) -> tuple[int, str]:
        """Return an error's code and text for a response."""
        if isinstance(error, OSError):
            error = self._directory.failure_of(error)
        if isinstance(error, LogError):
            return error.code, str(error)
        # Not CORRUPT_MESSAGE, on which clients retry: a damaged staged file stays damaged.
        is_corrupt = isinstance(error, CorruptData)
        code = ErrorCode.INVALID_RECORD if is_corrupt else ErrorCode.KAFKA_STORAGE_ERROR
        return code, str(error)


def _whole_batches(file: File, position: int) -> bytes:
    """Return the batches that fit into a piece, or one larger batch; empty if none is whole."""
    # Reads twice as much until a batch is whole; a read that finds nothing more is the file's end.
    wanted_bytes, found_bytes, data = PIECE_BYTES, -1, b""
    while len(data) > found_bytes:
        found_bytes = len(data)
        data = file.read(wanted_bytes, position)
        whole_bytes = sum(batch.size_bytes for batch in split_batches(data))
        if whole_bytes:
            return data[:whole_bytes]
        wanted_bytes *= 2
    return b""


def _or_raised(outcome: Outcome) -> Prepared:
    if isinstance(outcome, StreamlogError):
        raise outcome
    return outcome


def _raise(code: int, what: str) -> None:
    if code:
        raise error_for(code, what)


def _refused(why: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, why)
