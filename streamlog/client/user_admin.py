"""UserAdmin: users with passwords, as an admin sees and changes them (KIP-554).

A password leaves this process only as what SCRAM makes of it, with a salt of its own; the broker
could not say it even if it wanted to.
"""

from __future__ import annotations

import asyncio
import secrets

from streamlog.client.admin_room import AdminRoom, check
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
from streamlog.protocol.scram import ITERATIONS_DEFAULT, SALT_BYTES, ScramMechanism


class UserAdmin(AdminRoom):
    """Manages users."""

    async def set_password(
        self, user: str, password: str, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Give a user a password, for PLAIN and every SCRAM mechanism; it replaces the old one.

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
        await self._alter_users(AlterUserScramCredentialsRequest(upsertions=upsertions))

    async def remove_user(self, user: str) -> None:
        """Take a user's password away.

        Raises:
            LogError: there is no such user.
        """
        known = await self.list_users()
        if user not in known:
            raise LogError(
                f"there is no user {user!r}; there are: {', '.join(sorted(known)) or 'none'}",
                code=ErrorCode.RESOURCE_NOT_FOUND,
            )
        deletions = [
            ScramCredentialDeletion(name=user, mechanism=mechanism) for mechanism in known[user]
        ]
        await self._alter_users(AlterUserScramCredentialsRequest(deletions=deletions))

    async def list_users(self) -> dict[str, frozenset[ScramMechanism]]:
        """Everybody who has a password, and the mechanisms that prove it."""

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
