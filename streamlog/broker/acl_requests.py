"""AclRequests: which ACLs there are, and who decides by them (KIP-140, KIP-290).

They are the controller's (`quorum/security_control`), and hold here once they are committed.
Without an authorizer there are none, and whoever asks is told so.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from streamlog.broker.quorum.security_control import filter_of
from streamlog.broker.security.acls import Authorizer, super_users_of
from streamlog.broker.security_config import AUTHORIZER_NONE
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.security import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata import ClusterMetadata
    from streamlog.broker.security_config import SecurityConfig

DISABLED = "this broker checks no ACLs: set authorizer.class.name=standard"


class AclRequests:
    """The ACLs of this broker; `authorizer` decides by them, None if nobody is to."""

    def __init__(
        self, metadata: ClusterMetadata, config: SecurityConfig, *, peers: frozenset[str]
    ) -> None:
        """Go by the ACLs that the metadata knows; `peers` are super users, too: the other brokers.

        Raises:
            ConfigError: a super user is no principal.
        """
        self._metadata = metadata
        self.authorizer: Authorizer | None = None
        if config.authorizer != AUTHORIZER_NONE:
            self.authorizer = Authorizer(
                metadata.acls(),
                super_users=super_users_of(config.super_users) | peers,
                allow_if_none_found=config.allow_if_no_acl,
            )

    def on_changed(self) -> None:
        """The metadata knows others."""
        if self.authorizer is not None:
            self.authorizer.replace(self._metadata.acls())

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            DescribeAclsRequest: lambda request, _: self.describe(request),
        }

    def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Those that a filter matches, by resource."""
        try:
            found = self._required().acls.matching(filter_of(request))
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

    def _required(self) -> Authorizer:
        if self.authorizer is None:
            raise error_for(ErrorCode.SECURITY_DISABLED, DISABLED)
        return self.authorizer
