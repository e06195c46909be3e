"""Credentials of the REST API: HTTP basic authentication against the broker's SCRAM users.

A password is checked in a thread, since that is slow on purpose, and remembered: a client sends it
with every request.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.broker.security.users import Users
from streamlog.http_access.passwords import RememberedLogins, basic_credentials
from streamlog.registry.refusals import RegistryRefusal

UNAUTHORIZED: Final = 401


class BasicAuthentication:
    """Finds the principal of a request by its header Authorization."""

    def __init__(self, users: Callable[[], Users], thread: Executor) -> None:
        self._users = users
        self._thread = thread
        self._remembered = RememberedLogins()

    async def principal_of(self, header: str | None) -> str:
        """Return the principal.

        Raises:
            RegistryRefusal: 401, there is no password, or it is wrong.
        """
        found = basic_credentials(header)
        if found is None:
            raise _unauthorized()
        user, password = found
        credential, is_real = self._users().password_credential(user)
        digest = self._remembered.digest(credential.stored_key, user, password)
        if self._remembered.has(digest):
            return of_user(user)
        # In a thread: at thousands of rounds, it would stop the broker's other clients for
        # milliseconds at each guess. Also for an unknown user, so that the time does not show
        # whether there is one.
        fits = await get_running_loop().run_in_executor(self._thread, credential.fits, password)
        if not fits or not is_real:
            raise _unauthorized()
        self._remembered.add(digest)
        return of_user(user)


async def anonymous(_header: str | None) -> str:
    """Return the principal of every client, where none has to authenticate."""
    return ANONYMOUS


def _unauthorized() -> RegistryRefusal:
    return RegistryRefusal(
        UNAUTHORIZED, "Unauthorized: authenticate by HTTP basic authentication as a user of the log"
    )
