"""Error responses to every supported request, with codes that the client's version knows."""

from __future__ import annotations

import pytest

from streamlog.protocol import codec
from streamlog.protocol.api_table import APIS, Api
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import code_for, error_response, response_by_item
from streamlog.protocol.messages import classic_groups, sasl_acls_quotas, transaction_messages
from streamlog.protocol.schema import Message
from tests.protocol.refused_requests import BY_ITEM, CODE, RESPONSES


def name(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize(("request_", "response"), RESPONSES, ids=name)
def test_an_error_response_carries_the_error(request_: Message, response: Message) -> None:
    assert error_response(request_, CODE, "why") == response


def test_every_supported_request_is_in_the_table() -> None:
    assert {type(request) for request, _ in RESPONSES} == {api.request for api in APIS.values()}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_an_error_response_can_be_encoded_in_every_version(api: Api) -> None:
    for request, response in RESPONSES:
        for version in range(api.min_version, api.max_version + 1):
            if type(request) is api.request and api.is_served(version):
                codec.encode(response, version)


@pytest.mark.parametrize(("request_", "response"), BY_ITEM, ids=name)
def test_a_response_by_item_carries_the_error_of_each_item(
    request_: Message, response: Message
) -> None:
    assert response_by_item(request_, type(response), lambda *_: CODE) == response


def test_items_have_their_own_codes() -> None:
    topics = [
        transaction_messages.AddPartitionsToTxnTopic(name=each, partitions=[1, 2]) for each in "ab"
    ]
    request = transaction_messages.AddPartitionsToTxnRequest(v3_and_below_topics=topics)
    response = response_by_item(
        request,
        transaction_messages.AddPartitionsToTxnResponse,
        lambda topic, number: number if topic.name == "a" else 0,
    )
    codes = [
        [each.partition_error_code for each in topic.results_by_partition]
        for topic in response.results_by_topic_v3_and_below
    ]
    assert codes == [[1, 2], [0, 0]]


def test_a_user_named_twice_is_answered_once() -> None:
    request = sasl_acls_quotas.AlterUserScramCredentialsRequest(
        deletions=[sasl_acls_quotas.ScramCredentialDeletion(name="a")],
        upsertions=[sasl_acls_quotas.ScramCredentialUpsertion(name=each) for each in "ba"],
    )
    response = error_response(request, CODE)
    assert isinstance(response, sasl_acls_quotas.AlterUserScramCredentialsResponse)
    assert [each.user for each in response.results] == ["a", "b"]


@pytest.mark.parametrize(
    ("request_", "version", "code", "known"),
    [
        (transaction_messages.EndTxnRequest(), 1, "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
        (transaction_messages.EndTxnRequest(), 2, "PRODUCER_FENCED", "PRODUCER_FENCED"),
        (classic_groups.InitProducerIdRequest(), 3, "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
        (classic_groups.InitProducerIdRequest(), 4, "PRODUCER_FENCED", "PRODUCER_FENCED"),
        (classic_groups.OffsetFetchRequest(), 9, "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
        (
            classic_groups.OffsetCommitRequest(),
            9,
            "COORDINATOR_NOT_AVAILABLE",
            "COORDINATOR_NOT_AVAILABLE",
        ),
    ],
)
def test_clients_get_codes_that_they_know(
    request_: Message, version: int, code: str, known: str
) -> None:
    assert code_for(request_, version, ErrorCode[code]) is ErrorCode[known]
