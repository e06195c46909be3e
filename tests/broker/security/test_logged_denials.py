"""Denials in the log: none where another right allows the request, one where none does."""

from __future__ import annotations

from copy import deepcopy

import pytest

from streamlog.broker.security.acl_authorizer import GO_ON, Access, Acls, Authorizer
from streamlog.broker.security.rules import RULES
from streamlog.protocol.acls import Operation
from streamlog.protocol.codec import Message
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataRequestTopic
from streamlog.protocol.messages.topics_and_configs import CreatableTopic, CreateTopicsRequest
from tests.broker.security.test_acl_authorizer import acl

PRODUCER = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1)])
LOOK_UP = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)


def denials(request: Message, *operations: Operation) -> tuple[bool, list[str]]:
    """Return whether a request is allowed with these operations on the topic, and the denials."""
    found: list[str] = []

    def log(_who: tuple[str, str], operation: str, resource: str, *, allowed: bool) -> None:
        if not allowed:
            found.append(f"{operation} {resource}")

    rules = Authorizer(
        Acls([acl(operation=each) for each in operations]),
        super_users=frozenset(),
        allow_if_none_found=False,
    )
    access = Access(
        authorizer=rules,
        principal="User:alice",
        host="10.0.0.1",
        version=4,
        exists=lambda _name: False,
        name_of=lambda _id: None,
        topics=list,
        log=log,
    )
    # A rule takes out of the request what is refused.
    own = deepcopy(request)
    return RULES[type(own)](own, access) == GO_ON, found


@pytest.mark.parametrize(
    ("request_of", "operations"),
    [
        (PRODUCER, [Operation.WRITE]),
        (CREATE, [Operation.CREATE]),
        (LOOK_UP, [Operation.DESCRIBE, Operation.CREATE]),
    ],
    ids=["a producer", "a topic", "a topic that is missing"],
)
def test_a_right_that_is_enough_denies_nothing(
    request_of: Message, operations: list[Operation]
) -> None:
    _, denied = denials(request_of, *operations)
    # Lists are filtered by these; the log has them at DEBUG alone.
    assert [each for each in denied if not each.startswith("DESCRIBE")] == []


@pytest.mark.parametrize(
    ("request_of", "operations", "told"),
    [
        (PRODUCER, [], "IDEMPOTENT_WRITE CLUSTER kafka-cluster"),
        (CREATE, [], "CREATE TOPIC t"),
        (LOOK_UP, [Operation.DESCRIBE], "CREATE TOPIC t"),
    ],
)
def test_a_request_that_no_right_allows_is_logged_once(
    request_of: Message, operations: list[Operation], told: str
) -> None:
    allowed, denied = denials(request_of, *operations)
    assert not allowed
    assert [each for each in denied if not each.startswith("DESCRIBE")] == [told]
