"""AclCopy: which ACLs a link has to add and remove here, by those of its source.

Pure. Rules of this module:

- A copy names one mirror or one group. An ACL of the source for all names, or for a prefix, becomes
  one for each mirror and group that it applies to: here, that prefix may also begin the names of
  topics that have nothing to do with the link, and rights there are not the source's to give.
- Names are decided whole. A denial is never left out while what it restricts is copied.
- Copies of a topic that was promoted stay as they are: it does not belong to the source any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from streamlog.broker.mirroring.group_copy import GroupRules
from streamlog.broker.security.acl_authorizer import AclRule, Acls, is_principal
from streamlog.protocol.acls import (
    ANY_NAME,
    OPERATIONS,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from streamlog.protocol.messages.sasl_acls_quotas import DescribeAclsResource
from streamlog.replace import replace

COPIES_MAX = 10_000
"""The ACLs that a link has here at most; brokers keep all of them in memory."""
COPIED = (ResourceType.TOPIC, ResourceType.GROUP)

_Resource = tuple[ResourceType, str]


class AclChange(msgspec.Struct, frozen=True):
    """An ACL that a link adds, or removes."""

    acl: AclRule
    adds: bool


class AclChanges(msgspec.Struct, frozen=True):
    """What a link has to change."""

    changes: tuple[AclChange, ...] = ()
    """In their order: no step allows what neither the ACLs before nor those after allow."""
    left_out: tuple[str, ...] = ()
    """Topics and groups whose ACLs are beyond `COPIES_MAX`: no ACL of theirs is copied."""


class NamesHere(msgspec.Struct, frozen=True, kw_only=True):
    """The topics here, as one link sees them."""

    mirrors: Mapping[str, str]
    """The source's topic, by the name of its mirror."""
    others: Collection[str] = ()
    """All other topics, such as mirrors that were promoted."""


def plan_acls(
    source: Collection[AclRule],
    copies: Collection[AclRule],
    names: NamesHere,
    *,
    groups: Iterable[str],
    rules: GroupRules,
) -> AclChanges:
    """Return what a link has to change.

    Args:
        source: the ACLs of the source for topics and groups.
        copies: what the link has added here before.
        names: the topics here.
        groups: the groups of the source; one that it does not have yet may be named by an ACL.
        rules: the groups that the link copies.
    """
    if not names.mirrors:
        # Everything was promoted, so groups belong to this cluster, too.
        return AclChanges()
    wanted = _wanted(source, copies, names, {each for each in groups if rules.copies(each)}, rules)
    had = {(each.resource_type, each.name) for each in copies}
    kept: set[AclRule] = set()
    left_out = []
    # Those that have copies come first, so that a new topic does not displace them.
    for resource, acls in sorted(wanted.items(), key=lambda each: (each[0] not in had, each[0])):
        if len(kept) + len(acls) > COPIES_MAX:
            left_out.append(resource[1])
        else:
            kept |= acls
    frozen = {(ResourceType.TOPIC, each) for each in names.others}
    changes = [AclChange(each, adds=True) for each in kept.difference(copies)]
    changes += [
        AclChange(each, adds=False)
        for each in copies
        if each not in kept and (each.resource_type, each.name) not in frozen
    ]
    return AclChanges(tuple(sorted(changes, key=_order)), tuple(left_out))


def _wanted(
    source: Collection[AclRule],
    copies: Collection[AclRule],
    names: NamesHere,
    listed: set[str],
    rules: GroupRules,
) -> dict[_Resource, set[AclRule]]:
    """Return the ACLs of each mirror and each group."""
    acls = Acls(source)
    named = {
        each.name
        for each in source
        if each.resource_type is ResourceType.GROUP and each.pattern is Pattern.LITERAL
    }
    # A group that was deleted at the source keeps its copies as long as the source's ACLs do.
    former = {each.name for each in copies if each.resource_type is ResourceType.GROUP}
    groups = listed | former | {each for each in named if rules.copies(each)}
    there: dict[_Resource, str] = {
        (ResourceType.TOPIC, name): topic for name, topic in names.mirrors.items()
    }
    # A group may have the name *, but an ACL for it would be one for all groups here.
    there |= {(ResourceType.GROUP, each): each for each in groups if each != ANY_NAME}
    return {
        (kind, here): {
            replace(each, name=here, pattern=Pattern.LITERAL) for each in acls.about(kind, name)
        }
        for (kind, here), name in there.items()
    }


def _order(change: AclChange) -> tuple[bool, bool, tuple[str, ...]]:
    restricts = change.adds is (change.acl.permission is Permission.DENY)
    # Restrictions first: a user who loses a right by one ACL and keeps others must not have both
    # in between. For each kind, additions come first.
    return not restricts, not change.adds, tuple(change.acl.kept().values())


def rules_in(resources: Iterable[DescribeAclsResource]) -> set[AclRule]:
    """Return the ACLs in a source's answer, without those that mean nothing to this broker.

    A later Kafka has types and operations that no broker here asks for.
    """
    found = set()
    for resource in resources:
        for each in resource.acls:
            try:
                acl = AclRule(
                    resource_type=ResourceType(resource.resource_type),
                    name=resource.resource_name,
                    pattern=Pattern(resource.pattern_type),
                    principal=each.principal,
                    host=each.host,
                    operation=Operation(each.operation),
                    permission=Permission(each.permission_type),
                )
            except ValueError:
                continue
            possible = (Operation.ALL, *OPERATIONS[acl.resource_type])
            if acl.operation in possible and is_principal(acl.principal):
                found.add(acl)
    return found
