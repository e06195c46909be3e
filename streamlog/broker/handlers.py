"""Handlers: which part of a broker answers which request, in one table.

Rule of the file: it says who answers and what is asked before, and answers nothing itself but
ApiVersions, which follows from the table of APIs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from streamlog.broker.config_requests import ConfigRequests
from streamlog.broker.finding import Finding
from streamlog.broker.internal_topics import INTERNAL_NAMES, InternalTopics
from streamlog.broker.leader_endpoints import LeaderEndpoints
from streamlog.broker.node_reports import NodeReports
from streamlog.broker.partition_requests import PartitionRequests
from streamlog.broker.peer_security import controller_listener, peer_listener
from streamlog.broker.peers import PEER_CLIENT_ID
from streamlog.broker.quorum.wire import about_quorum
from streamlog.broker.quorum_requests import QuorumRequests
from streamlog.broker.quota_requests import QuotaRequests
from streamlog.broker.replica_fetches import is_of_a_follower
from streamlog.broker.topic_pages import TopicPages
from streamlog.protocol.apis import APIS
from streamlog.protocol.fetch_patterns import FetchAlike
from streamlog.protocol.messages.admin import IncrementalAlterConfigsRequest
from streamlog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from streamlog.protocol.messages.data import FetchRequest
from streamlog.protocol.messages.quorum import DescribeQuorumRequest
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    import asyncio

    from streamlog.broker.acl_requests import AclRequests
    from streamlog.broker.admin import AdminRequests
    from streamlog.broker.config import BrokerConfig
    from streamlog.broker.coordinator.requests import GroupRequests
    from streamlog.broker.coordinator.transaction_requests import TransactionRequests
    from streamlog.broker.coordinator.verification import Verification
    from streamlog.broker.data import DataRequests
    from streamlog.broker.deletions import Deletions
    from streamlog.broker.durable import Answer, DurableAnswers
    from streamlog.broker.fetches import Fetches
    from streamlog.broker.listeners import Reached
    from streamlog.broker.membership import Membership
    from streamlog.broker.publishing import Publishing
    from streamlog.broker.replica_fetches import ReplicaFetches
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.user_requests import UserRequests

Table: TypeAlias = "dict[type[Message | ProduceRun | FetchAlike], Callable[..., Answer]]"

ADVERTISED = frozenset(api.request for api in APIS.values())
"""What clients may ask for."""


class Context(Protocol):
    """Who asks, and in which version."""

    @property
    def version(self) -> int:
        """Of the request."""
        ...

    @property
    def client_id(self) -> str | None:
        """What the client calls itself."""
        ...

    @property
    def listener(self) -> Reached | None:
        """Where it has reached the broker; None for who is in its process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Those of a broker that answer."""

    directory: LogDirectory
    member: Membership
    partitions: Partitions
    data: DataRequests
    durable: DurableAnswers
    fetches: Fetches
    replicas: Replicas
    replica_fetches: ReplicaFetches
    groups: GroupRequests
    verification: Verification
    transacting: TransactionRequests
    admin: AdminRequests
    deletions: Deletions
    publishing: Publishing
    users: UserRequests
    acls: AclRequests
    listener: Callable[[Any], Reached]
    """Where who asks in a context has reached the broker."""
    on_deadline: Callable[[], None]
    """Something may be due earlier."""


def table_of(parts: Parts) -> Table:
    """Who answers what."""
    member, admin, listener = parts.member, parts.admin, parts.listener
    quorum = QuorumRequests(member.quorum)
    reports = NodeReports(parts.directory, member, parts.replicas)
    topics = InternalTopics(parts.partitions, member.submit)
    leaders = LeaderEndpoints(admin, listener)
    configs = ConfigRequests(parts.directory, member.metadata)
    peer_listeners = _peer_listeners(parts.directory.config, is_alone=member.is_alone)
    return {
        ApiVersionsRequest: lambda _, at: api_versions(to_peers=_is_of_peers(at, peer_listeners)),
        **leaders.after({FetchRequest: _fetch(parts, quorum)}),
        FetchAlike: parts.fetches.begin_alike,
        OffsetForLeaderEpochRequest: lambda request, _: parts.data.epoch_ends(request),
        MetadataRequest: lambda request, at: admin.metadata(request, at.version, listener(at)),
        DescribeClusterRequest: lambda request, at: admin.describe_cluster(request, listener(at)),
        **dict.fromkeys(member.requests & ADVERTISED, _at_controller(member, member.decide)),
        **quorum.handlers(),
        DescribeQuorumRequest: _at_controller(member, quorum.describe),
        **topics.before(Finding(admin, member.metadata).handlers(listener)),
        **leaders.after(parts.verification.before(parts.durable.handlers())),
        **parts.deletions.handlers(),
        **topics.before(parts.publishing.handlers()),
        **topics.before(parts.transacting.handlers()),
        **topics.before(parts.groups.handlers(parts.on_deadline)),
        **configs.handlers(listener),
        IncrementalAlterConfigsRequest: configs.before(_at_controller(member, member.decide)),
        **PartitionRequests(parts.directory, reports).handlers(),
        **TopicPages(member.metadata, internal_topics=INTERNAL_NAMES).handlers(),
        **QuotaRequests(member.metadata).handlers(),
        **parts.users.handlers(),
        **parts.acls.handlers(),
    }


def _fetch(parts: Parts, quorum: QuorumRequests) -> Callable[..., Answer]:
    """A follower's, which reads all that there is, or a reader's."""

    def begin(request: FetchRequest, context: Any, readable: Any = None) -> Answer:  # noqa: ANN401 - as `Fetches.begin` has them
        if is_of_a_follower(request) and about_quorum(request):
            return quorum.ask(request)
        if is_of_a_follower(request):
            return parts.replica_fetches.begin(request)
        return parts.fetches.begin(request, context, readable)

    return begin


def _at_controller(
    member: Membership, here: Callable[[Any, int], Message | asyncio.Future[Message]]
) -> Callable[..., Message | asyncio.Future[Message]]:
    """What the active controller answers: it is asked, unless another node asks this one."""

    def begin(request: Message, at: Context) -> Message | asyncio.Future[Message]:
        if at.client_id == PEER_CLIENT_ID:
            return here(request, at.version)
        return member.submit(request, at.version, here)

    return begin


def _peer_listeners(config: BrokerConfig, *, is_alone: bool) -> frozenset[str]:
    """By which other nodes come, by name."""
    if is_alone:
        return frozenset()
    return frozenset({peer_listener(config).name, controller_listener(config).name})


def _is_of_peers(at: Context, peer_listeners: frozenset[str]) -> bool:
    """Whether other nodes come by the same listener as who asks."""
    return at.listener is None or at.listener.listener in peer_listeners


def api_versions(error_code: int = 0, *, to_peers: bool = False) -> ApiVersionsResponse:
    """What this broker speaks: with other nodes of its cluster, or with everybody."""
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
            if to_peers or not api.is_of_peers
        ],
    )
