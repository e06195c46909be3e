"""TransactionAdmin: looks at transactions, and ends one that nobody ends any more (KIP-664).

The part of `Admin` that is about transactions. A transactional id is known to its coordinator,
an open transaction also to the leaders of the partitions that it writes to. Where only the latter
know of it, readers of committed records wait for ever: `abort_transaction` is for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import AdminRoom, check
from streamlog.client.offsets import by_leader
from streamlog.protocol.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ProducerState,
    TopicRequest,
)
from streamlog.protocol.messages.transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TRANSACTION_KEY_TYPE = 1
NOT_FILTERED = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A line about a transactional id."""

    transactional_id: str
    producer_id: int
    state: str
    """Kafka's word for it: Empty, Ongoing, PrepareCommit, ..."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id with its transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """When its transaction began, in ms since 1970; None if there is none."""
    partitions: frozenset[TopicPartition]
    """Where it has written."""
    coordinator: int
    """The broker that coordinates it."""


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer as the leader of a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None
    """Where its open transaction begins in this partition; None if there is none."""


class TransactionAdmin(AdminRoom):
    """Looks after transactions."""

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        open_for_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Transactional ids, by name: all, or those that every filter lets through.

        Args:
            states: Kafka's words, such as `Ongoing`.
            producer_ids: whose they are.
            open_for_ms: those with a transaction that is older.

        Raises:
            LogError: there is no such state.
        """
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=NOT_FILTERED if open_for_ms is None else open_for_ms,
        )

        async def attempt() -> list[TransactionListing]:
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
        """These transactional ids, each from its own coordinator.

        Raises:
            LogError: TRANSACTIONAL_ID_NOT_FOUND, there is no such id.
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
        """Who writes to partitions, as their leaders know it.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
        """

        async def attempt() -> dict[TopicPartition, list[ProducerDescription]]:
            found: dict[TopicPartition, list[ProducerDescription]] = {}
            wanted = dict.fromkeys(partitions, 0)
            for leader, here in (await by_leader(self._cluster, wanted)).items():
                request = DescribeProducersRequest(
                    topics=[
                        TopicRequest(name=name, partition_indexes=[partition])
                        for name, partition in here
                    ]
                )
                response = await self._cluster.call(leader, request, DescribeProducersResponse)
                found |= _producers(response)
            return found

        return await self._cluster.retrying(attempt)

    async def abort_transaction(
        self, partition: TopicPartition, producer: ProducerDescription
    ) -> None:
        """End the open transaction of a producer in one partition; its records are aborted.

        For one that its coordinator has forgotten: what a living producer is about to commit is
        taken from it.

        Raises:
            LogError: the producer has gone on since it was described.
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


def _producers(
    response: DescribeProducersResponse,
) -> dict[TopicPartition, list[ProducerDescription]]:
    found: dict[TopicPartition, list[ProducerDescription]] = {}
    for topic in response.topics:
        for each in topic.partitions:
            place = TopicPartition(topic.name, each.partition_index)
            check(
                f"producers of {topic.name}-{place.partition}", each.error_code, each.error_message
            )
            found[place] = [_producer(state) for state in each.active_producers]
    return found


def _producer(state: ProducerState) -> ProducerDescription:
    start = state.current_txn_start_offset
    return ProducerDescription(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=None if start < 0 else start,
    )
