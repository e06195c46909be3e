"""A client's side of SASL: what it says to prove who it is, message by message.

Rule of the file: it makes and reads messages; sending them is the connection's. The nonce of a
proof is given. RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER).
"""

from __future__ import annotations

from typing import Protocol

from streamlog.errors import AuthenticationFailed
from streamlog.protocol.scram import ScramClient, ScramMechanism

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, *(each.sasl_name for each in ScramMechanism), OAUTHBEARER)


class Exchange(Protocol):
    """One proof."""

    def first(self) -> bytes:
        """What the client begins with."""
        ...

    def answer(self, data: bytes) -> bytes | None:
        """What it answers to the broker; None if that was the end.

        Raises:
            AuthenticationFailed: the broker is not who it claims to be, or has said no.
        """
        ...


class PlainExchange:
    """Name and password."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """See `Exchange`."""
        return self._message

    def answer(self, data: bytes) -> bytes | None:  # noqa: ARG002 - it says nothing
        """See `Exchange`."""
        return None


class ScramExchange:
    """A proof of the password, and of the broker that it knows it."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._client = ScramClient(mechanism, user, password, nonce=nonce)
        self._has_proven = False

    def first(self) -> bytes:
        """See `Exchange`."""
        return self._client.first()

    def answer(self, data: bytes) -> bytes | None:
        """See `Exchange`."""
        if not self._has_proven:
            self._has_proven = True
            return self._client.final(data)
        self._client.check(data)
        return None


class BearerExchange:
    """A token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        """See `Exchange`."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def answer(self, data: bytes) -> bytes | None:
        """See `Exchange`. A refusal has to be acknowledged before it is one."""
        return b"\x01" if data else None


def exchange_of(mechanism: str, user: str, secret: str, *, nonce: str) -> Exchange:
    """The exchange of a mechanism; the secret is the password, or the token.

    Raises:
        AuthenticationFailed: there is no such mechanism.
    """
    if mechanism == PLAIN:
        return PlainExchange(user, secret)
    if mechanism == OAUTHBEARER:
        return BearerExchange(secret)
    scram = ScramMechanism.of(mechanism)
    if scram is None:
        raise AuthenticationFailed(f"{mechanism!r} is none of {', '.join(MECHANISMS)}")
    return ScramExchange(scram, user, secret, nonce=nonce)
