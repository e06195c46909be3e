"""Sender: sends the accumulator's batches to the brokers and reports the outcomes.

One loop decides which batch goes to which broker. Each produce request is a task of its own, so
that several can be in flight to a broker. The loop takes a batch only when the connection to its
leader is open: requests are then written in the order in which they were made, which keeps the
batches of a partition in order. Leader look-ups, connection attempts and requests for a producer id
run outside the loop, so a broker that is down delays only the records for that broker. The
accumulator decides what an answer means for a batch. `TransactionMachine` decides whether a
transaction may write to a partition, and what a lost batch means for the transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from streamlog import repeated
from streamlog.client.background_task import Background
from streamlog.client.cluster import Cluster, Lane
from streamlog.client.metrics.producer_metrics import ProducerMetrics
from streamlog.client.outage import Outage
from streamlog.client.producer.accumulator import Accumulator, ProducerBatchBuffer, ProducerIdentity
from streamlog.client.producer.deliveries import RecordDelivery
from streamlog.client.producer.open_batches import deliver
from streamlog.client.producer.refused_records import RefusedRecord, is_refusal, refusal_of
from streamlog.client.producer.transaction_machine import TransactionMachine
from streamlog.errors import (
    LogError,
    MessageTooLarge,
    RecordsRefused,
    RequestTimedOut,
    StreamlogError,
    TransactionAborted,
    UnsupportedVersion,
    UsageError,
)
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.record import TopicPartition

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""A produce request of this many bytes takes no further batch."""
TROUBLE_BACKOFF_MS: Final = 100
"""Wait after a look-up or a connection attempt has failed."""
NAMED_MAX: Final = 10
"""Partitions of an outage that the log names."""
LEADERLESS_MS: Final = 2_000
"""How long a partition may be without a leader before the sender logs it: a new topic, or one whose
leader moves, is for a moment."""
NO_TRANSACTION_TIMEOUT_MS: Final = 0x7FFFFFFF
UNKNOWN_OFFSET: Final = -1

NONE_BAD: Final[Mapping[int, StreamlogError]] = MappingProxyType({})
"""Errors of single records, if the broker names none."""

_OUT_OF_SEQUENCE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

_LEADERLESS: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)

log = repeated.logger(__name__)


class RecordMetadata(NamedTuple):
    """The topic, partition, offset and timestamp of a record that was written."""

    topic: str
    partition: int
    offset: int
    """-1 if unknown: with `acks=0`, or if the broker no longer knows the offset of a duplicate."""
    timestamp_ms: int
    """Milliseconds since 1970: the record's, or the broker's if the topic has log append time."""


class BulkReceipt:
    """One future for records in several batches; its result is the last record's metadata."""

    def __init__(
        self, future: asyncio.Future[RecordMetadata], refusals: list[RefusedRecord] | None = None
    ) -> None:
        """Complete `future`; refused records go to `refusals` if given, and do not fail it."""
        self.future = future
        self.refusals = refusals
        self.outstanding = 0
        self._last: RecordMetadata | None = None
        self._error: StreamlogError | None = None

    def done(self) -> bool:
        """Never: it counts the outcomes of all batches."""
        return False

    def set_result(self, result: RecordMetadata) -> None:
        """Note that a batch was written, like a future."""
        self.settle(result)

    def settle(self, outcome: RecordMetadata | StreamlogError) -> None:
        """Note the outcome of one batch."""
        self.outstanding -= 1
        if isinstance(outcome, RecordMetadata):
            # Batches may be acknowledged in any order; the result is about the last record.
            self._last = max(self._last or outcome, outcome)
        else:
            self._error = self._error or outcome
        self._finish()

    def refused(self, refusal: RefusedRecord) -> None:
        """Note that the records in one batch were refused."""
        if self.refusals is not None:
            self.refusals.append(refusal)
        self.settle(RecordMetadata(*refusal.partition, UNKNOWN_OFFSET, -1))

    def handed_over(self) -> None:
        """Note that no further batch follows; drops the caller's own count of one."""
        self.outstanding -= 1
        self._finish()

    def _finish(self) -> None:
        if self.outstanding or self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        elif self._last is not None:
            self.future.set_result(self._last)


@dataclass(slots=True)
class _Trouble:
    """A partition that can't be written to at present."""

    error: StreamlogError
    """The latest error."""
    since_ms: int
    is_logged: bool = False


Receipt: TypeAlias = RecordDelivery | BulkReceipt


class Sender:
    """The background half of a producer. `run` is its task."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator[Receipt],
        background: Background,
        *,
        acks: int,
        in_flight_max: int,
        request_timeout_ms: int,
        metrics: ProducerMetrics,
        transactions: TransactionMachine | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Send with these settings.

        Args:
            cluster: the brokers.
            accumulator: the batches.
            background: where request tasks run.
            acks: -1 for all in-sync replicas, 1 for the leader, 0 for none.
            in_flight_max: requests in flight per broker.
            request_timeout_ms: wait for one answer.
            metrics: counts what is sent, and its outcomes.
            transactions: the producer's transactions, if it has any.
            tell: called when `transactions` has a request for its coordinator.
        """
        self._cluster = cluster
        self._accumulator = accumulator
        self._background = background
        self._transactions = transactions
        self._tell = tell
        self._metrics = metrics
        self._acks = acks
        self._in_flight_max = in_flight_max
        self._request_timeout_ms = request_timeout_ms
        self._look = asyncio.Event()
        self._in_flight: Counter[int] = Counter()
        self._errands: set[str] = set()
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self._outage: Outage[TopicPartition] = Outage()
        self.progress = asyncio.Event()
        """Set whenever a batch has its outcome: `flush` and waits for buffer space look again."""
        self.failure: StreamlogError | None = None
        """Error of the first undelivered record since `flush` last took it."""
        self.has_ended = False
        """Whether all batches that had no outcome have failed, because nothing more is sent."""

    @property
    def requests_in_flight(self) -> int:
        """The number of Produce requests that wait for their answer."""
        return self._in_flight.total()

    def look(self) -> None:
        """Wake the loop: there may be a batch to send."""
        self._look.set()

    async def run(self) -> None:
        """Send until cancelled, or until `fail_all`."""
        while True:
            # Let the request tasks write. A task that has not run yet has not written its request,
            # and the next round may start another one for that broker.
            await asyncio.sleep(0)
            if self.has_ended:
                return
            self._look.clear()
            now_ms = self._cluster.clock.now_ms()
            next_ms = self._round(now_ms)
            try:
                async with asyncio.timeout(None if next_ms is None else (next_ms - now_ms) / 1000):
                    await self._look.wait()
            except TimeoutError:
                continue

    def fail_all(self, error: StreamlogError) -> None:
        """Fail every outstanding batch with `error`, once: nothing will be sent any more."""
        # A producer whose task has failed comes here twice: then, and when it is closed. Each
        # record has one outcome, and is counted with it.
        if self.has_ended:
            return
        self.has_ended = True
        for batch in list(self._accumulator.outstanding()):
            self._settle_failure(batch, error)
        self._accumulator.withdraw()
        self._on_progress()
        self._look.set()

    def _round(self, now_ms: int) -> int | None:
        """Send all batches that are due; return when the next one is due or expires, if any."""
        self._metrics.windows.advance(now_ms)
        for batch in self._accumulator.expired(now_ms):
            self._settle_failure(batch, self._too_late(batch))
        if self._accumulator.wants_identity():
            self._run_errand("identity", self._identify)
        due, next_ms = self._accumulator.ready(now_ms)
        if self._transactions is not None:
            due = self._admitted(due, self._transactions)
        by_leader: dict[int, list[TopicPartition]] = {}
        unknown: dict[str, None] = {}
        for partition in due:
            leader = self._cluster.leader(partition)
            if leader is None:
                unknown[partition.topic] = None
            else:
                by_leader.setdefault(leader, []).append(partition)
        for topic in unknown:
            self._run_errand(f"topic {topic}", partial(self._look_up, topic))
        for leader, partitions in by_leader.items():
            if not self._cluster.is_connected(leader, Lane.MAIN):
                self._run_errand(f"broker {leader}", partial(self._open, leader, partitions))
            elif self._in_flight[leader] < self._in_flight_max:
                self._send(leader, partitions, now_ms)
        # A batch that is due and can't be sent, since no broker answers, still has its deadline.
        return self._accumulator.next_expiry_ms() if next_ms is None else next_ms

    def _admitted(
        self, due: list[TopicPartition], transactions: TransactionMachine
    ) -> list[TopicPartition]:
        """Return the partitions that are in the transaction; request that the others be added.

        If the transaction is lost, all waiting batches fail.
        """
        if transactions.is_lost:
            reason = transactions.failure or TransactionAborted("the transaction was aborted")
            for batch in self._accumulator.withdraw():
                if batch.partition in transactions.refused:
                    self._tell_refusal(batch, reason)
                self._settle_failure(batch, reason)
            return []
        if transactions.want(due):
            self._tell()
        return [partition for partition in due if transactions.may_write(partition)]

    def _send(self, leader: int, partitions: list[TopicPartition], now_ms: int) -> None:
        """Send one request with the next batch of each partition, up to `REQUEST_BYTES_MAX`."""
        batches: list[ProducerBatchBuffer[Receipt]] = []
        data: list[bytes] = []
        room = REQUEST_BYTES_MAX
        metrics, records = self._metrics, 0
        for partition in partitions:
            # Checked before the batch is taken: a batch of any size can be sent, as the last one.
            if room <= 0:
                break
            batch = self._accumulator.take(partition)
            try:
                encoded = self._accumulator.encoded(batch)
            except (TypeError, ValueError, OverflowError, StreamlogError) as error:
                self._refuse(batch, _unencodable(batch, error))
                continue
            batches.append(batch)
            data.append(encoded)
            room -= len(encoded)
            records += len(batch.records)
            flow = metrics.topic(partition.topic)
            flow.on_sent(len(batch.records), len(encoded), batch.size_bytes)
            metrics.queue_times.record(now_ms - batch.created_ms)
        self._look.set()  # The partitions may have further batches.
        if batches:
            metrics.records_per_request.record(records)
            self._in_flight[leader] += 1
            self._background.start(self._deliver(leader, batches, self._request(batches, data)))

    def _request(
        self, batches: list[ProducerBatchBuffer[Receipt]], data: list[bytes]
    ) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch, encoded in zip(batches, data, strict=True):
            topics.setdefault(batch.partition.topic, []).append(
                PartitionProduceData(index=batch.partition.partition, records=encoded)
            )
        transactions = self._transactions
        return ProduceRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=[
                TopicProduceData(name=name, partition_data=many) for name, many in topics.items()
            ],
        )

    async def _deliver(
        self, leader: int, batches: list[ProducerBatchBuffer[Receipt]], request: ProduceRequest
    ) -> None:
        clock, transactions = self._cluster.clock, self._transactions
        version_max = None if transactions is None else transactions.version_max(ProduceRequest)
        sent_ms = clock.now_ms()
        try:
            if self._acks == 0:
                await self._cluster.send(leader, request, version_max=version_max)
                answers: dict[TopicPartition, PartitionProduceResponse] = {}
            else:
                response = await self._cluster.call(
                    leader,
                    request,
                    ProduceResponse,
                    timeout_ms=self._request_timeout_ms,
                    version_max=version_max,
                )
                self._metrics.on_answer(leader, clock.now_ms() - sent_ms, response.throttle_time_ms)
                answers = {
                    TopicPartition(topic.name, each.index): each
                    for topic in response.responses
                    for each in topic.partition_responses
                }
        except StreamlogError as error:
            for batch in self._undecided(batches):
                self._on_error(batch, error)
        else:
            for batch in self._undecided(batches):
                self._on_answer(batch, answers.get(batch.partition))
        finally:
            self._in_flight[leader] -= 1
            self._look.set()

    def _undecided(
        self, batches: list[ProducerBatchBuffer[Receipt]]
    ) -> list[ProducerBatchBuffer[Receipt]]:
        """Return the batches that wait for their answer: none if they failed with the producer."""
        return [] if self.has_ended else batches

    def _on_answer(
        self, batch: ProducerBatchBuffer[Receipt], answer: PartitionProduceResponse | None
    ) -> None:
        if self._acks == 0:
            self._settle(batch, UNKNOWN_OFFSET, -1)
        elif answer is None:
            self._on_error(
                batch, RequestTimedOut(f"the broker's answer lacks partition {_name(batch)}")
            )
        elif answer.error_code == ErrorCode.NONE:
            self._settle(batch, answer.base_offset, answer.log_append_time_ms)
        elif answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # A retry of a batch that is written, but older than the five that the broker remembers:
            # success, at an offset that is unknown.
            self._settle(batch, UNKNOWN_OFFSET, -1)
        elif answer.error_code in _OUT_OF_SEQUENCE and self._accumulator.on_out_of_sequence(
            batch, now_ms=self._cluster.clock.now_ms()
        ):
            self._count_retry(batch)
            log.debug("%s: the broker lacks earlier batches: will retry", _name(batch))
        elif answer.error_code == ErrorCode.MESSAGE_TOO_LARGE:
            self._divide(batch)
        else:
            said = f": {answer.error_message}" if answer.error_message else ""
            error = error_for(answer.error_code, f"write to {_name(batch)}{said}")
            self._on_error(batch, error, _bad_records(batch, answer))

    def _on_error(
        self,
        batch: ProducerBatchBuffer[Receipt],
        error: StreamlogError,
        bad: Mapping[int, StreamlogError] = NONE_BAD,
    ) -> None:
        """Retry a batch whose error may pass; refuse it, or its bad records, if not."""
        if not error.retriable:
            if self._may_send_rest(batch, bad):
                self._send_rest(batch, bad)
            else:
                self._refuse(batch, error, bad)
            return
        self._note_trouble(batch, error, "%s: the write failed and will be retried: %s")
        # The leader may have moved, so it is looked up again before the retry.
        self._cluster.forget([batch.partition.topic])
        self._count_retry(batch)
        self._accumulator.on_retriable(batch, now_ms=self._cluster.clock.now_ms())

    def _count_retry(self, batch: ProducerBatchBuffer[Receipt]) -> None:
        self._metrics.topic(batch.partition.topic).retries.record(len(batch.records))

    def _note_trouble(
        self, batch: ProducerBatchBuffer[Receipt], error: StreamlogError, said: str
    ) -> None:
        """Log a partition's error once; not at all while its leader moves."""
        now_ms = self._cluster.clock.now_ms()
        trouble = self._trouble.setdefault(batch.partition, _Trouble(error, now_ms))
        trouble.error = error
        is_moving = isinstance(error, LogError) and error.code in _LEADERLESS
        if not trouble.is_logged and not (is_moving and now_ms - trouble.since_ms < LEADERLESS_MS):
            trouble.is_logged = True
            self._outage.begin([batch.partition], now_ms)
            # A broker that is gone may lead thousands of them.
            if len(self._outage) <= NAMED_MAX:
                log.warning(said, _name(batch), error)
            elif len(self._outage) == NAMED_MAX + 1:
                log.warning("more than %d partitions fail; no more are named", NAMED_MAX)

    def _end_outage(self, partition: TopicPartition) -> None:
        """Note that a partition accepts records again; log it if all partitions do."""
        lasted_s = self._outage.end([partition], self._cluster.clock.now_ms())
        if lasted_s is not None:
            log.warning("brokers accept records again after %.1f s", lasted_s)

    def _divide(self, batch: ProducerBatchBuffer[Receipt]) -> None:
        try:
            straddling = self._accumulator.on_too_large(batch)
        except MessageTooLarge as error:
            self._refuse(batch, error)
            return
        self._metrics.splits.record(1)
        for receipt in straddling:
            if isinstance(receipt, BulkReceipt):
                # Its records are in both halves now, so it gets one outcome more.
                receipt.outstanding += 1

    def _may_send_rest(self, batch: ProducerBatchBuffer[Receipt], bad: Collection[int]) -> bool:
        """Whether the good records of a refused batch can be sent again without the bad ones.

        Not in a transaction, which is lost, nor if the batch is atomic or part of a `send_batch`,
        nor after a retry: an earlier attempt may have written the batch.
        """
        return (
            self._transactions is None
            and 0 < len(bad) < len(batch.records)
            and not (batch.atomic or batch.attempts)
            and not any(isinstance(receipt, BulkReceipt) for *_, receipt in batch.receipts)
        )

    def _send_rest(
        self, batch: ProducerBatchBuffer[Receipt], bad: Mapping[int, StreamlogError]
    ) -> None:
        """Fail the records that the broker has named, and send the others again."""
        log.warning(
            "%s: the broker refused %d of %d records; the rest is sent again; first error: %s",
            _name(batch), len(bad), len(batch.records), next(iter(bad.values())),
        )  # fmt: skip
        flow = self._metrics.topic(batch.partition.topic)
        flow.errors.record(len(bad))
        flow.retries.record(len(batch.records) - len(bad))
        for at, receipt in self._accumulator.on_bad_records(batch, bad):
            self.failure = self.failure or bad[at]
            if not isinstance(receipt, BulkReceipt) and not receipt.done():
                receipt.set_exception(bad[at])
        self._on_progress()

    def _refuse(
        self,
        batch: ProducerBatchBuffer[Receipt],
        error: StreamlogError,
        bad: Mapping[int, StreamlogError] = NONE_BAD,
    ) -> None:
        self._accumulator.on_refused(batch)
        if is_refusal(error):
            self._tell_refusal(batch, error, bad)
        self._settle_failure(batch, error, bad)

    def _tell_refusal(
        self,
        batch: ProducerBatchBuffer[Receipt],
        error: StreamlogError,
        blamed: Collection[int] = (),
    ) -> None:
        """Report refused records to the receipts that collect refusals; these do not fail."""
        others: list[tuple[int, int, Receipt]] = []
        for first, last, receipt in batch.receipts:
            if isinstance(receipt, BulkReceipt) and receipt.refusals is not None:
                refusal = refusal_of(batch.partition, batch.records, (first, last), error, blamed)
                receipt.refused(refusal)
            else:
                others.append((first, last, receipt))
        batch.receipts = others

    def _settle(
        self, batch: ProducerBatchBuffer[Receipt], base_offset: int, append_time_ms: int
    ) -> None:
        self._accumulator.on_delivered(batch)
        if self._trouble.pop(batch.partition, None) is not None:
            self._end_outage(batch.partition)
        time_ms = append_time_ms
        if time_ms < 0 and batch.packed is not None:
            # A receipt of packed records covers the whole batch, up to its last record.
            time_ms = batch.packed.last_timestamp_ms
        deliver(batch, RecordMetadata(*batch.partition, base_offset, time_ms))
        self._on_progress()

    def _settle_failure(
        self,
        batch: ProducerBatchBuffer[Receipt],
        error: StreamlogError,
        bad: Mapping[int, StreamlogError] = NONE_BAD,
    ) -> None:
        """Fail the receipts of a batch; records that are not in `bad` get an error of their own."""
        self._metrics.topic(batch.partition.topic).errors.record(len(batch.records))
        for first, _, receipt in batch.receipts:
            if isinstance(receipt, BulkReceipt):
                receipt.settle(error)
            elif not receipt.done():
                receipt.set_exception(_own_error(error, bad, first))
        if self._transactions is None:
            self.failure = self.failure or (error if batch.receipts else None)
        else:
            self._transactions.on_lost(error, is_numbered=batch.base_sequence >= 0)
            for _, _, receipt in batch.receipts:
                _mark_retrieved(receipt)  # The transaction raises the error.
        self._on_progress()

    def _on_progress(self) -> None:
        self.progress.set()
        if self._transactions is not None:
            self._tell()

    def _too_late(self, batch: ProducerBatchBuffer[Receipt]) -> StreamlogError:
        trouble = self._trouble.get(batch.partition)
        reason = f"; last error: {trouble.error}" if trouble is not None else ""
        records = "1 record" if len(batch.records) == 1 else f"{len(batch.records)} records"
        attempts = "1 attempt" if batch.attempts == 1 else f"{batch.attempts} attempts"
        return RequestTimedOut(
            f"the broker did not acknowledge {records} for {_name(batch)} within the delivery "
            f"timeout, after {attempts}{reason}"
        )

    def _run_errand(self, name: str, errand: Callable[[], Awaitable[None]]) -> None:
        """Start a task for which the loop must not wait, unless one of this name runs."""
        if name not in self._errands:
            self._errands.add(name)
            self._background.start(self._errand(name, errand))

    async def _errand(self, name: str, errand: Callable[[], Awaitable[None]]) -> None:
        try:
            await errand()
        finally:
            self._errands.discard(name)
            self._look.set()

    async def _look_up(self, topic: str) -> None:
        """Look up the leaders of a topic's partitions."""
        try:
            await self._cluster.refresh([topic])
        except StreamlogError as error:
            if not error.retriable:
                for batch in self._accumulator.withdraw(topic):
                    self._settle_failure(batch, error)
            await self._back_off(error, {topic})

    async def _open(self, leader: int, partitions: Collection[TopicPartition]) -> None:
        try:
            await self._cluster.transport(leader, Lane.MAIN)
        except StreamlogError as error:
            topics = {partition.topic for partition in partitions}
            self._cluster.forget(topics)
            await self._back_off(error, topics)

    async def _identify(self) -> None:
        """Request a producer id (KIP-98)."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
        )
        try:
            response = await self._cluster.call_any(request, InitProducerIdResponse)
            if response.error_code:
                raise error_for(response.error_code, "request a producer id")
        except UnsupportedVersion as error:
            raise UnsupportedVersion(
                f"this broker does not support idempotent producers ({error}): "
                "set idempotent=False and accept that a retry may write a record twice"
            ) from error
        except StreamlogError as error:
            await self._back_off(error, set())
            return
        self._accumulator.on_identity(
            ProducerIdentity(response.producer_id, response.producer_epoch)
        )

    async def _back_off(self, error: StreamlogError, topics: Collection[str]) -> None:
        """Log an error once, and wait before the next attempt.

        The number of attempts has no bound; the delivery timeout of the batches is the bound.
        """
        if not error.retriable and not topics:
            raise error  # Without a producer id, no batch can ever be sent.
        for batch in list(self._accumulator.outstanding()):
            if topics and batch.partition.topic not in topics:
                continue
            self._note_trouble(batch, error, "%s: records can't be sent yet: %s")
        await asyncio.sleep(TROUBLE_BACKOFF_MS / 1000)


def _bad_records(
    batch: ProducerBatchBuffer[Receipt], answer: PartitionProduceResponse
) -> dict[int, StreamlogError]:
    """Return index to error of the records that the broker names (KIP-467)."""
    return {
        each.batch_index: error_for(
            answer.error_code,
            f"write to {_name(batch)}",
            each.batch_index_error_message or answer.error_message,
        )
        for each in answer.record_errors
        if 0 <= each.batch_index < len(batch.records)
    }


def _own_error(error: StreamlogError, bad: Mapping[int, StreamlogError], at: int) -> StreamlogError:
    """Return the error of the record at index `at` in a refused batch."""
    if not bad or at in bad:
        return bad.get(at, error)
    return RecordsRefused(
        f"the record was not written because other records of its batch were refused: {error}"
    )


def _mark_retrieved(receipt: Receipt) -> None:
    """Mark the future's error as retrieved, so that asyncio does not log it."""
    future = receipt.future if isinstance(receipt, BulkReceipt) else receipt
    if future.done() and not future.cancelled():
        future.exception()


def _name(batch: ProducerBatchBuffer[Receipt]) -> str:
    return f"{batch.partition.topic}-{batch.partition.partition}"


def _unencodable(batch: ProducerBatchBuffer[Receipt], error: Exception) -> StreamlogError:
    if isinstance(error, StreamlogError):
        return error
    return UsageError(
        f"records for {_name(batch)} can't be encoded ({error}): keys and values have to be bytes "
        "or None, timestamps milliseconds, headers pairs of str and bytes"
    )
