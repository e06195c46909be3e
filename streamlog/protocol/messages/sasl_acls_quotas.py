"""SASL handshakes, users, ACLs, and client quotas.

Declarations only, see `schema`.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    opaque,
    secret,
    string,
    string_array,
)


class QuotaFilter(Struct):
    """A filter of entities of one type; `match_type` 0: by name, 1: the default, 2: any."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(Message, versions="0-1", flexible_from=1):
    """Look up the quotas whose entities match all filters.

    `strict` excludes entities that have a type without a filter (KIP-546).
    """

    __response__: ClassVar[DescribeClientQuotasResponse]
    components: list[QuotaFilter] = array(QuotaFilter, "0+")
    strict: bool = boolean("0+")


class QuotaEntity(Struct):
    """A part of an entity; a null name is the default of the type."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class QuotaValue(Struct):
    """A limit."""

    key: str = string("0+")
    value: float = float64("0+")


class DescribedQuota(Struct):
    """The limits of one entity."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    values: list[QuotaValue] = array(QuotaValue, "0+")


class DescribeClientQuotasResponse(Message, versions="0-1", flexible_from=1):
    """The quotas; null with an error."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    entries: list[DescribedQuota] | None = array(DescribedQuota, "0+", nullable="0+")


class QuotaOperation(Struct):
    """Set a limit, or remove it."""

    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class QuotaAlteration(Struct):
    """Changes to the limits of one entity."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    ops: list[QuotaOperation] = array(QuotaOperation, "0+")


class AlterClientQuotasRequest(Message, versions="0-1", flexible_from=1):
    """Change quotas, or only validate the changes."""

    __response__: ClassVar[AlterClientQuotasResponse]
    entries: list[QuotaAlteration] = array(QuotaAlteration, "0+")
    validate_only: bool = boolean("0+")


class AlteredQuota(Struct):
    """The result for one entity: all of its changes were made, or none."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    entity: list[QuotaEntity] = array(QuotaEntity, "0+")


class AlterClientQuotasResponse(Message, versions="0-1", flexible_from=1):
    """The results."""

    throttle_time_ms: int = int32("0+")
    entries: list[AlteredQuota] = array(AlteredQuota, "0+")


class SaslHandshakeRequest(Message, versions="0-1"):
    """Choose a mechanism (KIP-43).

    After version 0, the messages of the mechanism follow without a header; after version 1, each is
    a SaslAuthenticate request (KIP-152).
    """

    __response__: ClassVar[SaslHandshakeResponse]
    mechanism: str = string("0+")


class SaslHandshakeResponse(Message, versions="0-1"):
    """The mechanisms of the broker. Errors: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE."""

    # With UNSUPPORTED_SASL_MECHANISM, the client can tell its user which mechanisms there are.
    error_code: int = int16("0+")
    mechanisms: list[str] = string_array("0+")


class SaslAuthenticateRequest(Message, versions="0-2", flexible_from=2):
    """One message of the mechanism (KIP-152)."""

    __response__: ClassVar[SaslAuthenticateResponse]
    auth_bytes: bytes = secret("0+")


class SaslAuthenticateResponse(Message, versions="0-2", flexible_from=2):
    """The mechanism's answer; the last one carries the lifetime of the session (KIP-368).

    Errors: SASL_AUTHENTICATION_FAILED, ILLEGAL_SASL_STATE.
    """

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    auth_bytes: bytes = secret("0+")
    # 0: the session does not expire.
    session_lifetime_ms: int = int64("1+")


class DescribeAclsRequest(Message, versions="1-3", flexible_from=2):
    """List the ACLs that a filter matches; null and 1 match anything (KIP-140, KIP-290)."""

    __response__: ClassVar[DescribeAclsResponse]
    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class AclDescription(Struct):
    """One ACL of a resource."""

    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResource(Struct):
    """The ACLs of one resource pattern."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    # 3 is LITERAL; version 0 had no other patterns (KIP-290).
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription, "0+")


class DescribeAclsResponse(Message, versions="1-3", flexible_from=2):
    """The ACLs. Errors: SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, "0+")


class AclCreation(Struct):
    """An ACL to add."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class CreateAclsRequest(Message, versions="1-3", flexible_from=2):
    """Add ACLs."""

    __response__: ClassVar[CreateAclsResponse]
    creations: list[AclCreation] = array(AclCreation, "0+")


class AclCreationResult(Struct):
    """The result for one ACL. Errors: SECURITY_DISABLED, INVALID_REQUEST."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreateAclsResponse(Message, versions="1-3", flexible_from=2):
    """The result for each ACL."""

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array(AclCreationResult, "0+")


class DeleteAclsFilter(Struct):
    """A filter of ACLs to delete, as in DescribeAcls."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsRequest(Message, versions="1-3", flexible_from=2):
    """Delete the ACLs that any of the filters matches."""

    __response__: ClassVar[DeleteAclsResponse]
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "0+")


class DeleteAclsMatchingAcl(Struct):
    """A deleted ACL."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsFilterResult(Struct):
    """The ACLs that one filter has deleted."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, "0+")


class DeleteAclsResponse(Message, versions="1-3", flexible_from=2):
    """The ACLs that each filter has deleted."""

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, "0+")


class UserName(Struct):
    """A user."""

    name: str = string("0+")


class DescribeUserScramCredentialsRequest(Message, versions="0", flexible_from=0):
    """List the credentials of users; null, or an empty list: of all users (KIP-554)."""

    __response__: ClassVar[DescribeUserScramCredentialsResponse]
    users: list[UserName] | None = array(UserName, "0+", nullable="0+")


class CredentialInfo(Struct):
    """A credential without its secrets.

    `mechanism`: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512.
    """

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    """The credentials of one user. Errors: RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Message, versions="0", flexible_from=0):
    """The users."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "0+"
    )


class ScramCredentialDeletion(Struct):
    """A credential to remove."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class ScramCredentialUpsertion(Struct):
    """A credential to set; the password itself is never sent."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    iterations: int = int32("0+")
    salt: bytes = opaque("0+")
    # Still a secret: it is enough to authenticate with this mechanism.
    salted_password: bytes = secret("0+")


class AlterUserScramCredentialsRequest(Message, versions="0", flexible_from=0):
    """Remove and set credentials. For each user, all changes are made, or none."""

    __response__: ClassVar[AlterUserScramCredentialsResponse]
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")


class AlterUserScramCredentialsResult(Struct):
    """The result for one user. Errors: RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, ..."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class AlterUserScramCredentialsResponse(Message, versions="0", flexible_from=0):
    """The result for each user."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")
