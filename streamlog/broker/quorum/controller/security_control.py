"""SecurityControl: decisions on users (KIP-554), ACLs (KIP-140, KIP-290) and producer ids.

Passwords never arrive here: a client sends salted hashes (`protocol/scram`). Without an authorizer,
requests for ACLs are refused with SECURITY_DISABLED. An invalid ACL is refused with a message that
names what is allowed. Producer ids are allocated to brokers in blocks (KIP-730). If a broker
crashes, the rest of its block is never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Protocol

from streamlog.broker.config.security import AUTHORIZER_NONE
from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.metadata.cluster_metadata import acl_id, acl_record, credential_record
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.security.acl_authorizer import AclRule, AclRuleFilter, is_principal
from streamlog.broker.security.users import Users
from streamlog.errors import LogError
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
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from streamlog.protocol.messages.metadata_log import (
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
)
from streamlog.protocol.messages.mirror_messages import (
    AlterLinkAclsRequest,
    AlterLinkAclsResponse,
    LinkAclChange,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AclCreationResult,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

DISABLED = "this broker checks no ACLs: set authorizer.class.name=standard"
PRODUCER_IDS_BLOCK = 1000
"""The number of producer ids that a broker gets at a time."""
PRODUCER_ID_BITS = 32
"""A cluster has the 4 billion ids from its base on."""
PRODUCER_ID_BASES = 2**31 - 1
"""How many bases there are; each cluster has one."""


class AskedFilter(Protocol):
    """The fields that the filters of DescribeAcls and DeleteAcls share."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class SecurityControl:
    """Users, ACLs and producer ids, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(AlterUserScramCredentialsRequest, self.alter_users),
                decides(CreateAclsRequest, self.create_acls),
                decides(DeleteAclsRequest, self.delete_acls),
                decides(AlterLinkAclsRequest, self.alter_copies),
                decides(AllocateProducerIdsRequest, self.allocate),
            ]
        )

    # ---- users ----

    def alter_users(
        self, request: AlterUserScramCredentialsRequest, _: int, __: int
    ) -> Decision[AlterUserScramCredentialsResponse]:
        """Change credentials; for each user, all requested changes or none."""
        before = self._context.metadata.users()
        after, results = before.alter(request.deletions, request.upsertions)
        response = AlterUserScramCredentialsResponse(
            results=[_result(name, error) for name, error in results.items()]
        )
        changed = (name for name, error in results.items() if error is None)
        return respond(
            response, (record for name in changed for record in _changes(name, before, after))
        )

    # ---- ACLs ----

    def create_acls(
        self, request: CreateAclsRequest, _: int, __: int
    ) -> Decision[CreateAclsResponse]:
        """Add the valid ACLs of a request. An ACL that exists already stays as it is."""
        there = self._context.metadata.acl_entries()
        added: dict[AclRule, MetadataRecord] = {}
        results = []
        for creation in request.creations:
            result = AclCreationResult(error_message=None)
            try:
                self._check_enabled()
                acl = _acl(creation)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            else:
                # An operator's ACL stays when the copy of a link goes.
                if acl_id(acl) not in there:
                    added[acl] = acl_record(acl)
            results.append(result)
        return respond(CreateAclsResponse(results=results), added.values())

    def delete_acls(
        self, request: DeleteAclsRequest, _: int, __: int
    ) -> Decision[DeleteAclsResponse]:
        """Delete the ACLs that match a filter of the request; each filter has its own result."""
        acls = self._context.metadata.acls()
        ids: dict[AclRule, list[bytes]] = {}
        for key, acl in self._context.metadata.acl_entries().items():
            ids.setdefault(acl, []).append(key)
        # One record per ACL, even if two filters match it: the replay of a second removal would
        # fail as damage of the log.
        gone: dict[bytes, MetadataRecord] = {}
        results = []
        for wanted in request.filters:
            result = DeleteAclsFilterResult(error_message=None)
            try:
                self._check_enabled()
                found = acls.matching(filter_of(wanted))
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            else:
                result.matching_acls = [_deleted(acl) for acl in found]
                # With the copies of links, or an answer would name ACLs that still count.
                gone |= {
                    key: RemoveAccessControlEntryRecord(id=key) for acl in found for key in ids[acl]
                }
            results.append(result)
        return respond(DeleteAclsResponse(filter_results=results), gone.values())

    def alter_copies(
        self, request: AlterLinkAclsRequest, _: int, __: int
    ) -> Decision[AlterLinkAclsResponse]:
        """Add and remove copies that a link has of ACLs of its source, all of them or none."""
        metadata = self._context.metadata
        if request.link_id not in metadata.links:
            return respond(
                AlterLinkAclsResponse(
                    error_code=ErrorCode.RESOURCE_NOT_FOUND,
                    error_message="the link has been deleted",
                )
            )
        records: list[MetadataRecord] = []
        there = {*metadata.acl_entries()}
        try:
            self._check_enabled()
            for change in request.changes:
                acl = _acl(change)
                key = acl_id(acl, request.link_id)
                # What is as asked already was asked for twice: two brokers may run a link.
                if change.adds and key not in there:
                    there.add(key)
                    records.append(acl_record(acl, request.link_id))
                elif not change.adds and key in there:
                    there.remove(key)
                    records.append(RemoveAccessControlEntryRecord(id=key))
        except LogError as error:
            return respond(AlterLinkAclsResponse(error_code=error.code, error_message=str(error)))
        return respond(AlterLinkAclsResponse(), records)

    def _check_enabled(self) -> None:
        if self._context.config.security.authorizer == AUTHORIZER_NONE:
            raise error_for(ErrorCode.SECURITY_DISABLED, DISABLED)

    # ---- producer ids ----

    def allocate(
        self, request: AllocateProducerIdsRequest, _: int, __: int
    ) -> Decision[AllocateProducerIdsResponse]:
        """Allocate a block of producer ids, which no other broker ever gets (KIP-730)."""
        metadata = self._context.metadata
        broker = metadata.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return respond(AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        # A retry gets a new block too: unused ids do no harm, but an id used twice does.
        first = metadata.next_producer_id or self._first_producer_id()
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + PRODUCER_IDS_BLOCK,
        )
        response = AllocateProducerIdsResponse(
            producer_id_start=first, producer_id_len=PRODUCER_IDS_BLOCK
        )
        return respond(response, [record])

    def _first_producer_id(self) -> int:
        """Return where the ids of this cluster begin, far from those of other clusters.

        A mirror topic has batches of its source's producers, and batches of this cluster's after
        its promotion. With ids from 0 on in both clusters, a log would take the first batches of
        one producer for late repetitions of the other's.
        """
        # The id of a cluster is random, so its hash is. Bases are 2**32 ids apart, and never 0,
        # where the ids of Apache Kafka begin.
        drawn = int.from_bytes(sha256(self._context.cluster_id.encode()).digest()[:8], "big")
        return (1 + drawn % PRODUCER_ID_BASES) << PRODUCER_ID_BITS


def _changes(name: str, before: Users, after: Users) -> Iterator[MetadataRecord]:
    had, has = before.of(name), after.of(name)
    for mechanism in sorted({*had} - {*has}):
        yield RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)
    for mechanism, credential in sorted(has.items()):
        if had.get(mechanism) != credential:
            yield credential_record(name, credential)


def _result(name: str, error: LogError | None) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user=name, error_message=None)
    return AlterUserScramCredentialsResult(
        user=name, error_code=error.code, error_message=str(error)
    )


def filter_of(asked: AskedFilter) -> AclRuleFilter:
    """Return the filter in a request.

    Raises:
        LogError: INVALID_REQUEST: a resource type, pattern, operation or permission is unknown.
    """
    try:
        return AclRuleFilter(
            resource_type=ResourceType(asked.resource_type_filter),
            name=asked.resource_name_filter,
            pattern=Pattern(asked.pattern_type_filter),
            principal=asked.principal_filter,
            host=asked.host_filter,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError as error:
        raise error_for(ErrorCode.INVALID_REQUEST, f"the filter is not valid: {error}") from None


def _acl(asked: AclCreation | LinkAclChange) -> AclRule:
    try:
        acl = AclRule(
            resource_type=ResourceType(asked.resource_type),
            name=asked.resource_name,
            pattern=Pattern(asked.resource_pattern_type),
            principal=asked.principal,
            host=asked.host,
            operation=Operation(asked.operation),
            permission=Permission(asked.permission_type),
        )
    except ValueError as error:
        raise error_for(ErrorCode.INVALID_REQUEST, f"the ACL is not valid: {error}") from None
    problem = _problem(acl)
    if problem:
        raise error_for(ErrorCode.INVALID_REQUEST, problem)
    return acl


def _problem(acl: AclRule) -> str:
    """Return what is wrong with an ACL; an empty text if it is valid."""
    kind = acl.resource_type
    possible = OPERATIONS.get(kind, ())
    names = ", ".join(each.name for each in possible)
    is_named = acl.pattern in (Pattern.LITERAL, Pattern.PREFIXED)
    is_decided = acl.operation is not Operation.ANY and acl.permission is not Permission.ANY
    is_cluster = kind is ResourceType.CLUSTER
    # The first problem in this order is reported.
    problems = {
        "an ACL needs one type of resource, and a literal name or a prefix": (
            kind is ResourceType.ANY or not is_named
        ),
        "an ACL allows or denies one operation, or all (2)": not is_decided,
        f"a {kind.name} has no operation {acl.operation.name}, only {names}": (
            acl.operation not in (Operation.ALL, *possible)
        ),
        "the name or the host is empty: use '*' for all": not acl.name or not acl.host,
        f"{acl.name!r} is not the name of the cluster: use {CLUSTER}": (
            is_cluster and acl.name not in (CLUSTER, ANY_NAME)
        ),
        f"{acl.principal!r} is not a principal, such as User:alice": (
            not is_principal(acl.principal)
        ),
    }
    return next((problem for problem, there in problems.items() if there), "")


def _deleted(acl: AclRule) -> DeleteAclsMatchingAcl:
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
