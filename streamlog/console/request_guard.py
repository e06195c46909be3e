"""RequestGuard: which requests may change something, and the headers of every answer.

A change must come from a page of this console, in the browser of an operator: its Origin is this
server's, the browser says that the request is from this site, and it carries a token that only
pages of this process have, for this user. Rules of the module: no I/O, and what is not certain is
refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

LOCAL_USER: Final = "local"
"""The user of a console without users, which this machine alone reaches."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Sent with every answer of the console."""
READING: Final = frozenset({"GET", "HEAD"})


class Visitor(msgspec.Struct, frozen=True):
    """The user of a request."""

    user: str
    is_operator: bool
    """Whether the user may change something."""


class RequestGuard:
    """Decides about requests of one server."""

    def __init__(self, secret: bytes, operators: Collection[str] | None) -> None:
        """Begin to decide.

        Args:
            secret: random bytes of this process.
            operators: the users that may change something; None: the server has no users,
                and everyone who reaches it may.
        """
        self._secret, self._operators = secret, operators

    def visitor(self, user: str | None) -> Visitor:
        """Return the user of a request; `user` is the name that has logged in."""
        if self._operators is None:
            return Visitor(user or LOCAL_USER, is_operator=True)
        # Without a name, a server with users has a fault: then nothing may be changed.
        return Visitor(user or "", is_operator=user is not None and user in self._operators)

    def token(self, visitor: Visitor) -> str:
        """Return what proves that a form was made by this process for this user."""
        # Not stored anywhere: it can be computed again, and ends with the process.
        return hmac.new(self._secret, visitor.user.encode(), hashlib.sha256).hexdigest()

    def refusal(self, visitor: Visitor, headers: Mapping[str, str], form: Mapping[str, str]) -> str:
        """Return why a change is refused; empty if it is allowed.

        Args:
            visitor: the user.
            headers: the headers of the request, with names in lower case.
            form: the fields of the request's body.
        """
        if not visitor.is_operator:
            return "this user may read, but not make changes: ask an operator"
        # A page of another site can send a form here, and the browser adds the password to it. The
        # browser also tells where the form comes from, which that page can't prevent.
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "the request comes from another site"
        origin = headers.get("origin")
        # Without the scheme: a proxy that ends TLS passes the Host on, and the scheme not.
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            return "the request comes from another origin"
        # In constant time: the time of a refusal must not tell how much of a guess was right.
        if not hmac.compare_digest(form.get("token", "").encode(), self.token(visitor).encode()):
            return "the page comes from an earlier run of this process: load it again"
        return ""
