"""InternalTopics: creates the broker's internal topics when a request first needs them.

A request that needs one waits until it exists. If the topic can't be created, the request continues
anyway, and its handler answers that there is no coordinator, so that the client retries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from streamlog.broker.apis.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE
from streamlog.broker.apis.publish import PUBLICATIONS_CONFIGS, PUBLICATIONS_TOPIC
from streamlog.broker.coordinator.group.group_runtime import (
    OFFSETS_CONFIGS,
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
)
from streamlog.broker.coordinator.transaction.transaction_runtime import (
    TRANSACTIONS_CONFIGS,
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_TOPIC,
)
from streamlog.broker.future_responses import Answer, chain_response
from streamlog.broker.handlers import AnyAnswer, AnyHandler, Handlers
from streamlog.broker.quorum.controller.topic_control import DEFAULT
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
)
from streamlog.protocol.messages.publishing import PublishRequest
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.security.principals import RequestContext


class _Kind(NamedTuple):
    partitions: int
    configs: Mapping[str, str]


INTERNAL_TOPICS: Final[Mapping[str, _Kind]] = {
    OFFSETS_TOPIC: _Kind(OFFSETS_PARTITIONS, OFFSETS_CONFIGS),
    TRANSACTIONS_TOPIC: _Kind(TRANSACTIONS_PARTITIONS, TRANSACTIONS_CONFIGS),
    PUBLICATIONS_TOPIC: _Kind(1, PUBLICATIONS_CONFIGS),
}
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
"""Kafka's topic for share groups, which this broker does not have. Its name is reserved."""
INTERNAL_NAMES: Final = frozenset({*INTERNAL_TOPICS, SHARE_GROUP_STATE_TOPIC})
"""Topics that only brokers write. `__cluster_metadata` is no topic: the controller refuses it."""
CREATION_TIMEOUT_MS: Final = 30_000

_NEEDED: Final[Mapping[type[Message], tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            JoinGroupRequest,
            SyncGroupRequest,
            HeartbeatRequest,
            LeaveGroupRequest,
            ConsumerGroupHeartbeatRequest,
            OffsetCommitRequest,
            OffsetFetchRequest,
            OffsetDeleteRequest,
            DeleteGroupsRequest,
            DescribeGroupsRequest,
            ConsumerGroupDescribeRequest,
        ),
        (OFFSETS_TOPIC,),
    ),
    FindCoordinatorRequest: (OFFSETS_TOPIC, TRANSACTIONS_TOPIC),
    **dict.fromkeys(
        (InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest), (TRANSACTIONS_TOPIC,)
    ),
    **dict.fromkeys(
        (AddOffsetsToTxnRequest, TxnOffsetCommitRequest), (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    ),
    PublishRequest: tuple(INTERNAL_TOPICS),
}

_COORDINATED: Final = {
    GROUP_KEY_TYPE: (OFFSETS_TOPIC,),
    TRANSACTION_KEY_TYPE: (TRANSACTIONS_TOPIC,),
}
"""The topic of the coordinator, by the key type of FindCoordinator."""


class InternalTopics:
    """Creates internal topics before the requests that need them."""

    def __init__(
        self, partitions: Partitions, create: Callable[[CreateTopicsRequest], Answer]
    ) -> None:
        self._partitions = partitions
        self._create = create

    def before(self, handlers: Handlers) -> Handlers:
        """Wrap handlers so that each is called once the internal topics it needs exist."""
        return {
            kind: partial(self._begin, _NEEDED[kind], handler) if kind in _NEEDED else handler
            for kind, handler in handlers.items()
        }

    def _begin(
        self,
        needed: tuple[str, ...],
        handler: AnyHandler,
        request: Message,
        context: RequestContext,
    ) -> AnyAnswer:
        match request:
            case InitProducerIdRequest(transactional_id=None):
                # Only idempotent: any broker assigns the producer id, without a coordinator.
                needed = ()
            case AddPartitionsToTxnRequest(transactions=[]) if _names_internal(request):
                return _refused(request)
            case FindCoordinatorRequest():
                needed = _COORDINATED.get(request.key_type, ())
        missing = [name for name in needed if not self._partitions.partitions(name)]
        if not missing:
            return handler(request, context)
        # Also if the creation fails, for example because there are too few brokers: the handler's
        # error is one on which clients retry, and the next request tries the creation again.
        return chain_response(self.ensure(missing), lambda _: handler(request, context))

    def ensure(self, names: list[str]) -> Answer:
        """Create internal topics; the response has an error for each that can't be created."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=INTERNAL_TOPICS[name].partitions,
                replication_factor=DEFAULT,
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in INTERNAL_TOPICS[name].configs.items()
                ],
            )
            for name in names
        ]
        return self._create(CreateTopicsRequest(topics=topics, timeout_ms=CREATION_TIMEOUT_MS))


def _names_internal(request: AddPartitionsToTxnRequest) -> bool:
    return any(topic.name in INTERNAL_NAMES for topic in request.v3_and_below_topics)


def _refused(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Refuse a client's internal topics, as Kafka does, and add none of its other partitions.

    Brokers add partitions of `__consumer_offsets` by `transactions`, for which they are authorized.
    """
    code_of = by_partition(
        lambda topic, _: (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if topic in INTERNAL_NAMES
            else ErrorCode.OPERATION_NOT_ATTEMPTED
        )
    )
    return response_by_item(request, AddPartitionsToTxnResponse, code_of)
