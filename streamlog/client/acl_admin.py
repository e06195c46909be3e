"""AclAdmin: shows, creates and deletes ACLs (KIP-140, KIP-290).

The part of `Admin` that is about who may do what. An ACL stands for itself: creating one that is
there, and deleting what is not, changes nothing and is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from streamlog.client.admin_room import AdminRoom, Outcome, check, raise_refused
from streamlog.protocol.acls import ANY_HOST, Operation, Pattern, Permission, ResourceType
from streamlog.protocol.messages.security import (
    AclCreation,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

W = TypeVar("W", bound=IntEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """A rule: a principal may, or may not, do something to resources, from a host.

    A number that this release has no word for, from a newer cluster, stays a number.
    """

    resource_type: ResourceType | int
    name: str
    """Of the resource, `*` for all; of the cluster it is `kafka-cluster`."""
    principal: str
    """`User:alice`, or `User:*` for everybody."""
    operation: Operation | int
    pattern: Pattern | int = Pattern.LITERAL
    host: str = ANY_HOST
    permission: Permission | int = Permission.ALLOW

    def __str__(self) -> str:
        """What it says, in a line."""
        prefixed = "..." if self.pattern == Pattern.PREFIXED else ""
        return (
            f"{word(self.permission).lower()} {self.principal} from {self.host}"
            f" {word(self.operation)} {word(self.resource_type).lower()} {self.name!r}{prefixed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which ACLs are meant; None and ANY stand for all.

    With `Pattern.MATCH` they are those that the named resource falls under: by its own name, by a
    prefix of it, and by `*`.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY


EVERY_ACL = AclFilter()


class AclAdmin(AdminRoom):
    """Manages ACLs."""

    async def describe_acls(self, which: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that are meant, by resource and principal.

        Raises:
            LogError: SECURITY_DISABLED, the cluster checks none.
        """

        def read(response: DescribeAclsResponse) -> list[Acl]:
            check("describe ACLs", response.error_code, response.error_message)
            found = [
                _acl(each.resource_type, each.resource_name, each.pattern_type, acl)
                for each in response.resources
                for acl in each.acls
            ]
            return sorted(found, key=_order)

        request = DescribeAclsRequest(
            resource_type_filter=which.resource_type,
            resource_name_filter=which.name,
            pattern_type_filter=which.pattern,
            principal_filter=which.principal,
            host_filter=which.host,
            operation=which.operation,
            permission_type=which.permission,
        )
        return await self._ask_controller(request, DescribeAclsResponse, read)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs; they hold at once. Those that can be are, even if others are refused.

        Raises:
            LogError: the cluster checks none, or one can't be meant; `refusals` has it by the ACL.
        """
        wanted = list(acls)

        def read(response: CreateAclsResponse) -> None:
            outcomes = [
                (acl, result.error_code, result.error_message)
                for acl, result in zip(wanted, response.results, strict=True)
            ]
            raise_refused("create the ACL", outcomes)

        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.name,
                    resource_pattern_type=acl.pattern,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in wanted
            ]
        )
        await self._ask_controller(request, CreateAclsResponse, read)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that are meant, and say which they were.

        Raises:
            LogError: the cluster checks none; `refusals` has it by the filter.
        """
        wanted = list(filters)

        def read(response: DeleteAclsResponse) -> list[Acl]:
            outcomes: list[Outcome] = []
            deleted: set[Acl] = set()
            for which, result in zip(wanted, response.filter_results, strict=True):
                outcomes.append((which, result.error_code, result.error_message))
                for each in result.matching_acls:
                    acl = _acl(each.resource_type, each.resource_name, each.pattern_type, each)
                    outcomes.append((acl, each.error_code, each.error_message))
                    deleted.add(acl)
            raise_refused("delete ACLs:", outcomes)
            return sorted(deleted, key=_order)

        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=which.resource_type,
                    resource_name_filter=which.name,
                    pattern_type_filter=which.pattern,
                    principal_filter=which.principal,
                    host_filter=which.host,
                    operation=which.operation,
                    permission_type=which.permission,
                )
                for which in wanted
            ]
        )
        return await self._ask_controller(request, DeleteAclsResponse, read)


def word(number: IntEnum | int) -> str:
    """The name of a number, or the number if there is no name."""
    return number.name if isinstance(number, IntEnum) else str(number)


def _acl(kind: int, name: str, pattern: int, acl: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        resource_type=_known(ResourceType, kind),
        name=name,
        pattern=_known(Pattern, pattern),
        principal=acl.principal,
        host=acl.host,
        operation=_known(Operation, acl.operation),
        permission=_known(Permission, acl.permission_type),
    )


def _known(words: type[W], number: int) -> W | int:
    try:
        return words(number)
    except ValueError:
        return number


def _order(acl: Acl) -> tuple[int | str, ...]:
    return (
        acl.resource_type,
        acl.name,
        acl.pattern,
        acl.principal,
        acl.host,
        acl.permission,
        acl.operation,
    )
