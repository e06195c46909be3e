"""Admin requests about security: ACLs, SCRAM users, quotas."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

import msgspec

from streamlog.client.admin.admin_area import AdminArea, Outcome, check, raise_refused
from streamlog.errors import LogError, UsageError
from streamlog.protocol.acls import ANY_HOST, Operation, Pattern, Permission, ResourceType
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AclDescription,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaOperation,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.scram import ITERATIONS_DEFAULT, SALT_BYTES, ScramMechanism

W = TypeVar("W", bound=IntEnum)


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule: it allows or denies a principal an operation on resources, from a host.

    A resource type, operation, pattern or permission that this release does not know, from a newer
    cluster, stays a number.
    """

    resource_type: ResourceType | int
    name: str
    """The resource's name, or `*` for all; the cluster's is `kafka-cluster`."""
    principal: str
    """`User:alice`, or `User:*` for all users."""
    operation: Operation | int
    pattern: Pattern | int = Pattern.LITERAL
    host: str = ANY_HOST
    permission: Permission | int = Permission.ALLOW

    def __str__(self) -> str:
        """Return the rule as one line of text."""
        prefixed = "..." if self.pattern == Pattern.PREFIXED else ""
        return (
            f"{word(self.permission).lower()} {self.principal} from {self.host}"
            f" {word(self.operation)} {word(self.resource_type).lower()} {self.name!r}{prefixed}"
        )


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects ACLs; None and ANY match everything.

    `Pattern.MATCH` selects the ACLs that apply to the named resource: by its name, by a prefix of
    it, and by `*` (KIP-290).
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY


EVERY_ACL = AclFilter()


class AclAdmin(AdminArea):
    """Describes, creates and deletes ACLs."""

    async def describe_acls(self, which: AclFilter = EVERY_ACL) -> list[Acl]:
        """Return the ACLs that match the filter, sorted by resource and principal.

        Raises:
            LogError: the cluster has no authorizer (SECURITY_DISABLED).
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
        """Add ACLs, which take effect at once; valid ones are added even if others are refused.

        Raises:
            LogError: the cluster has no authorizer, or an ACL is invalid; `refusals` has all errors
                by ACL.
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
        """Delete the ACLs that match any of the filters, and return them.

        Raises:
            LogError: the cluster has no authorizer; `refusals` has all errors by filter.
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
    """Return the name of an enum member, or a plain number as text."""
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


EXACT, DEFAULT = 0, 1


class ClientQuota(msgspec.Struct, frozen=True):
    """The quotas of an entity."""

    entity: Mapping[str, str | None]
    """`user`, `client-id` or both, each with a name, or None for the default of its kind."""
    rates: Mapping[str, float]
    """`producer_byte_rate` and `consumer_byte_rate`, in bytes per second."""


class QuotaAdmin(AdminArea):
    """Describes and alters quotas (KIP-546)."""

    async def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None
    ) -> list[ClientQuota]:
        """Return the quotas of all users and client ids, or of one entity.

        Raises:
            LogError: the kind of the entity is unknown.
        """

        def read(response: DescribeClientQuotasResponse) -> list[ClientQuota]:
            check("describe quotas", response.error_code, response.error_message)
            return [
                ClientQuota(
                    entity={part.entity_type: part.entity_name for part in each.entity},
                    rates={value.key: value.value for value in each.values},
                )
                for each in response.entries or []
            ]

        filters = [
            QuotaFilter(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
            for kind, name in (entity or {}).items()
        ]
        # Strict: exactly this entity, without entities that have further parts (KIP-546).
        request = DescribeClientQuotasRequest(components=filters, strict=entity is not None)
        return await self._ask_controller(request, DescribeClientQuotasResponse, read)

    async def alter_client_quotas(
        self,
        entity: Mapping[str, str | None],
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set or remove quotas of an entity.

        Args:
            entity: the entity, as in `ClientQuota`.
            rates: quota to its rate in bytes per second; None removes the quota.
            validate_only: check the request, and change nothing.

        Raises:
            LogError: the quota or the kind of the entity is unknown.
        """

        def read(response: AlterClientQuotasResponse) -> None:
            for each in response.entries:
                check(f"alter quotas of {shown(entity)}", each.error_code, each.error_message)

        alteration = QuotaAlteration(
            entity=[QuotaEntity(entity_type=k, entity_name=v) for k, v in entity.items()],
            ops=[
                QuotaOperation(key=key, value=rate or 0.0, remove=rate is None)
                for key, rate in rates.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[alteration], validate_only=validate_only)
        await self._ask_controller(request, AlterClientQuotasResponse, read)


def shown(entity: Mapping[str, str | None]) -> str:
    """Return an entity as one line of text: `user=alice, client-id=(default)`."""
    parts = (f"{kind}={'(default)' if name is None else name}" for kind, name in entity.items())
    return ", ".join(parts)


class UserAdmin(AdminArea):
    """Manages users with passwords (KIP-554)."""

    async def set_password(
        self, user: str, password: str, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Set a user's password, for PLAIN and every SCRAM mechanism.

        Args:
            user: the user's name.
            password: the new password; it is sent only as salted hashes.
            iterations: rounds of the key derivation, which slow down guessing.

        Raises:
            LogError: the broker refuses the credentials.
            UsageError: the password is empty.
        """
        if not password:
            raise UsageError("the password is empty: it needs at least one character")

        def made() -> list[ScramCredentialUpsertion]:
            # PBKDF2 is slow on purpose, so this runs in a thread.
            upsertions = []
            for mechanism in ScramMechanism:
                salt = secrets.token_bytes(SALT_BYTES)
                salted = mechanism.salted_password(password, salt, iterations)
                upsertions.append(
                    ScramCredentialUpsertion(
                        name=user,
                        mechanism=mechanism,
                        iterations=iterations,
                        salt=salt,
                        salted_password=salted,
                    )
                )
            return upsertions

        upsertions = await asyncio.to_thread(made)
        try:
            await self._alter_users(AlterUserScramCredentialsRequest(upsertions=upsertions))
        except LogError as error:
            if error.code != ErrorCode.DUPLICATE_RESOURCE:
                raise
            # Apache Kafka takes one mechanism of a user in a request.
            for each in upsertions:
                await self._alter_users(AlterUserScramCredentialsRequest(upsertions=[each]))

    async def remove_user(self, user: str) -> None:
        """Remove a user's password.

        Raises:
            LogError: the user does not exist (RESOURCE_NOT_FOUND).
        """
        # A deletion names a mechanism, so the user's mechanisms are looked up first.
        known = await self.list_users()
        if user not in known:
            raise LogError(
                f"there is no user {user!r}; there are: {', '.join(sorted(known)) or 'none'}",
                code=ErrorCode.RESOURCE_NOT_FOUND,
            )
        deletions = [
            ScramCredentialDeletion(name=user, mechanism=mechanism) for mechanism in known[user]
        ]
        try:
            await self._alter_users(AlterUserScramCredentialsRequest(deletions=deletions))
        except LogError as error:
            if error.code != ErrorCode.DUPLICATE_RESOURCE:
                raise
            for each in deletions:
                await self._alter_users(AlterUserScramCredentialsRequest(deletions=[each]))

    async def list_users(self) -> dict[str, frozenset[ScramMechanism]]:
        """Return each user with a password, and the user's SCRAM mechanisms."""

        def read(
            response: DescribeUserScramCredentialsResponse,
        ) -> dict[str, frozenset[ScramMechanism]]:
            check("list users", response.error_code, response.error_message)
            return {
                result.user: frozenset(
                    ScramMechanism(info.mechanism) for info in result.credential_infos
                )
                for result in response.results
            }

        request = DescribeUserScramCredentialsRequest(users=None)
        return await self._ask_controller(request, DescribeUserScramCredentialsResponse, read)

    async def _alter_users(self, request: AlterUserScramCredentialsRequest) -> None:
        def read(response: AlterUserScramCredentialsResponse) -> None:
            for result in response.results:
                if result.error_code:
                    raise error_for(
                        result.error_code, result.error_message or f"credentials of {result.user!r}"
                    )

        await self._ask_controller(request, AlterUserScramCredentialsResponse, read)
