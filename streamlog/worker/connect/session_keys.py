"""Session keys: how the workers of a service prove to each other who they are (KIP-507).

The leader writes a key into the configs topic and renews it now and then: all that can read the
topic count as workers of the group. A request of one worker to another carries an HMAC of its
method, path, body and time under that key, and needs no password then.

Rule: signatures are compared in constant time, and hold for a minute, so that one which was
overheard is soon worthless. The key before the newest holds as well: a worker may not have read
the newest one yet.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping
from secrets import token_bytes
from typing import Final

from streamlog.clock import Clock
from streamlog.connect.herding.configs import ConfigRecord, SessionKey, session_key_record
from streamlog.connect.herding.herder_requests import CONFLICT, ConnectRefusal

KEY_TTL_MS: Final = 3_600_000
"""How long a key is used for signatures, by default (`inter.worker.key.ttl.ms`)."""
SKEW_MS: Final = 60_000
"""How much older or newer a signature may be than the reader's clock."""
ALGORITHM: Final = "HmacSHA256"
KEY_BYTES: Final = 32
AUTHORIZATION: Final = "x-connect-authorization"
"""The header of the signature, in base64."""
ALGORITHM_HEADER: Final = "x-connect-request-signature-algorithm"
TIME_HEADER: Final = "x-connect-request-time"
"""Ours: milliseconds since 1970 at which the request was signed."""
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
        time = str(self._clock.wall_ms())
        return {
            AUTHORIZATION: b64encode(_mac(self._newest, method, target, time, body)).decode(),
            ALGORITHM_HEADER: ALGORITHM,
            TIME_HEADER: time,
        }

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
        signature = headers.get(AUTHORIZATION)
        if signature is None:
            return False
        time = headers.get(TIME_HEADER, "")
        if headers.get(ALGORITHM_HEADER) != ALGORITHM:
            raise ConnectRefusal(FORBIDDEN, f"A request between workers is signed by {ALGORITHM}")
        try:
            given = b64decode(signature, validate=True)
        except (NoBase64, ValueError):
            given = b""
        known = [each for each in (self._newest, self._before) if each is not None]
        # All of them, so that the time tells nothing about which one it was.
        holds = [hmac.compare_digest(_mac(k, method, target, time, body), given) for k in known]
        if not any(holds):
            raise ConnectRefusal(
                FORBIDDEN, "The signature of this request is of none of the group's session keys"
            )
        if abs(self._clock.wall_ms() - int(time)) > SKEW_MS:
            raise ConnectRefusal(
                FORBIDDEN,
                f"The signature of this request is older or newer than {SKEW_MS // 1000} s:"
                " synchronise the clocks of the workers",
            )
        return True


def _mac(key: SessionKey, method: str, target: str, time: str, body: bytes) -> bytes:
    try:
        secret = b64decode(key.key)
    except (NoBase64, ValueError):
        secret = b""
    # Lengths first: a part that ends where the next begins must not pass for another request.
    head = "\n".join((method, target, time, str(len(body)))).encode()
    return hmac.digest(secret, head + b"\n" + body, "sha256")
