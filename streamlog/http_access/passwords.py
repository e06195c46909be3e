"""Passwords: HTTP basic authentication (RFC 7617) against the users of a file.

A password is checked in a thread, since that is slow on purpose, and remembered by a keyed digest:
a client sends its password with every request. What is remembered is bound to the stored key, so a
user that was changed or removed is checked again at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.user_file import PASSWORD_CHARACTERS_MAX, UserFile, unknown_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

REMEMBERED_MAX: Final = 1_000
UNAUTHORIZED: Final = 401
CHALLENGE: Final = (b"www-authenticate", b'Basic realm="streamlog"')
"""The header of an answer with the status 401."""
NO_LOGIN: Final = "Unauthorized: authenticate by HTTP basic authentication as a user of the server"
USER: Final = "streamlog.user"
"""The key of a request's scope for the user that has logged in."""
_SCHEME: Final = "basic "


class NotAuthenticated(StreamlogError):
    """The request has no password, or a wrong one."""


class RememberedLogins:
    """What has been checked already, by digests that tell no password."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def digest(self, stored: bytes, user: str, password: str) -> bytes:
        """Return the digest of a login; `stored` is what the password is checked against."""
        # Keyed, and of the whole: neither a dump of the memory nor the time of a look-up gives a
        # password away. With the stored key, because a changed password has another one.
        whole = stored + f"{user}\0{password}".encode()
        return hmac.digest(self._secret, whole, hashlib.sha256)

    def has(self, digest: bytes) -> bool:
        """Return whether a login was right before."""
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        """Remember a login that was right."""
        self._digests[digest] = None
        if len(self._digests) > REMEMBERED_MAX:
            self._digests.popitem(last=False)


def basic_credentials(header: str | None) -> tuple[str, str] | None:
    """Return user and password of a header Authorization; None if it has none."""
    if header is None or not header.lower().startswith(_SCHEME):
        return None
    try:
        decoded = base64.b64decode(header[len(_SCHEME) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(":")
    if not colon or not user or not password or len(password) > PASSWORD_CHARACTERS_MAX:
        return None
    return user, password


class Passwords:
    """Finds the user of a request."""

    def __init__(self, users: UserFile) -> None:
        self.users = users
        self._remembered = RememberedLogins()
        # One at a time: guesses may cost a core, but no more, and 16 MiB.
        self._checking = asyncio.Semaphore(1)
        self._unknown = unknown_key()

    async def user_of(self, header: str | None) -> str:
        """Return the user.

        Args:
            header: the request's header Authorization; None: it has none.

        Raises:
            NotAuthenticated: there is no password, or it is wrong.
        """
        found = basic_credentials(header)
        if found is None:
            raise NotAuthenticated
        user, password = found
        key = self.users.table.users.get(user)
        checked = key or self._unknown
        digest = self._remembered.digest(checked.key, user, password)
        if self._remembered.has(digest):
            return user
        async with self._checking:
            # Also for an unknown user, so that the time does not show whether there is one.
            fits = await asyncio.to_thread(checked.fits, password)
        if not fits or key is None:
            raise NotAuthenticated
        self._remembered.add(digest)
        return user


def passwords_of(access: HttpAccess, clock: Clock) -> Passwords | None:
    """Return the users of a server; None: it has none.

    Raises:
        ConfigError: the file of users can't be read, or is malformed.
    """
    return Passwords(UserFile(access.users_file, clock)) if access.users_file else None


class PasswordGuard:
    """An ASGI application behind a login."""

    def __init__(
        self,
        app: ASGIApp,
        passwords: Passwords,
        *,
        is_open: Callable[[str], bool],
    ) -> None:
        """Put a login before an application.

        Args:
            app: answers those that have logged in.
            passwords: the users.
            is_open: whether a path needs no login, or has another one.
        """
        self._app, self._passwords, self._is_open = app, passwords, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
            try:
                user = await self._passwords.user_of(found[0].decode("latin-1") if found else None)
            except NotAuthenticated:
                await _refuse(send)
                return
            scope = {**scope, USER: user}
        await self._app(scope, receive, send)


async def _refuse(send: Send) -> None:
    body = msgspec.json.encode({"error": NO_LOGIN}) + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        CHALLENGE,
    ]
    await send({"type": "http.response.start", "status": UNAUTHORIZED, "headers": headers})
    await send({"type": "http.response.body", "body": body})
