"""The table of all APIs that this release serves and uses, with their versions.

A broker advertises the table in ApiVersions and dispatches by it; a client negotiates versions with
it. APIs and versions that are not in the table are neither served nor used. Kafka assigns the keys,
except those of our own APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.errors import UsageError
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from streamlog.protocol.messages.lag_messages import (
    DescribeGroupLagRequest,
    DescribeGroupLagResponse,
    FindNextRecordsRequest,
    FindNextRecordsResponse,
)
from streamlog.protocol.messages.mirror_messages import (
    AlterLinkAclsRequest,
    AlterLinkAclsResponse,
    AlterLinkRequest,
    AlterLinkResponse,
    AlterMirrorPartitionRequest,
    AlterMirrorPartitionResponse,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    AlterSealsResponse,
    CreateLinkRequest,
    CreateLinkResponse,
    CreateMirrorsRequest,
    CreateMirrorsResponse,
    DeleteLinkRequest,
    DeleteLinkResponse,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    FailBackRequest,
    FailBackResponse,
    MarkAppsRequest,
    MarkAppsResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    DropStagedResponse,
    PublishRequest,
    PublishResponse,
    StageRequest,
    StageResponse,
)
from streamlog.protocol.messages.quorum_messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from streamlog.protocol.messages.registry_messages import (
    WriteToRegistryRequest,
    WriteToRegistryResponse,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.protocol.schema import Message

API_VERSIONS_KEY: Final = 18
OWN_KEY: Final = 20_000
"""The first key of our own APIs, far from those of Kafka and its vendors. Clients ignore keys in
ApiVersions that they don't know."""


class Api(msgspec.Struct, frozen=True):
    """A request, its response, and the versions of both that are advertised."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    min_version: int
    max_version: int
    client_version_max: int
    """The newest version that clients use; newer ones are for requests between brokers."""
    flexible_from: int | None
    is_of_peers: bool
    """Whether only nodes of the cluster send this request, to each other."""

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def is_served(self, version: int) -> bool:
        """Whether requests of this version are served."""
        return version in self.request.__versions__


def _api(
    key: int,
    request: type[Message],
    response: type[Message],
    *,
    advertised_from: int | None = None,
    clients_up_to: int | None = None,
    is_of_peers: bool = False,
) -> Api:
    # Requests of versions below `served.first` are refused, even if `advertised_from` lists them.
    served = request.__versions__
    return Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=served.first if advertised_from is None else advertised_from,
        max_version=served.last,
        client_version_max=served.last if clients_up_to is None else clients_up_to,
        flexible_from=request.__flexible_from__,
        is_of_peers=is_of_peers,
    )


_SERVED: Final = (
    # Old versions of librdkafka conclude from a range that starts at 3 that the broker does not
    # support snappy, gzip and lz4, and silently send uncompressed batches. So the range starts at
    # 0, as in Kafka itself (KAFKA-18659), although requests of versions 0 to 2 are not served.
    _api(0, ProduceRequest, ProduceResponse, advertised_from=0),
    _api(1, FetchRequest, FetchResponse),
    _api(2, ListOffsetsRequest, ListOffsetsResponse),
    _api(3, MetadataRequest, MetadataResponse),
    # Version 10 has topic ids. Our clients use names, because a group may have offsets in topics
    # whose id the client does not know.
    _api(8, OffsetCommitRequest, OffsetCommitResponse, clients_up_to=9),
    _api(9, OffsetFetchRequest, OffsetFetchResponse, clients_up_to=9),
    _api(10, FindCoordinatorRequest, FindCoordinatorResponse),
    _api(11, JoinGroupRequest, JoinGroupResponse),
    _api(12, HeartbeatRequest, HeartbeatResponse),
    _api(13, LeaveGroupRequest, LeaveGroupResponse),
    _api(14, SyncGroupRequest, SyncGroupResponse),
    _api(15, DescribeGroupsRequest, DescribeGroupsResponse),
    _api(16, ListGroupsRequest, ListGroupsResponse),
    _api(17, SaslHandshakeRequest, SaslHandshakeResponse),
    _api(API_VERSIONS_KEY, ApiVersionsRequest, ApiVersionsResponse),
    _api(19, CreateTopicsRequest, CreateTopicsResponse),
    _api(20, DeleteTopicsRequest, DeleteTopicsResponse),
    _api(21, DeleteRecordsRequest, DeleteRecordsResponse),
    _api(22, InitProducerIdRequest, InitProducerIdResponse),
    _api(23, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    # From version 4 on for brokers, which verify partitions or add them (KIP-890).
    _api(24, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, clients_up_to=3),
    _api(25, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    _api(26, EndTxnRequest, EndTxnResponse),
    _api(27, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    _api(28, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    _api(29, DescribeAclsRequest, DescribeAclsResponse),
    _api(30, CreateAclsRequest, CreateAclsResponse),
    _api(31, DeleteAclsRequest, DeleteAclsResponse),
    _api(32, DescribeConfigsRequest, DescribeConfigsResponse),
    _api(33, AlterConfigsRequest, AlterConfigsResponse),
    _api(34, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    _api(35, DescribeLogDirsRequest, DescribeLogDirsResponse),
    _api(36, SaslAuthenticateRequest, SaslAuthenticateResponse),
    _api(37, CreatePartitionsRequest, CreatePartitionsResponse),
    _api(42, DeleteGroupsRequest, DeleteGroupsResponse),
    _api(43, ElectLeadersRequest, ElectLeadersResponse),
    _api(44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    _api(45, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    _api(46, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    _api(47, OffsetDeleteRequest, OffsetDeleteResponse),
    _api(48, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    _api(49, AlterClientQuotasRequest, AlterClientQuotasResponse),
    _api(50, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
    _api(51, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    _api(52, VoteRequest, VoteResponse, is_of_peers=True),
    _api(53, BeginQuorumEpochRequest, BeginQuorumEpochResponse, is_of_peers=True),
    _api(54, EndQuorumEpochRequest, EndQuorumEpochResponse, is_of_peers=True),
    _api(55, DescribeQuorumRequest, DescribeQuorumResponse),
    _api(56, AlterPartitionRequest, AlterPartitionResponse, is_of_peers=True),
    _api(59, FetchSnapshotRequest, FetchSnapshotResponse, is_of_peers=True),
    _api(60, DescribeClusterRequest, DescribeClusterResponse),
    _api(61, DescribeProducersRequest, DescribeProducersResponse),
    _api(62, BrokerRegistrationRequest, BrokerRegistrationResponse, is_of_peers=True),
    _api(63, BrokerHeartbeatRequest, BrokerHeartbeatResponse, is_of_peers=True),
    _api(64, UnregisterBrokerRequest, UnregisterBrokerResponse),
    _api(65, DescribeTransactionsRequest, DescribeTransactionsResponse),
    _api(66, ListTransactionsRequest, ListTransactionsResponse),
    _api(67, AllocateProducerIdsRequest, AllocateProducerIdsResponse, is_of_peers=True),
    _api(68, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    _api(69, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    _api(71, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
    _api(72, PushTelemetryRequest, PushTelemetryResponse),
    _api(74, ListConfigResourcesRequest, ListConfigResourcesResponse),
    _api(75, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    _api(OWN_KEY, PublishRequest, PublishResponse),
    _api(OWN_KEY + 1, StageRequest, StageResponse),
    _api(OWN_KEY + 2, DropStagedRequest, DropStagedResponse),
    _api(OWN_KEY + 3, DescribeGroupLagRequest, DescribeGroupLagResponse),
    _api(OWN_KEY + 4, FindNextRecordsRequest, FindNextRecordsResponse, is_of_peers=True),
    _api(OWN_KEY + 5, WriteToRegistryRequest, WriteToRegistryResponse, is_of_peers=True),
    _api(OWN_KEY + 6, CreateLinkRequest, CreateLinkResponse),
    _api(OWN_KEY + 7, AlterLinkRequest, AlterLinkResponse),
    _api(OWN_KEY + 8, DeleteLinkRequest, DeleteLinkResponse),
    _api(OWN_KEY + 9, CreateMirrorsRequest, CreateMirrorsResponse, is_of_peers=True),
    _api(OWN_KEY + 10, AlterMirrorsRequest, AlterMirrorsResponse),
    _api(OWN_KEY + 11, AlterMirrorPartitionRequest, AlterMirrorPartitionResponse, is_of_peers=True),
    _api(OWN_KEY + 12, DescribeMirrorsRequest, DescribeMirrorsResponse),
    _api(OWN_KEY + 13, FailBackRequest, FailBackResponse),
    _api(OWN_KEY + 14, AlterSealsRequest, AlterSealsResponse),
    _api(OWN_KEY + 20, AlterLinkAclsRequest, AlterLinkAclsResponse, is_of_peers=True),
    _api(OWN_KEY + 21, MarkAppsRequest, MarkAppsResponse, is_of_peers=True),
)

TRANSACTION_FEATURE: Final = "transaction.version"
"""The name, in ApiVersions, of the level of transactions in a cluster."""
TRANSACTIONS_V2: Final = 2
"""The level at which leaders add partitions to transactions, and the end of a transaction raises
the producer's epoch (KIP-890, part 2)."""
TRANSACTIONS_V2_SINCE: Final[Mapping[type[Message], int]] = {
    ProduceRequest: 12,
    EndTxnRequest: 5,
    TxnOffsetCommitRequest: 5,
}
"""The first version of a request that is one of transactions v2. Older versions have the older
meaning, so clients of both kinds work on one cluster."""

APIS: Final[dict[int, Api]] = {api.key: api for api in _SERVED}
_BY_REQUEST: Final = {api.request: api for api in _SERVED}


def api_of(message_type: type[Message]) -> Api:
    """Return the API of a request class.

    Raises:
        UsageError: the class is not the request of any API.
    """
    try:
        return _BY_REQUEST[message_type]
    except KeyError:
        raise UsageError(f"{message_type.__name__} is not a request: see APIS") from None
