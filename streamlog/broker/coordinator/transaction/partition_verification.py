"""PartitionVerification: checks that a partition is in a transaction before records reach it.

A transaction that its coordinator does not know would never end, and its records would hold up
readers of committed records forever (KIP-890, part 1). If this broker is the coordinator, it is
asked for every batch. Another coordinator is asked before the first batch of a transaction in a
partition (AddPartitionsToTxn with `verify_only`), and the request waits; later requests of the same
transactional id wait behind it, others do not.

In transactions v2 (KIP-890, part 2) the question is at once the request to add the partition: a
producer only writes. Then this broker is asked as well if it is the coordinator, since the
partition must be in the transaction, durably, before the first record.

Rules of this module: a marker that arrives before the response ends the transaction that the
request is about. The response is then about a transaction that has ended, and nothing is written
on its account. Until then it holds while a request that waited for it is processed: its records
may be validated by a thread before they are appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from streamlog import repeated
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.broker.coordinator.transaction.transaction_runtime import TRANSACTIONS_TOPIC
from streamlog.broker.future_responses import has_failed, is_abandoned
from streamlog.broker.handlers import Handler
from streamlog.errors import ConnectionLost, CorruptData, LogError, StreamlogError
from streamlog.protocol.api_table import TRANSACTIONS_V2_SINCE
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from streamlog.protocol.schema import Message, one_buffer
from streamlog.records.batch import RecordBatch

if TYPE_CHECKING:
    from streamlog.broker.coordinator.transaction.marker_queue import LeaderOf
    from streamlog.broker.coordinator.transaction.marker_writer import Call, PartitionKey, Spawn
    from streamlog.broker.coordinator.transaction.transaction_runtime import TransactionRuntime
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.security.principals import RequestContext

TIMEOUT_MS = 5_000
"""How long in milliseconds a coordinator may take. Then the sender of the records tries again."""
PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""The result is unknown now. Producers do not expect these codes from Produce, but they retry
NOT_ENOUGH_REPLICAS, which is Kafka's choice too."""

Producer = tuple[int, int]
"""Producer id and producer epoch."""


class TransactionalWrite(NamedTuple):
    """What a request to write in a transaction says about itself."""

    name: str
    """The transactional id."""
    producer: Producer
    adds: bool = False
    """Whether it adds the partitions that it writes to: it is one of transactions v2."""


Response = TypeVar("Response", bound=Message | None)

_log = repeated.logger(__name__)


@dataclass(slots=True)
class _Guard:
    """A question about a producer in a partition, and the response."""

    producer: Producer
    leader_epoch: int
    code: int = ErrorCode.NETWORK_EXCEPTION
    holders: int = 1
    """How many requests that waited for the response are being processed."""

    def holds(self, producer: Producer, leader_epoch: int) -> bool:
        """Whether the response allows this producer to write under this leader."""
        return (self.producer, self.leader_epoch, self.code) == (
            producer,
            leader_epoch,
            ErrorCode.NONE,
        )


class PartitionVerification:
    """Asks coordinators about transactions, for the partitions that this broker leads."""

    def __init__(
        self,
        partitions: Partitions,
        transactions: TransactionRuntime,
        *,
        node_id: int,
        leader_of: LeaderOf,
    ) -> None:
        self._partitions = partitions
        self._transactions = transactions
        self._node_id = node_id
        self._leader_of = leader_of
        self._others: tuple[Call, Spawn] | None = None
        self._guards: dict[tuple[PartitionKey, int], _Guard] = {}
        self._last: dict[str, asyncio.Event] = {}
        """By transactional id: set when its last request has been processed."""
        transactions.markers.on_marker = self._on_marker

    def begin(self, call: Call, spawn: Spawn) -> None:
        """Start sending questions to other brokers."""
        self._others = call, spawn

    def before(
        self, produce: Handler[ProduceRequest, Response]
    ) -> Handler[ProduceRequest, Response]:
        """Return a handler of Produce that calls `produce` after its transaction is verified."""

        def begin(
            request: ProduceRequest, context: RequestContext
        ) -> Response | asyncio.Future[Response]:
            name = request.transactional_id
            # Without acks the client waits for no response: it can't wait for a verification
            # either, and `check` refuses its batch.
            if name is None or request.acks == 0:
                return produce(request, context)
            producer, partition_keys = _transactional_partitions(request)
            adds = context.version >= TRANSACTIONS_V2_SINCE[ProduceRequest]
            writing = TransactionalWrite(name, producer, adds)
            if self._may_go_on(writing, partition_keys):
                return produce(request, context)
            _copy_records(request)
            return self.run_verified(writing, partition_keys, lambda: produce(request, context))

        return begin

    def run_verified(
        self,
        writing: TransactionalWrite,
        partition_keys: list[PartitionKey],
        go_on: Callable[[], Response | asyncio.Future[Response]],
    ) -> Response | asyncio.Future[Response]:
        """Call `go_on` once `check` knows about these partitions; return its result."""
        if self._others is None or self._may_go_on(writing, partition_keys):
            return go_on()
        name, (_, spawn) = writing.name, self._others
        before = self._last.get(name)
        # Requests of one transactional id stay in order: batches of a producer that overtook each
        # other would be out of sequence.
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        done = self._last[name] = asyncio.Event()

        async def run() -> None:
            try:
                if before is not None:
                    await before.wait()
                guards = await self._ask(writing, partition_keys)
                _pass_on(go_on, answer, lambda: self._release(guards))
            except asyncio.CancelledError:
                if not answer.done():
                    answer.set_exception(ConnectionLost("the broker was stopped"))
                raise
            finally:
                done.set()
                if self._last.get(name) is done:
                    del self._last[name]

        spawn(run())
        return answer

    def check(self, writing: TransactionalWrite, partition_key: PartitionKey) -> None:
        """Check that a producer may write to a partition in its transaction now.

        Raises:
            LogError: it may not; `code` says why.
        """
        (topic, index), (name, producer, _) = partition_key, writing
        code = self.code_of(writing, partition_key)
        if code in PASSING:
            raise error_for(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{topic}-{index}: the coordinator of {name!r} can't verify the transaction"
                f" now: {ErrorCode(code).name}",
            )
        if code != ErrorCode.NONE:
            raise error_for(
                code,
                f"{topic}-{index} is not part of an open transaction of {name!r} and"
                f" producer {producer[0]} with epoch {producer[1]}",
            )

    def code_of(self, writing: TransactionalWrite, partition_key: PartitionKey) -> ErrorCode:
        """Return the result of the check as an error code."""
        name, producer, adds = writing
        if not adds and self._is_here(name):
            return self._transactions.verify(name, producer, partition_key)
        try:
            partition = self._partitions.get(*partition_key)
        except LogError as error:
            return ErrorCode(error.code)
        # Verified by what is in the log: an open transaction of this producer, in this epoch.
        if partition.log.producers.has_begun(*producer):
            return ErrorCode.NONE
        guard = self._guards.get((partition_key, producer[0]))
        if guard is None or guard.producer != producer:
            return ErrorCode.INVALID_TXN_STATE
        if guard.leader_epoch != partition.log.epochs.current:
            return ErrorCode.NETWORK_EXCEPTION  # A leader in between may have written a marker.
        return ErrorCode(guard.code)

    def _may_go_on(self, writing: TransactionalWrite, partition_keys: list[PartitionKey]) -> bool:
        """Whether a request need not wait."""
        is_next = writing.name not in self._last
        return self._others is None or (is_next and not self._unverified(writing, partition_keys))

    def _is_here(self, name: str) -> bool:
        """Whether this broker is the coordinator, or there is none yet."""
        return self._coordinator_of(name) in (None, self._node_id)

    def _coordinator_of(self, name: str) -> int | None:
        count = self._partitions.partitions(TRANSACTIONS_TOPIC)
        return self._leader_of((TRANSACTIONS_TOPIC, shard_index(name, count))) if count else None

    def _unverified(
        self, writing: TransactionalWrite, partition_keys: list[PartitionKey]
    ) -> list[tuple[PartitionKey, Partition]]:
        """Return the partitions in which the producer has no open transaction in the log."""
        if not writing.adds and self._is_here(writing.name):
            return []
        found = []
        for partition_key in partition_keys:
            try:
                partition = self._partitions.get(*partition_key)
            except LogError:
                continue  # The append is refused for this reason.
            if not partition.log.producers.has_begun(*writing.producer):
                found.append((partition_key, partition))
        return found

    async def _ask(
        self, writing: TransactionalWrite, partition_keys: list[PartitionKey]
    ) -> dict[tuple[PartitionKey, int], _Guard]:
        """Ask the coordinator about partitions that are unknown."""
        name, producer, _ = writing
        held, guards = {}, {}
        for partition_key, partition in self._unverified(writing, partition_keys):
            key, epoch = (partition_key, producer[0]), partition.log.epochs.current
            guard = self._guards.get(key)
            if guard is not None and guard.holds(producer, epoch):
                # The request before this one was verified and is not yet appended.
                guard.holders += 1
                held[key] = guard
            else:
                guards[key] = _Guard(producer, epoch)
        if not guards or self._others is None:
            return held
        self._guards.update(guards)
        coordinator, (call, _) = self._coordinator_of(name), self._others
        if coordinator is None or coordinator < 0:
            codes = dict.fromkeys(
                (partition_key for partition_key, _ in guards), ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        else:
            request = _question(writing, [partition_key for partition_key, _ in guards])
            try:
                codes = _codes(await call(coordinator, request, TIMEOUT_MS))
            except StreamlogError as error:
                _log.info(
                    "broker %d can't be asked about transactional id %r: %s",
                    coordinator,
                    name,
                    error,
                )
                codes = {}
        for (partition_key, _), guard in guards.items():
            guard.code = codes.get(partition_key, ErrorCode.NETWORK_EXCEPTION)
        return held | guards

    def _release(self, guards: dict[tuple[PartitionKey, int], _Guard]) -> None:
        """Forget responses on which no request depends: the log shows whose records it has."""
        for key, guard in guards.items():
            guard.holders -= 1
            if not guard.holders and self._guards.get(key) is guard:
                del self._guards[key]

    def _on_marker(self, partition_key: PartitionKey, producer_id: int) -> None:
        # See the rules of this module: the transaction that the request is about has ended.
        self._guards.pop((partition_key, producer_id), None)


def _transactional_partitions(request: ProduceRequest) -> tuple[Producer, list[PartitionKey]]:
    """Return the producer of the transactional batches, and their partitions."""
    producer, partition_keys = (-1, -1), []
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                batch = RecordBatch(one_buffer(data.records or b""))
            except CorruptData:
                continue  # The append reports what is wrong.
            if batch.is_transactional:
                producer = batch.producer_id, batch.producer_epoch
                partition_keys.append((topic.name, data.index))
    return producer, partition_keys


def _copy_records(request: ProduceRequest) -> None:
    """Copy the records, because the connection's buffer is reused for the next request."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = bytes(one_buffer(data.records))


def _question(
    writing: TransactionalWrite, partition_keys: list[PartitionKey]
) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partition_keys:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=writing.name,
                producer_id=writing.producer[0],
                producer_epoch=writing.producer[1],
                verify_only=not writing.adds,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=found)
                    for topic, found in topics.items()
                ],
            )
        ]
    )


def _codes(response: Message) -> dict[PartitionKey, ErrorCode]:
    """Return the coordinator's result for each partition; nothing if it refuses to answer."""
    if not isinstance(response, AddPartitionsToTxnResponse) or response.error_code:
        return {}
    return {
        (topic.name, each.partition_index): _of_writers(each.partition_error_code)
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for each in topic.results_by_partition
    }


def _of_writers(code: int) -> ErrorCode:
    # As in Kafka: Produce and TxnOffsetCommit have always had the one for what the other says.
    fenced = code == ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode(code)


def _pass_on(
    go_on: Callable[[], Response | asyncio.Future[Response]],
    answer: asyncio.Future[Response],
    release: Callable[[], None],
) -> None:
    """Call `go_on`, pass its response to the waiting request, if there is one, and `release`."""
    reply = None
    try:
        reply = go_on()
    except StreamlogError as error:
        if not answer.done():
            answer.set_exception(error)
    finally:
        if not isinstance(reply, asyncio.Future):
            release()
    if isinstance(reply, asyncio.Future):
        # Not before: `go_on` may have handed the records to a thread, and appends them after it.
        reply.add_done_callback(lambda _: release())
        reply.add_done_callback(lambda done: _settle(done, answer))
    elif reply is not None and not answer.done():
        answer.set_result(reply)


def _settle(done: asyncio.Future[Response], answer: asyncio.Future[Response]) -> None:
    if not is_abandoned(answer, done) and not has_failed(answer, done):
        answer.set_result(done.result())
