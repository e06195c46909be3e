"""Admin requests about transactions, each sent to its coordinator (KIP-664).

A transaction *hangs* if its coordinator does not know it, and so never ends it: readers of
committed records wait in front of it, and compaction stops there. `hanging` decides which do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from streamlog.client.admin.admin_area import AdminArea, check
from streamlog.client.offset_lookup import by_leader
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.transaction_messages import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.record import TopicPartition

TRANSACTION_KEY_TYPE = 1
NOT_FILTERED = -1


class TransactionListing(msgspec.Struct, frozen=True):
    """A transactional id in the result of `list_transactions`."""

    transactional_id: str
    producer_id: int
    state: str
    """The state in Kafka's words: Empty, Ongoing, PrepareCommit and so on."""


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id with its open transaction, if any."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """When the open transaction began, in ms since 1970; None if there is none."""
    partitions: frozenset[TopicPartition]
    """The partitions in the transaction."""
    coordinator: int
    """The id of the broker that coordinates the transactional id."""


class ProducerDescription(msgspec.Struct, frozen=True):
    """A producer's state in one partition, in the result of `describe_producers`."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None
    """The first offset of its open transaction in this partition; None if there is none."""


class HangingTransaction(msgspec.Struct, frozen=True):
    """A transaction that no coordinator will end, in one partition."""

    partition: TopicPartition
    producer: ProducerDescription
    transactional_id: str | None
    """The id whose transactions the producer wrote last; None if no coordinator knows one."""


class TransactionAdmin(AdminArea):
    """Lists, describes and aborts transactions."""

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        open_for_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that match every filter, sorted by name.

        Args:
            states: states in Kafka's words, such as `Ongoing`; empty for all.
            producer_ids: producer ids; empty for all.
            open_for_ms: only ids whose transaction has been open for more milliseconds.

        Raises:
            LogError: a state is unknown.
        """
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=NOT_FILTERED if open_for_ms is None else open_for_ms,
        )

        async def attempt() -> list[TransactionListing]:
            # A broker lists only the transactional ids that it coordinates.
            found: list[TransactionListing] = []
            for node_id in await self._cluster.nodes():
                response = await self._cluster.call(node_id, request, ListTransactionsResponse)
                check(f"transactions of broker {node_id}", response.error_code)
                found += (
                    TransactionListing(
                        each.transactional_id, each.producer_id, each.transaction_state
                    )
                    for each in response.transaction_states
                )
            return sorted(found, key=lambda each: each.transactional_id)

        return await self._cluster.retrying(attempt)

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> list[TransactionDescription]:
        """Return these transactional ids, each as its coordinator describes it.

        Raises:
            LogError: an id does not exist (TRANSACTIONAL_ID_NOT_FOUND).
        """
        return [await self._described(name) for name in transactional_ids]

    async def _described(self, name: str) -> TransactionDescription:
        async def attempt() -> TransactionDescription:
            node_id = await self._cluster.coordinator(name, key_type=TRANSACTION_KEY_TYPE)
            request = DescribeTransactionsRequest(transactional_ids=[name])
            response = await self._cluster.call(node_id, request, DescribeTransactionsResponse)
            (found,) = response.transaction_states
            check(f"transactional id {name!r}", found.error_code)
            start_ms = found.transaction_start_time_ms
            return TransactionDescription(
                transactional_id=name,
                state=found.transaction_state,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.transaction_timeout_ms,
                start_ms=None if start_ms < 0 else start_ms,
                partitions=frozenset(
                    TopicPartition(topic.topic, number)
                    for topic in found.topics
                    for number in topic.partitions
                ),
                coordinator=node_id,
            )

        return await self._cluster.retrying(attempt)

    async def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the producers of each partition, as its leader knows them.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
        """

        async def attempt() -> dict[TopicPartition, list[ProducerDescription]]:
            found: dict[TopicPartition, list[ProducerDescription]] = {}
            wanted = dict.fromkeys(partitions, 0)
            for leader, here in (await by_leader(self._cluster, wanted)).items():
                request = DescribeProducersRequest(
                    topics=[
                        DescribeProducersTopic(name=name, partition_indexes=[partition])
                        for name, partition in here
                    ]
                )
                response = await self._cluster.call(leader, request, DescribeProducersResponse)
                found |= _producers(response)
            return found

        return await self._cluster.retrying(attempt)

    async def find_hanging_transactions(
        self, partitions: Collection[TopicPartition], *, open_for_ms: int
    ) -> list[HangingTransaction]:
        """Return the hanging transactions in some partitions.

        Args:
            partitions: where to look.
            open_for_ms: look only at transactions in which nothing was written for more
                milliseconds. Brokers allow time-outs of up to `transaction.max.timeout.ms`, by
                default 15 minutes; a transaction that is younger may be known to a coordinator that
                has not answered yet.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
        """
        before_ms = self._cluster.clock.wall_ms() - open_for_ms
        producers = {
            partition: [each for each in found if is_open_since(each, before_ms)]
            for partition, found in (await self.describe_producers(partitions)).items()
        }
        ids = {each.producer_id for found in producers.values() for each in found}
        known: dict[int, TransactionDescription] = {}
        for listed in await self.list_transactions(producer_ids=ids) if ids else []:
            try:
                (described,) = await self.describe_transactions([listed.transactional_id])
            except LogError as error:
                # Expired since it was listed: no coordinator knows it.
                if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
            else:
                known[described.producer_id] = described
        return list(hanging(producers, known))

    async def abort_transaction(
        self, partition: TopicPartition, producer: ProducerDescription
    ) -> None:
        """Abort the open transaction of a producer in one partition.

        Use it only for a hanging transaction, which its coordinator has forgotten: a live producer
        loses the records of this partition from the transaction that it commits.

        Raises:
            LogError: the producer has a newer epoch than `producer` says.
        """
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            topics=[
                WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )

        async def attempt() -> None:
            for leader in await by_leader(self._cluster, {partition: 0}):
                request = WriteTxnMarkersRequest(markers=[marker])
                response = await self._cluster.call(leader, request, WriteTxnMarkersResponse)
                topics = [topic for each in response.markers for topic in each.topics]
                for result in [result for topic in topics for result in topic.partitions]:
                    where = f"{partition.topic}-{partition.partition}"
                    check(f"abort the transaction in {where}", result.error_code)

        await self._cluster.retrying(attempt)


def is_open_since(producer: ProducerDescription, before_ms: int) -> bool:
    """Return whether a producer has an open transaction, and has not written since `before_ms`."""
    return producer.transaction_start_offset is not None and producer.last_timestamp_ms < before_ms


def hanging(
    producers: Mapping[TopicPartition, Iterable[ProducerDescription]],
    known: Mapping[int, TransactionDescription],
) -> Iterator[HangingTransaction]:
    """Yield the open transactions of producers that no coordinator will end.

    Args:
        producers: the producers with an open transaction, by partition.
        known: the transactional ids of all coordinators, by the producer id that they have now.
    """
    for partition, found in sorted(producers.items()):
        for producer in found:
            transaction = known.get(producer.producer_id)
            # The coordinator ends a transaction in the partitions that it knows of, as soon as it
            # commits, aborts or expires. A producer of an earlier epoch was fenced, and what it
            # left was aborted in the partitions that were known then.
            if transaction is not None and partition in transaction.partitions:
                continue
            transactional_id = None if transaction is None else transaction.transactional_id
            yield HangingTransaction(partition, producer, transactional_id)


def _producers(
    response: DescribeProducersResponse,
) -> dict[TopicPartition, list[ProducerDescription]]:
    found: dict[TopicPartition, list[ProducerDescription]] = {}
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            check(
                f"producers of {topic.name}-{partition.partition}",
                each.error_code,
                each.error_message,
            )
            found[partition] = [_producer(state) for state in each.active_producers]
    return found


def _producer(state: DescribedProducer) -> ProducerDescription:
    start = state.current_txn_start_offset
    return ProducerDescription(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=None if start < 0 else start,
    )
