"""The life of a Produce request, from the handler to the acknowledgement.

1. `DelayedProduce` takes the request. If a batch is compressed, has to be compressed, or is large,
a
   thread validates it first (`RecordChecks`); requests of the connection that come later wait.
2. The records are appended: by `DataRequests.produce`, or by `append_run` for requests that arrived
   together and look alike. Both ways give every request the same answer and leave out no check;
   a run appends all batches of a partition with one write (docs/decisions/003-produce-runs.md).
3. The response waits until the log is flushed and, with acks=all, until every in-sync replica has
   the records (`ProduceAcks`), or until the request's timeout.

ListOffsets waits for the same flush, because it shows the end of a log to a client that may have
sent with acks=0.
Rule of the file: a thread gets a copy of the records, because the next request overwrites the
connection's buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from streamlog.broker.apis.data import ALL, Uncommitted, refuse_partition
from streamlog.broker.config.broker import AS_PRODUCED, UNCOMPRESSED, TopicConfig
from streamlog.broker.future_responses import is_abandoned
from streamlog.broker.security.coordinator_rules import refusal_of_transactional
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob
from streamlog.broker.storage.log.batch_run import wait_for_thread
from streamlog.broker.storage.validator import AppendOrigin, Prepared, is_checked, prepare
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsRequest,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message, Piece, one_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamlog.broker.apis.data import Checked, DataRequests
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.group_flush import GroupFlush
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.storage.disk.offload import Threads
    from streamlog.broker.storage.validator import AppendResult
    from streamlog.clock import Clock
    from streamlog.protocol.produce_runs import Alike, ProducePattern


LEADER_ENDPOINTS_VERSION = 10
"""From this version on a response has room for the endpoints of new leaders (KIP-951)."""

Outcome: TypeAlias = Prepared | StreamlogError
Pieces: TypeAlias = list[Piece]
"""Responses as bytes, to requests that were read without the codec (`produce_runs`)."""


def check_of(
    data: DataRequests, request: ProduceRequest, wall_ms: int
) -> Callable[[], Checked] | None:
    """Return the thread's work before a request is appended; None if there is none."""
    configs = {}
    for topic in request.topic_data:
        for each in topic.partition_data:
            config = data.config_of(topic.name, each.index)
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
        place: check_records(records, configs[place], wall_ms) for place, records in works.items()
    }


def check_of_run(
    data: DataRequests, run: ProduceRun, wall_ms: int
) -> Callable[[], dict[int, Outcome]] | None:
    """Return the thread's work for a run of requests, by their indexes; None if there is none."""
    configs: dict[int, TopicConfig] = {}
    for pattern, numbers in run.by_pattern().items():
        config = data.config_of(pattern.topic, pattern.index)
        pieces = [run.requests[number].records for number in numbers]
        if config is not None and needs_thread(pieces, config):
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
    return is_checked(config) and wait_for_thread(pieces)


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


CHECKS_THREAD = "streamlog-records"


class _Waiting(NamedTuple):
    """A request that waits for its validation, or for earlier requests of its connection."""

    job: OffloadedJob[Any] | None
    append: Callable[[Any], Any]
    answer: asyncio.Future[Any]


class RecordChecks:
    """Validates records in a thread, and keeps the order of each connection's requests."""

    def __init__(self, threads: Threads) -> None:
        self._aside = Offload(threads, CHECKS_THREAD)
        self._waiting: dict[int, deque[_Waiting]] = {}
        self._listeners: dict[int, Callable[[], None]] = {}

    def is_busy(self, connection: int) -> bool:
        """Return whether requests of the connection wait for validation."""
        return connection in self._waiting

    def when_free(self, connection: int, then: Callable[[], None]) -> None:
        """Call `then` once no request of the connection waits for validation."""
        self._listeners[connection] = then

    def begin(
        self, connection: int, work: Callable[[], Any] | None, append: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """Have `work` done by the thread, then give its result to `append`, whose answer it is.

        Without `work`, `append` only waits for its turn and is given None.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job = None if work is None else OffloadedJob(work)
        queue = self._waiting.setdefault(connection, deque())
        queue.append(_Waiting(job, append, answer))
        if job is not None:
            self._aside.start(job, lambda: self._go_on(connection))
        return answer

    def stop(self, reason: StreamlogError) -> None:
        """Stop validating; waiting requests fail with the reason."""
        self._aside.close()
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for each in queue:
                if not each.answer.done():
                    each.answer.set_exception(reason)

    def _go_on(self, connection: int) -> None:
        """Append the requests at the front that are checked."""
        queue = self._waiting.get(connection)
        while queue and (queue[0].job is None or queue[0].job.is_done):
            job, append, answer = queue.popleft()
            if not answer.done():  # Or its client has hung up.
                _answer(answer, append, None if job is None else job.result())
        if queue is not None and not queue:
            del self._waiting[connection]
            listener = self._listeners.pop(connection, None)
            if listener is not None:
                listener()


def _answer(
    answer: asyncio.Future[Any],
    append: Callable[[Any], Any],
    result: Any,  # noqa: ANN401 - of the work
) -> None:
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
    """Adds to a response of a version what every Produce response has; see `CompleteProduce`."""

    def response(self) -> Pieces:
        """Return the responses, concatenated."""
        for number, refusal in self.refusals.items():
            pattern, correlation_id, _ = self.run.requests[number]
            response = pattern.response_with(refusal)
            self.complete(response, pattern.version)
            self.answers[number] = pattern.written(correlation_id, response)
        return [b"".join(self.answers)]

    def failed(self, failure: StreamlogError) -> Pieces:
        """Return the responses if the disk has failed: an error for every request."""
        for number, (pattern, *_) in enumerate(self.run.requests):
            if number not in self.refusals:
                self.refusals[number] = refuse_partition(pattern.index, failure)
        return self.response()


CheckedRun: TypeAlias = "Mapping[int, Prepared | StreamlogError]"
"""The batches of a run that a thread has validated, by the index of the request."""


def append_run(
    data: DataRequests,
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
    for pattern, numbers in run.by_pattern().items():
        requests = [run.requests[number] for number in numbers]
        try:
            partition = data.writable(pattern.topic, pattern.index)
            if not partition.is_alone and pattern.acks == ALL:
                partition.check_insync()
        except StreamlogError as error:
            outcomes: Sequence[AppendResult | StreamlogError] = [error for _ in requests]
            log_start_offset = -1
        else:
            pieces = [request.records for request in requests]
            ready = [checked[number] for number in numbers if number in checked] if checked else []
            if ready:
                pieces = [
                    piece if isinstance(each, StreamlogError) else memoryview(each.data)
                    for piece, each in zip(pieces, ready, strict=True)
                ]
            outcomes = partition.append_each(pieces, now_ms=now_ms, wall_ms=wall_ms, prepared=ready)
            log_start_offset = partition.log.log_start_offset
            end_offset = max(map(_end_offset, outcomes))
            if partition.is_alone or pattern.acks != ALL:
                durable = partition.is_kept(end_offset) and durable
            else:
                uncommitted += _uncommitted(
                    refusals, partition, zip(numbers, outcomes, strict=True)
                )
        for number, outcome in zip(numbers, outcomes, strict=True):
            correlation_id = run.requests[number].correlation_id
            if isinstance(outcome, StreamlogError):
                refusals[number] = _refused(run.requests[number], outcome)
            else:
                answers[number] = _accepted(pattern, correlation_id, outcome, log_start_offset)
    return RunAttempt(run, answers, refusals, durable, uncommitted, complete)


def _accepted(
    pattern: ProducePattern, correlation_id: int, result: AppendResult, log_start_offset: int
) -> bytes:
    """Return the response for records that are in the log."""
    if result.log_append_time_ms < 0:
        return pattern.accepted(correlation_id, result.base_offset, log_start_offset)
    answer = _stamped(pattern.index, result, log_start_offset)
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

    def refuse(number: int, error: StreamlogError) -> None:
        refusals[number] = refuse_partition(partition.index, error)

    return [
        Uncommitted(partition, outcome.last_offset + 1, partial(refuse, number))
        for number, outcome in appended
        if not isinstance(outcome, StreamlogError)
        and not partition.may_acknowledge(outcome.last_offset + 1)
    ]


def _end_offset(outcome: AppendResult | StreamlogError) -> int:
    """Return the end offset of an append; 0 if nothing was appended."""
    return 0 if isinstance(outcome, StreamlogError) else outcome.last_offset + 1


def _stamped(index: int, result: AppendResult, log_start_offset: int) -> PartitionProduceResponse:
    """Return the response for records with log append time."""
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=log_start_offset,
    )


R = TypeVar("R", Message, Pieces)
Answer: TypeAlias = Message | asyncio.Future[Message] | None
"""A response, or where it will be, or nothing for a Produce that wants none."""
CompleteProduce: TypeAlias = "Callable[[ProduceResponse, VersionedProduce], None]"
"""Names the endpoints of new leaders in a response (KIP-951)."""


class VersionedProduce(Protocol):
    """The sender of a request; see `RequestContext`."""

    @property
    def version(self) -> int:
        """Of the request."""
        ...

    @property
    def connection(self) -> int:
        """Its connection, by number."""
        ...


class DelayedProduce:
    """Appends Produce requests, and answers once their records are durable."""

    def __init__(
        self,
        data: DataRequests,
        *,
        flush: GroupFlush,
        clock: Clock,
        alarm: DeadlineTimer,
        threads: Threads,
        complete: CompleteProduce,
    ) -> None:
        self.checks = RecordChecks(threads)
        self._complete = complete
        self._data = data
        self._flush = flush
        self._clock = clock
        self._alarm = alarm

    def handlers(self) -> dict[Any, Callable[..., Answer]]:
        """Return the handler of each request type."""
        return {
            ProduceRequest: self._produce,
            ListOffsetsRequest: self._list_offsets,
        }

    def stop(self, reason: StreamlogError) -> None:
        """Stop appending; waiting requests fail with the reason."""
        self.checks.stop(reason)

    def _produce(self, request: ProduceRequest, context: VersionedProduce) -> Answer:
        check = check_of(self._data, request, self._clock.wall_ms())
        if check is None and not self.checks.is_busy(context.connection):
            return self._append(request, context.version, {})
        if check is None:
            keep(request)
        append = partial(self._append, request, context.version)
        return self.checks.begin(context.connection, check, append)

    def _append(self, request: ProduceRequest, version: int, checked: Checked | None) -> Answer:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        attempt = self._data.produce(request, version, now_ms, wall_ms, checked or {})
        self._flush_in_time()
        if request.acks == 0:
            _raise_first_error(attempt.response)
            return None
        if attempt.uncommitted:
            return self._when_committed(
                lambda: attempt.response, attempt.failed, attempt.uncommitted, request.timeout_ms
            )
        if attempt.durable:
            return attempt.response
        return self._when_durable(lambda: attempt.response, attempt.failed)

    def begin_run(
        self, run: ProduceRun, context: VersionedProduce
    ) -> Pieces | asyncio.Future[Pieces]:
        """Append the requests of a run; return their responses, or where they will be."""
        check = check_of_run(self._data, run, self._clock.wall_ms())
        if check is None and not self.checks.is_busy(context.connection):
            return self._append_run(run, context, None)
        if check is None:
            run.keep()
        append = partial(self._append_run, run, context)
        return self.checks.begin(context.connection, check, append)

    def _append_run(
        self, run: ProduceRun, context: VersionedProduce, checked: CheckedRun | None
    ) -> Pieces | asyncio.Future[Pieces]:
        def complete(response: ProduceResponse, version: int) -> None:
            if version >= LEADER_ENDPOINTS_VERSION:
                self._complete(response, context)

        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        attempt = append_run(self._data, run, now_ms, wall_ms, complete=complete, checked=checked)
        self._flush_in_time()
        if attempt.uncommitted:
            timeout_ms = max(pattern.timeout_ms for pattern, *_ in run.requests)
            return self._when_committed(
                attempt.response, attempt.failed, attempt.uncommitted, timeout_ms
            )
        if attempt.durable:
            return attempt.response()
        return self._when_durable(attempt.response, attempt.failed)

    def _flush_in_time(self) -> None:
        """Set the deadline timer for the next flush."""
        flush_ms = self._flush.next_deadline_ms()
        if flush_ms is not None:
            self._alarm.by(flush_ms)

    def _list_offsets(self, request: ListOffsetsRequest, _: VersionedProduce) -> Answer:
        """Answer once earlier appends are durable: a client with acks=0 sees its own end."""
        if self._data.is_settled(request):
            return self._data.list_offsets(request)
        answer = partial(self._data.list_offsets, request)
        return self._when_durable(answer, lambda _: answer())

    def _when_committed(
        self,
        answer: Callable[[], R],
        failed: Callable[[StreamlogError], R],
        uncommitted: list[Uncommitted],
        timeout_ms: int,
    ) -> asyncio.Future[R]:
        """Answer once everything is durable and committed, has failed, or has timed out."""
        durable = self._when_durable(answer, failed)
        commits = ProduceAcks(uncommitted)
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not durable.done() or is_abandoned(response, durable):
                return
            failure = durable.exception()
            if failure is not None:
                response.set_exception(failure)
            elif commits.done or commits.over:
                response.set_result(answer())

        def on_timeout() -> None:
            commits.time_out()
            go_on()

        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, on_timeout)
        response.add_done_callback(lambda _: timer.cancel())
        durable.add_done_callback(lambda _: go_on())
        commits.begin(go_on)
        return response

    def _when_durable(
        self, answer: Callable[[], R], failed: Callable[[StreamlogError], R]
    ) -> asyncio.Future[R]:
        """Answer once everything appended by now is on disk."""
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def go_on(failure: StreamlogError | None) -> None:
            if response.done():
                return  # Nobody waits for it any more.
            if isinstance(failure, ConnectionLost):
                response.set_exception(failure)
            else:
                response.set_result(answer() if failure is None else failed(failure))

        self._flush.then(go_on)
        return response


class ProduceAcks:
    """Tracks the partitions of one acks=all request until every one is committed."""

    def __init__(self, uncommitted: list[Uncommitted]) -> None:
        self.over = False
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
        self.over = True
        for each in self._open.values():
            place = f"{each.partition.topic}-{each.partition.index}"
            each.refuse(error_for(ErrorCode.REQUEST_TIMED_OUT, f"{place}: not committed in time"))
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


def _raise_first_error(response: ProduceResponse) -> None:
    """Raise the first error: with acks=0 only closing the connection reports it, as in Kafka."""
    for topic in response.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise error_for(
                    each.error_code, f"{topic.name}-{each.index}, acks=0: {each.error_message}"
                )
