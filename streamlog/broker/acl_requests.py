"""AclRequests: DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290).

ACLs are replaced as a whole, durably, and hold for every request from then on. Without an
authorizer there are none, and whoever asks is told so. What can't be meant, such as an ACL for
all operations in general or for a cluster of another name, is refused with what would be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from streamlog.broker.security.acls import (
    Acl,
    AclFilter,
    Acls,
    Authorizer,
    is_principal,
    super_users_of,
)
from streamlog.broker.security_config import AUTHORIZER_NONE
from streamlog.broker.storage.catalog import ACLS
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.acls import (
    ANY_NAME,
    CLUSTER,
    OPERATIONS,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.storage.log_directory import LogDirectory

DISABLED = "this broker checks no ACLs: set authorizer.class.name=standard"


class _Filter(Protocol):
    """What DescribeAcls and DeleteAcls have in common."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class AclRequests:
    """The ACLs of this broker; `authorizer` decides by them, None if nobody is to."""

    def __init__(self, directory: LogDirectory) -> None:
        """Read what was kept.

        Raises:
            LogDirectoryError, CorruptData: it can't be read.
            ConfigError: a super user is no principal.
        """
        self._directory = directory
        self.authorizer: Authorizer | None = None
        config = directory.config.security
        if config.authorizer != AUTHORIZER_NONE:
            self.authorizer = Authorizer(
                directory.kept(ACLS, Acls.of_content) or Acls(),
                super_users=super_users_of(config.super_users),
                allow_if_none_found=config.allow_if_no_acl,
            )

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            DescribeAclsRequest: lambda request, _: self.describe(request),
            CreateAclsRequest: lambda request, _: self.create(request),
            DeleteAclsRequest: lambda request, _: self.delete(request),
        }

    def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Those that a filter matches, by resource."""
        try:
            found = self._required().acls.matching(_filter(request))
        except LogError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=str(error))
        return DescribeAclsResponse(
            error_message=None,
            resources=[
                DescribeAclsResource(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    acls=[
                        AclDescription(
                            principal=acl.principal,
                            host=acl.host,
                            operation=acl.operation,
                            permission_type=acl.permission,
                        )
                        for acl in acls
                    ],
                )
                for (kind, name, pattern), acls in groupby(
                    found, key=lambda acl: (acl.resource_type, acl.name, acl.pattern)
                )
            ],
        )

    def create(self, request: CreateAclsRequest) -> CreateAclsResponse:
        """Add ACLs: those that can be; one that is there already stays."""
        results: list[AclCreationResult] = []
        added: set[Acl] = set()
        for creation in request.creations:
            result = AclCreationResult(error_message=None)
            try:
                self._required()
                added.add(_acl(creation))
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)
        failure = self._keep(lambda acls: acls | added) if added else None
        for result in results if failure is not None else ():
            if not result.error_code:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = str(failure)
        return CreateAclsResponse(results=results)

    def delete(self, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Delete what filters match."""
        results: list[DeleteAclsFilterResult] = []
        gone: set[Acl] = set()
        for wanted in request.filters:
            result = DeleteAclsFilterResult(error_message=None)
            try:
                found = self._required().acls.matching(_filter(wanted))
                result.matching_acls = [_deleted(acl) for acl in found]
                gone.update(found)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)
        failure = self._keep(lambda acls: acls - gone) if gone else None
        for result in results if failure is not None else ():
            for acl in result.matching_acls:
                acl.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                acl.error_message = str(failure)
        return DeleteAclsResponse(filter_results=results)

    def _required(self) -> Authorizer:
        if self.authorizer is None:
            raise error_for(ErrorCode.SECURITY_DISABLED, DISABLED)
        return self.authorizer

    def _keep(self, change: Callable[[frozenset[Acl]], Iterable[Acl]]) -> StreamlogError | None:
        """Why nothing has changed, if nothing has."""
        authorizer = self._required()
        after = Acls(change(authorizer.acls.all))
        try:
            self._directory.keep(ACLS, after.content())
        except StreamlogError as error:
            return error
        authorizer.replace(after)
        return None


def _filter(asked: _Filter) -> AclFilter:
    try:
        return AclFilter(
            resource_type=ResourceType(asked.resource_type_filter),
            name=asked.resource_name_filter,
            pattern=Pattern(asked.pattern_type_filter),
            principal=asked.principal_filter,
            host=asked.host_filter,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError as error:
        raise error_for(ErrorCode.INVALID_REQUEST, f"no such filter ({error})") from None


def _acl(asked: AclCreation) -> Acl:
    try:
        acl = Acl(
            resource_type=ResourceType(asked.resource_type),
            name=asked.resource_name,
            pattern=Pattern(asked.resource_pattern_type),
            principal=asked.principal,
            host=asked.host,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError as error:
        raise error_for(ErrorCode.INVALID_REQUEST, f"no such ACL ({error})") from None
    problem = _problem(acl)
    if problem:
        raise error_for(ErrorCode.INVALID_REQUEST, problem)
    return acl


def _problem(acl: Acl) -> str:
    """What is wrong with it; nothing, if it can be meant."""
    kind = acl.resource_type
    possible = OPERATIONS.get(kind, ())
    names = ", ".join(each.name for each in possible)
    is_named = acl.pattern in (Pattern.LITERAL, Pattern.PREFIXED)
    is_decided = acl.operation is not Operation.ANY and acl.permission is not Permission.ANY
    is_cluster = kind is ResourceType.CLUSTER
    problems = {
        "an ACL is about one type of resource, by a literal name or a prefix": (
            kind is ResourceType.ANY or not is_named
        ),
        "an ACL allows or denies one operation, or all (2)": not is_decided,
        f"{acl.operation.name} can't be done to a {kind.name}, but {names}": (
            acl.operation not in (Operation.ALL, *possible)
        ),
        "a resource and a host have names; '*' is all of them": not acl.name or not acl.host,
        f"the cluster's name is {CLUSTER}": is_cluster and acl.name not in (CLUSTER, ANY_NAME),
        f"{acl.principal!r} is no principal, such as User:alice": not is_principal(acl.principal),
    }
    return next((problem for problem, there in problems.items() if there), "")


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
