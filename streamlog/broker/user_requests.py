"""UserRequests: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

What is kept of passwords is replaced as a whole, durably, before it holds; who has come in before
stays until its session ends. Passwords themselves never come here: a client sends what it has
made of one (`protocol/scram`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.security import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata import ClusterMetadata
    from streamlog.broker.security.users import Credentials


class UserRequests:
    """The users of the cluster, as this broker knows them."""

    def __init__(self, metadata: ClusterMetadata, own: Credentials) -> None:
        """`own` are users that this broker knows by itself; they come before others."""
        self._metadata = metadata
        self._own = own
        self._kept = metadata.users()
        self.users = self._kept.joined(own)
        """Whom it knows."""

    def on_changed(self) -> None:
        """The metadata knows others."""
        self._kept = self._metadata.users()
        self.users = self._kept.joined(self._own)

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            DescribeUserScramCredentialsRequest: lambda request, _: self.describe(request),
            # To who proves itself where nobody asks; where somebody does, that is the gate's.
            SaslHandshakeRequest: lambda _, __: SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE
            ),
            SaslAuthenticateRequest: lambda _, __: SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="this listener does not ask for SASL",
            ),
        }

    def describe(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Which mechanisms users have, and with how many iterations."""
        asked = [each.name for each in request.users or ()] or self._kept.names
        counts = Counter(asked)
        return DescribeUserScramCredentialsResponse(
            error_message=None, results=[self._described(name, counts[name]) for name in counts]
        )

    def _described(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        own = self._kept.of(name)
        if count > 1:
            code, message = ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is {count} times in"
        elif not own:
            code, message = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}"
        else:
            infos = [
                CredentialInfo(mechanism=each.mechanism, iterations=each.iterations)
                for _, each in sorted(own.items())
            ]
            return DescribeUserScramCredentialsResult(
                user=name, error_message=None, credential_infos=infos
            )
        return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
