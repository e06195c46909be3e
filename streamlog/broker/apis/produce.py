"""The life of a Produce request, from its message to its acknowledgement.

Versions 3 to 12. Each partition of a request has its own answer, and the error of one disturbs no
other. With acks=0 there is no response: a refusal closes the connection, as in Kafka. Record
batches stay the bytes that the client sent, unless the topic has them compressed anew.

Not implemented: message formats before record batches (versions 0 to 2).

The steps, in the order of this file:

1. `server/connection` has checked the sender: session and quota there, ACLs by the rule
   `produce` of `security/topic_rules`. The partitions of a transactional request have also been
   verified with its coordinator, or added to the transaction
   (`coordinator/transaction/partition_verification`). `ProduceRequests` takes it up.
2. If a batch is compressed, has to be compressed, or is large, a thread validates it first
   (`RecordChecks`). Requests of the connection that come later wait, so that their order holds.
3. The batches are appended: those of a single request one by one (`append_request`), those of a
   run of requests (`protocol/produce_runs`) with one write per partition (`append_run`). Both ways
   go through `storage/validator` and give every request the same answer
   (docs/decisions/003-produce-runs.md). A run has no transactions and no acks=0.
4. The response waits until the log is flushed (`replication/group_flush`) and, with acks=all, until
   every in-sync replica has the records (`ProduceAcks`), or until the request's timeout.
5. An error of a partition becomes its answer (`refuse_partition`).

Rule of the file: a thread gets a copy of the records, because the next request overwrites the
connection's buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from streamlog.broker.apis.list_offsets import current_leader, error_code, refuse_zstd
from streamlog.broker.config.broker import AS_PRODUCED, UNCOMPRESSED, TopicConfig
from streamlog.broker.coordinator.transaction.partition_verification import TransactionalWrite
from streamlog.broker.future_responses import PromptFuture, is_abandoned, when_done
from streamlog.broker.security.coordinator_rules import (
    refusal_of_transactional,
    refusal_without_id,
)
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob
from streamlog.broker.storage.log.batch_run import wait_for_thread
from streamlog.broker.storage.validator import AppendOrigin, Prepared, is_checked, prepare
from streamlog.errors import ConnectionLost, CorruptData, LogError, RecordsRefused, StreamlogError
from streamlog.protocol.api_table import TRANSACTIONS_V2_SINCE
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Piece, one_buffer
from streamlog.records.batch import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.group_flush import AnyFlush
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.storage.disk.offload import Threads
    from streamlog.broker.storage.validator import AppendResult
    from streamlog.clock import Clock
    from streamlog.protocol.produce_runs import Alike, ProducePattern
    from streamlog.protocol.schema import Buffer

ALL = -1
"""acks=all: the response waits for every in-sync replica."""
ZSTD_VERSION = 7
"""Clients that speak an older version do not know zstd (KIP-110)."""
LEADER_ENDPOINTS_VERSION = 10
"""The first version whose response has room for the endpoints of new leaders (KIP-951)."""
ABORTABLE_VERSION = 11
"""The first version whose clients know TRANSACTION_ABORTABLE (KIP-890)."""
CHECKS_THREAD = "streamlog-records"

Pieces: TypeAlias = list[Piece]
"""Responses as bytes, to requests that were read without the codec (`produce_runs`)."""
R = TypeVar("R")
ProduceAnswer: TypeAlias = ProduceResponse | asyncio.Future[ProduceResponse | None] | None
"""A response, or where it will be, or nothing for a Produce that wants none."""
CheckTransaction: TypeAlias = "Callable[[TransactionalWrite, tuple[str, int]], None]"
"""Raises LogError unless a producer may write to a partition in its transaction."""
CompleteProduce: TypeAlias = "Callable[[ProduceResponse, RequestContext], None]"
"""Names the endpoints of new leaders in a response (KIP-951)."""

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults

# ---- 1. a request is taken up ----


class WritablePartitions:
    """The partitions to which clients may write here."""

    def __init__(self, partitions: Partitions, *, internal_topics: frozenset[str]) -> None:
        self._partitions = partitions
        self._internal_topics = internal_topics

    def get(self, topic: str, index: int) -> Partition:
        """Return a partition.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            LogError: INVALID_TOPIC_EXCEPTION for an internal topic, NOT_LEADER_OR_FOLLOWER for a
                partition that another broker leads.
        """
        if topic in self._internal_topics:
            raise error_for(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"clients can't write to {topic}: it is an internal topic",
            )
        partition = self._partitions.get(topic, index)
        if not partition.is_alone:
            partition.check_leader()
        return partition

    def config_of(self, topic: str, index: int) -> TopicConfig | None:
        """Return the settings of a partition; None if `get` raises, as the append will."""
        try:
            return self.get(topic, index).log.config
        except StreamlogError:
            return None


class ProduceRequests:
    """Appends Produce requests, and answers once their records are durable."""

    def __init__(
        self,
        writable: WritablePartitions,
        *,
        check_transaction: CheckTransaction,
        flush: AnyFlush,
        clock: Clock,
        alarm: DeadlineTimer,
        threads: Threads,
        complete: CompleteProduce,
    ) -> None:
        self.checks = RecordChecks(threads)
        self._complete = complete
        self._writable = writable
        self._check_transaction = check_transaction
        self._flush = flush
        self._clock = clock
        self._alarm = alarm
        self.delayed = 0
        """How many requests wait until their records are committed; a run counts as one."""

    def stop(self, reason: StreamlogError) -> None:
        """Stop appending; waiting requests fail with the reason."""
        self.checks.stop(reason)

    def begin(self, request: ProduceRequest, context: RequestContext) -> ProduceAnswer:
        """Append a request; return its response, or where it will be, or None with acks=0."""
        check = check_of(self._writable, request, self._clock.wall_ms())
        if check is None and not self.checks.is_busy(context.connection):
            return self._append(request, context.version, {})
        # It has to wait behind an earlier request; `check_of` has copied its records otherwise.
        if check is None:
            keep(request)
        append = partial(self._append, request, context.version)
        return self.checks.begin(context.connection, check, append)

    def begin_run(
        self, run: ProduceRun, context: RequestContext
    ) -> Pieces | asyncio.Future[Pieces]:
        """Append the requests of a run; return their responses, or where they will be."""
        wall_ms = self._clock.wall_ms()
        parts = parts_of(self._writable, run)
        check = check_of_run(parts, run, wall_ms)
        if check is None and context.connection not in self.checks.waiting:
            return self._append_run(run, context, parts, wall_ms)
        if check is None:
            run.keep()
        append = partial(self._append_later, run, context)
        return self.checks.begin(context.connection, check, append)

    def _append(
        self, request: ProduceRequest, version: int, checked: Checked | None
    ) -> ProduceAnswer:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        uncommitted: list[Uncommitted] = []
        sending = _Sending(
            request.transactional_id,
            version,
            now_ms,
            wall_ms,
            request.acks,
            uncommitted,
            checked or MappingProxyType({}),
            self._check_transaction,
        )
        attempt = append_request(self._writable, request, sending)
        # Also with acks=0: records without a response are flushed, too.
        self._flush_in_time()
        if request.acks == 0:
            _raise_first_error(attempt.response)
            return None
        if uncommitted:
            return self._when_committed(
                lambda: attempt.response, attempt.failed, uncommitted, request.timeout_ms
            )
        if attempt.durable:
            return attempt.response
        return when_flushed(self._flush, lambda: attempt.response, attempt.failed)

    def _append_later(
        self, run: ProduceRun, context: RequestContext, checked: CheckedRun | None
    ) -> Pieces | asyncio.Future[Pieces]:
        """Append a run that has waited: its partitions may be led elsewhere now."""
        parts = parts_of(self._writable, run)
        return self._append_run(run, context, parts, self._clock.wall_ms(), checked=checked)

    def _append_run(
        self,
        run: ProduceRun,
        context: RequestContext,
        parts: list[RunPart],
        wall_ms: int,
        *,
        checked: CheckedRun | None = None,
    ) -> Pieces | asyncio.Future[Pieces]:
        def complete(response: ProduceResponse, version: int) -> None:
            if version >= LEADER_ENDPOINTS_VERSION:
                self._complete(response, context)

        now_ms = self._clock.now_ms()
        attempt = append_run(parts, run, now_ms, wall_ms, complete=complete, checked=checked)
        self._flush_in_time()
        if attempt.uncommitted:
            # The responses leave together, so the run waits for its longest timeout.
            timeout_ms = max(pattern.timeout_ms for pattern, *_ in run.requests)
            return self._when_committed(
                attempt.response, attempt.failed, attempt.uncommitted, timeout_ms
            )
        if attempt.durable:
            return attempt.response()
        return when_flushed(self._flush, attempt.response, attempt.failed)

    def _flush_in_time(self) -> None:
        """Set the deadline timer for the next flush."""
        flush_ms = self._flush.next_deadline_ms()
        if flush_ms is not None:
            self._alarm.by(flush_ms)

    def _when_committed(
        self,
        answer: Callable[[], R],
        failed: Callable[[StreamlogError], R],
        uncommitted: list[Uncommitted],
        timeout_ms: int,
    ) -> asyncio.Future[R]:
        """Answer once everything is durable and committed, has failed, or has timed out."""
        durable = when_flushed(self._flush, answer, failed)
        commits = ProduceAcks(uncommitted)
        response: PromptFuture[R] = PromptFuture()

        def try_answer() -> None:
            # A timeout does not answer before the flush: the records that it leaves in the log
            # are durable on this broker, or the response says that the disk failed.
            if not durable.done() or is_abandoned(response, durable):
                return
            failure = durable.exception()
            if failure is not None:
                response.set_exception(failure)
            elif commits.done or commits.timed_out:
                response.set_result(answer())

        def on_timeout() -> None:
            commits.time_out()
            try_answer()

        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, on_timeout)

        def on_done(_: asyncio.Future[R]) -> None:
            timer.cancel()
            self.delayed -= 1

        self.delayed += 1
        # Prompt: a callback of the event loop would cost each request another iteration.
        response.when_done(on_done)
        when_done(durable, lambda _: try_answer())
        commits.begin(try_answer)
        return response


def when_flushed(
    flush: AnyFlush, answer: Callable[[], R], failed: Callable[[StreamlogError], R]
) -> asyncio.Future[R]:
    """Return the future of `answer`, called once everything appended by now is on disk.

    `failed` makes the answer if the disk fails. If the broker stops, the future raises
    ConnectionLost.
    """
    response: PromptFuture[R] = PromptFuture()

    def on_flushed(failure: StreamlogError | None) -> None:
        if response.done():
            return  # The client has disconnected.
        if isinstance(failure, ConnectionLost):
            response.set_exception(failure)
        else:
            response.set_result(answer() if failure is None else failed(failure))

    flush.then(on_flushed)
    return response


# ---- 2. a thread validates what takes long ----

Outcome: TypeAlias = Prepared | StreamlogError
Checked: TypeAlias = Mapping[tuple[str, int], Outcome]
"""The batches that a thread has validated, or their refusals, by topic and index."""
CheckedRun: TypeAlias = Mapping[int, Outcome]
"""The batches of a run that a thread has validated, by the index of the request."""


def check_of(
    writable: WritablePartitions, request: ProduceRequest, wall_ms: int
) -> Callable[[], Checked] | None:
    """Return the thread's work before a request is appended; None if there is none."""
    configs = {}
    for topic in request.topic_data:
        for each in topic.partition_data:
            config = writable.config_of(topic.name, each.index)
            records = memoryview(one_buffer(each.records))
            if config is not None and needs_thread([records], config):
                configs[topic.name, each.index] = config
    if not configs:
        return None
    keep(request)
    works = {
        (topic.name, each.index): cast("bytearray", each.records)
        for topic in request.topic_data
        for each in topic.partition_data
        if (topic.name, each.index) in configs
    }
    return lambda: {
        key: check_records(records, configs[key], wall_ms) for key, records in works.items()
    }


class RunPart(NamedTuple):
    """The requests of a run for one partition."""

    pattern: ProducePattern
    numbers: list[int]
    """Their indexes in the run."""
    pieces: list[memoryview]
    """Their records."""
    partition: Partition | StreamlogError
    """Where they are appended, or why they are not."""


def parts_of(writable: WritablePartitions, run: ProduceRun) -> list[RunPart]:
    """Return a run by partition, as clients may write now."""
    parts: list[RunPart] = []
    for pattern, numbers in run.by_pattern().items():
        pieces = [run.requests[number].records for number in numbers]
        try:
            partition = writable.get(pattern.topic, pattern.index)
            if pattern.acks == ALL and not partition.is_alone:
                partition.check_insync()
        except StreamlogError as error:
            parts.append(RunPart(pattern, numbers, pieces, error))
        else:
            parts.append(_new_tuple(RunPart, (pattern, numbers, pieces, partition)))
    return parts


def check_of_run(
    parts: list[RunPart], run: ProduceRun, wall_ms: int
) -> Callable[[], CheckedRun] | None:
    """Return the thread's work for a run of requests, by their indexes; None if there is none."""
    configs: dict[int, TopicConfig] = {}
    for _, numbers, pieces, partition in parts:
        if isinstance(partition, StreamlogError):
            continue
        config = partition.log.config
        if needs_thread(pieces, config):
            configs.update(dict.fromkeys(numbers, config))
    if not configs:
        return None
    run.keep()
    works = [(number, run.requests[number].records, configs[number]) for number in configs]
    return lambda: {
        number: check_records(records, config, wall_ms) for number, records, config in works
    }


def keep(request: ProduceRequest) -> None:
    """Copy the records, so that the connection may reuse its buffer."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = bytearray(one_buffer(data.records))


def needs_thread(pieces: Sequence[memoryview], config: TopicConfig) -> bool:
    """Return whether a thread has to validate or compress these batches."""
    if config.compression_type not in (AS_PRODUCED, UNCOMPRESSED):
        return True
    # In this order: most batches need none, and the compiled look at them costs the least.
    return wait_for_thread(pieces) and is_checked(config)


def check_records(
    data: bytearray | memoryview,
    config: TopicConfig,
    wall_ms: int,
    *,
    origin: AppendOrigin = AppendOrigin.TRANSACTION,
) -> Outcome:
    """Validate the batches of one partition; return them, or the error that refuses them."""
    try:
        return prepare(data, config, wall_ms=wall_ms, origin=origin)
    except StreamlogError as error:
        return error


class _Waiting(NamedTuple):
    """A request that waits for its validation, or for earlier requests of its connection."""

    job: OffloadedJob[Any] | None
    append: Callable[[Any], Any]
    answer: asyncio.Future[Any]


class RecordChecks:
    """Validates records in a thread, and keeps the order of each connection's requests."""

    def __init__(self, threads: Threads) -> None:
        self._thread = Offload(threads, CHECKS_THREAD)
        self.waiting: dict[int, deque[_Waiting]] = {}
        """The requests that wait for validation, by connection; without those that have none."""
        self._listeners: dict[int, Callable[[], None]] = {}

    def is_busy(self, connection: int) -> bool:
        """Return whether requests of the connection wait for validation."""
        return connection in self.waiting

    def when_free(self, connection: int, then: Callable[[], None]) -> None:
        """Call `then` once no request of the connection waits for validation."""
        self._listeners[connection] = then

    def begin(
        self, connection: int, work: Callable[[], Any] | None, append: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """Have the thread do `work`, then pass its result to `append`, which returns the answer.

        Without `work`, `append` only waits for its turn and is given None.

        Raises:
            NoThread: the thread could not start; the request is not taken up.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job = None if work is None else OffloadedJob(work)
        if job is not None:
            # First: if the thread can't start, the connection must not wait for it.
            self._thread.start(job, lambda: self._append_checked(connection))
        queue = self.waiting.setdefault(connection, deque())
        queue.append(_Waiting(job, append, answer))
        return answer

    def stop(self, reason: StreamlogError) -> None:
        """Stop validating; waiting requests fail with the reason."""
        self._thread.close()
        waiting, self.waiting = self.waiting, {}
        for queue in waiting.values():
            for each in queue:
                if not each.answer.done():
                    each.answer.set_exception(reason)

    def _append_checked(self, connection: int) -> None:
        """Append the requests at the front of a connection's queue that are validated."""
        # 1. A compressed request is in the thread. 2. A plain one comes behind it on the same
        # connection. It must not be appended first: an idempotent producer's sequence would have
        # a gap. So it waits in the queue, without a job, and both are appended here.
        queue = self.waiting.get(connection)
        while queue and (queue[0].job is None or queue[0].job.is_done):
            job, append, answer = queue.popleft()
            if not answer.done():  # A client that has disconnected cancels it.
                _answer(answer, append, None if job is None else job.result())
        if queue is not None and not queue:
            del self.waiting[connection]
            listener = self._listeners.pop(connection, None)
            if listener is not None:
                listener()


def _answer(
    answer: asyncio.Future[Any],
    append: Callable[[Any], Any],
    result: Any,  # noqa: ANN401 - of the work
) -> None:
    """Call `append` with the thread's result; settle `answer` with its response or error."""
    try:
        found = append(result)
    except StreamlogError as error:
        answer.set_exception(error)
        return
    if not isinstance(found, asyncio.Future):
        answer.set_result(found)
        return

    def hand_on(done: asyncio.Future[Any]) -> None:
        if is_abandoned(answer, done):
            return
        if done.cancelled():
            answer.cancel()
        elif (error := done.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    found.add_done_callback(hand_on)
    answer.add_done_callback(lambda _: found.cancel() if answer.cancelled() else None)


# ---- 3. a single request is appended ----


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
    """Filled with the appends that must also be committed."""
    checked: Checked
    check_transaction: CheckTransaction


def append_request(
    writable: WritablePartitions, request: ProduceRequest, sending: _Sending
) -> ProduceAttempt:
    """Append the batches of a request; every partition has its own answer."""
    refusal = _request_refusal(request)
    responses = []
    durable = True
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            if refusal is None:
                answer, is_durable = _append_partition(writable, topic.name, data, sending)
                durable = durable and is_durable
            else:
                answer = refuse_partition(data.index, refusal)
            answers.append(answer)
        responses.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
    return ProduceAttempt(ProduceResponse(responses=responses), durable)


def _request_refusal(request: ProduceRequest) -> LogError | None:
    """Return the error that refuses a request as a whole; None if there is none."""
    if (refusal := refusal_without_id(request)) is not None:
        return refusal
    if request.acks not in (ALL, 0, 1):
        return error_for(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: use all (-1), 1 or 0"
        )
    return None


def _append_partition(
    writable: WritablePartitions, topic: str, data: PartitionProduceData, sending: _Sending
) -> tuple[PartitionProduceResponse, bool]:
    """Append the batches of one partition; return its answer, and whether it is durable."""
    try:
        partition = writable.get(topic, data.index)
        if sending.acks == ALL:
            partition.check_insync()
        ready = sending.checked.get((topic, data.index))
        if isinstance(ready, StreamlogError):
            return refuse_partition(data.index, ready), True
        batches = one_buffer(data.records) if ready is None else ready.data
        if sending.version < ZSTD_VERSION:
            refuse_zstd(batches, f"{topic}-{data.index}: Produce version {sending.version}")
        result = partition.append(
            batches,
            now_ms=sending.now_ms,
            wall_ms=sending.wall_ms,
            origin=_origin(batches, (topic, data.index), sending),
            prepared=ready,
        )
    except StreamlogError as error:
        return _in_version(refuse_partition(data.index, error), sending), True
    answer = _appended(data.index, result, partition.log.log_start_offset)
    end_offset = result.last_offset + 1
    if partition.is_alone or sending.acks != ALL:
        return answer, partition.is_kept(end_offset)
    # With acks=all the commit is enough: the high watermark does not pass what this replica itself
    # counts as kept.
    if not partition.may_acknowledge(end_offset):
        refuse = partial(_refuse_appended, answer)
        sending.uncommitted.append(Uncommitted(partition, end_offset, refuse))
    return answer, True


def _origin(batches: Buffer, key: tuple[str, int], sending: _Sending) -> AppendOrigin:
    """Return whether the batches belong to a transaction that has reached this partition.

    Raises:
        LogError: they belong to another transaction, or to none that is open.
    """
    if sending.transactional_id is None or not len(batches):
        return AppendOrigin.CLIENT
    try:
        batch = RecordBatch(batches)
    except CorruptData:
        return AppendOrigin.CLIENT  # The append raises the same error, with the reason.
    if not batch.is_transactional:
        return AppendOrigin.CLIENT
    producer = (batch.producer_id, batch.producer_epoch)
    adds = sending.version >= TRANSACTIONS_V2_SINCE[ProduceRequest]
    sending.check_transaction(TransactionalWrite(sending.transactional_id, producer, adds), key)
    return AppendOrigin.TRANSACTION


def _appended(index: int, result: AppendResult, log_start_offset: int) -> PartitionProduceResponse:
    """Return the answer for records that are in the log."""
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=log_start_offset,
    )


# ---- 3. a run of requests is appended ----


class RunAttempt(NamedTuple):
    """The responses to a run, to be sent once everything required is on disk."""

    run: ProduceRun
    answers: list[bytes]
    refusals: dict[int, PartitionProduceResponse]
    """The answers of requests that failed, by the index of the request."""
    durable: bool
    """Whether everything that has to be on disk is."""
    uncommitted: list[Uncommitted]
    """The appends that must also be committed."""
    complete: Callable[[ProduceResponse, int], None]
    """Names the endpoints of new leaders in a response of a version; see `CompleteProduce`."""

    def response(self) -> Pieces:
        """Return the responses, concatenated."""
        for number, refusal in self.refusals.items():
            pattern, correlation_id, _ = self.run.requests[number]
            # The slow way, through the codec: an accepted request's bytes come from its pattern.
            response = pattern.response_with(refusal)
            self.complete(response, pattern.version)
            self.answers[number] = pattern.written(correlation_id, response)
        if self.refusals:
            self.run.error_codes = [refusal.error_code for refusal in self.refusals.values()]
        return [b"".join(self.answers)]

    def failed(self, failure: StreamlogError) -> Pieces:
        """Return the responses if the disk has failed: an error for every request."""
        for number, (pattern, *_) in enumerate(self.run.requests):
            if number not in self.refusals:
                self.refusals[number] = refuse_partition(pattern.index, failure)
        return self.response()


def append_run(
    parts: list[RunPart],
    run: ProduceRun,
    now_ms: int,
    wall_ms: int,
    *,
    complete: Callable[[ProduceResponse, int], None],
    checked: CheckedRun | None = None,
) -> RunAttempt:
    """Append the requests of a run, all batches of one partition together.

    `checked` holds the outcomes of requests that a thread has validated; see `RunAttempt` for
    `complete`.
    """
    answers = [b""] * len(run.requests)
    refusals: dict[int, PartitionProduceResponse] = {}
    durable = True
    uncommitted: list[Uncommitted] = []
    for pattern, numbers, sent, partition in parts:
        if isinstance(partition, StreamlogError):
            outcomes: Sequence[AppendResult | StreamlogError] = [partition for _ in numbers]
            log_start_offset = -1
        else:
            pieces = sent
            ready = [checked[number] for number in numbers if number in checked] if checked else []
            # A thread checks all requests of a pattern or none, so the lists have equal lengths. It
            # may have compressed the batches anew: those are appended. A refused request keeps its
            # index, so that outcomes belong to the right requests.
            if ready:
                pieces = [
                    piece if isinstance(each, StreamlogError) else memoryview(each.data)
                    for piece, each in zip(sent, ready, strict=True)
                ]
            outcomes = partition.append_each(pieces, now_ms=now_ms, wall_ms=wall_ms, prepared=ready)
            log_start_offset = partition.log.log_start_offset
            # One write: the last append's end covers all earlier ones of the run.
            end_offset = _end_offset(outcomes)
            if partition.is_alone or pattern.acks != ALL:
                durable = partition.is_kept(end_offset) and durable
            else:
                appended = zip(numbers, outcomes, strict=True)
                uncommitted += _uncommitted(refusals, partition, appended)
        for number, outcome in zip(numbers, outcomes, strict=True):
            correlation_id = run.requests[number].correlation_id
            if isinstance(outcome, StreamlogError):
                refusals[number] = _refused(run.requests[number], outcome)
            else:
                answers[number] = _accepted(pattern, correlation_id, outcome, log_start_offset)
    attempt = run, answers, refusals, durable, uncommitted, complete
    return _new_tuple(RunAttempt, attempt)


def _accepted(
    pattern: ProducePattern, correlation_id: int, result: AppendResult, log_start_offset: int
) -> bytes:
    """Return the response for records that are in the log."""
    if result.log_append_time_ms < 0:
        return pattern.accepted(correlation_id, result.base_offset, log_start_offset)
    answer = _appended(pattern.index, result, log_start_offset)
    return pattern.answered(correlation_id, answer)


def _refused(request: Alike, error: StreamlogError) -> PartitionProduceResponse:
    """Return the answer of a request that failed; requests of a run have no transactional id."""
    pattern, _, records = request
    return refuse_partition(pattern.index, refusal_of_transactional(records) or error)


def _uncommitted(
    refusals: dict[int, PartitionProduceResponse],
    partition: Partition,
    appended: Iterable[tuple[int, AppendResult | StreamlogError]],
) -> list[Uncommitted]:
    """Return what each request waits for in a replicated partition."""
    log_start_offset = partition.log.log_start_offset

    def refuse(number: int, result: AppendResult, error: StreamlogError) -> None:
        refusals[number] = _appended(partition.index, result, log_start_offset)
        _refuse_appended(refusals[number], error)

    return [
        Uncommitted(partition, outcome.last_offset + 1, partial(refuse, number, outcome))
        for number, outcome in appended
        if not isinstance(outcome, StreamlogError)
        and not partition.may_acknowledge(outcome.last_offset + 1)
    ]


def _end_offset(outcomes: Sequence[AppendResult | StreamlogError]) -> int:
    """Return the end offset of appends; 0 if nothing was appended."""
    end_offset = 0
    for outcome in outcomes:
        # A duplicate ends where its first copy does, which may be before the others.
        if not isinstance(outcome, StreamlogError) and outcome.last_offset >= end_offset:
            end_offset = outcome.last_offset + 1
    return end_offset


# ---- 4. every in-sync replica has the records ----


class ProduceAcks:
    """Tracks the partitions of one acks=all request until every one is committed."""

    def __init__(self, uncommitted: list[Uncommitted]) -> None:
        self.timed_out = False
        """Whether the request's timeout has passed."""
        self._open = dict(enumerate(uncommitted))

    @property
    def done(self) -> bool:
        """Return whether every partition is committed or has failed."""
        return not self._open

    def begin(self, then: Callable[[], None]) -> None:
        """Wait for each partition; `then` is called whenever one is committed or fails."""
        for number, each in list(self._open.items()):
            each.partition.when_committed(each.end_offset, partial(self._on_one, number, then))

    def time_out(self) -> None:
        """Stop waiting: the appended records stay, and may still be committed."""
        self.timed_out = True
        for each in self._open.values():
            name = f"{each.partition.topic}-{each.partition.index}"
            what = f"{name}: the records are appended, but not committed yet"
            each.refuse(error_for(ErrorCode.REQUEST_TIMED_OUT, what))
        self._open.clear()

    def _on_one(
        self, number: int, then: Callable[[], None], failure: StreamlogError | None
    ) -> None:
        each = self._open.pop(number, None)
        if each is None:
            return
        if failure is not None:
            each.refuse(failure)
        then()


# ---- 5. an error becomes an answer ----


def refuse_partition(index: int, error: StreamlogError) -> PartitionProduceResponse:
    """Return the answer for a partition whose batches were not appended."""
    # The batch is sound: what is corrupt is the end of the log that it would follow.
    stored = isinstance(error, CorruptData)
    code = ErrorCode.KAFKA_STORAGE_ERROR if stored else error_code(error)
    return PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=-1,
        error_message=str(error),
        current_leader=current_leader(error),
        record_errors=_record_errors(error),
    )


def _in_version(answer: PartitionProduceResponse, sending: _Sending) -> PartitionProduceResponse:
    """Give newer clients the error that aborts a transaction instead of the fatal one."""
    is_known = sending.version >= ABORTABLE_VERSION and sending.transactional_id is not None
    if is_known and answer.error_code == ErrorCode.INVALID_TXN_STATE:
        answer.error_code = ErrorCode.TRANSACTION_ABORTABLE
    return answer


def _record_errors(error: StreamlogError) -> list[BatchIndexAndErrorMessage]:
    """Return the invalid records of a refused batch (KIP-467)."""
    if not isinstance(error, RecordsRefused):
        return []
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index, reason in error.record_errors.items()
    ]


def _refuse_appended(answer: PartitionProduceResponse, error: StreamlogError) -> None:
    """Make the answer for records that are in the log an error: they were not committed."""
    answer.error_code, answer.error_message = error_code(error), str(error)
    answer.base_offset = answer.log_append_time_ms = -1
    answer.current_leader = current_leader(error)


def _raise_first_error(response: ProduceResponse) -> None:
    """Raise the first error: with acks=0 only closing the connection reports it, as in Kafka."""
    for topic in response.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise error_for(
                    each.error_code, f"{topic.name}-{each.index}, acks=0", each.error_message
                )
