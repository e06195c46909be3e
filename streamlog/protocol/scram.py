"""SCRAM: proves a password without sending or storing it (RFC 5802, RFC 7677, KIP-84).

This module has the computations of both sides, and the client's side of the exchange. A server
stores a salt, an iteration count and two keys, from which neither the password nor the client's
proof can be computed. As in Kafka, names and passwords are plain UTF-8 without SASLprep, and there
is no channel binding. Callers pass nonces and salts: nothing here is random. Rule of the file: no
secret appears in a `repr` or in the text of an error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

from streamlog.errors import AuthenticationFailed

ITERATIONS_MIN: Final = 4096
"""RFC 7677's minimum; the client refuses a server that asks for less."""
ITERATIONS_MAX: Final = 1_000_000
"""The client refuses a server that asks for more, which would only cost it CPU time."""
ITERATIONS_DEFAULT: Final = 8192
SALT_BYTES: Final = 32
HEADER: Final = "n,,"
"""The GS2 header: no channel binding, no authorization identity."""


class ScramMechanism(IntEnum):
    """The SCRAM mechanisms, with Kafka's numbers (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The mechanism's name in SaslHandshake."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of the hash function."""
        return f"sha{self.name[-3:]}"

    def hashed(self, data: bytes) -> bytes:
        """Return RFC 5802's H(data)."""
        return hashlib.new(self.digest, data).digest()

    def signed(self, key: bytes, data: bytes) -> bytes:
        """Return RFC 5802's HMAC(key, data)."""
        return hmac.digest(key, data, self.digest)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return RFC 5802's Hi(password), which is slow on purpose."""
        return hashlib.pbkdf2_hmac(self.digest, password.encode(), salt, iterations)

    @classmethod
    def of(cls, sasl_name: str) -> Self | None:
        """Return the mechanism of a SASL name; None if it is not a SCRAM mechanism."""
        return next((each for each in cls if each.sasl_name == sasl_name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server stores of a password: salt, iterations and two keys."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted(
        cls, mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
    ) -> Self:
        """Make a credential from a salted password, which clients compute."""
        client_key = mechanism.signed(salted_password, b"Client Key")
        return cls(
            mechanism=mechanism,
            salt=salt,
            iterations=iterations,
            stored_key=mechanism.hashed(client_key),
            server_key=mechanism.signed(salted_password, b"Server Key"),
        )

    @classmethod
    def of(cls, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> Self:
        """Make a credential from a password."""
        salted = mechanism.salted_password(password, salt, iterations)
        return cls.of_salted(mechanism, salt, iterations, salted)

    def fits(self, password: str) -> bool:
        """Whether a password is the credential's, for PLAIN; slow on purpose."""
        tried = ScramCredential.of(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(tried.stored_key, self.stored_key)

    def is_proven(self, proof: bytes, auth_message: bytes) -> bool:
        """Whether a client's proof was computed with the password."""
        signature = self.mechanism.signed(self.stored_key, auth_message)
        if len(proof) != len(signature):
            return False
        # The proof is the client key xor the signature; the server stores only the key's hash
        # (RFC 5802, section 3).
        return hmac.compare_digest(self.mechanism.hashed(xor(proof, signature)), self.stored_key)

    def server_signature(self, auth_message: bytes) -> bytes:
        """Return the proof, for the client, that the server knows the password's keys."""
        return self.mechanism.signed(self.server_key, auth_message)


class ScramClient:
    """The client's side of one exchange: call `first`, `final` and `check` in this order."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={escape(user)},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """Return the client's first message: the user and the nonce."""
        return (HEADER + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message, with the proof.

        Raises:
            AuthenticationFailed: the server's message is malformed, or its nonce or number of
                iterations is not acceptable.
        """
        fields = attributes(server_first)
        nonce, salt, iterations = (
            fields.get("r", ""),
            decode_base64(fields.get("s", "")),
            fields.get("i"),
        )
        # RFC 5802, section 5.1: the server extends the client's nonce, so that neither side accepts
        # a recorded exchange.
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("the broker's SCRAM nonce does not extend the client's")
        if not salt or iterations is None or not iterations.isdecimal():
            raise AuthenticationFailed("the broker's SCRAM message can't be read")
        # With few iterations, a false server could guess the password from the proof.
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {int(iterations)} SCRAM iterations; the number has to be from"
                f" {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        return self._proof(nonce, salt, int(iterations), server_first)

    def check(self, server_final: bytes) -> None:
        """Check the server's proof that it knows the password's keys.

        Raises:
            AuthenticationFailed: the proof is wrong, so the server is not the one that it claims
                to be, or the server reports an error.
        """
        signature = decode_base64(attributes(server_final).get("v", ""))
        if not hmac.compare_digest(signature, self._expected):
            raise AuthenticationFailed(
                "the broker's SCRAM signature is wrong: it does not know this user's password, so"
                " it is not the broker that it claims to be"
            )

    def _proof(self, nonce: str, salt: bytes, iterations: int, server_first: bytes) -> bytes:
        mechanism = self._mechanism
        without_proof = f"c={encode_base64(HEADER.encode())},r={nonce}"
        auth_message = b",".join((self._first_bare.encode(), server_first, without_proof.encode()))
        salted = mechanism.salted_password(self._password, salt, iterations)
        client_key = mechanism.signed(salted, b"Client Key")
        signature = mechanism.signed(mechanism.hashed(client_key), auth_message)
        server_key = mechanism.signed(salted, b"Server Key")
        self._expected = mechanism.signed(server_key, auth_message)
        return f"{without_proof},p={encode_base64(xor(client_key, signature))}".encode()


def attributes(message: bytes) -> dict[str, str]:
    """Return the attributes of a message by their letters; empty if it is malformed."""
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError:
        return {}
    pairs = (part.partition("=") for part in parts)
    return {name: value for name, equals, value in pairs if equals}


def escape(user: str) -> str:
    """Return a user name in the escaped form of a message."""
    # "=" first, or the "=" of an escaped comma would be escaped again.
    return user.replace("=", "=3D").replace(",", "=2C")


def unescape(name: str) -> str | None:
    """Return the user name of an escaped form; None if it is malformed."""
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        return None
    # "=3D" last: otherwise "=3D2C", an escaped "=2C", would become a comma.
    return name.replace("=2C", ",").replace("=3D", "=")


def encode_base64(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 text; empty if it is malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def xor(left: bytes, right: bytes) -> bytes:
    """Return the bitwise exclusive or of two byte strings of equal length."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
