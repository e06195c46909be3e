"""Authentication: the states of a connection before it has a principal, and the SASL mechanisms.

    HANDSHAKE ── SaslHandshake 0 ──→ BARE ──────── accepted ──→ OPEN
        └─────── SaslHandshake 1 ──→ EXCHANGE ──── accepted ──→ OPEN
    OPEN, with a session that ends ── SaslHandshake 1 ──→ EXCHANGE   (KIP-368)
    anything else, or a refusal ──→ OVER: the answer is the last one

ApiVersions is answered in every state except BARE, in which a frame is a message of the mechanism
without a header. Reauthentication must prove the same principal by the same mechanism.

A mechanism, PLAIN, SCRAM or OAUTHBEARER, is made for one exchange and stepped with the client's
messages: a step is a challenge, an acceptance, a refusal, or work that is slow enough to need a
thread. A refusal tells the client no more than Kafka's does, the same for a wrong password as for
an unknown user, and no step leaves a secret in the log. RFC 4616, RFC 5802, RFC 7628. Rule of the
file: it decides and answers; waiting, closing and the clock are the server's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

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
"""Hashing takes time, and more for more."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is this user."""

    user: str
    data: bytes = b""
    expires_ms: int | None = None
    """When what was proven ends, by the wall clock."""


@dataclass(frozen=True, slots=True)
class AuthenticationRefused:
    """The client is not let in."""

    message: str
    """What it is told."""
    reason: str
    """What the log is told."""


@dataclass(frozen=True, slots=True)
class Checking:
    """`check` finds out; it takes milliseconds and touches nothing else."""

    check: Callable[[], Accepted | AuthenticationRefused]


Step: TypeAlias = Challenge | Accepted | AuthenticationRefused | Checking


class Mechanism(Protocol):
    """One exchange."""

    def step(self, data: bytes, wall_ms: int) -> Step:
        """Take the client's message."""
        ...


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token is about, and until when."""

    user: str
    expires_ms: int


class TokenRefusal(Exception):
    """A token is not taken; the text says why and shows nothing of it."""


Tokens: TypeAlias = Callable[[str, int], Bearer]
"""Reads a token at a time of the wall clock; raises TokenRefusal."""


class Plain:
    """A name and a password, in one message."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def step(self, data: bytes, wall_ms: int) -> Step:  # noqa: ARG002 - a password does not end
        """See `Mechanism`."""
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or not parts[1] or not parts[2]:  # noqa: PLR2004 - RFC 4616
            return _refused_password("a PLAIN message that can't be read")
        identity, user, password = parts
        if identity not in ("", user):
            return _refused_password(f"user {user!r} asks to act as another")
        if len(password) > PASSWORD_CHARACTERS_MAX:
            return _refused_password(f"user {user!r} sends a password that is too long")
        credential, is_real = self._users.password_credential(user)

        def check() -> Accepted | AuthenticationRefused:
            if credential.fits(password) and is_real:
                return Accepted(user)
            return _refused_password(f"a wrong user or password; the user is {user!r}")

        return Checking(check)


def _refused_password(reason: str) -> AuthenticationRefused:
    return AuthenticationRefused("Authentication failed: Invalid username or password", reason)


class Scram:
    """A proof of the password, in two messages."""

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
            return self._refused("a message that can't be read")
        fields = attributes(bare.encode())
        user = unescape(fields.get("n", ""))
        client_nonce = fields.get("r", "")
        # A client that could bind to the channel ("y") is told by our mechanisms that we can't.
        is_sound = binding in ("n", "y") and bare.startswith("n=") and client_nonce
        if not is_sound or not user or "m" in fields or identity not in ("", f"a={fields['n']}"):
            return self._refused("a message that asks for what there is not")
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
        # librdkafka before 2.6.1 puts its own nonce before ours once more. It is part of what is
        # signed, and the end is what makes the proof good for this exchange alone: as in Kafka.
        is_ours = fields.get("r", "").endswith(self._nonce)
        if not comma or not is_ours or decode_base64(fields.get("c", "")) != self._header.encode():
            return self._refused(f"a message that does not belong to the first; {self._user!r}")
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
    """A token that somebody else has signed."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refusal: AuthenticationRefused | None = None

    def step(self, data: bytes, wall_ms: int) -> Step:
        """See `Mechanism`."""
        if self._refusal is not None:
            return self._refusal  # The client has read the reason and said so.
        token = _token(data)
        if token is None:
            return AuthenticationRefused(
                "Authentication failed: the OAUTHBEARER message can't be read",
                "an OAUTHBEARER message that can't be read",
            )
        try:
            bearer = self._tokens(token, wall_ms)
        except TokenRefusal as refusal:
            status = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
            self._refusal = AuthenticationRefused(status, f"a token that is not taken: {refusal}")
            return Challenge(status.encode())
        return Accepted(bearer.user, expires_ms=bearer.expires_ms)


def _token(data: bytes) -> str | None:
    """The token in a client's first message (RFC 7628, 3.1)."""
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
"""After this version of SaslHandshake the mechanism's messages come without headers."""

Mechanisms = Mapping[str, Callable[[], Mechanism]]
"""What is offered, by name, each to begin an exchange with."""


class AuthenticationStage(Enum):
    """Where the connection stands."""

    HANDSHAKE = auto()
    EXCHANGE = auto()
    BARE = auto()
    OPEN = auto()
    OVER = auto()


class Authentication:
    """One connection."""

    def __init__(self, mechanisms: Mechanisms, *, session_ms_max: int) -> None:
        """`session_ms_max` is after how long everybody has to prove again; 0: never."""
        self.stage = AuthenticationStage.HANDSHAKE
        self.principal = ANONYMOUS
        """Who it is, once it is `OPEN` for the first time."""
        self.reason = ""
        """Why it is over, for the log."""
        self.expires_ms: int | None = None
        """When the session ends, by the wall clock."""
        self._mechanisms = mechanisms
        self._session_ms_max = session_ms_max
        self._name = ""
        self._mechanism: Mechanism | None = None

    def is_served(self, wall_ms: int) -> bool:
        """Whether requests other than those of SASL and ApiVersions are answered."""
        is_current = self.expires_ms is None or wall_ms < self.expires_ms
        return self.stage is AuthenticationStage.OPEN and is_current

    def end(self, reason: str) -> None:
        """Nothing more is answered."""
        self.stage, self.reason = AuthenticationStage.OVER, reason

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """The client has chosen a mechanism."""
        offered = list(self._mechanisms)
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
            self.end(f"mechanism {mechanism!r:.40} is not offered, but {', '.join(offered)}")
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered
            )
        if self._name and mechanism != self._name:
            self.end(f"{self.principal} came by {self._name} and wants to stay by {mechanism}")
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
        """A message of the mechanism; what `Checking` has found goes to `settle`."""
        if self._mechanism is None or self.stage not in (
            AuthenticationStage.EXCHANGE,
            AuthenticationStage.BARE,
        ):
            if self.stage is not AuthenticationStage.OPEN:
                self.end("SaslAuthenticate without a SaslHandshake before it")
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received without a SaslHandshake before it",
            )
        step = self._mechanism.step(data, wall_ms)
        return step if isinstance(step, Checking) else self.settle(step, wall_ms)

    def settle(self, step: Step, wall_ms: int) -> SaslAuthenticateResponse:
        """The answer to the message that has come to this."""
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
        if self.principal not in (ANONYMOUS, principal):
            return self._refuse(
                f"Cannot change principals during re-authentication from {self.principal} to"
                f" {principal}",
                f"{self.principal} has proven to be {principal}",
            )
        self.principal = principal
        self._mechanism = None
        self.stage = AuthenticationStage.OPEN
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
