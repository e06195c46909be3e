"""SCRAM: how a password is proven without being sent or kept (RFC 5802, RFC 7677).

Both sides' arithmetic, and the client's side of the exchange. What a server keeps of a password
are a salt, a count of iterations and two keys, from which neither the password nor the client's
proof can be made. Kafka's dialect: names and passwords are UTF-8 as they are, without SASLprep,
and there is no channel binding. Nonces and salts are given: nothing here draws chance.
Rule of the file: nothing that is secret shows in a `repr` or in the text of an error.
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
"""RFC 7677's; who offers less is not talked to."""
ITERATIONS_MAX: Final = 1_000_000
"""A server that asks for more wants a client's processor, not its proof."""
ITERATIONS_DEFAULT: Final = 8192
SALT_BYTES: Final = 32
HEADER: Final = "n,,"
"""No channel binding, no other identity."""


class ScramMechanism(IntEnum):
    """The mechanisms, by Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """As in SaslHandshake."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash function."""
        return f"sha{self.name[-3:]}"

    def hashed(self, data: bytes) -> bytes:
        """RFC 5802's H."""
        return hashlib.new(self.digest, data).digest()

    def signed(self, key: bytes, data: bytes) -> bytes:
        """RFC 5802's HMAC."""
        return hmac.digest(key, data, self.digest)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """RFC 5802's Hi: slow on purpose."""
        return hashlib.pbkdf2_hmac(self.digest, password.encode(), salt, iterations)

    @classmethod
    def of(cls, sasl_name: str) -> Self | None:
        """The mechanism of a name; None if it is none of these."""
        return next((each for each in cls if each.sasl_name == sasl_name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server keeps of a password."""

    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted(
        cls, mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
    ) -> Self:
        """From what a client makes of a password."""
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
        """From the password itself."""
        salted = mechanism.salted_password(password, salt, iterations)
        return cls.of_salted(mechanism, salt, iterations, salted)

    def fits(self, password: str) -> bool:
        """Whether this is the password; as slow as proving it."""
        tried = ScramCredential.of(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(tried.stored_key, self.stored_key)

    def is_proven(self, proof: bytes, auth_message: bytes) -> bool:
        """Whether who has made the proof knows the password."""
        signature = self.mechanism.signed(self.stored_key, auth_message)
        if len(proof) != len(signature):
            return False
        return hmac.compare_digest(self.mechanism.hashed(xor(proof, signature)), self.stored_key)

    def server_signature(self, auth_message: bytes) -> bytes:
        """What proves to the client that the server knows the password's keys."""
        return self.mechanism.signed(self.server_key, auth_message)


class ScramClient:
    """A client's side of one exchange: three messages, made one after the other."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={escape(user)},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """Who wants in."""
        return (HEADER + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof, on what the server has asked.

        Raises:
            AuthenticationFailed: the server asks what a server would not.
        """
        fields = attributes(server_first)
        nonce, salt, iterations = (
            fields.get("r", ""),
            decode_base64(fields.get("s", "")),
            fields.get("i"),
        )
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("the broker's SCRAM nonce does not continue ours")
        if not salt or iterations is None or not iterations.isdecimal():
            raise AuthenticationFailed("the broker's SCRAM message can't be read")
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {int(iterations)} SCRAM iterations; it has to be from"
                f" {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        return self._proof(nonce, salt, int(iterations), server_first)

    def check(self, server_final: bytes) -> None:
        """See that the server knows the password's keys.

        Raises:
            AuthenticationFailed: it does not: it is somebody else.
        """
        signature = decode_base64(attributes(server_final).get("v", ""))
        if not hmac.compare_digest(signature, self._expected):
            raise AuthenticationFailed(
                "the broker does not know this user's password: it is not the one it claims to be"
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
    """The parts of a message by their letters; of what can't be read, nothing."""
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError:
        return {}
    pairs = (part.partition("=") for part in parts)
    return {name: value for name, equals, value in pairs if equals}


def escape(user: str) -> str:
    """A name as it stands in a message."""
    return user.replace("=", "=3D").replace(",", "=2C")


def unescape(name: str) -> str | None:
    """The name that is meant; None if it is not well-formed."""
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        return None
    return name.replace("=2C", ",").replace("=3D", "=")


def encode_base64(data: bytes) -> str:
    """Bytes in a message."""
    return base64.b64encode(data).decode()


def decode_base64(text: str) -> bytes:
    """The bytes that are meant; none if it is not well-formed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def xor(left: bytes, right: bytes) -> bytes:
    """Two strings of the same length, bit by bit."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
