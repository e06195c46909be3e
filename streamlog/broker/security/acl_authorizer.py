"""ACLs, the decision about one operation, and what a decision does to a request.

Kafka's rules. An ACL allows or denies a principal, from a host, an operation on the resources that
a pattern names: one name, every name, or all names with a prefix. An operation that any matching
ACL denies is denied; otherwise it needs a matching ACL that allows it. READ, WRITE, DELETE and
ALTER include DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS. Super users may do everything.

A rule of `rules` asks an `Access` before the request reaches its handler and returns a `Verdict`.
It leaves in the request what the principal may do, and answers each other item with Kafka's error:
a principal that may read one of two topics reads that one. A rule may also narrow the response.

Rule of the file: data in, decision out. Not done here: the metadata keeps the ACLs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.security.principals import EVERYBODY, IN_PROCESS
from streamlog.errors import ConfigError
from streamlog.protocol.acls import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER,
    OPERATIONS,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import CodeOf, add_items, response_by_item
from streamlog.protocol.messages.produce_and_fetch import FetchableTopicResponse, FetchTopic
from streamlog.protocol.schema import Message

DECISIONS_MAX = 10_000
"""Cached decisions; a full cache is cleared."""
_IMPLIED_BY: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class AclRule(msgspec.Struct, frozen=True, kw_only=True):
    """One ACL."""

    resource_type: ResourceType
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str) -> bool:
        """Whether it applies to this principal on this host."""
        return self.principal in (principal, EVERYBODY) and self.host in (host, ANY_HOST)

    def denies(self, operation: Operation) -> bool:
        """Whether it denies the operation."""
        return self.permission is Permission.DENY and self.operation in (operation, Operation.ALL)

    def allows(self, operation: Operation) -> bool:
        """Whether it allows the operation."""
        if self.permission is not Permission.ALLOW:
            return False
        own = self.operation
        return own in (operation, Operation.ALL) or own in _IMPLIED_BY.get(operation, ())

    def kept(self) -> dict[str, str]:
        """Return the form in which it is stored, in words."""
        return {
            "resource_type": self.resource_type.name,
            "name": self.name,
            "pattern": self.pattern.name,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.name,
            "permission": self.permission.name,
        }


class AclRuleFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for ACLs; None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: AclRule) -> bool:
        """Whether the filter matches an ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: AclRule) -> bool:
        if self.pattern is Pattern.MATCH:
            return self.name is None or _applies(acl, self.name)
        return self.pattern in (Pattern.ANY, acl.pattern) and self.name in (None, acl.name)


def _applies(acl: AclRule, name: str) -> bool:
    """Whether an ACL applies to the resource of this name."""
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, ANY_NAME)


class Acls:
    """All ACLs, indexed by resource. Immutable."""

    def __init__(self, acls: Iterable[AclRule] = ()) -> None:
        self.all = frozenset(acls)
        self._literal: dict[tuple[ResourceType, str], list[AclRule]] = defaultdict(list)
        self._prefixed: dict[tuple[ResourceType, str], list[AclRule]] = defaultdict(list)
        lengths: dict[ResourceType, set[int]] = defaultdict(set)
        for acl in self.all:
            key = acl.resource_type, acl.name
            if acl.pattern is Pattern.PREFIXED:
                self._prefixed[key].append(acl)
                lengths[acl.resource_type].add(len(acl.name))
            else:
                self._literal[key].append(acl)
        self._lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def about(self, kind: ResourceType, name: str) -> list[AclRule]:
        """Return the ACLs that apply to a resource."""
        # Prefixed ACLs are looked up once per length that occurs, not compared one by one.
        found = [*self._literal.get((kind, name), ())]
        # The literal ACL for `*` applies to every name (KIP-290).
        if name != ANY_NAME:
            found += self._literal.get((kind, ANY_NAME), ())
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            found += self._prefixed.get((kind, name[:length]), ())
        return found

    def of_type(self, kind: ResourceType) -> list[AclRule]:
        """Return all ACLs for a type of resource."""
        return [acl for acl in self.all if acl.resource_type is kind]

    def matching(self, wanted: AclRuleFilter) -> list[AclRule]:
        """Return the ACLs that a filter matches, in a stable order."""
        return sorted((acl for acl in self.all if wanted.matches(acl)), key=_order)


def _order(acl: AclRule) -> tuple[object, ...]:
    return (
        acl.resource_type,
        acl.name,
        acl.pattern,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


class Authorizer:
    """Decides by ACLs, which can be replaced at any time."""

    def __init__(
        self, acls: Acls, *, super_users: Collection[str], allow_if_none_found: bool
    ) -> None:
        """`allow_if_none_found`: whether everyone may use a resource without any ACL."""
        self._acls = acls
        self._super_users = frozenset({*super_users, IN_PROCESS})
        self._allow_if_none_found = allow_if_none_found
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    @property
    def acls(self) -> Acls:
        """The current ACLs."""
        return self._acls

    def replace(self, acls: Acls) -> None:
        """Use other ACLs from now on."""
        self._acls = acls
        self._decisions.clear()

    def allows(
        self, who: tuple[str, str], operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether a principal on a host may perform an operation on a resource."""
        principal, host = who
        if principal in self._super_users:
            return True
        key = principal, host, operation, kind, name
        known = self._decisions.get(key)
        if known is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            known = self._decisions[key] = self._decide(who, operation, kind, name)
        return known

    def allows_some(self, who: tuple[str, str], operation: Operation, kind: ResourceType) -> bool:
        """Whether a principal may perform an operation on any possible resource of a type."""
        principal, host = who
        if principal in self._super_users:
            return True
        about = [acl for acl in self._acls.of_type(kind) if acl.concerns(principal, host)]
        denied = [acl for acl in about if acl.denies(operation)]
        # KIP-679: an idempotent producer needs WRITE on some topic. The topic need not exist, so
        # the ACLs themselves are compared: one that allows, and that no denial covers entirely.
        if any(acl.pattern is Pattern.LITERAL and acl.name == ANY_NAME for acl in denied):
            return False
        if self._allow_if_none_found:
            return True
        return any(acl.allows(operation) and not _is_covered(acl, denied) for acl in about)

    def operations(self, who: tuple[str, str], kind: ResourceType, name: str) -> int:
        """Return the operations that a principal may perform on a resource, as bits (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[kind]
            if self.allows(who, operation, kind, name)
        )

    def _decide(
        self, who: tuple[str, str], operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        about = self._acls.about(kind, name)
        if not about:  # No ACL at all, also none for other principals.
            return self._allow_if_none_found
        concerning = [acl for acl in about if acl.concerns(*who)]
        # A denial wins over every ACL that allows, however specific either of them is.
        if any(acl.denies(operation) for acl in concerning):
            return False
        return any(acl.allows(operation) for acl in concerning)


def _is_covered(allowing: AclRule, denied: Iterable[AclRule]) -> bool:
    """Whether a denial covers everything that an ACL allows."""
    for acl in denied:
        if acl.pattern is Pattern.PREFIXED:
            # An ACL for `*` allows names outside any prefix.
            if allowing.name != ANY_NAME and allowing.name.startswith(acl.name):
                return True
        # A denial of one name covers an ACL for that name, but not one for a prefix.
        elif allowing.pattern is Pattern.LITERAL and acl.name == allowing.name:
            return True
    return False


def super_users_of(text: str) -> frozenset[str]:
    """Parse the principals in `super.users`, which are separated by semicolons.

    Raises:
        ConfigError: one of them is not a principal.
    """
    users = frozenset(each.strip() for each in text.split(";") if each.strip())
    for each in users:
        if not is_principal(each):
            raise ConfigError(
                f"super.users: {each!r} is not User:NAME; an example: User:admin;User:CN=broker"
            )
    return users


def is_principal(text: str) -> bool:
    """Whether a text has the form TYPE:NAME of a principal."""
    kind, colon, name = text.partition(":")
    return bool(kind and colon and name)


T = TypeVar("T")
Readable: TypeAlias = Callable[
    [Iterable[FetchTopic]], tuple[list[FetchTopic], list[FetchableTopicResponse]]
]
"""Splits topics of a Fetch into those that may be read, and errors for the others."""


class Verdict(msgspec.Struct, frozen=True):
    """What happens to a request.

    With an `answer`, the handler is not called. Otherwise the request goes to the handler, and
    `finish`, if set, completes its response. With `readable`, the handler of a Fetch asks which
    topics may be read, because its session may stand for more topics than the request names.
    """

    answer: Message | None = None
    # Each rule knows the response type of its request.
    finish: Callable[[Any], None] | None = None
    readable: Readable | None = None


GO_ON = Verdict()


class LogDecision(Protocol):
    """Logs that a principal on a host may or may not perform an operation on a resource."""

    def __call__(
        self, who: tuple[str, str], operation: str, resource: str, /, *, allowed: bool
    ) -> None:
        """Log one decision."""
        ...


class Access(msgspec.Struct, frozen=True):
    """The context of one request: principal, host, version, and the existing topics."""

    authorizer: Authorizer
    principal: str
    host: str
    version: int
    exists: Callable[[str], bool]
    """Whether a topic of this name exists."""
    name_of: Callable[[bytes], str | None]
    """Returns the name of the topic with this id."""
    topics: Callable[[], Iterable[str]]
    """Returns the names of all topics."""
    log: LogDecision
    """Logs a decision about the principal and its host."""

    def topic(self, operation: Operation, name: str) -> bool:
        """Whether the principal may perform the operation on a topic.

        A mirror of another cluster's internal topic is no one's but the brokers': it has the
        positions of all groups there, and a right on all topics, such as a pattern gives, is not
        meant for that.
        """
        if name.startswith(MIRRORED_LOGS):
            return self.cluster(Operation.CLUSTER_ACTION, logs_denied=False)
        return self._may(operation, ResourceType.TOPIC, name)

    def group(self, operation: Operation, name: str) -> bool:
        """Whether the principal may perform the operation on a group."""
        return self._may(operation, ResourceType.GROUP, name)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        """Whether the principal may perform the operation on a transactional id."""
        return self._may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: Operation, *, logs_denied: bool = True) -> bool:
        """Whether the principal may perform the operation on the cluster.

        Args:
            operation: the operation.
            logs_denied: false where another right is asked for next, which may be enough.
        """
        return self._may(operation, ResourceType.CLUSTER, CLUSTER, logs_denied=logs_denied)

    def some_topic(self, operation: Operation) -> bool:
        """Whether the principal may perform the operation on any possible topic."""
        who = self.principal, self.host
        return self.authorizer.allows_some(who, operation, ResourceType.TOPIC)

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return the allowed operations on a resource, as bits (KIP-430)."""
        return self.authorizer.operations((self.principal, self.host), kind, name)

    def _may(
        self, operation: Operation, kind: ResourceType, name: str, *, logs_denied: bool = True
    ) -> bool:
        who = self.principal, self.host
        allowed = self.authorizer.allows(who, operation, kind, name)
        if allowed or logs_denied:
            self.log(who, operation.name, f"{kind.name} {name}", allowed=allowed)
        return allowed


def split(items: Iterable[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Split items into those that are allowed and those that are not."""
    kept: list[T] = []
    refused: list[T] = []
    for item in items:
        (kept if may(item) else refused).append(item)
    return kept, refused


def withhold(
    request: Message,
    field: str,
    may: Callable[[Any], bool],
    code: ErrorCode | CodeOf,
    *,
    finish: Callable[[Any], None] | None = None,
    message: str | None = None,
) -> Verdict:
    """Remove items that are not allowed from a list in a request, and answer them with errors.

    Args:
        request: the request; the handler sees the remaining items.
        field: the name of the list.
        may: whether an item is allowed.
        code: the error of removed items, or a function that returns it for an item.
        finish: changes the response to the remaining items before the errors are added.
        message: the error message, for items that have one.
    """
    kept, refused = split(getattr(request, field), may)
    if not refused:
        return GO_ON if finish is None else Verdict(finish=finish)
    # The request holds the refused items for a moment, because the errors are derived from a
    # request.
    setattr(request, field, refused)
    errors = item_errors(request, code, message)
    setattr(request, field, kept)

    def join(response: Message) -> None:
        if finish is not None:
            finish(response)
        add_items(response, errors, type(request))

    return Verdict(finish=join)


def item_errors(request: Message, code: ErrorCode | CodeOf, message: str | None = None) -> Message:
    """Return the response that refuses every item of a request."""
    response = api_of(type(request)).response
    code_of = code if not isinstance(code, ErrorCode) else lambda *_: code
    return response_by_item(request, response, code_of, message)
