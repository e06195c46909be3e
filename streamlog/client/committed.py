"""CommittedOffsets: where a group goes on, as its coordinator keeps it.

One attempt each: who calls knows for how long to try, and in whose name. An error says by its flag
whether another attempt makes sense.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from streamlog.assignors import TopicPartition
from streamlog.client.coordinator import Coordinator
from streamlog.client.group_metadata import GroupMetadata
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import coordination as wire

# The rebalance waits for the owner, so the owner must not wait for the rebalance; and a topic that
# was read and is not there any more does not come back while it is waited for.
_FINAL = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class CommittedOffsets:
    """The committed offsets of one group."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def store(
        self, places: Mapping[TopicPartition, OffsetAndMetadata], by: GroupMetadata
    ) -> None:
        """Store the next offset to read of these partitions.

        Raises:
            RebalanceInProgress: the group is between two assignments; the partitions may be
                another member's next.
            UnknownMember: the group has given up on this consumer and on what it had.
        """
        request = wire.OffsetCommitRequest(
            group_id=by.group_id,
            generation_id_or_member_epoch=by.generation_id,
            member_id=by.member_id,
            group_instance_id=by.instance_id,
            topics=[
                wire.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        wire.OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=place.offset,
                            committed_leader_epoch=place.leader_epoch,
                            committed_metadata=place.metadata,
                        )
                        for number in numbers
                        for place in [places[TopicPartition(name, number)]]
                    ],
                )
                for name, numbers in _by_topic(places).items()
            ],
        )
        response = await self._coordinator.ask(request, wire.OffsetCommitResponse)
        for topic in response.topics:
            for each in topic.partitions:
                self._check(each.error_code, f"commit of {topic.name}-{each.partition_index}")

    async def fetch(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is stored, None where nothing is."""
        numbers = _by_topic(partitions)
        group_id = self._coordinator.group_id
        request = wire.OffsetFetchRequest(
            group_id=group_id,
            # What a transaction has sent may be about to count: its owner's successor waits for
            # that, or it would read again what the transaction has written about (KIP-447).
            require_stable=True,
            topics=[
                wire.OffsetFetchRequestTopic(name=name, partition_indexes=many)
                for name, many in numbers.items()
            ],
            groups=[
                wire.OffsetFetchRequestGroup(
                    group_id=group_id,
                    topics=[
                        wire.OffsetFetchRequestTopics(name=name, partition_indexes=many)
                        for name, many in numbers.items()
                    ],
                )
            ],
        )
        response = await self._coordinator.ask(request, wire.OffsetFetchResponse)
        found = response.groups[0] if response.groups else response
        self._check(found.error_code, "committed offsets")
        committed: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        for topic in found.topics:
            for each in topic.partitions:
                self._check(each.error_code, f"offset of {topic.name}-{each.partition_index}")
                if each.committed_offset >= 0:
                    partition = TopicPartition(topic.name, each.partition_index)
                    committed[partition] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return committed

    def _check(self, error_code: int, where: str) -> None:
        if not error_code:
            return
        if error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinator.forget()
        error = error_for(error_code, f"{where} in group {self._coordinator.group_id}")
        if error_code in _FINAL:
            error.retriable = False
        elif error_code == ErrorCode.STALE_MEMBER_EPOCH:
            error.retriable = True  # The next heartbeat brings the new one.
        raise error


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in partitions:
        numbers.setdefault(topic, []).append(partition)
    return numbers
