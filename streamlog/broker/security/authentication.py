"""Authentication: the states of a connection before it has a principal, and the SASL mechanisms.

    HANDSHAKE ── SaslHandshake 0 ──→ BARE ──────── accepted ──→ OPEN
        └─────── SaslHandshake 1 ──→ EXCHANGE ──── accepted ──→ OPEN
        OPEN, with a session that expires ── SaslHandshake 1 ──→ EXCHANGE   (KIP-368)
        anything else, or a failure ──→ OVER: one last response, and the connection closes

ApiVersions is answered in every state except BARE, in which a frame is a message of the mechanism
without a header. A reauthentication must prove the same principal by the same mechanism.

A mechanism (PLAIN, SCRAM or OAUTHBEARER) is created for one exchange and gets the client's messages
step by step: a step is a challenge, an acceptance, a refusal, or slow work for a thread. A refusal
tells the client no more than Kafka's does, the same for a wrong password as for an unknown user,
and no secret is logged. RFC 4616, RFC 5802, RFC 7628. Rule of the file: it decides and answers; the
server waits, closes connections and has the clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol, TypeAlias

import msgspec

from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.broker.security.users import Users
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from streamlog.protocol.scram import (
    ScramCredential,
    ScramMechanism,
    attributes,
    decode_base64,
    encode_base64,
    unescape,
)

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SEPARATOR = "\x01"
PASSWORD_CHARACTERS_MAX = 1024
"""Longer passwords take longer to hash, so their length is limited."""


class Challenge(msgspec.Struct, frozen=True):
    """A message that the client has to answer."""

    data: bytes


class Accepted(msgspec.Struct, frozen=True):
    """The client has proven to be this user."""

    user: str
    data: bytes = b""
    expires_ms: int | None = None
    """When the proof expires, in wall time."""


class AuthenticationRefused(msgspec.Struct, frozen=True):
    """The authentication has failed."""

    message: str
    """The message for the client."""
    reason: str
    """The reason for the log."""


class Checking(msgspec.Struct, frozen=True):
    """Slow work: `check` takes milliseconds and touches no other state."""

    check: Callable[[], Accepted | AuthenticationRefused]


Step: TypeAlias = Challenge | Accepted | AuthenticationRefused | Checking


class Mechanism(Protocol):
    """One exchange of a SASL mechanism."""

    def step(self, data: bytes, wall_ms: int) -> Step:
        """Process a message of the client."""
        ...


class Bearer(msgspec.Struct, frozen=True):
    """The user of a token, and when the token expires."""

    user: str
    expires_ms: int


class TokenRefusal(Exception):
    """A token is not accepted; the text gives the reason and nothing of the token."""


Tokens: TypeAlias = Callable[[str, int], Bearer]
"""Validates a token at a wall time; raises TokenRefusal."""


class Plain:
    """User name and password in one message (RFC 4616)."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def step(self, data: bytes, wall_ms: int) -> Step:  # noqa: ARG002 - a password does not end
        """See `Mechanism`."""
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or not parts[1] or not parts[2]:  # noqa: PLR2004 - RFC 4616
            return _password_refusal("a malformed PLAIN message")
        identity, user, password = parts
        if identity not in ("", user):
            return _password_refusal(f"user {user!r} asks to act as another user")
        if len(password) > PASSWORD_CHARACTERS_MAX:
            return _password_refusal(f"user {user!r} sent a password that is too long")
        credential, is_real = self._users.password_credential(user)
        # An unknown user gets a made-up credential, and the same work is done for it: neither the
        # response nor its time shows whether the user exists.

        def check() -> Accepted | AuthenticationRefused:
            if credential.fits(password) and is_real:
                return Accepted(user)
            return _password_refusal(f"a wrong user or password; the user is {user!r}")

        return Checking(check)


def _password_refusal(reason: str) -> AuthenticationRefused:
    return AuthenticationRefused("Authentication failed: Invalid username or password", reason)


class Scram:
    """A proof of the password, in two messages (RFC 5802)."""

    def __init__(self, mechanism: ScramMechanism, users: Users, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._users = users
        self._nonce = nonce
        self._user = ""
        self._header = ""
        self._credential: ScramCredential | None = None
        self._is_real = False
        self._so_far = b""

    def step(self, data: bytes, wall_ms: int) -> Step:  # noqa: ARG002 - a password does not end
        """See `Mechanism`."""
        if self._credential is None:
            return self._first(data)
        return self._final(data, self._credential)

    def _first(self, data: bytes) -> Step:
        try:
            binding, identity, bare = data.decode().split(",", 2)
        except ValueError:
            return self._refused("a malformed message")
        fields = attributes(bare.encode())
        user = unescape(fields.get("n", ""))
        client_nonce = fields.get("r", "")
        # A client that supports channel binding ("y") sees from the offered mechanisms that this
        # broker does not.
        is_sound = binding in ("n", "y") and bare.startswith("n=") and client_nonce
        if not is_sound or not user or "m" in fields or identity not in ("", f"a={fields['n']}"):
            return self._refused("a message with unsupported attributes")
        self._user = user
        self._header = f"{binding},{identity},"
        self._nonce = client_nonce + self._nonce
        self._credential, self._is_real = self._users.credential(user, self._mechanism)
        salt, iterations = encode_base64(self._credential.salt), self._credential.iterations
        answer = f"r={self._nonce},s={salt},i={iterations}".encode()
        self._so_far = bare.encode() + b"," + answer
        return Challenge(answer)

    def _final(self, data: bytes, credential: ScramCredential) -> Step:
        without_proof, comma, proof = data.rpartition(b",p=")
        fields = attributes(without_proof)
        # librdkafka before 2.6.1 repeats its own nonce before the broker's. The whole nonce is
        # signed, and the broker's part at its end ties the proof to this exchange: as in Kafka.
        is_ours = fields.get("r", "").endswith(self._nonce)
        if not comma or not is_ours or decode_base64(fields.get("c", "")) != self._header.encode():
            return self._refused(
                f"a message that does not match the first one; the user is {self._user!r}"
            )
        auth_message = self._so_far + b"," + without_proof
        given = decode_base64(proof.decode(errors="replace"))
        if not credential.is_proven(given, auth_message) or not self._is_real:
            return self._refused(f"a wrong user or password; the user is {self._user!r}")
        signature = credential.server_signature(auth_message)
        return Accepted(self._user, f"v={encode_base64(signature)}".encode())

    def _refused(self, reason: str) -> AuthenticationRefused:
        name = self._mechanism.sasl_name
        return AuthenticationRefused(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {name}",
            reason,
        )


class OAuthBearer:
    """A token signed by an identity provider (RFC 7628)."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refusal: AuthenticationRefused | None = None

    def step(self, data: bytes, wall_ms: int) -> Step:
        """See `Mechanism`."""
        if self._refusal is not None:
            return self._refusal  # The client has acknowledged the error (RFC 7628, 3.2.3).
        token = _token(data)
        if token is None:
            return AuthenticationRefused(
                "Authentication failed: the OAUTHBEARER message is malformed",
                "a malformed OAUTHBEARER message",
            )
        try:
            bearer = self._tokens(token, wall_ms)
        except TokenRefusal as refusal:
            status = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
            self._refusal = AuthenticationRefused(status, f"a refused token: {refusal}")
            return Challenge(status.encode())
        return Accepted(bearer.user, expires_ms=bearer.expires_ms)


def _token(data: bytes) -> str | None:
    """Return the token in a client's first message (RFC 7628, 3.1)."""
    try:
        header, *pairs = data.decode().split(SEPARATOR)
    except UnicodeDecodeError:
        return None
    if not header.startswith(("n,", "y,")) or pairs[-2:] != ["", ""]:
        return None
    fields = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    scheme, _, token = fields.get("auth", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


BARE_VERSION = 0
"""After this version of SaslHandshake, the mechanism's messages have no headers."""

Mechanisms = Mapping[str, Callable[[], Mechanism]]
"""The enabled mechanisms by name; each call begins an exchange."""


class AuthenticationStage(Enum):
    """The state of a connection."""

    HANDSHAKE = auto()
    EXCHANGE = auto()
    BARE = auto()
    OPEN = auto()
    OVER = auto()


class Authentication:
    """The authentication of one connection."""

    def __init__(self, mechanisms: Mechanisms, *, session_ms_max: int) -> None:
        """`session_ms_max` is the time after which clients must authenticate again; 0: never."""
        self.stage = AuthenticationStage.HANDSHAKE
        self.principal = ANONYMOUS
        """The principal, once the stage was `OPEN` for the first time."""
        self.reason = ""
        """The reason for `OVER`, for the log."""
        self.expires_ms: int | None = None
        """When the session expires, in wall time."""
        self._mechanisms = mechanisms
        self._session_ms_max = session_ms_max
        self._name = ""
        self._mechanism: Mechanism | None = None

    def is_served(self, wall_ms: int) -> bool:
        """Whether requests other than those of SASL and ApiVersions are served."""
        is_current = self.expires_ms is None or wall_ms < self.expires_ms
        return self.stage is AuthenticationStage.OPEN and is_current

    def end(self, reason: str) -> None:
        """Stop answering."""
        self.stage, self.reason = AuthenticationStage.OVER, reason

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Process the client's choice of a mechanism."""
        offered = list(self._mechanisms)
        # A second handshake reauthenticates (KIP-368). It needs version 1: raw frames of version 0
        # could not be told from the requests that are still in flight.
        may_begin = self.stage is AuthenticationStage.HANDSHAKE or (
            self.stage is AuthenticationStage.OPEN
            and self.expires_ms is not None
            and version != BARE_VERSION
        )
        if not may_begin:
            if self.stage is not AuthenticationStage.OPEN:
                self.end("SaslHandshake in the middle of an exchange")
            return SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered
            )
        if mechanism not in self._mechanisms:
            self.end(
                f"mechanism {mechanism!r:.40} is not enabled; enabled are {', '.join(offered)}"
            )
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered
            )
        if self._name and mechanism != self._name:
            self.end(
                f"{self.principal} authenticated by {self._name} and reauthenticates by {mechanism}"
            )
            return SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered
            )
        self._name = mechanism
        self._mechanism = self._mechanisms[mechanism]()
        self.stage = (
            AuthenticationStage.BARE if version == BARE_VERSION else AuthenticationStage.EXCHANGE
        )
        return SaslHandshakeResponse(mechanisms=offered)

    def authenticate(self, data: bytes, wall_ms: int) -> SaslAuthenticateResponse | Checking:
        """Process a message of the mechanism; pass the result of `Checking` to `settle`."""
        if self._mechanism is None or self.stage not in (
            AuthenticationStage.EXCHANGE,
            AuthenticationStage.BARE,
        ):
            if self.stage is not AuthenticationStage.OPEN:
                self.end("SaslAuthenticate without a preceding SaslHandshake")
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received without a SaslHandshake before it",
            )
        step = self._mechanism.step(data, wall_ms)
        return step if isinstance(step, Checking) else self.settle(step, wall_ms)

    def settle(self, step: Step, wall_ms: int) -> SaslAuthenticateResponse:
        """Return the response to the message that led to this step."""
        match step:
            case Challenge():
                return SaslAuthenticateResponse(error_message=None, auth_bytes=step.data)
            case Accepted():
                return self._accept(step, wall_ms)
            case AuthenticationRefused():
                return self._refuse(step.message, step.reason)
            case Checking():
                return self.settle(step.check(), wall_ms)

    def _accept(self, step: Accepted, wall_ms: int) -> SaslAuthenticateResponse:
        principal = of_user(step.user)
        # KIP-368: requests in flight were authorized for the first principal, so it must not
        # change.
        if self.principal not in (ANONYMOUS, principal):
            return self._refuse(
                f"Cannot change principals during re-authentication from {self.principal} to"
                f" {principal}",
                f"{self.principal} reauthenticated as {principal}",
            )
        self.principal = principal
        self._mechanism = None
        self.stage = AuthenticationStage.OPEN
        # The session ends with the token, or after `connections.max.reauth.ms`, whichever is
        # earlier.
        ends = [] if step.expires_ms is None else [step.expires_ms]
        if self._session_ms_max:
            ends.append(wall_ms + self._session_ms_max)
        self.expires_ms = min(ends, default=None)
        lifetime_ms = 0 if self.expires_ms is None else max(self.expires_ms - wall_ms, 1)
        return SaslAuthenticateResponse(
            error_message=None, auth_bytes=step.data, session_lifetime_ms=lifetime_ms
        )

    def _refuse(self, message: str, reason: str) -> SaslAuthenticateResponse:
        self.end(f"{self._name}: {reason}")
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
        )
