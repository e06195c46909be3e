"""Credentials of the REST API: HTTP basic authentication against the broker's SCRAM users.

A password is checked in a thread, since that is slow on purpose, and remembered by a keyed digest:
a client sends its password with every request. What is remembered is bound to the stored
credential, so a changed or deleted user is checked again at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from asyncio import get_running_loop
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from streamlog.broker.security.authentication import PASSWORD_CHARACTERS_MAX
from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.broker.security.users import Users
from streamlog.registry.refusals import RegistryRefusal

REMEMBERED_MAX: Final = 1_000
UNAUTHORIZED: Final = 401
_SCHEME: Final = "basic "


class BasicAuthentication:
    """Finds the principal of a request by its header Authorization."""

    def __init__(self, users: Callable[[], Users], thread: Executor) -> None:
        self._users = users
        self._thread = thread
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    async def principal_of(self, header: str | None) -> str:
        """Return the principal.

        Raises:
            RegistryRefusal: 401, there is no password, or it is wrong.
        """
        user, password = _credentials(header)
        credential, is_real = self._users().password_credential(user)
        text = f"{user}\0{password}".encode()
        # Keyed, and of the whole: neither a dump of the memory nor the time of a look-up gives a
        # password away. With the stored key, because a changed password has another one.
        key = hmac.digest(self._secret, credential.stored_key + text, hashlib.sha256)
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return of_user(user)
        # In a thread: at thousands of rounds, it would stop the broker's other clients for
        # milliseconds at each guess. Also for an unknown user, so that the time does not show
        # whether there is one.
        fits = await get_running_loop().run_in_executor(self._thread, credential.fits, password)
        if not fits or not is_real:
            raise _unauthorized()
        self._remembered[key] = None
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return of_user(user)


async def anonymous(_header: str | None) -> str:
    """Return the principal of every client, where none has to authenticate."""
    return ANONYMOUS


def _credentials(header: str | None) -> tuple[str, str]:
    if header is None or not header.lower().startswith(_SCHEME):
        raise _unauthorized()
    try:
        decoded = base64.b64decode(header[len(_SCHEME) :], validate=True).decode()
    except (binascii.Error, ValueError):
        raise _unauthorized() from None
    user, colon, password = decoded.partition(":")
    if not colon or not user or not password or len(password) > PASSWORD_CHARACTERS_MAX:
        raise _unauthorized()
    return user, password


def _unauthorized() -> RegistryRefusal:
    return RegistryRefusal(
        UNAUTHORIZED, "Unauthorized: authenticate by HTTP basic authentication as a user of the log"
    )
