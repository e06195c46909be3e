"""Refusals: for each request to the controller the response that carries nothing but an error.

Needed where a request is refused as a whole: there is no controller that can be reached, or the
metadata log could not take what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamlog.broker.security.rules import not_elected
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.admin import (
    AlterConfigsResourceResponse,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.messages.brokers import (
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
from streamlog.protocol.messages.partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from streamlog.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
)
from streamlog.protocol.messages.replace_configs import AlterConfigsRequest, AlterConfigsResponse
from streamlog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from streamlog.protocol.messages.security import (
    AclCreationResult,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from streamlog.protocol.schema import Message

Refuse = Callable[[Any, int, str], Message]


def refuse(request: Message, code: int, message: str) -> Message:
    """The response to `request` that says `code` to everything that was asked."""
    return REFUSALS[type(request)](request, code, message)


def _topics(request: CreateTopicsRequest, code: int, message: str) -> Message:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=each.name, error_code=code, error_message=message, configs=None
            )
            for each in request.topics
        ]
    )


def _deletions(request: DeleteTopicsRequest, code: int, message: str) -> Message:
    asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=each.name, topic_id=each.topic_id, error_code=code, error_message=message
            )
            for each in asked
        ]
    )


def _partitions(request: CreatePartitionsRequest, code: int, message: str) -> Message:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=each.name, error_code=code, error_message=message)
            for each in request.topics
        ]
    )


def _resources(
    request: IncrementalAlterConfigsRequest | AlterConfigsRequest, code: int, message: str
) -> list[AlterConfigsResourceResponse]:
    return [
        AlterConfigsResourceResponse(
            error_code=code,
            error_message=message,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each in request.resources
    ]


def _quotas(request: AlterClientQuotasRequest, code: int, message: str) -> Message:
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuota(error_code=code, error_message=message, entity=each.entity)
            for each in request.entries
        ]
    )


def _users(request: AlterUserScramCredentialsRequest, code: int, message: str) -> Message:
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name in dict.fromkeys(names)
        ]
    )


def _acls(request: CreateAclsRequest, code: int, message: str) -> Message:
    refused = [AclCreationResult(error_code=code, error_message=message) for _ in request.creations]
    return CreateAclsResponse(results=refused)


def _acl_deletions(request: DeleteAclsRequest, code: int, message: str) -> Message:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.filters
        ]
    )


REFUSALS: Mapping[type[Message], Refuse] = {
    DescribeQuorumRequest: lambda _, code, message: DescribeQuorumResponse(
        error_code=code, error_message=message
    ),
    CreateTopicsRequest: _topics,
    DeleteTopicsRequest: _deletions,
    CreatePartitionsRequest: _partitions,
    IncrementalAlterConfigsRequest: lambda request, code, message: IncrementalAlterConfigsResponse(
        responses=_resources(request, code, message)
    ),
    AlterConfigsRequest: lambda request, code, message: AlterConfigsResponse(
        responses=_resources(request, code, message)
    ),
    AlterClientQuotasRequest: _quotas,
    AlterUserScramCredentialsRequest: _users,
    CreateAclsRequest: _acls,
    DeleteAclsRequest: _acl_deletions,
    ElectLeadersRequest: lambda request, code, message: not_elected(
        request, ErrorCode(code), message
    ),
    AlterPartitionReassignmentsRequest: lambda _, code, message: (
        AlterPartitionReassignmentsResponse(error_code=code, error_message=message)
    ),
    ListPartitionReassignmentsRequest: lambda _, code, message: ListPartitionReassignmentsResponse(
        error_code=code, error_message=message
    ),
    BrokerRegistrationRequest: lambda _, code, __: BrokerRegistrationResponse(error_code=code),
    BrokerHeartbeatRequest: lambda _, code, __: BrokerHeartbeatResponse(error_code=code),
    UnregisterBrokerRequest: lambda _, code, message: UnregisterBrokerResponse(
        error_code=code, error_message=message
    ),
    AlterPartitionRequest: lambda _, code, __: AlterPartitionResponse(error_code=code),
    AllocateProducerIdsRequest: lambda _, code, __: AllocateProducerIdsResponse(error_code=code),
}
"""Everything that the controller decides on."""
