"""SaslHandshake: authenticates a connection before it may send other requests.

It passes SASL requests to `Authentication`, lets other requests pass once the connection is
authenticated, and does the slow parts: it hashes passwords in a thread, and delays a refusal so
that guessing is slow. Meanwhile nothing more is read from the connection.
A connection that has not authenticated after `TIMEOUT_MS` is closed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamlog.broker.security.authentication import (
    OAUTHBEARER,
    PLAIN,
    Accepted,
    Authentication,
    AuthenticationRefused,
    AuthenticationStage,
    Checking,
    Mechanism,
    OAuthBearer,
    Plain,
    Scram,
    Tokens,
)
from streamlog.broker.security.users import Users
from streamlog.broker.server.connections import AuthenticationEvent
from streamlog.errors import AuthenticationFailed
from streamlog.protocol.api_table import API_VERSIONS_KEY, api_of
from streamlog.protocol.frame import Request, decode_request
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from streamlog.protocol.schema import Buffer, Message, Piece
from streamlog.protocol.scram import ScramMechanism

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig
    from streamlog.clock import Clock

TIMEOUT_MS = 30_000
NONCE_BYTES = 24
NO_HEADER = -1
"""The version of a mechanism's message that came without a request header."""
_SIZE_BYTES = 4


class SaslHandshake:
    """The SASL handshake of one connection, between `open` and `close`."""

    def __init__(
        self,
        config: SecurityConfig,
        *,
        users: Callable[[], Users],
        tokens: Tokens | None,
        clock: Clock,
        tell: Callable[[AuthenticationEvent], None] = lambda _: None,
    ) -> None:
        """`tell` is called with what has come of each attempt to authenticate."""
        self.is_busy = False
        """Whether an answer is in preparation; the connection reads nothing until it is there."""
        self._config = config
        self._users = users
        self._tokens = tokens
        self._clock = clock
        self._tell = tell
        makers = {name: self._maker(name) for name in config.sasl_mechanisms.split(",")}
        self._authentication = Authentication(
            makers, session_ms_max=config.connections_max_reauth_ms
        )
        self._is_bare = False
        self._on_open: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, *, on_open: Callable[[], None], on_timeout: Callable[[], None]) -> None:
        """Wait for the client to authenticate: call `on_open` then, or `on_timeout`."""
        self._on_open = on_open
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TIMEOUT_MS / 1000, on_timeout)

    @property
    def principal(self) -> str:
        """The authenticated principal; ANONYMOUS before."""
        return self._authentication.principal

    @property
    def is_over(self) -> bool:
        """Whether the connection ends after the answer that was given last."""
        return self._authentication.stage is AuthenticationStage.OVER and not self.is_busy

    @property
    def reason(self) -> str:
        """The reason for which authentication ended the connection, for the log."""
        return self._authentication.reason

    def close(self) -> None:
        """Stop the timeout of a closed connection."""
        if self._timer is not None:
            self._timer.cancel()

    def decode(self, frame: Buffer) -> Request:
        """Read a frame: a request, or a message of the mechanism alone.

        Raises:
            UnsupportedVersion, CorruptData: see `decode_request`.
        """
        # Kept for the response: the stage is another one by then.
        self._is_bare = self._authentication.stage is AuthenticationStage.BARE
        if not self._is_bare:
            return decode_request(frame)
        message = SaslAuthenticateRequest(auth_bytes=bytes(frame))
        return Request(api_of(SaslAuthenticateRequest), NO_HEADER, 0, None, message)

    def answer(self, request: Request) -> Message | asyncio.Future[Message] | None:
        """Answer a SASL request; return None for another request that the broker may answer.

        Raises:
            AuthenticationFailed: the client is not authenticated, or its session has expired
                (KIP-368): the connection has to be closed without an answer.
        """
        message = request.message
        if isinstance(message, SaslHandshakeRequest):
            return self._respond(self._authentication.handshake(message.mechanism, request.version))
        if isinstance(message, SaslAuthenticateRequest):
            data, wall_ms = bytes(message.auth_bytes), self._clock.wall_ms()
            result = self._authentication.authenticate(data, wall_ms)
            return self._check(result) if isinstance(result, Checking) else self._respond(result)
        if request.api.key == API_VERSIONS_KEY:
            return None
        if not self.is_served():
            name = request.api.name
            if self._authentication.stage is not AuthenticationStage.OPEN:
                self._tell(AuthenticationEvent.FAILED)
            if self._authentication.stage is AuthenticationStage.OPEN:
                raise AuthenticationFailed(
                    f"{name} request after the session expired: the client must authenticate again"
                )
            raise AuthenticationFailed(
                f"{name} request before authentication: this listener requires SASL"
            )
        return None

    def is_served(self) -> bool:
        """Return whether the client is authenticated and its session has not expired (KIP-368)."""
        return self._authentication.is_served(self._clock.wall_ms())

    def _check(self, checking: Checking) -> asyncio.Future[Message]:
        """Check a password in a thread, because hashing takes milliseconds."""
        loop = asyncio.get_running_loop()
        self.is_busy = True
        answer: asyncio.Future[Message] = loop.create_future()

        def settle(check: asyncio.Future[Accepted | AuthenticationRefused]) -> None:
            if not answer.done() and not check.cancelled():
                wall_ms = self._clock.wall_ms()
                response = self._authentication.settle(check.result(), wall_ms)
                self._tell_outcome(response)
                self._deliver(answer, response)

        loop.run_in_executor(None, checking.check).add_done_callback(settle)
        return answer

    def _respond(self, response: Message) -> Message | asyncio.Future[Message]:
        self._tell_outcome(response)
        if self._authentication.stage is not AuthenticationStage.OVER:
            self._tell_open()
            return response
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._deliver(answer, response)
        return answer

    def _deliver(self, answer: asyncio.Future[Message], response: Message) -> None:
        """Give a response now, or a refusal after a delay that slows down guessing."""
        if self._authentication.stage is not AuthenticationStage.OVER:
            self._give(answer, response)
            return
        self.is_busy = True
        # Busy meanwhile, so that the client can't send further guesses on this connection.
        delay_s = self._config.failed_authentication_delay_ms / 1000
        asyncio.get_running_loop().call_later(delay_s, self._give, answer, response)

    def _give(self, answer: asyncio.Future[Message], response: Message) -> None:
        self.is_busy = False
        if answer.done():
            return  # The client has disconnected.
        self._tell_open()
        if self.is_over and self._is_bare:
            # Without headers there is no error code: closing the connection is the refusal.
            answer.set_exception(AuthenticationFailed(self.reason))
        else:
            answer.set_result(response)

    def _tell_outcome(self, response: Message) -> None:
        """Tell what an attempt has come to, if the response ends it."""
        # `on_open` is called once, after the first success: later attempts renew a session.
        stage, again = self._authentication.stage, self._on_open is None
        if stage is AuthenticationStage.OVER:
            self._tell(
                AuthenticationEvent.FAILED_AGAIN if again else AuthenticationEvent.FAILED,
            )
        elif stage is AuthenticationStage.OPEN and isinstance(response, SaslAuthenticateResponse):
            self._tell(
                AuthenticationEvent.SUCCESSFUL_AGAIN if again else AuthenticationEvent.SUCCESSFUL,
            )

    def _tell_open(self) -> None:
        """Call `on_open` once the client has authenticated for the first time."""
        if self._authentication.stage is AuthenticationStage.OPEN and self._on_open is not None:
            self.close()
            on_open, self._on_open = self._on_open, None
            on_open()

    def _maker(self, name: str) -> Callable[[], Mechanism]:
        if name == PLAIN:
            return lambda: Plain(self._users())
        tokens = self._tokens
        if name == OAUTHBEARER and tokens is not None:
            return lambda: OAuthBearer(tokens)
        mechanism = ScramMechanism[name.replace("-", "_")]
        return lambda: Scram(mechanism, self._users(), nonce=secrets.token_urlsafe(NONCE_BYTES))


def bare(response: Message) -> list[Piece]:
    """Return the frame of a mechanism's message without a response header."""
    data = response.auth_bytes if isinstance(response, SaslAuthenticateResponse) else b""
    return [len(data).to_bytes(_SIZE_BYTES, "big"), data]
