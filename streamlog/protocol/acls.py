"""Kafka's numbers in ACLs: resource types, patterns, operations, permissions.

Brokers and clients share them (KIP-140, KIP-290 for patterns, KIP-430 for the operations of each
resource type). Not done here: the decision by ACLs (`broker/security/acl_authorizer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

ANY_NAME = "*"
ANY_HOST = "*"
# There is one cluster, so its resource has a fixed name, as in Kafka.
CLUSTER = "kafka-cluster"
"""The resource name of the cluster."""


class ResourceType(IntEnum):
    """The types of protected resources, with Kafka's numbers."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    """How an ACL's name matches resources (KIP-290); ANY and MATCH only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """The operations on resources, with Kafka's numbers."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether an ACL allows or denies; ANY only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
"""The operations of each resource type (KIP-430)."""
