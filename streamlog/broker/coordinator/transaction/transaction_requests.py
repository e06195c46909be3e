"""TransactionRequests: requests about transactions, spread over the shards that own them.

A request that changes a transaction goes to its shard; one that only reads is answered at once.
Offsets that a producer commits in its transaction go to the group, if the transaction's shard
permits it. `MarkerAnswers` collects the response to one WriteTxnMarkers request until each marker
is committed or has failed; a marker that takes too long is an error, and its sender tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from streamlog.broker.coordinator.group.group_requests import gather_answers
from streamlog.broker.coordinator.shard import refuse
from streamlog.broker.coordinator.transaction.coordinated_transaction import (
    EPOCH_MAX,
    TransactionState,
)
from streamlog.broker.coordinator.transaction.partition_verification import (
    PASSING,
    TransactionalWrite,
)
from streamlog.broker.future_responses import Answer, chain_response, map_response
from streamlog.broker.handlers import Handlers, entry, shared_entry
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.api_table import TRANSACTIONS_V2, TRANSACTIONS_V2_SINCE
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionResponse,
    TopicData,
    TopicResponse,
    TxnOffsetCommitRequest,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.protocol.messages.transaction_messages import DescribedTransaction as Described
from streamlog.protocol.messages.transaction_messages import TransactionStateRecord as Listed
from streamlog.protocol.schema import Message
from streamlog.records.control_batches import ABORT, COMMIT, Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamlog.broker.coordinator.group.group_requests import GroupRequests
    from streamlog.broker.coordinator.transaction.coordinated_transaction import (
        CoordinatedTransaction,
    )
    from streamlog.broker.coordinator.transaction.partition_verification import (
        PartitionVerification,
    )
    from streamlog.broker.coordinator.transaction.transaction_runtime import TransactionRuntime
    from streamlog.broker.security.principals import RequestContext


COMMIT_TIMEOUT_MS = 5_000
"""How long a marker may wait for followers: less than its sender waits for the response."""

PartitionKey = tuple[str, int]


class MarkerAnswers:
    """Collects the response to one WriteTxnMarkers request."""

    def __init__(self, request: WriteTxnMarkersRequest) -> None:
        self._request = request
        self._codes: dict[tuple[int, PartitionKey], int] = {}
        self._left = sum(1 for _ in self.markers())
        self._answer: asyncio.Future[WriteTxnMarkersResponse] | None = None

    def markers(self) -> Iterator[tuple[int, WritableTxnMarker, PartitionKey]]:
        """Iterate over every marker and partition, with the marker's number."""
        for number, marker in enumerate(self._request.markers):
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    yield number, marker, (topic.name, index)

    def begin(self) -> WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]:
        """Return the response, or a future of it."""
        # All markers may have had their result before this call.
        if self._left <= 0:
            return self._response()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        # A marker without a result by then gets REQUEST_TIMED_OUT, and its sender repeats it.
        timer = loop.call_later(COMMIT_TIMEOUT_MS / 1000, self._finish)
        self._answer.add_done_callback(lambda _: timer.cancel())
        return self._answer

    def on_failure(
        self, number: int, partition_key: PartitionKey, failure: StreamlogError | None
    ) -> None:
        """Note that a marker is committed, or why it may not be."""
        if failure is None:
            self.on_code(number, partition_key, ErrorCode.NONE)
        elif isinstance(failure, LogError):
            self.on_code(number, partition_key, failure.code)
        else:
            self.on_code(number, partition_key, ErrorCode.KAFKA_STORAGE_ERROR)

    def on_code(self, number: int, partition_key: PartitionKey, code: int) -> None:
        """Note the result of a marker in a partition."""
        self._codes[number, partition_key] = code
        self._left -= 1
        if self._left <= 0:
            self._finish()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._response())

    def _response(self) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=each.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self._codes.get(
                                        (number, (topic.name, index)), ErrorCode.REQUEST_TIMED_OUT
                                    ),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for number, each in enumerate(self._request.markers)
            ]
        )


TransactionRequest: TypeAlias = (
    InitProducerIdRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest
)
"""The requests of one transactional id."""


class TransactionRequests:
    """All requests of clients about transactions."""

    def __init__(
        self,
        runtime: TransactionRuntime,
        groups: GroupRequests,
        verification: PartitionVerification,
        *,
        on_deadline: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._groups = groups
        self._verification = verification
        self._on_deadline = on_deadline
        """Called when a deadline may be earlier than before."""
        self._marker_connections: dict[int, int] = {}
        """The connection of the last markers of each coordinator."""

    def handlers(self) -> Handlers:
        """Return the handlers, by request type."""
        return dict(
            [
                shared_entry(InitProducerIdRequest, self._init),
                shared_entry(AddPartitionsToTxnRequest, self._begin),
                shared_entry(AddOffsetsToTxnRequest, self._begin),
                shared_entry(EndTxnRequest, self._end),
                shared_entry(TxnOffsetCommitRequest, self._commit_offsets),
                entry(
                    WriteTxnMarkersRequest,
                    lambda request, at: self._write_markers(request, at.connection),
                ),
                entry(ListTransactionsRequest, lambda request, _: self._list(request)),
                entry(DescribeTransactionsRequest, lambda request, _: self._describe_all(request)),
                entry(
                    DescribeProducersRequest, lambda request, _: self._describe_producers(request)
                ),
            ]
        )

    def _init(self, request: InitProducerIdRequest, context: RequestContext) -> Answer:
        return self._with_id(request, context)

    def _end(self, request: EndTxnRequest, context: RequestContext) -> Answer:
        # The last epoch of a producer id: its next transaction has another one.
        raises = context.version >= TRANSACTIONS_V2_SINCE[EndTxnRequest]
        if raises and request.producer_epoch >= EPOCH_MAX - 1:
            return self._with_id(request, context)
        return self._begin(request, context)

    def _with_id(
        self, request: InitProducerIdRequest | EndTxnRequest, context: RequestContext
    ) -> Answer:
        """Handle a request that may take a new producer id."""
        return chain_response(
            self._runtime.producer_ids.ready(), partial(self._go_on, request, context)
        )

    def _go_on(
        self,
        request: InitProducerIdRequest | EndTxnRequest,
        context: RequestContext,
        code: ErrorCode,
    ) -> Answer:
        """Continue with a producer id available, if `code` is NONE."""
        if code is not ErrorCode.NONE:
            return refuse(request, context.version, code)
        if request.transactional_id is None:
            # Without a transactional id: a new producer id, at epoch 0.
            return InitProducerIdResponse(producer_id=self._runtime.producer_ids.take())
        return self._begin(request, context)

    def _begin(self, request: TransactionRequest, context: RequestContext) -> Answer:
        """Pass a request to its transactional id; return the response, or a future of it."""
        if isinstance(request, AddPartitionsToTxnRequest) and request.transactions:
            return self._add_for_brokers(request, context)
        if isinstance(request, AddPartitionsToTxnRequest):
            name = request.v3_and_below_transactional_id
        else:
            name = request.transactional_id or ""
        answer = self._runtime.begin(
            name, request, version=context.version, connection=context.connection
        )
        self._on_deadline()
        return answer

    def _add_for_brokers(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> Answer:
        """Handle requests of other brokers, which verify partitions or add them."""
        answers = [self._verify_or_add(each, context) for each in request.transactions]
        return gather_answers(answers, _results)

    def _verify_or_add(
        self, transaction: AddPartitionsToTxnTransaction, context: RequestContext
    ) -> Answer:
        name, producer = (
            transaction.transactional_id,
            (transaction.producer_id, transaction.producer_epoch),
        )
        if transaction.verify_only:
            verify = partial(self._runtime.verify, name, producer)
            return self._runtime.respond_when_committed(name, lambda: _result(transaction, verify))
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=transaction.topics,
        )
        # Without its connection, which is a leader's: the producer's own requests have another one.
        answer = self._runtime.begin(name, added, version=context.version)
        self._on_deadline()
        return map_response(answer, partial(_as_result, transaction))

    def check(
        self, transactional_id: str, producer: tuple[int, int], partition_key: tuple[str, int]
    ) -> None:
        """Check that a producer may write to a partition in its transaction now.

        Raises:
            LogError: it may not; `code` says why.
        """
        self._verification.check(TransactionalWrite(transactional_id, producer), partition_key)

    def _commit_offsets(self, request: TxnOffsetCommitRequest, context: RequestContext) -> Answer:
        """Commit offsets as part of a transaction."""
        # The partition that stores the group's offsets is part of the transaction.
        try:
            partition_key = self._groups.partition_of(request.group_id)
        except LogError as error:
            return refuse(request, context.version, error.code)
        producer = (request.producer_id, request.producer_epoch)
        adds = context.version >= TRANSACTIONS_V2_SINCE[TxnOffsetCommitRequest]
        writing = TransactionalWrite(request.transactional_id, producer, adds)
        return self._verification.run_verified(
            writing,
            [partition_key],
            partial(self._commit_verified, request, context, writing, partition_key),
        )

    def _commit_verified(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        writing: TransactionalWrite,
        partition_key: tuple[str, int],
    ) -> Answer:
        code = self._verification.code_of(writing, partition_key)
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # Another broker coordinates the group.
            return refuse(request, context.version, ErrorCode.NOT_COORDINATOR)
        if code in PASSING:
            # A transient error of the transaction's coordinator. Passed on, it would make the
            # client look for the group's coordinator, so it gets one that makes it retry here.
            again = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return refuse(request, context.version, again)
        if writing.adds and code is ErrorCode.INVALID_TXN_STATE:
            # The transaction has ended meanwhile. Clients of transactions v2 know the error that
            # costs them only this transaction; the other one is fatal.
            code = ErrorCode.TRANSACTION_ABORTABLE
        if code is not ErrorCode.NONE:
            return refuse(request, context.version, code)
        answer = self._groups.begin(
            request,
            version=context.version,
            client_id=context.client_id or "",
            client_host=context.client_host,
        )
        self._on_deadline()
        return answer

    # Reads.

    def _list(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """List the transactional ids that pass all filters."""
        titles = {state.title for state in TransactionState}
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        wall_ms = self._runtime.clock.wall_ms()

        def passes(known: CoordinatedTransaction) -> bool:
            open_ms = wall_ms - known.start_ms if known.start_ms >= 0 else -1
            return (
                (not states or known.state.title in states)
                and (not producers or known.producer_id in producers)
                and (request.duration_filter < 0 or open_ms > request.duration_filter)
            )

        try:
            found = self._runtime.transactions()
        except LogError as error:
            return ListTransactionsResponse(error_code=error.code)
        return ListTransactionsResponse(
            unknown_state_filters=sorted(states - titles),
            transaction_states=[
                Listed(
                    transactional_id=known.transactional_id,
                    producer_id=known.producer_id,
                    transaction_state=known.state.title,
                )
                for known in found
                if passes(known)
            ],
        )

    def _describe_all(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        """Describe transactional ids, each independently."""
        return DescribeTransactionsResponse(
            transaction_states=[self._describe(name) for name in request.transactional_ids]
        )

    def _describe(self, name: str) -> Described:
        try:
            known = self._runtime.transaction(name)
        except LogError as error:
            return Described(error_code=error.code, transactional_id=name)
        if known is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return Described(error_code=code, transactional_id=name)
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(known.partitions):
            topics.setdefault(topic, []).append(number)
        return Described(
            transactional_id=name,
            transaction_state=known.state.title,
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.start_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            topics=[TopicData(topic=topic, partitions=found) for topic, found in topics.items()],
        )

    def _describe_producers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        """Describe the producers of partitions."""
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[self._producers(topic.name, n) for n in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    def _producers(self, topic: str, index: int) -> PartitionResponse:
        try:
            states = self._runtime.partitions.get(topic, index).log.producers
        except LogError as error:
            return PartitionResponse(
                partition_index=index, error_code=error.code, error_message=str(error)
            )
        begun = dict(states.transactions)
        return PartitionResponse(
            partition_index=index,
            active_producers=[
                DescribedProducer(
                    producer_id=producer_id,
                    producer_epoch=known.epoch,
                    last_sequence=known.last_sequence,
                    last_timestamp=known.timestamp_ms,
                    coordinator_epoch=known.coordinator_epoch,
                    current_txn_start_offset=begun.get(producer_id, -1),
                )
                for producer_id, known in states
            ],
        )

    # Markers of other coordinators.

    def _write_markers(
        self, request: WriteTxnMarkersRequest, connection: int
    ) -> WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]:
        """Write markers for another coordinator, or for an admin that aborts a transaction."""
        answers = MarkerAnswers(request)
        is_late = connection < self._marker_connections.get(request.coordinator_id, 0)
        # Admins give no id, so their requests are not ordered by connection.
        if request.coordinator_id >= 0 and not is_late:
            self._marker_connections[request.coordinator_id] = connection
        for number, marker, partition_key in answers.markers():
            if is_late:
                # Its sender has given it up, and has sent it again by a newer connection.
                answers.on_code(number, partition_key, ErrorCode.REQUEST_TIMED_OUT)
            else:
                self._write(answers, number, marker, partition_key)
        return answers.begin()

    def _write(
        self,
        answers: MarkerAnswers,
        number: int,
        marker: WritableTxnMarker,
        partition_key: tuple[str, int],
    ) -> None:
        kind = COMMIT if marker.transaction_result else ABORT
        producer = (marker.producer_id, marker.producer_epoch)
        raises = marker.transaction_version >= TRANSACTIONS_V2
        end = Marker(kind, marker.coordinator_epoch, raises)
        try:
            partition = self._runtime.markers.write(partition_key, producer, end)
        except StreamlogError as error:
            answers.on_failure(number, partition_key, error)
            return
        end_offset = partition.log.log_end_offset
        if partition.may_acknowledge(end_offset):
            answers.on_code(number, partition_key, ErrorCode.NONE)
        else:
            partition.when_committed(end_offset, partial(answers.on_failure, number, partition_key))


def _result(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[tuple[str, int]], ErrorCode]
) -> AddPartitionsToTxnResponse:
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    code = by_partition(lambda topic, index: code_of((topic, index)))
    return response_by_item(request, AddPartitionsToTxnResponse, code)


def _as_result(transaction: AddPartitionsToTxnTransaction, answer: Message) -> Message:
    """Wrap the response for one transaction as one result of several."""
    if not isinstance(answer, AddPartitionsToTxnResponse):
        return answer
    topics = answer.results_by_topic_v3_and_below
    name = transaction.transactional_id
    result = AddPartitionsToTxnResult(transactional_id=name, topic_results=topics)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def _results(answers: Sequence[Message]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            result
            for answer in answers
            if isinstance(answer, AddPartitionsToTxnResponse)
            for result in answer.results_by_transaction
        ]
    )
