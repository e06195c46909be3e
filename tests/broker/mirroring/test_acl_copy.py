"""Copies of ACLs: what they allow, by Kafka's rules written down a second time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from itertools import product
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.mirroring import acl_copy
from streamlog.broker.mirroring.acl_copy import AclChanges, NamesHere, plan_acls, rules_in
from streamlog.broker.mirroring.group_copy import GroupRules
from streamlog.broker.security.acl_authorizer import AclRule
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.messages.sasl_acls_quotas import AclDescription, DescribeAclsResource

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
MIRRORS = {"eu.orders": "orders", "eu.other": "other", "ord": "ord"}
LOCAL = ["orders", "ordinary", "eu.own", "other"]
RULES = GroupRules(groups=(re.compile("or.*"), re.compile(r"\*")), excluded=(re.compile("ord"),))
GROUPS = ["orders", "ord", "oracle", "*"]
USERS, HOSTS = ["User:a", "User:b"], ["h1", "h2"]
OPERATIONS = [Operation.READ, Operation.WRITE]

rules_of_a_cluster = st.sets(
    st.builds(
        AclRule,
        resource_type=st.sampled_from([TOPIC, GROUP]),
        name=st.sampled_from(["orders", "ord", "o", "*", "other", "eu."]),
        pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
        principal=st.sampled_from([*USERS, "User:*"]),
        host=st.sampled_from([*HOSTS, "*"]),
        operation=st.sampled_from([*OPERATIONS, Operation.ALL]),
        permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
    ),
    max_size=8,
)


def acl(name: str = "orders", **more: object) -> AclRule:
    given: dict[str, object] = {
        "resource_type": TOPIC,
        "pattern": Pattern.LITERAL,
        "principal": "User:a",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return AclRule(name=name, **{**given, **more})  # type: ignore[arg-type]


def may(acls: Iterable[AclRule], kind: ResourceType, name: str) -> set[tuple[object, ...]]:
    """Return who may do what from where: a denial wins, and nothing is allowed without an ACL."""
    allowed = set()
    about = [
        each
        for each in acls
        if each.resource_type is kind
        and (
            (name.startswith(each.name))
            if each.pattern is Pattern.PREFIXED
            else each.name in (name, "*")
        )
    ]
    for user, host, operation in product(USERS, HOSTS, OPERATIONS):
        found = {
            each.permission
            for each in about
            if each.principal in (user, "User:*")
            and each.host in (host, "*")
            and each.operation in (operation, Operation.ALL)
        }
        if found == {Permission.ALLOW}:
            allowed.add((user, host, operation))
    return allowed


def plan(
    source: Collection[AclRule],
    copies: Collection[AclRule] = (),
    mirrors: dict[str, str] = MIRRORS,
    others: Collection[str] = LOCAL,
) -> AclChanges:
    names = NamesHere(mirrors=mirrors, others=others)
    return plan_acls(source, copies, names, groups=GROUPS, rules=RULES)


def settled(
    copies: set[AclRule],
    found: AclChanges,
    look: Callable[[set[AclRule]], None] = lambda _: None,
) -> set[AclRule]:
    copies = {*copies}
    for each in found.changes:
        (copies.add if each.adds else copies.remove)(each.acl)
        look(copies)
    return copies


@given(rules_of_a_cluster, rules_of_a_cluster)
def test_a_user_may_do_to_a_mirror_what_they_may_do_at_the_source_and_no_more(
    first: set[AclRule], then: set[AclRule]
) -> None:
    copies = settled(set(), plan(first))
    before = {name: may(first, TOPIC, topic) for name, topic in MIRRORS.items()}
    after = {name: may(then, TOPIC, topic) for name, topic in MIRRORS.items()}

    def never_more(now: set[AclRule]) -> None:
        for name in MIRRORS:
            assert may(now, TOPIC, name) <= before[name] | after[name]

    copies = settled(copies, plan(then, copies), never_more)
    for name in MIRRORS:
        assert may(copies, TOPIC, name) == after[name]
    for group in ("orders", "oracle"):
        assert may(copies, GROUP, group) == may(then, GROUP, group)
    # An ACL of the source for `o...` says nothing of the topics and groups of this cluster.
    for name in LOCAL:
        assert not may(copies, TOPIC, name), name
    for group in ("*", "ord", "anything"):
        assert not may(copies, GROUP, group), group
    assert not plan(then, copies).changes


@given(rules_of_a_cluster, rules_of_a_cluster)
def test_a_promoted_topic_keeps_the_acls_that_it_has(
    first: set[AclRule], then: set[AclRule]
) -> None:
    copies = settled(set(), plan(first))
    mirrors = {name: topic for name, topic in MIRRORS.items() if name != "eu.orders"}
    after = settled(copies, plan(then, copies, mirrors, [*LOCAL, "eu.orders"]))
    assert may(after, TOPIC, "eu.orders") == may(copies, TOPIC, "eu.orders")
    # Once all are promoted, groups are this cluster's, too.
    assert not plan(then, copies, {}, [*LOCAL, *MIRRORS]).changes


def test_copies_of_a_mirror_that_was_deleted_here_go() -> None:
    copies = settled(set(), plan([acl()]))
    assert {each.name for each in copies} == {"eu.orders"}
    assert not settled(copies, plan([acl()], copies, {"eu.other": "other"}))


def test_a_topic_whose_acls_are_too_many_has_none() -> None:
    source = {acl(), acl(permission=Permission.DENY, principal="User:b"), acl("other")}
    with patch.object(acl_copy, "COPIES_MAX", 1):
        found = plan(source)
        assert found.left_out == ("eu.orders",)
        copies = settled(set(), found)
        assert {each.name for each in copies} == {"eu.other"}
        # A topic that comes later takes the place of none, whatever it is called.
        later = plan([*source, acl("ant")], copies, {**MIRRORS, "ant": "ant"})
        assert not later.changes
        assert later.left_out == ("ant", "eu.orders")


@pytest.mark.parametrize(
    "unknown",
    [
        {"operation": 99},
        {"permission_type": 99},
        {"operation": Operation.IDEMPOTENT_WRITE},
        {"principal": "nonsense"},
    ],
)
def test_what_a_later_kafka_has_is_left_out(unknown: dict[str, object]) -> None:
    known = AclDescription(
        principal="User:a", host="*", operation=Operation.READ, permission_type=Permission.ALLOW
    )
    other = AclDescription(
        principal="User:a", host="*", operation=Operation.READ, permission_type=Permission.ALLOW
    )
    for name, value in unknown.items():
        setattr(other, name, value)
    resource = DescribeAclsResource(
        resource_type=TOPIC, resource_name="orders", pattern_type=3, acls=[other, known]
    )
    assert rules_in([resource]) == {acl()}
