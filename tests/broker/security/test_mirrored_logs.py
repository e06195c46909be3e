"""The mirrors of other clusters' internal topics: for brokers, whatever rights users have."""

from __future__ import annotations

import pytest

from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.security.acl_authorizer import Access, AclRule, Acls, Authorizer
from streamlog.protocol.acls import CLUSTER, Operation, ResourceType
from tests.broker.security.test_acl_authorizer import acl

NAME = f"{MIRRORED_LOGS}x.consumer_offsets"
ON_ALL_TOPICS = acl("*", Operation.ALL)
ON_THIS = acl(NAME, Operation.READ)
ON_CLUSTER = acl(CLUSTER, Operation.CLUSTER_ACTION, kind=ResourceType.CLUSTER)


def may(rule: AclRule, name: str) -> set[Operation]:
    """Return what one ACL allows to do to a topic."""
    access = Access(
        authorizer=Authorizer(Acls([rule]), super_users=frozenset(), allow_if_none_found=False),
        principal="User:alice",
        host="10.0.0.1",
        version=0,
        exists=lambda _: True,
        name_of=lambda _: None,
        topics=list,
        log=lambda *_, allowed: None,
    )
    asked = (Operation.READ, Operation.DESCRIBE, Operation.WRITE, Operation.DELETE)
    return {each for each in asked if access.topic(each, name)}


@pytest.mark.parametrize("rule", [ON_ALL_TOPICS, ON_THIS])
def test_a_right_on_topics_is_none_on_mirrored_logs(rule: AclRule) -> None:
    assert may(rule, NAME) == set()


def test_those_who_may_act_for_a_broker_read_them() -> None:
    assert Operation.READ in may(ON_CLUSTER, NAME)
    assert may(ON_CLUSTER, "t") == set()
    assert Operation.READ in may(ON_ALL_TOPICS, "t")
