"""Users with passwords, as an admin sees and changes them (KIP-554).

A password leaves this process only as what SCRAM makes of it, with a salt of its own; the broker
could not say it even if it wanted to.
"""

from __future__ import annotations

import asyncio
import secrets

from streamlog.client.cluster import Cluster
from streamlog.errors import LogError, UsageError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.scram import SALT_BYTES, ScramMechanism


async def set_password(cluster: Cluster, user: str, password: str, *, iterations: int) -> None:
    """Give a user a password for every SCRAM mechanism.

    Raises:
        LogError: the broker does not take it.
    """
    if not password:
        raise UsageError("a password has at least one character")

    def made() -> list[ScramCredentialUpsertion]:
        """Slow on purpose, so in a thread."""
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
    await _alter(cluster, AlterUserScramCredentialsRequest(upsertions=upsertions))


async def remove_user(cluster: Cluster, user: str) -> None:
    """Take a user's passwords away.

    Raises:
        LogError: there is no such user.
    """
    known = await list_users(cluster)
    if user not in known:
        raise LogError(
            f"there is no user {user!r}; there are: {', '.join(sorted(known)) or 'none'}",
            code=ErrorCode.RESOURCE_NOT_FOUND,
        )
    deletions = [
        ScramCredentialDeletion(name=user, mechanism=mechanism) for mechanism in known[user]
    ]
    await _alter(cluster, AlterUserScramCredentialsRequest(deletions=deletions))


async def list_users(cluster: Cluster) -> dict[str, frozenset[ScramMechanism]]:
    """Everybody who has a password, and the mechanisms that prove it."""

    async def attempt() -> DescribeUserScramCredentialsResponse:
        request = DescribeUserScramCredentialsRequest(users=None)
        return await cluster.call_controller(request, DescribeUserScramCredentialsResponse)

    response = await cluster.retrying(attempt)
    if response.error_code:
        raise error_for(response.error_code, "list users")
    return {
        result.user: frozenset(ScramMechanism(info.mechanism) for info in result.credential_infos)
        for result in response.results
    }


async def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    async def attempt() -> AlterUserScramCredentialsResponse:
        return await cluster.call_controller(request, AlterUserScramCredentialsResponse)

    response = await cluster.retrying(attempt)
    for result in response.results:
        if result.error_code:
            raise error_for(
                result.error_code, result.error_message or f"credentials of {result.user!r}"
            )
