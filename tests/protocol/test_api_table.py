"""The APIs that clients see, with their versions."""

from __future__ import annotations

from typing import ClassVar, get_type_hints

import pytest

from streamlog.errors import UsageError
from streamlog.protocol.api_table import APIS, Api, api_of
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionData,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.schema import Message

# Clients choose versions by these ranges: raising a minimum locks old ones out.
ADVERTISED = {
    "Produce": (0, 0, 12, 9),
    "Fetch": (1, 4, 16, 12),
    "ListOffsets": (2, 1, 10, 6),
    "Metadata": (3, 0, 13, 9),
    "OffsetCommit": (8, 2, 10, 8),
    "OffsetFetch": (9, 1, 10, 6),
    "FindCoordinator": (10, 0, 5, 3),
    "JoinGroup": (11, 0, 9, 6),
    "Heartbeat": (12, 0, 4, 4),
    "LeaveGroup": (13, 0, 5, 4),
    "SyncGroup": (14, 0, 5, 4),
    "DescribeGroups": (15, 0, 6, 5),
    "ListGroups": (16, 0, 5, 3),
    "SaslHandshake": (17, 0, 1, None),
    "ApiVersions": (18, 0, 4, 3),
    "CreateTopics": (19, 2, 7, 5),
    "DeleteTopics": (20, 1, 6, 4),
    "DeleteRecords": (21, 0, 2, 2),
    "InitProducerId": (22, 0, 5, 2),
    "OffsetForLeaderEpoch": (23, 2, 4, 4),
    "AddPartitionsToTxn": (24, 0, 5, 3),
    "AddOffsetsToTxn": (25, 0, 4, 3),
    "EndTxn": (26, 0, 5, 3),
    "WriteTxnMarkers": (27, 1, 2, 1),
    "TxnOffsetCommit": (28, 0, 5, 3),
    "DescribeAcls": (29, 1, 3, 2),
    "CreateAcls": (30, 1, 3, 2),
    "DeleteAcls": (31, 1, 3, 2),
    "DescribeConfigs": (32, 1, 4, 4),
    "AlterConfigs": (33, 0, 2, 2),
    "AlterReplicaLogDirs": (34, 1, 2, 2),
    "DescribeLogDirs": (35, 1, 4, 2),
    "CreatePartitions": (37, 0, 3, 2),
    "DeleteGroups": (42, 0, 2, 2),
    "SaslAuthenticate": (36, 0, 2, 2),
    "DescribeUserScramCredentials": (50, 0, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0, 0),
    "IncrementalAlterConfigs": (44, 0, 1, 1),
    "OffsetDelete": (47, 0, 0, None),
    "DescribeClientQuotas": (48, 0, 1, 1),
    "AlterClientQuotas": (49, 0, 1, 1),
    "FetchSnapshot": (59, 0, 0, 0),
    "DescribeCluster": (60, 0, 2, 0),
    "DescribeProducers": (61, 0, 0, 0),
    "DescribeTransactions": (65, 0, 0, 0),
    "ListTransactions": (66, 0, 1, 0),
    "ConsumerGroupHeartbeat": (68, 0, 1, 0),
    "ConsumerGroupDescribe": (69, 0, 1, 0),
    "ElectLeaders": (43, 0, 2, 2),
    "AlterPartitionReassignments": (45, 0, 0, 0),
    "ListPartitionReassignments": (46, 0, 0, 0),
    "Vote": (52, 0, 1, 0),
    "BeginQuorumEpoch": (53, 0, 1, 1),
    "EndQuorumEpoch": (54, 0, 1, 1),
    "DescribeQuorum": (55, 0, 2, 0),
    "AlterPartition": (56, 0, 3, 0),
    "BrokerRegistration": (62, 0, 4, 0),
    "BrokerHeartbeat": (63, 0, 1, 0),
    "UnregisterBroker": (64, 0, 0, 0),
    "AllocateProducerIds": (67, 0, 0, 0),
    "GetTelemetrySubscriptions": (71, 0, 0, 0),
    "PushTelemetry": (72, 0, 0, 0),
    "ListConfigResources": (74, 0, 1, 0),
    "DescribeTopicPartitions": (75, 0, 0, 0),
    "Publish": (20_000, 0, 0, 0),
    "Stage": (20_001, 0, 0, 0),
    "DropStaged": (20_002, 0, 0, 0),
    "DescribeGroupLag": (20_003, 0, 0, 0),
    "FindNextRecords": (20_004, 0, 0, 0),
    "WriteToRegistry": (20_005, 0, 0, 0),
    "CreateLink": (20_006, 0, 0, 0),
    "AlterLink": (20_007, 0, 0, 0),
    "DeleteLink": (20_008, 0, 0, 0),
    "CreateMirrors": (20_009, 0, 0, 0),
    "AlterMirrors": (20_010, 0, 0, 0),
    "AlterMirrorPartition": (20_011, 0, 0, 0),
    "DescribeMirrors": (20_012, 0, 0, 0),
    "FailBack": (20_013, 0, 0, 0),
    "AlterSeals": (20_014, 0, 0, 0),
    "AlterLinkAcls": (20_020, 0, 0, 0),
    "MarkApps": (20_021, 0, 0, 0),
}


def test_the_advertised_apis_and_versions_are_stable() -> None:
    assert {
        api.name: (api.key, api.min_version, api.max_version, api.flexible_from)
        for api in APIS.values()
    } == ADVERTISED


def test_requests_and_responses_have_equal_versions() -> None:
    for key, api in APIS.items():
        assert api.key == key
        assert api.request.__versions__ == api.response.__versions__
        assert api.request.__flexible_from__ == api.response.__flexible_from__
        assert api.response.__name__ == f"{api.name}Response"
        assert api_of(api.request) is api


def test_produce_is_advertised_from_0_and_served_from_3() -> None:
    produce = api_of(ProduceRequest)
    assert [version for version in range(-1, 14) if produce.is_served(version)] == [*range(3, 13)]
    assert not produce.is_flexible(8)
    assert produce.is_flexible(9)


@pytest.mark.parametrize("message_type", [ProduceResponse, PartitionData])
def test_only_requests_have_an_api(message_type: type[Message]) -> None:
    with pytest.raises(UsageError, match="is not a request"):
        api_of(message_type)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_request_declares_the_response_of_its_api(api: Api) -> None:
    # With acks=0, a Produce has no response.
    response = api.response | None if api.request is ProduceRequest else api.response
    assert get_type_hints(api.request)["__response__"] == ClassVar[response]
