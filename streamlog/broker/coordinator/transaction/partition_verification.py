"""Verification: whether a transaction has got as far as a partition, before records of it do.

What is written to a partition in no transaction that a coordinator knows of would be ended by
nobody, and would hold its readers up for ever (KIP-890, part 1). Where the coordinator is this
broker it is asked on the spot, for every batch. Where it is another one that is asked before the
first batch of a transaction in a partition (AddPartitionsToTxn, verify only), and the request
waits; requests of the same transactional id that come meanwhile wait behind it, others do not.
Rule of the file: a marker that comes while a question is under way ends what was asked about. The
answer is about the past then, and nothing is written by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from streamlog import repeated
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.broker.coordinator.transaction.transaction_runtime import TRANSACTIONS_TOPIC
from streamlog.broker.future_responses import has_failed, is_abandoned
from streamlog.errors import ConnectionLost, CorruptData, LogError, StreamlogError
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
    from streamlog.broker.coordinator.transaction.marker_writer import Call, Place, Spawn
    from streamlog.broker.coordinator.transaction.transaction_coordinator import LeaderOf
    from streamlog.broker.coordinator.transaction.transaction_runtime import TransactionRuntime
    from streamlog.broker.replication.partition import Partition, Partitions

TIMEOUT_MS = 5_000
"""How long a coordinator may take; who has sent the records tries again then."""
PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""It can't be said now. Clients do not expect these from Produce, and try this one again (Kafka's
choice): NOT_ENOUGH_REPLICAS."""

Producer = tuple[int, int]
"""Producer id and epoch."""
Reply: TypeAlias = "Message | asyncio.Future[Message] | None"
T = TypeVar("T", bound=Reply)
Handler = Callable[[Any, Any], Any]

_log = repeated.logger(__name__)


@dataclass(slots=True)
class _Guard:
    """A question about a producer in a partition, and its answer."""

    producer: Producer
    leader_epoch: int
    code: int = ErrorCode.NETWORK_EXCEPTION


class PartitionVerification:
    """Asks coordinators about transactions, for one broker that leads partitions."""

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
        self._guards: dict[tuple[Place, int], _Guard] = {}
        self._last: dict[str, asyncio.Event] = {}
        """By transactional id: set when the last request of it has been taken up."""
        transactions.markers.on_marker = self._on_marker

    def begin(self, call: Call, spawn: Spawn) -> None:
        """Other brokers can be asked from now on."""
        self._others = call, spawn

    def before(self, handlers: Mapping[Any, Handler]) -> dict[Any, Handler]:
        """The same handlers, that of Produce called once it is known what `check` needs."""
        produce = handlers[ProduceRequest]

        def begin(request: ProduceRequest, context: Any) -> Any:  # noqa: ANN401 - as the handler's
            name = request.transactional_id
            # Who wants no answer can't wait for one either, and is refused.
            if name is None or request.acks == 0:
                return produce(request, context)
            producer, places = _written(request)
            if self._may_go_on(name, producer, places):
                return produce(request, context)
            _keep(request)
            return self.verified(name, producer, places, lambda: produce(request, context))

        return {**handlers, ProduceRequest: begin}

    def verified(
        self, name: str, producer: Producer, places: list[Place], go_on: Callable[[], T]
    ) -> T | asyncio.Future[Message]:
        """What `go_on` comes to, in which `check` knows about these places."""
        if self._others is None or self._may_go_on(name, producer, places):
            return go_on()
        before, (_, spawn) = self._last.get(name), self._others
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        done = self._last[name] = asyncio.Event()

        async def run() -> None:
            try:
                if before is not None:
                    await before.wait()
                guards = await self._ask(name, producer, places)
                try:
                    _hand_on(go_on, answer)
                finally:
                    self._drop(guards)
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

    def check(self, name: str, producer: Producer, place: Place) -> None:
        """Whether a producer may write to a partition in its transaction now.

        Raises:
            LogError: it may not; `code` says why.
        """
        code = self.code_of(name, producer, place)
        if code in PASSING:
            raise error_for(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{place[0]}-{place[1]}: the coordinator of {name!r} can't say now whether it is"
                f" in the transaction: {ErrorCode(code).name}",
            )
        if code != ErrorCode.NONE:
            raise error_for(
                code,
                f"{place[0]}-{place[1]} is in no open transaction of {name!r} and"
                f" producer {producer[0]} with epoch {producer[1]}",
            )

    def code_of(self, name: str, producer: Producer, place: Place) -> ErrorCode:
        """The same as a code, as far as is known here."""
        if self._is_here(name):
            return self._transactions.verify(name, producer, place)
        try:
            partition = self._partitions.get(*place)
        except LogError as error:
            return ErrorCode(error.code)
        if partition.log.producers.has_begun(*producer):
            return ErrorCode.NONE
        guard = self._guards.get((place, producer[0]))
        if guard is None or guard.producer != producer:
            return ErrorCode.INVALID_TXN_STATE
        if guard.leader_epoch != partition.log.epochs.current:
            return ErrorCode.NETWORK_EXCEPTION  # What another leader has written is not known.
        return ErrorCode(guard.code)

    def _may_go_on(self, name: str, producer: Producer, places: list[Place]) -> bool:
        """Whether a request need not wait for anything."""
        is_next = name not in self._last
        return self._others is None or (is_next and not self._unknown(name, producer, places))

    def _is_here(self, name: str) -> bool:
        """Whether this broker is asked about a transactional id, or nobody is yet."""
        return self._coordinator_of(name) in (None, self._node_id)

    def _coordinator_of(self, name: str) -> int | None:
        count = self._partitions.partitions(TRANSACTIONS_TOPIC)
        return self._leader_of((TRANSACTIONS_TOPIC, shard_index(name, count))) if count else None

    def _unknown(
        self, name: str, producer: Producer, places: list[Place]
    ) -> list[tuple[Place, Partition]]:
        """Where the producer has not begun yet, so that its coordinator has to be asked."""
        if self._is_here(name):
            return []
        found = []
        for place in places:
            try:
                partition = self._partitions.get(*place)
            except LogError:
                continue  # Whoever writes there is refused for that.
            if not partition.log.producers.has_begun(*producer):
                found.append((place, partition))
        return found

    async def _ask(
        self, name: str, producer: Producer, places: list[Place]
    ) -> dict[tuple[Place, int], _Guard]:
        """Ask the coordinator about what is unknown by now."""
        guards = {
            (place, producer[0]): _Guard(producer, partition.log.epochs.current)
            for place, partition in self._unknown(name, producer, places)
        }
        if not guards or self._others is None:
            return {}
        self._guards.update(guards)
        coordinator, (call, _) = self._coordinator_of(name), self._others
        if coordinator is None or coordinator < 0:
            codes = dict.fromkeys(
                (place for place, _ in guards), ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        else:
            request = _question(name, producer, [place for place, _ in guards])
            try:
                codes = _codes(await call(coordinator, request, TIMEOUT_MS))
            except StreamlogError as error:
                _log.info("%r can't be asked for, at broker %d: %s", name, coordinator, error)
                codes = {}
        for (place, _), guard in guards.items():
            guard.code = codes.get(place, ErrorCode.NETWORK_EXCEPTION)
        return guards

    def _drop(self, guards: dict[tuple[Place, int], _Guard]) -> None:
        for key, guard in guards.items():
            if self._guards.get(key) is guard:
                del self._guards[key]

    def _on_marker(self, place: Place, producer_id: int) -> None:
        self._guards.pop((place, producer_id), None)


def _written(request: ProduceRequest) -> tuple[Producer, list[Place]]:
    """Whose transaction the batches are in, and where they go; one producer sends a request."""
    producer, places = (-1, -1), []
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                batch = RecordBatch(one_buffer(data.records or b""))
            except CorruptData:
                continue  # The log says what is wrong with it.
            if batch.is_transactional:
                producer = batch.producer_id, batch.producer_epoch
                places.append((topic.name, data.index))
    return producer, places


def _keep(request: ProduceRequest) -> None:
    """Copy its records: where they are, its connection receives the next request meanwhile."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = bytes(one_buffer(data.records))


def _question(name: str, producer: Producer, places: list[Place]) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=True,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=found)
                    for topic, found in topics.items()
                ],
            )
        ]
    )


def _codes(response: Message) -> dict[Place, ErrorCode]:
    """What the coordinator says of each place; nothing if it refuses to say anything."""
    if not isinstance(response, AddPartitionsToTxnResponse) or response.error_code:
        return {}
    return {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for each in topic.results_by_partition
    }


def _hand_on(go_on: Callable[[], Reply], answer: asyncio.Future[Message]) -> None:
    """Go on, and give its answer to who waits, if somebody does."""
    try:
        reply = go_on()
    except StreamlogError as error:
        if not answer.done():
            answer.set_exception(error)
        return
    if isinstance(reply, asyncio.Future):
        reply.add_done_callback(lambda done: _settle(done, answer))
    elif reply is not None and not answer.done():
        answer.set_result(reply)


def _settle(done: asyncio.Future[Message], answer: asyncio.Future[Message]) -> None:
    if not is_abandoned(answer, done) and not has_failed(answer, done):
        answer.set_result(done.result())
