"""InternalTopics: the topics that the broker keeps its own books in, made when they are needed.

A request that needs one waits until it is there; if it can't be made the request goes on all the
same, and whoever answers it says that there is no coordinator, so that the client comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamlog.broker.coordinator.runtime import (
    OFFSETS_CONFIGS,
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
)
from streamlog.broker.coordinator.transaction_runtime import (
    TRANSACTIONS_CONFIGS,
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_TOPIC,
)
from streamlog.broker.publications import PUBLICATIONS_CONFIGS, PUBLICATIONS_TOPIC
from streamlog.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from streamlog.protocol.messages.consumer_group_description import ConsumerGroupDescribeRequest
from streamlog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from streamlog.protocol.messages.coordination import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from streamlog.protocol.messages.group_admin import DeleteGroupsRequest, OffsetDeleteRequest
from streamlog.protocol.messages.publishing import PublishRequest
from streamlog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partitions


class _Kind(NamedTuple):
    partitions: int
    configs: Mapping[str, str]


INTERNAL_TOPICS: Final[Mapping[str, _Kind]] = {
    OFFSETS_TOPIC: _Kind(OFFSETS_PARTITIONS, OFFSETS_CONFIGS),
    TRANSACTIONS_TOPIC: _Kind(TRANSACTIONS_PARTITIONS, TRANSACTIONS_CONFIGS),
    PUBLICATIONS_TOPIC: _Kind(1, PUBLICATIONS_CONFIGS),
}
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
    **dict.fromkeys(
        (InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest), (TRANSACTIONS_TOPIC,)
    ),
    **dict.fromkeys(
        (AddOffsetsToTxnRequest, TxnOffsetCommitRequest), (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    ),
    PublishRequest: tuple(INTERNAL_TOPICS),
}

Handler = Callable[[Any, Any], Any]
Created = Message | asyncio.Future[Message]


class InternalTopics:
    """Makes internal topics before the requests that need them."""

    def __init__(
        self, partitions: Partitions, create: Callable[[CreateTopicsRequest], Created]
    ) -> None:
        self._partitions = partitions
        self._create = create

    def before(self, handlers: Mapping[Any, Handler]) -> dict[Any, Handler]:
        """The same handlers, each called once the topics are there that it needs."""
        return {
            kind: partial(self._begin, _NEEDED[kind], handler) if kind in _NEEDED else handler
            for kind, handler in handlers.items()
        }

    def _begin(self, needed: tuple[str, ...], handler: Handler, request: Any, context: Any) -> Any:  # noqa: ANN401 - each request has its own answer
        missing = [name for name in needed if not self._partitions.partitions(name)]
        if not missing or (
            isinstance(request, InitProducerIdRequest) and request.transactional_id is None
        ):
            return handler(request, context)
        return after(self.ensure(missing), partial(handler, request, context))

    def ensure(self, names: list[str]) -> Created:
        """Make these topics."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=INTERNAL_TOPICS[name].partitions,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in INTERNAL_TOPICS[name].configs.items()
                ],
            )
            for name in names
        ]
        return self._create(CreateTopicsRequest(topics=topics, timeout_ms=CREATION_TIMEOUT_MS))


def after(first: Created, then: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above
    """What comes of `then`, which is called when the first answer is there, now or later."""
    if not isinstance(first, asyncio.Future):
        return then()
    whole: asyncio.Future[Any] = first.get_loop().create_future()

    def hand_on(done: asyncio.Future[Any]) -> None:
        if whole.done():
            return
        if (error := done.exception()) is not None:
            whole.set_exception(error)
        else:
            whole.set_result(done.result())

    def go_on(done: asyncio.Future[Message]) -> None:
        if whole.done():
            return  # Nobody waits for it any more.
        if (error := done.exception()) is not None:
            whole.set_exception(error)
            return
        answer = then()
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(hand_on)
        else:
            whole.set_result(answer)

    first.add_done_callback(go_on)
    return whole
