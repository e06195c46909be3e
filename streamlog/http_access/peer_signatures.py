"""Peer signatures: a request of one worker to another, signed with a key that both have.

A signature covers method, path, time and body, so it is worth nothing for another request. Rules:
it is compared in constant time, and holds for a minute, so that one which was overheard is soon
worthless.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping, Sequence
from typing import Final

from streamlog.errors import StreamlogError

SKEW_MS: Final = 60_000
"""How much older or newer a signature may be than the reader's clock."""
ALGORITHM: Final = "HmacSHA256"
SIGNATURE_HEADER: Final = "x-connect-authorization"
"""The header of the signature, in base64; Kafka Connect's name (KIP-507)."""
ALGORITHM_HEADER: Final = "x-connect-request-signature-algorithm"
TIME_HEADER: Final = "x-connect-request-time"
"""Ours: milliseconds since 1970 at which the request was signed."""


class BadSignature(StreamlogError):
    """The signature of a request does not hold; the text says why."""


def signed_headers(
    key: bytes, method: str, target: str, body: bytes, *, wall_ms: int
) -> dict[str, str]:
    """Return the headers that sign a request."""
    time = str(wall_ms)
    return {
        SIGNATURE_HEADER: b64encode(_mac(key, (method, target, time), body)).decode(),
        ALGORITHM_HEADER: ALGORITHM,
        TIME_HEADER: time,
    }


def check_signature(
    keys: Sequence[bytes],
    request: tuple[str, str, bytes],
    headers: Mapping[str, str],
    *,
    wall_ms: int,
) -> None:
    """Check the signature of a request.

    Args:
        keys: the keys that count.
        request: its method, its path with its query as they came, and its body.
        headers: its headers, with their names in lower case.
        wall_ms: the time.

    Raises:
        BadSignature: it has none, or none that holds.
    """
    method, target, body = request
    time = headers.get(TIME_HEADER, "")
    if headers.get(ALGORITHM_HEADER) != ALGORITHM:
        raise BadSignature(f"A request between workers is signed by {ALGORITHM}")
    try:
        given = b64decode(headers.get(SIGNATURE_HEADER, ""), validate=True)
    except (NoBase64, ValueError):
        given = b""
    # All of them, so that the time tells nothing about which one it was.
    holds = [hmac.compare_digest(_mac(key, (method, target, time), body), given) for key in keys]
    if not any(holds):
        raise BadSignature("The signature of this request is of none of the group's session keys")
    if abs(wall_ms - int(time)) > SKEW_MS:
        raise BadSignature(
            f"The signature of this request is older or newer than {SKEW_MS // 1000} s:"
            " synchronise the clocks of the workers"
        )


def _mac(key: bytes, parts: tuple[str, ...], body: bytes) -> bytes:
    # Lengths first: a part that ends where the next begins must not pass for another request.
    head = "\n".join((*parts, str(len(body)))).encode()
    return hmac.digest(key, head + b"\n" + body, "sha256")
