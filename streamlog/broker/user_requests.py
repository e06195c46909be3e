"""UserRequests: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

What is kept of passwords is replaced as a whole, durably, before it holds; who has come in before
stays until its session ends. Passwords themselves never come here: a client sends what it has
made of one (`protocol/scram`).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlog.broker.security.users import SECRET_BYTES, Users
from streamlog.broker.storage.catalog import USERS
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
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
    from streamlog.broker.storage.log_directory import LogDirectory


class UserRequests:
    """The users of this broker."""

    def __init__(self, directory: LogDirectory) -> None:
        """Read what was kept.

        Raises:
            LogDirectoryError, CorruptData: it can't be read.
        """
        self._directory = directory
        kept = directory.kept(USERS, Users.of_content)
        self.users = kept or Users(secrets.token_bytes(SECRET_BYTES), {})

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            DescribeUserScramCredentialsRequest: lambda request, _: self.describe(request),
            AlterUserScramCredentialsRequest: lambda request, _: self.alter(request),
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
        asked = [each.name for each in request.users or ()] or self.users.names
        counts = Counter(asked)
        return DescribeUserScramCredentialsResponse(
            error_message=None, results=[self._described(name, counts[name]) for name in counts]
        )

    def alter(self, request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
        """Change credentials; of each user all that was asked for, or nothing."""
        after, results = self.users.altered(request.deletions, request.upsertions)
        failure: StreamlogError | None = None
        if not all(results.values()):
            try:
                self._directory.keep(USERS, after.content())
            except StreamlogError as error:
                failure = error
            else:
                self.users = after
        return AlterUserScramCredentialsResponse(
            results=[_result(name, error or failure) for name, error in results.items()]
        )

    def _described(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        own = self.users.of(name)
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


def _result(name: str, error: StreamlogError | None) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user=name, error_message=None)
    code = error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR
    return AlterUserScramCredentialsResult(user=name, error_code=code, error_message=str(error))
