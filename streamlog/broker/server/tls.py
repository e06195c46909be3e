"""TLS on a listener: OpenSSL between a socket and a connection, and the certificates it uses.

`TlsConnection` stands before the connection's own protocol and is its transport: it completes the
handshake, decrypts incoming bytes into the connection's buffers, and encrypts what its `TlsWriter`
is given. Record batches in files are read in chunks, because the kernel can't encrypt what it sends
from a file. The TLS of asyncio and uvloop is not used: it does not say why a handshake failed, and
it buffers what a slow reader leaves, where a `SocketWriter` asks its caller to stop.

A connection that does not complete the handshake within `HANDSHAKE_TIMEOUT_MS`, or does not speak
TLS, is closed with one log line that says which.

`Certificates` follows the certificate files while the broker runs (`followed_files`): clients that
connect after a change get the new ones.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from streamlog import repeated
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import CLIENT_AUTH_NONE, CLIENT_AUTH_REQUIRED, SecurityConfig
from streamlog.broker.security.principals import (
    PrincipalRules,
    Subject,
    distinguished_name,
    of_user,
)
from streamlog.broker.server.connections import AuthenticationEvent
from streamlog.broker.server.socket_writer import SocketWriter, memory_bytes
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.errors import ConfigError
from streamlog.followed_files import FollowedFiles
from streamlog.protocol.schema import Buffer, Piece, one_buffer

if TYPE_CHECKING:
    from streamlog.broker.server.connections import Connections
    from streamlog.clock import Clock
    from streamlog.transport.security import Security


FLIGHTS_MAX: Final = 4
"""More round trips than a TLS handshake takes."""

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate (ssl.client.auth=required)",
    "NO_SHARED_CIPHER": "it has no cipher in common with ssl.cipher.suites and the certificate",
    "UNSUPPORTED_PROTOCOL": "it speaks only versions that are not in ssl.enabled.protocols",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it rejects the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it rejects the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the broker's certificate has expired",
}

_log = repeated.logger(__name__)


class Certificates:
    """The broker's own certificate, and the rules that name clients by their certificates."""

    def __init__(self, config: SecurityConfig, clock: Clock) -> None:
        """Read the files.

        Raises:
            ConfigError: a file is missing, or its contents can't be used.
        """
        self._config = config
        self._rules = PrincipalRules.parse(config.principal_rules)
        paths = [path for path in (config.keystore, config.truststore) if path]
        self._contexts = FollowedFiles(
            partial(server_context, config), paths, clock, name="certificates"
        )

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, reloaded if the files have changed."""
        return self._contexts.value

    def principal_of(self, subject: Subject) -> str | None:
        """Return the principal of a client's certificate; None if no rule gives it a name."""
        name = self._rules.name_of(distinguished_name(subject))
        return None if name is None else of_user(name)

    def own_principal(self, security: Security, host: str) -> str | None:
        """Return the principal as which other brokers see this one; None without certificates.

        Other brokers are assumed to have certificates like this broker's. The check is a handshake
        of this broker with itself: as a server reached by the name `host`, and as a client with the
        settings `security`.

        Raises:
            ConfigError: other brokers would reject this broker's certificate.
        """
        context = security.tls()
        if context is None:
            return None
        try:
            subject = _shaken(self.context(), context, host)
        except ssl.SSLError as error:
            config = self._config
            raise ConfigError(
                f"other brokers, which connect to this one as {host!r}, would reject its"
                f" certificate: {describe_tls_error(error)};"
                f" ssl.keystore.location={config.keystore} must be for that name (or set"
                " ssl.endpoint.identification.algorithm=none) and signed by an authority in"
                f" ssl.truststore.location={config.truststore or '(those of this machine)'}"
            ) from None
        if subject is None:
            return None
        principal = self.principal_of(subject)
        if principal is None:
            raise ConfigError(
                "ssl.principal.mapping.rules has no name for this broker's own certificate,"
                f" {distinguished_name(subject)}: other brokers would close its connections"
            )
        return principal


def server_context(config: SecurityConfig) -> ssl.SSLContext:
    """Return the TLS context of the listeners.

    Raises:
        ConfigError: a file is missing, or its contents can't be used.
    """
    if not config.keystore:
        raise ConfigError(
            "a listener with TLS needs ssl.keystore.location, a PEM file with the broker's"
            " certificate and its private key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [ssl.TLSVersion[each.replace(".", "_")] for each in config.tls_versions.split(",")]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # A function, even without a password: otherwise OpenSSL would ask at the terminal for the
        # password of an encrypted key.
        context.load_cert_chain(config.keystore, password=lambda: config.key_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl.keystore.location={config.keystore}: {describe_tls_error(error)}; it must be"
            " a PEM file with the broker's certificate and its private key"
            " (encrypted: ssl.key.password)"
        ) from error
    if config.client_auth != CLIENT_AUTH_NONE:
        is_required = config.client_auth == CLIENT_AUTH_REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(config.truststore)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"ssl.truststore.location={config.truststore}: {describe_tls_error(error)}; it must"
                " be a PEM file with certificates of authorities"
            ) from error
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers.replace(",", ":"))
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl.cipher.suites={config.ciphers!r}: {describe_tls_error(error)}"
            ) from error
    return context


def _shaken(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Subject | None:
    """Shake hands in memory; return the subject of the client's certificate, None without one.

    Raises:
        ssl.SSLError: one side rejects the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(FLIGHTS_MAX):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    shown = ends[1].getpeercert() or {}
    # The types of `ssl` say that all values are strings; the subject is a tuple.
    return cast("Subject | None", shown.get("subject"))


def describe_tls_error(error: Exception) -> str:
    """Return an error of OpenSSL, or of the operating system, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Some errors lack the attribute.
        reason = getattr(error, "reason", None) or str(error.args[0])
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    return getattr(error, "strerror", None) or str(error)


HANDSHAKE_TIMEOUT_MS = 10_000
CHUNK_BYTES = 256 * 1024
"""How much is encrypted at a time; the next chunk waits until the socket has taken this one."""
TURN_BYTES_MAX = 4 * 1024 * 1024
"""After this many bytes other connections have their turn, however fast this client reads."""
HANDSHAKE_RECORD = 0x16
"""The first byte that a TLS client sends: the record type of a handshake (RFC 8446)."""


class TlsConnection(asyncio.BufferedProtocol):
    """One client of a listener with TLS: the socket's protocol, and the inner one's transport."""

    def __init__(
        self,
        certificates: Certificates,
        inner: asyncio.BufferedProtocol,
        *,
        listener: Listener,
        connections: Connections[Any],
    ) -> None:
        self.closed = asyncio.Event()
        self._inner = inner
        self._listener = listener
        self._connections = connections
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._certificates = certificates
        context = certificates.context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._principal: str | None = None
        self._scratch = connections.scratch
        self._has_begun = False
        self._is_paused = False
        self._is_logged = False
        self._is_open = False
        self._writer: TlsWriter | None = None
        self._peer = "?"

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare for the handshake, or close the connection if a limit refuses it."""
        # A cast: uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast("asyncio.Transport", transport)
        self._peer = (transport.get_extra_info("peername") or (self._peer,))[0]
        self._raw = SocketWriter(
            self._transport, on_room=self._on_room, on_failure=self._on_failure
        )
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_TIMEOUT_MS / 1000, self._on_timeout)
        if not self._connections.admit(self, self._peer, self._listener.name):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection; log a client that left during the handshake."""
        self._timer.cancel()
        # After the handshake the inner connection is the member; `leave` then does nothing.
        self._connections.leave(self)
        if self._is_open:
            self._inner.connection_lost(exc)
        elif self._has_begun and not self._is_logged:
            self._tell(
                "it closed the connection in the middle; it may reject the broker's certificate"
            )
        self._raw.close()
        self.closed.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size fits
        """Return the buffer for encrypted bytes, which all connections share."""
        # Safe: `buffer_updated` empties it before the loop reads for another connection.
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt the bytes that the socket has received."""
        if not self._has_begun:
            self._has_begun = True
            # OpenSSL's own error for plaintext, "wrong version number", would not help a user.
            if self._scratch[0] != HANDSHAKE_RECORD:
                self._fail(
                    f"it does not speak TLS, which listener {self._listener.name} requires: set its"
                    f" security.protocol to {self._listener.protocol}"
                )
                return
        self._incoming.write(self._scratch[:nbytes])
        self._take_up()

    def eof_received(self) -> bool:
        """See `BufferedProtocol`: an end during the handshake closes the connection."""
        return bool(self._inner.eof_received()) if self._is_open else False

    # ---- the transport of the connection ----

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - asyncio's
        """Return what the socket's transport says; `principal` is from the client's certificate."""
        if name != "principal":
            return self._transport.get_extra_info(name, default)
        return default if self._principal is None else self._principal

    def pause_reading(self) -> None:
        """Stop reading from the socket, and stop decrypting what has been read."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, and decrypt the bytes that were received before the pause.

        In the next turn of the loop: the inner connection may call this while it handles bytes.
        """
        self._is_paused = False
        self._transport.resume_reading()
        asyncio.get_running_loop().call_soon(self._take_up)

    def close(self) -> None:
        """Send the TLS close alert, and close the connection."""
        if not self._transport.is_closing():
            # It writes the alert, then raises: the client's own alert has not arrived yet.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection without the close alert; drop what waits to be sent."""
        self._transport.abort()

    def writer(
        self, *, on_room: Callable[[], None], on_failure: Callable[[OSError], None]
    ) -> TlsWriter:
        """Return the connection's writer; called once, like the constructor of `SocketWriter`."""
        self._writer = TlsWriter(self._raw, self._encrypted, on_room=on_room, on_failure=on_failure)
        return self._writer

    # ---- a member of the connections, until the handshake is done ----

    def progress(self) -> int | None:
        """See `ClientConnection`: never idle, since the handshake has its own time-out."""
        return None

    def end_idle(self, idle_ms: int) -> None:  # noqa: ARG002 - see above
        """See `ClientConnection`."""
        self.abort()

    @property
    def is_half_open(self) -> bool:
        """See `ClientConnection`."""
        return True

    def end_half_open(self) -> None:
        """See `ClientConnection`."""
        self._is_logged = True
        self.abort()

    def stop(self) -> None:
        """Close the connection: the server stops."""
        self.abort()

    def end_slow(self) -> None:
        """See `ClientConnection`."""
        self.abort()

    def go_on(self, size_bytes: int) -> None:
        """See `Receiver`: a handshake asks for no memory."""

    def give_back(self) -> int:
        """See `Receiver`."""
        return 0

    def received_bytes(self) -> int | None:
        """See `Receiver`."""
        return None

    # ---- TLS ----

    def _take_up(self) -> None:
        """Continue the handshake, or decrypt, with the bytes received so far."""
        if self._transport.is_closing():
            return
        try:
            if self._is_open or self._shake_hands():
                self._decrypt()
        except ssl.SSLError as error:
            self._flush()  # OpenSSL's alert, so that the client learns the reason too.
            self._fail(describe_tls_error(error))
            return
        self._flush()

    def _shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete and the client is accepted."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._timer.cancel()
        self._flush()
        if not self._listener.has_sasl and not self._accept_certificate():
            return False
        self._is_open = True
        if not self._listener.has_sasl:
            self._note(AuthenticationEvent.SUCCESSFUL)
        # The inner connection counts from here on; both at once would count the client twice.
        self._connections.pass_on(self)
        self._inner.connection_made(cast("asyncio.Transport", self))
        return True

    def _accept_certificate(self) -> bool:
        """Set the principal by the client's certificate; return False if no rule names it.

        A client without a certificate is accepted as anonymous.
        """
        shown = self._tls.getpeercert()
        if shown:
            subject = cast("Subject", shown["subject"])
            self._principal = self._certificates.principal_of(subject)
            if self._principal is None:
                self._fail(
                    "no rule of ssl.principal.mapping.rules matches its certificate's subject"
                    f" {distinguished_name(subject)!r}"
                )
                return False
        return True

    def _decrypt(self) -> None:
        # Until OpenSSL has no whole record left: the inner connection may close or pause this one
        # in any turn, so both are checked each time.
        while not self._transport.is_closing() and not self._is_paused:
            room = cast("memoryview", self._inner.get_buffer(-1))
            try:
                # With a buffer it returns the number of bytes, although its type is bytes.
                size_bytes = cast("int", self._tls.read(len(room), room))
            except ssl.SSLWantReadError:
                return
            except ssl.SSLZeroReturnError:
                size_bytes = 0
            if not size_bytes:
                if not self._inner.eof_received():
                    self.close()
                return
            self._inner.buffer_updated(size_bytes)

    def _encrypted(self, data: Buffer) -> bytes:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def _flush(self) -> None:
        """Send what OpenSSL has written itself: handshake messages and alerts."""
        if self._outgoing.pending:
            self._raw.write([self._outgoing.read()])

    def _on_room(self) -> None:
        if self._writer is not None:
            self._writer.go_on()

    def _on_failure(self, error: OSError) -> None:
        if self._writer is None:
            self.abort()
            return
        self._writer.close()
        self._writer.on_failure(error)

    def _on_timeout(self) -> None:
        self._fail(f"it did not complete the handshake within {HANDSHAKE_TIMEOUT_MS} ms")

    def _fail(self, reason: str) -> None:
        if not self._is_open:
            self._note(AuthenticationEvent.FAILED)
        self._tell(reason)
        # Not abort: the alert has to reach the client.
        self._transport.close()

    def _note(self, event: AuthenticationEvent) -> None:
        self._connections.on_authentication(self._listener.name, event)

    def _tell(self, reason: str) -> None:
        """Log why the connection is closed, so that `connection_lost` does not log it again."""
        self._is_logged = True
        what = "TLS" if self._is_open else "the TLS handshake"
        _log.warning("closed the connection of %s: %s failed: %s", self._peer, what, reason)


class TlsWriter:
    """Encrypts what a connection writes, chunk by chunk; used like a `SocketWriter`."""

    def __init__(
        self,
        raw: SocketWriter,
        encrypted: Callable[[Buffer], bytes],
        *,
        on_room: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self.on_failure = on_failure
        self.blocked = False
        """Whether the client has to read before more can leave."""
        self._raw = raw
        self._encrypted = encrypted
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Piece] = deque()
        self._sent_bytes = 0
        """How much of the first piece in the queue has been encrypted."""
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """The memory, in bytes, of what the client has not taken yet."""
        return memory_bytes(self._queue) + self._raw.held_bytes

    @property
    def unblockings(self) -> int:
        """How often the socket had room again after it was full; a sign of progress."""
        return self._raw.unblockings

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after those of earlier calls."""
        self._queue += pieces
        if not self.blocked and not self._closed:
            self._send()

    def close(self) -> None:
        """Close, and drop what has not been sent."""
        self._closed = True
        self._queue.clear()
        self._raw.close()

    def go_on(self) -> None:
        """Continue: the socket has room, or it is this connection's turn again."""
        if self._closed or not self.blocked:
            return
        self.blocked = False
        self._send()
        if not self.blocked and not self._closed:
            self._on_room()

    def _send(self) -> None:
        # Chunk by chunk, and only while the socket takes it: a slow reader holds one encrypted
        # chunk in memory, and the ranges behind it stay in their files.
        turn_bytes = 0
        while self._queue and not self._raw.blocked and not self._closed:
            if turn_bytes >= TURN_BYTES_MAX:
                self._loop.call_soon(self.go_on)
                break
            try:
                chunk = self._chunk()
                self._raw.write([self._encrypted(chunk)])
            except OSError as error:
                self.close()
                self.on_failure(error)
                return
            turn_bytes += len(chunk)
        self.blocked = bool(self._queue) or self._raw.blocked

    def _chunk(self) -> Buffer:
        """Take the next bytes to encrypt from the queue: small pieces, or a part of a large one."""
        parts: list[Buffer] = []
        room_bytes = CHUNK_BYTES
        while self._queue and room_bytes:
            first = self._queue[0]
            size_bytes = min(len(first) - self._sent_bytes, room_bytes)
            if isinstance(first, FileRange):
                parts.append(first.part(self._sent_bytes, size_bytes).read())
            else:
                end = self._sent_bytes + size_bytes
                parts.append(memoryview(one_buffer(first))[self._sent_bytes : end])
            room_bytes -= size_bytes
            self._sent_bytes += size_bytes
            if self._sent_bytes == len(first):
                self._queue.popleft()
                self._sent_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


def writer_of(
    transport: asyncio.Transport,
    *,
    on_room: Callable[[], None],
    on_failure: Callable[[OSError], None],
) -> SocketWriter | TlsWriter:
    """Return the writer of a connection, with TLS or without."""
    if isinstance(transport, TlsConnection):
        return transport.writer(on_room=on_room, on_failure=on_failure)
    return SocketWriter(transport, on_room=on_room, on_failure=on_failure)
