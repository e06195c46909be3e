"""Session keys: how the workers of a service prove to each other who they are (KIP-507).

The leader writes a key into the configs topic and renews it now and then: all that can read the
topic count as workers of the group. A request of one worker to another carries an HMAC of its
method, path, body and time under that key, and needs no password then.

Rule: signatures are compared in constant time, and hold for a minute, so that one which was
overheard is soon worthless. The key before the newest holds as well: a worker may not have read
the newest one yet.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping
from secrets import token_bytes
from typing import Final

from streamlog.clock import Clock
from streamlog.connect.herding.configs import ConfigRecord, SessionKey, session_key_record
from streamlog.connect.herding.herder_requests import CONFLICT, ConnectRefusal
from streamlog.http_access.peer_signatures import (
    ALGORITHM,
    SIGNATURE_HEADER,
    SKEW_MS,
    BadSignature,
    check_signature,
    signed_headers,
)

KEY_TTL_MS: Final = 3_600_000
"""How long a key is used for signatures, by default (`inter.worker.key.ttl.ms`)."""
KEY_BYTES: Final = 32
FORBIDDEN: Final = 403


class SessionKeys:
    """The newest key and the one before, as the configs topic has them."""

    def __init__(self, clock: Clock, *, ttl_ms: int = KEY_TTL_MS) -> None:
        self._clock, self._ttl_ms = clock, ttl_ms
        self._newest: SessionKey | None = None
        self._before: SessionKey | None = None
        self._renewed_ms: int | None = None

    def follow(self, key: SessionKey | None) -> None:
        """Take the key that the topic has now."""
        if key is not None and key != self._newest:
            self._newest, self._before = key, self._newest

    def renewal(self, key: SessionKey | None) -> ConfigRecord | None:
        """Return the record of a new key, for the leader to write; None if none is due.

        Args:
            key: the key that the topic has.
        """
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.now_ms()
        # A key from the future belongs to a clock that was wrong: it would never be renewed.
        if key is not None and 0 <= wall_ms - key.creation_timestamp < self._ttl_ms:
            return None
        # What was written takes a moment until it is read back.
        if self._renewed_ms is not None and now_ms - self._renewed_ms < min(SKEW_MS, self._ttl_ms):
            return None
        self._renewed_ms = now_ms
        made = b64encode(token_bytes(KEY_BYTES)).decode()
        return session_key_record(SessionKey(made, ALGORITHM, wall_ms))

    @property
    def is_known(self) -> bool:
        """Whether there is a key."""
        return self._newest is not None

    def sign(self, method: str, target: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a request.

        Raises:
            ConnectRefusal: 409, there is no key yet.
        """
        if self._newest is None:
            raise ConnectRefusal(CONFLICT, "The group has no session key yet; try again")
        return signed_headers(
            _secret(self._newest), method, target, body, wall_ms=self._clock.wall_ms()
        )

    def check(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether another worker has signed a request; false if it carries no signature.

        Args:
            method: its method.
            target: its path with its query, as they came.
            headers: its headers, with their names in lower case.
            body: its body.

        Raises:
            ConnectRefusal: 403, its signature does not hold.
        """
        if SIGNATURE_HEADER not in headers:
            return False
        # A record of the topic that holds no key would be one that everyone knows.
        both = [_secret(each) for each in (self._newest, self._before) if each is not None]
        known = [each for each in both if each]
        try:
            check_signature(known, (method, target, body), headers, wall_ms=self._clock.wall_ms())
        except BadSignature as error:
            raise ConnectRefusal(FORBIDDEN, str(error)) from None
        return True


def _secret(key: SessionKey) -> bytes:
    try:
        return b64decode(key.key)
    except (NoBase64, ValueError):
        return b""
