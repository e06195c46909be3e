"""The table of handlers: which part of the broker answers which request.

`table_of` wires the parts of a broker to request types. Wrapped around some handlers are the steps
that come before them: internal topics are created (`internal_topics`), transactions are verified
with their coordinator, requests about the cluster go to the active controller. Around Produce and
Fetch, `LeaderEndpoints` completes responses (KIP-951): the error of a partition names the leader
that this broker knows and its epoch, and the response adds the endpoints of those leaders, so that
the client need not send Metadata first. Authorization comes before all of this (`apis/security`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from streamlog.broker.apis.configs import ConfigRequests
from streamlog.broker.apis.find_coordinator import FindCoordinator
from streamlog.broker.apis.internal_topics import INTERNAL_NAMES, InternalTopics
from streamlog.broker.apis.log_dirs import NodeReports, PartitionRequests
from streamlog.broker.apis.metadata import TopicPages
from streamlog.broker.apis.produce import LEADER_ENDPOINTS_VERSION
from streamlog.broker.apis.quorum import QuorumRequests
from streamlog.broker.apis.quotas import QuotaRequests
from streamlog.broker.apis.replica_fetch import is_of_a_follower
from streamlog.broker.cluster.peers import PEER_CLIENT_ID, controller_listener, peer_listener
from streamlog.broker.future_responses import when_done
from streamlog.broker.handlers import Handler, Handlers, entry, shared_entry
from streamlog.broker.quorum.raft.raft_wire import about_quorum
from streamlog.protocol.api_table import APIS, TRANSACTION_FEATURE, TRANSACTIONS_V2
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    FinalizedFeatureKey,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    SupportedFeatureKey,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.messages.quorum_messages import DescribeQuorumRequest
from streamlog.protocol.messages.topics_and_configs import IncrementalAlterConfigsRequest
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.apis.delete_records import DeleteRecordsRequests
    from streamlog.broker.apis.fetch import FetchRequests
    from streamlog.broker.apis.list_offsets import OffsetRequests
    from streamlog.broker.apis.metadata import MetadataRequests
    from streamlog.broker.apis.produce import ProduceRequests
    from streamlog.broker.apis.publish import PublishRequests
    from streamlog.broker.apis.replica_fetch import ReplicaFetches
    from streamlog.broker.apis.security import AclRequests, UserRequests
    from streamlog.broker.apis.telemetry import TelemetryRequests
    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.config.connections import AdvertisedEndpoint
    from streamlog.broker.coordinator.group.group_requests import GroupRequests
    from streamlog.broker.coordinator.transaction.partition_verification import (
        PartitionVerification,
    )
    from streamlog.broker.coordinator.transaction.transaction_requests import TransactionRequests
    from streamlog.broker.future_responses import Answer
    from streamlog.broker.replication.log_dir_moves import LogDirMoves
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.security.acl_authorizer import Readable
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.protocol.messages.produce_and_fetch import LeaderIdAndEpoch


Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message | None)

FETCH_ENDPOINTS_VERSION = 16
"""The first Fetch version whose response has room for the endpoints of new leaders (KIP-951)."""


class Brokers(Protocol):
    """The live brokers of the cluster."""

    def brokers(self, reached: AdvertisedEndpoint) -> list[tuple[int, str, int, str | None]]:
        """Return the id, host, port and rack of each broker, as seen from a listener."""
        ...


class LeaderEndpoints:
    """Adds the endpoints of new leaders to responses."""

    def __init__(
        self, brokers: Brokers, reached: Callable[[RequestContext], AdvertisedEndpoint]
    ) -> None:
        """`reached` returns the endpoint by which the sender of a request reached this broker."""
        self._brokers = brokers
        self._reached = reached

    def after(
        self,
        handler: Handler[Request, Response],
        *,
        since_version: int,
    ) -> Handler[Request, Response]:
        """Wrap a handler so that its responses name the endpoints of leaders.

        `since_version` is the first version whose responses have room for them.
        """

        def begin(request: Request, context: RequestContext) -> Response | asyncio.Future[Response]:
            answer = handler(request, context)
            self.complete_when_done(answer, context, since_version)
            return answer

        return begin

    def complete_when_done(
        self, answer: object, context: RequestContext, since_version: int
    ) -> None:
        """Complete a response now or once it is there, in versions that have room."""
        if context.version < since_version:
            return
        # The caller adds its own callback later, so this one runs before the response is written.
        if isinstance(answer, asyncio.Future):
            when_done(answer, partial(self._on_done, context))
        else:
            self.complete(answer, context)

    def _on_done(self, context: RequestContext, done: asyncio.Future[object]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.complete(done.result(), context)

    def complete(self, answer: object, context: RequestContext) -> None:
        """Add the endpoints of the leaders that a response names; not to other answers."""
        match answer:
            case ProduceResponse() | FetchResponse():
                leaders = {each.leader_id for each in _leaders(answer)}
            case _:
                return
        if leaders:
            answer.node_endpoints = [
                NodeEndpoint(node_id=number, host=host, port=port, rack=rack)
                for number, host, port, rack in self._brokers.brokers(self._reached(context))
                if number in leaders
            ]


def _leaders(answer: ProduceResponse | FetchResponse) -> Iterable[LeaderIdAndEpoch]:
    if isinstance(answer, ProduceResponse):
        produced = (each for topic in answer.responses for each in topic.partition_responses)
        leaders = [each.current_leader for each in produced]
    else:
        fetched = (each for topic in answer.responses for each in topic.partitions)
        leaders = [each.current_leader for each in fetched]
    return [each for each in leaders if each is not None]


ADVERTISED = frozenset(api.request for api in APIS.values())
"""The requests that clients may send."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker that answer requests."""

    directory: LogDirectory
    member: ClusterNode
    partitions: Partitions
    produce: ProduceRequests
    offsets: OffsetRequests
    fetches: FetchRequests
    replicas: Replicas
    replica_fetches: ReplicaFetches
    groups: GroupRequests
    verification: PartitionVerification
    transacting: TransactionRequests
    admin: MetadataRequests
    deletions: DeleteRecordsRequests
    moves: LogDirMoves
    publishing: PublishRequests
    users: UserRequests
    acls: AclRequests
    telemetry: TelemetryRequests
    leaders: LeaderEndpoints
    clock: Clock
    listener: Callable[[RequestContext], AdvertisedEndpoint]
    """Return the endpoint that the sender of a request has connected to."""
    on_deadline: Callable[[], None]
    """Called when the earliest deadline may have changed."""


def table_of(parts: Parts) -> Handlers:
    """Return the handler of each request type."""
    member, admin, listener, leaders = parts.member, parts.admin, parts.listener, parts.leaders
    quorum = QuorumRequests(member.quorum)
    reports = NodeReports(parts.directory, member, parts.replicas, parts.clock)
    topics = InternalTopics(parts.partitions, member.submit)
    configs = ConfigRequests(parts.directory, member.metadata)
    peer_listeners = _peer_listeners(parts.directory.config, is_alone=member.is_alone)
    produce = leaders.after(
        parts.verification.before(parts.produce.begin), since_version=LEADER_ENDPOINTS_VERSION
    )
    own = [
        entry(
            ApiVersionsRequest,
            lambda _, at: api_versions(to_peers=_is_of_peers(at, peer_listeners)),
        ),
        entry(ProduceRequest, produce),
        shared_entry(FetchRequest, _fetch(parts, quorum)),
        entry(ListOffsetsRequest, lambda request, _: parts.offsets.begin(request)),
        entry(OffsetForLeaderEpochRequest, lambda request, _: parts.offsets.epoch_ends(request)),
        entry(
            MetadataRequest,
            lambda request, at: admin.metadata(request, at.version, listener(at)),
        ),
        entry(
            DescribeClusterRequest,
            lambda request, at: admin.describe_cluster(request, listener(at)),
        ),
    ]
    at_controller = _at_controller(member, member.decide)
    return {
        **dict(own),
        **dict(shared_entry(kind, at_controller) for kind in member.requests & ADVERTISED),
        **quorum.handlers(),
        **dict([shared_entry(DescribeQuorumRequest, _at_controller(member, quorum.describe))]),
        **topics.before(FindCoordinator(admin, member.metadata).handlers(listener)),
        **parts.deletions.handlers(),
        **topics.before(parts.publishing.handlers()),
        **topics.before(parts.transacting.handlers()),
        **topics.before(parts.groups.handlers(parts.on_deadline)),
        **configs.handlers(listener),
        # After the controller's requests, of which it is one: the later entry wins. This handler
        # changes levels of loggers here, and forwards the rest.
        **dict([shared_entry(IncrementalAlterConfigsRequest, configs.before(at_controller))]),
        **PartitionRequests(parts.directory, parts.partitions, parts.moves, reports).handlers(),
        **TopicPages(member.metadata, internal_topics=INTERNAL_NAMES).handlers(),
        **QuotaRequests(member.metadata).handlers(),
        **parts.users.handlers(),
        **parts.acls.handlers(),
        **parts.telemetry.handlers(),
    }


def _fetch(parts: Parts, quorum: QuorumRequests) -> Handler[FetchRequest, Message]:
    """Return the handler of Fetch: by the sender, of voters, of followers, or of consumers."""

    # The authorization passes `readable`; it calls other handlers without.
    def begin(
        request: FetchRequest, context: RequestContext, readable: Readable | None = None
    ) -> Answer:
        if not is_of_a_follower(request):
            answer = parts.fetches.begin(request, context, readable)
        elif about_quorum(request):
            answer = quorum.ask(request)
        else:
            return parts.replica_fetches.begin(request)  # It names no other leader.
        parts.leaders.complete_when_done(answer, context, FETCH_ENDPOINTS_VERSION)
        return answer

    return begin


def _at_controller(
    member: ClusterNode, here: Callable[[Request, int], Answer]
) -> Handler[Request, Message]:
    """Return a handler that forwards a request to the active controller.

    A request that another node has forwarded is decided here, and not forwarded again.
    """

    def begin(request: Request, at: RequestContext) -> Answer:
        if at.client_id == PEER_CLIENT_ID:
            return here(request, at.version)
        return member.submit(request, at.version, here)

    return begin


def _peer_listeners(config: BrokerConfig, *, is_alone: bool) -> frozenset[str]:
    """Return the names of the listeners that other nodes use."""
    if is_alone:
        return frozenset()
    return frozenset({peer_listener(config).name, controller_listener(config).name})


def _is_of_peers(at: RequestContext, peer_listeners: frozenset[str]) -> bool:
    """Return whether other nodes use the same listener as the sender."""
    return at.listener is None or at.listener.listener in peer_listeners


def api_versions(error_code: int = 0, *, to_peers: bool = False) -> ApiVersionsResponse:
    """Return the APIs and versions of this broker, those between nodes only `to_peers`.

    All brokers of this release have transactions v2, so the level is a constant. The lower level is
    no choice of a cluster: clients that begin with it stay with it.
    """
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
            if to_peers or not api.is_of_peers
        ],
        supported_features=[
            SupportedFeatureKey(
                name=TRANSACTION_FEATURE, min_version=1, max_version=TRANSACTIONS_V2
            )
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(
                name=TRANSACTION_FEATURE,
                max_version_level=TRANSACTIONS_V2,
                min_version_level=TRANSACTIONS_V2,
            )
        ],
    )
