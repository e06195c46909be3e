"""Authentication: where one connection stands between its first byte and who it is.

    HANDSHAKE ── SaslHandshake 0 ──→ BARE ──────── accepted ──→ OPEN
        └─────── SaslHandshake 1 ──→ EXCHANGE ──── accepted ──→ OPEN
    OPEN, with a session that ends ── SaslHandshake 1 ──→ EXCHANGE   (KIP-368)
    anything else, or a refusal ──→ OVER: what is answered is the last

ApiVersions is answered in every state but BARE, in which a frame is a message of the mechanism
without a header. Who is asked to prove again has to prove to be the same, by the same mechanism.
Rule of the file: it decides and answers; waiting, hanging up and time are the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from streamlog.broker.security.mechanisms import (
    Accepted,
    AuthenticationRefused,
    Challenge,
    Checking,
    Mechanism,
    Step,
)
from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

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
