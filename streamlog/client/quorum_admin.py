"""QuorumAdmin: who decides on a cluster, and how far everybody is in what was decided (KIP-836)."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.client.admin_room import AdminRoom, check
from streamlog.client.cluster_descriptions import QuorumDescription, QuorumReplica
from streamlog.errors import CorruptData
from streamlog.protocol.messages.quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    QuorumReplicaState,
)

METADATA_TOPIC = "__cluster_metadata"


class QuorumAdmin(AdminRoom):
    """Looks at the quorum."""

    async def describe_quorum(self) -> QuorumDescription:
        """The quorum as its leader sees it.

        Raises:
            UnsupportedVersion: it is a cluster without one, as those with ZooKeeper.
            NotAuthorized: this is not for everybody to know.
        """
        partition = DescribeQuorumPartition(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[DescribeQuorumTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
        )

        def read(response: DescribeQuorumResponse) -> QuorumDescription:
            check("describe the quorum", response.error_code, response.error_message)
            found = next((each for topic in response.topics for each in topic.partitions), None)
            if found is None:
                raise CorruptData("the controller has described no quorum")
            check("describe the quorum", found.error_code, found.error_message)
            return QuorumDescription(
                found.leader_id,
                found.leader_epoch,
                found.high_watermark,
                _replicas(found.current_voters),
                _replicas(found.observers),
            )

        return await self._ask_controller(request, DescribeQuorumResponse, read)


def _replicas(states: Iterable[QuorumReplicaState]) -> tuple[QuorumReplica, ...]:
    return tuple(
        QuorumReplica(
            each.replica_id,
            each.log_end_offset,
            each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
            each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
            each.is_rejoining,
        )
        for each in sorted(states, key=lambda each: each.replica_id)
    )
