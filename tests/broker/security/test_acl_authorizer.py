"""The ACL authorizer: patterns, implied operations, denials, and a slow reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.security.acl_authorizer import (
    AclRule,
    AclRuleFilter,
    Acls,
    Authorizer,
    super_users_of,
)
from streamlog.broker.security.principals import IN_PROCESS
from streamlog.errors import ConfigError
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType

ALICE = ("User:alice", "10.0.0.1")
TOPIC = ResourceType.TOPIC


def acl(
    name: str = "t",
    operation: Operation = Operation.READ,
    *,
    prefixed: bool = False,
    deny: bool = False,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> AclRule:
    return AclRule(
        resource_type=kind,
        name=name,
        pattern=Pattern.PREFIXED if prefixed else Pattern.LITERAL,
        principal=principal,
        host=host,
        operation=operation,
        permission=Permission.DENY if deny else Permission.ALLOW,
    )


def authorizer(*acls: AclRule, allow_if_none_found: bool = False, admin: str = "") -> Authorizer:
    return Authorizer(
        Acls(acls), super_users=super_users_of(admin), allow_if_none_found=allow_if_none_found
    )


def may(
    decides: Authorizer, name: str = "t", operation: Operation = Operation.READ, who: object = ALICE
) -> bool:
    return decides.allows(who, operation, TOPIC, name)  # type: ignore[arg-type]  # a pair


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (acl(), True),
        (acl("u"), False),
        (acl("*"), True),
        (acl("t", prefixed=True), True),
        (acl("to", prefixed=True), False),
        (acl(principal="User:*"), True),
        (acl(principal="User:bob"), False),
        (acl(host="10.0.0.1"), True),
        (acl(host="10.0.0.2"), False),
        (acl(operation=Operation.ALL), True),
        (acl(operation=Operation.WRITE), False),
        (acl(kind=ResourceType.GROUP), False),
    ],
)
def test_an_acl_allows_what_it_matches(rule: AclRule, allowed: bool) -> None:
    assert may(authorizer(rule)) is allowed
    is_for_many = rule.name == "*" or rule.pattern is Pattern.PREFIXED
    if rule.name != "to":
        assert may(authorizer(rule), "toy") is (allowed and is_for_many)


def test_without_a_matching_acl_the_default_applies() -> None:
    assert not may(authorizer())
    assert may(authorizer(allow_if_none_found=True))
    assert not may(authorizer(acl(principal="User:bob"), allow_if_none_found=True))


@pytest.mark.parametrize(
    "forbidding",
    [
        acl(deny=True),
        acl("*", deny=True),
        acl("t", prefixed=True, deny=True),
        acl(operation=Operation.ALL, deny=True),
        acl(principal="User:*", deny=True),
    ],
)
def test_a_denial_overrides_permissions(forbidding: AclRule) -> None:
    assert not may(authorizer(acl(operation=Operation.ALL), acl("*"), forbidding))


@pytest.mark.parametrize(
    "operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
)
def test_an_allowed_operation_implies_describe(operation: Operation) -> None:
    assert may(authorizer(acl(operation=operation)), operation=Operation.DESCRIBE)
    # A denied operation does not deny DESCRIBE.
    both = authorizer(acl(operation=operation, deny=True), acl(operation=Operation.DESCRIBE))
    assert may(both, operation=Operation.DESCRIBE)
    assert not may(authorizer(acl(operation=Operation.CREATE)), operation=Operation.DESCRIBE)
    configs = authorizer(acl(operation=Operation.ALTER_CONFIGS))
    assert may(configs, operation=Operation.DESCRIBE_CONFIGS)
    assert not may(configs, operation=Operation.DESCRIBE)


def test_super_users_pass_every_denial() -> None:
    decides = authorizer(acl("*", Operation.ALL, principal="User:*", deny=True), admin="User:root")
    assert may(decides, who=("User:root", "anywhere"))
    assert may(decides, who=(IN_PROCESS, "in-process"))
    assert not may(decides)
    with pytest.raises(ConfigError, match="'root' is not User:NAME"):
        super_users_of("User:a; root")


def test_replaced_acls_take_effect_at_once() -> None:
    decides = authorizer(acl())
    assert may(decides)
    decides.replace(Acls())
    assert not may(decides)


@pytest.mark.parametrize(
    ("rules", "some"),
    [
        ((), False),
        ((acl(operation=Operation.WRITE),), True),
        ((acl("x", Operation.WRITE, prefixed=True),), True),
        ((acl(operation=Operation.READ),), False),
        ((acl(operation=Operation.WRITE, principal="User:bob"),), False),
        ((acl(operation=Operation.WRITE), acl(operation=Operation.WRITE, deny=True)), False),
        ((acl("*", Operation.WRITE), acl("*", Operation.ALL, deny=True)), False),
        ((acl("*", Operation.WRITE), acl("t", Operation.WRITE, prefixed=True, deny=True)), True),
        ((acl("to", Operation.WRITE), acl("t", Operation.WRITE, prefixed=True, deny=True)), False),
    ],
)
def test_allows_some_finds_any_allowed_resource(rules: tuple[AclRule, ...], some: bool) -> None:
    assert authorizer(*rules).allows_some(ALICE, Operation.WRITE, TOPIC) is some


def test_allowed_operations_are_encoded_as_bits() -> None:
    decides = authorizer(acl(operation=Operation.WRITE))
    assert decides.operations(ALICE, TOPIC, "t") == 1 << 4 | 1 << 8
    assert decides.operations(ALICE, TOPIC, "u") == 0
    assert decides.operations((IN_PROCESS, ""), ResourceType.GROUP, "g") == 1 << 3 | 1 << 6 | 1 << 8


NAMES = st.text("ab*", min_size=1, max_size=3)
RULES = st.builds(
    acl,
    NAMES,
    st.sampled_from([Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER]),
    prefixed=st.booleans(),
    deny=st.booleans(),
    principal=st.sampled_from(["User:alice", "User:*", "User:bob"]),
    host=st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
)


@given(st.lists(RULES, max_size=6), NAMES, st.booleans())
def test_the_index_agrees_with_a_scan_of_all_acls(
    rules: list[AclRule], name: str, free: bool
) -> None:
    decides = authorizer(*rules, allow_if_none_found=free)
    about = [
        each
        for each in rules
        if (each.pattern is Pattern.PREFIXED and name.startswith(each.name))
        or (each.pattern is Pattern.LITERAL and each.name in (name, "*"))
    ]
    mine = [
        each
        for each in about
        if each.principal in ("User:alice", "User:*") and each.host in ("*", "10.0.0.1")
    ]
    implying = {Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER}
    denied = any(
        each.permission is Permission.DENY and each.operation in (Operation.ALL, Operation.DESCRIBE)
        for each in mine
    )
    allowed = any(
        each.permission is Permission.ALLOW and each.operation in implying for each in mine
    )
    expected = free if not about else allowed and not denied
    assert may(decides, name, Operation.DESCRIBE) is expected


def test_filters_select_matching_acls() -> None:
    rules = [acl("t"), acl("*"), acl("to", prefixed=True), acl("u", deny=True, host="h")]

    def names(**wanted: object) -> list[str]:
        anything = {
            "resource_type": ResourceType.ANY,
            "name": None,
            "pattern": Pattern.ANY,
            "principal": None,
            "host": None,
            "operation": Operation.ANY,
            "permission": Permission.ANY,
        }
        meant = AclRuleFilter(**{**anything, **wanted})  # type: ignore[arg-type]  # of all kinds
        return [each.name for each in Acls(rules).matching(meant)]

    assert names() == ["*", "t", "to", "u"]
    assert names(name="toy", pattern=Pattern.MATCH) == ["*", "to"]
    assert names(name="t", pattern=Pattern.MATCH) == ["*", "t"]
    assert names(pattern=Pattern.PREFIXED) == ["to"]
    assert names(name="to", pattern=Pattern.ANY) == ["to"]
    assert names(name="to", pattern=Pattern.LITERAL) == []
    assert names(permission=Permission.DENY) == ["u"]
    assert names(host="h") == ["u"]
    assert names(principal="User:bob") == []
    assert names(operation=Operation.WRITE) == []
    assert names(resource_type=ResourceType.GROUP) == []
