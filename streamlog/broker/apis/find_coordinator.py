"""FindCoordinator: the coordinator of a group or of a transactional id.

It is the leader of one partition of `__consumer_offsets` or `__transaction_state`, chosen by the
hash of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamlog.broker.coordinator.group.group_runtime import OFFSETS_TOPIC
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.broker.coordinator.transaction.transaction_runtime import TRANSACTIONS_TOPIC
from streamlog.broker.handlers import Handlers, entry
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)

if TYPE_CHECKING:
    from streamlog.broker.apis.metadata import MetadataRequests
    from streamlog.broker.config.connections import AdvertisedEndpoint
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.security.principals import RequestContext

MANY_COORDINATORS_VERSION = 4
"""The first FindCoordinator version that takes several keys (KIP-699)."""
GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1


class FindCoordinator:
    """Handles FindCoordinator from the metadata that this broker knows."""

    def __init__(self, admin: MetadataRequests, metadata: ClusterMetadata) -> None:
        self._admin = admin
        self._metadata = metadata

    def handlers(self, reached: Callable[[RequestContext], AdvertisedEndpoint]) -> Handlers:
        """Return the handler of each request type.

        `reached` returns the endpoint over which a client has connected to this broker.
        """
        return dict(
            [
                entry(
                    FindCoordinatorRequest,
                    lambda request, at: self.find_coordinator(request, at.version, reached(at)),
                )
            ]
        )

    def find_coordinator(
        self, request: FindCoordinatorRequest, version: int, reached: AdvertisedEndpoint
    ) -> FindCoordinatorResponse:
        """Return the broker that leads the partition of each key, or an error per key."""
        if version >= MANY_COORDINATORS_VERSION:
            found = [self._coordinator(k, request, reached) for k in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(request.key, request, reached)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(
        self, key: str, request: FindCoordinatorRequest, reached: AdvertisedEndpoint
    ) -> FoundCoordinator:
        refusal = None
        if request.key_type not in (GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE):
            refusal = (
                ErrorCode.INVALID_REQUEST,
                (
                    f"unknown key type {request.key_type}: use {GROUP_KEY_TYPE} for a group or"
                    f" {TRANSACTION_KEY_TYPE} for a transactional id"
                ),
            )
        elif not key and request.key_type == GROUP_KEY_TYPE:
            refusal = ErrorCode.INVALID_GROUP_ID, "group.id is empty"
        elif not key:
            refusal = ErrorCode.INVALID_REQUEST, "transactional.id is empty"
        if refusal is not None:
            code, message = refusal
            return FoundCoordinator(
                key=key, node_id=-1, port=-1, error_code=code, error_message=message
            )
        topic = OFFSETS_TOPIC if request.key_type == GROUP_KEY_TYPE else TRANSACTIONS_TOPIC
        there = self._metadata.topic(topic)
        if there is not None:
            leader = there.partitions[shard_index(key, len(there.partitions))].leader
            # A leader that the list lacks is fenced, or has no listener that this client can use.
            for node_id, host, port, _ in self._admin.brokers(reached):
                if node_id == leader:
                    return FoundCoordinator(key=key, node_id=node_id, host=host, port=port)
        return FoundCoordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message=f"the partition of {topic} that {key!r} belongs to has no leader",
        )
